/* Runs commands for one random pair: see check.h. */
#include "check.h"

#include "compiled.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RUN_SEED = 5, DATA_SEED = 7, ROUNDED = 3, ROUNDED_HALVES = 6, NAMES = 8 };

const char *verdict_text(verdict v) {
    static const char *const texts[] = {
        "good", "the one-rank program does not compile", "the one-rank program does not run",
        "the one-rank program computes something else than the interpreter", "the placed program does not compile",
        "the placed program does not run", "the law of the mesh does not hold",
        "the placed program computes something else than the interpreter", "two runs differ in their bits",
        "a dump taken up again differs", "there is not as much memory as is needed at least",
        "there is no NVRTC"};
    return texts[v];
}

/* Runs a command in the checker's folder, its output in `log`. */
__attribute__((format(printf, 2, 3))) static bool command(const checker *c, const char *format, ...) {
    char text[4096];
    int length = snprintf(text, sizeof text, "cd %s && { ", c->folder);
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(text + length, sizeof text - (size_t)length, format, arguments);
    va_end(arguments);
    snprintf(text + length, sizeof text - (size_t)length, "; } >log 2>&1");
    int status = system(text);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static const char *in_folder(const checker *c, const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", c->folder, name);
    return path;
}

static void write_program(const checker *c, const char *name, const char *model, const char *placement) {
    const char *path = in_folder(c, name);
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "%s\n%s", model, placement) < 0 || fclose(file) != 0) perror(path), exit(2);
}

static void write_placed(const checker *c, const program *p, int64_t memory) {
    const char *path = in_folder(c, "placed.dtm");
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "%s\n", p->model) < 0) perror(path), exit(2);
    program_print_placement(p, memory, file);
    if (fclose(file) != 0) perror(path), exit(2);
}

static bool build(const checker *c, const char *name) {
    return command(c, "timeout -k 1 120 %s build %s %s.dtm -o %s.program", c->dtmc, c->cuda ? "--target cuda" : "--draft", name, name);
}

static char *read_log(const checker *c) {
    FILE *file = fopen(in_folder(c, "log"), "r");
    if (!file) return NULL;
    size_t capacity = 1 << 20, length;
    char *text = malloc(capacity);
    if (!text) exit(2);
    length = fread(text, 1, capacity - 1, file);
    text[length] = 0;
    fclose(file);
    return text;
}

typedef enum manner {
    WATCHED, /* gradients are saved, replicas compared */
    LATE,    /* every message is late */
    APART,   /* on GPUs: nothing is read on the way, so that steps are graphs; in another order of what is not ordered */
} manner;

/* Leaves log.jsonl, weights and, if it is watched, grads in the folder `into`. */
static bool train(const checker *c, const char *launcher, const char *name, const char *into, manner manner) {
    static const char *const flags[] = {"--check-replicas --save-grads grads.safetensors",
                                        "--check-replicas --save-grads grads.safetensors --disturb 1", ""};
    return command(c,
                   "rm -rf %s && mkdir %s && cd %s && %s timeout -k 1 %d %s ../%s.program train --threads 1 --seed %d --quiet "
                   "--data ../data.safetensors --steps %d --log log.jsonl --save-weights weights.safetensors %s %s %s",
                   into, into, into, manner == APART ? "DTM_SIM_SEED=2" : "", c->cuda ? 500 : 60, launcher, name, RUN_SEED, DATA_STEPS,
                   flags[manner], c->cuda ? c->cuda : "", *launcher ? "" : "--local");
}

/* Whether the only complaint of a run is that there is nothing to compile kernels by. */
static bool lacks_compiler(const checker *c) {
    char *log = c->cuda ? read_log(c) : NULL;
    bool lacks = log && strstr(log, "libnvrtc is missing");
    free(log);
    return lacks;
}

/* The folders of one program's interpretations, `FILE.KIND1` and so on. */
typedef struct folders {
    char paths[NAMES][512];
    interpreting items[NAMES];
    int count;
} folders;

static void add_folder(const checker *c, folders *f, const char *file, const char *kind, uint64_t rounding, bool nearest) {
    snprintf(f->paths[f->count], sizeof f->paths[0], rounding ? "%s/%s.%s%d" : "%s/%s.%s", c->folder, file, kind, (int)rounding);
    f->items[f->count] = (interpreting){f->paths[f->count], rounding, nearest};
    f->count++;
}

/* Those of a program that draw lots; what they are told from is `FILE.exact`. nearest: not for bf16 and f16. */
static void add_lots(const checker *c, folders *f, const char *file, int count, bool nearest) {
    for (int i = 1; i <= count; i++) add_folder(c, f, file, nearest ? "near" : "lot", (uint64_t)i, nearest);
}

static compiled_options options_of(const checker *c, const char *file) {
    static char names[2][512];
    static int next;
    char *path = names[next++ % 2];
    snprintf(path, sizeof names[0], "%s/%s.dtm", c->folder, file);
    return (compiled_options){.file = path, .log = in_folder(c, "log"), .data = in_folder(c, "data.safetensors"), .steps = DATA_STEPS, .seed = RUN_SEED};
}

static bool compare_rounded(const checker *c, const char *one, const char *other, const char *file, const folders *lots) {
    char rounded[NAMES * 540] = "";
    for (int i = 0; i < lots->count; i++) snprintf(rounded + strlen(rounded), 540, " --rounded %s", lots->paths[i]);
    return command(c, "%s runs %s %s --exact %s.exact%s", c->compare, one, other, file, rounded);
}

/* Whether two runs agree: within the tolerances or, where rounding every value to a float does more than those allow to
 * this program, within a few times of what it does. Values in bf16 and f16 are rounded to the nearest meanwhile. */
static bool agree(const checker *c, const char *one, const char *other, const char *file) {
    if (command(c, "%s runs %s %s", c->compare, one, other)) return true;
    folders lots = {.count = 0};
    add_lots(c, &lots, file, ROUNDED, true);
    compiled_options options = options_of(c, file);
    options.interpretings = lots.items, options.n_interpretings = lots.count;
    if (access(lots.paths[0], F_OK) != 0 && !compiled_check(&options)) return false;
    return compare_rounded(c, one, other, file, &lots);
}

/* The law where values are in bf16 or f16. A mesh rounds what one rank does not: terms of sums, and what is done apart in several
 * steps. So what the placed program computes, as the interpreter does it with the roundings that it says, may differ from what one
 * rank does by a few times what such roundings by lot do to it. Its executable has no such excuse: it rounds as the interpreter; but
 * for GPUs, whose library of products rounds where it likes. */
static bool halves_agree(const checker *c, const char *one, const char *other, const char *file) {
    folders lots = {.count = 0};
    add_lots(c, &lots, file, ROUNDED_HALVES, false);
    return compare_rounded(c, one, other, file, &lots);
}

verdict check_one(checker *c, const program *p) {
    write_program(c, "one.dtm", p->model, "mesh { one = 1 }\n");
    if (!command(c, "rm -rf *.program one placed one.?*[!m] placed.?*[!m]")) exit(2);
    if (!program_write_data(p, DATA_SEED, in_folder(c, "data.safetensors"))) exit(2);
    compiled_options options = options_of(c, "one");
    folders exact = {.count = 0};
    add_folder(c, &exact, "one", "exact", 0, false);
    if (p->halves && c->cuda) add_lots(c, &exact, "one", ROUNDED_HALVES, false);
    options.validate = c->validate, options.interpretings = exact.items, options.n_interpretings = exact.count;
    if (!compiled_check(&options)) return ONE_REFUSED;
    if (!c->builds) return GOOD;
    if (!build(c, "one") || !train(c, "", "one", "one", WATCHED)) return lacks_compiler(c) ? NO_COMPILER : ONE_FAILED;
    bool good = p->halves && c->cuda ? halves_agree(c, "one.exact", "one", "one") : agree(c, "one.exact", "one", "one");
    return good ? GOOD : ONE_DIFFERS;
}

/* Dumps taken up again give the same last dump, byte for byte. */
static bool same_text(const checker *c) {
    return command(c,
                   "%s ir placed.dtm --after memory >whole && for p in canonicalize autodiff shard partition schedule fuse; do "
                   "%s ir placed.dtm --after $p >dump && %s ir dump --from $p --after memory | cmp - whole || exit 1; done",
                   c->dtmc, c->dtmc, c->dtmc);
}

/* Whether the only complaint is of too little memory. */
static bool lacks_room(const checker *c) {
    char *log = read_log(c);
    int errors = 0, of_room = 0;
    for (const char *at = log; at && (at = strstr(at, "error[")); at++) {
        errors++;
        of_room += strncmp(at, "error[E0412]", 12) == 0 || strncmp(at, "error[E0907]", 12) == 0;
    }
    free(log);
    return errors && errors == of_room;
}

/* The bytes that the fullest rank needs where there is no bound; -1: it was refused. */
static int64_t bytes_needed(const checker *c, const program *p) {
    compiled_options options = {.file = in_folder(c, "placed.dtm"), .log = in_folder(c, "log"), .arena = in_folder(c, "arena")};
    long long bytes = -1;
    write_placed(c, p, 0);
    if (!compiled_check(&options)) return -1;
    FILE *file = fopen(in_folder(c, "arena"), "r");
    if (!file || fscanf(file, "%lld", &bytes) != 1) perror("arena"), exit(2);
    fclose(file);
    return bytes;
}

verdict check_placed(checker *c, const program *p, extras extras) {
    int64_t needed = p->memory ? bytes_needed(c, p) : 0, memory = needed * p->memory / 100;
    if (needed < 0) return PLACED_REFUSED;
    write_placed(c, p, memory);
    compiled_options options = options_of(c, "placed");
    folders all = {.count = 0};
    if (p->halves) add_folder(c, &all, "placed", "exact", 0, false), add_lots(c, &all, "placed", ROUNDED_HALVES, false);
    if (!command(c, "rm -rf placed.?*[!m]")) exit(2);
    options.validate = c->validate, options.coverage = c->coverage;
    options.interpretings = all.items, options.n_interpretings = all.count;
    if (!compiled_check(&options)) return memory && lacks_room(c) ? NO_ROOM : PLACED_REFUSED;
    if (extras.again && !same_text(c)) return TEXT_DIFFERS;
    if (p->halves && !halves_agree(c, "placed.exact", "one.exact", "placed")) return DIFFERS;
    if (!c->builds) return GOOD;
    if (!build(c, "placed") || !train(c, "", "placed", "placed", WATCHED)) return PLACED_FAILED;
    bool good = !p->halves ? agree(c, "one", "placed", "one") && agree(c, "one.exact", "placed", "one")
                : c->cuda  ? halves_agree(c, "placed.exact", "placed", "placed")
                           : agree(c, "placed.exact", "placed", "placed");
    if (!good) return p->halves ? PLACED_DIFFERS : DIFFERS;
    if (extras.again || c->cuda) {
        if (!train(c, "", "placed", "again", c->cuda ? APART : p->ranks > 1 ? LATE : WATCHED)) return PLACED_FAILED;
        if (!command(c, "%s bits placed again", c->compare)) return BITS_DIFFER;
    }
    if (extras.mpi && c->mpirun) {
        char launcher[600];
        snprintf(launcher, sizeof launcher, "sh %s %d", c->mpirun, p->ranks);
        if (!train(c, launcher, "placed", "mpi", WATCHED)) return PLACED_FAILED;
        if (!command(c, "%s bits placed mpi", c->compare)) return BITS_DIFFER;
    }
    return GOOD;
}

void check_print_log(const checker *c, FILE *out) {
    char *log = read_log(c);
    char *line = log ? strstr(log, "error") : NULL; /* warnings come first */
    while (line && line > log && line[-1] != '\n') line--;
    if (!line) line = log;
    for (int n = 0; line && *line && n < 30; n++) {
        size_t length = strcspn(line, "\n");
        fprintf(out, "    %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
    free(log);
}
