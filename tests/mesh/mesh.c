/* The law of the mesh: draws programs and placements, and checks that loss, gradients, norm and updated weights of every
 * mesh equal those of one rank; shrinks what fails; counts which operator met which split.
 *
 *     mesh --dtmc DTMC --compare COMPARE --cc CC [--pairs 300] [--seed 1] [--jobs 2] [--validate] [--interpret]
 *          [--coverage]
 *     mesh --print PAIR
 *
 * Five placements are drawn for each program. --validate interprets before and after every pass, --interpret does
 * that alone and builds nothing. The last line is `N passed, N failed`. With --coverage an operator that never
 * met an even, an uneven or an empty split is a failure. A failure prints its pair, shrunk, and the seed. */
#include "check.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PLACEMENTS = 5, SHRINK_TRIES = 60, MOST_JOBS = 16, ENOUGH_FAILURES = 3 };

typedef struct shared {
    int passed[MOST_JOBS], failed[MOST_JOBS];
    coverage coverage[MOST_JOBS];
} shared;

/* A pair while it is shrunk. */
typedef struct pair {
    checker *checker;
    draws model, placement;
    verdict verdict;
    bool twice;
} pair;

static verdict check_pair(pair *p, draws *model, draws *placement) {
    program drawn;
    draws_replay(model);
    draws_replay(placement);
    program_draw_model(model, &drawn);
    program_draw_placement(placement, &drawn);
    verdict v = check_one(p->checker, &drawn);
    return v == GOOD ? check_placed(p->checker, &drawn, p->twice) : v;
}

static bool model_fails(draws *d, void *state) {
    pair *p = state;
    draws placement = p->placement;
    return check_pair(p, d, &placement) == p->verdict;
}

static bool placement_fails(draws *d, void *state) {
    pair *p = state;
    draws model = p->model;
    return check_pair(p, &model, d) == p->verdict;
}

static void report(pair *p, uint64_t seed) {
    coverage *kept = p->checker->coverage;
    p->checker->coverage = NULL;
    draws_shrink(&p->placement, placement_fails, p, SHRINK_TRIES / 3);
    draws_shrink(&p->model, model_fails, p, SHRINK_TRIES);
    draws_shrink(&p->placement, placement_fails, p, SHRINK_TRIES / 3);
    program drawn;
    draws model = p->model, placement = p->placement;
    check_pair(p, &model, &placement);
    draws_replay(&model);
    draws_replay(&placement);
    program_draw_model(&model, &drawn);
    program_draw_placement(&placement, &drawn);
    printf("FAILED pair %llu: %s\n%s\n%s", (unsigned long long)seed, verdict_text(p->verdict), drawn.model, drawn.placement);
    check_print_log(p->checker, stdout);
    fflush(stdout);
    p->checker->coverage = kept;
}

/* The pairs of one program: [first, first + count). */
static void run_program(checker *c, uint64_t first, int count, int *passed, int *failed) {
    draws model;
    program drawn;
    draws_seed(&model, first * 1000003 + 1);
    program_draw_model(&model, &drawn);
    verdict one = check_one(c, &drawn);
    for (int i = 0; i < count; i++) {
        draws placement;
        draws_seed(&placement, (first + (uint64_t)i) * 1000003 + 2);
        program_draw_placement(&placement, &drawn);
        bool twice = i == 0;
        verdict v = one == GOOD ? check_placed(c, &drawn, twice) : one;
        if (v == GOOD) {
            ++*passed;
            continue;
        }
        ++*failed;
        pair p = {.checker = c, .model = model, .placement = placement, .verdict = v, .twice = twice};
        if (*failed <= ENOUGH_FAILURES) report(&p, first + (uint64_t)i);
        if (one != GOOD) break; /* the others would say the same */
        check_one(c, &drawn);
    }
}

static void print_pair(uint64_t pair) {
    draws model, placement;
    program drawn;
    draws_seed(&model, pair / PLACEMENTS * PLACEMENTS * 1000003 + 1);
    draws_seed(&placement, pair * 1000003 + 2);
    program_draw_model(&model, &drawn);
    program_draw_placement(&placement, &drawn);
    printf("%s\n%s", drawn.model, drawn.placement);
}

static void work(checker c, shared *s, int job, int jobs, uint64_t seed, int pairs) {
    snprintf(c.folder, sizeof c.folder, "%s/dtm-mesh-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(c.folder)) perror("mkdtemp"), exit(2);
    c.coverage = &s->coverage[job];
    for (int first = job * PLACEMENTS; first < pairs; first += jobs * PLACEMENTS) {
        int count = pairs - first < PLACEMENTS ? pairs - first : PLACEMENTS;
        run_program(&c, seed * 1000000 + (uint64_t)first, count, &s->passed[job], &s->failed[job]);
    }
    char text[512];
    snprintf(text, sizeof text, "rm -rf %s", c.folder);
    if (system(text)) exit(2);
}

int main(int argc, char **argv) {
    checker c = {0};
    int pairs = 300, jobs = 2;
    uint64_t seed = 1;
    bool judge_coverage = false;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--validate") == 0) c.validate = true;
        else if (strcmp(argv[i], "--interpret") == 0) c.interpret = c.validate = true;
        else if (strcmp(argv[i], "--coverage") == 0) judge_coverage = true;
        else if (strcmp(argv[i], "--print") == 0) return print_pair(strtoull(value, NULL, 10)), 0;
        else if (strcmp(argv[i], "--dtmc") == 0) c.dtmc = realpath(value, NULL), i++;
        else if (strcmp(argv[i], "--compare") == 0) c.compare = realpath(value, NULL), i++;
        else if (strcmp(argv[i], "--cc") == 0) c.cc = value, i++;
        else if (strcmp(argv[i], "--pairs") == 0) pairs = atoi(value), i++;
        else if (strcmp(argv[i], "--jobs") == 0) jobs = atoi(value), i++;
        else if (strcmp(argv[i], "--seed") == 0) seed = strtoull(value, NULL, 10), i++;
    }
    if (!c.dtmc || (!c.interpret && (!c.compare || !c.cc)) || jobs < 1 || jobs > MOST_JOBS) {
        fprintf(stderr, "usage: mesh --dtmc DTMC --compare COMPARE --cc CC [--pairs N] [--seed N] [--jobs N] [--validate] "
                        "[--coverage]\n");
        return 2;
    }
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED) return perror("mmap"), 2;
    fflush(stdout);
    for (int job = 0; job < jobs; job++)
        if (fork() == 0) {
            work(c, s, job, jobs, seed, pairs);
            fflush(stdout);
            _exit(0);
        }
    int passed = 0, failed = 0, status;
    while (wait(&status) > 0) failed += !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    coverage all = {0};
    for (int job = 0; job < jobs; job++) {
        passed += s->passed[job], failed += s->failed[job];
        coverage_merge(&all, &s->coverage[job]);
    }
    int missing = coverage_print(&all, stdout);
    if (judge_coverage && missing) printf("%d kinds of split were never met\n", missing), failed++;
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
