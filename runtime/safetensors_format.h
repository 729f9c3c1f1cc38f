/* What the reader and the writer of safetensors share; only they include this. */
#ifndef DTM_SAFETENSORS_FORMAT_H
#define DTM_SAFETENSORS_FORMAT_H

#include "runtime/safetensors.h"

/* Elements times size, or -1 if a dimension is negative or the product leaves 63 bits. */
int64_t dtm_stored_total_bytes(const dtm_stored_tensor *tensor);

/* A block of a tensor as runs of bytes that lie together in the file: the trailing dimensions that are whole join the
 * innermost one that is not.
 *
 *     shape [4, 3, 5], block [1..3, 0..3, 2..4]:  6 runs of 2 elements, each 5 elements after the last */
typedef struct dtm_stored_block {
    int rank;                                                                    /* of the dimensions outside a run */
    int64_t size[DTM_STORED_RANK], stride[DTM_STORED_RANK], at[DTM_STORED_RANK]; /* strides in bytes */
    int64_t offset;                                                              /* in the file, of the current run */
    int64_t run_bytes;                                                           /* 0: the block is empty */
    int64_t runs;
} dtm_stored_block;

bool dtm_stored_block_begin(const dtm_stored_tensor *tensor, const int64_t *begin, const int64_t *end,
                            dtm_stored_block *block, dtm_status *status);
/* Moves to the next run; false after the last. */
bool dtm_stored_block_next(dtm_stored_block *block);

#endif
