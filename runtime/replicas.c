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
    int64_t held = dtm_box_elements(&box) * element;
    block = dtm_rank_read(rank, block, held, status);
    uint64_t own = block ? hash_of(block, held) : 0;
    int pair[2] = {0, 0};
    dtm_group_label(rank->stage, "comparison of replicas");
    bool ok = block && dtm_all_gather(rank->stage, DTM_ALGORITHM_RING, &own, hashes, bytes, status);
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

/* ---- what several stages of a pipeline hold ---- */

/* A copy of a weight or state in the plan of a stage. */
typedef struct holding {
    char name[256];
    int stage;
    const dtm_plan_weight *weight;
    int64_t copy;
} holding;

static int by_name(const void *a, const void *b) {
    const holding *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : x->stage - y->stage;
}

/* All holdings that others have too, by name; the same on all ranks. NULL: out of memory. */
static holding *list_shared(const dtm_plan *plan, size_t *count) {
    size_t all = 0, kept = 0;
    for (uint32_t s = 0; s < plan->n_stages; s++)
        for (uint32_t i = 0; i < plan->stages[s]->n_weights; i++)
            all += (size_t)dtm_weight_copies(plan->stages[s], &plan->stages[s]->weights[i]);
    holding *list = calloc(all + 1, sizeof *list);
    if (!list) return NULL;
    size_t n = 0;
    for (uint32_t s = 0; s < plan->n_stages; s++) {
        const dtm_plan *of = plan->stages[s];
        for (uint32_t i = 0; i < of->n_weights; i++)
            for (int64_t copy = 0; copy < dtm_weight_copies(of, &of->weights[i]); copy++, n++) {
                list[n] = (holding){.stage = (int)s, .weight = &of->weights[i], .copy = copy};
                dtm_weight_name(of, list[n].weight, copy, list[n].name, sizeof list[n].name);
            }
    }
    qsort(list, n, sizeof *list, by_name);
    for (size_t i = 0; i < n; i++) {
        bool before = kept && strcmp(list[kept - 1].name, list[i].name) == 0;
        if (before || (i + 1 < n && strcmp(list[i + 1].name, list[i].name) == 0)) list[kept++] = list[i];
    }
    *count = kept;
    return list;
}

static dtm_box box_on_stage(const dtm_rank *rank, const holding *h) {
    const dtm_plan *plan = rank->plan->stages[h->stage];
    int64_t coordinates[DTM_PLAN_AXES];
    memcpy(coordinates, rank->coordinates, sizeof coordinates);
    coordinates[plan->stage_axis] = h->stage;
    return dtm_buffer_box(plan, h->weight->buffer, coordinates);
}

/* hashes: by member and holding. The first two stages that hold one block in two ways; every rank finds the same. */
static bool find_unlike(const dtm_rank *rank, const holding *list, size_t count, const uint64_t *hashes, size_t pair[2]) {
    for (size_t b = 1; b < count; b++) {
        dtm_box box = box_on_stage(rank, &list[b]);
        for (size_t a = b; a-- > 0 && strcmp(list[a].name, list[b].name) == 0;) {
            dtm_box other = box_on_stage(rank, &list[a]);
            if (!same_box(&other, &box)) continue;
            pair[0] = a, pair[1] = b;
            if (hashes[(size_t)list[a].stage * count + a] != hashes[(size_t)list[b].stage * count + b]) return true;
            break;
        }
    }
    return false;
}

static bool exchange(dtm_rank *rank, const holding *list, size_t count, dtm_status *status) {
    size_t ranks = (size_t)dtm_group_members(rank->along), me = (size_t)dtm_group_index(rank->along), pair[2] = {0, 0};
    uint64_t *own = calloc(count, sizeof *own), *hashes = calloc(ranks * count, sizeof *hashes);
    int64_t *bytes = calloc(ranks, sizeof *bytes);
    bool ok = own && hashes && bytes;
    if (!ok) dtm_status_fail(status, "out of memory comparing %zu ranks", ranks);
    for (size_t r = 0; ok && r < ranks; r++) bytes[r] = (int64_t)(count * sizeof *own);
    for (size_t i = 0; ok && i < count; i++) {
        if ((size_t)list[i].stage != me) continue;
        dtm_box box = dtm_rank_box(rank, list[i].weight->buffer);
        int64_t element = dtm_plan_dtype_bytes(rank->plan->buffers[list[i].weight->buffer].dtype);
        int64_t held = dtm_box_elements(&box) * element;
        const void *block = dtm_rank_read(rank, dtm_rank_buffer_copy(rank, list[i].weight->buffer, list[i].copy), held, status);
        ok = block != NULL;
        if (ok) own[i] = hash_of(block, held);
        rank->replicas_compared++;
    }
    if (ok) {
        dtm_group_label(rank->along, "comparison of replicas");
        ok = dtm_all_gather(rank->along, DTM_ALGORITHM_RING, own, hashes, bytes, status);
        dtm_group_label(rank->along, NULL);
    }
    if (ok && find_unlike(rank, list, count, hashes, pair)) {
        int first = list[pair[0]].stage, second = list[pair[1]].stage;
        ok = (int)me == second
                 ? dtm_status_fail(status, "step %lld: %s `%s`: ranks %d and %d hold the same block, in different bits",
                                   (long long)rank->step + 1, list[pair[0]].weight->state ? "state" : "weight",
                                   list[pair[0]].name, dtm_group_rank(rank->along, first), dtm_group_rank(rank->along, second))
                 : dtm_status_echo(status);
    }
    free(own), free(hashes), free(bytes);
    return ok;
}

/* A stage, or a weight, on several ranks of the pipeline: their programs differ, so that weights are told by their names. */
static bool check_stages(dtm_rank *rank, dtm_status *status) {
    size_t count = 0;
    if (!rank->along) return true;
    holding *list = list_shared(rank->plan, &count);
    if (!list) return dtm_status_fail(status, "out of memory comparing the stages of a pipeline");
    bool ok = !count || exchange(rank, list, count, status);
    free(list);
    return ok;
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
    return check_stages(rank, status);
}
