/* The range of whole numbers that are known when the program is compiled: positions, and what shape operators and
 * arithmetic make of them. A range is exact: both ends occur. Operands that share a dimension depend on each other, so
 * nothing is said of their sum (`positions(S) - positions(S)` is 0 everywhere). */
#include "ir/ir.h"

#include <string.h>

/* Of what a reader wants, the elements [from, to) of some dimensions of the value; all of the others. */
typedef struct window {
    uint8_t count;
    struct {
        dtm_dim dim;
        int64_t from, to;
    } of[DTM_MAX_RANK];
} window;

typedef struct range {
    int64_t least, most;
} range;

/* Chains of arithmetic longer than that are no index into a table that someone wrote. */
enum { DEEPEST = 64 };

static int find(const window *w, dtm_dim dim) {
    for (int i = 0; i < w->count; i++)
        if (w->of[i].dim == dim) return i;
    return -1;
}

static bool shares_dimension(const dtm_type_data *a, const dtm_type_data *b) {
    for (int i = 0; i < a->rank; i++)
        if (dtm_type_dim_index(b, a->dims[i]) >= 0) return true;
    return false;
}

static bool range_of(const dtm_module *m, dtm_value value, const window *w, int depth, range *out);

static range hull(const int64_t *values, int n) {
    range r = {values[0], values[0]};
    for (int i = 1; i < n; i++) {
        if (values[i] < r.least) r.least = values[i];
        if (values[i] > r.most) r.most = values[i];
    }
    return r;
}

static bool within_i32(range r) { return r.least >= INT32_MIN && r.most <= INT32_MAX; }

/* Each operator here is monotone in each operand with the other fixed, so the ends are among those of the operands' ends. */
static bool of_two(const dtm_module *m, const dtm_op_data *op, const window *w, int depth, range *out) {
    dtm_value a = op->operands[0], b = op->operands[1];
    const dtm_type_data *x = dtm_value_type(m, a), *y = dtm_value_type(m, b);
    bool constant = dtm_value_is_constant(m, a) || dtm_value_is_constant(m, b);
    if (!constant && (!x->rank || !y->rank || shares_dimension(x, y))) return false;
    range p, q;
    if (!range_of(m, a, w, depth, &p) || !range_of(m, b, w, depth, &q)) return false;
    int64_t ends[4];
    for (int i = 0; i < 4; i++) {
        int64_t u = i & 1 ? p.most : p.least, v = i & 2 ? q.most : q.least;
        ends[i] = op->kind == DTM_OP_ADD       ? u + v
                  : op->kind == DTM_OP_SUB     ? u - v
                  : op->kind == DTM_OP_MUL     ? u * v
                  : op->kind == DTM_OP_MINIMUM ? (u < v ? u : v)
                                               : (u > v ? u : v);
    }
    *out = hull(ends, 4);
    return within_i32(*out);
}

static bool of_positions(const dtm_module *m, const dtm_op_data *op, const window *w, range *out) {
    dtm_dim dim = op->attributes.over[0];
    int i = find(w, dim);
    *out = i < 0 ? (range){0, m->dims[dim].size - 1} : (range){w->of[i].from, w->of[i].to - 1};
    return out->least <= out->most && within_i32(*out);
}

/* slice(x, K = a..b as R), and rename: the part of R that is wanted is one of K. */
static bool of_part(const dtm_module *m, const dtm_op_data *op, const window *w, int depth, range *out) {
    dtm_dim from = op->attributes.over[0], to = op->attributes.as[0];
    int64_t first = op->kind == DTM_OP_SLICE ? op->attributes.from : 0;
    window inner = *w;
    int i = find(w, to);
    if (i < 0) {
        i = inner.count++;
        inner.of[i].from = 0;
        inner.of[i].to = m->dims[to].size;
    }
    inner.of[i].dim = from;
    inner.of[i].from += first;
    inner.of[i].to += first;
    return range_of(m, op->operands[0], &inner, depth, out);
}

/* Both parts occur. */
static bool of_concat(const dtm_module *m, const dtm_op_data *op, const window *w, int depth, range *out) {
    range a, b;
    if (find(w, op->attributes.as[0]) >= 0) return false;
    if (!range_of(m, op->operands[0], w, depth, &a) || !range_of(m, op->operands[1], w, depth, &b)) return false;
    *out = hull((int64_t[]){a.least, a.most, b.least, b.most}, 4);
    return true;
}

static bool range_of(const dtm_module *m, dtm_value value, const window *w, int depth, range *out) {
    const dtm_value_data *data = dtm_value_get(m, value);
    if (dtm_value_is_constant(m, value)) {
        bool whole = data->number >= INT32_MIN && data->number <= INT32_MAX && data->number == (double)(int64_t)data->number;
        if (whole) *out = (range){(int64_t)data->number, (int64_t)data->number};
        return whole;
    }
    if (!data->def || depth == DEEPEST || dtm_value_type(m, value)->dtype != DTM_I32) return false;
    const dtm_op_data *op = &m->ops[data->def];
    switch (op->kind) {
    case DTM_OP_POSITIONS: return of_positions(m, op, w, out);
    case DTM_OP_ADD:
    case DTM_OP_SUB:
    case DTM_OP_MUL:
    case DTM_OP_MINIMUM:
    case DTM_OP_MAXIMUM: return of_two(m, op, w, depth + 1, out);
    case DTM_OP_NEG:
        if (!range_of(m, op->operands[0], w, depth + 1, out)) return false;
        *out = (range){-out->most, -out->least};
        return true;
    case DTM_OP_SLICE:
    case DTM_OP_RENAME: return of_part(m, op, w, depth + 1, out);
    case DTM_OP_CONCAT: return of_concat(m, op, w, depth + 1, out);
    case DTM_OP_SPLIT:
    case DTM_OP_MERGE: /* all elements, in another shape; a part of them is no part of one dimension */
        for (int i = 0; i < op->attributes.n_as; i++)
            if (find(w, op->attributes.as[i]) >= 0) return false;
        return range_of(m, op->operands[0], w, depth + 1, out);
    default: return false;
    }
}

bool dtm_index_range(const dtm_module *module, dtm_value value, int64_t *least, int64_t *most) {
    range r;
    window all = {0};
    if (!range_of(module, value, &all, 0, &r)) return false;
    *least = r.least;
    *most = r.most;
    return true;
}
