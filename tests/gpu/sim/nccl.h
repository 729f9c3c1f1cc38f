/* What the parts of NCCL's stand-in share. Ranks are threads of one process or processes of their own; they meet in one file that
 * each of them maps, which the unique id names:
 *
 *     | world: lock, all communicators, what each member asks for | data of communicator 0 | data of communicator 1 | ..
 *
 *     data of one of n members: 2 areas a member, what it brings to a collective, by the number of that; then n x n areas, what is on
 *     its way from a member to a member
 *
 * A launch is what one stream is given at once: a collective, or the sends and receives of a group. Launches of a rank on a
 * communicator run in the order in which they were begun, whatever their streams. */
#ifndef SIM_NCCL_H
#define SIM_NCCL_H

#include "runtime/cuda/abi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* NCCL's own numbers, those that abi.h has not. */
enum { NCCL_OK, NCCL_CUDA, NCCL_SYSTEM, NCCL_INTERNAL, NCCL_ARGUMENT, NCCL_USAGE, NCCL_REMOTE, NCCL_PROGRESS };
enum { CUDA_LAUNCH_FAILED = 719 };

enum { MAX_RANKS = 64, MAX_COMMS = 256, SPLITS = 64, TEXT = 200, WHY = 6000, UNKNOWN_CTAS = 32 };

/* ---- what a rank asks for ---- */

enum kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, ALL_TO_ALL, SEND, RECEIVE };

struct call {
    int kind, type, op, root; /* root: of a send or receive the peer */
    uint64_t count;
};
void call_text(const struct call *call, char *out, size_t size);
int64_t type_bytes(int type); /* 0: none that is known */
bool calls_agree(const struct call *a, const struct call *b);
/* to[i] = the sum (or maximum) over n of from[..][i], for all ranks in one order. */
void reduce(void *to, const void *const *from, int n, uint64_t count, uint64_t first, int type, int op, uint64_t seed);

/* ---- what is shared ---- */

struct member {
    int world; /* its rank there */
    uint64_t begun, done;             /* launches */
    uint64_t reached, finished;       /* collectives */
    struct call call[2];              /* those that it has reached, by number from 0 */
    bool gone;                        /* it has aborted, or destroyed the communicator */
    int splits;
    bool joined;
    char waits[TEXT]; /* what it does, "" is nothing */
    unsigned awaits;  /* not used for decisions: how many members it waits for */
};
struct channel {
    uint64_t sent, taken;
    struct call call;
};
struct shared_comm {
    int n, parent, split, color; /* parent -1: the world */
    uint64_t identity; /* the same in every run, whoever made it first */
    char name[32];
    struct member members[MAX_RANKS];
    struct channel channels[MAX_RANKS][MAX_RANKS]; /* from, to */
};
struct split_call { /* of a member, its number in the parent */
    bool made;
    int color, key;
};
struct world {
    pthread_mutex_t lock;
    _Atomic bool ready;
    int n, n_comms;
    uint64_t area; /* bytes */
    uint64_t epoch; /* how often anything went on */
    double moved;   /* when it did last */
    /* The epoch, from 1, at which nothing of the rank could go on, and its host waits; that it was so once, and when. */
    uint64_t stuck[MAX_RANKS], idle_since[MAX_RANKS];
    double idle_from[MAX_RANKS];
    unsigned long long devices[MAX_RANKS];
    int ctas[MAX_RANKS]; /* occupied */
    uint64_t launches[MAX_RANKS]; /* that were begun, for injected faults */
    bool failed;
    char why[WHY];
    struct shared_comm comms[MAX_COMMS];
    struct split_call splits[MAX_COMMS][SPLITS][MAX_RANKS];
};

/* ---- what a process has ---- */

struct settings {
    uint64_t seed;
    int absent_rank, remote_rank; /* -1: none */
    uint64_t absent_launch, remote_launch; /* from 1 */
    bool abort_hangs;
    int ctas;        /* of a device; 0: any number */
    double patience; /* seconds without anything going on */
    bool waits;      /* no send is over before it has been received */
    bool quiet;
};
extern struct settings nccl_settings;
void settings_read(void);

struct mapping {
    struct mapping *next;
    struct world *world;
    int users;
    int file;
    char path[100];
};
struct mapping *mapping_open(const char *path, int ranks); /* NULL: errno says why */
void mapping_close(struct mapping *);
bool world_create(char *path, size_t size);

struct launch;
struct ncclComm {
    struct mapping *at;
    struct shared_comm *shared; /* NULL: not made yet, or none */
    int index;                  /* of it in the world */
    int rank, n, world_rank;
    char *data; /* areas */
    pthread_mutex_t lock; /* of what follows */
    bool blocking, destroyed;
    _Atomic bool ready; /* all have joined */
    _Atomic bool aborted;
    int error, polls;
    int parent, split, color; /* what it is made of, while it is not there yet */
    int key, ctas;
    char name[32];
    uint64_t begun, calls;
    int captured, alive; /* launches in graphs; runs that are not at their end */
    struct launch *pending, **pending_end;
    int references;
    char last[WHY];
};

double nccl_now(void);
uint64_t nccl_mix(uint64_t a, uint64_t b);
void lock_world(struct world *);
void unlock_world(struct world *);
/* With the lock: everything fails; the text is printed once. */
__attribute__((format(printf, 2, 3))) void fail_world(struct world *, const char *format, ...);
/* With the lock: something went on. */
void move_on(struct world *);
/* With the lock: who waits for whom, appended to `out`. */
void wait_graph(const struct world *, char *out, size_t size);
char *area_of(const struct ncclComm *, int member, int number);     /* of collective `number` */
char *area_between(const struct ncclComm *, int from, int to);
/* Joins, as far as others have come: an NCCL result. */
int comm_join(struct ncclComm *);
void comm_release(struct ncclComm *);

/* ---- launches (nccl_launch.c) ---- */

struct step {
    struct call call;
    const char *from;
    char *to;
};
struct launch {
    struct launch *next;
    struct ncclComm *comm;
    dtm_cu_stream stream;
    _Atomic bool begun;
    bool captured;
    int references, n;
    char name[TEXT];
    struct step steps[];
};
/* Gives it to its stream, which owns it from then on: an NCCL result. */
int launch_enqueue(struct launch *);
bool driver_found(void);
bool driver_mutated(const char *which, const char *of); /* driver_mutants.c */
void *driver_host(const void *at, uint64_t bytes); /* the bytes behind an address; NULL if they are not there */
int driver_device(dtm_cu_stream stream, int *device, unsigned long long *unique);

#endif
