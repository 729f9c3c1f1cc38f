/* Attention by the tensor cores, forward and backward, of both types and of narrow, usual and wide heads; sizes and scale come in z[]. */
#include "kernels/cuda/entry.cuh"
#include "kernels/cuda/attention_halves.cuh"

#define SIZES const dtm_attention_sizes &s = (const dtm_attention_sizes &)p.t[blockIdx.y].z
#define UNIT __int_as_float((int)p.t[blockIdx.y].z[52])
#define B(type, i) ((type *)p.t[blockIdx.y].b[i])

#define ATTENTION(name, type, width, v_width)                                                                                                      \
    DTM_ENTRY(name##_forward, 128, 9, 53, 1) {                                                                                                     \
        dtm_begin(p.mark);                                                                                                                         \
        extern __shared__ __align__(16) unsigned char shared[];                                                                                    \
        SIZES;                                                                                                                                     \
        dtm_attention_halves<type, width, v_width>::forward(s, UNIT * dtm_log2_e, B(type, 0), B(type, 1), B(type, 2), B(type, 3), B(float, 4),      \
                                                            blockIdx.x, (type *)shared);                                                           \
    }                                                                                                                                              \
    DTM_ENTRY(name##_delta, 128, 9, 53, 1) {                                                                                                       \
        dtm_begin(p.mark);                                                                                                                         \
        SIZES;                                                                                                                                     \
        dtm_attention_delta(s, B(type, 3), B(type, 5), (float *)p.t[blockIdx.y].scratch, (dtm_i64)blockIdx.x * 4 + threadIdx.x / 32);              \
    }                                                                                                                                              \
    DTM_ENTRY(name##_keys, 128, 9, 53, 1) {                                                                                                        \
        dtm_begin(p.mark);                                                                                                                         \
        extern __shared__ __align__(16) unsigned char shared[];                                                                                    \
        SIZES;                                                                                                                                     \
        dtm_attention_halves<type, width, v_width>::keys(s, UNIT * dtm_log2_e, UNIT, B(type, 0), B(type, 1), B(type, 2), B(type, 5), B(float, 4),  \
                                                         (const float *)p.t[blockIdx.y].scratch, B(type, 7), B(type, 8), blockIdx.x,               \
                                                         (type *)shared);                                                                          \
    }                                                                                                                                              \
    DTM_ENTRY(name##_queries, 128, 9, 53, 1) {                                                                                                     \
        dtm_begin(p.mark);                                                                                                                         \
        extern __shared__ __align__(16) unsigned char shared[];                                                                                    \
        SIZES;                                                                                                                                     \
        dtm_attention_halves<type, width, v_width>::queries(s, UNIT * dtm_log2_e, UNIT, B(type, 0), B(type, 1), B(type, 2), B(type, 5),            \
                                                            B(float, 4), (const float *)p.t[blockIdx.y].scratch, B(type, 6), blockIdx.x,           \
                                                            (type *)shared);                                                                       \
    }

ATTENTION(narrow_bf16, dtm_bf16, 48, 32)
ATTENTION(usual_bf16, dtm_bf16, 128, 128)
ATTENTION(wide_bf16, dtm_bf16, 256, 256)
ATTENTION(odd_f16, dtm_f16, 160, 64)
