/* Communicators. A dtm_comm is one rank's end of a transport that joins all ranks of a run: `mpi`, or `local` (ranks
 * are threads of one process). A dtm_group is an ordered list of those ranks, one for each set of mesh axes. The
 * transport moves bytes between two ranks and nothing more; the collectives above it (collective.c) are the same for
 * every transport, so a run gives the same bits on each, and what the layout calls alike is bit-equal on all its ranks.
 *
 *     dtm_all_reduce(group, ..)   dtm_send(group, ..)          collective.c, comm.c
 *              |                        |
 *     post_send / post_receive / wait / barrier / abort         transport.h
 *              |                        |
 *            mpi.c                   local.c
 *
 * Messages are matched by (source, group tag, order). Members of a group issue its operations in the same order, one at
 * a time; operations of groups with different tags do not disturb each other. Empty messages are not sent.
 *
 * A rank's operations may come from any of its threads, but from one at a time.
 *
 * While a rank waits it watches itself: after `deadline` seconds in one operation it asks the group's other members who
 * has arrived, reports that in one line, and ends all ranks. */
#ifndef DTM_COMM_H
#define DTM_COMM_H

#include "runtime/comm/algorithm.h"
#include "runtime/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct dtm_comm dtm_comm;
typedef struct dtm_group dtm_group;

/* A message under way. The owner keeps it in place until dtm_wait has returned. Its fields belong to the transport. */
typedef struct dtm_request {
    struct dtm_request *next;
    void *data;
    int64_t bytes;
    int owner, peer; /* world ranks */
    int tag;
    int chunks; /* of an MPI message */
    _Atomic int done;
    union {
        void *pointer;
        int64_t integer;
    } handle;
} dtm_request;

/* ---- a run ---- */

/* Joins MPI. At the end call dtm_comm_close. If it fails with *out set, dtm_comm_abort ends the other ranks. */
bool dtm_comm_open_mpi(int *argc, char ***argv, dtm_comm **out, dtm_status *status);
/* Leaves: call it on every rank, after its last operation. Groups are freed with it. */
void dtm_comm_close(dtm_comm *comm);

typedef bool (*dtm_rank_main)(dtm_comm *comm, void *argument, dtm_status *status);
/* Runs `ranks` ranks as threads of this process and returns when all have ended. status is the failure that came first;
 * a rank that fails wakes the others, whose operations then fail as echoes. */
bool dtm_local_run(int ranks, dtm_rank_main function, void *argument, dtm_status *status);

int dtm_comm_rank(const dtm_comm *comm);
int dtm_comm_size(const dtm_comm *comm);
const char *dtm_comm_transport(const dtm_comm *comm); /* "mpi" or "local" */
/* Ranks on this rank's node, and its place among them: what threads and pins are shared by. */
int dtm_comm_node_size(const dtm_comm *comm);
int dtm_comm_node_index(const dtm_comm *comm);
/* Payload bytes that this rank has sent so far. */
int64_t dtm_comm_sent_bytes(const dtm_comm *comm);

bool dtm_comm_barrier(dtm_comm *comm, dtm_status *status);

/* Ends all ranks, from any state, within seconds. The message is printed once: if several ranks fail together, by the
 * lowest of them. With mpi it does not return; with local the other ranks' operations fail as echoes. A status that is
 * an echo prints nothing. */
void dtm_comm_abort(dtm_comm *comm, const dtm_status *status);

/* All ranks call it with what they have: if any failed, all return false, the lowest failed rank with its own message
 * and all others with an echo. For stages that can fail on some ranks alone: opening files, allocating, checking. */
bool dtm_comm_agree(dtm_comm *comm, dtm_status *status);

/* Ranks must hold the same 64 bits (say, a plan's hash): otherwise a failure that names the first rank that differs
 * from rank 0, `what` and both values. */
bool dtm_comm_same(dtm_comm *comm, const char *what, uint64_t value, dtm_status *status);

/* ---- groups ---- */

#define DTM_GROUP_TAG_MAX 255

/* ranks: world ranks in the group's order, this rank among them (copied). The tag is the same on all members, from 1 to
 * DTM_GROUP_TAG_MAX; groups that have two ranks in common must have different tags (a bit set of mesh axes serves). The
 * name is for messages ("tp"; copied). The group lives as long as the comm. */
bool dtm_group_create(dtm_comm *comm, const char *name, const int *ranks, int size, int tag, dtm_group **out,
                      dtm_status *status);
/* All ranks, in order; it exists from the start. */
dtm_group *dtm_comm_world(dtm_comm *comm);
int dtm_group_members(const dtm_group *group);
int dtm_group_index(const dtm_group *group);
int dtm_group_rank(const dtm_group *group, int index); /* the world rank of a member */
const char *dtm_group_name(const dtm_group *group);

/* ---- point to point; to and from are indices in the group ---- */

bool dtm_send(dtm_group *group, int to, const void *data, int64_t bytes, dtm_status *status);
bool dtm_receive(dtm_group *group, int from, void *data, int64_t bytes, dtm_status *status);
bool dtm_send_receive(dtm_group *group, int to, const void *send, int64_t send_bytes, int from, void *receive,
                      int64_t receive_bytes, dtm_status *status);
/* Started ones end with dtm_wait; the data stays untouched until then. Sends to one member arrive in order. */
bool dtm_send_start(dtm_group *group, int to, const void *data, int64_t bytes, dtm_request *request,
                    dtm_status *status);
bool dtm_receive_start(dtm_group *group, int from, void *data, int64_t bytes, dtm_request *request, dtm_status *status);
bool dtm_wait(dtm_group *group, dtm_request *requests, int count, dtm_status *status);

/* ---- collectives: counts and algorithms are those of algorithm.h, the same on all members ---- */

typedef enum dtm_reduction { DTM_REDUCTION_SUM, DTM_REDUCTION_MAX } dtm_reduction;
typedef enum dtm_reduce_type { DTM_REDUCE_F32, DTM_REDUCE_F64, DTM_REDUCE_I32, DTM_REDUCE_TYPES } dtm_reduce_type;

int64_t dtm_reduce_type_bytes(dtm_reduce_type type);

/* scratch holds dtm_collective_scratch_bytes, or is NULL: then it is allocated for the call. */

/* count elements; output may be input. Bit-equal on all ranks, NaNs too: a maximum with a NaN is NaN. */
bool dtm_all_reduce(dtm_group *group, dtm_algorithm algorithm, dtm_reduction reduction, dtm_reduce_type type,
                    const void *input, void *output, int64_t count, void *scratch, dtm_status *status);
/* input: all blocks in the members' order, counts[i] elements each; output: this rank's block (it may be that part of
 * input). The input is not changed otherwise. */
bool dtm_reduce_scatter(dtm_group *group, dtm_algorithm algorithm, dtm_reduction reduction, dtm_reduce_type type,
                        const void *input, void *output, const int64_t *counts, void *scratch, dtm_status *status);
/* input: this rank's bytes[index] bytes (it may be its place in output); output: everyone's, in the members' order. */
bool dtm_all_gather(dtm_group *group, dtm_algorithm algorithm, const void *input, void *output, const int64_t *bytes,
                    dtm_status *status);
/* input: send_bytes[i] bytes for member i, packed in order; output: receive_bytes[i] from member i, packed in order. */
bool dtm_all_to_all(dtm_group *group, dtm_algorithm algorithm, const void *input, const int64_t *send_bytes,
                    void *output, const int64_t *receive_bytes, dtm_status *status);
bool dtm_broadcast(dtm_group *group, dtm_algorithm algorithm, void *data, int64_t bytes, int root, dtm_status *status);

/* ---- the watchdog ---- */

/* What a rank is doing; an operation of no name is none. */
typedef struct dtm_operation {
    char name[48];    /* "all_reduce", "send", or what dtm_group_label said */
    char group[48];   /* "tp" */
    int peer;         /* the world rank of the other side, or -1: a collective */
    int64_t sequence; /* which of the group's collectives, counted from 1; 0 for other operations */
    double started;   /* seconds of the monotonic clock */
} dtm_operation;

/* Seconds after which an operation counts as hung; the default is 600, 0 waits for ever. */
void dtm_comm_set_deadline(dtm_comm *comm, double seconds);
/* How the next operations on this group are called in messages, e.g. by the plan's value: "all_reduce of d_up". The
 * text must live until it is replaced; NULL goes back to the operation's own name. */
void dtm_group_label(dtm_group *group, const char *label);
/* A snapshot of the current operation, from any thread; false if there is none. */
bool dtm_comm_current(dtm_comm *comm, dtm_operation *out);

#endif
