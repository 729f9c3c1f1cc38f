/* The part of buffer that judges what is started ahead by the messages that it holds up. */
#ifndef DTM_PASSES_BUFFER_SUMS_H
#define DTM_PASSES_BUFFER_SUMS_H

#include "ir/ir.h"
#include "passes/timeline.h"

/* Of a pipeline's ranks after fuse: puts back where they stand the sums that are carried out apart from the loop over microbatches on and
 * go the ways of messages, as many as make a step quicker. */
void dtm_buffer_sums(dtm_module *module, const dtm_timeline *timeline);

#endif
