/* Before the first step: which loops there are, a slot for each copy of each value, and whether all of it is small enough to
 * be gone through in plain loops. */
#include "passes/interpret_state.h"

/* Values that microbatches share. */
static bool is_shared(dtm_op_kind kind) {
    return kind == DTM_OP_ACCUMULATE || kind == DTM_OP_WEIGHT || kind == DTM_OP_STATE;
}

static uint8_t loop_named(dtm_run *run, const dtm_op_data *op) {
    if (op->kind == DTM_OP_MICROBATCH && run->time_loop != DTM_NO_LOOP) return run->time_loop;
    for (size_t l = 0; l < run->n_loops; l++)
        if (run->loops[l].name == op->attributes.name) {
            if (run->loops[l].copies != op->attributes.copies)
                dtm_run_error(run, op, "repeats of one name with %lld and %lld copies", (long long)run->loops[l].copies,
                              (long long)op->attributes.copies);
            return (uint8_t)l;
        }
    if (run->n_loops == DTM_MAX_LOOPS) dtm_broken("interpret", "more than %d repeats", DTM_MAX_LOOPS);
    run->loops[run->n_loops] = (dtm_loop){op->attributes.name, op->attributes.copies, op->attributes.from, -1};
    return (uint8_t)run->n_loops++;
}

typedef struct setup {
    uint8_t loops[DTM_MAX_DEPTH];
    uint8_t depth;
    double copies;   /* of the loops around */
    double elements; /* so far, of all values on all ranks */
    double products; /* so far, of dot and attention */
    double dropouts; /* so far */
} setup;

/* Multiplications of one execution on one rank, about. */
static double products_of(const dtm_run *run, const dtm_op_data *op) {
    bool attention = op->kind == DTM_OP_ATTENTION || op->kind == DTM_OP_ATTENTION_BACKWARD;
    if (op->kind != DTM_OP_DOT && !attention) return 0;
    const dtm_type_data *first = &run->module->types[run->module->values[op->operands[0]].type];
    const dtm_type_data *result = &run->module->types[run->module->values[op->results[0]].type];
    dtm_extent extent, of_result;
    dtm_run_compute_extent(run, first, 0, 0, &extent);
    dtm_run_compute_extent(run, result, 0, 0, &of_result);
    if (attention) return 2.0 * (double)extent.elements * (double)run->module->dims[op->attributes.over[0]].size;
    double products = (double)of_result.elements;
    for (int d = 0; d < first->rank; d++)
        for (int i = 0; i < op->attributes.n_over; i++)
            if (op->attributes.over[i] == first->dims[d]) products *= (double)extent.size[d];
    return products;
}

static void set_up_value(dtm_run *run, setup *s, const dtm_op_data *op, dtm_value value) {
    dtm_slots *slots = &run->slots[value];
    double copies = 1;
    *slots = (dtm_slots){.base = run->n_slots};
    size_t count = 1;
    for (int i = 0; i < s->depth; i++) {
        if (s->loops[i] == run->time_loop && op && is_shared(op->kind)) continue;
        slots->loops[slots->depth++] = s->loops[i];
        copies *= (double)run->loops[s->loops[i]].copies;
        count *= (size_t)run->loops[s->loops[i]].copies;
    }
    dtm_extent extent;
    dtm_run_compute_extent(run, &run->module->types[run->module->values[value].type], 0, 0, &extent);
    s->elements += copies * (double)run->ranks * (double)(extent.elements + 1);
    run->n_slots += count;
}

static void set_up_region(dtm_run *run, setup *s, dtm_region region) {
    const dtm_region_data *body = &run->module->regions[region];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *op = &run->module->ops[body->ops[i]];
        for (uint32_t r = 0; r < op->n_results; r++) set_up_value(run, s, op, op->results[r]);
        if (op->kind == DTM_OP_DROPOUT) {
            double site = op->attributes.number[DTM_DROPOUT_SITE];
            run->sites[body->ops[i]] = ++s->dropouts;
            if (site > 0) run->sites[body->ops[i]] = site;
        }
        s->products += products_of(run, op) * s->copies * (double)run->ranks;
        if (!op->body) continue;
        setup outer = *s;
        if (dtm_run_is_loop(op->kind)) {
            uint8_t loop = loop_named(run, op);
            if (s->depth == DTM_MAX_DEPTH) dtm_broken("interpret", "more than %d repeats in repeats", DTM_MAX_DEPTH);
            if (op->kind == DTM_OP_MICROBATCH) run->time_loop = loop;
            run->op_loops[body->ops[i]] = loop;
            s->loops[s->depth++] = loop;
            s->copies *= (double)op->attributes.copies;
        }
        set_up_region(run, s, op->body);
        s->depth = outer.depth;
        s->copies = outer.copies;
    }
}

/* Where no loop goes through the microbatches yet, they are interpreted side by side, as ranks are. */
static bool too_many_ranks(dtm_run *run) {
    const dtm_mesh *mesh = &run->module->settings.mesh;
    int64_t microbatches = 1;
    for (int a = 0; a < mesh->count; a++)
        if (mesh->axes[a].time && run->rank_strides[a]) microbatches *= mesh->axes[a].size;
    dtm_error(run->context, (dtm_span){0, 0, 0}, DTM_INTERPRET_BUDGET, "too large to interpret: %lld ranks%s, the limit is %.3g",
              (long long)(run->ranks / microbatches),
              microbatches > 1 ? dtm_arena_printf(run->arena, " of %lld microbatches", (long long)microbatches) : "",
              run->options.max_elements);
    dtm_help(run->context, "make the mesh smaller on the command line: --mesh dp=2 ..");
    return !(run->failed = true);
}

static bool within_budget(dtm_run *run, const setup *s) {
    double most = run->options.max_elements;
    if (s->elements <= most && s->products / 256 <= most) return true;
    if (s->elements > most)
        dtm_error(run->context, (dtm_span){0, 0, 0}, DTM_INTERPRET_BUDGET,
                  "too large to interpret: %.3g elements on %lld rank%s, the limit is %.3g", s->elements,
                  (long long)run->ranks, dtm_plural(run->ranks), most);
    else
        dtm_error(run->context, (dtm_span){0, 0, 0}, DTM_INTERPRET_BUDGET,
                  "too large to interpret: %.3g multiplications a step on %lld rank%s, the limit is %.3g", s->products,
                  (long long)run->ranks, dtm_plural(run->ranks), most * 256);
    dtm_help(run->context, "make dimensions smaller on the command line: -D B=2 -D S=8 ..");
    run->failed = true;
    return false;
}

static void find_time(dtm_run *run) {
    const dtm_mesh *mesh = &run->module->settings.mesh;
    run->time_axis = -1;
    run->time_loop = DTM_NO_LOOP;
    run->microbatches = 1;
    bool looped = false;
    for (dtm_op op = 1; op < run->module->n_ops; op++) {
        const dtm_op_data *data = &run->module->ops[op];
        looped |= data->kind == DTM_OP_MICROBATCH && data->body && run->module->regions[data->body].n_ops;
    }
    for (int a = 0; looped && a < mesh->count; a++)
        if (mesh->axes[a].time) {
            run->time_axis = a;
            run->microbatches = mesh->axes[a].size;
        }
}

static void *table(dtm_run *run, size_t count, size_t bytes) { return dtm_arena_alloc(run->arena, count * bytes); }

bool dtm_run_set_up(dtm_run *run) {
    const dtm_module *module = run->module;
    run->op_loops = table(run, module->n_ops, 1);
    run->schedules = table(run, module->n_ops, sizeof *run->schedules);
    run->sites = table(run, module->n_ops, sizeof *run->sites);
    run->slots = table(run, module->n_values, sizeof *run->slots);
    run->inputs = table(run, module->n_ops, sizeof *run->inputs);
    run->extents = table(run, module->n_types, sizeof *run->extents);
    for (size_t v = 0; v < module->n_values; v++) run->slots[v].base = SIZE_MAX;
    find_time(run);
    if (!dtm_run_mesh(run)) return too_many_ranks(run);
    setup s = {.copies = 1};
    set_up_region(run, &s, module->body);
    for (dtm_value v = 1; v < module->n_values; v++)
        if (!module->values[v].def) set_up_value(run, &(setup){.copies = 1}, NULL, v);
    if (run->failed || !within_budget(run, &s)) return false;
    size_t blocks = run->n_slots * (size_t)run->ranks;
    run->views = table(run, blocks, sizeof *run->views);
    run->blocks = table(run, blocks, sizeof *run->blocks);
    run->variables = table(run, blocks, sizeof *run->variables);
    run->kept_before = table(run, run->n_slots, sizeof *run->kept_before);
    for (dtm_value v = 1; v < module->n_values; v++)
        if (!module->values[v].def)
            for (int64_t rank = 0; rank < run->ranks; rank++)
                *dtm_run_block(run, run->slots[v].base, module->values[v].type, rank) = module->values[v].number;
    return dtm_storage_begin(run);
}
