/* Writes kernels.c where the target is CUDA: for each kernel its source, with the templates that it includes, as a text, and what
 * the runtime computes of sizes, as C. And a table of them. */
#include "codegen/generator.h"
#include "kernels/cuda/templates.h"

#include <stdlib.h>
#include <string.h>

static const char *name_of(const dtm_generator *g, const dtm_kernel_text *kernel) { return dtm_string_text(g->module->context, kernel->name); }

/* ---- making ---- */

/* All that makes it what it is, in one text. */
static const char *key_of(dtm_generator *g, const dtm_cuda_text *text, size_t n_buffers, size_t n_sizes) {
    dtm_text key = {g->arena, NULL, 0, 0};
    dtm_text_printf(&key, "%zu %zu\n%s\n%s\n%s\n", n_buffers, n_sizes, text->host ? text->host : "", text->scratch ? text->scratch : "",
                    text->device);
    for (uint32_t i = 0; i < text->n_launches; i++) {
        const dtm_cuda_launch_text *l = &text->launches[i];
        dtm_text_printf(&key, "%s %u\n%s\n%s\n", l->suffix, l->threads, l->blocks, l->shared ? l->shared : "");
    }
    return key.data;
}

uint32_t dtm_cuda_kernel_index(dtm_generator *g, const char *name, const dtm_cuda_text *text, size_t n_buffers, size_t n_sizes) {
    uint32_t k = dtm_kernel_index(g, name, key_of(g, text, n_buffers, n_sizes));
    dtm_kernel_text *kernel = &g->kernels[k];
    if (kernel->cuda) return k;
    dtm_cuda_text *copy = dtm_arena_alloc(g->arena, sizeof *copy);
    *copy = *text;
    kernel->cuda = copy;
    kernel->n_buffers = (uint32_t)n_buffers;
    kernel->n_sizes = (uint32_t)n_sizes;
    return k;
}

/* ---- tuples ---- */

static int64_t tuples_of(const dtm_generator *g, const dtm_plan_launch *launch) {
    int64_t tuples = 0;
    for (uint32_t t = 0; t < launch->tuples; t++) {
        int64_t copies = 1;
        for (uint32_t loop = launch->loops.items[t]; loop; loop = g->loops[loop].parent) copies *= g->loops[loop].copies;
        tuples += copies;
    }
    return tuples;
}

/* As many as the plans ask for at once, and a parameter has room for. */
static int64_t most_tuples(const dtm_generator *all, size_t count, size_t k) {
    const dtm_kernel_text *kernel = &all->kernels[k];
    int64_t most = 1, bytes = 8 * (int64_t)(kernel->n_buffers + 1 + (kernel->n_sizes ? kernel->n_sizes : 1));
    int64_t room = (DTM_PLAN_CUDA_BYTES - DTM_PLAN_CUDA_TAIL) / bytes;
    if (room < 1) dtm_broken("codegen", "kernel %s has %u buffers and %u sizes", name_of(all, kernel), kernel->n_buffers, kernel->n_sizes);
    for (size_t i = 0; i < count; i++)
        for (size_t n = 0; n < all[i].n_instructions; n++) {
            const dtm_plan_instruction *at = &all[i].instructions[n];
            int64_t tuples = at->kind == DTM_PLAN_KERNEL && at->kernel.kernel == k ? tuples_of(&all[i], &at->kernel) : 0;
            if (tuples > most) most = tuples;
        }
    return most < room ? most : room;
}

/* ---- texts ---- */

static void named(dtm_text *out, const char *text, const char *name) {
    for (; *text; text++) {
        if (*text == '@') dtm_text_printf(out, "%s", name);
        else dtm_text_append(out, text, 1);
    }
}

/* #includes first: what stands after them may be of the tuples. */
void dtm_write_cuda_source(dtm_generator *all, size_t count, size_t k, dtm_text *out) {
    const dtm_kernel_text *kernel = &all->kernels[k];
    const char *name = name_of(all, kernel), *device = kernel->cuda->device;
    int64_t tuples = most_tuples(all, count, k);
    dtm_text_printf(out, "/* %s of %s, written by dtmc. */\n#include \"kernels/cuda/entry.cuh\"\n", name,
                    dtm_string_text(all->module->context, all->module->name));
    while (strncmp(device, "#include", 8) == 0) {
        size_t line = strcspn(device, "\n") + 1;
        dtm_text_append(out, device, line);
        device += line;
    }
    dtm_text_printf(out, "\ntypedef dtm_tuple<%u, %u> tuple;\n#define KERNEL(name, threads) DTM_ENTRY(name, threads, %u, %u, %lld)\n#define TUPLE %s\n\n",
                    kernel->n_buffers, kernel->n_sizes, kernel->n_buffers, kernel->n_sizes, (long long)tuples, tuples > 1 ? "blockIdx.y" : "0");
    named(out, device, name);
    dtm_text_append(out, "", 1);
    out->length--;
}

static char *whole_program(dtm_generator *all, size_t count, size_t k) {
    dtm_text source = {all->arena, NULL, 0, 0};
    dtm_write_cuda_source(all, count, k, &source);
    const char *name = dtm_arena_printf(all->arena, "/dtm/%s.cu", name_of(all, &all->kernels[k])), *missing;
    char *whole = dtm_template_program(name, source.data, &missing);
    if (!whole) dtm_broken("codegen", "%s includes %s", name, missing ? missing : "too much");
    return whole;
}

/* As C, a line of it a line. */
static void write_quoted(dtm_text *out, const char *text) {
    dtm_text_printf(out, "    \"");
    for (; *text; text++) {
        if (*text == '\n') dtm_text_printf(out, text[1] ? "\\n\"\n    \"" : "\\n");
        else {
            if (*text == '"' || *text == '\\' || *text == '?') dtm_text_append(out, "\\", 1);
            dtm_text_append(out, text, 1);
        }
    }
    dtm_text_append(out, "\"", 1);
}

static void write_function(dtm_text *out, const char *name, const char *suffix, const char *what, const char *expression) {
    dtm_text_printf(out, "static int64_t %s%s_%s(const int64_t *z) {\n    (void)z;\n    return ", name, suffix, what);
    named(out, expression, name);
    dtm_text_printf(out, ";\n}\n");
}

static void write_kernel(dtm_generator *all, size_t count, size_t k, dtm_text *out) {
    const dtm_cuda_text *text = all->kernels[k].cuda;
    const char *name = name_of(all, &all->kernels[k]);
    if (text->host) named(out, text->host, name);
    for (uint32_t i = 0; i < text->n_launches; i++) {
        write_function(out, name, text->launches[i].suffix, "blocks", text->launches[i].blocks);
        if (text->launches[i].shared) write_function(out, name, text->launches[i].suffix, "shared", text->launches[i].shared);
    }
    if (text->scratch) write_function(out, name, "", "scratch_bytes", text->scratch);
    dtm_text_printf(out, "static const dtm_plan_cuda_launch %s_launches[] = {\n", name);
    for (uint32_t i = 0; i < text->n_launches; i++) {
        const dtm_cuda_launch_text *l = &text->launches[i];
        const char *shared = l->shared ? dtm_arena_printf(all->arena, "%s%s_shared", name, l->suffix) : "NULL";
        dtm_text_printf(out, "    {\"%s%s\", %u, %s%s_blocks, %s},\n", name, l->suffix, l->threads, name, l->suffix, shared);
    }
    char *whole = whole_program(all, count, k);
    dtm_text_printf(out, "};\nstatic const char %s_source[] =\n", name);
    write_quoted(out, whole);
    dtm_text_printf(out, ";\n\n");
    free(whole);
}

static uint64_t fnv(const char *text) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

void dtm_write_cuda_kernels(dtm_generator *all, size_t count, dtm_text *out) {
    const dtm_generator *g = all;
    dtm_text_printf(out, "/* Kernels of %s for NVIDIA GPUs, written by dtmc. runtime/plan.h says what they mean. */\n"
                         "#include \"runtime/plan.h\"\n\n#include <stddef.h>\n\n",
                    dtm_string_text(g->module->context, g->module->name));
    for (size_t k = 0; k < g->n_kernels; k++) write_kernel(all, count, k, out);
    dtm_text_printf(out, "extern const dtm_plan_cuda_kernel dtm_cuda_kernels[];\nconst dtm_plan_cuda_kernel dtm_cuda_kernels[] = {\n");
    for (size_t k = 0; k < g->n_kernels; k++) {
        const dtm_kernel_text *kernel = &g->kernels[k];
        const char *name = name_of(g, kernel);
        dtm_text_printf(out, "    {\"%s\", %s_source, %u, %s_launches, %u, %u, %lld, ", name, name, kernel->cuda->n_launches, name,
                        kernel->n_buffers, kernel->n_sizes, (long long)most_tuples(all, count, k));
        if (kernel->cuda->scratch) dtm_text_printf(out, "%s_scratch_bytes", name);
        else dtm_text_printf(out, "NULL");
        dtm_text_printf(out, ", 0x%llx, 0x%016llx},\n", (unsigned long long)kernel->read_only,
                        (unsigned long long)fnv(dtm_string_text(g->module->context, kernel->body)));
    }
    if (!g->n_kernels) dtm_text_printf(out, "    {0},\n");
    dtm_text_printf(out, "};\n");
}
