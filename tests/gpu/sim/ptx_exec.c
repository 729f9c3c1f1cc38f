/* Moves the blocks and warps of a launch: which are resident, whose turn it is, how diverged lanes meet, and barriers. */
#include "lanes.h"
#include "numbers.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

uint64_t draw(struct run *r, uint64_t below) { /* splitmix64 */
    uint64_t x = r->random += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (x ^ x >> 31) % below;
}

float approximate(struct run *r, int base, uint32_t bits, double exact, double relative, double absolute) {
    if (!r->launch->perturb || exact == 0 || !isfinite(exact))
        return (float)exact;
    uint64_t x = (r->launch->seed + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ ((uint64_t)bits << 8 | (uint64_t)base);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    double u = (double)(int64_t)(x ^ x >> 31) * 0x1p-63; /* from -1 to 1 */
    if (relative)
        relative -= 0x1p-24; /* what rounding may add */
    return (float)(exact + u * (relative * fabs(exact) + absolute * 0.9));
}

/* ---- reports ---- */

static const char *const check_names[SIM_CHECKS] = {"bounds", "alignment", "defined", "race", "grid race", "barrier", "mask", "deadlock",
                                                    "async", "trap", "limit"};
const char *sim_check_name(enum sim_check c) { return check_names[c]; }

void describe(struct run *r, struct sim_access *a, uint64_t block, int thread, const struct op *op) {
    const uint32_t *g = r->launch->grid, *b = r->launch->block;
    *a = (struct sim_access){.block = {(uint32_t)(block % g[0]), (uint32_t)(block / g[0] % g[1]), (uint32_t)(block / g[0] / g[1])}};
    uint32_t t = (uint32_t)thread;
    a->thread[0] = t % b[0], a->thread[1] = t / b[0] % b[1], a->thread[2] = t / b[0] / b[1];
    a->line = op ? op->line : 0;
    int n = 0, at = op ? op->loc : -1;
    for (int depth = 0; at >= 0 && depth < 8 && n < (int)sizeof a->source; depth++) {
        const struct loc *l = &r->f->locs[at];
        const char *file = l->file < r->f->module->n_files ? r->f->module->files[l->file] : NULL;
        n += snprintf(a->source + n, sizeof a->source - (size_t)n, "%s%s:%d", n ? " < " : "", file ? file : "?", l->line);
        at = l->parent;
    }
}

struct sim_report *report(struct run *r, enum sim_check check, struct warp *w, int lane, const struct op *op, const char *format, ...) {
    struct sim_reports *all = r->reports;
    const char *name = r->launch->name ? r->launch->name : r->f->name;
    all->total++;
    for (int i = 0; i < all->n; i++)
        if (all->report[i].check == check && all->report[i].access.line == (op ? op->line : 0) && !strncmp(all->report[i].launch, name, 63)) {
            all->report[i].times++;
            return NULL;
        }
    if (all->n == SIM_MAX_REPORTS)
        return NULL;
    struct sim_report *s = &all->report[all->n++];
    *s = (struct sim_report){.check = check, .times = 1};
    snprintf(s->launch, sizeof s->launch, "%s", name);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->text, sizeof s->text, format, arguments);
    va_end(arguments);
    if (w)
        describe(r, &s->access, w->block->linear, w->index * LANES + (lane < 0 ? 0 : lane), op);
    return s;
}

static void print_access(const struct sim_access *a, FILE *to) {
    fprintf(to, "block (%u, %u, %u) thread (%u, %u, %u), PTX line %d%s%s", a->block[0], a->block[1], a->block[2], a->thread[0], a->thread[1],
            a->thread[2], a->line, *a->source ? ", " : "", a->source);
}
void sim_report_print(const struct sim_report *s, FILE *to) {
    fprintf(to, "%s: %s: %s\n  ", s->launch, sim_check_name(s->check), s->text);
    print_access(&s->access, to);
    if (s->other.line) {
        fprintf(to, "\n  against ");
        print_access(&s->other, to);
    }
    fprintf(to, "\n");
    if (s->times > 1)
        fprintf(to, "  (%llu times)\n", (unsigned long long)s->times);
}

/* ---- diverged lanes ---- */

void set_down(struct warp *w) {
    for (int l = 0; l < LANES; l++)
        if (w->mask >> l & 1)
            w->lane_pc[l] = w->pc;
    w->mask = 0;
}
/* The lowest place of lanes that could run, beside the running group. */
static void look_ahead(struct warp *w) {
    uint32_t others = w->live & ~w->mask & ~w->waiting;
    w->next = NOWHERE;
    for (int l = 0; l < LANES; l++)
        if (others >> l & 1 && w->lane_pc[l] < w->next)
            w->next = w->lane_pc[l];
}
static void take_up(struct run *r, struct warp *w, uint32_t from, uint32_t pc) {
    w->pc = pc, w->mask = 0;
    for (int l = 0; l < LANES; l++)
        if (from >> l & 1 && w->lane_pc[l] == pc)
            w->mask |= 1u << l;
    look_ahead(w);
    w->fuel = r->launch->random_groups && w->next != NOWHERE ? 1 + (int)draw(r, 40) : 0;
}
bool pick_up(struct run *r, struct warp *w) {
    uint32_t from = w->live & ~w->waiting, pc = NOWHERE;
    if (!w->live) {
        w->state = DONE;
        return false;
    }
    w->forced = !from;
    if (w->forced)
        from = w->waiting;
    for (int l = 0; l < LANES; l++)
        if (from >> l & 1 && w->lane_pc[l] < pc)
            pc = w->lane_pc[l];
    if (r->launch->random_groups && !w->forced) {
        int nth = (int)draw(r, (uint64_t)__builtin_popcount(from)), l = 0;
        for (;; l++)
            if (from >> l & 1 && nth-- == 0)
                break;
        pc = w->lane_pc[l];
    }
    take_up(r, w, from, pc);
    if (w->forced)
        w->waiting &= ~w->mask;
    return true;
}
static void release_barriers(struct run *, struct block *);
void leave(struct run *r, struct warp *w, uint32_t mask) {
    w->live &= ~mask;
    w->mask &= ~mask;
    r->idle = 0;
    if (!w->live) {
        w->state = DONE;
        w->block->n_done++;
        w->n_copies = 0;
        release_barriers(r, w->block);
    }
}

bool come_together(struct run *r, struct warp *w, const struct op *op, uint32_t *m, int32_t row) {
    bool barrier = op->base == BAR || op->base == BAR_ARRIVE || op->base == BAR_RED;
    if (w->forced) {
        w->forced = false;
        uint32_t named = row < 0 ? w->live : w->file[row + __builtin_ctz(*m)];
        report(r, barrier ? SIM_BARRIER : SIM_MASK, w, __builtin_ctz(*m), op,
               barrier ? "lanes 0x%08x of the warp stand at the barrier, its others (of 0x%08x) do not come"
                       : "lanes 0x%08x are here, the mask names 0x%08x: the others do not come",
               *m, named);
        if (barrier)
            r->stopped = true;
        return true;
    }
    uint32_t arrived = *m;
    for (int l = 0; l < LANES; l++)
        if (w->waiting >> l & 1 && w->lane_pc[l] == w->pc)
            arrived |= 1u << l;
        else if ((w->mask & ~*m) >> l & 1)
            w->lane_pc[l] = w->pc + 1;
    for (int l = 0; l < LANES; l++)
        if (arrived >> l & 1)
            w->lane_pc[l] = w->pc;
    for (uint32_t left = arrived; left;) {
        int first = __builtin_ctz(left);
        uint32_t named = row < 0 ? w->live : w->file[row + first], same = 0;
        for (int l = first; l < LANES; l++)
            if (left >> l & 1 && (row < 0 || w->file[row + l] == named))
                same |= 1u << l;
        left &= ~same;
        if (same & ~named)
            report(r, SIM_MASK, w, first, op, "lanes 0x%08x execute it, and the mask 0x%08x has not all of them", same, named);
        if (named & ~w->live & w->begun)
            report(r, SIM_MASK, w, first, op, "the mask 0x%08x names lanes that have ended (0x%08x live)", named, w->live);
        if (same == ((named & w->live) | same)) {
            w->waiting &= ~arrived; /* the rest comes here again, each with its mask */
            *m = w->mask = same;
            look_ahead(w);
            return true;
        }
    }
    w->waiting |= arrived;
    w->mask = 0;
    return false;
}

/* ---- barriers ---- */

/* What bar.red gives. */
static void reduced(struct warp *w, const struct barrier *bar) {
    const struct op *op = w->at;
    if (op->base != BAR_RED)
        return;
    if (op->how == R_POPC) {
        for (int l = 0; l < LANES; l++)
            if (w->live >> l & 1)
                w->file[op->d + l] = (uint32_t)bar->yes;
    } else {
        bool yes = op->how == R_AND ? bar->yes == bar->members : bar->yes > 0;
        w->file[op->d] = (w->file[op->d] & ~w->live) | (yes ? w->live : 0);
    }
}
static void release(struct run *r, struct block *b, struct barrier *bar) {
    for (int i = 0; i < b->n_warps; i++)
        if (bar->warps >> i & 1 && b->warp[i].state == AT_BARRIER) {
            b->warp[i].state = RUNNING;
            check_barrier_leave(r, &b->warp[i], bar);
            reduced(&b->warp[i], bar);
        }
    free(bar->grid);
    *bar = (struct barrier){0};
    r->counts.barriers++;
    r->idle = 0;
}
/* A barrier of all threads opens when those that are left stand there, and it is said that others had ended. */
static void release_barriers(struct run *r, struct block *b) {
    for (int i = 0; i < MAX_BARRIERS; i++) {
        struct barrier *bar = &b->barrier[i];
        if (!bar->warps || bar->expected)
            continue;
        bool all = true, ended = false;
        struct warp *one = NULL;
        for (int k = 0; k < b->n_warps; k++) {
            struct warp *w = &b->warp[k];
            bool here = bar->warps >> k & 1;
            all &= here || w->state == DONE;
            ended |= w->state == DONE || (here && w->live != w->begun);
            if (here)
                one = w;
        }
        if (!all)
            continue;
        if (ended)
            report(r, SIM_BARRIER, one, one->live ? __builtin_ctz(one->live) : 0, one->at, "threads of the block have ended before the barrier");
        release(r, b, bar);
    }
}
bool arrive(struct run *r, struct warp *w, const struct op *op, uint32_t m) {
    int first = __builtin_ctz(m);
    uint32_t id = w->file[op->a + first], count = op->b < 0 ? 0 : w->file[op->b + first];
    struct block *b = w->block;
    if (id >= MAX_BARRIERS || count % LANES || count > (uint32_t)(b->n_warps * LANES)) {
        report(r, SIM_BARRIER, w, first, op, "barrier %u of %u threads", id, count);
        r->stopped = true;
        return false;
    }
    struct barrier *bar = &b->barrier[id];
    if ((bar->warps || bar->arrived) && bar->expected != (int)count)
        report(r, SIM_BARRIER, w, first, op, "barrier %u of %u threads, but %d were said before", id, count, bar->expected);
    bar->expected = (int)count;
    bar->arrived += LANES;
    check_barrier_arrive(r, w, bar);
    w->at = op;
    if (op->base == BAR_RED) {
        uint32_t p = op->inverted & 2 ? ~w->file[op->c] : w->file[op->c];
        bar->members += __builtin_popcount(m), bar->yes += __builtin_popcount(m & p);
    }
    if (op->base != BAR_ARRIVE) {
        w->state = AT_BARRIER;
        bar->warps |= 1u << w->index;
    }
    if (count ? bar->arrived >= (int)count : false)
        release(r, b, bar);
    release_barriers(r, b);
    return w->state == AT_BARRIER;
}

/* ---- blocks ---- */

static void fill(uint32_t *file, int32_t row, uint32_t value) {
    for (int l = 0; row >= 0 && l < LANES; l++)
        file[row + l] = value;
}
static void prepare_file(struct run *r, struct warp *w) {
    const struct sim_function *f = r->f;
    for (int i = 0; i < f->n_constants; i++)
        for (int l = 0; l < LANES; l++) {
            const struct constant *c = &f->constants[i];
            if (c->wide)
                memcpy(w->file + c->row + 2 * l, &c->value, 8);
            else
                w->file[c->row + l] = (uint32_t)c->value;
        }
    const uint32_t *n = r->launch->block, *grid = r->launch->grid;
    for (int i = 0; i < 3; i++) {
        fill(w->file, f->specials[NTID_X + i], n[i]);
        fill(w->file, f->specials[NCTAID_X + i], grid[i]);
    }
    fill(w->file, f->specials[WARPID], (uint32_t)w->index);
    fill(w->file, f->specials[NWARPID], (uint32_t)w->block->n_warps);
    fill(w->file, f->specials[GRIDID], 1);
    fill(w->file, f->specials[DYNAMIC_SHARED], r->launch->dynamic_shared);
    fill(w->file, f->specials[TOTAL_SHARED], r->shared_bytes);
    for (int l = 0; l < LANES; l++) {
        uint32_t t = (uint32_t)(w->index * LANES + l), bit = 1u << l;
        uint32_t value[N_SPECIALS] = {[TID_X] = t % n[0], [TID_Y] = t / n[0] % n[1], [TID_Z] = t / n[0] / n[1], [LANEID] = (uint32_t)l,
                                      [LANEMASK_EQ] = bit, [LANEMASK_LT] = bit - 1, [LANEMASK_LE] = bit | (bit - 1),
                                      [LANEMASK_GT] = ~(bit | (bit - 1)), [LANEMASK_GE] = ~(bit - 1)};
        static const int by_lane[] = {TID_X, TID_Y, TID_Z, LANEID, LANEMASK_EQ, LANEMASK_LT, LANEMASK_LE, LANEMASK_GT, LANEMASK_GE};
        for (size_t i = 0; i < sizeof by_lane / sizeof *by_lane; i++)
            if (f->specials[by_lane[i]] >= 0)
                w->file[f->specials[by_lane[i]] + l] = value[by_lane[i]];
    }
}
/* The next bytes of the launch's memory, zero. */
static void *bytes(struct run *r, size_t n) {
    char *p = r->scratch;
    r->scratch += (n + 127) / 64 * 64; /* an odd line between, so that nothing overlaps unseen */
    return memset(p, 0, n);
}
static size_t bits_size(size_t bytes) { return bytes / 8 + 8; }
static size_t local_size(const struct run *r, const struct block *b) { return (size_t)r->local_bytes * (size_t)b->n_warps * LANES; }
static size_t scratch_size(const struct run *r) {
    size_t warps = ((size_t)r->threads + LANES - 1) / LANES, local = (size_t)r->local_bytes * warps * LANES;
    size_t block = r->shared_bytes + bits_size(r->shared_bytes) + local + bits_size(local) + warps * ((size_t)r->f->words * 4 + 128) + 4 * 128;
    return block * (size_t)r->n_blocks + r->n_grid * 4 + 128;
}
static void make_block(struct run *r, struct block *b) {
    b->n_warps = (r->threads + LANES - 1) / LANES;
    b->shared = bytes(r, r->shared_bytes);
    b->shared_defined = bytes(r, bits_size(r->shared_bytes));
    b->local = bytes(r, local_size(r, b));
    b->local_defined = bytes(r, bits_size(local_size(r, b)));
    for (int i = 0; i < b->n_warps; i++) {
        b->warp[i].block = b, b->warp[i].index = i;
        b->warp[i].file = bytes(r, (size_t)r->f->words * 4);
        prepare_file(r, &b->warp[i]);
    }
}
static void free_block(struct block *b) {
    for (int i = 0; i < b->n_warps; i++)
        free(b->warp[i].lanes_seen), free(b->warp[i].grid_seen), free(b->warp[i].copies);
    for (int i = 0; i < MAX_BARRIERS; i++)
        free(b->barrier[i].grid);
}
static void begin_warp(struct run *r, struct warp *w) {
    int threads = r->threads - w->index * LANES;
    w->begun = w->live = w->mask = threads >= LANES ? ALL_LANES : (1u << threads) - 1;
    w->pc = 0, w->next = NOWHERE, w->waiting = 0, w->forced = false, w->fuel = 0, w->state = RUNNING;
    w->n_copies = 0;
    free(w->lanes_seen), free(w->grid_seen);
    w->lanes_seen = w->grid_seen = NULL;
    w->clock = w->together = 1, w->fence = 0, w->to_acquire = NULL;
    memset(w->seen, 0, sizeof w->seen);
    memset(w->group, 0, sizeof w->group);
}
static void begin_block(struct run *r, struct block *b, uint32_t linear) {
    const uint32_t *grid = r->launch->grid;
    b->linear = linear;
    b->index[0] = linear % grid[0], b->index[1] = linear / grid[0] % grid[1], b->index[2] = linear / grid[0] / grid[1];
    b->n_done = 0, b->turn = 0, b->active = true;
    memset(b->shared, 0xff, r->shared_bytes); /* NaN in every format */
    memset(b->local, 0xff, local_size(r, b));
    memset(b->shared_defined, 0, bits_size(r->shared_bytes));
    memset(b->local_defined, 0, bits_size(local_size(r, b)));
    for (int i = 0; i < MAX_BARRIERS; i++) {
        free(b->barrier[i].grid);
        b->barrier[i] = (struct barrier){0};
    }
    for (int i = 0; i < b->n_warps; i++) {
        begin_warp(r, &b->warp[i]);
        for (int k = 0; k < 3; k++)
            fill(b->warp[i].file, r->f->specials[CTAID_X + k], b->index[k]);
        fill(b->warp[i].file, r->f->specials[SMID], linear % 132);
    }
    checks_block(r, b);
}

/* The warp whose turn it is; NULL if none can run. */
static struct warp *runnable(struct run *r, struct block *b) {
    enum sim_order order = r->launch->warps;
    int n = b->n_warps, start = order == SIM_RANDOM ? (int)draw(r, (uint64_t)n) : b->turn;
    for (int i = 0; i < n; i++) {
        int at = (start + i) % n;
        struct warp *w = &b->warp[order == SIM_REVERSE ? n - 1 - at : at];
        if (w->state == RUNNING)
            return w;
    }
    return NULL;
}
static bool run_block(struct run *r, struct block *b) {
    struct warp *w = runnable(r, b);
    if (!w)
        return false;
    r->run_warp(r, w, r->launch->warps == SIM_RANDOM ? 1 + (int64_t)draw(r, 200) : 20000);
    /* one that was not stopped, as it waits for others perhaps, gives way */
    int place = r->launch->warps == SIM_REVERSE ? b->n_warps - 1 - w->index : w->index;
    b->turn = w->state == RUNNING ? (place + 1) % b->n_warps : b->turn;
    if (b->n_done == b->n_warps)
        b->active = false;
    return true;
}

static void deadlock(struct run *r, const char *why) {
    for (int i = 0; i < r->n_blocks; i++)
        for (int k = 0; r->blocks[i].active && k < r->blocks[i].n_warps; k++) {
            struct warp *w = &r->blocks[i].warp[k];
            if (w->state != DONE)
                report(r, SIM_DEADLOCK, w, w->live ? __builtin_ctz(w->live) : 0, w->state == AT_BARRIER ? w->at : &r->f->code[w->pc], "%s", why);
        }
    r->stopped = true;
}

static bool within_limits(struct run *r) {
    const struct sim_launch *l = r->launch;
    uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2], grid = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2];
    struct sim_attributes a = sim_function_attributes(r->f);
    uint32_t most = r->f->module->architecture == 80 ? 163 : r->f->module->architecture >= 90 ? 227 : 99;
    if (!threads || threads > 1024 || (a.max_threads && (a.exact_threads ? threads != a.max_threads : threads > a.max_threads)))
        return report(r, SIM_LIMIT, NULL, 0, NULL, "blocks of %llu threads; it was compiled for %u", (unsigned long long)threads, a.max_threads), false;
    if (!grid || grid > 1 << 24)
        return report(r, SIM_LIMIT, NULL, 0, NULL, "a grid of %llu blocks", (unsigned long long)grid), false;
    if (l->params_size < a.params_size)
        return report(r, SIM_LIMIT, NULL, 0, NULL, "%zu bytes of parameters, %u are meant", l->params_size, a.params_size), false;
    if ((uint64_t)a.static_shared + l->dynamic_shared > most * 1024)
        return report(r, SIM_LIMIT, NULL, 0, NULL, "%u + %u bytes of shared memory", a.static_shared, l->dynamic_shared), false;
    r->threads = (int)threads;
    r->n_grid = grid;
    return true;
}

static uint32_t *block_order(struct run *r) {
    uint32_t *order = bytes(r, r->n_grid * 4);
    for (uint32_t i = 0; i < r->n_grid; i++)
        order[i] = r->launch->blocks == SIM_REVERSE ? (uint32_t)r->n_grid - 1 - i : i;
    if (r->launch->blocks == SIM_RANDOM)
        for (uint64_t i = r->n_grid - 1; i > 0; i--) {
            uint64_t k = draw(r, i + 1);
            uint32_t t = order[i];
            order[i] = order[k], order[k] = t;
        }
    return order;
}

static void run_grid(struct run *r) {
    uint32_t *order = block_order(r);
    uint64_t begun = 0, patience = r->launch->patience ? r->launch->patience : 50000000;
    for (int at = 0; !r->stopped;) {
        int active = 0, moved = 0;
        for (int i = 0; i < r->n_blocks; i++) {
            if (!r->blocks[i].active && begun < r->n_grid)
                begin_block(r, &r->blocks[i], order[begun++]);
            active += r->blocks[i].active;
        }
        if (!active)
            break;
        at = r->launch->blocks == SIM_RANDOM ? (int)draw(r, (uint64_t)r->n_blocks) : (at + 1) % r->n_blocks;
        for (int i = 0; i < r->n_blocks && !moved; i++) {
            struct block *b = &r->blocks[(at + i) % r->n_blocks];
            moved = b->active && run_block(r, b);
        }
        if (!moved)
            deadlock(r, "all warps of the resident blocks wait at barriers");
        else if (r->idle > patience)
            deadlock(r, "nothing is stored and no thread ends any more");
        else if (r->launch->limit && r->counts.instructions > r->launch->limit)
            deadlock(r, "the launch runs for more instructions than it may");
    }
}

bool sim_launch_run(struct sim_memory *memory, const struct sim_launch *launch, struct sim_reports *reports) {
    struct run run = {.launch = launch, .f = launch->function, .memory = memory, .reports = reports, .random = launch->seed}, *r = &run;
    if (!within_limits(r) || !checks_begin(r))
        return false;
    r->shared_bytes = r->f->static_shared + launch->dynamic_shared;
    if (launch->dynamic_shared) /* it begins aligned */
        for (int i = 0; i < r->f->module->n_variables; i++) {
            const struct variable *v = &r->f->module->variables[i];
            if (v->space == SHARED && v->external && v->at - MEMORY_START + launch->dynamic_shared > r->shared_bytes)
                r->shared_bytes = (uint32_t)v->at - MEMORY_START + launch->dynamic_shared;
        }
    r->local_bytes = r->f->local;
    r->run_warp = run_warp_plain;
#ifdef SIM_FMA
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        r->run_warp = run_warp_fma;
#endif
    r->n_blocks = launch->resident > 0 ? launch->resident : 2;
    if ((uint64_t)r->n_blocks > r->n_grid)
        r->n_blocks = (int)r->n_grid;
    r->blocks = calloc((size_t)r->n_blocks, sizeof *r->blocks);
    if (!r->blocks)
        abort();
    r->scratch = memory_scratch(memory, scratch_size(r));
    for (int i = 0; i < r->n_blocks; i++)
        make_block(r, &r->blocks[i]);
    run_grid(r);
    checks_end(r);
    for (int i = 0; i < r->n_blocks; i++)
        free_block(&r->blocks[i]);
    free(r->blocks);
    reports->counts = r->counts;
    return !r->stopped;
}
