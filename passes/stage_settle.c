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

/* The program with its stages so, through `memory`; NULL after an error. */
static dtm_module *compiled_so(const dtm_module *module, const dtm_stage_choice *choice, bool roomy) {
    dtm_module *tried = dtm_module_clone(module);
    tried->choice = choice;
    set_roomy(tried, roomy);
    bool good = dtm_pipeline_run(tried, &(dtm_pipeline_options){.until = "memory"});
    set_roomy(tried, false);
    if (good) return tried;
    dtm_module_destroy(tried);
    return NULL;
}

static double most_of(const dtm_module *tried) {
    double most = 0;
    for (size_t r = 0; r < tried->n_ranks; r++) most = fmax(most, (double)tried->ranks[r]->arena_bytes);
    return most;
}

/* What takes so much of the room at most had it at every step on the way, where there was less to place. */
static const double ROOMY = 0.95;

/* Passes ask again and again whether a rank still has the memory for what they would do, and place everything to know. Most programs
 * have it, so it is done without asking first. */
static dtm_module *compiled(const dtm_module *module, const dtm_stage_choice *choice, double room) {
    size_t mark = dtm_diagnostics_mark(module->context);
    dtm_module *tried = compiled_so(module, choice, true);
    if (tried && most_of(tried) <= ROOMY * room) return tried;
    dtm_diagnostics_rewind(module->context, mark);
    dtm_module_destroy(tried);
    return compiled_so(module, choice, false);
}

static dtm_module *try_choice(const dtm_module *module, dtm_stage_chooser *chooser, const dtm_stage_choice *choice, bool *best) {
    dtm_arena *arena = dtm_arena_create();
    dtm_module *tried = compiled(module, choice, dtm_room_of(module));
    double *bytes = NULL, step = INFINITY;
    if (tried) {
        bytes = dtm_arena_alloc(arena, tried->n_ranks * sizeof *bytes);
        for (size_t r = 0; r < tried->n_ranks; r++) bytes[r] = (double)tried->ranks[r]->arena_bytes;
        step = dtm_step_seconds(tried);
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
