/* One random pair: compiles the program for one rank and for its mesh, has both interpreted, runs both as executables, and
 * compares what they leave behind. */
#ifndef DTM_TESTS_CHECK_H
#define DTM_TESTS_CHECK_H

#include "coverage.h"
#include "program.h"

typedef enum verdict {
    GOOD,
    ONE_REFUSED,    /* the one-rank program: a pass, the verifier or the validation complained */
    ONE_FAILED,     /* it did not build, or not run to its end */
    ONE_DIFFERS,    /* it computes something else than the interpreter */
    PLACED_REFUSED, /* the same of the placed one */
    PLACED_FAILED,  /* replicas that differ too */
    DIFFERS,        /* the law of the mesh does not hold */
    PLACED_DIFFERS, /* in bf16 or f16: it computes something else than the interpreter does of it */
    BITS_DIFFER,    /* two runs of the same executable differ */
    TEXT_DIFFERS,   /* print, parse, print; or the plan of a dump taken up again */
    NO_ROOM,        /* with less memory than it would take there is no choice of splits, or no timeline (E0412, E0907) */
    NO_COMPILER,    /* --cuda: there is no NVRTC */
} verdict;

typedef struct checker {
    const char *dtmc, *compare, *mpirun; /* absolute paths; mpirun: tests/mpirun, or NULL */
    const char *cuda;                    /* executables are for GPUs, and run with these flags beside; or NULL */
    char folder[256];                    /* where everything is built, of this process alone */
    bool validate;                       /* interpret before and after every pass */
    bool as_drawn;                       /* what fails is not made smaller */
    bool builds;                         /* executables too */
    coverage *coverage;                  /* where counts go, in shared memory, or NULL */
} checker;

/* What a pair is checked for beside the law. */
typedef struct extras {
    bool again; /* a second run has the same bits, a dump taken up again the same plan; on GPUs every pair runs again */
    bool mpi;   /* a run by mpirun has the same bits */
} extras;

const char *verdict_text(verdict v);
/* The one-rank program; leaves its files for check_placed. */
verdict check_one(checker *c, const program *p);
verdict check_placed(checker *c, const program *p, extras extras);
/* What the last failing command printed. */
void check_print_log(const checker *c, FILE *out);

#endif
