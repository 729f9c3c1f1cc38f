/* The factor rules: for each operator the indices of its loop nest and where they stand in operands and results. This
 * is the one place that knows how an operator can be split; shard, verify and cost all read it from here. */
#include "ir/fault.h"
#include "ir/ir.h"

#include <string.h>

typedef struct scan {
    const dtm_module *module;
    const dtm_op_data *op;
    dtm_factor *factors;
    size_t count;
} scan;

static const dtm_type_data *operand_type(const scan *s, uint32_t i) {
    return dtm_value_type(s->module, s->op->operands[i]);
}

static const dtm_type_data *result_type(const scan *s, uint32_t i) {
    return dtm_value_type(s->module, s->op->results[i]);
}

static bool listed(const dtm_dim *dims, uint8_t count, dtm_dim dim) {
    for (int i = 0; i < count; i++)
        if (dims[i] == dim) return true;
    return false;
}

static dtm_factor *add(scan *s, dtm_factor_kind kind, dtm_dim name) {
    if (s->count == DTM_MAX_FACTORS) dtm_broken("factors", "%s has too many dimensions", dtm_op_rows[s->op->kind].name);
    dtm_factor *f = &s->factors[s->count++];
    memset(f, 0, sizeof *f);
    f->kind = kind;
    f->names[f->n_names++] = name;
    memset(f->operand_dim, -1, sizeof f->operand_dim);
    memset(f->result_dim, -1, sizeof f->result_dim);
    for (int i = 0; i < 8; i++) f->operand_unit[i] = 1;
    for (int i = 0; i < 4; i++) f->result_unit[i] = 1;
    return f;
}

static void in_operand(const scan *s, dtm_factor *f, uint32_t i, dtm_dim dim) {
    if (i < s->op->n_operands) f->operand_dim[i] = (int8_t)dtm_type_dim_index(operand_type(s, i), dim);
}

static void in_result(const scan *s, dtm_factor *f, uint32_t i, dtm_dim dim) {
    if (i < s->op->n_results) f->result_dim[i] = (int8_t)dtm_type_dim_index(result_type(s, i), dim);
}

/* A factor that is dimension `dim` wherever it occurs. */
static dtm_factor *add_everywhere(scan *s, dtm_factor_kind kind, dtm_dim dim) {
    dtm_factor *f = add(s, kind, dim);
    for (uint32_t i = 0; i < s->op->n_operands; i++) in_operand(s, f, i, dim);
    for (uint32_t i = 0; i < s->op->n_results; i++) in_result(s, f, i, dim);
    return f;
}

static bool known(const scan *s, dtm_dim dim) {
    for (size_t i = 0; i < s->count; i++)
        if (listed(s->factors[i].names, s->factors[i].n_names, dim)) return true;
    return false;
}

/* All dimensions not seen yet, of operands and then results. Those that some result lacks are summed away for it where
 * `reduces` says that the operator sums over what a result lacks. */
static void add_rest(scan *s, bool reduces) {
    for (uint32_t i = 0; i < s->op->n_operands + s->op->n_results; i++) {
        const dtm_type_data *type = i < s->op->n_operands ? operand_type(s, i) : result_type(s, i - s->op->n_operands);
        for (int d = 0; d < type->rank; d++) {
            if (known(s, type->dims[d])) continue;
            dtm_factor *f = add_everywhere(s, DTM_FACTOR_CARRIED, type->dims[d]);
            for (uint32_t r = 0; reduces && r < s->op->n_results; r++)
                if (f->result_dim[r] < 0) f->kind = DTM_FACTOR_REDUCED;
        }
    }
}

static void factors_none(scan *s) {
    (void)s;
}
static void factors_layout(scan *s) {
    (void)s;
}
static void factors_source(scan *s) {
    add_rest(s, false);
}
static void factors_sink(scan *s) {
    add_rest(s, false);
}
static void factors_identity(scan *s) {
    add_rest(s, false);
}
static void factors_pointwise(scan *s) {
    add_rest(s, false);
}
static void factors_dot(scan *s) {
    add_rest(s, true);
}

static void factors_reduce(scan *s) {
    add_rest(s, !dtm_fault(14) || s->op->kind != DTM_OP_MEAN);
    for (size_t i = 0; i < s->count; i++) s->factors[i].is_max = s->op->kind == DTM_OP_REDUCE_MAX;
}

static void over_as(scan *s, dtm_factor_kind kind) {
    for (int i = 0; i < s->op->attributes.n_over; i++) add_everywhere(s, kind, s->op->attributes.over[i]);
}

static void factors_normalise(scan *s) {
    over_as(s, DTM_FACTOR_NORMALISED);
    add_rest(s, false);
}

/* dx carries the other dimensions, dscale and dbias are sums over them. */
static void factors_norm_backward(scan *s) {
    over_as(s, DTM_FACTOR_NORMALISED);
    add_rest(s, true);
}

static void factors_rope(scan *s) {
    over_as(s, DTM_FACTOR_FIXED);
    add_rest(s, false);
}

/* A rank looks up the rows it has and gives 0 for others: the result is a term. */
static void factors_gather(scan *s) {
    dtm_factor *f = add(s, DTM_FACTOR_REDUCED, s->op->attributes.over[0]);
    in_operand(s, f, 0, s->op->attributes.over[0]);
    add_rest(s, false);
}

static void factors_scatter(scan *s) {
    dtm_factor *f = add(s, DTM_FACTOR_CARRIED, s->op->attributes.over[0]);
    in_result(s, f, 0, s->op->attributes.over[0]);
    add_rest(s, true);
}

/* The product of the minor dimensions, all but the first; 0: more than a unit of splitting can be. */
static uint32_t unit_of(const scan *s, const dtm_dim *dims, int count) {
    uint32_t unit = 1;
    for (int i = 1; i < count; i++)
        if (s->module->dims[dims[i]].size > UINT32_MAX || __builtin_mul_overflow(unit, (uint32_t)s->module->dims[dims[i]].size, &unit))
            return 0;
    return unit;
}

/* Shape operators: the major dimension maps to the merged one, in multiples of the minor ones' product. */
static void factors_split(scan *s) {
    const dtm_attributes *a = &s->op->attributes;
    uint32_t minor = unit_of(s, a->as, a->n_as);
    dtm_factor *f = add(s, minor ? DTM_FACTOR_CARRIED : DTM_FACTOR_FIXED, a->over[0]);
    f->names[f->n_names++] = a->as[0];
    in_operand(s, f, 0, a->over[0]);
    in_result(s, f, 0, a->as[0]);
    f->operand_unit[0] = minor ? minor : 1;
    for (int i = 1; i < a->n_as; i++) in_result(s, add(s, DTM_FACTOR_FIXED, a->as[i]), 0, a->as[i]);
    add_rest(s, false);
}

static void factors_merge(scan *s) {
    const dtm_attributes *a = &s->op->attributes;
    uint32_t minor = unit_of(s, a->over, a->n_over);
    dtm_factor *f = add(s, minor ? DTM_FACTOR_CARRIED : DTM_FACTOR_FIXED, a->over[0]);
    f->names[f->n_names++] = a->as[0];
    in_operand(s, f, 0, a->over[0]);
    in_result(s, f, 0, a->as[0]);
    f->result_unit[0] = minor ? minor : 1;
    for (int i = 1; i < a->n_over; i++) in_operand(s, add(s, DTM_FACTOR_FIXED, a->over[i]), 0, a->over[i]);
    add_rest(s, false);
}

static void factors_rename(scan *s) {
    const dtm_attributes *a = &s->op->attributes;
    dtm_factor *f = add(s, DTM_FACTOR_CARRIED, a->over[0]);
    f->names[f->n_names++] = a->as[0];
    in_operand(s, f, 0, a->over[0]);
    in_result(s, f, 0, a->as[0]);
    add_rest(s, false);
}

static void fixed_over_and_as(scan *s) {
    const dtm_attributes *a = &s->op->attributes;
    over_as(s, DTM_FACTOR_FIXED);
    for (int i = 0; i < a->n_as; i++)
        if (!known(s, a->as[i])) add_everywhere(s, DTM_FACTOR_FIXED, a->as[i]);
    add_rest(s, false);
}

static void factors_concat(scan *s) {
    fixed_over_and_as(s);
}
static void factors_slice(scan *s) {
    fixed_over_and_as(s);
}
static void factors_pad(scan *s) {
    fixed_over_and_as(s);
}

/* Attention's operands play two roles: those of queries (q, o, lse, do, dq) and those of keys (k, v, dk, dv). */
typedef struct roles {
    uint32_t query_operands, query_results; /* bit masks; the others are keys' */
} roles;

static bool is_query(uint32_t mask, uint32_t i) {
    return mask >> i & 1;
}

static void in_role(const scan *s, dtm_factor *f, roles roles, bool query, dtm_dim dim, uint32_t unit) {
    for (uint32_t i = 0; i < s->op->n_operands; i++)
        if (is_query(roles.query_operands, i) == query) {
            in_operand(s, f, i, dim);
            f->operand_unit[i] = unit;
        }
    for (uint32_t i = 0; i < s->op->n_results; i++)
        if (is_query(roles.query_results, i) == query) {
            in_result(s, f, i, dim);
            f->result_unit[i] = unit;
        }
}

/* What a result of the keys' role lacks is summed away for it (backward); a forward result lacks nothing. */
static void reduced_where_lacking(const scan *s, dtm_factor *f, roles roles) {
    for (uint32_t i = 0; i < s->op->n_results; i++)
        if (!is_query(roles.query_results, i) && f->result_dim[i] < 0) f->kind = DTM_FACTOR_REDUCED;
}

static void factors_attention(scan *s) {
    const dtm_attributes *a = &s->op->attributes;
    dtm_dim keys = a->over[0], width = a->over[1], queries = a->at ? a->at : keys;
    roles roles = {.query_operands = 1, .query_results = 3};
    if (s->op->kind == DTM_OP_ATTENTION_BACKWARD) roles.query_operands = 1 | 8 | 16 | 32, roles.query_results = 1;
    const dtm_type_data *q = operand_type(s, 0), *k = operand_type(s, 1), *v = operand_type(s, 2);

    dtm_dim groups = 0;
    for (int i = 0; i < k->rank; i++)
        if (k->dims[i] != keys && k->dims[i] != width && dtm_type_dim_index(q, k->dims[i]) < 0) groups = k->dims[i];
    for (int i = 0; i < q->rank; i++) {
        dtm_dim dim = q->dims[i];
        if (dim == width)
            add_everywhere(s, DTM_FACTOR_FIXED, width);
        else if (dim == queries) {
            dtm_factor *f = add(s, DTM_FACTOR_CARRIED, queries);
            f->positions = true;
            in_role(s, f, roles, true, queries, 1);
            reduced_where_lacking(s, f, roles);
        } else if (dtm_type_dim_index(k, dim) >= 0)
            add_everywhere(s, DTM_FACTOR_CARRIED, dim);
        else { /* query heads, and the key heads they follow */
            dtm_factor *f = add(s, DTM_FACTOR_CARRIED, dim);
            uint32_t ratio = groups && !dtm_fault(21) ? (uint32_t)(s->module->dims[dim].size / s->module->dims[groups].size) : 1;
            in_role(s, f, roles, true, dim, ratio);
            if (groups) {
                f->names[f->n_names++] = groups;
                in_role(s, f, roles, false, groups, 1);
            }
            reduced_where_lacking(s, f, roles);
        }
    }
    dtm_factor *f = add(s, DTM_FACTOR_FIXED, keys);
    f->positions = true;
    in_role(s, f, roles, false, keys, 1);
    for (int i = 0; i < v->rank; i++) /* the width of v, if it is a dimension of its own */
        if (!known(s, v->dims[i])) add_everywhere(s, DTM_FACTOR_FIXED, v->dims[i]);
}

size_t dtm_factors(const dtm_module *module, dtm_op op, dtm_factor factors[DTM_MAX_FACTORS]) {
    static void (*const rules[DTM_OP_KINDS])(scan *) = {
        factors_none,
#define OP(kind, name, least, most, results, rule, ...) factors_##rule,
#include "ir/ops.def"
#undef OP
    };
    scan s = {module, dtm_op_get(module, op), factors, 0};
    if (s.op->n_operands > 8 || s.op->n_results > 4) return 0;
    rules[s.op->kind](&s);
    return s.count;
}
