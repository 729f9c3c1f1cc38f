/* Sums along columns beside whatever else a kernel does with its rows (the gradient of a bias, or of a norm's scale, where
 * the gradient that is summed is made). A unit is a chunk of rows, whose number depends on the sizes alone: so the order
 * of the sums does not depend on threads.
 *
 *     for (int64_t u = begin; u < end; u++) {
 *         double *const p4 = partials + (u * 1 + 0) * 64;          a row of the workspace for each chunk and sum
 *         for (int64_t j = 0; j < 64; j++) p4[j] = 0;
 *         for (int64_t row = u * each; row < (u + 1) * each && row < rows; row++) {
 *             .. as a kernel without the sums, and ..              p4[i1] += v3;
 *         }
 *     }
 *
 * The second kernel adds up the chunks, in blocks of columns, and computes what is made of the sums alone. */
#include "codegen/nest.h"

static const dtm_op_data *body_op(const nest_writer *w, int i) { return dtm_op_get(w->n->g->module, w->n->ops[i]); }
static dtm_dtype dtype_of(const nest_writer *w, int i) {
    return (dtm_dtype)dtm_value_type(w->n->g->module, body_op(w, i)->results[0])->dtype;
}

static bool is_column_sum(const nest_writer *w, int i) { return w->n->column_sum[i] >= 0; }

static void write_rows(nest_writer *w, dtm_text *out) {
    dtm_text_printf(out, "static int64_t @_rows(const int64_t *z) {\n    (void)z;\n    return %s;\n}\n", nest_rows_expression(w));
    dtm_text_printf(out,
                    "static int64_t @_each(const int64_t *z) {\n"
                    "    const int64_t each = (@_rows(z) + %d) / %d;\n    return each > %d ? each : %d;\n}\n"
                    "static int64_t @_chunks(const int64_t *z) {\n    return (@_rows(z) + @_each(z) - 1) / @_each(z);\n}\n",
                    DTM_COLUMN_CHUNKS - 1, DTM_COLUMN_CHUNKS, DTM_COLUMN_ROWS, DTM_COLUMN_ROWS);
}

void nest_sums_extent(nest_writer *w, dtm_text *out) {
    write_rows(w, out);
    dtm_text_printf(out, "static int64_t @_extent(const int64_t *z) {\n    return @_chunks(z);\n}\n");
}

void nest_sums_unit(nest_writer *w) {
    const char *row = nest_inner_expression(w);
    for (int i = 0; i < (int)w->n->n_ops; i++) {
        if (!is_column_sum(w, i)) continue;
        nest_line(w, "double *const p%d = partials + (u * %d + %d) * (%s);", i, w->n->n_column_sums, w->n->column_sum[i], row);
        nest_line(w, "for (int64_t j = 0; j < %s; j++) p%d[j] = %s;", row, i, nest_identity(body_op(w, i), dtype_of(w, i)));
    }
    nest_line(w, "const int64_t rows = @_rows(z), each = @_each(z);");
    nest_line(w, "for (int64_t row = u * each; row < (u + 1) * each && row < rows; row++) {");
    w->depth++;
    nest_unit_indices(w, "row", -1);
    nest_write_row(w);
    nest_close_block(w);
}

/* ---- the second kernel: units are the row's loops but the last, and blocks of the last ---- */

static const char *outer_of_row(const nest_writer *w) {
    dtm_text text = {w->n->g->arena, NULL, 0, 0};
    for (int l = 0; l < w->n->n_loops - 1; l++)
        if (w->n->loops[l].inner) dtm_text_printf(&text, "%s%s", text.length ? " * " : "", w->n->loops[l].expression);
    return text.length ? text.data : "1";
}

void nest_sums_finish_extent(nest_writer *w, dtm_text *out) {
    const char *last = w->n->loops[w->n->n_loops - 1].expression;
    write_rows(w, out);
    dtm_text_printf(out, "static int64_t @_blocks(const int64_t *z) {\n    (void)z;\n    return (%s + %d) / %d;\n}\n", last,
                    NEST_COLUMNS - 1, NEST_COLUMNS);
    dtm_text_printf(out, "static int64_t @_extent(const int64_t *z) {\n    return %s * @_blocks(z);\n}\n", outer_of_row(w));
}

static void write_row_indices(nest_writer *w) {
    nest_line(w, "int64_t rest = u / blocks;");
    nest_line(w, "(void)rest;");
    for (int l = w->n->n_loops - 2; l >= 0; l--) {
        if (!w->n->loops[l].inner) continue;
        nest_line(w, "const int64_t i%d = rest %% %s;", l, w->n->loops[l].expression);
        nest_line(w, "rest /= %s;", w->n->loops[l].expression);
    }
}

/* What is made of sums along columns alone, in the loop over a block of columns. */
static void write_finished(nest_writer *w, int last) {
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (is_column_sum(w, i))
            nest_define(w, i, nest_finished(w, i, dtm_arena_printf(w->n->g->arena, "r%d[i%d - low]", i, last)));
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (w->n->written[i] && nest_is_common(w->n, body_op(w, i)->results[0])) nest_value(w, body_op(w, i)->results[0]);
    for (int i = 0; i < (int)w->n->n_ops; i++) /* stores last: an output may lie over an input */
        if (w->n->written[i] && nest_is_common(w->n, body_op(w, i)->results[0])) nest_store(w, i);
}

void nest_sums_finish_unit(nest_writer *w) {
    int last = w->n->n_loops - 1;
    const char *size = w->n->loops[last].expression, *row = nest_inner_expression(w);
    nest_line(w, "const int64_t chunks = @_chunks(z), blocks = @_blocks(z), low = u %% blocks * %d;", NEST_COLUMNS);
    nest_line(w, "const int64_t high = low + %d < %s ? low + %d : %s;", NEST_COLUMNS, size, NEST_COLUMNS, size);
    write_row_indices(w);
    for (int i = 0; i < (int)w->n->n_ops; i++) {
        if (!is_column_sum(w, i)) continue;
        nest_line(w, "double r%d[%d];", i, NEST_COLUMNS);
        nest_line(w, "for (int k = 0; k < %d; k++) r%d[k] = %s;", NEST_COLUMNS, i, nest_identity(body_op(w, i), dtype_of(w, i)));
        nest_line(w, "for (int64_t c = 0; c < chunks; c++) {");
        w->depth++;
        nest_line(w, "const double *const p = partials + (c * %d + %d) * (%s);", w->n->n_column_sums, w->n->column_sum[i], row);
        nest_open_loop(w, last, "low", "high");
        nest_accumulate(w, body_op(w, i), dtm_arena_printf(w->n->g->arena, "r%d[i%d - low]", i, last),
                        dtm_arena_printf(w->n->g->arena, "p[%s]", nest_row_index(w)));
        nest_close_block(w);
        nest_close_block(w);
    }
    nest_open_loop(w, last, "low", "high");
    write_finished(w, last);
    nest_close_block(w);
}
