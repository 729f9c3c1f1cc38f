/* What goes between ranks and what layouts ask for on one: collectives, messages of a pipeline, the rank's own block or term, sums
 * over microbatches. */
#include "codegen/generator.h"
#include "ir/calls.h"
#include "ir/fault.h"

static dtm_module *module_of(const dtm_generator *g) { return g->module; }

static dtm_plan_list members_of(dtm_generator *g, const dtm_op_data *op) {
    const dtm_pipeline_rule *rule = &module_of(g)->settings.pipeline;
    if (!op->attributes.members) return (dtm_plan_list){0, NULL};
    int64_t ranks = module_of(g)->settings.mesh.axes[rule->axis].size;
    uint32_t *members = dtm_arena_alloc(g->arena, (size_t)ranks * sizeof *members);
    size_t count = 0;
    for (int64_t r = 0; r < ranks; r++)
        if (dtm_is_member(module_of(g), op, r)) members[count++] = (uint32_t)r;
    return dtm_list_of(g, members, count);
}

void dtm_lower_collective(dtm_generator *g, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(module_of(g), op);
    dtm_staging staging = dtm_staging_of(module_of(g), op);
    int64_t scratch = (int64_t)data->attributes.number[DTM_COLLECTIVE_SCRATCH];
    dtm_plan_tensor *tensors = dtm_arena_alloc(g->arena, data->n_operands * sizeof *tensors);
    for (uint32_t i = 0; i < data->n_operands; i++)
        tensors[i] = (dtm_plan_tensor){dtm_buffer_index(g, data->operands[i]), dtm_buffer_index(g, data->results[i])};
    dtm_plan_collective made = {.kind = dtm_collective_kind_of(data->kind), .algorithm = dtm_collective_algorithm(data),
                                .dtype = g->buffers[tensors[0].input].dtype,
                                .max = !dtm_fault(11) && (dtm_value_type(module_of(g), data->operands[0])->max & data->attributes.axes) != 0,
                                .axes = data->attributes.axes,
                                .members = members_of(g, data),
                                .count = data->n_operands, .tensors = tensors};
    bool apart = dtm_is_apart(module_of(g), op);
    int64_t at = apart ? g->apart + (dtm_fault(90) ? 0 : g->apart_offset[op]) : g->workspace - (dtm_fault(93) ? 0 : g->aside);
    int64_t bytes[3] = {staging.in_bytes, staging.out_bytes, scratch ? scratch : -1};
    int64_t *places[3] = {&made.stage_in, &made.stage_out, &made.scratch};
    for (int i = 0; i < 3; i++) {
        *places[i] = bytes[i] < 0 ? -1 : at;
        if (bytes[i] > 0) at += dtm_storage_round(bytes[i]);
    }
    if (apart && dtm_workspace_copies(module_of(g), op) > 1) made.stage_stride = dtm_storage_round(dtm_workspace_bytes(module_of(g), op));
    if (staging.in_place) made.stage_out = made.stage_in;
    if (staging.in_result) made.stage_in = DTM_PLAN_IN_OUTPUT;
    if (staging.handed_on) made.stage_in = made.stage_out = DTM_PLAN_HANDED_ON;
    made.hands_on = dtm_handed_on_to(module_of(g), op) != 0;
    dtm_plan_instruction *instruction = dtm_emit(g, op, DTM_PLAN_COLLECTIVE, DTM_PLAN_NETWORK);
    instruction->collective = made;
    if (apart) {
        dtm_op before = dtm_goes_on_from(module_of(g), op);
        instruction->records = g->event_of[op] = ++g->n_events;
        instruction->stream = (uint32_t)data->attributes.number[DTM_COLLECTIVE_APART] - 1;
        instruction->after = before ? g->event_of[before] : 0;
    }
    bool ring = made.algorithm != DTM_ALGORITHM_PAIRWISE && !apart && made.count == 1;
    instruction->steps = ring && dtm_is_in_steps(module_of(g), op);
    dtm_op early = apart ? dtm_early_place(module_of(g), op) : 0;
    instruction->last = early && dtm_enclosing(module_of(g), early, DTM_OP_MICROBATCH);
}

void dtm_lower_message(dtm_generator *g, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(module_of(g), op);
    bool sends = data->kind == DTM_OP_SEND;
    const dtm_value *values = sends ? data->operands : data->results;
    uint32_t count = sends ? data->n_operands : data->n_results;
    uint32_t *buffers = dtm_arena_alloc(g->arena, count * sizeof *buffers);
    for (uint32_t i = 0; i < count; i++) buffers[i] = dtm_buffer_index(g, values[i]);
    dtm_plan_message message = {(uint32_t)data->attributes.number[DTM_MESSAGE_PEER],
                                dtm_enclosing(module_of(g), op, DTM_OP_BACKWARD) != 0, {count, buffers}};
    dtm_emit(g, op, sends ? DTM_PLAN_SEND : DTM_PLAN_RECEIVE, DTM_PLAN_NETWORK)->message = message;
}

void dtm_lower_local(dtm_generator *g, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(module_of(g), op);
    bool own = data->kind == DTM_OP_AS_TERM && data->attributes.number[DTM_AS_TERM_OWN] != 0;
    uint16_t axes = own ? 0 : data->attributes.axes;
    dtm_plan_copy copy = {dtm_buffer_index(g, data->operands[0]), dtm_buffer_index(g, data->results[0]), axes};
    dtm_plan_kind kind = data->kind == DTM_OP_SHARD ? DTM_PLAN_COPY : DTM_PLAN_TERM;
    dtm_emit(g, op, kind, DTM_PLAN_MOVEMENT)->copy = copy;
}

/* The first microbatch sets the sum, later ones add to it; a product is added by itself (matmul.c). */
void dtm_lower_accumulate(dtm_generator *g, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(module_of(g), op);
    if (!g->stored[data->operands[0]]) return;
    const dtm_type_data *type = dtm_value_type(module_of(g), data->results[0]);
    dtm_product elements = dtm_product_one(), number = {0, 1, 1, {DTM_PLAN_LATER}};
    for (int i = 0; i < type->rank; i++) dtm_product_times(g, &elements, type, i);
    uint32_t sizes[2] = {dtm_size_index(g, &elements), dtm_size_index(g, &number)};
    const char *c = dtm_c_type((dtm_dtype)type->dtype);
    bool max = dtm_value_type(module_of(g), data->operands[0])->max != type->max;
    uint32_t buffers[2] = {dtm_buffer_index(g, data->operands[0]), dtm_buffer_index(g, data->results[0])};
    if (g->cuda) {
        uint32_t kernel = dtm_cuda_accumulate(g, (dtm_dtype)type->dtype, max);
        dtm_emit_launch(g, op, DTM_PLAN_ELEMENTWISE, kernel, buffers, 2, sizes, 2);
        return;
    }
    const char *term = dtm_c_loaded(g->arena, (dtm_dtype)type->dtype, "x[i]"), *sum = dtm_c_loaded(g->arena, (dtm_dtype)type->dtype, "sum[i]");
    const char *added = dtm_c_stored(g->arena, (dtm_dtype)type->dtype, dtm_arena_printf(g->arena, "%s + %s", sum, term));
    if (max) added = dtm_arena_printf(g->arena, "%s > %s || %s != %s ? x[i] : sum[i]", term, sum, term, term);
    const char *text = dtm_arena_printf(g->arena,
        "static int64_t @_extent(const int64_t *z) {\n    return (z[0] + 4095) / 4096;\n}\n"
        "static int64_t @_scratch_bytes(const int64_t *z) {\n    return (void)z, 0;\n}\n"
        "static void @(const dtm_kernel_args *a, int64_t begin, int64_t end) {\n"
        "    const %s *const x = a->buffers[0];\n    %s *const sum = a->buffers[1];\n"
        "    const int64_t low = begin * 4096, high = end * 4096 < a->sizes[0] ? end * 4096 : a->sizes[0];\n"
        "    if (a->sizes[1] == 0) {\n        for (int64_t i = low; i < high; i++) sum[i] = x[i];\n        return;\n    }\n"
        "#pragma omp simd\n    for (int64_t i = low; i < high; i++) sum[i] = %s;\n}\n",
        c, c, !max && dtm_fault(33) ? "x[i]" : added);
    dtm_emit_launch(g, op, DTM_PLAN_ELEMENTWISE, dtm_kernel_index(g, "accumulate", text), buffers, 2, sizes, 2);
}
