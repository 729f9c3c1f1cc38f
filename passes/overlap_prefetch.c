/* overlap: collectives started ahead of what reads them (passes.h).
 *
 * A collective is on its way while what stands between it and the first operator that reads it is computed. Operators of its region
 * that stand before it, that it does not need and that nothing reads up to there may as well come after it:
 *
 *     p.term = dot(a, up over F)                 p.term = dot(a, up over F)
 *     d_up.term = dot(h, a over B, S)            q.term = p.term + dot(b, gate over F)
 *     q.term = p.term + dot(b, gate over F)      q = reduce_scatter(q.term over S on tp, apart = 1)
 *     q = reduce_scatter(q.term over S on tp)    d_up.term = dot(h, a over B, S)        # hides it
 *     x = q * norm                               x = q * norm
 *
 * What is moved reads and makes values and does nothing else, each reads and makes the same as before, and collectives stay in
 * their order: all ranks of an axis have one text. As many are moved as take the time of the collective, those first that make
 * values live longer by the fewest bytes; together they may add to what lives at one time in the region no more than what the
 * collective makes. Only what is a kernel of its own is moved for that: elementwise operators would leave the
 * kernels that they are fused into.
 *
 * Where that is too little, what stands behind the reader and does not need the collective is brought before it (overlap_behind.c).
 *
 * What does not fit in the memory of the machine for that is not done, the collectives that move most first (overlap_room.c).
 *
 * A reduce-scatter that would go in steps (overlap_steps.c) is started ahead instead where that hides more of it.
 *
 * Each is waited for in the copy of the loops around it in which it is started. The regions of F&B pairs are left alone: their
 * collectives are hidden by the other part. */
#include "passes/overlap_prefetch.h"
#include "ir/calls.h"
#include "ir/storage.h"
#include "passes/cost.h"
#include "passes/ledger.h"
#include "passes/overlap_behind.h"
#include "passes/overlap_room.h"
#include "passes/overlap_steps.h"

#include <math.h>
#include <string.h>

/* Of a collective those heads that stand nearest to it. Each collective is judged against all of its region, several times, so that
 * the work grows with the square of it: a region of more operators than MOST_OPERATORS, of a program that writes each of many layers
 * out, is left as it is. */
enum { MOST_HEADS = 64, MOST_OPERATORS = 1024 };

/* ---- what may be moved ---- */

bool dtm_is_own_kernel(const dtm_module *module, dtm_op op) {
    static const char *const expansions[DTM_OP_KINDS] = {
        "none",
#define OP(kind, name, least, most, results, rule, linear, numbers, flags, gradient, expand) #expand,
#include "ir/ops.def"
#undef OP
    };
    dtm_op_kind kind = module->ops[op].kind;
    return dtm_only_computes(kind) && kind != DTM_OP_ACCUMULATE && !dtm_is_elementwise(kind) && !dtm_is_reduction(kind) &&
           strcmp(expansions[kind], "none") == 0 && !dtm_is_alias(module, op);
}

/* ---- a collective and its region ---- */

typedef struct sources {
    size_t *items, count, capacity;
} sources;

typedef struct window {
    dtm_module *module;
    dtm_arena *arena;
    dtm_region region;
    const dtm_op *ops; /* of the region */
    size_t n, at;      /* where the collective stands */
    dtm_op **users;    /* by value, zero-terminated */
    dtm_op *reader;    /* by op: the first of the region that reads what it makes, if it is carried out apart */
    bool *needed;      /* by position: what the collective needs */
    bool *stays;       /* by position */
    sources *sources;  /* by position, up to the collective */
    size_t *position;  /* by op of the region */
    const double *times; /* by op: seconds, of kernels */
} window;

/* Where op, or what it stands in, stands in the region; n: not there. */
static size_t place_of(const window *w, dtm_op op) {
    while (op && w->module->ops[op].region != w->region) op = w->module->regions[w->module->ops[op].region].parent;
    return op ? w->position[op] : w->n;
}

/* The first operator that reads a value, or an alias of it; a carry hands it on at the end. */
static void find_reader(const window *w, dtm_value value, size_t *first) {
    for (const dtm_op *user = w->users[value]; *user; user++) {
        const dtm_op_data *data = &w->module->ops[*user];
        if (data->kind == DTM_OP_CARRY && data->region == w->region) continue;
        if (dtm_is_alias(w->module, *user)) {
            find_reader(w, data->results[0], first);
            continue;
        }
        size_t at = place_of(w, *user);
        if (at < *first) *first = at;
    }
}

static size_t reader_of(const window *w, dtm_op op) {
    size_t first = w->n;
    for (uint32_t i = 0; i < w->module->ops[op].n_results; i++) find_reader(w, w->module->ops[op].results[i], &first);
    return first;
}

/* What op, and all that stands in it, reads becomes wanted. */
static void want(const window *w, dtm_op op, bool *wanted) {
    const dtm_op_data *data = &w->module->ops[op];
    for (uint32_t i = 0; i < data->n_operands; i++) wanted[data->operands[i]] = true;
    for (size_t i = 0; data->body && i < w->module->regions[data->body].n_ops; i++) want(w, w->module->regions[data->body].ops[i], wanted);
}

static bool makes_wanted(const window *w, dtm_op op, const bool *wanted) {
    const dtm_op_data *data = &w->module->ops[op];
    bool makes = false;
    for (uint32_t i = 0; i < data->n_results; i++) makes |= wanted[data->results[i]];
    for (size_t i = 0; data->body && !makes && i < w->module->regions[data->body].n_ops; i++)
        makes = makes_wanted(w, w->module->regions[data->body].ops[i], wanted);
    return makes;
}

static void find_needed(window *w) {
    bool *wanted = dtm_arena_alloc(w->arena, w->module->n_values);
    w->needed = dtm_arena_alloc(w->arena, w->n);
    want(w, w->ops[w->at], wanted);
    for (size_t i = w->at; i-- > 0;) {
        w->needed[i] = makes_wanted(w, w->ops[i], wanted);
        if (w->needed[i]) want(w, w->ops[i], wanted);
    }
}

/* Products in steps stay where they are, beside their collective; what hides a collective does, as long as that is under way; and
 * nothing is moved past a loop, in all of which its operands would live. */
static void find_stays(window *w) {
    w->stays = dtm_arena_alloc(w->arena, w->n + 1);
    for (size_t i = 0; i < w->at; i++) {
        dtm_op op = w->ops[i], first;
        size_t count = dtm_is_in_steps(w->module, op) ? dtm_products_in_steps(w->module, op, &first) : 0;
        for (size_t k = 0; k < count; k++) w->stays[w->position[first] + k] = true;
        size_t until = w->reader[op] ? w->position[w->reader[op]] : w->n;
        for (size_t k = i; w->reader[op] && until <= w->at && k < until; k++) w->stays[k] = true;
        for (size_t k = 0; w->module->ops[op].body && k < i; k++) w->stays[k] = true;
    }
}

/* By position: the positions of what makes its operands, and those of what stands in it. */
static void add_sources(window *w, sources *s, dtm_op op, size_t at) {
    const dtm_op_data *data = &w->module->ops[op];
    for (uint32_t i = 0; i < data->n_operands; i++) {
        dtm_op def = w->module->values[data->operands[i]].def;
        size_t from = def ? place_of(w, def) : w->n;
        if (from < at) DTM_PUSH(w->arena, s->items, s->count, s->capacity, from);
    }
    for (size_t i = 0; data->body && i < w->module->regions[data->body].n_ops; i++)
        add_sources(w, s, w->module->regions[data->body].ops[i], at);
}

static void find_sources(window *w) {
    w->sources = dtm_arena_alloc(w->arena, (w->at + 1) * sizeof *w->sources);
    for (size_t i = 0; i < w->at; i++) add_sources(w, &w->sources[i], w->ops[i], i);
}

static void look(window *w, dtm_op op) {
    w->ops = w->module->regions[w->region].ops;
    for (size_t i = 0; i < w->n; i++) w->position[w->ops[i]] = i;
    w->at = w->position[op];
    find_needed(w);
    find_stays(w);
    find_sources(w);
}

/* ---- what is moved ---- */

/* The operator at position `head` and all before the collective that needs it; false: one of them may not be moved. */
static bool bundle_of(const window *w, size_t head, bool *bundle) {
    memset(bundle, 0, w->n);
    for (size_t i = head; i < w->at; i++) {
        bool joins = i == head;
        for (size_t k = 0; k < w->sources[i].count; k++) joins |= bundle[w->sources[i].items[k]];
        if (!joins) continue;
        if (!dtm_only_computes(w->module->ops[w->ops[i]].kind) || w->needed[i] || w->stays[i]) return false;
        bundle[i] = true;
    }
    return true;
}

/* How many more bytes live: operands that nothing else reads from the collective on, made in this region. */
static int64_t lengthens(const window *w, const bool *bundle) {
    int64_t bytes = 0;
    bool *counted = dtm_arena_alloc(w->arena, w->module->n_values);
    for (size_t i = 0; i < w->at; i++) {
        const dtm_op_data *data = &w->module->ops[w->ops[i]];
        for (uint32_t k = 0; bundle[i] && k < data->n_operands; k++) {
            dtm_value v = data->operands[k];
            dtm_op def = w->module->values[v].def;
            size_t from = def ? place_of(w, def) : w->n;
            if (from == w->n || bundle[from] || counted[v]) continue;
            counted[v] = true;
            bool lives = false;
            for (size_t j = w->at; j < w->n && !lives; j++)
                for (uint32_t o = 0; o < w->module->ops[w->ops[j]].n_operands; o++) lives |= w->module->ops[w->ops[j]].operands[o] == v;
            if (!lives) bytes += dtm_local_bytes_max(w->module, w->module->values[v].type);
        }
    }
    return bytes;
}

/* The bundle that lengthens lives the least, of equals the nearest; returns its seconds, 0: there is none. */
static double choose(const window *w, const bool *refused, bool *best, size_t *head) {
    bool *bundle = dtm_arena_alloc(w->arena, w->n);
    int64_t fewest = INT64_MAX;
    double found = 0;
    int heads = 0;
    for (size_t i = w->at; i-- > 0 && heads < MOST_HEADS;) {
        if (w->needed[i] || w->stays[i] || !dtm_is_own_kernel(w->module, w->ops[i]) || refused[w->ops[i]]) continue;
        heads++;
        if (!bundle_of(w, i, bundle)) continue;
        int64_t bytes = lengthens(w, bundle);
        if (bytes >= fewest) continue;
        fewest = bytes;
        memcpy(best, bundle, w->n);
        *head = i;
        found = 0;
        for (size_t k = i; k < w->at; k++)
            if (bundle[k] && dtm_is_own_kernel(w->module, w->ops[k])) found += w->times[w->ops[k]];
    }
    return found;
}

/* Moves what a bundle has to right after the collective, in its order. */
static void move(window *w, dtm_op op, const bool *bundle) {
    dtm_op *moved = dtm_arena_alloc(w->arena, w->n * sizeof *moved);
    size_t count = 0;
    for (size_t i = 0; i < w->at; i++)
        if (bundle[i]) moved[count++] = w->ops[i];
    for (size_t i = count; i-- > 0;) dtm_op_move(w->module, moved[i], w->region, dtm_op_position(w->module, op) + 1);
    look(w, op);
}

/* ---- whether it pays ---- */

/* Seconds of kernels between a collective and its reader. */
static double work_until(const window *w, size_t reader) {
    double seconds = 0;
    for (size_t i = w->at + 1; i < reader && i < w->n; i++)
        if (dtm_is_own_kernel(w->module, w->ops[i])) seconds += w->times[w->ops[i]];
    return seconds;
}

/* Seconds that what is under way already where it starts goes on for, at most: they are carried out one after another. */
static double ahead_of(const window *w) {
    double seconds = 0;
    for (size_t i = 0; i < w->at; i++) {
        dtm_op reader = w->reader[w->ops[i]];
        if (reader && w->position[reader] > w->at) seconds += dtm_collective_cost_of(w->module, w->ops[i]).time;
    }
    return seconds;
}

static bool is_candidate(const dtm_module *module, dtm_op op, const bool *paired) {
    const dtm_op_data *data = &module->ops[op];
    bool may = data->kind == DTM_OP_ALL_REDUCE || data->kind == DTM_OP_REDUCE_SCATTER || data->kind == DTM_OP_ALL_GATHER;
    if (!data->region || !may || dtm_is_apart(module, op)) return false;
    if (dtm_is_in_steps(module, op) && data->kind != DTM_OP_REDUCE_SCATTER) return false; /* its readers are with it */
    if (dtm_along_pipeline(module, data) || dtm_group_size(module, data->attributes.axes) < 2) return false;
    if (dtm_enclosing(module, op, DTM_OP_UPDATE) || paired[dtm_called_region(module, op)]) return false;
    if (module->regions[data->region].n_ops > MOST_OPERATORS) return false;
    dtm_arena *arena = dtm_arena_create();
    dtm_order order = dtm_order_of(module, arena); /* as it is by now */
    bool touched = dtm_touched_by(module, &order, op) >= 0;
    dtm_arena_destroy(arena);
    return touched;
}

/* And goes the way that it would have gone otherwise. */
static void leave_steps(dtm_attributes *attributes) {
    attributes->number[DTM_COLLECTIVE_STEPS] = 0;
    attributes->flags = 0;
}

static void prefetch(dtm_module *module, dtm_op op, dtm_op **users, dtm_op *reader, const double *times) {
    window w = {.module = module, .arena = dtm_arena_create(), .region = module->ops[op].region, .users = users, .reader = reader, .times = times};
    w.position = dtm_arena_alloc(w.arena, module->n_ops * sizeof *w.position);
    w.n = module->regions[w.region].n_ops;
    look(&w, op);
    size_t until = reader_of(&w, op);
    dtm_attributes *attributes = &module->ops[op].attributes;
    const dtm_attributes in_steps = *attributes; /* if it goes so */
    double exposed = attributes->number[DTM_COLLECTIVE_STEPS] != 0 ? times[op] : INFINITY;
    if (exposed < INFINITY) leave_steps(attributes);
    dtm_op first = until < w.n ? w.ops[until] : 0, *before = dtm_arena_alloc(w.arena, w.n * sizeof *before);
    double takes = dtm_collective_cost_of(module, op).time, wanted = takes + ahead_of(&w), hidden = work_until(&w, until);
    int64_t results = 0;
    for (uint32_t i = 0; i < module->ops[op].n_results; i++) results += dtm_local_bytes_max(module, module->values[module->ops[op].results[i]].type);
    int64_t most = dtm_most_bytes(module, w.region, 0, 0) + results;
    bool *bundle = dtm_arena_alloc(w.arena, w.n), *refused = dtm_arena_alloc(w.arena, module->n_ops);
    dtm_op *all = dtm_arena_alloc(w.arena, w.n * sizeof *all);
    memcpy(all, w.ops, w.n * sizeof *all);
    for (size_t head = 0; first && hidden < wanted;) {
        double seconds = choose(&w, refused, bundle, &head);
        if (seconds <= 0) break;
        dtm_op chosen = w.ops[head];
        memcpy(before, w.ops, w.n * sizeof *before);
        move(&w, op, bundle);
        if (dtm_most_bytes(module, w.region, op, w.position[first]) <= most) {
            hidden += seconds;
            continue;
        }
        memcpy(module->regions[w.region].ops, before, w.n * sizeof *before);
        refused[chosen] = true;
        look(&w, op);
    }
    if (first && hidden < wanted) hidden += dtm_bring_forward(module, &(dtm_waiting){op, first, reader, times, wanted - hidden, most});
    double gains = hidden - (wanted - takes);
    if ((gains < takes ? gains : takes) > fmax(takes - exposed, 0) + dtm_seconds_of_step) {
        attributes->number[DTM_COLLECTIVE_APART] = 1;
        reader[op] = first;
    } else {
        *attributes = in_steps;
        memcpy(module->regions[w.region].ops, all, w.n * sizeof *all);
    }
    dtm_arena_destroy(w.arena);
}

/* ---- all of a module ---- */

/* By op: regions that are called as a part of a pair. */
static bool *paired_regions(const dtm_module *module, dtm_arena *arena) {
    bool *paired = dtm_arena_alloc(arena, module->n_ops);
    dtm_op loop = module->of_ranks ? dtm_rank_loop(module) : 0;
    dtm_loop_calls calls;
    if (!loop || !dtm_loop_is_ordered(module, loop) || dtm_loop_calls_of(module, loop, arena, &calls)) return paired;
    const dtm_region_data *body = &module->regions[module->ops[loop].body];
    for (size_t i = 0; i < body->n_ops; i++)
        paired[body->ops[i]] = dtm_loop_is_paired(&calls, body->ops[i], false) || dtm_loop_is_paired(&calls, body->ops[i], true);
    return paired;
}

/* One after the other; returns those that are now started ahead. */
static dtm_op_list prefetch_all(dtm_module *module, const bool *refused, dtm_arena *arena) {
    dtm_op_list ops = dtm_ops_in_order(module, arena), made = {0};
    dtm_op *reader = dtm_arena_alloc(arena, module->n_ops * sizeof *reader);
    dtm_op **users = dtm_users_of(module, arena); /* moving leaves them as they are */
    const bool *paired = paired_regions(module, arena);
    const double *times = dtm_run_times(module, arena);
    for (size_t i = 0; i < ops.count; i++) {
        if (refused[ops.items[i]] || !is_candidate(module, ops.items[i], paired)) continue;
        prefetch(module, ops.items[i], users, reader, times);
        if (dtm_is_apart(module, ops.items[i])) DTM_PUSH(arena, made.items, made.count, made.capacity, ops.items[i]);
    }
    return made;
}

/* ---- within the memory there is ---- */

/* By region: the operators in their order. */
static dtm_op **orders_of(const dtm_module *module, dtm_arena *arena) {
    dtm_op **orders = dtm_arena_alloc(arena, module->n_regions * sizeof *orders);
    for (dtm_region r = 1; r < module->n_regions; r++) {
        size_t bytes = module->regions[r].n_ops * sizeof **orders;
        orders[r] = dtm_arena_alloc(arena, bytes + 1);
        if (bytes) memcpy(orders[r], module->regions[r].ops, bytes);
    }
    return orders;
}

/* By op: what is said of how it goes. */
static dtm_attributes *attributes_of(const dtm_module *module, dtm_arena *arena) {
    dtm_attributes *all = dtm_arena_alloc(arena, module->n_ops * sizeof *all);
    for (dtm_op op = 1; op < module->n_ops; op++) all[op] = module->ops[op].attributes;
    return all;
}

static void undo(dtm_module *module, dtm_op *const *orders, const dtm_attributes *attributes, const dtm_op_list *made) {
    for (dtm_region r = 1; r < module->n_regions; r++)
        if (module->regions[r].n_ops) memcpy(module->regions[r].ops, orders[r], module->regions[r].n_ops * sizeof **orders);
    for (size_t i = 0; i < made->count; i++) module->ops[made->items[i]].attributes = attributes[made->items[i]];
}

void dtm_prefetch(dtm_module *module, const dtm_op_list *started) {
    dtm_arena *arena = dtm_arena_create();
    bool *refused = dtm_arena_alloc(arena, module->n_ops * sizeof *refused);
    dtm_op **orders = orders_of(module, arena);
    const dtm_attributes *attributes = attributes_of(module, arena);
    double room = dtm_room_of(module);
    dtm_op_list all = prefetch_all(module, refused, arena), made = all;
    if ((all.count || started->count) && !dtm_fits_in(module, room)) {
        undo(module, orders, attributes, &all);
        bool may_fit = dtm_leave_room(module, started, room), fits; /* what cannot keeps all */
        do {
            if (may_fit && made.count) refused[dtm_largest_moved(module, &made)] = true;
            made = prefetch_all(module, refused, arena);
            fits = !may_fit || !made.count || dtm_fits_in(module, room);
            if (!fits) undo(module, orders, attributes, &made);
        } while (!fits);
        for (size_t i = 0; i < all.count; i++)
            if (refused[all.items[i]]) dtm_say_no_room(module, all.items[i]);
    }
    dtm_arena_destroy(arena);
}

void dtm_wait_for_untouched(dtm_module *module) {
    dtm_arena *arena = dtm_arena_create();
    dtm_order order = dtm_order_of(module, arena);
    for (dtm_op op = 1; op < module->n_ops; op++) {
        if (!dtm_is_apart(module, op) || !dtm_enclosing(module, op, DTM_OP_MICROBATCH)) continue;
        if (dtm_touched_by(module, &order, op) < 0) module->ops[op].attributes.number[DTM_COLLECTIVE_APART] = 0;
    }
    dtm_arena_destroy(arena);
}
