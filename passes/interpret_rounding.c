/* Roundings: of what is made to its type, and, to show what rounding does to a program, by lot. A lot is of a value's name, copy and
 * step, and of the element's index in the whole tensor (of a term of a sum, of the rank's coordinates on its axes too): ranks that hold
 * a value alike draw alike, and so do two meshes. */
#include "passes/interpret_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t with(uint64_t lots, uint64_t number) { return mix(lots + 0x9e3779b97f4a7c15u * (number + 1)); }

/* Of a value in the copies now executed, on a rank. */
static uint64_t lots_of(const dtm_run *run, dtm_value value, const dtm_type_data *type, int64_t rank) {
    uint64_t lots = with(run->options.rounding, dtm_hash_name(dtm_value_name(run->module, value)));
    const dtm_slots *slots = &run->slots[value];
    lots = with(lots, (uint64_t)run->step);
    for (int i = 0; i < slots->depth; i++) {
        const dtm_loop *loop = &run->loops[slots->loops[i]];
        lots = with(lots, (uint64_t)(loop->first + loop->current));
    }
    uint16_t terms = type->sum | type->max;
    for (int a = 0; a < run->module->settings.mesh.count; a++) {
        bool along = run->peers && a == run->module->settings.pipeline.axis; /* of its ranks each has a run */
        int64_t at = along ? run->module->rank : run->coordinates[rank * DTM_MAX_AXES + a];
        if (terms >> a & 1) lots = with(lots, (uint64_t)at);
    }
    return lots;
}

/* In [0, 1), of an element. */
static double lot_of(uint64_t lots, int64_t element) { return (double)(with(lots, (uint64_t)element) >> 11) * 0x1p-53; }

/* Elements of a block, and where each is in the whole tensor. */
typedef struct walk {
    const dtm_extent *extent;
    int rank;
    int64_t index[DTM_MAX_RANK], strides[DTM_MAX_RANK], place;
} walk;

static walk walk_of(const dtm_run *run, const dtm_type_data *type, const dtm_extent *extent) {
    walk w = {.extent = extent, .rank = type->rank};
    dtm_whole_strides(run->module, type, w.strides);
    for (int d = 0; d < w.rank; d++) w.place += extent->begin[d] * w.strides[d];
    return w;
}

static void step(walk *w) {
    for (int d = w->rank - 1; d >= 0; d--) {
        w->place += w->strides[d];
        if (++w->index[d] < w->extent->size[d]) return;
        w->place -= w->strides[d] * w->extent->size[d];
        w->index[d] = 0;
    }
}

/* Up or down, with the odds that make the mean exact. */
static double to_float_by_lot(double x, double lot) {
    float near = (float)x;
    if ((double)near == x || !isfinite(near)) return (double)near;
    float other = nextafterf(near, x > (double)near ? INFINITY : -INFINITY);
    double share = (x - (double)near) / ((double)other - (double)near);
    return (double)(lot < share ? other : near);
}

static double to_half_by_lot(dtm_dtype dtype, double x, double lot) {
    double near = dtm_round_to(dtype, x);
    if (near == x || !isfinite(near)) return near;
    int bits = dtype == DTM_F16 ? 11 : 8, lowest = dtype == DTM_F16 ? -13 : -125, exponent;
    frexp(x, &exponent);
    double unit = ldexp(1, (exponent < lowest ? lowest : exponent) - bits), below = floor(x / unit);
    return dtm_round_to(dtype, (below + (lot < x / unit - below ? 1 : 0)) * unit);
}

static void round_block(dtm_run *run, dtm_value value, const dtm_type_data *type, const dtm_extent *extent, int64_t rank, double *data) {
    dtm_dtype dtype = (dtm_dtype)type->dtype;
    bool half = dtm_dtype_is_half(dtype);
    if (!half || run->options.nearest || !run->options.rounding) {
        for (int64_t i = 0; half && i < extent->elements; i++) data[i] = dtm_round_to(dtype, data[i]);
        if (half || !run->options.rounding) return;
    }
    uint64_t lots = lots_of(run, value, type, rank);
    walk w = walk_of(run, type, extent);
    for (int64_t i = 0; i < extent->elements; i++, step(&w))
        data[i] = half ? to_half_by_lot(dtype, data[i], lot_of(lots, w.place)) : to_float_by_lot(data[i], lot_of(lots, w.place));
}

void dtm_round_results(dtm_run *run, const dtm_op_data *op) {
    for (uint32_t i = 0; i < op->n_results; i++) {
        dtm_type type = run->module->values[op->results[i]].type;
        const dtm_type_data *data = &run->module->types[type];
        bool half = dtm_dtype_is_half((dtm_dtype)data->dtype);
        if (half ? !run->options.rounds : data->dtype != DTM_F32 || !run->options.rounding) continue;
        size_t slot = dtm_run_slot(run, op, op->results[i]);
        for (int64_t rank = 0; slot != SIZE_MAX && rank < run->ranks; rank++) {
            double *block = run->views[slot * (size_t)run->ranks + (size_t)rank];
            if (block) round_block(run, op->results[i], data, dtm_run_extent(run, type, rank), rank, block);
        }
    }
}

double *dtm_round_otherwise(dtm_run *run, const dtm_op_data *op, uint32_t operand, int64_t rank, const dtm_tile *tile, double unit) {
    if (!dtm_dtype_is_float((dtm_dtype)tile->type->dtype) || !op->n_results) return NULL;
    double *copy = malloc((size_t)tile->extent->elements * sizeof *copy + 1);
    if (!copy) return NULL;
    uint64_t lots = with(lots_of(run, op->results[0], tile->type, rank), operand);
    walk w = walk_of(run, tile->type, tile->extent);
    for (int64_t i = 0; i < tile->extent->elements; i++, step(&w)) {
        double lot = lot_of(lots, w.place);
        copy[i] = tile->data[i] * (lot < 0.25 ? 1 - unit : lot < 0.5 ? 1 + unit : 1);
    }
    return copy;
}

double *dtm_nudge(const dtm_run *run, const dtm_tile *tile) {
    int64_t elements = tile->extent->elements;
    double *copy = dtm_dtype_is_float((dtm_dtype)tile->type->dtype) ? malloc((size_t)elements * sizeof *copy + 1) : NULL;
    for (int64_t i = 0; copy && i < elements; i++) {
        uint64_t bits;
        memcpy(&bits, &tile->data[i], sizeof bits);
        copy[i] = tile->data[i] * (1 + (2 * lot_of(bits, (int64_t)run->options.nudge) - 1) * 0x1p-52);
    }
    return copy;
}
