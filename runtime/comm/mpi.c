/* The transport `mpi`. Data goes by MPI_Isend, MPI_Irecv and MPI_Test alone, so that a library which wraps them through
 * MPI's profiling interface counts exactly what dtm sends. A message longer than CHUNK goes in several, as counts are
 * ints in MPI.
 *
 * Waiting is a loop of MPI_Test, so that a rank that waits can look at the clock and answer the others. What was started
 * and is not waited for is tested by the thread of a stream, as MPI moves messages only within its calls; the threads
 * take turns in MPI by a lock (MPI_THREAD_SERIALIZED). Ranks talk on a communicator of their own, only when something is
 * wrong:
 *
 *     QUERY(tag, ..)        "my operation is overdue: have you begun it?"     answered by every rank that waits
 *     REPLY(tag, sequence)  "I have begun this many on that group"
 *     ENDING                "I print a message and end all": a higher rank that fails too stays silent */
#include "runtime/comm/transport.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef DTM_MPI_CHUNK /* a test sends in small ones */
#define DTM_MPI_CHUNK ((int64_t)1 << 30)
#endif
static const int64_t CHUNK = DTM_MPI_CHUNK;
enum { CONTROL_TAG = 1, SPINS = 2000 };
static const double GLANCE_SECONDS = 0.1;       /* between looks at the control messages while waiting */
static const double SLEEP_AFTER_SECONDS = 0.02; /* a wait this long may cost a nap's latency */
static const double REPLY_SECONDS = 1.0;        /* how long the watchdog waits for the others' answers */
static const double ENDING_SECONDS = 0.2;       /* how long a failing rank listens whether a lower one fails too */
static const double KILLED_SECONDS = 10;        /* how long a silent one waits to be ended */
static const double TOLD_SECONDS = 0.1;         /* for the launcher to pass the message on: what it has not read is lost */

enum control_kind { QUERY, REPLY, ENDING };
enum asked { COLLECTIVES, SENDS, RECEIVES }; /* of a query: of what kind the operation is, seen from the rank asked */
typedef struct control {
    int64_t kind, tag, asked, sequence, rank;
} control;

/* While the watchdog of a lane asks. */
typedef struct question {
    signed char *arrived; /* of each member; NULL: it does not ask */
    const dtm_group *group;
    int tag;
    int64_t sequence;
} question;

typedef struct mpi_state {
    pthread_mutex_t lock; /* of all that follows, and of MPI */
    dtm_request *started; /* outside of an operation, and not known to be done */
    int64_t under_way;    /* messages of this rank */
    bool ending;          /* a thread of this rank ends all */
    MPI_Comm data, control;
    MPI_Request listening; /* always one receive posted for control messages */
    control heard;
    int lowest_ending; /* the lowest rank that announced a failure, or the world's size */
    question questions[DTM_LANES];
} mpi_state;

static void enter(mpi_state *state) {
    pthread_mutex_lock(&state->lock);
}
static void leave(mpi_state *state) {
    pthread_mutex_unlock(&state->lock);
}

static bool check(int code, const char *what, dtm_status *status) {
    if (code == MPI_SUCCESS) return true;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return dtm_status_fail(status, "MPI: %s failed: %.*s", what, length, text);
}

/* ---- messages ---- */

/* A request's MPI requests: in handle if it is one (MPI_Request is an int or a pointer), else in an array. */
static MPI_Request *parts(dtm_request *request) {
    _Static_assert(sizeof(MPI_Request) <= sizeof request->handle, "an MPI_Request fits in a dtm_request");
    return request->chunks == 1 ? (MPI_Request *)(void *)&request->handle : request->handle.pointer;
}

/* How many of the parts could be posted: all, or the status says why not. */
static int post_parts(mpi_state *state, dtm_request *request, dtm_status *status) {
    for (int i = 0; i < request->chunks; i++) {
        char *part = (char *)request->data + i * CHUNK;
        int64_t rest = request->bytes - i * CHUNK;
        int size = (int)(rest < CHUNK ? rest : CHUNK), peer = request->peer, tag = request->tag;
        int code = request->sends ? MPI_Isend(part, size, MPI_BYTE, peer, tag, state->data, &parts(request)[i])
                                  : MPI_Irecv(part, size, MPI_BYTE, peer, tag, state->data, &parts(request)[i]);
        if (!check(code, request->sends ? "send" : "receive", status)) return i;
    }
    return request->chunks;
}

/* Those that were posted before one that could not be. MPI may still read or fill their memory, so the message counts as
 * under way. */
static void give_up_parts(dtm_request *request, int posted) {
    for (int i = 0; i < posted; i++) {
        if (!request->sends) MPI_Cancel(&parts(request)[i]);
        MPI_Request_free(&parts(request)[i]);
    }
    if (request->chunks > 1) free(request->handle.pointer);
}

static bool mpi_post(dtm_comm *comm, dtm_request *request, dtm_status *status) {
    mpi_state *state = comm->state;
    request->chunks = (int)((request->bytes + CHUNK - 1) / CHUNK);
    if (request->chunks > 1) {
        request->handle.pointer = malloc((size_t)request->chunks * sizeof(MPI_Request));
        if (!request->handle.pointer) return dtm_status_fail(status, "out of memory for a message's parts");
    }
    enter(state);
    int posted = post_parts(state, request, status);
    bool ok = posted == request->chunks;
    if (!ok) give_up_parts(request, posted);
    if (posted > 0) state->under_way++;
    if (ok && comm->lanes[dtm_lane_of_thread()].depth == 0) {
        request->listed = true;
        request->next = state->started;
        state->started = request;
    }
    leave(state);
    return ok;
}

/* With the lock. The owner may take the request back as soon as done is seen. */
static bool test(mpi_state *state, dtm_request *request, dtm_status *status) {
    /* A part that is done has become MPI_REQUEST_NULL, which is done again. */
    for (int i = 0; i < request->chunks; i++) {
        int flag = 0, code = MPI_Test(&parts(request)[i], &flag, MPI_STATUS_IGNORE);
        char what[80];
        if (code != MPI_SUCCESS) {
            snprintf(what, sizeof what, "transfer between rank %d and rank %d", request->owner, request->peer);
            return check(code, what, status);
        }
        if (!flag) return true;
    }
    if (request->chunks > 1) free(request->handle.pointer);
    for (dtm_request **at = &state->started; request->listed && *at; at = &(*at)->next)
        if (*at == request) {
            *at = request->next;
            break;
        }
    state->under_way--;
    request->ended = dtm_comm_now();
    request->done = 1;
    return true;
}

/* ---- control messages; with the lock, but for serve_for ---- */

static void tell(mpi_state *state, int to, control message) {
    /* Eager and tiny: it leaves at once. Its memory stays, as the rank is about to end or answers one query. */
    control *copy = malloc(sizeof *copy);
    MPI_Request request;
    if (!copy) return;
    *copy = message;
    if (MPI_Isend(copy, sizeof *copy, MPI_BYTE, to, CONTROL_TAG, state->control, &request) == MPI_SUCCESS)
        MPI_Request_free(&request);
}

static bool listen_again(mpi_state *state, dtm_status *status) {
    int code = MPI_Irecv(&state->heard, sizeof state->heard, MPI_BYTE, MPI_ANY_SOURCE, CONTROL_TAG, state->control,
                         &state->listening);
    return check(code, "receive", status);
}

static void answer(dtm_comm *comm, const control *query) {
    int peer = query->asked == COLLECTIVES ? -1 : (int)query->rank;
    int64_t progress = dtm_comm_progress(comm, (int)query->tag, peer, query->asked == SENDS);
    tell(comm->state, (int)query->rank, (control){REPLY, query->tag, query->asked, progress, comm->rank});
}

static void hear_reply(question *q, const control *reply) {
    if (!q->arrived || reply->tag != q->tag) return;
    for (int i = 0; i < q->group->size; i++)
        if (q->group->ranks[i] == reply->rank)
            q->arrived[i] = reply->sequence >= q->sequence ? DTM_ARRIVED : DTM_ARRIVED_NOT;
}

static bool serve(dtm_comm *comm, dtm_status *status) {
    mpi_state *state = comm->state;
    for (;;) {
        int flag = 0;
        if (!check(MPI_Test(&state->listening, &flag, MPI_STATUS_IGNORE), "test", status)) return false;
        if (!flag) return true;
        control heard = state->heard;
        if (!listen_again(state, status)) return false;
        if (heard.kind == ENDING && heard.rank < state->lowest_ending) state->lowest_ending = (int)heard.rank;
        if (heard.kind == QUERY) answer(comm, &heard);
        for (int l = 0; heard.kind == REPLY && l < DTM_LANES; l++) hear_reply(&state->questions[l], &heard);
    }
}

static void serve_for(dtm_comm *comm, double seconds) {
    mpi_state *state = comm->state;
    dtm_status ignored = {0};
    double end = dtm_comm_now() + seconds;
    while (dtm_comm_now() < end) {
        enter(state);
        serve(comm, &ignored);
        leave(state);
        usleep(1000);
    }
}

/* ---- waiting ---- */

typedef struct patience {
    double started, glanced;
    int spins;
    bool waited_twice;
} patience;

/* Asks all members of the group, of a message the other side alone. Whether somebody stayed silent. */
static bool ask(dtm_comm *comm, const dtm_lane_state *of, signed char *arrived) {
    mpi_state *state = comm->state;
    const dtm_group *group = of->group;
    const dtm_operation *o = &of->operation;
    enum asked asked = o->peer < 0 ? COLLECTIVES : o->sends ? RECEIVES : SENDS;
    question *q = &state->questions[dtm_lane_of_thread()];
    memset(arrived, DTM_SILENT, (size_t)group->size);
    arrived[group->index] = DTM_ARRIVED;
    enter(state);
    *q = (question){arrived, group, of->tag, o->sequence};
    for (int i = 0; i < group->size; i++)
        if (i != group->index && (o->peer < 0 || group->ranks[i] == o->peer))
            tell(state, group->ranks[i], (control){QUERY, of->tag, asked, o->sequence, comm->rank});
    leave(state);
    serve_for(comm, REPLY_SECONDS);
    enter(state);
    q->arrived = NULL;
    leave(state);
    bool silent = false;
    for (int i = 0; i < group->size; i++)
        if (o->peer < 0 || group->ranks[i] == o->peer) silent = silent || arrived[i] == DTM_SILENT;
    for (int i = 0; i < group->size && o->peer < 0; i++)
        if (arrived[i] == DTM_SILENT) arrived[i] = DTM_ARRIVED_NOT;
    return silent;
}

/* Asks the others whether they have begun what hangs. If all answer, those that have not wait themselves, for another
 * rank: then whoever waits for one that is silent will tell, and this rank waits once more. */
static bool hang(dtm_comm *comm, patience *p, dtm_status *status) {
    const dtm_lane_state state = dtm_operation_now(comm);
    signed char *arrived = state.group && state.operation.sequence ? malloc((size_t)state.group->size) : NULL;
    bool silent = !arrived || ask(comm, &state, arrived);
    if (!silent && !p->waited_twice) {
        free(arrived);
        p->waited_twice = true;
        p->started = dtm_comm_now();
        return true;
    }
    dtm_watchdog_fail(comm, arrived, status);
    free(arrived);
    dtm_comm_abort(comm, status);
    return false;
}

static void nap(void) {
    nanosleep(&(struct timespec){0, 50000}, NULL);
}

/* Called when a test found nothing: spins, then yields, then naps; looks at control messages and the deadline. A
 * stream naps at once, as the rank computes, unless the rank waits for it. */
static bool be_patient(dtm_comm *comm, patience *p, dtm_status *status) {
    const dtm_progress *stream = dtm_progress_of_thread(comm);
    if (stream && stream->quiet) return dtm_status_echo(status);
    bool naps = stream && !stream->hurries;
    if (!naps && p->spins++ < SPINS) {
        if (p->spins > 50) sched_yield();
        return true;
    }
    double now = dtm_comm_now();
    if (p->started == 0) p->started = p->glanced = now;
    if (now - p->glanced >= GLANCE_SECONDS) {
        p->glanced = now;
        enter(comm->state);
        bool ok = serve(comm, status);
        leave(comm->state);
        if (!ok) return false;
        if (comm->deadline > 0 && now - p->started > comm->deadline) return hang(comm, p, status);
    }
    if (naps || now - p->started > SLEEP_AFTER_SECONDS)
        nap();
    else
        sched_yield();
    return true;
}

static bool test_all(mpi_state *state, dtm_request *requests, int count, bool *moved, dtm_status *status) {
    bool ok = true;
    enter(state);
    for (int i = 0; ok && i < count; i++) {
        if (requests[i].done) continue;
        ok = test(state, &requests[i], status);
        *moved = *moved || requests[i].done;
    }
    leave(state);
    return ok;
}

static bool mpi_wait(dtm_comm *comm, dtm_request *requests, int count, dtm_status *status) {
    patience p = {0};
    for (int first = 0; first < count;) {
        bool moved = false;
        if (!test_all(comm->state, requests + first, count - first, &moved, status)) return false;
        int before = first;
        while (first < count && requests[first].done) first++;
        if (first > before && first < count) dtm_operation_waits_for(comm, &requests[first]);
        if (first < count && !moved && !be_patient(comm, &p, status)) return false;
    }
    return true;
}

/* A failure shows where the request is waited for. */
static bool mpi_poll(dtm_comm *comm, bool *done) {
    mpi_state *state = comm->state;
    dtm_status ignored = {0};
    enter(state);
    for (dtm_request **at = &state->started; *at;) {
        dtm_request *request = *at; /* not to be read once it is done */
        test(state, request, &ignored);
        if (*at == request)
            at = &request->next;
        else
            *done = true;
    }
    bool more = state->started != NULL;
    if (more) serve(comm, &ignored);
    leave(state);
    return more;
}

static bool mpi_withdraw(dtm_comm *comm) {
    mpi_state *state = comm->state;
    enter(state);
    bool nothing = state->under_way == 0;
    leave(state);
    return nothing;
}

static bool mpi_barrier(dtm_comm *comm, dtm_status *status) {
    mpi_state *state = comm->state;
    MPI_Request request;
    patience p = {0};
    enter(state);
    bool ok = check(MPI_Ibarrier(state->data, &request), "barrier", status);
    leave(state);
    for (int flag = 0; ok && !flag;) {
        enter(state);
        ok = check(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), "barrier", status);
        leave(state);
        if (ok && !flag) ok = be_patient(comm, &p, status);
    }
    return ok;
}

/* ---- beginning and end ---- */

static void mpi_abort(dtm_comm *comm, const dtm_status *status) {
    mpi_state *state = comm->state;
    enter(state);
    bool speaks = !status->echo && !state->ending; /* else the other thread does */
    state->ending = state->ending || speaks;
    for (int i = 0; speaks && i < comm->size; i++)
        if (i != comm->rank) tell(state, i, (control){.kind = ENDING, .rank = comm->rank});
    leave(state);
    if (speaks && comm->size > 1) serve_for(comm, ENDING_SECONDS);
    enter(state);
    speaks = speaks && state->lowest_ending > comm->rank;
    leave(state);
    if (speaks) {
        fflush(stdout);
        fprintf(stderr, "error: %s\n", status->message);
        fflush(stderr);
        serve_for(comm, TOLD_SECONDS);
    } else {
        serve_for(comm, KILLED_SECONDS);
    }
    MPI_Abort(MPI_COMM_WORLD, 1);
    _exit(1);
}

static void mpi_close(dtm_comm *comm) {
    mpi_state *state = comm->state;
    dtm_status ignored = {0};
    dtm_progress_end(comm);
    dtm_comm_barrier(comm, &ignored); /* a rank that leaves early could not answer a watchdog any more */
    MPI_Cancel(&state->listening);
    MPI_Wait(&state->listening, MPI_STATUS_IGNORE);
    MPI_Comm_free(&state->data);
    MPI_Comm_free(&state->control);
    MPI_Finalize();
    dtm_comm_release(comm);
    pthread_mutex_destroy(&state->lock);
    free(state);
    free(comm);
}

static const dtm_transport mpi_transport = {.name = "mpi",
                                            .post_send = mpi_post,
                                            .post_receive = mpi_post,
                                            .wait = mpi_wait,
                                            .poll = mpi_poll,
                                            .withdraw = mpi_withdraw,
                                            .barrier = mpi_barrier,
                                            .abort = mpi_abort,
                                            .close = mpi_close};

static bool find_node(dtm_comm *comm, dtm_status *status) {
    MPI_Comm node;
    int code = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, comm->rank, MPI_INFO_NULL, &node);
    if (!check(code, "splitting by node", status)) return false;
    MPI_Comm_rank(node, &comm->node_index);
    MPI_Comm_size(node, &comm->node_size);
    MPI_Comm_free(&node);
    return true;
}

/* NULL, with the status, where this rank cannot join the others. */
static dtm_comm *join(int rank, int size, dtm_status *status) {
    dtm_comm *comm = calloc(1, sizeof *comm);
    mpi_state *state = calloc(1, sizeof *state);
    if (!comm || !state) {
        free(comm), free(state);
        dtm_status_fail(status, "out of memory joining MPI");
        return NULL;
    }
    state->lowest_ending = size;
    state->data = state->control = MPI_COMM_NULL;
    pthread_mutex_init(&state->lock, NULL);
    bool ok = dtm_comm_init(comm, &mpi_transport, state, rank, size, status) &&
              check(MPI_Comm_dup(MPI_COMM_WORLD, &state->data), "MPI_Comm_dup", status) &&
              check(MPI_Comm_dup(MPI_COMM_WORLD, &state->control), "MPI_Comm_dup", status);
    if (ok) {
        MPI_Comm_set_errhandler(state->data, MPI_ERRORS_RETURN);
        MPI_Comm_set_errhandler(state->control, MPI_ERRORS_RETURN);
        if (find_node(comm, status) && listen_again(state, status)) return comm;
    }
    if (state->data != MPI_COMM_NULL && size == 1) MPI_Comm_free(&state->data);
    if (state->control != MPI_COMM_NULL && size == 1) MPI_Comm_free(&state->control);
    dtm_comm_release(comm);
    pthread_mutex_destroy(&state->lock);
    free(comm), free(state);
    return NULL;
}

static void finalize(void) { MPI_Finalize(); }

bool dtm_comm_open_mpi(int *argc, char ***argv, dtm_comm **out, dtm_status *status) {
    int given = 0, rank = 0, size = 1;
    *out = NULL;
    if (!check(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &given), "MPI_Init_thread", status)) return false;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (given < MPI_THREAD_SERIALIZED) {
        atexit(finalize); /* all ranks find it; mpirun may not pass on what is written after that */
        return dtm_status_fail(status, "this MPI library does not work in a program that calls it from several threads");
    }
    *out = join(rank, size, status);
    if (!*out && size > 1) { /* the others wait for this rank: it ends them */
        fprintf(stderr, "error: rank %d: %s\n", rank, status->message);
        fflush(stderr);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (!*out) MPI_Finalize();
    return *out != NULL;
}
