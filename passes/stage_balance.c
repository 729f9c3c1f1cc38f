/* Where a pipeline's stages are cut (stage.h). Copies of the split repeat are alike, so what a rank has to do grows by
 * the same with each, and giving them out one by one, each to the rank that has least to do, is exact: no cut has a
 * rank that does more than it must, nor are the others less even. (Any cut can be made this one by moving copies from
 * ranks that have more to ranks that have less, none of which makes it worse.) With two directions the two ranks of a
 * stage share it. A rank takes no more than it has memory for: its order says how many microbatches each chunk has in
 * flight. Within a rank a copy goes to the chunk that takes least time; where that does not fit, its copies are divided
 * anew between its chunks. What a rank needs is convex in the number that one of two chunks has, so no division of them
 * is missed: with two chunks a rank takes as many copies as any cut gives it. With more, chunks are divided anew in
 * pairs, as long as that saves memory. */
#include "passes/stage.h"

#include <math.h>
#include <string.h>

/* How many microbatches a rank has in what state at a time, by chunk and state. Of all moments those are listed in which there are not
 * more of each in another: what a rank needs for any cut is what the one of them needs that needs most. */
typedef enum flight { FLIGHT_KEPT, FLIGHT_DIVIDED, FLIGHT_FOR_WEIGHT, FLIGHTS } flight; /* divided: while an I runs */

typedef struct moments {
    int *counts; /* of one moment after another, `width` each */
    size_t count, capacity;
    int *now;
    bool known;
} moments;

typedef struct cutter {
    const stages *s;
    const stage_seen *seen;
    const dtm_timeline_problem *problem;
    const dtm_stage_cost *before, *copy, *after;
    int64_t *size; /* by stage: copies */
    moments *moments; /* by rank */
} cutter;

static double time_of(const dtm_stage_cost *c) {
    return c->forward + c->input + c->weight;
}

/* A stage's costs, of which a cut changes those that grow with its copies. */
static dtm_stage_cost cost_of(const cutter *c, int stage) {
    double n = (double)c->size[stage];
    const dtm_stage_cost *x = c->copy;
    dtm_stage_cost cost = {
        n * x->forward,     n * x->input, n * x->weight, .kept = n * x->kept, .kept_for_weight = n * x->kept_for_weight,
        .held = n * x->held,
        .shares = c->size[stage] ? x->shares : 0};
    for (int end = 0; end < 2; end++) {
        const dtm_stage_cost *e = end ? c->after : c->before;
        if (stage != (end ? c->s->count - 1 : 0)) continue;
        cost.forward += e->forward;
        cost.input += e->input;
        cost.weight += e->weight;
        cost.kept += e->kept;
        cost.kept_for_weight += e->kept_for_weight;
        cost.held += e->held;
        cost.shares |= e->shares;
    }
    cost.held += dtm_shared_in_stage(c->problem->shared, c->problem->n_shared, cost.shares);
    return cost;
}

/* Of a rank, for all microbatches. */
static double load(const cutter *c, int rank) {
    double time = 0;
    for (int k = 0; k < c->s->chunks; k++) {
        dtm_stage_cost cost = cost_of(c, stage_at(c->s, rank, k));
        time += time_of(&cost) * dtm_timeline_passing(c->s->places, k);
    }
    return time;
}

/* ---- memory ---- */

/* Whether a moment has at least as many of each. */
static bool covers(const int *a, const int *b, int width) {
    for (int i = 0; i < width; i++)
        if (a[i] < b[i]) return false;
    return true;
}

static void add_moment(const cutter *c, moments *m, int width) {
    size_t left = 0;
    for (size_t i = m->count; i-- > 0;) /* the latest is most like it */
        if (covers(&m->counts[i * (size_t)width], m->now, width)) return;
    for (size_t i = 0; i < m->count; i++) {
        if (covers(m->now, &m->counts[i * (size_t)width], width)) continue;
        if (left < i) memcpy(&m->counts[left * (size_t)width], &m->counts[i * (size_t)width], (size_t)width * sizeof *m->counts);
        left++;
    }
    if (left == m->capacity) {
        int *counts = dtm_arena_alloc(c->s->scratch, 2 * (left + 4) * (size_t)width * sizeof *counts);
        if (left) memcpy(counts, m->counts, left * (size_t)width * sizeof *counts);
        m->counts = counts;
        m->capacity = 2 * (left + 4);
    }
    memcpy(&m->counts[left * (size_t)width], m->now, (size_t)width * sizeof *m->counts);
    m->count = left + 1;
}

static void begin_task(int *flights, dtm_task_kind kind) {
    flights[FLIGHT_KEPT] += kind == DTM_TASK_FORWARD ? 1 : kind == DTM_TASK_INPUT ? -1 : 0;
    flights[FLIGHT_DIVIDED] += kind == DTM_TASK_INPUT;
}

static void end_task(int *flights, dtm_task_kind kind) {
    flights[FLIGHT_KEPT] -= kind == DTM_TASK_BACKWARD;
    flights[FLIGHT_DIVIDED] -= kind == DTM_TASK_INPUT;
    flights[FLIGHT_FOR_WEIGHT] += kind == DTM_TASK_INPUT ? 1 : kind == DTM_TASK_WEIGHT ? -1 : 0;
}

static const moments *moments_of(const cutter *c, int rank) {
    moments *m = &c->moments[rank];
    const dtm_rank_order *order = &c->s->places->order[rank];
    int width = c->s->chunks * FLIGHTS;
    if (m->known) return m;
    m->known = true;
    m->now = dtm_arena_alloc(c->s->scratch, (size_t)width * sizeof *m->now);
    for (size_t i = 0; i < order->count; i++) {
        const dtm_operation *o = &order->operations[i];
        int n = o->kind == DTM_OPERATION_PAIR ? 2 : 1;
        bool more = false;
        for (int k = 0; k < n; k++) {
            begin_task(&m->now[o->tasks[k].chunk * FLIGHTS], o->tasks[k].kind);
            more |= o->tasks[k].kind == DTM_TASK_FORWARD || o->tasks[k].kind == DTM_TASK_INPUT;
        }
        if (more) add_moment(c, m, width); /* else there was as much just now */
        for (int k = 0; k < n; k++) end_task(&m->now[o->tasks[k].chunk * FLIGHTS], o->tasks[k].kind);
    }
    return m;
}

/* Of so many microbatches in what state. */
static double alive(const dtm_stage_cost *costs, const int *counts, int chunks) {
    double bytes = 0;
    for (int k = 0; k < chunks; k++) {
        const int *n = &counts[k * FLIGHTS];
        const dtm_stage_cost *x = &costs[k];
        bytes += n[FLIGHT_KEPT] * x->kept + n[FLIGHT_DIVIDED] * fmax(x->kept, x->kept_for_weight) + n[FLIGHT_FOR_WEIGHT] * x->kept_for_weight;
    }
    return bytes;
}

/* Bytes of a rank's stages and of the microbatches in flight in them; without an order one passes after the other. */
static double modelled(const cutter *c, int rank) {
    enum { MOST_AT_ONCE = 64 };
    int chunks = c->s->chunks;
    dtm_stage_cost few[MOST_AT_ONCE], *costs = chunks <= MOST_AT_ONCE ? few : dtm_arena_alloc(c->s->scratch, (size_t)chunks * sizeof *costs);
    bool ordered = c->s->places->order[rank].count;
    double held = 0, most = 0;
    uint32_t shares = 0;
    for (int k = 0; k < chunks; k++) {
        costs[k] = cost_of(c, stage_at(c->s, rank, k));
        held += costs[k].held;
        shares |= costs[k].shares;
        if (!ordered) most += costs[k].kept;
    }
    const moments *m = ordered ? moments_of(c, rank) : NULL;
    for (size_t i = 0; m && i < m->count; i++) most = fmax(most, alive(costs, &m->counts[i * (size_t)(chunks * FLIGHTS)], chunks));
    return held + dtm_shared_on_rank(c->problem->shared, c->problem->n_shared, shares) + most;
}

/* And what it needed beside that when it was seen with the stages that are most like these: with the very same ones that is known, with
 * others it is taken to be the less the more they differ in what is modelled. Rather too little: the cut is tried then. */
static double memory(const cutter *c, int rank) {
    double model = modelled(c, rank), extra = 0;
    int64_t nearest = INT64_MAX;
    for (const stage_seen *seen = c->seen; seen; seen = seen->before) {
        int64_t distance = 0;
        for (int k = 0; k < c->s->chunks; k++) {
            int stage = stage_at(c->s, rank, k);
            int64_t more = c->size[stage] - seen->copies[stage];
            distance += more < 0 ? -more : more;
        }
        if (distance >= nearest) continue;
        nearest = distance;
        extra = seen->beside[rank];
        double most = fmax(model, seen->modelled[rank]);
        if (distance && extra > 0 && most > 0) extra *= fmin(model, seen->modelled[rank]) / most;
    }
    return model + extra;
}

static bool fits(const cutter *c, int rank, bool bounded) {
    return !bounded || c->problem->memory <= 0 || memory(c, rank) <= c->problem->memory;
}

/* Of the ranks that have a stage, what the one needs that needs most. */
static double stage_memory(const cutter *c, int stage) {
    double most = 0;
    for (int d = 0; d < stage_directions(c->s); d++) most = fmax(most, memory(c, stage_rank(c->s, stage, d)));
    return most;
}

/* Whether all ranks that have a stage have the memory for it. */
static bool stage_fits(const cutter *c, int stage, bool bounded) {
    bool good = true;
    for (int d = 0; d < stage_directions(c->s); d++) good = good && fits(c, stage_rank(c->s, stage, d), bounded);
    return good;
}

/* ---- chunks of a rank divided anew ---- */

static double memory_with(cutter *c, int a, int b, int64_t of_a, int64_t both) {
    c->size[a] = of_a;
    c->size[b] = both - of_a;
    return stage_memory(c, a);
}

/* How many of the copies of both the first is to have: where they need least memory. Apart from the ends, at which a stage has
 * none of what copies share, that is convex. */
static int64_t least_memory(cutter *c, int a, int b, int64_t both) {
    int64_t low = 0, high = both, best;
    while (low < high) {
        int64_t at = low + (high - low) / 2;
        if (memory_with(c, a, b, at, both) <= memory_with(c, a, b, at + 1, both)) high = at;
        else low = at + 1;
    }
    best = low;
    for (int end = 0; end < 2; end++)
        if (memory_with(c, a, b, end ? both : 0, both) < memory_with(c, a, b, best, both)) best = end ? both : 0;
    return best;
}

/* Of the numbers from `even`, which does not fit, to `fitting`, the first that does. */
static int64_t nearest_fitting(cutter *c, int a, int b, int64_t even, int64_t fitting, int64_t both) {
    while (even - fitting > 1 || fitting - even > 1) {
        int64_t at = even + (fitting - even) / 2;
        *(memory_with(c, a, b, at, both) <= c->problem->memory ? &fitting : &even) = at;
    }
    return fitting;
}

/* Divides copies between chunks of a rank so that they fit; false: they do not, all are where they were. */
static bool divide_anew(cutter *c, int rank) {
    int chunks = c->s->chunks;
    int64_t *before = dtm_arena_alloc(c->s->scratch, (size_t)c->s->count * sizeof *before);
    memcpy(before, c->size, (size_t)c->s->count * sizeof *before);
    for (bool news = true; news;) {
        news = false;
        for (int i = 0; i < chunks; i++)
            for (int k = i + 1; k < chunks; k++) {
                int a = stage_at(c->s, rank, i), b = stage_at(c->s, rank, k);
                int64_t even = c->size[a], both = c->size[a] + c->size[b];
                double now = stage_memory(c, a);
                if (a == b) continue; /* the middle one of an odd number of ranks, in two directions */
                int64_t least = least_memory(c, a, b, both);
                double memory = memory_with(c, a, b, least, both);
                if (memory <= c->problem->memory) {
                    int64_t found = nearest_fitting(c, a, b, even, least, both);
                    memory_with(c, a, b, found, both);
                    return true;
                }
                news |= memory < now * (1 - 1e-12);
                if (memory >= now * (1 - 1e-12)) memory_with(c, a, b, even, both);
            }
    }
    memcpy(c->size, before, (size_t)c->s->count * sizeof *before);
    return false;
}

/* ---- giving out ---- */

/* The chunk of a rank that takes least time, the first of them. */
static int least_stage(const cutter *c, int rank) {
    int least = -1;
    double best = 0;
    for (int k = 0; k < c->s->chunks; k++) {
        int stage = stage_at(c->s, rank, k);
        dtm_stage_cost cost = cost_of(c, stage);
        if (least >= 0 && time_of(&cost) >= best) continue;
        least = stage;
        best = time_of(&cost);
    }
    return least;
}

/* Gives out the copies one by one; false: there is no memory for all of them. */
static bool give_out(cutter *c, int64_t copies, bool bounded, double *loads, bool *full) {
    int ranks = c->s->n_ranks;
    memset(c->size, 0, (size_t)c->s->count * sizeof *c->size);
    for (int r = 0; r < ranks; r++) {
        loads[r] = load(c, r);
        full[r] = !fits(c, r, bounded);
        if (full[r]) return false;
    }
    while (copies > 0) {
        int least = -1;
        for (int r = 0; r < ranks; r++)
            if (!full[r] && (least < 0 || loads[r] < loads[least])) least = r;
        if (least < 0) return false;
        int stage = least_stage(c, least);
        c->size[stage]++;
        full[least] = !stage_fits(c, stage, bounded) && !divide_anew(c, least);
        if (full[least]) {
            c->size[stage]--;
            continue;
        }
        for (int d = 0; d < stage_directions(c->s); d++)
            loads[stage_rank(c->s, stage, d)] = load(c, stage_rank(c->s, stage, d));
        copies--;
    }
    return true;
}

/* What the rank does that has most to do, INFINITY: one has not the memory. */
static double most_of(const cutter *c, bool bounded) {
    double most = 0;
    for (int r = 0; r < c->s->n_ranks; r++) most = fits(c, r, bounded) ? fmax(most, load(c, r)) : INFINITY;
    return most;
}

static void share_evenly(cutter *c, int64_t copies) {
    for (int k = 0; k < c->s->count; k++) c->size[k] = copies / c->s->count + (k < copies % c->s->count);
}

static cutter cutter_of(const stages *s, const dtm_timeline_problem *p, const stage_seen *seen) {
    cutter c = {s, seen, p, &p->unit[0], &p->unit[1], &p->unit[p->units - 1]};
    c.size = dtm_arena_alloc(s->scratch, (size_t)s->count * sizeof *c.size);
    c.moments = dtm_arena_alloc(s->scratch, (size_t)s->n_ranks * sizeof *c.moments);
    return c;
}

static void set_cut(stages *s, const int64_t *sizes) {
    for (int k = 0; k < s->count; k++) s->first[k + 1] = s->first[k] + sizes[k];
}

bool stage_balance(stages *s, int64_t copies, const dtm_timeline_problem *p, const stage_seen *seen) {
    cutter c = cutter_of(s, p, seen);
    double *loads = dtm_arena_alloc(s->scratch, (size_t)s->n_ranks * sizeof *loads);
    bool *full = dtm_arena_alloc(s->scratch, (size_t)s->n_ranks);
    bool bounded = give_out(&c, copies, true, loads, full);
    if (!bounded) give_out(&c, copies, false, loads, full);
    int64_t *best = c.size;
    double most = most_of(&c, bounded);
    c.size = dtm_arena_alloc(s->scratch, (size_t)s->count * sizeof *c.size);
    share_evenly(&c, copies);
    if (most_of(&c, bounded) <= most * (1 + 1e-9)) best = c.size;
    set_cut(s, best);
    return bounded;
}

double stage_least_memory(stages *s, int64_t copies, const dtm_timeline_problem *p, const stage_seen *seen) {
    dtm_timeline_problem tight = *p;
    cutter c = cutter_of(s, &tight, seen);
    double *loads = dtm_arena_alloc(s->scratch, (size_t)s->n_ranks * sizeof *loads);
    bool *full = dtm_arena_alloc(s->scratch, (size_t)s->n_ranks);
    int64_t *best = dtm_arena_alloc(s->scratch, (size_t)s->count * sizeof *best);
    double low = 0, high = 0;
    give_out(&c, copies, false, loads, full);
    for (int r = 0; r < s->n_ranks; r++) high = fmax(high, memory(&c, r));
    memcpy(best, c.size, (size_t)s->count * sizeof *best);
    while (high - low > 1e-3 * high) {
        tight.memory = (low + high) / 2;
        if (!give_out(&c, copies, true, loads, full)) {
            low = tight.memory;
            continue;
        }
        high = tight.memory;
        memcpy(best, c.size, (size_t)s->count * sizeof *best);
    }
    set_cut(s, best);
    return high;
}

void stage_modelled(stages *s, const dtm_timeline_problem *p, const int64_t *copies, double *bytes) {
    cutter c = cutter_of(s, p, NULL);
    memcpy(c.size, copies, (size_t)s->count * sizeof *c.size);
    for (int r = 0; r < s->n_ranks; r++) bytes[r] = modelled(&c, r);
}
