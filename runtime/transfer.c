/* Collectives of a plan, and copies between blocks. Which elements go where follows from the boxes of the buffers alone
 * (runtime/plan.h). A part, what one member sends or gets of all tensors of a collective, is packed row-major:
 *
 *     inputs --pack--> stage_in  --collective-->  stage_out --unpack--> outputs
 *
 *     stage_in    | part for member 0 | part for member 1 | ..       a part: | box of tensor 0 | box of tensor 1 | ..
 *
 * Where a stage is -1 the tensor itself is that memory; where stage_in is DTM_PLAN_IN_OUTPUT it is the output's, to which
 * nothing is written before all has been sent. A bucket that goes on from another (DTM_PLAN_HANDED_ON) works where
 * that one ends:
 *
 *     inputs --pack--> stage_in  --collective-->  stage_out  --the one after it-->  stage_out  --unpack--> outputs of that one */
#include "ir/fault.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/nccl.h"
#include "runtime/rank.h"

#include "kernels/cpu/pack.h"

#include <string.h>

/* Copies below this are not worth waking threads. */
static const int64_t ALONE_BYTES = 64 << 10;

/* ---- boxes ---- */

typedef struct pack_job {
    const dtm_kernel_entry *pack;
    dtm_kernel_args args;
} pack_job;

static void run_pack(void *argument, int64_t begin, int64_t end, int thread) {
    const pack_job *job = argument;
    (void)thread;
    job->pack->run(&job->args, begin, end);
}

void dtm_copy_box(dtm_rank *rank, int64_t element_bytes, const void *from, const dtm_box *from_block, void *to,
                  const dtm_box *to_block, const dtm_box *what) {
    dtm_pack_sizes sizes = {.rank = what->rank, .bytes = element_bytes};
    int64_t from_stride = 1, to_stride = 1, elements = dtm_box_elements(what);
    if (elements == 0 || rank->options->simulate || rank->rehearses) return;
    for (int d = what->rank - 1; d >= 0; d--) {
        sizes.size[d] = what->spans[d].size;
        sizes.from[d] = from_stride;
        sizes.to[d] = to_stride;
        sizes.from_offset += (what->spans[d].begin - from_block->spans[d].begin) * from_stride;
        sizes.to_offset += (what->spans[d].begin - to_block->spans[d].begin) * to_stride;
        from_stride *= from_block->spans[d].size;
        to_stride *= to_block->spans[d].size;
    }
    if (rank->device) {
        dtm_device_copy(rank->device, rank->device->compute, &sizes, from, to, &rank->device->failure);
        return;
    }
    void *buffers[2] = {[DTM_PACK_FROM] = (void *)from, [DTM_PACK_TO] = to};
    pack_job job = {rank->pack, {.buffers = buffers, .sizes = (const int64_t *)&sizes}};
    int64_t extent = rank->pack->extent(job.args.sizes);
    if (elements * element_bytes < ALONE_BYTES)
        run_pack(&job, 0, extent, 0);
    else
        dtm_pool_run(rank->pool, run_pack, &job, extent, 1);
}

void dtm_run_copy(dtm_rank *rank, const dtm_plan_copy *copy) {
    dtm_box from = dtm_rank_box(rank, copy->input), to = dtm_rank_box(rank, copy->output);
    dtm_box common = dtm_box_common(&from, &to);
    int64_t bytes = dtm_plan_dtype_bytes(rank->plan->buffers[copy->output].dtype);
    dtm_copy_box(rank, bytes, dtm_rank_buffer(rank, copy->input), &from, dtm_rank_buffer(rank, copy->output), &to,
                 &common);
}

void dtm_run_term(dtm_rank *rank, const dtm_plan_copy *copy) {
    bool first = true;
    for (uint32_t a = 0; a < rank->plan->n_axes; a++)
        first = first && (!(copy->axes >> a & 1) || rank->coordinates[a] == 0);
    void *to = dtm_rank_buffer(rank, copy->output);
    dtm_box box = dtm_rank_box(rank, copy->output);
    int64_t bytes = dtm_box_elements(&box) * dtm_plan_dtype_bytes(rank->plan->buffers[copy->output].dtype);
    if (!first && !dtm_fault(8) && rank->device)
        dtm_device_clear(rank->device, rank->device->compute, to, bytes, &rank->device->failure);
    else if (!first && !dtm_fault(8))
        memset(to, 0, (size_t)bytes);
    else if (to != dtm_rank_buffer(rank, copy->input))
        dtm_run_copy(rank, copy);
}

/* ---- the parts of a collective ---- */

typedef struct member {
    int64_t coordinates[DTM_PLAN_AXES];
} member;

static member member_of(const dtm_rank *rank, const dtm_transfer *t, int index) {
    member m;
    dtm_coordinates_of(rank->plan, dtm_group_rank(t->group, index), m.coordinates);
    if (rank->time_axis >= 0) m.coordinates[rank->time_axis] = rank->coordinates[rank->time_axis];
    return m;
}

/* In an exchange a member sends only to those that are where it is on the axes that do not split the input. */
static bool may_exchange(const dtm_rank *rank, const dtm_plan_collective *c, const dtm_plan_tensor *tensor,
                         const member *other) {
    if (c->kind != DTM_COLLECTIVE_ALL_TO_ALL) return true;
    uint16_t axes = c->axes & (uint16_t)~dtm_buffer_axes(rank->plan, tensor->input);
    for (uint32_t a = 0; a < rank->plan->n_axes; a++)
        if ((axes >> a & 1) && rank->coordinates[a] != other->coordinates[a]) return false;
    return true;
}

/* What of a tensor this rank sends to `other` (what it keeps included), or gets from it. */
static dtm_box part_for(const dtm_rank *rank, const dtm_plan_collective *c, const dtm_plan_tensor *tensor,
                        const member *other, bool sends) {
    const int64_t *from = sends ? rank->coordinates : other->coordinates;
    const int64_t *to = sends ? other->coordinates : rank->coordinates;
    dtm_box in = dtm_buffer_box(rank->plan, tensor->input, from);
    if (c->kind == DTM_COLLECTIVE_ALL_REDUCE || c->kind == DTM_COLLECTIVE_ALL_GATHER) return in;
    dtm_box out = dtm_buffer_box(rank->plan, tensor->output, to);
    if (c->kind == DTM_COLLECTIVE_REDUCE_SCATTER) return out;
    dtm_box common = dtm_box_common(&in, &out);
    if (!may_exchange(rank, c, tensor, other) && common.rank) common.spans[0].size = 0;
    return common;
}

static int64_t part_elements(const dtm_rank *rank, const dtm_plan_collective *c, const member *other, bool sends) {
    int64_t elements = 0;
    for (uint32_t n = 0; n < c->count; n++) {
        dtm_box part = part_for(rank, c, &c->tensors[n], other, sends);
        elements += dtm_box_elements(&part);
    }
    return elements;
}

void dtm_transfer_count(dtm_rank *rank, uint32_t instruction) {
    const dtm_plan_collective *c = &rank->plan->instructions[instruction].collective;
    dtm_transfer *t = &rank->transfers[instruction];
    int64_t bytes = dtm_plan_dtype_bytes(c->dtype);
    for (int i = 0; i < dtm_group_members(t->group); i++) {
        member other = member_of(rank, t, i);
        switch (c->kind) {
        case DTM_COLLECTIVE_ALL_REDUCE:
        case DTM_COLLECTIVE_REDUCE_SCATTER:
            t->sent[i] = part_elements(rank, c, &other, true);
            break;
        case DTM_COLLECTIVE_ALL_GATHER:
            t->sent[i] = part_elements(rank, c, &other, false) * bytes;
            break;
        default:
            t->sent[i] = part_elements(rank, c, &other, true) * bytes;
            t->received[i] = part_elements(rank, c, &other, false) * bytes;
        }
    }
}

/* ---- packing ---- */

/* Packs the part for one member, or unpacks the one from it. Returns its end. */
static char *move_part(dtm_rank *rank, const dtm_plan_collective *c, const member *other, bool packs, char *stage) {
    int64_t bytes = dtm_plan_dtype_bytes(c->dtype);
    for (uint32_t n = 0; n < c->count; n++) {
        const dtm_plan_tensor *tensor = &c->tensors[n];
        uint32_t buffer = packs ? tensor->input : tensor->output;
        dtm_box part = part_for(rank, c, tensor, other, packs), block = dtm_rank_box(rank, buffer);
        void *memory = dtm_rank_buffer(rank, buffer);
        if (packs)
            dtm_copy_box(rank, bytes, memory, &block, stage, &part, &part);
        else
            dtm_copy_box(rank, bytes, stage, &part, memory, &block, &part);
        stage += dtm_box_elements(&part) * bytes;
    }
    return stage;
}

static member self(const dtm_rank *rank) {
    member m;
    memcpy(m.coordinates, rank->coordinates, sizeof m.coordinates);
    return m;
}

/* Reductions of everything and gathers send one part, the others one to each member. */
static void pack(dtm_rank *rank, const dtm_plan_collective *c, const dtm_transfer *t, char *stage) {
    member own = self(rank);
    if (c->kind == DTM_COLLECTIVE_ALL_REDUCE || c->kind == DTM_COLLECTIVE_ALL_GATHER) {
        move_part(rank, c, &own, true, stage);
        return;
    }
    for (int i = 0; i < dtm_group_members(t->group); i++) {
        member other = member_of(rank, t, i);
        stage = move_part(rank, c, &other, true, stage);
    }
}

static void unpack(dtm_rank *rank, const dtm_plan_collective *c, const dtm_transfer *t, char *stage) {
    member own = self(rank);
    if (c->kind == DTM_COLLECTIVE_ALL_REDUCE || c->kind == DTM_COLLECTIVE_REDUCE_SCATTER) {
        move_part(rank, c, &own, false, stage);
        return;
    }
    for (int i = 0, n = dtm_group_members(t->group); i < n; i++) {
        member other = member_of(rank, t, dtm_fault(24) && c->kind == DTM_COLLECTIVE_ALL_TO_ALL ? n - 1 - i : i);
        stage = move_part(rank, c, &other, false, stage);
    }
}

void dtm_move_member(dtm_rank *rank, uint32_t instruction, int index, bool packs) {
    const dtm_plan_collective *c = &rank->plan->instructions[instruction].collective;
    const dtm_transfer *t = &rank->transfers[instruction];
    int64_t at = packs ? c->stage_in : c->stage_out, bytes = dtm_plan_dtype_bytes(c->dtype);
    if (at < 0) return; /* in place */
    for (int i = 0; i < index; i++) {
        member other = member_of(rank, t, i);
        at += part_elements(rank, c, &other, packs) * bytes;
    }
    member other = member_of(rank, t, index);
    move_part(rank, c, &other, packs, rank->arena + at);
}

/* ---- running ---- */

typedef struct place {
    char *in, *out;
    void *scratch;
} place;

/* In the copies of the loops that the rank is in. */
static place place_of(const dtm_rank *rank, uint32_t instruction) {
    const dtm_plan_instruction *i = &rank->plan->instructions[instruction];
    const dtm_plan_collective *c = &i->collective;
    uint32_t loop = rank->transfers[instruction].loop;
    uint32_t in_place = c->stage_in == DTM_PLAN_IN_OUTPUT ? c->tensors[0].output : c->tensors[0].input;
    char *arena = rank->arena + c->stage_stride * (c->stage_stride && !dtm_fault(107) ? rank->copies[loop] : 0);
    place at = {c->stage_in < 0 ? dtm_rank_buffer(rank, in_place) : arena + c->stage_in,
                c->stage_out < 0 ? dtm_rank_buffer(rank, c->tensors[0].output) : arena + c->stage_out,
                c->scratch < 0 ? NULL : arena + c->scratch};
    if (c->stage_in == DTM_PLAN_HANDED_ON) at.in = at.out = place_of(rank, rank->events[i->after]).out;
    return at;
}

/* Whether what it makes has to be unpacked, by it or by one that goes on from it. */
static bool is_packed(const dtm_plan_collective *c) { return c->stage_out >= 0 || c->stage_out == DTM_PLAN_HANDED_ON; }

static void prepare(dtm_rank *rank, uint32_t instruction, const place *at, bool packs) {
    const dtm_plan_collective *c = &rank->plan->instructions[instruction].collective;
    dtm_transfer *t = &rank->transfers[instruction];
    if (rank->device) rank->device->last = &rank->plan->instructions[instruction];
    if (t->changes && !dtm_fault(34)) dtm_transfer_count(rank, instruction);
    if (c->stage_in != -1 && c->stage_in != DTM_PLAN_HANDED_ON && packs) pack(rank, c, t, at->in);
    dtm_group_label(t->group, t->label);
}

static dtm_reduction reduction_of(const dtm_plan_collective *c) { return c->max ? DTM_REDUCTION_MAX : DTM_REDUCTION_SUM; }
static dtm_reduce_type type_of(const dtm_plan_collective *c) {
    return c->dtype == DTM_PLAN_I32   ? DTM_REDUCE_I32
           : c->dtype == DTM_PLAN_BF16 ? DTM_REDUCE_BF16
           : c->dtype == DTM_PLAN_F16  ? DTM_REDUCE_F16
                                       : DTM_REDUCE_F32;
}

static bool end_on_device(dtm_rank *rank, uint32_t instruction, char *out, dtm_status *status) {
    const dtm_plan_collective *c = &rank->plan->instructions[instruction].collective;
    const dtm_transfer *t = &rank->transfers[instruction];
    rank->device->last = &rank->plan->instructions[instruction];
    if (is_packed(c) && !c->hands_on) unpack(rank, c, t, out);
    return !rank->device->failure.failed || dtm_status_fail(status, "%s", rank->device->failure.message);
}

bool dtm_run_collective(dtm_rank *rank, uint32_t instruction, dtm_status *status) {
    const dtm_plan_collective *c = &rank->plan->instructions[instruction].collective;
    dtm_transfer *t = &rank->transfers[instruction];
    place at = place_of(rank, instruction);
    bool ok;
    prepare(rank, instruction, &at, true);
    if (rank->device) {
        if (!dtm_cuda_collective_start(rank, instruction, at.in, at.out, status) || !dtm_cuda_collective_wait(rank, instruction, status)) return false;
        return end_on_device(rank, instruction, at.out, status);
    }
    switch (c->kind) {
    case DTM_COLLECTIVE_ALL_REDUCE:
        ok = dtm_all_reduce(t->group, c->algorithm, reduction_of(c), type_of(c), at.in, at.out, t->sent[0], at.scratch, status);
        break;
    case DTM_COLLECTIVE_REDUCE_SCATTER:
        ok = dtm_reduce_scatter(t->group, c->algorithm, reduction_of(c), type_of(c), at.in, at.out, t->sent, at.scratch, status);
        break;
    case DTM_COLLECTIVE_ALL_GATHER:
        ok = dtm_all_gather(t->group, c->algorithm, at.in, at.out, t->sent, status);
        break;
    default:
        ok = dtm_all_to_all(t->group, c->algorithm, at.in, t->sent, at.out, t->received, status);
    }
    dtm_group_label(t->group, NULL);
    if (ok && is_packed(c) && !c->hands_on) unpack(rank, c, t, at.out);
    return ok;
}

/* Where this rank's part of what is gathered lies among the others', to which it is copied: then nothing reads the input later. */
static char *own_part(dtm_rank *rank, const dtm_plan_collective *c, const dtm_transfer *t, const place *at) {
    char *own = at->out;
    for (int i = 0; i < dtm_group_index(t->group); i++) own += t->sent[i];
    dtm_box box = dtm_rank_box(rank, c->tensors[0].input);
    dtm_copy_box(rank, dtm_plan_dtype_bytes(c->dtype), at->in, &box, own, &box, &box);
    return own;
}

bool dtm_start_collective(dtm_rank *rank, uint32_t instruction, dtm_collective_request *r, bool in_steps, bool *going,
                          dtm_status *status) {
    const dtm_plan_collective *c = &rank->plan->instructions[instruction].collective;
    dtm_transfer *t = &rank->transfers[instruction];
    *going = dtm_group_members(t->group) > 1;
    if (!*going) return true; /* it is run in one go */
    place at = place_of(rank, instruction);
    bool ok;
    prepare(rank, instruction, &at, !in_steps);
    if (rank->device) return dtm_cuda_collective_start(rank, instruction, at.in, at.out, status);
    if (in_steps) dtm_group_step(t->group);
    if (in_steps && c->kind == DTM_COLLECTIVE_ALL_GATHER) at.in = own_part(rank, c, t, &at);
    if (c->kind == DTM_COLLECTIVE_ALL_REDUCE)
        ok = dtm_all_reduce_start(t->group, c->algorithm, reduction_of(c), type_of(c), at.in, at.out, t->sent[0], at.scratch, r, status);
    else if (c->kind == DTM_COLLECTIVE_REDUCE_SCATTER)
        ok = dtm_reduce_scatter_start(t->group, c->algorithm, reduction_of(c), type_of(c), at.in, at.out, t->sent, at.scratch, r, status);
    else if (c->kind == DTM_COLLECTIVE_ALL_GATHER)
        ok = dtm_all_gather_start(t->group, c->algorithm, at.in, at.out, t->sent, r, status);
    else
        ok = dtm_all_to_all_start(t->group, c->algorithm, at.in, t->sent, at.out, t->received, r, status);
    dtm_group_label(t->group, NULL);
    return ok;
}

bool dtm_finish_collective(dtm_rank *rank, uint32_t instruction, dtm_collective_request *request, dtm_status *status) {
    const dtm_plan_collective *c = &rank->plan->instructions[instruction].collective;
    dtm_transfer *t = &rank->transfers[instruction];
    place at = place_of(rank, instruction);
    if (rank->device) return dtm_cuda_collective_wait(rank, instruction, status) && end_on_device(rank, instruction, at.out, status);
    if (!dtm_collective_wait(request, status)) return false;
    if (is_packed(c) && !c->hands_on) unpack(rank, c, t, at.out);
    return true;
}

/* ---- apart ---- */

/* Copies of the loop and of those around it. */
static void set_copies(dtm_rank *rank, uint32_t loop, int64_t copy) {
    for (; loop; loop = rank->plan->loops[loop].parent) {
        rank->copies[loop] = copy;
        copy /= rank->plan->loops[loop].copies;
    }
}

bool dtm_start_apart(dtm_rank *rank, uint32_t instruction, dtm_status *status) {
    const dtm_plan_instruction *at = &rank->plan->instructions[instruction];
    const dtm_plan_collective *c = &at->collective;
    dtm_transfer *t = &rank->transfers[instruction];
    bool staged = (c->stage_in >= 0 || c->stage_out >= 0) && !c->stage_stride, going; /* the copy before has the same place */
    if (staged && !dtm_wait_event(rank, at->records, status)) return false;
    dtm_transfer *before = at->after ? &rank->transfers[rank->events[at->after]] : NULL;
    dtm_collective_request *next = &t->apart[t->n_apart], *last = before && before->n_apart ? &before->apart[before->n_apart - 1] : NULL;
    bool alone = dtm_group_members(t->group) == 1;
    if (alone && at->after && !dtm_wait_event(rank, at->after, status)) return false;
    if (!alone && !rank->device) dtm_group_stream(t->group, (int)at->stream, dtm_fault(102) ? NULL : last);
    if (!dtm_start_collective(rank, instruction, next, false, &going, status)) return false;
    if (!going) return dtm_run_collective(rank, instruction, status);
    t->apart_copies[t->n_apart++] = rank->copies[t->loop];
    return true;
}

bool dtm_wait_event(dtm_rank *rank, uint32_t event, dtm_status *status) {
    uint32_t instruction = rank->events[event];
    dtm_transfer *t = &rank->transfers[instruction];
    if (!t->n_apart) return true;
    int64_t copy = rank->copies[t->loop];
    bool ok = true;
    for (uint32_t i = 0; ok && i < t->n_apart; i++) {
        set_copies(rank, t->loop, t->apart_copies[i]);
        ok = dtm_finish_collective(rank, instruction, &t->apart[i], status);
    }
    set_copies(rank, t->loop, copy);
    t->n_apart = 0;
    return ok;
}

/* Without a list all of them. */
static bool wait_for(dtm_rank *rank, const uint32_t *events, uint32_t n, dtm_status *status) {
    bool ok = true;
    for (uint32_t i = 0; rank->device && i < n; i++) {
        uint32_t instruction = rank->events[events ? events[i] : i + 1];
        if (rank->transfers[instruction].n_apart && dtm_group_members(rank->transfers[instruction].group) > 1)
            dtm_cuda_collective_expect(rank, instruction);
    }
    for (uint32_t i = 0; ok && i < n; i++) ok = dtm_wait_event(rank, events ? events[i] : i + 1, status);
    return ok;
}

bool dtm_wait_list(dtm_rank *rank, const dtm_plan_list *events, dtm_status *status) { return wait_for(rank, events->items, events->count, status); }
bool dtm_wait_events(dtm_rank *rank, dtm_status *status) { return wait_for(rank, NULL, rank->n_events, status); }

/* ---- messages ---- */

bool dtm_start_message(dtm_rank *rank, uint32_t instruction, dtm_status *status) {
    const dtm_plan_instruction *at = &rank->plan->instructions[instruction];
    const dtm_plan_message *m = &at->message;
    dtm_transfer *t = &rank->transfers[instruction];
    dtm_group *group = m->backward ? rank->backward : rank->forward;
    dtm_request *requests = t->requests + rank->microbatch * m->buffers.count;
    bool ok = true;
    if (rank->device && (!rank->verbs || rank->rehearses)) return dtm_cuda_message_start(rank, instruction, status);
    if (rank->device && !dtm_bounce_start(rank, instruction, status)) return false;
    t->started[rank->microbatch] = 0;
    dtm_group_label(group, t->label);
    dtm_group_microbatch(group, rank->plan->microbatches > 1 ? rank->microbatch : -1);
    for (uint32_t i = 0; ok && i < m->buffers.count; i++) {
        uint32_t buffer = m->buffers.items[i];
        dtm_box box = dtm_rank_box(rank, buffer);
        int64_t bytes = dtm_box_elements(&box) * dtm_plan_dtype_bytes(rank->plan->buffers[buffer].dtype);
        void *data = rank->device ? dtm_bounce_place(rank, instruction, i) : dtm_rank_buffer(rank, buffer);
        if (!bytes) continue;
        dtm_request *request = &requests[t->started[rank->microbatch]++];
        ok = at->kind == DTM_PLAN_SEND ? dtm_send_start(group, (int)m->peer, data, bytes, request, status)
                                       : dtm_receive_start(group, (int)m->peer, data, bytes, request, status);
    }
    dtm_group_label(group, NULL);
    dtm_group_microbatch(group, -1);
    return ok;
}

bool dtm_finish_message(dtm_rank *rank, uint32_t instruction, dtm_status *status) {
    const dtm_plan_message *m = &rank->plan->instructions[instruction].message;
    dtm_transfer *t = &rank->transfers[instruction];
    dtm_group *group = m->backward ? rank->backward : rank->forward;
    if (rank->device && (!rank->verbs || rank->rehearses)) return dtm_cuda_message_wait(rank, instruction, status);
    int count = (int)t->started[rank->microbatch];
    t->started[rank->microbatch] = 0;
    if (dtm_fault(104) && rank->plan->instructions[instruction].kind == DTM_PLAN_RECEIVE) return true;
    dtm_group_label(group, t->label);
    bool ok = !count || dtm_wait(group, t->requests + rank->microbatch * m->buffers.count, count, status);
    dtm_group_label(group, NULL);
    return ok && (!rank->device || dtm_bounce_finish(rank, instruction, status));
}
