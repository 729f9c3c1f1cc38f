/* Writes a loop nest as C. A kernel's unit looks like this (rmsnorm, a row of D elements):
 *
 *     for (int64_t u = begin; u < end; u++) {
 *         const float *p0 = b0 + u * 64;                      tensors with the unit's loops done
 *         double r2 = 0;
 *         { float t2 = 0;                                     pass 0: what needs no reduction, and the first reductions
 *           #pragma omp simd reduction(+ : t2)
 *           for (int64_t i1 = 0; i1 < 64; i1++) { const float v1 = p0[i1] * p0[i1]; t2 += v1; }
 *           r2 += t2; }
 *         const float v2 = (float)r2 / 64;
 *         const float v3 = dtm_rsqrt(v2);                     pass 1: scalars of the row first, then the row again
 *         ...
 *
 * Sums run in lanes within the innermost loop and in double across it: an order of their own, whatever the threads. */
#include "codegen/nest.h"
#include "ir/fault.h"

#include <string.h>

static dtm_module *module_of(const nest_writer *w) { return w->n->g->module; }
static const dtm_op_data *body_op(const nest_writer *w, int i) { return dtm_op_get(module_of(w), w->n->ops[i]); }
static const dtm_type_data *type_of(const nest_writer *w, dtm_value v) { return dtm_value_type(module_of(w), v); }

/* ---- reductions ---- */

const char *nest_identity(const dtm_op_data *op, dtm_dtype dtype) {
    if (op->kind != DTM_OP_REDUCE_MAX) return "0";
    return dtm_dtype_is_float(dtype) ? "-INFINITY" : dtype == DTM_I32 ? "INT32_MIN" : "0";
}

static const char *total_type(const dtm_op_data *op, dtm_dtype dtype) {
    return op->kind == DTM_OP_REDUCE_MAX ? nest_register_type(dtype) : dtm_dtype_is_float(dtype) ? "double" : "int64_t";
}

void nest_accumulate(nest_writer *w, const dtm_op_data *op, const char *into, const char *x) {
    if (op->kind == DTM_OP_REDUCE_MAX) nest_line(w, "%s = %s > %s || %s != %s ? %s : %s;", into, x, into, x, x, x, into);
    else nest_line(w, "%s += %s;", into, x);
}

/* The mean's count is that of the whole dimensions. */
const char *nest_finished(nest_writer *w, int i, const char *total) {
    const dtm_op_data *op = body_op(w, i);
    dtm_dtype dtype = (dtm_dtype)type_of(w, op->results[0])->dtype;
    double count = 1;
    for (int k = 0; op->kind == DTM_OP_MEAN && k < op->attributes.n_over; k++)
        count *= (double)(dtm_fault(13) ? dtm_block_max(module_of(w), type_of(w, op->operands[0]), dtm_type_dim_index(type_of(w, op->operands[0]), op->attributes.over[k]))
                                        : module_of(w)->dims[op->attributes.over[k]].size);
    if (w->n->g->cuda && dtm_dtype_is_float(dtype) && count != 1) { /* no double there */
        dtm_text divisor = {w->n->g->arena, NULL, 0, 0};
        dtm_c_number(DTM_F32, count, &divisor);
        return nest_rounded(w, dtype, dtm_arena_printf(w->n->g->arena, "%s / %s", total, divisor.data));
    }
    const char *form = count == 1 ? "(%s)%s" : "(%s)(%s / %.17g)";
    return nest_rounded(w, dtype, dtm_arena_printf(w->n->g->arena, form, nest_register_type(dtype), total, count));
}

bool nest_reduces(const nest_writer *w, int i) {
    return dtm_is_reduction(body_op(w, i)->kind) && w->n->levels[i] == w->pass && w->n->column_sum[i] < 0;
}

/* ---- one pass ---- */

bool nest_works(const nest_writer *w, int i) {
    if (w->n->levels[i] != w->pass) return false;
    if (dtm_is_reduction(body_op(w, i)->kind)) return true;
    if (w->n->shape == NEST_SUMS && nest_is_common(w->n, body_op(w, i)->results[0])) return false;
    return nest_is_inner(w->n, body_op(w, i)->results[0]) && (w->n->written[i] || w->n->saved[i]);
}

/* Values of the unit's loops alone. */
static void write_scalars(nest_writer *w) {
    for (int i = 0; i < (int)w->n->n_ops; i++) {
        const dtm_op_data *op = body_op(w, i);
        if (w->n->levels[i] != w->pass || dtm_is_reduction(op->kind) || nest_is_inner(w->n, op->results[0])) continue;
        if (w->n->shape == NEST_SUMS && nest_is_common(w->n, op->results[0]) && w->n->written[i]) continue; /* the second kernel's */
        nest_value(w, op->results[0]);
        if (w->n->written[i]) nest_store(w, i);
    }
}

void nest_open_loop(nest_writer *w, int l, const char *begin, const char *end) {
    nest_line(w, "for (int64_t i%d = %s; i%d < %s; i%d++) {", l, begin, l, end, l);
    w->depth++;
}

void nest_close_block(nest_writer *w) {
    w->depth--;
    nest_line(w, "}");
}

static void write_body(nest_writer *w) {
    bool *outside = dtm_arena_alloc(w->n->g->arena, (w->n->n_ops + 1) * sizeof *outside);
    memcpy(outside, w->emitted, w->n->n_ops * sizeof *outside);
    for (int i = 0; i < (int)w->n->n_ops; i++) {
        const dtm_op_data *op = body_op(w, i);
        if (!nest_works(w, i)) continue;
        if (!dtm_is_reduction(op->kind)) {
            nest_value(w, op->results[0]);
            if (w->n->saved[i]) nest_line(w, "s%d[%s] = v%d;", i, nest_row_index(w), i);
        } else if (w->n->column_sum[i] >= 0) {
            nest_accumulate(w, op, dtm_arena_printf(w->n->g->arena, "p%d[%s]", i, nest_row_index(w)), nest_value(w, op->operands[0]));
        } else if (w->n->shape == NEST_COLUMN) {
            nest_accumulate(w, op, dtm_arena_printf(w->n->g->arena, "r%d[i%d - low]", i, w->n->n_loops - 1), nest_value(w, op->operands[0]));
        } else nest_accumulate(w, op, dtm_arena_printf(w->n->g->arena, "t%d", i), nest_value(w, op->operands[0]));
    }
    for (int i = 0; i < (int)w->n->n_ops; i++) /* stores last: an output may lie over an input */
        if (nest_works(w, i) && !dtm_is_reduction(body_op(w, i)->kind) && w->n->written[i]) nest_store(w, i);
    memcpy(w->emitted, outside, w->n->n_ops * sizeof *outside);
}

/* The innermost loop with its lanes; `low` and `high` are C names. */
static void write_row(nest_writer *w, int l, const char *low, const char *high) {
    bool lanes = w->n->shape != NEST_COLUMN;
    dtm_text sums = {w->n->g->arena, NULL, 0, 0}, maxima = {w->n->g->arena, NULL, 0, 0};
    for (int i = 0; lanes && i < (int)w->n->n_ops; i++) {
        if (!nest_reduces(w, i)) continue;
        const dtm_op_data *op = body_op(w, i);
        dtm_dtype dtype = (dtm_dtype)type_of(w, op->operands[0])->dtype;
        bool is_max = op->kind == DTM_OP_REDUCE_MAX;
        nest_line(w, "%s t%d = %s;", !is_max && !dtm_dtype_is_float(dtype) ? "int64_t" : nest_register_type(dtype), i, nest_identity(op, dtype));
        dtm_text *list = is_max ? &maxima : &sums;
        dtm_text_printf(list, "%st%d", list->length ? ", " : "", i);
    }
    nest_line(w, "#pragma omp simd%s%s%s%s%s%s", sums.length ? " reduction(+ : " : "", sums.length ? sums.data : "",
         sums.length ? ")" : "", maxima.length ? " reduction(max : " : "", maxima.length ? maxima.data : "",
         maxima.length ? ")" : "");
    nest_open_loop(w, l, low, high);
    write_body(w);
    nest_close_block(w);
    for (int i = 0; lanes && i < (int)w->n->n_ops; i++)
        if (nest_reduces(w, i)) {
            char into[32], from[32];
            snprintf(into, sizeof into, "r%d", i);
            snprintf(from, sizeof from, "t%d", i);
            nest_accumulate(w, body_op(w, i), into, from);
        }
}

static bool any_work(const nest_writer *w) {
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (nest_works(w, i)) return true;
    return false;
}

/* The inner loops of a pass. */
static void write_loops(nest_writer *w, const char *low, const char *high) {
    if (!any_work(w)) return;
    int open = 0, last = w->n->n_loops - 1;
    for (int l = 0; l < last; l++)
        if (w->n->loops[l].inner) {
            nest_open_loop(w, l, "0", w->n->loops[l].expression);
            open++;
        }
    nest_line(w, "{");
    w->depth++;
    write_row(w, last, low, high);
    for (nest_close_block(w); open; open--) nest_close_block(w);
}

static void write_totals(nest_writer *w) {
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (nest_reduces(w, i)) {
            const dtm_op_data *op = body_op(w, i);
            dtm_dtype dtype = (dtm_dtype)type_of(w, op->operands[0])->dtype;
            nest_line(w, "%s r%d = %s;", total_type(op, dtype), i, nest_identity(op, dtype));
        }
}

static void write_finished(nest_writer *w) {
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (nest_reduces(w, i)) {
            nest_define(w, i, nest_finished(w, i, dtm_arena_printf(w->n->g->arena, "r%d", i)));
            if (w->n->written[i]) nest_store(w, i);
        }
}

/* ---- units ---- */

/* i0, i1, .. of the unit's loops from the flat number `u`, but for loop `except`. */
void nest_unit_indices(nest_writer *w, const char *u, int except) {
    int last = -1;
    for (int l = 0; l < w->n->n_loops; l++)
        if (!w->n->loops[l].inner && l != except) last = l;
    if (last < 0) return;
    nest_line(w, "int64_t rest = %s;", u);
    nest_line(w, "(void)rest;");
    for (int l = last; l >= 0; l--) {
        if (w->n->loops[l].inner || l == except) continue;
        bool first = true;
        for (int k = 0; k < l; k++) first &= w->n->loops[k].inner || k == except;
        if (first) nest_line(w, "const int64_t i%d = rest;", l);
        else {
            nest_line(w, "const int64_t i%d = rest %% %s;", l, w->n->loops[l].expression);
            nest_line(w, "rest /= %s;", w->n->loops[l].expression);
        }
    }
}

bool nest_comes_after(const nest_writer *w, int i) {
    return w->n->written[i] && nest_is_common(w->n, body_op(w, i)->results[0]);
}

void nest_write_hoisted(nest_writer *w) {
    bool *seen = dtm_arena_alloc(w->n->g->arena, module_of(w)->n_values * sizeof *seen);
    for (int i = 0; i < (int)w->n->n_ops; i++) {
        const dtm_op_data *op = body_op(w, i);
        bool later = w->n->shape == NEST_ALL ? w->n->levels[i] > 0 : w->n->shape == NEST_SUMS && nest_comes_after(w, i);
        for (uint32_t k = 0; k < op->n_operands && !later; k++) {
            dtm_value v = op->operands[k];
            if (seen[v] || dtm_value_is_constant(module_of(w), v) || nest_body_index(w->n, v) >= 0 || nest_is_inner(w->n, v)) continue;
            seen[v] = true;
            const char *type = nest_register_type((dtm_dtype)type_of(w, v)->dtype);
            nest_line(w, "const %s c%d = %s;", type, nest_touch(w->n, v), nest_loaded(w, v));
            nest_line(w, "(void)c%d;", nest_touch(w->n, v));
        }
    }
    w->hoisted = true;
}

static void write_passes(nest_writer *w, const char *low, const char *high) {
    for (w->pass = 0; w->pass <= w->n->most; w->pass++) {
        write_scalars(w);
        write_totals(w);
        write_loops(w, low, high);
        write_finished(w);
    }
}

void nest_write_row(nest_writer *w) {
    nest_write_hoisted(w);
    write_passes(w, "0", w->n->n_loops ? w->n->loops[w->n->n_loops - 1].expression : "1");
}

static void write_columns(nest_writer *w) {
    int last = w->n->n_loops - 1;
    nest_line(w, "const int64_t low = u %% blocks * %d, high = low + %d < %s ? low + %d : %s;", NEST_COLUMNS, NEST_COLUMNS,
         w->n->loops[last].expression, NEST_COLUMNS, w->n->loops[last].expression);
    nest_unit_indices(w, "u / blocks", last);
    nest_write_hoisted(w);
    w->pass = 0;
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (nest_reduces(w, i)) {
            const dtm_op_data *op = body_op(w, i);
            dtm_dtype dtype = (dtm_dtype)type_of(w, op->operands[0])->dtype;
            nest_line(w, "%s r%d[%d];", total_type(op, dtype), i, NEST_COLUMNS);
            nest_line(w, "for (int k = 0; k < %d; k++) r%d[k] = %s;", NEST_COLUMNS, i, nest_identity(op, dtype));
        }
    write_loops(w, "low", "high");
    nest_open_loop(w, last, "low", "high");
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (nest_reduces(w, i)) nest_define(w, i, nest_finished(w, i, dtm_arena_printf(w->n->g->arena, "r%d[i%d - low]", i, last)));
    for (int i = 0; i < (int)w->n->n_ops; i++) {
        bool after = w->n->levels[i] > 0;
        if (after) nest_value(w, body_op(w, i)->results[0]);
    }
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (w->n->written[i] && (w->n->levels[i] > 0 || dtm_is_reduction(body_op(w, i)->kind))) nest_store(w, i);
    nest_close_block(w);
}

static void write_chunk(nest_writer *w) {
    bool flat = w->n->n_loops == 1;
    int last = w->n->n_loops - 1;
    w->pass = 0;
    write_totals(w);
    nest_line(w, "const int64_t rows = @_rows(z), each = @_each(z);");
    nest_line(w, "for (int64_t row = u * each; row < (u + 1) * each && row < rows; row++) {");
    w->depth++;
    if (!flat) nest_unit_indices(w, "row", -1);
    nest_write_hoisted(w);
    if (flat) {
        nest_line(w, "const int64_t low = row * %d, high = low + %d < %s ? low + %d : %s;", NEST_BLOCK, NEST_BLOCK,
             w->n->loops[0].expression, NEST_BLOCK, w->n->loops[0].expression);
        write_loops(w, "low", "high");
    } else write_loops(w, "0", w->n->loops[last].expression);
    nest_close_block(w);
    int reduction = 0;
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (nest_reduces(w, i)) nest_line(w, "partials[%d + u] = (double)r%d;", DTM_CHUNKS * reduction++, i);
}

static void write_unit(nest_writer *w) {
    if (w->n->shape == NEST_COLUMN) {
        write_columns(w);
        return;
    }
    if (w->n->shape == NEST_ALL || w->n->shape == NEST_SUMS) {
        (w->n->shape == NEST_ALL ? write_chunk : nest_sums_unit)(w);
        return;
    }
    if (w->n->shape == NEST_ELEMENTWISE && w->n->n_loops == 1) {
        const char *size = w->n->loops[0].expression;
        nest_line(w, "const int64_t low = u * %d, high = low + %d < %s ? low + %d : %s;", NEST_BLOCK, NEST_BLOCK, size, NEST_BLOCK,
             size);
        nest_write_hoisted(w);
        write_passes(w, "low", "high");
        return;
    }
    nest_unit_indices(w, "u", -1);
    nest_write_row(w);
}

/* ---- functions ---- */

/* Rows: the product of the loops that are not inner. */
const char *nest_rows_expression(const nest_writer *w) {
    dtm_text text = {w->n->g->arena, NULL, 0, 0};
    for (int l = 0; l < w->n->n_loops; l++)
        if (!w->n->loops[l].inner && !(w->n->shape == NEST_COLUMN && l == w->n->n_loops - 1))
            dtm_text_printf(&text, "%s%s", text.length ? " * " : "", w->n->loops[l].expression);
    return text.length ? text.data : "1";
}

const char *nest_inner_expression(const nest_writer *w) {
    dtm_text text = {w->n->g->arena, NULL, 0, 0};
    for (int l = 0; l < w->n->n_loops; l++)
        if (w->n->loops[l].inner) dtm_text_printf(&text, "%s%s", text.length ? " * " : "", w->n->loops[l].expression);
    return text.length ? text.data : "1";
}

static void write_extent(nest_writer *w, dtm_text *out) {
    const char *last = w->n->n_loops ? w->n->loops[w->n->n_loops - 1].expression : "1";
    bool flat = w->n->n_loops == 1;
    if (w->n->shape == NEST_SUMS) {
        nest_sums_extent(w, out);
        return;
    }
    if (w->n->shape == NEST_ALL) {
        dtm_text_printf(out, "static int64_t @_rows(const int64_t *z) {\n    (void)z;\n    return ");
        if (flat) dtm_text_printf(out, "(%s + %d) / %d;\n}\n", last, NEST_BLOCK - 1, NEST_BLOCK);
        else dtm_text_printf(out, "%s;\n}\n", nest_rows_expression(w));
        dtm_text_printf(out,
                        "static int64_t @_each(const int64_t *z) {\n    (void)z;\n"
                        "    const int64_t rows = @_rows(z), row = %s + 1;\n"
                        "    const int64_t most = (rows + %d) / %d, least = (%d + row - 1) / row;\n"
                        "    return most > least ? most : least;\n}\n"
                        "static int64_t @_extent(const int64_t *z) {\n    return (@_rows(z) + @_each(z) - 1) / @_each(z);\n}\n",
                        flat ? "4096" : last, DTM_CHUNKS - 1, DTM_CHUNKS, NEST_CHUNK);
        return;
    }
    dtm_text_printf(out, "static int64_t @_extent(const int64_t *z) {\n    (void)z;\n    return ");
    if (w->n->shape == NEST_COLUMN)
        dtm_text_printf(out, "%s * ((%s + %d) / %d);\n}\n", nest_rows_expression(w), last, NEST_COLUMNS - 1, NEST_COLUMNS);
    else if (w->n->shape == NEST_ELEMENTWISE && flat) dtm_text_printf(out, "(%s + %d) / %d;\n}\n", last, NEST_BLOCK - 1, NEST_BLOCK);
    else dtm_text_printf(out, "%s;\n}\n", nest_rows_expression(w));
}

static void write_pointers(nest *n, dtm_text *out) {
    for (size_t i = 0; i < n->n_touched; i++) {
        const char *type = dtm_c_type((dtm_dtype)dtm_value_type(n->g->module, n->touched[i])->dtype);
        dtm_text_printf(out, "    %s *const b%zu = a->buffers[%zu];\n    (void)b%zu;\n", type, i, i, i);
    }
    for (size_t i = 0; i < n->n_extra; i++)
        if (n->extra[i] == n->g->step_state)
            dtm_text_printf(out, "    const uint64_t *const step_state = a->buffers[%zu];\n", n->n_touched + i);
        else dtm_text_printf(out, "    double *const partials = a->buffers[%zu];\n", n->n_touched + i);
    dtm_text_printf(out, "    const int64_t *const z = a->sizes;\n    (void)z;\n");
}

static void write_scratch(nest_writer *w, dtm_text *out) {
    int k = 0;
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (w->n->saved[i]) {
            const char *type = nest_register_type((dtm_dtype)type_of(w, body_op(w, i)->results[0])->dtype);
            dtm_text_printf(out, "    %s *const s%d = (%s *)a->scratch + %d * (%s);\n", type, i, type, k++, nest_inner_expression(w));
        }
}

void nest_write(nest *n, dtm_text *out) {
    dtm_text body = {n->g->arena, NULL, 0, 0};
    bool *emitted = dtm_arena_alloc(n->g->arena, (n->n_ops + 1) * sizeof *emitted);
    nest_writer w = {n, &body, 2, 0, emitted, false, NULL};
    write_unit(&w);
    write_extent(&w, out);
    dtm_text_printf(out, "static int64_t @_scratch_bytes(const int64_t *z) {\n    (void)z;\n    return %d * (%s);\n}\n",
                    4 * n->n_saved, n->n_saved ? nest_inner_expression(&w) : "0");
    dtm_text_printf(out, "static void @(const dtm_kernel_args *a, int64_t begin, int64_t end) {\n");
    write_pointers(n, out);
    write_scratch(&w, out);
    if (n->shape == NEST_COLUMN)
        dtm_text_printf(out, "    const int64_t blocks = (%s + %d) / %d;\n", n->loops[n->n_loops - 1].expression,
                        NEST_COLUMNS - 1, NEST_COLUMNS);
    dtm_text_printf(out, "    for (int64_t u = begin; u < end; u++) {\n");
    dtm_text_append(out, body.data, body.length);
    dtm_text_printf(out, "    }\n}\n");
}

/* Adds up the chunks in order, then computes what follows from the sums. */
static void write_finish_all(nest_writer *w) {
    nest *n = w->n;
    int reduction = 0;
    nest_line(w, "const int64_t chunks = @_chunks(z);");
    for (int i = 0; i < (int)n->n_ops; i++) {
        const dtm_op_data *op = body_op(w, i);
        if (!dtm_is_reduction(op->kind)) continue;
        nest_line(w, "double r%d = %s;", i, nest_identity(op, (dtm_dtype)type_of(w, op->results[0])->dtype));
        char from[64], into[32];
        snprintf(from, sizeof from, "partials[%d + c]", DTM_CHUNKS * reduction++);
        snprintf(into, sizeof into, "r%d", i);
        nest_line(w, "for (int64_t c = 0; c < chunks; c++) {");
        w->depth++;
        nest_accumulate(w, op, into, from);
        nest_close_block(w);
        nest_define(w, i, nest_finished(w, i, into));
        if (n->written[i]) nest_store(w, i);
    }
    for (int i = 0; i < (int)n->n_ops; i++) {
        if (dtm_is_reduction(body_op(w, i)->kind) || type_of(w, body_op(w, i)->results[0])->rank) continue;
        nest_value(w, body_op(w, i)->results[0]);
        if (n->written[i]) nest_store(w, i);
    }
}

static void write_chunks_all(nest_writer *w, dtm_text *out) {
    const nest *n = w->n;
    const char *last = n->loops[n->n_loops - 1].expression;
    dtm_text_printf(out, "static int64_t @_extent(const int64_t *z) {\n    return (void)z, 1;\n}\n");
    dtm_text_printf(out, "static int64_t @_chunks(const int64_t *z) {\n    (void)z;\n");
    if (n->n_loops == 1) dtm_text_printf(out, "    const int64_t rows = (%s + %d) / %d, row = 4096 + 1;\n", last, NEST_BLOCK - 1, NEST_BLOCK);
    else dtm_text_printf(out, "    const int64_t rows = %s, row = %s + 1;\n", nest_rows_expression(w), last);
    dtm_text_printf(out,
                    "    const int64_t most = (rows + %d) / %d, least = (%d + row - 1) / row, each = most > least ? most : least;\n"
                    "    return (rows + each - 1) / each;\n}\n",
                    DTM_CHUNKS - 1, DTM_CHUNKS, NEST_CHUNK);
}

void nest_write_finish(nest *n, dtm_text *out) {
    dtm_text body = {n->g->arena, NULL, 0, 0};
    bool *emitted = dtm_arena_alloc(n->g->arena, (n->n_ops + 1) * sizeof *emitted);
    nest_writer w = {n, &body, 2, 0, emitted, false, NULL};
    (n->shape == NEST_ALL ? write_finish_all : nest_sums_finish_unit)(&w);
    (n->shape == NEST_ALL ? write_chunks_all : nest_sums_finish_extent)(&w, out);
    dtm_text_printf(out, "static int64_t @_scratch_bytes(const int64_t *z) {\n    return (void)z, 0;\n}\n");
    dtm_text_printf(out, "static void @(const dtm_kernel_args *a, int64_t begin, int64_t end) {\n");
    write_pointers(n, out);
    dtm_text_printf(out, "    for (int64_t u = begin; u < end; u++) {\n");
    dtm_text_append(out, body.data, body.length);
    dtm_text_printf(out, "    }\n}\n");
}
