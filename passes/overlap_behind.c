/* overlap: what reads a collective goes behind what does not need it (overlap_prefetch.c).
 *
 * What stands behind the first reader of a collective and needs nothing that comes of it may as well be computed before: while the
 * collective is on its way. Of two branches side by side:
 *
 *     o = reduce_scatter(o.term over S on tp)     o = reduce_scatter(o.term over S on tp, apart = 1)
 *     x.2 = x + o                                 u = dot(h, up over D)                              # hides it
 *     n = rmsnorm(x.2, scale over D)              m = dot(u, down over F)
 *     u = dot(h, up over D)                       x.2 = x + o
 *     m = dot(u, down over F)                     n = rmsnorm(x.2, scale over D)
 *
 * Both keep their order, so that operators that are fused stay beside each other. Collectives, and all else that does more than make
 * values, stay in their order; nothing passes a loop, in all of which it would live; products in steps stay with their collective; and
 * what another that is on its way is waited for stays where it is. */
#include "passes/overlap_behind.h"
#include "ir/calls.h"
#include "ir/storage.h"
#include "passes/overlap_prefetch.h"
#include "passes/overlap_steps.h"

#include <string.h>

/* How many ends are tried, each against the memory of the region. */
enum { MOST_ENDS = 64 };

typedef struct range {
    const dtm_module *module;
    const dtm_waiting *waiting;
    dtm_arena *arena;
    const dtm_op *ops; /* of the region */
    size_t from, to;   /* positions: of the first reader, and up to where may be moved */
    bool *needs;       /* by position: comes of the collective */
    bool *joint;       /* by position: stays beside the next */
    bool *steps;       /* by position: goes in steps, and hides its own collective */
} range;

static size_t place(const range *r, dtm_op op) {
    return (size_t)dtm_op_position(r->module, op);
}

/* Up to a loop, and up to what waits for another. */
static void find_end(range *r, size_t n) {
    const dtm_module *module = r->module;
    for (r->to = r->from; r->to < n && !module->ops[r->ops[r->to]].body; r->to++) {}
    for (size_t i = 0; i < r->from; i++) {
        dtm_op reader = r->waiting->reader[r->ops[i]];
        if (!reader || r->ops[i] == r->waiting->op) continue;
        size_t at = place(r, reader);
        if (at >= r->from && at < r->to) r->to = at;
    }
}

static void spread(range *r) {
    bool *comes = dtm_arena_alloc(r->arena, r->module->n_values);
    const dtm_op_data *made = &r->module->ops[r->waiting->op];
    for (uint32_t i = 0; i < made->n_results; i++) comes[made->results[i]] = true;
    for (size_t i = place(r, r->waiting->op) + 1; i < r->to; i++) { /* before the first reader stand aliases of the results */
        const dtm_op_data *data = &r->module->ops[r->ops[i]];
        for (uint32_t k = 0; k < data->n_operands; k++) r->needs[i] |= comes[data->operands[k]];
        for (uint32_t k = 0; k < data->n_results && r->needs[i]; k++) comes[data->results[k]] = true;
    }
}

/* Products in steps and their collective are one; false: one of them stands before the range and one needs the collective. */
static bool keep_steps(range *r, bool *changed) {
    *changed = false;
    for (size_t i = place(r, r->waiting->op) + 1; i < r->to; i++) { /* a gather before the range may have its products in it */
        dtm_op first;
        size_t count = dtm_is_in_steps(r->module, r->ops[i]) ? dtm_products_in_steps(r->module, r->ops[i], &first) : 0;
        if (!count) continue;
        size_t begin = place(r, first) < i ? place(r, first) : i, end = begin + count;
        if (end < r->from) continue;
        bool needs = false, before = begin < r->from, beyond = end >= r->to;
        for (size_t k = before ? r->from : begin; k <= end && k < r->to; k++) needs |= r->needs[k];
        if (needs && before) return false;
        for (size_t k = begin; k <= end && k < r->to; k++) {
            *changed |= needs && !r->needs[k];
            if (k >= r->from) r->needs[k] |= needs;
            if (k < end) r->joint[k] = true;
            r->steps[k] = true;
        }
        if (beyond && !needs) r->to = begin;
    }
    return true;
}

/* Where something else than values is made, what stands behind goes no further up than to it. */
static void keep_order(range *r) {
    bool held = false;
    for (size_t i = r->from; i < r->to; i++) {
        bool computes = dtm_only_computes(r->module->ops[r->ops[i]].kind);
        if (!computes && !r->needs[i] && held) r->to = i;
        held |= !computes && r->needs[i];
    }
}

/* What does not need the collective first, up to position `end`. */
static void part(dtm_module *module, const range *r, size_t end, const dtm_op *before) {
    dtm_op *ops = module->regions[module->ops[r->waiting->op].region].ops;
    size_t at = r->from;
    for (int needs = 0; needs < 2; needs++)
        for (size_t i = r->from; i < end; i++)
            if (r->needs[i] == (needs == 1)) ops[at++] = before[i];
}

double dtm_bring_forward(dtm_module *module, const dtm_waiting *waiting) {
    dtm_region region = module->ops[waiting->op].region;
    size_t n = module->regions[region].n_ops, ends[MOST_ENDS], n_ends = 0;
    range r = {.module = module, .waiting = waiting, .arena = dtm_arena_create(), .ops = module->regions[region].ops};
    r.from = place(&r, waiting->first);
    r.needs = dtm_arena_alloc(r.arena, n + 1);
    r.joint = dtm_arena_alloc(r.arena, n + 1);
    r.steps = dtm_arena_alloc(r.arena, n + 1);
    find_end(&r, n);
    bool may, changed;
    do spread(&r);
    while ((may = keep_steps(&r, &changed)) && changed);
    keep_order(&r);
    double seconds = 0, gained[MOST_ENDS], last = 0;
    for (size_t i = r.from; may && i < r.to && n_ends < MOST_ENDS && last < waiting->wanted; i++) {
        if (!r.needs[i] && !r.steps[i] && dtm_is_own_kernel(module, r.ops[i])) seconds += waiting->times[r.ops[i]];
        if (r.joint[i] || seconds <= last) continue;
        gained[n_ends] = last = seconds;
        ends[n_ends++] = i + 1;
    }
    dtm_op *before = dtm_arena_alloc(r.arena, (n + 1) * sizeof *before);
    memcpy(before, r.ops, n * sizeof *before);
    seconds = 0;
    while (n_ends-- > 0) {
        part(module, &r, ends[n_ends], before);
        if (dtm_most_bytes(module, region, waiting->op, place(&r, waiting->first)) <= waiting->most) {
            seconds = gained[n_ends];
            break;
        }
        memcpy(module->regions[region].ops, before, n * sizeof *before);
    }
    dtm_arena_destroy(r.arena);
    return seconds;
}
