/* What is carried out apart (storage.h): where it starts, what must not come between, and when it has ended for sure. */
#include "ir/storage.h"
#include "ir/fault.h"

#include <stdlib.h>

bool dtm_is_apart(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    bool may = data->kind == DTM_OP_ALL_REDUCE || data->kind == DTM_OP_REDUCE_SCATTER || data->kind == DTM_OP_ALL_GATHER;
    return may && data->region && data->attributes.number[DTM_COLLECTIVE_APART] != 0;
}

/* Whether two operators run in the same copies of repeats, microbatches apart. */
static bool same_repeats(const dtm_module *module, dtm_op a, dtm_op b) {
    do a = dtm_enclosing(module, a, DTM_OP_REPEAT), b = dtm_enclosing(module, b, DTM_OP_REPEAT);
    while (a && b && dtm_same_copies(module, a, b));
    return !a && !b;
}

/* What makes a value; what only names it again in a region is seen through. */
static dtm_op maker_of(const dtm_module *module, dtm_value value, dtm_region region) {
    dtm_op def = module->values[value].def;
    while (def && module->ops[def].region == region && dtm_is_alias(module, def)) def = module->values[module->ops[def].operands[0]].def;
    return def;
}

/* Whether a bucket takes what another makes, and nothing else does: one tensor after another, as they are packed. */
static bool takes_packed(const dtm_module *module, dtm_op op, dtm_op def) {
    const dtm_op_data *data = &module->ops[op], *other = &module->ops[def];
    if (data->kind != DTM_OP_ALL_REDUCE || other->kind != DTM_OP_ALL_REDUCE) return false;
    for (uint32_t i = 0; i < data->n_operands; i++)
        if (dtm_root_of(module, data->operands[i]) != other->results[i]) return false;
    for (dtm_op reader = 1; reader < module->n_ops; reader++) {
        const dtm_op_data *at = &module->ops[reader];
        if (reader == op || !at->region || dtm_is_alias(module, reader)) continue;
        for (uint32_t i = 0; i < at->n_operands; i++)
            if (module->values[dtm_root_of(module, at->operands[i])].def == def) return false;
    }
    return true;
}

dtm_op dtm_goes_on_from(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    if (!data->n_operands || !dtm_runs_collective(data->kind)) return 0;
    dtm_op def = maker_of(module, data->operands[0], data->region);
    if (!def || !dtm_is_apart(module, def) || module->ops[def].n_results != data->n_operands) return 0;
    if (module->ops[def].region != data->region || !dtm_early_place(module, def)) return 0;
    if (data->n_operands > 1) return takes_packed(module, op, def) ? def : 0;
    return dtm_staging_of(module, def).out_bytes < 0 && dtm_staging_of(module, op).in_bytes < 0 ? def : 0;
}

dtm_op dtm_handed_on_to(const dtm_module *module, dtm_op op) {
    const dtm_region_data *region = &module->regions[module->ops[op].region];
    if (module->ops[op].n_results < 2 || !dtm_is_apart(module, op)) return 0;
    for (size_t i = 0; i < region->n_ops; i++)
        if (dtm_is_apart(module, region->ops[i]) && dtm_goes_on_from(module, region->ops[i]) == op) return region->ops[i];
    return 0;
}

bool dtm_comes_after(const dtm_module *module, dtm_op op, dtm_op from) {
    while (op && op != from) op = dtm_goes_on_from(module, op);
    return op == from;
}

dtm_op dtm_early_place(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    dtm_op last = 0, before = dtm_goes_on_from(module, op);
    if (before) return dtm_early_place(module, before);
    for (uint32_t i = 0; i < data->n_operands; i++) {
        dtm_op def = maker_of(module, data->operands[i], data->region), unit = def ? dtm_unit_of(module, def) : 0;
        if (!unit || (last && module->ops[unit].region != module->ops[last].region)) return 0;
        if (module->ops[def].kind == DTM_OP_WEIGHT || module->ops[def].kind == DTM_OP_STATE) return 0;
        if (!last || (unit != last && dtm_op_position(module, unit) > dtm_op_position(module, last))) last = unit;
    }
    if (!last || module->ops[last].region == data->region || dtm_enclosing(module, op, DTM_OP_MICROBATCH)) return 0;
    return same_repeats(module, op, last) ? last : 0;
}

/* The outermost loop around op that is not around `other`; 0: none. */
static dtm_op loop_apart_from(const dtm_module *module, dtm_op op, dtm_op other) {
    dtm_op found = 0;
    for (dtm_op at = dtm_enclosing(module, op, DTM_OP_NONE); at; at = dtm_enclosing(module, at, DTM_OP_NONE)) {
        if (!dtm_is_loop(module->ops[at].kind)) continue;
        bool around = false;
        for (dtm_op o = other ? dtm_enclosing(module, other, DTM_OP_NONE) : 0; o && !around; o = dtm_enclosing(module, o, DTM_OP_NONE)) around = o == at;
        if (!around) found = at;
    }
    return found;
}

static bool is_in_region(const dtm_module *module, dtm_op op, dtm_region region) {
    for (; op; op = module->regions[module->ops[op].region].parent)
        if (module->ops[op].region == region) return true;
    return false;
}

/* What touches the bytes of a value, or of one that is an alias of it; a carry, `last` and `store` may be names of what lies there. */
static void find_touch(const dtm_module *module, const dtm_order *order, dtm_op *const *users, dtm_op op, dtm_value value, bool loop,
                       int64_t *at) {
    for (const dtm_op *user = users[value]; *user; user++) {
        const dtm_op_data *data = &module->ops[*user];
        if (data->kind == DTM_OP_CARRY || data->kind == DTM_OP_LAST || data->kind == DTM_OP_STORE) continue;
        if (dtm_is_alias(module, *user)) {
            find_touch(module, order, users, op, data->results[0], loop, at);
            continue;
        }
        if (dtm_is_apart(module, *user) && dtm_goes_on_from(module, *user) == op) { /* it may be under way as long as that */
            for (uint32_t i = 0; i < data->n_results; i++) find_touch(module, order, users, *user, data->results[i], loop, at);
            continue;
        }
        if (order->begin[*user] <= order->begin[op] || (loop && !is_in_region(module, *user, module->ops[op].region))) continue;
        dtm_op within = loop_apart_from(module, *user, op);
        int64_t end = order->end[within ? within : *user];
        if (*at < 0 || end < *at) *at = end;
    }
}

static int64_t touched_by(const dtm_module *module, const dtm_order *order, dtm_op *const *users, dtm_op op) {
    int64_t at = -1;
    bool loop = dtm_enclosing(module, op, DTM_OP_REPEAT) || dtm_enclosing(module, op, DTM_OP_MICROBATCH);
    for (uint32_t i = 0; i < module->ops[op].n_results; i++)
        find_touch(module, order, users, op, module->ops[op].results[i], loop, &at);
    return at;
}

int64_t dtm_touched_by(const dtm_module *module, const dtm_order *order, dtm_op op) {
    dtm_arena *arena = dtm_arena_create();
    int64_t at = touched_by(module, order, dtm_users_of(module, arena), op);
    dtm_arena_destroy(arena);
    return at;
}

/* ---- in place ---- */

/* The first reader of a value, or of what is an alias of it, after position `from`, but for `op`. */
static dtm_op reader_after(const dtm_module *module, const dtm_order *order, dtm_op *const *users, dtm_op op, dtm_value value, int64_t from) {
    for (const dtm_op *user = users[value]; *user; user++) {
        const dtm_op_data *data = &module->ops[*user];
        bool names = (data->kind == DTM_OP_STORE || data->kind == DTM_OP_GRADIENT) && data->operands[0] == value;
        if (*user == op || names) continue;
        dtm_op later = dtm_is_alias(module, *user) ? reader_after(module, order, users, op, data->results[0], from) : 0;
        if (later) return later;
        int64_t at = order->begin[*user];
        if (data->kind == DTM_OP_CARRY) { /* into the first copy as its loop begins, else at the end of each copy */
            dtm_op loop = dtm_enclosing(module, *user, DTM_OP_REPEAT);
            at = data->operands[0] == value ? order->begin[loop] : order->end[loop];
        }
        if (at > from && !dtm_is_alias(module, *user)) return *user;
    }
    return 0;
}

dtm_op dtm_reader_after_start(const dtm_module *module, const dtm_order *order, dtm_op *const *users, dtm_op op, dtm_value operand) {
    dtm_op early = dtm_is_apart(module, op) ? dtm_early_place(module, op) : 0;
    operand = dtm_root_of(module, operand);
    return reader_after(module, order, users, op, operand, early ? order->end[early] : order->begin[op]);
}

/* ---- workspaces of what is carried out apart ---- */

typedef struct under_way {
    dtm_op op;
    int64_t place, from, to, offset, bytes; /* place: where it stands */
} under_way;

static under_way under_way_of(const dtm_module *module, const dtm_order *order, dtm_op *const *users, dtm_op op) {
    dtm_op early = dtm_early_place(module, op), started = early ? loop_apart_from(module, early, op) : 0;
    dtm_op stands = early ? loop_apart_from(module, op, early) : 0;
    under_way u = {op, order->begin[op], order->begin[started ? started : early ? early : op], touched_by(module, order, users, op), 0,
                   dtm_storage_round(dtm_workspace_bytes(module, op)) * dtm_workspace_copies(module, op)};
    if (u.to < 0) { /* one of each copy */
        dtm_op around = early ? 0 : loop_apart_from(module, op, 0);
        if (around) u.from = order->begin[around];
        u.to = order->length;
    }
    if (stands && order->end[stands] > u.to) u.to = order->end[stands];
    return u;
}

static int compare_places(const void *a, const void *b) {
    const under_way *x = a, *y = b;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* The lowest offset that is free while `u` is under way, among `count` that have theirs, by offset. */
static int64_t free_offset(const under_way *u, const under_way *const *placed, size_t count) {
    int64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const under_way *other = placed[i];
        if (other->from > u->to || u->from > other->to || dtm_fault(88)) continue;
        if (other->offset - at >= u->bytes) break;
        if (other->offset + other->bytes > at) at = other->offset + other->bytes;
    }
    return at;
}

int64_t dtm_workspace_of_apart(const dtm_module *module, int64_t *offsets) {
    dtm_arena *arena = dtm_arena_create();
    dtm_order order = {0};
    dtm_op **users = NULL;
    under_way *all = NULL;
    size_t count = 0, capacity = 0;
    int64_t top = 0;
    for (dtm_op op = 1; op < module->n_ops; op++) {
        if (!dtm_is_apart(module, op)) continue;
        if (!users) order = dtm_order_of(module, arena), users = dtm_users_of(module, arena);
        under_way u = under_way_of(module, &order, users, op);
        DTM_PUSH(arena, all, count, capacity, u);
    }
    if (count) qsort(all, count, sizeof *all, compare_places);
    const under_way **placed = dtm_arena_alloc(arena, (count + 1) * sizeof *placed);
    for (size_t i = 0; i < count; i++) { /* in the order of the text */
        under_way *u = &all[i];
        u->offset = free_offset(u, placed, i);
        size_t at = i;
        for (; at && placed[at - 1]->offset > u->offset; at--) placed[at] = placed[at - 1];
        placed[at] = u;
        if (u->offset + u->bytes > top) top = u->offset + u->bytes;
        if (offsets) offsets[u->op] = u->offset;
    }
    dtm_arena_destroy(arena);
    return top;
}
