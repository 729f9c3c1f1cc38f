/* The pools of memory: where what is kept from call to call of a loop over microbatches with an order lies.
 *
 * Groups that are there in the same regions come and go together, for each microbatch: they are one bundle, which is there from the
 * first call that has to do with it to the last (ir/calls.h: dtm_loop_stays). All bundles share one pool: those of all chunks, of
 * messages, of what waits for a gradient of weights alone. Each microbatch of a bundle has the lowest bytes that nothing else has at
 * a call at which it is there; here of two chunks, whose first has two layers, and the other one:
 *
 *     F0.0  F1.0  F0.1  F1.1  B0.1  B0.0  F2.0  B1.1  F2.1  B1.0  ..
 *                             [  ]  0.1 until B0.1
 *                       [1.1 until B1.1              ]
 *           [1.0 until B1.0                                 ]
 *           [                                               ]
 *     [0.0 until B0.0              ][2.0 ..
 *     [                            ][
 *
 * Of bundles of one size that takes as much as ever is there at one time, if they come in the order of the calls. For bundles of
 * several sizes no quick rule does; three are tried, and the one is taken that leaves least between them. What place a microbatch has
 * is written down in a table at the loop, in steps of the greatest bytes that all of its places are multiples of. */
#include "ir/fault.h"
#include "passes/memory_state.h"

#include <stdlib.h>
#include <string.h>

typedef struct bundle {
    const uint8_t *seen;
    int64_t begin, end;   /* as of groups */
    int64_t bytes;        /* for one microbatch */
    dtm_loop_stay *stays; /* of those that come, in that order */
    size_t count;
    int64_t *at, *best;   /* by stay: where it lies in the pool; and by the rule that was the best so far */
    size_t put;           /* how many of them have a place */
    double area;          /* its bytes by how long they are there */
    uint32_t pool;        /* the group that is its pool */
} bundle;

/* What lies at the same bytes of a pool, one stay of a bundle after the other. */
typedef struct lane {
    int64_t offset, end;
    int64_t from, to;     /* of the stay that is next, INT64_MAX: there is none; stays are looked for in the order of the calls */
    size_t next;
    const bundle *of;
    dtm_loop_stay *stays; /* one after the other */
    size_t count, capacity;
} lane;

typedef struct pool {
    dtm_arena *arena;
    lane *lanes; /* by offset */
    size_t count, capacity;
    int64_t bytes;
} pool;

/* ---- bundles ---- */

typedef struct bundles {
    bundle *items;
    size_t count, capacity;
    size_t *of, n_groups; /* by group: 1 + its bundle; 0: none */
} bundles;

static size_t bundle_of(planner *p, bundles *b, const group *g) {
    size_t n = p->schedule.times.n_regions;
    for (size_t i = 0; i < b->count; i++)
        if (b->items[i].begin == g->begin && b->items[i].end == g->end && memcmp(b->items[i].seen, g->seen, n) == 0) return i;
    bundle made = {.seen = g->seen, .begin = g->begin, .end = g->end};
    made.stays = dtm_loop_stays(&p->schedule, g->seen, p->arena);
    while (made.count < p->schedule.times.n_microbatches && made.stays[made.count].to >= 0) made.count++;
    for (size_t i = 0; i < made.count && dtm_fault(81); i++) /* the last that reads it */
        if (made.stays[i].to > made.stays[i].from) made.stays[i].to--;
    made.at = dtm_arena_alloc(p->arena, (made.count + 1) * sizeof *made.at);
    made.best = dtm_arena_alloc(p->arena, (made.count + 1) * sizeof *made.best);
    DTM_PUSH(p->arena, b->items, b->count, b->capacity, made);
    return b->count - 1;
}

static bundles find_bundles(planner *p) {
    bundles b = {.of = dtm_arena_alloc(p->arena, p->n_groups * sizeof *b.of), .n_groups = p->n_groups};
    for (uint32_t i = 1; i < p->n_groups; i++) {
        group *g = &p->groups[i];
        if (g->into || !dtm_crosses_calls(p, g->seen)) continue;
        if (g->begin > p->order.begin[p->ordered] || g->end < p->order.end[p->ordered])
            dtm_broken("memory", "what lives from call to call has a place for a part of the loop");
        size_t to = bundle_of(p, &b, g);
        b.of[i] = to + 1;
        g->within = b.items[to].bytes;
        b.items[to].bytes += g->slot_bytes * g->slots;
    }
    return b;
}

/* ---- places in a pool ---- */

static void look_at(lane *l, size_t stay) {
    l->next = stay;
    l->from = stay < l->count ? l->stays[stay].from : INT64_MAX;
    l->to = stay < l->count ? l->stays[stay].to : INT64_MAX;
}

static bool is_busy(lane *l, const dtm_loop_stay *s) {
    while (l->to < s->from) look_at(l, l->next + 1);
    return l->from <= s->to;
}

static int64_t lowest_free(const pool *p, const bundle *b, const dtm_loop_stay *s) {
    int64_t at = 0;
    for (size_t i = 0; i < p->count && p->lanes[i].offset < at + b->bytes; i++)
        if (p->lanes[i].end > at && (dtm_fault(110) ? p->lanes[i].of == b : true) && is_busy(&p->lanes[i], s)) at = p->lanes[i].end;
    return at;
}

static void put(pool *p, const bundle *b, const dtm_loop_stay *stay, int64_t at) {
    size_t i = p->count;
    while (i && p->lanes[i - 1].offset > at) i--;
    for (size_t k = i; k-- && p->lanes[k].offset == at;)
        if (p->lanes[k].of == b) {
            DTM_PUSH(p->arena, p->lanes[k].stays, p->lanes[k].count, p->lanes[k].capacity, *stay);
            look_at(&p->lanes[k], p->lanes[k].next);
            return;
        }
    lane made = {.offset = at, .end = at + b->bytes, .of = b};
    DTM_PUSH(p->arena, made.stays, made.count, made.capacity, *stay);
    look_at(&made, 0);
    DTM_PUSH(p->arena, p->lanes, p->count, p->capacity, made);
    memmove(p->lanes + i + 1, p->lanes + i, (p->count - 1 - i) * sizeof made);
    p->lanes[i] = made;
}

/* In the order of the calls. */
static void fill(pool *p, bundle **some, size_t count) {
    for (size_t i = 0; i < p->count; i++) look_at(&p->lanes[i], 0);
    for (;;) {
        bundle *next = NULL;
        for (size_t i = 0; i < count; i++)
            if (some[i]->put < some[i]->count && (!next || some[i]->stays[some[i]->put].from < next->stays[next->put].from)) next = some[i];
        if (!next) return;
        const dtm_loop_stay *stay = &next->stays[next->put];
        int64_t at = lowest_free(p, next, stay);
        put(p, next, stay, at);
        next->at[next->put++] = at;
        if (at + next->bytes > p->bytes) p->bytes = at + next->bytes;
    }
}

/* ---- rules ---- */

typedef enum rule {
    LARGEST_FIRST, /* all of one size by the order of the calls, the largest first */
    AREA_FIRST,    /* a bundle after the other, those that take most for longest first */
    ALL_AT_ONCE,   /* all by the order of the calls */
    RULES
} rule;

static bool is_before(rule by, const bundle *a, const bundle *b) { return by == AREA_FIRST ? a->area > b->area : a->bytes > b->bytes; }

/* Equals as they are defined. */
static void sort_by(rule by, bundle **some, size_t count) {
    for (size_t i = 1; i < count; i++) {
        bundle *it = some[i];
        size_t at = i;
        for (; at && is_before(by, it, some[at - 1]); at--) some[at] = some[at - 1];
        some[at] = it;
    }
}

static int64_t fill_by(planner *p, rule by, bundle **some, size_t count) {
    pool made = {.arena = p->arena};
    for (size_t i = 0; i < count; i++) some[i]->put = 0;
    sort_by(by, some, count);
    for (size_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && (by == ALL_AT_ONCE || (by == LARGEST_FIRST && some[end]->bytes == some[i]->bytes));) end++;
        fill(&made, some + i, end - i);
    }
    return made.bytes;
}

/* ---- pools ---- */

typedef struct change {
    int64_t time, bytes;
} change;

static int by_time(const void *a, const void *b) {
    const change *x = a, *y = b;
    if (x->time != y->time) return x->time > y->time ? 1 : -1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The most that is there at one time: no rule takes less. */
static int64_t most_there(const planner *p, bundle **some, size_t count) {
    size_t n = 0;
    change *changes = dtm_arena_alloc(p->arena, (2 * count * p->schedule.times.n_microbatches + 1) * sizeof *changes);
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < some[i]->count; k++) {
            changes[n++] = (change){some[i]->stays[k].from, some[i]->bytes};
            changes[n++] = (change){some[i]->stays[k].to + 1, -some[i]->bytes};
        }
    qsort(changes, n, sizeof *changes, by_time);
    int64_t there = 0, most = 0;
    for (size_t i = 0; i < n; i++) {
        there += changes[i].bytes;
        if (there > most) most = there;
    }
    return most;
}

/* Those that are there for one stretch of the step, which is longer than the loop where something after it reads them, share. */
static void make_pool(planner *p, bundle **some, size_t count) {
    int64_t least = -1, most = most_there(p, some, count);
    for (rule by = LARGEST_FIRST; by < RULES && least != most; by++) {
        int64_t bytes = fill_by(p, by, some, count);
        if (least >= 0 && bytes >= least) continue;
        least = bytes;
        for (size_t i = 0; i < count; i++) {
            int64_t *other = some[i]->best;
            some[i]->best = some[i]->at, some[i]->at = other;
        }
    }
    group g = {.slot_bytes = least, .slots = 1, .begin = some[0]->begin, .end = some[0]->end, .busy_until = -1};
    DTM_PUSH(p->arena, p->groups, p->n_groups, p->cap_groups, g);
    for (size_t i = 0; i < count; i++) some[i]->pool = (uint32_t)(p->n_groups - 1);
}

static size_t find_alike(bundles *b, const bundle *like, bundle **some) {
    size_t count = 0;
    for (size_t i = 0; i < b->count; i++) {
        bundle *it = &b->items[i];
        if (it->begin != like->begin || it->end != like->end) continue;
        it->area = 0;
        for (size_t k = 0; k < it->count; k++) it->area += (double)it->bytes * (double)(it->stays[k].to - it->stays[k].from + 1);
        some[count++] = it;
    }
    return count;
}

/* ---- tables ---- */

typedef struct tables {
    dtm_text text; /* of all */
    const char **items;
    size_t count, capacity;
} tables;

/* The table of that text, from 1. */
static uint32_t table_of(planner *p, tables *t, const char *text) {
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->items[i], text) == 0) return (uint32_t)(i + 1);
    dtm_text_printf(&t->text, "%s%s", t->count ? "; " : "", text);
    DTM_PUSH(p->arena, t->items, t->count, t->capacity, text);
    return (uint32_t)t->count;
}

/* Writes where the groups of a bundle lie; `first` is the lowest place of it in its pool. */
static void place_bundle(planner *p, tables *t, const bundles *all, size_t index) {
    const bundle *b = &all->items[index];
    size_t microbatches = p->schedule.times.n_microbatches;
    int64_t first = b->count ? b->best[0] : 0, step = 0;
    for (size_t i = 0; i < b->count; i++)
        if (b->best[i] < first) first = b->best[i];
    for (size_t i = 0; i < b->count; i++) step = dtm_common_divisor(b->best[i] - first, step);
    int64_t *places = dtm_arena_alloc(p->arena, (microbatches + 1) * sizeof *places);
    for (size_t m = 0; m < microbatches; m++) places[m] = -1;
    for (size_t i = 0; i < b->count && step; i++) places[b->stays[i].microbatch] = (b->best[i] - first) / step;
    dtm_text text = {.arena = p->arena};
    for (size_t m = 0; m < microbatches; m++) {
        if (m) dtm_text_append(&text, " ", 1);
        if (places[m] < 0) dtm_text_append(&text, "-", 1);
        else dtm_text_printf(&text, "%lld", (long long)places[m]);
    }
    uint32_t table = step ? table_of(p, t, text.data) : 0;
    for (uint32_t g = 1; g < all->n_groups; g++) {
        if (all->of[g] != index + 1) continue;
        p->groups[g].pool = b->pool;
        p->groups[g].within += first;
        p->groups[g].table = table;
        p->groups[g].batch_stride = step;
    }
}

void dtm_make_pools(planner *p) {
    if (!p->ordered) return;
    bundles b = find_bundles(p);
    bundle **some = dtm_arena_alloc(p->arena, (b.count + 1) * sizeof *some);
    for (size_t i = 0; i < b.count; i++)
        if (!b.items[i].pool) make_pool(p, some, find_alike(&b, &b.items[i], some));
    tables t = {.text = {.arena = p->arena}};
    for (size_t i = 0; i < b.count; i++) place_bundle(p, &t, &b, i);
    dtm_op_get(p->module, p->ordered)->attributes.places = t.count ? dtm_string_of(p->module->context, t.text.data) : 0;
}
