/* What a pair of F and B saves (stage_cost.h), by the rule that the runtime follows (runtime/walk.c): the two parts take turns.
 * One goes on until it has started a collective, then the other does, and then the first waits for it; one that has none left fills
 * what the other leaves, and so do weight gradients, as far as the input gradient has come (ir/fills.h). Collectives of a rank are carried out one after another, in the order in which they were started. That part
 * begins with which both end earlier.
 *
 *     F       product, all_reduce ..........., product, ..
 *     B                product, product, all_reduce .......   */
#include "ir/fills.h"
#include "passes/cost.h"
#include "passes/ledger.h"
#include "passes/stage_cost.h"
#include "passes/turns.h"

typedef struct pair_part {
    turn_part turns;
    double alone; /* seconds; there a collective may go in steps with products, in a pair none does */
} pair_part;

/* `released`: by operator, seconds of what fills that can be computed from there on; NULL: nothing does. */
static void add_op(pair_part *part, const dtm_module *m, const double *times, const double *released, dtm_op op, dtm_arena *arena) {
    const dtm_op_data *data = dtm_op_get(m, op);
    if (data->kind == DTM_OP_SEND || data->kind == DTM_OP_RECEIVE) return;
    if (data->kind == DTM_OP_REPEAT) {
        pair_part copy = {0};
        const dtm_region_data *body = &m->regions[data->body];
        for (size_t i = 0; i < body->n_ops; i++) add_op(&copy, m, times, released, body->ops[i], arena);
        turn_part_repeat(&part->turns, arena, &copy.turns, data->attributes.copies);
        part->alone += (double)data->attributes.copies * copy.alone;
    } else {
        double time = dtm_is_in_steps(m, op) ? dtm_collective_cost_of(m, op).time : times[op];
        if (dtm_is_collective(data->kind) && dtm_group_of(m, data) > 1 && time > 0) turn_part_start(&part->turns, arena, time);
        else turn_part_compute(&part->turns, time);
        part->alone += times[op];
    }
    if (released && released[op] > 0) turn_part_release(&part->turns, released[op]);
}

static void add_region(pair_part *part, const dtm_module *m, const double *times, const double *released, dtm_op region, dtm_arena *arena) {
    const dtm_region_data *body = &m->regions[dtm_op_get(m, region)->body];
    for (size_t i = 0; i < body->n_ops; i++) add_op(part, m, times, released, body->ops[i], arena);
}

/* ---- what fills ---- */

typedef struct filling {
    const dtm_module *m;
    const double *times;
    dtm_order order;
    double *released;    /* by operator of the input gradient */
    double at_once, all; /* seconds: of what needs nothing of it; of all */
    dtm_op needed;       /* by what came so far */
} filling;

static bool has_collective(const dtm_module *m, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(m, op);
    bool has = dtm_is_collective(data->kind) && dtm_group_of(m, data) > 1;
    for (size_t i = 0; data->body && !has && i < m->regions[data->body].n_ops; i++) has = has_collective(m, m->regions[data->body].ops[i]);
    return has;
}

/* Seconds of an operator in all copies of the repeats around it but those `in_common` outermost ones. */
static double in_copies(const filling *f, dtm_op op, int in_common) {
    double seconds = f->times[op];
    int deep = 0;
    for (dtm_op r = op; (r = dtm_enclosing(f->m, r, DTM_OP_REPEAT));) deep++;
    for (dtm_op r = op; (r = dtm_enclosing(f->m, r, DTM_OP_REPEAT)) && deep-- > in_common;) seconds *= (double)dtm_op_get(f->m, r)->attributes.copies;
    return seconds;
}

static void fill_with(filling *f, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(f->m, op);
    dtm_op needed = dtm_needed_of_input(f->m, &f->order, op);
    if (needed && (!f->needed || f->order.end[needed] > f->order.end[f->needed])) f->needed = needed;
    if (data->kind == DTM_OP_REPEAT) {
        for (size_t i = 0; i < f->m->regions[data->body].n_ops; i++) fill_with(f, f->m->regions[data->body].ops[i]);
        f->needed = dtm_needed_after(f->m, f->needed, op);
        return;
    }
    f->all += in_copies(f, op, 0);
    if (f->needed) f->released[f->needed] += in_copies(f, op, dtm_repeats_in_common(f->m, op, f->needed));
    else f->at_once += in_copies(f, op, 0);
}

/* The other part of a pair: an input gradient, and the weight gradients that fill, up to the first of them that wait for something. */
static void add_filled(pair_part *part, const dtm_module *m, const double *times, dtm_op input, dtm_op weights, dtm_arena *arena) {
    filling f = {m, times, dtm_order_of(m, arena), dtm_arena_alloc(arena, m->n_ops * sizeof *f.released), 0, 0, 0};
    const dtm_region_data *body = &m->regions[dtm_op_get(m, weights)->body];
    size_t filling = 0;
    while (filling < body->n_ops && !has_collective(m, body->ops[filling])) fill_with(&f, body->ops[filling++]);
    if (f.at_once > 0) turn_part_release(&part->turns, f.at_once);
    add_region(part, m, times, f.released, input, arena);
    while (filling < body->n_ops) add_op(part, m, times, NULL, body->ops[filling++], arena);
    part->alone += f.all;
}

/* ---- pairs ---- */

/* The region of a stage in the loop over microbatches; 0: it has none. */
static dtm_op region_of(const dtm_module *m, int stage, dtm_op_kind kind, bool weights) {
    for (dtm_op op = 1; op < m->n_ops; op++) {
        const dtm_op_data *data = dtm_op_get(m, op);
        bool there = data->region && data->kind == kind && data->attributes.number[DTM_REGION_STAGE] == stage;
        if (there && dtm_enclosing(m, op, DTM_OP_MICROBATCH) && ((data->attributes.flags & DTM_BACKWARD_WEIGHTS) != 0) == weights) return op;
    }
    return 0;
}

/* Which part begins, when each ends, and all; where the other part is an input gradient and weight gradients, which may come after it or
 * fill, by which of both all ends earlier. Either of them may be missing: 0. */
typedef struct course {
    int begins;
    bool fills;
    double ended[TURNS_ENDS], alone;
} course;

static course course_of(const dtm_module *m, const double *times, const pair_part *forward, dtm_op input, dtm_op weights, dtm_arena *arena) {
    course best = {0};
    for (int fills = 0; fills < (input && weights ? 2 : 1); fills++) {
        pair_part other = {{0}};
        if (fills) add_filled(&other, m, times, input, weights, arena);
        if (input && !fills) add_region(&other, m, times, NULL, input, arena);
        if (weights && !fills) add_region(&other, m, times, NULL, weights, arena);
        course c = {.fills = fills, .alone = forward->alone + other.alone};
        c.begins = turns_begin((const turn_part[2]){forward->turns, other.turns}, c.ended);
        if (!fills || c.ended[TURNS_ALL] < best.ended[TURNS_ALL] * (1 - 1e-9)) best = c; /* less is rounding */
    }
    return best;
}

static double saved_by(const course *c) {
    double saves = c->alone - c->ended[TURNS_ALL];
    return saves > 1e-9 * c->alone ? saves : 0;
}

void dtm_stage_pair(const dtm_module *rank, const double *times, int stage, bool divided, dtm_stage_cost *cost) {
    dtm_arena *arena = dtm_arena_create();
    pair_part own = {{0}};
    dtm_op forward = region_of(rank, stage, DTM_OP_FORWARD, false), input = region_of(rank, stage, DTM_OP_BACKWARD, false);
    if (forward) add_region(&own, rank, times, NULL, forward, arena);
    course c = course_of(rank, times, &own, input, 0, arena);
    if (divided) cost->hidden_input = saved_by(&c);
    c = course_of(rank, times, &own, input, region_of(rank, stage, DTM_OP_BACKWARD, true), arena);
    cost->hidden = saved_by(&c);
    cost->later = c.ended[0] - own.alone;
    dtm_arena_destroy(arena);
}

dtm_pair_course dtm_pair_course_of(const dtm_module *rank, const double *times, const dtm_op *regions, size_t count) {
    dtm_arena *arena = dtm_arena_create();
    pair_part forward = {{0}};
    add_region(&forward, rank, times, NULL, regions[0], arena);
    course c = course_of(rank, times, &forward, regions[1], count > 2 ? regions[2] : 0, arena);
    dtm_arena_destroy(arena);
    return (dtm_pair_course){c.begins == 1, c.fills};
}
