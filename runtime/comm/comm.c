/* What all transports share: a run's groups, point-to-point operations, agreement between ranks, and the record of the
 * current operation that the watchdog reads. */
#include "runtime/comm/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static _Thread_local int lane_of_thread;

int dtm_lane_of_thread(void) {
    return lane_of_thread;
}
void dtm_lane_set(int lane) {
    lane_of_thread = lane;
}

double dtm_comm_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---- a run ---- */

bool dtm_comm_init(dtm_comm *comm, const dtm_transport *transport, void *state, int rank, int size,
                   dtm_status *status) {
    memset(comm, 0, sizeof *comm);
    comm->transport = transport;
    comm->state = state;
    comm->rank = rank;
    comm->size = comm->node_size = size;
    comm->node_index = rank;
    comm->deadline = 600;
    comm->linked = true;
    pthread_mutex_init(&comm->lock, NULL);
    dtm_progress_init(comm);
    int *ranks = malloc((size_t)size * sizeof *ranks);
    if (!ranks) return dtm_status_fail(status, "out of memory for the list of %d ranks", size);
    for (int i = 0; i < size; i++) ranks[i] = i;
    bool ok = dtm_group_create(comm, "world", ranks, size, 0, &comm->world, status);
    free(ranks);
    return ok;
}

static void group_free(dtm_group *group) {
    if (!group) return;
    for (int l = 0; l < DTM_LANES; l++) {
        free(group->lanes[l].requests);
        free((void *)group->lanes[l].sent);
        free((void *)group->lanes[l].received);
    }
    free(group->ranks);
    free(group);
}

bool dtm_comm_quiet(dtm_comm *comm) {
    for (int s = 0; s < DTM_STREAMS; s++) comm->streams[s].quiet = true;
    comm->transport->withdraw(comm);
    dtm_progress_end(comm);
    return comm->transport->withdraw(comm);
}

void dtm_comm_pretend(dtm_comm *comm, bool pretends) {
    comm->pretends = pretends;
}

void dtm_comm_note(dtm_comm *comm, const char *note) {
    snprintf(comm->note, sizeof comm->note, "%s", note);
}

void dtm_comm_link(dtm_comm *comm, bool linked) {
    comm->linked = linked;
}

void dtm_comm_pace(dtm_comm *comm, void (*before)(void *argument), void (*after)(void *argument, double ended),
                   void *argument) {
    comm->before = before;
    comm->after = after;
    comm->pace_argument = argument;
}

void dtm_comm_observe(dtm_comm *comm, dtm_observer *observer, void *argument) {
    comm->observer = observer;
    comm->observer_argument = argument;
}

void dtm_comm_release(dtm_comm *comm) {
    dtm_progress_end(comm);
    for (dtm_group *group = comm->groups, *next; group; group = next) {
        next = group->next;
        group_free(group);
    }
    pthread_mutex_destroy(&comm->lock);
    dtm_progress_release(comm);
}

void dtm_comm_close(dtm_comm *comm) {
    comm->transport->close(comm);
}
int dtm_comm_rank(const dtm_comm *comm) {
    return comm->rank;
}
int dtm_comm_size(const dtm_comm *comm) {
    return comm->size;
}
const char *dtm_comm_transport(const dtm_comm *comm) {
    return comm->transport->name;
}
int dtm_comm_node_size(const dtm_comm *comm) {
    return comm->node_size;
}
int dtm_comm_node_index(const dtm_comm *comm) {
    return comm->node_index;
}
int64_t dtm_comm_sent_bytes(const dtm_comm *comm) {
    return comm->sent_bytes;
}
dtm_group *dtm_comm_world(dtm_comm *comm) {
    return comm->world;
}
void dtm_comm_set_deadline(dtm_comm *comm, double seconds) {
    comm->deadline = seconds;
}
void dtm_comm_abort(dtm_comm *comm, const dtm_status *status) {
    comm->transport->abort(comm, status);
}

bool dtm_comm_is_lost(dtm_comm *comm) { return comm->transport->lost && comm->transport->lost(comm); }

bool dtm_comm_barrier(dtm_comm *comm, dtm_status *status) {
    dtm_operation_begin(comm->world, "barrier", -1);
    bool ok = comm->transport->barrier(comm, status);
    dtm_operation_end(comm->world);
    return ok;
}

/* The algorithm for a single number to everybody. */
static dtm_algorithm small_all_reduce(int size) {
    return dtm_algorithm_fits(DTM_COLLECTIVE_ALL_REDUCE, DTM_ALGORITHM_DOUBLING, size) ? DTM_ALGORITHM_DOUBLING
                                                                                       : DTM_ALGORITHM_GATHER;
}

bool dtm_comm_agree(dtm_comm *comm, dtm_status *status) {
    int32_t mine = status->failed && !status->echo ? comm->size - comm->rank : status->failed ? 0 : -1, first;
    dtm_status inner = {0};
    dtm_group_label(comm->world, "agreement on errors");
    bool ok = dtm_all_reduce(comm->world, small_all_reduce(comm->size), DTM_REDUCTION_MAX, DTM_REDUCE_I32, &mine,
                             &first, 1, NULL, &inner);
    dtm_group_label(comm->world, NULL);
    if (!ok) {
        if (!status->failed) *status = inner;
        return false;
    }
    if (first < 0) return true;
    if (comm->size - first == comm->rank) return false; /* this rank reports */
    status->failed = false;
    return dtm_status_echo(status);
}

bool dtm_comm_same(dtm_comm *comm, const char *what, uint64_t value, dtm_status *status) {
    int64_t *bytes = malloc((size_t)comm->size * sizeof *bytes);
    uint64_t *values = malloc((size_t)comm->size * sizeof *values);
    bool ok = bytes && values;
    if (!ok) dtm_status_fail(status, "out of memory comparing %s on %d ranks", what, comm->size);
    for (int i = 0; ok && i < comm->size; i++) bytes[i] = sizeof value;
    dtm_group_label(comm->world, what);
    ok = ok && dtm_all_gather(comm->world, DTM_ALGORITHM_RING, &value, values, bytes, status);
    dtm_group_label(comm->world, NULL);
    for (int i = 1; ok && i < comm->size; i++) {
        if (values[i] == values[0]) continue;
        ok = dtm_status_fail(status, "rank %d has another %s than rank 0: %016llx and %016llx", i, what,
                             (unsigned long long)values[i], (unsigned long long)values[0]);
        if (comm->rank != 0) status->echo = true; /* all ranks know: rank 0 says it */
    }
    free(bytes);
    free(values);
    return ok;
}

/* ---- groups ---- */

bool dtm_group_create(dtm_comm *comm, const char *name, const int *ranks, int size, int tag, dtm_group **out,
                      dtm_status *status) {
    if (size < 1 || tag < 0 || tag > DTM_GROUP_TAG_MAX || (tag == 0 && comm->world))
        return dtm_status_fail(status, "group %s: size %d or tag %d is out of range", name, size, tag);
    dtm_group *group = calloc(1, sizeof *group);
    bool ok = group != NULL;
    if (group) group->ranks = malloc((size_t)size * sizeof *group->ranks), ok = group->ranks;
    for (int l = 0; ok && l < DTM_LANES; l++) {
        dtm_group_lane *lane = &group->lanes[l];
        lane->tag = tag + l * (DTM_GROUP_TAG_MAX + 1);
        lane->microbatch = -1;
        lane->requests = calloc((size_t)size * 2, sizeof *lane->requests);
        lane->sent = calloc((size_t)size, sizeof *lane->sent);
        lane->received = calloc((size_t)size, sizeof *lane->received);
        ok = lane->requests && lane->sent && lane->received;
    }
    if (!ok) {
        group_free(group);
        return dtm_status_fail(status, "out of memory for group %s of %d ranks", name, size);
    }
    group->comm = comm;
    snprintf(group->name, sizeof group->name, "%s", name);
    group->size = size;
    group->index = -1;
    group->tag = tag;
    bool in_range = true;
    for (int i = 0; i < size; i++) {
        group->ranks[i] = ranks[i];
        in_range = in_range && ranks[i] >= 0 && ranks[i] < comm->size;
        if (ranks[i] == comm->rank) group->index = i;
    }
    pthread_mutex_lock(&comm->lock);
    group->next = comm->groups;
    comm->groups = group;
    pthread_mutex_unlock(&comm->lock);
    *out = group;
    if (group->index < 0 || !in_range)
        return dtm_status_fail(status, "group %s: rank %d is not in it, or a rank is not in a run of %d", name,
                               comm->rank, comm->size);
    return true;
}

int dtm_group_members(const dtm_group *group) {
    return group->size;
}
int dtm_group_index(const dtm_group *group) {
    return group->index;
}
int dtm_group_rank(const dtm_group *group, int index) {
    return group->ranks[index];
}
const char *dtm_group_name(const dtm_group *group) {
    return group->name;
}
void dtm_group_carry(dtm_group *group, const dtm_carrier *carrier, void *carried) {
    group->carrier = carrier;
    group->carried = carried;
}
void dtm_group_label(dtm_group *group, const char *label) {
    dtm_lane(group)->label = label;
}
void dtm_group_microbatch(dtm_group *group, int64_t microbatch) {
    dtm_lane(group)->microbatch = microbatch;
}

/* ---- point to point ---- */

/* Fills in what is known before the transport has it. */
static void begin_request(dtm_group *group, int member, void *data, int64_t bytes, bool sends, dtm_request *request) {
    dtm_group_lane *lane = dtm_lane(group);
    dtm_pace_before(group->comm);
    request->data = data;
    request->bytes = bytes;
    request->owner = group->comm->rank;
    request->peer = group->ranks[member];
    request->tag = lane->tag;
    request->sends = sends;
    request->listed = false;
    request->pretends = group->comm->pretends;
    request->linked = group->comm->linked;
    memcpy(request->note, lane_of_thread == LANE_OWN ? group->comm->note : (char[sizeof request->note]){0}, sizeof request->note);
    request->label = lane->label;
    request->microbatch = lane->microbatch;
    request->started = dtm_comm_now();
    request->ended = 0;
    request->matched = 0;
    request->done = bytes == 0;
    if (bytes) request->sequence = ++(sends ? lane->sent : lane->received)[member];
}

/* What is started outside of an operation is waited for later. */
static bool started(dtm_comm *comm, dtm_status *status) {
    return comm->lanes[lane_of_thread].depth > 0 || !comm->transport->poll || dtm_progress_wake(comm, status);
}

bool dtm_send_start(dtm_group *group, int to, const void *data, int64_t bytes, dtm_request *request,
                    dtm_status *status) {
    dtm_comm *comm = group->comm;
    begin_request(group, to, (void *)data, bytes, true, request);
    if (bytes == 0) return true;
    comm->sent_bytes += bytes;
    comm->lanes[lane_of_thread].sent += bytes;
    if (group->carrier) return group->carrier->post(group->carried, request, status);
    return comm->transport->post_send(comm, request, status) && started(comm, status);
}

bool dtm_receive_start(dtm_group *group, int from, void *data, int64_t bytes, dtm_request *request,
                       dtm_status *status) {
    dtm_comm *comm = group->comm;
    begin_request(group, from, data, bytes, false, request);
    if (bytes == 0) return true;
    if (group->carrier) return group->carrier->post(group->carried, request, status);
    return comm->transport->post_receive(comm, request, status) && started(comm, status);
}

static void print_name(char *out, int64_t size, const char *name, int64_t microbatch) {
    if (microbatch < 0)
        snprintf(out, (size_t)size, "%s", name);
    else
        snprintf(out, (size_t)size, "%s, microbatch %lld", name, (long long)microbatch);
}

void dtm_request_name(const dtm_request *request, char *out, int64_t size) {
    const char *name = request->label ? request->label : request->sends ? "send" : "receive";
    print_name(out, size, name, request->microbatch);
}

static void observe_messages(dtm_group *group, const dtm_request *requests, int count) {
    const dtm_comm *comm = group->comm;
    const dtm_lane_state *state = &comm->lanes[lane_of_thread];
    if (!comm->observer || state->depth != 1 || state->operation.peer < 0) return; /* inside of a collective */
    for (int i = 0; i < count; i++) {
        const dtm_request *r = &requests[i];
        if (!r->bytes) continue;
        dtm_transmission sent = {.label = r->label, .name = r->sends ? "send" : "receive", .group = group->name,
                                 .note = r->note, .peer = r->peer, .bytes = r->bytes, .microbatch = r->microbatch,
                                 .started = r->started, .ended = r->ended};
        comm->observer(comm->observer_argument, &sent);
    }
}

/* For operations of one message or two, which have no record of their own. */
static bool wait_for(dtm_group *group, dtm_request *requests, int count, dtm_status *status) {
    int first = 0;
    bool ok = true;
    while (first < count && requests[first].done) first++;
    if (first < count) {
        dtm_operation_waits_for(group->comm, &requests[first]);
        ok = group->carrier ? group->carrier->wait(group->carried, requests, count, status)
                            : group->comm->transport->wait(group->comm, requests, count, status);
    }
    if (ok) observe_messages(group, requests, count);
    double *ended = &group->comm->lanes[lane_of_thread].ended;
    for (int i = 0; ok && i < count; i++)
        if (requests[i].ended > *ended) *ended = requests[i].ended;
    return ok;
}

bool dtm_wait(dtm_group *group, dtm_request *requests, int count, dtm_status *status) {
    dtm_comm *comm = group->comm;
    if (comm->lanes[lane_of_thread].depth > 0) return wait_for(group, requests, count, status);
    dtm_operation_begin(group, "wait", count ? requests[0].peer : comm->rank);
    bool ok = wait_for(group, requests, count, status);
    dtm_operation_end(group);
    return ok;
}

bool dtm_send(dtm_group *group, int to, const void *data, int64_t bytes, dtm_status *status) {
    dtm_request request;
    dtm_operation_begin(group, "send", group->ranks[to]);
    bool ok = dtm_send_start(group, to, data, bytes, &request, status) && wait_for(group, &request, 1, status);
    dtm_operation_end(group);
    return ok;
}

bool dtm_receive(dtm_group *group, int from, void *data, int64_t bytes, dtm_status *status) {
    dtm_request request;
    dtm_operation_begin(group, "receive", group->ranks[from]);
    bool ok = dtm_receive_start(group, from, data, bytes, &request, status) && wait_for(group, &request, 1, status);
    dtm_operation_end(group);
    return ok;
}

bool dtm_send_receive(dtm_group *group, int to, const void *send, int64_t send_bytes, int from, void *receive,
                      int64_t receive_bytes, dtm_status *status) {
    dtm_request requests[2];
    dtm_operation_begin(group, "send_receive", group->ranks[from]);
    bool ok = dtm_receive_start(group, from, receive, receive_bytes, &requests[0], status) &&
              dtm_send_start(group, to, send, send_bytes, &requests[1], status) && wait_for(group, requests, 2, status);
    dtm_operation_end(group);
    return ok;
}

/* ---- the record of what is done ---- */

void dtm_operation_begin(dtm_group *group, const char *name, int peer) {
    dtm_comm *comm = group->comm;
    dtm_lane_state *state = &comm->lanes[lane_of_thread];
    dtm_group_lane *lane = dtm_lane(group);
    dtm_pace_before(comm);
    pthread_mutex_lock(&comm->lock);
    if (state->depth++ == 0) {
        state->ended = 0;
        state->group = group;
        state->operation.started = dtm_comm_now();
        state->operation.peer = peer;
        state->operation.sequence = peer < 0 ? ++lane->sequence : 0;
        state->kind = name;
        state->tag = lane->tag;
        state->sent_before = state->sent;
        print_name(state->operation.name, sizeof state->operation.name, lane->label ? lane->label : name, lane->microbatch);
        snprintf(state->operation.group, sizeof state->operation.group, "%s", group->name);
    }
    pthread_mutex_unlock(&comm->lock);
}

static void observe_collective(dtm_comm *comm, const dtm_lane_state *state) {
    dtm_transmission done = {.label = state->operation.name, .name = state->kind, .group = state->operation.group,
                             .note = "", .peer = -1, .bytes = state->sent - state->sent_before, .microbatch = -1,
                             .started = state->operation.started, .ended = dtm_comm_now(),
                             .stream = lane_of_thread};
    comm->observer(comm->observer_argument, &done);
}

void dtm_operation_end(dtm_group *group) {
    dtm_comm *comm = group->comm;
    dtm_lane_state *state = &comm->lanes[lane_of_thread];
    if (comm->observer && state->depth == 1 && state->operation.peer < 0) observe_collective(comm, state);
    pthread_mutex_lock(&comm->lock);
    if (--state->depth == 0) state->group = NULL;
    pthread_mutex_unlock(&comm->lock);
    dtm_pace_after(comm, state->ended > 0 && state->operation.peer >= 0 ? state->ended : dtm_comm_now());
}

void dtm_operation_waits_for(dtm_comm *comm, const dtm_request *request) {
    dtm_lane_state *state = &comm->lanes[lane_of_thread];
    pthread_mutex_lock(&comm->lock);
    if (state->depth > 0 && state->operation.peer >= 0) {
        state->operation.peer = request->peer;
        state->operation.sends = request->sends;
        state->operation.sequence = request->sequence;
        dtm_request_name(request, state->operation.name, sizeof state->operation.name);
        state->tag = request->tag;
        for (dtm_group *group = comm->groups; group; group = group->next)
            if (group->lanes[lane_of_thread].tag == request->tag) state->group = group;
        snprintf(state->operation.group, sizeof state->operation.group, "%s", state->group->name);
    }
    pthread_mutex_unlock(&comm->lock);
}

dtm_lane_state dtm_operation_now(dtm_comm *comm) {
    pthread_mutex_lock(&comm->lock);
    dtm_lane_state state = comm->lanes[lane_of_thread];
    pthread_mutex_unlock(&comm->lock);
    return state;
}

bool dtm_comm_current(dtm_comm *comm, dtm_operation *out) {
    bool any = false;
    pthread_mutex_lock(&comm->lock);
    for (int l = 0; l < DTM_LANES && !any; l++) {
        any = comm->lanes[l].group != NULL;
        if (any) *out = comm->lanes[l].operation;
    }
    pthread_mutex_unlock(&comm->lock);
    return any;
}

bool dtm_comm_waits(dtm_comm *comm) {
    dtm_operation ignored;
    return dtm_comm_current(comm, &ignored);
}

int64_t dtm_comm_progress(dtm_comm *comm, int tag, int peer, bool sends) {
    int64_t result = -1;
    pthread_mutex_lock(&comm->lock);
    for (dtm_group *group = comm->groups; group; group = group->next)
        for (int l = 0; l < DTM_LANES; l++) {
            const dtm_group_lane *lane = &group->lanes[l];
            if (lane->tag != tag) continue;
            if (peer < 0) result = lane->sequence;
            for (int i = 0; peer >= 0 && i < group->size; i++)
                if (group->ranks[i] == peer) result = (sends ? lane->sent : lane->received)[i];
        }
    pthread_mutex_unlock(&comm->lock);
    return result;
}

/* ---- the watchdog ---- */

/* Appends the world ranks whose state is the one asked for: "0, 1, 3". */
static void append_ranks(char *text, size_t size, const dtm_group *group, const signed char *arrived, int state) {
    size_t length = strlen(text);
    const char *separator = "";
    for (int i = 0; i < group->size && length + 16 < size; i++) {
        if (arrived[i] != state) continue;
        if (length + 40 > size) {
            snprintf(text + length, size - length, ", ..");
            return;
        }
        length += (size_t)snprintf(text + length, size - length, "%s%d", separator, group->ranks[i]);
        separator = ", ";
    }
    if (!*separator) snprintf(text + length, size - length, "none");
}

/* A message: whether the other side has come to it. */
static bool fail_message(dtm_comm *comm, const dtm_lane_state *state, const signed char *arrived, double seconds,
                         dtm_status *status) {
    const dtm_group *group = state->group;
    const dtm_operation *o = &state->operation;
    char number[64] = "", other[64] = "";
    int came = DTM_SILENT;
    for (int i = 0; arrived && i < group->size; i++)
        if (group->ranks[i] == o->peer) came = arrived[i];
    if (o->sequence)
        snprintf(number, sizeof number, ", message %lld %s it there", (long long)o->sequence, o->sends ? "to" : "from");
    if (arrived && came == DTM_SILENT) snprintf(other, sizeof other, "; rank %d does not answer", o->peer);
    if (arrived && came != DTM_SILENT)
        snprintf(other, sizeof other, "; rank %d has %sbegun it", o->peer, came == DTM_ARRIVED ? "" : "not ");
    return dtm_status_fail(status,
                           "hang: %s between rank %d and rank %d on %s (%d ranks)%s, has not ended after %.0f s%s",
                           o->name, comm->rank, o->peer, o->group, group->size, number, seconds, other);
}

bool dtm_watchdog_fail(dtm_comm *comm, const signed char *arrived, dtm_status *status) {
    const dtm_lane_state state = dtm_operation_now(comm);
    const dtm_operation *o = &state.operation;
    if (!state.group) return dtm_status_fail(status, "rank %d hung outside of an operation", comm->rank);
    double seconds = dtm_comm_now() - o->started;
    if (o->peer >= 0) return fail_message(comm, &state, arrived, seconds, status);
    char came[200] = "", missing[200] = "";
    if (arrived) {
        append_ranks(came, sizeof came, state.group, arrived, DTM_ARRIVED);
        append_ranks(missing, sizeof missing, state.group, arrived, DTM_ARRIVED_NOT);
    }
    return dtm_status_fail(
        status, "hang: %s on %s (%d ranks), collective %lld there, has not ended after %.0f s on rank %d%s%s%s%s",
        o->name, o->group, state.group->size, (long long)o->sequence, seconds, comm->rank,
        arrived ? "; ranks that arrived: " : "", came, arrived ? "; that did not: " : "", missing);
}
