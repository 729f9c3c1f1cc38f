/* Types of results from operands and attributes, layout apart; misuse is reported with the operator's span. */
#include "ir/infer.h"

#include <string.h>

/* ---- the rules, by operator ---- */

static bool infer_elementwise(inference *in) {
    dtm_dtype dtype = (dtm_dtype)infer_operand(in, 0)->dtype;
    switch (in->kind) {
    case DTM_OP_ADD:
    case DTM_OP_SUB:
    case DTM_OP_MUL:
    case DTM_OP_MINIMUM:
    case DTM_OP_MAXIMUM:
        if (!infer_need_alike(in, 0, 1)) return false;
        if (dtype == DTM_BOOL) FAIL(in, 302, "`%s` does not work on bool", infer_op_name(in));
        dtype = in->kind == DTM_OP_MINIMUM || in->kind == DTM_OP_MAXIMUM ? infer_kept(in, 0, 1) : infer_computed(in, 0);
        break;
    case DTM_OP_DIV:
        if (!infer_need_float(in, 0) || !infer_need_alike(in, 0, 1)) return false;
        dtype = DTM_F32;
        break;
    case DTM_OP_LT:
    case DTM_OP_LE:
    case DTM_OP_GT:
    case DTM_OP_GE:
    case DTM_OP_EQ:
    case DTM_OP_NE:
        if (!infer_need_alike(in, 0, 1)) return false;
        dtype = DTM_BOOL;
        break;
    case DTM_OP_WHERE:
        if (dtype != DTM_BOOL)
            FAIL(in, 302, "the condition of `where` must be bool, %s is %s", infer_operand_name(in, 0),
                 infer_type_text(in, in->operands[0]));
        if (!infer_need_alike(in, 1, 2)) return false;
        dtype = infer_kept(in, 1, 2);
        break;
    case DTM_OP_CAST:
        dtype = in->attributes->dtype;
        break;
    case DTM_OP_NEG:
    case DTM_OP_ABS:
    case DTM_OP_SQUARE:
    case DTM_OP_RELU:
        if (dtype == DTM_BOOL) FAIL(in, 302, "`%s` does not work on bool", infer_op_name(in));
        if (in->kind == DTM_OP_SQUARE) dtype = infer_computed(in, 0);
        break;
    case DTM_OP_EXPAND:
        break;
    default:
        for (uint32_t i = 0; i < in->n_operands; i++)
            if (!infer_need_float(in, i)) return false;
        dtype = DTM_F32;
    }
    infer_dims s = infer_union_of_all(in);
    if (in->kind == DTM_OP_EXPAND)
        for (int i = 0; i < in->attributes->n_over; i++) infer_append(&s, in->attributes->over[i]);
    return infer_finish(in, 0, dtype, &s);
}

/* (logits, lse, targets, dy): what is of each row lacks the dimension of the classes. */
static bool infer_cross_entropy_backward(inference *in) {
    if (!infer_need_over(in, 1, 1) || !infer_need_dim(in, 0, in->attributes->over[0])) return false;
    if (!infer_need_float(in, 0) || !infer_need_alike(in, 0, 1) || !infer_need_integer(in, 2) || !infer_need_alike(in, 0, 3)) return false;
    infer_dims s = {.rank = 0}, rows;
    infer_append_type(&s, infer_operand(in, 0));
    rows = s;
    infer_remove_over(in, &rows);
    for (uint32_t i = 1; i < 4; i++)
        if (!infer_need_within(in, i, &rows)) return false;
    return infer_finish(in, 0, DTM_F32, &s);
}

static bool infer_dot(inference *in) {
    if (!infer_need_over(in, 1, DTM_MAX_RANK) || !infer_need_float(in, 0) || !infer_need_alike(in, 0, 1)) return false;
    for (int i = 0; i < in->attributes->n_over; i++)
        if (!infer_need_dim(in, 0, in->attributes->over[i]) || !infer_need_dim(in, 1, in->attributes->over[i])) return false;
    infer_dims s = {.rank = 0};
    infer_append_type(&s, infer_operand(in, 0));
    infer_append_type(&s, infer_operand(in, 1));
    infer_remove_over(in, &s);
    return infer_finish(in, 0, DTM_F32, &s);
}

/* Counts and indices are i32. */
static bool need_i32(const inference *in, const dtm_dim *dims, int count, const char *what) {
    int64_t product = 1;
    for (int i = 0; i < count; i++)
        if (__builtin_mul_overflow(product, in->module->dims[dims[i]].size, &product)) product = INT64_MAX;
    if (product <= INT32_MAX) return true;
    FAIL(in, 315, "`%s`: %s of %s do not fit in i32", infer_op_name(in), what, infer_dims_text(in, dims, count));
}

/* Indices that are known when the program is compiled lie within the dimension; `least`: the least one that may be. */
static bool need_rows(const inference *in, uint32_t i, dtm_dim rows, int64_t least, const char *what) {
    const dtm_type_data *type = infer_operand(in, i);
    int64_t first, last, size = in->module->dims[rows].size;
    if (!dtm_index_range(in->module, in->operands[i], &first, &last) || (first >= least && last < size)) return true;
    const char *along = type->rank ? dtm_arena_printf(dtm_context_arena(in->module->context), " along %s",
                                                      infer_dims_text(in, type->dims, type->rank))
                                   : "";
    if (last >= size)
        MISFIT(in, rows, last + 1, "`%s`: the %s%s reach %lld, but %s = %lld ends at %lld", infer_op_name(in), what, along,
               (long long)last, infer_dim_name(in, rows), (long long)size, (long long)size - 1);
    FAIL(in, 304, "`%s`: the %s%s begin at %lld; rows are counted from 0", infer_op_name(in), what, along, (long long)first);
}

static bool infer_reduce(inference *in) {
    if (!infer_need_over(in, 1, DTM_MAX_RANK)) return false;
    bool counts = in->n_operands == 2 && in->kind != DTM_OP_SUM;
    if (counts && !need_i32(in, in->attributes->over, in->attributes->n_over, "counts")) return false;
    if (in->kind == DTM_OP_MEAN && !infer_need_float(in, 0)) return false;
    if (infer_operand(in, 0)->dtype == DTM_BOOL)
        FAIL(in, 302, "`%s` does not work on %s", infer_op_name(in), infer_type_text(in, in->operands[0]));
    if (in->n_operands == 2 && infer_operand(in, 1)->dtype != DTM_BOOL)
        FAIL(in, 302, "the condition after `where` must be bool, %s is %s", infer_operand_name(in, 1),
             infer_type_text(in, in->operands[1]));
    for (int i = 0; i < in->attributes->n_over; i++)
        if (!infer_need_dim(in, 0, in->attributes->over[i])) return false;
    infer_dims s = infer_union_of_all(in);
    infer_remove_over(in, &s);
    dtm_dtype kept = (dtm_dtype)infer_operand(in, 0)->dtype;
    return infer_finish(in, 0, in->kind == DTM_OP_REDUCE_MAX ? kept : infer_computed(in, 0), &s);
}

static bool need_scale(const inference *in, uint32_t i) {
    const dtm_type_data *type = infer_operand(in, i);
    if (type->rank != in->attributes->n_over)
        FAIL(in, 305, "the scale and bias of `%s` have the dimensions after `over` and no others, %s is %s",
             infer_op_name(in), infer_operand_name(in, i), infer_type_text(in, in->operands[i]));
    for (int d = 0; d < in->attributes->n_over; d++)
        if (!infer_need_dim(in, i, in->attributes->over[d])) return false;
    return infer_need_alike(in, 0, i);
}

static bool infer_normalise(inference *in) {
    bool norm = in->kind == DTM_OP_RMSNORM || in->kind == DTM_OP_LAYERNORM || in->kind == DTM_OP_RMSNORM_BACKWARD ||
                in->kind == DTM_OP_LAYERNORM_BACKWARD;
    bool entropy = in->kind == DTM_OP_CROSS_ENTROPY;
    if (!infer_need_over(in, 1, norm || !entropy ? DTM_MAX_RANK : 1) || !infer_need_float(in, 0)) return false;
    for (int i = 0; i < in->attributes->n_over; i++)
        if (!infer_need_dim(in, 0, in->attributes->over[i])) return false;
    infer_dims s = {.rank = 0};
    infer_append_type(&s, infer_operand(in, 0));
    if (entropy) {
        infer_remove_over(in, &s);
        if (!infer_need_integer(in, 1) || !need_i32(in, in->attributes->over, 1, "indices")) return false;
        if (infer_has(in, 1, in->attributes->over[0]))
            FAIL(in, 305, "the targets of `cross_entropy` are indices along %s and cannot have it themselves",
                 infer_dim_name(in, in->attributes->over[0]));
        if (!need_rows(in, 1, in->attributes->over[0], INT32_MIN, "targets")) return false; /* negative: left out */
        infer_dims lse = s;
        infer_append_type(&s, infer_operand(in, 1));
        return infer_finish(in, 0, DTM_F32, &s) && infer_finish(in, 1, DTM_F32, &lse);
    }
    bool backward = in->kind == DTM_OP_RMSNORM_BACKWARD || in->kind == DTM_OP_LAYERNORM_BACKWARD;
    bool of_softmax = in->kind == DTM_OP_SOFTMAX_BACKWARD || in->kind == DTM_OP_LOG_SOFTMAX_BACKWARD;
    if (of_softmax && (!infer_need_within(in, 1, &s) || !infer_need_alike(in, 0, 1))) return false;
    if (backward && (!infer_need_all(in, 2, &s) || !infer_need_alike(in, 0, 2))) return false;
    if (norm) {
        if (!need_scale(in, 1)) return false;
        if (in->kind == DTM_OP_LAYERNORM && in->n_operands == 3 && !need_scale(in, 2)) return false;
    }
    if (!infer_finish(in, 0, DTM_F32, &s)) return false;
    if (backward) in->types[1] = in->types[2] = infer_like(in, 1);
    return true;
}

static bool complain_at(const inference *in, dtm_dim at) {
    dtm_error(in->module->context, in->span, 301, "`rope` at %s: %s has no %s, it is %s", infer_dim_name(in, at), infer_operand_name(in, 0),
              infer_dim_name(in, at), infer_type_text(in, in->operands[0]));
    infer_help_dims(in, 0, at);
    return false;
}

static bool infer_rope(inference *in) {
    if (!infer_need_over(in, 1, 1) || !infer_need_float(in, 0)) return false;
    const dtm_attributes *a = in->attributes;
    if (!infer_need_dim(in, 0, a->over[0])) return false;
    if (!a->at) FAIL(in, 305, "`rope` needs the positions' dimension: rope(x over K at S)");
    if (!infer_has(in, 0, a->at))
        return complain_at(in, a->at);
    int64_t width = in->module->dims[a->over[0]].size, part = (int64_t)a->number[DTM_ROPE_PART];
    if (!part) part = width;
    if (part > width || part % 2)
        FAIL(in, 305, "`rope` turns pairs: part = %lld of %s = %lld is not an even number within it", (long long)part,
             infer_dim_name(in, a->over[0]), (long long)width);
    infer_dims s = infer_union_of_all(in);
    return infer_finish(in, 0, DTM_F32, &s);
}

static bool infer_gather(inference *in) {
    if (!infer_need_over(in, 1, 1) || !infer_need_integer(in, 1)) return false;
    dtm_dim rows = in->attributes->over[0];
    if (!infer_need_dim(in, 0, rows) || !need_i32(in, &rows, 1, "indices")) return false;
    if (infer_has(in, 1, rows))
        FAIL(in, 305, "the ids of `gather` are indices along %s and cannot have it", infer_dim_name(in, rows));
    if (!need_rows(in, 1, rows, 0, "ids")) return false;
    infer_dims s = {.rank = 0};
    infer_append_type(&s, infer_operand(in, 1));
    infer_append_type(&s, infer_operand(in, 0));
    infer_remove_over(in, &s);
    return infer_finish(in, 0, (dtm_dtype)infer_operand(in, 0)->dtype, &s);
}

/* ---- the rest ---- */

static bool infer_positions(inference *in) {
    if (!infer_need_over(in, 1, 1) || !need_i32(in, in->attributes->over, 1, "positions")) return false;
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
        !dtm_type_same_shape(infer_operand(in, 0), infer_operand(in, 1)))
        FAIL(in, 305, "`%s`: %s is %s, %s is %s", infer_op_name(in), infer_operand_name(in, 0), infer_type_text(in, in->operands[0]),
             infer_operand_name(in, 1), infer_type_text(in, in->operands[1]));
    if (in->kind == DTM_OP_REPORT && infer_operand(in, 0)->rank)
        FAIL(in, 305, "a report is a scalar, %s is %s", infer_operand_name(in, 0), infer_type_text(in, in->operands[0]));
    return true;
}

static bool infer_explicit(inference *in) {
    dtm_broken("inference", "%s has an explicit type", infer_op_name(in));
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
