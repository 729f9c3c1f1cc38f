/* The verifier's laws of operators (E0505 to E0507): split along one factor on each axis, its blocks cut at the same places
 * in all operands and results, and nothing that is not linear on the terms of a sum. */
#include "ir/verify.h"

#include <string.h>

/* ---- what a value is on one axis ---- */

typedef enum state { ALIKE, SPLIT, SUM, MAX } state;

static state state_on(const dtm_type_data *type, int axis, int *dim) {
    *dim = dtm_type_axis_dim(type, (uint8_t)axis);
    if (*dim >= 0) return SPLIT;
    if (type->sum >> axis & 1) return SUM;
    if (type->max >> axis & 1) return MAX;
    return ALIKE;
}

/* ---- one split on each axis ---- */

typedef struct on_axis {
    const dtm_op_data *op;
    const dtm_factor *factors;
    size_t n_factors;
    int axis;
} on_axis;

static int factor_of(const on_axis *c, bool of_result, uint32_t i, int dim) {
    for (size_t f = 0; f < c->n_factors; f++)
        if ((of_result ? c->factors[f].result_dim[i] : c->factors[f].operand_dim[i]) == dim) return (int)f;
    return -1;
}

/* Key/value heads too few for the axis: held alike, while the query heads are split (sharding.md, law 3). */
static bool may_hold_keys_alike(const dtm_op_data *op, const dtm_factor *f) {
    bool attention = op->kind == DTM_OP_ATTENTION || op->kind == DTM_OP_ATTENTION_BACKWARD;
    return attention && f->n_names == 2;
}

/* What a dot adds to (its third operand) is of the result's type, whatever that is; the laws are those of the others.
 */
static uint32_t judged_operands(const dtm_op_data *op) {
    return op->kind == DTM_OP_DOT ? 2 : op->n_operands;
}

static void check_added(verifier *v, const dtm_op_data *op) {
    if (op->kind != DTM_OP_DOT || op->n_operands < 3) return;
    if (dtm_value_get(v->module, op->operands[2])->type != dtm_value_get(v->module, op->results[0])->type)
        BREAK(v, op, 505, "%s adds to %s, which is %s, not %s", verify_title(v, op), verify_name(v, op->operands[2]),
              verify_type_text(v, op->operands[2]), verify_type_text(v, op->results[0]));
}

static void check_split(verifier *v, const on_axis *c, int factor) {
    const dtm_factor *f = &c->factors[factor];
    const dtm_op_data *op = c->op;
    if (f->kind == DTM_FACTOR_FIXED || f->kind == DTM_FACTOR_NORMALISED)
        BREAK(v, op, 506, "%s cannot be computed with %s split by %s", verify_title(v, op), verify_dim_text(v, f->names[0]),
              verify_axis_text(v, c->axis));
    bool keys_alike = false;
    for (uint32_t i = 0; i < judged_operands(op); i++) {
        int at;
        state is = state_on(dtm_value_type(v->module, op->operands[i]), c->axis, &at);
        if (f->operand_dim[i] >= 0 && is == ALIKE && may_hold_keys_alike(op, f) && (i == 1 || i == 2)) {
            keys_alike = true;
            continue;
        }
        if (f->operand_dim[i] >= 0 ? is != SPLIT || at != f->operand_dim[i] : is != ALIKE)
            BREAK(v, op, 506, "%s is split along %s by %s, but %s is %s", verify_title(v, op), verify_dim_text(v, f->names[0]),
                  verify_axis_text(v, c->axis), verify_name(v, op->operands[i]), verify_type_text(v, op->operands[i]));
    }
    for (uint32_t i = 0; i < op->n_results; i++) {
        int at;
        state is = state_on(dtm_value_type(v->module, op->results[i]), c->axis, &at), must = SPLIT;
        if (f->result_dim[i] < 0) must = f->kind != DTM_FACTOR_REDUCED ? ALIKE : f->is_max ? MAX : SUM;
        if (keys_alike && op->kind == DTM_OP_ATTENTION_BACKWARD && i > 0) must = SUM;
        if (is != must || (must == SPLIT && at != f->result_dim[i]))
            BREAK(v, op, must == SUM || must == MAX ? 507 : 506,
                  must == SUM || must == MAX ? "%s is split along %s by %s: each rank has a term, but %s is %s"
                                             : "%s is split along %s by %s, but %s is %s",
                  verify_title(v, op), verify_dim_text(v, f->names[0]), verify_axis_text(v, c->axis),
                  verify_name(v, op->results[i]),
                  verify_type_text(v, op->results[i]));
    }
}

static int lowest(uint32_t set) { return __builtin_ctz(set); }

/* "; b would have to be a term too": what lacks of the smallest set that the operator is linear in. */
static const char *others_needed(verifier *v, const dtm_op_data *op, const uint32_t *sets, size_t n_sets, uint32_t pending) {
    for (size_t s = 0; s < n_sets; s++)
        if ((sets[s] & pending) == pending)
            return dtm_arena_printf(v->scratch, "; %s would have to be a term too",
                                    verify_name(v, op->operands[lowest(sets[s] & ~pending)]));
    return "";
}

/* No operand and no result is split on the axis: alike, or a term passing a linear operator. */
static void check_pending(verifier *v, const on_axis *c, dtm_op self) {
    const dtm_op_data *op = c->op;
    uint32_t pending = 0, zeros = 0; /* a constant 0 may stand for a term */
    int unused;
    for (uint32_t i = 0; i < judged_operands(op); i++) {
        const dtm_value_data *value = dtm_value_get(v->module, op->operands[i]);
        if (!value->def && value->number == 0) zeros |= 1u << i;
        state is = state_on(dtm_value_type(v->module, op->operands[i]), c->axis, &unused);
        if (is == MAX)
            BREAK(v, op, 507, "%s reads %s, whose maximum over %s is still pending", verify_title(v, op),
                  verify_name(v, op->operands[i]), verify_axis(v, c->axis));
        if (is == SUM) pending |= 1u << i;
    }
    uint32_t sets[4];
    size_t n_sets = dtm_linear_sets(v->module, self, sets);
    bool linear = !pending;
    for (size_t s = 0; s < n_sets; s++) linear |= sets[s] == (pending | (zeros & sets[s]));
    const char *first = pending ? verify_name(v, op->operands[lowest(pending)]) : "", *axis = verify_axis(v, c->axis);
    if (!linear)
        BREAK(v, op, 507, "%s is not linear in %s alone, whose sum over %s is still pending%s", verify_title(v, op),
              first, axis, others_needed(v, op, sets, n_sets, pending));
    for (uint32_t i = 0; i < op->n_results; i++) {
        state is = state_on(dtm_value_type(v->module, op->results[i]), c->axis, &unused);
        if (op->kind == DTM_OP_FILL) { /* with what adds nothing, or is the maximum of nothing */
            double number = dtm_value_get(v->module, op->operands[0])->number;
            dtm_dtype dtype = (dtm_dtype)dtm_value_type(v->module, op->results[0])->dtype;
            if ((is == SUM && number == 0) || (is == MAX && number == dtm_least(dtype))) continue;
        }
        if (is == (pending ? SUM : ALIKE)) continue;
        if (pending)
            BREAK(v, op, 507, "%s: %s is %s, but %s, whose sum over %s is still pending, makes it a term", verify_title(v, op),
                  verify_name(v, op->results[i]), verify_type_text(v, op->results[i]), first, axis);
        BREAK(v, op, 507, "%s: %s is %s, but its operands make it whole on %s", verify_title(v, op),
              verify_name(v, op->results[i]), verify_type_text(v, op->results[i]), axis);
    }
}

static void check_axis(verifier *v, dtm_op self, const on_axis *c) {
    const dtm_op_data *op = c->op;
    int dim;
    for (uint32_t i = 0; i < op->n_operands + op->n_results; i++) {
        bool of_result = i >= op->n_operands;
        uint32_t index = of_result ? i - op->n_operands : i;
        dtm_value value = of_result ? op->results[index] : op->operands[index];
        if (!of_result && index >= judged_operands(op)) continue;
        if (state_on(dtm_value_type(v->module, value), c->axis, &dim) != SPLIT) continue;
        int factor = factor_of(c, of_result, index, dim);
        if (factor < 0)
            dtm_broken("verify", "no factor of %s is a dimension of %s", verify_title(v, op), verify_name(v, value));
        check_split(v, c, factor);
        return;
    }
    check_pending(v, c, self);
}

/* ---- blocks: all operands cut a factor at the same places ---- */

typedef struct cut_of {
    const dtm_dim_layout *layout;
    uint32_t unit;
    dtm_dim dim;
    dtm_value value;
} cut_of;

/* The same axes in the same order, each in proportional units: no need to look at blocks. */
static bool plainly_alike(const cut_of *a, const cut_of *b) {
    if (a->layout->count != b->layout->count) return false;
    for (int s = 0; s < a->layout->count; s++) {
        const dtm_split *x = &a->layout->splits[s], *y = &b->layout->splits[s];
        if (x->axis != y->axis || (uint64_t)x->unit * b->unit != (uint64_t)y->unit * a->unit) return false;
    }
    return true;
}

static bool same_blocks(const verifier *v, const cut_of *a, const cut_of *b) {
    if (plainly_alike(a, b)) return true;
    if (a->layout->count != b->layout->count) return false;
    const dtm_mesh *mesh = &v->module->settings.mesh;
    for (int s = 0; s < a->layout->count; s++)
        if (a->layout->splits[s].axis != b->layout->splits[s].axis) return false;
    int64_t coordinates[DTM_MAX_AXES] = {0};
    for (;;) {
        int64_t begin_a, size_a, begin_b, size_b;
        dtm_block_of(mesh, v->module->dims[a->dim].size, a->layout, coordinates, &begin_a, &size_a);
        dtm_block_of(mesh, v->module->dims[b->dim].size, b->layout, coordinates, &begin_b, &size_b);
        if (size_a * b->unit != size_b * a->unit || (size_a && begin_a * b->unit != begin_b * a->unit)) return false;
        int s = a->layout->count - 1;
        while (s >= 0 && ++coordinates[a->layout->splits[s].axis] == mesh->axes[a->layout->splits[s].axis].size)
            coordinates[a->layout->splits[s--].axis] = 0;
        if (s < 0) return true;
    }
}

/* "dp = 2, tp = 4" */
static const char *cuts_text(const verifier *v, const dtm_dim_layout *layout) {
    dtm_text text = {v->scratch, NULL, 0, 0};
    for (int s = 0; s < layout->count; s++)
        dtm_text_printf(&text, "%s%s", s ? ", " : "", verify_axis_text(v, layout->splits[s].axis));
    return text.data;
}

static void check_blocks(verifier *v, const dtm_op_data *op, const dtm_factor *f) {
    cut_of first = {NULL, 1, 0, 0};
    for (uint32_t i = 0; i < op->n_operands + op->n_results; i++) {
        bool of_result = i >= op->n_operands;
        uint32_t index = of_result ? i - op->n_operands : i;
        int dim = of_result ? f->result_dim[index] : f->operand_dim[index];
        if (dim < 0) continue;
        dtm_value value = of_result ? op->results[index] : op->operands[index];
        const dtm_type_data *type = dtm_value_type(v->module, value);
        cut_of here = {&type->layout[dim], of_result ? f->result_unit[index] : f->operand_unit[index], type->dims[dim],
                       value};
        bool keys = may_hold_keys_alike(op, f) &&
                    (of_result ? op->kind == DTM_OP_ATTENTION_BACKWARD && index > 0 : index == 1 || index == 2);
        if (keys && first.layout && here.layout->count < first.layout->count) continue;
        if (!first.layout)
            first = here;
        else if (!same_blocks(v, &first, &here))
            BREAK(v, op, 506, "%s: blocks of %s by %s differ: %s is %s, %s is %s", verify_title(v, op),
                  verify_dim_text(v, f->names[0]), cuts_text(v, first.layout->count ? first.layout : here.layout),
                  verify_name(v, first.value), verify_type_text(v, first.value), verify_name(v, here.value),
                  verify_type_text(v, here.value));
    }
}

void verify_splits(verifier *v, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(v->module, op);
    check_added(v, data);
    dtm_factor factors[DTM_MAX_FACTORS];
    on_axis c = {data, factors, dtm_factors(v->module, op, factors), 0};
    for (; c.axis < v->module->settings.mesh.count && v->good; c.axis++) check_axis(v, op, &c);
    for (size_t f = 0; f < c.n_factors && v->good; f++) check_blocks(v, data, &factors[f]);
}
