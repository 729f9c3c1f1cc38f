/* Races are found by happens-before, exactly, in the order that ran: two accesses of a byte, one a write, must be ordered.
 * Every access is stamped (block, warp, lane, clock of the warp). Barriers join the clocks of a block's warps; bar.warp.sync
 * orders lanes of a warp, which nothing else does. Blocks are ordered only by a fence, or release, before an atomic or strong
 * access and one, or acquire, after another's. A copy of cp.async writes as an actor of its own: until its thread has waited,
 * nobody may touch where it goes.
 *
 * The shadow of memory has a cell for four bytes; a page of it that meets narrower accesses is split to a cell a byte. */
#include "check.h"

/* ---- shadow ---- */

void shadow_begin(struct shadow *s, size_t bytes) {
    s->n = bytes / PAGE + 1;
    s->pages = zeroed(s->n, sizeof *s->pages);
}
void shadow_end(struct sim_memory *m, struct shadow *s) {
    for (size_t i = 0; i < s->n; i++)
        if (s->pages[i] && s->pages[i]->shift == 2)
            s->pages[i]->next = m->spare, m->spare = s->pages[i];
        else
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
    c->read = 0, c->many = false, c->strong = false;
}
static struct page *page_at(struct checks *k, struct shadow *s, size_t at, int shift) {
    struct page **p = &s->pages[at / PAGE];
    if (*p && (*p)->shift <= shift)
        return *p;
    if (!*p && shift == 2 && k->memory->spare) {
        *p = k->memory->spare;
        k->memory->spare = (*p)->next;
        memset((*p)->cells, 0, (PAGE >> 2) * sizeof(struct cell));
    } else if (!*p) {
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

void shadow_clear(struct checks *k, struct shadow *s) {
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
    bool was_read = c->read || c->many;
    if (!writes) {
        if (was_read && strong && !c->strong)
            return; /* plain readers say more */
        if (was_read && !strong && c->strong)
            readers_drop(r->checks, c);
        c->strong = strong;
        reads_cell(r, w, lane, op, c, me);
        return;
    }
    if (was_read && !(strong && c->strong))
        after_readers(r, w, lane, op, c, what);
    c->write = me | (strong ? ATOMIC : 0) | (access == COPIES_TO ? PENDING : 0);
    c->write_op = (uint32_t)(op - r->f->code) + 1;
    readers_drop(r->checks, c);
}
/* As a rule nobody but this lane was there before. */
static inline bool alone(struct cell *c, stamp me, int lane, uint32_t number, bool writes) {
    if (c->many || (c->write && c->write >> 26 != me >> 26) || (c->read && (c->read >> 31 != me >> 31 || c->read_lanes != 1u << lane)))
        return false;
    c->strong = false;
    if (writes)
        c->write = me, c->write_op = number, c->read = 0;
    else
        c->read = me, c->read_op = number, c->read_lanes = 1u << lane;
    return true;
}
void touch(struct run *r, struct warp *w, int lane, const struct op *op, struct shadow *s, size_t at, int size, enum access access) {
    int shift = (at | (size_t)size) & 3 ? 0 : 2;
    uint32_t number = (uint32_t)(op - r->f->code) + 1;
    stamp me = stamp_of(w, lane);
    bool plain = access <= WRITES && !op->order;
    for (size_t end = at + (size_t)size; at < end;) {
        struct page *p = page_at(r->checks, s, at, shift);
        struct cell *c = &p->cells[at % PAGE >> p->shift];
        if (!plain || !alone(c, me, lane, number, access == WRITES))
            touch_cell(r, w, lane, op, c, access);
        at += (size_t)1 << p->shift;
    }
}

/* Lanes of the warp read what others of them have read since its last point of order, and nobody has written it since: what was held
 * against that holds for them, unless it depends on the lane, as with what the warp itself wrote. */
static inline bool again(const struct run *r, const struct warp *w, struct cell *c, uint32_t lanes) {
    if (c->strong || (c->write && (c->write & PENDING || (BLOCK(c->write) == w->block->linear && WARP(c->write) == w->index && CLOCK(c->write) >= w->together))))
        return false;
    if (c->many) {
        struct readers *s = readers_at(r->checks, c->read);
        struct reader *mine = &s->warp[w->index];
        if (s->block != w->block->linear || !mine->lanes || mine->clock != w->clock)
            return false;
        mine->lanes |= lanes;
        return true;
    }
    if (!c->read || ((c->read ^ stamp_of(w, 0)) & ~(UINT64_C(31) << 26)))
        return false;
    c->read_lanes |= lanes;
    return true;
}
void touch_same(struct run *r, struct warp *w, uint32_t lanes, const struct op *op, struct shadow *s, size_t at, int size) {
    int first = __builtin_ctz(lanes), shift = (at | (size_t)size) & 3 ? 0 : 2;
    uint32_t number = (uint32_t)(op - r->f->code) + 1;
    stamp me = stamp_of(w, first);
    for (size_t end = at + (size_t)size; at < end;) {
        struct page *p = page_at(r->checks, s, at, shift);
        struct cell *c = &p->cells[at % PAGE >> p->shift];
        at += (size_t)1 << p->shift;
        if (again(r, w, c, lanes))
            continue;
        if (!alone(c, me, first, number, false))
            touch_cell(r, w, first, op, c, READS);
        for (uint32_t left = lanes & (lanes - 1); left && !again(r, w, c, left); left &= left - 1)
            touch_cell(r, w, __builtin_ctz(left), op, c, READS);
    }
}

/* All lanes in a row, `size` a multiple of four. */
void touch_row(struct run *r, struct warp *w, const struct op *op, struct shadow *s, size_t at, int size, enum access access) {
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
            if (!alone(c, me, lane, number, access == WRITES))
                touch_cell(r, w, lane, op, c, access);
        }
    }
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
void publish(struct run *r, struct warp *w, const struct op *op, uint64_t address) {
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
void acquire(struct run *r, struct warp *w, const struct op *op, uint64_t address) {
    struct sync *s = sync_at(r, address);
    if (s && op->order & ACQUIRE)
        learn(r, w, s);
    else if (s)
        w->to_acquire = s;
}
