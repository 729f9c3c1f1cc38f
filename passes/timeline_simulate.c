/* What a timeline takes under given costs (timeline.h): when everything happens (timeline_clock.c), and from that memory, idle time
 * and messages that wait. */
#include "ir/fault.h"
#include "passes/timeline_simulate.h"

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

double dtm_task_keeps(const dtm_stage_cost *c, dtm_task_kind kind) {
    if (kind == DTM_TASK_FORWARD) return c->kept;
    return kind == DTM_TASK_INPUT ? fmax(0, c->kept_for_weight - c->kept) : 0;
}

double dtm_task_frees(const dtm_stage_cost *c, dtm_task_kind kind) {
    switch (kind) {
    case DTM_TASK_BACKWARD: return c->kept;
    case DTM_TASK_INPUT: return fmax(0, c->kept - c->kept_for_weight);
    case DTM_TASK_WEIGHT: return c->kept_for_weight;
    default: return 0;
    }
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

typedef struct simulation {
    const dtm_timeline *timeline;
    const dtm_timeline_costs *costs;
    dtm_timeline_times *times;
} simulation;

/* ---- memory ---- */

/* What a task takes when it begins and gives back when it ends. */
static void account(const simulation *s, int rank, dtm_task task, double *takes, double *gives) {
    const dtm_stage_cost *c = &s->costs->stage[dtm_timeline_stage(s->timeline, rank, task.chunk)];
    *takes += dtm_task_keeps(c, task.kind);
    *gives += task.kind == DTM_TASK_INPUT && dtm_fault(74) ? c->kept : dtm_task_frees(c, task.kind);
}

static void memory(simulation *s, int rank) {
    const dtm_timeline *t = s->timeline;
    dtm_rank_times *r = &s->times->rank[rank];
    double alive = 0;
    for (size_t i = 0; i < t->order[rank].count; i++) {
        const dtm_operation *o = &t->order[rank].operations[i];
        double takes = 0, gives = 0;
        for (int k = 0; k < timeline_n_tasks(o); k++) account(s, rank, o->tasks[k], &takes, &gives);
        alive += takes;
        r->kept = fmax(r->kept, alive);
        alive -= gives;
    }
    r->memory = r->kept + dtm_held_bytes(s->costs, t, rank);
}

/* ---- collectives ---- */

static double task_links(const simulation *s, int rank, dtm_task task) {
    const dtm_stage_cost *c = &s->costs->stage[dtm_timeline_stage(s->timeline, rank, task.chunk)];
    switch (task.kind) {
    case DTM_TASK_FORWARD: return c->forward_links;
    case DTM_TASK_INPUT: return c->input_links;
    case DTM_TASK_WEIGHT: return c->weight_links;
    default: return c->input_links + c->weight_links;
    }
}

/* What nothing hides of the collectives within stages. What a pair saves was hidden. */
static double links(const simulation *s, int rank) {
    const dtm_timeline *t = s->timeline;
    double all = 0;
    for (size_t i = 0; i < s->times->rank[rank].done; i++) {
        const dtm_operation *o = &t->order[rank].operations[i];
        double shown = 0, alone = 0;
        int stage[2] = {0};
        for (int k = 0; k < timeline_n_tasks(o); k++) {
            stage[k] = dtm_timeline_stage(t, rank, o->tasks[k].chunk);
            shown += task_links(s, rank, o->tasks[k]);
            alone += dtm_task_time(s->costs, (dtm_task_kind)o->tasks[k].kind, stage[k]);
        }
        if (o->kind == DTM_OPERATION_PAIR)
            shown -= alone - dtm_pair_time(s->costs, stage[0], (dtm_task_kind)o->tasks[1].kind, stage[1]);
        all += fmax(shown, 0);
    }
    return all;
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
        for (int k = 0; k < timeline_n_tasks(o); k++) {
            dtm_task_place needs[2];
            int count = dtm_timeline_needs(t, to, o->tasks[k], needs);
            if (count == 0 || needs[count - 1].rank != from || from == to) continue;
            if ((needs[count - 1].task.kind == DTM_TASK_FORWARD) != forward) continue;
            double made = s->times->message[dtm_timeline_number(t, from, needs[count - 1].task)].made;
            double gone = used_up ? r->end[i] : r->start[i];
            if (isnan(made)) continue; /* it is never made, though a group says so: not proved */
            events[n++] = (event){made, 1};
            events[n++] = (event){gone, gone > made ? -1 : 2};
        }
    }
    return n;
}

/* The ranks whose results a rank uses: at most two a chunk. */
void dtm_timeline_count_messages(const dtm_timeline *t, dtm_timeline_times *times) {
    dtm_arena *arena = dtm_arena_create();
    const simulation simulated = {t, NULL, times}, *s = &simulated;
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
    dtm_arena_destroy(arena);
}

/* ---- all of it ---- */

static void sum_up(simulation *s) {
    dtm_timeline_times *all = s->times;
    double first = INFINITY, last = 0, busy = 0, least = INFINITY;
    for (int i = 0; i < s->timeline->ranks; i++) {
        dtm_rank_times *r = &all->rank[i];
        if (r->done < s->timeline->order[i].count) all->stuck = true;
        memory(s, i);
        r->links = links(s, i);
        first = fmin(first, r->first);
        last = fmax(last, r->last);
        least = fmin(least, r->busy);
        busy += r->busy;
        all->exposed = fmax(all->exposed, r->exposed);
        all->communication = fmax(all->communication, r->exposed + r->links);
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
    simulation s = {timeline, costs, dtm_arena_alloc(arena, sizeof *s.times)};
    s.times->rank = dtm_arena_alloc(arena, (size_t)timeline->ranks * sizeof *s.times->rank);
    for (int r = 0; r < timeline->ranks; r++) {
        s.times->rank[r].start = dtm_arena_alloc(arena, timeline->order[r].count * sizeof(double));
        s.times->rank[r].end = dtm_arena_alloc(arena, timeline->order[r].count * sizeof(double));
    }
    s.times->message = dtm_arena_alloc(arena, dtm_timeline_numbers(timeline) * sizeof *s.times->message);
    s.times->sum_ended = dtm_arena_alloc(arena, (size_t)costs->n_sums * sizeof *s.times->sum_ended);
    s.times->n_sums = costs->n_sums;
    timeline_clock(timeline, costs, s.times);
    sum_up(&s);
    return s.times;
}
