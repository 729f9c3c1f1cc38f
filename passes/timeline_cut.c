/* Stages from units (timeline_search.h). A cut is the number of units of each stage. */
#include "passes/timeline_search.h"

#include <math.h>
#include <string.h>

dtm_timeline_costs search_cut_costs(dtm_arena *arena, const dtm_timeline_problem *p, int stages, const int *units) {
    dtm_stage_cost *cost = dtm_arena_alloc(arena, (size_t)stages * sizeof *cost);
    int u = 0;
    for (int s = 0; s < stages; s++) {
        for (int i = 0; i < units[s]; i++, u++) {
            const dtm_stage_cost *x = &p->unit[u];
            cost[s].forward += x->forward;
            cost[s].input += x->input;
            cost[s].weight += x->weight;
            cost[s].hidden += x->hidden;
            cost[s].hidden_input += x->hidden_input;
            cost[s].kept += x->kept;
            cost[s].kept_for_weight += x->kept_for_weight;
            cost[s].held += x->held;
            cost[s].shares |= x->shares;
            if (i == 0) cost[s].backward_bytes = x->backward_bytes;
            cost[s].forward_bytes = x->forward_bytes;
        }
        cost[s].held += dtm_shared_in_stage(p->shared, p->n_shared, cost[s].shares);
        if (units[s]) continue;
        /* an empty stage hands on what it gets */
        cost[s].forward_bytes = u ? p->unit[u - 1].forward_bytes : 0;
        cost[s].backward_bytes = u < p->units ? p->unit[u].backward_bytes : 0;
    }
    return (dtm_timeline_costs){stages, cost, p->latency, p->bandwidth, .n_shared = p->n_shared, .shared = p->shared};
}

void search_cut_even(const dtm_timeline_problem *p, int stages, int *units) {
    int first = p->layers ? p->first_layer : 0, layers = p->layers ? p->layers : p->units;
    for (int s = 0; s < stages; s++) units[s] = layers / stages + (s < layers % stages);
    units[0] += first;
    units[stages - 1] += p->units - first - layers;
}

/* ---- balanced ---- */

typedef struct cutter {
    const dtm_timeline_problem *problem;
    const dtm_timeline *timeline; /* for its places */
    dtm_arena *arena;
    dtm_stage_cost *sum; /* of the units before each */
    int *sharing;        /* by unit and what is shared: how many of the units before it have that */
    int *units, *first;  /* by stage: how many, and the first */
    int *stage;          /* by rank and chunk */
    bool *leaves;        /* by stage: the next one is on another rank */
    dtm_stage_cost *cost, *old_cost; /* by stage */
    double *forth, *home; /* by unit: the time of a message from it forward, back */
    double *head, *back; /* by stage: earliest F, earliest I */
    double penalty;      /* for each byte that does not fit */
    bool work_only;      /* whatever the order of arrival */
    double effort;       /* stages looked at that are left */
} cutter;

/* What the units of a stage share. */
static uint32_t shares_of(const cutter *c, int s) {
    int n = c->problem->n_shared;
    const int *before = c->sharing + c->first[s] * n, *until = before + c->units[s] * n;
    uint32_t shares = 0;
    for (int i = 0; i < n; i++) shares |= (uint32_t)(until[i] > before[i]) << i;
    return shares;
}

/* The costs of a stage, by the sums. */
static dtm_stage_cost stage_cost(const cutter *c, int s) {
    const dtm_stage_cost *a = &c->sum[c->first[s]], *b = &c->sum[c->first[s] + c->units[s]];
    return (dtm_stage_cost){b->forward - a->forward, b->input - a->input, b->weight - a->weight,
                            fmax(b->hidden - a->hidden, b->hidden_input - a->hidden_input), .kept = b->kept - a->kept,
                            .kept_for_weight = b->kept_for_weight - a->kept_for_weight, .held = b->held - a->held,
                            .shares = shares_of(c, s)};
}

static double message(const dtm_timeline_problem *p, double bytes) {
    return p->latency + (p->bandwidth > 0 ? bytes / p->bandwidth : 0);
}

/* What stages cost, from one to another. */
static void set_costs(cutter *c, int from, int to) {
    for (int s = from, u = c->first[from]; s <= to; u += c->units[s++]) {
        c->first[s] = u;
        c->cost[s] = stage_cost(c, s);
    }
}

/* When the first F and the first I of each stage can begin. */
static void set_heads(cutter *c) {
    int stages = c->timeline->stages;
    double time = 0;
    for (int s = 0; s < stages; s++) {
        c->head[s] = time;
        int next = c->first[s] + c->units[s];
        time += c->cost[s].forward + (c->leaves[s] && next ? c->forth[next - 1] : 0);
    }
    for (int s = stages; s-- > 0;) {
        c->back[s] = time;
        time += c->cost[s].input;
        if (s > 0 && c->leaves[s - 1] && c->first[s] < c->problem->units) time += c->home[c->first[s]];
    }
    c->effort -= stages;
}

/* How long a rank can be busy with F before its first I comes, its chunks' F being there from their heads on. */
static double busy_before(const cutter *c, int rank, double until) {
    const dtm_timeline *t = c->timeline;
    const int *stage = c->stage + rank * t->chunks;
    double now = 0, busy = 0;
    uint64_t done = 0; /* chunks */
    for (int k = 0; k < t->chunks; k++) {
        int next = -1;
        for (int i = 0; i < t->chunks; i++)
            if (!(done >> i & 1) && (next < 0 || c->head[stage[i]] < c->head[stage[next]])) next = i;
        int s = stage[next];
        double time = dtm_timeline_passing(t, next) * c->cost[s].forward;
        now = fmax(now, c->head[s]);
        done |= (uint64_t)1 << next;
        if (now >= until) break;
        time = fmin(time, until - now);
        busy += time;
        now += time;
    }
    return busy;
}

/* When a rank can be done at the earliest, as far as its own work goes: see timeline_bound.c. */
static double rank_end(const cutter *c, int rank) {
    const dtm_timeline *t = c->timeline;
    double first_f = INFINITY, first_i = INFINITY, f = 0, hidden = 0, b = 0, held = 0, whole = 0, lived = 0;
    const dtm_timeline_problem *p = c->problem;
    uint32_t shares = 0;
    for (int k = 0; k < t->chunks; k++) {
        int s = c->stage[rank * t->chunks + k];
        dtm_stage_cost x = c->cost[s];
        double count = dtm_timeline_passing(t, k);
        first_f = fmin(first_f, c->head[s]);
        first_i = fmin(first_i, c->back[s]);
        f += count * x.forward;
        hidden += count * x.hidden;
        b += count * (x.input + x.weight);
        held += x.held + dtm_shared_in_stage(p->shared, p->n_shared, x.shares);
        shares |= x.shares;
        whole = t->directions == 2 ? fmax(whole, x.kept) : whole + x.kept;
        lived += count * (x.kept * (c->back[s] - c->head[s] + x.input) + x.kept_for_weight * x.weight);
    }
    held += dtm_shared_on_rank(p->shared, p->n_shared, shares);
    double room = p->memory > 0 ? p->memory - held : INFINITY, end = f + b;
    if (!c->work_only)
        end += first_i - hidden - busy_before(c, rank, first_i) * (f > 0 ? 1 - fmin(hidden, f) / f : 1);
    if (whole > room) return end + c->penalty * (whole - room + 1e-3 * p->memory);
    return room < INFINITY && !c->work_only ? fmax(end, first_f + lived / room) : end;
}

/* The end of the last rank, and a little of all others', so that many good ones are better than few; *worst: that rank.
 * INFINITY as soon as this is seen to be no less than `enough`. */
static double score(cutter *c, double enough, int *worst) {
    double most = 0, sum = 0;
    *worst = 0;
    for (int r = 0; r < c->timeline->ranks; r++) {
        double end = rank_end(c, r);
        if (end >= enough) return INFINITY;
        if (end > most) most = end, *worst = r;
        sum += end;
    }
    return most + 1e-3 * sum / c->timeline->ranks;
}

/* What a stage has at least: what stands before the layers is on the first one, what stands after them on the last; and none is empty
 * where there is enough for all. */
static int least_of(const dtm_timeline_problem *p, int stages, int s) {
    int before = p->layers ? p->first_layer : 0, after = p->layers ? p->units - p->first_layer - p->layers : 0;
    int least = (s == 0 ? before : 0) + (s == stages - 1 ? after : 0);
    return least ? least : p->units >= stages;
}

/* The score with a unit's worth moved from stage a to stage b; INFINITY if no less than `enough`. */
static double moved(cutter *c, int a, int b, double enough) {
    int from = a < b ? a : b, to = a < b ? b : a, rank, chunk;
    size_t stages = (size_t)(to - from + 1);
    memcpy(c->old_cost, c->cost + from, stages * sizeof *c->cost);
    c->units[a]--, c->units[b]++;
    set_costs(c, from, to);
    set_heads(c);
    double x = INFINITY;
    bool late = false; /* what b is added to is what most often becomes too late */
    for (int way = 0; way < c->timeline->directions && !late; way++) {
        dtm_timeline_place(c->timeline, b, way, &rank, &chunk);
        late = rank_end(c, rank) >= enough;
    }
    if (!late) x = score(c, enough, &rank);
    c->units[a]++, c->units[b]--;
    memcpy(c->cost + from, c->old_cost, stages * sizeof *c->cost);
    for (int s = from, u = c->first[from]; s <= to; u += c->units[s++]) c->first[s] = u;
    return x;
}

/* Each boundary where the units before it weigh most nearly what they should; shares of chunks relative to each other. */
static void cut_by_weight(cutter *c, const double *share) {
    const dtm_timeline *t = c->timeline;
    const dtm_stage_cost *all = &c->sum[c->problem->units];
    double total = all->forward + all->input + all->weight, wanted = 0, whole = 0;
    for (int s = 0; s < t->stages; s++) whole += share[t->directions == 2 ? 0 : s / t->ranks];
    int u = 0, rest = 0; /* rest: what the stages that follow have at least */
    for (int s = 0; s < t->stages; s++) rest += least_of(c->problem, t->stages, s);
    for (int s = 0; s < t->stages; s++) {
        int from = u, least = least_of(c->problem, t->stages, s), last = c->problem->units - (rest -= least);
        wanted += total * share[t->directions == 2 ? 0 : s / t->ranks] / whole;
        u += least;
        while (u < last) {
            const dtm_stage_cost *x = &c->sum[u], *y = &c->sum[u + 1];
            if ((x->forward + x->input + x->weight + y->forward + y->input + y->weight) / 2 > wanted) break;
            u++;
        }
        if (s == t->stages - 1) u = c->problem->units;
        c->units[s] = u - from;
    }
}

/* Moves one unit's worth from stage to stage, the boundaries between them along, as long as it helps. */
static double climb(cutter *c) {
    const dtm_timeline *t = c->timeline;
    int worst;
    c->first[0] = 0;
    set_costs(c, 0, t->stages - 1);
    set_heads(c);
    double best = score(c, INFINITY, &worst);
    while (c->effort > 0) {
        int from = -1, to = -1, first = t->stages;
        double found = best;
        for (int k = 0; k < t->chunks; k++) {
            int s = c->stage[worst * t->chunks + k];
            first = s < first ? s : first;
        }
        for (int i = 0; i < t->chunks + 8; i++) {
            int a = i < t->chunks ? c->stage[worst * t->chunks + i] : first - 1 - (i - t->chunks);
            if (a < 0 || c->units[a] <= least_of(c->problem, t->stages, a)) continue;
            for (int b = 0; b < t->stages && c->effort > 0; b++) {
                if (a == b) continue;
                double x = moved(c, a, b, found);
                if (x < found * (1 - 1e-12)) found = x, from = a, to = b;
            }
        }
        if (from < 0) break;
        c->units[from]--, c->units[to]++;
        set_costs(c, from < to ? from : to, from < to ? to : from);
        set_heads(c);
        best = score(c, INFINITY, &worst);
    }
    return best;
}

static cutter begin(dtm_arena *arena, const dtm_timeline_problem *p, const dtm_timeline *t) {
    cutter c = {p, t, arena};
    size_t stages = (size_t)t->stages;
    c.sum = dtm_arena_alloc(arena, ((size_t)p->units + 1) * sizeof *c.sum);
    for (int u = 0; u < p->units; u++) {
        const dtm_stage_cost *x = &p->unit[u];
        dtm_stage_cost *a = &c.sum[u], *b = &c.sum[u + 1];
        *b = (dtm_stage_cost){a->forward + x->forward, a->input + x->input, a->weight + x->weight, a->hidden + x->hidden,
                              a->hidden_input + x->hidden_input, .kept = a->kept + x->kept,
                              .kept_for_weight = a->kept_for_weight + x->kept_for_weight, .held = a->held + x->held};
    }
    size_t shared = (size_t)p->n_shared;
    c.sharing = dtm_arena_alloc(arena, ((size_t)p->units + 1) * shared * sizeof *c.sharing);
    for (size_t u = 0; u < (size_t)p->units; u++)
        for (size_t i = 0; i < shared; i++)
            c.sharing[(u + 1) * shared + i] = c.sharing[u * shared + i] + (int)(p->unit[u].shares >> i & 1);
    const dtm_stage_cost *all = &c.sum[p->units];
    if (p->memory > 0) c.penalty = 10 * p->microbatches * (all->forward + all->input + all->weight) / p->memory;
    c.stage = dtm_arena_alloc(arena, (size_t)(t->ranks * t->chunks) * sizeof *c.stage);
    c.leaves = dtm_arena_alloc(arena, stages);
    c.cost = dtm_arena_alloc(arena, stages * sizeof *c.cost);
    c.old_cost = dtm_arena_alloc(arena, stages * sizeof *c.old_cost);
    for (int r = 0; r < t->ranks; r++)
        for (int k = 0; k < t->chunks; k++) c.stage[r * t->chunks + k] = dtm_timeline_stage(t, r, k);
    for (int s = 0, r, k, next; s + 1 < t->stages; s++) {
        dtm_timeline_place(t, s, 0, &r, &k);
        dtm_timeline_place(t, s + 1, 0, &next, &k);
        c.leaves[s] = r != next;
    }
    c.units = dtm_arena_alloc(arena, stages * sizeof *c.units);
    c.first = dtm_arena_alloc(arena, stages * sizeof *c.first);
    c.head = dtm_arena_alloc(arena, stages * sizeof *c.head);
    c.forth = dtm_arena_alloc(arena, (size_t)p->units * sizeof *c.forth);
    c.home = dtm_arena_alloc(arena, (size_t)p->units * sizeof *c.home);
    for (int u = 0; u < p->units; u++) {
        c.forth[u] = message(p, p->unit[u].forward_bytes);
        c.home[u] = message(p, p->unit[u].backward_bytes);
    }
    c.back = dtm_arena_alloc(arena, stages * sizeof *c.back);
    return c;
}

double search_cut_balanced(const dtm_timeline_problem *p, dtm_placement placement, int chunks, bool work_only, double effort,
                           int *units) {
    dtm_arena *arena = dtm_arena_create();
    dtm_timeline *t = dtm_timeline_create(arena, "", placement, p->ranks, p->microbatches, chunks);
    cutter c = begin(arena, p, t);
    c.work_only = work_only;
    static const double firsts[] = {1, 0.75, 0.5, 0.25}; /* of the first chunk; small ones reach the last rank sooner */
    double best = INFINITY, looks = 0, share[SEARCH_CHUNKS];
    for (int i = -1; i < (t->directions == 1 && chunks > 1 && !work_only ? 4 : 1); i++) {
        if (i < 0) {
            search_cut_even(p, t->stages, c.units);
        } else {
            for (int k = 0; k < chunks; k++) share[k] = k == 0 ? firsts[i] : k == chunks - 1 ? 2 - firsts[i] : 1;
            cut_by_weight(&c, share);
        }
        c.effort = effort;
        double x = climb(&c);
        looks += effort - c.effort;
        if (x >= best) continue;
        best = x;
        memcpy(units, c.units, (size_t)t->stages * sizeof *units);
    }
    dtm_arena_destroy(arena);
    return looks;
}
