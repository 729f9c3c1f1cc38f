/* Inside memory: what memory.c, memory_pool.c and memory_pack.c share. Nothing else includes this. */
#ifndef DTM_PASSES_MEMORY_STATE_H
#define DTM_PASSES_MEMORY_STATE_H

#include "ir/calls.h"
#include "ir/storage.h"

typedef struct group {
    int64_t slot_bytes, slots, begin, end;
    int64_t busy_until;  /* within a copy its slot still holds what came before, up to this position; -1: free */
    uint32_t into;       /* merged into this group; 0: not */
    uint32_t shift;      /* what a value's shift grows by on the way into it */
    bool fixed;          /* merged at the slot `shift`, whatever the copy */
    bool shared;         /* another was merged into it */
    bool persistent;
    dtm_value latest;    /* of a slot a copy: the value that lies in it last; 0: not known */
    uint8_t *seen;       /* by region of the ordered loop: where its values are (DTM_LOOP_SEEN, ..); NULL: they are none of its microbatches */
    uint32_t pool;       /* the group whose bytes it shares with others that are kept from call to call; 0: none */
    int64_t within;      /* where in the pool its lowest place is, */
    uint32_t table;      /* the table at the loop that says how many steps further on a microbatch has it, 0: none, */
    int64_t batch_stride; /* and the bytes of a step */
    int64_t offset;
} group;

typedef struct home { /* where a value lies */
    uint32_t group, shift;
    bool fixed; /* slot `shift`, whatever the copy */
} home;

typedef struct planner {
    dtm_module *module;
    dtm_arena *arena;
    dtm_order order;
    bool *stored;
    home *homes;       /* by value */
    dtm_op **users;    /* by value, zero-terminated */
    dtm_op ordered;    /* the loop over microbatches with an order, or 0 */
    dtm_loop_schedule schedule;
    bool *paired;      /* [region][region]: called at the same time; NULL: none is */
    group *groups;     /* groups[0] is none */
    size_t n_groups, cap_groups;
} planner;

/* Whether values seen in these regions are there in more than one call of the ordered loop, or between calls. */
bool dtm_crosses_calls(const planner *p, const uint8_t *seen);
/* Sets `paired`, from the order. */
void dtm_find_paired_regions(planner *p);
/* Puts what is kept from call to call into pools, which are groups themselves, and writes their tables at the loop. */
void dtm_make_pools(planner *p);
/* Sets `offset` of each group that is not merged; in a pool, the lowest place. Returns the bytes that all of them take. */
int64_t dtm_pack(planner *p);

#endif
