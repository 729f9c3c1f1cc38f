/* The minimum of a sum of small tables over discrete variables, by eliminating one variable after the other: all tables
 * that mention it are added up and replaced by their minimum over it, a table over its neighbours; walking back gives the
 * values. Exact; what it costs is the size of the largest table, small where the graph is nearly a tree, as the graphs of
 * transformers' layers are. Before a table would grow, values that another value of the same variable beats whatever its
 * neighbours do are dropped (dead-end elimination). The least table is made first, of equal ones that of the first
 * variable, so the result depends on nothing but the input.
 *
 * Where tables would grow large all the same (several axes at once), costs are shifted between tables that share a variable,
 * which changes no sum, until what every table and variable costs at least adds up to a good lower bound. Against a
 * solution found greedily that bound shows which values cannot be part of a better one; if enough are left that tables
 * stay large, the problem is cut in parts by the values of one variable. */
#include "passes/shard_search.h"

#include <math.h>
#include <string.h>

enum {
    MAX_SCOPE = 24,
    SMALL = 64,          /* entries of a table that is made without looking for beaten values first */
    MAX_COMPARED = 1 << 15, /* entries of a table that is still searched for beaten values */
};

typedef struct table {
    uint32_t count, scope[MAX_SCOPE]; /* variables in rising order; the last counts fastest */
    double *costs;
    bool gone;
} table;

typedef struct given {
    table t;
    shard_measure measure;
} given;

struct shard_search {
    dtm_arena *arena;
    uint32_t *sizes; /* by variable */
    given *tables;
    size_t n_variables, cap_variables, n_tables, cap_tables;
};

shard_search *shard_search_create(dtm_arena *arena) {
    shard_search *s = dtm_arena_alloc(arena, sizeof *s);
    s->arena = arena;
    return s;
}

uint32_t shard_search_variable(shard_search *s, uint32_t size) {
    DTM_PUSH(s->arena, s->sizes, s->n_variables, s->cap_variables, size);
    return (uint32_t)(s->n_variables - 1);
}

size_t shard_search_size(const shard_search *s) { return s->n_variables; }
uint32_t shard_search_values(const shard_search *s, uint32_t variable) { return s->sizes[variable]; }

/* ---- what is given ---- */

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

void shard_search_add(shard_search *s, shard_measure measure, uint32_t count, const uint32_t *variables, const double *costs) {
    scope sc = {.count = 0};
    size_t size = 1;
    for (uint32_t i = 0; i < count; i++) scope_add(&sc, variables[i]);
    for (uint32_t i = 0; i < sc.count; i++) size *= s->sizes[sc.vars[i]];
    table t = {.count = sc.count};
    memcpy(t.scope, sc.vars, sizeof t.scope);
    t.costs = dtm_arena_alloc(s->arena, size * sizeof *costs);
    for (size_t index = 0; index < size; index++) {
        uint32_t values[MAX_SCOPE];
        size_t rest = index, at = 0;
        for (uint32_t i = sc.count; i-- > 0; rest /= s->sizes[sc.vars[i]]) values[i] = (uint32_t)(rest % s->sizes[sc.vars[i]]);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t k = 0;
            while (sc.vars[k] != variables[i]) k++;
            at = at * s->sizes[variables[i]] + values[k];
        }
        t.costs[index] = costs[at];
    }
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

/* ---- at work: variables lose values, tables are replaced ---- */

typedef struct variable {
    uint32_t size, *values; /* those left, by their numbers as given */
    uint32_t *tables;       /* those that mention it, gone ones too */
    size_t n_tables, cap_tables;
    bool gone, suspect;     /* suspect: something around it has changed since beaten values were looked for */
    double score;           /* entries of the table that eliminating it makes; < 0: not known */
} variable;

typedef struct elimination {
    uint32_t variable, count, scope[MAX_SCOPE];
    uint32_t sizes[MAX_SCOPE], *values[MAX_SCOPE], *own_values; /* the variables' as they were */
    uint16_t *best; /* by index into the table over the scope */
} elimination;

typedef struct work {
    dtm_arena *arena;
    variable *variables;
    table *tables;
    size_t n_variables, n_tables, cap_tables;
    elimination *done;
    size_t n_done;
    double constant; /* of tables over nothing */
} work;

static size_t size_of(const work *w, const table *t) {
    size_t size = 1;
    for (uint32_t i = 0; i < t->count; i++) size *= w->variables[t->scope[i]].size;
    return size;
}

/* By how much an index moves with each step of variable v of the table. */
static size_t stride_of(const work *w, const table *t, uint32_t v) {
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

/* Adds a table; into one over the same variables if there is one. */
static void add_table(work *w, const table *t) {
    if (!t->count) {
        w->constant += t->costs[0];
        return;
    }
    changed_around(w, t);
    const variable *first = &w->variables[t->scope[0]];
    for (size_t i = 0; i < first->n_tables; i++) {
        table *there = &w->tables[first->tables[i]];
        if (there->gone || there->count != t->count || memcmp(there->scope, t->scope, t->count * sizeof *t->scope)) continue;
        size_t size = size_of(w, t);
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
    size_t inner = stride_of(w, t, t->scope[position]), was = w->variables[t->scope[position]].size;
    size_t outer = size_of(w, t) / (inner * was);
    for (uint32_t i = 0; i < t->count; i++)
        if (i != position || n > 1) made.scope[made.count++] = t->scope[i];
    made.costs = dtm_arena_alloc(w->arena, outer * n * inner * sizeof *made.costs);
    for (size_t o = 0; o < outer; o++)
        for (uint32_t k = 0; k < n; k++)
            memcpy(made.costs + (o * n + k) * inner, t->costs + (o * was + kept[k]) * inner, inner * sizeof *made.costs);
    return made;
}

/* Leaves a variable the values `kept`; where that is one, the variable is settled. */
static void keep_values(work *w, uint32_t v, const uint32_t *kept, uint32_t n) {
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
        if (n == 1) add_table(w, &made[i]);
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
    size_t inner = stride_of(w, t, v), size = w->variables[v].size, outer = size_of(w, t) / (inner * size);
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
        if (!w->tables[var->tables[i]].gone && size_of(w, &w->tables[var->tables[i]]) > MAX_COMPARED) return false;
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
    keep_values(w, v, kept, n);
    var->suspect = false;
    return true;
}

static bool drop_all_beaten(work *w) {
    bool any = false;
    for (bool again = true; again;) {
        again = false;
        for (uint32_t v = 0; v < w->n_variables; v++)
            if (!w->variables[v].gone && w->variables[v].suspect) again |= drop_beaten(w, v);
        any |= again;
    }
    return any;
}

/* ---- elimination ---- */

static scope neighbours(const work *w, uint32_t v) {
    scope sc = {.count = 0};
    const variable *var = &w->variables[v];
    for (size_t i = 0; i < var->n_tables; i++) {
        const table *t = &w->tables[var->tables[i]];
        for (uint32_t j = 0; !t->gone && j < t->count; j++)
            if (t->scope[j] != v) scope_add(&sc, t->scope[j]);
    }
    return sc;
}

static double score_of(work *w, uint32_t v) {
    if (w->variables[v].score >= 0) return w->variables[v].score;
    scope sc = neighbours(w, v);
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
    size_t n = 0, size = size_of(w, made);
    for (size_t i = 0; i < var->n_tables; i++) {
        const table *t = &w->tables[var->tables[i]];
        if (t->gone) continue;
        walkers[n] = (walker){.at = t->costs, .own = stride_of(w, t, v)};
        for (uint32_t k = 0; k < made->count; k++)
            for (uint32_t j = 0; j < t->count; j++)
                if (t->scope[j] == made->scope[k]) walkers[n].stride[k] = stride_of(w, t, made->scope[k]);
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

static void eliminate(work *w, uint32_t v) {
    scope sc = neighbours(w, v);
    elimination e = {.variable = v, .count = sc.count, .own_values = w->variables[v].values};
    table t = {.count = sc.count};
    memcpy(t.scope, sc.vars, sizeof t.scope);
    memcpy(e.scope, sc.vars, sizeof e.scope);
    for (uint32_t i = 0; i < sc.count; i++) {
        e.sizes[i] = w->variables[sc.vars[i]].size;
        e.values[i] = w->variables[sc.vars[i]].values;
    }
    t.costs = dtm_arena_alloc(w->arena, size_of(w, &t) * sizeof *t.costs);
    e.best = dtm_arena_alloc(w->arena, size_of(w, &t) * sizeof *e.best);
    minimise(w, v, &t, e.best);
    for (size_t i = 0; i < w->variables[v].n_tables; i++) w->tables[w->variables[v].tables[i]].gone = true;
    w->variables[v].gone = true;
    w->done[w->n_done++] = e;
    changed_around(w, &t);
    add_table(w, &t);
}

/* Of the variables left, the one whose elimination makes the least table; UINT32_MAX: none is left. */
static uint32_t cheapest(work *w, double *size) {
    uint32_t best = UINT32_MAX;
    for (uint32_t v = 0; v < w->n_variables; v++) {
        if (w->variables[v].gone || (best != UINT32_MAX && score_of(w, v) >= *size)) continue;
        best = v;
        *size = score_of(w, v);
    }
    return best;
}

/* ---- bounds ---- */

static table *own_table(work *w, uint32_t v) {
    for (int round = 0; round < 2; round++) {
        const variable *var = &w->variables[v];
        for (size_t i = 0; i < var->n_tables; i++)
            if (!w->tables[var->tables[i]].gone && w->tables[var->tables[i]].count == 1) return &w->tables[var->tables[i]];
        table t = {.count = 1, .scope = {v}, .costs = dtm_arena_alloc(w->arena, var->size * sizeof *t.costs)};
        add_table(w, &t);
    }
    return NULL;
}

/* Adds to every entry of a table what `shift` says of its value of v. */
static void shift_table(const work *w, table *t, uint32_t v, const double *shift, double times) {
    size_t inner = stride_of(w, t, v), size = w->variables[v].size, outer = size_of(w, t) / (inner * size);
    for (size_t o = 0; o < outer; o++)
        for (size_t k = 0; k < size; k++)
            for (size_t i = 0; shift[k] != INFINITY && i < inner; i++) t->costs[(o * size + k) * inner + i] += shift[k] * times;
}

static void least_by_value(const work *w, const table *t, uint32_t v, double *least) {
    size_t inner = stride_of(w, t, v), size = w->variables[v].size, outer = size_of(w, t) / (inner * size);
    for (size_t k = 0; k < size; k++) least[k] = INFINITY;
    for (size_t o = 0; o < outer; o++)
        for (size_t k = 0; k < size; k++)
            for (size_t i = 0; i < inner; i++) {
                double cost = t->costs[(o * size + k) * inner + i];
                if (cost < least[k]) least[k] = cost;
            }
}

/* Moves to v alone what its values cost at least in each table, and the least of that to the constant. */
static double *gather(work *w, uint32_t v, double *least) {
    double *own = own_table(w, v)->costs, lowest = INFINITY;
    const variable *var = &w->variables[v];
    for (size_t i = 0; i < var->n_tables; i++) {
        table *t = &w->tables[var->tables[i]];
        if (t->gone || t->count == 1) continue;
        least_by_value(w, t, v, least);
        shift_table(w, t, v, least, -1);
        for (uint32_t k = 0; k < var->size; k++) own[k] += least[k];
    }
    for (uint32_t k = 0; k < var->size; k++)
        if (own[k] < lowest) lowest = own[k];
    for (uint32_t k = 0; lowest != INFINITY && k < var->size; k++) own[k] -= lowest;
    w->constant += lowest;
    return own;
}

/* Gives what v costs back to those of its tables that have a variable still to come, in equal shares. */
static void spread(work *w, uint32_t v, double *own, int direction) {
    const variable *var = &w->variables[v];
    uint32_t later = 0, earlier = 0;
    for (int give = 0; give < 2; give++) {
        double share = 1.0 / (later > earlier ? later : earlier ? earlier : 1);
        for (size_t i = 0; i < var->n_tables; i++) {
            table *t = &w->tables[var->tables[i]];
            if (t->gone || t->count == 1) continue;
            bool last = t->scope[t->count - 1] == v, first = t->scope[0] == v;
            bool to_come = direction > 0 ? !last : !first;
            if (!give) later += to_come, earlier += direction > 0 ? !first : !last;
            else if (to_come) shift_table(w, t, v, own, share);
        }
        if (give)
            for (uint32_t k = 0; k < var->size; k++)
                if (own[k] != INFINITY) own[k] *= 1 - share * later < 0 ? 0 : 1 - share * later;
    }
}

enum { SWEEPS = 40 };

static void raise_bound(work *w) {
    uint32_t largest = 1;
    for (uint32_t v = 0; v < w->n_variables; v++)
        if (!w->variables[v].gone && w->variables[v].size > largest) largest = w->variables[v].size;
    double *least = dtm_arena_alloc(w->arena, largest * sizeof *least);
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        int direction = sweep % 2 ? -1 : 1;
        for (uint32_t i = 0; i < w->n_variables; i++) {
            uint32_t v = direction > 0 ? i : (uint32_t)w->n_variables - 1 - i;
            if (w->variables[v].gone) continue;
            double *own = gather(w, v, least);
            spread(w, v, own, direction);
        }
    }
}

/* Drops values that no solution better than `upper` has; false: there were none. */
static bool drop_hopeless(work *w, double upper) {
    bool any = false;
    for (uint32_t v = 0; v < w->n_variables && w->constant < upper; v++) {
        if (w->variables[v].gone) continue;
        uint32_t size = w->variables[v].size, n = 0, *kept = dtm_arena_alloc(w->arena, size * sizeof *kept);
        double *least = dtm_arena_alloc(w->arena, size * sizeof *least), *own = gather(w, v, least);
        for (uint32_t k = 0; k < size; k++)
            if (w->constant + own[k] < upper) kept[n++] = k;
        if (n && n < size) {
            keep_values(w, v, kept, n);
            any = true;
        }
        if (!w->variables[v].gone) spread(w, v, own_table(w, v)->costs, 1);
        if (!n) w->constant = INFINITY;
    }
    return any;
}

static void walk_back(const work *w, uint32_t *assignment) {
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

static void start_variable(work *w, uint32_t v, uint32_t size) {
    variable *var = &w->variables[v];
    *var = (variable){.size = size, .suspect = true, .score = -1};
    var->values = dtm_arena_alloc(w->arena, size * sizeof *var->values);
    for (uint32_t k = 0; k < size; k++) var->values[k] = k;
}

static work new_work(size_t n_variables) {
    work w = {.arena = dtm_arena_create(), .n_variables = n_variables};
    w.variables = dtm_arena_alloc(w.arena, (n_variables + 1) * sizeof *w.variables);
    w.done = dtm_arena_alloc(w.arena, (n_variables + 1) * sizeof *w.done);
    return w;
}

static work begin(const shard_search *s, const shard_search_options *options) {
    work w = new_work(s->n_variables);
    for (uint32_t v = 0; v < s->n_variables; v++) start_variable(&w, v, s->sizes[v]);
    for (size_t i = 0; i < s->n_tables; i++) {
        double weight = options->weights[s->tables[i].measure];
        table t = s->tables[i].t;
        size_t size = size_of(&w, &t);
        bool forbids = false;
        for (size_t k = 0; k < size; k++) forbids |= t.costs[k] == INFINITY;
        if (weight == 0 && !forbids) continue;
        t.costs = dtm_arena_alloc(w.arena, size * sizeof *t.costs);
        for (size_t k = 0; k < size; k++) {
            double cost = s->tables[i].t.costs[k];
            t.costs[k] = cost == INFINITY ? cost : cost * weight;
        }
        add_table(&w, &t);
    }
    for (uint32_t v = 0; options->allowed && v < s->n_variables; v++) {
        uint32_t n = 0, *kept = dtm_arena_alloc(w.arena, s->sizes[v] * sizeof *kept);
        for (uint32_t k = 0; k < s->sizes[v]; k++)
            if (options->allowed[v][k]) kept[n++] = k;
        if (n && n < s->sizes[v]) keep_values(&w, v, kept, n);
    }
    return w;
}

/* ---- in parts ---- */

/* What is left of a problem, as one of its own: the variables that are not gone, in order (*of: which those were). */
static work rest_of(const work *w, uint32_t **of) {
    uint32_t n = 0, *number = dtm_arena_alloc(w->arena, w->n_variables * sizeof *number);
    *of = dtm_arena_alloc(w->arena, w->n_variables * sizeof **of);
    for (uint32_t v = 0; v < w->n_variables; v++)
        if (!w->variables[v].gone) (*of)[n] = v, number[v] = n++;
    work rest = new_work(n);
    rest.constant = w->constant;
    for (uint32_t v = 0; v < n; v++) start_variable(&rest, v, w->variables[(*of)[v]].size);
    for (size_t i = 0; i < w->n_tables; i++) {
        if (w->tables[i].gone) continue;
        table t = {.count = w->tables[i].count};
        for (uint32_t k = 0; k < t.count; k++) t.scope[k] = number[w->tables[i].scope[k]];
        size_t size = size_of(&rest, &t);
        t.costs = dtm_arena_alloc(rest.arena, size * sizeof *t.costs);
        memcpy(t.costs, w->tables[i].costs, size * sizeof *t.costs);
        add_table(&rest, &t);
    }
    return rest;
}

/* Solving: how large tables may be and how much work is left, in parts that had to be looked at. */
typedef struct solver {
    size_t limit;
    int parts;
    bool exact;
} solver;

enum { LARGE = 1 << 12 }; /* entries of a table that is made only after looking for hopeless values */

/* The variable in most tables of others: what makes the rest of the problem fall apart. */
static uint32_t most_tied(work *w) {
    uint32_t best = UINT32_MAX, most = 0;
    for (uint32_t v = 0; v < w->n_variables; v++) {
        if (w->variables[v].gone) continue;
        uint32_t count = neighbours(w, v).count;
        if (best == UINT32_MAX || count > most) best = v, most = count;
    }
    return best;
}

static double solve_rest(solver *all, work *w, double upper, bool greedy, uint32_t *assignment);

/* Part of what is left: v at one value, solved on its own. The assignment is of w's variables that are left. */
static double solve_part(solver *all, const work *w, uint32_t v, uint32_t value, double upper, bool greedy,
                         uint32_t *assignment) {
    uint32_t *of;
    work part = rest_of(w, &of);
    uint32_t *found = dtm_arena_alloc(part.arena, (part.n_variables + 1) * sizeof *found);
    for (uint32_t i = 0; i < part.n_variables; i++)
        if (of[i] == v) keep_values(&part, i, &value, 1);
    double cost = solve_rest(all, &part, upper, greedy, found);
    for (uint32_t i = 0; cost < upper && i < part.n_variables; i++) assignment[of[i]] = w->variables[of[i]].values[found[i]];
    dtm_arena_destroy(part.arena);
    return cost;
}

/* The values of v from the least bound up. */
static uint32_t *by_bound(work *w, uint32_t v) {
    uint32_t size = w->variables[v].size, *order = dtm_arena_alloc(w->arena, size * sizeof *order);
    double *least = dtm_arena_alloc(w->arena, size * sizeof *least), *own = gather(w, v, least);
    for (uint32_t k = 0; k < size; k++) {
        uint32_t at = k;
        for (; at && own[order[at - 1]] > own[k]; at--) order[at] = order[at - 1];
        order[at] = k;
    }
    return order;
}

/* Solves what is left by solving its parts: values of one variable one after the other; greedily only the first. */
static double solve_parts(solver *all, work *w, double upper, bool greedy, uint32_t *assignment) {
    uint32_t v = most_tied(w), *order = by_bound(w, v);
    double least = upper;
    for (uint32_t k = 0; k < w->variables[v].size; k++) {
        if (all->parts-- <= 0) {
            all->exact &= greedy;
            break;
        }
        double cost = solve_part(all, w, v, order[k], least, greedy, assignment);
        if (cost < least) least = cost;
        if (greedy && cost < INFINITY) break;
    }
    return least < upper ? least : INFINITY;
}

/* A solution found on the way: the assignment of what was left then, and how much had been eliminated. */
typedef struct solution {
    double cost; /* INFINITY: none */
    uint32_t *assignment;
    size_t n_done;
} solution;

static double take_solution(work *w, const solution *known, uint32_t *assignment) {
    if (known->cost == INFINITY) return INFINITY;
    memcpy(assignment, known->assignment, w->n_variables * sizeof *assignment);
    w->n_done = known->n_done;
    walk_back(w, assignment);
    return known->cost;
}

static void find_greedily(solver *all, work *w, double upper, solution *known) {
    known->assignment = dtm_arena_alloc(w->arena, w->n_variables * sizeof *known->assignment);
    known->n_done = w->n_done;
    known->cost = solve_parts(all, w, upper, true, known->assignment);
}

/* A little less than `cost`: what must be bettered to count. */
static double better_than(double cost) { return cost == INFINITY ? cost : cost - 1e-10 * fabs(cost); }

/* The least cost, if it is less than `upper`, and its assignment; else INFINITY. Greedily: some cost. */
static double solve_rest(solver *all, work *w, double upper, bool greedy, uint32_t *assignment) {
    double size = 0, target = better_than(upper);
    size_t large = all->limit < LARGE ? all->limit : LARGE;
    bool searched = false, bounded = greedy;
    solution known = {.cost = INFINITY};
    for (uint32_t v; w->constant < target && (v = cheapest(w, &size)) != UINT32_MAX;) {
        if (size > SMALL && !searched) {
            drop_all_beaten(w);
            searched = true;
            continue;
        }
        if (size > (double)large && !bounded) {
            raise_bound(w);
            if (!known.assignment) find_greedily(all, w, upper, &known);
            if (known.cost < upper) target = better_than(known.cost);
            bounded = !drop_hopeless(w, target);
            searched = bounded;
            continue;
        }
        searched = false;
        if (size > (double)(greedy ? large : all->limit)) {
            double cost = solve_parts(all, w, target, greedy, assignment);
            if (cost == INFINITY) break;
            walk_back(w, assignment);
            return cost;
        }
        eliminate(w, v);
    }
    if (w->constant < target && cheapest(w, &size) == UINT32_MAX) {
        walk_back(w, assignment);
        return w->constant;
    }
    return take_solution(w, &known, assignment);
}

double shard_search_solve(const shard_search *s, const shard_search_options *options, uint32_t *assignment, bool *exact) {
    work w = begin(s, options);
    solver all = {options->limit, options->parts, true};
    double total = solve_rest(&all, &w, INFINITY, false, assignment);
    *exact = all.exact;
    dtm_arena_destroy(w.arena);
    return total;
}

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
