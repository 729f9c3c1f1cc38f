/* From a search as it is given to one at work (shard_form.h). Variables that are decided together become one, a bundle: what
 * one of them does to the others is then within one variable, which makes bounds much tighter; tables tell apart only kinds
 * of its values, so they grow no larger. And all get numbers such that neighbours are near each other, breadth first from an
 * end of the graph: bounds are raised along the numbers, back and forth, and travel far in each sweep. */
#include "passes/shard_form.h"

#include <math.h>
#include <string.h>

/* ---- an order ---- */

/* Who shares a table with whom, by variable: to[first[v] .. first[v + 1]). */
typedef struct graph {
    size_t *first;
    uint32_t *to;
} graph;

static graph neighbours_of(const form *f) {
    const shard_search *s = f->s;
    graph g = {dtm_arena_alloc(f->arena, (f->n + 2) * sizeof *g.first), NULL};
    size_t *at = dtm_arena_alloc(f->arena, (f->n + 1) * sizeof *at);
    for (int set = 0; set < 2; set++) {
        for (size_t i = 0; i < s->n_tables; i++)
            for (uint32_t j = 0; j < s->tables[i].t.count; j++)
                for (uint32_t k = 0; k < s->tables[i].t.count; k++) {
                    uint32_t a = f->of[s->tables[i].t.scope[j]], b = f->of[s->tables[i].t.scope[k]];
                    if (a != b && set) g.to[at[a]++] = b;
                    else if (a != b) g.first[a + 1]++;
                }
        if (set) break;
        for (uint32_t v = 0; v < f->n; v++) g.first[v + 1] += g.first[v];
        g.to = dtm_arena_alloc(f->arena, (g.first[f->n] + 1) * sizeof *g.to);
        memcpy(at, g.first, f->n * sizeof *at);
    }
    return g;
}

/* Those reached from `from`, breadth first, not yet `seen`: their number. */
static size_t reach(const graph *g, uint32_t from, bool *seen, uint32_t *list) {
    size_t count = 1;
    list[0] = from;
    seen[from] = true;
    for (size_t i = 0; i < count; i++)
        for (size_t k = g->first[list[i]]; k < g->first[list[i] + 1]; k++)
            if (!seen[g->to[k]]) seen[g->to[k]] = true, list[count++] = g->to[k];
    return count;
}

/* By variable: its place in the order. */
static uint32_t *order_of(const form *f) {
    graph g = neighbours_of(f);
    bool *seen = dtm_arena_alloc(f->arena, f->n + 1), *trial = dtm_arena_alloc(f->arena, f->n + 1);
    uint32_t *list = dtm_arena_alloc(f->arena, (f->n + 1) * sizeof *list), n = 0;
    uint32_t *place = dtm_arena_alloc(f->arena, (f->n + 1) * sizeof *place);
    for (uint32_t v = 0; v < f->n; v++) {
        uint32_t end = v;
        if (seen[v]) continue;
        for (int twice = 0; twice < 2; twice++) { /* an end of the graph is farthest from another */
            memcpy(trial, seen, f->n);
            end = list[reach(&g, end, trial, list) - 1];
        }
        size_t count = reach(&g, end, seen, list);
        for (size_t i = 0; i < count; i++) place[list[i]] = n++;
    }
    return place;
}

form shard_form_of(const shard_search *s) {
    form f = {.s = s, .arena = dtm_arena_create()};
    size_t most = s->n_variables + 1;
    f.of = dtm_arena_alloc(f.arena, most * sizeof *f.of);
    f.stride = dtm_arena_alloc(f.arena, most * sizeof *f.stride);
    uint32_t *size = dtm_arena_alloc(f.arena, most * sizeof *size);
    bool *bundled = dtm_arena_alloc(f.arena, most);
    for (size_t i = 0; i < s->n_bundles; i++) {
        uint32_t stride = 1;
        for (uint32_t k = s->bundles[i].count; k-- > 0;) {
            uint32_t v = s->bundles[i].variables[k];
            bundled[v] = true;
            f.of[v] = f.n;
            f.stride[v] = stride;
            stride *= s->sizes[v];
        }
        size[f.n++] = stride;
    }
    for (uint32_t v = 0; v < s->n_variables; v++) {
        if (bundled[v]) continue;
        f.of[v] = f.n;
        f.stride[v] = 1;
        size[f.n++] = s->sizes[v];
    }
    uint32_t *place = order_of(&f);
    f.size = dtm_arena_alloc(f.arena, (f.n + 1) * sizeof *f.size);
    for (uint32_t v = 0; v < f.n; v++) f.size[place[v]] = size[v];
    for (uint32_t v = 0; v < s->n_variables; v++) f.of[v] = place[f.of[v]];
    return f;
}

void shard_form_assign(const form *f, const uint32_t *found, uint32_t *assignment) {
    for (uint32_t v = 0; v < f->s->n_variables; v++) assignment[v] = found[f->of[v]] / f->stride[v] % f->s->sizes[v];
}

/* ---- tables ---- */

/* The kinds of a variable of the work at a position: the values of those given that are within it and in the table. */
static void kinds_of(const form *f, const work *w, const table *given, table *made, uint32_t position) {
    uint16_t *kind = dtm_arena_alloc(w->arena, f->size[made->scope[position]] * sizeof *kind);
    made->kinds[position] = 1;
    for (uint32_t i = 0; i < given->count; i++) {
        uint32_t v = given->scope[i], size = f->s->sizes[v];
        if (f->of[v] != made->scope[position]) continue;
        made->kinds[position] *= size;
        for (uint32_t k = 0; k < f->size[made->scope[position]]; k++)
            kind[k] = (uint16_t)(kind[k] * size + k / f->stride[v] % size);
    }
    made->kind[position] = kind;
}

/* The value of each variable of the given table at an entry of the one made: those of one kind in the order of the given. */
static size_t entry_of(const form *f, const table *given, const table *made, const uint32_t *at) {
    uint32_t values[MAX_SCOPE];
    size_t index = 0;
    for (uint32_t i = 0; i < made->count; i++) {
        uint32_t kind = at[i];
        for (uint32_t k = given->count; k-- > 0;) {
            if (f->of[given->scope[k]] != made->scope[i]) continue;
            values[k] = kind % f->s->sizes[given->scope[k]];
            kind /= f->s->sizes[given->scope[k]];
        }
    }
    for (uint32_t k = 0; k < given->count; k++) index = index * f->s->sizes[given->scope[k]] + values[k];
    return index;
}

static void add_given(const form *f, work *w, const table *given, double weight) {
    table made = {.count = 0};
    scope sc = {.count = 0};
    for (uint32_t i = 0; i < given->count; i++) shard_scope_add(&sc, f->of[given->scope[i]]);
    made.count = sc.count;
    memcpy(made.scope, sc.vars, sizeof made.scope);
    for (uint32_t i = 0; i < made.count; i++) kinds_of(f, w, given, &made, i);
    size_t size = shard_work_size(&made);
    double *costs = dtm_arena_alloc(w->arena, size * sizeof *costs);
    uint32_t at[MAX_SCOPE] = {0};
    for (size_t index = 0; index < size; index++) {
        double cost = given->costs[entry_of(f, given, &made, at)];
        costs[index] = cost == INFINITY ? INFINITY : cost * weight;
        for (uint32_t i = made.count; i-- > 0 && ++at[i] == made.kinds[i];) at[i] = 0;
    }
    made.costs = costs;
    shard_work_add(w, &made);
}

work shard_form_begin(const form *f, const shard_search_options *options) {
    const shard_search *s = f->s;
    work w = shard_work_new(f->n, options->effort);
    for (uint32_t v = 0; v < f->n; v++) shard_work_variable(&w, v, f->size[v]);
    for (size_t i = 0; i < s->n_tables; i++) {
        double weight = options->weights[s->tables[i].measure];
        bool forbids = false;
        size_t size = 1;
        for (uint32_t k = 0; k < s->tables[i].t.count; k++) size *= s->sizes[s->tables[i].t.scope[k]];
        for (size_t k = 0; k < size; k++) forbids |= s->tables[i].t.costs[k] == INFINITY;
        if (weight != 0 || forbids) add_given(f, &w, &s->tables[i].t, weight);
    }
    for (uint32_t v = 0; options->allowed && v < s->n_variables; v++) {
        double *costs = dtm_arena_alloc(w.arena, s->sizes[v] * sizeof *costs);
        bool all = true;
        for (uint32_t k = 0; k < s->sizes[v]; k++) {
            costs[k] = options->allowed[v][k] ? 0 : INFINITY;
            all &= options->allowed[v][k];
        }
        if (!all) add_given(f, &w, &(table){.count = 1, .scope = {v}, .costs = costs}, 1);
    }
    return w;
}
