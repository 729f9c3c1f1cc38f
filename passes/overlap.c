/* overlap: which collectives are carried out apart from the operators around them, by the rank's progress thread: those between
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
 * although it stands after the loop.
 *
 * Where nothing else is there to do, a collective around a ring is taken apart: a gather goes on while the products that read
 * it multiply the rows that are there, a scatter while its product makes the next rows (steps = 1), where that pays. The text
 * stays as it is: the order of what depends on each other does not change. */
#include "ir/storage.h"
#include "passes/ledger.h"
#include "passes/passes.h"

static bool is_candidate(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    bool reduces = data->kind == DTM_OP_ALL_REDUCE || data->kind == DTM_OP_REDUCE_SCATTER;
    if (!data->region || !reduces || dtm_along_pipeline(module, data) || dtm_enclosing(module, op, DTM_OP_MICROBATCH)) return false;
    int64_t group = 1;
    for (int a = 0; a < module->settings.mesh.count; a++)
        if (data->attributes.axes >> a & 1) group *= module->settings.mesh.axes[a].size;
    return group > 1 && dtm_early_place(module, op);
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

static dtm_op **users_of_all(const dtm_module *module, dtm_arena *arena) {
    uint32_t *counts = dtm_use_counts(module, arena), *filled = dtm_arena_alloc(arena, module->n_values * sizeof *filled);
    dtm_op **users = dtm_arena_alloc(arena, module->n_values * sizeof *users);
    for (size_t v = 1; v < module->n_values; v++) users[v] = dtm_arena_alloc(arena, (counts[v] + 1) * sizeof **users);
    for (dtm_op op = 1; op < module->n_ops; op++)
        for (uint32_t i = 0; module->ops[op].region && i < module->ops[op].n_operands; i++)
            users[module->ops[op].operands[i]][filled[module->ops[op].operands[i]]++] = op;
    return users;
}

static hider begin(const dtm_module *module, const dtm_op_list *ops, dtm_arena *arena) {
    hider h = {.module = module, .order = dtm_order_of(module, arena), .users = users_of_all(module, arena)};
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

static bool reads(const dtm_op_data *reader, const dtm_op_data *op) {
    for (uint32_t i = 0; i < reader->n_operands; i++)
        for (uint32_t r = 0; r < op->n_results; r++)
            if (reader->operands[i] == op->results[r]) return true;
    return false;
}

/* ---- in steps ---- */

static const double STEP_SECONDS = 4e-6; /* of a step more: a launch, and a look at what has come */

/* The products that read what `gather` gathers, right after it. */
static size_t products_after(const dtm_module *module, dtm_op gather, double *seconds) {
    const dtm_op_data *data = &module->ops[gather];
    const dtm_region_data *region = &module->regions[data->region];
    size_t count = 0;
    for (size_t i = (size_t)dtm_op_position(module, gather) + 1; i < region->n_ops; i++) {
        const dtm_op_data *op = &module->ops[region->ops[i]];
        if (op->kind != DTM_OP_DOT || !reads(op, data) || op->operands[0] == op->operands[1]) break;
        *seconds += dtm_run_time(module, region->ops[i]);
        count++;
    }
    return count;
}

static size_t product_before(const dtm_module *module, dtm_op scatter, double *seconds) {
    const dtm_op_data *data = &module->ops[scatter];
    dtm_op def = module->values[data->operands[0]].def;
    if (!def || module->ops[def].kind != DTM_OP_DOT || module->ops[def].region != data->region ||
        dtm_op_position(module, def) + 1 != dtm_op_position(module, scatter))
        return 0;
    *seconds += dtm_run_time(module, def);
    return 1;
}

/* Gathering goes on while the rows that are there are multiplied, scattering while the next rows are: of n steps all but one
 * are hidden, of what is shorter. */
static bool pays_in_steps(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    bool gathers = data->kind == DTM_OP_ALL_GATHER, scatters = data->kind == DTM_OP_REDUCE_SCATTER;
    if (!data->region || !(gathers || scatters) || data->n_operands != 1 || dtm_is_apart(module, op)) return false;
    double seconds = 0, sent = dtm_run_time(module, op), n = 1;
    size_t count = gathers ? products_after(module, op, &seconds) : product_before(module, op, &seconds);
    for (int a = 0; a < module->settings.mesh.count; a++)
        if (data->attributes.axes >> a & 1) n *= (double)module->settings.mesh.axes[a].size;
    return count && n > 1 && (sent < seconds ? sent : seconds) * (n - 1) / n > n * (double)count * STEP_SECONDS;
}

bool dtm_pass_overlap(dtm_module *module) {
    dtm_arena *arena = dtm_arena_create();
    dtm_op_list ops = dtm_ops_in_order(module, arena);
    hider h = begin(module, &ops, arena);
    for (size_t i = 0; i < ops.count; i++)
        if (is_candidate(module, ops.items[i]) && is_worth_memory(&h, ops.items[i]) && is_hidden(&h, ops.items[i]))
            module->ops[ops.items[i]].attributes.number[DTM_COLLECTIVE_APART] = 1;
    for (size_t i = 0; i < ops.count; i++)
        if (pays_in_steps(module, ops.items[i])) module->ops[ops.items[i]].attributes.number[DTM_COLLECTIVE_STEPS] = 1;
    module->after = dtm_string_of(module->context, "overlap");
    dtm_arena_destroy(arena);
    return true;
}
