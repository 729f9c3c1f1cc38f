/* What the rules share that find the types of results (infer.c, infer_shape.c): the operator at hand, and what they ask of it
 * (infer_need.c). */
#ifndef DTM_IR_INFER_H
#define DTM_IR_INFER_H

#include "ir/ir.h"

typedef struct inference {
    dtm_module *module;
    dtm_op_kind kind;
    const dtm_value *operands;
    uint32_t n_operands;
    const dtm_attributes *attributes;
    dtm_span span;
    dtm_type *types;
} inference;

typedef struct infer_dims {
    dtm_dim dims[4 * DTM_MAX_RANK];
    int rank;
} infer_dims;

/* Names and types, as messages call them. */
const char *infer_op_name(const inference *in);
const dtm_type_data *infer_operand(const inference *in, uint32_t i);
const char *infer_operand_name(const inference *in, uint32_t i);
const char *infer_dim_name(const inference *in, dtm_dim dim);
const char *infer_type_text(const inference *in, dtm_value value);
const char *infer_dims_text(const inference *in, const dtm_dim *dims, int count);
/* Whether operand i has a dimension; whether the operator names it after `over`. */
bool infer_has(const inference *in, uint32_t i, dtm_dim dim);
bool infer_over_has(const inference *in, dtm_dim dim);
/* Dimensions collected one by one, each once: of a type, of all operands; without those after `over`. `finish` makes the result of them. */
void infer_append(infer_dims *s, dtm_dim dim);
void infer_append_type(infer_dims *s, const dtm_type_data *type);
void infer_remove_over(const inference *in, infer_dims *s);
infer_dims infer_union_of_all(const inference *in);
bool infer_finish(const inference *in, uint32_t result, dtm_dtype dtype, const infer_dims *s);
/* Operators compute in f32 whatever floating point their operands are in: the dtype of what is computed of operand i. What only picks
 * elements of two operands keeps the dtype that both have. */
dtm_dtype infer_computed(const inference *in, uint32_t i);
dtm_type infer_like(const inference *in, uint32_t i); /* of the dimensions of operand i */
dtm_dtype infer_kept(const inference *in, uint32_t i, uint32_t j);
/* What an operator asks of its operands: false after an error that says what it has instead. */
bool infer_need_float(const inference *in, uint32_t i);
bool infer_need_integer(const inference *in, uint32_t i);
bool infer_need_same(const inference *in, uint32_t i, uint32_t j);
bool infer_need_alike(const inference *in, uint32_t i, uint32_t j); /* of one dtype, or both of floating point */
bool infer_need_dim(const inference *in, uint32_t i, dtm_dim dim);
bool infer_need_within(const inference *in, uint32_t i, const infer_dims *wanted);
bool infer_need_all(const inference *in, uint32_t i, const infer_dims *wanted);
bool infer_need_over(const inference *in, int least, int most);
/* Below an error: what operand i has instead of a dimension. */
void infer_help_dims(const inference *in, uint32_t i, dtm_dim lacking);

#define FAIL(in, code, ...)                                                                                            \
    do {                                                                                                               \
        dtm_error((in)->module->context, (in)->span, code, __VA_ARGS__);                                               \
        return false;                                                                                                  \
    } while (0)

/* A size that does not fit, and which one would. */
#define MISFIT(in, dim, fits, ...)                                                                                     \
    do {                                                                                                               \
        dtm_error((in)->module->context, (in)->span, 304, __VA_ARGS__);                                                \
        dtm_help((in)->module->context, "it fits with dim %s = %lld", infer_dim_name(in, dim), (long long)(fits));           \
        return false;                                                                                                  \
    } while (0)

/* ---- infer_shape.c ---- */

bool infer_attention(inference *in);
bool infer_split(inference *in);
bool infer_merge(inference *in);
bool infer_rename(inference *in);
bool infer_concat(inference *in);
bool infer_slice(inference *in);

#endif
