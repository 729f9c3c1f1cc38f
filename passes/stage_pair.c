/* What a pair of F and B saves (stage_cost.h), by the rule that the runtime follows (runtime/walk.c): the two parts take turns.
 * One goes on until it has started a collective, then the other does, and then the first waits for it. Collectives of a rank
 * are carried out one after another, in the order in which they were started.
 *
 *     F       product, all_reduce ..........., product, ..
 *     B                product, product, all_reduce .......   */
#include "ir/storage.h"
#include "passes/cost.h"
#include "passes/ledger.h"
#include "passes/stage_cost.h"

#include <math.h>

/* What a part computes, and the collective that it starts then; 0: none, at its end. Alone a collective may go in steps with
 * products, in a pair none does. */
typedef struct pair_item {
    double computes, collective, alone;
} pair_item;

typedef struct pair_part {
    pair_item *items;
    size_t count, capacity;
    size_t at;
    double started; /* when the collective it waits for is done */
    double ended;
} pair_part;

static void add_item(pair_part *part, dtm_arena *arena, double time, double alone, bool collective) {
    if (!part->count || part->items[part->count - 1].collective > 0) {
        pair_item item = {0};
        DTM_PUSH(arena, part->items, part->count, part->capacity, item);
    }
    pair_item *last = &part->items[part->count - 1];
    *(collective ? &last->collective : &last->computes) += time;
    last->alone += alone;
}

static void add_region(pair_part *part, const dtm_module *m, const double *times, dtm_region region, dtm_arena *arena) {
    const dtm_region_data *body = &m->regions[region];
    for (size_t i = 0; i < body->n_ops; i++) {
        dtm_op op = body->ops[i];
        const dtm_op_data *data = dtm_op_get(m, op);
        int64_t copies = data->kind == DTM_OP_REPEAT ? data->attributes.copies : 0;
        for (int64_t k = 0; k < copies; k++) add_region(part, m, times, data->body, arena);
        if (copies || data->kind == DTM_OP_REPEAT || data->kind == DTM_OP_SEND || data->kind == DTM_OP_RECEIVE) continue;
        bool collective = dtm_is_collective(data->kind) && dtm_group_of(m, data) > 1;
        double time = dtm_is_in_steps(m, op) ? dtm_collective_cost_of(m, op).time : times[op];
        add_item(part, arena, time, times[op], collective);
    }
}

static double alone(const pair_part *part) {
    double time = 0;
    for (size_t i = 0; i < part->count; i++) time += part->items[i].alone;
    return time;
}

static double together(pair_part *parts) {
    double now = 0, carried_out = 0; /* by the rank; by its progress thread */
    parts[0].at = parts[1].at = 0;
    parts[0].started = parts[1].started = parts[0].ended = parts[1].ended = 0;
    for (int turn = 0; parts[0].at < parts[0].count || parts[1].at < parts[1].count; turn = 1 - turn) {
        pair_part *part = &parts[turn];
        if (part->at == part->count) continue;
        const pair_item *item = &part->items[part->at++];
        now = fmax(now, part->started) + item->computes;
        if (item->collective > 0) part->started = carried_out = fmax(carried_out, now) + item->collective;
        part->ended = fmax(now, part->started);
    }
    return fmax(parts[0].ended, parts[1].ended);
}

static double saved(pair_part *parts) {
    double all = alone(&parts[0]) + alone(&parts[1]), saves = all - together(parts);
    return saves > 1e-9 * all ? saves : 0; /* less is rounding */
}

/* The regions of a stage in the loop over microbatches. */
static void add_stage(pair_part *part, const dtm_module *m, const double *times, int stage, dtm_op_kind kind, bool weights,
                      dtm_arena *arena) {
    for (dtm_op op = 1; op < m->n_ops; op++) {
        const dtm_op_data *data = dtm_op_get(m, op);
        bool there = data->region && data->kind == kind && data->attributes.number[DTM_REGION_STAGE] == stage;
        if (there && dtm_enclosing(m, op, DTM_OP_MICROBATCH) &&
            ((data->attributes.flags & DTM_BACKWARD_WEIGHTS) != 0) == weights)
            add_region(part, m, times, data->body, arena);
    }
}

void dtm_stage_pair(const dtm_module *rank, const double *times, int stage, bool divided, dtm_stage_cost *cost) {
    dtm_arena *arena = dtm_arena_create();
    pair_part parts[2] = {{0}};
    add_stage(&parts[0], rank, times, stage, DTM_OP_FORWARD, false, arena);
    add_stage(&parts[1], rank, times, stage, DTM_OP_BACKWARD, false, arena);
    if (divided) cost->hidden_input = saved(parts);
    add_stage(&parts[1], rank, times, stage, DTM_OP_BACKWARD, true, arena);
    cost->hidden = saved(parts);
    cost->later = parts[0].ended - alone(&parts[0]);
    dtm_arena_destroy(arena);
}
