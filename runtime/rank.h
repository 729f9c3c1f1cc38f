/* What one rank holds of a run: the plan with its extents and sizes evaluated for this rank, the arena, threads,
 * groups, data, and where the step under way stands. All that is allocated is allocated by dtm_rank_load; a step
 * allocates nothing. With --local a process has several of them. */
#ifndef DTM_RANK_H
#define DTM_RANK_H

#include "kernels/cpu/library.h"
#include "runtime/comm/comm.h"
#include "runtime/geometry.h"
#include "runtime/log.h"
#include "runtime/options.h"
#include "runtime/threads.h"

typedef struct dtm_rank dtm_rank;
typedef struct dtm_gradient_file dtm_gradient_file;
typedef struct dtm_trace dtm_trace;
typedef struct dtm_device dtm_device;
typedef struct dtm_verbs_net dtm_verbs_net;

/* What is worked out once for a collective. Counts are by member: elements for reductions, else bytes. */
typedef struct dtm_transfer {
    dtm_group *group;
    int64_t *sent, *received; /* all_to_all needs both; others one, `sent` */
    bool changes;             /* with the microbatch: counts are to be made again */
    char label[48];           /* "all_reduce of layer/d_up" */
    /* Of a message: requests by microbatch and buffer, and how many of a microbatch are under way. */
    dtm_request *requests;
    uint32_t *started;
    dtm_collective_request request; /* of a collective that was started */
    /* Of one that is carried out apart, in a repeat once a copy: those that were started and not yet waited for. */
    dtm_collective_request *apart;
    int64_t *apart_copies;
    uint32_t n_apart, loop; /* loop: the repeat it stands in */
} dtm_transfer;

typedef struct dtm_indices {
    uint32_t *items;
    uint32_t count;
} dtm_indices;

/* Time spent, by instruction; see profile.h. */
typedef struct dtm_profile_entry {
    double seconds, work; /* work: of products, floating-point operations */
    int64_t runs;
} dtm_profile_entry;

/* Whom collectives go among: on all ranks alike listed, made on those that are in it. */
typedef struct dtm_axes_group {
    uint16_t axes;
    dtm_plan_list members; /* along a pipeline's axis: the coordinates that take part; none: all */
    int tag;
    dtm_group *group; /* NULL: none of this rank's plan */
} dtm_axes_group;

struct dtm_rank {
    const dtm_plan *plan;
    const dtm_options *options;
    dtm_comm *comm;
    uint64_t seed;
    int64_t coordinates[DTM_PLAN_AXES];
    int time_axis; /* -1: none */

    dtm_pool *pool;
    int threads, level; /* level: the instruction set, as in kernels/cpu/library.h */
    const dtm_plan_kernel *kernels;
    const dtm_kernel_entry *pack;

    /* By index of the plan's tables. */
    dtm_span *extents;
    int64_t *sizes;
    int64_t *copies; /* of each loop: the copy index under way */
    int64_t *pair_copies; /* the same of the two parts of a pair and of what fills, one after the other */
    dtm_transfer *transfers;
    uint32_t *events;   /* by event: the instruction that records it */
    uint32_t n_events;
    dtm_axes_group *groups; /* by index of first use in all plans of a program */
    size_t n_groups, cap_groups;
    dtm_group *forward, *backward; /* along a pipeline's axis, for messages; NULL: no pipeline */
    dtm_group *along;              /* the same ranks, for comparisons */
    dtm_group *stage;              /* the ranks of this rank's plan: of a pipeline those of its coordinate, else all */
    /* What is to be evaluated again when a microbatch, when a copy begins. */
    dtm_indices microbatch_extents, microbatch_sizes, copy_sizes;
    int64_t copy_number; /* of the innermost repeat under way */
    int64_t microbatch;  /* under way; 0 outside of their loop */
    bool later, last;    /* sums over microbatches have begun; this is the last microbatch that adds */
    bool in_timeline;
    bool rehearses; /* goes through a step, and does nothing but to note what goes between ranks */

    dtm_verbs_net *verbs; /* what carries messages with --p2p verbs; NULL: the communicator's transport */
    bool failed; /* the run, when the rank is unloaded */
    dtm_device *device; /* of a program for GPUs, whose address the arena is then; NULL: the CPU */
    char *arena;
    char *scratch; /* scratch_bytes for each thread */
    int64_t scratch_bytes;
    /* One launch's arguments, those of its runs one after another, as large as the largest needs. */
    void **buffers;
    int64_t *values, *ends;
    int64_t error; /* the word kernels report to */

    dtm_data *data;
    int64_t step; /* under way, from 0 */
    bool forward_only;
    double learning_rate; /* NAN: the program computes it itself, and reports it */
    dtm_log_report *reports; /* of this step */
    int n_reports;
    dtm_gradient_file *gradients; /* set in the step whose gradients are saved */
    dtm_profile_entry *profile;   /* by instruction; NULL: not asked for */
    int64_t replicas_compared;    /* with --check-replicas */
    dtm_trace *trace;             /* with --trace, else NULL */
    double simulated;             /* with --simulate: until when the rank has computed; monotonic seconds */
};

/* Fills a zeroed rank, all but weights and data, and compares what must be alike on all ranks. All ranks call it; where
 * one fails all fail. */
bool dtm_rank_load(dtm_rank *rank, const dtm_plan *plan, const dtm_options *options, dtm_comm *comm,
                   dtm_status *status);
/* In any state. */
void dtm_rank_unload(dtm_rank *rank);

/* Evaluates extents and sizes for a microbatch; later: sums over them have begun; last: they end. */
void dtm_rank_set_microbatch(dtm_rank *rank, int64_t microbatch, bool later, bool last);
void dtm_rank_set_copy(dtm_rank *rank, int64_t copy_number);

/* Where a buffer is now, or in one copy of its loop. */
void *dtm_rank_buffer(const dtm_rank *rank, uint32_t buffer);
/* What a product is told of a buffer's elements: a dtm_matmul_type. */
int64_t dtm_matmul_type_of(const dtm_rank *rank, uint32_t buffer);
void *dtm_rank_buffer_copy(const dtm_rank *rank, uint32_t buffer, int64_t copy);
/* This rank's block of it. */
dtm_box dtm_rank_box(const dtm_rank *rank, uint32_t buffer);
/* Whether this rank is the one, of those that hold the same block of the buffer, that writes it to files. */
bool dtm_rank_owns(const dtm_rank *rank, uint32_t buffer);

/* ---- cuda/device.c: the host's way to memory of the arena, which may be a device's ---- */

/* Its bytes, to be read until the next of these calls. On a CPU it is the memory itself. NULL: a failure. */
const void *dtm_rank_read(dtm_rank *rank, const void *at, int64_t bytes, dtm_status *status);
/* Where to write what then goes there by dtm_rank_write; on a CPU the memory itself, and the other call does nothing. */
void *dtm_rank_open(dtm_rank *rank, void *at, int64_t bytes, dtm_status *status);
bool dtm_rank_write(dtm_rank *rank, void *at, const void *from, int64_t bytes, dtm_status *status);

/* ---- initial.c ---- */

/* Fills weights as the program says, and states; or states alone. */
bool dtm_rank_initialize(dtm_rank *rank, bool states_alone, dtm_status *status);

/* ---- groups.c ---- */

/* Groups of ranks, and what collectives and messages keep. */
bool dtm_rank_make_groups(dtm_rank *rank, dtm_status *status);

/* ---- verbs.c ---- */

/* Messages of the pipeline go over an RDMA adapter from here on. After the arena has been made; all ranks call it. */
bool dtm_rank_open_verbs(dtm_rank *rank, dtm_status *status);

/* ---- transfer.c ---- */

/* Counts of the collective at `instruction` for the microbatch that is set. */
void dtm_transfer_count(dtm_rank *rank, uint32_t instruction);
bool dtm_run_collective(dtm_rank *rank, uint32_t instruction, dtm_status *status);
/* Starts it (in steps: then what is sent is packed member by member); *going says whether it has to be finished, or is done.
 * Its buffers stay as they are in between. */
bool dtm_start_collective(dtm_rank *rank, uint32_t instruction, dtm_collective_request *request, bool in_steps, bool *going,
                          dtm_status *status);
bool dtm_finish_collective(dtm_rank *rank, uint32_t instruction, dtm_collective_request *request, dtm_status *status);
/* Starts one to be carried out apart, for the copy under way; waits for all that was started of an event, of all of them. */
bool dtm_start_apart(dtm_rank *rank, uint32_t instruction, dtm_status *status);
bool dtm_wait_event(dtm_rank *rank, uint32_t event, dtm_status *status);
bool dtm_wait_list(dtm_rank *rank, const dtm_plan_list *events, dtm_status *status);
bool dtm_wait_events(dtm_rank *rank, dtm_status *status);
/* For the microbatch under way: begins to send, or lets come what is received; waits until the other side has taken it. Its
 * buffers stay as they are in between. */
bool dtm_start_message(dtm_rank *rank, uint32_t instruction, dtm_status *status);
bool dtm_finish_message(dtm_rank *rank, uint32_t instruction, dtm_status *status);
/* Packs, or unpacks, the part of a collective for or from a member. */
void dtm_move_member(dtm_rank *rank, uint32_t instruction, int member, bool packs);
void dtm_run_copy(dtm_rank *rank, const dtm_plan_copy *copy);
void dtm_run_term(dtm_rank *rank, const dtm_plan_copy *copy);
/* Copies the elements of `what`, coordinates of the whole tensor, from one dense block to another; by all threads. */
void dtm_copy_box(dtm_rank *rank, int64_t element_bytes, const void *from, const dtm_box *from_block, void *to,
                  const dtm_box *to_block, const dtm_box *what);

/* ---- execute.c ---- */

bool dtm_run_instruction(dtm_rank *rank, uint32_t index, dtm_status *status);
/* What SCALAR (but FILL) and INPUT put into their buffers, in the step and microbatch under way. */
void dtm_scalar_value(dtm_rank *rank, const dtm_plan_scalar *scalar, void *to);
bool dtm_input_block(dtm_rank *rank, const dtm_plan_io *io, void *to, dtm_status *status);
void dtm_number_as(dtm_plan_dtype dtype, double number, void *to); /* one element */
/* The failure of a kernel that met a bad input: of its error_buffer's block, this element. */
bool dtm_bad_element(dtm_rank *rank, const dtm_plan_instruction *at, int64_t element, int32_t value, dtm_status *status);
/* Of a product: the rows [begin, begin + size) of each of `blocks` blocks of `whole` rows that follow on each other. */
void dtm_run_rows(dtm_rank *rank, uint32_t index, int64_t blocks, int64_t whole, int64_t begin, int64_t size);

/* ---- steps.c ---- */

/* An instruction with `steps` and those that follow it. */
bool dtm_run_in_steps(dtm_rank *rank, uint32_t index, dtm_status *status);

/* ---- walk.c ---- */

/* The instructions that run once. */
bool dtm_rank_start(dtm_rank *rank, dtm_status *status);
/* Goes through a step without doing it (rank->rehearses). */
bool dtm_rank_rehearse(dtm_rank *rank, dtm_status *status);
/* Step number `step`, from 0; a device has it before it then. */
bool dtm_rank_step(dtm_rank *rank, int64_t step, dtm_status *status);
/* Waits for that step, the last one or the one before: its reports and learning rate are the rank's then. */
bool dtm_rank_take_step(dtm_rank *rank, int64_t step, dtm_status *status);
/* The learning rate of step t, from 1. */
double dtm_learning_rate(const dtm_plan_train *train, int64_t t);

#endif
