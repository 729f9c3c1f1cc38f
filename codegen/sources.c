/* What a program begins with: weights and states, the bounds of its inputs, numbers of the optimizer. */
#include "codegen/generator.h"

#include <string.h>

static dtm_module *module_of(const dtm_generator *g) { return g->module; }
static const char *text_of(const dtm_generator *g, dtm_string s) { return dtm_string_text(g->module->context, s); }

void dtm_add_weight(dtm_generator *g, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(module_of(g), op);
    const dtm_type_data *type = dtm_value_type(module_of(g), data->results[0]);
    static const dtm_plan_init inits[] = {[DTM_INIT_ZEROS] = DTM_PLAN_ZEROS, [DTM_INIT_ONES] = DTM_PLAN_ONES,
                                          [DTM_INIT_NORMAL] = DTM_PLAN_NORMAL, [DTM_INIT_UNIFORM] = DTM_PLAN_UNIFORM,
                                          [DTM_INIT_NUMBER] = DTM_PLAN_NUMBER};
    dtm_plan_weight weight;
    memset(&weight, 0, sizeof weight);
    weight.path = text_of(g, data->attributes.name);
    weight.buffer = dtm_buffer_index(g, data->results[0]);
    /* A repeat of one copy has one slot, but its weights are still named by the copy. */
    g->buffers[weight.buffer].loop = dtm_loop_index(g, dtm_enclosing(module_of(g), op, DTM_OP_REPEAT));
    weight.rank = type->rank;
    for (int i = 0; i < type->rank; i++)
        weight.dims[i] = (dtm_plan_dim){dtm_dim_name(module_of(g), type->dims[i]), module_of(g)->dims[type->dims[i]].size};
    weight.init = inits[data->attributes.init];
    weight.a = data->attributes.init_a;
    weight.b = data->attributes.init_b;
    weight.state = data->kind == DTM_OP_STATE;
    weight.frozen = !weight.state && data->attributes.flags & DTM_WEIGHT_FROZEN;
    weight.line = data->place.line;
    DTM_PUSH(g->arena, g->weights, g->n_weights, g->cap_weights, weight);
    g->weight_of[data->results[0]] = (uint32_t)g->n_weights;
}

int64_t dtm_input_limit(const dtm_generator *g, dtm_value input) {
    int64_t limit = 0;
    for (dtm_op op = 1; op < module_of(g)->n_ops; op++) {
        const dtm_op_data *data = dtm_op_get(module_of(g), op);
        if (!data->region) continue;
        bool looks_up = data->kind == DTM_OP_GATHER && data->operands[1] == input;
        bool names = data->kind == DTM_OP_CROSS_ENTROPY_BACKWARD && data->operands[2] == input;
        bool loses = data->kind == DTM_OP_CROSS_ENTROPY && data->operands[1] == input;
        if (!looks_up && !names && !loses) continue;
        int64_t size = module_of(g)->dims[data->attributes.over[0]].size;
        if (!limit || size < limit) limit = size;
    }
    return limit;
}

void dtm_lower_number(dtm_generator *g, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(module_of(g), op);
    dtm_plan_scalar scalar = {DTM_PLAN_LEARNING_RATE, dtm_buffer_index(g, data->results[0]), 0};
    if (data->kind == DTM_OP_BIAS_CORRECTION) {
        scalar.number = DTM_PLAN_BIAS_CORRECTION;
        scalar.beta = data->attributes.number[DTM_BIAS_CORRECTION_BETA];
    }
    dtm_emit(g, op, DTM_PLAN_SCALAR, DTM_PLAN_HOST)->scalar = scalar;
}
