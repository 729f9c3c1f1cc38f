/* The gradient of rows taken from a table: out[r] = the sum of dy over the tokens whose row is r, in the order of the tokens.
 * Nothing is atomic, any number of tokens may have one id, and the sums are the same bits in every run. Two launches:
 *
 *     order   one block: rows of the tokens, and the tokens, sorted by row; tokens of a row keep their order. In scratch.
 *     sum     a thread W neighbours of a row of `out`: finds the row's tokens by bisection, and adds
 *
 *     scratch   2 * (rows u32[tokens], tokens u32[tokens]): the sort goes from one to the other
 */
#include "kernels/cuda/entry.cuh"

#ifndef DTM_CUDA_SCATTER
#define DTM_CUDA_SCATTER

/* A stable sort by four bits at a time; `bits` hold every row and, for tokens whose row is not held, the number behind the last. A
 * thread has a run of tokens of its own, so that their order is that of threads, and of each thread's run. */
template <int bits, int threads> struct dtm_scatter {
    static constexpr int digits = 16, passes = (bits + 3) / 4;

    static __device__ __forceinline__ dtm_u32 *rows_at(void *scratch, dtm_i64 tokens, int pass) { return (dtm_u32 *)scratch + pass % 2 * 2 * tokens; }

    /* counts[digits * threads], digit by digit, become the sums of all before them. All threads. */
    static __device__ __forceinline__ void sum_before(dtm_u32 *counts) {
        constexpr int warps = threads / 32;
        static_assert(threads % 32 == 0 && warps <= 32, "threads");
        __shared__ dtm_u32 of_warp[warps];
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        dtm_u32 own = 0;
#pragma unroll
        for (int i = 0; i < digits; i++) own += counts[threadIdx.x * digits + i];
        dtm_u32 sum = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            dtm_u32 before = __shfl_up_sync(dtm_all_lanes, sum, step);
            if (lane >= step) sum += before;
        }
        if (lane == 31) of_warp[warp] = sum;
        __syncthreads();
        sum -= own;
#pragma unroll
        for (int w = 0; w < warps; w++)
            if (w < warp) sum += of_warp[w];
#pragma unroll
        for (int i = 0; i < digits; i++) {
            dtm_u32 count = counts[threadIdx.x * digits + i];
            counts[threadIdx.x * digits + i] = sum;
            sum += count;
        }
    }

    /* row_at(token): its row, of so many; any other number: it is not held. One block. */
    template <class Row> static __device__ __forceinline__ void order(dtm_i64 tokens, dtm_i64 rows, void *scratch, const Row &row_at) {
        __shared__ dtm_u32 counts[digits * threads];
        dtm_i64 begin = tokens * threadIdx.x / threads, end = tokens * (threadIdx.x + 1) / threads;
        dtm_u32 *from = rows_at(scratch, tokens, 0);
#pragma unroll 1
        for (dtm_i64 t = begin; t < end; t++) {
            dtm_i64 row = row_at(t);
            from[t] = (dtm_u32)(row >= 0 && row < rows ? row : rows);
            from[tokens + t] = (dtm_u32)t;
        }
#pragma unroll 1
        for (int pass = 0; pass < passes; pass++) {
            from = rows_at(scratch, tokens, pass);
            dtm_u32 *to = rows_at(scratch, tokens, pass + 1);
#pragma unroll
            for (int i = 0; i < digits; i++) counts[i * threads + threadIdx.x] = 0;
#pragma unroll 1
            for (dtm_i64 t = begin; t < end; t++) counts[(from[t] >> 4 * pass & 15) * threads + threadIdx.x]++;
            __syncthreads();
            sum_before(counts);
            __syncthreads();
#pragma unroll 1
            for (dtm_i64 t = begin; t < end; t++) {
                dtm_u32 row = from[t], place = counts[(row >> 4 * pass & 15) * threads + threadIdx.x]++;
                to[place] = row;
                to[tokens + place] = from[tokens + t];
            }
            __syncthreads();
        }
    }

    /* The first token, in their order, of a row that is not before `row`. */
    static __device__ __forceinline__ dtm_i64 find(const dtm_u32 *sorted, dtm_i64 tokens, dtm_i64 row) {
        dtm_i64 low = 0, high = tokens;
        while (low < high) {
            dtm_i64 middle = (low + high) / 2;
            if ((dtm_i64)sorted[middle] < row)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }

    /* place(v, row, from, to): of vector v of `out` its row, and where it lies in out and, but for the token, in dy; dy_at(token):
     * what the token adds to that. Offsets in elements. */
    template <int W, class D, class T, class Place, class From>
    static __device__ __forceinline__ void sum(dtm_i64 tokens, const void *scratch, const D *dy, T *out, dtm_i64 vectors, const Place &place,
                                               const From &dy_at) {
        dtm_i64 v = (dtm_i64)blockIdx.x * blockDim.x + threadIdx.x;
        if (v >= vectors) return;
        const dtm_u32 *sorted = rows_at((void *)scratch, tokens, passes);
        dtm_i64 row, from, to;
        place(v, row, from, to);
        dtm_i64 begin = find(sorted, tokens, row), end = find(sorted, tokens, row + 1);
        float sums[W] = {};
#pragma unroll 4
        for (dtm_i64 i = begin; i < end; i++) {
            float x[W];
            dtm_load<W>(x, dy + from + dy_at((dtm_i64)sorted[tokens + i]));
#pragma unroll
            for (int w = 0; w < W; w++) sums[w] += x[w];
        }
        constexpr int each = sizeof(T) * W > 16 ? 16 / sizeof(T) : W;
#pragma unroll
        for (int w = 0; w < W; w += each) dtm_store<each>(out + to + w, sums + w);
    }
};

#endif
