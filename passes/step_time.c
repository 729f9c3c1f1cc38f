/* How long a step takes (step_time.h). What a rank does outside its loop over microbatches is a row of events (step_walk.h), and so is
 * what is carried out apart of it; ranks wait for each other at collectives along the pipeline's axis, on a stream too if these
 * are carried out apart. */
#include "passes/step_time.h"
#include "ir/calls.h"
#include "ir/storage.h"
#include "passes/cost.h"
#include "passes/ledger.h"
#include "passes/stage_cost.h"
#include "passes/step_walk.h"

#include <math.h>
#include <stdlib.h>
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
        dtm_op early = dtm_is_apart(module, op) ? dtm_early_place(module, op) : 0;
        if (!early) continue;
        w.early[op] = early;
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

/* What is carried out apart, in each copy of a repeat or once: when the first and the last copy of it can start, and have ended. */
typedef struct job {
    size_t thing;
    dtm_op repeat; /* in its region, the outermost; 0: none */
    double first, last, copies, time;
    double first_done, done;
} job;

typedef struct jobs {
    job *items;
    size_t count, capacity;
} jobs;

static int compare_jobs(const void *a, const void *b) {
    const job *x = a, *y = b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x->thing < y->thing ? -1 : x->thing > y->thing;
}

static double sum_of_times(const job *jobs, size_t from, size_t to) {
    double time = 0;
    for (size_t i = from; i < to; i++) time += jobs[i].time;
    return time;
}

/* Of jobs of one repeat, which take turns: one after another in each copy, which come evenly. A row that nothing interrupts ends
 * when the one that it began with could start and all from then on have been carried out; of copies between the first and the last
 * of which the next one is waited for, none is later than both. */
static void carry_out_turns(job *jobs, size_t n, double *carried_out) {
    double all = sum_of_times(jobs, 0, n), copies = jobs[0].copies, now = *carried_out;
    for (size_t q = 0; q < n; q++) {
        double own = sum_of_times(jobs, 0, q + 1), done = *carried_out + (copies - 1) * all + own;
        jobs[q].first_done = now = fmax(now, jobs[q].first) + jobs[q].time;
        for (size_t j = 0; j < n; j++) {
            double between = copies > 1 ? (jobs[j].last - jobs[j].first) / (copies - 1) : 0, rest = sum_of_times(jobs, j, n) + own;
            if (j <= q) done = fmax(done, jobs[j].last + sum_of_times(jobs, j, q + 1));
            if (copies > 1) done = fmax(done, fmax(jobs[j].first + rest + (copies - 2) * all, jobs[j].last - between + rest));
        }
        jobs[q].done = done;
    }
    *carried_out = jobs[n - 1].done;
}

/* On one stream, in the order in which they can start. */
static void carry_out(jobs *all, double *carried_out) {
    if (all->count) qsort(all->items, all->count, sizeof *all->items, compare_jobs);
    for (size_t i = 0, end; i < all->count; i = end) {
        for (end = i + 1; end < all->count && all->items[i].repeat && all->items[end].repeat == all->items[i].repeat; end++)
            if (all->items[end].copies != all->items[i].copies) break;
        carry_out_turns(&all->items[i], end - i, carried_out);
    }
}

/* Where a thing starts in the last call of its region. */
typedef struct start_place {
    size_t operation; /* SIZE_MAX: in no call */
    double before;    /* seconds from the first copy's start to the end of the operation */
    double span, copies;
} start_place;

static start_place start_of(const rank_rows *w, size_t thing, const dtm_rank_order *order) {
    dtm_op apart = w->apart[thing], region = dtm_called_region(w->module, w->early[apart]);
    start_place none = {SIZE_MAX, 0, 0, 1};
    if (!region) return none;
    const dtm_op_data *data = get(w, region);
    place all = {0}, to = {.op = w->early[apart], .copies = 1};
    double whole = seconds_of(w, data->body, &all), until = seconds_of(w, data->body, &to);
    for (size_t i = order->count; i-- > 0;)
        if (calls(data, &order->operations[i])) return (start_place){i, whole - until, (to.copies - 1) * to.between, to.copies};
    return none;
}

/* Counted from the end of that call. */
static job job_of(const rank_rows *w, size_t thing, const dtm_rank_order *order, const dtm_rank_times *times, double begin) {
    dtm_op apart = w->apart[thing];
    job made = {thing, 0, begin + times->last, begin + times->last, 1, w->times[apart], 0, 0}; /* a loop without an order: at its end */
    start_place start = start_of(w, thing, order);
    if (dtm_called_region(w->module, w->early[apart]))
        for (dtm_op at = w->early[apart]; (at = dtm_enclosing(w->module, at, DTM_OP_REPEAT));) made.repeat = at;
    if (start.operation == SIZE_MAX) return made;
    made.first = begin + times->end[start.operation] - start.before;
    made.last = made.first + start.span;
    made.copies = start.copies;
    return made;
}

bool dtm_step_starts_in_loop(const dtm_module *rank, dtm_op op) {
    dtm_op early = dtm_early_place(rank, op);
    return early && dtm_enclosing(rank, early, DTM_OP_MICROBATCH) == dtm_rank_loop(rank);
}

static bool starts_in_loop(const rank_rows *w, size_t thing) {
    return dtm_enclosing(w->module, w->early[w->apart[thing]], DTM_OP_MICROBATCH) == w->loop;
}

static bool is_along(const rank_rows *w, size_t thing) { return dtm_along_pipeline(w->module, get(w, w->apart[thing])); }

/* ---- sums along the pipeline that start in the loop ---- */

/* On all ranks that take part: the last to come to it decides. */
typedef struct loop_sum {
    dtm_string name, members;
    job job;       /* `thing`: the number of this */
    size_t *thing; /* by rank, from 1; 0: it takes no part */
    int stream;
} loop_sum;

typedef struct loop_sums {
    loop_sum *items;
    size_t count, capacity;
} loop_sums;

/* `before`: what it goes on from, or NULL. */
static void add_sum(loop_sums *sums, const rank_rows *w, size_t rank, const job *own, const job *before) {
    dtm_op op = w->apart[own->thing];
    dtm_string name = w->module->values[get(w, op)->results[0]].name, members = get(w, op)->attributes.members;
    size_t i = 0;
    while (i < sums->count && (sums->items[i].name != name || sums->items[i].members != members)) i++;
    if (i == sums->count) {
        loop_sum made = {name, members, *own, dtm_arena_alloc(w->arena, w->n_ranks * sizeof(size_t)),
                         (int)get(w, op)->attributes.number[DTM_COLLECTIVE_APART] - DTM_FIRST_STREAM_OF_SUMS};
        made.job.thing = i;
        DTM_PUSH(w->arena, sums->items, sums->count, sums->capacity, made);
    }
    loop_sum *sum = &sums->items[i];
    sum->thing[rank] = own->thing + 1;
    sum->job.time = fmax(sum->job.time, own->time);
    sum->job.first = fmax(sum->job.first, before ? before->first_done : own->first);
    sum->job.last = fmax(sum->job.last, before ? before->done : own->last);
}

/* Whether sums along the pipeline go through the same port as what is carried out apart over other axes. */
static bool shares_port(const rank_rows *w) {
    dtm_link along = dtm_link_of(w->module, (uint16_t)(1 << w->module->settings.pipeline.axis));
    for (size_t k = 0; k < w->n_apart; k++)
        if (!is_along(w, k) && !strcmp(dtm_link_of(w->module, get(w, w->apart[k])->attributes.axes).name, along.name)) return true;
    return false;
}

/* `carried_out`: by stream and rank. Ranks that have no sum in common do not wait for one another. */
static void carry_out_sums(loop_sums *sums, const rank_rows *w, step_walk *walk, double *carried_out) {
    bool port = shares_port(w);
    for (size_t i = 0; i < sums->count; i++) {
        jobs together = {0};
        double begin = 0;
        const loop_sum *first = &sums->items[i];
        if (first->job.done > 0) continue;
        for (size_t k = i; k < sums->count; k++) {
            loop_sum *sum = &sums->items[k];
            if (sum->job.done > 0 || sum->members != first->members || sum->stream != first->stream) continue;
            DTM_PUSH(w->arena, together.items, together.count, together.capacity, sum->job);
            sum->job.done = 1; /* taken */
        }
        for (size_t r = 0; r < w->n_ranks; r++)
            if (first->thing[r]) begin = fmax(begin, carried_out[(size_t)first->stream * w->n_ranks + r]);
        for (size_t r = 0; r < w->n_ranks && port; r++)
            if (first->thing[r]) begin = fmax(begin, *step_walk_carried_out(walk, r));
        carry_out(&together, &begin);
        for (size_t r = 0; r < w->n_ranks && port; r++)
            if (first->thing[r]) *step_walk_carried_out(walk, r) = begin;
        for (size_t k = 0; k < together.count; k++)
            for (size_t r = 0; r < w->n_ranks; r++) {
                size_t thing = sums->items[together.items[k].thing].thing[r];
                if (thing) *step_walk_done(walk, r, thing - 1) = together.items[k].done;
                if (thing) carried_out[(size_t)first->stream * w->n_ranks + r] = begin;
            }
    }
}

/* ---- what goes the ways of messages ---- */

/* What is under way of a collective at a time, and so many pieces at most: more would tell of less than a five hundredth of its time. */
enum { BYTES_UNDER_WAY = 512 << 10, MOST_PIECES = 512 };

typedef struct sum_list {
    dtm_timeline_sum *items;
    size_t count, capacity;
} sum_list;

static dtm_timeline_sum new_sum(const rank_rows *w, size_t thing, const start_place *start, size_t most, dtm_arena *arena) {
    dtm_op op = w->apart[thing];
    dtm_collective_cost cost = dtm_collective_cost_of(w->module, op);
    double sent = start->copies * (double)cost.sent, rounds = (double)dtm_collective_rounds(cost.kind, cost.algorithm, (int)cost.group);
    double piece = fmin(BYTES_UNDER_WAY, (double)cost.sent / fmax(1, rounds));
    dtm_timeline_sum sum = {.span = start->span, .copies = start->copies, .time = start->copies * w->times[op]};
    sum.way = fmin(sum.time, sent / cost.link.bandwidth);
    sum.pieces = (int)fmax(1, fmin(MOST_PIECES, piece > 0 ? sent / piece : 1));
    sum.stream = (int)get(w, op)->attributes.number[DTM_COLLECTIVE_APART];
    sum.rank = dtm_arena_alloc(arena, most * sizeof *sum.rank);
    sum.operation = dtm_arena_alloc(arena, most * sizeof *sum.operation);
    sum.before = dtm_arena_alloc(arena, most * sizeof *sum.before);
    sum.after = dtm_arena_alloc(arena, most * sizeof *sum.after);
    return sum;
}

/* Of sums along the pipeline the one that another rank has added, from 1. */
static int find_along(const sum_list *sums, const dtm_op_data *const *of, const rank_rows *w, const rank_rows *rows, size_t thing) {
    const dtm_op_data *own = get(w, w->apart[thing]);
    dtm_string name = w->module->values[own->results[0]].name;
    for (size_t i = 0; i < sums->count; i++) {
        if (!of[i] || of[i]->attributes.members != own->attributes.members) continue;
        const rank_rows *other = &rows[sums->items[i].rank[0]];
        if (other->module->values[of[i]->results[0]].name == name) return (int)i + 1;
    }
    return 0;
}

/* `number`: by rank and thing, the sum, from 1; 0: none. */
static sum_list sums_of(const rank_rows *rows, size_t n_ranks, const dtm_timeline *timeline, int **number, dtm_arena *arena) {
    sum_list sums = {0};
    size_t most = 0;
    for (size_t r = 0; r < n_ranks; r++) most += rows[r].n_apart;
    const dtm_op_data **of = dtm_arena_alloc(arena, (most + 1) * sizeof *of); /* of a sum along the pipeline: it, on its first rank */
    dtm_link along = dtm_link_of(rows[0].module, (uint16_t)(1 << rows[0].module->settings.pipeline.axis));
    for (size_t r = 0; r < n_ranks; r++) number[r] = dtm_arena_alloc(arena, (rows[r].n_apart + 1) * sizeof **number);
    for (int turn = 0; turn < 2; turn++) /* those along the pipeline go on from others */
        for (size_t r = 0; r < n_ranks; r++) {
            const rank_rows *w = &rows[r];
            for (size_t k = 0; k < w->n_apart; k++) {
                if (!starts_in_loop(w, k) || is_along(w, k) != (turn != 0)) continue;
                start_place start = start_of(w, k, &timeline->order[r]);
                if (start.operation == SIZE_MAX) continue;
                if (strcmp(dtm_link_of(w->module, get(w, w->apart[k])->attributes.axes).name, along.name) != 0) continue;
                int found = turn ? find_along(&sums, of, w, rows, k) : 0;
                if (!found) {
                    of[sums.count] = turn ? get(w, w->apart[k]) : NULL;
                    DTM_PUSH(arena, sums.items, sums.count, sums.capacity, new_sum(w, k, &start, turn ? n_ranks : 1, arena));
                    found = (int)sums.count;
                }
                dtm_timeline_sum *sum = &sums.items[found - 1];
                dtm_op before = dtm_goes_on_from(w->module, w->apart[k]);
                int n = sum->members++;
                sum->rank[n] = (int)r;
                sum->operation[n] = start.operation;
                sum->before[n] = start.before;
                sum->after[n] = before && is_apart(w, before) ? number[r][w->thing[before]] - 1 : -1;
                number[r][k] = found;
            }
        }
    return sums;
}

const dtm_timeline_sum *dtm_step_sums(const dtm_module *module, const dtm_timeline *timeline, dtm_arena *arena, int *count) {
    dtm_arena *scratch = dtm_arena_create();
    rank_rows *rows = dtm_arena_alloc(scratch, module->n_ranks * sizeof *rows);
    int **number = dtm_arena_alloc(scratch, module->n_ranks * sizeof *number);
    for (size_t r = 0; r < module->n_ranks; r++) rows[r] = rows_of(module->ranks[r], true, module->n_ranks, scratch);
    sum_list sums = sums_of(rows, module->n_ranks, timeline, number, arena);
    *count = (int)sums.count;
    dtm_arena_destroy(scratch);
    return sums.items;
}

/* ---- all ranks ---- */

static const job *job_of_op(const jobs *all, const rank_rows *w, dtm_op op) {
    for (size_t i = 0; op && i < all->count; i++)
        if (w->apart[all->items[i].thing] == op) return &all->items[i];
    return NULL;
}

/* What goes the ways of messages has been carried out when the timeline says so. */
static void take_ended(const rank_rows *rows, size_t n_ranks, step_walk *walk, const dtm_timeline *timeline,
                       const dtm_timeline_times *times, double begin, double *sums) {
    dtm_arena *arena = dtm_arena_create();
    int **number = dtm_arena_alloc(arena, n_ranks * sizeof *number);
    if (times->n_sums) sums_of(rows, n_ranks, timeline, number, arena);
    for (size_t r = 0; r < n_ranks && times->n_sums; r++) {
        double last[1 + DTM_STREAMS_OF_SUMS] = {0};
        bool whole[1 + DTM_STREAMS_OF_SUMS] = {true, true, true}; /* all that the stream has is among them */
        for (size_t k = 0; k < rows[r].n_apart; k++) {
            int stream = (int)get(&rows[r], rows[r].apart[k])->attributes.number[DTM_COLLECTIVE_APART] - 1;
            if (!starts_in_loop(&rows[r], k)) continue;
            if (number[r][k]) *step_walk_done(walk, r, k) = begin + times->sum_ended[number[r][k] - 1];
            whole[stream] = whole[stream] && number[r][k];
            last[stream] = fmax(last[stream], *step_walk_done(walk, r, k));
        }
        if (whole[0] && last[0] > 0) *step_walk_carried_out(walk, r) = last[0];
        for (int s = 0; s < DTM_STREAMS_OF_SUMS; s++)
            if (whole[1 + s] && last[1 + s] > 0) sums[(size_t)s * n_ranks + r] = last[1 + s];
    }
    dtm_arena_destroy(arena);
}

/* `sums`: by stream and rank, when the last of the sums along the pipeline has been carried out. */
static double run_loop(const rank_rows *rows, size_t n_ranks, step_walk *walk, const dtm_timeline *timeline,
                       const dtm_timeline_times *times, double *sums) {
    double begin = 0;
    loop_sums along = {0};
    for (size_t r = 0; r < n_ranks; r++) begin = fmax(begin, *step_walk_now(walk, r));
    for (size_t r = 0; r < n_ranks; r++) {
        const rank_rows *w = &rows[r];
        jobs own = {0};
        *step_walk_now(walk, r) = begin + times->rank[r].last;
        for (size_t k = 0; k < w->n_apart; k++)
            if (starts_in_loop(w, k) && !is_along(w, k))
                DTM_PUSH(w->arena, own.items, own.count, own.capacity, job_of(w, k, &timeline->order[r], &times->rank[r], begin));
        carry_out(&own, step_walk_carried_out(walk, r));
        for (size_t i = 0; i < own.count; i++) *step_walk_done(walk, r, own.items[i].thing) = own.items[i].done;
        for (size_t k = 0; k < w->n_apart; k++) {
            if (!starts_in_loop(w, k) || !is_along(w, k)) continue;
            job sum = job_of(w, k, &timeline->order[r], &times->rank[r], begin);
            add_sum(&along, w, r, &sum, job_of_op(&own, w, dtm_goes_on_from(w->module, w->apart[k])));
        }
    }
    carry_out_sums(&along, &rows[0], walk, sums);
    take_ended(rows, n_ranks, walk, timeline, times, begin, sums);
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
    double *sums = dtm_arena_alloc(arena, DTM_STREAMS_OF_SUMS * n_ranks * sizeof *sums);
    while (step_walk_go(walk) == STEP_AT_LOOP) step.before = run_loop(rows, n_ranks, walk, timeline, times, sums);
    for (size_t r = 0; r < n_ranks; r++) {
        if (!step_walk_has_ended(walk, r)) dtm_broken("step", "rank %zu waits for others that do not come", r);
        step.all = fmax(step.all, fmax(*step_walk_now(walk, r), *step_walk_carried_out(walk, r)));
        for (size_t s = 0; s < DTM_STREAMS_OF_SUMS; s++) step.all = fmax(step.all, sums[s * n_ranks + r]);
    }
    step.loop = times ? times->makespan : 0;
    step.after = step.all - step.before - step.loop;
    step.visited = step_walk_visited(walk);
    dtm_arena_destroy(arena);
    return step;
}

double dtm_step_seconds(const dtm_module *module) {
    if (!module->n_ranks) return dtm_step_predict(module, NULL, NULL).all;
    dtm_arena *arena = dtm_arena_create();
    const dtm_timeline *timeline = dtm_stage_timeline(module, arena);
    dtm_timeline_costs costs = dtm_stage_costs(module, arena);
    double all = dtm_step_predict(module, timeline, dtm_timeline_simulate(arena, timeline, &costs)).all;
    dtm_arena_destroy(arena);
    return all;
}
