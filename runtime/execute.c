/* Executes one instruction of the plan. Kernels and products are cut over the threads; everything else happens on the rank's
 * own thread. */
#include "ir/fault.h"
#include "runtime/rank.h"

#include "kernels/cpu/half.h"
#include "kernels/cpu/matmul.h"
#include "runtime/checkpoint.h"
#include "runtime/cuda/device.h"
#include "runtime/data.h"
#include "runtime/profile.h"
#include "runtime/replicas.h"
#include "runtime/simulate.h"
#include "runtime/trace.h"

#include <math.h>
#include <string.h>
#include <time.h>

/* ---- generated kernels ---- */

typedef struct launch_job {
    dtm_rank *rank;
    const dtm_plan_launch *launch;
    uint32_t buffers, sizes, runs; /* buffers and sizes of one run: of a tuple, in one copy of its loop */
} launch_job;

/* The runs' extents lie one after another: run r has the units up to ends[r]. */
static void run_launch(void *argument, int64_t begin, int64_t end, int thread) {
    const launch_job *job = argument;
    dtm_rank *rank = job->rank;
    const dtm_plan_kernel *kernel = &rank->kernels[job->launch->kernel];
    int64_t first = 0;
    for (uint32_t r = 0; r < job->runs && first < end; first = rank->ends[r++]) {
        int64_t low = begin > first ? begin : first, high = end < rank->ends[r] ? end : rank->ends[r];
        if (low >= high) continue;
        dtm_kernel_args args = {rank->buffers + r * job->buffers, rank->values + r * job->sizes, NULL,
                                rank->scratch + thread * rank->scratch_bytes, job->launch->error ? &rank->error : NULL};
        kernel->run(&args, low - first, high - first);
    }
}

/* Writes the arguments of one more run: of tuple t, in a copy of `loop`. */
static void add_run(launch_job *job, uint32_t t, uint32_t loop, int64_t copy) {
    dtm_rank *rank = job->rank;
    void **buffers = rank->buffers + job->runs * job->buffers;
    int64_t *values = rank->values + job->runs * job->sizes;
    for (uint32_t i = 0; i < job->buffers; i++) {
        uint32_t buffer = job->launch->buffers.items[t * job->buffers + i];
        bool moves = loop && rank->plan->buffers[buffer].loop == loop;
        buffers[i] = moves ? dtm_rank_buffer_copy(rank, buffer, copy) : dtm_rank_buffer(rank, buffer);
    }
    for (uint32_t i = 0; i < job->sizes; i++) values[i] = rank->sizes[job->launch->sizes.items[t * job->sizes + i]];
    int64_t before = job->runs ? rank->ends[job->runs - 1] : 0;
    rank->ends[job->runs++] = before + rank->kernels[job->launch->kernel].extent(values);
}

bool dtm_bad_element(dtm_rank *rank, const dtm_plan_instruction *at, int64_t element, int32_t value, dtm_status *status) {
    uint32_t buffer = at->kernel.error_buffer;
    const dtm_plan_buffer *b = &rank->plan->buffers[buffer];
    dtm_box box = dtm_rank_box(rank, buffer);
    int64_t rest = element, whole = 0, stride = 1;
    for (int d = box.rank - 1; d >= 0; d--) {
        whole += (box.spans[d].begin + rest % box.spans[d].size) * stride;
        rest /= box.spans[d].size;
        stride *= rank->plan->extents[b->dims[d]].whole;
    }
    return dtm_status_fail(status, "step %lld: element %lld of `%s` is %d, %s (%s, line %u)", (long long)rank->step + 1,
                           (long long)whole, b->name, value, at->kernel.error, rank->options->data, at->line);
}

static bool bad_element(dtm_rank *rank, const dtm_plan_instruction *at, dtm_status *status) {
    uint32_t buffer = at->kernel.error_buffer;
    int32_t value = 0;
    if (rank->plan->buffers[buffer].dtype == DTM_PLAN_I32) value = ((const int32_t *)dtm_rank_buffer(rank, buffer))[rank->error];
    return dtm_bad_element(rank, at, rank->error, value, status);
}

static bool launch(dtm_rank *rank, const dtm_plan_instruction *at, dtm_status *status) {
    const dtm_plan_launch *l = &at->kernel;
    launch_job job = {rank, l, l->buffers.count / l->tuples, l->sizes.count / l->tuples, 0};
    for (uint32_t t = 0; t < l->tuples; t++) {
        int64_t copies = dtm_loop_copies(rank->plan, l->loops.items[t]);
        for (int64_t copy = 0; copy < copies; copy++) add_run(&job, t, l->loops.items[t], copy);
    }
    dtm_pool_run(rank->pool, run_launch, &job, job.runs ? rank->ends[job.runs - 1] : 0, 1);
    return rank->error == DTM_KERNEL_OK || bad_element(rank, at, status);
}

/* ---- products ---- */

typedef struct matmul_job {
    dtm_rank *rank;
    dtm_matmul_sizes sizes;
    char *operands[DTM_MATMUL_BUFFERS];
    int64_t bytes[DTM_MATMUL_BUFFERS]; /* of an element */
    int outers; /* loops between products of their own; those that add up are the kernel's */
    struct {
        int64_t count, a, b, c;
    } loops[DTM_PLAN_OUTER];
    int64_t each; /* units of one product */
} matmul_job;

/* Offsets of turn `turn` of the loops, the last fastest. */
static void advance(const matmul_job *job, int64_t turn, void *operands[DTM_MATMUL_BUFFERS]) {
    for (int l = job->outers - 1; l >= 0; l--) {
        int64_t i = turn % job->loops[l].count;
        turn /= job->loops[l].count;
        operands[DTM_MATMUL_A] = (char *)operands[DTM_MATMUL_A] + i * job->loops[l].a * job->bytes[DTM_MATMUL_A];
        operands[DTM_MATMUL_B] = (char *)operands[DTM_MATMUL_B] + i * job->loops[l].b * job->bytes[DTM_MATMUL_B];
        operands[DTM_MATMUL_C] = (char *)operands[DTM_MATMUL_C] + i * job->loops[l].c * job->bytes[DTM_MATMUL_C];
    }
}

static void run_matmul(void *argument, int64_t begin, int64_t end, int thread) {
    const matmul_job *job = argument;
    void *scratch = job->rank->scratch + thread * job->rank->scratch_bytes;
    for (int64_t outer = begin / job->each; outer * job->each < end; outer++) {
        int64_t first = outer * job->each;
        int64_t low = begin > first ? begin - first : 0, high = end < first + job->each ? end - first : job->each;
        void *operands[DTM_MATMUL_BUFFERS] = {job->operands[0], job->operands[1], job->operands[2]};
        advance(job, outer, operands);
        dtm_kernel_args args = {.buffers = operands, .sizes = (const int64_t *)&job->sizes, .scratch = scratch};
        dtm_matmul(&args, low, high);
    }
}

_Static_assert((int)DTM_PLAN_OUTER <= (int)DTM_MATMUL_SUMS, "every loop of a plan may add up");

static void add_loops(matmul_job *job, const dtm_plan_matmul *m) {
    const int64_t *z = job->rank->sizes;
    for (int i = 0; i < m->n_outer; i++) {
        const dtm_plan_outer *o = &m->outer[i];
        if (o->reduces) {
            int64_t at = job->sizes.sums++;
            job->sizes.sum_count[at] = z[o->count];
            job->sizes.sum_a[at] = z[o->a];
            job->sizes.sum_b[at] = z[o->b];
            continue;
        }
        job->loops[job->outers].count = z[o->count];
        job->loops[job->outers].a = z[o->a];
        job->loops[job->outers].b = z[o->b];
        job->loops[job->outers++].c = z[o->c];
    }
}

static bool accumulates(const dtm_rank *rank, const dtm_plan_matmul *m) {
    if (m->accumulate == DTM_PLAN_ADD_LATER) return rank->later;
    return m->accumulate == DTM_PLAN_ADD;
}

/* Rows of blocks of rows: those of one block are apart from the next one's. */
typedef struct some_rows {
    int64_t blocks, whole, begin, size;
} some_rows;

static void take_rows(matmul_job *job, const some_rows *rows) {
    dtm_matmul_sizes *z = &job->sizes;
    job->operands[DTM_MATMUL_A] += rows->begin * z->a_row * job->bytes[DTM_MATMUL_A];
    job->operands[DTM_MATMUL_C] += rows->begin * z->c_row * job->bytes[DTM_MATMUL_C];
    z->batch = rows->blocks;
    z->m = rows->size;
    z->a_batch = rows->whole * z->a_row;
    z->c_batch = rows->whole * z->c_row;
    z->b_batch = 0;
}

int64_t dtm_matmul_type_of(const dtm_rank *rank, uint32_t buffer) {
    dtm_plan_dtype dtype = rank->plan->buffers[buffer].dtype;
    return dtype == DTM_PLAN_BF16 ? DTM_MATMUL_BF16 : dtype == DTM_PLAN_F16 ? DTM_MATMUL_F16 : DTM_MATMUL_F32;
}

static double multiply(dtm_rank *rank, const dtm_plan_matmul *m, const some_rows *rows) {
    const int64_t *z = rank->sizes;
    matmul_job job = {
        .rank = rank,
        .operands = {dtm_rank_buffer(rank, m->a), dtm_rank_buffer(rank, m->b), dtm_rank_buffer(rank, m->c)},
        .sizes = {.batch = z[m->batch],
                  .m = z[m->m],
                  .n = z[m->n],
                  .k = z[m->k],
                  .a_batch = z[m->a_batch],
                  .a_row = z[m->a_row],
                  .a_col = z[m->a_col],
                  .b_batch = z[m->b_batch],
                  .b_row = z[m->b_row],
                  .b_col = z[m->b_col],
                  .c_batch = z[m->c_batch],
                  .c_row = z[m->c_row],
                  .a_type = dtm_matmul_type_of(rank, m->a),
                  .b_type = dtm_matmul_type_of(rank, m->b),
                  .c_type = dtm_matmul_type_of(rank, m->c),
                  .accumulate = accumulates(rank, m)},
        .bytes = {dtm_plan_dtype_bytes(rank->plan->buffers[m->a].dtype), dtm_plan_dtype_bytes(rank->plan->buffers[m->b].dtype),
                  dtm_plan_dtype_bytes(rank->plan->buffers[m->c].dtype)},
    };
    add_loops(&job, m);
    if (rows) take_rows(&job, rows);
    int64_t products = 1, turns = 1;
    for (int l = 0; l < job.outers; l++) products *= job.loops[l].count;
    for (int64_t l = 0; l < job.sizes.sums; l++) turns *= job.sizes.sum_count[l];
    if (!turns && job.sizes.accumulate) return 0; /* nothing to add */
    job.each = dtm_matmul_extent((const int64_t *)&job.sizes);
    if (job.each && products) dtm_pool_run(rank->pool, run_matmul, &job, job.each * products, 1);
    return 2.0 * (double)(products * turns * job.sizes.batch) * (double)job.sizes.m * (double)job.sizes.n *
           (double)job.sizes.k;
}

/* ---- numbers of the host ---- */

double dtm_learning_rate(const dtm_plan_train *train, int64_t t) {
    double at = (double)t, peak = train->peak, floor = train->floor;
    if (at < train->warmup) return peak * at / train->warmup;
    if (train->schedule == DTM_PLAN_CONSTANT) return peak;
    double length = train->schedule_steps - train->warmup;
    double x = length > 0 ? (at - train->warmup) / length : 1;
    if (x > 1) x = 1;
    if (train->schedule == DTM_PLAN_LINEAR) return peak + (floor - peak) * x;
    return floor + (peak - floor) * (1 + cos(3.14159265358979323846 * x)) / 2;
}

void dtm_number_as(dtm_plan_dtype dtype, double number, void *to) {
    switch (dtype) {
    case DTM_PLAN_F32: *(float *)to = (float)number; return;
    case DTM_PLAN_I32: *(int32_t *)to = (int32_t)number; return;
    case DTM_PLAN_BF16: *(uint16_t *)to = dtm_to_bf16((float)number); return;
    case DTM_PLAN_F16: *(uint16_t *)to = dtm_to_f16((float)number); return;
    default: memset(to, (int)number, 1);
    }
}

static void fill(dtm_rank *rank, uint32_t buffer, double number) {
    dtm_box box = dtm_rank_box(rank, buffer);
    int64_t count = dtm_box_elements(&box);
    void *to = dtm_rank_buffer(rank, buffer);
    switch (rank->plan->buffers[buffer].dtype) {
    case DTM_PLAN_F32:
        for (int64_t i = 0; i < count; i++) ((float *)to)[i] = (float)number;
        return;
    case DTM_PLAN_I32:
        for (int64_t i = 0; i < count; i++) ((int32_t *)to)[i] = (int32_t)number;
        return;
    case DTM_PLAN_BF16:
        for (int64_t i = 0; i < count; i++) ((uint16_t *)to)[i] = dtm_to_bf16((float)number);
        return;
    case DTM_PLAN_F16:
        for (int64_t i = 0; i < count; i++) ((uint16_t *)to)[i] = dtm_to_f16((float)number);
        return;
    default:
        memset(to, (int)number, (size_t)count);
    }
}

void dtm_scalar_value(dtm_rank *rank, const dtm_plan_scalar *scalar, void *to) {
    switch (scalar->number) {
    case DTM_PLAN_LEARNING_RATE:
        rank->learning_rate = dtm_learning_rate(&rank->plan->train, rank->step + !dtm_fault(31));
        *(float *)to = (float)rank->learning_rate;
        return;
    case DTM_PLAN_BIAS_CORRECTION:
        *(float *)to = (float)(1 - pow(scalar->beta, (double)(rank->step + (dtm_fault(30) ? 2 : 1))));
        return;
    case DTM_PLAN_SEED_AND_STEP: {
        const uint64_t words[2] = {rank->seed, rank->forward_only ? 0 : (uint64_t)rank->step + 1};
        memcpy(to, words, sizeof words);
        return;
    }
    default:
        return;
    }
}

static void set_scalar(dtm_rank *rank, const dtm_plan_scalar *scalar) {
    if (scalar->number == DTM_PLAN_FILL)
        fill(rank, scalar->buffer, scalar->beta);
    else
        dtm_scalar_value(rank, scalar, dtm_rank_buffer(rank, scalar->buffer));
}

/* ---- what comes in and goes out ---- */

bool dtm_input_block(dtm_rank *rank, const dtm_plan_io *io, void *to, dtm_status *status) {
    dtm_box box = dtm_rank_box(rank, io->buffer);
    int64_t begin[DTM_PLAN_RANK], end[DTM_PLAN_RANK];
    for (int d = 0; d < box.rank; d++) {
        begin[d] = box.spans[d].begin;
        end[d] = begin[d] + box.spans[d].size;
    }
    if (dtm_box_elements(&box) == 0) return true;
    if (!dtm_data_read(rank->data, rank->step, (int)io->index, begin, end, to, status))
        return false;
    dtm_data_prefetch(rank->data, rank->step + 1, (int)io->index, begin, end);
    return true;
}

static bool report(dtm_rank *rank, uint32_t index, dtm_status *status) {
    const dtm_plan_io *io = &rank->plan->instructions[index].io;
    const void *at = dtm_rank_buffer(rank, io->buffer);
    double value;
    if (rank->device)
        return dtm_feed_report(rank, index, status) && dtm_check_replica(rank, io->buffer, "report", io->name, status);
    switch (rank->plan->buffers[io->buffer].dtype) {
    case DTM_PLAN_F32:
        value = (double)*(const float *)at;
        break;
    case DTM_PLAN_I32:
        value = *(const int32_t *)at;
        break;
    case DTM_PLAN_BF16:
        value = (double)dtm_of_bf16(*(const uint16_t *)at);
        break;
    case DTM_PLAN_F16:
        value = (double)dtm_of_f16(*(const uint16_t *)at);
        break;
    default:
        value = *(const uint8_t *)at;
    }
    rank->reports[rank->n_reports++] = (dtm_log_report){io->name, value};
    return dtm_check_replica(rank, io->buffer, "report", io->name, status);
}

static bool gradient(dtm_rank *rank, const dtm_plan_io *io, dtm_status *status) {
    if (!dtm_check_replica(rank, io->buffer, "gradient of", rank->plan->weights[io->index].path, status)) return false;
    return !rank->gradients || dtm_gradient_write(rank, io, status);
}

/* ---- one instruction ---- */

static bool run_one(dtm_rank *rank, uint32_t index, double *work, dtm_status *status) {
    const dtm_plan_instruction *at = &rank->plan->instructions[index];
    if (rank->options->simulate && dtm_simulate(rank, at)) return true;
    bool meets = at->kind == DTM_PLAN_COLLECTIVE || at->kind == DTM_PLAN_SEND || at->kind == DTM_PLAN_RECEIVE;
    if (rank->rehearses && !meets) return true;
    dtm_device *device = rank->device;
    if (device) device->last = at;
    switch (at->kind) {
    case DTM_PLAN_KERNEL:
        return device ? dtm_device_launch(rank, index, status) : launch(rank, at, status);
    case DTM_PLAN_MATMUL:
        if (device) return dtm_device_multiply(rank, index, work, status);
        *work = multiply(rank, &at->matmul, NULL);
        return true;
    case DTM_PLAN_COLLECTIVE:
        return at->records ? dtm_start_apart(rank, index, status) : dtm_run_collective(rank, index, status);
    case DTM_PLAN_SEND:
    case DTM_PLAN_RECEIVE:
        /* A timeline has calls that let come what is received, and wait for what is sent. */
        if ((at->kind == DTM_PLAN_SEND || !rank->in_timeline) && !dtm_start_message(rank, index, status)) return false;
        return (at->kind == DTM_PLAN_SEND && rank->in_timeline) || dtm_finish_message(rank, index, status);
    case DTM_PLAN_COPY:
        dtm_run_copy(rank, &at->copy);
        return !device || !device->failure.failed || dtm_status_fail(status, "%s", device->failure.message);
    case DTM_PLAN_TERM:
        dtm_run_term(rank, &at->copy);
        return !device || !device->failure.failed || dtm_status_fail(status, "%s", device->failure.message);
    case DTM_PLAN_SCALAR:
        if (device) return dtm_feed_scalar(rank, index, status);
        set_scalar(rank, &at->scalar);
        return true;
    case DTM_PLAN_INPUT:
        return device ? dtm_feed_input(rank, index, status) : dtm_input_block(rank, &at->io, dtm_rank_buffer(rank, at->io.buffer), status);
    case DTM_PLAN_REPORT:
        return report(rank, index, status);
    case DTM_PLAN_GRADIENT:
        return gradient(rank, &at->io, status);
    default:
        return true; /* OUTPUT: of inference, which this version does not run */
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

bool dtm_run_instruction(dtm_rank *rank, uint32_t index, dtm_status *status) {
    double work = 0;
    const dtm_plan_instruction *at = &rank->plan->instructions[index];
    if (!dtm_wait_list(rank, &at->waits, status)) return false;
    if (!rank->profile && !rank->trace) return run_one(rank, index, &work, status);
    dtm_trace_begin(rank, at->name, dtm_profile_category(at->category));
    double begin = now();
    bool ok = run_one(rank, index, &work, status) && (!rank->device || dtm_device_finish(rank, status)); /* which only enqueues */
    dtm_trace_end(rank);
    if (!rank->profile) return ok;
    dtm_profile_entry *entry = &rank->profile[index];
    entry->seconds += now() - begin;
    entry->work += work;
    entry->runs++;
    return ok;
}

void dtm_run_rows(dtm_rank *rank, uint32_t index, int64_t blocks, int64_t whole, int64_t begin, int64_t size) {
    dtm_plan_instruction part = rank->plan->instructions[index];
    some_rows rows = {blocks, whole, begin, size};
    part.seconds *= whole ? (double)size / (double)whole : 0;
    dtm_trace_begin(rank, part.name, dtm_profile_category(part.category));
    double started = now(), work = 0;
    bool slept = rank->options->simulate && dtm_simulate(rank, &part);
    if (!slept && blocks > 0 && size > 0) work = multiply(rank, &part.matmul, &rows);
    dtm_trace_end(rank);
    if (!rank->profile) return;
    rank->profile[index].seconds += now() - started;
    rank->profile[index].work += work;
}
