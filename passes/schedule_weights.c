/* Weights and states that several ranks of a pipeline have: stage declares them alike in the programs of all, and each of these stores the
 * next value. A dump that comes back may say otherwise, and the copies would drift apart. */
#include "passes/schedule.h"

#include <stdlib.h>
#include <string.h>

typedef struct held {
    const char *path;
    const dtm_module *rank;
    dtm_op op;
    bool stored;
} held;

typedef struct collector {
    dtm_arena *arena;
    held *items;
    size_t count, capacity;
    size_t *of_value; /* of that rank, by value: 1 + its place in `items` */
} collector;

static void collect(dtm_module *module, dtm_op op, void *state) {
    collector *c = state;
    const dtm_op_data *data = dtm_op_get(module, op);
    if (data->kind == DTM_OP_WEIGHT || data->kind == DTM_OP_STATE) {
        held item = {dtm_string_text(module->context, data->attributes.name), module, op, false};
        DTM_PUSH(c->arena, c->items, c->count, c->capacity, item);
        c->of_value[data->results[0]] = c->count;
    } else if (data->kind == DTM_OP_STORE && c->of_value[data->operands[0]]) {
        c->items[c->of_value[data->operands[0]] - 1].stored = true;
    }
}

static int by_path(const void *a, const void *b) {
    const held *x = a, *y = b;
    int order = strcmp(x->path, y->path);
    if (order) return order;
    return x->rank->rank != y->rank->rank ? (x->rank->rank < y->rank->rank ? -1 : 1) : (x->op > y->op) - (x->op < y->op);
}

static bool agree(const held *a, const held *b) {
    const dtm_op_data *x = dtm_op_get(a->rank, a->op), *y = dtm_op_get(b->rank, b->op);
    const dtm_attributes *p = &x->attributes, *q = &y->attributes;
    const char *other = !schedule_same_type(a->rank, x->results[0], b->rank, y->results[0])          ? "has another type"
                        : x->kind != y->kind || p->flags != q->flags                             ? "has other flags"
                        : p->init != q->init || p->init_a != q->init_a || p->init_b != q->init_b ? "has another first value"
                                                                                                 : NULL;
    /* Of a repeat a rank has other copies than another, so only what is one for all copies need be stored by both. */
    bool alone = a->stored != b->stored && !strchr(a->path, '{');
    if (!other && !alone) return true;
    if (other)
        dtm_error(a->rank->context, y->span, 515, "`%s` %s on rank %lld than on rank %lld", b->path, other,
                  (long long)b->rank->rank, (long long)a->rank->rank);
    else
        dtm_error(a->rank->context, y->span, 515, "`%s` is stored by rank %lld, and not by rank %lld", b->path,
                  (long long)(a->stored ? a : b)->rank->rank, (long long)(a->stored ? b : a)->rank->rank);
    dtm_note(a->rank->context, x->span, "the other one");
    return false;
}

bool schedule_weights(const dtm_module *module, dtm_arena *scratch) {
    collector c = {.arena = scratch};
    for (size_t r = 0; r < module->n_ranks; r++) {
        c.of_value = dtm_arena_alloc(scratch, module->ranks[r]->n_values * sizeof *c.of_value);
        dtm_walk(module->ranks[r], collect, &c);
    }
    if (c.count) qsort(c.items, c.count, sizeof *c.items, by_path);
    for (size_t i = 1; i < c.count; i++)
        if (strcmp(c.items[i - 1].path, c.items[i].path) == 0 && !agree(&c.items[i - 1], &c.items[i])) return false;
    return true;
}
