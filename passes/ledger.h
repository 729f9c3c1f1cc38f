/* The ledger: every collective of a step, with its place, axis, bytes, link and time, read off a module after
 * fuse_collectives. `dtmc explain` prints it; contracts (`expect`) are checked against it. */
#ifndef DTM_PASSES_LEDGER_H
#define DTM_PASSES_LEDGER_H

#include "passes/cost.h"

typedef struct dtm_ledger_entry {
    dtm_op op;
    dtm_op_kind kind;
    dtm_op_kind phase;  /* FORWARD, BACKWARD, UPDATE */
    dtm_string repeat;  /* the innermost repeat it stands in, 0: none */
    uint16_t axes;
    int64_t copies;     /* how often it runs in one copy of its repeat, a step: microbatches */
    int64_t count;      /* how often it runs a step */
    uint32_t tensors;   /* operands of a bucket */
    int64_t sent;       /* bytes a step, by the rank that sends most of it */
    int64_t *sent_by;   /* by sender of the ledger */
    dtm_collective_cost cost; /* of one run */
} dtm_ledger_entry;

typedef struct dtm_ledger {
    dtm_ledger_entry *entries;
    size_t count, capacity;
    size_t senders;      /* ranks looked at: all of a small mesh, of a large one those that send most of something */
    int64_t collectives; /* a step */
    int64_t sent;        /* bytes a step by the rank that sends most in all */
    double time;         /* seconds a step, one after another */
} dtm_ledger;

/* In the order of execution; what sends nothing is left out. */
dtm_ledger dtm_ledger_of(dtm_module *module, dtm_arena *arena);
/* Bytes a step on these axes by the rank that sends most there. */
int64_t dtm_ledger_sent_on(const dtm_ledger *ledger, uint16_t axes);
/* Checks every contract of `parallel { expect .. }` on collectives; E0701 for each that does not hold, naming causes. */
bool dtm_ledger_check(dtm_module *module, const dtm_ledger *ledger);
/* W0703 where a rank needs more memory than the machine has. */
void dtm_memory_warn(dtm_module *module);
/* W0810 where an axis over a slower link sends more than twice what one over a faster link does. */
void dtm_ledger_warn(dtm_module *module, const dtm_ledger *ledger);
/* "dp.tp" */
const char *dtm_axes_text(const dtm_module *module, uint16_t axes, dtm_arena *arena);

#endif
