/* The published schedules that a search must not lose to (timeline_search.h). Most have a rule. zbh2, vhalf and vmin come
 * from heuristics that run at unit costs under a bound on memory; here the dispatcher does, with their patterns. */
#include "passes/timeline_search.h"

#include <math.h>
#include <string.h>

enum { TRIES = 5 };

typedef struct rival {
    const char *name;
    int chunks;
    dtm_placement placement;
    int styles[TRIES]; /* for those without a rule: which known styles, -1 ends them */
} rival;

static const rival rivals[] = {
    {"gpipe", 1, DTM_PLACE_SINGLE, {-1}},
    {"1f1b", 1, DTM_PLACE_SINGLE, {-1}},
    {"zbh1", 1, DTM_PLACE_SINGLE, {-1}},
    {"zbh2", 1, DTM_PLACE_SINGLE, {1, 0, 6, -1}},
    {"interleaved", 2, DTM_PLACE_LOOP, {-1}},
    {"interleaved", 4, DTM_PLACE_LOOP, {-1}},
    {"interleaved_moeoverlap", 2, DTM_PLACE_LOOP, {-1}},
    {"interleaved_moeoverlap", 4, DTM_PLACE_LOOP, {-1}},
    {"interleavedzb", 2, DTM_PLACE_LOOP, {-1}},
    {"interleavedzb", 4, DTM_PLACE_LOOP, {-1}},
    {"zbv", 2, DTM_PLACE_V, {-1}},
    {"vhalf", 2, DTM_PLACE_V, {2, 5, 6, 1, -1}},
    {"vmin", 2, DTM_PLACE_V, {1, 4, 5, -1}},
    {"dualpipe", 2, DTM_PLACE_BIDIRECTIONAL, {-1}},
    {"dualpipev", 2, DTM_PLACE_V, {-1}},
    {"sequential", 1, DTM_PLACE_SINGLE, {-1}},
};

_Static_assert(sizeof rivals / sizeof *rivals == DTM_TIMELINE_RIVALS, "that many are spoken of");

/* Microbatches in all chunks of a rank that the heuristic's bound on memory allows, one chunk counting one. */
static int allowed(const rival *r, int ranks) {
    if (!strcmp(r->name, "zbh2")) return 2 * ranks;
    return !strcmp(r->name, "vhalf") ? ranks + 2 : (2 * ranks + 2) / 3 + 2;
}

static dtm_timeline *heuristic(dtm_arena *arena, const rival *r, int ranks, int microbatches) {
    dtm_arena *scratch = dtm_arena_create();
    int stages = ranks * r->chunks;
    dtm_stage_cost *cost = dtm_arena_alloc(scratch, (size_t)stages * sizeof *cost);
    for (int s = 0; s < stages; s++) cost[s] = (dtm_stage_cost){1, 1, 1, .kept = 1, .kept_for_weight = 1};
    dtm_timeline_costs costs = {stages, cost, 0, 0, NULL};
    search_instance *in =
        search_instance_create(scratch, &costs, r->placement, ranks, microbatches, r->chunks, allowed(r, ranks));
    search_dispatcher *d = search_dispatcher_create(scratch, in);
    search_policy policy = search_policy_create(scratch, in);
    search_plan plan = search_plan_create(scratch, in), best = search_plan_create(scratch, in);
    uint64_t state = 1;
    for (int i = 0; r->styles[i] >= 0; i++) {
        search_style style = search_style_number(r->styles[i], in, &state);
        search_style_policy(&style, in, &policy);
        search_dispatch(d, &policy, best.makespan, &plan);
        if (plan.makespan < best.makespan) search_plan_copy(in, &best, &plan);
    }
    dtm_timeline *t = best.makespan < INFINITY ? search_plan_timeline(arena, in, &best, r->name) : NULL;
    dtm_arena_destroy(scratch);
    return t;
}

/* One microbatch after the other, in the least memory that there can be. */
static dtm_timeline *sequential(dtm_arena *arena, int ranks, int microbatches) {
    dtm_timeline *t = dtm_timeline_create(arena, "sequential", DTM_PLACE_SINGLE, ranks, microbatches, 1);
    for (int r = 0; r < ranks; r++)
        for (int m = 0; m < microbatches; m++) {
            dtm_timeline_add(t, r, DTM_TASK_FORWARD, m, 0);
            dtm_timeline_add(t, r, DTM_TASK_BACKWARD, m, 0);
        }
    return t;
}

bool search_rival(int index, const char **name, int *chunks) {
    if (index < 0 || index >= (int)(sizeof rivals / sizeof *rivals)) return false;
    *name = rivals[index].name;
    *chunks = rivals[index].chunks;
    return true;
}

dtm_timeline *search_rival_order(dtm_arena *arena, int index, const dtm_timeline_problem *p, double *work) {
    const rival *r = &rivals[index];
    bool copies = r->placement == DTM_PLACE_BIDIRECTIONAL;
    int stages = copies ? p->ranks : p->ranks * r->chunks;
    bool allowed_here = !p->stages || p->n_stages == stages;
    if ((p->no_copies && copies) || (p->chunks && r->chunks > p->chunks && !copies) || !allowed_here) return NULL;
    for (int i = 0; i < TRIES && r->styles[i] >= 0; i++) *work += 3.0 * p->ranks * r->chunks * p->microbatches;
    if (!strcmp(r->name, "sequential")) return sequential(arena, p->ranks, p->microbatches);
    return r->styles[0] < 0 ? search_rule(arena, r->name, p->ranks, p->microbatches, r->chunks)
                            : heuristic(arena, r, p->ranks, p->microbatches);
}
