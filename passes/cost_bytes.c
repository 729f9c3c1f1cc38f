/* See cost_bytes.h. */
#include "passes/cost_bytes.h"

#include <string.h>

static int64_t block_bytes(const dtm_module *module, const dtm_type_data *type, const int64_t *coordinates) {
    int64_t bytes = dtm_dtype_bytes((dtm_dtype)type->dtype);
    for (int i = 0; i < type->rank; i++) {
        int64_t begin, size;
        dtm_block(module, type, i, coordinates, &begin, &size);
        bytes *= size;
    }
    return bytes;
}

/* Coordinates of member `index` of the group along `axes` that holds the rank `of`; the last axis counts fastest. */
static void member(const dtm_module *module, uint16_t axes, const int64_t *of, int64_t index, int64_t *coordinates) {
    const dtm_mesh *mesh = &module->settings.mesh;
    memcpy(coordinates, of, DTM_MAX_AXES * sizeof *coordinates);
    for (int a = mesh->count - 1; a >= 0; a--) {
        if (!(axes >> a & 1) || mesh->axes[a].time) continue;
        coordinates[a] = index % mesh->axes[a].size;
        index /= mesh->axes[a].size;
    }
}

static int64_t index_in_group(const dtm_module *module, uint16_t axes, const int64_t *coordinates) {
    const dtm_mesh *mesh = &module->settings.mesh;
    int64_t index = 0;
    for (int a = 0; a < mesh->count; a++)
        if (axes >> a & 1 && !mesh->axes[a].time) index = index * mesh->axes[a].size + coordinates[a];
    return index;
}

/* Rank 0, in the last microbatch: the largest of balanced blocks. */
static void first_rank(const dtm_module *module, int64_t *coordinates) {
    memset(coordinates, 0, DTM_MAX_AXES * sizeof *coordinates);
    for (int a = 0; a < module->settings.mesh.count; a++)
        if (module->settings.mesh.axes[a].time) coordinates[a] = module->settings.mesh.axes[a].size - 1;
}

/* A rank's block of a tensor, by dimension; dimensions that it has not are of size 1. */
typedef struct block {
    int64_t begin[DTM_MAX_RANK], end[DTM_MAX_RANK];
} block;

static block block_of(const dtm_module *module, const dtm_type_data *type, const int64_t *coordinates) {
    block b = {{0}, {1, 1, 1, 1, 1, 1, 1, 1}};
    for (int d = 0; d < type->rank; d++) {
        dtm_block(module, type, d, coordinates, &b.begin[d], &b.end[d]);
        b.end[d] += b.begin[d];
    }
    return b;
}

static int64_t overlap(const block *a, const block *b, int rank) {
    int64_t elements = 1;
    for (int d = 0; d < rank; d++) {
        int64_t low = a->begin[d] > b->begin[d] ? a->begin[d] : b->begin[d];
        int64_t high = a->end[d] < b->end[d] ? a->end[d] : b->end[d];
        if (high <= low) return 0;
        elements *= high - low;
    }
    return elements;
}

/* The axes on which a rank that sends a block of `from` agrees with the one that it sends to: of all that hold the same
 * block, one sends it to each that needs it, the one that agrees with it on the axes of the group that do not split `from`. */
static uint16_t agreeing_axes(const dtm_type_data *from, uint16_t axes) { return axes & (uint16_t)~dtm_type_split_axes(from); }

static bool agree(const dtm_module *module, uint16_t axes, const int64_t *a, const int64_t *b) {
    for (int i = 0; i < module->settings.mesh.count; i++)
        if (axes >> i & 1 && a[i] != b[i]) return false;
    return true;
}

enum { LARGE_GROUP = 64 }; /* beyond it only the first rank is looked at: it has the largest blocks */

/* What travels when blocks are sent to whoever needs them: all_to_all, permute. */
static int64_t exchanged_bytes(const dtm_module *module, uint16_t axes, const dtm_type_data *from, const dtm_type_data *to) {
    int64_t n = dtm_group_size(module, axes), senders = n > LARGE_GROUP ? 1 : n, sent[LARGE_GROUP] = {0}, most = 0;
    int64_t first[DTM_MAX_AXES], have[LARGE_GROUP][DTM_MAX_AXES];
    block blocks[LARGE_GROUP];
    uint16_t agreeing = agreeing_axes(from, axes);
    first_rank(module, first);
    for (int64_t i = 0; i < senders; i++) {
        member(module, axes, first, i, have[i]);
        blocks[i] = block_of(module, from, have[i]);
    }
    for (int64_t j = 0; j < n; j++) {
        int64_t want[DTM_MAX_AXES];
        member(module, axes, first, j, want);
        block wanted = block_of(module, to, want);
        for (int64_t i = 0; i < senders; i++)
            if (i != j && agree(module, agreeing, have[i], want)) sent[i] += overlap(&blocks[i], &wanted, from->rank);
    }
    for (int64_t i = 0; i < senders; i++) most = sent[i] > most ? sent[i] : most;
    return most * dtm_dtype_bytes((dtm_dtype)from->dtype);
}

/* The most that any rank sends. Blocks shrink with the rank, so in a large group it is one of the first or the last. */
static int64_t most_sent(dtm_collective_kind kind, dtm_algorithm algorithm, int64_t n, const int64_t *counts,
                         int64_t element_bytes) {
    int64_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        if (n > LARGE_GROUP && i == 1) i = n - 2;
        int64_t sent = dtm_collective_sent_bytes(kind, algorithm, (int)n, (int)i, counts, element_bytes);
        most = sent > most ? sent : most;
    }
    return most;
}

/* The bytes of the blocks of a type that the ranks of a group have. */
static int64_t *block_sizes(const dtm_module *module, uint16_t axes, const dtm_type_data *type, const int64_t *of) {
    int64_t n = dtm_group_size(module, axes);
    int64_t *sizes = dtm_arena_alloc(module->arena, (size_t)n * sizeof *sizes);
    for (int64_t i = 0; i < n; i++) {
        int64_t coordinates[DTM_MAX_AXES];
        member(module, axes, of, i, coordinates);
        sizes[i] = block_bytes(module, type, coordinates);
    }
    return sizes;
}

int64_t dtm_most_sent(const dtm_module *module, dtm_op_kind kind, uint16_t axes, const dtm_type_data *from,
                      const dtm_type_data *to, int64_t payload, dtm_algorithm algorithm) {
    int64_t n = dtm_group_size(module, axes), first[DTM_MAX_AXES];
    first_rank(module, first);
    switch (kind) {
    case DTM_OP_ALL_REDUCE: {
        int64_t bytes = dtm_dtype_bytes((dtm_dtype)from->dtype), elements = payload / bytes;
        return most_sent(DTM_COLLECTIVE_ALL_REDUCE, algorithm, n, &elements, bytes);
    }
    case DTM_OP_REDUCE_SCATTER:
        return most_sent(DTM_COLLECTIVE_REDUCE_SCATTER, algorithm, n, block_sizes(module, axes, to, first), 1);
    case DTM_OP_ALL_GATHER:
        return most_sent(DTM_COLLECTIVE_ALL_GATHER, algorithm, n, block_sizes(module, axes, from, first), 1);
    default: return exchanged_bytes(module, axes, from, to);
    }
}

/* ---- one rank ---- */

static int64_t exchanged_by(const dtm_module *module, uint16_t axes, const dtm_type_data *from, const dtm_type_data *to,
                            const int64_t *sender) {
    int64_t n = dtm_group_size(module, axes), self = index_in_group(module, axes, sender), sent = 0;
    uint16_t agreeing = agreeing_axes(from, axes);
    block held = block_of(module, from, sender);
    for (int64_t j = 0; j < n; j++) {
        int64_t want[DTM_MAX_AXES];
        member(module, axes, sender, j, want);
        if (j == self || !agree(module, agreeing, sender, want)) continue;
        block wanted = block_of(module, to, want);
        sent += overlap(&held, &wanted, from->rank);
    }
    return sent * dtm_dtype_bytes((dtm_dtype)from->dtype);
}

int64_t dtm_sent_by(const dtm_module *module, dtm_op op, dtm_algorithm algorithm, const int64_t *coordinates) {
    const dtm_op_data *data = dtm_op_get(module, op);
    uint16_t axes = data->attributes.axes;
    int n = (int)dtm_group_size(module, axes), self = (int)index_in_group(module, axes, coordinates);
    int64_t sent = 0, flat = 0, bytes = dtm_dtype_bytes((dtm_dtype)dtm_value_type(module, data->operands[0])->dtype);
    for (uint32_t i = 0; i < data->n_operands; i++) {
        const dtm_type_data *from = dtm_value_type(module, data->operands[i]), *to = dtm_value_type(module, data->results[i]);
        if (data->kind == DTM_OP_ALL_REDUCE)
            flat += block_bytes(module, from, coordinates) / bytes;
        else if (data->kind == DTM_OP_REDUCE_SCATTER)
            sent += dtm_collective_sent_bytes(DTM_COLLECTIVE_REDUCE_SCATTER, algorithm, n, self,
                                              block_sizes(module, axes, to, coordinates), 1);
        else if (data->kind == DTM_OP_ALL_GATHER)
            sent += dtm_collective_sent_bytes(DTM_COLLECTIVE_ALL_GATHER, algorithm, n, self,
                                              block_sizes(module, axes, from, coordinates), 1);
        else sent += exchanged_by(module, axes, from, to, coordinates);
    }
    if (data->kind != DTM_OP_ALL_REDUCE) return sent;
    return dtm_collective_sent_bytes(DTM_COLLECTIVE_ALL_REDUCE, algorithm, n, self, &flat, bytes); /* a bucket is flat */
}
