/* The minimum of a sum of small tables over discrete variables, by eliminating one variable after the other: all tables
 * that mention it are added up and replaced by their minimum over it, a table over its neighbours; walking back gives the
 * values. Exact; what it costs is the size of the largest table, small where the graph is nearly a tree, as the graphs of
 * transformers' layers are. The least table is made first, so the result does not depend on anything but the input. */
#include "passes/shard.h"

#include <math.h>
#include <string.h>

enum { MAX_SCOPE = 24 };

typedef struct table {
    uint32_t count, scope[MAX_SCOPE]; /* variables in rising order; the last counts fastest */
    double *costs;
    bool gone;
} table;

typedef struct variable {
    uint32_t size;
    uint32_t *tables; /* those that mention it, gone ones too */
    size_t n_tables, cap_tables;
    bool gone;
} variable;

struct shard_search {
    dtm_arena *arena;
    variable *variables;
    table *tables;
    size_t n_variables, cap_variables, n_tables, cap_tables;
    size_t n_given; /* tables before solving began */
};

shard_search *shard_search_create(dtm_arena *arena) {
    shard_search *s = dtm_arena_alloc(arena, sizeof *s);
    s->arena = arena;
    return s;
}

uint32_t shard_search_variable(shard_search *s, uint32_t size) {
    DTM_PUSH(s->arena, s->variables, s->n_variables, s->cap_variables, ((variable){.size = size}));
    return (uint32_t)(s->n_variables - 1);
}

size_t shard_search_size(const shard_search *s) { return s->n_variables; }

static void add_table(shard_search *s, const table *t) {
    DTM_PUSH(s->arena, s->tables, s->n_tables, s->cap_tables, *t);
    for (uint32_t i = 0; i < t->count; i++) {
        variable *v = &s->variables[t->scope[i]];
        DTM_PUSH(s->arena, v->tables, v->n_tables, v->cap_tables, (uint32_t)(s->n_tables - 1));
    }
}

typedef struct scope {
    uint32_t count, vars[MAX_SCOPE]; /* in rising order */
    bool too_many;
} scope;

static void scope_add(scope *sc, uint32_t v) {
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

static double table_size(const shard_search *s, const scope *sc) {
    double size = sc->too_many ? INFINITY : 1;
    for (uint32_t i = 0; i < sc->count; i++) size *= s->variables[sc->vars[i]].size;
    return size;
}

void shard_search_cost(shard_search *s, uint32_t count, const uint32_t *variables, const double *costs) {
    scope sc = {.count = 0};
    for (uint32_t i = 0; i < count; i++) scope_add(&sc, variables[i]);
    size_t size = (size_t)table_size(s, &sc);
    table t = {.count = sc.count};
    memcpy(t.scope, sc.vars, sizeof t.scope);
    t.costs = dtm_arena_alloc(s->arena, size * sizeof *costs);
    for (size_t index = 0; index < size; index++) {
        uint32_t values[MAX_SCOPE];
        size_t rest = index, given = 0;
        for (uint32_t i = sc.count; i-- > 0; rest /= s->variables[sc.vars[i]].size)
            values[i] = (uint32_t)(rest % s->variables[sc.vars[i]].size);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t k = 0;
            while (sc.vars[k] != variables[i]) k++;
            given = given * s->variables[variables[i]].size + values[k];
        }
        t.costs[index] = costs[given];
    }
    add_table(s, &t);
}

/* ---- elimination ---- */

static scope neighbours(const shard_search *s, uint32_t v) {
    scope sc = {.count = 0};
    const variable *var = &s->variables[v];
    for (size_t i = 0; i < var->n_tables; i++) {
        const table *t = &s->tables[var->tables[i]];
        for (uint32_t j = 0; !t->gone && j < t->count; j++)
            if (t->scope[j] != v) scope_add(&sc, t->scope[j]);
    }
    return sc;
}

static double cost_at(const shard_search *s, const table *t, const uint32_t *assignment) {
    size_t index = 0;
    for (uint32_t i = 0; i < t->count; i++) index = index * s->variables[t->scope[i]].size + assignment[t->scope[i]];
    return t->costs[index];
}

/* The cost of a value of v, its neighbours as assigned. */
static double cost_of(const shard_search *s, uint32_t v, uint32_t *assignment, uint32_t value) {
    double cost = 0;
    assignment[v] = value;
    for (size_t i = 0; i < s->variables[v].n_tables; i++) {
        const table *t = &s->tables[s->variables[v].tables[i]];
        if (!t->gone) cost += cost_at(s, t, assignment);
    }
    return cost;
}

static double least_over(const shard_search *s, uint32_t v, uint32_t *assignment, uint32_t *best) {
    double least = INFINITY;
    *best = 0;
    for (uint32_t value = 0; value < s->variables[v].size; value++) {
        double cost = cost_of(s, v, assignment, value);
        if (cost < least) {
            least = cost;
            *best = value;
        }
    }
    return least;
}

typedef struct elimination {
    uint32_t variable;
    scope sc;
    uint32_t *best; /* by index into the table over sc */
} elimination;

static elimination eliminate(shard_search *s, uint32_t v, const scope *sc, uint32_t *assignment) {
    elimination e = {v, *sc, NULL};
    size_t size = (size_t)table_size(s, sc);
    table t = {.count = sc->count};
    memcpy(t.scope, sc->vars, sizeof t.scope);
    t.costs = dtm_arena_alloc(s->arena, size * sizeof *t.costs);
    e.best = dtm_arena_alloc(s->arena, size * sizeof *e.best);
    for (size_t index = 0; index < size; index++) {
        size_t rest = index;
        for (uint32_t i = sc->count; i-- > 0; rest /= s->variables[sc->vars[i]].size)
            assignment[sc->vars[i]] = (uint32_t)(rest % s->variables[sc->vars[i]].size);
        t.costs[index] = least_over(s, v, assignment, &e.best[index]);
    }
    for (size_t i = 0; i < s->variables[v].n_tables; i++) s->tables[s->variables[v].tables[i]].gone = true;
    s->variables[v].gone = true;
    if (t.count) add_table(s, &t);
    return e;
}

/* Of the variables left, the one whose elimination makes the least table. */
static uint32_t cheapest(const shard_search *s, scope *sc, double *size) {
    uint32_t best = UINT32_MAX;
    for (uint32_t v = 0; v < s->n_variables; v++) {
        if (s->variables[v].gone) continue;
        scope around = neighbours(s, v);
        double here = table_size(s, &around);
        if (best != UINT32_MAX && here >= *size) continue;
        best = v;
        *size = here;
        *sc = around;
        if (here <= 1) break;
    }
    return best;
}

/* Too tangled: the variable with most neighbours is fixed at its first allowed value of least own cost. */
static void fix_one(shard_search *s, uint32_t *assignment) {
    uint32_t worst = UINT32_MAX, most = 0;
    for (uint32_t v = 0; v < s->n_variables; v++) {
        if (s->variables[v].gone) continue;
        uint32_t count = neighbours(s, v).count;
        if (worst == UINT32_MAX || count > most) {
            worst = v;
            most = count;
        }
    }
    variable *var = &s->variables[worst];
    double *costs = dtm_arena_alloc(s->arena, var->size * sizeof *costs), least = INFINITY;
    uint32_t best = 0;
    for (size_t i = 0; i < var->n_tables; i++) {
        const table *t = &s->tables[var->tables[i]];
        for (uint32_t value = 0; t->count == 1 && !t->gone && value < var->size; value++) costs[value] += t->costs[value];
    }
    for (uint32_t value = 0; value < var->size; value++)
        if (costs[value] < least) {
            least = costs[value];
            best = value;
        }
    for (uint32_t value = 0; value < var->size; value++) costs[value] = value == best ? 0 : INFINITY;
    shard_search_cost(s, 1, &worst, costs);
    /* A variable of one value binds nothing: slice its tables. */
    (void)assignment;
    size_t n = s->variables[worst].n_tables;
    for (size_t i = 0; i < n; i++) {
        table old = s->tables[s->variables[worst].tables[i]];
        if (old.gone || old.count == 1) continue;
        table sliced = {.count = 0};
        size_t size = 1;
        for (uint32_t j = 0; j < old.count; j++)
            if (old.scope[j] != worst) {
                sliced.scope[sliced.count++] = old.scope[j];
                size *= s->variables[old.scope[j]].size;
            }
        sliced.costs = dtm_arena_alloc(s->arena, size * sizeof *sliced.costs);
        for (size_t index = 0; index < size; index++) {
            size_t rest = index;
            for (uint32_t j = sliced.count; j-- > 0; rest /= s->variables[sliced.scope[j]].size)
                assignment[sliced.scope[j]] = (uint32_t)(rest % s->variables[sliced.scope[j]].size);
            assignment[worst] = best;
            sliced.costs[index] = cost_at(s, &old, assignment);
        }
        s->tables[s->variables[worst].tables[i]].gone = true;
        add_table(s, &sliced);
    }
}

double shard_search_solve(shard_search *s, size_t bound, bool give_up, uint32_t *assignment, bool *exact) {
    s->n_given = s->n_tables;
    elimination *done = dtm_arena_alloc(s->arena, (s->n_variables + 1) * sizeof *done);
    size_t n_done = 0;
    *exact = true;
    scope sc = {.count = 0};
    double size = 0, total = 0;
    for (uint32_t v; (v = cheapest(s, &sc, &size)) != UINT32_MAX;) {
        if (size > (double)bound) {
            *exact = false;
            if (give_up) return INFINITY;
            fix_one(s, assignment);
            continue;
        }
        if (!sc.count) {
            uint32_t best;
            total += least_over(s, v, assignment, &best);
        }
        done[n_done++] = eliminate(s, v, &sc, assignment);
    }
    while (n_done-- > 0) {
        const elimination *e = &done[n_done];
        size_t index = 0;
        for (uint32_t i = 0; i < e->sc.count; i++)
            index = index * s->variables[e->sc.vars[i]].size + assignment[e->sc.vars[i]];
        assignment[e->variable] = e->best[index];
    }
    return total;
}

double shard_search_brute_force(const shard_search *s, uint32_t *assignment) {
    size_t n_tables = s->n_given ? s->n_given : s->n_tables;
    uint32_t *trial = dtm_arena_alloc(s->arena, (s->n_variables + 1) * sizeof *trial);
    double least = INFINITY;
    for (;;) {
        double cost = 0;
        for (size_t t = 0; t < n_tables; t++) cost += cost_at(s, &s->tables[t], trial);
        if (cost < least) {
            least = cost;
            memcpy(assignment, trial, s->n_variables * sizeof *trial);
        }
        size_t v = 0;
        while (v < s->n_variables && ++trial[v] == s->variables[v].size) trial[v++] = 0;
        if (v == s->n_variables) return least;
    }
}
