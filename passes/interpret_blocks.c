/* Blocks of tensors, whole tensors made of them, and collectives, by definition: a collective puts the whole tensor of
 * its group of ranks together, summing terms, and cuts the new blocks out of it. The law of blocks is that of ir/ir.h,
 * written a second time. */
#include "passes/interpret_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool dtm_run_mesh(dtm_run *run) {
    const dtm_mesh *mesh = &run->module->settings.mesh;
    run->ranks = 1;
    for (int a = mesh->count - 1; a >= 0; a--) {
        if (a == run->time_axis) continue;
        /* of a pipeline's rank that has no stage there may be no loop to tell what is time */
        if (run->module->of_ranks && (mesh->axes[a].time || a == run->module->settings.pipeline.axis)) continue;
        run->rank_strides[a] = run->ranks;
        run->ranks *= mesh->axes[a].size;
    }
    if ((double)run->ranks > run->options.max_elements) return false;
    run->coordinates = dtm_arena_alloc(run->arena, (size_t)run->ranks * DTM_MAX_AXES * sizeof *run->coordinates);
    for (int64_t rank = 0; rank < run->ranks; rank++)
        for (int a = 0; a < mesh->count; a++)
            if (run->rank_strides[a])
                run->coordinates[rank * DTM_MAX_AXES + a] = rank / run->rank_strides[a] % mesh->axes[a].size;
    return true;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static int64_t divided_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* Narrows [*begin, *begin + *size) to its i-th of p blocks. */
static void narrow(bool balanced, int64_t unit, int64_t i, int64_t p, int64_t *begin, int64_t *size) {
    int64_t units = divided_up(*size, unit), from, to;
    if (balanced) {
        from = i * units / p;
        to = (i + 1) * units / p;
    } else {
        int64_t each = divided_up(units, p);
        from = i * each;
        to = (i + 1) * each;
    }
    from = least(*size, from * unit);
    to = least(*size, to * unit);
    *begin += from;
    *size = to - from;
}

void dtm_run_compute_extent(const dtm_run *run, const dtm_type_data *type, int64_t rank, int64_t microbatch,
                            dtm_extent *extent) {
    const dtm_mesh *mesh = &run->module->settings.mesh;
    extent->elements = 1;
    for (int d = 0; d < type->rank; d++) {
        extent->begin[d] = 0;
        extent->size[d] = run->module->dims[type->dims[d]].size;
        for (int s = 0; s < type->layout[d].count; s++) {
            int axis = type->layout[d].splits[s].axis;
            int64_t unit = type->layout[d].splits[s].unit;
            int64_t i = axis == run->time_axis ? microbatch : run->coordinates[rank * DTM_MAX_AXES + axis];
            narrow(mesh->axes[axis].time, unit ? unit : 1, i, mesh->axes[axis].size, &extent->begin[d],
                   &extent->size[d]);
        }
        extent->elements *= extent->size[d];
    }
}

const dtm_extent *dtm_run_extent_at(dtm_run *run, dtm_type type, int64_t rank, int64_t microbatch) {
    dtm_extent **table = &run->extents[type];
    if (!*table) {
        *table = dtm_arena_alloc(run->arena, (size_t)(run->microbatches * run->ranks) * sizeof **table);
        for (int64_t m = 0; m < run->microbatches; m++)
            for (int64_t r = 0; r < run->ranks; r++)
                dtm_run_compute_extent(run, &run->module->types[type], r, m, *table + m * run->ranks + r);
    }
    return *table + microbatch * run->ranks + rank;
}

const dtm_extent *dtm_run_extent(dtm_run *run, dtm_type type, int64_t rank) {
    int64_t microbatch = run->time_loop == DTM_NO_LOOP ? 0 : run->loops[run->time_loop].current;
    return dtm_run_extent_at(run, type, rank, microbatch < 0 ? 0 : microbatch);
}

int64_t dtm_run_elements(const dtm_run *run, const dtm_type_data *type) {
    int64_t elements = 1;
    for (int d = 0; d < type->rank; d++) elements *= run->module->dims[type->dims[d]].size;
    return elements;
}

void dtm_whole_strides(const dtm_module *module, const dtm_type_data *type, int64_t *strides) {
    int64_t stride = 1;
    for (int d = type->rank - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= module->dims[type->dims[d]].size;
    }
}

uint16_t dtm_run_split_axes(const dtm_type_data *type) {
    uint16_t axes = 0;
    for (int d = 0; d < type->rank; d++)
        for (int s = 0; s < type->layout[d].count; s++) axes |= (uint16_t)(1u << type->layout[d].splits[s].axis);
    return axes;
}

/* ---- blocks within whole tensors: row by row ---- */

typedef struct rows {
    int dims;          /* of a row's index */
    int64_t length;    /* of a row */
    int64_t count, at; /* rows in all, rows passed */
    int64_t offset;    /* of the row in the whole tensor */
    int64_t index[DTM_MAX_RANK], strides[DTM_MAX_RANK];
    const dtm_extent *extent;
} rows;

static rows rows_of(const dtm_module *module, const dtm_type_data *type, const dtm_extent *extent) {
    rows r = {.extent = extent, .length = 1, .dims = type->rank ? type->rank - 1 : 0};
    dtm_whole_strides(module, type, r.strides);
    for (int d = 0; d < type->rank; d++) r.offset += extent->begin[d] * r.strides[d];
    if (type->rank) r.length = extent->size[type->rank - 1];
    r.count = r.length ? extent->elements / r.length : 0;
    return r;
}

static void next_row(rows *r) {
    r->at++;
    for (int d = r->dims - 1; d >= 0; d--) {
        r->offset += r->strides[d];
        if (++r->index[d] < r->extent->size[d]) return;
        r->offset -= r->strides[d] * r->extent->size[d];
        r->index[d] = 0;
    }
}

void dtm_run_cut(const dtm_module *module, const dtm_type_data *type, const dtm_extent *extent, const double *whole,
                 double *block) {
    for (rows r = rows_of(module, type, extent); r.at < r.count; next_row(&r), block += r.length)
        memcpy(block, whole + r.offset, (size_t)r.length * sizeof *block);
}

enum { ABSENT, PRESENT };

/* Lays a block into a whole tensor: the first to touch an element sets it, others add to it or raise it. */
static void merge_block(const dtm_module *module, const dtm_type_data *type, const dtm_extent *extent,
                        const double *block, bool by_max, double *whole, uint8_t *seen) {
    for (rows r = rows_of(module, type, extent); r.at < r.count; next_row(&r), block += r.length) {
        double *to = whole + r.offset;
        for (int64_t i = 0; i < r.length; i++) {
            if (seen[r.offset + i] == ABSENT)
                to[i] = block[i];
            else if (!by_max)
                to[i] += block[i];
            else if (!(block[i] <= to[i]))
                to[i] = block[i]; /* a NaN wins */
        }
        memset(seen + r.offset, PRESENT, (size_t)r.length);
    }
}

/* The rank at coordinate 0 of all axes in the mask and alike elsewhere. */
static int64_t origin(const dtm_run *run, int64_t rank, uint16_t axes) {
    for (int a = 0; a < run->module->settings.mesh.count; a++)
        if (axes >> a & 1) rank -= run->coordinates[rank * DTM_MAX_AXES + a] * run->rank_strides[a];
    return rank;
}

double *dtm_run_assemble(dtm_run *run, dtm_type type, size_t slot, size_t stride, dtm_arena *arena,
                         uint8_t **seen_elements) {
    const dtm_type_data *data = &run->module->types[type];
    int64_t elements = dtm_run_elements(run, data);
    double *whole = dtm_arena_alloc(arena, (size_t)elements * sizeof *whole);
    uint8_t *seen = dtm_arena_alloc(seen_elements ? arena : run->arena, (size_t)elements + 1);
    if (seen_elements) *seen_elements = seen;
    uint16_t present = dtm_run_split_axes(data) | data->sum | data->max;
    bool in_time = run->time_axis >= 0 && present >> run->time_axis & 1;
    for (int64_t m = 0; m < (in_time && stride ? run->microbatches : 1); m++)
        for (int64_t rank = 0; rank < run->ranks; rank++) {
            if (origin(run, rank, (uint16_t)~present) != rank) continue;
            const double *block = run->views[(slot + (size_t)m * stride) * (size_t)run->ranks + (size_t)rank];
            if (block)
                merge_block(run->module, data, dtm_run_extent_at(run, type, rank, m), block, data->max != 0, whole,
                            seen);
        }
    return whole;
}

static void print_coordinates(const dtm_run *run, int64_t rank, char *text, size_t size) {
    const dtm_mesh *mesh = &run->module->settings.mesh;
    size_t used = 0;
    text[0] = 0;
    for (int a = 0; a < mesh->count && used < size; a++)
        if (run->rank_strides[a] && mesh->axes[a].size > 1)
            used += (size_t)snprintf(text + used, size - used, "%s%s = %lld", used ? ", " : "",
                                     dtm_string_text(run->context, mesh->axes[a].name),
                                     (long long)run->coordinates[rank * DTM_MAX_AXES + a]);
}

bool dtm_run_check_alike(dtm_run *run, const dtm_op_data *op, dtm_value value, size_t slot) {
    dtm_type type = run->module->values[value].type;
    const dtm_type_data *data = &run->module->types[type];
    uint16_t alike = (uint16_t) ~(dtm_run_split_axes(data) | data->sum | data->max);
    double **views = run->views + slot * (size_t)run->ranks;
    for (int64_t rank = 0; rank < run->ranks; rank++) {
        int64_t first = origin(run, rank, alike);
        if (views[first] == views[rank]) continue;
        int64_t elements = dtm_run_extent(run, type, rank)->elements;
        if (!memcmp(views[first], views[rank], (size_t)elements * sizeof(double))) continue;
        int64_t i = 0;
        while (!memcmp(&views[first][i], &views[rank][i], sizeof(double))) i++;
        char here[128], there[128];
        print_coordinates(run, rank, here, sizeof here);
        print_coordinates(run, first, there, sizeof there);
        return dtm_run_error(
            run, op,
            "`%s` should be held alike, but at element %lld of the block, rank %lld (%s) has %.17g and "
            "rank %lld (%s) has %.17g",
            dtm_value_name(run->module, value), (long long)i, (long long)rank, here, views[rank][i], (long long)first,
            there, views[first][i]);
    }
    return true;
}

/* ---- collectives ---- */

/* How the layout of a value changes. An axis is `moved` if its blocks are others than before: its place in the splits
 * of a dimension, with all axes major to it. */
typedef struct change {
    uint16_t lost, gained, moved; /* axes that no longer split a dimension, that split another, both */
    bool lost_and_gained;         /* one dimension both loses and gains */
    bool elsewhere;               /* a dimension that the operator does not name */
} change;

static bool named(const dtm_attributes *attributes, dtm_dim dim) {
    for (int i = 0; i < attributes->n_over; i++)
        if (attributes->over[i] == dim) return true;
    for (int i = 0; i < attributes->n_as; i++)
        if (attributes->as[i] == dim) return true;
    return false;
}

static change find_change(const dtm_op_data *op, const dtm_type_data *from, const dtm_type_data *to) {
    change c = {0};
    for (int d = 0; d < from->rank; d++) {
        const dtm_dim_layout *a = &from->layout[d], *b = &to->layout[d];
        int common = 0;
        while (common < a->count && common < b->count && a->splits[common].axis == b->splits[common].axis) common++;
        uint16_t lost = 0, gained = 0;
        for (int s = common; s < a->count; s++) lost |= (uint16_t)(1u << a->splits[s].axis);
        for (int s = common; s < b->count; s++) gained |= (uint16_t)(1u << b->splits[s].axis);
        c.lost |= lost;
        c.gained |= gained;
        c.lost_and_gained |= lost && gained;
        c.elsewhere |= (lost | gained) && op->attributes.n_over && !named(&op->attributes, from->dims[d]);
        bool differs = false; /* in its units: then the blocks of this and all minor axes differ */
        for (int s = 0; s < common; s++) {
            differs |= a->splits[s].unit != b->splits[s].unit;
            if (differs) c.moved |= (uint16_t)(1u << a->splits[s].axis);
        }
    }
    c.moved |= c.lost | c.gained;
    return c;
}

static uint16_t real_axes(const dtm_run *run, uint16_t axes) {
    for (int a = 0; a < run->module->settings.mesh.count; a++)
        if (run->module->settings.mesh.axes[a].size == 1) axes &= (uint16_t) ~(1u << a);
    return axes;
}

/* Whether the types of operand and result are what the operator's attributes say. */
static bool lawful(const dtm_run *run, const dtm_op_data *op, const dtm_type_data *from, const dtm_type_data *to,
                   const change *c) {
    uint16_t on = real_axes(run, op->attributes.axes);
    bool same_terms = from->sum == to->sum && from->max == to->max;
    bool same_splits = !c->lost && !c->gained;
    bool reduced = to->sum == (from->sum & ~on) && to->max == (from->max & ~on) && !(on & ~(from->sum | from->max));
    if (c->elsewhere) return false;
    switch (op->kind) {
    case DTM_OP_ALL_REDUCE:
        return same_splits && reduced;
    case DTM_OP_ALL_GATHER:
        return same_terms && !c->gained && c->lost == on;
    case DTM_OP_REDUCE_SCATTER:
        return reduced && !c->lost && c->gained == on;
    case DTM_OP_ALL_TO_ALL:
        return same_terms && c->lost == on && c->gained == on && !c->lost_and_gained;
    case DTM_OP_SHARD:
        return same_terms && !c->lost && c->gained == on;
    case DTM_OP_AS_TERM: {
        bool own = op->attributes.number[DTM_AS_TERM_OWN] != 0, alike = !((from->sum | from->max) & on);
        bool sum = to->sum == (from->sum | on) && to->max == from->max;
        bool max = own && to->sum == from->sum && to->max == (from->max | on); /* of what ranks have as it is */
        return same_splits && alike && (sum || max);
    }
    case DTM_OP_PERMUTE:
        return same_terms && (!on || !(c->moved & ~on));
    default:
        return true;
    }
}

static void reserve_scratch(dtm_run *run, int64_t elements) {
    if (elements <= run->scratch_elements) return;
    run->scratch_elements = elements;
    run->scratch = dtm_arena_alloc(run->arena, (size_t)elements * sizeof *run->scratch);
    run->scratch_seen = dtm_arena_alloc(run->arena, (size_t)elements);
}

/* Cuts a rank's new block out of the group's tensor. False: the group does not hold all of it. */
static bool cut_seen(const dtm_run *run, const dtm_type_data *type, const dtm_extent *extent, double *block) {
    for (rows r = rows_of(run->module, type, extent); r.at < r.count; next_row(&r), block += r.length) {
        if (memchr(run->scratch_seen + r.offset, ABSENT, (size_t)r.length)) return false;
        memcpy(block, run->scratch + r.offset, (size_t)r.length * sizeof *block);
    }
    return true;
}

static bool at_origin(const dtm_run *run, const dtm_op_data *op, int64_t rank, uint16_t axes) {
    if (op->kind == DTM_OP_AS_TERM && op->attributes.number[DTM_AS_TERM_OWN] != 0) return true;
    if (run->time_axis >= 0 && axes >> run->time_axis & 1 && run->loops[run->time_loop].current > 0) return false;
    return origin(run, rank, axes) == rank;
}

static int64_t members_of(const dtm_run *run, int axes) {
    int64_t members = 1;
    for (int a = 0; a < run->module->settings.mesh.count; a++)
        if (axes >> a & 1) members *= run->module->settings.mesh.axes[a].size;
    return members;
}

/* One group: ranks that differ from `first` along `involved` axes only. */
static bool redistribute_group(dtm_run *run, const dtm_op_data *op, uint32_t index, size_t from_slot, size_t to_slot, int64_t first,
                               uint16_t involved) {
    dtm_type from = run->module->values[op->operands[index]].type, to = run->module->values[op->results[index]].type;
    const dtm_type_data *a = &run->module->types[from], *b = &run->module->types[to];
    uint16_t ended = (uint16_t)((a->sum & ~b->sum) | (a->max & ~b->max)), begun = b->sum & (uint16_t)~a->sum;
    uint16_t copies = involved & (uint16_t) ~(dtm_run_split_axes(a) | ended);
    size_t ranks = (size_t)run->ranks;
    /* a sum of more than two is rounded after each addition, as if its terms had been rounded otherwise */
    bool several = run->options.rounding && members_of(run, a->sum & ended) > 2;
    double unit = a->dtype == DTM_BF16 ? 0x1p-9 : a->dtype == DTM_F16 ? 0x1p-12 : 0x1p-24;
    memset(run->scratch_seen, ABSENT, (size_t)dtm_run_elements(run, a));
    for (int64_t rank = first; rank < run->ranks; rank++) {
        if (origin(run, rank, involved) != first || origin(run, rank, copies) != rank) continue;
        dtm_tile tile = {a, dtm_run_extent(run, from, rank), run->views[from_slot * ranks + (size_t)rank]};
        double *read = several ? dtm_round_otherwise(run, &tile, unit) : NULL;
        merge_block(run->module, a, tile.extent, read ? read : tile.data, (a->max & ended) != 0, run->scratch, run->scratch_seen);
        free(read);
    }
    for (int64_t rank = first; rank < run->ranks; rank++) {
        if (origin(run, rank, involved) != first) continue;
        double *block = dtm_run_block(run, to_slot, to, rank);
        const dtm_extent *extent = dtm_run_extent(run, to, rank);
        if (!at_origin(run, op, rank, begun))
            memset(block, 0, (size_t)extent->elements * sizeof *block);
        else if (!cut_seen(run, b, extent, block))
            return dtm_run_error(run, op, "`%s`: rank %lld is to have elements that no rank of its group holds",
                                 dtm_op_rows[op->kind].name, (long long)rank);
        else if (several && run->options.rounds) dtm_round_by_lot(run, (dtm_dtype)a->dtype, extent->elements, block);
    }
    return true;
}

static bool redistribute(dtm_run *run, const dtm_op_data *op, uint32_t index) {
    dtm_value source = op->operands[index], target = op->results[index];
    dtm_type from = run->module->values[source].type, to = run->module->values[target].type;
    const dtm_type_data *a = &run->module->types[from], *b = &run->module->types[to];
    if (a->rank != b->rank || a->dtype != b->dtype || memcmp(a->dims, b->dims, sizeof a->dims))
        return dtm_run_error(run, op, "`%s` changes more than the layout of `%s`", dtm_op_rows[op->kind].name,
                             dtm_value_name(run->module, source));
    change c = find_change(op, a, b);
    if (!lawful(run, op, a, b, &c))
        return dtm_run_error(run, op, "`%s` of `%s` cannot give the layout of `%s`", dtm_op_rows[op->kind].name,
                             dtm_value_name(run->module, source), dtm_value_name(run->module, target));
    uint16_t involved = c.moved | (a->sum ^ b->sum) | (a->max ^ b->max);
    if (run->time_axis >= 0 && (((a->sum & ~b->sum) | (a->max & ~b->max)) >> run->time_axis & 1))
        return dtm_run_error(run, op, "`%s` of `%s` over microbatches, which run one after the other",
                             dtm_op_rows[op->kind].name, dtm_value_name(run->module, source));
    size_t from_slot = dtm_run_slot(run, op, source), to_slot = dtm_run_slot(run, op, target);
    if (from_slot == SIZE_MAX || to_slot == SIZE_MAX) return false;
    reserve_scratch(run, dtm_run_elements(run, a));
    for (int64_t rank = 0; rank < run->ranks; rank++)
        if (origin(run, rank, involved) == rank &&
            !redistribute_group(run, op, index, from_slot, to_slot, rank, involved))
            return false;
    return true;
}

bool dtm_run_collective(dtm_run *run, const dtm_op_data *op) {
    if (op->kind != DTM_OP_AS_TERM && dtm_run_meets(run, op)) return dtm_run_meet(run, op);
    for (uint32_t i = 0; i < op->n_results; i++)
        if (!redistribute(run, op, i)) return false;
    return true;
}
