/* What the loop nests that dtmc writes (codegen/cuda_nest.c) are made of: vectors of any type of storage, widened to registers and back,
 * and reductions of any type over the threads of a row, in a fixed order. */
#include "kernels/cuda/entry.cuh"
#include "kernels/cuda/functions.cuh"
#include "kernels/cuda/random.cuh"

#ifndef DTM_CUDA_NEST
#define DTM_CUDA_NEST

#pragma nv_diag_suppress 177 /* what a nest has no use for */

DTM_DEVICE float dtm_widen(float x) { return x; }
DTM_DEVICE float dtm_widen(dtm_bf16 x) { return dtm_load_f32(x); }
DTM_DEVICE float dtm_widen(dtm_f16 x) { return dtm_load_f32(x); }
DTM_DEVICE int32_t dtm_widen(int32_t x) { return x; }
DTM_DEVICE int dtm_widen(uint8_t x) { return x; }

DTM_DEVICE void dtm_narrow(float &to, float x) { to = x; }
DTM_DEVICE void dtm_narrow(dtm_bf16 &to, float x) { to = dtm_store_f32<dtm_bf16>(x); }
DTM_DEVICE void dtm_narrow(dtm_f16 &to, float x) { to = dtm_store_f32<dtm_f16>(x); }
DTM_DEVICE void dtm_narrow(int32_t &to, int32_t x) { to = x; }
DTM_DEVICE void dtm_narrow(uint8_t &to, int x) { to = (uint8_t)x; }

/* N elements at a multiple of their size, which is at most 16 bytes. */
template <int N, class T, class R> DTM_DEVICE void dtm_read(R (&out)[N], const T *from) {
    if constexpr (N == 1) {
        out[0] = dtm_widen(*from);
    } else {
        dtm_vector<T, N> v;
        dtm_access<sizeof(T) * N>::load(&v, from);
#pragma unroll
        for (int i = 0; i < N; i++) out[i] = dtm_widen(v.x[i]);
    }
}
template <int N, class T, class R> DTM_DEVICE void dtm_write(T *to, const R (&in)[N]) {
    if constexpr (N == 1) {
        dtm_narrow(*to, in[0]);
    } else {
        dtm_vector<T, N> v;
#pragma unroll
        for (int i = 0; i < N; i++) dtm_narrow(v.x[i], in[i]);
        dtm_access<sizeof(T) * N>::store(to, &v);
    }
}

/* What a reduction joins by; NaN stays. */
struct dtm_add {
    template <class T> static __device__ __forceinline__ T join(T a, T b) { return a + b; }
};
struct dtm_larger {
    static __device__ __forceinline__ float join(float a, float b) { return dtm_max(a, b); }
    template <class T> static __device__ __forceinline__ T join(T a, T b) { return a > b ? a : b; }
};

template <class Op, class T> DTM_DEVICE T dtm_join_lanes(T x) {
#pragma unroll
    for (int step = 16; step; step /= 2) x = Op::join(x, __shfl_xor_sync(dtm_all_lanes, x, step));
    return x;
}

/* Over `threads` that follow each other: a warp, or the whole block. All of them call it and have the result. `shared` is of one
 * element a warp, and free again when the block passes its next barrier; `none` changes nothing. */
template <class Op, int threads, class T> DTM_DEVICE T dtm_join(T x, T none, T *shared) {
    static_assert(threads % 32 == 0 && threads <= 1024, "threads of a row");
    x = dtm_join_lanes<Op>(x);
    if constexpr (threads > 32) {
        constexpr int warps = threads / 32;
        const int lane = threadIdx.x % 32;
        if (lane == 0) shared[threadIdx.x / 32] = x;
        __syncthreads();
        x = dtm_join_lanes<Op>(lane < warps ? shared[lane] : none);
    }
    return x;
}

/* Of each of 32 columns of `width` elements, over `groups` warps: group 0 has the result. All threads of the block call it. */
template <class Op, int groups, int width, class T> DTM_DEVICE void dtm_join_groups(T (&x)[width], T (&shared)[groups * width * 32]) {
    const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < width; k++) shared[(group * width + k) * 32 + lane] = x[k];
    __syncthreads();
    if (group) return;
#pragma unroll
    for (int k = 0; k < width; k++)
#pragma unroll
        for (int g = 1; g < groups; g++) x[k] = Op::join(x[k], shared[(g * width + k) * 32 + lane]);
}

#endif
