/* Compiled once per instruction set. */
#include "kernels/cpu/matmul_halves.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/level.h"

#include <string.h>

static void widen(const void *from, int64_t type, int64_t row, int64_t col, int64_t rows, int64_t cols, float *restrict to, int64_t *to_row,
                  int64_t *to_col) {
    const int across = row == 1 && col != 1;
    const int64_t outer = across ? cols : rows, inner = across ? rows : cols, far = across ? col : row, near = across ? row : col;
    *to_row = across ? 1 : cols, *to_col = across ? rows : 1;
    for (int64_t i = 0; i < outer; i++) {
        const uint16_t *h = (const uint16_t *)from + i * far;
        const float *f = (const float *)from + i * far;
        float *out = to + i * inner;
        if (type == DTM_MATMUL_BF16 && near == 1)
            for (int64_t j = 0; j < inner; j++) out[j] = dtm_of_bf16(h[j]);
        else if (type == DTM_MATMUL_BF16)
            for (int64_t j = 0; j < inner; j++) out[j] = dtm_of_bf16(h[j * near]);
        else if (type == DTM_MATMUL_F16)
            for (int64_t j = 0; j < inner; j++) out[j] = dtm_of_f16(h[j * near]);
        else
            for (int64_t j = 0; j < inner; j++) out[j] = f[j * near];
    }
}

static void narrow(const float *restrict from, int64_t type, int64_t row, int64_t rows, int64_t cols, void *to) {
    for (int64_t i = 0; i < rows; i++) {
        uint16_t *h = (uint16_t *)to + i * row;
        float *f = (float *)to + i * row;
        if (type == DTM_MATMUL_BF16)
            for (int64_t j = 0; j < cols; j++) h[j] = dtm_to_bf16(from[i * cols + j]);
        else if (type == DTM_MATMUL_F16)
            for (int64_t j = 0; j < cols; j++) h[j] = dtm_to_f16(from[i * cols + j]);
        else
            memcpy(f, from + i * cols, (size_t)cols * sizeof(float));
    }
}

const dtm_matmul_halves DTM_LEVEL(dtm_matmul_halves) = {widen, narrow};
