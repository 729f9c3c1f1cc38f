/* Sums down the columns of a matrix [rows, columns], as gradients of biases and of norms' scales are, in two launches: partial sums
 * of `parts` groups of rows, and their sum. Rows are added in an order that depends on their number, on the parts and on the
 * threads alone; nothing is atomic.
 *
 *     partials  grid (tiles of 32 * width columns, parts); a warp takes every warps-th row of its group
 *     join      a thread a column
 */
#include "kernels/cuda/prelude.cuh"

#ifndef DTM_CUDA_COLUMNS
#define DTM_CUDA_COLUMNS

template <int columns, int width, int threads> struct dtm_columns {
    static_assert(columns >= 1 && columns % width == 0 && threads % 32 == 0, "columns");
    static constexpr int warps = threads / 32;
    static constexpr int tiles = (columns + 32 * width - 1) / (32 * width);
    static constexpr int scratch = warps * width * 32; /* floats of shared memory */

    /* f(v, row, first) sets v[width] to the terms of columns first .. of a row. partials: [parts, columns]. */
    template <class F> static __device__ __forceinline__ void partial(dtm_i64 rows, float *partials, float *shared, const F &f) {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = (blockIdx.x * 32 + lane) * width;
        dtm_i64 part = blockIdx.y, parts = gridDim.y, begin = rows * part / parts, end = rows * (part + 1) / parts;
        float sum[width] = {};
        if (first < columns)
#pragma unroll 1
            for (dtm_i64 row = begin + warp; row < end; row += warps) {
                float v[width];
                f(v, row, first);
#pragma unroll
                for (int i = 0; i < width; i++) sum[i] += v[i];
            }
#pragma unroll
        for (int i = 0; i < width; i++) shared[(warp * width + i) * 32 + lane] = sum[i];
        __syncthreads();
        if (warp > 0 || first >= columns) return;
#pragma unroll
        for (int i = 0; i < width; i++) {
#pragma unroll
            for (int w = 1; w < warps; w++) sum[i] += shared[(w * width + i) * 32 + lane];
            partials[part * columns + first + i] = sum[i];
        }
    }

    /* f(column, sum) for each column. */
    template <class F> static __device__ __forceinline__ void join(int parts, const float *partials, const F &f) {
        int column = blockIdx.x * threads + threadIdx.x;
        if (column >= columns) return;
        float sum = 0;
        for (int p = 0; p < parts; p++) sum += partials[(dtm_i64)p * columns + column];
        f(column, sum);
    }
};

#endif
