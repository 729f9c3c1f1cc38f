/* The update region: what `train` says, in plain elementwise operators, so that layouts, kernels and memory of an
 * optimizer fall out of the passes that come after.
 *
 *     update {
 *         learning_rate, bias corrections: scalars of this step
 *         repeat layer = 4 {                          for each repeat that has weights
 *             gradient(wq, d_wq)
 *             wq.norm  = sum(square(d_wq) over D, H, K)   of squares; the root comes last
 *             layer.norm.out = layer.norm.in + wq.norm  carried from copy to copy
 *         }
 *         grad_norm = sqrt(..)                        over all weights, each once, before clipping
 *         grad_clip = min(1, clip / grad_norm)
 *         repeat layer = 4 {
 *             state wq.m, wq.v = zeros
 *             wq.new = ..
 *             store(wq, wq.new); store(wq.m, ..); store(wq.v, ..)
 *         }
 *     }
 *
 * AdamW (Loshchilov and Hutter, 2019), t from 1, g the clipped gradient:
 *     m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
 *     w = w (1 - lr decay) - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 * SGD: m = momentum m + g (m = g without), w = w (1 - lr decay) - lr m.
 *
 * A gradient norm of 0 needs no case: clip / 0 is inf, and the minimum 1. A norm that is NaN must show in
 * the weights: `min` of NaN and anything is NaN, in every back end. */
#include "ir/fault.h"
#include "passes/autodiff.h"

#include <string.h>

typedef struct optimizer {
    dtm_autodiff *a;
    dtm_module *module;
    const dtm_train *train;
    dtm_builder at;
    dtm_value rate, keep, clip, correction1, correction2; /* scalars of the step; 0: not needed */
} optimizer;

/* ---- building ---- */

static dtm_value number(optimizer *o, double value) { return dtm_constant(o->module, DTM_F32, value); }

static dtm_value binary(optimizer *o, dtm_op_kind kind, const char *name, dtm_value x, dtm_value y) {
    return dtm_build_binary(&o->at, kind, name, x, y);
}

static dtm_value scaled(optimizer *o, const char *name, dtm_value x, double factor) {
    return factor == 1 ? x : binary(o, DTM_OP_MUL, name, x, number(o, factor));
}

static const char *extended(optimizer *o, const char *name, const char *suffix) {
    return dtm_arena_printf(o->a->arena, "%s.%s", name, suffix);
}

static const char *of_weight(optimizer *o, dtm_value weight, const char *suffix) {
    return extended(o, dtm_value_name(o->module, weight), suffix);
}

static dtm_value scalar_source(optimizer *o, dtm_op_kind kind, const char *name, const dtm_attributes *attributes) {
    return dtm_build(&o->at, kind, name, NULL, 0, attributes);
}

static void sink(optimizer *o, dtm_op_kind kind, dtm_value first, dtm_value second) {
    dtm_value operands[2] = {first, second};
    dtm_build_op(&o->at, kind, operands, 2, NULL, NULL, 0, "");
}

static void report(optimizer *o, dtm_value value, const char *name) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_REPORT);
    attributes.name = dtm_string_of(o->module->context, name);
    dtm_build_op(&o->at, DTM_OP_REPORT, &value, 1, &attributes, NULL, 0, "");
}

static void stand_at(optimizer *o, dtm_op op) {
    o->at.span = dtm_op_get(o->module, op)->span;
    o->at.place = dtm_op_get(o->module, op)->place;
}

/* What belongs to no operator of the source has no line; errors point at `optimizer ..`. */
static void stand_at_settings(optimizer *o) {
    o->at.span = o->train->optimizer_span;
    o->at.place = (dtm_place){0, 0};
}

/* ---- the weights, repeat by repeat ---- */

static dtm_value gradient_of(const optimizer *o, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(o->module, op);
    return data->kind == DTM_OP_WEIGHT ? o->a->gradient[data->results[0]] : 0;
}

static bool has_trained(const optimizer *o, dtm_region region) {
    for (size_t i = 0; i < o->module->regions[region].n_ops; i++) {
        dtm_op op = o->module->regions[region].ops[i];
        if (gradient_of(o, op)) return true;
        dtm_region body = dtm_op_get(o->module, op)->body;
        if (body && has_trained(o, body)) return true;
    }
    return false;
}

/* Opens the same repeat at the place of building; returns where to go on after it. */
static dtm_builder enter(optimizer *o, dtm_op repeat) {
    stand_at(o, repeat);
    dtm_attributes attributes = dtm_op_get(o->module, repeat)->attributes;
    dtm_op made = dtm_build_region(&o->at, DTM_OP_REPEAT, &attributes);
    dtm_builder outside = o->at;
    o->at.region = dtm_op_get(o->module, made)->body;
    o->at.at = -1;
    return outside;
}

/* Calls `each` for every trained weight of a region, repeats within it as repeats. */
typedef void visit_weight(optimizer *o, dtm_op weight);

static void for_weights(optimizer *o, dtm_region region, visit_weight *each) {
    for (size_t i = 0; i < o->module->regions[region].n_ops; i++) {
        dtm_op op = o->module->regions[region].ops[i];
        dtm_region body = dtm_op_get(o->module, op)->body;
        stand_at(o, op);
        if (gradient_of(o, op)) each(o, op);
        if (!body || !has_trained(o, body)) continue;
        dtm_builder outside = enter(o, op);
        for_weights(o, body, each);
        o->at = outside;
    }
}

/* ---- the norm ---- */

/* What is called the gradient from here on: of the loss as it is, in f32. */
static dtm_value whole_gradient(optimizer *o, dtm_value weight) {
    dtm_value made = o->a->gradient[weight];
    if (o->a->scale) return binary(o, DTM_OP_MUL, of_weight(o, weight, "unscaled"), made, o->a->inverse);
    if (dtm_value_type(o->module, made)->dtype == DTM_F32) return made;
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_CAST);
    attributes.dtype = DTM_F32;
    return dtm_build(&o->at, DTM_OP_CAST, of_weight(o, weight, "gradient"), &made, 1, &attributes);
}

static dtm_value square_sum(optimizer *o, dtm_op op) {
    dtm_value weight = dtm_result(o->module, op, 0), gradient = o->a->gradient[weight] = whole_gradient(o, weight);
    sink(o, DTM_OP_GRADIENT, weight, gradient);
    const char *name = of_weight(o, weight, "norm");
    dtm_value square = dtm_build_unary(&o->at, DTM_OP_SQUARE, of_weight(o, weight, "square"), gradient);
    dtm_type_data type = *dtm_value_type(o->module, gradient);
    return type.rank ? dtm_build_over(&o->at, DTM_OP_SUM, name, &square, 1, type.dims, type.rank) : square;
}

static dtm_value square_sums(optimizer *o, dtm_region region);

/* The squares of a repeat's weights, summed over its copies by a carried scalar. */
static dtm_value square_sums_of_copies(optimizer *o, dtm_op repeat) {
    const char *title = dtm_string_text(o->module->context, dtm_op_get(o->module, repeat)->attributes.name);
    const char *name = dtm_arena_printf(o->a->arena, "%s.norm", title);
    dtm_region body = dtm_op_get(o->module, repeat)->body;
    dtm_type scalar = dtm_type_scalar(o->module, DTM_F32);
    stand_at(o, repeat);
    dtm_value zero = number(o, 0);
    dtm_op start = dtm_build_op(&o->at, DTM_OP_FILL, &zero, 1, NULL, &scalar, 1, extended(o, name, "start"));
    zero = dtm_result(o->module, start, 0);
    dtm_builder outside = enter(o, repeat);
    dtm_value operands[2] = {zero, zero};
    dtm_op carry = dtm_build_op(&o->at, DTM_OP_CARRY, operands, 2, NULL, &scalar, 1, extended(o, name, "in"));
    dtm_value sums = square_sums(o, body);
    stand_at(o, repeat);
    dtm_value next = binary(o, DTM_OP_ADD, extended(o, name, "out"), dtm_result(o->module, carry, 0), sums);
    dtm_op_get(o->module, carry)->operands[1] = next;
    o->at = outside;
    return dtm_result(o->module, dtm_build_op(&o->at, DTM_OP_LAST, &next, 1, NULL, &scalar, 1, name), 0);
}

/* 0: no weight of the region has a gradient. */
static dtm_value square_sums(optimizer *o, dtm_region region) {
    dtm_value total = 0;
    for (size_t i = 0; i < o->module->regions[region].n_ops; i++) {
        dtm_op op = o->module->regions[region].ops[i];
        dtm_region body = dtm_op_get(o->module, op)->body;
        dtm_value sum = 0;
        stand_at(o, op);
        if (gradient_of(o, op)) sum = square_sum(o, op);
        else if (body && has_trained(o, body)) sum = square_sums_of_copies(o, op);
        if (sum) total = total ? binary(o, DTM_OP_ADD, "grad_norm.sum", total, sum) : sum;
    }
    return total;
}

static dtm_value norm(optimizer *o, dtm_region forward) {
    dtm_value sum = square_sums(o, forward);
    stand_at_settings(o);
    dtm_type scalar = dtm_type_scalar(o->module, DTM_F32);
    dtm_value zero = number(o, 0);
    if (!sum) sum = dtm_result(o->module, dtm_build_op(&o->at, DTM_OP_FILL, &zero, 1, NULL, &scalar, 1, ""), 0);
    return dtm_build_unary(&o->at, DTM_OP_SQRT, "grad_norm", sum);
}

/* ---- scalars of the step ---- */

static dtm_value correction(optimizer *o, const char *name, double beta) {
    if (o->a->scale) return dtm_loss_scale_correction(o->a, &o->at, name, beta);
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_BIAS_CORRECTION);
    attributes.number[DTM_BIAS_CORRECTION_BETA] = beta;
    return scalar_source(o, DTM_OP_BIAS_CORRECTION, name, &attributes);
}

static void scalars(optimizer *o, dtm_region forward) {
    const dtm_train *train = o->train;
    stand_at_settings(o);
    if (o->a->scale) dtm_loss_scale_steps(o->a, &o->at);
    o->rate = o->a->scale ? dtm_loss_scale_rate(o->a, &o->at) : scalar_source(o, DTM_OP_LEARNING_RATE, "learning_rate", NULL);
    report(o, o->rate, "learning_rate");
    if (train->decay != 0) {
        dtm_value lost = scaled(o, "decay.step", o->rate, train->decay);
        o->keep = binary(o, DTM_OP_SUB, "decay.keep", number(o, 1), lost);
    }
    if (train->optimizer == DTM_ADAMW) {
        o->correction1 = correction(o, "correction1", train->beta1);
        o->correction2 = correction(o, "correction2", train->beta2);
    }
    dtm_value grad_norm = norm(o, forward);
    report(o, grad_norm, "grad_norm");
    if (o->a->scale) dtm_loss_scale_end(o->a, &o->at, grad_norm);
    if (train->clip > 0) {
        dtm_value ratio = binary(o, DTM_OP_DIV, "grad_clip.ratio", number(o, train->clip), grad_norm);
        o->clip = binary(o, DTM_OP_MINIMUM, "grad_clip", number(o, 1), ratio);
    }
}

/* ---- decay ---- */

typedef struct use_count {
    dtm_value weight;
    size_t added, other;
} use_count;

/* How often a weight is added to something, and how often used in another way, in the forward program. */
static void count_uses(dtm_module *module, dtm_region region, use_count *uses) {
    for (size_t i = 0; i < module->regions[region].n_ops; i++) {
        const dtm_op_data *op = dtm_op_get(module, module->regions[region].ops[i]);
        for (uint32_t k = 0; k < op->n_operands; k++) {
            if (op->operands[k] != uses->weight) continue;
            bool bias = op->kind == DTM_OP_LAYERNORM && k == 2;
            bool added = bias || op->kind == DTM_OP_ADD || op->kind == DTM_OP_SUB;
            uses->added += added;
            uses->other += !added;
        }
        if (op->body) count_uses(module, op->body, uses);
    }
}

static bool decays(const optimizer *o, const dtm_op_data *weight) {
    return o->train->decay != 0 && (!(weight->attributes.flags & DTM_WEIGHT_NO_DECAY) || dtm_fault(7)) &&
           dtm_value_type(o->module, weight->results[0])->rank >= 2;
}

static void warn_decayed_biases(optimizer *o, dtm_region region, dtm_region forward) {
    for (size_t i = 0; i < o->module->regions[region].n_ops; i++) {
        const dtm_op_data *op = dtm_op_get(o->module, o->module->regions[region].ops[i]);
        if (op->body) warn_decayed_biases(o, op->body, forward);
        if (op->kind != DTM_OP_WEIGHT || !o->a->gradient[op->results[0]] || !decays(o, op)) continue;
        use_count uses = {op->results[0], 0, 0};
        count_uses(o->module, forward, &uses);
        if (uses.other || !uses.added) continue;
        dtm_warning(o->module->context, op->span, 851,
                    "`%s` is only ever added, like a bias, but has %d dimensions and so decays",
                    dtm_value_name(o->module, op->results[0]), dtm_value_type(o->module, op->results[0])->rank);
        dtm_help(o->module->context, "biases are as a rule exempt: add `, no decay` after its initial value");
    }
}

/* ---- one weight's step ---- */

static dtm_value state(optimizer *o, dtm_op weight_op, const char *suffix) {
    const dtm_op_data *weight = dtm_op_get(o->module, weight_op);
    dtm_value w = weight->results[0];
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_STATE);
    const char *path = dtm_string_text(o->module->context, weight->attributes.name);
    attributes.name = dtm_string_printf(o->module->context, "%s.%s", path, suffix);
    attributes.init = DTM_INIT_ZEROS;
    const dtm_type_data *type = dtm_value_type(o->module, w);
    dtm_type whole = dtm_type_make(o->module, DTM_F32, type->rank, type->dims);
    dtm_op made = dtm_build_op(&o->at, DTM_OP_STATE, NULL, 0, &attributes, &whole, 1, of_weight(o, w, suffix));
    return dtm_result(o->module, made, 0);
}

static void keep(optimizer *o, dtm_value weight, const char *suffix, dtm_value old, dtm_value next) {
    sink(o, DTM_OP_STORE, old, dtm_loss_scale_kept(o->a, &o->at, of_weight(o, weight, extended(o, suffix, "next")), next, old));
}

/* old * decay + new * (1 - decay), kept as the state from the next step on */
static dtm_value moving_mean(optimizer *o, dtm_value weight, dtm_value old, dtm_value new, double beta,
                             const char *suffix) {
    const char *part = of_weight(o, weight, extended(o, suffix, "part"));
    dtm_value kept = scaled(o, part, old, beta);
    dtm_value mean = binary(o, DTM_OP_ADD, of_weight(o, weight, extended(o, suffix, "new")), kept,
                            scaled(o, part, new, 1 - beta));
    keep(o, weight, suffix, old, mean);
    return mean;
}

/* m^ / (sqrt(v^) + eps) */
static dtm_value adamw_step(optimizer *o, dtm_op op, dtm_value w, dtm_value g) {
    dtm_value m = state(o, op, "m"), v = state(o, op, "v");
    const char *name = of_weight(o, w, "step");
    dtm_value square = dtm_build_unary(&o->at, DTM_OP_SQUARE, of_weight(o, w, "v.part"), g);
    m = moving_mean(o, w, m, g, o->train->beta1, "m");
    v = moving_mean(o, w, v, square, o->train->beta2, "v");
    dtm_value mean = binary(o, DTM_OP_DIV, name, m, o->correction1);
    dtm_value root = dtm_build_unary(&o->at, DTM_OP_SQRT, name, binary(o, DTM_OP_DIV, name, v, o->correction2));
    return binary(o, DTM_OP_DIV, name, mean, binary(o, DTM_OP_ADD, name, root, number(o, o->train->eps)));
}

static dtm_value sgd_step(optimizer *o, dtm_op op, dtm_value w, dtm_value g) {
    if (o->train->momentum == 0) return g;
    dtm_value m = state(o, op, "m");
    dtm_value kept = scaled(o, of_weight(o, w, "m.part"), m, o->train->momentum);
    dtm_value next = binary(o, DTM_OP_ADD, of_weight(o, w, "m.new"), kept, g);
    keep(o, w, "m", m, next);
    return next;
}

static void update_weight(optimizer *o, dtm_op op) {
    dtm_op_data weight = *dtm_op_get(o->module, op);
    dtm_value w = weight.results[0], g = gradient_of(o, op);
    if (o->clip && !dtm_fault(32)) g = binary(o, DTM_OP_MUL, of_weight(o, w, "clipped"), g, o->clip);
    dtm_value step = o->train->optimizer == DTM_ADAMW ? adamw_step(o, op, w, g) : sgd_step(o, op, w, g);
    if (o->clip && dtm_fault(32)) step = binary(o, DTM_OP_MUL, of_weight(o, w, "clipped"), step, o->clip);
    step = binary(o, DTM_OP_MUL, of_weight(o, w, "step"), step, o->rate);
    dtm_value kept = decays(o, &weight) ? binary(o, DTM_OP_MUL, of_weight(o, w, "kept"), w, o->keep) : w;
    dtm_value next = binary(o, DTM_OP_SUB, of_weight(o, w, "new"), kept, step);
    sink(o, DTM_OP_STORE, w, dtm_loss_scale_kept(o->a, &o->at, of_weight(o, w, "next"), next, w));
}

static void mark_gradient(optimizer *o, dtm_op op) {
    sink(o, DTM_OP_GRADIENT, dtm_result(o->module, op, 0), gradient_of(o, op));
}

static optimizer make(dtm_autodiff *a, dtm_region region) {
    return (optimizer){.a = a,
                       .module = a->module,
                       .train = &a->module->settings.train,
                       .at = dtm_builder_at_end(a->module, region)};
}

void dtm_optimizer_mark_gradients(dtm_autodiff *a, dtm_region forward, dtm_region region) {
    optimizer o = make(a, region);
    for_weights(&o, forward, mark_gradient);
}

void dtm_optimizer_build(dtm_autodiff *a, dtm_region forward) {
    dtm_builder b = dtm_builder_at_end(a->module, a->module->body);
    optimizer o = make(a, dtm_op_get(a->module, dtm_build_region(&b, DTM_OP_UPDATE, NULL))->body);
    warn_decayed_biases(&o, forward, forward);
    scalars(&o, forward);
    for_weights(&o, forward, update_weight);
}
