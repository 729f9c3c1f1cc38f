/* Composite operators written in smaller ones, by the name in the `expand` column of ir/ops.def. `shard` does it where
 * the dimension they normalise along is split: the ordinary laws of reductions then give the inner all-reduces, and
 * `fuse` where it makes one kernel of norms and their neighbours.
 *
 *     y = softmax(x over T)      ->      y.max = max(x over T)
 *                                        y.exp = exp(x - y.max)
 *                                        y.sum = sum(y.exp over T)
 *                                        y     = y.exp / y.sum
 *
 * Before `shard` no value has a layout and nor has what is made here. After it, the layouts of operands are carried on:
 * a dimension is split as in the operand it comes from, a sum over a split dimension is a term, and a term passes. */
#include "ir/fault.h"
#include "ir/storage.h"
#include "passes/passes.h"

#include <string.h>

typedef struct expansion {
    dtm_module *module;
    dtm_arena *arena;
    dtm_builder at;
    dtm_op_data op;
    const char *name;  /* of the first result */
    dtm_value made[4]; /* what takes the place of each result; 0: nothing reads it */
    bool read[4];
} expansion;

/* ---- building, with layouts ---- */

static const dtm_type_data *type_of(const expansion *e, dtm_value v) { return dtm_value_type(e->module, v); }

/* Gives an inferred type the layout that follows from the operands'. */
static dtm_type laid_out(expansion *e, dtm_op_kind kind, const dtm_value *operands, uint32_t n, dtm_type inferred) {
    dtm_type_data type = *dtm_type_get(e->module, inferred);
    for (uint32_t i = 0; i < n; i++) {
        const dtm_type_data *from = type_of(e, operands[i]);
        type.sum |= from->sum;
        type.max |= from->max;
        for (int d = 0; d < from->rank; d++) {
            int to = dtm_type_dim_index(&type, from->dims[d]);
            if (to >= 0) type.layout[to] = from->layout[d];
            for (int s = 0; to < 0 && s < from->layout[d].count; s++) {
                uint16_t axis = (uint16_t)(1 << from->layout[d].splits[s].axis);
                if (kind == DTM_OP_REDUCE_MAX) type.max |= axis;
                else type.sum |= axis;
            }
        }
    }
    return dtm_type_intern(e->module, &type);
}

static dtm_value build(expansion *e, dtm_op_kind kind, const char *suffix, const dtm_value *operands, uint32_t n,
                       const dtm_attributes *attributes) {
    dtm_type type;
    dtm_attributes defaults = dtm_attributes_default(kind);
    if (!attributes) attributes = &defaults;
    if (!dtm_infer(e->module, kind, operands, n, attributes, e->op.span, &type))
        dtm_broken("expand", "%s does not fit %s", dtm_op_rows[kind].name, dtm_op_rows[e->op.kind].name);
    type = laid_out(e, kind, operands, n, type);
    const char *name = dtm_arena_printf(e->arena, "%s.%s", e->name, suffix);
    return dtm_result(e->module, dtm_build_op(&e->at, kind, operands, n, attributes, &type, 1, name), 0);
}

static dtm_value unary(expansion *e, dtm_op_kind kind, const char *suffix, dtm_value x) {
    return build(e, kind, suffix, &x, 1, NULL);
}

static dtm_value binary(expansion *e, dtm_op_kind kind, const char *suffix, dtm_value x, dtm_value y) {
    dtm_value operands[2] = {x, y};
    return build(e, kind, suffix, operands, 2, NULL);
}

static dtm_value add(expansion *e, const char *suffix, dtm_value x, dtm_value y) {
    return binary(e, DTM_OP_ADD, suffix, x, y);
}
static dtm_value sub(expansion *e, const char *suffix, dtm_value x, dtm_value y) {
    return binary(e, DTM_OP_SUB, suffix, x, y);
}
static dtm_value mul(expansion *e, const char *suffix, dtm_value x, dtm_value y) {
    return binary(e, DTM_OP_MUL, suffix, x, y);
}

static dtm_value number(expansion *e, double value) {
    dtm_dtype dtype = (dtm_dtype)type_of(e, e->op.operands[0])->dtype;
    return dtm_constant(e->module, dtype, value);
}

/* Over the dimensions that the operator normalises along. */
static dtm_value along(expansion *e, dtm_op_kind kind, const char *suffix, dtm_value x) {
    dtm_attributes attributes = dtm_attributes_default(kind);
    attributes.n_over = e->op.attributes.n_over;
    memcpy(attributes.over, e->op.attributes.over, sizeof attributes.over);
    return build(e, kind, suffix, &x, 1, &attributes);
}

/* Over all others. */
static dtm_value across(expansion *e, const char *suffix, dtm_value x) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_SUM);
    const dtm_type_data *type = type_of(e, x);
    for (int d = 0; d < type->rank; d++) {
        bool normalised = false;
        for (int i = 0; i < e->op.attributes.n_over; i++) normalised |= e->op.attributes.over[i] == type->dims[d];
        if (!normalised) attributes.over[attributes.n_over++] = type->dims[d];
    }
    return attributes.n_over ? build(e, DTM_OP_SUM, suffix, &x, 1, &attributes) : x;
}

/* ---- softmax ---- */

static void expand_softmax(expansion *e) {
    dtm_value x = e->op.operands[0], max = along(e, DTM_OP_REDUCE_MAX, "max", x);
    dtm_value power = unary(e, DTM_OP_EXP, "exp", sub(e, "shifted", x, max));
    e->made[0] = binary(e, DTM_OP_DIV, "result", power, along(e, DTM_OP_SUM, "sum", power));
}

static void expand_log_softmax(expansion *e) {
    dtm_value x = e->op.operands[0], max = along(e, DTM_OP_REDUCE_MAX, "max", x);
    dtm_value shifted = sub(e, "shifted", x, max);
    dtm_value sum = along(e, DTM_OP_SUM, "sum", unary(e, DTM_OP_EXP, "exp", shifted));
    e->made[0] = sub(e, "result", shifted, unary(e, DTM_OP_LOG, "log", sum));
}

/* dx = y (dy - sum(y dy)) */
static void expand_softmax_backward(expansion *e) {
    dtm_value y = e->op.operands[0], dy = e->op.operands[1];
    dtm_value sum = along(e, DTM_OP_SUM, "sum", mul(e, "product", y, dy));
    e->made[0] = mul(e, "result", y, sub(e, "shifted", dy, sum));
}

/* dx = dy - exp(y) sum(dy) */
static void expand_log_softmax_backward(expansion *e) {
    dtm_value y = e->op.operands[0], dy = e->op.operands[1];
    dtm_value share = mul(e, "share", unary(e, DTM_OP_EXP, "exp", y), along(e, DTM_OP_SUM, "sum", dy));
    e->made[0] = sub(e, "result", dy, share);
}

/* ---- norms: x^ = (x - mean) / sqrt(variance + eps), y = x^ scale + bias; rmsnorm without the mean ---- */

static dtm_value centred(expansion *e, dtm_value x) {
    return sub(e, "centred", x, along(e, DTM_OP_MEAN, "mean", x));
}

/* 1 / sqrt(mean(x^2) + eps) */
static dtm_value inverse_deviation(expansion *e, dtm_value x) {
    dtm_value square = along(e, DTM_OP_MEAN, "variance", unary(e, DTM_OP_SQUARE, "square", x));
    dtm_value eps = number(e, e->op.attributes.number[DTM_NORM_EPS]);
    return unary(e, DTM_OP_RSQRT, "inverse", add(e, "variance", square, eps));
}

static void norm(expansion *e, dtm_value x) {
    dtm_value unit = mul(e, "unit", x, inverse_deviation(e, x));
    e->made[0] = mul(e, "result", unit, e->op.operands[1]);
    if (e->op.n_operands > 2) e->made[0] = add(e, "result", e->made[0], e->op.operands[2]);
}

static void expand_rmsnorm(expansion *e) { norm(e, e->op.operands[0]); }
static void expand_layernorm(expansion *e) { norm(e, centred(e, e->op.operands[0])); }

/* With g = dy scale: dx = (g - mean(g) - x^ mean(g x^)) / sqrt(..), dscale = sum(dy x^), dbias = sum(dy) over the rest;
 * rmsnorm without mean(g), as x is not centred. */
static void norm_backward(expansion *e, dtm_value x, bool is_centred) {
    dtm_value dy = e->op.operands[2], inverse = inverse_deviation(e, x), unit = mul(e, "unit", x, inverse);
    if (e->read[0]) {
        dtm_value g = mul(e, "scaled", dy, e->op.operands[1]);
        dtm_value share = mul(e, "share", unit, along(e, DTM_OP_MEAN, "mean", mul(e, "product", g, unit)));
        if (is_centred) g = sub(e, "scaled", g, along(e, DTM_OP_MEAN, "mean", g));
        e->made[0] = mul(e, "result", sub(e, "result", g, share), inverse);
    }
    if (e->read[1]) e->made[1] = across(e, "dscale", mul(e, "dscale", dy, unit));
    if (e->read[2]) e->made[2] = across(e, "dbias", dy);
}

static void expand_rmsnorm_backward(expansion *e) { norm_backward(e, e->op.operands[0], false); }
static void expand_layernorm_backward(expansion *e) { norm_backward(e, centred(e, e->op.operands[0]), true); }

/* ---- cross-entropy ---- */

static dtm_value choose(expansion *e, const char *suffix, dtm_value condition, dtm_value x, dtm_value y) {
    dtm_value operands[3] = {condition, x, y};
    return build(e, DTM_OP_WHERE, suffix, operands, 3, NULL);
}

/* The positions along the classes, split as the logits are. */
static dtm_value classes(expansion *e, dtm_value logits) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_POSITIONS);
    attributes.n_over = 1;
    attributes.over[0] = e->op.attributes.over[0];
    dtm_type_data type = *dtm_type_get(e->module, dtm_type_make(e->module, DTM_I32, 1, attributes.over));
    const dtm_type_data *from = type_of(e, logits);
    type.layout[0] = from->layout[dtm_type_dim_index(from, attributes.over[0])];
    dtm_type laid = dtm_type_intern(e->module, &type);
    const char *name = dtm_arena_printf(e->arena, "%s.classes", e->name);
    return dtm_result(e->module, dtm_build_op(&e->at, DTM_OP_POSITIONS, NULL, 0, &attributes, &laid, 1, name), 0);
}

/* (1 - smooth) logits[target] + smooth mean(logits) */
static dtm_value picked(expansion *e) {
    dtm_value logits = e->op.operands[0], targets = e->op.operands[1];
    double smooth = e->op.attributes.number[DTM_CROSS_ENTROPY_SMOOTH];
    dtm_value is_target = binary(e, DTM_OP_EQ, "is_target", targets, classes(e, logits));
    dtm_value target = along(e, DTM_OP_SUM, "target", choose(e, "picked", is_target, logits, number(e, 0)));
    if (smooth == 0 || dtm_fault(23)) return target;
    target = mul(e, "target", target, number(e, 1 - smooth));
    dtm_value mean = along(e, DTM_OP_MEAN, "mean", logits);
    return add(e, "target", target, mul(e, "mean", mean, number(e, smooth)));
}

/* lse less what is picked, and 0 where the target is negative. All sums over the classes stand before what reads one of them: where
 * ranks split these, one collective is enough for all (fuse_collectives). */
static void expand_cross_entropy(expansion *e) {
    dtm_value logits = e->op.operands[0], max = along(e, DTM_OP_REDUCE_MAX, "max", logits);
    dtm_value power = unary(e, DTM_OP_EXP, "exp", sub(e, "shifted", logits, max));
    dtm_value sum = along(e, DTM_OP_SUM, "sum", power), target = e->read[0] ? picked(e) : 0;
    dtm_value lse = add(e, "lse", unary(e, DTM_OP_LOG, "log", sum), max);
    e->made[1] = lse;
    if (!e->read[0]) return;
    dtm_value counts = binary(e, DTM_OP_GE, "counts", e->op.operands[1], dtm_constant(e->module, DTM_I32, 0));
    e->made[0] = choose(e, "result", counts, sub(e, "result", lse, target), number(e, 0));
}

/* ---- in place ---- */

#define expand_none NULL
static void (*const rules[DTM_OP_KINDS])(expansion *) = {
    NULL,
#define OP(kind, name, least, most, results, factors, linear, numbers, flags, gradient, expand) expand_##expand,
#include "ir/ops.def"
#undef OP
};

/* What was made in the order of another operand is put in the order that readers know. */
static dtm_value in_order(expansion *e, dtm_value made, dtm_value result, dtm_op first) {
    dtm_type_data rounded = *type_of(e, made);
    dtm_op def = e->module->values[made].def;
    rounded.dtype = type_of(e, result)->dtype;
    if (def >= first && dtm_computes(e->module->ops[def].kind)) e->module->values[made].type = dtm_type_intern(e->module, &rounded);
    if (dtm_type_same_shape(type_of(e, made), type_of(e, result))) return made;
    dtm_type type = e->module->values[result].type;
    dtm_value zero = dtm_constant(e->module, (dtm_dtype)dtm_type_get(e->module, type)->dtype, 0);
    zero = dtm_result(e->module, dtm_build_op(&e->at, DTM_OP_FILL, &zero, 1, NULL, &type, 1, e->name), 0);
    return add(e, "ordered", zero, made);
}

static const char part_of[] = "part of ";

bool dtm_is_part_of(const dtm_module *module, const dtm_op_data *op, dtm_op_kind kind) {
    const char *why = dtm_string_text(module->context, op->why), *name = dtm_op_rows[kind].name;
    size_t before = strlen(part_of), length = strlen(name);
    if (strncmp(why, part_of, before) != 0 || strncmp(why + before, name, length) != 0) return false;
    return !why[before + length] || why[before + length] == ';'; /* reasons of other passes may follow */
}

bool dtm_expand(dtm_module *module, dtm_op op, const uint32_t *uses) {
    if (!rules[dtm_op_get(module, op)->kind]) return false;
    expansion e = {.module = module, .arena = dtm_arena_create(), .at = dtm_builder_before(module, op)};
    e.op = *dtm_op_get(module, op);
    e.name = dtm_value_name(module, e.op.results[0]);
    e.at.why = dtm_string_printf(module->context, "%s%s", part_of, dtm_op_rows[e.op.kind].name);
    dtm_op first = (dtm_op)module->n_ops;
    for (uint32_t i = 0; i < e.op.n_results; i++) e.read[i] = uses[e.op.results[i]] > 0;
    rules[e.op.kind](&e);
    for (uint32_t i = 0; i < e.op.n_results; i++) {
        if (!e.read[i] || !e.made[i]) continue;
        dtm_value made = in_order(&e, e.made[i], e.op.results[i], first);
        dtm_value_take_place(module, made, e.op.results[i], first);
    }
    dtm_op_remove(module, op);
    dtm_arena_destroy(e.arena);
    return true;
}
