/* Fault 14: what is not linear does not read the terms of a sum. Of each operator each set of operands is made pending on an
 * axis, the others alike: where summing what it makes of the terms is not what it makes of the sums (the interpreter tells),
 * the verifier refuses it, naming operand and axis; and where the table calls it linear, it is, and is accepted. The same
 * with numbers for operands. Then all its operands come pending from a source program: `shard` reduces before it what it
 * cannot take, and the program computes what it did. */
#include "passes/interpret.h"
#include "passes/passes.h"
#include "tests/unit/operator_cases.h"

#include <stdlib.h>

static int failures, sets_tried, sets_accepted;

__attribute__((format(printf, 1, 2))) static void failed(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("failed: ");
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
    failures++;
}

static char *diagnostics(dtm_context *context) {
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (!out) exit(2);
    dtm_diagnostics_print(context, out, false);
    fclose(out);
    return text;
}

/* What is tried: an operator, which of its operands are pending, which is a number. */
typedef struct trial {
    const test_case *c;
    uint32_t pending;
    int constant; /* -1: none */
    double number;
} trial;

static const char *const names[CASE_OPERANDS] = {"a", "b", "c", "d", "e", "f"};

static dtm_value input(dtm_builder *at, dtm_type type, const char *name) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_INPUT);
    attributes.name = dtm_string_of(at->module->context, name);
    return dtm_result(at->module, dtm_build_op(at, DTM_OP_INPUT, NULL, 0, &attributes, &type, 1, name), 0);
}

/* A product over Z of two inputs (of one with itself: positive; of whole numbers a sum), pending where Z is split. The
 * conditions of `where` are inputs: nothing makes terms of them. */
static dtm_value operand(dtm_builder *at, const char *text, const char *name, bool pending) {
    dtm_module *m = at->module;
    dtm_type_data y = *dtm_type_get(m, type_of(m, text)), x, z;
    if (*text == 'b') return input(at, dtm_type_intern(m, &y), name);
    char wider[64];
    snprintf(wider, sizeof wider, "%c Z%s", *text, text + 1);
    x = *dtm_type_get(m, type_of(m, wider));
    z = *dtm_type_get(m, type_of(m, "f Z"));
    if (pending) {
        x.layout[0].count = x.layout[0].splits[0].unit = 1;
        z.layout[0] = x.layout[0];
        y.sum = 1;
    }
    dtm_op_kind kind = *text == 'i' ? DTM_OP_SUM : DTM_OP_DOT;
    dtm_attributes over = dtm_attributes_default(kind);
    over.over[over.n_over++] = x.dims[0];
    dtm_value operands[2] = {input(at, dtm_type_intern(m, &x), name), 0};
    if (*text == 'p') operands[1] = operands[0];
    if (*text == 'f') operands[1] = input(at, dtm_type_intern(m, &z), dtm_arena_printf(m->arena, "%s.z", name));
    dtm_type type = dtm_type_intern(m, &y);
    const char *sum = dtm_arena_printf(m->arena, "%s.sum", name);
    return dtm_result(m, dtm_build_op(at, kind, operands, kind == DTM_OP_DOT ? 2 : 1, &over, &type, 1, sum), 0);
}

static void output(dtm_builder *at, dtm_value value, uint32_t index) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_OUTPUT);
    attributes.name = dtm_string_printf(at->module->context, "y%u", index);
    dtm_build_op(at, DTM_OP_OUTPUT, &value, 1, &attributes, NULL, 0, "");
}

static dtm_module *start(dtm_context *context, int64_t tp) {
    dtm_module *m = dtm_module_create(context);
    m->settings.mesh.axes[m->settings.mesh.count++] = (dtm_axis_data){dtm_string_of(context, "tp"), tp, false, {0}};
    dtm_dim_add(m, dtm_string_of(context, "Z"), 4, (dtm_span){0});
    return m;
}

/* The program of a trial; *op is the operator. On an axis of size 1 it is the same with nothing pending. */
static dtm_module *program(dtm_context *context, const trial *t, int64_t tp, bool reduces, dtm_op *op) {
    dtm_module *m = start(context, tp);
    dtm_builder at = dtm_builder_at_end(m, m->body);
    dtm_value operands[CASE_OPERANDS];
    uint32_t n = 0;
    for (; n < CASE_OPERANDS && t->c->operands[n]; n++)
        operands[n] = (int)n == t->constant ? dtm_constant(m, DTM_F32, t->number)
                                            : operand(&at, t->c->operands[n], names[n], t->pending >> n & 1);
    dtm_attributes attributes = case_attributes(m, t->c);
    dtm_type types[4] = {0};
    if (!case_results(m, t->c, operands, n, &attributes, types))
        dtm_broken("tests", "%s has no case", dtm_op_rows[t->c->kind].name);
    uint32_t n_results = dtm_op_rows[t->c->kind].results;
    for (uint32_t r = 0; r < n_results; r++) {
        dtm_type_data type = *dtm_type_get(m, types[r]);
        type.sum = reduces && t->pending;
        types[r] = dtm_type_intern(m, &type);
    }
    *op = dtm_build_op(&at, t->c->kind, operands, n, &attributes, types, n_results, "y");
    for (uint32_t r = 0; r < n_results; r++) {
        dtm_value y = dtm_result(m, *op, r);
        dtm_attributes all = dtm_attributes_default(DTM_OP_ALL_REDUCE);
        all.axes = 1;
        dtm_type whole = dtm_type_whole(m, types[r]);
        if (reduces) y = dtm_result(m, dtm_build_op(&at, DTM_OP_ALL_REDUCE, &y, 1, &all, &whole, 1, "whole"), 0);
        output(&at, y, r);
    }
    return m;
}

static bool computes_the_same(const trial *t) {
    bool same = true;
    for (uint64_t seed = 1; same && seed <= 3; seed++) {
        dtm_context *context = dtm_context_create();
        dtm_op op;
        dtm_module *one = program(context, t, 1, true, &op), *split = program(context, t, 2, true, &op);
        same = dtm_validate(one, split, "test", &(dtm_validate_options){.steps = 1, .seed = seed});
        dtm_module_destroy(one);
        dtm_module_destroy(split);
        dtm_context_destroy(context);
    }
    return same;
}

static const char *title(const trial *t) {
    static char text[100];
    int n = snprintf(text, sizeof text, "%s of", dtm_op_rows[t->c->kind].name);
    for (int i = 0; i < CASE_OPERANDS && t->c->operands[i]; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, i == t->constant ? " %g" : t->pending >> i & 1 ? " term" : " whole",
                      t->number);
    return text;
}

static bool is_declared(const dtm_module *m, dtm_op op, uint32_t pending) {
    uint32_t sets[4];
    for (size_t i = 0, n = dtm_linear_sets(m, op, sets); i < n; i++)
        if (sets[i] == pending) return true;
    return false;
}

static bool names_operand(const trial *t, const char *said) {
    char name[16];
    for (int i = 0; i < CASE_OPERANDS; i++) {
        snprintf(name, sizeof name, "%s.sum", names[i]);
        if ((t->pending >> i & 1) && strstr(said, name)) return strstr(said, "tp") && strstr(said, "E0507");
    }
    return false;
}

static void check_set(const trial *t) {
    dtm_context *context = dtm_context_create();
    dtm_op op;
    dtm_module *m = program(context, t, 2, true, &op);
    bool accepted = dtm_module_verify(m), linear = computes_the_same(t);
    char *said = diagnostics(context);
    sets_tried++;
    sets_accepted += accepted;
    if (accepted && !linear) failed("%s is accepted, and is not linear", title(t));
    if (!accepted && t->constant < 0 && is_declared(m, op, t->pending)) failed("%s is refused:\n%s", title(t), said);
    if (!accepted && !names_operand(t, said)) failed("%s: no operand and axis are named:\n%s", title(t), said);
    free(said);
    dtm_module_destroy(m);
    dtm_context_destroy(context);
}

/* What reads terms gives no whole. */
static void check_no_whole(const trial *t) {
    dtm_context *context = dtm_context_create();
    dtm_op op;
    dtm_module *m = program(context, t, 2, false, &op);
    if (dtm_module_verify(m)) failed("%s is accepted with a result that is whole", title(t));
    dtm_module_destroy(m);
    dtm_context_destroy(context);
}

static void check_sets(const test_case *c) {
    uint32_t all = 0, numbers = 0;
    for (int i = 0; i < CASE_OPERANDS && c->operands[i]; i++) {
        all |= (*c->operands[i] != 'b') << i;
        numbers |= (*c->operands[i] == 'f') << i;
    }
    for (uint32_t pending = all; pending; pending = (pending - 1) & all) {
        trial t = {c, pending, -1, 0};
        check_set(&t);
        check_no_whole(&t);
        for (int i = 0; c->kind <= DTM_OP_WHERE && i < CASE_OPERANDS; i++)
            for (int k = -1; numbers >> i & ~pending >> i & 1 && k <= 2; k++) check_set(&(trial){c, pending, i, k});
    }
}

/* ---- from a source program ---- */

static bool passed(dtm_module *m, bool pass(dtm_module *m)) {
    dtm_module *before = dtm_module_clone(m);
    bool good = pass(m) && dtm_module_verify(m) && dtm_validate(before, m, "pass", &(dtm_validate_options){.steps = 1});
    dtm_module_destroy(before);
    return good;
}

static bool reads_terms(const dtm_module *m, dtm_op_kind kind) {
    for (dtm_op op = 1; op < m->n_ops; op++) {
        const dtm_op_data *data = dtm_op_get(m, op);
        for (uint32_t i = 0; data->region && data->kind == kind && i < data->n_operands; i++)
            if (dtm_value_type(m, data->operands[i])->sum) return true;
    }
    return false;
}

static int reductions(const dtm_module *m) {
    int count = 0;
    for (dtm_op op = 1; op < m->n_ops; op++)
        count += m->ops[op].region && (m->ops[op].kind == DTM_OP_ALL_REDUCE || m->ops[op].kind == DTM_OP_REDUCE_SCATTER);
    return count;
}

static void check_placed(const test_case *c) {
    bool products = false; /* sums alone are made of whole inputs for nothing */
    for (int i = 0; i < CASE_OPERANDS && c->operands[i]; i++) products |= *c->operands[i] == 'f' || *c->operands[i] == 'p';
    if (!products) return;
    dtm_context *context = dtm_context_create();
    dtm_op op;
    trial t = {c, 0, -1, 0};
    dtm_module *m = program(context, &t, 2, false, &op);
    dtm_splits_rule rule = {.axis = 0, .count = 1, .dims = {dtm_dim_find(m, dtm_string_of(context, "Z"))}};
    DTM_PUSH(m->arena, m->settings.splits, m->settings.n_splits, m->settings.cap_splits, rule);
    bool good = dtm_module_verify(m) && passed(m, dtm_pass_canonicalize) && passed(m, dtm_pass_shard) &&
                passed(m, dtm_pass_partition);
    bool never = !*dtm_op_rows[c->kind].linear;
    if (!good || !reductions(m) || (never && reads_terms(m, c->kind))) {
        failed("%s of sums over what is split", dtm_op_rows[c->kind].name);
        dtm_diagnostics_print(context, stdout, false);
    }
    dtm_module_destroy(m);
    dtm_context_destroy(context);
}

int main(void) {
    int count = 0;
    test_case c;
    for (int i = 0; i < ALL_CASES && failures < 5; i++) {
        if (!case_of(i, &c)) continue;
        check_sets(&c);
        check_placed(&c);
        count++;
    }
    printf("%d cases, %d sets of operands, %d accepted; %d failures\n", count, sets_tried, sets_accepted, failures);
    return failures != 0;
}
