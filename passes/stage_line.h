/* Of an order of a pipeline's ranks the cut that it gets: found by a model of memory and by what programs so cut came to. */
#ifndef DTM_PASSES_STAGE_LINE_H
#define DTM_PASSES_STAGE_LINE_H

#include "passes/stage.h"

typedef struct stage_line {
    stages s;                            /* its places, and room for a cut */
    const dtm_timeline_problem *problem; /* units 0: the program cannot be cut, or is cut as it says */
    int64_t copies;
    double memory; /* bytes of a rank; 0: no bound */
    stage_seen *seen;
    int n_seen, most; /* so many cuts may be tried */
} stage_line;

/* How it goes on with a line. */
typedef enum stage_advice {
    STAGE_TRY,    /* it is not known whether this cut fits */
    STAGE_STANDS, /* no cut that fits is better, or this one is given, or there is no bound */
    STAGE_NONE,   /* none fits: this is the best one without a bound */
} stage_advice;

/* Of stages whose module, rule, scratch and number of ranks are set; `places` says where stages lie. */
stage_line stage_line_of(const stages *s, dtm_timeline *places, const dtm_timeline_problem *problem, int64_t copies, double memory);
/* The next cut, the copies of each stage in the arena. */
stage_advice stage_line_next(stage_line *line, dtm_arena *arena, int64_t **copies);
/* Bytes of each rank's arena with the cut. */
void stage_line_saw(stage_line *line, const int64_t *copies, const double *arena);
/* Whether what is alive at one time is too much by far, however it is cut. */
bool stage_line_is_hopeless(stage_line *line);

#endif
