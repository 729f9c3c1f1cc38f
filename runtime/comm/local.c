/* The transport `local`: ranks are threads of one process. A send lies in its receiver's mailbox until a receive that
 * matches (source, tag) takes it, or the other way round; then whoever came second copies the bytes, straight from one
 * rank's memory into the other's: so what was started moves without anybody waiting for it. There is no buffering, so a
 * program that needs some hangs here first.
 *
 * With links, or delays, what has been matched is done at a time to come, `ended`; whoever waits for it sleeps until then. With
 * delays it also shows who did not wait: what is received holds NaN from when it is posted until its wait, and at the wait of a
 * send its bytes must be those that were sent. Each side has a copy of them meanwhile (`handle`); where a run fails before
 * a wait the copy stays until the process ends.
 *
 * A failed rank poisons the world: all who wait are woken, and their operations fail as echoes. As a rank that leaves
 * takes its buffers with it, it first takes back what nobody has matched, and waits until nobody copies from or to it
 * (`copying`). Once the world is poisoned nothing is put into a mailbox. */
#include "runtime/comm/transport.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

typedef struct queue {
    dtm_request *first, **last;
} queue;

/* A way into or out of a rank, when it is taken: from .. to, in order. */
typedef struct port {
    double (*taken)[2];
    size_t count, capacity;
} port;

typedef struct mailbox {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* this rank's wait may go on */
    queue sends, receives;  /* posted to this rank; posted by it */
    _Atomic int copying;    /* messages of this rank, sent or received, that have been matched and are not done */
    port out[2], in[2];     /* to and from its node, and the network; with the world's lock */
} mailbox;

typedef struct world {
    int size;
    mailbox *boxes;
    dtm_comm *comms;
    dtm_local_options options;
    _Atomic uint64_t delays; /* drawn so far */
    _Atomic bool poisoned;
    pthread_mutex_t lock; /* of status, the barrier and ports */
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

/* Takes what this rank has posted out of a queue. */
static void take_back(queue *q, int owner) {
    for (dtm_request **at = &q->first; *at;) {
        if ((*at)->owner == owner)
            *at = (*at)->next;
        else
            at = &(*at)->next;
    }
    q->last = &q->first;
    while (*q->last) q->last = &(*q->last)->next;
}

static bool local_withdraw(dtm_comm *comm) {
    world *w = comm->state;
    for (int i = 0; i < w->size; i++) {
        mailbox *box = &w->boxes[i];
        pthread_mutex_lock(&box->lock);
        take_back(&box->sends, comm->rank);
        if (i == comm->rank) {
            take_back(&box->receives, comm->rank);
            pthread_cond_broadcast(&box->changed);
        }
        pthread_mutex_unlock(&box->lock);
    }
    while (w->boxes[comm->rank].copying > 0) sched_yield();
    return true;
}

/* How every operation of a poisoned world ends. */
static bool leave(dtm_comm *comm, dtm_status *status) {
    local_withdraw(comm);
    return dtm_status_echo(status);
}

/* ---- how long a message takes ---- */

static bool on_one_node(const dtm_links *links, int a, int b) {
    return a / links->devices_per_node == b / links->devices_per_node;
}

/* From when on, not before t, a port is free for so long. */
static double free_from(const port *p, double t, double seconds) {
    for (size_t i = 0; i < p->count; i++)
        if (p->taken[i][0] < t + seconds && t < p->taken[i][1]) t = p->taken[i][1];
    return t;
}

static bool take(port *p, double now, double from, double to) {
    size_t past = 0;
    while (past < p->count && p->taken[past][1] <= now) past++;
    p->count -= past;
    if (past) memmove(p->taken, p->taken + past, p->count * sizeof *p->taken);
    if (p->count == p->capacity) {
        size_t capacity = 2 * p->capacity + 8;
        double(*taken)[2] = realloc(p->taken, capacity * sizeof *taken);
        if (!taken) return false;
        p->taken = taken;
        p->capacity = capacity;
    }
    size_t at = p->count++;
    for (; at > 0 && p->taken[at - 1][0] > from; at--) memcpy(p->taken[at], p->taken[at - 1], sizeof *p->taken);
    p->taken[at][0] = from;
    p->taken[at][1] = to;
    return true;
}

/* When the message is out of its sender, and when it is with its receiver. It has both ports for itself as long as its bytes take, as
 * soon as both are free for so long: where it waits for one, others may use the other meanwhile. false: out of memory. */
static bool schedule(world *w, const dtm_links *links, dtm_request *send, const dtm_request *receive, double *sent,
                     double *arrived) {
    bool ok = true;
    double now = *sent = *arrived = dtm_comm_now();
    if (links && send->owner != receive->owner) {
        bool node = on_one_node(links, send->owner, receive->owner);
        double seconds = (double)send->bytes / (node ? links->node_bandwidth : links->network_bandwidth), before;
        port *out = &w->boxes[send->owner].out[!node], *in = &w->boxes[receive->owner].in[!node];
        pthread_mutex_lock(&w->lock);
        do {
            before = *sent;
            *sent = free_from(in, free_from(out, *sent, seconds), seconds);
        } while (*sent > before);
        send->started = *sent;
        *sent += seconds;
        ok = take(out, now, send->started, *sent) && take(in, now, send->started, *sent);
        pthread_mutex_unlock(&w->lock);
        *arrived = *sent + (node ? links->node_latency : links->network_latency);
    }
    if (w->options.delay > 0) { /* splitmix64 */
        uint64_t x = w->options.seed + 0x9e3779b97f4a7c15u * ++w->delays;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        x ^= x >> 31;
        *sent += w->options.delay * (double)(x >> 32) * 0x1p-32;
        *arrived += w->options.delay * (double)(uint32_t)x * 0x1p-32;
    }
    return ok;
}

/* The request may be gone as soon as done is seen, so its owner is read before. */
static void complete(world *w, dtm_request *request, double ended, bool at_once) {
    mailbox *box = &w->boxes[request->owner];
    pthread_mutex_lock(&box->lock);
    request->ended = ended;
    if (at_once)
        request->done = 1;
    else
        request->matched = 1;
    pthread_cond_broadcast(&box->changed);
    pthread_mutex_unlock(&box->lock);
    box->copying--;
}

static bool keep_bytes(dtm_request *request, const void *data) {
    request->handle.pointer = malloc((size_t)request->bytes);
    if (request->handle.pointer) memcpy(request->handle.pointer, data, (size_t)request->bytes);
    return request->handle.pointer != NULL;
}

static bool deliver(world *w, dtm_request *send, dtm_request *receive, dtm_status *status) {
    if (send->bytes != receive->bytes) {
        dtm_status_fail(status, "rank %d sends %lld bytes to rank %d, which expects %lld (tag %d)", send->owner,
                        (long long)send->bytes, receive->owner, (long long)receive->bytes, send->tag);
        w->boxes[send->owner].copying--;
        w->boxes[receive->owner].copying--;
        return false;
    }
    double sent, arrived;
    bool linked = w->options.links && send->linked && receive->linked, at_once = !linked && w->options.delay <= 0;
    bool moves = !send->pretends || !receive->pretends, kept = moves && w->options.delay > 0;
    if ((kept && (!keep_bytes(send, send->data) || !keep_bytes(receive, send->data))) ||
        !schedule(w, linked ? w->options.links : NULL, send, receive, &sent, &arrived)) {
        dtm_status_fail(status, "out of memory for a message of %lld bytes", (long long)send->bytes);
        w->boxes[send->owner].copying--;
        w->boxes[receive->owner].copying--;
        return false;
    }
    if (moves && !kept) memcpy(receive->data, send->data, (size_t)send->bytes);
    complete(w, send, sent, at_once);
    complete(w, receive, arrived, at_once);
    return true;
}

/* Puts a request into the receiver's box, or matches it with the oldest one that waits there. */
static bool post(dtm_comm *comm, dtm_request *request, dtm_status *status) {
    world *w = comm->state;
    bool sends = request->sends;
    mailbox *box = &w->boxes[sends ? request->peer : request->owner];
    queue *others = sends ? &box->receives : &box->sends, *own = sends ? &box->sends : &box->receives;
    request->handle.pointer = NULL;
    if (!sends && w->options.delay > 0 && !request->pretends) memset(request->data, 0xff, (size_t)request->bytes); /* NaN */
    pthread_mutex_lock(&box->lock);
    bool poisoned = w->poisoned;
    dtm_request *match = poisoned ? NULL : queue_take(others, request->peer, request->owner, request->tag);
    if (match) {
        w->boxes[match->owner].copying++;
        w->boxes[request->owner].copying++;
    } else if (!poisoned) {
        queue_append(own, request);
    }
    pthread_mutex_unlock(&box->lock);
    if (poisoned) return leave(comm, status);
    if (!match || deliver(w, sends ? request : match, sends ? match : request, status)) return true;
    poison(w, status);
    local_withdraw(comm);
    return false;
}

/* All members are threads of this process: one can look who has come to the operation. Where the other side of a message
 * waits itself, for somebody else perhaps, that one is given time to tell, once. */
static bool hang(dtm_comm *comm, bool *waited_twice, dtm_status *status) {
    world *w = comm->state;
    const dtm_lane_state state = dtm_operation_now(comm);
    const dtm_group *group = state.group;
    const dtm_operation *o = &state.operation;
    if (group && o->peer >= 0 && !*waited_twice && dtm_comm_waits(&w->comms[o->peer])) {
        *waited_twice = true;
        return true;
    }
    signed char *arrived = group && o->sequence ? malloc((size_t)group->size) : NULL;
    for (int i = 0; arrived && i < group->size; i++) {
        bool asks_collective = o->peer < 0;
        int64_t progress = dtm_comm_progress(&w->comms[group->ranks[i]], state.tag, asks_collective ? -1 : comm->rank,
                                             !asks_collective && !o->sends);
        arrived[i] = progress >= o->sequence ? DTM_ARRIVED : DTM_ARRIVED_NOT;
    }
    dtm_watchdog_fail(comm, arrived, status);
    free(arrived);
    poison(w, status);
    leave(comm, status);
    return false;
}

static bool overdue(dtm_comm *comm, double started) {
    return comm->deadline > 0 && dtm_comm_now() - started > comm->deadline;
}

/* Whether the calling thread, of a stream, is to give up. */
static bool given_up(dtm_comm *comm) {
    const dtm_progress *stream = dtm_progress_of_thread(comm);
    return stream && stream->quiet;
}

static bool is_over(const dtm_request *request) {
    return request->done || request->matched;
}

/* Until a message that has been matched is there. */
static bool sleep_until(dtm_comm *comm, dtm_request *request, dtm_status *status) {
    world *w = comm->state;
    for (double now = dtm_comm_now(); now < request->ended; now = dtm_comm_now()) {
        double rest = request->ended - now, nap = rest < GLANCE_SECONDS ? rest : GLANCE_SECONDS;
        nanosleep(&(struct timespec){0, (long)(nap * 1e9)}, NULL);
        if (w->poisoned) return leave(comm, status);
        if (given_up(comm)) return dtm_status_echo(status);
    }
    void *kept = request->handle.pointer;
    bool changed = kept && request->sends && memcmp(request->data, kept, (size_t)request->bytes) != 0;
    if (kept && !request->sends) memcpy(request->data, kept, (size_t)request->bytes);
    free(kept);
    request->done = 1;
    if (!changed) return true;
    dtm_status_fail(status, "what rank %d sends to rank %d (%s) was changed before the send had ended", request->owner,
                    request->peer, request->label ? request->label : "no name");
    poison(w, status);
    return leave(comm, status);
}

static bool wait_one(dtm_comm *comm, dtm_request *request, dtm_status *status) {
    world *w = comm->state;
    mailbox *box = &w->boxes[comm->rank];
    bool own = dtm_lane_of_thread() == LANE_OWN, waited_twice = false;
    for (int i = 0; own && i < SPINS && !is_over(request); i++)
        if (i > SPINS / 2) sched_yield();
    if (!is_over(request)) dtm_operation_waits_for(comm, request);
    for (double started = dtm_comm_now(); !is_over(request); started = dtm_comm_now()) {
        pthread_mutex_lock(&box->lock);
        while (!is_over(request) && !w->poisoned && !given_up(comm) && !overdue(comm, started))
            timed_wait(&box->changed, &box->lock);
        bool over = is_over(request);
        pthread_mutex_unlock(&box->lock);
        if (over) break;
        if (w->poisoned) return leave(comm, status);
        if (given_up(comm)) return dtm_status_echo(status);
        if (!hang(comm, &waited_twice, status)) return false;
    }
    return request->done || sleep_until(comm, request, status);
}

/* What a message that was on its way has brought is taken by nobody when its rank gives up. */
static void forget(dtm_request *request) {
    if (request->done || !request->matched) return;
    free(request->handle.pointer);
    request->handle.pointer = NULL;
    request->done = 1;
}

static bool local_wait(dtm_comm *comm, dtm_request *requests, int count, dtm_status *status) {
    int i = 0;
    while (i < count && (requests[i].done || wait_one(comm, &requests[i], status))) i++;
    for (int k = i; k < count; k++) forget(&requests[k]);
    return i == count;
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
    if (w->poisoned) return leave(comm, status);
    return hang(comm, &(bool){true}, status);
}

static void local_abort(dtm_comm *comm, const dtm_status *status) {
    dtm_status ignored = *status;
    if (!status->echo) poison(comm->state, status);
    leave(comm, &ignored);
}

static bool local_lost(dtm_comm *comm) { return ((world *)comm->state)->poisoned; }

static void local_close(dtm_comm *comm) {
    (void)comm;
} /* dtm_local_run frees */

static const dtm_transport local_transport = {.name = "local",
                                              .post_send = post,
                                              .post_receive = post,
                                              .wait = local_wait,
                                              .withdraw = local_withdraw,
                                              .barrier = local_barrier,
                                              .abort = local_abort,
                                              .lost = local_lost,
                                              .close = local_close};

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
    /* What is simulated sleeps for short times. */
    if (((world *)rank->comm->state)->options.links) prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    bool ok = rank->function(rank->comm, rank->argument, &status);
    /* An echo leaves in silence: the rank that reports wakes the others. */
    if (!ok && !status.echo) {
        if (!status.failed) dtm_status_fail(&status, "rank %d failed without a message", rank->comm->rank);
        poison(rank->comm->state, &status);
    }
    dtm_comm_quiet(rank->comm);
    return NULL;
}

static bool world_create(world *w, int ranks, const dtm_local_options *options, dtm_status *status) {
    memset(w, 0, sizeof *w);
    if (options) w->options = *options;
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
        for (int link = 0; link < 2; link++) free(w->boxes[i].out[link].taken), free(w->boxes[i].in[link].taken);
    }
    free(w->boxes);
    free(w->comms);
}

bool dtm_local_run(int ranks, dtm_rank_main function, void *argument, dtm_status *status) {
    return dtm_local_run_with(ranks, NULL, function, argument, status);
}

bool dtm_local_run_with(int ranks, const dtm_local_options *options, dtm_rank_main function, void *argument,
                        dtm_status *status) {
    if (ranks < 1) return dtm_status_fail(status, "cannot run %d ranks", ranks);
    world w;
    rank_thread *threads = calloc((size_t)ranks, sizeof *threads);
    if (!world_create(&w, ranks, options, status) || !threads) {
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
