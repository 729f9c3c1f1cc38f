#include "runtime/plan_hash.h"

#include <string.h>

enum { MOST_ITEMS = 1 << 20 }; /* of a list: more are damage */

/* ---- numbers and texts, one after another (FNV-1a, 64 bits) ---- */

typedef struct hasher {
    const dtm_plan *plan;
    dtm_plan_depth depth;
    uint64_t hash;
} hasher;

static void add_bytes(hasher *h, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) h->hash = (h->hash ^ at[i]) * 0x100000001b3u;
}

static void add(hasher *h, int64_t number) {
    add_bytes(h, &number, sizeof number);
}

static void add_number(hasher *h, double number) {
    add_bytes(h, &number, sizeof number);
}

/* The zero at the end too: "ab", "c" is not "a", "bc". */
static void add_text(hasher *h, const char *text) {
    add(h, text != NULL);
    if (text) add_bytes(h, text, strlen(text) + 1);
}

static void add_place(hasher *h, int64_t place) {
    if (h->depth == DTM_PLAN_PLACES) add(h, place);
}

/* A reference of a plan that has been damaged may lead nowhere: then its number alone is hashed. */
static bool leads(hasher *h, uint32_t index, uint32_t count) {
    if (index >= count) add(h, index);
    return index < count;
}

/* The same for a count of what stands in an array of that length. */
static uint32_t at_most(hasher *h, uint32_t count, uint32_t length) {
    add(h, count);
    return count < length ? count : length;
}

static hasher begin(const dtm_plan *plan, dtm_plan_depth depth) {
    return (hasher){plan, depth, 0xcbf29ce484222325u};
}

/* ---- the tables ---- */

static void add_axis(hasher *h, uint32_t axis) {
    if (!leads(h, axis, h->plan->n_axes)) return;
    const dtm_plan_axis *a = &h->plan->axes[axis];
    add_text(h, a->name);
    add(h, a->size);
    add(h, a->time);
}

static void add_axes(hasher *h, uint16_t axes) {
    for (uint32_t a = 0; a < h->plan->n_axes; a++)
        if (axes >> a & 1) add_axis(h, a);
    add(h, axes >> h->plan->n_axes);
}

static void add_extent(hasher *h, uint32_t extent) {
    if (!leads(h, extent, h->plan->n_extents)) return;
    const dtm_plan_extent *e = &h->plan->extents[extent];
    add_text(h, e->dim);
    add(h, e->whole);
    for (uint32_t s = 0, n = at_most(h, e->count, DTM_PLAN_SPLITS); s < n; s++) {
        add_axis(h, e->splits[s].axis);
        add(h, e->splits[s].unit);
    }
}

static void add_size(hasher *h, uint32_t size) {
    if (!leads(h, size, h->plan->n_sizes)) return;
    const dtm_plan_size *s = &h->plan->sizes[size];
    add(h, s->base);
    add(h, s->factor);
    for (uint32_t i = 0, n = at_most(h, s->count, DTM_PLAN_ATOMS); i < n; i++) {
        uint32_t atom = s->atoms[i];
        bool counts = atom == DTM_PLAN_LATER || atom == DTM_PLAN_COPY_NUMBER;
        add(h, counts ? atom : atom & DTM_PLAN_BEGIN);
        if (!counts) add_extent(h, atom & ~DTM_PLAN_BEGIN);
    }
}

static void add_loop(hasher *h, uint32_t loop) {
    for (uint32_t deep = 0; loop && deep < h->plan->n_loops; loop = h->plan->loops[loop].parent, deep++) {
        if (!leads(h, loop, h->plan->n_loops)) return;
        const dtm_plan_loop *l = &h->plan->loops[loop];
        add_text(h, l->name);
        add(h, l->copies);
        add(h, l->microbatch);
        add(h, l->first);
    }
    add(h, 0);
}

static void add_buffer(hasher *h, uint32_t buffer) {
    if (!leads(h, buffer, h->plan->n_buffers)) return;
    const dtm_plan_buffer *b = &h->plan->buffers[buffer];
    add_text(h, b->name);
    add(h, b->dtype);
    for (uint32_t d = 0, n = at_most(h, b->rank, DTM_PLAN_RANK); d < n; d++) add_extent(h, b->dims[d]);
    add_loop(h, b->loop);
    add_place(h, b->modulus);
    add_place(h, b->shift);
    add_place(h, b->offset);
    add_place(h, b->stride);
    add_place(h, b->batch_stride);
    add_place(h, b->places);
    if (h->depth != DTM_PLAN_PLACES || !b->places || !leads(h, b->places - 1, h->plan->n_places)) return;
    for (int64_t m = 0; m < h->plan->microbatches; m++) add(h, h->plan->places[(b->places - 1) * h->plan->microbatches + m]);
}

static void add_dims(hasher *h, const dtm_plan_dim *dims, uint32_t rank) {
    for (uint32_t d = 0, n = at_most(h, rank, DTM_PLAN_RANK); d < n; d++) {
        add_text(h, dims[d].name);
        add(h, dims[d].size);
    }
}

/* ---- instructions ---- */

static void add_kernel(hasher *h, uint32_t kernel) {
    if (!h->plan->cuda) {
        if (leads(h, kernel, h->plan->n_kernels)) add(h, (int64_t)h->plan->kernels[DTM_PLAN_V1][kernel].hash);
        return;
    }
    if (!leads(h, kernel, h->plan->n_cuda)) return;
    const dtm_plan_cuda_kernel *k = &h->plan->cuda[kernel];
    const int64_t numbers[] = {k->n_launches, k->n_buffers, k->n_sizes, k->tuples, (int64_t)k->read_only, (int64_t)k->hash};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) add(h, numbers[i]);
    for (uint32_t i = 0, n = at_most(h, k->n_launches, DTM_PLAN_CUDA_LAUNCHES); i < n; i++) {
        add_text(h, k->launches[i].entry);
        add(h, k->launches[i].threads);
    }
}

static void add_launch(hasher *h, const dtm_plan_launch *k) {
    add_kernel(h, k->kernel);
    add(h, k->tuples);
    for (uint32_t i = 0, n = at_most(h, k->buffers.count, MOST_ITEMS); i < n; i++) add_buffer(h, k->buffers.items[i]);
    for (uint32_t i = 0, n = at_most(h, k->sizes.count, MOST_ITEMS); i < n; i++) add_size(h, k->sizes.items[i]);
    for (uint32_t i = 0, n = at_most(h, k->loops.count, MOST_ITEMS); i < n; i++) add_loop(h, k->loops.items[i]);
    add_text(h, k->error);
    if (k->error) add_buffer(h, k->error_buffer);
}

static void add_matmul(hasher *h, const dtm_plan_matmul *m) {
    const uint32_t buffers[] = {m->a, m->b, m->c};
    const uint32_t sizes[] = {m->batch, m->m,       m->n,     m->k,     m->a_batch, m->a_row,
                              m->a_col, m->b_batch, m->b_row, m->b_col, m->c_batch, m->c_row};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) add_buffer(h, buffers[i]);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) add_size(h, sizes[i]);
    add(h, m->accumulate);
    for (uint32_t i = 0, n = at_most(h, m->n_outer, DTM_PLAN_OUTER); i < n; i++) {
        const dtm_plan_outer *o = &m->outer[i];
        const uint32_t turns[] = {o->count, o->a, o->b, o->c};
        for (size_t k = 0; k < sizeof turns / sizeof *turns; k++) add_size(h, turns[k]);
        add(h, o->reduces);
    }
}

static void add_collective(hasher *h, const dtm_plan_collective *c) {
    add(h, c->kind);
    add(h, c->algorithm);
    add(h, c->dtype);
    add(h, c->max);
    add_axes(h, c->axes);
    for (uint32_t i = 0, n = at_most(h, c->members.count, MOST_ITEMS); i < n; i++) add(h, c->members.items[i]);
    for (uint32_t i = 0, n = at_most(h, c->count, MOST_ITEMS); i < n; i++) {
        add_buffer(h, c->tensors[i].input);
        add_buffer(h, c->tensors[i].output);
    }
    add_place(h, c->stage_in);
    add_place(h, c->stage_out);
    add_place(h, c->stage_stride);
    add_place(h, c->hands_on);
    add_place(h, c->scratch);
}

static void add_train(hasher *h) {
    const dtm_plan_train *t = &h->plan->train;
    add(h, t->present);
    add(h, t->schedule);
    add_number(h, t->peak);
    add_number(h, t->warmup);
    add_number(h, t->schedule_steps);
    add_number(h, t->floor);
}

static void add_scalar(hasher *h, const dtm_plan_scalar *s) {
    add(h, s->number);
    add_number(h, s->beta);
    add_buffer(h, s->buffer);
    if (s->number == DTM_PLAN_LEARNING_RATE) add_train(h);
}

static void add_input(hasher *h, const dtm_plan_input *x) {
    add_text(h, x->name);
    add(h, x->dtype);
    add_dims(h, x->dims, x->rank);
    add(h, x->limit);
    add_place(h, x->line);
}

static void add_weight(hasher *h, const dtm_plan_weight *w) {
    add_text(h, w->path);
    add_buffer(h, w->buffer);
    add_dims(h, w->dims, w->rank);
    add(h, w->init);
    add_number(h, w->a);
    add_number(h, w->b);
    add(h, w->state << 2 | w->frozen << 1 | w->gradient);
    add_place(h, w->line);
}

static void add_io(hasher *h, const dtm_plan_instruction *i) {
    add_text(h, i->io.name);
    add_buffer(h, i->io.buffer);
    if (i->kind == DTM_PLAN_INPUT && leads(h, i->io.index, h->plan->n_inputs))
        add_input(h, &h->plan->inputs[i->io.index]);
    if (i->kind == DTM_PLAN_GRADIENT && leads(h, i->io.index, h->plan->n_weights))
        add_text(h, h->plan->weights[i->io.index].path);
}

static void add_repeat(hasher *h, const dtm_plan_repeat *r, uint32_t at) {
    add_loop(h, r->loop);
    add(h, r->reversed);
    add(h, (int64_t)r->end - at);
}

static void add_timeline(hasher *h, const dtm_plan_timeline *t, uint32_t at) {
    add_loop(h, t->loop);
    add(h, (int64_t)t->end - at);
    for (uint32_t i = 0, n = at_most(h, t->n_calls, MOST_ITEMS); i < n; i++) {
        const dtm_plan_call *c = &t->calls[i];
        const int64_t numbers[] = {c->kind, c->first, c->last, c->pair, c->later, c->fills, c->task, c->chunk, c->number, c->microbatch,
                                   (int64_t)c->begin - at, (int64_t)c->end - at};
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) add(h, numbers[k]);
    }
}

static void add_instruction(hasher *h, uint32_t at) {
    const dtm_plan_instruction *i = &h->plan->instructions[at];
    add(h, i->kind);
    add(h, i->phase);
    add(h, i->category);
    add_text(h, i->name);
    add(h, i->stream);
    add(h, i->records);
    add(h, i->after);
    add(h, i->needs ? (int64_t)at - i->needs : 0);
    add(h, i->last);
    add(h, i->steps);
    for (uint32_t w = 0, n = at_most(h, i->waits.count, MOST_ITEMS); w < n; w++) add(h, i->waits.items[w]);
    if (h->depth == DTM_PLAN_PLACES) add_text(h, i->file);
    add_place(h, i->line);
    if (h->depth == DTM_PLAN_PLACES) add_number(h, i->seconds);
    switch (i->kind) {
    case DTM_PLAN_REPEAT:
    case DTM_PLAN_END:
        add_repeat(h, &i->repeat, at);
        return;
    case DTM_PLAN_TIMELINE:
        add_timeline(h, &i->timeline, at);
        return;
    case DTM_PLAN_KERNEL:
        add_launch(h, &i->kernel);
        return;
    case DTM_PLAN_MATMUL:
        add_matmul(h, &i->matmul);
        return;
    case DTM_PLAN_COLLECTIVE:
        add_collective(h, &i->collective);
        return;
    case DTM_PLAN_SEND:
    case DTM_PLAN_RECEIVE:
        add(h, i->message.peer);
        add(h, i->message.backward);
        for (uint32_t b = 0, n = at_most(h, i->message.buffers.count, MOST_ITEMS); b < n; b++)
            add_buffer(h, i->message.buffers.items[b]);
        return;
    case DTM_PLAN_COPY:
    case DTM_PLAN_TERM:
        add_buffer(h, i->copy.input);
        add_buffer(h, i->copy.output);
        add_axes(h, i->copy.axes);
        return;
    case DTM_PLAN_SCALAR:
        add_scalar(h, &i->scalar);
        return;
    default:
        add_io(h, i);
    }
}

/* ---- all of it ---- */

uint64_t dtm_plan_instruction_hash(const dtm_plan *plan, uint32_t instruction, dtm_plan_depth depth) {
    hasher h = begin(plan, depth);
    add_instruction(&h, instruction);
    return h.hash;
}

uint64_t dtm_plan_weight_hash(const dtm_plan *plan, uint32_t weight) {
    hasher h = begin(plan, DTM_PLAN_MEANING);
    add_weight(&h, &plan->weights[weight]);
    return h.hash;
}

static void add_head(hasher *h) {
    const dtm_plan *p = h->plan;
    add(h, p->version);
    add_text(h, p->program);
    add_text(h, p->compiler);
    add_text(h, p->hash);
    add(h, (int64_t)p->source);
    add(h, p->n_axes);
    for (uint32_t a = 0; a < p->n_axes; a++) add_axis(h, a);
    const int64_t numbers[] = {p->ranks,           p->microbatches,     p->train.steps,     (int64_t)p->train.seed,
                               p->arena_bytes,     p->memory.weights,   p->memory.gradients, p->memory.optimizer,
                               p->memory.activations, p->memory.workspace, p->memory.communication, p->memory.fragmentation,
                               p->n_start,         p->n_stages,         p->stage_axis,      p->n_cuda};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) add(h, numbers[i]);
    if (h->depth == DTM_PLAN_PLACES) add_number(h, p->seconds);
    add_train(h);
    add_text(h, p->train.optimizer);
    add_text(h, p->memory.peak);
}

uint64_t dtm_plan_hash(const dtm_plan *plan) {
    hasher h = begin(plan, DTM_PLAN_PLACES);
    add_head(&h);
    /* Tables first, so that entries which nothing refers to count too. */
    for (uint32_t e = 1; e < plan->n_extents; e++) add_extent(&h, e);
    for (uint32_t s = 1; s < plan->n_sizes; s++) add_size(&h, s);
    for (uint32_t l = 1; l < plan->n_loops; l++) add_loop(&h, l);
    for (int64_t p = 0; p < plan->n_places * plan->microbatches; p++) add(&h, plan->places[p]);
    for (uint32_t b = 1; b < plan->n_buffers; b++) add_buffer(&h, b);
    for (uint32_t x = 0; x < plan->n_inputs; x++) add_input(&h, &plan->inputs[x]);
    for (uint32_t w = 0; w < plan->n_weights; w++) add_weight(&h, &plan->weights[w]);
    for (uint32_t i = 0; i < plan->n_instructions; i++) add_instruction(&h, i);
    return h.hash;
}
