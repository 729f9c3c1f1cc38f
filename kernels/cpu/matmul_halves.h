/* Parts of operands of products between halves and f32: matmul.c's own, compiled once per instruction set, to the same bits. */
#ifndef DTM_KERNELS_CPU_MATMUL_HALVES_H
#define DTM_KERNELS_CPU_MATMUL_HALVES_H

#include "kernels/cpu/matmul.h"

typedef struct dtm_matmul_halves {
    /* to[rows, cols] of f32, in the order in which `from` runs on: returns the strides there. `type`: a dtm_matmul_type. */
    void (*widen)(const void *from, int64_t type, int64_t row, int64_t col, int64_t rows, int64_t cols, float *to, int64_t *to_row,
                  int64_t *to_col);
    /* Of rows that run on, one after another. */
    void (*narrow)(const float *from, int64_t type, int64_t row, int64_t rows, int64_t cols, void *to);
} dtm_matmul_halves;

extern const dtm_matmul_halves dtm_matmul_halves_v1, dtm_matmul_halves_v3, dtm_matmul_halves_v4;

#endif
