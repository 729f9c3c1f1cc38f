/* Collectives that go around a ring in steps with the products that read or make what they move: which do, in one direction or
 * both, by the machine model. A part of the pass overlap. */
#ifndef DTM_PASSES_OVERLAP_STEPS_H
#define DTM_PASSES_OVERLAP_STEPS_H

#include "ir/ir.h"

/* Says of a collective whether it goes in steps. Products of a gather may be moved up to it for that. */
void dtm_choose_steps(dtm_module *module, dtm_op op);

/* The most bytes of values of a region that live at one time: from what sets them to the last that reads them, which is the end if
 * it stands outside, or in another copy; operands of `apart` (0: none) to position `until`. */
int64_t dtm_most_bytes(const dtm_module *module, dtm_region region, dtm_op apart, size_t until);

#endif
