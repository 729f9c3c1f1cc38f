/* Collectives that are started ahead of what reads them, with independent operators of their region moved in between. A part of
 * the pass overlap. */
#ifndef DTM_PASSES_OVERLAP_PREFETCH_H
#define DTM_PASSES_OVERLAP_PREFETCH_H

#include "ir/ir.h"

/* Whether an operator that may be moved is a kernel of its own: elementwise operators would leave the kernels they are fused into. */
bool dtm_is_own_kernel(const dtm_module *module, dtm_op op);

/* Says of the collectives of a module that are not in steps which are carried out apart from where they stand; and of them and those
 * that are `started` ahead already takes back for what a rank has no memory. */
void dtm_prefetch(dtm_module *module, const dtm_op_list *started);
/* After fuse, which may have made the readers again elsewhere: what nothing of its region touches any more is waited for at once. */
void dtm_wait_for_untouched(dtm_module *module);

#endif
