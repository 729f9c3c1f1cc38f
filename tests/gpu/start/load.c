/* Tests of the search for CUDA's libraries, with stand-ins that lie in folders of their own: load FOLDER. Each folder is named
 * by what is in it. load --real: the libraries of this machine have all that abi.h lists; skipped (77) where there are none. */
#include "runtime/cuda/load.h"
#include "runtime/test_check.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *root;

static dtm_cuda *open_in(const char *folder, bool elsewhere) {
    static char path[1024];
    dtm_status status = {0};
    dtm_cuda *cuda = NULL;
    snprintf(path, sizeof path, "%s/%s", root, folder);
    const dtm_cuda_options options = {.folder = path, .elsewhere = elsewhere};
    if (!dtm_cuda_create(&options, &cuda, &status)) abort();
    return cuda;
}

static bool mapped(const char *folder) {
    char line[2048], part[256];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    snprintf(part, sizeof part, "/%s", folder);
    while (maps && fgets(line, sizeof line, maps)) found = found || strstr(line, part);
    if (maps) fclose(maps);
    return found;
}

/* Nothing is opened unless asked for; then all is found, with versions, paths and build-ids. */
static void test_whole(void) {
    dtm_status status = {0};
    dtm_cuda *cuda = open_in("whole", false);
    CHECK(!mapped("whole/"));
    const dtm_driver *driver = dtm_cuda_driver(cuda, &status);
    CHECK_OK(driver != NULL, &status);
    CHECK(driver && driver->LaunchKernelEx && driver->Init(0) == DTM_CU_SUCCESS);
    CHECK(dtm_cuda_driver(cuda, &status) == driver);
    CHECK_OK(dtm_cuda_nvrtc(cuda, &status) && dtm_cuda_cublaslt(cuda, &status), &status);
    const dtm_nccl *nccl = dtm_cuda_nccl(cuda, &status);
    CHECK_OK(nccl != NULL, &status);
    CHECK(mapped("whole/libnvrtc-builtins.so.13.4"));
    CHECK(nccl && nccl->CommSplit && !nccl->AlltoAll && !nccl->CommWindowRegister);
    static const char *const shown[] = {"13.0", "13.4", "13.1", "2.28.9"};
    for (int i = 0; i < DTM_CUDA_LIBRARIES; i++) {
        const dtm_cuda_library *about = dtm_cuda_describe(cuda, (dtm_cuda_which)i);
        CHECK(!strcmp(about->shown, shown[i]));
        CHECK(strstr(about->path, "/whole/") != NULL);
        CHECK(strlen(about->build_id) == 40 && strspn(about->build_id, "0123456789abcdef") == 40);
    }
    CHECK(strcmp(dtm_cuda_describe(cuda, DTM_LIBNVRTC)->build_id, dtm_cuda_describe(cuda, DTM_LIBNCCL)->build_id) != 0);
    dtm_cuda_destroy(cuda);
}

/* One line that says what, where it was looked for and what would serve; the same each time. */
static void test_missing(void) {
    dtm_cuda *cuda = open_in("nothing", false);
    dtm_status status = {0}, again = {0};
    CHECK_FAILS(dtm_cuda_driver(cuda, &status), &status, "libcuda is missing: no libcuda.so.1 in ");
    CHECK(strstr(status.message, "/nothing; it comes with the NVIDIA driver") != NULL);
    CHECK_FAILS(dtm_cuda_driver(cuda, &again), &again, status.message);
    status = (dtm_status){0};
    CHECK_FAILS(dtm_cuda_nvrtc(cuda, &status), &status, "libnvrtc is missing: no libnvrtc.so.13 or libnvrtc.so.12 in ");
    CHECK(strstr(status.message, "pip install nvidia-cuda-nvrtc") != NULL);
    status = (dtm_status){0};
    CHECK_FAILS(dtm_cuda_cublaslt(cuda, &status), &status, "libcublasLt is missing");
    status = (dtm_status){0};
    CHECK_FAILS(dtm_cuda_nccl(cuda, &status), &status, "libnccl is missing");
    dtm_cuda_destroy(cuda);
}

/* What came of it is kept: a library that appears later is not mixed with what was found without it. */
static void test_kept(void) {
    char folder[1024], from[1024], to[1024];
    snprintf(folder, sizeof folder, "%s/later.%d", root, (int)getpid());
    snprintf(from, sizeof from, "%s/whole/libnccl.so.2", root);
    snprintf(to, sizeof to, "%s/later.%d/libnccl.so.2", root, (int)getpid());
    if (mkdir(folder, 0700)) abort();
    dtm_status status = {0};
    dtm_cuda *cuda = open_in(strrchr(folder, '/') + 1, false);
    CHECK_FAILS(dtm_cuda_nccl(cuda, &status), &status, "libnccl is missing");
    if (symlink(from, to)) abort();
    status = (dtm_status){0};
    CHECK_FAILS(dtm_cuda_nccl(cuda, &status), &status, "libnccl is missing");
    dtm_cuda_destroy(cuda);
    status = (dtm_status){0};
    cuda = open_in(strrchr(folder, '/') + 1, false);
    CHECK_OK(dtm_cuda_nccl(cuda, &status) != NULL, &status);
    dtm_cuda_destroy(cuda);
    unlink(to);
    rmdir(folder);
}

static void test_driver_refused(void) {
    dtm_status status = {0};
    dtm_cuda *cuda = open_in("old_driver", false);
    CHECK_FAILS(dtm_cuda_driver(cuda, &status), &status, "is for CUDA 11.8, too old: from CUDA 12.0 on, driver 525 or newer");
    dtm_cuda_destroy(cuda);
    cuda = open_in("driver_lacks", false);
    status = (dtm_status){0};
    CHECK_FAILS(dtm_cuda_driver(cuda, &status), &status, "has no cuLaunchKernelEx (error 500): a newer driver would serve");
    dtm_cuda_destroy(cuda);
    cuda = open_in("not_a_library", false);
    status = (dtm_status){0};
    CHECK_FAILS(dtm_cuda_driver(cuda, &status), &status, "libcuda cannot be loaded: ");
    dtm_cuda_destroy(cuda);
}

static void test_symbol_missing(void) {
    dtm_status status = {0};
    dtm_cuda *cuda = open_in("old_nccl", false);
    CHECK_FAILS(dtm_cuda_nccl(cuda, &status), &status, "has no ncclCommSplit: NCCL 2.19 or newer would serve");
    CHECK(strstr(status.message, "old_nccl/libnccl.so.2") != NULL);
    dtm_cuda_destroy(cuda);
    cuda = open_in("no_builtins", true);
    status = (dtm_status){0};
    CHECK_FAILS(dtm_cuda_nvrtc(cuda, &status), &status, "has no libnvrtc-builtins.so.13.4 beside it");
    dtm_cuda_destroy(cuda);
}

/* What is newer than the driver is passed over for an older one; without one it is refused. What is compiled for elsewhere
 * is not bound by the driver of this machine. */
static void test_bound(void) {
    dtm_status status = {0};
    dtm_cuda *cuda = open_in("two_nvrtc", false);
    CHECK_OK(dtm_cuda_nvrtc(cuda, &status) != NULL, &status);
    CHECK(!strcmp(dtm_cuda_describe(cuda, DTM_LIBNVRTC)->shown, "12.4"));
    CHECK(strstr(dtm_cuda_describe(cuda, DTM_LIBNVRTC)->path, "libnvrtc.so.12") != NULL);
    CHECK_FAILS(dtm_cuda_cublaslt(cuda, &status), &status, "is of CUDA 13.1, newer than the driver, which knows CUDA 12");
    dtm_cuda_destroy(cuda);
    cuda = open_in("two_nvrtc", true);
    CHECK(!strcmp(dtm_cuda_describe(cuda, DTM_LIBNVRTC)->shown, "13.4"));
    CHECK(!dtm_cuda_describe(cuda, DTM_LIBCUBLASLT)->status.failed);
    dtm_cuda_destroy(cuda);
}

/* By the loader: LD_LIBRARY_PATH has the folder "loader" first. */
static void test_loader(void) {
    dtm_status status = {0};
    dtm_cuda *cuda = NULL;
    const dtm_cuda_options options = {0};
    CHECK_OK(dtm_cuda_create(&options, &cuda, &status), &status);
    CHECK_OK(dtm_cuda_nccl(cuda, &status) != NULL, &status);
    CHECK(strstr(dtm_cuda_describe(cuda, DTM_LIBNCCL)->path, "/loader/") != NULL);
    dtm_cuda_destroy(cuda);
}

enum { ASKING = 8 };
static dtm_cuda *shared;
static const void *tables[ASKING];

static void *ask(void *argument) {
    dtm_status status = {0};
    int i = (int)(intptr_t)argument;
    tables[i] = i % 2 ? (const void *)dtm_cuda_nvrtc(shared, &status) : (const void *)dtm_cuda_driver(shared, &status);
    return NULL;
}

static void test_threads(void) {
    pthread_t threads[ASKING];
    shared = open_in("whole", false);
    for (int i = 0; i < ASKING; i++)
        if (pthread_create(&threads[i], NULL, ask, (void *)(intptr_t)i)) abort();
    for (int i = 0; i < ASKING; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < ASKING; i++) CHECK(tables[i] && tables[i] == tables[i % 2]);
    dtm_cuda_destroy(shared);
}

static char *printed(dtm_cuda *cuda, bool json, dtm_status *status) {
    static char text[8192];
    char file[1024];
    snprintf(file, sizeof file, "%s/printed.%d", root, (int)getpid());
    fflush(stdout);
    int kept = dup(1);
    FILE *out = freopen(file, "w", stdout);
    dtm_json_writer w = {0};
    if (json) {
        dtm_json_begin_object(&w);
        dtm_devices_put(cuda, &w, status);
        dtm_json_end_object(&w);
        puts(w.data);
        free(w.data);
    } else
        dtm_devices_print(cuda, status);
    fflush(stdout);
    dup2(kept, 1);
    close(kept);
    FILE *in = fopen(file, "r");
    if (!out || !in) abort();
    text[fread(text, 1, sizeof text - 1, in)] = 0;
    fclose(in);
    unlink(file);
    return text;
}

static void test_described(void) {
    dtm_status status = {0};
    dtm_cuda *cuda = open_in("whole", false);
    const char *text = printed(cuda, false, &status);
    CHECK_OK(!status.failed, &status);
    CHECK(strstr(text, "libcuda      13.0     ") && strstr(text, "build-id ") && strstr(text, "libnccl      2.28.9   "));
    CHECK(strstr(text, "device 1     Stand-in 1, compute capability 9.0, 132 multiprocessors, 139.0 GiB, PCI 0000:02:00.0"));
    text = printed(cuda, true, &status);
    dtm_json json = {0};
    CHECK_OK(dtm_json_parse(text, strlen(text), &json, &status), &status);
    CHECK(json.count && dtm_json_find(&json, 0, "devices") > 0 && dtm_json_find(&json, 0, "libraries") > 0);
    dtm_json_free(&json);
    dtm_cuda_destroy(cuda);
    cuda = open_in("two_nvrtc", false);
    text = printed(cuda, false, &status);
    CHECK(strstr(text, "libnccl      not usable: libnccl is missing: no libnccl.so.2 in "));
    CHECK(strstr(text, "devices      none: the driver has no device: no CUDA-capable device is detected (error 100)"));
    CHECK(status.failed && strstr(status.message, "libcublasLt"));
    dtm_cuda_destroy(cuda);
}

/* A library that is there is usable, whatever driver there is. */
static int test_real(void) {
    dtm_status status = {0};
    dtm_cuda *cuda;
    const dtm_cuda_options options = {.elsewhere = true};
    int found = 0;
    if (!dtm_cuda_create(&options, &cuda, &status)) abort();
    for (int i = DTM_LIBNVRTC; i < DTM_CUDA_LIBRARIES; i++) {
        const dtm_cuda_library *about = dtm_cuda_describe(cuda, (dtm_cuda_which)i);
        bool missing = about->status.failed && strstr(about->status.message, " is missing: no ");
        printf("%s %s %s %s\n", about->name, about->shown, about->path, about->status.message);
        CHECK(missing || !about->status.failed);
        if (!about->status.failed) CHECK(*about->build_id && *about->shown && *about->path == '/');
        found += !about->status.failed;
    }
    dtm_cuda_destroy(cuda);
    return failures ? 1 : found ? 0 : 77;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    if (!strcmp(argv[1], "--real")) return test_real();
    root = argv[1];
    test_whole();
    test_missing();
    test_kept();
    test_driver_refused();
    test_symbol_missing();
    test_bound();
    test_loader();
    test_threads();
    test_described();
    printf("%d checks, %d failed\n", checks, failures);
    return failures > 0;
}
