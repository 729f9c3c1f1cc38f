/* The messages of a timeline that has its communication written out, in groups (timeline_prove.h): each result that goes to
 * another rank is sent once, after it is made and before the next one of its channel (as many later as there are send
 * buffers), received once, before it is used, and the receives of each channel stand in the order of its sends. */
#include "ir/fault.h"
#include "passes/timeline_prove.h"

#include <string.h>

typedef struct checker {
    dtm_context *context;
    dtm_arena *arena;
    const dtm_timeline *timeline;
    timeline_messages *messages;
    bool *made;               /* by task: it has been done, seen from its own rank */
    const dtm_message **sent, **received; /* by task */
    const dtm_message ***sends, ***receives; /* by channel, in order */
    uint32_t *n_receives, *alive; /* by channel; alive: received and not yet used */
    size_t *capacity;
    uint32_t slots;
    const dtm_message *fills; /* the receive that first takes so many */
    bool failed;
} checker;

static const char *story(const checker *k, int rank, dtm_task task) {
    return timeline_task_story(k->arena, k->timeline, rank, task);
}

static void fail(checker *k, dtm_span span, const char *message) {
    dtm_error(k->context, span, 908, "%s", message);
    k->failed = true;
}

/* Of a message that is missing: whoever writes out one may think that the others still follow from the order. */
static void help_all(checker *k) {
    dtm_help(k->context, "once one message is written in a group, all must be: each is sent in one, [S:F0>1], and received in one, "
                         "[R:F0<0]; without any group they follow from the order");
}

static void push(checker *k, const dtm_message ***lists, uint32_t *counts, size_t *capacity, uint32_t channel,
                 const dtm_message *m) {
    lists[channel] = dtm_arena_grow(k->arena, lists[channel], counts[channel], &capacity[channel], sizeof **lists);
    lists[channel][counts[channel]++] = m;
}

static void message(checker *k, int rank, const dtm_message *m) {
    const dtm_timeline *t = k->timeline;
    int from = m->receive ? m->peer : rank, to = m->receive ? rank : m->peer, chunk;
    uint32_t number = dtm_timeline_number(t, from, m->made);
    if (dtm_timeline_sends(t, from, m->made, &chunk) != to) {
        int right = dtm_timeline_sends(t, from, m->made, &chunk);
        fail(k, m->span,
             right < 0 ? dtm_arena_printf(k->arena, "%s of rank %d goes to no other rank", story(k, from, m->made), from)
                       : dtm_arena_printf(k->arena, "%s of rank %d goes to rank %d, not to rank %d", story(k, from, m->made),
                                          from, right, to));
        return;
    }
    const dtm_message **before = m->receive ? k->received : k->sent;
    uint32_t channel = timeline_channel(t, from, to, m->made.kind != DTM_TASK_FORWARD);
    if (before[number]) {
        fail(k, m->span, dtm_arena_printf(k->arena, "rank %d %s %s twice", rank, m->receive ? "receives" : "sends",
                                          story(k, from, m->made)));
    } else if (!m->receive && !k->made[number] && !dtm_fault(69)) {
        fail(k, m->span, dtm_arena_printf(k->arena, "rank %d sends %s before it is made", rank, story(k, from, m->made)));
    }
    before[number] = m;
    if (m->receive) {
        push(k, k->receives, k->n_receives, k->capacity + (size_t)t->ranks * CHANNELS, channel, m);
        if (++k->alive[channel] > k->slots) k->slots = k->alive[channel], k->fills = m;
    } else {
        push(k, k->sends, k->messages->count, k->capacity, channel, m);
    }
}

static void operation(checker *k, int rank, const dtm_operation *o) {
    const dtm_timeline *t = k->timeline;
    if (o->kind == DTM_OPERATION_GROUP) {
        for (uint32_t i = 0; i < o->n_messages && !k->failed; i++) message(k, rank, &t->order[rank].messages[o->message + i]);
        return;
    }
    for (int i = 0; i < (o->kind == DTM_OPERATION_PAIR ? 2 : 1) && !k->failed; i++) {
        dtm_task_place needs[2];
        int n = dtm_timeline_needs(t, rank, o->tasks[i], needs);
        k->made[dtm_timeline_number(t, rank, o->tasks[i])] = true;
        if (n == 0 || needs[n - 1].rank == rank) continue;
        dtm_task task = needs[n - 1].task;
        if (task.kind == DTM_TASK_INPUT) task.kind = DTM_TASK_BACKWARD;
        if (!k->received[dtm_timeline_number(t, needs[n - 1].rank, task)]) {
            fail(k, o->span,
                 dtm_arena_printf(k->arena, "rank %d does %s before it has received %s from rank %d", rank,
                                  story(k, rank, o->tasks[i]), story(k, needs[n - 1].rank, task), needs[n - 1].rank));
            help_all(k);
        } else k->alive[timeline_channel(t, needs[n - 1].rank, rank, o->tasks[i].kind != DTM_TASK_FORWARD)]--;
    }
}

/* Every receive is used on its rank, so a result without a receive has been found; one received is here found sent. */
static void compare(checker *k, int from, uint32_t channel) {
    uint32_t n = k->n_receives[channel], sent = k->messages->count[channel];
    for (uint32_t i = 0; i < n || i < sent; i++) {
        const dtm_message *s = i < sent ? k->sends[channel][i] : NULL, *r = i < n ? k->receives[channel][i] : NULL;
        if (s && r && (memcmp(&s->made, &r->made, sizeof s->made) == 0 || dtm_fault(68))) continue;
        if (!s) {
            fail(k, r->span, dtm_arena_printf(k->arena, "rank %d never sends %s", from, story(k, from, r->made)));
            help_all(k);
        } else {
            int to = s->peer;
            dtm_error(k->context, r ? r->span : s->span, 904,
                      "messages cross: number %u of the channel %c from rank %d to rank %d "
                      "is %s, but rank %d takes it for %s",
                      i, channel % 2 ? 'B' : 'F', from, to, story(k, from, s->made), to, r ? story(k, from, r->made) : "none");
            if (r && s->span.file) dtm_note(k->context, s->span, "here it is sent");
            dtm_help(k->context, "put the receives in the order of the sends");
            k->failed = true;
        }
        return;
    }
}

/* A result is made only when the one so many before it has been sent: a rank that would send that one later stands still. */
static void check_unsent(checker *k, int rank, uint32_t send_buffers) {
    const dtm_timeline *t = k->timeline;
    const dtm_rank_order *order = &t->order[rank];
    uint32_t unsent[CHANNELS] = {0}, first = (uint32_t)rank * CHANNELS;
    for (size_t i = 0; i < order->count && !k->failed; i++) {
        const dtm_operation *o = &order->operations[i];
        for (uint32_t m = o->message; o->kind == DTM_OPERATION_GROUP && m < o->message + o->n_messages; m++) {
            const dtm_message *sent = &order->messages[m];
            if (!sent->receive) unsent[timeline_channel(t, rank, sent->peer, sent->made.kind != DTM_TASK_FORWARD) - first]--;
        }
        for (int j = 0; o->kind != DTM_OPERATION_GROUP && j < (o->kind == DTM_OPERATION_PAIR ? 2 : 1); j++) {
            int chunk, to = dtm_timeline_sends(t, rank, o->tasks[j], &chunk);
            if (to < 0 || ++unsent[timeline_channel(t, rank, to, o->tasks[j].kind != DTM_TASK_FORWARD) - first] <= send_buffers)
                continue;
            dtm_error(k->context, o->span, 905,
                      "the timeline stands still: rank %d does %s before it has sent what it made %s for rank %d: there %s",
                      rank, story(k, rank, o->tasks[j]), send_buffers == 1 ? "last" : "earlier", to,
                      send_buffers == 1 ? "is one send buffer a channel"
                                        : dtm_arena_printf(k->arena, "are %u send buffers a channel", send_buffers));
            dtm_help(k->context, "send each result before the next one for the same rank is made");
            k->failed = true;
            return;
        }
    }
}

bool timeline_check_groups(dtm_context *context, dtm_arena *arena, const dtm_timeline *t, timeline_messages *messages,
                           uint32_t send_buffers, int *slots, const dtm_message **fills) {
    size_t tasks = dtm_timeline_numbers(t), channels = (size_t)t->ranks * CHANNELS;
    checker k = {context, arena, t, messages};
    k.made = dtm_arena_alloc(arena, tasks);
    k.sent = dtm_arena_alloc(arena, tasks * sizeof *k.sent);
    k.received = dtm_arena_alloc(arena, tasks * sizeof *k.received);
    k.sends = dtm_arena_alloc(arena, channels * sizeof *k.sends);
    k.receives = dtm_arena_alloc(arena, channels * sizeof *k.receives);
    k.n_receives = dtm_arena_alloc(arena, channels * sizeof *k.n_receives);
    k.alive = dtm_arena_alloc(arena, channels * sizeof *k.alive);
    k.capacity = dtm_arena_alloc(arena, 2 * channels * sizeof *k.capacity);
    messages->count = dtm_arena_alloc(arena, channels * sizeof *messages->count);
    for (int r = 0; r < t->ranks; r++)
        for (size_t i = 0; i < t->order[r].count && !k.failed; i++) operation(&k, r, &t->order[r].operations[i]);
    for (uint32_t c = 0; c < channels && !k.failed; c++) compare(&k, (int)(c / CHANNELS), c);
    for (int r = 0; r < t->ranks && !dtm_fault(70); r++) check_unsent(&k, r, send_buffers);
    *slots = k.slots ? (int)k.slots : 1;
    *fills = k.fills;
    return !k.failed;
}
