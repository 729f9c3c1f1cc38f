/* Mutants of the kernels of a test, one at a time. A mutant is a child of the process, in which the tests go on with it in place of the
 * program of all architectures, up to the next `load`: a report, or a number that is wrong, shows it.
 *
 *     DTM_KERNEL_MUTANTS=STEP[:ARCHITECTURE[:FIRST]]  edits of PTX (tests/gpu/sim/mutants.h): of those on a line which the tests run, and of
 *         guards of every eighth of these, each STEP-th from FIRST on. What survives is printed, but for branches that lost their guard, of
 *         which many only save work (as in a division of 64 bits); nothing else may survive.
 *     DTM_KERNEL_MEANINGS=1  edits of the text of templates (gate/meanings): none may survive, and each must compile
 *     DTM_KERNEL_PROGRAM=FILE  of that program alone */
#ifndef DTM_TEST_MUTANTS_H
#define DTM_TEST_MUTANTS_H

#include "runtime/test_check.h"
#include "tests/gpu/sim/mutants.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MUTANT_SURVIVES = 0, MUTANT_NUMBERS = 1, MUTANT_REFUSED = 2, MUTANT_REPORTED = 32, MUTANT_LINES = 1 << 16, MUTANT_SECONDS = 150 };
static bool mutant_child;
static uint8_t *mutant_ran; /* lines that the tests run, in the child that finds them: shared */

/* Of a launch: what a child must not miss, and how it ends early. */
static inline void mutant_launch(struct sim_launch *launch) {
    if (!mutant_child) return;
    if (failures) _exit(MUTANT_NUMBERS);
    launch->ran = mutant_ran, launch->n_lines = mutant_ran ? MUTANT_LINES : 0;
    if (!mutant_ran) launch->limit = 100000000, launch->patience = 1000000;
}
static inline void mutant_reports(bool ok, const struct sim_reports *reports) {
    if (mutant_child && reports->n) _exit(MUTANT_REPORTED + (int)reports->report[0].check);
    if (mutant_child && !ok) _exit(MUTANT_NUMBERS);
}

/* True in the child, whose tests go on. */
static inline bool mutant_fork(int *status) {
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) abort();
    if (!child) {
        mutant_child = true;
        failures = 0; /* of the mutants before, if any */
        const struct rlimit limit = {MUTANT_SECONDS, MUTANT_SECONDS + 10}; /* of its own work: others may have the processor */
        if (setrlimit(RLIMIT_CPU, &limit)) abort();
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) abort();
        return true;
    }
    if (waitpid(child, status, 0) != child) abort();
    return false;
}

/* After a program was loaded: `text` is its PTX for one architecture. Returns NULL, in the process that goes on without a mistake, or
 * the text that a child goes on with. */
static inline char *mutants_of(const char *name, const char *text, int step, int first) {
    static const char *const kinds[SIM_MUTATIONS] = {"barriers", "waits", "waits for one less", "fences", "guards", "accesses", "masks"};
    int count[SIM_MUTATIONS] = {0}, meant[SIM_MUTATIONS] = {0}, other[SIM_MUTATIONS] = {0}, numbers[SIM_MUTATIONS] = {0}, survive[SIM_MUTATIONS] = {0};
    struct sim_mutant about;
    char *mutant;
    int status = 0;
    mutant_ran = mmap(NULL, MUTANT_LINES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mutant_ran == MAP_FAILED) abort();
    if (mutant_fork(&status)) return strdup(text);
    uint8_t *ran = mutant_ran;
    mutant_ran = NULL;
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0, __LINE__, "the program without a mistake", name);
    for (int n = 0, runs = 0, guards = 0; (mutant = sim_mutant(text, n, &about)); n++) {
        bool runs_it = about.line < MUTANT_LINES && ran[about.line];
        if (!runs_it || (about.mutation == SIM_NO_GUARD && guards++ % 8) || runs++ % step != first % step) {
            free(mutant);
            continue;
        }
        if (mutant_fork(&status)) return mutant;
        free(mutant);
        int m = (int)about.mutation, code = WIFEXITED(status) ? WEXITSTATUS(status) : MUTANT_NUMBERS;
        check(WIFEXITED(status), __LINE__, "a mutant comes to no end", about.what);
        count[m]++;
        if (code == MUTANT_SURVIVES) {
            survive[m]++;
            if (m != SIM_NO_GUARD) printf("%s, survives: %s\n", name, about.what);
            check(m == SIM_NO_GUARD, __LINE__, "a mutant survives", about.what);
        } else if (code >= MUTANT_REPORTED && about.caught_by >> (code - MUTANT_REPORTED) & 1) {
            meant[m]++;
        } else if (code >= MUTANT_REPORTED) {
            other[m]++;
        } else {
            numbers[m]++;
        }
    }
    for (int m = 0; m < SIM_MUTATIONS; m++)
        if (count[m])
            printf("%s, %s: %d; by the check that is meant %d, by another %d, by numbers %d; survive %d\n", name, kinds[m], count[m], meant[m], other[m],
                   numbers[m], survive[m]);
    munmap(ran, MUTANT_LINES);
    return NULL;
}

/* ---- what a program means ---- */

/* A line of gate/meanings, "program | what | from | to", tabs between: wherever `from` stands in the program, `to` stands. */
typedef struct meaning {
    char file[64], what[120], from[200], to[240];
} meaning;

static inline bool next_meaning(FILE *in, const char *file, meaning *m) {
    char line[800];
    while (fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = 0;
        if (*line == '#' || !*line) continue;
        int n = sscanf(line, "%63[^\t]\t%119[^\t]\t%199[^\t]\t%239[^\t]", m->file, m->what, m->from, m->to);
        if (n < 3) abort();
        if (n == 3) *m->to = 0;
        if (!strcmp(m->file, file)) return true;
    }
    return false;
}

/* The text with the mistake, NULL where it has no place for it. */
static inline char *with_meaning(const char *text, const meaning *m) {
    size_t places = 0, from = strlen(m->from), to = strlen(m->to);
    for (const char *at = text; (at = strstr(at, m->from)) != NULL; at += from) places++;
    char *out = places ? malloc(strlen(text) + places * to + 1) : NULL, *end = out;
    for (const char *at = text, *next; out; at = next + from) {
        next = strstr(at, m->from);
        size_t length = next ? (size_t)(next - at) : strlen(at);
        memcpy(end, at, length);
        end += length;
        *end = 0;
        if (!next) break;
        memcpy(end, m->to, to);
        end += to;
    }
    return out;
}

/* True in the child, which goes on with `mutant`. */
static inline bool meaning_fork(const char *file, const meaning *m, const char *(*name_of)(int check)) {
    int status = 0;
    if (mutant_fork(&status)) return true;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    printf("%s, %s: %s\n", file, m->what,
           code < 0                    ? "comes to no end"
           : code == MUTANT_SURVIVES   ? "survives"
           : code == MUTANT_NUMBERS    ? "numbers"
           : code == MUTANT_REFUSED    ? "refused"
           : code >= MUTANT_REPORTED   ? name_of(code - MUTANT_REPORTED)
                                       : "?");
    check(code == MUTANT_NUMBERS || code >= MUTANT_REPORTED, __LINE__, "a mutant survives", m->what);
    return false;
}

#endif
