/* schedule: makes of the loop over microbatches in the programs of a pipeline's ranks what their timeline says. Where that has
 * input gradients and weight gradients apart, the backward pass of each stage becomes two regions (schedule_split.c); then
 * each loop gets its rank's line as its order (ir/calls.h), and all of them are proved. Without a timeline (schedule =
 * sequential) the loops stay as they are: one microbatch after the other. */
#include "passes/schedule.h"
#include "ir/timeline.h"
#include "passes/passes.h"
#include "passes/timeline.h"

#include <string.h>

static bool is_part(const dtm_task *task) { return task->kind == DTM_TASK_INPUT || task->kind == DTM_TASK_WEIGHT; }

static bool splits_backward(const dtm_timeline *timeline) {
    for (int r = 0; r < timeline->ranks; r++)
        for (size_t i = 0; i < timeline->order[r].count; i++) {
            const dtm_operation *o = &timeline->order[r].operations[i];
            if (o->kind == DTM_OPERATION_TASK && is_part(&o->tasks[0])) return true;
            if (o->kind == DTM_OPERATION_PAIR && is_part(&o->tasks[1])) return true;
        }
    return false;
}

/* Of a dump taken after stage, which has programs but no timeline: that of its schedule. */
static bool make_timeline(dtm_module *module) {
    const dtm_pipeline_rule *rule = &module->settings.pipeline;
    const char *schedule = dtm_string_text(module->context, rule->schedule);
    if (strcmp(schedule, "sequential") == 0) return true;
    if (strcmp(schedule, "auto") == 0) {
        dtm_error(module->context, rule->span, 204, "a dump taken after `stage` does not say which timeline `auto` found");
        dtm_help(module->context, "take it after `schedule`");
        return false;
    }
    int rounds = rule->rounds > 1 ? (int)rule->rounds : 1;
    dtm_timeline *one = dtm_timeline_order(module->context, module->arena, rule->span, schedule, (int)module->n_ranks,
                                           (int)module->settings.microbatches / rounds, rule->chunks ? (int)rule->chunks : 1);
    module->timeline = one ? dtm_timeline_rounds(module->arena, one, rounds) : NULL;
    return one && schedule_places(module, module->timeline);
}

bool dtm_pass_schedule(dtm_module *module) {
    bool of_dump = module->n_ranks && !module->timeline;
    module->after = dtm_string_of(module->context, "schedule");
    if (of_dump && !make_timeline(module)) return false;
    if (!module->n_ranks || !module->timeline) return schedule_prove(module);
    bool splits = splits_backward(module->timeline);
    for (size_t r = 0; splits && r < module->n_ranks; r++) schedule_split(module->ranks[r]);
    return schedule_order(module) && (!of_dump || dtm_module_verify(module)) && schedule_prove(module);
}
