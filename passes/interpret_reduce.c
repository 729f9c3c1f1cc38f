/* Products, reductions, and what works along one dimension: softmax, norms, cross-entropy. */
#include "passes/interpret_nest.h"

#include <math.h>
#include <string.h>

/* ---- products and reductions ---- */

/* Two nests over the same tensors, tensor 0 being the result: the outer over the result's dimensions, the inner over
 * those that are reduced. */
typedef struct reduction {
    dtm_nest outer, inner;
} reduction;

static bool reduction_of(dtm_call *call, uint32_t n_operands, reduction *r) {
    r->outer = dtm_nest_begin(call);
    r->inner = dtm_nest_begin(call);
    dtm_nest_add(&r->outer, &call->results[0]);
    r->inner.tensors = 1;
    for (uint32_t o = 0; o < n_operands; o++) {
        const dtm_tile *tile = &call->operands[o];
        dtm_nest_add_but(&r->outer, tile, call->op->attributes.over, call->op->attributes.n_over);
        dtm_dim kept[DTM_MAX_RANK];
        int n_kept = 0;
        for (int d = 0; d < tile->type->rank; d++)
            if (!dtm_call_over(call, tile->type->dims[d])) kept[n_kept++] = tile->type->dims[d];
        dtm_nest_add_but(&r->inner, tile, kept, n_kept);
    }
    for (int l = 0; l < r->outer.rank; l++) /* a reduced dimension in the result is not the operand's */
        if (dtm_call_over(call, r->outer.dims[l]))
            return dtm_call_error(call, "keeps a dimension that it reduces:", r->outer.dims[l]);
    if (r->outer.rank > call->results[0].type->rank) return dtm_call_error(call, "its result lacks a dimension", 0);
    return dtm_nest_close(&r->outer) && dtm_nest_close(&r->inner);
}

bool dtm_interpret_DOT(dtm_call *call) {
    reduction r;
    if (!reduction_of(call, 2, &r)) return false;
    const double *a = call->operands[0].data, *b = call->operands[1].data;
    int64_t row = ROW(r.inner), step_a = STEP(r.inner, 1), step_b = STEP(r.inner, 2);
    FOR_ROWS(r.outer, c) {
        for (int64_t i = 0; i < ROW(r.outer); i++) {
            int64_t at[3];
            for (int t = 0; t < 3; t++) at[t] = c.offset[t] + i * STEP(r.outer, t);
            double sum = 0;
            FOR_ROWS_FROM(r.inner, k, at) {
                const double *x = a + k.offset[1], *y = b + k.offset[2];
                for (int64_t j = 0; j < row; j++) sum += x[j * step_a] * y[j * step_b];
            }
            call->results[0].data[at[0]] = sum;
        }
    }
    if (call->n_operands < 3) return true;
    dtm_nest n = dtm_nest_begin(call);
    dtm_nest_add(&n, &call->results[0]);
    dtm_nest_add(&n, &call->operands[2]);
    if (!dtm_nest_close(&n)) return false;
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++)
            call->results[0].data[c.offset[0] + i * STEP(n, 0)] += call->operands[2].data[c.offset[1] + i * STEP(n, 1)];
    }
    return true;
}

typedef enum reduce_kind { BY_SUM, BY_MEAN, BY_MAX } reduce_kind;

/* What a mean divides by where nothing is left out: the count of the whole dimensions. */
static double whole_count(const dtm_call *call) {
    double count = 1;
    for (int i = 0; i < call->op->attributes.n_over; i++)
        count *= (double)dtm_call_size(call, call->op->attributes.over[i]);
    return count;
}

static bool reduce(dtm_call *call, reduce_kind kind) {
    bool masked = call->n_operands > 1;
    reduction r;
    if (!reduction_of(call, call->n_operands, &r)) return false;
    if (masked && kind == BY_MEAN)
        for (int i = 0; i < call->op->attributes.n_over; i++)
            for (uint32_t o = 0; o < 2; o++)
                if (!dtm_call_need_whole(call, &call->operands[o], call->op->attributes.over[i])) return false;
    const double *x = call->operands[0].data, *mask = masked ? call->operands[1].data : NULL;
    double whole = whole_count(call);
    FOR_ROWS(r.outer, c) {
        for (int64_t i = 0; i < ROW(r.outer); i++) {
            int64_t at[3] = {0};
            for (int t = 0; t < r.outer.tensors; t++) at[t] = c.offset[t] + i * STEP(r.outer, t);
            double value = kind == BY_MAX ? -INFINITY : 0, count = 0;
            FOR_ROWS_FROM(r.inner, k, at)
            for (int64_t j = 0; j < ROW(r.inner); j++) {
                if (masked && mask[k.offset[2] + j * STEP(r.inner, 2)] == 0) continue;
                double element = x[k.offset[1] + j * STEP(r.inner, 1)];
                count++;
                if (kind != BY_MAX)
                    value += element;
                else if (!(element <= value))
                    value = element;
            }
            if (masked && count == 0)
                value = 0;
            else if (kind == BY_MEAN)
                value /= masked ? count : whole;
            call->results[0].data[at[0]] = value;
        }
    }
    return true;
}

bool dtm_interpret_SUM(dtm_call *call) {
    return reduce(call, BY_SUM);
}
bool dtm_interpret_MEAN(dtm_call *call) {
    return reduce(call, BY_MEAN);
}
bool dtm_interpret_REDUCE_MAX(dtm_call *call) {
    return reduce(call, BY_MAX);
}

/* ---- along one dimension ---- */

/* Nests for operators that keep the dimensions they work along: the outer over all others of result 0 (tensor 0), the
 * inner over `over`. Further tensors: the operands, then the other results. */
static bool along(dtm_call *call, uint32_t n_results, reduction *r) {
    const dtm_attributes *attributes = &call->op->attributes;
    r->outer = dtm_nest_begin(call);
    r->inner = dtm_nest_begin(call);
    for (uint32_t t = 0; t < n_results + call->n_operands; t++) {
        const dtm_tile *tile = t == 0                  ? &call->results[0]
                               : t <= call->n_operands ? &call->operands[t - 1]
                                                       : &call->results[t - call->n_operands];
        for (int i = 0; i < attributes->n_over; i++)
            if (!dtm_call_need_whole(call, tile, attributes->over[i])) return false;
        dtm_nest_add_but(&r->outer, tile, attributes->over, attributes->n_over);
        dtm_dim others[DTM_MAX_RANK];
        int n_others = 0;
        for (int d = 0; d < tile->type->rank; d++)
            if (!dtm_call_over(call, tile->type->dims[d])) others[n_others++] = tile->type->dims[d];
        dtm_nest_add_but(&r->inner, tile, others, n_others);
    }
    return dtm_nest_close(&r->outer) && dtm_nest_close(&r->inner);
}

/* A line: the elements of all tensors along the inner nest, by their order. */
typedef struct line {
    const reduction *r;
    int64_t at[DTM_NEST_TENSORS];
} line;

#define FOR_LINES(reduction_, line_)                                                                                   \
    FOR_ROWS((reduction_).outer, outer_cursor)                                                                         \
    for (int64_t outer_index = 0; outer_index < ROW((reduction_).outer); outer_index++)                                \
        for (line line_ = line_at(&(reduction_), &outer_cursor, outer_index), *once = &line_; once; once = NULL)
#define FOR_ELEMENTS(line_, c_, j_)                                                                                    \
    FOR_ROWS_FROM((line_).r->inner, c_, (line_).at)                                                                    \
    for (int64_t j_ = 0; j_ < ROW((line_).r->inner); j_++)
#define AT(line_, t, c_, j_) ((c_).offset[t] + (j_)*STEP((line_).r->inner, t))

static line line_at(const reduction *r, const dtm_cursor *c, int64_t i) {
    line l = {.r = r};
    for (int t = 0; t < r->outer.tensors; t++) l.at[t] = c->offset[t] + i * STEP(r->outer, t);
    return l;
}

/* The logarithm of the sum of exp over a line of a tensor. */
static double log_sum_exp(const line *l, int tensor, const double *x) {
    double top = -INFINITY, sum = 0;
    FOR_ELEMENTS(*l, c, j) {
        double element = x[AT(*l, tensor, c, j)];
        if (!(element <= top)) top = element;
    }
    if (!isfinite(top)) return top;
    FOR_ELEMENTS(*l, c, j) sum += exp(x[AT(*l, tensor, c, j)] - top);
    return top + log(sum);
}

static bool softmax(dtm_call *call, bool in_logs) {
    reduction r;
    if (!along(call, 1, &r)) return false;
    const double *x = call->operands[0].data;
    double *y = call->results[0].data;
    FOR_LINES(r, l) {
        double lse = log_sum_exp(&l, 1, x);
        FOR_ELEMENTS(l, c, j) {
            double z = x[AT(l, 1, c, j)] - lse;
            y[AT(l, 0, c, j)] = in_logs ? z : exp(z);
        }
    }
    return true;
}

bool dtm_interpret_SOFTMAX(dtm_call *call) {
    return softmax(call, false);
}
bool dtm_interpret_LOG_SOFTMAX(dtm_call *call) {
    return softmax(call, true);
}

static bool softmax_backward(dtm_call *call, bool in_logs) {
    reduction r;
    if (!along(call, 1, &r)) return false;
    const double *y = call->operands[0].data, *dy = call->operands[1].data;
    double *dx = call->results[0].data;
    FOR_LINES(r, l) {
        double sum = 0;
        FOR_ELEMENTS(l, c, j) sum += dy[AT(l, 2, c, j)] * (in_logs ? 1 : y[AT(l, 1, c, j)]);
        FOR_ELEMENTS(l, c, j) {
            double out = y[AT(l, 1, c, j)], gradient = dy[AT(l, 2, c, j)];
            dx[AT(l, 0, c, j)] = in_logs ? gradient - exp(out) * sum : out * (gradient - sum);
        }
    }
    return true;
}

bool dtm_interpret_SOFTMAX_BACKWARD(dtm_call *call) {
    return softmax_backward(call, false);
}
bool dtm_interpret_LOG_SOFTMAX_BACKWARD(dtm_call *call) {
    return softmax_backward(call, true);
}

/* Mean (0 for rmsnorm) and reciprocal deviation of a line. */
static void moments(const line *l, int tensor, const double *x, bool centred, double eps, double *mean, double *scale) {
    double sum = 0, squares = 0, count = 0;
    FOR_ELEMENTS(*l, c, j) {
        sum += x[AT(*l, tensor, c, j)];
        count++;
    }
    *mean = centred ? sum / count : 0;
    FOR_ELEMENTS(*l, c, j) {
        double d = x[AT(*l, tensor, c, j)] - *mean;
        squares += d * d;
    }
    *scale = 1 / sqrt(squares / count + eps);
}

static bool norm(dtm_call *call, bool centred) {
    reduction r;
    if (!along(call, 1, &r)) return false;
    const double *x = call->operands[0].data, *scale = call->operands[1].data;
    const double *bias = call->n_operands > 2 ? call->operands[2].data : NULL;
    FOR_LINES(r, l) {
        double mean, factor;
        moments(&l, 1, x, centred, call->op->attributes.number[DTM_NORM_EPS], &mean, &factor);
        FOR_ELEMENTS(l, c, j) {
            double y = (x[AT(l, 1, c, j)] - mean) * factor * scale[AT(l, 2, c, j)];
            call->results[0].data[AT(l, 0, c, j)] = y + (bias ? bias[AT(l, 3, c, j)] : 0);
        }
    }
    return true;
}

bool dtm_interpret_RMSNORM(dtm_call *call) {
    return norm(call, false);
}
bool dtm_interpret_LAYERNORM(dtm_call *call) {
    return norm(call, true);
}

/* With n the normalised x: g = dy scale, dx = factor (g - mean(g) - n mean(g n)), dscale = sum of dy n, dbias = sum of
 * dy; rmsnorm has no mean(g). */
static bool norm_backward(dtm_call *call, bool centred) {
    reduction r;
    if (!along(call, call->n_results, &r)) return false;
    const double *x = call->operands[0].data, *scale = call->operands[1].data, *dy = call->operands[2].data;
    double *dx = call->results[0].data, *dscale = call->results[1].data;
    double *dbias = call->n_results > 2 ? call->results[2].data : NULL;
    for (uint32_t i = 1; i < call->n_results; i++) dtm_tile_fill(&call->results[i], 0);
    FOR_LINES(r, l) {
        double mean, factor, g_sum = 0, gn_sum = 0, count = 0;
        moments(&l, 1, x, centred, call->op->attributes.number[DTM_NORM_EPS], &mean, &factor);
        FOR_ELEMENTS(l, c, j) {
            double n = (x[AT(l, 1, c, j)] - mean) * factor, gradient = dy[AT(l, 3, c, j)];
            double g = gradient * scale[AT(l, 2, c, j)];
            g_sum += g;
            gn_sum += g * n;
            count++;
            dscale[AT(l, 4, c, j)] += gradient * n;
            if (dbias) dbias[AT(l, 5, c, j)] += gradient;
        }
        FOR_ELEMENTS(l, c, j) {
            double n = (x[AT(l, 1, c, j)] - mean) * factor, g = dy[AT(l, 3, c, j)] * scale[AT(l, 2, c, j)];
            dx[AT(l, 0, c, j)] = factor * (g - (centred ? g_sum / count : 0) - n * gn_sum / count);
        }
    }
    return true;
}

bool dtm_interpret_RMSNORM_BACKWARD(dtm_call *call) {
    return norm_backward(call, false);
}
bool dtm_interpret_LAYERNORM_BACKWARD(dtm_call *call) {
    return norm_backward(call, true);
}

/* loss = lse - (1 - smooth) x[target] - smooth mean(x), 0 where the target is negative. */
bool dtm_interpret_CROSS_ENTROPY(dtm_call *call) {
    dtm_dim classes = call->op->attributes.over[0];
    double smooth = call->op->attributes.number[DTM_CROSS_ENTROPY_SMOOTH], count = (double)dtm_call_size(call, classes);
    reduction r;
    if (!along(call, 2, &r)) return false;
    const double *x = call->operands[0].data, *targets = call->operands[1].data;
    FOR_LINES(r, l) {
        double lse = log_sum_exp(&l, 1, x), target = targets[l.at[2]], sum = 0, hit = 0, number = 0;
        if (target >= count) return !dtm_call_bad_index(call, target, classes);
        FOR_ELEMENTS(l, c, j) {
            double element = x[AT(l, 1, c, j)];
            sum += element;
            if (number++ == target) hit = element;
        }
        double loss = lse - (1 - smooth) * hit - (smooth != 0 ? smooth * sum / count : 0);
        call->results[0].data[l.at[0]] = target < 0 ? 0 : loss;
        call->results[1].data[l.at[3]] = lse;
    }
    return true;
}

/* dx = dy (exp(x - lse) - (1 - smooth) [v = target] - smooth / V), 0 where the target is negative. */
bool dtm_interpret_CROSS_ENTROPY_BACKWARD(dtm_call *call) {
    dtm_dim classes = call->op->attributes.over[0];
    double smooth = call->op->attributes.number[DTM_CROSS_ENTROPY_SMOOTH], count = (double)dtm_call_size(call, classes);
    dtm_nest n = dtm_nest_begin(call);
    dtm_nest_add(&n, &call->results[0]);
    for (int o = 0; o < 4; o++) dtm_nest_add(&n, &call->operands[o]);
    dtm_nest_add_position(&n, classes);
    if (!dtm_nest_close(&n)) return false;
    double first = (double)dtm_nest_begin_of(&n, classes);
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            double in[4];
            for (int o = 0; o < 4; o++) in[o] = call->operands[o].data[c.offset[o + 1] + i * STEP(n, o + 1)];
            double v = first + (double)(c.offset[5] + i * STEP(n, 5)), target = in[2];
            if (target >= count) return !dtm_call_bad_index(call, target, classes);
            double dx = in[3] * (exp(in[0] - in[1]) - (v == target ? 1 - smooth : 0) - smooth / count);
            call->results[0].data[c.offset[0] + i * STEP(n, 0)] = target < 0 ? 0 : dx;
        }
    }
    return true;
}
