/* stage: makes a pipeline of a program. A rule `pp splits layer` gives the copies of a repeat to the ranks along an axis, a
 * stage a chunk of a rank, and from here on there is a program for each coordinate on that axis: with the copies that are
 * its own, what stands before the repeat on the first stage and what stands after it on the last, and messages of what
 * goes from stage to stage. stage_choose.c chooses the cut,
 * stage_find.c says how the rest is told apart; stage_emit.c writes the programs.
 *
 *     model llama { forward { .. repeat layer = 8 { .. } .. } .. }
 * becomes
 *     model llama pp = 0 { forward { .. repeat layer = 4 { .. } } .. send(x.3.out on pp, peer = 1) .. }
 *     model llama pp = 1 { .. x.3.in = receive(on pp, peer = 0) .. forward { repeat layer = 4 from 4 { .. } .. } }
 */
#include "passes/stage.h"
#include "ir/calls.h"
#include "passes/passes.h"
#include "passes/stage_choice.h"
#include "passes/timeline.h"

#include <string.h>

/* ---- where stages lie ---- */

int stage_at(const stages *s, int rank, int chunk) { return dtm_timeline_stage(s->places, rank, chunk); }

int stage_chunk(const stages *s, int stage, int direction) {
    int rank, chunk;
    dtm_timeline_place(s->places, stage, direction, &rank, &chunk);
    return chunk;
}

int stage_rank(const stages *s, int stage, int direction) {
    int rank, chunk;
    dtm_timeline_place(s->places, stage, direction, &rank, &chunk);
    return rank;
}

void stage_holders(const stages *s, int stage, bool *ranks) {
    for (int d = 0; d < stage_directions(s); d++) ranks[stage_rank(s, stage, d)] = true;
}

int stage_lowest(const stages *s) {
    int stage = 0;
    while (!stage_copies(s, stage)) stage++;
    return stage;
}

int stage_highest(const stages *s) {
    int stage = s->count - 1;
    while (!stage_copies(s, stage)) stage--;
    return stage;
}

int64_t stage_copies_of_repeat(const dtm_module *module, dtm_string name) {
    for (dtm_op op = 1; op < module->n_ops; op++) {
        const dtm_op_data *data = dtm_op_get(module, op);
        if (data->region && data->kind == DTM_OP_REPEAT && data->attributes.name == name) return data->attributes.copies;
    }
    return 0;
}

/* ---- what is said of a cut ---- */

/* More stages than copies, though as many ranks: a timeline of stages that do nothing. */
static void warn_empty(const stages *s, int64_t copies) {
    int none = 0;
    for (int k = 0; k < s->count; k++) none += !stage_copies(s, k);
    if (!none || s->n_ranks == 1) return; /* one rank waits for nobody */
    const char *axis = dtm_string_text(s->module->context, s->module->settings.mesh.axes[s->rule->axis].name);
    int each = s->count / s->n_ranks;
    dtm_warning(s->module->context, s->rule->span, 812, "%s has %d ranks of %d stages each for %lld cop%s of `%s`: %d of the %d stages %s none",
                axis, s->n_ranks, each, (long long)copies, copies == 1 ? "y" : "ies",
                dtm_string_text(s->module->context, s->rule->repeat), none, s->count, none == 1 ? "has" : "have");
    dtm_help(s->module->context, "a schedule of one stage a rank such as 1f1b or zbh1, %s = %lld, or as many copies as stages", axis,
             (long long)(copies > each ? copies / each : 1));
}

/* More ranks than copies: some have none. Where stages are given, that is known; `auto` has weighed it. */
static void warn_idle(const stages *s, int64_t copies) {
    bool automatic = strcmp(dtm_string_text(s->module->context, s->rule->schedule), "auto") == 0;
    if (s->rule->n_stages || copies >= s->count) return;
    if (copies >= s->n_ranks) {
        if (!automatic) warn_empty(s, copies);
        return;
    }
    int none = 0;
    for (int r = 0; r < s->n_ranks; r++) {
        int64_t own = 0;
        for (int k = 0; k < s->chunks; k++) own += stage_copies(s, stage_at(s, r, k));
        none += own == 0;
    }
    const char *axis = dtm_string_text(s->module->context, s->module->settings.mesh.axes[s->rule->axis].name);
    const char *repeat = dtm_string_text(s->module->context, s->rule->repeat);
    if (!none) return;
    dtm_warning(s->module->context, s->rule->span, 812, "%s has %d ranks for %lld cop%s of `%s`: %d of them %s none", axis, s->n_ranks,
                (long long)copies, copies == 1 ? "y" : "ies", repeat, none, none == 1 ? "has" : "have");
    dtm_help(s->module->context, "%s = %lld, or as many copies as ranks", axis, (long long)copies);
}

void stage_prepare(stages *s) {
    dtm_module *module = s->module;
    s->n_ops = module->n_ops;
    s->n_values = module->n_values;
    s->part = dtm_arena_alloc(s->scratch, s->n_ops * sizeof *s->part);
    s->around = dtm_arena_alloc(s->scratch, s->n_ops * sizeof *s->around);
    s->unit = dtm_arena_alloc(s->scratch, s->n_ops * sizeof *s->unit);
    s->stage = dtm_arena_alloc(s->scratch, s->n_ops * sizeof *s->stage);
    s->limit = dtm_arena_alloc(s->scratch, s->n_ops * sizeof *s->limit);
    s->summed = dtm_arena_alloc(s->scratch, s->n_values * sizeof *s->summed);
    s->home = dtm_arena_alloc(s->scratch, s->n_values * sizeof *s->home);
    s->gathered = dtm_arena_alloc(s->scratch, s->n_values * sizeof *s->gathered);
    s->target = dtm_arena_alloc(s->scratch, s->n_values * sizeof *s->target);
    s->forward = dtm_arena_alloc(s->scratch, (size_t)s->count * sizeof *s->forward);
    s->backward = dtm_arena_alloc(s->scratch, (size_t)s->count * sizeof *s->backward);
}

/* By the choice that was settled, or else by the first that comes to mind. */
static const dtm_stage_choice *choice_of(dtm_module *module) {
    bool stands;
    if (module->choice) return module->choice;
    dtm_stage_chooser *chooser = dtm_stage_chooser_create(module);
    const dtm_stage_choice *choice = chooser ? dtm_stage_choose(chooser, &stands) : NULL;
    dtm_stage_chooser_destroy(chooser);
    return choice;
}

static void take_choice(stages *s, const dtm_stage_choice *choice) {
    dtm_module *module = s->module;
    dtm_pipeline_rule *rule = &module->settings.pipeline;
    module->searched = choice->searched;
    module->timeline = choice->timeline ? dtm_timeline_copy(module->arena, choice->timeline) : NULL;
    s->places = module->timeline;
    if (!s->places)
        s->places = dtm_timeline_create(s->scratch, dtm_string_text(module->context, rule->schedule), DTM_PLACE_LOOP, s->n_ranks, 1,
                                        choice->chunks);
    s->chunks = choice->chunks;
    s->count = choice->n_stages;
    if (s->chunks > 1 || rule->chunks) rule->chunks = s->chunks;
    s->first = dtm_arena_alloc(s->scratch, (size_t)(s->count + 1) * sizeof *s->first);
    for (int k = 0; k < s->count; k++) s->first[k + 1] = s->first[k] + choice->copies[k];
}

bool dtm_pass_stage(dtm_module *module) {
    const dtm_pipeline_rule *rule = &module->settings.pipeline;
    module->after = dtm_string_of(module->context, "stage");
    if (!rule->present) return true;
    const dtm_stage_choice *choice = choice_of(module);
    if (!choice) return false;
    stages s = {.module = module, .rule = rule, .good = true, .scratch = dtm_arena_create(), .loop = dtm_rank_loop(module)};
    s.n_ranks = (int)module->settings.mesh.axes[rule->axis].size;
    take_choice(&s, choice);
    stage_prepare(&s);
    bool good = stage_find(&s);
    if (good) warn_idle(&s, stage_copies_of_repeat(module, rule->repeat));
    if (good) {
        module->ranks = dtm_arena_alloc(module->arena, (size_t)s.n_ranks * sizeof *module->ranks);
        module->n_ranks = (size_t)s.n_ranks;
        for (int r = 0; r < s.n_ranks; r++) module->ranks[r] = stage_emit(&s, r);
        module->regions[module->body].n_ops = 0;
    }
    dtm_arena_destroy(s.scratch);
    return good;
}
