/* Types of the results of attention, and of what splits, merges, renames, joins and cuts dimensions. */
#include "ir/infer.h"

#include <string.h>

/* ---- attention ---- */

static bool attention_heads(const inference *in) {
    const dtm_attributes *a = in->attributes;
    dtm_dim keys = a->over[0], width = a->over[1], queries = a->at ? a->at : keys, heads = 0, groups = 0;
    const dtm_type_data *q = infer_operand(in, 0), *k = infer_operand(in, 1);
    for (int i = 0; i < q->rank; i++) {
        dtm_dim dim = q->dims[i];
        if (dim == queries || dim == width || infer_has(in, 1, dim)) continue;
        if (heads)
            FAIL(in, 305, "`attention`: q has two dimensions that k has not, %s and %s; one alone can be its heads",
                 infer_dim_name(in, heads), infer_dim_name(in, dim));
        heads = dim;
    }
    for (int i = 0; i < k->rank; i++) {
        dtm_dim dim = k->dims[i];
        if (dim == keys || dim == width || infer_has(in, 0, dim)) continue;
        if (groups)
            FAIL(in, 305, "`attention`: k has two dimensions that q has not, %s and %s; one alone can be its heads",
                 infer_dim_name(in, groups), infer_dim_name(in, dim));
        groups = dim;
    }
    if (!groups) return true;
    int64_t h = heads ? in->module->dims[heads].size : 0, g = in->module->dims[groups].size;
    if (!heads) FAIL(in, 305, "`attention`: k has heads %s, q has none", infer_dim_name(in, groups));
    if (g < 1 || h < 1 || h % g) {
        dtm_error(in->module->context, in->span, 306,
                  "`attention`: %s = %lld query heads are no multiple of %s = %lld key/value heads",
                  infer_dim_name(in, heads), (long long)h, infer_dim_name(in, groups), (long long)g);
        dtm_help(in->module->context, "choose %s so that it divides %s", infer_dim_name(in, groups), infer_dim_name(in, heads));
        return false;
    }
    return true;
}

bool infer_attention(inference *in) {
    const dtm_attributes *a = in->attributes;
    if (!infer_need_over(in, 2, 2)) return false;
    dtm_dim keys = a->over[0], width = a->over[1], queries = a->at ? a->at : keys;
    for (uint32_t i = 0; i < 3; i++)
        if (!infer_need_float(in, i) || !infer_need_same(in, 0, i)) return false;
    if (!infer_need_dim(in, 1, keys) || !infer_need_dim(in, 2, keys) || !infer_need_dim(in, 0, width) || !infer_need_dim(in, 1, width))
        return false;
    if (!infer_has(in, 0, queries)) {
        dtm_error(in->module->context, in->span, 301, "`attention`: q has no %s, where are its positions?",
                  infer_dim_name(in, queries));
        dtm_help(in->module->context, "name them: attention(q, k, v over %s, %s at ..)", infer_dim_name(in, keys),
                 infer_dim_name(in, width));
        return false;
    }
    if (queries != keys && infer_has(in, 0, keys))
        FAIL(in, 305, "`attention` at %s: q has the key positions %s too", infer_dim_name(in, queries), infer_dim_name(in, keys));
    if (!attention_heads(in)) return false;

    /* v has k's dimensions, with a width of its own or k's. */
    const dtm_type_data *k = infer_operand(in, 1), *v = infer_operand(in, 2);
    dtm_dim value_width = 0;
    for (int i = 0; i < k->rank; i++)
        if (k->dims[i] != width && !infer_need_dim(in, 2, k->dims[i])) return false;
    for (int i = 0; i < v->rank; i++) {
        if (v->dims[i] != width && infer_has(in, 1, v->dims[i])) continue;
        if (value_width)
            FAIL(in, 305, "`attention`: v has two widths, %s and %s", infer_dim_name(in, value_width),
                 infer_dim_name(in, v->dims[i]));
        value_width = v->dims[i];
    }
    if (!value_width) FAIL(in, 305, "`attention`: v has no width");
    if (value_width != width && infer_has(in, 0, value_width))
        FAIL(in, 305, "`attention`: the width of v, %s, is a dimension of q", infer_dim_name(in, value_width));

    infer_dims o = {.rank = 0}, lse = {.rank = 0};
    const dtm_type_data *q = infer_operand(in, 0);
    for (int i = 0; i < q->rank; i++) {
        infer_append(&o, q->dims[i] == width ? value_width : q->dims[i]);
        if (q->dims[i] != width) infer_append(&lse, q->dims[i]);
    }
    if (in->kind == DTM_OP_ATTENTION_BACKWARD) {
        if (!infer_need_all(in, 3, &o) || !infer_need_all(in, 4, &lse) || !infer_need_all(in, 5, &o)) return false;
        for (uint32_t i = 0; i < 3; i++)
            in->types[i] = infer_like(in, i);
        return true;
    }
    return infer_finish(in, 0, DTM_F32, &o) && infer_finish(in, 1, DTM_F32, &lse);
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
    if (dim == except || !infer_has(in, i, dim)) return true;
    dtm_error(in->module->context, in->span, 303, "`%s`: %s has %s already, it cannot come twice", infer_op_name(in),
              infer_operand_name(in, i), infer_dim_name(in, dim));
    dtm_help(in->module->context, "declare another dimension of that size, or rename %s first", infer_dim_name(in, dim));
    return false;
}

bool infer_split(inference *in) {
    const dtm_attributes *a = in->attributes;
    if (!infer_need_over(in, 1, 1) || !infer_need_dim(in, 0, a->over[0])) return false;
    int64_t product = 1;
    for (int i = 0; i < a->n_as; i++) {
        product = multiplied(product, size_of(in, a->as[i]));
        if (!need_fresh(in, 0, a->as[i], 0)) return false;
        for (int j = 0; j < i; j++)
            if (a->as[i] == a->as[j]) FAIL(in, 303, "`split`: %s stands twice after `as`", infer_dim_name(in, a->as[i]));
    }
    if (a->n_as < 2) FAIL(in, 305, "`split` makes two or more dimensions of one: split(x, D as H, K)");
    if (product == INT64_MAX) FAIL(in, 315, "`split`: 64 bits do not hold the product %s", infer_dims_text(in, a->as, a->n_as));
    if (product != size_of(in, a->over[0]))
        MISFIT(in, a->over[0], product, "`split`: %s = %lld is not the product %s, which is %lld", infer_dim_name(in, a->over[0]),
               (long long)size_of(in, a->over[0]), infer_dims_text(in, a->as, a->n_as), (long long)product);
    infer_dims s = {.rank = 0};
    const dtm_type_data *x = infer_operand(in, 0);
    for (int i = 0; i < x->rank; i++)
        if (x->dims[i] == a->over[0])
            for (int j = 0; j < a->n_as; j++) infer_append(&s, a->as[j]);
        else
            infer_append(&s, x->dims[i]);
    return infer_finish(in, 0, (dtm_dtype)x->dtype, &s);
}

/* The merged dimension stands where the major one stood; the minor ones are brought behind it. */
bool infer_merge(inference *in) {
    const dtm_attributes *a = in->attributes;
    if (!infer_need_over(in, 2, DTM_MAX_RANK)) return false;
    int64_t product = 1;
    for (int i = 0; i < a->n_over; i++) {
        if (!infer_need_dim(in, 0, a->over[i])) return false;
        product = multiplied(product, size_of(in, a->over[i]));
    }
    if (a->n_as != 1) FAIL(in, 305, "`merge` makes one dimension of several: merge(x, H, K as D)");
    if (!need_fresh(in, 0, a->as[0], 0)) return false;
    if (product != size_of(in, a->as[0]))
        MISFIT(in, a->as[0], product, "`merge`: %s = %lld is not the product %s, which is %lld", infer_dim_name(in, a->as[0]),
               (long long)size_of(in, a->as[0]), infer_dims_text(in, a->over, a->n_over), (long long)product);
    infer_dims s = {.rank = 0};
    const dtm_type_data *x = infer_operand(in, 0);
    for (int i = 0; i < x->rank; i++)
        if (x->dims[i] == a->over[0])
            infer_append(&s, a->as[0]);
        else if (!infer_over_has(in, x->dims[i]))
            infer_append(&s, x->dims[i]);
    return infer_finish(in, 0, (dtm_dtype)x->dtype, &s);
}

bool infer_rename(inference *in) {
    const dtm_attributes *a = in->attributes;
    if (!infer_need_over(in, 1, 1) || !infer_need_dim(in, 0, a->over[0])) return false;
    if (a->n_as != 1) FAIL(in, 305, "`rename` gives one dimension another name: rename(x, S as T)");
    if (!need_fresh(in, 0, a->as[0], 0)) return false;
    if (size_of(in, a->over[0]) != size_of(in, a->as[0]))
        MISFIT(in, a->as[0], size_of(in, a->over[0]), "`rename`: %s = %lld, but %s = %lld", infer_dim_name(in, a->over[0]),
             (long long)size_of(in, a->over[0]), infer_dim_name(in, a->as[0]), (long long)size_of(in, a->as[0]));
    infer_dims s = {.rank = 0};
    const dtm_type_data *x = infer_operand(in, 0);
    for (int i = 0; i < x->rank; i++) infer_append(&s, x->dims[i] == a->over[0] ? a->as[0] : x->dims[i]);
    return infer_finish(in, 0, (dtm_dtype)x->dtype, &s);
}

bool infer_concat(inference *in) {
    const dtm_attributes *a = in->attributes;
    if (!infer_need_over(in, 2, 2) || !infer_need_same(in, 0, 1) || !infer_need_dim(in, 0, a->over[0]) || !infer_need_dim(in, 1, a->over[1]))
        return false;
    if (a->n_as != 1) FAIL(in, 305, "`concat` makes one dimension of two: concat(a, b over N, R as K)");
    int64_t sum;
    if (__builtin_add_overflow(size_of(in, a->over[0]), size_of(in, a->over[1]), &sum)) sum = INT64_MAX;
    if (size_of(in, a->as[0]) != sum)
        MISFIT(in, a->as[0], sum, "`concat`: %s = %lld is not the sum %s, which is %lld", infer_dim_name(in, a->as[0]),
               (long long)size_of(in, a->as[0]),
               dtm_dims_text(in->module, dtm_context_arena(in->module->context), a->over, 2, " + "), (long long)sum);
    infer_dims s = {.rank = 0};
    const dtm_type_data *x = infer_operand(in, 0), *y = infer_operand(in, 1);
    for (int i = 0; i < x->rank; i++) infer_append(&s, x->dims[i] == a->over[0] ? a->as[0] : x->dims[i]);
    for (int i = 0; i < y->rank; i++)
        if (y->dims[i] != a->over[1]) infer_append(&s, y->dims[i]);
    return infer_finish(in, 0, (dtm_dtype)x->dtype, &s);
}

bool infer_slice(inference *in) {
    const dtm_attributes *a = in->attributes;
    bool pad = in->kind == DTM_OP_PAD;
    if (!infer_need_over(in, 1, 1) || !infer_need_dim(in, 0, a->over[0])) return false;
    if (a->n_as != 1) FAIL(in, 305, "`%s` names the dimension it makes: slice(x, K = a..b as R)", infer_op_name(in));
    dtm_dim whole = pad ? a->as[0] : a->over[0], part = pad ? a->over[0] : a->as[0];
    if (!need_fresh(in, 0, a->as[0], a->over[0])) return false;
    if (a->from < 0 || a->from > a->to || a->to > size_of(in, whole))
        FAIL(in, 304, "`%s`: %lld..%lld is not within %s = %lld", infer_op_name(in), (long long)a->from, (long long)a->to,
             infer_dim_name(in, whole), (long long)size_of(in, whole));
    if (a->to - a->from != size_of(in, part))
        MISFIT(in, part, a->to - a->from, "`%s`: %lld..%lld has %lld elements, but %s = %lld", infer_op_name(in),
               (long long)a->from, (long long)a->to, (long long)(a->to - a->from), infer_dim_name(in, part),
               (long long)size_of(in, part));
    infer_dims s = {.rank = 0};
    const dtm_type_data *x = infer_operand(in, 0);
    for (int i = 0; i < x->rank; i++) infer_append(&s, x->dims[i] == a->over[0] ? a->as[0] : x->dims[i]);
    return infer_finish(in, 0, (dtm_dtype)x->dtype, &s);
}
