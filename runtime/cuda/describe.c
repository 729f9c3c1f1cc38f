/* What `info --devices` tells: the libraries that were found and the devices. */
#include "runtime/cuda/load.h"

#include <stdio.h>
#include <string.h>

typedef struct device {
    char name[128], bus[32];
    int major, minor, multiprocessors;
    size_t bytes;
} device;

/* -1 and a failure where the driver has none to give. */
static int count_devices(const dtm_driver *driver, dtm_status *status) {
    int count = 0;
    const char *text = NULL;
    dtm_cu_result result = driver->Init(0);
    if (result == DTM_CU_SUCCESS) result = driver->DeviceGetCount(&count);
    if (result == DTM_CU_SUCCESS && count > 0) return count;
    if (result != DTM_CU_SUCCESS && driver->GetErrorString(result, &text) == DTM_CU_SUCCESS && text)
        dtm_status_fail(status, "the driver has no device: %s (error %d)", text, (int)result);
    else
        dtm_status_fail(status, "the driver has no device (error %d)", (int)result);
    return -1;
}

static bool look_at(const dtm_driver *driver, int ordinal, device *out, dtm_status *status) {
    dtm_cu_device handle = 0;
    memset(out, 0, sizeof *out);
    dtm_cu_result result = driver->DeviceGet(&handle, ordinal);
    if (!result) result = driver->DeviceGetName(out->name, sizeof out->name, handle);
    if (!result) result = driver->DeviceGetPCIBusId(out->bus, sizeof out->bus, handle);
    if (!result) result = driver->DeviceTotalMem(&out->bytes, handle);
    if (!result) result = driver->DeviceGetAttribute(&out->major, DTM_CU_CAPABILITY_MAJOR, handle);
    if (!result) result = driver->DeviceGetAttribute(&out->minor, DTM_CU_CAPABILITY_MINOR, handle);
    if (!result) result = driver->DeviceGetAttribute(&out->multiprocessors, DTM_CU_MULTIPROCESSORS, handle);
    return !result || dtm_status_fail(status, "device %d does not answer (error %d)", ordinal, (int)result);
}

static const char *build_id_of(const dtm_cuda_library *about) { return *about->build_id ? about->build_id : "none"; }

/* The first failure is the one that the program would end with. */
bool dtm_devices_print(dtm_cuda *cuda, dtm_status *status) {
    for (int i = 0; i < DTM_CUDA_LIBRARIES; i++) {
        const dtm_cuda_library *about = dtm_cuda_describe(cuda, (dtm_cuda_which)i);
        if (about->status.failed) {
            printf("%-12s not usable: %s\n", about->name, about->status.message);
            dtm_status_fail(status, "%s", about->status.message);
        } else
            printf("%-12s %-8s %s, build-id %s\n", about->name, about->shown, about->path, build_id_of(about));
    }
    dtm_status none = {0};
    const dtm_driver *driver = dtm_cuda_driver(cuda, &none);
    int count = driver ? count_devices(driver, &none) : -1;
    for (int d = 0; d < count; d++) {
        device at;
        if (!look_at(driver, d, &at, status)) return false;
        printf("device %-5d %s, compute capability %d.%d, %d multiprocessors, %.1f GiB, PCI %s\n", d, at.name, at.major, at.minor,
               at.multiprocessors, (double)at.bytes / (1 << 30), at.bus);
    }
    if (none.failed && driver) printf("devices      none: %s\n", none.message);
    if (none.failed) dtm_status_fail(status, "%s", none.message);
    return !status->failed;
}

static void put_text(dtm_json_writer *w, const char *key, const char *value) {
    dtm_json_key(w, key);
    dtm_json_string(w, value);
}

static void put_whole(dtm_json_writer *w, const char *key, int64_t value) {
    dtm_json_key(w, key);
    dtm_json_whole(w, value);
}

static void put_library(dtm_json_writer *w, const dtm_cuda_library *about) {
    dtm_json_key(w, about->name);
    dtm_json_begin_object(w);
    if (about->status.failed)
        put_text(w, "error", about->status.message);
    else {
        put_text(w, "version", about->shown);
        put_text(w, "path", about->path);
        put_text(w, "build_id", about->build_id);
    }
    dtm_json_end_object(w);
}

static void put_device(dtm_json_writer *w, const device *at) {
    char capability[32];
    snprintf(capability, sizeof capability, "%d.%d", at->major, at->minor);
    dtm_json_begin_object(w);
    put_text(w, "name", at->name);
    put_text(w, "compute_capability", capability);
    put_whole(w, "multiprocessors", at->multiprocessors);
    put_whole(w, "bytes", (int64_t)at->bytes);
    put_text(w, "pci", at->bus);
    dtm_json_end_object(w);
}

bool dtm_devices_put(dtm_cuda *cuda, dtm_json_writer *w, dtm_status *status) {
    dtm_json_key(w, "libraries");
    dtm_json_begin_object(w);
    for (int i = 0; i < DTM_CUDA_LIBRARIES; i++) {
        const dtm_cuda_library *about = dtm_cuda_describe(cuda, (dtm_cuda_which)i);
        put_library(w, about);
        if (about->status.failed) dtm_status_fail(status, "%s", about->status.message);
    }
    dtm_json_end_object(w);
    dtm_json_key(w, "devices");
    dtm_json_begin_array(w);
    dtm_status none = {0};
    const dtm_driver *driver = dtm_cuda_driver(cuda, &none);
    int count = driver ? count_devices(driver, &none) : -1;
    for (int d = 0; d < count; d++) {
        device at;
        if (look_at(driver, d, &at, &none)) put_device(w, &at);
    }
    dtm_json_end_array(w);
    if (none.failed) dtm_status_fail(status, "%s", none.message);
    return !status->failed;
}
