/* fuse_collectives: joins collectives that go over the same axes into one (a bucket), where what the machine model says is
 * saved in latency exceeds what packing costs.
 *
 *     up.d   = all_reduce(up.d.term on dp)
 *     down.d = all_reduce(down.d.term on dp)
 * becomes
 *     up.d, down.d = all_reduce(up.d.term, down.d.term on dp)
 *
 * A collective waits in its region's open bucket as long as nothing reads its result; the bucket stands where its last
 * member stood. Nothing else moves, so every rank keeps one order. */
#include "passes/cost.h"
#include "passes/passes.h"

#include <string.h>

enum { MOST_MEMBERS = 64 };

typedef struct bucket {
    dtm_op members[MOST_MEMBERS];
    size_t count;
    double alone; /* seconds, the members one by one */
    int64_t payload;
} bucket;

typedef struct buckets {
    dtm_module *module;
    dtm_arena *scratch;
    bucket **open;
    size_t count, capacity;
} buckets;

static bool is_bucketed(const dtm_op_data *op) {
    return op->kind == DTM_OP_ALL_REDUCE && op->n_operands < MOST_MEMBERS;
}

/* Members agree in all that one message needs: axes, dtype, sum or maximum. */
static bool same_kind(const dtm_module *module, dtm_op a, dtm_op b) {
    const dtm_op_data *x = &module->ops[a], *y = &module->ops[b];
    const dtm_type_data *p = dtm_value_type(module, x->operands[0]), *q = dtm_value_type(module, y->operands[0]);
    return x->kind == y->kind && x->attributes.axes == y->attributes.axes && p->dtype == q->dtype &&
           (p->max != 0) == (q->max != 0);
}

static bool reads(const dtm_module *module, dtm_op op, dtm_op of) {
    const dtm_op_data *data = &module->ops[op], *source = &module->ops[of];
    for (uint32_t i = 0; i < data->n_operands; i++)
        for (uint32_t j = 0; j < source->n_results; j++)
            if (data->operands[i] == source->results[j]) return true;
    if (!data->body) return false;
    const dtm_region_data *body = &module->regions[data->body];
    for (size_t i = 0; i < body->n_ops; i++)
        if (reads(module, body->ops[i], of)) return true;
    return false;
}

static uint32_t tensors_of(const dtm_module *module, const bucket *b) {
    uint32_t count = 0;
    for (size_t i = 0; i < b->count; i++) count += module->ops[b->members[i]].n_operands;
    return count;
}

/* Joining saves rounds of latency and costs a copy in and one out. */
static bool joining_pays(const dtm_module *module, const bucket *b, dtm_op op) {
    dtm_collective_cost cost = dtm_collective_cost_of(module, op);
    if (!cost.sends || tensors_of(module, b) + module->ops[op].n_operands > MOST_MEMBERS) return false;
    double together;
    int64_t payload = b->payload + cost.payload;
    dtm_algorithm_choose(module, cost.kind, module->ops[op].attributes.axes, payload, &together);
    double copies = 4.0 * (double)payload / dtm_machine_of(module).memory_bandwidth;
    return together + copies < b->alone + cost.time;
}

static void add_member(const dtm_module *module, bucket *b, dtm_op op) {
    dtm_collective_cost cost = dtm_collective_cost_of(module, op);
    b->members[b->count++] = op;
    b->alone += cost.time;
    b->payload += cost.payload;
}

static dtm_string joined_reason(buckets *all, const bucket *b) {
    const char *first = dtm_string_text(all->module->context, all->module->ops[b->members[0]].why);
    return dtm_string_printf(all->module->context, "%s%s%u tensors in one bucket", first, *first ? "; " : "",
                             tensors_of(all->module, b));
}

/* Writes a bucket as one operator in the place of its last member. */
static void close_bucket(buckets *all, const bucket *b) {
    if (b->count < 2) return;
    dtm_module *module = all->module;
    dtm_value operands[MOST_MEMBERS], results[MOST_MEMBERS];
    dtm_type types[MOST_MEMBERS];
    uint32_t n = 0;
    for (size_t i = 0; i < b->count; i++)
        for (uint32_t k = 0; k < module->ops[b->members[i]].n_operands; k++) {
            operands[n] = module->ops[b->members[i]].operands[k];
            results[n] = module->ops[b->members[i]].results[k];
            types[n] = module->values[results[n]].type;
            n++;
        }
    dtm_op last = b->members[b->count - 1];
    dtm_builder builder = dtm_builder_before(module, last);
    builder.span = module->ops[b->members[0]].span;
    builder.place = module->ops[b->members[0]].place;
    builder.why = joined_reason(all, b);
    dtm_attributes attributes = module->ops[last].attributes;
    dtm_op made = dtm_build_op(&builder, module->ops[last].kind, operands, n, &attributes, types, n, "bucket");
    for (uint32_t i = 0; i < n; i++) {
        dtm_value value = dtm_result(module, made, i);
        dtm_replace_uses(module, results[i], value);
        module->values[value].name = module->values[results[i]].name;
    }
    for (size_t i = 0; i < b->count; i++) dtm_op_remove(module, b->members[i]);
}

static void close_at(buckets *all, size_t index) {
    close_bucket(all, all->open[index]);
    memmove(all->open + index, all->open + index + 1, (all->count - index - 1) * sizeof *all->open);
    all->count--;
}

static void join(buckets *all, dtm_op op) {
    for (size_t i = 0; i < all->count; i++)
        if (same_kind(all->module, all->open[i]->members[0], op)) {
            if (joining_pays(all->module, all->open[i], op)) {
                add_member(all->module, all->open[i], op);
                return;
            }
            close_at(all, i);
            break;
        }
    bucket *b = dtm_arena_alloc(all->scratch, sizeof *b);
    add_member(all->module, b, op);
    DTM_PUSH(all->scratch, all->open, all->count, all->capacity, b);
}

static void bucket_region(dtm_module *module, dtm_region region, dtm_arena *scratch) {
    buckets all = {.module = module, .scratch = scratch};
    /* The list as it stands: closing buckets changes it on the way. */
    size_t n_ops = module->regions[region].n_ops;
    dtm_op *ops = dtm_arena_alloc(scratch, (n_ops + 1) * sizeof *ops);
    if (n_ops) memcpy(ops, module->regions[region].ops, n_ops * sizeof *ops);
    for (size_t i = 0; i < n_ops; i++) {
        for (size_t k = all.count; k-- > 0;)
            for (size_t m = 0; m < all.open[k]->count; m++)
                if (reads(module, ops[i], all.open[k]->members[m])) {
                    close_at(&all, k);
                    break;
                }
        if (module->ops[ops[i]].body) bucket_region(module, module->ops[ops[i]].body, scratch);
        else if (is_bucketed(&module->ops[ops[i]])) join(&all, ops[i]);
    }
    while (all.count) close_at(&all, 0);
}

bool dtm_pass_fuse_collectives(dtm_module *module) {
    dtm_arena *scratch = dtm_arena_create();
    bucket_region(module, module->body, scratch);
    dtm_arena_destroy(scratch);
    module->after = dtm_string_of(module->context, "fuse_collectives");
    return true;
}
