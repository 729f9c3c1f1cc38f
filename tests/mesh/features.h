/* What random programs must have beside operators and their splits, and what must come of some of them: a program is counted once for
 * each, from modules as passes leave them. */
#ifndef DTM_TESTS_FEATURES_H
#define DTM_TESTS_FEATURES_H

#include "passes/interpret.h"

typedef enum feature {
    FEATURE_NESTED,           /* a repeat in a repeat */
    FEATURE_IN_ORDER,         /* repeats one after another */
    FEATURE_ACROSS,           /* one of them reads in its copies what was made before another */
    FEATURE_SHARED,           /* two of them have a weight in common */
    FEATURE_PIPELINE_AMONG,   /* a pipeline of more than one rank, and repeats beside the one that it splits */
    FEATURE_PIPELINE_NESTED,  /* such a pipeline, and a repeat in a repeat */
    FEATURE_ONE_MICROBATCH,   /* a pipeline of one microbatch */
    FEATURE_ONE_AND_REPEATS,  /* of more than one rank, with repeats beside or in the one that it splits */
    FEATURE_STEPS,            /* collectives in steps with products */
    FEATURE_AHEAD,            /* started ahead within their region */
    FEATURE_BUCKETS,          /* several in one */
    FEATURE_SUMS_APART,       /* sums of gradients beside the backward pass */
    FEATURE_SUMS_ALONG,       /* the same along a pipeline */
    FEATURE_ANOTHER_ORDER,    /* operators that go behind others, for what hides a collective */
    FEATURE_NO_ROOM,          /* what waits where it stands, for want of memory */
    FEATURE_NEARLY_FULL,      /* memory that is enough, of which at least nine tenths are used */
    FEATURE_AGAIN,            /* operators that are made again in other kernels */
    FEATURE_BF16,             /* precision bf16 */
    FEATURE_F16,              /* precision f16 */
    FEATURE_REDUCE_BF16,      /* gradients of weights sent in bf16, by more than one rank */
    FEATURE_RESTS,            /* weights that rest in parts, gathered once for both passes */
    FEATURE_GATHERED_AGAIN,   /* and by the backward pass for itself */
    FEATURE_SKIPPED,          /* a step that is skipped, and one that is not */
    FEATURES
} feature;

extern const char *const feature_texts[FEATURES];

/* Names of what is computed, in order, for each rank of a pipeline; in the context's arena. */
typedef struct feature_orders {
    struct {
        dtm_string *names;
        size_t count, capacity;
    } *ranks;
} feature_orders;

/* What a module shows after autodiff, after overlap (the orders being those before it), and after memory. */
void features_add_structure(long met[FEATURES], dtm_module *module);
void features_note_orders(feature_orders *orders, dtm_module *module);
void features_add_orders(long met[FEATURES], const feature_orders *before, dtm_module *module);
void features_add_result(long met[FEATURES], dtm_module *module);
/* What it shows when it is interpreted. */
void features_add_run(long met[FEATURES], const dtm_module *module, const dtm_interpretation *result);

#endif
