/* The runtime's own products of two operands of bf16, or of f16, by the tensor cores (mma m16n8k16, sums in f32): what matmul.cuh does
 * for any types. Any sizes and steps; c is of any type.
 *
 *     grid.x   tiles of 128 x 128: those of a row of tiles first
 *     grid.z   products of a batch go on by it; grid.y is 1
 *
 * A block of eight warps, each with 64 x 32 of the tile, goes through the depth in steps of 32 that are copied to shared memory one
 * ahead. An operand lies there as in memory, its neighbours side by side: lines by depth, or depth by lines; rows have 8 elements
 * more, so that eight of them lie in different banks. Where vectors of 16 bytes cannot be read, elements are. */
#include "kernels/cuda/product.cuh"

#ifndef DTM_CUDA_MATMUL_HALVES
#define DTM_CUDA_MATMUL_HALVES

/* An operand's 128 lines (rows of a, columns of b) by 32 of the depth. Whether its neighbours lie along the depth is known when it
 * runs: a variant for each case would take NVRTC many times as long. */
template <class T> struct dtm_product_side {
    static constexpr int elements = 128 * 40; /* or 32 * 136, which is less */

    const T *from; /* the first line of the tile */
    dtm_i64 lines, depth, line_step, depth_step;
    bool along_depth, vectors;
    int row;                      /* elements from row to row in shared memory */
    int line_at, depth_at, of_lane; /* where a line, a depth lie there; and where a lane reads of 16 by 16 */

    __device__ __forceinline__ void open(const void *at, dtm_i64 offset, dtm_i64 n, dtm_i64 k, dtm_i64 line, dtm_i64 along, dtm_i64 batch, bool right) {
        int lane = threadIdx.x % 32, down = right ? lane % 8 + lane / 16 * 8 : lane % 16, across = right ? lane / 8 % 2 * 8 : lane / 16 * 8;
        along_depth = line != 1 || along == 1;
        dtm_u64 odd = (dtm_u64)at % 16 | (dtm_u64)(along_depth ? line : along) % 8 | (dtm_u64)batch % 8;
        from = (const T *)at + offset;
        lines = n, depth = k, line_step = line, depth_step = along;
        vectors = (along_depth ? along : line) == 1 && odd == 0;
        row = along_depth ? 40 : 136;
        line_at = along_depth ? row : 1, depth_at = along_depth ? 1 : row;
        if (along_depth)
            of_lane = down * row + across;
        else /* transposed when it is read: lanes give rows of the depth */
            of_lane = right ? lane % 16 * row + lane / 16 * 8 : (lane % 8 + lane / 16 * 8) * row + lane / 8 % 2 * 8;
    }

    __device__ __forceinline__ void fetch(T *to, dtm_i64 first) const {
        int shift = along_depth ? 2 : 4; /* vectors of a row */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int part = threadIdx.x + 256 * i, r = part >> shift, c = (part & ((1 << shift) - 1)) * 8;
            dtm_i64 line = along_depth ? r : c, k = first + (along_depth ? c : r), left = along_depth ? depth - k : lines - line;
            int count = (along_depth ? line < lines : k < depth) && left > 0 ? (int)(left < 8 ? left : 8) : 0;
            const T *at = from + (count ? line * line_step + k * depth_step : 0);
            T *into = to + r * row + c;
            if (vectors) {
                dtm_copy_16(into, at, count * 2);
            } else {
                dtm_i64 step = along_depth ? depth_step : line_step;
#pragma unroll 1
                for (int e = 0; e < 8; e++) into[e] = e < count ? at[e * step] : T{0};
            }
        }
    }

    /* Of 16 lines and 16 of the depth: the left operand of a product of 16 rows, or the right ones of two of 8 columns. */
    __device__ __forceinline__ void load(dtm_u32 out[4], const T *at, int line, int k) const {
        at += of_lane + line * line_at + k * depth_at;
        if (along_depth)
            dtm_load_matrices(out, at);
        else
            dtm_load_transposed(out, at);
    }
};

/* 16 rows and 32 columns of a warp: by shared memory, so that its lanes write a row side by side. */
DTM_DEVICE void dtm_product_put(const dtm_product &p, dtm_i64 z, dtm_i64 row, dtm_i64 column, const float sums[4][4], float *made) {
    int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) made[(lane / 4 + e / 2 * 8) * 33 + j * 8 + lane % 4 * 2 + e % 2] = sums[j][e];
    __syncwarp();
    if (column + lane >= p.n) return;
#pragma unroll 1
    for (int r = 0; r < 16 && row + r < p.m; r++) {
        dtm_i64 at = z * p.c_batch + (row + r) * p.c_row + column + lane;
        float sum = made[r * 33 + lane];
        if (p.accumulate) sum += dtm_product_load(p.c, at, p.c_type);
        dtm_product_store(p.c, at, p.c_type, sum);
    }
}

template <class T> DTM_DEVICE void dtm_product_halves(const dtm_product &p) {
    using side = dtm_product_side<T>;
    __shared__ alignas(16) T shared[4 * side::elements];
    int warp = threadIdx.x / 32, row = warp / 4 * 64, column = warp % 4 * 32;
    dtm_i64 across = (p.n + 127) / 128, row0 = blockIdx.x / across * 128, column0 = blockIdx.x % across * 128;
#pragma unroll 1
    for (dtm_i64 z = blockIdx.z; z < p.batch; z += gridDim.z) {
        side a, b;
        a.open(p.a, z * p.a_batch + row0 * p.a_row, p.m - row0, p.k, p.a_row, p.a_col, p.a_batch, false);
        b.open(p.b, z * p.b_batch + column0 * p.b_col, p.n - column0, p.k, p.b_col, p.b_row, p.b_batch, true);
        float sums[4][4][4] = {};
        /* A turn fetches a step and multiplies the one before. */
#pragma unroll 1
        for (dtm_i64 first = 0; first < p.k + 32; first += 32) {
            T *stage = shared + first / 32 % 2 * 2 * side::elements;
            if (first < p.k) {
                a.fetch(stage, first);
                b.fetch(stage + side::elements, first);
            }
            dtm_copy_commit();
            if (first == 0) continue;
            stage = shared + (first / 32 + 1) % 2 * 2 * side::elements;
            dtm_copy_wait<1>();
            __syncthreads();
#pragma unroll
            for (int k = 0; k < 32; k += 16) {
                dtm_u32 left[4][4];
#pragma unroll
                for (int i = 0; i < 4; i++) a.load(left[i], stage, row + i * 16, k);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    dtm_u32 right[4];
                    b.load(right, stage + side::elements, column + j * 16, k);
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        dtm_multiply<T>(sums[i][2 * j], left[i], right);
                        dtm_multiply<T>(sums[i][2 * j + 1], left[i], right + 2);
                    }
                }
            }
            __syncthreads(); /* the stage is free */
        }
        dtm_copy_wait<0>();
#pragma unroll
        for (int i = 0; i < 4; i++)
            dtm_product_put(p, z, row0 + row + i * 16, column0 + column, sums[i], (float *)shared + warp * 16 * 33);
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(256, 1) dtm_product_of_bf16(const __grid_constant__ dtm_product p) {
    dtm_begin(p.mark);
    dtm_product_halves<dtm_bf16>(p);
}
extern "C" __global__ void __launch_bounds__(256, 1) dtm_product_of_f16(const __grid_constant__ dtm_product p) {
    dtm_begin(p.mark);
    dtm_product_halves<dtm_f16>(p);
}

#endif
