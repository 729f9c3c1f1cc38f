/* Compiled once per instruction set. */
#include "kernels/cpu/level.h"
#include "kernels/cpu/matmul_tiles.h"
#include "kernels/cpu/simd.h"

/* Packs a[rows, depth] into panels of six rows, each depth-major: to[p * 6 + i]. */
static void pack_rows(const float *a, int64_t row, int64_t col, int64_t rows, int64_t depth, float *to) {
    if (row == 1 && col != 1) { /* long pieces of a at a time, to all panels */
        const int64_t whole = rows / DTM_TILE_ROWS * DTM_TILE_ROWS;
        for (int64_t p = 0; p < depth; p++)
            for (int64_t i = 0; i < whole; i += DTM_TILE_ROWS)
                memcpy(to + i * depth + p * DTM_TILE_ROWS, a + i + p * col, DTM_TILE_ROWS * sizeof(float));
        rows -= whole, a += whole, to += whole * depth;
    }
    for (int64_t i = 0; i < rows; i += DTM_TILE_ROWS, a += DTM_TILE_ROWS * row, to += DTM_TILE_ROWS * depth) {
        const int64_t here = DTM_MIN(rows - i, DTM_TILE_ROWS);
        if (col == 1)
            dtm_transpose(a, row, here, depth, to, DTM_TILE_ROWS);
        else
            for (int64_t p = 0; p < depth; p++)
                for (int64_t r = 0; r < here; r++) to[p * DTM_TILE_ROWS + r] = a[r * row + p * col];
    }
}

static void scale(const dtm_matmul_block *m) {
    for (int64_t i = 0; i < m->rows; i++) {
        float *c = m->c + i * m->c_row;
        if (m->beta == 0)
            memset(c, 0, (size_t)m->cols * sizeof(float));
        else
            for (int64_t j = 0; j < m->cols; j++) c[j] *= m->beta;
    }
}

/* The tiles of one packed block of a with one packed block of b. */
static void multiply(const dtm_tile *whole, int64_t rows, int64_t cols) {
    for (int64_t j = 0; j < cols; j += DTM_TILE_COLS) {
        dtm_tile t = *whole;
        t.b = whole->b + j * whole->depth;
        const int64_t here = DTM_MIN(cols - j, DTM_TILE_COLS);
        for (int64_t i = 0; i < rows; i += DTM_TILE_ROWS) {
            t.a = whole->a + i * whole->depth;
            t.c = whole->c + i * whole->c_row + j;
            dtm_tiles_run(&t, DTM_MIN(rows - i, DTM_TILE_ROWS), here, 1);
        }
    }
}

/* Cuts `size` into the fewest parts of at most `most`, about equal, each a multiple of `step`. */
static int64_t even_part(int64_t size, int64_t most, int64_t step) {
    const int64_t parts = (size + most - 1) / most, part = (size + parts - 1) / parts;
    return (part + step - 1) / step * step;
}

void DTM_LEVEL(dtm_matmul_tiles)(const dtm_matmul_block *m, void *scratch) {
    if (m->rows <= 0 || m->cols <= 0) return;
    const int fresh = m->beta == 0 && m->depth > 0;
    if (!fresh && m->beta != 1) scale(m);
    if (m->depth <= 0) return;
    const int64_t depth_part = even_part(m->depth, DTM_MATMUL_DEPTH, 4);
    const int64_t col_part = even_part(m->cols, DTM_MATMUL_COLS, DTM_TILE_COLS);
    const int64_t row_part = even_part(m->rows, DTM_MATMUL_ROWS, DTM_TILE_ROWS);
    float *packed_a = dtm_scratch_take(&scratch, row_part * depth_part * (int64_t)sizeof(float));
    float *packed_b = scratch;
    for (int64_t j = 0; j < m->cols; j += col_part) {
        const int64_t cols = DTM_MIN(m->cols - j, col_part);
        for (int64_t p = 0; p < m->depth; p += depth_part) {
            const int64_t depth = DTM_MIN(m->depth - p, depth_part);
            dtm_panels_pack(m->b + p * m->b_row + j * m->b_col, m->b_row, m->b_col, depth, cols, packed_b);
            for (int64_t i = 0; i < m->rows; i += row_part) {
                const int64_t rows = DTM_MIN(m->rows - i, row_part);
                pack_rows(m->a + i * m->a_row + p * m->a_col, m->a_row, m->a_col, rows, depth, packed_a);
                const dtm_tile t = {.a = packed_a,
                                    .a_row = 1,
                                    .a_col = DTM_TILE_ROWS,
                                    .b = packed_b,
                                    .b_row = DTM_TILE_COLS,
                                    .c = m->c + i * m->c_row + j,
                                    .c_row = m->c_row,
                                    .depth = depth,
                                    .add = !fresh || p > 0,
                                    .alpha = m->alpha};
                multiply(&t, rows, cols);
            }
        }
    }
}
