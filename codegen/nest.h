/* Inside codegen: the loop nest of one elementwise or reducing kernel, planned by nest.c and written by nest_text.c.
 *
 *     ELEMENTWISE  no reduction.   units: all loops but the last (of a single loop: blocks of it); the last is the row
 *     ROW          reduces the innermost dimensions.   units: the other loops; a row is all the reduced ones
 *     COLUMN       keeps the innermost dimension, reduces others.   units: kept loops, the last one in blocks
 *     ALL          reduces everything.   units: chunks of rows; a second kernel adds up the chunks
 *     SUMS         sums along columns, of many rows, and what else is done with a row, as ROW or elementwise.   units:
 *                  chunks of rows; a second kernel adds up the chunks, its units are blocks of columns */
#ifndef DTM_CODEGEN_NEST_H
#define DTM_CODEGEN_NEST_H

#include "codegen/generator.h"

enum { NEST_LOOPS = 16, NEST_BLOCK = 4096, NEST_COLUMNS = 64, NEST_CHUNK = 8192 };

typedef enum nest_shape { NEST_ELEMENTWISE, NEST_ROW, NEST_COLUMN, NEST_ALL, NEST_SUMS } nest_shape;

typedef struct nest_loop {
    dtm_product size;
    char expression[32]; /* of its size: a number, or z[..] */
    bool reduced, inner; /* inner: runs within a row */
    int first_dim, n_dims; /* in nest.dims */
} nest_loop;

typedef struct nest_dim {
    dtm_dim dim;
    const dtm_type_data *type; /* a type that has it, for its layout */
    int index;
    bool reduced, pinned; /* pinned: a loop of its own, as its position is needed */
    int loop;
} nest_dim;

typedef struct nest {
    dtm_generator *g;
    dtm_op unit;
    const dtm_op *ops;
    size_t n_ops;
    int *levels, most;
    nest_shape shape;
    nest_dim dims[NEST_LOOPS];
    int n_dims;
    nest_loop loops[NEST_LOOPS];
    int n_loops;
    dtm_value *touched; /* values in memory that it reads or writes: its buffers, in this order */
    size_t n_touched, cap_touched;
    uint32_t *extra;    /* buffers of no value, after them */
    size_t n_extra, cap_extra;
    uint32_t *sizes;    /* what z[] holds */
    size_t n_sizes, cap_sizes;
    bool *saved;        /* by body index: kept in scratch from one pass to the next */
    bool *written;      /* by body index: lies in memory */
    int *column_sum;    /* SUMS, by body index: number of a sum along columns; -1: none */
    int n_column_sums;
    int n_saved;
} nest;

int nest_body_index(const nest *n, dtm_value value); /* -1: made elsewhere */
int nest_touch(nest *n, dtm_value value);            /* its index among the buffers */
int nest_size(nest *n, const dtm_product *size);     /* its index in z[] */
bool nest_has_loop(const nest *n, dtm_value value, int loop);
bool nest_is_inner(const nest *n, dtm_value value); /* differs within a row */

/* ---- writing: nest_values.c, nest_text.c, cuda_nest.c ---- */

/* A vector of the last loop whose elements are being written as CUDA C: W of them, k = 0 .. W - 1. What lies side by side there is
 * read into arrays x3[W] before, and stored from y5[W] after; `read` by buffer, `stored` by body index. */
typedef struct nest_vector {
    bool *read, *stored;
    const char *saved; /* where in s5[] element k is kept */
    dtm_text before;   /* what is computed for all of them at once */
} nest_vector;

typedef struct nest_writer {
    nest *n;
    dtm_text *out;
    int depth;
    int pass;
    bool *emitted; /* by body index: has a name in the block being written */
    bool hoisted;  /* what does not differ within a row has been read into c0, c1, .. */
    nest_vector *vector; /* NULL: element by element */
} nest_writer;

__attribute__((format(printf, 2, 3))) void nest_line(nest_writer *w, const char *format, ...);
const char *nest_register_type(dtm_dtype dtype);
/* The name of a value, which is read or computed where it has none yet. */
const char *nest_value(nest_writer *w, dtm_value v);
/* Names the value of body op i. */
void nest_define(nest_writer *w, int i, const char *expression);
/* Stores it in memory. */
void nest_store(nest_writer *w, int i);
/* A value in memory. */
const char *nest_loaded(nest_writer *w, dtm_value v);
/* The flat index of a saved value within the row. */
const char *nest_row_index(const nest_writer *w);

/* Its offset in memory by the loops that are inner, or are not. */
const char *nest_offset(const nest_writer *w, dtm_value v, bool inner);
/* Whether elements of the last loop lie side by side in it. */
bool nest_is_vector(const nest_writer *w, dtm_value v);

/* Whether body op i is a reduction, but none along columns, that this pass makes; or anything that it does in its innermost loop. */
bool nest_reduces(const nest_writer *w, int i);
bool nest_works(const nest_writer *w, int i);
/* Whether the second kernel of SUMS makes it. */
bool nest_comes_after(const nest_writer *w, int i);
/* Reads what is the same for the whole unit before its loops. */
void nest_write_hoisted(nest_writer *w);

/* Whether a value is the same in all rows, and so, with SUMS, is what the second kernel computes. */
bool nest_is_common(const nest *n, dtm_value value);

/* Pieces of C that the rooms of writing share. */
const char *nest_rows_expression(const nest_writer *w);  /* how many rows: the product of the loops that are not inner */
const char *nest_inner_expression(const nest_writer *w); /* elements of a row */
const char *nest_identity(const dtm_op_data *op, dtm_dtype dtype); /* what a reduction begins with */
void nest_accumulate(nest_writer *w, const dtm_op_data *op, const char *into, const char *x);
const char *nest_finished(nest_writer *w, int i, const char *total); /* the mean's division */
const char *nest_rounded(nest_writer *w, dtm_dtype dtype, const char *number); /* in a register, to a dtype */
void nest_open_loop(nest_writer *w, int loop, const char *begin, const char *end);
void nest_close_block(nest_writer *w);
/* i0, i1, .. of the unit's loops from the flat number `u`, but for loop `except`. */
void nest_unit_indices(nest_writer *w, const char *u, int except);
/* All passes over the row whose unit's indices are named. */
void nest_write_row(nest_writer *w);

/* Writes the functions; `finish` (ALL and SUMS alone) is the second kernel. */
void nest_write(nest *n, dtm_text *out);
void nest_write_finish(nest *n, dtm_text *out);
/* nest_sums.c: the unit of SUMS, its extent and those of its second kernel. */
void nest_sums_unit(nest_writer *w);
void nest_sums_extent(nest_writer *w, dtm_text *out);
void nest_sums_finish_unit(nest_writer *w);
void nest_sums_finish_extent(nest_writer *w, dtm_text *out);

/* cuda_nest.c: all of it as CUDA C, its second kernel too. */
void nest_lower_cuda(nest *n, const char *name, dtm_plan_category category);

#endif
