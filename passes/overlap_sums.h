/* The part of overlap that chooses for all ranks of a pipeline at once. */
#ifndef DTM_PASSES_OVERLAP_SUMS_H
#define DTM_PASSES_OVERLAP_SUMS_H

#include "ir/ir.h"

/* `may`: by rank and operator, the sums along the pipeline that something would hide there. Marks as carried out apart those that
 * the proof allows (schedule_ends), on all ranks that take part. */
void dtm_overlap_sums(dtm_module *module, bool *const *may);

#endif
