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
#include "passes/shard_work.h"

#include <math.h>
#include <string.h>

enum { SMALL = 64 }; /* entries of a table that is made without looking for beaten values first */

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

void shard_search_add(shard_search *s, shard_measure measure, uint32_t count, const uint32_t *variables, const double *costs) {
    scope sc = {.count = 0};
    size_t size = 1;
    for (uint32_t i = 0; i < count; i++) shard_scope_add(&sc, variables[i]);
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

static work begin(const shard_search *s, const shard_search_options *options) {
    work w = shard_work_new(s->n_variables);
    for (uint32_t v = 0; v < s->n_variables; v++) shard_work_variable(&w, v, s->sizes[v]);
    for (size_t i = 0; i < s->n_tables; i++) {
        double weight = options->weights[s->tables[i].measure];
        table t = s->tables[i].t;
        size_t size = shard_work_size(&w, &t);
        bool forbids = false;
        for (size_t k = 0; k < size; k++) forbids |= t.costs[k] == INFINITY;
        if (weight == 0 && !forbids) continue;
        t.costs = dtm_arena_alloc(w.arena, size * sizeof *t.costs);
        for (size_t k = 0; k < size; k++) {
            double cost = s->tables[i].t.costs[k];
            t.costs[k] = cost == INFINITY ? cost : cost * weight;
        }
        shard_work_add(&w, &t);
    }
    for (uint32_t v = 0; options->allowed && v < s->n_variables; v++) {
        uint32_t n = 0, *kept = dtm_arena_alloc(w.arena, s->sizes[v] * sizeof *kept);
        for (uint32_t k = 0; k < s->sizes[v]; k++)
            if (options->allowed[v][k]) kept[n++] = k;
        if (n && n < s->sizes[v]) shard_work_keep(&w, v, kept, n);
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
    work rest = shard_work_new(n);
    rest.constant = w->constant;
    for (uint32_t v = 0; v < n; v++) shard_work_variable(&rest, v, w->variables[(*of)[v]].size);
    for (size_t i = 0; i < w->n_tables; i++) {
        if (w->tables[i].gone) continue;
        table t = {.count = w->tables[i].count};
        for (uint32_t k = 0; k < t.count; k++) t.scope[k] = number[w->tables[i].scope[k]];
        size_t size = shard_work_size(&rest, &t);
        t.costs = dtm_arena_alloc(rest.arena, size * sizeof *t.costs);
        memcpy(t.costs, w->tables[i].costs, size * sizeof *t.costs);
        shard_work_add(&rest, &t);
    }
    return rest;
}

/* Solving: how large tables may be and how much work is left, in parts that had to be looked at. */
typedef struct solver {
    size_t limit;
    int parts, guesses; /* still to be solved: parts, and such that only look for some solution */
    bool exact;
} solver;

enum { MAX_GUESSES = 256 };
enum { LARGE = 1 << 12 }; /* entries of a table that is made only after looking for hopeless values */

/* The variable in most tables of others: what makes the rest of the problem fall apart. */
static uint32_t most_tied(work *w) {
    uint32_t best = UINT32_MAX, most = 0;
    for (uint32_t v = 0; v < w->n_variables; v++) {
        if (w->variables[v].gone) continue;
        uint32_t count = shard_work_neighbours(w, v).count;
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
        if (of[i] == v) shard_work_keep(&part, i, &value, 1);
    double cost = solve_rest(all, &part, upper, greedy, found);
    for (uint32_t i = 0; cost < upper && i < part.n_variables; i++) assignment[of[i]] = w->variables[of[i]].values[found[i]];
    dtm_arena_destroy(part.arena);
    return cost;
}

/* The values of v from the least bound up. */
static uint32_t *by_bound(work *w, uint32_t v) {
    uint32_t size = w->variables[v].size, *order = dtm_arena_alloc(w->arena, size * sizeof *order);
    double *own = shard_work_gather(w, v);
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
        if ((greedy ? all->guesses-- : all->parts--) <= 0) {
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
    shard_work_walk_back(w, assignment);
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
    for (uint32_t v; w->constant < target && (v = shard_work_cheapest(w, &size)) != UINT32_MAX;) {
        if (size > SMALL && !searched) {
            shard_work_drop_beaten(w);
            searched = true;
            continue;
        }
        if (size > (double)large && !bounded) {
            shard_work_raise_bound(w);
            if (!known.assignment) find_greedily(all, w, upper, &known);
            if (known.cost < upper) target = better_than(known.cost);
            bounded = !shard_work_drop_hopeless(w, target);
            searched = bounded;
            continue;
        }
        searched = false;
        if (size > (double)(greedy ? large : all->limit)) {
            double cost = solve_parts(all, w, target, greedy, assignment);
            if (cost == INFINITY) break;
            shard_work_walk_back(w, assignment);
            return cost;
        }
        shard_work_eliminate(w, v);
    }
    if (w->constant < target && shard_work_cheapest(w, &size) == UINT32_MAX) {
        shard_work_walk_back(w, assignment);
        return w->constant;
    }
    return take_solution(w, &known, assignment);
}

double shard_search_solve(const shard_search *s, const shard_search_options *options, uint32_t *assignment, bool *exact) {
    work w = begin(s, options);
    solver all = {options->limit, options->parts, MAX_GUESSES, true};
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
