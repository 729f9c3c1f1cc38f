/* The collectives' algorithms as plain arithmetic: who sends how many bytes, and how much scratch memory a rank needs.
 * The compiler and the runtime both include this header, so that what `dtmc explain` says and what a run sends come
 * from one place. Nothing here knows a transport.
 *
 * counts, by kind (elements; pass element_bytes = 1 to count in bytes):
 *   all_reduce      counts[0]: elements of the payload
 *   reduce_scatter  counts[group_size]: elements of each rank's block of the result
 *   all_gather      counts[group_size]: elements that each rank contributes
 *   all_to_all      counts[group_size]: elements that this rank sends to each
 *   broadcast       counts[0]; index counts from the root: (own - root + group_size) % group_size */
#ifndef DTM_COMM_ALGORITHM_H
#define DTM_COMM_ALGORITHM_H

#include <stdbool.h>
#include <stdint.h>

/* Of a rank, for collectives that are started and waited for later (comm.h). */
enum { DTM_STREAMS = 3 };

typedef enum dtm_collective_kind {
    DTM_COLLECTIVE_ALL_REDUCE,
    DTM_COLLECTIVE_REDUCE_SCATTER,
    DTM_COLLECTIVE_ALL_GATHER,
    DTM_COLLECTIVE_ALL_TO_ALL,
    DTM_COLLECTIVE_BROADCAST,
    DTM_COLLECTIVE_KINDS
} dtm_collective_kind;

typedef enum dtm_algorithm {
    DTM_ALGORITHM_RING,     /* n - 1 steps to the next rank: all_reduce (twice), reduce_scatter, all_gather */
    DTM_ALGORITHM_DOUBLING, /* log2 n exchanges of the whole payload: all_reduce, n a power of two */
    DTM_ALGORITHM_GATHER,   /* everyone's payload to everyone, summed in the ranks' order: all_reduce, small payloads */
    DTM_ALGORITHM_PAIRWISE, /* straight from each rank to each: reduce_scatter, all_gather, all_to_all */
    DTM_ALGORITHM_BOTH_WAYS, /* half of the blocks each way around the ring, two under way: reduce_scatter, all_gather, n > 2 */
    DTM_ALGORITHM_TREE,     /* a binomial tree from the root: broadcast */
    DTM_ALGORITHMS
} dtm_algorithm;

/* Reductions work through a block in segments of this many bytes, so that a segment is summed while the next arrives.
 */
#define DTM_SEGMENT_BYTES ((int64_t)256 << 10)

const char *dtm_collective_kind_name(dtm_collective_kind kind); /* "all_reduce" */
const char *dtm_algorithm_name(dtm_algorithm algorithm);        /* "ring" */

/* Sums and products of bytes over the ranks of a large mesh; what 64 bits do not hold becomes the most that they do. */
static inline int64_t dtm_bytes_times(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}
static inline int64_t dtm_bytes_plus(int64_t a, int64_t b) {
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

/* Whether this algorithm can carry out this collective on a group of this size. */
bool dtm_algorithm_fits(dtm_collective_kind kind, dtm_algorithm algorithm, int group_size);

/* All that the arithmetic needs to know of counts: for those who know them of groups too large to list. For all_reduce and
 * broadcast the payload is `own`. */
typedef struct dtm_collective_counts {
    int64_t total, largest, own, next; /* of all; the largest; that of rank `index`; that of the rank after it, cyclically */
    int64_t across;                    /* those of the two ranks farthest from it on the ring, to which no path of both ways leads on */
} dtm_collective_counts;
dtm_collective_counts dtm_collective_counts_of(dtm_collective_kind kind, int group_size, int index, const int64_t *counts);
int64_t dtm_collective_sent_of(dtm_collective_kind kind, dtm_algorithm algorithm, int group_size, int index,
                               const dtm_collective_counts *counts, int64_t element_bytes);
int64_t dtm_collective_scratch_of(dtm_collective_kind kind, dtm_algorithm algorithm, int group_size,
                                  const dtm_collective_counts *counts, int64_t element_bytes);

/* Payload bytes that rank `index` of the group sends; -1 if the algorithm does not fit. */
int64_t dtm_collective_sent_bytes(dtm_collective_kind kind, dtm_algorithm algorithm, int group_size, int index,
                                  const int64_t *counts, int64_t element_bytes);

/* Messages that rank `index` sends one after another, each waiting for the one before: what latency multiplies. */
int64_t dtm_collective_rounds(dtm_collective_kind kind, dtm_algorithm algorithm, int group_size);

/* Scratch bytes that rank `index` needs beside input and output; -1 if the algorithm does not fit. */
int64_t dtm_collective_scratch_bytes(dtm_collective_kind kind, dtm_algorithm algorithm, int group_size, int index,
                                     const int64_t *counts, int64_t element_bytes);

/* Around a ring in one direction (`ring`), or two under way in opposite ones (`both_ways`): the member whose block rank `index`
 * gets as number `step` of an all_gather, or gives as that of a reduce_scatter, from 1 to n - 1; its own is number 0 of a gather
 * and the last, n, of a scatter. Of 5 and of 6 ranks, as distances from its own:
 *
 *     ring       gather  -1 -2 -3 -4        scatter  -1 -2 -3 -4
 *     both_ways  gather  -1 +1 -2 +2        scatter  +2 -2 +1 -1
 *                gather  -1 +1 -2 +2 -3     scatter  +3 -2 +2 -1 +1 */
int dtm_ring_member(dtm_collective_kind kind, dtm_algorithm algorithm, int group_size, int index, int step);

/* The blocks into which a ring all_reduce cuts its payload: sizes differ by at most one, the larger ones first. */
int64_t dtm_ring_block_begin(int64_t count, int group_size, int block);

#endif
