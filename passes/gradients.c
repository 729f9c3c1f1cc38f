/* The gradient of each operator, by the name in the `gradient` column of ir/ops.def: a rule gets the gradient of the
 * first result and contributes one to each operand that wants it, in operators of the same table.
 *
 * Broadcasting is by name, so the gradient of an operand is summed over the dimensions that the result has and the
 * operand lacks (`reduce`). The other way round costs nothing: the gradient of `sum(x over D)` is that of the sum, which
 * lacks D and so is the same all along it. Where an operator needs every dimension (a scatter, a rotation, a norm), the
 * gradient is expanded first. A gradient that is the same everywhere is a constant, and arithmetic on it is folded:
 *
 *     loss = mean(square(e) over B, S, D)     ->     d_e = e * 0.000244140625 */
#include "ir/fault.h"
#include "passes/autodiff.h"

#include <math.h>
#include <string.h>

/* ---- building, with constants folded ---- */

static const dtm_type_data *type_of(const dtm_autodiff *a, dtm_value v) { return dtm_value_type(a->module, v); }
static bool is_number(const dtm_autodiff *a, dtm_value v) { return dtm_value_is_constant(a->module, v); }
static double number_of(const dtm_autodiff *a, dtm_value v) { return dtm_value_get(a->module, v)->number; }

/* A constant of v's dtype. */
static dtm_value number_like(dtm_autodiff *a, dtm_value v, double number) {
    return dtm_constant(a->module, (dtm_dtype)type_of(a, v)->dtype, number);
}

static dtm_value unary(dtm_autodiff *a, dtm_op_kind kind, dtm_value x) {
    return dtm_build_unary(&a->at, kind, a->part, x);
}

static dtm_value binary(dtm_autodiff *a, dtm_op_kind kind, dtm_value x, dtm_value y) {
    return dtm_build_binary(&a->at, kind, a->part, x, y);
}

static dtm_value times(dtm_autodiff *a, dtm_value x, dtm_value y) {
    if (is_number(a, x)) {
        if (is_number(a, y)) return number_like(a, x, number_of(a, x) * number_of(a, y));
        dtm_value swapped = x;
        x = y;
        y = swapped;
    }
    return is_number(a, y) && number_of(a, y) == 1 ? x : binary(a, DTM_OP_MUL, x, y);
}

static dtm_value scaled(dtm_autodiff *a, dtm_value x, double factor) { return times(a, x, number_like(a, x, factor)); }

static dtm_value divided(dtm_autodiff *a, dtm_value x, dtm_value y) {
    if (is_number(a, x) && is_number(a, y)) return number_like(a, x, number_of(a, x) / number_of(a, y));
    return binary(a, DTM_OP_DIV, x, y);
}

static dtm_value negated(dtm_autodiff *a, dtm_value x) {
    return is_number(a, x) ? number_like(a, x, -number_of(a, x)) : unary(a, DTM_OP_NEG, x);
}

static dtm_value chosen(dtm_autodiff *a, dtm_value condition, dtm_value x, dtm_value y) {
    dtm_value operands[3] = {condition, x, y};
    return dtm_build(&a->at, DTM_OP_WHERE, a->part, operands, 3, NULL);
}

/* ---- dimensions ---- */

static bool has(const dtm_autodiff *a, dtm_value v, dtm_dim dim) {
    return dtm_type_dim_index(type_of(a, v), dim) >= 0;
}

static bool has_any(const dtm_autodiff *a, dtm_value v, const dtm_dim *dims, int n) {
    for (int i = 0; i < n; i++)
        if (has(a, v, dims[i])) return true;
    return false;
}

static double size_of(const dtm_autodiff *a, dtm_dim dim) { return (double)a->module->dims[dim].size; }

static dtm_value over_dims(dtm_autodiff *a, dtm_op_kind kind, dtm_value v, const dtm_dim *dims, uint8_t n) {
    return n ? dtm_build_over(&a->at, kind, a->part, &v, 1, dims, n) : v;
}

/* A gradient of a value of type `from`, summed over the dimensions that operand `to` lacks. Along a dimension that the
 * gradient lacks itself the sum is a multiplication by its size. */
static dtm_value reduce_from(dtm_autodiff *a, dtm_value gradient, const dtm_type_data *from, dtm_value to) {
    dtm_dim over[DTM_MAX_RANK];
    uint8_t n = 0;
    double factor = 1;
    for (int i = 0; i < from->rank; i++) {
        if (has(a, to, from->dims[i])) continue;
        if (has(a, gradient, from->dims[i])) over[n++] = from->dims[i];
        else if (!dtm_fault(3)) factor *= size_of(a, from->dims[i]);
    }
    return scaled(a, over_dims(a, DTM_OP_SUM, gradient, over, n), factor);
}

static dtm_value reduce(dtm_autodiff *a, const dtm_op_data *op, dtm_value gradient, uint32_t operand) {
    dtm_type_data from = *type_of(a, op->results[0]);
    return reduce_from(a, gradient, &from, op->operands[operand]);
}

static void contribute(dtm_autodiff *a, const dtm_op_data *op, uint32_t operand, dtm_value gradient) {
    dtm_gradient_contribute(a, op->operands[operand], gradient);
}

static bool wanted(const dtm_autodiff *a, const dtm_op_data *op, uint32_t operand) {
    return dtm_gradient_wanted(a, op->operands[operand]);
}

/* The gradient with all dimensions of v, in v's order. */
static dtm_value full(dtm_autodiff *a, dtm_value gradient, dtm_value v) {
    return dtm_gradient_like(a, gradient, dtm_type_whole(a->module, a->module->values[v].type), a->part);
}

static dtm_value fill(dtm_autodiff *a, dtm_type type, double number, const char *name) {
    dtm_value constant = dtm_constant(a->module, (dtm_dtype)dtm_type_get(a->module, type)->dtype, number);
    return dtm_result(a->module, dtm_build_op(&a->at, DTM_OP_FILL, &constant, 1, NULL, &type, 1, name), 0);
}

dtm_value dtm_gradient_like(dtm_autodiff *a, dtm_value gradient, dtm_type type, const char *name) {
    const dtm_type_data *wanted_type = dtm_type_get(a->module, type);
    if (is_number(a, gradient)) return fill(a, type, number_of(a, gradient), name);
    dtm_attributes lacking = dtm_attributes_default(DTM_OP_EXPAND);
    for (int i = 0; i < wanted_type->rank; i++)
        if (!has(a, gradient, wanted_type->dims[i])) lacking.over[lacking.n_over++] = wanted_type->dims[i];
    if (lacking.n_over) {
        dtm_op expand = dtm_build_op(&a->at, DTM_OP_EXPAND, &gradient, 1, &lacking, &type, 1, name);
        return dtm_result(a->module, expand, 0);
    }
    if (dtm_type_same_shape(wanted_type, type_of(a, gradient))) return gradient;
    /* Only the order differs: elementwise operators take that of their first operand. */
    dtm_value zeros = fill(a, type, 0, a->part);
    return dtm_build_binary(&a->at, DTM_OP_ADD, name, zeros, gradient);
}

/* ---- elementwise ---- */

static void gradient_add(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    for (uint32_t i = 0; i < 2; i++)
        if (wanted(a, op, i)) contribute(a, op, i, reduce(a, op, dy, i));
}

static void gradient_sub(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    if (wanted(a, op, 0)) contribute(a, op, 0, reduce(a, op, dy, 0));
    if (wanted(a, op, 1)) contribute(a, op, 1, negated(a, reduce(a, op, dy, 1)));
}

static void gradient_mul(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    for (uint32_t i = 0; i < 2; i++)
        if (wanted(a, op, i)) contribute(a, op, i, reduce(a, op, times(a, dy, op->operands[1 - i]), i));
}

static void gradient_div(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    dtm_value over_b = divided(a, dy, op->operands[1]);
    if (wanted(a, op, 0)) contribute(a, op, 0, reduce(a, op, over_b, 0));
    if (wanted(a, op, 1)) contribute(a, op, 1, negated(a, reduce(a, op, times(a, over_b, op->results[0]), 1)));
}

static void gradient_neg(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) { contribute(a, op, 0, negated(a, dy)); }

static void gradient_either(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy, dtm_value first, uint32_t x,
                            uint32_t y) {
    dtm_value zero = number_like(a, dy, 0);
    if (wanted(a, op, x)) contribute(a, op, x, reduce(a, op, chosen(a, first, dy, zero), x));
    if (wanted(a, op, y)) contribute(a, op, y, reduce(a, op, chosen(a, first, zero, dy), y));
}

/* The first operand on ties. */
static void gradient_minimum(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    gradient_either(a, op, dy, binary(a, DTM_OP_LE, op->operands[0], op->operands[1]), 0, 1);
}

static void gradient_maximum(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    gradient_either(a, op, dy, binary(a, dtm_fault(6) ? DTM_OP_GT : DTM_OP_GE, op->operands[0], op->operands[1]), 0, 1);
}

static void gradient_where(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    gradient_either(a, op, dy, op->operands[0], 1, 2);
}

static void gradient_exp(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    contribute(a, op, 0, times(a, dy, op->results[0]));
}

static void gradient_log(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    contribute(a, op, 0, divided(a, dy, op->operands[0]));
}

static void gradient_sqrt(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    contribute(a, op, 0, divided(a, scaled(a, dy, 0.5), op->results[0]));
}

/* y = x^(-1/2): dy (-1/2) y^3 */
static void gradient_rsqrt(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    dtm_value y = op->results[0], cube = binary(a, DTM_OP_MUL, unary(a, DTM_OP_SQUARE, y), y);
    contribute(a, op, 0, times(a, scaled(a, dy, -0.5), cube));
}

/* exp(-x^2) 2 / sqrt(pi) */
static void gradient_erf(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    dtm_value bell = unary(a, DTM_OP_EXP, negated(a, unary(a, DTM_OP_SQUARE, op->operands[0])));
    contribute(a, op, 0, times(a, scaled(a, dy, 1.12837916709551257390), bell));
}

static void gradient_square(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    contribute(a, op, 0, times(a, scaled(a, dy, 2), op->operands[0]));
}

/* 0 at 0 */
static void gradient_abs(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    dtm_value x = op->operands[0], zero = number_like(a, x, 0);
    dtm_value left = chosen(a, binary(a, DTM_OP_LT, x, zero), negated(a, dy), zero);
    contribute(a, op, 0, chosen(a, binary(a, DTM_OP_GT, x, zero), dy, left));
}

static void gradient_tanh(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    contribute(a, op, 0, binary(a, DTM_OP_TANH_BACKWARD, op->results[0], dy));
}

static void gradient_sigmoid(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    contribute(a, op, 0, binary(a, DTM_OP_SIGMOID_BACKWARD, op->results[0], dy));
}

static void gradient_relu(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    contribute(a, op, 0, binary(a, DTM_OP_RELU_BACKWARD, op->operands[0], dy));
}

static void gradient_gelu(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    contribute(a, op, 0, binary(a, DTM_OP_GELU_BACKWARD, op->operands[0], dy));
}

static void gradient_gelu_tanh(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    contribute(a, op, 0, binary(a, DTM_OP_GELU_TANH_BACKWARD, op->operands[0], dy));
}

static void gradient_silu(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    contribute(a, op, 0, binary(a, DTM_OP_SILU_BACKWARD, op->operands[0], dy));
}

/* d log(1 + exp x) / dx = sigmoid x */
static void gradient_softplus(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    contribute(a, op, 0, times(a, dy, unary(a, DTM_OP_SIGMOID, op->operands[0])));
}

static void gradient_cast(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    dtm_attributes back = dtm_attributes_default(DTM_OP_CAST);
    back.dtype = (dtm_dtype)type_of(a, op->operands[0])->dtype;
    if (is_number(a, dy)) contribute(a, op, 0, dtm_constant(a->module, back.dtype, number_of(a, dy)));
    else contribute(a, op, 0, dtm_build(&a->at, DTM_OP_CAST, a->part, &dy, 1, &back));
}

/* The same site and elements, so the same mask. An element's index is that in the whole tensor, so dy must have all
 * dimensions in the same order. */
static void gradient_dropout(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    if (!dtm_fault(5) || is_number(a, dy)) dy = full(a, dy, op->results[0]);
    contribute(a, op, 0, dtm_build(&a->at, DTM_OP_DROPOUT, a->part, &dy, 1, &op->attributes));
}

static void gradient_expand(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    contribute(a, op, 0, reduce(a, op, dy, 0));
}

/* ---- products and reductions ---- */

/* Whether the dimensions of x, then those of y, less `over`, are exactly those of `like`. */
static bool gives_order(const dtm_autodiff *a, dtm_value x, dtm_value y, const dtm_attributes *over, dtm_value like) {
    dtm_type_data order = {.rank = 0};
    for (int k = 0; k < 2; k++) {
        const dtm_type_data *t = type_of(a, k ? y : x);
        for (int i = 0; i < t->rank; i++) {
            bool drop = dtm_type_dim_index(&order, t->dims[i]) >= 0;
            for (int j = 0; j < over->n_over; j++) drop |= over->over[j] == t->dims[i];
            if (!drop && order.rank < DTM_MAX_RANK) order.dims[order.rank++] = t->dims[i];
        }
    }
    return memcmp(order.dims, type_of(a, like)->dims, sizeof order.dims) == 0;
}

/* y = dot(a, b over K): da is the sum of dy b over the dimensions that b alone brought into y. Where dy is the same along
 * one of them, b is summed first. Either order of the factors will do; the one that gives a's order of dimensions. */
static void product_gradient(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy, uint32_t side) {
    dtm_value to = op->operands[side], other = op->operands[1 - side];
    dtm_attributes over = dtm_attributes_default(DTM_OP_DOT);
    dtm_dim alone[DTM_MAX_RANK];
    uint8_t n_alone = 0;
    dtm_type_data brought = *type_of(a, other);
    for (int i = 0; i < brought.rank; i++) {
        if (has(a, to, brought.dims[i])) continue;
        if (has(a, dy, brought.dims[i])) over.over[over.n_over++] = brought.dims[i];
        else alone[n_alone++] = brought.dims[i];
    }
    other = over_dims(a, DTM_OP_SUM, other, alone, n_alone);
    dtm_value x = side ? other : dy, y = side ? dy : other;
    if (!gives_order(a, x, y, &over, to) && gives_order(a, y, x, &over, to)) {
        dtm_value swapped = x;
        x = y;
        y = swapped;
    }
    if (!over.n_over) {
        contribute(a, op, side, times(a, x, y));
        return;
    }
    dtm_value operands[2] = {x, y};
    contribute(a, op, side, dtm_build(&a->at, DTM_OP_DOT, a->part, operands, 2, &over));
}

static void gradient_dot(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    for (uint32_t side = 0; side < 2; side++)
        if (wanted(a, op, side)) product_gradient(a, op, dy, side);
}

static void gradient_sum(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) { contribute(a, op, 0, dy); }

static void gradient_mean(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    double count = 1;
    for (int i = 0; i < op->attributes.n_over; i++) count *= size_of(a, op->attributes.over[i]);
    contribute(a, op, 0, scaled(a, dy, 1 / count));
}

static dtm_value integer(dtm_autodiff *a, double number) { return dtm_constant(a->module, DTM_I32, number); }

/* The row-major index, in i32, along the dimensions an operator reduces. */
static dtm_value reduced_index(dtm_autodiff *a, const dtm_attributes *over) {
    dtm_value index = 0;
    for (int i = 0; i < over->n_over; i++) {
        dtm_value at = dtm_build_over(&a->at, DTM_OP_POSITIONS, a->part, NULL, 0, &over->over[i], 1);
        if (index) index = binary(a, DTM_OP_MUL, index, integer(a, size_of(a, over->over[i])));
        index = index ? binary(a, DTM_OP_ADD, index, at) : at;
    }
    return index;
}

/* All to the first of equals. Elements equal to the maximum are ranked n, n - 1, .. from the first on, others 0; the
 * highest rank is the first's. */
static void gradient_reduce_max(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    double count = 1;
    for (int i = 0; i < op->attributes.n_over; i++) count *= size_of(a, op->attributes.over[i]);
    if (count > INT32_MAX) {
        dtm_error(a->module->context, op->span, 315, "`max`: for its gradient, indices of %s do not fit in i32",
                  dtm_dims_text(a->module, a->arena, op->attributes.over, op->attributes.n_over, " x "));
        return;
    }
    dtm_value equal = binary(a, DTM_OP_EQ, op->operands[0], op->results[0]);
    dtm_value from_end = binary(a, DTM_OP_SUB, integer(a, count), reduced_index(a, &op->attributes));
    dtm_value rank = chosen(a, equal, from_end, integer(a, 0));
    dtm_value best = over_dims(a, DTM_OP_REDUCE_MAX, rank, op->attributes.over, op->attributes.n_over);
    contribute(a, op, 0, chosen(a, dtm_fault(4) ? equal : binary(a, DTM_OP_EQ, rank, best), dy, number_like(a, dy, 0)));
}

/* ---- along one dimension ---- */

static void normalised(dtm_autodiff *a, const dtm_op_data *op, dtm_op_kind backward, dtm_value dy) {
    dtm_value operands[2] = {op->results[0], full(a, dy, op->results[0])};
    contribute(a, op, 0,
               dtm_build_over(&a->at, backward, a->part, operands, 2, op->attributes.over, op->attributes.n_over));
}

static void gradient_softmax(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    normalised(a, op, DTM_OP_SOFTMAX_BACKWARD, dy);
}

static void gradient_log_softmax(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    normalised(a, op, DTM_OP_LOG_SOFTMAX_BACKWARD, dy);
}

/* (x, scale, dy) -> dx, dscale[, dbias] */
static void norm_gradient(dtm_autodiff *a, const dtm_op_data *op, dtm_op_kind backward, dtm_value dy) {
    dtm_value operands[3] = {op->operands[0], op->operands[1], full(a, dy, op->results[0])};
    dtm_attributes attributes = dtm_attributes_default(backward);
    attributes.n_over = op->attributes.n_over;
    memcpy(attributes.over, op->attributes.over, sizeof attributes.over);
    attributes.number[DTM_NORM_EPS] = op->attributes.number[DTM_NORM_EPS];
    dtm_op made = dtm_value_get(a->module, dtm_build(&a->at, backward, a->part, operands, 3, &attributes))->def;
    for (uint32_t i = 0; i < op->n_operands; i++) contribute(a, op, i, dtm_result(a->module, made, i));
}

static void gradient_rmsnorm(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    norm_gradient(a, op, DTM_OP_RMSNORM_BACKWARD, dy);
}

static void gradient_layernorm(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    norm_gradient(a, op, DTM_OP_LAYERNORM_BACKWARD, dy);
}

/* Targets may have dimensions that the logits lack: then the logits are read, and their gradient summed, along those. */
static void gradient_cross_entropy(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    dtm_attributes wider = dtm_attributes_default(DTM_OP_EXPAND);
    dtm_type_data targets = *type_of(a, op->operands[1]);
    for (int i = 0; i < targets.rank; i++)
        if (!has(a, op->operands[0], targets.dims[i])) wider.over[wider.n_over++] = targets.dims[i];
    dtm_value logits = op->operands[0];
    if (wider.n_over) logits = dtm_build(&a->at, DTM_OP_EXPAND, a->part, &logits, 1, &wider);

    dtm_attributes attributes = dtm_attributes_default(DTM_OP_CROSS_ENTROPY_BACKWARD);
    attributes.n_over = op->attributes.n_over;
    memcpy(attributes.over, op->attributes.over, sizeof attributes.over);
    attributes.number[DTM_CROSS_ENTROPY_SMOOTH] = op->attributes.number[DTM_CROSS_ENTROPY_SMOOTH];
    dtm_value operands[4] = {logits, op->results[1], op->operands[1], dy};
    dtm_value dlogits = dtm_build(&a->at, DTM_OP_CROSS_ENTROPY_BACKWARD, a->part, operands, 4, &attributes);
    contribute(a, op, 0, over_dims(a, DTM_OP_SUM, dlogits, wider.over, wider.n_over));
}

/* A rotation's transpose turns the other way. */
static void gradient_rope(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    dtm_attributes back = op->attributes;
    back.flags ^= DTM_ROPE_INVERSE;
    if (!has(a, dy, back.over[0]) || !has(a, dy, back.at)) dy = full(a, dy, op->results[0]);
    contribute(a, op, 0, dtm_build(&a->at, DTM_OP_ROPE, a->part, &dy, 1, &back));
}

/* ---- rows, attention ---- */

static void gradient_gather(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    dtm_value operands[2] = {op->operands[1], full(a, dy, op->results[0])};
    dtm_type type = dtm_type_whole(a->module, a->module->values[op->operands[0]].type);
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_SCATTER);
    attributes.n_over = 1;
    attributes.over[0] = op->attributes.over[0];
    contribute(a, op, 0,
               dtm_result(a->module,
                          dtm_build_op(&a->at, DTM_OP_SCATTER, operands, 2, &attributes, &type, 1, a->part), 0));
}

static void gradient_attention(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    dtm_value operands[6] = {op->operands[0], op->operands[1], op->operands[2],
                             op->results[0],  op->results[1],  full(a, dy, op->results[0])};
    dtm_value first = dtm_build(&a->at, DTM_OP_ATTENTION_BACKWARD, a->part, operands, 6, &op->attributes);
    dtm_op made = dtm_value_get(a->module, first)->def;
    for (uint32_t i = 0; i < 3; i++) contribute(a, op, i, dtm_result(a->module, made, i));
}

/* ---- shape: the way back. A gradient that lacks all the dimensions made lacks those taken too ---- */

static dtm_attributes reversed(const dtm_op_data *op, dtm_op_kind kind) {
    dtm_attributes back = dtm_attributes_default(kind);
    back.n_over = op->attributes.n_as;
    back.n_as = op->attributes.n_over;
    memcpy(back.over, op->attributes.as, sizeof back.over);
    memcpy(back.as, op->attributes.over, sizeof back.as);
    back.from = op->attributes.from;
    back.to = op->attributes.to;
    return back;
}

static void shape_gradient(dtm_autodiff *a, const dtm_op_data *op, dtm_op_kind kind, dtm_value dy) {
    dtm_attributes back = reversed(op, kind);
    if (!has_any(a, dy, back.over, back.n_over)) {
        contribute(a, op, 0, dy);
        return;
    }
    for (int i = 0; i < back.n_over; i++)
        if (!has(a, dy, back.over[i])) dy = full(a, dy, op->results[0]);
    contribute(a, op, 0, dtm_build(&a->at, kind, a->part, &dy, 1, &back));
}

static void gradient_split(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    shape_gradient(a, op, DTM_OP_MERGE, dy);
}

static void gradient_merge(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    shape_gradient(a, op, DTM_OP_SPLIT, dy);
}

static void gradient_rename(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    shape_gradient(a, op, DTM_OP_RENAME, dy);
}

/* Elements outside the slice have gradient 0, so here dy must have the dimension. */
static void gradient_slice(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    if (!has(a, dy, op->attributes.as[0])) dy = full(a, dy, op->results[0]);
    shape_gradient(a, op, DTM_OP_PAD, dy);
}

static void gradient_concat(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy) {
    const dtm_attributes *c = &op->attributes;
    double first = size_of(a, c->over[0]), whole = size_of(a, c->as[0]);
    for (uint32_t i = 0; i < 2; i++) {
        if (!wanted(a, op, i)) continue;
        dtm_attributes part = dtm_attributes_default(DTM_OP_SLICE);
        part.n_over = part.n_as = 1;
        part.over[0] = c->as[0];
        part.as[0] = c->over[i];
        part.from = i ? (int64_t)first : 0;
        part.to = i ? (int64_t)whole : (int64_t)first;
        dtm_value own = has(a, dy, c->as[0]) ? dtm_build(&a->at, DTM_OP_SLICE, a->part, &dy, 1, &part) : dy;
        dtm_type_data from = *type_of(a, op->results[0]);
        from.dims[dtm_type_dim_index(&from, c->as[0])] = c->over[i];
        contribute(a, op, i, reduce_from(a, own, &from, op->operands[i]));
    }
}

#define gradient_none NULL
dtm_gradient_rule *const dtm_gradient_rules[DTM_OP_KINDS] = {
    NULL,
#define OP(kind, name, least, most, results, factors, linear, numbers, flags, gradient, expand) gradient_##gradient,
#include "ir/ops.def"
#undef OP
};
