/* fuse_collectives: takes all-reduces apart where less is sent that way (fuse_scatter.c), then joins collectives that go
 * over the same axes into one (a bucket), where what the machine model says is saved in latency exceeds what packing costs.
 * Nothing else moves, so every rank keeps one order.
 *
 *     up.d   = all_reduce(up.d.term on dp)
 *     down.d = all_reduce(down.d.term on dp)
 * becomes
 *     up.d, down.d = all_reduce(up.d.term, down.d.term on dp)
 *
 * A collective waits in its region's open bucket as long as nothing reads a member's result: the bucket stands where
 * its last member stood. Once something has read one, the bucket's place is fixed, and a later collective joins it only
 * if its operands stand before that place. */
#include "ir/calls.h"
#include "ir/fault.h"
#include "ir/storage.h"
#include "passes/cost.h"
#include "passes/fuse_collectives.h"
#include "passes/passes.h"

#include <string.h>

enum { MOST_MEMBERS = 64 };

typedef struct bucket {
    dtm_op members[MOST_MEMBERS];
    size_t count;
    double alone; /* seconds, the members one by one */
    int64_t payload;
    bool fixed;   /* something has read a member */
    size_t place; /* where it stands, an index of the region's operators as they were */
} bucket;

typedef struct buckets {
    dtm_module *module;
    dtm_arena *scratch;
    bucket **open;
    size_t count, capacity;
    bool *stays;        /* by operator as they were: it is put into no bucket */
    uint32_t *position; /* by operator: its index in the region at hand, from 1; 0: not in it */
    dtm_value *joined;  /* by value as they were: what a bucket makes in its place, or 0 */
} buckets;

/* The region of the loop over microbatches in which a value of a sum along a pipeline is complete; 0: in none, or what sets it is
 * another collective. */
static dtm_op completed_in(const dtm_module *module, dtm_value value) {
    dtm_op def = module->values[dtm_root_of(module, value)].def;
    return def && !dtm_is_collective(module->ops[def].kind) ? dtm_called_region(module, def) : 0;
}

/* Whether a sum is over the two ranks that the stage of a region lies on: both have the same of it in their programs. */
static bool is_of_both_ways(const dtm_module *module, dtm_op sum, dtm_op region) {
    dtm_op loop = dtm_ordered_loop(module, region);
    if (!loop || dtm_loop_placement(module, loop) != DTM_PLACE_BIDIRECTIONAL) return false;
    int64_t ranks = module->settings.mesh.axes[module->settings.pipeline.axis].size, members = 0;
    int64_t stage = (int64_t)module->ops[region].attributes.number[DTM_REGION_STAGE];
    for (int64_t r = 0; r < ranks; r++) members += dtm_is_member(module, &module->ops[sum], r);
    return members == 2 && dtm_is_member(module, &module->ops[sum], stage) && dtm_is_member(module, &module->ops[sum], ranks - 1 - stage);
}

/* Sums along a pipeline over the two ranks of a stage go with those that are complete in the same call. Others, of weights that several
 * stages have, which ranks complete in other calls, stay as they are, each to be started when its operand is complete; so do sums that
 * go on from others (dtm_goes_on_from), and those others. */
static void mark_unbucketed(const dtm_module *module, bool *stays) {
    for (dtm_op op = 1; op < module->n_ops; op++) {
        const dtm_op_data *data = &module->ops[op];
        if (!data->region || !dtm_is_collective(data->kind) || !dtm_along_pipeline(module, data)) continue;
        for (uint32_t i = 0; i < data->n_operands; i++) {
            dtm_op region = completed_in(module, data->operands[i]);
            if (region && is_of_both_ways(module, op, region)) continue;
            stays[module->values[dtm_root_of(module, data->operands[i])].def] = true;
            stays[op] = true;
        }
    }
}

/* What sums along a pipeline in a region take, names of what is complete before it, comes to its begin: so that one may join others
 * that stand before it. */
static void lift_terms(dtm_module *module, dtm_region region, const bool *stays) {
    size_t n = module->regions[region].n_ops, at = 0;
    while (at < n && module->ops[module->regions[region].ops[at]].kind == DTM_OP_CARRY) at++;
    for (size_t i = at; i < n; i++) {
        dtm_op op = module->regions[region].ops[i];
        const dtm_op_data *sum = &module->ops[op];
        if (sum->body) lift_terms(module, sum->body, stays);
        if (sum->kind != DTM_OP_ALL_REDUCE || sum->n_operands != 1 || stays[op] || !dtm_along_pipeline(module, sum)) continue;
        dtm_op term = module->values[sum->operands[0]].def;
        const dtm_op_data *data = &module->ops[term];
        dtm_op from = data->n_operands ? module->values[data->operands[0]].def : 0;
        if (data->kind != DTM_OP_AS_TERM || data->region != region || !from || module->ops[from].region == region) continue;
        if (dtm_called_region(module, from)) dtm_op_move(module, term, region, (int64_t)at++);
    }
}

static bool is_bucketed(const buckets *all, dtm_op op) {
    const dtm_op_data *data = &all->module->ops[op];
    return data->kind == DTM_OP_ALL_REDUCE && data->n_operands < MOST_MEMBERS && !all->stays[op];
}

/* Members agree in all that one message needs: axes, dtype, sum or maximum. */
static bool same_kind(const dtm_module *module, dtm_op a, dtm_op b) {
    const dtm_op_data *x = &module->ops[a], *y = &module->ops[b];
    const dtm_type_data *p = dtm_value_type(module, x->operands[0]), *q = dtm_value_type(module, y->operands[0]);
    bool along = dtm_along_pipeline(module, x) || dtm_along_pipeline(module, y);
    if (along && (x->attributes.members != y->attributes.members || completed_in(module, x->operands[0]) != completed_in(module, y->operands[0])))
        return false;
    return x->kind == y->kind && x->attributes.axes == y->attributes.axes && p->dtype == q->dtype &&
           (p->max != 0) == (q->max != 0);
}

static bool reads(const dtm_module *module, dtm_op op, dtm_op of) {
    const dtm_op_data *data = &module->ops[op], *source = &module->ops[of];
    for (uint32_t i = 0; i < data->n_operands; i++)
        for (uint32_t j = 0; j < source->n_results; j++)
            if (data->operands[i] == source->results[j]) return true;
    if (!data->body || dtm_fault(45)) return false;
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

/* Whether what a collective takes is there at a place of its region. */
static bool operands_before(const buckets *all, dtm_op op, size_t place) {
    const dtm_op_data *data = &all->module->ops[op];
    for (uint32_t i = 0; i < data->n_operands; i++) {
        dtm_op def = all->module->values[data->operands[i]].def;
        /* What a nested region sets counts with the operator that holds the region. */
        while (def && all->module->ops[def].region != data->region) {
            def = all->module->regions[all->module->ops[def].region].parent;
        }
        if (def && all->position[def] > place) return false;
    }
    return true;
}

static void add_member(buckets *all, bucket *b, dtm_op op, size_t place) {
    dtm_collective_cost cost = dtm_collective_cost_of(all->module, op);
    b->members[b->count++] = op;
    if (!b->fixed) b->place = place;
    for (size_t i = 0; i < b->count; i++) all->position[b->members[i]] = (uint32_t)b->place + 1;
    b->alone += cost.time;
    b->payload += cost.payload;
}

static dtm_string joined_reason(buckets *all, const bucket *b) {
    const char *first = dtm_string_text(all->module->context, all->module->ops[b->members[0]].why);
    return dtm_string_printf(all->module->context, "%s%s%u tensors in one bucket", first, *first ? "; " : "",
                             tensors_of(all->module, b));
}

/* Writes a bucket as one operator in its place. */
static void close_bucket(buckets *all, const bucket *b, const dtm_op *ops) {
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
    if (dtm_fault(10) && types[0] == types[1]) operands[0] = operands[1];
    dtm_op last = ops[b->place];
    dtm_builder builder = dtm_builder_before(module, last);
    builder.span = module->ops[b->members[0]].span;
    builder.place = module->ops[b->members[0]].place;
    builder.why = joined_reason(all, b);
    dtm_attributes attributes = module->ops[last].attributes;
    dtm_op made = dtm_build_op(&builder, module->ops[last].kind, operands, n, &attributes, types, n, "bucket");
    for (uint32_t i = 0; i < n; i++) {
        dtm_value value = dtm_result(module, made, i);
        all->joined[results[i]] = value;
        module->values[value].name = module->values[results[i]].name;
    }
    for (size_t i = 0; i < b->count; i++) dtm_op_remove(module, b->members[i]);
}

static void join(buckets *all, dtm_op op, size_t place) {
    for (size_t i = all->count; i-- > 0;) {
        bucket *b = all->open[i];
        if (!same_kind(all->module, b->members[0], op) || (b->fixed && !operands_before(all, op, b->place))) continue;
        if (!joining_pays(all->module, b, op)) continue;
        add_member(all, b, op, place);
        return;
    }
    bucket *b = dtm_arena_alloc(all->scratch, sizeof *b);
    add_member(all, b, op, place);
    DTM_PUSH(all->scratch, all->open, all->count, all->capacity, b);
}

static void fix_what_is_read(buckets *all, dtm_op op) {
    for (size_t k = 0; k < all->count; k++)
        for (size_t m = 0; m < all->open[k]->count && !all->open[k]->fixed; m++)
            all->open[k]->fixed = reads(all->module, op, all->open[k]->members[m]);
}

static void bucket_region(const buckets *pass, dtm_region region) {
    buckets all = *pass;
    dtm_module *module = all.module;
    dtm_arena *scratch = all.scratch;
    /* The list as it stands: writing buckets changes it in the end. */
    size_t n_ops = module->regions[region].n_ops;
    dtm_op *ops = dtm_arena_alloc(scratch, (n_ops + 1) * sizeof *ops);
    if (n_ops) memcpy(ops, module->regions[region].ops, n_ops * sizeof *ops);
    for (size_t i = 0; i < n_ops; i++) {
        all.position[ops[i]] = (uint32_t)i + 1;
        fix_what_is_read(&all, ops[i]);
        if (is_bucketed(&all, ops[i])) join(&all, ops[i], i);
    }
    for (size_t k = 0; k < all.count; k++) close_bucket(&all, all.open[k], ops);
    for (size_t i = 0; i < n_ops; i++)
        if (module->ops[ops[i]].body) bucket_region(pass, module->ops[ops[i]].body);
}

/* Readers of the members read the buckets. */
static void read_joined(dtm_module *module, const dtm_value *joined, size_t n_values) {
    for (dtm_op op = 1; op < module->n_ops; op++)
        for (uint32_t i = 0; i < module->ops[op].n_operands; i++) {
            dtm_value *operand = &module->ops[op].operands[i];
            if (*operand < n_values && joined[*operand]) *operand = joined[*operand];
        }
}

bool dtm_pass_fuse_collectives(dtm_module *module) {
    dtm_arena *scratch = dtm_arena_create();
    dtm_fuse_scatter(module, scratch);
    size_t n_values = module->n_values;
    buckets pass = {.module = module, .scratch = scratch};
    pass.position = dtm_arena_alloc(scratch, module->n_ops * sizeof *pass.position);
    pass.stays = dtm_arena_alloc(scratch, module->n_ops * sizeof *pass.stays);
    mark_unbucketed(module, pass.stays);
    lift_terms(module, module->body, pass.stays);
    pass.joined = dtm_arena_alloc(scratch, n_values * sizeof *pass.joined);
    bucket_region(&pass, module->body);
    read_joined(module, pass.joined, n_values);
    dtm_arena_destroy(scratch);
    module->after = dtm_string_of(module->context, "fuse_collectives");
    return true;
}
