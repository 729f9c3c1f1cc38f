/* A residual connection with a gate, x + silu(g) * u, in each storage; and an update in place. */
#include "kernels/cuda/elementwise.cuh"

template <class T> struct gated {
    const T *x, *g, *u;
    T *y;
    template <int W> __device__ __forceinline__ void at(dtm_i64 first) const {
        float a[W], b[W], c[W];
        dtm_load_once<W>(a, x + first);
        dtm_load_once<W>(b, g + first);
        dtm_load_once<W>(c, u + first);
#pragma unroll
        for (int i = 0; i < W; i++) a[i] += __fdividef(b[i], 1.f + dtm_exp2(-dtm_log2_e * b[i])) * c[i];
        dtm_store<W>(y + first, a);
    }
};

extern "C" __global__ void __launch_bounds__(256) gated_bf16(const dtm_bf16 *x, const dtm_bf16 *g, const dtm_bf16 *u, dtm_bf16 *y, dtm_i64 n) {
    dtm_each<8>(n, gated<dtm_bf16>{x, g, u, y});
}
extern "C" __global__ void __launch_bounds__(256) gated_f16(const dtm_f16 *x, const dtm_f16 *g, const dtm_f16 *u, dtm_f16 *y, dtm_i64 n) {
    dtm_each<8>(n, gated<dtm_f16>{x, g, u, y});
}
extern "C" __global__ void __launch_bounds__(256) gated_f32(const float *x, const float *g, const float *u, float *y, dtm_i64 n) {
    dtm_each<4>(n, gated<float>{x, g, u, y});
}

/* Narrower accesses: what is wide beside what is not; and a logarithm. */
struct mixed {
    const dtm_bf16 *x;
    float *y;
    template <int W> __device__ __forceinline__ void at(dtm_i64 first) const {
        float a[W], b[W];
        dtm_load<W>(a, x + first);
        dtm_load<W>(b, y + first);
#pragma unroll
        for (int i = 0; i < W; i++) b[i] = dtm_max(a[i], b[i]) + dtm_ln_2 * dtm_log2(a[i]);
        dtm_store<W>(y + first, b);
    }
};
extern "C" __global__ void __launch_bounds__(256) mixed_in_place(const dtm_bf16 *x, float *y, dtm_i64 n) { dtm_each<4>(n, mixed{x, y}); }
