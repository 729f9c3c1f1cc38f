#include "runtime/cuda/jit.h"

#include "runtime/cuda/jit_entry.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dtm_jit {
    dtm_cuda *cuda;
    int threads;
    dtm_jit_folder folder;
    pthread_mutex_t mutex; /* of what follows */
    dtm_jit_counts counts;
    char notice[1200];
};

bool dtm_jit_create(const dtm_jit_options *options, dtm_jit **out, dtm_status *status) {
    dtm_jit *jit = calloc(1, sizeof *jit);
    if (!jit) return dtm_status_fail(status, "out of memory");
    jit->cuda = options->cuda;
    jit->threads = options->threads > 0 ? options->threads : 1;
    jit->folder.fd = -1;
    if (!options->memory_only) dtm_jit_folder_open(options->folder, &jit->folder);
    snprintf(jit->notice, sizeof jit->notice, "%s", jit->folder.notice);
    pthread_mutex_init(&jit->mutex, NULL);
    *out = jit;
    return true;
}

void dtm_jit_destroy(dtm_jit *jit) {
    if (!jit) return;
    dtm_jit_folder_close(&jit->folder);
    pthread_mutex_destroy(&jit->mutex);
    free(jit);
}

void dtm_jit_count(dtm_jit *jit, dtm_jit_counts *out) {
    pthread_mutex_lock(&jit->mutex);
    *out = jit->counts;
    pthread_mutex_unlock(&jit->mutex);
}

static void add_one(dtm_jit *jit, int64_t *count) {
    pthread_mutex_lock(&jit->mutex);
    ++*count;
    pthread_mutex_unlock(&jit->mutex);
}

void dtm_jit_notice(dtm_jit *jit, char out[1200]) {
    pthread_mutex_lock(&jit->mutex);
    memcpy(out, jit->notice, sizeof jit->notice);
    pthread_mutex_unlock(&jit->mutex);
}

/* ---- what ptxas says ---- */

/* "Used 72 registers, used 1 barriers, 256 bytes smem": the number before these words, or 0. Lines end at `end`. */
static int32_t number_before(const char *line, const char *end, const char *words) {
    for (const char *at = line; (at = strstr(at, words)) != NULL && at < end; at++) {
        const char *digits = at;
        while (digits > line && digits[-1] >= '0' && digits[-1] <= '9') digits--;
        if (digits < at) return (int32_t)strtol(digits, NULL, 10);
    }
    return 0;
}

static const char *after(const char *line, const char *end, const char *words) {
    const char *at = strstr(line, words);
    return at && at < end ? at + strlen(words) : NULL;
}

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* Functions that were not inlined have properties of their own, between their kernel's lines: the largest counts. */
static void read_line(const char *line, const char *end, dtm_jit_kernel *k) {
    if (after(line, end, "bytes stack frame")) {
        k->stack = larger(k->stack, number_before(line, end, " bytes stack frame"));
        k->spill_stores = larger(k->spill_stores, number_before(line, end, " bytes spill stores"));
        k->spill_loads = larger(k->spill_loads, number_before(line, end, " bytes spill loads"));
    } else if (after(line, end, ": Used ")) {
        k->registers = number_before(line, end, " registers");
        k->barriers = number_before(line, end, " barriers");
        k->shared = number_before(line, end, " bytes smem");
        k->stack = larger(k->stack, number_before(line, end, " bytes cumulative stack size"));
    }
}

uint32_t dtm_jit_read_log(const char *log, dtm_jit_kernel *out, uint32_t most) {
    dtm_jit_kernel unread = {0}, *kernel = NULL;
    uint32_t count = 0;
    for (const char *line = log, *end; *line; line = *end ? end + 1 : end) {
        end = line + strcspn(line, "\n");
        const char *name = after(line, end, "Compiling entry function '");
        if (name) {
            kernel = count < most ? &out[count] : &unread;
            memset(kernel, 0, sizeof *kernel);
            int length = (int)strcspn(name, "'");
            snprintf(kernel->name, sizeof kernel->name, "%.*s", length, name);
            count++;
        } else if (kernel)
            read_line(line, end, kernel);
    }
    return count;
}

/* The times that ptxas took are not of the code. */
static void remove_times(char *log) {
    char *to = log;
    for (char *line = log, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end) end++;
        if (after(line, end, "Compile time = ")) continue;
        memmove(to, line, (size_t)(end - line));
        to += end - line;
    }
    *to = 0;
}

/* ---- architectures ---- */

enum { MOST_ARCHITECTURES = 128 };

static int supported(const dtm_nvrtc *nvrtc, int out[MOST_ARCHITECTURES]) {
    int count = 0, all[1024];
    if (nvrtc->GetNumSupportedArchs(&count) != DTM_NVRTC_SUCCESS || count < 1 || count > 1024) return 0;
    if (nvrtc->GetSupportedArchs(all) != DTM_NVRTC_SUCCESS) return 0;
    if (count > MOST_ARCHITECTURES) count = MOST_ARCHITECTURES;
    memcpy(out, all, (size_t)count * sizeof *all);
    return count;
}

bool dtm_jit_arch(dtm_jit *jit, int major, int minor, char out[24], bool *newer, dtm_status *status) {
    int all[MOST_ARCHITECTURES], wanted = major * 10 + minor, below = 0;
    bool exact = false;
    const dtm_nvrtc *nvrtc = dtm_cuda_nvrtc(jit->cuda, status);
    if (!nvrtc) return false;
    const dtm_cuda_library *about = dtm_cuda_describe(jit->cuda, DTM_LIBNVRTC);
    int count = supported(nvrtc, all);
    for (int i = 0; i < count; i++) {
        exact = exact || all[i] == wanted;
        if (all[i] < wanted && all[i] > below) below = all[i];
    }
    *newer = !exact;
    if (wanted < 80)
        return dtm_status_fail(status, "the device has compute capability %d.%d: the kernels need 8.0 or newer", major, minor);
    if (exact)
        snprintf(out, 24, "sm_%d%s", wanted, wanted == 90 || wanted == 100 ? "a" : "");
    else if (below >= 80)
        snprintf(out, 24, "compute_%d", below);
    else
        return dtm_status_fail(status, "libnvrtc %s (%s) does not compile for compute capability %d.%d: a newer one would serve",
                               about->shown, about->path, major, minor);
    return true;
}

/* ---- one compilation ---- */

static bool fail_nvrtc(const dtm_nvrtc *nvrtc, dtm_nvrtc_result result, const char *doing, const dtm_jit_source *source, dtm_status *status) {
    const char *text = nvrtc->GetErrorString(result);
    return dtm_status_fail(status, "NVRTC: %s of %s for %s: %s", doing, source->name, source->arch, text ? text : "an error without a name");
}

/* The first line of the log that has an error, as it is: it names a line of the .dtm file. The log goes whole to the file. */
static bool fail_compilation(dtm_jit *jit, const dtm_jit_source *source, const dtm_jit_identity *identity, const char *log,
                             dtm_status *status) {
    char path[1200], *text = NULL;
    const char *error = strstr(log, "error");
    const char *line = error ? error : log;
    while (line > log && line[-1] != '\n') line--;
    size_t bytes = strlen(source->text) + strlen(log) + 32;
    text = malloc(bytes);
    if (text) snprintf(text, bytes, "%s\n#if 0\n%s\n#endif\n", source->text, log);
    *path = 0;
    if (text) dtm_jit_folder_save(&jit->folder, identity, text, path);
    free(text);
    return dtm_status_fail(status, "NVRTC cannot compile %s for %s, which is a defect of dtm (the source and all errors are in %s): %.*s",
                           source->name, source->arch, *path ? path : "no file: the disk is full", (int)strcspn(line, "\n"), line);
}

typedef struct result {
    char *log, *ptx, *cubin;
    size_t cubin_bytes;
} result;

static char *get_log(const dtm_nvrtc *nvrtc, dtm_nvrtc_program program) {
    size_t bytes = 0;
    if (nvrtc->GetProgramLogSize(program, &bytes) != DTM_NVRTC_SUCCESS) bytes = 0;
    char *log = calloc(1, bytes + 1);
    if (log && bytes && nvrtc->GetProgramLog(program, log) != DTM_NVRTC_SUCCESS) *log = 0;
    return log;
}

static bool get_code(const dtm_nvrtc *nvrtc, dtm_nvrtc_program program, const dtm_jit_source *source, result *out, dtm_status *status) {
    size_t ptx = 0;
    dtm_nvrtc_result r = nvrtc->GetPTXSize(program, &ptx);
    if (!r) r = nvrtc->GetCUBINSize(program, &out->cubin_bytes);
    if (r) return fail_nvrtc(nvrtc, r, "the sizes", source, status);
    out->ptx = calloc(1, ptx + 1);
    out->cubin = malloc(out->cubin_bytes + 1);
    if (!out->ptx || !out->cubin) return dtm_status_fail(status, "out of memory: the code of %s", source->name);
    r = nvrtc->GetPTX(program, out->ptx);
    if (!r && out->cubin_bytes) r = nvrtc->GetCUBIN(program, out->cubin);
    return !r || fail_nvrtc(nvrtc, r, "the code", source, status);
}

static bool run_nvrtc(dtm_jit *jit, const dtm_nvrtc *nvrtc, dtm_nvrtc_program program, const dtm_jit_source *source,
                      const dtm_jit_identity *identity, result *out, dtm_status *status) {
    char arch[64];
    const char *options[1 + DTM_JIT_COMPILE_OPTIONS] = {arch};
    snprintf(arch, sizeof arch, "--gpu-architecture=%s", source->arch);
    memcpy(options + 1, dtm_jit_compile_options, sizeof *options * DTM_JIT_COMPILE_OPTIONS);
    dtm_nvrtc_result r = nvrtc->CompileProgram(program, 1 + DTM_JIT_COMPILE_OPTIONS, options);
    out->log = get_log(nvrtc, program);
    if (!out->log) return dtm_status_fail(status, "out of memory: the log of %s", source->name);
    if (r == DTM_NVRTC_COMPILATION) return fail_compilation(jit, source, identity, out->log, status);
    if (r) return fail_nvrtc(nvrtc, r, "compilation", source, status);
    remove_times(out->log);
    return get_code(nvrtc, program, source, out, status);
}

static dtm_jit_code *compile(dtm_jit *jit, const dtm_jit_source *source, const dtm_jit_identity *identity, dtm_status *status) {
    const dtm_nvrtc *nvrtc = dtm_cuda_nvrtc(jit->cuda, status);
    dtm_nvrtc_program program = NULL;
    unsigned char *entry = NULL;
    size_t bytes = 0;
    result made = {0};
    dtm_nvrtc_result r = nvrtc ? nvrtc->CreateProgram(&program, source->text, source->name, 0, NULL, NULL) : 0;
    bool ok = nvrtc && (!r || fail_nvrtc(nvrtc, r, "the program", source, status)) &&
              run_nvrtc(jit, nvrtc, program, source, identity, &made, status);
    const dtm_jit_parts parts = {made.ptx, made.log, (unsigned char *)made.cubin, made.cubin_bytes};
    ok = ok && dtm_jit_pack(identity, &parts, &entry, &bytes, status);
    if (program) nvrtc->DestroyProgram(&program);
    free(made.log);
    free(made.ptx);
    free(made.cubin);
    if (!ok) return NULL;
    dtm_jit_code *code = dtm_jit_open_entry(entry, bytes, identity, false);
    if (code) return code;
    free(entry);
    dtm_status_fail(status, "out of memory: the code of %s", source->name);
    return NULL;
}

static void keep(dtm_jit *jit, const dtm_jit_code *code, const dtm_jit_identity *identity) {
    int error = dtm_jit_folder_write(&jit->folder, identity, code->entry, code->entry_bytes);
    if (!error) return;
    pthread_mutex_lock(&jit->mutex);
    jit->counts.unwritten++;
    if (!*jit->notice)
        snprintf(jit->notice, sizeof jit->notice, "a compiled kernel was not kept: cannot write in %s: %s", jit->folder.path, strerror(error));
    pthread_mutex_unlock(&jit->mutex);
}

/* ---- many ---- */

typedef struct work {
    dtm_jit *jit;
    const dtm_jit_source *sources;
    const dtm_cuda_library *nvrtc;
    dtm_jit_code **codes;
    int n;
    atomic_int next;
    atomic_bool failed;
    pthread_mutex_t mutex;
    dtm_status *status;
} work;

static dtm_jit_code *code_of(work *w, const dtm_jit_source *source, dtm_status *status) {
    dtm_jit *jit = w->jit;
    dtm_jit_identity identity;
    dtm_jit_code *code = NULL;
    if (!dtm_jit_identify(source, w->nvrtc, &identity)) {
        dtm_status_fail(status, "out of memory: the key of %s", source->name);
        return NULL;
    }
    dtm_jit_found found = dtm_jit_folder_read(&jit->folder, &identity, &code);
    if (found == DTM_JIT_CORRUPT) add_one(jit, &jit->counts.corrupt);
    if (found == DTM_JIT_FOUND) {
        add_one(jit, &jit->counts.found);
        return code;
    }
    code = compile(jit, source, &identity, status);
    if (!code) return NULL;
    add_one(jit, &jit->counts.compiled);
    keep(jit, code, &identity);
    return code;
}

static void *work_on(void *argument) {
    work *w = argument;
    for (int i; !w->failed && (i = w->next++) < w->n;) {
        dtm_status status = {0};
        w->codes[i] = code_of(w, &w->sources[i], &status);
        if (w->codes[i]) continue;
        w->failed = true;
        pthread_mutex_lock(&w->mutex);
        dtm_status_fail(w->status, "%s", status.message);
        pthread_mutex_unlock(&w->mutex);
    }
    return NULL;
}

bool dtm_jit_compile(dtm_jit *jit, const dtm_jit_source *sources, int n, dtm_jit_code **codes, dtm_status *status) {
    enum { MOST = 64 };
    pthread_t threads[MOST];
    int started = 0, wanted = jit->threads < n ? jit->threads : n;
    if (!dtm_cuda_nvrtc(jit->cuda, status)) return false;
    work w = {.jit = jit, .sources = sources, .codes = codes, .n = n, .status = status};
    w.nvrtc = dtm_cuda_describe(jit->cuda, DTM_LIBNVRTC);
    memset(codes, 0, sizeof *codes * (size_t)(n > 0 ? n : 0));
    pthread_mutex_init(&w.mutex, NULL);
    /* The caller is one of them; a thread that cannot be had is done without. */
    while (started < wanted - 1 && started < MOST && pthread_create(&threads[started], NULL, work_on, &w) == 0) started++;
    work_on(&w);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&w.mutex);
    if (!w.failed) return true;
    for (int i = 0; i < n; i++) {
        dtm_jit_code_free(codes[i]);
        codes[i] = NULL;
    }
    return false;
}

bool dtm_jit_take(const dtm_jit_source *source, const void *entry, size_t bytes, dtm_jit_code **out, dtm_status *status) {
    dtm_jit_identity identity;
    unsigned char *copy = malloc(bytes ? bytes : 1);
    *out = NULL;
    if (!copy || !dtm_jit_identify(source, NULL, &identity)) {
        free(copy);
        return dtm_status_fail(status, "out of memory: the code of %s", source->name);
    }
    memcpy(copy, entry, bytes);
    *out = dtm_jit_open_entry(copy, bytes, &identity, true);
    if (*out) return true;
    free(copy);
    return dtm_status_fail(status, "what came as the code of %s for %s is not: it is cut, or of another source, architecture or version of dtm",
                           source->name, source->arch);
}
