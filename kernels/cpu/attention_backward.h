/* Attention's gradient; attention.h has the tensors.
 *
 * p = exp(scale q k - lse), delta = sum of do o over the width, ds = scale p (do v - delta):
 *     dv = p' do,   dk = ds' q,   dq = ds k. */
#ifndef DTM_KERNELS_CPU_ATTENTION_BACKWARD_H
#define DTM_KERNELS_CPU_ATTENTION_BACKWARD_H

#include "kernels/cpu/attention_blocks.h"

/* One block of scores, as in forward. */
#define DTM_ATTENTION_BACK_KEYS 64
#define DTM_ATTENTION_BACK_ROWS 96

/* Rows of a matrix that a tile may read in whole vectors: themselves, or a zero-padded copy in `copy`. */
typedef struct dtm_attention_rows {
    const float *at;
    int64_t row;
} dtm_attention_rows;

DTM_INLINE dtm_attention_rows dtm_attention_padded(const float *x, int64_t row, int64_t rows, int64_t width,
                                                   float *copy) {
    const int64_t whole = dtm_whole_vecs(width);
    if (whole == width) return (dtm_attention_rows){x, row};
    for (int64_t i = 0; i < rows; i++) {
        memcpy(copy + i * whole, x + i * row, (size_t)width * sizeof(float));
        memset(copy + i * whole + width, 0, (size_t)(whole - width) * sizeof(float));
    }
    return (dtm_attention_rows){copy, whole};
}

typedef struct dtm_attention_work {
    float *delta;                     /* [heads of the group, queries] */
    float *p, *ds;                    /* [ROWS, KEYS] */
    float *k_panels, *v_panels;       /* a block of keys, of values, transposed and packed */
    float *k_copy, *q_copy, *do_copy; /* padded, for widths that are not whole vectors */
    float *dk, *dv;                   /* [KEYS, whole vectors] */
} dtm_attention_work;

/* Heads [first, first + count) of a unit, and where their tensors begin at batch b. */
typedef struct dtm_attention_group {
    int64_t first, count;
    const float *q, *k, *v, *o, *lse, *d_o;
    float *dq, *dk, *dv;
    float scale;
} dtm_attention_group;

/* Units: (b, key/value head), the latter fastest: it sums dk and dv over the query heads that use it. */
static inline int64_t dtm_attention_backward_extent(const int64_t *sizes) {
    const dtm_attention_sizes *z = dtm_attention_sizes_of(sizes);
    return z->batch * z->kv_heads;
}

/* Lays the workspace out from `at`; returns its bytes. */
DTM_INLINE int64_t dtm_attention_work_lay(const dtm_attention_sizes *z, void *at, dtm_attention_work *work) {
    const int64_t floats = (int64_t)sizeof(float), wide = dtm_whole_vecs(z->width), v_wide = dtm_whole_vecs(z->v_width);
    float **parts[] = {&work->delta,  &work->p,      &work->ds,      &work->k_panels, &work->v_panels,
                       &work->k_copy, &work->q_copy, &work->do_copy, &work->dk,       &work->dv};
    const int64_t sizes[] = {DTM_MIN(z->ratio, z->heads) * z->queries,
                             DTM_ATTENTION_BACK_ROWS * DTM_ATTENTION_BACK_KEYS,
                             DTM_ATTENTION_BACK_ROWS * DTM_ATTENTION_BACK_KEYS,
                             DTM_ATTENTION_BACK_KEYS * z->width,
                             DTM_ATTENTION_BACK_KEYS * z->v_width,
                             DTM_ATTENTION_BACK_KEYS * wide,
                             DTM_ATTENTION_BACK_ROWS * wide,
                             DTM_ATTENTION_BACK_ROWS * v_wide,
                             DTM_ATTENTION_BACK_KEYS * wide,
                             DTM_ATTENTION_BACK_KEYS * v_wide};
    int64_t bytes = 0;
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (at) *parts[i] = (float *)(void *)((char *)at + bytes);
        bytes += dtm_scratch_round(sizes[i] * floats);
    }
    return bytes;
}

static inline int64_t dtm_attention_backward_scratch_bytes(const int64_t *sizes) {
    dtm_attention_work unused;
    return dtm_attention_work_lay(dtm_attention_sizes_of(sizes), NULL, &unused);
}

DTM_INLINE float dtm_attention_inner(const float *x, const float *y, int64_t n) {
    dtm_vec sum = {0};
    int64_t i = 0;
    for (; i + DTM_LANES <= n; i += DTM_LANES) sum += dtm_load(x + i) * dtm_load(y + i);
    float rest = 0;
    for (; i < n; i++) rest += x[i] * y[i];
    return dtm_vec_sum(sum) + rest;
}

/* p and ds of one row, in place of its scores and of its do v. */
DTM_INLINE void dtm_attention_slope(float *p, float *ds, dtm_attention_span span, float lse, float delta, float scale) {
    if (lse == -INFINITY) lse = 0; /* all scores are -inf */
    for (int64_t j = span.begin; j < span.end; j += DTM_LANES) {
        const dtm_vec e = dtm_attention_exp(dtm_load(p + j) - lse);
        dtm_store(p + j, e);
        dtm_store(ds + j, e * (dtm_load(ds + j) - delta) * scale);
    }
}

/* Adds to dk, dv of the block of keys at j, and to dq, what `rows` queries from i of head h make. */
DTM_INLINE void dtm_attention_back_block(const dtm_attention_sizes *z, const dtm_attention_work *w,
                                         const dtm_attention_group *group, int64_t h, int64_t i, int64_t rows,
                                         int64_t j, int64_t keys, dtm_attention_rows k) {
    const dtm_attention_band band = dtm_attention_band_of(z, i, j);
    const dtm_attention_range some = dtm_attention_columns(band, 0, rows, keys);
    if (some.low >= some.high) return;
    const int64_t head = group->first + h, wide = dtm_whole_vecs(z->width), v_wide = dtm_whole_vecs(z->v_width);
    const float *q = group->q + head * z->q.h + i * z->q.s, *d_o = group->d_o + head * z->d_o.h + i * z->d_o.s;
    const dtm_tile score = {.a = q,
                            .a_row = z->q.s,
                            .a_col = 1,
                            .b = w->k_panels,
                            .b_row = DTM_TILE_COLS,
                            .c = w->p,
                            .c_row = DTM_ATTENTION_BACK_KEYS,
                            .depth = z->width,
                            .alpha = group->scale};
    const dtm_tile d_p = {.a = d_o,
                          .a_row = z->d_o.s,
                          .a_col = 1,
                          .b = w->v_panels,
                          .b_row = DTM_TILE_COLS,
                          .c = w->ds,
                          .c_row = DTM_ATTENTION_BACK_KEYS,
                          .depth = z->v_width,
                          .alpha = 1};
    dtm_attention_scores(&score, rows, keys, band);
    dtm_attention_scores(&d_p, rows, keys, band);
    for (int64_t r = 0; r < rows; r++) {
        const dtm_attention_range seen = dtm_attention_row_of(band, r, keys);
        const dtm_attention_span span = dtm_attention_span_of(seen, keys);
        float *p = w->p + r * DTM_ATTENTION_BACK_KEYS, *ds = w->ds + r * DTM_ATTENTION_BACK_KEYS;
        if (span.begin < span.end) dtm_attention_hide(p, seen, span);
        for (int64_t c = DTM_MIN(keys, span.end); c < span.end; c++) ds[c] = 0; /* no tile wrote it */
        dtm_attention_slope(p, ds, span, group->lse[head * z->lse.h + (i + r) * z->lse.s],
                            w->delta[h * z->queries + i + r], group->scale);
        dtm_attention_finish(p, span);
        dtm_attention_finish(ds, span);
    }
    const dtm_attention_rows qs = dtm_attention_padded(q, z->q.s, rows, z->width, w->q_copy);
    const dtm_attention_rows dos = dtm_attention_padded(d_o, z->d_o.s, rows, z->v_width, w->do_copy);
    const dtm_tile dv = {.a = w->p,
                         .a_row = 1,
                         .a_col = DTM_ATTENTION_BACK_KEYS,
                         .b = dos.at,
                         .b_row = dos.row,
                         .c = w->dv,
                         .c_row = v_wide,
                         .depth = rows,
                         .add = 1,
                         .alpha = 1};
    const dtm_tile dk = {.a = w->ds,
                         .a_row = 1,
                         .a_col = DTM_ATTENTION_BACK_KEYS,
                         .b = qs.at,
                         .b_row = qs.row,
                         .c = w->dk,
                         .c_row = wide,
                         .depth = rows,
                         .add = 1,
                         .alpha = 1};
    const dtm_tile dq = {.a = w->ds,
                         .a_row = DTM_ATTENTION_BACK_KEYS,
                         .a_col = 1,
                         .b = k.at,
                         .b_row = k.row,
                         .c = group->dq + head * z->dq.h + i * z->dq.s,
                         .c_row = z->dq.s,
                         .depth = keys,
                         .add = 1,
                         .alpha = 1};
    dtm_attention_sums(&dv, keys, v_wide, band, 1, 0);
    dtm_attention_sums(&dk, keys, wide, band, 1, 0);
    dtm_attention_sums(&dq, rows, z->width, band, 0, 0);
}

/* delta of all rows, and dq cleared. */
DTM_INLINE void dtm_attention_prepare(const dtm_attention_sizes *z, const dtm_attention_work *w,
                                      const dtm_attention_group *group) {
    for (int64_t h = 0; h < group->count; h++)
        for (int64_t i = 0; i < z->queries; i++) {
            const int64_t head = group->first + h;
            w->delta[h * z->queries + i] = dtm_attention_inner(group->d_o + head * z->d_o.h + i * z->d_o.s,
                                                               group->o + head * z->o.h + i * z->o.s, z->v_width);
            memset(group->dq + head * z->dq.h + i * z->dq.s, 0, (size_t)z->width * sizeof(float));
        }
}

/* One block of keys: dk and dv, and its share of dq. */
DTM_INLINE void dtm_attention_back_keys(const dtm_attention_sizes *z, const dtm_attention_work *w,
                                        const dtm_attention_group *group, int64_t j) {
    const int64_t keys = DTM_MIN(z->keys - j, DTM_ATTENTION_BACK_KEYS);
    const int64_t wide = dtm_whole_vecs(z->width), v_wide = dtm_whole_vecs(z->v_width);
    dtm_panels_pack(group->k + j * z->k.s, 1, z->k.s, z->width, keys, w->k_panels);
    dtm_panels_pack(group->v + j * z->v.s, 1, z->v.s, z->v_width, keys, w->v_panels);
    const dtm_attention_rows k = dtm_attention_padded(group->k + j * z->k.s, z->k.s, keys, z->width, w->k_copy);
    memset(w->dk, 0, (size_t)(keys * wide) * sizeof(float));
    memset(w->dv, 0, (size_t)(keys * v_wide) * sizeof(float));
    for (int64_t h = 0; h < group->count; h++)
        for (int64_t i = 0; i < z->queries; i += DTM_ATTENTION_BACK_ROWS)
            dtm_attention_back_block(z, w, group, h, i, DTM_MIN(z->queries - i, DTM_ATTENTION_BACK_ROWS), j, keys, k);
    for (int64_t c = 0; c < keys; c++) {
        memcpy(group->dk + (j + c) * z->dk.s, w->dk + c * wide, (size_t)z->width * sizeof(float));
        memcpy(group->dv + (j + c) * z->dv.s, w->dv + c * v_wide, (size_t)z->v_width * sizeof(float));
    }
}

DTM_NOINLINE void dtm_attention_backward_unit(const dtm_kernel_args *args, int64_t b, int64_t g) {
    const dtm_attention_sizes *z = dtm_attention_sizes_of(args->sizes);
    dtm_attention_work work;
    dtm_attention_work_lay(z, args->scratch, &work);
    const int64_t first = DTM_MAX(0, (g + z->kv_offset) * z->ratio - z->head_offset);
    const int64_t last = DTM_MIN(z->heads, (g + z->kv_offset + 1) * z->ratio - z->head_offset);
    const dtm_attention_group group = {
        .first = first,
        .count = DTM_MAX(0, last - first),
        .q = (const float *)args->buffers[DTM_ATTENTION_Q] + b * z->q.b,
        .k = (const float *)args->buffers[DTM_ATTENTION_K] + b * z->k.b + g * z->k.h,
        .v = (const float *)args->buffers[DTM_ATTENTION_V] + b * z->v.b + g * z->v.h,
        .o = (const float *)args->buffers[DTM_ATTENTION_O] + b * z->o.b,
        .lse = (const float *)args->buffers[DTM_ATTENTION_LSE] + b * z->lse.b,
        .d_o = (const float *)args->buffers[DTM_ATTENTION_DO] + b * z->d_o.b,
        .dq = (float *)args->buffers[DTM_ATTENTION_DQ] + b * z->dq.b,
        .dk = (float *)args->buffers[DTM_ATTENTION_DK] + b * z->dk.b + g * z->dk.h,
        .dv = (float *)args->buffers[DTM_ATTENTION_DV] + b * z->dv.b + g * z->dv.h,
        .scale = (float)args->numbers[0],
    };
    dtm_attention_prepare(z, &work, &group);
    for (int64_t j = 0; j < z->keys; j += DTM_ATTENTION_BACK_KEYS) dtm_attention_back_keys(z, &work, &group, j);
}

/* Every query head that is held must use a key/value head that is held. */
static inline void dtm_attention_backward(const dtm_kernel_args *args, int64_t begin, int64_t end) {
    const dtm_attention_sizes *z = dtm_attention_sizes_of(args->sizes);
    for (int64_t u = begin; u < end; u++) dtm_attention_backward_unit(args, u / z->kv_heads, u % z->kv_heads);
}

#endif
