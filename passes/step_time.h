/* How long a step takes by the machine model: what stands before the loop over microbatches of a pipeline, the timeline, and
 * what comes after it, with what is carried out apart beside the rest and with waiting for other ranks. */
#ifndef DTM_PASSES_STEP_TIME_H
#define DTM_PASSES_STEP_TIME_H

#include "ir/ir.h"
#include "passes/timeline.h"

/* Seconds. */
typedef struct dtm_step_times {
    double before, loop, after; /* without a pipeline `before` and `loop` are 0 */
    double all;
    size_t visited; /* events of ranks that were looked at */
} dtm_step_times;

/* What the ranks of a pipeline carry out apart from their loop's operations on, over the same link as messages; in the arena. */
const dtm_timeline_sum *dtm_step_sums(const dtm_module *module, const dtm_timeline *timeline, dtm_arena *arena, int *count);

/* Whether what a rank carries out apart starts in its loop over microbatches. */
bool dtm_step_starts_in_loop(const dtm_module *rank, dtm_op op);

/* Of a module after fuse or memory. `timeline` and `times`, its simulation under the stages' costs, are those of a pipeline;
 * NULL: it has none. */
dtm_step_times dtm_step_predict(const dtm_module *module, const dtm_timeline *timeline, const dtm_timeline_times *times);

/* All of it, in seconds, of a program with a pipeline or without. */
double dtm_step_seconds(const dtm_module *module);

#endif
