/* A lower bound on what is left of a search (shard_work.h), by shifting costs. What a table costs at least for each value of
 * one of its variables can be taken from the table and given to the variable, or back, and no sum changes; what all values
 * of a variable cost is a bound on all of it. Going through the variables forwards and backwards, each taking what its
 * tables cost and giving it on in the direction of the sweep (sequential tree-reweighted message passing, TRW-S), raises the
 * bound. A value that with it costs as much as a solution known is in no better one.
 *
 * The tables stay as they are; what has been shifted from each to its variables stands beside it (`rests`), so that a bound
 * goes on from the last one, and kinds of values remain kinds. */
#include "passes/shard_work.h"

#include <math.h>
#include <string.h>

typedef struct relaxation {
    work *w;
    dtm_arena *arena;
    double **own;    /* by variable: what its values cost alone; INFINITY: out */
    double *taken;   /* scratch, of the largest variable: what its values cost with what its tables cost */
    double **part;   /* scratch: by table of the variable, kind: what that gives */
    double *lowest;  /* scratch, by kind: the least that values of it cost */
    double bound;
    double entries;  /* looked at in a sweep */
    bool settled;    /* every table has been seen: the bound holds */
} relaxation;

static bool is_edge(const table *t) { return !t->gone && t->count > 1; }

/* ---- what a table costs ---- */

enum { LANES = 8 };

/* The least of a[i] + b[i]. In lanes, as a minimum waits for the one before it. */
static double least_sum(const double *a, const double *b, uint32_t n) {
    double least[LANES], all = INFINITY;
    uint32_t i = 0;
    for (uint32_t k = 0; k < LANES; k++) least[k] = INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) {
            double sum = a[i + k] + b[i + k];
            least[k] = sum < least[k] ? sum : least[k];
        }
    for (; i < n; i++) all = a[i] + b[i] < all ? a[i] + b[i] : all;
    for (uint32_t k = 0; k < LANES; k++) all = least[k] < all ? least[k] : all;
    return all;
}

/* least[i] comes down to a[i] + b. */
static void lower(double *least, const double *a, double b, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        double sum = a[i] + b;
        least[i] = sum < least[i] ? sum : least[i];
    }
}

static void least_of_two(const table *t, uint32_t position, double *least) {
    uint32_t n = t->kinds[position], m = t->kinds[1 - position];
    const double *rest = t->rests[1 - position];
    if (position == 0)
        for (uint32_t k = 0; k < n; k++) least[k] = least_sum(t->costs + (size_t)k * m, rest, m);
    else
        for (uint32_t j = 0; j < m; j++) lower(least, t->costs + (size_t)j * n, rest[j], n);
}

/* Row by row of the last variable; before[i]: what the kinds of the variables before the i-th were given of other tables. */
static void least_of_many(const table *t, uint32_t position, double *least) {
    uint32_t last = t->count - 1, n = t->kinds[last], at[MAX_SCOPE] = {0}, from = 0;
    const double *costs = t->costs, *end = costs + shard_work_size(t);
    double before[MAX_SCOPE];
    before[0] = 0;
    for (; costs < end; costs += n) {
        for (uint32_t i = from; i < last; i++) before[i + 1] = before[i] + (i == position ? 0 : t->rests[i][at[i]]);
        if (position == last) lower(least, costs, before[last], n);
        else {
            double sum = least_sum(costs, t->rests[last], n) + before[last];
            if (sum < least[at[position]]) least[at[position]] = sum;
        }
        for (from = last; from-- > 0 && ++at[from] == t->kinds[from];) at[from] = 0;
    }
}

/* What the table costs at least for each kind of one of its variables, beyond what was given to the others. */
static void least_of(const table *t, uint32_t position, double *least) {
    for (uint32_t k = 0; k < t->kinds[position]; k++) least[k] = INFINITY;
    if (t->count == 2) least_of_two(t, position, least);
    else least_of_many(t, position, least);
}

/* ---- sweeps ---- */

/* Takes to v what its tables cost; what all its values cost goes to the bound. */
static void gather(relaxation *r, uint32_t v) {
    const variable *var = &r->w->variables[v];
    double *sum = r->taken, lowest = INFINITY;
    uint32_t n = 0;
    memcpy(sum, r->own[v], var->size * sizeof *sum);
    for (size_t i = 0; i < var->n_tables; i++) {
        const table *t = &r->w->tables[var->tables[i]];
        if (!is_edge(t)) continue;
        uint32_t position = shard_work_position(t, v);
        const uint16_t *kind = t->kind[position];
        double *least = r->part[n++];
        least_of(t, position, least);
        for (uint32_t k = 0; k < var->size; k++) sum[k] += least[kind[k]];
    }
    for (uint32_t k = 0; k < var->size; k++) lowest = sum[k] < lowest ? sum[k] : lowest;
    r->bound += lowest;
    for (uint32_t k = 0; lowest < INFINITY && k < var->size; k++) {
        r->own[v][k] -= lowest;
        sum[k] -= lowest;
    }
}

/* Gives it on to those of its tables that have a variable still to come, in equal shares. A kind whose values are all out is
 * out there. */
static void spread(relaxation *r, uint32_t v, int direction) {
    const variable *var = &r->w->variables[v];
    uint32_t later = 0, earlier = 0, n = 0;
    for (int give = 0; give < 2; give++) {
        double share = 1.0 / (later > earlier ? later : earlier ? earlier : 1);
        for (size_t i = 0; i < var->n_tables; i++) {
            const table *t = &r->w->tables[var->tables[i]];
            if (!is_edge(t)) continue;
            bool last = t->scope[t->count - 1] == v, first = t->scope[0] == v;
            bool to_come = direction > 0 ? !last : !first;
            if (!give) {
                later += to_come;
                earlier += direction > 0 ? !first : !last;
                continue;
            }
            uint32_t position = shard_work_position(t, v);
            const uint16_t *kind = t->kind[position];
            const double *least = r->part[n++];
            double *rest = t->rests[position];
            for (uint32_t k = 0; k < t->kinds[position]; k++) r->lowest[k] = INFINITY;
            for (uint32_t k = 0; k < var->size; k++)
                r->lowest[kind[k]] = r->taken[k] < r->lowest[kind[k]] ? r->taken[k] : r->lowest[kind[k]];
            for (uint32_t k = 0; k < t->kinds[position]; k++)
                rest[k] = r->lowest[k] == INFINITY ? INFINITY : (to_come ? share * r->lowest[k] : 0) - least[k];
        }
    }
}

static void sweep(relaxation *r, int direction, double target) {
    work *w = r->w;
    for (uint32_t i = 0; i < w->n_variables && r->bound < INFINITY; i++) {
        uint32_t v = direction > 0 ? i : (uint32_t)w->n_variables - 1 - i;
        if (w->variables[v].gone) continue;
        gather(r, v);
        for (uint32_t k = 0; r->settled && r->bound < target && k < w->variables[v].size; k++)
            if (r->bound + r->taken[k] >= target) r->own[v][k] = r->taken[k] = INFINITY;
        spread(r, v, direction);
    }
}

/* ---- the work as it is relaxed ---- */

static void make_rests(const work *w, table *t) {
    if (t->rests) return;
    t->rests = dtm_arena_alloc(w->arena, t->count * sizeof *t->rests);
    for (uint32_t i = 0; i < t->count; i++) t->rests[i] = dtm_arena_alloc(w->arena, t->kinds[i] * sizeof **t->rests);
}

static relaxation begin(work *w) {
    relaxation r = {.w = w, .arena = dtm_arena_create(), .bound = w->constant};
    uint32_t largest = 1;
    size_t tables = 1;
    r.own = dtm_arena_alloc(r.arena, (w->n_variables + 1) * sizeof *r.own);
    for (uint32_t v = 0; v < w->n_variables; v++) {
        const variable *var = &w->variables[v];
        if (var->gone) continue;
        if (var->size > largest) largest = var->size;
        if (var->n_tables > tables) tables = var->n_tables;
        r.own[v] = dtm_arena_alloc(r.arena, var->size * sizeof **r.own);
    }
    for (size_t i = 0; i < w->n_tables; i++) {
        table *t = &w->tables[i];
        if (t->gone) continue;
        uint32_t size = w->variables[t->scope[0]].size;
        for (uint32_t k = 0; t->count == 1 && k < size; k++) r.own[t->scope[0]][k] += t->costs[t->kind[0][k]];
        if (t->count == 1) continue;
        make_rests(w, t);
        r.entries += (double)t->count * (double)shard_work_size(t);
        for (uint32_t k = 0; k < t->count; k++) r.entries += 2.0 * t->count * w->variables[t->scope[k]].size;
    }
    r.taken = dtm_arena_alloc(r.arena, largest * sizeof *r.taken);
    r.lowest = dtm_arena_alloc(r.arena, largest * sizeof *r.lowest);
    r.part = dtm_arena_alloc(r.arena, tables * sizeof *r.part);
    for (size_t i = 0; i < tables; i++) r.part[i] = dtm_arena_alloc(r.arena, largest * sizeof **r.part);
    return r;
}

/* Says of every value what a solution with it costs at least, and drops those that are out; false: there were none. */
static bool finish(relaxation *r, double target) {
    work *w = r->w;
    bool any = false;
    uint32_t **kept = dtm_arena_alloc(r->arena, (w->n_variables + 1) * sizeof *kept);
    uint32_t *n = dtm_arena_alloc(r->arena, (w->n_variables + 1) * sizeof *n);
    for (uint32_t v = 0; v < w->n_variables && r->bound < target; v++) {
        variable *var = &w->variables[v];
        if (var->gone) continue;
        kept[v] = dtm_arena_alloc(r->arena, var->size * sizeof **kept);
        var->floors = dtm_arena_alloc(w->arena, var->size * sizeof *var->floors);
        gather(r, v);
        for (uint32_t k = 0; k < var->size; k++) {
            var->floors[k] = r->bound + r->taken[k];
            if (var->floors[k] < target) kept[v][n[v]++] = k;
            else r->own[v][k] = r->taken[k] = INFINITY;
        }
        spread(r, v, 1);
        if (!n[v]) r->bound = INFINITY;
    }
    if (r->bound > w->bound) w->bound = r->bound;
    for (uint32_t v = 0; v < w->n_variables && w->bound < target; v++) {
        if (w->variables[v].gone || n[v] == w->variables[v].size) continue;
        shard_work_keep(w, v, kept[v], n[v]);
        any = true;
    }
    return any;
}

enum { WATCHED = 10 };              /* sweeps there and back over which progress is measured, */
static const double PROGRESS = 0.03; /* and how much of what is left to the target they must come to */

bool shard_work_relax(work *w, double target) {
    relaxation r = begin(w);
    double before = -INFINITY;
    for (int i = 1; r.bound < INFINITY; i++) {
        sweep(&r, 1, target);
        r.settled = true;
        sweep(&r, -1, target);
        *w->effort -= 2 * r.entries;
        if (r.bound >= target || *w->effort < 0) break;
        if (i % WATCHED) continue;
        if (target == INFINITY || r.bound - before < PROGRESS * (target - r.bound)) break;
        before = r.bound;
    }
    bool any = finish(&r, target);
    dtm_arena_destroy(r.arena);
    return any;
}
