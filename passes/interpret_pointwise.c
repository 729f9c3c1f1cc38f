/* Elementwise operators, and values from nowhere. */
#include "passes/interpret_nest.h"

#include <math.h>
#include <string.h>

/* ---- elementwise ---- */

typedef double scalar_rule(const double *x);

static bool pointwise(dtm_call *call, scalar_rule *rule) {
    dtm_nest n = dtm_nest_begin(call);
    dtm_nest_add(&n, &call->results[0]);
    for (uint32_t i = 0; i < call->n_operands; i++) dtm_nest_add(&n, &call->operands[i]);
    if (n.rank > call->results[0].type->rank) return dtm_call_error(call, "its result lacks a dimension", 0);
    if (!dtm_nest_close(&n)) return false;
    double *y = call->results[0].data;
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            double x[4];
            for (uint32_t o = 0; o < call->n_operands; o++)
                x[o] = call->operands[o].data[c.offset[o + 1] + i * STEP(n, o + 1)];
            y[c.offset[0] + i * STEP(n, 0)] = rule(x);
        }
    }
    return true;
}

#define POINTWISE(kind, expression)                                                                                    \
    static double scalar_##kind(const double *x) {                                                                     \
        return expression;                                                                                             \
    }                                                                                                                  \
    bool dtm_interpret_##kind(dtm_call *call) {                                                                        \
        return pointwise(call, scalar_##kind);                                                                         \
    }

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}
static const double root_half = 0.70710678118654752440, root_two_by_pi = 0.79788456080286535588;
static const double two_by_root_pi = 1.1283791670955125739, gelu_cubic = 0.044715;
/* The inner function of the tanh form of gelu, and its derivative. */
static double gelu_inner(double x) {
    return root_two_by_pi * (x + gelu_cubic * x * x * x);
}
static double gelu_inner_slope(double x) {
    return root_two_by_pi * (1 + 3 * gelu_cubic * x * x);
}

static double gelu_slope(double x) {
    return 0.5 * (1 + erf(x * root_half)) + x * 0.5 * two_by_root_pi * root_half * exp(-0.5 * x * x);
}

static double gelu_tanh_slope(double x) {
    double t = tanh(gelu_inner(x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * gelu_inner_slope(x);
}

/* log(1 + exp x), where exp x is too large for a double too */
static double softplus(double x) {
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

static double silu_slope(double x) {
    double s = sigmoid(x);
    return s + x * s * (1 - s);
}

POINTWISE(ADD, x[0] + x[1])
POINTWISE(SUB, x[0] - x[1])
POINTWISE(MUL, x[0] * x[1])
POINTWISE(DIV, x[0] / x[1])
POINTWISE(NEG, -x[0])
POINTWISE(LT, x[0] < x[1])
POINTWISE(LE, x[0] <= x[1])
POINTWISE(GT, x[0] > x[1])
POINTWISE(GE, x[0] >= x[1])
POINTWISE(EQ, x[0] == x[1])
POINTWISE(NE, x[0] != x[1])
POINTWISE(MINIMUM, isnan(x[0]) || x[0] < x[1] ? x[0] : x[1])
POINTWISE(MAXIMUM, isnan(x[0]) || x[0] > x[1] ? x[0] : x[1])
POINTWISE(WHERE, x[0] != 0 ? x[1] : x[2])
POINTWISE(EXP, exp(x[0]))
POINTWISE(LOG, log(x[0]))
POINTWISE(SQRT, sqrt(x[0]))
POINTWISE(RSQRT, 1 / sqrt(x[0]))
POINTWISE(TANH, tanh(x[0]))
POINTWISE(SIGMOID, sigmoid(x[0]))
POINTWISE(ERF, erf(x[0]))
POINTWISE(RELU, x[0] > 0 || isnan(x[0]) ? x[0] : 0)
POINTWISE(GELU, 0.5 * x[0] * (1 + erf(x[0] * root_half)))
POINTWISE(GELU_TANH, 0.5 * x[0] * (1 + tanh(gelu_inner(x[0]))))
POINTWISE(SILU, x[0] * sigmoid(x[0]))
POINTWISE(SOFTPLUS, softplus(x[0]))
POINTWISE(SQUARE, x[0] * x[0])
POINTWISE(ABS, fabs(x[0]))
POINTWISE(TANH_BACKWARD, (1 - x[0] * x[0]) * x[1])
POINTWISE(SIGMOID_BACKWARD, x[0] * (1 - x[0]) * x[1])
POINTWISE(RELU_BACKWARD, x[0] > 0 ? x[1] : 0)
POINTWISE(GELU_BACKWARD, gelu_slope(x[0]) * x[1])
POINTWISE(GELU_TANH_BACKWARD, gelu_tanh_slope(x[0]) * x[1])
POINTWISE(SILU_BACKWARD, silu_slope(x[0]) * x[1])
POINTWISE(EXPAND, x[0])

static double same(const double *x) {
    return x[0];
}
static double to_truth(const double *x) {
    return x[0] != 0;
}
static double to_whole(const double *x) {
    return trunc(x[0]);
}
static double to_f32(const double *x) {
    return (double)(float)x[0];
}

/* To `bits` bits of mantissa, exponents from `lowest` on, ties to even. */
static double round_to(double x, int bits, int lowest) {
    if (x == 0 || !isfinite(x)) return x;
    int exponent;
    frexp(x, &exponent);
    if (exponent < lowest) exponent = lowest;
    return ldexp(nearbyint(ldexp(x, bits - exponent)), exponent - bits);
}

double dtm_round_to(dtm_dtype dtype, double x) {
    float whole = (float)x; /* what is computed in f32 */
    double y = dtype == DTM_F16 ? round_to((double)whole, 11, -13) : dtype == DTM_BF16 ? round_to((double)whole, 8, -125) : (double)whole;
    double most = dtype == DTM_F16 ? 65504 : 0x1.fep127;
    return fabs(y) > most && dtype != DTM_F32 ? copysign(INFINITY, y) : y;
}

bool dtm_interpret_CAST(dtm_call *call) {
    bool rounds = call->run->options.rounds;
    switch (call->results[0].type->dtype) {
    case DTM_BOOL:
        return pointwise(call, to_truth);
    case DTM_I32:
    case DTM_U8:
        return pointwise(call, to_whole);
    case DTM_F32:
        return pointwise(call, rounds ? to_f32 : same);
    default: /* others are rounded as all that is made */
        return pointwise(call, same);
    }
}

/* The flattened copy an operator is in, outermost repeat first, microbatches apart: their elements have places of their own. */
static int64_t copy_number(const dtm_run *run, dtm_value made) {
    const dtm_slots *in = &run->slots[made];
    int64_t copy = 0;
    for (int i = 0; i < in->depth; i++) {
        const dtm_loop *loop = &run->loops[in->loops[i]];
        if (in->loops[i] != run->time_loop) copy = copy * loop->copies + loop->first + loop->current;
    }
    return copy;
}

bool dtm_interpret_DROPOUT(dtm_call *call) {
    const dtm_run *run = call->run;
    double p = call->op->attributes.number[DTM_DROPOUT_P];
    uint64_t site = (uint64_t)run->sites[call->op - run->module->ops];
    int64_t copy = copy_number(run, call->op->results[0]), strides[DTM_MAX_RANK], first = 0;
    dtm_nest n = dtm_nest_begin(call);
    dtm_nest_add(&n, &call->results[0]);
    dtm_nest_add(&n, &call->operands[0]);
    dtm_whole_strides(run->module, call->results[0].type, strides);
    for (int d = 0; d < call->results[0].type->rank; d++) {
        n.strides[2][d] = strides[d];
        first += strides[d] * call->results[0].extent->begin[d];
    }
    n.tensors = 3; /* the third: the element's index in the whole tensor */
    if (!dtm_nest_close(&n)) return false;
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            int64_t element = first + c.offset[2] + i * STEP(n, 2);
            double x = call->operands[0].data[c.offset[1] + i * STEP(n, 1)];
            bool kept = dtm_draw_keep(run->options.seed, site, run->step, copy, element, p);
            call->results[0].data[c.offset[0] + i * STEP(n, 0)] = kept ? x * (1 / (1 - p)) : 0;
        }
    }
    return true;
}

/* ---- values from nowhere ---- */

bool dtm_interpret_POSITIONS(dtm_call *call) {
    for (int64_t i = 0; i < call->results[0].extent->elements; i++)
        call->results[0].data[i] = (double)(call->results[0].extent->begin[0] + i);
    return true;
}

bool dtm_interpret_FILL(dtm_call *call) {
    dtm_tile_fill(&call->results[0], call->operands[0].data[0]);
    return true;
}

bool dtm_interpret_LEARNING_RATE(dtm_call *call) {
    dtm_tile_fill(&call->results[0], dtm_learning_rate(&call->run->module->settings.train, call->run->step));
    return true;
}

bool dtm_interpret_BIAS_CORRECTION(dtm_call *call) {
    dtm_tile_fill(&call->results[0],
                  1 - pow(call->op->attributes.number[DTM_BIAS_CORRECTION_BETA], (double)call->run->step));
    return true;
}
