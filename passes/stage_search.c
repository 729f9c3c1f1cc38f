/* schedule = auto: the best timeline found for what the units of a program cost, published schedules on the cuts that they get by name
 * among them (stage.h). */
#include "passes/stage.h"

#include <math.h>

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
    stage_balance(&s, own->copies, own->problem, NULL);
    for (int k = 0; k < s.count; k++) units[k] = (int)(s.first[k + 1] - s.first[k]);
    units[0]++, units[s.count - 1]++; /* what stands before the copies, and after them */
}

bool stage_search(stages *s, int64_t copies, const dtm_timeline_problem *units, dtm_timeline_answer **found) {
    dtm_module *module = s->module;
    dtm_arena *arena = dtm_context_arena(module->context);
    dtm_timeline_problem problem = *units;
    dtm_timeline_answer *answer = dtm_arena_alloc(arena, sizeof *answer);
    /* of an odd number of ranks the middle one would hold one stage twice; and rounds go either way as often */
    problem.no_copies = s->n_ranks % 2 || (s->rule->rounds > 1 && problem.microbatches % 2);
    if (!problem.no_copies) problem.effort = (problem.effort > 0 ? problem.effort : 1) / 2; /* there may be a second search */
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
    *found = answer;
    if (!dtm_timeline_search(module->context, arena, &problem, answer)) return false;
    double added = adding_up(s, &problem, answer);
    if (added > 0) { /* once more without: is it worth that? */
        dtm_timeline_answer *single = dtm_arena_alloc(arena, sizeof *single);
        problem.no_copies = problem.quiet = true;
        problem.timed = answer;
        bool other = dtm_timeline_search(module->context, arena, &problem, single);
        double alone = other ? single->times->makespan + problem.added[single->timeline->placement] : INFINITY;
        if (alone < answer->times->makespan + problem.added[DTM_PLACE_BIDIRECTIONAL] + added) {
            single->rivals = answer->rivals;
            single->n_rivals = answer->n_rivals;
            single->published = answer->published;
            single->n_published = answer->n_published;
            answer = single;
        }
    }
    for (int i = 0; i < answer->n_rivals; i++)
        if (dtm_timeline_placement(answer->rivals[i].name) == DTM_PLACE_BIDIRECTIONAL) answer->rivals[i].added += added;
    for (int i = 0; i < answer->n_published; i++)
        if (answer->published[i].placement == DTM_PLACE_BIDIRECTIONAL) answer->published[i].time += added, answer->published[i].added += added;
    answer->added = problem.added[answer->timeline->placement] + (answer->timeline->directions == 2 ? added : 0);
    *found = answer;
    return true;
}

