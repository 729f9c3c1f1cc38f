/* Collectives around a ring in steps with products (storage.h):
 *
 *     h = all_gather(h.part over S on tp, steps = 1)       the rows of a block are multiplied as soon as it is there
 *     q = dot(h, wq over D)
 *     k = dot(h, wk over D)
 *
 *     p = dot(a, wo over H)                                the rows of a block are sent as soon as they are made
 *     o = reduce_scatter(p over S on tp, steps = 1)
 *
 * For that the rows of a product are those of the tensor that is gathered or scattered, up to the dimension that the ring
 * cuts: these dimensions come first in both, in one order, and are only in one of the two factors. */
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

bool dtm_may_step(const dtm_module *module, dtm_op collective, dtm_op product) {
    const dtm_op_data *c = &module->ops[collective], *dot = &module->ops[product];
    bool gathers = c->kind == DTM_OP_ALL_GATHER;
    if (dot->kind != DTM_OP_DOT || dot->n_operands < 2 || c->n_operands != 1 || c->attributes.n_over != 1) return false;
    dtm_value whole = gathers ? c->results[0] : c->operands[0];
    const dtm_type_data *type = dtm_value_type(module, whole), *out = dtm_value_type(module, dot->results[0]);
    int rows = dtm_type_dim_index(type, c->attributes.over[0]) + 1, i = dot->operands[1] == whole;
    if (rows < 1 || (gathers ? (dot->operands[0] == whole) == i : dot->results[0] != whole)) return false;
    if (!gathers) i = dtm_type_dim_index(dtm_value_type(module, dot->operands[1]), c->attributes.over[0]) >= 0;
    const dtm_type_data *a = dtm_value_type(module, dot->operands[i]), *b = dtm_value_type(module, dot->operands[!i]);
    int at;
    return is_by_rows(a, b, out, rows) && (!gathers || (has_run(a, out, 0, rows, &at) && at == 0));
}

bool dtm_is_in_steps(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    bool may = data->kind == DTM_OP_ALL_GATHER || data->kind == DTM_OP_REDUCE_SCATTER;
    return may && data->region && data->attributes.number[DTM_COLLECTIVE_STEPS] != 0;
}

size_t dtm_products_in_steps(const dtm_module *module, dtm_op op, dtm_op *first) {
    const dtm_op_data *data = &module->ops[op];
    const dtm_region_data *region = &module->regions[data->region];
    size_t at = (size_t)dtm_op_position(module, op), count = 0;
    bool gathers = data->kind == DTM_OP_ALL_GATHER;
    *first = 0;
    if (gathers) {
        while (at + 1 + count < region->n_ops && dtm_may_step(module, op, region->ops[at + 1 + count])) count++;
    } else {
        count = data->kind == DTM_OP_REDUCE_SCATTER && at > 0 && dtm_may_step(module, op, region->ops[at - 1]);
    }
    if (count) *first = region->ops[gathers ? at + 1 : at - 1];
    return count;
}
