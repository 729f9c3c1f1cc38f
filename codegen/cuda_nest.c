/* Plans how the threads of a GPU go over the loop nest of a kernel, and makes the kernel. */
#include "codegen/cuda_nest.h"

#include <string.h>

static const dtm_type_data *type_of(const cuda_nest *c, dtm_value v) { return dtm_value_type(c->n->g->module, v); }

/* ---- sizes ---- */

static bool loop_number(const cuda_nest *c, int loop, int64_t *number) {
    return c->n->loops[loop].expression[0] != 'z' && dtm_product_is_number(&c->n->loops[loop].size, number);
}

/* The elements that all loops go over are at most so many. */
static double most_elements(const nest *n) {
    double most = 1;
    for (int d = 0; d < n->n_dims; d++) most *= (double)dtm_block_max(n->g->module, n->dims[d].type, n->dims[d].index);
    return most;
}

static int64_t row_elements(const cuda_nest *c) {
    int64_t row = 1, number;
    for (int l = 0; l < c->n->n_loops; l++) {
        if (!c->n->loops[l].inner) continue;
        if (!loop_number(c, l, &number)) return 0;
        row *= number;
    }
    return row;
}

/* f(value) of all that lies in memory: operands from elsewhere, and what is stored. */
static int widest_vector(const cuda_nest *c) {
    int64_t widest = 1;
    for (size_t i = 0; i < c->n->n_ops; i++) {
        const dtm_op_data *op = cuda_op(c, (int)i);
        for (uint32_t k = 0; k < op->n_operands + op->n_results; k++) {
            dtm_value v = k < op->n_operands ? op->operands[k] : op->results[k - op->n_operands];
            if (dtm_value_is_constant(c->n->g->module, v) || (nest_body_index(c->n, v) >= 0 && !c->n->g->stored[v])) continue;
            int64_t bytes = dtm_dtype_bytes((dtm_dtype)type_of(c, v)->dtype);
            if (nest_is_vector(&c->w, v) && bytes > widest) widest = bytes;
        }
    }
    return (int)widest;
}

/* So many that the widest access is of 16 bytes, and rows are whole vectors: of a single loop an end may be left. */
static int choose_width(const cuda_nest *c) {
    int width = 16 / widest_vector(c);
    int64_t last;
    if (width > 8) width = 8;
    if (c->n->n_loops == 1 && (c->n->shape == NEST_ELEMENTWISE || c->n->shape == NEST_ALL)) return width;
    if (!c->n->n_loops || !loop_number(c, c->n->n_loops - 1, &last)) return 1;
    while (last % width) width /= 2;
    return width;
}

/* ---- rows ---- */

static bool reduces_rows(const nest *n) {
    for (size_t i = 0; i < n->n_ops; i++)
        if (dtm_is_reduction(dtm_op_get(n->g->module, n->ops[i])->kind) && n->column_sum[i] < 0) return true;
    return false;
}

/* A value of the row alone, which is stored once: by the threads that have the whole row, when all have read what it may lie over. */
static bool stores_of_rows(const nest *n) {
    for (size_t i = 0; i < n->n_ops; i++) {
        const dtm_op_data *op = dtm_op_get(n->g->module, n->ops[i]);
        if (!n->written[i] || dtm_is_reduction(op->kind) || nest_is_inner(n, op->results[0])) continue;
        if (n->shape != NEST_SUMS || !nest_is_common(n, op->results[0])) return true;
    }
    return false;
}

static int rounded_up(int64_t number, int least, int most) {
    number = (number + 31) / 32 * 32;
    return (int)(number < least ? least : number > most ? most : number);
}

/* Four vectors a thread, where there are so many; short rows by a warp each. */
static void choose_lanes(cuda_nest *c) {
    bool sums = c->n->shape == NEST_SUMS;
    int64_t vectors = c->row / c->width;
    c->lanes = c->threads = CUDA_THREADS;
    if (!c->row) return;
    c->lanes = vectors <= 128 && !sums ? 32 : rounded_up((vectors + 3) / 4, 32, 512);
    c->threads = c->lanes > 32 || sums ? c->lanes : 128;
    int64_t iterations = (vectors + c->lanes - 1) / c->lanes;
    if (iterations <= CUDA_KEPT) c->iterations = (int)iterations;
}

/* Where a lane does not keep its part of a row, what a later pass needs is computed again from what was read. */
static void choose_kept(cuda_nest *c) {
    if (c->iterations && c->by_rows) return;
    for (size_t i = 0; i < c->n->n_ops; i++) c->n->saved[i] = false;
    c->n->n_saved = 0;
}

/* ---- the kernel ---- */

static void plan(cuda_nest *c) {
    nest *n = c->n;
    if (n->shape == NEST_ELEMENTWISE && (!n->n_loops || stores_of_rows(n))) n->shape = NEST_ROW;
    c->by_rows = n->shape == NEST_ROW || (n->shape == NEST_SUMS && (reduces_rows(n) || stores_of_rows(n)));
    c->index = most_elements(n) < (double)((int64_t)1 << 31) ? "uint32_t" : "int64_t";
    c->row = row_elements(c);
    c->width = choose_width(c);
    for (size_t i = 0; i < n->n_ops; i++) c->wide |= cuda_is_column_sum(c, (int)i) && cuda_total_type(c, (int)i)[0] != 'f';
    if (c->by_rows) choose_lanes(c);
    choose_kept(c);
}

static uint64_t read_only_of(const nest *n) {
    uint64_t read_only = 0;
    for (size_t i = 0; i < n->n_touched && i < 64; i++)
        if (nest_body_index(n, n->touched[i]) < 0) read_only |= (uint64_t)1 << i;
    return read_only;
}

void nest_lower_cuda(nest *n, const char *name, dtm_plan_category category) {
    dtm_generator *g = n->g;
    cuda_nest c = {.n = n, .w = {.n = n, .emitted = dtm_arena_alloc(g->arena, (n->n_ops + 1) * sizeof(bool))},
                   .pending = dtm_arena_alloc(g->arena, (n->n_ops + 1) * sizeof(int)), .before = {g->arena, NULL, 0, 0}};
    dtm_cuda_text text = {0};
    plan(&c);
    switch (n->shape) {
    case NEST_ELEMENTWISE: cuda_write_elementwise(&c, &text); break;
    case NEST_ROW: cuda_write_row(&c, &text); break;
    case NEST_COLUMN: cuda_write_column(&c, &text); break;
    case NEST_ALL: cuda_write_all(&c, &text); break;
    case NEST_SUMS: cuda_write_sums(&c, &text); break;
    }
    const char *state = n->n_extra ? dtm_arena_printf(g->arena, "enum { STEP_STATE = %zu };\n\n", n->n_touched) : "";
    text.device = dtm_arena_printf(g->arena, "#include \"kernels/cuda/nest.cuh\"\n%s%s", state, text.device);
    size_t n_buffers = n->n_touched + n->n_extra;
    if (!n_buffers) return; /* nothing is stored */
    uint32_t *buffers = dtm_arena_alloc(g->arena, (n_buffers + 1) * sizeof *buffers);
    for (size_t i = 0; i < n->n_touched; i++) buffers[i] = dtm_buffer_index(g, n->touched[i]);
    for (size_t i = 0; i < n->n_extra; i++) buffers[n->n_touched + i] = n->extra[i];
    uint32_t kernel = dtm_cuda_kernel_index(g, name, &text, n_buffers, n->n_sizes);
    g->kernels[kernel].read_only = read_only_of(n);
    dtm_emit_launch(g, n->unit, category, kernel, buffers, n_buffers, n->sizes, n->n_sizes);
}
