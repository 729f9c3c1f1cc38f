/* How often each operator met each kind of split, read off dumps. Which operators there are, and so which must be met, is
 * read off ir/ops.def. */
#ifndef DTM_TESTS_COVERAGE_H
#define DTM_TESTS_COVERAGE_H

#include <stdbool.h>
#include <stdio.h>

typedef enum split_kind {
    SPLIT_NONE,   /* alike on every axis */
    SPLIT_EVEN,   /* a dimension of an operand or result in equal blocks */
    SPLIT_UNEVEN, /* in blocks of two sizes */
    SPLIT_EMPTY,  /* some rank has nothing */
    SPLIT_TERM,   /* the result is a term of a sum */
    SPLIT_KINDS
} split_kind;

enum { MOST_OPERATORS = 160 };

typedef struct coverage {
    long met[MOST_OPERATORS][SPLIT_KINDS];
} coverage;

/* Adds what a dump (after shard or later) shows. */
void coverage_add_dump(coverage *c, const char *dump);
void coverage_merge(coverage *into, const coverage *from);
/* Prints the table; returns how many that must be met were not, and names them. */
int coverage_print(const coverage *c, FILE *out);

#endif
