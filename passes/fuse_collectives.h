/* The parts of fuse_collectives: fuse_scatter.c takes all-reduces apart where less is sent, fuse_collectives.c joins what
 * is left into buckets. */
#ifndef DTM_PASSES_FUSE_COLLECTIVES_H
#define DTM_PASSES_FUSE_COLLECTIVES_H

#include "ir/ir.h"

/* All-reduces to reduce-scatter and all-gather, where the modelled time falls. */
void dtm_fuse_scatter(dtm_module *module, dtm_arena *scratch);

#endif
