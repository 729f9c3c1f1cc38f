/* overlap: which collectives are carried out apart from the operators around them, by a stream of the rank: those between
 * whose operands and whose readers other operators run. Such a one is started where the last of its operands is made, and
 * waited for where its results are first touched.
 *
 *     repeat layer = 2 reversed {
 *         d_up.term = dot(..)                 # from here on it is on its way
 *         ..                                  # what hides it: the rest of the layer, and the layers before
 *     }
 *     update {
 *         repeat layer = 2 { d_up = all_reduce(d_up.term on dp, apart = 1); .. }
 *     }
 *
 * A sum over microbatches is complete in the last call of the region that accumulates it, and its collective is started there,
 * although it stands after the loop. Sums along a pipeline, which ranks with other programs take part in, are chosen for all of
 * them at once (overlap_sums.c).
 *
 * Within a region, also in a loop over microbatches, independent operators are moved behind a collective to hide it
 * (overlap_prefetch.c); it is then started where it stands.
 *
 * Where nothing else is there to do, a collective around a ring is taken apart: a gather goes on while the products that read
 * it multiply the rows that are there, a scatter while its product makes the next rows (steps = 1), where that pays
 * (overlap_steps.c). But for that the text stays in its order.
 *
 * What would not fit in a rank's memory for that is left where it stands (overlap_room.c). */
#include "ir/storage.h"
#include "passes/cost.h"
#include "passes/ledger.h"
#include "passes/overlap_prefetch.h"
#include "passes/overlap_steps.h"
#include "passes/overlap_sums.h"
#include "passes/passes.h"

static bool is_candidate(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    bool reduces = data->kind == DTM_OP_ALL_REDUCE || data->kind == DTM_OP_REDUCE_SCATTER;
    if (!data->region || !reduces || dtm_enclosing(module, op, DTM_OP_MICROBATCH)) return false;
    return dtm_group_of(module, data) > 1 && dtm_early_place(module, op);
}

static bool is_work(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    bool moves = data->kind == DTM_OP_CARRY || data->kind == DTM_OP_LAST || dtm_is_alias(module, op);
    return (!data->body || data->kind == DTM_OP_FUSED) && data->n_results && !moves && !dtm_runs_collective(data->kind);
}

typedef struct hider {
    const dtm_module *module;
    dtm_order order;
    int64_t *work;  /* by position in the order: operators that compute something, before it */
    dtm_op **users; /* by value, zero-terminated */
} hider;

static hider begin(const dtm_module *module, const dtm_op_list *ops, dtm_arena *arena) {
    hider h = {.module = module, .order = dtm_order_of(module, arena), .users = dtm_users_of(module, arena)};
    h.work = dtm_arena_alloc(arena, ((size_t)h.order.length + 2) * sizeof *h.work);
    for (size_t i = 0; i < ops->count; i++)
        if (is_work(module, ops->items[i])) h.work[h.order.begin[ops->items[i]] + 1]++;
    for (int64_t p = 1; p <= h.order.length + 1; p++) h.work[p] += h.work[p - 1];
    return h;
}

/* Packing takes memory of its own as long as it is under way: that is given to gradients, which are under way for long. */
static bool is_worth_memory(const hider *h, dtm_op op) {
    const dtm_op_data *data = &h->module->ops[op];
    dtm_staging staging = dtm_staging_of(h->module, op);
    bool packs = staging.in_bytes >= 0 || staging.out_bytes >= 0;
    for (uint32_t r = 0; packs && r < data->n_results; r++)
        for (const dtm_op *user = h->users[data->results[r]]; *user; user++)
            if (!dtm_enclosing(h->module, *user, DTM_OP_UPDATE)) return false;
    return true;
}

/* Whether something is computed after its operands are there and before anything reads its results, in the order of the text;
 * `next` of a carry is read at the end of the repeat. */
static bool is_hidden(const hider *h, dtm_op op) {
    const dtm_op_data *data = &h->module->ops[op];
    int64_t from = h->order.end[dtm_early_place(h->module, op)], to = h->order.length;
    for (uint32_t r = 0; r < data->n_results; r++)
        for (const dtm_op *user = h->users[data->results[r]]; *user; user++) {
            bool carried = h->module->ops[*user].kind == DTM_OP_CARRY;
            int64_t at = carried ? h->order.end[dtm_enclosing(h->module, *user, DTM_OP_REPEAT)] : h->order.begin[*user];
            if (at < to) to = at;
        }
    return to > from && h->work[to] > h->work[from + 1];
}

/* Of one program. `may`: by operator, the sums along the pipeline that would be hidden. */
static void overlap(dtm_module *module, bool *may) {
    dtm_arena *arena = dtm_arena_create();
    dtm_op_list ops = dtm_ops_in_order(module, arena);
    hider h = begin(module, &ops, arena);
    dtm_op_list started = {0};
    for (size_t i = 0; i < ops.count; i++) {
        dtm_op op = ops.items[i];
        if (!is_candidate(module, op) || !is_worth_memory(&h, op) || !is_hidden(&h, op)) continue;
        if (dtm_along_pipeline(module, &module->ops[op])) {
            may[op] = true;
            continue;
        }
        module->ops[op].attributes.number[DTM_COLLECTIVE_APART] = 1;
        DTM_PUSH(arena, started.items, started.count, started.capacity, op);
    }
    for (size_t i = 0; i < ops.count; i++)
        dtm_choose_steps(module, ops.items[i]);
    dtm_prefetch(module, &started);
    dtm_arena_destroy(arena);
}

bool dtm_pass_overlap(dtm_module *module) {
    dtm_arena *arena = dtm_arena_create();
    bool **may = dtm_arena_alloc(arena, (module->n_ranks + 1) * sizeof *may);
    if (!module->n_ranks) overlap(module, NULL);
    for (size_t r = 0; r < module->n_ranks; r++) {
        may[r] = dtm_arena_alloc(arena, module->ranks[r]->n_ops);
        overlap(module->ranks[r], may[r]);
    }
    dtm_overlap_sums(module, may);
    module->after = dtm_string_of(module->context, "overlap");
    dtm_arena_destroy(arena);
    return true;
}
