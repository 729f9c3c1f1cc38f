/* The worker threads of a rank. A pool's caller takes part in the work: a pool of n threads has n - 1 workers. Work is
 * cut into as many chunks as threads at places that depend on the extent, the grain and the number of threads alone, so
 * that a run gives the same bits each time; for the same bits on all ranks they must have equally many threads. Workers
 * spin for a moment after a job, then sleep.
 *
 * A node's cores are shared among its ranks in order, and a rank's share among its threads, each pinned to its part. */
#ifndef DTM_THREADS_H
#define DTM_THREADS_H

#include "runtime/status.h"

#include <stdint.h>

typedef struct dtm_pool dtm_pool;

/* Works on [begin, end); thread is from 0 (the caller) to the pool's size - 1. */
typedef void (*dtm_pool_function)(void *argument, int64_t begin, int64_t end, int thread);

/* Threads a rank has unless told otherwise: the cores this process may use (a container's quota counts) divided by the
 * node's ranks, at least 1. */
int dtm_pool_default_threads(int node_ranks);

/* Pins the caller and the workers, unless the ranks' threads are more than the cores. node_index is this rank's place
 * among the node's node_ranks ranks. */
bool dtm_pool_create(int threads, int node_index, int node_ranks, dtm_pool **out, dtm_status *status);
void dtm_pool_destroy(dtm_pool *pool);
int dtm_pool_threads(const dtm_pool *pool);

/* Calls function on chunks of [0, extent) that begin at multiples of grain (>= 1), at most one a thread, and returns
 * when all are done. Only the thread that created the pool calls it, and not from within a function. */
void dtm_pool_run(dtm_pool *pool, dtm_pool_function function, void *argument, int64_t extent, int64_t grain);

/* The chunk of `thread` of `threads`: what dtm_pool_run uses; begin = end if it has none. */
void dtm_pool_chunk(int64_t extent, int64_t grain, int threads, int thread, int64_t *begin, int64_t *end);

#endif
