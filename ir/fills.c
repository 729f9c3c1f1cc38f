/* What fills in a pair (fills.h), and the workspaces of its strands. */
#include "ir/fills.h"
#include "ir/fault.h"

enum { MOST_REPEATS = 64 }; /* in each other */

bool dtm_loop_fills(const dtm_loop_calls *calls, dtm_op region) {
    for (size_t i = 0; i < calls->count; i++)
        if (calls->items[i].region == region && i > calls->items[i].begin + 1) return true;
    return false;
}

/* ---- what is needed ---- */

/* The repeats around an operator, outermost first. */
static int repeats_around(const dtm_module *module, dtm_op op, dtm_op *repeats) {
    int count = 0, at = 0;
    for (dtm_op r = dtm_enclosing(module, op, DTM_OP_REPEAT); r; r = dtm_enclosing(module, r, DTM_OP_REPEAT)) count++;
    for (dtm_op r = dtm_enclosing(module, op, DTM_OP_REPEAT); r && count - ++at < MOST_REPEATS; r = dtm_enclosing(module, r, DTM_OP_REPEAT))
        repeats[count - at] = r;
    return count < MOST_REPEATS ? count : MOST_REPEATS;
}

int dtm_repeats_in_common(const dtm_module *module, dtm_op a, dtm_op b) {
    dtm_op of_a[MOST_REPEATS], of_b[MOST_REPEATS];
    int n = repeats_around(module, a, of_a), m = repeats_around(module, b, of_b), common = 0;
    while (common < n && common < m && dtm_same_copies(module, of_a[common], of_b[common]) &&
           module->ops[of_a[common]].attributes.flags == module->ops[of_b[common]].attributes.flags)
        common++;
    return common;
}

/* The operator that makes a value for op; where that stands in a repeat that op is not in, the repeat. */
static dtm_op maker_for(const dtm_module *module, dtm_op op, dtm_op def) {
    dtm_op repeats[MOST_REPEATS];
    int count = repeats_around(module, def, repeats), common = dtm_repeats_in_common(module, op, def);
    return common < count ? repeats[common] : dtm_unit_of(module, def);
}

static bool is_input_of(const dtm_module *module, dtm_op region, dtm_op weights) {
    const dtm_attributes *a = &module->ops[region].attributes, *b = &module->ops[weights].attributes;
    return region != weights && module->ops[region].kind == DTM_OP_BACKWARD && !(a->flags & DTM_BACKWARD_WEIGHTS) &&
           a->number[DTM_REGION_STAGE] == b->number[DTM_REGION_STAGE];
}

static void need(const dtm_module *module, const dtm_order *order, dtm_op op, dtm_value value, dtm_op *last) {
    dtm_op def = module->values[value].def, region = def ? dtm_called_region(module, def) : 0;
    if (!region || !is_input_of(module, region, dtm_called_region(module, op))) return;
    dtm_op maker = maker_for(module, op, def);
    if (!*last || order->end[maker] > order->end[*last]) *last = maker;
}

/* What a carry begins with is taken as its repeat begins; what it goes on with is made in its own region. */
static void need_operands(const dtm_module *module, const dtm_order *order, dtm_op op, dtm_op *last) {
    const dtm_op_data *data = &module->ops[op];
    for (uint32_t i = 0; i < data->n_operands && data->kind != DTM_OP_CARRY; i++) need(module, order, op, data->operands[i], last);
    const dtm_region_data *body = data->body ? &module->regions[data->body] : NULL;
    for (size_t i = 0; body && i < body->n_ops; i++) {
        const dtm_op_data *inner = &module->ops[body->ops[i]];
        if (data->kind == DTM_OP_FUSED) need_operands(module, order, body->ops[i], last);
        else if (inner->kind == DTM_OP_CARRY) need(module, order, op, inner->operands[0], last);
    }
}

dtm_op dtm_needed_of_input(const dtm_module *module, const dtm_order *order, dtm_op op) {
    dtm_op last = 0;
    need_operands(module, order, op, &last);
    return last;
}

static int repeats_deep(const dtm_module *module, dtm_op op) {
    int deep = 0;
    while ((op = dtm_enclosing(module, op, DTM_OP_REPEAT))) deep++;
    return deep;
}

dtm_op dtm_needed_after(const dtm_module *module, dtm_op needed, dtm_op loop) {
    int deep = repeats_deep(module, loop);
    while (needed && repeats_deep(module, needed) > deep) needed = dtm_enclosing(module, needed, DTM_OP_REPEAT);
    return needed;
}

/* ---- workspaces ---- */

/* The most that an operator takes in regions that are the other part of a pair, or in those that fill. */
static int64_t most_of(const dtm_module *module, const dtm_loop_calls *calls, dtm_op loop, bool fills) {
    int64_t most = 0;
    const dtm_region_data *body = &module->regions[dtm_op_get(module, loop)->body];
    dtm_arena *arena = dtm_arena_create();
    bool *counts = dtm_arena_alloc(arena, module->n_ops);
    for (size_t i = 0; i < body->n_ops; i++)
        counts[body->ops[i]] = dtm_loop_is_paired(calls, body->ops[i], false) && dtm_loop_fills(calls, body->ops[i]) == fills;
    for (dtm_op op = 1; op < module->n_ops; op++) {
        dtm_op region = module->ops[op].region ? dtm_called_region(module, op) : 0;
        if (!region || !counts[region] || dtm_enclosing(module, op, DTM_OP_MICROBATCH) != loop) continue;
        int64_t bytes = dtm_workspace_bytes(module, op);
        if (bytes > most) most = bytes;
    }
    dtm_arena_destroy(arena);
    return dtm_storage_round(most);
}

static bool calls_of(const dtm_module *module, dtm_arena *arena, dtm_op *loop, dtm_loop_calls *calls) {
    *loop = module->of_ranks ? dtm_rank_loop(module) : 0;
    return *loop && dtm_loop_is_ordered(module, *loop) && !dtm_fault(89) && !dtm_loop_calls_of(module, *loop, arena, calls);
}

int64_t dtm_workspace_of_pairs(const dtm_module *module) {
    dtm_arena *arena = dtm_arena_create();
    dtm_op loop;
    dtm_loop_calls calls;
    int64_t bytes = 0;
    if (calls_of(module, arena, &loop, &calls)) bytes = most_of(module, &calls, loop, false) + most_of(module, &calls, loop, true);
    dtm_arena_destroy(arena);
    return bytes;
}

int64_t dtm_workspace_aside(const dtm_module *module, dtm_op region) {
    dtm_arena *arena = dtm_arena_create();
    dtm_op loop;
    dtm_loop_calls calls;
    int64_t bytes = 0;
    if (calls_of(module, arena, &loop, &calls) && dtm_loop_is_paired(&calls, region, false)) {
        bytes = most_of(module, &calls, loop, false);
        if (dtm_loop_fills(&calls, region) && !dtm_fault(123)) bytes += most_of(module, &calls, loop, true);
    }
    dtm_arena_destroy(arena);
    return bytes;
}
