/* Where stage cuts: no other cut has a rank that does less at most, by all cuts of small programs; within memory too, of which
 * what units share takes its part once a rank, and once a stage. */
#include "passes/stage.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 8 };

static int failures;
static uint64_t state = 7;

static double drawn(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 40) / (1 << 24);
}

typedef struct small {
    stages s;
    dtm_timeline_problem problem;
    int copies;
    dtm_shared_bytes shared[3];
} small;

/* Whether a unit that has a shared thing stands in a stage. */
static bool stands_in(const small *p, const int64_t *sizes, int stage, int thing) {
    bool before = p->problem.unit[0].shares >> thing & 1, after = p->problem.unit[p->problem.units - 1].shares >> thing & 1;
    return (before && stage == 0) || (after && stage == p->s.count - 1) ||
           (p->problem.unit[1].shares >> thing & 1 && sizes[stage] > 0);
}

static double shared_of(const small *p, const int64_t *sizes, int rank) {
    double bytes = 0;
    for (int i = 0; i < p->problem.n_shared; i++) {
        int stages = 0;
        for (int c = 0; c < p->s.chunks; c++) stages += stands_in(p, sizes, stage_at(&p->s, rank, c), i);
        bytes += stages * p->shared[i].stage + (stages > 0) * p->shared[i].rank;
    }
    return bytes;
}

/* By the simulator, with costs of the cut's stages: what the busiest rank does, INFINITY: one has not the memory; and what the rank
 * needs that needs most. */
static double judged(const small *p, const int64_t *sizes, dtm_arena *arena, double *needs) {
    const dtm_timeline *t = p->s.places;
    dtm_stage_cost *cost = dtm_arena_alloc(arena, (size_t)t->stages * sizeof *cost);
    for (int k = 0; k < t->stages; k++)
        for (int u = 0; u < 3; u++) {
            const dtm_stage_cost *x = &p->problem.unit[u == 2 ? p->problem.units - 1 : u];
            double n = u == 1 ? (double)sizes[k] : k == (u ? t->stages - 1 : 0);
            cost[k].forward += n * x->forward;
            cost[k].input += n * x->input;
            cost[k].weight += n * x->weight;
            cost[k].kept += n * x->kept;
            cost[k].kept_for_weight += n * x->kept_for_weight;
            cost[k].held += n * x->held;
        }
    dtm_timeline_costs costs = {t->stages, cost, 0, 0, NULL};
    dtm_timeline_times *times = dtm_timeline_simulate(arena, t, &costs);
    double most = 0, memory = 0, none;
    needs = needs ? needs : &none;
    for (int r = 0; r < t->ranks; r++) {
        most = fmax(most, times->rank[r].busy);
        memory = fmax(memory, times->rank[r].memory + shared_of(p, sizes, r));
    }
    *needs = memory;
    return p->problem.memory > 0 && memory > p->problem.memory * (1 + 1e-9) ? INFINITY : most;
}

static double best_of(const small *p, int64_t *sizes, int stage, int left, dtm_arena *arena) {
    double best = INFINITY;
    if (stage == p->s.count - 1) {
        sizes[stage] = left;
        return judged(p, sizes, arena, NULL);
    }
    for (int n = 0; n <= left; n++) {
        sizes[stage] = n;
        best = fmin(best, best_of(p, sizes, stage + 1, left - n, arena));
    }
    return best;
}

static dtm_stage_cost unit(double scale) {
    dtm_stage_cost x = {scale * (0.5 + drawn()), scale * (0.5 + drawn()), scale * (0.5 + drawn()), .kept = drawn(),
                        .held = drawn()};
    x.kept_for_weight = x.kept * drawn();
    return x;
}

/* Of two in three programs units share something. */
static void share(small *p, dtm_stage_cost *units) {
    p->problem.shared = p->shared;
    p->problem.n_shared = (int)(drawn() * 4) % 4;
    for (int i = 0; i < p->problem.n_shared; i++) {
        p->shared[i] = (dtm_shared_bytes){drawn() * 3, drawn() * 2};
        for (int u = 0; u < p->copies + 2; u++)
            if (u > 1 && u <= p->copies) units[u].shares = units[1].shares;
            else units[u].shares |= (uint32_t)(drawn() < 0.6) << i;
    }
}

static int binding; /* cuts that memory made worse */

static double cut(small *p, int64_t *sizes, dtm_arena *arena, double *needs) {
    stage_balance(&p->s, p->copies, &p->problem, NULL);
    for (int k = 0; k < p->s.count; k++) sizes[k] = p->s.first[k + 1] - p->s.first[k];
    return judged(p, sizes, arena, needs);
}

static void check(dtm_context *context, const char *schedule, int ranks, int microbatches, int copies, bool bounded) {
    dtm_arena *arena = dtm_arena_create();
    small p = {.copies = copies};
    dtm_stage_cost units[MOST + 2];
    dtm_timeline *places = dtm_timeline_order(context, arena, (dtm_span){0, 0, 0}, schedule, ranks, microbatches, 0);
    units[0] = unit(drawn() * 3);
    units[1] = unit(1);
    for (int u = 2; u <= copies; u++) units[u] = units[1];
    units[copies + 1] = unit(drawn() * 5);
    p.problem =
        (dtm_timeline_problem){.ranks = ranks, .microbatches = microbatches, .units = copies + 2, .unit = units};
    p.s = (stages){
        .scratch = arena, .n_ranks = ranks, .chunks = places->chunks, .count = places->stages, .places = places};
    p.s.first = dtm_arena_alloc(arena, ((size_t)places->stages + 1) * sizeof *p.s.first);
    share(&p, units);
    int64_t sizes[MOST * 2] = {0}, ours[MOST * 2] = {0};
    double needs, unbounded = cut(&p, ours, arena, &needs), found = unbounded;
    if (bounded) {
        p.problem.memory = needs * (0.6 + 0.4 * drawn());
        found = cut(&p, ours, arena, NULL);
    }
    double best = best_of(&p, sizes, 0, copies, arena);
    binding += isfinite(best) && best > unbounded * (1 + 1e-9);
    bool good = p.s.first[places->stages] == copies && found <= best * (1 + 1e-9);
    if (!good) {
        printf("%s on %d ranks, %d copies: the busiest does %g, and could do %g\n", schedule, ranks, copies, found,
               best);
        failures++;
    }
    dtm_arena_destroy(arena);
}

int main(void) {
    dtm_context *context = dtm_context_create();
    static const char *const one[] = {"gpipe", "1f1b", "zbh1"}, *const two[] = {"interleaved", "zbv", "dualpipe"};
    for (int i = 0; i < 300; i++) {
        check(context, one[i % 3], 1 + i % 4, 1 + i % 5, 1 + i % MOST, i % 2);
        check(context, two[i % 3], 2, 4, 1 + i % 5, i % 2);
    }
    dtm_context_destroy(context);
    printf("%d cuts are not the best; memory made %d worse\n", failures, binding);
    return failures != 0 || binding < 30;
}
