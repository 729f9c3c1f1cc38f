/* Products of 64 x 64 tiles by a block of 256 threads, in f32: what generated products and attention are made of where the tensor
 * cores do not serve. Thread t has rows t / 16 * 4 .. and columns t % 16 * 4 .., four of each. Terms are added in the order of the
 * depth. Operands come through functions of (row, depth) and (depth, column) that give zeros outside.
 *
 *     shared memory, depth by depth, so that a thread reads its four rows, or columns, at once:
 *         a[32][64 + 4]    b[32][64 + 4]
 */
#include "kernels/cuda/prelude.cuh"

#ifndef DTM_CUDA_TILE
#define DTM_CUDA_TILE

struct dtm_tile {
    static constexpr int size = 64, depth = 32, threads = 256;
    alignas(16) float a[depth][size + 4];
    alignas(16) float b[depth][size + 4];
};

/* One that is made by the block itself: 64 deep. */
typedef float dtm_tile_made[dtm_tile::size][dtm_tile::size + 4];

DTM_DEVICE int dtm_tile_row() { return threadIdx.x / 16 * 4; }
DTM_DEVICE int dtm_tile_column() { return threadIdx.x % 16 * 4; }

/* f(line, depth); neighbours in memory are those along the depth, or the lines. */
template <class F> DTM_DEVICE void dtm_tile_fetch(float to[dtm_tile::depth][dtm_tile::size + 4], bool along_depth, const F &f) {
    int t = threadIdx.x;
    if (along_depth) {
#pragma unroll 4
        for (int i = 0; i < 8; i++) to[t % 32][t / 32 + 8 * i] = f(t / 32 + 8 * i, t % 32);
    } else {
#pragma unroll 4
        for (int i = 0; i < 8; i++) to[t / 64 + 4 * i][t % 64] = f(t % 64, t / 64 + 4 * i);
    }
}

DTM_DEVICE void dtm_tile_step(float c[4][4], const float *a, const float *b) {
    float4 x = *(const float4 *)a, y = *(const float4 *)b;
    float rows[4] = {x.x, x.y, x.z, x.w}, columns[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) c[i][j] = fmaf(rows[i], columns[j], c[i][j]);
}

/* c += a b over `depth` terms. All threads; the shared memory may be in use until it begins, and is when it ends. */
template <class A, class B>
DTM_DEVICE void dtm_tile_multiply(float c[4][4], dtm_i64 depth, dtm_tile &shared, const A &a, bool a_along, const B &b, bool b_along) {
#pragma unroll 1
    for (dtm_i64 first = 0; first < depth; first += dtm_tile::depth) {
        __syncthreads();
        dtm_tile_fetch(shared.a, a_along, [&](int line, int k) { return a(line, first + k); });
        dtm_tile_fetch(shared.b, b_along, [&](int line, int k) { return b(first + k, line); });
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < dtm_tile::depth; k++) dtm_tile_step(c, shared.a[k] + dtm_tile_row(), shared.b[k] + dtm_tile_column());
    }
}

/* The same with a tile that the block has made, made[depth][row], before this is called. */
template <class B> DTM_DEVICE void dtm_tile_multiply_made(float c[4][4], const dtm_tile_made made, dtm_tile &shared, const B &b, bool b_along) {
#pragma unroll 1
    for (int first = 0; first < dtm_tile::size; first += dtm_tile::depth) {
        __syncthreads();
        dtm_tile_fetch(shared.b, b_along, [&](int line, int k) { return b(first + k, line); });
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < dtm_tile::depth; k++) dtm_tile_step(c, made[first + k] + dtm_tile_row(), shared.b[k] + dtm_tile_column());
    }
}

#endif
