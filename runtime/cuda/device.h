/* The GPU of a rank whose program was built with --target cuda: context, streams, memory, compiled kernels. All of it is made by
 * dtm_device_open; a step allocates nothing and waits for nothing but the numbers of the step before.
 *
 *     rank's thread:  instruction, instruction, ..   each enqueues on `compute`, in the plan's order
 *     compute         kernel  product  copy ..       what goes between ranks is on streams of its own (nccl.h), tied by events
 *
 * All addresses that the plan knows (dtm_rank_buffer) are the device's. What changes from step to step, learning rate, seed and
 * step, inputs, is no argument of a launch: it is written to pinned memory and copied into the device's (feed.c), so that a step
 * may be captured once and launched again (graph.c). One thread of a rank makes all calls. */
#ifndef DTM_CUDA_DEVICE_H
#define DTM_CUDA_DEVICE_H

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/pack.h"
#include "runtime/cuda/load.h"
#include "runtime/cuda/nccl.h"
#include "runtime/rank.h"

typedef struct dtm_device_kernels dtm_device_kernels;
typedef struct dtm_device_products dtm_device_products;
typedef struct dtm_feed dtm_feed;
typedef struct dtm_step_graph dtm_step_graph;
typedef struct dtm_bounce dtm_bounce;
typedef struct dtm_marks dtm_marks;

typedef struct dtm_device {
    dtm_cuda *cuda;
    const dtm_driver *driver;
    int rank;                   /* for messages */
    dtm_rank *owner;
    int ordinal, multiprocessors, major, minor;
    char name[96];              /* "NVIDIA H100 80GB HBM3" */
    dtm_cu_device handle;
    dtm_cu_context context;
    dtm_cu_stream compute;
    /* One reservation: the plan's arena, then what the parts below ask for before it is made. */
    dtm_cu_pointer memory;
    dtm_cu_allocation allocation;
    size_t memory_bytes, mapped_bytes;
    bool allocated;
    dtm_cu_stream *streams; /* all of them */
    dtm_cu_event *events;
    size_t n_streams, n_events;
    dtm_device_kernels *kernels;   /* launch.c */
    dtm_device_products *products; /* matmul.c */
    dtm_feed *feed;                /* feed.c */
    dtm_step_graph *graph;         /* graph.c */
    dtm_marks *marks;              /* marks.c */
    dtm_bounce *bounce;            /* bounce.c; NULL: messages go by NCCL */
    dtm_cuda_comms *comms;         /* nccl.c; NULL: the only rank */
    dtm_cu_event finished; /* recorded by whoever waits for all */
    /* Asked now and then while the host waits for the device: false, and a failure, where what goes between ranks has failed. NULL:
     * nothing goes. */
    bool (*watch)(dtm_rank *rank, dtm_status *status);
    /* Host memory for what is read or written outside of steps, of the largest so far. */
    void *view;
    int64_t view_bytes;
    /* What is enqueued: what marks are of. */
    const dtm_plan_instruction *last;
    dtm_status failure; /* of copies between blocks, for the instruction to return */
    bool each_waits; /* for each operation, as its time is asked for */
    bool lost; /* an error that the context does not survive: nothing more is asked of it */
} dtm_device;

/* After all that dtm_rank_load does; all ranks call it. */
bool dtm_device_open(dtm_rank *rank, dtm_status *status);
void dtm_device_close(dtm_rank *rank);
/* For the log: the device, and the libraries that make the bits. */
void dtm_device_put(dtm_device *device, dtm_json_writer *w);
/* By what products are multiplied: "cuBLASLt 13.1", or "dtm's own kernel". */
void dtm_device_products_name(dtm_device *device, char out[64]);

/* ---- device.c: for the other parts ---- */

/* False, and a failure "rank 1, device 0 (NAME): <what>: CUDA_ERROR_.. (text)", unless the result is DTM_CU_SUCCESS. */
__attribute__((format(printf, 4, 5))) bool dtm_device_check(dtm_device *device, dtm_cu_result result, dtm_status *status,
                                                            const char *what, ...);
/* After a library's call has failed: whether that is because the device has, which is then the failure. */
bool dtm_device_has_failed(dtm_device *device, dtm_status *status);
/* They live as long as the device. */
bool dtm_device_stream(dtm_device *device, bool urgent, dtm_cu_stream *out, dtm_status *status);
bool dtm_device_event(dtm_device *device, dtm_cu_event *out, dtm_status *status);
/* Bytes behind the arena, before it is made: where they will begin, aligned to 256. */
int64_t dtm_device_reserve(dtm_device *device, int64_t bytes);
/* Waits for an event, as long as the other ranks live, what goes between them goes on, and within the deadline. */
__attribute__((format(printf, 4, 5))) bool dtm_device_wait(dtm_rank *rank, dtm_cu_event event, dtm_status *status, const char *what, ...);
/* Waits until all that was enqueued on `compute` has ended; a failure of the device comes out here. */
bool dtm_device_finish(dtm_rank *rank, dtm_status *status);

/* ---- launch.c ---- */

/* Compiles, or takes from the cache, all kernels of the plan and the runtime's own; all ranks call it. `measure` comes before
 * memory is made, and says what the launches need of it. */
bool dtm_device_kernels_measure(dtm_rank *rank, dtm_status *status);
bool dtm_device_kernels_load(dtm_rank *rank, dtm_status *status);
void dtm_device_kernels_free(dtm_device *device);
bool dtm_device_launch(dtm_rank *rank, uint32_t instruction, dtm_status *status);
/* A strided copy, and zeros, on a stream. */
bool dtm_device_copy(dtm_device *device, dtm_cu_stream stream, const dtm_pack_sizes *sizes, const void *from, void *to,
                     dtm_status *status);
bool dtm_device_clear(dtm_device *device, dtm_cu_stream stream, void *at, int64_t bytes, dtm_status *status);
/* One product by dtm's own kernel; the fields are those of the CPU's. */
bool dtm_device_product(dtm_device *device, const dtm_matmul_sizes *sizes, dtm_cu_pointer a, dtm_cu_pointer b, dtm_cu_pointer c, const char *what,
                        dtm_status *status);
/* Words that kernels report bad inputs to: how many, and where they were put. */
int64_t dtm_device_errors(const dtm_device *device);
void dtm_device_errors_at(dtm_device *device, int64_t offset);
/* Fails if one of them says that there was one in step rank->step. */
bool dtm_device_bad_input(dtm_rank *rank, const int64_t *words, dtm_status *status);

/* ---- matmul.c ---- */

bool dtm_device_products_measure(dtm_rank *rank, dtm_status *status);
/* Chooses algorithms; all ranks call it. */
bool dtm_device_products_load(dtm_rank *rank, dtm_status *status);
void dtm_device_products_free(dtm_device *device);
bool dtm_device_asks_library(const dtm_device *device);
/* What decides the bits of products beside the program: the library and the algorithms chosen, of all ranks. */
void dtm_device_choices(dtm_device *device, char out[96]);
bool dtm_device_multiply(dtm_rank *rank, uint32_t instruction, double *work, dtm_status *status);

/* ---- feed.c: what goes into a step and comes out of it ---- */

bool dtm_feed_measure(dtm_rank *rank, dtm_status *status);
bool dtm_feed_load(dtm_rank *rank, dtm_status *status);
void dtm_feed_free(dtm_device *device);
/* Before the instructions of a step: gets ready all that is known to go into it, and copies it to the device. */
bool dtm_feed_begin(dtm_rank *rank, dtm_status *status);
/* After them: lets come what the step tells. */
bool dtm_feed_end(dtm_rank *rank, dtm_status *status);
/* The walk of the step begins again. */
void dtm_feed_again(dtm_device *device);
/* SCALAR, INPUT and REPORT. */
bool dtm_feed_scalar(dtm_rank *rank, uint32_t instruction, dtm_status *status);
bool dtm_feed_input(dtm_rank *rank, uint32_t instruction, dtm_status *status);
bool dtm_feed_report(dtm_rank *rank, uint32_t instruction, dtm_status *status);
/* Waits for a step that was enqueued, the last or the one before: its reports, learning rate and errors are the rank's then. */
bool dtm_feed_take(dtm_rank *rank, int64_t step, dtm_status *status);

/* ---- bounce.c: messages by an RDMA adapter, from and to host memory ---- */

bool dtm_bounce_open(dtm_rank *rank, dtm_status *status);
void dtm_bounce_free(dtm_device *device);
/* The memory that messages are sent from and come to. */
void *dtm_bounce_memory(const dtm_device *device, int64_t *bytes);
/* Before a message is started: what it sends is there, where it comes to is free. And after it has come. */
bool dtm_bounce_start(dtm_rank *rank, uint32_t instruction, dtm_status *status);
bool dtm_bounce_finish(dtm_rank *rank, uint32_t instruction, dtm_status *status);
/* Of the i-th buffer of a message, in the microbatch under way. */
void *dtm_bounce_place(const dtm_rank *rank, uint32_t instruction, uint32_t i);
/* While the host waits for an adapter; some drivers go on only when they are asked something. */
void dtm_bounce_poke(void *device);

/* ---- marks.c: how far a step has come ---- */

/* The end of a kernel's parameter, as kernels/cuda/prelude.cuh has it: the word in which it says that it has begun. */
typedef struct dtm_mark {
    dtm_cu_pointer at;
    uint32_t number, unused;
} dtm_mark;

bool dtm_marks_open(dtm_device *device, dtm_status *status);
void dtm_marks_free(dtm_device *device);
/* A walk through the plan begins: what is given is numbered from 1 again. */
void dtm_marks_walk(dtm_device *device);
/* The next step is begun by `compute`; outside of any graph. */
bool dtm_marks_step(dtm_rank *rank, dtm_status *status);
/* What `compute` is given next: a kernel, which takes the mark; or a product of cuBLASLt, which says nothing. The name stays. */
bool dtm_mark_kernel(dtm_device *device, const char *kernel, dtm_mark *out, dtm_status *status);
bool dtm_mark_product(dtm_device *device, dtm_status *status);
/* After a failure: " in `y` (a.dtm, line 3), kernel fused_2, launch 7 of step 4; `x` (a.dtm, line 2) before it has ended". */
void dtm_marks_say(dtm_device *device, char *out, size_t size);

/* ---- graph.c ---- */

/* The instructions of a step, in the walk or as the graph that an earlier step was captured in. */
bool dtm_device_step(dtm_rank *rank, bool (*walk)(dtm_rank *rank, dtm_status *status), dtm_status *status);
void dtm_step_graph_free(dtm_device *device);

#endif
