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

/* What a better solution takes less than. */
static double limit_of(const bounded *b) { return b->best.time * (1 - 1e-9); }

static bool is_hopeless(const bounded *b, double bound) { return bound >= limit_of(b); }

static point new_point(const bounded *b) {
    return (point){dtm_arena_alloc(b->arena, (b->n + 1) * sizeof(uint32_t)), INFINITY, INFINITY};
}

static void copy_point(const bounded *b, point *to, const point *from) {
    memcpy(to->assignment, from->assignment, b->n * sizeof *to->assignment);
    to->time = from->time;
    to->bytes = from->bytes;
}

/* The least of time * a + bytes * b, where it is good enough to lead to a better solution; whatever comes out and fits is
 * remembered. Returns a bound on it, INFINITY: nothing is allowed. Where nothing was found, the point's are INFINITY. */
static double solve(bounded *b, double time, double bytes, point *p) {
    shard_search_options options = {{time, bytes}, (const bool *const *)b->allowed, b->limit, b->effort,
                                    time > 0 && b->best.time < INFINITY ? time * limit_of(b) + bytes * b->bytes : INFINITY};
    double bound;
    p->time = p->bytes = INFINITY;
    if (shard_search_solve(b->s, &options, p->assignment, &bound) == INFINITY) return bound;
    p->time = shard_search_total(b->s, SHARD_TIME, p->assignment);
    p->bytes = shard_search_total(b->s, SHARD_MEMORY, p->assignment);
    if (p->bytes <= b->bytes && p->time < b->best.time) copy_point(b, &b->best, p);
    if (p->bytes < b->smallest.bytes) copy_point(b, &b->smallest, p);
    return bound;
}

static bool **copy_allowed(const bounded *b) {
    bool **made = dtm_arena_alloc(b->arena, (b->n + 1) * sizeof *made);
    for (uint32_t v = 0; v < b->n; v++) {
        made[v] = dtm_arena_alloc(b->arena, shard_search_values(b->s, v));
        memcpy(made[v], b->allowed[v], shard_search_values(b->s, v));
    }
    return made;
}


/* Bytes of a solution with another value of one variable. */
static double bytes_with(const bounded *b, const point *p, uint32_t v, uint32_t value) {
    uint32_t was = p->assignment[v];
    p->assignment[v] = value;
    double bytes = shard_search_total(b->s, SHARD_MEMORY, p->assignment);
    p->assignment[v] = was;
    return bytes;
}

/* The variable whose change from one solution to the other moves most bytes. */
static uint32_t most_at_stake(const bounded *b, const point *large, const point *fits) {
    uint32_t best = UINT32_MAX;
    double most = -1;
    for (uint32_t v = 0; v < b->n; v++) {
        if (large->assignment[v] == fits->assignment[v]) continue;
        double moved = fabs(large->bytes - bytes_with(b, large, v, fits->assignment[v]));
        if (moved > most) best = v, most = moved;
    }
    return best;
}

static void search_part(bounded *b, double price, double bound);

/* The values of one variable that take few bytes, and then the others: the two solutions part there. */
static void branch(bounded *b, uint32_t v, const point *large, const point *fits, double price, double bound) {
    uint32_t size = shard_search_values(b->s, v);
    bool *before = b->allowed[v], *few = dtm_arena_alloc(b->arena, size), *rest = dtm_arena_alloc(b->arena, size);
    double low = bytes_with(b, large, v, fits->assignment[v]), middle = (low + large->bytes) / 2;
    for (uint32_t k = 0; k < size; k++) {
        double bytes = bytes_with(b, large, v, k);
        bool is_few = low < large->bytes ? bytes <= middle : k == fits->assignment[v];
        few[k] = before[k] && is_few;
        rest[k] = before[k] && !is_few;
    }
    b->allowed[v] = few;
    search_part(b, price, bound);
    b->allowed[v] = rest;
    search_part(b, price, bound);
    b->allowed[v] = before;
}

/* No more of this part: nothing in it is better than `bound`. */
static void leave(bounded *b, double bound) {
    if (bound < b->open) b->open = bound;
}

/* Two solutions of a part on either side of the bytes allowed; time INFINITY: not known. */
typedef struct sides {
    point large, fits;
} sides;

static void note(const bounded *b, sides *s, const point *p) {
    if (p->time < INFINITY) copy_point(b, p->bytes <= b->bytes ? &s->fits : &s->large, p);
}

/* Solves the part at a price, which may raise its bound; false: it is hopeless. */
static bool try_price(bounded *b, double price, double *bound, point *p) {
    double cost = solve(b, 1, price, p) - price * b->bytes;
    if (cost > *bound) *bound = cost;
    return *bound < INFINITY && !is_hopeless(b, *bound);
}

enum { RAISES = 4 }; /* how often the price that a part inherits is doubled before the fewest bytes are asked for */

/* Finds a solution on either side; false: the part is done with. */
static bool find_sides(bounded *b, double price, double *bound, sides *s, point *p) {
    if (price > 0) {
        if (!try_price(b, price, bound, p)) return false;
        note(b, s, p);
    }
    for (int i = 0; price > 0 && s->fits.time == INFINITY && i < RAISES && *b->effort >= 0; i++) {
        price *= 2;
        if (!try_price(b, price, bound, p)) return false;
        note(b, s, p);
    }
    if (s->large.time == INFINITY) {
        if (!try_price(b, 0, bound, p)) return false;
        note(b, s, p);
        if (p->bytes <= b->bytes) { /* the fastest of the part, if it is sure to be that */
            leave(b, *bound);
            return false;
        }
    }
    if (s->fits.time == INFINITY) {
        if (solve(b, 0, 1, p) > b->bytes) return false;
        note(b, s, p);
    }
    if (s->large.time < INFINITY && s->fits.time < INFINITY) return true;
    leave(b, *bound);
    return false;
}

/* What nothing better has is no longer allowed in this part; false: nothing better is left. */
static bool narrow(bounded *b, double price, bool **allowed) {
    shard_search_options options = {{1, price}, (const bool *const *)allowed, b->limit, b->effort, INFINITY};
    return shard_search_narrow(b->s, &options, limit_of(b) + price * b->bytes, allowed);
}

/* All assignments that `allowed` leaves; `price` and `bound` are those of the part it is cut from. The price often shows at
 * once that it is hopeless. */
static void search_part(bounded *b, double price, double bound) {
    sides s = {new_point(b), new_point(b)};
    point p = new_point(b);
    if (is_hopeless(b, bound)) return;
    if (*b->effort < 0) {
        leave(b, bound);
        return;
    }
    if (!find_sides(b, price, &bound, &s, &p)) return;
    while (*b->effort >= 0) {
        double next = (s.fits.time - s.large.time) / (s.large.bytes - s.fits.bytes);
        if (next <= 0) break;
        price = next;
        if (!try_price(b, price, &bound, &p)) return;
        if (p.time + price * p.bytes >= (s.large.time + price * s.large.bytes) * (1 - 1e-12)) break;
        note(b, &s, &p);
    }
    uint32_t v = most_at_stake(b, &s.large, &s.fits);
    if (v == UINT32_MAX || *b->effort < 0) {
        leave(b, bound);
        return;
    }
    bool **before = b->allowed;
    b->allowed = copy_allowed(b);
    if (narrow(b, price, b->allowed)) branch(b, v, &s.large, &s.fits, price, bound);
    b->allowed = before;
}

shard_outcome shard_search_within(const shard_search *s, double bytes, size_t limit, double *effort, uint32_t *assignment,
                                  double *gap) {
    bounded b = {.s = s, .arena = dtm_arena_create(), .bytes = bytes, .limit = limit, .n = shard_search_size(s),
                 .effort = effort, .open = INFINITY};
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
