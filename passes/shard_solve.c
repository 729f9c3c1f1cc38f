/* The minimum of a sum of small tables over discrete variables, by eliminating one variable after the other: all tables
 * that mention it are added up and replaced by their minimum over it, a table over its neighbours; walking back gives the
 * values. Exact; what it costs is the size of the largest table, small where the graph is nearly a tree, as the graphs of
 * transformers' layers are on one axis. The least table is made first, of equal ones that of the first variable, so the
 * result depends on nothing but the input. Values that another value of the same variable beats whatever its neighbours do
 * are dropped (dead-end elimination).
 *
 * Where tables would grow large (several axes at once), it is branch and bound. A first solution is found one group of
 * variables after the other, then improved two groups at a time, each time exactly. A lower bound (shard_relax.c) then shows
 * which values cannot be part of a better one; if enough are left that tables would still be large, the problem is cut in
 * parts by the values of one variable, and each part is either shown to hold nothing better or solved in the same way. */
#include "passes/shard_form.h"

#include <math.h>
#include <string.h>

/* ---- parts ---- */

typedef struct solver {
    size_t limit; /* entries of a table */
    double open;  /* the least bound of a part that was not looked at any more */
} solver;

enum {
    SMALL = 1 << 6,  /* entries of a table that is made without looking for beaten values first, */
    LARGE = 1 << 12, /* without raising the bound first, */
    WHOLE = 1 << 23, /* and looked at in all, by eliminating everything, rather than to raise bounds and branch */
};

/* A little less than `cost`: what must be bettered to count. */
static double better_than(double cost) { return cost == INFINITY ? cost : cost - 1e-10 * fabs(cost); }

/* How far the parts that v's values make are above the bound already, on average, where `target` is as good as anywhere. */
static double promise(const work *w, uint32_t v, double target) {
    const variable *var = &w->variables[v];
    double sum = 0;
    for (uint32_t k = 0; k < var->size; k++) {
        double floor = var->floors ? var->floors[k] : w->bound;
        sum += (floor < target ? floor : target) - w->bound;
    }
    return sum / var->size;
}

/* The variable whose values differ most in what they cost at least; of equal ones, that in most tables of others, which makes
 * the rest of the problem fall apart. */
static uint32_t most_tied(work *w, double target) {
    uint32_t best = UINT32_MAX, most = 0;
    double highest = 0;
    for (uint32_t v = 0; v < w->n_variables; v++) {
        if (w->variables[v].gone) continue;
        uint32_t count = shard_work_neighbours(w, v);
        double promised = target < INFINITY ? promise(w, v, target) : 0;
        if (best == UINT32_MAX || promised > highest || (promised == highest && count > most))
            best = v, most = count, highest = promised;
    }
    return best;
}

static double solve_rest(solver *all, work *w, double upper, uint32_t *assignment);

/* Part of what is left: v at one value, solved on its own. The assignment is of w's variables that are left. */
static double solve_part(solver *all, const work *w, uint32_t v, uint32_t value, double upper, uint32_t *assignment) {
    uint32_t *of;
    work part = shard_work_rest(w, &of);
    uint32_t *found = dtm_arena_alloc(part.arena, (part.n_variables + 1) * sizeof *found);
    for (uint32_t i = 0; i < part.n_variables; i++)
        if (of[i] == v) shard_work_keep(&part, i, &value, 1);
    double cost = solve_rest(all, &part, upper, found);
    for (uint32_t i = 0; cost < upper && i < part.n_variables; i++) assignment[of[i]] = w->variables[of[i]].values[found[i]];
    dtm_arena_destroy(part.arena);
    return cost;
}

/* The values of v from the least floor up. */
static uint32_t *by_floor(work *w, uint32_t v) {
    const variable *var = &w->variables[v];
    uint32_t *order = dtm_arena_alloc(w->arena, var->size * sizeof *order);
    for (uint32_t k = 0; k < var->size; k++) {
        uint32_t at = k;
        for (; at && var->floors && var->floors[order[at - 1]] > var->floors[k]; at--) order[at] = order[at - 1];
        order[at] = k;
    }
    return order;
}

/* Solves what is left by solving its parts: values of one variable one after the other. */
static double solve_parts(solver *all, work *w, double upper, uint32_t *assignment) {
    double least = upper;
    uint32_t v = most_tied(w, better_than(upper)), *order = by_floor(w, v);
    for (uint32_t k = 0; k < w->variables[v].size; k++) {
        double floor = w->variables[v].floors ? w->variables[v].floors[order[k]] : w->bound;
        if (floor >= better_than(least)) break;
        if (*w->effort < 0) {
            if (floor < all->open) all->open = floor;
            break;
        }
        double cost = solve_part(all, w, v, order[k], least, assignment);
        if (cost < least) least = cost;
    }
    return least < upper ? least : INFINITY;
}

/* ---- what is left ---- */

static size_t values_left(const work *w) {
    size_t n = 0;
    for (uint32_t v = 0; v < w->n_variables; v++) n += w->variables[v].gone ? 0 : w->variables[v].size;
    return n;
}

static bool is_done(work *w) {
    double size;
    return shard_work_cheapest(w, &size) == UINT32_MAX;
}

/* Eliminates what makes tables of at most `most` entries. */
static void eliminate(work *w, double most, double target) {
    double size;
    for (uint32_t v; w->constant < target && (v = shard_work_cheapest(w, &size)) != UINT32_MAX && size <= most;)
        shard_work_eliminate(w, v);
}

/* What is easy to be rid of: variables of few neighbours, values that others beat. */
static void clear(work *w, double target) {
    for (size_t before = w->n_done + 1; before != w->n_done && w->constant < target;) {
        before = w->n_done;
        eliminate(w, SMALL, target);
        if (w->constant < target) shard_work_drop_beaten(w);
    }
}

/* The least cost, if it is less than `upper`, and its assignment; else INFINITY. */
static double solve_rest(solver *all, work *w, double upper, uint32_t *assignment) {
    double target = better_than(upper);
    for (bool again = true; again && w->constant < target && w->bound < target;) {
        clear(w, target);
        if (w->constant >= target) break;
        eliminate(w, shard_work_forecast(w, (double)all->limit) <= WHOLE ? INFINITY : LARGE, target);
        if (w->constant >= target || is_done(w)) break;
        size_t before = values_left(w);
        shard_work_relax(w, target);
        again = (double)values_left(w) < 0.9 * (double)before;
    }
    if (w->constant >= target || w->bound >= target) return INFINITY;
    double cost = is_done(w) ? w->constant : solve_parts(all, w, upper, assignment);
    if (cost < INFINITY) shard_work_walk_back(w, assignment);
    return cost;
}

/* ---- groups ---- */

static double solve(const shard_search *s, const shard_search_options *options, double upper, uint32_t *assignment,
                    double *bound);

/* The least with the variables of `groups` free, those of `ignored` groups left out of account, the others as they are, if it
 * is less than `cost`; the assignment then takes it. */
static double improve(const shard_search *s, const shard_search_options *options, uint32_t groups, uint32_t ignored,
                      double cost, uint32_t *assignment) {
    dtm_arena *arena = dtm_arena_create();
    uint32_t *state = dtm_arena_alloc(arena, (s->n_variables + 1) * sizeof *state);
    uint32_t *found = dtm_arena_alloc(arena, (s->n_variables + 1) * sizeof *found);
    for (size_t v = 0; v < s->n_variables; v++)
        state[v] = groups >> s->groups[v] & 1 ? FREE : ignored >> s->groups[v] & 1 ? IGNORED : assignment[v];
    double bound, effort = *options->effort / 16;
    shard_search_options some = {{options->weights[0], options->weights[1]}, NULL, options->limit, &effort, cost};
    double least = solve(shard_search_part(s, options->allowed, state, arena), &some, cost, found, &bound);
    for (size_t v = 0; least < cost && v < s->n_variables; v++)
        if (state[v] == FREE) assignment[v] = found[v];
    *options->effort -= *options->effort / 16 - effort;
    dtm_arena_destroy(arena);
    return least < cost ? least : cost;
}

enum { MAX_SETTLED = 256 };

/* Groups that nothing is to be gained with, the others being as they are: they were solved since anything changed. */
typedef struct settled {
    uint32_t count, sets[MAX_SETTLED];
} settled;

static bool is_settled(const settled *known, uint32_t groups) {
    for (uint32_t i = 0; i < known->count; i++)
        if ((groups & known->sets[i]) == groups) return true;
    return false;
}

/* As improve, with all other groups as they are. */
static double improve_again(const shard_search *s, const shard_search_options *options, uint32_t groups, settled *known,
                            double cost, uint32_t *assignment) {
    if (is_settled(known, groups)) return cost;
    double better = improve(s, options, groups, 0, cost, assignment);
    if (better < cost) known->count = 0;
    if (known->count < MAX_SETTLED) known->sets[known->count++] = groups;
    return better;
}

/* One group after the other, the later ones left out of account; then each again, and two at a time, until nothing gets
 * better. */
static double find_first(const shard_search *s, const shard_search_options *options, uint32_t groups, uint32_t *assignment) {
    double cost = INFINITY;
    uint32_t later = groups;
    settled known = {.count = 0};
    for (int a = 0; a < 32; a++) {
        if (!(groups >> a & 1)) continue;
        later &= ~(1u << a);
        cost = improve(s, options, 1u << a, later, INFINITY, assignment);
        if (cost == INFINITY) return cost;
        known = (settled){1, {1u << a}};
    }
    for (int together = 1; together <= 2;) {
        double before = cost;
        for (int a = 0; a < 32; a++)
            for (int b = together == 1 ? a : 0; b < (together == 1 ? a + 1 : a); b++) {
                uint32_t some = 1u << a | 1u << b;
                if ((some & groups) == some && some != groups) cost = improve_again(s, options, some, &known, cost, assignment);
            }
        together = cost < better_than(before) ? 1 : together + 1;
    }
    return cost;
}

/* The least cost, if it is less than `upper`, and its assignment; else INFINITY. */
static double solve(const shard_search *s, const shard_search_options *options, double upper, uint32_t *assignment,
                    double *bound) {
    uint32_t groups = 0;
    for (size_t v = 0; v < s->n_variables; v++)
        if (s->sizes[v] > 1) groups |= 1u << s->groups[v];
    form f = shard_form_of(s);
    uint32_t *found = dtm_arena_alloc(f.arena, (s->n_variables + f.n + 1) * sizeof *found);
    double cost = INFINITY;
    if (upper == INFINITY && groups & (groups - 1)) cost = find_first(s, options, groups, found);
    if (cost < upper) memcpy(assignment, found, s->n_variables * sizeof *found);
    else cost = upper;
    work w = shard_form_begin(&f, options);
    solver all = {options->limit, INFINITY};
    double less = solve_rest(&all, &w, cost, found);
    if (less < cost) {
        shard_form_assign(&f, found, assignment);
        cost = less;
    }
    *bound = all.open < cost ? all.open : cost;
    dtm_arena_destroy(w.arena);
    dtm_arena_destroy(f.arena);
    return cost < upper ? cost : INFINITY;
}

double shard_search_solve(const shard_search *s, const shard_search_options *options, uint32_t *assignment, double *bound) {
    return solve(s, options, options->upper, assignment, bound);
}

bool shard_search_narrow(const shard_search *s, const shard_search_options *options, double target, bool **allowed) {
    form f = shard_form_of(s);
    work w = shard_form_begin(&f, options);
    shard_work_relax(&w, target);
    bool any = w.bound < target;
    for (uint32_t v = 0; any && v < s->n_variables; v++) {
        const variable *var = &w.variables[f.of[v]];
        bool *left = dtm_arena_alloc(f.arena, s->sizes[v]);
        for (uint32_t k = 0; k < var->size; k++) left[var->values[k] / f.stride[v] % s->sizes[v]] = true;
        for (uint32_t k = 0; k < s->sizes[v]; k++) allowed[v][k] &= left[k];
    }
    dtm_arena_destroy(w.arena);
    dtm_arena_destroy(f.arena);
    return any;
}
