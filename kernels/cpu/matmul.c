#include "kernels/cpu/matmul.h"
#include "ir/fault.h"
#include "kernels/cpu/library.h"
#include "kernels/cpu/matmul_bf16.h"
#include "kernels/cpu/matmul_halves.h"
#include "kernels/cpu/matmul_tiles.h"

#include <dnnl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

typedef struct backend {
    const char *name;
    int64_t row_unit, col_unit;
    dtm_matmul_tiles *run;
} backend;

static void onednn_run(const dtm_matmul_block *m, void *scratch);

static const backend onednn = {"onednn", 256, 256, onednn_run};
static const backend tiles_baseline = {"tiles/baseline", 6, 32, dtm_matmul_tiles_v1};
#if defined(__x86_64__)
static const backend tiles_v3 = {"tiles/x86-64-v3", 6, 32, dtm_matmul_tiles_v3};
static const backend tiles_v4 = {"tiles/x86-64-v4", 6, 32, dtm_matmul_tiles_v4};
#endif

/* Written by dtm_matmul_init and dtm_matmul_init_bf16 alone: by each rank of a process, all of them the same. */
static _Atomic(const backend *) chosen;
static _Atomic int chosen_level; /* 0: what this machine has */
static _Atomic int chosen_bf16;  /* NOT_CHOSEN: what this machine has */
enum { NOT_CHOSEN, BY_TILES, BY_ONEDNN };

static int level_here(void) {
    return chosen_level ? chosen_level : dtm_kernel_level();
}

static const backend *tiles_backend(void) {
#if defined(__x86_64__)
    if (level_here() == 4) return &tiles_v4;
    if (level_here() == 3) return &tiles_v3;
#endif
    return &tiles_baseline;
}

int dtm_matmul_init(const char *name, int level) {
    chosen_level = level;
    if (!name || !strcmp(name, "tiles")) chosen = tiles_backend();
    else if (!strcmp(name, "onednn")) chosen = &onednn;
    else return -1;
    return 0;
}

int dtm_matmul_init_bf16(const char *name) {
    const int has = dtm_matmul_bf16_host() != 0;
    if (!name) chosen_bf16 = has ? BY_ONEDNN : BY_TILES;
    else if (!strcmp(name, "tiles")) chosen_bf16 = BY_TILES;
    else if (!strcmp(name, "onednn") && has) chosen_bf16 = BY_ONEDNN;
    else return -1;
    return 0;
}

static int bf16_by_onednn(void) {
    if (chosen_bf16 == NOT_CHOSEN) dtm_matmul_init_bf16(NULL);
    return chosen_bf16 == BY_ONEDNN;
}

const char *dtm_matmul_bf16_name(void) {
    return bf16_by_onednn() ? "onednn" : "tiles";
}

static backend current(void) {
    const backend *found = chosen;
    return found ? *found : *tiles_backend();
}

const char *dtm_matmul_name(void) {
    return current().name;
}

const char *dtm_matmul_version(void) {
    static char text[32];
    if (current().run != onednn_run) return "1";
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, sizeof text, "%d.%d.%d", v->major, v->minor, v->patch);
    return text;
}

static void onednn_run(const dtm_matmul_block *m, void *scratch) {
    char a_form, b_form;
    int64_t a_stride, b_stride;
    if (m->depth <= 0 || m->rows <= 0 || m->cols <= 0 ||
        !dtm_matmul_leading(m->rows, m->depth, m->a_row, m->a_col, &a_form, &a_stride) ||
        !dtm_matmul_leading(m->depth, m->cols, m->b_row, m->b_col, &b_form, &b_stride)) {
        tiles_backend()->run(m, scratch);
        return;
    }
    dtm_matmul_one_thread();
    if (dnnl_sgemm(a_form, b_form, m->rows, m->cols, m->depth, m->alpha, m->a, a_stride, m->b, b_stride, m->beta, m->c,
                   m->c_row < m->cols ? m->cols : m->c_row) != dnnl_success)
        tiles_backend()->run(m, scratch);
}

/* Fewer multiplications than these take oneDNN longer than the tiles (bench/README.md). */
enum { BF16_WORTH = 20 * 20 * 20 };

/* Of the shape and the types alone. */
static int is_bf16(const dtm_matmul_sizes *z) {
    char form;
    int64_t stride;
    return z->a_type == DTM_MATMUL_BF16 && z->b_type == DTM_MATMUL_BF16 && z->c_type != DTM_MATMUL_F16 && !z->scaled &&
           z->m * z->n * z->k >= BF16_WORTH &&
           dtm_matmul_leading(z->m, z->k, z->a_row, z->a_col, &form, &stride) &&
           dtm_matmul_leading(z->k, z->n, z->b_row, z->b_col, &form, &stride) && bf16_by_onednn();
}

/* Rows or columns of a unit of bf16, out of `size`: some sixteen units, for as many threads, but not of so few that packing the other
 * operand for each would show (bench/README.md). */
enum { BF16_LEAST = 32, BF16_MOST = 192 };
static int64_t bf16_unit(int64_t size) {
    const int64_t part = (size + 255) / 256 * 16;
    return part < BF16_LEAST ? BF16_LEAST : part > BF16_MOST ? BF16_MOST : part;
}

dtm_matmul_cut dtm_matmul_cut_of(const dtm_matmul_sizes *z) {
    const backend by = current();
    dtm_matmul_cut cut = {.axis = z->m >= z->n ? DTM_MATMUL_CUT_ROWS : DTM_MATMUL_CUT_COLS};
    const int64_t whole = cut.axis == DTM_MATMUL_CUT_ROWS ? z->m : z->n;
    cut.size = is_bf16(z) ? bf16_unit(whole) : cut.axis == DTM_MATMUL_CUT_ROWS ? by.row_unit : by.col_unit;
    cut.units = z->m > 0 && z->n > 0 ? (whole + cut.size - 1) / cut.size : 0;
    return cut;
}

int64_t dtm_matmul_extent(const int64_t *sizes) {
    const dtm_matmul_sizes *z = (const dtm_matmul_sizes *)(const void *)sizes;
    return z->batch * dtm_matmul_cut_of(z).units;
}

static int64_t least(int64_t size, int64_t step, int64_t most) {
    const int64_t whole = (size + step - 1) / step * step;
    return whole < most ? whole : most;
}

/* Most of a part of halves that is widened to f32 at one time, in elements. */
enum { HALF_ROWS = 192, HALF_DEPTH = 512 };

typedef struct half_part {
    int64_t rows, cols, depth;
} half_part;

static half_part most_of_halves(const dtm_matmul_sizes *z) {
    return (half_part){least(z->m, 1, HALF_ROWS), least(z->n, 1, DTM_MATMUL_COLS), least(z->k > 0 ? z->k : 1, 1, HALF_DEPTH)};
}

/* Most of c that is added up in f32 before it is rounded to bf16: of a unit. */
static half_part most_of_bf16(const dtm_matmul_sizes *z) {
    const int rows = z->m >= z->n;
    const int64_t unit = bf16_unit(rows ? z->m : z->n);
    return (half_part){.rows = least(z->m, 1, rows ? unit : DTM_MATMUL_COLS), .cols = least(z->n, 1, rows ? DTM_MATMUL_COLS : unit)};
}

static int has_halves(const dtm_matmul_sizes *z) { return z->a_type || z->b_type || z->c_type; }

int64_t dtm_matmul_scratch_bytes(const int64_t *sizes) {
    const dtm_matmul_sizes *z = (const dtm_matmul_sizes *)(const void *)sizes;
    const int64_t depth = least(z->k, 8, DTM_MATMUL_DEPTH) * (int64_t)sizeof(float);
    const int64_t tiles = dtm_scratch_round(depth * DTM_MATMUL_ROWS) + dtm_scratch_round(depth * least(z->n, 64, DTM_MATMUL_COLS));
    if (!has_halves(z)) return tiles;
    const half_part most = most_of_halves(z);
    const int64_t wide = (int64_t)sizeof(float);
    const int64_t widened = tiles + dtm_scratch_round(most.rows * most.depth * wide) + dtm_scratch_round(most.depth * most.cols * wide) +
                            dtm_scratch_round(most.rows * most.cols * wide);
    const half_part part = most_of_bf16(z); /* whether it serves depends on strides, which the caller need not know yet */
    const int64_t rounded = z->a_type == DTM_MATMUL_BF16 && z->b_type == DTM_MATMUL_BF16 && z->c_type == DTM_MATMUL_BF16
                                ? dtm_scratch_round(part.rows * part.cols * wide)
                                : 0;
    return widened > rounded ? widened : rounded;
}

/* ---- sums of products ---- */

static int64_t turns_of(const dtm_matmul_sizes *z) {
    int64_t turns = 1;
    for (int64_t l = 0; l < z->sums; l++) turns *= z->sum_count[l];
    return turns;
}

static int64_t bytes_of(int64_t type) { return type == DTM_MATMUL_F32 ? 4 : 2; }

static void *element(const void *base, int64_t type, int64_t index) { return (char *)(uintptr_t)base + index * bytes_of(type); }

/* The operands of one turn. After the first it adds to what is there. */
static dtm_matmul_block of_turn(const dtm_matmul_sizes *z, const dtm_matmul_block *m, int64_t turn) {
    dtm_matmul_block at = *m;
    if (turn > 0 && !dtm_fault(46)) at.beta = 1;
    for (int64_t l = z->sums - 1, left = turn; l >= 0; left /= z->sum_count[l--]) {
        at.a = element(at.a, z->a_type, left % z->sum_count[l] * z->sum_a[l]);
        at.b = element(at.b, z->b_type, left % z->sum_count[l] * z->sum_b[l]);
    }
    return at;
}

/* ---- halves of f32 ---- */

static const dtm_matmul_halves *halves(void) {
#if defined(__x86_64__)
    if (level_here() == 4) return &dtm_matmul_halves_v4;
    if (level_here() == 3) return &dtm_matmul_halves_v3;
#endif
    return &dtm_matmul_halves_v1;
}

/* The block in parts that are widened to f32; each element of c is added up over all of the depth before it is rounded. The parts of
 * the depth are its own, so its bits depend on nothing else. */
static void run_halves(const dtm_matmul_sizes *z, const dtm_matmul_block *m, int64_t turns, void *scratch) {
    const half_part most = most_of_halves(z);
    const dtm_matmul_halves *by = halves();
    const int64_t wide = (int64_t)sizeof(float);
    float *a = dtm_scratch_take(&scratch, most.rows * most.depth * wide);
    float *b = dtm_scratch_take(&scratch, most.depth * most.cols * wide);
    float *c = dtm_scratch_take(&scratch, most.rows * most.cols * wide);
    for (int64_t i = 0; i < m->rows; i += most.rows)
        for (int64_t j = 0; j < m->cols; j += most.cols) {
            dtm_matmul_block part = *m;
            part.rows = m->rows - i < most.rows ? m->rows - i : most.rows;
            part.cols = m->cols - j < most.cols ? m->cols - j : most.cols;
            void *to = element(m->c, z->c_type, i * m->c_row + j);
            int64_t unit;
            part.c = c;
            if (m->beta != 0) by->widen(to, z->c_type, m->c_row, 1, part.rows, part.cols, c, &part.c_row, &unit);
            part.c_row = part.cols;
            for (int64_t turn = 0; turn < turns; turn++) {
                const dtm_matmul_block from = of_turn(z, m, turn);
                for (int64_t p = 0; p < m->depth || p == 0; p += most.depth) {
                    part.depth = m->depth - p < most.depth ? m->depth - p : most.depth;
                    by->widen(element(from.a, z->a_type, i * m->a_row + p * m->a_col), z->a_type, m->a_row, m->a_col, part.rows, part.depth,
                          a, &part.a_row, &part.a_col);
                    by->widen(element(from.b, z->b_type, p * m->b_row + j * m->b_col), z->b_type, m->b_row, m->b_col, part.depth, part.cols,
                          b, &part.b_row, &part.b_col);
                    part.a = a, part.b = b;
                    part.beta = p ? 1 : from.beta;
                    current().run(&part, scratch);
                }
            }
            by->narrow(c, z->c_type, m->c_row, part.rows, part.cols, to);
        }
}

/* A unit by oneDNN: c of f32 where it lies, c of bf16 in parts that are added up in f32 and then rounded. */
static void run_bf16(const dtm_matmul_sizes *z, const dtm_matmul_block *m, int64_t turns, void *scratch) {
    const dtm_matmul_halves *by = halves();
    const half_part most = z->c_type ? most_of_bf16(z) : (half_part){.rows = m->rows, .cols = m->cols};
    float *c = z->c_type ? scratch : m->c;
    for (int64_t i = 0; i < m->rows; i += most.rows)
        for (int64_t j = 0; j < m->cols; j += most.cols) {
            dtm_matmul_block part = *m;
            part.rows = m->rows - i < most.rows ? m->rows - i : most.rows;
            part.cols = m->cols - j < most.cols ? m->cols - j : most.cols;
            void *to = element(m->c, z->c_type, i * m->c_row + j);
            int64_t unit;
            part.a = element(m->a, z->a_type, i * m->a_row), part.b = element(m->b, z->b_type, j * m->b_col);
            part.c = c;
            if (z->c_type && m->beta != 0) by->widen(to, z->c_type, m->c_row, 1, part.rows, part.cols, c, &part.c_row, &unit);
            if (z->c_type) part.c_row = part.cols;
            for (int64_t turn = 0; turn < turns; turn++) {
                const dtm_matmul_block at = of_turn(z, &part, turn);
                dtm_matmul_bf16(&at);
            }
            if (z->c_type) by->narrow(c, z->c_type, m->c_row, part.rows, part.cols, to);
        }
}

/* Rows or columns [from, to) of product `which`. */
static void run_slice(const dtm_kernel_args *args, dtm_matmul_axis axis, int64_t which, int64_t from, int64_t to) {
    const dtm_matmul_sizes *z = (const dtm_matmul_sizes *)(const void *)args->sizes;
    dtm_matmul_block block = {
        .a = element(args->buffers[DTM_MATMUL_A], z->a_type, which * z->a_batch),
        .b = element(args->buffers[DTM_MATMUL_B], z->b_type, which * z->b_batch),
        .c = element(args->buffers[DTM_MATMUL_C], z->c_type, which * z->c_batch),
        .rows = z->m,
        .cols = z->n,
        .depth = z->k,
        .a_row = z->a_row,
        .a_col = z->a_col,
        .b_row = z->b_row,
        .b_col = z->b_col,
        .c_row = z->c_row,
        .alpha = z->scaled ? (float)args->numbers[0] : 1,
        .beta = z->scaled       ? (float)args->numbers[1]
                : z->accumulate && !(dtm_fault(39) && from > 0) ? 1
                                : 0,
    };
    const int rows = axis == DTM_MATMUL_CUT_ROWS;
    if (rows) block.a = element(block.a, z->a_type, from * z->a_row), block.rows = to - from;
    else block.b = element(block.b, z->b_type, from * z->b_col), block.cols = to - from;
    block.c = element(block.c, z->c_type, rows ? from * z->c_row : from);
    int64_t turns = turns_of(z);
    if (turns == 0) turns = 1, block.depth = 0; /* nothing to add up */
    if (is_bf16(z) && block.depth) {
        run_bf16(z, &block, turns, args->scratch);
    } else if (has_halves(z)) {
        run_halves(z, &block, turns, args->scratch);
    } else {
        for (int64_t turn = 0; turn < turns; turn++) {
            const dtm_matmul_block at = of_turn(z, &block, turn);
            current().run(&at, args->scratch);
        }
    }
}

void dtm_matmul(const dtm_kernel_args *args, int64_t begin, int64_t end) {
    const dtm_matmul_sizes *z = (const dtm_matmul_sizes *)(const void *)args->sizes;
    const dtm_matmul_cut cut = dtm_matmul_cut_of(z);
    const int64_t whole = cut.axis == DTM_MATMUL_CUT_ROWS ? z->m : z->n;
    const int units_matter = is_bf16(z) || current().run == onednn_run; /* its bits depend on the slice: one call a unit */
    while (begin < end) {
        const int64_t which = begin / cut.units, first = begin % cut.units;
        int64_t last = units_matter ? first + 1 : first + end - begin;
        if (last > cut.units) last = cut.units;
        const int64_t to = last * cut.size;
        run_slice(args, cut.axis, which, first * cut.size, to < whole ? to : whole);
        begin += last - first;
    }
}
