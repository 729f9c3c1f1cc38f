/* Trials of where a pipeline is cut (stage_settle.h). */
#include "passes/stage_settle.h"
#include "passes/pipeline.h"
#include "passes/stage_choice.h"
#include "passes/stage_cost.h"
#include "passes/step_time.h"

#include <math.h>

static double step_of(const dtm_module *module, dtm_arena *arena) {
    const dtm_timeline *timeline = dtm_stage_timeline(module, arena);
    dtm_timeline_costs costs = dtm_stage_costs(module, arena);
    return dtm_step_predict(module, timeline, dtm_timeline_simulate(arena, timeline, &costs)).all;
}

/* The program with its stages so, through `memory`. */
static dtm_module *try_choice(dtm_module *module, dtm_stage_chooser *chooser, const dtm_stage_choice *choice) {
    dtm_module *tried = dtm_module_clone(module);
    dtm_arena *arena = dtm_arena_create();
    tried->choice = choice;
    if (dtm_pipeline_run(tried, &(dtm_pipeline_options){.until = "memory"})) {
        double *bytes = dtm_arena_alloc(arena, tried->n_ranks * sizeof *bytes);
        for (size_t r = 0; r < tried->n_ranks; r++) bytes[r] = (double)tried->ranks[r]->arena_bytes;
        dtm_stage_tried(chooser, choice, bytes, step_of(tried, arena));
    } else {
        dtm_stage_tried(chooser, choice, NULL, INFINITY);
    }
    dtm_arena_destroy(arena);
    return tried;
}

bool dtm_stage_settle(dtm_module *module, bool *compiled) {
    size_t mark = dtm_diagnostics_mark(module->context);
    dtm_stage_chooser *chooser = dtm_stage_chooser_create(module);
    const dtm_stage_choice *choice = NULL, *last_choice = NULL;
    dtm_module *last = NULL;
    for (bool stands = false; chooser && !stands;) {
        choice = dtm_stage_choose(chooser, &stands);
        if (!choice) break;
        if (stands) continue;
        dtm_module_destroy(last);
        dtm_diagnostics_rewind(module->context, mark);
        last = try_choice(module, chooser, last_choice = choice);
    }
    dtm_stage_chooser_destroy(chooser);
    *compiled = *compiled && choice && last_choice && choice->copies == last_choice->copies && last->n_ranks && last->ranks[0]->arena_bytes;
    if (choice && !*compiled) dtm_diagnostics_rewind(module->context, mark);
    if (*compiled) dtm_module_become(module, last);
    else dtm_module_destroy(last);
    module->choice = choice;
    return choice != NULL;
}
