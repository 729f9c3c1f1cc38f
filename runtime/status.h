/* How the runtime reports failure: a function that can fail returns bool and takes a dtm_status last. The first failure
 * written stays; nothing in the runtime prints it or exits, main decides. A message is one line without a newline that
 * says what, where, and both numbers. */
#ifndef DTM_STATUS_H
#define DTM_STATUS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct dtm_status {
    bool failed;
    bool echo; /* another rank failed and reports it: end with a status that is not 0, and say nothing */
    char message[1000];
} dtm_status;

/* Fills status unless it already holds a failure; always false, so that callers can `return dtm_status_fail(..)`. */
__attribute__((format(printf, 2, 3))) bool dtm_status_fail(dtm_status *status, const char *format, ...);
/* The same, with ": " and the text of the error number appended. */
__attribute__((format(printf, 3, 4))) bool dtm_status_fail_errno(dtm_status *status, int error, const char *format,
                                                                 ...);
/* A failure that another rank reports. */
bool dtm_status_echo(dtm_status *status);

#endif
