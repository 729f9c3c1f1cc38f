#include "runtime/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool dtm_status_fail(dtm_status *status, const char *format, ...) {
    if (status->failed) return false;
    status->failed = true;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(status->message, sizeof status->message, format, arguments);
    va_end(arguments);
    return false;
}

bool dtm_status_fail_errno(dtm_status *status, int error, const char *format, ...) {
    if (status->failed) return false;
    status->failed = true;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(status->message, sizeof status->message, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof status->message) return false;
    char text[128];
    /* The POSIX and the GNU strerror_r differ in what they return; %m is the same everywhere on Linux. */
    snprintf(text, sizeof text, "%s", strerror(error));
    snprintf(status->message + length, sizeof status->message - (size_t)length, ": %s", text);
    return false;
}

bool dtm_status_echo(dtm_status *status) {
    dtm_status_fail(status, "another rank failed");
    status->echo = true;
    return false;
}
