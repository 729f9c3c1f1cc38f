/* The order of passes, on one page. */
#include "passes/pipeline.h"

#include "passes/passes.h"
#include "passes/interpret.h"
#include "passes/schedule.h"
#include "passes/stage_settle.h"

#include <string.h>

const dtm_pass_row dtm_passes[] = {
    {"canonicalize", dtm_pass_canonicalize, "desugars, folds constants, flattens sums, removes what nothing reads"},
    {"autodiff", dtm_pass_autodiff, "adds the backward pass and the optimizer's update, before any layout"},
    {"precision", dtm_pass_precision, "says which values are in bf16 or f16, and casts weights for their use"},
    {"shard", dtm_pass_shard, "gives every operator its split on every axis and every value its layout"},
    {"partition", dtm_pass_partition, "writes changes of layout as the cheapest collectives"},
    {"microbatch", dtm_pass_microbatch, "puts what varies over microbatches in a loop, and accumulates"},
    {"stage", dtm_pass_stage, "cuts a pipeline into the programs of its ranks"},
    {"schedule", dtm_pass_schedule, "divides backward passes, orders what the ranks of a pipeline do for which microbatch, proves it", true},
    {"fuse_collectives", dtm_pass_fuse_collectives, "merges collectives into buckets", true},
    {"overlap", dtm_pass_overlap, "starts collectives where their operands are complete, beside what is computed", true},
    {"fuse", dtm_pass_fuse, "groups operators into kernels"},
    {"buffer", dtm_pass_buffer, "gives messages of a pipeline as many slots as it takes to be quick", true},
    {"memory", dtm_pass_memory, "places every value in one arena"},
};
const size_t dtm_n_passes = sizeof dtm_passes / sizeof *dtm_passes;

int dtm_pass_find(dtm_context *context, const char *name) {
    dtm_string names[16];
    for (size_t i = 0; i < dtm_n_passes; i++) {
        if (strcmp(dtm_passes[i].name, name) == 0) return (int)i;
        names[i] = dtm_string_of(context, dtm_passes[i].name);
    }
    dtm_error(context, (dtm_span){0, 0, 0}, 203, "there is no pass `%s`", name);
    dtm_string nearest = dtm_string_nearest(context, name, names, dtm_n_passes);
    if (nearest)
        dtm_help(context, "did you mean `%s`? `dtmc passes` lists them", dtm_string_text(context, nearest));
    else
        dtm_help(context, "`dtmc passes` lists them");
    return -1;
}

static bool run_one(dtm_module *module, const dtm_pass_row *pass, const dtm_pipeline_options *options) {
    dtm_context *context = module->context;
    dtm_module *before = options->validate ? dtm_module_clone(module) : NULL;
    bool good = true;
    for (size_t i = 0; i < module->n_ranks && !pass->whole; i++) good = pass->run(module->ranks[i]) && good;
    if (!module->n_ranks || pass->whole) good = pass->run(module);
    module->after = dtm_string_of(context, pass->name);
    dtm_module_compact(module);
    for (size_t i = 0; i < module->n_ranks; i++) {
        module->ranks[i]->after = module->after;
        dtm_module_compact(module->ranks[i]);
    }
    if (!options->unproved) good = good && schedule_prove(module); /* what a pass moves, it moves on one rank */
    if (good && options->verify && !dtm_module_verify(module)) {
        dtm_note(context, (dtm_span){0, 0, 0}, "the pass `%s` left this", pass->name);
        good = false;
    }
    if (good && before) {
        dtm_validate_options validate = {.seed = options->seed};
        good = dtm_validate(before, module, pass->name, &validate);
    }
    dtm_module_destroy(before);
    return good;
}

bool dtm_pipeline_prove(const dtm_module *module) { return schedule_prove(module); }

static bool stops_before(const dtm_pipeline_options *options, const char *pass) {
    for (size_t i = 0; options->until && strcmp(dtm_passes[i].name, pass) != 0; i++)
        if (strcmp(dtm_passes[i].name, options->until) == 0) return true;
    return false;
}

bool dtm_pipeline_run(dtm_module *module, const dtm_pipeline_options *options) {
    size_t first = 0;
    if (module->after)
        for (size_t i = 0; i < dtm_n_passes; i++)
            if (strcmp(dtm_passes[i].name, dtm_string_text(module->context, module->after)) == 0) first = i + 1;
    if (!options->unproved && !schedule_prove(module)) return false; /* of a dump, perhaps edited */
    for (size_t i = first; i < dtm_n_passes; i++) {
        if (dtm_passes[i].run == dtm_pass_stage && module->settings.pipeline.present && !module->choice) {
            bool compiled = !options->verify && !options->validate && !options->after && !stops_before(options, "memory");
            if (!dtm_stage_settle(module, &compiled)) return false;
            if (compiled) {
                i = (size_t)dtm_pass_find(module->context, "memory");
                if (options->until && strcmp(options->until, "memory") == 0) break;
                continue;
            }
        }
        if (!run_one(module, &dtm_passes[i], options)) return false;
        if (options->after) options->after(module, dtm_passes[i].name, options->state);
        if (options->until && strcmp(options->until, dtm_passes[i].name) == 0) break;
    }
    return true;
}
