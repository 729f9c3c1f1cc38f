/* Operators on one rank's blocks, one function a kind, taken literally from the language's definition. All of them are
 * loop nests over named dimensions: a tensor that lacks a dimension of the nest has stride 0 there. */
#include "passes/interpret_state.h"

#include <math.h>
#include <string.h>

/* ---- loop nests ---- */

/* Loops over named dimensions, outermost first, with each tensor's stride in every loop. */
typedef struct nest {
    dtm_call *call;
    int rank, tensors;
    dtm_dim dims[DTM_NEST_DIMS];
    int64_t begins[DTM_NEST_DIMS], sizes[DTM_NEST_DIMS];
    int64_t strides[DTM_NEST_TENSORS][DTM_NEST_DIMS];
    bool failed;
} nest;

/* Where the loops stand: an offset for each tensor at the begin of a row, that is, of the innermost loop. */
typedef struct cursor {
    bool live; /* not past the end */
    int64_t index[DTM_NEST_DIMS];
    int64_t offset[DTM_NEST_TENSORS];
} cursor;

static const char *dim_name(const dtm_call *call, dtm_dim dim) {
    return dtm_dim_name(call->run->module, dim);
}
static int64_t dim_size(const dtm_call *call, dtm_dim dim) {
    return call->run->module->dims[dim].size;
}

static int index_of(const dtm_type_data *type, dtm_dim dim) {
    for (int d = 0; d < type->rank; d++)
        if (type->dims[d] == dim) return d;
    return -1;
}

static bool is_over(const dtm_call *call, dtm_dim dim) {
    for (int i = 0; i < call->op->attributes.n_over; i++)
        if (call->op->attributes.over[i] == dim) return true;
    return false;
}

static bool fail(dtm_call *call, const char *text, dtm_dim dim) {
    return dtm_run_error(call->run, call->op, "`%s` on rank %lld: %s%s%s", dtm_op_rows[call->op->kind].name,
                         (long long)call->rank, text, dim ? " " : "", dim ? dim_name(call, dim) : "");
}

static int loop_of(nest *n, dtm_dim dim, int64_t begin, int64_t size) {
    for (int l = 0; l < n->rank; l++)
        if (n->dims[l] == dim) {
            if (n->begins[l] != begin || n->sizes[l] != size)
                if (!n->failed) n->failed = !fail(n->call, "reads outside its block, along", dim);
            return l;
        }
    if (n->rank == DTM_NEST_DIMS) dtm_broken("interpret", "more than %d loops", DTM_NEST_DIMS);
    n->dims[n->rank] = dim;
    n->begins[n->rank] = begin;
    n->sizes[n->rank] = size;
    return n->rank++;
}

static void tile_strides(const dtm_tile *tile, int64_t *strides) {
    int64_t stride = 1;
    for (int d = tile->type->rank - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= tile->extent->size[d];
    }
}

static nest nest_begin(dtm_call *call) {
    return (nest){.call = call};
}

/* Adds a tensor with all its dimensions but those in `except`; returns its number. */
static int nest_add_but(nest *n, const dtm_tile *tile, const dtm_dim *except, int n_except) {
    int64_t strides[DTM_MAX_RANK];
    tile_strides(tile, strides);
    for (int d = 0; d < tile->type->rank; d++) {
        bool skipped = false;
        for (int e = 0; e < n_except; e++) skipped |= except[e] == tile->type->dims[d];
        if (skipped) continue;
        int l = loop_of(n, tile->type->dims[d], tile->extent->begin[d], tile->extent->size[d]);
        n->strides[n->tensors][l] = strides[d];
    }
    return n->tensors++;
}

static int nest_add(nest *n, const dtm_tile *tile) {
    return nest_add_but(n, tile, NULL, 0);
}

/* Adds the position along a dimension as if it were a tensor: its offset counts from the block's begin. */
static int nest_add_position(nest *n, dtm_dim dim) {
    for (int l = 0; l < n->rank; l++)
        if (n->dims[l] == dim) n->strides[n->tensors][l] = 1;
    return n->tensors++;
}

static int64_t nest_begin_of(const nest *n, dtm_dim dim) {
    for (int l = 0; l < n->rank; l++)
        if (n->dims[l] == dim) return n->begins[l];
    return 0;
}

/* A nest has at least one loop. Returns false where a tensor's block does not fit. */
static bool nest_close(nest *n) {
    if (!n->rank) {
        n->sizes[0] = 1;
        n->rank = 1;
    }
    return !n->failed;
}

static bool nest_empty(const nest *n) {
    for (int l = 0; l < n->rank; l++)
        if (n->sizes[l] == 0) return true;
    return false;
}

static void next_row(const nest *n, cursor *c) {
    for (int l = n->rank - 2; l >= 0; l--) {
        for (int t = 0; t < n->tensors; t++) c->offset[t] += n->strides[t][l];
        if (++c->index[l] < n->sizes[l]) return;
        for (int t = 0; t < n->tensors; t++) c->offset[t] -= n->strides[t][l] * n->sizes[l];
        c->index[l] = 0;
    }
    c->live = false;
}

static cursor cursor_begin(const nest *n) {
    return (cursor){.live = !nest_empty(n)};
}

/* The same from given offsets on, for a nest inside another over the same tensors. */
static cursor cursor_from(const nest *n, const int64_t *offsets) {
    cursor c = cursor_begin(n);
    memcpy(c.offset, offsets, (size_t)n->tensors * sizeof *offsets);
    return c;
}

/* FOR_ROWS: for each row of a nest. Inside, a row has ROW(n) elements, which lie STEP(n, tensor) apart. */
#define FOR_ROWS(n, c) for (cursor c = cursor_begin(&(n)); c.live; next_row(&(n), &c))
#define FOR_ROWS_FROM(n, c, offsets) for (cursor c = cursor_from(&(n), offsets); c.live; next_row(&(n), &c))
#define ROW(n) ((n).sizes[(n).rank - 1])
#define STEP(n, t) ((n).strides[t][(n).rank - 1])

static void set_all(dtm_tile *tile, double number) {
    for (int64_t i = 0; i < tile->extent->elements; i++) tile->data[i] = number;
}

/* Whether a dimension is whole in a tensor's block; else an error. */
static bool need_whole(dtm_call *call, const dtm_tile *tile, dtm_dim dim) {
    int d = index_of(tile->type, dim);
    if (d < 0 || tile->extent->size[d] == dim_size(call, dim)) return true;
    return fail(call, "needs the whole of", dim);
}

/* ---- elementwise ---- */

typedef double scalar_rule(const double *x);

static bool pointwise(dtm_call *call, scalar_rule *rule) {
    nest n = nest_begin(call);
    nest_add(&n, &call->results[0]);
    for (uint32_t i = 0; i < call->n_operands; i++) nest_add(&n, &call->operands[i]);
    if (n.rank > call->results[0].type->rank) return fail(call, "its result lacks a dimension", 0);
    if (!nest_close(&n)) return false;
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
    static bool run_##kind(dtm_call *call) {                                                                           \
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

static double to_f16(const double *x) {
    double y = round_to(x[0], 11, -13);
    return fabs(y) > 65504 ? copysign(INFINITY, y) : y;
}

static double to_bf16(const double *x) {
    return round_to((double)(float)x[0], 8, -125);
}

static bool run_CAST(dtm_call *call) {
    bool rounds = call->run->options.round_casts;
    switch (call->results[0].type->dtype) {
    case DTM_BOOL:
        return pointwise(call, to_truth);
    case DTM_I32:
    case DTM_U8:
        return pointwise(call, to_whole);
    case DTM_F32:
        return pointwise(call, rounds ? to_f32 : same);
    case DTM_F16:
        return pointwise(call, rounds ? to_f16 : same);
    default:
        return pointwise(call, rounds ? to_bf16 : same);
    }
}

/* The flattened copy an operator is in, microbatches apart: their elements have places of their own. */
static int64_t copy_number(const dtm_run *run) {
    int64_t copy = 0;
    for (size_t l = 0; l < run->n_loops; l++)
        if (run->loops[l].current >= 0 && l != run->time_loop)
            copy = copy * run->loops[l].copies + run->loops[l].current;
    return copy;
}

static bool run_DROPOUT(dtm_call *call) {
    const dtm_run *run = call->run;
    double p = call->op->attributes.number[DTM_DROPOUT_P];
    uint64_t site = (uint64_t)run->sites[call->op - run->module->ops];
    int64_t copy = copy_number(run), strides[DTM_MAX_RANK], first = 0;
    nest n = nest_begin(call);
    nest_add(&n, &call->results[0]);
    nest_add(&n, &call->operands[0]);
    dtm_whole_strides(run->module, call->results[0].type, strides);
    for (int d = 0; d < call->results[0].type->rank; d++) {
        n.strides[2][d] = strides[d];
        first += strides[d] * call->results[0].extent->begin[d];
    }
    n.tensors = 3; /* the third: the element's index in the whole tensor */
    if (!nest_close(&n)) return false;
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

static bool run_POSITIONS(dtm_call *call) {
    for (int64_t i = 0; i < call->results[0].extent->elements; i++)
        call->results[0].data[i] = (double)(call->results[0].extent->begin[0] + i);
    return true;
}

static bool run_FILL(dtm_call *call) {
    set_all(&call->results[0], call->operands[0].data[0]);
    return true;
}

static bool run_LEARNING_RATE(dtm_call *call) {
    set_all(&call->results[0], dtm_learning_rate(&call->run->module->settings.train, call->run->step));
    return true;
}

static bool run_BIAS_CORRECTION(dtm_call *call) {
    set_all(&call->results[0], 1 - pow(call->op->attributes.number[DTM_BIAS_CORRECTION_BETA], (double)call->run->step));
    return true;
}

/* ---- products and reductions ---- */

/* Two nests over the same tensors, tensor 0 being the result: the outer over the result's dimensions, the inner over
 * those that are reduced. */
typedef struct reduction {
    nest outer, inner;
} reduction;

static bool reduction_of(dtm_call *call, uint32_t n_operands, reduction *r) {
    r->outer = nest_begin(call);
    r->inner = nest_begin(call);
    nest_add(&r->outer, &call->results[0]);
    r->inner.tensors = 1;
    for (uint32_t o = 0; o < n_operands; o++) {
        const dtm_tile *tile = &call->operands[o];
        nest_add_but(&r->outer, tile, call->op->attributes.over, call->op->attributes.n_over);
        dtm_dim kept[DTM_MAX_RANK];
        int n_kept = 0;
        for (int d = 0; d < tile->type->rank; d++)
            if (!is_over(call, tile->type->dims[d])) kept[n_kept++] = tile->type->dims[d];
        nest_add_but(&r->inner, tile, kept, n_kept);
    }
    for (int l = 0; l < r->outer.rank; l++) /* a reduced dimension in the result is not the operand's */
        if (is_over(call, r->outer.dims[l])) return fail(call, "keeps a dimension that it reduces:", r->outer.dims[l]);
    if (r->outer.rank > call->results[0].type->rank) return fail(call, "its result lacks a dimension", 0);
    return nest_close(&r->outer) && nest_close(&r->inner);
}

static bool run_DOT(dtm_call *call) {
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
    nest n = nest_begin(call);
    nest_add(&n, &call->results[0]);
    nest_add(&n, &call->operands[2]);
    if (!nest_close(&n)) return false;
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
    for (int i = 0; i < call->op->attributes.n_over; i++) count *= (double)dim_size(call, call->op->attributes.over[i]);
    return count;
}

static bool reduce(dtm_call *call, reduce_kind kind) {
    bool masked = call->n_operands > 1;
    reduction r;
    if (!reduction_of(call, call->n_operands, &r)) return false;
    if (masked && kind == BY_MEAN)
        for (int i = 0; i < call->op->attributes.n_over; i++)
            for (uint32_t o = 0; o < 2; o++)
                if (!need_whole(call, &call->operands[o], call->op->attributes.over[i])) return false;
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

static bool run_SUM(dtm_call *call) {
    return reduce(call, BY_SUM);
}
static bool run_MEAN(dtm_call *call) {
    return reduce(call, BY_MEAN);
}
static bool run_REDUCE_MAX(dtm_call *call) {
    return reduce(call, BY_MAX);
}

/* ---- along one dimension ---- */

/* Nests for operators that keep the dimensions they work along: the outer over all others of result 0 (tensor 0), the
 * inner over `over`. Further tensors: the operands, then the other results. */
static bool along(dtm_call *call, uint32_t n_results, reduction *r) {
    const dtm_attributes *attributes = &call->op->attributes;
    r->outer = nest_begin(call);
    r->inner = nest_begin(call);
    for (uint32_t t = 0; t < n_results + call->n_operands; t++) {
        const dtm_tile *tile = t == 0                  ? &call->results[0]
                               : t <= call->n_operands ? &call->operands[t - 1]
                                                       : &call->results[t - call->n_operands];
        for (int i = 0; i < attributes->n_over; i++)
            if (!need_whole(call, tile, attributes->over[i])) return false;
        nest_add_but(&r->outer, tile, attributes->over, attributes->n_over);
        dtm_dim others[DTM_MAX_RANK];
        int n_others = 0;
        for (int d = 0; d < tile->type->rank; d++)
            if (!is_over(call, tile->type->dims[d])) others[n_others++] = tile->type->dims[d];
        nest_add_but(&r->inner, tile, others, n_others);
    }
    return nest_close(&r->outer) && nest_close(&r->inner);
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

static line line_at(const reduction *r, const cursor *c, int64_t i) {
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

static bool run_SOFTMAX(dtm_call *call) {
    return softmax(call, false);
}
static bool run_LOG_SOFTMAX(dtm_call *call) {
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

static bool run_SOFTMAX_BACKWARD(dtm_call *call) {
    return softmax_backward(call, false);
}
static bool run_LOG_SOFTMAX_BACKWARD(dtm_call *call) {
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

static bool run_RMSNORM(dtm_call *call) {
    return norm(call, false);
}
static bool run_LAYERNORM(dtm_call *call) {
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
    for (uint32_t i = 1; i < call->n_results; i++) set_all(&call->results[i], 0);
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

static bool run_RMSNORM_BACKWARD(dtm_call *call) {
    return norm_backward(call, false);
}
static bool run_LAYERNORM_BACKWARD(dtm_call *call) {
    return norm_backward(call, true);
}

/* A target must be below V; negative ones leave the token out. */
static bool bad_index(dtm_call *call, double index, dtm_dim dim) {
    return !dtm_run_error(call->run, call->op, "`%s`: %lld is not in %s = %lld", dtm_op_rows[call->op->kind].name,
                          (long long)index, dim_name(call, dim), (long long)dim_size(call, dim));
}

/* loss = lse - (1 - smooth) x[target] - smooth mean(x), 0 where the target is negative. */
static bool run_CROSS_ENTROPY(dtm_call *call) {
    dtm_dim classes = call->op->attributes.over[0];
    double smooth = call->op->attributes.number[DTM_CROSS_ENTROPY_SMOOTH], count = (double)dim_size(call, classes);
    reduction r;
    if (!along(call, 2, &r)) return false;
    const double *x = call->operands[0].data, *targets = call->operands[1].data;
    FOR_LINES(r, l) {
        double lse = log_sum_exp(&l, 1, x), target = targets[l.at[2]], sum = 0, hit = 0, number = 0;
        if (target >= count) return !bad_index(call, target, classes);
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
static bool run_CROSS_ENTROPY_BACKWARD(dtm_call *call) {
    dtm_dim classes = call->op->attributes.over[0];
    double smooth = call->op->attributes.number[DTM_CROSS_ENTROPY_SMOOTH], count = (double)dim_size(call, classes);
    nest n = nest_begin(call);
    nest_add(&n, &call->results[0]);
    for (int o = 0; o < 4; o++) nest_add(&n, &call->operands[o]);
    nest_add_position(&n, classes);
    if (!nest_close(&n)) return false;
    double first = (double)nest_begin_of(&n, classes);
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            double in[4];
            for (int o = 0; o < 4; o++) in[o] = call->operands[o].data[c.offset[o + 1] + i * STEP(n, o + 1)];
            double v = first + (double)(c.offset[5] + i * STEP(n, 5)), target = in[2];
            if (target >= count) return !bad_index(call, target, classes);
            double dx = in[3] * (exp(in[0] - in[1]) - (v == target ? 1 - smooth : 0) - smooth / count);
            call->results[0].data[c.offset[0] + i * STEP(n, 0)] = target < 0 ? 0 : dx;
        }
    }
    return true;
}

/* The angle a pair of width i of r turns by at one position. */
static double rope_frequency(const double *number, int64_t i, int64_t r) {
    double frequency = pow(number[DTM_ROPE_BASE], -2.0 * (double)i / (double)r);
    double factor = number[DTM_ROPE_FACTOR], original = number[DTM_ROPE_ORIGINAL];
    if (number[DTM_ROPE_SCALE_KIND] == 1) return frequency / factor;
    if (number[DTM_ROPE_SCALE_KIND] != 2) return frequency;
    /* llama3: long waves are stretched by the factor, short ones kept, those between blended */
    double turns = original * frequency / (2 * 3.14159265358979323846);
    double low = number[DTM_ROPE_LOW], high = number[DTM_ROPE_HIGH];
    if (turns < low) return frequency / factor;
    if (turns > high) return frequency;
    double smooth = (turns - low) / (high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
}

static bool run_ROPE(dtm_call *call) {
    const dtm_attributes *attributes = &call->op->attributes;
    dtm_dim width = attributes->over[0], positions = attributes->at;
    int64_t size = dim_size(call, width), turned = (int64_t)attributes->number[DTM_ROPE_PART];
    if (!turned) turned = size;
    if (!need_whole(call, &call->operands[0], width) || !need_whole(call, &call->results[0], width)) return false;
    nest n = nest_begin(call);
    nest_add_but(&n, &call->results[0], &width, 1);
    nest_add_but(&n, &call->operands[0], &width, 1);
    nest_add_position(&n, positions);
    if (!nest_close(&n)) return false;
    int64_t first = nest_begin_of(&n, positions), strides[2][DTM_MAX_RANK], step[2];
    const dtm_tile *tiles[2] = {&call->results[0], &call->operands[0]};
    for (int t = 0; t < 2; t++) {
        tile_strides(tiles[t], strides[t]);
        int d = index_of(tiles[t]->type, width);
        step[t] = d < 0 ? 0 : strides[t][d];
    }
    bool pairs = attributes->flags & DTM_ROPE_INTERLEAVED;
    double direction = attributes->flags & DTM_ROPE_INVERSE ? -1 : 1;
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            double *y = call->results[0].data + c.offset[0] + i * STEP(n, 0);
            const double *x = call->operands[0].data + c.offset[1] + i * STEP(n, 1);
            double position = (double)(first + c.offset[2] + i * STEP(n, 2));
            for (int64_t k = turned; k < size; k++) y[k * step[0]] = x[k * step[1]];
            for (int64_t k = 0; k < turned / 2; k++) {
                int64_t a = pairs ? 2 * k : k, b = pairs ? 2 * k + 1 : k + turned / 2;
                double angle = direction * position * rope_frequency(attributes->number, k, turned);
                double u = x[a * step[1]], v = x[b * step[1]];
                y[a * step[0]] = u * cos(angle) - v * sin(angle);
                y[b * step[0]] = v * cos(angle) + u * sin(angle);
            }
        }
    }
    return true;
}

/* ---- rows ---- */

static int64_t stride_along(const dtm_tile *tile, dtm_dim dim) {
    int64_t strides[DTM_MAX_RANK];
    int d = index_of(tile->type, dim);
    tile_strides(tile, strides);
    return d < 0 ? 0 : strides[d];
}

/* A row that another rank holds reads as 0: the result is then a term. */
static bool run_GATHER(dtm_call *call) {
    dtm_dim over = call->op->attributes.over[0];
    const dtm_tile *table = &call->operands[0];
    int d = index_of(table->type, over);
    if (d < 0) return fail(call, "its table lacks", over);
    int64_t begin = table->extent->begin[d], size = table->extent->size[d], step = stride_along(table, over);
    nest n = nest_begin(call);
    nest_add(&n, &call->results[0]);
    nest_add(&n, &call->operands[1]);
    nest_add_but(&n, table, &over, 1);
    if (!nest_close(&n)) return false;
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            double id = call->operands[1].data[c.offset[1] + i * STEP(n, 1)];
            if (!(id >= 0 && id < (double)dim_size(call, over))) return !bad_index(call, id, over);
            int64_t row = (int64_t)id - begin;
            double y = row < 0 || row >= size ? 0 : table->data[c.offset[2] + i * STEP(n, 2) + row * step];
            call->results[0].data[c.offset[0] + i * STEP(n, 0)] = y;
        }
    }
    return true;
}

static bool run_SCATTER(dtm_call *call) {
    dtm_dim over = call->op->attributes.over[0];
    dtm_tile *table = &call->results[0];
    int d = index_of(table->type, over);
    if (d < 0) return fail(call, "its result lacks", over);
    int64_t begin = table->extent->begin[d], size = table->extent->size[d], step = stride_along(table, over);
    nest n = nest_begin(call);
    nest_add(&n, &call->operands[0]);
    nest_add(&n, &call->operands[1]);
    nest_add_but(&n, table, &over, 1);
    if (!nest_close(&n)) return false;
    set_all(table, 0);
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            double id = call->operands[0].data[c.offset[0] + i * STEP(n, 0)];
            if (!(id >= 0 && id < (double)dim_size(call, over))) return !bad_index(call, id, over);
            int64_t row = (int64_t)id - begin;
            if (row < 0 || row >= size) continue;
            table->data[c.offset[2] + i * STEP(n, 2) + row * step] +=
                call->operands[1].data[c.offset[1] + i * STEP(n, 1)];
        }
    }
    return true;
}

/* ---- attention ---- */

/* The roles of dimensions, and for a query the tensors' places. Queries are walked by a nest over q's dimensions but
 * the width; keys and values are then reached by their strides along heads, positions and widths. */
typedef struct attention {
    dtm_dim queries, keys, width, value_width, q_heads, kv_heads;
    int64_t shift;  /* added to a query's position to compare it with a key's */
    int64_t per_kv; /* query heads that share a kv head; 0: heads named alike, or one kv head for all */
    int64_t width_size, value_size;
    int64_t key_begin, key_size;
    double scale;
    int64_t window;
    bool causal;
} attention;

static dtm_dim other_dim(const dtm_tile *a, const dtm_tile *b, const dtm_dim *known, int n_known, int *count) {
    dtm_dim found = 0;
    for (int d = 0; d < a->type->rank; d++) {
        bool skip = b && index_of(b->type, a->type->dims[d]) >= 0;
        for (int i = 0; i < n_known; i++) skip |= known[i] == a->type->dims[d];
        if (skip) continue;
        found = a->type->dims[d];
        ++*count;
    }
    return found;
}

static bool attention_roles(dtm_call *call, attention *a) {
    const dtm_attributes *attributes = &call->op->attributes;
    const dtm_tile *q = &call->operands[0], *k = &call->operands[1], *v = &call->operands[2];
    *a = (attention){.keys = attributes->over[0], .width = attributes->over[1]};
    a->queries = index_of(q->type, a->keys) >= 0 ? a->keys : attributes->at;
    dtm_dim known[4] = {a->queries, a->keys, a->width};
    int q_left = 0, k_left = 0, v_left = 0;
    a->q_heads = other_dim(q, k, known, 3, &q_left);
    a->kv_heads = other_dim(k, q, known, 3, &k_left);
    if (q_left > 1 || k_left > 1 || (k_left && !q_left)) return fail(call, "its heads are not one dimension", 0);
    known[3] = a->kv_heads;
    a->value_width = other_dim(v, q, known, a->kv_heads ? 4 : 3, &v_left);
    if (!v_left) a->value_width = a->width;
    if (v_left > 1 || index_of(v->type, a->value_width) < 0) return fail(call, "v has no width of its own", 0);
    if (k_left) {
        if (dim_size(call, a->q_heads) % dim_size(call, a->kv_heads))
            return fail(call, "heads do not divide:", a->q_heads);
        a->per_kv = dim_size(call, a->q_heads) / dim_size(call, a->kv_heads);
    }
    a->shift = dim_size(call, a->keys) - dim_size(call, a->queries);
    a->width_size = dim_size(call, a->width);
    a->value_size = dim_size(call, a->value_width);
    double scale = attributes->number[DTM_ATTENTION_SCALE];
    a->scale = scale != 0 ? scale : 1 / sqrt((double)a->width_size);
    a->window = (int64_t)attributes->number[DTM_ATTENTION_WINDOW];
    a->causal = attributes->flags & DTM_ATTENTION_CAUSAL;
    int kd = index_of(k->type, a->keys), vd = index_of(v->type, a->keys);
    if (kd < 0 || vd < 0) return fail(call, "keys or values lack", a->keys);
    a->key_begin = k->extent->begin[kd];
    a->key_size = k->extent->size[kd];
    if (v->extent->begin[vd] != a->key_begin || v->extent->size[vd] != a->key_size)
        return fail(call, "keys and values differ in their block of", a->keys);
    for (uint32_t o = 0; o < call->n_operands; o++)
        if (!need_whole(call, &call->operands[o], a->width) || !need_whole(call, &call->operands[o], a->value_width))
            return false;
    return true;
}

/* The keys [*from, *to) that a query at a global position sees, in the whole tensor. */
static void visible(const attention *a, int64_t all, int64_t query, int64_t *from, int64_t *to) {
    int64_t position = query + a->shift;
    *from = 0;
    *to = all;
    if (a->causal || a->window) *to = position + 1 < all ? position + 1 : all;
    if (a->window && position + 1 - a->window > 0) *from = position + 1 - a->window;
    if (*to < *from) *to = *from;
}

/* A tensor of attention: where query, key and head lead in it. */
typedef struct reach {
    double *data;
    int64_t head, key, width; /* strides along kv heads, key positions, its width */
} reach;

static reach reach_of(const dtm_tile *tile, const attention *a, dtm_dim width) {
    return (reach){.data = tile->data,
                   .head = a->kv_heads ? stride_along(tile, a->kv_heads) : 0,
                   .key = stride_along(tile, a->keys),
                   .width = stride_along(tile, width)};
}

/* Nest over q's dimensions but the width, with every tensor of the operator joined: tensors 0.. are operands, then
 * results, then the position of the query, then that of the query's head. Along key positions k, v, dk, dv do not move.
 */
static bool attention_nest(dtm_call *call, const attention *a, nest *n) {
    *n = nest_begin(call);
    const dtm_dim not_of_keys[4] = {a->keys, a->width, a->value_width, a->kv_heads};
    const dtm_dim not_of_queries[2] = {a->width, a->value_width};
    for (uint32_t t = 0; t < call->n_operands + call->n_results; t++) {
        const dtm_tile *tile = t < call->n_operands ? &call->operands[t] : &call->results[t - call->n_operands];
        bool of_keys = t == 1 || t == 2 || (t >= call->n_operands && call->n_results == 3 && t > call->n_operands);
        if (of_keys)
            nest_add_but(n, tile, not_of_keys, a->kv_heads ? 4 : 3);
        else
            nest_add_but(n, tile, not_of_queries, 2);
    }
    nest_add_position(n, a->queries);
    nest_add_position(n, a->q_heads ? a->q_heads : a->width);
    return nest_close(n);
}

/* The local kv head of a query's head: an error if another rank has it. */
static bool kv_head(dtm_call *call, const attention *a, int64_t head, const dtm_tile *k, int64_t *local) {
    *local = 0;
    if (!a->per_kv) return true;
    int d = index_of(k->type, a->kv_heads);
    if (d < 0) return true;
    *local = head / a->per_kv - k->extent->begin[d];
    if (*local >= 0 && *local < k->extent->size[d]) return true;
    return fail(call, "reads outside its block, along", a->kv_heads);
}

/* One query: its visible keys in the local block, and its kv head in k and v. */
typedef struct query {
    int64_t from, to, k_head, v_head;
} query;

static bool query_at(dtm_call *call, const attention *a, int64_t position, int64_t head, query *q) {
    visible(a, dim_size(call, a->keys), position, &q->from, &q->to);
    q->from -= a->key_begin;
    q->to -= a->key_begin;
    if (q->from < q->to && (q->from < 0 || q->to > a->key_size))
        return fail(call, "needs keys outside its block, along", a->keys);
    return kv_head(call, a, head, &call->operands[1], &q->k_head) &&
           kv_head(call, a, head, &call->operands[2], &q->v_head);
}

static double dot_along(const double *a, int64_t step_a, const double *b, int64_t step_b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += a[i * step_a] * b[i * step_b];
    return sum;
}

/* One query's output row and the logarithm of its sum of exp; without visible keys 0 and -inf. */
static double attend(const attention *a, const query *at, const double *q, int64_t q_step, const double *k, reach keys,
                     const double *v, reach values, double *o, int64_t o_step, double *scores) {
    double top = -INFINITY, sum = 0;
    for (int64_t j = at->from; j < at->to; j++) {
        scores[j] = a->scale * dot_along(q, q_step, k + j * keys.key, keys.width, a->width_size);
        if (!(scores[j] <= top)) top = scores[j];
    }
    for (int64_t w = 0; w < a->value_size; w++) o[w * o_step] = 0;
    for (int64_t j = at->from; j < at->to; j++) sum += exp(scores[j] - top);
    for (int64_t j = at->from; j < at->to; j++) {
        double p = exp(scores[j] - top) / sum;
        for (int64_t w = 0; w < a->value_size; w++) o[w * o_step] += p * v[j * values.key + w * values.width];
    }
    return at->from < at->to ? top + log(sum) : -INFINITY;
}

static bool run_ATTENTION(dtm_call *call) {
    attention a;
    nest n;
    if (!attention_roles(call, &a) || !attention_nest(call, &a, &n)) return false;
    reach keys = reach_of(&call->operands[1], &a, a.width), values = reach_of(&call->operands[2], &a, a.value_width);
    int64_t q_step = stride_along(&call->operands[0], a.width), o_step = stride_along(&call->results[0], a.value_width);
    double *scores = dtm_arena_alloc(call->run->arena, (size_t)(a.key_size + 1) * sizeof *scores);
    int64_t first = nest_begin_of(&n, a.queries), first_head = nest_begin_of(&n, a.q_heads);
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            int64_t at[7];
            for (int t = 0; t < 7; t++) at[t] = c.offset[t] + i * STEP(n, t);
            query query;
            if (!query_at(call, &a, first + at[5], first_head + at[6], &query)) return false;
            const double *k = keys.data + at[1] + query.k_head * keys.head;
            const double *v = values.data + at[2] + query.v_head * values.head;
            call->results[1].data[at[4]] = attend(&a, &query, call->operands[0].data + at[0], q_step, k, keys, v,
                                                  values, call->results[0].data + at[3], o_step, scores);
        }
    }
    return true;
}

/* With p the probabilities: dv += p do; ds = p (do v - do o); dq += scale ds k; dk += scale ds q. */
static bool run_ATTENTION_BACKWARD(dtm_call *call) {
    attention a;
    nest n;
    if (!attention_roles(call, &a) || !attention_nest(call, &a, &n)) return false;
    reach keys = reach_of(&call->operands[1], &a, a.width), values = reach_of(&call->operands[2], &a, a.value_width);
    reach dkeys = reach_of(&call->results[1], &a, a.width), dvalues = reach_of(&call->results[2], &a, a.value_width);
    int64_t q_step = stride_along(&call->operands[0], a.width), dq_step = stride_along(&call->results[0], a.width);
    int64_t o_step = stride_along(&call->operands[3], a.value_width);
    int64_t do_step = stride_along(&call->operands[5], a.value_width);
    int64_t first = nest_begin_of(&n, a.queries), first_head = nest_begin_of(&n, a.q_heads);
    for (int i = 0; i < 3; i++) set_all(&call->results[i], 0);
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            int64_t at[11], dk_head, dv_head;
            for (int t = 0; t < 11; t++) at[t] = c.offset[t] + i * STEP(n, t);
            query query;
            if (!query_at(call, &a, first + at[9], first_head + at[10], &query)) return false;
            if (!kv_head(call, &a, first_head + at[10], &call->results[1], &dk_head) ||
                !kv_head(call, &a, first_head + at[10], &call->results[2], &dv_head))
                return false;
            const double *q = call->operands[0].data + at[0], *o = call->operands[3].data + at[3];
            const double *dout = call->operands[5].data + at[5];
            double *dq = call->results[0].data + at[6], lse = call->operands[4].data[at[4]];
            double inner = dot_along(dout, do_step, o, o_step, a.value_size);
            for (int64_t j = query.from; j < query.to; j++) {
                const double *k = keys.data + at[1] + query.k_head * keys.head + j * keys.key;
                const double *v = values.data + at[2] + query.v_head * values.head + j * values.key;
                double *dk = dkeys.data + at[7] + dk_head * dkeys.head + j * dkeys.key;
                double *dv = dvalues.data + at[8] + dv_head * dvalues.head + j * dvalues.key;
                double p = exp(a.scale * dot_along(q, q_step, k, keys.width, a.width_size) - lse);
                double ds = a.scale * p * (dot_along(dout, do_step, v, values.width, a.value_size) - inner);
                for (int64_t w = 0; w < a.value_size; w++) dv[w * dvalues.width] += p * dout[w * do_step];
                for (int64_t w = 0; w < a.width_size; w++) {
                    dq[w * dq_step] += ds * k[w * keys.width];
                    dk[w * dkeys.width] += ds * q[w * q_step];
                }
            }
        }
    }
    return true;
}

/* ---- shape ---- */

/* Copies between two tensors of which one has the dimension `joined` where the other has the dimensions `parts`, the
 * major one first: element (i, j) of the parts is i * size(j) + j of the joined one. */
static bool regroup(dtm_call *call, const dtm_tile *whole, const dtm_tile *apart, dtm_dim joined, const dtm_dim *parts,
                    int n_parts, double *to, const double *from, bool from_whole) {
    int w = index_of(whole->type, joined), major = index_of(apart->type, parts[0]);
    if (w < 0 || major < 0) return fail(call, "lacks a dimension", 0);
    int64_t minor = 1;
    for (int i = 1; i < n_parts; i++) {
        if (!need_whole(call, apart, parts[i])) return false;
        minor *= dim_size(call, parts[i]);
    }
    if (whole->extent->begin[w] != apart->extent->begin[major] * minor ||
        whole->extent->size[w] != apart->extent->size[major] * minor)
        return fail(call, "reads outside its block, along", joined);
    nest n = nest_begin(call);
    nest_add(&n, apart);
    nest_add_but(&n, whole, &joined, 1);
    int64_t stride = stride_along(whole, joined);
    for (int i = n_parts - 1; i >= 0; i--) {
        for (int l = 0; l < n.rank; l++)
            if (n.dims[l] == parts[i]) n.strides[1][l] = stride;
        stride *= dim_size(call, parts[i]);
    }
    if (!nest_close(&n)) return false;
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            int64_t a = c.offset[0] + i * STEP(n, 0), b = c.offset[1] + i * STEP(n, 1);
            if (from_whole)
                to[a] = from[b];
            else
                to[b] = from[a];
        }
    }
    return true;
}

static bool run_SPLIT(dtm_call *call) {
    const dtm_attributes *attributes = &call->op->attributes;
    return regroup(call, &call->operands[0], &call->results[0], attributes->over[0], attributes->as, attributes->n_as,
                   call->results[0].data, call->operands[0].data, true);
}

static bool run_MERGE(dtm_call *call) {
    const dtm_attributes *attributes = &call->op->attributes;
    return regroup(call, &call->results[0], &call->operands[0], attributes->as[0], attributes->over, attributes->n_over,
                   call->results[0].data, call->operands[0].data, false);
}

/* Copies elements [from, from + count) along `a` of the operand to those from `to` on along `b` of the result. */
static bool copy_stretch(dtm_call *call, const dtm_tile *operand, dtm_dim a, int64_t from, dtm_dim b, int64_t to,
                         int64_t count) {
    dtm_tile *result = &call->results[0];
    nest n = nest_begin(call);
    nest_add_but(&n, result, &b, 1);
    nest_add_but(&n, operand, &a, 1);
    if (n.rank > result->type->rank) return fail(call, "its result lacks a dimension", 0);
    int64_t a_step = stride_along(operand, a), b_step = stride_along(result, b);
    if (!nest_close(&n)) return false;
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            const double *x = operand->data + c.offset[1] + i * STEP(n, 1) + from * a_step;
            double *y = result->data + c.offset[0] + i * STEP(n, 0) + to * b_step;
            for (int64_t k = 0; k < count; k++) y[k * b_step] = x[k * a_step];
        }
    }
    return true;
}

static bool run_RENAME(dtm_call *call) {
    const dtm_attributes *attributes = &call->op->attributes;
    const dtm_tile *x = &call->operands[0];
    dtm_type_data renamed = *x->type;
    for (int i = 0; i < attributes->n_over; i++) {
        int d = index_of(x->type, attributes->over[i]);
        if (d >= 0) renamed.dims[d] = attributes->as[i];
    }
    dtm_tile operand = {&renamed, x->extent, x->data};
    nest n = nest_begin(call);
    nest_add(&n, &call->results[0]);
    nest_add(&n, &operand);
    if (!nest_close(&n)) return false;
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++)
            call->results[0].data[c.offset[0] + i * STEP(n, 0)] = x->data[c.offset[1] + i * STEP(n, 1)];
    }
    return true;
}

static bool run_CONCAT(dtm_call *call) {
    const dtm_attributes *attributes = &call->op->attributes;
    dtm_dim a = attributes->over[0], b = attributes->over[1], joined = attributes->as[0];
    if (!need_whole(call, &call->operands[0], a) || !need_whole(call, &call->operands[1], b) ||
        !need_whole(call, &call->results[0], joined))
        return false;
    return copy_stretch(call, &call->operands[0], a, 0, joined, 0, dim_size(call, a)) &&
           copy_stretch(call, &call->operands[1], b, 0, joined, dim_size(call, a), dim_size(call, b));
}

static bool run_SLICE(dtm_call *call) {
    const dtm_attributes *attributes = &call->op->attributes;
    dtm_dim over = attributes->over[0], as = attributes->as[0];
    if (!need_whole(call, &call->operands[0], over) || !need_whole(call, &call->results[0], as)) return false;
    if (attributes->from < 0 || attributes->to > dim_size(call, over) ||
        attributes->to - attributes->from != dim_size(call, as))
        return fail(call, "its stretch does not fit", over);
    return copy_stretch(call, &call->operands[0], over, attributes->from, as, 0, dim_size(call, as));
}

static bool run_PAD(dtm_call *call) {
    const dtm_attributes *attributes = &call->op->attributes;
    dtm_dim over = attributes->over[0], as = attributes->as[0];
    if (!need_whole(call, &call->operands[0], over) || !need_whole(call, &call->results[0], as)) return false;
    if (attributes->from < 0 || attributes->to > dim_size(call, as) ||
        attributes->to - attributes->from != dim_size(call, over))
        return fail(call, "its stretch does not fit", as);
    set_all(&call->results[0], 0);
    return copy_stretch(call, &call->operands[0], over, 0, as, attributes->from, dim_size(call, over));
}

/* ---- the table ---- */

static bool run_TOP(dtm_call *call) {
    return fail(call, "is not executed by this version", 0);
}
static bool run_EXPERTS(dtm_call *call) {
    return fail(call, "is not executed by this version", 0);
}

/* interpret.c has these: what touches variables, copies or other ranks. */
#define run_INPUT NULL
#define run_WEIGHT NULL
#define run_STATE NULL
#define run_REPEAT NULL
#define run_FORWARD NULL
#define run_BACKWARD NULL
#define run_UPDATE NULL
#define run_MICROBATCH NULL
#define run_FUSED NULL
#define run_CARRY NULL
#define run_LAST NULL
#define run_ACCUMULATE NULL
#define run_REPORT NULL
#define run_OUTPUT NULL
#define run_STORE NULL
#define run_GRADIENT NULL
#define run_RELAYOUT NULL
#define run_SHARD NULL
#define run_AS_TERM NULL
#define run_ALL_REDUCE NULL
#define run_ALL_GATHER NULL
#define run_REDUCE_SCATTER NULL
#define run_ALL_TO_ALL NULL
#define run_PERMUTE NULL

dtm_interpret_rule *const dtm_interpret_rules[DTM_OP_KINDS] = {
#define OP(kind, ...) [DTM_OP_##kind] = run_##kind,
#include "ir/ops.def"
#undef OP
};
