/* The calls of a loop over microbatches: the order in which a rank of a pipeline runs the regions of the loop, each time for
 * one microbatch. It is the rank's line of a timeline (ir/timeline.h), written at the loop:
 *
 *     microbatch microbatch = 3, order = "F0 F1 B0 F2 B1 B2" {
 *         forward stage = 0 { .. }
 *         backward stage = 0 { .. }
 *     }
 *
 * F3.1 calls the forward region of chunk 1; I the backward region; W that of weights alone; B the backward region and then,
 * where there is one, that of weights; a pair (F3.0+B1.1) its two tasks. A task without a region (nothing of it is run here)
 * is no call. A loop without an order calls its regions in the order of the text for one microbatch after the other. */
#ifndef DTM_IR_CALLS_H
#define DTM_IR_CALLS_H

#include "ir/timeline.h"
#include "ir/ir.h"

typedef struct dtm_loop_call {
    dtm_op region;       /* of the loop's body; 0, of a loop without an order: the whole body */
    uint32_t microbatch; /* of all */
    bool first;          /* no call of the region came before it: sums over microbatches begin */
    dtm_task task;
    size_t index;        /* among the calls */
    size_t begin, end;   /* the first and the last call of the operation: those of a pair run at the same time */
} dtm_loop_call;

typedef struct dtm_loop_calls {
    dtm_loop_call *items;
    size_t count, capacity;
} dtm_loop_calls;

/* Whether a loop over microbatches has an order. */
bool dtm_loop_is_ordered(const dtm_module *module, dtm_op loop);
/* The loop with an order around an operator, or 0. */
dtm_op dtm_ordered_loop(const dtm_module *module, dtm_op op);
/* The region of an ordered loop (a child of its body) in which an operator stands; 0: it stands in none. */
dtm_op dtm_called_region(const dtm_module *module, dtm_op op);

/* The tasks and pairs of an order, by themselves. Returns NULL, or what is wrong. */
typedef struct dtm_loop_tasks {
    dtm_operation *items;
    size_t count, capacity;
} dtm_loop_tasks;
const char *dtm_loop_tasks_of(const dtm_module *module, dtm_op loop, dtm_arena *arena, dtm_loop_tasks *out);
/* The calls of an ordered loop, in `arena`. Returns NULL, or what is wrong with the order. */
const char *dtm_loop_calls_of(const dtm_module *module, dtm_op loop, dtm_arena *arena, dtm_loop_calls *out);
/* Where the stages of a rank's program lie, told by the stages and chunks of its loop's regions. */
dtm_placement dtm_loop_placement(const dtm_module *module, dtm_op loop);
/* The loop over the microbatches of a rank's program, or 0. */
dtm_op dtm_rank_loop(const dtm_module *module);

/* What lies between regions. Each call of an ordered loop is at a time, its place among the calls. A value that is made in one
 * region and read in others lives from the call that makes it to the last that reads it, for each microbatch: side by side
 * with those of other microbatches. */
typedef struct dtm_loop_times {
    size_t n_regions, n_microbatches;
    const dtm_op *regions;  /* in the order of the text */
    const int64_t *time;    /* [region * n_microbatches + microbatch]; -1: not called */
    /* The same of the message that the region receives first, sends last: the call before which it is posted, the call before
     * which it must have gone. -1: none. */
    const int64_t *posted, *gone;
} dtm_loop_times;
int dtm_loop_region_index(const dtm_loop_times *times, dtm_op region); /* -1: none */

/* Whether no call of the region comes after it: sums over microbatches are complete. */
bool dtm_loop_call_is_last(const dtm_loop_calls *calls, const dtm_loop_call *call);
/* Whether a region is ever called at the same time as another, as the forward pass of a pair (first) or the other part; whether two
 * are, both parts or those of one part (fills.h). */
bool dtm_loop_is_paired(const dtm_loop_calls *calls, dtm_op region, bool first);
bool dtm_loop_are_paired(const dtm_loop_calls *calls, dtm_op a, dtm_op b);

/* With its messages. A receive is posted as soon as there is a slot for it: `slots` of a channel (source, forward or backward)
 * hold messages that are used or may come. A send is waited for before the call that makes the message `buffers` after it in
 * its channel, or at the end. Both numbers are the loop's. */
typedef enum dtm_loop_entry_kind { DTM_LOOP_RUN, DTM_LOOP_POST, DTM_LOOP_WAIT } dtm_loop_entry_kind;
typedef struct dtm_loop_entry {
    dtm_loop_entry_kind kind;
    dtm_loop_call call; /* RUN: it; else of the region that receives or sends */
    dtm_op message;     /* POST: the receive; WAIT: the send */
} dtm_loop_entry;

typedef struct dtm_loop_schedule {
    dtm_loop_calls calls;
    dtm_loop_times times;
    dtm_loop_entry *entries;
    size_t n_entries, cap_entries;
} dtm_loop_schedule;
/* As dtm_loop_calls_of. */
const char *dtm_loop_schedule_of(const dtm_module *module, dtm_op loop, dtm_arena *arena, dtm_loop_schedule *out);

/* ---- places ---- */

/* After the pass memory, where what is kept from call to call lies for each microbatch: tables at the loop, a number for each
 * microbatch, `places = "0 1 0; 0 2 -"`. A value `at 4096 + places(m, 2) * 512` lies 1024 bytes further on for microbatch 1 than for
 * microbatch 0; `-`: nothing is kept of it. */
#define DTM_NO_PLACE UINT32_MAX
typedef struct dtm_loop_places {
    size_t count, n_microbatches;
    uint32_t *items; /* [table * n_microbatches + microbatch] */
} dtm_loop_places;
/* The tables of a loop, in `arena`; of a loop of 0, or without any, there are none. Returns NULL, or what is wrong with the text. */
const char *dtm_loop_places_of(const dtm_module *module, dtm_op loop, dtm_arena *arena, dtm_loop_places *out);
/* Of a value's table; DTM_NO_PLACE where it has nothing for the microbatch, 0 where it has no table. */
static inline uint32_t dtm_loop_place(const dtm_loop_places *places, const dtm_storage *s, size_t microbatch) {
    return s->places ? places->items[(s->places - 1) * places->n_microbatches + microbatch] : 0;
}
/* How many bytes further on it lies for a microbatch that it has a place for. */
static inline int64_t dtm_loop_place_bytes(const dtm_loop_places *places, const dtm_storage *s, size_t microbatch) {
    uint32_t place = dtm_loop_place(places, s, microbatch);
    return place == DTM_NO_PLACE ? 0 : (int64_t)place * s->batch_stride;
}

/* ---- stays ---- */

/* How a value is there in a region of the loop: made or read; received first, sent last. */
enum { DTM_LOOP_SEEN = 1, DTM_LOOP_RECEIVED = 2, DTM_LOOP_SENT = 4 };
/* Of a value that is there in some regions (`seen`, by region): whether in more than one call, or between calls. */
bool dtm_loop_crosses(const dtm_loop_times *times, const uint8_t *seen);
/* When it is there for a microbatch: from the first call to the last, both included; an empty interval: in none. Before each call,
 * number n, messages are posted at 2 n, then others are waited for; the call runs at 2 n + 1. */
void dtm_loop_busy(const dtm_loop_schedule *schedule, const uint8_t *seen, size_t microbatch, int64_t *from, int64_t *to);
/* The same of all microbatches, in the order in which they come; those that come never at the end. */
typedef struct dtm_loop_stay {
    int64_t from, to;
    size_t microbatch;
} dtm_loop_stay;
dtm_loop_stay *dtm_loop_stays(const dtm_loop_schedule *schedule, const uint8_t *seen, dtm_arena *arena);

#endif
