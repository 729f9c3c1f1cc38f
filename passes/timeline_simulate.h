/* Within the simulation of timelines: timeline_simulate.c (costs, memory, what is waiting) and timeline_clock.c (when things happen)
 * share this. */
#ifndef DTM_PASSES_TIMELINE_SIMULATE_H
#define DTM_PASSES_TIMELINE_SIMULATE_H

#include "passes/timeline.h"

/* Times all operations and messages; `times` has its arrays. */
void timeline_clock(const dtm_timeline *timeline, const dtm_timeline_costs *costs, dtm_timeline_times *times);

static inline int timeline_n_tasks(const dtm_operation *o) {
    return o->kind == DTM_OPERATION_GROUP ? 0 : o->kind == DTM_OPERATION_PAIR ? 2 : 1;
}

#endif
