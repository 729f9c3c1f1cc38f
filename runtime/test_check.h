/* The runtime tests' checks: a failure is counted and printed with its line, and the test goes on. */
#ifndef DTM_TEST_CHECK_H
#define DTM_TEST_CHECK_H

#include "runtime/status.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int failures, checks;

static void check(bool ok, int line, const char *text, const char *more) {
    checks++;
    if (ok) return;
    if (failures++ < 20) fprintf(stderr, "line %d: %s   %s\n", line, text, more);
}
#define CHECK(condition) check((condition), __LINE__, #condition, "")
#define CHECK_OK(condition, status) check((condition), __LINE__, #condition, (status)->message)
/* A failure whose message has these words. */
#define CHECK_FAILS(condition, status, words)                                                                          \
    check(!(condition) && (status)->failed && strstr((status)->message, (words)) != NULL, __LINE__,                    \
          "fails: " #condition, (status)->message)

__attribute__((unused)) static void *zeroed(int64_t bytes) {
    void *result = calloc(1, (size_t)bytes + 1);
    if (!result) abort();
    return result;
}

#endif
