/* Roundings: of what is made to its type, and, to show what rounding does to a program, by lot. A lot is of the seed and of the number's
 * own bits, as rounding is: ranks that hold a value alike draw alike. */
#include "passes/interpret_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* In [0, 1). */
static double lot_of(uint64_t seed, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (double)(mix(bits + seed * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
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

void dtm_round_by_lot(const dtm_run *run, dtm_dtype dtype, int64_t elements, double *data) {
    bool half = dtm_dtype_is_half(dtype);
    for (int64_t i = 0; i < elements; i++) {
        double lot = lot_of(run->options.rounding, data[i]);
        data[i] = half ? to_half_by_lot(dtype, data[i], lot) : to_float_by_lot(data[i], lot);
    }
}

void dtm_round_results(dtm_run *run, const dtm_op_data *op) {
    for (uint32_t i = 0; i < op->n_results; i++) {
        dtm_type type = run->module->values[op->results[i]].type;
        const dtm_type_data *data = &run->module->types[type];
        bool half = dtm_dtype_is_half((dtm_dtype)data->dtype);
        if (half ? !run->options.rounds : data->dtype != DTM_F32 || !run->options.rounding) continue;
        size_t slot = dtm_run_slot(run, op, op->results[i]);
        bool nearest = half && (run->options.nearest || !run->options.rounding);
        for (int64_t rank = 0; slot != SIZE_MAX && rank < run->ranks; rank++) {
            double *block = run->views[slot * (size_t)run->ranks + (size_t)rank];
            int64_t elements = dtm_run_extent(run, type, rank)->elements;
            if (block && !nearest) dtm_round_by_lot(run, (dtm_dtype)data->dtype, elements, block);
            for (int64_t e = 0; block && nearest && e < elements; e++) block[e] = dtm_round_to((dtm_dtype)data->dtype, block[e]);
        }
    }
}

double *dtm_round_otherwise(const dtm_run *run, const dtm_tile *tile, double unit) {
    int64_t elements = tile->extent->elements;
    double *copy = dtm_dtype_is_float((dtm_dtype)tile->type->dtype) ? malloc((size_t)elements * sizeof *copy + 1) : NULL;
    for (int64_t i = 0; copy && i < elements; i++)
        copy[i] = tile->data[i] * (1 + (2 * lot_of(run->options.rounding + run->options.nudge, tile->data[i]) - 1) * unit);
    return copy;
}
