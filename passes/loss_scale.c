/* The loss' scale of `precision f16`: gradients of few bits of exponent are those of a larger loss, so that the small ones do not
 * become zero, and where that was too much the step is not taken.
 *
 *     backward {
 *         state loss_scale = 65536
 *         loss_scale.inverse = 1 / loss_scale
 *         ..                                            # the gradient of the loss is loss_scale, not 1
 *     }
 *     update {
 *         state steps_taken = 0
 *         steps = steps_taken + 1                       # bias corrections and the learning rate are of this step
 *         wq.unscaled = d_wq * loss_scale.inverse       # in f32; this is what is called the gradient from here on
 *         gradient(wq, wq.unscaled)
 *         ..
 *         finite = grad_norm < inf                      # one number, which all ranks agree upon: false for NaN too
 *         store(wq, where(finite, wq.new, wq))          # and so all that an optimizer keeps
 *         store(loss_scale, ..)                         # halved, or after `grow_after` steps without a skip doubled
 *     }
 *
 * So a skipped step leaves every weight and moment bit for bit, and the next is counted as if it had not been; only what it read is
 * gone. Scales are powers of two, of which nothing is rounded. All of it is operators of the program: a back end knows nothing of it.
 *
 * What the host computes of the step's number elsewhere is computed here from the steps taken, in f32 and without loss where numbers
 * cancel. 1 - beta^t = 2 T / (1 + T) with T = tanh(-t log(beta) / 2). A cosine falls by (1 + cos(pi x)) / 2 = sin^2(pi y / 2) with
 * y = 1 - x, and the sine is its Taylor series up to y^13 (off by at most 7e-10). */
#include "ir/fault.h"
#include "passes/autodiff.h"

#include <math.h>

static dtm_value number(dtm_builder *b, double value) { return dtm_constant(b->module, DTM_F32, value); }

static dtm_value binary(dtm_builder *b, dtm_op_kind kind, const char *name, dtm_value x, dtm_value y) {
    return dtm_build_binary(b, kind, name, x, y);
}

static dtm_value chosen(dtm_builder *b, const char *name, dtm_value condition, dtm_value x, dtm_value y) {
    dtm_value operands[3] = {condition, x, y};
    return dtm_build(b, DTM_OP_WHERE, name, operands, 3, NULL);
}

static dtm_value state(dtm_builder *b, const char *name, const char *path, double first) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_STATE);
    attributes.name = dtm_string_of(b->module->context, path);
    attributes.init = first == 0 ? DTM_INIT_ZEROS : DTM_INIT_NUMBER;
    attributes.init_a = first;
    dtm_type type = dtm_type_scalar(b->module, DTM_F32);
    return dtm_result(b->module, dtm_build_op(b, DTM_OP_STATE, NULL, 0, &attributes, &type, 1, name), 0);
}

static void store(dtm_builder *b, dtm_value state, dtm_value next) {
    dtm_value operands[2] = {state, next};
    dtm_build_op(b, DTM_OP_STORE, operands, 2, NULL, NULL, 0, "");
}

static void report(dtm_builder *b, dtm_value value, const char *name) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_REPORT);
    attributes.name = dtm_string_of(b->module->context, name);
    dtm_build_op(b, DTM_OP_REPORT, &value, 1, &attributes, NULL, 0, "");
}

/* ---- backward ---- */

dtm_value dtm_loss_scale_begin(dtm_autodiff *a, dtm_builder *b) {
    a->scale = state(b, "loss_scale", "precision.loss_scale", a->module->settings.train.scale);
    a->inverse = binary(b, DTM_OP_DIV, "loss_scale.inverse", number(b, 1), a->scale);
    return a->scale;
}

/* ---- the numbers of a step ---- */

dtm_value dtm_loss_scale_steps(dtm_autodiff *a, dtm_builder *b) {
    a->taken = state(b, "steps_taken", "precision.steps_taken", 0);
    return a->steps = binary(b, DTM_OP_ADD, "steps", a->taken, number(b, 1));
}

/* sin^2(pi y / 2) */
static dtm_value cosine_fall(dtm_builder *b, dtm_value y) {
    const double quarter = 1.57079632679489661923;
    dtm_value square = dtm_build_unary(b, DTM_OP_SQUARE, "learning_rate.square", y), sum = 0;
    double term[7] = {quarter};
    for (int n = 1; n < 7; n++) term[n] = -term[n - 1] * quarter * quarter / (2 * n * (2 * n + 1));
    for (int n = 6; n >= 0; n--) {
        sum = sum ? binary(b, DTM_OP_MUL, "learning_rate.term", sum, square) : 0;
        sum = sum ? binary(b, DTM_OP_ADD, "learning_rate.terms", sum, number(b, term[n])) : number(b, term[n]);
    }
    return dtm_build_unary(b, DTM_OP_SQUARE, "learning_rate.fall", binary(b, DTM_OP_MUL, "learning_rate.sine", sum, y));
}

dtm_value dtm_loss_scale_rate(dtm_autodiff *a, dtm_builder *b) {
    const dtm_train *train = &a->module->settings.train;
    const char *name = "learning_rate";
    dtm_value rate = number(b, train->peak);
    if (train->schedule != DTM_LR_CONSTANT) {
        double length = train->schedule_steps - train->warmup;
        dtm_value left = binary(b, DTM_OP_SUB, "learning_rate.left", number(b, train->schedule_steps), a->steps);
        left = binary(b, DTM_OP_MAXIMUM, "learning_rate.left", left, number(b, 0));
        dtm_value fall = binary(b, DTM_OP_DIV, "learning_rate.left", left, number(b, length > 0 ? length : 1));
        fall = binary(b, DTM_OP_MINIMUM, "learning_rate.left", fall, number(b, 1));
        if (train->schedule == DTM_LR_COSINE) fall = cosine_fall(b, fall);
        rate = binary(b, DTM_OP_MUL, "learning_rate.above", fall, number(b, train->peak - train->floor));
        if (train->floor != 0) rate = binary(b, DTM_OP_ADD, name, rate, number(b, train->floor));
    }
    if (train->warmup > 0) {
        dtm_value rises = binary(b, DTM_OP_LT, "learning_rate.rises", a->steps, number(b, train->warmup));
        dtm_value risen = binary(b, DTM_OP_MUL, "learning_rate.risen", a->steps, number(b, train->peak / train->warmup));
        rate = chosen(b, name, rises, risen, rate);
    }
    if (dtm_value_is_constant(a->module, rate)) {
        dtm_type type = dtm_type_scalar(b->module, DTM_F32);
        rate = dtm_result(b->module, dtm_build_op(b, DTM_OP_FILL, &rate, 1, NULL, &type, 1, name), 0);
    }
    return rate;
}

dtm_value dtm_loss_scale_correction(dtm_autodiff *a, dtm_builder *b, const char *name, double beta) {
    if (beta == 0) return number(b, 1);
    dtm_value half = binary(b, DTM_OP_MUL, dtm_arena_printf(a->arena, "%s.half", name), a->steps, number(b, -log(beta) / 2));
    dtm_value t = dtm_build_unary(b, DTM_OP_TANH, dtm_arena_printf(a->arena, "%s.tanh", name), half);
    dtm_value above = binary(b, DTM_OP_MUL, dtm_arena_printf(a->arena, "%s.above", name), t, number(b, 2));
    return binary(b, DTM_OP_DIV, name, above, binary(b, DTM_OP_ADD, dtm_arena_printf(a->arena, "%s.below", name), t, number(b, 1)));
}

/* ---- what is kept ---- */

dtm_value dtm_loss_scale_kept(dtm_autodiff *a, dtm_builder *b, const char *name, dtm_value next, dtm_value old) {
    bool moment = dtm_value_get(b->module, old)->def && dtm_op_get(b->module, dtm_value_get(b->module, old)->def)->kind == DTM_OP_STATE;
    if (dtm_fault(133) && moment) return next;
    return a->finite ? chosen(b, name, a->finite, next, old) : next;
}

void dtm_loss_scale_end(dtm_autodiff *a, dtm_builder *b, dtm_value grad_norm) {
    const dtm_train *train = &a->module->settings.train;
    a->finite = binary(b, DTM_OP_LT, "finite", grad_norm, number(b, INFINITY));
    dtm_value good = state(b, "steps_in_a_row", "precision.steps_in_a_row", 0);
    report(b, a->scale, "scale");
    report(b, chosen(b, "skipped", a->finite, number(b, 0), number(b, 1)), "skipped");

    dtm_value row = binary(b, DTM_OP_ADD, "steps_in_a_row.more", good, number(b, 1));
    dtm_value grows = binary(b, DTM_OP_GE, "loss_scale.grows", row, number(b, train->grow_after));
    dtm_value doubled = binary(b, DTM_OP_MUL, "loss_scale.doubled", a->scale, number(b, 2));
    doubled = binary(b, DTM_OP_MINIMUM, "loss_scale.doubled", doubled, number(b, DTM_LARGEST_LOSS_SCALE));
    dtm_value halved = binary(b, DTM_OP_MUL, "loss_scale.halved", a->scale, number(b, 0.5));
    halved = binary(b, DTM_OP_MAXIMUM, "loss_scale.halved", halved, number(b, 1));
    dtm_value held = chosen(b, "loss_scale.held", grows, doubled, a->scale);
    store(b, a->scale, chosen(b, "loss_scale.new", a->finite, held, halved));
    dtm_value again = chosen(b, "steps_in_a_row.again", grows, number(b, 0), row);
    store(b, good, chosen(b, "steps_in_a_row.new", a->finite, again, number(b, 0)));
    store(b, a->taken, dtm_fault(134) ? a->steps : chosen(b, "steps_taken.new", a->finite, a->steps, a->taken));
}
