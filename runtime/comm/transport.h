/* What a transport provides, and what comm.c keeps for all of them. Only runtime/comm includes this. */
#ifndef DTM_COMM_TRANSPORT_H
#define DTM_COMM_TRANSPORT_H

#include "runtime/comm/comm.h"

#include <pthread.h>

typedef struct dtm_transport {
    const char *name;
    /* Nonblocking; bytes > 0 of any size. comm.c has filled the request, but for what the transport keeps there. */
    bool (*post_send)(dtm_comm *comm, dtm_request *request, dtm_status *status);
    bool (*post_receive)(dtm_comm *comm, dtm_request *request, dtm_status *status);
    /* Until all are done. A request with done set is passed over. Watches the deadline; on the progress thread it ends as
     * an echo when the rank becomes quiet. */
    bool (*wait)(dtm_comm *comm, dtm_request *requests, int count, dtm_status *status);
    /* On the progress thread: moves what was started outside of an operation. False: there is nothing left of it. NULL:
     * messages move by themselves. `done`: some of it is done now. */
    bool (*poll)(dtm_comm *comm, bool *done);
    /* Takes back what this rank has posted and nobody has matched, waits for what is being copied, and wakes the progress
     * thread from its wait. False: something is under way that cannot be taken back. */
    bool (*withdraw)(dtm_comm *comm);
    bool (*barrier)(dtm_comm *comm, dtm_status *status);
    void (*abort)(dtm_comm *comm, const dtm_status *status);
    bool (*lost)(dtm_comm *comm); /* NULL: who fails ends the others from outside */
    void (*close)(dtm_comm *comm);
} dtm_transport;

/* Who acts: the rank's own thread, or the thread of one of its streams. Each has its own tags, labels and record of what it
 * does. */
enum { LANE_OWN, LANE_STREAM, DTM_LANES = LANE_STREAM + DTM_STREAMS };
/* Of the calling thread. */
int dtm_lane_of_thread(void);
void dtm_lane_set(int lane);

/* The operations of one lane on a group. */
typedef struct dtm_group_lane {
    const char *label;
    int64_t microbatch;
    int tag;                  /* of its messages */
    _Atomic int64_t sequence; /* collectives started */
    dtm_request *requests;    /* 2 * size, for a collective that talks to all */
    _Atomic int64_t *sent, *received; /* messages to and from each member that were started */
    bool stepping;                   /* the next that is started */
    int stream;                      /* of the next that is started */
    dtm_collective_request *after;   /* the same */
    dtm_collective_request *stepped; /* that it carries out in steps, or NULL */
} dtm_group_lane;

/* What takes a group's messages in place of the transport; requests are filled in as for it. */
typedef struct dtm_carrier {
    bool (*post)(void *carried, dtm_request *request, dtm_status *status);
    bool (*wait)(void *carried, dtm_request *requests, int count, dtm_status *status);
} dtm_carrier;

struct dtm_group {
    dtm_comm *comm;
    const dtm_carrier *carrier; /* NULL: the transport */
    void *carried;
    dtm_group *next;
    char name[48];
    int *ranks;
    int size, index, tag;
    dtm_group_lane lanes[DTM_LANES];
};
static inline dtm_group_lane *dtm_lane(dtm_group *group) {
    return &group->lanes[dtm_lane_of_thread()];
}

/* NULL: the transport again. Nothing of the group is under way meanwhile. */
void dtm_group_carry(dtm_group *group, const dtm_carrier *carrier, void *carried);

/* A thread begins with the place of the one that makes it, which has a core to compute on. The calling one goes where there is
 * room. */
void dtm_thread_leave_core(void);

/* What a lane is doing: operations inside operations are counted, the outermost is the one that is named. */
typedef struct dtm_lane_state {
    dtm_operation operation;
    dtm_group *group; /* NULL: none */
    const char *kind; /* "all_reduce", whatever the label is */
    int tag, depth;
    int64_t sent, sent_before; /* bytes: of all, and before the operation */
    double ended;              /* the last of the messages that it waited for; 0: none */
} dtm_lane_state;

/* Of a collective in steps, which the thread carries out: waits until the owner has given so many blocks (false: it never
 * will); says that one more has come. Nothing of others. */
bool dtm_step_given(dtm_group *group, int blocks);
void dtm_step_come(dtm_group *group);

/* A stream (progress.c). */
typedef struct dtm_progress {
    dtm_comm *comm;
    int lane;
    pthread_mutex_t lock; /* of the rest */
    pthread_cond_t work, done, step;
    pthread_t thread;
    bool started, ends, polls, failed;
    double moved; /* when something to poll was started or done last */
    dtm_collective_request *first, **last; /* to be carried out; the first may be under way */
    _Atomic bool quiet, hurries;           /* hurries: the rank waits for it and does nothing else */
} dtm_progress;

struct dtm_comm {
    const dtm_transport *transport;
    void *state; /* the transport's */
    int rank, size, node_index, node_size;
    double deadline;
    _Atomic int64_t sent_bytes;
    dtm_group *groups; /* the first created is last: the world */
    dtm_group *world;
    pthread_mutex_t lock; /* of groups and lanes */
    dtm_lane_state lanes[DTM_LANES];
    dtm_progress streams[DTM_STREAMS];
    dtm_observer *observer;
    void *observer_argument;
    bool pretends, linked;
    char note[24];
    void (*before)(void *argument);
    void (*after)(void *argument, double ended);
    void *pace_argument;
};
/* Outside of any operation of the rank's own thread. */
static inline void dtm_pace_before(dtm_comm *comm) {
    if (comm->before && dtm_lane_of_thread() == LANE_OWN && comm->lanes[LANE_OWN].depth == 0)
        comm->before(comm->pace_argument);
}
static inline void dtm_pace_after(dtm_comm *comm, double ended) {
    if (comm->after && dtm_lane_of_thread() == LANE_OWN && comm->lanes[LANE_OWN].depth == 0)
        comm->after(comm->pace_argument, ended);
}

double dtm_comm_now(void); /* seconds, monotonic */

/* Fills in all but transport and state, and creates the world group. */
bool dtm_comm_init(dtm_comm *comm, const dtm_transport *transport, void *state, int rank, int size, dtm_status *status);
void dtm_comm_release(dtm_comm *comm);

/* Every operation is between these two: they number collectives (peer < 0) and keep the record that the watchdog reads.
 * peer is a world rank. */
void dtm_operation_begin(dtm_group *group, const char *name, int peer);
void dtm_operation_end(dtm_group *group);

/* The record now says that this request is what the operation under way waits for, unless it is a collective's. */
void dtm_operation_waits_for(dtm_comm *comm, const dtm_request *request);
/* A copy of what the calling thread's lane does. */
dtm_lane_state dtm_operation_now(dtm_comm *comm);

/* How far this rank is with what another asks about, by the tag of the messages: collectives started on the group of this
 * tag (peer -1), or messages with the rank `peer` that it started, sent or received. -1 if this rank has no such group. */
int64_t dtm_comm_progress(dtm_comm *comm, int tag, int peer, bool sends);

/* Whether the rank is in an operation now: then it waits for somebody itself. */
bool dtm_comm_waits(dtm_comm *comm);

enum { DTM_ARRIVED_NOT, DTM_ARRIVED, DTM_SILENT = -1 };
/* Writes the watchdog's line. arrived[i] for the members of the operation's group, of an operation between two the peer
 * alone: whether it came, or SILENT: it did not answer. NULL if nothing is known. */
bool dtm_watchdog_fail(dtm_comm *comm, const signed char *arrived, dtm_status *status);

/* ---- progress.c ---- */

void dtm_progress_init(dtm_comm *comm);
/* There is something to poll. */
bool dtm_progress_wake(dtm_comm *comm, dtm_status *status);
/* Ends the threads; what they have not done fails. */
void dtm_progress_end(dtm_comm *comm);
void dtm_progress_release(dtm_comm *comm);
/* The stream that the calling thread is of; NULL: it is the rank's own. */
dtm_progress *dtm_progress_of_thread(dtm_comm *comm);

#endif
