/* Rows of tables: gather, its gradient (scatter), and rotary positions. */
#ifndef DTM_KERNELS_CPU_ROWS_H
#define DTM_KERNELS_CPU_ROWS_H

#include "kernels/cpu/simd.h"
#include "kernels/cpu/sizes.h"
#include "kernels/kernel.h"

#include <math.h>

/* ---- gather and scatter ----
 *
 *     table [batch, rows, width]: rows first .. first + rows of a table of `vocabulary` rows
 *     ids   [batch, tokens], i32, 0 .. vocabulary - 1
 *     out   [batch, tokens, width]
 *
 * All by strides in elements; those of ids along tokens and of rows along width are 1. A batch stride of the table of 0
 * is one table for all (gather only: scatter then wants batch 1, with the batch's tokens as tokens). Sizes:
 * dtm_rows_sizes. */
DTM_INLINE const dtm_rows_sizes *dtm_rows_sizes_of(const int64_t *sizes) {
    return (const dtm_rows_sizes *)(const void *)sizes;
}

/* Units: (batch, token). out[b, t, :] = table[b, ids[b, t] - first, :], or 0 where that row is not held: the sum over
 * the ranks that share a table is then the row. An id outside the vocabulary gives 0 and is reported as b * tokens + t.
 */
static inline int64_t dtm_rows_gather_extent(const int64_t *sizes) {
    return dtm_rows_sizes_of(sizes)->batch * dtm_rows_sizes_of(sizes)->tokens;
}
static inline int64_t dtm_rows_gather_scratch_bytes(const int64_t *sizes) {
    return (void)sizes, 0;
}

static inline void dtm_rows_gather(const dtm_kernel_args *args, int64_t begin, int64_t end) {
    const dtm_rows_sizes *z = dtm_rows_sizes_of(args->sizes);
    const size_t bytes = (size_t)z->width * sizeof(float);
    for (int64_t u = begin; u < end; u++) {
        const int64_t b = u / z->tokens, t = u % z->tokens;
        const int64_t id = ((const int32_t *)args->buffers[DTM_ROWS_IDS])[b * z->ids_batch + t], row = id - z->first;
        float *out = (float *)args->buffers[DTM_ROWS_OUT] + b * z->out_batch + t * z->out_row;
        if (id < 0 || id >= z->vocabulary) dtm_kernel_report(args, u);
        if (id >= 0 && id < z->vocabulary && row >= 0 && row < z->rows)
            memcpy(out, (const float *)args->buffers[DTM_ROWS_TABLE] + b * z->table_batch + row * z->table_row, bytes);
        else
            memset(out, 0, bytes);
    }
}

/* Units: (batch, row of the table). table[b, r, :] (+)= the sum of out[b, t, :] over the tokens t with ids[b, t] -
 * first = r, in the order of t. Ids not held are passed over. Each call looks through all ids of its batches once: deal
 * out long ranges of rows, one a thread. */
static inline int64_t dtm_rows_scatter_extent(const int64_t *sizes) {
    return dtm_rows_sizes_of(sizes)->batch * dtm_rows_sizes_of(sizes)->rows;
}
static inline int64_t dtm_rows_scatter_scratch_bytes(const int64_t *sizes) {
    return (void)sizes, 0;
}

DTM_INLINE void dtm_rows_scatter_batch(const dtm_kernel_args *args, int64_t b, int64_t low, int64_t high) {
    const dtm_rows_sizes *z = dtm_rows_sizes_of(args->sizes);
    float *table = (float *)args->buffers[DTM_ROWS_TABLE] + b * z->table_batch;
    const int32_t *ids = (const int32_t *)args->buffers[DTM_ROWS_IDS] + b * z->ids_batch;
    const float *out = (const float *)args->buffers[DTM_ROWS_OUT] + b * z->out_batch;
    if (!z->accumulate)
        for (int64_t r = low; r < high; r++) memset(table + r * z->table_row, 0, (size_t)z->width * sizeof(float));
    for (int64_t t = 0; t < z->tokens; t++) {
        const int64_t row = ids[t] - z->first;
        if (row < low || row >= high) continue;
        float *to = table + row * z->table_row;
        const float *from = out + t * z->out_row;
#pragma omp simd
        for (int64_t i = 0; i < z->width; i++) to[i] += from[i];
    }
}

static inline void dtm_rows_scatter(const dtm_kernel_args *args, int64_t begin, int64_t end) {
    const dtm_rows_sizes *z = dtm_rows_sizes_of(args->sizes);
    while (begin < end) {
        const int64_t b = begin / z->rows, low = begin % z->rows, high = DTM_MIN(z->rows, low + end - begin);
        dtm_rows_scatter_batch(args, b, low, high);
        begin += high - low;
    }
}

/* ---- rotary positions ----
 *
 *     table [positions, part]: for a position, cos of part / 2 angles, then sin of them
 *     x, out [batch, positions, heads, width], may be the same
 *
 * Pair i of a row turns by its position's angle i: (a, b) -> (a cos - b sin, b cos + a sin); the rest is copied. Sizes:
 * dtm_rope_sizes.
 *
 * The table, of positions offset .. offset + positions (dtm_rope_table_sizes), is made once a program, or once a chunk
 * where the positions of a block are not one range. buffers: {table}; numbers: {base}. Units: positions. angle i of position p = p base^(-2 i / part), in double. */
static inline int64_t dtm_rope_table_extent(const int64_t *sizes) {
    return sizes[0];
}
static inline int64_t dtm_rope_table_scratch_bytes(const int64_t *sizes) {
    return (void)sizes, 0;
}

static inline void dtm_rope_table(const dtm_kernel_args *args, int64_t begin, int64_t end) {
    const dtm_rope_table_sizes *z = (const dtm_rope_table_sizes *)(const void *)args->sizes;
    float *table = args->buffers[0];
    const int64_t half = z->part / 2;
    for (int64_t i = 0; i < half; i++) {
        const double frequency = pow(args->numbers[0], -2.0 * (double)i / (double)z->part);
        for (int64_t p = begin; p < end; p++) {
            const double angle = (double)(p + z->offset) * frequency;
            table[p * z->part + i] = (float)cos(angle);
            table[p * z->part + half + i] = (float)sin(angle);
        }
    }
}

/* One row; sign -1 turns back. Each element is read before its pair is written: x may be out. */
DTM_INLINE void dtm_rope_halves(const float *x, const float *cosine, float *out, int64_t half, float sign) {
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half], c = cosine[i], s = sign * cosine[i + half];
        out[i] = a * c - b * s;
        out[i + half] = b * c + a * s;
    }
}

DTM_INLINE void dtm_rope_pairs(const float *x, const float *cosine, float *out, int64_t half, float sign) {
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        const float a = x[2 * i], b = x[2 * i + 1], c = cosine[i], s = sign * cosine[i + half];
        out[2 * i] = a * c - b * s;
        out[2 * i + 1] = b * c + a * s;
    }
}

/* Units: (batch, position). */
static inline int64_t dtm_rope_extent(const int64_t *sizes) {
    const dtm_rope_sizes *z = (const dtm_rope_sizes *)(const void *)sizes;
    return z->batch * z->positions;
}
static inline int64_t dtm_rope_scratch_bytes(const int64_t *sizes) {
    return (void)sizes, 0;
}

static inline void dtm_rope(const dtm_kernel_args *args, int64_t begin, int64_t end) {
    const dtm_rope_sizes *z = (const dtm_rope_sizes *)(const void *)args->sizes;
    const int64_t half = z->part / 2;
    const float sign = z->inverse ? -1 : 1;
    for (int64_t u = begin; u < end; u++) {
        const int64_t b = u / z->positions, p = u % z->positions;
        const float *cosine = (const float *)args->buffers[DTM_ROPE_TABLE] + p * z->part;
        const float *x = (const float *)args->buffers[DTM_ROPE_X] + b * z->x_batch + p * z->x_position;
        float *out = (float *)args->buffers[DTM_ROPE_OUT] + b * z->out_batch + p * z->out_position;
        for (int64_t h = 0; h < z->heads; h++, x += z->x_head, out += z->out_head) {
            if (z->interleaved)
                dtm_rope_pairs(x, cosine, out, half, sign);
            else
                dtm_rope_halves(x, cosine, out, half, sign);
            if (x != out) memcpy(out + z->part, x + z->part, (size_t)(z->width - z->part) * sizeof(float));
        }
    }
}

#endif
