/* check: the `train` section. */
#include "frontend/sections.h"
#include "ir/fault.h"

#include <math.h>
#include <string.h>

static const char *const train_words[] = {"precision", "reduce", "optimizer", "clip", "steps", "seed"};
static const char *const adamw_words[] = {"lr", "beta1", "beta2", "eps", "decay"};
static const char *const sgd_words[] = {"lr", "momentum", "decay"};
static const char *const f16_words[] = {"scale", "grow_after"};
static const char *const schedule_words[] = {"peak", "warmup", "steps", "floor"}; /* constant has the first two */
/* What --set reaches inside; `steps` is there the number of training steps. */
static const char *const optimizer_sets[] = {"lr", "beta1", "beta2", "eps", "decay", "momentum"};
static const char *const schedule_sets[] = {"peak", "warmup", "floor"};

static bool number_or(dtm_checker *c, const dtm_entries *entries, const char *key, double otherwise, dtm_range range,
                      double *value) {
    const dtm_expr *expr = dtm_entries_find(c, entries, key);
    *value = otherwise;
    return !expr || dtm_section_number(c, expr, dtm_arena_printf(c->arena, "`%s`", key), DTM_UNIT_NONE, range, value);
}

/* A whole number of steps. */
static bool steps_or(dtm_checker *c, const dtm_entries *entries, const char *key, int64_t otherwise, int64_t least,
                     double *value) {
    const dtm_expr *expr = dtm_entries_find(c, entries, key);
    int64_t steps = otherwise;
    bool good = !expr || dtm_section_whole(c, expr, dtm_arena_printf(c->arena, "`%s`", key), least, &steps);
    *value = (double)steps;
    return good;
}

static bool unknown(dtm_checker *c, dtm_span span, const char *what, dtm_string name, const char *const *words, size_t n) {
    dtm_error(c->context, span, 232, "there is no %s `%s`", what, dtm_checker_text(c, name));
    dtm_section_help(c, name, words, n);
    return false;
}

/* ---- lr ---- */

static bool schedule_kind(dtm_checker *c, const dtm_expr *expr, dtm_schedule_kind *kind) {
    static const char *const kinds[] = {"constant", "linear", "cosine"};
    dtm_name callee = expr->call->callee;
    for (int i = 0; i < 3; i++)
        if (strcmp(kinds[i], dtm_checker_text(c, callee.text)) == 0) {
            *kind = (dtm_schedule_kind)i;
            return true;
        }
    return unknown(c, callee.span, "schedule", callee.text, kinds, 3);
}

/* A rate that still rises when the steps end. A schedule longer than training is meant so: training is a part of it. */
static void warn_warmup(dtm_checker *c, const dtm_entries *entries, const dtm_train *train) {
    bool own = dtm_entries_find(c, entries, "steps") != NULL;
    double steps = own ? train->schedule_steps : (double)train->steps;
    if (train->warmup <= steps) return;
    dtm_warning(c->context, dtm_entries_find(c, entries, "warmup")->span, 853,
                "a warmup of %.0f steps, but %s has %.0f: the learning rate never reaches its peak", train->warmup,
                own ? "the schedule" : "training", steps);
    dtm_help(c->context, "a warmup of at most %.0f, or more `steps`", steps);
}

static bool read_schedule(dtm_checker *c, const dtm_expr *expr, const dtm_entries *sets, dtm_train *train) {
    dtm_entries entries = {0};
    if (expr->kind == DTM_EXPR_CALL) {
        if (!schedule_kind(c, expr, &train->schedule) || !dtm_entries_of_call(c, expr, "peak", &entries)) return false;
    } else {
        dtm_entries_add(c, &entries, (dtm_name){dtm_string_of(c->context, "peak"), expr->span}, expr);
    }
    bool constant = train->schedule == DTM_LR_CONSTANT;
    dtm_entries_override(c, &entries, sets, schedule_sets, DTM_COUNT(schedule_sets));
    if (!dtm_entries_check(c, &entries, constant ? "a constant `lr`" : "this schedule", schedule_words, constant ? 2 : 4))
        return false;
    if (!dtm_entries_find(c, &entries, "peak")) {
        dtm_error(c->context, expr->span, 233, "a schedule needs its `peak`");
        dtm_help(c->context, "%s(peak = 1e-3, ..)", dtm_checker_text(c, expr->call->callee.text));
        return false;
    }
    bool good = number_or(c, &entries, "peak", 0, dtm_range_not_negative, &train->peak) &&
                number_or(c, &entries, "floor", 0, dtm_range_not_negative, &train->floor) &&
                steps_or(c, &entries, "warmup", 0, 0, &train->warmup) &&
                steps_or(c, &entries, "steps", constant ? 0 : train->steps, 1, &train->schedule_steps);
    if (good && !c->dump) warn_warmup(c, &entries, train);
    return good;
}

/* ---- optimizer ---- */

static bool optimizer_kind(dtm_checker *c, const dtm_expr *expr, dtm_optimizer_kind *kind) {
    static const char *const kinds[] = {"adamw", "sgd"};
    dtm_string name = expr->kind == DTM_EXPR_CALL ? expr->call->callee.text : expr->kind == DTM_EXPR_NAME ? expr->text : 0;
    if (!name) {
        dtm_error(c->context, expr->span, 232, "an optimizer is wanted here");
        dtm_help(c->context, "optimizer adamw(lr = 1e-3), or sgd(lr = 0.1)");
        return false;
    }
    bool sgd = strcmp(dtm_checker_text(c, name), "sgd") == 0;
    *kind = sgd ? DTM_SGD : DTM_ADAMW;
    if (sgd || strcmp(dtm_checker_text(c, name), "adamw") == 0) return true;
    return unknown(c, expr->kind == DTM_EXPR_CALL ? expr->call->callee.span : expr->span, "optimizer", name, kinds, 2);
}

static bool read_optimizer(dtm_checker *c, const dtm_expr *expr, const dtm_entries *sets, dtm_train *train) {
    dtm_entries entries = {0};
    if (!optimizer_kind(c, expr, &train->optimizer)) return false;
    if (expr->kind == DTM_EXPR_CALL && !dtm_entries_of_call(c, expr, NULL, &entries)) return false;
    train->optimizer_span = expr->span;
    dtm_entries_override(c, &entries, sets, optimizer_sets, DTM_COUNT(optimizer_sets));
    bool adamw = train->optimizer == DTM_ADAMW;
    if (!dtm_entries_check(c, &entries, adamw ? "`adamw`" : "`sgd`", adamw ? adamw_words : sgd_words,
                           adamw ? DTM_COUNT(adamw_words) : DTM_COUNT(sgd_words)))
        return false;
    const dtm_expr *lr = dtm_entries_find(c, &entries, "lr");
    if (!lr) {
        dtm_error(c->context, expr->span, 233, "the optimizer needs a learning rate");
        dtm_help(c->context, "%s(lr = 1e-3, ..)", adamw ? "adamw" : "sgd");
        return false;
    }
    bool good = read_schedule(c, lr, sets, train);
    good &= number_or(c, &entries, "beta1", adamw ? 0.9 : 0, dtm_range_fraction, &train->beta1);
    good &= number_or(c, &entries, "beta2", adamw ? dtm_fault(43) ? 0.99 : 0.999 : 0, dtm_range_fraction, &train->beta2);
    good &= number_or(c, &entries, "eps", adamw ? 1e-8 : 0, dtm_range_not_negative, &train->eps);
    good &= number_or(c, &entries, "decay", 0, dtm_range_not_negative, &train->decay);
    return number_or(c, &entries, "momentum", 0, dtm_range_fraction, &train->momentum) && good;
}

/* ---- clip ---- */

/* A bound of 0 would leave no gradient at all, so it is not taken for "no bound" either: that is `none`. */
static bool read_clip(dtm_checker *c, const dtm_expr *expr, double *clip) {
    bool none = expr->kind == DTM_EXPR_NAME && strcmp(dtm_checker_text(c, expr->text), "none") == 0;
    *clip = none ? 0 : 1;
    if (none || dtm_section_number(c, expr, "`clip`", DTM_UNIT_NONE, dtm_range_positive, clip)) return true;
    if (*clip <= 0) dtm_help(c->context, "`clip none`, or no such line, leaves gradients as they are");
    return false;
}

/* ---- the section ---- */

/* A power of two, so that nothing is rounded by it. */
static bool read_scale(dtm_checker *c, const dtm_entries *entries, double *scale) {
    static const dtm_range range = {1, DTM_LARGEST_LOSS_SCALE, "at least 1 and at most 2^32"};
    if (!number_or(c, entries, "scale", 65536, range, scale)) return false;
    int exponent;
    if (frexp(*scale, &exponent) == 0.5) return true;
    dtm_text text = {.arena = c->arena};
    dtm_text_number(&text, *scale);
    dtm_error(c->context, dtm_entries_find(c, entries, "scale")->span, 230, "`scale` must be a power of two, it is %s", text.data);
    dtm_help(c->context, "scale = %.0f", ldexp(1, exponent - 1));
    return false;
}

static bool read_loss_scale(dtm_checker *c, const dtm_expr *expr, dtm_train *train) {
    dtm_entries entries = {0};
    if (expr->kind == DTM_EXPR_CALL && !dtm_entries_of_call(c, expr, NULL, &entries)) return false;
    return dtm_entries_check(c, &entries, "`f16`", f16_words, DTM_COUNT(f16_words)) && read_scale(c, &entries, &train->scale) &&
           steps_or(c, &entries, "grow_after", 2000, 1, &train->grow_after);
}

static bool read_precision(dtm_checker *c, const dtm_expr *expr, dtm_train *train) {
    static const char *const precisions[] = {"f32", "bf16", "f16"};
    static const dtm_dtype dtypes[] = {DTM_F32, DTM_BF16, DTM_F16};
    dtm_string text = expr->kind == DTM_EXPR_NAME ? expr->text : expr->kind == DTM_EXPR_CALL ? expr->call->callee.text : 0;
    const char *name = text ? dtm_checker_text(c, text) : "";
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, precisions[i]) != 0) continue;
        train->precision = dtypes[i];
        if (dtypes[i] == DTM_F16) return read_loss_scale(c, expr, train);
        if (expr->kind == DTM_EXPR_NAME) return true;
        dtm_error(c->context, expr->span, 232, "`precision %s` has no settings", name);
        dtm_help(c->context, "precision %s", name);
        return false;
    }
    if (text) return unknown(c, expr->kind == DTM_EXPR_CALL ? expr->call->callee.span : expr->span, "precision", text, precisions, 3);
    dtm_error(c->context, expr->span, 232, "a precision is wanted here");
    dtm_help(c->context, "precision f32");
    return false;
}

static bool read_reduce(dtm_checker *c, const dtm_expr *expr, dtm_dtype *reduce) {
    static const char *const types[] = {"f32", "bf16"};
    const char *name = expr->kind == DTM_EXPR_NAME ? dtm_checker_text(c, expr->text) : "";
    *reduce = strcmp(name, "bf16") == 0 ? DTM_BF16 : DTM_F32;
    if (*reduce == DTM_BF16 || strcmp(name, "f32") == 0) return true;
    if (expr->kind == DTM_EXPR_NAME) return unknown(c, expr->span, "type to `reduce` in", expr->text, types, 2);
    dtm_error(c->context, expr->span, 232, "a type is wanted here");
    dtm_help(c->context, "reduce bf16");
    return false;
}

/* Seeds have 64 bits: a plain number is read exactly. */
static bool read_seed(dtm_checker *c, const dtm_expr *expr, uint64_t *seed) {
    int64_t value = 0;
    if (expr->kind == DTM_EXPR_NUMBER && expr->whole && expr->unit == DTM_UNIT_NONE) {
        *seed = expr->integer;
        return true;
    }
    bool good = dtm_section_whole(c, expr, "`seed`", 0, &value);
    *seed = (uint64_t)value;
    return good;
}

static bool check_needed(dtm_checker *c, const dtm_entries *entries) {
    static const char *const needed[][2] = {{"optimizer", "optimizer adamw(lr = 1e-3)"}, {"steps", "steps 200"}};
    bool good = true;
    for (int i = 0; i < 2; i++) {
        if (dtm_entries_find(c, entries, needed[i][0])) continue;
        dtm_error(c->context, c->train->keyword, 233, "`train` does not say its `%s`", needed[i][0]);
        dtm_help(c->context, "add a line: %s", needed[i][1]);
        good = false;
    }
    return good;
}

static bool read_train(dtm_checker *c, const dtm_entries *entries, const dtm_entries *sets, dtm_train *train) {
    const dtm_expr *precision = dtm_entries_find(c, entries, "precision"), *seed = dtm_entries_find(c, entries, "seed");
    const dtm_expr *clip = dtm_entries_find(c, entries, "clip"), *reduce = dtm_entries_find(c, entries, "reduce");
    *train = (dtm_train){.present = true, .seed = 1, .span = c->train->keyword};
    bool good = !precision || read_precision(c, precision, train);
    good &= dtm_section_whole(c, dtm_entries_find(c, entries, "steps"), "`steps`", 1, &train->steps);
    if (reduce) good &= read_reduce(c, reduce, &train->reduce);
    if (clip) good &= read_clip(c, clip, &train->clip);
    if (seed) good &= read_seed(c, seed, &train->seed);
    return read_optimizer(c, dtm_entries_find(c, entries, "optimizer"), sets, train) && good;
}

/* Without the section nothing may be set in it. */
static bool check_no_sets(dtm_checker *c, const dtm_entries *sets) {
    for (size_t i = 0; i < sets->count; i++) {
        const char *key = dtm_checker_text(c, sets->items[i].key.text);
        if (strcmp(key, "microbatches") == 0) continue;
        dtm_error(c->context, (dtm_span){0, 0, 0}, 236, "--set %s: the program has no `train` section", key);
        dtm_help(c->context, "add one: train { optimizer adamw(lr = 1e-3); steps 200 }");
        return false;
    }
    return true;
}

bool dtm_section_train(dtm_checker *c, const dtm_entries *sets) {
    if (!c->train) return check_no_sets(c, sets);
    dtm_entries entries = {0};
    for (size_t i = 0; i < c->train->block->count; i++) {
        const dtm_statement *s = c->train->block->items[i];
        if (s->kind == DTM_STATEMENT_SETTING) dtm_entries_add(c, &entries, s->name, s->value);
    }
    dtm_entries_override(c, &entries, sets, train_words, DTM_COUNT(train_words));
    return dtm_entries_check(c, &entries, "`train`", train_words, DTM_COUNT(train_words)) && check_needed(c, &entries) &&
           read_train(c, &entries, sets, &c->module->settings.train);
}
