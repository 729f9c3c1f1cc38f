/* Where the time of a run went: by kind of work and by operator. */
#ifndef DTM_PROFILE_H
#define DTM_PROFILE_H

#include "runtime/rank.h"

/* "matrix products" */
const char *dtm_profile_category(dtm_plan_category category);

/* Prints the tables of this rank on stdout. seconds: of all steps. */
void dtm_profile_print(const dtm_rank *rank, int64_t steps, double seconds);
/* Of a pipeline, by all ranks at once: rank 0 prints for each stage what its slowest rank computes in a step, and what is predicted. */
bool dtm_profile_print_stages(const dtm_rank *rank, int64_t steps, dtm_status *status);

#endif
