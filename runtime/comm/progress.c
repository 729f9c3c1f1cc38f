/* The streams of a rank: the thread of each carries out collectives that were started on it, in their order. That of stream 0
 * also moves messages that were started and not yet waited for, while it has nothing else to do, where a transport does not
 * do so by itself. A thread is begun by the first such thing, sleeps on a condition while there is nothing, and naps between
 * two looks, so that it takes next to nothing from the cores that compute.
 *
 *     the rank      start --> queue                wait: sleeps until done
 *                               |                     ^
 *     its stream                +--> all_reduce .. ---+     nap, poll, nap, poll ..          */
#include "runtime/comm/transport.h"

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

/* A look takes up to 20 microseconds of a core with the switch to it and back. So naps are a part of the time that nothing
 * has happened, between these bounds: what has long not come is seen a little later. */
static const double NAP_LEAST = 1e-4, NAP_MOST = 1e-3, NAP_PART = 1. / 16;
enum { SLACK_NANOSECONDS = 1000 };

void dtm_progress_init(dtm_comm *comm) {
    for (int s = 0; s < DTM_STREAMS; s++) {
        dtm_progress *p = &comm->streams[s];
        pthread_mutex_init(&p->lock, NULL);
        pthread_cond_init(&p->work, NULL);
        pthread_cond_init(&p->done, NULL);
        pthread_cond_init(&p->step, NULL);
        p->last = &p->first;
        p->comm = comm;
        p->lane = LANE_STREAM + s;
    }
}

void dtm_progress_release(dtm_comm *comm) {
    for (int s = 0; s < DTM_STREAMS; s++) {
        pthread_mutex_destroy(&comm->streams[s].lock);
        pthread_cond_destroy(&comm->streams[s].work);
        pthread_cond_destroy(&comm->streams[s].done);
        pthread_cond_destroy(&comm->streams[s].step);
    }
}

dtm_progress *dtm_progress_of_thread(dtm_comm *comm) {
    int lane = dtm_lane_of_thread();
    return lane >= LANE_STREAM ? &comm->streams[lane - LANE_STREAM] : NULL;
}

/* ---- the thread ---- */

void dtm_thread_leave_core(void) {
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int i = 0; i < CPU_SETSIZE; i++) CPU_SET(i, &all);
    pthread_setaffinity_np(pthread_self(), sizeof all, &all); /* where that is not allowed it stays */
    prctl(PR_SET_TIMERSLACK, SLACK_NANOSECONDS, 0, 0, 0);
}

static bool carry_out(dtm_collective_request *r, dtm_status *status) {
    dtm_group_label(r->group, r->label);
    dtm_group_microbatch(r->group, r->microbatch);
    dtm_lane(r->group)->stepped = r->in_steps ? r : NULL;
    switch (r->kind) {
    case DTM_COLLECTIVE_ALL_REDUCE:
        return dtm_all_reduce(r->group, r->algorithm, r->reduction, r->type, r->input, r->output, r->count, r->scratch,
                              status);
    case DTM_COLLECTIVE_REDUCE_SCATTER:
        return dtm_reduce_scatter(r->group, r->algorithm, r->reduction, r->type, r->input, r->output, r->counts,
                                  r->scratch, status);
    case DTM_COLLECTIVE_ALL_GATHER:
        return dtm_all_gather(r->group, r->algorithm, r->input, r->output, r->counts, status);
    default:
        return dtm_all_to_all(r->group, r->algorithm, r->input, r->counts, r->output, r->receive_counts, status);
    }
}

static dtm_progress *stream_of(const dtm_collective_request *request) { return &request->group->comm->streams[request->stream]; }

/* Until it has been carried out, by its own stream, which carries out all that it has been given; false: that failed. */
static bool has_ended(dtm_collective_request *request) {
    dtm_progress *p = stream_of(request);
    pthread_mutex_lock(&p->lock);
    while (!request->done) pthread_cond_wait(&p->done, &p->lock);
    bool good = !request->status.failed;
    pthread_mutex_unlock(&p->lock);
    return good;
}

static void run_first(dtm_progress *p) {
    dtm_comm *comm = p->comm;
    dtm_collective_request *request = p->first;
    bool failed = p->failed || p->ends;
    pthread_mutex_unlock(&p->lock);
    int64_t sent = comm->lanes[p->lane].sent;
    dtm_status status = {0};
    if (request->after && !has_ended(request->after)) failed = true;
    request->started = dtm_comm_now();
    bool ok = failed ? dtm_status_echo(&status) : carry_out(request, &status);
    dtm_lane(request->group)->stepped = NULL;
    request->ended = dtm_comm_now();
    request->sent = comm->lanes[p->lane].sent - sent;
    pthread_mutex_lock(&p->lock);
    p->first = request->next;
    if (!p->first) p->last = &p->first;
    p->failed = p->failed || !ok;
    request->status = status;
    request->status.failed = !ok;
    request->done = true;
    pthread_cond_broadcast(&p->done);
}

/* `polls` is cleared before the look, so that what is started during it is not forgotten. */
static void look(dtm_progress *p) {
    dtm_comm *comm = p->comm;
    double nap = NAP_PART * (dtm_comm_now() - p->moved);
    bool done = false;
    p->polls = false;
    pthread_mutex_unlock(&p->lock);
    nap = nap < NAP_LEAST ? NAP_LEAST : nap > NAP_MOST ? NAP_MOST : nap;
    nanosleep(&(struct timespec){0, (long)(nap * 1e9)}, NULL);
    bool more = comm->transport->poll(comm, &done);
    pthread_mutex_lock(&p->lock);
    if (done) p->moved = dtm_comm_now();
    p->polls = p->polls || more;
}

static void *run(void *argument) {
    dtm_progress *p = argument;
    dtm_lane_set(p->lane);
    dtm_thread_leave_core();
    pthread_mutex_lock(&p->lock);
    for (;;) {
        if (p->first)
            run_first(p);
        else if (p->ends)
            break;
        else if (p->polls)
            look(p);
        else
            pthread_cond_wait(&p->work, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* With the lock. */
static bool begin(dtm_progress *p, dtm_status *status) {
    int rank = p->comm->rank;
    if (p->started) return true;
    if (p->ends) return dtm_status_fail(status, "rank %d starts an operation after its end", rank);
    int error = pthread_create(&p->thread, NULL, run, p);
    if (error) return dtm_status_fail_errno(status, error, "cannot start the thread of a stream of rank %d", rank);
    p->started = true;
    return true;
}

/* ---- for the rank ---- */

bool dtm_progress_wake(dtm_comm *comm, dtm_status *status) {
    dtm_progress *p = &comm->streams[0];
    pthread_mutex_lock(&p->lock);
    bool ok = begin(p, status);
    if (!p->polls) pthread_cond_signal(&p->work);
    p->polls = true;
    p->moved = dtm_comm_now();
    pthread_mutex_unlock(&p->lock);
    return ok;
}

static void end(dtm_progress *p) {
    pthread_mutex_lock(&p->lock);
    bool started = p->started;
    p->ends = true;
    p->started = false;
    pthread_cond_signal(&p->work);
    pthread_cond_broadcast(&p->step);
    pthread_mutex_unlock(&p->lock);
    if (started) pthread_join(p->thread, NULL);
}

void dtm_progress_end(dtm_comm *comm) {
    for (int s = 0; s < DTM_STREAMS; s++) end(&comm->streams[s]);
}

static bool start(dtm_group *group, dtm_collective_request *request, dtm_status *status) {
    dtm_progress *p = &group->comm->streams[dtm_lane(group)->stream];
    dtm_pace_before(group->comm);
    request->next = NULL;
    request->group = group;
    request->label = dtm_lane(group)->label;
    request->microbatch = dtm_lane(group)->microbatch;
    request->done = false;
    request->in_steps = dtm_lane(group)->stepping;
    request->stream = dtm_lane(group)->stream;
    dtm_lane(group)->stepping = false;
    request->after = dtm_lane(group)->after;
    dtm_lane(group)->stream = 0;
    dtm_lane(group)->after = NULL;
    pthread_mutex_lock(&p->lock);
    bool ok = begin(p, status);
    if (ok) {
        *p->last = request;
        p->last = &request->next;
        pthread_cond_signal(&p->work);
    }
    pthread_mutex_unlock(&p->lock);
    return ok;
}

bool dtm_all_reduce_start(dtm_group *group, dtm_algorithm algorithm, dtm_reduction reduction, dtm_reduce_type type,
                          const void *input, void *output, int64_t count, void *scratch,
                          dtm_collective_request *request, dtm_status *status) {
    *request = (dtm_collective_request){.kind = DTM_COLLECTIVE_ALL_REDUCE, .algorithm = algorithm,
                                        .reduction = reduction, .type = type, .input = input, .output = output,
                                        .scratch = scratch, .count = count};
    return start(group, request, status);
}

bool dtm_reduce_scatter_start(dtm_group *group, dtm_algorithm algorithm, dtm_reduction reduction, dtm_reduce_type type,
                              const void *input, void *output, const int64_t *counts, void *scratch,
                              dtm_collective_request *request, dtm_status *status) {
    *request = (dtm_collective_request){.kind = DTM_COLLECTIVE_REDUCE_SCATTER, .algorithm = algorithm,
                                        .reduction = reduction, .type = type, .input = input, .output = output,
                                        .scratch = scratch, .counts = counts};
    return start(group, request, status);
}

bool dtm_all_gather_start(dtm_group *group, dtm_algorithm algorithm, const void *input, void *output,
                          const int64_t *bytes, dtm_collective_request *request, dtm_status *status) {
    *request = (dtm_collective_request){.kind = DTM_COLLECTIVE_ALL_GATHER, .algorithm = algorithm, .input = input,
                                        .output = output, .counts = bytes};
    return start(group, request, status);
}

bool dtm_all_to_all_start(dtm_group *group, dtm_algorithm algorithm, const void *input, const int64_t *send_bytes,
                          void *output, const int64_t *receive_bytes, dtm_collective_request *request,
                          dtm_status *status) {
    *request = (dtm_collective_request){.kind = DTM_COLLECTIVE_ALL_TO_ALL, .algorithm = algorithm, .input = input,
                                        .output = output, .counts = send_bytes, .receive_counts = receive_bytes};
    return start(group, request, status);
}

bool dtm_collective_wait(dtm_collective_request *request, dtm_status *status) {
    dtm_progress *p = stream_of(request);
    dtm_pace_before(request->group->comm);
    pthread_mutex_lock(&p->lock);
    p->hurries = true;
    while (!request->done) pthread_cond_wait(&p->done, &p->lock);
    p->hurries = false;
    pthread_mutex_unlock(&p->lock);
    dtm_pace_after(request->group->comm, request->ended);
    if (!request->status.failed) return true;
    *status = request->status;
    return false;
}

bool dtm_collective_has_come(dtm_collective_request *request) {
    dtm_progress *p = stream_of(request);
    pthread_mutex_lock(&p->lock);
    bool done = request->done;
    pthread_mutex_unlock(&p->lock);
    return done;
}

/* ---- in steps ---- */

void dtm_group_step(dtm_group *group) { dtm_lane(group)->stepping = true; }
void dtm_group_stream(dtm_group *group, int stream, dtm_collective_request *after) {
    dtm_lane(group)->stream = stream;
    dtm_lane(group)->after = after;
}

void dtm_collective_give(dtm_collective_request *request) {
    dtm_progress *p = stream_of(request);
    pthread_mutex_lock(&p->lock);
    request->given++;
    pthread_cond_broadcast(&p->step);
    pthread_mutex_unlock(&p->lock);
}

bool dtm_collective_come(dtm_collective_request *request, int blocks, dtm_status *status) {
    dtm_progress *p = stream_of(request);
    pthread_mutex_lock(&p->lock);
    while (request->come < blocks && !request->done) pthread_cond_wait(&p->done, &p->lock);
    bool failed = request->done && request->status.failed;
    pthread_mutex_unlock(&p->lock);
    if (failed) *status = request->status;
    return !failed;
}

bool dtm_step_given(dtm_group *group, int blocks) {
    dtm_collective_request *request = dtm_lane(group)->stepped;
    if (!request) return true;
    dtm_progress *p = stream_of(request);
    pthread_mutex_lock(&p->lock);
    while (request->given < blocks && !p->ends) pthread_cond_wait(&p->step, &p->lock);
    bool given = request->given >= blocks;
    pthread_mutex_unlock(&p->lock);
    return given;
}

void dtm_step_come(dtm_group *group) {
    dtm_collective_request *request = dtm_lane(group)->stepped;
    if (!request) return;
    dtm_progress *p = stream_of(request);
    pthread_mutex_lock(&p->lock);
    request->come++;
    pthread_cond_broadcast(&p->done);
    pthread_mutex_unlock(&p->lock);
}
