/* schedule = auto (timeline.h). Candidates are placements with a number of chunks and a cut of the units into stages. Each
 * gets plans from a few known styles and a bound; candidates whose bound is no better than what another has reached fall
 * out. The best few get more styles, drawn and near good ones; then the priorities of the best are shaken one by one. All
 * published schedules are timed as well, so that the answer is at least as good. At the end the same time is looked for in
 * less memory. Work is counted in tasks placed, not in seconds, and pseudo-random numbers begin alike, so the same problem
 * has the same answer everywhere. */
#include "passes/timeline_search.h"
#include "passes/explain.h"

#include <math.h>
#include <string.h>

typedef struct candidate {
    dtm_placement placement;
    int chunks, stages;
    int *units;
    dtm_timeline_costs *costs;
    search_instance *instance;
    double bound, best; /* of its plans alone; */
    double added;       /* and what comes after them */
    search_style style; /* with which the best was reached */
    search_policy policy; /* or with these priorities: due NULL if not */
    double *room[2];    /* for them */
    double work;        /* of one plan */
} candidate;

/* A published order on some cut. */
typedef struct published {
    dtm_arena *arena; /* its own, so that those that are not wanted go */
    dtm_timeline *order;
    int *units;
    double time, memory;
    int schedule; /* its number */
} published;

enum { MOST_CANDIDATES = 48, KEPT = 4, MOST_CUTS = 32 };

/* What balanced cuts came to: rivals and candidates ask for the same, and a search within less memory does once more. */
typedef struct known_cut {
    dtm_placement placement;
    int chunks, *units;
    bool work_only;
} known_cut;

typedef struct known_cuts {
    dtm_arena *arena;
    known_cut cuts[MOST_CUTS];
    int count;
} known_cuts;

typedef struct searcher {
    const dtm_timeline_problem *problem;
    dtm_arena *arena, *scratch;
    candidate candidates[MOST_CANDIDATES];
    int n_candidates;
    search_dispatcher *dispatcher;
    search_policy policy, current;
    search_plan plan, best_plan;
    candidate *best_of;    /* whose plan the best plan is */
    uint64_t state;
    double spent, budget;  /* tasks placed */
    double beside;         /* work that the budget does not pay for: cuts, rivals and bounds, in the time of as many tasks placed */
    double memory;         /* the bound in force */
    published rivals[KEPT]; /* the best ones, the best first */
    int n_rivals;
    known_cuts *cuts;
} searcher;

/* A climb to a cut may look at this share of the budget: a cut of a small problem takes far less, and some eighty climbs together
 * take hardly longer than the plans. */
static const double climb_share = 0.09, longest_climb = 1.2e6;
/* Times, in that of a task placed. */
static const double look_time = 0.25, simulated_time = 2, bound_time = 1;

static const double same = 1 + 1e-9;

static int stages_of(const searcher *s, dtm_placement placement, int chunks) {
    return placement == DTM_PLACE_BIDIRECTIONAL ? s->problem->ranks : s->problem->ranks * chunks;
}

static int *copy_units(dtm_arena *arena, const int *units, int stages) {
    int *copy = dtm_arena_alloc(arena, (size_t)stages * sizeof *copy);
    memcpy(copy, units, (size_t)stages * sizeof *copy);
    return copy;
}

static const int *balanced_cut(searcher *s, dtm_placement placement, int chunks, bool work_only) {
    known_cuts *k = s->cuts;
    for (int i = 0; i < k->count; i++)
        if (k->cuts[i].placement == placement && k->cuts[i].chunks == chunks && k->cuts[i].work_only == work_only)
            return k->cuts[i].units;
    int *units = dtm_arena_alloc(k->arena, (size_t)stages_of(s, placement, chunks) * sizeof *units);
    double effort = fmin(longest_climb, climb_share * s->budget);
    s->beside += look_time * search_cut_balanced(s->problem, placement, chunks, work_only, effort, units);
    if (k->count < MOST_CUTS) k->cuts[k->count++] = (known_cut){placement, chunks, units, work_only};
    return units;
}

/* ---- candidates ---- */

static void add_candidate(searcher *s, dtm_placement placement, int chunks, const int *units) {
    const dtm_timeline_problem *p = s->problem;
    int stages = stages_of(s, placement, chunks);
    for (int i = 0; i < s->n_candidates; i++) {
        const candidate *c = &s->candidates[i];
        if (c->placement == placement && c->chunks == chunks && memcmp(c->units, units, (size_t)stages * sizeof *units) == 0)
            return;
    }
    double work = 3.0 * p->ranks * chunks * p->microbatches;
    if (s->n_candidates == MOST_CANDIDATES || work > DTM_TIMELINE_TASKS || (chunks > 2 && work > s->budget / 8)) return;
    candidate *c = &s->candidates[s->n_candidates];
    *c = (candidate){placement, chunks, stages, .best = INFINITY, .added = p->added[placement]};
    c->units = copy_units(s->scratch, units, stages);
    c->costs = dtm_arena_alloc(s->scratch, sizeof *c->costs);
    *c->costs = search_cut_costs(s->scratch, p, stages, units);
    c->instance = search_instance_create(s->scratch, c->costs, placement, p->ranks, p->microbatches, chunks, s->memory);
    if (!c->instance) return;
    c->bound = search_bound(c->instance);
    s->beside += bound_time * work;
    c->work = work;
    s->n_candidates++;
}

static void add_cuts(searcher *s, dtm_placement placement, int chunks) {
    const dtm_timeline_problem *p = s->problem;
    int stages = stages_of(s, placement, chunks);
    if (p->stages) {
        if (p->n_stages == stages) add_candidate(s, placement, chunks, p->stages);
        return;
    }
    if (chunks > 1 && placement != DTM_PLACE_BIDIRECTIONAL && p->units < stages) return;
    add_candidate(s, placement, chunks, balanced_cut(s, placement, chunks, false));
    add_candidate(s, placement, chunks, balanced_cut(s, placement, chunks, true));
    int *units = dtm_arena_alloc(s->scratch, (size_t)stages * sizeof *units);
    search_cut_even(p, stages, units);
    add_candidate(s, placement, chunks, units);
}

static void make_candidates(searcher *s) {
    const dtm_timeline_problem *p = s->problem;
    static const int counts[] = {2, 3, 4, 6, 8};
    int most = p->chunks ? p->chunks : SEARCH_CHUNKS;
    add_cuts(s, DTM_PLACE_SINGLE, 1);
    if (search_both_ways(p)) add_cuts(s, DTM_PLACE_BIDIRECTIONAL, 2);
    if (p->stages && p->n_stages > p->ranks && p->n_stages % p->ranks == 0) {
        add_cuts(s, DTM_PLACE_V, p->n_stages / p->ranks);
        add_cuts(s, DTM_PLACE_LOOP, p->n_stages / p->ranks);
        return;
    }
    for (size_t i = 0; i < sizeof counts / sizeof *counts && counts[i] <= most; i++) {
        if (p->ranks > 1) add_cuts(s, DTM_PLACE_V, counts[i]);
        if (p->ranks > 2) add_cuts(s, DTM_PLACE_LOOP, counts[i]);
    }
}

static void sort_candidates(searcher *s) {
    for (int i = 1; i < s->n_candidates; i++) {
        candidate c = s->candidates[i];
        int at = i;
        for (; at && s->candidates[at - 1].bound + s->candidates[at - 1].added > c.bound + c.added; at--) s->candidates[at] = s->candidates[at - 1];
        s->candidates[at] = c;
    }
}

/* ---- rivals ---- */

/* Whether a rival is better than another: quicker, or as quick in less memory. */
static bool better(const published *a, const published *b) {
    if (a->time * same < b->time) return true;
    return a->time <= b->time * same && a->memory < b->memory;
}

/* Keeps a rival if it is one of the best; its arena is taken. */
static void keep_rival(searcher *s, published r) {
    int at = s->n_rivals;
    while (at && better(&r, &s->rivals[at - 1])) at--;
    if (at == KEPT) {
        dtm_arena_destroy(r.arena);
        return;
    }
    if (s->n_rivals == KEPT) dtm_arena_destroy(s->rivals[--s->n_rivals].arena);
    memmove(&s->rivals[at + 1], &s->rivals[at], (size_t)(s->n_rivals++ - at) * sizeof *s->rivals);
    s->rivals[at] = r;
}

/* In the order of their times. */
static void list_published(searcher *s, dtm_timeline_answer *answer, const published *r, bool fits) {
    dtm_timeline_published p = {r->schedule, r->order->placement, copy_units(s->arena, r->units, r->order->stages), r->time, r->memory, s->problem->added[r->order->placement], fits};
    for (int i = 0; i < answer->n_published; i++) { /* cuts may be the same */
        const dtm_timeline_published *other = &answer->published[i];
        if (other->schedule == p.schedule && memcmp(other->units, p.units, (size_t)r->order->stages * sizeof *p.units) == 0) return;
    }
    int at = answer->n_published++;
    for (; at && answer->published[at - 1].time > p.time; at--) answer->published[at] = answer->published[at - 1];
    answer->published[at] = p;
}

/* A published order on some cut, in an arena of its own. */
static dtm_timeline_rival time_rival(searcher *s, dtm_arena *arena, dtm_timeline *order, int schedule, const int *units,
                                     dtm_timeline_answer *answer) {
    dtm_timeline_costs costs = search_cut_costs(arena, s->problem, order->stages, units);
    double added = s->problem->added[order->placement];
    dtm_arena *scratch = dtm_arena_create();
    dtm_timeline_times *times = dtm_timeline_simulate(scratch, order, &costs);
    s->beside += simulated_time * 3.0 * order->ranks * order->chunks * order->microbatches;
    published r = {arena, order, copy_units(arena, units, order->stages), times->makespan + added, times->memory, schedule};
    double makespan = times->makespan;
    bool ends = !times->stuck, fits = ends && (s->memory <= 0 || times->memory <= s->memory * (1 + 1e-12));
    dtm_arena_destroy(scratch);
    if (ends) list_published(s, answer, &r, fits);
    if (fits) keep_rival(s, r);
    else dtm_arena_destroy(arena);
    return (dtm_timeline_rival){.makespan = fits ? makespan : INFINITY, .memory = r.memory, .added = added};
}

/* The same where they have been timed: the quickest that fit are kept. */
static void keep_timed(searcher *s, const dtm_timeline_answer *timed, dtm_timeline_answer *answer) {
    const dtm_timeline_problem *p = s->problem;
    answer->rivals = timed->rivals;
    answer->n_rivals = timed->n_rivals;
    answer->published = timed->published;
    answer->n_published = timed->n_published;
    for (int i = 0, kept = 0; i < timed->n_published && kept < KEPT; i++) {
        const dtm_timeline_published *known = &timed->published[i];
        if (!known->fits || (s->memory > 0 && known->memory > s->memory * (1 + 1e-12))) continue;
        dtm_arena *arena = dtm_arena_create();
        dtm_timeline *order = search_rival_order(arena, known->schedule, p, &s->beside);
        if (order) keep_rival(s, (published){arena, order, copy_units(arena, known->units, order->stages), known->time, known->memory, known->schedule});
        else dtm_arena_destroy(arena);
        kept += order != NULL;
    }
}

static void time_rivals(searcher *s, dtm_timeline_answer *answer) {
    const dtm_timeline_problem *p = s->problem;
    if (p->timed) {
        keep_timed(s, p->timed, answer);
        return;
    }
    size_t capacity = 0, count = 0;
    const char *name = NULL;
    int chunks = 0, known = 0;
    while (search_rival(known, &name, &chunks)) known++;
    answer->published = dtm_arena_alloc(s->arena, (size_t)(known * DTM_RIVAL_CUTS) * sizeof *answer->published);
    for (int i = 0; search_rival(i, &name, &chunks); i++)
        for (int cut = 0; cut < DTM_RIVAL_CUTS; cut++) {
            dtm_arena *arena = dtm_arena_create();
            dtm_timeline_rival r = {.makespan = INFINITY};
            bool wanted = cut != DTM_CUT_OWN || (p->cut && !p->stages);
            dtm_timeline *order = wanted ? search_rival_order(arena, i, p, &s->beside) : NULL;
            if (order) {
                int *units = dtm_arena_alloc(arena, (size_t)order->stages * sizeof *units);
                if (cut == DTM_CUT_EVEN) search_cut_even(p, order->stages, units);
                if (cut == DTM_CUT_OWN) p->cut(p->cut_state, order, units);
                r = time_rival(s, arena, order, i,
                               p->stages ? p->stages : cut == DTM_CUT_BALANCED ? balanced_cut(s, order->placement, chunks, true) : units,
                               answer);
            } else {
                dtm_arena_destroy(arena);
            }
            r.name = name;
            r.chunks = chunks;
            r.cut = (dtm_rival_cut)cut;
            DTM_PUSH(s->arena, answer->rivals, count, capacity, r);
        }
    answer->n_rivals = (int)count;
}

/* ---- plans ---- */

static double best_time(const searcher *s) {
    double best = s->n_rivals ? s->rivals[0].time : INFINITY;
    for (int i = 0; i < s->n_candidates; i++) best = fmin(best, s->candidates[i].best + s->candidates[i].added);
    return best;
}

/* Whether a candidate may still become better than the best. */
static bool hopeful(const searcher *s, const candidate *c) { return (c->bound + c->added) * same < best_time(s); }

/* One that takes no more than `most`, or the plan is of no use. */
static void plan_with(searcher *s, candidate *c, const search_policy *policy, double most) {
    search_dispatcher_use(s->dispatcher, c->instance);
    search_dispatch(s->dispatcher, policy, most, &s->plan);
    s->spent += c->work;
}

/* What a plan takes, messages that wait for each other included, and the bytes that the rank with most needs. */
static double plan_times(const search_instance *in, const search_plan *plan, double *memory) {
    dtm_arena *arena = dtm_arena_create();
    dtm_timeline *t = search_plan_timeline(arena, in, plan, "auto");
    const dtm_timeline_times *times = dtm_timeline_simulate(arena, t, in->costs);
    double makespan = times->makespan;
    *memory = times->memory;
    dtm_arena_destroy(arena);
    return makespan;
}

static double peak(const search_instance *in, const search_plan *plan) {
    double memory;
    plan_times(in, plan, &memory);
    return memory;
}

/* Whether the plan takes less than some time. While it was made messages did not wait for all that they wait for, or for more; one that
 * is to be kept is timed. */
static bool is_quicker(searcher *s, const candidate *c, double than) {
    double memory;
    if (s->plan.makespan >= than) return false;
    if (c->costs->bandwidth <= 0) return true;
    s->plan.makespan = plan_times(c->instance, &s->plan, &memory);
    s->spent += simulated_time * c->work;
    return s->plan.makespan < than;
}

static double best_plan_time(const searcher *s) { return s->best_plan.makespan + s->best_of->added; }

static void keep(searcher *s, candidate *c) {
    c->best = s->plan.makespan;
    if (s->best_of && c->best + c->added >= best_plan_time(s)) return;
    search_plan_copy(c->instance, &s->best_plan, &s->plan);
    s->best_of = c;
}

/* The same with the priorities that led to the plan. */
static void keep_policy(searcher *s, candidate *c, const search_policy *policy) {
    if (!c->room[0])
        for (int k = 0; k < 2; k++)
            c->room[k] =
                dtm_arena_alloc(s->scratch, (size_t)c->instance->n_nodes * (size_t)s->problem->microbatches * sizeof(double));
    c->policy.due[0] = c->room[0];
    c->policy.due[1] = c->room[1];
    search_policy_copy(c->instance, &c->policy, policy);
    keep(s, c);
}

static void try_style(searcher *s, candidate *c, const search_style *style) {
    double most = c->instance->bounded ? INFINITY : c->best; /* with a bound it may stand still before its end */
    search_style_policy(style, c->instance, &s->policy);
    plan_with(s, c, &s->policy, most);
    if (s->plan.makespan == INFINITY && c->instance->shared && s->policy.planned && !s->policy.ordered) {
        s->policy.ordered = true; /* messages that have no room stood before others that had */
        plan_with(s, c, &s->policy, most);
    }
    if (s->plan.makespan == INFINITY) { /* an order without enough memory: then F as there is room */
        s->policy.strict = s->policy.planned = s->policy.ordered = false;
        plan_with(s, c, &s->policy, c->best);
    }
    if (!is_quicker(s, c, c->best)) return;
    c->style = *style;
    c->style.strict = s->policy.strict;
    c->style.planned = s->policy.planned;
    c->style.ordered = s->policy.ordered;
    c->policy.due[0] = NULL;
    keep(s, c);
}

static bool matches(const candidate *c, const published *r) {
    return c->placement == r->order->placement && c->chunks == r->order->chunks &&
           memcmp(c->units, r->units, (size_t)c->stages * sizeof *c->units) == 0;
}

/* A published order as priorities: each task is due when it began there, in that order or not; W fill gaps. */
static void from_rival(searcher *s, candidate *c, const published *r) {
    const dtm_timeline *t = r->order;
    dtm_arena *arena = dtm_arena_create();
    dtm_timeline_times *times = dtm_timeline_simulate(arena, t, c->costs);
    s->policy = (search_policy){{s->policy.due[0], s->policy.due[1]}, .patience = 0.5};
    for (int rank = 0; rank < t->ranks; rank++)
        for (size_t i = 0; i < t->order[rank].count; i++)
            for (int k = 0; k < (t->order[rank].operations[i].kind == DTM_OPERATION_PAIR ? 2 : 1); k++) {
                dtm_task task = t->order[rank].operations[i].tasks[k];
                size_t at = ((size_t)rank * (size_t)t->chunks + task.chunk) * (size_t)t->microbatches + task.microbatch;
                if (task.kind != DTM_TASK_WEIGHT) s->policy.due[task.kind != DTM_TASK_FORWARD][at] = times->rank[rank].start[i];
            }
    dtm_arena_destroy(arena);
    for (int strict = 0; strict < 2; strict++) {
        s->policy.strict = strict;
        s->policy.planned = !strict && c->instance->bounded;
        plan_with(s, c, &s->policy, c->best);
        if (is_quicker(s, c, c->best)) keep_policy(s, c, &s->policy);
    }
}

static void from_rivals(searcher *s) {
    for (int r = 0; r < s->n_rivals; r++)
        for (int i = 0; i < s->n_candidates; i++)
            if (hopeful(s, &s->candidates[i]) && matches(&s->candidates[i], &s->rivals[r]))
                from_rival(s, &s->candidates[i], &s->rivals[r]);
}

/* The candidate with the index-th best time of those that are hopeful; NULL: there are fewer. */
static candidate *ranked(searcher *s, int index) {
    bool taken[MOST_CANDIDATES] = {false};
    candidate *c = NULL;
    for (int k = 0; k <= index; k++) {
        int best = -1;
        for (int i = 0; i < s->n_candidates; i++)
            if (!taken[i] && hopeful(s, &s->candidates[i]) && (best < 0 || s->candidates[i].best + s->candidates[i].added < s->candidates[best].best + s->candidates[best].added))
                best = i;
        if (best < 0) return NULL;
        taken[best] = true;
        c = &s->candidates[best];
    }
    return c;
}

static void first_styles(searcher *s, int count) {
    for (int k = 0; k < count; k++)
        for (int i = 0; i < s->n_candidates; i++) {
            candidate *c = &s->candidates[i];
            bool last = k == count - 1; /* one microbatch at a time: only where nothing else has come to its end */
            if (!hopeful(s, c) || (last ? c->best < INFINITY : s->spent > s->budget * 0.4)) continue;
            search_style style = search_style_number(k, c->instance, &s->state);
            try_style(s, c, &style);
        }
}

/* Drawn styles, and such near the best, for the most promising candidates: four, then two, then one. */
static void more_styles(searcher *s, int from, double until) {
    double begun = s->spent;
    for (int k = from; s->spent < until; k++) {
        double part = (s->spent - begun) / (until - begun);
        int width = part < 0.4 ? 4 : part < 0.8 ? 2 : 1;
        for (int i = 0; i < width; i++) {
            candidate *c = ranked(s, i);
            if (!c) {
                if (i == 0) return;
                break;
            }
            search_style style = k % 2 ? search_style_number(k, c->instance, &s->state)
                                       : search_style_near(&c->style, c->instance, &s->state);
            try_style(s, c, &style);
        }
    }
}

/* Shakes the priorities of a candidate's best: keeps what is not much worse, less and less so. */
static void shake(searcher *s, candidate *c, double until) {
    double begun = s->spent, now, tie = 0.01;
    if (c->policy.due[0]) search_policy_copy(c->instance, &s->current, &c->policy);
    else search_style_policy(&c->style, c->instance, &s->current);
    plan_with(s, c, &s->current, INFINITY);
    now = s->plan.makespan + tie * search_mean_end(s->dispatcher);
    while (s->spent < until && hopeful(s, c)) {
        search_policy_copy(c->instance, &s->policy, &s->current);
        search_policy_shake(c->instance, &s->policy, &s->state);
        double heat = 0.003 * now * (1 - (s->spent + c->work - begun) / (until - begun)), x = search_random(&s->state);
        plan_with(s, c, &s->policy, fmax(c->best, now + fmax(heat, 0) * x * x * x));
        double then = s->plan.makespan + tie * search_mean_end(s->dispatcher);
        if (is_quicker(s, c, c->best)) keep_policy(s, c, &s->policy);
        if (!(then <= now + heat * x * x * x)) continue;
        search_policy swap = s->current;
        s->current = s->policy;
        s->policy = swap;
        now = then;
    }
}

/* ---- less memory ---- */

/* Looks for a plan as quick as the best within less memory than it takes: by halves, as long as the budget lasts. */
static void squeeze(searcher *s) {
    candidate *c = s->best_of, tight = *c;
    double high = peak(c->instance, &s->best_plan), low = 0;
    for (int round = 0; round < 6 && s->spent < s->budget; round++) {
        double memory = low > 0 ? (low + high) / 2 : high * 0.6;
        bool found = false;
        tight.instance = search_instance_create(s->scratch, c->costs, c->placement, s->problem->ranks, s->problem->microbatches,
                                                c->chunks, memory);
        double until = s->spent + (s->budget - s->spent) / 4;
        for (int k = 0; tight.instance && !found && (k < 2 || s->spent < until); k++) {
            search_style style = k < 4 ? search_style_number(k, tight.instance, &s->state)
                                       : search_style_near(&c->style, tight.instance, &s->state);
            if (k == 0) style = c->style, style.planned = !style.strict;
            search_style_policy(&style, tight.instance, &s->policy);
            plan_with(s, &tight, &s->policy, s->best_plan.makespan * same);
            found = is_quicker(s, &tight, s->best_plan.makespan * same);
        }
        if (found) {
            search_plan_copy(c->instance, &s->best_plan, &s->plan);
            high = peak(c->instance, &s->best_plan);
        } else {
            low = memory;
        }
        if (high - low < 0.03 * high) break;
    }
}

/* ---- all of it ---- */

static void make_room(searcher *s) {
    candidate *largest = NULL;
    for (int i = 0; i < s->n_candidates; i++)
        if (!largest || s->candidates[i].work > largest->work) largest = &s->candidates[i];
    if (!largest) return;
    s->dispatcher = search_dispatcher_create(s->scratch, largest->instance);
    s->policy = search_policy_create(s->scratch, largest->instance);
    s->current = search_policy_create(s->scratch, largest->instance);
    s->plan = search_plan_create(s->scratch, largest->instance);
    s->best_plan = search_plan_create(s->scratch, largest->instance);
}

static void answer_with(searcher *s, dtm_timeline_answer *answer) {
    const published *r = s->n_rivals ? &s->rivals[0] : NULL;
    const candidate *c = s->best_of;
    bool rival = r && (!c || r->time * same < best_plan_time(s));
    if (r && c && !rival && r->time <= best_plan_time(s) * same) rival = r->memory < peak(c->instance, &s->best_plan);
    int stages = rival ? r->order->stages : c->stages;
    answer->units = copy_units(s->arena, rival ? r->units : c->units, stages);
    answer->costs = search_cut_costs(s->arena, s->problem, stages, answer->units);
    if (rival) {
        const dtm_timeline *t = r->order;
        answer->timeline = dtm_timeline_copy(s->arena, t);
        search_instance *in =
            search_instance_create(s->scratch, &answer->costs, t->placement, t->ranks, t->microbatches, t->chunks, s->memory);
        answer->bound = in ? search_bound(in) : 0;
    } else {
        answer->timeline = search_plan_timeline(s->arena, c->instance, &s->best_plan, "auto");
        answer->bound = c->bound;
    }
    answer->times = dtm_timeline_simulate(s->arena, answer->timeline, &answer->costs);
}

static void search(searcher *s, dtm_timeline_answer *answer) {
    make_candidates(s);
    sort_candidates(s);
    time_rivals(s, answer);
    make_room(s);
    for (int i = 0; i < s->n_candidates; i++) answer->least = fmin(answer->least, s->candidates[i].bound);
    if (s->n_candidates) from_rivals(s);
    first_styles(s, 11);
    more_styles(s, 11, 0.45 * s->budget);
    static const struct {
        int which;
        double until; /* share of the budget */
    } turns[] = {{0, 0.55}, {1, 0.65}, {2, 0.72}, {0, 0.82}, {0, 0.9}};
    for (size_t k = 0; k < sizeof turns / sizeof *turns; k++) {
        candidate *c = ranked(s, turns[k].which);
        if (c && c->best < INFINITY && s->spent < turns[k].until * s->budget) shake(s, c, turns[k].until * s->budget);
    }
    if (s->best_of && best_plan_time(s) <= best_time(s) * same) squeeze(s);
}

/* One search within so much memory for what stages hold and keep. */
static bool search_within(dtm_arena *arena, const dtm_timeline_problem *p, known_cuts *cuts, double memory, double share,
                          dtm_timeline_answer *answer) {
    double tasks = 3.0 * p->ranks * p->microbatches, effort = share * (p->effort > 0 ? p->effort : 1);
    searcher s = {.problem = p, .arena = arena, .scratch = dtm_arena_create(), .state = 1, .memory = memory,
                  .cuts = cuts};
    s.budget = effort * (fmin(4e6, 12000 * tasks) + fmin(300 * tasks, 2e7));
    *answer = (dtm_timeline_answer){.least = INFINITY, .work = answer->work};
    search(&s, answer);
    answer->work += s.spent + s.beside;
    bool found = s.best_of || s.n_rivals;
    if (found) {
        answer_with(&s, answer);
        answer->least = p->stages ? answer->least : search_bound_any(p);
    }
    for (int r = 0; r < s.n_rivals; r++) dtm_arena_destroy(s.rivals[r].arena);
    dtm_arena_destroy(s.scratch);
    return found;
}

/* Proves the answer; returns what the rank that needs most needs, receive slots included, and what these are. */
static double proved(dtm_context *context, dtm_arena *arena, const dtm_timeline_answer *answer, double *messages) {
    dtm_timeline_proof proof;
    double most = 0;
    if (!dtm_timeline_prove(context, arena, answer->timeline, &answer->costs, NULL, &proof))
        dtm_broken("timeline search", "a timeline that does not hold");
    for (int r = 0; r < answer->timeline->ranks; r++)
        if (proof.rank[r].held + proof.rank[r].kept + proof.rank[r].messages > most) {
            most = proof.rank[r].held + proof.rank[r].kept + proof.rank[r].messages;
            *messages = proof.rank[r].messages;
        }
    return most;
}

/* Of the published schedules the one that needs least memory, receive slots left out. */
static double least_memory(const dtm_timeline_answer *answer) {
    double least = INFINITY;
    for (int i = 0; i < answer->n_rivals; i++)
        if (answer->rivals[i].memory > 0) least = fmin(least, answer->rivals[i].memory);
    return least;
}

void dtm_timeline_nothing_fits(dtm_context *context, dtm_span span, double least, double memory) {
    dtm_text text = {.arena = dtm_context_arena(context)};
    dtm_error(context, span, 907, "no timeline fits in the memory of a rank");
    if (least < INFINITY) {
        dtm_text_printf(&text, "of those tried, the one that needs least needs ");
        dtm_text_bytes(&text, least);
        dtm_text_printf(&text, " on a rank, which has ");
        dtm_text_bytes(&text, memory);
        dtm_note(context, (dtm_span){0, 0, 0}, "%s", text.data);
    }
    dtm_help(context, "more ranks in the pipeline, more microbatches, each smaller, an axis that splits weights too, or machines with more memory");
}

dtm_timeline *dtm_timeline_published_order(dtm_arena *arena, const dtm_timeline_problem *p, const dtm_timeline_published *published) {
    double work = 0;
    return search_rival_order(arena, published->schedule, p, &work);
}

dtm_timeline_answer *dtm_timeline_answer_with(dtm_arena *arena, const dtm_timeline_problem *p, const dtm_timeline_answer *found,
                                              const dtm_timeline_published *published, dtm_timeline *order) {
    dtm_timeline_answer *answer = dtm_arena_alloc(arena, sizeof *answer);
    *answer = *found;
    answer->timeline = order;
    answer->units = copy_units(arena, published->units, order->stages);
    answer->costs = search_cut_costs(arena, p, order->stages, answer->units);
    answer->times = dtm_timeline_simulate(arena, order, &answer->costs);
    answer->added = published->added;
    search_instance *in =
        search_instance_create(arena, &answer->costs, order->placement, order->ranks, order->microbatches, order->chunks, p->memory);
    answer->bound = in ? search_bound(in) : 0;
    return answer;
}

bool dtm_timeline_search(dtm_context *context, dtm_arena *arena, const dtm_timeline_problem *p, dtm_timeline_answer *answer) {
    double memory = p->memory, most = 0, messages = 0, least = INFINITY;
    bool found = true;
    known_cuts cuts = {.arena = dtm_arena_create()};
    answer->work = 0;
    for (int round = 0; round < 6; round++) { /* what receive slots take is known afterwards: leave it out, and look again */
        found = memory >= 0 && search_within(arena, p, &cuts, memory, round ? 0.5 : 1, answer);
        if (!found && !round) least = least_memory(answer);
        if (!found || (most = proved(context, arena, answer, &messages)) <= p->memory * (1 + 1e-12) || p->memory <= 0) break;
        least = fmin(least, most);
        memory = p->memory - messages * (1 << round) > memory ? memory - messages : p->memory - messages * (1 << round);
        if (memory <= 0) memory = -1;
    }
    dtm_arena_destroy(cuts.arena);
    if (found && (p->memory <= 0 || most <= p->memory * (1 + 1e-12))) return true;
    if (p->quiet) return false;
    dtm_timeline_nothing_fits(context, p->span, least, p->memory);
    return false;
}
