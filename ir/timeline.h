/* A timeline: in which order each rank of a pipeline works through the stages and microbatches of a step. It is IR: it
 * prints as text, is read back from text, edited by hand or not, and the passes of passes/timeline.h make, prove, time
 * and draw it. It owns arrays in an arena and refers to everything by number; it knows nothing of costs or of models.
 *
 * A stage is a stretch of the model, 0 the first. Each rank holds `chunks` stages, which it numbers from 0; a placement
 * says which. Microbatches pass the stages in order forward and in reverse order backward, along one of one or two
 * directions; each direction numbers its microbatches from 0.
 *
 *     single    rank r holds stage r
 *     loop      chunk c of rank r is stage c P + r
 *     v         even chunks as loop, odd ones from the last rank back: c P + P - 1 - r. With two chunks the stages run
 *               down the ranks and up again, so that the first and the last stand on rank 0
 *     bidir     every stage on two ranks: chunk 0 of rank r is stage r, passed in direction 0, chunk 1 is stage
 *               P - 1 - r, passed in direction 1
 *
 * Tasks are F (forward), B (backward: gradients of input and weights), and its two parts I (of the input) and W (of the
 * weights). An operation is what a rank does at a time: a task, or an F and a B (or I) overlapped in a pair, or a group
 * of sends and receives. Without groups communication follows from the order: an output is sent as soon as it is there,
 * receives are posted early, in the order of their use, and each operation waits for what it reads. With groups (all of
 * them, or none) it stands where it is written: the messages of a group are posted together, and what follows waits for
 * them. Messages are matched first in, first out among those of one source, destination and kind (F or B). */
#ifndef DTM_IR_TIMELINE_H
#define DTM_IR_TIMELINE_H

#include "ir/base.h"

typedef enum dtm_placement { DTM_PLACE_SINGLE, DTM_PLACE_LOOP, DTM_PLACE_V, DTM_PLACE_BIDIRECTIONAL } dtm_placement;
enum { DTM_PLACEMENTS = 4 };

typedef enum dtm_task_kind { DTM_TASK_FORWARD, DTM_TASK_BACKWARD, DTM_TASK_INPUT, DTM_TASK_WEIGHT } dtm_task_kind;
#define DTM_TASK_LETTERS "FBIW"

typedef struct dtm_task {
    uint32_t microbatch; /* of its direction */
    uint16_t chunk;      /* of its rank */
    uint8_t kind;        /* dtm_task_kind */
} dtm_task;

/* A message, named by the task that makes it on the rank that sends it; kind is F, or B also where an I makes it. */
typedef struct dtm_message {
    dtm_task made;
    int peer; /* the other rank */
    bool receive;
    dtm_span span;
} dtm_message;

typedef enum dtm_operation_kind { DTM_OPERATION_TASK, DTM_OPERATION_PAIR, DTM_OPERATION_GROUP } dtm_operation_kind;

typedef struct dtm_operation {
    dtm_operation_kind kind;
    dtm_task tasks[2];         /* of a pair the F comes first */
    uint32_t message, n_messages; /* of a group: a range of the rank's messages */
    dtm_span span;
} dtm_operation;

typedef struct dtm_rank_order {
    dtm_operation *operations;
    size_t count, capacity;
    dtm_message *messages;
    size_t n_messages, cap_messages;
} dtm_rank_order;

typedef struct dtm_timeline {
    dtm_arena *arena;
    const char *name; /* of its schedule; one word */
    dtm_placement placement;
    int ranks, microbatches, chunks; /* P, M (of all directions), V (stages a rank holds) */
    int stages, directions;
    bool groups;           /* communication is written out */
    dtm_rank_order *order; /* by rank */
} dtm_timeline;

/* What the numbers may be. A timeline has every task of a step by name, and what makes, proves and places it takes time and memory
 * for each, 1.5 KB where programs come of it: so many are a minute and 6 GB, and memory ends soon after. */
enum { DTM_TIMELINE_RANKS = 1 << 12, DTM_TIMELINE_MICROBATCHES = 1 << 20, DTM_TIMELINE_TASKS = 1 << 22 };

/* Whether a file holds the text of a timeline rather than a program: a first line that says a placement, or tasks without any. */
bool dtm_timeline_is_text(const char *text, size_t length);

/* An empty timeline. single has one chunk, bidir two (for any other number: dtm_broken). */
dtm_timeline *dtm_timeline_create(dtm_arena *arena, const char *name, dtm_placement placement, int ranks, int microbatches,
                                  int chunks);
/* The same without its operations. */
dtm_timeline *dtm_timeline_like(dtm_arena *arena, const dtm_timeline *timeline);
/* The same, operations and all. */
dtm_timeline *dtm_timeline_copy(dtm_arena *arena, const dtm_timeline *timeline);
/* One after another so often, each time for other microbatches; of two directions for as many in either. */
dtm_timeline *dtm_timeline_rounds(dtm_arena *arena, dtm_timeline *timeline, int rounds);
void dtm_timeline_add(dtm_timeline *timeline, int rank, dtm_task_kind kind, int microbatch, int chunk);
/* An overlapped pair: the forward of one microbatch, and the backward (B or I) of one. */
void dtm_timeline_add_pair(dtm_timeline *timeline, int rank, dtm_task forward, dtm_task backward);
void dtm_timeline_add_operation(dtm_timeline *timeline, int rank, dtm_operation operation);

const char *dtm_placement_name(dtm_placement placement);
int dtm_timeline_stage(const dtm_timeline *timeline, int rank, int chunk);
int dtm_timeline_direction(const dtm_timeline *timeline, int chunk);
/* Microbatches that pass a chunk: all, or those of its direction (of an odd number direction 0 has one more). */
int dtm_timeline_passing(const dtm_timeline *timeline, int chunk);
/* Where a stage lies, for a direction. */
void dtm_timeline_place(const dtm_timeline *timeline, int stage, int direction, int *rank, int *chunk);
/* "F3.1", "I0" (without the chunk where there is but one) */
void dtm_task_print(const dtm_timeline *timeline, dtm_task task, dtm_text *text);

/* Number of a task among all: the tasks of a rank, a chunk and a microbatch stand side by side. B counts as I. */
static inline uint32_t dtm_timeline_number(const dtm_timeline *t, int rank, dtm_task task) {
    uint32_t kind = task.kind == DTM_TASK_FORWARD ? 0 : task.kind == DTM_TASK_WEIGHT ? 2 : 1;
    return (((uint32_t)rank * (uint32_t)t->chunks + task.chunk) * (uint32_t)t->microbatches + task.microbatch) * 3 + kind;
}
static inline uint32_t dtm_timeline_numbers(const dtm_timeline *t) {
    return (uint32_t)t->ranks * (uint32_t)t->chunks * (uint32_t)t->microbatches * 3;
}

/* What must end before a task may begin: at most two tasks; of those that make a gradient of an input the kind is I,
 * whether an I or a B makes it. The one that comes from another stage, if any, is the last. Returns how many. */
typedef struct dtm_task_place {
    dtm_task task;
    int rank;
} dtm_task_place;
int dtm_timeline_needs(const dtm_timeline *timeline, int rank, dtm_task task, dtm_task_place needs[2]);
/* The rank that a task's result is sent to, and the chunk there, or -1: it stays on the rank, or there is no result. */
int dtm_timeline_sends(const dtm_timeline *timeline, int rank, dtm_task task, int *chunk);

/* ---- text: one line that begins with `#` and has P, M, V and placement, then a line a rank ----
 *
 *     # 1f1b P=2 M=2 V=1 placement=single
 *     F0 F1 B0 B1
 *     F0 B0 F1 B1
 *
 * F3.1 is microbatch 3 in chunk 1, (F3.0+B1.1) a pair, [S:F0>1 R:B0<1] a group. */
void dtm_timeline_print(const dtm_timeline *timeline, dtm_text *text);
/* Reads a registered source; NULL after an error (E0901). Blank lines, comments and a leading `rank 3:` are let pass. */
dtm_timeline *dtm_timeline_parse(dtm_context *context, dtm_arena *arena, uint32_t file);

#endif
