/* What reads a collective goes behind what does not need it. A part of the pass overlap. */
#ifndef DTM_PASSES_OVERLAP_BEHIND_H
#define DTM_PASSES_OVERLAP_BEHIND_H

#include "ir/ir.h"

/* A collective that is started where it stands and waited for where it is first read. */
typedef struct dtm_waiting {
    dtm_op op, first;     /* first: what reads it, of its region */
    const dtm_op *reader; /* by op: `first` of the others, 0: not on their way */
    const double *times;  /* by op: seconds */
    double wanted;        /* seconds of kernels that are asked for */
    int64_t most;         /* bytes that may live at one time in the region while it is on its way */
} dtm_waiting;

/* Brings operators that stand behind `first` and do not need what the collective makes to before it; returns the seconds of kernels
 * among them, 0: none. */
double dtm_bring_forward(dtm_module *module, const dtm_waiting *waiting);

#endif
