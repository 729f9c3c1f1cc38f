/* What a transport provides, and what comm.c keeps for all of them. Only runtime/comm includes this. */
#ifndef DTM_COMM_TRANSPORT_H
#define DTM_COMM_TRANSPORT_H

#include "runtime/comm/comm.h"

#include <pthread.h>

typedef struct dtm_transport {
    const char *name;
    /* Nonblocking; peers are world ranks, bytes > 0 of any size, and requests are filled here. */
    bool (*post_send)(dtm_comm *comm, int to, int tag, const void *data, int64_t bytes, dtm_request *request,
                      dtm_status *status);
    bool (*post_receive)(dtm_comm *comm, int from, int tag, void *data, int64_t bytes, dtm_request *request,
                         dtm_status *status);
    /* Until all are done. A request with done set is passed over. Watches the deadline. */
    bool (*wait)(dtm_comm *comm, dtm_request *requests, int count, dtm_status *status);
    bool (*barrier)(dtm_comm *comm, dtm_status *status);
    void (*abort)(dtm_comm *comm, const dtm_status *status);
    void (*close)(dtm_comm *comm);
} dtm_transport;

struct dtm_group {
    dtm_comm *comm;
    dtm_group *next;
    char name[48];
    const char *label;
    int *ranks;
    int size, index, tag;
    _Atomic int64_t sequence; /* collectives started */
    dtm_request *requests;    /* 2 * size, for a collective that talks to all */
};

struct dtm_comm {
    const dtm_transport *transport;
    void *state; /* the transport's */
    int rank, size, node_index, node_size;
    double deadline;
    _Atomic int64_t sent_bytes;
    dtm_group *groups; /* the first created is last: the world */
    dtm_group *world;
    pthread_mutex_t lock; /* of groups, operation and depth */
    dtm_operation operation;
    dtm_group *operation_group;
    int depth; /* operations inside operations: the outermost is the one that is named */
};

double dtm_comm_now(void); /* seconds, monotonic */

/* Fills in all but transport and state, and creates the world group. */
bool dtm_comm_init(dtm_comm *comm, const dtm_transport *transport, void *state, int rank, int size, dtm_status *status);
void dtm_comm_release(dtm_comm *comm);

/* Every operation is between these two: they number collectives (peer < 0) and keep the record that the watchdog reads.
 * peer is a world rank. */
void dtm_operation_begin(dtm_group *group, const char *name, int peer);
void dtm_operation_end(dtm_group *group);

/* Collectives started on the group of this tag; -1 if this rank has none. */
int64_t dtm_comm_progress(dtm_comm *comm, int tag);

/* Writes the watchdog's line. arrived[i] for the members of the operation's group: 1 arrived, 0 did not, -1 unknown;
 * NULL if nothing is known. */
bool dtm_watchdog_fail(dtm_comm *comm, const signed char *arrived, dtm_status *status);

#endif
