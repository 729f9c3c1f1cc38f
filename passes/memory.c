/* memory: gives each value that lies in memory its place in one arena.
 *
 * Values are put into groups; a group has one place, of one or more slots, and an interval of positions (storage.h:
 * dtm_order) in which it is alive. Groups whose intervals meet do not overlap.
 *
 *     weights, states           persistent; a slot a copy; `store` writes its value in place where nothing reads the old one
 *     rename, split, merge      share the place of their operand
 *     from region to region     of a loop over microbatches with an order: all that for each microbatch, in a pool that all
 *                               of them share (memory_pool.c); also what is sent, until it has gone, and received, once it may come
 *     used by another loop      a slot a copy: `slots` = the copies between definition and use (forward to backward)
 *     x = carry(first, next)    one group: x in copy i is next of the copy before. In a repeat of N copies
 *                                   slots 1      where next is made after, or in place of, the last reading of x
 *                                   slots 2      where both are alive
 *                                   slots N + 1  where another loop reads them:   x(i) in slot i, next(i) in slot i + 1
 *                               (reversed: the other way round). first is made in x's slot of the copy that runs first,
 *                               last(next) is that slot of the copy that runs last
 *     elementwise, all_reduce   in place where the operand dies and the kernel allows it; also copy by copy, where both
 *                               have a slot a copy (gradients that are reduced in a loop after the one that makes them). One that
 *                               is started ahead of its place: where nothing else reads the operand from there on
 *
 * Where first or next cannot be made in the slot, codegen copies: that is what differing storages of a carry mean. In a
 * repeat inside repeats next gets slots of its own unless one slot serves all.
 *
 *     after fuse:    h : f32[B=8, D=4] = relu(a)        after memory:    h : f32[B=8, D=4] = relu(a) at 0   (a at 0 too) */
#include "ir/fault.h"
#include "passes/cost.h"
#include "passes/memory_state.h"
#include "passes/memory_stores.h"
#include "passes/passes.h"

#include <string.h>

enum { MAX_DEPTH = 8, NONE = 0 };

static const dtm_op_data *op_of(const planner *p, dtm_op op) { return &p->module->ops[op]; }
static dtm_op def_of(const planner *p, dtm_value v) { return p->module->values[v].def; }

/* ---- loops ---- */

typedef struct chain {
    int depth;
    dtm_op loops[MAX_DEPTH]; /* outermost first */
} chain;

static chain chain_of(const planner *p, dtm_op op) {
    chain c = {0, {0}};
    for (dtm_op at = dtm_enclosing(p->module, op, DTM_OP_NONE); at; at = dtm_enclosing(p->module, at, DTM_OP_NONE))
        if (dtm_is_loop(op_of(p, at)->kind)) {
            if (c.depth == MAX_DEPTH) dtm_broken("memory", "loops are nested too deep");
            memmove(c.loops + 1, c.loops, (size_t)c.depth * sizeof *c.loops);
            c.loops[0] = at;
            c.depth++;
        }
    return c;
}

static dtm_op innermost(const planner *p, dtm_op op) {
    chain c = chain_of(p, op);
    return c.depth ? c.loops[c.depth - 1] : 0;
}

/* Whether a repeat stands in another: its copies then count through those of all. */
static bool is_nested(const planner *p, dtm_op loop) { return dtm_enclosing(p->module, loop, DTM_OP_REPEAT) != 0; }

static int common_depth(const chain *a, const chain *b) {
    int depth = 0;
    while (depth < a->depth && depth < b->depth && a->loops[depth] == b->loops[depth]) depth++;
    return depth;
}

static int64_t copies_from(const planner *p, const chain *c, int depth) {
    int64_t copies = 1;
    for (int i = depth; i < c->depth; i++)
        if (op_of(p, c->loops[i])->kind == DTM_OP_REPEAT) copies *= op_of(p, c->loops[i])->attributes.copies;
    return copies;
}

/* Of the loop, through all repeats around it. */
static int64_t all_copies(const planner *p, dtm_op loop) {
    chain c = chain_of(p, loop);
    return copies_from(p, &c, 0) * op_of(p, loop)->attributes.copies;
}

/* ---- groups ---- */

static uint32_t add_group(planner *p, dtm_type type, int64_t slots, int64_t position) {
    group g = {.slot_bytes = dtm_storage_round(dtm_local_bytes_max(p->module, type)), .slots = slots, .begin = position, .end = position,
               .busy_until = -1, .into = NONE};
    DTM_PUSH(p->arena, p->groups, p->n_groups, p->cap_groups, g);
    return (uint32_t)(p->n_groups - 1);
}

/* The home of a value after all merging. */
static home home_of(const planner *p, dtm_value v) {
    home h = p->homes[v];
    for (const group *g = &p->groups[h.group]; g->into; g = &p->groups[h.group]) {
        h.shift = g->fixed || h.fixed ? (g->fixed ? g->shift : h.shift) : h.shift + g->shift;
        h.fixed = h.fixed || g->fixed;
        h.group = g->into;
    }
    return h;
}

static group *group_of(const planner *p, dtm_value v) { return &p->groups[home_of(p, v).group]; }

static void widen(group *g, int64_t begin, int64_t end) {
    if (begin < g->begin) g->begin = begin;
    if (end > g->end) g->end = end;
}

static void see_in(planner *p, group *g, const uint8_t *seen) {
    if (!seen) return;
    if (!g->seen) g->seen = dtm_arena_alloc(p->arena, p->schedule.times.n_regions);
    for (size_t i = 0; i < p->schedule.times.n_regions; i++) g->seen[i] |= seen[i];
}

static void merge(planner *p, uint32_t from, uint32_t into, uint32_t shift, bool fixed) {
    group *g = &p->groups[from], *target = &p->groups[into];
    widen(target, g->begin, g->end);
    see_in(p, target, g->seen);
    target->shared = true;
    g->into = into;
    g->shift = shift;
    g->fixed = fixed;
}

/* ---- uses ---- */

/* Calls visit for every operator that reads the bytes of v: through aliases too. */
typedef void visit_user(planner *p, dtm_value read, dtm_op user, void *state);
static void each_user(planner *p, dtm_value v, visit_user *visit, void *state) {
    for (dtm_op *user = p->users[v]; *user; user++) {
        if (dtm_is_alias(p->module, *user)) each_user(p, op_of(p, *user)->results[0], visit, state);
        visit(p, v, *user, state);
    }
}

typedef struct span_state {
    chain from;
    dtm_op def;
    int64_t slots, begin, end, last_in_copy; /* of readers in the loop of the definition */
    uint8_t *seen; /* as in a group */
} span_state;

/* The region of the ordered loop that op stands in, by index; -1: none. */
static int region_index(const planner *p, dtm_op op) {
    dtm_op region = p->ordered && dtm_enclosing(p->module, op, DTM_OP_MICROBATCH) == p->ordered ? dtm_called_region(p->module, op) : 0;
    return region ? dtm_loop_region_index(&p->schedule.times, region) : -1;
}

static void see_at(const planner *p, span_state *s, dtm_op op) {
    int region = s->seen ? region_index(p, op) : -1;
    if (region < 0) return;
    s->seen[region] |= DTM_LOOP_SEEN;
    if (op_of(p, op)->kind == DTM_OP_RECEIVE) s->seen[region] |= DTM_LOOP_RECEIVED;
    if (op_of(p, op)->kind == DTM_OP_SEND) s->seen[region] |= DTM_LOOP_SENT;
}

static void span_user(planner *p, dtm_value read, dtm_op user, void *state) {
    span_state *s = state;
    const dtm_op_data *data = op_of(p, user);
    chain to = chain_of(p, user);
    see_at(p, s, user);
    if (data->kind == DTM_OP_LAST && s->from.depth > to.depth) { /* its own readers are spanned from there */
        dtm_op loop = s->from.loops[to.depth];
        if (p->order.begin[loop] < s->begin) s->begin = p->order.begin[loop];
        if (p->order.end[user] > s->end) s->end = p->order.end[user];
        return;
    }
    int64_t read_at = p->order.end[user];
    if (data->kind == DTM_OP_CARRY) { /* first is read before the loop, next at the end of each copy */
        dtm_op loop = to.loops[to.depth - 1];
        if (data->operands[1] == read) {
            if (p->order.end[loop] > s->end) s->end = p->order.end[loop];
            s->last_in_copy = p->order.end[loop];
        }
        if (data->operands[0] != read) return;
        to.depth--;
        read_at = p->order.begin[loop];
    }
    int common = common_depth(&s->from, &to);
    int64_t slots = copies_from(p, &s->from, common);
    if (slots > s->slots) s->slots = slots;
    int64_t begin = common < s->from.depth ? p->order.begin[s->from.loops[common]] : p->order.begin[s->def];
    int64_t end = common < to.depth ? p->order.end[to.loops[common]] : read_at;
    if (begin < s->begin) s->begin = begin;
    if (end > s->end) s->end = end;
    if (common == s->from.depth && end > s->last_in_copy) s->last_in_copy = end;
}

static bool is_message(const planner *p, const uint8_t *seen, uint8_t how) {
    for (size_t i = 0; seen && i < p->schedule.times.n_regions; i++)
        if (seen[i] & how) return true;
    return false;
}

static span_state span_of(planner *p, dtm_value v) {
    dtm_op def = def_of(p, v);
    span_state s = {chain_of(p, def), def, 1, p->order.begin[def], p->order.begin[def], -1, NULL};
    if (region_index(p, def) >= 0 && op_of(p, def)->kind != DTM_OP_ACCUMULATE)
        s.seen = dtm_arena_alloc(p->arena, p->schedule.times.n_regions);
    see_at(p, &s, def);
    each_user(p, v, span_user, &s);
    if (dtm_crosses_calls(p, s.seen)) { /* calls for other microbatches come in between */
        if (p->order.begin[p->ordered] < s.begin) s.begin = p->order.begin[p->ordered];
        if (p->order.end[p->ordered] > s.end) s.end = p->order.end[p->ordered];
    }
    return s;
}

static void widen_by(planner *p, group *g, const span_state *s) {
    widen(g, s->begin, s->end);
    see_in(p, g, s->seen);
}

/* ---- weights ---- */

static void place_persistent(planner *p, dtm_op op) {
    int64_t slots = 1;
    chain c = chain_of(p, op);
    for (int i = 0; i < c.depth; i++)
        if (op_of(p, c.loops[i])->kind == DTM_OP_REPEAT) slots *= op_of(p, c.loops[i])->attributes.copies;
    dtm_value v = op_of(p, op)->results[0];
    uint32_t g = add_group(p, p->module->values[v].type, slots, 0);
    p->groups[g].persistent = true;
    p->groups[g].end = p->order.length;
    p->homes[v].group = g;
}

typedef struct readers_state {
    dtm_value value;
    dtm_op unit; /* the one that may overwrite */
    dtm_value result;
    int64_t last;  /* last position at which it is read otherwise */
    bool by_unit;  /* the unit reads it too */
    bool conflict; /* unit reads it in a way that does not allow to overwrite it */
} readers_state;

/* Of operators of two regions of the ordered loop: whether a runs before b for each microbatch. */
static bool runs_before(const planner *p, dtm_op a, dtm_op b) {
    int x = region_index(p, a), y = b ? region_index(p, b) : -1;
    const dtm_loop_times *t = &p->schedule.times;
    if (x < 0 || y < 0 || x == y) return true; /* then the text says */
    for (size_t m = 0; m < t->n_microbatches; m++)
        if (t->time[(size_t)x * t->n_microbatches + m] > t->time[(size_t)y * t->n_microbatches + m]) return false;
    return true;
}

static void see_reader(planner *p, dtm_value read, dtm_op user, void *state) {
    readers_state *r = state;
    const dtm_op_data *data = op_of(p, user);
    if (data->kind == DTM_OP_CARRY && data->operands[1] != read) { /* as its loop begins */
        int64_t at = p->order.begin[innermost(p, user)];
        if (at > r->last) r->last = at;
        return;
    }
    if (data->kind == DTM_OP_CARRY || data->kind == DTM_OP_LAST) { /* after the unit, in any case */
        r->conflict = true;
        return;
    }
    if (data->kind == DTM_OP_STORE && data->operands[0] == read) return;
    if (data->kind == DTM_OP_GRADIENT && data->operands[0] == read) return;
    if (dtm_unit_of(p->module, user) == r->unit) {
        r->by_unit = true;
        if (!dtm_may_overwrite(p->module, r->unit, r->result, read)) r->conflict = true;
        return;
    }
    if (p->order.begin[user] > r->last) r->last = p->order.begin[user];
    if (!runs_before(p, user, r->unit)) r->conflict = true;
}

/* What was started before, and has not been waited for, may still read it. */
static bool is_on_its_way(const planner *p, dtm_op unit, dtm_value operand) {
    int64_t position = p->order.begin[unit];
    for (const dtm_op *user = p->users[operand]; *user; user++) {
        if (dtm_is_alias(p->module, *user) && is_on_its_way(p, unit, op_of(p, *user)->results[0])) return true;
        if (*user == unit || !dtm_is_apart(p->module, *user) || p->order.begin[*user] >= position) continue;
        int64_t touched = dtm_touched_by(p->module, &p->order, *user);
        if (touched < 0 || touched > position) return true;
    }
    return false;
}

/* Whether `result`, at its definition, may be written where `value` lies as far as value's readers are concerned. */
static readers_state readers_before(planner *p, dtm_value value, dtm_value result) {
    readers_state r = {value, dtm_unit_of(p->module, def_of(p, result)), result, -1, false, false};
    each_user(p, value, see_reader, &r);
    if (r.last >= p->order.begin[r.unit] || (is_on_its_way(p, r.unit, value) && !dtm_fault(175))) r.conflict = true;
    return r;
}

static bool is_made_here(const planner *p, dtm_value v) {
    dtm_op def = def_of(p, v);
    if (!def || p->homes[v].group) return false;
    dtm_op_kind kind = op_of(p, def)->kind;
    return kind != DTM_OP_WEIGHT && kind != DTM_OP_STATE && kind != DTM_OP_INPUT && kind != DTM_OP_CARRY &&
           kind != DTM_OP_LAST && !dtm_is_alias(p->module, def);
}

/* Whether both run once a copy of repeats of the same names. */
static bool same_copies(const planner *p, dtm_op a, dtm_op b) {
    chain x = chain_of(p, a), y = chain_of(p, b);
    int i = 0, j = 0;
    for (;; i++, j++) {
        while (i < x.depth && op_of(p, x.loops[i])->kind == DTM_OP_MICROBATCH) i++;
        while (j < y.depth && op_of(p, y.loops[j])->kind == DTM_OP_MICROBATCH) j++;
        if (i == x.depth || j == y.depth) return i == x.depth && j == y.depth;
        if (op_of(p, x.loops[i])->attributes.name != op_of(p, y.loops[j])->attributes.name) return false;
    }
}

static void place_store(planner *p, dtm_op op) {
    dtm_value weight = op_of(p, op)->operands[0], value = op_of(p, op)->operands[1];
    if (!is_made_here(p, value) || !same_copies(p, def_of(p, weight), def_of(p, value))) return;
    if (p->module->values[value].type != p->module->values[weight].type) return;
    readers_state r = readers_before(p, weight, value);
    if (r.conflict) return;
    p->homes[value] = p->homes[weight];
    group_of(p, weight)->busy_until = r.by_unit ? p->order.begin[r.unit] : r.last;
}

/* Of what is carried out apart and starts in another repeat than it stands in: copies, of which each has its results. */
static int64_t early_copies(const planner *p, dtm_op op) {
    dtm_op early = dtm_is_apart(p->module, op) ? dtm_early_place(p->module, op) : 0;
    if (!early || dtm_fault(85)) return 1;
    chain here = chain_of(p, op), there = chain_of(p, early);
    return copies_from(p, &there, common_depth(&here, &there));
}

static void place_results(planner *p, dtm_op op) {
    const dtm_op_data *data = op_of(p, op);
    for (uint32_t i = 0; i < data->n_results; i++) {
        dtm_value v = data->results[i];
        if (!p->stored[v] || p->homes[v].group) continue;
        span_state s = span_of(p, v);
        if (early_copies(p, op) > s.slots) s.slots = early_copies(p, op);
        uint32_t g = add_group(p, p->module->values[v].type, s.slots, s.begin);
        widen_by(p, &p->groups[g], &s);
        p->groups[g].latest = v;
        p->homes[v].group = g;
    }
}

/* ---- carries ---- */

static void place_carry(planner *p, dtm_op op) {
    const dtm_op_data *data = op_of(p, op);
    dtm_value x = data->results[0], first = data->operands[0], next = data->operands[1];
    dtm_op loop = innermost(p, op);
    int64_t copies = op_of(p, loop)->attributes.copies;
    bool reversed = op_of(p, loop)->attributes.flags & DTM_REPEAT_REVERSED;
    bool nested = is_nested(p, loop), joined = is_made_here(p, next) && innermost(p, def_of(p, next)) == loop;
    span_state s = span_of(p, x), t = joined ? span_of(p, next) : (span_state){.slots = 1};
    readers_state r = {0};
    if (joined) r = readers_before(p, x, next);
    bool each = s.slots > 1 || t.slots > 1;
    if (nested) { /* next of the last copy is not x of the copy after it: it stands alone where both are kept */
        joined = joined && !each && !r.conflict;
        each = s.slots > 1;
        copies = all_copies(p, loop);
    }
    int64_t slots = each ? copies + 1 : joined && r.conflict ? 2 : 1;
    uint32_t g = add_group(p, p->module->values[x].type, slots, p->order.begin[loop]);
    widen_by(p, &p->groups[g], &s);
    widen(&p->groups[g], p->order.begin[loop], p->order.end[loop]);
    p->groups[g].busy_until = slots == 1 ? s.last_in_copy : -1;
    p->homes[x] = (home){g, reversed ? 1 : 0, false};
    if (joined) {
        widen_by(p, &p->groups[g], &t);
        p->homes[next] = (home){g, reversed ? 0 : 1, false};
    }
    uint32_t entry = slots == 1 ? 0 : (uint32_t)((reversed ? copies : 0) % slots);
    /* first is made in the slot if nothing else reads it once the slot may hold something else. */
    dtm_op def = def_of(p, first);
    if (!def || p->homes[first].fixed || chain_of(p, def).depth != chain_of(p, loop).depth) return;
    dtm_op_kind kind = op_of(p, def)->kind;
    uint32_t from = p->homes[first].group;
    if (!from || p->groups[from].into || p->groups[from].persistent || p->groups[from].slots > 1 ||
        kind == DTM_OP_INPUT || kind == DTM_OP_CARRY || innermost(p, def) != innermost(p, loop) || (nested && each))
        return;
    if (slots > 1 && is_message(p, p->groups[from].seen, DTM_LOOP_RECEIVED)) return; /* what may come early takes one slot, not all */
    bool alone = p->groups[from].end <= p->order.begin[loop];
    if (p->module->values[first].type != p->module->values[x].type || !(alone || each)) return;
    merge(p, from, g, entry, true);
}

static void place_last(planner *p, dtm_op op) {
    dtm_value v = op_of(p, op)->results[0], next = op_of(p, op)->operands[0];
    if (!def_of(p, next)) {
        place_results(p, op);
        return;
    }
    home h = home_of(p, next);
    group *g = &p->groups[h.group];
    dtm_op loop = innermost(p, def_of(p, next));
    if (g->slots > 1 && is_message(p, span_of(p, v).seen, DTM_LOOP_SENT)) { /* and so does what is on its way */
        place_results(p, op);
        return;
    }
    if (chain_of(p, def_of(p, next)).depth <= chain_of(p, op).depth) loop = 0; /* set outside of the loop it is the last of */
    if (loop && is_nested(p, loop) && (g->slots > 1 || span_of(p, v).slots > 1)) { /* its slot depends on the copy around */
        place_results(p, op);
        return;
    }
    if (loop && !h.fixed) {
        bool reversed = op_of(p, loop)->attributes.flags & DTM_REPEAT_REVERSED;
        int64_t copy = reversed ? 0 : op_of(p, loop)->attributes.copies - 1;
        h.shift = (uint32_t)((copy + h.shift) % g->slots);
        h.fixed = true;
    }
    p->homes[v] = h;
    span_state s = span_of(p, v);
    widen_by(p, g, &s);
}

/* ---- the walks ---- */

static void visit_persistent(dtm_module *module, dtm_op op, void *state) {
    dtm_op_kind kind = module->ops[op].kind;
    if (kind == DTM_OP_WEIGHT || kind == DTM_OP_STATE) place_persistent(state, op);
}

static void visit_store(dtm_module *module, dtm_op op, void *state) {
    if (module->ops[op].kind == DTM_OP_STORE) place_store(state, op);
}

static void visit_place(dtm_module *module, dtm_op op, void *state) {
    planner *p = state;
    dtm_op_kind kind = module->ops[op].kind;
    if (kind == DTM_OP_CARRY) place_carry(p, op);
    else if (kind == DTM_OP_LAST) place_last(p, op);
    else if (dtm_is_alias(module, op)) p->homes[module->ops[op].results[0]] = p->homes[module->ops[op].operands[0]];
    else place_results(p, op);
}

/* ---- in place ---- */

/* Both have a slot a copy of loops of one name: in each copy the unit is the last to read the operand, and writes its slot. */
static bool join_slots(planner *p, dtm_op unit, dtm_value result, dtm_value operand) {
    home a = home_of(p, operand), b = home_of(p, result);
    group *from = &p->groups[a.group], *into = &p->groups[b.group];
    if (from->slots != into->slots || from->slot_bytes != into->slot_bytes || from->latest != operand ||
        into->latest != result || into->shared || into->persistent || a.fixed || b.fixed || a.shift != b.shift || !same_copies(p, def_of(p, operand), unit))
        return false;
    dtm_op loop = dtm_enclosing(p->module, unit, DTM_OP_MICROBATCH); /* each microbatch reads what is made outside of it */
    if (loop && dtm_enclosing(p->module, def_of(p, operand), DTM_OP_MICROBATCH) != loop) return false;
    if (readers_before(p, operand, result).conflict) return false;
    merge(p, b.group, a.group, 0, false);
    from->latest = result;
    return true;
}

/* Whether no value of a group is made in a repeat within the loop: such a one counts other copies. */
static bool counts_copies_of(const planner *p, uint32_t group, dtm_op loop) {
    for (dtm_value v = 1; v < p->module->n_values; v++)
        if (p->homes[v].group && home_of(p, v).group == group && def_of(p, v) && innermost(p, def_of(p, v)) != loop) return false;
    return true;
}

/* What starts ahead of its place writes from there on. */
static bool is_read_on_the_way(const planner *p, dtm_op unit, dtm_value operand) {
    return dtm_is_apart(p->module, unit) && !dtm_fault(87) && dtm_reader_after_start(p->module, &p->order, p->users, unit, operand);
}

static bool join(planner *p, dtm_op unit, dtm_value result, dtm_value operand) {
    home a = home_of(p, operand), b = home_of(p, result);
    group *from = &p->groups[a.group], *into = &p->groups[b.group];
    int64_t position = p->order.begin[unit];
    if (!a.group || !b.group || a.group == b.group || from->persistent || from->busy_until >= 0) return false;
    if (!dtm_may_overwrite(p->module, unit, result, operand) || is_read_on_the_way(p, unit, operand)) return false;
    if (is_on_its_way(p, unit, operand)) return false;
    if (from->slots > 1) return join_slots(p, unit, result, operand);
    if (from->end > position || from->slot_bytes > into->slot_bytes) return false;
    if (into->slots == 1 && !into->persistent && into->begin >= position) {
        merge(p, a.group, b.group, 0, false);
        return true;
    }
    /* A slot a copy: what is made and dies within the copy may use the slot before its value. */
    dtm_op loop = innermost(p, unit);
    if (b.fixed || !def_of(p, operand) || innermost(p, def_of(p, operand)) != loop || from->begin <= into->busy_until)
        return false;
    if (loop ? from->begin < p->order.begin[loop] : !into->persistent) return false;
    if (!counts_copies_of(p, a.group, loop)) return false;
    merge(p, a.group, b.group, b.shift, false);
    return true;
}

static void visit_join(dtm_module *module, dtm_op op, void *state) {
    planner *p = state;
    if (dtm_unit_of(module, op) != op) return;
    const dtm_op_data *data = &module->ops[op];
    if (data->kind != DTM_OP_FUSED) {
        for (uint32_t r = 0; r < data->n_results; r++)
            for (uint32_t i = data->n_operands; i-- > 0;) /* dot: what it adds to is the last */
                if (join(p, op, data->results[r], data->operands[i])) break;
        return;
    }
    const dtm_region_data *body = &module->regions[data->body];
    for (size_t i = body->n_ops; i-- > 0;) {
        dtm_value result = module->ops[body->ops[i]].n_results ? module->ops[body->ops[i]].results[0] : 0;
        if (!result || !p->stored[result]) continue;
        bool joined = false;
        for (size_t j = 0; j < body->n_ops && !joined; j++)
            for (uint32_t k = 0; k < module->ops[body->ops[j]].n_operands && !joined; k++) {
                dtm_value operand = module->ops[body->ops[j]].operands[k];
                if (def_of(p, operand) && dtm_unit_of(module, def_of(p, operand)) != op)
                    joined = join(p, op, result, operand);
            }
    }
}

/* ---- what is carried out apart ---- */

/* Its operands stay until its results are touched, which an early one may write while the loop over microbatches runs. */
static void visit_apart(dtm_module *module, dtm_op op, void *state) {
    planner *p = state;
    const dtm_op_data *data = &module->ops[op];
    if (!dtm_is_apart(module, op)) return;
    dtm_op early = dtm_early_place(module, op);
    int64_t end = p->order.end[op], begin = early ? p->order.begin[early] : p->order.begin[op];
    chain here = chain_of(p, op), there = early ? chain_of(p, early) : here;
    int common = common_depth(&here, &there);
    if (common < there.depth) begin = p->order.begin[there.loops[common]];
    int64_t touched = early ? -1 : dtm_touched_by(module, &p->order, op);
    if (touched > end) end = touched;
    for (uint32_t i = 0; i < data->n_results; i++) {
        span_state s = span_of(p, data->results[i]);
        if (touched < 0 && s.end > end) end = s.end;
        if (!dtm_fault(95)) widen(group_of(p, data->results[i]), begin, begin);
        /* before the first copy those of all have started: they stay until the last has been */
        if (early && common < here.depth) widen(group_of(p, data->results[i]), begin, p->order.end[here.loops[common]]);
    }
    for (dtm_op at = op; at && !dtm_fault(94); at = dtm_goes_on_from(module, at)) /* what it goes on from may be under way as long */
        for (uint32_t i = 0; i < module->ops[at].n_operands; i++) {
            dtm_value operand = module->ops[at].operands[i];
            if (home_of(p, operand).group) widen(group_of(p, operand), p->order.begin[at], end);
        }
}

/* ---- storage ---- */

static void write_storage(planner *p) {
    for (dtm_value v = 1; v < p->module->n_values; v++) {
        dtm_storage *s = &p->module->values[v].storage;
        *s = (dtm_storage){.offset = -1, .modulus = 1};
        home h = home_of(p, v);
        const group *g = &p->groups[h.group];
        if (!h.group || !p->stored[v]) continue;
        s->offset = g->offset;
        if (g->table) s->places = g->table, s->batch_stride = g->batch_stride;
        if (g->slots == 1) continue;
        if (h.fixed) {
            s->offset += h.shift * g->slot_bytes;
            continue;
        }
        s->stride = g->slot_bytes;
        s->modulus = (uint32_t)g->slots;
        s->shift = (uint32_t)(h.shift % g->slots);
    }
}

/* ---- stores ---- */

/* `store` stands after all that reads the old value (memory_stores.c), and so does what lies in its place. */
static void visit_stored(dtm_module *module, dtm_op op, void *state) {
    planner *p = state;
    const dtm_op_data *data = &module->ops[op];
    if (data->kind != DTM_OP_STORE) return;
    dtm_value weight = data->operands[0], value = data->operands[1];
    home a = home_of(p, weight), b = home_of(p, value);
    bool in_place = b.group && a.group == b.group;
    readers_state r = {weight, 0, 0, -1, false, false};
    if (in_place) r = readers_before(p, weight, value);
    else each_user(p, weight, see_reader, &r);
    if (in_place ? r.conflict : r.last > p->order.begin[op])
        dtm_broken("memory", "%s is read after it is stored", dtm_value_name(module, weight));
}

/* ---- collectives ---- */

/* Collectives of which there are several algorithms carry the one that overlap or else cost picks, as a flag, and all of them the scratch
 * memory they need: workspace, plan and ledger then speak of the same. Bit a is algorithm a. */
static void visit_algorithm(dtm_module *module, dtm_op op, void *state) {
    (void)state;
    if (!dtm_runs_collective(module->ops[op].kind)) return;
    dtm_algorithm algorithm = *dtm_op_rows[module->ops[op].kind].flags ? dtm_algorithm_of(module, op) : DTM_ALGORITHM_PAIRWISE;
    if (*dtm_op_rows[module->ops[op].kind].flags) module->ops[op].attributes.flags = 1u << algorithm;
    module->ops[op].attributes.number[DTM_COLLECTIVE_SCRATCH] = (double)dtm_collective_scratch(module, op, algorithm);
}

/* ---- the pass ---- */

static dtm_op ordered_loop(const dtm_module *module) {
    dtm_op loop = dtm_rank_loop(module);
    return loop && dtm_loop_is_ordered(module, loop) ? loop : 0;
}

bool dtm_pass_memory(dtm_module *module) {
    dtm_stores_last(module);
    planner p = {.module = module, .arena = dtm_arena_create()};
    p.order = dtm_order_of(module, p.arena);
    p.stored = dtm_stored(module, p.arena);
    p.homes = dtm_arena_alloc(p.arena, module->n_values * sizeof *p.homes);
    DTM_PUSH(p.arena, p.groups, p.n_groups, p.cap_groups, (group){0});
    p.users = dtm_users_of(module, p.arena);
    p.ordered = ordered_loop(module);
    if (p.ordered && dtm_loop_schedule_of(module, p.ordered, p.arena, &p.schedule))
        dtm_broken("memory", "an order of microbatches that was not verified");
    dtm_find_paired_regions(&p);
    dtm_walk(module, visit_persistent, &p);
    dtm_walk(module, visit_store, &p);
    dtm_walk(module, visit_place, &p);
    dtm_walk(module, visit_join, &p);
    dtm_walk(module, visit_stored, &p);
    dtm_walk(module, visit_algorithm, NULL);
    dtm_walk(module, visit_apart, &p);
    dtm_make_pools(&p);
    int64_t top = dtm_pack(&p);
    write_storage(&p);
    module->arena_bytes = top + dtm_workspace_of_apart(module, NULL) + dtm_workspace_of_pairs(module) + dtm_workspace_most(module, false) + dtm_constants_bytes(module);
    module->after = dtm_string_of(module->context, "memory");
    dtm_arena_destroy(p.arena);
    return true;
}
