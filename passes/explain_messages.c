/* What hides the messages of a pipeline (explain.h), by the timeline that `dtmc timeline` draws: the calls of the rank that they go to,
 * but for what it waits for them. */
#include "passes/explain.h"
#include "passes/stage_cost.h"

#include <math.h>

struct dtm_explained_messages {
    const dtm_timeline *timeline;
    const dtm_timeline_times *times;
    double *waited; /* by the number of the task that sends: seconds that the other rank waits for it while it is on its way */
};

/* What an operation waits for begins when its rank is free, and the message under way. */
static void add_wait(const dtm_explained_messages *m, int rank, size_t i) {
    const dtm_operation *o = &m->timeline->order[rank].operations[i];
    const dtm_rank_times *r = &m->times->rank[rank];
    double free = i ? r->end[i - 1] : 0;
    for (int k = 0; k < (o->kind == DTM_OPERATION_PAIR ? 2 : 1); k++) {
        dtm_task_place needs[2];
        int n = dtm_timeline_needs(m->timeline, rank, o->tasks[k], needs);
        if (n == 0 || needs[n - 1].rank == rank) continue;
        uint32_t sent = dtm_timeline_number(m->timeline, needs[n - 1].rank, needs[n - 1].task);
        const dtm_message_times *message = &m->times->message[sent];
        m->waited[sent] += fmax(0, fmin(r->start[i], message->arrived) - fmax(free, message->begun));
    }
}

dtm_explained_messages *dtm_explained_messages_of(const dtm_module *module, dtm_arena *arena) {
    dtm_explained_messages *m = dtm_arena_alloc(arena, sizeof *m);
    dtm_timeline_costs costs = dtm_stage_costs(module, arena);
    m->timeline = dtm_stage_timeline(module, arena);
    m->times = dtm_timeline_simulate(arena, m->timeline, &costs);
    m->waited = dtm_arena_alloc(arena, dtm_timeline_numbers(m->timeline) * sizeof *m->waited);
    for (int r = 0; r < m->timeline->ranks; r++)
        for (size_t i = 0; i < m->times->rank[r].done; i++) add_wait(m, r, i);
    return m;
}

double dtm_messages_waited(const dtm_explained_messages *m, int rank, int stage, bool forward) {
    double waited = 0, way = 0;
    for (size_t i = 0; i < m->times->rank[rank].done; i++) {
        const dtm_operation *o = &m->timeline->order[rank].operations[i];
        for (int k = 0; k < (o->kind == DTM_OPERATION_PAIR ? 2 : 1); k++) {
            int chunk;
            dtm_task task = o->tasks[k];
            if (dtm_timeline_stage(m->timeline, rank, task.chunk) != stage || (task.kind == DTM_TASK_FORWARD) != forward) continue;
            if (dtm_timeline_sends(m->timeline, rank, task, &chunk) < 0) continue;
            uint32_t sent = dtm_timeline_number(m->timeline, rank, task);
            waited += m->waited[sent];
            way += m->times->message[sent].arrived - m->times->message[sent].begun;
        }
    }
    return way > 0 ? waited / way : 0;
}
