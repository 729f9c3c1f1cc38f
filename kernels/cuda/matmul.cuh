/* The runtime's own program of matrix products, c = a b or c += a b, for what cuBLASLt has no form: any steps, any mixture of types,
 * any sizes, in f32 and in the order of the depth. Blocks of 256 threads:
 *
 *     grid.x   tiles of 64 x 64: those of a row of tiles first
 *     grid.z   products of a batch go on by it; grid.y is 1
 */
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/tile.cuh"

#ifndef DTM_CUDA_MATMUL
#define DTM_CUDA_MATMUL

extern "C" __global__ void __launch_bounds__(256, 2) dtm_product_any(const __grid_constant__ dtm_product p) {
    __shared__ dtm_tile shared;
    dtm_begin(p.mark);
    dtm_i64 across = (p.n + 63) / 64, row0 = blockIdx.x / across * 64, column0 = blockIdx.x % across * 64;
#pragma unroll 1
    for (dtm_i64 z = blockIdx.z; z < p.batch; z += gridDim.z) {
        float sums[4][4] = {};
        auto a = [&](int row, dtm_i64 k) {
            return row0 + row < p.m && k < p.k ? dtm_product_load(p.a, z * p.a_batch + (row0 + row) * p.a_row + k * p.a_col, p.a_type) : 0.f;
        };
        auto b = [&](dtm_i64 k, int column) {
            return column0 + column < p.n && k < p.k ? dtm_product_load(p.b, z * p.b_batch + k * p.b_row + (column0 + column) * p.b_col, p.b_type) : 0.f;
        };
        dtm_tile_multiply(sums, p.k, shared, a, p.a_col <= p.a_row, b, p.b_row <= p.b_col);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                dtm_i64 row = row0 + dtm_tile_row() + i, column = column0 + dtm_tile_column() + j, at = z * p.c_batch + row * p.c_row + column;
                if (row >= p.m || column >= p.n) continue;
                float before = p.accumulate ? dtm_product_load(p.c, at, p.c_type) : 0.f;
                dtm_product_store(p.c, at, p.c_type, p.accumulate ? before + sums[i][j] : sums[i][j]);
            }
    }
}

#endif
