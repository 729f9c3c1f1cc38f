/* The entries of a loop nest as CUDA C, shape by shape (cuda_nest.h). Of rows it looks like this (rmsnorm in bf16, 4096 elements):
 *
 *     KERNEL(fused_3, 128) {
 *         const int lane = threadIdx.x % 128;
 *         const uint32_t row = blockIdx.x;
 *         ..
 *         float r2 = 0;
 *     #pragma unroll
 *         for (int n = 0; n < 4; n++) {                      pass 0
 *             const uint32_t e = (n * 128 + lane) * W;
 *             const int64_t first = e, i1 = first;
 *             float x0[W];
 *             dtm_read<W>(x0, b0 + (i0 * (4096)) + (i1));
 *     #pragma unroll
 *             for (int k = 0; k < W; k++) { const float v1 = x0[k] * x0[k]; r2 += v1; }
 *         }
 *         r2 = dtm_join<dtm_add, 128>(r2, (float)0, shared2);
 *         const float v2 = r2 / 4096.0f;
 *         ..                                                 pass 1: values of the row first, then the row again
 */
#include "codegen/cuda_nest.h"

#include <string.h>

static const char *printed(const cuda_nest *c, const char *format, const char *a, const char *b) {
    return dtm_arena_printf(c->n->g->arena, format, a, b);
}

/* Begins a text; what stands before its body is known when that is written. */
static void open_entry(cuda_nest *c, dtm_text *body) {
    *body = (dtm_text){c->n->g->arena, NULL, 0, 0};
    c->w.out = body;
    c->w.depth = 1;
}

static void close_entry(cuda_nest *c, const char *suffix, int threads, const dtm_text *body, dtm_text *out) {
    dtm_text_printf(out, "KERNEL(@%s, %d) {\n    dtm_begin(p.mark);\n    const tuple &t = p.t[TUPLE];\n", suffix, threads);
    cuda_open_tuple(c, out);
    dtm_text_append(out, body->data, body->length);
    dtm_text_printf(out, "}\n\n");
}

static void add_launch(dtm_cuda_text *out, const char *suffix, int threads, const char *blocks) {
    out->launches[out->n_launches++] = (dtm_cuda_launch_text){suffix, (uint32_t)threads, blocks, NULL};
}

/* A function of sizes, for host and device. */
static void add_function(cuda_nest *c, dtm_cuda_text *out, const char *name, const char *text) {
    const char *function = dtm_arena_printf(c->n->g->arena, "int64_t @_%s(const int64_t *z) {\n    (void)z;\n%s}\n", name, text);
    dtm_text_printf(&c->before, "DTM_DEVICE %s\n", function);
    out->host = dtm_arena_printf(c->n->g->arena, "%sstatic %s", out->host ? out->host : "", function);
}

/* ---- elementwise ---- */

/* The function that ELEMENTWISE and ALL call for a vector, or an element of the tail. */
static void write_vector_function(cuda_nest *c, const char *arguments) {
    dtm_text body;
    open_entry(c, &body);
    cuda_indices(c, "e", cuda_loops(c, false) | cuda_loops(c, true), "rest");
    nest_write_hoisted(&c->w);
    c->w.pass = 0;
    cuda_scalars(c);
    cuda_vector(c, cuda_element);
    dtm_text_printf(&c->before, "template <int W> DTM_DEVICE void @_at(const tuple &t, const %s e%s) {\n", c->index, arguments);
    cuda_open_tuple(c, &c->before);
    dtm_text_append(&c->before, body.data, body.length);
    dtm_text_printf(&c->before, "}\n\n");
}

/* Of one loop an end is left that is no vector; with more, rows are of whole vectors. */
static const char *vectors_on_host(const cuda_nest *c) {
    const char *all = cuda_product_on_host(c, cuda_loops(c, false) | cuda_loops(c, true));
    return dtm_arena_printf(c->n->g->arena, "(%s / %d + %s %% %d)", all, c->width, all, c->width);
}

void cuda_write_elementwise(cuda_nest *c, dtm_cuda_text *out) {
    dtm_text body, device = {c->n->g->arena, NULL, 0, 0};
    write_vector_function(c, "");
    open_entry(c, &body);
    CUDA_LINE(c, "constexpr int W = %d;", c->width);
    CUDA_LINE(c, "const %s all = %s, vectors = all / W;", c->index, cuda_product(c, cuda_loops(c, false) | cuda_loops(c, true)));
    CUDA_LINE(c, "const %s self = (%s)blockIdx.x * %d + threadIdx.x;", c->index, c->index, CUDA_THREADS);
    CUDA_LINE(c, "if (self < vectors) @_at<W>(t, self * W);");
    if (c->n->n_loops == 1) CUDA_LINE(c, "else if (self - vectors < all %% W) @_at<1>(t, vectors * W + (self - vectors));");
    close_entry(c, "", CUDA_THREADS, &body, &device);
    out->device = printed(c, "%s%s", c->before.length ? c->before.data : "", device.data);
    add_launch(out, "", CUDA_THREADS, dtm_arena_printf(c->n->g->arena, "(%s + %d) / %d", vectors_on_host(c), CUDA_THREADS - 1, CUDA_THREADS));
}

/* ---- rows ---- */

/* Over the vectors of the row that are this lane's: so few that the loop is unrolled, and what is kept of them in registers. */
static void open_row(cuda_nest *c) {
    const char *row = cuda_product(c, cuda_loops(c, true));
    int step = c->lanes * c->width;
    if (c->iterations) {
        CUDA_LINE(c, "#pragma unroll");
        CUDA_LINE(c, "for (int n = 0; n < %d; n++) {", c->iterations);
        CUDA_LINE(c, "    const %s e = (n * %d + lane) * W;", c->index, c->lanes);
        if (c->row % step) CUDA_LINE(c, "    if (e >= %lld) break;", (long long)c->row);
    } else CUDA_LINE(c, "for (%s e = lane * W; e < %s; e += %d * W) {", c->index, row, c->lanes);
    c->w.depth++;
    cuda_indices(c, "e", cuda_loops(c, true), "more");
}

static void write_passes(cuda_nest *c) {
    nest *n = c->n;
    for (c->w.pass = 0; c->w.pass <= n->most; c->w.pass++) {
        cuda_scalars(c);
        for (int i = 0; i < (int)n->n_ops; i++)
            if (nest_reduces(&c->w, i)) CUDA_LINE(c, "%s r%d = %s;", cuda_total_type(c, i), i, cuda_none(c, i));
        if (cuda_any_work(c)) {
            open_row(c);
            cuda_vector(c, cuda_element);
            nest_close_block(&c->w);
        }
        for (int i = 0; i < (int)n->n_ops; i++) {
            if (!nest_reduces(&c->w, i)) continue;
            const char *shared = c->lanes > 32 ? dtm_arena_printf(n->g->arena, "shared%d", i)
                                               : dtm_arena_printf(n->g->arena, "(%s *)0", cuda_total_type(c, i));
            CUDA_LINE(c, "r%d = dtm_join<%s, %d>(r%d, %s, %s);", i, cuda_joins(c, i), c->lanes, i, cuda_none(c, i), shared);
            nest_define(&c->w, i, nest_finished(&c->w, i, dtm_arena_printf(n->g->arena, "r%d", i)));
            if (n->written[i]) cuda_store_later(c, i);
        }
    }
}

/* What lives through a row: what passes share in registers, and what joins the lanes. */
static void declare_row(cuda_nest *c) {
    const nest *n = c->n;
    CUDA_LINE(c, "constexpr int W = %d;", c->width);
    CUDA_LINE(c, "const int lane = threadIdx.x %% %d;", c->lanes);
    for (int i = 0; i < (int)n->n_ops; i++) {
        if (c->lanes > 32 && dtm_is_reduction(cuda_op(c, i)->kind) && !cuda_is_column_sum(c, i))
            CUDA_LINE(c, "__shared__ %s shared%d[%d];", cuda_total_type(c, i), i, c->lanes / 32);
    }
}

static void declare_saved(cuda_nest *c) {
    for (int i = 0; i < (int)c->n->n_ops; i++)
        if (c->n->saved[i]) {
            dtm_dtype dtype = (dtm_dtype)dtm_value_type(c->n->g->module, cuda_op(c, i)->results[0])->dtype;
            CUDA_LINE(c, "%s s%d[%d * W];", nest_register_type(dtype), i, c->iterations);
        }
}

static bool any_reduction(const cuda_nest *c) {
    for (int i = 0; i < (int)c->n->n_ops; i++)
        if (dtm_is_reduction(cuda_op(c, i)->kind) && !cuda_is_column_sum(c, i)) return true;
    return false;
}

/* All lanes have read what a value of the row may lie over. A reduction has made a block wait already. */
static void sync_lanes(cuda_nest *c) {
    if (c->lanes == 32) CUDA_LINE(c, "__syncwarp();");
    else if (!any_reduction(c)) CUDA_LINE(c, "__syncthreads();");
}

void cuda_write_row(cuda_nest *c, dtm_cuda_text *out) {
    dtm_text body, device = {c->n->g->arena, NULL, 0, 0};
    int rows = c->threads / c->lanes;
    open_entry(c, &body);
    declare_row(c);
    if (rows > 1) CUDA_LINE(c, "const %s row = (%s)blockIdx.x * %d + threadIdx.x / %d;", c->index, c->index, rows, c->lanes);
    else CUDA_LINE(c, "const %s row = blockIdx.x;", c->index);
    CUDA_LINE(c, "if (row >= %s) return;", cuda_product(c, cuda_loops(c, false)));
    cuda_indices(c, "row", cuda_loops(c, false), "rest");
    declare_saved(c);
    nest_write_hoisted(&c->w);
    write_passes(c);
    if (c->n_pending) sync_lanes(c);
    cuda_store_pending(c, "lane == 0");
    close_entry(c, "", c->threads, &body, &device);
    out->device = printed(c, "%s%s", c->before.length ? c->before.data : "", device.data);
    const char *all = cuda_product_on_host(c, cuda_loops(c, false));
    add_launch(out, "", c->threads, rows > 1 ? dtm_arena_printf(c->n->g->arena, "(%s + %d) / %d", all, rows - 1, rows) : all);
}

/* ---- columns ---- */

/* Joins the warps of a block, each of which has sums of the same columns. */
static void join_groups(cuda_nest *c, const char *width) {
    bool floats = false, others = false;
    for (int i = 0; i < (int)c->n->n_ops; i++) {
        if (!dtm_is_reduction(cuda_op(c, i)->kind)) continue;
        if (cuda_total_type(c, i)[0] == 'f') floats = true;
        else others = true;
    }
    if (floats) CUDA_LINE(c, "__shared__ float joined[%d * %s * 32];", CUDA_GROUPS, width);
    if (others) CUDA_LINE(c, "__shared__ int64_t joined_integers[%d * %s * 32];", CUDA_GROUPS, width);
    for (int i = 0; i < (int)c->n->n_ops; i++)
        if (dtm_is_reduction(cuda_op(c, i)->kind))
            CUDA_LINE(c, "dtm_join_groups<%s, %d, %s>(r%d, %s);", cuda_joins(c, i), CUDA_GROUPS, width, i,
                      cuda_total_type(c, i)[0] == 'f' ? "joined" : "joined_integers");
}

/* Accumulators of a thread's columns; integers all have 64 bits, as what joins them has. */
static void declare_columns(cuda_nest *c) {
    for (int i = 0; i < (int)c->n->n_ops; i++) {
        if (!dtm_is_reduction(cuda_op(c, i)->kind)) continue;
        CUDA_LINE(c, "%s r%d[W];", cuda_total_type(c, i)[0] == 'f' ? "float" : "int64_t", i);
        CUDA_LINE(c, "#pragma unroll");
        CUDA_LINE(c, "for (int k = 0; k < W; k++) r%d[k] = %s;", i, cuda_none(c, i));
    }
}

/* lane, group, and the block's tile of 32 W of `size` columns; `unit` is which of the other blocks it is. */
static void declare_tile(cuda_nest *c, const char *size) {
    CUDA_LINE(c, "constexpr int W = %d;", c->width);
    CUDA_LINE(c, "const int lane = threadIdx.x %% 32, group = threadIdx.x / 32;");
    CUDA_LINE(c, "const %s columns = %s, tiles = (columns + 32 * W - 1) / (32 * W);", c->index, size);
    CUDA_LINE(c, "if (tiles == 0) return;");
    CUDA_LINE(c, "const %s unit = blockIdx.x / tiles, column = (blockIdx.x %% tiles * 32 + lane) * W;", c->index);
}

static const char *tiles_on_host(const cuda_nest *c, unsigned loops) {
    return dtm_arena_printf(c->n->g->arena, "((%s + %d) / %d)", cuda_product_on_host(c, loops), 32 * c->width - 1, 32 * c->width);
}

static bool stored_with_sums(const cuda_nest *c, int i) {
    const dtm_op_data *op = cuda_op(c, i);
    return c->n->written[i] && (c->n->levels[i] > 0 || dtm_is_reduction(op->kind) || cuda_is_of_columns(c, op->results[0]));
}

/* Of COLUMN: what is made of the sums, or is the same for all that is summed. */
static void finished_columns(cuda_nest *c) {
    nest *n = c->n;
    for (int i = 0; i < (int)n->n_ops; i++)
        if (nest_reduces(&c->w, i)) nest_define(&c->w, i, nest_finished(&c->w, i, dtm_arena_printf(n->g->arena, "r%d[k]", i)));
    for (int i = 0; i < (int)n->n_ops; i++)
        if (n->levels[i] > 0 || stored_with_sums(c, i)) nest_value(&c->w, cuda_op(c, i)->results[0]);
    for (int i = 0; i < (int)n->n_ops; i++)
        if (stored_with_sums(c, i)) nest_store(&c->w, i);
}

void cuda_write_column(cuda_nest *c, dtm_cuda_text *out) {
    dtm_text body, device = {c->n->g->arena, NULL, 0, 0};
    unsigned units = cuda_loops(c, false), reduced = cuda_loops(c, true) & ~cuda_last(c);
    open_entry(c, &body);
    declare_tile(c, cuda_product(c, cuda_last(c)));
    CUDA_LINE(c, "if (unit >= %s) return;", cuda_product(c, units));
    cuda_indices(c, "unit", units, "rest");
    cuda_indices(c, "column", cuda_last(c), "");
    nest_write_hoisted(&c->w);
    declare_columns(c);
    c->w.pass = 0;
    CUDA_LINE(c, "if (column < columns)");
    CUDA_LINE(c, "for (%s q = group; q < %s; q += %d) {", c->index, cuda_product(c, reduced), CUDA_GROUPS);
    c->w.depth++;
    cuda_indices(c, "q", reduced, "more");
    cuda_vector(c, cuda_element);
    nest_close_block(&c->w);
    join_groups(c, "W");
    CUDA_LINE(c, "if (group == 0 && column < columns) {");
    c->w.depth++;
    c->finishing = true;
    cuda_vector(c, finished_columns);
    nest_close_block(&c->w);
    close_entry(c, "", CUDA_THREADS, &body, &device);
    out->device = printed(c, "%s%s", c->before.length ? c->before.data : "", device.data);
    add_launch(out, "", CUDA_THREADS, printed(c, "%s * %s", cuda_product_on_host(c, units), tiles_on_host(c, cuda_last(c))));
}

/* ---- sums over everything ---- */

/* In scratch: numbers of 8 bytes or 4, a row of them for each reduction. */
static const char *partials(const cuda_nest *c, int i, int number, const char *each) {
    return dtm_arena_printf(c->n->g->arena, "((%s *)((char *)t.scratch + (int64_t)8 * %d * %s))", cuda_total_type(c, i), number, each);
}

static void write_all_finish(cuda_nest *c, dtm_text *device) {
    nest *n = c->n;
    dtm_text body;
    int number = 0;
    open_entry(c, &body);
    c->w.pass = 0;
    CUDA_LINE(c, "const int chunks = (int)@_chunks(z);");
    for (int i = 0; i < (int)n->n_ops; i++) {
        if (!dtm_is_reduction(cuda_op(c, i)->kind)) continue;
        CUDA_LINE(c, "__shared__ %s shared%d[%d];", cuda_total_type(c, i), i, CUDA_GROUPS);
        CUDA_LINE(c, "%s r%d = %s;", cuda_total_type(c, i), i, cuda_none(c, i));
        CUDA_LINE(c, "for (int at = threadIdx.x; at < chunks; at += %d) r%d = %s::join(r%d, %s[at]);", CUDA_THREADS, i, cuda_joins(c, i), i,
                  partials(c, i, number++, "chunks"));
        CUDA_LINE(c, "r%d = dtm_join<%s, %d>(r%d, %s, shared%d);", i, cuda_joins(c, i), CUDA_THREADS, i, cuda_none(c, i), i);
    }
    CUDA_LINE(c, "if (threadIdx.x) return;");
    for (int i = 0; i < (int)n->n_ops; i++) {
        if (!dtm_is_reduction(cuda_op(c, i)->kind)) continue;
        nest_define(&c->w, i, nest_finished(&c->w, i, dtm_arena_printf(n->g->arena, "r%d", i)));
        if (n->written[i]) nest_store(&c->w, i);
    }
    for (int i = 0; i < (int)n->n_ops; i++) {
        const dtm_op_data *op = cuda_op(c, i);
        if (dtm_is_reduction(op->kind) || dtm_value_type(n->g->module, op->results[0])->rank) continue;
        nest_value(&c->w, op->results[0]);
        if (n->written[i]) nest_store(&c->w, i);
    }
    close_entry(c, "_finish", CUDA_THREADS, &body, device);
}

void cuda_write_all(cuda_nest *c, dtm_cuda_text *out) {
    nest *n = c->n;
    dtm_arena *arena = n->g->arena;
    dtm_text body, device = {arena, NULL, 0, 0}, arguments = {arena, NULL, 0, 0}, totals = {arena, NULL, 0, 0};
    int number = 0, count = 0;
    for (int i = 0; i < (int)n->n_ops; i++) {
        if (!dtm_is_reduction(cuda_op(c, i)->kind)) continue;
        dtm_text_printf(&arguments, ", %s &r%d", cuda_total_type(c, i), i);
        dtm_text_printf(&totals, ", r%d", i);
        count++;
    }
    add_function(c, out, "chunks",
                 dtm_arena_printf(arena, "    const int64_t chunks = (%s + %d) / %d;\n    return chunks < %d ? chunks : %d;\n", vectors_on_host(c),
                                  CUDA_VECTORS_OF_CHUNK - 1, CUDA_VECTORS_OF_CHUNK, CUDA_CHUNKS_OF_ALL, CUDA_CHUNKS_OF_ALL));
    write_vector_function(c, arguments.data);
    open_entry(c, &body);
    CUDA_LINE(c, "constexpr int W = %d;", c->width);
    CUDA_LINE(c, "const %s all = %s, vectors = all / W, chunks = @_chunks(z);", c->index, cuda_product(c, cuda_loops(c, false) | cuda_loops(c, true)));
    CUDA_LINE(c, "if (blockIdx.x >= chunks) return;");
    CUDA_LINE(c, "const %s self = (%s)blockIdx.x * %d + threadIdx.x;", c->index, c->index, CUDA_THREADS);
    for (int i = 0; i < (int)n->n_ops; i++) {
        if (!dtm_is_reduction(cuda_op(c, i)->kind)) continue;
        CUDA_LINE(c, "__shared__ %s shared%d[%d];", cuda_total_type(c, i), i, CUDA_GROUPS);
        CUDA_LINE(c, "%s r%d = %s;", cuda_total_type(c, i), i, cuda_none(c, i));
    }
    CUDA_LINE(c, "for (%s v = self; v < vectors; v += chunks * %d) @_at<W>(t, v * W%s);", c->index, CUDA_THREADS, totals.data);
    if (n->n_loops == 1) CUDA_LINE(c, "if (self < all %% W) @_at<1>(t, vectors * W + self%s);", totals.data);
    for (int i = 0; i < (int)n->n_ops; i++) {
        if (!dtm_is_reduction(cuda_op(c, i)->kind)) continue;
        CUDA_LINE(c, "r%d = dtm_join<%s, %d>(r%d, %s, shared%d);", i, cuda_joins(c, i), CUDA_THREADS, i, cuda_none(c, i), i);
        CUDA_LINE(c, "if (threadIdx.x == 0) %s[blockIdx.x] = r%d;", partials(c, i, number++, "chunks"), i);
    }
    close_entry(c, "", CUDA_THREADS, &body, &device);
    memset(c->w.emitted, 0, n->n_ops * sizeof *c->w.emitted);
    c->w.hoisted = false;
    write_all_finish(c, &device);
    out->device = printed(c, "%s%s", c->before.length ? c->before.data : "", device.data);
    out->scratch = dtm_arena_printf(arena, "%d * @_chunks(z)", 8 * count);
    add_launch(out, "", CUDA_THREADS, "@_chunks(z)");
    add_launch(out, "_finish", CUDA_THREADS, "1");
}

/* ---- sums along columns ---- */

static const char *sum_type(const cuda_nest *c, int i) { return cuda_total_type(c, i)[0] == 'f' ? "float" : "int64_t"; }

/* In scratch: chunk by chunk, a row for each; of 8 bytes an element if any sum is of integers. */
static const char *column_sums(const cuda_nest *c, int i, const char *chunk) {
    const char *row = cuda_product(c, cuda_loops(c, true)), *type = sum_type(c, i);
    return dtm_arena_printf(c->n->g->arena, "(%s *)((char *)t.scratch + %d * @_chunks(z) * %s) + (int64_t)%s * %s", type,
                            (c->wide ? 8 : 4) * c->n->column_sum[i], row, chunk, row);
}

static void open_chunk(cuda_nest *c, const char *from, int step) {
    CUDA_LINE(c, "const %s rows = %s, each = @_each(z), end = (unit + 1) * each < rows ? (unit + 1) * each : rows;", c->index,
              cuda_product(c, cuda_loops(c, false)));
    CUDA_LINE(c, "for (%s row = unit * each%s; row < end; row += %d) {", c->index, from, step);
    c->w.depth++;
    cuda_indices(c, "row", cuda_loops(c, false), "rest");
    nest_write_hoisted(&c->w);
}

/* Columns by warps that take rows in turn. */
static int write_sums_of_tiles(cuda_nest *c, dtm_text *body) {
    nest *n = c->n;
    open_entry(c, body);
    declare_tile(c, cuda_product(c, cuda_loops(c, true)));
    CUDA_LINE(c, "if (unit >= @_chunks(z)) return;");
    cuda_indices(c, "column", cuda_loops(c, true), "more");
    declare_columns(c);
    CUDA_LINE(c, "if (column < columns) {");
    c->w.depth++;
    open_chunk(c, " + group", CUDA_GROUPS);
    c->w.pass = 0;
    cuda_scalars(c);
    cuda_vector(c, cuda_element);
    nest_close_block(&c->w);
    nest_close_block(&c->w);
    join_groups(c, "W");
    CUDA_LINE(c, "if (group == 0 && column < columns) {");
    c->w.depth++;
    for (int i = 0; i < (int)n->n_ops; i++) {
        if (!cuda_is_column_sum(c, i)) continue;
        CUDA_LINE(c, "%s *const p%d = %s + column;", sum_type(c, i), i, column_sums(c, i, "unit"));
        CUDA_LINE(c, "#pragma unroll");
        CUDA_LINE(c, "for (int k = 0; k < W; k++) p%d[k] = r%d[k];", i, i);
    }
    nest_close_block(&c->w);
    return CUDA_THREADS;
}

/* Each thread has columns of its own, in registers or in the scratch itself: for each of them `to` is set. */
static void set_column_sums(cuda_nest *c, const char *to, const char *from) {
    open_row(c);
    for (int i = 0; i < (int)c->n->n_ops; i++) {
        if (!cuda_is_column_sum(c, i)) continue;
        const char *value = from ? dtm_arena_printf(c->n->g->arena, "p%d[%s]", i, from) : cuda_none(c, i);
        CUDA_LINE(c, "#pragma unroll");
        CUDA_LINE(c, "for (int k = 0; k < W; k++) %s%d[%s] = %s;", from ? "q" : "p", i, to, value);
    }
    nest_close_block(&c->w);
}

static int write_sums_of_rows(cuda_nest *c, dtm_text *body) {
    nest *n = c->n;
    open_entry(c, body);
    declare_row(c);
    CUDA_LINE(c, "const %s unit = blockIdx.x;", c->index);
    CUDA_LINE(c, "if (unit >= @_chunks(z)) return;");
    for (int i = 0; i < (int)n->n_ops; i++) {
        if (!cuda_is_column_sum(c, i)) continue;
        if (c->iterations) CUDA_LINE(c, "%s p%d[%d * W];", sum_type(c, i), i, c->iterations);
        else CUDA_LINE(c, "%s *const p%d = %s;", sum_type(c, i), i, column_sums(c, i, "unit"));
    }
    set_column_sums(c, c->iterations ? "n * W + k" : "e + k", NULL);
    open_chunk(c, "", 1);
    declare_saved(c);
    write_passes(c);
    if (c->n_pending) sync_lanes(c);
    cuda_store_pending(c, "lane == 0");
    if (c->lanes > 32) CUDA_LINE(c, "__syncthreads(); /* what joins the lanes is free again */");
    nest_close_block(&c->w);
    if (c->iterations) {
        for (int i = 0; i < (int)n->n_ops; i++)
            if (cuda_is_column_sum(c, i)) CUDA_LINE(c, "%s *const q%d = %s;", sum_type(c, i), i, column_sums(c, i, "unit"));
        set_column_sums(c, "e + k", "n * W + k");
    }
    return c->threads;
}

static void write_sums_finish(cuda_nest *c, dtm_text *device) {
    nest *n = c->n;
    dtm_text body;
    open_entry(c, &body);
    c->width = 1;
    c->w.pass = 0;
    declare_tile(c, cuda_product(c, cuda_loops(c, true)));
    CUDA_LINE(c, "if (unit) return;");
    declare_columns(c);
    CUDA_LINE(c, "const int64_t chunks = @_chunks(z);");
    CUDA_LINE(c, "if (column < columns)");
    CUDA_LINE(c, "    for (int64_t chunk = group; chunk < chunks; chunk += %d) {", CUDA_GROUPS);
    for (int i = 0; i < (int)n->n_ops; i++)
        if (cuda_is_column_sum(c, i))
            CUDA_LINE(c, "        r%d[0] = %s::join(r%d[0], (%s)[column]);", i, cuda_joins(c, i), i, column_sums(c, i, "chunk"));
    CUDA_LINE(c, "    }");
    join_groups(c, "1");
    CUDA_LINE(c, "if (group || column >= columns) return;");
    cuda_indices(c, "column", cuda_loops(c, true), "more");
    for (int i = 0; i < (int)n->n_ops; i++)
        if (cuda_is_column_sum(c, i)) nest_define(&c->w, i, nest_finished(&c->w, i, dtm_arena_printf(n->g->arena, "r%d[0]", i)));
    for (int i = 0; i < (int)n->n_ops; i++)
        if (nest_comes_after(&c->w, i)) nest_value(&c->w, cuda_op(c, i)->results[0]);
    for (int i = 0; i < (int)n->n_ops; i++)
        if (nest_comes_after(&c->w, i)) nest_store(&c->w, i);
    close_entry(c, "_finish", CUDA_THREADS, &body, device);
}

void cuda_write_sums(cuda_nest *c, dtm_cuda_text *out) {
    nest *n = c->n;
    dtm_arena *arena = n->g->arena;
    dtm_text body, device = {arena, NULL, 0, 0};
    int least = c->by_rows ? CUDA_ROWS_BY_BLOCK : CUDA_ROWS_BY_WARPS;
    add_function(c, out, "each",
                 dtm_arena_printf(arena, "    const int64_t each = (%s + %d) / %d;\n    return each > %d ? each : %d;\n",
                                  cuda_product_on_host(c, cuda_loops(c, false)), CUDA_CHUNKS_OF_ROWS - 1, CUDA_CHUNKS_OF_ROWS, least, least));
    add_function(c, out, "chunks", dtm_arena_printf(arena, "    return (%s + @_each(z) - 1) / @_each(z);\n", cuda_product_on_host(c, cuda_loops(c, false))));
    const char *tiles = tiles_on_host(c, cuda_loops(c, true));
    int threads = (c->by_rows ? write_sums_of_rows : write_sums_of_tiles)(c, &body);
    close_entry(c, "", threads, &body, &device);
    memset(c->w.emitted, 0, n->n_ops * sizeof *c->w.emitted);
    c->w.hoisted = false;
    write_sums_finish(c, &device);
    out->device = printed(c, "%s%s", c->before.length ? c->before.data : "", device.data);
    out->scratch = dtm_arena_printf(arena, "%d * @_chunks(z) * %s", n->n_column_sums * (c->wide ? 8 : 4), cuda_product_on_host(c, cuda_loops(c, true)));
    add_launch(out, "", threads, c->by_rows ? "@_chunks(z)" : printed(c, "@_chunks(z) * %s", tiles, ""));
    add_launch(out, "_finish", CUDA_THREADS, tiles_on_host(c, cuda_loops(c, true)));
}
