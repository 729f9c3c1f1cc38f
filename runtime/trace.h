/* --trace: what a rank did when, as Chrome's and Perfetto's JSON, all ranks on rank 0's clock. A rank is a process with a row
 * for what it computes and one for what it sends (more where messages overlap), with the names of `dtmc timeline`'s JSON. A
 * rank keeps a ring of its latest events; what was dropped is counted and said.
 *
 *     rank 1   compute  | step 3                                          |
 *                       | F3.0            | B2.0                     | ..
 *                       | h | q | attn .. |
 *              sends                      | F3.0 to rank 2 |                                       */
#ifndef DTM_TRACE_H
#define DTM_TRACE_H

#include "runtime/rank.h"

/* Before the first step, on all ranks; nothing without --trace. Measures how far the clocks of the ranks are apart. */
bool dtm_trace_open(dtm_rank *rank, dtm_status *status);
/* After the last step, on all ranks: rank 0 writes the file. */
bool dtm_trace_write(dtm_rank *rank, dtm_status *status);
/* In any state. */
void dtm_trace_close(dtm_rank *rank);

/* Something begins on the rank's own thread, within what has begun before; the next end is its end. Cheap where no trace is
 * written. The name is copied, the category stays. */
void dtm_trace_begin(dtm_rank *rank, const char *name, const char *category);
void dtm_trace_end(dtm_rank *rank);
/* Around the run of call `index` of a timeline, or of the pair that begins there. Named as in timelines, "F3.1", "F3+B1"; what
 * it sends is named after it. Runs of one task one after another are one event. */
void dtm_trace_begin_call(dtm_rank *rank, const dtm_plan_timeline *timeline, uint32_t index);
void dtm_trace_end_call(dtm_rank *rank, const dtm_plan_timeline *timeline, uint32_t index);
/* What is sent from now on is of this call, a part of the pair that is under way. */
void dtm_trace_note_call(dtm_rank *rank, const dtm_plan_call *call);
/* A step, from 0, of those that are asked for or not. */
void dtm_trace_begin_step(dtm_rank *rank, int64_t step);
void dtm_trace_end_step(dtm_rank *rank);

#endif
