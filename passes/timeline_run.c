/* Shows that nothing stands still by running the timeline without a clock (timeline_prove.h). An operation waits for the
 * results it reads, and for a buffer of each channel it sends on; once it may begin nothing can take that away again. Such
 * a system does the same whatever the speed of each rank: if one run comes to its end, all do, and where one stops, all
 * stop. So one run is a proof.
 *
 * Along the way each rank knows how many operations of every other rank must have ended before its own (vector clocks, as
 * of Mattern 1989). From them follows how far the source of a channel can run ahead of its destination at worst, and so
 * the number of slots with which no send waits whatever the times. */
#include "ir/fault.h"
#include "passes/timeline_prove.h"

#include <string.h>

enum { NOBODY = -1, NO_CLOCK = 0 };

typedef struct runner {
    const dtm_timeline *timeline;
    const timeline_messages *messages;
    dtm_arena *arena;
    uint32_t buffers; /* of a channel; 0: without end */
    timeline_run run;
    bool *made;             /* by task: done */
    bool *posted[2];        /* in groups, by the task of a message: its send, its receive */
    int *waiter;            /* by task: the rank that waits for it */
    uint32_t *used;         /* by channel: messages used up */
    int *channel_waiter;    /* by channel: the rank that waits for one to be used up */
    int *queue;             /* ranks to go on with: a ring, each at most once */
    bool *queued;
    size_t head, count;
    uint32_t *clocks;       /* by rank: operations of each rank that have ended before its next */
    uint32_t **sent_clock;  /* by task: that of its rank at its end, until it is used */
    uint32_t **free_clocks; /* vectors to use again */
    size_t n_free, cap_free;
    uint32_t *known;        /* by task: operations of the rank it is sent to that ended before it */
} runner;

static void wake(runner *u, int rank) {
    if (rank == NOBODY || u->queued[rank]) return;
    u->queued[rank] = true;
    u->queue[(u->head + u->count++) % (size_t)u->timeline->ranks] = rank;
}

static int n_tasks(const dtm_operation *o) {
    return o->kind == DTM_OPERATION_GROUP ? 0 : o->kind == DTM_OPERATION_PAIR ? 2 : 1;
}

/* ---- clocks ---- */

static uint32_t *new_clock(runner *u) {
    if (u->n_free) return u->free_clocks[--u->n_free];
    return dtm_arena_alloc(u->arena, (size_t)u->timeline->ranks * sizeof(uint32_t));
}

/* The rank learns what the maker of a message knew. */
static void learn(runner *u, int rank, uint32_t message) {
    uint32_t *own = u->clocks + (size_t)rank * (size_t)u->timeline->ranks, *other = u->sent_clock[message];
    if (!other) return;
    for (int r = 0; r < u->timeline->ranks; r++)
        if (other[r] > own[r]) own[r] = other[r];
    DTM_PUSH(u->arena, u->free_clocks, u->n_free, u->cap_free, other);
    u->sent_clock[message] = NULL;
}

static void remember(runner *u, int rank, uint32_t message, int to) {
    size_t bytes = (size_t)u->timeline->ranks * sizeof(uint32_t);
    uint32_t *own = u->clocks + (size_t)rank * (size_t)u->timeline->ranks;
    u->known[message] = own[to];
    memcpy(u->sent_clock[message] = new_clock(u), own, bytes);
}

/* ---- one operation ---- */

static bool wait_for(runner *u, int rank, timeline_reason reason, int other, dtm_task task) {
    u->run.waits[rank] = (timeline_wait){reason, other, task};
    return false;
}

/* Whether all that an operation reads is there. */
static bool has_results(runner *u, int rank, const dtm_operation *o) {
    const dtm_timeline *t = u->timeline;
    for (int i = 0; i < n_tasks(o); i++) {
        dtm_task_place needs[2];
        int n = dtm_timeline_needs(t, rank, o->tasks[i], needs);
        for (int k = 0; k < n; k++) {
            uint32_t number = dtm_timeline_number(t, needs[k].rank, needs[k].task);
            if (u->made[number]) continue;
            u->waiter[number] = rank;
            return wait_for(u, rank, WAITS_FOR_TASK, needs[k].rank, needs[k].task);
        }
    }
    return true;
}

/* Whether each channel it sends on has a buffer. */
static bool has_buffers(runner *u, int rank, const dtm_operation *o) {
    const dtm_timeline *t = u->timeline;
    for (int i = 0; u->buffers && i < n_tasks(o); i++) {
        int chunk, to = dtm_timeline_sends(t, rank, o->tasks[i], &chunk);
        if (to < 0) continue;
        bool backward = o->tasks[i].kind != DTM_TASK_FORWARD;
        uint32_t channel = timeline_channel(t, rank, to, backward);
        uint32_t place = u->messages->place[dtm_timeline_number(t, rank, o->tasks[i])];
        if (place < u->used[channel] + u->buffers) continue;
        u->channel_waiter[channel] = rank;
        uint32_t full = u->messages->makers[channel][place - u->buffers];
        const dtm_operation *maker = &t->order[rank].operations[full];
        dtm_task task = maker->tasks[maker->kind == DTM_OPERATION_PAIR && backward];
        return wait_for(u, rank, WAITS_FOR_SLOT, to, task);
    }
    return true;
}

static void finish(runner *u, int rank, const dtm_operation *o, size_t index) {
    const dtm_timeline *t = u->timeline;
    uint32_t *own = u->buffers ? NULL : u->clocks + (size_t)rank * (size_t)t->ranks;
    for (int i = 0; i < n_tasks(o); i++) {
        dtm_task_place needs[2];
        int n = dtm_timeline_needs(t, rank, o->tasks[i], needs);
        if (n == 0 || needs[n - 1].rank == rank) continue;
        int from = needs[n - 1].rank;
        uint32_t channel = timeline_channel(t, from, rank, o->tasks[i].kind != DTM_TASK_FORWARD);
        u->used[channel]++;
        wake(u, u->channel_waiter[channel]);
        if (own && (o->tasks[i].kind == DTM_TASK_FORWARD || !dtm_fault(66)))
            learn(u, rank, dtm_timeline_number(t, from, needs[n - 1].task));
    }
    if (own) own[rank] = (uint32_t)index + 1;
    for (int i = 0; i < n_tasks(o); i++) {
        uint32_t number = dtm_timeline_number(t, rank, o->tasks[i]);
        int chunk, to = dtm_timeline_sends(t, rank, o->tasks[i], &chunk);
        u->made[number] = true;
        wake(u, u->waiter[number]);
        if (own && to >= 0) remember(u, rank, number, to);
    }
}

/* A group: posts its messages; it is past when each has been posted on the other side too. */
static bool group(runner *u, int rank, const dtm_operation *o) {
    const dtm_message *messages = u->timeline->order[rank].messages + o->message;
    bool all = true;
    for (uint32_t i = 0; i < o->n_messages; i++) {
        const dtm_message *m = &messages[i];
        uint32_t number = dtm_timeline_number(u->timeline, m->receive ? m->peer : rank, m->made);
        if (!u->posted[m->receive][number]) {
            u->posted[m->receive][number] = true;
            wake(u, m->peer);
        }
        if (all && !u->posted[!m->receive][number] && (m->receive || !dtm_fault(67)))
            all = wait_for(u, rank, WAITS_FOR_PARTNER, m->peer, m->made);
    }
    return all;
}

static bool step(runner *u, int rank) {
    size_t index = u->run.done[rank];
    const dtm_operation *o = &u->timeline->order[rank].operations[index];
    if (o->kind == DTM_OPERATION_GROUP) {
        if (!group(u, rank, o)) return false;
    } else if (!u->timeline->groups) {
        if (!has_results(u, rank, o) || !has_buffers(u, rank, o)) return false;
        finish(u, rank, o, index);
    }
    u->run.done[rank]++;
    return true;
}

/* ---- the whole run ---- */

/* The messages of a channel that can be there at a time: of those from the k-th on, all whose making does not have to wait
 * for the k-th to be used up. */
static void count_ample(runner *u) {
    const dtm_timeline *t = u->timeline;
    uint32_t *makers = dtm_arena_alloc(u->arena, dtm_timeline_numbers(t) * sizeof *makers);
    for (int r = 0; r < t->ranks; r++)
        for (int c = 0; c < t->chunks; c++)
            for (int kind = DTM_TASK_FORWARD; kind <= DTM_TASK_INPUT; kind += DTM_TASK_INPUT) {
                int chunk, to = dtm_timeline_sends(t, r, (dtm_task){0, (uint16_t)c, (uint8_t)kind}, &chunk);
                if (to < 0) continue;
                uint32_t channel = timeline_channel(t, r, to, kind != DTM_TASK_FORWARD);
                uint32_t n = u->messages->count[channel], j = 0;
                for (uint32_t k = 0; k < n; k++) {
                    const dtm_operation *o = &t->order[r].operations[u->messages->makers[channel][k]];
                    dtm_task task = o->tasks[o->kind == DTM_OPERATION_PAIR && kind != DTM_TASK_FORWARD];
                    makers[k] = dtm_timeline_number(t, r, task);
                }
                for (uint32_t k = 0; k < n; k++) {
                    while (j < n && u->known[makers[j]] + dtm_fault(65) <= u->messages->users[channel][k]) j++;
                    if ((int)(j - k) > u->run.ample) u->run.ample = (int)(j - k);
                }
            }
}

static int *nobody(dtm_arena *arena, size_t count) {
    int *list = dtm_arena_alloc(arena, count * sizeof *list);
    for (size_t i = 0; i < count; i++) list[i] = NOBODY;
    return list;
}

timeline_run timeline_run_with(dtm_arena *arena, const dtm_timeline *t, const timeline_messages *messages, uint32_t buffers) {
    dtm_arena *scratch = dtm_arena_create();
    size_t tasks = dtm_timeline_numbers(t), ranks = (size_t)t->ranks;
    runner u = {t, messages, scratch, buffers};
    u.run.done = dtm_arena_alloc(arena, ranks * sizeof *u.run.done);
    u.run.waits = dtm_arena_alloc(arena, ranks * sizeof *u.run.waits);
    u.made = dtm_arena_alloc(scratch, tasks);
    for (int k = 0; k < 2 && t->groups; k++) u.posted[k] = dtm_arena_alloc(scratch, tasks);
    u.waiter = nobody(scratch, tasks);
    u.used = dtm_arena_alloc(scratch, ranks * CHANNELS * sizeof *u.used);
    u.channel_waiter = nobody(scratch, ranks * CHANNELS);
    u.queue = dtm_arena_alloc(scratch, ranks * sizeof *u.queue);
    u.queued = dtm_arena_alloc(scratch, ranks);
    if (!buffers && !t->groups) {
        u.clocks = dtm_arena_alloc(scratch, ranks * ranks * sizeof *u.clocks);
        u.sent_clock = dtm_arena_alloc(scratch, tasks * sizeof *u.sent_clock);
        u.known = dtm_arena_alloc(scratch, tasks * sizeof *u.known);
    }
    for (int r = 0; r < t->ranks; r++) wake(&u, r);
    while (u.count) {
        int rank = u.queue[u.head];
        u.head = (u.head + 1) % ranks;
        u.count--;
        u.queued[rank] = false;
        while (u.run.done[rank] < t->order[rank].count && step(&u, rank)) {}
    }
    for (int r = 0; r < t->ranks; r++) u.run.stuck |= u.run.done[r] < t->order[r].count;
    if (!buffers && !t->groups && !u.run.stuck) count_ample(&u);
    dtm_arena_destroy(scratch);
    return u.run;
}
