/* A search for the assignment of discrete variables at which a sum of small tables is least (shard_search.c, shard_solve.c),
 * and the same with a bound on a second sum, bytes (shard_bound.c). It owns no module: shard_choose.c says what variables and
 * tables stand for. The same input always gives the same answer. */
#ifndef DTM_PASSES_SHARD_SEARCH_H
#define DTM_PASSES_SHARD_SEARCH_H

#include "ir/base.h"

/* What a table's entries are: seconds, which are minimised, or bytes, which may be bounded. INFINITY forbids in both. */
typedef enum shard_measure { SHARD_TIME, SHARD_MEMORY, SHARD_MEASURES } shard_measure;

typedef struct shard_search shard_search;
shard_search *shard_search_create(dtm_arena *arena);
/* A variable of `size` values. Those of one group hang together more than with others; groups are less than 32. */
uint32_t shard_search_variable(shard_search *search, uint32_t size, uint32_t group);
/* Says that these variables (each in one such set at most) are best decided together: many tables are over two of them. */
void shard_search_together(shard_search *search, uint32_t count, const uint32_t *variables);
size_t shard_search_size(const shard_search *search);                          /* variables so far */
uint32_t shard_search_values(const shard_search *search, uint32_t variable); /* how many it has */
/* Adds a cost for each combination of values of some variables (none: a constant), the last fastest. */
void shard_search_add(shard_search *search, shard_measure measure, uint32_t count, const uint32_t *variables,
                      const double *costs);
double shard_search_total(const shard_search *search, shard_measure measure, const uint32_t *assignment);

typedef struct shard_search_options {
    double weights[SHARD_MEASURES]; /* what is minimised: the sum of each measure times its weight */
    const bool *const *allowed;     /* by variable, value; NULL: all */
    size_t limit;                   /* entries of the largest table that is made */
    double *effort;                 /* entries of tables that may still be looked at: what is left is written back */
    double upper;                   /* only assignments of less cost count; INFINITY: all do */
} shard_search_options;

/* The assignment of least cost, which is returned, to one part in 10^10; INFINITY: there is none. *bound: no assignment
 * costs less; it is less than what is returned where the effort did not suffice to show that nothing is better. */
double shard_search_solve(const shard_search *search, const shard_search_options *options, uint32_t *assignment, double *bound);

/* Takes from what is allowed (by variable, value) what is sure to be in none of less than `target`; false: there is none. */
bool shard_search_narrow(const shard_search *search, const shard_search_options *options, double target, bool **allowed);

typedef enum shard_outcome {
    SHARD_LEAST,      /* nothing within the bound is faster */
    SHARD_GOOD,       /* the fastest found within the bound; *gap says how much faster another could at most be */
    SHARD_TOO_LARGE,  /* nothing fits: the assignment is that of fewest bytes */
    SHARD_GAVE_UP,    /* nothing that fits was found, though something may */
} shard_outcome;

/* The least time among assignments of at most `bytes`. */
shard_outcome shard_search_within(const shard_search *search, double bytes, size_t limit, double *effort, uint32_t *assignment,
                                  double *gap);

/* The least time within the bound (INFINITY: none) by trying all: the twin for tests. */
double shard_search_brute_force(const shard_search *search, double bytes, uint32_t *assignment);

#endif
