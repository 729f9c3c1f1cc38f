/* Inside codegen: the plan being made, and what its rooms share. Nothing outside codegen/ includes this.
 *
 *     codegen.c   walks the module, one instruction an operator        tables.c   extents, sizes, loops, buffers
 *     launches.c  gathers launches of the update phase                 sources.c  weights, inputs
 *     collectives.c  what goes between ranks
 *     nest*.c     loop nests of elementwise and reducing kernels       expression.c  operators as C expressions
 *     matmul.c    dot as matrix products                               calls.c    wrappers of library kernels
 *     move.c      gather, scatter, shapes                              write.c    plan.c
 *     cuda*.c     kernels as CUDA C, where that is the target                                                    */
#ifndef DTM_CODEGEN_GENERATOR_H
#define DTM_CODEGEN_GENERATOR_H

#include "codegen/codegen.h"
#include "ir/calls.h"
#include "ir/storage.h"
#include "runtime/plan.h"

/* A kernel as CUDA C. In all its texts @ stands for its name. */
typedef struct dtm_cuda_launch_text {
    const char *suffix; /* KERNEL(@suffix, threads) {..} is in the device's text, its tuple p.t[TUPLE] of the type `tuple` (kernels/cuda/entry.cuh) */
    uint32_t threads;
    const char *blocks; /* an expression of z[], as C: grid.x */
    const char *shared; /* another: bytes of dynamic shared memory; NULL: none */
} dtm_cuda_launch_text;

typedef struct dtm_cuda_text {
    const char *device; /* CUDA C that begins with its #includes */
    const char *host;   /* static functions in C that the expressions call; NULL: none */
    uint32_t n_launches;
    dtm_cuda_launch_text launches[DTM_PLAN_CUDA_LAUNCHES];
    const char *scratch; /* an expression of z[]: bytes of a tuple; NULL: none */
} dtm_cuda_text;

typedef struct dtm_kernel_text {
    dtm_string name, body; /* body: the functions' text with @ for the name */
    uint64_t read_only;    /* bit i: it only reads buffer i of a tuple */
    const dtm_cuda_text *cuda; /* NULL: body is C */
    uint32_t n_buffers, n_sizes; /* of a tuple, with cuda */
} dtm_kernel_text;

typedef struct dtm_early {
    dtm_op collective, place; /* lowered after the unit `place` */
} dtm_early;

typedef struct dtm_generator {
    dtm_module *module;
    dtm_arena *arena;
    bool cuda; /* kernels are CUDA C; else C for CPUs */
    bool *stored;
    dtm_loop_places places; /* of the loop with an order */
    bool failed;
    dtm_plan_phase phase;
    dtm_plan_extent *extents;
    dtm_plan_size *sizes;
    dtm_plan_loop *loops;
    dtm_plan_buffer *buffers;
    dtm_plan_weight *weights;
    dtm_plan_input *inputs;
    dtm_plan_instruction *instructions, *start; /* start: run once, before the first step */
    dtm_kernel_text *kernels;
    size_t n_extents, cap_extents, n_sizes, cap_sizes, n_loops, cap_loops, n_buffers, cap_buffers, n_weights, cap_weights,
        n_inputs, cap_inputs, n_instructions, cap_instructions, n_start, cap_start, n_kernels, cap_kernels;
    const int64_t *ends; /* by buffer: where it ends in any microbatch; NULL: not known yet */
    uint32_t *buffer_of; /* by value; 0: none yet */
    uint32_t *weight_of; /* by value: index + 1 */
    uint32_t step_state; /* buffer of seed and step, 0: none yet */
    dtm_early *early; /* collectives that are lowered before they stand */
    size_t n_early;
    int64_t apart;        /* where the workspaces of what is carried out apart begin */
    int64_t *apart_offset; /* by op: where in these its own begins */
    uint32_t n_events, *event_of; /* of these; by op: which, 0: none yet */
    int64_t aside; /* how far before the workspace lies that of what is lowered: of the other part of pairs, and what fills */
    uint32_t *ended; /* by op: the instruction after those that it was lowered to */
    const dtm_order *order; /* of the operators, while what fills is lowered; else NULL */
    dtm_op needed; /* of the input gradient, by what has been lowered of what fills (ir/fills.h); 0: nothing */
    int64_t workspace;   /* offset of the workspace in the arena */
    int64_t update_chunks;   /* bytes given out of what lies behind the workspace for sums of the update */
    int64_t workspace_bytes; /* behind it lies what a program makes once */
    int64_t step_bytes;  /* bytes after it that seed and step take */
    const double *seconds; /* by operator, of one run; NULL: not predicted */
    double step_seconds; /* of a step */
    dtm_course_of *course; /* of pairs; NULL: not predicted */
    double pending; /* seconds of operators lowered that no instruction has yet */
    size_t stage, n_stages; /* of a pipeline: the coordinate that this plan is of, and how many plans there are; 0: no pipeline */
} dtm_generator;

/* ---- tables ---- */

/* A product of extents on the way to become a size. */
typedef struct dtm_product {
    int64_t base, factor;
    uint32_t count;
    uint32_t atoms[DTM_PLAN_ATOMS];
} dtm_product;

static inline dtm_product dtm_product_one(void) { return (dtm_product){0, 1, 0, {0}}; }
uint32_t dtm_extent_index(dtm_generator *g, const dtm_type_data *type, int index);
/* Whether a rank's block has the same size on all ranks; then *size is it. */
bool dtm_extent_is_even(const dtm_generator *g, const dtm_type_data *type, int index, int64_t *size);
void dtm_product_times(dtm_generator *g, dtm_product *product, const dtm_type_data *type, int index);
void dtm_product_times_product(dtm_product *product, const dtm_product *other);
/* The first element of the block in the whole dimension. */
dtm_product dtm_product_begin(dtm_generator *g, const dtm_type_data *type, int index);
uint32_t dtm_size_index(dtm_generator *g, const dtm_product *product);
bool dtm_product_is_number(const dtm_product *product, int64_t *number);
/* What a kernel's z[] holds, and a size as C: a number, or z[..]. */
typedef struct dtm_size_list {
    uint32_t *items;
    size_t count, capacity;
} dtm_size_list;
const char *dtm_size_text(dtm_generator *g, dtm_size_list *list, const dtm_product *size);
/* Of a dimension of a tensor: its size, the first element of the block, the distance of neighbours in memory. */
const char *dtm_dim_size_text(dtm_generator *g, dtm_size_list *list, const dtm_type_data *type, int index);
const char *dtm_dim_begin_text(dtm_generator *g, dtm_size_list *list, const dtm_type_data *type, int index);
const char *dtm_dim_stride_text(dtm_generator *g, dtm_size_list *list, const dtm_type_data *type, int index);
uint32_t dtm_loop_index(dtm_generator *g, dtm_op loop);
uint32_t dtm_buffer_index(dtm_generator *g, dtm_value value);
/* A buffer that is no value's: in the workspace, at `offset` of it. */
uint32_t dtm_buffer_workspace(dtm_generator *g, const char *name, dtm_plan_dtype dtype, int64_t offset, int64_t elements);
/* Behind the workspace: where a sum over everything of the update keeps its chunks. */
uint32_t dtm_buffer_update_chunks(dtm_generator *g, dtm_op unit);
/* The same as dtm_buffer_workspace for a tensor of that type. */
uint32_t dtm_buffer_packed(dtm_generator *g, const dtm_type_data *type, int64_t offset);
dtm_plan_list dtm_list_of(dtm_generator *g, const uint32_t *items, size_t count);
/* The seed and the step, filled at the start of each step. */
uint32_t dtm_step_state(dtm_generator *g);

/* ---- instructions ---- */

/* A new instruction for op, to be filled in; the pointer is good until the next. */
dtm_plan_instruction *dtm_emit(dtm_generator *g, dtm_op op, dtm_plan_kind kind, dtm_plan_category category);
/* The kernel of that text (`@` stands for its name), made or found; names begin with `name`. */
uint32_t dtm_kernel_index(dtm_generator *g, const char *name, const char *text);
/* The same of CUDA C; all of its launches have so many buffers and sizes a tuple. */
uint32_t dtm_cuda_kernel_index(dtm_generator *g, const char *name, const dtm_cuda_text *text, size_t n_buffers, size_t n_sizes);
void dtm_emit_launch(dtm_generator *g, dtm_op op, dtm_plan_category category, uint32_t kernel, const uint32_t *buffers,
                     size_t n_buffers, const uint32_t *sizes, size_t n_sizes);
void dtm_emit_copy(dtm_generator *g, dtm_op op, uint32_t input, uint32_t output);
/* Writes the END of the repeat whose REPEAT stands at `at`. */
void dtm_end_repeat(dtm_generator *g, size_t at);
/* Puts launches over copies in place of a repeat of the update phase, open from `at` on, as far as its copies do not depend
 * on each other. False: they do, and nothing is done. */
/* Each instruction waits for what is carried out apart and touches the same bytes. */
void dtm_find_waits(dtm_generator *g);
/* Products that are run in steps with the collective before or after them, where the model says that it pays. */
void dtm_find_steps(dtm_generator *g);
bool dtm_gather_launches(dtm_generator *g, size_t at);
/* An operator that codegen cannot lower: an error at its place. */
void dtm_unsupported(dtm_generator *g, dtm_op op, const char *what);

/* ---- lowering ---- */

void dtm_lower_nest(dtm_generator *g, dtm_op unit); /* elementwise, reductions, fused */
void dtm_add_weight(dtm_generator *g, dtm_op op);
int64_t dtm_input_limit(const dtm_generator *g, dtm_value input); /* the least size that its elements index, 0: none */
void dtm_lower_number(dtm_generator *g, dtm_op op);
void dtm_lower_collective(dtm_generator *g, dtm_op op);
void dtm_lower_message(dtm_generator *g, dtm_op op);
void dtm_lower_local(dtm_generator *g, dtm_op op);      /* what a rank does by itself between layouts */
void dtm_lower_accumulate(dtm_generator *g, dtm_op op); /* a sum over microbatches */
void dtm_lower_dot(dtm_generator *g, dtm_op op);
void dtm_lower_attention(dtm_generator *g, dtm_op op);
void dtm_lower_rope(dtm_generator *g, dtm_op op);
void dtm_lower_gather(dtm_generator *g, dtm_op op);
void dtm_lower_scatter(dtm_generator *g, dtm_op op);
void dtm_lower_shape(dtm_generator *g, dtm_op op); /* split, merge, slice, pad, concat where bytes move */

const char *dtm_cuda_stored_type(dtm_dtype dtype); /* cuda_parts.c: of an element in memory */
/* cuda_move.c: adds buffer 0 to buffer 1, or sets it. */
uint32_t dtm_cuda_accumulate(dtm_generator *g, dtm_dtype dtype, bool max);
/* cuda_library.c: what becomes a kernel of the library, where the target is CUDA. False: the operator is lowered as for CPUs. */
bool dtm_lower_cuda(dtm_generator *g, dtm_op op);

/* Copies a tensor to one with the same dimensions in another order. */
typedef struct dtm_placed {
    const dtm_type_data *type;
    uint32_t buffer;
} dtm_placed;
void dtm_emit_transposed(dtm_generator *g, dtm_op op, dtm_placed from, dtm_placed to);

/* Writes an elementwise operator as a C expression of its operands' expressions. False: it is none. */
bool dtm_expression(const dtm_module *module, dtm_op op, const char *const *operands, dtm_text *out);
const char *dtm_c_type(dtm_dtype dtype); /* of an element in memory */
/* An element of that in a register, where halves of f32 are float; and a number as it is stored. */
const char *dtm_c_loaded(dtm_arena *arena, dtm_dtype dtype, const char *element);
const char *dtm_c_stored(dtm_arena *arena, dtm_dtype dtype, const char *number);
void dtm_c_number(dtm_dtype dtype, double number, dtm_text *out);

/* ---- writing ---- */

/* Of a pipeline the plans of all its ranks, which share kernels and inputs. */
void dtm_write_plans(dtm_generator *all, size_t count, dtm_text *out);
void dtm_write_kernels(dtm_generator *g, dtm_text *out);
/* cuda_write.c: the same where the target is CUDA: host functions and sources. `count` generators use the kernels. */
void dtm_write_cuda_kernels(dtm_generator *all, size_t count, dtm_text *out);
/* What is to be read of kernel k, and compiled with the templates that it includes. */
void dtm_write_cuda_source(dtm_generator *all, size_t count, size_t k, dtm_text *out);

#endif
