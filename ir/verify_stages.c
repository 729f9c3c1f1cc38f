/* The verifier's laws of the parts of a stage (E0513): `backward stage = k, weights { .. }` has what reaches gradients
 * alone. */
#include "ir/verify.h"

static bool is_weights(const dtm_op_data *op) {
    return op->kind == DTM_OP_BACKWARD && op->attributes.flags & DTM_BACKWARD_WEIGHTS;
}

/* The `weights` region that an operator stands in, or 0. */
static dtm_op weights_around(const dtm_module *module, dtm_op op) {
    dtm_op around = dtm_enclosing(module, op, DTM_OP_BACKWARD);
    return around && is_weights(dtm_op_get(module, around)) ? around : 0;
}

static void check_place(verifier *v, dtm_op self) {
    const dtm_op_data *op = dtm_op_get(v->module, self);
    const dtm_region_data *around = &v->module->regions[op->region];
    int stage = (int)op->attributes.number[DTM_REGION_STAGE];
    bool in_loop = around->parent && dtm_op_get(v->module, around->parent)->kind == DTM_OP_MICROBATCH;
    if (!v->module->of_ranks || !in_loop)
        BREAK(v, op, 513, "`backward .., weights` stands in the loop over microbatches of a pipeline rank's program");
    if (stage < 0) BREAK(v, op, 513, "`backward .., weights` names the stage it is of");
    for (size_t i = 0; i < around->n_ops; i++) {
        const dtm_op_data *other = dtm_op_get(v->module, around->ops[i]);
        if (other == op || other->kind != DTM_OP_BACKWARD || other->attributes.number[DTM_REGION_STAGE] != stage) continue;
        bool later = v->order[around->ops[i]] > v->order[self];
        if (is_weights(other) && later) BREAK(v, other, 513, "`backward stage = %d, weights` stands here again", stage);
        if (!is_weights(other) && later)
            BREAK(v, op, 513, "`backward stage = %d, weights` stands before `backward stage = %d`", stage, stage);
    }
}

/* Nothing in the loop waits for it: what it makes is read in it, or, once it is complete, after the loop. */
static void check_uses(verifier *v, dtm_op self) {
    dtm_op around = weights_around(v->module, self);
    const dtm_op_data *op = dtm_op_get(v->module, self);
    if (around && (op->kind == DTM_OP_SEND || op->kind == DTM_OP_RECEIVE))
        BREAK(v, op, 513, "%s stands among weight gradients, for which no other rank waits", verify_title(v, op));
    for (uint32_t i = 0; i < op->n_operands; i++) {
        dtm_op def = dtm_value_get(v->module, op->operands[i])->def;
        dtm_op from = def ? weights_around(v->module, def) : 0;
        if (from && from != around && dtm_op_get(v->module, def)->kind != DTM_OP_ACCUMULATE)
            BREAK(v, op, 513, "%s uses %s, which is made among the weight gradients of another part", verify_title(v, op),
                  verify_name(v, op->operands[i]));
    }
}

static void check_op(dtm_module *module, dtm_op op, void *state) {
    if (is_weights(dtm_op_get(module, op))) check_place(state, op);
    else check_uses(state, op);
}

void verify_stages(verifier *v) { dtm_walk(v->module, check_op, v); }
