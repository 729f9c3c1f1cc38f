/* Within the proof of timelines: what timeline_prove.c (contents, channels, memory) and timeline_run.c (nothing stands
 * still) share. */
#ifndef DTM_PASSES_TIMELINE_PROVE_H
#define DTM_PASSES_TIMELINE_PROVE_H

#include "passes/timeline.h"

/* Every placement sends to neighbours alone, the last rank's next being the first: so a channel is a source, one of two
 * directions and a kind. */
enum { CHANNELS = 4 }; /* of a source */
static inline uint32_t timeline_channel(const dtm_timeline *t, int from, int to, bool backward) {
    return (uint32_t)from * CHANNELS + (to != (from + 1) % t->ranks) * 2 + backward;
}

/* A message waits to be used where its maker's number stands; places count from 0. */
typedef struct timeline_messages {
    uint32_t *place;     /* by the number of the task that makes it: its place in its channel */
    uint32_t *count;     /* by channel: messages */
    uint32_t **makers;   /* by channel and place: the operation of the source that makes it */
    uint32_t **users;    /* by channel and place: the operation of the destination that uses it */
} timeline_messages;

/* Why a rank does not go on: for the task `task` (or the group) of its next operation. */
typedef enum timeline_reason { WAITS_FOR_TASK, WAITS_FOR_SLOT, WAITS_FOR_PARTNER } timeline_reason;
typedef struct timeline_wait {
    timeline_reason reason;
    int rank;       /* the other */
    dtm_task task;  /* what is not there: the task that makes it; of a slot, the task whose result still fills it */
} timeline_wait;

typedef struct timeline_run {
    bool stuck;
    size_t *done;         /* by rank: operations */
    timeline_wait *waits; /* by rank, of those that are not at their end */
    int ample;
} timeline_run;

/* Runs the timeline with so many buffers a channel in all (receive slots and send buffers; 0: without end). Each rank's
 * next step depends only on what has been done, never on when: so if one run comes to its end, all do. */
timeline_run timeline_run_with(dtm_arena *arena, const dtm_timeline *timeline, const timeline_messages *messages,
                               uint32_t buffers);

/* The messages of a timeline with groups; counts them by channel and finds how many of a channel are received and not yet
 * used at most (at least 1), and the receive that fills so many, if any. False after an error (E0904, E0908, and E0905 where
 * a result is made while so many of its channel are unsent as there are send buffers). */
bool timeline_check_groups(dtm_context *context, dtm_arena *arena, const dtm_timeline *timeline, timeline_messages *messages,
                           uint32_t send_buffers, int *slots, const dtm_message **fills);

/* "F3 of stage 2" */
const char *timeline_task_story(dtm_arena *arena, const dtm_timeline *timeline, int rank, dtm_task task);

#endif
