/* A search for the assignment of discrete variables at which a sum of small tables is least (shard_search.c), and the
 * same with a bound on a second sum, bytes (shard_bound.c). It owns no module: shard_choose.c says what variables and
 * tables stand for. The same input always gives the same answer. */
#ifndef DTM_PASSES_SHARD_SEARCH_H
#define DTM_PASSES_SHARD_SEARCH_H

#include "ir/base.h"

/* What a table's entries are: seconds, which are minimised, or bytes, which may be bounded. INFINITY forbids in both. */
typedef enum shard_measure { SHARD_TIME, SHARD_MEMORY, SHARD_MEASURES } shard_measure;

typedef struct shard_search shard_search;
shard_search *shard_search_create(dtm_arena *arena);
uint32_t shard_search_variable(shard_search *search, uint32_t size);
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
    int parts;                      /* how many parts a problem that would need a larger one may be cut into */
} shard_search_options;

/* The assignment of least cost, which is returned, to one part in 10^10; *exact says whether it is sure to be that.
 * INFINITY: there is none. */
double shard_search_solve(const shard_search *search, const shard_search_options *options, uint32_t *assignment, bool *exact);

typedef enum shard_outcome {
    SHARD_LEAST,      /* nothing within the bound is faster */
    SHARD_GOOD,       /* the fastest found within the bound; *gap says how much faster another could at most be */
    SHARD_TOO_LARGE,  /* nothing fits: the assignment is that of fewest bytes */
    SHARD_GAVE_UP,    /* the problem is too tangled for the limits */
} shard_outcome;

/* The least time among assignments of at most `bytes`. `solves` bounds the work, in solutions without a bound. */
shard_outcome shard_search_within(const shard_search *search, double bytes, size_t limit, int parts, int solves,
                                  uint32_t *assignment, double *gap);

/* The least time within the bound (INFINITY: none) by trying all: the twin for tests. */
double shard_search_brute_force(const shard_search *search, double bytes, uint32_t *assignment);

#endif
