/* A pipeline's messages between GPUs by an RDMA adapter (`--p2p verbs`), through pinned host memory:
 *
 *     start of a send       device --copy--> slot, the host waits for it      slot --RDMA--> the other rank's slot
 *     start of a receive    its place, the slot, is told to the sender
 *     end of a receive      the host waits for it; slot --copy--> device, in the order of `compute`
 *
 * A message has a slot of its own in each microbatch. The host takes part in it, so steps are not captured in graphs. */
#include "ir/fault.h"
#include "runtime/cuda/device.h"

#include <stdlib.h>

struct dtm_bounce {
    char *slots; /* pinned */
    int64_t bytes;
    int64_t *offsets, *strides; /* by instruction: of its slot in microbatch 0, and from one to the next */
    dtm_cu_event *taken;        /* by instruction and microbatch, of a receive: the device has what its slot had */
    bool *was_taken;
};

static bool is_message(const dtm_plan_instruction *at) { return at->kind == DTM_PLAN_SEND || at->kind == DTM_PLAN_RECEIVE; }

static int64_t bytes_of(const dtm_rank *rank, uint32_t buffer) {
    dtm_box box = dtm_rank_box(rank, buffer);
    return dtm_box_elements(&box) * dtm_plan_dtype_bytes(rank->plan->buffers[buffer].dtype);
}

static int64_t bytes_of_all(const dtm_rank *rank, const dtm_plan_message *m) {
    int64_t bytes = 0;
    for (uint32_t i = 0; i < m->buffers.count; i++) bytes += (bytes_of(rank, m->buffers.items[i]) + 255) / 256 * 256;
    return bytes;
}

static void place_slots(dtm_rank *rank, struct dtm_bounce *b) {
    for (int64_t m = 0; m < rank->plan->microbatches; m++) {
        dtm_rank_set_microbatch(rank, m, false, false);
        for (uint32_t i = 0; i < rank->plan->n_instructions; i++) {
            const dtm_plan_instruction *at = &rank->plan->instructions[i];
            int64_t bytes = is_message(at) ? bytes_of_all(rank, &at->message) : 0;
            if (bytes > b->strides[i]) b->strides[i] = bytes;
        }
    }
    dtm_rank_set_microbatch(rank, 0, false, false);
    for (uint32_t i = 0; i < rank->plan->n_instructions; i++) {
        b->offsets[i] = b->bytes;
        b->bytes += b->strides[i] * rank->plan->microbatches;
    }
}

bool dtm_bounce_open(dtm_rank *rank, dtm_status *status) {
    const dtm_plan *plan = rank->plan;
    dtm_device *device = rank->device;
    size_t instructions = (size_t)plan->n_instructions + 1, microbatches = (size_t)plan->microbatches;
    struct dtm_bounce *b = device->bounce = calloc(1, sizeof *b);
    if (!b) return dtm_status_fail(status, "out of memory for messages");
    b->offsets = calloc(2 * instructions, sizeof *b->offsets);
    b->taken = calloc(instructions * microbatches, sizeof *b->taken);
    b->was_taken = calloc(instructions * microbatches, sizeof *b->was_taken);
    if (!b->offsets || !b->taken || !b->was_taken) return dtm_status_fail(status, "out of memory for messages");
    b->strides = b->offsets + instructions;
    place_slots(rank, b);
    bool ok = dtm_device_check(device, device->driver->MemHostAlloc((void **)&b->slots, (size_t)b->bytes + 1, DTM_CU_HOST_PORTABLE), status,
                               "%lld bytes of pinned memory for messages", (long long)b->bytes);
    for (uint32_t i = 0; ok && i < plan->n_instructions; i++)
        for (size_t m = 0; ok && m < microbatches && plan->instructions[i].kind == DTM_PLAN_RECEIVE; m++)
            ok = dtm_device_event(device, &b->taken[i * microbatches + m], status);
    return ok;
}

void *dtm_bounce_memory(const dtm_device *device, int64_t *bytes) {
    *bytes = device->bounce->bytes + 1;
    return device->bounce->slots;
}

void dtm_bounce_free(dtm_device *device) {
    struct dtm_bounce *b = device->bounce;
    if (!b) return;
    if (b->slots) device->driver->MemFreeHost(b->slots);
    free(b->offsets);
    free(b->taken);
    free(b->was_taken);
    free(b);
    device->bounce = NULL;
}

void dtm_bounce_poke(void *argument) {
    const dtm_device *device = argument;
    device->driver->StreamQuery(device->compute);
}

/* Copies between a message's buffers and its slot. */
static bool copy(dtm_rank *rank, uint32_t instruction, bool to_slot, dtm_status *status) {
    const dtm_device *device = rank->device;
    const dtm_plan_instruction *at = &rank->plan->instructions[instruction];
    char *slot = device->bounce->slots + device->bounce->offsets[instruction] + rank->microbatch * device->bounce->strides[instruction];
    dtm_cu_result result = DTM_CU_SUCCESS;
    for (uint32_t i = 0; i < at->message.buffers.count && !result; i++) {
        int64_t bytes = bytes_of(rank, at->message.buffers.items[i]);
        dtm_cu_pointer data = (dtm_cu_pointer)(uintptr_t)dtm_rank_buffer(rank, at->message.buffers.items[i]);
        if (bytes && to_slot) result = device->driver->MemcpyDtoHAsync(slot, data, (size_t)bytes, device->compute);
        else if (bytes) result = device->driver->MemcpyHtoDAsync(data, slot, (size_t)bytes, device->compute);
        slot += (bytes + 255) / 256 * 256;
    }
    return dtm_device_check(rank->device, result, status, "a copy of a message, %s", at->name);
}

bool dtm_bounce_start(dtm_rank *rank, uint32_t instruction, dtm_status *status) {
    struct dtm_bounce *b = rank->device->bounce;
    size_t index = instruction * (size_t)rank->plan->microbatches + (size_t)rank->microbatch;
    if (rank->plan->instructions[instruction].kind == DTM_PLAN_SEND)
        return copy(rank, instruction, true, status) && (dtm_fault(131) || dtm_device_finish(rank, status));
    /* What the slot had before must be on the device. */
    bool waits = b->was_taken[index];
    b->was_taken[index] = false;
    return !waits || dtm_device_wait(rank, b->taken[index], status, "%s of the step before", rank->plan->instructions[instruction].name);
}

void *dtm_bounce_place(const dtm_rank *rank, uint32_t instruction, uint32_t buffer) {
    const struct dtm_bounce *b = rank->device->bounce;
    const dtm_plan_message *m = &rank->plan->instructions[instruction].message;
    char *slot = b->slots + b->offsets[instruction] + rank->microbatch * b->strides[instruction];
    for (uint32_t i = 0; i < buffer; i++) slot += (bytes_of(rank, m->buffers.items[i]) + 255) / 256 * 256;
    return slot;
}

bool dtm_bounce_finish(dtm_rank *rank, uint32_t instruction, dtm_status *status) {
    dtm_device *device = rank->device;
    size_t index = instruction * (size_t)rank->plan->microbatches + (size_t)rank->microbatch;
    if (rank->plan->instructions[instruction].kind == DTM_PLAN_SEND) return true;
    device->bounce->was_taken[index] = true;
    return copy(rank, instruction, false, status) &&
           dtm_device_check(device, device->driver->EventRecord(device->bounce->taken[index], device->compute), status, "an event");
}
