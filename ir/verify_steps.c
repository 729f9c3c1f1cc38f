/* The verifier's laws of collectives in steps with products (E0514). */
#include "ir/verify.h"

void verify_steps(verifier *v, dtm_op self) {
    const dtm_op_data *op = dtm_op_get(v->module, self);
    if (op->kind != DTM_OP_ALL_GATHER && op->kind != DTM_OP_REDUCE_SCATTER) return;
    double steps = op->attributes.number[DTM_COLLECTIVE_STEPS];
    dtm_algorithm algorithm = dtm_collective_algorithm(op);
    int64_t ranks = 1;
    dtm_op first;
    for (int a = 0; a < v->module->settings.mesh.count; a++)
        if (op->attributes.axes >> a & 1) ranks *= v->module->settings.mesh.axes[a].size;
    if (op->attributes.flags && algorithm == DTM_ALGORITHM_BOTH_WAYS && ranks < 3)
        BREAK(v, op, 514, "%s: a ring of %lld ranks does not go both ways, it takes three", verify_title(v, op), (long long)ranks);
    if (steps == 0) return;
    if (steps != 1)
        BREAK(v, op, 514, "%s: steps = %s; a collective goes in steps, 1, or it does not, 0", verify_title(v, op),
              dtm_arena_printf(v->scratch, "%g", steps));
    if (dtm_is_apart(v->module, self))
        BREAK(v, op, 514, "%s is carried out apart, so it does not go in steps with products", verify_title(v, op));
    if (op->attributes.flags && algorithm != DTM_ALGORITHM_RING && algorithm != DTM_ALGORITHM_BOTH_WAYS)
        BREAK(v, op, 514, "%s goes around a ring if it goes in steps, not by %s", verify_title(v, op),
              dtm_algorithm_name(algorithm));
    if (!dtm_products_in_steps(v->module, self, &first) && op->kind == DTM_OP_ALL_GATHER)
        BREAK(v, op, 514, "%s does not go in steps: what follows is no product of its rows, up to %s, by another matrix",
              verify_title(v, op), dtm_dim_name(v->module, op->attributes.over[0]));
    if (!first)
        BREAK(v, op, 514, "%s does not go in steps: what stands before it is no product that makes its rows, up to %s",
              verify_title(v, op), dtm_dim_name(v->module, op->attributes.over[0]));
}
