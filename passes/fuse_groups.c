/* Groups: which operators of a region become one kernel.
 *
 * Each elementwise operator or reduction starts as a group. Groups are merged along values (maker and reader) and where
 * they read the same tensor, in the order of the program, if the result is a kernel that codegen can write and no path
 * leads out of it and back in. A group has a space, the dimensions it loops over, and the dimensions it reduces:
 *
 *     none reduced      every value has the whole space
 *     rows              the last dimensions are reduced; values have the whole space or what is left of it
 *     columns           others are reduced, the last is left; what is made of the sums has what is left
 *     all               everything is reduced; what is made of the sums is a scalar
 *     sums              sums along columns of many rows (storage.h), beside none or rows of the dimensions they leave:
 *                       nothing of the whole space is made of them
 *
 * Small values that only the group reads (a scale cast, a comparison of positions) may be computed within it. */
#include "passes/fuse.h"
#include "ir/storage.h"

#include <string.h>

enum { SPACE = 16, MOST_MEMBERS = 96 };

typedef struct dim_set { /* in order */
    int count;
    dtm_dim dims[SPACE];
} dim_set;

typedef struct group {
    bool fusible;
    size_t first, last; /* positions of its members in the region */
    size_t count;
    dim_set space, reduced;
    dim_set summed; /* by sums along columns of many rows */
} group;

typedef struct grouper {
    dtm_module *module;
    dtm_arena *arena;
    dtm_region region;
    dtm_op *ops;
    size_t n;
    dtm_op **users;    /* by value */
    size_t *group_of;  /* by position */
    size_t *next;      /* by position: the next member; n ends */
    group *groups;     /* groups[i] was that of position i */
    uint32_t *seen, stamp;
    size_t *before; /* by position: the last before it that it comes after, whatever it reads; n: none */
    size_t *position;  /* by op of this region + 1; 0: elsewhere */
} grouper;

static const dtm_op_data *get(const grouper *g, dtm_op op) { return dtm_op_get(g->module, op); }
static const dtm_type_data *type_of(const grouper *g, dtm_value v) { return dtm_value_type(g->module, v); }

/* The position in the region of op or of what op stands in; n: outside. */
static size_t position_of(const grouper *g, dtm_op op) {
    while (op) {
        if (get(g, op)->region == g->region) return g->position[op] ? g->position[op] - 1 : g->n;
        op = g->module->regions[get(g, op)->region].parent;
    }
    return g->n;
}

/* ---- dimensions ---- */

static bool set_has(const dim_set *s, dtm_dim dim) {
    for (int i = 0; i < s->count; i++)
        if (s->dims[i] == dim) return true;
    return false;
}

static bool set_equal(const dim_set *a, const dim_set *b) {
    return a->count == b->count && memcmp(a->dims, b->dims, (size_t)a->count * sizeof *a->dims) == 0;
}

static bool set_within(const dim_set *a, const dim_set *b) {
    for (int i = 0; i < a->count; i++)
        if (!set_has(b, a->dims[i])) return false;
    return true;
}

static dim_set set_of_type(const dtm_type_data *type) {
    dim_set s = {type->rank, {0}};
    memcpy(s.dims, type->dims, type->rank * sizeof *type->dims);
    return s;
}

static dim_set set_less(const dim_set *a, const dim_set *b) {
    dim_set s = {0, {0}};
    for (int i = 0; i < a->count; i++)
        if (!set_has(b, a->dims[i])) s.dims[s.count++] = a->dims[i];
    return s;
}

typedef enum shape { PLAIN, ROWS, COLUMNS, ALL, SUMS } shape;

static shape shape_of(const group *x) {
    if (x->summed.count) return SUMS;
    if (!x->reduced.count) return PLAIN;
    if (x->reduced.count == x->space.count) return ALL;
    return set_has(&x->reduced, x->space.dims[x->space.count - 1]) ? ROWS : COLUMNS;
}

/* ---- groups of one ---- */

static bool is_pointwise(dtm_op_kind kind) {
    return dtm_is_elementwise(kind) || kind == DTM_OP_FILL || kind == DTM_OP_POSITIONS;
}

/* Dimensions of one name must be split alike in all values of a kernel. */
static bool agrees(const dtm_type_data *a, const dtm_type_data *b) {
    for (int i = 0; i < a->rank; i++) {
        int j = dtm_type_dim_index(b, a->dims[i]);
        if (j >= 0 && memcmp(&a->layout[i], &b->layout[j], sizeof a->layout[i]) != 0) return false;
    }
    return true;
}

static bool op_agrees(const grouper *g, const dtm_op_data *a, const dtm_op_data *b) {
    for (uint32_t i = 0; i < a->n_operands + a->n_results; i++)
        for (uint32_t j = 0; j < b->n_operands + b->n_results; j++) {
            dtm_value v = i < a->n_operands ? a->operands[i] : a->results[i - a->n_operands];
            dtm_value w = j < b->n_operands ? b->operands[j] : b->results[j - b->n_operands];
            if (!agrees(type_of(g, v), type_of(g, w))) return false;
        }
    return true;
}

static void start_group(grouper *g, size_t i) {
    const dtm_op_data *op = get(g, g->ops[i]);
    group *made = &g->groups[i];
    *made = (group){.first = i, .last = i, .count = 1};
    g->group_of[i] = i;
    g->next[i] = g->n;
    bool reduction = dtm_is_reduction(op->kind) && op->n_operands == 1;
    if ((!is_pointwise(op->kind) && !reduction) || !op_agrees(g, op, op)) return;
    made->fusible = true;
    made->space = set_of_type(type_of(g, reduction ? op->operands[0] : op->results[0]));
    for (int k = 0; reduction && k < made->space.count; k++)
        for (int o = 0; o < op->attributes.n_over; o++)
            if (op->attributes.over[o] == made->space.dims[k]) made->reduced.dims[made->reduced.count++] = made->space.dims[k];
    if (dtm_column_kept(g->module, g->ops[i])) made->summed = made->reduced, made->reduced.count = 0;
    if (reduction && !made->reduced.count && !made->summed.count) made->fusible = false;
}

/* ---- may two groups be one? ---- */

static bool in_either(const grouper *g, size_t position, size_t a, size_t b) {
    return position < g->n && (g->group_of[position] == a || g->group_of[position] == b);
}

/* Whether every reader of every value of `a` is in a or b. */
static bool is_private(const grouper *g, size_t a, size_t b) {
    for (size_t i = g->groups[a].first; i < g->n; i = g->next[i]) {
        const dtm_op_data *op = get(g, g->ops[i]);
        for (const dtm_op *user = g->users[op->results[0]]; *user; user++)
            if (get(g, *user)->region != g->region || !in_either(g, position_of(g, *user), a, b)) return false;
    }
    return true;
}

static bool is_cheap(const grouper *g, size_t a) {
    for (size_t i = g->groups[a].first; i < g->n; i = g->next[i])
        if (!dtm_is_cheap(get(g, g->ops[i])->kind)) return false;
    return true;
}

/* A plain group whose values are smaller than the space of the other and read by it alone. */
static bool may_inline(const grouper *g, size_t a, size_t b) {
    const group *x = &g->groups[a], *y = &g->groups[b];
    return shape_of(x) == PLAIN && x->space.count < y->space.count && set_within(&x->space, &y->space) && is_cheap(g, a) &&
           is_private(g, a, b);
}

/* A plain group `a` beside a reducing one `b`. */
static bool plain_fits(const grouper *g, size_t a, size_t b) {
    const group *x = &g->groups[a], *y = &g->groups[b];
    dim_set left = set_less(&y->space, &y->reduced);
    if (set_equal(&x->space, &left)) return true;
    if (!set_equal(&x->space, &y->space)) return false;
    return shape_of(y) != COLUMNS || (is_private(g, a, b) && is_cheap(g, a));
}

/* Whether an operator of one group reads a value of the other. */
static bool reads(const grouper *g, size_t reader, size_t maker) {
    for (size_t i = g->groups[reader].first; i < g->n; i = g->next[i]) {
        const dtm_op_data *op = get(g, g->ops[i]);
        for (uint32_t k = 0; k < op->n_operands; k++) {
            dtm_op def = g->module->values[op->operands[k]].def;
            size_t from = def ? position_of(g, def) : g->n;
            if (from < g->n && g->group_of[from] == maker) return true;
        }
    }
    return false;
}

/* Group `a` beside one with sums along columns, `b`. */
static bool sums_fit(const grouper *g, size_t a, size_t b) {
    const group *x = &g->groups[a], *y = &g->groups[b];
    dim_set kept = set_less(&y->space, &y->summed), left = set_less(&y->space, &y->reduced);
    bool alike = !x->reduced.count || !y->reduced.count || set_equal(&x->reduced, &y->reduced);
    switch (shape_of(x)) {
    case PLAIN:
        if (may_inline(g, a, b) || set_equal(&x->space, &y->space)) return true;
        if (set_equal(&x->space, &kept)) return !reads(g, b, a); /* made of the sums */
        return y->reduced.count && set_equal(&x->space, &left);
    case ROWS: return alike && set_equal(&x->space, &y->space) && set_equal(&x->reduced, &kept);
    case SUMS: return alike && set_equal(&x->space, &y->space) && set_equal(&x->summed, &y->summed);
    default: return false;
    }
}

/* What the two would be as one. */
static bool spaces_fit(const grouper *g, size_t a, size_t b, group *made) {
    const group *x = &g->groups[a], *y = &g->groups[b];
    *made = *x;
    if (shape_of(x) == SUMS || shape_of(y) == SUMS) {
        bool swapped = shape_of(x) != SUMS;
        const group *other = swapped ? x : y;
        if (swapped) *made = *y;
        if (shape_of(other) != PLAIN && !made->reduced.count) made->reduced = other->reduced;
        return swapped ? sums_fit(g, a, b) : sums_fit(g, b, a);
    }
    if (set_equal(&x->space, &y->space) && set_equal(&x->reduced, &y->reduced)) return true;
    if (shape_of(x) != PLAIN && shape_of(y) == PLAIN) return plain_fits(g, b, a) || may_inline(g, b, a);
    *made = *y;
    if (shape_of(y) != PLAIN && shape_of(x) == PLAIN) return plain_fits(g, a, b) || may_inline(g, a, b);
    if (shape_of(x) != PLAIN) return false;
    if (may_inline(g, a, b)) return true;
    *made = *x;
    return may_inline(g, b, a);
}

/* Calls for every member of both groups in the order of the program. */
static size_t next_of_both(const grouper *g, size_t *i, size_t *j) {
    size_t *least = *i < *j ? i : j, at = *least;
    *least = g->next[at];
    return at;
}

/* A reduction after which nothing of the whole space can be computed in the same kernel. */
static bool comes_last(const grouper *g, size_t position, shape s) {
    const dtm_op_data *op = get(g, g->ops[position]);
    return dtm_is_reduction(op->kind) && (s != SUMS || dtm_column_kept(g->module, g->ops[position]));
}

/* In columns, sums of everything and along columns, nothing of the whole space may depend on a sum. */
static bool levels_fit(grouper *g, size_t a, size_t b, const group *made) {
    shape s = shape_of(made);
    if (s == PLAIN || s == ROWS) return true;
    dim_set kept = set_less(&made->space, s == SUMS ? &made->summed : &made->reduced);
    g->stamp++;
    size_t i = g->groups[a].first, j = g->groups[b].first;
    while (i < g->n || j < g->n) {
        size_t at = next_of_both(g, &i, &j);
        const dtm_op_data *op = get(g, g->ops[at]);
        bool after = false;
        for (uint32_t k = 0; k < op->n_operands; k++) {
            dtm_op def = g->module->values[op->operands[k]].def;
            size_t from = def ? position_of(g, def) : g->n;
            if (!in_either(g, from, a, b)) continue;
            after |= g->seen[from] == g->stamp || comes_last(g, from, s);
        }
        if (!after) continue;
        g->seen[at] = g->stamp;
        dim_set dims = set_of_type(type_of(g, op->results[0]));
        if (dtm_is_reduction(op->kind) || !set_within(&dims, &kept)) return false;
    }
    return true;
}

/* Whether a path leads from the two groups through another operator back to them: from what they read, backwards. */
static bool reaches_back(grouper *g, size_t position, size_t a, size_t b, size_t first);

static bool position_reaches_back(grouper *g, size_t from, size_t a, size_t b, size_t first, bool own) {
    if (from >= g->n) return false;
    if (in_either(g, from, a, b)) return !own;
    return reaches_back(g, from, a, b, first);
}

static bool value_reaches_back(grouper *g, dtm_value v, size_t a, size_t b, size_t first, bool own) {
    dtm_op def = g->module->values[v].def;
    return def && position_reaches_back(g, position_of(g, def), a, b, first, own);
}

typedef struct reader_state {
    grouper *g;
    size_t a, b, first;
    bool own, found;
} reader_state;

static void read_region(reader_state *s, dtm_region region) {
    for (size_t i = 0; i < s->g->module->regions[region].n_ops && !s->found; i++) {
        const dtm_op_data *op = get(s->g, s->g->module->regions[region].ops[i]);
        for (uint32_t k = 0; k < op->n_operands && !s->found; k++)
            s->found = value_reaches_back(s->g, op->operands[k], s->a, s->b, s->first, s->own);
        if (op->body) read_region(s, op->body);
    }
}

static bool reads_back(grouper *g, size_t position, size_t a, size_t b, size_t first, bool own) {
    const dtm_op_data *op = get(g, g->ops[position]);
    uint32_t count = op->kind == DTM_OP_CARRY ? 1 : op->n_operands; /* what a copy leaves comes after it */
    for (uint32_t k = 0; k < count; k++)
        if (value_reaches_back(g, op->operands[k], a, b, first, own)) return true;
    if (position_reaches_back(g, g->before[position], a, b, first, own)) return true;
    if (!op->body) return false;
    reader_state s = {g, a, b, first, own, false};
    read_region(&s, op->body);
    return s.found;
}

static bool reaches_back(grouper *g, size_t position, size_t a, size_t b, size_t first) {
    size_t other = g->group_of[position];
    if (g->groups[other].last < first || g->seen[other] == g->stamp) return false;
    g->seen[other] = g->stamp;
    for (size_t i = g->groups[other].first; i < g->n; i = g->next[i])
        if (reads_back(g, i, a, b, first, false)) return true;
    return false;
}

static bool is_convex(grouper *g, size_t a, size_t b) {
    size_t first = g->groups[a].first < g->groups[b].first ? g->groups[a].first : g->groups[b].first;
    g->stamp++;
    for (size_t k = 0; k < 2; k++)
        for (size_t i = g->groups[k ? b : a].first; i < g->n; i = g->next[i])
            if (reads_back(g, i, a, b, first, true)) return false;
    return true;
}

static bool members_agree(const grouper *g, size_t a, size_t b) {
    for (size_t i = g->groups[a].first; i < g->n; i = g->next[i])
        for (size_t j = g->groups[b].first; j < g->n; j = g->next[j])
            if (!op_agrees(g, get(g, g->ops[i]), get(g, g->ops[j]))) return false;
    return true;
}

static void merge(grouper *g, size_t a, size_t b) {
    group made;
    if (a == b || !g->groups[a].fusible || !g->groups[b].fusible) return;
    if (g->groups[a].count + g->groups[b].count > MOST_MEMBERS || !spaces_fit(g, a, b, &made)) return;
    if (!levels_fit(g, a, b, &made) || !members_agree(g, a, b) || !is_convex(g, a, b)) return;
    made.count = g->groups[a].count + g->groups[b].count;
    made.first = g->groups[a].first < g->groups[b].first ? g->groups[a].first : g->groups[b].first;
    made.last = g->groups[a].last > g->groups[b].last ? g->groups[a].last : g->groups[b].last;
    size_t i = g->groups[a].first, j = g->groups[b].first, *link = NULL;
    while (i < g->n || j < g->n) {
        size_t at = next_of_both(g, &i, &j);
        if (link) *link = at;
        link = &g->next[at];
        g->group_of[at] = a;
    }
    g->groups[a] = made;
}

/* ---- one region ---- */

/* Along values first, then where a tensor of the whole space is read together. */
static void merge_all(grouper *g) {
    for (size_t i = 0; i < g->n; i++) {
        const dtm_op_data *op = get(g, g->ops[i]);
        for (uint32_t k = 0; k < op->n_operands && g->groups[g->group_of[i]].fusible; k++) {
            dtm_op def = g->module->values[op->operands[k]].def;
            size_t from = def ? position_of(g, def) : g->n;
            if (from < g->n) merge(g, g->group_of[from], g->group_of[i]);
        }
    }
    for (size_t i = 0; i < g->n; i++) {
        const dtm_op_data *op = get(g, g->ops[i]);
        for (uint32_t k = 0; k < op->n_operands && g->groups[g->group_of[i]].fusible; k++) {
            if (type_of(g, op->operands[k])->rank == 0) continue;
            for (const dtm_op *user = g->users[op->operands[k]]; *user; user++) {
                size_t at = get(g, *user)->region == g->region ? position_of(g, *user) : g->n;
                size_t a = g->group_of[i];
                if (at >= i || g->group_of[at] == a) continue;
                if (set_equal(&g->groups[a].space, &g->groups[g->group_of[at]].space)) merge(g, g->group_of[at], a);
            }
        }
    }
}

/* Whether what `position` reads within the region has all been put out; `store` also waits for all readers of the old
 * value. */
typedef struct ready_state {
    grouper *g;
    const bool *done;
    size_t self;
    bool ready;
} ready_state;

static void need(ready_state *s, dtm_value v) {
    dtm_op def = s->g->module->values[v].def;
    size_t from = def ? position_of(s->g, def) : s->g->n;
    if (from < s->g->n && s->g->group_of[from] != s->self && !s->done[s->g->group_of[from]]) s->ready = false;
}

static void need_region(ready_state *s, dtm_region region) {
    for (size_t i = 0; i < s->g->module->regions[region].n_ops; i++) {
        const dtm_op_data *op = get(s->g, s->g->module->regions[region].ops[i]);
        for (uint32_t k = 0; k < op->n_operands; k++) need(s, op->operands[k]);
        if (op->body) need_region(s, op->body);
    }
}

static bool is_ready(grouper *g, size_t group_index, const bool *done) {
    ready_state s = {g, done, group_index, true};
    for (size_t i = g->groups[group_index].first; i < g->n; i = g->next[i]) {
        const dtm_op_data *op = get(g, g->ops[i]);
        for (uint32_t k = 0; k < op->n_operands; k++)
            if (op->kind != DTM_OP_CARRY || k == 0) need(&s, op->operands[k]); /* carry: next comes later */
        if (op->body) need_region(&s, op->body);
        size_t before = g->before[i];
        if (before < g->n && g->group_of[before] != group_index && !done[g->group_of[before]]) s.ready = false;
        if (op->kind == DTM_OP_STORE)
            for (const dtm_op *user = g->users[op->operands[0]]; *user; user++) {
                size_t at = position_of(g, *user);
                if (at < i && !done[g->group_of[at]] && g->group_of[at] != group_index) s.ready = false;
            }
    }
    return s.ready;
}

/* The order of execution: each group where its last member stood, earlier ones first. */
static size_t order_groups(grouper *g, size_t *order) {
    bool *done = dtm_arena_alloc(g->arena, (g->n + 1) * sizeof *done);
    size_t *by_last = dtm_arena_alloc(g->arena, (g->n + 1) * sizeof *by_last), count = 0, n_order = 0;
    for (size_t i = 0; i < g->n; i++)
        if (g->groups[g->group_of[i]].last == i) by_last[count++] = g->group_of[i];
    for (size_t low = 0; n_order < count;) {
        bool moved = false;
        for (size_t i = low; i < count && !moved; i++) {
            if (done[by_last[i]] || !is_ready(g, by_last[i], done)) continue;
            done[by_last[i]] = moved = true;
            order[n_order++] = by_last[i];
        }
        while (low < count && done[by_last[low]]) low++;
        if (!moved) dtm_broken("fuse", "groups wait for each other");
    }
    return n_order;
}

static void write_group(grouper *g, size_t index) {
    if (g->groups[index].count == 1) {
        dtm_op_move(g->module, g->ops[g->groups[index].first], g->region, -1);
        return;
    }
    dtm_builder at = dtm_builder_at_end(g->module, g->region);
    dtm_op last = g->ops[g->groups[index].last];
    at.span = get(g, last)->span;
    at.place = get(g, last)->place;
    dtm_op fused = dtm_build_region(&at, DTM_OP_FUSED, NULL);
    dtm_region body = get(g, fused)->body;
    for (size_t i = g->groups[index].first; i < g->n; i = g->next[i]) dtm_op_move(g->module, g->ops[i], body, -1);
}

/* Whether ranks with other programs come to an operator too: a message, a sum along a pipeline, or one that has such in it. */
static bool meets_others(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(module, op);
    if (data->kind == DTM_OP_SEND || data->kind == DTM_OP_RECEIVE) return true;
    if (dtm_runs_collective(data->kind) && dtm_along_pipeline(module, data)) return true;
    for (size_t i = 0; data->body && i < module->regions[data->body].n_ops; i++)
        if (meets_others(module, module->regions[data->body].ops[i])) return true;
    return false;
}

/* They come to all of these in one order. */
static void find_before(grouper *g) {
    size_t last = g->n;
    for (size_t i = 0; i < g->n; i++) {
        bool meets = g->module->of_ranks && meets_others(g->module, g->ops[i]);
        g->before[i] = meets ? last : g->n;
        if (meets) last = i;
    }
}

static void group_region(dtm_module *module, dtm_region region) {
    grouper g = {.module = module, .arena = dtm_arena_create(), .region = region, .n = module->regions[region].n_ops};
    g.ops = dtm_arena_alloc(g.arena, (g.n + 1) * sizeof *g.ops);
    if (g.n) memcpy(g.ops, module->regions[region].ops, g.n * sizeof *g.ops);
    g.users = dtm_users_of(module, g.arena);
    g.group_of = dtm_arena_alloc(g.arena, (g.n + 1) * sizeof *g.group_of);
    g.next = dtm_arena_alloc(g.arena, (g.n + 1) * sizeof *g.next);
    g.groups = dtm_arena_alloc(g.arena, (g.n + 1) * sizeof *g.groups);
    g.seen = dtm_arena_alloc(g.arena, (g.n + 1) * sizeof *g.seen);
    g.position = dtm_arena_alloc(g.arena, module->n_ops * sizeof *g.position);
    for (size_t i = 0; i < g.n; i++) g.position[g.ops[i]] = i + 1;
    g.before = dtm_arena_alloc(g.arena, (g.n + 1) * sizeof *g.before);
    find_before(&g);
    for (size_t i = 0; i < g.n; i++) start_group(&g, i);
    merge_all(&g);
    size_t *order = dtm_arena_alloc(g.arena, (g.n + 1) * sizeof *order);
    size_t count = order_groups(&g, order);
    module->regions[region].n_ops = 0;
    for (size_t i = 0; i < g.n; i++) module->ops[g.ops[i]].region = 0; /* taken out, to be put back in order */
    for (size_t i = 0; i < count; i++) write_group(&g, order[i]);
    dtm_arena_destroy(g.arena);
}

void dtm_fuse_groups(dtm_module *module, dtm_region region) {
    for (size_t i = 0; i < module->regions[region].n_ops; i++) {
        dtm_op op = module->regions[region].ops[i];
        if (get(&(grouper){.module = module}, op)->body) dtm_fuse_groups(module, get(&(grouper){.module = module}, op)->body);
    }
    group_region(module, region);
}
