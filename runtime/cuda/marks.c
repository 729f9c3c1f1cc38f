/* How far a step has come, for the message of a launch that fails: the context is lost with it, and kernels ran long after they were given.
 *
 *     host's memory   | number of the launch that began last | number of the step under way |
 *                           ^ each kernel, as it begins            ^ the stream, between steps
 *
 * What is given to `compute` is numbered from 1 in each walk through the plan, so that a graph keeps the numbers. Products by cuBLASLt have
 * a number and store nothing: they lie between two that do. What goes between ranks is told by the stamps of its streams (nccl.h). */
#include "runtime/cuda/device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAUNCH, STEP, WORDS };

typedef struct given {
    const dtm_plan_instruction *at; /* NULL: of none */
    const char *kernel;             /* NULL: a product by cuBLASLt */
    int64_t microbatch, copy;
} given;

struct dtm_marks {
    volatile uint32_t *words;
    dtm_cu_pointer on_device;
    given *givens;
    uint32_t n, room;
};

bool dtm_marks_open(dtm_device *device, dtm_status *status) {
    const dtm_driver *driver = device->driver;
    dtm_marks *m = device->marks = calloc(1, sizeof *m);
    void *words = NULL;
    if (!m) return dtm_status_fail(status, "out of memory for how far a step has come");
    dtm_cu_result result = driver->MemHostAlloc(&words, WORDS * sizeof(uint32_t), DTM_CU_HOST_PORTABLE | DTM_CU_HOST_MAPPED);
    if (!result) memset(words, 0, WORDS * sizeof(uint32_t));
    m->words = words;
    if (!result) result = driver->MemHostGetDevicePointer(&m->on_device, words, 0);
    return dtm_device_check(device, result, status, "memory for how far a step has come");
}

void dtm_marks_free(dtm_device *device) {
    dtm_marks *m = device->marks;
    if (!m) return;
    if (m->words) device->driver->MemFreeHost((void *)m->words);
    free(m->givens);
    free(m);
    device->marks = NULL;
}

void dtm_marks_walk(dtm_device *device) { device->marks->n = 0; }

bool dtm_marks_step(dtm_rank *rank, dtm_status *status) {
    dtm_device *device = rank->device;
    const dtm_driver *driver = device->driver;
    dtm_cu_pointer at = device->marks->on_device;
    dtm_cu_result result = driver->StreamWriteValue32(device->compute, at + LAUNCH * sizeof(uint32_t), 0, 0);
    if (!result) result = driver->StreamWriteValue32(device->compute, at + STEP * sizeof(uint32_t), (uint32_t)rank->step + 1, 0);
    return dtm_device_check(device, result, status, "the beginning of step %lld", (long long)rank->step + 1);
}

/* Memory grows in the first walk: all consist of the same. */
static bool add(dtm_device *device, const char *kernel, dtm_status *status) {
    dtm_marks *m = device->marks;
    const dtm_rank *rank = device->owner;
    if (m->n == m->room) {
        uint32_t more = 2 * m->room + 256;
        given *moved = realloc(m->givens, more * sizeof *moved);
        if (!moved) return dtm_status_fail(status, "out of memory for how far a step has come");
        m->givens = moved;
        m->room = more;
    }
    m->givens[m->n++] = (given){device->last, kernel, rank->microbatch, rank->copy_number};
    return true;
}

bool dtm_mark_kernel(dtm_device *device, const char *kernel, dtm_mark *out, dtm_status *status) {
    if (!add(device, kernel, status)) return false;
    *out = (dtm_mark){device->marks->on_device + LAUNCH * sizeof(uint32_t), device->marks->n, 0};
    return true;
}

bool dtm_mark_product(dtm_device *device, dtm_status *status) { return add(device, NULL, status); }

/* ---- messages ---- */

__attribute__((format(printf, 3, 4))) static void say(char *out, size_t size, const char *format, ...) {
    size_t length = strlen(out);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out + length, size - length, format, arguments);
    va_end(arguments);
}

/* "`h.norm` (llama.dtm, line 12)" */
static void say_name(const given *g, char *out, size_t size) {
    const dtm_plan_instruction *at = g->at;
    say(out, size, "`%s`", at && at->name ? at->name : g->kernel ? g->kernel : "a product");
    if (at && at->line) say(out, size, " (%s%sline %u)", at->file ? at->file : "", at->file ? ", " : "", at->line);
}

/* The innermost repeat that the instruction stands in, of layers; 0: none. */
static uint32_t repeat_of(const dtm_plan *plan, const dtm_plan_instruction *at) {
    uint32_t loop = 0, index = (uint32_t)(at - plan->instructions);
    for (uint32_t i = 0; i < index; i++) {
        const dtm_plan_instruction *r = &plan->instructions[i];
        if (r->kind == DTM_PLAN_REPEAT && r->repeat.end > index && !plan->loops[r->repeat.loop].microbatch) loop = r->repeat.loop;
    }
    return loop;
}

/* "`y` (llama.dtm, line 12), kernel fused_3, copy 2 of its repeat, microbatch 1" */
static void say_given(const dtm_rank *rank, const given *g, char *out, size_t size) {
    say_name(g, out, size);
    if (g->kernel) say(out, size, ", kernel %s", g->kernel);
    if (g->at && repeat_of(rank->plan, g->at)) say(out, size, ", copy %lld of its repeat", (long long)g->copy);
    if (rank->plan->microbatches > 1) say(out, size, ", microbatch %lld", (long long)g->microbatch);
}

/* Products that nothing was heard of: those after the last that began, up to the next one that would tell. */
static void say_silent(const dtm_marks *m, uint32_t from, char *out, size_t size) {
    uint32_t end = from;
    while (end < m->n && !m->givens[end].kernel) end++;
    if (end == from) return;
    say(out, size, ", or after it in a product by cuBLASLt, ");
    say_name(&m->givens[from], out, size);
    if (end - from > 1) say(out, size, " or one of the %u that follow it", end - from - 1);
}

void dtm_marks_say(dtm_device *device, char *out, size_t size) {
    const dtm_marks *m = device->marks;
    *out = 0;
    if (!m || !m->words) return;
    uint32_t begun = m->words[LAUNCH], step = m->words[STEP];
    char beside[400] = "";
    if (begun > m->n) begun = 0;
    /* Where each operation is waited for, a product that was given is the one. */
    if (device->each_waits && m->n && !m->givens[m->n - 1].kernel) begun = m->n;
    say(out, size, " in ");
    if (begun) say_given(device->owner, &m->givens[begun - 1], out, size);
    else say(out, size, "what comes before the first kernel");
    if (step) say(out, size, ", launch %u of step %u", begun, step);
    else say(out, size, ", before the first step");
    if (!device->each_waits) say_silent(m, begun, out, size);
    dtm_cuda_comms_say(device->owner, beside, sizeof beside);
    if (*beside) say(out, size, ", or beside it in %s", beside);
    if (begun < 2) return;
    say(out, size, "; ");
    say_name(&m->givens[begun - 2], out, size);
    say(out, size, " before it has ended");
}
