/* What attention's two directions share: which keys a query sees, the exponential, and products over the seen part of a
 * block of scores. */
#ifndef DTM_KERNELS_CPU_ATTENTION_BLOCKS_H
#define DTM_KERNELS_CPU_ATTENTION_BLOCKS_H

#include "kernels/cpu/prelude.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/sizes.h"
#include "kernels/kernel.h"

DTM_INLINE const dtm_attention_sizes *dtm_attention_sizes_of(const int64_t *sizes) {
    return (const dtm_attention_sizes *)(const void *)sizes;
}

/* The local keys [low, high) that local query i sees; both grow with i. */
typedef struct dtm_attention_range {
    int64_t low, high;
} dtm_attention_range;

DTM_INLINE dtm_attention_range dtm_attention_seen(const dtm_attention_sizes *z, int64_t i) {
    dtm_attention_range r = {0, z->keys};
    if (!z->causal && z->window <= 0) return r;
    const int64_t after = i + z->q_offset + z->keys_total - z->queries_total - z->k_offset + 1;
    r.high = DTM_MAX(0, DTM_MIN(after, z->keys));
    if (z->window > 0) r.low = DTM_MIN(DTM_MAX(0, after - z->window), z->keys);
    return r;
}

/* Exponential of x <= 0 or NaN; as dtm_exp, but that below the normal range 2^n is taken for 0. */
DTM_INLINE dtm_vec dtm_attention_exp(dtm_vec x) {
    const dtm_vec low = dtm_splat(-88.0f); /* n = -127 */
    const dtm_vec bounded = dtm_select(low > x, low, x);
    const dtm_vec shifted = bounded * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    dtm_vec r = bounded - n * 0.693145752f;
    r = r - n * 1.42860677e-6f;
    dtm_vec p = dtm_splat(1.37805939e-3f);
    p = p * r + 8.37312452e-3f;
    p = p * r + 4.16695364e-2f;
    p = p * r + 1.66664720e-1f;
    p = p * r + 4.99999851e-1f;
    p = p * (r * r) + r;
    const dtm_vec power = (dtm_vec)(((dtm_vec_int)shifted - (0x4B400000 - 127)) << 23);
    return (p + 1.0f) * power;
}

/* ---- what of a block is seen ----
 *
 * Row r of a block of scores sees the columns [low + r, high + r), or all of them where nothing is masked:
 *
 *        columns ->      1 1 0 0 0 0 0 0
 *     rows               1 1 1 0 0 0 0 0        high = 2, low = -2
 *      |                 1 1 1 1 0 0 0 0
 *      v                 0 1 1 1 1 0 0 0
 *
 * Tiles that nobody sees are not computed, and sums run over what some row of the tile sees, in whole steps of STEP. So
 * a row is finished, with zeros, up to MARGIN before and after what it sees: further no tile reads. */
#define DTM_ATTENTION_STEP 8
#define DTM_ATTENTION_MARGIN 16

typedef struct dtm_attention_band {
    int64_t low, high, slope; /* of row 0; how far both go on from row to row: 1, or 0 where all is seen */
} dtm_attention_band;

/* Of queries from i on and keys from j on. */
DTM_INLINE dtm_attention_band dtm_attention_band_of(const dtm_attention_sizes *z, int64_t i, int64_t j) {
    if (!z->causal && z->window <= 0) return (dtm_attention_band){0, z->keys, 0};
    const int64_t after = i + z->q_offset + z->keys_total - z->queries_total - z->k_offset + 1 - j;
    return (dtm_attention_band){z->window > 0 ? after - z->window : -z->keys - z->queries, after, 1};
}

/* Columns that some of the rows [from, to) see, in whole steps, within [0, count). */
DTM_INLINE dtm_attention_range dtm_attention_columns(dtm_attention_band band, int64_t from, int64_t to, int64_t count) {
    const int64_t low = DTM_MAX(0, band.low + band.slope * from), high = DTM_MIN(count, band.high + band.slope * (to - 1));
    if (low >= high) return (dtm_attention_range){0, 0};
    const int64_t whole = (high + DTM_ATTENTION_STEP - 1) / DTM_ATTENTION_STEP * DTM_ATTENTION_STEP;
    return (dtm_attention_range){low / DTM_ATTENTION_STEP * DTM_ATTENTION_STEP, DTM_MIN(count, whole)};
}

/* Rows that see some of the columns [from, to), likewise. */
DTM_INLINE dtm_attention_range dtm_attention_seers(dtm_attention_band band, int64_t from, int64_t to, int64_t count) {
    if (!band.slope) return (dtm_attention_range){0, count};
    return dtm_attention_columns((dtm_attention_band){1 - band.high, 1 - band.low, 1}, from, to, count);
}

/* The part of a row's columns that is computed, in whole vectors, and the wider one that is finished. */
typedef struct dtm_attention_span {
    int64_t begin, end, first, last;
} dtm_attention_span;

DTM_INLINE dtm_attention_span dtm_attention_span_of(dtm_attention_range seen, int64_t cols) {
    const int64_t low = DTM_MIN(seen.low, cols), high = DTM_MAX(low, seen.high);
    const int64_t first = DTM_MIN(DTM_MAX(0, seen.low - DTM_ATTENTION_MARGIN), cols);
    const int64_t last = DTM_MIN(DTM_MAX(0, seen.high + DTM_ATTENTION_MARGIN), cols);
    dtm_attention_span s = {.begin = low / DTM_LANES * DTM_LANES, .first = first / DTM_LANES * DTM_LANES};
    s.end = low < high ? dtm_whole_vecs(high) : s.begin;
    s.last = DTM_MAX(s.end, dtm_whole_vecs(last));
    return s;
}

/* What row r sees of `cols` columns; high may lie before low, even before 0. */
DTM_INLINE dtm_attention_range dtm_attention_row_of(dtm_attention_band band, int64_t r, int64_t cols) {
    return (dtm_attention_range){DTM_MAX(0, band.low + band.slope * r), DTM_MIN(cols, band.high + band.slope * r)};
}

/* Of the columns that are computed those that the row does not see become -inf: some of the first and the last vector. */
DTM_INLINE void dtm_attention_hide_in(float *scores, int64_t at, dtm_attention_range seen) {
    dtm_vec_int column = {0};
    for (int i = 0; i < DTM_LANES; i++) column[i] = (int32_t)at + i;
    const dtm_vec_int in = (column >= (int32_t)seen.low) & (column < (int32_t)seen.high);
    dtm_store(scores + at, dtm_select(in, dtm_load(scores + at), dtm_splat(-INFINITY)));
}
DTM_INLINE void dtm_attention_hide(float *scores, dtm_attention_range seen, dtm_attention_span span) {
    if (span.begin < seen.low) dtm_attention_hide_in(scores, span.begin, seen);
    if (span.end > seen.high) dtm_attention_hide_in(scores, span.end - DTM_LANES, seen);
}

/* Zeros around what is computed. */
DTM_INLINE void dtm_attention_finish(float *row, dtm_attention_span span) {
    for (int64_t j = span.first; j < span.begin; j += DTM_LANES) dtm_store(row + j, (dtm_vec){0});
    for (int64_t j = span.end; j < span.last; j += DTM_LANES) dtm_store(row + j, (dtm_vec){0});
}

/* Scores [rows, cols] of packed keys or values, of tiles that some row sees. */
DTM_NOINLINE void dtm_attention_scores(const dtm_tile *whole, int64_t rows, int64_t cols, dtm_attention_band band) {
    for (int64_t j = 0; j < cols;) {
        const int vecs = dtm_tile_vecs(cols - j);
        dtm_tile t = *whole;
        t.b = whole->b + dtm_panel_at(j, whole->depth);
        t.cols = DTM_MIN(cols - j, vecs * DTM_LANES);
        for (int64_t i = 0; i < rows; i += DTM_TILE_ROWS) {
            const int64_t here = DTM_MIN(rows - i, DTM_TILE_ROWS);
            const dtm_attention_range seen = dtm_attention_columns(band, i, i + here, cols);
            if (seen.high <= j || seen.low >= j + t.cols) continue;
            t.a = whole->a + i * whole->a_row;
            t.c = whole->c + i * whole->c_row + j;
            dtm_tile_run(&t, here, vecs);
        }
        j += vecs * DTM_LANES;
    }
}

/* Adds to c[rows, cols] the product of a and b, plain rows or packed, over the part of the depth that counts for the rows:
 * columns of scores that they see, or where the rows are keys the queries that see them. */
DTM_NOINLINE void dtm_attention_sums(const dtm_tile *whole, int64_t rows, int64_t cols, dtm_attention_band band,
                                     int keys, int packed) {
    for (int64_t j = 0; j < cols;) {
        const int vecs = dtm_tile_vecs(cols - j);
        dtm_tile t = *whole;
        t.cols = DTM_MIN(cols - j, vecs * DTM_LANES);
        for (int64_t i = 0; i < rows; i += DTM_TILE_ROWS) {
            const int64_t here = DTM_MIN(rows - i, DTM_TILE_ROWS);
            const dtm_attention_range part = keys ? dtm_attention_seers(band, i, i + here, whole->depth)
                                                  : dtm_attention_columns(band, i, i + here, whole->depth);
            if (part.low >= part.high) continue;
            t.a = whole->a + i * whole->a_row + part.low * whole->a_col;
            t.b = whole->b + part.low * whole->b_row + (packed ? dtm_panel_at(j, whole->depth) : j);
            t.c = whole->c + i * whole->c_row + j;
            t.depth = part.high - part.low;
            dtm_tile_run(&t, here, vecs);
        }
        j += vecs * DTM_LANES;
    }
}

#endif
