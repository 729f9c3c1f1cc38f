/* A search at work: variables that lose values and tables that are replaced, until nothing is left but a constant. What
 * shard_work.c (tables, beaten values, elimination) and shard_relax.c (bounds) do with it; shard_search.c says in what order.
 * At any time the least of what is left, plus the constant, is the least of what was given. */
#ifndef DTM_PASSES_SHARD_WORK_H
#define DTM_PASSES_SHARD_WORK_H

#include "ir/base.h"

enum { MAX_SCOPE = 24 };

typedef struct table {
    uint32_t count, scope[MAX_SCOPE]; /* variables in rising order; the last counts fastest */
    double *costs;
    bool gone;
} table;

typedef struct scope {
    uint32_t count, vars[MAX_SCOPE]; /* in rising order */
    bool too_many;
} scope;
void shard_scope_add(scope *sc, uint32_t v);

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

/* ---- shard_work.c ---- */
work shard_work_new(size_t n_variables);
void shard_work_variable(work *w, uint32_t v, uint32_t size);
/* Adds a table; into one over the same variables if there is one. Its costs belong to the work from then on. */
void shard_work_add(work *w, const table *t);
size_t shard_work_size(const work *w, const table *t);
/* By how much an index moves with each step of variable v of the table. */
size_t shard_work_stride(const work *w, const table *t, uint32_t v);
/* Leaves a variable the values `kept`; where that is one, the variable is settled. */
void shard_work_keep(work *w, uint32_t v, const uint32_t *kept, uint32_t n);
/* Drops values that another value of their variable beats whatever the others do, until there are none. */
void shard_work_drop_beaten(work *w);
scope shard_work_neighbours(const work *w, uint32_t v);
/* Of the variables left, the one whose elimination makes the least table; UINT32_MAX: none is left. */
uint32_t shard_work_cheapest(work *w, double *size);
void shard_work_eliminate(work *w, uint32_t v);
/* Gives what was eliminated its values, once what was left has them (by their numbers as given). */
void shard_work_walk_back(const work *w, uint32_t *assignment);

/* ---- shard_relax.c ---- */
/* Shifts costs between tables, and to the constant, until the constant is a good lower bound. */
void shard_work_raise_bound(work *w);
/* Drops values that no solution better than `upper` has; false: there were none. */
bool shard_work_drop_hopeless(work *w, double upper);
/* What each value of v costs at least beyond the constant. */
double *shard_work_gather(work *w, uint32_t v);

#endif
