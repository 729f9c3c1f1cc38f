/* How fast the device copies its own memory: what kernels that are bound by memory are held against.
 *
 *     copy [BYTES]     1 GiB: {"part": "copy", "bytes": .., "gb_per_s": .., "device": ..}; read and written bytes counted */
#include "runtime/cuda/load.h"

#include <stdio.h>
#include <stdlib.h>

enum { TIMES = 10 };

static const dtm_driver *driver;

static void good(dtm_cu_result result, const char *doing) {
    const char *name = NULL;
    if (result == DTM_CU_SUCCESS) return;
    if (driver->GetErrorName(result, &name) != DTM_CU_SUCCESS || !name) name = "an error without a name";
    fprintf(stderr, "copy: %s: %s (%d)\n", doing, name, (int)result);
    exit(1);
}

static dtm_cu_pointer allocate(dtm_cu_device device, size_t *bytes) {
    const dtm_cu_allocation_properties properties = {.type = DTM_CU_ALLOCATION_PINNED, .location = {DTM_CU_LOCATION_DEVICE, device}};
    const dtm_cu_access access = {{DTM_CU_LOCATION_DEVICE, device}, DTM_CU_ACCESS_READ_WRITE};
    dtm_cu_allocation allocation;
    dtm_cu_pointer at = 0;
    size_t unit = 0;
    good(driver->MemGetAllocationGranularity(&unit, &properties, DTM_CU_GRANULARITY_RECOMMENDED), "the granularity of memory");
    *bytes = (*bytes + unit - 1) / unit * unit;
    good(driver->MemCreate(&allocation, *bytes, &properties, 0), "memory");
    good(driver->MemAddressReserve(&at, *bytes, 0, 0, 0), "addresses");
    good(driver->MemMap(at, *bytes, 0, allocation, 0), "mapping memory");
    good(driver->MemSetAccess(at, *bytes, &access, 1), "access to memory");
    return at;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

int main(int n, char **arguments) {
    dtm_status status = {0};
    dtm_cuda *cuda;
    dtm_cu_device device;
    dtm_cu_context context;
    dtm_cu_stream stream;
    dtm_cu_event begin, end;
    char name[96] = "";
    size_t bytes = n > 1 ? strtoull(arguments[1], NULL, 10) : (size_t)1 << 30;
    float times[TIMES];
    if (!bytes || n > 2) return fprintf(stderr, "usage: copy [BYTES]\n"), 2;
    if (!dtm_cuda_create(&(dtm_cuda_options){0}, &cuda, &status) || !(driver = dtm_cuda_driver(cuda, &status)))
        return fprintf(stderr, "copy: %s\n", status.message), 1;
    good(driver->Init(0), "cuInit");
    good(driver->DeviceGet(&device, 0), "device 0");
    good(driver->DeviceGetName(name, sizeof name, device), "its name");
    good(driver->DevicePrimaryCtxRetain(&context, device), "a context");
    good(driver->CtxSetCurrent(context), "a context");
    good(driver->StreamCreateWithPriority(&stream, DTM_CU_STREAM_NON_BLOCKING, 0), "a stream");
    good(driver->EventCreate(&begin, DTM_CU_EVENT_TIMED), "an event");
    good(driver->EventCreate(&end, DTM_CU_EVENT_TIMED), "an event");
    dtm_cu_pointer from = allocate(device, &bytes), to = allocate(device, &bytes);
    good(driver->MemsetD8Async(from, 1, bytes, stream), "filling memory");
    for (int i = -2; i < TIMES; i++) { /* two to warm up */
        good(driver->EventRecord(begin, stream), "an event");
        good(driver->MemcpyDtoDAsync(to, from, bytes, stream), "a copy");
        good(driver->EventRecord(end, stream), "an event");
        good(driver->EventSynchronize(end), "the copy");
        if (i >= 0) good(driver->EventElapsedTime(&times[i], begin, end), "its time");
    }
    qsort(times, TIMES, sizeof *times, by_value);
    double median = (double)times[TIMES / 2] * 1e-3;
    printf("{\"part\": \"copy\", \"bytes\": %zu, \"gb_per_s\": %.1f, \"device\": \"%s\"}\n", bytes, median > 0 ? 2 * (double)bytes / median * 1e-9 : 0, name);
    return 0;
}
