/* Initial weights. Element e, counted row-major in the whole tensor of one copy, of the weight with path p (copy
 * numbers in it) is a function of (seed, p, e) alone, so that every mesh begins alike. Runs of the innermost dimension
 * are drawn one after another, cut among the threads. */
#include "ir/fault.h"
#include "runtime/rank.h"

#include "kernels/cpu/random.h"

#include <math.h>
#include <string.h>

/* FNV-1a, 64 bits: the stream of a weight. */
static uint64_t stream_of(const char *path) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *path; path++) hash = (hash ^ (unsigned char)*path) * 0x100000001b3u;
    return hash;
}

typedef struct filling {
    const dtm_plan_weight *weight;
    dtm_box box;
    float *to;
    uint64_t seed, stream;
} filling;

/* The cosine and the sine of one pair of words make two neighbours (kernels/cpu/random.h). */
static void draw_normal(const filling *f, uint64_t element, int64_t count, float *to) {
    const double deviation = f->weight->a;
    int64_t i = 0;
    if (element % 2 && count) to[i++] = (float)(deviation * (double)dtm_random_normal(f->seed, f->stream, element));
    for (; i + 1 < count; i += 2) {
        const uint64_t index = element + (uint64_t)i;
        const dtm_philox four = dtm_philox_block(f->seed, f->stream, index / 4);
        const uint32_t *pair = four.word + (index & 2);
        const double radius = sqrt(-2 * log(((double)pair[0] + 1) * 0x1p-32));
        double sine, cosine;
        sincos(0x1.921fb54442d18p2 * 0x1p-32 * pair[1], &sine, &cosine);
        to[i] = (float)(deviation * (double)(float)(radius * cosine));
        to[i + 1] = (float)(deviation * (double)(float)(radius * sine));
    }
    if (i < count) to[i] = (float)(deviation * (double)dtm_random_normal(f->seed, f->stream, element + (uint64_t)i));
}

static void draw(const filling *f, uint64_t element, int64_t count, float *to) {
    const dtm_plan_weight *w = f->weight;
    float constant = w->init == DTM_PLAN_ONES ? 1 : w->init == DTM_PLAN_NUMBER ? (float)w->a : 0;
    switch (w->init) {
    case DTM_PLAN_NORMAL:
        draw_normal(f, element, count, to);
        return;
    case DTM_PLAN_UNIFORM:
        dtm_random_fill(f->seed, f->stream, element, count, to);
        for (int64_t i = 0; i < count; i++) to[i] = (float)(w->a + (w->b - w->a) * (double)to[i]);
        return;
    default:
        for (int64_t i = 0; i < count; i++) to[i] = constant;
    }
}

/* Rows [begin, end): the combinations of all dimensions but the last. */
static void fill_rows(void *argument, int64_t begin, int64_t end, int thread) {
    const filling *f = argument;
    (void)thread;
    int last = f->box.rank - 1;
    int64_t width = last >= 0 ? f->box.spans[last].size : 1;
    for (int64_t row = begin; row < end; row++) {
        int64_t rest = row, element = last >= 0 ? f->box.spans[last].begin : 0;
        int64_t stride = last < 0 ? 1 : dtm_fault(37) ? width : f->weight->dims[last].size;
        for (int d = last - 1; d >= 0; d--) {
            element += (f->box.spans[d].begin + rest % f->box.spans[d].size) * stride;
            rest /= f->box.spans[d].size;
            stride *= f->weight->dims[d].size;
        }
        draw(f, (uint64_t)element, width, f->to + row * width);
    }
}

void dtm_rank_initialize(dtm_rank *rank) {
    for (uint32_t i = 0; i < rank->plan->n_weights; i++) {
        const dtm_plan_weight *w = &rank->plan->weights[i];
        filling f = {.weight = w, .box = dtm_rank_box(rank, w->buffer), .seed = rank->seed};
        int64_t rows = 1;
        for (int d = 0; d + 1 < f.box.rank; d++) rows *= f.box.spans[d].size;
        for (int64_t copy = 0; copy < dtm_weight_copies(rank->plan, w); copy++) {
            char name[512];
            dtm_weight_name(rank->plan, w, copy, name, sizeof name);
            f.stream = stream_of(name);
            f.to = dtm_rank_buffer_copy(rank, w->buffer, copy);
            dtm_pool_run(rank->pool, fill_rows, &f, rows, 1);
        }
    }
}
