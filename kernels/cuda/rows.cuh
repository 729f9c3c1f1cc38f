/* Reductions of the rows of a matrix [rows, columns], the columns known at compile time: a warp a row where it is short, else a
 * block. Each thread takes vectors of `width` elements in turn, and the partial results are joined in an order that depends on
 * the columns alone. */
#include "kernels/cuda/prelude.cuh"

#ifndef DTM_CUDA_ROWS
#define DTM_CUDA_ROWS

/* How a launch is laid out: `lanes` threads a row, `rows` of them a block. The width divides the columns, as every row must begin
 * at a multiple of its vectors' size. */
template <int columns, int width, int threads> struct dtm_rows {
    static_assert(columns >= 1 && columns % width == 0 && threads % 32 == 0, "rows");
    static constexpr bool by_warp = columns <= 32 * width * 4;
    static constexpr int lanes = by_warp ? 32 : threads;
    static constexpr int rows = threads / lanes;
    static constexpr int vectors = columns / width;

    static __device__ __forceinline__ dtm_i64 row() { return (dtm_i64)blockIdx.x * rows + threadIdx.x / lanes; }

    /* f(first) for each vector of this thread's. */
    template <class F> static __device__ __forceinline__ void each(const F &f) {
#pragma unroll 4
        for (int v = threadIdx.x % lanes; v < vectors; v += lanes) f(v * width);
    }

    /* Of all threads of the row, each of which gets it. All threads of the block call it, those without a row too; with a block a
     * row, scratch is that of dtm_block_reduce. */
    template <class Op> static __device__ __forceinline__ float reduce(float x, float *scratch) {
        return by_warp ? dtm_warp_reduce<Op>(x) : dtm_block_reduce<Op, threads>(x, scratch);
    }
};

#endif
