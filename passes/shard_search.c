/* A search as it is given (shard_search.h): variables, tables and sums over them, parts of it, and its least by trying all. */
#include "passes/shard_form.h"

#include <math.h>
#include <string.h>

shard_search *shard_search_create(dtm_arena *arena) {
    shard_search *s = dtm_arena_alloc(arena, sizeof *s);
    s->arena = arena;
    return s;
}

uint32_t shard_search_variable(shard_search *s, uint32_t size, uint32_t group) {
    DTM_PUSH(s->arena, s->sizes, s->n_variables, s->cap_variables, size);
    DTM_PUSH(s->arena, s->groups, s->n_groups, s->cap_groups, group);
    return (uint32_t)(s->n_variables - 1);
}

enum { MAX_TOGETHER = 4096 }; /* values of a bundle: beyond it tables would be too large to be worth it */

void shard_search_together(shard_search *s, uint32_t count, const uint32_t *variables) {
    bundle b = {count, dtm_arena_alloc(s->arena, count * sizeof *b.variables), 1};
    for (uint32_t i = 0; i < count && b.size <= MAX_TOGETHER; i++) b.size *= s->sizes[b.variables[i] = variables[i]];
    if (b.size <= MAX_TOGETHER) DTM_PUSH(s->arena, s->bundles, s->n_bundles, s->cap_bundles, b);
}

size_t shard_search_size(const shard_search *s) { return s->n_variables; }
uint32_t shard_search_values(const shard_search *s, uint32_t variable) { return s->sizes[variable]; }

void shard_scope_add(scope *sc, uint32_t v) {
    uint32_t i = 0;
    while (i < sc->count && sc->vars[i] < v) i++;
    if (i < sc->count && sc->vars[i] == v) return;
    if (sc->count == MAX_SCOPE) dtm_broken("shard", "a table over more than %d choices", MAX_SCOPE);
    memmove(sc->vars + i + 1, sc->vars + i, (sc->count - i) * sizeof v);
    sc->vars[i] = v;
    sc->count++;
}

void shard_search_add(shard_search *s, shard_measure measure, uint32_t count, const uint32_t *variables, const double *costs) {
    scope sc = {.count = 0};
    size_t size = 1;
    for (uint32_t i = 0; i < count; i++) shard_scope_add(&sc, variables[i]);
    for (uint32_t i = 0; i < sc.count; i++) size *= s->sizes[sc.vars[i]];
    table t = {.count = sc.count};
    memcpy(t.scope, sc.vars, sizeof t.scope);
    double *sorted = dtm_arena_alloc(s->arena, size * sizeof *costs);
    for (size_t index = 0; index < size; index++) {
        uint32_t values[MAX_SCOPE];
        size_t rest = index, at = 0;
        for (uint32_t i = sc.count; i-- > 0; rest /= s->sizes[sc.vars[i]]) values[i] = (uint32_t)(rest % s->sizes[sc.vars[i]]);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t k = 0;
            while (sc.vars[k] != variables[i]) k++;
            at = at * s->sizes[variables[i]] + values[k];
        }
        sorted[index] = costs[at];
    }
    t.costs = sorted;
    DTM_PUSH(s->arena, s->tables, s->n_tables, s->cap_tables, ((given){t, measure}));
}

double shard_search_total(const shard_search *s, shard_measure measure, const uint32_t *assignment) {
    double total = 0;
    for (size_t i = 0; i < s->n_tables; i++) {
        const table *t = &s->tables[i].t;
        size_t index = 0;
        if (s->tables[i].measure != measure) continue;
        for (uint32_t k = 0; k < t->count; k++) index = index * s->sizes[t->scope[k]] + assignment[t->scope[k]];
        total += t->costs[index];
    }
    return total;
}

/* ---- parts ---- */

/* The next combination of the values of those variables of a table that are not fixed; false: that was the last. */
static bool next_values(const shard_search *s, const table *t, const uint32_t *state, uint32_t *values) {
    for (uint32_t i = t->count; i-- > 0;) {
        if (state[t->scope[i]] < IGNORED) continue;
        if (++values[i] < s->sizes[t->scope[i]]) return true;
        values[i] = 0;
    }
    return false;
}

/* The table over its free variables alone. */
static table part_of(const shard_search *s, const table *t, const uint32_t *state, dtm_arena *arena) {
    uint32_t values[MAX_SCOPE] = {0};
    table made = {.count = 0};
    size_t size = 1;
    for (uint32_t k = 0; k < t->count; k++) {
        uint32_t v = t->scope[k];
        if (state[v] == FREE) made.scope[made.count++] = v, size *= s->sizes[v];
        else if (state[v] != IGNORED) values[k] = state[v];
    }
    double *costs = dtm_arena_alloc(arena, size * sizeof *costs);
    for (size_t k = 0; k < size; k++) costs[k] = INFINITY;
    do {
        size_t from = 0, to = 0;
        for (uint32_t k = 0; k < t->count; k++) {
            from = from * s->sizes[t->scope[k]] + values[k];
            if (state[t->scope[k]] == FREE) to = to * s->sizes[t->scope[k]] + values[k];
        }
        if (t->costs[from] < costs[to]) costs[to] = t->costs[from];
    } while (next_values(s, t, state, values));
    made.costs = costs;
    return made;
}

shard_search *shard_search_part(const shard_search *s, const bool *const *allowed, const uint32_t *state, dtm_arena *arena) {
    shard_search *part = shard_search_create(arena);
    for (uint32_t v = 0; v < s->n_variables; v++) shard_search_variable(part, state[v] == FREE ? s->sizes[v] : 1, s->groups[v]);
    for (size_t i = 0; i < s->n_bundles; i++) {
        uint32_t n = 0, *free = dtm_arena_alloc(arena, s->bundles[i].count * sizeof *free);
        for (uint32_t k = 0; k < s->bundles[i].count; k++)
            if (state[s->bundles[i].variables[k]] == FREE) free[n++] = s->bundles[i].variables[k];
        if (n > 1) shard_search_together(part, n, free);
    }
    for (size_t i = 0; i < s->n_tables; i++) {
        given g = {part_of(s, &s->tables[i].t, state, arena), s->tables[i].measure};
        DTM_PUSH(arena, part->tables, part->n_tables, part->cap_tables, g);
    }
    for (uint32_t v = 0; allowed && v < s->n_variables; v++) {
        double *costs = dtm_arena_alloc(arena, s->sizes[v] * sizeof *costs);
        for (uint32_t k = 0; k < s->sizes[v]; k++) costs[k] = allowed[v][k] ? 0 : INFINITY;
        if (state[v] == FREE) shard_search_add(part, SHARD_TIME, 1, &v, costs);
    }
    return part;
}

/* ---- the twin ---- */

double shard_search_brute_force(const shard_search *s, double bytes, uint32_t *assignment) {
    uint32_t *trial = dtm_arena_alloc(s->arena, (s->n_variables + 1) * sizeof *trial);
    double least = INFINITY;
    for (;;) {
        double time = shard_search_total(s, SHARD_TIME, trial);
        if (time < least && shard_search_total(s, SHARD_MEMORY, trial) <= bytes) {
            least = time;
            memcpy(assignment, trial, s->n_variables * sizeof *trial);
        }
        size_t v = 0;
        while (v < s->n_variables && ++trial[v] == s->sizes[v]) trial[v++] = 0;
        if (v == s->n_variables) return least;
    }
}
