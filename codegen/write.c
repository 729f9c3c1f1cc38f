/* Writes plan.c: the tables as C initialisers, in an order and with names that can be read. The plan's hash is taken over
 * this text and that of the kernels. */
#include "codegen/generator.h"
#include "runtime/sha256.h"

#include <string.h>

static const char *const kinds[] = {"REPEAT", "END", "TIMELINE", "KERNEL", "MATMUL", "COLLECTIVE", "SEND", "RECEIVE", "COPY", "TERM",
                                    "SCALAR", "INPUT", "REPORT", "OUTPUT", "GRADIENT"};
static const char *const phases[] = {"FORWARD", "BACKWARD", "UPDATE"};
static const char *const categories[] = {"CONTROL",   "PRODUCT", "ATTENTION", "ROWS",      "ELEMENTWISE", "REDUCTION",
                                         "LOOKUP",    "MOVEMENT", "OPTIMIZER", "NETWORK",  "HOST"};
static const char *const dtypes[] = {"F32", "F16", "BF16", "I32", "U8", "BOOL"};
static const char *const collectives[] = {"ALL_REDUCE", "REDUCE_SCATTER", "ALL_GATHER", "ALL_TO_ALL", "BROADCAST"};
static const char *const algorithms[] = {"RING", "DOUBLING", "GATHER", "PAIRWISE", "BOTH_WAYS", "TREE"};
static const char *const inits[] = {"ZEROS", "ONES", "NORMAL", "UNIFORM", "NUMBER"};
static const char *const numbers[] = {"LEARNING_RATE", "BIAS_CORRECTION", "SEED_AND_STEP", "FILL"};
static const char *const schedules[] = {"CONSTANT", "LINEAR", "COSINE"};
static const char *const adding[] = {"SET", "ADD", "ADD_LATER"};

static void quoted(dtm_text *out, const char *text) {
    dtm_text_append(out, "\"", 1);
    for (; text && *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') dtm_text_printf(out, "\\%c", c);
        else if (c < 32 || c == 127) dtm_text_printf(out, "\\%03o", c);
        else dtm_text_append(out, text, 1);
    }
    dtm_text_append(out, "\"", 1);
}

static void number(dtm_text *out, double x) {
    if (x != x) dtm_text_printf(out, "NAN");
    else if (x - x != 0) dtm_text_printf(out, x < 0 ? "-INFINITY" : "INFINITY");
    else dtm_text_number(out, x);
}

static void list(dtm_text *out, const dtm_plan_list *items) {
    if (!items->count) {
        dtm_text_printf(out, "{0, NULL}");
        return;
    }
    dtm_text_printf(out, "{%u, (const uint32_t[]){", items->count);
    for (uint32_t i = 0; i < items->count; i++) dtm_text_printf(out, "%s%u", i ? ", " : "", items->items[i]);
    dtm_text_printf(out, "}}");
}

/* ---- tables ---- */

/* Of a pipeline there are several of each. */
static const char *table_name(const dtm_generator *g, const char *name) {
    return g->n_stages ? dtm_arena_printf(g->arena, "%s_%zu", name, g->stage) : name;
}

static void begin_table(const dtm_generator *g, dtm_text *out, const char *type, const char *name) {
    dtm_text_printf(out, "static const %s %s[] = {\n", type, table_name(g, name));
}

static void write_extents(const dtm_generator *g, dtm_text *out) {
    begin_table(g, out, "dtm_plan_extent", "extents");
    for (size_t e = 0; e < g->n_extents; e++) {
        const dtm_plan_extent *x = &g->extents[e];
        dtm_text_printf(out, "    /* %zu */ {", e);
        if (x->dim) quoted(out, x->dim);
        else dtm_text_printf(out, "NULL");
        dtm_text_printf(out, ", %lld, %u, {", (long long)x->whole, x->count);
        for (int s = 0; s < x->count; s++) dtm_text_printf(out, "%s{%u, %u}", s ? ", " : "", x->splits[s].axis, x->splits[s].unit);
        dtm_text_printf(out, x->count ? "}},\n" : "{0, 0}}},\n");
    }
    dtm_text_printf(out, "};\n\n");
}

static void write_atom(dtm_text *out, uint32_t atom) {
    if (atom == DTM_PLAN_LATER) dtm_text_printf(out, "DTM_PLAN_LATER");
    else if (atom == DTM_PLAN_COPY_NUMBER) dtm_text_printf(out, "DTM_PLAN_COPY_NUMBER");
    else if (atom & DTM_PLAN_BEGIN) dtm_text_printf(out, "DTM_PLAN_BEGIN | %u", atom & ~DTM_PLAN_BEGIN);
    else dtm_text_printf(out, "%u", atom);
}

static void write_sizes(const dtm_generator *g, dtm_text *out) {
    begin_table(g, out, "dtm_plan_size", "sizes");
    for (size_t i = 0; i < g->n_sizes; i++) {
        const dtm_plan_size *s = &g->sizes[i];
        dtm_text_printf(out, "    /* %zu */ {%lld, %lld, %u, {", i, (long long)s->base, (long long)s->factor, s->count);
        for (uint32_t a = 0; a < s->count; a++) {
            if (a) dtm_text_printf(out, ", ");
            write_atom(out, s->atoms[a]);
        }
        dtm_text_printf(out, s->count ? "}},\n" : "0}},\n");
    }
    dtm_text_printf(out, "};\n\n");
    begin_table(g, out, "dtm_plan_loop", "loops");
    for (size_t i = 0; i < g->n_loops; i++) {
        const dtm_plan_loop *l = &g->loops[i];
        dtm_text_printf(out, "    /* %zu */ {", i);
        quoted(out, l->name);
        dtm_text_printf(out, ", %lld, %u, %s", (long long)l->copies, l->parent, l->microbatch ? "true" : "false");
        if (l->first) dtm_text_printf(out, ", .first = %lld", (long long)l->first);
        dtm_text_printf(out, "},\n");
    }
    dtm_text_printf(out, "};\n\n");
}

static void write_buffers(const dtm_generator *g, dtm_text *out) {
    begin_table(g, out, "dtm_plan_buffer", "buffers");
    for (size_t i = 0; i < g->n_buffers; i++) {
        const dtm_plan_buffer *b = &g->buffers[i];
        dtm_text_printf(out, "    /* %zu */ {", i);
        quoted(out, b->name);
        dtm_text_printf(out, ", DTM_PLAN_%s, %u, {", dtypes[b->dtype], b->rank);
        for (int d = 0; d < b->rank; d++) dtm_text_printf(out, "%s%u", d ? ", " : "", b->dims[d]);
        dtm_text_printf(out, "%s}, .offset = %lld", b->rank ? "" : "0", (long long)b->offset);
        if (b->stride) dtm_text_printf(out, ", .stride = %lld", (long long)b->stride);
        dtm_text_printf(out, ", .modulus = %u", b->modulus);
        if (b->shift) dtm_text_printf(out, ", .shift = %u", b->shift);
        if (b->loop) dtm_text_printf(out, ", .loop = %u", b->loop);
        if (b->places) dtm_text_printf(out, ", .places = %u, .batch_stride = %lld", b->places, (long long)b->batch_stride);
        dtm_text_printf(out, "},\n");
    }
    dtm_text_printf(out, "};\n\n");
}

/* Of microbatches that a table has no place for nothing is asked. */
static void write_places(const dtm_generator *g, dtm_text *out) {
    if (!g->places.count) return;
    dtm_text_printf(out, "static const uint32_t %s[] = {", table_name(g, "places"));
    for (size_t i = 0; i < g->places.count * g->places.n_microbatches; i++)
        dtm_text_printf(out, "%s%u,", i % g->places.n_microbatches ? " " : "\n    ", g->places.items[i] == DTM_NO_PLACE ? 0 : g->places.items[i]);
    dtm_text_printf(out, "\n};\n\n");
}

static void write_dims(dtm_text *out, const dtm_plan_dim *dims, int rank) {
    dtm_text_printf(out, "%d, {", rank);
    for (int d = 0; d < rank; d++) {
        dtm_text_printf(out, "%s{", d ? ", " : "");
        quoted(out, dims[d].name);
        dtm_text_printf(out, ", %lld}", (long long)dims[d].size);
    }
    dtm_text_printf(out, rank ? "}" : "{NULL, 0}}");
}

static void write_weights(const dtm_generator *g, dtm_text *out) {
    begin_table(g, out, "dtm_plan_weight", "weights");
    for (size_t i = 0; i < g->n_weights; i++) {
        const dtm_plan_weight *w = &g->weights[i];
        dtm_text_printf(out, "    /* %zu */ {", i);
        quoted(out, w->path);
        dtm_text_printf(out, ", %u, ", w->buffer);
        write_dims(out, w->dims, w->rank);
        dtm_text_printf(out, ", DTM_PLAN_%s, ", inits[w->init]);
        number(out, w->a);
        dtm_text_printf(out, ", ");
        number(out, w->b);
        if (w->state) dtm_text_printf(out, ", .state = true");
        if (w->frozen) dtm_text_printf(out, ", .frozen = true");
        if (w->gradient) dtm_text_printf(out, ", .gradient = true");
        dtm_text_printf(out, ", .line = %u},\n", w->line);
    }
    if (!g->n_weights) dtm_text_printf(out, "    {NULL, 0, 0, {{NULL, 0}}, DTM_PLAN_ZEROS, 0, 0, false, false, false, 0},\n");
    dtm_text_printf(out, "};\n\n");
}

static void write_inputs(const dtm_generator *g, dtm_text *out) {
    dtm_text_printf(out, "static const dtm_plan_input inputs[] = {\n");
    for (size_t i = 0; i < g->n_inputs; i++) {
        const dtm_plan_input *x = &g->inputs[i];
        dtm_text_printf(out, "    /* %zu */ {", i);
        quoted(out, x->name);
        dtm_text_printf(out, ", DTM_PLAN_%s, ", dtypes[x->dtype]);
        write_dims(out, x->dims, x->rank);
        dtm_text_printf(out, ", %lld, %u},\n", (long long)x->limit, x->line);
    }
    if (!g->n_inputs) dtm_text_printf(out, "    {NULL, DTM_PLAN_F32, 0, {{NULL, 0}}, 0, 0},\n");
    dtm_text_printf(out, "};\n\n");
}

/* ---- instructions ---- */

static void write_matmul(dtm_text *out, const dtm_plan_matmul *m) {
    dtm_text_printf(out,
                    ".matmul = {.a = %u, .b = %u, .c = %u, .batch = %u, .m = %u, .n = %u, .k = %u, .a_batch = %u, .a_row = %u, "
                    ".a_col = %u, .b_batch = %u, .b_row = %u, .b_col = %u, .c_batch = %u, .c_row = %u, .accumulate = DTM_PLAN_%s",
                    m->a, m->b, m->c, m->batch, m->m, m->n, m->k, m->a_batch, m->a_row, m->a_col, m->b_batch, m->b_row, m->b_col,
                    m->c_batch, m->c_row, adding[m->accumulate]);
    if (m->n_outer) {
        dtm_text_printf(out, ", .n_outer = %u, .outer = {", m->n_outer);
        for (int i = 0; i < m->n_outer; i++)
            dtm_text_printf(out, "%s{%u, %u, %u, %u, %s}", i ? ", " : "", m->outer[i].count, m->outer[i].a, m->outer[i].b,
                            m->outer[i].c, m->outer[i].reduces ? "true" : "false");
        dtm_text_printf(out, "}");
    }
    dtm_text_printf(out, "}");
}

static void write_collective(dtm_text *out, const dtm_plan_collective *c) {
    dtm_text_printf(out, ".collective = {DTM_COLLECTIVE_%s, DTM_ALGORITHM_%s, DTM_PLAN_%s, %s, 0x%x, %u, (const dtm_plan_tensor[]){",
                    collectives[c->kind], algorithms[c->algorithm], dtypes[c->dtype], c->max ? "true" : "false", c->axes, c->count);
    for (uint32_t i = 0; i < c->count; i++) dtm_text_printf(out, "%s{%u, %u}", i ? ", " : "", c->tensors[i].input, c->tensors[i].output);
    dtm_text_printf(out, "}, .stage_in = %lld, .stage_out = %lld, .scratch = %lld, .stage_stride = %lld", (long long)c->stage_in, (long long)c->stage_out,
                    (long long)c->scratch, (long long)c->stage_stride);
    if (c->hands_on) dtm_text_printf(out, ", .hands_on = true");
    if (c->members.count) {
        dtm_text_printf(out, ", .members = ");
        list(out, &c->members);
    }
    dtm_text_printf(out, "}");
}

static void write_timeline(dtm_text *out, const dtm_plan_timeline *t) {
    static const char *const call_kinds[] = {"RUN", "POST", "WAIT"};
    dtm_text_printf(out, ".timeline = {%u, %u, %u, (const dtm_plan_call[]){", t->loop, t->end, t->n_calls);
    for (uint32_t i = 0; i < t->n_calls; i++) {
        const dtm_plan_call *c = &t->calls[i];
        dtm_text_printf(out, "%s\n            {DTM_PLAN_%s, %s, %s, %u, %s, %s, '%c', %u, %u, %u, %u, %u}", i ? "," : "", call_kinds[c->kind],
                        c->first ? "true" : "false", c->last ? "true" : "false", c->pair, c->later ? "true" : "false", c->fills ? "true" : "false", c->task, c->chunk, c->number, c->microbatch, c->begin,
                        c->end);
    }
    dtm_text_printf(out, t->n_calls ? "}}" : "{0}}}");
}

static void write_launch(const dtm_generator *g, dtm_text *out, const dtm_plan_launch *k) {
    dtm_text_printf(out, ".kernel = {%u /* %s */, %u, ", k->kernel,
                    dtm_string_text(g->module->context, g->kernels[k->kernel].name), k->tuples);
    list(out, &k->buffers);
    dtm_text_printf(out, ", ");
    list(out, &k->sizes);
    dtm_text_printf(out, ", ");
    list(out, &k->loops);
    if (k->error) {
        dtm_text_printf(out, ", ");
        quoted(out, k->error);
        dtm_text_printf(out, ", %u", k->error_buffer);
    } else dtm_text_printf(out, ", NULL, 0");
    dtm_text_printf(out, "}");
}

static void write_payload(const dtm_generator *g, dtm_text *out, const dtm_plan_instruction *i) {
    switch (i->kind) {
    case DTM_PLAN_TIMELINE: write_timeline(out, &i->timeline); return;
    case DTM_PLAN_REPEAT: case DTM_PLAN_END:
        dtm_text_printf(out, ".repeat = {%u, %s, %u}", i->repeat.loop, i->repeat.reversed ? "true" : "false", i->repeat.end);
        return;
    case DTM_PLAN_KERNEL: write_launch(g, out, &i->kernel); return;
    case DTM_PLAN_MATMUL: write_matmul(out, &i->matmul); return;
    case DTM_PLAN_COLLECTIVE: write_collective(out, &i->collective); return;
    case DTM_PLAN_SEND: case DTM_PLAN_RECEIVE:
        dtm_text_printf(out, ".message = {%u, %s, ", i->message.peer, i->message.backward ? "true" : "false");
        list(out, &i->message.buffers);
        dtm_text_printf(out, "}");
        return;
    case DTM_PLAN_COPY: case DTM_PLAN_TERM:
        dtm_text_printf(out, ".copy = {%u, %u, 0x%x}", i->copy.input, i->copy.output, i->copy.axes);
        return;
    case DTM_PLAN_SCALAR:
        dtm_text_printf(out, ".scalar = {DTM_PLAN_%s, %u, ", numbers[i->scalar.number], i->scalar.buffer);
        number(out, i->scalar.beta);
        dtm_text_printf(out, "}");
        return;
    default:
        dtm_text_printf(out, ".io = {%u, %u, ", i->io.index, i->io.buffer);
        if (i->io.name) quoted(out, i->io.name);
        else dtm_text_printf(out, "NULL");
        dtm_text_printf(out, "}");
    }
}

static void write_instructions(const dtm_generator *g, dtm_text *out) {
    begin_table(g, out, "dtm_plan_instruction", "instructions");
    for (size_t n = 0; n < g->n_instructions; n++) {
        const dtm_plan_instruction *i = &g->instructions[n];
        dtm_text_printf(out, "    /* %zu */ {DTM_PLAN_%s, DTM_PLAN_%s, DTM_PLAN_%s, ", n, kinds[i->kind], phases[i->phase],
                        categories[i->category]);
        quoted(out, i->name);
        if (i->file) {
            dtm_text_printf(out, ", ");
            quoted(out, i->file);
        } else dtm_text_printf(out, ", NULL");
        dtm_text_printf(out, ", %u,", i->line);
        if (i->stream) dtm_text_printf(out, " .stream = %u,", i->stream);
        if (i->records) dtm_text_printf(out, " .records = %u,", i->records);
        if (i->after) dtm_text_printf(out, " .after = %u,", i->after);
        if (i->needs) dtm_text_printf(out, " .needs = %u,", i->needs);
        if (i->last) dtm_text_printf(out, " .last = true,");
        if (i->steps) dtm_text_printf(out, " .steps = %u,", i->steps);
        if (i->waits.count) {
            dtm_text_printf(out, " .waits = ");
            list(out, &i->waits);
            dtm_text_printf(out, ",");
        }
        if (i->seconds > 0) {
            dtm_text_printf(out, " .seconds = ");
            number(out, i->seconds);
            dtm_text_printf(out, ",");
        }
        dtm_text_printf(out, "\n        ");
        write_payload(g, out, i);
        dtm_text_printf(out, "},\n");
    }
    if (!g->n_instructions) dtm_text_printf(out, "    {.kind = DTM_PLAN_END},\n");
    dtm_text_printf(out, "};\n\n");
}

/* ---- the plan ---- */

static void write_train(const dtm_generator *g, dtm_text *out) {
    const dtm_train *t = &g->module->settings.train;
    dtm_text_printf(out, "    .train = {%s, DTM_PLAN_%s, ", t->present ? "true" : "false", schedules[t->schedule]);
    double values[] = {t->peak, t->warmup, t->schedule_steps, t->floor};
    for (int i = 0; i < 4; i++) {
        number(out, values[i]);
        dtm_text_printf(out, ", ");
    }
    dtm_text text = {g->arena, NULL, 0, 0};
    if (t->optimizer == DTM_ADAMW) {
        dtm_text_printf(&text, "adamw(beta1 = ");
        dtm_text_number(&text, t->beta1);
        dtm_text_printf(&text, ", beta2 = ");
        dtm_text_number(&text, t->beta2);
        dtm_text_printf(&text, ", eps = ");
        dtm_text_number(&text, t->eps);
    } else {
        dtm_text_printf(&text, "sgd(momentum = ");
        dtm_text_number(&text, t->momentum);
    }
    dtm_text_printf(&text, ", decay = ");
    dtm_text_number(&text, t->decay);
    dtm_text_printf(&text, ")");
    dtm_text_printf(out, "%lld, %llu, ", (long long)t->steps, (unsigned long long)t->seed);
    quoted(out, text.data);
    dtm_text_printf(out, "},\n");
}

static void write_head(const dtm_generator *g, dtm_text *out) {
    const dtm_mesh *mesh = &g->module->settings.mesh;
    dtm_text_printf(out, "    .version = DTM_PLAN_FORMAT,\n    .program = ");
    quoted(out, dtm_string_text(g->module->context, g->module->name));
    dtm_text_printf(out, ",\n    .compiler = DTM_VERSION,\n    .n_axes = %u,\n    .axes = {", mesh->count);
    int64_t microbatches = 1;
    for (int a = 0; a < mesh->count; a++) {
        dtm_text_printf(out, "%s{", a ? ", " : "");
        quoted(out, dtm_string_text(g->module->context, mesh->axes[a].name));
        dtm_text_printf(out, ", %lld, %s}", (long long)mesh->axes[a].size, mesh->axes[a].time ? "true" : "false");
        if (mesh->axes[a].time) microbatches = mesh->axes[a].size;
    }
    dtm_text_printf(out, mesh->count ? "},\n" : "{NULL, 0, false}},\n");
    dtm_text_printf(out, "    .ranks = %lld,\n    .microbatches = %lld,\n", (long long)dtm_mesh_ranks(mesh), (long long)microbatches);
    if (g->step_seconds > 0) {
        dtm_text_printf(out, "    .seconds = ");
        number(out, g->step_seconds);
        dtm_text_printf(out, ",\n");
    }
    write_train(g, out);
    dtm_memory_account m = dtm_memory_account_of(g->module);
    dtm_text_printf(out, "    .arena_bytes = %lld,\n    .memory = {.weights = %lld, .gradients = %lld, .optimizer = %lld, "
                         ".activations = %lld, .workspace = %lld, .communication = %lld, .fragmentation = %lld, .peak = ",
                    (long long)g->module->arena_bytes, (long long)m.weights, (long long)m.gradients, (long long)m.optimizer,
                    (long long)m.activations, (long long)m.workspace, (long long)m.communication, (long long)m.fragmentation);
    quoted(out, dtm_peak_text(g->module, &m, false, g->arena));
    dtm_text_printf(out, "},\n");
}

static void write_tables(const dtm_generator *g, dtm_text *out) {
    write_extents(g, out);
    write_sizes(g, out);
    write_places(g, out);
    write_buffers(g, out);
    write_weights(g, out);
    write_instructions(g, out);
}

static void write_plan(const dtm_generator *g, const char *digits, dtm_text *out) {
    bool first = g->stage == 0; /* the one that the runtime knows by name */
    dtm_text_printf(out, "%sconst dtm_plan %s = {\n", first ? "" : "static ", first ? "dtm_program_plan" : table_name(g, "plan"));
    write_head(g, out);
    if (g->n_stages)
        dtm_text_printf(out, "    .stage_axis = %u,\n    .n_stages = %zu,\n    .stages = stages,\n", g->module->settings.pipeline.axis,
                        g->n_stages);
    dtm_text_printf(out, "    .hash = \"%s\",\n    .source = %lluu,\n", digits, (unsigned long long)g->module->source_hash);
    if (g->cuda) dtm_text_printf(out, "    .cuda = dtm_cuda_kernels,\n    .n_cuda = %zu,\n", g->n_kernels);
    else
        dtm_text_printf(out, "#ifdef DTM_ISAS\n    .kernels = {dtm_kernels_v1, dtm_kernels_v3, dtm_kernels_v4},\n#else\n"
                             "    .kernels = {dtm_kernels_v1, NULL, NULL},\n#endif\n");
    dtm_text_printf(out, "    .n_start = %zu,\n", g->n_start);
    dtm_text_printf(out, "    .n_kernels = %zu,\n    .n_extents = %zu,\n    .n_sizes = %zu,\n    .n_loops = %zu,\n    .n_buffers = %zu,\n"
                         "    .n_weights = %zu,\n    .n_inputs = %zu,\n    .n_instructions = %zu,\n",
                    g->n_kernels, g->n_extents, g->n_sizes, g->n_loops, g->n_buffers, g->n_weights, g->n_inputs, g->n_instructions);
    static const char *const tables[] = {"extents", "sizes", "loops", "buffers", "weights", "instructions"};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        dtm_text_printf(out, "    .%s = %s,\n", tables[t], table_name(g, tables[t]));
    if (g->places.count) dtm_text_printf(out, "    .n_places = %zu,\n    .places = %s,\n", g->places.count, table_name(g, "places"));
    dtm_text_printf(out, "    .inputs = inputs,\n};\n");
}

static void write_digest(const dtm_text *text, char digits[65]) {
    unsigned char digest[32];
    dtm_sha256(text->data, text->length, digest);
    for (int i = 0; i < 32; i++) snprintf(digits + 2 * i, 3, "%02x", digest[i]);
}

void dtm_write_plans(dtm_generator *all, size_t count, dtm_text *out) {
    dtm_text whole = {all->arena, NULL, 0, 0}, tables = {all->arena, NULL, 0, 0};
    write_inputs(all, &tables);
    for (size_t i = 0; i < count; i++) write_tables(&all[i], &tables);
    dtm_text_append(&whole, tables.data, tables.length);
    for (size_t i = 0; i < count; i++) write_head(&all[i], &whole);
    if (all->cuda) dtm_write_cuda_kernels(all, count, &whole);
    else dtm_write_kernels(all, &whole);
    char digits[65];
    write_digest(&whole, digits);
    dtm_text_printf(out, "/* The plan of %s, written by dtmc. runtime/plan.h says what it means. */\n"
                         "#include \"runtime/plan.h\"\n\n#include <math.h>\n#include <stddef.h>\n\n"
                         "#ifndef DTM_VERSION\n#define DTM_VERSION \"\"\n#endif\n\n",
                    dtm_string_text(all->module->context, all->module->name));
    dtm_text_printf(out, "%s", all->cuda ? "extern const dtm_plan_cuda_kernel dtm_cuda_kernels[];\n\n"
                                         : "extern const dtm_plan_kernel dtm_kernels_v1[];\n"
                                           "#ifdef DTM_ISAS\nextern const dtm_plan_kernel dtm_kernels_v3[], dtm_kernels_v4[];\n#endif\n\n");
    dtm_text_append(out, tables.data, tables.length);
    if (all->n_stages) {
        dtm_text_printf(out, "static const dtm_plan");
        for (size_t i = 1; i < count; i++) dtm_text_printf(out, "%s plan_%zu", i > 1 ? "," : "", i);
        dtm_text_printf(out, "%s\nstatic const dtm_plan *const stages[] = {&dtm_program_plan", count > 1 ? ";" : " *none;");
        for (size_t i = 1; i < count; i++) dtm_text_printf(out, ", &plan_%zu", i);
        dtm_text_printf(out, "};\n\n");
    }
    for (size_t i = 0; i < count; i++) write_plan(&all[i], digits, out);
}

/* ---- kernels.c ---- */

static uint64_t fnv(const char *text) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

static void write_kernel(const dtm_generator *g, const dtm_kernel_text *kernel, dtm_text *out) {
    const char *name = dtm_string_text(g->module->context, kernel->name);
    for (const char *c = dtm_string_text(g->module->context, kernel->body); *c; c++) {
        if (*c == '@') dtm_text_printf(out, "%s", name);
        else dtm_text_append(out, c, 1);
    }
    dtm_text_append(out, "\n", 1);
}

void dtm_write_kernels(dtm_generator *g, dtm_text *out) {
    dtm_text_printf(out, "/* Kernels of %s, written by dtmc; compiled once for each instruction set (DTM_ISA = v1, v3, v4). */\n"
                         "#include \"kernels/cpu/library.h\"\n#include \"kernels/cpu/prelude.h\"\n#include \"kernels/cpu/random.h\"\n"
                         "#include \"kernels/cpu/sizes.h\"\n#include \"runtime/plan.h\"\n\n#include <math.h>\n\n"
                         "#ifndef DTM_ISA\n#define DTM_ISA v1\n#endif\n"
                         "#define DTM_JOIN(a, b) a##b\n#define DTM_TABLE(isa) DTM_JOIN(dtm_kernels_, isa)\n"
                         "enum { level_v1 = 1, level_v3 = 3, level_v4 = 4 };\n#define DTM_LEVEL(isa) DTM_JOIN(level_, isa)\n"
                         "#define LIBRARY(name) dtm_kernel_find_at(DTM_LEVEL(DTM_ISA), name)\n\n",
                    dtm_string_text(g->module->context, g->module->name));
    for (size_t k = 0; k < g->n_kernels; k++) write_kernel(g, &g->kernels[k], out);
    dtm_text_printf(out, "extern const dtm_plan_kernel DTM_TABLE(DTM_ISA)[];\nconst dtm_plan_kernel DTM_TABLE(DTM_ISA)[] = {\n");
    for (size_t k = 0; k < g->n_kernels; k++) {
        const char *name = dtm_string_text(g->module->context, g->kernels[k].name);
        const char *body = dtm_string_text(g->module->context, g->kernels[k].body);
        dtm_text_printf(out, "    {\"%s\", %s, %s_extent, %s_scratch_bytes, 0x%016llx},\n", name, name, name, name,
                        (unsigned long long)fnv(body));
    }
    if (!g->n_kernels) dtm_text_printf(out, "    {0},\n");
    dtm_text_printf(out, "};\n");
}
