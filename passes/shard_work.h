/* A search at work: variables that lose values and tables that are replaced, until nothing is left but a constant. What
 * shard_work.c (tables, elimination), shard_beaten.c (values that others beat) and shard_relax.c (bounds) do with it;
 * shard_solve.c says in what order. At any time the least of what is left, plus the constant, is the least of what was given.
 *
 * A table tells apart only kinds of values of its variables: a variable that stands for choices on several axes has hundreds of
 * values, of which a conversion on one axis sees a few kinds.
 *
 *     value of x     0  1  2  3  4  5        costs by kind of x, kind of y:   0 7
 *     its kind here  0  1  0  1  0  1                                         3 0
 *
 * Costs and kinds are never changed in place, so that parts of a problem share them. */
#ifndef DTM_PASSES_SHARD_WORK_H
#define DTM_PASSES_SHARD_WORK_H

#include "ir/base.h"

enum { MAX_SCOPE = 24 };

typedef struct table {
    uint32_t count, scope[MAX_SCOPE]; /* variables in rising order */
    uint32_t kinds[MAX_SCOPE];        /* how many of each */
    const uint16_t *kind[MAX_SCOPE];  /* by value: its kind */
    const double *costs;              /* by kinds, the last variable's fastest */
    double **rests; /* by position in the scope, kind: the least that its values give back of what they were given; NULL: 0 */
    bool gone;
} table;

typedef struct variable {
    uint32_t size, *values; /* those left, by their numbers as given */
    uint32_t *tables;       /* those that mention it, gone ones too */
    size_t n_tables, cap_tables;
    bool gone, suspect;     /* suspect: something around it has changed since beaten values were looked for */
    double *floors;         /* by value: what any solution with it costs at least; NULL: not known */
    double score;           /* entries of the table that eliminating it makes, at most; < 0: not known */
} variable;

typedef struct elimination {
    uint32_t variable, *own_values; /* the variable's as they were */
    table made;                     /* over its neighbours */
    uint32_t *values[MAX_SCOPE], sizes[MAX_SCOPE]; /* theirs */
    uint16_t *best; /* by index into the table */
} elimination;

typedef struct work {
    dtm_arena *arena;
    variable *variables;
    table *tables;
    size_t n_variables, n_tables, cap_tables;
    elimination *done;
    size_t n_done;
    double constant; /* of tables over nothing */
    double bound;    /* what any solution costs at least */
    double *effort;  /* entries of tables that may still be looked at */
} work;

/* ---- shard_work.c ---- */
work shard_work_new(size_t n_variables, double *effort);
void shard_work_variable(work *w, uint32_t v, uint32_t size);
/* Adds a table. Kinds that cost the same become one, and what it does not depend on leaves its scope. */
void shard_work_add(work *w, const table *t);
size_t shard_work_size(const table *t);
uint32_t shard_work_position(const table *t, uint32_t v);
/* By how much an index moves with each kind of the variable at a position. */
size_t shard_work_stride(const table *t, uint32_t position);
/* Leaves a variable the values `kept`; where that is one, the variable is settled. */
void shard_work_keep(work *w, uint32_t v, const uint32_t *kept, uint32_t n);
uint32_t shard_work_neighbours(const work *w, uint32_t v);
/* Of the variables left, the one whose elimination makes the least table; UINT32_MAX: none is left. */
uint32_t shard_work_cheapest(work *w, double *size);
void shard_work_eliminate(work *w, uint32_t v);
/* Entries looked at if all that are left were eliminated, the least first; INFINITY: a table would have more than `limit`. */
double shard_work_forecast(const work *w, double limit);
/* Gives what was eliminated its values, once what was left has them (by their numbers as given). */
void shard_work_walk_back(const work *w, uint32_t *assignment);
/* What is left of a problem, as one of its own: the variables that are not gone, in order (*of: which those were). */
work shard_work_rest(const work *w, uint32_t **of);

/* ---- shard_beaten.c ---- */
/* Drops values that another value of their variable beats whatever the others do, until there are none. */
void shard_work_drop_beaten(work *w);

/* ---- shard_relax.c ---- */
/* Raises the bound until it stands still or there is no effort left, and the floors with it. Drops values that no solution
 * better than `target` has; false: there were none. */
bool shard_work_relax(work *w, double target);

#endif
