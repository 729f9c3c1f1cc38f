/* Fault 12: in each example's partitioned program every reduction is left out once, and made twice once. The verifier
 * rejects each, naming the value and the axis. Besides, for fault 64: what no text can say and the verifier still guards
 * against, and a pass that changes what is computed (E0599). */
#include "frontend/check.h"
#include "passes/interpret.h"
#include "passes/pipeline.h"

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

static dtm_module *compiled(dtm_context *context, const char *path, const char *mesh, const char *until) {
    dtm_check_options options = {.mesh = mesh};
    dtm_pipeline_options pipeline = {.until = until};
    dtm_module *module = dtm_check(context, path, &options);
    if (module && (!*until || dtm_pipeline_run(module, &pipeline)) && dtm_module_verify(module)) return module;
    dtm_diagnostics_print(context, stdout, false);
    failed("%s does not compile", path);
    return NULL;
}

/* What the verifier says of a module, as text; it is forgotten in the context. */
static char *verdict(dtm_module *module) {
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (!out) exit(2);
    dtm_module_verify(module);
    dtm_diagnostics_print(module->context, out, false);
    fclose(out);
    return text;
}

/* The axes that a reduction names; any of them may be the one complained of. */
static bool names_an_axis(const dtm_module *module, uint16_t axes, const char *text) {
    for (int a = 0; a < module->settings.mesh.count; a++) {
        const char *name = dtm_string_text(module->context, module->settings.mesh.axes[a].name);
        if ((axes >> a & 1) && strstr(text, name)) return true;
    }
    return false;
}

static void judge(dtm_module *mutant, const char *path, const char *what, const char *value, uint16_t axes) {
    char *text = verdict(mutant);
    mutants++;
    if (!strstr(text, "error[E05")) failed("%s: the reduction to %s %s, and the verifier is content", path, value, what);
    else if (!names_an_axis(mutant, axes, text)) failed("%s: %s %s, and no axis is named:\n%s", path, value, what, text);
    free(text);
}

static void leave_out(const dtm_module *module, const char *path, dtm_op op, uint32_t index) {
    dtm_module *mutant = dtm_module_clone(module);
    const dtm_op_data *data = dtm_op_get(mutant, op);
    dtm_value term = data->operands[index], whole = data->results[index];
    dtm_replace_uses(mutant, whole, term);
    judge(mutant, path, "is left out", dtm_value_name(module, whole), data->attributes.axes);
    dtm_module_destroy(mutant);
}

static void make_twice(const dtm_module *module, const char *path, dtm_op op, uint32_t index) {
    dtm_module *mutant = dtm_module_clone(module);
    dtm_op_data data = *dtm_op_get(mutant, op);
    dtm_value whole = data.results[index];
    dtm_type type = dtm_value_get(mutant, whole)->type;
    dtm_builder after = dtm_builder_after(mutant, op);
    dtm_attributes attributes = data.attributes;
    dtm_op again = dtm_build_op(&after, data.kind, &whole, 1, &attributes, &type, 1, "again");
    dtm_value twice = dtm_result(mutant, again, 0);
    dtm_replace_uses(mutant, whole, twice);
    dtm_op_get(mutant, again)->operands[0] = whole;
    judge(mutant, path, "is made twice", dtm_value_name(module, whole), attributes.axes);
    dtm_module_destroy(mutant);
}

static void mutate(const char *path, const char *mesh) {
    dtm_context *context = dtm_context_create();
    dtm_module *module = compiled(context, path, mesh, "partition");
    int before = mutants;
    for (dtm_op op = 1; module && op < module->n_ops; op++) {
        const dtm_op_data *data = dtm_op_get(module, op);
        if (data->kind != DTM_OP_ALL_REDUCE && data->kind != DTM_OP_REDUCE_SCATTER) continue;
        for (uint32_t i = 0; i < data->n_results; i++) {
            leave_out(module, path, op, i);
            make_twice(module, path, op, i);
        }
    }
    if (module && mutants == before) failed("%s has no reduction", path);
    dtm_module_destroy(module);
    dtm_context_destroy(context);
}

/* ---- what no text can say ---- */

static dtm_op find_op(const dtm_module *module, dtm_op_kind kind) {
    for (dtm_op op = 1; op < module->n_ops; op++)
        if (dtm_op_get(module, op)->kind == kind) return op;
    dtm_broken("tests", "no such operator");
}

static void expect(dtm_module *module, const char *message) {
    char *text = verdict(module);
    if (!strstr(text, message)) failed("%s\nwas due, not\n%s", message, text);
    free(text);
}

/* Breaks examples/mlp.dtm by `fault`, which gets its gelu, and looks for the message. */
static void break_it(void (*fault)(dtm_module *, dtm_op), const char *message) {
    dtm_context *context = dtm_context_create();
    dtm_module *module = compiled(context, "examples/mlp.dtm", "dp=2,tp=2", "partition");
    if (module) {
        fault(module, find_op(module, DTM_OP_GELU));
        expect(module, message);
    }
    dtm_module_destroy(module);
    dtm_context_destroy(context);
}

static void move_to_the_front(dtm_module *module, dtm_op gelu) {
    dtm_op_move(module, gelu, dtm_op_get(module, gelu)->region, 0);
}

static void remove_its_operand(dtm_module *module, dtm_op gelu) {
    dtm_op_get(module, gelu)->operands[0] = 0;
}

static void remove_its_maker(dtm_module *module, dtm_op gelu) {
    dtm_op_remove(module, dtm_value_get(module, dtm_op_get(module, gelu)->operands[0])->def);
}

static void give_a_dimension_twice(dtm_module *module, dtm_op gelu) {
    dtm_value x = dtm_op_get(module, gelu)->operands[0];
    dtm_type_data type = *dtm_value_type(module, x);
    type.dims[1] = type.dims[0];
    dtm_value_get(module, x)->type = dtm_type_intern(module, &type);
}

static void leave_out_an_operand(dtm_module *module, dtm_op gelu) {
    (void)gelu;
    dtm_op_get(module, find_op(module, DTM_OP_ALL_REDUCE))->n_operands = 0;
}

static void check_what_no_text_says(void) {
    break_it(move_to_the_front, "error[E0501]: `h = gelu` uses h.add before it is set");
    break_it(remove_its_operand, "error[E0501]: operand 1 of `h = gelu` is missing");
    break_it(remove_its_maker, "error[E0501]: `h = gelu` uses h.add, which nothing defines");
    break_it(give_a_dimension_twice, "error[E0503]: h.add has B twice");
    break_it(leave_out_an_operand, "error[E0505]: `x = all_reduce` has 0 operands and 1 results");
}

/* A pass that made a relu of the gelu. */
static void check_validation(void) {
    dtm_context *context = dtm_context_create();
    dtm_module *before = compiled(context, "examples/mlp.dtm", "dp=1", "canonicalize");
    dtm_module *after = before ? dtm_module_clone(before) : NULL;
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (after && out) {
        if (!dtm_validate(before, after, "nothing", NULL)) failed("a module differs from itself");
        dtm_op_get(after, find_op(after, DTM_OP_GELU))->kind = DTM_OP_RELU;
        if (dtm_validate(before, after, "wrong", NULL)) failed("relu is as good as gelu");
        dtm_diagnostics_print(context, out, false);
        fclose(out);
        if (!strstr(text, "error[E0599]") || !strstr(text, "wrong")) failed("E0599 was due, not\n%s", text);
    }
    free(text);
    dtm_module_destroy(before);
    dtm_module_destroy(after);
    dtm_context_destroy(context);
}

int main(void) {
    static const char *const programs[][2] = {
        {"examples/mlp.dtm", NULL},         {"examples/gpt2.dtm", NULL},       {"examples/llama.dtm", NULL},
        {"examples/llama3-8b.dtm", NULL},   {"examples/llama3-70b.dtm", NULL}, {"examples/llama3-405b.dtm", NULL},
        {"examples/llama.dtm", "dp=4,tp=1"}, {"examples/llama.dtm", "dp=1,tp=4"},
    };
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) mutate(programs[i][0], programs[i][1]);
    check_what_no_text_says();
    check_validation();
    printf("%d reductions left out or made twice\n", mutants);
    return failures != 0;
}
