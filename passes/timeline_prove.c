/* The proof that a timeline is right (timeline.h): what is in it, which messages meet, that nothing stands still, and what
 * memory it takes. Each part rests on those before it, so the first that fails ends the proof. */
#include "ir/fault.h"
#include "passes/timeline_prove.h"

#include <math.h>
#include <string.h>

typedef struct prover {
    dtm_context *context;
    const dtm_timeline *timeline;
    dtm_arena *arena;   /* of the proof itself */
    uint32_t *at;       /* by task: 1 + the operation it stands in; 0: nowhere. A B stands for its I and its W */
    timeline_messages messages;
    uint32_t send_buffers;
    const dtm_message *fills; /* of a timeline with groups: the receive that takes the last of its slots */
    int errors;
} prover;

enum { MOST_ERRORS = 5 };

const char *timeline_task_story(dtm_arena *arena, const dtm_timeline *t, int rank, dtm_task task) {
    const char *way = t->directions == 1 ? "" : task.chunk ? " in direction 1" : " in direction 0";
    return dtm_arena_printf(arena, "%c%u of stage %d%s", DTM_TASK_LETTERS[task.kind], task.microbatch,
                            dtm_timeline_stage(t, rank, task.chunk), way);
}

static int n_tasks(const dtm_operation *o) {
    return o->kind == DTM_OPERATION_GROUP ? 0 : o->kind == DTM_OPERATION_PAIR ? 2 : 1;
}

static const char *story(prover *p, int rank, dtm_task task) {
    return timeline_task_story(p->arena, p->timeline, rank, task);
}

static const dtm_operation *operation(const prover *p, int rank, uint32_t index) {
    return &p->timeline->order[rank].operations[index];
}

/* ---- each task once, and in its place ---- */

static void seen(prover *p, int rank, uint32_t index, dtm_task task, dtm_task_kind part) {
    uint32_t number = dtm_timeline_number(p->timeline, rank, (dtm_task){task.microbatch, task.chunk, (uint8_t)part});
    if (p->at[number] == 0) {
        p->at[number] = index + 1;
        return;
    }
    if (task.kind == DTM_TASK_BACKWARD && part == DTM_TASK_WEIGHT) return; /* its I was twice already */
    const dtm_operation *first = operation(p, rank, p->at[number] - 1);
    bool whole =
        task.kind == DTM_TASK_BACKWARD || (n_tasks(first) && first->tasks[n_tasks(first) - 1].kind == DTM_TASK_BACKWARD);
    dtm_error(p->context, operation(p, rank, index)->span, 903, "rank %d does %s twice%s", rank, story(p, rank, task),
              whole && part != DTM_TASK_FORWARD ? " (a B is an I and a W)" : "");
    if (first->span.file) dtm_note(p->context, first->span, "it stands here already");
    p->errors++;
}

static void find_tasks(prover *p, int rank) {
    const dtm_rank_order *order = &p->timeline->order[rank];
    for (uint32_t i = 0; i < order->count && p->errors < MOST_ERRORS; i++)
        for (int k = 0; k < n_tasks(&order->operations[i]); k++) {
            dtm_task task = order->operations[i].tasks[k];
            if (task.kind != DTM_TASK_BACKWARD) {
                seen(p, rank, i, task, (dtm_task_kind)task.kind);
            } else {
                seen(p, rank, i, task, DTM_TASK_INPUT);
                seen(p, rank, i, task, DTM_TASK_WEIGHT);
            }
        }
}

static bool lacks(const prover *p, int rank, int microbatch, int chunk, dtm_task_kind kind) {
    return !p->at[dtm_timeline_number(p->timeline, rank, (dtm_task){(uint32_t)microbatch, (uint16_t)chunk, (uint8_t)kind})];
}

static void missing(prover *p, int rank, int microbatch, int chunk, dtm_task_kind kind) {
    dtm_task task = {(uint32_t)microbatch, (uint16_t)chunk, (uint8_t)kind};
    dtm_rank_order *order = &p->timeline->order[rank];
    dtm_span end = order->count ? order->operations[order->count - 1].span : (dtm_span){0, 0, 0};
    dtm_error(p->context, end, 903, "rank %d never does %s", rank, story(p, rank, task));
    p->errors++;
}

/* Whether each task of a rank is there, after what it needs of the rank itself. */
static void check_tasks(prover *p, int rank) {
    const dtm_timeline *t = p->timeline;
    for (int c = 0; c < t->chunks; c++)
        for (int m = 0; m < dtm_timeline_passing(t, c) && p->errors < MOST_ERRORS; m++) {
            bool input = lacks(p, rank, m, c, DTM_TASK_INPUT), weight = !dtm_fault(58) && lacks(p, rank, m, c, DTM_TASK_WEIGHT);
            if (lacks(p, rank, m, c, DTM_TASK_FORWARD)) missing(p, rank, m, c, DTM_TASK_FORWARD);
            if (input && weight) missing(p, rank, m, c, DTM_TASK_BACKWARD); /* one B, not its two parts */
            else if (input) missing(p, rank, m, c, DTM_TASK_INPUT);
            else if (weight) missing(p, rank, m, c, DTM_TASK_WEIGHT);
        }
    for (uint32_t i = 0; i < t->order[rank].count && p->errors < MOST_ERRORS; i++) {
        const dtm_operation *o = operation(p, rank, i);
        for (int k = 0; k < n_tasks(o); k++) {
            dtm_task_place needs[2];
            int n = dtm_timeline_needs(t, rank, o->tasks[k], needs);
            for (int j = 0; j < n; j++) {
                uint32_t at = p->at[dtm_timeline_number(t, needs[j].rank, needs[j].task)];
                if (needs[j].rank != rank || at <= i + dtm_fault(59) || at == 0) continue;
                dtm_error(p->context, o->span, 903, "rank %d does %s %s %s, which it needs", rank, story(p, rank, o->tasks[k]),
                          at == i + 1 ? "at once with" : "before", story(p, rank, needs[j].task));
                p->errors++;
            }
        }
    }
}

/* ---- which messages meet ---- */

typedef struct list {
    uint32_t **items, *count, *capacity;
} list;

static void push(prover *p, uint32_t **items, uint32_t *counts, size_t *capacity, uint32_t channel, uint32_t item) {
    size_t count = counts[channel];
    items[channel] = dtm_arena_grow(p->arena, items[channel], count, &capacity[channel], sizeof **items);
    items[channel][counts[channel]++] = item;
}

/* A channel's clash: at a place the one side has another message than the other. */
static bool clash(prover *p, int from, int to, bool backward, uint32_t place, dtm_task sent, dtm_span sent_at, dtm_task wanted,
                  dtm_span wanted_at) {
    if (backward) sent.kind = wanted.kind = DTM_TASK_BACKWARD;
    dtm_error(p->context, wanted_at, 904,
              "messages cross: number %u of the channel %c from rank %d to rank %d is %s, but rank %d "
              "takes it for %s",
              place, backward ? 'B' : 'F', from, to, story(p, from, sent), to, story(p, from, wanted));
    if (sent_at.file) dtm_note(p->context, sent_at, "here it is sent");
    dtm_help(p->context, "put the operations of either rank in the order of the other");
    p->errors++;
    return false;
}

static dtm_task maker_task(const dtm_operation *o, bool backward) {
    return o->tasks[o->kind == DTM_OPERATION_PAIR && backward];
}

/* The makers of all channels, in the order of their sources. */
static void find_makers(prover *p, size_t *capacity) {
    const dtm_timeline *t = p->timeline;
    for (int r = 0; r < t->ranks; r++)
        for (uint32_t i = 0; i < t->order[r].count; i++) {
            const dtm_operation *o = operation(p, r, i);
            for (int k = 0; k < n_tasks(o); k++) {
                int chunk, to = dtm_timeline_sends(t, r, o->tasks[k], &chunk);
                if (to < 0) continue;
                uint32_t channel = timeline_channel(t, r, to, o->tasks[k].kind != DTM_TASK_FORWARD);
                p->messages.place[dtm_timeline_number(t, r, o->tasks[k])] = p->messages.count[channel];
                push(p, p->messages.makers, p->messages.count, capacity, channel, i);
            }
        }
}

/* Users, in the order of their ranks; each must take what the source sends at that place. */
static bool meet_users(prover *p, uint32_t *used, size_t *capacity) {
    const dtm_timeline *t = p->timeline;
    for (int r = 0; r < t->ranks; r++)
        for (uint32_t i = 0; i < t->order[r].count; i++) {
            const dtm_operation *o = operation(p, r, i);
            for (int k = 0; k < n_tasks(o); k++) {
                dtm_task_place needs[2];
                int n = dtm_timeline_needs(t, r, o->tasks[k], needs);
                if (n == 0 || needs[n - 1].rank == r) continue;
                int from = needs[n - 1].rank;
                bool backward = o->tasks[k].kind != DTM_TASK_FORWARD;
                uint32_t channel = timeline_channel(t, from, r, backward), place = used[channel];
                bool same = p->messages.place[dtm_timeline_number(t, from, needs[n - 1].task)] == place;
                if (!same && !(dtm_fault(60) && backward)) {
                    const dtm_operation *maker = operation(p, from, p->messages.makers[channel][place]);
                    return clash(p, from, r, backward, place, maker_task(maker, backward), maker->span, needs[n - 1].task,
                                 o->span);
                }
                push(p, p->messages.users, used, capacity, channel, i);
            }
        }
    return true;
}

static bool match_messages(prover *p) {
    const dtm_timeline *t = p->timeline;
    size_t channels = (size_t)t->ranks * CHANNELS, *capacity = dtm_arena_alloc(p->arena, 2 * channels * sizeof *capacity);
    uint32_t *used = dtm_arena_alloc(p->arena, channels * sizeof *used);
    p->messages.place = dtm_arena_alloc(p->arena, dtm_timeline_numbers(t) * sizeof *p->messages.place);
    p->messages.count = dtm_arena_alloc(p->arena, channels * sizeof *p->messages.count);
    p->messages.makers = dtm_arena_alloc(p->arena, channels * sizeof *p->messages.makers);
    p->messages.users = dtm_arena_alloc(p->arena, channels * sizeof *p->messages.users);
    find_makers(p, capacity);
    return meet_users(p, used, capacity + channels);
}

/* ---- nothing stands still ---- */

/* What the rank is at: the task of its next operation that waits, or its group. */
static const char *place_of(prover *p, const timeline_run *run, int rank) {
    const dtm_operation *o = operation(p, rank, (uint32_t)run->done[rank]);
    if (o->kind == DTM_OPERATION_GROUP) return "a group of messages";
    if (o->kind == DTM_OPERATION_TASK) return story(p, rank, o->tasks[0]);
    return dtm_arena_printf(p->arena, "%s with %s", story(p, rank, o->tasks[0]), story(p, rank, o->tasks[1]));
}

static const char *wait_story(prover *p, const timeline_run *run, int rank) {
    const timeline_wait *w = &run->waits[rank];
    const char *at = place_of(p, run, rank);
    dtm_task task = w->task;
    bool forward = task.kind == DTM_TASK_FORWARD;
    switch (w->reason) {
    case WAITS_FOR_TASK:
        if (!forward) task.kind = DTM_TASK_BACKWARD;
        return dtm_arena_printf(p->arena, "rank %d, at %s, waits for %s from rank %d", rank, at, story(p, w->rank, task),
                                w->rank);
    case WAITS_FOR_SLOT:
        return dtm_arena_printf(p->arena, "rank %d, at %s, waits until rank %d has used %s and a slot is free", rank, at,
                                w->rank, story(p, rank, task));
    case WAITS_FOR_PARTNER: break;
    }
    const dtm_operation *o = operation(p, rank, (uint32_t)run->done[rank]);
    bool receive = false;
    for (uint32_t i = 0; i < o->n_messages; i++) {
        const dtm_message *m = &p->timeline->order[rank].messages[o->message + i];
        if (m->peer == w->rank && memcmp(&m->made, &w->task, sizeof m->made) == 0) receive = m->receive;
    }
    return dtm_arena_printf(p->arena, "rank %d, at %s, waits for rank %d to %s %s", rank, at, w->rank,
                            receive ? "send" : "receive", story(p, receive ? w->rank : rank, task));
}

/* From a rank that stands still follows whom it waits for, until one comes again: the cycle. */
static void tell_cycle(prover *p, const timeline_run *run, int code, const char *what) {
    const dtm_timeline *t = p->timeline;
    bool *met = dtm_arena_alloc(p->arena, (size_t)t->ranks);
    int rank = 0, length = 0;
    while (run->done[rank] == t->order[rank].count) rank++;
    for (; !met[rank]; rank = run->waits[rank].rank) {
        met[rank] = true;
        if (run->done[rank] == t->order[rank].count) break; /* never: contents and messages have been checked */
    }
    int first = rank;
    do length++, rank = run->waits[rank].rank;
    while (rank != first && length <= t->ranks);
    dtm_error(p->context, operation(p, first, (uint32_t)run->done[first])->span, code, length == 1 ? "%s: %d rank waits for itself" : "%s: %d ranks wait for each other",
              what, length);
    for (int i = 0; i < length; i++, rank = run->waits[rank].rank)
        dtm_note(p->context, operation(p, rank, (uint32_t)run->done[rank])->span, "%s%s", wait_story(p, run, rank),
                 i < length - 1 ? ", which" : ", where this began");
    p->errors++;
}

/* The fewest receive slots with which nothing stands still, from `slots` on. */
static int fewest_slots(prover *p, uint32_t send_buffers, int slots) {
    int enough = slots, low = slots - 1; /* low does not suffice */
    while (timeline_run_with(p->arena, p->timeline, &p->messages, send_buffers + (uint32_t)enough).stuck)
        low = enough, enough *= 2;
    while (enough - low > 1) {
        int middle = low + (enough - low) / 2;
        if (timeline_run_with(p->arena, p->timeline, &p->messages, send_buffers + (uint32_t)middle).stuck) low = middle;
        else enough = middle;
    }
    return enough;
}

static const char *too_few(prover *p, int slots) {
    return dtm_arena_printf(p->arena, "%d receive slot%s a channel %s too few", slots, slots == 1 ? "" : "s",
                            slots == 1 ? "is" : "are");
}

/* Written-out receives take their slots whatever happens: only the number counts. */
static bool groups_fit(prover *p, int given, dtm_timeline_proof *proof) {
    if (given <= 0) return true;
    if (given < proof->slots) {
        dtm_error(p->context, p->fills->span, 906, "%s: with this receive, %d messages are not used yet", too_few(p, given),
                  proof->slots); /* more than one: at least one slot was given */
        dtm_help(p->context, "%d slots a channel do", proof->slots);
        p->errors++;
        return false;
    }
    proof->slots = given;
    return true;
}

static bool runs(prover *p, const dtm_timeline_limits *limits, dtm_timeline_proof *proof) {
    uint32_t send_buffers = p->send_buffers;
    timeline_run run = timeline_run_with(p->arena, p->timeline, &p->messages, 0);
    if (run.stuck) {
        tell_cycle(p, &run, 905, "the timeline stands still");
        return false;
    }
    if (p->timeline->groups) return groups_fit(p, limits->receive_slots, proof);
    proof->ample = run.ample > 0 ? run.ample : 1;
    if (limits->receive_slots <= 0) {
        proof->slots = fewest_slots(p, send_buffers, 1);
        return true;
    }
    proof->slots = limits->receive_slots;
    run = timeline_run_with(p->arena, p->timeline, &p->messages, send_buffers + (uint32_t)proof->slots + dtm_fault(61));
    if (!run.stuck) return true;
    tell_cycle(p, &run, 906, too_few(p, proof->slots));
    dtm_help(p->context, "%d slots a channel do", fewest_slots(p, send_buffers, proof->slots + 1));
    return false;
}

/* ---- memory ---- */

static double largest_message(const dtm_timeline *t, const dtm_timeline_costs *costs, int from, uint32_t channel) {
    double bytes = 0;
    for (int c = 0; c < t->chunks; c++)
        for (int backward = 0; backward < 2; backward++) {
            int chunk, to = dtm_timeline_sends(
                           t, from, (dtm_task){0, (uint16_t)c, backward ? DTM_TASK_INPUT : DTM_TASK_FORWARD}, &chunk);
            if (to < 0 || timeline_channel(t, from, to, backward) != channel) continue;
            const dtm_stage_cost *stage = &costs->stage[dtm_timeline_stage(t, from, c)];
            bytes = fmax(dtm_fault(63) ? 0 : bytes, backward ? stage->backward_bytes : stage->forward_bytes);
        }
    return bytes;
}

/* Bytes alive after each operation of a rank; returns the most and the operation where it is reached. */
static double most_kept(const prover *p, const dtm_timeline_costs *costs, int rank, uint32_t *where) {
    const dtm_timeline *t = p->timeline;
    double alive = 0, most = 0;
    for (uint32_t i = 0; i < t->order[rank].count; i++) {
        const dtm_operation *o = operation(p, rank, i);
        double gives = 0;
        for (int k = 0; k < n_tasks(o); k++) {
            const dtm_stage_cost *stage = &costs->stage[dtm_timeline_stage(t, rank, o->tasks[k].chunk)];
            alive += dtm_task_keeps(stage, o->tasks[k].kind);
            gives += o->tasks[k].kind == DTM_TASK_INPUT && dtm_fault(64) ? stage->kept : dtm_task_frees(stage, o->tasks[k].kind);
        }
        if (dtm_fault(62)) alive -= gives, gives = 0;
        if (alive > most) most = alive, *where = i;
        alive -= gives;
    }
    return most;
}

static bool memory(prover *p, dtm_arena *arena, const dtm_timeline_costs *costs, double bound, dtm_timeline_proof *proof) {
    const dtm_timeline *t = p->timeline;
    proof->rank = dtm_arena_alloc(arena, (size_t)t->ranks * sizeof *proof->rank);
    for (int r = 0; r < t->ranks; r++)
        for (uint32_t c = 0; c < CHANNELS; c++) {
            uint32_t channel = (uint32_t)r * CHANNELS + c;
            int to = (r + (c < 2 ? 1 : t->ranks - 1)) % t->ranks;
            if (p->messages.count[channel]) proof->rank[to].messages += proof->slots * largest_message(t, costs, r, channel);
        }
    for (int r = 0; r < t->ranks; r++) {
        dtm_rank_memory *m = &proof->rank[r];
        uint32_t where = 0;
        m->kept = most_kept(p, costs, r, &where);
        m->held = dtm_held_bytes(costs, t, r);
        double all = m->held + m->kept + m->messages;
        if (bound <= 0 || all <= bound * (1 + 1e-12) || p->errors >= MOST_ERRORS) continue;
        const dtm_operation *o = operation(p, r, where);
        dtm_text text = {p->arena, NULL, 0, 0};
        dtm_text_number(&text, all);
        dtm_text_printf(&text, ", it has ");
        dtm_text_number(&text, bound);
        dtm_error(p->context, o->span, 907, "rank %d needs memory of %s, at %s", r, text.data, story(p, r, o->tasks[0]));
        text.length = 0;
        dtm_text_number(&text, m->held);
        dtm_text_printf(&text, " for what its stages hold, ");
        dtm_text_number(&text, m->kept);
        dtm_text_printf(&text, " for activations, ");
        dtm_text_number(&text, m->messages);
        dtm_note(p->context, (dtm_span){0, 0, 0}, "%s for %d receive slot%s a channel", text.data, proof->slots,
                 proof->slots == 1 ? "" : "s");
        p->errors++;
    }
    return p->errors == 0;
}

/* ---- all of it ---- */

static bool prove(prover *p, dtm_arena *arena, const dtm_timeline_costs *costs, const dtm_timeline_limits *limits,
                  dtm_timeline_proof *proof) {
    const dtm_timeline *t = p->timeline;
    p->at = dtm_arena_alloc(p->arena, dtm_timeline_numbers(t) * sizeof *p->at);
    for (int r = 0; r < t->ranks; r++) find_tasks(p, r);
    for (int r = 0; r < t->ranks; r++) check_tasks(p, r);
    if (p->errors) return false;
    p->send_buffers = limits->send_buffers > 0 ? (uint32_t)limits->send_buffers : 1;
    if (t->groups ? !timeline_check_groups(p->context, p->arena, t, &p->messages, p->send_buffers, &proof->slots, &p->fills)
                  : !match_messages(p))
        return false;
    proof->ample = proof->slots;
    if (!runs(p, limits, proof)) return false;
    return !costs || memory(p, arena, costs, limits->memory, proof);
}

bool dtm_timeline_prove(dtm_context *context, dtm_arena *arena, const dtm_timeline *timeline, const dtm_timeline_costs *costs,
                        const dtm_timeline_limits *limits, dtm_timeline_proof *proof) {
    dtm_timeline_limits none = {0, 0, 0};
    prover p = {context, timeline, dtm_arena_create()};
    *proof = (dtm_timeline_proof){0};
    bool holds = prove(&p, arena, costs, limits ? limits : &none, proof);
    dtm_arena_destroy(p.arena);
    return holds;
}
