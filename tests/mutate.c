/* Mutated programs: takes programs and dumps apart into tokens and puts them together wrongly, so that what comes passes
 * the scanner and often the parser. Whatever it is, dtmc's front end and passes must end soon, without a crash or a leak,
 * with a module or with an error; what parses must print, and print again the same.
 *
 *     mutate [--count 10000] [--seed 1] FILE.dtm|FILE.case..
 *     mutate --write FOLDER FILE.dtm|FILE.case..      only writes what they start from, for fuzz_text
 *
 * Build it with the sanitizers. Programs that the mutants start from are the files, and the dump of each after every
 * pass; of a case (run.c) the programs and dumps in it, which break the rules of the verifier one by one. The last line is `N passed, N failed`; a failing input stays in /tmp/dtm-mutant-SEED-N.dtm. */
#include "codegen/codegen.h"
#include "frontend/ast.h"
#include "frontend/check.h"
#include "frontend/format.h"
#include "passes/pipeline.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_SEEDS = 512, MOST_TOKENS = 8192, BATCH = 250, MOST_SECONDS = 20, MOST_PASS_BYTES = 20000 };

static char *seeds[MOST_SEEDS];
static int n_seeds;
static uint64_t state;

static uint32_t next(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

/* ---- what one input must do ---- */

static void broken(const char *what) {
    fprintf(stderr, "mutate: %s\n", what);
    abort();
}

/* Formatting what was formatted changes nothing. */
static void check_format(const char *text) {
    dtm_context *context = dtm_context_create();
    const dtm_ast *ast = dtm_parse(context, dtm_source_add(context, "mutant.dtm", text, strlen(text)));
    if (ast && !dtm_error_count(context)) {
        dtm_text once = {.arena = dtm_context_arena(context)}, twice = once;
        dtm_ast_format(context, ast, &once);
        dtm_text_append(&once, "", 0);
        const dtm_ast *again = dtm_parse(context, dtm_source_add(context, "again.dtm", once.data, once.length));
        if (!again || dtm_error_count(context)) broken("what `fmt` prints does not parse");
        dtm_ast_format(context, again, &twice);
        if (once.length != twice.length || (once.length && memcmp(once.data, twice.data, once.length))) broken("`fmt` is not stable");
    } else if (!dtm_error_count(context)) {
        broken("no tree, and no error");
    }
    dtm_context_destroy(context);
}

static void check_compile(const char *path, bool passes) {
    static const dtm_check_options options;
    dtm_context *context = dtm_context_create();
    dtm_module *module = dtm_check(context, path, &options);
    if (!module && !dtm_error_count(context)) broken("no module, and no error");
    if (module && dtm_error_count(context)) broken("a module in spite of errors");
    if (module && passes && dtm_module_verify(module)) {
        dtm_pipeline_options pipeline = {.verify = true};
        dtm_text plan = {.arena = dtm_context_arena(context)}, kernels = plan;
        bool made = dtm_pipeline_run(module, &pipeline) && dtm_codegen(module, NULL, &plan, &kernels);
        if (!made && !dtm_error_count(context)) broken("a pass failed without an error");
    }
    FILE *sink = fopen("/dev/null", "w");
    if (sink) dtm_diagnostics_print(context, sink, true), fclose(sink);
    dtm_module_destroy(module);
    dtm_context_destroy(context);
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0) perror(path), exit(2);
}

/* ---- tokens ---- */

typedef struct tokens {
    char *text; /* of all, one after the other, zero-terminated */
    const char *at[MOST_TOKENS];
    int count;
} tokens;

static size_t token_length(const char *at) {
    size_t n = 0;
    if (isalnum((unsigned char)*at) || *at == '_') {
        while (isalnum((unsigned char)at[n]) || at[n] == '_' || at[n] == '.') n++;
    } else if (*at == ' ') {
        n = strspn(at, " ");
    } else if (*at == '"') {
        n = 1 + strcspn(at + 1, "\"\n");
        n += at[n] == '"';
    } else {
        n = 1;
    }
    return n;
}

static void take_apart(const char *text, tokens *out) {
    out->text = malloc(2 * strlen(text) + 1);
    if (!out->text) exit(2);
    char *to = out->text;
    for (out->count = 0; *text && out->count < MOST_TOKENS;) {
        size_t n = token_length(text);
        memcpy(to, text, n);
        to[n] = 0;
        out->at[out->count++] = to;
        to += n + 1;
        text += n;
    }
}

static const char *const vocabulary[] = {
    "0", "1", "-1", "2", "3", "7", "1e-5", "1e308", "1e-320", "0x7fffffffffffffff", "9223372036854775807",
    "99999999999999999999", "8k", "64G", "inf", "none", "f32", "i32", "bf16", "bool", "f32[]", "over", "at", "as", "where",
    "by cost", "using", "ring", "alltoall", "gather", "splits", "keep", "expect", "dim", "const", "mesh", "parallel", "train",
    "model", "def", "return", "repeat", "input", "weight", "loss", "report", "output", "use", "machine", "zero", "recompute",
    "microbatches", "causal", "window", "scale", "eps", "base", "part", "interleaved", "smooth", "frozen", "no decay", "from",
    "named", "why", "@", "@ 7", "sum@tp", "max@dp", "B=8@tp", "S=16@dp.tp", "all_reduce", "all_gather", "reduce_scatter",
    "all_to_all", "permute", "relayout", "carry", "last", "store", "gradient", "forward", "backward", "update", "fused",
    "dot", "sum", "mean", "max", "softmax", "rmsnorm", "layernorm", "attention", "rope", "positions", "cross_entropy",
    "dropout", "split", "merge", "rename", "concat", "slice", "top", "experts", "cast", "B", "S", "D", "F", "H", "G", "K", "V",
    "x", "h", "q", "tokens", "(", ")", "[", "]", "{", "}", "=", ":", ",", ";", "+", "-", "*", "/", "%", "<", "==", "..", "~",
    "\n", "#", "\"", "\"a\"", "\\", "\xc3\xa9", "\t", "GB", "us"};

static const char *any_token(const tokens *t) {
    if (next(2) && t->count) return t->at[next((uint32_t)t->count)];
    return vocabulary[next(sizeof vocabulary / sizeof *vocabulary)];
}

static void drop(tokens *t, int at, int n) {
    if (at + n > t->count) n = t->count - at;
    memmove(t->at + at, t->at + at + n, (size_t)(t->count - at - n) * sizeof *t->at);
    t->count -= n;
}

static void insert(tokens *t, int at, const char *token) {
    if (t->count == MOST_TOKENS) return;
    memmove(t->at + at + 1, t->at + at, (size_t)(t->count - at) * sizeof *t->at);
    t->at[at] = token;
    t->count++;
}

/* The line around a token: [*begin, *end), its newline included. */
static void line_of(const tokens *t, int at, int *begin, int *end) {
    for (*begin = at; *begin > 0 && t->at[*begin - 1][0] != '\n'; --*begin) {}
    for (*end = at; *end < t->count && t->at[*end][0] != '\n'; ++*end) {}
    if (*end < t->count) ++*end;
}

static void mutate(tokens *t) {
    if (!t->count) return;
    int at = (int)next((uint32_t)t->count), begin, end;
    line_of(t, at, &begin, &end);
    switch (next(9)) {
    case 0: drop(t, at, 1 + (int)next(3)); break;
    case 1: insert(t, at, any_token(t)); break;
    case 2:
    case 3:
    case 4: t->at[at] = any_token(t); break;
    case 5: drop(t, begin, end - begin); break;
    case 6: /* the line once more, elsewhere */
        for (int i = begin, to = (int)next((uint32_t)t->count); i < end && end - begin < 200; i++, to++) insert(t, to, t->at[i]);
        break;
    case 7: {
        int other = (int)next((uint32_t)t->count);
        const char *token = t->at[at];
        t->at[at] = t->at[other];
        t->at[other] = token;
        break;
    }
    case 8: t->count = at; break;
    }
}

static char *put_together(const tokens *t) {
    size_t length = 0;
    for (int i = 0; i < t->count; i++) length += strlen(t->at[i]);
    char *text = malloc(length + 1), *to = text;
    if (!text) exit(2);
    for (int i = 0; i < t->count; i++) to = stpcpy(to, t->at[i]);
    *to = 0;
    return text;
}

static char *mutant(void) {
    tokens t;
    take_apart(seeds[next((uint32_t)n_seeds)], &t);
    int times = next(20) == 0 ? 12 : 1 + (int)next(3);
    for (int i = 0; i < times; i++) mutate(&t);
    char *text = put_together(&t);
    free(t.text);
    return text;
}

/* ---- seeds ---- */

static void add_seed(const char *text) {
    if (n_seeds < MOST_SEEDS && !(seeds[n_seeds++] = strdup(text))) exit(2);
}

static void add_dump(dtm_module *module, const char *pass, void *unused) {
    (void)pass, (void)unused;
    dtm_text out = {.arena = module->arena};
    dtm_print_options options = {.local_shapes = false};
    dtm_module_print(module, &options, &out);
    dtm_text_append(&out, "", 1);
    add_seed(out.data);
}

static const char *read_file(const char *path) {
    FILE *file = fopen(path, "r");
    static char text[1 << 20];
    if (!file) perror(path), exit(2);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

static void add_program(const char *path) {
    add_seed(read_file(path));
    static const dtm_check_options options;
    dtm_context *context = dtm_context_create();
    dtm_module *module = dtm_check(context, path, &options);
    if (module) {
        add_dump(module, "check", NULL);
        dtm_pipeline_options pipeline = {.after = add_dump};
        dtm_pipeline_run(module, &pipeline);
    }
    dtm_module_destroy(module);
    dtm_context_destroy(context);
}

/* The text before `---- expect` is programs, each but the first behind `---- file NAME`. */
static void add_case(const char *path) {
    char *text = strdup(read_file(path)), *at = text, *next;
    char *end = text ? strstr(text, "\n---- expect") : NULL;
    if (end) *end = 0;
    for (; at; at = next) {
        next = strstr(at, "\n---- file ");
        if (next) *next++ = 0;
        if (*at == '-') at += strcspn(at, "\n");
        if (strstr(at, "model")) add_seed(at);
    }
    free(text);
}

static void add_file(const char *path) {
    size_t length = strlen(path);
    if (length > 5 && !strcmp(path + length - 5, ".case")) add_case(path);
    else add_program(path);
}

/* ---- batches, each in a process of its own ---- */

/* Inputs [first, last) of the sequence; the number of each stands in the pipe when it is done. */
static void run_batch(uint64_t seed, int first, int last, const char *path, int done) {
    for (int i = first; i < last; i++) {
        state = seed * 1000003 + (uint64_t)i;
        next(1), next(1);
        char *text = mutant();
        write_file(path, text);
        alarm(MOST_SECONDS);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        check_format(text);
        check_compile(path, strlen(text) < MOST_PASS_BYTES);
        free(text);
        if (write(done, &i, sizeof i) != sizeof i) _exit(3);
    }
}

/* Returns how many inputs failed. */
static int run(uint64_t seed, int count) {
    int failed = 0;
    char path[128];
    for (int first = 0; first < count;) {
        int last = first + BATCH < count ? first + BATCH : count, ends[2], finished = first - 1, status;
        snprintf(path, sizeof path, "/tmp/dtm-mutant-%llu-%d.dtm", (unsigned long long)seed, first);
        if (pipe(ends)) exit(2);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            close(ends[0]);
            run_batch(seed, first, last, path, ends[1]);
            for (int i = 0; i < n_seeds; i++) free(seeds[i]);
            exit(0);
        }
        close(ends[1]);
        while (read(ends[0], &finished, sizeof finished) == sizeof finished) {}
        close(ends[0]);
        waitpid(child, &status, 0);
        bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (good) {
            unlink(path);
            first = last;
            continue;
        }
        failed++;
        bool late = WIFSIGNALED(status) && WTERMSIG(status) == 14;
        printf("FAILED input %d, %s: %s\n", finished + 1, finished + 1 < last ? path : "some input of its batch",
               late ? "not done in time" : finished + 1 < last ? "a crash" : "a leak");
        first = finished + 2; /* go on behind it */
    }
    return failed;
}

static void write_seeds(const char *folder) {
    char path[4200];
    if (mkdir(folder, 0777) && errno != EEXIST) perror(folder), exit(2);
    for (int i = 0; i < n_seeds; i++) {
        snprintf(path, sizeof path, "%.4000s/%d.dtm", folder, i);
        write_file(path, seeds[i]);
    }
}

int main(int argc, char **argv) {
    int count = 10000;
    uint64_t seed = 1;
    const char *folder = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--count") == 0 && i + 1 < argc) count = atoi(argv[++i]);
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--write") == 0 && i + 1 < argc) folder = argv[++i];
        else add_file(argv[i]);
    }
    if (!n_seeds) return fprintf(stderr, "usage: mutate [--count N] [--seed N] FILE.dtm..\n"), 2;
    if (folder) return write_seeds(folder), 0;
    int failed = run(seed, count);
    printf("%d passed, %d failed\n", count - failed, failed);
    return failed != 0;
}
