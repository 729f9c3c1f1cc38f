/* The plan: what a rank executes, and the one thing compiler and runtime share. It is plain data: codegen writes it as a
 * C file of constants (`plan.c`, to be read), the system compiler compiles it, the runtime walks it. All ranks carry the
 * same plan; its size depends neither on layers nor on ranks; the same program gives the same bytes.
 *
 *     extents ----> sizes -------------------+                what depends on the rank is evaluated once, at load
 *        |                                   v
 *        +------> buffers ----------> instructions <---- kernels (three tables, one an instruction set; or CUDA C)
 *                    ^                       ^
 *        weights, inputs                   loops
 *
 * References are indices into the plan's tables. Index 0 of `buffers`, `extents`, `sizes`, `loops` is "none".
 *
 * What the runtime does:
 *   load     coordinates of the rank; evaluates extents, then sizes; allocates arena_bytes (of the system's memory, which
 *            is zeroed; of a device's it is not), and for each thread the greatest scratch any kernel instruction asks for; compares what the plan says (plan_hash.h) with the
 *            other ranks
 *   start    fills weights (init, or a file) and states; runs the first `n_start` instructions, once
 *   step     runs the other instructions; nothing is allocated
 */
#ifndef DTM_PLAN_H
#define DTM_PLAN_H

#include "kernels/kernel.h"
#include "runtime/comm/algorithm.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DTM_PLAN_VERSION = 5,
    DTM_PLAN_RANK = 8,   /* dimensions of a tensor */
    DTM_PLAN_AXES = 12,  /* axes of a mesh */
    DTM_PLAN_SPLITS = DTM_PLAN_AXES, /* axes that split one dimension */
    DTM_PLAN_ATOMS = 8,  /* factors of a size */
    DTM_PLAN_OUTER = 6,  /* loops around a matrix product */
};

typedef enum dtm_plan_dtype {
    DTM_PLAN_F32,
    DTM_PLAN_F16,
    DTM_PLAN_BF16,
    DTM_PLAN_I32,
    DTM_PLAN_U8,
    DTM_PLAN_BOOL, /* one byte, 0 or 1 */
} dtm_plan_dtype;

/* A list of indices: `{2, (const uint32_t[]){4, 7}}`. */
typedef struct dtm_plan_list {
    uint32_t count;
    const uint32_t *items;
} dtm_plan_list;

/* ---- the mesh ---- */

/* Ranks count the last space axis fastest. A time axis (at most one, the last) is no part of the rank: its coordinate is
 * the number of the microbatch under way. */
typedef struct dtm_plan_axis {
    const char *name;
    int64_t size;
    bool time;
} dtm_plan_axis;

/* ---- extents: blocks of dimensions ---- */

/* The block of a dimension of `whole` elements that a rank holds. Start with [0, whole); then for each split, major first,
 * cut the block of n elements in hand to the axis' p parts, in units of u, and keep part number i = the rank's coordinate:
 *
 *     space axis:  c = ceil(ceil(n / u) / p) * u;            [min(n, i c), min(n, (i + 1) c))
 *     time axis:   t = ceil(n / u), sizes differ by one unit; [min(n, (i t / p) u), min(n, ((i + 1) t / p) u))
 *
 * The result is {begin, size}. An extent with a time axis changes with the microbatch: evaluate it (and the sizes made of
 * it) again when a microbatch begins. */
typedef struct dtm_plan_split {
    uint8_t axis;
    uint32_t unit;
} dtm_plan_split;

typedef struct dtm_plan_extent {
    const char *dim; /* its name */
    int64_t whole;
    uint8_t count; /* splits; 0: whole on every rank */
    dtm_plan_split splits[DTM_PLAN_SPLITS];
} dtm_plan_extent;

/* ---- sizes: numbers made of extents ---- */

/* base + factor * the product of atoms. An atom is an extent's size, or, with DTM_PLAN_BEGIN set, its begin, or
 * DTM_PLAN_LATER: 0 where sums over the microbatches begin (in the first microbatch; in a timeline in the first call), 1 in all
 * later ones, or DTM_PLAN_COPY_NUMBER: the copy index of the innermost repeat under way (0 outside of any). Sizes with one of
 * these two change during a step. */
#define DTM_PLAN_BEGIN 0x80000000u
#define DTM_PLAN_LATER 0xffffffffu
#define DTM_PLAN_COPY_NUMBER 0xfffffffeu
typedef struct dtm_plan_size {
    int64_t base, factor;
    uint32_t count;
    uint32_t atoms[DTM_PLAN_ATOMS];
} dtm_plan_size;

/* ---- loops ---- */

/* A repeat (its copies) or the microbatches of a step. The repeats of one name in forward, backward and update are one
 * loop, run by several instructions. The *copy index* of a loop under way, from 0 to `copies` - 1, is the copy's number,
 * also where copies run in reversed order; with a parent it is index(parent) * copies + number. */
typedef struct dtm_plan_loop {
    const char *name;
    int64_t copies;
    uint32_t parent; /* the repeat it stands in; 0: none (microbatches are no parent) */
    bool microbatch; /* its number is also the coordinate of the time axis */
    int64_t first;   /* the number of its first copy in names and for dropout: of a pipeline's stage not 0 */
} dtm_plan_loop;

/* ---- buffers ---- */

/* A tensor in the arena: this rank's block, dense, row-major in the order of dims, sizes those of the extents on this
 * rank. Its place is the same on all ranks (offsets are for the largest block). In copy i of its loop it starts at
 *
 *     arena + offset + ((i + shift) mod modulus) * stride                                  bytes; loop 0: arena + offset
 *
 * and for microbatch m of a timeline plan.places[(places - 1) * microbatches + m] * batch_stride bytes further on (places 0: all in
 * one place). Several buffers may lie in one place: values whose lives do not overlap, or one written over another. */
typedef struct dtm_plan_buffer {
    const char *name; /* the value's, as in dumps */
    dtm_plan_dtype dtype;
    uint8_t rank;
    uint32_t dims[DTM_PLAN_RANK]; /* extents */
    int64_t offset, stride;       /* multiples of DTM_KERNEL_ALIGN */
    uint32_t modulus, shift, loop;
    uint32_t places; /* which table, from 1 */
    int64_t batch_stride;
} dtm_plan_buffer;

/* ---- kernels ---- */

/* One generated kernel (kernel.h), at one instruction set. `sizes` of all three are the instruction's sizes, evaluated. */
typedef struct dtm_plan_kernel {
    const char *name;
    dtm_kernel *run;
    int64_t (*extent)(const int64_t *sizes);
    int64_t (*scratch_bytes)(const int64_t *sizes); /* for one thread */
    uint64_t hash; /* of its text */
} dtm_plan_kernel;

/* kernels.c is compiled once for each, with -DDTM_ISA=v1, =v3, =v4, and defines one table; on other machines there is v1
 * alone, plain C, and the rest are NULL. */
enum { DTM_PLAN_V1, DTM_PLAN_V3, DTM_PLAN_V4, DTM_PLAN_ISAS };

/* ---- kernels of a program for NVIDIA GPUs ---- */

/* One launch of a generated CUDA kernel. The functions are of one tuple's sizes, and compiled for the host. */
typedef struct dtm_plan_cuda_launch {
    const char *entry;                       /* extern "C" */
    uint32_t threads;                        /* of a block */
    int64_t (*blocks)(const int64_t *sizes); /* grid.x; 0: nothing to do */
    int64_t (*shared)(const int64_t *sizes); /* bytes of dynamic shared memory; NULL: none */
} dtm_plan_cuda_launch;

/* A generated kernel, at the same index as in the tables of a program for CPUs: its launches run one after another, each with
 * one parameter by value (kernels/cuda/entry.cuh),
 *
 *     struct { struct { void *b[n_buffers]; void *scratch; long long z[n_sizes, at least 1]; } t[tuples]; unsigned long long *error;
 *              struct { unsigned *at, number; } mark; }
 *
 * grid.y is the number of tuples in it, at most `tuples`; grid.x is the largest of their `blocks`, and a block beyond its own
 * tuple's returns. *error holds DTM_KERNEL_OK until a bad input is found, then the least element index (kernels/kernel.h);
 * *mark.at is mark.number when the launch has begun. */
enum { DTM_PLAN_CUDA_LAUNCHES = 4, DTM_PLAN_CUDA_BYTES = 4000 /* most of the parameter */, DTM_PLAN_CUDA_TAIL = 24 /* after the tuples */ };
typedef struct dtm_plan_cuda_kernel {
    const char *name;   /* NVRTC's name for the program is "/dtm/NAME.cu" */
    const char *source; /* CUDA C with all that it includes */
    uint32_t n_launches;
    const dtm_plan_cuda_launch *launches;
    uint32_t n_buffers, n_sizes; /* of a tuple */
    uint32_t tuples;
    int64_t (*scratch_bytes)(const int64_t *sizes); /* of device memory for a tuple, written by its first launch, read by the others; NULL: none */
    uint64_t read_only; /* bit i: it only reads buffer i of a tuple */
    uint64_t hash;      /* of its text */
} dtm_plan_cuda_kernel;

/* ---- instructions ---- */

typedef enum dtm_plan_kind {
    DTM_PLAN_REPEAT,     /* loop: runs what follows up to its DTM_PLAN_END once a copy */
    DTM_PLAN_END,        /* loop: the end of the innermost open one */
    DTM_PLAN_TIMELINE,   /* timeline: the instructions up to its end are run by its calls */
    DTM_PLAN_KERNEL,     /* kernel: a generated kernel */
    DTM_PLAN_MATMUL,     /* matmul */
    DTM_PLAN_COLLECTIVE, /* collective */
    DTM_PLAN_SEND,       /* message: to another rank of the pipeline */
    DTM_PLAN_RECEIVE,    /* message: from one */
    DTM_PLAN_COPY,       /* copy: a box of one buffer to another */
    DTM_PLAN_TERM,       /* copy: `as_term` */
    DTM_PLAN_SCALAR,     /* scalar: a number the host computes */
    DTM_PLAN_INPUT,      /* io: this rank's block of an input of the step */
    DTM_PLAN_REPORT,     /* io: a scalar for the log */
    DTM_PLAN_OUTPUT,     /* io: what inference returns */
    DTM_PLAN_GRADIENT,   /* io: here the buffer holds the whole gradient of a weight, before clipping */
} dtm_plan_kind;

/* What an instruction belongs to: `eval` executes DTM_PLAN_FORWARD alone. Loops that hold both are FORWARD. */
typedef enum dtm_plan_phase { DTM_PLAN_FORWARD, DTM_PLAN_BACKWARD, DTM_PLAN_UPDATE } dtm_plan_phase;

/* For --profile. */
typedef enum dtm_plan_category {
    DTM_PLAN_CONTROL,
    DTM_PLAN_PRODUCT,     /* matrix products */
    DTM_PLAN_ATTENTION,
    DTM_PLAN_ROWS,        /* norms, softmax, cross-entropy */
    DTM_PLAN_ELEMENTWISE,
    DTM_PLAN_REDUCTION,
    DTM_PLAN_LOOKUP,      /* gather, scatter */
    DTM_PLAN_MOVEMENT,    /* copies, shapes */
    DTM_PLAN_OPTIMIZER,
    DTM_PLAN_NETWORK,
    DTM_PLAN_HOST,
    DTM_PLAN_CATEGORIES
} dtm_plan_category;

typedef struct dtm_plan_repeat {
    uint32_t loop;
    bool reversed; /* copies from the last to the first */
    uint32_t end;  /* of the instruction after its END: where to go when no copies are left */
} dtm_plan_repeat;

/* The microbatches of a pipeline's rank, in the order of a timeline. What follows up to `end` is the segments of its calls, one
 * after another. A call
 *
 *     RUN   runs the instructions [begin, end) for a microbatch; in it a SEND starts to send, and a RECEIVE waits for what comes
 *     POST  says that the message which the RECEIVE at `begin` waits for may come from now on
 *     WAIT  waits until what the SEND at `begin` sent for the microbatch has gone */
typedef enum dtm_plan_call_kind { DTM_PLAN_RUN, DTM_PLAN_POST, DTM_PLAN_WAIT } dtm_plan_call_kind;
typedef struct dtm_plan_call {
    uint8_t kind; /* dtm_plan_call_kind */
    bool first;   /* RUN: for the first time in a step */
    bool last;    /* RUN: for the last time */
    uint8_t pair; /* RUN: so many of the calls that follow run at the same time: the other part of a pair, of which a second one fills */
    bool later;   /* of a pair's first call: the other part begins */
    bool fills;   /* and its second call fills from the beginning */
    char task;    /* RUN: 'F', 'B', 'I' or 'W'; with the two that follow its name, F3.1 */
    uint16_t chunk;
    uint32_t number, microbatch; /* number: of its direction */
    uint32_t begin, end;
} dtm_plan_call;

typedef struct dtm_plan_timeline {
    uint32_t loop, end;
    uint32_t n_calls;
    const dtm_plan_call *calls;
} dtm_plan_timeline;

/* Runs kernel.run over [0, extent(sizes)), cut among the threads. With `tuples` > 1 the kernel runs once for each tuple,
 * independent of each other (one dispatch over all their extents is best): buffers and sizes then hold the tuples' lists
 * one after another, all of one length. Tuple t runs once for each copy of the loop loops[t] (in repeats of repeats, of all),
 * these too independent of each other; with loop 0 once, in the copies that are under way. */
typedef struct dtm_plan_launch {
    uint32_t kernel, tuples;
    dtm_plan_list buffers, sizes, loops;
    const char *error;     /* if the kernel can report a bad input: what is wrong, "outside V"; else NULL */
    uint32_t error_buffer; /* the buffer whose element it reports */
} dtm_plan_launch;

/* Whether a product is added to what stands in c. */
typedef enum dtm_plan_accumulate {
    DTM_PLAN_SET,
    DTM_PLAN_ADD,
    DTM_PLAN_ADD_LATER, /* set where sums over the microbatches begin, add in all later ones */
} dtm_plan_accumulate;

/* c = a b, or c += a b, for each of `batch` products: the fields are those of dtm_matmul_sizes, as indices of sizes.
 * Outer loops, the first outermost, move a, b, c by strides (elements) between products of their own; one that `reduces`
 * moves a and b alone and adds up (the first of its turns sets c unless it is added to). If a reducing loop has no turns
 * and c is to be set, it is set to zero. */
typedef struct dtm_plan_outer {
    uint32_t count, a, b, c; /* sizes */
    bool reduces;
} dtm_plan_outer;

typedef struct dtm_plan_matmul {
    uint32_t a, b, c; /* buffers */
    uint32_t batch, m, n, k;
    uint32_t a_batch, a_row, a_col, b_batch, b_row, b_col, c_batch, c_row;
    dtm_plan_accumulate accumulate;
    uint8_t n_outer;
    dtm_plan_outer outer[DTM_PLAN_OUTER];
} dtm_plan_matmul;

/* A collective over the ranks that differ from this one on `axes` alone: those are its group, in order of rank.
 *
 * Geometry is all in the buffers' extents. A tensor has an input and an output, the same dimensions under two layouts.
 * in(r), out(r): the blocks (boxes) of the whole tensor that member r has before and after, its coordinates put into the
 * extents. Then
 *
 *     all_reduce       in(r) = out(r), equal for all r        payload: the block
 *     reduce_scatter   in(r) holds out(s) for every s         for s: the box out(s) of the input
 *     all_gather       out(r) holds in(s) for every s         from s: the box in(s) of the output
 *     all_to_all       any to any, as in `exchange`           from r to s: the box in(r) and out(s) have in common
 *
 * With several tensors (a bucket) the part for or from a member is that of the first tensor, then that of the second, ..
 * A part lies in `stage_in`, `stage_out` packed row-major, members one after another; where stage_in (stage_out) is -1 it
 * is in place already: one tensor whose parts lie one after another in the order of members. What an exchange of one tensor
 * sends may be packed in the memory of its output (stage_in is then DTM_PLAN_IN_OUTPUT).
 * What an all_reduce of several tensors makes may come where it has packed them. It may work where the one that it goes on from has
 * packed what that makes (both are then DTM_PLAN_HANDED_ON): that one is not unpacked.
 *
 * An exchange (all_to_all, also of `permute`) between layouts of which the input has copies on some axes of the group: r
 * sends to s only if r and s have the same coordinate on each axis of the group that does not split the input. */
typedef struct dtm_plan_tensor {
    uint32_t input, output; /* buffers; the same place if it is done in place */
} dtm_plan_tensor;

enum { DTM_PLAN_IN_OUTPUT = -2, DTM_PLAN_HANDED_ON = -3 /* where that of `after` has its stage_out, in the same copies of the loops */ };

typedef struct dtm_plan_collective {
    dtm_collective_kind kind;
    dtm_algorithm algorithm;
    dtm_plan_dtype dtype;
    bool max;      /* reductions: the maximum, else the sum */
    uint16_t axes; /* bit a: axis a */
    uint32_t count;
    const dtm_plan_tensor *tensors;
    int64_t stage_in, stage_out, scratch; /* offsets in the arena; -1: none needed */
    int64_t stage_stride; /* of one that is carried out apart: all three are so many bytes further for each copy; 0: copies share them */
    bool hands_on; /* what it makes stays in stage_out, where another goes on with it */
    dtm_plan_list members; /* along a pipeline's axis: the coordinates that take part, ascending; none: all */
} dtm_plan_collective;

/* Values that go from one rank of a pipeline to the one that differs from it on the pipeline's axis alone, where it has the
 * coordinate `peer`. The buffers' blocks go one after another, as they lie; what is received has the same sizes there. Messages
 * of one sender, receiver and direction arrive in order. */
typedef struct dtm_plan_message {
    uint32_t peer;
    bool backward; /* of a backward pass: in a channel of its own */
    dtm_plan_list buffers;
} dtm_plan_message;

/* COPY: the box that this rank's blocks of both have in common goes from input to output (`shard`; store where it could
 * not be done in place: equal boxes). TERM: a rank whose coordinates on `axes` are all 0 copies (nothing if both are in
 * one place), any other sets the output to zero. */
typedef struct dtm_plan_copy {
    uint32_t input, output;
    uint16_t axes;
} dtm_plan_copy;

typedef enum dtm_plan_number {
    DTM_PLAN_LEARNING_RATE,   /* of this step, from `train`; f32 */
    DTM_PLAN_BIAS_CORRECTION, /* 1 - beta^t, t = step from 1, in double, then f32 */
    DTM_PLAN_SEED_AND_STEP,   /* two u64: the run's seed, the step from 1 (0 in `eval`: no dropout); u8[16] */
    DTM_PLAN_FILL,            /* the number `beta` in every element, in the buffer's dtype */
} dtm_plan_number;

typedef struct dtm_plan_scalar {
    dtm_plan_number number;
    uint32_t buffer;
    double beta;
} dtm_plan_scalar;

typedef struct dtm_plan_io {
    uint32_t index; /* INPUT: of inputs; GRADIENT: of weights */
    uint32_t buffer;
    const char *name; /* REPORT, OUTPUT */
} dtm_plan_io;

typedef struct dtm_plan_instruction {
    dtm_plan_kind kind;
    dtm_plan_phase phase;
    dtm_plan_category category;
    const char *name; /* of the first value it sets, "layer/p": for --profile, --trace and the watchdog */
    const char *file; /* NULL: the root file */
    uint32_t line;    /* of the source; 0: none */
    uint32_t stream;     /* COLLECTIVE that is carried out apart: on which stream of the rank, from 0 */
    uint32_t records;    /* COLLECTIVE: its event, from 1: it is started, and carried out apart; 0: waited for at once */
    uint32_t after;      /* the event of one, carried out apart too, that this one goes on from; 0: none */
    dtm_plan_list waits; /* events that must have ended before: all that was started of them */
    /* Of weight gradients, which fill in a pair: all instructions of the input gradient before this one must have run, in the copies
     * of the repeats that both are in; 0: none. */
    uint32_t needs;
    bool last;           /* run in the last microbatch alone (in a timeline: the last call) */
    /* So many instructions that follow are run with it in steps around the ring of a collective: of an all_gather the products
     * that read what it gathers, rows of a member as they come; of a product those that add to what it makes, and the
     * reduce_scatter of that, rows for a member as they are made. 0: none. */
    uint32_t steps;
    double seconds; /* that one run of it takes on the machine of `machine { .. }`, on the rank with the largest block; what
                     * `explain` counts. A launch over copies: all of them */
    union {
        dtm_plan_repeat repeat;
        dtm_plan_timeline timeline;
        dtm_plan_launch kernel;
        dtm_plan_matmul matmul;
        dtm_plan_collective collective;
        dtm_plan_message message;
        dtm_plan_copy copy;
        dtm_plan_scalar scalar;
        dtm_plan_io io;
    };
} dtm_plan_instruction;

/* ---- weights, states, inputs ---- */

typedef struct dtm_plan_dim {
    const char *name;
    int64_t size; /* of the whole tensor */
} dtm_plan_dim;

typedef enum dtm_plan_init {
    DTM_PLAN_ZEROS,
    DTM_PLAN_ONES,
    DTM_PLAN_NORMAL,  /* standard deviation a */
    DTM_PLAN_UNIFORM, /* [a, b) */
    DTM_PLAN_NUMBER,  /* a */
} dtm_plan_init;

/* A weight or a state: one tensor for each copy of its buffer's loop. This rank's block is that of the buffer's extents.
 * Element e (row-major in the whole tensor of one copy) of the one with path p is drawn by seed, p and e alone. */
typedef struct dtm_plan_weight {
    const char *path; /* "layer.{layer}.wq": the loop's name stands for the copy's number */
    uint32_t buffer;
    uint8_t rank;
    dtm_plan_dim dims[DTM_PLAN_RANK];
    dtm_plan_init init;
    double a, b;
    bool state;    /* of the optimizer: no weight of the program */
    bool frozen;   /* not trained */
    bool gradient; /* there is a GRADIENT instruction for it */
    uint32_t line;
} dtm_plan_weight;

typedef struct dtm_plan_input {
    const char *name;
    dtm_plan_dtype dtype;
    uint8_t rank;
    dtm_plan_dim dims[DTM_PLAN_RANK];
    int64_t limit; /* ids: every element is < limit (the table it looks up, the classes it names); 0: any */
    uint32_t line;
} dtm_plan_input;

/* ---- settings that the runtime needs ---- */

typedef enum dtm_plan_schedule { DTM_PLAN_CONSTANT, DTM_PLAN_LINEAR, DTM_PLAN_COSINE } dtm_plan_schedule;

/* lr(t), t from 1: while t < warmup, peak t / warmup; constant: peak; else x = min(1, (t - warmup) / (steps - warmup)) and
 * linear: peak + (floor - peak) x, cosine: floor + (peak - floor) (1 + cos(pi x)) / 2. */
typedef struct dtm_plan_train {
    bool present;
    dtm_plan_schedule schedule;
    double peak, warmup, schedule_steps, floor;
    int64_t steps;
    uint64_t seed;
    const char *optimizer; /* "adamw(..)", for the log's header */
} dtm_plan_train;

/* Bytes that live in the arena at the peak, by kind, and what it is larger: they sum to arena_bytes. */
typedef struct dtm_plan_memory {
    int64_t weights, gradients, optimizer, activations, workspace, communication, fragmentation;
    const char *peak; /* where most lives: operator, copy and source line */
} dtm_plan_memory;

typedef struct dtm_plan dtm_plan;
struct dtm_plan {
    uint32_t version;       /* DTM_PLAN_FORMAT */
    /* Of a pipeline: the axis along which ranks have plans of their own, and all these plans by the coordinate there. All have
     * the same inputs, settings and kernels. n_stages 0: no pipeline. */
    uint32_t stage_axis, n_stages;
    const dtm_plan *const *stages;
    const char *program;    /* the model's name */
    const char *compiler;   /* its version */
    const char *hash;       /* SHA-256 of the plan's text, 64 hexadecimal digits */
    uint64_t source;        /* hash of the program's text and what its build overrode */
    uint32_t n_axes;
    dtm_plan_axis axes[DTM_PLAN_AXES];
    int64_t ranks, microbatches;
    double seconds;         /* of a step on the machine of `machine { .. }`, all ranks, as `dtmc timeline` predicts it; 0: not said */
    dtm_plan_train train;
    int64_t arena_bytes;    /* the whole of what a rank allocates, but for threads' scratch */
    dtm_plan_memory memory;
    const dtm_plan_kernel *kernels[DTM_PLAN_ISAS]; /* NULL, all three: a program for GPUs */
    const dtm_plan_cuda_kernel *cuda;              /* NULL: a program for CPUs */
    uint32_t n_start; /* instructions at the beginning that run once, before the first step (tables of rope) */
    uint32_t n_kernels, n_cuda, n_extents, n_sizes, n_loops, n_buffers, n_weights, n_inputs, n_instructions;
    uint32_t n_places;      /* tables of places, a number for each of the microbatches */
    const uint32_t *places; /* one after another */
    const dtm_plan_extent *extents;
    const dtm_plan_size *sizes;
    const dtm_plan_loop *loops;
    const dtm_plan_buffer *buffers;
    const dtm_plan_weight *weights;
    const dtm_plan_input *inputs;
    const dtm_plan_instruction *instructions;
};

/* What `version` holds: the format's number and the sizes of its tables' rows, so that a plan compiled against another
 * plan.h than the runtime's is told, not run. */
#define DTM_PLAN_FORMAT                                                                                                \
    ((uint32_t)(DTM_PLAN_VERSION + 16 * (sizeof(dtm_plan) + 3 * sizeof(dtm_plan_instruction) +                         \
                                         5 * sizeof(dtm_plan_buffer) + 7 * sizeof(dtm_plan_weight) +                   \
                                         11 * sizeof(dtm_plan_input) + 13 * sizeof(dtm_plan_kernel) +                  \
                                         17 * sizeof(dtm_plan_cuda_kernel) + 19 * sizeof(dtm_plan_cuda_launch))))

/* What plan.c defines; of a pipeline the plan of coordinate 0. */
extern const dtm_plan dtm_program_plan;

/* ---- rules that the compiler and the runtime must share ---- */

/* The algorithm of a collective: small sums in few rounds, large ones by ring. `bytes`: the payload's, counts[..] summed. */
static inline dtm_algorithm dtm_plan_algorithm(dtm_collective_kind kind, int group_size, int64_t bytes) {
    switch (kind) {
    case DTM_COLLECTIVE_ALL_REDUCE:
        if (bytes <= 16384) {
            if (dtm_algorithm_fits(kind, DTM_ALGORITHM_DOUBLING, group_size)) return DTM_ALGORITHM_DOUBLING;
            return DTM_ALGORITHM_GATHER;
        }
        return DTM_ALGORITHM_RING;
    case DTM_COLLECTIVE_REDUCE_SCATTER:
    case DTM_COLLECTIVE_ALL_GATHER: return DTM_ALGORITHM_RING;
    case DTM_COLLECTIVE_BROADCAST: return DTM_ALGORITHM_TREE;
    default: return DTM_ALGORITHM_PAIRWISE;
    }
}

#endif
