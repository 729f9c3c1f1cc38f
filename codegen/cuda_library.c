/* Operators that become kernels of templates (kernels/cuda) where the target is CUDA, as calls.c and move.c make them calls of the
 * library for CPUs: gather, scatter, rope, attention. A template is told where things lie by functions of what a thread has; sizes
 * that are the same on all ranks are numbers there. */
#include "codegen/calls.h"
#include "ir/fault.h"

#include <math.h>
#include <string.h>

enum { THREADS = 256, SORTERS = 512 };

static const dtm_type_data *type_of(const caller *c, dtm_value v) { return dtm_value_type(c->g->module, v); }

static const char *device_type(const dtm_type_data *type) {
    switch ((dtm_dtype)type->dtype) {
    case DTM_F32: return "float";
    case DTM_BF16: return "dtm_bf16";
    case DTM_F16: return "dtm_f16";
    case DTM_I32: return "int";
    default: return "unsigned char";
    }
}

static const char *size(caller *c, const dtm_type_data *type, int index) { return dtm_dim_size_text(c->g, &c->sizes, type, index); }

static const char *elements(caller *c, const dtm_type_data *type, dtm_dim but) {
    dtm_product product = dtm_product_one();
    for (int i = 0; i < type->rank; i++)
        if (type->dims[i] != but) dtm_product_times(c->g, &product, type, i);
    return dtm_size_text(c->g, &c->sizes, &product);
}

/* `const dtm_i64 i7 = ..` for each dimension but one from the flat number of an element of the others. */
static void indices(caller *c, const dtm_type_data *type, dtm_dim but, const char *flat, dtm_text *out) {
    dtm_text_printf(out, "        dtm_i64 rest = %s;\n", flat);
    for (int i = type->rank - 1; i >= 0; i--) {
        if (type->dims[i] == but) continue;
        dtm_text_printf(out, "        const dtm_i64 i%u = rest %% %s;\n        rest /= %s;\n", type->dims[i], size(c, type, i), size(c, type, i));
    }
}

/* The sum of the terms of those dimensions that are in (or not in) `of`; `but` never. */
static const char *address(caller *c, const dtm_type_data *type, const dtm_type_data *of, bool in, dtm_dim but) {
    dtm_text text = {c->g->arena, NULL, 0, 0};
    for (int i = 0; i < type->rank; i++) {
        if (type->dims[i] == but || (of && (dtm_type_dim_index(of, type->dims[i]) >= 0) != in)) continue;
        dtm_text_printf(&text, "%si%u * %s", text.length ? " + " : "", type->dims[i], dtm_dim_stride_text(c->g, &c->sizes, type, i));
    }
    return text.length ? text.data : "0";
}

/* How many neighbours along the last dimension of both, which must not be one of `ids`, a thread may take at once. */
static int vector_of(const caller *c, const dtm_type_data *a, const dtm_type_data *b, const dtm_type_data *ids, dtm_dim rows) {
    int64_t n;
    if (!a->rank || !b->rank) return 1;
    dtm_dim last = a->dims[a->rank - 1];
    if (last != b->dims[b->rank - 1] || last == rows || dtm_type_dim_index(ids, last) >= 0) return 1;
    if (!dtm_extent_is_even(c->g, a, a->rank - 1, &n)) return 1;
    int width = 16 / (int)dtm_dtype_bytes((dtm_dtype)a->dtype);
    while (width > 1 && n % width) width /= 2;
    return width;
}

static const char *blocks_of(caller *c, const char *count, int each) {
    return dtm_arena_printf(c->g->arena, "((int64_t)%s / %d + %d) / %d", count, each, THREADS - 1, THREADS);
}

static void emit(caller *c, const char *name, dtm_cuda_text *text, dtm_plan_category category, const uint32_t *buffers, size_t count, uint64_t read_only) {
    uint32_t kernel = dtm_cuda_kernel_index(c->g, name, text, count, c->sizes.count);
    c->g->kernels[kernel].read_only = read_only;
    dtm_emit_launch(c->g, c->op, category, kernel, buffers, count, c->sizes.items, c->sizes.count);
}

/* ---- gather and scatter ---- */

static void lower_gather(caller *c) {
    dtm_generator *g = c->g;
    const dtm_value *values = c->data->operands;
    const dtm_type_data *table = type_of(c, values[0]), *ids = type_of(c, values[1]), *out = type_of(c, c->data->results[0]);
    dtm_dim v = c->data->attributes.over[0];
    int at = dtm_type_dim_index(table, v), width = vector_of(c, out, table, ids, v);
    int64_t vocabulary = g->module->dims[v].size;
    const char *type = device_type(table), *count = elements(c, out, 0);
    dtm_text place = {g->arena, NULL, 0, 0}, text = {g->arena, NULL, 0, 0};
    indices(c, out, 0, dtm_arena_printf(g->arena, "v * %d", width), &place);
    dtm_text_printf(&place, "        return dtm_gather_place{%s, %s, %s, v * %d};\n", address(c, ids, NULL, true, 0), address(c, table, NULL, true, v),
                    dtm_dim_stride_text(g, &c->sizes, table, at), width);
    dtm_text_printf(&text, "#include \"kernels/cuda/gather.cuh\"\nKERNEL(@, %d) {\n    dtm_begin(p.mark);\n    const tuple &t = p.t[TUPLE];\n    const dtm_i64 *const z = t.z;\n    (void)z;\n"
                           "    const dtm_gather_rows rows = {%s, %s, %lld};\n"
                           "    dtm_gather<%d>((const %s *)t.b[0], (const int *)t.b[1], (%s *)t.b[2], %s / %d, rows, p.error, [&](dtm_i64 v) {\n",
                    THREADS, size(c, table, at), dtm_dim_begin_text(g, &c->sizes, table, at), (long long)vocabulary, width, type, type, count, width);
    dtm_text_append(&text, place.data, place.length);
    dtm_text_printf(&text, "    });\n}\n");
    dtm_cuda_text kernel = {.device = text.data, .n_launches = 1, .launches = {{"", THREADS, blocks_of(c, count, width), NULL}}};
    uint32_t buffers[3] = {dtm_buffer_index(g, values[0]), dtm_buffer_index(g, values[1]), dtm_buffer_index(g, c->data->results[0])};
    emit(c, "gather", &kernel, DTM_PLAN_LOOKUP, buffers, 3, 3);
    dtm_plan_instruction *made = &g->instructions[g->n_instructions - 1];
    made->kernel.error = dtm_arena_printf(g->arena, "outside %s = %lld", dtm_dim_name(g->module, v), (long long)vocabulary);
    made->kernel.error_buffer = buffers[1];
}

/* Bits that hold the rows of any rank, and one number more. */
static int bits_of_rows(int64_t rows) {
    int bits = 1;
    while (rows >> bits) bits++;
    return bits;
}

/* Dimensions that table and ids have both, as of batches, are a part of the row's number: i.e. (shared) * rows + row. */
static const char *shared_number(caller *c, const dtm_type_data *ids, const dtm_type_data *out) {
    const char *number = NULL;
    for (int i = 0; i < ids->rank; i++) {
        if (dtm_type_dim_index(out, ids->dims[i]) < 0) continue;
        number = number ? dtm_arena_printf(c->g->arena, "(%s) * %s + i%u", number, size(c, ids, i), ids->dims[i])
                        : dtm_arena_printf(c->g->arena, "i%u", ids->dims[i]);
    }
    return number;
}

static void lower_scatter(caller *c) {
    dtm_generator *g = c->g;
    dtm_arena *arena = g->arena;
    const dtm_value *values = c->data->operands;
    const dtm_type_data *ids = type_of(c, values[0]), *dy = type_of(c, values[1]), *out = type_of(c, c->data->results[0]);
    dtm_dim v = c->data->attributes.over[0];
    int at = dtm_type_dim_index(out, v), width = vector_of(c, dy, out, ids, v);
    const char *tokens = elements(c, ids, 0), *count = elements(c, out, 0), *held = size(c, out, at), *shared = shared_number(c, ids, out);
    dtm_product rows = dtm_product_one();
    int64_t most = 1;
    for (int i = 0; i < out->rank; i++)
        if (i == at || dtm_type_dim_index(ids, out->dims[i]) >= 0) {
            dtm_product_times(g, &rows, out, i);
            most *= dtm_block_max(g->module, out, i);
        }
    const char *sorter = dtm_arena_printf(arena, "dtm_scatter<%d, %d>", bits_of_rows(most), SORTERS);
    const char *more = shared ? dtm_arena_printf(arena, "(%s) * %s + ", shared, held) : "";
    dtm_text place = {arena, NULL, 0, 0}, token = place, key = place, text = place;
    indices(c, out, 0, dtm_arena_printf(arena, "v * %d", width), &place);
    dtm_text_printf(&place, "        row = %si%u, from = %s, to = v * %d;\n", more, v, address(c, dy, ids, false, 0), width);
    indices(c, ids, 0, "token", &token);
    dtm_text_printf(&token, "        return (dtm_i64)(%s);\n", address(c, dy, ids, true, 0));
    if (shared) indices(c, ids, 0, "token", &key);
    dtm_text_printf(&key, "        const dtm_i64 row = ((const int *)t.b[0])[token] - (dtm_i64)%s;\n        return row >= 0 && row < %s ? %srow : -1;\n",
                    dtm_dim_begin_text(g, &c->sizes, out, at), held, more);
    const char *open = "    const tuple &t = p.t[TUPLE];\n    const dtm_i64 *const z = t.z;\n    (void)z;\n";
    dtm_text_printf(&text, "#include \"kernels/cuda/scatter.cuh\"\nKERNEL(@_order, %d) {\n    dtm_begin(p.mark);\n%s    if (blockIdx.x) return;\n"
                           "    %s::order(%s, %s, t.scratch, [&](dtm_i64 token) {\n",
                    SORTERS, open, sorter, tokens, dtm_size_text(g, &c->sizes, &rows));
    dtm_text_append(&text, key.data, key.length);
    dtm_text_printf(&text, "    });\n}\nKERNEL(@_sum, %d) {\n    dtm_begin(p.mark);\n%s    %s::sum<%d>(%s, t.scratch, (const %s *)t.b[1], (%s *)t.b[2], %s / %d,\n"
                           "    [&](dtm_i64 v, dtm_i64 &row, dtm_i64 &from, dtm_i64 &to) {\n",
                    THREADS, open, sorter, width, tokens, device_type(dy), device_type(out), count, width);
    dtm_text_append(&text, place.data, place.length);
    dtm_text_printf(&text, "    }, [&](dtm_i64 token) {\n");
    dtm_text_append(&text, token.data, token.length);
    dtm_text_printf(&text, "    });\n}\n");
    dtm_cuda_text kernel = {.device = text.data, .n_launches = 2, .scratch = dtm_arena_printf(arena, "16 * (int64_t)%s", tokens),
                            .launches = {{"_order", SORTERS, "1", NULL}, {"_sum", THREADS, blocks_of(c, count, width), NULL}}};
    uint32_t buffers[3] = {dtm_buffer_index(g, values[0]), dtm_buffer_index(g, values[1]), dtm_buffer_index(g, c->data->results[0])};
    emit(c, "scatter", &kernel, DTM_PLAN_LOOKUP, buffers, 3, 3);
}

/* ---- rope ---- */

/* Of angle i, in multiples of 2^-64 turns a position (calls.c writes the same formula as C). */
static uint64_t turns_of(const double *x, int64_t part, int64_t i) {
    const double circle = 2 * 3.14159265358979323846;
    double frequency = pow(x[DTM_ROPE_BASE], -2.0 * (double)i / (double)part);
    if (x[DTM_ROPE_SCALE_KIND] == 1) frequency /= x[DTM_ROPE_FACTOR];
    if (x[DTM_ROPE_SCALE_KIND] == 2) {
        double turns = x[DTM_ROPE_ORIGINAL] * frequency / circle;
        double blend = (turns - x[DTM_ROPE_LOW]) / (x[DTM_ROPE_HIGH] - x[DTM_ROPE_LOW]);
        if (turns < x[DTM_ROPE_LOW]) frequency /= x[DTM_ROPE_FACTOR];
        else if (turns <= x[DTM_ROPE_HIGH]) frequency = (1 - blend) * frequency / x[DTM_ROPE_FACTOR] + blend * frequency;
    }
    return (uint64_t)ldexp(fmod(frequency / circle, 1), 64);
}

uint32_t dtm_cuda_rope_table(caller *c, int at, int64_t part) {
    dtm_generator *g = c->g;
    const dtm_type_data *x = type_of(c, c->data->operands[0]);
    const char *positions = size(c, x, at), *first = dtm_fault(15) ? "0" : dtm_dim_begin_text(g, &c->sizes, x, at);
    dtm_text text = {g->arena, NULL, 0, 0};
    dtm_text_printf(&text, "#include \"kernels/cuda/rope.cuh\"\nstatic __device__ const dtm_u64 @_frequencies[] = {");
    for (int64_t i = 0; i < part / 2; i++)
        dtm_text_printf(&text, "%s%lluull,", i % 6 ? " " : "\n    ", (unsigned long long)turns_of(c->data->attributes.number, part, i));
    dtm_text_printf(&text, "\n};\nKERNEL(@, %d) {\n    dtm_begin(p.mark);\n    const tuple &t = p.t[TUPLE];\n    const dtm_i64 *const z = t.z;\n    (void)z;\n"
                           "    dtm_rope_table((float *)t.b[0], %s, %s, %lld, @_frequencies);\n}\n", THREADS, positions, first, (long long)part);
    const char *blocks = dtm_arena_printf(g->arena, "(%s * (int64_t)%lld + %d) / %d", positions, (long long)(part / 2), THREADS - 1, THREADS);
    dtm_cuda_text kernel = {.device = text.data, .n_launches = 1, .launches = {{"", THREADS, blocks, NULL}}};
    return dtm_cuda_kernel_index(g, "rope_table", &kernel, 1, c->sizes.count);
}

void dtm_cuda_rope(caller *c, int64_t part, uint32_t table) {
    dtm_generator *g = c->g;
    const dtm_attributes *attributes = &c->data->attributes;
    const dtm_type_data *x = type_of(c, c->data->operands[0]), *out = type_of(c, c->data->results[0]);
    dtm_dim turned = attributes->over[0];
    int64_t width = g->module->dims[turned].size;
    int vector = x->dims[x->rank - 1] == turned ? 4 : 1, along = dtm_type_dim_index(x, turned);
    while (vector > 1 && (part / 2 % vector || (width - part) % vector || width % vector)) vector /= 2;
    const char *rows = elements(c, x, turned);
    dtm_text text = {g->arena, NULL, 0, 0};
    dtm_text_printf(&text, "#include \"kernels/cuda/rope.cuh\"\nKERNEL(@, %d) {\n    dtm_begin(p.mark);\n    const tuple &t = p.t[TUPLE];\n    const dtm_i64 *const z = t.z;\n    (void)z;\n"
                           "    dtm_rope<%d, %s>((const %s *)t.b[0], (const float *)t.b[1], (%s *)t.b[2], %s, %lld, %lld, %s, %s, [&](dtm_i64 row) {\n",
                    THREADS, vector, attributes->flags & DTM_ROPE_INTERLEAVED ? "true" : "false", device_type(x), device_type(out), rows, (long long)width,
                    (long long)part, dtm_dim_stride_text(g, &c->sizes, x, along), attributes->flags & DTM_ROPE_INVERSE ? "-1.f" : "1.f");
    indices(c, x, turned, "row", &text);
    dtm_text_printf(&text, "        return dtm_rope_place{i%u, %s};\n    });\n}\n", attributes->at, address(c, x, NULL, true, turned));
    const char *blocks = dtm_arena_printf(g->arena, "((int64_t)%s * %lld + %d) / %d", rows, (long long)((part / 2 + width - part) / vector), THREADS - 1, THREADS);
    dtm_cuda_text kernel = {.device = text.data, .n_launches = 1, .launches = {{"", THREADS, blocks, NULL}}};
    uint32_t buffers[3] = {dtm_buffer_index(g, c->data->operands[0]), table, dtm_buffer_index(g, c->data->results[0])};
    emit(c, "rope", &kernel, DTM_PLAN_ROWS, buffers, 3, 3);
}

/* ---- attention ---- */

enum { TILE = 64, MOST_WIDTH = 256 };

/* Of which template, and with how many threads: by the tensor cores (attention_halves.cuh) where all tensors are of one type of halves
 * and their rows can be read by 16 bytes, else in f32 (attention.cuh). The widths are those of the template. */
typedef struct attention {
    caller *c;
    roles r;
    dtm_placed placed[9];
    int count;
    bool halves;
    int threads;
    int64_t width, v_width, wider;
    const char *outer, *scales, *unit; /* scale in units of log2, and itself */
} attention;

static bool of_values(int tensor) { return tensor == 2 || tensor == 3 || tensor == 5 || tensor == 8; }

static bool may_use_tensor_cores(const attention *a) {
    for (int i = 0; i < a->count; i++) {
        const dtm_type_data *type = a->placed[i].type;
        int64_t width;
        if (i == 4) continue;
        if (!dtm_dtype_is_half((dtm_dtype)type->dtype) || type->dtype != a->placed[0].type->dtype) return false;
        if (type->dims[type->rank - 1] != (of_values(i) ? a->r.v_width : a->r.width)) return false;
        if (!dtm_extent_is_even(a->c->g, type, type->rank - 1, &width) || width % 8) return false;
    }
    return a->placed[4].type->dtype == DTM_F32;
}

static int64_t padded(int64_t width, int64_t to) { return (width + to - 1) / to * to; }

static void choose_template(attention *a) {
    a->wider = a->width > a->v_width ? a->width : a->v_width;
    a->halves = may_use_tensor_cores(a);
    a->threads = a->halves ? 128 : THREADS;
    if (!a->halves) return;
    a->width = padded(a->width, a->wider > 128 ? 32 : 16);
    a->v_width = padded(a->v_width, a->wider > 128 ? 32 : 16);
    a->wider = a->width > a->v_width ? a->width : a->v_width;
}

/* As the template has it, which the source asserts. */
static int64_t shared_bytes(const attention *a, bool forward) {
    int64_t step = a->wider > 128 ? 32 : 64, back = a->wider > 64 ? 32 : 64, both = a->width + a->v_width + 16;
    return forward ? (TILE * (a->width + 8) + 2 * step * both) * 2 : (TILE + 2 * back) * both * 2;
}

/* s, and pointers b0, b1, .. moved for the further dimensions of the batch, `per` blocks each. */
static void open_attention(const attention *a, const char *suffix, const char *per, dtm_text *out) {
    caller *c = a->c;
    const dtm_type_data *q = a->placed[0].type;
    dtm_text_printf(out, "KERNEL(@%s, %d) {\n    dtm_begin(p.mark);\n    const tuple &t = p.t[TUPLE];\n    const dtm_i64 *const z = t.z;\n    const dtm_attention_sizes s = @_sizes(z);\n"
                         "    const dtm_i64 each = %s;\n    if (blockIdx.x >= %s * each) return;\n"
                         "    const dtm_i64 outer = blockIdx.x / each, block = blockIdx.x - outer * each;\n", suffix, a->threads, per, a->outer);
    for (int i = 0; i < a->count; i++) {
        const char *type = device_type(a->placed[i].type);
        dtm_text_printf(out, "    %s *b%d = (%s *)t.b[%d];\n", type, i, type, i);
    }
    dtm_text_printf(out, "    dtm_i64 rest = outer;\n");
    for (int m = 0; m < a->r.n_more; m++) {
        const char *n = size(c, q, dtm_type_dim_index(q, a->r.more[m]));
        dtm_text_printf(out, "    const dtm_i64 i%d = rest %% %s;\n    rest /= %s;\n", m, n, n);
        for (int i = 0; i < a->count; i++) {
            int index = dtm_type_dim_index(a->placed[i].type, a->r.more[m]);
            if (index >= 0) dtm_text_printf(out, "    b%d += i%d * %s;\n", i, m, dtm_dim_stride_text(c->g, &c->sizes, a->placed[i].type, index));
        }
    }
    dtm_text_printf(out, "    (void)z, (void)rest;\n");
}

/* Ends it with the call of the template's function; `parts` is its parameter in f32. */
static void call_template(const attention *a, const char *function, int parts, bool forward, const char *arguments, dtm_text *out) {
    if (!a->halves) {
        dtm_text_printf(out, "    __shared__ dtm_attention_shared shared;\n    dtm_attention_%s<%d>(s, %s, block, shared);\n}\n", function, parts, arguments);
        return;
    }
    const char *type = device_type(a->placed[0].type);
    dtm_text_printf(out, "    extern __shared__ __align__(16) unsigned char shared[];\n    using attention = dtm_attention_halves<%s, %lld, %lld>;\n"
                         "    static_assert(attention::%s == %lld, \"shared memory\");\n    attention::%s(s, %s, block, (%s *)shared);\n}\n",
                    type, (long long)a->width, (long long)a->v_width, forward ? "forward_bytes" : "backward_bytes", (long long)shared_bytes(a, forward),
                    function, arguments, type);
}

static void fill_width_strides(const attention *a) {
    static const char *const tensors[] = {"q", "k", "v", "o", "lse", "d_o", "dq", "dk", "dv"};
    for (int i = 0; i < a->count; i++) {
        int index = i == 4 ? -1 : dtm_type_dim_index(a->placed[i].type, of_values(i) ? a->r.v_width : a->r.width);
        dtm_text_printf(&a->c->fill, "    s.%s.w = %s;\n", tensors[i],
                        index < 0 ? "0" : dtm_dim_stride_text(a->c->g, &a->c->sizes, a->placed[i].type, index));
    }
}

static int parts_of(int64_t width, int64_t most) { return (int)(((width < most ? width : most) + TILE - 1) / TILE); }

/* The sizes that numbers of blocks are made of, as expressions of z[]. */
typedef struct counts {
    const char *batch, *heads, *groups, *queries, *keys;
} counts;

static counts counts_of(const attention *a) {
    caller *c = a->c;
    const dtm_type_data *q = a->placed[0].type, *k = a->placed[1].type;
    return (counts){.batch = a->r.batch ? size(c, q, dtm_type_dim_index(q, a->r.batch)) : "1",
                    .heads = a->r.heads ? size(c, q, dtm_type_dim_index(q, a->r.heads)) : "1",
                    .groups = a->r.groups ? size(c, k, dtm_type_dim_index(k, a->r.groups)) : "1",
                    .queries = size(c, q, dtm_type_dim_index(q, a->r.queries)),
                    .keys = size(c, k, dtm_type_dim_index(k, a->r.keys))};
}

static void write_forward(const attention *a, const counts *n, dtm_text *text, dtm_cuda_text *kernel) {
    dtm_arena *arena = a->c->g->arena;
    open_attention(a, "", "s.batch * s.heads * ((s.queries + 63) / 64)", text);
    call_template(a, "forward", parts_of(a->v_width, MOST_WIDTH), true, dtm_arena_printf(arena, "%s, b0, b1, b2, b3, b4", a->scales), text);
    const char *blocks = dtm_arena_printf(arena, "(int64_t)%s * %s * %s * ((%s + %d) / %d)", a->outer, n->batch, n->heads, n->queries, TILE - 1, TILE);
    const char *shared = a->halves ? dtm_arena_printf(arena, "%lld", (long long)shared_bytes(a, true)) : NULL;
    kernel->n_launches = 1;
    kernel->launches[0] = (dtm_cuda_launch_text){"", (uint32_t)a->threads, blocks, shared};
}

static void write_backward(const attention *a, const counts *n, dtm_text *text, dtm_cuda_text *kernel) {
    dtm_arena *arena = a->c->g->arena;
    int warps = a->threads / 32, shares = (int)((a->wider + 127) / 128);
    const char *delta = "    float *const delta = (float *)t.scratch + outer * (s.batch * s.heads * s.queries);\n";
    const char *rows = dtm_arena_printf(arena, "(int64_t)%s * %s * %s", n->batch, n->heads, n->queries);
    const char *shared = a->halves ? dtm_arena_printf(arena, "%lld", (long long)shared_bytes(a, false)) : NULL;
    open_attention(a, "_delta", dtm_arena_printf(arena, "(s.batch * s.heads * s.queries + %d) / %d", warps - 1, warps), text);
    dtm_text_printf(text, "%s    dtm_attention_delta(s, b3, b5, delta, block * %d + threadIdx.x / 32);\n}\n", delta, warps);
    open_attention(a, "_keys", dtm_arena_printf(arena, "s.batch * s.kv_heads * ((s.keys + 63) / 64) * %d", shares), text);
    dtm_text_printf(text, "%s", delta);
    call_template(a, "keys", parts_of(a->wider, 128), false, dtm_arena_printf(arena, "%s, %s, b0, b1, b2, b5, b4, delta, b7, b8", a->scales, a->unit), text);
    open_attention(a, "_queries", "s.batch * s.heads * ((s.queries + 63) / 64)", text);
    dtm_text_printf(text, "%s", delta);
    call_template(a, "queries", parts_of(a->width, MOST_WIDTH), false, dtm_arena_printf(arena, "%s, %s, b0, b1, b2, b5, b4, delta, b6", a->scales, a->unit), text);
    const char *of_delta = dtm_arena_printf(arena, "%s * ((%s + %d) / %d)", a->outer, rows, warps - 1, warps);
    const char *of_keys = dtm_arena_printf(arena, "(int64_t)%s * %s * %s * ((%s + %d) / %d) * %d", a->outer, n->batch, n->groups, n->keys, TILE - 1, TILE, shares);
    const char *of_queries = dtm_arena_printf(arena, "(int64_t)%s * %s * %s * ((%s + %d) / %d)", a->outer, n->batch, n->heads, n->queries, TILE - 1, TILE);
    kernel->n_launches = 3;
    kernel->launches[0] = (dtm_cuda_launch_text){"_delta", (uint32_t)a->threads, of_delta, NULL};
    kernel->launches[1] = (dtm_cuda_launch_text){"_keys", (uint32_t)a->threads, of_keys, shared};
    kernel->launches[2] = (dtm_cuda_launch_text){"_queries", (uint32_t)a->threads, of_queries, shared};
    kernel->scratch = dtm_arena_printf(arena, "4 * %s * %s", a->outer, rows);
}

void dtm_cuda_attention(caller *c, bool backward) {
    dtm_generator *g = c->g;
    attention a = {.c = c, .r = calls_roles(c), .count = (int)(c->data->n_operands + c->data->n_results)};
    uint32_t buffers[9];
    for (int i = 0; i < a.count; i++) {
        dtm_value v = (uint32_t)i < c->data->n_operands ? c->data->operands[i] : c->data->results[(uint32_t)i - c->data->n_operands];
        a.placed[i] = (dtm_placed){type_of(c, v), buffers[i] = dtm_buffer_index(g, v)};
    }
    const dtm_type_data *q = a.placed[0].type, *v = a.placed[2].type;
    a.width = dtm_block_max(g->module, q, dtm_type_dim_index(q, a.r.width));
    a.v_width = dtm_block_max(g->module, v, dtm_type_dim_index(v, a.r.v_width));
    choose_template(&a);
    if (a.wider > MOST_WIDTH) {
        dtm_unsupported(g, c->op, "of heads wider than 256 on a GPU");
        return;
    }
    calls_fill_attention(c, &a.r, a.placed, backward);
    fill_width_strides(&a);
    double scale = calls_attention_scale(c, &a.r);
    a.outer = calls_outer_size(c, &a.r);
    a.scales = dtm_arena_printf(g->arena, "%.9ef", scale * 1.4426950408889634);
    a.unit = dtm_arena_printf(g->arena, "%.9ef", scale);
    counts n = counts_of(&a);
    dtm_text text = {g->arena, NULL, 0, 0};
    dtm_text_printf(&text, "#include \"kernels/cuda/attention%s.cuh\"\nDTM_DEVICE dtm_attention_sizes @_sizes(const dtm_i64 *z) {\n    dtm_attention_sizes s = {};\n"
                           "    (void)z;\n", a.halves ? "_halves" : "");
    dtm_text_append(&text, c->fill.data, c->fill.length);
    dtm_text_printf(&text, "    return s;\n}\n");
    dtm_cuda_text kernel = {.device = NULL};
    if (backward) write_backward(&a, &n, &text, &kernel);
    else write_forward(&a, &n, &text, &kernel);
    kernel.device = text.data;
    emit(c, backward ? "attention_backward" : "attention", &kernel, DTM_PLAN_ATTENTION, buffers, (size_t)a.count, backward ? 0x3f : 0x7);
}

/* ---- what is done here ---- */

bool dtm_lower_cuda(dtm_generator *g, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(g->module, op);
    caller c = calls_begin(g, op);
    switch (data->kind) {
    case DTM_OP_GATHER: lower_gather(&c); return true;
    case DTM_OP_SCATTER: lower_scatter(&c); return true;
    default: return false; /* rope and attention: calls.c comes back here */
    }
}
