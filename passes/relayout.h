/* The cheapest way from one layout of a tensor to another: what `partition` writes, and what `shard` counts with when it
 * chooses which copy of a value to make another from. */
#ifndef DTM_PASSES_RELAYOUT_H
#define DTM_PASSES_RELAYOUT_H

#include "passes/cost.h"

enum { DTM_MAX_STEPS = 32 };

/* One step: an operator of ir/ops.def from SHARD to PERMUTE, with the type it makes. */
typedef struct dtm_relayout_step {
    dtm_op_kind kind;
    uint16_t axes;
    dtm_dim over, as; /* the dimension shared out, scattered over or gathered; of all_to_all also the one split instead */
    dtm_type type;
} dtm_relayout_step;

typedef struct dtm_relayout_path {
    size_t count;
    dtm_relayout_step steps[DTM_MAX_STEPS];
    double time;
} dtm_relayout_path;

/* Finds the least modelled time from a type to another of the same shape; the same types always give the same path. Every
 * pair has one, but that nothing becomes pending by max. */
dtm_relayout_path dtm_relayout_find(dtm_module *module, dtm_type from, dtm_type to);

#endif
