/* Tests of compilation and of its cache: jit STANDINS FOLDER. NVRTC is a stand-in (standin_nvrtc.c) whose compilations are
 * counted; FOLDER is emptied and used. */
#include "runtime/cuda/jit_entry.h"
#include "runtime/test_check.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *standins, *work;
static char cache[1024];
static dtm_cuda *cuda;
static int (*compiled)(void);

static dtm_jit_source source = {"/dtm/a.cu", "some source", "sm_90a"};

/* In place of libc's: what kills a process between what it wrote and the rename; the disk is waited for in no test. */
static bool die_at_fsync;
static _Atomic int synced;

int fsync(int fd) {
    (void)fd;
    if (die_at_fsync) raise(SIGKILL);
    synced++;
    return 0;
}

static dtm_cuda *nvrtc_of(const char *folder) {
    char path[1024];
    dtm_status status = {0};
    dtm_cuda *out;
    snprintf(path, sizeof path, "%s/%s", standins, folder);
    const dtm_cuda_options options = {.folder = path, .elsewhere = true};
    if (!dtm_cuda_create(&options, &out, &status) || !dtm_cuda_nvrtc(out, &status)) {
        fprintf(stderr, "%s\n", status.message);
        exit(1);
    }
    return out;
}

static dtm_jit *jit_in(const char *folder, int threads) {
    dtm_jit *jit;
    dtm_status status = {0};
    const dtm_jit_options options = {.cuda = cuda, .folder = folder, .memory_only = !folder, .threads = threads};
    if (!dtm_jit_create(&options, &jit, &status)) abort();
    return jit;
}

static void empty(void) {
    char command[1200];
    snprintf(command, sizeof command, "rm -rf '%s'", cache);
    if (system(command)) abort();
}

/* The one entry's path and bytes. */
static size_t entry_file(char path[2048], unsigned char **bytes) {
    DIR *files = opendir(cache);
    int count = 0;
    for (struct dirent *file; files && (file = readdir(files)) != NULL;)
        if (strstr(file->d_name, ".kernel")) snprintf(path, 2048, "%s/%s", cache, file->d_name), count++;
    if (files) closedir(files);
    CHECK(count == 1);
    struct stat info;
    FILE *in = fopen(path, "rb");
    if (!in || fstat(fileno(in), &info)) abort();
    *bytes = malloc((size_t)info.st_size + 1);
    if (fread(*bytes, 1, (size_t)info.st_size, in) != (size_t)info.st_size) abort();
    fclose(in);
    return (size_t)info.st_size;
}

static void write_file(const char *path, const unsigned char *bytes, size_t n) {
    unlink(path); /* what is written over is synced by some file systems */
    FILE *out = fopen(path, "wb");
    if (!out || fwrite(bytes, 1, n, out) != n || fclose(out)) abort();
}

static int count_files(const char *part) {
    DIR *files = opendir(cache);
    int count = 0;
    for (struct dirent *file; files && (file = readdir(files)) != NULL;) count += strstr(file->d_name, part) != NULL;
    if (files) closedir(files);
    return count;
}

/* Compiles `s` in the cache, with a jit of its own; how often NVRTC was asked. */
static int compile_once(const dtm_jit_source *s, dtm_jit_counts *counts, dtm_jit_code **out) {
    dtm_jit *jit = jit_in(cache, 1);
    dtm_status status = {0};
    dtm_jit_code *code;
    int before = compiled();
    CHECK_OK(dtm_jit_compile(jit, s, 1, &code, &status), &status);
    if (counts) dtm_jit_count(jit, counts);
    dtm_jit_destroy(jit);
    if (out)
        *out = code;
    else
        dtm_jit_code_free(code);
    return compiled() - before;
}

static void test_found(void) {
    dtm_jit_code *first, *second;
    dtm_jit_counts counts;
    struct stat info;
    empty();
    synced = 0;
    CHECK(compile_once(&source, &counts, &first) == 1);
    CHECK(synced == 1);
    CHECK(counts.compiled == 1 && counts.found == 0);
    CHECK(first->cubin_bytes > 5 && !memcmp(first->cubin, "\177ELF", 5) && (uintptr_t)first->cubin % 8 == 0);
    CHECK(strstr(first->ptx, "for sm_90a") && first->ptx_bytes == strlen(first->ptx) + 1);
    CHECK(!strstr(first->log, "Compile time"));
    CHECK(compile_once(&source, &counts, &second) == 0);
    CHECK(counts.compiled == 0 && counts.found == 1);
    CHECK(first->entry_bytes == second->entry_bytes && !memcmp(first->entry, second->entry, first->entry_bytes));
    CHECK(first->n_kernels == 2);
    const dtm_jit_kernel *k = second->kernels;
    CHECK(!strcmp(k[0].name, "first") && k[0].registers == 72 && k[0].barriers == 1 && k[0].stack == 260);
    CHECK(k[0].spill_stores == 12 && k[0].spill_loads == 16 && k[0].shared == 1024);
    CHECK(!strcmp(k[1].name, "second") && k[1].registers == 255 && k[1].stack == 0 && k[1].shared == 0);
    CHECK(stat(cache, &info) == 0 && (info.st_mode & 0777) == 0700);
    CHECK(count_files(".kernel") == 1 && count_files(".tmp") == 0);
    /* The same compilation gives the same bytes. */
    dtm_jit_code_free(second);
    empty();
    CHECK(compile_once(&source, &counts, &second) == 1);
    CHECK(first->entry_bytes == second->entry_bytes && !memcmp(first->entry, second->entry, first->entry_bytes));
    dtm_jit_code_free(first);
    dtm_jit_code_free(second);
}

/* What differs in anything has another key. */
static void test_key(void) {
    empty();
    dtm_jit_source other = source;
    CHECK(compile_once(&source, NULL, NULL) == 1);
    other.text = "some sourc";
    CHECK(compile_once(&other, NULL, NULL) == 1);
    other = source;
    other.arch = "sm_90";
    CHECK(compile_once(&other, NULL, NULL) == 1);
    other.arch = "compute_90";
    dtm_jit_code *code;
    CHECK(compile_once(&other, NULL, &code) == 1 && code->cubin_bytes == 0 && code->n_kernels == 0 && strstr(code->ptx, "compute_90"));
    dtm_jit_code_free(code);
    other = source;
    other.name = "/dtm/a.cus", other.text = "ome source"; /* the same bytes one after the other */
    CHECK(compile_once(&other, NULL, NULL) == 1);
    CHECK(compile_once(&source, NULL, NULL) == 0);
    const dtm_cuda_library *nvrtc = dtm_cuda_describe(cuda, DTM_LIBNVRTC);
    static const char *const options[] = {"-std=c++17", "--fmad=true", "-lineinfo"}, *const turned[] = {"--fmad=true", "-std=c++17", "-lineinfo"};
    dtm_jit_identity identity[4];
    CHECK(dtm_jit_identify(&source, nvrtc, &identity[0]) && dtm_jit_identify_with(&source, options, 3, nvrtc, &identity[1]));
    CHECK(dtm_jit_identify_with(&source, turned, 3, nvrtc, &identity[2]) && dtm_jit_identify_with(&source, options, 2, nvrtc, &identity[3]));
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++) {
            CHECK(memcmp(identity[i].key, identity[j].key, sizeof identity[i].key) != 0);
            CHECK(memcmp(identity[i].what, identity[j].what, sizeof identity[i].what) != 0);
        }
    dtm_cuda *own = cuda;
    /* Another build-id; none; another version, and none. */
    static const char *const others[] = {"jit_rebuilt", "jit_unnamed", "jit_unnamed_newer"};
    for (int i = 0; i < 3; i++) {
        cuda = nvrtc_of(others[i]);
        dtm_jit_counts counts;
        compile_once(&source, &counts, NULL);
        CHECK(counts.compiled == 1 && counts.found == 0);
        dtm_cuda_destroy(cuda);
    }
    cuda = own;
    CHECK(count_files(".kernel") == 8);
}

/* Cut at any length, one bit changed in any byte, bytes after it, or another's entry: unlinked and made again. */
static void test_corrupt(void) {
    char path[2048];
    unsigned char *whole, *again;
    dtm_jit_counts counts;
    empty();
    compile_once(&source, NULL, NULL);
    size_t bytes = entry_file(path, &whole);
    for (size_t n = 0; n < 2 * bytes + 1; n++) {
        unsigned char *bad = malloc(bytes + 1);
        memcpy(bad, whole, bytes);
        bad[bytes] = 0;
        if (n > bytes) bad[n - bytes - 1] ^= (unsigned char)(1 << n % 8);
        write_file(path, bad, n < bytes ? n : n == bytes ? bytes + 1 : bytes);
        CHECK(compile_once(&source, &counts, NULL) == 1);
        CHECK(counts.corrupt == 1 && counts.compiled == 1);
        free(bad);
    }
    CHECK(entry_file(path, &again) == bytes && !memcmp(whole, again, bytes));
    free(again);
    dtm_jit_source other = source;
    other.text = "other";
    unlink(path);
    compile_once(&other, NULL, NULL);
    char others[2048];
    size_t other_bytes = entry_file(others, &again);
    write_file(path, again, other_bytes);
    CHECK(compile_once(&source, &counts, NULL) == 1 && counts.corrupt == 1);
    free(again);
    free(whole);
}

/* Of another owner, a link, a folder or a pipe: not read, and in the end there is an entry where that can be. */
static void test_ignored(void) {
    char path[2048], elsewhere[1200];
    unsigned char *whole;
    dtm_jit_counts counts;
    empty();
    compile_once(&source, NULL, NULL);
    size_t bytes = entry_file(path, &whole);
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", work);
    write_file(elsewhere, whole, bytes);
    unlink(path);
    if (symlink(elsewhere, path)) abort();
    CHECK(compile_once(&source, &counts, NULL) == 1 && counts.corrupt == 0);
    CHECK(compile_once(&source, &counts, NULL) == 0); /* the link was replaced */
    unlink(path);
    if (mkfifo(path, 0600)) abort();
    CHECK(compile_once(&source, &counts, NULL) == 1);
    unlink(path);
    if (mkdir(path, 0700)) abort();
    CHECK(compile_once(&source, &counts, NULL) == 1 && counts.unwritten == 1);
    rmdir(path);
    write_file(path, whole, bytes);
    if (geteuid() == 0) { /* only root can give a file away */
        if (chown(path, 12345, 12345)) abort();
        CHECK(compile_once(&source, &counts, NULL) == 1 && counts.corrupt == 0 && counts.found == 0);
    }
    CHECK(compile_once(&source, &counts, NULL) == 0);
    free(whole);
}

/* A folder that is none, or that others may write: in memory alone, and it says why. */
static void test_no_folder(void) {
    static const char *const words[] = {"cannot make the folder", "cannot open the folder", "one that others may write"};
    char path[1200], notice[1200];
    empty();
    for (int i = 0; i < 3; i++) {
        dtm_status status = {0};
        snprintf(path, sizeof path, i == 0 ? "%s/file/none" : i == 1 ? "%s/file" : "%s/open", work);
        if (i < 2) {
            snprintf(notice, sizeof notice, "%s/file", work);
            write_file(notice, (const unsigned char *)"x", 1);
        } else if ((mkdir(path, 0700) && access(path, F_OK)) || chmod(path, 0777))
            abort();
        dtm_jit *jit = jit_in(path, 1);
        dtm_jit_notice(jit, notice);
        CHECK(strstr(notice, words[i]) != NULL);
        dtm_jit_code *code;
        CHECK_OK(dtm_jit_compile(jit, &source, 1, &code, &status), &status);
        CHECK(code && strstr(code->ptx, "sm_90a"));
        dtm_jit_code_free(code);
        dtm_jit_destroy(jit);
    }
    if (geteuid() == 0) {
        snprintf(path, sizeof path, "%s/others", work);
        if ((mkdir(path, 0700) && access(path, F_OK)) || chown(path, 12345, 12345)) abort();
        dtm_jit *jit = jit_in(path, 1);
        dtm_jit_notice(jit, notice);
        CHECK(strstr(notice, "another user's") != NULL);
        dtm_jit_destroy(jit);
    }
}

/* The disk fills while an entry is written: nothing of it stays, nor of a corrupt one before it, and the code is there. */
static void test_full(void) {
    char notice[1200], path[2048];
    unsigned char *whole;
    empty();
    compile_once(&source, NULL, NULL);
    size_t bytes = entry_file(path, &whole);
    write_file(path, whole, bytes / 2);
    free(whole);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dtm_status status = {0};
        const struct rlimit limit = {200, 200};
        signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &limit)) abort();
        dtm_jit *jit = jit_in(cache, 1);
        dtm_jit_code *code = NULL;
        dtm_jit_counts counts;
        bool ok = dtm_jit_compile(jit, &source, 1, &code, &status) && code;
        dtm_jit_count(jit, &counts);
        dtm_jit_notice(jit, notice);
        _exit(ok && counts.unwritten == 1 && strstr(notice, "was not kept: cannot write in") ? 0 : 1);
    }
    int ended;
    waitpid(child, &ended, 0);
    CHECK(ended == 0);
    CHECK(count_files(".kernel") == 0 && count_files(".tmp") == 0);
}

/* ---- processes ---- */

static void test_killed(void) {
    empty();
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        die_at_fsync = true;
        compile_once(&source, NULL, NULL);
        _exit(0);
    }
    int ended;
    waitpid(child, &ended, 0);
    CHECK(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL);
    CHECK(count_files(".tmp") == 1 && count_files(".kernel") == 0);
    CHECK(compile_once(&source, NULL, NULL) == 1);
    CHECK(compile_once(&source, NULL, NULL) == 0);
    CHECK(count_files(".tmp") == 1); /* it may be another process that is about to rename it */
    DIR *files = opendir(cache);
    const struct timespec long_ago[2] = {{1000, 0}, {1000, 0}};
    for (struct dirent *file; (file = readdir(files)) != NULL;)
        if (strstr(file->d_name, ".tmp")) utimensat(dirfd(files), file->d_name, long_ago, 0);
    closedir(files);
    CHECK(compile_once(&source, NULL, NULL) == 0);
    CHECK(count_files(".tmp") == 0 && count_files(".kernel") == 1);
}

enum { PROCESSES = 6, SOURCES = 24 };

static void many(dtm_jit_source sources[SOURCES], char texts[SOURCES][32]) {
    for (int i = 0; i < SOURCES; i++) {
        snprintf(texts[i], sizeof texts[i], "source %d", i);
        sources[i] = (dtm_jit_source){"/dtm/many.cu", texts[i], "sm_80"};
    }
}

/* They write and read the same entries, and damage them for one another: each has the right code, and whole entries remain. */
static void test_processes(void) {
    dtm_jit_source sources[SOURCES];
    char texts[SOURCES][32];
    dtm_jit_code *right[SOURCES], *codes[SOURCES];
    dtm_status status = {0};
    many(sources, texts);
    dtm_jit *jit = jit_in(NULL, 3);
    CHECK_OK(dtm_jit_compile(jit, sources, SOURCES, right, &status), &status);
    dtm_jit_destroy(jit);
    empty();
    fflush(NULL);
    for (int p = 0; p < PROCESSES; p++)
        if (fork() == 0) {
            bool ok = true;
            for (int round = 0; round < 20 && ok; round++) {
                jit = jit_in(cache, 2);
                ok = dtm_jit_compile(jit, sources, SOURCES, codes, &status);
                for (int i = 0; ok && i < SOURCES; i++) {
                    ok = codes[i]->entry_bytes == right[i]->entry_bytes && !memcmp(codes[i]->entry, right[i]->entry, right[i]->entry_bytes);
                    dtm_jit_code_free(codes[i]);
                }
                dtm_jit_destroy(jit);
                DIR *files = opendir(cache);
                for (struct dirent *file; p == 0 && (file = readdir(files)) != NULL;)
                    if (strstr(file->d_name, ".kernel") && file->d_name[round % 8] < '8') {
                        int fd = openat(dirfd(files), file->d_name, O_WRONLY);
                        if (fd >= 0 && (pwrite(fd, "damage", 6, 50 + round) != 6 || close(fd))) ok = false;
                    }
                closedir(files);
            }
            _exit(ok ? 0 : 1);
        }
    for (int p = 0, ended; p < PROCESSES; p++) {
        waitpid(-1, &ended, 0);
        CHECK(ended == 0);
    }
    CHECK(count_files(".tmp") == 0);
    jit = jit_in(cache, 2);
    CHECK_OK(dtm_jit_compile(jit, sources, SOURCES, codes, &status), &status);
    for (int i = 0; i < SOURCES; i++) {
        CHECK(codes[i] && codes[i]->entry_bytes == right[i]->entry_bytes && !memcmp(codes[i]->entry, right[i]->entry, right[i]->entry_bytes));
        dtm_jit_code_free(codes[i]);
        dtm_jit_code_free(right[i]);
    }
    dtm_jit_destroy(jit);
    CHECK(count_files(".kernel") == SOURCES);
}

/* ---- threads, failures ---- */

/* Three compile at a time with three threads: each waits in NVRTC for the other two. */
static void test_pool(void) {
    const dtm_jit_source sources[3] = {{"/dtm/m.cu", "MEET 3 a", "sm_80"}, {"/dtm/m.cu", "MEET 3 b", "sm_80"}, {"/dtm/m.cu", "MEET 3 c", "sm_80"}};
    dtm_jit_code *codes[3];
    dtm_status status = {0};
    dtm_jit *jit = jit_in(NULL, 3);
    CHECK_OK(dtm_jit_compile(jit, sources, 3, codes, &status), &status);
    for (int i = 0; i < 3; i++) dtm_jit_code_free(codes[i]);
    dtm_jit_destroy(jit);
}

/* The error names the line of the .dtm file, and the file with the source; what was compiled beside it is given back. */
static void test_failure(void) {
    const dtm_jit_source sources[3] = {{"/dtm/x.cu", "good", "sm_80"}, {"/dtm/x.cu", "FAIL", "sm_80"}, {"relative.cu", "good", "sm_80"}};
    dtm_jit_code *codes[3];
    dtm_status status = {0};
    empty();
    dtm_jit *jit = jit_in(cache, 1);
    CHECK_FAILS(dtm_jit_compile(jit, sources, 2, codes, &status), &status, "/dtm/llama.dtm(7): error: identifier \"FAIL\" is undefined");
    CHECK(codes[0] == NULL && codes[1] == NULL);
    const char *path = strstr(status.message, cache);
    char saved[1200] = "", text[256] = "";
    if (path) snprintf(saved, sizeof saved, "%.*s", (int)strcspn(path, ")"), path);
    FILE *in = fopen(saved, "r");
    CHECK(in && fread(text, 1, sizeof text - 1, in) > 0 && !strncmp(text, "FAIL\n", 5) && strstr(text, "1 error"));
    if (in) fclose(in);
    status = (dtm_status){0};
    CHECK_FAILS(dtm_jit_compile(jit, sources + 2, 1, codes, &status), &status, "the program of relative.cu for sm_80");
    dtm_jit_destroy(jit);
    CHECK(count_files(".tmp") == 0);
}

/* What another rank compiled, with whatever NVRTC it has. */
static void test_take(void) {
    dtm_jit_code *code, *taken = NULL;
    dtm_status status = {0};
    dtm_jit_source other = source;
    dtm_cuda *own = cuda;
    empty();
    cuda = nvrtc_of("jit_newer");
    compile_once(&source, NULL, &code);
    dtm_cuda_destroy(cuda);
    cuda = own;
    int before = compiled();
    CHECK_OK(dtm_jit_take(&source, code->entry, code->entry_bytes, &taken, &status), &status);
    CHECK(taken && !strcmp(taken->ptx, code->ptx) && taken->n_kernels == 2 && compiled() == before);
    dtm_jit_code_free(taken);
    CHECK_FAILS(dtm_jit_take(&source, code->entry, code->entry_bytes - 1, &taken, &status), &status, "it is cut");
    other.arch = "sm_100a";
    status = (dtm_status){0};
    CHECK_FAILS(dtm_jit_take(&other, code->entry, code->entry_bytes, &taken, &status), &status, "of another source, architecture");
    status = (dtm_status){0};
    CHECK_FAILS(dtm_jit_take(&source, "", 0, &taken, &status), &status, "it is cut");
    dtm_jit_code_free(code);
}

static void test_architectures(void) {
    static const struct {
        int major, minor;
        const char *arch;
        bool newer;
    } cases[] = {{8, 0, "sm_80", false}, {9, 0, "sm_90a", false}, {10, 0, "sm_100a", false}, {8, 6, "compute_80", true}, {12, 1, "compute_100", true}};
    dtm_jit *jit = jit_in(NULL, 1);
    char arch[24];
    bool newer;
    dtm_status status = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_OK(dtm_jit_arch(jit, cases[i].major, cases[i].minor, arch, &newer, &status), &status);
        CHECK(!strcmp(arch, cases[i].arch) && newer == cases[i].newer);
    }
    CHECK_FAILS(dtm_jit_arch(jit, 7, 5, arch, &newer, &status), &status, "compute capability 7.5: the kernels need 8.0");
    dtm_jit_destroy(jit);
}

/* Without a folder given: ~/.cache/dtm, made with what leads to it. */
static void test_home(void) {
    char path[1200];
    struct stat info;
    dtm_status status = {0};
    dtm_jit *jit;
    snprintf(path, sizeof path, "%s/home", work);
    if (mkdir(path, 0755) && access(path, F_OK)) abort();
    setenv("HOME", path, 1);
    const dtm_jit_options options = {.cuda = cuda};
    CHECK_OK(dtm_jit_create(&options, &jit, &status), &status);
    snprintf(path, sizeof path, "%s/home/.cache/dtm", work);
    CHECK(stat(path, &info) == 0 && (info.st_mode & 0777) == 0700);
    dtm_jit_destroy(jit);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    standins = argv[1], work = argv[2];
    char path[1200];
    snprintf(path, sizeof path, "rm -rf '%s' && mkdir -p '%s'", work, work);
    if (system(path)) return 2;
    snprintf(cache, sizeof cache, "%s/cache", work);
    cuda = nvrtc_of("jit");
    void *library = dlopen(dtm_cuda_describe(cuda, DTM_LIBNVRTC)->path, RTLD_NOW);
    void *function = library ? dlsym(library, "standin_compiled") : NULL;
    if (!function) return 2;
    memcpy(&compiled, &function, sizeof function);
    test_found();
    test_key();
    test_corrupt();
    test_ignored();
    test_no_folder();
    test_full();
    test_killed();
    test_processes();
    test_pool();
    test_failure();
    test_take();
    test_architectures();
    test_home();
    dtm_cuda_destroy(cuda);
    printf("%d checks, %d failed\n", checks, failures);
    return failures > 0;
}
