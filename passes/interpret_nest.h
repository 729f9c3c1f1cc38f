/* Loop nests over named dimensions, which all operators of the interpreter are made of: a tensor that lacks a dimension
 * of the nest has stride 0 there, and one whose block is another than the first tensor's is an error of the module.
 * Nothing outside passes/interpret*.c includes this. */
#ifndef DTM_PASSES_INTERPRET_NEST_H
#define DTM_PASSES_INTERPRET_NEST_H

#include "passes/interpret_state.h"

typedef struct dtm_nest {
    dtm_call *call;
    int rank, tensors;
    dtm_dim dims[DTM_NEST_DIMS];
    int64_t begins[DTM_NEST_DIMS], sizes[DTM_NEST_DIMS];
    int64_t strides[DTM_NEST_TENSORS][DTM_NEST_DIMS];
    bool failed;
} dtm_nest;

/* Where the loops stand: an offset for each tensor at the begin of a row, that is, of the innermost loop. */
typedef struct dtm_cursor {
    bool live; /* not past the end */
    int64_t index[DTM_NEST_DIMS];
    int64_t offset[DTM_NEST_TENSORS];
} dtm_cursor;

int64_t dtm_call_size(const dtm_call *call, dtm_dim dim);
int dtm_tile_dim(const dtm_type_data *type, dtm_dim dim);
bool dtm_call_over(const dtm_call *call, dtm_dim dim);
bool dtm_call_error(dtm_call *call, const char *text, dtm_dim dim);
void dtm_tile_strides(const dtm_tile *tile, int64_t *strides);
dtm_nest dtm_nest_begin(dtm_call *call);
int dtm_nest_add_but(dtm_nest *n, const dtm_tile *tile, const dtm_dim *except, int n_except);
int dtm_nest_add(dtm_nest *n, const dtm_tile *tile);
int dtm_nest_add_position(dtm_nest *n, dtm_dim dim);
int64_t dtm_nest_begin_of(const dtm_nest *n, dtm_dim dim);
bool dtm_nest_close(dtm_nest *n);
bool dtm_nest_empty(const dtm_nest *n);
void dtm_nest_next(const dtm_nest *n, dtm_cursor *c);
dtm_cursor dtm_cursor_begin(const dtm_nest *n);
/* From given offsets on, for a nest inside another over the same tensors. */
dtm_cursor dtm_cursor_from(const dtm_nest *n, const int64_t *offsets);
void dtm_tile_fill(dtm_tile *tile, double number);
bool dtm_call_need_whole(dtm_call *call, const dtm_tile *tile, dtm_dim dim);
int64_t dtm_tile_stride(const dtm_tile *tile, dtm_dim dim);
bool dtm_call_bad_index(dtm_call *call, double index, dtm_dim dim);

/* FOR_ROWS: for each row of a nest. Inside, a row has ROW(n) elements, which lie STEP(n, tensor) apart. */
#define FOR_ROWS(n, c) for (dtm_cursor c = dtm_cursor_begin(&(n)); c.live; dtm_nest_next(&(n), &c))
#define FOR_ROWS_FROM(n, c, offsets)                                                                                   \
    for (dtm_cursor c = dtm_cursor_from(&(n), offsets); c.live; dtm_nest_next(&(n), &c))
#define ROW(n) ((n).sizes[(n).rank - 1])
#define STEP(n, t) ((n).strides[t][(n).rank - 1])

/* By kind: interpret_ops.c makes a table of them. */
#define OP(kind, ...) dtm_interpret_rule dtm_interpret_##kind;
#include "ir/ops.def"
#undef OP

#endif
