/* canonicalize: one form for what can be written in several, before anything is derived or placed. Small and exact: every
 * value it leaves is bit for bit the one it was, but for the order of additions in a chain.
 *
 *   sites      every dropout that has none yet gets its number, its place in the program
 *   where      a reduction's condition becomes part of its operand
 *   fold       arithmetic on constants; x * 1, x + 0, x / 1, - - x, dropout of nothing; x - c is x + -c, x * x a square
 *   chains     in a sum of several values those that may be terms are added first
 *   common     an operator computed before is not computed again
 *   dead       what no report, output or store needs goes; inputs and weights stay, they are the program's face
 *
 *     m : f32[] = mean(x over B, S where c)          x.kept   : f32[B, S] = where(c, x, 0)
 *     y : f32[] = (x + p) + q                  ->    m.sum    : f32[]     = sum(x.kept over B, S)
 *         with p, q of products                      ..counted in i32..
 *                                                    m        : f32[]     = m.sum / m.count
 *                                                    y.terms  : f32[]     = p + q
 *                                                    y        : f32[]     = y.terms + x
 *
 * Terms first: under a mesh a product whose summed dimension is split is a term on each rank. `(x + p) + q` would be
 * reduced twice, `(p + q) + x` once. */
#include "ir/fault.h"
#include "passes/autodiff.h"
#include "passes/passes.h"

#include <math.h>
#include <string.h>

typedef struct canon {
    dtm_module *module;
    dtm_arena *arena;
} canon;

static dtm_op_data *get(canon *c, dtm_op op) { return dtm_op_get(c->module, op); }
static bool is_number(canon *c, dtm_value v) { return dtm_value_is_constant(c->module, v); }
static double number_of(canon *c, dtm_value v) { return dtm_value_get(c->module, v)->number; }
static bool is(canon *c, dtm_value v, double number) { return is_number(c, v) && number_of(c, v) == number; }

/* What a copy carries to the next must be made in it: a value made outside cannot stand in for such a one. */
static bool may_stand_for(canon *c, dtm_value by, dtm_value old) {
    dtm_op def = dtm_value_get(c->module, by)->def;
    if (def && get(c, def)->region == get(c, dtm_value_get(c->module, old)->def)->region) return true;
    for (dtm_op op = 1; op < c->module->n_ops; op++) {
        const dtm_op_data *data = get(c, op);
        if (!data->region) continue;
        if (data->kind == DTM_OP_CARRY && data->operands[1] == old) return false;
        if (data->kind == DTM_OP_LAST && data->operands[0] == old) return false;
    }
    return true;
}

/* Replaces the operator's only result by `by`, and the operator with it. */
static void replace(canon *c, dtm_op op, dtm_value by) {
    dtm_replace_uses(c->module, dtm_result(c->module, op, 0), by);
    dtm_op_remove(c->module, op);
}

/* The same, and the new value takes over the name. */
static void replace_named(canon *c, dtm_op op, dtm_value by) {
    dtm_string name = dtm_value_get(c->module, dtm_result(c->module, op, 0))->name;
    replace(c, op, by);
    dtm_value_get(c->module, by)->name = name;
}

static const char *suffixed(canon *c, dtm_op op, const char *suffix) {
    return dtm_arena_printf(c->arena, "%s.%s", dtm_value_name(c->module, dtm_result(c->module, op, 0)), suffix);
}

/* Whether a `keep` rule pins the value: it must stay as the source has it. */
static bool is_kept(canon *c, dtm_value v) {
    dtm_string name = dtm_value_source_name(c->module, v);
    for (size_t i = 0; i < c->module->settings.n_keeps; i++)
        if (name && c->module->settings.keeps[i].value == name) return true;
    return false;
}

/* ---- sites ---- */

/* Those that have one already keep it: masks must not change. */
static void number_sites(canon *c) {
    dtm_op_list ops = dtm_ops_in_order(c->module, c->arena);
    double highest = 0;
    for (size_t i = 0; i < ops.count; i++) {
        const dtm_op_data *op = get(c, ops.items[i]);
        if (op->kind == DTM_OP_DROPOUT) highest = fmax(highest, op->attributes.number[DTM_DROPOUT_SITE]);
    }
    for (size_t i = 0; i < ops.count; i++) {
        dtm_op_data *op = get(c, ops.items[i]);
        if (op->kind == DTM_OP_DROPOUT && op->attributes.number[DTM_DROPOUT_SITE] == 0)
            op->attributes.number[DTM_DROPOUT_SITE] = ++highest;
    }
}

/* ---- where ---- */

static bool has(canon *c, dtm_value v, dtm_dim dim) {
    return dtm_type_dim_index(dtm_value_type(c->module, v), dim) >= 0;
}

static dtm_value choose(dtm_builder *b, const char *name, dtm_value condition, dtm_value x, double other) {
    dtm_dtype dtype = (dtm_dtype)dtm_value_type(b->module, x)->dtype;
    dtm_value operands[3] = {condition, x, dtm_constant(b->module, dtype, other)};
    return dtm_build(b, DTM_OP_WHERE, name, operands, 3, NULL);
}

static dtm_value cast(dtm_builder *b, const char *name, dtm_value v, dtm_dtype dtype) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_CAST);
    attributes.dtype = dtype;
    return dtm_build(b, DTM_OP_CAST, name, &v, 1, &attributes);
}

/* Of the dimensions reduced those the condition has; *lacking is the product of the sizes of the others. */
static uint8_t condition_dims(canon *c, const dtm_op_data *op, dtm_dim *dims, int64_t *lacking) {
    uint8_t n = 0;
    *lacking = 1;
    for (int i = 0; i < op->attributes.n_over; i++) {
        dtm_dim dim = op->attributes.over[i];
        if (has(c, op->operands[1], dim)) dims[n++] = dim;
        else *lacking *= c->module->dims[dim].size;
    }
    return n;
}

/* How many elements count, at least 1: in i32, exact whatever the order, and then in the dtype of the mean. */
static dtm_value count_of(canon *c, dtm_builder *b, dtm_op op, const dtm_op_data *data, dtm_dtype dtype) {
    dtm_dim dims[DTM_MAX_RANK];
    int64_t lacking;
    uint8_t n = condition_dims(c, data, dims, &lacking);
    const char *name = suffixed(c, op, "count");
    dtm_value count = cast(b, name, data->operands[1], DTM_I32);
    if (n) count = dtm_build_over(b, DTM_OP_SUM, name, &count, 1, dims, n);
    if (lacking > 1 && !dtm_fault(28))
        count = dtm_build_binary(b, DTM_OP_MUL, name, count, dtm_constant(c->module, DTM_I32, (double)lacking));
    count = dtm_build_binary(b, DTM_OP_MAXIMUM, name, count, dtm_constant(c->module, DTM_I32, 1));
    return cast(b, name, count, dtype);
}

/* Whether any element counts: a bool. */
static dtm_value any_of(canon *c, dtm_builder *b, dtm_op op, const dtm_op_data *data) {
    dtm_dim dims[DTM_MAX_RANK];
    int64_t lacking;
    uint8_t n = condition_dims(c, data, dims, &lacking);
    if (!n) return data->operands[1];
    const char *name = suffixed(c, op, "any");
    dtm_value count = cast(b, name, data->operands[1], DTM_I32);
    count = dtm_build_over(b, DTM_OP_SUM, name, &count, 1, dims, n);
    return dtm_build_binary(b, DTM_OP_GT, name, count, dtm_constant(c->module, DTM_I32, 0));
}

/* Where nothing counts, a sum is 0 and so is a mean, 0 / 1: their gradients pass `where` and are 0 too. Only a maximum,
 * -inf then, must be put right. */
static void desugar_where(canon *c, dtm_op op) {
    dtm_op_data data = *get(c, op);
    dtm_builder b = dtm_builder_before(c->module, op);
    bool is_max = data.kind == DTM_OP_REDUCE_MAX, is_mean = data.kind == DTM_OP_MEAN;
    dtm_dtype dtype = (dtm_dtype)dtm_value_type(c->module, data.operands[0])->dtype;
    double nothing = is_max ? dtm_least(dtype) : 0;
    dtm_value x = choose(&b, suffixed(c, op, "kept"), data.operands[1], data.operands[0], nothing);
    const char *name = suffixed(c, op, is_max ? "max" : "sum");
    dtm_value y = dtm_build_over(&b, is_mean ? DTM_OP_SUM : data.kind, name, &x, 1, data.attributes.over,
                                 data.attributes.n_over);
    name = suffixed(c, op, "result");
    if (is_mean) y = dtm_build_binary(&b, DTM_OP_DIV, name, y, count_of(c, &b, op, &data, dtype));
    if (is_max && !dtm_fault(41)) y = choose(&b, name, any_of(c, &b, op, &data), y, 0);
    replace_named(c, op, y);
}

static void desugar(canon *c) {
    dtm_op_list ops = dtm_ops_in_order(c->module, c->arena);
    for (size_t i = 0; i < ops.count; i++) {
        dtm_op_kind kind = get(c, ops.items[i])->kind;
        bool reduction = kind == DTM_OP_SUM || kind == DTM_OP_MEAN || kind == DTM_OP_REDUCE_MAX;
        if (reduction && get(c, ops.items[i])->n_operands == 2) desugar_where(c, ops.items[i]);
    }
}

/* ---- fold ---- */

/* The value of an operator on numbers. Returns false where it has none. */
static bool compute(dtm_op_kind kind, const double *x, double *y) {
    switch (kind) {
    case DTM_OP_ADD: *y = x[0] + x[1]; return true;
    case DTM_OP_SUB: *y = x[0] - x[1]; return true;
    case DTM_OP_MUL: *y = x[0] * x[1]; return true;
    case DTM_OP_DIV: *y = x[0] / x[1]; return true;
    case DTM_OP_NEG: *y = -x[0]; return true;
    case DTM_OP_LT: *y = x[0] < x[1]; return true;
    case DTM_OP_LE: *y = x[0] <= x[1]; return true;
    case DTM_OP_GT: *y = x[0] > x[1]; return true;
    case DTM_OP_GE: *y = x[0] >= x[1]; return true;
    case DTM_OP_EQ: *y = x[0] == x[1]; return true;
    case DTM_OP_NE: *y = x[0] != x[1]; return true;
    case DTM_OP_MINIMUM: *y = isnan(x[0]) || x[0] < x[1] ? x[0] : x[1]; return true;
    case DTM_OP_MAXIMUM: *y = isnan(x[0]) || x[0] > x[1] ? x[0] : x[1]; return true;
    case DTM_OP_EXP: *y = exp(x[0]); return true;
    case DTM_OP_LOG: *y = log(x[0]); return true;
    case DTM_OP_SQRT: *y = sqrt(x[0]); return true;
    case DTM_OP_SQUARE: *y = x[0] * x[0]; return true;
    case DTM_OP_ABS: *y = fabs(x[0]); return true;
    default: return false;
    }
}

/* The constant an operator amounts to, or 0. Integers must stay integers of 32 bits. */
static dtm_value folded(canon *c, const dtm_op_data *op) {
    double x[3], y;
    if (op->n_results != 1 || !op->n_operands || op->n_operands > 3) return 0;
    for (uint32_t i = 0; i < op->n_operands; i++) {
        if (!is_number(c, op->operands[i])) return 0;
        x[i] = number_of(c, op->operands[i]);
    }
    dtm_dtype dtype = (dtm_dtype)dtm_value_type(c->module, op->results[0])->dtype;
    if (!compute(op->kind, x, &y)) return 0;
    if (dtype == DTM_I32 && !(y >= -2147483648.0 && y <= 2147483647.0 && y == floor(y))) return 0;
    return dtm_constant(c->module, dtype, y);
}

/* The operand an operator only hands on, or 0. */
static dtm_value handed_on(canon *c, const dtm_op_data *op) {
    dtm_value x = op->n_operands ? op->operands[0] : 0, y = op->n_operands > 1 ? op->operands[1] : 0;
    switch (op->kind) {
    case DTM_OP_ADD: return is(c, y, 0) ? x : is(c, x, 0) ? y : 0;
    case DTM_OP_SUB: return is(c, y, 0) ? x : 0;
    case DTM_OP_MUL: return is(c, y, 1) ? x : is(c, x, 1) ? y : 0;
    case DTM_OP_DIV: return is(c, y, 1) ? x : 0;
    case DTM_OP_DROPOUT: return op->attributes.number[DTM_DROPOUT_P] == 0 ? x : 0;
    case DTM_OP_EXPAND: return x;
    case DTM_OP_CAST: return x;
    case DTM_OP_NEG: {
        dtm_op inner = is_number(c, x) ? 0 : dtm_value_get(c->module, x)->def;
        return inner && get(c, inner)->kind == DTM_OP_NEG ? get(c, inner)->operands[0] : 0;
    }
    default: return 0;
    }
}

static void rewrite(canon *c, dtm_op op) {
    dtm_op_data *data = get(c, op);
    dtm_value x = data->n_operands ? data->operands[0] : 0, y = data->n_operands > 1 ? data->operands[1] : 0;
    if (data->kind == DTM_OP_SUB && is_number(c, y)) {
        dtm_value minus = dtm_constant(c->module, (dtm_dtype)dtm_value_type(c->module, y)->dtype, -number_of(c, y));
        data->kind = DTM_OP_ADD;
        data->operands[1] = minus;
    } else if (data->kind == DTM_OP_MUL && x == y) {
        data->kind = DTM_OP_SQUARE;
        data->n_operands = 1;
    } else if (data->kind == DTM_OP_MUL && is_number(c, x)) { /* the constant comes second */
        data->operands[0] = y;
        data->operands[1] = x;
    }
}

static void fold(canon *c) {
    dtm_op_list ops = dtm_ops_in_order(c->module, c->arena);
    for (size_t i = 0; i < ops.count; i++) {
        dtm_op op = ops.items[i];
        dtm_op_data data = *get(c, op);
        dtm_value by = folded(c, &data);
        if (!by) {
            by = handed_on(c, &data);
            if (by && dtm_value_get(c->module, by)->type != dtm_value_get(c->module, data.results[0])->type) by = 0;
            if (by && is_kept(c, data.results[0])) by = 0;
        }
        if (by && may_stand_for(c, by, data.results[0])) replace(c, op, by);
        else rewrite(c, op);
    }
}

/* ---- chains ---- */

/* Looks at no more than `*budget` operators, since values may be shared. */
static bool may_be_term(const dtm_module *module, dtm_value value, int *budget) {
    while (!dtm_value_is_constant(module, value) && (*budget)-- > 0) {
        const dtm_op_data *op = dtm_op_get(module, dtm_value_get(module, value)->def);
        switch (op->kind) {
        case DTM_OP_DOT: case DTM_OP_SUM: case DTM_OP_MEAN: case DTM_OP_GATHER: case DTM_OP_SCATTER:
        case DTM_OP_ATTENTION_BACKWARD: return true;
        case DTM_OP_RMSNORM_BACKWARD: case DTM_OP_LAYERNORM_BACKWARD:
            return dtm_value_get(module, value)->result > 0; /* of scale and bias */
        case DTM_OP_ADD: case DTM_OP_SUB:
            if (!may_be_term(module, op->operands[0], budget)) return false;
            value = op->operands[1];
            break;
        default:
            if (strcmp(dtm_op_rows[op->kind].linear, "0") != 0) return false;
            value = op->operands[0];
        }
    }
    return false;
}

bool dtm_may_be_term(const dtm_module *module, dtm_value value) {
    int budget = 64;
    return may_be_term(module, value, &budget);
}

typedef struct chain {
    dtm_value *leaves;
    size_t n_leaves, cap_leaves;
    dtm_op_list inner; /* the additions within it */
} chain;

/* An addition that nothing reads but one addition of the same region. */
static bool is_inner(canon *c, const uint32_t *uses, dtm_value v, dtm_region region) {
    dtm_op def = dtm_value_get(c->module, v)->def;
    return def && get(c, def)->kind == DTM_OP_ADD && get(c, def)->region == region && uses[v] == 1 && !is_kept(c, v);
}

static void collect(canon *c, const uint32_t *uses, dtm_op op, chain *chain) {
    for (uint32_t i = 0; i < 2; i++) {
        dtm_value v = get(c, op)->operands[i];
        if (is_inner(c, uses, v, get(c, op)->region)) {
            dtm_op def = dtm_value_get(c->module, v)->def;
            collect(c, uses, def, chain);
            DTM_PUSH(c->arena, chain->inner.items, chain->inner.count, chain->inner.capacity, def);
        } else DTM_PUSH(c->arena, chain->leaves, chain->n_leaves, chain->cap_leaves, v);
    }
}

/* Sums leaves from left to right, those that may be terms, or the others. 0: there is none. */
static dtm_value sum_of(canon *c, dtm_builder *b, const chain *chain, bool terms, dtm_value sum, const char *name) {
    for (size_t i = 0; i < chain->n_leaves; i++) {
        if (dtm_may_be_term(c->module, chain->leaves[i]) != terms) continue;
        sum = sum ? dtm_build_binary(b, DTM_OP_ADD, name, sum, chain->leaves[i]) : chain->leaves[i];
    }
    return sum;
}

/* A value's dimensions are in order of first appearance, so another order of adding may give another type. */
static bool same_type(canon *c, dtm_value a, dtm_value b) {
    return dtm_value_get(c->module, a)->type == dtm_value_get(c->module, b)->type;
}

static bool appears_in_order(canon *c, dtm_value first, dtm_value second, dtm_value sum) {
    dtm_type_data order = *dtm_value_type(c->module, first);
    const dtm_type_data *more = dtm_value_type(c->module, second);
    for (int i = 0; i < more->rank; i++)
        if (dtm_type_dim_index(&order, more->dims[i]) < 0 && order.rank < DTM_MAX_RANK)
            order.dims[order.rank++] = more->dims[i];
    return memcmp(order.dims, dtm_value_type(c->module, sum)->dims, sizeof order.dims) == 0;
}

/* (x + p) + q -> (p + q) + x for terms p, q; or x + (p + q) where that has the right order of dimensions. */
static void reorder(canon *c, dtm_op op, chain *chain) {
    dtm_builder b = dtm_builder_before(c->module, op);
    dtm_value result = dtm_result(c->module, op, 0);
    dtm_value terms = sum_of(c, &b, chain, true, 0, suffixed(c, op, "terms"));
    dtm_value others = sum_of(c, &b, chain, false, 0, suffixed(c, op, "others"));
    bool terms_first = appears_in_order(c, terms, others, result);
    if (!terms_first && !appears_in_order(c, others, terms, result)) return; /* what was made is dead */
    get(c, op)->operands[0] = terms_first ? terms : others;
    get(c, op)->operands[1] = terms_first ? others : terms;
    for (size_t i = chain->inner.count; i-- > 0;) dtm_op_remove(c->module, chain->inner.items[i]);
}

/* Only where it matters: two terms or more, and one of them after something else. */
static bool out_of_order(canon *c, const chain *chain) {
    size_t terms = 0;
    bool late = false, other = false;
    for (size_t i = 0; i < chain->n_leaves; i++) {
        bool term = dtm_may_be_term(c->module, chain->leaves[i]);
        terms += term;
        late |= term && other;
        other |= !term;
    }
    return terms > 1 && late;
}

static void order_chains(canon *c) {
    dtm_op_list ops = dtm_ops_in_order(c->module, c->arena);
    uint32_t *uses = dtm_use_counts(c->module, c->arena);
    bool *done = dtm_arena_alloc(c->arena, c->module->n_ops * sizeof *done); /* as part of a longer chain */
    for (size_t i = ops.count; i-- > 0;) {
        dtm_op op = ops.items[i];
        if (get(c, op)->kind != DTM_OP_ADD || done[op]) continue;
        chain chain = {NULL, 0, 0, {NULL, 0, 0}};
        collect(c, uses, op, &chain);
        for (size_t k = 0; k < chain.inner.count; k++) done[chain.inner.items[k]] = true;
        if (out_of_order(c, &chain)) reorder(c, op, &chain);
    }
}

/* ---- common ---- */

static bool is_pure(dtm_op_kind kind) {
    return kind != DTM_OP_INPUT && kind != DTM_OP_WEIGHT && kind != DTM_OP_STATE && kind != DTM_OP_CARRY &&
           dtm_op_rows[kind].results > 0;
}

static bool same_attributes(const dtm_attributes *a, const dtm_attributes *b) {
    return a->n_over == b->n_over && a->n_as == b->n_as && a->at == b->at && a->axes == b->axes &&
           a->flags == b->flags && a->from == b->from && a->to == b->to && a->dtype == b->dtype &&
           memcmp(a->over, b->over, sizeof a->over) == 0 && memcmp(a->as, b->as, sizeof a->as) == 0 &&
           (memcmp(a->number, b->number, sizeof a->number) == 0 || dtm_fault(40));
}

static bool same_op(canon *c, const dtm_op_data *a, const dtm_op_data *b) {
    if (a->kind != b->kind || a->n_operands != b->n_operands || a->n_results != b->n_results ||
        !same_attributes(&a->attributes, &b->attributes))
        return false;
    for (uint32_t i = 0; i < a->n_operands; i++)
        if (a->operands[i] != b->operands[i]) return false;
    for (uint32_t i = 0; i < a->n_results; i++) {
        if (!same_type(c, a->results[i], b->results[i]) || is_kept(c, b->results[i])) return false;
        if (!may_stand_for(c, a->results[i], b->results[i])) return false;
    }
    return true;
}

/* Of the same region, or of one around it: then what is before it in execution order is before it in every copy. */
static bool is_seen_from(canon *c, dtm_op from, dtm_op op) {
    for (dtm_op at = from; at; at = dtm_enclosing(c->module, at, DTM_OP_NONE))
        if (get(c, at)->region == get(c, op)->region) return true;
    return false;
}

static void share_common(canon *c) {
    dtm_op_list ops = dtm_ops_in_order(c->module, c->arena);
    for (size_t i = 0; i < ops.count; i++) {
        dtm_op later = ops.items[i];
        if (!is_pure(get(c, later)->kind)) continue;
        for (size_t j = 0; j < i; j++) {
            dtm_op earlier = ops.items[j];
            if (!get(c, earlier)->region || !same_op(c, get(c, earlier), get(c, later))) continue;
            if (!is_seen_from(c, later, earlier)) continue;
            for (uint32_t r = 0; r < get(c, later)->n_results; r++)
                dtm_replace_uses(c->module, dtm_result(c->module, later, r), dtm_result(c->module, earlier, r));
            dtm_op_remove(c->module, later);
            break;
        }
    }
}

/* ---- dead ---- */

static bool is_root(dtm_op_kind kind) {
    return kind == DTM_OP_INPUT || kind == DTM_OP_WEIGHT || kind == DTM_OP_STATE || kind == DTM_OP_REPORT ||
           kind == DTM_OP_OUTPUT || kind == DTM_OP_STORE || kind == DTM_OP_GRADIENT;
}

static void mark(canon *c, bool *live, dtm_op op) {
    if (!op || live[op]) return;
    live[op] = true;
    for (uint32_t i = 0; i < get(c, op)->n_operands; i++)
        mark(c, live, dtm_value_get(c->module, get(c, op)->operands[i])->def);
    mark(c, live, dtm_enclosing(c->module, op, DTM_OP_NONE));
}

static void remove_dead(canon *c) {
    dtm_op_list ops = dtm_ops_in_order(c->module, c->arena);
    bool *live = dtm_arena_alloc(c->arena, c->module->n_ops * sizeof *live);
    for (size_t i = 0; i < ops.count; i++)
        if (is_root(get(c, ops.items[i])->kind)) mark(c, live, ops.items[i]);
    for (size_t i = ops.count; i-- > 0;)
        if (!live[ops.items[i]]) dtm_op_remove(c->module, ops.items[i]);
}

bool dtm_pass_canonicalize(dtm_module *module) {
    canon c = {module, dtm_arena_create()};
    number_sites(&c);
    desugar(&c);
    fold(&c);
    dtm_drop_invariant_carries(module);
    share_common(&c);
    remove_dead(&c);
    order_chains(&c);
    remove_dead(&c);
    module->after = dtm_string_of(module->context, "canonicalize");
    dtm_arena_destroy(c.arena);
    return true;
}
