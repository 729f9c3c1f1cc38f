/* overlap, sums along a pipeline: of a weight that several stages have, of a stage that lies on two ranks. Each rank that takes part
 * has a program of its own, so where one has started a sum another may still have long to go. On a stream sums go one after
 * another, so all ranks must start those that they share in one order, which their timelines decide: in both directions (dualpipe)
 * the two ranks of a stage complete it at one time, and so have the same order, layer by layer in their last backward passes.
 *
 *     rank 0    .. stage 3 is complete, its sums start, ..  stage 0 is complete, its sums start
 *     rank 3    .. stage 3 is complete, its sums start, ..  stage 0 is complete, its sums start
 *
 * What is chosen is walked through with all that the ranks do (schedule_walk.c). If they would stand still, sums are taken part
 * by part, each on the first stream with which all come to an end; those with none stay where they stand. */
#include "passes/overlap_sums.h"
#include "ir/calls.h"
#include "ir/fault.h"
#include "ir/storage.h"
#include "passes/overlap_room.h"
#include "passes/schedule.h"

#include <stdlib.h>

/* One sum, on all ranks that take part in it. */
typedef struct shared_sum {
    dtm_string name, members;
    dtm_op *on; /* by rank; 0: it has no part in it */
    int64_t stage; /* the lowest of those whose part it starts with */
    bool hidden, repeats; /* repeats: in each copy of a repeat */
} shared_sum;

typedef struct chooser {
    dtm_module *module;
    dtm_arena *arena;
    shared_sum *sums;
    size_t count, capacity;
} chooser;

static shared_sum *sum_of(chooser *c, const dtm_module *rank, dtm_op op) {
    const dtm_op_data *data = &rank->ops[op];
    dtm_string name = rank->values[data->results[0]].name;
    for (size_t i = 0; i < c->count; i++)
        if (c->sums[i].name == name && c->sums[i].members == data->attributes.members) return &c->sums[i];
    shared_sum made = {name, data->attributes.members, dtm_arena_alloc(c->arena, c->module->n_ranks * sizeof(dtm_op)), INT64_MAX, false, false};
    DTM_PUSH(c->arena, c->sums, c->count, c->capacity, made);
    return &c->sums[c->count - 1];
}

/* The stage whose region in the loop an operator stands in; -1: none. */
static int64_t stage_around(const dtm_module *rank, dtm_op op) {
    dtm_op region = dtm_called_region(rank, op);
    return region ? (int64_t)rank->ops[region].attributes.number[DTM_REGION_STAGE] : -1;
}

static void find_sums(chooser *c, bool *const *may) {
    for (size_t r = 0; r < c->module->n_ranks; r++) {
        dtm_module *rank = c->module->ranks[r];
        dtm_op_list ops = dtm_ops_in_order(rank, c->arena);
        for (size_t i = 0; i < ops.count; i++) {
            dtm_op op = ops.items[i];
            const dtm_op_data *data = &rank->ops[op];
            if (data->kind != DTM_OP_ALL_REDUCE || !dtm_along_pipeline(rank, data) || !dtm_early_place(rank, op)) continue;
            shared_sum *sum = sum_of(c, rank, op);
            int64_t stage = stage_around(rank, dtm_early_place(rank, op));
            sum->on[r] = op;
            sum->hidden |= may[r][op];
            sum->repeats |= dtm_enclosing(rank, op, DTM_OP_REPEAT) != 0;
            if (stage >= 0 && stage < sum->stage) sum->stage = stage;
        }
    }
}

/* Hidden on one of its ranks, and able to start before its place on all. */
static bool is_good(const chooser *c, const shared_sum *sum) {
    for (size_t r = 0; r < c->module->n_ranks; r++) {
        const dtm_op_data named = {.attributes.members = sum->members};
        if (dtm_is_member(c->module->ranks[r], &named, (int64_t)r) && !sum->on[r]) return false;
    }
    return sum->hidden;
}

/* Of sums [begin, end); 0: not apart. */
static void put(const chooser *c, size_t begin, size_t end, int stream) {
    for (size_t i = begin; i < end; i++)
        for (size_t r = 0; r < c->module->n_ranks; r++)
            if (c->sums[i].on[r]) c->module->ranks[r]->ops[c->sums[i].on[r]].attributes.number[DTM_COLLECTIVE_APART] = stream;
}

/* Those of a repeat start together, copy by copy. */
static bool start_together(const shared_sum *x, const shared_sum *y) {
    return x->repeats && y->repeats && x->stage == y->stage && x->members == y->members;
}

static size_t end_of_part(const chooser *c, size_t begin) {
    size_t end = begin + 1;
    while (end < c->count && start_together(&c->sums[begin], &c->sums[end])) end++;
    return end;
}

static int compare_sums(const void *a, const void *b) {
    const shared_sum *x = a, *y = b;
    if (x->repeats != y->repeats) return x->repeats ? -1 : 1;
    if (x->stage != y->stage) return x->stage < y->stage ? -1 : 1;
    if (x->members != y->members) return x->members < y->members ? -1 : 1;
    return x->name < y->name ? -1 : x->name > y->name;
}

/* ---- memory ---- */

static bool all_fit(const chooser *c) {
    for (size_t r = 0; r < c->module->n_ranks; r++)
        if (!dtm_fits_in(c->module->ranks[r], dtm_room_of(c->module->ranks[r]))) return false;
    return true;
}

static int stream_of(const chooser *c, size_t i) {
    for (size_t r = 0; r < c->module->n_ranks; r++)
        if (c->sums[i].on[r]) return (int)c->module->ranks[r]->ops[c->sums[i].on[r]].attributes.number[DTM_COLLECTIVE_APART];
    return 0;
}

static double bytes_of(const chooser *c, size_t i) {
    double bytes = 0;
    for (size_t r = 0; r < c->module->n_ranks; r++) {
        const dtm_module *rank = c->module->ranks[r];
        const dtm_op_data *data = &rank->ops[c->sums[i].on[r]];
        for (uint32_t k = 0; k < data->n_results; k++) bytes += (double)dtm_local_bytes_max(rank, rank->values[data->results[k]].type);
        if (bytes > 0) return bytes;
    }
    return bytes;
}

/* Lets the first of a row of sums stand where they do, so many of them, and starts the others ahead. */
static void leave(const chooser *c, const size_t *row, const int *streams, size_t count, size_t left) {
    for (size_t k = 0; k < count; k++) put(c, row[k], row[k] + 1, k < left ? 0 : streams[row[k]]);
}

/* The fewest are left where they stand, those that move most first, so that every rank's program fits; if none does so, they are as
 * they were. It is looked for by halves, as more of them left take less. */
static void leave_room(const chooser *c) {
    int *streams = dtm_arena_alloc(c->arena, (c->count + 1) * sizeof *streams);
    size_t *row = dtm_arena_alloc(c->arena, (c->count + 1) * sizeof *row), count = 0;
    for (size_t i = 0; i < c->count; i++) {
        if (!(streams[i] = stream_of(c, i))) continue;
        size_t at = count++;
        for (; at && bytes_of(c, row[at - 1]) < bytes_of(c, i); at--) row[at] = row[at - 1];
        row[at] = i;
    }
    leave(c, row, streams, count, count);
    size_t low = 0, high = all_fit(c) ? count : 0; /* with `low` of them left it does not fit */
    while (high > low + 1) {
        size_t middle = low + (high - low) / 2;
        leave(c, row, streams, count, middle);
        if (all_fit(c)) high = middle;
        else low = middle;
    }
    leave(c, row, streams, count, high);
    for (size_t k = 0; k < high; k++)
        for (size_t r = 0; r < c->module->n_ranks; r++)
            if (c->sums[row[k]].on[r]) dtm_say_no_room(c->module->ranks[r], c->sums[row[k]].on[r]);
}

void dtm_overlap_sums(dtm_module *module, bool *const *may) {
    chooser c = {.module = module, .arena = dtm_arena_create()};
    if (module->n_ranks) find_sums(&c, may);
    size_t good = 0;
    for (size_t i = 0; i < c.count; i++)
        if (is_good(&c, &c.sums[i])) c.sums[good++] = c.sums[i];
    c.count = good;
    if (c.count) qsort(c.sums, c.count, sizeof *c.sums, compare_sums);
    put(&c, 0, c.count, DTM_FIRST_STREAM_OF_SUMS);
    if (c.count && !dtm_fault(101) && !schedule_ends(module, c.arena)) {
        put(&c, 0, c.count, 0);
        for (size_t i = 0, end; i < c.count; i = end) {
            end = end_of_part(&c, i);
            bool ends = false;
            for (int k = 0; k < DTM_STREAMS_OF_SUMS && !ends; k++) {
                put(&c, i, end, DTM_FIRST_STREAM_OF_SUMS + k);
                ends = schedule_ends(module, c.arena);
            }
            if (!ends) put(&c, i, end, 0);
        }
    }
    if (c.count && !all_fit(&c)) leave_room(&c);
    dtm_arena_destroy(c.arena);
}
