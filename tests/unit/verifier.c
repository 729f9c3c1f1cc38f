/* The verifier, for fault 64: what no text can say and it still guards against, and a pass that changes what is computed
 * (E0599). */
#include "frontend/check.h"
#include "passes/interpret.h"
#include "passes/pipeline.h"

#include <stdlib.h>
#include <string.h>

static int failures;

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

/* In both directions of a pipeline each rank has its own microbatches, and its copies of a repeat: what is told is the first value
 * that is wrong, none that a rank has but a part of. */
static void check_pipeline(void) {
    dtm_context *context = dtm_context_create();
    const char *defines[] = {"B=8", "S=4", "V=16", "D=8", "F=8", "layers=4"}, *sets[] = {"schedule=dualpipe", "microbatches=4"};
    dtm_check_options options = {.defines = defines, .n_defines = 6, .mesh = "pp=2", .sets = sets, .n_sets = 2};
    dtm_module *before = dtm_check(context, "examples/pipeline.dtm", &options), *after = NULL;
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    bool good = before && out && dtm_pipeline_run(before, &(dtm_pipeline_options){.until = "microbatch"});
    if (good) after = dtm_module_clone(before);
    if (good && after && dtm_pipeline_run(after, &(dtm_pipeline_options){.until = "schedule"})) {
        for (size_t r = 0; r < after->n_ranks; r++)
            for (dtm_op op = 1; op < after->ranks[r]->n_ops; op++)
                if (after->ranks[r]->ops[op].kind == DTM_OP_SILU) after->ranks[r]->ops[op].kind = DTM_OP_RELU;
        if (dtm_validate(before, after, "wrong", NULL)) failed("relu is as good as silu");
        dtm_diagnostics_print(context, out, false);
        fclose(out);
        const char *first = "`x.silu[0]` is the first value of both that differs";
        if (!strstr(text, first)) failed("%s was due, not\n%s", first, text);
    } else failed("the pipeline does not compile");
    free(text);
    dtm_module_destroy(before);
    dtm_module_destroy(after);
    dtm_context_destroy(context);
}

int main(void) {
    check_what_no_text_says();
    check_validation();
    check_pipeline();
    printf("%d failures\n", failures);
    return failures != 0;
}
