/* What uses the tensor cores of the prelude: c[M, N] = a[M, K] b[K, N] of whole 64 x 64 tiles, K in steps of 32 that are copied
 * two ahead; and of tf32, from memory. It is here for what it compiles to. */
#include "kernels/cuda/prelude.cuh"

/* Rows of 64 bytes (a) and 128 bytes (b) in shared memory, the 16-byte parts of a row exchanged by XOR so that eight rows of a
 * matrix lie in eight different groups of banks. */
DTM_DEVICE int place_a(int row, int part) { return row * 32 + ((part ^ (row / 2 % 4)) * 8); }
DTM_DEVICE int place_b(int row, int part) { return row * 64 + ((part ^ (row % 8)) * 8); }

template <class T> DTM_DEVICE void tile(const T *a, const T *b, T *c, int n, int k) {
    __shared__ alignas(128) T as[2][64 * 32];
    __shared__ alignas(128) T bs[2][32 * 64];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row0 = blockIdx.y * 64, column0 = blockIdx.x * 64;
    float sums[8][4] = {};
    auto fetch = [&](int step) {
        int stage = step % 2;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int part = threadIdx.x + 128 * i;
            dtm_copy_16(as[stage] + place_a(part / 4, part % 4), a + (dtm_i64)(row0 + part / 4) * k + step * 32 + part % 4 * 8, 16);
            dtm_copy_16(bs[stage] + place_b(part / 8, part % 8), b + (dtm_i64)(step * 32 + part / 8) * n + column0 + part % 8 * 8, 16);
        }
    };
    fetch(0);
    dtm_copy_commit();
    for (int step = 0; step < k / 32; step++) {
        if (step + 1 < k / 32) fetch(step + 1);
        dtm_copy_commit();
        dtm_copy_wait<1>();
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            dtm_u32 left[4];
            dtm_load_matrices(left, as[step % 2] + place_a(warp * 16 + lane % 16, half * 2 + lane / 16));
#pragma unroll
            for (int j = 0; j < 4; j++) {
                dtm_u32 right[4];
                dtm_load_transposed(right, bs[step % 2] + place_b(half * 16 + lane % 16, j * 2 + lane / 16));
                dtm_multiply<T>(sums[2 * j], left, right);
                dtm_multiply<T>(sums[2 * j + 1], left, right + 2);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            dtm_i64 row = row0 + warp * 16 + h * 8 + lane / 4;
            *(dtm_u32 *)(c + row * n + column0 + j * 8 + lane % 4 * 2) = dtm_pair<T>(sums[j][2 * h], sums[j][2 * h + 1]);
        }
}

extern "C" __global__ void __launch_bounds__(128) product_bf16(const dtm_bf16 *a, const dtm_bf16 *b, dtm_bf16 *c, int n, int k) { tile(a, b, c, n, k); }
extern "C" __global__ void __launch_bounds__(128) product_f16(const dtm_f16 *a, const dtm_f16 *b, dtm_f16 *c, int n, int k) { tile(a, b, c, n, k); }

/* One warp a tile of 16 x 8. */
extern "C" __global__ void __launch_bounds__(32) product_tf32(const float *a, const float *b, float *c, int n, int k) {
    int g = threadIdx.x / 4, t = threadIdx.x % 4, row = blockIdx.y * 16 + g, column = blockIdx.x * 8 + g;
    float sums[4] = {};
    for (int i = 0; i < k; i += 8) {
        dtm_u32 left[4], right[2];
#pragma unroll
        for (int j = 0; j < 4; j++) left[j] = dtm_tf32(a[(dtm_i64)(row + j % 2 * 8) * k + i + t + j / 2 * 4]);
#pragma unroll
        for (int j = 0; j < 2; j++) right[j] = dtm_tf32(b[(dtm_i64)(i + t + j * 4) * n + column]);
        dtm_multiply_tf32(sums, left, right);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) c[(dtm_i64)(row + j / 2 * 8) * n + blockIdx.x * 8 + t * 2 + j % 2] = sums[j];
}
