/* How long a step takes (step_time.h). What a rank does outside its loop over microbatches is a row of events (step_walk.h), and so is
 * what is carried out apart of it; ranks wait for each other at collectives along the pipeline's axis. */
#include "passes/step_time.h"
#include "ir/calls.h"
#include "ir/storage.h"
#include "passes/cost.h"
#include "passes/ledger.h"
#include "passes/step_walk.h"

#include <math.h>
#include <string.h>

typedef struct rank_rows {
    const dtm_module *module;
    dtm_arena *arena;
    size_t n_ranks;
    const double *times; /* by op */
    dtm_op loop; /* that the timeline is of; 0: none */
    step_row row;
    dtm_op *early;    /* by op that is carried out apart: where it is started; 0: not apart */
    dtm_op *apart;    /* these ops, things of the walk by their number */
    size_t n_apart, cap_apart;
    size_t *thing;    /* by such op */
} rank_rows;

static const dtm_op_data *get(const rank_rows *w, dtm_op op) { return &w->module->ops[op]; }
static bool is_apart(const rank_rows *w, dtm_op op) { return w->early[op] != 0; }

/* ---- seconds of regions ---- */

/* Seconds of a region, or until an operator of it has ended; of one in a repeat in its first copy, and then again after
 * `between`, so many `copies` in all. */
typedef struct place {
    dtm_op op;
    bool found;
    double between, copies;
} place;

static double seconds_of(const rank_rows *w, dtm_region region, place *to) {
    const dtm_module *m = w->module;
    const dtm_region_data *body = &m->regions[region];
    double time = 0;
    for (size_t i = 0; i < body->n_ops && !to->found; i++) {
        dtm_op op = body->ops[i];
        const dtm_op_data *data = dtm_op_get(m, op);
        if (data->body && data->kind != DTM_OP_FUSED) {
            double copies = data->kind == DTM_OP_REPEAT ? (double)data->attributes.copies : 1;
            double once = seconds_of(w, data->body, to);
            time += to->found ? once : copies * once;
            if (!to->found || data->kind != DTM_OP_REPEAT) continue;
            place none = {0};
            to->between = seconds_of(w, data->body, &none);
            to->copies *= copies;
        } else {
            if (data->kind != DTM_OP_SEND) time += w->times[op];
            to->found = op == to->op;
        }
    }
    return time;
}

/* ---- what a rank does ---- */

static void wait_for_operands(rank_rows *w, dtm_op op, step_row *row) {
    const dtm_op_data *data = get(w, op);
    for (uint32_t i = 0; i < data->n_operands; i++) {
        dtm_op def = w->module->values[data->operands[i]].def;
        if (def && is_apart(w, def)) step_row_add(row, w->arena, (step_event){STEP_WAIT, .thing = w->thing[def]});
    }
    const dtm_region_data *body = data->kind == DTM_OP_FUSED ? &w->module->regions[data->body] : NULL;
    for (size_t i = 0; body && i < body->n_ops; i++) wait_for_operands(w, body->ops[i], row);
}

static void add_op(rank_rows *w, dtm_op op, step_row *row) {
    const dtm_op_data *data = get(w, op);
    wait_for_operands(w, op, row);
    step_event event = {STEP_WORK, w->times[op]};
    if (dtm_is_collective(data->kind) && dtm_along_pipeline(w->module, data)) {
        bool *members = dtm_arena_alloc(w->arena, w->n_ranks);
        for (size_t r = 0; r < w->n_ranks; r++) members[r] = dtm_is_member(w->module, data, (int64_t)r);
        event = (step_event){STEP_MEET, w->times[op], .group = data->attributes.members, .members = members};
    }
    step_row_add(row, w->arena, event);
}

static void add_region(rank_rows *w, dtm_region region, step_row *row) {
    const dtm_region_data *body = &w->module->regions[region];
    for (size_t i = 0; i < body->n_ops; i++) {
        dtm_op op = body->ops[i];
        const dtm_op_data *data = get(w, op);
        if (op == w->loop) {
            step_row_add(row, w->arena, (step_event){STEP_LOOP});
        } else if (data->kind == DTM_OP_REPEAT || data->kind == DTM_OP_MICROBATCH) {
            int64_t copies = data->attributes.copies;
            place none = {0};
            if (data->kind == DTM_OP_MICROBATCH && copies > 2) { /* what is started is in the last, what is waited for in the first */
                step_row_add(row, w->arena, (step_event){STEP_WORK, (double)(copies - 2) * seconds_of(w, data->body, &none)});
                copies = 2;
            }
            step_row *copy = dtm_arena_alloc(w->arena, sizeof *copy);
            add_region(w, data->body, copy);
            step_row_add(row, w->arena, (step_event){STEP_REPEAT, .copies = copies, .body = copy});
        } else if (data->body && data->kind != DTM_OP_FUSED) {
            add_region(w, data->body, row);
        } else if (!is_apart(w, op)) {
            add_op(w, op, row);
        }
        for (size_t k = 0; k < w->n_apart; k++)
            if (w->early[w->apart[k]] == op)
                step_row_add(row, w->arena, (step_event){STEP_START, w->times[w->apart[k]], .thing = k});
    }
}

static rank_rows rows_of(const dtm_module *module, bool timed, size_t n_ranks, dtm_arena *arena) {
    rank_rows w = {.module = module, .arena = arena, .n_ranks = n_ranks, .times = dtm_run_times(module, arena)};
    if (timed) w.loop = dtm_rank_loop(module);
    w.early = dtm_arena_alloc(arena, module->n_ops * sizeof *w.early);
    w.thing = dtm_arena_alloc(arena, module->n_ops * sizeof *w.thing);
    for (dtm_op op = 1; op < module->n_ops; op++) {
        if (!dtm_is_apart(module, op) || !(w.early[op] = dtm_early_place(module, op))) continue;
        w.thing[op] = w.n_apart;
        DTM_PUSH(arena, w.apart, w.n_apart, w.cap_apart, op);
    }
    add_region(&w, module->body, &w.row);
    return w;
}

/* ---- what is started in the loop ---- */

static bool calls(const dtm_op_data *region, const dtm_operation *o) {
    bool weights = region->attributes.flags & DTM_BACKWARD_WEIGHTS;
    for (int i = 0; i < (o->kind == DTM_OPERATION_PAIR ? 2 : 1) && o->kind != DTM_OPERATION_GROUP; i++) {
        dtm_task task = o->tasks[i];
        bool kind = task.kind == DTM_TASK_BACKWARD || task.kind == (weights ? DTM_TASK_WEIGHT : DTM_TASK_INPUT);
        if (kind && task.chunk == region->attributes.number[DTM_REGION_CHUNK]) return true;
    }
    return false;
}

/* When a row of things is carried out of which one comes every `between`, from `at` on, each of which takes `time`. */
static double carry_out(double carried_out, double at, double between, double copies, double time) {
    /* one that the others wait for is the first or the last: in between, times grow evenly */
    double after_first = fmax(carried_out, at) + copies * time;
    return fmax(after_first, at + (copies - 1) * between + time);
}

/* In the last call of its region, counted from that call's end. */
static void start_in_loop(const rank_rows *w, step_walk *walk, size_t rank, size_t thing, const dtm_rank_order *order,
                          const dtm_rank_times *times, double begin) {
    dtm_op apart = w->apart[thing];
    double *done = step_walk_done(walk, rank, thing), *carried_out = step_walk_carried_out(walk, rank), time = w->times[apart];
    if (dtm_enclosing(w->module, w->early[apart], DTM_OP_MICROBATCH) != w->loop) return;
    dtm_op region = dtm_called_region(w->module, w->early[apart]);
    if (!region) { /* a loop without an order: at its end */
        *done = *carried_out = fmax(*carried_out, begin + times->last) + time;
        return;
    }
    const dtm_op_data *data = get(w, region);
    place all = {0}, to = {.op = w->early[apart], .copies = 1};
    double whole = seconds_of(w, data->body, &all), until = seconds_of(w, data->body, &to);
    for (size_t i = order->count; i-- > 0;) {
        if (!calls(data, &order->operations[i])) continue;
        double at = begin + times->end[i] - whole + until;
        *done = *carried_out = carry_out(*carried_out, at, to.between, to.copies, time);
        return;
    }
}

/* ---- all ranks ---- */

static double run_loop(const rank_rows *rows, size_t n_ranks, step_walk *walk, const dtm_timeline *timeline,
                       const dtm_timeline_times *times) {
    double begin = 0;
    for (size_t r = 0; r < n_ranks; r++) begin = fmax(begin, *step_walk_now(walk, r));
    for (size_t r = 0; r < n_ranks; r++) {
        *step_walk_now(walk, r) = begin + times->rank[r].last;
        for (size_t k = 0; k < rows[r].n_apart; k++)
            start_in_loop(&rows[r], walk, r, k, &timeline->order[r], &times->rank[r], begin);
    }
    step_walk_pass_loop(walk);
    return begin;
}

dtm_step_times dtm_step_predict(const dtm_module *module, const dtm_timeline *timeline, const dtm_timeline_times *times) {
    dtm_arena *arena = dtm_arena_create();
    size_t n_ranks = module->n_ranks ? module->n_ranks : 1;
    rank_rows *rows = dtm_arena_alloc(arena, n_ranks * sizeof *rows);
    step_row **row = dtm_arena_alloc(arena, n_ranks * sizeof *row);
    size_t *things = dtm_arena_alloc(arena, n_ranks * sizeof *things);
    for (size_t r = 0; r < n_ranks; r++) {
        rows[r] = rows_of(module->n_ranks ? module->ranks[r] : module, timeline != NULL, n_ranks, arena);
        row[r] = &rows[r].row;
        things[r] = rows[r].n_apart;
    }
    step_walk *walk = step_walk_create(arena, n_ranks, row, things);
    dtm_step_times step = {0};
    while (step_walk_go(walk) == STEP_AT_LOOP) step.before = run_loop(rows, n_ranks, walk, timeline, times);
    for (size_t r = 0; r < n_ranks; r++) {
        if (!step_walk_has_ended(walk, r)) dtm_broken("step", "rank %zu waits for others that do not come", r);
        step.all = fmax(step.all, fmax(*step_walk_now(walk, r), *step_walk_carried_out(walk, r)));
    }
    step.loop = times ? times->makespan : 0;
    step.after = step.all - step.before - step.loop;
    step.visited = step_walk_visited(walk);
    dtm_arena_destroy(arena);
    return step;
}
