/* Ranks that go through rows of events, of which some repeat, and wait for each other: when each is done (step_time.c). A rank works;
 * starts things that its progress thread carries out one after another; waits for them; and meets other ranks, of which all go on
 * when the last has come. The copies of a repeat are not walked one by one: what a copy does to the times of all ranks that it
 * binds together is found once, and many copies do a power of that (max_plus.h). */
#ifndef DTM_PASSES_STEP_WALK_H
#define DTM_PASSES_STEP_WALK_H

#include "ir/base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum step_kind { STEP_WORK, STEP_START, STEP_WAIT, STEP_MEET, STEP_LOOP, STEP_REPEAT } step_kind;

typedef struct step_row step_row;

typedef struct step_event {
    step_kind kind;
    double time;         /* WORK, MEET; START: that the thing takes */
    size_t thing;        /* START, WAIT: of the rank's things */
    uint32_t group;      /* MEET: ranks meet at events of the same group */
    const bool *members; /* MEET: by rank */
    int64_t copies;      /* REPEAT */
    const step_row *body;
} step_event;

struct step_row {
    step_event *events;
    size_t count, capacity;
    bool meets; /* somewhere in it */
};

/* Work that follows work is one event, and so is a repeat of nothing else. */
void step_row_add(step_row *row, dtm_arena *arena, step_event event);

typedef struct step_walk step_walk;

/* All in the arena. The things of a rank are numbered from 0. */
step_walk *step_walk_create(dtm_arena *arena, size_t n_ranks, step_row *const *rows, const size_t *n_things);

typedef enum step_state { STEP_ENDED, STEP_AT_LOOP, STEP_STUCK } step_state;

/* Until all ranks have ended, or have come to LOOP (in no repeat), or none can go on. */
step_state step_walk_go(step_walk *walk);
void step_walk_pass_loop(step_walk *walk);

/* What is read and may be set: how far the rank is, its progress thread, and when a thing is done. */
double *step_walk_now(step_walk *walk, size_t rank);
double *step_walk_carried_out(step_walk *walk, size_t rank);
double *step_walk_done(step_walk *walk, size_t rank, size_t thing);
bool step_walk_has_ended(const step_walk *walk, size_t rank);
/* Events that were looked at. */
size_t step_walk_visited(const step_walk *walk);

#endif
