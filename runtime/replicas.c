#include "runtime/replicas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* FNV-1a of the bytes. */
static uint64_t hash_of(const void *data, int64_t bytes) {
    const uint8_t *at = data;
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

static bool same_box(const dtm_box *a, const dtm_box *b) {
    for (int d = 0; d < a->rank; d++)
        if (a->spans[d].begin != b->spans[d].begin || a->spans[d].size != b->spans[d].size) return false;
    return true;
}

/* The block of a member of the ranks of this plan, in the microbatch that this rank is in. */
static dtm_box box_of(const dtm_rank *rank, uint32_t buffer, int other) {
    int64_t coordinates[DTM_PLAN_AXES];
    dtm_coordinates_of(rank->plan, dtm_group_rank(rank->stage, other), coordinates);
    if (rank->time_axis >= 0) coordinates[rank->time_axis] = rank->coordinates[rank->time_axis];
    return dtm_buffer_box(rank->plan, buffer, coordinates);
}

/* The first pair of ranks that hold one block in two ways; every rank finds the same. */
static bool find_difference(const dtm_rank *rank, uint32_t buffer, const uint64_t *hashes, int pair[2]) {
    int ranks = dtm_group_members(rank->stage);
    for (int b = 1; b < ranks; b++) {
        dtm_box box = box_of(rank, buffer, b);
        for (int a = 0; a < b; a++) {
            dtm_box other = box_of(rank, buffer, a);
            if (!same_box(&other, &box)) continue;
            pair[0] = a, pair[1] = b;
            if (hashes[a] != hashes[b]) return true;
            break; /* those after a that hold it equal a */
        }
    }
    return false;
}

static bool compare(dtm_rank *rank, uint32_t buffer, const void *block, const char *what, const char *name,
                    dtm_status *status) {
    int ranks = dtm_group_members(rank->stage);
    uint64_t *hashes = malloc((size_t)ranks * sizeof *hashes);
    int64_t *bytes = malloc((size_t)ranks * sizeof *bytes);
    if (!hashes || !bytes) {
        free(hashes), free(bytes);
        return dtm_status_fail(status, "out of memory comparing %d ranks", ranks);
    }
    for (int r = 0; r < ranks; r++) bytes[r] = sizeof *hashes;
    dtm_box box = dtm_rank_box(rank, buffer);
    int64_t element = dtm_plan_dtype_bytes(rank->plan->buffers[buffer].dtype);
    uint64_t own = hash_of(block, dtm_box_elements(&box) * element);
    int pair[2] = {0, 0};
    dtm_group_label(rank->stage, "comparison of replicas");
    bool ok = dtm_all_gather(rank->stage, DTM_ALGORITHM_RING, &own, hashes, bytes, status);
    dtm_group_label(rank->stage, NULL);
    if (ok && find_difference(rank, buffer, hashes, pair)) {
        ok = dtm_group_index(rank->stage) == pair[1]
                 ? dtm_status_fail(status, "step %lld: %s `%s`: ranks %d and %d hold the same block, in different bits",
                                   (long long)rank->step + 1, what, name, dtm_group_rank(rank->stage, pair[0]),
                                   dtm_group_rank(rank->stage, pair[1]))
                 : dtm_status_echo(status);
    }
    free(hashes);
    free(bytes);
    rank->replicas_compared++;
    return ok;
}

bool dtm_check_replica(dtm_rank *rank, uint32_t buffer, const char *what, const char *name, dtm_status *status) {
    if (!rank->options->check_replicas) return true;
    return compare(rank, buffer, dtm_rank_buffer(rank, buffer), what, name, status);
}

bool dtm_check_replicas(dtm_rank *rank, dtm_status *status) {
    const dtm_plan *plan = rank->plan;
    if (!rank->options->check_replicas) return true;
    for (uint32_t i = 0; i < plan->n_weights; i++) {
        const dtm_plan_weight *w = &plan->weights[i];
        for (int64_t copy = 0; copy < dtm_weight_copies(plan, w); copy++) {
            char name[256];
            dtm_weight_name(plan, w, copy, name, sizeof name);
            if (!compare(rank, w->buffer, dtm_rank_buffer_copy(rank, w->buffer, copy), w->state ? "state" : "weight",
                         name, status))
                return false;
        }
    }
    return true;
}
