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
/* Whether the copies of the split repeat are shared out among the stages (E0413). */
bool schedule_copies(const dtm_module *module, dtm_arena *scratch);
/* Whether the regions of the ranks' loops are those of the stages that a timeline has there (E0512). */
bool schedule_places(const dtm_module *module, const dtm_timeline *timeline);
/* Whether what each stage sends in the loop is what the next one receives, on the rank it is sent to (E0511). */
bool schedule_messages(const dtm_module *module);
/* Whether ranks that have one weight or state declare and store it alike (E0515). */
bool schedule_weights(const dtm_module *module, dtm_arena *scratch);
/* Proves the timeline that the orders of the ranks' loops make, their messages, sums and copies, whoever wrote them (E0413, E0511,
 * E0512, E0903 to E0908), and that what several ranks have is one (E0515). */
bool schedule_prove(const dtm_module *module);
/* Whether the ranks with their messages and sums, as they will be run, come to the end of a step; else an error (E0511). */
bool schedule_walk(const dtm_module *module, dtm_arena *scratch);
/* The same, and no error. */
bool schedule_ends(const dtm_module *module, dtm_arena *scratch);
/* Whether what is sent is what is received there; else an error (E0511). */
bool schedule_agree(const dtm_module *from, dtm_op send, const dtm_module *to, dtm_op receive);
bool schedule_same_type(const dtm_module *a, dtm_value x, const dtm_module *b, dtm_value y);

#endif
