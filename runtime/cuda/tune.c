/* --tune: of the algorithms that cuBLASLt would take for a product the one that is fastest here, on the operands' own places in the arena,
 * which is filled with ones for it. The choice changes bits, as algorithms add in other orders: log and checkpoint name it. It is kept in
 * the cache, an entry for each shape, device, library and driver, so that the next run with --tune takes the same and measures nothing. */
#include "runtime/cuda/jit_entry.h"
#include "runtime/cuda/products.h"
#include "runtime/sha256.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 5 };

/* ---- the cache ---- */

/* All that decides which algorithm is fastest, and whether one is right at all. */
static void identify(dtm_device *device, const dtm_product_shape *shape, dtm_jit_identity *out) {
    const dtm_cuda_library *lt = dtm_cuda_describe(device->cuda, DTM_LIBCUBLASLT), *driver = dtm_cuda_describe(device->cuda, DTM_LIBCUDA);
    struct {
        char what[16], device[96], build[65], path[512];
        int32_t lt, driver, major, minor, multiprocessors, reserved;
        int64_t workspace;
        dtm_product_shape shape;
    } text;
    memset(&text, 0, sizeof text);
    snprintf(text.what, sizeof text.what, "product");
    snprintf(text.device, sizeof text.device, "%s", device->name);
    snprintf(text.build, sizeof text.build, "%s", lt->build_id);
    if (!*lt->build_id) snprintf(text.path, sizeof text.path, "%s", lt->path);
    text.lt = lt->version, text.driver = driver->version;
    text.major = device->major, text.minor = device->minor, text.multiprocessors = device->multiprocessors;
    text.workspace = device->products->workspace_bytes;
    text.shape = *shape;
    dtm_sha256(&text, sizeof text, out->what);
    memcpy(out->key, out->what, sizeof out->key);
}

/* An entry that the library takes for this product. */
static bool read_choice(dtm_device *device, const dtm_jit_folder *folder, dtm_product_choice *c) {
    const dtm_device_products *p = device->products;
    dtm_jit_identity identity;
    dtm_jit_code *code = NULL;
    dtm_cublas_heuristic checked;
    identify(device, &c->of, &identity);
    if (dtm_jit_folder_read(folder, &identity, &code) != DTM_JIT_FOUND) return false;
    dtm_cublas_algorithm algorithm;
    bool good = code->cubin_bytes == sizeof algorithm;
    if (good) memcpy(&algorithm, code->cubin, sizeof algorithm);
    dtm_jit_code_free(code);
    memset(&checked, 0, sizeof checked);
    good = good && p->lt->MatmulAlgoCheck(p->handle, c->desc, c->layouts[DTM_B], c->layouts[DTM_A], c->layouts[DTM_C], c->layouts[DTM_C], &algorithm,
                                          &checked) == DTM_CUBLAS_SUCCESS;
    if (!good || checked.workspace_bytes > (size_t)p->workspace_bytes) return false;
    c->algorithm = algorithm;
    c->workspace = checked.workspace_bytes;
    return true;
}

static bool write_choice(dtm_device *device, const dtm_jit_folder *folder, const dtm_product_choice *c, dtm_status *status) {
    dtm_jit_identity identity;
    unsigned char *entry = NULL;
    size_t bytes = 0;
    identify(device, &c->of, &identity);
    const dtm_jit_parts parts = {"", "", (const unsigned char *)&c->algorithm, sizeof c->algorithm};
    if (!dtm_jit_pack(&identity, &parts, &entry, &bytes, status)) return false;
    dtm_jit_folder_write(folder, &identity, entry, bytes); /* where nothing can be written the next run measures again */
    free(entry);
    return true;
}

bool dtm_products_keep(dtm_rank *rank, dtm_status *status) {
    dtm_device *device = rank->device;
    dtm_jit_folder folder;
    bool ok = true;
    dtm_jit_folder_open(rank->options->cache, &folder);
    for (size_t i = 0; ok && i < device->products->n_choices; i++) {
        const dtm_product_choice *c = &device->products->choices[i];
        if (c->found && !c->cached) ok = write_choice(device, &folder, c, status);
    }
    dtm_jit_folder_close(&folder);
    return ok;
}

/* ---- measuring ---- */

typedef struct stopwatch {
    dtm_cu_event begin, end;
} stopwatch;

/* Milliseconds of the fastest of a few runs; the first warms up. A candidate that the library refuses after all is infinitely slow. */
static bool measure(dtm_device *device, const stopwatch *watch, const dtm_product_choice *c, float *best, dtm_status *status) {
    const dtm_driver *driver = device->driver;
    *best = 1e30f;
    for (int r = 0; r <= REPEATS; r++) {
        float taken = 0;
        dtm_cu_result result = driver->EventRecord(watch->begin, device->compute);
        if (!result && dtm_product_call(device, c, c->operands, false) != DTM_CUBLAS_SUCCESS) return true;
        if (!result) result = driver->EventRecord(watch->end, device->compute);
        if (!result) result = driver->EventSynchronize(watch->end);
        if (!result) result = driver->EventElapsedTime(&taken, watch->begin, watch->end);
        if (!dtm_device_check(device, result, status, "the time of a product")) return false;
        if (r && taken < *best) *best = taken;
    }
    return true;
}

static bool choose(dtm_device *device, const stopwatch *watch, dtm_product_choice *c, dtm_status *status) {
    dtm_product_choice tried = *c;
    float least = 1e30f, taken;
    for (int i = 0; i < c->n_candidates; i++) {
        if (c->candidates[i].state != DTM_CUBLAS_SUCCESS) continue;
        tried.algorithm = c->candidates[i].algorithm;
        tried.workspace = c->candidates[i].workspace_bytes;
        if (!measure(device, watch, &tried, &taken, status)) return false;
        if (taken >= least) continue;
        least = taken;
        c->algorithm = tried.algorithm;
        c->workspace = tried.workspace;
    }
    return true;
}

static bool tune(dtm_rank *rank, const stopwatch *watch, dtm_status *status) {
    dtm_device *device = rank->device;
    dtm_device_products *p = device->products;
    dtm_jit_folder folder;
    size_t measured = 0;
    const unsigned ones = 0x3f803f80; /* about 1 in each type */
    size_t words = (size_t)rank->plan->arena_bytes / 4;
    dtm_cu_result result = words ? device->driver->MemsetD32Async(device->memory, ones, words, device->compute) : DTM_CU_SUCCESS;
    bool ok = dtm_device_check(device, result, status, "ones in its memory");
    dtm_jit_folder_open(rank->options->cache, &folder);
    for (size_t i = 0; ok && i < p->n_choices; i++) {
        dtm_product_choice *c = &p->choices[i];
        if (!c->found) continue;
        c->cached = read_choice(device, &folder, c);
        measured += !c->cached;
        ok = c->cached || choose(device, watch, c, status);
    }
    dtm_jit_folder_close(&folder);
    if (ok && !rank->options->quiet && device->rank == 0)
        fprintf(stderr, "tuned: the fastest of up to %d algorithms for each of %zu shapes of products; %zu are from the cache\n", DTM_CANDIDATES, p->n_choices,
                p->n_choices - measured);
    return ok;
}

bool dtm_products_tune(dtm_rank *rank, dtm_status *status) {
    const dtm_driver *driver = rank->device->driver;
    stopwatch watch = {NULL, NULL};
    dtm_cu_result result = driver->EventCreate(&watch.begin, DTM_CU_EVENT_TIMED);
    if (!result) result = driver->EventCreate(&watch.end, DTM_CU_EVENT_TIMED);
    bool ok = dtm_device_check(rank->device, result, status, "events with times") && tune(rank, &watch, status);
    if (watch.begin) driver->EventDestroy(watch.begin);
    if (watch.end) driver->EventDestroy(watch.end);
    return ok;
}

/* ---- what was chosen ---- */

static bool is_among(const dtm_product_told *list, size_t n, const dtm_product_told *one) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&list[i].of, &one->of, sizeof one->of) == 0) return true;
    return false;
}

/* Of each shape the first, which is the one that all take. */
void dtm_products_digest(const dtm_product_told *all, int64_t count, char out[17]) {
    dtm_product_told *kept = calloc((size_t)count + 1, sizeof *kept);
    unsigned char digest[32];
    size_t n = 0;
    *out = 0;
    for (int64_t i = 0; kept && i < count; i++)
        if (!is_among(kept, n, &all[i])) kept[n++] = all[i];
    if (kept) dtm_sha256(kept, n * sizeof *kept, digest);
    for (int i = 0; kept && i < 8; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
    free(kept);
}
