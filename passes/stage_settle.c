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
static dtm_module *try_choice(dtm_module *module, dtm_stage_chooser *chooser, const dtm_stage_choice *choice, bool *best) {
    dtm_module *tried = dtm_module_clone(module);
    dtm_arena *arena = dtm_arena_create();
    double *bytes = NULL, step = INFINITY;
    tried->choice = choice;
    if (dtm_pipeline_run(tried, &(dtm_pipeline_options){.until = "memory"})) {
        bytes = dtm_arena_alloc(arena, tried->n_ranks * sizeof *bytes);
        for (size_t r = 0; r < tried->n_ranks; r++) bytes[r] = (double)tried->ranks[r]->arena_bytes;
        step = step_of(tried, arena);
    }
    *best = dtm_stage_tried(chooser, choice, bytes, step);
    dtm_arena_destroy(arena);
    return tried;
}

/* The best that was tried so far, and what was reported of it. */
typedef struct kept_trial {
    dtm_module *module;
    const dtm_stage_choice *choice;
    size_t from, to;
} kept_trial;

bool dtm_stage_settle(dtm_module *module, bool *compiled) {
    dtm_context *context = module->context;
    size_t mark = dtm_diagnostics_mark(context), last = mark;
    dtm_stage_chooser *chooser = dtm_stage_chooser_create(module);
    const dtm_stage_choice *choice = NULL;
    kept_trial kept = {NULL};
    for (bool stands = false, best; chooser && !stands;) {
        choice = dtm_stage_choose(chooser, &stands);
        if (!choice) break;
        if (stands) continue;
        kept_trial trial = {.choice = choice, .from = dtm_diagnostics_mark(context)};
        trial.module = try_choice(module, chooser, choice, &best);
        trial.to = last = dtm_diagnostics_mark(context);
        dtm_module_destroy(best ? kept.module : trial.module);
        if (best) kept = trial;
    }
    dtm_stage_chooser_destroy(chooser);
    bool there = choice && kept.choice && choice->copies == kept.choice->copies && kept.module->ranks && kept.module->ranks[0]->arena_bytes;
    *compiled = *compiled && there;
    if (*compiled) dtm_diagnostics_keep(context, mark, kept.from, kept.to);
    else if (choice) dtm_diagnostics_rewind(context, mark);
    else dtm_diagnostics_keep(context, mark, last, dtm_diagnostics_mark(context));
    if (*compiled) dtm_module_become(module, kept.module);
    else dtm_module_destroy(kept.module);
    module->choice = choice;
    return choice != NULL;
}
