/* See cost_bytes.h. A group may have a thousand million ranks: what its ranks hold, or need of a block, is added up over the
 * blocks that a cut makes (all alike but the last), never over the ranks. */
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

/* ---- sums over all ranks of a group ---- */

/* One dimension of a type, cut along the axes of `free` into all their blocks, and along the others into the one that a rank
 * has. */
typedef struct cuts {
    const dtm_mesh *mesh;
    const dtm_dim_layout *layout;
    const int64_t *at; /* the rank */
    uint16_t free;
} cuts;

static uint16_t axes_of(const dtm_dim_layout *layout, int from) {
    uint16_t axes = 0;
    for (int i = from; i < layout->count; i++) axes |= (uint16_t)(1 << layout->splits[i].axis);
    return axes;
}

/* Block `index` of the cut at a level. */
static void cut_at(const cuts *c, int level, int64_t index, int64_t whole, int64_t *begin, int64_t *size) {
    dtm_dim_layout one = {.count = 1, .splits = {c->layout->splits[level]}};
    int64_t at[DTM_MAX_AXES];
    at[one.splits[0].axis] = index;
    dtm_block_of(c->mesh, whole, &one, at, begin, size);
}

static bool is_free(const cuts *c, int level) { return c->free >> c->layout->splits[level].axis & 1; }

/* Blocks of a time axis differ in size by one unit, larger and smaller ones mixed: they are gone through one by one, and
 * there are no more than there are microbatches. Those of ranks are all of one size, but for the last that has anything. */
static bool is_time(const cuts *c, int level) { return c->mesh->axes[c->layout->splits[level].axis].time; }
static int64_t parts_of(const cuts *c, int level) { return c->mesh->axes[c->layout->splits[level].axis].size; }

/* The sizes of all blocks that come of `size` elements by the cuts from `level` on, added up. */
static int64_t sum_of_blocks(const cuts *c, int level, int64_t size) {
    int64_t begin, block;
    if (!size || (axes_of(c->layout, level) & (uint16_t)~c->free) == 0) return size;
    if (is_free(c, level) && is_time(c, level)) {
        int64_t sum = 0;
        for (int64_t i = 0; i < parts_of(c, level); i++) {
            cut_at(c, level, i, size, &begin, &block);
            sum += sum_of_blocks(c, level + 1, block);
        }
        return sum;
    }
    cut_at(c, level, is_free(c, level) ? 0 : c->at[c->layout->splits[level].axis], size, &begin, &block);
    if (!is_free(c, level)) return sum_of_blocks(c, level + 1, block);
    return size / block * sum_of_blocks(c, level + 1, block) + sum_of_blocks(c, level + 1, size % block);
}

/* How much of all these blocks lies within [low, high), where the first element is number `first`. */
static int64_t sum_within(const cuts *c, int level, int64_t first, int64_t size, int64_t low, int64_t high) {
    int64_t begin, block, from = low > first ? low : first, to = high < first + size ? high : first + size;
    if (to <= from) return 0;
    if (from == first && to == first + size) return sum_of_blocks(c, level, size);
    if (level == c->layout->count) return to - from;
    if (is_free(c, level) && is_time(c, level)) {
        int64_t sum = 0;
        for (int64_t i = 0; i < parts_of(c, level); i++) {
            cut_at(c, level, i, size, &begin, &block);
            sum += sum_within(c, level + 1, first + begin, block, low, high);
        }
        return sum;
    }
    cut_at(c, level, is_free(c, level) ? 0 : c->at[c->layout->splits[level].axis], size, &begin, &block);
    if (!is_free(c, level)) return sum_within(c, level + 1, first + begin, block, low, high);
    int64_t one = (from - first) / block, last = (to - 1 - first) / block, sum = 0; /* between them whole blocks */
    for (int64_t i = one; i <= last; i += last > one ? last - one : 1) {
        int64_t rest = size - i * block;
        sum += sum_within(c, level + 1, first + i * block, rest < block ? rest : block, low, high);
    }
    return sum + (last > one + 1 ? last - one - 1 : 0) * sum_of_blocks(c, level + 1, block);
}

/* How many ranks of the group hold the same, as nothing of the type is split along these axes. */
static int64_t ranks_alike(const dtm_module *module, uint16_t axes, const dtm_type_data *type) {
    return dtm_group_size(module, axes & (uint16_t)~dtm_type_split_axes(type));
}

/* The blocks of a type that the ranks of a group have, in bytes, as the rank at these coordinates, one of the group, sees
 * them. */
static dtm_collective_counts counts_of(const dtm_module *module, uint16_t axes, const dtm_type_data *type, const int64_t *at) {
    int64_t bytes = dtm_dtype_bytes((dtm_dtype)type->dtype), n = dtm_group_size(module, axes);
    int64_t first[DTM_MAX_AXES], next[DTM_MAX_AXES], far[DTM_MAX_AXES];
    dtm_collective_counts c = {.total = dtm_bytes_times(bytes, ranks_alike(module, axes, type))};
    for (int d = 0; d < type->rank; d++) {
        cuts dim = {&module->settings.mesh, &type->layout[d], at, axes};
        c.total = dtm_bytes_times(c.total, sum_of_blocks(&dim, 0, module->dims[type->dims[d]].size));
    }
    member(module, axes, at, 0, first); /* has the largest */
    member(module, axes, at, (index_in_group(module, axes, at) + 1) % n, next);
    c.largest = block_bytes(module, type, first);
    c.own = block_bytes(module, type, at);
    c.next = block_bytes(module, type, next);
    for (int i = 0; i < 2; i++) {
        member(module, axes, at, (index_in_group(module, axes, at) + (n - 1) / 2 + i) % n, far);
        c.across = dtm_bytes_plus(c.across, block_bytes(module, type, far));
    }
    return c;
}

/* What a rank sends when blocks are sent to whoever needs them: all_to_all, permute. Of all that hold the same block, one
 * sends it to each that needs it, the one that agrees with it on the axes of the group that do not split `from`. */
static int64_t exchanged_by(const dtm_module *module, uint16_t axes, const dtm_type_data *from, const dtm_type_data *to,
                            const int64_t *sender) {
    uint16_t to_all = axes & dtm_type_split_axes(from);
    block held = block_of(module, from, sender), wanted = block_of(module, to, sender);
    int64_t sent = ranks_alike(module, to_all, to);
    for (int d = 0; d < from->rank; d++) {
        cuts dim = {&module->settings.mesh, &to->layout[d], sender, to_all};
        sent = dtm_bytes_times(sent, sum_within(&dim, 0, 0, module->dims[to->dims[d]].size, held.begin[d], held.end[d]));
    }
    return dtm_bytes_times(sent - overlap(&held, &wanted, from->rank), dtm_dtype_bytes((dtm_dtype)from->dtype));
}

/* ---- the rank that sends most ---- */

enum { LARGE_GROUP = 64 }; /* blocks shrink with the rank, so beyond it one of the first or the last sends most */

int64_t dtm_most_sent(const dtm_module *module, dtm_op_kind kind, uint16_t axes, const dtm_type_data *from,
                      const dtm_type_data *to, int64_t payload, dtm_algorithm algorithm) {
    int64_t n = dtm_group_size(module, axes), first[DTM_MAX_AXES], at[DTM_MAX_AXES], most = 0;
    int64_t bytes = dtm_dtype_bytes((dtm_dtype)from->dtype);
    dtm_collective_counts flat = {.own = payload / bytes};
    first_rank(module, first);
    for (int64_t i = 0; i < n; i++) {
        if (n > LARGE_GROUP && i == 1) i = n - 2;
        member(module, axes, first, i, at);
        dtm_collective_counts counts = {0};
        int64_t sent;
        if (kind == DTM_OP_ALL_REDUCE) {
            sent = dtm_collective_sent_of(DTM_COLLECTIVE_ALL_REDUCE, algorithm, (int)n, (int)i, &flat, bytes);
        } else if (kind == DTM_OP_REDUCE_SCATTER || kind == DTM_OP_ALL_GATHER) {
            counts = counts_of(module, axes, kind == DTM_OP_ALL_GATHER ? from : to, at);
            sent = dtm_collective_sent_of(kind == DTM_OP_ALL_GATHER ? DTM_COLLECTIVE_ALL_GATHER : DTM_COLLECTIVE_REDUCE_SCATTER,
                                          algorithm, (int)n, (int)i, &counts, 1);
        } else {
            sent = exchanged_by(module, axes, from, to, at);
        }
        most = sent > most ? sent : most;
    }
    return most;
}

/* ---- one rank ---- */

/* The rank's place among those that take part. */
static int64_t index_among(const dtm_module *module, const dtm_op_data *op, const int64_t *coordinates) {
    if (!op->attributes.members) return index_in_group(module, op->attributes.axes, coordinates);
    return dtm_members_below(module, op, coordinates[module->settings.pipeline.axis]);
}

int64_t dtm_sent_by(const dtm_module *module, dtm_op op, dtm_algorithm algorithm, const int64_t *coordinates) {
    const dtm_op_data *data = dtm_op_get(module, op);
    uint16_t axes = data->attributes.axes;
    int n = (int)dtm_group_of(module, data), self = (int)index_among(module, data, coordinates);
    int64_t sent = 0, bytes = dtm_dtype_bytes((dtm_dtype)dtm_value_type(module, data->operands[0])->dtype);
    dtm_collective_counts counts, flat = {0};
    for (uint32_t i = 0; i < data->n_operands; i++) {
        const dtm_type_data *from = dtm_value_type(module, data->operands[i]);
        const dtm_type_data *to = data->n_results ? dtm_value_type(module, data->results[i]) : NULL;
        if (data->kind == DTM_OP_SEND) {
            sent = dtm_bytes_plus(sent, block_bytes(module, from, coordinates));
        } else if (data->kind == DTM_OP_ALL_REDUCE) {
            flat.own += block_bytes(module, from, coordinates) / bytes;
        } else if (data->kind == DTM_OP_REDUCE_SCATTER) {
            counts = counts_of(module, axes, to, coordinates);
            sent = dtm_bytes_plus(sent, dtm_collective_sent_of(DTM_COLLECTIVE_REDUCE_SCATTER, algorithm, n, self, &counts, 1));
        } else if (data->kind == DTM_OP_ALL_GATHER) {
            counts = counts_of(module, axes, from, coordinates);
            sent = dtm_bytes_plus(sent, dtm_collective_sent_of(DTM_COLLECTIVE_ALL_GATHER, algorithm, n, self, &counts, 1));
        } else {
            sent = dtm_bytes_plus(sent, exchanged_by(module, axes, from, to, coordinates));
        }
    }
    if (data->kind != DTM_OP_ALL_REDUCE) return sent;
    return dtm_collective_sent_of(DTM_COLLECTIVE_ALL_REDUCE, algorithm, n, self, &flat, bytes); /* a bucket is flat */
}
