/* What goes between the GPUs of a program, by NCCL. One communicator, with a stream of its own, for each group of ranks that the plan's
 * collectives go among, split from the world's in the order of groups.c; and one for each pair of ranks that messages of a pipeline go
 * between, each way: so a message that is let come early holds up nothing else.
 *
 *     compute   pack ──┐                        ┌── unpack
 *     "tp"             └─ all_reduce ───────────┘           events, nothing waits on the host
 *     "pp 0>1"            send ..
 *
 * All ranks that share a communicator start what goes over it in one order, the plan's, so the union over ranks has no cycle.
 * Collectives of several communicators are under way together only as far as the blocks of all fit on the device; else one waits for
 * another by an event, the later one in the plan's order. */
#ifndef DTM_CUDA_NCCL_H
#define DTM_CUDA_NCCL_H

#include "runtime/cuda/load.h"
#include "runtime/rank.h"

typedef struct dtm_cuda_comms dtm_cuda_comms;

/* After dtm_rank_make_groups, with the device's context; all ranks call it. */
bool dtm_cuda_comms_open(dtm_rank *rank, dtm_status *status);
/* After all graphs that have them. What is still under way is aborted, if the device is lost or the run has failed. */
void dtm_cuda_comms_close(dtm_rank *rank);

/* Starts the collective: from and to hold all parts of all members, packed. It begins when all that compute was given has ended. */
bool dtm_cuda_collective_start(dtm_rank *rank, uint32_t instruction, const void *from, void *to, dtm_status *status);
/* Compute goes on when all that was started of it has ended. */
bool dtm_cuda_collective_wait(dtm_rank *rank, uint32_t instruction, dtm_status *status);
/* The same of a SEND or RECEIVE, for the microbatch under way. */
bool dtm_cuda_message_start(dtm_rank *rank, uint32_t instruction, dtm_status *status);
bool dtm_cuda_message_wait(dtm_rank *rank, uint32_t instruction, dtm_status *status);

#endif
