/* Collectives that go around a ring in steps with the products that read or make what they move: which do, in one direction or
 * both, by the machine model. A part of the pass overlap. */
#ifndef DTM_PASSES_OVERLAP_STEPS_H
#define DTM_PASSES_OVERLAP_STEPS_H

#include "ir/ir.h"

/* Says of a collective whether it goes in steps. Products of a gather may be moved up to it for that. */
void dtm_choose_steps(dtm_module *module, dtm_op op);

#endif
