/* The sums over ranks of a pipeline: those that take part come to them in one order, or some would wait for ever. */
#include "passes/schedule.h"

typedef struct rank_sums {
    const dtm_op_data **items; /* as often as they are run */
    size_t count, capacity, next;
} rank_sums;

static void collect(const dtm_module *rank, dtm_region region, dtm_arena *arena, rank_sums *sums) {
    const dtm_region_data *body = &rank->regions[region];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *op = dtm_op_get(rank, body->ops[i]);
        if (op->kind == DTM_OP_ALL_REDUCE && dtm_along_pipeline(rank, op))
            DTM_PUSH(arena, sums->items, sums->count, sums->capacity, op);
        if (!op->body) continue;
        size_t before = sums->count;
        collect(rank, op->body, arena, sums);
        size_t once = sums->count - before;
        for (int64_t copy = 1; once && op->kind == DTM_OP_REPEAT && copy < op->attributes.copies; copy++)
            for (size_t k = 0; k < once; k++)
                DTM_PUSH(arena, sums->items, sums->count, sums->capacity, sums->items[before + k]);
    }
}

static const dtm_op_data *next_of(const rank_sums *sums) { return sums->next < sums->count ? sums->items[sums->next] : NULL; }

static dtm_string name_of(const dtm_module *rank, const dtm_op_data *op) { return dtm_value_get(rank, op->results[0])->name; }

static bool same_sum(const dtm_module *a, const dtm_op_data *x, const dtm_module *b, const dtm_op_data *y) {
    return x && y && x->attributes.members == y->attributes.members && name_of(a, x) == name_of(b, y);
}

/* The first rank that a sum of rank r waits for; n_ranks: none. */
static size_t missing(const dtm_module *module, const rank_sums *sums, size_t r) {
    const dtm_op_data *own = next_of(&sums[r]);
    for (size_t q = 0; q < module->n_ranks; q++)
        if (dtm_is_member(module->ranks[r], own, (int64_t)q) &&
            !same_sum(module->ranks[r], own, module->ranks[q], next_of(&sums[q])))
            return q;
    return module->n_ranks;
}

static bool is_first(const dtm_module *module, const rank_sums *sums, size_t r) {
    const dtm_op_data *own = next_of(&sums[r]);
    return own && (own->attributes.members ? dtm_members_below(module->ranks[r], own, (int64_t)r) == 0 : r == 0);
}

bool schedule_sums(const dtm_module *module) {
    dtm_arena *arena = dtm_arena_create();
    rank_sums *sums = dtm_arena_alloc(arena, (module->n_ranks + 1) * sizeof *sums);
    for (size_t r = 0; r < module->n_ranks; r++) collect(module->ranks[r], module->ranks[r]->body, arena, &sums[r]);
    for (bool going = true; going;) {
        going = false;
        for (size_t r = 0; r < module->n_ranks; r++)
            while (is_first(module, sums, r) && missing(module, sums, r) == module->n_ranks) {
                const dtm_op_data *own = next_of(&sums[r]);
                for (size_t q = 0; q < module->n_ranks; q++) sums[q].next += dtm_is_member(module->ranks[r], own, (int64_t)q);
                going = true;
            }
    }
    bool good = true;
    for (size_t r = 0; good && r < module->n_ranks; r++) {
        const dtm_op_data *own = next_of(&sums[r]);
        if (!own) continue;
        size_t q = missing(module, sums, r);
        const dtm_op_data *other = next_of(&sums[q]);
        good = false;
        dtm_error(module->context, own->span, 511, "rank %zu waits for rank %zu to add to `%s`, which never does", r, q,
                  dtm_string_text(module->context, name_of(module->ranks[r], own)));
        if (other)
            dtm_note(module->context, other->span, "rank %zu waits for others to add to `%s`", q,
                     dtm_string_text(module->context, name_of(module->ranks[q], other)));
    }
    dtm_arena_destroy(arena);
    return good;
}
