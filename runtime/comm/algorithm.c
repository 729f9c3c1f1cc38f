#include "runtime/comm/algorithm.h"

static bool is_power_of_two(int n) {
    return n > 0 && (n & (n - 1)) == 0;
}

static int log2_ceil(int n) {
    int result = 0;
    while (((int64_t)1 << result) < n) result++;
    return result;
}

const char *dtm_collective_kind_name(dtm_collective_kind kind) {
    static const char *const names[DTM_COLLECTIVE_KINDS] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                                            "broadcast"};
    return (unsigned)kind < DTM_COLLECTIVE_KINDS ? names[kind] : "unknown";
}

const char *dtm_algorithm_name(dtm_algorithm algorithm) {
    static const char *const names[DTM_ALGORITHMS] = {"ring", "doubling", "gather", "pairwise", "both_ways", "tree"};
    return (unsigned)algorithm < DTM_ALGORITHMS ? names[algorithm] : "unknown";
}

bool dtm_algorithm_fits(dtm_collective_kind kind, dtm_algorithm algorithm, int group_size) {
    if (group_size < 1) return false;
    switch (kind) {
    case DTM_COLLECTIVE_ALL_REDUCE:
        return algorithm == DTM_ALGORITHM_RING || algorithm == DTM_ALGORITHM_GATHER ||
               (algorithm == DTM_ALGORITHM_DOUBLING && is_power_of_two(group_size));
    case DTM_COLLECTIVE_REDUCE_SCATTER:
    case DTM_COLLECTIVE_ALL_GATHER:
        return algorithm == DTM_ALGORITHM_RING || algorithm == DTM_ALGORITHM_PAIRWISE ||
               (algorithm == DTM_ALGORITHM_BOTH_WAYS && group_size > 2);
    case DTM_COLLECTIVE_ALL_TO_ALL:
        return algorithm == DTM_ALGORITHM_PAIRWISE;
    case DTM_COLLECTIVE_BROADCAST:
        return algorithm == DTM_ALGORITHM_TREE;
    default:
        return false;
    }
}

int64_t dtm_ring_block_begin(int64_t count, int group_size, int block) {
    int64_t quotient = count / group_size, remainder = count % group_size;
    return quotient * block + (block < remainder ? block : remainder);
}

int dtm_ring_member(dtm_collective_kind kind, dtm_algorithm algorithm, int group_size, int index, int step) {
    int half = group_size / 2, other = (group_size - 1) / 2, turn = (step - 1) / 2, distance = -step;
    bool gathers = kind == DTM_COLLECTIVE_ALL_GATHER, odd = step % 2;
    if (algorithm == DTM_ALGORITHM_BOTH_WAYS) distance = gathers ? (odd ? -(turn + 1) : turn + 1) : odd ? half - turn : turn - other;
    if (step == 0 || step == group_size) distance = 0;
    return (index + distance + group_size) % group_size;
}

static int64_t ring_block(int64_t count, int group_size, int block) {
    return dtm_ring_block_begin(count, group_size, block + 1) - dtm_ring_block_begin(count, group_size, block);
}

dtm_collective_counts dtm_collective_counts_of(dtm_collective_kind kind, int group_size, int index, const int64_t *counts) {
    if (kind == DTM_COLLECTIVE_ALL_REDUCE || kind == DTM_COLLECTIVE_BROADCAST)
        return (dtm_collective_counts){counts[0], counts[0], counts[0], counts[0], 0};
    int far = index + (group_size - 1) / 2;
    dtm_collective_counts c = {.own = counts[index], .next = counts[(index + 1) % group_size]};
    c.across = counts[far % group_size] + counts[(far + 1) % group_size];
    for (int i = 0; i < group_size; i++) {
        c.total += counts[i];
        c.largest = counts[i] > c.largest ? counts[i] : c.largest;
    }
    return c;
}

/* In the tree rank i (counted from the root) sends to i + 2^k for every 2^k > i that stays in the group. */
static int tree_children(int group_size, int index) {
    int children = 0;
    for (int64_t distance = 1; distance < group_size; distance *= 2)
        if (distance > index && index + distance < group_size) children++;
    return children;
}

static int64_t sent_elements(dtm_collective_kind kind, dtm_algorithm algorithm, int n, int index,
                             const dtm_collective_counts *counts) {
    int next = index + 1 < n ? index + 1 : 0;
    switch (kind) {
    case DTM_COLLECTIVE_ALL_REDUCE:
        if (algorithm == DTM_ALGORITHM_DOUBLING) return dtm_bytes_times(log2_ceil(n), counts->own);
        if (algorithm == DTM_ALGORITHM_GATHER) return dtm_bytes_times(n - 1, counts->own);
        /* The reduce-scatter sends every block but its own, the all-gather every block but the next rank's. */
        return dtm_bytes_plus(counts->own - ring_block(counts->own, n, index), counts->own - ring_block(counts->own, n, next));
    case DTM_COLLECTIVE_REDUCE_SCATTER:
    case DTM_COLLECTIVE_ALL_TO_ALL:
        return counts->total - counts->own;
    case DTM_COLLECTIVE_ALL_GATHER:
        if (algorithm == DTM_ALGORITHM_PAIRWISE) return dtm_bytes_times(n - 1, counts->own);
        /* Both ways its own goes twice, and those of the two farthest are not passed on. */
        if (algorithm == DTM_ALGORITHM_BOTH_WAYS) return counts->total + counts->own - counts->across;
        return counts->total - counts->next;
    default:
        return dtm_bytes_times(tree_children(n, index), counts->own);
    }
}

int64_t dtm_collective_sent_of(dtm_collective_kind kind, dtm_algorithm algorithm, int group_size, int index,
                               const dtm_collective_counts *counts, int64_t element_bytes) {
    if (!dtm_algorithm_fits(kind, algorithm, group_size)) return -1;
    return group_size == 1 ? 0 : dtm_bytes_times(sent_elements(kind, algorithm, group_size, index, counts), element_bytes);
}

int64_t dtm_collective_sent_bytes(dtm_collective_kind kind, dtm_algorithm algorithm, int group_size, int index,
                                  const int64_t *counts, int64_t element_bytes) {
    dtm_collective_counts c = dtm_collective_counts_of(kind, group_size, index, counts);
    return dtm_collective_sent_of(kind, algorithm, group_size, index, &c, element_bytes);
}

int64_t dtm_collective_rounds(dtm_collective_kind kind, dtm_algorithm algorithm, int group_size) {
    if (!dtm_algorithm_fits(kind, algorithm, group_size)) return -1;
    if (group_size == 1) return 0;
    switch (algorithm) {
    case DTM_ALGORITHM_RING:
        return (kind == DTM_COLLECTIVE_ALL_REDUCE ? 2 : 1) * (int64_t)(group_size - 1);
    case DTM_ALGORITHM_BOTH_WAYS: return group_size / 2;
    case DTM_ALGORITHM_DOUBLING:
    case DTM_ALGORITHM_TREE:
        return log2_ceil(group_size);
    case DTM_ALGORITHM_PAIRWISE: /* a reduce_scatter has room for two that come in */
        return kind == DTM_COLLECTIVE_REDUCE_SCATTER ? group_size / 2 : 1;
    default:
        return 1;
    }
}

int64_t dtm_collective_scratch_of(dtm_collective_kind kind, dtm_algorithm algorithm, int group_size,
                                  const dtm_collective_counts *counts, int64_t element_bytes) {
    if (!dtm_algorithm_fits(kind, algorithm, group_size)) return -1;
    if (group_size == 1) return 0;
    int64_t block = 0, whole_blocks = 0;
    if (kind == DTM_COLLECTIVE_ALL_REDUCE) {
        if (algorithm == DTM_ALGORITHM_GATHER) return dtm_bytes_times(dtm_bytes_times(group_size, counts->own), element_bytes);
        block = algorithm == DTM_ALGORITHM_RING ? ring_block(counts->own, group_size, 0) : counts->own;
    } else if (kind == DTM_COLLECTIVE_REDUCE_SCATTER) {
        if (algorithm == DTM_ALGORITHM_PAIRWISE) return (group_size == 2 ? 1 : 2) * counts->own * element_bytes;
        block = whole_blocks = counts->largest;
    }
    /* Two segments in which to receive; a reduce_scatter also keeps the partial sum that it passes on. */
    int64_t landing = 2 * block * element_bytes;
    if (landing > 2 * DTM_SEGMENT_BYTES) landing = 2 * DTM_SEGMENT_BYTES;
    int64_t bytes = landing + whole_blocks * element_bytes;
    return algorithm == DTM_ALGORITHM_BOTH_WAYS ? 2 * bytes : bytes;
}

int64_t dtm_collective_scratch_bytes(dtm_collective_kind kind, dtm_algorithm algorithm, int group_size, int index,
                                     const int64_t *counts, int64_t element_bytes) {
    dtm_collective_counts c = dtm_collective_counts_of(kind, group_size, index, counts);
    return dtm_collective_scratch_of(kind, algorithm, group_size, &c, element_bytes);
}
