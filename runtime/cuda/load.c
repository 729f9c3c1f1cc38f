#include "runtime/cuda/load.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char toolkit[] = "/usr/local/cuda/lib64";

typedef struct known {
    const char *name;
    const char *sonames[3]; /* in the order in which they are tried */
    const char *help;       /* what would serve */
} known;

static const known libraries[DTM_CUDA_LIBRARIES] = {
    {"libcuda", {"libcuda.so.1"}, "it comes with the NVIDIA driver (525 or newer), which the machine of the GPU needs"},
    {"libnvrtc",
     {"libnvrtc.so.13", "libnvrtc.so.12"},
     "install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc` and name the folder of the library with --cuda-libs DIR"},
    {"libcublasLt",
     {"libcublasLt.so.13", "libcublasLt.so.12"},
     "install the CUDA toolkit, or `pip install nvidia-cublas` and name the folder of the library with --cuda-libs DIR"},
    {"libnccl",
     {"libnccl.so.2"},
     "install NCCL (libnccl2), or `pip install nvidia-nccl-cu13` and name the folder of the library with --cuda-libs DIR"},
};

struct dtm_cuda {
    dtm_cuda_options options;
    char *folder;
    pthread_mutex_t mutex; /* recursive: NVRTC's bound asks for the driver */
    bool asked[DTM_CUDA_LIBRARIES];
    dtm_cuda_library about[DTM_CUDA_LIBRARIES];
    dtm_driver driver;
    dtm_nvrtc nvrtc;
    dtm_cublaslt cublaslt;
    dtm_nccl nccl;
};

bool dtm_cuda_create(const dtm_cuda_options *options, dtm_cuda **out, dtm_status *status) {
    dtm_cuda *cuda = calloc(1, sizeof *cuda);
    if (cuda && options->folder) cuda->folder = strdup(options->folder);
    if (!cuda || (options->folder && !cuda->folder)) {
        free(cuda);
        return dtm_status_fail(status, "out of memory");
    }
    cuda->options = *options;
    cuda->options.folder = cuda->folder;
    for (int i = 0; i < DTM_CUDA_LIBRARIES; i++) cuda->about[i].name = libraries[i].name;
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&cuda->mutex, &recursive);
    pthread_mutexattr_destroy(&recursive);
    *out = cuda;
    return true;
}

void dtm_cuda_destroy(dtm_cuda *cuda) {
    if (!cuda) return;
    pthread_mutex_destroy(&cuda->mutex);
    free(cuda->folder);
    free(cuda);
}

/* ---- which file it is ---- */

typedef struct build_id_search {
    ElfW(Addr) base;
    char *out;
} build_id_search;

static void write_build_id(const ElfW(Nhdr) *note, char out[65]) {
    const unsigned char *bytes = (const unsigned char *)(note + 1) + ((note->n_namesz + 3) & ~3u);
    for (unsigned i = 0; i < note->n_descsz && i < 32; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

/* The notes of the library as they are loaded: `Nhdr, name, descriptor`, each part padded to 4 bytes. */
static int find_build_id(struct dl_phdr_info *info, size_t size, void *argument) {
    build_id_search *search = argument;
    (void)size;
    if (info->dlpi_addr != search->base) return 0;
    for (int p = 0; p < info->dlpi_phnum; p++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[p];
        if (part->p_type != PT_NOTE || part->p_align > 4) continue;
        const char *at = (const char *)(info->dlpi_addr + part->p_vaddr), *end = at + part->p_memsz;
        while (at + sizeof(ElfW(Nhdr)) <= end) {
            const ElfW(Nhdr) *note = (const ElfW(Nhdr) *)at;
            if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && !memcmp(note + 1, "GNU", 4))
                write_build_id(note, search->out);
            at += sizeof *note + ((note->n_namesz + 3) & ~3u) + ((note->n_descsz + 3) & ~3u);
        }
    }
    return 1;
}

static void identify(void *handle, dtm_cuda_library *about) {
    struct link_map *map = NULL;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || !map) return;
    snprintf(about->path, sizeof about->path, "%s", map->l_name);
    build_id_search search = {map->l_addr, about->build_id};
    dl_iterate_phdr(find_build_id, &search);
}

/* ---- the functions ---- */

/* Takes `name` into *slot; the first that is missing is named. */
static bool take(void *handle, const char *name, void *slot, const dtm_cuda_library *about, const char *older, dtm_status *status) {
    void *function = dlsym(handle, name);
    if (!function)
        return dtm_status_fail(status, "%s (%s) has no %s: %s", about->name, about->path, name, older);
    memcpy(slot, &function, sizeof function);
    return true;
}

/* NVRTC opens a second library by its name alone when it first compiles, and finds it where it is loaded already: so the one that
 * lies beside it is. */
static bool open_builtins(const dtm_cuda_library *about, int major, int minor, dtm_status *status) {
    char file[600], name[64];
    const char *slash = strrchr(about->path, '/');
    snprintf(name, sizeof name, "libnvrtc-builtins.so.%d.%d", major, minor);
    snprintf(file, sizeof file, "%.*s%s", slash ? (int)(slash - about->path) + 1 : 0, about->path, name);
    if (dlopen(file, RTLD_NOW | RTLD_LOCAL) || dlopen(name, RTLD_NOW | RTLD_LOCAL)) return true;
    return dtm_status_fail(status, "libnvrtc (%s) has no %s beside it, which it needs: install both from one package", about->path, name);
}

static bool take_nvrtc(dtm_cuda *cuda, void *handle, dtm_cuda_library *about, dtm_status *status) {
    static const char older[] = "another version of it, from CUDA 12.0 on, would serve";
#define TAKE(name, result, parameters)                                                                                 \
    if (!take(handle, "nvrtc" #name, &cuda->nvrtc.name, about, older, status)) return false;
    DTM_NVRTC_FUNCTIONS(TAKE)
#undef TAKE
    int major = 0, minor = 0;
    if (cuda->nvrtc.Version(&major, &minor) != DTM_NVRTC_SUCCESS)
        return dtm_status_fail(status, "%s (%s) does not say its version", about->name, about->path);
    about->version = major * 1000 + minor * 10;
    return open_builtins(about, major, minor, status);
}

static bool take_cublaslt(dtm_cuda *cuda, void *handle, dtm_cuda_library *about, dtm_status *status) {
    static const char older[] = "another version of it, from CUDA 12.0 on, would serve";
#define TAKE(name, result, parameters)                                                                                 \
    if (!take(handle, "cublasLt" #name, &cuda->cublaslt.name, about, older, status)) return false;
    DTM_CUBLASLT_FUNCTIONS(TAKE)
#undef TAKE
    size_t version = cuda->cublaslt.GetVersion(); /* 13.1.0 is 130100 */
    about->version = (int)(version / 10000 * 1000 + version / 100 % 100 * 10);
    return true;
}

static bool take_nccl(dtm_cuda *cuda, void *handle, dtm_cuda_library *about, dtm_status *status) {
    static const char older[] = "NCCL 2.19 or newer would serve";
#define TAKE(name, result, parameters)                                                                                 \
    if (!take(handle, "nccl" #name, &cuda->nccl.name, about, older, status)) return false;
    DTM_NCCL_FUNCTIONS(TAKE)
#undef TAKE
#define TAKE(name, result, parameters)                                                                                 \
    {                                                                                                                  \
        void *function = dlsym(handle, "nccl" #name);                                                                  \
        memcpy(&cuda->nccl.name, &function, sizeof function);                                                          \
    }
    DTM_NCCL_NEWER(TAKE)
#undef TAKE
    if (cuda->nccl.GetVersion(&about->version) != DTM_NCCL_SUCCESS)
        return dtm_status_fail(status, "%s (%s) does not say its version", about->name, about->path);
    return true;
}

static bool take_driver_function(dtm_cu_get_address get, const char *name, void *slot, const dtm_cuda_library *about,
                                 dtm_status *status) {
    void *function = NULL;
    dtm_cu_query_result found = 0;
    dtm_cu_result result = get(name, &function, DTM_CUDA_ABI_VERSION, 0, &found);
    if (result != DTM_CU_SUCCESS || !function)
        return dtm_status_fail(status, "the driver (CUDA %s, %s) has no %s (error %d): a newer driver would serve", about->shown,
                               about->path, name, (int)result);
    memcpy(slot, &function, sizeof function);
    return true;
}

static void show_version(dtm_cuda_library *about) {
    snprintf(about->shown, sizeof about->shown, "%d.%d", about->version / 1000, about->version % 1000 / 10);
}

static bool take_driver(dtm_cuda *cuda, void *handle, dtm_cuda_library *about, dtm_status *status) {
    dtm_cu_get_address get = NULL;
    /* Drivers too old for cuGetProcAddress_v2 are told by their version, not by what they have not got. */
    dtm_cu_result (*version)(int *) = NULL;
    void *function = dlsym(handle, "cuDriverGetVersion");
    memcpy(&version, &function, sizeof function);
    if (version && version(&about->version) == DTM_CU_SUCCESS) show_version(about);
    if (about->version && about->version < DTM_CUDA_LEAST_DRIVER)
        return dtm_status_fail(status, "the driver (%s) is for CUDA %s, too old: from CUDA %d.%d on, driver 525 or newer, one would serve",
                               about->path, about->shown, DTM_CUDA_LEAST_DRIVER / 1000, DTM_CUDA_LEAST_DRIVER % 1000 / 10);
    if (!take(handle, "cuGetProcAddress_v2", &get, about, "a newer driver would serve", status)) return false;
#define TAKE(name, since, parameters)                                                                                  \
    if (!take_driver_function(get, "cu" #name, &cuda->driver.name, about, status)) return false;
    DTM_DRIVER_FUNCTIONS(TAKE)
#undef TAKE
    if (cuda->driver.DriverGetVersion(&about->version) != DTM_CU_SUCCESS)
        return dtm_status_fail(status, "%s (%s) does not say its version", about->name, about->path);
    return true;
}

static bool take_functions(dtm_cuda *cuda, dtm_cuda_which which, void *handle, dtm_cuda_library *about, dtm_status *status) {
    bool ok = which == DTM_LIBCUDA       ? take_driver(cuda, handle, about, status)
              : which == DTM_LIBNVRTC    ? take_nvrtc(cuda, handle, about, status)
              : which == DTM_LIBCUBLASLT ? take_cublaslt(cuda, handle, about, status)
                                         : take_nccl(cuda, handle, about, status);
    int version = about->version;
    if (which == DTM_LIBNCCL)
        snprintf(about->shown, sizeof about->shown, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    else
        show_version(about);
    return ok;
}

/* ---- the search ---- */

/* Every place where a library is looked for, in order, with what was wrong there. */
typedef struct search {
    dtm_cuda *cuda;
    dtm_cuda_which which;
    int bound;        /* the newest major version of CUDA that the driver knows; 0: none */
    dtm_status first; /* of a file that was there and did not do */
} search;

/* Of NVRTC and cuBLASLt: whether the driver knows what they make. */
static bool fits(const search *s, const dtm_cuda_library *about, dtm_status *status) {
    bool bounded = s->which == DTM_LIBNVRTC || s->which == DTM_LIBCUBLASLT;
    if (!bounded || !s->bound || about->version / 1000 <= s->bound) return true;
    return dtm_status_fail(status, "%s (%s) is of CUDA %s, newer than the driver, which knows CUDA %d: one of CUDA %d would serve",
                           about->name, about->path, about->shown, s->bound, s->bound);
}

static bool try_file(search *s, const char *file) {
    dtm_cuda_library about = {.name = libraries[s->which].name};
    dtm_status status = {0};
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        /* A file that is there and cannot be loaded, for what it needs itself perhaps, says more than that none was found. */
        const char *why = dlerror();
        bool absent = why && !strncmp(why, file, strlen(file)) && strstr(why, "No such file");
        if (why && !absent) dtm_status_fail(&s->first, "%s cannot be loaded: %s", libraries[s->which].name, why);
        return false;
    }
    identify(handle, &about);
    if (take_functions(s->cuda, s->which, handle, &about, &status) && fits(s, &about, &status)) {
        s->cuda->about[s->which] = about;
        return true;
    }
    if (!s->first.failed) s->cuda->about[s->which] = about; /* what there is, for `info` */
    dtm_status_fail(&s->first, "%s", status.message);
    return false;
}

static bool try_all(search *s) {
    const char *folder = s->cuda->folder;
    for (const char *const *soname = libraries[s->which].sonames; *soname; soname++) {
        char file[1024];
        snprintf(file, sizeof file, "%s/%s", folder ? folder : toolkit, *soname);
        if (!folder && try_file(s, *soname)) return true;
        if (try_file(s, file)) return true;
    }
    return false;
}

static bool fail_missing(const search *s, dtm_status *status) {
    const known *k = &libraries[s->which];
    if (s->first.failed) return dtm_status_fail(status, "%s", s->first.message);
    char names[80] = "";
    for (int i = 0; k->sonames[i]; i++) {
        size_t length = strlen(names);
        snprintf(names + length, sizeof names - length, "%s%s", i ? " or " : "", k->sonames[i]);
    }
    return dtm_status_fail(status, "%s is missing: no %s %s%s; %s", k->name, names, s->cuda->folder ? "in " : "by the loader or in ",
                           s->cuda->folder ? s->cuda->folder : toolkit, k->help);
}

/* With the mutex held. */
static const dtm_cuda_library *ask(dtm_cuda *cuda, dtm_cuda_which which) {
    dtm_cuda_library *about = &cuda->about[which];
    if (cuda->asked[which]) return about;
    cuda->asked[which] = true;
    search s = {.cuda = cuda, .which = which};
    if (which != DTM_LIBCUDA && !cuda->options.elsewhere) {
        const dtm_cuda_library *driver = ask(cuda, DTM_LIBCUDA);
        if (!driver->status.failed) s.bound = driver->version / 1000;
    }
    if (!try_all(&s)) fail_missing(&s, &about->status);
    return about;
}

const dtm_cuda_library *dtm_cuda_describe(dtm_cuda *cuda, dtm_cuda_which which) {
    pthread_mutex_lock(&cuda->mutex);
    const dtm_cuda_library *about = ask(cuda, which);
    pthread_mutex_unlock(&cuda->mutex);
    return about;
}

static bool available(dtm_cuda *cuda, dtm_cuda_which which, dtm_status *status) {
    const dtm_cuda_library *about = dtm_cuda_describe(cuda, which);
    return !about->status.failed || dtm_status_fail(status, "%s", about->status.message);
}

const dtm_driver *dtm_cuda_driver(dtm_cuda *cuda, dtm_status *status) {
    return available(cuda, DTM_LIBCUDA, status) ? &cuda->driver : NULL;
}
const dtm_nvrtc *dtm_cuda_nvrtc(dtm_cuda *cuda, dtm_status *status) {
    return available(cuda, DTM_LIBNVRTC, status) ? &cuda->nvrtc : NULL;
}
const dtm_cublaslt *dtm_cuda_cublaslt(dtm_cuda *cuda, dtm_status *status) {
    return available(cuda, DTM_LIBCUBLASLT, status) ? &cuda->cublaslt : NULL;
}
const dtm_nccl *dtm_cuda_nccl(dtm_cuda *cuda, dtm_status *status) {
    return available(cuda, DTM_LIBNCCL, status) ? &cuda->nccl : NULL;
}
