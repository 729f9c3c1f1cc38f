/* The law of the mesh: draws programs and placements, and checks that loss, gradients, norm and updated weights of every
 * mesh equal those of one rank, and the interpreter's; shrinks what fails; counts which operator met which split.
 *
 *     mesh --dtmc DTMC --compare COMPARE [--mpirun tests/mpirun] [--pairs 300] [--built 2] [--seed 1] [--jobs 2]
 *          [--validate] [--coverage]
 *     mesh .. --pair PAIR --keep FOLDER      one pair, shrunk if it fails, unless with --as-drawn; FOLDER keeps all its files
 *     mesh .. --cuda FLAGS                   executables are for GPUs, and run with FLAGS beside
 *     mesh --print PAIR [--cuda]
 *
 * Five placements are drawn for each program. All go through the verifier and, with --validate, the interpreter before and
 * after every pass; the first --built of the five are executables too, and run. The last line is `N passed, N failed`.
 * With --cuda placements have 4 ranks at most; only those that are built are looked at, and each runs twice: step by step, and as graphs in another order, with the same
 * bits. The loader finds the stand-ins for CUDA's libraries, and NVRTC: without it the status is 77.
 * With --coverage an operator that never met a kind of split it can meet is a failure, and a feature (features.h) that never occurred. */
#include "check.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PLACEMENTS = 5, SHRINK_TRIES = 100, MOST_JOBS = 16, MOST_RANKS = 8, MOST_DEVICES = 4, HEURISTICS = 4, ENOUGH_FAILURES = 3, MPI_EVERY = 8 };

typedef struct shared {
    int passed[MOST_JOBS], failed[MOST_JOBS], ran[MOST_JOBS], by_mpi[MOST_JOBS], without_room[MOST_JOBS];
    bool no_compiler;
    coverage coverage[MOST_JOBS];
} shared;

/* A pair while it is shrunk. */
typedef struct pair {
    checker *checker;
    draws model, placement;
    verdict verdict;
    extras extras;
} pair;

/* What is asked for. */
typedef struct plan {
    checker checker;
    int pairs, jobs, built;
    uint64_t seed, pair; /* pair: one alone, or 0 */
    const char *keep;
} plan;

static void draw_model(uint64_t pair, draws *d, program *out) {
    uint64_t first = pair / PLACEMENTS * PLACEMENTS;
    draws_seed(d, first * 1000003 + 1, first / PLACEMENTS);
    program_draw_model(d, out);
}

static int most_ranks(const char *cuda) { return cuda ? MOST_DEVICES : MOST_RANKS; }

static void draw_placement(uint64_t pair, int most, draws *d, program *out) {
    draws_seed(d, pair * 1000003 + 2, pair);
    program_draw_placement(d, most, out);
}

static verdict check_pair(pair *p, draws *model, draws *placement) {
    program drawn;
    draws_replay(model);
    draws_replay(placement);
    program_draw_model(model, &drawn);
    program_draw_placement(placement, most_ranks(p->checker->cuda), &drawn);
    verdict v = check_one(p->checker, &drawn);
    return v == GOOD ? check_placed(p->checker, &drawn, p->extras) : v;
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

/* What only executables show is shrunk with them, else without. */
static void shrink(pair *p) {
    bool builds = p->checker->builds;
    coverage *kept = p->checker->coverage;
    p->checker->coverage = NULL;
    p->checker->builds = builds && p->verdict != ONE_REFUSED && p->verdict != PLACED_REFUSED && p->verdict != TEXT_DIFFERS;
    int tries = !p->checker->builds ? SHRINK_TRIES : p->checker->cuda ? SHRINK_TRIES / 5 : SHRINK_TRIES / 2;
    draws_shrink(&p->placement, placement_fails, p, tries / 3);
    draws_shrink(&p->model, model_fails, p, tries);
    draws_shrink(&p->placement, placement_fails, p, tries / 3);
    draws model = p->model, placement = p->placement;
    check_pair(p, &model, &placement); /* its files are left */
    p->checker->builds = builds;
    p->checker->coverage = kept;
}

static void print_placement(const program *p) {
    program_print_placement(p, 0, stdout);
    if (p->memory) printf("# and memory = %d %% of what it needs without a bound\n", p->memory);
}

static void report(pair *p, uint64_t number) {
    const checker *c = p->checker;
    program drawn;
    if (!c->as_drawn) shrink(p);
    draws_replay(&p->model);
    draws_replay(&p->placement);
    program_draw_model(&p->model, &drawn);
    program_draw_placement(&p->placement, most_ranks(c->cuda), &drawn);
    printf("FAILED pair %llu: %s\n%s\n", (unsigned long long)number, verdict_text(p->verdict), drawn.model);
    print_placement(&drawn);
    check_print_log(c, stdout);
    printf("again: mesh --dtmc %s --compare %s%s%s%s%s%s --validate --pair %llu --keep FOLDER\n\n", c->dtmc, c->compare,
           c->mpirun ? " --mpirun " : "", c->mpirun ? c->mpirun : "", c->cuda ? " --cuda '" : "", c->cuda ? c->cuda : "",
           c->cuda ? "'" : "", (unsigned long long)number);
    fflush(stdout);
}

static void fail(checker *c, const draws *model, const draws *placement, verdict v, extras extras, uint64_t number) {
    pair p = {.checker = c, .model = *model, .placement = *placement, .verdict = v, .extras = extras};
    report(&p, number);
}

/* Algorithms of the stand-in for cuBLASLt. */
static void choose_algorithms(uint64_t which) {
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)which + 1);
    if (setenv("DTM_SIM_HEURISTIC", text, 1) != 0) perror("setenv"), exit(2);
}

/* The pairs of one program: [first, first + count), or one of them. */
static void run_program(checker *c, const plan *plan, uint64_t first, int count, shared *s, int job) {
    draws model, placement;
    program drawn;
    draw_model(first, &model, &drawn);
    c->builds = plan->built > 0;
    if (c->cuda) choose_algorithms(first / PLACEMENTS % HEURISTICS);
    verdict one = check_one(c, &drawn);
    for (int i = 0; i < count; i++) {
        uint64_t number = first + (uint64_t)i;
        if (plan->pair && plan->pair != number) continue;
        if (c->cuda && i >= plan->built) break; /* others are the CPUs' law's */
        draw_placement(number, most_ranks(c->cuda), &placement, &drawn);
        c->builds = i < plan->built;
        extras extras = {.again = i == 0, .mpi = i == 0 && first / PLACEMENTS % MPI_EVERY == 0};
        verdict v = one == GOOD ? check_placed(c, &drawn, extras) : one;
        if (v == NO_ROOM) {
            s->without_room[job]++;
            continue;
        }
        if (v == NO_COMPILER) {
            s->no_compiler = true;
            return;
        }
        s->ran[job] += c->builds;
        s->by_mpi[job] += c->builds && extras.mpi && c->mpirun;
        s->passed[job] += v == GOOD;
        s->failed[job] += v != GOOD;
        if (v != GOOD && s->failed[job] <= ENOUGH_FAILURES) fail(c, &model, &placement, v, extras, number);
        if (one != GOOD) break; /* the others would say the same */
        if (v != GOOD && !plan->pair) c->builds = plan->built > 0, check_one(c, &drawn);
    }
}

static void work(const plan *plan, shared *s, int job) {
    checker c = plan->checker;
    c.coverage = &s->coverage[job];
    if (plan->keep) {
        mkdir(plan->keep, 0777);
        char *path = realpath(plan->keep, NULL);
        snprintf(c.folder, sizeof c.folder, "%s", path ? path : plan->keep);
        free(path);
    } else {
        snprintf(c.folder, sizeof c.folder, "%s/dtm-mesh-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
        if (!mkdtemp(c.folder)) perror("mkdtemp"), exit(2);
    }
    for (int first = job * PLACEMENTS; first < plan->pairs; first += plan->jobs * PLACEMENTS) {
        int count = plan->pairs - first < PLACEMENTS ? plan->pairs - first : PLACEMENTS;
        uint64_t base = plan->pair ? plan->pair / PLACEMENTS * PLACEMENTS : plan->seed * 1000000;
        run_program(&c, plan, base + (uint64_t)first, count, s, job);
    }
    char text[512];
    snprintf(text, sizeof text, "rm -rf %s", c.folder);
    if (!plan->keep && system(text)) exit(2);
}

static void print_pair(uint64_t pair, int most) {
    draws model, placement;
    program drawn;
    draw_model(pair, &model, &drawn);
    draw_placement(pair, most, &placement, &drawn);
    printf("%s\n", drawn.model);
    print_placement(&drawn);
}

static bool parse(int argc, char **argv, plan *out, bool *judge_coverage) {
    static char dtmc[PATH_MAX], compare[PATH_MAX], mpirun[PATH_MAX];
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--validate") == 0) out->checker.validate = true;
        else if (strcmp(argv[i], "--as-drawn") == 0) out->checker.as_drawn = true;
        else if (strcmp(argv[i], "--coverage") == 0) *judge_coverage = true;
        else if (strcmp(argv[i], "--dtmc") == 0) out->checker.dtmc = realpath(value, dtmc), i++;
        else if (strcmp(argv[i], "--compare") == 0) out->checker.compare = realpath(value, compare), i++;
        else if (strcmp(argv[i], "--mpirun") == 0) out->checker.mpirun = realpath(value, mpirun), i++;
        else if (strcmp(argv[i], "--cuda") == 0) out->checker.cuda = value, i++;
        else if (strcmp(argv[i], "--pairs") == 0) out->pairs = atoi(value), i++;
        else if (strcmp(argv[i], "--built") == 0) out->built = atoi(value), i++;
        else if (strcmp(argv[i], "--jobs") == 0) out->jobs = atoi(value), i++;
        else if (strcmp(argv[i], "--seed") == 0) out->seed = strtoull(value, NULL, 10), i++;
        else if (strcmp(argv[i], "--pair") == 0) out->pair = strtoull(value, NULL, 10), i++;
        else if (strcmp(argv[i], "--keep") == 0) out->keep = value, i++;
        else return false;
    }
    if (out->pair) out->pairs = out->built = PLACEMENTS, out->jobs = 1;
    return out->checker.dtmc && (out->built == 0 || out->checker.compare) && out->jobs >= 1 && out->jobs <= MOST_JOBS &&
           (!out->keep || out->jobs == 1);
}

int main(int argc, char **argv) {
    bool of_cuda = argc == 4 && strcmp(argv[3], "--cuda") == 0;
    if ((argc == 3 || of_cuda) && strcmp(argv[1], "--print") == 0)
        return print_pair(strtoull(argv[2], NULL, 10), most_ranks(of_cuda ? argv[3] : NULL)), 0;
    plan plan = {.pairs = 300, .jobs = 2, .built = 2, .seed = 1};
    bool judge_coverage = false;
    if (!parse(argc, argv, &plan, &judge_coverage)) {
        fprintf(stderr, "usage: mesh --dtmc DTMC --compare COMPARE [--mpirun FILE] [--cuda FLAGS] [--pairs N] [--built N] [--seed N] "
                        "[--jobs N] [--validate] [--coverage] [--pair N --keep FOLDER]\n");
        return 2;
    }
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED) return perror("mmap"), 2;
    fflush(stdout);
    for (int job = 0; job < plan.jobs; job++)
        if (fork() == 0) {
            work(&plan, s, job);
            fflush(stdout);
            _exit(0);
        }
    int passed = 0, failed = 0, ran = 0, by_mpi = 0, without_room = 0, status;
    while (wait(&status) > 0) failed += !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    coverage all = {0};
    for (int job = 0; job < plan.jobs; job++) {
        passed += s->passed[job], failed += s->failed[job];
        ran += s->ran[job], by_mpi += s->by_mpi[job], without_room += s->without_room[job];
        coverage_merge(&all, &s->coverage[job]);
    }
    if (s->no_compiler) return printf("skipped: there is no NVRTC\n"), 77;
    int missing = plan.pair ? 0 : coverage_print(&all, stdout), pairs = passed + failed;
    if (judge_coverage && missing) printf("%d kinds of split and features were never met\n", missing), failed++;
    if (without_room) printf("%d more pairs were refused for want of memory\n", without_room);
    printf("%d pairs%s; %d of them ran as executables too, %d by mpirun as well\n", pairs,
           plan.checker.validate ? ", interpreted after every pass" : "", ran, by_mpi);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
