/* Values that another value of the same variable beats whatever its neighbours do (dead-end elimination, shard_work.h): in
 * each table the most that the other costs above it is looked up, and if that sums up to less than nothing, it goes. */
#include "passes/shard_work.h"

#include <math.h>
#include <string.h>

enum { MAX_COMPARED = 1 << 15 }; /* entries of a table that is still searched for beaten values */

/* A table of v, as v's values are compared in it. */
typedef struct comparison {
    const uint16_t *kind;
    uint32_t kinds;
    double *worst; /* [a * kinds + b]: the most that b costs above a; INFINITY: b is forbidden where a is not */
} comparison;

enum { LANES = 8 }; /* a maximum waits for the one before it: several at a time */

/* Where a is forbidden y[i] - x[i] is no number, or less than all others: neither is greater than anything. */
static double most_above(const double *x, const double *y, size_t n, double worst) {
    double lanes[LANES];
    size_t i = 0;
    for (int k = 0; k < LANES; k++) lanes[k] = worst;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            double above = y[i + (size_t)k] - x[i + (size_t)k];
            lanes[k] = above > lanes[k] ? above : lanes[k];
        }
    for (; i < n; i++) worst = y[i] - x[i] > worst ? y[i] - x[i] : worst;
    for (int k = 0; k < LANES; k++) worst = lanes[k] > worst ? lanes[k] : worst;
    return worst;
}

static double worst_of(const table *t, uint32_t position, size_t inner, uint32_t a, uint32_t b) {
    size_t was = t->kinds[position], outer = shard_work_size(t) / (inner * was);
    double worst = -INFINITY;
    for (size_t o = 0; o < outer; o++)
        worst = most_above(t->costs + (o * was + a) * inner, t->costs + (o * was + b) * inner, inner, worst);
    return worst;
}

static comparison compare(const work *w, const table *t, uint32_t v) {
    uint32_t position = shard_work_position(t, v), n = t->kinds[position];
    size_t inner = shard_work_stride(t, position);
    comparison c = {t->kind[position], n, dtm_arena_alloc(w->arena, (size_t)n * n * sizeof *c.worst)};
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = 0; b < n; b++) c.worst[a * n + b] = worst_of(t, position, inner, a, b);
    *w->effort -= (double)shard_work_size(t) * n;
    return c;
}

/* -INFINITY in some table: a is forbidden there. */
static bool is_beaten(const comparison *tables, size_t n, uint32_t a, uint32_t b) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double worst = tables[i].worst[(size_t)tables[i].kind[a] * tables[i].kinds + tables[i].kind[b]];
        if (worst == -INFINITY) return true;
        sum += worst;
    }
    return sum < 0 || (sum == 0 && b < a);
}

/* Drops the beaten values of v; false: there were none. */
static bool drop_beaten(work *w, uint32_t v) {
    variable *var = &w->variables[v];
    size_t n_tables = 0;
    var->suspect = false;
    comparison *tables = dtm_arena_alloc(w->arena, (var->n_tables + 1) * sizeof *tables);
    for (size_t i = 0; var->size > 1 && i < var->n_tables; i++) {
        const table *t = &w->tables[var->tables[i]];
        if (t->gone) continue;
        if (shard_work_size(t) > MAX_COMPARED) return false;
        tables[n_tables++] = compare(w, t, v);
    }
    uint32_t *kept = dtm_arena_alloc(w->arena, var->size * sizeof *kept), n = 0;
    bool *out = dtm_arena_alloc(w->arena, var->size);
    for (uint32_t a = var->size; a-- > 0;) /* the preferred stand first */
        for (uint32_t b = 0; b < var->size && !out[a]; b++) out[a] = b != a && !out[b] && is_beaten(tables, n_tables, a, b);
    for (uint32_t a = 0; a < var->size; a++)
        if (!out[a]) kept[n++] = a;
    if (n == var->size && n > 1) return false;
    shard_work_keep(w, v, kept, n);
    w->variables[v].suspect = false;
    return true;
}

void shard_work_drop_beaten(work *w) {
    for (bool again = true; again;) {
        again = false;
        for (uint32_t v = 0; v < w->n_variables; v++)
            if (!w->variables[v].gone && w->variables[v].suspect) again |= drop_beaten(w, v);
    }
}
