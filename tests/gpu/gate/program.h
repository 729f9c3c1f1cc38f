/* What the tests of the gate share: NVRTC, wherever it is, and programs made of a file and the templates that it includes. */
#ifndef DTM_TEST_PROGRAM_H
#define DTM_TEST_PROGRAM_H

#include "runtime/cuda/jit.h"
#include "runtime/test_check.h"

#include <stdarg.h>

static const char *root;

typedef struct text {
    char *data;
    size_t length;
} text;

static __attribute__((format(printf, 2, 3))) void add(text *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    t->data = realloc(t->data, t->length + (size_t)more + 1);
    if (!t->data) abort();
    va_start(arguments, format);
    vsnprintf(t->data + t->length, (size_t)more + 1, format, arguments);
    va_end(arguments);
    t->length += (size_t)more;
}

static char *read_file(const char *path) {
    FILE *in = fopen(path, "rb");
    text t = {0};
    char line[4096];
    add(&t, "%s", "");
    while (in && fgets(line, sizeof line, in)) add(&t, "%s", line);
    if (in) fclose(in);
    return t.data;
}

/* One program of a file and the templates that it includes: NVRTC is given no headers. Each file's lines keep their numbers. */
static void add_file(text *out, const char *path, text *seen) {
    char file[2048];
    snprintf(file, sizeof file, "%s/%s", root, path);
    char *all = read_file(file), *line = all;
    add(seen, "|%s|", path);
    add(out, "#line 1 \"/dtm/%s\"\n", path);
    for (int number = 1; *line; number++) {
        int length = (int)strcspn(line, "\n");
        char name[1024], mark[1030];
        if (sscanf(line, "#include \"%1000[^\"]\"", name) == 1) {
            snprintf(mark, sizeof mark, "|%s|", name);
            if (!strstr(seen->data, mark)) add_file(out, name, seen);
            add(out, "#line %d \"/dtm/%s\"\n", number + 1, path);
        } else
            add(out, "%.*s\n", length, line);
        line += length + (line[length] == '\n');
    }
    free(all);
}

static char *program(const char *path) {
    text out = {0}, seen = {0};
    add(&seen, "%s", "");
    add_file(&out, path, &seen);
    free(seen.data);
    return out.data;
}

/* The NVRTC of this machine, or the one that scripts/setup got from PyPI; NULL, and it says that the test is skipped, where there is
 * none. */
static dtm_cuda *open_nvrtc(const char *packages) {
    const dtm_cuda_options options[2] = {{.elsewhere = true}, {.folder = packages, .elsewhere = true}};
    dtm_status status = {0};
    dtm_cuda *cuda;
    for (int i = 0; i < 2; i++) {
        status = (dtm_status){0};
        if (!dtm_cuda_create(&options[i], &cuda, &status)) abort();
        if (dtm_cuda_nvrtc(cuda, &status)) return cuda;
        dtm_cuda_destroy(cuda);
    }
    printf("skipped: %s; sh scripts/setup --test gets it\n", status.message);
    return NULL;
}

/* What is compiled is not kept: the test is of NVRTC. */
static dtm_jit *open_jit(dtm_cuda *cuda) {
    const dtm_jit_options options = {.cuda = cuda, .memory_only = true, .threads = 2};
    dtm_status status = {0};
    dtm_jit *jit;
    if (!dtm_jit_create(&options, &jit, &status)) abort();
    return jit;
}

#endif
