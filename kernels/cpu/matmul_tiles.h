/* dtm's own matrix product, after Goto and van de Geijn ("Anatomy of high-performance matrix multiplication", 2008):
 *
 *     for each block of columns of b (NC)          b's block is packed into panels: the last-level cache
 *       for each block of depth (KC)                a panel of it:                    the first-level cache
 *         for each block of rows of a (MC)          packed, six rows a panel:         the second-level cache
 *           tiles of simd.h
 *
 * The cut of the depth is a function of k alone, and a tile sums each element in the order of depth: so the bits of an
 * element depend neither on the rows and columns computed with it nor on the thread. */
#ifndef DTM_KERNELS_CPU_MATMUL_TILES_H
#define DTM_KERNELS_CPU_MATMUL_TILES_H

#include "kernels/cpu/matmul.h"

/* One block of one product. a, b and c point at its first element. */
typedef struct dtm_matmul_block {
    const float *a, *b;
    float *c;
    int64_t rows, cols, depth;
    int64_t a_row, a_col, b_row, b_col, c_row;
    float alpha, beta;
} dtm_matmul_block;

typedef void dtm_matmul_tiles(const dtm_matmul_block *block, void *scratch);

void dtm_matmul_tiles_v1(const dtm_matmul_block *block, void *scratch);
void dtm_matmul_tiles_v3(const dtm_matmul_block *block, void *scratch);
void dtm_matmul_tiles_v4(const dtm_matmul_block *block, void *scratch);

/* Most of one packed block, in elements, rounded up to whole tiles of any instruction set. */
#define DTM_MATMUL_ROWS 48
#define DTM_MATMUL_DEPTH 384
#define DTM_MATMUL_COLS 768

#endif
