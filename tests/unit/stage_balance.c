/* Where stage cuts: no other cut has a rank that does less at most, by all cuts of small programs; within memory too.
 */
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
} small;

/* By the simulator, with costs of the cut's stages: what the busiest rank does, INFINITY: it has not the memory. */
static double judged(const small *p, const int64_t *sizes, dtm_arena *arena) {
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
    double most = 0;
    for (int r = 0; r < t->ranks; r++) most = fmax(most, times->rank[r].busy);
    return p->problem.memory > 0 && times->memory > p->problem.memory * (1 + 1e-9) ? INFINITY : most;
}

static double best_of(const small *p, int64_t *sizes, int stage, int left, dtm_arena *arena) {
    double best = INFINITY;
    if (stage == p->s.count - 1) {
        sizes[stage] = left;
        return judged(p, sizes, arena);
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
    if (bounded) p.problem.memory = 1 + drawn() * (copies + 4) * 0.6 * (1 + microbatches) / ranks;
    stage_balance(&p.s, copies, &p.problem);
    int64_t sizes[MOST * 2], ours[MOST * 2];
    for (int k = 0; k < places->stages; k++) ours[k] = p.s.first[k + 1] - p.s.first[k];
    double found = judged(&p, ours, arena), best = best_of(&p, sizes, 0, copies, arena);
    /* bounded, chunks of a rank are as equal as they can be: another division between them may still fit */
    bool whole = p.s.first[places->stages] == copies,
         good = whole && (found <= best * (1 + 1e-9) || (bounded && places->chunks > 1 && isinf(found)));
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
        check(context, two[i % 3], 2, 4, 1 + i % 5, false);
    }
    dtm_context_destroy(context);
    printf("%d cuts are not the best\n", failures);
    return failures != 0;
}
