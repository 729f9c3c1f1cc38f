/* Memory: addresses, allocations and their mapping; what is pinned; copies and fills. A device's address is the host's with a bit that no
 * address of a process has, so that a host that follows one faults. */
#include "driver.h"

#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { GRANULE = 2 << 20, RUBBISH = 256 << 20 };

struct reservation { uint64_t at; size_t bytes; struct reservation *next; };
struct allocation { uint32_t magic; int file, mapped; size_t bytes; struct device *device; bool released; struct allocation *next; };
struct mapping { uint64_t at; size_t bytes; struct allocation *allocation; bool accessible; struct mapping *next; };
struct pinned { uint64_t at; size_t bytes; bool mapped; struct pinned *next; };
static struct reservation *reservations;
static struct mapping *mappings;
static struct allocation *allocations; /* those that are released too, so that a use after it is known */
static struct pinned *pinned;
enum { ALLOCATION = 0xa110c };

/* ---- which bytes ---- */

static char *behind(uint64_t at) { return (char *)(uintptr_t)(at & ~DEVICE_BIT); }
static struct mapping *mapping_at(uint64_t at) {
    for (struct mapping *m = mappings; m; m = m->next)
        if (at >= m->at && at < m->at + m->bytes)
            return m;
    return NULL;
}
void *host_of(uint64_t at, size_t size) {
    if (!(at & DEVICE_BIT))
        return behind(at);
    for (uint64_t p = at;;) {
        const struct mapping *m = mapping_at(p);
        if (!m || !m->accessible)
            return NULL;
        if (at + size <= m->at + m->bytes)
            return behind(at);
        p = m->at + m->bytes;
    }
}
struct device *device_at(uint64_t at) {
    const struct mapping *m = at & DEVICE_BIT ? mapping_at(at) : NULL;
    return m ? m->allocation->device : NULL;
}
static const struct pinned *pinned_at(uint64_t at) {
    for (const struct pinned *p = pinned; p; p = p->next)
        if (at >= p->at && at < p->at + p->bytes)
            return p;
    return NULL;
}
bool is_pinned(uint64_t at, size_t size) {
    const struct pinned *p = pinned_at(at);
    return p && at + size <= p->at + p->bytes;
}
static struct sim_memory *memory_at(uint64_t at) {
    struct device *d = device_at(at);
    return d ? d->memory : NULL;
}
static const void *address(uint64_t at) { return (const void *)(uintptr_t)at; }

bool check_defined(const struct task *t) {
    bool checked = t->doing == WORKS || (t->doing == COPIES && !t->other && !(t->copy.to & DEVICE_BIT));
    for (int i = 0; checked && i < t->n_extents; i++) {
        const struct extent *e = &t->extents[i];
        struct sim_memory *m = memory_at(e->at);
        if (!m || !(e->direction & DTM_SIM_READ) || e->direction & DTM_SIM_SPARSE)
            continue;
        size_t n = sim_memory_defined(m, address(e->at), e->bytes);
        if (n < e->bytes) {
            say("%s: reads %s + %zu of %zu bytes, which was never written", t->name, e->name, n, e->bytes);
            return false;
        }
    }
    return true;
}
void define_written(const struct task *t) {
    for (int i = 0; i < t->n_extents; i++) {
        struct sim_memory *m = memory_at(t->extents[i].at);
        if (m && t->extents[i].direction & DTM_SIM_WRITE && !(t->extents[i].direction & DTM_SIM_SPARSE))
            sim_memory_define(m, address(t->extents[i].at), t->extents[i].bytes, true);
    }
}
EXPORT void *dtm_sim_host(uint64_t at, size_t size) {
    lock();
    void *host = host_of(at, size);
    unlock();
    return host;
}
EXPORT size_t dtm_sim_defined(uint64_t at, size_t size) {
    lock();
    struct sim_memory *m = memory_at(at);
    if (m)
        quiet(device_at(at));
    size_t n = m ? sim_memory_defined(m, address(at), size) : at & DEVICE_BIT ? 0 : size;
    unlock();
    return n;
}
EXPORT void dtm_sim_define(uint64_t at, size_t size, bool defined) {
    lock();
    struct sim_memory *m = memory_at(at);
    if (m) {
        quiet(device_at(at));
        sim_memory_define(m, address(at), size, defined);
    }
    unlock();
}

/* ---- addresses and allocations ---- */

dtm_cu_result fake_MemGetInfo(size_t *free_bytes, size_t *total) {
    int error = enter();
    *total = sim.memory;
    *free_bytes = error ? 0 : sim.memory - current()->created;
    unlock();
    return error;
}
static int allocates(const dtm_cu_allocation_properties *p) {
    bool right = p->type == DTM_CU_ALLOCATION_PINNED && p->location.type == DTM_CU_LOCATION_DEVICE && p->location.id >= 0 &&
                 p->location.id < sim.n_devices;
    return !right ? INVALID_VALUE : p->handle_types & ~DTM_CU_HANDLE_FILE ? NOT_SUPPORTED : OK;
}
dtm_cu_result fake_MemGetAllocationGranularity(size_t *granularity, const dtm_cu_allocation_properties *properties, dtm_cu_granularity kind) {
    (void)kind;
    *granularity = GRANULE;
    return sim.initialised ? allocates(properties) : NOT_INITIALIZED;
}
dtm_cu_result fake_MemAddressReserve(dtm_cu_pointer *out, size_t size, size_t alignment, dtm_cu_pointer at, unsigned long long flags) {
    (void)at; /* a wish */
    int error = enter();
    if (!error && (!size || size % GRANULE || alignment & (alignment - 1) || flags))
        error = INVALID_VALUE;
    if (!error) {
        size_t align = alignment > GRANULE ? alignment : GRANULE;
        char *p = mmap(NULL, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) {
            error = OUT_OF_MEMORY;
        } else {
            char *begin = (char *)(((uintptr_t)p + align - 1) / align * align);
            if (begin > p)
                munmap(p, (size_t)(begin - p));
            if (p + align > begin)
                munmap(begin + size, (size_t)(p + align - begin));
            struct reservation *r = fresh(1, sizeof *r);
            *r = (struct reservation){(uint64_t)(uintptr_t)begin | DEVICE_BIT, size, reservations};
            reservations = r;
            *out = r->at;
        }
    }
    unlock();
    return error;
}
static bool any_mapped(uint64_t at, size_t size) {
    for (const struct mapping *m = mappings; m; m = m->next)
        if (m->at < at + size && at < m->at + m->bytes)
            return true;
    return false;
}
dtm_cu_result fake_MemAddressFree(dtm_cu_pointer at, size_t size) {
    int error = enter();
    struct reservation **link = &reservations;
    while (*link && (*link)->at != at)
        link = &(*link)->next;
    if (!error && (!*link || (*link)->bytes != size || any_mapped(at, size))) {
        say("cuMemAddressFree: %s", !*link || (*link)->bytes != size ? "this was not reserved so" : "something is mapped there");
        error = INVALID_VALUE;
    }
    if (!error) {
        struct reservation *r = *link;
        *link = r->next;
        munmap(behind(at), size);
        free(r);
    }
    unlock();
    return error;
}
dtm_cu_result fake_MemCreate(dtm_cu_allocation *out, size_t size, const dtm_cu_allocation_properties *properties, unsigned long long flags) {
    int error = enter_unsafe();
    if (!error)
        error = !size || size % GRANULE || flags ? INVALID_VALUE : allocates(properties);
    struct device *d = error ? NULL : &sim.devices[properties->location.id];
    if (!error && size > sim.memory - d->created)
        error = OUT_OF_MEMORY;
    if (!error) {
        int file = memfd_create("simulated GPU", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, (off_t)size)) {
            error = OUT_OF_MEMORY;
        } else {
            struct allocation *a = fresh(1, sizeof *a);
            *a = (struct allocation){.magic = ALLOCATION, .file = file, .bytes = size, .device = d, .next = allocations};
            allocations = a;
            d->created += size;
            *out = (dtm_cu_allocation)(uintptr_t)a;
        }
    }
    unlock();
    return error;
}
static void end_allocation(struct allocation *a) {
    if (!a->released || a->mapped || a->file < 0)
        return;
    close(a->file);
    a->file = -1;
    a->device->created -= a->bytes;
}
static struct allocation *allocation_of(dtm_cu_allocation handle, const char *call) {
    struct allocation *a = (struct allocation *)(uintptr_t)handle;
    if (a && a->magic == ALLOCATION && !a->released)
        return a;
    say("%s: this allocation was released, or is none", call);
    return NULL;
}
dtm_cu_result fake_MemRelease(dtm_cu_allocation allocation) {
    int error = enter();
    struct allocation *a = error ? NULL : allocation_of(allocation, "cuMemRelease");
    if (a) {
        a->released = true;
        end_allocation(a);
    }
    unlock();
    return error ? error : a ? OK : INVALID_VALUE;
}
dtm_cu_result fake_MemMap(dtm_cu_pointer at, size_t size, size_t offset, dtm_cu_allocation allocation, unsigned long long flags) {
    int error = enter_unsafe();
    struct allocation *a = error ? NULL : allocation_of(allocation, "cuMemMap");
    const struct reservation *r = reservations;
    while (r && (at < r->at || at + size > r->at + r->bytes))
        r = r->next;
    if (!error && (!a || !r || !size || at % GRANULE || size % GRANULE || offset || size > a->bytes || flags || any_mapped(at, size)))
        error = INVALID_VALUE;
    if (!error) {
        if (mmap(behind(at), size, PROT_NONE, MAP_SHARED | MAP_FIXED, a->file, 0) == MAP_FAILED)
            error = OUT_OF_MEMORY;
    }
    if (!error) {
        struct mapping *m = fresh(1, sizeof *m);
        *m = (struct mapping){.at = at, .bytes = size, .allocation = a, .next = mappings};
        mappings = m;
        a->mapped++;
    }
    unlock();
    return error;
}
static bool in_use(uint64_t at, size_t size, const char *call) {
    for (const struct op *op = pending; op; op = op->next_pending)
        if (op_touches(op, at, size))
            return say("%s: '%s' of stream %d, which is not done, touches it", call, op->task->name, op->stream->number), true;
    return false;
}
dtm_cu_result fake_MemUnmap(dtm_cu_pointer at, size_t size) {
    int error = enter_unsafe();
    struct mapping **link = &mappings;
    while (*link && (*link)->at != at)
        link = &(*link)->next;
    if (!error && (!*link || (*link)->bytes != size || in_use(at, size, "cuMemUnmap")))
        error = INVALID_VALUE;
    if (!error) {
        struct mapping *m = *link;
        quiet(m->allocation->device);
        *link = m->next;
        if (m->accessible)
            sim_memory_remove(m->allocation->device->memory, (void *)(uintptr_t)at);
        races_forget(at, size);
        mmap(behind(at), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        m->allocation->mapped--;
        end_allocation(m->allocation);
        free(m);
    }
    unlock();
    return error;
}
dtm_cu_result fake_MemSetAccess(dtm_cu_pointer at, size_t size, const dtm_cu_access *access, size_t count) {
    int error = enter();
    bool own = false;
    size_t covered = 0;
    for (size_t i = 0; i < count && !error; i++) {
        if (access[i].location.type != DTM_CU_LOCATION_DEVICE || access[i].flags != DTM_CU_ACCESS_READ_WRITE)
            error = INVALID_VALUE;
        own |= access[i].location.id == (device_at(at) ? device_at(at)->ordinal : -1);
    }
    for (struct mapping *m = mappings; m && !error && own; m = m->next) {
        if (m->at < at || m->at + m->bytes > at + size)
            continue;
        covered += m->bytes;
        if (m->accessible)
            continue;
        quiet(m->allocation->device);
        mprotect(behind(m->at), m->bytes, PROT_READ | PROT_WRITE);
        memset(behind(m->at), 0xff, m->bytes < RUBBISH ? m->bytes : RUBBISH); /* NaN, as nothing was written */
        sim_memory_add_at(m->allocation->device->memory, (void *)(uintptr_t)m->at, behind(m->at), m->bytes);
        m->accessible = true;
    }
    if (!error && own && covered != size)
        error = INVALID_VALUE;
    unlock();
    return error;
}

/* ---- pinned memory ---- */

dtm_cu_result fake_MemHostAlloc(void **out, size_t size, unsigned flags) {
    int error = enter_unsafe();
    if (!error && (!size || flags & ~(unsigned)(DTM_CU_HOST_PORTABLE | DTM_CU_HOST_MAPPED | 4)))
        error = INVALID_VALUE;
    if (!error) {
        size_t whole = (size + 4095) / 4096 * 4096;
        char *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            error = OUT_OF_MEMORY;
        } else {
            memset(p, 0xff, size); /* NaN, as nothing was written */
            struct pinned *n = fresh(1, sizeof *n);
            *n = (struct pinned){(uint64_t)(uintptr_t)p, size, flags & DTM_CU_HOST_MAPPED, pinned};
            pinned = n;
            for (int i = 0; i < sim.n_devices && n->mapped; i++) {
                quiet(&sim.devices[i]);
                sim_memory_add(sim.devices[i].memory, p, size);
                sim_memory_define(sim.devices[i].memory, p, size, true);
            }
            *out = p;
        }
    }
    unlock();
    return error;
}
dtm_cu_result fake_MemFreeHost(void *at) {
    int error = enter_unsafe();
    struct pinned **link = &pinned;
    while (*link && (*link)->at != (uint64_t)(uintptr_t)at)
        link = &(*link)->next;
    if (!error && (!*link || in_use((*link)->at, (*link)->bytes, "cuMemFreeHost")))
        error = INVALID_VALUE;
    if (!error) {
        struct pinned *p = *link;
        *link = p->next;
        for (int i = 0; i < sim.n_devices && p->mapped; i++) {
            quiet(&sim.devices[i]);
            sim_memory_remove(sim.devices[i].memory, at);
        }
        races_forget(p->at, p->bytes);
        munmap(at, (p->bytes + 4095) / 4096 * 4096);
        free(p);
    }
    unlock();
    return error;
}
dtm_cu_result fake_MemHostGetDevicePointer(dtm_cu_pointer *out, void *at, unsigned flags) {
    int error = enter();
    const struct pinned *p = pinned_at((uint64_t)(uintptr_t)at);
    if (!error && (!p || !p->mapped || flags)) {
        say("cuMemHostGetDevicePointer: %s", p ? "it is not mapped (CU_MEMHOSTALLOC_DEVICEMAP)" : "this is not pinned");
        error = INVALID_VALUE;
    }
    *out = (dtm_cu_pointer)(uintptr_t)at;
    unlock();
    return error;
}
dtm_cu_result fake_MemGetHandleForAddressRange(void *handle, dtm_cu_pointer at, size_t size, dtm_cu_range_handle kind, unsigned long long flags) {
    (void)handle, (void)at, (void)size, (void)kind, (void)flags;
    return NOT_SUPPORTED;
}
dtm_cu_result fake_FlushGPUDirectRDMAWrites(dtm_cu_flush_target target, dtm_cu_flush_scope scope) {
    (void)target, (void)scope;
    return NOT_SUPPORTED;
}

/* ---- copies ---- */

static uint64_t digest(uint64_t h, const char *p, size_t n) {
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t x;
        memcpy(&x, p, 8);
        h = (h ^ x) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    for (; n; p++, n--)
        h = (h ^ (uint8_t)*p) * UINT64_C(0x9e3779b97f4a7c15);
    return h;
}
uint64_t copy_digest(const struct task *t) {
    const struct copy *c = &t->copy;
    uint64_t h = 1;
    if (c->staged || c->from & DEVICE_BIT)
        return 0;
    for (size_t r = 0; r < c->rows; r++)
        h = digest(h, behind(c->from + r * c->from_pitch), c->width);
    return h ? h : 1;
}
/* What the device has not yet written to the host is rubbish. */
void poison_target(const struct task *t) {
    const struct copy *c = &t->copy;
    for (size_t r = 0; r < c->rows && !(c->to & DEVICE_BIT); r++)
        memset(behind(c->to + r * c->to_pitch), 0xff, c->width);
}
static void define_row(uint64_t to, uint64_t from, size_t width) {
    struct sim_memory *m = memory_at(to), *s = memory_at(from);
    if (!m)
        return;
    for (size_t at = 0; at < width;) {
        size_t n = s ? sim_memory_defined(s, address(from + at), width - at) : width;
        if (n)
            sim_memory_define(m, address(to + at), n, true);
        else
            sim_memory_define(m, address(to + at), n = 1, false);
        at += n;
    }
}
int run_copy(struct op *op) {
    const struct copy *c = &op->task->copy;
    if (op->digest && copy_digest(op->task) != op->digest) {
        say("%s: the host has changed the source before it was copied", op->task->name);
        return ILLEGAL_ADDRESS;
    }
    for (size_t r = 0; r < c->rows; r++)
        memmove(behind(c->to + r * c->to_pitch), c->staged ? c->staged + r * c->width : behind(c->from + r * c->from_pitch), c->width);
    lock();
    for (size_t r = 0; r < c->rows; r++)
        define_row(c->to + r * c->to_pitch, c->staged ? 0 : c->from + r * c->from_pitch, c->width);
    unlock();
    return OK;
}
static void touch_rows(struct task *t, const char *name, uint64_t at, size_t pitch, const struct copy *c, int direction) {
    if (c->rows > 256 || pitch == c->width) {
        task_touch(t, name, at, (c->rows - 1) * pitch + c->width, direction | (pitch == c->width ? 0 : DTM_SIM_SPARSE));
        return;
    }
    for (size_t r = 0; r < c->rows; r++)
        task_touch(t, name, at + r * pitch, c->width, direction);
}
/* One side of a copy is where the call says. */
static int check_side(const char *call, const char *side, uint64_t at, size_t extent, bool device) {
    bool right = device ? at & DEVICE_BIT && host_of(at, extent) : !(at & DEVICE_BIT) && at;
    if (right)
        return OK;
    say("%s: %zu bytes of the %s at 0x%llx are not %s", call, extent, side, (unsigned long long)at,
        device ? "mapped on a device" : "of the host");
    return INVALID_VALUE;
}
static int copy(const char *call, struct copy c, bool to_device, bool from_device, dtm_cu_stream stream) {
    int error = enter();
    struct stream *s = error ? NULL : object_of(stream, STREAM, call, true);
    if (!error && !s)
        error = INVALID_HANDLE;
    if (error || !c.width || !c.rows || dtm_sim_mutated("copy", call)) {
        unlock();
        return error;
    }
    size_t to_extent = (c.rows - 1) * c.to_pitch + c.width, from_extent = (c.rows - 1) * c.from_pitch + c.width;
    if (c.rows > 1 && (c.to_pitch < c.width || c.from_pitch < c.width))
        error = INVALID_VALUE;
    if (!error)
        error = check_side(call, "target", c.to, to_extent, to_device);
    if (!error)
        error = check_side(call, "source", c.from, from_extent, from_device);
    bool pageable = (!to_device && !is_pinned(c.to, to_extent)) || (!from_device && !is_pinned(c.from, from_extent));
    if (!error && pageable && s->capture) {
        say("%s: of memory that is not pinned, in a capture", call);
        capture_spoil(s->capture);
        error = CAPTURE_UNSUPPORTED;
    }
    if (!error) {
        struct task *t = task_new(COPIES, s->object.device, call);
        struct device *a = device_at(c.to), *b = device_at(c.from);
        t->other = a && a != t->device ? a : b && b != t->device ? b : NULL;
        if (pageable && to_device) {
            c.staged = malloc(c.width * c.rows);
            if (!c.staged)
                abort();
            for (size_t r = 0; r < c.rows; r++)
                memcpy(c.staged + r * c.width, behind(c.from + r * c.from_pitch), c.width);
        }
        t->copy = c;
        if (!c.staged)
            touch_rows(t, "the source", c.from, c.from_pitch, &c, DTM_SIM_READ);
        touch_rows(t, "the target", c.to, c.to_pitch, &c, DTM_SIM_WRITE);
        error = enqueue(s, t);
        if (!error && pageable && !to_device) /* as it comes back when it is there */
            error = wait_for(s->last);
    }
    unlock();
    return error;
}
static struct copy row(uint64_t to, uint64_t from, size_t size) {
    return (struct copy){.to = to, .from = from, .to_pitch = size, .from_pitch = size, .width = size, .rows = 1};
}
dtm_cu_result fake_MemcpyHtoDAsync(dtm_cu_pointer to, const void *from, size_t size, dtm_cu_stream stream) {
    return copy("cuMemcpyHtoDAsync", row(to, (uint64_t)(uintptr_t)from, size), true, false, stream);
}
dtm_cu_result fake_MemcpyDtoHAsync(void *to, dtm_cu_pointer from, size_t size, dtm_cu_stream stream) {
    return copy("cuMemcpyDtoHAsync", row((uint64_t)(uintptr_t)to, from, size), false, true, stream);
}
dtm_cu_result fake_MemcpyDtoDAsync(dtm_cu_pointer to, dtm_cu_pointer from, size_t size, dtm_cu_stream stream) {
    return copy("cuMemcpyDtoDAsync", row(to, from, size), true, true, stream);
}
dtm_cu_result fake_MemcpyPeerAsync(dtm_cu_pointer to, dtm_cu_context to_context, dtm_cu_pointer from, dtm_cu_context from_context, size_t size,
                                   dtm_cu_stream stream) {
    lock();
    bool right = (void *)device_at(to) == (void *)to_context && (void *)device_at(from) == (void *)from_context;
    unlock();
    if (!right) {
        say("cuMemcpyPeerAsync: an address is not of the context that is named");
        return INVALID_VALUE;
    }
    return copy("cuMemcpyPeerAsync", row(to, from, size), true, true, stream);
}
dtm_cu_result fake_Memcpy2DAsync(const dtm_cu_copy_2d *c, dtm_cu_stream stream) {
    bool to_device = c->target_kind == DTM_CU_KIND_DEVICE, from_device = c->source_kind == DTM_CU_KIND_DEVICE;
    if ((!to_device && c->target_kind != DTM_CU_KIND_HOST) || (!from_device && c->source_kind != DTM_CU_KIND_HOST))
        return INVALID_VALUE;
    struct copy it = {.to = (to_device ? c->target_device : (uint64_t)(uintptr_t)c->target_host) + c->target_y * c->target_pitch + c->target_x,
                      .from = (from_device ? c->source_device : (uint64_t)(uintptr_t)c->source_host) + c->source_y * c->source_pitch + c->source_x,
                      .to_pitch = c->target_pitch, .from_pitch = c->source_pitch, .width = c->width, .rows = c->height};
    return copy("cuMemcpy2DAsync", it, to_device, from_device, stream);
}

/* ---- fills ---- */

int run_fill(struct op *op) {
    const struct fill *f = &op->task->fill;
    char *p = behind(f->at);
    for (size_t i = 0; i < f->count; i++)
        memcpy(p + i * (size_t)f->width, &f->value, (size_t)f->width);
    lock();
    define_written(op->task);
    unlock();
    return OK;
}
static int fill(const char *call, uint64_t at, uint32_t value, int width, size_t count, dtm_cu_stream stream) {
    int error = enter();
    struct stream *s = error ? NULL : object_of(stream, STREAM, call, true);
    if (!error && !s)
        error = INVALID_HANDLE;
    size_t size = count * (size_t)width;
    if (!error && size)
        error = at % (unsigned)width ? INVALID_VALUE : check_side(call, "target", at, size, true);
    if (!error && size) {
        struct task *t = task_new(FILLS, s->object.device, call);
        t->fill = (struct fill){.at = at, .value = value, .width = width, .count = count};
        task_touch(t, "the target", at, size, DTM_SIM_WRITE);
        error = enqueue(s, t);
    }
    unlock();
    return error;
}
dtm_cu_result fake_MemsetD8Async(dtm_cu_pointer at, unsigned char value, size_t count, dtm_cu_stream stream) {
    return fill("cuMemsetD8Async", at, value, 1, count, stream);
}
dtm_cu_result fake_MemsetD32Async(dtm_cu_pointer at, unsigned value, size_t count, dtm_cu_stream stream) {
    return fill("cuMemsetD32Async", at, value, 4, count, stream);
}
