/* The checks of memory: bounds and direction of declared buffers, alignment, whether bytes were ever written, and races.
 *
 * Races are found by happens-before, exactly, in the order that ran: two accesses of a byte, one a write, must be ordered.
 * Every access is stamped (block, warp, lane, clock of the warp). Barriers join the clocks of a block's warps; bar.warp.sync
 * orders lanes of a warp, which nothing else does. Blocks are ordered only by a fence, or release, before an atomic or strong
 * access and one, or acquire, after another's. A copy of cp.async writes as an actor of its own: until its thread has waited,
 * nobody may touch where it goes.
 *
 * The shadow of memory has a cell for four bytes; a page of it that meets narrower accesses is split to a cell a byte. */
#include "run.h"

#include <stdlib.h>
#include <string.h>

/* clock: 26 bits, lane 5, warp 5, atomic 1, pending 1, block 26 */
typedef uint64_t stamp;
#define CLOCK(s) ((uint32_t)((s) & 0x3ffffff))
#define LANE(s) ((int)((s) >> 26 & 31))
#define WARP(s) ((int)((s) >> 31 & 31))
#define ATOMIC (UINT64_C(1) << 36)
#define PENDING (UINT64_C(1) << 37)
#define BLOCK(s) ((s) >> 38)

/* Of what was not read by one warp alone: what each warp of one block read last, and one reader of another block. */
struct reader { uint32_t clock, lanes, op; };
struct readers { uint64_t block; stamp foreign; uint32_t foreign_op, next_free; struct reader warp[]; };
/* The last write; readers since. `many`: `read` is an index into readers. */
struct cell { stamp write, read; uint32_t write_op, read_op, read_lanes; bool many; };
enum { PAGE = 4096 };
struct page { int shift; struct cell cells[]; };
struct shadow { struct page **pages; size_t n; };

struct range { char *base; size_t size; uint64_t *defined; struct shadow shadow; };
struct sim_memory { struct range *ranges; int n; };
struct sync { uint64_t address; uint32_t *seen; struct sync *next; };
struct buffer { const char *name; uint64_t low, high; int direction; bool tracked; struct range *range; };
struct checks {
    struct buffer *buffers;
    int n_buffers, last;
    struct shadow shared; /* by resident block */
    char *readers; /* by index; those that are free are a list */
    size_t readers_size;
    uint32_t n_readers, free_readers; /* the list's first, plus 1 */
    struct sync *syncs;
    size_t n_warps;
};

/* ---- bits ---- */

static bool all_set(const uint64_t *bits, size_t at, size_t n) {
    while (n) {
        size_t in = at & 63, now = n < 64 - in ? n : 64 - in;
        uint64_t want = (now == 64 ? UINT64_MAX : (UINT64_C(1) << now) - 1) << in;
        if ((bits[at >> 6] & want) != want)
            return false;
        at += now, n -= now;
    }
    return true;
}
static void set_all(uint64_t *bits, size_t at, size_t n, bool value) {
    while (n) {
        size_t in = at & 63, now = n < 64 - in ? n : 64 - in;
        uint64_t which = (now == 64 ? UINT64_MAX : (UINT64_C(1) << now) - 1) << in;
        bits[at >> 6] = value ? bits[at >> 6] | which : bits[at >> 6] & ~which;
        at += now, n -= now;
    }
}

/* ---- memory ---- */

static void *zeroed(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    if (!p)
        abort();
    return p;
}
struct sim_memory *sim_memory_new(void) { return zeroed(1, sizeof(struct sim_memory)); }
static struct range *range_of(const struct sim_memory *m, uint64_t at) {
    int low = 0, high = m->n;
    while (low < high) {
        int middle = (low + high) / 2;
        if ((uint64_t)(uintptr_t)m->ranges[middle].base + m->ranges[middle].size > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low < m->n && (uint64_t)(uintptr_t)m->ranges[low].base <= at ? &m->ranges[low] : NULL;
}
bool sim_memory_add(struct sim_memory *m, void *base, size_t size) {
    int at = 0;
    while (at < m->n && (uintptr_t)m->ranges[at].base < (uintptr_t)base)
        at++;
    if (!size || (at && (uintptr_t)m->ranges[at - 1].base + m->ranges[at - 1].size > (uintptr_t)base) ||
        (at < m->n && (uintptr_t)base + size > (uintptr_t)m->ranges[at].base))
        return false;
    m->ranges = realloc(m->ranges, sizeof *m->ranges * (size_t)(m->n + 1));
    if (!m->ranges)
        abort();
    memmove(m->ranges + at + 1, m->ranges + at, sizeof *m->ranges * (size_t)(m->n++ - at));
    m->ranges[at] = (struct range){.base = base, .size = size, .defined = zeroed(size / 64 + 1, 8)};
    return true;
}
bool sim_memory_remove(struct sim_memory *m, void *base) {
    for (int i = 0; i < m->n; i++)
        if (m->ranges[i].base == base) {
            free(m->ranges[i].defined);
            memmove(m->ranges + i, m->ranges + i + 1, sizeof *m->ranges * (size_t)(--m->n - i));
            return true;
        }
    return false;
}
void sim_memory_free(struct sim_memory *m) {
    while (m && m->n)
        sim_memory_remove(m, m->ranges[0].base);
    if (m)
        free(m->ranges);
    free(m);
}
bool sim_memory_define(struct sim_memory *m, const void *at, size_t size, bool defined) {
    struct range *r = range_of(m, (uintptr_t)at);
    if (!r || (size_t)((const char *)at - r->base) + size > r->size)
        return false;
    set_all(r->defined, (size_t)((const char *)at - r->base), size, defined);
    return true;
}
size_t sim_memory_defined(const struct sim_memory *m, const void *at, size_t size) {
    const struct range *r = range_of(m, (uintptr_t)at);
    if (!r)
        return 0;
    size_t from = (size_t)((const char *)at - r->base), n = 0;
    if (size > r->size - from)
        size = r->size - from;
    while (n + 64 <= size && all_set(r->defined, from + n, 64))
        n += 64;
    while (n < size && all_set(r->defined, from + n, 1))
        n++;
    return n;
}

/* ---- shadow ---- */

static void shadow_begin(struct shadow *s, size_t bytes) {
    s->n = bytes / PAGE + 1;
    s->pages = zeroed(s->n, sizeof *s->pages);
}
static void shadow_end(struct shadow *s) {
    for (size_t i = 0; i < s->n; i++)
        free(s->pages[i]);
    free(s->pages);
    *s = (struct shadow){0};
}
static struct readers *readers_at(const struct checks *k, uint64_t i) { return (struct readers *)(void *)(k->readers + i * k->readers_size); }
static uint32_t readers_more(struct checks *k) {
    uint32_t i = k->free_readers;
    if (i) {
        k->free_readers = readers_at(k, --i)->next_free;
    } else {
        if (!(k->n_readers & (k->n_readers - 1))) {
            k->readers = realloc(k->readers, k->readers_size * (k->n_readers ? 2 * k->n_readers : 1));
            if (!k->readers)
                abort();
        }
        i = k->n_readers++;
    }
    memset(readers_at(k, i), 0, k->readers_size);
    return i;
}
static void readers_drop(struct checks *k, struct cell *c) {
    if (c->many) {
        readers_at(k, c->read)->next_free = k->free_readers;
        k->free_readers = (uint32_t)c->read + 1;
    }
    c->read = 0, c->many = false;
}
static struct page *page_at(struct checks *k, struct shadow *s, size_t at, int shift) {
    struct page **p = &s->pages[at / PAGE];
    if (*p && (*p)->shift <= shift)
        return *p;
    if (!*p) {
        *p = zeroed(1, sizeof **p + (PAGE >> shift) * sizeof(struct cell));
        (*p)->shift = shift;
    } else { /* four cells of each */
        struct page *fine = zeroed(1, sizeof *fine + PAGE * sizeof(struct cell));
        for (int i = 0; i < PAGE; i++)
            fine->cells[i] = (*p)->cells[i >> (*p)->shift];
        for (int i = 0; i < PAGE; i++) /* each with readers of its own */
            if (fine->cells[i].many) {
                uint32_t own = readers_more(k);
                memcpy(readers_at(k, own), readers_at(k, fine->cells[i].read), k->readers_size);
                fine->cells[i].read = own;
            }
        for (int i = 0; i < PAGE >> (*p)->shift; i++)
            readers_drop(k, &(*p)->cells[i]);
        free(*p);
        *p = fine;
    }
    return *p;
}

static void shadow_clear(struct checks *k, struct shadow *s) {
    for (size_t i = 0; i < s->n; i++)
        if (s->pages[i]) {
            int cells = PAGE >> s->pages[i]->shift;
            for (int c = 0; c < cells; c++)
                readers_drop(k, &s->pages[i]->cells[c]);
            memset(s->pages[i]->cells, 0, (size_t)cells * sizeof(struct cell));
        }
}

/* ---- order ---- */

static stamp stamp_of(const struct warp *w, int lane) {
    return (uint64_t)w->block->linear << 38 | (uint64_t)w->index << 31 | (uint64_t)lane << 26 | (w->clock & 0x3ffffff);
}
static bool warp_ordered(const struct run *r, const struct warp *w, int lane, uint64_t block, int warp, uint32_t lanes, uint32_t clock) {
    if (block != w->block->linear)
        return w->grid_seen && clock < w->grid_seen[block * r->checks->n_warps + (size_t)warp];
    if (warp != w->index)
        return clock < w->seen[warp];
    if (clock < w->together || lanes == 1u << lane)
        return true;
    for (int l = 0; l < LANES && w->lanes_seen; l++)
        if (lanes >> l & 1 && l != lane && clock >= w->lanes_seen[lane * LANES + l])
            return false;
    return w->lanes_seen != NULL;
}
static bool ordered(const struct run *r, const struct warp *w, int lane, stamp s) {
    return warp_ordered(r, w, lane, BLOCK(s), WARP(s), 1u << LANE(s), CLOCK(s));
}

static void race(struct run *r, struct warp *w, int lane, const struct op *op, const char *what, uint64_t block, int thread, uint32_t other,
                 bool pending, const char *was) {
    bool grid = block != w->block->linear;
    const struct op *with = other ? &r->f->code[other - 1] : NULL;
    struct sim_report *s = report(r, pending ? SIM_ASYNC : grid ? SIM_GRID_RACE : SIM_RACE, w, lane, op, "%s what %s %s, and nothing orders them",
                                  what, pending ? "a copy" : grid ? "a thread of another block" : "another thread", was);
    if (s)
        describe(r, &s->other, block, thread, with);
}
static struct readers *readers_new(struct run *r, struct cell *c) {
    uint32_t own = readers_more(r->checks);
    struct readers *s = readers_at(r->checks, own);
    s->block = BLOCK(c->read);
    s->warp[WARP(c->read)] = (struct reader){CLOCK(c->read), c->read_lanes, c->read_op};
    c->read = own;
    c->many = true;
    return s;
}
static void reads_cell(struct run *r, struct warp *w, int lane, const struct op *op, struct cell *c, stamp me) {
    uint32_t number = (uint32_t)(op - r->f->code) + 1;
    if (!c->many && c->read && ((c->read ^ me) & ~(UINT64_C(31) << 26)) == 0) {
        c->read_lanes |= 1u << lane;
        return;
    }
    if (!c->many && (!c->read || warp_ordered(r, w, lane, BLOCK(c->read), WARP(c->read), c->read_lanes, CLOCK(c->read)))) {
        c->read = me, c->read_op = number, c->read_lanes = 1u << lane;
        return;
    }
    struct readers *s = c->many ? readers_at(r->checks, c->read) : readers_new(r, c);
    if (s->block != w->block->linear) {
        s->foreign = me, s->foreign_op = number;
        return;
    }
    struct reader *mine = &s->warp[w->index];
    *mine = (struct reader){w->clock, (mine->clock == w->clock ? mine->lanes : 0) | 1u << lane, number};
}
static void after_readers(struct run *r, struct warp *w, int lane, const struct op *op, const struct cell *c, const char *what) {
    if (!c->many) {
        if (c->read && !warp_ordered(r, w, lane, BLOCK(c->read), WARP(c->read), c->read_lanes, CLOCK(c->read))) {
            uint32_t others = BLOCK(c->read) == w->block->linear && WARP(c->read) == w->index ? c->read_lanes & ~(1u << lane) : c->read_lanes;
            race(r, w, lane, op, what, BLOCK(c->read), WARP(c->read) * LANES + __builtin_ctz(others), c->read_op, false, "reads");
        }
        return;
    }
    const struct readers *s = readers_at(r->checks, c->read);
    if (s->foreign && !ordered(r, w, lane, s->foreign))
        race(r, w, lane, op, what, BLOCK(s->foreign), WARP(s->foreign) * LANES + LANE(s->foreign), s->foreign_op, false, "reads");
    for (int i = 0; i < (int)r->checks->n_warps; i++) {
        const struct reader *one = &s->warp[i];
        if (one->lanes && !warp_ordered(r, w, lane, s->block, i, one->lanes, one->clock)) {
            uint32_t others = s->block == w->block->linear && i == w->index ? one->lanes & ~(1u << lane) : one->lanes;
            race(r, w, lane, op, what, s->block, i * LANES + __builtin_ctz(others), one->op, false, "reads");
        }
    }
}
static void touch_cell(struct run *r, struct warp *w, int lane, const struct op *op, struct cell *c, enum access access) {
    bool strong = access == UPDATES || op->order & STRONG, writes = access == WRITES || access == UPDATES || access == COPIES_TO;
    const char *what = access == COPIES_TO ? "copies to" : writes ? "writes" : "reads";
    stamp me = stamp_of(w, lane);
    if (c->write && !(strong && c->write & ATOMIC)) {
        if (c->write & PENDING)
            race(r, w, lane, op, what, BLOCK(c->write), WARP(c->write) * LANES + LANE(c->write), c->write_op, true, "writes");
        else if (!ordered(r, w, lane, c->write))
            race(r, w, lane, op, what, BLOCK(c->write), WARP(c->write) * LANES + LANE(c->write), c->write_op, false, "writes");
    }
    if (!writes) {
        if (!strong)
            reads_cell(r, w, lane, op, c, me);
        return;
    }
    if (c->read || c->many)
        after_readers(r, w, lane, op, c, what);
    c->write = me | (strong ? ATOMIC : 0) | (access == COPIES_TO ? PENDING : 0);
    c->write_op = (uint32_t)(op - r->f->code) + 1;
    readers_drop(r->checks, c);
}
static void touch(struct run *r, struct warp *w, int lane, const struct op *op, struct shadow *s, size_t at, int size, enum access access) {
    int shift = (at | (size_t)size) & 3 ? 0 : 2;
    for (size_t end = at + (size_t)size; at < end;) {
        struct page *p = page_at(r->checks, s, at, shift);
        touch_cell(r, w, lane, op, &p->cells[at % PAGE >> p->shift], access);
        at += (size_t)1 << p->shift;
    }
}

/* All lanes in a row, `size` a multiple of four. */
static void touch_row(struct run *r, struct warp *w, const struct op *op, struct shadow *s, size_t at, int size, enum access access) {
    struct page *p = NULL;
    uint32_t number = (uint32_t)(op - r->f->code) + 1;
    for (int lane = 0; lane < LANES; lane++) {
        stamp me = stamp_of(w, lane);
        for (int i = 0; i < size; i += 4, at += 4) {
            if (!p || at % PAGE == 0)
                p = page_at(r->checks, s, at, 2);
            if (p->shift != 2) {
                touch(r, w, lane, op, s, at, 4, access);
                continue;
            }
            struct cell *c = &p->cells[at % PAGE >> 2];
            if (c->write | c->read || c->many) {
                touch_cell(r, w, lane, op, c, access);
            } else if (access == READS) {
                c->read = me, c->read_op = number, c->read_lanes = 1u << lane;
            } else {
                c->write = me, c->write_op = number;
            }
        }
    }
}

/* ---- where an access goes ---- */

struct place { uint64_t low, high; char *bytes; uint64_t *defined; size_t from; struct shadow *shadow; const char *name; bool global; };

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
        *p = (struct place){.low = b->low, .high = b->high, .bytes = (char *)(uintptr_t)b->low, .defined = b->range->defined,
                            .from = (size_t)(b->low - (uint64_t)(uintptr_t)b->range->base), .name = b->name, .global = true,
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

static void publish(struct run *, struct warp *, const struct op *, uint64_t address);
static void acquire(struct run *, struct warp *, const struct op *, uint64_t address);

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
        *(access == READS ? &r->counts.read_bytes : &r->counts.write_bytes) += (uint64_t)all;
    char *first = p.bytes + (address[0] - p.low);
    for (int l = 0; l < LANES; l++)
        at[l] = first + l * size;
    return true;
}

uint32_t check_access(struct run *r, struct warp *w, const struct op *op, enum space space, uint32_t mask, const uint64_t *address, int size,
                      enum access access, char **at) {
    struct place p = {0};
    uint32_t good = 0;
    int align = op->base == CP_ASYNC ? op->vector : size;
    if ((space == GLOBAL || space == SHARED) && mask == ALL_LANES && access <= WRITES && !op->order && in_a_row(r, w, op, space, address, size, access, at))
        return mask;
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1))
            continue;
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
            *(direction_of(access) & SIM_READ ? &r->counts.read_bytes : &r->counts.write_bytes) += (uint64_t)size;
    }
    return good;
}

/* ---- copies ---- */

void check_landed(struct run *r, struct warp *w, const struct copy *c) {
    (void)r;
    set_all(w->block->shared_defined, c->to, (size_t)c->bytes, true);
}
void check_waited(struct run *r, struct warp *w, const struct copy *c) {
    if (r->launch->unchecked)
        return;
    stamp pending = stamp_of(w, c->lane), now = pending;
    for (size_t at = c->to, end = at + (size_t)c->bytes; at < end;) {
        struct page *p = page_at(r->checks, w->block->shadow, at, 2);
        struct cell *cell = &p->cells[at % PAGE >> p->shift];
        if (cell->write & PENDING && WARP(cell->write) == w->index && LANE(cell->write) == c->lane)
            cell->write = now;
        at += (size_t)1 << p->shift;
    }
}

/* ---- points of order ---- */

static void higher(uint32_t *a, uint32_t b) {
    if (b > *a)
        *a = b;
}
static void join(uint32_t *to, const uint32_t *from, size_t n) {
    for (size_t i = 0; i < n; i++)
        higher(&to[i], from[i]);
}
static size_t grid_size(const struct run *r) { return (size_t)r->n_grid * r->checks->n_warps; }

void check_barrier_arrive(struct run *r, struct warp *w, struct barrier *b) {
    w->clock++;
    join(b->joined, w->seen, MAX_WARPS);
    higher(&b->joined[w->index], w->clock);
    if (w->grid_seen) {
        if (!b->grid)
            b->grid = zeroed(grid_size(r), 4);
        join(b->grid, w->grid_seen, grid_size(r));
    }
}
void check_barrier_leave(struct run *r, struct warp *w, const struct barrier *b) {
    join(w->seen, b->joined, MAX_WARPS);
    w->together = w->clock;
    if (b->grid) {
        if (!w->grid_seen)
            w->grid_seen = zeroed(grid_size(r), 4);
        join(w->grid_seen, b->grid, grid_size(r));
    }
}
void check_warp_sync(struct run *r, struct warp *w, uint32_t mask) {
    (void)r;
    w->clock++;
    if (mask == w->live) { /* those that ended touch nothing any more; what they did, their barrier mates know */
        w->together = mask == w->begun ? w->clock : w->together;
        if (mask == w->begun)
            return;
    }
    if (!w->lanes_seen)
        w->lanes_seen = zeroed(LANES * LANES, 4);
    uint32_t all[LANES] = {0};
    for (int l = 0; l < LANES; l++)
        if (mask >> l & 1) {
            join(all, w->lanes_seen + l * LANES, LANES);
            all[l] = w->clock;
        }
    for (int l = 0; l < LANES; l++)
        if (mask >> l & 1)
            join(w->lanes_seen + l * LANES, all, LANES);
}

/* What the warp knows now may be published by its next atomic; what it has read by atomics, it knows. */
static void learn(struct run *r, struct warp *w, const struct sync *s) {
    if (!w->grid_seen)
        w->grid_seen = zeroed(grid_size(r), 4);
    join(w->grid_seen, s->seen, grid_size(r));
    const uint32_t *mine = s->seen + w->block->linear * r->checks->n_warps;
    for (size_t i = 0; i < r->checks->n_warps; i++)
        if ((int)i != w->index)
            higher(&w->seen[i], mine[i]);
}
void check_fence(struct run *r, struct warp *w) {
    w->clock++;
    w->fence = w->clock;
    memcpy(w->fence_seen, w->seen, sizeof w->seen);
    if (w->to_acquire)
        learn(r, w, w->to_acquire);
    w->to_acquire = NULL;
}
static struct sync *sync_at(struct run *r, uint64_t address) {
    struct sync *s = r->checks->syncs;
    while (s && s->address != address)
        s = s->next;
    return s;
}
static void publish(struct run *r, struct warp *w, const struct op *op, uint64_t address) {
    if (op->order & RELEASE)
        check_fence(r, w);
    if (!w->fence)
        return;
    struct sync *s = sync_at(r, address);
    if (!s) {
        s = zeroed(1, sizeof *s);
        *s = (struct sync){.address = address, .seen = zeroed(grid_size(r), 4), .next = r->checks->syncs};
        r->checks->syncs = s;
    }
    uint32_t *mine = s->seen + w->block->linear * r->checks->n_warps;
    join(mine, w->fence_seen, r->checks->n_warps);
    higher(&mine[w->index], w->fence);
    if (w->grid_seen)
        join(s->seen, w->grid_seen, grid_size(r));
}
static void acquire(struct run *r, struct warp *w, const struct op *op, uint64_t address) {
    struct sync *s = sync_at(r, address);
    if (s && op->order & ACQUIRE)
        learn(r, w, s);
    else if (s)
        w->to_acquire = s;
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
            shadow_end(&r->memory->ranges[i].shadow);
    free(k->buffers), free(k->readers), free(k);
}
bool checks_begin(struct run *r) {
    r->checks = zeroed(1, sizeof *r->checks);
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
            shadow_end(r->blocks[i].shadow);
            free(r->blocks[i].shadow);
        }
    checks_free(r);
}
