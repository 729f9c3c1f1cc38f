/* A launch while it runs: warps, blocks, and what the checks know of them (check.c). */
#ifndef RUN_H
#define RUN_H
#include "ptx.h"

enum { LANES = 32, MAX_WARPS = 32, MAX_BARRIERS = 16 };
#define ALL_LANES UINT32_MAX
#define NOWHERE UINT32_MAX

/* A copy of cp.async that has not been waited for. */
struct copy { int lane, bytes, kept; uint32_t group, to; const char *from; const struct op *op; bool landed; };

enum state { RUNNING, AT_BARRIER, DONE };
struct warp {
    struct block *block;
    int index;
    enum state state;
    uint32_t *file;
    uint32_t live, mask, pc; /* the group of lanes that runs, and its place */
    uint32_t next;           /* the nearest place of other lanes: there both run on together */
    uint32_t waiting;        /* lanes at an instruction that others must come to */
    uint32_t lane_pc[LANES]; /* of lanes that are not in `mask` */
    bool forced;             /* the others will not come */
    int fuel;                /* instructions until another group has its turn */
    uint32_t begun;          /* lanes that are threads */
    const struct op *at;     /* the barrier where it stands */
    /* happens-before: accesses of a warp bear its clock, which every point of order advances */
    uint32_t clock, together;      /* accesses of all its lanes before `together` are known to all its lanes */
    uint32_t *lanes_seen;          /* [lane][lane], once lanes have met in part; else NULL */
    uint32_t seen[MAX_WARPS];      /* clocks of the block's other warps: what was before is known */
    uint32_t fence, fence_seen[MAX_WARPS]; /* what the last fence made ready to be published */
    uint32_t *grid_seen;           /* [block][warp], once it has acquired something; else NULL */
    struct sync *to_acquire;       /* read without order: acquired at the next fence */
    uint32_t group[LANES]; /* number of the group of copies that is open */
    struct copy *copies;
    int n_copies;
};
struct barrier { int expected, arrived, members, yes; uint32_t warps, joined[MAX_WARPS], *grid; };
struct block {
    uint32_t index[3], linear;
    struct warp warp[MAX_WARPS];
    int n_warps, n_done;
    int exited; /* threads */
    char *shared, *local;
    uint64_t *shared_defined, *local_defined; /* a bit a byte */
    int turn; /* the warp that comes next */
    struct shadow *shadow;
    struct barrier barrier[MAX_BARRIERS];
    bool active;
};
struct run {
    const struct sim_launch *launch;
    const struct sim_function *f;
    struct sim_memory *memory;
    struct sim_reports *reports;
    struct sim_counts counts;
    struct block *blocks; /* the resident ones */
    int n_blocks;
    uint64_t n_grid, random, idle; /* idle: warp instructions since something was stored */
    int threads;                   /* a block */
    uint32_t shared_bytes, local_bytes;
    bool stopped;
    void (*run_warp)(struct run *, struct warp *, int64_t turn);
    struct checks *checks;
    char *scratch; /* what is left of the launch's memory */
};

uint64_t draw(struct run *, uint64_t below);

/* The seeded error of an .approx result. */
float approximate(struct run *, int base, uint32_t bits, double exact, double relative, double absolute);

/* Memory for a launch, the same from one to the next: not cleared, of whole cache lines. */
char *memory_scratch(struct sim_memory *, size_t);

/* check.c. `access` is asked before the lanes of `mask` read or write `size` bytes each: lanes that may are returned, with
 * their places in `at`. */
enum access { READS, WRITES, UPDATES, COPIES_FROM, COPIES_TO };
bool checks_begin(struct run *);
void checks_end(struct run *);
void checks_block(struct run *, struct block *); /* a block begins */
uint32_t check_access(struct run *, struct warp *, const struct op *, enum space, uint32_t mask, const uint64_t *address, int size,
                      enum access, char **at);
/* count.c */
void count_access(struct run *, const struct op *, enum space, uint32_t mask, const uint64_t *address, int size, bool writes);
void check_landed(struct run *, struct warp *, const struct copy *);   /* its bytes are there */
void check_waited(struct run *, struct warp *, const struct copy *);   /* and may be read by its thread */
void check_barrier_arrive(struct run *, struct warp *, struct barrier *);
void check_barrier_leave(struct run *, struct warp *, const struct barrier *);
void check_warp_sync(struct run *, struct warp *, uint32_t mask);
void check_fence(struct run *, struct warp *);
/* Adds a report, or counts it if this instruction had the same before: then NULL, as when there is no room. Lane -1: any. */
struct sim_report *report(struct run *, enum sim_check, struct warp *, int lane, const struct op *, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
void describe(struct run *, struct sim_access *, uint64_t block, int thread, const struct op *);
#endif
