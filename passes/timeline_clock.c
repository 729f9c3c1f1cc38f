/* When things happen in a timeline (timeline.h), event by event in the order of time, because messages share what comes first gets:
 *   - a rank begins an operation when it has ended the one before and what it needs is there;
 *   - a message can move when its result is made and its receive is posted, which is when a slot of its channel is free: at once for
 *     as many as there are slots, and for one more whenever a message of the channel has been used up;
 *   - it then has the way out of its rank and the way into the other for itself, once both are free, as long as its bytes take; and is
 *     there after the link's latency. Those that can move first are first at both, and wait for both;
 *   - before a rank makes a result that is to be sent, the one `buffers` before it has left;
 *   - sums that are carried out beside it take both ways of their ranks piece by piece, and messages come in between.
 *
 *     out of rank 0   F0|F1|F2|..                    F3: rank 1 has two slots, and has used F0
 *     into rank 1     F0|F1|..                       (|: after so many bytes; what is there is there a latency later)
 *
 * So what a run does (runtime/comm/local.c) under links of these figures. */
#include "ir/fault.h"
#include "passes/timeline_prove.h"
#include "passes/timeline_simulate.h"

#include <math.h>
#include <string.h>

/* A part of a rank's operation ends, the last of them the operation. */
enum { FIRST = 1, SECOND = 2 };
/* Or a rank comes to a sum, or (rank -1) a piece of a sum has moved (`made`), or the next one can. */
typedef struct event {
    double time;
    int rank, made; /* made: the results of these of its tasks are there */
    int sum;        /* from 1; 0: it is of an operation */
} event;

/* A sum: how many ranks have come to it, and pieces have moved. */
typedef struct progress {
    int came, moved;
    bool runs, ended, waits; /* waits: for the sum that it goes on from */
    bool precedes;           /* another goes on from it */
    double begun;            /* when the last came to it */
} progress;

typedef struct part_in_sum {
    int sum, member;
} part_in_sum;

typedef struct sums_of_rank {
    part_in_sum *items;
    size_t count, capacity;
} sums_of_rank;

enum { STREAMS = 4 };

/* Messages of a source, destination and kind (F or B), in the order in which they are made and used. */
typedef struct channel {
    uint32_t *made; /* the numbers of their tasks */
    uint32_t count, capacity, used;
} channel;

typedef struct ticker {
    const dtm_timeline *timeline;
    const dtm_timeline_costs *costs;
    dtm_timeline_times *times;
    dtm_arena *arena;
    dtm_message_times *message; /* by task */
    double *posted[2];    /* in groups, by the task of a message: when its send and its receive were posted; NAN: not yet */
    double *out, *in;     /* by rank: when the ways are free */
    double *free;         /* by rank: when its last operation ended */
    int *parts;           /* by rank: of its operation under way, parts of which it is known when they end; 0: none is under way */
    bool *waits;          /* by rank: its pair goes on, and what the second part needs is not known yet */
    bool *posts;          /* by rank: the group that it has come to is posted */
    channel *channels;    /* NULL: there are slots and buffers without end */
    uint32_t *place;      /* by task: of its message in its channel */
    progress *sums;
    sums_of_rank *of_rank; /* those that it takes part in */
    bool *busy;            /* by rank and stream: a sum is under way */
    event *heap;          /* of at most three for each rank, and for each sum those of its ranks and one */
    size_t count;
} ticker;

/* ---- events ---- */

static bool before(const event *a, const event *b) {
    if (a->time != b->time) return a->time < b->time;
    if (a->rank != b->rank) return a->rank < b->rank;
    return a->made != b->made ? a->made < b->made : a->sum < b->sum;
}

static void swap(event *a, event *b) {
    event c = *a;
    *a = *b;
    *b = c;
}

static void push_event(ticker *c, event e) {
    size_t at = c->count++;
    c->heap[at] = e;
    for (; at && before(&c->heap[at], &c->heap[(at - 1) / 2]); at = (at - 1) / 2) swap(&c->heap[at], &c->heap[(at - 1) / 2]);
}

static void add_event(ticker *c, double time, int rank, int made) {
    c->parts[rank]++;
    push_event(c, (event){time, rank, made, 0});
}

static event next_event(ticker *c) {
    event first = c->heap[0];
    c->heap[0] = c->heap[--c->count];
    for (size_t at = 0, least;; at = least) {
        least = at;
        for (size_t k = 2 * at + 1; k <= 2 * at + 2 && k < c->count; k++)
            if (before(&c->heap[k], &c->heap[least])) least = k;
        if (least == at) return first;
        swap(&c->heap[at], &c->heap[least]);
    }
}

/* ---- what there is ---- */

static const dtm_operation *operation_of(const ticker *c, int rank) {
    const dtm_rank_order *order = &c->timeline->order[rank];
    size_t done = c->times->rank[rank].done;
    return done < order->count ? &order->operations[done] : NULL;
}

static double operation_time(const ticker *c, int rank, const dtm_operation *o) {
    const dtm_timeline *t = c->timeline;
    int stage = dtm_timeline_stage(t, rank, o->tasks[0].chunk);
    if (o->kind == DTM_OPERATION_TASK) return dtm_task_time(c->costs, (dtm_task_kind)o->tasks[0].kind, stage);
    return dtm_pair_time(c->costs, stage, (dtm_task_kind)o->tasks[1].kind, dtm_timeline_stage(t, rank, o->tasks[1].chunk));
}

/* Whether a pair holds the task itself: then nothing is waited for (the proof refuses it where it may not be). */
static bool within(const ticker *c, int rank, const dtm_operation *o, uint32_t number) {
    for (int i = 0; i < timeline_n_tasks(o); i++)
        if (dtm_timeline_number(c->timeline, rank, o->tasks[i]) == number) return true;
    return false;
}

static bool takes_turns(const ticker *c, const dtm_operation *o) { return o->kind == DTM_OPERATION_PAIR && c->costs->turns; }

static channel *channel_of(const ticker *c, int from, int to, const dtm_task *task) {
    return &c->channels[timeline_channel(c->timeline, from, to, task->kind != DTM_TASK_FORWARD)];
}

/* ---- messages ---- */

static void go_on(ticker *c, int rank);

static void move(ticker *c, int from, int to, dtm_task task, double now) {
    uint32_t number = dtm_timeline_number(c->timeline, from, task);
    dtm_message_times *m = &c->message[number];
    int stage = dtm_timeline_stage(c->timeline, from, task.chunk);
    double all = dtm_message_time(c->costs, (dtm_task_kind)task.kind, stage), bytes = all - c->costs->latency;
    m->begun = fmax(now, fmax(c->out[from], c->in[to]));
    m->left = m->begun + bytes;
    m->arrived = m->begun + all;
    c->out[from] = c->in[to] = m->left;
    go_on(c, to);
    go_on(c, from);
}

static bool has_slot(const ticker *c, const channel *ch, uint32_t place) {
    return !c->costs->slots || place < ch->used + (uint32_t)c->costs->slots;
}

/* A result has been made. */
static void send(ticker *c, int rank, dtm_task task, double now) {
    int chunk, to = dtm_timeline_sends(c->timeline, rank, task, &chunk);
    if (to < 0 || c->timeline->groups) return;
    if (!c->channels || has_slot(c, channel_of(c, rank, to, &task), c->place[dtm_timeline_number(c->timeline, rank, task)]))
        move(c, rank, to, task, now);
}

/* A task that is numbered: its inverse. */
static dtm_task task_of(const dtm_timeline *t, uint32_t number) {
    static const dtm_task_kind kinds[] = {DTM_TASK_FORWARD, DTM_TASK_INPUT, DTM_TASK_WEIGHT};
    uint32_t of_chunk = number / 3 / (uint32_t)t->microbatches;
    return (dtm_task){number / 3 % (uint32_t)t->microbatches, (uint16_t)(of_chunk % (uint32_t)t->chunks), (uint8_t)kinds[number % 3]};
}

/* What a task has received is used up: its slot is free for one that may wait for it. */
static void use_up(ticker *c, int rank, dtm_task task, double now) {
    dtm_task_place needs[2];
    int n = dtm_timeline_needs(c->timeline, rank, task, needs);
    if (!c->channels || n == 0 || needs[n - 1].rank == rank) return;
    int from = needs[n - 1].rank;
    channel *ch = channel_of(c, from, rank, &task);
    uint32_t next = ch->used++ + (uint32_t)c->costs->slots;
    if (!c->costs->slots || next >= ch->count || isnan(c->message[ch->made[next]].made)) return;
    move(c, from, rank, task_of(c->timeline, ch->made[next]), now);
}

/* ---- what an operation waits for; a rank looks again whenever one of its messages moves ---- */

/* The earliest beginning that what a task of an operation needs allows; false: not known yet. *data: when the last of it was
 * made. */
static bool task_needs(ticker *c, int rank, const dtm_operation *o, dtm_task task, double *begin, double *data) {
    dtm_task_place needs[2];
    int n = dtm_timeline_needs(c->timeline, rank, task, needs);
    for (int k = 0; k < n; k++) {
        uint32_t number = dtm_timeline_number(c->timeline, needs[k].rank, needs[k].task);
        bool own = needs[k].rank == rank;
        if (c->timeline->groups && !own) continue; /* a group has brought it */
        const dtm_message_times *m = &c->message[number];
        double there = own ? m->made : m->arrived;
        if (isnan(there) && own && within(c, rank, o, number)) continue;
        if (isnan(there)) return false;
        *data = fmax(*data, m->made);
        *begin = fmax(*begin, there);
    }
    return true;
}

/* Whether what was sent `buffers` before what a task makes has left; false: that is not known yet. */
static bool has_left(const ticker *c, int rank, dtm_task task, double *begin) {
    int chunk, to = c->channels && c->costs->buffers ? dtm_timeline_sends(c->timeline, rank, task, &chunk) : -1;
    if (to < 0) return true;
    uint32_t place = c->place[dtm_timeline_number(c->timeline, rank, task)], buffers = (uint32_t)c->costs->buffers;
    if (place < buffers) return true;
    double left = c->message[channel_of(c, rank, to, &task)->made[place - buffers]].left;
    if (isnan(left)) return false;
    *begin = fmax(*begin, left);
    return true;
}

static bool needed(ticker *c, int rank, const dtm_operation *o, double *begin, double *data) {
    for (int i = 0; i < timeline_n_tasks(o); i++)
        if (!has_left(c, rank, o->tasks[i], begin)) return false;
    for (int i = 0; i < (takes_turns(c, o) ? 1 : timeline_n_tasks(o)); i++)
        if (!task_needs(c, rank, o, o->tasks[i], begin, data)) return false;
    return true;
}

/* Posts what a group has that is not posted; when all have arrived; false: not known yet. */
static bool arrived(ticker *c, int rank, const dtm_operation *o, double *end, double *data) {
    const dtm_timeline *t = c->timeline;
    const dtm_message *messages = t->order[rank].messages + o->message;
    bool all = true, posts = !c->posts[rank];
    c->posts[rank] = true; /* what is posted may wake the other side, and that this one */
    for (uint32_t i = 0; posts && i < o->n_messages; i++) {
        const dtm_message *m = &messages[i];
        int source = m->receive ? m->peer : rank;
        uint32_t number = dtm_timeline_number(t, source, m->made);
        if (!isnan(c->posted[m->receive][number])) continue;
        c->posted[m->receive][number] = c->free[rank];
        if (!isnan(c->posted[!m->receive][number])) move(c, source, m->receive ? rank : m->peer, m->made, c->free[rank]);
    }
    if (posts)
        for (uint32_t i = 0; i < o->n_messages; i++) go_on(c, messages[i].peer);
    for (uint32_t i = 0; i < o->n_messages; i++) {
        uint32_t number = dtm_timeline_number(t, messages[i].receive ? messages[i].peer : rank, messages[i].made);
        if (isnan(c->message[number].arrived)) all = false;
        *data = fmax(*data, fmax(c->posted[0][number], c->posted[1][number]));
        *end = fmax(*end, c->message[number].arrived);
    }
    return all;
}

/* ---- sums ---- */

static bool *stream_of(const ticker *c, int sum, int member) {
    return &c->busy[c->costs->sums[sum].rank[member] * STREAMS + c->costs->sums[sum].stream];
}

/* Whether another sum of one of its ranks and its stream is under way. */
static bool is_busy(const ticker *c, int sum) {
    for (int i = 0; i < c->costs->sums[sum].members; i++)
        if (*stream_of(c, sum, i)) return true;
    return false;
}

static void set_busy(const ticker *c, int sum, bool busy) {
    for (int i = 0; i < c->costs->sums[sum].members; i++) *stream_of(c, sum, i) = busy;
}

/* Of those to which all have come, and whose streams have nothing under way, the one that they came to first; -1: none. */
static int next_sum(const ticker *c) {
    int next = -1;
    for (int k = 0; k < c->costs->n_sums; k++) {
        const progress *p = &c->sums[k];
        if (p->runs || p->ended || p->came < c->costs->sums[k].members || is_busy(c, k)) continue;
        if (next < 0 || p->begun < c->sums[next].begun) next = k;
    }
    return next;
}

static void begin_sums(ticker *c, double now) {
    for (int k; (k = next_sum(c)) >= 0;) {
        set_busy(c, k, c->sums[k].runs = true);
        push_event(c, (event){now, -1, 0, k + 1});
    }
}

static void come_to_sum(ticker *c, int sum, double now) {
    c->sums[sum].begun = now;
    if (++c->sums[sum].came == c->costs->sums[sum].members) begin_sums(c, now);
}

/* Sums that a rank comes to near the end of an operation, which is known. */
static void plan_sums(ticker *c, int rank, double end) {
    const dtm_rank_times *r = &c->times->rank[rank];
    for (size_t i = 0; i < c->of_rank[rank].count; i++) {
        part_in_sum part = c->of_rank[rank].items[i];
        const dtm_timeline_sum *sum = &c->costs->sums[part.sum];
        if (sum->operation[part.member] != r->done || sum->after[part.member] >= 0) continue;
        push_event(c, (event){fmax(r->start[r->done], end - sum->before[part.member]), rank, 0, part.sum + 1});
    }
}

/* What goes on from a sum: a rank comes to it when the first copy has been carried out. */
static void hand_on(ticker *c, int sum, double now) {
    const dtm_timeline_sum *from = &c->costs->sums[sum];
    int first = (int)ceil(from->pieces / from->copies);
    for (int i = 0; i < c->costs->sums[sum].members; i++) {
        const sums_of_rank *all = &c->of_rank[from->rank[i]];
        for (size_t n = 0; n < all->count; n++) {
            int k = all->items[n].sum;
            if (c->costs->sums[k].after[all->items[n].member] != sum) continue;
            if (c->sums[sum].moved == first) come_to_sum(c, k, now);
            if (!c->sums[k].waits) continue;
            c->sums[k].waits = false;
            push_event(c, (event){now, -1, 0, k + 1});
        }
    }
}

/* Whether what the next piece goes on from has been carried out. */
static bool may_move(const ticker *c, int sum) {
    const dtm_timeline_sum *own = &c->costs->sums[sum];
    for (int i = 0; i < c->costs->sums[sum].members; i++) {
        int from = own->after[i];
        if (from < 0) continue;
        double done = (double)c->sums[from].moved / c->costs->sums[from].pieces;
        if ((c->sums[sum].moved + 1.0) / own->pieces > done * (1 + 1e-9)) return false;
    }
    return true;
}

/* The next piece moves over the ways of all ranks that take part. */
static void move_piece(ticker *c, int sum, double now) {
    const dtm_timeline_sum *own = &c->costs->sums[sum];
    progress *p = &c->sums[sum];
    double ready = p->begun + own->span * p->moved / own->pieces, left = fmax(now, ready);
    if (p->moved < own->pieces && !may_move(c, sum)) {
        p->waits = true;
    } else if (p->moved < own->pieces && ready > now) {
        push_event(c, (event){ready, -1, 0, sum + 1});
    } else if (p->moved < own->pieces) {
        for (int i = 0; i < own->members; i++) left = fmax(left, fmax(c->out[own->rank[i]], c->in[own->rank[i]]));
        left += own->way / own->pieces;
        for (int i = 0; i < own->members; i++) c->out[own->rank[i]] = c->in[own->rank[i]] = left;
        push_event(c, (event){left + (own->time - own->way) / own->pieces, -1, 1, sum + 1});
    } else {
        p->ended = true;
        set_busy(c, sum, p->runs = false);
        c->times->sum_ended[sum] = now;
        begin_sums(c, now);
    }
}

static void end_piece(ticker *c, int sum, double now) {
    c->sums[sum].moved++;
    if (c->sums[sum].precedes) hand_on(c, sum, now);
    move_piece(c, sum, now);
}

/* ---- one operation ---- */

static void wait_for_group(ticker *c, int rank, const dtm_operation *o) {
    dtm_rank_times *r = &c->times->rank[rank];
    double begin = c->free[rank], end = begin, data = begin;
    if (!arrived(c, rank, o, &end, &data) || c->parts[rank]) return;
    r->start[r->done] = begin;
    r->exposed += end - fmax(begin, data);
    add_event(c, end, rank, 0);
}

/* A task that ends at some time, and makes its result then, or, of a B whose I and W are apart, when its I has ended. */
static void end_task(ticker *c, int rank, const dtm_task *task, int made, double end) {
    double weight = c->costs->stage[dtm_timeline_stage(c->timeline, rank, task->chunk)].weight;
    double input = fmax(c->times->rank[rank].start[c->times->rank[rank].done], end - weight);
    if (task->kind != DTM_TASK_BACKWARD || !c->costs->divided) {
        add_event(c, end, rank, made);
        return;
    }
    add_event(c, input, rank, made);
    add_event(c, end, rank, 0);
}

/* Of a pair that takes turns F goes first, and its result is sent when it is there; the other part may come to it later. */
static void end_second(ticker *c, int rank, const dtm_operation *o) {
    const dtm_rank_times *r = &c->times->rank[rank];
    double other = c->free[rank], data = other;
    c->waits[rank] = !task_needs(c, rank, o, o->tasks[1], &other, &data);
    if (c->waits[rank]) return;
    other += dtm_task_time(c->costs, (dtm_task_kind)o->tasks[1].kind, dtm_timeline_stage(c->timeline, rank, o->tasks[1].chunk));
    double end = fmax(r->start[r->done] + operation_time(c, rank, o), other);
    end_task(c, rank, &o->tasks[1], SECOND, end);
    plan_sums(c, rank, end);
}

static void begin_operation(ticker *c, int rank, const dtm_operation *o) {
    dtm_rank_times *r = &c->times->rank[rank];
    double begin = c->free[rank], data = begin;
    if (!needed(c, rank, o, &begin, &data)) return;
    double whole = operation_time(c, rank, o);
    r->start[r->done] = begin;
    r->exposed += begin - (dtm_fault(73) ? c->free[rank] : data);
    if (!takes_turns(c, o)) plan_sums(c, rank, begin + whole);
    if (o->kind == DTM_OPERATION_TASK) {
        end_task(c, rank, &o->tasks[0], FIRST, begin + whole);
    } else if (!takes_turns(c, o)) {
        add_event(c, begin + whole, rank, FIRST | SECOND);
    } else {
        const dtm_stage_cost *f = &c->costs->stage[dtm_timeline_stage(c->timeline, rank, o->tasks[0].chunk)];
        add_event(c, begin + fmin(whole, f->forward + f->later), rank, FIRST);
        end_second(c, rank, o);
    }
}

/* Begins what a rank has next, if all that it needs is known. */
static void go_on(ticker *c, int rank) {
    const dtm_operation *o = operation_of(c, rank);
    if (!o) return;
    if (c->waits[rank]) end_second(c, rank, o);
    if (c->parts[rank] || c->waits[rank]) return;
    if (o->kind == DTM_OPERATION_GROUP) wait_for_group(c, rank, o);
    else begin_operation(c, rank, o);
}

static void end_operation(ticker *c, event e, const dtm_operation *o) {
    dtm_rank_times *r = &c->times->rank[e.rank];
    if (o->kind != DTM_OPERATION_GROUP) r->busy += fmin(e.time - r->start[r->done], operation_time(c, e.rank, o));
    r->end[r->done++] = c->free[e.rank] = e.time;
    c->posts[e.rank] = false;
}

static void end_part(ticker *c, event e) {
    const dtm_operation *o = operation_of(c, e.rank);
    bool all = --c->parts[e.rank] == 0 && !c->waits[e.rank], pair = o->kind == DTM_OPERATION_PAIR;
    if (all) end_operation(c, e, o);
    for (int i = 0; i < timeline_n_tasks(o); i++)
        if (e.made & 1 << i) c->message[dtm_timeline_number(c->timeline, e.rank, o->tasks[i])].made = e.time;
    for (int i = 0; i < timeline_n_tasks(o); i++)
        if (e.made & 1 << i) send(c, e.rank, o->tasks[i], e.time);
    for (int i = 0; i < timeline_n_tasks(o); i++)
        if (pair ? all : e.made & 1 << i) use_up(c, e.rank, o->tasks[i], e.time);
    go_on(c, e.rank);
}

/* ---- all of it ---- */

static void add_to_channel(ticker *c, int rank, dtm_task task) {
    int chunk, to = dtm_timeline_sends(c->timeline, rank, task, &chunk);
    if (to < 0) return;
    channel *ch = channel_of(c, rank, to, &task);
    uint32_t number = dtm_timeline_number(c->timeline, rank, task);
    size_t capacity = ch->capacity;
    c->place[number] = ch->count;
    ch->made = dtm_arena_grow(c->arena, ch->made, ch->count, &capacity, sizeof *ch->made);
    ch->capacity = (uint32_t)capacity;
    ch->made[ch->count++] = number;
}

static void find_channels(ticker *c) {
    const dtm_timeline *t = c->timeline;
    if (t->groups || (!c->costs->slots && !c->costs->buffers)) return;
    c->channels = dtm_arena_alloc(c->arena, (size_t)t->ranks * CHANNELS * sizeof *c->channels);
    c->place = dtm_arena_alloc(c->arena, dtm_timeline_numbers(t) * sizeof *c->place);
    for (int r = 0; r < t->ranks; r++)
        for (size_t i = 0; i < t->order[r].count; i++)
            for (int k = 0; k < timeline_n_tasks(&t->order[r].operations[i]); k++)
                add_to_channel(c, r, t->order[r].operations[i].tasks[k]);
}

/* Returns how many events there can be of them at a time. */
static size_t find_sums(ticker *c) {
    int ranks = c->timeline->ranks, n = c->costs->n_sums;
    size_t events = 0;
    c->sums = dtm_arena_alloc(c->arena, (size_t)n * sizeof *c->sums);
    c->of_rank = dtm_arena_alloc(c->arena, (size_t)ranks * sizeof *c->of_rank);
    c->busy = dtm_arena_alloc(c->arena, (size_t)ranks * STREAMS);
    for (int k = 0; k < n; k++) {
        const dtm_timeline_sum *sum = &c->costs->sums[k];
        c->times->sum_ended[k] = NAN;
        for (int i = 0; i < sum->members; i++) {
            sums_of_rank *of = &c->of_rank[sum->rank[i]];
            DTM_PUSH(c->arena, of->items, of->count, of->capacity, ((part_in_sum){k, i}));
            if (sum->after[i] >= 0) c->sums[sum->after[i]].precedes = true;
        }
        events += (size_t)sum->members + 2;
    }
    return events;
}

/* A rank's part ends when its last operation has, and its last messages have left. */
static void end_ranks(ticker *c) {
    const dtm_timeline *t = c->timeline;
    for (int r = 0; r < t->ranks; r++) {
        dtm_rank_times *times = &c->times->rank[r];
        if (!times->done) continue;
        times->first = times->start[0];
        times->last = times->end[times->done - 1];
        for (int k = 0; c->channels && c->costs->buffers && k < CHANNELS; k++) {
            const channel *ch = &c->channels[r * CHANNELS + k];
            if (ch->count) times->last = fmax(times->last, c->message[ch->made[ch->count - 1]].left);
        }
    }
}

void timeline_clock(const dtm_timeline *t, const dtm_timeline_costs *costs, dtm_timeline_times *times) {
    size_t tasks = dtm_timeline_numbers(t), ranks = (size_t)t->ranks;
    dtm_arena *arena = dtm_arena_create();
    ticker c = {.timeline = t, .costs = costs, .times = times, .arena = arena, .message = times->message};
    for (size_t i = 0; i < tasks; i++) times->message[i] = (dtm_message_times){NAN, NAN, NAN, NAN};
    for (int k = 0; k < 2 && t->groups; k++) {
        c.posted[k] = dtm_arena_alloc(arena, tasks * sizeof(double));
        for (size_t i = 0; i < tasks; i++) c.posted[k][i] = NAN;
    }
    c.out = dtm_arena_alloc(arena, ranks * sizeof *c.out);
    c.in = dtm_arena_alloc(arena, ranks * sizeof *c.in);
    c.free = dtm_arena_alloc(arena, ranks * sizeof *c.free);
    c.parts = dtm_arena_alloc(arena, ranks * sizeof *c.parts);
    c.waits = dtm_arena_alloc(arena, ranks * sizeof *c.waits);
    c.posts = dtm_arena_alloc(arena, ranks * sizeof *c.posts);
    size_t events = 3 * ranks + find_sums(&c);
    c.heap = dtm_arena_alloc(arena, events * sizeof *c.heap);
    find_channels(&c);
    for (int r = 0; r < t->ranks; r++) go_on(&c, r);
    while (c.count) {
        event e = next_event(&c);
        if (!e.sum) end_part(&c, e);
        else if (e.rank >= 0) come_to_sum(&c, e.sum - 1, e.time);
        else if (e.made) end_piece(&c, e.sum - 1, e.time);
        else move_piece(&c, e.sum - 1, e.time);
    }
    end_ranks(&c);
    dtm_arena_destroy(arena);
}
