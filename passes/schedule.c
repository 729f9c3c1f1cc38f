/* schedule: makes of the loop over microbatches in the program of a pipeline's rank what its schedule has as operations.
 * Where that has input gradients and weight gradients apart (zbh1, zbv, dualpipe, dualpipev), the backward pass of each
 * stage becomes two regions: schedule_split.c. */
#include "passes/schedule.h"
#include "passes/passes.h"
#include "passes/timeline.h"

bool dtm_pass_schedule(dtm_module *module) {
    const dtm_pipeline_rule *rule = &module->settings.pipeline;
    bool splits = rule->present && dtm_timeline_splits(dtm_string_text(module->context, rule->schedule));
    for (size_t r = 0; splits && r < module->n_ranks; r++) schedule_split(module->ranks[r]);
    if (splits && module->of_ranks) schedule_split(module);
    module->after = dtm_string_of(module->context, "schedule");
    return true;
}
