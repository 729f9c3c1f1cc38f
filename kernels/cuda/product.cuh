/* The parameter of the runtime's own matrix products, of which matmul.cuh and matmul_halves.cuh are programs; and elements of any type. */
#include "kernels/cuda/prelude.cuh"

#ifndef DTM_CUDA_PRODUCT
#define DTM_CUDA_PRODUCT

enum dtm_product_type { dtm_product_f32, dtm_product_f16, dtm_product_bf16 }; /* those of dtm_plan_dtype */

/* Steps in elements, not negative: of a [m, k], b [k, n], c [m, n], and from one product of the batch to the next. */
struct dtm_product {
    const void *a, *b;
    void *c;
    dtm_i64 m, n, k, batch;
    dtm_i64 a_row, a_col, a_batch, b_row, b_col, b_batch, c_row, c_batch;
    int a_type, b_type, c_type;
    int accumulate;
    dtm_mark mark;
};

DTM_DEVICE float dtm_product_load(const void *from, dtm_i64 i, int type) {
    if (type == dtm_product_f32) return ((const float *)from)[i];
    return type == dtm_product_f16 ? dtm_load_f32(((const dtm_f16 *)from)[i]) : dtm_load_f32(((const dtm_bf16 *)from)[i]);
}

DTM_DEVICE void dtm_product_store(void *to, dtm_i64 i, int type, float x) {
    if (type == dtm_product_f32)
        ((float *)to)[i] = x;
    else if (type == dtm_product_f16)
        ((dtm_f16 *)to)[i] = dtm_store_f32<dtm_f16>(x);
    else
        ((dtm_bf16 *)to)[i] = dtm_store_f32<dtm_bf16>(x);
}

#endif
