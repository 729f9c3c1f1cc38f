/* Inside what goes between GPUs: what nccl*.c share. nccl.c makes communicators and starts what they carry; nccl_watch.c has errors, and
 * looks at what is under way. */
#ifndef DTM_RUNTIME_CUDA_NCCL_STATE_H
#define DTM_RUNTIME_CUDA_NCCL_STATE_H

#include "runtime/cuda/device.h"
#include "runtime/cuda/nccl.h"

/* What the channel carries out: that the watch may name it. */
typedef struct carried {
    uint32_t instruction;
    int64_t microbatch; /* -1: of none */
} carried;

/* A communicator and its stream. Its operations are numbered from 1 in a walk through the plan, and again in the next; a graph keeps the
 * numbers. The stream itself writes to the host's memory which one it begins and which one it has ended. */
typedef struct channel {
    dtm_nccl_comm comm;
    dtm_cu_stream stream;
    char name[64];
    int blocks;
    bool has_room; /* its blocks are left to it alone */
    int *ranks, n_ranks; /* of the world */
    carried *carried;
    uint64_t *calls; /* of a rehearsal: what each is, for the others to compare */
    uint32_t n_carried, cap_carried;
    uint32_t waited;               /* what compute has waited for, and all before it, by its number in the walk */
    const struct use *expected;    /* the last that is about to be waited for */
    volatile uint32_t *stamps; /* begun, ended */
    uint32_t seen[2]; /* when the watch looked last, and since when they are so */
    double since;
} channel;

typedef struct way {
    uint32_t from, to; /* coordinates on the pipeline's axis */
    bool backward;
    channel *channel; /* NULL: of other ranks */
} way;

/* What an instruction has. */
typedef struct use {
    channel *channel; /* NULL: the rank is alone */
    dtm_cu_event *done; /* one; of a message one for each microbatch */
    uint32_t number;    /* of the collective, in the walk */
    int peer;
} use;

/* A collective that compute has not waited for; several that wait for each other count as one. */
typedef struct flight {
    const channel *channel;
    dtm_cu_event done;
    int blocks;
} flight;

struct dtm_cuda_comms {
    const dtm_nccl *nccl;
    dtm_nccl_comm world;
    int version, blocks; /* blocks: for collectives together */
    channel *channels;
    size_t n_channels;
    way *links;
    size_t n_links;
    use *uses;
    dtm_cu_event *events;
    flight *flights;
    size_t n_flights;
    dtm_cu_event ready; /* of compute, recorded and waited for at once */
    uint32_t *stamps; /* of all channels; stamps_at: for the device */
    dtm_cu_pointer stamps_at;
    bool aborted;
    dtm_status failure; /* what the watch found */
    int rank;
    struct dtm_cuda_comms *next; /* of this process, with --local */
};

double nccl_now(void); /* seconds */
void nccl_pause_briefly(void);

/* Errors name what was asked for (`what`), the communicator (`on`; NULL: `what` does), rank and device. */
bool nccl_fail(dtm_rank *rank, dtm_nccl_comm comm, int result, const char *what, const char *on, dtm_status *status);
/* Until the communicator has done what it was told; then a call's work is on its stream. */
bool nccl_settle(dtm_rank *rank, dtm_nccl_comm comm, int result, const char *what, const char *on, dtm_status *status);
bool nccl_settle_operation(dtm_rank *rank, uint32_t instruction, const channel *c, int result, dtm_status *status);
bool nccl_check(dtm_rank *rank, uint32_t instruction, dtm_cu_result result, dtm_status *status);
/* "all_reduce of x (line 12)" */
void nccl_say_operation(const dtm_rank *rank, uint32_t instruction, char *out, size_t size);

/* "all_reduce of x (line 12), microbatch 3 on tp (ranks 0, 1), operation 7 there" */
void nccl_say_carried(const dtm_rank *rank, const channel *c, uint32_t number, char *out, size_t size);

void nccl_begin_watch(dtm_rank *rank);
void nccl_end_watch(dtm_cuda_comms *comms);
/* The channel's stream writes the number of what it has been given last: that it has begun (0), or ended (1). */
bool nccl_stamp(dtm_rank *rank, uint32_t instruction, const channel *c, int which, dtm_status *status);

#endif
