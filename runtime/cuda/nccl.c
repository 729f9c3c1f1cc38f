#include "runtime/cuda/nccl_state.h"

#include "ir/fault.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Blocks of a communicator: a share of the multiprocessors each, no more than NCCL has a use for. */
enum { SHARE = 8, MOST_BLOCKS = 16, MOST_MESSAGE_BLOCKS = 4 };

enum { ABORT_SECONDS = 10 };

/* setenv is the process', ranks may be threads of it. */
static pthread_mutex_t environment_lock = PTHREAD_MUTEX_INITIALIZER;

void dtm_cuda_comms_walk(dtm_rank *rank) {
    dtm_cuda_comms *comms = rank->device->comms;
    for (size_t i = 0; comms && i < comms->n_channels; i++) {
        channel *c = &comms->channels[i];
        c->n_carried = c->waited = 0;
        c->expected = NULL;
    }
}

/* ---- the rehearsal ---- */

static uint64_t mix(uint64_t hash, int64_t value) { return (hash ^ (uint64_t)value) * 0x100000001b3u; }

/* What all ranks of a channel have to agree on: of a message, and of an exchange, not which part is whose. */
static uint64_t call_of(const dtm_rank *rank, uint32_t instruction) {
    const dtm_plan_instruction *at = &rank->plan->instructions[instruction];
    const dtm_plan_collective *c = &at->collective;
    const dtm_transfer *t = &rank->transfers[instruction];
    uint64_t hash = 0xcbf29ce484222325u;
    if (at->kind == DTM_PLAN_COLLECTIVE) {
        hash = mix(mix(mix(hash, c->kind), c->dtype), c->max);
        for (int i = 0; c->kind != DTM_COLLECTIVE_ALL_TO_ALL && i < dtm_group_members(t->group); i++) hash = mix(hash, t->sent[i]);
        return hash;
    }
    for (uint32_t i = 0; i < at->message.buffers.count; i++) {
        dtm_box box = dtm_rank_box(rank, at->message.buffers.items[i]);
        hash = mix(mix(hash, dtm_box_elements(&box)), rank->plan->buffers[at->message.buffers.items[i]].dtype);
    }
    return hash;
}

/* What the channel is given next; memory grows in the first walk alone, which is the rehearsal. */
static bool carry(dtm_rank *rank, uint32_t instruction, channel *c, dtm_status *status) {
    if (c->n_carried == c->cap_carried) {
        uint32_t more = 2 * c->cap_carried + 16;
        carried *moved = realloc(c->carried, more * sizeof *moved);
        if (moved) c->carried = moved;
        uint64_t *calls = moved ? realloc(c->calls, more * sizeof *calls) : NULL;
        if (!calls) return dtm_status_fail(status, "out of memory for what goes between ranks");
        c->calls = calls;
        c->cap_carried = more;
    }
    if (rank->rehearses) c->calls[c->n_carried] = call_of(rank, instruction);
    c->carried[c->n_carried++] = (carried){instruction, rank->plan->microbatches > 1 ? rank->microbatch : -1};
    return true;
}

static bool begin_carrying(dtm_rank *rank, uint32_t instruction, channel *c, dtm_status *status) {
    return carry(rank, instruction, c, status) && nccl_stamp(rank, instruction, c, 0, status);
}

static bool end_carrying(dtm_rank *rank, uint32_t instruction, const channel *c, dtm_cu_event done, dtm_status *status) {
    return nccl_stamp(rank, instruction, c, 1, status) && nccl_check(rank, instruction, rank->device->driver->EventRecord(done, c->stream), status);
}

/* ---- communicators ---- */

/* As much of it as the library's version has. */
static dtm_nccl_config config_of(const dtm_cuda_comms *comms, const char *name, int blocks) {
    dtm_nccl_config c;
    memset(&c, 0, sizeof c);
    c.size = comms->version >= 22800   ? sizeof c
             : comms->version >= 22700 ? offsetof(dtm_nccl_config, channels_per_peer)
                                       : offsetof(dtm_nccl_config, name);
    c.magic = DTM_NCCL_CONFIG_MAGIC;
    c.version = (unsigned)comms->version;
    c.cga_cluster = c.min_ctas = c.split_share = c.traffic_class = c.collnet = c.cta_policy = c.shrink_share = c.nvls_ctas =
        c.channels_per_peer = c.nvlink_centric = DTM_NCCL_UNSET;
    c.max_ctas = blocks ? blocks : DTM_NCCL_UNSET;
    c.name = name;
    return c; /* blocking is 0 */
}

static bool make_world(dtm_rank *rank, dtm_status *status) {
    dtm_cuda_comms *comms = rank->device->comms;
    dtm_comm *comm = rank->comm;
    dtm_nccl_id id;
    memset(&id, 0, sizeof id);
    int result = rank->device->rank == 0 ? comms->nccl->GetUniqueId(&id) : DTM_NCCL_SUCCESS;
    if (result != DTM_NCCL_SUCCESS) nccl_fail(rank, NULL, result, "the id of a communicator", "all ranks", status);
    if (!dtm_comm_agree(comm, status) || !dtm_broadcast(dtm_comm_world(comm), DTM_ALGORITHM_TREE, &id, sizeof id, 0, status)) return false;
    dtm_nccl_config config = config_of(comms, "world", 1);
    result = comms->nccl->CommInitRankConfig(&comms->world, dtm_comm_size(comm), id, dtm_comm_rank(comm), &config);
    nccl_settle(rank, comms->world, result, "a communicator", "all ranks", status);
    return dtm_comm_agree(comm, status);
}

/* All ranks call it; *out is NULL for one that has no part in it (color DTM_NCCL_NO_COLOR). */
static bool split(dtm_rank *rank, const char *name, int color, int key, int blocks, channel **out, dtm_status *status) {
    dtm_cuda_comms *comms = rank->device->comms;
    dtm_nccl_config config = config_of(comms, name, blocks);
    channel *c = &comms->channels[comms->n_channels];
    *out = NULL;
    int result = comms->nccl->CommSplit(comms->world, color, key, &c->comm, &config);
    if (color == DTM_NCCL_NO_COLOR) {
        nccl_settle(rank, comms->world, result, "a communicator for others", name, status);
    } else if (nccl_settle(rank, c->comm, result, "a communicator", name, status) && dtm_device_stream(rank->device, true, &c->stream, status)) {
        snprintf(c->name, sizeof c->name, "%s", name);
        c->blocks = blocks;
        c->stamps = &comms->stamps[2 * comms->n_channels];
        comms->n_channels++;
        *out = c;
    }
    return dtm_comm_agree(rank->comm, status);
}

static bool add_rank(channel *c, int rank, dtm_status *status) {
    int *more = realloc(c->ranks, (size_t)(c->n_ranks + 1) * sizeof *more);
    if (!more) return dtm_status_fail(status, "out of memory for communicators");
    c->ranks = more;
    c->ranks[c->n_ranks++] = rank;
    return true;
}

static int blocks_of(const dtm_device *device, int most) {
    int blocks = device->multiprocessors / SHARE;
    return blocks < 1 ? 1 : blocks > most ? most : blocks;
}

/* A group has a channel for each of the plan's streams on which it has something under way: ranks of other stages start what they share
 * in one order on each stream, but one may begin with one stream, another with another. What is waited for at once goes with stream 0. */
static size_t lane_of(const dtm_plan_instruction *at) { return at->records ? at->stream : 0; }

static bool is_of(const dtm_axes_group *group, const dtm_plan_collective *c) {
    const dtm_plan_list *a = &group->members, *b = &c->members;
    return group->axes == c->axes && a->count == b->count && (!a->count || memcmp(a->items, b->items, a->count * sizeof *a->items) == 0);
}

static bool uses_lane(const dtm_plan *plan, const dtm_axes_group *group, size_t lane) {
    for (uint32_t i = 0; i < plan->n_instructions; i++) {
        const dtm_plan_instruction *at = &plan->instructions[i];
        if (at->kind == DTM_PLAN_COLLECTIVE && lane_of(at) == lane && is_of(group, &at->collective)) return true;
    }
    return false;
}

static bool is_used(const dtm_rank *rank, const dtm_axes_group *group, size_t lane) {
    bool used = !rank->plan->n_stages && uses_lane(rank->plan, group, lane);
    for (uint32_t s = 0; s < rank->plan->n_stages; s++) used = used || uses_lane(rank->plan->stages[s], group, lane);
    return used;
}

/* Sums along a pipeline are under way in any order on different ranks, as messages are: their blocks are left to them too. */
static bool make_channel(dtm_rank *rank, const dtm_group *group, size_t lane, channel **out, dtm_status *status) {
    bool takes_part = group && dtm_group_members(group) > 1;
    int blocks = blocks_of(rank->device, lane ? MOST_MESSAGE_BLOCKS : MOST_BLOCKS);
    char name[64], of_lane[32] = "";
    if (lane) snprintf(of_lane, sizeof of_lane, ", stream %zu", lane);
    snprintf(name, sizeof name, "%.30s%s", takes_part ? dtm_group_name(group) : "others", of_lane);
    bool ok = split(rank, name, takes_part ? dtm_group_rank(group, 0) : DTM_NCCL_NO_COLOR, takes_part ? dtm_group_index(group) : 0, blocks, out, status);
    for (int m = 0; ok && takes_part && m < dtm_group_members(group); m++) ok = add_rank(*out, dtm_group_rank(group, m), status);
    if (ok && takes_part && lane) {
        (*out)->has_room = true;
        rank->device->comms->blocks -= blocks;
    }
    return ok;
}

/* Where two groups have ranks in common those make them one after another, in the order of groups.c, on all ranks. */
static bool make_groups(dtm_rank *rank, channel **of_group, dtm_status *status) {
    bool ok = true;
    for (size_t g = 0; ok && g < rank->n_groups; g++)
        for (size_t lane = 0; ok && lane < DTM_STREAMS; lane++)
            if (is_used(rank, &rank->groups[g], lane)) ok = make_channel(rank, rank->groups[g].group, lane, &of_group[g * DTM_STREAMS + lane], status);
    return ok;
}

/* ---- links ---- */

static way *find_link(dtm_cuda_comms *comms, uint32_t from, uint32_t to, bool backward) {
    for (size_t l = 0; l < comms->n_links; l++)
        if (comms->links[l].from == from && comms->links[l].to == to && comms->links[l].backward == backward) return &comms->links[l];
    return NULL;
}

/* Of all plans, in their order. */
static bool list_links(dtm_rank *rank, dtm_status *status) {
    dtm_cuda_comms *comms = rank->device->comms;
    size_t most = 0;
    for (int counts = 1; counts >= 0; counts--) {
        for (uint32_t s = 0; s < rank->plan->n_stages; s++) {
            const dtm_plan *plan = rank->plan->stages[s];
            for (uint32_t i = 0; i < plan->n_instructions; i++) {
                const dtm_plan_message *m = &plan->instructions[i].message;
                if (plan->instructions[i].kind != DTM_PLAN_SEND) continue;
                if (counts) most++;
                else if (!find_link(comms, s, m->peer, m->backward)) comms->links[comms->n_links++] = (way){s, m->peer, m->backward, NULL};
            }
        }
        if (counts) comms->links = calloc(most + 1, sizeof *comms->links);
        if (!comms->links) return dtm_status_fail(status, "out of memory for the messages of a pipeline");
    }
    return true;
}

static bool make_links(dtm_rank *rank, dtm_status *status) {
    dtm_cuda_comms *comms = rank->device->comms;
    int blocks = blocks_of(rank->device, MOST_MESSAGE_BLOCKS);
    bool ok = true;
    for (size_t l = 0; ok && l < comms->n_links; l++) {
        way *at = &comms->links[l];
        char name[64];
        uint32_t own = (uint32_t)rank->coordinates[rank->plan->stage_axis];
        bool takes_part = own == at->from || own == at->to;
        snprintf(name, sizeof name, "%s %u>%u%s", rank->plan->axes[rank->plan->stage_axis].name, at->from, at->to, at->backward ? " back" : "");
        ok = split(rank, name, takes_part ? dtm_group_rank(rank->forward, (int)at->from) : DTM_NCCL_NO_COLOR, own == at->to, blocks, &at->channel,
                   status);
        if (!ok || !at->channel) continue;
        comms->blocks -= blocks;
        ok = add_rank(at->channel, dtm_group_rank(rank->forward, (int)at->from), status) &&
             add_rank(at->channel, dtm_group_rank(rank->forward, (int)at->to), status);
    }
    if (comms->blocks < 1) comms->blocks = 1; /* one collective at a time */
    return ok;
}

/* ---- what instructions have ---- */

static bool make_events(dtm_rank *rank, use *u, size_t count, dtm_status *status) {
    u->done = calloc(count, sizeof(dtm_cu_event));
    bool ok = u->done || dtm_status_fail(status, "out of memory for what goes between ranks");
    for (size_t i = 0; ok && i < count; i++) ok = dtm_device_event(rank->device, &u->done[i], status);
    return ok;
}

static channel *channel_of(const dtm_rank *rank, channel *const *of_group, const dtm_group *group, size_t lane) {
    for (size_t g = 0; g < rank->n_groups; g++)
        if (rank->groups[g].group == group) return of_group[g * DTM_STREAMS + lane];
    return NULL;
}

static bool make_uses(dtm_rank *rank, channel *const *of_group, dtm_status *status) {
    dtm_cuda_comms *comms = rank->device->comms;
    const dtm_plan *plan = rank->plan;
    uint32_t own = plan->n_stages ? (uint32_t)rank->coordinates[plan->stage_axis] : 0;
    comms->uses = calloc((size_t)plan->n_instructions + 1, sizeof *comms->uses);
    comms->flights = calloc(comms->n_channels + 1, sizeof *comms->flights);
    if (!comms->uses || !comms->flights) return dtm_status_fail(status, "out of memory for what goes between ranks");
    bool ok = dtm_device_event(rank->device, &comms->ready, status);
    for (uint32_t i = 0; ok && i < plan->n_instructions; i++) {
        const dtm_plan_instruction *at = &plan->instructions[i];
        use *u = &comms->uses[i];
        bool sends = at->kind == DTM_PLAN_SEND;
        if (at->kind == DTM_PLAN_COLLECTIVE) {
            u->channel = channel_of(rank, of_group, rank->transfers[i].group, lane_of(at));
            ok = !u->channel || make_events(rank, u, 1, status);
        } else if (sends || at->kind == DTM_PLAN_RECEIVE) {
            uint32_t peer = at->message.peer;
            way *l = find_link(comms, sends ? own : peer, sends ? peer : own, at->message.backward);
            if (!l) return dtm_status_fail(status, "`%s` comes from a rank that does not send it", at->name);
            u->channel = l->channel;
            u->peer = sends;
            ok = make_events(rank, u, (size_t)plan->microbatches + 1, status);
        }
    }
    return ok;
}

static bool make_stamps(dtm_rank *rank, size_t channels, dtm_status *status) {
    dtm_cuda_comms *comms = rank->device->comms;
    const dtm_driver *driver = rank->device->driver;
    void *at = NULL;
    dtm_cu_pointer on_device = 0;
    dtm_cu_result result = driver->MemHostAlloc(&at, 2 * channels * sizeof(uint32_t), DTM_CU_HOST_PORTABLE | DTM_CU_HOST_MAPPED);
    comms->stamps = at;
    if (!result) memset(at, 0, 2 * channels * sizeof(uint32_t));
    if (!result) result = driver->MemHostGetDevicePointer(&on_device, at, 0);
    comms->stamps_at = on_device;
    return dtm_device_check(rank->device, result, status, "memory for what its streams have done");
}

/* Of the channel: this rank's calls against those of the member that is first, or the other of two. */
static bool compare_calls(dtm_rank *rank, const channel *c, const uint64_t *theirs, int64_t n_theirs, int other, dtm_status *status) {
    int64_t n = c->n_carried, at = 0;
    char what[500];
    while (at < n && at < n_theirs && c->calls[at] == theirs[at]) at++;
    if (at == n && at == n_theirs) return true;
    if (at < n) nccl_say_carried(rank, c, (uint32_t)at + 1, what, sizeof what);
    else snprintf(what, sizeof what, "nothing is left on %s after %lld operations", c->name, (long long)n);
    return dtm_status_fail(status, "ranks %d and %d would wait for each other for ever: on rank %d %s, on rank %d it is %s", other, rank->device->rank,
                           rank->device->rank, what, other, at < n_theirs ? "another" : "none");
}

static bool compare_in_group(dtm_rank *rank, dtm_group *group, const channel *c, dtm_status *status) {
    int members = dtm_group_members(group);
    int64_t own = (int64_t)c->n_carried * (int64_t)sizeof *c->calls, all = 0;
    int64_t *bytes = calloc(2 * (size_t)members, sizeof *bytes), *sizes = bytes ? bytes + members : NULL;
    for (int m = 0; bytes && m < members; m++) sizes[m] = sizeof *bytes;
    bool ok = bytes && dtm_all_gather(group, DTM_ALGORITHM_RING, &own, bytes, sizes, status);
    for (int m = 0; ok && m < members; m++) all += bytes[m];
    uint64_t *calls = ok ? malloc((size_t)all + 1) : NULL;
    ok = calls && dtm_all_gather(group, DTM_ALGORITHM_RING, c->calls, calls, bytes, status);
    if (ok) compare_calls(rank, c, calls, bytes[0] / (int64_t)sizeof *calls, dtm_group_rank(group, 0), status);
    if (!bytes || (!calls && !status->failed)) dtm_status_fail(status, "out of memory for what goes between ranks");
    free(bytes);
    free(calls);
    return !status->failed;
}

static bool compare_with(dtm_rank *rank, int other, const channel *c, dtm_status *status) {
    int64_t own = c->n_carried, theirs = 0, bytes = (int64_t)sizeof *c->calls;
    bool ok = dtm_send_receive(rank->forward, other, &own, sizeof own, other, &theirs, sizeof theirs, status);
    uint64_t *calls = ok ? malloc((size_t)(theirs * bytes) + 1) : NULL;
    if (ok && !calls) ok = dtm_status_fail(status, "out of memory for what goes between ranks");
    ok = ok && dtm_send_receive(rank->forward, other, c->calls, own * bytes, other, calls, theirs * bytes, status);
    ok = ok && compare_calls(rank, c, calls, theirs, dtm_group_rank(rank->forward, other), status);
    free(calls);
    return ok;
}

/* Walks through a step once without doing anything: ranks must come to the same on each communicator, in the same order. */
static bool rehearse(dtm_rank *rank, channel *const *of_group, dtm_status *status) {
    dtm_cuda_comms *comms = rank->device->comms;
    dtm_status found = {0}; /* all compare all the same, so that nobody is waited for in vain */
    dtm_rank_rehearse(rank, status);
    if (!dtm_comm_agree(rank->comm, status)) return false;
    for (size_t g = 0; g < rank->n_groups; g++)
        for (size_t lane = 0; lane < DTM_STREAMS; lane++)
            if (of_group[g * DTM_STREAMS + lane]) compare_in_group(rank, rank->groups[g].group, of_group[g * DTM_STREAMS + lane], &found);
    for (size_t l = 0; l < comms->n_links; l++) {
        const way *at = &comms->links[l];
        bool sends = at->channel && rank->coordinates[rank->plan->stage_axis] == at->from;
        if (at->channel) compare_with(rank, (int)(sends ? at->to : at->from), at->channel, &found);
    }
    if (found.failed) *status = found;
    return dtm_comm_agree(rank->comm, status);
}

bool dtm_cuda_comms_open(dtm_rank *rank, dtm_status *status) {
    dtm_device *device = rank->device;
    if (dtm_comm_size(rank->comm) == 1) return true;
    dtm_cuda_comms *comms = device->comms = calloc(1, sizeof *comms);
    bool ok = comms || dtm_status_fail(status, "out of memory for what goes between ranks");
    ok = ok && (comms->nccl = dtm_cuda_nccl(device->cuda, status)) != NULL;
    if (ok && comms->nccl->GetVersion(&comms->version) != DTM_NCCL_SUCCESS) ok = dtm_status_fail(status, "NCCL does not say its version");
    /* Launches on one device then keep the order in which the host makes them, if NCCL is 2.26 or newer. */
    pthread_mutex_lock(&environment_lock);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    pthread_mutex_unlock(&environment_lock);
    ok = ok && list_links(rank, status);
    size_t most = rank->n_groups * DTM_STREAMS + (ok ? comms->n_links : 0) + 1;
    channel **of_group = calloc(most, sizeof(channel *)); /* by group, and then by lane */
    if (ok) comms->channels = calloc(most, sizeof *comms->channels);
    if (ok && (!of_group || !comms->channels)) dtm_status_fail(status, "out of memory for communicators");
    if (ok && comms->channels) make_stamps(rank, most, status);
    if (comms) comms->rank = device->rank;
    if (comms) comms->blocks = device->multiprocessors - device->multiprocessors / SHARE;
    ok = dtm_comm_agree(rank->comm, status) && make_world(rank, status) && make_groups(rank, of_group, status) && make_links(rank, status);
    if (ok) {
        make_uses(rank, of_group, status);
        ok = dtm_comm_agree(rank->comm, status);
    }
    ok = ok && rehearse(rank, of_group, status);
    free(of_group);
    if (ok) nccl_begin_watch(rank);
    return ok;
}

/* ---- the end ---- */

static void *abort_all(void *argument) {
    dtm_cuda_comms *comms = argument;
    for (size_t c = 0; c < comms->n_channels; c++) comms->nccl->CommAbort(comms->channels[c].comm);
    if (comms->world) comms->nccl->CommAbort(comms->world);
    return NULL;
}

/* NCCL may hang in it: then there is nothing left to do but to end the process. */
static void abort_in_time(dtm_cuda_comms *comms) {
    pthread_t thread;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ABORT_SECONDS;
    comms->aborted = true;
    if (pthread_create(&thread, NULL, abort_all, comms) == 0 && pthread_timedjoin_np(thread, NULL, &until) == 0) return;
    if (comms->failure.failed) fprintf(stderr, "error: %s\n", comms->failure.message);
    fprintf(stderr, "error: rank %d: NCCL does not end its operations within %d seconds: the process ends\n", comms->rank, ABORT_SECONDS);
    _exit(1);
}

/* Whether something is on the streams that does not end by itself. */
static bool is_under_way(dtm_rank *rank) {
    const dtm_cuda_comms *comms = rank->device->comms;
    double begin = nccl_now();
    for (size_t c = 0; c < comms->n_channels;) {
        dtm_cu_result result = rank->device->driver->StreamQuery(comms->channels[c].stream);
        if (result == DTM_CU_SUCCESS) c++;
        else if (result != DTM_CU_NOT_READY || nccl_now() - begin > 0.5) return true;
        else nccl_pause_briefly();
    }
    return false;
}

void dtm_cuda_comms_stop(dtm_rank *rank) {
    dtm_cuda_comms *comms = rank->device->comms;
    if (!comms) return;
    if (comms->failure.failed || rank->failed || rank->device->lost || is_under_way(rank)) abort_in_time(comms);
}

static void end_comm(const dtm_nccl *nccl, dtm_nccl_comm comm) {
    int result = comm ? nccl->CommFinalize(comm) : DTM_NCCL_REMOTE_ERROR;
    while (result == DTM_NCCL_IN_PROGRESS) {
        if (nccl->CommGetAsyncError(comm, &result) != DTM_NCCL_SUCCESS) result = DTM_NCCL_REMOTE_ERROR;
        if (result == DTM_NCCL_IN_PROGRESS) nccl_pause_briefly();
    }
    if (result == DTM_NCCL_SUCCESS) nccl->CommDestroy(comm);
    else if (comm) nccl->CommAbort(comm);
}

void dtm_cuda_comms_close(dtm_rank *rank) {
    dtm_cuda_comms *comms = rank->device->comms;
    if (!comms) return;
    nccl_end_watch(comms);
    for (size_t c = 0; c < comms->n_channels; c++) {
        if (!comms->aborted) end_comm(comms->nccl, comms->channels[c].comm);
        free(comms->channels[c].ranks);
        free(comms->channels[c].carried);
        free(comms->channels[c].calls);
    }
    if (!comms->aborted && comms->nccl) end_comm(comms->nccl, comms->world);
    for (uint32_t i = 0; comms->uses && i < rank->plan->n_instructions; i++) free(comms->uses[i].done);
    if (comms->stamps) rank->device->driver->MemFreeHost(comms->stamps);
    free(comms->uses);
    free(comms->flights);
    free(comms->channels);
    free(comms->links);
    free(comms);
    rank->device->comms = NULL;
}

/* ---- the order of streams ---- */

/* What compute was given comes before what the channel is given next. */
static bool follow_compute(dtm_rank *rank, uint32_t instruction, const channel *c, dtm_status *status) {
    const dtm_driver *driver = rank->device->driver;
    dtm_cu_event ready = rank->device->comms->ready;
    dtm_cu_result result = driver->EventRecord(ready, rank->device->compute);
    if (!result) result = driver->StreamWaitEvent(c->stream, ready, 0);
    return nccl_check(rank, instruction, result, status);
}

static void drop_flight(dtm_cuda_comms *comms, size_t index) {
    comms->n_flights--;
    memmove(&comms->flights[index], &comms->flights[index + 1], (comms->n_flights - index) * sizeof *comms->flights);
}

/* Those under way leave it the blocks that it needs, or it waits for some of them, the first that were started first. */
static bool make_room(dtm_rank *rank, uint32_t instruction, const channel *c, dtm_cu_event done, dtm_status *status) {
    dtm_cuda_comms *comms = rank->device->comms;
    int under_way = 0, blocks = c->blocks;
    bool ok = true;
    for (size_t f = comms->n_flights; f-- > 0;) {
        if (comms->flights[f].channel == c) { /* on one stream: one after another */
            if (comms->flights[f].blocks > blocks) blocks = comms->flights[f].blocks;
            drop_flight(comms, f);
        } else {
            under_way += comms->flights[f].blocks;
        }
    }
    while (ok && !c->has_room && comms->n_flights && under_way + blocks > comms->blocks && !dtm_fault(160)) {
        ok = nccl_check(rank, instruction, rank->device->driver->StreamWaitEvent(c->stream, comms->flights[0].done, 0), status);
        under_way -= comms->flights[0].blocks;
        if (comms->flights[0].blocks > blocks) blocks = comms->flights[0].blocks;
        drop_flight(comms, 0);
    }
    if (!c->has_room) comms->flights[comms->n_flights++] = (flight){c, done, blocks};
    return ok;
}

/* ---- collectives ---- */

static dtm_nccl_type type_of(const dtm_plan_collective *c) {
    return c->dtype == DTM_PLAN_I32    ? DTM_NCCL_I32
           : c->dtype == DTM_PLAN_BF16 ? DTM_NCCL_BF16
           : c->dtype == DTM_PLAN_F16  ? DTM_NCCL_F16
           : c->dtype == DTM_PLAN_F32  ? DTM_NCCL_F32
                                       : DTM_NCCL_U8;
}

static bool are_even(const int64_t *counts, int n) {
    for (int i = 1; i < n; i++)
        if (counts[i] != counts[0]) return false;
    return true;
}

/* Blocks of unlike sizes: one call for each member, in a group. */
static int start_blocks(const dtm_nccl *nccl, const channel *c, const dtm_plan_collective *what, const dtm_transfer *t, const char *from,
                        char *to, dtm_nccl_op op) {
    bool reduces = what->kind == DTM_COLLECTIVE_REDUCE_SCATTER;
    int64_t bytes = reduces ? dtm_plan_dtype_bytes(what->dtype) : 1, at = 0;
    int n = dtm_group_members(t->group), own = dtm_group_index(t->group);
    int result = nccl->GroupStart();
    for (int i = 0; i < n && result == DTM_NCCL_SUCCESS; at += t->sent[i++] * bytes) {
        size_t count = (size_t)t->sent[i];
        if (!count) continue;
        result = reduces ? nccl->Reduce(from + at, i == own ? to : NULL, count, type_of(what), op, i, c->comm, c->stream)
                         : nccl->Broadcast(i == own ? from : NULL, to + at, count, DTM_NCCL_U8, i, c->comm, c->stream);
    }
    int ended = nccl->GroupEnd();
    return result == DTM_NCCL_SUCCESS || result == DTM_NCCL_IN_PROGRESS ? ended : result;
}

/* To each member its part, the own one included. */
static int start_exchange(const dtm_nccl *nccl, const channel *c, const dtm_transfer *t, const char *from, char *to) {
    int n = dtm_group_members(t->group);
    int result = nccl->GroupStart();
    for (int i = 0; i < n && result == DTM_NCCL_SUCCESS; i++) {
        if (t->sent[i]) result = nccl->Send(from, (size_t)t->sent[i], DTM_NCCL_U8, i, c->comm, c->stream);
        if (t->received[i] && result == DTM_NCCL_SUCCESS) result = nccl->Recv(to, (size_t)t->received[i], DTM_NCCL_U8, i, c->comm, c->stream);
        from += t->sent[i];
        to += t->received[i];
    }
    int ended = nccl->GroupEnd();
    return result == DTM_NCCL_SUCCESS || result == DTM_NCCL_IN_PROGRESS ? ended : result;
}

static int start_on(const dtm_nccl *nccl, const channel *c, const dtm_plan_collective *what, const dtm_transfer *t, const void *from, void *to) {
    dtm_nccl_op op = what->max ? DTM_NCCL_MAX : DTM_NCCL_SUM;
    size_t count = (size_t)t->sent[0];
    bool even = are_even(t->sent, dtm_group_members(t->group));
    switch (what->kind) {
    case DTM_COLLECTIVE_ALL_REDUCE:
        return nccl->AllReduce(from, to, count, type_of(what), op, c->comm, c->stream);
    case DTM_COLLECTIVE_REDUCE_SCATTER:
        if (!even) return start_blocks(nccl, c, what, t, from, to, op);
        return nccl->ReduceScatter(from, to, count, type_of(what), op, c->comm, c->stream);
    case DTM_COLLECTIVE_ALL_GATHER:
        if (!even) return start_blocks(nccl, c, what, t, from, to, op);
        return nccl->AllGather(from, to, count, DTM_NCCL_U8, c->comm, c->stream);
    default:
        return start_exchange(nccl, c, t, from, to);
    }
}

/* Of one member it is a copy at most. */
static bool keep(dtm_rank *rank, uint32_t instruction, const void *from, void *to, dtm_status *status) {
    const dtm_plan_collective *c = &rank->plan->instructions[instruction].collective;
    bool reduces = c->kind == DTM_COLLECTIVE_ALL_REDUCE || c->kind == DTM_COLLECTIVE_REDUCE_SCATTER;
    int64_t bytes = rank->transfers[instruction].sent[0] * (reduces ? dtm_plan_dtype_bytes(c->dtype) : 1);
    if (from == to || !bytes) return true;
    dtm_pack_sizes sizes = {.rank = 1, .bytes = 1, .size = {bytes}, .from = {1}, .to = {1}};
    return dtm_device_copy(rank->device, rank->device->compute, &sizes, from, to, status);
}

bool dtm_cuda_collective_start(dtm_rank *rank, uint32_t instruction, const void *from, void *to, dtm_status *status) {
    dtm_cuda_comms *comms = rank->device->comms;
    const dtm_plan_instruction *at = &rank->plan->instructions[instruction];
    use *u = comms ? &comms->uses[instruction] : NULL;
    if (dtm_fault(140) && rank->device->rank == 1 && at->collective.kind == DTM_COLLECTIVE_ALL_REDUCE) return true;
    if (!u || !u->channel) return rank->rehearses || keep(rank, instruction, from, to, status);
    channel *c = u->channel;
    if (rank->rehearses) return carry(rank, instruction, c, status);
    const dtm_driver *driver = rank->device->driver;
    if (!follow_compute(rank, instruction, c, status)) return false;
    uint32_t before = at->after ? rank->events[at->after] : 0;
    const use *other = at->after && rank->transfers[before].n_apart ? &comms->uses[before] : NULL;
    if (other && other->channel && other->channel != c && !nccl_check(rank, instruction, driver->StreamWaitEvent(c->stream, other->done[0], 0), status))
        return false;
    if (!make_room(rank, instruction, c, u->done[0], status) || !begin_carrying(rank, instruction, c, status)) return false;
    u->number = c->n_carried;
    int result = start_on(comms->nccl, c, &at->collective, &rank->transfers[instruction], from, to);
    return nccl_settle_operation(rank, instruction, c, result, status) && end_carrying(rank, instruction, c, u->done[0], status);
}

void dtm_cuda_collective_expect(dtm_rank *rank, uint32_t instruction) {
    dtm_cuda_comms *comms = rank->device->comms;
    const use *u = comms ? &comms->uses[instruction] : NULL;
    if (!u || !u->channel || rank->rehearses || u->number <= u->channel->waited) return;
    if (!u->channel->expected || u->channel->expected->number < u->number) u->channel->expected = u;
}

bool dtm_cuda_collective_wait(dtm_rank *rank, uint32_t instruction, dtm_status *status) {
    dtm_cuda_comms *comms = rank->device->comms;
    const use *u = comms ? &comms->uses[instruction] : NULL;
    if (!u || !u->channel || rank->rehearses) return true;
    channel *c = u->channel;
    if (c->waited >= u->number) return true;
    if (c->expected && c->expected->number > u->number) u = c->expected; /* the stream comes to it later */
    c->expected = NULL;
    c->waited = u->number;
    for (size_t f = 0; f < comms->n_flights; f++)
        if (comms->flights[f].done == u->done[0]) drop_flight(comms, f);
    return nccl_check(rank, instruction, rank->device->driver->StreamWaitEvent(rank->device->compute, u->done[0], 0), status);
}

/* ---- messages ---- */

bool dtm_cuda_message_start(dtm_rank *rank, uint32_t instruction, dtm_status *status) {
    dtm_cuda_comms *comms = rank->device->comms;
    const dtm_nccl *nccl = comms->nccl;
    const dtm_plan_instruction *at = &rank->plan->instructions[instruction];
    const use *u = &comms->uses[instruction];
    channel *c = u->channel;
    if (rank->rehearses) return carry(rank, instruction, c, status);
    if (!follow_compute(rank, instruction, c, status) || !begin_carrying(rank, instruction, c, status)) return false;
    int result = nccl->GroupStart();
    for (uint32_t i = 0; i < at->message.buffers.count && result == DTM_NCCL_SUCCESS; i++) {
        uint32_t buffer = at->message.buffers.items[i];
        dtm_box box = dtm_rank_box(rank, buffer);
        size_t bytes = (size_t)(dtm_box_elements(&box) * dtm_plan_dtype_bytes(rank->plan->buffers[buffer].dtype));
        void *data = dtm_rank_buffer(rank, buffer);
        if (!bytes) continue;
        result = at->kind == DTM_PLAN_SEND ? nccl->Send(data, bytes, DTM_NCCL_U8, u->peer, c->comm, c->stream)
                                           : nccl->Recv(data, bytes, DTM_NCCL_U8, u->peer, c->comm, c->stream);
    }
    int ended = nccl->GroupEnd();
    if (result == DTM_NCCL_SUCCESS || result == DTM_NCCL_IN_PROGRESS) result = ended;
    return nccl_settle_operation(rank, instruction, c, result, status) && end_carrying(rank, instruction, c, u->done[rank->microbatch], status);
}

bool dtm_cuda_message_wait(dtm_rank *rank, uint32_t instruction, dtm_status *status) {
    const use *u = &rank->device->comms->uses[instruction];
    if (rank->rehearses) return true;
    dtm_cu_event done = u->done[rank->microbatch];
    return nccl_check(rank, instruction, rank->device->driver->StreamWaitEvent(rank->device->compute, done, 0), status);
}
