/* The help texts. */
#ifndef DTM_FRONTEND_HELP_H
#define DTM_FRONTEND_HELP_H

#include <stdio.h>

#ifndef DTM_VERSION
#define DTM_VERSION "0.1.0"
#endif

/* Help of a subcommand, or of dtmc itself for "". */
void dtm_help_print(FILE *out, const char *command);

#endif
