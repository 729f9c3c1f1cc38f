/* The stand-in for libcuda, on sim.h: what its files share. All state is guarded by one mutex, which is not held while an operation
 * runs.
 *
 *     driver_start.c   devices, contexts, attributes, errors; the table of functions
 *     driver_memory.c  addresses, allocations, pinned memory; copies and fills
 *     driver_code.c    modules, functions, launches
 *     driver_order.c   streams and events; operations, and which of them runs next
 *     driver_graph.c   capture and graphs
 *     driver_races.c   vector clocks; who touched what last
 *     driver_mutants.c mistakes of a caller, made for it
 *
 * An operation runs when those that it depends on are done: the one before it in its stream, and those that its stream waited for. Which
 * of the ready ones is next is drawn. Nothing runs until a host thread waits or asks, but for a few that are drawn at an enqueue, and
 * for what a thread of the driver's own does when no host thread has done anything for a while (it may be waiting for another process). */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

#include "declare.h"
#include "sim.h"
#include "work.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 64 };
#define DEVICE_BIT (UINT64_C(1) << 52) /* of a device's address; without it, it is the host's */

enum errors {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
    NO_BINARY = 209, INVALID_PTX = 218, PTX_TOO_NEW = 222, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
    OUT_OF_RESOURCES = 701, LAUNCH_TIMEOUT = 702, PEER_ENABLED = 704, MISALIGNED = 716, LAUNCH_FAILED = 719, NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_MERGE = 902, CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905, CAPTURE_IMPLICIT = 906, CAPTURED_EVENT = 907, CAPTURE_WRONG_THREAD = 908
};

/* ---- devices and what lives on them ---- */

struct device {
    int ordinal, retained, error; /* error: sticky */
    struct sim_memory *memory;
    size_t created;  /* bytes of memory */
    bool busy;       /* an operation of it runs */
    int pending;     /* operations that are not done */
    int waiters;     /* host threads that wait for it */
    uint64_t peers;  /* devices whose access it has enabled */
    double virtual_time;
    long ran;        /* kernels and work of libraries, for fault_of */
};
/* Every handle points to something that begins so. They are kept when they are destroyed, so that a use after it is known. */
enum kind { STREAM = 0x51e0, EVENT, MODULE, FUNCTION, GRAPH, EXEC };
struct object { enum kind kind; bool dead; struct device *device; struct object *next; };
extern struct state {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool initialised;
    int n_devices, architecture, multiprocessors, checks, sample, graphs;
    size_t memory;
    uint64_t random, seed;
    struct device devices[MAX_DEVICES];
    struct object *objects;
    int said;
} sim;

void lock(void);
void unlock(void);
uint64_t drawn(uint64_t below); /* with the mutex */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *fresh(size_t n, size_t size); /* zeroed; aborts without memory */
struct device *current(void);       /* of the thread's context, or NULL */
/* What every call but those of the start begins with, with the mutex: 0, or the error that it gives. */
int enter(void);
/* `unsafe`: also refused, and the capture spoilt, where the thread captures in a mode that forbids what may synchronise. */
int enter_unsafe(void);
void *object_new(enum kind kind, size_t size);
/* The object, or NULL after a report: no such thing, destroyed, or of another context than the thread's (`anywhere`: that is right). */
void *object_of(const void *handle, enum kind kind, const char *call, bool anywhere);

/* ---- operations ---- */

struct extent { char name[48]; uint64_t at; size_t bytes; int direction; };
struct copy { uint64_t to, from; size_t to_pitch, from_pitch, width, rows; char *staged; };
struct fill { uint64_t at; uint32_t value; int width; size_t count; };
struct code { struct function *function; uint32_t grid[3], block[3], shared; char *params; size_t params_size; bool declared; };
enum doing { NOTHING, LAUNCHES, COPIES, FILLS, WORKS };
/* What is to be done: of an operation, or of a node of a graph and all operations that it becomes. */
struct task {
    int references;
    enum doing doing;
    char name[64];
    struct device *device, *other; /* other: the second of a copy between two, else NULL */
    struct extent *extents;
    int n_extents;
    union { struct code code; struct copy copy; struct fill fill; struct sim_work work; };
};
struct clock { uint32_t *at; int n; }; /* of each chain */
struct op {
    struct task *task;
    int references;
    struct stream *stream; /* in reports */
    int waits;             /* operations that it waits for */
    struct op **after;     /* those that wait for it */
    int n_after;
    bool done, running, begun;
    int chain;
    struct clock clock;
    void *run;        /* of work */
    uint64_t digest;  /* of what it copies from the host, when it was enqueued */
    uint64_t number, asked;
    double finish;    /* virtual time, in milliseconds */
    struct op *next_pending, **link_pending;
};

struct stream {
    struct object object;
    int number, chain, priority;
    struct op *last;
    struct capture *capture;      /* that it is part of */
    struct node_set { int *nodes, n; } tips; /* nodes that its next node depends on */
};
struct event {
    struct object object;
    bool timed;
    struct op *op;           /* NULL: never recorded */
    struct capture *capture; /* recorded in a capture, */
    struct node_set tips;    /* after these nodes */
};

/* A task from the calling thread's device, with what it declared if `takes`. */
struct task *task_new(enum doing doing, struct device *device, const char *name);
void task_touch(struct task *, const char *name, uint64_t at, size_t bytes, int direction);
void task_release(struct task *);
/* Into the stream, or its capture. The task's reference becomes the stream's. */
int enqueue(struct stream *, struct task *);
struct op *op_new(struct task *, struct stream *, int chain);
void op_after(struct op *, struct op *before); /* before may be NULL or done */
void op_ready(struct op *);                    /* all of `op_after` is said */
void op_release(struct op *);
int wait_for(struct op *);                     /* the device's error */
void drain(struct device *);                   /* NULL: all */
void quiet(struct device *);                   /* until none of its operations runs */
bool op_touches(const struct op *, uint64_t at, size_t bytes);
extern struct op *pending;
int run_task(struct op *); /* without the mutex: the error, or SIM_WORK_WAITS */
int run_launch(struct op *);
int run_copy(struct op *);
int run_fill(struct op *);
uint64_t copy_digest(const struct task *);
void poison_target(const struct task *);

/* ---- memory ---- */

void *host_of(uint64_t at, size_t bytes);
struct device *device_at(uint64_t at); /* NULL: the host's */
bool is_pinned(uint64_t at, size_t bytes);
/* Whether extents of reading are defined, and the definition of what was written. */
bool check_defined(const struct task *);
void define_written(const struct task *);

/* ---- clocks ---- */

int chain_new(void);
void clock_join(struct clock *, const struct clock *);
extern struct clock host_clock;
/* Holds what an operation touches against what others did; a report and false for a race. */
bool races_touch(const struct op *);
void races_forget(uint64_t at, size_t bytes); /* it is unmapped */

/* ---- capture ---- */

int capture_enqueue(struct stream *, struct task *);
int capture_record(struct stream *, struct event *);
int capture_wait(struct stream *, struct event *);
void capture_spoil(struct capture *);
const char *capture_name(const struct event *); /* of what it was recorded after */
int capture_forbids(void); /* for what may synchronise */
void set_copy(struct node_set *, const struct node_set *);
void code_release(struct task *);
bool hold_declared(const struct task *);

void write_calls(void); /* driver_mutants.c */
int fault_of(const struct op *); /* the error that what has run ends with, made by DTM_SIM_FAULT */

#define DRIVER_FUNCTION(name, since, parameters) dtm_cu_result fake_##name parameters;
DTM_DRIVER_FUNCTIONS(DRIVER_FUNCTION)
#undef DRIVER_FUNCTION

#endif
