/* Devices, contexts, attributes and errors of the stand-in; the table by which the runtime finds its functions; reports, and what a
 * process that had any ends with. */
#include "driver.h"

#include <stdarg.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct state sim = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
static _Thread_local struct device *device_of_thread;

void lock(void) { pthread_mutex_lock(&sim.mutex); }
void unlock(void) { pthread_mutex_unlock(&sim.mutex); }
uint64_t drawn(uint64_t below) { /* splitmix64 */
    uint64_t x = sim.random += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (x ^ x >> 31) % below;
}
void *fresh(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    if (!p)
        abort();
    return p;
}

/* ---- reports ---- */

static char reports[8000];
static void say_all(const char *format, va_list arguments) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    char line[1000];
    vsnprintf(line, sizeof line, format, arguments);
    pthread_mutex_lock(&mutex);
    fprintf(stderr, "simulated GPU: %s\n", line);
    size_t used = sim.said ? strlen(reports) : 0;
    snprintf(reports + used, sizeof reports - used, "%s\n", line);
    pthread_mutex_unlock(&mutex);
    __atomic_fetch_add(&sim.said, 1, __ATOMIC_RELAXED);
}
void say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say_all(format, arguments);
    va_end(arguments);
}
EXPORT void dtm_sim_say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say_all(format, arguments);
    va_end(arguments);
}
EXPORT const char *dtm_sim_reports(void) { return reports; }
EXPORT int dtm_sim_said(void) { return __atomic_exchange_n(&sim.said, 0, __ATOMIC_RELAXED); }
EXPORT void dtm_sim_again(void) {
    lock();
    drain(NULL);
    races_forget(1, SIZE_MAX - 1);
    for (int i = 0; i < sim.n_devices; i++)
        sim.devices[i].error = 0;
    unlock();
}
EXPORT uint64_t dtm_sim_draw(uint64_t below) {
    lock();
    uint64_t n = drawn(below);
    unlock();
    return n;
}
/* A program that breaks the rules must not pass, whatever it makes of the errors that it was given. */
static __attribute__((destructor)) void end(void) {
    write_calls();
    if (!__atomic_load_n(&sim.said, __ATOMIC_RELAXED))
        return;
    fflush(stdout);
    fprintf(stderr, "simulated GPU: %d reports\n", sim.said);
    _exit(86);
}

/* ---- objects ---- */

struct device *current(void) { return device_of_thread; }
int enter(void) {
    lock();
    if (!sim.initialised)
        return NOT_INITIALIZED;
    struct device *d = current();
    if (!d || !d->retained)
        return INVALID_CONTEXT;
    return d->error;
}
int enter_unsafe(void) {
    int error = enter();
    return error ? error : capture_forbids();
}
void *object_new(enum kind kind, size_t size) {
    struct object *o = fresh(1, size);
    *o = (struct object){.kind = kind, .device = current(), .next = sim.objects};
    return sim.objects = o;
}
static const char *kind_name(enum kind kind) {
    static const char *const names[] = {"stream", "event", "module", "function", "graph", "instantiated graph"};
    return names[kind - STREAM];
}
void *object_of(const void *handle, enum kind kind, const char *call, bool anywhere) {
    struct object *o = (struct object *)(uintptr_t)handle;
    if (kind == STREAM && (uintptr_t)handle <= 2)
        return say("%s: on the legacy stream, which orders all others", call), NULL;
    if (!o || o->kind != kind)
        return say("%s: this is no %s", call, kind_name(kind)), NULL;
    if (o->dead)
        return say("%s: the %s was destroyed", call, kind_name(kind)), NULL;
    if (!anywhere && o->device != current())
        return say("%s: the %s is of device %d, the context of device %d", call, kind_name(kind), o->device->ordinal, current()->ordinal), NULL;
    return o;
}

/* ---- start ---- */

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}
dtm_cu_result fake_Init(unsigned flags) {
    lock();
    if (!sim.initialised) {
        sim.n_devices = (int)number("DTM_SIM_DEVICES", 1);
        sim.n_devices = sim.n_devices < 0 ? 0 : sim.n_devices > MAX_DEVICES ? MAX_DEVICES : sim.n_devices;
        sim.architecture = (int)number("DTM_SIM_ARCH", 80);
        sim.multiprocessors = (int)number("DTM_SIM_MULTIPROCESSORS", 16);
        sim.checks = (int)number("DTM_SIM_CHECKS", 1);
        sim.sample = (int)number("DTM_SIM_SAMPLE", 1);
        sim.graphs = (int)number("DTM_SIM_GRAPHS", 2);
        sim.memory = (size_t)number("DTM_SIM_MEMORY", 16L << 30);
        sim.random = sim.seed = (uint64_t)number("DTM_SIM_SEED", 1);
        for (int i = 0; i < sim.n_devices; i++)
            sim.devices[i] = (struct device){.ordinal = i, .memory = sim_memory_new()};
        sim.initialised = sim.n_devices > 0;
    }
    bool any = sim.initialised;
    unlock();
    return flags ? INVALID_VALUE : any ? OK : NO_DEVICE;
}
dtm_cu_result fake_DriverGetVersion(int *version) {
    *version = 13000;
    return OK;
}
static const struct { int number; const char *name, *text; } errors[] = {
    {OK, "CUDA_SUCCESS", "no error"}, {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}, {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {PTX_TOO_NEW, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}, {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {PEER_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {MISALIGNED, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
    {CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    {CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
    {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"},
};
static dtm_cu_result error_text(int result, bool name, const char **out) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].number == result)
            return *out = name ? errors[i].name : errors[i].text, OK;
    *out = NULL;
    return INVALID_VALUE;
}
dtm_cu_result fake_GetErrorName(dtm_cu_result result, const char **name) { return error_text(result, true, name); }
dtm_cu_result fake_GetErrorString(dtm_cu_result result, const char **text) { return error_text(result, false, text); }

static int with_device(dtm_cu_device ordinal) { return !sim.initialised ? NOT_INITIALIZED : ordinal < 0 || ordinal >= sim.n_devices ? INVALID_DEVICE : OK; }
dtm_cu_result fake_DeviceGetCount(int *count) {
    *count = sim.n_devices;
    return sim.initialised ? OK : NOT_INITIALIZED;
}
dtm_cu_result fake_DeviceGet(dtm_cu_device *device, int ordinal) {
    *device = ordinal;
    return with_device(ordinal);
}
dtm_cu_result fake_DeviceGetName(char *name, int size, dtm_cu_device device) {
    if (!with_device(device))
        snprintf(name, (size_t)size, "Simulated GPU sm_%d", sim.architecture);
    return with_device(device);
}
dtm_cu_result fake_DeviceGetUuid(dtm_cu_uuid *uuid, dtm_cu_device device) {
    *uuid = (dtm_cu_uuid){{'s', 'i', 'm', 'u', 'l', 'a', 't', 'e', 'd', 0, 0, 0, 0, 0, 0, (char)device}};
    return with_device(device);
}
dtm_cu_result fake_DeviceGetPCIBusId(char *id, int size, dtm_cu_device device) {
    if (!with_device(device))
        snprintf(id, (size_t)size, "0000:%02x:00.0", device + 1);
    return with_device(device);
}
static int shared_of(int architecture) { return architecture == 80 || architecture == 87 ? 163 : architecture >= 90 && architecture < 120 ? 227 : 99; }
dtm_cu_result fake_DeviceGetAttribute(int *value, dtm_cu_attribute attribute, dtm_cu_device device) {
    if (with_device(device))
        return with_device(device);
    switch (attribute) {
    case 1: case 2: *value = 1024; return OK;      /* threads of a block, its x */
    case 5: *value = INT32_MAX; return OK;         /* grid's x, y, z */
    case 6: case 7: *value = 65535; return OK;
    case 8: *value = 48 << 10; return OK;          /* shared memory of a block without opt-in */
    case 10: *value = 32; return OK;               /* lanes */
    case 13: *value = 1410000; return OK;          /* clock, kHz */
    case 16: *value = sim.multiprocessors; return OK;
    case 38: *value = 40 << 20; return OK;         /* L2 */
    case 39: *value = 2048; return OK;             /* threads of a multiprocessor */
    case 75: *value = sim.architecture / 10; return OK;
    case 76: *value = sim.architecture % 10; return OK;
    case 81: *value = (shared_of(sim.architecture) + 1) << 10; return OK;
    case 82: *value = 65536; return OK;            /* registers */
    case 97: *value = shared_of(sim.architecture) << 10; return OK;
    case 102: *value = 1; return OK;               /* addresses apart from allocations */
    case 103: case 116: case 124: *value = 0; return OK; /* files of allocations; RDMA */
    }
    say("cuDeviceGetAttribute: attribute %d, which the stand-in does not know", attribute);
    return INVALID_VALUE;
}
dtm_cu_result fake_DeviceTotalMem(size_t *size, dtm_cu_device device) {
    *size = sim.memory;
    return with_device(device);
}
dtm_cu_result fake_DeviceCanAccessPeer(int *can, dtm_cu_device device, dtm_cu_device peer) {
    *can = device != peer;
    return with_device(device) ? with_device(device) : with_device(peer);
}

/* A context is its device. */
dtm_cu_result fake_DevicePrimaryCtxRetain(dtm_cu_context *context, dtm_cu_device device) {
    lock();
    int error = with_device(device);
    if (!error) {
        sim.devices[device].retained++;
        *context = (dtm_cu_context)(void *)&sim.devices[device];
    }
    unlock();
    return error;
}
/* What nobody destroyed; of a context that was lost nothing can be. */
static void find_leaks(struct device *d) {
    int n[EXEC - STREAM + 1] = {0};
    for (struct object *o = sim.objects; o; o = o->next)
        if (o->device == d && !o->dead) {
            n[o->kind - STREAM]++;
            o->dead = true;
        }
    for (int k = STREAM; k <= EXEC; k++)
        if (n[k - STREAM] && k != FUNCTION && !d->error)
            say("the context of device %d ends, and nobody has destroyed %d of its %ss", d->ordinal, n[k - STREAM], kind_name((enum kind)k));
    if (d->created && !d->error)
        say("the context of device %d ends, and %zu bytes of its memory are not released", d->ordinal, d->created);
}
dtm_cu_result fake_DevicePrimaryCtxRelease(dtm_cu_device device) {
    lock();
    int error = with_device(device);
    struct device *d = error ? NULL : &sim.devices[device];
    if (!error && !d->retained) {
        say("cuDevicePrimaryCtxRelease: more often than it was retained");
        error = INVALID_CONTEXT;
    }
    if (!error && d->retained == 1) {
        drain(d);
        find_leaks(d);
        d->error = 0;
    }
    d ? d->retained -= !error : 0;
    unlock();
    return error;
}
dtm_cu_result fake_CtxSetCurrent(dtm_cu_context context) {
    struct device *d = (struct device *)(void *)context;
    if (d && (d < sim.devices || d >= sim.devices + MAX_DEVICES || !d->retained))
        return INVALID_CONTEXT;
    device_of_thread = d;
    return OK;
}
dtm_cu_result fake_CtxSynchronize(void) {
    int error = enter_unsafe();
    if (!error && !dtm_sim_mutated("sync", "cuCtxSynchronize")) {
        drain(current());
        error = current()->error;
    }
    unlock();
    return error;
}
dtm_cu_result fake_CtxGetStreamPriorityRange(int *least, int *greatest) {
    int error = enter();
    *least = 0, *greatest = -5;
    unlock();
    return error;
}
dtm_cu_result fake_CtxEnablePeerAccess(dtm_cu_context peer, unsigned flags) {
    int error = enter();
    struct device *d = (struct device *)(void *)peer;
    if (!error && (flags || d < sim.devices || d >= sim.devices + sim.n_devices || d == current()))
        error = INVALID_VALUE;
    if (!error && current()->peers >> d->ordinal & 1)
        error = PEER_ENABLED;
    if (!error)
        current()->peers |= UINT64_C(1) << d->ordinal;
    unlock();
    return error;
}

/* ---- the table ---- */

EXPORT int cuDriverGetVersion(int *version);
EXPORT int cuDriverGetVersion(int *version) { return fake_DriverGetVersion(version); }
EXPORT dtm_cu_result cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, dtm_cu_query_result *found);
EXPORT dtm_cu_result cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, dtm_cu_query_result *found) {
    typedef void (*function)(void);
    static const struct { const char *name; function at; } all[] = {
#define ENTRY(name, since, parameters) {"cu" #name, (function)fake_##name},
        DTM_DRIVER_FUNCTIONS(ENTRY)
#undef ENTRY
    };
    *out = NULL;
    if (found)
        *found = 1;
    if (version != DTM_CUDA_ABI_VERSION || flags) { /* another version may have another signature */
        say("cuGetProcAddress: %s of version %d", name, version);
        return INVALID_VALUE;
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, name)) {
            memcpy(out, &all[i].at, sizeof *out);
            if (found)
                *found = 0;
            return OK;
        }
    return NOT_FOUND;
}
