/* The interpreter on a mesh: every operator, its operands split at random along the factors ir/factors.c allows, evenly
 * and not, on axes of 1 to 4 ranks, gives what one rank gives. And any layout turns into any other and back. */
#include "passes/interpret.h"
#include "tests/unit/operator_cases.h"

#include <stdlib.h>
#include <string.h>

static int failures;
static uint64_t state = 1;

static int64_t draw(int64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(state >> 33) % below;
}

static dtm_value build(dtm_builder *at, dtm_op_kind kind, dtm_value operand, dtm_type type, const char *name) {
    dtm_attributes attributes = dtm_attributes_default(kind);
    attributes.name = dtm_string_of(at->module->context, name);
    uint32_t n = operand != 0;
    return dtm_result(at->module, dtm_build_op(at, kind, &operand, n, &attributes, &type, 1, name), 0);
}

static void output(dtm_builder *at, dtm_value value, const char *name) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_OUTPUT);
    attributes.name = dtm_string_of(at->module->context, name);
    dtm_build_op(at, DTM_OP_OUTPUT, &value, 1, &attributes, NULL, 0, "");
}

static const char *const input_names[CASE_OPERANDS] = {"a", "b", "c", "d", "e", "f"};

/* The program of a case: inputs, each through a relayout that changes nothing yet; the operator; results, relaid out to
 * be whole; outputs. */
static dtm_op build_case(dtm_module *m, const test_case *c) {
    dtm_builder at = dtm_builder_at_end(m, m->body);
    dtm_value operands[CASE_OPERANDS];
    uint32_t n = 0;
    for (; n < CASE_OPERANDS && c->operands[n]; n++) {
        dtm_type type = type_of(m, c->operands[n]);
        dtm_value input = build(&at, DTM_OP_INPUT, 0, type, input_names[n]);
        if (*c->operands[n] == 'p') input = build(&at, DTM_OP_SQUARE, input, type, "positive");
        operands[n] = build(&at, DTM_OP_RELAYOUT, input, type, "laid");
    }
    dtm_attributes attributes = case_attributes(m, c);
    dtm_type types[4] = {0};
    if (!case_results(m, c, operands, n, &attributes, types)) return 0;
    uint32_t n_results = dtm_op_rows[c->kind].results;
    dtm_op op = dtm_build_op(&at, c->kind, operands, n, &attributes, types, n_results, "y");
    for (uint32_t r = 0; r < n_results; r++)
        output(&at, build(&at, DTM_OP_RELAYOUT, dtm_result(m, op, r), types[r], "whole"),
               r == 0   ? "y"
               : r == 1 ? "y1"
                        : "y2");
    return op;
}

static void random_mesh(dtm_module *m) {
    dtm_mesh *mesh = &m->settings.mesh;
    mesh->count = (uint8_t)(1 + draw(3));
    for (int a = 0; a < mesh->count; a++) {
        mesh->axes[a].name = dtm_string_printf(m->context, "axis%d", a);
        mesh->axes[a].size = 1 + draw(mesh->count == 1 ? 5 : 3);
    }
}

__attribute__((noinline)) static void split(dtm_type_data *type, int d, uint8_t axis, uint32_t unit) {
    dtm_dim_layout *layout = &type->layout[d];
    layout->splits[layout->count++] = (dtm_split){axis, unit};
}

/* Splits the operator over an axis along a factor: lays out its operands, and its results as they come out. */
static void split_along(const dtm_op_data *op, const dtm_factor *factor, uint8_t axis, dtm_type_data *operands,
                        dtm_type_data *results) {
    for (uint32_t i = 0; i < op->n_operands; i++)
        if (factor->operand_dim[i] >= 0) split(&operands[i], factor->operand_dim[i], axis, factor->operand_unit[i]);
    for (uint32_t i = 0; i < op->n_results; i++) {
        if (factor->result_dim[i] >= 0)
            split(&results[i], factor->result_dim[i], axis, factor->result_unit[i]);
        else if (factor->kind == DTM_FACTOR_REDUCED && factor->is_max)
            results[i].max |= (uint16_t)(1u << axis);
        else if (factor->kind == DTM_FACTOR_REDUCED)
            results[i].sum |= (uint16_t)(1u << axis);
    }
}

static bool can_split(const dtm_op_data *op, const dtm_factor *factor, const dtm_type_data *operands,
                      const dtm_type_data *results) {
    if (factor->kind != DTM_FACTOR_CARRIED && factor->kind != DTM_FACTOR_REDUCED) return false;
    if (op->kind == DTM_OP_MEAN && op->n_operands > 1) return false;
    for (uint32_t i = 0; i < op->n_results; i++) {
        bool pending = factor->kind == DTM_FACTOR_REDUCED && factor->result_dim[i] < 0;
        if (factor->result_dim[i] >= 0 && results[i].layout[factor->result_dim[i]].count) return false;
        if (pending && factor->is_max ? results[i].sum : pending && results[i].max) return false;
    }
    for (uint32_t i = 0; i < op->n_operands; i++)
        if (factor->operand_dim[i] >= 0 && operands[i].layout[factor->operand_dim[i]].count == DTM_MAX_SPLITS)
            return false;
    return true;
}

/* Lays the operator out on the mesh at random; returns how many axes split it. */
static int lay_out(dtm_module *m, dtm_op op) {
    dtm_factor factors[DTM_MAX_FACTORS];
    size_t n_factors = dtm_factors(m, op, factors);
    dtm_type_data operands[CASE_OPERANDS], results[4];
    dtm_op_data *data = dtm_op_get(m, op);
    for (uint32_t i = 0; i < data->n_operands; i++) operands[i] = *dtm_value_type(m, data->operands[i]);
    for (uint32_t i = 0; i < data->n_results; i++) results[i] = *dtm_value_type(m, data->results[i]);
    int split_axes = 0;
    for (uint8_t axis = 0; axis < m->settings.mesh.count; axis++) {
        const dtm_factor *factor = n_factors ? &factors[draw((int64_t)n_factors)] : NULL;
        if (!factor || !can_split(data, factor, operands, results)) continue;
        split_along(data, factor, axis, operands, results);
        split_axes += m->settings.mesh.axes[axis].size > 1;
    }
    for (uint32_t i = 0; i < data->n_operands; i++)
        dtm_value_get(m, data->operands[i])->type = dtm_type_intern(m, &operands[i]);
    for (uint32_t i = 0; i < data->n_results; i++)
        dtm_value_get(m, data->results[i])->type = dtm_type_intern(m, &results[i]);
    return split_axes;
}

static void check_case(const test_case *c, uint64_t seed, int *splits) {
    dtm_context *context = dtm_context_create();
    dtm_module *m = dtm_module_create(context);
    dtm_op op = build_case(m, c);
    dtm_module *one = op ? dtm_module_clone(m) : NULL;
    state = seed;
    bool good = op != 0;
    if (good) {
        random_mesh(m);
        *splits += lay_out(m, op);
        good = dtm_validate(one, m, "test", &(dtm_validate_options){.seed = seed});
    }
    if (!good) {
        failures++;
        dtm_text text = {.arena = m->arena};
        dtm_module_print(m, &(dtm_print_options){.local_shapes = true}, &text);
        printf("%s, seed %llu\n%.*s\n", dtm_op_rows[c->kind].name, (unsigned long long)seed, (int)text.length,
               text.data);
        dtm_diagnostics_print(context, stdout, false);
    }
    dtm_module_destroy(one);
    dtm_module_destroy(m);
    dtm_context_destroy(context);
}

/* ---- layouts ---- */

static dtm_type random_layout(dtm_module *m, dtm_type whole) {
    dtm_type_data type = *dtm_type_get(m, whole);
    for (uint8_t axis = 0; axis < m->settings.mesh.count; axis++) {
        int64_t to = draw(type.rank + 2);
        if (to < type.rank)
            split(&type, (int)to, axis, (uint32_t)(1 + draw(3)));
        else if (to == type.rank)
            type.sum |= (uint16_t)(1u << axis);
    }
    return dtm_type_intern(m, &type);
}

/* A chain of random layouts ends with the input. */
static void check_layouts(uint64_t seed) {
    dtm_context *context = dtm_context_create();
    dtm_module *m = dtm_module_create(context);
    state = seed;
    random_mesh(m);
    dtm_builder at = dtm_builder_at_end(m, m->body);
    dtm_type whole = type_of(m, "f S B D");
    dtm_value input = build(&at, DTM_OP_INPUT, 0, whole, "x"), value = input;
    for (int i = 0; i < 5; i++) value = build(&at, DTM_OP_RELAYOUT, value, random_layout(m, whole), "laid");
    output(&at, input, "before");
    output(&at, build(&at, DTM_OP_RELAYOUT, value, whole, "whole"), "after");
    dtm_interpretation *done = dtm_interpret(m, &(dtm_interpret_options){.seed = seed});
    bool good = done && dtm_tensor_difference(dtm_tensors_find(&done->outputs, "before", 0),
                                              dtm_tensors_find(&done->outputs, "after", 0), 1e-9) == 0;
    if (!good) {
        failures++;
        printf("layouts, seed %llu\n", (unsigned long long)seed);
        dtm_diagnostics_print(context, stdout, false);
    }
    dtm_interpretation_destroy(done);
    dtm_module_destroy(m);
    dtm_context_destroy(context);
}

int main(int argc, char **argv) {
    int trials = argc > 1 ? atoi(argv[1]) : 40;
    for (int i = 0; i < ALL_CASES; i++) {
        int splits = 0;
        test_case c;
        if (!case_of(i, &c)) continue;
        for (int trial = 0; trial < trials && failures < 5; trial++)
            check_case(&c, 1000 * (uint64_t)i + (uint64_t)trial + 1, &splits);
        if (!splits && failures < 5) printf("note: %s was never split\n", dtm_op_rows[c.kind].name);
    }
    for (int trial = 0; trial < 5 * trials && failures < 5; trial++) check_layouts((uint64_t)trial + 1);
    printf("%d failures\n", failures);
    return failures != 0;
}
