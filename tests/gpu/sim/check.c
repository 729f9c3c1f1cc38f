/* Where an access may go: bounds and direction of declared buffers, alignment, whether its bytes were ever written. */
#include "check.h"

struct place { uint64_t low, high; char *bytes; uint64_t *defined; size_t from; struct shadow *shadow; const char *name; bool global; int buffer; };

static const char *verb(enum access a) {
    return a == READS ? "reads" : a == WRITES ? "writes" : a == UPDATES ? "updates" : a == COPIES_FROM ? "copies from" : "copies to";
}
static int direction_of(enum access a) {
    return a == READS || a == COPIES_FROM ? SIM_READ : a == UPDATES ? SIM_READ | SIM_WRITE : SIM_WRITE;
}
/* Says what is nearest. */
static void outside(struct run *r, struct warp *w, int lane, const struct op *op, uint64_t at, int size, enum access access) {
    const struct buffer *near = NULL;
    const struct checks *k = r->checks;
    for (int i = 0; i < k->n_buffers; i++) {
        const struct buffer *b = &k->buffers[i];
        if (at >= b->low && at + (uint64_t)size <= b->high) {
            report(r, SIM_BOUNDS, w, lane, op, "%s %d bytes at %s + %llu, which is declared to be %s alone", verb(access), size, b->name,
                   (unsigned long long)(at - b->low), b->direction == SIM_READ ? "read" : "written");
            return;
        }
        uint64_t d = at < b->low ? b->low - at : at - b->low;
        if (!near || d < (at < near->low ? near->low - at : at - near->low))
            near = b;
    }
    if (near)
        report(r, SIM_BOUNDS, w, lane, op, "%s %d bytes at %s %c %llu, outside its %llu bytes", verb(access), size, near->name,
               at < near->low ? '-' : '+', (unsigned long long)(at < near->low ? near->low - at : at - near->low),
               (unsigned long long)(near->high - near->low));
    else
        report(r, SIM_BOUNDS, w, lane, op, "%s %d bytes at 0x%llx: nothing is declared", verb(access), size, (unsigned long long)at);
}
static bool of_module(struct run *r, uint64_t at, int size, enum access access, struct place *p) {
    const struct sim_module *m = r->f->module;
    for (int i = 0; i < m->n_variables; i++) {
        uint64_t low = (uint64_t)(uintptr_t)m->variables[i].bytes;
        if (low && at >= low && at + (uint64_t)size <= low + m->variables[i].size && (access == READS || m->variables[i].space == GLOBAL)) {
            *p = (struct place){.low = low, .high = low + m->variables[i].size, .bytes = m->variables[i].bytes, .name = m->variables[i].name};
            return true;
        }
    }
    return false;
}
static bool global_place(struct run *r, uint64_t at, int size, enum access access, struct place *p) {
    struct checks *k = r->checks;
    int want = direction_of(access);
    for (int i = 0; i < k->n_buffers; i++) {
        int n = (k->last + i) % k->n_buffers;
        const struct buffer *b = &k->buffers[n];
        if (at < b->low || at + (uint64_t)size > b->high || at + (uint64_t)size < at || (b->direction & want) != want)
            continue;
        k->last = n;
        *p = (struct place){.low = b->low, .high = b->high, .bytes = b->range->bytes + (b->low - (uint64_t)(uintptr_t)b->range->base), .defined = b->range->defined,
                            .from = (size_t)(b->low - (uint64_t)(uintptr_t)b->range->base), .name = b->name, .global = true, .buffer = n,
                            .shadow = b->tracked ? &b->range->shadow : NULL};
        return true;
    }
    return of_module(r, at, size, access, p);
}
static bool find(struct run *r, struct warp *w, int lane, enum space space, uint64_t at, int size, enum access access, struct place *p) {
    struct block *b = w->block;
    uint64_t window = space == GENERIC ? at >> 56 : 0;
    if (space == SHARED || window == 1) {
        uint64_t low = MEMORY_START + (window ? SHARED_WINDOW : 0);
        *p = (struct place){.low = low, .high = low + r->shared_bytes, .bytes = b->shared, .defined = b->shared_defined,
                            .shadow = b->shadow, .name = "shared memory"};
        return at >= p->low && at + (uint64_t)size <= p->high;
    }
    if (space == LOCAL || window == 2) {
        uint64_t low = MEMORY_START + (window ? LOCAL_WINDOW : 0);
        size_t from = (size_t)(w->index * LANES + lane) * r->local_bytes;
        *p = (struct place){.low = low, .high = low + r->local_bytes, .bytes = b->local + from, .defined = b->local_defined, .from = from,
                            .name = "local memory"};
        return at >= p->low && at + (uint64_t)size <= p->high;
    }
    if (window == 3) {
        *p = (struct place){.low = PARAM_WINDOW, .high = PARAM_WINDOW + r->launch->params_size,
                            .bytes = (char *)(uintptr_t)r->launch->params, .name = "parameters"};
        return at >= p->low && at + (uint64_t)size <= p->high && access == READS;
    }
    return global_place(r, at, size, access, p);
}

static void count_bytes(struct run *r, const struct place *p, uint64_t at, size_t size, enum access access) {
    int direction = direction_of(access);
    size_t low = (size_t)(at - p->low), high = low + size;
    r->counts.read_bytes += direction & SIM_READ ? size : 0;
    r->counts.write_bytes += direction & SIM_WRITE ? size : 0;
    if (!r->launch->touched || !r->launch->buffers)
        return;
    struct sim_extent *e = &r->launch->touched[p->buffer];
    if (direction & SIM_READ) {
        e->read_low = e->read_high && e->read_low < low ? e->read_low : low;
        e->read_high = e->read_high > high ? e->read_high : high;
    }
    if (direction & SIM_WRITE) {
        e->write_low = e->write_high && e->write_low < low ? e->write_low : low;
        e->write_high = e->write_high > high ? e->write_high : high;
    }
}

/* One lane's access within `p`: its bytes, or NULL if it may not be. */
static char *one(struct run *r, struct warp *w, int lane, const struct op *op, const struct place *p, uint64_t at, int size, int align,
                 enum access access) {
    size_t offset = (size_t)(at - p->low);
    if (at & (uint64_t)(align - 1)) {
        report(r, SIM_ALIGNMENT, w, lane, op, "%s %d bytes at %s + %zu: not a multiple of %d", verb(access), size, p->name, offset, align);
        return NULL;
    }
    bool reads = access == READS || access == UPDATES || access == COPIES_FROM;
    if (p->defined) {
        if (reads && !all_set(p->defined, p->from + offset, (size_t)size))
            report(r, SIM_DEFINED, w, lane, op, "%s %d bytes at %s + %zu, which were never written", verb(access), size, p->name, offset);
        if (access == WRITES || access == UPDATES)
            set_all(p->defined, p->from + offset, (size_t)size, true);
    }
    if (p->shadow && !r->launch->unchecked) {
        if (op->order || access == UPDATES) {
            if (access != READS)
                publish(r, w, op, at);
        }
        touch(r, w, lane, op, p->shadow, p->from + offset, size, access);
        if ((op->order || access == UPDATES) && access != WRITES)
            acquire(r, w, op, at);
    }
    return p->bytes + offset;
}

/* 32 lanes in a row: what can be said of the whole is said once. False if there is anything to say. */
static bool in_a_row(struct run *r, struct warp *w, const struct op *op, enum space space, const uint64_t *address, int size, enum access access,
                     char **at) {
    struct place p;
    uint64_t step = address[0] & (uint64_t)(size - 1);
    int all = size * LANES;
    for (int l = 1; l < LANES; l++)
        step |= address[l] ^ (address[0] + (uint64_t)(l * size));
    if (step || !find(r, w, 0, space, address[0], all, access, &p) || !p.defined)
        return false;
    size_t from = p.from + (size_t)(address[0] - p.low);
    bool traced = p.shadow && !r->launch->unchecked;
    if ((traced && size & 3) || (access == READS && !all_set(p.defined, from, (size_t)all)))
        return false;
    if (access == WRITES)
        set_all(p.defined, from, (size_t)all, true);
    if (traced)
        touch_row(r, w, op, p.shadow, from, size, access);
    if (p.global)
        count_bytes(r, &p, address[0], (size_t)all, access);
    char *first = p.bytes + (address[0] - p.low);
    for (int l = 0; l < LANES; l++)
        at[l] = first + l * size;
    return true;
}

/* Plain reads, once for all lanes that read the same place: `p` is where it lies. False if there is anything to say. */
static bool read_same(struct run *r, struct warp *w, const struct op *op, const struct place *p, uint64_t address, uint32_t lanes, int size, char **at) {
    size_t offset = (size_t)(address - p->low);
    if (address & (uint64_t)(size - 1) || !p->defined || !all_set(p->defined, p->from + offset, (size_t)size))
        return false;
    if (p->shadow && !r->launch->unchecked)
        touch_same(r, w, lanes, op, p->shadow, p->from + offset, size);
    for (uint32_t left = lanes; left; left &= left - 1) {
        at[__builtin_ctz(left)] = p->bytes + offset;
        if (p->global)
            count_bytes(r, p, address, (size_t)size, READS);
    }
    return true;
}

uint32_t check_access(struct run *r, struct warp *w, const struct op *op, enum space space, uint32_t mask, const uint64_t *address, int size,
                      enum access access, char **at) {
    struct place p = {0};
    uint32_t good = 0;
    int align = op->base == CP_ASYNC ? op->vector : size;
    if (r->launch->count)
        count_access(r, op, space, mask, address, size, direction_of(access) & SIM_WRITE);
    if ((space == GLOBAL || space == SHARED) && mask == ALL_LANES && access <= WRITES && !op->order && in_a_row(r, w, op, space, address, size, access, at))
        return mask;
    bool plain = access == READS && !op->order && (space == GLOBAL || space == SHARED);
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1) || good >> l & 1)
            continue;
        uint32_t same = 0;
        for (int k = 0; plain && k < LANES; k++)
            same |= (uint32_t)(address[k] == address[l]) << k;
        same &= mask;
        if (plain && same != 1u << l) {
            bool inside = address[l] >= p.low && address[l] + (uint64_t)size <= p.high;
            if ((inside || find(r, w, l, space, address[l], size, access, &p)) && read_same(r, w, op, &p, address[l], same, size, at)) {
                good |= same;
                continue;
            }
        }
        if ((address[l] < p.low || address[l] + (uint64_t)size > p.high || space == LOCAL || space == GENERIC) &&
            !find(r, w, l, space, address[l], size, access, &p)) {
            if (p.low && !p.global && (space != GLOBAL && (space != GENERIC || address[l] >> 56)))
                report(r, SIM_BOUNDS, w, l, op, "%s %d bytes at %s %+lld, outside its %llu bytes", verb(access), size, p.name,
                       (long long)(address[l] - p.low), (unsigned long long)(p.high - p.low));
            else
                outside(r, w, l, op, address[l], size, access);
            p = (struct place){0};
            continue;
        }
        at[l] = one(r, w, l, op, &p, address[l], size, align, access);
        good |= (uint32_t)(at[l] != NULL) << l;
        if (p.global)
            count_bytes(r, &p, address[l], (size_t)size, access);
    }
    return good;
}

/* ---- a launch ---- */

static void undefine(struct run *r, const struct buffer *b) {
    const struct checks *k = r->checks;
    for (int i = 0; i < k->n_buffers; i++)
        if (k->buffers[i].direction & SIM_READ && k->buffers[i].low < b->high && b->low < k->buffers[i].high)
            return; /* in place: what is read was there before */
    set_all(b->range->defined, (size_t)(b->low - (uint64_t)(uintptr_t)b->range->base), (size_t)(b->high - b->low), false);
}
static bool declare(struct run *r) {
    const struct sim_launch *l = r->launch;
    struct checks *k = r->checks;
    k->n_buffers = l->buffers ? l->n_buffers : r->memory->n;
    k->buffers = zeroed((size_t)k->n_buffers, sizeof *k->buffers);
    for (int i = 0; i < k->n_buffers; i++) {
        struct buffer *b = &k->buffers[i];
        struct range *all = l->buffers ? NULL : &r->memory->ranges[i];
        *b = l->buffers ? (struct buffer){.name = l->buffers[i].name, .low = (uint64_t)(uintptr_t)l->buffers[i].base,
                                          .high = (uint64_t)(uintptr_t)l->buffers[i].base + l->buffers[i].size,
                                          .direction = l->buffers[i].direction}
                        : (struct buffer){.name = "memory", .low = (uint64_t)(uintptr_t)all->base,
                                          .high = (uint64_t)(uintptr_t)all->base + all->size, .direction = SIM_READ | SIM_WRITE};
        b->range = range_of(r->memory, b->low);
        if (!b->range || b->high > (uint64_t)(uintptr_t)b->range->base + b->range->size) {
            report(r, SIM_BOUNDS, NULL, 0, NULL, "the declared buffer %s lies in no memory of the device", b->name);
            return false;
        }
    }
    for (int i = 0; i < k->n_buffers; i++)
        for (int j = 0; j < k->n_buffers; j++)
            k->buffers[i].tracked |= k->buffers[j].direction & SIM_WRITE && k->buffers[j].low < k->buffers[i].high &&
                                     k->buffers[i].low < k->buffers[j].high;
    for (int i = 0; i < k->n_buffers; i++)
        if (k->buffers[i].direction == SIM_WRITE)
            undefine(r, &k->buffers[i]);
    return true;
}
static void checks_free(struct run *r) {
    struct checks *k = r->checks;
    for (struct sync *s = k->syncs, *next; s; s = next) {
        next = s->next;
        free(s->seen), free(s);
    }
    for (int i = 0; i < r->memory->n; i++)
        if (r->memory->ranges[i].shadow.pages)
            shadow_end(r->memory, &r->memory->ranges[i].shadow);
    free(k->buffers), free(k->readers), free(k);
}
bool checks_begin(struct run *r) {
    r->checks = zeroed(1, sizeof *r->checks);
    r->checks->memory = r->memory;
    if (r->launch->touched && r->launch->buffers)
        memset(r->launch->touched, 0, sizeof *r->launch->touched * (size_t)r->launch->n_buffers);
    r->checks->n_warps = ((size_t)r->threads + LANES - 1) / LANES;
    r->checks->readers_size = (sizeof(struct readers) + r->checks->n_warps * sizeof(struct reader) + 7) / 8 * 8;
    if (!declare(r)) {
        checks_free(r);
        return false;
    }
    for (int i = 0; i < r->checks->n_buffers; i++)
        if (r->checks->buffers[i].tracked && !r->checks->buffers[i].range->shadow.pages)
            shadow_begin(&r->checks->buffers[i].range->shadow, r->checks->buffers[i].range->size);
    return true;
}
void checks_block(struct run *r, struct block *b) {
    if (!b->shadow) {
        b->shadow = zeroed(1, sizeof *b->shadow);
        shadow_begin(b->shadow, r->shared_bytes);
    }
    shadow_clear(r->checks, b->shadow);
}
void checks_end(struct run *r) {
    for (int i = 0; i < r->checks->n_buffers && !r->stopped; i++) {
        const struct buffer *b = &r->checks->buffers[i];
        size_t whole = sim_memory_defined(r->memory, (const void *)(uintptr_t)b->low, (size_t)(b->high - b->low));
        if (b->direction == SIM_WRITE && whole < b->high - b->low)
            report(r, SIM_DEFINED, NULL, 0, NULL, "after the launch %s + %zu was never written, of its %llu bytes", b->name, whole,
                   (unsigned long long)(b->high - b->low));
    }
    for (int i = 0; i < r->n_blocks; i++)
        if (r->blocks[i].shadow) {
            shadow_end(r->memory, r->blocks[i].shadow);
            free(r->blocks[i].shadow);
        }
    checks_free(r);
}
