/* From a module built by hand to memory and plan: what is fused, where values lie, and that the same module gives the
 * same bytes. From programs: what a step's memory never holds. */
#include "codegen/codegen.h"
#include "frontend/check.h"
#include "ir/storage.h"
#include "passes/ledger.h"
#include "passes/passes.h"
#include "passes/pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int failures;

static void expect(bool good, const char *what) {
    if (good) return;
    printf("failed: %s\n", what);
    failures++;
}

/* y = rmsnorm-like of x + dot(x, w), in a repeat; then a sum over everything. */
static dtm_module *made(dtm_context *context) {
    dtm_module *module = dtm_module_create(context);
    module->name = dtm_string_of(context, "made");
    dtm_span nowhere = {0, 0, 0};
    dtm_dim b = dtm_dim_add(module, dtm_string_of(context, "B"), 4, nowhere);
    dtm_dim d = dtm_dim_add(module, dtm_string_of(context, "D"), 8, nowhere);
    dtm_dim e = dtm_dim_add(module, dtm_string_of(context, "E"), 8, nowhere);
    dtm_type x_type = dtm_type_make(module, DTM_F32, 2, (dtm_dim[]){b, d});
    dtm_type w_type = dtm_type_make(module, DTM_F32, 2, (dtm_dim[]){d, e});
    dtm_builder at = dtm_builder_at_end(module, module->body);
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_INPUT);
    attributes.name = dtm_string_of(context, "x");
    dtm_value x = dtm_result(module, dtm_build_op(&at, DTM_OP_INPUT, NULL, 0, &attributes, &x_type, 1, "x"), 0);
    dtm_value started = dtm_build_unary(&at, DTM_OP_RELU, "started", x);
    attributes = dtm_attributes_default(DTM_OP_REPEAT);
    attributes.name = dtm_string_of(context, "layer");
    attributes.copies = 3;
    dtm_op repeat = dtm_build_region(&at, DTM_OP_REPEAT, &attributes);
    dtm_builder in = dtm_builder_at_end(module, dtm_op_get(module, repeat)->body);
    attributes = dtm_attributes_default(DTM_OP_WEIGHT);
    attributes.name = dtm_string_of(context, "layer.{layer}.w");
    attributes.init = DTM_INIT_ONES;
    dtm_value w = dtm_result(module, dtm_build_op(&in, DTM_OP_WEIGHT, NULL, 0, &attributes, &w_type, 1, "w"), 0);
    dtm_op carry = dtm_build_op(&in, DTM_OP_CARRY, (dtm_value[]){started, started}, 2, NULL, &x_type, 1, "h");
    dtm_value h = dtm_result(module, carry, 0);
    dtm_value product = dtm_build_over(&in, DTM_OP_DOT, "product", (dtm_value[]){h, w}, 2, &d, 1);
    attributes = dtm_attributes_default(DTM_OP_RENAME);
    attributes.n_over = attributes.n_as = 1;
    attributes.over[0] = e;
    attributes.as[0] = d;
    dtm_value renamed = dtm_build(&in, DTM_OP_RENAME, "renamed", &product, 1, &attributes);
    dtm_value square = dtm_build_unary(&in, DTM_OP_SQUARE, "square", renamed);
    dtm_value mean = dtm_build_over(&in, DTM_OP_MEAN, "mean", &square, 1, &d, 1);
    dtm_value scaled = dtm_build_binary(&in, DTM_OP_MUL, "scaled", renamed, mean);
    dtm_value next = dtm_build_binary(&in, DTM_OP_ADD, "next", h, scaled);
    dtm_op_get(module, carry)->operands[1] = next;
    dtm_value last = dtm_build_unary(&at, DTM_OP_LAST, "out", next);
    dtm_value sum = dtm_build_over(&at, DTM_OP_SUM, "sum", &last, 1, (dtm_dim[]){b, d}, 2);
    attributes = dtm_attributes_default(DTM_OP_REPORT);
    attributes.name = dtm_string_of(context, "sum");
    dtm_build_op(&at, DTM_OP_REPORT, &sum, 1, &attributes, NULL, 0, "");
    return module;
}

static dtm_value named(const dtm_module *module, const char *name) {
    for (dtm_value v = 1; v < module->n_values; v++)
        if (module->values[v].def && strcmp(dtm_value_name(module, v), name) == 0) return v;
    return 0;
}

static const dtm_storage *place(const dtm_module *module, const char *name) {
    return &module->values[named(module, name)].storage;
}

static void test_places(dtm_module *module) {
    expect(place(module, "square")->offset < 0, "a value of one kernel alone needs no memory");
    expect(place(module, "mean")->offset < 0, "nor does a reduction that only its kernel reads");
    expect(place(module, "product")->offset == place(module, "renamed")->offset, "rename moves nothing");
    expect(place(module, "next")->offset == place(module, "h")->offset, "what is carried is made in its own slot");
    expect(place(module, "h")->modulus == 1, "one slot serves a chain that no other loop reads");
    expect(place(module, "started")->offset == place(module, "h")->offset, "what it begins with is made there");
    expect(place(module, "out")->offset == place(module, "h")->offset, "and what it ends with is there");
    expect(place(module, "w")->modulus == 3 && place(module, "w")->stride == 256, "a weight has a slot a copy");
    int fused = 0;
    for (dtm_op op = 1; op < module->n_ops; op++) fused += module->ops[op].region && module->ops[op].kind == DTM_OP_FUSED;
    expect(fused == 1, "square, mean, scaled, next are one kernel");
}

/* The golden GPT, sized so that one kind of tensor is larger than everything else together. */
static dtm_module *sized(dtm_context *context, const char *const *defines, size_t n, const char *mesh) {
    dtm_module *module = dtm_check(context, "tests/golden/gpt/model.dtm", &(dtm_check_options){.defines = defines, .n_defines = n, .mesh = mesh});
    if (module && dtm_pipeline_run(module, &(dtm_pipeline_options){0})) return module;
    dtm_diagnostics_print(context, stdout, false);
    return NULL;
}

static void test_sizes(void) {
    static const char *const vocabulary[] = {"B=8", "S=64", "P=64", "V=8192", "D=4", "H=2"};
    static const char *const positions[] = {"B=1", "S=2048", "P=2048", "V=16", "D=4", "H=1"};
    dtm_context *context = dtm_context_create();
    dtm_module *module = sized(context, vocabulary, 6, NULL);
    int64_t logits = 8 * 64 * 8192 * 4, scores = (int64_t)2048 * 2048 * 4;
    expect(module && module->arena_bytes > logits, "the logits are in memory");
    expect(module && module->arena_bytes < logits * 3 / 2, "but never twice");
    dtm_module_destroy(module);
    module = sized(context, positions, 6, NULL);
    expect(module && module->arena_bytes < scores / 2, "attention never has a matrix of positions by positions");
    dtm_module_destroy(module);
    dtm_context_destroy(context);
}

/* Kinds and fragmentation sum up to the arena; weights and states are what they must be (what lives: peak.c). */
static void test_account(void) {
    dtm_context *context = dtm_context_create();
    dtm_module *module = sized(context, NULL, 0, NULL);
    int64_t bytes = 0;
    for (dtm_op op = 1; module && op < module->n_ops; op++)
        if (module->ops[op].region && module->ops[op].kind == DTM_OP_WEIGHT)
            bytes += dtm_copies(module, module->ops[op].results[0]) *
                     dtm_storage_round(dtm_local_bytes_max(module, module->values[module->ops[op].results[0]].type));
    dtm_memory_account m = module ? dtm_memory_account_of(module) : (dtm_memory_account){0};
    expect(m.weights == bytes, "weights are counted once");
    expect(m.optimizer == 2 * bytes, "AdamW has two states a weight");
    int64_t alive = m.weights + m.gradients + m.optimizer + m.activations + m.workspace + m.communication;
    expect(module && alive + m.fragmentation == module->arena_bytes, "the kinds and what is lost sum up to the arena");
    expect(m.fragmentation >= 0 && m.activations > 0 && m.peak, "most lives somewhere");
    if (module) dtm_module_destroy(module);
    dtm_context_destroy(context);
}

/* Under microbatches, products add up where the sum lies. */
static void test_products_accumulate(void) {
    dtm_context *context = dtm_context_create();
    dtm_module *module = dtm_check(context, "examples/llama.dtm",
                                   &(dtm_check_options){.mesh = "dp=1,tp=1", .sets = (const char *[]){"microbatches=4"}, .n_sets = 1});
    bool good = module && dtm_pipeline_run(module, &(dtm_pipeline_options){0});
    dtm_text plan = {dtm_context_arena(context), NULL, 0, 0}, kernels = plan;
    good = good && dtm_codegen(module, &(dtm_predictions){dtm_run_times, 0, NULL}, &plan, &kernels);
    int later = 0;
    for (const char *at = good ? plan.data : ""; (at = strstr(at, "DTM_PLAN_ADD_LATER")); at++) later++;
    expect(good && later == 8, "the gradients of seven products of a layer and of the head are added in place");
    if (!good) dtm_diagnostics_print(context, stdout, false);
    if (module) dtm_module_destroy(module);
    dtm_context_destroy(context);
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (; (text = strstr(text, what)); text++) n++;
    return n;
}

/* On one rank and on several, one launch updates all matrices of all layers, and one all vectors, which do not decay. */
static void test_update_in_few_launches(const char *mesh) {
    dtm_context *context = dtm_context_create();
    dtm_module *module = dtm_check(context, "examples/llama.dtm", &(dtm_check_options){.mesh = mesh});
    bool good = module && dtm_pipeline_run(module, &(dtm_pipeline_options){0});
    dtm_text plan = {dtm_context_arena(context), NULL, 0, 0}, kernels = plan;
    good = good && dtm_codegen(module, &(dtm_predictions){dtm_run_times, 0, NULL}, &plan, &kernels);
    if (!good) dtm_diagnostics_print(context, stdout, false);
    const char *clipped = good ? strstr(plan.data, ", \"grad_norm\"}}") : NULL;
    const char *first = good ? strstr(plan.data, "DTM_PLAN_KERNEL, DTM_PLAN_UPDATE") : NULL;
    expect(clipped && first, "the norm is reported");
    expect(clipped && count(clipped, "DTM_PLAN_KERNEL,") == 2, "after it, matrices and vectors are updated in a launch each");
    expect(clipped && !strstr(clipped, "DTM_PLAN_REPEAT,"), "not layer by layer");
    if (module) dtm_module_destroy(module);
    dtm_context_destroy(context);
}

/* Of all instructions, each as often as it runs. Copies of the only repeat and microbatches are given. */
static double seconds_of(const char *plan, double copies, double microbatches) {
    double seconds = 0, times = 1;
    for (const char *line = strstr(plan, "dtm_plan_instruction instructions"); line; line = strchr(line + 1, '\n')) {
        int number;
        char kind[24];
        if (sscanf(line, "\n    /* %d */ {DTM_PLAN_%23[A-Z],", &number, kind) != 2) continue;
        bool repeats = strcmp(kind, "REPEAT") == 0, ends = strcmp(kind, "END") == 0;
        const char *end = strchr(line + 1, '\n'), *at = strstr(line, ".seconds = ");
        if (repeats || ends) {
            double of = strncmp(strchr(line, '"'), "\"microbatch", 11) == 0 ? microbatches : copies;
            times = repeats ? times * of : times / of;
        } else if (at && at < end) {
            const char *once = strstr(line, ".last = true");
            seconds += (once && once < end ? times / microbatches : times) * strtod(at + strlen(".seconds = "), NULL);
        }
    }
    return seconds;
}

/* What the plan says of time is what `explain` counts. */
static void test_seconds(const char *file, const char *mesh, const char *set, double copies, double microbatches) {
    dtm_context *context = dtm_context_create();
    dtm_module *module = dtm_check(context, file, &(dtm_check_options){.mesh = mesh, .sets = &set, .n_sets = 1});
    bool good = module && dtm_pipeline_run(module, &(dtm_pipeline_options){0});
    dtm_text plan = {dtm_context_arena(context), NULL, 0, 0}, kernels = plan;
    good = good && dtm_codegen(module, &(dtm_predictions){dtm_run_times, 0, NULL}, &plan, &kernels);
    if (!good) dtm_diagnostics_print(context, stdout, false);
    double counted = good ? dtm_step_time(module) : 0, said = good ? seconds_of(plan.data, copies, microbatches) : 1;
    expect(fabs(1 - said / counted) < 1e-9, "the plan's seconds add up to a step");
    if (module) dtm_module_destroy(module);
    dtm_context_destroy(context);
}

int main(void) {
    test_seconds("examples/llama.dtm", "dp=1,tp=1", "microbatches=1", 4, 1);
    test_seconds("examples/llama.dtm", "dp=2,tp=2", "microbatches=3", 4, 3);
    test_sizes();
    test_update_in_few_launches("dp=1,tp=1");
    test_update_in_few_launches("dp=2,tp=2");
    test_account();
    test_products_accumulate();
    char *texts[2][2];
    for (int run = 0; run < 2; run++) {
        dtm_context *context = dtm_context_create();
        dtm_module *module = made(context);
        expect(dtm_module_verify(module) && dtm_pass_fuse(module) && dtm_module_verify(module), "fuse keeps the laws");
        expect(dtm_pass_memory(module) && dtm_module_verify(module), "memory keeps the laws");
        test_places(module);
        dtm_text plan = {dtm_context_arena(context), NULL, 0, 0}, kernels = plan;
        expect(dtm_codegen(module, &(dtm_predictions){dtm_run_times, 0, NULL}, &plan, &kernels), "code is generated");
        expect(strstr(plan.data, "DTM_PLAN_MATMUL") && strstr(plan.data, "DTM_PLAN_REPORT"), "the plan says what runs");
        expect(strstr(kernels.data, "#pragma omp simd reduction(+ : t1)") != NULL, "a row is summed in lanes");
        texts[run][0] = strdup(plan.data);
        texts[run][1] = strdup(kernels.data);
        dtm_diagnostics_print(context, stdout, false);
        dtm_module_destroy(module);
        dtm_context_destroy(context);
    }
    for (int i = 0; i < 2; i++) {
        expect(strcmp(texts[0][i], texts[1][i]) == 0, "the same module gives the same bytes");
        free(texts[0][i]);
        free(texts[1][i]);
    }
    return failures != 0;
}
