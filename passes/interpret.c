/* Runs a module: walks the regions, and executes each operator for all ranks before the next. There is no control flow that
 * depends on data, so collectives are plain functions over all ranks' blocks. */
#include "passes/interpret_state.h"

#include <string.h>

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

<<<<<<< HEAD
/* ---- slots ---- */
=======
/* ---- loops and slots ---- */

static bool is_loop(dtm_op_kind kind) {
    return kind == DTM_OP_REPEAT || kind == DTM_OP_MICROBATCH;
}

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
        if (is_loop(op->kind)) {
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

static bool too_many_ranks(dtm_run *run) {
    dtm_error(run->context, (dtm_span){0, 0, 0}, DTM_INTERPRET_BUDGET, "too large to interpret: %lld ranks, the limit is %.3g",
              (long long)run->ranks, run->options.max_elements);
    dtm_help(run->context, "make the mesh smaller on the command line: --mesh dp=2 ..");
    return !(run->failed = true);
}

static bool within_budget(dtm_run *run, const setup *s) {
    double most = run->options.max_elements;
    if (s->elements <= most && s->products / 256 <= most) return true;
    if (s->elements > most)
        dtm_error(run->context, (dtm_span){0, 0, 0}, DTM_INTERPRET_BUDGET,
                  "too large to interpret: %.3g elements on %lld ranks, the limit is %.3g", s->elements,
                  (long long)run->ranks, most);
    else
        dtm_error(run->context, (dtm_span){0, 0, 0}, DTM_INTERPRET_BUDGET,
                  "too large to interpret: %.3g multiplications a step on %lld ranks, the limit is %.3g", s->products,
                  (long long)run->ranks, most * 256);
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

static void *table(dtm_run *run, size_t count, size_t bytes) {
    return dtm_arena_alloc(run->arena, count * bytes);
}

static bool set_up(dtm_run *run) {
    const dtm_module *module = run->module;
    run->op_loops = table(run, module->n_ops, 1);
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
>>>>>>> d206ddf (stage: cuts a program along a repeat into the programs of a pipeline's ranks; the interpreter runs them side by side)

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

<<<<<<< HEAD
=======
const char *dtm_run_path(dtm_run *run, dtm_string pattern) {
    dtm_text text = {.arena = run->out->arena};
    const char *at = dtm_string_text(run->context, pattern);
    while (*at) {
        const char *close = *at == '{' ? strchr(at, '}') : NULL;
        size_t l = 0;
        for (; close && l < run->n_loops; l++) {
            const char *name = dtm_string_text(run->context, run->loops[l].name);
            if (strlen(name) == (size_t)(close - at - 1) && !strncmp(name, at + 1, strlen(name))) break;
        }
        if (close && l < run->n_loops && run->loops[l].current >= 0) {
            dtm_text_printf(&text, "%lld", (long long)(run->loops[l].first + run->loops[l].current));
            at = close + 1;
        } else {
            dtm_text_append(&text, at++, 1);
        }
    }
    return text.length ? dtm_arena_strdup(run->out->arena, text.data) : "";
}

/* ---- results ---- */

static dtm_tensor *add_tensor(dtm_run *run, dtm_tensors *list, const char *name, const dtm_type_data *type,
                              double *data) {
    dtm_tensor tensor = {.name = name,
                         .step = run->step,
                         .dtype = (dtm_dtype)type->dtype,
                         .rank = type->rank,
                         .elements = 1,
                         .data = data};
    for (int d = 0; d < type->rank; d++) {
        tensor.sizes[d] = run->module->dims[type->dims[d]].size;
        tensor.dims[d] = dtm_dim_name(run->module, type->dims[d]);
        tensor.elements *= tensor.sizes[d];
    }
    DTM_PUSH(run->out->arena, list->data, list->count, list->capacity, tensor);
    return &list->data[list->count - 1];
}

/* A whole tensor of one type written as another: dimensions in its order, those it lacks repeated. */
static double *conform(dtm_run *run, const dtm_type_data *from, double *data, const dtm_type_data *to) {
    if (from->rank == to->rank && !memcmp(from->dims, to->dims, sizeof from->dims)) return data;
    int64_t strides[DTM_MAX_RANK], own[DTM_MAX_RANK], index[DTM_MAX_RANK] = {0}, offset = 0;
    dtm_whole_strides(run->module, from, own);
    for (int d = 0; d < to->rank; d++) {
        strides[d] = 0;
        for (int e = 0; e < from->rank; e++)
            if (from->dims[e] == to->dims[d]) strides[d] = own[e];
    }
    int64_t elements = dtm_run_elements(run, to);
    double *out = dtm_arena_alloc(run->out->arena, (size_t)elements * sizeof *out);
    for (int64_t i = 0; i < elements; i++) {
        out[i] = data[offset];
        for (int d = to->rank - 1; d >= 0; d--) {
            offset += strides[d];
            if (++index[d] < run->module->dims[to->dims[d]].size) break;
            offset -= strides[d] * index[d];
            index[d] = 0;
        }
    }
    return out;
}

/* How far the slots of two microbatches lie apart; 0: they share. */
static size_t time_stride(const dtm_run *run, dtm_value value) {
    const dtm_slots *slots = &run->slots[value];
    size_t stride = 0;
    for (int i = 0; i < slots->depth; i++) {
        if (slots->loops[i] == run->time_loop)
            stride = 1;
        else
            stride *= (size_t)run->loops[slots->loops[i]].copies;
    }
    return stride;
}

static bool record(dtm_run *run, const dtm_op_data *op, dtm_tensors *list, const char *name, dtm_value value,
                   const dtm_type_data *as) {
    size_t slot = operand_slot(run, op, value);
    if (slot == SIZE_MAX || !dtm_storage_read(run, op, value, slot)) return false;
    dtm_type type = run->module->values[value].type;
    const dtm_type_data *data = &run->module->types[type];
    size_t stride = time_stride(run, value);
    if (stride) { /* of each microbatch a part: whole with the last */
        int64_t now = run->loops[run->time_loop].current;
        if (now + 1 < run->microbatches) return true;
        slot -= stride * (size_t)now;
    }
    double *whole = dtm_run_assemble(run, type, slot, stride, run->out->arena);
    add_tensor(run, list, name, as, conform(run, data, whole, as));
    return true;
}

static const dtm_type_data *type_of(const dtm_run *run, dtm_value value) {
    return &run->module->types[run->module->values[value].type];
}

static void keep(dtm_run *run, dtm_value value, size_t slot) {
    size_t stride = time_stride(run, value);
    if (stride) slot -= stride * (size_t)run->loops[run->time_loop].current;
    if (run->kept_before[slot]) return;
    run->kept_before[slot] = true;
    dtm_kept kept = {value, slot};
    DTM_PUSH(run->arena, run->kept, run->n_kept, run->cap_kept, kept);
}

static const char *copy_name(dtm_run *run, dtm_value value, size_t copy) {
    const dtm_slots *slots = &run->slots[value];
    int64_t numbers[DTM_MAX_DEPTH], n = 0;
    for (int i = slots->depth - 1; i >= 0; i--) {
        size_t copies = (size_t)run->loops[slots->loops[i]].copies;
        if (slots->loops[i] != run->time_loop) numbers[n++] = (int64_t)(copy % copies);
        copy /= copies;
    }
    dtm_text text = {.arena = run->out->arena};
    dtm_text_printf(&text, "%s", dtm_value_name(run->module, value));
    for (int64_t i = n - 1; i >= 0; i--)
        dtm_text_printf(&text, "%s%lld", i == n - 1 ? "[" : ", ", (long long)numbers[i]);
    if (n) dtm_text_printf(&text, "]");
    return dtm_arena_strdup(run->out->arena, text.data);
}

static void assemble_kept(dtm_run *run) {
    for (size_t i = 0; i < run->n_kept; i++) {
        dtm_value value = run->kept[i].value;
        size_t slot = run->kept[i].slot;
        double *whole =
            dtm_run_assemble(run, run->module->values[value].type, slot, time_stride(run, value), run->out->arena);
        add_tensor(run, &run->out->values, copy_name(run, value, slot - run->slots[value].base), type_of(run, value),
                   whole);
    }
}

/* ---- variables: weights and states ---- */

/* Puts the loops of a value where copy number `copy` is executed. */
static void enter_copy(dtm_run *run, dtm_value value, size_t copy) {
    const dtm_slots *slots = &run->slots[value];
    for (int i = slots->depth - 1; i >= 0; i--) {
        dtm_loop *loop = &run->loops[slots->loops[i]];
        loop->current = (int64_t)(copy % (size_t)loop->copies);
        copy /= (size_t)loop->copies;
    }
}

static size_t copies_of(const dtm_run *run, dtm_value value) {
    size_t copies = 1;
    for (int i = 0; i < run->slots[value].depth; i++) copies *= (size_t)run->loops[run->slots[value].loops[i]].copies;
    return copies;
}

typedef void visit_variable(dtm_run *run, const dtm_op_data *op, dtm_value value, size_t slot);

/* Visits every copy of every weight and state. */
static void each_variable(dtm_run *run, visit_variable *visit) {
    for (dtm_op o = 1; o < run->module->n_ops; o++) {
        const dtm_op_data *op = &run->module->ops[o];
        if (op->kind != DTM_OP_WEIGHT && op->kind != DTM_OP_STATE) continue;
        dtm_value value = op->results[0];
        if (run->slots[value].base == SIZE_MAX) continue;
        for (size_t copy = 0; copy < copies_of(run, value); copy++) {
            enter_copy(run, value, copy);
            visit(run, op, value, run->slots[value].base + copy);
        }
        for (size_t l = 0; l < run->n_loops; l++) run->loops[l].current = -1;
    }
}

static void set_variable(dtm_run *run, const dtm_op_data *op, dtm_value value, size_t slot) {
    dtm_type type = run->module->values[value].type;
    int64_t elements = dtm_run_elements(run, &run->module->types[type]);
    double *whole = dtm_arena_alloc(run->arena, (size_t)elements * sizeof *whole);
    dtm_draw_variable(run, op, dtm_run_path(run, op->attributes.name), whole, elements);
    for (int64_t rank = 0; rank < run->ranks; rank++) {
        const dtm_extent *extent = dtm_run_extent(run, type, rank);
        double *block = dtm_arena_alloc(run->arena, (size_t)extent->elements * sizeof *block);
        dtm_run_cut(run->module, &run->module->types[type], extent, whole, block);
        run->variables[slot * (size_t)run->ranks + (size_t)rank] = block;
    }
    dtm_storage_write(run, value, slot);
}

static void save_variable(dtm_run *run, const dtm_op_data *op, dtm_value value, size_t slot) {
    size_t first = slot * (size_t)run->ranks;
    memcpy(run->views + first, run->variables + first, (size_t)run->ranks * sizeof *run->views);
    if (!dtm_run_check_alike(run, op, value, slot)) return;
    double *whole = dtm_run_assemble(run, run->module->values[value].type, slot, 0, run->out->arena);
    add_tensor(run, op->kind == DTM_OP_WEIGHT ? &run->out->weights : &run->out->states,
               dtm_run_path(run, op->attributes.name), type_of(run, value), whole);
}

/* Remembers the blocks of the new value, each as the variable has them. */
static bool run_store(dtm_run *run, const dtm_op_data *op) {
    dtm_value variable = op->operands[0], source = op->operands[1];
    size_t slot = dtm_run_slot(run, op, variable), from = operand_slot(run, op, source);
    if (slot == SIZE_MAX || from == SIZE_MAX) return false;
    dtm_op def = run->module->values[variable].def;
    dtm_op_kind kind = def ? run->module->ops[def].kind : DTM_OP_NONE;
    if (kind != DTM_OP_WEIGHT && kind != DTM_OP_STATE)
        return dtm_run_error(run, op, "`%s` is no weight or state", dtm_value_name(run->module, variable));
    /* an add of nothing brings the block into the variable's order of dimensions, and checks that it is that block */
    dtm_type type = run->module->values[variable].type, from_type = run->module->values[source].type;
    dtm_pending_store store = {slot, type, table(run, (size_t)run->ranks, sizeof(double *))};
    for (int64_t rank = 0; rank < run->ranks; rank++) {
        const dtm_extent *extent = dtm_run_extent(run, type, rank);
        store.blocks[rank] = dtm_arena_alloc(run->arena, (size_t)extent->elements * sizeof(double));
        dtm_tile in = {&run->module->types[from_type], dtm_run_extent(run, from_type, rank),
                       run->views[from * (size_t)run->ranks + (size_t)rank]};
        dtm_tile out = {&run->module->types[type], extent, store.blocks[rank]};
        dtm_call call = {run, op, rank, 1, 1, &in, &out};
        if (!dtm_interpret_rules[DTM_OP_EXPAND](&call)) return false;
    }
    DTM_PUSH(run->arena, run->stores, run->n_stores, run->cap_stores, store);
    return dtm_storage_store(run, op, variable, slot, source, from);
}

static void take_stores(dtm_run *run) {
    for (size_t i = 0; i < run->n_stores; i++)
        for (int64_t rank = 0; rank < run->ranks; rank++)
            memcpy(run->variables[run->stores[i].slot * (size_t)run->ranks + (size_t)rank], run->stores[i].blocks[rank],
                   (size_t)dtm_run_extent(run, run->stores[i].type, rank)->elements * sizeof(double));
    run->n_stores = 0;
}

>>>>>>> d206ddf (stage: cuts a program along a repeat into the programs of a pipeline's ranks; the interpreter runs them side by side)
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

static bool alias(dtm_run *run, const dtm_op_data *op, dtm_value source, size_t from) {
    dtm_value value = op->results[0];
    size_t slot = dtm_run_slot(run, op, value), ranks = (size_t)run->ranks;
    if (slot == SIZE_MAX) return false;
    if (run->module->values[value].type != run->module->values[source].type)
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
    bool first = run->loops[run->time_loop].current == 0;
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

static bool is_view(dtm_op_kind kind) {
    return kind == DTM_OP_RENAME || kind == DTM_OP_SPLIT || kind == DTM_OP_MERGE;
}

static bool mark_results(dtm_run *run, const dtm_op_data *op) {
    for (uint32_t i = 0; i < op->n_results; i++) {
        size_t slot = dtm_run_slot(run, op, op->results[i]);
        if (is_view(op->kind)) {
            size_t from = dtm_run_slot(run, op, op->operands[0]);
            if (!dtm_storage_alias(run, op, op->results[0], slot, op->operands[0], from)) return false;
        } else {
            dtm_storage_write(run, op->results[i], slot);
        }
    }
    return true;
}

/* An operator that works on each rank's blocks alone. */
static bool run_local(dtm_run *run, const dtm_op_data *op) {
    enum { MOST_OPERANDS = 8, MOST_RESULTS = 4 };
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
        if (!rule(&call)) return false;
    }
    return true;
}

static bool run_loop(dtm_run *run, dtm_op op) {
    const dtm_op_data *data = &run->module->ops[op];
    dtm_loop *loop = &run->loops[run->op_loops[op]];
    if (loop->current >= 0)
        return dtm_run_error(run, data, "repeat `%s` inside itself", dtm_string_text(run->context, loop->name));
    bool done = true;
    if (data->kind == DTM_OP_MICROBATCH) run->microbatch_op = op;
    for (int64_t i = 0; done && i < loop->copies; i++) {
        loop->current = is_reversed(data) ? loop->copies - 1 - i : i;
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
        return read_operands(run, op) && dtm_run_collective(run, op) && mark_results(run, op);
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
    for (uint32_t i = 0; i < op->n_results; i++) {
        size_t slot = dtm_run_slot(run, op, op->results[i]);
        if (!dtm_run_check_alike(run, op, op->results[i], slot)) return false;
        if (run->options.keep_step == run->step) dtm_run_keep(run, op->results[i], slot);
    }
    return true;
}

static bool run_region(dtm_run *run, dtm_region region) {
    const dtm_region_data *body = &run->module->regions[region];
    for (size_t i = 0; i < body->n_ops; i++)
        if (!run_op(run, body->ops[i])) return false;
    return true;
}

static bool run_steps(dtm_run *run) {
    dtm_run_set_variables(run);
    for (run->step = 1; run->step <= run->options.steps; run->step++) {
        memset(run->inputs, 0, run->module->n_ops * sizeof *run->inputs);
        dtm_storage_step(run);
        if (!run_region(run, run->module->body)) return false;
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
