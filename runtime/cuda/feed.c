/* What goes into a step and comes out of it. Numbers that the host computes and blocks of inputs are gathered in pinned memory, all
 * of a step, and go to the device in one copy on a stream of their own, beside the step before. The step takes them from one place, so that
 * each step consists of the same operations:
 *
 *     host, pinned --> slot  (on `arriving`)      slot --> given --> buffer, ..  (the step)   buffer, .. --> told --> pinned
 *
 * There are two slots, used in turn: while the device is at a step the host gets ready the next one and reads what the one before it has
 * told; it does not begin one before it has taken what the step before the last told. What goes in is found in the first step, in
 * which each is copied as the walk comes to it. What comes before the first step, once, is copied and waited for. */
#include "runtime/cuda/device.h"

#include "ir/fault.h"
#include "kernels/cpu/half.h"
#include "runtime/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 2, ALIGNMENT = 64 };

/* One that goes in: of an instruction, in a microbatch. */
typedef struct given {
    uint32_t instruction;
    int64_t microbatch, offset, bytes;
} given;

typedef struct told {
    uint32_t instruction; /* REPORT */
} told;

struct dtm_feed {
    bool known;   /* what goes in: the first step has run */
    bool in_step; /* else: before the first */
    given *givens;
    size_t n_givens, cap_givens, next;
    told *tells;
    size_t n_tells, cap_tells, next_told;
    int64_t given_bytes, told_bytes; /* told: the errors, then 8 bytes a report */
    int64_t given_at, slots_at, told_at; /* offsets in the device's memory */
    char *given_slots[SLOTS], *told_slots[SLOTS]; /* pinned */
    dtm_cu_stream arriving;
    dtm_cu_event arrived[SLOTS], ready[SLOTS];
    double rates[SLOTS]; /* learning rate of the step */
    int64_t steps[SLOTS]; /* that the slot is of; -1: taken */
};

static int64_t aligned(int64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static int64_t block_bytes(const dtm_rank *rank, uint32_t buffer) {
    dtm_box box = dtm_rank_box(rank, buffer);
    return dtm_box_elements(&box) * dtm_plan_dtype_bytes(rank->plan->buffers[buffer].dtype);
}

static dtm_cu_pointer address(const dtm_rank *rank, uint32_t buffer) { return (dtm_cu_pointer)(uintptr_t)dtm_rank_buffer(rank, buffer); }

/* ---- how much there is ---- */

/* How often an instruction runs in a step, at most. */
static int64_t times(const dtm_plan *plan, uint32_t instruction) {
    int64_t product = 1, calls = 0;
    bool called = false;
    for (uint32_t i = 0; i < instruction; i++) {
        const dtm_plan_instruction *at = &plan->instructions[i];
        if (at->kind == DTM_PLAN_REPEAT && at->repeat.end > instruction) product *= plan->loops[at->repeat.loop].copies;
        if (at->kind != DTM_PLAN_TIMELINE || at->timeline.end <= instruction) continue;
        called = true;
        for (uint32_t c = 0; c < at->timeline.n_calls; c++) {
            const dtm_plan_call *call = &at->timeline.calls[c];
            calls += call->kind == DTM_PLAN_RUN && call->begin <= instruction && instruction < call->end;
        }
    }
    return product * (called ? calls : 1);
}

static bool goes_in(const dtm_plan_instruction *at) {
    return at->kind == DTM_PLAN_INPUT || (at->kind == DTM_PLAN_SCALAR && at->scalar.number != DTM_PLAN_FILL);
}

bool dtm_feed_measure(dtm_rank *rank, dtm_status *status) {
    const dtm_plan *plan = rank->plan;
    dtm_feed *f = rank->device->feed = calloc(1, sizeof *f);
    if (!f) return dtm_status_fail(status, "out of memory for what goes into a step");
    for (uint32_t i = plan->n_start; i < plan->n_instructions; i++) {
        const dtm_plan_instruction *at = &plan->instructions[i];
        f->cap_tells += at->kind == DTM_PLAN_REPORT;
        if (!goes_in(at)) continue;
        int64_t most = 0, runs = times(plan, i);
        for (int64_t m = 0; m < (rank->time_axis >= 0 ? plan->microbatches : 1); m++) {
            dtm_rank_set_microbatch(rank, m, m > 0, false);
            int64_t bytes = block_bytes(rank, at->kind == DTM_PLAN_INPUT ? at->io.buffer : at->scalar.buffer);
            if (bytes > most) most = bytes;
        }
        f->given_bytes += runs * aligned(most);
        f->cap_givens += (size_t)runs;
    }
    dtm_rank_set_microbatch(rank, 0, false, false);
    f->told_bytes = 8 * (dtm_device_errors(rank->device) + (int64_t)f->cap_tells);
    f->givens = calloc(f->cap_givens + 1, sizeof *f->givens);
    f->tells = calloc(f->cap_tells + 1, sizeof *f->tells);
    f->given_bytes = (f->given_bytes + 255) / 256 * 256;
    f->given_at = dtm_device_reserve(rank->device, f->given_bytes);
    f->slots_at = dtm_device_reserve(rank->device, SLOTS * f->given_bytes);
    f->told_at = dtm_device_reserve(rank->device, f->told_bytes);
    dtm_device_errors_at(rank->device, f->told_at);
    return (f->givens && f->tells) || dtm_status_fail(status, "out of memory for what goes into a step");
}

bool dtm_feed_load(dtm_rank *rank, dtm_status *status) {
    dtm_device *device = rank->device;
    dtm_feed *f = device->feed;
    if (!dtm_device_stream(device, false, &f->arriving, status)) return false;
    for (int s = 0; s < SLOTS; s++) {
        dtm_cu_result result = device->driver->MemHostAlloc((void **)&f->given_slots[s], (size_t)f->given_bytes + 1, DTM_CU_HOST_PORTABLE);
        if (!result) result = device->driver->MemHostAlloc((void **)&f->told_slots[s], (size_t)f->told_bytes + 1, DTM_CU_HOST_PORTABLE);
        if (!dtm_device_check(device, result, status, "%lld bytes of pinned memory", (long long)(f->given_bytes + f->told_bytes))) return false;
        if (!dtm_device_event(device, &f->arrived[s], status) || !dtm_device_event(device, &f->ready[s], status)) return false;
        f->steps[s] = -1;
    }
    int64_t *words = (int64_t *)f->told_slots[0], n = dtm_device_errors(device);
    memset(words, 0, (size_t)f->told_bytes); /* of a report that is shorter than its 8 bytes the rest is copied too */
    for (int64_t i = 0; i < n; i++) words[i] = DTM_KERNEL_OK;
    return dtm_rank_write(rank, rank->arena + f->told_at, words, f->told_bytes, status);
}

void dtm_feed_free(dtm_device *device) {
    dtm_feed *f = device->feed;
    if (!f) return;
    for (int s = 0; s < SLOTS; s++) {
        if (f->given_slots[s]) device->driver->MemFreeHost(f->given_slots[s]);
        if (f->told_slots[s]) device->driver->MemFreeHost(f->told_slots[s]);
    }
    free(f->givens);
    free(f->tells);
    free(f);
    device->feed = NULL;
}

/* ---- what goes in ---- */

/* Writes what an instruction gives, in the step and microbatch that the rank is in. */
static bool get(dtm_rank *rank, uint32_t instruction, void *to, dtm_status *status) {
    const dtm_plan_instruction *at = &rank->plan->instructions[instruction];
    if (at->kind == DTM_PLAN_INPUT) return dtm_input_block(rank, &at->io, to, status);
    dtm_scalar_value(rank, &at->scalar, to);
    return true;
}

static bool copy_in(dtm_rank *rank, const given *g, dtm_status *status) {
    dtm_device *device = rank->device;
    const dtm_plan_instruction *at = &rank->plan->instructions[g->instruction];
    dtm_cu_pointer from = device->memory + (dtm_cu_pointer)(device->feed->given_at + g->offset);
    dtm_cu_pointer to = address(rank, at->kind == DTM_PLAN_INPUT ? at->io.buffer : at->scalar.buffer);
    if (dtm_fault(156) && at->kind == DTM_PLAN_SCALAR && g->bytes == 4) {
        const char *host = device->feed->given_slots[rank->step % SLOTS] + g->offset;
        return dtm_device_check(device, device->driver->MemsetD32Async(to, *(const unsigned *)(const void *)host, 1, device->compute), status, "`%s`", at->name);
    }
    return dtm_device_check(device, device->driver->MemcpyDtoDAsync(to, from, (size_t)g->bytes, device->compute), status, "`%s`", at->name);
}

static bool check_copy(dtm_rank *rank, dtm_cu_result result, dtm_status *status) {
    return dtm_device_check(rank->device, result, status, "what goes into step %lld", (long long)rank->step + 1);
}

/* In the first step: one, on `compute`. */
static bool send_one(dtm_rank *rank, int slot, const given *g, dtm_status *status) {
    dtm_device *device = rank->device;
    dtm_feed *f = device->feed;
    dtm_cu_pointer to = device->memory + (dtm_cu_pointer)(f->given_at + g->offset);
    return check_copy(rank, device->driver->MemcpyHtoDAsync(to, f->given_slots[slot] + g->offset, (size_t)g->bytes, device->compute), status);
}

static bool send_all(dtm_rank *rank, int slot, int64_t bytes, dtm_status *status) {
    dtm_device *device = rank->device;
    dtm_feed *f = device->feed;
    dtm_cu_pointer given = device->memory + (dtm_cu_pointer)f->given_at, to = device->memory + (dtm_cu_pointer)(f->slots_at + (dtm_fault(159) ? 0 : slot) * f->given_bytes);
    dtm_cu_result result = device->driver->MemcpyHtoDAsync(to, f->given_slots[slot], (size_t)bytes, f->arriving);
    if (!result) result = device->driver->EventRecord(f->arrived[slot], f->arriving);
    if (!result) result = device->driver->StreamWaitEvent(device->compute, f->arrived[slot], 0);
    if (!result) result = device->driver->MemcpyDtoDAsync(given, to, (size_t)bytes, device->compute);
    return check_copy(rank, result, status);
}

void dtm_feed_again(dtm_device *device) { device->feed->next = device->feed->next_told = 0; }

bool dtm_feed_begin(dtm_rank *rank, dtm_status *status) {
    dtm_device *device = rank->device;
    dtm_feed *f = device->feed;
    int slot = (int)(rank->step % SLOTS);
    f->in_step = true;
    dtm_feed_again(device);
    if (!dtm_marks_step(rank, status)) return false;
    if (f->steps[slot] >= 0) return dtm_status_fail(status, "step %lld begins before what step %lld told was taken: a defect of dtm", (long long)rank->step + 1, (long long)f->steps[slot] + 1);
    f->steps[slot] = rank->step;
    if (!f->known) return true;
    bool ok = true;
    int64_t bytes = 0;
    if (dtm_fault(158)) slot = 0;
    for (size_t i = 0; ok && i < f->n_givens; i++) {
        const given *g = &f->givens[i];
        dtm_rank_set_microbatch(rank, g->microbatch, false, false);
        ok = get(rank, g->instruction, f->given_slots[slot] + g->offset, status);
        bytes = g->offset + g->bytes;
    }
    dtm_rank_set_microbatch(rank, 0, false, false);
    return ok && (!bytes || send_all(rank, slot, bytes, status));
}

static bool give_once(dtm_rank *rank, uint32_t instruction, uint32_t buffer, int64_t bytes, dtm_status *status) {
    void *at = dtm_rank_buffer(rank, buffer), *host = dtm_rank_open(rank, at, bytes, status);
    return host && get(rank, instruction, host, status) && dtm_rank_write(rank, at, host, bytes, status);
}

static bool give(dtm_rank *rank, uint32_t instruction, uint32_t buffer, dtm_status *status) {
    dtm_feed *f = rank->device->feed;
    int64_t bytes = block_bytes(rank, buffer);
    if (!bytes) return true;
    if (!f->in_step) return give_once(rank, instruction, buffer, bytes, status);
    if (f->known) {
        const given *g = f->next < f->n_givens ? &f->givens[f->next++] : NULL;
        if (!g || g->instruction != instruction || g->microbatch != rank->microbatch || g->bytes != bytes)
            return dtm_status_fail(status, "step %lld comes to `%s` in another order than the first did: a defect of dtm", (long long)rank->step + 1,
                                   rank->plan->instructions[instruction].name);
        return copy_in(rank, g, status);
    }
    const given *last = f->n_givens ? &f->givens[f->n_givens - 1] : NULL;
    given g = {instruction, rank->microbatch, last ? last->offset + aligned(last->bytes) : 0, bytes};
    if (f->n_givens == f->cap_givens || g.offset + bytes > f->given_bytes)
        return dtm_status_fail(status, "more goes into a step than was counted: a defect of dtm");
    f->givens[f->n_givens++] = g;
    int slot = (int)(rank->step % SLOTS);
    return get(rank, instruction, f->given_slots[slot] + g.offset, status) && send_one(rank, slot, &g, status) && copy_in(rank, &g, status);
}

/* The number in every element: nothing that changes. */
static bool fill(dtm_rank *rank, const dtm_plan_scalar *scalar, dtm_status *status) {
    dtm_device *device = rank->device;
    const dtm_driver *driver = device->driver;
    dtm_plan_dtype dtype = rank->plan->buffers[scalar->buffer].dtype;
    size_t bytes = (size_t)block_bytes(rank, scalar->buffer), whole = bytes / 4 * 4;
    dtm_cu_pointer at = address(rank, scalar->buffer);
    unsigned char one[4];
    dtm_cu_result result = DTM_CU_SUCCESS;
    dtm_number_as(dtype, scalar->beta, one);
    if (dtm_plan_dtype_bytes(dtype) < 2) memset(one, one[0], sizeof one);
    if (dtm_plan_dtype_bytes(dtype) == 2) memcpy(one + 2, one, 2);
    unsigned word;
    memcpy(&word, one, sizeof word);
    if (whole) result = driver->MemsetD32Async(at, word, whole / 4, device->compute);
    for (size_t i = whole; !result && i < bytes; i++) result = driver->MemsetD8Async(at + i, one[i - whole], 1, device->compute);
    return dtm_device_check(device, result, status, "a number in %zu bytes", bytes);
}

bool dtm_feed_scalar(dtm_rank *rank, uint32_t instruction, dtm_status *status) {
    const dtm_plan_scalar *scalar = &rank->plan->instructions[instruction].scalar;
    return scalar->number == DTM_PLAN_FILL ? fill(rank, scalar, status) : give(rank, instruction, scalar->buffer, status);
}

bool dtm_feed_input(dtm_rank *rank, uint32_t instruction, dtm_status *status) {
    return give(rank, instruction, rank->plan->instructions[instruction].io.buffer, status);
}

/* ---- what comes out ---- */

bool dtm_feed_report(dtm_rank *rank, uint32_t instruction, dtm_status *status) {
    dtm_device *device = rank->device;
    dtm_feed *f = device->feed;
    const dtm_plan_io *io = &rank->plan->instructions[instruction].io;
    if (f->next_told == f->cap_tells) return dtm_status_fail(status, "more comes out of a step than was counted: a defect of dtm");
    dtm_cu_pointer to = device->memory + (dtm_cu_pointer)(f->told_at + 8 * (dtm_device_errors(device) + (int64_t)f->next_told));
    size_t bytes = (size_t)dtm_plan_dtype_bytes(rank->plan->buffers[io->buffer].dtype);
    f->tells[f->next_told++].instruction = instruction;
    if (f->next_told > f->n_tells) f->n_tells = f->next_told;
    return dtm_device_check(device, device->driver->MemcpyDtoDAsync(to, address(rank, io->buffer), bytes, device->compute), status, "`%s`", io->name);
}

bool dtm_feed_end(dtm_rank *rank, dtm_status *status) {
    dtm_device *device = rank->device;
    dtm_feed *f = device->feed;
    int slot = (int)(rank->step % SLOTS);
    f->known = true;
    f->rates[slot] = rank->learning_rate;
    dtm_cu_result result = DTM_CU_SUCCESS;
    if (f->told_bytes)
        result = device->driver->MemcpyDtoHAsync(f->told_slots[slot], device->memory + (dtm_cu_pointer)f->told_at, (size_t)f->told_bytes, device->compute);
    if (!result) result = device->driver->EventRecord(f->ready[slot], device->compute);
    return dtm_device_check(device, result, status, "what step %lld tells", (long long)rank->step + 1);
}

static double number_of(dtm_plan_dtype dtype, const void *at) {
    switch (dtype) {
    case DTM_PLAN_F32: return (double)*(const float *)at;
    case DTM_PLAN_I32: return *(const int32_t *)at;
    case DTM_PLAN_BF16: return (double)dtm_of_bf16(*(const uint16_t *)at);
    case DTM_PLAN_F16: return (double)dtm_of_f16(*(const uint16_t *)at);
    default: return *(const uint8_t *)at;
    }
}

bool dtm_feed_take(dtm_rank *rank, int64_t step, dtm_status *status) {
    dtm_device *device = rank->device;
    dtm_feed *f = device->feed;
    int slot = (int)(step % SLOTS);
    int64_t errors = dtm_device_errors(device), under_way = rank->step;
    if (f->steps[slot] != step) return dtm_status_fail(status, "what step %lld tells was not kept: a defect of dtm", (long long)step + 1);
    if (!dtm_fault(157) && !dtm_device_wait(rank, f->ready[slot], status, "step %lld", (long long)step + 1)) return false;
    f->steps[slot] = -1;
    rank->step = step;
    rank->learning_rate = f->rates[slot];
    rank->n_reports = 0;
    for (size_t i = 0; i < f->n_tells; i++) {
        const dtm_plan_io *io = &rank->plan->instructions[f->tells[i].instruction].io;
        double value = number_of(rank->plan->buffers[io->buffer].dtype, f->told_slots[slot] + 8 * (errors + (int64_t)i));
        rank->reports[rank->n_reports++] = (dtm_log_report){io->name, value};
    }
    bool ok = dtm_device_bad_input(rank, (const int64_t *)f->told_slots[slot], status);
    rank->step = under_way;
    return ok;
}
