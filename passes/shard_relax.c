/* A lower bound on what is left of a search, by shifting costs (shard_work.h). What a table costs at least for each value of
 * one of its variables can be taken from the table and given to the variable, or back, and no sum changes; what all values
 * of a variable cost goes to the constant. Going through the variables forwards and backwards (as in sequential message
 * passing, TRW-S and its kin) raises the constant. A value that costs more than a solution known, beyond the constant, is in
 * no better one. */
#include "passes/shard_work.h"

#include <math.h>
#include <string.h>

enum { SWEEPS = 40 };

static table *own_table(work *w, uint32_t v) {
    for (int round = 0; round < 2; round++) {
        const variable *var = &w->variables[v];
        for (size_t i = 0; i < var->n_tables; i++)
            if (!w->tables[var->tables[i]].gone && w->tables[var->tables[i]].count == 1) return &w->tables[var->tables[i]];
        table t = {.count = 1, .scope = {v}, .costs = dtm_arena_alloc(w->arena, var->size * sizeof *t.costs)};
        shard_work_add(w, &t);
    }
    return NULL;
}

/* Adds to every entry of a table what `shift` says of its value of v. */
static void shift_table(const work *w, table *t, uint32_t v, const double *shift, double times) {
    size_t inner = shard_work_stride(w, t, v), size = w->variables[v].size, outer = shard_work_size(w, t) / (inner * size);
    for (size_t o = 0; o < outer; o++)
        for (size_t k = 0; k < size; k++)
            for (size_t i = 0; shift[k] != INFINITY && i < inner; i++) t->costs[(o * size + k) * inner + i] += shift[k] * times;
}

static void least_by_value(const work *w, const table *t, uint32_t v, double *least) {
    size_t inner = shard_work_stride(w, t, v), size = w->variables[v].size, outer = shard_work_size(w, t) / (inner * size);
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

void shard_work_raise_bound(work *w) {
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

bool shard_work_drop_hopeless(work *w, double upper) {
    bool any = false;
    for (uint32_t v = 0; v < w->n_variables && w->constant < upper; v++) {
        if (w->variables[v].gone) continue;
        uint32_t size = w->variables[v].size, n = 0, *kept = dtm_arena_alloc(w->arena, size * sizeof *kept);
        double *least = dtm_arena_alloc(w->arena, size * sizeof *least), *own = gather(w, v, least);
        for (uint32_t k = 0; k < size; k++)
            if (w->constant + own[k] < upper) kept[n++] = k;
        if (n && n < size) {
            shard_work_keep(w, v, kept, n);
            any = true;
        }
        if (!w->variables[v].gone) spread(w, v, own_table(w, v)->costs, 1);
        if (!n) w->constant = INFINITY;
    }
    return any;
}

double *shard_work_gather(work *w, uint32_t v) {
    double *least = dtm_arena_alloc(w->arena, w->variables[v].size * sizeof *least);
    return gather(w, v, least);
}
