/* dtmc's subcommands. Each takes the options of its line, prints what it has to say, and returns the exit status: 0, 1
 * after an error of the program, 2 after a misused command line. */
#ifndef DTM_FRONTEND_COMMANDS_H
#define DTM_FRONTEND_COMMANDS_H

#include "frontend/check.h"

enum { DTM_MOST_OPTIONS = 64 };

typedef struct dtm_options {
    const char *file; /* the positional argument */
    const char *defines[DTM_MOST_OPTIONS + 1], *sets[DTM_MOST_OPTIONS + 1];
    dtm_check_options check; /* points into the above */
    const char *output, *emit, *target, *after, *from, *only, *value, *format, *model;
    const char *first_flag; /* of those given; NULL: none */
    bool check_only, write, json, verify, validate, diff, draft, seed_given;
    int64_t steps, columns;
    uint64_t seed;
} dtm_options;

int dtm_command_build(const dtm_options *options);
int dtm_command_check(const dtm_options *options);
int dtm_command_fmt(const dtm_options *options);
int dtm_command_ir(const dtm_options *options);
int dtm_command_explain(const dtm_options *options);
int dtm_command_run(const dtm_options *options);
int dtm_command_timeline(const dtm_options *options);
int dtm_command_passes(const dtm_options *options);

/* Checks the file and runs passes up to `until` (NULL: all; "" : none). NULL after errors, which are printed. */
dtm_module *dtm_compile(dtm_context *context, const dtm_options *options, const char *until);
/* Whether what is written to `-o` is none of the files that are read; else it says which (`command`: of dtmc). */
bool dtm_spares_sources(dtm_context *context, const dtm_options *options, const char *command);
/* Says that a command line asks for what does not go together. The exit status: 2. */
int dtm_misuse(const char *format, ...) DTM_PRINTF(1, 2);
/* Prints what has been reported; returns whether there was an error. */
bool dtm_report(dtm_context *context);
/* Whether the contracts of `expect` hold; of a pipeline on each of its ranks. Warns of what is odd on the first of them. */
bool dtm_keeps_contracts(dtm_module *module);
/* The whole of a file or of standard input; NULL with a message if it cannot be read. */
char *dtm_read_file(const char *path, size_t *length);

#endif
