/* Trials of where a pipeline is cut (stage_settle.h). */
#include "passes/stage_settle.h"
#include "passes/overlap_room.h"
#include "passes/pipeline.h"
#include "passes/stage_choice.h"
#include "passes/step_time.h"

#include <math.h>

static void set_roomy(dtm_module *module, bool roomy) {
    module->settings.roomy = roomy;
    for (size_t r = 0; r < module->n_ranks; r++) module->ranks[r]->settings.roomy = roomy;
}

/* The program with its stages so, through a pass. False after an error. */
static bool run_until(dtm_module *tried, const char *pass, bool roomy) {
    set_roomy(tried, roomy);
    bool good = dtm_pipeline_run(tried, &(dtm_pipeline_options){.until = pass, .unproved = true});
    set_roomy(tried, false);
    return good;
}

/* Passes ask again and again whether a rank still has the memory for what they would do, and place everything to know. Most programs
 * have it, so it is done without asking first. Where that came to too much it may be done with care, but not if the rank that is fullest has
 * not the room for what there is before anything is started ahead. *vain: it has not. */
static dtm_module *compiled(const dtm_module *module, const dtm_stage_choice *choice, bool *vain) {
    dtm_module *tried = dtm_module_clone(module);
    bool good = true;
    tried->choice = choice;
    if (choice->fullest >= 0 && isfinite(dtm_room_of(module))) {
        good = run_until(tried, "fuse_collectives", !choice->careful);
        *vain = good && !dtm_fits_in(tried->ranks[choice->fullest], dtm_room_of(module));
    }
    if (good && !(*vain && choice->careful) && run_until(tried, "memory", !choice->careful) && dtm_pipeline_prove(tried)) return tried;
    dtm_module_destroy(tried);
    return NULL;
}

static dtm_module *try_choice(const dtm_module *module, dtm_stage_chooser *chooser, const dtm_stage_choice *choice, bool *best) {
    dtm_arena *arena = dtm_arena_create();
    bool vain = false;
    dtm_module *tried = compiled(module, choice, &vain);
    double *bytes = NULL, step = INFINITY;
    if (tried) {
        bytes = dtm_arena_alloc(arena, tried->n_ranks * sizeof *bytes);
        for (size_t r = 0; r < tried->n_ranks; r++) bytes[r] = (double)tried->ranks[r]->arena_bytes;
        step = dtm_step_seconds(tried);
    }
    *best = dtm_stage_tried(chooser, choice, bytes, step, vain);
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
    bool there = choice && kept.choice && choice->copies == kept.choice->copies && kept.module;
    *compiled = *compiled && there;
    if (*compiled) dtm_diagnostics_keep(context, mark, kept.from, kept.to);
    else if (choice) dtm_diagnostics_rewind(context, mark);
    else dtm_diagnostics_keep(context, mark, last, dtm_diagnostics_mark(context));
    if (*compiled) dtm_module_become(module, kept.module);
    else dtm_module_destroy(kept.module);
    module->choice = choice;
    return choice != NULL;
}
