/* What the tests of the gate share: NVRTC, wherever it is, and programs made of a file of it. */
#ifndef DTM_TEST_PROGRAM_H
#define DTM_TEST_PROGRAM_H

#include "kernels/cuda/templates.h"
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

static inline char *read_file(const char *path) {
    FILE *in = fopen(path, "rb");
    text t = {0};
    char line[4096];
    add(&t, "%s", "");
    while (in && fgets(line, sizeof line, in)) add(&t, "%s", line);
    if (in) fclose(in);
    return t.data;
}

/* A file of the gate with the templates that it includes. */
static inline char *program(const char *path) {
    char file[2048], name[400];
    const char *missing = NULL;
    snprintf(file, sizeof file, "%s/%s", root, path);
    snprintf(name, sizeof name, "/dtm/%s", path);
    char *text = read_file(file), *whole = dtm_template_program(name, text, &missing);
    if (!whole) {
        printf("%s includes %s\n", path, missing ? missing : "too much");
        exit(1);
    }
    free(text);
    return whole;
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
