/* Strided copies: to[...] = from[...] over up to 8 dimensions, each with its stride on either side. Packs the operands
 * of a product, the blocks of a collective, and what transposes and slices are left.
 *
 * A copy is first put in its simplest form: dimensions of size 1 dropped, those that run on in both merged, the one
 * that is densest in `to` innermost. Then either both sides run on (memcpy), or the dimension densest in `from` is
 * another one (a transpose, in 4 x 4 blocks within tiles that fit the first-level cache), or it is a plain strided
 * loop. */
#ifndef DTM_KERNELS_CPU_PACK_H
#define DTM_KERNELS_CPU_PACK_H

#include "kernels/cpu/simd.h"
#include "kernels/kernel.h"

#define DTM_PACK_RANK 8

typedef struct dtm_pack_sizes {
    int64_t rank;                /* 0 .. 8; 0 copies one element */
    int64_t bytes;               /* of an element: 1, 2, 4 or 8 */
    int64_t size[DTM_PACK_RANK]; /* strides and offsets in elements; not negative */
    int64_t from[DTM_PACK_RANK], to[DTM_PACK_RANK];
    int64_t from_offset, to_offset;
} dtm_pack_sizes;

enum { DTM_PACK_FROM, DTM_PACK_TO };

/* Rows of one unit, and elements of one where the copy is a single run. */
#define DTM_PACK_ROWS 32
#define DTM_PACK_RUN 16384

typedef struct dtm_pack_dim {
    int64_t size, from, to;
} dtm_pack_dim;

/* The simplest form: outer dimensions, then rows and columns. Columns are the densest in `to`. */
typedef struct dtm_pack_form {
    dtm_pack_dim outer[DTM_PACK_RANK];
    int outers;
    dtm_pack_dim rows, cols;
    int64_t row_blocks; /* of DTM_PACK_ROWS rows */
    int64_t run;        /* 0, or the elements of a single run: then rows are its pieces of DTM_PACK_RUN */
    int64_t units;
} dtm_pack_form;

/* Sorts by the stride in `to`, the largest first, and merges what runs on. Returns how many are left. */
DTM_INLINE int dtm_pack_simplify(const dtm_pack_sizes *z, dtm_pack_dim *dims) {
    int count = 0;
    for (int64_t i = 0; i < z->rank; i++) {
        if (z->size[i] == 1) continue;
        int at = count++;
        for (; at > 0 && dims[at - 1].to < z->to[i]; at--) dims[at] = dims[at - 1];
        dims[at] = (dtm_pack_dim){z->size[i], z->from[i], z->to[i]};
    }
    int kept = 0;
    for (int i = 0; i < count; i++) {
        dtm_pack_dim *last = kept ? &dims[kept - 1] : NULL;
        if (last && last->to == dims[i].to * dims[i].size && last->from == dims[i].from * dims[i].size)
            *last = (dtm_pack_dim){last->size * dims[i].size, dims[i].from, dims[i].to};
        else
            dims[kept++] = dims[i];
    }
    return kept;
}

DTM_NOINLINE dtm_pack_form dtm_pack_form_of(const int64_t *sizes) {
    const dtm_pack_sizes *z = (const dtm_pack_sizes *)(const void *)sizes;
    dtm_pack_form form = {.rows = {1, 0, 0}, .cols = {1, 1, 1}};
    int64_t elements = 1;
    for (int64_t i = 0; i < z->rank; i++) elements *= z->size[i];
    if (elements == 0) return form;
    dtm_pack_dim dims[DTM_PACK_RANK];
    int count = dtm_pack_simplify(z, dims);
    if (count) form.cols = dims[--count];
    int row = count - 1;
    if (form.cols.from != 1)
        for (int i = 0; i < count; i++)
            if (dims[i].from < dims[row].from) row = i;
    if (row >= 0) form.rows = dims[row];
    for (int i = 0; i < count; i++)
        if (i != row) form.outer[form.outers++] = dims[i];
    if (!count && form.cols.size > DTM_PACK_RUN) {
        form.run = form.cols.size;
        form.rows = (dtm_pack_dim){(form.run + DTM_PACK_RUN - 1) / DTM_PACK_RUN, form.cols.from * DTM_PACK_RUN,
                                   form.cols.to * DTM_PACK_RUN};
        form.cols.size = DTM_PACK_RUN;
    }
    const int64_t step = form.run ? 1 : DTM_PACK_ROWS;
    form.row_blocks = (form.rows.size + step - 1) / step;
    form.units = form.row_blocks;
    for (int i = 0; i < form.outers; i++) form.units *= form.outer[i].size;
    return form;
}

/* One loop for each element size: rows x cols by strides. */
#define DTM_PACK_STRIDED(type)                                                                                         \
    typedef type dtm_pack_any_##type __attribute__((may_alias));                                                       \
    DTM_NOINLINE void dtm_pack_##type(const void *from, void *to, int64_t rows, dtm_pack_dim row, dtm_pack_dim col) {  \
        const dtm_pack_any_##type *in = from;                                                                          \
        dtm_pack_any_##type *out = to;                                                                                 \
        for (int64_t r = 0; r < rows; r++)                                                                             \
            for (int64_t c = 0; c < col.size; c++) out[r * row.to + c * col.to] = in[r * row.from + c * col.from];     \
    }
DTM_PACK_STRIDED(uint8_t)
DTM_PACK_STRIDED(uint16_t)
DTM_PACK_STRIDED(uint32_t)
DTM_PACK_STRIDED(uint64_t)

/* rows x cols of 4-byte elements, dense along rows in `from` and along columns in `to`. */
DTM_NOINLINE void dtm_pack_transpose(const float *from, float *to, int64_t rows, dtm_pack_dim row, dtm_pack_dim col) {
    for (int64_t c = 0; c < col.size; c += DTM_PACK_ROWS)
        dtm_transpose(from + c * col.from, col.from, DTM_MIN(col.size - c, DTM_PACK_ROWS), rows, to + c, row.to);
}

DTM_INLINE void dtm_pack_block(const char *from, char *to, int64_t rows, dtm_pack_dim row, dtm_pack_dim col,
                               int64_t bytes) {
    if (col.from == 1 && col.to == 1) {
        for (int64_t r = 0; r < rows; r++)
            memcpy(to + r * row.to * bytes, from + r * row.from * bytes, (size_t)(col.size * bytes));
        return;
    }
    if (bytes == 4 && row.from == 1 && col.to == 1)
        dtm_pack_transpose((const float *)(const void *)from, (float *)(void *)to, rows, row, col);
    else if (bytes == 4)
        dtm_pack_uint32_t(from, to, rows, row, col);
    else if (bytes == 2)
        dtm_pack_uint16_t(from, to, rows, row, col);
    else if (bytes == 1)
        dtm_pack_uint8_t(from, to, rows, row, col);
    else
        dtm_pack_uint64_t(from, to, rows, row, col);
}

/* Units: blocks of rows of the simplest form. */
static inline int64_t dtm_pack_extent(const int64_t *sizes) {
    return dtm_pack_form_of(sizes).units;
}
static inline int64_t dtm_pack_scratch_bytes(const int64_t *sizes) {
    return (void)sizes, 0;
}

static inline void dtm_pack(const dtm_kernel_args *args, int64_t begin, int64_t end) {
    const dtm_pack_sizes *z = (const dtm_pack_sizes *)(const void *)args->sizes;
    const dtm_pack_form form = dtm_pack_form_of(args->sizes);
    const int64_t step = form.run ? 1 : DTM_PACK_ROWS;
    for (int64_t u = begin; u < end; u++) {
        const int64_t block = u % form.row_blocks, first = block * step;
        int64_t from = z->from_offset + first * form.rows.from, to = z->to_offset + first * form.rows.to;
        int64_t rest = u / form.row_blocks;
        for (int i = form.outers - 1; i >= 0; rest /= form.outer[i].size, i--) {
            from += rest % form.outer[i].size * form.outer[i].from;
            to += rest % form.outer[i].size * form.outer[i].to;
        }
        dtm_pack_dim cols = form.cols;
        if (form.run) cols.size = DTM_MIN(cols.size, form.run - first * DTM_PACK_RUN);
        dtm_pack_block((const char *)args->buffers[DTM_PACK_FROM] + from * z->bytes,
                       (char *)args->buffers[DTM_PACK_TO] + to * z->bytes, DTM_MIN(step, form.rows.size - first),
                       form.rows, cols, z->bytes);
    }
}

#endif
