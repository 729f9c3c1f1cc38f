/* Small generated kernels around those of the library (kernels/cpu): they fill its sizes from z[] and call it. */
#include "codegen/calls.h"
#include "ir/fault.h"

#include <math.h>
#include <string.h>

caller calls_begin(dtm_generator *g, dtm_op op) {
    return (caller){.g = g, .op = op, .data = dtm_op_get(g->module, op), .fill = {g->arena, NULL, 0, 0}};
}

static const dtm_type_data *type_of(const caller *c, dtm_value v) { return dtm_value_type(c->g->module, v); }

static void set(caller *c, const char *field, const char *value) {
    dtm_text_printf(&c->fill, "    s.%s = %s;\n", field, value);
}

static void set_number(caller *c, const char *field, int64_t value) {
    dtm_text_printf(&c->fill, "    s.%s = %lld;\n", field, (long long)value);
}

static void set_size(caller *c, const char *field, const dtm_type_data *type, int index) {
    set(c, field, index < 0 ? "1" : dtm_dim_size_text(c->g, &c->sizes, type, index));
}

static void set_begin(caller *c, const char *field, const dtm_type_data *type, int index) {
    set(c, field, index < 0 ? "0" : dtm_dim_begin_text(c->g, &c->sizes, type, index));
}

static void set_stride(caller *c, const char *field, const dtm_type_data *type, dtm_dim dim) {
    int index = dim ? dtm_type_dim_index(type, dim) : -1;
    set(c, field, index < 0 ? "0" : dtm_dim_stride_text(c->g, &c->sizes, type, index));
}

/* ---- packing ---- */

/* Where the kernel finds operand `index` (results count on): in its place, or in the workspace at *at with the dimension it
 * runs along moved to the end. */
static dtm_placed place(caller *c, uint32_t index, int64_t *at) {
    dtm_generator *g = c->g;
    dtm_value v = index < c->data->n_operands ? c->data->operands[index] : c->data->results[index - c->data->n_operands];
    const dtm_type_data *type = type_of(c, v);
    dtm_dim last = dtm_packed_along(g->module, c->op, index);
    if (!last) return (dtm_placed){type, dtm_buffer_index(g, v)};
    dtm_type_data *packed = dtm_arena_alloc(g->arena, sizeof *packed);
    *packed = *type;
    int from = dtm_type_dim_index(type, last), to = type->rank - 1;
    for (int i = from; i < to; i++) packed->dims[i] = type->dims[i + 1], packed->layout[i] = type->layout[i + 1];
    packed->dims[to] = last, packed->layout[to] = type->layout[from];
    packed->dtype = DTM_F32;
    dtm_placed made = {packed, dtm_buffer_packed(g, packed, *at)};
    *at += dtm_storage_round(dtm_packed_bytes(g->module, v));
    return made;
}

static int place_all(caller *c, dtm_placed placed[9]) {
    int64_t at = 0;
    int count = (int)(c->data->n_operands + c->data->n_results);
    for (int i = 0; i < count; i++) placed[i] = place(c, (uint32_t)i, &at);
    return count;
}

/* Before the kernel, for operands; after it, for results. */
static void pack_operands(caller *c, const dtm_placed *placed) {
    for (uint32_t i = 0; i < c->data->n_operands; i++) {
        dtm_value v = c->data->operands[i];
        dtm_placed own = {type_of(c, v), dtm_buffer_index(c->g, v)};
        if (own.type != placed[i].type) dtm_emit_transposed(c->g, c->op, own, placed[i]);
    }
}

static void unpack_results(caller *c, const dtm_placed *placed) {
    for (uint32_t i = 0; i < c->data->n_results; i++) {
        dtm_value v = c->data->results[i];
        dtm_placed own = {type_of(c, v), dtm_buffer_index(c->g, v)}, made = placed[c->data->n_operands + i];
        if (own.type != made.type) dtm_emit_transposed(c->g, c->op, made, own);
    }
}

/* ---- attention ---- */

roles calls_roles(const caller *c) {
    const dtm_attributes *x = &c->data->attributes;
    const dtm_type_data *q = type_of(c, c->data->operands[0]), *k = type_of(c, c->data->operands[1]),
                        *v = type_of(c, c->data->operands[2]);
    roles r = {.keys = x->over[0], .queries = x->at ? x->at : x->over[0], .width = x->over[1]};
    dtm_dim shared[DTM_MAX_RANK];
    int n = 0;
    for (int i = 0; i < q->rank; i++) {
        if (q->dims[i] == r.queries || q->dims[i] == r.width) continue;
        if (dtm_type_dim_index(k, q->dims[i]) >= 0) shared[n++] = q->dims[i];
        else r.heads = q->dims[i];
    }
    for (int i = 0; i < k->rank; i++)
        if (k->dims[i] != r.keys && k->dims[i] != r.width && dtm_type_dim_index(q, k->dims[i]) < 0) r.groups = k->dims[i];
    for (int i = 0; i < v->rank; i++)
        if (v->dims[i] == r.width || dtm_type_dim_index(k, v->dims[i]) < 0) r.v_width = v->dims[i];
    if (!r.heads && n) r.heads = r.groups = shared[--n]; /* heads named alike */
    if (n) r.batch = shared[--n];
    while (n) r.more[r.n_more++] = shared[--n];
    return r;
}

static void set_strides(caller *c, const char *tensor, const dtm_type_data *type, dtm_dim batch, dtm_dim position, dtm_dim heads) {
    dtm_arena *arena = c->g->arena;
    set_stride(c, dtm_arena_printf(arena, "%s.b", tensor), type, batch);
    set_stride(c, dtm_arena_printf(arena, "%s.s", tensor), type, position);
    set_stride(c, dtm_arena_printf(arena, "%s.h", tensor), type, heads);
}

void calls_fill_attention(caller *c, const roles *r, const dtm_placed *placed, bool backward) {
    dtm_module *module = c->g->module;
    const dtm_attributes *x = &c->data->attributes;
    const dtm_type_data *q = placed[0].type, *k = placed[1].type, *v = placed[2].type;
    int64_t ratio = 1;
    if (r->heads) ratio = module->dims[r->heads].size / (r->groups ? module->dims[r->groups].size : 1);
    set_size(c, "batch", q, r->batch ? dtm_type_dim_index(q, r->batch) : -1);
    set_size(c, "heads", q, r->heads ? dtm_type_dim_index(q, r->heads) : -1);
    set_size(c, "kv_heads", k, r->groups ? dtm_type_dim_index(k, r->groups) : -1);
    set_size(c, "queries", q, dtm_type_dim_index(q, r->queries));
    set_size(c, "keys", k, dtm_type_dim_index(k, r->keys));
    set_size(c, "width", q, dtm_type_dim_index(q, r->width));
    set_size(c, "v_width", v, dtm_type_dim_index(v, r->v_width));
    set_number(c, "causal", (x->flags & DTM_ATTENTION_CAUSAL) != 0);
    set_number(c, "window", (int64_t)x->number[DTM_ATTENTION_WINDOW]);
    set_number(c, "ratio", ratio);
    set_begin(c, "head_offset", q, r->heads && !dtm_fault(19) ? dtm_type_dim_index(q, r->heads) : -1);
    set_begin(c, "kv_offset", k, r->groups ? dtm_type_dim_index(k, r->groups) : -1);
    set_number(c, "queries_total", module->dims[r->queries].size);
    set_number(c, "keys_total", module->dims[r->keys].size);
    set_begin(c, "q_offset", q, dtm_fault(16) && backward ? -1 : dtm_type_dim_index(q, r->queries));
    set_begin(c, "k_offset", k, dtm_type_dim_index(k, r->keys));
    static const char *const tensors[] = {"q", "k", "v", "o", "lse", "d_o", "dq", "dk", "dv"};
    for (int i = 0; i < (backward ? 9 : 5); i++) {
        bool of_keys = i == 1 || i == 2 || i == 7 || i == 8;
        set_strides(c, tensors[i], placed[i].type, r->batch, of_keys ? r->keys : r->queries, of_keys ? r->groups : r->heads);
    }
}

/* Moves the pointers for the further dimensions of the batch: `outer` counts their combinations. */
static void write_outer(caller *c, const roles *r, const dtm_placed *placed, int count, dtm_text *out) {
    dtm_text_printf(out, "        int64_t rest = outer;\n        (void)rest;\n        void *at[%d];\n", count);
    for (int i = 0; i < count; i++) dtm_text_printf(out, "        at[%d] = a->buffers[%d];\n", i, i);
    const dtm_type_data *q = placed[0].type;
    for (int m = 0; m < r->n_more; m++) {
        const char *size = dtm_dim_size_text(c->g, &c->sizes, q, dtm_type_dim_index(q, r->more[m]));
        dtm_text_printf(out, "        const int64_t i%d = rest %% %s;\n        rest /= %s;\n", m, size, size);
        for (int i = 0; i < count; i++) {
            const dtm_type_data *type = placed[i].type;
            int index = dtm_type_dim_index(type, r->more[m]);
            if (index >= 0)
                dtm_text_printf(out, "        at[%d] = (float *)at[%d] + i%d * %s;\n", i, i, m,
                                dtm_dim_stride_text(c->g, &c->sizes, type, index));
        }
    }
}

const char *calls_outer_size(caller *c, const roles *r) {
    const dtm_type_data *q = type_of(c, c->data->operands[0]);
    dtm_product product = dtm_product_one();
    for (int m = 0; m < r->n_more; m++) dtm_product_times(c->g, &product, q, dtm_type_dim_index(q, r->more[m]));
    return dtm_size_text(c->g, &c->sizes, &product);
}

double calls_attention_scale(const caller *c, const roles *r) {
    double scale = c->data->attributes.number[DTM_ATTENTION_SCALE];
    return scale == 0 ? 1 / sqrt((double)c->g->module->dims[r->width].size) : scale;
}

void dtm_lower_attention(dtm_generator *g, dtm_op op) {
    caller c = calls_begin(g, op);
    bool backward = c.data->kind == DTM_OP_ATTENTION_BACKWARD;
    if (g->cuda) {
        dtm_cuda_attention(&c, backward);
        return;
    }
    dtm_placed placed[9];
    int count = place_all(&c, placed);
    roles r = calls_roles(&c);
    calls_fill_attention(&c, &r, placed, backward);
    double scale = calls_attention_scale(&c, &r);
    const char *name = backward ? "dtm_attention_backward" : "dtm_attention_forward", *outer = calls_outer_size(&c, &r);
    dtm_text pointers = {g->arena, NULL, 0, 0}, text = {g->arena, NULL, 0, 0};
    write_outer(&c, &r, placed, count, &pointers);
    dtm_text_printf(&text, "static dtm_attention_sizes @_sizes(const int64_t *z) {\n    dtm_attention_sizes s = {0};\n    (void)z;\n");
    dtm_text_append(&text, c.fill.data, c.fill.length);
    dtm_text_printf(&text, "    return s;\n}\nstatic int64_t @_extent(const int64_t *z) {\n"
                           "    const dtm_attention_sizes s = @_sizes(z);\n    return %s * LIBRARY(\"%s\")->extent((const int64_t *)&s);\n}\n",
                    outer, name);
    dtm_text_printf(&text, "static int64_t @_scratch_bytes(const int64_t *z) {\n    const dtm_attention_sizes s = @_sizes(z);\n"
                           "    return LIBRARY(\"%s\")->scratch_bytes((const int64_t *)&s);\n}\n", name);
    dtm_text_printf(&text, "static void @(const dtm_kernel_args *a, int64_t begin, int64_t end) {\n"
                           "    const int64_t *const z = a->sizes;\n    const dtm_attention_sizes s = @_sizes(z);\n"
                           "    const dtm_kernel_entry *const library = LIBRARY(\"%s\");\n"
                           "    const int64_t each = library->extent((const int64_t *)&s);\n    const double scale = %.17g;\n"
                           "    for (int64_t outer = each ? begin / each : 0; outer * each < end; outer++) {\n", name, scale);
    dtm_text_append(&text, pointers.data, pointers.length);
    dtm_text_printf(&text, "        const dtm_kernel_args inner = {at, (const int64_t *)&s, &scale, a->scratch, a->error};\n"
                           "        const int64_t low = begin > outer * each ? begin - outer * each : 0;\n"
                           "        const int64_t high = end < (outer + 1) * each ? end - outer * each : each;\n"
                           "        library->run(&inner, low, high);\n    }\n}\n");
    uint32_t buffers[9], kernel = dtm_kernel_index(g, backward ? "attention_backward" : "attention", text.data);
    for (int i = 0; i < count; i++) buffers[i] = placed[i].buffer;
    pack_operands(&c, placed);
    dtm_emit_launch(g, op, DTM_PLAN_ATTENTION, kernel, buffers, (size_t)count, c.sizes.items, c.sizes.count);
    unpack_results(&c, placed);
}

/* ---- rope ---- */

static void number_text(dtm_text *out, double number) { dtm_text_printf(out, "%.17g", number); }

/* angle i of a position p is p times base^(-2 i / part), stretched as the scaling says: linear divides by the factor,
 * llama3 divides long waves by it, keeps short ones and blends between. */
static void write_frequency(const double *x, int64_t part, dtm_text *out) {
    dtm_text_printf(out, "        double frequency = pow(");
    number_text(out, x[DTM_ROPE_BASE]);
    dtm_text_printf(out, ", -2.0 * (double)i / %lld.0);\n", (long long)part);
    if (x[DTM_ROPE_SCALE_KIND] == 1) dtm_text_printf(out, "        frequency /= %.17g;\n", x[DTM_ROPE_FACTOR]);
    if (x[DTM_ROPE_SCALE_KIND] != 2) return;
    dtm_text_printf(out,
                    "        const double turns = %.17g * frequency / (2 * 3.14159265358979323846);\n"
                    "        const double blend = (turns - %.17g) / (%.17g - %.17g);\n"
                    "        if (turns < %.17g) frequency /= %.17g;\n"
                    "        else if (turns <= %.17g) frequency = (1 - blend) * frequency / %.17g + blend * frequency;\n",
                    x[DTM_ROPE_ORIGINAL], x[DTM_ROPE_LOW], x[DTM_ROPE_HIGH], x[DTM_ROPE_LOW], x[DTM_ROPE_LOW],
                    x[DTM_ROPE_FACTOR], x[DTM_ROPE_HIGH], x[DTM_ROPE_FACTOR]);
}

/* Positions of a microbatch: the table is then made anew for each. */
static bool changes_in_time(const dtm_generator *g, const dtm_type_data *x, int at) {
    for (int s = 0; s < x->layout[at].count; s++)
        if (g->module->settings.mesh.axes[x->layout[at].splits[s].axis].time) return true;
    return false;
}

static uint32_t table_kernel(caller *c, const dtm_type_data *x, int at, int64_t part) {
    dtm_generator *g = c->g;
    dtm_text text = {g->arena, NULL, 0, 0};
    const char *positions = dtm_dim_size_text(g, &c->sizes, x, at), *first = dtm_fault(15) ? "0" : dtm_dim_begin_text(g, &c->sizes, x, at);
    dtm_text_printf(&text, "static int64_t @_extent(const int64_t *z) {\n    (void)z;\n    return %s;\n}\n"
                           "static int64_t @_scratch_bytes(const int64_t *z) {\n    return (void)z, 0;\n}\n"
                           "static void @(const dtm_kernel_args *a, int64_t begin, int64_t end) {\n"
                           "    float *const table = a->buffers[0];\n    const int64_t *const z = a->sizes;\n    (void)z;\n"
                           "    for (int64_t i = 0; i < %lld; i++) {\n", positions, (long long)(part / 2));
    write_frequency(c->data->attributes.number, part, &text);
    dtm_text_printf(&text, "        for (int64_t p = begin; p < end; p++) {\n"
                           "            const double angle = (double)(%s + p) * frequency;\n"
                           "            table[p * %lld + i] = (float)cos(angle);\n"
                           "            table[p * %lld + %lld + i] = (float)sin(angle);\n        }\n    }\n}\n",
                    first, (long long)part, (long long)part, (long long)(part / 2));
    return dtm_kernel_index(g, "rope_table", text.data);
}

/* Made once, before the first step: the instruction goes to the beginning of the plan. */
static void emit_table(dtm_generator *g, dtm_op op, uint32_t table, int64_t part) {
    caller c = calls_begin(g, op);
    const dtm_type_data *x = type_of(&c, c.data->operands[0]);
    int at = dtm_type_dim_index(x, c.data->attributes.at);
    uint32_t kernel = g->cuda ? dtm_cuda_rope_table(&c, at, part) : table_kernel(&c, x, at, part);
    dtm_emit_launch(g, op, DTM_PLAN_HOST, kernel, &table, 1, c.sizes.items, c.sizes.count);
    if (changes_in_time(g, x, at)) return;
    dtm_plan_instruction made = g->instructions[--g->n_instructions];
    g->pending += made.seconds; /* the step's, not the table's */
    made.seconds = 0;
    DTM_PUSH(g->arena, g->start, g->n_start, g->cap_start, made);
}

/* The buffer of the table, and what makes it, where this is the first that uses it. */
static uint32_t table_of(dtm_generator *g, dtm_op op, int64_t part) {
    const dtm_op_data *data = dtm_op_get(g->module, op);
    const dtm_type_data *x = dtm_value_type(g->module, data->operands[0]);
    int at = dtm_type_dim_index(x, data->attributes.at);
    bool first = false;
    int64_t offset = dtm_rope_table_offset(g->module, op, &first) + g->workspace_bytes;
    uint32_t table = dtm_buffer_workspace(g, "rope.table", DTM_PLAN_F32, offset, dtm_block_max(g->module, x, at) * part);
    if (first || changes_in_time(g, x, at)) emit_table(g, op, table, part);
    return table;
}

void dtm_lower_rope(dtm_generator *g, dtm_op op) {
    caller c = calls_begin(g, op);
    const dtm_attributes *attributes = &c.data->attributes;
    int64_t part = (int64_t)attributes->number[DTM_ROPE_PART], width = g->module->dims[attributes->over[0]].size;
    if (!part) part = width;
    uint32_t table = table_of(g, op, part);
    if (g->cuda) {
        dtm_cuda_rope(&c, part, table);
        return;
    }
    dtm_placed placed[9];
    place_all(&c, placed);
    const dtm_type_data *x = placed[0].type;
    int at = dtm_type_dim_index(x, attributes->at), last = x->rank - 1;
    dtm_product batch = dtm_product_one(), heads = dtm_product_one();
    for (int i = 0; i < at; i++) dtm_product_times(g, &batch, x, i);
    for (int i = at + 1; i < last; i++) dtm_product_times(g, &heads, x, i);
    set(&c, "batch", dtm_size_text(g, &c.sizes, &batch));
    set_size(&c, "positions", x, at);
    set(&c, "heads", dtm_size_text(g, &c.sizes, &heads));
    set_number(&c, "width", width);
    set_number(&c, "part", part);
    set_number(&c, "interleaved", (attributes->flags & DTM_ROPE_INTERLEAVED) != 0);
    set_number(&c, "inverse", (attributes->flags & DTM_ROPE_INVERSE) != 0);
    const char *position = dtm_dim_stride_text(g, &c.sizes, x, at), *sequence = at ? dtm_dim_stride_text(g, &c.sizes, x, at - 1) : "0";
    set(&c, "x_batch", sequence), set(&c, "out_batch", sequence);
    set(&c, "x_position", position), set(&c, "out_position", position);
    set_number(&c, "x_head", width), set_number(&c, "out_head", width);
    dtm_text text = {g->arena, NULL, 0, 0};
    dtm_text_printf(&text, "static dtm_rope_sizes @_sizes(const int64_t *z) {\n    dtm_rope_sizes s = {0};\n    (void)z;\n");
    dtm_text_append(&text, c.fill.data, c.fill.length);
    dtm_text_printf(&text, "    return s;\n}\nstatic int64_t @_extent(const int64_t *z) {\n    const dtm_rope_sizes s = @_sizes(z);\n"
                           "    return LIBRARY(\"dtm_rope\")->extent((const int64_t *)&s);\n}\n"
                           "static int64_t @_scratch_bytes(const int64_t *z) {\n    return (void)z, 0;\n}\n"
                           "static void @(const dtm_kernel_args *a, int64_t begin, int64_t end) {\n"
                           "    const dtm_rope_sizes s = @_sizes(a->sizes);\n    dtm_kernel_args inner = *a;\n"
                           "    inner.sizes = (const int64_t *)&s;\n    LIBRARY(\"dtm_rope\")->run(&inner, begin, end);\n}\n");
    uint32_t kernel = dtm_kernel_index(g, "rope", text.data);
    uint32_t buffers[3] = {placed[0].buffer, table, placed[1].buffer};
    pack_operands(&c, placed);
    dtm_emit_launch(g, op, DTM_PLAN_ROWS, kernel, buffers, 3, c.sizes.items, c.sizes.count);
    unpack_results(&c, placed);
}
