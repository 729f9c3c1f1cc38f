/* check: reads a program or a dump, with the files it uses, and makes the module: names, dimensions and types resolved,
 * `def`s inlined, expressions taken apart, carried values made explicit. */
#ifndef DTM_FRONTEND_CHECK_H
#define DTM_FRONTEND_CHECK_H

#include "ir/ir.h"

typedef struct dtm_check_options {
    const char *const *defines; /* "S=4096" */
    size_t n_defines;
    const char *mesh;          /* "dp=4,tp=2", or NULL */
    const char *const *sets;   /* "steps=20" */
    size_t n_sets;
    const char *text; /* of the file, `length` bytes, where it has been read; NULL: it has not */
    size_t length;
} dtm_check_options;

/* The module of the file at `path` ("-": standard input), or NULL after errors (they stand in the context). Warnings may
 * stand there too. A dump gives a module whose `after` is the pass it names. */
dtm_module *dtm_check(dtm_context *context, const char *path, const dtm_check_options *options);

/* All that is left of a stream, in memory of the caller's (free); NULL after an error of reading or of memory. */
char *dtm_read_stream(FILE *file, size_t *length);

#endif
