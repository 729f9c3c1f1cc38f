/* --simulate: a rank whose kernels do not compute but sleep for the time that the plan gives them (`seconds`), and whose
 * messages and sums take their time but move no bytes. So two cores show how many ranks would spend their time. */
#ifndef DTM_SIMULATE_H
#define DTM_SIMULATE_H

#include "runtime/rank.h"

/* Around the steps; nothing where the run is no simulation. */
void dtm_simulate_begin(dtm_rank *rank);
void dtm_simulate_end(dtm_rank *rank);
/* Whether the instruction is done with by sleeping; else it is to be run. */
bool dtm_simulate(dtm_rank *rank, const dtm_plan_instruction *at);

#endif
