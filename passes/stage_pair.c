/* What a pair of F and B saves (stage_cost.h), by the rule that the runtime follows (runtime/walk.c): the two parts take turns.
 * One goes on until it has started a collective, then the other does, and then the first waits for it; one that has none left fills
 * what the other leaves. Collectives of a rank are carried out one after another, in the order in which they were started. That part
 * begins with which both end earlier.
 *
 *     F       product, all_reduce ..........., product, ..
 *     B                product, product, all_reduce .......   */
#include "ir/storage.h"
#include "passes/cost.h"
#include "passes/ledger.h"
#include "passes/stage_cost.h"
#include "passes/turns.h"

typedef struct pair_part {
    turn_part turns;
    double alone; /* seconds; there a collective may go in steps with products, in a pair none does */
} pair_part;

static void add_region(pair_part *part, const dtm_module *m, const double *times, dtm_region region, dtm_arena *arena) {
    const dtm_region_data *body = &m->regions[region];
    for (size_t i = 0; i < body->n_ops; i++) {
        dtm_op op = body->ops[i];
        const dtm_op_data *data = dtm_op_get(m, op);
        if (data->kind == DTM_OP_SEND || data->kind == DTM_OP_RECEIVE) continue;
        if (data->kind == DTM_OP_REPEAT) {
            pair_part copy = {0};
            add_region(&copy, m, times, data->body, arena);
            turn_part_repeat(&part->turns, arena, &copy.turns, data->attributes.copies);
            part->alone += (double)data->attributes.copies * copy.alone;
            continue;
        }
        double time = dtm_is_in_steps(m, op) ? dtm_collective_cost_of(m, op).time : times[op];
        if (dtm_is_collective(data->kind) && dtm_group_of(m, data) > 1 && time > 0) turn_part_start(&part->turns, arena, time);
        else turn_part_compute(&part->turns, time);
        part->alone += times[op];
    }
}

/* What both parts take less together than alone, and when F ends. */
static double saved(const pair_part *parts, double *ended) {
    turn_part turns[2] = {parts[0].turns, parts[1].turns};
    double end[2];
    turns_begin(turns, end);
    *ended = end[0];
    double all = parts[0].alone + parts[1].alone, saves = all - (end[0] > end[1] ? end[0] : end[1]);
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
    pair_part parts[2] = {{{0}}};
    double ended;
    add_stage(&parts[0], rank, times, stage, DTM_OP_FORWARD, false, arena);
    add_stage(&parts[1], rank, times, stage, DTM_OP_BACKWARD, false, arena);
    if (divided) cost->hidden_input = saved(parts, &ended);
    add_stage(&parts[1], rank, times, stage, DTM_OP_BACKWARD, true, arena);
    cost->hidden = saved(parts, &ended);
    cost->later = ended - parts[0].alone;
    dtm_arena_destroy(arena);
}

int dtm_pair_begins(const dtm_module *rank, const double *times, const dtm_op *regions, size_t count) {
    dtm_arena *arena = dtm_arena_create();
    pair_part parts[2] = {{{0}}};
    double ended[2];
    for (size_t i = 0; i < count; i++) add_region(&parts[i > 0], rank, times, dtm_op_get(rank, regions[i])->body, arena);
    int begins = turns_begin((const turn_part[2]){parts[0].turns, parts[1].turns}, ended);
    dtm_arena_destroy(arena);
    return begins;
}
