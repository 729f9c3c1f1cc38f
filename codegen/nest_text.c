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

typedef struct writer {
    nest *n;
    dtm_text *out;
    int depth;
    int pass;
    bool *emitted; /* by body index: has a name in the block being written */
    bool hoisted;  /* what does not differ within a row has been read into c0, c1, .. */
} writer;

static dtm_module *module_of(const writer *w) { return w->n->g->module; }
static const dtm_op_data *body_op(const writer *w, int i) { return dtm_op_get(module_of(w), w->n->ops[i]); }
static const dtm_type_data *type_of(const writer *w, dtm_value v) { return dtm_value_type(module_of(w), v); }

__attribute__((format(printf, 2, 3))) static void line(writer *w, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char text[4096];
    if (vsnprintf(text, sizeof text, format, arguments) >= (int)sizeof text)
        dtm_broken("codegen", "a line of a kernel is too long");
    va_end(arguments);
    dtm_text_printf(w->out, "%*s%s\n", *text == '#' ? 0 : w->depth * 4, "", text);
}

static const char *register_type(dtm_dtype dtype) { return dtype == DTM_F32 ? "float" : dtype == DTM_I32 ? "int32_t" : "int"; }

/* ---- addresses ---- */

static void append_term(dtm_text *text, const char *format, const char *a, const char *b) {
    if (text->length) dtm_text_printf(text, " + ");
    dtm_text_printf(text, format, a, b);
}

/* The stride of a loop in a tensor: the product of the sizes of the loops after it there. "1" where there are none. */
static const char *stride_of(const writer *w, dtm_value v, int loop) {
    const dtm_type_data *type = type_of(w, v);
    dtm_text text = {w->n->g->arena, NULL, 0, 0};
    int position = dtm_type_dim_index(type, w->n->dims[w->n->loops[loop].first_dim].dim);
    for (int i = position + w->n->loops[loop].n_dims; i < type->rank;) {
        int l = 0;
        while (w->n->dims[w->n->loops[l].first_dim].dim != type->dims[i]) l++;
        dtm_text_printf(&text, "%s%s", text.length ? " * " : "", w->n->loops[l].expression);
        i += w->n->loops[l].n_dims;
    }
    return text.length ? text.data : "1";
}

/* The offset by the loops that are inner (or are not). */
static const char *offset_of(const writer *w, dtm_value v, bool inner) {
    dtm_text text = {w->n->g->arena, NULL, 0, 0};
    for (int l = 0; l < w->n->n_loops; l++) {
        if (w->n->loops[l].inner != inner || !nest_has_loop(w->n, v, l)) continue;
        const char *stride = stride_of(w, v, l), *name = dtm_arena_printf(w->n->g->arena, "i%d", l);
        append_term(&text, strcmp(stride, "1") == 0 ? "%s" : "%s * (%s)", name, stride);
    }
    return text.length ? text.data : "0";
}

/* The flat index of a saved value within the row. */
static const char *row_index(const writer *w) {
    dtm_text text = {w->n->g->arena, NULL, 0, 0};
    for (int l = 0; l < w->n->n_loops; l++) {
        if (!w->n->loops[l].inner) continue;
        dtm_text stride = {w->n->g->arena, NULL, 0, 0};
        for (int k = l + 1; k < w->n->n_loops; k++)
            if (w->n->loops[k].inner) dtm_text_printf(&stride, " * %s", w->n->loops[k].expression);
        dtm_text_printf(&text, "%si%d%s", text.length ? " + " : "", l, stride.length ? stride.data : "");
    }
    return text.data;
}

/* ---- values ---- */

static const char *value_name(writer *w, dtm_value v);

static const char *position_of(writer *w, dtm_dim dim) {
    for (int d = 0; d < w->n->n_dims; d++) {
        if (w->n->dims[d].dim != dim) continue;
        dtm_product begin = dtm_product_begin(w->n->g, w->n->dims[d].type, w->n->dims[d].index);
        int64_t number;
        if (dtm_product_is_number(&begin, &number) || dtm_fault(17)) return dtm_arena_printf(w->n->g->arena, "i%d", w->n->dims[d].loop);
        return dtm_arena_printf(w->n->g->arena, "(z[%d] + i%d)", nest_size(w->n, &begin), w->n->dims[d].loop);
    }
    dtm_broken("codegen", "a position along a dimension that the kernel has not");
}

/* The element's row-major index in the whole tensor. */
static const char *element_of(writer *w, dtm_value v) {
    const dtm_type_data *type = type_of(w, v);
    dtm_arena *arena = w->n->g->arena;
    if (!dtm_type_split_axes(type) || dtm_fault(18))
        return dtm_arena_printf(arena, "(uint64_t)(%s + %s)", offset_of(w, v, false), offset_of(w, v, true));
    dtm_text text = {arena, NULL, 0, 0};
    for (int d = 0; d < type->rank; d++) {
        int64_t stride = 1;
        for (int k = d + 1; k < type->rank; k++) stride *= module_of(w)->dims[type->dims[k]].size;
        append_term(&text, "%s * %s", position_of(w, type->dims[d]), dtm_arena_printf(arena, "%lld", (long long)stride));
    }
    return dtm_arena_printf(arena, "(uint64_t)(%s)", text.data);
}

static const char *dropout_expression(writer *w, const dtm_op_data *op, const char *x) {
    dtm_arena *arena = w->n->g->arena;
    uint32_t state = dtm_step_state(w->n->g);
    size_t index = 0;
    while (index < w->n->n_extra && w->n->extra[index] != state) index++;
    if (index == w->n->n_extra) DTM_PUSH(arena, w->n->extra, w->n->n_extra, w->n->cap_extra, state);
    dtm_product copy = {0, 1, 1, {DTM_PLAN_COPY_NUMBER}};
    dtm_text scale = {arena, NULL, 0, 0};
    dtm_c_number(DTM_F32, 1 / (1 - op->attributes.number[DTM_DROPOUT_P]), &scale);
    dtm_text p = {arena, NULL, 0, 0};
    dtm_text_number(&p, op->attributes.number[DTM_DROPOUT_P]);
    /* Step 0 is no training step: nothing is dropped. */
    return dtm_arena_printf(arena,
                            "step_state[1] == 0 ? %s : dtm_random_uniform(step_state[0], dtm_random_stream((uint32_t)"
                            "step_state[1], %uu + 0x9E3779B9u * (uint32_t)z[%d]), %s) >= %s ? %s * %s : 0.0f",
                            x, (unsigned)op->attributes.number[DTM_DROPOUT_SITE], nest_size(w->n, &copy),
                            element_of(w, op->results[0]), p.data, x, scale.data);
}

/* dy (exp(logit - lse) - (1 - smooth) [v = target] - smooth / V), 0 where the target is negative. */
static const char *cross_entropy_expression(writer *w, const dtm_op_data *op, const char *const *x) {
    dtm_arena *arena = w->n->g->arena;
    double smooth = op->attributes.number[DTM_CROSS_ENTROPY_SMOOTH];
    double classes = (double)module_of(w)->dims[op->attributes.over[0]].size;
    dtm_text on = {arena, NULL, 0, 0}, off = {arena, NULL, 0, 0};
    dtm_c_number(DTM_F32, 1 - smooth, &on);
    dtm_c_number(DTM_F32, smooth / classes, &off);
    return dtm_arena_printf(arena, "%s < 0 ? 0.0f : %s * (dtm_exp(%s - %s) - (%s == (int32_t)%s ? %s : 0.0f) - %s)", x[2], x[3],
                            x[0], x[1], x[2], position_of(w, op->attributes.over[0]), on.data, off.data);
}

static const char *expression_of(writer *w, int i) {
    const dtm_op_data *op = body_op(w, i);
    const char *operands[4] = {"", "", "", ""};
    dtm_arena *arena = w->n->g->arena;
    for (uint32_t k = 0; k < op->n_operands && k < 4; k++) operands[k] = value_name(w, op->operands[k]);
    if (op->kind == DTM_OP_POSITIONS) return dtm_arena_printf(arena, "(int32_t)%s", position_of(w, op->attributes.over[0]));
    if (op->kind == DTM_OP_FILL) return operands[0];
    if (op->kind == DTM_OP_DROPOUT) return dropout_expression(w, op, operands[0]);
    if (op->kind == DTM_OP_CROSS_ENTROPY_BACKWARD) return cross_entropy_expression(w, op, operands);
    dtm_text text = {arena, NULL, 0, 0};
    if (!dtm_expression(module_of(w), w->n->ops[i], operands, &text)) {
        dtm_unsupported(w->n->g, w->n->ops[i], "in a kernel of elementwise operators");
        return "0";
    }
    return text.data;
}

/* A value that lies in memory, or what an earlier pass left there. */
static const char *loaded(writer *w, dtm_value v) {
    int index = nest_touch(w->n, v);
    return dtm_arena_printf(w->n->g->arena, "b%d[(%s) + (%s)]", index, offset_of(w, v, false), offset_of(w, v, true));
}

static void define(writer *w, int i, const char *expression) {
    dtm_dtype dtype = (dtm_dtype)type_of(w, body_op(w, i)->results[0])->dtype;
    line(w, "const %s v%d = %s;", register_type(dtype), i, expression);
    w->emitted[i] = true;
}

static const char *value_name(writer *w, dtm_value v) {
    dtm_arena *arena = w->n->g->arena;
    if (dtm_value_is_constant(module_of(w), v)) {
        dtm_text text = {arena, NULL, 0, 0};
        dtm_c_number((dtm_dtype)type_of(w, v)->dtype, dtm_value_get(module_of(w), v)->number, &text);
        return text.data;
    }
    int i = nest_body_index(w->n, v);
    if (i < 0 && w->hoisted && !nest_is_inner(w->n, v)) return dtm_arena_printf(arena, "c%d", nest_touch(w->n, v));
    if (i < 0) return loaded(w, v);
    const char *name = dtm_arena_printf(arena, "v%d", i);
    if (w->emitted[i]) return name;
    bool earlier = w->n->levels[i] < w->pass && nest_is_inner(w->n, v);
    if (earlier && w->n->written[i]) define(w, i, loaded(w, v));
    else if (earlier && w->n->saved[i]) define(w, i, dtm_arena_printf(arena, "s%d[%s]", i, row_index(w)));
    else define(w, i, expression_of(w, i));
    return name;
}

static void store(writer *w, int i) {
    dtm_value v = body_op(w, i)->results[0];
    dtm_dtype dtype = (dtm_dtype)type_of(w, v)->dtype;
    line(w, "b%d[(%s) + (%s)] = (%s)v%d;", nest_touch(w->n, v), offset_of(w, v, false), offset_of(w, v, true), dtm_c_type(dtype), i);
}

/* ---- reductions ---- */

static const char *identity_of(const dtm_op_data *op, dtm_dtype dtype) {
    if (op->kind != DTM_OP_REDUCE_MAX) return "0";
    return dtype == DTM_F32 ? "-INFINITY" : dtype == DTM_I32 ? "INT32_MIN" : "0";
}

static const char *total_type(const dtm_op_data *op, dtm_dtype dtype) {
    return op->kind == DTM_OP_REDUCE_MAX ? register_type(dtype) : dtype == DTM_F32 ? "double" : "int64_t";
}

static void accumulate(writer *w, const dtm_op_data *op, const char *into, const char *x) {
    if (op->kind == DTM_OP_REDUCE_MAX) line(w, "%s = %s > %s || %s != %s ? %s : %s;", into, x, into, x, x, x, into);
    else line(w, "%s += %s;", into, x);
}

/* The mean's count is that of the whole dimensions. */
static const char *finished(writer *w, int i, const char *total) {
    const dtm_op_data *op = body_op(w, i);
    dtm_dtype dtype = (dtm_dtype)type_of(w, op->results[0])->dtype;
    double count = 1;
    for (int k = 0; op->kind == DTM_OP_MEAN && k < op->attributes.n_over; k++)
        count *= (double)(dtm_fault(13) ? dtm_block_max(module_of(w), type_of(w, op->operands[0]), dtm_type_dim_index(type_of(w, op->operands[0]), op->attributes.over[k]))
                                        : module_of(w)->dims[op->attributes.over[k]].size);
    if (count == 1) return dtm_arena_printf(w->n->g->arena, "(%s)%s", register_type(dtype), total);
    return dtm_arena_printf(w->n->g->arena, "(%s)(%s / %.17g)", register_type(dtype), total, count);
}

static bool reduces_in(const writer *w, int i) {
    return dtm_is_reduction(body_op(w, i)->kind) && w->n->levels[i] == w->pass;
}

/* ---- one pass ---- */

static bool inner_work(const writer *w, int i) {
    if (w->n->levels[i] != w->pass) return false;
    if (dtm_is_reduction(body_op(w, i)->kind)) return true;
    return nest_is_inner(w->n, body_op(w, i)->results[0]) && (w->n->written[i] || w->n->saved[i]);
}

/* Values of the unit's loops alone. */
static void write_scalars(writer *w) {
    for (int i = 0; i < (int)w->n->n_ops; i++) {
        const dtm_op_data *op = body_op(w, i);
        if (w->n->levels[i] != w->pass || dtm_is_reduction(op->kind) || nest_is_inner(w->n, op->results[0])) continue;
        value_name(w, op->results[0]);
        if (w->n->written[i]) store(w, i);
    }
}

static void open_loop(writer *w, int l, const char *begin, const char *end) {
    line(w, "for (int64_t i%d = %s; i%d < %s; i%d++) {", l, begin, l, end, l);
    w->depth++;
}

static void close_block(writer *w) {
    w->depth--;
    line(w, "}");
}

static void write_body(writer *w) {
    bool *outside = dtm_arena_alloc(w->n->g->arena, (w->n->n_ops + 1) * sizeof *outside);
    memcpy(outside, w->emitted, w->n->n_ops * sizeof *outside);
    for (int i = 0; i < (int)w->n->n_ops; i++) {
        const dtm_op_data *op = body_op(w, i);
        if (!inner_work(w, i)) continue;
        if (!dtm_is_reduction(op->kind)) {
            value_name(w, op->results[0]);
            if (w->n->saved[i]) line(w, "s%d[%s] = v%d;", i, row_index(w), i);
        } else if (w->n->shape == NEST_COLUMN) {
            accumulate(w, op, dtm_arena_printf(w->n->g->arena, "r%d[i%d - low]", i, w->n->n_loops - 1), value_name(w, op->operands[0]));
        } else accumulate(w, op, dtm_arena_printf(w->n->g->arena, "t%d", i), value_name(w, op->operands[0]));
    }
    for (int i = 0; i < (int)w->n->n_ops; i++) /* stores last: an output may lie over an input */
        if (inner_work(w, i) && !dtm_is_reduction(body_op(w, i)->kind) && w->n->written[i]) store(w, i);
    memcpy(w->emitted, outside, w->n->n_ops * sizeof *outside);
}

/* The innermost loop with its lanes; `low` and `high` are C names. */
static void write_row(writer *w, int l, const char *low, const char *high) {
    bool lanes = w->n->shape != NEST_COLUMN;
    dtm_text sums = {w->n->g->arena, NULL, 0, 0}, maxima = {w->n->g->arena, NULL, 0, 0};
    for (int i = 0; lanes && i < (int)w->n->n_ops; i++) {
        if (!reduces_in(w, i)) continue;
        const dtm_op_data *op = body_op(w, i);
        dtm_dtype dtype = (dtm_dtype)type_of(w, op->operands[0])->dtype;
        bool is_max = op->kind == DTM_OP_REDUCE_MAX;
        line(w, "%s t%d = %s;", !is_max && dtype != DTM_F32 ? "int64_t" : register_type(dtype), i, identity_of(op, dtype));
        dtm_text *list = is_max ? &maxima : &sums;
        dtm_text_printf(list, "%st%d", list->length ? ", " : "", i);
    }
    line(w, "#pragma omp simd%s%s%s%s%s%s", sums.length ? " reduction(+ : " : "", sums.length ? sums.data : "",
         sums.length ? ")" : "", maxima.length ? " reduction(max : " : "", maxima.length ? maxima.data : "",
         maxima.length ? ")" : "");
    open_loop(w, l, low, high);
    write_body(w);
    close_block(w);
    for (int i = 0; lanes && i < (int)w->n->n_ops; i++)
        if (reduces_in(w, i)) {
            char into[32], from[32];
            snprintf(into, sizeof into, "r%d", i);
            snprintf(from, sizeof from, "t%d", i);
            accumulate(w, body_op(w, i), into, from);
        }
}

static bool any_work(const writer *w) {
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (inner_work(w, i)) return true;
    return false;
}

/* The inner loops of a pass. */
static void write_loops(writer *w, const char *low, const char *high) {
    if (!any_work(w)) return;
    int open = 0, last = w->n->n_loops - 1;
    for (int l = 0; l < last; l++)
        if (w->n->loops[l].inner) {
            open_loop(w, l, "0", w->n->loops[l].expression);
            open++;
        }
    line(w, "{");
    w->depth++;
    write_row(w, last, low, high);
    for (close_block(w); open; open--) close_block(w);
}

static void write_totals(writer *w) {
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (reduces_in(w, i)) {
            const dtm_op_data *op = body_op(w, i);
            dtm_dtype dtype = (dtm_dtype)type_of(w, op->operands[0])->dtype;
            line(w, "%s r%d = %s;", total_type(op, dtype), i, identity_of(op, dtype));
        }
}

static void write_finished(writer *w) {
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (reduces_in(w, i)) {
            define(w, i, finished(w, i, dtm_arena_printf(w->n->g->arena, "r%d", i)));
            if (w->n->written[i]) store(w, i);
        }
}

/* ---- units ---- */

/* i0, i1, .. of the unit's loops from the flat number `u`, but for loop `except`. */
static void write_unit_indices(writer *w, const char *u, int except) {
    int last = -1;
    for (int l = 0; l < w->n->n_loops; l++)
        if (!w->n->loops[l].inner && l != except) last = l;
    if (last < 0) return;
    line(w, "int64_t rest = %s;", u);
    line(w, "(void)rest;");
    for (int l = last; l >= 0; l--) {
        if (w->n->loops[l].inner || l == except) continue;
        bool first = true;
        for (int k = 0; k < l; k++) first &= w->n->loops[k].inner || k == except;
        if (first) line(w, "const int64_t i%d = rest;", l);
        else {
            line(w, "const int64_t i%d = rest %% %s;", l, w->n->loops[l].expression);
            line(w, "rest /= %s;", w->n->loops[l].expression);
        }
    }
}

/* Reads what is the same for the whole unit before its loops. */
static void write_hoisted(writer *w) {
    bool *seen = dtm_arena_alloc(w->n->g->arena, module_of(w)->n_values * sizeof *seen);
    for (int i = 0; i < (int)w->n->n_ops; i++) {
        const dtm_op_data *op = body_op(w, i);
        for (uint32_t k = 0; k < op->n_operands; k++) {
            dtm_value v = op->operands[k];
            if (seen[v] || dtm_value_is_constant(module_of(w), v) || nest_body_index(w->n, v) >= 0 || nest_is_inner(w->n, v)) continue;
            seen[v] = true;
            const char *type = register_type((dtm_dtype)type_of(w, v)->dtype);
            line(w, "const %s c%d = %s;", type, nest_touch(w->n, v), loaded(w, v));
            line(w, "(void)c%d;", nest_touch(w->n, v));
        }
    }
    w->hoisted = true;
}

static void write_passes(writer *w, const char *low, const char *high) {
    for (w->pass = 0; w->pass <= w->n->most; w->pass++) {
        write_scalars(w);
        write_totals(w);
        write_loops(w, low, high);
        write_finished(w);
    }
}

static void write_columns(writer *w) {
    int last = w->n->n_loops - 1;
    line(w, "const int64_t low = u %% blocks * %d, high = low + %d < %s ? low + %d : %s;", NEST_COLUMNS, NEST_COLUMNS,
         w->n->loops[last].expression, NEST_COLUMNS, w->n->loops[last].expression);
    write_unit_indices(w, "u / blocks", last);
    write_hoisted(w);
    w->pass = 0;
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (reduces_in(w, i)) {
            const dtm_op_data *op = body_op(w, i);
            dtm_dtype dtype = (dtm_dtype)type_of(w, op->operands[0])->dtype;
            line(w, "%s r%d[%d];", total_type(op, dtype), i, NEST_COLUMNS);
            line(w, "for (int k = 0; k < %d; k++) r%d[k] = %s;", NEST_COLUMNS, i, identity_of(op, dtype));
        }
    write_loops(w, "low", "high");
    open_loop(w, last, "low", "high");
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (reduces_in(w, i)) define(w, i, finished(w, i, dtm_arena_printf(w->n->g->arena, "r%d[i%d - low]", i, last)));
    for (int i = 0; i < (int)w->n->n_ops; i++) {
        bool after = w->n->levels[i] > 0;
        if (after) value_name(w, body_op(w, i)->results[0]);
    }
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (w->n->written[i] && (w->n->levels[i] > 0 || dtm_is_reduction(body_op(w, i)->kind))) store(w, i);
    close_block(w);
}

static void write_chunk(writer *w) {
    bool flat = w->n->n_loops == 1;
    int last = w->n->n_loops - 1;
    w->pass = 0;
    write_totals(w);
    line(w, "const int64_t rows = @_rows(z), each = @_each(z);");
    line(w, "for (int64_t row = u * each; row < (u + 1) * each && row < rows; row++) {");
    w->depth++;
    if (!flat) write_unit_indices(w, "row", -1);
    write_hoisted(w);
    if (flat) {
        line(w, "const int64_t low = row * %d, high = low + %d < %s ? low + %d : %s;", NEST_BLOCK, NEST_BLOCK,
             w->n->loops[0].expression, NEST_BLOCK, w->n->loops[0].expression);
        write_loops(w, "low", "high");
    } else write_loops(w, "0", w->n->loops[last].expression);
    close_block(w);
    int reduction = 0;
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (reduces_in(w, i)) line(w, "partials[%d + u] = (double)r%d;", DTM_CHUNKS * reduction++, i);
}

static void write_unit(writer *w) {
    if (w->n->shape == NEST_COLUMN) {
        write_columns(w);
        return;
    }
    if (w->n->shape == NEST_ALL) {
        write_chunk(w);
        return;
    }
    if (w->n->shape == NEST_ELEMENTWISE && w->n->n_loops == 1) {
        const char *size = w->n->loops[0].expression;
        line(w, "const int64_t low = u * %d, high = low + %d < %s ? low + %d : %s;", NEST_BLOCK, NEST_BLOCK, size, NEST_BLOCK,
             size);
        write_hoisted(w);
        write_passes(w, "low", "high");
        return;
    }
    write_unit_indices(w, "u", -1);
    write_hoisted(w);
    write_passes(w, "0", w->n->n_loops ? w->n->loops[w->n->n_loops - 1].expression : "1");
}

/* ---- functions ---- */

/* Rows: the product of the loops that are not inner. */
static const char *rows_expression(const writer *w) {
    dtm_text text = {w->n->g->arena, NULL, 0, 0};
    for (int l = 0; l < w->n->n_loops; l++)
        if (!w->n->loops[l].inner && !(w->n->shape == NEST_COLUMN && l == w->n->n_loops - 1))
            dtm_text_printf(&text, "%s%s", text.length ? " * " : "", w->n->loops[l].expression);
    return text.length ? text.data : "1";
}

static const char *inner_expression(const writer *w) {
    dtm_text text = {w->n->g->arena, NULL, 0, 0};
    for (int l = 0; l < w->n->n_loops; l++)
        if (w->n->loops[l].inner) dtm_text_printf(&text, "%s%s", text.length ? " * " : "", w->n->loops[l].expression);
    return text.length ? text.data : "1";
}

static void write_extent(writer *w, dtm_text *out) {
    const char *last = w->n->n_loops ? w->n->loops[w->n->n_loops - 1].expression : "1";
    bool flat = w->n->n_loops == 1;
    if (w->n->shape == NEST_ALL) {
        dtm_text_printf(out, "static int64_t @_rows(const int64_t *z) {\n    (void)z;\n    return ");
        if (flat) dtm_text_printf(out, "(%s + %d) / %d;\n}\n", last, NEST_BLOCK - 1, NEST_BLOCK);
        else dtm_text_printf(out, "%s;\n}\n", rows_expression(w));
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
        dtm_text_printf(out, "%s * ((%s + %d) / %d);\n}\n", rows_expression(w), last, NEST_COLUMNS - 1, NEST_COLUMNS);
    else if (w->n->shape == NEST_ELEMENTWISE && flat) dtm_text_printf(out, "(%s + %d) / %d;\n}\n", last, NEST_BLOCK - 1, NEST_BLOCK);
    else dtm_text_printf(out, "%s;\n}\n", rows_expression(w));
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

static void write_scratch(writer *w, dtm_text *out) {
    int k = 0;
    for (int i = 0; i < (int)w->n->n_ops; i++)
        if (w->n->saved[i]) {
            const char *type = register_type((dtm_dtype)type_of(w, body_op(w, i)->results[0])->dtype);
            dtm_text_printf(out, "    %s *const s%d = (%s *)a->scratch + %d * (%s);\n", type, i, type, k++, inner_expression(w));
        }
}

void nest_write(nest *n, dtm_text *out) {
    dtm_text body = {n->g->arena, NULL, 0, 0};
    bool *emitted = dtm_arena_alloc(n->g->arena, (n->n_ops + 1) * sizeof *emitted);
    writer w = {n, &body, 2, 0, emitted, false};
    write_unit(&w);
    write_extent(&w, out);
    dtm_text_printf(out, "static int64_t @_scratch_bytes(const int64_t *z) {\n    (void)z;\n    return %d * (%s);\n}\n",
                    4 * n->n_saved, n->n_saved ? inner_expression(&w) : "0");
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
void nest_write_finish(nest *n, dtm_text *out) {
    dtm_text body = {n->g->arena, NULL, 0, 0}, chunks = {n->g->arena, NULL, 0, 0};
    bool *emitted = dtm_arena_alloc(n->g->arena, (n->n_ops + 1) * sizeof *emitted);
    writer w = {n, &body, 2, 0, emitted, false};
    int reduction = 0;
    for (int i = 0; i < (int)n->n_ops; i++) {
        const dtm_op_data *op = body_op(&w, i);
        if (!dtm_is_reduction(op->kind)) continue;
        line(&w, "double r%d = %s;", i, op->kind == DTM_OP_REDUCE_MAX ? identity_of(op, (dtm_dtype)type_of(&w, op->results[0])->dtype) : "0");
        char from[64], into[32];
        snprintf(from, sizeof from, "partials[%d + c]", DTM_CHUNKS * reduction++);
        snprintf(into, sizeof into, "r%d", i);
        line(&w, "for (int64_t c = 0; c < chunks; c++) {");
        w.depth++;
        accumulate(&w, op, into, from);
        close_block(&w);
        define(&w, i, finished(&w, i, into));
        if (n->written[i]) store(&w, i);
    }
    for (int i = 0; i < (int)n->n_ops; i++) {
        if (dtm_is_reduction(body_op(&w, i)->kind) || type_of(&w, body_op(&w, i)->results[0])->rank) continue;
        value_name(&w, body_op(&w, i)->results[0]);
        if (n->written[i]) store(&w, i);
    }
    write_extent(&w, &chunks);
    chunks.length = 0;
    dtm_text_printf(out, "static int64_t @_extent(const int64_t *z) {\n    return (void)z, 1;\n}\n");
    dtm_text_printf(out, "static int64_t @_scratch_bytes(const int64_t *z) {\n    return (void)z, 0;\n}\n");
    dtm_text_printf(out, "static int64_t @_chunks(const int64_t *z) {\n    (void)z;\n");
    bool flat = n->n_loops == 1;
    const char *last = n->loops[n->n_loops - 1].expression;
    if (flat) dtm_text_printf(out, "    const int64_t rows = (%s + %d) / %d, row = 4096 + 1;\n", last, NEST_BLOCK - 1, NEST_BLOCK);
    else dtm_text_printf(out, "    const int64_t rows = %s, row = %s + 1;\n", rows_expression(&w), last);
    dtm_text_printf(out,
                    "    const int64_t most = (rows + %d) / %d, least = (%d + row - 1) / row, each = most > least ? most : least;\n"
                    "    return (rows + each - 1) / each;\n}\n",
                    DTM_CHUNKS - 1, DTM_CHUNKS, NEST_CHUNK);
    dtm_text_printf(out, "static void @(const dtm_kernel_args *a, int64_t begin, int64_t end) {\n");
    write_pointers(n, out);
    dtm_text_printf(out, "    const int64_t chunks = @_chunks(z);\n    for (int64_t u = begin; u < end; u++) {\n");
    dtm_text_append(out, body.data, body.length);
    dtm_text_printf(out, "    }\n}\n");
}
