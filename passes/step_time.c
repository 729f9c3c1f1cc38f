/* How long a step takes (step_time.h). What a rank does outside its loop over microbatches is a row of events, and so is what is
 * carried out apart of it; ranks wait for each other at collectives along the pipeline's axis. */
#include "passes/step_time.h"
#include "ir/calls.h"
#include "ir/storage.h"
#include "passes/cost.h"
#include "passes/ledger.h"

#include <math.h>
#include <string.h>

typedef enum event_kind { WORK, START, WAIT, MEET, LOOP } event_kind;

typedef struct step_event {
    event_kind kind;
    double time; /* WORK, MEET */
    dtm_op op;   /* START, WAIT, MEET */
} step_event;

typedef struct rank_walk {
    const dtm_module *module;
    dtm_arena *arena;
    const double *times; /* by op */
    dtm_op loop; /* that the timeline is of; 0: none */
    step_event *events;
    size_t count, capacity, at;
    double now, carried_out; /* by the rank; by its progress thread */
    double *done;            /* by op that is carried out apart: when it is */
    dtm_op *early;           /* by such op: where it is started; 0: not apart */
    dtm_op *apart;           /* these ops */
    size_t n_apart, cap_apart;
} rank_walk;

static const dtm_op_data *get(const rank_walk *w, dtm_op op) { return &w->module->ops[op]; }

static void add(rank_walk *w, event_kind kind, dtm_op op, double time) {
    step_event event = {kind, time, op};
    if (kind == WORK && w->count && w->events[w->count - 1].kind == WORK) {
        w->events[w->count - 1].time += time;
        return;
    }
    DTM_PUSH(w->arena, w->events, w->count, w->capacity, event);
}

static bool is_apart(const rank_walk *w, dtm_op op) { return w->early[op] != 0; }

/* ---- seconds of regions ---- */

/* Seconds of a region, or until an operator of it has ended; of one in a repeat in its first copy, and then again after
 * `between`, so many `copies` in all. */
typedef struct place {
    dtm_op op;
    bool found;
    double between, copies;
} place;

static double seconds_of(const rank_walk *w, dtm_region region, place *to) {
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

static void wait_for_operands(rank_walk *w, dtm_op op) {
    const dtm_op_data *data = get(w, op);
    for (uint32_t i = 0; i < data->n_operands; i++) {
        dtm_op def = w->module->values[data->operands[i]].def;
        if (def && is_apart(w, def)) add(w, WAIT, def, 0);
    }
    const dtm_region_data *body = data->kind == DTM_OP_FUSED ? &w->module->regions[data->body] : NULL;
    for (size_t i = 0; body && i < body->n_ops; i++) wait_for_operands(w, body->ops[i]);
}

static void walk(rank_walk *w, dtm_region region) {
    const dtm_region_data *body = &w->module->regions[region];
    for (size_t i = 0; i < body->n_ops; i++) {
        dtm_op op = body->ops[i];
        const dtm_op_data *data = get(w, op);
        if (op == w->loop) {
            add(w, LOOP, op, 0);
        } else if (data->body && data->kind != DTM_OP_FUSED) {
            bool repeats = data->kind == DTM_OP_REPEAT || data->kind == DTM_OP_MICROBATCH;
            int64_t copies = repeats ? data->attributes.copies : 1;
            place none = {0};
            if (data->kind == DTM_OP_MICROBATCH && copies > 2) { /* what is started is in the last, what is waited for in the first */
                add(w, WORK, op, (double)(copies - 2) * seconds_of(w, data->body, &none));
                copies = 2;
            }
            for (int64_t k = 0; k < copies; k++) walk(w, data->body);
        } else if (!is_apart(w, op)) {
            wait_for_operands(w, op);
            bool meets = dtm_is_collective(data->kind) && dtm_along_pipeline(w->module, data);
            add(w, meets ? MEET : WORK, op, w->times[op]);
        }
        for (size_t k = 0; k < w->n_apart; k++)
            if (w->early[w->apart[k]] == op) add(w, START, w->apart[k], 0);
    }
}

static rank_walk walk_of(const dtm_module *module, bool timed, dtm_arena *arena) {
    rank_walk w = {.module = module, .arena = arena, .times = dtm_run_times(module, arena)};
    if (timed) w.loop = dtm_rank_loop(module);
    w.done = dtm_arena_alloc(arena, module->n_ops * sizeof *w.done);
    w.early = dtm_arena_alloc(arena, module->n_ops * sizeof *w.early);
    for (dtm_op op = 1; op < module->n_ops; op++) {
        if (!dtm_is_apart(module, op) || !(w.early[op] = dtm_early_place(module, op))) continue;
        DTM_PUSH(arena, w.apart, w.n_apart, w.cap_apart, op);
    }
    walk(&w, module->body);
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

/* In the last call of its region, counted from that call's end. */
static void start_in_loop(rank_walk *w, dtm_op apart, const dtm_rank_order *order, const dtm_rank_times *times, double begin) {
    if (dtm_enclosing(w->module, w->early[apart], DTM_OP_MICROBATCH) != w->loop) return;
    dtm_op region = dtm_called_region(w->module, w->early[apart]);
    if (!region) { /* a loop without an order: at its end */
        w->done[apart] = w->carried_out = fmax(w->carried_out, begin + times->last) + w->times[apart];
        return;
    }
    const dtm_op_data *data = get(w, region);
    place all = {0}, to = {.op = w->early[apart], .copies = 1};
    double whole = seconds_of(w, data->body, &all), until = seconds_of(w, data->body, &to);
    for (size_t i = order->count; i-- > 0;) {
        if (!calls(data, &order->operations[i])) continue;
        double at = begin + times->end[i] - whole + until, time = w->times[apart];
        for (double k = 0; k < to.copies; k++) w->carried_out = fmax(w->carried_out, at + k * to.between) + time;
        w->done[apart] = w->carried_out;
        return;
    }
}

/* ---- all ranks ---- */

typedef struct step_walk {
    rank_walk *ranks;
    size_t n_ranks;
    const dtm_timeline *timeline;
    const dtm_timeline_times *times;
    double before; /* until the loop */
} step_walk;

static void run_loop(step_walk *s) {
    double begin = 0;
    for (size_t r = 0; r < s->n_ranks; r++) begin = fmax(begin, s->ranks[r].now);
    s->before = begin;
    for (size_t r = 0; r < s->n_ranks; r++) {
        rank_walk *w = &s->ranks[r];
        w->now = begin + s->times->rank[r].last;
        w->at++;
        for (size_t k = 0; k < w->n_apart; k++)
            start_in_loop(w, w->apart[k], &s->timeline->order[r], &s->times->rank[r], begin);
    }
}

/* Until the rank has to meet others. */
static void run(rank_walk *w) {
    for (; w->at < w->count; w->at++) {
        const step_event *e = &w->events[w->at];
        if (e->kind == MEET || e->kind == LOOP) return;
        if (e->kind == WORK) w->now += e->time;
        if (e->kind == WAIT) w->now = fmax(w->now, w->done[e->op]);
        if (e->kind == START)
            w->done[e->op] = w->carried_out = fmax(w->carried_out, w->now) + w->times[e->op];
    }
}

/* The collective that a rank has come to; NULL: none. */
static const dtm_op_data *comes_to(const rank_walk *w) {
    const step_event *e = &w->events[w->at];
    return w->at < w->count && e->kind == MEET ? get(w, e->op) : NULL;
}

/* The first collective that all of its members have come to. */
static bool meet(step_walk *s) {
    for (size_t r = 0; r < s->n_ranks; r++) {
        const dtm_module *m = s->ranks[r].module;
        const dtm_op_data *op = comes_to(&s->ranks[r]);
        bool all = op;
        double begin = 0, time = 0;
        for (size_t k = 0; all && k < s->n_ranks; k++) {
            if (!dtm_is_member(m, op, (int64_t)k)) continue;
            const dtm_op_data *other = comes_to(&s->ranks[k]);
            all = other && other->attributes.members == op->attributes.members;
            begin = fmax(begin, s->ranks[k].now);
            if (all) time = fmax(time, s->ranks[k].events[s->ranks[k].at].time);
        }
        for (size_t k = 0; all && k < s->n_ranks; k++)
            if (dtm_is_member(m, op, (int64_t)k)) s->ranks[k].now = begin + time, s->ranks[k].at++;
        if (all) return true;
    }
    return false;
}

dtm_step_times dtm_step_predict(const dtm_module *module, const dtm_timeline *timeline, const dtm_timeline_times *times) {
    dtm_arena *arena = dtm_arena_create();
    step_walk s = {.n_ranks = module->n_ranks ? module->n_ranks : 1, .timeline = timeline, .times = times};
    s.ranks = dtm_arena_alloc(arena, s.n_ranks * sizeof *s.ranks);
    for (size_t r = 0; r < s.n_ranks; r++)
        s.ranks[r] = walk_of(module->n_ranks ? module->ranks[r] : module, timeline != NULL, arena);
    dtm_step_times step = {0};
    for (bool goes_on = true; goes_on;) {
        size_t at_loop = 0;
        for (size_t r = 0; r < s.n_ranks; r++) {
            rank_walk *w = &s.ranks[r];
            run(w);
            at_loop += w->at < w->count && w->events[w->at].kind == LOOP;
        }
        goes_on = at_loop == s.n_ranks || meet(&s);
        if (at_loop == s.n_ranks) run_loop(&s);
    }
    for (size_t r = 0; r < s.n_ranks; r++) {
        const rank_walk *w = &s.ranks[r];
        if (w->at < w->count) dtm_broken("step", "rank %zu waits for others that do not come", r);
        step.all = fmax(step.all, fmax(w->now, w->carried_out));
    }
    step.before = s.before;
    step.loop = times ? times->makespan : 0;
    step.after = step.all - step.before - step.loop;
    dtm_arena_destroy(arena);
    return step;
}
