/* `zero`: a weight has a layout in which it rests between steps, and one in which it is used.
 *
 *     zero 3 on dp
 *
 *     weight up     : f32[D=64, F=256@tp] = ..         weight up    : f32[D=64@dp, F=256@tp] = ..
 *     h : .. = dot(x, up over D)                  ->   up.gathered  : f32[D=64, F=256@tp]    = relayout(up)
 *                                                      h : .. = dot(x, up.gathered over D)
 *
 * How it is used is what shard has chosen by then. Where it is alike on an axis of the rule it rests split along one of its
 * dimensions: the one that leaves the smallest blocks, of equals the first, whose blocks are one run of elements. The update
 * follows where weights rest (shard_update.c): so gradients are reduced to there (a reduce-scatter), the optimizer's state and
 * arithmetic are divided, and all that is put in is the relayout for those who use the weight (shard_layouts.c). In less than f32 a
 * weight is cast for its use: by its ranks block by block, so that what is gathered is in the type that it is used in.
 *
 * With `zero 3` the forward and the backward pass gather for themselves; with 1 and 2 what was gathered for the one serves the other. */
#include "ir/fault.h"
#include "passes/shard.h"

const dtm_zero_rule *shard_rest_rule(const shard *s, int axis) {
    const dtm_settings *settings = &s->module->settings;
    for (size_t i = 0; i < settings->n_zeros; i++)
        if (settings->zeros[i].axes >> axis & 1) return &settings->zeros[i];
    return NULL;
}

/* Elements of the largest block with one more axis along a dimension. */
static double largest_block(const shard *s, dtm_value weight, int with, int dim) {
    const dtm_module *m = s->module;
    const dtm_type_data *type = dtm_value_type(m, weight);
    double elements = 1;
    for (int d = 0; d < type->rank; d++) {
        int64_t size = m->dims[type->dims[d]].size;
        for (int a = 0; a < m->settings.mesh.count; a++) {
            if (!(s->axes >> a & 1)) continue;
            bool splits = a == with ? d == dim : shard_value_state(s, weight, a) == STATE_DIM + d;
            if (splits) size = (size + m->settings.mesh.axes[a].size - 1) / m->settings.mesh.axes[a].size;
        }
        elements *= (double)size;
    }
    return elements;
}

static int dim_to_rest(const shard *s, dtm_value weight, int axis) {
    const dtm_type_data *type = dtm_value_type(s->module, weight);
    double least = largest_block(s, weight, axis, -1);
    int best = -1;
    for (int d = 0; d < type->rank; d++) {
        double block = largest_block(s, weight, axis, d);
        if (dtm_fault(174) ? block > least : block < least) least = block, best = d;
    }
    return best;
}

/* The casts of a weight are made where it rests. */
static void rest_casts(shard *s, dtm_value weight, int axis, int dim) {
    for (uint32_t i = 0; i < s->n_readers[weight]; i++) {
        dtm_op reader = s->readers[weight][i];
        if (s->module->ops[reader].kind != DTM_OP_CAST || s->ops[reader].phase == PHASE_UPDATE) continue;
        for (int f = 0; f < s->ops[reader].n_factors; f++)
            if (s->ops[reader].factors[f].operand_dim[0] == dim) s->ops[reader].choice[axis] = (shard_choice)(CHOICE_FACTOR + f);
    }
}

void shard_rest(shard *s) {
    for (int a = 0; a < s->module->settings.mesh.count; a++) {
        if (!(s->axes >> a & 1) || !shard_rest_rule(s, a)) continue;
        for (size_t i = 0; i < s->n_order; i++) {
            const dtm_op_data *data = dtm_op_get(s->module, s->order[i]);
            if (data->kind != DTM_OP_WEIGHT || shard_value_state(s, data->results[0], a) != STATE_ALIKE) continue;
            int dim = dim_to_rest(s, data->results[0], a);
            if (dim < 0) continue;
            s->ops[s->order[i]].choice[a] = (shard_choice)(CHOICE_STATE + STATE_DIM + dim);
            s->ops[s->order[i]].rests |= (uint16_t)(1 << a);
            rest_casts(s, data->results[0], a, dim);
        }
    }
}

/* The weight that a value is, or is a cast of. 0: none. */
static dtm_op weight_behind(const shard *s, dtm_value value) {
    dtm_op def = s->module->values[value].def;
    if (def && s->module->ops[def].kind == DTM_OP_CAST) def = s->module->values[s->module->ops[def].operands[0]].def;
    return def && s->module->ops[def].kind == DTM_OP_WEIGHT ? def : 0;
}

uint16_t shard_rests(const shard *s, dtm_value value) {
    dtm_op weight = weight_behind(s, value);
    return weight ? s->ops[weight].rests : 0;
}

bool shard_gathers_again(const shard *s, dtm_value value) {
    uint16_t rests = shard_rests(s, value);
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        if (rests >> a & 1 && shard_rest_rule(s, a)->stage == 3) return !dtm_fault(173);
    return false;
}

const char *shard_rest_title(const shard *s, int axis) {
    const dtm_zero_rule *rule = shard_rest_rule(s, axis);
    if (!rule) return NULL;
    dtm_text text = {s->arena, NULL, 0, 0};
    dtm_text_printf(&text, "zero %d on %s", rule->stage, dtm_string_text(s->module->context, s->module->settings.mesh.axes[axis].name));
    if (rule->place.line) dtm_text_printf(&text, ", line %u", rule->place.line);
    return text.data;
}
