/* What the stages of a pipeline cost, read from programs of its ranks: times by the machine model (cost.h), kernel by
 * kernel, messages, and what lies in memory. Times are seconds, bytes those of the rank that has most. */
#ifndef DTM_PASSES_STAGE_COST_H
#define DTM_PASSES_STAGE_COST_H

#include "ir/fills.h"
#include "passes/timeline.h"

/* Adds what the stages of a rank cost to `costs` (by stage), from its program after fuse or memory. F is a stage's
 * forward region; of its backward regions those of weights are W, the rest I; in a backward region that is not divided,
 * W is what the stage before does not wait for. What a rank holds (weights, gradients, the optimizer's states) is
 * counted once, with the first of its stages. */
void dtm_stage_costs_read(const dtm_module *rank, dtm_stage_cost *costs);
/* What a pair of F and B, and of F and I, of a stage saves, times being those of all operators: sets `hidden`, `later` and, where I and W
 * are divided, `hidden_input`. */
void dtm_stage_pair(const dtm_module *rank, const double *times, int stage, bool divided, dtm_stage_cost *cost);
/* How the calls of a pair, that run these regions, take least time together: a dtm_course_of. */
dtm_pair_course dtm_pair_course_of(const dtm_module *rank, const double *times, const dtm_op *regions, size_t count);
/* Whether what such an operator makes lies in memory all through a step: weights, states, and (in the loop over microbatches) sums. */
bool dtm_lies_all_through(dtm_op_kind kind);
/* Bytes of what an operator makes, of all copies of the repeats around it. */
double dtm_bytes_of_copies(const dtm_module *rank, dtm_op op);
/* Bytes of the gradients that a rank's program accumulates over microbatches. */
double dtm_stage_gradients(const dtm_module *rank);
/* The costs of all stages of a pipeline after fuse or memory, and the link between its ranks. */
dtm_timeline_costs dtm_stage_costs(const dtm_module *module, dtm_arena *arena);
/* What its ranks do in which order: the module's timeline, or of `schedule = sequential` one microbatch after the
 * other. */
const dtm_timeline *dtm_stage_timeline(const dtm_module *module, dtm_arena *arena);
/* `expect { bubble <= 0.15 }`, of a pipeline after fuse or memory, by simulating its timeline; false after an error
 * (E0704). */
bool dtm_bubble_check(const dtm_module *module);

#endif
