/* What operators ask of their operands, and how messages name them (infer.h). */
#include "ir/infer.h"

#include <string.h>

const char *infer_op_name(const inference *in) {
    return dtm_op_rows[in->kind].name;
}

const dtm_type_data *infer_operand(const inference *in, uint32_t i) {
    return dtm_value_type(in->module, in->operands[i]);
}

const char *infer_operand_name(const inference *in, uint32_t i) {
    const char *name = dtm_value_name(in->module, in->operands[i]);
    return *name ? name : "the number";
}

const char *infer_dim_name(const inference *in, dtm_dim dim) {
    return dtm_dim_name(in->module, dim);
}

bool infer_has(const inference *in, uint32_t i, dtm_dim dim) {
    return dtm_type_dim_index(infer_operand(in, i), dim) >= 0;
}

const char *infer_type_text(const inference *in, dtm_value value) {
    dtm_text text = {dtm_context_arena(in->module->context), NULL, 0, 0};
    dtm_type_print(in->module, in->module->values[value].type, false, &text);
    return text.data;
}

/* "P = 4 x Q = 7" */
const char *infer_dims_text(const inference *in, const dtm_dim *dims, int count) {
    return dtm_dims_text(in->module, dtm_context_arena(in->module->context), dims, count, " x ");
}


/* ---- collecting dimensions ---- */

static bool holds(const infer_dims *s, dtm_dim dim) {
    for (int i = 0; i < s->rank; i++)
        if (s->dims[i] == dim) return true;
    return false;
}

void infer_append(infer_dims *s, dtm_dim dim) {
    if (!holds(s, dim) && s->rank < 4 * DTM_MAX_RANK) s->dims[s->rank++] = dim;
}

void infer_append_type(infer_dims *s, const dtm_type_data *type) {
    for (int i = 0; i < type->rank; i++) infer_append(s, type->dims[i]);
}

bool infer_over_has(const inference *in, dtm_dim dim) {
    for (int i = 0; i < in->attributes->n_over; i++)
        if (in->attributes->over[i] == dim) return true;
    return false;
}

void infer_remove_over(const inference *in, infer_dims *s) {
    int kept = 0;
    for (int i = 0; i < s->rank; i++)
        if (!infer_over_has(in, s->dims[i])) s->dims[kept++] = s->dims[i];
    s->rank = kept;
}

bool infer_finish(const inference *in, uint32_t result, dtm_dtype dtype, const infer_dims *s) {
    if (s->rank > DTM_MAX_RANK)
        FAIL(in, 303, "the result of `%s` would have %d dimensions; at most %d are possible", infer_op_name(in), s->rank,
             DTM_MAX_RANK);
    if (!dtm_dims_countable(in->module, s->dims, s->rank))
        FAIL(in, 315, "the result of `%s` would have more than 2^60 elements: %s", infer_op_name(in),
             infer_dims_text(in, s->dims, s->rank));
    in->types[result] = dtm_type_make(in->module, dtype, (uint8_t)s->rank, s->dims);
    return true;
}

dtm_type infer_like(const inference *in, uint32_t i) {
    dtm_type_data type = *infer_operand(in, i);
    return dtm_type_make(in->module, infer_computed(in, i), type.rank, type.dims);
}

infer_dims infer_union_of_all(const inference *in) {
    infer_dims s = {.rank = 0};
    for (uint32_t i = 0; i < in->n_operands; i++) infer_append_type(&s, infer_operand(in, i));
    return s;
}

/* ---- checks ---- */

dtm_dtype infer_computed(const inference *in, uint32_t i) {
    dtm_dtype dtype = (dtm_dtype)infer_operand(in, i)->dtype;
    return dtm_dtype_is_float(dtype) ? DTM_F32 : dtype;
}

dtm_dtype infer_kept(const inference *in, uint32_t i, uint32_t j) {
    dtm_dtype a = (dtm_dtype)infer_operand(in, i)->dtype;
    return a == (dtm_dtype)infer_operand(in, j)->dtype ? a : DTM_F32;
}

bool infer_need_float(const inference *in, uint32_t i) {
    if (!dtm_dtype_is_float((dtm_dtype)infer_operand(in, i)->dtype))
        FAIL(in, 302, "`%s` works on floating point, %s is %s", infer_op_name(in), infer_operand_name(in, i),
             infer_type_text(in, in->operands[i]));
    return true;
}

bool infer_need_integer(const inference *in, uint32_t i) {
    if (infer_operand(in, i)->dtype != DTM_I32)
        FAIL(in, 302, "`%s` needs i32 here, %s is %s", infer_op_name(in), infer_operand_name(in, i),
             infer_type_text(in, in->operands[i]));
    return true;
}

bool infer_need_alike(const inference *in, uint32_t i, uint32_t j) {
    bool floats = dtm_dtype_is_float((dtm_dtype)infer_operand(in, i)->dtype) && dtm_dtype_is_float((dtm_dtype)infer_operand(in, j)->dtype);
    return floats || infer_need_same(in, i, j);
}

bool infer_need_same(const inference *in, uint32_t i, uint32_t j) {
    if (infer_operand(in, i)->dtype != infer_operand(in, j)->dtype) {
        dtm_error(in->module->context, in->span, 302, "`%s` of two dtypes: %s is %s, %s is %s", infer_op_name(in),
                  infer_operand_name(in, i), infer_type_text(in, in->operands[i]), infer_operand_name(in, j),
                  infer_type_text(in, in->operands[j]));
        dtm_help(in->module->context, "cast one: cast(x, %s)", dtm_dtype_name((dtm_dtype)infer_operand(in, i)->dtype));
        return false;
    }
    return true;
}

/* Dimensions that could stand in the place of one which an operand lacks: its own, and for `dot` those of both. */
void infer_help_dims(const inference *in, uint32_t i, dtm_dim lacking) {
    dtm_context *context = in->module->context;
    const dtm_type_data *type = infer_operand(in, i);
    dtm_string names[DTM_MAX_RANK];
    dtm_text list = {.arena = dtm_context_arena(context)};
    size_t n = 0;
    for (int d = 0; d < type->rank; d++) {
        if (in->kind == DTM_OP_DOT && !infer_has(in, 1 - i, type->dims[d])) continue;
        if (!infer_over_has(in, type->dims[d])) names[n++] = in->module->dims[type->dims[d]].name;
    }
    dtm_string nearest = dtm_string_nearest(context, infer_dim_name(in, lacking), names, n);
    for (size_t k = 0; k < n; k++)
        dtm_text_printf(&list, "%s%s", !k ? "" : k + 1 < n ? ", " : " or ", dtm_string_text(context, names[k]));
    if (n == 1 || (nearest && strlen(infer_dim_name(in, lacking)) > 1))
        dtm_help(context, "did you mean %s?", dtm_string_text(context, n == 1 ? names[0] : nearest));
    else if (n) dtm_help(context, "write %s in its place", list.data);
    else if (in->kind == DTM_OP_DOT)
        dtm_help(context, "%s and %s share no dimension%s: `rename` one of %s's, or check its declaration", infer_operand_name(in, 0),
                 infer_operand_name(in, 1), in->attributes->n_over > 1 ? " but those named" : "", infer_operand_name(in, i));
    else dtm_help(context, "%s has no %sdimension", infer_operand_name(in, i), type->rank ? "other " : "");
}

bool infer_need_dim(const inference *in, uint32_t i, dtm_dim dim) {
    if (infer_has(in, i, dim)) return true;
    dtm_error(in->module->context, in->span, 301, "`%s` over %s: %s has no %s, it is %s", infer_op_name(in),
              infer_dim_name(in, dim), infer_operand_name(in, i), infer_dim_name(in, dim), infer_type_text(in, in->operands[i]));
    infer_help_dims(in, i, dim);
    return false;
}

/* Operands of a backward operator are those of its forward one, whose dimensions are in `wanted`. A gradient that is alike
 * along some of them may lack these. */
bool infer_need_within(const inference *in, uint32_t i, const infer_dims *wanted) {
    const dtm_type_data *type = infer_operand(in, i);
    for (int d = 0; d < type->rank; d++)
        if (!holds(wanted, type->dims[d]))
            FAIL(in, 305, "`%s`: %s is %s, but no %s is wanted there", infer_op_name(in), infer_operand_name(in, i),
                 infer_type_text(in, in->operands[i]), infer_dim_name(in, type->dims[d]));
    return true;
}

bool infer_need_all(const inference *in, uint32_t i, const infer_dims *wanted) {
    if (!infer_need_within(in, i, wanted)) return false;
    for (int d = 0; d < wanted->rank; d++)
        if (!infer_has(in, i, wanted->dims[d]))
            FAIL(in, 305, "`%s`: %s is %s, and lacks %s", infer_op_name(in), infer_operand_name(in, i),
                 infer_type_text(in, in->operands[i]), infer_dim_name(in, wanted->dims[d]));
    return true;
}

/* Where none is said: the last dimension of the first operand that no other has, or else its last. Of a product those that
 * both have. */
static void suggest_over(const inference *in) {
    const dtm_type_data *type = infer_operand(in, 0);
    if (in->kind == DTM_OP_DOT) {
        infer_help_dims(in, 0, 0);
        return;
    }
    dtm_dim likely = type->rank ? type->dims[type->rank - 1] : 0;
    for (int d = 0; d < type->rank; d++) {
        bool elsewhere = false;
        for (uint32_t i = 1; i < in->n_operands; i++) elsewhere = elsewhere || infer_has(in, i, type->dims[d]);
        if (!elsewhere) likely = type->dims[d];
    }
    if (likely) dtm_help(in->module->context, "say along which dimension: `over %s`", infer_dim_name(in, likely));
}

bool infer_need_over(const inference *in, int least, int most) {
    int n = in->attributes->n_over;
    if (n < least || n > most) {
        if (least == most)
            dtm_error(in->module->context, in->span, 301, "`%s` takes %d dimension%s after `over`, here %s %d", infer_op_name(in),
                      least, least == 1 ? "" : "s", n == 1 ? "is" : "are", n);
        else
            dtm_error(in->module->context, in->span, 301, "`%s` needs a dimension after `over`", infer_op_name(in));
        if (n == 0 && least == 1) suggest_over(in);
        return false;
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (in->attributes->over[i] == in->attributes->over[j])
                FAIL(in, 303, "%s stands twice after `over`", infer_dim_name(in, in->attributes->over[i]));
    return true;
}
