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

#include "kernels/cpu/attention_blocks.h"

/* One block of scores: keys, a multiple of the widest tile, and rows of queries. QUERIES share one packing of the keys.
 * Measured on Zen 3; scores, keys and values of a block fit its caches. */
#define DTM_ATTENTION_KEYS 128
#define DTM_ATTENTION_ROWS 24
#define DTM_ATTENTION_QUERIES 256

DTM_INLINE float dtm_attention_top(const float *x, dtm_attention_span span, float start) {
    dtm_vec top = dtm_splat(start), other = top;
    int64_t j = span.begin;
    for (; j + DTM_LANES < span.end; j += 2 * DTM_LANES) {
        top = dtm_vec_max(dtm_load(x + j), top);
        other = dtm_vec_max(dtm_load(x + j + DTM_LANES), other);
    }
    if (j < span.end) top = dtm_vec_max(dtm_load(x + j), top);
    return dtm_vec_top(dtm_vec_max(top, other));
}

/* What a block of queries carries from one block of keys to the next. */
typedef struct dtm_attention_state {
    float *o;   /* [QUERIES, whole_vecs(v_width)]: the sum of exp(score - top) v */
    float *top; /* [QUERIES]: the largest score so far */
    float *sum; /* [QUERIES]: the sum of exp(score - top) */
    float *scores, *k_panels, *v_panels;
} dtm_attention_state;

/* Turns a row of scores into exp(score - top), and scales what was summed under the old top. */
DTM_INLINE void dtm_attention_row(const dtm_attention_state *state, int64_t i, float *scores, dtm_attention_span span,
                                  float top, int64_t o_row) {
    const float old = state->top[i], base = top == -INFINITY ? 0 : top, keep = dtm_exp(old - base);
    dtm_vec sum = {0};
    for (int64_t j = span.begin; j < span.end; j += DTM_LANES) {
        const dtm_vec p = dtm_attention_exp(dtm_load(scores + j) - base);
        dtm_store(scores + j, p);
        sum += p;
    }
    state->sum[i] = state->sum[i] * keep + dtm_vec_sum(sum);
    state->top[i] = top;
    if (keep != 1 && old != -INFINITY) /* NaN too; under no top nothing was summed */
        for (int64_t j = 0; j < o_row; j += DTM_LANES)
            dtm_store(state->o + i * o_row + j, dtm_load(state->o + i * o_row + j) * keep);
}

/* All rows of a block of scores: first their tops, so that no row waits for the end of its own. */
DTM_INLINE void dtm_attention_rows_of(const dtm_attention_state *state, int64_t i, int64_t rows, int64_t keys,
                                      dtm_attention_band band, int64_t o_row) {
    float tops[DTM_ATTENTION_ROWS];
    for (int64_t r = 0; r < rows; r++) {
        const dtm_attention_range seen = dtm_attention_row_of(band, r, keys);
        const dtm_attention_span span = dtm_attention_span_of(seen, keys);
        float *row = state->scores + r * DTM_ATTENTION_KEYS;
        if (span.begin < span.end) dtm_attention_hide(row, seen, span);
        tops[r] = dtm_attention_top(row, span, state->top[i + r]);
    }
    for (int64_t r = 0; r < rows; r++) {
        const dtm_attention_span span = dtm_attention_span_of(dtm_attention_row_of(band, r, keys), keys);
        float *row = state->scores + r * DTM_ATTENTION_KEYS;
        if (span.begin < span.end) dtm_attention_row(state, i + r, row, span, tops[r], o_row);
        dtm_attention_finish(row, span);
    }
}

/* One block of keys [j, j + keys) for ROWS queries from `i`, the block's first query being `first`. */
DTM_INLINE void dtm_attention_block(const dtm_attention_sizes *z, const dtm_attention_state *state, const float *q,
                                    float scale, int64_t first, int64_t i, int64_t rows, int64_t j, int64_t keys) {
    const dtm_attention_band band = dtm_attention_band_of(z, first + i, j);
    const dtm_attention_range some = dtm_attention_columns(band, 0, rows, keys);
    if (some.low >= some.high) return;
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
    dtm_attention_scores(&score, rows, keys, band);
    dtm_attention_rows_of(state, i, rows, keys, band, o_row);
    const dtm_tile mix = {.a = state->scores,
                          .a_row = DTM_ATTENTION_KEYS,
                          .a_col = 1,
                          .b = state->v_panels,
                          .b_row = DTM_TILE_COLS,
                          .c = state->o + i * o_row,
                          .c_row = o_row,
                          .depth = keys,
                          .add = 1,
                          .alpha = 1};
    dtm_attention_sums(&mix, rows, o_row, band, 0, 1);
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

/* Columns of the panels that hold a row. */
DTM_INLINE int64_t dtm_attention_panels(int64_t width) {
    return (width + DTM_TILE_COLS - 1) / DTM_TILE_COLS * DTM_TILE_COLS;
}

static inline int64_t dtm_attention_forward_scratch_bytes(const int64_t *sizes) {
    const dtm_attention_sizes *z = dtm_attention_sizes_of(sizes);
    const int64_t v = dtm_whole_vecs(z->v_width), floats = (int64_t)sizeof(float);
    return dtm_scratch_round(DTM_ATTENTION_QUERIES * v * floats) +
           2 * dtm_scratch_round(DTM_ATTENTION_QUERIES * floats) +
           dtm_scratch_round(DTM_ATTENTION_ROWS * DTM_ATTENTION_KEYS * floats) +
           dtm_scratch_round(DTM_ATTENTION_KEYS * z->width * floats) +
           dtm_scratch_round(DTM_ATTENTION_KEYS * dtm_attention_panels(z->v_width) * floats);
}

DTM_INLINE dtm_attention_state dtm_attention_state_of(const dtm_attention_sizes *z, void *scratch) {
    const int64_t v = dtm_whole_vecs(z->v_width), floats = (int64_t)sizeof(float);
    dtm_attention_state state;
    state.o = dtm_scratch_take(&scratch, DTM_ATTENTION_QUERIES * v * floats);
    state.top = dtm_scratch_take(&scratch, DTM_ATTENTION_QUERIES * floats);
    state.sum = dtm_scratch_take(&scratch, DTM_ATTENTION_QUERIES * floats);
    state.scores = dtm_scratch_take(&scratch, DTM_ATTENTION_ROWS * DTM_ATTENTION_KEYS * floats);
    state.k_panels = dtm_scratch_take(&scratch, DTM_ATTENTION_KEYS * z->width * floats);
    state.v_panels = dtm_scratch_take(&scratch, DTM_ATTENTION_KEYS * dtm_attention_panels(z->v_width) * floats);
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
        dtm_panels_pack(v + j * z->v.s, z->v.s, 1, keys, z->v_width, state.v_panels);
        for (int64_t i = 0; i < queries; i += DTM_ATTENTION_ROWS)
            dtm_attention_block(z, &state, q, (float)args->numbers[0], first, i,
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

#endif
