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
 * another by an event, the later one in the plan's order.
 *
 * While the host waits for the device it watches (device.h): an error of NCCL, or an operation that has been under way for longer than the
 * deadline, ends the run with a message that names operation, line, communicator and, where they are in this process, who has come. */
#ifndef DTM_CUDA_NCCL_H
#define DTM_CUDA_NCCL_H

#include "runtime/cuda/load.h"
#include "runtime/rank.h"

typedef struct dtm_cuda_comms dtm_cuda_comms;

/* After dtm_rank_make_groups, with the device's context; all ranks call it. */
bool dtm_cuda_comms_open(dtm_rank *rank, dtm_status *status);
/* Before the end: aborts what does not end by itself, where the run has failed. Then the device may be waited for, and graphs destroyed,
 * before `close`. */
void dtm_cuda_comms_stop(dtm_rank *rank);
void dtm_cuda_comms_close(dtm_rank *rank);
/* For messages: what is under way, "" for nothing. */
void dtm_cuda_comms_say(const dtm_rank *rank, char *out, size_t size);
/* A walk through the plan begins: operations are numbered from 1 again. */
void dtm_cuda_comms_walk(dtm_rank *rank);

/* Starts the collective: from and to hold all parts of all members, packed. It begins when all that compute was given has ended. */
bool dtm_cuda_collective_start(dtm_rank *rank, uint32_t instruction, const void *from, void *to, dtm_status *status);
/* Compute goes on when all that was started of it has ended. What is expected is waited for next, with nothing in between: of those on one
 * communicator the last is enough. */
void dtm_cuda_collective_expect(dtm_rank *rank, uint32_t instruction);
bool dtm_cuda_collective_wait(dtm_rank *rank, uint32_t instruction, dtm_status *status);
/* The same of a SEND or RECEIVE, for the microbatch under way. */
bool dtm_cuda_message_start(dtm_rank *rank, uint32_t instruction, dtm_status *status);
bool dtm_cuda_message_wait(dtm_rank *rank, uint32_t instruction, dtm_status *status);

#endif
