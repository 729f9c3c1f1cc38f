/* What a run reads and leaves behind, as whole tensors: weights and states from step to step, reports, outputs, gradients, and
 * the values that are kept to be looked at. */
#include "passes/interpret_state.h"

#include <string.h>

/* ---- names ---- */

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

/* ---- whole tensors ---- */

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

bool dtm_run_record(dtm_run *run, const dtm_op_data *op, dtm_tensors *list, const char *name, dtm_value value,
                    const dtm_type_data *as) {
    size_t slot = dtm_run_operand_slot(run, op, value);
    if (slot == SIZE_MAX || !dtm_storage_read(run, op, value, slot)) return false;
    dtm_type type = run->module->values[value].type;
    const dtm_type_data *data = &run->module->types[type];
    size_t stride = time_stride(run, value);
    if (stride) { /* of each microbatch a part: whole with the last */
        int64_t now = run->loops[run->time_loop].current;
        if (now + 1 < run->microbatches) return true;
        slot -= stride * (size_t)now;
    }
    double *whole = dtm_run_assemble(run, type, slot, stride, run->out->arena, NULL);
    add_tensor(run, list, name, as, conform(run, data, whole, as));
    return true;
}

void dtm_run_keep(dtm_run *run, dtm_value value, size_t slot) {
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
        if (slots->loops[i] != run->time_loop) numbers[n++] = run->loops[slots->loops[i]].first + (int64_t)(copy % copies);
        copy /= copies;
    }
    dtm_text text = {.arena = run->out->arena};
    dtm_text_printf(&text, "%s", dtm_value_name(run->module, value));
    for (int64_t i = n - 1; i >= 0; i--)
        dtm_text_printf(&text, "%s%lld", i == n - 1 ? "[" : ", ", (long long)numbers[i]);
    if (n) dtm_text_printf(&text, "]");
    return dtm_arena_strdup(run->out->arena, text.data);
}

/* Sums of which a rank of a pipeline has a part, which others add theirs to: they are not what the program calls so. */
static void find_parts(const dtm_run *run, dtm_value value, bool *part) {
    dtm_op def = run->module->values[value].def;
    const dtm_op_data *op = &run->module->ops[def];
    bool sums = op->kind == DTM_OP_ADD || op->kind == DTM_OP_LAST || op->kind == DTM_OP_CARRY || op->kind == DTM_OP_ACCUMULATE;
    if (!def || part[value] || !sums) return;
    part[value] = true;
    for (uint32_t i = 0; i < op->n_operands && op->kind != DTM_OP_ACCUMULATE; i++) find_parts(run, op->operands[i], part);
}

/* Whether a sum over microbatches lacks some that went through another rank. */
static bool lacks_microbatches(const dtm_run *run, dtm_value value, size_t slot, size_t stride) {
    const dtm_type_data *type = &run->module->types[run->module->values[value].type];
    if (!stride || run->time_axis < 0 || !((type->sum | type->max) >> run->time_axis & 1)) return false;
    for (int64_t m = 0; m < run->microbatches; m++)
        if (!run->views[(slot + (size_t)m * stride) * (size_t)run->ranks]) return true;
    return false;
}

void dtm_run_assemble_kept(dtm_run *run) {
    bool *part = dtm_arena_alloc(run->arena, run->module->n_values * sizeof *part);
    for (dtm_op op = 1; op < run->module->n_ops; op++) {
        const dtm_op_data *data = &run->module->ops[op];
        if (data->region && data->kind == DTM_OP_AS_TERM && data->attributes.number[DTM_AS_TERM_OWN] != 0)
            find_parts(run, data->operands[0], part);
    }
    for (size_t i = 0; i < run->n_kept; i++) {
        dtm_value value = run->kept[i].value;
        size_t slot = run->kept[i].slot, stride = time_stride(run, value);
        if (part[value] || lacks_microbatches(run, value, slot, stride)) continue;
        uint8_t *seen;
        double *whole = dtm_run_assemble(run, run->module->values[value].type, slot, stride, run->out->arena, &seen);
        add_tensor(run, &run->out->values, copy_name(run, value, slot - run->slots[value].base), dtm_run_type_of(run, value),
                   whole);
        dtm_tensor *made = &run->out->values.data[run->out->values.count - 1];
        if (made->elements && memchr(seen, 0, (size_t)made->elements)) made->seen = seen;
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
    double *whole = dtm_run_assemble(run, run->module->values[value].type, slot, 0, run->out->arena, NULL);
    add_tensor(run, op->kind == DTM_OP_WEIGHT ? &run->out->weights : &run->out->states,
               dtm_run_path(run, op->attributes.name), dtm_run_type_of(run, value), whole);
}

void dtm_run_set_variables(dtm_run *run) { each_variable(run, set_variable); }
void dtm_run_save_variables(dtm_run *run) { each_variable(run, save_variable); }

/* Remembers the blocks of the new value, each as the variable has them. */
bool dtm_run_store(dtm_run *run, const dtm_op_data *op) {
    dtm_value variable = op->operands[0], source = op->operands[1];
    size_t slot = dtm_run_slot(run, op, variable), from = dtm_run_operand_slot(run, op, source);
    if (slot == SIZE_MAX || from == SIZE_MAX) return false;
    dtm_op def = run->module->values[variable].def;
    dtm_op_kind kind = def ? run->module->ops[def].kind : DTM_OP_NONE;
    if (kind != DTM_OP_WEIGHT && kind != DTM_OP_STATE)
        return dtm_run_error(run, op, "`%s` is no weight or state", dtm_value_name(run->module, variable));
    /* an add of nothing brings the block into the variable's order of dimensions, and checks that it is that block */
    dtm_type type = run->module->values[variable].type, from_type = run->module->values[source].type;
    dtm_pending_store store = {slot, type, dtm_arena_alloc(run->arena, (size_t)run->ranks * sizeof(double *))};
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

void dtm_run_take_stores(dtm_run *run) {
    for (size_t i = 0; i < run->n_stores; i++)
        for (int64_t rank = 0; rank < run->ranks; rank++)
            memcpy(run->variables[run->stores[i].slot * (size_t)run->ranks + (size_t)rank], run->stores[i].blocks[rank],
                   (size_t)dtm_run_extent(run, run->stores[i].type, rank)->elements * sizeof(double));
    run->n_stores = 0;
}
