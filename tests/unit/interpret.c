/* What the interpreter promises, law by law, on small modules built by hand: blocks, copies, microbatches, stores; what
 * it must refuse; what validation must find and say. Expected numbers are worked out by hand. */
#include "passes/interpret.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            failures++;                                                                                                \
            printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                                           \
        }                                                                                                              \
    } while (0)

/* ---- building ---- */

typedef struct program {
    dtm_context *context;
    dtm_module *m;
    dtm_builder at;
    dtm_dim n, d; /* N = 10, D = 3 */
} program;

static program begin(int64_t first_axis, int64_t second_axis) {
    program p = {dtm_context_create()};
    p.m = dtm_module_create(p.context);
    p.at = dtm_builder_at_end(p.m, p.m->body);
    p.n = dtm_dim_add(p.m, dtm_string_of(p.context, "N"), 10, (dtm_span){0, 0, 0});
    p.d = dtm_dim_add(p.m, dtm_string_of(p.context, "D"), 3, (dtm_span){0, 0, 0});
    dtm_mesh *mesh = &p.m->settings.mesh;
    mesh->axes[0] = (dtm_axis_data){.name = dtm_string_of(p.context, "dp"), .size = first_axis};
    mesh->axes[1] = (dtm_axis_data){.name = dtm_string_of(p.context, "tp"), .size = second_axis};
    mesh->count = second_axis ? 2 : first_axis ? 1 : 0;
    return p;
}

static void end(program *p) {
    dtm_module_destroy(p->m);
    dtm_context_destroy(p->context);
}

/* f32[N split over the axes in the mask, D] pending on `sum` */
static dtm_type type_of(program *p, uint16_t split, uint32_t unit, uint16_t sum) {
    dtm_type_data type = {.dtype = DTM_F32, .rank = 2, .dims = {p->n, p->d}, .sum = sum};
    for (uint8_t a = 0; a < 3; a++)
        if (split >> a & 1) type.layout[0].splits[type.layout[0].count++] = (dtm_split){a, unit};
    return dtm_type_intern(p->m, &type);
}

static dtm_value make(program *p, dtm_op_kind kind, const char *name, dtm_type type, uint16_t axes, dtm_value a,
                      dtm_value b) {
    dtm_value operands[2] = {a, b};
    dtm_attributes attributes = dtm_attributes_default(kind);
    attributes.axes = axes;
    attributes.name = dtm_string_of(p->context, name);
    attributes.init = DTM_INIT_ONES;
    uint32_t n_results = type != 0;
    dtm_op op =
        dtm_build_op(&p->at, kind, operands, (a != 0) + (b != 0), &attributes, type ? &type : NULL, n_results, name);
    return n_results ? dtm_result(p->m, op, 0) : 0;
}

static dtm_value add(program *p, const char *name, dtm_value a, double number) {
    return make(p, DTM_OP_ADD, name, dtm_value_get(p->m, a)->type, 0, a, dtm_constant(p->m, DTM_F32, number));
}

static dtm_interpretation *run(program *p, int64_t steps) {
    return dtm_interpret(p->m, &(dtm_interpret_options){.steps = steps, .seed = 5});
}

/* Whether the run fails with a message that has the text in it. */
static bool refused(program *p, const char *text) {
    dtm_interpretation *done = run(p, 1);
    char buffer[4096] = {0};
    FILE *out = fmemopen(buffer, sizeof buffer - 1, "w");
    dtm_diagnostics_print(p->context, out, false);
    fclose(out);
    bool good = !done && strstr(buffer, text);
    if (!good) printf("expected `%s`, got: %s\n", text, buffer);
    dtm_interpretation_destroy(done);
    return good;
}

static double element(const dtm_tensors *list, const char *name, int64_t step, int64_t index) {
    const dtm_tensor *tensor = dtm_tensors_find(list, name, step);
    return tensor ? tensor->data[index] : NAN;
}

/* ---- blocks ---- */

/* Each rank writes the largest element of its block all over it; where the whole then changes, a block begins. */
static void check_blocks(int64_t dp, int64_t tp, uint32_t unit, const char *expected) {
    program p = begin(dp, tp);
    uint16_t axes = tp ? 3 : 1;
    dtm_type whole = type_of(&p, 0, 1, 0), blocked = type_of(&p, axes, unit, 0);
    dtm_value x = make(&p, DTM_OP_INPUT, "x", whole, 0, 0, 0);
    dtm_value mine = make(&p, DTM_OP_RELAYOUT, "mine", blocked, 0, x, 0);
    dtm_type_data scalar = {.dtype = DTM_F32, .max = axes};
    dtm_type largest = dtm_type_intern(p.m, &scalar);
    dtm_attributes over_all = dtm_attributes_default(DTM_OP_REDUCE_MAX);
    over_all.n_over = 2;
    over_all.over[0] = p.n;
    over_all.over[1] = p.d;
    dtm_value top = dtm_result(p.m, dtm_build_op(&p.at, DTM_OP_REDUCE_MAX, &mine, 1, &over_all, &largest, 1, "top"), 0);
    dtm_value zero = make(&p, DTM_OP_MUL, "zero", blocked, 0, mine, dtm_constant(p.m, DTM_F32, 0));
    dtm_value y = make(&p, DTM_OP_ADD, "y", blocked, 0, zero, top);
    make(&p, DTM_OP_OUTPUT, "y", 0, 0, y, 0);
    dtm_interpretation *done = run(&p, 1);
    CHECK(done != NULL);
    char text[16] = {0};
    for (int i = 0, block = 0; done && i < 10; i++) {
        const dtm_tensor *tensor = &done->outputs.data[0];
        if (i && tensor->data[3 * i] != tensor->data[3 * i - 3]) block++;
        text[i] = (char)('a' + block);
    }
    CHECK(!strcmp(text, expected));
    dtm_interpretation_destroy(done);
    end(&p);
}

static void test_blocks(void) {
    check_blocks(4, 0, 1, "aaabbbcccd");
    check_blocks(2, 0, 1, "aaaaabbbbb");
    check_blocks(2, 0, 4, "aaaaaaaabb");
    check_blocks(3, 0, 4, "aaaabbbbcc");
    check_blocks(6, 0, 1, "aabbccddee"); /* the last rank has none */
    check_blocks(2, 2, 1, "aaabbcccdd"); /* block within block */
}

/* ---- steps, copies ---- */

static void test_store(void) {
    program p = begin(0, 0);
    dtm_type type = type_of(&p, 0, 1, 0);
    dtm_value w = make(&p, DTM_OP_WEIGHT, "w", type, 0, 0, 0), v = make(&p, DTM_OP_STATE, "v", type, 0, 0, 0);
    make(&p, DTM_OP_STORE, "", 0, 0, w, add(&p, "w.new", v, 1)); /* w, v = v + 1, w: both from before the step */
    make(&p, DTM_OP_STORE, "", 0, 0, v, w);
    make(&p, DTM_OP_OUTPUT, "w", 0, 0, w, 0);
    dtm_interpretation *done = run(&p, 3);
    CHECK(done && element(&done->outputs, "w", 1, 0) == 1 && element(&done->outputs, "w", 2, 0) == 2 &&
          element(&done->outputs, "w", 3, 0) == 2);
    CHECK(done && element(&done->weights, "w", 0, 0) == 3 && element(&done->states, "v", 0, 0) == 2);
    dtm_interpretation_destroy(done);
    end(&p);
}

static dtm_op open_loop(program *p, dtm_op_kind kind, int64_t copies, uint32_t flags) {
    dtm_attributes attributes = dtm_attributes_default(kind);
    attributes.name = dtm_string_of(p->context, kind == DTM_OP_MICROBATCH ? "m" : "layer");
    attributes.copies = copies;
    attributes.flags = flags;
    dtm_op op = dtm_build_region(&p->at, kind, &attributes);
    p->at.region = dtm_op_get(p->m, op)->body;
    return op;
}

static void close_loop(program *p) {
    p->at.region = p->m->body;
}

/* forward: h_i = 2 h_(i-1) + w_i; reversed: g_i = g_(i+1) + h_i, which sees the h of its own copy. */
static void test_copies(void) {
    program p = begin(2, 0);
    dtm_type type = type_of(&p, 1, 1, 0), whole = type_of(&p, 0, 1, 0);
    dtm_value x = make(&p, DTM_OP_INPUT, "x", whole, 0, 0, 0);
    dtm_value zero = make(&p, DTM_OP_SHARD, "zero", type, 1,
                          make(&p, DTM_OP_MUL, "z", whole, 0, x, dtm_constant(p.m, DTM_F32, 0)), 0);
    open_loop(&p, DTM_OP_REPEAT, 3, 0);
    dtm_value w = make(&p, DTM_OP_WEIGHT, "layer.{layer}.w", type, 0, 0, 0);
    dtm_value c = make(&p, DTM_OP_CARRY, "c", type, 0, zero, zero);
    dtm_value h = make(&p, DTM_OP_ADD, "h", type, 0, make(&p, DTM_OP_ADD, "cc", type, 0, c, c), w);
    dtm_op_get(p.m, dtm_value_get(p.m, c)->def)->operands[1] = h;
    close_loop(&p);
    open_loop(&p, DTM_OP_REPEAT, 3, DTM_REPEAT_REVERSED);
    dtm_value e = make(&p, DTM_OP_CARRY, "e", type, 0, zero, zero);
    dtm_value g = make(&p, DTM_OP_ADD, "g", type, 0, e, h);
    dtm_op_get(p.m, dtm_value_get(p.m, e)->def)->operands[1] = g;
    make(&p, DTM_OP_GRADIENT, "", 0, 0, w, g);
    close_loop(&p);
    make(&p, DTM_OP_OUTPUT, "h", 0, 0, make(&p, DTM_OP_LAST, "h.last", type, 0, h, 0), 0);
    make(&p, DTM_OP_OUTPUT, "g", 0, 0, make(&p, DTM_OP_LAST, "g.last", type, 0, g, 0), 0);
    dtm_interpretation *done = dtm_interpret(p.m, &(dtm_interpret_options){.keep_step = 1});
    CHECK(done && element(&done->outputs, "h", 1, 0) == 7 && element(&done->outputs, "g", 1, 29) == 11);
    CHECK(done && element(&done->gradients, "layer.2.w", 1, 3) == 7 &&
          element(&done->gradients, "layer.1.w", 1, 3) == 10);
    CHECK(done && element(&done->values, "h[1]", 1, 0) == 3 && done->weights.count == 3);
    dtm_interpretation_destroy(done);
    end(&p);
}

/* Five microbatches of ten rows: two each; the sum of rows is accumulated. */
static void test_microbatch(void) {
    program p = begin(2, 0);
    p.m->settings.mesh.axes[1] = (dtm_axis_data){.name = dtm_string_of(p.context, "m"), .size = 4, .time = true};
    p.m->settings.mesh.count = 2;
    dtm_type blocked = type_of(&p, 3, 1, 0);
    dtm_type_data row = {.dtype = DTM_F32, .rank = 1, .dims = {p.d}, .sum = 3};
    dtm_type term = dtm_type_intern(p.m, &row);
    row.sum = 1;
    dtm_type summed = dtm_type_intern(p.m, &row);
    row.sum = 0;
    dtm_type whole = dtm_type_intern(p.m, &row);
    open_loop(&p, DTM_OP_MICROBATCH, 4, 0);
    dtm_value x = make(&p, DTM_OP_INPUT, "x", blocked, 0, 0, 0);
    dtm_attributes over = dtm_attributes_default(DTM_OP_SUM);
    over.n_over = 1;
    over.over[0] = p.n;
    dtm_value t = dtm_result(p.m, dtm_build_op(&p.at, DTM_OP_SUM, &x, 1, &over, &term, 1, "t"), 0);
    dtm_value sum = make(&p, DTM_OP_ACCUMULATE, "sum", summed, 0, t, 0);
    close_loop(&p);
    make(&p, DTM_OP_OUTPUT, "y", 0, 0, make(&p, DTM_OP_ALL_REDUCE, "y", whole, 1, sum, 0), 0);
    dtm_interpretation *done = dtm_interpret(p.m, &(dtm_interpret_options){.keep_step = 1});
    const dtm_tensor *input = done ? dtm_tensors_find(&done->values, "x", 0) : NULL;
    double expected = 0;
    for (int i = 0; input && i < 10; i++) expected += input->data[3 * i];
    CHECK(done && fabs(element(&done->outputs, "y", 1, 0) - expected) < 1e-12);
    CHECK(done && fabs(element(&done->values, "t", 1, 0) - expected) < 1e-12);
    dtm_interpretation_destroy(done);
    end(&p);
}

/* ---- what it refuses ---- */

static void test_refused(void) {
    program p = begin(2, 2);
    dtm_type whole = type_of(&p, 0, 1, 0), by_dp = type_of(&p, 1, 1, 0), by_tp = type_of(&p, 2, 1, 0);
    dtm_value x = make(&p, DTM_OP_INPUT, "x", whole, 0, 0, 0);
    dtm_value a = make(&p, DTM_OP_RELAYOUT, "a", by_dp, 0, x, 0), b = make(&p, DTM_OP_RELAYOUT, "b", by_tp, 0, x, 0);
    make(&p, DTM_OP_ADD, "c", by_dp, 0, a, b);
    CHECK(refused(&p, "reads outside its block"));
    end(&p);

    p = begin(2, 2); /* a term that is taken for the value: the ranks differ */
    whole = type_of(&p, 0, 1, 0);
    x = make(&p, DTM_OP_INPUT, "x", whole, 0, 0, 0);
    a = make(&p, DTM_OP_RELAYOUT, "a", type_of(&p, 0, 1, 2), 0, x, 0);
    make(&p, DTM_OP_NEG, "b", whole, 0, a, 0);
    CHECK(refused(&p, "`b` should be held alike, but at element 0 of the block, rank 1 (dp = 0, tp = 1)"));
    end(&p);

    p = begin(2, 2); /* reduced over the wrong axis */
    whole = type_of(&p, 0, 1, 0);
    x = make(&p, DTM_OP_INPUT, "x", whole, 0, 0, 0);
    a = make(&p, DTM_OP_RELAYOUT, "a", type_of(&p, 0, 1, 2), 0, x, 0);
    make(&p, DTM_OP_ALL_REDUCE, "b", whole, 1, a, 0);
    CHECK(refused(&p, "`all_reduce` of `a` cannot give the layout of `b`"));
    end(&p);

    p = begin(2, 2); /* the major axis cannot be gathered alone */
    x = make(&p, DTM_OP_INPUT, "x", type_of(&p, 0, 1, 0), 0, 0, 0);
    a = make(&p, DTM_OP_RELAYOUT, "a", type_of(&p, 3, 1, 0), 0, x, 0);
    make(&p, DTM_OP_ALL_GATHER, "b", type_of(&p, 2, 1, 0), 1, a, 0);
    CHECK(refused(&p, "`all_gather` of `a` cannot give"));
    end(&p);

    p = begin(2, 2);
    open_loop(&p, DTM_OP_REPEAT, 2, 0);
    x = make(&p, DTM_OP_INPUT, "x", type_of(&p, 0, 1, 0), 0, 0, 0);
    close_loop(&p);
    add(&p, "y", x, 1);
    CHECK(refused(&p, "`x` is read outside its repeat"));
    end(&p);

    p = begin(2, 2);
    x = make(&p, DTM_OP_INPUT, "x", type_of(&p, 0, 1, 0), 0, 0, 0);
    CHECK(!dtm_interpret(p.m, &(dtm_interpret_options){.max_elements = 100}));
    CHECK(dtm_error_count(p.context) == 1);
    end(&p);
}

/* ---- storage ---- */

/* x at 0, y at `at`, read both: breaks if y lies on x. */
static bool stored_apart(int64_t at, bool in_place) {
    program p = begin(2, 0);
    dtm_type type = type_of(&p, 1, 1, 0); /* 15 elements, 60 bytes */
    dtm_value x = make(&p, DTM_OP_INPUT, "x", type, 0, 0, 0);
    dtm_value y = add(&p, "y", x, 1);
    dtm_value z = make(&p, DTM_OP_ADD, "z", type, 0, y, in_place ? y : x);
    dtm_value_get(p.m, x)->storage = (dtm_storage){.offset = 0, .modulus = 1};
    dtm_value_get(p.m, y)->storage = (dtm_storage){.offset = at, .modulus = 1};
    dtm_value_get(p.m, z)->storage = (dtm_storage){.offset = 128, .modulus = 1};
    p.m->arena_bytes = 192;
    dtm_interpretation *done = dtm_interpret(p.m, &(dtm_interpret_options){.check_storage = true, .steps = 2});
    bool good = done != NULL;
    dtm_interpretation_destroy(done);
    end(&p);
    return good;
}

static void test_storage(void) {
    CHECK(stored_apart(64, false));
    CHECK(stored_apart(60, false));
    CHECK(!stored_apart(56, false)); /* y's first byte is x's last */
    CHECK(!stored_apart(0, false));
    CHECK(stored_apart(0, true)); /* in place: x is not read again */
}

/* ---- validation ---- */

static program sums(double number, bool nan) {
    program p = begin(2, 0);
    dtm_type type = type_of(&p, 1, 1, 0);
    dtm_value x = make(&p, DTM_OP_INPUT, "x", type, 0, 0, 0);
    dtm_value h = add(&p, "h", x, number);
    dtm_value y = make(&p, DTM_OP_MUL, "y", type, 0, h, h);
    if (nan) y = make(&p, DTM_OP_MUL, "n", type, 0, y, dtm_constant(p.m, DTM_F32, NAN));
    make(&p, DTM_OP_OUTPUT, "y", 0, 0, y, 0);
    return p;
}

/* x, added to a large number and taken from it again, times `factor`. `halves`: the number comes in two parts. */
static program cancelled(bool halves, double factor) {
    program p = begin(2, 0);
    dtm_type type = type_of(&p, 1, 1, 0);
    dtm_value x = make(&p, DTM_OP_INPUT, "x", type, 0, 0, 0);
    dtm_value large = add(&p, "large", x, halves ? 123456789. * 0.37 : 123456789.);
    if (halves) large = add(&p, "other", large, 123456789. * 0.63);
    dtm_value y = make(&p, DTM_OP_MUL, "y", type, 0, add(&p, "rest", large, -123456789.), dtm_constant(p.m, DTM_F32, factor));
    make(&p, DTM_OP_OUTPUT, "y", 0, 0, y, 0);
    return p;
}

static void test_conditioned(void) {
    program a = cancelled(false, 1), b = cancelled(true, 1), c = cancelled(true, 1 + 8e-7);
    CHECK(!dtm_validate(a.m, b.m, "exactly", &(dtm_validate_options){.tolerance = 1e-9}));
    CHECK(dtm_validate(a.m, b.m, "in halves", NULL));
    CHECK(!dtm_validate(a.m, c.m, "other", NULL));
    end(&a);
    end(&b);
    end(&c);
}

static void test_validate(void) {
    program a = sums(1, false), b = sums(1.0000001, false), n = sums(1, true);
    CHECK(dtm_validate(a.m, a.m, "nothing", NULL));
    CHECK(!dtm_validate(a.m, b.m, "shift", NULL));
    CHECK(dtm_validate(a.m, b.m, "shift", &(dtm_validate_options){.tolerance = 1e-6}));
    CHECK(!dtm_validate(a.m, n.m, "spoil", &(dtm_validate_options){.tolerance = 1e9}));
    CHECK(!dtm_validate(n.m, n.m, "spoil", &(dtm_validate_options){.tolerance = 1e9}));
    char buffer[4096] = {0};
    FILE *out = fmemopen(buffer, sizeof buffer - 1, "w");
    dtm_diagnostics_print(b.context, out, false);
    fclose(out);
    CHECK(strstr(buffer, "the pass `shift` changes the output `y` of step 1 by"));
    CHECK(strstr(buffer, "`h` is the first value of both that differs: at [N = "));
    end(&a);
    end(&b);
    end(&n);
}

int main(void) {
    test_blocks();
    test_store();
    test_copies();
    test_microbatch();
    test_refused();
    test_storage();
    test_validate();
    test_conditioned();
    printf("%d failures\n", failures);
    return failures != 0;
}
