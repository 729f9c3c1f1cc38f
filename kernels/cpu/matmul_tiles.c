/* Compiled once per instruction set. */
#include "kernels/cpu/level.h"
#include "kernels/cpu/matmul_tiles.h"
#include "kernels/cpu/simd.h"

/* Packs a[rows, depth] into panels of six rows, each depth-major: to[p * 6 + i]. */
static void pack_rows(const float *a, int64_t row, int64_t col, int64_t rows, int64_t depth, float *to) {
    if (row == 1 && col != 1) { /* long pieces of a at a time, to all panels */
        const int64_t whole = rows / DTM_TILE_ROWS * DTM_TILE_ROWS;
        for (int64_t p = 0; p < depth; p++) {
            if (p + DTM_FETCH_ROWS < depth) dtm_fetch(a + (p + DTM_FETCH_ROWS) * col, whole);
            for (int64_t i = 0; i < whole; i += DTM_TILE_ROWS)
                memcpy(to + i * depth + p * DTM_TILE_ROWS, a + i + p * col, DTM_TILE_ROWS * sizeof(float));
        }
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

/* ---- whole tiles ---- */

/* Steps of depth between one look ahead and the next: a line of floats, or half of it. */
enum { STEPS = 8 };

/* What a tile asks the second-level cache to have ready for tiles to come, a little at every STEPS of depth: its part of
 * the next panel of b, and of the next block of a (`step` is how far to go on each time). */
typedef struct ahead {
    const float *b, *a;
    int64_t step;
} ahead;

DTM_INLINE void accumulate(dtm_vec sum[DTM_TILE_ROWS][DTM_TILE_VECS], const float *upper, const float *lower,
                           int64_t row, const float *b) {
    dtm_vec right[DTM_TILE_VECS];
#pragma GCC unroll 8
    for (int v = 0; v < DTM_TILE_VECS; v++) right[v] = dtm_load(b + v * DTM_LANES);
#pragma GCC unroll 8
    for (int i = 0; i < DTM_TILE_ROWS; i++) {
        const dtm_vec left = dtm_splat(i < 3 ? upper[i * row] : lower[(i - 3) * row]);
#pragma GCC unroll 8
        for (int v = 0; v < DTM_TILE_VECS; v++) sum[i][v] += left * right[v];
    }
}

/* simd.h's tile where it has all its rows and columns, b is packed and a packed or rows that run on: the same sums, with
 * addresses that the compiler knows more of. */
DTM_INLINE void whole_tile(const dtm_tile *t, const ahead *next, int64_t row, const int64_t col) {
    dtm_vec sum[DTM_TILE_ROWS][DTM_TILE_VECS];
    const float *a = t->a, *lower = a + 3 * row, *b = t->b, *next_b = next->b, *next_a = next->a;
    const int64_t step = next->step;
#pragma GCC unroll 8
    for (int i = 0; i < DTM_TILE_ROWS; i++) __builtin_prefetch(t->c + i * t->c_row, 1);
#pragma GCC unroll 8
    for (int i = 0; i < DTM_TILE_ROWS; i++)
#pragma GCC unroll 8
        for (int v = 0; v < DTM_TILE_VECS; v++) sum[i][v] = (dtm_vec){0};
    int64_t left = t->depth;
    for (; left >= STEPS; left -= STEPS, a += STEPS * col, lower += STEPS * col, b += STEPS * DTM_TILE_COLS) {
#pragma GCC unroll 8
        for (int line = 0; line < DTM_TILE_COLS; line += 16) __builtin_prefetch(next_b + line, 0, 2);
        __builtin_prefetch(next_a, 0, 2);
        next_b += (DTM_TILE_COLS + 15) / 16 * 16, next_a += step;
        if (col == 1) __asm__("" : "+r"(row)); /* or GCC keeps sums of addresses, more than there are registers */
#if DTM_LANES == 4 /* without three-operand instructions GCC would run out of registers */
#pragma GCC unroll 1
#else
#pragma GCC unroll 8
#endif
        for (int p = 0; p < STEPS; p++) accumulate(sum, a + p * col, lower + p * col, row, b + p * DTM_TILE_COLS);
    }
    for (; left > 0; left--, a += col, lower += col, b += DTM_TILE_COLS) accumulate(sum, a, lower, row, b);
#pragma GCC unroll 8
    for (int i = 0; i < DTM_TILE_ROWS; i++)
#pragma GCC unroll 8
        for (int v = 0; v < DTM_TILE_VECS; v++)
            dtm_tile_write(t->c + i * t->c_row + v * DTM_LANES, sum[i][v], t->alpha, t->add);
}

DTM_NOINLINE void whole_tile_packed(const dtm_tile *t, const ahead *next) {
    whole_tile(t, next, 1, DTM_TILE_ROWS);
}

DTM_NOINLINE void whole_tile_direct(const dtm_tile *t, const ahead *next) {
    whole_tile(t, next, t->a_row, 1);
}

/* ---- a block of rows ---- */

/* A block of rows of a against a packed block of b. */
typedef struct row_block {
    dtm_tile first; /* the first tile; its a is packed or not */
    int64_t rows, cols;
    const float *next; /* where a lies that the next block of rows will read, or NULL */
    int64_t row, col;  /* its strides */
} row_block;

/* Tile number `tile` of the block fetches one row of what is next, or where columns run on some steps of depth, a line
 * wide. */
static ahead look_ahead(const row_block *block, const dtm_tile *t, int64_t i, int64_t tile) {
    const int64_t steps = t->depth / STEPS;
    ahead to = {.b = t->b + DTM_TILE_COLS * t->depth + i / DTM_TILE_ROWS * steps * ((DTM_TILE_COLS + 15) / 16 * 16),
                .a = t->a};
    if (!block->next) return to;
    if (block->col == 1) {
        if (tile < DTM_MATMUL_ROWS) to.a = block->next + tile * block->row, to.step = STEPS;
    } else if (block->row == 1) {
        enum { LINES = DTM_MATMUL_ROWS / 16 + 1 };
        const int64_t p = tile / LINES * steps;
        if (p < t->depth) to.a = block->next + p * block->col + tile % LINES * 16, to.step = block->col;
    }
    return to;
}

static void multiply(const row_block *block) {
    int64_t tile = 0;
    for (int64_t j = 0; j < block->cols; j += DTM_TILE_COLS) {
        dtm_tile t = block->first;
        t.b += j * t.depth;
        t.cols = DTM_MIN(block->cols - j, DTM_TILE_COLS);
        for (int64_t i = 0; i < block->rows; i += DTM_TILE_ROWS, tile++) {
            t.a = block->first.a + i * (block->first.a_col == 1 ? t.a_row : t.depth);
            t.c = block->first.c + i * t.c_row + j;
            if (block->rows - i < DTM_TILE_ROWS || t.cols < DTM_TILE_COLS) {
                dtm_tiles_run(&t, DTM_MIN(block->rows - i, DTM_TILE_ROWS), t.cols, 1);
                continue;
            }
            const ahead next = look_ahead(block, &t, i, tile);
            if (t.a_col == 1)
                whole_tile_direct(&t, &next);
            else
                whole_tile_packed(&t, &next);
        }
    }
}

/* ---- the product ---- */

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
    const int64_t depth_part = even_part(m->depth, DTM_MATMUL_DEPTH, STEPS);
    const int64_t col_part = even_part(m->cols, DTM_MATMUL_COLS, DTM_TILE_COLS);
    const int direct = m->a_col == 1 && m->cols <= DTM_MATMUL_DIRECT;
    float *packed_a = dtm_scratch_take(&scratch, DTM_MATMUL_ROWS * depth_part * (int64_t)sizeof(float));
    float *packed_b = scratch;
    for (int64_t j = 0; j < m->cols; j += col_part) {
        const int64_t cols = DTM_MIN(m->cols - j, col_part);
        for (int64_t p = 0; p < m->depth; p += depth_part) {
            const int64_t depth = DTM_MIN(m->depth - p, depth_part);
            dtm_panels_pack(m->b + p * m->b_row + j * m->b_col, m->b_row, m->b_col, depth, cols, packed_b);
            for (int64_t i = 0; i < m->rows; i += DTM_MATMUL_ROWS) {
                const int64_t rows = DTM_MIN(m->rows - i, DTM_MATMUL_ROWS);
                const float *a = m->a + i * m->a_row + p * m->a_col;
                if (!direct) pack_rows(a, m->a_row, m->a_col, rows, depth, packed_a);
                const row_block block = {.first = {.a = direct ? a : packed_a,
                                                   .a_row = direct ? m->a_row : 1,
                                                   .a_col = direct ? 1 : DTM_TILE_ROWS,
                                                   .b = packed_b,
                                                   .b_row = DTM_TILE_COLS,
                                                   .c = m->c + i * m->c_row + j,
                                                   .c_row = m->c_row,
                                                   .depth = depth,
                                                   .add = !fresh || p > 0,
                                                   .alpha = m->alpha},
                                         .rows = rows,
                                         .cols = cols,
                                         .next = i + DTM_MATMUL_ROWS < m->rows ? a + DTM_MATMUL_ROWS * m->a_row : NULL,
                                         .row = m->a_row,
                                         .col = m->a_col};
                multiply(&block);
            }
        }
    }
}
