/* Attention of bf16 or f16 by the tensor cores (mma m16n8k16, sums in f32), forward and backward, in the shape of FlashAttention-2
 * (Dao, 2023). Sizes, masks and the split of backward are those of attention.cuh, which serves where this cannot: here all tensors
 * have one type, rows begin at multiples of 16 bytes, and widths are multiples of 8.
 *
 * A block of four warps has 64 rows, a warp 16 of them: queries, or in `keys` keys. It goes over the other side in steps that are
 * copied to shared memory one ahead. Scores never leave the registers: what a product leaves in a lane is what the next takes.
 *
 *     shared memory, rows of `width` elements and 8 more, so that eight rows lie in different banks:
 *         own rows [64], of one tensor or two      stage 0 [step], of two tensors      stage 1
 */
#include "kernels/cuda/attention.cuh"

#ifndef DTM_CUDA_ATTENTION_HALVES
#define DTM_CUDA_ATTENTION_HALVES

/* c[16, 16 n] += a[16, width] b[16 n, width]', of rows in shared memory. */
template <class T, int width, int n> DTM_DEVICE void dtm_rows_by_rows(float c[2 * n][4], const T *a, const T *b) {
    int lane = threadIdx.x % 32;
    a += lane % 16 * (width + 8) + lane / 16 * 8;
    b += (lane % 8 + lane / 16 * 8) * (width + 8) + lane / 8 % 2 * 8;
#pragma unroll 8
    for (int k = 0; k < width; k += 16) {
        dtm_u32 left[4];
        dtm_load_matrices(left, a + k);
#pragma unroll
        for (int j = 0; j < n; j++) {
            dtm_u32 right[4];
            dtm_load_matrices(right, b + j * 16 * (width + 8) + k);
            dtm_multiply<T>(c[2 * j], left, right);
            dtm_multiply<T>(c[2 * j + 1], left, right + 2);
        }
    }
}

/* c[16, columns] += p[16, 16 n] b[16 n, columns]: p as products leave it, rounded; b rows in shared memory, `width` + 8 apart. */
template <class T, int width, int columns, int n> DTM_DEVICE void dtm_made_by_rows(float c[columns / 8][4], const float p[2 * n][4], const T *b) {
    int lane = threadIdx.x % 32;
    b += lane % 16 * (width + 8) + lane / 16 * 8;
#pragma unroll
    for (int j = 0; j < n; j++) {
        dtm_u32 left[4] = {dtm_pair<T>(p[2 * j][0], p[2 * j][1]), dtm_pair<T>(p[2 * j][2], p[2 * j][3]), dtm_pair<T>(p[2 * j + 1][0], p[2 * j + 1][1]),
                           dtm_pair<T>(p[2 * j + 1][2], p[2 * j + 1][3])};
#pragma unroll
        for (int d = 0; d < columns / 16; d++) {
            dtm_u32 right[4];
            dtm_load_transposed(right, b + j * 16 * (width + 8) + d * 16);
            dtm_multiply<T>(c[2 * d], left, right);
            dtm_multiply<T>(c[2 * d + 1], left, right + 2);
        }
    }
}

/* width, v_width: those of the tensors or more, multiples of 16, and of 32 if one is more than 128. */
template <class T, int width, int v_width> struct dtm_attention_halves {
    static constexpr int threads = 128, rows = 64, wider = width > v_width ? width : v_width;
    static constexpr int step = wider > 128 ? 32 : 64, back = wider > 64 ? 32 : 64; /* rows of a stage, in forward and in backward */
    static constexpr int shares = wider > 128 ? 2 : 1, columns = width / shares, v_columns = v_width / shares;
    static_assert(width % (16 * shares) == 0 && v_width % (16 * shares) == 0, "widths");
    static constexpr int row = width + 8, v_row = v_width + 8, both = row + v_row; /* elements */
    static constexpr int forward_bytes = (rows * row + 2 * step * both) * 2, backward_bytes = (rows + 2 * back) * both * 2;

    /* n rows of a head from `first` on, zeros for what is not there. */
    template <int n, int padded> static __device__ __forceinline__ void fetch(T *to, const T *from, const dtm_attention_strides &z, dtm_i64 b, dtm_i64 h, dtm_i64 first,
                                                                                dtm_i64 length, dtm_i64 there) {
        constexpr int parts = padded / 8;
        int count = (int)dtm_least(length - first, n);
        from += b * z.b + h * z.h + first * z.s;
#pragma unroll 4
        for (int i = threadIdx.x; i < n * parts; i += threads) {
            int r = i / parts, c = i % parts * 8;
            bool is = r < count && c < there;
            dtm_copy_16(to + r * (padded + 8) + c, from + (is ? r * z.s + c : 0), is ? 16 : 0);
        }
    }

    /* Rows g and g + 8 of 16, in pairs of neighbours. */
    template <int n> static __device__ __forceinline__ void put(T *to, const dtm_attention_strides &z, dtm_i64 b, dtm_i64 h, dtm_i64 first, dtm_i64 length, int begin,
                                                                dtm_i64 there, const float sums[n / 8][4], float low, float high) {
        int lane = threadIdx.x % 32;
        to += b * z.b + h * z.h;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            dtm_i64 at = first + lane / 4 + half * 8;
            float factor = half ? high : low;
            if (at < length)
#pragma unroll
                for (int d = 0; d < n / 8; d++) {
                    int column = begin + d * 8 + lane % 4 * 2;
                    if (column < there) *(dtm_u32 *)(to + at * z.s + column) = dtm_pair<T>(sums[d][2 * half] * factor, sums[d][2 * half + 1] * factor);
                }
        }
    }

    /* A number of a warp's row: over the four lanes that share it. */
    template <class Op> static __device__ __forceinline__ float over_row(float x) {
        x = Op::join(x, __shfl_xor_sync(dtm_all_lanes, x, 1));
        return Op::join(x, __shfl_xor_sync(dtm_all_lanes, x, 2));
    }

    static __device__ __forceinline__ void forward(const dtm_attention_sizes &s, float scale, const T *q, const T *k, const T *v, T *o, float *lse, dtm_i64 block, T *shared) {
        dtm_attention_block at = dtm_attention_block_of(block, s.heads, s.queries, rows);
        dtm_i64 g = dtm_attention_kv_head(s, at.h);
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        T *qs = shared, *stages = shared + rows * row;
        dtm_i64 low = dtm_attention_seen(s, at.first).low / step * step, high = dtm_attention_seen(s, dtm_least(at.first + rows, s.queries) - 1).high;
        auto ahead = [&](dtm_i64 j) {
            T *stage = stages + (j / step % 2) * step * both;
            fetch<step, width>(stage, k, s.k, at.b, g, j, s.keys, s.width);
            fetch<step, v_width>(stage + step * row, v, s.v, at.b, g, j, s.keys, s.v_width);
        };
        float sums[v_width / 8][4] = {}, top[2] = {-dtm_infinity(), -dtm_infinity()}, sum[2] = {};
        fetch<rows, width>(qs, q, s.q, at.b, at.h, at.first, s.queries, s.width);
        if (low < high) ahead(low);
        dtm_copy_commit();
#pragma unroll 1
        for (dtm_i64 j = low; j < high; j += step) {
            const T *stage = stages + (j / step % 2) * step * both;
            if (j + step < high) ahead(j + step);
            dtm_copy_commit();
            dtm_copy_wait<1>();
            __syncthreads();
            float c[step / 8][4] = {};
            dtm_rows_by_rows<T, width, step / 16>(c, qs + warp * 16 * row, stage);
            dtm_attention_band band = dtm_attention_band_of(s, at.first, j);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int r = warp * 16 + lane / 4 + half * 8, from = band.low + band.slope * r, to = band.high + band.slope * r;
                if (to > band.count) to = band.count;
                float most = -dtm_infinity();
#pragma unroll
                for (int n = 0; n < step / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        int key = n * 8 + lane % 4 * 2 + e;
                        float &x = c[n][2 * half + e];
                        x = key >= from && key < to ? x * scale : -dtm_infinity();
                        most = dtm_max(most, x);
                    }
                most = dtm_max(over_row<dtm_maximum>(most), top[half]);
                float base = most == -dtm_infinity() ? 0.f : most, keep = dtm_exp2(top[half] - base);
                top[half] = most;
                sum[half] *= keep;
#pragma unroll
                for (int n = 0; n < step / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &x = c[n][2 * half + e];
                        x = dtm_exp2(x - base);
                        sum[half] += x;
                    }
#pragma unroll
                for (int d = 0; d < v_width / 8; d++) sums[d][2 * half] *= keep, sums[d][2 * half + 1] *= keep;
            }
            dtm_made_by_rows<T, v_width, v_width, step / 16>(sums, c, stage + step * row);
            __syncthreads(); /* the stage is free */
        }
        dtm_copy_wait<0>();
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            dtm_i64 i = at.first + warp * 16 + lane / 4 + half * 8;
            float whole = over_row<dtm_sum>(sum[half]);
            factor[half] = whole == 0 ? 0.f : 1.f / whole;
            if (lane % 4 == 0 && i < s.queries)
                lse[at.b * s.lse.b + at.h * s.lse.h + i * s.lse.s] = whole == 0 ? -dtm_infinity() : dtm_ln_2 * (top[half] + dtm_log2(whole));
        }
        put<v_width>(o, s.o, at.b, at.h, at.first + warp * 16, s.queries, 0, s.v_width, sums, factor[0], factor[1]);
    }

    /* p and ds of 32 columns, from scores and from do v; log, less: those of the query. */
    static __device__ __forceinline__ void slope(float &p, float &ds, bool seen, float scale, float unit, float log, float less) {
        float x = p * scale;
        bool hidden = !seen || x == -dtm_infinity();
        p = hidden ? 0.f : dtm_exp2(x - log);
        ds = hidden ? 0.f : unit * p * (ds - less);
    }

    /* A query's log of the sum of exp in units of log2, and its delta; zeros beyond the last. */
    static __device__ __forceinline__ void of_query(const dtm_attention_sizes &s, dtm_i64 b, dtm_i64 h, dtm_i64 i, const float *lse, const float *delta, float &log, float &less) {
        log = less = 0;
        if (i >= s.queries) return;
        log = lse[b * s.lse.b + h * s.lse.h + i * s.lse.s] * dtm_log2_e;
        less = delta[(b * s.heads + h) * s.queries + i];
        if (log == -dtm_infinity()) log = 0; /* all scores are -inf */
    }

    /* dk and dv of 64 keys, and of a share of their columns. */
    static __device__ __forceinline__ void keys(const dtm_attention_sizes &s, float scale, float unit, const T *q, const T *k, const T *v, const T *d_o, const float *lse,
                                                const float *delta, T *dk, T *dv, dtm_i64 block, T *shared) {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32, share = (int)(block % shares);
        dtm_attention_block at = dtm_attention_block_of(block / shares, s.kv_heads, s.keys, rows);
        T *ks = shared, *vs = shared + rows * row, *stages = shared + rows * both;
        dtm_i64 begin = dtm_most(0, (at.h + s.kv_offset) * s.ratio - s.head_offset);
        dtm_i64 end = dtm_least(s.heads, (at.h + s.kv_offset + 1) * s.ratio - s.head_offset);
        dtm_i64 tiles = (s.queries + back - 1) / back, all = (end - begin) * tiles;
        /* Steps go over the heads of the group and the tiles of queries that see a key of the block. */
        auto next = [&](dtm_i64 n) {
            for (; n < all; n++) {
                dtm_i64 i = n % tiles * back;
                if (dtm_attention_seen(s, i).low < at.first + rows && dtm_attention_seen(s, dtm_least(i + back, s.queries) - 1).high > at.first) break;
            }
            return n;
        };
        auto ahead = [&](dtm_i64 n, int turn) {
            T *stage = stages + turn * back * both;
            fetch<back, width>(stage, q, s.q, at.b, begin + n / tiles, n % tiles * back, s.queries, s.width);
            fetch<back, v_width>(stage + back * row, d_o, s.d_o, at.b, begin + n / tiles, n % tiles * back, s.queries, s.v_width);
        };
        float k_sums[columns / 8][4] = {}, v_sums[v_columns / 8][4] = {};
        fetch<rows, width>(ks, k, s.k, at.b, at.h, at.first, s.keys, s.width);
        fetch<rows, v_width>(vs, v, s.v, at.b, at.h, at.first, s.keys, s.v_width);
        dtm_i64 n = next(0);
        if (n < all) ahead(n, 0);
        dtm_copy_commit();
#pragma unroll 1
        for (int turn = 0; n < all; turn ^= 1) {
            dtm_i64 then = next(n + 1), h = begin + n / tiles, i = n % tiles * back;
            const T *stage = stages + turn * back * both;
            if (then < all) ahead(then, turn ^ 1);
            dtm_copy_commit();
            dtm_copy_wait<1>();
            __syncthreads();
            dtm_attention_band band = dtm_attention_band_of(s, i, at.first);
#pragma unroll 1
            for (int first = 0; first < back; first += 32) { /* 32 queries: columns */
                const T *qs = stage + first * row, *d_os = stage + back * row + first * v_row;
                float p[4][4] = {}, ds[4][4] = {};
                dtm_rows_by_rows<T, width, 2>(p, ks + warp * 16 * row, qs);
                dtm_rows_by_rows<T, v_width, 2>(ds, vs + warp * 16 * v_row, d_os);
#pragma unroll
                for (int c = 0; c < 4; c++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        int query = first + c * 8 + lane % 4 * 2 + e, from = band.low + band.slope * query, to = band.high + band.slope * query;
                        float log, less;
                        of_query(s, at.b, h, i + query, lse, delta, log, less);
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            int key = warp * 16 + lane / 4 + half * 8;
                            slope(p[c][2 * half + e], ds[c][2 * half + e], key >= from && key < to && key < band.count && i + query < s.queries, scale, unit, log, less);
                        }
                    }
                dtm_made_by_rows<T, v_width, v_columns, 2>(v_sums, p, d_os + share * v_columns);
                dtm_made_by_rows<T, width, columns, 2>(k_sums, ds, qs + share * columns);
            }
            __syncthreads();
            n = then;
        }
        dtm_copy_wait<0>();
        put<columns>(dk, s.dk, at.b, at.h, at.first + warp * 16, s.keys, share * columns, s.width, k_sums, 1.f, 1.f);
        put<v_columns>(dv, s.dv, at.b, at.h, at.first + warp * 16, s.keys, share * v_columns, s.v_width, v_sums, 1.f, 1.f);
    }

    /* dq of 64 queries. */
    static __device__ __forceinline__ void queries(const dtm_attention_sizes &s, float scale, float unit, const T *q, const T *k, const T *v, const T *d_o, const float *lse,
                                                   const float *delta, T *dq, dtm_i64 block, T *shared) {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        dtm_attention_block at = dtm_attention_block_of(block, s.heads, s.queries, rows);
        dtm_i64 g = dtm_attention_kv_head(s, at.h);
        T *qs = shared, *d_os = shared + rows * row, *stages = shared + rows * both;
        dtm_i64 low = dtm_attention_seen(s, at.first).low / back * back, high = dtm_attention_seen(s, dtm_least(at.first + rows, s.queries) - 1).high;
        auto ahead = [&](dtm_i64 j) {
            T *stage = stages + (j / back % 2) * back * both;
            fetch<back, width>(stage, k, s.k, at.b, g, j, s.keys, s.width);
            fetch<back, v_width>(stage + back * row, v, s.v, at.b, g, j, s.keys, s.v_width);
        };
        float sums[width / 8][4] = {}, log[2], less[2];
#pragma unroll
        for (int half = 0; half < 2; half++) of_query(s, at.b, at.h, at.first + warp * 16 + lane / 4 + half * 8, lse, delta, log[half], less[half]);
        fetch<rows, width>(qs, q, s.q, at.b, at.h, at.first, s.queries, s.width);
        fetch<rows, v_width>(d_os, d_o, s.d_o, at.b, at.h, at.first, s.queries, s.v_width);
        if (low < high) ahead(low);
        dtm_copy_commit();
#pragma unroll 1
        for (dtm_i64 j = low; j < high; j += back) {
            const T *stage = stages + (j / back % 2) * back * both;
            if (j + back < high) ahead(j + back);
            dtm_copy_commit();
            dtm_copy_wait<1>();
            __syncthreads();
            dtm_attention_band band = dtm_attention_band_of(s, at.first, j);
#pragma unroll 1
            for (int first = 0; first < back; first += 32) {
                const T *ks = stage + first * row, *vs = stage + back * row + first * v_row;
                float p[4][4] = {}, ds[4][4] = {};
                dtm_rows_by_rows<T, width, 2>(p, qs + warp * 16 * row, ks);
                dtm_rows_by_rows<T, v_width, 2>(ds, d_os + warp * 16 * v_row, vs);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int r = warp * 16 + lane / 4 + half * 8, from = band.low + band.slope * r, to = band.high + band.slope * r;
#pragma unroll
                    for (int c = 0; c < 4; c++)
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            int key = first + c * 8 + lane % 4 * 2 + e;
                            slope(p[c][2 * half + e], ds[c][2 * half + e], key >= from && key < to && key < band.count, scale, unit, log[half], less[half]);
                        }
                }
                dtm_made_by_rows<T, width, width, 2>(sums, ds, ks);
            }
            __syncthreads();
        }
        dtm_copy_wait<0>();
        put<width>(dq, s.dq, at.b, at.h, at.first + warp * 16, s.queries, 0, s.width, sums, 1.f, 1.f);
    }
};

#endif
