/* A lower bound on what is left of a search (shard_work.h), by shifting costs. What a table costs at least for each value of
 * one of its variables can be taken from the table and given to the variable, or back, and no sum changes; what all values
 * of a variable cost is a bound on all of it. Going through the variables forwards and backwards, each taking what its
 * tables cost and giving it on in the direction of the sweep (sequential tree-reweighted message passing, TRW-S), raises the
 * bound. A value that with it costs as much as a solution known is in no better one.
 *
 * The tables stay as they are; what has been shifted from each to its variables stands beside it (`shifts`), so that a bound
 * goes on from the last one, and kinds of values remain kinds. */
#include "passes/shard_work.h"

#include <math.h>
#include <string.h>

typedef struct relaxation {
    work *w;
    dtm_arena *arena;
    double **own;    /* by variable: what its values cost alone; INFINITY: out */
    double *taken;   /* scratch, of the largest variable: what its values cost with what its tables cost */
    double **part;   /* scratch: by table of the variable, what that gives */
    double *rest[MAX_SCOPE], *least; /* scratch, by kind */
    double bound;
    double entries;  /* looked at in a sweep */
    bool settled;    /* every table has been seen: the bound holds */
} relaxation;

static bool is_edge(const table *t) { return !t->gone && t->count > 1; }

/* ---- what a table costs ---- */

/* By kind of the variable at a position, what its values have been given of other tables at most: the least that a table with
 * one of them still has to bear. */
static void rest_of(const relaxation *r, const table *t, uint32_t position) {
    double *rest = r->rest[position];
    const double *shift = t->shifts[position];
    const uint16_t *kind = t->kind[position];
    for (uint32_t k = 0; k < t->kinds[position]; k++) rest[k] = INFINITY;
    for (uint32_t k = 0; k < r->w->variables[t->scope[position]].size; k++)
        if (-shift[k] < rest[kind[k]]) rest[kind[k]] = -shift[k];
}

static void least_of_two(const relaxation *r, const table *t, uint32_t position) {
    uint32_t n = t->kinds[position], m = t->kinds[1 - position];
    const double *rest = r->rest[1 - position];
    size_t step = position ? 1 : m, along = position ? n : 1;
    for (uint32_t k = 0; k < n; k++) {
        double least = INFINITY;
        for (uint32_t j = 0; j < m; j++) {
            double sum = t->costs[k * step + j * along] + rest[j];
            least = sum < least ? sum : least;
        }
        r->least[k] = least;
    }
}

static void least_of_many(const relaxation *r, const table *t, uint32_t position) {
    uint32_t last = t->count - 1, n = t->kinds[last], at[MAX_SCOPE] = {0};
    size_t rows = shard_work_size(t) / n;
    for (uint32_t k = 0; k < t->kinds[position]; k++) r->least[k] = INFINITY;
    for (size_t row = 0; row < rows; row++) {
        const double *costs = t->costs + row * n;
        double others = 0, least = INFINITY;
        for (uint32_t i = 0; i < last; i++)
            if (i != position) others += r->rest[i][at[i]];
        if (position == last) {
            for (uint32_t k = 0; k < n; k++) r->least[k] = costs[k] + others < r->least[k] ? costs[k] + others : r->least[k];
        } else {
            for (uint32_t k = 0; k < n; k++) least = costs[k] + r->rest[last][k] < least ? costs[k] + r->rest[last][k] : least;
            if (least + others < r->least[at[position]]) r->least[at[position]] = least + others;
        }
        for (uint32_t i = last; i-- > 0 && ++at[i] == t->kinds[i];) at[i] = 0;
    }
}

/* What the table costs at least for each value of one of its variables, beyond what was shifted to the others. */
static void least_of(const relaxation *r, const table *t, uint32_t v, double *least) {
    uint32_t position = shard_work_position(t, v);
    for (uint32_t i = 0; i < t->count; i++)
        if (i != position) rest_of(r, t, i);
    if (t->count == 2) least_of_two(r, t, position);
    else least_of_many(r, t, position);
    for (uint32_t k = 0; k < r->w->variables[v].size; k++) least[k] = r->least[t->kind[position][k]];
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
        double *least = r->part[n++];
        least_of(r, t, v, least);
        for (uint32_t k = 0; k < var->size; k++) sum[k] += least[k];
    }
    for (uint32_t k = 0; k < var->size; k++) lowest = sum[k] < lowest ? sum[k] : lowest;
    r->bound += lowest;
    for (uint32_t k = 0; lowest < INFINITY && k < var->size; k++) {
        r->own[v][k] -= lowest;
        sum[k] -= lowest;
    }
}

/* Gives it on to those of its tables that have a variable still to come, in equal shares. A value that is out is out there. */
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
            double *shift = t->shifts[shard_work_position(t, v)], *least = r->part[n++];
            for (uint32_t k = 0; k < var->size; k++)
                shift[k] = r->taken[k] == INFINITY ? -INFINITY : to_come ? least[k] - share * r->taken[k] : least[k];
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

static void make_shifts(const work *w, table *t) {
    if (t->shifts) return;
    t->shifts = dtm_arena_alloc(w->arena, t->count * sizeof *t->shifts);
    for (uint32_t i = 0; i < t->count; i++)
        t->shifts[i] = dtm_arena_alloc(w->arena, w->variables[t->scope[i]].size * sizeof **t->shifts);
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
        make_shifts(w, t);
        r.entries += (double)t->count * (double)shard_work_size(t);
        for (uint32_t k = 0; k < t->count; k++) r.entries += 2.0 * t->count * w->variables[t->scope[k]].size;
    }
    r.taken = dtm_arena_alloc(r.arena, largest * sizeof *r.taken);
    r.least = dtm_arena_alloc(r.arena, largest * sizeof *r.least);
    for (uint32_t i = 0; i < MAX_SCOPE; i++) r.rest[i] = dtm_arena_alloc(r.arena, largest * sizeof **r.rest);
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
