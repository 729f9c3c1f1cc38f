/* The transport `local`: ranks are threads of one process. A send lies in its receiver's mailbox until a receive that
 * matches (source, tag) takes it, or the other way round; then whoever came second copies the bytes, straight from one
 * rank's memory into the other's. There is no buffering, so a program that needs some hangs here first.
 *
 * A failed rank poisons the world: all who wait are woken, and their operations fail as echoes. As a rank that leaves
 * takes its buffers with it, it first waits until nobody is copying: `matching` counts the posts under way, each counts
 * itself before it looks whether the world is poisoned, and a post that finds it so matches nothing. */
#include "runtime/comm/transport.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct queue {
    dtm_request *first, **last;
} queue;

typedef struct mailbox {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* this rank's wait may go on */
    queue sends, receives;  /* posted to this rank; posted by it */
} mailbox;

typedef struct world {
    int size;
    mailbox *boxes;
    dtm_comm *comms;
    _Atomic bool poisoned;
    _Atomic int matching;
    pthread_mutex_t lock; /* of status and the barrier */
    pthread_cond_t barrier_changed;
    dtm_status status; /* the failure that came first */
    int barrier_waiting;
    int64_t barrier_round;
} world;

/* Checks before a rank sleeps: a neighbour that runs answers within microseconds. */
enum { SPINS = 200 };
/* Sleepers wake this often to look at the clock. */
static const double GLANCE_SECONDS = 0.1;

static void queue_clear(queue *q) {
    q->first = NULL;
    q->last = &q->first;
}

static void queue_append(queue *q, dtm_request *request) {
    request->next = NULL;
    *q->last = request;
    q->last = &request->next;
}

/* Takes the oldest request that this peer's tag matches. */
static dtm_request *queue_take(queue *q, int owner, int peer, int tag) {
    for (dtm_request **at = &q->first; *at; at = &(*at)->next) {
        dtm_request *request = *at;
        if (request->tag != tag || request->owner != owner || request->peer != peer) continue;
        *at = request->next;
        if (q->last == &request->next) q->last = at;
        return request;
    }
    return NULL;
}

static void timed_wait(pthread_cond_t *condition, pthread_mutex_t *lock) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(GLANCE_SECONDS * 1e9);
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(condition, lock, &until);
}

static void poison(world *w, const dtm_status *status) {
    pthread_mutex_lock(&w->lock);
    if (!w->status.failed) {
        w->status = *status;
        w->status.failed = true;
    }
    w->poisoned = true;
    pthread_cond_broadcast(&w->barrier_changed);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->size; i++) {
        pthread_mutex_lock(&w->boxes[i].lock);
        pthread_cond_broadcast(&w->boxes[i].changed);
        pthread_mutex_unlock(&w->boxes[i].lock);
    }
}

/* How every operation of a poisoned world ends. */
static bool leave(world *w, dtm_status *status) {
    while (w->matching > 0) sched_yield();
    return dtm_status_echo(status);
}

/* The request may be gone as soon as done is seen, so its owner is read before. */
static void complete(world *w, dtm_request *request) {
    mailbox *box = &w->boxes[request->owner];
    pthread_mutex_lock(&box->lock);
    request->done = 1;
    pthread_cond_broadcast(&box->changed);
    pthread_mutex_unlock(&box->lock);
}

static bool deliver(world *w, dtm_request *send, dtm_request *receive, dtm_status *status) {
    if (send->bytes != receive->bytes) {
        dtm_status_fail(status, "rank %d sends %lld bytes to rank %d, which expects %lld (tag %d)", send->owner,
                        (long long)send->bytes, receive->owner, (long long)receive->bytes, send->tag);
        return false;
    }
    memcpy(receive->data, send->data, (size_t)send->bytes);
    complete(w, send);
    complete(w, receive);
    return true;
}

static void fill(dtm_request *request, int owner, int peer, int tag, void *data, int64_t bytes) {
    request->data = data;
    request->bytes = bytes;
    request->owner = owner;
    request->peer = peer;
    request->tag = tag;
    request->done = 0;
}

/* Puts a request into the receiver's box, or matches it with the oldest one that waits there. */
static bool post(world *w, dtm_request *request, bool sends, dtm_status *status) {
    int receiver = sends ? request->peer : request->owner;
    mailbox *box = &w->boxes[receiver];
    queue *others = sends ? &box->receives : &box->sends, *own = sends ? &box->sends : &box->receives;
    w->matching++;
    if (w->poisoned) {
        w->matching--;
        return leave(w, status);
    }
    pthread_mutex_lock(&box->lock);
    dtm_request *match = queue_take(others, request->peer, request->owner, request->tag);
    if (!match) queue_append(own, request);
    pthread_mutex_unlock(&box->lock);
    bool ok = !match || deliver(w, sends ? request : match, sends ? match : request, status);
    w->matching--;
    if (ok) return true;
    poison(w, status);
    leave(w, status);
    return false;
}

static bool local_post_send(dtm_comm *comm, int to, int tag, const void *data, int64_t bytes, dtm_request *request,
                            dtm_status *status) {
    fill(request, comm->rank, to, tag, (void *)data, bytes);
    return post(comm->state, request, true, status);
}

static bool local_post_receive(dtm_comm *comm, int from, int tag, void *data, int64_t bytes, dtm_request *request,
                               dtm_status *status) {
    fill(request, comm->rank, from, tag, data, bytes);
    return post(comm->state, request, false, status);
}

/* All members are threads of this process: one can look who has begun the collective. */
static bool hang(dtm_comm *comm, dtm_status *status) {
    world *w = comm->state;
    pthread_mutex_lock(&comm->lock);
    dtm_group *group = comm->operation_group;
    int64_t sequence = comm->operation.sequence;
    pthread_mutex_unlock(&comm->lock);
    signed char *arrived = group && sequence ? malloc((size_t)group->size) : NULL;
    for (int i = 0; arrived && i < group->size; i++)
        arrived[i] = dtm_comm_progress(&w->comms[group->ranks[i]], group->tag) >= sequence;
    dtm_watchdog_fail(comm, arrived, status);
    free(arrived);
    poison(w, status);
    leave(w, status);
    return false;
}

static bool overdue(dtm_comm *comm, double started) {
    return comm->deadline > 0 && dtm_comm_now() - started > comm->deadline;
}

static bool wait_one(dtm_comm *comm, dtm_request *request, dtm_status *status) {
    world *w = comm->state;
    mailbox *box = &w->boxes[comm->rank];
    for (int i = 0; i < SPINS; i++) {
        if (request->done) return true;
        if (i > SPINS / 2) sched_yield();
    }
    double started = dtm_comm_now();
    pthread_mutex_lock(&box->lock);
    while (!request->done && !w->poisoned && !overdue(comm, started)) timed_wait(&box->changed, &box->lock);
    bool done = request->done;
    pthread_mutex_unlock(&box->lock);
    if (done) return true;
    if (w->poisoned) return leave(w, status);
    return hang(comm, status);
}

static bool local_wait(dtm_comm *comm, dtm_request *requests, int count, dtm_status *status) {
    for (int i = 0; i < count; i++)
        if (!requests[i].done && !wait_one(comm, &requests[i], status)) return false;
    return true;
}

static bool local_barrier(dtm_comm *comm, dtm_status *status) {
    world *w = comm->state;
    double started = dtm_comm_now();
    pthread_mutex_lock(&w->lock);
    int64_t round = w->barrier_round;
    if (++w->barrier_waiting == w->size) {
        w->barrier_waiting = 0;
        w->barrier_round++;
        pthread_cond_broadcast(&w->barrier_changed);
    }
    while (round == w->barrier_round && !w->poisoned && !overdue(comm, started))
        timed_wait(&w->barrier_changed, &w->lock);
    bool done = round != w->barrier_round;
    pthread_mutex_unlock(&w->lock);
    if (done) return true;
    if (w->poisoned) return leave(w, status);
    return hang(comm, status);
}

static void local_abort(dtm_comm *comm, const dtm_status *status) {
    dtm_status ignored = *status;
    if (!status->echo) poison(comm->state, status);
    leave(comm->state, &ignored);
}

static void local_close(dtm_comm *comm) {
    (void)comm;
} /* dtm_local_run frees */

static const dtm_transport local_transport = {"local",       local_post_send, local_post_receive, local_wait,
                                              local_barrier, local_abort,     local_close};

/* ---- a run ---- */

typedef struct rank_thread {
    pthread_t thread;
    dtm_comm *comm;
    dtm_rank_main function;
    void *argument;
    bool started;
} rank_thread;

static void *run_rank(void *argument) {
    rank_thread *rank = argument;
    dtm_status status = {0};
    bool ok = rank->function(rank->comm, rank->argument, &status);
    /* An echo leaves in silence: the rank that reports wakes the others. */
    if (!ok && !status.echo) {
        if (!status.failed) dtm_status_fail(&status, "rank %d failed without a message", rank->comm->rank);
        poison(rank->comm->state, &status);
        leave(rank->comm->state, &status);
    }
    return NULL;
}

static bool world_create(world *w, int ranks, dtm_status *status) {
    memset(w, 0, sizeof *w);
    w->boxes = calloc((size_t)ranks, sizeof *w->boxes);
    w->comms = calloc((size_t)ranks, sizeof *w->comms);
    if (!w->boxes || !w->comms) return dtm_status_fail(status, "out of memory for %d local ranks", ranks);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->barrier_changed, NULL);
    for (; w->size < ranks; w->size++) {
        mailbox *box = &w->boxes[w->size];
        pthread_mutex_init(&box->lock, NULL);
        pthread_cond_init(&box->changed, NULL);
        queue_clear(&box->sends);
        queue_clear(&box->receives);
        if (!dtm_comm_init(&w->comms[w->size], &local_transport, w, w->size, ranks, status)) return false;
    }
    return true;
}

static void world_destroy(world *w) {
    for (int i = 0; i < w->size; i++) {
        dtm_comm_release(&w->comms[i]);
        pthread_mutex_destroy(&w->boxes[i].lock);
        pthread_cond_destroy(&w->boxes[i].changed);
    }
    free(w->boxes);
    free(w->comms);
}

bool dtm_local_run(int ranks, dtm_rank_main function, void *argument, dtm_status *status) {
    if (ranks < 1) return dtm_status_fail(status, "cannot run %d ranks", ranks);
    world w;
    rank_thread *threads = calloc((size_t)ranks, sizeof *threads);
    if (!world_create(&w, ranks, status) || !threads) {
        dtm_status_fail(status, "out of memory for %d local ranks", ranks);
    } else {
        for (int i = 0; i < ranks; i++) {
            threads[i] = (rank_thread){.comm = &w.comms[i], .function = function, .argument = argument};
            int error = pthread_create(&threads[i].thread, NULL, run_rank, &threads[i]);
            threads[i].started = error == 0;
            if (error == 0) continue;
            dtm_status_fail_errno(status, error, "cannot start thread %d of %d local ranks", i, ranks);
            poison(&w, status);
            break;
        }
        for (int i = 0; i < ranks; i++)
            if (threads[i].started) pthread_join(threads[i].thread, NULL);
        if (w.status.failed && !status->failed) *status = w.status;
        if (w.poisoned) dtm_status_fail(status, "a rank failed without a message");
    }
    world_destroy(&w);
    free(threads);
    return !status->failed;
}
