/* One random pair: builds the program for one rank and for its mesh, runs both, and compares what they leave behind. */
#ifndef DTM_TESTS_CHECK_H
#define DTM_TESTS_CHECK_H

#include "coverage.h"
#include "program.h"

typedef enum verdict {
    GOOD,
    ONE_REFUSED,    /* dtmc build of the one-rank program failed */
    ONE_FAILED,     /* it did not run to its end */
    PLACED_REFUSED, /* the same of the placed one; the verifier's and the validation's complaints too */
    PLACED_FAILED,
    DIFFERS,        /* the law of the mesh does not hold */
    BITS_DIFFER,    /* two runs of the same executable differ */
    TEXT_DIFFERS,   /* print, parse, print; or the plan of a dump taken up again */
} verdict;

typedef struct checker {
    const char *dtmc, *compare, *cc; /* absolute paths */
    char folder[256];                /* where everything is built, of this process alone */
    bool validate;                   /* interpret before and after every pass */
    bool interpret;                  /* nothing more: no executables */
    coverage *coverage;              /* where counts go, or NULL */
} checker;

const char *verdict_text(verdict v);
/* The one-rank program, built and run; leaves its files for check_placed. */
verdict check_one(checker *c, const program *p);
verdict check_placed(checker *c, const program *p, bool twice);
/* What the last failing command printed. */
void check_print_log(const checker *c, FILE *out);

#endif
