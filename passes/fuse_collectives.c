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
 * if its operands stand before that place.
 *
 * Of a stage that lies on two ranks (dualpipe) a sum between these may take what a sum over another axis makes. Both then go into
 * buckets together, so that one bucket goes on from the other with what is packed in that (dtm_goes_on_from):
 *
 *     up.d, down.d     = all_reduce(up.d.term, down.d.term on dp)
 *     up.all, down.all = all_reduce(up.part, down.part on pp)            # of up.d, down.d
 *
 * The two ranks have programs of their own, and must come to the same buckets in the same order: a sum goes into one only if the other
 * rank has it in the same way, and the bucket stands where its first member stood. */
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
    bool fixed;   /* something has read a member, or other ranks have it in the same place */
    size_t place; /* where it stands, an index of the region's operators as they were */
} bucket;

/* A sum over the two ranks of a stage, of what is complete in a call. */
typedef struct shared_sum {
    dtm_op sum, before, region; /* before: that over other axes whose result it takes, or 0 */
} shared_sum;

typedef struct buckets {
    dtm_module *module;
    dtm_arena *scratch;
    bucket **open;
    size_t count, capacity;
    bool *stays;        /* by operator as they were: it is put into no bucket */
    dtm_op *next;       /* by operator as they were: the sum that takes what it makes, and is put into buckets with it; 0: none */
    shared_sum *shared;
    size_t n_shared, cap_shared;
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

/* The one reader of what an operator makes; 0: there are more, or none. */
static dtm_op only_reader(const dtm_module *module, dtm_op *const *users, dtm_op op) {
    const dtm_op *readers = users[module->ops[op].results[0]];
    return readers[0] && !readers[1] ? readers[0] : 0;
}

/* The sum over other axes in the same region of which a sum takes the result, and nothing else does; 0: none. */
static dtm_op summed_before(const dtm_module *module, dtm_op *const *users, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    dtm_op term = module->values[data->operands[0]].def;
    if (data->n_operands != 1 || !term || module->ops[term].kind != DTM_OP_AS_TERM || only_reader(module, users, term) != op) return 0;
    dtm_op before = module->values[module->ops[term].operands[0]].def;
    const dtm_op_data *first = before ? &module->ops[before] : NULL;
    if (!first || first->kind != DTM_OP_ALL_REDUCE || first->n_operands != 1 || dtm_along_pipeline(module, first)) return 0;
    if (first->region != data->region || module->ops[term].region != data->region) return 0;
    return only_reader(module, users, before) == term ? before : 0;
}

/* Sums along a pipeline over the two ranks of a stage go with those that are complete in the same call, and with them the sums over
 * other axes that they go on from. Others, of weights that several stages have, which ranks complete in other calls, stay as they are,
 * each to be started when its operand is complete; so do those that they go on from. */
static void mark_unbucketed(buckets *all) {
    const dtm_module *module = all->module;
    dtm_op **users = dtm_users_of(module, all->scratch);
    for (dtm_op op = 1; op < module->n_ops; op++) {
        const dtm_op_data *data = &module->ops[op];
        if (!data->region || !dtm_is_collective(data->kind) || !dtm_along_pipeline(module, data)) continue;
        for (uint32_t i = 0; i < data->n_operands; i++) {
            dtm_op before = summed_before(module, users, op);
            dtm_op region = completed_in(module, before ? module->ops[before].operands[0] : data->operands[i]);
            if (region && is_of_both_ways(module, op, region))
                DTM_PUSH(all->scratch, all->shared, all->n_shared, all->cap_shared, ((shared_sum){op, before, region}));
            else
                all->stays[op] = all->stays[module->values[dtm_root_of(module, data->operands[i])].def] = true;
        }
    }
}

/* Whether ranks have one sum in the same way: complete in the same call, and after a sum over other axes or not. */
static bool same_shared(const dtm_module *one, const shared_sum *x, const dtm_module *other, const shared_sum *y) {
    const dtm_op_data *a = &one->ops[x->sum], *b = &other->ops[y->sum], *in = &one->ops[x->region], *of = &other->ops[y->region];
    if (one->values[a->results[0]].name != other->values[b->results[0]].name || a->attributes.members != b->attributes.members) return false;
    bool call = in->kind == of->kind && in->attributes.flags == of->attributes.flags &&
                in->attributes.number[DTM_REGION_STAGE] == of->attributes.number[DTM_REGION_STAGE];
    return call && !x->before == !y->before;
}

/* What the other rank has in another way stays as it is. */
static void settle_shared(buckets *ranks, size_t count) {
    for (size_t r = 0; r < count; r++)
        for (size_t i = 0; i < ranks[r].n_shared; i++) {
            const shared_sum *own = &ranks[r].shared[i];
            const buckets *other = &ranks[count - 1 - r];
            bool found = false;
            for (size_t k = 0; k < other->n_shared && !found; k++)
                found = same_shared(ranks[r].module, own, other->module, &other->shared[k]);
            if (own->before) ranks[r].stays[own->sum] = true, ranks[r].next[own->before] = found ? own->sum : 0;
            if (!found) ranks[r].stays[own->sum] = ranks[r].stays[own->before] = true;
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

/* Members agree in all that one message needs: axes, ranks along a pipeline, dtype, sum or maximum. */
static bool same_message(const dtm_module *module, dtm_op a, dtm_op b) {
    const dtm_op_data *x = &module->ops[a], *y = &module->ops[b];
    const dtm_type_data *p = dtm_value_type(module, x->operands[0]), *q = dtm_value_type(module, y->operands[0]);
    return x->kind == y->kind && x->attributes.axes == y->attributes.axes && x->attributes.members == y->attributes.members &&
           p->dtype == q->dtype && (p->max != 0) == (q->max != 0);
}

static bool same_kind(const buckets *all, dtm_op a, dtm_op b) {
    const dtm_module *module = all->module;
    const dtm_op_data *x = &module->ops[a], *y = &module->ops[b];
    dtm_op next = all->next[a], other = all->next[b];
    bool along = dtm_along_pipeline(module, x) || dtm_along_pipeline(module, y) || next || other;
    if (along && completed_in(module, x->operands[0]) != completed_in(module, y->operands[0])) return false;
    if (!next != !other || (next && !same_message(module, next, other))) return false;
    return same_message(module, a, b);
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

/* Seconds of a collective, and of that which goes on from it. */
static double time_alone(const buckets *all, dtm_op op) {
    double time = dtm_collective_cost_of(all->module, op).time;
    return all->next[op] ? time + dtm_collective_cost_of(all->module, all->next[op]).time : time;
}

static double time_of_payload(const buckets *all, dtm_op op, int64_t payload) {
    double time = dtm_collective_time_of(all->module, op, payload);
    return all->next[op] ? time + dtm_collective_time_of(all->module, all->next[op], payload) : time;
}

/* Joining saves rounds of latency and costs a copy in and one out; what goes on from a bucket is packed already. */
static bool joining_pays(const buckets *all, const bucket *b, dtm_op op) {
    dtm_collective_cost cost = dtm_collective_cost_of(all->module, op);
    if (!cost.sends || tensors_of(all->module, b) + all->module->ops[op].n_operands > MOST_MEMBERS) return false;
    int64_t payload = b->payload + cost.payload;
    double copies = 4.0 * (double)payload / dtm_machine_of(all->module).memory_bandwidth;
    return time_of_payload(all, op, payload) + copies < b->alone + time_alone(all, op);
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
    b->members[b->count++] = op;
    if (!b->fixed) b->place = place;
    for (size_t i = 0; i < b->count; i++) {
        dtm_op member = b->members[i], next = all->next[member];
        all->position[member] = (uint32_t)b->place + 1;
        if (!next) continue;
        all->position[next] = all->position[all->module->values[all->module->ops[next].operands[0]].def] = (uint32_t)b->place + 1;
    }
    b->alone += time_alone(all, op);
    b->payload += dtm_collective_cost_of(all->module, op).payload;
}

static dtm_string joined_reason(buckets *all, const dtm_op *members, uint32_t tensors) {
    const char *first = dtm_string_text(all->module->context, all->module->ops[members[0]].why);
    return dtm_string_printf(all->module->context, "%s%s%u tensors in one bucket", first, *first ? "; " : "", tensors);
}

/* Writes some as one operator before another. */
static void write_joined(buckets *all, const dtm_op *members, size_t count, dtm_op last) {
    dtm_module *module = all->module;
    dtm_value operands[MOST_MEMBERS], results[MOST_MEMBERS];
    dtm_type types[MOST_MEMBERS];
    uint32_t n = 0;
    for (size_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < module->ops[members[i]].n_operands; k++) {
            operands[n] = module->ops[members[i]].operands[k];
            results[n] = module->ops[members[i]].results[k];
            types[n] = module->values[results[n]].type;
            n++;
        }
    if (dtm_fault(10) && types[0] == types[1]) operands[0] = operands[1];
    dtm_builder builder = dtm_builder_before(module, last);
    builder.span = module->ops[members[0]].span;
    builder.place = module->ops[members[0]].place;
    builder.why = joined_reason(all, members, n);
    dtm_attributes attributes = module->ops[members[0]].attributes;
    dtm_op made = dtm_build_op(&builder, module->ops[members[0]].kind, operands, n, &attributes, types, n, "bucket");
    for (uint32_t i = 0; i < n; i++) {
        dtm_value value = dtm_result(module, made, i);
        all->joined[results[i]] = value;
        module->values[value].name = module->values[results[i]].name;
    }
}

/* Writes a bucket in its place, and behind it that which goes on from it, between them the names of what that takes. */
static void close_bucket(buckets *all, const bucket *b, const dtm_op *ops) {
    if (b->count < 2) return;
    dtm_module *module = all->module;
    dtm_op last = ops[b->place], next[MOST_MEMBERS];
    size_t count = 0; /* of next */
    write_joined(all, b->members, b->count, last);
    for (size_t i = 0; i < b->count && all->next[b->members[i]]; i++) {
        next[count++] = all->next[b->members[i]];
        dtm_op term = module->values[module->ops[next[i]].operands[0]].def;
        dtm_op_move(module, term, module->ops[last].region, dtm_op_position(module, last));
    }
    if (count) write_joined(all, next, count, last);
    for (size_t i = 0; i < b->count; i++) dtm_op_remove(module, b->members[i]);
    for (size_t i = 0; i < count; i++) dtm_op_remove(module, next[i]);
}

static void join(buckets *all, dtm_op op, size_t place) {
    for (size_t i = all->count; i-- > 0;) {
        bucket *b = all->open[i];
        if (!same_kind(all, b->members[0], op) || (b->fixed && !operands_before(all, op, b->place))) continue;
        if (!joining_pays(all, b, op)) continue;
        add_member(all, b, op, place);
        return;
    }
    bucket *b = dtm_arena_alloc(all->scratch, sizeof *b);
    add_member(all, b, op, place);
    b->fixed = all->next[op] || dtm_along_pipeline(all->module, &all->module->ops[op]);
    DTM_PUSH(all->scratch, all->open, all->count, all->capacity, b);
}

/* Of a member that another goes on from, that one is the reader: what reads its result counts. */
static void fix_what_is_read(buckets *all, dtm_op op) {
    for (size_t k = 0; k < all->count; k++)
        for (size_t m = 0; m < all->open[k]->count && !all->open[k]->fixed; m++) {
            dtm_op member = all->open[k]->members[m], next = all->next[member];
            all->open[k]->fixed = reads(all->module, op, next ? next : member);
        }
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

static void begin(buckets *all, dtm_module *module, dtm_arena *scratch) {
    dtm_fuse_scatter(module, scratch);
    *all = (buckets){.module = module, .scratch = scratch};
    all->position = dtm_arena_alloc(scratch, module->n_ops * sizeof *all->position);
    all->stays = dtm_arena_alloc(scratch, module->n_ops * sizeof *all->stays);
    all->next = dtm_arena_alloc(scratch, module->n_ops * sizeof *all->next);
    mark_unbucketed(all);
}

static void put_into_buckets(buckets *all) {
    dtm_module *module = all->module;
    size_t n_values = module->n_values;
    lift_terms(module, module->body, all->stays);
    all->joined = dtm_arena_alloc(all->scratch, n_values * sizeof *all->joined);
    bucket_region(all, module->body);
    read_joined(module, all->joined, n_values);
}

bool dtm_pass_fuse_collectives(dtm_module *module) {
    dtm_arena *scratch = dtm_arena_create();
    size_t count = module->n_ranks ? module->n_ranks : 1;
    buckets *ranks = dtm_arena_alloc(scratch, count * sizeof *ranks);
    for (size_t r = 0; r < count; r++) begin(&ranks[r], module->n_ranks ? module->ranks[r] : module, scratch);
    settle_shared(ranks, count);
    for (size_t r = 0; r < count; r++) put_into_buckets(&ranks[r]);
    dtm_arena_destroy(scratch);
    module->after = dtm_string_of(module->context, "fuse_collectives");
    return true;
}
