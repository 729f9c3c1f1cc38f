/* overlap: collectives around a ring, in steps with products (passes.h).
 *
 * Which products those of a gather are is a matter of what depends on what: any that has the rows of what is gathered, and
 * whose other factor does not need what is gathered, may be moved up to it; what makes that factor is moved before it.
 *
 *     h = all_gather(h.part over S on tp)        wk = wk.master * gain
 *     q = dot(h, wq over D)                      h = all_gather(h.part over S on tp, steps = 1, both_ways)
 *     r = rope(q at S over K)                    q = dot(h, wq over D)
 *     wk = wk.master * gain                      k = dot(h, wk over D)
 *     k = dot(h, wk over D)                      r = rope(q at S over K)
 *
 * A sum of products is scattered in steps where these stand right before it, each added to those before:
 *
 *     p = dot(d_q, wq over H)                    d_wq = dot(h, d_q over B, S)
 *     d_wq = dot(h, d_q over B, S)               p = dot(d_q, wq over H)
 *     r = dot(d_k, wk over H)                    r = dot(d_k, wk over H)
 *     s = p + r                                  s = p + r
 *     d_h = reduce_scatter(s over S on tp)       d_h = reduce_scatter(s over S on tp, steps = 1)
 *
 * A product reads and makes values and does nothing else, so no effects change their order. It is moved only where no more
 * bytes live at one time in the region than before. */
#include "passes/overlap_steps.h"
#include "ir/fault.h"
#include "ir/storage.h"
#include "passes/ledger.h"

#include <string.h>

/* ---- moving ---- */

typedef struct mover {
    const dtm_module *module;
    const dtm_region_data *region;
    dtm_arena *arena;
} mover;

/* The operator of the region in which op stands; 0: none. */
static dtm_op in_region(const mover *m, dtm_op op) {
    while (op && m->module->ops[op].region != m->module->ops[m->region->ops[0]].region)
        op = m->module->regions[m->module->ops[op].region].parent;
    return op;
}

static int64_t most_bytes(const mover *m, dtm_op apart, size_t until) {
    const dtm_module *module = m->module;
    size_t n = m->region->n_ops;
    int64_t *change = dtm_arena_alloc(m->arena, (n + 2) * sizeof *change), now = 0, most = 0;
    size_t *last = dtm_arena_alloc(m->arena, module->n_values * sizeof *last), *at = dtm_arena_alloc(m->arena, module->n_ops * sizeof *at);
    for (size_t i = 0; i < n; i++) at[m->region->ops[i]] = i + 1;
    for (dtm_op op = 1; op < module->n_ops; op++) {
        if (!module->ops[op].region) continue;
        dtm_op reader = module->ops[op].kind == DTM_OP_CARRY ? 0 : in_region(m, op);
        size_t place = reader ? at[reader] - (reader == op && dtm_is_elementwise(module->ops[op].kind)) : n; /* made in place of it */
        for (uint32_t i = 0; i < module->ops[op].n_operands; i++) {
            dtm_value root = dtm_root_of(m->module, module->ops[op].operands[i]);
            if (place > last[root]) last[root] = place;
        }
    }
    for (uint32_t i = 0; apart && i < module->ops[apart].n_operands; i++) {
        dtm_value root = dtm_root_of(m->module, module->ops[apart].operands[i]);
        if (until > last[root]) last[root] = until;
    }
    for (size_t i = 0; i < n; i++) {
        const dtm_op_data *data = &module->ops[m->region->ops[i]];
        bool lasts = data->kind == DTM_OP_WEIGHT || data->kind == DTM_OP_STATE; /* whatever reads them */
        for (uint32_t r = 0; r < data->n_results && !lasts && !dtm_is_alias(module, m->region->ops[i]); r++) {
            int64_t bytes = dtm_local_bytes_max(module, module->values[data->results[r]].type);
            change[i] += bytes;
            change[last[data->results[r]] > i ? last[data->results[r]] : i + 1] -= bytes;
        }
    }
    for (size_t i = 0; i < n; i++) {
        now += change[i];
        if (now > most) most = now;
    }
    return most;
}

int64_t dtm_most_bytes(const dtm_module *module, dtm_region region, dtm_op apart, size_t until) {
    mover m = {module, &module->regions[region], dtm_arena_create()};
    int64_t most = most_bytes(&m, apart, until);
    dtm_arena_destroy(m.arena);
    return most;
}

/* What a product reads beside `gather`, and what that is made of, is set before the gather, or can be: `first` becomes, in order, what
 * stands after it and has to be brought before it. false: some of it needs what is gathered, or does more than to make values. */
static bool is_ready(const mover *m, dtm_op product, dtm_op gather, dtm_op_list *first) {
    const dtm_module *module = m->module;
    int64_t from = dtm_op_position(module, gather), at = dtm_op_position(module, product);
    bool *needed = dtm_arena_alloc(m->arena, module->n_ops);
    first->count = 0;
    needed[product] = true;
    for (int64_t i = at; i > from; i--) {
        dtm_op op = m->region->ops[i];
        const dtm_op_data *data = &module->ops[op];
        if (!needed[op]) continue;
        if (op != product && (!dtm_only_computes(data->kind) || data->body)) return false;
        for (uint32_t k = 0; k < data->n_operands; k++) {
            dtm_op def = in_region(m, module->values[data->operands[k]].def);
            if (def == gather && op != product && !dtm_fault(92)) return false;
            if (def && def != gather) needed[def] = true;
        }
        if (op != product) DTM_PUSH(m->arena, first->items, first->count, first->capacity, op);
    }
    return true;
}

/* Brings the products that may step with the gather up to it, and what their other factors are made of before it. */
static void gather_products(dtm_module *module, dtm_op gather) {
    dtm_region region = module->ops[gather].region;
    mover m = {module, &module->regions[region], dtm_arena_create()};
    dtm_op head;
    int64_t after = dtm_op_position(module, gather) + 1 + (int64_t)dtm_products_in_steps(module, gather, &head);
    size_t n = m.region->n_ops;
    int64_t before = after < (int64_t)n ? most_bytes(&m, 0, 0) : 0;
    dtm_op *undone = dtm_arena_alloc(m.arena, n * sizeof *undone);
    dtm_op_list first = {0};
    for (size_t i = (size_t)after; i < n; i++) {
        dtm_op product = m.region->ops[i];
        if (!dtm_may_step(module, gather, product) || !is_ready(&m, product, gather, &first)) continue;
        memcpy(undone, m.region->ops, n * sizeof *undone);
        for (size_t k = first.count; k-- > 0;) dtm_op_move(module, first.items[k], region, dtm_op_position(module, gather));
        dtm_op_move(module, product, region, after + (int64_t)first.count);
        if (most_bytes(&m, 0, 0) > before)
            memcpy(m.region->ops, undone, n * sizeof *undone);
        else
            after += 1 + (int64_t)first.count;
    }
    dtm_arena_destroy(m.arena);
}

/* ---- sums of products ---- */

typedef struct sum {
    const mover *mover;
    const uint32_t *uses;
    dtm_op scatter;
    dtm_op *products, *adds;
    size_t n_products, n_adds, at; /* at: of the scatter, in its region */
} sum;

/* Whether a value is a product or a sum of products, that the scatter's sum alone reads, all in its region. */
static bool is_sum(sum *s, dtm_value value) {
    const dtm_module *module = s->mover->module;
    dtm_op def = module->values[value].def;
    const dtm_op_data *data = &module->ops[def];
    if (!def || s->uses[value] != 1 || data->region != module->ops[s->scatter].region) return false;
    if (s->n_products + s->n_adds == s->at) return false;
    if (data->kind == DTM_OP_DOT && data->n_operands == 2 && dtm_may_step(module, s->scatter, def)) {
        s->products[s->n_products++] = def;
        return true;
    }
    if (data->kind != DTM_OP_ADD || module->values[value].type != module->values[module->ops[s->scatter].operands[0]].type) return false;
    s->adds[s->n_adds++] = def;
    return is_sum(s, data->operands[0]) && is_sum(s, data->operands[1]);
}

static void sort_by_position(const dtm_module *module, dtm_op *ops, size_t count) {
    for (size_t i = 1; i < count; i++) {
        dtm_op op = ops[i];
        size_t k = i;
        for (int64_t at = dtm_op_position(module, op); k && dtm_op_position(module, ops[k - 1]) > at; k--) ops[k] = ops[k - 1];
        ops[k] = op;
    }
}

/* Brings what is added up to the scatter, each product added to those before it. The last addition is the one whose result is
 * scattered. */
static void line_up(dtm_module *module, const sum *s) {
    dtm_region region = module->ops[s->scatter].region;
    for (size_t i = 0; i < s->n_products; i++) {
        dtm_op_move(module, s->products[i], region, dtm_op_position(module, s->scatter));
        if (!i) continue;
        dtm_value *terms = module->ops[s->adds[i - 1]].operands;
        terms[0] = module->ops[i == 1 ? s->products[0] : s->adds[i - 2]].results[0];
        terms[1] = module->ops[s->products[i]].results[0];
        dtm_op_move(module, s->adds[i - 1], region, dtm_op_position(module, s->scatter));
    }
}

/* What is scattered is a sum of several products: `undone` has the operands of its additions as they were. */
static bool scatter_products(dtm_module *module, dtm_op scatter, dtm_arena *arena, sum *s, dtm_value (**undone)[2]) {
    mover *m = dtm_arena_alloc(arena, sizeof *m);
    *m = (mover){module, &module->regions[module->ops[scatter].region], arena};
    size_t n = m->region->n_ops, at = (size_t)dtm_op_position(module, scatter);
    *s = (sum){m, dtm_use_counts(module, arena), scatter, dtm_arena_alloc(arena, n * sizeof(dtm_op)), dtm_arena_alloc(arena, n * sizeof(dtm_op)), 0, 0, at};
    if (module->ops[scatter].n_operands != 1 || !is_sum(s, module->ops[scatter].operands[0]) || s->n_products < 2) return false;
    sort_by_position(module, s->products, s->n_products);
    sort_by_position(module, s->adds, s->n_adds);
    *undone = dtm_arena_alloc(arena, s->n_adds * sizeof **undone);
    for (size_t i = 0; i < s->n_adds; i++) memcpy((*undone)[i], module->ops[s->adds[i]].operands, sizeof **undone);
    int64_t before = most_bytes(m, 0, 0);
    line_up(module, s);
    return most_bytes(m, 0, 0) <= before;
}

static void undo_sum(dtm_module *module, const sum *s, dtm_value (*undone)[2]) {
    for (size_t i = 0; undone && i < s->n_adds; i++) memcpy(module->ops[s->adds[i]].operands, undone[i], sizeof *undone);
}

/* ---- whether it pays ---- */

typedef struct stepping {
    double apart, stepped; /* seconds of the collective and its products: one after another, in steps */
    dtm_algorithm algorithm;
} stepping;

static stepping time_of(const dtm_module *module, dtm_op op) {
    dtm_collective_cost cost = dtm_collective_cost_of(module, op);
    size_t count;
    double seconds = dtm_time_of_products(module, op, &count);
    if (!count) return (stepping){0};
    stepping s = {cost.time + seconds, dtm_time_in_steps(module, op, DTM_ALGORITHM_RING, count, seconds), DTM_ALGORITHM_RING};
    if (!dtm_algorithm_fits(cost.kind, DTM_ALGORITHM_BOTH_WAYS, (int)cost.group)) return s;
    double both = dtm_time_in_steps(module, op, DTM_ALGORITHM_BOTH_WAYS, count, seconds);
    if (both >= s.stepped - (double)(cost.group - 1) * dtm_seconds_of_step) return s; /* each message is looked for when it leaves */
    return (stepping){s.apart, both, DTM_ALGORITHM_BOTH_WAYS};
}

void dtm_choose_steps(dtm_module *module, dtm_op op) {
    dtm_op_data *data = &module->ops[op];
    bool gathers = data->kind == DTM_OP_ALL_GATHER, fits = true;
    if (!data->region || !(gathers || data->kind == DTM_OP_REDUCE_SCATTER) || dtm_is_apart(module, op)) return;
    if (dtm_group_size(module, data->attributes.axes) < 2) return;
    dtm_region_data *region = &module->regions[data->region];
    dtm_arena *arena = dtm_arena_create();
    dtm_op *before = dtm_arena_alloc(arena, region->n_ops * sizeof *before);
    dtm_value (*undone)[2] = NULL;
    sum added = {0};
    memcpy(before, region->ops, region->n_ops * sizeof *before);
    if (gathers) gather_products(module, op);
    else if (module->ops[module->values[data->operands[0]].def].kind == DTM_OP_ADD) fits = scatter_products(module, op, arena, &added, &undone);
    stepping s = fits ? time_of(module, op) : (stepping){0};
    if (s.stepped < s.apart) {
        data->attributes.number[DTM_COLLECTIVE_STEPS] = 1;
        data->attributes.flags = 1u << s.algorithm;
    } else {
        memcpy(region->ops, before, region->n_ops * sizeof *before);
        undo_sum(module, &added, undone);
    }
    dtm_arena_destroy(arena);
}
