#include "runtime/cuda/device.h"

#include "ir/fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STREAMS = 64, EVENTS = 4096, ALIGNMENT = 256 };

/* ---- errors ---- */

/* After these the context is of no use any more. */
static bool is_sticky(dtm_cu_result result) {
    return result == DTM_CU_ILLEGAL_ADDRESS || result == DTM_CU_LAUNCH_TIMEOUT || result == DTM_CU_MISALIGNED || result == DTM_CU_LAUNCH_FAILED;
}

bool dtm_device_check(dtm_device *device, dtm_cu_result result, dtm_status *status, const char *what, ...) {
    if (result == DTM_CU_SUCCESS) return true;
    char doing[300], place[900] = "";
    va_list arguments;
    va_start(arguments, what);
    vsnprintf(doing, sizeof doing, what, arguments);
    va_end(arguments);
    const char *name = NULL, *text = NULL;
    if (device->driver->GetErrorName(result, &name) != DTM_CU_SUCCESS || !name) name = "an error without a name";
    if (device->driver->GetErrorString(result, &text) != DTM_CU_SUCCESS || !text) text = "?";
    device->lost = device->lost || is_sticky(result);
    /* It has nothing to do with the call that tells it. */
    if (is_sticky(result)) dtm_marks_say(device, place, sizeof place);
    return dtm_status_fail(status, "rank %d, device %d (%s): %s%s%s (error %d, %s)%s", device->rank, device->ordinal, device->name, *place ? "" : doing,
                           *place ? "" : ": ", name, (int)result, text, place);
}

bool dtm_device_has_failed(dtm_device *device, dtm_status *status) {
    dtm_cu_result result = device->driver->EventQuery(device->finished);
    return is_sticky(result) && !dtm_device_check(device, result, status, "its context");
}

/* ---- streams and events ---- */

bool dtm_device_stream(dtm_device *device, bool urgent, dtm_cu_stream *out, dtm_status *status) {
    int least = 0, greatest = 0;
    if (device->n_streams == STREAMS) return dtm_status_fail(status, "rank %d: the plan needs more than %d streams", device->rank, STREAMS);
    dtm_cu_result result = device->driver->CtxGetStreamPriorityRange(&least, &greatest);
    if (!result) result = device->driver->StreamCreateWithPriority(out, DTM_CU_STREAM_NON_BLOCKING, urgent ? greatest : least);
    if (!dtm_device_check(device, result, status, "a stream")) return false;
    device->streams[device->n_streams++] = *out;
    return true;
}

bool dtm_device_event(dtm_device *device, dtm_cu_event *out, dtm_status *status) {
    if (device->n_events == EVENTS) return dtm_status_fail(status, "rank %d: the plan needs more than %d events", device->rank, EVENTS);
    if (!dtm_device_check(device, device->driver->EventCreate(out, DTM_CU_EVENT_UNTIMED), status, "an event")) return false;
    device->events[device->n_events++] = *out;
    return true;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* A rank by itself has nobody to look after. */
static bool wait_alone(dtm_device *device, dtm_cu_event event, const char *doing, dtm_status *status) {
    return dtm_device_check(device, device->driver->EventSynchronize(event), status, "%s", doing);
}

static bool wait_watching(dtm_rank *rank, dtm_cu_event event, const char *doing, dtm_status *status) {
    dtm_device *device = rank->device;
    const double begin = now(), spin = 100e-6, glance = 20e-3, deadline = rank->options->deadline_given ? rank->options->deadline : 600;
    double looked = begin;
    for (;;) {
        dtm_cu_result result = device->driver->EventQuery(event);
        if (result != DTM_CU_NOT_READY) return dtm_device_check(device, result, status, "%s", doing);
        double time = now();
        if (time - begin > spin) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        if (time - looked < glance) continue;
        looked = time;
        if (dtm_comm_is_lost(rank->comm)) return dtm_status_echo(status);
        if (device->watch && !device->watch(rank, status)) return false;
        if (deadline > 0 && time - begin > deadline + 1) /* what goes between ranks, which the watch knows better, comes first */
            return dtm_status_fail(status, "rank %d, device %d (%s): %s has not ended in %.0f s: the device, or another rank, hangs", device->rank, device->ordinal,
                                   device->name, doing, deadline);
    }
}

bool dtm_device_wait(dtm_rank *rank, dtm_cu_event event, dtm_status *status, const char *what, ...) {
    char doing[300];
    va_list arguments;
    va_start(arguments, what);
    vsnprintf(doing, sizeof doing, what, arguments);
    va_end(arguments);
    return dtm_comm_size(rank->comm) > 1 ? wait_watching(rank, event, doing, status) : wait_alone(rank->device, event, doing, status);
}

bool dtm_device_finish(dtm_rank *rank, dtm_status *status) {
    dtm_device *device = rank->device;
    return dtm_device_check(device, device->driver->EventRecord(device->finished, device->compute), status, "an event") &&
           dtm_device_wait(rank, device->finished, status, "step %lld", (long long)rank->step + 1);
}

/* ---- the device of a rank ---- */

static dtm_cu_result describe(dtm_device *device) {
    const dtm_driver *driver = device->driver;
    dtm_cu_result result = driver->DeviceGet(&device->handle, device->ordinal);
    if (!result) result = driver->DeviceGetName(device->name, sizeof device->name, device->handle);
    if (!result) result = driver->DeviceGetAttribute(&device->major, DTM_CU_CAPABILITY_MAJOR, device->handle);
    if (!result) result = driver->DeviceGetAttribute(&device->minor, DTM_CU_CAPABILITY_MINOR, device->handle);
    if (!result) result = driver->DeviceGetAttribute(&device->multiprocessors, DTM_CU_MULTIPROCESSORS, device->handle);
    return result;
}

/* Ranks of a node take its devices in order. A launcher may show each rank one alone, its own. */
static bool choose(dtm_rank *rank, dtm_status *status) {
    dtm_device *device = rank->device;
    int count = 0, index = dtm_comm_node_index(rank->comm), ranks = dtm_comm_node_size(rank->comm);
    snprintf(device->name, sizeof device->name, "not chosen yet");
    dtm_cu_result result = device->driver->Init(0);
    if (!result) result = device->driver->DeviceGetCount(&count);
    if (!dtm_device_check(device, result, status, "the driver has no device")) return false;
    if (count < 1) return dtm_status_fail(status, "rank %d: the driver has no device", device->rank);
    if (index >= count && count > 1)
        return dtm_status_fail(status, "rank %d is number %d of the %d ranks on its node, which has %d devices: a rank needs one of its own", device->rank,
                               index + 1, ranks, count);
    device->ordinal = index < count ? index : 0;
    return dtm_device_check(device, describe(device), status, "the device does not answer");
}

/* That no two ranks have the same. All ranks call it. */
static bool compare(dtm_rank *rank, dtm_status *status) {
    dtm_device *device = rank->device;
    int ranks = dtm_comm_size(rank->comm);
    dtm_cu_uuid own = {{0}}, *all = calloc((size_t)ranks, sizeof *all);
    int64_t *bytes = calloc((size_t)ranks, sizeof *bytes);
    bool ok = (all && bytes) || dtm_status_fail(status, "out of memory comparing the devices of %d ranks", ranks);
    ok = ok && dtm_device_check(device, device->driver->DeviceGetUuid(&own, device->handle), status, "the device's UUID");
    for (int r = 0; ok && r < ranks; r++) bytes[r] = sizeof own;
    ok = dtm_comm_agree(rank->comm, status) && dtm_all_gather(dtm_comm_world(rank->comm), DTM_ALGORITHM_RING, &own, all, bytes, status);
    for (int r = 0; ok && r < device->rank; r++)
        if (memcmp(&all[r], &own, sizeof own) == 0)
            ok = dtm_status_fail(status, "ranks %d and %d have the same device, %s: a rank needs one of its own", r, device->rank, device->name);
    free(all);
    free(bytes);
    return dtm_comm_agree(rank->comm, status);
}

static bool open_context(dtm_rank *rank, dtm_status *status) {
    dtm_device *device = rank->device;
    const dtm_cuda_options options = {.folder = rank->options->cuda_libs};
    device->each_waits = rank->profile || rank->options->trace;
    device->streams = calloc(STREAMS, sizeof(dtm_cu_stream));
    device->events = calloc(EVENTS, sizeof(dtm_cu_event));
    if (!device->streams || !device->events) return dtm_status_fail(status, "out of memory for a device");
    if (!dtm_cuda_create(&options, &device->cuda, status)) return false;
    device->driver = dtm_cuda_driver(device->cuda, status);
    if (!device->driver || !dtm_cuda_nvrtc(device->cuda, status) || !choose(rank, status)) return false;
    dtm_cu_result result = device->driver->DevicePrimaryCtxRetain(&device->context, device->handle);
    if (!result) result = device->driver->CtxSetCurrent(device->context);
    return dtm_device_check(device, result, status, "its context") && dtm_device_stream(device, false, &device->compute, status) &&
           dtm_device_event(device, &device->finished, status) && dtm_marks_open(device, status);
}

/* ---- memory ---- */

int64_t dtm_device_reserve(dtm_device *device, int64_t bytes) {
    int64_t at = (int64_t)device->memory_bytes;
    device->memory_bytes += ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

static bool fail_memory(dtm_rank *rank, dtm_status *status) {
    dtm_device *device = rank->device;
    size_t unused = 0, total = 0;
    const double mebi = 1048576;
    if (device->driver->MemGetInfo(&unused, &total) != DTM_CU_SUCCESS) unused = total = 0;
    const dtm_plan_memory *m = &rank->plan->memory;
    return dtm_status_fail(status,
                           "rank %d needs %.1f MiB on device %d (%s), of which %.1f MiB of %.1f are free: the plan's %.1f MiB (weights %.1f, gradients "
                           "%.1f, optimizer %.1f, activations %.1f; most lives at %s) and %.1f for kernels; shard more, or take more microbatches or smaller dimensions",
                           device->rank, (double)device->memory_bytes / mebi, device->ordinal, device->name, (double)unused / mebi,
                           (double)total / mebi, (double)rank->plan->arena_bytes / mebi, (double)m->weights / mebi, (double)m->gradients / mebi,
                           (double)m->optimizer / mebi, (double)m->activations / mebi, m->peak ? m->peak : "no place of its own",
                           ((double)device->memory_bytes - (double)rank->plan->arena_bytes) / mebi);
}

static bool make_memory(dtm_rank *rank, dtm_status *status) {
    dtm_device *device = rank->device;
    const dtm_driver *driver = device->driver;
    const dtm_cu_allocation_properties properties = {.type = DTM_CU_ALLOCATION_PINNED, .location = {DTM_CU_LOCATION_DEVICE, device->handle}};
    const dtm_cu_access access = {{DTM_CU_LOCATION_DEVICE, device->handle}, DTM_CU_ACCESS_READ_WRITE};
    size_t unit = 0;
    dtm_cu_result result = driver->MemGetAllocationGranularity(&unit, &properties, DTM_CU_GRANULARITY_RECOMMENDED);
    if (!dtm_device_check(device, result, status, "the granularity of its memory")) return false;
    device->mapped_bytes = (device->memory_bytes + unit - 1) / unit * unit;
    result = driver->MemCreate(&device->allocation, device->mapped_bytes, &properties, 0);
    if (result == DTM_CU_OUT_OF_MEMORY) return fail_memory(rank, status);
    if (!dtm_device_check(device, result, status, "%zu bytes of memory", device->mapped_bytes)) return false;
    device->allocated = true;
    result = driver->MemAddressReserve(&device->memory, device->mapped_bytes, 0, 0, 0);
    if (!result) result = driver->MemMap(device->memory, device->mapped_bytes, 0, device->allocation, 0);
    if (!result) result = driver->MemSetAccess(device->memory, device->mapped_bytes, &access, 1);
    rank->arena = (char *)(uintptr_t)device->memory;
    return dtm_device_check(device, result, status, "its memory");
}

static void free_memory(dtm_device *device) {
    if (device->memory) {
        device->driver->MemUnmap(device->memory, device->mapped_bytes);
        device->driver->MemAddressFree(device->memory, device->mapped_bytes);
    }
    if (device->allocated) device->driver->MemRelease(device->allocation);
}

/* ---- all of it ---- */

bool dtm_device_open(dtm_rank *rank, dtm_status *status) {
    rank->device = calloc(1, sizeof *rank->device);
    if (!rank->device) dtm_status_fail(status, "out of memory for a device");
    if (rank->device) rank->device->rank = dtm_comm_rank(rank->comm);
    if (rank->device) rank->device->owner = rank;
    if (rank->device) open_context(rank, status);
    if (!dtm_comm_agree(rank->comm, status)) return false;
    dtm_device_reserve(rank->device, rank->plan->arena_bytes);
    if (!compare(rank, status) || !dtm_device_kernels_load(rank, status)) return false;
    if (dtm_device_kernels_measure(rank, status) && dtm_device_products_measure(rank, status) && dtm_feed_measure(rank, status) &&
        make_memory(rank, status))
        dtm_feed_load(rank, status);
    if (!dtm_comm_agree(rank->comm, status)) return false;
    if (!dtm_device_products_load(rank, status) || !dtm_cuda_comms_open(rank, status)) return false;
    dtm_device_finish(rank, status);
    return dtm_comm_agree(rank->comm, status);
}

void dtm_device_close(dtm_rank *rank) {
    dtm_device *device = rank->device;
    if (!device) return;
    if (device->context) {
        dtm_cuda_comms_stop(rank); /* gives up what other ranks will not come to */
        if (!device->lost) device->driver->CtxSynchronize();
        if (dtm_fault(153)) dtm_cuda_comms_close(rank);
        dtm_step_graph_free(device);
        dtm_cuda_comms_close(rank);
        dtm_bounce_free(device);
        dtm_feed_free(device);
        dtm_marks_free(device);
        dtm_device_products_free(device);
        dtm_device_kernels_free(device);
        for (size_t i = 0; i < device->n_events; i++) device->driver->EventDestroy(device->events[i]);
        for (size_t i = 0; i < device->n_streams; i++) device->driver->StreamDestroy(device->streams[i]);
        free_memory(device);
        device->driver->CtxSetCurrent(NULL);
        device->driver->DevicePrimaryCtxRelease(device->handle);
    }
    free(device->streams);
    free(device->events);
    free(device->view);
    if (device->cuda) dtm_cuda_destroy(device->cuda);
    free(device);
    rank->device = NULL;
}

/* ---- for the log ---- */

static void put_text(dtm_json_writer *w, const char *key, const char *text) {
    dtm_json_key(w, key);
    dtm_json_string(w, text);
}

void dtm_device_put(dtm_device *device, dtm_json_writer *w) {
    char products[64], choices[96], capability[24];
    dtm_device_products_name(device, products);
    snprintf(capability, sizeof capability, "%d.%d", device->major, device->minor);
    put_text(w, "device", device->name);
    put_text(w, "compute_capability", capability);
    put_text(w, "driver", dtm_cuda_describe(device->cuda, DTM_LIBCUDA)->shown);
    put_text(w, "nvrtc", dtm_cuda_describe(device->cuda, DTM_LIBNVRTC)->shown);
    put_text(w, "products", products);
    dtm_device_choices(device, choices);
    put_text(w, "choices", choices);
}

/* ---- what the host reads and writes outside of steps ---- */

static void *view_of(dtm_device *device, int64_t bytes, dtm_status *status) {
    if (bytes <= device->view_bytes) return device->view;
    free(device->view);
    device->view = malloc((size_t)bytes);
    device->view_bytes = device->view ? bytes : 0;
    if (!device->view) dtm_status_fail(status, "out of memory for a copy of %lld bytes of device %d", (long long)bytes, device->ordinal);
    return device->view;
}

const void *dtm_rank_read(dtm_rank *rank, const void *at, int64_t bytes, dtm_status *status) {
    dtm_device *device = rank->device;
    if (!device || !bytes) return at;
    void *view = view_of(device, bytes, status);
    if (!view) return NULL;
    dtm_cu_result result = device->driver->MemcpyDtoHAsync(view, (dtm_cu_pointer)(uintptr_t)at, (size_t)bytes, device->compute);
    if (!dtm_device_check(device, result, status, "a copy of %lld bytes from it", (long long)bytes)) return NULL;
    return dtm_device_finish(rank, status) ? view : NULL;
}

void *dtm_rank_open(dtm_rank *rank, void *at, int64_t bytes, dtm_status *status) {
    return rank->device && bytes ? view_of(rank->device, bytes, status) : at;
}

bool dtm_rank_write(dtm_rank *rank, void *at, const void *from, int64_t bytes, dtm_status *status) {
    dtm_device *device = rank->device;
    if (!bytes || from == at) return true;
    if (!device) {
        memcpy(at, from, (size_t)bytes);
        return true;
    }
    dtm_cu_result result = device->driver->MemcpyHtoDAsync((dtm_cu_pointer)(uintptr_t)at, from, (size_t)bytes, device->compute);
    return dtm_device_check(device, result, status, "a copy of %lld bytes to it", (long long)bytes) && dtm_device_finish(rank, status);
}
