/* Strided copies: to[..] = from[..] of a box of up to 8 dimensions, each with its step on either side, in units of 1 to 16 bytes.
 * Dimension 7 runs fastest; who calls merges dimensions and widens units as far as he can.
 *
 * Where neighbours of `to` (dimension 7) are apart in `from`, and those of `from` are another dimension, the copy is a transpose:
 * it goes by tiles of 32 x 32 through shared memory, so that both sides are read and written along their rows. */
#include "kernels/cuda/prelude.cuh"

#ifndef DTM_CUDA_BOX
#define DTM_CUDA_BOX

/* Steps in units. Dimensions that are not used have the size 1. */
struct dtm_box_copy {
    const void *from;
    void *to;
    dtm_i64 size[8], from_step[8], to_step[8];
    dtm_mark mark;
};

struct dtm_copy_place {
    dtm_i64 from, to;
};

/* The unit of that number, dimensions counted in the order 0 .. 7; `skipped` (bits) are left out. */
template <class Number> DTM_DEVICE dtm_copy_place dtm_copy_at(const dtm_box_copy &p, Number unit, dtm_u32 skipped) {
    dtm_copy_place at = {0, 0};
#pragma unroll
    for (int d = 7; d >= 0; d--) {
        if (p.size[d] == 1 || (skipped >> d & 1)) continue;
        Number size = (Number)p.size[d], rest = unit / size;
        dtm_i64 index = (dtm_i64)(unit - rest * size);
        at.from += index * p.from_step[d];
        at.to += index * p.to_step[d];
        unit = rest;
    }
    return at;
}

template <class T, class Number> DTM_DEVICE void dtm_copy_flat(const dtm_box_copy &p, Number units) {
    const T *from = (const T *)p.from;
    T *to = (T *)p.to;
    dtm_i64 all = (dtm_i64)gridDim.x * blockDim.x;
#pragma unroll 1
    for (dtm_i64 u = (dtm_i64)blockIdx.x * blockDim.x + threadIdx.x; u < (dtm_i64)units; u += all) {
        dtm_copy_place at = dtm_copy_at<Number>(p, (Number)u, 0);
        to[at.to] = from[at.from];
    }
}

/* rows: the dimension along which neighbours of `from` lie; 256 threads. */
template <class T> DTM_DEVICE void dtm_copy_tiles(const dtm_box_copy &p, int row_dim, dtm_i64 rows, dtm_i64 row_step, dtm_i64 units) {
    __shared__ T tile[32][33];
    dtm_i64 columns = p.size[7], column_step = p.from_step[7];
    dtm_i64 down = (rows + 31) / 32, across = (columns + 31) / 32, tiles = units / rows / columns * down * across;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
    for (dtm_i64 i = blockIdx.x; i < tiles; i += gridDim.x) {
        dtm_i64 column0 = i % across * 32, row0 = i / across % down * 32;
        dtm_copy_place at = dtm_copy_at<dtm_i64>(p, i / across / down, 1u << 7 | 1u << row_dim);
        const T *from = (const T *)p.from + at.from + row0 + column0 * column_step;
        T *to = (T *)p.to + at.to + row0 * row_step + column0;
#pragma unroll
        for (int c = warp; c < 32; c += 8)
            if (row0 + lane < rows && column0 + c < columns) tile[c][lane] = from[c * column_step + lane];
        __syncthreads();
#pragma unroll
        for (int r = warp; r < 32; r += 8)
            if (row0 + r < rows && column0 + lane < columns) to[r * row_step + lane] = tile[lane][r];
        __syncthreads();
    }
}

/* Any grid of blocks of 256: threads, or tiles, go on by the size of it. */
template <class T> DTM_DEVICE void dtm_copy(const dtm_box_copy &p) {
    dtm_i64 units = 1, rows = 0, row_step = 0;
    int row_dim = -1;
#pragma unroll
    for (int d = 0; d < 8; d++) {
        units *= p.size[d];
        if (d < 7 && p.size[d] > 1 && p.from_step[d] == 1) row_dim = d, rows = p.size[d], row_step = p.to_step[d];
    }
    if (units <= 0) return;
    if (row_dim >= 0 && p.size[7] > 1 && p.to_step[7] == 1 && p.from_step[7] != 1)
        dtm_copy_tiles<T>(p, row_dim, rows, row_step, units);
    else if (units <= 0xffffffffll)
        dtm_copy_flat<T, dtm_u32>(p, (dtm_u32)units);
    else
        dtm_copy_flat<T, dtm_i64>(p, units);
}

#endif
