/* What the two files of the microbatch pass share: for every operator, when in a step it runs.
 *
 *     before | early loop 1 | between 1 | early loop 2 | between 2 | .. | the loop | after
 *
 * An early loop has copies of what it needs (passes/microbatch_early.c); every other operator is moved, not copied. */
#ifndef DTM_PASSES_MICROBATCH_H
#define DTM_PASSES_MICROBATCH_H

#include "ir/ir.h"

typedef enum microbatch_phase {
    PHASE_BEFORE,  /* of no microbatch: needs none of their sums */
    PHASE_EARLY,   /* an `accumulate` of the early loop of its level */
    PHASE_BETWEEN, /* made of such sums, after the early loop of its level */
    PHASE_LOOP,    /* of one microbatch */
    PHASE_AFTER,   /* made of sums that the loop accumulates */
} microbatch_phase;

typedef struct microbatches {
    dtm_module *module;
    dtm_arena *scratch;
    uint16_t time; /* bit of the time axis */
    int64_t count;
    dtm_string loop_name;
    size_t n_ops;             /* operators described below: what is made later is in its place already */
    microbatch_phase *phases; /* by operator */
    uint32_t *levels;         /* by operator: how many early loops must have ended before; of an early sum: its loop */
    bool *narrows;            /* by operator, of one microbatch: it makes a gradient of the type that ranks send it in */
    bool *weighted;           /* by operator: weights have a part in it */
    uint32_t never;           /* the level of what weights have a part in, and of sums that need themselves */
    uint32_t n_levels;        /* early loops */
    bool **copied;            /* by level, operator: the early loop has a copy of it */
    bool good;
} microbatches;

/* An operator of a microbatch reads a sum over all of them: decides which sums are made in early loops, and what they need. */
void microbatch_find_early(microbatches *m);
/* Fills the early loop of a level; `tops` are the regions forward, backward and update as they were. */
void microbatch_fill_early(microbatches *m, uint32_t level, dtm_region loop, const dtm_op *tops, size_t n_tops);
/* Removes what only early loops needed. */
void microbatch_remove_copied(microbatches *m);

#endif
