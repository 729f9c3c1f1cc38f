/* The values of a loop nest as C: addresses, and expressions that are named where they are first needed. A value that lies
 * in memory, or in scratch from an earlier pass, is read from there. */
#include "codegen/nest.h"
#include "ir/fault.h"

#include <math.h>
#include <string.h>

static dtm_module *module_of(const nest_writer *w) { return w->n->g->module; }
static const dtm_op_data *body_op(const nest_writer *w, int i) { return dtm_op_get(module_of(w), w->n->ops[i]); }
static const dtm_type_data *type_of(const nest_writer *w, dtm_value v) { return dtm_value_type(module_of(w), v); }

__attribute__((format(printf, 2, 3))) void nest_line(nest_writer *w, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char text[4096];
    if (vsnprintf(text, sizeof text, format, arguments) >= (int)sizeof text)
        dtm_broken("codegen", "a line of a kernel is too long");
    va_end(arguments);
    dtm_text_printf(w->out, "%*s%s\n", *text == '#' ? 0 : w->depth * 4, "", text);
}

const char *nest_register_type(dtm_dtype dtype) {
    return dtm_dtype_is_float(dtype) ? "float" : dtype == DTM_I32 ? "int32_t" : "int";
}

const char *nest_rounded(nest_writer *w, dtm_dtype dtype, const char *number) {
    return dtm_dtype_is_half(dtype) && !dtm_fault(170) ? dtm_c_loaded(w->n->g->arena, dtype, dtm_c_stored(w->n->g->arena, dtype, number)) : number;
}

/* ---- addresses ---- */

static void append_term(dtm_text *text, const char *format, const char *a, const char *b) {
    if (text->length) dtm_text_printf(text, " + ");
    dtm_text_printf(text, format, a, b);
}

/* The stride of a loop in a tensor: the product of the sizes of the loops after it there. "1" where there are none. */
static const char *stride_of(const nest_writer *w, dtm_value v, int loop) {
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
const char *nest_offset(const nest_writer *w, dtm_value v, bool inner) {
    dtm_text text = {w->n->g->arena, NULL, 0, 0};
    for (int l = 0; l < w->n->n_loops; l++) {
        if (w->n->loops[l].inner != inner || !nest_has_loop(w->n, v, l)) continue;
        const char *stride = stride_of(w, v, l), *name = dtm_arena_printf(w->n->g->arena, "i%d", l);
        append_term(&text, strcmp(stride, "1") == 0 ? "%s" : "%s * (%s)", name, stride);
    }
    return text.length ? text.data : "0";
}

bool nest_is_vector(const nest_writer *w, dtm_value v) {
    int last = w->n->n_loops - 1;
    return last >= 0 && nest_has_loop(w->n, v, last) && strcmp(stride_of(w, v, last), "1") == 0;
}

/* The flat index of a saved value within the row. */
const char *nest_row_index(const nest_writer *w) {
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

static const char *position_of(nest_writer *w, dtm_dim dim) {
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
static const char *element_of(nest_writer *w, dtm_value v) {
    const dtm_type_data *type = type_of(w, v);
    dtm_arena *arena = w->n->g->arena;
    if (!dtm_type_split_axes(type) || dtm_fault(18))
        return dtm_arena_printf(arena, "(uint64_t)(%s + %s)", nest_offset(w, v, false), nest_offset(w, v, true));
    dtm_text text = {arena, NULL, 0, 0};
    for (int d = 0; d < type->rank; d++) {
        int64_t stride = 1;
        for (int k = d + 1; k < type->rank; k++) stride *= module_of(w)->dims[type->dims[k]].size;
        append_term(&text, "%s * %s", position_of(w, type->dims[d]), dtm_arena_printf(arena, "%lld", (long long)stride));
    }
    return dtm_arena_printf(arena, "(uint64_t)(%s)", text.data);
}

static const char *dropout_expression(nest_writer *w, const dtm_op_data *op, const char *x) {
    dtm_arena *arena = w->n->g->arena;
    uint32_t state = dtm_step_state(w->n->g);
    size_t index = 0;
    while (index < w->n->n_extra && w->n->extra[index] != state) index++;
    if (index == w->n->n_extra) DTM_PUSH(arena, w->n->extra, w->n->n_extra, w->n->cap_extra, state);
    dtm_product copy = {0, 1, 1, {DTM_PLAN_COPY_NUMBER}};
    dtm_text scale = {arena, NULL, 0, 0};
    dtm_c_number(DTM_F32, 1 / (1 - op->attributes.number[DTM_DROPOUT_P]), &scale);
    const char *stream = dtm_arena_printf(arena, "dtm_random_stream((uint32_t)step_state[1], %uu + 0x9E3779B9u * (uint32_t)z[%d])",
                                          (unsigned)op->attributes.number[DTM_DROPOUT_SITE], nest_size(w->n, &copy));
    const char *uniform = dtm_arena_printf(arena, "dtm_random_uniform(step_state[0], %s, %s)", stream, element_of(w, op->results[0]));
    int i = nest_body_index(w->n, op->results[0]);
    if (w->vector && nest_is_vector(w, op->results[0]) && !dtm_type_split_axes(type_of(w, op->results[0]))) {
        dtm_text_printf(&w->vector->before, "float u%d[W];\ndtm_random_vector<W>(u%d, step_state[0], %s, %s);\n", i, i, stream,
                        element_of(w, op->results[0]));
        uniform = dtm_arena_printf(arena, "u%d[k]", i);
    }
    dtm_text p = {arena, NULL, 0, 0};
    double drops = op->attributes.number[DTM_DROPOUT_P];
    if (w->n->g->cuda) dtm_c_number(DTM_F32, (float)drops < drops ? nextafterf((float)drops, 2) : (float)drops, &p); /* as a float it is >= p */
    else dtm_text_number(&p, drops);
    /* Step 0 is no training step: nothing is dropped. */
    return dtm_arena_printf(arena, "step_state[1] == 0 ? %s : %s >= %s ? %s * %s : 0.0f", x, uniform, p.data, x, scale.data);
}

/* dy (exp(logit - lse) - (1 - smooth) [v = target] - smooth / V), 0 where the target is negative. */
static const char *cross_entropy_expression(nest_writer *w, const dtm_op_data *op, const char *const *x) {
    dtm_arena *arena = w->n->g->arena;
    double smooth = op->attributes.number[DTM_CROSS_ENTROPY_SMOOTH];
    double classes = (double)module_of(w)->dims[op->attributes.over[0]].size;
    dtm_text on = {arena, NULL, 0, 0}, off = {arena, NULL, 0, 0};
    dtm_c_number(DTM_F32, 1 - smooth, &on);
    dtm_c_number(DTM_F32, smooth / classes, &off);
    return dtm_arena_printf(arena, "%s < 0 ? 0.0f : %s * (dtm_exp(%s - %s) - (%s == (int32_t)%s ? %s : 0.0f) - %s)", x[2], x[3],
                            x[0], x[1], x[2], position_of(w, op->attributes.over[0]), on.data, off.data);
}

static const char *expression_of(nest_writer *w, int i) {
    const dtm_op_data *op = body_op(w, i);
    const char *operands[4] = {"", "", "", ""};
    dtm_arena *arena = w->n->g->arena;
    for (uint32_t k = 0; k < op->n_operands && k < 4; k++) operands[k] = nest_value(w, op->operands[k]);
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
const char *nest_loaded(nest_writer *w, dtm_value v) {
    int index = nest_touch(w->n, v);
    if (w->vector && nest_is_vector(w, v)) {
        w->vector->read[index] = true;
        return dtm_arena_printf(w->n->g->arena, "x%d[k]", index);
    }
    const char *element = dtm_arena_printf(w->n->g->arena, "b%d[(%s) + (%s)]", index, nest_offset(w, v, false), nest_offset(w, v, true));
    return dtm_c_loaded(w->n->g->arena, (dtm_dtype)type_of(w, v)->dtype, element);
}

void nest_define(nest_writer *w, int i, const char *expression) {
    dtm_dtype dtype = (dtm_dtype)type_of(w, body_op(w, i)->results[0])->dtype;
    nest_line(w, "const %s v%d = %s;", nest_register_type(dtype), i, expression);
    w->emitted[i] = true;
}

const char *nest_value(nest_writer *w, dtm_value v) {
    dtm_arena *arena = w->n->g->arena;
    if (dtm_value_is_constant(module_of(w), v)) {
        dtm_text text = {arena, NULL, 0, 0};
        dtm_c_number((dtm_dtype)type_of(w, v)->dtype, dtm_value_get(module_of(w), v)->number, &text);
        return text.data;
    }
    int i = nest_body_index(w->n, v);
    if (i < 0 && w->hoisted && !nest_is_inner(w->n, v)) return dtm_arena_printf(arena, "c%d", nest_touch(w->n, v));
    if (i < 0) return nest_loaded(w, v);
    const char *name = dtm_arena_printf(arena, "v%d", i);
    if (w->emitted[i]) return name;
    bool earlier = w->n->levels[i] < w->pass && nest_is_inner(w->n, v);
    if (earlier && w->n->written[i]) nest_define(w, i, nest_loaded(w, v));
    else if (earlier && w->n->saved[i]) nest_define(w, i, dtm_arena_printf(arena, "s%d[%s]", i, w->vector ? w->vector->saved : nest_row_index(w)));
    else nest_define(w, i, nest_rounded(w, (dtm_dtype)type_of(w, v)->dtype, expression_of(w, i)));
    return name;
}

void nest_store(nest_writer *w, int i) {
    dtm_value v = body_op(w, i)->results[0];
    dtm_arena *arena = w->n->g->arena;
    if (w->vector && nest_is_vector(w, v)) {
        w->vector->stored[i] = true;
        nest_line(w, "y%d[k] = v%d;", i, i);
        return;
    }
    nest_line(w, "b%d[(%s) + (%s)] = %s;", nest_touch(w->n, v), nest_offset(w, v, false), nest_offset(w, v, true),
              dtm_c_stored(arena, (dtm_dtype)type_of(w, v)->dtype, dtm_arena_printf(arena, "v%d", i)));
}
