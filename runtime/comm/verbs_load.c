#include "runtime/comm/verbs_load.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const char soname[] = "libibverbs.so.1";

static bool take(void *handle, const char *name, void *slot, const dtm_verbs *verbs, dtm_status *status) {
    void *function = dlsym(handle, name);
    if (!function) return dtm_status_fail(status, "libibverbs (%s) has no %s: rdma-core's, of version 17 or newer, would serve", verbs->path, name);
    memcpy(slot, &function, sizeof function);
    return true;
}

static bool take_all(void *handle, dtm_verbs *verbs, dtm_status *status) {
    struct link_map *map = NULL;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map) snprintf(verbs->path, sizeof verbs->path, "%s", map->l_name);
#define TAKE(name, result, parameters)                                                                                \
    if (!take(handle, "ibv_" #name, &verbs->name, verbs, status)) return false;
    DTM_VERBS_FUNCTIONS(TAKE)
#undef TAKE
    return true;
}

const dtm_verbs *dtm_verbs_load(const char *folder, dtm_status *status) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static dtm_verbs verbs;
    static bool asked;
    static dtm_status found;
    pthread_mutex_lock(&mutex);
    if (!asked) {
        char file[1024];
        snprintf(file, sizeof file, "%s%s%s", folder ? folder : "", folder ? "/" : "", soname);
        void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
        if (!handle)
            dtm_status_fail(&found, "libibverbs is missing: %s; it comes with rdma-core (Debian: libibverbs1), and the folder of another "
                            "can be named with --verbs-lib DIR", dlerror());
        else
            take_all(handle, &verbs, &found);
        asked = true;
    }
    pthread_mutex_unlock(&mutex);
    if (found.failed) dtm_status_fail(status, "%s", found.message);
    return found.failed ? NULL : &verbs;
}

bool dtm_verbs_devices(const dtm_verbs *verbs, dtm_verbs_device ***list, int *count, dtm_status *status) {
    *count = 0;
    errno = 0;
    *list = verbs->get_device_list(count);
    if (*list || errno == ENOSYS || errno == 0) return true; /* ENOSYS: the kernel has no RDMA at all */
    return dtm_status_fail_errno(status, errno, "libibverbs does not list its devices");
}
