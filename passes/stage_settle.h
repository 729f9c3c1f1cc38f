/* Where a pipeline is cut is settled before `stage`, by compiling the program so cut: see stage_choice.h. */
#ifndef DTM_PASSES_STAGE_SETTLE_H
#define DTM_PASSES_STAGE_SETTLE_H

#include "ir/ir.h"

/* Sets module->choice of a module with a pipeline that has come to `stage`; false after an error. What trials report is dropped. If
 * `compiled`, and the choice that stands was the last to be tried, the module becomes what that trial made of it, through `memory`, with
 * what it reported, and *compiled stays true; else it is set to false. */
bool dtm_stage_settle(dtm_module *module, bool *compiled);

#endif
