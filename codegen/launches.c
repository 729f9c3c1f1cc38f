/* Launches of the update phase, gathered: what one kernel does to many weights becomes the tuples of one launch, cut among
 * the threads as one range; a repeat whose copies do not depend on each other becomes launches over its copies.
 *
 *     repeat layer                                  kernel 7 over layer's copies: (wq, ..), (wk, ..), (down, ..)
 *         kernel 7 (wq, wq.m, wq.v, d_wq)     ->    (and the embedding's (embed, ..), and the head's, not in a repeat)
 *         kernel 7 (wk, ..)
 *         kernel 7 (down, ..)
 *     end
 *
 * So AdamW passes once over all weights, gradients and moments in one launch a kind of kernel, and the squares of all
 * gradients are summed in one. Two instructions may change places if no byte that one writes is touched by the other. Copies
 * of a repeat touch different bytes where a buffer has a slot a copy. */
#include "codegen/generator.h"
#include "ir/fault.h"

#include <string.h>

enum { MOST_TOUCHED = 4096 };

/* ---- what an instruction touches ---- */

/* The byte after the last one that a buffer covers, in any copy and on any rank, where its place by microbatch is 0. */
static int64_t own_end_of(const dtm_generator *g, const dtm_plan_buffer *buffer) {
    if (buffer->modulus > 1) return buffer->offset + buffer->stride * buffer->modulus;
    int64_t bytes = buffer->dtype == DTM_PLAN_F32 || buffer->dtype == DTM_PLAN_I32 ? 4
                    : buffer->dtype == DTM_PLAN_U8 || buffer->dtype == DTM_PLAN_BOOL ? 1 : 2;
    for (int d = 0; d < buffer->rank; d++) {
        const dtm_plan_extent *e = &g->extents[buffer->dims[d]];
        int64_t n = e->whole;
        for (int s = 0; s < e->count; s++) {
            int64_t unit = e->splits[s].unit, parts = g->module->settings.mesh.axes[e->splits[s].axis].size;
            n = ((n + unit - 1) / unit + parts - 1) / parts * unit;
        }
        bytes *= n;
    }
    return buffer->offset + bytes;
}

static uint32_t place_of(const dtm_generator *g, const dtm_plan_buffer *buffer, size_t microbatch) {
    return g->places.items[(buffer->places - 1) * g->places.n_microbatches + microbatch];
}

/* The same in any microbatch. */
static int64_t end_of(const dtm_generator *g, const dtm_plan_buffer *buffer) {
    int64_t furthest = 0;
    for (size_t m = 0; buffer->places && m < g->places.n_microbatches; m++) {
        uint32_t place = place_of(g, buffer, m);
        if (place != DTM_NO_PLACE && place > furthest) furthest = place;
    }
    return own_end_of(g, buffer) + furthest * buffer->batch_stride;
}

/* In two microbatches what is kept from call to call has the same bytes at no one time. */
static bool overlap(const dtm_generator *g, uint32_t a, uint32_t b) {
    const dtm_plan_buffer *x = &g->buffers[a], *y = &g->buffers[b];
    if (g->ends && (x->offset >= g->ends[b] || y->offset >= g->ends[a])) return false;
    if (!x->places || !y->places) return x->offset < end_of(g, y) && y->offset < end_of(g, x);
    int64_t x_end = own_end_of(g, x), y_end = own_end_of(g, y);
    bool alike = x->places == y->places && x->batch_stride == y->batch_stride;
    for (size_t m = 0; m < (alike ? 1 : g->places.n_microbatches); m++) {
        uint32_t x_place = alike ? 0 : place_of(g, x, m), y_place = alike ? 0 : place_of(g, y, m);
        int64_t x_moved = x_place * x->batch_stride, y_moved = y_place * y->batch_stride;
        if (x_place != DTM_NO_PLACE && y_place != DTM_NO_PLACE && x->offset + x_moved < y_end + y_moved && y->offset + y_moved < x_end + x_moved) return true;
    }
    return false;
}

/* Whether the two are the same bytes in the same copy, and others in any other copy. */
static bool same_slots(const dtm_generator *g, uint32_t a, uint32_t b, int64_t copies) {
    const dtm_plan_buffer *x = &g->buffers[a], *y = &g->buffers[b];
    return x->offset == y->offset && x->stride == y->stride && x->modulus == y->modulus && x->shift == y->shift &&
           x->loop == y->loop && x->modulus >= copies && x->places == y->places && x->batch_stride == y->batch_stride;
}

typedef struct touch {
    uint32_t buffer;
    bool written;
} touch;

/* How many buffers an instruction touches, and the one of that number. */
static size_t n_touched(const dtm_plan_instruction *i) {
    switch (i->kind) {
    case DTM_PLAN_REPEAT: case DTM_PLAN_END: case DTM_PLAN_TIMELINE: return 0;
    case DTM_PLAN_KERNEL: return i->kernel.buffers.count;
    case DTM_PLAN_MATMUL: return 3;
    case DTM_PLAN_COLLECTIVE: return 2 * (size_t)i->collective.count;
    case DTM_PLAN_COPY: case DTM_PLAN_TERM: return 2;
    case DTM_PLAN_SEND: case DTM_PLAN_RECEIVE: return i->message.buffers.count;
    default: return 1;
    }
}

static touch touched(const dtm_generator *g, const dtm_plan_instruction *i, size_t k) {
    switch (i->kind) {
    case DTM_PLAN_KERNEL: {
        uint32_t each = i->kernel.buffers.count / i->kernel.tuples;
        return (touch){i->kernel.buffers.items[k], !(each <= 64 && g->kernels[i->kernel.kernel].read_only >> k % each & 1)};
    }
    case DTM_PLAN_MATMUL: return (touch){k == 0 ? i->matmul.a : k == 1 ? i->matmul.b : i->matmul.c, k == 2};
    case DTM_PLAN_COLLECTIVE: {
        const dtm_plan_tensor *tensor = &i->collective.tensors[k / 2];
        return (touch){k % 2 ? tensor->output : tensor->input, k % 2};
    }
    case DTM_PLAN_COPY: case DTM_PLAN_TERM: return (touch){k ? i->copy.output : i->copy.input, k};
    case DTM_PLAN_SEND: case DTM_PLAN_RECEIVE: return (touch){i->message.buffers.items[k], i->kind == DTM_PLAN_RECEIVE};
    case DTM_PLAN_SCALAR: return (touch){i->scalar.buffer, true};
    default: return (touch){i->io.buffer, i->kind == DTM_PLAN_INPUT};
    }
}

/* Whether it keeps something in the workspace that all instructions share. */
static bool uses_workspace(const dtm_generator *g, const dtm_plan_instruction *i) {
    for (size_t k = 0; k < n_touched(i); k++) {
        int64_t at = g->buffers[touched(g, i, k).buffer].offset - g->workspace;
        if (at >= 0 && at < g->workspace_bytes) return true;
    }
    return i->kind == DTM_PLAN_COLLECTIVE;
}

/* Whether they touch the same bytes, and one writes them: in any copies (copies 0), or in different ones of so many. */
static bool touches_same(const dtm_generator *g, const dtm_plan_instruction *a, const dtm_plan_instruction *b, int64_t copies) {
    for (size_t i = 0; i < n_touched(a); i++)
        for (size_t j = 0; j < n_touched(b); j++) {
            touch x = touched(g, a, i), y = touched(g, b, j);
            if (!(x.written || y.written) || !overlap(g, x.buffer, y.buffer)) continue;
            if (!copies || !same_slots(g, x.buffer, y.buffer, copies)) return true;
        }
    return false;
}

/* Whether the order of the two matters. */
static bool conflict(const dtm_generator *g, const dtm_plan_instruction *a, const dtm_plan_instruction *b, int64_t copies) {
    return (uses_workspace(g, a) && uses_workspace(g, b)) || touches_same(g, a, b, copies);
}

/* ---- joining ---- */

static uint32_t *both(dtm_generator *g, const dtm_plan_list *a, const dtm_plan_list *b) {
    uint32_t *all = dtm_arena_alloc(g->arena, (a->count + b->count + 1) * sizeof *all);
    if (a->count) memcpy(all, a->items, a->count * sizeof *all);
    if (b->count) memcpy(all + a->count, b->items, b->count * sizeof *all);
    return all;
}

static void add_tuples(dtm_generator *g, dtm_plan_launch *to, const dtm_plan_launch *from) {
    to->buffers = (dtm_plan_list){to->buffers.count + from->buffers.count, both(g, &to->buffers, &from->buffers)};
    to->sizes = (dtm_plan_list){to->sizes.count + from->sizes.count, both(g, &to->sizes, &from->sizes)};
    to->loops = (dtm_plan_list){to->loops.count + from->loops.count, both(g, &to->loops, &from->loops)};
    to->tuples += from->tuples;
}

static bool may_join(const dtm_generator *g, const dtm_plan_instruction *a, const dtm_plan_instruction *b) {
    return a->kind == DTM_PLAN_KERNEL && a->kernel.kernel == b->kernel.kernel && !a->kernel.error && !b->kernel.error &&
           a->kernel.buffers.count * b->kernel.tuples == b->kernel.buffers.count * a->kernel.tuples &&
           a->kernel.sizes.count * b->kernel.tuples == b->kernel.sizes.count * a->kernel.tuples &&
           a->kernel.buffers.count + b->kernel.buffers.count <= MOST_TOUCHED && !conflict(g, a, b, 0);
}

/* Puts a launch of the update phase at the end, or into an earlier one of its kernel in the same repeat, if it may run there. */
static void place(dtm_generator *g, dtm_plan_instruction made) {
    int depth = 0;
    for (size_t i = g->n_instructions; i-- > 0 && g->instructions[i].phase == DTM_PLAN_UPDATE;) {
        dtm_plan_instruction *at = &g->instructions[i];
        if (at->kind == DTM_PLAN_END) depth++;
        if (at->kind == DTM_PLAN_REPEAT && depth-- == 0) break;
        if (depth == 0 && may_join(g, at, &made)) {
            add_tuples(g, &at->kernel, &made.kernel);
            at->seconds += made.seconds;
            return;
        }
        if (conflict(g, at, &made, 0)) break;
    }
    DTM_PUSH(g->arena, g->instructions, g->n_instructions, g->cap_instructions, made);
}

void dtm_emit_launch(dtm_generator *g, dtm_op op, dtm_plan_category category, uint32_t kernel, const uint32_t *buffers,
                     size_t n_buffers, const uint32_t *sizes, size_t n_sizes) {
    static const uint32_t once = 0;
    dtm_plan_launch launch = {.kernel = kernel, .tuples = 1, .buffers = dtm_list_of(g, buffers, n_buffers),
                              .sizes = dtm_list_of(g, sizes, n_sizes), .loops = dtm_list_of(g, &once, 1)};
    dtm_emit(g, op, DTM_PLAN_KERNEL, category)->kernel = launch;
    if (g->phase == DTM_PLAN_UPDATE) place(g, g->instructions[--g->n_instructions]);
}

/* ---- repeats ---- */

/* What becomes of an instruction of a repeat: it stays in a repeat before the launches, becomes one, or comes after. */
typedef enum part { BEFORE, LAUNCH, AFTER } part;

static int64_t copies_of(const dtm_generator *g, uint32_t loop) {
    int64_t copies = 1;
    for (; loop; loop = g->loops[loop].parent) copies *= g->loops[loop].copies;
    return copies;
}

static bool is_free_of_copies(const dtm_generator *g, const dtm_plan_instruction *i, int64_t copies) {
    if (i->kind != DTM_PLAN_KERNEL || i->kernel.error || conflict(g, i, i, copies)) return false;
    for (uint32_t k = 0; k < i->kernel.sizes.count; k++) {
        const dtm_plan_size *size = &g->sizes[i->kernel.sizes.items[k]];
        for (uint32_t a = 0; a < size->count; a++)
            if (size->atoms[a] == DTM_PLAN_COPY_NUMBER) return false;
    }
    return true;
}

/* Each part runs through all copies before the next begins. */
static bool parts_fit(const dtm_generator *g, const dtm_plan_instruction *body, const part *parts, size_t n, int64_t copies) {
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            bool apart = parts[i] < parts[j] || (i < j && parts[i] == LAUNCH && parts[j] == LAUNCH);
            if (apart && conflict(g, &body[i], &body[j], copies)) return false;
        }
    return true;
}

static bool find_parts(const dtm_generator *g, const dtm_plan_instruction *body, part *parts, size_t n, int64_t copies) {
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        if (body[i].kind == DTM_PLAN_REPEAT) return false;
        parts[i] = is_free_of_copies(g, &body[i], copies) ? LAUNCH : BEFORE;
        for (size_t j = 0; j < i; j++)
            if (parts[j] != BEFORE && conflict(g, &body[j], &body[i], 0)) parts[i] = AFTER;
        any |= parts[i] == LAUNCH;
    }
    return any && parts_fit(g, body, parts, n, copies);
}

static void put_repeat(dtm_generator *g, const dtm_plan_instruction *repeat, const dtm_plan_instruction *body, const part *parts,
                       size_t n, part wanted) {
    size_t at = g->n_instructions;
    for (size_t i = 0; i < n; i++) {
        if (parts[i] != wanted) continue;
        if (g->n_instructions == at) DTM_PUSH(g->arena, g->instructions, g->n_instructions, g->cap_instructions, *repeat);
        DTM_PUSH(g->arena, g->instructions, g->n_instructions, g->cap_instructions, body[i]);
    }
    if (g->n_instructions > at) dtm_end_repeat(g, at);
}

bool dtm_gather_launches(dtm_generator *g, size_t at) {
    dtm_plan_instruction repeat = g->instructions[at];
    size_t n = g->n_instructions - at - 1;
    int64_t copies = copies_of(g, repeat.repeat.loop);
    if (g->loops[repeat.repeat.loop].parent || g->loops[repeat.repeat.loop].microbatch || !n) return false;
    dtm_plan_instruction *body = dtm_arena_alloc(g->arena, n * sizeof *body);
    part *parts = dtm_arena_alloc(g->arena, n * sizeof *parts);
    memcpy(body, g->instructions + at + 1, n * sizeof *body);
    if (!find_parts(g, body, parts, n, copies)) return false;
    g->n_instructions = at;
    put_repeat(g, &repeat, body, parts, n, BEFORE);
    for (size_t i = 0; i < n; i++) {
        if (parts[i] != LAUNCH) continue;
        uint32_t *loops = dtm_arena_alloc(g->arena, body[i].kernel.tuples * sizeof *loops);
        for (uint32_t t = 0; t < body[i].kernel.tuples; t++) loops[t] = repeat.repeat.loop;
        body[i].kernel.loops = (dtm_plan_list){body[i].kernel.tuples, loops};
        body[i].seconds *= (double)copies;
        place(g, body[i]);
    }
    put_repeat(g, &repeat, body, parts, n, AFTER);
    return true;
}

/* ---- waits ---- */

/* By instruction: the outermost loop around it, as the range of instructions it has (an empty one: none), and the innermost
 * repeat (its own index: none). */
typedef struct loops_around {
    size_t begin, end, repeat;
} loops_around;

static loops_around *find_loops(const dtm_generator *g) {
    loops_around *around = dtm_arena_alloc(g->arena, (g->n_instructions + 1) * sizeof *around);
    size_t open[64], depth = 0, end = 0, begin = 0;
    for (size_t i = 0; i < g->n_instructions; i++) {
        const dtm_plan_instruction *at = &g->instructions[i];
        bool loop = at->kind == DTM_PLAN_REPEAT || at->kind == DTM_PLAN_TIMELINE;
        while (depth && g->instructions[open[depth - 1]].repeat.end <= i) depth--;
        bool inside = i < end;
        around[i] = (loops_around){inside ? begin : i, inside ? end : i, depth ? open[depth - 1] : i};
        if (loop && !inside) begin = i, end = at->kind == DTM_PLAN_REPEAT ? at->repeat.end : at->timeline.end;
        if (at->kind == DTM_PLAN_REPEAT && depth < 64) open[depth++] = i;
    }
    return around;
}

static void add_wait(dtm_generator *g, dtm_plan_instruction *at, uint32_t event) {
    uint32_t *items = dtm_arena_alloc(g->arena, (at->waits.count + 1) * sizeof *items);
    if (at->waits.count) memcpy(items, at->waits.items, at->waits.count * sizeof *items);
    items[at->waits.count] = event;
    at->waits = (dtm_plan_list){at->waits.count + 1, items};
}

/* Those that touch what is under way wait for it, up to the first that runs when the loops around it have ended: what comes
 * later comes after that one. */
static void find_waits_for(dtm_generator *g, const loops_around *around, size_t place) {
    const dtm_plan_instruction *apart = &g->instructions[place];
    loops_around here = around[place];
    for (size_t i = here.begin; i < g->n_instructions && !dtm_fault(80); i++) {
        if (i == place) continue;
        /* what stands before it in its repeat runs after it in the next copies alone, whose bytes may be others */
        bool of_other_copies = i < place && here.repeat != place && around[i].repeat == here.repeat;
        int64_t copies = of_other_copies ? copies_of(g, g->instructions[here.repeat].repeat.loop) : 0;
        if (g->instructions[i].after == apart->records || !touches_same(g, apart, &g->instructions[i], copies)) continue;
        add_wait(g, &g->instructions[i], apart->records);
        if (i > place && i >= here.end) return;
    }
}

void dtm_find_waits(dtm_generator *g) {
    loops_around *around = g->n_events ? find_loops(g) : NULL;
    int64_t *ends = dtm_arena_alloc(g->arena, g->n_buffers * sizeof *ends);
    for (size_t i = 0; around && i < g->n_buffers; i++) ends[i] = end_of(g, &g->buffers[i]);
    g->ends = ends;
    for (size_t i = 0; around && i < g->n_instructions; i++)
        if (g->instructions[i].records) find_waits_for(g, around, i);
    g->ends = NULL;
}

/* ---- steps ---- */

static bool is_ring(const dtm_plan_instruction *i, dtm_collective_kind kind) {
    return i->kind == DTM_PLAN_COLLECTIVE && i->collective.kind == kind && i->collective.count == 1 && i->steps;
}

/* What a product touches is none of what the collective has for itself. */
static bool is_apart_from_workspace(const dtm_generator *g, const dtm_plan_instruction *i) {
    for (size_t k = 0; k < n_touched(i); k++)
        if (end_of(g, &g->buffers[touched(g, i, k).buffer]) > g->apart) return false;
    return true;
}

static uint32_t products_after(const dtm_generator *g, size_t gather) {
    const dtm_plan_instruction *at = &g->instructions[gather];
    uint32_t count = 0;
    for (size_t i = gather + 1; i < g->n_instructions; i++) {
        const dtm_plan_instruction *product = &g->instructions[i];
        bool reads = product->kind == DTM_PLAN_MATMUL && product->matmul.a == at->collective.tensors[0].output &&
                     product->matmul.b != product->matmul.a && is_apart_from_workspace(g, product);
        for (size_t j = gather + 1; reads && j < i; j++) reads = !touches_same(g, &g->instructions[j], product, 0);
        if (!reads) break;
        count++;
    }
    return count;
}

/* Of values of one type, whose dimensions are the same. */
static bool is_one_place(const dtm_plan_buffer *a, const dtm_plan_buffer *b) {
    return a->offset == b->offset && a->stride == b->stride && a->modulus == b->modulus && a->shift == b->shift && a->loop == b->loop &&
           a->places == b->places && a->batch_stride == b->batch_stride && a->rank == b->rank &&
           memcmp(a->dims, b->dims, a->rank * sizeof *a->dims) == 0;
}

/* Products one after another of which each adds to what those before it have made, up to the reduce_scatter of that: how many. */
static uint32_t products_before(const dtm_generator *g, size_t first) {
    const dtm_plan_buffer *made = &g->buffers[g->instructions[first].matmul.c];
    size_t i = first;
    for (; i < g->n_instructions && g->instructions[i].kind == DTM_PLAN_MATMUL; i++) {
        const dtm_plan_matmul *m = &g->instructions[i].matmul;
        if (!is_one_place(made, &g->buffers[m->c]) || (i > first && m->accumulate != DTM_PLAN_ADD)) return 0;
        if (m->a == m->c || m->b == m->c || !is_apart_from_workspace(g, &g->instructions[i])) return 0;
    }
    bool scattered = i > first && i < g->n_instructions && is_ring(&g->instructions[i], DTM_COLLECTIVE_REDUCE_SCATTER) &&
                     g->instructions[i].collective.tensors[0].input == g->instructions[i - 1].matmul.c;
    return scattered ? (uint32_t)(i - first) : 0;
}

void dtm_find_steps(dtm_generator *g) {
    for (size_t i = 0; i + 1 < g->n_instructions; i++) {
        dtm_plan_instruction *at = &g->instructions[i];
        uint32_t products = at->kind == DTM_PLAN_MATMUL ? products_before(g, i) : 0;
        if (is_ring(at, DTM_COLLECTIVE_ALL_GATHER)) {
            at->steps = products_after(g, i);
            i += at->steps;
        } else if (products) {
            at->steps = products;
            i += products;
            g->instructions[i].steps = 0;
        } else if (is_ring(at, DTM_COLLECTIVE_REDUCE_SCATTER)) {
            at->steps = 0; /* what makes it has rows of another kind */
        }
    }
}
