/* Plans the loop nest of one kernel: an elementwise operator, a reduction, or a fused region of both. Which dimensions it
 * loops over, which of them run together as one loop, which are the kernel's units and which its rows; what it reads and
 * writes; what it keeps from one pass over a row to the next. nest_text.c writes it. */
#include "codegen/nest.h"

#include <string.h>

static dtm_module *module_of(const nest *n) { return n->g->module; }
static const dtm_op_data *body_op(const nest *n, size_t i) { return dtm_op_get(module_of(n), n->ops[i]); }
static const dtm_type_data *type_of(const nest *n, dtm_value v) { return dtm_value_type(module_of(n), v); }

int nest_body_index(const nest *n, dtm_value value) {
    dtm_op def = dtm_value_get(module_of(n), value)->def;
    for (size_t i = 0; def && i < n->n_ops; i++)
        if (n->ops[i] == def) return (int)i;
    return -1;
}

int nest_touch(nest *n, dtm_value value) {
    for (size_t i = 0; i < n->n_touched; i++)
        if (n->touched[i] == value) return (int)i;
    DTM_PUSH(n->g->arena, n->touched, n->n_touched, n->cap_touched, value);
    return (int)n->n_touched - 1;
}

int nest_size(nest *n, const dtm_product *size) {
    uint32_t index = dtm_size_index(n->g, size);
    for (size_t i = 0; i < n->n_sizes; i++)
        if (n->sizes[i] == index) return (int)i;
    DTM_PUSH(n->g->arena, n->sizes, n->n_sizes, n->cap_sizes, index);
    return (int)n->n_sizes - 1;
}

static int find_dim(const nest *n, dtm_dim dim) {
    for (int d = 0; d < n->n_dims; d++)
        if (n->dims[d].dim == dim) return d;
    return -1;
}

bool nest_has_loop(const nest *n, dtm_value value, int loop) {
    return dtm_type_dim_index(type_of(n, value), n->dims[n->loops[loop].first_dim].dim) >= 0;
}

bool nest_is_common(const nest *n, dtm_value value) {
    for (int l = 0; l < n->n_loops; l++)
        if (!n->loops[l].inner && nest_has_loop(n, value, l)) return false;
    return true;
}

bool nest_is_inner(const nest *n, dtm_value value) {
    for (int l = 0; l < n->n_loops; l++)
        if (n->loops[l].inner && nest_has_loop(n, value, l)) return true;
    return false;
}

/* ---- dimensions ---- */

static void add_dims(nest *n, dtm_value value) {
    const dtm_type_data *type = type_of(n, value);
    for (int i = 0; i < type->rank; i++) {
        if (find_dim(n, type->dims[i]) >= 0) continue;
        if (n->n_dims == NEST_LOOPS) dtm_broken("codegen", "a kernel over more than %d dimensions", NEST_LOOPS);
        n->dims[n->n_dims++] = (nest_dim){type->dims[i], type, i, false, false, 0};
    }
}

/* In the order of the value that has most dimensions, of equals of one that is summed: operators that are made again here may have
 * another order, and fuse has gone by the sums (fuse_groups.c). Others after it. */
static void collect_dims(nest *n) {
    dtm_value widest = 0;
    int rank = -1;
    for (size_t i = 0; i < n->n_ops; i++) {
        const dtm_op_data *op = body_op(n, i);
        for (uint32_t k = 0; k < op->n_operands + op->n_results; k++) {
            dtm_value v = k < op->n_results ? op->results[k] : op->operands[k - op->n_results];
            if (type_of(n, v)->rank > rank) widest = v, rank = type_of(n, v)->rank;
        }
    }
    for (size_t i = n->n_ops; i-- > 0;) {
        const dtm_op_data *op = body_op(n, i);
        if (dtm_is_reduction(op->kind) && type_of(n, op->operands[0])->rank == rank) widest = op->operands[0];
    }
    if (rank > 0) add_dims(n, widest);
    for (size_t i = 0; i < n->n_ops; i++) {
        const dtm_op_data *op = body_op(n, i);
        for (uint32_t k = 0; k < op->n_results; k++) add_dims(n, op->results[k]);
        for (uint32_t k = 0; k < op->n_operands; k++) add_dims(n, op->operands[k]);
    }
}

static void pin(nest *n, dtm_dim dim) {
    int d = find_dim(n, dim);
    if (d >= 0) n->dims[d].pinned = true;
}

static void mark_dims(nest *n) {
    for (size_t i = 0; i < n->n_ops; i++) {
        const dtm_op_data *op = body_op(n, i);
        if (dtm_is_reduction(op->kind))
            for (int k = 0; k < op->attributes.n_over; k++) {
                int d = find_dim(n, op->attributes.over[k]);
                if (d >= 0) n->dims[d].reduced = true;
            }
        if (op->kind == DTM_OP_POSITIONS || op->kind == DTM_OP_CROSS_ENTROPY_BACKWARD) pin(n, op->attributes.over[0]);
        if (op->kind == DTM_OP_DROPOUT && dtm_type_split_axes(type_of(n, op->results[0])))
            for (int d = 0; d < type_of(n, op->results[0])->rank; d++) pin(n, type_of(n, op->results[0])->dims[d]);
    }
}

/* Numbers the sums along columns. The dimensions they leave are the row. */
static void find_column_sums(nest *n) {
    n->column_sum = dtm_arena_alloc(n->g->arena, (n->n_ops + 1) * sizeof *n->column_sum);
    for (size_t i = 0; i < n->n_ops; i++) {
        int kept = dtm_column_kept(module_of(n), n->ops[i]);
        n->column_sum[i] = kept ? n->n_column_sums++ : -1;
        if (!kept) continue;
        const dtm_type_data *type = type_of(n, body_op(n, i)->operands[0]);
        for (int k = 0; k < type->rank; k++) n->dims[find_dim(n, type->dims[k])].reduced = k >= type->rank - kept;
    }
}

static void choose_shape(nest *n) {
    bool any = false, all = true;
    for (int d = 0; d < n->n_dims; d++) {
        any |= n->dims[d].reduced;
        all &= n->dims[d].reduced;
    }
    bool reduction = false;
    for (size_t i = 0; i < n->n_ops; i++) reduction |= dtm_is_reduction(body_op(n, i)->kind);
    n->shape = !reduction ? NEST_ELEMENTWISE
               : !any || all ? NEST_ALL
               : n->dims[n->n_dims - 1].reduced ? NEST_ROW
                                                : NEST_COLUMN;
    if (n->shape == NEST_ALL && !n->n_dims) n->shape = NEST_ROW; /* a reduction over nothing */
    if (n->n_column_sums) n->shape = NEST_SUMS;
    if (n->shape != NEST_ROW && n->shape != NEST_SUMS) return;
    /* Units first, then the row, each in the order it had. */
    nest_dim sorted[NEST_LOOPS];
    int count = 0;
    for (int reduced = 0; reduced < 2; reduced++)
        for (int d = 0; d < n->n_dims; d++)
            if (n->dims[d].reduced == (bool)reduced) sorted[count++] = n->dims[d];
    memcpy(n->dims, sorted, (size_t)count * sizeof *sorted);
}

/* ---- loops ---- */

static bool follows(const nest *n, dtm_value v, dtm_dim a, dtm_dim b) {
    int i = dtm_type_dim_index(type_of(n, v), a), j = dtm_type_dim_index(type_of(n, v), b);
    return (i < 0 && j < 0) || (i >= 0 && j == i + 1);
}

/* Whether two neighbouring dimensions can be one loop: every tensor has both side by side, or neither. */
static bool run_together(const nest *n, int d) {
    const nest_dim *a = &n->dims[d], *b = &n->dims[d + 1];
    if (a->reduced != b->reduced || a->pinned || b->pinned) return false;
    for (size_t i = 0; i < n->n_ops; i++) {
        const dtm_op_data *op = body_op(n, i);
        for (uint32_t k = 0; k < op->n_results; k++)
            if (!follows(n, op->results[k], a->dim, b->dim)) return false;
        for (uint32_t k = 0; k < op->n_operands; k++)
            if (!follows(n, op->operands[k], a->dim, b->dim)) return false;
    }
    return true;
}

static void make_loops(nest *n) {
    for (int d = 0; d < n->n_dims; d++) {
        bool joins = d && run_together(n, d - 1);
        if (!joins) n->loops[n->n_loops++] = (nest_loop){dtm_product_one(), "", n->dims[d].reduced, false, d, 0};
        nest_loop *loop = &n->loops[n->n_loops - 1];
        dtm_product_times(n->g, &loop->size, n->dims[d].type, n->dims[d].index);
        loop->n_dims++;
        n->dims[d].loop = n->n_loops - 1;
    }
    for (int l = 0; l < n->n_loops; l++) {
        nest_loop *loop = &n->loops[l];
        bool last = l == n->n_loops - 1;
        loop->inner = n->shape == NEST_ROW || n->shape == NEST_SUMS ? loop->reduced : n->shape == NEST_COLUMN ? loop->reduced || last : last;
        int64_t number;
        /* A flat kernel serves tensors of all sizes. */
        if (dtm_product_is_number(&loop->size, &number) && n->n_loops > 1)
            snprintf(loop->expression, sizeof loop->expression, "%lld", (long long)number);
        else snprintf(loop->expression, sizeof loop->expression, "z[%d]", nest_size(n, &loop->size));
    }
}

/* ---- what passes share ---- */

/* A value of an earlier pass that a later one needs is read back if it lies in memory, computed again if that is cheap,
 * else kept in scratch. */
static void save(nest *n, int i) {
    const dtm_op_data *op = body_op(n, (size_t)i);
    if (n->written[i] || n->saved[i] || !nest_is_inner(n, op->results[0])) return;
    if (!dtm_is_cheap(op->kind)) {
        n->saved[i] = true;
        n->n_saved++;
        return;
    }
    for (uint32_t k = 0; k < op->n_operands; k++) {
        int j = nest_body_index(n, op->operands[k]);
        if (j >= 0 && !dtm_is_reduction(body_op(n, (size_t)j)->kind)) save(n, j);
    }
}

static void choose_saved(nest *n) {
    for (size_t i = 0; i < n->n_ops; i++) {
        const dtm_op_data *op = body_op(n, i);
        for (uint32_t k = 0; k < op->n_operands; k++) {
            int j = nest_body_index(n, op->operands[k]);
            if (j >= 0 && n->levels[j] < n->levels[i] && !dtm_is_reduction(body_op(n, (size_t)j)->kind)) save(n, j);
        }
    }
}

static void find_levels(nest *n) {
    n->levels = dtm_arena_alloc(n->g->arena, (n->n_ops + 1) * sizeof *n->levels);
    n->saved = dtm_arena_alloc(n->g->arena, (n->n_ops + 1) * sizeof *n->saved);
    n->written = dtm_arena_alloc(n->g->arena, (n->n_ops + 1) * sizeof *n->written);
    if (dtm_op_get(module_of(n), n->unit)->kind == DTM_OP_FUSED) n->most = dtm_fused_levels(module_of(n), n->unit, n->levels);
    for (size_t i = 0; i < n->n_ops; i++) {
        n->written[i] = n->g->stored[body_op(n, i)->results[0]];
        bool reduces = dtm_is_reduction(body_op(n, i)->kind) && n->column_sum[i] < 0;
        if (reduces && n->levels[i] == n->most) n->most++; /* stored after its pass */
    }
}

/* ---- lowering ---- */

static dtm_plan_category category_of(const nest *n) {
    if (n->g->phase == DTM_PLAN_UPDATE) return DTM_PLAN_OPTIMIZER;
    if (n->shape == NEST_ELEMENTWISE) return DTM_PLAN_ELEMENTWISE;
    if (n->shape == NEST_ROW) return DTM_PLAN_ROWS;
    bool rows = false, elements = false;
    for (size_t i = 0; n->shape == NEST_SUMS && i < n->n_ops; i++) {
        bool reduces = dtm_is_reduction(body_op(n, i)->kind);
        rows |= reduces && n->column_sum[i] < 0;
        elements |= !reduces && n->written[i] && !nest_is_common(n, body_op(n, i)->results[0]);
    }
    return rows ? DTM_PLAN_ROWS : elements ? DTM_PLAN_ELEMENTWISE : DTM_PLAN_REDUCTION;
}

static const char *kernel_name(const nest *n) {
    const char *name = dtm_op_rows[body_op(n, n->n_ops - 1)->kind].kind_name;
    char *lower = dtm_arena_strdup(n->g->arena, n->n_ops > 1 ? "fused" : name);
    for (char *c = lower; *c; c++)
        if (*c >= 'A' && *c <= 'Z') *c = (char)(*c - 'A' + 'a');
    return lower;
}

static void launch(nest *n, const char *suffix, const dtm_text *text) {
    const char *name = dtm_arena_printf(n->g->arena, "%s%s", kernel_name(n), suffix);
    uint32_t kernel = dtm_kernel_index(n->g, name, text->data);
    uint32_t *buffers = dtm_arena_alloc(n->g->arena, (n->n_touched + n->n_extra + 1) * sizeof *buffers);
    uint64_t read_only = 0;
    for (size_t i = 0; i < n->n_touched; i++) {
        buffers[i] = dtm_buffer_index(n->g, n->touched[i]);
        if (i < 64 && nest_body_index(n, n->touched[i]) < 0) read_only |= (uint64_t)1 << i;
    }
    n->g->kernels[kernel].read_only = read_only;
    for (size_t i = 0; i < n->n_extra; i++) buffers[n->n_touched + i] = n->extra[i];
    dtm_emit_launch(n->g, n->unit, category_of(n), kernel, buffers, n->n_touched + n->n_extra, n->sizes, n->n_sizes);
}

void dtm_lower_nest(dtm_generator *g, dtm_op unit) {
    nest n = {.g = g, .unit = unit, .ops = &unit, .n_ops = 1};
    const dtm_op_data *data = dtm_op_get(g->module, unit);
    if (data->kind == DTM_OP_FUSED) {
        n.ops = g->module->regions[data->body].ops;
        n.n_ops = g->module->regions[data->body].n_ops;
    }
    if (!n.n_ops) return;
    collect_dims(&n);
    mark_dims(&n);
    find_column_sums(&n);
    find_levels(&n);
    choose_shape(&n);
    make_loops(&n);
    choose_saved(&n);
    if (g->cuda) {
        nest_lower_cuda(&n, kernel_name(&n), category_of(&n));
        return;
    }
    dtm_text text = {g->arena, NULL, 0, 0};
    bool finishes = n.shape == NEST_ALL || n.shape == NEST_SUMS;
    if (finishes) {
        int64_t copies;
        uint32_t partials = dtm_update_chunk_bytes(g->module, unit, &copies)
                                ? dtm_buffer_update_chunks(g, unit)
                                : dtm_buffer_workspace(g, "partials", DTM_PLAN_U8, 0, dtm_workspace_bytes(g->module, unit));
        DTM_PUSH(g->arena, n.extra, n.n_extra, n.cap_extra, partials);
    }
    nest_write(&n, &text);
    launch(&n, "", &text);
    if (!finishes) return;
    dtm_text finish = {g->arena, NULL, 0, 0};
    nest_write_finish(&n, &finish);
    launch(&n, "_finish", &finish);
}
