/* Attention, forward and backward: o = softmax(scale q k) v, blocked, with the online softmax of FlashAttention (Dao et
 * al., 2022): never a matrix of queries by keys, blocks that the mask hides are skipped.
 *
 *     q  [b, s, h, width]      queries  s of `queries`, heads h of `heads`
 *     k  [b, s, g, width]      keys     s of `keys`,    heads g of `kv_heads`
 *     v  [b, s, g, v_width]
 *     o  [b, s, h, v_width], lse [b, s, h]: the natural logarithm of the sum of exp(scale q k) over the keys
 *
 * All lie by strides (b, s, h), in elements; the width's stride is 1. Local sizes are those of the blocks at hand;
 * where a rank holds a part, offsets say which:
 *
 *     queries: rows q_offset .. q_offset + queries of queries_total     keys: k_offset .. k_offset + keys of keys_total
 *     position of query i: i + q_offset + keys_total - queries_total    position of key j: j + k_offset
 *     heads:   local query head h uses local key/value head (h + head_offset) / ratio - kv_offset
 *
 * Causal: keys up to the query's position. window = W: the W last of these, its own position included (implies causal);
 * 0 for none. A row that sees no key has o = 0, lse = -inf and no gradient.
 *
 * With keys split, forward's (o, lse) of the parts merge by lse, and backward takes the merged o and lse. */
#ifndef DTM_KERNELS_CPU_ATTENTION_H
#define DTM_KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/prelude.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/sizes.h"
#include "kernels/kernel.h"

/* Blocks: keys and rows of queries of one block of scores, forward and backward; keys are a multiple of the widest
 * tile. QUERIES share one packing of the keys. Measured on Zen 3; scores, keys and values of a block fit its caches. */
#define DTM_ATTENTION_KEYS 128
#define DTM_ATTENTION_ROWS 24
#define DTM_ATTENTION_QUERIES 256
#define DTM_ATTENTION_BACK_KEYS 64
#define DTM_ATTENTION_BACK_ROWS 48

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

/* Exponential of x <= 0 or NaN, 0 below the normal range; as dtm_exp. */
DTM_INLINE dtm_vec dtm_attention_exp(dtm_vec x) {
    const dtm_vec low = dtm_splat(-87.3f);
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
    return dtm_select(low > x, (dtm_vec){0}, (p + 1.0f) * power);
}

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

/* Hides what a row of scores does not see: columns outside [low, high) become -inf, up to `cols` in whole vectors. */
DTM_INLINE void dtm_attention_hide(float *scores, int64_t low, int64_t high, int64_t cols) {
    for (int64_t j = 0; j < DTM_MIN(low, cols); j++) scores[j] = -INFINITY;
    for (int64_t j = DTM_MAX(high, 0); j < dtm_whole_vecs(cols); j++) scores[j] = -INFINITY;
}

DTM_INLINE float dtm_attention_top(const float *x, int64_t cols, float start) {
    dtm_vec top = dtm_splat(start);
    for (int64_t j = 0; j < cols; j += DTM_LANES) top = dtm_vec_max(dtm_load(x + j), top);
    return dtm_vec_top(top);
}

/* ---- forward ---- */

/* What a block of queries carries from one block of keys to the next. */
typedef struct dtm_attention_state {
    float *o;   /* [QUERIES, whole_vecs(v_width)]: the sum of exp(score - top) v */
    float *top; /* [QUERIES]: the largest score so far */
    float *sum; /* [QUERIES]: the sum of exp(score - top) */
    float *scores, *k_panels, *v_copy;
} dtm_attention_state;

/* Turns a row of scores into exp(score - new top), and scales what was summed under the old top. */
DTM_INLINE void dtm_attention_row(const dtm_attention_state *state, int64_t i, float *scores, int64_t cols,
                                  int64_t o_row) {
    const float old = state->top[i], top = dtm_attention_top(scores, cols, old);
    const float base = top == -INFINITY ? 0 : top;
    dtm_vec sum = {0};
    for (int64_t j = 0; j < cols; j += DTM_LANES) {
        const dtm_vec p = dtm_attention_exp(dtm_load(scores + j) - base);
        dtm_store(scores + j, p);
        sum += p;
    }
    const float keep = dtm_exp(old - base);
    state->sum[i] = state->sum[i] * keep + dtm_vec_sum(sum);
    state->top[i] = top;
    if (keep != 1) /* NaN too */
        for (int64_t j = 0; j < o_row; j += DTM_LANES)
            dtm_store(state->o + i * o_row + j, dtm_load(state->o + i * o_row + j) * keep);
}

/* One block of keys [j, j + keys) for ROWS queries from `i`, the block's first query being `first`. */
DTM_INLINE void dtm_attention_block(const dtm_attention_sizes *z, const dtm_attention_state *state, const float *q,
                                    dtm_attention_rows v, float scale, int64_t first, int64_t i, int64_t rows,
                                    int64_t j, int64_t keys) {
    const int64_t low = dtm_attention_seen(z, first + i).low - j;
    const int64_t cols = DTM_MIN(keys, dtm_attention_seen(z, first + i + rows - 1).high - j);
    if (cols <= 0 || low >= cols) return;
    const int64_t o_row = dtm_whole_vecs(z->v_width);
    const dtm_tile score = {.a = q + (first + i) * z->q.s,
                            .a_row = z->q.s,
                            .a_col = 1,
                            .b = state->k_panels,
                            .b_row = DTM_TILE_COLS,
                            .c = state->scores,
                            .c_row = DTM_ATTENTION_KEYS,
                            .depth = z->width,
                            .alpha = scale};
    dtm_tiles_run(&score, rows, cols, 1);
    for (int64_t r = 0; r < rows; r++) {
        const dtm_attention_range seen = dtm_attention_seen(z, first + i + r);
        float *row = state->scores + r * DTM_ATTENTION_KEYS;
        dtm_attention_hide(row, seen.low - j, DTM_MIN(seen.high - j, cols), cols);
        dtm_attention_row(state, i + r, row, cols, o_row);
    }
    const dtm_tile mix = {.a = state->scores,
                          .a_row = DTM_ATTENTION_KEYS,
                          .a_col = 1,
                          .b = v.at,
                          .b_row = v.row,
                          .c = state->o + i * o_row,
                          .c_row = o_row,
                          .depth = cols,
                          .add = 1,
                          .alpha = 1};
    dtm_tiles_run(&mix, rows, o_row, 0);
}

DTM_INLINE void dtm_attention_emit(const dtm_attention_state *state, int64_t i, int64_t o_row, float *o, int64_t width,
                                   float *lse) {
    const float sum = state->sum[i], *from = state->o + i * o_row;
    const float part = sum == 0 ? 0 : 1 / sum;
    for (int64_t c = 0; c < width; c++) o[c] = from[c] * part;
    *lse = sum == 0 ? -INFINITY : state->top[i] + dtm_log(sum);
}

DTM_INLINE int64_t dtm_attention_query_blocks(const dtm_attention_sizes *z) {
    return (z->queries + DTM_ATTENTION_QUERIES - 1) / DTM_ATTENTION_QUERIES;
}

/* Units: (b, h, block of DTM_ATTENTION_QUERIES queries), the last fastest. */
static inline int64_t dtm_attention_forward_extent(const int64_t *sizes) {
    const dtm_attention_sizes *z = dtm_attention_sizes_of(sizes);
    return z->batch * z->heads * dtm_attention_query_blocks(z);
}

static inline int64_t dtm_attention_forward_scratch_bytes(const int64_t *sizes) {
    const dtm_attention_sizes *z = dtm_attention_sizes_of(sizes);
    const int64_t v = dtm_whole_vecs(z->v_width), floats = (int64_t)sizeof(float);
    return dtm_scratch_round(DTM_ATTENTION_QUERIES * v * floats) +
           2 * dtm_scratch_round(DTM_ATTENTION_QUERIES * floats) +
           dtm_scratch_round(DTM_ATTENTION_ROWS * DTM_ATTENTION_KEYS * floats) +
           dtm_scratch_round(DTM_ATTENTION_KEYS * z->width * floats) +
           dtm_scratch_round(DTM_ATTENTION_KEYS * v * floats);
}

DTM_INLINE dtm_attention_state dtm_attention_state_of(const dtm_attention_sizes *z, void *scratch) {
    const int64_t v = dtm_whole_vecs(z->v_width), floats = (int64_t)sizeof(float);
    dtm_attention_state state;
    state.o = dtm_scratch_take(&scratch, DTM_ATTENTION_QUERIES * v * floats);
    state.top = dtm_scratch_take(&scratch, DTM_ATTENTION_QUERIES * floats);
    state.sum = dtm_scratch_take(&scratch, DTM_ATTENTION_QUERIES * floats);
    state.scores = dtm_scratch_take(&scratch, DTM_ATTENTION_ROWS * DTM_ATTENTION_KEYS * floats);
    state.k_panels = dtm_scratch_take(&scratch, DTM_ATTENTION_KEYS * z->width * floats);
    state.v_copy = dtm_scratch_take(&scratch, DTM_ATTENTION_KEYS * v * floats);
    return state;
}

DTM_NOINLINE void dtm_attention_forward_unit(const dtm_kernel_args *args, int64_t b, int64_t h, int64_t first) {
    const dtm_attention_sizes *z = dtm_attention_sizes_of(args->sizes);
    const dtm_attention_state state = dtm_attention_state_of(z, args->scratch);
    const int64_t g = (h + z->head_offset) / z->ratio - z->kv_offset, o_row = dtm_whole_vecs(z->v_width);
    const int64_t queries = DTM_MIN(z->queries - first, DTM_ATTENTION_QUERIES);
    const float *q = (const float *)args->buffers[DTM_ATTENTION_Q] + b * z->q.b + h * z->q.h;
    const float *k = (const float *)args->buffers[DTM_ATTENTION_K] + b * z->k.b + g * z->k.h;
    const float *v = (const float *)args->buffers[DTM_ATTENTION_V] + b * z->v.b + g * z->v.h;
    memset(state.o, 0, (size_t)(queries * o_row) * sizeof(float));
    for (int64_t i = 0; i < queries; i++) state.top[i] = -INFINITY, state.sum[i] = 0;
    const int64_t low = dtm_attention_seen(z, first).low / DTM_ATTENTION_KEYS * DTM_ATTENTION_KEYS;
    const int64_t high = dtm_attention_seen(z, first + queries - 1).high;
    for (int64_t j = low; j < high; j += DTM_ATTENTION_KEYS) {
        const int64_t keys = DTM_MIN(z->keys - j, DTM_ATTENTION_KEYS);
        dtm_panels_pack(k + j * z->k.s, 1, z->k.s, z->width, keys, state.k_panels);
        const dtm_attention_rows values = dtm_attention_padded(v + j * z->v.s, z->v.s, keys, z->v_width, state.v_copy);
        for (int64_t i = 0; i < queries; i += DTM_ATTENTION_ROWS)
            dtm_attention_block(z, &state, q, values, (float)args->numbers[0], first, i,
                                DTM_MIN(queries - i, DTM_ATTENTION_ROWS), j, keys);
    }
    float *o = (float *)args->buffers[DTM_ATTENTION_O] + b * z->o.b + h * z->o.h;
    float *lse = (float *)args->buffers[DTM_ATTENTION_LSE] + b * z->lse.b + h * z->lse.h;
    for (int64_t i = 0; i < queries; i++)
        dtm_attention_emit(&state, i, o_row, o + (first + i) * z->o.s, z->v_width, lse + (first + i) * z->lse.s);
}

static inline void dtm_attention_forward(const dtm_kernel_args *args, int64_t begin, int64_t end) {
    const dtm_attention_sizes *z = dtm_attention_sizes_of(args->sizes);
    for (int64_t u = begin; u < end; u++) {
        const int64_t blocks = dtm_attention_query_blocks(z), head = u / blocks;
        dtm_attention_forward_unit(args, head / z->heads, head % z->heads, u % blocks * DTM_ATTENTION_QUERIES);
    }
}

/* ---- backward ----
 *
 * p = exp(scale q k - lse), delta = sum of do o over the width, ds = scale p (do v - delta):
 *     dv = p' do,   dk = ds' q,   dq = ds k. */

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
DTM_INLINE void dtm_attention_slope(float *p, float *ds, int64_t cols, float lse, float delta, float scale) {
    if (lse == -INFINITY) lse = 0; /* sees nothing: all scores are -inf */
    for (int64_t j = 0; j < cols; j += DTM_LANES) {
        const dtm_vec e = dtm_attention_exp(dtm_load(p + j) - lse);
        dtm_store(p + j, e);
        dtm_store(ds + j, e * (dtm_load(ds + j) - delta) * scale);
    }
}

/* Adds to dk, dv of the block of keys at j, and to dq, what `rows` queries from i of head h make. */
DTM_INLINE void dtm_attention_back_block(const dtm_attention_sizes *z, const dtm_attention_work *w,
                                         const dtm_attention_group *group, int64_t h, int64_t i, int64_t rows,
                                         int64_t j, int64_t keys, dtm_attention_rows k) {
    const int64_t low = dtm_attention_seen(z, i).low - j;
    const int64_t cols = DTM_MIN(keys, dtm_attention_seen(z, i + rows - 1).high - j);
    if (cols <= 0 || low >= cols) return;
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
    dtm_tiles_run(&score, rows, cols, 1);
    dtm_tiles_run(&d_p, rows, cols, 1);
    for (int64_t r = 0; r < rows; r++) {
        const dtm_attention_range seen = dtm_attention_seen(z, i + r);
        float *p = w->p + r * DTM_ATTENTION_BACK_KEYS, *ds = w->ds + r * DTM_ATTENTION_BACK_KEYS;
        dtm_attention_hide(p, seen.low - j, DTM_MIN(seen.high - j, cols), cols);
        for (int64_t c = cols; c < dtm_whole_vecs(cols); c++) ds[c] = 0;
        dtm_attention_slope(p, ds, cols, group->lse[head * z->lse.h + (i + r) * z->lse.s],
                            w->delta[h * z->queries + i + r], group->scale);
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
                         .depth = cols,
                         .add = 1,
                         .alpha = 1};
    dtm_tiles_run(&dv, cols, v_wide, 0);
    dtm_tiles_run(&dk, cols, wide, 0);
    dtm_tiles_run(&dq, rows, z->width, 0);
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
