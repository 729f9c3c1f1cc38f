/* Runs a module: walks the regions, and executes each operator for all ranks before the next. There is no control flow that
 * depends on data, so collectives are plain functions over all ranks' blocks. */
#include "passes/interpret_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPERANDS = 8, MOST_RESULTS = 4 };

bool dtm_run_error(dtm_run *run, const dtm_op_data *op, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!run->failed) dtm_error(run->context, op ? op->span : (dtm_span){0, 0, 0}, DTM_INTERPRET_BROKEN, "%s", text);
    run->failed = true;
    return false;
}

/* ---- slots ---- */

double *dtm_run_block(dtm_run *run, size_t slot, dtm_type type, int64_t rank) {
    size_t index = slot * (size_t)run->ranks + (size_t)rank;
    if (!run->blocks[index])
        run->blocks[index] =
            dtm_arena_alloc(run->arena, (size_t)dtm_run_extent(run, type, rank)->elements * sizeof(double));
    return run->views[index] = run->blocks[index];
}

/* The slot in the copies now executed. */
static size_t current_slot(const dtm_run *run, dtm_value value) {
    const dtm_slots *slots = &run->slots[value];
    size_t copy = 0;
    for (int i = 0; i < slots->depth; i++) {
        const dtm_loop *loop = &run->loops[slots->loops[i]];
        if (loop->current < 0) return SIZE_MAX;
        copy = copy * (size_t)loop->copies + (size_t)loop->current;
    }
    return slots->base == SIZE_MAX ? SIZE_MAX : slots->base + copy;
}

size_t dtm_run_slot(dtm_run *run, const dtm_op_data *op, dtm_value value) {
    size_t slot = current_slot(run, value);
    if (slot == SIZE_MAX) dtm_run_error(run, op, "`%s` is read outside its repeat", dtm_value_name(run->module, value));
    return slot;
}

/* The microbatch loop around an operator, or 0. */
static dtm_op microbatch_around(const dtm_run *run, dtm_op op) {
    while (op && run->module->ops[op].kind != DTM_OP_MICROBATCH)
        op = run->module->regions[run->module->ops[op].region].parent;
    return op;
}

/* The slot of an operand, which must have been set. */
size_t dtm_run_operand_slot(dtm_run *run, const dtm_op_data *op, dtm_value value) {
    size_t slot = dtm_run_slot(run, op, value);
    if (slot == SIZE_MAX) return slot;
    dtm_op def = run->module->values[value].def;
    bool partial = def && run->module->ops[def].kind == DTM_OP_ACCUMULATE && run->microbatch_op &&
                   microbatch_around(run, def) == run->microbatch_op;
    if (!run->views[slot * (size_t)run->ranks] || partial) {
        dtm_run_error(run, op,
                      partial ? "`%s` is read before all microbatches have added to it"
                              : "`%s` is read before it is set",
                      dtm_value_name(run->module, value));
        return SIZE_MAX;
    }
    return slot;
}

/* ---- operators ---- */

static bool run_region(dtm_run *run, dtm_region region);

static bool run_variable(dtm_run *run, const dtm_op_data *op) {
    size_t slot = dtm_run_slot(run, op, op->results[0]), first = slot * (size_t)run->ranks;
    if (slot == SIZE_MAX) return false;
    memcpy(run->views + first, run->variables + first, (size_t)run->ranks * sizeof *run->views);
    return true;
}

static bool run_input(dtm_run *run, const dtm_op_data *op) {
    dtm_value value = op->results[0];
    dtm_type type = run->module->values[value].type;
    double **whole = &run->inputs[op - run->module->ops];
    if (!*whole) {
        int64_t elements = dtm_run_elements(run, &run->module->types[type]);
        *whole = dtm_arena_alloc(run->arena, (size_t)elements * sizeof(double));
        dtm_draw_input(run, op, *whole, elements);
    }
    size_t slot = dtm_run_slot(run, op, value);
    if (slot == SIZE_MAX) return false;
    for (int64_t rank = 0; rank < run->ranks; rank++)
        dtm_run_cut(run->module, &run->module->types[type], dtm_run_extent(run, type, rank), *whole,
                    dtm_run_block(run, slot, type, rank));
    dtm_storage_write(run, value, slot);
    return true;
}

/* Whether a value may be another one as it is: types are the same; the number 0 is a term of any sum too. */
static bool may_be(const dtm_run *run, dtm_value value, dtm_value source) {
    const dtm_value_data *from = &run->module->values[source];
    dtm_type_data to = run->module->types[run->module->values[value].type];
    if (run->module->values[value].type == from->type) return true;
    to.sum = 0;
    return !from->def && from->number == 0 && memcmp(&to, &run->module->types[from->type], sizeof to) == 0;
}

static bool alias(dtm_run *run, const dtm_op_data *op, dtm_value source, size_t from) {
    dtm_value value = op->results[0];
    size_t slot = dtm_run_slot(run, op, value), ranks = (size_t)run->ranks;
    if (slot == SIZE_MAX) return false;
    if (!may_be(run, value, source))
        return dtm_run_error(run, op, "`%s` and `%s`, which are one value, differ in type",
                             dtm_value_name(run->module, value), dtm_value_name(run->module, source));
    memcpy(run->views + slot * ranks, run->views + from * ranks, ranks * sizeof *run->views);
    return dtm_storage_alias(run, op, value, slot, source, from);
}

/* The repeats around an operator, innermost first. */
static dtm_op loop_around(const dtm_run *run, const dtm_op_data *op) {
    dtm_op parent = run->module->regions[op->region].parent;
    while (parent && !dtm_run_is_loop(run->module->ops[parent].kind))
        parent = run->module->regions[run->module->ops[parent].region].parent;
    return parent;
}

static bool is_reversed(const dtm_op_data *loop) {
    return loop->kind == DTM_OP_REPEAT && loop->attributes.flags & DTM_REPEAT_REVERSED;
}

static bool run_carry(dtm_run *run, const dtm_op_data *op) {
    dtm_op around = loop_around(run, op);
    if (!around) return dtm_run_error(run, op, "`carry` outside a repeat");
    dtm_loop *loop = &run->loops[run->op_loops[around]];
    bool reversed = is_reversed(&run->module->ops[around]);
    int64_t now = loop->current;
    if (now == (reversed ? loop->copies - 1 : 0)) {
        size_t from = dtm_run_operand_slot(run, op, op->operands[0]);
        return from != SIZE_MAX && alias(run, op, op->operands[0], from);
    }
    loop->current += reversed ? 1 : -1;
    size_t from = dtm_run_operand_slot(run, op, op->operands[1]);
    loop->current = now;
    return from != SIZE_MAX && alias(run, op, op->operands[1], from);
}

static bool run_last(dtm_run *run, const dtm_op_data *op) {
    dtm_value source = op->operands[0];
    dtm_op def = run->module->values[source].def;
    int64_t before[DTM_MAX_LOOPS];
    for (size_t l = 0; l < run->n_loops; l++) before[l] = run->loops[l].current;
    for (dtm_op around = def ? loop_around(run, &run->module->ops[def]) : 0; around;
         around = loop_around(run, &run->module->ops[around])) {
        dtm_loop *loop = &run->loops[run->op_loops[around]];
        if (loop->current < 0) loop->current = is_reversed(&run->module->ops[around]) ? 0 : loop->copies - 1;
    }
    size_t from = dtm_run_operand_slot(run, op, source);
    for (size_t l = 0; l < run->n_loops; l++) run->loops[l].current = before[l];
    return from != SIZE_MAX && alias(run, op, source, from);
}

static bool run_accumulate(dtm_run *run, const dtm_op_data *op) {
    dtm_value source = op->operands[0], value = op->results[0];
    dtm_type type = run->module->values[value].type, from_type = run->module->values[source].type;
    const dtm_type_data *from_data = &run->module->types[from_type];
    if (!run->microbatch_op) return dtm_run_error(run, op, "`accumulate` outside a microbatch loop");
    size_t slot = dtm_run_slot(run, op, value), from = dtm_run_operand_slot(run, op, source);
    if (slot == SIZE_MAX || from == SIZE_MAX || !dtm_storage_read(run, op, source, from)) return false;
    bool first = run->first_call;
    bool by_max = run->time_axis >= 0 && from_data->max >> run->time_axis & 1;
    if (!first && !dtm_storage_read(run, op, value, slot)) return false;
    for (int64_t rank = 0; rank < run->ranks; rank++) {
        int64_t elements = dtm_run_extent(run, type, rank)->elements;
        if (elements != dtm_run_extent(run, from_type, rank)->elements)
            return dtm_run_error(run, op, "`%s` and what is added to it differ in their blocks",
                                 dtm_value_name(run->module, value));
        double *sum = dtm_run_block(run, slot, type, rank);
        const double *term = run->views[from * (size_t)run->ranks + (size_t)rank];
        for (int64_t i = 0; i < elements; i++)
            if (first)
                sum[i] = term[i];
            else if (!by_max)
                sum[i] += term[i];
            else if (!(term[i] <= sum[i]))
                sum[i] = term[i];
    }
    dtm_storage_write(run, value, slot);
    return true;
}

static bool read_operands(dtm_run *run, const dtm_op_data *op) {
    for (uint32_t i = 0; i < op->n_operands; i++) {
        size_t slot = dtm_run_operand_slot(run, op, op->operands[i]);
        if (slot == SIZE_MAX || !dtm_storage_read(run, op, op->operands[i], slot)) return false;
    }
    return true;
}

static bool is_view(const dtm_op_data *op) {
    bool own = op->kind == DTM_OP_AS_TERM && op->attributes.number[DTM_AS_TERM_OWN] != 0;
    return own || op->kind == DTM_OP_RENAME || op->kind == DTM_OP_SPLIT || op->kind == DTM_OP_MERGE;
}

static bool mark_results(dtm_run *run, const dtm_op_data *op) {
    for (uint32_t i = 0; i < op->n_results; i++) {
        size_t slot = dtm_run_slot(run, op, op->results[i]);
        if (is_view(op)) {
            size_t from = dtm_run_slot(run, op, op->operands[0]);
            if (!dtm_storage_alias(run, op, op->results[0], slot, op->operands[0], from)) return false;
        } else {
            dtm_storage_write(run, op->results[i], slot);
        }
    }
    return true;
}

static bool apply(dtm_run *run, dtm_interpret_rule *rule, dtm_call *call) {
    double *copies[MOST_OPERANDS] = {NULL};
    bool off = run->options.rounding || run->options.nudge;
    for (uint32_t i = 0; off && i < call->n_operands; i++) {
        copies[i] = dtm_round_otherwise(run, &call->operands[i], run->options.rounding ? 0x1p-24 : 0x1p-52);
        if (copies[i]) call->operands[i].data = copies[i];
    }
    bool good = rule(call);
    for (uint32_t i = 0; i < call->n_operands; i++) free(copies[i]);
    return good;
}

/* An operator that works on each rank's blocks alone. */
static bool run_local(dtm_run *run, const dtm_op_data *op) {
    dtm_tile operands[MOST_OPERANDS], results[MOST_RESULTS];
    size_t from[MOST_OPERANDS], to[MOST_RESULTS];
    dtm_interpret_rule *rule = dtm_interpret_rules[op->kind];
    if (!rule || op->n_operands > MOST_OPERANDS || op->n_results > MOST_RESULTS)
        return dtm_run_error(run, op, "`%s` cannot be interpreted", dtm_op_rows[op->kind].name);
    for (uint32_t i = 0; i < op->n_operands; i++)
        if ((from[i] = dtm_run_operand_slot(run, op, op->operands[i])) == SIZE_MAX) return false;
    for (uint32_t i = 0; i < op->n_results; i++)
        if ((to[i] = dtm_run_slot(run, op, op->results[i])) == SIZE_MAX) return false;
    for (int64_t rank = 0; rank < run->ranks; rank++) {
        for (uint32_t i = 0; i < op->n_operands; i++) {
            dtm_type type = run->module->values[op->operands[i]].type;
            operands[i] = (dtm_tile){&run->module->types[type], dtm_run_extent(run, type, rank),
                                     run->views[from[i] * (size_t)run->ranks + (size_t)rank]};
        }
        for (uint32_t i = 0; i < op->n_results; i++) {
            dtm_type type = run->module->values[op->results[i]].type;
            results[i] = (dtm_tile){&run->module->types[type], dtm_run_extent(run, type, rank),
                                    dtm_run_block(run, to[i], type, rank)};
        }
        dtm_call call = {run, op, rank, op->n_operands, op->n_results, operands, results};
        if (!apply(run, rule, &call)) return false;
    }
    return true;
}

/* What may come at any time from now on has its place to itself; what may still be on its way has not been written over. */
static bool run_message_entry(dtm_run *run, const dtm_loop_entry *entry) {
    const dtm_op_data *op = &run->module->ops[entry->message];
    for (uint32_t i = 0; i < op->n_results; i++) {
        size_t slot = dtm_run_slot(run, op, op->results[i]);
        if (slot == SIZE_MAX) return false;
        dtm_storage_write(run, op->results[i], slot);
    }
    for (uint32_t i = 0; i < op->n_operands; i++) {
        size_t slot = dtm_run_operand_slot(run, op, op->operands[i]);
        if (slot == SIZE_MAX || !dtm_storage_read(run, op, op->operands[i], slot)) return false;
    }
    return !run->failed;
}

static bool run_in_order(dtm_run *run, dtm_op op, dtm_loop *loop) {
    dtm_loop_schedule *schedule = &run->schedules[op];
    const char *wrong = schedule->entries ? NULL : dtm_loop_schedule_of(run->module, op, run->arena, schedule);
    if (wrong) return dtm_run_error(run, &run->module->ops[op], "%s", wrong);
    bool done = true;
    for (size_t i = 0; done && i < schedule->n_entries; i++) {
        const dtm_loop_entry *entry = &schedule->entries[i];
        const dtm_loop_call *call = &schedule->calls.items[entry->call.index];
        loop->current = call->microbatch;
        run->first_call = call->first;
        run->last_call = dtm_loop_call_is_last(&schedule->calls, call);
        if (entry->kind != DTM_LOOP_RUN) done = run_message_entry(run, entry);
        else if (call->begin == call->end) done = run_region(run, run->module->ops[call->region].body);
        else if (call->index == call->begin) done = dtm_run_pair(run, &schedule->calls, call); /* with those that follow */
    }
    return done;
}

static bool run_loop(dtm_run *run, dtm_op op) {
    const dtm_op_data *data = &run->module->ops[op];
    dtm_loop *loop = &run->loops[run->op_loops[op]];
    if (loop->current >= 0)
        return dtm_run_error(run, data, "repeat `%s` inside itself", dtm_string_text(run->context, loop->name));
    bool done = true, ordered = dtm_loop_is_ordered(run->module, op);
    if (data->kind == DTM_OP_MICROBATCH) run->microbatch_op = op;
    if (ordered) done = run_in_order(run, op, loop);
    for (int64_t i = 0; !ordered && done && i < loop->copies; i++) {
        loop->current = is_reversed(data) ? loop->copies - 1 - i : i;
        if (data->kind == DTM_OP_MICROBATCH) run->first_call = i == 0, run->last_call = i + 1 == loop->copies;
        done = run_region(run, data->body);
    }
    loop->current = -1;
    if (data->kind == DTM_OP_MICROBATCH) run->microbatch_op = 0;
    return done;
}

/* One kernel: it reads what comes from outside before it writes anything. */
static bool run_fused(dtm_run *run, const dtm_op_data *fused) {
    const dtm_region_data *body = &run->module->regions[fused->body];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *op = &run->module->ops[body->ops[i]];
        for (uint32_t o = 0; o < op->n_operands; o++) {
            dtm_op def = run->module->values[op->operands[o]].def;
            if (!def || run->module->ops[def].region == fused->body) continue;
            size_t slot = dtm_run_operand_slot(run, op, op->operands[o]);
            if (slot == SIZE_MAX || !dtm_storage_read(run, op, op->operands[o], slot)) return false;
        }
    }
    run->in_fused = true;
    bool done = run_region(run, fused->body);
    run->in_fused = false;
    for (size_t i = 0; done && i < body->n_ops; i++) done = mark_results(run, &run->module->ops[body->ops[i]]);
    return done;
}

static bool run_sink(dtm_run *run, const dtm_op_data *op) {
    switch (op->kind) {
    case DTM_OP_REPORT:
        return dtm_run_record(run, op, &run->out->reports, dtm_run_path(run, op->attributes.name), op->operands[0],
                      dtm_run_type_of(run, op->operands[0]));
    case DTM_OP_OUTPUT:
        return dtm_run_record(run, op, &run->out->outputs, dtm_run_path(run, op->attributes.name), op->operands[0],
                      dtm_run_type_of(run, op->operands[0]));
    case DTM_OP_GRADIENT: {
        const dtm_op_data *weight = &run->module->ops[run->module->values[op->operands[0]].def];
        return dtm_run_record(run, op, &run->out->gradients, dtm_run_path(run, weight->attributes.name), op->operands[1],
                      dtm_run_type_of(run, op->operands[0]));
    }
    default:
        return dtm_run_store(run, op);
    }
}

/* A value of one microbatch outside their loop has no block. */
static bool check_time(dtm_run *run, const dtm_op_data *op) {
    if (run->time_axis < 0 || run->loops[run->time_loop].current >= 0) return true;
    for (uint32_t i = 0; i < op->n_results; i++) {
        const dtm_type_data *type = dtm_run_type_of(run, op->results[i]);
        if ((dtm_run_split_axes(type) | type->sum | type->max) >> run->time_axis & 1)
            return dtm_run_error(run, op, "`%s` is a value of one microbatch, outside their loop",
                                 dtm_value_name(run->module, op->results[i]));
    }
    return true;
}

static bool run_plain(dtm_run *run, const dtm_op_data *op) {
    switch (op->kind) {
    case DTM_OP_INPUT:
        return run_input(run, op);
    case DTM_OP_WEIGHT:
    case DTM_OP_STATE:
        return run_variable(run, op);
    case DTM_OP_CARRY:
        return run_carry(run, op);
    case DTM_OP_LAST:
        return run_last(run, op);
    case DTM_OP_ACCUMULATE:
        return run_accumulate(run, op);
    case DTM_OP_REPORT:
    case DTM_OP_OUTPUT:
    case DTM_OP_GRADIENT:
    case DTM_OP_STORE:
        return run_sink(run, op);
    case DTM_OP_SEND:
        return dtm_run_send(run, op);
    case DTM_OP_RECEIVE:
        return dtm_run_receive(run, op);
    case DTM_OP_RELAYOUT:
    case DTM_OP_SHARD:
    case DTM_OP_AS_TERM:
    case DTM_OP_ALL_REDUCE:
    case DTM_OP_ALL_GATHER:
    case DTM_OP_REDUCE_SCATTER:
    case DTM_OP_ALL_TO_ALL:
    case DTM_OP_PERMUTE:
        return read_operands(run, op) && dtm_storage_started(run, op) && dtm_run_collective(run, op) && mark_results(run, op);
    default:
        if (run->in_fused) return run_local(run, op);
        return read_operands(run, op) && run_local(run, op) && mark_results(run, op);
    }
}

static bool run_op(dtm_run *run, dtm_op o) {
    const dtm_op_data *op = &run->module->ops[o];
    if (dtm_run_is_loop(op->kind)) return run_loop(run, o);
    if (op->kind == DTM_OP_FUSED) return run_fused(run, op);
    if (op->body) return run_region(run, op->body);
    if (!check_time(run, op) || !run_plain(run, op)) return false;
    dtm_round_results(run, op);
    for (uint32_t i = 0; i < op->n_results; i++) {
        size_t slot = dtm_run_slot(run, op, op->results[i]);
        if (!dtm_run_check_alike(run, op, op->results[i], slot)) return false;
        if (run->options.keep_step == run->step) dtm_run_keep(run, op->results[i], slot);
    }
    return true;
}

bool dtm_run_unit(dtm_run *run, dtm_op op) {
    if (run->module->ops[op].kind != DTM_OP_CARRY && !run_op(run, op)) return false; /* carries have been entered */
    if (!run->in_fused && !dtm_storage_start(run, op)) return false;
    return !run->failed;
}

bool dtm_run_enter(dtm_run *run, dtm_region region) {
    const dtm_region_data *body = &run->module->regions[region];
    for (size_t i = 0; i < body->n_ops; i++)
        if (run->module->ops[body->ops[i]].kind == DTM_OP_CARRY && !run_op(run, body->ops[i])) return false;
    return true;
}

static bool run_region(dtm_run *run, dtm_region region) {
    const dtm_region_data *body = &run->module->regions[region];
    if (!dtm_run_enter(run, region)) return false;
    for (size_t i = 0; i < body->n_ops; i++)
        if (!dtm_run_unit(run, body->ops[i])) return false;
    return true;
}

static bool run_steps(dtm_run *run) {
    dtm_run_set_variables(run);
    for (run->step = 1; run->step <= run->options.steps; run->step++) {
        memset(run->inputs, 0, run->module->n_ops * sizeof *run->inputs);
        dtm_storage_step(run);
        if (!run_region(run, run->module->body) || !dtm_apart_end_step(run)) return false;
        if (run->options.keep_step == run->step) dtm_run_assemble_kept(run);
        dtm_run_take_stores(run);
    }
    run->step = run->options.steps;
    dtm_run_save_variables(run);
    return !run->failed;
}

dtm_interpretation *dtm_interpret(const dtm_module *module, const dtm_interpret_options *options) {
    return module->n_ranks ? dtm_interpret_pipeline(module, options) : dtm_interpret_rank(module, options, NULL);
}

dtm_interpretation *dtm_interpret_rank(const dtm_module *module, const dtm_interpret_options *options, dtm_peers *peers) {
    dtm_arena *arena = dtm_arena_create();
    dtm_interpretation *out = dtm_arena_alloc(arena, sizeof *out);
    out->arena = arena;
    dtm_run *run = dtm_arena_alloc(arena, sizeof *run);
    *run = (dtm_run){.module = module, .context = module->context, .options = *options, .out = out, .peers = peers};
    run->arena = dtm_arena_create();
    if (run->options.steps < 1) run->options.steps = 1;
    if (!(run->options.max_elements > 0)) run->options.max_elements = 134217728;
    if (!run->options.bounds) {
        dtm_input_bound *bounds;
        run->options.n_bounds = dtm_input_bounds(module, run->arena, &bounds);
        run->options.bounds = bounds;
    }
    out->steps = run->options.steps;
    bool done = dtm_run_set_up(run) && run_steps(run);
    dtm_arena_destroy(run->arena);
    if (done) return out;
    dtm_arena_destroy(arena);
    return NULL;
}

void dtm_interpretation_destroy(dtm_interpretation *interpretation) {
    if (interpretation) dtm_arena_destroy(interpretation->arena);
}

const dtm_tensor *dtm_tensors_find(const dtm_tensors *tensors, const char *name, int64_t step) {
    for (size_t i = tensors->count; i > 0; i--)
        if (!strcmp(tensors->data[i - 1].name, name) && (!step || tensors->data[i - 1].step == step))
            return &tensors->data[i - 1];
    return NULL;
}
