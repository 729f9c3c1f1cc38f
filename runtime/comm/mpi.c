/* The transport `mpi`. Data goes by MPI_Isend, MPI_Irecv and MPI_Test alone, so that a library which wraps them through
 * MPI's profiling interface counts exactly what dtm sends. A message longer than CHUNK goes in several, as counts are
 * ints in MPI.
 *
 * Waiting is a loop of MPI_Test, so that a rank that waits can look at the clock and answer the others. They talk on a
 * communicator of their own, only when something is wrong:
 *
 *     QUERY(tag, sequence)  "my operation is overdue: have you begun it?"     answered by every rank that waits
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
enum { CONTROL_TAG = 1, SPINS = 2000, SILENT = -1 };
static const double GLANCE_SECONDS = 0.1;       /* between looks at the control messages while waiting */
static const double SLEEP_AFTER_SECONDS = 0.02; /* a wait this long may cost a nap's latency */
static const double REPLY_SECONDS = 1.0;        /* how long the watchdog waits for the others' answers */
static const double ENDING_SECONDS = 0.2;       /* how long a failing rank listens whether a lower one fails too */
static const double KILLED_SECONDS = 10;        /* how long a silent one waits to be ended */
static const double TOLD_SECONDS = 0.1;         /* for the launcher to pass the message on: what it has not read is lost */

enum control_kind { QUERY, REPLY, ENDING };
typedef struct control {
    int64_t kind, tag, sequence, rank;
} control;

typedef struct mpi_state {
    MPI_Comm data, control;
    MPI_Request listening; /* always one receive posted for control messages */
    control heard;
    int lowest_ending; /* the lowest rank that announced a failure, or the world's size */
    /* While the watchdog asks: */
    signed char *arrived; /* of each member: 1, 0 or SILENT */
    const dtm_group *asked_group;
    int64_t asked_sequence;
} mpi_state;

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

static bool post(dtm_comm *comm, int peer, int tag, void *data, int64_t bytes, bool sends, dtm_request *request,
                 dtm_status *status) {
    mpi_state *state = comm->state;
    request->done = 0;
    request->peer = peer;
    request->owner = comm->rank;
    request->chunks = (int)((bytes + CHUNK - 1) / CHUNK);
    if (request->chunks > 1) {
        request->handle.pointer = malloc((size_t)request->chunks * sizeof(MPI_Request));
        if (!request->handle.pointer) return dtm_status_fail(status, "out of memory for a message's parts");
    }
    for (int i = 0; i < request->chunks; i++) {
        char *part = (char *)data + i * CHUNK;
        int size = (int)(bytes - i * CHUNK < CHUNK ? bytes - i * CHUNK : CHUNK);
        int code = sends ? MPI_Isend(part, size, MPI_BYTE, peer, tag, state->data, &parts(request)[i])
                         : MPI_Irecv(part, size, MPI_BYTE, peer, tag, state->data, &parts(request)[i]);
        if (!check(code, sends ? "send" : "receive", status)) return false;
    }
    return true;
}

static bool mpi_post_send(dtm_comm *comm, int to, int tag, const void *data, int64_t bytes, dtm_request *request,
                          dtm_status *status) {
    return post(comm, to, tag, (void *)data, bytes, true, request, status);
}

static bool mpi_post_receive(dtm_comm *comm, int from, int tag, void *data, int64_t bytes, dtm_request *request,
                             dtm_status *status) {
    return post(comm, from, tag, data, bytes, false, request, status);
}

/* ---- control messages ---- */

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

static void hear(dtm_comm *comm, control heard) {
    mpi_state *state = comm->state;
    if (heard.kind == ENDING && heard.rank < state->lowest_ending) state->lowest_ending = (int)heard.rank;
    if (heard.kind == QUERY)
        tell(state, (int)heard.rank, (control){REPLY, heard.tag, dtm_comm_progress(comm, (int)heard.tag), comm->rank});
    if (heard.kind != REPLY || !state->arrived || heard.tag != state->asked_group->tag) return;
    for (int i = 0; i < state->asked_group->size; i++)
        if (state->asked_group->ranks[i] == heard.rank) state->arrived[i] = heard.sequence >= state->asked_sequence;
}

static bool serve(dtm_comm *comm, dtm_status *status) {
    mpi_state *state = comm->state;
    for (;;) {
        int flag = 0;
        if (!check(MPI_Test(&state->listening, &flag, MPI_STATUS_IGNORE), "test", status)) return false;
        if (!flag) return true;
        control heard = state->heard;
        if (!listen_again(state, status)) return false;
        hear(comm, heard);
    }
}

static void serve_for(dtm_comm *comm, double seconds) {
    dtm_status ignored = {0};
    double end = dtm_comm_now() + seconds;
    while (dtm_comm_now() < end) {
        serve(comm, &ignored);
        usleep(1000);
    }
}

/* ---- waiting ---- */

typedef struct patience {
    double started, glanced;
    int spins;
    bool waited_twice;
} patience;

/* Asks the other members whether they have begun the collective that hangs. If all answer, those that have not wait
 * themselves, for another rank: then whoever waits for one that is silent will tell, and this rank waits once more. */
static bool hang(dtm_comm *comm, patience *p, dtm_status *status) {
    mpi_state *state = comm->state;
    pthread_mutex_lock(&comm->lock);
    dtm_group *group = comm->operation_group;
    int64_t sequence = comm->operation.sequence;
    pthread_mutex_unlock(&comm->lock);
    signed char *arrived = group && sequence ? malloc((size_t)group->size) : NULL;
    bool silent = !arrived;
    if (arrived) {
        memset(arrived, SILENT, (size_t)group->size);
        arrived[group->index] = 1;
        state->asked_group = group;
        state->asked_sequence = sequence;
        state->arrived = arrived;
        for (int i = 0; i < group->size; i++)
            if (i != group->index) tell(state, group->ranks[i], (control){QUERY, group->tag, sequence, comm->rank});
        serve_for(comm, REPLY_SECONDS);
        state->arrived = NULL;
        for (int i = 0; i < group->size; i++) {
            silent = silent || arrived[i] == SILENT;
            if (arrived[i] == SILENT) arrived[i] = 0;
        }
    }
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

/* Called when a test found nothing: spins, then yields, then naps; looks at control messages and the deadline. */
static bool be_patient(dtm_comm *comm, patience *p, dtm_status *status) {
    if (p->spins++ < SPINS) {
        if (p->spins > 50) sched_yield();
        return true;
    }
    double now = dtm_comm_now();
    if (p->started == 0) p->started = p->glanced = now;
    if (now - p->glanced >= GLANCE_SECONDS) {
        p->glanced = now;
        if (!serve(comm, status)) return false;
        if (comm->deadline > 0 && now - p->started > comm->deadline) return hang(comm, p, status);
    }
    if (now - p->started > SLEEP_AFTER_SECONDS)
        nanosleep(&(struct timespec){0, 50000}, NULL);
    else
        sched_yield();
    return true;
}

static bool test(dtm_request *request, dtm_status *status) {
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
    request->done = 1;
    return true;
}

static bool mpi_wait(dtm_comm *comm, dtm_request *requests, int count, dtm_status *status) {
    patience p = {0};
    for (int first = 0; first < count;) {
        bool moved = false;
        for (int i = first; i < count; i++) {
            if (requests[i].done) continue;
            if (!test(&requests[i], status)) return false;
            moved = moved || requests[i].done;
        }
        while (first < count && requests[first].done) first++;
        if (first < count && !moved && !be_patient(comm, &p, status)) return false;
    }
    return true;
}

static bool mpi_barrier(dtm_comm *comm, dtm_status *status) {
    mpi_state *state = comm->state;
    MPI_Request request;
    patience p = {0};
    if (!check(MPI_Ibarrier(state->data, &request), "barrier", status)) return false;
    for (;;) {
        int flag = 0;
        if (!check(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), "barrier", status)) return false;
        if (flag) return true;
        if (!be_patient(comm, &p, status)) return false;
    }
}

/* ---- beginning and end ---- */

static void mpi_abort(dtm_comm *comm, const dtm_status *status) {
    mpi_state *state = comm->state;
    if (!status->echo) {
        for (int i = 0; i < comm->size; i++)
            if (i != comm->rank) tell(state, i, (control){ENDING, 0, 0, comm->rank});
        if (comm->size > 1) serve_for(comm, ENDING_SECONDS);
    }
    if (!status->echo && state->lowest_ending > comm->rank) {
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
    dtm_comm_barrier(comm, &ignored); /* a rank that leaves early could not answer a watchdog any more */
    MPI_Cancel(&state->listening);
    MPI_Wait(&state->listening, MPI_STATUS_IGNORE);
    MPI_Comm_free(&state->data);
    MPI_Comm_free(&state->control);
    MPI_Finalize();
    dtm_comm_release(comm);
    free(state);
    free(comm);
}

static const dtm_transport mpi_transport = {"mpi",       mpi_post_send, mpi_post_receive, mpi_wait,
                                            mpi_barrier, mpi_abort,     mpi_close};

static bool find_node(dtm_comm *comm, dtm_status *status) {
    MPI_Comm node;
    int code = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, comm->rank, MPI_INFO_NULL, &node);
    if (!check(code, "splitting by node", status)) return false;
    MPI_Comm_rank(node, &comm->node_index);
    MPI_Comm_size(node, &comm->node_size);
    MPI_Comm_free(&node);
    return true;
}

bool dtm_comm_open_mpi(int *argc, char ***argv, dtm_comm **out, dtm_status *status) {
    int given = 0, rank = 0, size = 1;
    *out = NULL;
    if (!check(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &given), "MPI_Init_thread", status)) return false;
    if (given < MPI_THREAD_FUNNELED)
        return dtm_status_fail(status, "this MPI library does not work in a program that has threads");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    dtm_comm *comm = calloc(1, sizeof *comm);
    mpi_state *state = calloc(1, sizeof *state);
    if (!comm || !state) {
        free(comm), free(state);
        return dtm_status_fail(status, "out of memory joining MPI");
    }
    state->lowest_ending = size;
    *out = comm;
    if (!dtm_comm_init(comm, &mpi_transport, state, rank, size, status) ||
        !check(MPI_Comm_dup(MPI_COMM_WORLD, &state->data), "MPI_Comm_dup", status) ||
        !check(MPI_Comm_dup(MPI_COMM_WORLD, &state->control), "MPI_Comm_dup", status))
        return false;
    MPI_Comm_set_errhandler(state->data, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(state->control, MPI_ERRORS_RETURN);
    return find_node(comm, status) && listen_again(state, status);
}
