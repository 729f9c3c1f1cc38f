/* What fuse.c, fuse_groups.c and fuse_remake.c share. */
#ifndef DTM_PASSES_FUSE_H
#define DTM_PASSES_FUSE_H

#include "ir/storage.h"

/* Puts the operators of a region that are worth one kernel into `fused` regions, and those inside its loops. */
void dtm_fuse_groups(dtm_module *module, dtm_region region);

/* Makes values again, in the fused regions that read them, where that costs less than keeping them. */
void dtm_fuse_remake(dtm_module *module);

#endif
