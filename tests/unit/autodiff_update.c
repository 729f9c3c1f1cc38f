/* What a table of operators cannot show of autodiff: ties, masks under which nothing counts, the optimizers' arithmetic with
 * tied copies and clipping, what is warned of. */
#include "tests/unit/programs.h"

static bool derive(program *p) { return dtm_pass_canonicalize(p->m) && dtm_pass_autodiff(p->m); }

static const dtm_tensor *gradient(dtm_interpretation *i, const char *name) {
    const dtm_tensor *t = i ? dtm_tensors_find(&i->gradients, name, 0) : NULL;
    CHECK(t, "no gradient of %s", name);
    return t;
}

/* Of equals the first, in row-major order of the dimensions as named after `over`, gets all. */
static void test_first_of_equals(void) {
    program p = start();
    report(&p, OVER(&p, DTM_OP_SUM, "S", OVER(&p, DTM_OP_REDUCE_MAX, "T B", weight(&p, "ties", "B S T"))), "loss");
    CHECK(derive(&p) && verified(&p, "ties", "autodiff"), "ties: not derived");
    dtm_interpretation *i = run(p.m, NULL, 1);
    const dtm_tensor *t = gradient(i, "ties");
    for (int64_t e = 0; t && e < t->elements; e++) {
        bool first = e / 15 == 1 && e % 3 == 0; /* all but [B = 0, T = 0] are equal, so T = 0, B = 1 */
        CHECK(t->data[e] == first, "ties: gradient of element %d is %g", (int)e, t->data[e]);
    }
    if (i) dtm_interpretation_destroy(i);
    end(&p);
}

/* Nothing counts: the results are 0 and so are the gradients. */
static void test_nothing_counts(dtm_op_kind kind) {
    program p = start();
    dtm_value a = weight(&p, "a", "B S T");
    dtm_value none = two(&p, DTM_OP_GT, weight(&p, "c", "B S"), number(&p, 3));
    report(&p, OVER(&p, DTM_OP_SUM, "S", OVER(&p, kind, "B T", a, none)), "loss");
    CHECK(derive(&p) && dtm_module_verify(p.m), "nothing counts: not derived");
    dtm_interpretation *i = run(p.m, NULL, 1);
    const dtm_tensor *loss = i ? dtm_tensors_find(&i->reports, "loss", 0) : NULL, *t = gradient(i, "a");
    CHECK(loss && loss->data[0] == 0, "nothing counts: the loss is not 0");
    for (int64_t e = 0; t && e < t->elements; e++) CHECK(t->data[e] == 0, "nothing counts: a gradient is not 0");
    if (i) dtm_interpretation_destroy(i);
    end(&p);
}

/* One step of the formulas of language.md, on plain numbers. */
typedef struct slot {
    double w, m, v;
} slot;

static void step_by_hand(const dtm_train *train, slot *s, double g, double factor, int64_t t, bool decays) {
    double lr = train->peak, keep = decays ? 1 - lr * train->decay : 1;
    g *= factor;
    if (train->optimizer == DTM_SGD) {
        s->m = train->momentum * s->m + g;
        s->w = s->w * keep - lr * s->m;
        return;
    }
    s->m = train->beta1 * s->m + (1 - train->beta1) * g;
    s->v = train->beta2 * s->v + (1 - train->beta2) * g * g;
    double mean = s->m / (1 - pow(train->beta1, (double)t)), square = s->v / (1 - pow(train->beta2, (double)t));
    s->w = s->w * keep - lr * mean / (sqrt(square) + train->eps);
}

/* loss = sum(u * p) + sum over copies of sum(w * p), so each gradient is p; u has one dimension and does not decay. */
static void train_by_hand(dtm_train train) {
    program p = start();
    dtm_value probe = source(&p, DTM_OP_WEIGHT, "probe", type(&p, DTM_F32, "S"), DTM_WEIGHT_FROZEN);
    dtm_value u = weight(&p, "u", "S");
    dtm_value loss = OVER(&p, DTM_OP_SUM, "S", two(&p, DTM_OP_MUL, u, probe));
    weight(&p, "unused", "S");
    begin_repeat(&p, 2);
    dtm_value c = carry(&p, loss), w = weight(&p, "w", "B S");
    dtm_value y = two(&p, DTM_OP_ADD, c, OVER(&p, DTM_OP_SUM, "B S", two(&p, DTM_OP_MUL, w, probe)));
    next(&p, c, y);
    end_repeat(&p);
    report(&p, last(&p, y), "loss");
    train.present = true;
    train.steps = 3;
    p.m->settings.train = train;
    CHECK(derive(&p) && verified(&p, "optimizer", "autodiff"), "optimizer: not derived");
    CHECK(dtm_warning_count(p.context) == 1, "one warning, of the weight that is not used");

    double probes[5], norm = 0;
    for (int i = 0; i < 5; i++) norm += 7 * pow(probes[i] = draw("probe", i), 2); /* in u once, in two copies of w thrice */
    norm = sqrt(norm);
    double factor = train.clip > 0 ? fmin(1, train.clip / norm) : 1;
    dtm_interpretation *i = run(p.m, NULL, 3);
    const dtm_tensor *logged = i ? dtm_tensors_find(&i->reports, "grad_norm", 3) : NULL;
    CHECK(logged && fabs(logged->data[0] - norm) < 1e-12, "optimizer: the norm is %g, not %g", logged ? logged->data[0] : 0,
          norm);
    static const char *names[] = {"u", "outer.0.w", "outer.1.w"};
    for (int k = 0; i && k < 3; k++) {
        const dtm_tensor *t = dtm_tensors_find(&i->weights, names[k], 0);
        CHECK(t, "optimizer: no weight %s", names[k]);
        for (int64_t e = 0; t && e < t->elements; e++) {
            slot s = {draw(names[k], e), 0, 0};
            for (int64_t step = 1; step <= 3; step++) step_by_hand(&train, &s, probes[e % 5], factor, step, k > 0);
            CHECK(fabs(t->data[e] - s.w) < 1e-12, "optimizer: %s[%d] is %.15g, not %.15g", names[k], (int)e, t->data[e], s.w);
        }
    }
    if (i) dtm_interpretation_destroy(i);
    else dtm_diagnostics_print(p.context, stdout, false);
    end(&p);
}

static void test_optimizers(void) {
    dtm_train adamw = {.optimizer = DTM_ADAMW, .peak = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1};
    train_by_hand(adamw);
    adamw.clip = 0.5;
    train_by_hand(adamw);
    adamw.clip = 100;
    train_by_hand(adamw);
    dtm_train sgd = {.optimizer = DTM_SGD, .peak = 0.1, .clip = 1};
    train_by_hand(sgd);
    sgd.momentum = 0.9;
    sgd.decay = 0.01;
    train_by_hand(sgd);
}

static void test_decay_warning(void) {
    program p = start();
    dtm_value x = weight(&p, "x", "B S T"), b = weight(&p, "b", "S T");
    finish(&p, one(&p, DTM_OP_SQUARE, two(&p, DTM_OP_ADD, one(&p, DTM_OP_TANH, x), b)));
    p.m->settings.train = (dtm_train){.present = true, .optimizer = DTM_SGD, .peak = 1, .decay = 0.1, .steps = 1};
    CHECK(derive(&p) && dtm_warning_count(p.context) == 1, "a bias of two dimensions decays with a warning");
    end(&p);
}

static void test_no_loss(void) {
    program p = start();
    report(&p, OVER(&p, DTM_OP_SUM, "B", weight(&p, "a", "B")), "total");
    dtm_module *forward_only = dtm_module_clone(p.m);
    CHECK(dtm_pass_autodiff(forward_only) && dtm_module_verify(forward_only), "without train a loss is not needed");
    p.m->settings.train = (dtm_train){.present = true, .peak = 1, .steps = 1};
    CHECK(!dtm_pass_autodiff(p.m) && dtm_error_count(p.context) == 1, "training without a loss is an error");
    dtm_module_destroy(forward_only);
    end(&p);
}

int main(void) {
    test_first_of_equals();
    test_nothing_counts(DTM_OP_SUM);
    test_nothing_counts(DTM_OP_MEAN);
    test_nothing_counts(DTM_OP_REDUCE_MAX);
    test_optimizers();
    test_decay_warning();
    test_no_loss();
    printf("%d failures\n", failures);
    return failures > 0;
}
