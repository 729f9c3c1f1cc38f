/* When everything in a timeline happens under given costs (timeline.h). The order on each rank is fixed, so a beginning is
 * the latest of a few ends: the ranks are walked in turn, each as far as what it needs has been timed; a rank that needs
 * what is not is woken by the task it waits for. */
#include "ir/fault.h"
#include "passes/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- costs ---- */

double dtm_task_time(const dtm_timeline_costs *c, dtm_task_kind kind, int stage) {
    const dtm_stage_cost *s = &c->stage[stage];
    switch (kind) {
    case DTM_TASK_FORWARD: return s->forward;
    case DTM_TASK_BACKWARD: return s->input + s->weight;
    case DTM_TASK_INPUT: return s->input;
    case DTM_TASK_WEIGHT: return s->weight;
    }
    return 0;
}

double dtm_pair_time(const dtm_timeline_costs *c, int f, dtm_task_kind kind, int b) {
    if (c->pair && kind == DTM_TASK_BACKWARD) return c->pair[(size_t)f * (size_t)c->stages + (size_t)b];
    const dtm_stage_cost *one = &c->stage[f], *other = &c->stage[b];
    double hidden = kind == DTM_TASK_BACKWARD ? fmin(one->hidden, other->hidden) : fmin(one->hidden_input, other->hidden_input);
    double back = dtm_task_time(c, kind, b);
    return fmax(dtm_fault(72) ? one->forward : fmax(one->forward, back), one->forward + back - hidden);
}

double dtm_message_time(const dtm_timeline_costs *c, dtm_task_kind kind, int stage) {
    double bytes = kind == DTM_TASK_FORWARD || dtm_fault(71) ? c->stage[stage].forward_bytes : c->stage[stage].backward_bytes;
    return c->latency + (c->bandwidth > 0 ? bytes / c->bandwidth : 0);
}

double dtm_shared_on_rank(const dtm_shared_bytes *shared, int n_shared, uint32_t shares) {
    double bytes = 0;
    for (int i = 0; i < n_shared; i++) bytes += shares >> i & 1 ? shared[i].rank : 0;
    return bytes;
}

double dtm_shared_in_stage(const dtm_shared_bytes *shared, int n_shared, uint32_t shares) {
    double bytes = 0;
    for (int i = 0; i < n_shared; i++) bytes += shares >> i & 1 ? shared[i].stage : 0;
    return bytes;
}

double dtm_held_bytes(const dtm_timeline_costs *costs, const dtm_timeline *t, int rank) {
    double bytes = 0;
    uint32_t shares = 0;
    for (int c = 0; c < t->chunks; c++) {
        const dtm_stage_cost *stage = &costs->stage[dtm_timeline_stage(t, rank, c)];
        bytes += stage->held;
        shares |= stage->shares;
    }
    return bytes + dtm_shared_on_rank(costs->shared, costs->n_shared, shares);
}

/* ---- walking ---- */

enum { NOBODY = -1 };

typedef struct simulation {
    const dtm_timeline *timeline;
    const dtm_timeline_costs *costs;
    dtm_timeline_times *times;
    double *ends;          /* by task; NAN: not timed yet */
    double *posted[2];     /* in groups, by the task of a message: when its send and its receive were posted; NAN: not yet */
    int *waiter;           /* by task: the rank that waits for it */
    double *free;          /* by rank */
    int *queue, *queued;   /* ranks to walk on: a ring, each rank in it at most once */
    size_t head, count;
} simulation;

static void wake(simulation *s, int rank) {
    if (rank == NOBODY || s->queued[rank]) return;
    s->queued[rank] = 1;
    s->queue[(s->head + s->count++) % (size_t)s->timeline->ranks] = rank;
}

static double operation_time(const simulation *s, int rank, const dtm_operation *o) {
    const dtm_timeline *t = s->timeline;
    int stage = dtm_timeline_stage(t, rank, o->tasks[0].chunk);
    if (o->kind == DTM_OPERATION_TASK) return dtm_task_time(s->costs, (dtm_task_kind)o->tasks[0].kind, stage);
    return dtm_pair_time(s->costs, stage, (dtm_task_kind)o->tasks[1].kind, dtm_timeline_stage(t, rank, o->tasks[1].chunk));
}

static int n_tasks(const dtm_operation *o) { return o->kind == DTM_OPERATION_PAIR ? 2 : 1; }

/* Whether a pair holds the task itself: then nothing is waited for (the proof refuses it where it may not be). */
static bool within(const simulation *s, int rank, const dtm_operation *o, uint32_t number) {
    for (int i = 0; i < n_tasks(o); i++)
        if (dtm_timeline_number(s->timeline, rank, o->tasks[i]) == number) return true;
    return false;
}

/* The earliest beginning that what a task of an operation needs allows; false: not known yet. *data: when the last of it was
 * made. */
static bool task_needs(simulation *s, int rank, const dtm_operation *o, dtm_task task, double *begin, double *data) {
    dtm_task_place needs[2];
    int n = dtm_timeline_needs(s->timeline, rank, task, needs);
    for (int k = 0; k < n; k++) {
        uint32_t number = dtm_timeline_number(s->timeline, needs[k].rank, needs[k].task);
        double end = s->ends[number];
        if (s->timeline->groups && needs[k].rank != rank) continue; /* a group has brought it */
        if (isnan(end)) {
            if (needs[k].rank == rank && within(s, rank, o, number)) continue;
            s->waiter[number] = rank;
            return false;
        }
        if (end > *data) *data = end;
        if (needs[k].rank != rank) {
            int stage = dtm_timeline_stage(s->timeline, needs[k].rank, needs[k].task.chunk);
            end += dtm_message_time(s->costs, (dtm_task_kind)needs[k].task.kind, stage);
        }
        if (end > *begin) *begin = end;
    }
    return true;
}

static bool needed(simulation *s, int rank, const dtm_operation *o, double *begin, double *data) {
    for (int i = 0; i < n_tasks(o); i++)
        if (!task_needs(s, rank, o, o->tasks[i], begin, data)) return false;
    return true;
}

/* When a group's messages have all arrived; false: not known yet. Posts those of them that are not. */
static bool arrived(simulation *s, int rank, const dtm_operation *o, double *end, double *data) {
    const dtm_timeline *t = s->timeline;
    bool all = true;
    for (uint32_t i = 0; i < o->n_messages; i++) {
        const dtm_message *m = &t->order[rank].messages[o->message + i];
        int source = m->receive ? m->peer : rank;
        uint32_t number = dtm_timeline_number(t, source, m->made);
        if (isnan(s->posted[m->receive][number])) {
            s->posted[m->receive][number] = s->free[rank];
            wake(s, m->peer);
        }
        double sent = s->posted[0][number], received = s->posted[1][number];
        if (isnan(sent) || isnan(received)) all = false;
        double both = fmax(sent, received);
        *data = fmax(*data, both);
        *end = fmax(*end, both + dtm_message_time(s->costs, (dtm_task_kind)m->made.kind,
                                                  dtm_timeline_stage(t, source, m->made.chunk)));
    }
    return all;
}

/* ---- pairs whose parts take turns ---- */

/* F goes first, and its result is sent when it is there; the other part may come to it later. */
static bool time_turns(simulation *s, int rank, const dtm_operation *o, double *begin, double *data, double *ends) {
    double other = *begin, ignored = *data;
    if (!task_needs(s, rank, o, o->tasks[0], begin, data) || !task_needs(s, rank, o, o->tasks[1], &other, &ignored)) return false;
    int stages[2];
    for (int i = 0; i < 2; i++) stages[i] = dtm_timeline_stage(s->timeline, rank, o->tasks[i].chunk);
    const dtm_stage_cost *f = &s->costs->stage[stages[0]];
    double both = operation_time(s, rank, o);
    ends[0] = *begin + fmin(both, f->forward + f->later);
    ends[1] = fmax(*begin + both, other + dtm_task_time(s->costs, (dtm_task_kind)o->tasks[1].kind, stages[1]));
    return true;
}

/* One operation; false: the rank has to wait. */
static bool step(simulation *s, int rank) {
    const dtm_timeline *t = s->timeline;
    dtm_rank_times *r = &s->times->rank[rank];
    const dtm_operation *o = &t->order[rank].operations[r->done];
    double begin = s->free[rank], data = begin, end;
    if (o->kind == DTM_OPERATION_GROUP) {
        end = begin;
        if (!arrived(s, rank, o, &end, &data)) return false;
        r->exposed += end - fmax(begin, data);
    } else {
        double ends[2];
        if (o->kind == DTM_OPERATION_PAIR && s->costs->turns) {
            if (!time_turns(s, rank, o, &begin, &data, ends)) return false;
        } else {
            if (!needed(s, rank, o, &begin, &data)) return false;
            ends[0] = ends[1] = begin + operation_time(s, rank, o);
        }
        end = fmax(ends[0], ends[1]);
        r->exposed += begin - (dtm_fault(73) ? s->free[rank] : data);
        r->busy += fmin(end - begin, operation_time(s, rank, o));
        for (int i = 0; i < n_tasks(o); i++) {
            uint32_t number = dtm_timeline_number(t, rank, o->tasks[i]);
            s->ends[number] = ends[i];
            wake(s, s->waiter[number]);
        }
    }
    r->start[r->done] = begin;
    r->end[r->done++] = s->free[rank] = end;
    return true;
}

static void walk(simulation *s) {
    for (int r = 0; r < s->timeline->ranks; r++) wake(s, r);
    while (s->count) {
        int rank = s->queue[s->head];
        s->head = (s->head + 1) % (size_t)s->timeline->ranks;
        s->count--;
        s->queued[rank] = 0;
        while (s->times->rank[rank].done < s->timeline->order[rank].count && step(s, rank)) {}
    }
}

/* ---- memory ---- */

/* What a task takes when it begins and gives back when it ends. */
static void account(const simulation *s, int rank, dtm_task task, double *takes, double *gives) {
    const dtm_stage_cost *c = &s->costs->stage[dtm_timeline_stage(s->timeline, rank, task.chunk)];
    switch (task.kind) {
    case DTM_TASK_FORWARD: *takes += c->kept; break;
    case DTM_TASK_BACKWARD: *gives += c->kept; break;
    case DTM_TASK_INPUT: *gives += c->kept - (dtm_fault(74) ? 0 : c->kept_for_weight); break;
    case DTM_TASK_WEIGHT: *gives += c->kept_for_weight; break;
    }
}

static void memory(simulation *s, int rank) {
    const dtm_timeline *t = s->timeline;
    dtm_rank_times *r = &s->times->rank[rank];
    double alive = 0;
    for (size_t i = 0; i < t->order[rank].count; i++) {
        const dtm_operation *o = &t->order[rank].operations[i];
        double takes = 0, gives = 0;
        if (o->kind == DTM_OPERATION_GROUP) continue;
        for (int k = 0; k < n_tasks(o); k++) account(s, rank, o->tasks[k], &takes, &gives);
        alive += takes;
        r->kept = fmax(r->kept, alive);
        alive -= gives;
    }
    r->memory = r->kept + dtm_held_bytes(s->costs, t, rank);
}

/* ---- messages waiting ---- */

typedef struct event {
    double time;
    int change; /* -1 before +1 at the same time */
} event;

static int by_time(const void *a, const void *b) {
    const event *x = a, *y = b;
    return x->time < y->time ? -1 : x->time > y->time ? 1 : x->change - y->change;
}

/* The most at a time. A message used at the very moment it is made counts as one for that moment. */
static int most(event *events, size_t count) {
    int now = 0, best = 0;
    qsort(events, count, sizeof *events, by_time);
    for (size_t i = 0; i < count;) {
        int made = 0, at_once = 0;
        double time = events[i].time;
        for (; i < count && events[i].time == time; i++) {
            if (events[i].change < 0) now--;
            else if (events[i].change == 1) made++;
            else at_once++;
        }
        if (made)
            best = now + (made > at_once ? made - at_once : 1) > best ? now + (made > at_once ? made - at_once : 1) : best;
        now += made - at_once;
    }
    return best;
}

/* The operations of other ranks that use what a rank sends, channel by channel: rank `to` uses what `from` sends. */
static size_t channel(const simulation *s, int from, int to, bool forward, bool used_up, event *events) {
    const dtm_timeline *t = s->timeline;
    const dtm_rank_times *r = &s->times->rank[to];
    size_t n = 0;
    for (size_t i = 0; i < r->done; i++) {
        const dtm_operation *o = &t->order[to].operations[i];
        for (int k = 0; o->kind != DTM_OPERATION_GROUP && k < n_tasks(o); k++) {
            dtm_task_place needs[2];
            int count = dtm_timeline_needs(t, to, o->tasks[k], needs);
            if (count == 0 || needs[count - 1].rank != from || from == to) continue;
            if ((needs[count - 1].task.kind == DTM_TASK_FORWARD) != forward) continue;
            double made = s->ends[dtm_timeline_number(t, from, needs[count - 1].task)];
            double gone = used_up ? r->end[i] : r->start[i];
            if (isnan(made)) continue; /* it is never made, though a group says so: not proved */
            events[n++] = (event){made, 1};
            events[n++] = (event){gone, gone > made ? -1 : 2};
        }
    }
    return n;
}

/* The ranks whose results a rank uses: at most two a chunk. */
static void count_messages(simulation *s, dtm_arena *arena) {
    const dtm_timeline *t = s->timeline;
    size_t longest = 0;
    for (int r = 0; r < t->ranks; r++) longest = t->order[r].count > longest ? t->order[r].count : longest;
    event *events = dtm_arena_alloc(arena, 4 * longest * sizeof *events + sizeof *events);
    bool *seen = dtm_arena_alloc(arena, 2 * (size_t)t->ranks * sizeof *seen);
    for (int r = 0; r < t->ranks; r++) {
        memset(seen, 0, 2 * (size_t)t->ranks * sizeof *seen);
        for (int c = 0; c < t->chunks; c++)
            for (int forward = 0; forward < 2; forward++) {
                dtm_task_place needs[2];
                dtm_task task = {0, (uint16_t)c, forward ? DTM_TASK_FORWARD : DTM_TASK_INPUT};
                int count = dtm_timeline_needs(t, r, task, needs), from = count ? needs[count - 1].rank : r;
                if (from == r || seen[2 * from + forward]) continue;
                seen[2 * from + forward] = true;
                int waiting = most(events, channel(s, from, r, forward, false, events));
                int slots = most(events, channel(s, from, r, forward, true, events));
                if (waiting > s->times->waiting) s->times->waiting = waiting;
                if (slots > s->times->slots) s->times->slots = slots;
            }
    }
}

/* ---- all of it ---- */

static void *numbers(dtm_arena *arena, size_t count) {
    double *n = dtm_arena_alloc(arena, count * sizeof *n);
    for (size_t i = 0; i < count; i++) n[i] = NAN;
    return n;
}

static simulation begin(dtm_arena *arena, dtm_arena *scratch, const dtm_timeline *t, const dtm_timeline_costs *costs) {
    simulation s = {t, costs, dtm_arena_alloc(arena, sizeof *s.times)};
    size_t tasks = dtm_timeline_numbers(t), ranks = (size_t)t->ranks;
    s.times->rank = dtm_arena_alloc(arena, ranks * sizeof *s.times->rank);
    for (size_t r = 0; r < ranks; r++) {
        s.times->rank[r].start = dtm_arena_alloc(arena, t->order[r].count * sizeof(double));
        s.times->rank[r].end = dtm_arena_alloc(arena, t->order[r].count * sizeof(double));
    }
    s.ends = numbers(scratch, tasks);
    for (int k = 0; k < 2 && t->groups; k++) s.posted[k] = numbers(scratch, tasks);
    s.waiter = dtm_arena_alloc(scratch, tasks * sizeof *s.waiter);
    for (size_t i = 0; i < tasks; i++) s.waiter[i] = NOBODY;
    s.free = dtm_arena_alloc(scratch, ranks * sizeof *s.free);
    s.queue = dtm_arena_alloc(scratch, ranks * sizeof *s.queue);
    s.queued = dtm_arena_alloc(scratch, ranks * sizeof *s.queued);
    return s;
}

static void sum_up(simulation *s) {
    dtm_timeline_times *all = s->times;
    double first = INFINITY, last = 0, busy = 0, least = INFINITY;
    for (int i = 0; i < s->timeline->ranks; i++) {
        dtm_rank_times *r = &all->rank[i];
        if (r->done) r->first = r->start[0], r->last = r->end[r->done - 1];
        if (r->done < s->timeline->order[i].count) all->stuck = true;
        memory(s, i);
        first = fmin(first, r->first);
        last = fmax(last, r->last);
        least = fmin(least, r->busy);
        busy += r->busy;
        all->exposed = fmax(all->exposed, r->exposed);
        all->memory = fmax(all->memory, r->memory);
    }
    all->makespan = last - first;
    if (all->makespan <= 0) return;
    all->bubble = 1 - busy / all->makespan / s->timeline->ranks;
    all->worst_bubble = 1 - least / all->makespan;
}

dtm_timeline_times *dtm_timeline_simulate(dtm_arena *arena, const dtm_timeline *timeline, const dtm_timeline_costs *costs) {
    if (costs->stages != timeline->stages)
        dtm_broken("timeline", "costs of %d stages for a timeline of %d", costs->stages, timeline->stages);
    dtm_arena *scratch = dtm_arena_create();
    simulation s = begin(arena, scratch, timeline, costs);
    walk(&s);
    sum_up(&s);
    if (!s.times->stuck) count_messages(&s, scratch);
    dtm_arena_destroy(scratch);
    return s.times;
}
