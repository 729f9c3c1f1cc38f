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
 * A rank's operations may come from any of its threads, but from one at a time. Beside it the rank has streams (progress.c),
 * for what is started and waited for later: a thread each, which carries out started collectives one after another; that of
 * stream 0 also keeps messages of `mpi` moving. It is begun by the first such thing and sleeps while there is nothing. What
 * streams do has tags of their own, so that it disturbs neither the rank's other operations nor other streams.
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

/* A message under way. The owner keeps it in place until dtm_wait has returned. Its fields belong to comm.c and the
 * transport. */
typedef struct dtm_request {
    struct dtm_request *next;
    void *data;
    int64_t bytes;
    int owner, peer; /* world ranks */
    int tag;
    int chunks; /* of an MPI message */
    bool sends, listed, pretends, linked;
    const char *label; /* as dtm_group_label said when it was started, or NULL */
    char note[24];     /* as dtm_comm_note said */
    int64_t microbatch, sequence; /* sequence: of those between the two on this tag this way, from 1 */
    double started, ended;        /* seconds of the monotonic clock: on its way between these */
    _Atomic int done;
    _Atomic int matched; /* `local`: the bytes are there; it is done at `ended` */
    union {
        void *pointer;
        int64_t integer;
    } handle;
} dtm_request;

/* ---- a run ---- */

/* Joins MPI. At the end call dtm_comm_close. Where it fails MPI has been left; a rank that fails alone says so, and ends the
 * others. */
bool dtm_comm_open_mpi(int *argc, char ***argv, dtm_comm **out, dtm_status *status);
/* Leaves: call it on every rank, after its last operation. Groups are freed with it. */
void dtm_comm_close(dtm_comm *comm);

typedef bool (*dtm_rank_main)(dtm_comm *comm, void *argument, dtm_status *status);
/* Runs `ranks` ranks as threads of this process and returns when all have ended. status is the failure that came first;
 * a rank that fails wakes the others, whose operations then fail as echoes. */
bool dtm_local_run(int ranks, dtm_rank_main function, void *argument, dtm_status *status);

/* How long messages between `local` ranks take. A node is a run of devices_per_node ranks; bytes/s and seconds. A rank
 * has one port to the others of its node and one to the network, each of which carries one message a direction at a time. */
typedef struct dtm_links {
    double node_bandwidth, node_latency, network_bandwidth, network_latency;
    int64_t devices_per_node;
} dtm_links;

typedef struct dtm_local_options {
    const dtm_links *links; /* NULL: as fast as memory */
    double delay;           /* for tests: each message is late by up to so many seconds, drawn by the seed; local.c says more */
    uint64_t seed;
} dtm_local_options;
bool dtm_local_run_with(int ranks, const dtm_local_options *options, dtm_rank_main function, void *argument,
                        dtm_status *status);

int dtm_comm_rank(const dtm_comm *comm);
int dtm_comm_size(const dtm_comm *comm);
const char *dtm_comm_transport(const dtm_comm *comm); /* "mpi" or "local" */
/* Ranks on this rank's node, and its place among them: what threads and pins are shared by. */
int dtm_comm_node_size(const dtm_comm *comm);
int dtm_comm_node_index(const dtm_comm *comm);
/* Payload bytes that this rank has sent so far. */
int64_t dtm_comm_sent_bytes(const dtm_comm *comm);

bool dtm_comm_barrier(dtm_comm *comm, dtm_status *status);

/* Call it before memory that started operations use is freed, where a run may have failed between start and wait: what
 * is still under way is given up. Nothing can be started on this rank afterwards. False: MPI still works on a message of
 * this rank, and no message of MPI can be taken back; its memory must stay until dtm_comm_abort. */
bool dtm_comm_quiet(dtm_comm *comm);

/* `local`, for simulation: while it is set, messages and sums take their time but no bytes move. */
void dtm_comm_pretend(dtm_comm *comm, bool pretends);
/* `local`: whether messages take the time of the links. They do, until it is said. */
void dtm_comm_link(dtm_comm *comm, bool linked);
/* `before` is called before the rank's own thread starts something or waits, `after` when it has waited, with the time at
 * which what it waited for was done. NULL: no more. */
void dtm_comm_pace(dtm_comm *comm, void (*before)(void *argument), void (*after)(void *argument, double ended),
                   void *argument);

/* Ends all ranks, from any state, within seconds. The message is printed once: if several ranks fail together, by the
 * lowest of them. With mpi it does not return; with local the other ranks' operations fail as echoes. A status that is
 * an echo prints nothing. */
void dtm_comm_abort(dtm_comm *comm, const dtm_status *status);

/* Whether another rank has failed: what this one waits for by other means, a device, may never come. Any thread may ask. */
bool dtm_comm_is_lost(dtm_comm *comm);

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
/* How a request is called in messages: "send of x, microbatch 3". */
void dtm_request_name(const dtm_request *request, char *out, int64_t size);

/* ---- collectives: counts and algorithms are those of algorithm.h, the same on all members ---- */

typedef enum dtm_reduction { DTM_REDUCTION_SUM, DTM_REDUCTION_MAX } dtm_reduction;
/* Each sum of two bf16 or f16 is rounded to that. */
typedef enum dtm_reduce_type {
    DTM_REDUCE_F32, DTM_REDUCE_F64, DTM_REDUCE_I32, DTM_REDUCE_BF16, DTM_REDUCE_F16, DTM_REDUCE_TYPES
} dtm_reduce_type;

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

/* ---- started collectives: the rank goes on while one of its streams carries them out ---- */


/* The owner keeps it, and all memory that was given, in place until dtm_collective_wait has returned. */
typedef struct dtm_collective_request {
    struct dtm_collective_request *next;
    dtm_group *group;
    dtm_collective_kind kind;
    dtm_algorithm algorithm;
    dtm_reduction reduction;
    dtm_reduce_type type;
    const void *input;
    void *output, *scratch;
    int64_t count;
    const int64_t *counts, *receive_counts; /* receive_counts: of all_to_all alone */
    int stream;
    struct dtm_collective_request *after; /* NULL, or another without which it does not begin */
    const char *label;
    int64_t microbatch;
    double started, ended; /* when it was carried out */
    int64_t sent;          /* bytes */
    _Atomic bool done;
    /* In steps around a ring: the owner gives this rank's blocks one after another, and sees others' as they come. */
    bool in_steps;
    int given, come;
    dtm_status status;
} dtm_collective_request;

/* All ranks start those that they share on one stream, and there in one order, whatever the groups: a rank carries them out in
 * the order in which it starts them. Labels are as for other operations. */
bool dtm_all_reduce_start(dtm_group *group, dtm_algorithm algorithm, dtm_reduction reduction, dtm_reduce_type type,
                          const void *input, void *output, int64_t count, void *scratch,
                          dtm_collective_request *request, dtm_status *status);
bool dtm_reduce_scatter_start(dtm_group *group, dtm_algorithm algorithm, dtm_reduction reduction, dtm_reduce_type type,
                              const void *input, void *output, const int64_t *counts, void *scratch,
                              dtm_collective_request *request, dtm_status *status);
bool dtm_all_gather_start(dtm_group *group, dtm_algorithm algorithm, const void *input, void *output,
                          const int64_t *bytes, dtm_collective_request *request, dtm_status *status);
bool dtm_all_to_all_start(dtm_group *group, dtm_algorithm algorithm, const void *input, const int64_t *send_bytes,
                          void *output, const int64_t *receive_bytes, dtm_collective_request *request,
                          dtm_status *status);
bool dtm_collective_wait(dtm_collective_request *request, dtm_status *status);
bool dtm_collective_has_come(dtm_collective_request *request); /* or has failed: it is waited for no longer */
/* The next ring that is started on the group goes in steps: in reduce_scatter the member with index i gives its block i - 1,
 * i - 2, .., i of the input as it is made, and it is sent or added no sooner; in all_gather the block of member i - 1, i - 2, ..
 * is there once that many have come. False: it has failed. */
void dtm_group_step(dtm_group *group);
/* The stream of the next that is started on the group, 0 if it is not said, and another that has been started, without which it
 * does not begin: it takes what that one makes (NULL: none). */
void dtm_group_stream(dtm_group *group, int stream, dtm_collective_request *after);
void dtm_collective_give(dtm_collective_request *request);
bool dtm_collective_come(dtm_collective_request *request, int blocks, dtm_status *status);

/* ---- what happened, for a trace ---- */

/* Called as soon as the rank knows that it has ended: for a message of the rank in dtm_wait, on the rank's thread; for a
 * collective on the thread that carried it out. */
typedef struct dtm_transmission {
    const char *label; /* NULL: none was given */
    const char *name;  /* "send", "receive", "all_reduce" */
    const char *note;  /* of a message: as dtm_comm_note said when it was started; else "" */
    const char *group;
    int peer; /* a world rank; -1: a collective */
    int64_t bytes, microbatch; /* bytes: of a collective, those that this rank sent */
    double started, ended;
    int stream; /* that carried it out, from 1; 0: the rank itself */
} dtm_transmission;
typedef void dtm_observer(void *argument, const dtm_transmission *transmission);
void dtm_comm_observe(dtm_comm *comm, dtm_observer *observer, void *argument);
/* What the rank is about, for the messages that it starts next: "F3.1" (copied). */
void dtm_comm_note(dtm_comm *comm, const char *note);

/* ---- the watchdog ---- */

/* What a rank is doing; an operation of no name is none. */
typedef struct dtm_operation {
    char name[96];    /* "all_reduce", "send", or what dtm_group_label said */
    char group[48];   /* "tp" */
    int peer;         /* the world rank of the other side, or -1: a collective */
    bool sends;       /* to that peer */
    int64_t sequence; /* which of the group's collectives, or of its messages with that peer this way, from 1; 0: unknown */
    double started;   /* seconds of the monotonic clock */
} dtm_operation;

/* Seconds after which an operation counts as hung; the default is 600, 0 waits for ever. */
void dtm_comm_set_deadline(dtm_comm *comm, double seconds);
/* How the next operations on this group are called in messages, e.g. by the plan's value: "all_reduce of d_up". The
 * text must live until it is replaced and what was started under it has ended; NULL goes back to the operation's own name. */
void dtm_group_label(dtm_group *group, const char *label);
/* The microbatch that the next operations on this group are for; -1: none. */
void dtm_group_microbatch(dtm_group *group, int64_t microbatch);
/* A snapshot of the current operation, from any thread, else of a stream's; false if there is none. */
bool dtm_comm_current(dtm_comm *comm, dtm_operation *out);

#endif
