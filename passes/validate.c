/* Translation validation: a module before and after a pass, on the same random inputs, must compute the same. Both are
 * interpreted; what has a name outside (reports, outputs, gradients, weights, states) is compared. If something
 * differs, both run again and keep every value of the step, and the first value that both name and that differs is the
 * hint. */
#include "passes/interpret.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { DIFFERS = 599 };

double dtm_tensor_difference(const dtm_tensor *a, const dtm_tensor *b, double floor) {
    if (a->elements != b->elements || a->rank != b->rank) return INFINITY;
    double scale = floor, most = 0;
    for (int64_t i = 0; i < a->elements; i++) {
        double x = a->data[i], y = b->data[i];
        if (x == y) {
            if (isfinite(x) && fabs(x) > scale) scale = fabs(x);
            continue;
        }
        double difference = fabs(x - y);
        if (!isfinite(difference)) return INFINITY; /* a NaN, or one infinity */
        if (difference > most) most = difference;
        if (fabs(x) > scale) scale = fabs(x);
        if (fabs(y) > scale) scale = fabs(y);
    }
    return most == 0 ? 0 : most / scale;
}

static double magnitude(const dtm_tensor *tensor) {
    double most = 0;
    for (int64_t i = 0; i < tensor->elements; i++)
        if (isfinite(tensor->data[i]) && fabs(tensor->data[i]) > most) most = fabs(tensor->data[i]);
    return most;
}

/* States of one kind (`m`, `v`) share a scale: what follows the last dot. */
static const char *kind_of(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot ? dot : name;
}

/* What is exactly zero in theory is rounding in practice: it is measured by the largest of its kind, a thousandth of
 * it. */
static double floor_of(const dtm_tensors *list, const dtm_tensor *tensor, bool by_kind) {
    double most = 0;
    for (size_t i = 0; i < list->count; i++) {
        const dtm_tensor *other = &list->data[i];
        if (other->step != tensor->step || (by_kind && strcmp(kind_of(other->name), kind_of(tensor->name)))) continue;
        double m = magnitude(other);
        if (m > most) most = m;
    }
    return most * 1e-3;
}

/* Sums in another order change a program a little, and one that is badly conditioned (a saturated softmax) more than a little: what
 * the module before does as its operands are nudged is allowed a few times, as long as it could not be anything but rounding. */
enum { NUDGED = 3 };
static const double times_nudged = 16, most_nudged = 1e-6;

typedef struct judge {
    const dtm_module *before;
    dtm_interpret_options run;
    double tolerance;
    bool fixed, ran;
    dtm_interpretation *nudged[NUDGED]; /* NULL before they are asked for */
} judge;

static void run_nudged(judge *j) {
    for (int i = 0; i < NUDGED && !j->ran; i++) {
        dtm_interpret_options run = j->run;
        run.nudge = (uint64_t)i + 1;
        j->nudged[i] = dtm_interpret(j->before, &run);
    }
    j->ran = true;
}

static void destroy_nudged(judge *j) {
    for (int i = 0; i < NUDGED; i++) dtm_interpretation_destroy(j->nudged[i]);
}

enum list { REPORTS, OUTPUTS, GRADIENTS, WEIGHTS, STATES };
static const struct {
    const char *what;
    size_t at;
    bool floored, by_kind;
} lists[] = {
    [REPORTS] = {"report", offsetof(dtm_interpretation, reports), false, false},
    [OUTPUTS] = {"output", offsetof(dtm_interpretation, outputs), true, false},
    [GRADIENTS] = {"gradient", offsetof(dtm_interpretation, gradients), true, false},
    [WEIGHTS] = {"updated weight", offsetof(dtm_interpretation, weights), true, false},
    [STATES] = {"updated state", offsetof(dtm_interpretation, states), true, true},
};

static const dtm_tensors *list_of(const dtm_interpretation *of, enum list l) {
    return (const dtm_tensors *)(const void *)((const char *)of + lists[l].at);
}

/* Of a tensor of a list, relative to it, as the module is nudged. */
static double most_of_nudging(judge *j, enum list l, const dtm_tensor *tensor, double floor) {
    double most = 0;
    run_nudged(j);
    for (int i = 0; i < NUDGED; i++) {
        const dtm_tensor *other = j->nudged[i] ? dtm_tensors_find(list_of(j->nudged[i], l), tensor->name, tensor->step) : NULL;
        if (!other) return 0;
        double difference = dtm_tensor_difference(tensor, other, floor);
        if (!(difference <= most_nudged)) return most_nudged;
        if (difference > most) most = difference;
    }
    return most;
}

/* The first tensor in a list that differs from its namesake. */
typedef struct finding {
    const char *what;                 /* "gradient" */
    const dtm_tensor *before, *after; /* after NULL: it is missing */
    double difference;
} finding;

static bool compare_lists(judge *j, const dtm_interpretation *of, const dtm_interpretation *with, enum list l, finding *found) {
    const dtm_tensors *before = list_of(of, l), *after = list_of(with, l);
    for (size_t i = 0; i < before->count; i++) {
        const dtm_tensor *a = &before->data[i], *b = NULL;
        if (i < after->count && !strcmp(after->data[i].name, a->name) && after->data[i].step == a->step)
            b = &after->data[i];
        else
            b = dtm_tensors_find(after, a->name, a->step);
        double floor = 1e-300, difference = b ? dtm_tensor_difference(a, b, floor) : INFINITY;
        if (difference <= j->tolerance) continue;
        if (b && lists[l].floored) {
            floor += floor_of(before, a, lists[l].by_kind);
            difference = dtm_tensor_difference(a, b, floor);
        }
        if (difference <= j->tolerance) continue;
        if (!j->fixed && difference <= most_nudged && difference <= times_nudged * most_of_nudging(j, l, a, floor)) continue;
        *found = (finding){lists[l].what, a, b, difference};
        return false;
    }
    return true;
}

static bool compare(judge *j, const dtm_interpretation *before, const dtm_interpretation *after, bool updates, finding *found) {
    *found = (finding){0};
    for (enum list l = REPORTS; l <= (updates ? STATES : OUTPUTS); l++)
        if (!compare_lists(j, before, after, l, found)) return false;
    return true;
}

/* ---- what to say ---- */

static bool same_shape(const dtm_tensor *a, const dtm_tensor *b) {
    if (a->rank != b->rank || a->dtype != b->dtype) return false;
    for (int d = 0; d < a->rank; d++)
        if (strcmp(a->dims[d], b->dims[d]) || a->sizes[d] != b->sizes[d]) return false;
    return true;
}

/* The element where two tensors differ most, NaN above all. */
static int64_t worst_element(const dtm_tensor *a, const dtm_tensor *b) {
    int64_t worst = 0;
    double most = -1;
    for (int64_t i = 0; i < a->elements; i++) {
        double difference = a->data[i] == b->data[i] ? 0 : fabs(a->data[i] - b->data[i]);
        if (isnan(difference)) return i;
        if (difference > most) {
            most = difference;
            worst = i;
        }
    }
    return worst;
}

static const char *element_text(dtm_arena *arena, const dtm_tensor *a, const dtm_tensor *b) {
    int64_t worst = worst_element(a, b), rest = worst;
    int64_t index[DTM_MAX_RANK];
    for (int d = a->rank - 1; d >= 0; d--) {
        index[d] = rest % a->sizes[d];
        rest /= a->sizes[d];
    }
    dtm_text text = {.arena = arena};
    if (a->rank) dtm_text_printf(&text, "at [");
    for (int d = 0; d < a->rank; d++)
        dtm_text_printf(&text, "%s%s = %lld", d ? ", " : "", a->dims[d], (long long)index[d]);
    dtm_text_printf(&text, "%s%.12g before, %.12g after", a->rank ? "] " : "", a->data[worst], b->data[worst]);
    return text.data;
}

/* In the order of the module before if that is `by_before`: of the ranks of a pipeline after it each is executed beside others. */
static bool report_first_value(dtm_context *context, const dtm_interpretation *before, const dtm_interpretation *after,
                               bool by_before, double tolerance) {
    const dtm_tensors *order = by_before ? &before->values : &after->values;
    for (size_t i = 0; i < order->count; i++) {
        const dtm_tensor *a = dtm_tensors_find(&before->values, order->data[i].name, 0);
        const dtm_tensor *b = dtm_tensors_find(&after->values, order->data[i].name, 0);
        if (!a || !b || !same_shape(a, b)) continue;
        for (int64_t e = 0; e < a->elements; e++) { /* of microbatches that went another way nothing is known */
            if (a->seen && !a->seen[e]) a->data[e] = b->data[e];
            if (b->seen && !b->seen[e]) b->data[e] = a->data[e];
        }
        double most = magnitude(a) > magnitude(b) ? magnitude(a) : magnitude(b);
        if (dtm_tensor_difference(a, b, most * 1e-3 + 1e-18) <= tolerance) continue;
        dtm_note(context, (dtm_span){0, 0, 0},
                 "in order of execution, `%s` is the first value of both that differs: %s", b->name,
                 element_text(after->arena, a, b));
        return true;
    }
    return false;
}

static void report_difference(dtm_context *context, const char *pass, const finding *found, dtm_arena *arena) {
    dtm_span nowhere = {0, 0, 0};
    if (!found->after)
        dtm_error(context, nowhere, DIFFERS, "the pass `%s` loses the %s `%s`", pass, found->what, found->before->name);
    else if (found->before->elements != found->after->elements || found->before->rank != found->after->rank)
        dtm_error(context, nowhere, DIFFERS, "the pass `%s` changes the shape of the %s `%s`", pass, found->what,
                  found->before->name);
    else
        dtm_error(context, nowhere, DIFFERS, "the pass `%s` changes the %s `%s` of step %lld by %.3g: %s", pass,
                  found->what, found->before->name, (long long)found->before->step, found->difference,
                  element_text(arena, found->before, found->after));
}

/* ---- both runs ---- */

/* Before autodiff nothing is updated: only the first step and what it reports can be compared. */
static bool has_update(const dtm_module *module) {
    for (dtm_op o = 1; o < module->n_ops; o++)
        if (module->ops[o].kind == DTM_OP_STORE) return true;
    return false;
}

/* What inputs must satisfy in both modules. */
static size_t join_bounds(const dtm_module *before, const dtm_module *after, dtm_arena *arena, dtm_input_bound **out) {
    dtm_input_bound *a, *b;
    size_t n_a = dtm_input_bounds(before, arena, &a), n_b = dtm_input_bounds(after, arena, &b);
    for (size_t i = 0; i < n_a; i++)
        for (size_t j = 0; j < n_b; j++) {
            if (a[i].name != b[j].name) continue;
            if (b[j].bound && (!a[i].bound || b[j].bound < a[i].bound)) a[i].bound = b[j].bound;
        }
    *out = a;
    return n_a;
}

/* Runs both again to find the first value that differs, step by step: a wrong update shows in the step before. */
static void search_values(const dtm_module *before, const dtm_module *after, dtm_interpret_options run_before,
                          dtm_interpret_options run_after, double tolerance) {
    bool found = false;
    for (int64_t step = 1; !found && step <= run_before.steps; step++) {
        run_before.keep_step = run_after.keep_step = step;
        dtm_interpretation *a = dtm_interpret(before, &run_before), *b = dtm_interpret(after, &run_after);
        found = a && b && report_first_value(after->context, a, b, after->n_ranks > 0, tolerance);
        dtm_interpretation_destroy(a);
        dtm_interpretation_destroy(b);
    }
    if (!found) dtm_note(after->context, (dtm_span){0, 0, 0}, "no value that both name and shape alike differs");
}

/* Of a pipeline each rank's program has one. */
static bool has_arena(const dtm_module *module) { return (module->n_ranks ? module->ranks[0] : module)->arena_bytes > 0; }

bool dtm_validate(const dtm_module *before, const dtm_module *after, const char *pass,
                  const dtm_validate_options *options) {
    dtm_validate_options chosen = options ? *options : (dtm_validate_options){0};
    judge judge = {.before = before, .tolerance = chosen.tolerance > 0 ? chosen.tolerance : 1e-9, .fixed = chosen.tolerance > 0};
    dtm_arena *arena = dtm_arena_create();
    dtm_input_bound *bounds;
    size_t n_bounds = join_bounds(before, after, arena, &bounds);
    bool updates = has_update(before);
    dtm_interpret_options run = {.steps = !updates           ? 1
                                          : chosen.steps > 0 ? chosen.steps
                                                             : 2,
                                 .seed = chosen.seed,
                                 .max_elements = chosen.max_elements,
                                 .bounds = bounds,
                                 .n_bounds = n_bounds};
    dtm_interpret_options run_after = run;
    run_after.check_storage = has_arena(after);
    run.check_storage = has_arena(before);
    dtm_interpretation *a = dtm_interpret(before, &run), *b = a ? dtm_interpret(after, &run_after) : NULL;
    finding found = {0};
    judge.run = run;
    bool same = a && b && compare(&judge, a, b, updates, &found);
    if (a && !b) dtm_note(after->context, (dtm_span){0, 0, 0}, "after the pass `%s`", pass);
    if (found.what) {
        report_difference(after->context, pass, &found, arena);
        search_values(before, after, run, run_after, judge.tolerance);
    }
    destroy_nudged(&judge);
    dtm_interpretation_destroy(a);
    dtm_interpretation_destroy(b);
    dtm_arena_destroy(arena);
    return same;
}
