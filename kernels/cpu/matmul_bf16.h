/* Products of bf16 by oneDNN, and what its calls have in common: matmul.c's own. */
#ifndef DTM_KERNELS_CPU_MATMUL_BF16_H
#define DTM_KERNELS_CPU_MATMUL_BF16_H

#include "kernels/cpu/matmul_tiles.h"

/* c = a b, or c += a b where beta is 1, on the calling thread; alpha is 1. a and b point at bf16, and c at f32. No size is 0, and
 * dtm_matmul_leading can say how a and b lie. An element's bits depend on the block's shape and strides. */
void dtm_matmul_bf16(const dtm_matmul_block *block);

/* oneDNN wants one stride of each operand to be 1 and the other at least the row's length: whether it is so, and which. */
int dtm_matmul_leading(int64_t rows, int64_t cols, int64_t row, int64_t col, char *form, int64_t *stride);

/* Has oneDNN take no other threads than the one that calls. */
void dtm_matmul_one_thread(void);

#endif
