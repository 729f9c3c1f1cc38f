/* Attention, forward and backward, in f32 whatever the storage, for any layout and any width up to 256: o = softmax(scale q k) v by
 * blocks, with the online softmax of FlashAttention (Dao et al., 2022), never a matrix of queries by keys. Tensors, positions and
 * heads are as kernels/cpu/attention.h says, and so are the sizes. Scores are in units of log2: exp2 is what the hardware has.
 *
 *     forward   a block of 256 threads a tile of 64 queries of a head, over the keys in tiles of 64
 *     delta     a warp a query: the sum of do o
 *     keys      a block a tile of 64 keys and up to 128 columns of dk and of dv, over the heads of the group and their queries
 *     queries   a block a tile of 64 queries, over the keys: dq
 *
 * Backward computes scores twice so that all sums are of one block each, in a fixed order. Tiles that the mask hides are skipped. */
#include "kernels/cuda/tile.cuh"

#ifndef DTM_CUDA_ATTENTION
#define DTM_CUDA_ATTENTION

struct dtm_attention_strides {
    dtm_i64 b, s, h, w;
};

/* As kernels/cpu/sizes.h; beside those the steps along the width. */
struct dtm_attention_sizes {
    dtm_i64 batch, heads, kv_heads, queries, keys, width, v_width;
    dtm_i64 causal, window;
    dtm_i64 ratio, head_offset, kv_offset;
    dtm_i64 queries_total, keys_total, q_offset, k_offset;
    dtm_attention_strides q, k, v, o, lse;
    dtm_attention_strides d_o, dq, dk, dv;
};

/* The local keys [low, high) that local query i sees; both grow with i. */
struct dtm_attention_range {
    dtm_i64 low, high;
};

DTM_DEVICE dtm_i64 dtm_least(dtm_i64 a, dtm_i64 b) { return a < b ? a : b; }
DTM_DEVICE dtm_i64 dtm_most(dtm_i64 a, dtm_i64 b) { return a > b ? a : b; }

DTM_DEVICE dtm_attention_range dtm_attention_seen(const dtm_attention_sizes &s, dtm_i64 i) {
    if (!s.causal && s.window <= 0) return {0, s.keys};
    dtm_i64 after = i + s.q_offset + s.keys_total - s.queries_total - s.k_offset + 1;
    return {s.window > 0 ? dtm_least(dtm_most(0, after - s.window), s.keys) : 0, dtm_most(0, dtm_least(after, s.keys))};
}

/* Which tile of a head a block has; the heaviest of a causal mask come first. */
struct dtm_attention_block {
    dtm_i64 b, h, first;
};
DTM_DEVICE dtm_attention_block dtm_attention_block_of(dtm_i64 block, dtm_i64 heads, dtm_i64 length, int tile) {
    dtm_i64 tiles = (length + tile - 1) / tile, head = block / tiles;
    return {head / heads, head % heads, (tiles - 1 - block % tiles) * tile};
}
DTM_DEVICE dtm_i64 dtm_attention_kv_head(const dtm_attention_sizes &s, dtm_i64 h) { return (h + s.head_offset) / s.ratio - s.kv_offset; }

/* Rows [first, first + rows) of one head of a tensor; zeros outside. */
template <class T> struct dtm_attention_rows {
    const T *at;
    int rows, width;
    dtm_i64 s, w;
    __device__ __forceinline__ float operator()(int row, int column) const {
        return row < rows && column < width ? dtm_load_f32(at[row * s + column * w]) : 0.f;
    }
};
template <class T>
DTM_DEVICE dtm_attention_rows<T> dtm_attention_rows_of(const T *at, const dtm_attention_strides &z, dtm_i64 b, dtm_i64 h, dtm_i64 first, dtm_i64 length,
                                                       dtm_i64 width) {
    return {at + b * z.b + h * z.h + first * z.s, (int)dtm_least(length - first, 64), (int)width, z.s, z.w};
}

/* Over the 16 threads that share rows of a tile. */
template <class Op> DTM_DEVICE float dtm_attention_reduce(float x) {
#pragma unroll
    for (int step = 8; step; step /= 2) x = Op::join(x, __shfl_xor_sync(dtm_all_lanes, x, step));
    return x;
}

struct dtm_attention_shared {
    dtm_tile tile;
    alignas(16) dtm_tile_made made;
};

/* What of a tile is seen: of row r the columns [low + slope r, high + slope r), up to `count`. */
struct dtm_attention_band {
    int low, high, slope, count;
};
DTM_DEVICE dtm_attention_band dtm_attention_band_of(const dtm_attention_sizes &s, dtm_i64 query, dtm_i64 key) {
    int count = (int)dtm_least(s.keys - key, 64);
    if (!s.causal && s.window <= 0) return {0, count, 0, count};
    dtm_i64 after = query + s.q_offset + s.keys_total - s.queries_total - s.k_offset + 1 - key;
    return {s.window > 0 ? (int)dtm_most(dtm_least(after - s.window, 64), -64) : -64, (int)dtm_most(dtm_least(after, 64), -64), 1, count};
}

/* c[row][column] becomes the score, -inf where the query does not see the key. */
DTM_DEVICE void dtm_attention_mask(float c[4][4], dtm_attention_band band, float scale) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = dtm_tile_row() + i, low = band.low + band.slope * row, high = band.high + band.slope * row;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int column = dtm_tile_column() + j;
            c[i][j] = column >= low && column < high && column < band.count ? c[i][j] * scale : -dtm_infinity();
        }
    }
}

/* parts: of 64 columns of o. scale is that of scores, in units of log2. */
template <int parts, class Q, class K, class V, class O>
DTM_DEVICE void dtm_attention_forward(const dtm_attention_sizes &s, float scale, const Q *q, const K *k, const V *v, O *o, float *lse, dtm_i64 block,
                                      dtm_attention_shared &shared) {
    dtm_attention_block at = dtm_attention_block_of(block, s.heads, s.queries, 64);
    dtm_i64 g = dtm_attention_kv_head(s, at.h);
    dtm_attention_rows<Q> queries = dtm_attention_rows_of(q, s.q, at.b, at.h, at.first, s.queries, s.width);
    float sums[parts][4][4] = {}, top[4], sum[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) top[i] = -dtm_infinity();
    dtm_i64 low = dtm_attention_seen(s, at.first).low / 64 * 64, high = dtm_attention_seen(s, dtm_least(at.first + 64, s.queries) - 1).high;
#pragma unroll 1
    for (dtm_i64 j = low; j < high; j += 64) {
        dtm_attention_rows<K> keys = dtm_attention_rows_of(k, s.k, at.b, g, j, s.keys, s.width);
        dtm_attention_rows<V> values = dtm_attention_rows_of(v, s.v, at.b, g, j, s.keys, s.v_width);
        float c[4][4] = {};
        dtm_tile_multiply(c, s.width, shared.tile, queries, true, [&](int w, int key) { return keys(key, w); }, true);
        dtm_attention_mask(c, dtm_attention_band_of(s, at.first, j), scale);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float most = dtm_attention_reduce<dtm_maximum>(dtm_max(dtm_max(c[i][0], c[i][1]), dtm_max(c[i][2], c[i][3])));
            most = dtm_max(most, top[i]);
            float base = most == -dtm_infinity() ? 0.f : most, keep = dtm_exp2(top[i] - base);
            top[i] = most;
            sum[i] *= keep;
#pragma unroll
            for (int n = 0; n < 4; n++) c[i][n] = dtm_exp2(c[i][n] - base), sum[i] += c[i][n];
#pragma unroll
            for (int part = 0; part < parts; part++)
#pragma unroll
                for (int n = 0; n < 4; n++) sums[part][i][n] *= keep;
        }
        __syncthreads(); /* the last values have been added */
#pragma unroll
        for (int n = 0; n < 4; n++)
            *(float4 *)&shared.made[dtm_tile_column() + n][dtm_tile_row()] = make_float4(c[0][n], c[1][n], c[2][n], c[3][n]);
#pragma unroll
        for (int part = 0; part < parts; part++)
            dtm_tile_multiply_made(sums[part], shared.made, shared.tile, [&](int key, int column) { return values(key, part * 64 + column); }, false);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        dtm_i64 row = at.first + dtm_tile_row() + i;
        float whole = dtm_attention_reduce<dtm_sum>(sum[i]), factor = whole == 0 ? 0.f : 1.f / whole;
        if (row >= s.queries) continue;
        O *to = o + at.b * s.o.b + at.h * s.o.h + row * s.o.s;
#pragma unroll
        for (int part = 0; part < parts; part++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                int column = part * 64 + dtm_tile_column() + n;
                if (column < s.v_width) to[column * s.o.w] = dtm_store_f32<O>(sums[part][i][n] * factor);
            }
        if (dtm_tile_column() == 0)
            lse[at.b * s.lse.b + at.h * s.lse.h + row * s.lse.s] = whole == 0 ? -dtm_infinity() : dtm_ln_2 * (top[i] + dtm_log2(whole));
    }
}

/* delta[(b * heads + h) * queries + i]. */
template <class O, class D> DTM_DEVICE void dtm_attention_delta(const dtm_attention_sizes &s, const O *o, const D *d_o, float *delta, dtm_i64 warp) {
    if (warp >= s.batch * s.heads * s.queries) return;
    dtm_i64 i = warp % s.queries, h = warp / s.queries % s.heads, b = warp / s.queries / s.heads;
    o += b * s.o.b + h * s.o.h + i * s.o.s;
    d_o += b * s.d_o.b + h * s.d_o.h + i * s.d_o.s;
    float sum = 0;
#pragma unroll 1
    for (int w = threadIdx.x % 32; w < s.v_width; w += 32) sum = fmaf(dtm_load_f32(o[w * s.o.w]), dtm_load_f32(d_o[w * s.d_o.w]), sum);
    sum = dtm_warp_reduce<dtm_sum>(sum);
    if (threadIdx.x % 32 == 0) delta[warp] = sum;
}

/* Of a tile of queries and a tile of keys p and ds; `unit` is the scale itself. */
template <class Q, class K, class V, class D>
DTM_DEVICE void dtm_attention_slopes(float p[4][4], float ds[4][4], const dtm_attention_sizes &s, float scale, float unit, dtm_i64 b, dtm_i64 h, dtm_i64 query,
                                     dtm_i64 key, const dtm_attention_rows<Q> &queries, const dtm_attention_rows<K> &keys,
                                     const dtm_attention_rows<V> &values, const dtm_attention_rows<D> &d_o, const float *lse, const float *delta,
                                     dtm_attention_shared &shared) {
    dtm_tile_multiply(p, s.width, shared.tile, queries, true, [&](int w, int j) { return keys(j, w); }, true);
    dtm_tile_multiply(ds, s.v_width, shared.tile, d_o, true, [&](int w, int j) { return values(j, w); }, true);
    dtm_attention_mask(p, dtm_attention_band_of(s, query, key), scale);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        dtm_i64 row = query + dtm_tile_row() + i;
        float log = 0, less = 0;
        if (row < s.queries) log = lse[b * s.lse.b + h * s.lse.h + row * s.lse.s] * dtm_log2_e, less = delta[(b * s.heads + h) * s.queries + row];
        if (log == -dtm_infinity()) log = 0; /* all scores are -inf */
#pragma unroll
        for (int n = 0; n < 4; n++) {
            bool hidden = p[i][n] == -dtm_infinity() || row >= s.queries;
            p[i][n] = hidden ? 0.f : dtm_exp2(p[i][n] - log);
            ds[i][n] = hidden ? 0.f : unit * p[i][n] * (ds[i][n] - less);
        }
    }
}

/* How many blocks a tile of keys has, each with up to 128 columns of dk and dv. */
DTM_DEVICE int dtm_attention_shares(int width, int v_width) { return ((width > v_width ? width : v_width) + 127) / 128; }

/* parts: of 64 columns of a share, 1 or 2. */
template <int parts, class Q, class K, class V, class D, class DK, class DV>
DTM_DEVICE void dtm_attention_keys(const dtm_attention_sizes &s, float scale, float unit, const Q *q, const K *k, const V *v, const D *d_o, const float *lse,
                                   const float *delta, DK *dk, DV *dv, dtm_i64 block, dtm_attention_shared &shared) {
    int shares = dtm_attention_shares((int)s.width, (int)s.v_width), share = (int)(block % shares) * 128;
    dtm_attention_block at = dtm_attention_block_of(block / shares, s.kv_heads, s.keys, 64);
    dtm_attention_rows<K> keys = dtm_attention_rows_of(k, s.k, at.b, at.h, at.first, s.keys, s.width);
    dtm_attention_rows<V> values = dtm_attention_rows_of(v, s.v, at.b, at.h, at.first, s.keys, s.v_width);
    dtm_i64 h = dtm_most(0, (at.h + s.kv_offset) * s.ratio - s.head_offset);
    dtm_i64 end = dtm_least(s.heads, (at.h + s.kv_offset + 1) * s.ratio - s.head_offset);
    float k_sums[parts][4][4] = {}, v_sums[parts][4][4] = {};
#pragma unroll 1
    for (; h < end; h++)
#pragma unroll 1
        for (dtm_i64 i = 0; i < s.queries; i += 64) {
            if (dtm_attention_seen(s, i).low >= at.first + 64 || dtm_attention_seen(s, dtm_least(i + 64, s.queries) - 1).high <= at.first) continue;
            dtm_attention_rows<Q> queries = dtm_attention_rows_of(q, s.q, at.b, h, i, s.queries, s.width);
            dtm_attention_rows<D> d_os = dtm_attention_rows_of(d_o, s.d_o, at.b, h, i, s.queries, s.v_width);
            float p[4][4] = {}, ds[4][4] = {};
            dtm_attention_slopes(p, ds, s, scale, unit, at.b, h, i, at.first, queries, keys, values, d_os, lse, delta, shared);
            __syncthreads();
#pragma unroll
            for (int n = 0; n < 4; n++)
                *(float4 *)&shared.made[dtm_tile_row() + n][dtm_tile_column()] = make_float4(p[n][0], p[n][1], p[n][2], p[n][3]);
#pragma unroll
            for (int part = 0; part < parts; part++)
                dtm_tile_multiply_made(v_sums[part], shared.made, shared.tile, [&](int row, int column) { return d_os(row, share + part * 64 + column); }, false);
            __syncthreads();
#pragma unroll
            for (int n = 0; n < 4; n++)
                *(float4 *)&shared.made[dtm_tile_row() + n][dtm_tile_column()] = make_float4(ds[n][0], ds[n][1], ds[n][2], ds[n][3]);
#pragma unroll
            for (int part = 0; part < parts; part++)
                dtm_tile_multiply_made(k_sums[part], shared.made, shared.tile, [&](int row, int column) { return queries(row, share + part * 64 + column); }, false);
        }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        dtm_i64 row = at.first + dtm_tile_row() + i;
        if (row >= s.keys) continue;
#pragma unroll
        for (int part = 0; part < parts; part++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                int column = share + part * 64 + dtm_tile_column() + n;
                if (column < s.width) dk[at.b * s.dk.b + at.h * s.dk.h + row * s.dk.s + column * s.dk.w] = dtm_store_f32<DK>(k_sums[part][i][n]);
                if (column < s.v_width) dv[at.b * s.dv.b + at.h * s.dv.h + row * s.dv.s + column * s.dv.w] = dtm_store_f32<DV>(v_sums[part][i][n]);
            }
    }
}

/* parts: of 64 columns of dq. */
template <int parts, class Q, class K, class V, class D, class DQ>
DTM_DEVICE void dtm_attention_queries(const dtm_attention_sizes &s, float scale, float unit, const Q *q, const K *k, const V *v, const D *d_o, const float *lse,
                                      const float *delta, DQ *dq, dtm_i64 block, dtm_attention_shared &shared) {
    dtm_attention_block at = dtm_attention_block_of(block, s.heads, s.queries, 64);
    dtm_i64 g = dtm_attention_kv_head(s, at.h);
    dtm_attention_rows<Q> queries = dtm_attention_rows_of(q, s.q, at.b, at.h, at.first, s.queries, s.width);
    dtm_attention_rows<D> d_os = dtm_attention_rows_of(d_o, s.d_o, at.b, at.h, at.first, s.queries, s.v_width);
    float sums[parts][4][4] = {};
    dtm_i64 low = dtm_attention_seen(s, at.first).low / 64 * 64, high = dtm_attention_seen(s, dtm_least(at.first + 64, s.queries) - 1).high;
#pragma unroll 1
    for (dtm_i64 j = low; j < high; j += 64) {
        dtm_attention_rows<K> keys = dtm_attention_rows_of(k, s.k, at.b, g, j, s.keys, s.width);
        dtm_attention_rows<V> values = dtm_attention_rows_of(v, s.v, at.b, g, j, s.keys, s.v_width);
        float p[4][4] = {}, ds[4][4] = {};
        dtm_attention_slopes(p, ds, s, scale, unit, at.b, at.h, at.first, j, queries, keys, values, d_os, lse, delta, shared);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < 4; n++)
            *(float4 *)&shared.made[dtm_tile_column() + n][dtm_tile_row()] = make_float4(ds[0][n], ds[1][n], ds[2][n], ds[3][n]);
#pragma unroll
        for (int part = 0; part < parts; part++)
            dtm_tile_multiply_made(sums[part], shared.made, shared.tile, [&](int key, int column) { return keys(key, part * 64 + column); }, false);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        dtm_i64 row = at.first + dtm_tile_row() + i;
        if (row >= s.queries) continue;
#pragma unroll
        for (int part = 0; part < parts; part++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                int column = part * 64 + dtm_tile_column() + n;
                if (column < s.width) dq[at.b * s.dq.b + at.h * s.dq.h + row * s.dq.s + column * s.dq.w] = dtm_store_f32<DQ>(sums[part][i][n]);
            }
    }
}

#endif
