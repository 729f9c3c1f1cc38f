/* How often each operator met each kind of split, and each feature was met, read off modules. Which operators there are, and so which must be met,
 * is read off ir/ops.def; which kinds an operator can meet, off its rule of factors. */
#ifndef DTM_TESTS_COVERAGE_H
#define DTM_TESTS_COVERAGE_H

#include "features.h"

typedef enum split_kind {
    SPLIT_ALIKE,      /* on every axis */
    SPLIT_CARRIED,    /* along a dimension that goes through */
    SPLIT_REDUCED,    /* along one that is summed (or maximised) away */
    SPLIT_NORMALISED, /* along the one it normalises: it was expanded */
    SPLIT_HEADS,      /* attention: along heads */
    SPLIT_POSITIONS,  /* attention: along positions of the queries */
    SPLIT_EVEN,       /* in equal blocks */
    SPLIT_UNEVEN,     /* in blocks of two sizes */
    SPLIT_EMPTY,      /* some rank has nothing */
    SPLIT_ONE,        /* by an axis of size 1 */
    SPLIT_KINDS
} split_kind;

/* What programs with `microbatches` had. */
typedef enum microbatch_kind {
    MICROBATCHES,          /* any */
    MICROBATCHES_UNEVEN,   /* of different sizes */
    MICROBATCHES_EMPTY,    /* some without samples */
    MICROBATCHES_SHARED,   /* an axis splits their samples for some operators and another dimension for others */
    MICROBATCHES_EARLY,    /* sums before the first */
    MICROBATCH_KINDS
} microbatch_kind;

typedef struct coverage {
    long met[DTM_OP_KINDS][SPLIT_KINDS], microbatches[MICROBATCH_KINDS], features[FEATURES];
} coverage;

/* Counts of each operator, for coverage_add_expanded. */
void coverage_count(dtm_module *module, long counts[DTM_OP_KINDS]);
/* Operators that are fewer after `shard` than before were expanded, for a split along what they normalise. */
void coverage_add_expanded(coverage *c, const long before[DTM_OP_KINDS], const long after[DTM_OP_KINDS]);
/* What a module shows after partition. */
void coverage_add(coverage *c, dtm_module *module);
/* What it shows after the microbatch pass. */
void coverage_add_microbatches(coverage *c, dtm_module *module);
void coverage_merge(coverage *into, const coverage *from);
/* Prints the table; returns how many that must be met were not, and names them. */
int coverage_print(const coverage *c, FILE *out);

#endif
