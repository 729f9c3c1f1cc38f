/* Types of results from operands and attributes, layout apart; misuse is reported with the operator's span. */
#include "ir/ir.h"

#include <string.h>

typedef struct inference {
    dtm_module *module;
    dtm_op_kind kind;
    const dtm_value *operands;
    uint32_t n_operands;
    const dtm_attributes *attributes;
    dtm_span span;
    dtm_type *types;
} inference;

static const char *op_name(const inference *in) {
    return dtm_op_rows[in->kind].name;
}

static const dtm_type_data *operand(const inference *in, uint32_t i) {
    return dtm_value_type(in->module, in->operands[i]);
}

static const char *operand_name(const inference *in, uint32_t i) {
    const char *name = dtm_value_name(in->module, in->operands[i]);
    return *name ? name : "the number";
}

static const char *dim_name(const inference *in, dtm_dim dim) {
    return dtm_dim_name(in->module, dim);
}

static bool has(const inference *in, uint32_t i, dtm_dim dim) {
    return dtm_type_dim_index(operand(in, i), dim) >= 0;
}

static const char *type_text(const inference *in, dtm_value value) {
    dtm_text text = {dtm_context_arena(in->module->context), NULL, 0, 0};
    dtm_type_print(in->module, in->module->values[value].type, false, &text);
    return text.data;
}

/* "P = 4 x Q = 7" */
static const char *dims_text(const inference *in, const dtm_dim *dims, int count) {
    return dtm_dims_text(in->module, dtm_context_arena(in->module->context), dims, count, " x ");
}

#define FAIL(in, code, ...)                                                                                            \
    do {                                                                                                               \
        dtm_error((in)->module->context, (in)->span, code, __VA_ARGS__);                                               \
        return false;                                                                                                  \
    } while (0)

/* A size that does not fit, and which one would. */
#define MISFIT(in, dim, fits, ...)                                                                                     \
    do {                                                                                                               \
        dtm_error((in)->module->context, (in)->span, 304, __VA_ARGS__);                                                \
        dtm_help((in)->module->context, "it fits with dim %s = %lld", dim_name(in, dim), (long long)(fits));           \
        return false;                                                                                                  \
    } while (0)

/* ---- collecting dimensions ---- */

typedef struct shape {
    dtm_dim dims[4 * DTM_MAX_RANK];
    int rank;
} shape;

static bool holds(const shape *s, dtm_dim dim) {
    for (int i = 0; i < s->rank; i++)
        if (s->dims[i] == dim) return true;
    return false;
}

static void append(shape *s, dtm_dim dim) {
    if (!holds(s, dim) && s->rank < 4 * DTM_MAX_RANK) s->dims[s->rank++] = dim;
}

static void append_type(shape *s, const dtm_type_data *type) {
    for (int i = 0; i < type->rank; i++) append(s, type->dims[i]);
}

static bool over_has(const inference *in, dtm_dim dim) {
    for (int i = 0; i < in->attributes->n_over; i++)
        if (in->attributes->over[i] == dim) return true;
    return false;
}

static void remove_over(const inference *in, shape *s) {
    int kept = 0;
    for (int i = 0; i < s->rank; i++)
        if (!over_has(in, s->dims[i])) s->dims[kept++] = s->dims[i];
    s->rank = kept;
}

static bool finish(const inference *in, uint32_t result, dtm_dtype dtype, const shape *s) {
    if (s->rank > DTM_MAX_RANK)
        FAIL(in, 303, "the result of `%s` would have %d dimensions; at most %d are possible", op_name(in), s->rank,
             DTM_MAX_RANK);
    if (!dtm_dims_countable(in->module, s->dims, s->rank))
        FAIL(in, 315, "the result of `%s` would have more than 2^60 elements: %s", op_name(in),
             dims_text(in, s->dims, s->rank));
    in->types[result] = dtm_type_make(in->module, dtype, (uint8_t)s->rank, s->dims);
    return true;
}

static shape union_of_all(const inference *in) {
    shape s = {.rank = 0};
    for (uint32_t i = 0; i < in->n_operands; i++) append_type(&s, operand(in, i));
    return s;
}

/* ---- checks ---- */

static bool is_float(dtm_dtype dtype) {
    return dtype == DTM_F32 || dtype == DTM_F16 || dtype == DTM_BF16;
}

static bool need_float(const inference *in, uint32_t i) {
    if (!is_float((dtm_dtype)operand(in, i)->dtype))
        FAIL(in, 302, "`%s` works on floating point, %s is %s", op_name(in), operand_name(in, i),
             type_text(in, in->operands[i]));
    return true;
}

static bool need_integer(const inference *in, uint32_t i) {
    if (operand(in, i)->dtype != DTM_I32)
        FAIL(in, 302, "`%s` needs i32 here, %s is %s", op_name(in), operand_name(in, i),
             type_text(in, in->operands[i]));
    return true;
}

static bool need_same(const inference *in, uint32_t i, uint32_t j) {
    if (operand(in, i)->dtype != operand(in, j)->dtype) {
        dtm_error(in->module->context, in->span, 302, "`%s` of two dtypes: %s is %s, %s is %s", op_name(in),
                  operand_name(in, i), type_text(in, in->operands[i]), operand_name(in, j),
                  type_text(in, in->operands[j]));
        dtm_help(in->module->context, "cast one: cast(x, %s)", dtm_dtype_name((dtm_dtype)operand(in, i)->dtype));
        return false;
    }
    return true;
}

/* Dimensions that could stand in the place of one which an operand lacks: its own, and for `dot` those of both. */
static void help_dims(const inference *in, uint32_t i, dtm_dim lacking) {
    dtm_context *context = in->module->context;
    const dtm_type_data *type = operand(in, i);
    dtm_string names[DTM_MAX_RANK];
    dtm_text list = {.arena = dtm_context_arena(context)};
    size_t n = 0;
    for (int d = 0; d < type->rank; d++) {
        if (in->kind == DTM_OP_DOT && !has(in, 1 - i, type->dims[d])) continue;
        if (!over_has(in, type->dims[d])) names[n++] = in->module->dims[type->dims[d]].name;
    }
    dtm_string nearest = dtm_string_nearest(context, dim_name(in, lacking), names, n);
    for (size_t k = 0; k < n; k++)
        dtm_text_printf(&list, "%s%s", !k ? "" : k + 1 < n ? ", " : " or ", dtm_string_text(context, names[k]));
    if (n == 1 || (nearest && strlen(dim_name(in, lacking)) > 1))
        dtm_help(context, "did you mean %s?", dtm_string_text(context, n == 1 ? names[0] : nearest));
    else if (n) dtm_help(context, "write %s in its place", list.data);
    else if (in->kind == DTM_OP_DOT)
        dtm_help(context, "%s and %s share no dimension%s: `rename` one of %s's, or check its declaration", operand_name(in, 0),
                 operand_name(in, 1), in->attributes->n_over > 1 ? " but those named" : "", operand_name(in, i));
    else dtm_help(context, "%s has no %sdimension", operand_name(in, i), type->rank ? "other " : "");
}

static bool need_dim(const inference *in, uint32_t i, dtm_dim dim) {
    if (has(in, i, dim)) return true;
    dtm_error(in->module->context, in->span, 301, "`%s` over %s: %s has no %s, it is %s", op_name(in),
              dim_name(in, dim), operand_name(in, i), dim_name(in, dim), type_text(in, in->operands[i]));
    help_dims(in, i, dim);
    return false;
}

/* Operands of a backward operator are those of its forward one, whose dimensions are in `wanted`. A gradient that is alike
 * along some of them may lack these. */
static bool need_within(const inference *in, uint32_t i, const shape *wanted) {
    const dtm_type_data *type = operand(in, i);
    for (int d = 0; d < type->rank; d++)
        if (!holds(wanted, type->dims[d]))
            FAIL(in, 305, "`%s`: %s is %s, but no %s is wanted there", op_name(in), operand_name(in, i),
                 type_text(in, in->operands[i]), dim_name(in, type->dims[d]));
    return true;
}

static bool need_all(const inference *in, uint32_t i, const shape *wanted) {
    if (!need_within(in, i, wanted)) return false;
    for (int d = 0; d < wanted->rank; d++)
        if (!has(in, i, wanted->dims[d]))
            FAIL(in, 305, "`%s`: %s is %s, and lacks %s", op_name(in), operand_name(in, i),
                 type_text(in, in->operands[i]), dim_name(in, wanted->dims[d]));
    return true;
}

/* Where none is said: the last dimension of the first operand that no other has, or else its last. */
static void suggest_over(const inference *in) {
    const dtm_type_data *type = operand(in, 0);
    dtm_dim likely = type->rank ? type->dims[type->rank - 1] : 0;
    for (int d = 0; d < type->rank; d++) {
        bool elsewhere = false;
        for (uint32_t i = 1; i < in->n_operands; i++) elsewhere = elsewhere || has(in, i, type->dims[d]);
        if (!elsewhere) likely = type->dims[d];
    }
    if (likely) dtm_help(in->module->context, "say along which dimension: `over %s`", dim_name(in, likely));
}

static bool need_over(const inference *in, int least, int most) {
    int n = in->attributes->n_over;
    if (n < least || n > most) {
        if (least == most)
            dtm_error(in->module->context, in->span, 301, "`%s` takes %d dimension%s after `over`, here %s %d", op_name(in),
                      least, least == 1 ? "" : "s", n == 1 ? "is" : "are", n);
        else
            dtm_error(in->module->context, in->span, 301, "`%s` needs a dimension after `over`", op_name(in));
        if (n == 0 && least == 1) suggest_over(in);
        return false;
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (in->attributes->over[i] == in->attributes->over[j])
                FAIL(in, 303, "%s stands twice after `over`", dim_name(in, in->attributes->over[i]));
    return true;
}

/* ---- the rules, by operator ---- */

static bool infer_elementwise(inference *in) {
    dtm_dtype dtype = (dtm_dtype)operand(in, 0)->dtype;
    switch (in->kind) {
    case DTM_OP_ADD:
    case DTM_OP_SUB:
    case DTM_OP_MUL:
    case DTM_OP_MINIMUM:
    case DTM_OP_MAXIMUM:
        if (!need_same(in, 0, 1)) return false;
        if (dtype == DTM_BOOL) FAIL(in, 302, "`%s` does not work on bool", op_name(in));
        break;
    case DTM_OP_DIV:
        if (!need_float(in, 0) || !need_same(in, 0, 1)) return false;
        break;
    case DTM_OP_LT:
    case DTM_OP_LE:
    case DTM_OP_GT:
    case DTM_OP_GE:
    case DTM_OP_EQ:
    case DTM_OP_NE:
        if (!need_same(in, 0, 1)) return false;
        dtype = DTM_BOOL;
        break;
    case DTM_OP_WHERE:
        if (dtype != DTM_BOOL)
            FAIL(in, 302, "the condition of `where` must be bool, %s is %s", operand_name(in, 0),
                 type_text(in, in->operands[0]));
        if (!need_same(in, 1, 2)) return false;
        dtype = (dtm_dtype)operand(in, 1)->dtype;
        break;
    case DTM_OP_CAST:
        dtype = in->attributes->dtype;
        break;
    case DTM_OP_NEG:
    case DTM_OP_ABS:
    case DTM_OP_SQUARE:
    case DTM_OP_RELU:
        if (dtype == DTM_BOOL) FAIL(in, 302, "`%s` does not work on bool", op_name(in));
        break;
    case DTM_OP_EXPAND:
        break;
    default:
        for (uint32_t i = 0; i < in->n_operands; i++)
            if (!need_float(in, i)) return false;
    }
    shape s = union_of_all(in);
    if (in->kind == DTM_OP_EXPAND)
        for (int i = 0; i < in->attributes->n_over; i++) append(&s, in->attributes->over[i]);
    return finish(in, 0, dtype, &s);
}

/* (logits, lse, targets, dy): what is of each row lacks the dimension of the classes. */
static bool infer_cross_entropy_backward(inference *in) {
    if (!need_over(in, 1, 1) || !need_dim(in, 0, in->attributes->over[0])) return false;
    if (!need_float(in, 0) || !need_same(in, 0, 1) || !need_integer(in, 2) || !need_same(in, 0, 3)) return false;
    shape s = {.rank = 0}, rows;
    append_type(&s, operand(in, 0));
    rows = s;
    remove_over(in, &rows);
    for (uint32_t i = 1; i < 4; i++)
        if (!need_within(in, i, &rows)) return false;
    return finish(in, 0, (dtm_dtype)operand(in, 0)->dtype, &s);
}

static bool infer_dot(inference *in) {
    if (!need_over(in, 1, DTM_MAX_RANK) || !need_float(in, 0) || !need_same(in, 0, 1)) return false;
    for (int i = 0; i < in->attributes->n_over; i++)
        if (!need_dim(in, 0, in->attributes->over[i]) || !need_dim(in, 1, in->attributes->over[i])) return false;
    shape s = {.rank = 0};
    append_type(&s, operand(in, 0));
    append_type(&s, operand(in, 1));
    remove_over(in, &s);
    return finish(in, 0, (dtm_dtype)operand(in, 0)->dtype, &s);
}

/* Counts and indices are i32. */
static bool need_i32(const inference *in, const dtm_dim *dims, int count, const char *what) {
    int64_t product = 1;
    for (int i = 0; i < count; i++)
        if (__builtin_mul_overflow(product, in->module->dims[dims[i]].size, &product)) product = INT64_MAX;
    if (product <= INT32_MAX) return true;
    FAIL(in, 315, "`%s`: %s of %s do not fit in i32", op_name(in), what, dims_text(in, dims, count));
}

/* Indices that are known when the program is compiled lie within the dimension; `least`: the least one that may be. */
static bool need_rows(const inference *in, uint32_t i, dtm_dim rows, int64_t least, const char *what) {
    const dtm_type_data *type = operand(in, i);
    int64_t first, last, size = in->module->dims[rows].size;
    if (!dtm_index_range(in->module, in->operands[i], &first, &last) || (first >= least && last < size)) return true;
    const char *along = type->rank ? dtm_arena_printf(dtm_context_arena(in->module->context), " along %s",
                                                      dims_text(in, type->dims, type->rank))
                                   : "";
    if (last >= size)
        MISFIT(in, rows, last + 1, "`%s`: the %s%s reach %lld, but %s = %lld ends at %lld", op_name(in), what, along,
               (long long)last, dim_name(in, rows), (long long)size, (long long)size - 1);
    FAIL(in, 304, "`%s`: the %s%s begin at %lld; rows are counted from 0", op_name(in), what, along, (long long)first);
}

static bool infer_reduce(inference *in) {
    if (!need_over(in, 1, DTM_MAX_RANK)) return false;
    bool counts = in->n_operands == 2 && in->kind != DTM_OP_SUM;
    if (counts && !need_i32(in, in->attributes->over, in->attributes->n_over, "counts")) return false;
    if (in->kind == DTM_OP_MEAN && !need_float(in, 0)) return false;
    if (operand(in, 0)->dtype == DTM_BOOL)
        FAIL(in, 302, "`%s` does not work on %s", op_name(in), type_text(in, in->operands[0]));
    if (in->n_operands == 2 && operand(in, 1)->dtype != DTM_BOOL)
        FAIL(in, 302, "the condition after `where` must be bool, %s is %s", operand_name(in, 1),
             type_text(in, in->operands[1]));
    for (int i = 0; i < in->attributes->n_over; i++)
        if (!need_dim(in, 0, in->attributes->over[i])) return false;
    shape s = union_of_all(in);
    remove_over(in, &s);
    return finish(in, 0, (dtm_dtype)operand(in, 0)->dtype, &s);
}

static bool need_scale(const inference *in, uint32_t i) {
    const dtm_type_data *type = operand(in, i);
    if (type->rank != in->attributes->n_over)
        FAIL(in, 305, "the scale and bias of `%s` have the dimensions after `over` and no others, %s is %s",
             op_name(in), operand_name(in, i), type_text(in, in->operands[i]));
    for (int d = 0; d < in->attributes->n_over; d++)
        if (!need_dim(in, i, in->attributes->over[d])) return false;
    return need_same(in, 0, i);
}

static bool infer_normalise(inference *in) {
    bool norm = in->kind == DTM_OP_RMSNORM || in->kind == DTM_OP_LAYERNORM || in->kind == DTM_OP_RMSNORM_BACKWARD ||
                in->kind == DTM_OP_LAYERNORM_BACKWARD;
    bool entropy = in->kind == DTM_OP_CROSS_ENTROPY;
    if (!need_over(in, 1, norm || !entropy ? DTM_MAX_RANK : 1) || !need_float(in, 0)) return false;
    for (int i = 0; i < in->attributes->n_over; i++)
        if (!need_dim(in, 0, in->attributes->over[i])) return false;
    shape s = {.rank = 0};
    append_type(&s, operand(in, 0));
    dtm_dtype dtype = (dtm_dtype)operand(in, 0)->dtype;
    if (entropy) {
        remove_over(in, &s);
        if (!need_integer(in, 1) || !need_i32(in, in->attributes->over, 1, "indices")) return false;
        if (has(in, 1, in->attributes->over[0]))
            FAIL(in, 305, "the targets of `cross_entropy` are indices along %s and cannot have it themselves",
                 dim_name(in, in->attributes->over[0]));
        if (!need_rows(in, 1, in->attributes->over[0], INT32_MIN, "targets")) return false; /* negative: left out */
        shape lse = s;
        append_type(&s, operand(in, 1));
        return finish(in, 0, dtype, &s) && finish(in, 1, dtype, &lse);
    }
    bool backward = in->kind == DTM_OP_RMSNORM_BACKWARD || in->kind == DTM_OP_LAYERNORM_BACKWARD;
    bool of_softmax = in->kind == DTM_OP_SOFTMAX_BACKWARD || in->kind == DTM_OP_LOG_SOFTMAX_BACKWARD;
    if (of_softmax && (!need_within(in, 1, &s) || !need_same(in, 0, 1))) return false;
    if (backward && (!need_all(in, 2, &s) || !need_same(in, 0, 2))) return false;
    if (norm) {
        if (!need_scale(in, 1)) return false;
        if (in->kind == DTM_OP_LAYERNORM && in->n_operands == 3 && !need_scale(in, 2)) return false;
    }
    if (!finish(in, 0, dtype, &s)) return false;
    if (backward) in->types[1] = in->types[2] = dtm_type_whole(in->module, in->module->values[in->operands[1]].type);
    return true;
}

static bool complain_at(const inference *in, dtm_dim at) {
    dtm_error(in->module->context, in->span, 301, "`rope` at %s: %s has no %s, it is %s", dim_name(in, at), operand_name(in, 0),
              dim_name(in, at), type_text(in, in->operands[0]));
    help_dims(in, 0, at);
    return false;
}

static bool infer_rope(inference *in) {
    if (!need_over(in, 1, 1) || !need_float(in, 0)) return false;
    const dtm_attributes *a = in->attributes;
    if (!need_dim(in, 0, a->over[0])) return false;
    if (!a->at) FAIL(in, 305, "`rope` needs the positions' dimension: rope(x over K at S)");
    if (!has(in, 0, a->at))
        return complain_at(in, a->at);
    int64_t width = in->module->dims[a->over[0]].size, part = (int64_t)a->number[DTM_ROPE_PART];
    if (!part) part = width;
    if (part > width || part % 2)
        FAIL(in, 305, "`rope` turns pairs: part = %lld of %s = %lld is not an even number within it", (long long)part,
             dim_name(in, a->over[0]), (long long)width);
    shape s = union_of_all(in);
    return finish(in, 0, (dtm_dtype)operand(in, 0)->dtype, &s);
}

static bool infer_gather(inference *in) {
    if (!need_over(in, 1, 1) || !need_integer(in, 1)) return false;
    dtm_dim rows = in->attributes->over[0];
    if (!need_dim(in, 0, rows) || !need_i32(in, &rows, 1, "indices")) return false;
    if (has(in, 1, rows))
        FAIL(in, 305, "the ids of `gather` are indices along %s and cannot have it", dim_name(in, rows));
    if (!need_rows(in, 1, rows, 0, "ids")) return false;
    shape s = {.rank = 0};
    append_type(&s, operand(in, 1));
    append_type(&s, operand(in, 0));
    remove_over(in, &s);
    return finish(in, 0, (dtm_dtype)operand(in, 0)->dtype, &s);
}

/* ---- attention ---- */

static bool attention_heads(const inference *in) {
    const dtm_attributes *a = in->attributes;
    dtm_dim keys = a->over[0], width = a->over[1], queries = a->at ? a->at : keys, heads = 0, groups = 0;
    const dtm_type_data *q = operand(in, 0), *k = operand(in, 1);
    for (int i = 0; i < q->rank; i++) {
        dtm_dim dim = q->dims[i];
        if (dim == queries || dim == width || has(in, 1, dim)) continue;
        if (heads)
            FAIL(in, 305, "`attention`: q has two dimensions that k has not, %s and %s; one alone can be its heads",
                 dim_name(in, heads), dim_name(in, dim));
        heads = dim;
    }
    for (int i = 0; i < k->rank; i++) {
        dtm_dim dim = k->dims[i];
        if (dim == keys || dim == width || has(in, 0, dim)) continue;
        if (groups)
            FAIL(in, 305, "`attention`: k has two dimensions that q has not, %s and %s; one alone can be its heads",
                 dim_name(in, groups), dim_name(in, dim));
        groups = dim;
    }
    if (!groups) return true;
    int64_t h = heads ? in->module->dims[heads].size : 0, g = in->module->dims[groups].size;
    if (!heads) FAIL(in, 305, "`attention`: k has heads %s, q has none", dim_name(in, groups));
    if (g < 1 || h < 1 || h % g) {
        dtm_error(in->module->context, in->span, 306,
                  "`attention`: %s = %lld query heads are no multiple of %s = %lld key/value heads",
                  dim_name(in, heads), (long long)h, dim_name(in, groups), (long long)g);
        dtm_help(in->module->context, "choose %s so that it divides %s", dim_name(in, groups), dim_name(in, heads));
        return false;
    }
    return true;
}

static bool infer_attention(inference *in) {
    const dtm_attributes *a = in->attributes;
    if (!need_over(in, 2, 2)) return false;
    dtm_dim keys = a->over[0], width = a->over[1], queries = a->at ? a->at : keys;
    for (uint32_t i = 0; i < 3; i++)
        if (!need_float(in, i) || !need_same(in, 0, i)) return false;
    if (!need_dim(in, 1, keys) || !need_dim(in, 2, keys) || !need_dim(in, 0, width) || !need_dim(in, 1, width))
        return false;
    if (!has(in, 0, queries)) {
        dtm_error(in->module->context, in->span, 301, "`attention`: q has no %s, where are its positions?",
                  dim_name(in, queries));
        dtm_help(in->module->context, "name them: attention(q, k, v over %s, %s at ..)", dim_name(in, keys),
                 dim_name(in, width));
        return false;
    }
    if (queries != keys && has(in, 0, keys))
        FAIL(in, 305, "`attention` at %s: q has the key positions %s too", dim_name(in, queries), dim_name(in, keys));
    if (!attention_heads(in)) return false;

    /* v has k's dimensions, with a width of its own or k's. */
    const dtm_type_data *k = operand(in, 1), *v = operand(in, 2);
    dtm_dim value_width = 0;
    for (int i = 0; i < k->rank; i++)
        if (k->dims[i] != width && !need_dim(in, 2, k->dims[i])) return false;
    for (int i = 0; i < v->rank; i++) {
        if (v->dims[i] != width && has(in, 1, v->dims[i])) continue;
        if (value_width)
            FAIL(in, 305, "`attention`: v has two widths, %s and %s", dim_name(in, value_width),
                 dim_name(in, v->dims[i]));
        value_width = v->dims[i];
    }
    if (!value_width) FAIL(in, 305, "`attention`: v has no width");
    if (value_width != width && has(in, 0, value_width))
        FAIL(in, 305, "`attention`: the width of v, %s, is a dimension of q", dim_name(in, value_width));

    shape o = {.rank = 0}, lse = {.rank = 0};
    const dtm_type_data *q = operand(in, 0);
    for (int i = 0; i < q->rank; i++) {
        append(&o, q->dims[i] == width ? value_width : q->dims[i]);
        if (q->dims[i] != width) append(&lse, q->dims[i]);
    }
    if (in->kind == DTM_OP_ATTENTION_BACKWARD) {
        if (!need_all(in, 3, &o) || !need_all(in, 4, &lse) || !need_all(in, 5, &o)) return false;
        for (uint32_t i = 0; i < 3; i++)
            in->types[i] = dtm_type_whole(in->module, in->module->values[in->operands[i]].type);
        return true;
    }
    dtm_dtype dtype = (dtm_dtype)q->dtype;
    return finish(in, 0, dtype, &o) && finish(in, 1, DTM_F32, &lse);
}

/* ---- shape ---- */

static int64_t size_of(const inference *in, dtm_dim dim) {
    return in->module->dims[dim].size;
}

/* A product past 64 bits is that of no dimension. */
static int64_t multiplied(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static bool need_fresh(const inference *in, uint32_t i, dtm_dim dim, dtm_dim except) {
    if (dim == except || !has(in, i, dim)) return true;
    dtm_error(in->module->context, in->span, 303, "`%s`: %s has %s already, it cannot come twice", op_name(in),
              operand_name(in, i), dim_name(in, dim));
    dtm_help(in->module->context, "declare another dimension of that size, or rename %s first", dim_name(in, dim));
    return false;
}

static bool infer_split(inference *in) {
    const dtm_attributes *a = in->attributes;
    if (!need_over(in, 1, 1) || !need_dim(in, 0, a->over[0])) return false;
    int64_t product = 1;
    for (int i = 0; i < a->n_as; i++) {
        product = multiplied(product, size_of(in, a->as[i]));
        if (!need_fresh(in, 0, a->as[i], 0)) return false;
        for (int j = 0; j < i; j++)
            if (a->as[i] == a->as[j]) FAIL(in, 303, "`split`: %s stands twice after `as`", dim_name(in, a->as[i]));
    }
    if (a->n_as < 2) FAIL(in, 305, "`split` makes two or more dimensions of one: split(x, D as H, K)");
    if (product == INT64_MAX) FAIL(in, 315, "`split`: 64 bits do not hold the product %s", dims_text(in, a->as, a->n_as));
    if (product != size_of(in, a->over[0]))
        MISFIT(in, a->over[0], product, "`split`: %s = %lld is not the product %s, which is %lld", dim_name(in, a->over[0]),
               (long long)size_of(in, a->over[0]), dims_text(in, a->as, a->n_as), (long long)product);
    shape s = {.rank = 0};
    const dtm_type_data *x = operand(in, 0);
    for (int i = 0; i < x->rank; i++)
        if (x->dims[i] == a->over[0])
            for (int j = 0; j < a->n_as; j++) append(&s, a->as[j]);
        else
            append(&s, x->dims[i]);
    return finish(in, 0, (dtm_dtype)x->dtype, &s);
}

/* The merged dimension stands where the major one stood; the minor ones are brought behind it. */
static bool infer_merge(inference *in) {
    const dtm_attributes *a = in->attributes;
    if (!need_over(in, 2, DTM_MAX_RANK)) return false;
    int64_t product = 1;
    for (int i = 0; i < a->n_over; i++) {
        if (!need_dim(in, 0, a->over[i])) return false;
        product = multiplied(product, size_of(in, a->over[i]));
    }
    if (a->n_as != 1) FAIL(in, 305, "`merge` makes one dimension of several: merge(x, H, K as D)");
    if (!need_fresh(in, 0, a->as[0], 0)) return false;
    if (product != size_of(in, a->as[0]))
        MISFIT(in, a->as[0], product, "`merge`: %s = %lld is not the product %s, which is %lld", dim_name(in, a->as[0]),
               (long long)size_of(in, a->as[0]), dims_text(in, a->over, a->n_over), (long long)product);
    shape s = {.rank = 0};
    const dtm_type_data *x = operand(in, 0);
    for (int i = 0; i < x->rank; i++)
        if (x->dims[i] == a->over[0])
            append(&s, a->as[0]);
        else if (!over_has(in, x->dims[i]))
            append(&s, x->dims[i]);
    return finish(in, 0, (dtm_dtype)x->dtype, &s);
}

static bool infer_rename(inference *in) {
    const dtm_attributes *a = in->attributes;
    if (!need_over(in, 1, 1) || !need_dim(in, 0, a->over[0])) return false;
    if (a->n_as != 1) FAIL(in, 305, "`rename` gives one dimension another name: rename(x, S as T)");
    if (!need_fresh(in, 0, a->as[0], 0)) return false;
    if (size_of(in, a->over[0]) != size_of(in, a->as[0]))
        MISFIT(in, a->as[0], size_of(in, a->over[0]), "`rename`: %s = %lld, but %s = %lld", dim_name(in, a->over[0]),
             (long long)size_of(in, a->over[0]), dim_name(in, a->as[0]), (long long)size_of(in, a->as[0]));
    shape s = {.rank = 0};
    const dtm_type_data *x = operand(in, 0);
    for (int i = 0; i < x->rank; i++) append(&s, x->dims[i] == a->over[0] ? a->as[0] : x->dims[i]);
    return finish(in, 0, (dtm_dtype)x->dtype, &s);
}

static bool infer_concat(inference *in) {
    const dtm_attributes *a = in->attributes;
    if (!need_over(in, 2, 2) || !need_same(in, 0, 1) || !need_dim(in, 0, a->over[0]) || !need_dim(in, 1, a->over[1]))
        return false;
    if (a->n_as != 1) FAIL(in, 305, "`concat` makes one dimension of two: concat(a, b over N, R as K)");
    int64_t sum;
    if (__builtin_add_overflow(size_of(in, a->over[0]), size_of(in, a->over[1]), &sum)) sum = INT64_MAX;
    if (size_of(in, a->as[0]) != sum)
        MISFIT(in, a->as[0], sum, "`concat`: %s = %lld is not the sum %s, which is %lld", dim_name(in, a->as[0]),
               (long long)size_of(in, a->as[0]),
               dtm_dims_text(in->module, dtm_context_arena(in->module->context), a->over, 2, " + "), (long long)sum);
    shape s = {.rank = 0};
    const dtm_type_data *x = operand(in, 0), *y = operand(in, 1);
    for (int i = 0; i < x->rank; i++) append(&s, x->dims[i] == a->over[0] ? a->as[0] : x->dims[i]);
    for (int i = 0; i < y->rank; i++)
        if (y->dims[i] != a->over[1]) append(&s, y->dims[i]);
    return finish(in, 0, (dtm_dtype)x->dtype, &s);
}

static bool infer_slice(inference *in) {
    const dtm_attributes *a = in->attributes;
    bool pad = in->kind == DTM_OP_PAD;
    if (!need_over(in, 1, 1) || !need_dim(in, 0, a->over[0])) return false;
    if (a->n_as != 1) FAIL(in, 305, "`%s` names the dimension it makes: slice(x, K = a..b as R)", op_name(in));
    dtm_dim whole = pad ? a->as[0] : a->over[0], part = pad ? a->over[0] : a->as[0];
    if (!need_fresh(in, 0, a->as[0], a->over[0])) return false;
    if (a->from < 0 || a->from > a->to || a->to > size_of(in, whole))
        FAIL(in, 304, "`%s`: %lld..%lld is not within %s = %lld", op_name(in), (long long)a->from, (long long)a->to,
             dim_name(in, whole), (long long)size_of(in, whole));
    if (a->to - a->from != size_of(in, part))
        MISFIT(in, part, a->to - a->from, "`%s`: %lld..%lld has %lld elements, but %s = %lld", op_name(in),
               (long long)a->from, (long long)a->to, (long long)(a->to - a->from), dim_name(in, part),
               (long long)size_of(in, part));
    shape s = {.rank = 0};
    const dtm_type_data *x = operand(in, 0);
    for (int i = 0; i < x->rank; i++) append(&s, x->dims[i] == a->over[0] ? a->as[0] : x->dims[i]);
    return finish(in, 0, (dtm_dtype)x->dtype, &s);
}

/* ---- the rest ---- */

static bool infer_positions(inference *in) {
    if (!need_over(in, 1, 1) || !need_i32(in, in->attributes->over, 1, "positions")) return false;
    in->types[0] = dtm_type_make(in->module, DTM_I32, 1, in->attributes->over);
    return true;
}

static bool infer_scalar(inference *in) {
    in->types[0] = dtm_type_scalar(in->module, DTM_F32);
    return true;
}

static bool infer_as_operand(inference *in) {
    in->types[0] = dtm_type_whole(in->module, in->module->values[in->operands[0]].type);
    return true;
}

static bool infer_sink(inference *in) {
    if ((in->kind == DTM_OP_STORE || in->kind == DTM_OP_GRADIENT) &&
        !dtm_type_same_shape(operand(in, 0), operand(in, 1)))
        FAIL(in, 305, "`%s`: %s is %s, %s is %s", op_name(in), operand_name(in, 0), type_text(in, in->operands[0]),
             operand_name(in, 1), type_text(in, in->operands[1]));
    if (in->kind == DTM_OP_REPORT && operand(in, 0)->rank)
        FAIL(in, 305, "a report is a scalar, %s is %s", operand_name(in, 0), type_text(in, in->operands[0]));
    return true;
}

static bool infer_explicit(inference *in) {
    dtm_broken("inference", "%s has an explicit type", op_name(in));
}

static bool (*rule_of(dtm_op_kind kind))(inference *) {
    switch (kind) {
    case DTM_OP_POSITIONS:
        return infer_positions;
    case DTM_OP_LEARNING_RATE:
    case DTM_OP_BIAS_CORRECTION:
        return infer_scalar;
    case DTM_OP_DOT:
        return infer_dot;
    case DTM_OP_SUM:
    case DTM_OP_MEAN:
    case DTM_OP_REDUCE_MAX:
        return infer_reduce;
    case DTM_OP_SOFTMAX:
    case DTM_OP_LOG_SOFTMAX:
    case DTM_OP_RMSNORM:
    case DTM_OP_LAYERNORM:
    case DTM_OP_SOFTMAX_BACKWARD:
    case DTM_OP_LOG_SOFTMAX_BACKWARD:
    case DTM_OP_RMSNORM_BACKWARD:
    case DTM_OP_LAYERNORM_BACKWARD:
    case DTM_OP_CROSS_ENTROPY:
        return infer_normalise;
    case DTM_OP_CROSS_ENTROPY_BACKWARD:
        return infer_cross_entropy_backward;
    case DTM_OP_ROPE:
        return infer_rope;
    case DTM_OP_GATHER:
        return infer_gather;
    case DTM_OP_ATTENTION:
    case DTM_OP_ATTENTION_BACKWARD:
        return infer_attention;
    case DTM_OP_SPLIT:
        return infer_split;
    case DTM_OP_MERGE:
        return infer_merge;
    case DTM_OP_RENAME:
        return infer_rename;
    case DTM_OP_CONCAT:
        return infer_concat;
    case DTM_OP_SLICE:
    case DTM_OP_PAD:
        return infer_slice;
    case DTM_OP_CARRY:
    case DTM_OP_LAST:
        return infer_as_operand;
    case DTM_OP_REPORT:
    case DTM_OP_OUTPUT:
    case DTM_OP_STORE:
    case DTM_OP_GRADIENT:
    case DTM_OP_SEND:
        return infer_sink;
    default:
        return kind < DTM_OP_DOT && kind > DTM_OP_BIAS_CORRECTION ? infer_elementwise : infer_explicit;
    }
}

bool dtm_infer(dtm_module *module, dtm_op_kind kind, const dtm_value *operands, uint32_t n_operands,
               const dtm_attributes *attributes, dtm_span span, dtm_type *types) {
    inference in = {module, kind, operands, n_operands, attributes, span, types};
    const dtm_op_row *row = &dtm_op_rows[kind];
    if (n_operands < row->min_operands || (row->max_operands != DTM_MANY && n_operands > row->max_operands)) {
        if (row->min_operands == row->max_operands)
            FAIL(&in, 307, "`%s` takes %d operand%s, here %s %u", row->name, row->min_operands, dtm_plural(row->min_operands),
                 n_operands == 1 ? "is" : "are", n_operands);
        FAIL(&in, 307, "`%s` takes %d to %d operands, here %s %u", row->name, row->min_operands, row->max_operands,
             n_operands == 1 ? "is" : "are", n_operands);
    }
    return rule_of(kind)(&in);
}
