/* The sizes and buffers of the kernels that are called through the library (library.h): all that a caller needs to know.
 * attention.h and rows.h say what they mean. */
#ifndef DTM_KERNELS_CPU_SIZES_H
#define DTM_KERNELS_CPU_SIZES_H

#include <stdint.h>

/* ---- attention.h ---- */

typedef struct dtm_attention_strides {
    int64_t b, s, h;
} dtm_attention_strides;

typedef struct dtm_attention_sizes {
    int64_t batch, heads, kv_heads, queries, keys, width, v_width;
    int64_t causal, window;
    int64_t ratio, head_offset, kv_offset; /* ratio = H / G of the whole tensors */
    int64_t queries_total, keys_total, q_offset, k_offset;
    dtm_attention_strides q, k, v, o, lse;
    dtm_attention_strides d_o, dq, dk, dv; /* backward only */
} dtm_attention_sizes;

/* Forward reads q, k, v and writes o, lse; backward reads q, k, v, o, lse, do and writes dq, dk, dv. numbers: {scale}.
 */
enum {
    DTM_ATTENTION_Q,
    DTM_ATTENTION_K,
    DTM_ATTENTION_V,
    DTM_ATTENTION_O,
    DTM_ATTENTION_LSE,
    DTM_ATTENTION_DO,
    DTM_ATTENTION_DQ,
    DTM_ATTENTION_DK,
    DTM_ATTENTION_DV,
};

/* ---- rows.h ---- */

typedef struct dtm_rows_sizes {
    int64_t batch, tokens, rows, width;
    int64_t first, vocabulary;
    int64_t table_batch, table_row, ids_batch, out_batch, out_row;
    int64_t accumulate; /* scatter: 0 clears the table's rows before, 1 adds to what they hold */
} dtm_rows_sizes;

enum { DTM_ROWS_TABLE, DTM_ROWS_IDS, DTM_ROWS_OUT };

typedef struct dtm_rope_sizes {
    int64_t batch, positions, heads, width;
    int64_t part;        /* how many of the width turn; even */
    int64_t interleaved; /* 0: element i pairs with i + part / 2;  1: 2 i with 2 i + 1 */
    int64_t inverse;     /* 1: turns back, which is the gradient */
    int64_t x_batch, x_position, x_head, out_batch, out_position, out_head; /* strides */
} dtm_rope_sizes;

enum { DTM_ROPE_X, DTM_ROPE_TABLE, DTM_ROPE_OUT };

typedef struct dtm_rope_table_sizes {
    int64_t positions, part, offset;
} dtm_rope_table_sizes;

#endif
