/* Conversions and functions of the prelude, each by itself. */
#include "kernels/cuda/prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) narrow(const float *x, dtm_bf16 *b, dtm_f16 *h, dtm_u32 *b_pairs, dtm_u32 *h_pairs, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    b[i] = dtm_store_f32<dtm_bf16>(x[i]);
    h[i] = dtm_store_f32<dtm_f16>(x[i]);
    b_pairs[i] = dtm_pair<dtm_bf16>(x[i], x[n - 1 - i]);
    h_pairs[i] = dtm_pair<dtm_f16>(x[i], x[n - 1 - i]);
}

extern "C" __global__ void __launch_bounds__(256) widen(float *b, float *h) {
    int i = blockIdx.x * 256 + threadIdx.x;
    b[i] = dtm_load_f32(dtm_bf16{(dtm_u16)i});
    h[i] = dtm_load_f32(dtm_f16{(dtm_u16)i});
}

extern "C" __global__ void __launch_bounds__(256) functions(const float *x, float *exponential, float *logarithm, float *larger, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    exponential[i] = dtm_exp2(x[i]);
    logarithm[i] = dtm_log2(x[i]);
    larger[i] = dtm_max(x[i], x[n - 1 - i]);
}
