/* Attention in f32, forward and backward, of narrow and wide heads, and of other storage; sizes and scale come in z[]. */
#include "kernels/cuda/entry.cuh"
#include "kernels/cuda/attention.cuh"

#define SIZES const dtm_attention_sizes &s = (const dtm_attention_sizes &)p.t[blockIdx.y].z
#define UNIT __int_as_float((int)p.t[blockIdx.y].z[52])
#define B(type, i) ((type *)p.t[blockIdx.y].b[i])

#define ATTENTION(name, type, parts, shares)                                                                                                          \
    DTM_ENTRY(name##_forward, 256, 9, 53, 1) {                                                                                                        \
        dtm_begin(p.mark);                                                                                                                            \
        __shared__ dtm_attention_shared shared;                                                                                                       \
        SIZES;                                                                                                                                        \
        dtm_attention_forward<parts>(s, UNIT * dtm_log2_e, B(type, 0), B(type, 1), B(type, 2), B(type, 3), B(float, 4), blockIdx.x, shared);          \
    }                                                                                                                                                 \
    DTM_ENTRY(name##_delta, 256, 9, 53, 1) {                                                                                                          \
        dtm_begin(p.mark);                                                                                                                            \
        SIZES;                                                                                                                                        \
        dtm_attention_delta(s, B(type, 3), B(type, 5), (float *)p.t[blockIdx.y].scratch, (dtm_i64)blockIdx.x * 8 + threadIdx.x / 32);                 \
    }                                                                                                                                                 \
    DTM_ENTRY(name##_keys, 256, 9, 53, 1) {                                                                                                           \
        dtm_begin(p.mark);                                                                                                                            \
        __shared__ dtm_attention_shared shared;                                                                                                       \
        SIZES;                                                                                                                                        \
        dtm_attention_keys<shares>(s, UNIT * dtm_log2_e, UNIT, B(type, 0), B(type, 1), B(type, 2), B(type, 5), B(float, 4),                           \
                                   (const float *)p.t[blockIdx.y].scratch, B(type, 7), B(type, 8), blockIdx.x, shared);                               \
    }                                                                                                                                                 \
    DTM_ENTRY(name##_queries, 256, 9, 53, 1) {                                                                                                        \
        dtm_begin(p.mark);                                                                                                                            \
        __shared__ dtm_attention_shared shared;                                                                                                       \
        SIZES;                                                                                                                                        \
        dtm_attention_queries<parts>(s, UNIT * dtm_log2_e, UNIT, B(type, 0), B(type, 1), B(type, 2), B(type, 5), B(float, 4),                         \
                                     (const float *)p.t[blockIdx.y].scratch, B(type, 6), blockIdx.x, shared);                                         \
    }

ATTENTION(attention_narrow, float, 1, 1)
ATTENTION(attention_wide, float, 4, 2)
ATTENTION(attention_bf16, dtm_bf16, 2, 2)
