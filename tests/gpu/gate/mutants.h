/* Mutants of the kernels of a test (tests/gpu/sim/mutants.h): DTM_KERNEL_MUTANTS=STEP[:ARCHITECTURE] makes `load` of each program go
 * through every STEP-th of them that lies on a line which the tests run, of guards every eighth of those. A mutant is a child of the
 * process, in which the tests go on with it in place of the program of all architectures, up to the next `load`: a report, or a number that
 * is wrong, shows it. What survives is printed, but for branches that lost their guard, of which many only save work (as in a division of
 * 64 bits); nothing else may survive. */
#ifndef DTM_TEST_MUTANTS_H
#define DTM_TEST_MUTANTS_H

#include "runtime/test_check.h"
#include "tests/gpu/sim/mutants.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MUTANT_SURVIVES = 0, MUTANT_NUMBERS = 1, MUTANT_REPORTED = 32, MUTANT_LINES = 1 << 16 };
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
        alarm(120);
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) abort();
        return true;
    }
    if (waitpid(child, status, 0) != child) abort();
    return false;
}

/* After a program was loaded: `text` is its PTX for one architecture. Returns NULL, in the process that goes on without a mistake, or
 * the text that a child goes on with. */
static inline char *mutants_of(const char *name, const char *text, int step) {
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
        if (!runs_it || (about.mutation == SIM_NO_GUARD && guards++ % 8) || runs++ % step) {
            free(mutant);
            continue;
        }
        if (mutant_fork(&status)) return mutant;
        free(mutant);
        int m = (int)about.mutation, code = WIFEXITED(status) ? WEXITSTATUS(status) : MUTANT_NUMBERS;
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

#endif
