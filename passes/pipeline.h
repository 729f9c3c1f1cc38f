/* The whole order of passes, and the ways to run it: up to a pass, from one, with the verifier and the interpreter
 * looking on. */
#ifndef DTM_PASSES_PIPELINE_H
#define DTM_PASSES_PIPELINE_H

#include "ir/ir.h"

typedef struct dtm_pass_row {
    const char *name;
    bool (*run)(dtm_module *module);
    const char *summary; /* one line, for `dtmc passes` */
    bool whole; /* of a pipeline it takes the programs of all ranks at once */
} dtm_pass_row;

extern const dtm_pass_row dtm_passes[];
extern const size_t dtm_n_passes;

typedef struct dtm_pipeline_options {
    const char *until;  /* the last pass to run; NULL: all */
    bool verify;        /* the verifier after every pass */
    bool validate;      /* the interpreter before and after every pass; implies small sizes */
    uint64_t seed;      /* of the random inputs for validate */
    bool unproved;      /* the timeline is not proved after every pass: whoever runs them does so at the end */
    void (*after)(dtm_module *module, const char *pass, void *state); /* called after every pass; may be NULL */
    void *state;
} dtm_pipeline_options;

/* Runs the passes after the one the module has been through. False: an error was reported. */
bool dtm_pipeline_run(dtm_module *module, const dtm_pipeline_options *options);
/* Proves the timeline of a verified module of a pipeline's ranks, whoever wrote it; dtm_pipeline_run does so first. */
bool dtm_pipeline_prove(const dtm_module *module);
/* The index of a pass of that name, or -1; reports E0203 with the nearest name at nowhere. */
int dtm_pass_find(dtm_context *context, const char *name);

#endif
