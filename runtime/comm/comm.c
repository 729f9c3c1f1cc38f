/* What all transports share: a run's groups, point-to-point operations, agreement between ranks, and the record of the
 * current operation that the watchdog reads. */
#include "runtime/comm/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
    pthread_mutex_init(&comm->lock, NULL);
    int *ranks = malloc((size_t)size * sizeof *ranks);
    if (!ranks) return dtm_status_fail(status, "out of memory for the list of %d ranks", size);
    for (int i = 0; i < size; i++) ranks[i] = i;
    bool ok = dtm_group_create(comm, "world", ranks, size, 0, &comm->world, status);
    free(ranks);
    return ok;
}

void dtm_comm_release(dtm_comm *comm) {
    for (dtm_group *group = comm->groups, *next; group; group = next) {
        next = group->next;
        free(group->ranks);
        free(group->requests);
        free(group);
    }
    pthread_mutex_destroy(&comm->lock);
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
    if (group) {
        group->ranks = malloc((size_t)size * sizeof *group->ranks);
        group->requests = calloc((size_t)size * 2, sizeof *group->requests);
    }
    if (!group || !group->ranks || !group->requests) {
        if (group) free(group->ranks), free(group->requests);
        free(group);
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
void dtm_group_label(dtm_group *group, const char *label) {
    group->label = label;
}

/* ---- point to point ---- */

bool dtm_send_start(dtm_group *group, int to, const void *data, int64_t bytes, dtm_request *request,
                    dtm_status *status) {
    request->done = bytes == 0;
    if (bytes == 0) return true;
    dtm_comm *comm = group->comm;
    comm->sent_bytes += bytes;
    return comm->transport->post_send(comm, group->ranks[to], group->tag, data, bytes, request, status);
}

bool dtm_receive_start(dtm_group *group, int from, void *data, int64_t bytes, dtm_request *request,
                       dtm_status *status) {
    request->done = bytes == 0;
    if (bytes == 0) return true;
    dtm_comm *comm = group->comm;
    return comm->transport->post_receive(comm, group->ranks[from], group->tag, data, bytes, request, status);
}

bool dtm_wait(dtm_group *group, dtm_request *requests, int count, dtm_status *status) {
    int first = 0;
    while (first < count && requests[first].done) first++;
    if (first == count) return true;
    dtm_operation_begin(group, "wait", requests[first].peer);
    bool ok = group->comm->transport->wait(group->comm, requests, count, status);
    dtm_operation_end(group);
    return ok;
}

bool dtm_send(dtm_group *group, int to, const void *data, int64_t bytes, dtm_status *status) {
    dtm_request request;
    dtm_operation_begin(group, "send", group->ranks[to]);
    bool ok = dtm_send_start(group, to, data, bytes, &request, status) && dtm_wait(group, &request, 1, status);
    dtm_operation_end(group);
    return ok;
}

bool dtm_receive(dtm_group *group, int from, void *data, int64_t bytes, dtm_status *status) {
    dtm_request request;
    dtm_operation_begin(group, "receive", group->ranks[from]);
    bool ok = dtm_receive_start(group, from, data, bytes, &request, status) && dtm_wait(group, &request, 1, status);
    dtm_operation_end(group);
    return ok;
}

bool dtm_send_receive(dtm_group *group, int to, const void *send, int64_t send_bytes, int from, void *receive,
                      int64_t receive_bytes, dtm_status *status) {
    dtm_request requests[2];
    dtm_operation_begin(group, "send_receive", group->ranks[from]);
    bool ok = dtm_receive_start(group, from, receive, receive_bytes, &requests[0], status) &&
              dtm_send_start(group, to, send, send_bytes, &requests[1], status) && dtm_wait(group, requests, 2, status);
    dtm_operation_end(group);
    return ok;
}

/* ---- the watchdog ---- */

void dtm_operation_begin(dtm_group *group, const char *name, int peer) {
    dtm_comm *comm = group->comm;
    pthread_mutex_lock(&comm->lock);
    if (comm->depth++ == 0) {
        comm->operation_group = group;
        comm->operation.started = dtm_comm_now();
        comm->operation.peer = peer;
        comm->operation.sequence = peer < 0 ? ++group->sequence : 0;
        snprintf(comm->operation.name, sizeof comm->operation.name, "%s", group->label ? group->label : name);
        snprintf(comm->operation.group, sizeof comm->operation.group, "%s", group->name);
    }
    pthread_mutex_unlock(&comm->lock);
}

void dtm_operation_end(dtm_group *group) {
    dtm_comm *comm = group->comm;
    pthread_mutex_lock(&comm->lock);
    if (--comm->depth == 0) comm->operation_group = NULL;
    pthread_mutex_unlock(&comm->lock);
}

bool dtm_comm_current(dtm_comm *comm, dtm_operation *out) {
    pthread_mutex_lock(&comm->lock);
    bool any = comm->operation_group != NULL;
    if (any) *out = comm->operation;
    pthread_mutex_unlock(&comm->lock);
    return any;
}

int64_t dtm_comm_progress(dtm_comm *comm, int tag) {
    int64_t result = -1;
    pthread_mutex_lock(&comm->lock);
    for (dtm_group *group = comm->groups; group; group = group->next)
        if (group->tag == tag) result = group->sequence;
    pthread_mutex_unlock(&comm->lock);
    return result;
}

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

bool dtm_watchdog_fail(dtm_comm *comm, const signed char *arrived, dtm_status *status) {
    dtm_operation operation = {0};
    pthread_mutex_lock(&comm->lock);
    dtm_group *group = comm->operation_group;
    if (group) operation = comm->operation;
    pthread_mutex_unlock(&comm->lock);
    if (!group) return dtm_status_fail(status, "rank %d hung outside of an operation", comm->rank);
    double seconds = dtm_comm_now() - operation.started;
    if (operation.peer >= 0)
        return dtm_status_fail(status,
                               "hang: %s between rank %d and rank %d on %s (%d ranks) has not ended after %.0f s",
                               operation.name, comm->rank, operation.peer, operation.group, group->size, seconds);
    char came[200] = "", missing[200] = "";
    if (arrived) {
        append_ranks(came, sizeof came, group, arrived, 1);
        append_ranks(missing, sizeof missing, group, arrived, 0);
    }
    return dtm_status_fail(
        status, "hang: %s on %s (%d ranks), collective %lld there, has not ended after %.0f s on rank %d%s%s%s%s",
        operation.name, operation.group, group->size, (long long)operation.sequence, seconds, comm->rank,
        arrived ? "; ranks that arrived: " : "", came, arrived ? "; that did not: " : "", missing);
}
