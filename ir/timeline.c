/* Timelines: places, dependencies, printing (timeline.h). */
#include "ir/timeline.h"

#include <string.h>

static const char *const placement_names[DTM_PLACEMENTS] = {"single", "loop", "v", "bidir"};

const char *dtm_placement_name(dtm_placement placement) { return placement_names[placement]; }

dtm_timeline *dtm_timeline_create(dtm_arena *arena, const char *name, dtm_placement placement, int ranks, int microbatches,
                                  int chunks) {
    bool bidirectional = placement == DTM_PLACE_BIDIRECTIONAL;
    if (ranks < 1 || microbatches < 1 || chunks < 1 || (placement == DTM_PLACE_SINGLE && chunks != 1) ||
        (bidirectional && chunks != 2))
        dtm_broken("timeline", "%s with P=%d M=%d V=%d", placement_names[placement], ranks, microbatches, chunks);
    dtm_timeline *t = dtm_arena_alloc(arena, sizeof *t);
    *t = (dtm_timeline){arena, name, placement, ranks, microbatches, chunks, .directions = bidirectional ? 2 : 1};
    t->stages = bidirectional ? ranks : ranks * chunks;
    t->order = dtm_arena_alloc(arena, (size_t)ranks * sizeof *t->order);
    return t;
}

dtm_timeline *dtm_timeline_like(dtm_arena *arena, const dtm_timeline *t) {
    return dtm_timeline_create(arena, t->name, t->placement, t->ranks, t->microbatches, t->chunks);
}

dtm_timeline *dtm_timeline_copy(dtm_arena *arena, const dtm_timeline *t) {
    dtm_timeline *copy = dtm_timeline_like(arena, t);
    copy->name = dtm_arena_printf(arena, "%s", t->name);
    copy->groups = t->groups;
    for (int r = 0; r < t->ranks; r++) {
        const dtm_rank_order *of = &t->order[r];
        dtm_rank_order *to = &copy->order[r];
        *to = (dtm_rank_order){NULL, of->count, of->count, NULL, of->n_messages, of->n_messages};
        to->operations = dtm_arena_alloc(arena, of->count * sizeof *to->operations);
        to->messages = dtm_arena_alloc(arena, of->n_messages * sizeof *to->messages);
        if (of->count) memcpy(to->operations, of->operations, of->count * sizeof *to->operations);
        if (of->n_messages) memcpy(to->messages, of->messages, of->n_messages * sizeof *to->messages);
    }
    return copy;
}

/* ---- operations ---- */

void dtm_timeline_add_operation(dtm_timeline *t, int rank, dtm_operation operation) {
    dtm_rank_order *order = &t->order[rank];
    DTM_PUSH(t->arena, order->operations, order->count, order->capacity, operation);
}

void dtm_timeline_add(dtm_timeline *t, int rank, dtm_task_kind kind, int microbatch, int chunk) {
    dtm_operation operation = {DTM_OPERATION_TASK};
    operation.tasks[0] = (dtm_task){(uint32_t)microbatch, (uint16_t)chunk, (uint8_t)kind};
    dtm_timeline_add_operation(t, rank, operation);
}

void dtm_timeline_add_pair(dtm_timeline *t, int rank, dtm_task forward, dtm_task backward) {
    dtm_operation operation = {DTM_OPERATION_PAIR, {forward, backward}};
    dtm_timeline_add_operation(t, rank, operation);
}

/* ---- places ---- */

int dtm_timeline_stage(const dtm_timeline *t, int rank, int chunk) {
    switch (t->placement) {
    case DTM_PLACE_SINGLE: return rank;
    case DTM_PLACE_LOOP: return chunk * t->ranks + rank;
    case DTM_PLACE_V: return chunk * t->ranks + (chunk % 2 ? t->ranks - 1 - rank : rank);
    case DTM_PLACE_BIDIRECTIONAL: return chunk ? t->ranks - 1 - rank : rank;
    }
    return -1;
}

int dtm_timeline_direction(const dtm_timeline *t, int chunk) { return t->directions == 2 ? chunk : 0; }

int dtm_timeline_passing(const dtm_timeline *t, int chunk) {
    if (t->directions == 1) return t->microbatches;
    return chunk ? t->microbatches / 2 : t->microbatches - t->microbatches / 2;
}

void dtm_timeline_place(const dtm_timeline *t, int stage, int direction, int *rank, int *chunk) {
    if (t->placement == DTM_PLACE_BIDIRECTIONAL) {
        *chunk = direction;
        *rank = direction ? t->ranks - 1 - stage : stage;
        return;
    }
    *chunk = stage / t->ranks;
    *rank = stage % t->ranks;
    if (t->placement == DTM_PLACE_V && *chunk % 2) *rank = t->ranks - 1 - *rank;
}

int dtm_timeline_needs(const dtm_timeline *t, int rank, dtm_task task, dtm_task_place needs[2]) {
    int count = 0, chunk, stage = dtm_timeline_stage(t, rank, task.chunk);
    if (task.kind == DTM_TASK_WEIGHT) {
        task.kind = DTM_TASK_INPUT;
        needs[0] = (dtm_task_place){task, rank};
        return 1;
    }
    bool forward = task.kind == DTM_TASK_FORWARD;
    dtm_task_place own = {{task.microbatch, task.chunk, DTM_TASK_FORWARD}, rank}, other = {task, 0};
    if (!forward) needs[count++] = own;
    if (forward ? stage > 0 : stage < t->stages - 1) {
        dtm_timeline_place(t, forward ? stage - 1 : stage + 1, dtm_timeline_direction(t, task.chunk), &other.rank, &chunk);
        other.task.kind = forward ? DTM_TASK_FORWARD : DTM_TASK_INPUT;
        other.task.chunk = (uint16_t)chunk;
        needs[count++] = other;
    }
    return count;
}

int dtm_timeline_sends(const dtm_timeline *t, int rank, dtm_task task, int *chunk) {
    int to, stage = dtm_timeline_stage(t, rank, task.chunk);
    bool forward = task.kind == DTM_TASK_FORWARD;
    if (task.kind == DTM_TASK_WEIGHT || (forward ? stage == t->stages - 1 : stage == 0)) return -1;
    dtm_timeline_place(t, forward ? stage + 1 : stage - 1, dtm_timeline_direction(t, task.chunk), &to, chunk);
    return to == rank ? -1 : to;
}

/* ---- text ---- */

void dtm_task_print(const dtm_timeline *t, dtm_task task, dtm_text *text) {
    dtm_text_printf(text, "%c%u", DTM_TASK_LETTERS[task.kind], task.microbatch);
    if (t->chunks > 1) dtm_text_printf(text, ".%u", task.chunk);
}

static void print_operation(const dtm_timeline *t, const dtm_rank_order *order, const dtm_operation *o, dtm_text *text) {
    if (o->kind == DTM_OPERATION_TASK) {
        dtm_task_print(t, o->tasks[0], text);
    } else if (o->kind == DTM_OPERATION_PAIR) {
        dtm_text_printf(text, "(");
        dtm_task_print(t, o->tasks[0], text);
        dtm_text_printf(text, "+");
        dtm_task_print(t, o->tasks[1], text);
        dtm_text_printf(text, ")");
    } else {
        for (uint32_t i = 0; i < o->n_messages; i++) {
            const dtm_message *m = &order->messages[o->message + i];
            dtm_text_printf(text, "%s%c:", i ? " " : "[", m->receive ? 'R' : 'S');
            dtm_task_print(t, m->made, text);
            dtm_text_printf(text, "%c%d", m->receive ? '<' : '>', m->peer);
        }
        dtm_text_printf(text, "]");
    }
}

void dtm_timeline_print(const dtm_timeline *t, dtm_text *text) {
    dtm_text_printf(text, "# %s P=%d M=%d V=%d placement=%s\n", t->name, t->ranks, t->microbatches, t->chunks,
                    placement_names[t->placement]);
    for (int r = 0; r < t->ranks; r++) {
        if (t->order[r].count == 0) dtm_text_printf(text, "rank %d:", r); /* a blank line would not count */
        for (size_t i = 0; i < t->order[r].count; i++) {
            if (i) dtm_text_printf(text, " ");
            print_operation(t, &t->order[r], &t->order[r].operations[i], text);
        }
        dtm_text_printf(text, "\n");
    }
}

dtm_timeline *dtm_timeline_rounds(dtm_arena *arena, dtm_timeline *timeline, int rounds) {
    if (rounds <= 1) return timeline;
    dtm_timeline *all = dtm_timeline_create(arena, timeline->name, timeline->placement, timeline->ranks,
                                            timeline->microbatches * rounds, timeline->chunks);
    for (int r = 0; r < timeline->ranks; r++)
        for (int k = 0; k < rounds; k++)
            for (size_t i = 0; i < timeline->order[r].count; i++) {
                dtm_operation o = timeline->order[r].operations[i];
                for (int t = 0; t < (o.kind == DTM_OPERATION_PAIR ? 2 : 1); t++)
                    o.tasks[t].microbatch += (uint32_t)(k * dtm_timeline_passing(timeline, o.tasks[t].chunk));
                dtm_timeline_add_operation(all, r, o);
            }
    return all;
}
