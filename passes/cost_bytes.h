/* Bytes that ranks send: of one step between two layouts the most that any rank does, for the model of time (cost.c); of a
 * collective what a given rank does, for the ledger. Both count with the arithmetic of the runtime (comm/algorithm.h). */
#ifndef DTM_PASSES_COST_BYTES_H
#define DTM_PASSES_COST_BYTES_H

#include "passes/cost.h"

/* `payload`: of an all_reduce, which may be a bucket. Of microbatches, in the largest. */
int64_t dtm_most_sent(const dtm_module *module, dtm_op_kind kind, uint16_t axes, const dtm_type_data *from,
                      const dtm_type_data *to, int64_t payload, dtm_algorithm algorithm);

/* What the rank at these coordinates (on an axis in time: the number of a microbatch) sends in one run of an operator. */
int64_t dtm_sent_by(const dtm_module *module, dtm_op op, dtm_algorithm algorithm, const int64_t *coordinates);

#endif
