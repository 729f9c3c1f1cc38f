/* What a run tells: a log of one JSON object a line, and progress on stderr, a line that renews itself on a terminal
 * and plain lines elsewhere. One rank of a run has a log; there the first line of the file is the header, an object
 * that records the run, then comes a line for each step:
 *
 *     {"step":1,"loss":5.545,"grad_norm":1.93,"lr":5e-05,"tokens_per_s":24731.5,"ms":82.9} */
#ifndef DTM_LOG_H
#define DTM_LOG_H

#include "runtime/status.h"

#include <stdint.h>

typedef struct dtm_log dtm_log;

typedef struct dtm_log_report {
    const char *name;
    double value;
} dtm_log_report;

typedef struct dtm_log_step {
    int64_t step, steps; /* from 1, and of how many; steps <= 0: not known */
    double loss;
    bool trains; /* else grad_norm and lr are left out */
    double grad_norm, lr;
    double tokens; /* of this step, all ranks; 0: not counted in tokens */
    double seconds;
    const dtm_log_report *reports; /* of the program's `report` lines, written last */
    int report_count;
} dtm_log_step;

/* path: of the JSON log, or NULL. header: the first line, JSON without a newline. quiet: no progress. An existing file
 * is replaced; with append (a resumed run) it is continued. */
bool dtm_log_open(const char *path, const char *header, bool append, bool quiet, dtm_log **out, dtm_status *status);
/* Every line is in the file when this returns. */
bool dtm_log_write(dtm_log *log, const dtm_log_step *step, dtm_status *status);
/* Ends the progress line, so that something else may be printed. */
void dtm_log_pause(dtm_log *log);
bool dtm_log_close(dtm_log *log, dtm_status *status);

/* The step as its JSON line, without a newline; free it. NULL if memory ran out. */
char *dtm_log_line(const dtm_log_step *step);

#endif
