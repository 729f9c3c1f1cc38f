/* The commands train and eval: one rank's run from the plan to the last file. */
#ifndef DTM_RUN_H
#define DTM_RUN_H

#include "runtime/comm/comm.h"
#include "runtime/options.h"
#include "runtime/plan.h"

typedef struct dtm_program_run {
    const dtm_plan *plan;
    const dtm_options *options;
} dtm_program_run;

/* A dtm_rank_main: argument is a dtm_program_run. */
bool dtm_run_rank(dtm_comm *comm, void *argument, dtm_status *status);

#endif
