/* Pieces of kernels in CUDA C that all shapes of a loop nest share: indices, vectors, values of a row. */
#include "codegen/cuda_nest.h"

#include <string.h>

const dtm_op_data *cuda_op(const cuda_nest *c, int i) { return dtm_op_get(c->n->g->module, c->n->ops[i]); }
bool cuda_is_column_sum(const cuda_nest *c, int i) { return c->n->column_sum[i] >= 0; }
static const dtm_type_data *type_of(const cuda_nest *c, dtm_value v) { return dtm_value_type(c->n->g->module, v); }

/* ---- loops ---- */

unsigned cuda_loops(const cuda_nest *c, bool inner) {
    unsigned loops = 0;
    for (int l = 0; l < c->n->n_loops; l++)
        if (c->n->loops[l].inner == inner) loops |= 1u << l;
    return loops;
}

unsigned cuda_last(const cuda_nest *c) { return c->n->n_loops ? 1u << (c->n->n_loops - 1) : 0; }

/* As a number it needs no type; sizes that come with the tuple are 64 bits wide. */
static const char *size_of(const cuda_nest *c, int loop) {
    const char *size = c->n->loops[loop].expression;
    return *size == 'z' ? dtm_arena_printf(c->n->g->arena, "(%s)%s", c->index, size) : size;
}

static const char *product(const cuda_nest *c, unsigned loops, bool host) {
    dtm_text text = {c->n->g->arena, NULL, 0, 0};
    int count = 0;
    for (int l = 0; l < c->n->n_loops; l++)
        if (loops >> l & 1) dtm_text_printf(&text, "%s%s", count++ ? " * " : "", host ? c->n->loops[l].expression : size_of(c, l));
    return count > 1 ? dtm_arena_printf(text.arena, "(%s)", text.data) : count ? text.data : "1";
}

const char *cuda_product(const cuda_nest *c, unsigned loops) { return product(c, loops, false); }
const char *cuda_product_on_host(const cuda_nest *c, unsigned loops) { return product(c, loops, true); }

static void name_index(cuda_nest *c, int loop, const char *value) {
    bool last = loop == c->n->n_loops - 1;
    if (last) CUDA_LINE(c, "const int64_t first = %s;", value);
    CUDA_LINE(c, "const int64_t i%d = %s;", loop, last ? "first" : value);
}

void cuda_indices(cuda_nest *c, const char *flat, unsigned loops, const char *rest) {
    int left = 0;
    for (int l = 0; l < c->n->n_loops; l++) left += loops >> l & 1;
    if (left > 1) CUDA_LINE(c, "%s %s = %s;", c->index, rest, flat);
    const char *from = left > 1 ? rest : flat;
    for (int l = c->n->n_loops - 1; l >= 0; l--) {
        if (!(loops >> l & 1)) continue;
        if (--left == 0) {
            name_index(c, l, from);
            return;
        }
        name_index(c, l, dtm_arena_printf(c->n->g->arena, "%s %% %s", from, size_of(c, l)));
        CUDA_LINE(c, "%s /= %s;", rest, size_of(c, l));
    }
}

/* ---- what an entry begins with ---- */

const char *dtm_cuda_stored_type(dtm_dtype dtype) {
    return dtype == DTM_BF16 ? "dtm_bf16" : dtype == DTM_F16 ? "dtm_f16" : dtm_c_type(dtype);
}

void cuda_open_tuple(cuda_nest *c, dtm_text *out) {
    const nest *n = c->n;
    for (size_t i = 0; i < n->n_touched; i++) {
        const char *type = dtm_cuda_stored_type((dtm_dtype)type_of(c, n->touched[i])->dtype);
        dtm_text_printf(out, "    %s *const b%zu = (%s *)t.b[%zu];\n", type, i, type, i);
    }
    if (n->n_extra) dtm_text_printf(out, "    const uint64_t *const step_state = (const uint64_t *)t.b[STEP_STATE];\n"); /* the last buffer */
    dtm_text_printf(out, "    const int64_t *const z = t.z;\n");
}

/* ---- vectors ---- */

/* "if (i0 == 0) ": what differs along fewer loops than threads go over is stored by those at their beginning. */
static const char *cuda_once(const cuda_nest *c, dtm_value v) {
    const nest *n = c->n;
    dtm_text text = {n->g->arena, NULL, 0, 0};
    bool rows_apart = c->by_rows || n->shape == NEST_COLUMN; /* a unit is one block's */
    for (int l = 0; l < n->n_loops; l++) {
        if (nest_has_loop(n, v, l) || (rows_apart && !n->loops[l].inner) || (n->shape == NEST_COLUMN && c->finishing)) continue;
        dtm_text_printf(&text, "%s i%d == 0", text.length ? " &&" : "if (", l);
    }
    if (text.length) dtm_text_printf(&text, ") ");
    return text.length ? text.data : "";
}

void cuda_vector(cuda_nest *c, void (*body)(cuda_nest *)) {
    nest *n = c->n;
    nest_writer *w = &c->w;
    dtm_arena *arena = n->g->arena;
    dtm_text inside = {arena, NULL, 0, 0}, *outside = w->out;
    nest_vector vector = {dtm_arena_alloc(arena, n->g->module->n_values * sizeof(bool)),
                          dtm_arena_alloc(arena, (n->n_ops + 1) * sizeof(bool)), c->iterations ? "n * W + k" : "",
                          {arena, NULL, 0, 0}};
    bool *emitted = dtm_arena_alloc(arena, (n->n_ops + 1) * sizeof *emitted);
    memcpy(emitted, w->emitted, n->n_ops * sizeof *emitted);
    w->vector = &vector;
    w->out = &inside;
    w->depth++;
    body(c);
    w->depth--;
    w->out = outside;
    w->vector = NULL;
    memcpy(w->emitted, emitted, n->n_ops * sizeof *emitted);
    for (size_t i = 0; i < n->n_touched; i++) {
        if (!vector.read[i]) continue;
        dtm_value v = n->touched[i];
        CUDA_LINE(c, "%s x%zu[W];", nest_register_type((dtm_dtype)type_of(c, v)->dtype), i);
        CUDA_LINE(c, "dtm_read<W>(x%zu, b%zu + (%s) + (%s));", i, i, nest_offset(w, v, false), nest_offset(w, v, true));
    }
    for (int i = 0; i < (int)n->n_ops; i++)
        if (vector.stored[i]) CUDA_LINE(c, "%s y%d[W];", nest_register_type((dtm_dtype)type_of(c, cuda_op(c, i)->results[0])->dtype), i);
    for (const char *line = vector.before.length ? vector.before.data : ""; *line; line += strcspn(line, "\n") + 1)
        CUDA_LINE(c, "%.*s", (int)strcspn(line, "\n"), line);
    CUDA_LINE(c, "#pragma unroll");
    CUDA_LINE(c, "for (int k = 0; k < W; k++) {");
    if (n->n_loops) CUDA_LINE(c, "    const int64_t i%d = first + k;", n->n_loops - 1);
    if (inside.length) dtm_text_append(outside, inside.data, inside.length);
    CUDA_LINE(c, "}");
    for (int i = 0; i < (int)n->n_ops; i++) { /* after all that is read: an output may lie over an input */
        if (!vector.stored[i]) continue;
        dtm_value v = cuda_op(c, i)->results[0];
        CUDA_LINE(c, "%sdtm_write<W>(b%d + (%s) + (%s), y%d);", cuda_once(c, v), nest_touch(n, v), nest_offset(w, v, false), nest_offset(w, v, true), i);
    }
}

/* ---- what a pass does ---- */

bool cuda_is_of_columns(const cuda_nest *c, dtm_value v) {
    for (int l = 0; l < c->n->n_loops - 1; l++)
        if (c->n->loops[l].inner && nest_has_loop(c->n, v, l)) return false;
    return nest_is_inner(c->n, v);
}

static const char *accumulator(const cuda_nest *c, int i) {
    dtm_arena *arena = c->n->g->arena;
    if (cuda_is_column_sum(c, i) && c->by_rows) return dtm_arena_printf(arena, c->iterations ? "p%d[n * W + k]" : "p%d[e + k]", i);
    return dtm_arena_printf(arena, cuda_is_column_sum(c, i) || c->n->shape == NEST_COLUMN ? "r%d[k]" : "r%d", i);
}

void cuda_element(cuda_nest *c) {
    nest_writer *w = &c->w;
    for (int i = 0; i < (int)c->n->n_ops; i++) {
        const dtm_op_data *op = cuda_op(c, i);
        if (!nest_works(w, i)) continue;
        if (dtm_is_reduction(op->kind)) {
            const char *x = nest_value(w, op->operands[0]);
            nest_accumulate(w, op, accumulator(c, i), x);
        } else {
            nest_value(w, op->results[0]);
            if (c->n->saved[i]) CUDA_LINE(c, "s%d[n * W + k] = v%d;", i, i);
        }
    }
    for (int i = 0; i < (int)c->n->n_ops; i++) {
        if (!nest_works(w, i) || dtm_is_reduction(cuda_op(c, i)->kind) || !c->n->written[i]) continue;
        dtm_value v = cuda_op(c, i)->results[0];
        if (c->n->shape == NEST_COLUMN && cuda_is_of_columns(c, v)) continue; /* with the sums, when all have read what it may lie over */
        const char *once = nest_is_vector(w, v) ? "" : cuda_once(c, v);
        if (*once) CUDA_LINE(c, "%s", once);
        nest_store(w, i);
    }
}

bool cuda_any_work(const cuda_nest *c) {
    for (int i = 0; i < (int)c->n->n_ops; i++)
        if (nest_works(&c->w, i)) return true;
    return false;
}

void cuda_store_later(cuda_nest *c, int i) { c->pending[c->n_pending++] = i; }

void cuda_scalars(cuda_nest *c) {
    for (int i = 0; i < (int)c->n->n_ops; i++) {
        const dtm_op_data *op = cuda_op(c, i);
        if (c->n->levels[i] != c->w.pass || dtm_is_reduction(op->kind) || nest_is_inner(c->n, op->results[0])) continue;
        if (c->n->shape == NEST_SUMS && nest_comes_after(&c->w, i)) continue; /* the second launch's */
        nest_value(&c->w, op->results[0]);
        if (c->n->written[i]) cuda_store_later(c, i);
    }
}

void cuda_store_pending(cuda_nest *c, const char *condition) {
    if (!c->n_pending) return;
    CUDA_LINE(c, "if (%s) {", condition);
    c->w.depth++;
    for (int i = 0; i < c->n_pending; i++) nest_store(&c->w, c->pending[i]);
    nest_close_block(&c->w);
    c->n_pending = 0;
}

/* ---- reductions ---- */

static dtm_dtype reduced_type(const cuda_nest *c, int i) { return (dtm_dtype)type_of(c, cuda_op(c, i)->operands[0])->dtype; }

const char *cuda_total_type(const cuda_nest *c, int i) {
    bool sum = cuda_op(c, i)->kind != DTM_OP_REDUCE_MAX;
    return sum && !dtm_dtype_is_float(reduced_type(c, i)) ? "int64_t" : nest_register_type(reduced_type(c, i));
}

const char *cuda_joins(const cuda_nest *c, int i) { return cuda_op(c, i)->kind == DTM_OP_REDUCE_MAX ? "dtm_larger" : "dtm_add"; }

const char *cuda_none(const cuda_nest *c, int i) {
    return dtm_arena_printf(c->n->g->arena, "(%s)%s", cuda_total_type(c, i), nest_identity(cuda_op(c, i), reduced_type(c, i)));
}
