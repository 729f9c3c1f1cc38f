/* The compiler in this process, or rather in a child of it: every pass under the verifier and the interpreter, and what a
 * program computes by the interpreter, as a run's files. */
#ifndef DTM_TESTS_COMPILED_H
#define DTM_TESTS_COMPILED_H

#include "coverage.h"

/* What a program computes, with its roundings: exactly otherwise, or as dtm_interpret_options has it. */
typedef struct interpreting {
    const char *into; /* the folder that is made, for log.jsonl, grads.safetensors and weights.safetensors */
    uint64_t rounding;
    bool nearest;
} interpreting;

typedef struct compiled_options {
    const char *file, *log; /* the program; where complaints go */
    bool validate;          /* interpret before and after every pass */
    coverage *coverage;     /* shared memory that is added to, or NULL */
    const char *data; /* inputs of what is interpreted */
    const interpreting *interpretings;
    int n_interpretings;
    int64_t steps;
    uint64_t seed;
    const char *arena; /* a file that is to say how many bytes the fullest rank takes, or NULL */
} compiled_options;

/* False if a pass refused or broke the program, or took more than two minutes of processor time. */
bool compiled_check(const compiled_options *options);

#endif
