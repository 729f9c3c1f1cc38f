/* After memory: every value must still own its bytes where it is read. All ranks have one arena layout, so one map
 * serves for all: it holds for each byte the slot that wrote it last. */
#include "ir/storage.h"
#include "passes/interpret_state.h"

#include <string.h>

enum { MOST_ARENA_BYTES = 1 << 27 };

static bool checked(const dtm_run *run) {
    return run->owners != NULL;
}

bool dtm_storage_begin(dtm_run *run) {
    if (!run->options.check_storage || run->module->arena_bytes <= 0) return true;
    if (run->module->arena_bytes > MOST_ARENA_BYTES) {
        dtm_error(run->context, (dtm_span){0, 0, 0}, DTM_INTERPRET_BUDGET,
                  "too large to check its storage: an arena of %lld bytes, the limit is %d",
                  (long long)run->module->arena_bytes, MOST_ARENA_BYTES);
        return !(run->failed = true);
    }
    run->owners = dtm_arena_alloc(run->arena, (size_t)run->module->arena_bytes * sizeof *run->owners);
    run->owner_of = dtm_arena_alloc(run->arena, run->n_slots * sizeof *run->owner_of);
    run->address_of = dtm_arena_alloc(run->arena, run->n_slots * sizeof *run->address_of);
    run->stored = dtm_arena_alloc(run->arena, run->n_slots * sizeof *run->stored);
    run->early = dtm_arena_alloc(run->arena, run->module->n_ops * sizeof *run->early);
    run->early_next = dtm_arena_alloc(run->arena, run->module->n_ops * sizeof *run->early_next);
    for (dtm_op op = 1; op < run->module->n_ops; op++) {
        dtm_op place = dtm_is_apart(run->module, op) ? dtm_early_place(run->module, op) : 0;
        if (!place) continue;
        run->early_next[op] = run->early[place];
        run->early[place] = op;
    }
    dtm_apart_begin(run);
    if (dtm_loop_places_of(run->module, dtm_rank_loop(run->module), run->arena, &run->places))
        dtm_broken("interpret", "places that were not verified");
    return true;
}

void dtm_storage_step(dtm_run *run) {
    if (checked(run)) memset(run->stored, 0, run->n_slots * sizeof *run->stored);
}

/* Microbatches share their storage, but for what is kept from call to call; repeats inside repeats count through. */
int64_t dtm_storage_address(const dtm_run *run, dtm_value value, size_t slot) {
    const dtm_storage *storage = &run->module->values[value].storage;
    const dtm_slots *slots = &run->slots[value];
    int64_t copies = 1;
    for (int l = 0; l < slots->depth; l++)
        if (slots->loops[l] != run->time_loop) copies *= run->loops[slots->loops[l]].copies;
    int64_t i = (int64_t)(slot - slots->base) % copies;
    int64_t modulus = storage->modulus ? storage->modulus : 1, place = storage->offset;
    if (storage->places) place += dtm_loop_place_bytes(&run->places, storage, (size_t)run->loops[run->time_loop].current);
    return place + (i + storage->shift) % modulus * storage->stride;
}

/* Of the largest block any rank has. */
int64_t dtm_storage_bytes(dtm_run *run, dtm_value value) {
    dtm_type type = run->module->values[value].type;
    int64_t most = 0;
    for (int64_t rank = 0; rank < run->ranks; rank++) {
        int64_t elements = dtm_run_extent(run, type, rank)->elements;
        if (elements > most) most = elements;
    }
    return most * dtm_dtype_bytes((dtm_dtype)run->module->types[type].dtype);
}

static bool in_arena(const dtm_run *run, dtm_value value) {
    const dtm_value_data *data = &run->module->values[value];
    return data->def && data->storage.offset >= 0;
}

static bool storage_error(dtm_run *run, const dtm_op_data *op, const char *format, const char *a, const char *b) {
    if (!run->failed) dtm_error(run->context, op ? op->span : (dtm_span){0, 0, 0}, DTM_INTERPRET_STORAGE, format, a, b);
    return !(run->failed = true);
}

void dtm_storage_write(dtm_run *run, dtm_value value, size_t slot) {
    if (!checked(run) || run->failed) return;
    run->owner_of[slot] = 0;
    if (!in_arena(run, value)) return;
    int64_t begin = dtm_storage_address(run, value, slot), bytes = dtm_storage_bytes(run, value);
    if (begin + bytes > run->module->arena_bytes) {
        storage_error(run, NULL, "`%s` reaches beyond the arena%s", dtm_value_name(run->module, value), "");
        return;
    }
    if (!dtm_apart_write(run, value, slot, begin, bytes)) return;
    run->owner_of[slot] = (uint32_t)slot + 1;
    run->address_of[slot] = begin;
    for (int64_t i = 0; i < bytes; i++) run->owners[begin + i] = (uint32_t)slot + 1;
}

/* In place it is written when its operand has been read. Of sums over microbatches the last has to be there. */
bool dtm_storage_start(dtm_run *run, dtm_op unit) {
    if (!checked(run)) return true;
    for (dtm_op at = run->early[unit]; at && !run->failed; at = run->early_next[at]) {
        const dtm_op_data *op = &run->module->ops[at];
        for (uint32_t i = 0; i < op->n_results; i++) {
            size_t from = dtm_run_slot(run, op, op->operands[i]), to = dtm_run_slot(run, op, op->results[i]);
            if (from == SIZE_MAX || to == SIZE_MAX) return false;
            if (dtm_storage_address(run, op->operands[i], from) != dtm_storage_address(run, op->results[i], to))
                dtm_storage_write(run, op->results[i], to);
        }
        bool last = run->last_call || !dtm_enclosing(run->module, unit, DTM_OP_MICROBATCH);
        if (last && !run->failed && !dtm_apart_start(run, at, false)) return false;
    }
    bool here = dtm_is_apart(run->module, unit) && !dtm_early_place(run->module, unit);
    return !run->failed && (!here || dtm_apart_start(run, unit, true));
}

bool dtm_storage_started(dtm_run *run, const dtm_op_data *op) {
    dtm_op self = (dtm_op)(op - run->module->ops);
    bool early = checked(run) && dtm_is_apart(run->module, self) && dtm_early_place(run->module, self);
    for (uint32_t i = 0; early && i < op->n_results; i++) {
        size_t from = dtm_run_slot(run, op, op->operands[i]), to = dtm_run_slot(run, op, op->results[i]);
        if (from == SIZE_MAX || to == SIZE_MAX) return false;
        if (dtm_storage_address(run, op->operands[i], from) != dtm_storage_address(run, op->results[i], to) &&
            !dtm_storage_read(run, op, op->results[i], to))
            return false;
    }
    return !early || dtm_apart_stands(run, op);
}

static void stand_for(dtm_run *run, size_t slot, size_t source) {
    run->owner_of[slot] = run->owner_of[source];
    run->address_of[slot] = run->address_of[source];
}

bool dtm_storage_alias(dtm_run *run, const dtm_op_data *op, dtm_value value, size_t slot, dtm_value source,
                       size_t source_slot) {
    if (!checked(run)) return true;
    bool same =
        in_arena(run, value) && run->owner_of[source_slot] && dtm_storage_address(run, value, slot) == run->address_of[source_slot];
    if (!in_arena(run, value) || same) {
        stand_for(run, slot, source_slot);
        return true;
    }
    if (!dtm_storage_read(run, op, source, source_slot)) return false;
    dtm_storage_write(run, value, slot);
    return !run->failed;
}

static const char *name_of_slot(const dtm_run *run, size_t slot) {
    dtm_value found = 0;
    for (dtm_value v = 1; v < run->module->n_values; v++)
        if (run->slots[v].base <= slot && (!found || run->slots[v].base > run->slots[found].base)) found = v;
    return found ? dtm_value_name(run->module, found) : "nothing";
}

bool dtm_storage_read(dtm_run *run, const dtm_op_data *op, dtm_value value, size_t slot) {
    if (!checked(run) || run->in_fused) return true;
    const char *name = dtm_value_name(run->module, value);
    if (!run->owner_of[slot] && in_arena(run, value))
        return dtm_apart_read(run, op, value, dtm_storage_address(run, value, slot), dtm_storage_bytes(run, value));
    if (!run->owner_of[slot]) return true;
    if (run->stored[slot])
        return storage_error(run, op, "`%s` is read after its new value has been stored%s", name, "");
    int64_t begin = run->address_of[slot], bytes = dtm_storage_bytes(run, value);
    for (int64_t i = 0; i < bytes; i++)
        if (run->owners[begin + i] != run->owner_of[slot])
            return storage_error(run, op, "`%s` is read, but `%s` has been written over it", name,
                                 run->owners[begin + i] ? name_of_slot(run, run->owners[begin + i] - 1) : "nothing");
    return dtm_apart_read(run, op, value, begin, bytes);
}

bool dtm_storage_store(dtm_run *run, const dtm_op_data *op, dtm_value variable, size_t slot, dtm_value source,
                       size_t source_slot) {
    if (!checked(run)) return true;
    if (!dtm_storage_read(run, op, source, source_slot)) return false;
    if (in_arena(run, variable) && run->owner_of[source_slot] &&
        dtm_storage_address(run, variable, slot) == run->address_of[source_slot])
        stand_for(run, slot, source_slot);
    else
        dtm_storage_write(run, variable, slot);
    run->stored[slot] = true;
    return !run->failed;
}
