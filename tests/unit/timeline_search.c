/* The search for timelines and its bounds: against the least that trying all orders finds on small instances; against every
 * published schedule; on the cases in which published schedules are known to lose; the same answer twice; work within
 * bounds. */
#include "passes/timeline_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int failures, checks;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        checks++;                                                                                                      \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                            \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, "\n");                                                                                     \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

/* ---- all orders ---- */

enum { MOST_NODES = 8, MOST_RANKS = 4, MOST_COUNT = 4 };

/* A partial schedule: tasks are put down in the order of their beginnings, of equals by rank, so each schedule comes up
 * once. */
typedef struct partial {
    int done[MOST_NODES][3];                    /* F, I, W of a node */
    double there[MOST_NODES][2][MOST_COUNT];    /* when what F, I need is there; INFINITY: not known */
    double free[MOST_RANKS], used[MOST_RANKS], left[MOST_RANKS];
    double last;
    int last_rank;
} partial;

typedef struct brute {
    const search_instance *in;
    double best;
    long visited;
} brute;

static void go_on(brute *b, const partial *p);

/* What an F or I that ends makes possible. */
static void ends(const search_instance *in, partial *p, int node, bool input, int m, double end) {
    const search_node *n = &in->nodes[node];
    int to = input ? n->before : n->after;
    if (to >= 0) p->there[to][input][m] = end + (input ? n->to_before : n->to_after);
    if (!input && to < 0) p->there[node][1][m] = end;
}

static bool too_late(const brute *b, const partial *p) {
    for (int r = 0; r < b->in->ranks; r++)
        if (p->free[r] + p->left[r] >= b->best - 1e-9) return true;
    return false;
}

/* One task, or a pair (f and i): kind -1 for none of either. */
static void take(brute *b, const partial *from, int rank, int f, int i, int w, bool whole) {
    const search_instance *in = b->in;
    partial p = *from;
    double start = p.free[rank], time = 0;
    if (f >= 0) start = fmax(start, p.there[f][0][p.done[f][0]]);
    if (i >= 0) start = fmax(start, p.there[i][1][p.done[i][1]]);
    if (start == INFINITY || start < p.last || (start == p.last && rank < p.last_rank)) return;
    if (f >= 0 && (p.used[rank] += in->nodes[f].kept) > in->room[rank]) return;
    if (f >= 0) time += in->nodes[f].time[DTM_TASK_FORWARD];
    if (i >= 0) time += in->nodes[i].time[whole ? DTM_TASK_BACKWARD : DTM_TASK_INPUT];
    if (w >= 0) time += in->nodes[w].time[DTM_TASK_WEIGHT];
    if (f >= 0 && i >= 0) {
        double saved = search_saving(in, f, i, whole);
        if (saved <= 0) return;
        time -= saved;
    }
    double end = start + time;
    p.free[rank] = end;
    p.last = start;
    p.last_rank = rank;
    if (f >= 0) {
        ends(in, &p, f, false, p.done[f][0]++, end);
        p.left[rank] -= in->nodes[f].time[DTM_TASK_FORWARD];
    }
    if (i >= 0) {
        ends(in, &p, i, true, p.done[i][1]++, end);
        p.used[rank] -= in->nodes[i].kept - in->nodes[i].kept_for_weight;
        p.left[rank] -= in->nodes[i].time[DTM_TASK_INPUT];
        if (whole) w = i;
    }
    if (w >= 0) {
        p.done[w][2]++;
        p.used[rank] -= in->nodes[w].kept_for_weight;
        p.left[rank] -= in->nodes[w].time[DTM_TASK_WEIGHT];
    }
    if (in->pairs || in->input_pairs || !too_late(b, &p)) go_on(b, &p);
}

static void go_on(brute *b, const partial *p) {
    const search_instance *in = b->in;
    bool all = true;
    double end = 0;
    b->visited++;
    for (int r = 0; r < in->ranks; r++) end = fmax(end, p->free[r]);
    if (end >= b->best - 1e-9) return;
    for (int n = 0; n < in->n_nodes; n++) {
        int rank = in->nodes[n].rank, first = rank * in->chunks, count = in->nodes[n].count;
        if (p->done[n][2] == count) continue;
        all = false;
        if (p->done[n][0] < count) take(b, p, rank, n, -1, -1, false);
        if (p->done[n][1] < count && p->done[n][1] < p->done[n][0]) take(b, p, rank, -1, n, -1, false);
        if (p->done[n][2] < p->done[n][1]) take(b, p, rank, -1, -1, n, false);
        for (int c = 0; c < in->chunks; c++) {
            int i = first + c;
            if (p->done[n][0] >= count || p->done[i][1] >= p->done[i][0]) continue;
            if (in->input_pairs) take(b, p, rank, n, i, -1, false);
            if (in->pairs) take(b, p, rank, n, i, -1, true);
        }
    }
    if (all) b->best = end;
}

/* The least makespan of all orders, if it is less than `known`; else `known`. */
static double least(const search_instance *in, double known, long *visited) {
    brute b = {in, known, 0};
    partial p = {.last = 0};
    for (int n = 0; n < in->n_nodes; n++)
        for (int k = 0; k < 2; k++)
            for (int m = 0; m < MOST_COUNT; m++) p.there[n][k][m] = !k && in->nodes[n].before < 0 ? 0 : INFINITY;
    for (int n = 0; n < in->n_nodes; n++)
        p.left[in->nodes[n].rank] +=
            in->nodes[n].count * (in->nodes[n].time[DTM_TASK_FORWARD] + in->nodes[n].time[DTM_TASK_BACKWARD]);
    go_on(&b, &p);
    *visited += b.visited;
    return b.best;
}

/* ---- small instances ---- */

static uint64_t state;
static int draw(int below) { return (int)(search_random(&state) * below); }

static dtm_stage_cost *draw_units(dtm_arena *arena, int n, bool pairs) {
    dtm_stage_cost *unit = dtm_arena_alloc(arena, (size_t)n * sizeof *unit);
    for (int u = 0; u < n; u++) {
        unit[u] = (dtm_stage_cost){1 + draw(3), 1 + draw(4), 1 + draw(2), .kept = 1 + draw(2), .forward_bytes = draw(2),
                                   .backward_bytes = draw(2), .held = draw(2)};
        unit[u].kept_for_weight = draw(2) ? unit[u].kept : 0;
        if (pairs) unit[u].hidden = 0.5 * draw(2), unit[u].hidden_input = draw(2) ? unit[u].hidden : 0;
    }
    return unit;
}

static const struct {
    dtm_placement placement;
    int ranks, chunks, microbatches;
    bool pairs;
} shapes[] = {
    {DTM_PLACE_SINGLE, 2, 1, 3, false}, {DTM_PLACE_SINGLE, 3, 1, 2, false},        {DTM_PLACE_V, 2, 2, 2, false},
    {DTM_PLACE_LOOP, 2, 2, 2, false},   {DTM_PLACE_BIDIRECTIONAL, 2, 2, 3, false}, {DTM_PLACE_SINGLE, 2, 1, 3, true},
    {DTM_PLACE_SINGLE, 1, 1, 3, true},  {DTM_PLACE_V, 2, 2, 1, true},              {DTM_PLACE_BIDIRECTIONAL, 2, 2, 2, true},
    {DTM_PLACE_SINGLE, 4, 1, 1, false},
};

/* The bound against the least, and the dispatcher's best against it too. */
static void test_bounds(int rounds) {
    long visited = 0;
    int exact = 0, all = 0, beyond = 0, reached = 0, left = 0;
    for (int round = 0; round < rounds; round++) {
        dtm_arena *arena = dtm_arena_create();
        size_t k = (size_t)round % (sizeof shapes / sizeof *shapes);
        int stages = shapes[k].placement == DTM_PLACE_BIDIRECTIONAL ? shapes[k].ranks : shapes[k].ranks * shapes[k].chunks;
        state = (uint64_t)round * 7919 + 1;
        dtm_timeline_costs costs = {stages, draw_units(arena, stages, shapes[k].pairs), 0.5 * draw(3), draw(2), NULL};
        double memory = draw(2) ? 0 : 3 + draw(8);
        search_instance *in = search_instance_create(arena, &costs, shapes[k].placement, shapes[k].ranks,
                                                     shapes[k].microbatches, shapes[k].chunks, memory);
        if (in) {
            search_dispatcher *d = search_dispatcher_create(arena, in);
            search_policy policy = search_policy_create(arena, in);
            search_plan plan = search_plan_create(arena, in);
            double found = INFINITY, busiest = 0;
            for (int i = 0; i < 60; i++) {
                search_style style = search_style_number(i, in, &state);
                if (i % 2 && i > 8) style.planned = false;
                search_style_policy(&style, in, &policy);
                search_dispatch(d, &policy, INFINITY, &plan);
                double whole = plan.makespan, most = whole < INFINITY ? whole * (0.6 + 0.1 * draw(7)) : INFINITY;
                found = fmin(found, whole);
                search_dispatch(d, &policy, most, &plan);
                left += plan.makespan < whole - 1e-9;
                CHECK(whole <= most + 1e-9 ? plan.makespan == whole : plan.makespan > most && plan.makespan <= whole + 1e-9,
                      "round %d: of a plan that takes %g it is seen that it takes %g, more than %g", round, whole, plan.makespan, most);
            }
            CHECK(found < INFINITY, "round %d: the dispatcher stood still", round);
            double best = least(in, found + 1e-6, &visited), bound = search_bound(in);
            if (best > found) best = found;
            CHECK(bound <= best + 1e-9, "round %d: bound %g, but %g is possible", round, bound, best);
            for (int r = 0; r < in->ranks; r++) {
                double work = 0;
                for (int c = 0; c < in->chunks; c++) {
                    const search_node *n = &in->nodes[r * in->chunks + c];
                    work += n->count * (n->time[DTM_TASK_FORWARD] + n->time[DTM_TASK_BACKWARD]);
                }
                busiest = fmax(busiest, work);
            }
            all++;
            exact += bound > best - 1e-9;
            beyond += !shapes[k].pairs && bound > busiest + 1e-9;
            reached += found < best + 1e-9;
        }
        dtm_arena_destroy(arena);
    }
    CHECK(exact * 2 > all, "the bound was the least in %d of %d", exact, all);
    CHECK(left > all, "of %d instances %d plans were left before their end", all, left);
    CHECK(reached * 10 > all * 9, "the dispatcher found the least in %d of %d", reached, all);
    CHECK(beyond * 3 > all, "the bound was more than the busiest rank's work in %d of %d", beyond, all);
    printf("bounds: %d instances, exact in %d, least found in %d (%ld partial schedules)\n", all, exact, reached, visited);
}

/* The bound over every cut and placement against all of them. */
static void test_any_bound(int rounds) {
    long visited = 0;
    for (int round = 0; round < rounds; round++) {
        dtm_arena *arena = dtm_arena_create();
        state = (uint64_t)round * 104729 + 5;
        int units = 2 + draw(3);
        dtm_timeline_problem p = {.ranks = 2, .microbatches = 1 + draw(2), .units = units,
                                  .unit = draw_units(arena, units, round % 3 == 0), .latency = 0.5 * draw(3)};
        double bound = search_bound_any(&p), best = INFINITY;
        static const dtm_placement placements[] = {DTM_PLACE_SINGLE, DTM_PLACE_BIDIRECTIONAL, DTM_PLACE_V, DTM_PLACE_LOOP};
        for (int k = 0; k < 4; k++) {
            int chunks = k ? 2 : 1, stages = k > 1 ? 4 : 2, cut[4];
            for (int code = 0; code < 625; code++) {
                int sum = 0, rest = code;
                for (int s = 0; s < stages; s++, rest /= 5) sum += cut[s] = rest % 5;
                bool empty = false;
                for (int s = 0; s < stages; s++) empty |= cut[s] == 0;
                if (rest || sum != units || empty) continue;
                dtm_timeline_costs costs = search_cut_costs(arena, &p, stages, cut);
                search_instance *in = search_instance_create(arena, &costs, placements[k], 2, p.microbatches, chunks, 0);
                best = fmin(best, least(in, 100, &visited));
            }
        }
        CHECK(bound <= best + 1e-9, "round %d: no cut or placement should take less than %g, one takes %g", round, bound, best);
        dtm_timeline_answer a;
        dtm_context *context = dtm_context_create();
        CHECK(dtm_timeline_search(context, arena, &p, &a), "round %d: nothing found", round);
        CHECK(a.times->makespan >= best - 1e-9 && a.times->makespan <= best * 1.1 + 1e-9, "round %d: found %g, least %g", round,
              a.times->makespan, best);
        CHECK(fabs(a.least - bound) < 1e-9 && a.bound <= a.times->makespan + 1e-9, "round %d: bounds of the answer", round);
        dtm_context_destroy(context);
        dtm_arena_destroy(arena);
    }
}

/* ---- what units share ---- */

/* Bytes that a rank holds, counted unit by unit: what several of them share once, and once more in each of its stages. */
static double held_by(const dtm_timeline_problem *p, const dtm_timeline *t, const int *units, int rank) {
    double bytes = 0;
    bool there[4] = {false};
    for (int c = 0; c < t->chunks; c++) {
        int stage = dtm_timeline_stage(t, rank, c), first = 0;
        bool staged[4] = {false};
        for (int s = 0; s < stage; s++) first += units[s];
        for (int u = first; u < first + units[stage]; u++) {
            bytes += p->unit[u].held;
            for (int i = 0; i < p->n_shared; i++) {
                if (!(p->unit[u].shares >> i & 1)) continue;
                bytes += staged[i] ? 0 : p->shared[i].stage;
                bytes += there[i] ? 0 : p->shared[i].rank;
                staged[i] = there[i] = true;
            }
        }
    }
    return bytes;
}

/* One microbatch over two ranks, in memory that is scarce: found wherever a cut in two fits, and within memory. */
static void test_shared(int rounds) {
    int found = 0, by_sharing = 0;
    for (int round = 0; round < rounds; round++) {
        dtm_arena *arena = dtm_arena_create();
        state = (uint64_t)round * 15485863 + 3;
        int units = 3 + draw(4);
        dtm_shared_bytes shared[4];
        dtm_stage_cost *unit = draw_units(arena, units, false);
        dtm_timeline_problem p = {.ranks = 2, .microbatches = 1, .units = units, .unit = unit, .memory = 4 + draw(20), .quiet = true,
                                  .n_shared = draw(5), .shared = shared};
        double all = 0;
        for (int i = 0; i < p.n_shared; i++) shared[i] = (dtm_shared_bytes){draw(6), draw(4)};
        for (int u = 0; u < units; u++) {
            unit[u].forward_bytes = unit[u].backward_bytes = 0;
            for (int i = 0; i < p.n_shared; i++) unit[u].shares |= (uint32_t)(draw(3) > 0) << i;
        }
        bool fits = false, apart = false;
        dtm_timeline *two = dtm_timeline_create(arena, "", DTM_PLACE_SINGLE, 2, 1, 1);
        for (int cut = 1; cut < units; cut++) {
            int sizes[2] = {cut, units - cut};
            double most = 0, counted = 0; /* as if each unit had what it shares for itself */
            for (int r = 0; r < 2; r++) {
                double kept = 0, own = 0;
                for (int u = r ? cut : 0; u < (r ? units : cut); u++) {
                    kept += unit[u].kept;
                    own += unit[u].held;
                    for (int i = 0; i < p.n_shared; i++) own += unit[u].shares >> i & 1 ? shared[i].rank + shared[i].stage : 0;
                }
                most = fmax(most, held_by(&p, two, sizes, r) + kept);
                counted = fmax(counted, own + kept);
            }
            fits |= most <= p.memory;
            apart |= counted <= p.memory;
        }
        dtm_timeline_answer a;
        dtm_context *context = dtm_context_create();
        bool good = dtm_timeline_search(context, arena, &p, &a);
        CHECK(good || !fits, "round %d: a cut fits, and none is found", round);
        for (int r = 0; good && r < 2; r++) {
            double held = held_by(&p, a.timeline, a.units, r);
            all = a.times->rank[r].memory - a.times->rank[r].kept;
            CHECK(fabs(all - held) < 1e-9, "round %d: rank %d holds %g, not %g", round, r, held, all);
            CHECK(a.times->rank[r].memory <= p.memory + 1e-9, "round %d: rank %d beyond memory", round, r);
        }
        found += good;
        by_sharing += good && !apart;
        dtm_context_destroy(context);
        dtm_arena_destroy(arena);
    }
    CHECK(by_sharing * 10 > rounds, "in %d of %d only because units share", by_sharing, rounds);
    printf("shared: found in %d of %d, in %d only because units share\n", found, rounds, by_sharing);
}

/* ---- against what is published ---- */

typedef struct model {
    double forward, input, weight, pair, latency, memory;
    int ranks, microbatches, layers, chunks;
    double head;        /* in layers */
    double last;        /* factor of the last rank's layers */
} model;

static dtm_timeline_problem problem_of(dtm_arena *arena, const model *m) {
    int units = m->layers + (m->head > 0);
    double share = (double)m->ranks / m->layers;
    dtm_stage_cost *unit = dtm_arena_alloc(arena, (size_t)units * sizeof *unit);
    for (int u = 0; u < units; u++) {
        double by = share * (u < m->layers ? 1 : m->head);
        if (m->last && u >= m->layers - m->layers / m->ranks && u < m->layers) by *= m->last;
        unit[u] = (dtm_stage_cost){m->forward * by, m->input * by, m->weight * by};
        if (m->pair) unit[u].hidden = (m->forward + m->input + m->weight - m->pair) * by;
        if (u < m->layers) unit[u].kept = unit[u].kept_for_weight = share;
    }
    return (dtm_timeline_problem){.ranks = m->ranks, .microbatches = m->microbatches, .units = units, .unit = unit,
                                  .layers = m->layers, .latency = m->latency, .memory = m->memory, .chunks = m->chunks};
}

/* The best of published schedules with at most `chunks` chunks, layers shared out evenly. */
static double best_rival(const dtm_timeline_answer *a, int chunks, bool balanced) {
    double best = INFINITY;
    for (int i = 0; i < a->n_rivals; i++)
        if (a->rivals[i].chunks <= chunks && (balanced || a->rivals[i].cut == DTM_CUT_EVEN)) best = fmin(best, a->rivals[i].makespan);
    return best;
}

/* Searches; checks what always holds: no rival is quicker, the proof, memory, bounds, the same again (of a sample: not of all). */
static dtm_timeline_answer searched(dtm_context *context, const model *m, bool twice) {
    dtm_arena *arena = dtm_context_arena(context);
    dtm_timeline_problem p = problem_of(arena, m);
    dtm_timeline_answer a = {0}, again = {0};
    CHECK(dtm_timeline_search(context, arena, &p, &a), "nothing found");
    CHECK(!twice || dtm_timeline_search(context, arena, &p, &again), "nothing found the second time");
    if (!a.timeline || (twice && !again.timeline)) exit(1);
    CHECK(a.times->makespan <= best_rival(&a, 99, true) * (1 + 1e-9), "a rival is quicker: %g, %g", best_rival(&a, 99, true),
          a.times->makespan);
    CHECK(a.bound <= a.times->makespan * (1 + 1e-9) && a.least <= a.times->makespan * (1 + 1e-9), "bounds %g, %g of %g",
          a.bound, a.least, a.times->makespan);
    dtm_timeline_limits limits = {.memory = m->memory};
    dtm_timeline_proof proof;
    CHECK(dtm_timeline_prove(context, arena, a.timeline, &a.costs, &limits, &proof), "not proved");
    dtm_text one = {arena, NULL, 0, 0}, two = {arena, NULL, 0, 0};
    if (!twice) return a;
    dtm_timeline_print(a.timeline, &one);
    dtm_timeline_print(again.timeline, &two);
    CHECK(strcmp(one.data, two.data) == 0, "another answer the second time");
    return a;
}

static void test_cases(void) {
    static const struct {
        const char *name;
        model m;
        double published; /* the best with at most two chunks, layers shared out evenly */
        double wanted;    /* at most this share of it */
    } cases[] = {
        {"F = I = W", {1, 1, 1, .ranks = 8, .microbatches = 16, .layers = 32}, 51.5, 0.97},
        {"I = 1.4", {1, 1.4, 1, .ranks = 8, .microbatches = 16, .layers = 32}, 59.3, 0.96},
        {"slow links", {1, 1, 1, .latency = 0.1, .ranks = 8, .microbatches = 16, .layers = 32}, 54.8, 0.95},
        {"exposed all-to-all", {1.5, 1.5, 1, .pair = 3.1, .ranks = 8, .microbatches = 16, .layers = 32}, 65.5, 0.95},
        {"last stage + 50%", {1, 1, 1, .ranks = 4, .microbatches = 12, .layers = 16, .last = 1.5}, 45, 0.95},
        {"a head like four layers", {1, 1, 1, .ranks = 4, .microbatches = 16, .layers = 32, .head = 4}, 60, 0.95},
        {"the same on eight ranks", {1, 1, 1, .ranks = 8, .microbatches = 16, .layers = 32, .head = 4}, 72, 0.95},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += DTM_SAMPLE ? 2 : 1) {
        dtm_context *context = dtm_context_create();
        dtm_timeline_answer a = searched(context, &cases[i].m, !DTM_SAMPLE);
        double best = best_rival(&a, 2, false);
        CHECK(fabs(best - cases[i].published) < 1e-6, "%s: published schedules take %g", cases[i].name, best);
        CHECK(a.times->makespan <= cases[i].wanted * best + 1e-9, "%s: %g against %g", cases[i].name, a.times->makespan, best);
        printf("%-24s published %7.3f, auto %7.3f (%+.1f%%), bound %7.3f, of any cut %7.3f\n", cases[i].name, best,
               a.times->makespan, 100 * (a.times->makespan / best - 1), a.bound, a.least);
        dtm_diagnostics_print(context, stderr, false);
        dtm_context_destroy(context);
    }
}

/* Recorded orders of the heuristics without a rule: no worse within the memory that they take, two chunks a rank. */
static void test_heuristics(void) {
    static const struct {
        int ranks;
        double memory, time; /* in full stages, F = I = W = 1 */
        const char *name;
    } recorded[] = {{2, 2, 12.5, "vhalf"}, {4, 3, 26.5, "vhalf"}, {8, 5, 56.5, "vhalf"}, {2, 2, 13.5, "vmin"},
                    {4, 2, 29.5, "vmin"},  {8, 4, 61.5, "vmin"},  {2, 4, 13, "zbh2"},    {4, 8, 27, "zbh2"},
                    {8, 16, 55, "zbh2"}};
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        dtm_context *context = dtm_context_create();
        model m = {1, 1, 1, .memory = recorded[i].memory, .ranks = recorded[i].ranks, .microbatches = 2 * recorded[i].ranks,
                   .layers = 2 * recorded[i].ranks, .chunks = 2};
        dtm_timeline_answer a = searched(context, &m, !DTM_SAMPLE);
        CHECK(a.times->makespan <= recorded[i].time + 1e-9, "%s on %d ranks takes %g, auto %g", recorded[i].name, m.ranks,
              recorded[i].time, a.times->makespan);
        dtm_context_destroy(context);
    }
}

/* Random problems: what always holds holds. */
static void test_random(int rounds) {
    for (int round = 0; round < rounds; round++) {
        dtm_context *context = dtm_context_create();
        state = (uint64_t)round * 65537 + 11;
        model m = {0.5 + draw(4) / 2.0, 0.5 + draw(4) / 2.0, 0.5 + draw(3) / 2.0, .latency = draw(3) * 0.1,
                   .ranks = 1 + draw(6), .microbatches = 1 + draw(12), .head = draw(3)};
        m.layers = m.ranks * (1 + draw(4)) + draw(3);
        if (draw(3) == 0) m.pair = 0.8 * (m.forward + m.input + m.weight);
        if (draw(2)) m.memory = 2 + m.ranks * (0.5 + draw(3) / 2.0);
        searched(context, &m, true);
        CHECK(dtm_error_count(context) == 0, "round %d", round);
        dtm_diagnostics_print(context, stderr, false);
        dtm_context_destroy(context);
    }
}

/* Stages as they are given, fewer units than ranks, and messages whose receive slots take memory. */
static void test_given(void) {
    dtm_context *context = dtm_context_create();
    dtm_arena *arena = dtm_context_arena(context);
    model m = {1, 1, 1, .ranks = 4, .microbatches = 8, .layers = 16};
    static const int stages[] = {1, 3, 2, 2, 2, 2, 1, 3};
    dtm_timeline_problem p = problem_of(arena, &m);
    p.stages = stages;
    p.n_stages = 8;
    dtm_timeline_answer a;
    CHECK(dtm_timeline_search(context, arena, &p, &a) && a.timeline->stages == 8 && a.timeline->chunks == 2, "eight stages");
    CHECK(memcmp(a.units, stages, sizeof stages) == 0 && a.least <= a.times->makespan + 1e-9, "the stages given");
    p.stages = NULL;
    p.units = p.layers = 3;
    CHECK(dtm_timeline_search(context, arena, &p, &a) && a.timeline->ranks == 4, "three units on four ranks");
    int sum = 0;
    for (int s = 0; s < a.timeline->stages; s++) sum += a.units[s];
    CHECK(sum == 3, "%d units", sum);
    p = problem_of(arena, &m);
    dtm_stage_cost *unit = dtm_arena_alloc(arena, 16 * sizeof *unit);
    for (int u = 0; u < 16; u++) unit[u] = p.unit[u], unit[u].forward_bytes = unit[u].backward_bytes = 0.5;
    p.unit = unit;
    p.memory = 4;
    dtm_timeline_proof proof;
    dtm_timeline_limits limits = {.memory = 4};
    CHECK(dtm_timeline_search(context, arena, &p, &a), "with messages that take memory");
    CHECK(dtm_timeline_prove(context, arena, a.timeline, &a.costs, &limits, &proof), "their slots are counted");
    dtm_diagnostics_print(context, stderr, false);
    dtm_context_destroy(context);
}

/* Orders of both directions, where a pair of F and B saves much: half of the microbatches goes either way, of an odd number one more
 * the first. */
static void test_directions(void) {
    int both[2] = {0, 0};
    for (int ranks = 2; ranks <= 4; ranks += 2)
        for (int microbatches = 2 * ranks; microbatches <= 2 * ranks + 7; microbatches++) {
            dtm_context *context = dtm_context_create();
            model m = {1, 1, 1, .pair = 2, .ranks = ranks, .microbatches = microbatches, .layers = ranks};
            dtm_timeline_answer a = searched(context, &m, false);
            bool two = a.timeline->directions == 2;
            uint32_t ways[2] = {0, 0};
            for (size_t i = 0; two && i < a.timeline->order[0].count; i++) {
                const dtm_operation *o = &a.timeline->order[0].operations[i];
                for (int k = 0; k < (o->kind == DTM_OPERATION_PAIR ? 2 : 1) && o->kind != DTM_OPERATION_GROUP; k++)
                    ways[o->tasks[k].chunk] += o->tasks[k].kind == DTM_TASK_FORWARD;
            }
            CHECK(!two || (ways[0] == (uint32_t)(microbatches + 1) / 2 && ways[1] == (uint32_t)microbatches / 2),
                  "%d ranks: of %d microbatches %u and %u", ranks, microbatches, ways[0], ways[1]);
            both[microbatches % 2] += two;
            dtm_context_destroy(context);
        }
    CHECK(both[0] > 0 && both[1] > 0, "in both directions %d even numbers, %d odd ones", both[0], both[1]);
}

static void test_refusal(void) {
    dtm_context *context = dtm_context_create();
    model m = {1, 1, 1, .memory = 0.5, .ranks = 2, .microbatches = 4, .layers = 4};
    dtm_timeline_problem p = problem_of(dtm_context_arena(context), &m);
    dtm_timeline_answer a;
    CHECK(!dtm_timeline_search(context, p.unit ? dtm_context_arena(context) : NULL, &p, &a), "half a stage cannot fit");
    CHECK(dtm_error_count(context) == 1, "one error: E0907");
    dtm_context_destroy(context);
}

/* Messages that take as long as F and longer: with them no published schedule is quicker than what is found, and what is found is not
 * what would be if they did not wait for each other. */
static void test_ways(void) {
    for (double bytes = 0.5; bytes <= 4; bytes *= 2) {
        dtm_context *context = dtm_context_create();
        dtm_arena *arena = dtm_context_arena(context);
        dtm_stage_cost unit[8];
        for (int u = 0; u < 8; u++) unit[u] = (dtm_stage_cost){0.5, 0.5, 0.5, .forward_bytes = bytes, .backward_bytes = bytes, .kept = 1, .kept_for_weight = 1};
        dtm_timeline_problem p = {4, 8, 8, unit, .layers = 8, .latency = 0.1, .bandwidth = 1, .effort = 0.3};
        dtm_timeline_answer a;
        CHECK(dtm_timeline_search(context, arena, &p, &a), "nothing found");
        for (int i = 0; i < a.n_rivals; i++)
            CHECK(a.times->makespan <= a.rivals[i].makespan * (1 + 1e-9), "messages of %g: %g, %s takes %g", bytes, a.times->makespan,
                  a.rivals[i].name, a.rivals[i].makespan);
        CHECK(a.times->makespan >= a.bound * (1 - 1e-9) && a.bound >= a.least * (1 - 1e-9), "messages of %g: %g, bounds %g %g", bytes,
              a.times->makespan, a.bound, a.least);
        dtm_context_destroy(context);
    }
}

/* What a search takes, in tasks placed: 7.5 million of them are a second of one core of a small machine. No other work is left
 * out of that count: where stages are cut, and timelines within memory that leaves too little for messages. */
static void test_work(void) {
    static const struct {
        model m;
        double message; /* bytes, in full stages */
        double bandwidth;
        double seconds;
    } large[] = {
        {{1, 1.4, 1, .latency = 0.1, .memory = 16, .ranks = 16, .microbatches = 64, .layers = 126}, 0, 0, 2},
        {{1, 1.3, 1.4, .pair = 3.2, .latency = 0.05, .ranks = 16, .microbatches = 64, .layers = 256, .head = 2}, 0, 0, 2},
        {{1, 1.4, 1, .latency = 0.1, .memory = 16, .ranks = 16, .microbatches = 64, .layers = 126}, 0.2, 0, 2},
        {{1, 1.4, 1, .latency = 0.1, .ranks = 16, .microbatches = 64, .layers = 126}, 0.2, 0.4, 2},
        {{1, 2.3, 0.4, .pair = 3.2, .latency = 0.05, .memory = 100, .ranks = 64, .microbatches = 256, .layers = 1024}, 0, 0, 10},
    };
    for (size_t i = 0; i < (DTM_SAMPLE ? 1 : sizeof large / sizeof *large); i++) {
        dtm_context *context = dtm_context_create();
        dtm_arena *arena = dtm_context_arena(context);
        dtm_timeline_problem p = problem_of(arena, &large[i].m);
        dtm_stage_cost *unit = dtm_arena_alloc(arena, (size_t)p.units * sizeof *unit);
        for (int u = 0; u < p.units; u++) unit[u] = p.unit[u], unit[u].forward_bytes = unit[u].backward_bytes = large[i].message;
        p.unit = unit;
        p.bandwidth = large[i].bandwidth;
        dtm_timeline_answer a;
        CHECK(dtm_timeline_search(context, arena, &p, &a), "nothing found");
        CHECK(a.work < 7.5e6 * large[i].seconds, "P = %d, M = %d: %g tasks", p.ranks, p.microbatches, a.work);
        CHECK(a.work > 1e6, "P = %d, M = %d: %g tasks are no search", p.ranks, p.microbatches, a.work);
        printf("P = %d, M = %d: the work of %.1f million tasks\n", p.ranks, p.microbatches, a.work / 1e6);
        dtm_context_destroy(context);
    }
}

int main(int count, char **words) {
    int scale = count > 1 ? atoi(words[1]) : 1;
    test_bounds((DTM_SAMPLE ? 100 : 300) * scale);
    test_shared(400);
    test_any_bound((DTM_SAMPLE ? 10 : 30) * scale);
    test_cases();
    test_heuristics();
    test_random((DTM_SAMPLE ? 10 : 40) * scale);
    test_given();
    test_directions();
    test_refusal();
    test_ways();
    test_work();
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
