/* What the files of the pass schedule share. */
#ifndef DTM_PASSES_SCHEDULE_H
#define DTM_PASSES_SCHEDULE_H

#include "ir/ir.h"
#include "ir/timeline.h"

/* schedule_split.c: divides the backward pass of each stage in the program of a pipeline's rank in two, input gradient and
 * weight gradient. */
void schedule_split(dtm_module *module);

/* schedule_order.c, of a module of a pipeline's ranks: gives each rank's loop over microbatches its line of the module's
 * timeline, with the slots that its proof counts. False after an error. */
bool schedule_order(dtm_module *module);
/* The timeline that the orders of the ranks' loops make, in the arena; NULL: they have none. False after an error (E0512). */
bool schedule_timeline(const dtm_module *module, dtm_arena *arena, dtm_timeline **timeline);
/* Whether what each stage sends is what the next one receives, on the rank it is sent to (E0511). */
bool schedule_messages(const dtm_module *module);
/* Whether ranks come to the sums over several of them in one order (E0511). */
bool schedule_sums(const dtm_module *module);
/* Proves the timeline that the orders of the ranks' loops make, their messages and sums, whoever wrote them (E0511, E0512, E0903 to E0908). */
bool schedule_prove(const dtm_module *module);
/* Whether the ranks' loops with their messages, as they will be run, come to their end; else an error (E0511). */
bool schedule_walk(const dtm_module *module, dtm_arena *scratch);

#endif
