/* The compile gate: what the kernels' sources are compiled to, by the NVRTC that there is, for every architecture.
 *     compile SOURCE_ROOT PACKAGES [--rewrite | --quick]      --quick: for two architectures
 * Every file of good/ compiles for all of them with no spill, no stack, no local memory, no call, no f64, no atomics on
 * floating-point numbers, no warning, and bounds on its launches; what each kernel takes is held against table.txt where NVRTC
 * is the version that the table is of. Every file of bad/ has one of those faults, which is found. PACKAGES: where scripts/setup
 * puts NVRTC from PyPI. Without any it says so and is skipped (77). */
#include "tests/gpu/gate/judge.h"

#include <dirent.h>
#include <unistd.h>

static const char *const architectures[] = {"sm_80", "sm_100", "sm_90", "sm_90a", "sm_100a"}; /* of bad/, and with --quick, the first two */
enum { ARCHITECTURES = 5, FEW_ARCHITECTURES = 2, MOST = 64, TABLE_VERSION = 13000 };

/* ---- the two folders ---- */

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Paths of the files of a folder of the gate, in order. */
static int list(const char *folder, char *out[MOST]) {
    char path[2048];
    int count = 0;
    snprintf(path, sizeof path, "%s/tests/gpu/gate/%s", root, folder);
    DIR *files = opendir(path);
    for (struct dirent *file; files && count < MOST && (file = readdir(files)) != NULL;) {
        if (!strstr(file->d_name, ".cu")) continue;
        snprintf(path, sizeof path, "tests/gpu/gate/%s/%.200s", folder, file->d_name);
        out[count++] = strdup(path);
    }
    if (files) closedir(files);
    qsort(out, (size_t)count, sizeof *out, by_name);
    return count;
}

typedef struct compiled {
    int n, count; /* files, programs */
    char *paths[MOST], *programs[MOST], names[MOST][300];
    dtm_jit_source sources[MOST * ARCHITECTURES];
    dtm_jit_code *codes[MOST * ARCHITECTURES];
} compiled;

static bool compile_folder(dtm_jit *jit, const char *folder, int n_architectures, compiled *c) {
    dtm_status status = {0};
    c->n = list(folder, c->paths);
    CHECK(c->n > 0);
    for (int i = 0; i < c->n; i++) {
        c->programs[i] = program(c->paths[i]);
        snprintf(c->names[i], sizeof c->names[i], "/dtm/%s", c->paths[i]);
        for (int a = 0; a < n_architectures; a++)
            c->sources[c->count++] = (dtm_jit_source){c->names[i], c->programs[i], architectures[a]};
    }
    bool ok = dtm_jit_compile(jit, c->sources, c->count, c->codes, &status);
    CHECK_OK(ok, &status);
    return ok;
}

static void release(compiled *c) {
    for (int i = 0; i < c->n; i++) free(c->paths[i]), free(c->programs[i]);
    for (int i = 0; i < c->count; i++) dtm_jit_code_free(c->codes[i]);
}

/* Whether each row of what was made is one of the table. */
static bool has_rows(const char *table, char *rows) {
    for (char *row = strtok(rows, "\n"); row; row = strtok(NULL, "\n"))
        if (!strstr(table, row)) return printf("this is not in tests/gpu/gate/table.txt:\n%s\n", row), false;
    return true;
}

static void test_good(dtm_jit *jit, bool rewrite, bool quick, bool compare) {
    static compiled c;
    text table = {0};
    char path[2048];
    add(&table, "%-24s %-8s %7s %9s %6s %11s\n", "kernel", "arch", "threads", "registers", "shared", "warps of 64");
    if (compile_folder(jit, "good", quick ? FEW_ARCHITECTURES : ARCHITECTURES, &c))
        for (int i = 0; i < c.count; i++) {
            text wrong = {0};
            find(c.codes[i], &wrong);
            if (wrong.length) printf("%s for %s: %s\n", c.sources[i].name, c.sources[i].arch, wrong.data);
            CHECK(wrong.length == 0);
            free(wrong.data);
            add_rows(&table, c.sources[i].arch, c.codes[i]);
        }
    release(&c);
    snprintf(path, sizeof path, "%s/tests/gpu/gate/table.txt", root);
    if (rewrite) {
        FILE *out = fopen(path, "w");
        if (!out || fputs(table.data, out) < 0 || fclose(out)) abort();
    }
    char *wanted = read_file(path);
    if (quick) {
        CHECK(!compare || has_rows(wanted, table.data));
    } else {
        if (compare && strcmp(wanted, table.data) != 0) printf("this is not tests/gpu/gate/table.txt:\n%s", table.data);
        CHECK(!compare || !strcmp(wanted, table.data));
    }
    free(wanted);
    free(table.data);
}

static void test_bad(dtm_jit *jit) {
    static compiled c;
    if (compile_folder(jit, "bad", FEW_ARCHITECTURES, &c))
        for (int i = 0; i < c.count; i++) {
            text wrong = {0};
            char expected[100] = "";
            const char *says = strstr(c.sources[i].text, "/* expect: ");
            CHECK(says && sscanf(says, "/* expect: %99[^*]", expected) == 1);
            for (size_t n = strlen(expected); n && expected[n - 1] == ' ';) expected[--n] = 0;
            find(c.codes[i], &wrong);
            if (!strstr(wrong.data, expected)) printf("%s for %s: not found: %s, but %s\n", c.sources[i].name, c.sources[i].arch, expected, wrong.data);
            CHECK(*expected && strstr(wrong.data, expected));
            free(wrong.data);
        }
    release(&c);
}

/* The same bytes again from another start, as the cache and a golden file need. */
static void test_same(dtm_jit *jit) {
    dtm_status status = {0};
    char *text = program("tests/gpu/gate/good/rows.cu");
    const dtm_jit_source twice[2] = {{"/dtm/rows.cu", text, "sm_90a"}, {"/dtm/rows.cu", text, "sm_90a"}};
    dtm_jit_code *codes[2] = {NULL};
    CHECK_OK(dtm_jit_compile(jit, twice, 2, codes, &status), &status);
    CHECK(codes[0] && codes[0]->cubin_bytes > 1000 && !memcmp(codes[0]->cubin, "\177ELF", 4));
    CHECK(codes[0] && codes[0]->entry_bytes == codes[1]->entry_bytes && !memcmp(codes[0]->entry, codes[1]->entry, codes[0]->entry_bytes));
    CHECK(codes[0] && strstr(codes[0]->ptx, "/dtm/kernels/cuda/rows.cuh")); /* lines of templates */
    dtm_jit_code_free(codes[0]);
    dtm_jit_code_free(codes[1]);
    dtm_jit_counts counts;
    dtm_jit_count(jit, &counts);
    CHECK(counts.compiled >= 2 && counts.found == 0);
    free(text);
}

/* Each template once, in the place of the first line that names it; lines keep their numbers; what there is not is named. */
static void test_program(void) {
    const char *missing = NULL, *prelude = dtm_template_text("kernels/cuda/prelude.cuh");
    char path[2048];
    snprintf(path, sizeof path, "%s/kernels/cuda/prelude.cuh", root);
    char *file = read_file(path);
    CHECK(prelude && !strcmp(prelude, file));
    free(file);
    char *made = dtm_template_program("/dtm/a.cu", "// one\n#include \"kernels/cuda/rows.cuh\"\n#include \"kernels/cuda/prelude.cuh\"\nint four;\n",
                                      &missing);
    CHECK(made && !missing);
    const char *first = made ? strstr(made, "#line 1 \"/dtm/kernels/cuda/prelude.cuh\"\n") : NULL;
    CHECK(first && !strstr(first + 1, "#line 1 \"/dtm/kernels/cuda/prelude.cuh\"\n"));
    CHECK(made && !strncmp(made, "#line 1 \"/dtm/a.cu\"\n// one\n#line 1 \"/dtm/kernels/cuda/rows.cuh\"\n", 64));
    CHECK(made && strstr(made, "#line 4 \"/dtm/a.cu\"\nint four;\n") && !strstr(made, "#include \""));
    free(made);
    CHECK(!dtm_template_program("/dtm/a.cu", "#include \"kernels/cuda/none.cuh\"\n", &missing));
    CHECK(missing && !strncmp(missing, "kernels/cuda/none.cuh\"", 22));
    CHECK(!dtm_template_program("/dtm/a.cu", "#include \"open", &missing) && missing);
}

/* PTX alone, and an error with its line. */
static void test_others(dtm_jit *jit) {
    dtm_status status = {0};
    dtm_jit_code *code = NULL;
    const dtm_jit_source virtual = {"/dtm/a.cu", "extern \"C\" __global__ void f(int *x) { *x = 1; }", "compute_90"};
    CHECK_OK(dtm_jit_compile(jit, &virtual, 1, &code, &status), &status);
    CHECK(code && code->cubin_bytes == 0 && code->n_kernels == 0 && strstr(code->ptx, ".target sm_90"));
    dtm_jit_code_free(code);
    const dtm_jit_source wrong = {"/dtm/a.cu", "#line 41 \"/dtm/llama.dtm\"\n__device__ int f() { return y; }", "sm_80"};
    CHECK_FAILS(dtm_jit_compile(jit, &wrong, 1, &code, &status), &status, "/dtm/llama.dtm(41): error: identifier \"y\" is undefined");
    const char *saved = strstr(status.message, "/tmp/failed-");
    char path[1200] = "";
    if (saved) snprintf(path, sizeof path, "%.*s", (int)strcspn(saved, ")"), saved);
    CHECK(saved && unlink(path) == 0);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    bool rewrite = argc > 3 && !strcmp(argv[3], "--rewrite"), quick = argc > 3 && !strcmp(argv[3], "--quick");
    root = argv[1];
    dtm_cuda *cuda = open_nvrtc(argv[2]);
    if (!cuda) return 77;
    dtm_jit *jit = open_jit(cuda);
    const dtm_cuda_library *nvrtc = dtm_cuda_describe(cuda, DTM_LIBNVRTC);
    bool compare = nvrtc->version == TABLE_VERSION;
    printf("NVRTC %s, %s%s\n", nvrtc->shown, nvrtc->path, compare ? "" : "; table.txt is of another version");
    test_good(jit, rewrite, quick, compare);
    test_bad(jit);
    test_same(jit);
    test_program();
    test_others(jit);
    dtm_jit_destroy(jit);
    dtm_cuda_destroy(cuda);
    printf("%d checks, %d failed\n", checks, failures);
    return failures > 0;
}
