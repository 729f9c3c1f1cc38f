/* Tables over variables, and how a variable goes (shard_work.h): by losing its values, or by being eliminated, all tables that
 * mention it replaced by their minimum over it. */
#include "passes/shard_work.h"

#include <math.h>
#include <string.h>

/* ---- variables and tables ---- */

void shard_work_variable(work *w, uint32_t v, uint32_t size) {
    variable *var = &w->variables[v];
    *var = (variable){.size = size, .suspect = true, .score = -1};
    var->values = dtm_arena_alloc(w->arena, size * sizeof *var->values);
    for (uint32_t k = 0; k < size; k++) var->values[k] = k;
}

work shard_work_new(size_t n_variables, double *effort) {
    work w = {.arena = dtm_arena_create(), .n_variables = n_variables, .bound = -INFINITY, .effort = effort};
    w.variables = dtm_arena_alloc(w.arena, (n_variables + 1) * sizeof *w.variables);
    w.done = dtm_arena_alloc(w.arena, (n_variables + 1) * sizeof *w.done);
    return w;
}

size_t shard_work_size(const table *t) {
    size_t size = 1;
    for (uint32_t i = 0; i < t->count; i++) size *= t->kinds[i];
    return size;
}

uint32_t shard_work_position(const table *t, uint32_t v) {
    uint32_t i = 0;
    while (t->scope[i] != v) i++;
    return i;
}

size_t shard_work_stride(const table *t, uint32_t position) {
    size_t stride = 1;
    for (uint32_t i = position + 1; i < t->count; i++) stride *= t->kinds[i];
    return stride;
}

static void changed_around(work *w, const table *t) {
    for (uint32_t i = 0; i < t->count; i++) {
        w->variables[t->scope[i]].suspect = true;
        w->variables[t->scope[i]].score = -1;
    }
}

/* ---- kinds ---- */

/* The table with the kinds `from[0 .. n)` of a position, in that order. */
static const double *selected(const work *w, const table *t, uint32_t position, const uint32_t *from, uint32_t n) {
    size_t inner = shard_work_stride(t, position), was = t->kinds[position], outer = shard_work_size(t) / (inner * was);
    double *costs = dtm_arena_alloc(w->arena, outer * n * inner * sizeof *costs);
    for (size_t o = 0; o < outer; o++)
        for (uint32_t k = 0; k < n; k++)
            memcpy(costs + (o * n + k) * inner, t->costs + (o * was + from[k]) * inner, inner * sizeof *costs);
    return costs;
}

static bool is_same_kind(const table *t, uint32_t position, size_t inner, uint32_t a, uint32_t b) {
    size_t was = t->kinds[position], outer = shard_work_size(t) / (inner * was);
    for (size_t o = 0; o < outer; o++)
        if (memcmp(t->costs + (o * was + a) * inner, t->costs + (o * was + b) * inner, inner * sizeof *t->costs)) return false;
    return true;
}

/* Kinds of a position that no value has any more, or that cost the same, go. */
static void reduce(const work *w, table *t, uint32_t position) {
    uint32_t size = w->variables[t->scope[position]].size, was = t->kinds[position], n = 0;
    size_t inner = shard_work_stride(t, position);
    uint32_t *from = dtm_arena_alloc(w->arena, was * sizeof *from), *to = dtm_arena_alloc(w->arena, was * sizeof *to);
    bool *used = dtm_arena_alloc(w->arena, was);
    for (uint32_t k = 0; k < size; k++) used[t->kind[position][k]] = true;
    for (uint32_t k = 0; k < was; k++) {
        if (!used[k]) continue;
        uint32_t same = 0;
        while (same < n && !is_same_kind(t, position, inner, k, from[same])) same++;
        if (same == n) from[n++] = k;
        to[k] = same;
    }
    if (n == was) return;
    if (t->rests) {
        double *rest = dtm_arena_alloc(w->arena, n * sizeof *rest);
        for (uint32_t k = 0; k < n; k++) rest[k] = INFINITY;
        for (uint32_t k = 0; k < was; k++)
            if (used[k] && t->rests[position][k] < rest[to[k]]) rest[to[k]] = t->rests[position][k];
        t->rests[position] = rest;
    }
    t->costs = selected(w, t, position, from, n);
    uint16_t *kind = dtm_arena_alloc(w->arena, size * sizeof *kind);
    for (uint32_t k = 0; k < size; k++) kind[k] = (uint16_t)to[t->kind[position][k]];
    t->kind[position] = kind;
    t->kinds[position] = n;
}

static void leave_out(table *t, uint32_t position) {
    for (uint32_t i = position + 1; i < t->count; i++) {
        t->scope[i - 1] = t->scope[i];
        t->kinds[i - 1] = t->kinds[i];
        t->kind[i - 1] = t->kind[i];
        if (t->rests) t->rests[i - 1] = t->rests[i];
    }
    t->count--;
}

/* Two tables of the same variables as one, if that is no larger than they are; false: it would be. */
static bool join(const work *w, table *a, const table *b) {
    table made = *a;
    uint32_t *first[MAX_SCOPE], *second[MAX_SCOPE]; /* by kind of the new one: that of either */
    double size = 1;
    for (uint32_t i = 0; i < a->count; i++) {
        uint32_t n = w->variables[a->scope[i]].size, kinds = 0, *seen;
        seen = dtm_arena_alloc(w->arena, (size_t)a->kinds[i] * b->kinds[i] * sizeof *seen);
        uint16_t *kind = dtm_arena_alloc(w->arena, n * sizeof *kind);
        first[i] = dtm_arena_alloc(w->arena, n * sizeof *first[i]);
        second[i] = dtm_arena_alloc(w->arena, n * sizeof *second[i]);
        for (uint32_t k = 0; k < n; k++) {
            uint32_t *at = &seen[(size_t)a->kind[i][k] * b->kinds[i] + b->kind[i][k]];
            if (!*at) {
                first[i][kinds] = a->kind[i][k];
                second[i][kinds] = b->kind[i][k];
                *at = ++kinds;
            }
            kind[k] = (uint16_t)(*at - 1);
        }
        made.kind[i] = kind;
        size *= made.kinds[i] = kinds;
    }
    if (size > (double)(shard_work_size(a) + shard_work_size(b))) return false;
    double *costs = dtm_arena_alloc(w->arena, (size_t)size * sizeof *costs);
    uint32_t at[MAX_SCOPE] = {0};
    for (size_t index = 0; index < (size_t)size; index++) {
        size_t x = 0, y = 0;
        for (uint32_t i = 0; i < a->count; i++) {
            x = x * a->kinds[i] + first[i][at[i]];
            y = y * b->kinds[i] + second[i][at[i]];
        }
        costs[index] = a->costs[x] + b->costs[y];
        for (uint32_t i = a->count; i-- > 0 && ++at[i] == made.kinds[i];) at[i] = 0;
    }
    made.costs = costs;
    if (a->rests || b->rests) made.rests = dtm_arena_alloc(w->arena, a->count * sizeof *made.rests);
    for (uint32_t i = 0; made.rests && i < a->count; i++) {
        made.rests[i] = dtm_arena_alloc(w->arena, made.kinds[i] * sizeof **made.rests);
        for (uint32_t k = 0; k < made.kinds[i]; k++)
            made.rests[i][k] = (a->rests ? a->rests[i][first[i][k]] : 0) + (b->rests ? b->rests[i][second[i][k]] : 0);
    }
    *a = made;
    return true;
}

/* Whether the table still depends on all of its variables, in as few kinds as it can. */
static bool simplify(const work *w, table *t) {
    uint32_t count = t->count;
    for (uint32_t i = 0; i < t->count; i++) reduce(w, t, i);
    for (uint32_t i = t->count; i-- > 0;)
        if (t->kinds[i] == 1) leave_out(t, i);
    return t->count == count;
}

void shard_work_add(work *w, const table *given) {
    table t = *given;
    simplify(w, &t);
    if (!t.count) {
        w->constant += t.costs[0];
        return;
    }
    changed_around(w, &t);
    const variable *var = &w->variables[t.scope[0]];
    for (size_t i = 0; i < var->n_tables; i++) {
        table *there = &w->tables[var->tables[i]];
        if (there->gone || there->count != t.count || memcmp(there->scope, t.scope, t.count * sizeof *t.scope)) continue;
        if (join(w, there, &t)) return;
    }
    DTM_PUSH(w->arena, w->tables, w->n_tables, w->cap_tables, t);
    for (uint32_t i = 0; i < t.count; i++) {
        variable *v = &w->variables[t.scope[i]];
        DTM_PUSH(w->arena, v->tables, v->n_tables, v->cap_tables, (uint32_t)(w->n_tables - 1));
    }
}

/* ---- fewer values ---- */

static double *picked(const work *w, const double *of, const uint32_t *kept, uint32_t n) {
    double *made = dtm_arena_alloc(w->arena, n * sizeof *made);
    for (uint32_t k = 0; k < n; k++) made[k] = of[kept[k]];
    return made;
}

static void settle(work *w, uint32_t v) {
    elimination e = {.variable = v, .own_values = w->variables[v].values};
    e.best = dtm_arena_alloc(w->arena, sizeof *e.best);
    w->variables[v].gone = true;
    w->done[w->n_done++] = e;
}

void shard_work_keep(work *w, uint32_t v, const uint32_t *kept, uint32_t n) {
    variable *var = &w->variables[v];
    uint32_t *values = dtm_arena_alloc(w->arena, n * sizeof *values);
    for (uint32_t k = 0; k < n; k++) values[k] = var->values[kept[k]];
    if (var->floors) var->floors = picked(w, var->floors, kept, n);
    var->values = values;
    var->size = n;
    size_t n_tables = var->n_tables;
    for (size_t i = 0; i < n_tables; i++) {
        table t = w->tables[var->tables[i]];
        if (t.gone) continue;
        uint32_t position = shard_work_position(&t, v);
        uint16_t *kind = dtm_arena_alloc(w->arena, n * sizeof *kind);
        for (uint32_t k = 0; k < n; k++) kind[k] = t.kind[position][kept[k]];
        t.kind[position] = kind;
        changed_around(w, &t);
        if (simplify(w, &t)) w->tables[var->tables[i]] = t;
        else {
            w->tables[var->tables[i]].gone = true;
            shard_work_add(w, &t);
        }
    }
    if (n == 1) settle(w, v);
}

/* ---- elimination ---- */

/* The table that eliminating v makes, without its costs: all neighbours, their kinds those that its tables tell apart. */
static table around(const work *w, uint32_t v, bool *too_many) {
    const variable *var = &w->variables[v];
    table made = {.count = 0};
    *too_many = false;
    for (size_t i = 0; i < var->n_tables; i++) {
        const table *t = &w->tables[var->tables[i]];
        for (uint32_t j = 0; !t->gone && j < t->count; j++) {
            uint32_t u = t->scope[j], k = made.count;
            if (u == v) continue;
            while (k && made.scope[k - 1] > u) k--;
            if (k && made.scope[k - 1] == u) {
                uint32_t size = w->variables[u].size, kinds = made.kinds[k - 1];
                made.kinds[k - 1] = kinds > size / t->kinds[j] ? size : kinds * t->kinds[j];
                continue;
            }
            if (made.count == MAX_SCOPE) {
                *too_many = true;
                return made;
            }
            memmove(made.scope + k + 1, made.scope + k, (made.count - k) * sizeof u);
            memmove(made.kinds + k + 1, made.kinds + k, (made.count - k) * sizeof u);
            made.scope[k] = u;
            made.kinds[k] = t->kinds[j];
            made.count++;
        }
    }
    return made;
}

uint32_t shard_work_neighbours(const work *w, uint32_t v) {
    bool too_many;
    table made = around(w, v, &too_many);
    return too_many ? MAX_SCOPE + 1 : made.count;
}

static double score_of(work *w, uint32_t v) {
    if (w->variables[v].score >= 0) return w->variables[v].score;
    bool too_many;
    table made = around(w, v, &too_many);
    double size = too_many ? INFINITY : 1;
    for (uint32_t i = 0; i < made.count; i++) size *= made.kinds[i];
    return w->variables[v].score = size;
}

uint32_t shard_work_cheapest(work *w, double *size) {
    uint32_t best = UINT32_MAX;
    for (uint32_t v = 0; v < w->n_variables; v++) {
        if (w->variables[v].gone || (best != UINT32_MAX && score_of(w, v) >= *size)) continue;
        best = v;
        *size = score_of(w, v);
    }
    return best;
}

/* A table that mentions the variable, as the minimum over it walks through it. */
typedef struct walker {
    const table *t;
    size_t at;
    size_t *own;               /* by value of the variable: where its kind stands */
    size_t *offset[MAX_SCOPE]; /* by position in the new table, kind there: where that stands; NULL: not in this one */
} walker;

/* The kinds of variable u that the walkers' tables tell apart together, and where each stands in each of them. */
static void join_kinds(const work *w, table *made, uint32_t position, walker *walkers, size_t n) {
    uint32_t u = made->scope[position], size = w->variables[u].size, kinds = 0;
    uint16_t *kind = dtm_arena_alloc(w->arena, size * sizeof *kind);
    uint32_t *first = dtm_arena_alloc(w->arena, size * sizeof *first); /* by kind: a value of it */
    for (uint32_t k = 0; k < size; k++) {
        uint32_t same = 0;
        for (; same < kinds; same++) {
            bool differ = false;
            for (size_t i = 0; i < n && !differ; i++)
                for (uint32_t j = 0; j < walkers[i].t->count; j++)
                    differ |= walkers[i].t->scope[j] == u && walkers[i].t->kind[j][k] != walkers[i].t->kind[j][first[same]];
            if (!differ) break;
        }
        if (same == kinds) first[kinds++] = k;
        kind[k] = (uint16_t)same;
    }
    made->kinds[position] = kinds;
    made->kind[position] = kind;
    for (size_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < walkers[i].t->count; j++) {
            if (walkers[i].t->scope[j] != u) continue;
            size_t stride = shard_work_stride(walkers[i].t, j);
            walkers[i].offset[position] = dtm_arena_alloc(w->arena, kinds * sizeof(size_t));
            for (uint32_t k = 0; k < kinds; k++) walkers[i].offset[position][k] = stride * walkers[i].t->kind[j][first[k]];
        }
}

static walker *walkers_of(const work *w, uint32_t v, size_t *n) {
    const variable *var = &w->variables[v];
    walker *walkers = dtm_arena_alloc(w->arena, (var->n_tables + 1) * sizeof *walkers);
    *n = 0;
    for (size_t i = 0; i < var->n_tables; i++) {
        const table *t = &w->tables[var->tables[i]];
        if (t->gone) continue;
        uint32_t position = shard_work_position(t, v);
        size_t stride = shard_work_stride(t, position);
        walkers[*n].t = t;
        walkers[*n].own = dtm_arena_alloc(w->arena, var->size * sizeof(size_t));
        for (uint32_t k = 0; k < var->size; k++) walkers[*n].own[k] = stride * t->kind[position][k];
        ++*n;
    }
    return walkers;
}

/* The minimum over v of the sum of the walkers' tables; best[i]: where it is. */
static double *minimum(const work *w, uint32_t v, const table *made, walker *walkers, size_t n, uint16_t *best) {
    uint32_t size = w->variables[v].size, counter[MAX_SCOPE] = {0};
    size_t entries = shard_work_size(made);
    double *sum = dtm_arena_alloc(w->arena, size * sizeof *sum), *costs = dtm_arena_alloc(w->arena, entries * sizeof *costs);
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < made->count; k++)
            if (walkers[i].offset[k]) walkers[i].at += walkers[i].offset[k][0];
    for (size_t index = 0; index < entries; index++) {
        memset(sum, 0, size * sizeof *sum);
        for (size_t i = 0; i < n; i++) {
            const double *at = walkers[i].t->costs + walkers[i].at;
            for (uint32_t k = 0; k < size; k++) sum[k] += at[walkers[i].own[k]];
        }
        uint32_t least = 0;
        for (uint32_t k = 1; k < size; k++)
            if (sum[k] < sum[least]) least = k;
        costs[index] = sum[least];
        best[index] = (uint16_t)least;
        for (uint32_t k = made->count; k-- > 0;) {
            uint32_t was = counter[k], is = was + 1 == made->kinds[k] ? 0 : was + 1;
            for (size_t i = 0; i < n; i++)
                if (walkers[i].offset[k]) walkers[i].at += walkers[i].offset[k][is] - walkers[i].offset[k][was];
            counter[k] = is;
            if (is) break;
        }
    }
    return costs;
}

/* What was given to a neighbour of the tables that go was given to it of the new one. */
static void take_rests(const work *w, table *made, const walker *walkers, size_t n) {
    bool any = false;
    for (size_t i = 0; i < n; i++) any |= walkers[i].t->rests != NULL;
    if (!any) return;
    made->rests = dtm_arena_alloc(w->arena, (made->count + 1) * sizeof *made->rests);
    for (uint32_t p = 0; p < made->count; p++) {
        bool *seen = dtm_arena_alloc(w->arena, made->kinds[p]);
        made->rests[p] = dtm_arena_alloc(w->arena, made->kinds[p] * sizeof **made->rests);
        for (uint32_t k = 0; k < w->variables[made->scope[p]].size; k++) {
            uint32_t kind = made->kind[p][k];
            for (size_t i = 0; i < n && !seen[kind]; i++)
                for (uint32_t j = 0; walkers[i].t->rests && j < walkers[i].t->count; j++)
                    if (walkers[i].t->scope[j] == made->scope[p])
                        made->rests[p][kind] += walkers[i].t->rests[j][walkers[i].t->kind[j][k]];
            seen[kind] = true;
        }
    }
}

void shard_work_eliminate(work *w, uint32_t v) {
    bool too_many;
    size_t n;
    elimination e = {.variable = v, .own_values = w->variables[v].values, .made = around(w, v, &too_many)};
    walker *walkers = walkers_of(w, v, &n);
    for (uint32_t i = 0; i < e.made.count; i++) {
        join_kinds(w, &e.made, i, walkers, n);
        e.values[i] = w->variables[e.made.scope[i]].values;
        e.sizes[i] = w->variables[e.made.scope[i]].size;
    }
    e.best = dtm_arena_alloc(w->arena, shard_work_size(&e.made) * sizeof *e.best);
    *w->effort -= (double)shard_work_size(&e.made) * w->variables[v].size * (double)n;
    e.made.costs = minimum(w, v, &e.made, walkers, n, e.best);
    take_rests(w, &e.made, walkers, n);
    for (size_t i = 0; i < w->variables[v].n_tables; i++) w->tables[w->variables[v].tables[i]].gone = true;
    w->variables[v].gone = true;
    w->done[w->n_done++] = e;
    changed_around(w, &e.made);
    shard_work_add(w, &e.made);
}

void shard_work_walk_back(const work *w, uint32_t *assignment) {
    for (size_t n = w->n_done; n-- > 0;) {
        const elimination *e = &w->done[n];
        size_t index = 0;
        for (uint32_t i = 0; i < e->made.count; i++) {
            uint32_t position = 0;
            while (e->values[i][position] != assignment[e->made.scope[i]]) position++;
            index = index * e->made.kinds[i] + e->made.kind[i][position];
        }
        assignment[e->variable] = e->own_values[e->best[index]];
    }
}

/* ---- what it would take ---- */

typedef struct plan {
    const work *w;
    uint32_t n, *of; /* by number in the plan: the variable */
    float *kinds;    /* [a * n + b]: of b that tables with a tell apart; 0: there is none with both */
    double *size;    /* of the table that eliminating it makes */
} plan;

static void measure(plan *p, uint32_t a) {
    p->size[a] = 1;
    for (uint32_t b = 0; b < p->n; b++)
        if (p->kinds[(size_t)a * p->n + b] > 0) p->size[a] *= (double)p->kinds[(size_t)a * p->n + b];
}

static void link(plan *p, uint32_t a, uint32_t b, float kinds) {
    float *at = &p->kinds[(size_t)a * p->n + b], most = (float)p->w->variables[p->of[b]].size;
    *at = *at > 0 ? *at * kinds : kinds;
    if (*at > most) *at = most;
}

static plan plan_of(const work *w, dtm_arena *arena) {
    plan p = {.w = w};
    uint32_t *number = dtm_arena_alloc(arena, (w->n_variables + 1) * sizeof *number);
    p.of = dtm_arena_alloc(arena, (w->n_variables + 1) * sizeof *p.of);
    for (uint32_t v = 0; v < w->n_variables; v++)
        if (!w->variables[v].gone) p.of[p.n] = v, number[v] = p.n++;
    p.kinds = dtm_arena_alloc(arena, ((size_t)p.n * p.n + 1) * sizeof *p.kinds);
    p.size = dtm_arena_alloc(arena, (p.n + 1) * sizeof *p.size);
    for (size_t i = 0; i < w->n_tables; i++)
        for (uint32_t j = 0; !w->tables[i].gone && j < w->tables[i].count; j++)
            for (uint32_t k = 0; k < w->tables[i].count; k++)
                if (j != k)
                    link(&p, number[w->tables[i].scope[j]], number[w->tables[i].scope[k]], (float)w->tables[i].kinds[k]);
    for (uint32_t a = 0; a < p.n; a++) measure(&p, a);
    return p;
}

/* As shard_work_eliminate: the neighbours of v come to share a table. */
static void plan_without(plan *p, uint32_t v) {
    for (uint32_t a = 0; a < p->n; a++)
        for (uint32_t b = 0; p->kinds[(size_t)v * p->n + a] > 0 && b < p->n; b++)
            if (a != b && p->kinds[(size_t)v * p->n + b] > 0) link(p, a, b, p->kinds[(size_t)v * p->n + b]);
    for (uint32_t a = 0; a < p->n; a++) {
        if (p->kinds[(size_t)v * p->n + a] <= 0) continue;
        p->kinds[(size_t)a * p->n + v] = 0;
        measure(p, a);
    }
    p->size[v] = INFINITY;
}

double shard_work_forecast(const work *w, double limit) {
    dtm_arena *arena = dtm_arena_create();
    plan p = plan_of(w, arena);
    double total = 0;
    for (uint32_t left = p.n; left && total < INFINITY; left--) {
        uint32_t v = 0;
        for (uint32_t a = 1; a < p.n; a++)
            if (p.size[a] < p.size[v]) v = a;
        total = p.size[v] > limit ? INFINITY : total + p.size[v] * w->variables[p.of[v]].size;
        plan_without(&p, v);
    }
    dtm_arena_destroy(arena);
    return total;
}

/* ---- parts ---- */

work shard_work_rest(const work *w, uint32_t **of) {
    uint32_t n = 0, *number = dtm_arena_alloc(w->arena, (w->n_variables + 1) * sizeof *number);
    *of = dtm_arena_alloc(w->arena, (w->n_variables + 1) * sizeof **of);
    for (uint32_t v = 0; v < w->n_variables; v++)
        if (!w->variables[v].gone) (*of)[n] = v, number[v] = n++;
    work rest = shard_work_new(n, w->effort);
    rest.constant = w->constant;
    rest.bound = w->bound;
    for (uint32_t v = 0; v < n; v++) shard_work_variable(&rest, v, w->variables[(*of)[v]].size);
    for (size_t i = 0; i < w->n_tables; i++) {
        if (w->tables[i].gone) continue;
        table t = w->tables[i];
        for (uint32_t k = 0; k < t.count; k++) t.scope[k] = number[t.scope[k]];
        if (t.rests) t.rests = dtm_arena_alloc(rest.arena, t.count * sizeof *t.rests);
        for (uint32_t k = 0; t.rests && k < t.count; k++) {
            size_t bytes = t.kinds[k] * sizeof **t.rests;
            t.rests[k] = memcpy(dtm_arena_alloc(rest.arena, bytes), w->tables[i].rests[k], bytes);
        }
        shard_work_add(&rest, &t);
    }
    return rest;
}
