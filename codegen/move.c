/* Kernels that move elements: gather and its gradient, and the shape operators whose bytes have to move. One loop nest
 * over the dimensions of the result (of merge: of the operand), the last one innermost; an address is a sum of terms, one
 * for each dimension of the tensor, and what is special is in one of the terms. */
#include "codegen/generator.h"
#include "ir/fault.h"

#include <string.h>

typedef struct mover {
    dtm_generator *g;
    dtm_op op;
    const dtm_op_data *data;
    dtm_size_list sizes;
    dtm_text out;
    const dtm_type_data *types[3]; /* of the buffers */
    size_t n_types;
    int width; /* CUDA: elements that a thread moves, side by side in all of them */
} mover;

static const dtm_type_data *type_of(const mover *m, dtm_value v) { return dtm_value_type(m->g->module, v); }

static const char *dim_size(mover *m, const dtm_type_data *type, int index) {
    return dtm_dim_size_text(m->g, &m->sizes, type, index);
}

/* A dimension's index where it is not its own loop. */
typedef struct special {
    dtm_dim dim;
    const char *index;
} special;

/* The address in a tensor; loops are i<dim>. Dimensions of `type` that are no loops must be special. */
static const char *address(mover *m, const dtm_type_data *type, const special *specials, int n_specials) {
    dtm_text text = {m->g->arena, NULL, 0, 0};
    for (int i = 0; i < type->rank; i++) {
        const char *index = dtm_arena_printf(m->g->arena, "i%u", type->dims[i]);
        for (int s = 0; s < n_specials; s++)
            if (specials[s].dim == type->dims[i]) index = specials[s].index;
        dtm_text_printf(&text, "%s(%s) * %s", text.length ? " + " : "", index, dtm_dim_stride_text(m->g, &m->sizes, type, i));
    }
    return text.length ? text.data : "0";
}

/* ---- loops ---- */

static void line(mover *m, int depth, const char *text) {
    dtm_text_printf(&m->out, "%*s%s\n", *text == '#' ? 0 : depth * 4, "", text);
}

/* On a GPU a thread moves one element, or `width`. */
static int open_thread(mover *m, const dtm_type_data *type) {
    dtm_arena *arena = m->g->arena;
    line(m, 1, "int64_t rest = self * W;");
    for (int i = type->rank - 1; i >= 0; i--) {
        const char *size = dim_size(m, type, i);
        if (i == 0) line(m, 1, dtm_arena_printf(arena, "const int64_t i%u = rest;", type->dims[i]));
        else {
            line(m, 1, dtm_arena_printf(arena, "const int64_t i%u = rest %% %s;", type->dims[i], size));
            line(m, 1, dtm_arena_printf(arena, "rest /= %s;", size));
        }
    }
    return 1;
}

/* Units are all dimensions of `type` but the last; returns the depth of the innermost body. */
static int open_loops(mover *m, const dtm_type_data *type) {
    dtm_arena *arena = m->g->arena;
    if (m->g->cuda) return open_thread(m, type);
    line(m, 1, "for (int64_t u = begin; u < end; u++) {");
    line(m, 2, "int64_t rest = u;");
    line(m, 2, "(void)rest;");
    for (int i = type->rank - 2; i >= 0; i--) {
        const char *size = dim_size(m, type, i);
        if (i == 0) line(m, 2, dtm_arena_printf(arena, "const int64_t i%u = rest;", type->dims[i]));
        else {
            line(m, 2, dtm_arena_printf(arena, "const int64_t i%u = rest %% %s;", type->dims[i], size));
            line(m, 2, dtm_arena_printf(arena, "rest /= %s;", size));
        }
    }
    if (!type->rank) return 2;
    dtm_dim last = type->dims[type->rank - 1];
    line(m, 2, "#pragma omp simd");
    line(m, 2, dtm_arena_printf(arena, "for (int64_t i%u = 0; i%u < %s; i%u++) {", last, last, dim_size(m, type, type->rank - 1), last));
    return 3;
}

static void close_loops(mover *m, const dtm_type_data *type) {
    if (m->g->cuda) return;
    if (type->rank) line(m, 2, "}");
    line(m, 1, "}");
}

static const char *units(mover *m, const dtm_type_data *type) {
    dtm_product product = dtm_product_one();
    for (int i = 0; i < type->rank - 1; i++) dtm_product_times(m->g, &product, type, i);
    return dtm_size_text(m->g, &m->sizes, &product);
}

/* The greatest width: elements of the last loop lie side by side in all tensors, and rows begin at multiples of 16 bytes. `special` is
 * a dimension whose index is not its own loop. */
static int width_of(const mover *m, const dtm_type_data *loops, const dtm_dim *specials, int n_specials) {
    int64_t size;
    if (!loops->rank || !dtm_extent_is_even(m->g, loops, loops->rank - 1, &size)) return 1;
    dtm_dim last = loops->dims[loops->rank - 1];
    for (int s = 0; s < n_specials; s++)
        if (specials[s] == last) return 1;
    int width = 16 / (int)dtm_dtype_bytes((dtm_dtype)loops->dtype);
    for (size_t i = 0; i < m->n_types; i++)
        if (!m->types[i]->rank || m->types[i]->dims[m->types[i]->rank - 1] != last || m->types[i]->dtype != loops->dtype) return 1;
    while (size % width) width /= 2;
    return width;
}

static void open_with_types(mover *m, const dtm_type_data *const *types, size_t count) {
    m->n_types = count;
    for (size_t i = 0; i < count; i++) m->types[i] = types[i];
    if (m->g->cuda) return;
    dtm_text_printf(&m->out, "static void @(const dtm_kernel_args *a, int64_t begin, int64_t end) {\n");
    for (size_t i = 0; i < count; i++)
        dtm_text_printf(&m->out, "    %s *const b%zu = a->buffers[%zu];\n", dtm_c_type((dtm_dtype)types[i]->dtype), i, i);
    dtm_text_printf(&m->out, "    const int64_t *const z = a->sizes;\n    (void)z;\n");
}

static void open_kernel(mover *m, const dtm_value *values, size_t count) {
    const dtm_type_data *types[8];
    for (size_t i = 0; i < count; i++) types[i] = type_of(m, values[i]);
    open_with_types(m, types, count);
}

/* Elements of `loops`, each by a thread. */
static const char *elements_of(mover *m, const dtm_type_data *loops) {
    dtm_product product = dtm_product_one();
    for (int i = 0; i < loops->rank; i++) dtm_product_times(m->g, &product, loops, i);
    return dtm_size_text(m->g, &m->sizes, &product);
}

static void finish_on_gpu(mover *m, const char *name, const dtm_type_data *loops, dtm_plan_category category, const uint32_t *buffers) {
    enum { THREADS = 256 };
    dtm_arena *arena = m->g->arena;
    const char *elements = elements_of(m, loops);
    dtm_cuda_text text = {.n_launches = 1};
    dtm_text device = {arena, NULL, 0, 0};
    dtm_text_printf(&device, "#include \"kernels/cuda/nest.cuh\"\n"
                             "KERNEL(@, %d) {\n    dtm_begin(p.mark);\n    const tuple &t = p.t[TUPLE];\n    const int64_t *const z = t.z;\n    constexpr int W = %d;\n"
                             "    const int64_t self = (int64_t)blockIdx.x * %d + threadIdx.x;\n    if (self >= %s / W) return;\n",
                    THREADS, m->width, THREADS, elements);
    for (size_t i = 0; i < m->n_types; i++) {
        const char *type = dtm_cuda_stored_type((dtm_dtype)m->types[i]->dtype);
        dtm_text_printf(&device, "    %s *const b%zu = (%s *)t.b[%zu];\n", type, i, type, i);
    }
    dtm_text_append(&device, m->out.data, m->out.length);
    dtm_text_printf(&device, "}\n");
    text.device = device.data;
    text.launches[0] = (dtm_cuda_launch_text){"", THREADS, dtm_arena_printf(arena, "(%s / %d + %d) / %d", elements, m->width, THREADS - 1, THREADS), NULL};
    uint32_t kernel = dtm_cuda_kernel_index(m->g, name, &text, m->n_types, m->sizes.count);
    m->g->kernels[kernel].read_only = ((uint64_t)1 << (m->n_types - 1)) - 1; /* the last is made */
    dtm_emit_launch(m->g, m->op, category, kernel, buffers, m->n_types, m->sizes.items, m->sizes.count);
}

/* Moves an element; `from` is an address in buffer 0 where `condition` holds (NULL: always), else in buffer 1, or 0 where there is none. */
static void move_element(mover *m, int depth, const char *to, const char *from, const char *condition, const char *otherwise) {
    dtm_arena *arena = m->g->arena;
    size_t made = m->n_types - 1;
    const char *form = m->g->cuda ? "*(const V *)(b%d + (%s))" : "b%d[%s]";
    const char *first = dtm_arena_printf(arena, form, 0, from), *second = otherwise ? dtm_arena_printf(arena, form, 1, otherwise) : m->g->cuda ? "V{}" : "0";
    const char *value = condition ? dtm_arena_printf(arena, "%s ? %s : %s", condition, first, second) : first;
    if (m->g->cuda) {
        line(m, depth, dtm_arena_printf(arena, "typedef dtm_vector<%s, W> V;", dtm_cuda_stored_type((dtm_dtype)m->types[made]->dtype)));
        line(m, depth, dtm_arena_printf(arena, "*(V *)(b%zu + (%s)) = %s;", made, to, value));
    } else line(m, depth, dtm_arena_printf(arena, "b%zu[%s] = %s;", made, to, value));
}

static void finish_with_buffers(mover *m, const char *name, const char *extent, dtm_plan_category category,
                                const uint32_t *buffers, size_t count) {
    dtm_text_printf(&m->out, "}\nstatic int64_t @_extent(const int64_t *z) {\n    (void)z;\n    return %s;\n}\n", extent);
    dtm_text_printf(&m->out, "static int64_t @_scratch_bytes(const int64_t *z) {\n    return (void)z, 0;\n}\n");
    uint32_t kernel = dtm_kernel_index(m->g, name, m->out.data);
    dtm_emit_launch(m->g, m->op, category, kernel, buffers, count, m->sizes.items, m->sizes.count);
}

/* Of a shape: units are rows of `loops`. */
static void finish_shape(mover *m, const char *name, const dtm_type_data *loops, const uint32_t *buffers) {
    if (m->g->cuda) finish_on_gpu(m, name, loops, DTM_PLAN_MOVEMENT, buffers);
    else finish_with_buffers(m, name, units(m, loops), DTM_PLAN_MOVEMENT, buffers, m->n_types);
}

static void finish_shape_of(mover *m, const char *name, const dtm_type_data *loops, const dtm_value *values) {
    uint32_t buffers[3];
    for (size_t i = 0; i < m->n_types; i++) buffers[i] = dtm_buffer_index(m->g, values[i]);
    finish_shape(m, name, loops, buffers);
}

static void finish_kernel(mover *m, const char *name, const char *extent, dtm_plan_category category, const dtm_value *values,
                          size_t count) {
    uint32_t buffers[8];
    for (size_t i = 0; i < count; i++) buffers[i] = dtm_buffer_index(m->g, values[i]);
    finish_with_buffers(m, name, extent, category, buffers, count);
}

static mover begin(dtm_generator *g, dtm_op op) {
    return (mover){.g = g, .op = op, .data = dtm_op_get(g->module, op), .out = {g->arena, NULL, 0, 0}, .width = 1};
}

/* ---- gather and scatter ---- */

/* out = table[ids - first], 0 for rows held by others; an id outside the whole table is reported by its flat index. */
void dtm_lower_gather(dtm_generator *g, dtm_op op) {
    mover m = begin(g, op);
    dtm_arena *arena = g->arena;
    dtm_value values[3] = {m.data->operands[0], m.data->operands[1], m.data->results[0]};
    const dtm_type_data *table = type_of(&m, values[0]), *ids = type_of(&m, values[1]), *out = type_of(&m, values[2]);
    dtm_dim v = m.data->attributes.over[0];
    int at = dtm_type_dim_index(table, v);
    open_kernel(&m, values, 3);
    int depth = open_loops(&m, out);
    special row = {v, "row"};
    line(&m, depth, dtm_arena_printf(arena, "const int64_t at = %s, id = b1[at], row = id - %s;", address(&m, ids, NULL, 0), dtm_dim_begin_text(g, &m.sizes, table, at)));
    line(&m, depth, dtm_arena_printf(arena, "const int held = row >= 0 && row < %s;", dim_size(&m, table, at)));
    line(&m, depth, dtm_arena_printf(arena, "b2[%s] = held ? b0[held ? %s : 0] : 0;", address(&m, out, NULL, 0), address(&m, table, &row, 1)));
    if (out->rank) line(&m, 2, "}");
    /* The check stands beside the loop, which stays free of branches where ids do not vary in it. */
    bool varies = out->rank && dtm_type_dim_index(ids, out->dims[out->rank - 1]) >= 0;
    if (varies) {
        dtm_dim last = out->dims[out->rank - 1];
        line(&m, 2, dtm_arena_printf(arena, "for (int64_t i%u = 0; i%u < %s; i%u++) {", last, last, dim_size(&m, out, out->rank - 1), last));
    } else line(&m, 2, "{");
    line(&m, 3, dtm_arena_printf(arena, "const int64_t at = %s;", address(&m, ids, NULL, 0)));
    line(&m, 3, dtm_arena_printf(arena, "if (b1[at] < 0 || b1[at] >= %lld) dtm_kernel_report(a, at);", (long long)g->module->dims[v].size));
    line(&m, 2, "}");
    line(&m, 1, "}");
    finish_kernel(&m, "gather", units(&m, out), DTM_PLAN_LOOKUP, values, 3);
    dtm_plan_instruction *made = &g->instructions[g->n_instructions - 1];
    made->kernel.error = dtm_arena_printf(arena, "outside %s = %lld", dtm_dim_name(g->module, v), (long long)g->module->dims[v].size);
    made->kernel.error_buffer = dtm_buffer_index(g, values[1]);
}

/* out[v] = the sum of dy over the ids that are v, in their order. A unit is a range of rows: it clears them, then looks
 * through all ids. */
void dtm_lower_scatter(dtm_generator *g, dtm_op op) {
    enum { RANGES = 64 };
    mover m = begin(g, op);
    dtm_arena *arena = g->arena;
    dtm_value values[3] = {m.data->operands[0], m.data->operands[1], m.data->results[0]};
    const dtm_type_data *ids = type_of(&m, values[0]), *dy = type_of(&m, values[1]), *out = type_of(&m, values[2]);
    dtm_dim v = m.data->attributes.over[0];
    int at = dtm_type_dim_index(out, v);
    const char *rows = dim_size(&m, out, at);
    open_kernel(&m, values, 3);
    line(&m, 1, dtm_arena_printf(arena, "const int64_t low = %s * begin / %d, high = %s * end / %d;", rows, RANGES, rows, RANGES));
    int depth = 1;
    special index = {v, "row"};
    line(&m, depth++, "for (int64_t row = low; row < high; row++) {");
    for (int i = 0; i < out->rank; i++)
        if (i != at) line(&m, depth++, dtm_arena_printf(arena, "for (int64_t i%u = 0; i%u < %s; i%u++) {", out->dims[i], out->dims[i], dim_size(&m, out, i), out->dims[i]));
    line(&m, depth, dtm_arena_printf(arena, "b2[%s] = 0;", address(&m, out, &index, 1)));
    while (depth > 1) line(&m, --depth, "}");
    for (int i = 0; i < ids->rank; i++)
        line(&m, depth++, dtm_arena_printf(arena, "for (int64_t i%u = 0; i%u < %s; i%u++) {", ids->dims[i], ids->dims[i], dim_size(&m, ids, i), ids->dims[i]));
    line(&m, depth, dtm_arena_printf(arena, "const int64_t row = b0[%s] - %s;", address(&m, ids, NULL, 0), dtm_dim_begin_text(g, &m.sizes, out, at)));
    line(&m, depth, "if (row < low || row >= high) continue;");
    int before = depth, last = -1;
    for (int i = 0; i < dy->rank; i++)
        if (dtm_type_dim_index(ids, dy->dims[i]) < 0) last = i;
    for (int i = 0; i < dy->rank; i++) {
        if (dtm_type_dim_index(ids, dy->dims[i]) >= 0) continue;
        if (i == last) line(&m, depth, "#pragma omp simd");
        line(&m, depth++, dtm_arena_printf(arena, "for (int64_t i%u = 0; i%u < %s; i%u++) {", dy->dims[i], dy->dims[i], dim_size(&m, dy, i), dy->dims[i]));
    }
    line(&m, depth, dtm_arena_printf(arena, "b2[%s] %s %s;", address(&m, out, &index, 1), dtm_fault(27) ? "=" : "+=",
                                     dtm_c_loaded(arena, (dtm_dtype)dy->dtype, dtm_arena_printf(arena, "b1[%s]", address(&m, dy, NULL, 0)))));
    while (depth > before) line(&m, --depth, "}");
    while (depth > 1) line(&m, --depth, "}");
    finish_kernel(&m, "scatter", "64", DTM_PLAN_LOOKUP, values, 3);
}

/* ---- shapes ---- */

/* The flat index of `minor`s under a merged dimension: ((i1) * n2 + i2) * n3 + .. */
static const char *flat_index(mover *m, const dtm_type_data *type, const dtm_dim *dims, int count) {
    const char *text = dtm_arena_printf(m->g->arena, "i%u", dims[0]);
    for (int i = 1; i < count; i++)
        text = dtm_arena_printf(m->g->arena, "(%s) * %s + i%u", text, dim_size(m, type, dtm_type_dim_index(type, dims[i])), dims[i]);
    return text;
}

static void lower_concat(mover *m) {
    const dtm_attributes *x = &m->data->attributes;
    dtm_arena *arena = m->g->arena;
    dtm_value values[3] = {m->data->operands[0], m->data->operands[1], m->data->results[0]};
    const dtm_type_data *a = type_of(m, values[0]), *b = type_of(m, values[1]), *out = type_of(m, values[2]);
    const char *n = dim_size(m, a, dtm_type_dim_index(a, x->over[0]));
    special first = {x->over[0], dtm_arena_printf(arena, "i%u", x->as[0])};
    special second = {x->over[1], dtm_arena_printf(arena, "i%u - %s", x->as[0], n)};
    open_kernel(m, values, 3);
    int depth = open_loops(m, out);
    m->width = width_of(m, out, &x->as[0], 1);
    move_element(m, depth, address(m, out, NULL, 0), address(m, a, &first, 1), dtm_arena_printf(arena, "i%u < %s", x->as[0], n),
                 address(m, b, &second, 1));
    close_loops(m, out);
    finish_shape_of(m, "concat", out, values);
}

void dtm_lower_shape(dtm_generator *g, dtm_op op) {
    mover m = begin(g, op);
    dtm_arena *arena = g->arena;
    const dtm_attributes *x = &m.data->attributes;
    if (m.data->kind == DTM_OP_CONCAT) {
        lower_concat(&m);
        return;
    }
    dtm_value values[2] = {m.data->operands[0], m.data->results[0]};
    const dtm_type_data *in = type_of(&m, values[0]), *out = type_of(&m, values[1]);
    const char *name = "slice", *condition = NULL;
    const dtm_type_data *loops = out;
    special from = {x->over[0], ""}, to = {x->as[0], ""};
    int to_special = 0;
    switch (m.data->kind) {
    case DTM_OP_SLICE: from.index = dtm_arena_printf(arena, "i%u + %lld", x->as[0], (long long)x->from); break;
    case DTM_OP_PAD:
        name = "pad";
        from.index = dtm_arena_printf(arena, "i%u - %lld", x->as[0], (long long)x->from);
        condition = dtm_arena_printf(arena, "i%u >= %lld && i%u < %lld", x->as[0], (long long)x->from, x->as[0], (long long)x->to);
        break;
    case DTM_OP_SPLIT:
        name = "split";
        from.index = flat_index(&m, out, x->as, x->n_as);
        break;
    case DTM_OP_RENAME:
        name = "rename";
        from.index = dtm_arena_printf(arena, "i%u", x->as[0]);
        break;
    default:
        name = "merge";
        loops = in;
        to.index = flat_index(&m, in, x->over, x->n_over);
        to_special = 1;
    }
    open_kernel(&m, values, 2);
    int depth = open_loops(&m, loops);
    m.width = width_of(&m, loops, to_special ? x->over : x->as, to_special ? x->n_over : x->n_as);
    move_element(&m, depth, address(&m, out, &to, to_special), address(&m, in, &from, to_special ? 0 : 1), condition, NULL);
    close_loops(&m, loops);
    finish_shape_of(&m, name, loops, values);
}

void dtm_emit_transposed(dtm_generator *g, dtm_op op, dtm_placed from, dtm_placed to) {
    mover m = begin(g, op);
    open_with_types(&m, (const dtm_type_data *[]){from.type, to.type}, 2);
    int depth = open_loops(&m, to.type);
    const char *element = dtm_arena_printf(g->arena, "b0[%s]", address(&m, from.type, NULL, 0));
    if (from.type->dtype != to.type->dtype)
        element = dtm_c_stored(g->arena, (dtm_dtype)to.type->dtype, dtm_c_loaded(g->arena, (dtm_dtype)from.type->dtype, element));
    line(&m, depth, dtm_arena_printf(g->arena, "b1[%s] = %s;", address(&m, to.type, NULL, 0), element));
    close_loops(&m, to.type);
    finish_shape(&m, "transpose", to.type, (uint32_t[]){from.buffer, to.buffer});
}
