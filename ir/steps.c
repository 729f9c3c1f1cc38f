/* Collectives around a ring in steps with products (storage.h):
 *
 *     h = all_gather(h.part over S on tp, steps = 1)       the rows of a block are multiplied as soon as it is there
 *     q = dot(h, wq over D)
 *     k = dot(h, wk over D)
 *
 *     p = dot(a, wo over H)                                the rows of a block are sent as soon as they are made
 *     o = reduce_scatter(p over S on tp, steps = 1)
 *
 *     p = dot(d_q, wq over H)                              and so those of a sum of products, by all of them in turn;
 *     r = dot(d_k, wk over H)                              after fuse: r = dot(d_k, wk, p over H)
 *     s = p + r
 *     d_h = reduce_scatter(s over S on tp, steps = 1)
 *
 * For that the rows of a product are those of the tensor that is gathered or scattered, up to the dimension that the ring
 * cuts: these dimensions come first in both, in one order, and are only in one of the two factors. */
#include "ir/fault.h"
#include "ir/storage.h"

/* Whether `type` has the dimensions of `like` from `from` to `to` one after another, in that order; where. */
static bool has_run(const dtm_type_data *type, const dtm_type_data *like, int from, int to, int *at) {
    *at = from < to ? dtm_type_dim_index(type, like->dims[from]) : -1;
    for (int d = from; d < to; d++)
        if (*at < 0 || dtm_type_dim_index(type, like->dims[d]) != *at + d - from) return false;
    return from < to;
}

static bool has_none(const dtm_type_data *type, const dtm_type_data *of, int from, int to) {
    for (int d = from; d < to; d++)
        if (dtm_type_dim_index(type, of->dims[d]) >= 0) return false;
    return true;
}

/* Whether rows * depth times depth * columns is rows * columns, each a run of dimensions, the rows the first `rows`. */
static bool is_by_rows(const dtm_type_data *a, const dtm_type_data *b, const dtm_type_data *product, int rows) {
    int first, columns, depth = a->rank - rows, at = 0;
    if (rows >= product->rank || depth < 1 || b->rank != depth + product->rank - rows) return false;
    if (!has_run(a, product, 0, rows, &first) || !has_run(b, product, rows, product->rank, &columns)) return false;
    if (!has_none(b, product, 0, rows) || !has_none(a, product, rows, product->rank)) return false;
    if (first != 0 && first != depth) return false;
    int from = first ? 0 : rows;
    return has_run(b, a, from, from + depth, &at);
}

/* Of the factors of a product the one that has its rows, if they are those of `whole` up to the dimension that is cut; -1: neither. */
static int factor_by_rows(const dtm_module *module, const dtm_op_data *dot, dtm_dim cut, int rows) {
    const dtm_type_data *type = dtm_value_type(module, dot->results[0]);
    int i = dtm_type_dim_index(dtm_value_type(module, dot->operands[1]), cut) >= 0;
    const dtm_type_data *a = dtm_value_type(module, dot->operands[i]), *b = dtm_value_type(module, dot->operands[!i]);
    return is_by_rows(a, b, type, rows) ? i : -1;
}

bool dtm_may_step(const dtm_module *module, dtm_op collective, dtm_op product) {
    const dtm_op_data *c = &module->ops[collective], *dot = &module->ops[product];
    bool gathers = c->kind == DTM_OP_ALL_GATHER;
    if (dot->kind != DTM_OP_DOT || dot->n_operands < 2 || c->n_operands != 1 || c->attributes.n_over != 1) return false;
    dtm_value whole = gathers ? c->results[0] : c->operands[0];
    const dtm_type_data *type = dtm_value_type(module, whole), *out = dtm_value_type(module, dot->results[0]);
    int rows = dtm_type_dim_index(type, c->attributes.over[0]) + 1, i = dot->operands[1] == whole, at;
    if (rows < 1) return false;
    if (!gathers) return module->values[dot->results[0]].type == module->values[whole].type && factor_by_rows(module, dot, c->attributes.over[0], rows) >= 0;
    if ((dot->operands[0] == whole) == i) return false;
    const dtm_type_data *a = dtm_value_type(module, dot->operands[i]), *b = dtm_value_type(module, dot->operands[!i]);
    return is_by_rows(a, b, out, rows) && has_run(a, out, 0, rows, &at) && at == 0;
}

bool dtm_is_in_steps(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    bool may = data->kind == DTM_OP_ALL_GATHER || data->kind == DTM_OP_REDUCE_SCATTER;
    return may && data->region && data->attributes.number[DTM_COLLECTIVE_STEPS] != 0;
}

/* ---- sums of products ---- */

static size_t reads_of(const dtm_module *module, dtm_value value) {
    size_t count = 0;
    for (dtm_op op = 1; op < module->n_ops; op++)
        for (uint32_t i = 0; module->ops[op].region && i < module->ops[op].n_operands; i++) count += module->ops[op].operands[i] == value;
    return count;
}

enum { MOST_TERMS = 16 };

/* What is still to be found of a sum, from its end on: in a row of additions two at a time. */
typedef struct terms {
    dtm_value items[MOST_TERMS];
    size_t count;
} terms;

static bool take_term(terms *t, dtm_value value) {
    for (size_t i = 0; i < t->count; i++) {
        if (t->items[i] != value) continue;
        t->items[i] = t->items[--t->count];
        return true;
    }
    return false;
}

/* Whether an operator adds two terms that nothing else reads: then each is added to the one before it in its place (fuse), if none is
 * rounded before. */
static bool adds_terms(const dtm_module *module, const dtm_op_data *add, dtm_value whole) {
    if (add->kind != DTM_OP_ADD || (dtm_value_type(module, whole)->dtype != DTM_F32 && !dtm_fault(172))) return false;
    for (int i = 0; i < 2; i++)
        if (module->values[add->operands[i]].type != module->values[whole].type || reads_of(module, add->operands[i]) != 1) return false;
    return true;
}

/* The operators that make what a scatter takes, a product or a sum of products, right before it: how many. */
static size_t sum_before(const dtm_module *module, dtm_op scatter) {
    const dtm_op_data *data = &module->ops[scatter];
    const dtm_op *ops = module->regions[data->region].ops;
    size_t at = (size_t)dtm_op_position(module, scatter), count = 0;
    terms t = {{data->operands[0]}, 1};
    size_t found = 0; /* with which all terms are there, but for what the first product adds to */
    while (t.count && count < at && t.count < MOST_TERMS) {
        const dtm_op_data *op = &module->ops[ops[at - count - 1]];
        bool product = dtm_may_step(module, scatter, ops[at - count - 1]);
        if (!product && !adds_terms(module, op, data->operands[0])) break;
        if (!take_term(&t, op->results[0])) break;
        count++;
        for (uint32_t i = product ? 2 : 0; i < op->n_operands; i++) t.items[t.count++] = op->operands[i];
        if (!t.count || (product && op->n_operands == 3 && t.count == 1)) found = count;
    }
    return found;
}

size_t dtm_products_in_steps(const dtm_module *module, dtm_op op, dtm_op *first) {
    const dtm_op_data *data = &module->ops[op];
    const dtm_region_data *region = &module->regions[data->region];
    size_t at = (size_t)dtm_op_position(module, op), count = 0;
    bool gathers = data->kind == DTM_OP_ALL_GATHER;
    *first = 0;
    if (gathers) {
        while (at + 1 + count < region->n_ops && dtm_may_step(module, op, region->ops[at + 1 + count])) count++;
    } else if (data->kind == DTM_OP_REDUCE_SCATTER && data->n_operands == 1) {
        count = sum_before(module, op);
    }
    if (count) *first = region->ops[gathers ? at + 1 : at - count];
    return count;
}
