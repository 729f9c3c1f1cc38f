/* Initial weights. Element e, counted row-major in the whole tensor of one copy, of the weight with path p (copy
 * numbers in it) is a function of (seed, p, e) alone, so that every mesh begins alike. The block that a rank holds is
 * drawn in runs of elements that follow each other in the whole tensor too, cut among the threads. */
#include "ir/fault.h"
#include "runtime/cuda/device.h"
#include "runtime/rank.h"

#include "kernels/cpu/draw.h"

#include <math.h>

/* Elements of a thread's least share, and where shares are cut: pages, so that each is first touched by one thread. */
enum { GRAIN = 1024 };

/* FNV-1a, 64 bits: the stream of a weight. */
static uint64_t stream_of(const char *path) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *path; path++) hash = (hash ^ (unsigned char)*path) * 0x100000001b3u;
    return hash;
}

typedef struct filling {
    const dtm_plan_weight *weight;
    const dtm_draw *draw;
    dtm_box box;
    int outer;     /* dimensions before those that a run covers */
    int64_t width; /* elements of a run */
    float *to;
    uint64_t seed, stream;
} filling;

/* A run covers the last dimensions that are held whole and the part that is held of the one before. */
static void measure_runs(filling *f) {
    f->outer = f->box.rank;
    f->width = 1;
    for (bool all = true; all && f->outer > 0; f->outer--) {
        const dtm_span span = f->box.spans[f->outer - 1];
        all = span.size == f->weight->dims[f->outer - 1].size;
        f->width *= span.size;
    }
}

static void draw(const filling *f, uint64_t element, int64_t count, float *to) {
    const dtm_plan_weight *w = f->weight;
    float constant = w->init == DTM_PLAN_ONES ? 1 : w->init == DTM_PLAN_NUMBER ? (float)w->a : 0;
    switch (w->init) {
    case DTM_PLAN_NORMAL:
        f->draw->normal(f->seed, f->stream, element, count, w->a, to);
        return;
    case DTM_PLAN_UNIFORM:
        f->draw->uniform(f->seed, f->stream, element, count, w->a, w->b, to);
        return;
    default:
        for (int64_t i = 0; i < count; i++) to[i] = constant;
    }
}

/* Where run `run` begins in the whole tensor. */
static int64_t first_element(const filling *f, int64_t run) {
    int64_t stride = 1, element = 0;
    for (int d = f->box.rank - 1; d >= 0; d--) {
        int64_t at = 0;
        if (d < f->outer) at = run % f->box.spans[d].size, run /= f->box.spans[d].size;
        element += (f->box.spans[d].begin + at) * stride;
        stride *= dtm_fault(37) && d == f->box.rank - 1 ? f->box.spans[d].size : f->weight->dims[d].size;
    }
    return element;
}

/* Elements [begin, end) of the block. */
static void fill(void *argument, int64_t begin, int64_t end, int thread) {
    const filling *f = argument;
    (void)thread;
    while (begin < end) {
        int64_t run = begin / f->width, skipped = begin % f->width, rest = f->width - skipped;
        int64_t here = rest < end - begin ? rest : end - begin;
        draw(f, (uint64_t)(first_element(f, run) + skipped), here, f->to + begin);
        begin += here;
    }
}

bool dtm_rank_initialize(dtm_rank *rank, bool states_alone, dtm_status *status) {
    for (uint32_t i = 0; i < rank->plan->n_weights; i++) {
        const dtm_plan_weight *w = &rank->plan->weights[i];
        if (states_alone && !w->state) continue;
        filling f = {.weight = w,
                     .draw = dtm_draw_at(rank->level),
                     .box = dtm_rank_box(rank, w->buffer),
                     .seed = rank->seed};
        measure_runs(&f);
        for (int64_t copy = 0; copy < dtm_weight_copies(rank->plan, w); copy++) {
            char name[512];
            dtm_weight_name(rank->plan, w, copy, name, sizeof name);
            f.stream = stream_of(name);
            int64_t elements = dtm_box_elements(&f.box), bytes = elements * (int64_t)sizeof *f.to;
            void *at = dtm_rank_buffer_copy(rank, w->buffer, copy);
            if (rank->device && w->init == DTM_PLAN_ZEROS) {
                if (!dtm_device_clear(rank->device, rank->device->compute, at, bytes, status)) return false;
                continue;
            }
            f.to = dtm_rank_open(rank, at, bytes, status);
            if (!f.to) return false;
            dtm_pool_run(rank->pool, fill, &f, elements, GRAIN);
            if (dtm_fault(51) && dtm_comm_rank(rank->comm) == 1 && elements) *f.to = nextafterf(*f.to, 1);
            if (!dtm_rank_write(rank, at, f.to, bytes, status)) return false;
        }
    }
    return true;
}
