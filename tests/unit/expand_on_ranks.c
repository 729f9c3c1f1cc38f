/* Operators that normalise, expanded where their values have layouts: the same on all ranks, and well formed. */
#include "tests/unit/programs.h"

/* The type with B split over the mesh's axis, or pending there. */
static dtm_type on_ranks(program *p, dtm_type of, bool pending) {
    dtm_type_data data = *dtm_type_get(p->m, of);
    int b = dtm_type_dim_index(&data, dim(p, "B"));
    if (pending) data.sum = 1;
    else if (b >= 0) data.layout[b] = (dtm_dim_layout){1, {{0, 1}}};
    return dtm_type_intern(p->m, &data);
}

static dtm_value split_weight(program *p, const char *name, const char *text) {
    return source(p, DTM_OP_WEIGHT, name, on_ranks(p, type(p, DTM_F32, text), false), 0);
}

/* Of each result of an operator over S: split along B as it is, or a term where it lacks B. */
static void expand_split(dtm_op_kind kind, int n, const char *const *operands, const char *const *results) {
    program p = start();
    p.m->settings.mesh.count = 1;
    p.m->settings.mesh.axes[0] = (dtm_axis_data){dtm_string_of(p.context, "dp"), 2, false, {0, 0, 0}};
    dtm_value values[4];
    for (int i = 0; i < n; i++) {
        char name[] = {(char)('a' + i), 0};
        bool targets = kind == DTM_OP_CROSS_ENTROPY && i == 1;
        dtm_type of = on_ranks(&p, type(&p, targets ? DTM_I32 : DTM_F32, operands[i]), false);
        values[i] = targets ? source(&p, DTM_OP_INPUT, "targets", of, 0) : split_weight(&p, name, operands[i]);
    }
    dtm_attributes attributes = dtm_attributes_default(kind);
    attributes.n_over = dims(&p, kind == DTM_OP_CROSS_ENTROPY ? "V" : "S", attributes.over);
    dtm_type types[4];
    uint32_t n_results = dtm_op_rows[kind].results;
    for (uint32_t i = 0; i < n_results; i++)
        types[i] = on_ranks(&p, type(&p, DTM_F32, results[i]), strcmp(results[i], "S") == 0);
    dtm_op composite = dtm_build_op(&p.at, kind, values, (uint32_t)n, &attributes, types, n_results, "y");
    for (uint32_t i = 0; i < n_results; i++) {
        dtm_value y = dtm_result(p.m, composite, i);
        attributes = dtm_attributes_default(DTM_OP_OUTPUT);
        if (dtm_value_type(p.m, y)->sum) {
            dtm_attributes reduce = dtm_attributes_default(DTM_OP_ALL_REDUCE);
            reduce.axes = 1;
            dtm_type whole = type(&p, DTM_F32, results[i]);
            y = dtm_result(p.m, dtm_build_op(&p.at, DTM_OP_ALL_REDUCE, &y, 1, &reduce, &whole, 1, "whole"), 0);
        }
        attributes.name = dtm_string_printf(p.context, "y%u", i);
        dtm_build_op(&p.at, DTM_OP_OUTPUT, &y, 1, &attributes, NULL, 0, "");
    }
    const char *title = dtm_op_rows[kind].name;
    p.m->after = dtm_string_of(p.context, "partition");
    dtm_module *before = dtm_module_clone(p.m);
    if (verified(&p, title, "building")) {
        CHECK(dtm_expand(p.m, composite, dtm_use_counts(p.m, p.m->arena)), "%s does not expand", title);
        if (verified(&p, title, "expand on ranks"))
            CHECK(dtm_validate(before, p.m, "expand", NULL), "%s: expanding on ranks changes values", title);
    }
    if (dtm_error_count(p.context)) dtm_diagnostics_print(p.context, stdout, false);
    dtm_module_destroy(before);
    end(&p);
}
#define LIST(...) (const char *const[]){__VA_ARGS__}

static void test_expand_on_ranks(void) {
    expand_split(DTM_OP_SOFTMAX, 1, LIST("B S T"), LIST("B S T"));
    expand_split(DTM_OP_LOG_SOFTMAX, 1, LIST("B S T"), LIST("B S T"));
    expand_split(DTM_OP_SOFTMAX_BACKWARD, 2, LIST("B S T", "B S T"), LIST("B S T"));
    expand_split(DTM_OP_LOG_SOFTMAX_BACKWARD, 2, LIST("B S T", "B S T"), LIST("B S T"));
    expand_split(DTM_OP_RMSNORM, 2, LIST("B S T", "S"), LIST("B S T"));
    expand_split(DTM_OP_LAYERNORM, 3, LIST("B S T", "S", "S"), LIST("B S T"));
    expand_split(DTM_OP_RMSNORM_BACKWARD, 3, LIST("B S T", "S", "B S T"), LIST("B S T", "S"));
    expand_split(DTM_OP_LAYERNORM_BACKWARD, 3, LIST("B S T", "S", "B S T"), LIST("B S T", "S", "S"));
    expand_split(DTM_OP_CROSS_ENTROPY, 2, LIST("B S V", "B S"), LIST("B S", "B S"));
}

int main(void) {
    test_expand_on_ranks();
    printf("%d failures\n", failures);
    return failures > 0;
}
