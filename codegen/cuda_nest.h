/* Inside codegen: the loop nest of one kernel as CUDA C. cuda_nest.c plans how threads go over it and makes the kernel, cuda_parts.c
 * writes the pieces that all shapes share, cuda_shapes.c each shape.
 *
 *     ELEMENTWISE  a thread a vector of W elements, from the flat index of all loops
 *     ROW          a row by a warp or a block (`lanes` threads), pass by pass; reductions are joined over the lanes
 *     COLUMN       a block for 32 vectors of columns: its warps take the rows in turn, and are joined at the end
 *     ALL          blocks go over everything, each leaves one number a reduction in scratch; a second launch of one block joins them
 *     SUMS         as COLUMN, or where a row is reduced too as ROW, for a chunk of the rows, which leaves a row in scratch; a second
 *                  launch joins the chunks
 *
 * Sums are in f32 (of integers in 64 bits). Their order depends on the sizes alone. */
#ifndef DTM_CODEGEN_CUDA_NEST_H
#define DTM_CODEGEN_CUDA_NEST_H

#include "codegen/nest.h"

enum { CUDA_THREADS = 256, CUDA_GROUPS = CUDA_THREADS / 32, CUDA_CHUNKS_OF_ALL = 1024, CUDA_VECTORS_OF_CHUNK = 1024,
       CUDA_CHUNKS_OF_ROWS = 256, CUDA_ROWS_BY_BLOCK = 4, CUDA_ROWS_BY_WARPS = 32, /* of a chunk at least */
       CUDA_KEPT = 4 /* vectors of a row that a thread keeps in registers; of more it would spill */ };

typedef struct cuda_nest {
    nest *n;
    nest_writer w;
    int width;          /* W: elements of a vector, side by side in memory where they are so in a value */
    const char *index;  /* the type of flat indices: uint32_t where all of them fit */
    bool by_rows;       /* ROW, or SUMS whose rows are reduced: `lanes` threads go over a row */
    int lanes, threads;
    int iterations;     /* vectors of a row a lane: the loop over them is unrolled, and what passes share is kept; 0: not known, or many */
    int64_t row;        /* elements of a row, 0: not known */
    bool wide;          /* SUMS: partial sums are of 8 bytes, as some are of integers */
    bool finishing;     /* COLUMN: what is made of the sums is being written */
    int *pending, n_pending; /* values of the row alone that are stored at its end */
    dtm_text before;    /* functions before the entries */
} cuda_nest;

#define CUDA_LINE(c, ...) nest_line(&(c)->w, __VA_ARGS__)

/* ---- cuda_parts.c ---- */

unsigned cuda_loops(const cuda_nest *c, bool inner); /* bits of those loops */
unsigned cuda_last(const cuda_nest *c);
/* The product of the sizes of these loops, as an expression of the index type on the device, or of z[] anywhere. */
const char *cuda_product(const cuda_nest *c, unsigned loops);
const char *cuda_product_on_host(const cuda_nest *c, unsigned loops);
/* i0, i1, .. of these loops from the flat number; of the last loop `first` too. `rest` is a name that is free. */
void cuda_indices(cuda_nest *c, const char *flat, unsigned loops, const char *rest);
/* Pointers, sizes, and what else an entry or a function of a tuple `t` begins with. */
void cuda_open_tuple(cuda_nest *c, dtm_text *out);
/* A vector whose loops' indices are named: what body writes, for each of its elements. */
void cuda_vector(cuda_nest *c, void (*body)(cuda_nest *));
/* What a pass does with an element. */
void cuda_element(cuda_nest *c);
/* Of COLUMN: whether a value is the same for all that is reduced, and differs by column. */
bool cuda_is_of_columns(const cuda_nest *c, dtm_value v);
bool cuda_any_work(const cuda_nest *c);
/* Values of the unit alone: computed now, stored by cuda_store_pending. */
void cuda_scalars(cuda_nest *c);
void cuda_store_later(cuda_nest *c, int i);
void cuda_store_pending(cuda_nest *c, const char *condition);
const char *cuda_total_type(const cuda_nest *c, int i);
const char *cuda_joins(const cuda_nest *c, int i); /* dtm_add or dtm_larger */
const char *cuda_none(const cuda_nest *c, int i);  /* what changes nothing */
const dtm_op_data *cuda_op(const cuda_nest *c, int i);
bool cuda_is_column_sum(const cuda_nest *c, int i);

/* ---- cuda_shapes.c: the entries; body is a fresh text in c->w.out ---- */

void cuda_write_elementwise(cuda_nest *c, dtm_cuda_text *out);
void cuda_write_row(cuda_nest *c, dtm_cuda_text *out);
void cuda_write_column(cuda_nest *c, dtm_cuda_text *out);
void cuda_write_all(cuda_nest *c, dtm_cuda_text *out);
void cuda_write_sums(cuda_nest *c, dtm_cuda_text *out);

#endif
