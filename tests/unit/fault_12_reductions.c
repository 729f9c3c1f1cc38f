/* Fault 12: a reduction that is missing, or made twice. From shard on, after every pass, in each example (as it is, on other
 * meshes, with microbatches) every reduction of a value is left out once and made twice once, one over several axes loses
 * each of them once, and so does what is accumulated over microbatches; and what is alike is taken for a term once, a term
 * made of a term. The verifier rejects each, naming the value and the axis. */
#include "frontend/check.h"
#include "passes/pipeline.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static int failures, mutants;

__attribute__((format(printf, 1, 2))) static void failed(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("failed: ");
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
    failures++;
}

/* What the verifier says of a module, as text; it is forgotten in the context. */
__attribute__((noinline)) static char *verdict(dtm_module *module) {
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (!out) exit(2);
    dtm_module_verify(module);
    dtm_diagnostics_print(module->context, out, false);
    fclose(out);
    return text;
}

static bool in_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* The name as a word of the text, and not within the name of another value: `h` is not in `h.2`. */
static bool says(const char *text, const char *name, bool is_value) {
    size_t n = strlen(name);
    for (const char *at = strstr(text, name); at; at = strstr(at + 1, name)) {
        bool before = at > text && (in_word(at[-1]) || (is_value && at[-1] == '.'));
        bool after = in_word(at[n]) || (is_value && at[n] == '.' && in_word(at[n + 1]));
        if (!before && !after) return true;
    }
    return false;
}

typedef struct mutant {
    const char *program, *fault;
    const dtm_module *original;
    dtm_module *module;
    const char *term, *whole; /* before and after the reduction: one of them is to be named */
    uint16_t axes;            /* the same */
} mutant;

static mutant begin(const dtm_module *original, const char *program, const char *fault, dtm_op op, uint32_t index) {
    mutant m = {program, fault, original, dtm_module_clone(original), NULL, NULL, 0};
    const dtm_op_data *data = dtm_op_get(m.module, op);
    m.term = dtm_value_name(original, data->operands[index]);
    m.whole = dtm_value_name(original, data->results[index]);
    const dtm_type_data *from = dtm_value_type(m.module, data->operands[index]);
    const dtm_type_data *to = dtm_value_type(m.module, data->results[index]);
    m.axes = (from->sum | from->max) ^ (to->sum | to->max);
    return m;
}

static void judge(mutant *m) {
    char *text = verdict(m->module);
    bool axis = false;
    const dtm_mesh *mesh = &m->module->settings.mesh;
    for (int a = 0; a < mesh->count; a++)
        axis |= (m->axes >> a & 1) && says(text, dtm_string_text(m->module->context, mesh->axes[a].name), false);
    mutants++;
    const char *stage = dtm_string_text(m->original->context, m->original->after);
    if (!strstr(text, "error[E05"))
        failed("%s after %s: %s: %s, and the verifier is content", m->program, stage, m->whole, m->fault);
    else if (!axis || !(says(text, m->term, true) || says(text, m->whole, true)))
        failed("%s after %s: %s: %s; value and axis are not named:\n%s", m->program, stage, m->whole, m->fault, text);
    free(text);
    dtm_module_destroy(m->module);
}

static void leave_out(const dtm_module *original, const char *program, dtm_op op, uint32_t index) {
    mutant m = begin(original, program, "left out", op, index);
    const dtm_op_data *data = dtm_op_get(m.module, op);
    dtm_replace_uses(m.module, data->results[index], data->operands[index]);
    judge(&m);
}

static void make_twice(const dtm_module *original, const char *program, dtm_op op, uint32_t index) {
    mutant m = begin(original, program, "made twice", op, index);
    dtm_op_data data = *dtm_op_get(m.module, op);
    dtm_value whole = data.results[index];
    dtm_type type = dtm_value_get(m.module, whole)->type;
    dtm_builder after = dtm_builder_after(m.module, op);
    dtm_op again = dtm_build_op(&after, data.kind, &whole, 1, &data.attributes, &type, 1, "again");
    dtm_replace_uses(m.module, whole, dtm_result(m.module, again, 0));
    dtm_op_get(m.module, again)->operands[0] = whole;
    judge(&m);
}

static void forget_an_axis(const dtm_module *original, const char *program, dtm_op op) {
    uint16_t axes = dtm_op_get(original, op)->attributes.axes;
    for (int a = 0; axes >> a && axes & (axes - 1); a++) {
        if (!(axes >> a & 1)) continue;
        mutant m = begin(original, program, "not made over one of its axes", op, 0);
        dtm_op_get(m.module, op)->attributes.axes &= (uint16_t)~(1 << a);
        m.axes = (uint16_t)(1 << a);
        judge(&m);
    }
}

/* ---- which operators ---- */

static bool is_reduction(const dtm_module *module, const dtm_op_data *op, uint32_t index) {
    if (op->kind == DTM_OP_ALL_REDUCE || op->kind == DTM_OP_REDUCE_SCATTER || op->kind == DTM_OP_ACCUMULATE) return true;
    if (op->kind != DTM_OP_RELAYOUT) return false;
    const dtm_type_data *from = dtm_value_type(module, op->operands[index]), *to = dtm_value_type(module, op->results[index]);
    return ((from->sum & ~to->sum) | (from->max & ~to->max)) != 0;
}

static int mutate(const dtm_module *module, const char *program) {
    int reductions = 0;
    for (dtm_op op = 1; op < module->n_ops; op++) {
        const dtm_op_data *data = dtm_op_get(module, op);
        for (uint32_t i = 0; data->region && i < data->n_results && i < data->n_operands; i++) {
            bool term = data->kind == DTM_OP_AS_TERM;
            if (!term && !is_reduction(module, data, i)) continue;
            leave_out(module, program, op, i);
            /* To lay out again what lies so already does nothing. */
            if (data->kind != DTM_OP_RELAYOUT) make_twice(module, program, op, i);
            if (i == 0 && !term) forget_an_axis(module, program, op);
            reductions++;
        }
    }
    return reductions;
}

static void check(const char *path, const char *mesh, const char *microbatches, const char *pass) {
    dtm_context *context = dtm_context_create();
    dtm_check_options options = {.mesh = mesh, .sets = &microbatches, .n_sets = microbatches != NULL};
    dtm_pipeline_options pipeline = {.until = pass, .verify = true};
    dtm_module *module = dtm_check(context, path, &options);
    if (!module || !dtm_pipeline_run(module, &pipeline)) {
        dtm_diagnostics_print(context, stdout, false);
        failed("%s does not compile", path);
    } else if (!mutate(module, path)) {
        failed("%s has no reduction", path);
    }
    dtm_module_destroy(module);
    dtm_context_destroy(context);
}

int main(void) {
    static const struct {
        const char *path, *mesh, *microbatches;
        bool every;
    } programs[] = {
        {"examples/mlp.dtm", NULL, NULL, true},
        {"examples/mlp.dtm", NULL, "microbatches=2", true},
        {"examples/gpt2.dtm", NULL, NULL, true},
        {"examples/llama.dtm", NULL, NULL, true},
        {"examples/llama.dtm", NULL, "microbatches=2", true},
        {"examples/llama.dtm", "dp=4,tp=1", NULL, false},
        {"examples/llama.dtm", "dp=1,tp=4", NULL, false},
        {"examples/llama3-8b.dtm", NULL, NULL, false},
        {"examples/llama3-70b.dtm", NULL, NULL, false},
        {"examples/llama3-405b.dtm", NULL, NULL, false},
    };
    static const char *const passes[] = {"partition", "shard", "microbatch", "fuse_collectives", "fuse", "memory"};
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        for (size_t k = 0; k < (programs[i].every ? sizeof passes / sizeof *passes : 1); k++)
            check(programs[i].path, programs[i].mesh, programs[i].microbatches, passes[k]);
    printf("%d mutants, %d failures\n", mutants, failures);
    return failures != 0;
}
