/* Where the time of a run went: by kind of work and by operator. */
#ifndef DTM_PROFILE_H
#define DTM_PROFILE_H

#include "runtime/rank.h"

/* "matrix products" */
const char *dtm_profile_category(dtm_plan_category category);

/* Prints the tables of this rank on stdout. seconds: of all steps. */
void dtm_profile_print(const dtm_rank *rank, int64_t steps, double seconds);

#endif
