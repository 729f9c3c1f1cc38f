/* buffer: how many messages of a pipeline may wait. The order of a rank's calls takes a certain number of receive slots to come to its
 * end (schedule); with so few a message may have to stay where it was made until one before it has been used, and be under way only
 * then. And a result is made when the one so many before it has left. So each rank's loop gets the fewest slots, and then the fewest
 * buffers, with which its timeline takes no longer than with as many as are wanted, by what it costs now that kernels are known:
 *
 *     microbatch m = 4, order = "F0 F1 F2 F3 B0 B1 B2 B3", slots = 2, buffers = 2 { .. }    two F are under way at a time
 *     microbatch m = 4, order = "F0 F1 F2 F3 B0 B1 B2 B3", slots = 4, buffers = 2 { .. }    all of them
 *
 * They are memory; where a rank's is bounded there are as many as fit. Numbers that a dump brings are never made less.
 *
 * Before that, sums that overlap starts in the loop are put back where they stand if so a step is quicker (buffer_sums.c): they go the
 * ways of messages, and may hold up one that another rank waits for. */
#include "ir/calls.h"
#include "ir/storage.h"
#include "passes/buffer_sums.h"
#include "passes/overlap_room.h"
#include "passes/passes.h"
#include "passes/stage_cost.h"

/* A timeline may take so much longer than with slots without end: what less saves is not worth their memory. */
static const double LONGER = 1.01;

enum { SLOTS = DTM_MICROBATCH_SLOTS, BUFFERS = DTM_MICROBATCH_BUFFERS };

typedef struct buffering {
    dtm_module *module;
    dtm_arena *arena;
    const dtm_timeline *timeline;
    dtm_timeline_costs costs;
    double wanted; /* of the timeline's time */
    int most;      /* messages of a channel */
} buffering;

static int *number_of(buffering *b, int which) { return which == SLOTS ? &b->costs.slots : &b->costs.buffers; }

static double time_of(const buffering *b) {
    dtm_arena *arena = dtm_arena_create();
    double time = dtm_timeline_simulate(arena, b->timeline, &b->costs)->makespan;
    dtm_arena_destroy(arena);
    return time;
}

static bool is_quick(buffering *b, int which, int number) {
    *number_of(b, which) = number;
    return time_of(b) <= b->wanted;
}

/* Sets the least number from `few` on with which the timeline is quick, as if more were always as good; none: the most. */
static void set_least(buffering *b, int which, int few) {
    int high = few, low = few - 1;
    while (high < b->most && !is_quick(b, which, high)) low = high, high = 2 * high < b->most ? 2 * high : b->most;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (is_quick(b, which, middle)) high = middle;
        else low = middle;
    }
    *number_of(b, which) = high;
}

/* ---- ranks ---- */

/* No more than the rank has calls. */
static int at_most(const dtm_module *rank, dtm_op loop, int number, dtm_arena *arena) {
    dtm_loop_calls calls;
    if (dtm_loop_calls_of(rank, loop, arena, &calls)) return number; /* the verifier says why */
    return number > 2 && (size_t)number > calls.count ? calls.count > 2 ? (int)calls.count : 2 : number;
}

static void write(const buffering *b) {
    for (size_t r = 0; r < b->module->n_ranks; r++) {
        dtm_module *rank = b->module->ranks[r];
        dtm_op loop = dtm_rank_loop(rank);
        double *number = dtm_op_get(rank, loop)->attributes.number;
        int slots = at_most(rank, loop, b->costs.slots, b->arena), buffers = at_most(rank, loop, b->costs.buffers, b->arena);
        if (slots > number[SLOTS]) number[SLOTS] = slots;
        if (buffers > number[BUFFERS]) number[BUFFERS] = buffers;
    }
}

static bool all_fit(buffering *b, int which, int number) {
    bool fit = true;
    *number_of(b, which) = number;
    for (size_t r = 0; fit && r < b->module->n_ranks; r++) {
        dtm_module *rank = b->module->ranks[r];
        double *own = dtm_op_get(rank, dtm_rank_loop(rank))->attributes.number, before[2] = {own[SLOTS], own[BUFFERS]};
        own[SLOTS] = b->costs.slots > own[SLOTS] ? b->costs.slots : own[SLOTS];
        own[BUFFERS] = b->costs.buffers > own[BUFFERS] ? b->costs.buffers : own[BUFFERS];
        fit = dtm_fits_fused_in(rank, dtm_room_of(rank));
        own[SLOTS] = before[0];
        own[BUFFERS] = before[1];
    }
    return fit;
}

/* As many as fit, up to a number, if more than `few` do. */
static void set_fitting(buffering *b, int which, int few, int number) {
    int low = few, high = number + 1;
    if (all_fit(b, which, number)) return;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (all_fit(b, which, middle)) low = middle;
        else high = middle;
    }
    *number_of(b, which) = low;
}

/* ---- all of it ---- */

static int most_of_channel(const dtm_timeline *t) {
    int most = 0;
    for (int c = 0; c < t->chunks; c++) most += dtm_timeline_passing(t, c);
    return most;
}

static void buffer(buffering *b) {
    const int few[2] = {b->costs.slots, b->costs.buffers};
    b->most = most_of_channel(b->timeline);
    double now = time_of(b);
    b->costs.slots = b->costs.buffers = 0;
    b->wanted = LONGER * time_of(b);
    b->costs.slots = few[0], b->costs.buffers = few[1];
    if (now <= b->wanted) return;
    b->costs.buffers = 0;
    set_least(b, SLOTS, few[0]);
    set_least(b, BUFFERS, few[1]);
    int wanted[2] = {b->costs.slots, b->costs.buffers};
    b->costs.buffers = few[1];
    set_fitting(b, SLOTS, few[0], wanted[0]);
    set_fitting(b, BUFFERS, few[1], wanted[1]);
    write(b);
}

bool dtm_pass_buffer(dtm_module *module) {
    dtm_arena *arena = dtm_arena_create();
    bool ordered = module->n_ranks > 1;
    for (size_t r = 0; r < module->n_ranks; r++) {
        dtm_op loop = dtm_rank_loop(module->ranks[r]);
        ordered = ordered && loop && dtm_loop_is_ordered(module->ranks[r], loop);
    }
    if (ordered) {
        buffering b = {.module = module, .arena = arena, .timeline = dtm_stage_timeline(module, arena)};
        dtm_buffer_sums(module, b.timeline);
        b.costs = dtm_stage_costs(module, arena);
        buffer(&b);
    }
    module->after = dtm_string_of(module->context, "buffer");
    dtm_arena_destroy(arena);
    return true;
}
