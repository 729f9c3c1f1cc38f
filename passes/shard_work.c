/* Tables over variables, and how a variable goes (shard_work.h): by losing its values to better ones, or by being eliminated,
 * all tables that mention it replaced by their minimum over it. */
#include "passes/shard_work.h"

#include <math.h>
#include <string.h>

enum { MAX_COMPARED = 1 << 15 }; /* entries of a table that is still searched for beaten values */

/* ---- variables and tables ---- */

void shard_scope_add(scope *sc, uint32_t v) {
    uint32_t i = 0;
    while (i < sc->count && sc->vars[i] < v) i++;
    if (i < sc->count && sc->vars[i] == v) return;
    if (sc->count == MAX_SCOPE) {
        sc->too_many = true;
        return;
    }
    memmove(sc->vars + i + 1, sc->vars + i, (sc->count - i) * sizeof v);
    sc->vars[i] = v;
    sc->count++;
}

void shard_work_variable(work *w, uint32_t v, uint32_t size) {
    variable *var = &w->variables[v];
    *var = (variable){.size = size, .suspect = true, .score = -1};
    var->values = dtm_arena_alloc(w->arena, size * sizeof *var->values);
    for (uint32_t k = 0; k < size; k++) var->values[k] = k;
}

work shard_work_new(size_t n_variables) {
    work w = {.arena = dtm_arena_create(), .n_variables = n_variables};
    w.variables = dtm_arena_alloc(w.arena, (n_variables + 1) * sizeof *w.variables);
    w.done = dtm_arena_alloc(w.arena, (n_variables + 1) * sizeof *w.done);
    return w;
}

size_t shard_work_size(const work *w, const table *t) {
    size_t size = 1;
    for (uint32_t i = 0; i < t->count; i++) size *= w->variables[t->scope[i]].size;
    return size;
}

size_t shard_work_stride(const work *w, const table *t, uint32_t v) {
    size_t stride = 1;
    for (uint32_t i = t->count; i-- > 0 && t->scope[i] != v;) stride *= w->variables[t->scope[i]].size;
    return stride;
}

static void changed(work *w, uint32_t v) {
    w->variables[v].suspect = true;
    w->variables[v].score = -1;
}

static void changed_around(work *w, const table *t) {
    for (uint32_t i = 0; i < t->count; i++) changed(w, t->scope[i]);
}

void shard_work_add(work *w, const table *t) {
    if (!t->count) {
        w->constant += t->costs[0];
        return;
    }
    changed_around(w, t);
    const variable *first = &w->variables[t->scope[0]];
    for (size_t i = 0; i < first->n_tables; i++) {
        table *there = &w->tables[first->tables[i]];
        if (there->gone || there->count != t->count || memcmp(there->scope, t->scope, t->count * sizeof *t->scope)) continue;
        size_t size = shard_work_size(w, t);
        for (size_t k = 0; k < size; k++) there->costs[k] += t->costs[k];
        return;
    }
    DTM_PUSH(w->arena, w->tables, w->n_tables, w->cap_tables, *t);
    for (uint32_t i = 0; i < t->count; i++) {
        variable *v = &w->variables[t->scope[i]];
        DTM_PUSH(w->arena, v->tables, v->n_tables, v->cap_tables, (uint32_t)(w->n_tables - 1));
    }
}

/* A table with only the values `kept` of its variable `position`; of one value, that variable is left out. */
static table narrowed(const work *w, const table *t, uint32_t position, const uint32_t *kept, uint32_t n) {
    table made = {.count = 0};
    size_t inner = shard_work_stride(w, t, t->scope[position]), was = w->variables[t->scope[position]].size;
    size_t outer = shard_work_size(w, t) / (inner * was);
    for (uint32_t i = 0; i < t->count; i++)
        if (i != position || n > 1) made.scope[made.count++] = t->scope[i];
    made.costs = dtm_arena_alloc(w->arena, outer * n * inner * sizeof *made.costs);
    for (size_t o = 0; o < outer; o++)
        for (uint32_t k = 0; k < n; k++)
            memcpy(made.costs + (o * n + k) * inner, t->costs + (o * was + kept[k]) * inner, inner * sizeof *made.costs);
    return made;
}

void shard_work_keep(work *w, uint32_t v, const uint32_t *kept, uint32_t n) {
    variable *var = &w->variables[v];
    size_t n_tables = var->n_tables;
    table *made = dtm_arena_alloc(w->arena, (n_tables + 1) * sizeof *made);
    for (size_t i = 0; i < n_tables; i++) {
        table *t = &w->tables[var->tables[i]];
        uint32_t position = 0;
        while (t->scope[position] != v) position++;
        made[i].gone = t->gone;
        if (!t->gone) made[i] = narrowed(w, t, position, kept, n);
        if (!t->gone && n == 1) t->gone = true;
    }
    uint32_t *values = dtm_arena_alloc(w->arena, n * sizeof *values);
    for (uint32_t k = 0; k < n; k++) values[k] = var->values[kept[k]];
    var->values = values;
    var->size = n;
    for (size_t i = 0; i < n_tables; i++) {
        if (made[i].gone) continue;
        if (n == 1) shard_work_add(w, &made[i]);
        else {
            w->tables[var->tables[i]].costs = made[i].costs;
            changed_around(w, &made[i]);
        }
    }
    if (n > 1) return;
    var->gone = true;
    elimination e = {.variable = v, .own_values = values};
    e.best = dtm_arena_alloc(w->arena, sizeof *e.best);
    w->done[w->n_done++] = e;
}

/* ---- values that are beaten ---- */

/* Whether value a of v is no better than b in a table, whatever the others are: *worst is the most that b costs above a. */
static bool compare_in(const work *w, const table *t, uint32_t v, uint32_t a, uint32_t b, double *worst) {
    size_t inner = shard_work_stride(w, t, v), size = w->variables[v].size, outer = shard_work_size(w, t) / (inner * size);
    *worst = -INFINITY;
    for (size_t o = 0; o < outer; o++) {
        const double *x = t->costs + (o * size + a) * inner, *y = t->costs + (o * size + b) * inner;
        for (size_t i = 0; i < inner; i++) {
            if (x[i] == INFINITY) continue;
            if (y[i] == INFINITY) return false;
            if (y[i] - x[i] > *worst) *worst = y[i] - x[i];
        }
    }
    return true;
}

static bool is_beaten(const work *w, uint32_t v, uint32_t a, uint32_t b) {
    const variable *var = &w->variables[v];
    double sum = 0, worst;
    for (size_t i = 0; i < var->n_tables; i++) {
        const table *t = &w->tables[var->tables[i]];
        if (t->gone) continue;
        if (!compare_in(w, t, v, a, b, &worst)) return false;
        if (worst == -INFINITY) return true; /* a is forbidden */
        sum += worst;
    }
    return sum < 0 || (sum == 0 && b < a);
}

static bool is_small_around(const work *w, uint32_t v) {
    const variable *var = &w->variables[v];
    for (size_t i = 0; i < var->n_tables; i++)
        if (!w->tables[var->tables[i]].gone && shard_work_size(w, &w->tables[var->tables[i]]) > MAX_COMPARED) return false;
    return true;
}

/* Drops the beaten values of v; false: there were none. */
static bool drop_beaten(work *w, uint32_t v) {
    variable *var = &w->variables[v];
    var->suspect = false;
    if (var->size > 1 && !is_small_around(w, v)) return false;
    uint32_t *kept = dtm_arena_alloc(w->arena, var->size * sizeof *kept), n = 0;
    bool *out = dtm_arena_alloc(w->arena, var->size);
    for (uint32_t a = var->size; a-- > 0;) /* the preferred stand first */
        for (uint32_t b = 0; b < var->size && !out[a]; b++) out[a] = b != a && !out[b] && is_beaten(w, v, a, b);
    for (uint32_t a = 0; a < var->size; a++)
        if (!out[a]) kept[n++] = a;
    if (n == var->size && n > 1) return false;
    shard_work_keep(w, v, kept, n);
    var->suspect = false;
    return true;
}

void shard_work_drop_beaten(work *w) {
    for (bool again = true; again;) {
        again = false;
        for (uint32_t v = 0; v < w->n_variables; v++)
            if (!w->variables[v].gone && w->variables[v].suspect) again |= drop_beaten(w, v);
    }
}

/* ---- elimination ---- */

scope shard_work_neighbours(const work *w, uint32_t v) {
    scope sc = {.count = 0};
    const variable *var = &w->variables[v];
    for (size_t i = 0; i < var->n_tables; i++) {
        const table *t = &w->tables[var->tables[i]];
        for (uint32_t j = 0; !t->gone && j < t->count; j++)
            if (t->scope[j] != v) shard_scope_add(&sc, t->scope[j]);
    }
    return sc;
}

static double score_of(work *w, uint32_t v) {
    if (w->variables[v].score >= 0) return w->variables[v].score;
    scope sc = shard_work_neighbours(w, v);
    double size = sc.too_many ? INFINITY : 1;
    for (uint32_t i = 0; i < sc.count; i++) size *= w->variables[sc.vars[i]].size;
    return w->variables[v].score = size;
}

/* A table that mentions the variable, as the minimum over it walks through it. */
typedef struct walker {
    const double *at;
    size_t own; /* stride of the variable */
    size_t stride[MAX_SCOPE];
} walker;

/* Fills the costs of `made` with the minimum over v; best[i] is where it is. */
static void minimise(work *w, uint32_t v, const table *made, uint16_t *best) {
    const variable *var = &w->variables[v];
    walker *walkers = dtm_arena_alloc(w->arena, (var->n_tables + 1) * sizeof *walkers);
    double *sum = dtm_arena_alloc(w->arena, var->size * sizeof *sum);
    uint32_t counter[MAX_SCOPE] = {0};
    size_t n = 0, size = shard_work_size(w, made);
    for (size_t i = 0; i < var->n_tables; i++) {
        const table *t = &w->tables[var->tables[i]];
        if (t->gone) continue;
        walkers[n] = (walker){.at = t->costs, .own = shard_work_stride(w, t, v)};
        for (uint32_t k = 0; k < made->count; k++)
            for (uint32_t j = 0; j < t->count; j++)
                if (t->scope[j] == made->scope[k]) walkers[n].stride[k] = shard_work_stride(w, t, made->scope[k]);
        n++;
    }
    for (size_t index = 0; index < size; index++) {
        for (uint32_t k = 0; k < var->size; k++) sum[k] = 0;
        for (size_t i = 0; i < n; i++)
            for (uint32_t k = 0; k < var->size; k++) sum[k] += walkers[i].at[k * walkers[i].own];
        uint32_t least = 0;
        for (uint32_t k = 1; k < var->size; k++)
            if (sum[k] < sum[least]) least = k;
        made->costs[index] = sum[least];
        best[index] = (uint16_t)least;
        for (uint32_t k = made->count; k-- > 0;) {
            bool wraps = ++counter[k] == w->variables[made->scope[k]].size;
            for (size_t i = 0; i < n; i++)
                walkers[i].at += wraps ? -(ptrdiff_t)(walkers[i].stride[k] * (counter[k] - 1)) : (ptrdiff_t)walkers[i].stride[k];
            if (!wraps) break;
            counter[k] = 0;
        }
    }
}

void shard_work_eliminate(work *w, uint32_t v) {
    scope sc = shard_work_neighbours(w, v);
    elimination e = {.variable = v, .count = sc.count, .own_values = w->variables[v].values};
    table t = {.count = sc.count};
    memcpy(t.scope, sc.vars, sizeof t.scope);
    memcpy(e.scope, sc.vars, sizeof e.scope);
    for (uint32_t i = 0; i < sc.count; i++) {
        e.sizes[i] = w->variables[sc.vars[i]].size;
        e.values[i] = w->variables[sc.vars[i]].values;
    }
    t.costs = dtm_arena_alloc(w->arena, shard_work_size(w, &t) * sizeof *t.costs);
    e.best = dtm_arena_alloc(w->arena, shard_work_size(w, &t) * sizeof *e.best);
    minimise(w, v, &t, e.best);
    for (size_t i = 0; i < w->variables[v].n_tables; i++) w->tables[w->variables[v].tables[i]].gone = true;
    w->variables[v].gone = true;
    w->done[w->n_done++] = e;
    changed_around(w, &t);
    shard_work_add(w, &t);
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

void shard_work_walk_back(const work *w, uint32_t *assignment) {
    for (size_t n = w->n_done; n-- > 0;) {
        const elimination *e = &w->done[n];
        size_t index = 0;
        for (uint32_t i = 0; i < e->count; i++) {
            uint32_t position = 0;
            while (e->values[i][position] != assignment[e->scope[i]]) position++;
            index = index * e->sizes[i] + position;
        }
        assignment[e->variable] = e->own_values[e->best[index]];
    }
}
