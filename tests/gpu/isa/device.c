#include "device.h"

#include "runtime/cuda/load.h"

#include <stdio.h>
#include <string.h>

static dtm_cuda *cuda;
static const dtm_driver *driver;
static dtm_cu_stream stream;
static char *tables; /* of the host, which the device sees: what goes in, then what comes out */
static dtm_cu_pointer tables_at;
enum { TABLE = 1 << 18 };

static bool good(dtm_cu_result result, const char *doing, char *error, size_t size) {
    const char *name = NULL;
    if (result == DTM_CU_SUCCESS) return true;
    if (driver->GetErrorName(result, &name) != DTM_CU_SUCCESS || !name) name = "an error without a name";
    snprintf(error, size, "%s: %s (%d)", doing, name, (int)result);
    return false;
}

bool isa_device_open(char *said, size_t size, int *architecture) {
    dtm_status status = {0};
    dtm_cu_device device;
    dtm_cu_context context;
    char name[96] = "";
    int major = 0, minor = 0;
    if (!dtm_cuda_create(&(dtm_cuda_options){0}, &cuda, &status) || !(driver = dtm_cuda_driver(cuda, &status))) {
        snprintf(said, size, "%s", status.message);
        return false;
    }
    void *memory = NULL;
    bool ok = good(driver->Init(0), "cuInit", said, size) && good(driver->DeviceGet(&device, 0), "device 0", said, size) &&
              good(driver->DeviceGetName(name, sizeof name, device), "its name", said, size) &&
              good(driver->DeviceGetAttribute(&major, DTM_CU_CAPABILITY_MAJOR, device), "its capability", said, size) &&
              good(driver->DeviceGetAttribute(&minor, DTM_CU_CAPABILITY_MINOR, device), "its capability", said, size) &&
              good(driver->DevicePrimaryCtxRetain(&context, device), "a context", said, size) &&
              good(driver->CtxSetCurrent(context), "a context", said, size) &&
              good(driver->StreamCreateWithPriority(&stream, DTM_CU_STREAM_NON_BLOCKING, 0), "a stream", said, size) &&
              good(driver->MemHostAlloc(&memory, 2 * TABLE, DTM_CU_HOST_MAPPED), "memory of the host", said, size) &&
              good(driver->MemHostGetDevicePointer(&tables_at, memory, 0), "memory of the host", said, size);
    tables = memory;
    *architecture = major * 10 + minor;
    if (ok) snprintf(said, size, "%s, compute capability %d.%d", name, major, minor);
    return ok;
}

bool isa_device_run(const char *text, int threads, const void *in, void *out, size_t bytes, bool *loads, char *error, size_t size) {
    dtm_cu_module module;
    dtm_cu_function function;
    dtm_cu_pointer at[2] = {tables_at, tables_at + TABLE};
    void *arguments[2] = {&at[0], &at[1]};
    dtm_cu_launch launch = {.grid = {1, 1, 1}, .block = {(unsigned)threads, 1, 1}, .stream = stream};
    if (bytes > TABLE) return snprintf(error, size, "too large a table"), false;
    *loads = good(driver->ModuleLoadDataEx(&module, text, 0, NULL, NULL), "loading", error, size);
    if (!*loads) return false;
    memcpy(tables, in, bytes);
    memset(tables + TABLE, 0, bytes);
    bool ok = good(driver->ModuleGetFunction(&function, module, "isa"), "its entry", error, size) &&
              good(driver->LaunchKernelEx(&launch, function, arguments, NULL), "a launch", error, size) &&
              good(driver->StreamSynchronize(stream), "the kernel", error, size);
    memcpy(out, tables + TABLE, bytes);
    return good(driver->ModuleUnload(module), "unloading", error, size) && ok;
}
