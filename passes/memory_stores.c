/* memory, first: `store` takes effect at the end of the step, and what is stored may be written over the old value. So each
 * stands after all that reads the old value; one that does not is moved to the end of `update`, one of a repeat into a
 * repeat of the same copies there. Then the order of operators alone says what may lie in place (memory.c), and the
 * verifier holds every later reader against it (ir/verify_storage.c).
 *
 *     store(w, w.new)                     late : f32[] = sum(w over D)
 *     late : f32[] = sum(w over D)        report late = late
 *     report late = late                  store(w, w.new)                                       */
#include "passes/memory_stores.h"

#include <string.h>

/* By value: the last position at which its bytes are read, through what only sees them under another type too; -1: never.
 * Operators are numbered in the order of the text, so what sees a value comes after it. */
static int64_t *last_reads(const dtm_module *module, const dtm_order *order, dtm_arena *arena) {
    int64_t *last = dtm_arena_alloc(arena, module->n_values * sizeof *last);
    for (size_t v = 0; v < module->n_values; v++) last[v] = -1;
    for (dtm_op op = (dtm_op)module->n_ops - 1; op > 0; op--) {
        const dtm_op_data *data = &module->ops[op];
        bool sink = data->kind == DTM_OP_STORE || data->kind == DTM_OP_GRADIENT; /* they name it first, and read the second */
        for (uint32_t i = sink; data->region && i < data->n_operands; i++) {
            int64_t *at = &last[data->operands[i]], seen = dtm_is_alias(module, op) ? last[data->results[0]] : -1;
            if (order->begin[op] > *at) *at = order->begin[op];
            if (seen > *at) *at = seen;
        }
    }
    return last;
}

static bool same_repeat(const dtm_op_data *a, const dtm_op_data *b) {
    return a->kind == DTM_OP_REPEAT && b->kind == DTM_OP_REPEAT && a->attributes.name == b->attributes.name &&
           a->attributes.copies == b->attributes.copies && a->attributes.flags == b->attributes.flags;
}

static bool has_only_stores(const dtm_module *module, dtm_region region) {
    for (size_t i = 0; i < module->regions[region].n_ops; i++) {
        const dtm_op_data *op = &module->ops[module->regions[region].ops[i]];
        if (op->kind != DTM_OP_STORE && !(op->kind == DTM_OP_REPEAT && has_only_stores(module, op->body))) return false;
    }
    return true;
}

/* The region at the end of `update` in which what stands in `op`'s repeats may stand. */
static dtm_region end_for(dtm_module *module, dtm_op op, dtm_op update) {
    dtm_op around = dtm_enclosing(module, op, DTM_OP_REPEAT);
    if (!around) return module->ops[update].body;
    dtm_region outer = end_for(module, around, update);
    size_t count = module->regions[outer].n_ops;
    dtm_op last = count ? module->regions[outer].ops[count - 1] : 0;
    if (last && same_repeat(&module->ops[last], &module->ops[around]) && has_only_stores(module, module->ops[last].body))
        return module->ops[last].body;
    dtm_builder at = dtm_builder_at_end(module, outer);
    at.span = module->ops[around].span;
    at.place = module->ops[around].place;
    dtm_attributes attributes = module->ops[around].attributes;
    dtm_op made = dtm_build_region(&at, DTM_OP_REPEAT, &attributes); /* it may move the operators */
    return module->ops[made].body;
}

void dtm_stores_last(dtm_module *module) {
    dtm_arena *arena = dtm_arena_create();
    dtm_order order = dtm_order_of(module, arena);
    int64_t *last = last_reads(module, &order, arena);
    dtm_op n = (dtm_op)module->n_ops;
    for (dtm_op op = 1; op < n; op++) {
        if (!module->ops[op].region || module->ops[op].kind != DTM_OP_STORE) continue;
        dtm_op update = dtm_enclosing(module, op, DTM_OP_UPDATE);
        if (!update || last[module->ops[op].operands[0]] < order.begin[op]) continue;
        dtm_op_move(module, op, end_for(module, op, update), -1);
    }
    dtm_arena_destroy(arena);
}
