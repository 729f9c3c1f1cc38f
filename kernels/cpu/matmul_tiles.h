/* dtm's own matrix product, after Goto and van de Geijn ("Anatomy of high-performance matrix multiplication", 2008):
 *
 *     for each block of columns of b (NC)          b's block is packed into panels: the last-level cache
 *       for each block of depth (KC)                a panel of it:                    the first-level cache
 *         for each block of rows of a (MC)          packed, six rows a panel, or not: the second-level cache
 *           tiles
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

/* Most of one block, in elements; ROWS and COLS are whole tiles of any instruction set. Measured on Zen 3 over the
 * products of transformers: a depth of 512 halves the passes over c that the first-level cache would ask for, and what
 * a panel of b has too much for it comes from the second level in time.
 *
 * Where a's rows run on and b has at most DIRECT columns, packing a would cost more than its tiles gain: they read it
 * where it lies. */
#define DTM_MATMUL_ROWS 48
#define DTM_MATMUL_DEPTH 512
#define DTM_MATMUL_COLS 1024
#define DTM_MATMUL_DIRECT 768

#endif
