/* The least time within a bound on bytes, by branch and bound. A price on each byte makes one sum of two, which
 * shard_search.c minimises; less the price of the bytes allowed, that minimum is a lower bound for all assignments that
 * fit (Lagrange's). The best price is where the line between a solution that is too large and one that fits cannot be
 * bettered:
 *
 *     time |  x too large (T1, M1)
 *          |      \
 *          |       \  slope: the price             the bound is where the line crosses M = bytes
 *          |        \
 *          |         x fits (T2, M2)
 *          +-----------|---------- bytes allowed
 *
 * If the bound there is less than the fastest assignment known, one variable on which the two differ is decided, one way
 * and then the other, and both parts are searched in turn. Where the fastest of all fits, that is one solution. */
#include "passes/shard_search.h"

#include <math.h>
#include <string.h>

typedef struct point {
    uint32_t *assignment;
    double time, bytes;
} point;

typedef struct bounded {
    const shard_search *s;
    dtm_arena *arena;
    double bytes;
    size_t limit, n;
    double *effort;
    bool **allowed; /* by variable, value */
    point best;     /* the fastest that fits; time INFINITY: none yet */
    point smallest; /* the one of fewest bytes */
    double open;    /* the least bound of a part left unsearched */
} bounded;

static point new_point(const bounded *b) {
    return (point){dtm_arena_alloc(b->arena, (b->n + 1) * sizeof(uint32_t)), INFINITY, INFINITY};
}

static void copy_point(const bounded *b, point *to, const point *from) {
    memcpy(to->assignment, from->assignment, b->n * sizeof *to->assignment);
    to->time = from->time;
    to->bytes = from->bytes;
}

/* The least of time * a + bytes * b; whatever comes out and fits is remembered. Returns a bound on it, INFINITY: nothing is
 * allowed. Where the effort did not suffice to find anything, the point's are INFINITY. */
static double solve(bounded *b, double time, double bytes, point *p) {
    shard_search_options options = {{time, bytes}, (const bool *const *)b->allowed, b->limit, b->effort};
    double bound;
    p->time = p->bytes = INFINITY;
    if (shard_search_solve(b->s, &options, p->assignment, &bound) == INFINITY) return bound;
    p->time = shard_search_total(b->s, SHARD_TIME, p->assignment);
    p->bytes = shard_search_total(b->s, SHARD_MEMORY, p->assignment);
    if (p->bytes <= b->bytes && p->time < b->best.time) copy_point(b, &b->best, p);
    if (p->bytes < b->smallest.bytes) copy_point(b, &b->smallest, p);
    return bound;
}

static bool is_hopeless(const bounded *b, double bound) { return bound >= b->best.time * (1 - 1e-9); }

/* The variable whose change from one solution to the other moves most bytes. */
static uint32_t most_at_stake(const bounded *b, const point *large, const point *fits) {
    uint32_t best = UINT32_MAX;
    double most = -1;
    for (uint32_t v = 0; v < b->n; v++) {
        if (large->assignment[v] == fits->assignment[v]) continue;
        uint32_t was = large->assignment[v];
        large->assignment[v] = fits->assignment[v];
        double moved = fabs(large->bytes - shard_search_total(b->s, SHARD_MEMORY, large->assignment));
        large->assignment[v] = was;
        if (moved > most) best = v, most = moved;
    }
    return best;
}

static void search_part(bounded *b, double price, double bound);

/* One variable decided, one way and then the other. */
static void branch(bounded *b, uint32_t v, uint32_t value, double price, double bound) {
    uint32_t size = shard_search_values(b->s, v);
    bool *before = b->allowed[v], *one = dtm_arena_alloc(b->arena, size), *rest = dtm_arena_alloc(b->arena, size);
    memcpy(rest, before, size);
    one[value] = true;
    rest[value] = false;
    b->allowed[v] = one;
    search_part(b, price, bound);
    b->allowed[v] = rest;
    search_part(b, price, bound);
    b->allowed[v] = before;
}

/* No more of this part: nothing in it is better than `bound`. */
static void leave(bounded *b, double bound) {
    if (bound < b->open) b->open = bound;
}

/* All assignments that `allowed` leaves; `price` and `bound` are those of the part it is cut from. The price often shows at
 * once that it is hopeless. */
static void search_part(bounded *b, double price, double bound) {
    point large = new_point(b), fits = new_point(b), p = new_point(b);
    if (is_hopeless(b, bound)) return;
    if (*b->effort < 0) {
        leave(b, bound);
        return;
    }
    if (price > 0) {
        double cost = solve(b, 1, price, &p) - price * b->bytes;
        if (cost > bound) bound = cost;
        if (bound == INFINITY || is_hopeless(b, bound)) return;
    }
    double fastest = solve(b, 1, 0, &large);
    if (fastest > bound) bound = fastest;
    if (bound == INFINITY || is_hopeless(b, bound)) return;
    if (large.bytes <= b->bytes) { /* the fastest of the part, if it is sure to be that */
        if (!is_hopeless(b, bound)) leave(b, bound);
        return;
    }
    double least = solve(b, 0, 1, &fits);
    if (least > b->bytes) return;
    if (large.time == INFINITY || fits.bytes > b->bytes) {
        leave(b, bound);
        return;
    }
    while (*b->effort >= 0) {
        price = (fits.time - large.time) / (large.bytes - fits.bytes);
        if (price <= 0) break;
        double cost = solve(b, 1, price, &p) - price * b->bytes;
        if (cost > bound) bound = cost;
        if (is_hopeless(b, bound)) return;
        if (p.time + price * p.bytes >= (large.time + price * large.bytes) * (1 - 1e-12)) break;
        copy_point(b, p.bytes <= b->bytes ? &fits : &large, &p);
    }
    uint32_t v = most_at_stake(b, &large, &fits);
    if (v != UINT32_MAX) branch(b, v, fits.assignment[v], price, bound);
    else leave(b, bound);
}

shard_outcome shard_search_within(const shard_search *s, double bytes, size_t limit, double *effort, uint32_t *assignment,
                                  double *gap) {
    bounded b = {.s = s, .arena = dtm_arena_create(), .bytes = bytes, .limit = limit, .n = shard_search_size(s), .effort = effort,
                 .open = INFINITY};
    b.allowed = dtm_arena_alloc(b.arena, (b.n + 1) * sizeof *b.allowed);
    for (uint32_t v = 0; v < b.n; v++) {
        b.allowed[v] = dtm_arena_alloc(b.arena, shard_search_values(s, v));
        memset(b.allowed[v], 1, shard_search_values(s, v));
    }
    b.best = new_point(&b);
    b.smallest = new_point(&b);
    search_part(&b, 0, -INFINITY);
    const point *p = b.best.time < INFINITY ? &b.best : &b.smallest;
    shard_outcome outcome = SHARD_LEAST;
    *gap = 0;
    if (b.best.time == INFINITY) outcome = b.open == INFINITY ? SHARD_TOO_LARGE : SHARD_GAVE_UP;
    else if (!is_hopeless(&b, b.open)) {
        outcome = SHARD_GOOD;
        *gap = b.best.time - b.open;
    }
    if (p->bytes < INFINITY) memcpy(assignment, p->assignment, b.n * sizeof *assignment);
    dtm_arena_destroy(b.arena);
    return outcome;
}
