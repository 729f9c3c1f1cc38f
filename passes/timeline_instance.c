/* Instances of the search, and plans as timelines (timeline_search.h). */
#include "passes/timeline_search.h"

#include <math.h>
#include <string.h>

static void set_node(search_instance *in, const dtm_timeline *t, int rank, int chunk) {
    search_node *n = &in->nodes[rank * in->chunks + chunk];
    int stage = dtm_timeline_stage(t, rank, chunk), direction = dtm_timeline_direction(t, chunk), r, c;
    const dtm_stage_cost *s = &in->costs->stage[stage];
    *n = (search_node){
        rank, stage, -1, -1, dtm_timeline_passing(t, chunk), .kept = fmax(s->kept, s->kept_for_weight), .kept_for_weight = s->kept_for_weight,
        .least_kept = s->kept};
    for (int k = 0; k < 4; k++) n->time[k] = dtm_task_time(in->costs, (dtm_task_kind)k, stage);
    n->channel[0] = n->channel[1] = n->stream[0] = n->stream[1] = -1;
    if (stage > 0) {
        dtm_timeline_place(t, stage - 1, direction, &r, &c);
        n->before = r * in->chunks + c;
        if (r != rank) n->channel[0] = rank * SEARCH_CHANNELS + ((r + 1) % in->ranks == rank ? 0 : 2);
        if (r != rank) n->stream[1] = (rank + 1) % in->ranks == r ? 2 : 3;
        if (r != rank) n->to_before = dtm_message_time(in->costs, DTM_TASK_BACKWARD, stage), n->way_before = n->to_before - in->costs->latency;
    }
    if (stage < t->stages - 1) {
        dtm_timeline_place(t, stage + 1, direction, &r, &c);
        n->after = r * in->chunks + c;
        if (r != rank) n->channel[1] = rank * SEARCH_CHANNELS + ((r + 1) % in->ranks == rank ? 1 : 3);
        if (r != rank) n->stream[0] = (rank + 1) % in->ranks == r ? 0 : 1;
        if (r != rank) n->to_after = dtm_message_time(in->costs, DTM_TASK_FORWARD, stage), n->way_after = n->to_after - in->costs->latency;
    }
}

/* Room and work of a rank, once its nodes are known. */
static void set_rank(search_instance *in, const dtm_timeline *t, int rank, double memory) {
    double work = 0;
    int sharing[SEARCH_CHANNELS] = {0};
    in->room[rank] = (memory > 0 ? memory * (1 + 1e-12) : INFINITY) - dtm_held_bytes(in->costs, t, rank);
    for (int c = 0; c < in->chunks; c++) {
        const search_node *n = &in->nodes[rank * in->chunks + c];
        for (int k = 0; k < 2; k++)
            if (n->stream[k] >= 0 && sharing[n->stream[k]]++) in->shared = true;
        work += (n->time[DTM_TASK_FORWARD] + n->time[DTM_TASK_BACKWARD]) * n->count / in->microbatches;
        if (in->placement == DTM_PLACE_BIDIRECTIONAL) in->whole[rank] = fmax(in->whole[rank], n->kept);
        else in->whole[rank] += n->kept;
    }
    in->cycle = fmax(in->cycle, work);
}

search_instance *search_instance_create(dtm_arena *arena, const dtm_timeline_costs *costs, dtm_placement placement, int ranks,
                                        int microbatches, int chunks, double memory) {
    dtm_timeline *t = dtm_timeline_create(arena, "", placement, ranks, microbatches, chunks);
    search_instance *in = dtm_arena_alloc(arena, sizeof *in);
    *in = (search_instance){costs, placement, ranks, microbatches, chunks, ranks * chunks, .bounded = memory > 0};
    in->nodes = dtm_arena_alloc(arena, (size_t)in->n_nodes * sizeof *in->nodes);
    in->room = dtm_arena_alloc(arena, (size_t)ranks * sizeof *in->room);
    in->whole = dtm_arena_alloc(arena, (size_t)ranks * sizeof *in->whole);
    for (int s = 0; s < costs->stages; s++) {
        in->pairs |= costs->pair || costs->stage[s].hidden > 0;
        in->input_pairs |= costs->stage[s].hidden_input > 0;
    }
    bool fits = true;
    for (int r = 0; r < ranks; r++) {
        for (int c = 0; c < chunks; c++) set_node(in, t, r, c);
        set_rank(in, t, r, memory);
        fits &= in->whole[r] <= in->room[r];
    }
    return fits ? in : NULL;
}

double search_saving(const search_instance *in, int f, int b, bool whole) {
    const search_node *x = &in->nodes[f], *y = &in->nodes[b];
    dtm_task_kind kind = whole ? DTM_TASK_BACKWARD : DTM_TASK_INPUT;
    return x->time[DTM_TASK_FORWARD] + y->time[kind] - dtm_pair_time(in->costs, x->stage, kind, y->stage);
}

search_plan search_plan_create(dtm_arena *arena, const search_instance *in) {
    size_t turns = 3 * (size_t)in->n_nodes * (size_t)in->microbatches;
    search_plan p = {dtm_arena_alloc(arena, turns * sizeof(search_turn)),
                     dtm_arena_alloc(arena, ((size_t)in->ranks + 1) * sizeof(uint32_t)), INFINITY};
    return p;
}

void search_plan_copy(const search_instance *in, search_plan *to, const search_plan *from) {
    memcpy(to->begin, from->begin, ((size_t)in->ranks + 1) * sizeof *to->begin);
    memcpy(to->turns, from->turns, from->begin[in->ranks] * sizeof *to->turns);
    to->makespan = from->makespan;
}

/* How far a chunk of a rank is; W are done in the order of their I, but for those that come within their B. */
typedef struct chunk_counts {
    uint32_t forward, backward, first, last;
    uint32_t *pending; /* microbatches whose W is to come: those from first to last */
} chunk_counts;

static dtm_task back_task(chunk_counts *c, uint16_t chunk, bool whole) {
    dtm_task t = {c->backward++, chunk, whole ? DTM_TASK_BACKWARD : DTM_TASK_INPUT};
    if (!whole) c->pending[c->last++] = t.microbatch;
    return t;
}

static void add_turn(dtm_timeline *t, int rank, search_turn x, chunk_counts *counts) {
    chunk_counts *c = &counts[x.chunk];
    dtm_operation o = {x.kind < TURN_FB ? DTM_OPERATION_TASK : DTM_OPERATION_PAIR};
    if (x.kind == TURN_F || x.kind >= TURN_FB) o.tasks[0] = (dtm_task){c->forward++, x.chunk, DTM_TASK_FORWARD};
    if (x.kind == TURN_B || x.kind == TURN_I) o.tasks[0] = back_task(c, x.chunk, x.kind == TURN_B);
    if (x.kind == TURN_W) o.tasks[0] = (dtm_task){c->pending[c->first++], x.chunk, DTM_TASK_WEIGHT};
    if (x.kind >= TURN_FB) o.tasks[1] = back_task(&counts[x.other], x.other, x.kind == TURN_FB);
    dtm_timeline_add_operation(t, rank, o);
}

dtm_timeline *search_plan_timeline(dtm_arena *arena, const search_instance *in, const search_plan *plan, const char *name) {
    dtm_timeline *t = dtm_timeline_create(arena, name, in->placement, in->ranks, in->microbatches, in->chunks);
    dtm_arena *scratch = dtm_arena_create();
    uint32_t *pending = dtm_arena_alloc(scratch, (size_t)in->chunks * (size_t)in->microbatches * sizeof *pending);
    chunk_counts *counts = dtm_arena_alloc(scratch, (size_t)in->chunks * sizeof *counts);
    for (int r = 0; r < in->ranks; r++) {
        for (int c = 0; c < in->chunks; c++)
            counts[c] = (chunk_counts){.pending = pending + (size_t)c * (size_t)in->microbatches};
        for (uint32_t i = plan->begin[r]; i < plan->begin[r + 1]; i++) add_turn(t, r, plan->turns[i], counts);
    }
    dtm_arena_destroy(scratch);
    return t;
}
