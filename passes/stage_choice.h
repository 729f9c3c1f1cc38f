/* What `stage` decides: where a pipeline is cut, and in which order its ranks go. Costs and memory of single units are a model; what
 * counts is what a program that is so cut comes to. So a choice is made, tried, and made again with what the trial showed
 * (stage_settle.c), until one stands. */
#ifndef DTM_PASSES_STAGE_CHOICE_H
#define DTM_PASSES_STAGE_CHOICE_H

#include "passes/timeline.h"

typedef struct dtm_module dtm_module;

/* What came of a program that was compiled with some choice. */
typedef struct dtm_stage_result {
    const char *name; /* of the timeline */
    int chunks;
    double memory, step; /* bytes of the largest arena of a rank; seconds */
    bool fits;
    bool open; /* perhaps with less started ahead; that was not looked at, as others are as quick */
} dtm_stage_result;

typedef struct dtm_stage_choice {
    const dtm_timeline *timeline;        /* NULL: one microbatch after the other, `schedule = sequential` */
    int n_stages, chunks;
    const int64_t *copies;               /* by stage */
    const dtm_timeline_answer *searched; /* schedule = auto: how it was found; else NULL */
    bool careful;                        /* to be compiled within the memory there is; else as if it were without end */
    int fullest;                         /* the rank that is thought to need most; -1: it is known that all have room, or not known */
    const dtm_stage_result *tried;       /* once it stands, of `auto`: what was compiled, in that order */
    int n_tried;
} dtm_stage_choice;

typedef struct dtm_stage_chooser dtm_stage_chooser;

/* For a module with a pipeline that has come to `stage`. NULL after an error (E0413, E0414, E0902). */
dtm_stage_chooser *dtm_stage_chooser_create(dtm_module *module);
void dtm_stage_chooser_destroy(dtm_stage_chooser *chooser);
/* The choice by all that is known, in the context's arena; NULL after an error (E0907: by `auto` no timeline was found that fits).
 * `stands`: no other can be better; else it is to be tried, and asked for again. */
const dtm_stage_choice *dtm_stage_choose(dtm_stage_chooser *chooser, bool *stands);
/* What a choice came to: bytes of each rank's arena (NULL: it could not be compiled, or it was known before that it does not fit), and
 * seconds of a step by the machine model. `vain`: the fullest rank has not the room for it with nothing started ahead either. Whether it
 * stands as it was compiled, and is the best so far. */
bool dtm_stage_tried(dtm_stage_chooser *chooser, const dtm_stage_choice *choice, const double *arena, double step, bool vain);

#endif
