/* stage: makes a pipeline of a program. A rule `pp splits layer` gives the copies of a repeat to the ranks along an axis, a
 * stage a chunk of a rank, and from here on there is a program for each coordinate on that axis: with the copies that are
 * its own, what stands before the repeat on the first stage and what stands after it on the last, and messages of what
 * goes from stage to stage. stage_find.c says how the rest is told apart; stage_emit.c writes the programs.
 *
 *     model llama { forward { .. repeat layer = 8 { .. } .. } .. }
 * becomes
 *     model llama pp = 0 { forward { .. repeat layer = 4 { .. } } .. send(x.3.out on pp, peer = 1) .. }
 *     model llama pp = 1 { .. x.3.in = receive(on pp, peer = 0) .. forward { repeat layer = 4 from 4 { .. } .. } }
 */
#include "passes/stage.h"
#include "ir/calls.h"
#include "passes/passes.h"
#include "passes/timeline.h"

#include <math.h>
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

/* ---- the cut ---- */

enum { MOST_EDITED = 64 }; /* a list of more entries, or one that is further off, is not suggested */

/* How many copies the repeat has; 0: there is none of that name. */
static int64_t copies_of_repeat(const dtm_module *module, dtm_string name) {
    for (dtm_op op = 1; op < module->n_ops; op++) {
        const dtm_op_data *data = dtm_op_get(module, op);
        if (data->region && data->kind == DTM_OP_REPEAT && data->attributes.name == name) return data->attributes.copies;
    }
    return 0;
}

/* The list nearest to the one given that adds up to all copies: what lacks goes to the smallest stages, what is too much is taken
 * from the largest. From further off, all stages alike. */
static void suggest_stages(const stages *s, int64_t copies, int64_t given) {
    size_t n = s->rule->n_stages;
    int64_t *list = dtm_arena_alloc(s->scratch, n * sizeof *list);
    memcpy(list, s->rule->stages, n * sizeof *list);
    bool near = given - copies < MOST_EDITED && copies - given < MOST_EDITED;
    for (size_t k = 0; k < n && !near; k++) list[k] = copies / (int64_t)n + ((int64_t)k < copies % (int64_t)n);
    for (; near && given != copies; given += given < copies ? 1 : -1) {
        size_t chosen = 0;
        for (size_t k = 1; k < n; k++)
            if (given < copies ? list[k] < list[chosen] : list[k] > list[chosen]) chosen = k;
        list[chosen] += given < copies ? 1 : -1;
    }
    dtm_text text = {.arena = s->scratch};
    for (size_t k = 0; k < n; k++) dtm_text_printf(&text, "%s%lld", k ? ", " : "", (long long)list[k]);
    dtm_help(s->module->context, "stages = [%s], or leave it out: stages are then balanced by cost", text.data);
}

/* Whether `stages` shares out all copies. */
static bool adds_up(const stages *s, int64_t copies) {
    int64_t given = 0;
    for (size_t k = 0; k < s->rule->n_stages; k++) /* numbers that nobody means may have no sum */
        given = s->rule->stages[k] > INT64_MAX - given ? INT64_MAX : given + s->rule->stages[k];
    if (!s->rule->n_stages || given == copies) return true;
    const char *repeat = dtm_string_text(s->module->context, s->rule->repeat);
    dtm_error(s->module->context, s->rule->stages_span, 413, "`stages` adds up to %lld cop%s, and `%s` has %lld", (long long)given,
              given == 1 ? "y" : "ies", repeat, (long long)copies);
    if (copies > 0 && s->rule->n_stages <= MOST_EDITED) suggest_stages(s, copies, given);
    else dtm_help(s->module->context, "leave it out: stages are then balanced by cost");
    return false;
}

/* The copies of each stage: as given, as found with the timeline, or balanced; as even as they can be where the program cannot
 * be cut, which is said later. */
static bool cut(stages *s, int64_t copies, const dtm_timeline_problem *problem) {
    if (!adds_up(s, copies)) return false;
    s->first = dtm_arena_alloc(s->scratch, (size_t)(s->count + 1) * sizeof *s->first);
    if (s->module->searched && !s->rule->n_stages) {
        const int *units = s->module->searched->units;
        for (int64_t k = 0, u = 0; k < s->count; k++) {
            u += units[k];
            s->first[k + 1] = k == s->count - 1 || u > copies ? copies : u > 0 ? u - 1 : 0; /* the first unit is no copy */
        }
        return true;
    }
    if (!s->rule->n_stages && problem->units > 1) {
        stage_balance(s, copies, problem);
        return true;
    }
    for (int k = 0; k < s->count; k++) {
        int64_t size = s->rule->n_stages ? s->rule->stages[k] : copies / s->count + (k < copies % s->count);
        s->first[k + 1] = s->first[k] + size;
    }
    if (copies > 0) return true;
    dtm_error(s->module->context, s->rule->span, 413, "`%s` has no copies to share out",
              dtm_string_text(s->module->context, s->rule->repeat));
    return false;
}

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

/* When the last backward pass of a stage on a rank ends. */
static double complete_at(const dtm_timeline *t, const dtm_timeline_times *times, int stage) {
    double end = 0;
    for (int r = 0; r < t->ranks; r++)
        for (size_t i = 0; i < t->order[r].count; i++) {
            const dtm_operation *o = &t->order[r].operations[i];
            for (int k = 0; k < (o->kind == DTM_OPERATION_PAIR ? 2 : 1); k++)
                if (o->tasks[k].kind != DTM_TASK_FORWARD && dtm_timeline_stage(t, r, o->tasks[k].chunk) == stage) end = fmax(end, times->rank[r].end[i]);
        }
    return end;
}

/* Gradients of what several units have, such as a tied embedding, are added up over the ranks that have it, after the last
 * microbatch: if only what stands before the copies and what stands after them have it, over none where one rank has both. */
static double adding_up_shared(const stages *s, const dtm_timeline_problem *p, dtm_placement placement) {
    double time = 0;
    uint32_t ends = p->unit[0].shares & p->unit[p->units - 1].shares;
    for (int i = 0; i < p->n_shared && s->n_ranks > 1; i++) {
        bool copies = p->unit[1].shares >> i & 1, both = ends >> i & 1;
        int ranks = copies ? s->n_ranks : both && placement != DTM_PLACE_V ? 2 : 1;
        if (ranks > 1 && p->shared[i].stage > 0)
            time += 2 * p->latency * (ranks - 1) + 2. * (ranks - 1) / ranks * p->shared[i].stage / p->bandwidth;
    }
    return time;
}

/* Where stages lie on two ranks, these add up their gradients, layer by layer while the last backward pass goes on and, of the stage
 * that is complete first, while the others' do: what of that is left after the last microbatch, on the slowest of them. */
static double adding_up(const stages *s, const dtm_timeline_problem *p, const dtm_timeline_answer *a) {
    const dtm_timeline *t = a->timeline;
    double left = 0, *busy = dtm_arena_alloc(s->scratch, (size_t)t->ranks * sizeof *busy);
    bool *done = dtm_arena_alloc(s->scratch, (size_t)t->stages);
    if (t->directions < 2) return 0;
    double *complete = dtm_arena_alloc(s->scratch, (size_t)t->stages * sizeof *complete);
    double *bytes = dtm_arena_alloc(s->scratch, (size_t)t->stages * sizeof *bytes);
    for (int k = 0, u = 0; k < t->stages; k++) {
        for (int i = 0; i < a->units[k]; i++, u++) bytes[k] += s->gradients[u == 0 ? 0 : u == p->units - 1 ? 2 : 1];
        complete[k] = complete_at(t, a->times, k);
    }
    for (int n = 0; n < t->stages; n++) { /* in the order in which they are complete */
        int next = -1, rank[2], chunk;
        for (int k = 0; k < t->stages; k++)
            if (!done[k] && (next < 0 || complete[k] < complete[next])) next = k;
        done[next] = true;
        for (int d = 0; d < 2; d++) dtm_timeline_place(t, next, d, &rank[d], &chunk);
        double parts = a->units[next] > 1 ? a->units[next] : 1, takes = bytes[next] > 0 ? 2 * p->latency + bytes[next] / p->bandwidth : 0;
        double begin = fmax(fmax(busy[rank[0]], busy[rank[1]]), complete[next] - a->costs.stage[next].weight * (1 - 1 / parts));
        busy[rank[0]] = busy[rank[1]] = fmax(begin + takes, complete[next] + takes / parts);
        left = fmax(left, busy[rank[0]] - a->times->makespan);
    }
    return left;
}

/* How stages would be cut for an order that is not searched for. */
typedef struct own_cut {
    const stages *s;
    int64_t copies;
    const dtm_timeline_problem *problem;
} own_cut;

static void cut_of_order(const void *state, const dtm_timeline *order, int *units) {
    const own_cut *own = state;
    stages s = *own->s;
    s.places = (dtm_timeline *)order; /* read only */
    s.chunks = order->chunks;
    s.count = order->stages;
    s.first = dtm_arena_alloc(s.scratch, (size_t)(s.count + 1) * sizeof *s.first);
    stage_balance(&s, own->copies, own->problem);
    for (int k = 0; k < s.count; k++) units[k] = (int)(s.first[k + 1] - s.first[k]);
    units[0]++, units[s.count - 1]++; /* what stands before the copies, and after them */
}

/* schedule = auto: the best timeline found for what units cost. */
static bool search(stages *s, int64_t copies, const dtm_timeline_problem *units) {
    dtm_module *module = s->module;
    dtm_arena *arena = dtm_context_arena(module->context);
    dtm_timeline_problem problem = *units;
    dtm_timeline_answer *answer = dtm_arena_alloc(arena, sizeof *answer);
    /* of an odd number of ranks the middle one would hold one stage twice; and rounds go either way as often */
    problem.no_copies = s->n_ranks % 2 || (s->rule->rounds > 1 && problem.microbatches % 2);
    if (!problem.no_copies) problem.effort = 0.5; /* there may be a second search */
    if (s->rule->n_stages) {
        int *stages = dtm_arena_alloc(s->scratch, s->rule->n_stages * sizeof *stages);
        for (size_t k = 0; k < s->rule->n_stages; k++) stages[k] = problem.units > 1 ? (int)s->rule->stages[k] : 1;
        if (problem.units > 1) stages[0]++, stages[s->rule->n_stages - 1]++;
        problem.stages = stages;
        problem.n_stages = (int)s->rule->n_stages;
    }
    for (int place = 0; place <= DTM_PLACE_BIDIRECTIONAL && problem.units > 1; place++)
        problem.added[place] = adding_up_shared(s, &problem, (dtm_placement)place);
    own_cut own = {s, copies, units};
    if (problem.units > 1) problem.cut = cut_of_order, problem.cut_state = &own;
    if (!dtm_timeline_search(module->context, arena, &problem, answer)) return false;
    double added = adding_up(s, &problem, answer);
    if (added > 0) { /* once more without: is it worth that? */
        dtm_timeline_answer *single = dtm_arena_alloc(arena, sizeof *single);
        problem.no_copies = problem.quiet = true;
        bool found = dtm_timeline_search(module->context, arena, &problem, single);
        double alone = found ? single->times->makespan + problem.added[single->timeline->placement] : INFINITY;
        if (alone < answer->times->makespan + problem.added[DTM_PLACE_BIDIRECTIONAL] + added) {
            single->rivals = answer->rivals;
            single->n_rivals = answer->n_rivals;
            answer = single;
        }
    }
    for (int i = 0; i < answer->n_rivals; i++)
        if (dtm_timeline_placement(answer->rivals[i].name) == DTM_PLACE_BIDIRECTIONAL) answer->rivals[i].added += added;
    module->searched = answer;
    module->timeline = dtm_timeline_copy(module->arena, answer->timeline);
    return true;
}

/* Which rank has which stage, and what it does when. */
static bool find_places(stages *s, int64_t copies, const dtm_timeline_problem *problem) {
    dtm_module *module = s->module;
    dtm_pipeline_rule *rule = &module->settings.pipeline;
    const char *schedule = dtm_string_text(module->context, rule->schedule);
    int64_t rounds = rule->rounds ? rule->rounds : 1;
    int64_t microbatches = dtm_op_get(module, s->loop)->attributes.copies / rounds;
    bool searches = strcmp(schedule, "auto") == 0 && problem->units;
    if (searches && (!adds_up(s, copies) || !search(s, copies, problem))) return false;
    if (!searches && strcmp(schedule, "sequential") && strcmp(schedule, "auto")) {
        int counted = microbatches < INT32_MAX ? (int)microbatches : INT32_MAX;
        module->timeline = dtm_timeline_order(module->context, module->arena, rule->span, schedule, s->n_ranks, counted,
                                              (int)rule->chunks);
        if (!module->timeline) return false;
    }
    if (module->timeline) module->timeline = dtm_timeline_rounds(module->arena, module->timeline, (int)rounds);
    s->places = module->timeline;
    if (!s->places)
        s->places = dtm_timeline_create(s->scratch, schedule, DTM_PLACE_LOOP, s->n_ranks, 1,
                                        rule->chunks ? (int)rule->chunks : 1);
    s->chunks = s->places->chunks;
    s->count = s->places->stages;
    if (s->chunks > 1 || rule->chunks) rule->chunks = s->chunks;
    if (!rule->n_stages || rule->n_stages == (size_t)s->count) return true;
    dtm_error(module->context, rule->stages_span, 413, "`stages` has %zu entr%s, and %s on %d rank%s has %d stage%s", rule->n_stages,
              rule->n_stages == 1 ? "y" : "ies", schedule, s->n_ranks, dtm_plural(s->n_ranks), s->count, dtm_plural(s->count));
    dtm_help(module->context, "give the copies of `%s` in each stage, or leave it out: stages are then balanced by cost",
             dtm_string_text(module->context, rule->repeat));
    return false;
}

void stage_prepare(stages *s) {
    dtm_module *module = s->module;
    s->n_ops = module->n_ops;
    s->n_values = module->n_values;
    s->part = dtm_arena_alloc(s->scratch, s->n_ops * sizeof *s->part);
    s->around = dtm_arena_alloc(s->scratch, s->n_ops * sizeof *s->around);
    s->unit = dtm_arena_alloc(s->scratch, s->n_ops * sizeof *s->unit);
    s->stage = dtm_arena_alloc(s->scratch, s->n_ops * sizeof *s->stage);
    s->summed = dtm_arena_alloc(s->scratch, s->n_values * sizeof *s->summed);
    s->home = dtm_arena_alloc(s->scratch, s->n_values * sizeof *s->home);
    s->gathered = dtm_arena_alloc(s->scratch, s->n_values * sizeof *s->gathered);
    s->target = dtm_arena_alloc(s->scratch, s->n_values * sizeof *s->target);
    s->forward = dtm_arena_alloc(s->scratch, (size_t)s->count * sizeof *s->forward);
    s->backward = dtm_arena_alloc(s->scratch, (size_t)s->count * sizeof *s->backward);
    for (size_t op = 0; op < s->n_ops; op++) s->stage[op] = STAGE_ANYWHERE;
}

bool dtm_pass_stage(dtm_module *module) {
    const dtm_pipeline_rule *rule = &module->settings.pipeline;
    module->after = dtm_string_of(module->context, "stage");
    if (!rule->present) return true;
    stages s = {.module = module, .rule = rule, .good = true};
    s.n_ranks = (int)module->settings.mesh.axes[rule->axis].size;
    s.scratch = dtm_arena_create();
    s.loop = dtm_rank_loop(module);
    if (!s.loop)
        dtm_error(module->context, rule->span, 414, "there is no loop over microbatches, `microbatch microbatch = ..`");
    int64_t copies = copies_of_repeat(module, rule->repeat);
    dtm_timeline_problem problem = {.units = 0};
    bool free_cut = !rule->n_stages && s.n_ranks * (rule->chunks ? rule->chunks : 2) > 1;
    bool automatic = strcmp(dtm_string_text(module->context, rule->schedule), "auto") == 0;
    if (s.loop && copies > 0 && (free_cut || automatic)) stage_units(&s, copies, s.scratch, &problem);
    bool good = s.loop && find_places(&s, copies, &problem) && cut(&s, copies, &problem);
    if (good) {
        stage_prepare(&s);
        good = stage_find(&s);
    }
    if (good) warn_idle(&s, copies);
    if (good) {
        module->ranks = dtm_arena_alloc(module->arena, (size_t)s.n_ranks * sizeof *module->ranks);
        module->n_ranks = (size_t)s.n_ranks;
        for (int r = 0; r < s.n_ranks; r++) module->ranks[r] = stage_emit(&s, r);
        module->regions[module->body].n_ops = 0;
    }
    dtm_arena_destroy(s.scratch);
    return good;
}
