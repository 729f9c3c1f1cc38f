/* An NVRTC that compiles nothing: its code is made from source and options, its log is as ptxas writes it. For tests of the
 * cache, which compile thousands of times. Words in a source ask for more:
 *   FAIL      a compilation error
 *   MEET n    ends only when n compilations are under way at once
 * STANDIN_REBUILT: the same, with another build-id. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct program {
    char *text, arch[64];
    char ptx[256], log[1024];
    size_t options;
} program;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int compiled, inside, arrived;

int standin_compiled(void);
int standin_compiled(void) { return __atomic_load_n(&compiled, __ATOMIC_SEQ_CST); }

#ifdef STANDIN_REBUILT
int standin_rebuilt(void);
int standin_rebuilt(void) { return 1; }
#endif

#define EXPORT(declaration) declaration; declaration
EXPORT(int nvrtcVersion(int *major, int *minor)) {
    *major = 13, *minor = STANDIN_MINOR;
    return 0;
}
static const int architectures[] = {80, 90, 100};
EXPORT(int nvrtcGetNumSupportedArchs(int *count)) {
    *count = sizeof architectures / sizeof *architectures;
    return 0;
}
EXPORT(int nvrtcGetSupportedArchs(int *out)) {
    memcpy(out, architectures, sizeof architectures);
    return 0;
}
EXPORT(int nvrtcCreateProgram(program **out, const char *text, const char *name, int n, const char *const *headers, const char *const *names)) {
    (void)n, (void)headers, (void)names;
    *out = calloc(1, sizeof **out);
    (*out)->text = strdup(text);
    return *name == '/' ? 0 : 3;
}

static unsigned hash(const char *text) {
    unsigned h = 2166136261u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 16777619u;
    return h;
}

/* 0 once `wanted` are inside, or not after ten seconds. */
static int meet(int wanted) {
    struct timespec until;
    int error = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    if (++inside >= wanted) arrived = 1;
    pthread_cond_broadcast(&changed);
    while (!arrived && !error) error = pthread_cond_timedwait(&changed, &mutex, &until);
    inside--;
    return error;
}

EXPORT(int nvrtcCompileProgram(program *p, int n, const char *const *options)) {
    unsigned mixed = hash(p->text);
    const char *meeting = strstr(p->text, "MEET ");
    int failed = 0;
    for (int i = 0; i < n; i++) {
        mixed = mixed * 31 + hash(options[i]);
        if (!strncmp(options[i], "--gpu-architecture=", 19)) snprintf(p->arch, sizeof p->arch, "%s", options[i] + 19);
    }
    pthread_mutex_lock(&mutex);
    __atomic_add_fetch(&compiled, 1, __ATOMIC_SEQ_CST);
    if (meeting) failed = meet(atoi(meeting + 5));
    pthread_mutex_unlock(&mutex);
    if (failed) return 11;
    if (strstr(p->text, "FAIL")) {
        snprintf(p->log, sizeof p->log, "something first\n/dtm/llama.dtm(7): error: identifier \"FAIL\" is undefined\n1 error\n");
        return 6;
    }
    snprintf(p->ptx, sizeof p->ptx, "// PTX %08x for %s", mixed, p->arch);
    if (!strncmp(p->arch, "sm_", 3))
        snprintf(p->log, sizeof p->log,
                 "ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function 'first' for '%s'\n"
                 "ptxas info    : Function properties for first\n"
                 "ptxas         .     256 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
                 "ptxas info    : Used 72 registers, used 1 barriers, 260 bytes cumulative stack size, 1024 bytes smem\n"
                 "ptxas info    : Compile time = %d.5 ms\n"
                 "ptxas info    : Compiling entry function 'second' for '%s'\nptxas info    : Function properties for second\n"
                 "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
                 "ptxas info    : Used 255 registers, used 0 barriers\nptxas info    : Compile time = 1.25 ms\n",
                 p->arch, standin_compiled(), p->arch);
    return 0;
}
EXPORT(int nvrtcGetProgramLogSize(program *p, size_t *bytes)) {
    *bytes = strlen(p->log) + 1;
    return 0;
}
EXPORT(int nvrtcGetProgramLog(program *p, char *out)) {
    strcpy(out, p->log);
    return 0;
}
EXPORT(int nvrtcGetPTXSize(program *p, size_t *bytes)) {
    *bytes = strlen(p->ptx) + 1;
    return 0;
}
EXPORT(int nvrtcGetPTX(program *p, char *out)) {
    strcpy(out, p->ptx);
    return 0;
}
/* Of a length that is no multiple of 8. */
EXPORT(int nvrtcGetCUBINSize(program *p, size_t *bytes)) {
    *bytes = strncmp(p->arch, "sm_", 3) ? 0 : strlen(p->ptx) + 6;
    return 0;
}
EXPORT(int nvrtcGetCUBIN(program *p, char *out)) {
    memcpy(out, "\177ELF", 5);
    memcpy(out + 5, p->ptx, strlen(p->ptx) + 1);
    return 0;
}
EXPORT(int nvrtcDestroyProgram(program **p)) {
    free((*p)->text);
    free(*p);
    *p = NULL;
    return 0;
}
EXPORT(const char *nvrtcGetErrorString(int result)) { return result == 11 ? "NVRTC_ERROR_INTERNAL_ERROR" : "an error"; }
