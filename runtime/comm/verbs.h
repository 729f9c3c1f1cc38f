/* Messages by RDMA writes, through libibverbs: what carries a pipeline's messages with `--p2p verbs`. A rank uses one port of one adapter.
 * The memory that messages come from and go to is registered once. For each way (a group, a peer, a direction) there is one RC queue
 * pair:
 *
 *     receiver   "number 7 may be written here"  --RDMA write--> ring of credits in the sender's memory
 *     sender      waits for the credit of 7, writes the data, in parts of the port's longest message, the last with immediate 7
 *     receiver    its completion, which tells 7: the data are there
 *
 * So nothing is copied and nothing is sent before its place is free; a way has WINDOW numbers under way at once. A thread that sleeps
 * while nothing is under way moves what was started, while the rank computes. Messages of a way arrive in the order in which they are
 * started. Failures name peer, adapter and port. */
#ifndef DTM_VERBS_H
#define DTM_VERBS_H

#include "runtime/comm/comm.h"
#include "runtime/comm/verbs_abi.h"

typedef struct dtm_verbs_net dtm_verbs_net;

typedef struct dtm_verbs_way {
    dtm_group *group;
    int member; /* the other rank's index in it */
    bool sends;
} dtm_verbs_way;

typedef struct dtm_verbs_net_options {
    const dtm_verbs *verbs;
    const char *device;
    int port, gid; /* gid: the index to use */
    void *memory;
    int64_t bytes;
    const dtm_verbs_way *ways; /* each once, in any order; both ends have it */
    int n_ways;
    void (*poke)(void *argument); /* called now and then while the rank waits; NULL: nothing */
    void *poked;
} dtm_verbs_net_options;

/* All ranks call it. From then on messages of the ways' groups go by them, and dtm_send_start, dtm_receive_start and dtm_wait take
 * them there. Where one rank fails all fail. */
bool dtm_verbs_net_open(dtm_comm *comm, const dtm_verbs_net_options *options, dtm_verbs_net **out, dtm_status *status);
/* Before the memory is freed; in any state, also NULL. */
void dtm_verbs_net_close(dtm_verbs_net *net);

#endif
