/* Where a pipeline is cut and which order its ranks get (stage_choice.h). A named schedule has one line (stage_line.h), and gets its cut.
 * `auto` searches, and once more within what a trial has left it; then it looks at the published schedules as if each were named, the
 * quickest first by the model of single units: all that are quicker than the best that was tried and fits, and a few that come near. Its
 * answer is the quickest of what was tried, by the figures that `dtmc timeline` draws.
 *
 * A trial takes all the memory that it would like (stage_settle.c). One that has it stands; of another it is open whether it fits with less
 * started ahead, which takes long to find out and makes it no quicker. So that waits until nothing else that fits is as quick. */
#include "passes/stage_choice.h"
#include "passes/overlap_room.h"
#include "passes/stage_line.h"
#include "ir/calls.h"

#include <math.h>
#include <string.h>

enum { MOST_TRIALS = 128, MOST_SEARCHES = 4 };
static const double near_enough = 1.05; /* a rival that takes so much longer by the model is not tried */
/* What takes so much of the room at most had it at every step on the way, where there was less to place. */
static const double ROOMY = 0.95;

typedef struct trial {
    const dtm_stage_choice *choice;
    const double *arena; /* by rank; NULL: it could not be compiled */
    double most;         /* of them */
    double step;
    bool open;           /* it had not the room that it took: perhaps it fits with less, and is no quicker then */
    stage_line *line;    /* that it is a cut of, or NULL */
} trial;

/* A published schedule, looked at as if it were named. */
typedef struct rival {
    bool begun, over;
    double quickest; /* by the model, were there no bound on memory */
    dtm_timeline *order;
    const dtm_stage_choice *cut; /* the next one, which is not as quick as it would have to be; or NULL */
    bool cut_is_last;
    stage_line line;
} rival;

struct dtm_stage_chooser {
    stages s;
    dtm_timeline_problem problem; /* units 0: the program cannot be cut, or is cut as it says */
    int64_t copies;
    double room;   /* of a rank, or INFINITY */
    double memory; /* the same where cuts are weighed against it; 0: no bound */
    bool automatic;
    const dtm_timeline *timeline; /* of a named schedule; NULL: sequential */
    stage_line line;              /* of it */
    stage_line *current;          /* whose choice was given last; NULL: of none */
    trial trials[MOST_TRIALS];
    int n_trials;
    /* auto */
    double left; /* what the problem's memory is in the search */
    dtm_timeline_answer *answer;
    int searches;
    int latest;    /* the trial of what was found last; -1: none */
    rival *rivals; /* by schedule */
};

enum { MOST_EDITED = 64 }; /* a list of more entries, or one that is further off, is not suggested */

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

/* Whether `stages` has as many entries as there are stages. */
static bool counts_up(const dtm_stage_chooser *c, int count, const char *schedule) {
    const dtm_pipeline_rule *rule = c->s.rule;
    dtm_context *context = c->s.module->context;
    if (!rule->n_stages || rule->n_stages == (size_t)count) return true;
    dtm_error(context, rule->stages_span, 413, "`stages` has %zu entr%s, and %s on %d rank%s has %d stage%s", rule->n_stages,
              rule->n_stages == 1 ? "y" : "ies", schedule, c->s.n_ranks, dtm_plural(c->s.n_ranks), count, dtm_plural(count));
    dtm_help(context, "give the copies of `%s` in each stage, or leave it out: stages are then balanced by cost",
             dtm_string_text(context, rule->repeat));
    return false;
}

/* ---- choices ---- */

static dtm_arena *arena_of(const dtm_stage_chooser *c) { return dtm_context_arena(c->s.module->context); }

/* Copies are then filled in. */
static dtm_stage_choice *new_choice(const dtm_stage_chooser *c, const dtm_timeline *timeline, int stages, int chunks, int64_t **copies) {
    dtm_stage_choice *choice = dtm_arena_alloc(arena_of(c), sizeof *choice);
    *copies = dtm_arena_alloc(arena_of(c), (size_t)stages * sizeof **copies);
    *choice = (dtm_stage_choice){.timeline = timeline, .n_stages = stages, .chunks = chunks, .copies = *copies, .fullest = -1};
    return choice;
}

/* A timeline of one name and cut is the same one, but for those that are searched for. */
static bool is_same(const dtm_timeline *a, const dtm_timeline *b) {
    return a == b || (a && b && a->stages == b->stages && strcmp(a->name, b->name) == 0 && strcmp(a->name, "auto") != 0);
}

static trial *tried(dtm_stage_chooser *c, const dtm_stage_choice *choice) {
    for (int i = 0; i < c->n_trials; i++) {
        const dtm_stage_choice *x = c->trials[i].choice;
        if (is_same(x->timeline, choice->timeline) && memcmp(x->copies, choice->copies, (size_t)x->n_stages * sizeof *x->copies) == 0)
            return &c->trials[i];
    }
    return NULL;
}

static bool fits(const dtm_stage_chooser *c, const trial *t) { return t->arena && !t->open && t->most <= c->room; }

/* Of what was tried and fits the quickest, the first of those that are as quick; NULL: nothing fits. */
static const trial *best_tried(const dtm_stage_chooser *c) {
    const trial *best = NULL;
    for (int i = 0; i < c->n_trials; i++)
        if (fits(c, &c->trials[i]) && (!best || c->trials[i].step < best->step * (1 - 1e-6))) best = &c->trials[i];
    return best;
}

/* Of those of which it is open whether they fit the quickest, if nothing that fits is as quick; NULL: none. */
static const trial *best_open(const dtm_stage_chooser *c) {
    const trial *fit = best_tried(c), *best = NULL;
    for (int i = 0; i < c->n_trials; i++) {
        const trial *t = &c->trials[i];
        if (t->open && (!fit || t->step < fit->step * (1 - 1e-6)) && (!best || t->step < best->step)) best = t;
    }
    return best;
}

/* The same once more, with care of memory. */
static const dtm_stage_choice *with_care(dtm_stage_chooser *c, const trial *t) {
    dtm_stage_choice *choice = dtm_arena_alloc(arena_of(c), sizeof *choice);
    *choice = *t->choice;
    choice->careful = true;
    choice->fullest = -1;
    for (int r = 0; r < c->s.n_ranks && t->most > c->room; r++)
        if (t->arena[r] == t->most) choice->fullest = r;
    return choice;
}

/* ---- a named schedule ---- */

static const dtm_stage_choice *choose_cut(dtm_stage_chooser *c, bool *stands) {
    int64_t *copies;
    stage_advice advice = stage_line_next(&c->line, arena_of(c), &copies);
    dtm_stage_choice *choice = dtm_arena_alloc(arena_of(c), sizeof *choice);
    *choice = (dtm_stage_choice){.timeline = c->timeline, .n_stages = c->line.s.count, .chunks = c->line.s.chunks, .copies = copies, .fullest = -1};
    *stands = advice != STAGE_TRY;
    c->current = &c->line;
    const trial *known = tried(c, choice);
    return known ? known->choice : choice;
}

/* ---- auto ---- */

static const dtm_stage_choice *choice_of_answer(const dtm_stage_chooser *c, const dtm_timeline_answer *answer) {
    int64_t rounds = c->s.rule->rounds ? c->s.rule->rounds : 1, *copies, units = 0, first = 0;
    dtm_timeline *order = answer->timeline;
    const dtm_timeline *timeline = rounds > 1 ? dtm_timeline_rounds(arena_of(c), dtm_timeline_copy(arena_of(c), order), (int)rounds) : order;
    dtm_stage_choice *choice = new_choice(c, timeline, order->stages, order->chunks, &copies);
    for (int k = 0; k < order->stages; k++) {
        units += answer->units[k];
        int64_t next = k == order->stages - 1 || units > c->copies ? c->copies : units > 0 ? units - 1 : 0; /* the first unit is no copy */
        copies[k] = c->s.rule->n_stages ? c->s.rule->stages[k] : next - first;
        first = next;
    }
    choice->searched = answer;
    choice->fullest = 0;
    for (int r = 1; r < order->ranks; r++)
        if (answer->times->rank[r].memory > answer->times->rank[choice->fullest].memory) choice->fullest = r;
    return choice;
}

/* Within so much memory; NULL: nothing was found, and an error is reported unless it is to be quiet. */
static const dtm_stage_choice *search(dtm_stage_chooser *c, double effort, bool quiet) {
    dtm_timeline_answer *found = NULL;
    dtm_timeline_problem problem = c->problem;
    problem.effort = effort;
    problem.quiet = quiet;
    problem.memory = c->left;
    c->searches++;
    bool good = stage_search(&c->s, c->copies, &problem, &found);
    if (!c->answer) {
        c->answer = found;
        c->rivals = dtm_arena_alloc(c->s.scratch, DTM_TIMELINE_RIVALS * sizeof *c->rivals);
    }
    return good ? choice_of_answer(c, found) : NULL;
}

/* By the model of single units. */
static double time_of(const dtm_stage_choice *choice) { return choice->searched->times->makespan + choice->searched->added; }
static double model_time(const trial *t) { return time_of(t->choice); }

/* What the fullest rank of a trial needed beside what the model says of it. */
static double beside_model(const dtm_stage_chooser *c, const trial *t) {
    double most = 0;
    for (int r = 0; r < c->s.n_ranks; r++) most = fmax(most, t->arena[r] - t->choice->searched->times->rank[r].memory);
    return most;
}

static dtm_timeline *order_of(dtm_stage_chooser *c, const dtm_timeline_published *published) {
    dtm_timeline **order = &c->rivals[published->schedule].order;
    if (!*order) *order = dtm_timeline_published_order(arena_of(c), &c->problem, published);
    return *order;
}

/* A published order with a cut. */
static const dtm_timeline_answer *answer_of(dtm_stage_chooser *c, const dtm_timeline_published *published, dtm_arena *arena) {
    return dtm_timeline_answer_with(arena, &c->problem, c->answer, published, order_of(c, published));
}

static const dtm_stage_choice *choice_of_published(dtm_stage_chooser *c, const dtm_timeline_published *published) {
    return choice_of_answer(c, answer_of(c, published, arena_of(c)));
}

/* With the cut that its line has next. */
static dtm_timeline_published cut_so(dtm_stage_chooser *c, const dtm_timeline_published *published, const int64_t *copies) {
    dtm_timeline_published cut = *published;
    int stages = c->rivals[published->schedule].line.s.count;
    int *units = dtm_arena_alloc(arena_of(c), (size_t)stages * sizeof *units);
    for (int k = 0; k < stages; k++) units[k] = c->problem.units > 1 ? (int)copies[k] : 1;
    if (c->problem.units > 1) units[0]++, units[stages - 1]++; /* what stands before the copies, and after them */
    cut.units = units;
    return cut;
}

static const dtm_stage_choice *choice_of_line(dtm_stage_chooser *c, const dtm_timeline_published *published, const int64_t *copies) {
    dtm_timeline_published cut = cut_so(c, published, copies);
    return choice_of_published(c, &cut);
}

/* How many that come near are looked at: more of what is compiled soon. */
static int most_rivals(const dtm_stage_chooser *c) { return 1 + 24 / c->s.n_ranks; }

/* Whether a choice may be better than the best that was tried, or than one that is as quick and perhaps fits: while that is open it is
 * as good as others. Of those that come near by the model a few are seen to fit, and not to be quicker; then it is enough. `added`: what
 * of the time comes after the last microbatch, which may come to much less: in buckets, and started before it. */
static bool is_hopeful(const dtm_stage_chooser *c, double time, double added) {
    const trial *open = best_open(c), *best = open ? open : best_tried(c);
    if (!best || time < model_time(best)) return true;
    double until = fmax(near_enough * model_time(best), best->step); /* what the model leaves out may be much of a step */
    int seen = 0;
    for (int i = 0; i < c->n_trials; i++) {
        const trial *t = &c->trials[i];
        seen += t != best && (t->open || fits(c, t)) && model_time(t) <= until;
    }
    return time - added <= until && seen < most_rivals(c);
}

/* Again, within what the trial of what was found last has left. */
static const dtm_stage_choice *search_again(dtm_stage_chooser *c) {
    const trial *latest = c->latest >= 0 ? &c->trials[c->latest] : NULL;
    if (!latest || latest->open || fits(c, latest) || c->searches >= MOST_SEARCHES) return NULL;
    c->left = fmin(c->left * 0.999, c->memory - beside_model(c, latest));
    c->latest = -1;
    const dtm_stage_choice *choice = c->left > 0 ? search(c, 0.3, true) : NULL;
    if (!choice) return NULL;
    return is_hopeful(c, time_of(choice), choice->searched->added) && !tried(c, choice) ? choice : NULL;
}

/* How long a published order takes with a cut by the model: the search has timed most of them. */
static double published_time(dtm_stage_chooser *c, const dtm_timeline_published *cut) {
    size_t stages = (size_t)c->rivals[cut->schedule].line.s.count;
    for (int i = 0; i < c->answer->n_published; i++) {
        const dtm_timeline_published *known = &c->answer->published[i];
        if (known->schedule == cut->schedule && memcmp(known->units, cut->units, stages * sizeof *cut->units) == 0) return known->time;
    }
    dtm_arena *scratch = dtm_arena_create();
    const dtm_timeline_answer *answer = answer_of(c, cut, scratch);
    double time = answer->times->makespan + answer->added;
    dtm_arena_destroy(scratch);
    return time;
}

static rival *rival_of(dtm_stage_chooser *c, const dtm_timeline_published *p) {
    rival *r = &c->rivals[p->schedule];
    int64_t *copies;
    if (r->begun) return r;
    dtm_timeline *places = order_of(c, p);
    dtm_timeline_problem free = c->problem;
    free.memory = 0;
    r->line = stage_line_of(&c->s, places, &free, c->copies, 0);
    stage_line_next(&r->line, arena_of(c), &copies);
    dtm_timeline_published cut = cut_so(c, p, copies);
    r->begun = true;
    r->quickest = published_time(c, &cut);
    r->line = stage_line_of(&c->s, places, &c->problem, c->copies, c->memory);
    r->over = stage_line_is_hopeless(&r->line);
    return r;
}

/* The cut of a line of which it is open whether it fits, or NULL: the next one depends on that. */
static const trial *open_of(const dtm_stage_chooser *c, const rival *r) {
    for (int i = 0; i < c->n_trials; i++)
        if (c->trials[i].open && c->trials[i].line == &r->line) return &c->trials[i];
    return NULL;
}

/* One of which it has to be known whether it fits: it is quicker than what does, or a cut that its line has next may be, if it does not.
 * NULL: there is none. */
static const trial *to_settle(const dtm_stage_chooser *c) {
    const trial *found = best_open(c), *best = best_tried(c);
    for (int i = 0; !found && i < DTM_TIMELINE_RIVALS; i++) {
        const rival *r = &c->rivals[i];
        const trial *open = r->begun ? open_of(c, r) : NULL;
        if (!open) continue;
        bool modelled = open->step <= near_enough * model_time(open); /* else another cut may be quicker whatever the model says */
        if (r->quickest < fmin(modelled ? model_time(open) : INFINITY, model_time(best)) * (1 - 1e-6)) found = open;
    }
    return found;
}

/* The cut that a line has next; NULL: it is over, or it is not known yet. */
static const dtm_stage_choice *cut_of_line(dtm_stage_chooser *c, rival *r, const dtm_timeline_published *p) {
    while (!r->cut && !r->over) {
        int64_t *copies;
        stage_advice advice = stage_line_next(&r->line, arena_of(c), &copies);
        r->cut = advice == STAGE_NONE ? NULL : choice_of_line(c, p, copies);
        r->cut_is_last = advice != STAGE_TRY;
        trial *known = r->cut ? tried(c, r->cut) : NULL;
        if (r->cut && !known) return r->cut;
        r->cut = NULL;
        r->over = r->cut_is_last;
        if (!known || r->over) return NULL;
        if (!known->line) known->line = &r->line; /* what comes of it is seen then */
        if (known->open) return NULL;
        stage_line_saw(&r->line, copies, known->arena);
    }
    return r->cut;
}

/* The next cut of a published schedule: the one that the search has seen, or else of its line. */
static const dtm_stage_choice *next_cut(dtm_stage_chooser *c, rival *r, const dtm_timeline_published *p) {
    if (r->over || open_of(c, r)) return NULL;
    bool first = !r->cut && !r->line.n_seen && (c->memory <= 0 || p->memory <= c->memory) && is_hopeful(c, p->time, p->added);
    const dtm_stage_choice *next = first ? choice_of_published(c, p) : NULL;
    if (next && tried(c, next)) next = NULL;
    if (!next) {
        next = cut_of_line(c, r, p);
        if (!next || !is_hopeful(c, time_of(next), next->searched->added)) return NULL;
        r->over = r->cut_is_last; /* else the next cut may be better than this one, which tells what it needs */
        r->cut = NULL;
    }
    c->current = &r->line;
    return next;
}

static const dtm_stage_choice *next_rival(dtm_stage_chooser *c) {
    for (int i = 0; i < c->answer->n_published && c->n_trials < MOST_TRIALS; i++) {
        const dtm_timeline_published *p = &c->answer->published[i];
        rival *r = c->memory > 0 || is_hopeful(c, p->time, p->added) ? rival_of(c, p) : NULL;
        if (!r || !is_hopeful(c, fmin(p->time, r->quickest), p->added)) continue;
        const dtm_stage_choice *next = next_cut(c, r, p);
        if (next) return next;
    }
    return NULL;
}

/* The best, with all that was tried. */
static const dtm_stage_choice *with_results(const dtm_stage_chooser *c, const trial *best) {
    dtm_stage_choice *choice = dtm_arena_alloc(arena_of(c), sizeof *choice);
    dtm_stage_result *results = dtm_arena_alloc(arena_of(c), (size_t)c->n_trials * sizeof *results);
    for (int i = 0; i < c->n_trials; i++) {
        const trial *t = &c->trials[i];
        results[i] = (dtm_stage_result){t->choice->searched->timeline->name, t->choice->chunks, t->most, t->step, fits(c, t), t->open};
    }
    *choice = *best->choice;
    choice->tried = results;
    choice->n_tried = c->n_trials;
    return choice;
}

static const dtm_stage_choice *choose_timeline(dtm_stage_chooser *c, bool *stands) {
    const dtm_stage_choice *next = NULL;
    *stands = false;
    c->current = NULL;
    if (!c->searches) {
        c->left = c->problem.memory;
        next = search(c, 1, c->memory > 0);
        if (next && !counts_up(c, next->n_stages, "auto")) return NULL;
        if (!next && c->memory <= 0) return NULL;
    } else {
        next = search_again(c);
    }
    if (next) c->latest = c->n_trials;
    if (!next) next = next_rival(c);
    if (next) return next;
    const trial *open = to_settle(c), *best = best_tried(c);
    if (open) return with_care(c, open);
    *stands = true;
    if (best) return with_results(c, best);
    double least = INFINITY;
    for (int i = 0; i < c->n_trials; i++) least = fmin(least, c->trials[i].most);
    for (int i = 0; !c->n_trials && i < c->answer->n_published; i++) least = fmin(least, c->answer->published[i].memory);
    dtm_timeline_nothing_fits(c->s.module->context, c->s.rule->span, least, c->memory);
    return NULL;
}

/* ---- the chooser ---- */

/* Which rank has which stage, where that is not searched for. */
static bool find_places(dtm_stage_chooser *c) {
    stages *s = &c->s;
    dtm_module *module = s->module;
    const char *schedule = dtm_string_text(module->context, s->rule->schedule);
    int64_t rounds = s->rule->rounds ? s->rule->rounds : 1;
    int64_t microbatches = dtm_op_get(module, s->loop)->attributes.copies / rounds;
    dtm_timeline *timeline = NULL;
    if (strcmp(schedule, "sequential") && strcmp(schedule, "auto")) {
        int counted = microbatches < INT32_MAX ? (int)microbatches : INT32_MAX;
        timeline = dtm_timeline_order(module->context, arena_of(c), s->rule->span, schedule, s->n_ranks, counted, (int)s->rule->chunks);
        if (!timeline) return false;
        c->timeline = timeline = dtm_timeline_rounds(arena_of(c), timeline, (int)rounds);
    }
    if (!timeline)
        timeline = dtm_timeline_create(s->scratch, schedule, DTM_PLACE_LOOP, s->n_ranks, 1, s->rule->chunks ? (int)s->rule->chunks : 1);
    c->line = stage_line_of(s, timeline, &c->problem, c->copies, c->memory);
    return counts_up(c, c->line.s.count, schedule);
}

static bool prepare(dtm_stage_chooser *c) {
    stages *s = &c->s;
    dtm_module *module = s->module;
    if (!s->loop) {
        dtm_error(module->context, s->rule->span, 414, "there is no loop over microbatches, `microbatch microbatch = ..`");
        return false;
    }
    c->copies = stage_copies_of_repeat(module, s->rule->repeat);
    c->automatic = strcmp(dtm_string_text(module->context, s->rule->schedule), "auto") == 0;
    bool free_cut = !s->rule->n_stages && s->n_ranks * (s->rule->chunks ? s->rule->chunks : 2) > 1;
    if (c->copies > 0 && (free_cut || c->automatic)) stage_units(s, c->copies, s->scratch, &c->problem);
    c->room = dtm_room_of(module);
    c->latest = -1;
    c->memory = c->problem.units && isfinite(c->room) ? c->room : 0;
    c->automatic = c->automatic && c->problem.units;
    if ((!c->automatic && !find_places(c)) || !adds_up(s, c->copies)) return false;
    if (c->copies > 0) return true;
    dtm_error(module->context, s->rule->span, 413, "`%s` has no copies to share out", dtm_string_text(module->context, s->rule->repeat));
    return false;
}

dtm_stage_chooser *dtm_stage_chooser_create(dtm_module *module) {
    const dtm_pipeline_rule *rule = &module->settings.pipeline;
    dtm_arena *scratch = dtm_arena_create();
    dtm_stage_chooser *c = dtm_arena_alloc(scratch, sizeof *c);
    c->s = (stages){.module = module, .rule = rule, .good = true, .scratch = scratch};
    c->s.n_ranks = (int)module->settings.mesh.axes[rule->axis].size;
    c->s.loop = dtm_rank_loop(module);
    if (prepare(c)) return c;
    dtm_stage_chooser_destroy(c);
    return NULL;
}

void dtm_stage_chooser_destroy(dtm_stage_chooser *c) {
    if (c) dtm_arena_destroy(c->s.scratch);
}

const dtm_stage_choice *dtm_stage_choose(dtm_stage_chooser *c, bool *stands) {
    const trial *last = c->n_trials ? &c->trials[c->n_trials - 1] : NULL;
    *stands = false;
    if (last && last->open && (!c->automatic || !last->arena)) return with_care(c, last);
    if (last && !last->arena) { /* whatever is wrong with it is said when it is compiled in earnest */
        *stands = true;
        return last->choice;
    }
    return c->automatic ? choose_timeline(c, stands) : choose_cut(c, stands);
}

static void set_arena(dtm_stage_chooser *c, trial *t, const double *arena) {
    size_t ranks = (size_t)c->s.n_ranks;
    t->arena = arena ? memcpy(dtm_arena_alloc(c->s.scratch, ranks * sizeof *arena), arena, ranks * sizeof *arena) : NULL;
    t->most = 0;
    for (size_t r = 0; arena && r < ranks; r++) t->most = fmax(t->most, arena[r]);
}

/* It is known now whether it fits: its line sees what it needs. */
static bool settled(dtm_stage_chooser *c, trial *t) {
    t->open = false;
    if (t->arena && t->line) stage_line_saw(t->line, t->choice->copies, t->arena);
    return !c->automatic || !best_tried(c) || best_tried(c) == t; /* of cuts the last is the best */
}

bool dtm_stage_tried(dtm_stage_chooser *c, const dtm_stage_choice *choice, const double *arena, double step, bool vain) {
    trial *t = choice->careful ? tried(c, choice) : &c->trials[c->n_trials++];
    if (!choice->careful) *t = (trial){.choice = choice, .line = c->current};
    if (!choice->careful || !vain) { /* else it is as it was tried before */
        t->step = step;
        set_arena(c, t, arena);
    }
    t->open = !choice->careful && (!arena || t->most > ROOMY * c->room);
    if (vain && t->most > c->room) t->open = false;
    return !t->open && settled(c, t);
}
