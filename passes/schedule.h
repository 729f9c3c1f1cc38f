/* What the files of the pass schedule share. */
#ifndef DTM_PASSES_SCHEDULE_H
#define DTM_PASSES_SCHEDULE_H

#include "ir/ir.h"

/* schedule_split.c: divides the backward pass of each stage in the program of a pipeline's rank in two, input gradient and
 * weight gradient. */
void schedule_split(dtm_module *module);

#endif
