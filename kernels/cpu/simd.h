/* Vectors of the widest kind the instruction set has, by GCC's vector extensions, and the register tile all matrix
 * work of the CPU kernels is made of. Nothing here knows an instruction by name: the width is all that differs between
 * x86-64 (4 floats), x86-64-v3 (8, fused multiply-add) and x86-64-v4 (16). */
#ifndef DTM_KERNELS_CPU_SIMD_H
#define DTM_KERNELS_CPU_SIMD_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define DTM_LANES 16
#define DTM_TILE_VECS 4
#elif defined(__AVX__)
#define DTM_LANES 8
#define DTM_TILE_VECS 2
#else
#define DTM_LANES 4
#define DTM_TILE_VECS 2
#endif

/* The tile: 6 rows of DTM_TILE_COLS columns. 12 accumulators of 16 registers, or 24 of 32. */
#define DTM_TILE_ROWS 6
#define DTM_TILE_COLS (DTM_TILE_VECS * DTM_LANES)

#define DTM_INLINE static inline __attribute__((always_inline))
#define DTM_NOINLINE static __attribute__((noinline, unused))
#define DTM_MIN(a, b) ((a) < (b) ? (a) : (b))
#define DTM_MAX(a, b) ((a) > (b) ? (a) : (b))

typedef float dtm_vec __attribute__((vector_size(4 * DTM_LANES)));
typedef int32_t dtm_vec_int __attribute__((vector_size(4 * DTM_LANES)));
typedef float dtm_vec_loose __attribute__((vector_size(4 * DTM_LANES), aligned(4), may_alias));

DTM_INLINE dtm_vec dtm_load(const float *at) {
    return *(const dtm_vec_loose *)at;
}
DTM_INLINE void dtm_store(float *at, dtm_vec x) {
    *(dtm_vec_loose *)at = x;
}
DTM_INLINE dtm_vec dtm_splat(float x) {
    return x - (dtm_vec){0};
}
DTM_INLINE dtm_vec dtm_select(dtm_vec_int mask, dtm_vec yes, dtm_vec no) {
    return (dtm_vec)(((dtm_vec_int)yes & mask) | ((dtm_vec_int)no & ~mask));
}
DTM_INLINE dtm_vec dtm_vec_max(dtm_vec a, dtm_vec b) {
    return dtm_select(a > b, a, b);
}

/* Lane i takes lane i + half's place and the other way round, for all i with that bit clear. */
#if DTM_LANES == 16
#define DTM_SWAP_8(x) __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define DTM_SWAP_4(x) __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define DTM_SWAP_2(x) __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define DTM_SWAP_1(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#elif DTM_LANES == 8
#define DTM_SWAP_4(x) __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3)
#define DTM_SWAP_2(x) __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5)
#define DTM_SWAP_1(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6)
#else
#define DTM_SWAP_2(x) __builtin_shufflevector(x, x, 2, 3, 0, 1)
#define DTM_SWAP_1(x) __builtin_shufflevector(x, x, 1, 0, 3, 2)
#endif

DTM_INLINE float dtm_vec_sum(dtm_vec x) {
#if DTM_LANES >= 16
    x += DTM_SWAP_8(x);
#endif
#if DTM_LANES >= 8
    x += DTM_SWAP_4(x);
#endif
    x += DTM_SWAP_2(x);
    x += DTM_SWAP_1(x);
    return x[0];
}
DTM_INLINE float dtm_vec_top(dtm_vec x) {
#if DTM_LANES >= 16
    x = dtm_vec_max(x, DTM_SWAP_8(x));
#endif
#if DTM_LANES >= 8
    x = dtm_vec_max(x, DTM_SWAP_4(x));
#endif
    x = dtm_vec_max(x, DTM_SWAP_2(x));
    return dtm_vec_max(x, DTM_SWAP_1(x))[0];
}

/* Rounds up to whole vectors. */
DTM_INLINE int64_t dtm_whole_vecs(int64_t n) {
    return (n + DTM_LANES - 1) / DTM_LANES * DTM_LANES;
}

/* A product's operands: c = alpha * a b, or c += alpha * a b, for up to 6 rows and a tile's columns.
 * a(i, p) = a[i * a_row + p * a_col]; b(p, j) = b[p * b_row + j], readable up to whole vectors of columns. */
typedef struct dtm_tile {
    const float *a, *b;
    float *c;
    int64_t a_row, a_col, b_row, c_row, depth;
    int64_t cols; /* to write; what lies beyond in c is left alone */
    int add;
    float alpha;
} dtm_tile;

/* The product is rounded before it is added: else a compiler makes one operation of both in one tile and two in another, and the bits
 * depend on how c was cut (GCC 12 with AVX-512). */
#if defined(__x86_64__)
#define DTM_ROUNDED(x) __asm__("" : "+v"(x))
#elif defined(__aarch64__)
#define DTM_ROUNDED(x) __asm__("" : "+w"(x))
#else
#define DTM_ROUNDED(x) __asm__("" : "+m"(x))
#endif

DTM_INLINE void dtm_tile_write(float *c, dtm_vec x, float alpha, int add) {
    dtm_vec scaled = x * alpha;
    DTM_ROUNDED(scaled);
    dtm_store(c, add ? dtm_load(c) + scaled : scaled);
}

/* The edge: the last columns are fewer than the vectors that hold them. */
DTM_NOINLINE void dtm_tile_write_edge(float *c, const float *product, int64_t cols, float alpha, int add) {
    float whole[DTM_TILE_COLS] = {0};
    memcpy(whole, c, (size_t)(add ? cols : 0) * sizeof(float));
    for (int64_t j = 0; j < cols; j += DTM_LANES) dtm_tile_write(whole + j, dtm_load(product + j), alpha, add);
    memcpy(c, whole, (size_t)cols * sizeof(float));
}

/* The inner loop. Each element is one chain of multiply-adds in the order of depth, whatever rows and vecs are. */
DTM_INLINE void dtm_tile_body(const dtm_tile *t, const int rows, const int vecs) {
    dtm_vec sum[DTM_TILE_ROWS][DTM_TILE_VECS];
    const float *a = t->a, *b = t->b;
    const int64_t a_row = t->a_row, a_col = t->a_col, b_row = t->b_row;
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) __builtin_prefetch(t->c + i * t->c_row, 1); /* gains 15% on a busy machine */
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++) sum[i][v] = (dtm_vec){0};
    for (int64_t p = t->depth; p > 0; p--, a += a_col, b += b_row) {
        dtm_vec right[DTM_TILE_VECS];
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++) right[v] = dtm_load(b + v * DTM_LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const dtm_vec left = dtm_splat(a[i * a_row]);
#pragma GCC unroll 8
            for (int v = 0; v < vecs; v++) sum[i][v] += left * right[v];
        }
    }
    if (t->cols >= vecs * DTM_LANES) {
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
            for (int v = 0; v < vecs; v++)
                dtm_tile_write(t->c + i * t->c_row + v * DTM_LANES, sum[i][v], t->alpha, t->add);
        return;
    }
    float spilled[DTM_TILE_ROWS][DTM_TILE_COLS];
    for (int i = 0; i < rows; i++) {
        for (int v = 0; v < vecs; v++) dtm_store(spilled[i] + v * DTM_LANES, sum[i][v]);
        dtm_tile_write_edge(t->c + i * t->c_row, spilled[i], t->cols, t->alpha, t->add);
    }
}

#define DTM_TILE_OF_ROWS(rows)                                                                                         \
    DTM_NOINLINE void dtm_tile_##rows(const dtm_tile *t, int vecs) {                                                   \
        if (vecs == DTM_TILE_VECS)                                                                                     \
            dtm_tile_body(t, rows, DTM_TILE_VECS);                                                                     \
        else if (vecs == 2)                                                                                            \
            dtm_tile_body(t, rows, 2);                                                                                 \
        else                                                                                                           \
            dtm_tile_body(t, rows, 1);                                                                                 \
    }
DTM_TILE_OF_ROWS(1)
DTM_TILE_OF_ROWS(2)
DTM_TILE_OF_ROWS(3)
DTM_TILE_OF_ROWS(4)
DTM_TILE_OF_ROWS(5)
DTM_TILE_OF_ROWS(6)

DTM_INLINE void dtm_tile_run(const dtm_tile *t, int64_t rows, int vecs) {
    switch (rows) {
    case 1:
        dtm_tile_1(t, vecs);
        break;
    case 2:
        dtm_tile_2(t, vecs);
        break;
    case 3:
        dtm_tile_3(t, vecs);
        break;
    case 4:
        dtm_tile_4(t, vecs);
        break;
    case 5:
        dtm_tile_5(t, vecs);
        break;
    default:
        dtm_tile_6(t, vecs);
        break;
    }
}

/* Where column j begins in a matrix of `depth` rows packed into panels of DTM_TILE_COLS columns, each panel row-major:
 *
 *     panel 0: depth x TILE_COLS | panel 1: depth x TILE_COLS | ...       (the last one zero-filled)
 */
DTM_INLINE int64_t dtm_panel_at(int64_t j, int64_t depth) {
    return j / DTM_TILE_COLS * DTM_TILE_COLS * depth + j % DTM_TILE_COLS;
}

/* How many vectors wide the next tile is: as many as there are kernels for, and no more than the columns left need. */
DTM_INLINE int dtm_tile_vecs(int64_t left) {
    int vecs = DTM_TILE_VECS;
    while (vecs > 1 && left <= (vecs - 1) * DTM_LANES) vecs--;
    return vecs == 3 ? 2 : vecs;
}

/* Many tiles: c[rows, cols] (+)= alpha * a b by one `whole` whose cols is ignored. b is packed into panels (then b_row
 * is DTM_TILE_COLS), or plain rows. A column of tiles is done before the next, so that a panel of b stays in the cache.
 */
DTM_NOINLINE void dtm_tiles_run(const dtm_tile *whole, int64_t rows, int64_t cols, int packed) {
    for (int64_t j = 0; j < cols;) {
        const int vecs = dtm_tile_vecs(cols - j);
        dtm_tile t = *whole;
        t.b = whole->b + (packed ? dtm_panel_at(j, whole->depth) : j);
        t.cols = DTM_MIN(cols - j, vecs * DTM_LANES);
        for (int64_t i = 0; i < rows; i += DTM_TILE_ROWS) {
            t.a = whole->a + i * whole->a_row;
            t.c = whole->c + i * whole->c_row + j;
            dtm_tile_run(&t, DTM_MIN(rows - i, DTM_TILE_ROWS), vecs);
        }
        j += vecs * DTM_LANES;
    }
}

typedef float dtm_four __attribute__((vector_size(16)));
typedef float dtm_four_loose __attribute__((vector_size(16), aligned(4), may_alias));

/* to[c * to_row + r] = from[r * from_row + c] for a 4 x 4 block. */
DTM_INLINE void dtm_transpose_4x4(const float *from, int64_t from_row, float *to, int64_t to_row) {
    const dtm_four a = *(const dtm_four_loose *)from, b = *(const dtm_four_loose *)(from + from_row);
    const dtm_four c = *(const dtm_four_loose *)(from + 2 * from_row),
                   d = *(const dtm_four_loose *)(from + 3 * from_row);
    const dtm_four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5),
                   ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const dtm_four cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5),
                   cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(dtm_four_loose *)to = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    *(dtm_four_loose *)(to + to_row) = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    *(dtm_four_loose *)(to + 2 * to_row) = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    *(dtm_four_loose *)(to + 3 * to_row) = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

/* to[c * to_row + r] = from[r * from_row + c] for rows x cols of `from`. */
DTM_INLINE void dtm_transpose(const float *from, int64_t from_row, int64_t rows, int64_t cols, float *to,
                              int64_t to_row) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        int64_t c = 0;
        for (; c + 4 <= cols; c += 4) dtm_transpose_4x4(from + r * from_row + c, from_row, to + c * to_row + r, to_row);
        for (; c < cols; c++)
            for (int64_t i = r; i < r + 4; i++) to[c * to_row + i] = from[i * from_row + c];
    }
    for (; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) to[c * to_row + r] = from[r * from_row + c];
}

/* Packing asks for what it will read this many rows later: rows are apart, often by pages, where the hardware does not
 * look ahead. */
#define DTM_FETCH_ROWS 8

DTM_INLINE void dtm_fetch(const float *at, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(at + i);
}

/* Whole panels of a b whose rows run on: several at a time, so that a row is read in long pieces. */
DTM_INLINE void dtm_panels_copy(const float *b, int64_t row, int64_t depth, int64_t panels, float *to) {
    for (int64_t j = 0; j < panels; j += 8) {
        const int64_t here = DTM_MIN(panels - j, 8);
        const float *from = b + j * DTM_TILE_COLS;
        float *out = to + j * DTM_TILE_COLS * depth;
        for (int64_t p = 0; p < depth; p++) {
            if (p + DTM_FETCH_ROWS < depth) dtm_fetch(from + (p + DTM_FETCH_ROWS) * row, here * DTM_TILE_COLS);
            for (int64_t c = 0; c < here; c++)
                memcpy(out + (c * depth + p) * DTM_TILE_COLS, from + p * row + c * DTM_TILE_COLS, 4 * DTM_TILE_COLS);
        }
    }
}

/* Packs b[depth, cols], b(p, j) = b[p * row + j * col], into panels as dtm_panel_at describes. */
DTM_NOINLINE void dtm_panels_pack(const float *b, int64_t row, int64_t col, int64_t depth, int64_t cols, float *to) {
    const int64_t copied = col == 1 ? cols / DTM_TILE_COLS * DTM_TILE_COLS : 0;
    dtm_panels_copy(b, row, depth, copied / DTM_TILE_COLS, to);
    to += copied * depth;
    for (int64_t j = copied; j < cols; j += DTM_TILE_COLS, to += DTM_TILE_COLS * depth) {
        const float *from = b + j * col;
        const int64_t here = DTM_MIN(cols - j, DTM_TILE_COLS);
        if (here < DTM_TILE_COLS)
            for (int64_t p = 0; p < depth; p++)
                memset(to + p * DTM_TILE_COLS + here, 0, (size_t)(DTM_TILE_COLS - here) * sizeof(float));
        if (row == 1 && col != 1) {
            for (int64_t c = here; c < DTM_MIN(cols - j, 2 * here); c++) dtm_fetch(from + c * col, depth);
            dtm_transpose(from, col, here, depth, to, DTM_TILE_COLS);
        } else {
            for (int64_t p = 0; p < depth; p++)
                for (int64_t c = 0; c < here; c++) to[p * DTM_TILE_COLS + c] = from[p * row + c * col];
        }
    }
}

#endif
