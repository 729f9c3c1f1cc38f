/* Gradients against finite differences, each operator and each operand, in the interpreter's double precision; and that
 * canonicalize and expand leave every value what it was. */
#include "passes/autodiff.h"
#include "tests/unit/programs.h"

/* ---- one operator each ---- */

static dtm_value positive(program *p, dtm_value x) {
    return two(p, DTM_OP_ADD, one(p, DTM_OP_SQUARE, x), number(p, 0.5));
}

#define UNARY(name, kind)                                                                                              \
    static dtm_value name(program *p) { return one(p, kind, weight(p, "a", "B S")); }
UNARY(neg, DTM_OP_NEG)
UNARY(exponential, DTM_OP_EXP)
UNARY(hyperbolic, DTM_OP_TANH)
UNARY(sigmoid, DTM_OP_SIGMOID)
UNARY(error_function, DTM_OP_ERF)
UNARY(relu, DTM_OP_RELU)
UNARY(gelu, DTM_OP_GELU)
UNARY(gelu_tanh, DTM_OP_GELU_TANH)
UNARY(silu, DTM_OP_SILU)
UNARY(softplus, DTM_OP_SOFTPLUS)
UNARY(square, DTM_OP_SQUARE)
UNARY(absolute, DTM_OP_ABS)
#define POSITIVE(name, kind)                                                                                           \
    static dtm_value name(program *p) { return one(p, kind, positive(p, weight(p, "a", "B S"))); }
POSITIVE(logarithm, DTM_OP_LOG)
POSITIVE(root, DTM_OP_SQRT)
POSITIVE(inverse_root, DTM_OP_RSQRT)
/* Each operand lacks a dimension of the other. */
#define BINARY(name, kind)                                                                                             \
    static dtm_value name(program *p) { return two(p, kind, weight(p, "a", "B S"), weight(p, "b", "S T")); }
BINARY(add, DTM_OP_ADD)
BINARY(sub, DTM_OP_SUB)
BINARY(mul, DTM_OP_MUL)
BINARY(minimum, DTM_OP_MINIMUM)
BINARY(maximum, DTM_OP_MAXIMUM)

static dtm_value divide(program *p) {
    return two(p, DTM_OP_DIV, weight(p, "a", "B S"), positive(p, weight(p, "b", "S T")));
}
static dtm_value cast(program *p) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_CAST);
    attributes.dtype = DTM_F16;
    dtm_value half = op(p, DTM_OP_CAST, "", "", &attributes, 1, (dtm_value[]){weight(p, "a", "B S")});
    attributes.dtype = DTM_F32;
    return op(p, DTM_OP_CAST, "", "", &attributes, 1, &half);
}
static dtm_value where(program *p) {
    dtm_value c = two(p, DTM_OP_LT, weight(p, "c", "B"), weight(p, "d", "T"));
    return dtm_build(&p->at, DTM_OP_WHERE, "t", (dtm_value[]){c, weight(p, "a", "B S"), weight(p, "b", "T")}, 3, NULL);
}
static dtm_value dropout(program *p) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_DROPOUT);
    attributes.number[DTM_DROPOUT_P] = 0.4;
    attributes.number[DTM_DROPOUT_SITE] = 3;
    return op(p, DTM_OP_DROPOUT, "", "", &attributes, 1, (dtm_value[]){weight(p, "a", "B S")});
}
/* The gradient is that of a sum: the same everywhere, where the mask is not. */
static dtm_value dropout_of_sum(program *p) { return OVER(p, DTM_OP_SUM, "S", dropout(p)); }
static dtm_value expand(program *p) { return OVER(p, DTM_OP_EXPAND, "S", weight(p, "a", "B")); }

static dtm_value dot(program *p) { return OVER(p, DTM_OP_DOT, "S", weight(p, "a", "B S"), weight(p, "b", "S T")); }
static dtm_value dot_batched(program *p) {
    return OVER(p, DTM_OP_DOT, "S C", weight(p, "a", "A B S C"), weight(p, "b", "C B T S"));
}
static dtm_value dot_vector(program *p) { return OVER(p, DTM_OP_DOT, "S", weight(p, "a", "B S"), weight(p, "b", "S")); }
static dtm_value dot_of_sum(program *p) { return OVER(p, DTM_OP_SUM, "T B", dot_batched(p)); }
static dtm_value dot_of_sum_part(program *p) {
    dtm_value y = OVER(p, DTM_OP_DOT, "S", weight(p, "a", "B S"), weight(p, "b", "S T C"));
    return OVER(p, DTM_OP_SUM, "C", y);
}
static dtm_value sum(program *p) { return OVER(p, DTM_OP_SUM, "B T", weight(p, "a", "B S T")); }
static dtm_value mean(program *p) { return OVER(p, DTM_OP_MEAN, "B T", weight(p, "a", "B S T")); }
static dtm_value reduce_max(program *p) { return OVER(p, DTM_OP_REDUCE_MAX, "B T", weight(p, "a", "B S T")); }
static dtm_value condition(program *p) { return two(p, DTM_OP_LT, weight(p, "c", "B S"), number(p, 0.1)); }
static dtm_value sum_where(program *p) { return OVER(p, DTM_OP_SUM, "B T", weight(p, "a", "B S T"), condition(p)); }
static dtm_value mean_where(program *p) { return OVER(p, DTM_OP_MEAN, "B T", weight(p, "a", "B S T"), condition(p)); }
static dtm_value max_where(program *p) {
    return OVER(p, DTM_OP_REDUCE_MAX, "B T", weight(p, "a", "B S T"), condition(p));
}

static dtm_value softmax(program *p) { return OVER(p, DTM_OP_SOFTMAX, "S", weight(p, "a", "B S T")); }
static dtm_value log_softmax(program *p) { return OVER(p, DTM_OP_LOG_SOFTMAX, "S", weight(p, "a", "B S T")); }
static dtm_value softmax_of_sum(program *p) {
    return OVER(p, DTM_OP_SUM, "T", one(p, DTM_OP_SQUARE, OVER(p, DTM_OP_SUM, "B", softmax(p))));
}
static dtm_value rmsnorm(program *p) {
    return OVER(p, DTM_OP_RMSNORM, "S", weight(p, "a", "B S T"), weight(p, "b", "S"));
}
static dtm_value rmsnorm_of_two(program *p) {
    return OVER(p, DTM_OP_RMSNORM, "S T", weight(p, "a", "B S T"), weight(p, "b", "S T"));
}
static dtm_value layernorm(program *p) {
    return OVER(p, DTM_OP_LAYERNORM, "S", weight(p, "a", "B S T"), weight(p, "b", "S"), weight(p, "c", "S"));
}
static dtm_value layernorm_without_bias(program *p) {
    return OVER(p, DTM_OP_LAYERNORM, "S", weight(p, "a", "B S T"), weight(p, "b", "S"));
}
static dtm_value cross_entropy(program *p) {
    return OVER(p, DTM_OP_CROSS_ENTROPY, "V", weight(p, "a", "B S V"), ids(p, "targets", "B S"));
}
static dtm_value cross_entropy_smooth(program *p) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_CROSS_ENTROPY);
    attributes.number[DTM_CROSS_ENTROPY_SMOOTH] = 0.2;
    dtm_value operands[2] = {weight(p, "a", "V B"), ids(p, "targets", "B S")};
    return op(p, DTM_OP_CROSS_ENTROPY, "V", "", &attributes, 2, operands);
}

static dtm_value turned(program *p, double part, uint32_t flags) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_ROPE);
    attributes.at = dim(p, "S");
    attributes.number[DTM_ROPE_PART] = part;
    attributes.flags = flags;
    return op(p, DTM_OP_ROPE, "K", "", &attributes, 1, (dtm_value[]){weight(p, "a", "B S K")});
}
static dtm_value rope(program *p) { return turned(p, 0, 0); }
static dtm_value rope_interleaved(program *p) { return turned(p, 0, DTM_ROPE_INTERLEAVED); }
static dtm_value rope_part(program *p) { return turned(p, 2, 0); }
static dtm_value rope_of_sum(program *p) { return OVER(p, DTM_OP_SUM, "S", rope(p)); }

static dtm_value gather(program *p) {
    return OVER(p, DTM_OP_GATHER, "V", weight(p, "a", "V T"), ids(p, "rows", "B S"));
}
static dtm_value gather_batched(program *p) {
    return OVER(p, DTM_OP_GATHER, "V", weight(p, "a", "B V T"), ids(p, "rows", "B S"));
}
static dtm_value gather_of_sum(program *p) { return OVER(p, DTM_OP_SUM, "S", gather(p)); }

static dtm_value attend(program *p, const char *q, const char *k, const char *v, const char *at, double window,
                        double scale, bool causal, const char *over) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_ATTENTION);
    if (*at) attributes.at = dim(p, at);
    attributes.number[DTM_ATTENTION_WINDOW] = window;
    attributes.number[DTM_ATTENTION_SCALE] = scale;
    attributes.flags = causal ? DTM_ATTENTION_CAUSAL : 0;
    dtm_value operands[3] = {weight(p, "a", q), weight(p, "b", k), weight(p, "c", v)};
    return op(p, DTM_OP_ATTENTION, over, "", &attributes, 3, operands);
}
static dtm_value attention(program *p) {
    return attend(p, "B S H K", "B S H K", "B S H K", "", 0, 0, true, "S K");
}
static dtm_value attention_grouped(program *p) {
    return attend(p, "B S H K", "B S G K", "B S G W", "", 0, 0.7, true, "S K");
}
static dtm_value attention_one_head(program *p) {
    return attend(p, "B S H K", "B S K", "B S K", "", 0, 0, false, "S K");
}
static dtm_value attention_window(program *p) {
    return attend(p, "B S H K", "B S H K", "B S H K", "", 2, 0, true, "S K");
}
static dtm_value attention_cross(program *p) {
    return attend(p, "B T H K", "B S G K", "B S G K", "T", 0, 0, false, "S K");
}
static dtm_value attention_of_sum(program *p) { return OVER(p, DTM_OP_SUM, "S H", attention_grouped(p)); }

static dtm_value split(program *p) { return AS(p, DTM_OP_SPLIT, "AC", "A C", weight(p, "a", "B AC S")); }
static dtm_value merge(program *p) { return AS(p, DTM_OP_MERGE, "A C", "AC", weight(p, "a", "A B C S")); }
static dtm_value split_of_sum(program *p) { return OVER(p, DTM_OP_SUM, "A", split(p)); }
static dtm_value merge_of_sum(program *p) { return OVER(p, DTM_OP_SUM, "AC", merge(p)); }
static dtm_value rename_dim(program *p) { return AS(p, DTM_OP_RENAME, "B", "T", weight(p, "a", "B S")); }
static dtm_value concat(program *p) {
    return AS(p, DTM_OP_CONCAT, "B C", "BC", weight(p, "a", "S B"), weight(p, "b", "C A"));
}
static dtm_value concat_of_sum(program *p) { return OVER(p, DTM_OP_SUM, "BC", concat(p)); }
static dtm_value sliced(program *p) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_SLICE);
    attributes.from = 2;
    attributes.to = 4;
    return op(p, DTM_OP_SLICE, "S", "R", &attributes, 1, (dtm_value[]){weight(p, "a", "B S")});
}
static dtm_value slice_of_sum(program *p) { return OVER(p, DTM_OP_SUM, "R", sliced(p)); }

/* ---- several together ---- */

static dtm_value scalar(program *p) { return two(p, DTM_OP_MUL, weight(p, "a", ""), weight(p, "b", "")); }
/* The loss passes as a constant through both operands. */
static dtm_value constant_gradient(program *p) {
    return OVER(p, DTM_OP_MEAN, "B S T", two(p, DTM_OP_SUB, weight(p, "a", "B S"), weight(p, "b", "S T")));
}
static dtm_value residual(program *p) {
    dtm_value a = weight(p, "a", "B S"), b = weight(p, "b", "S");
    dtm_value x = two(p, DTM_OP_ADD, a, two(p, DTM_OP_MUL, a, b));
    return two(p, DTM_OP_ADD, x, one(p, DTM_OP_TANH, two(p, DTM_OP_MUL, x, a)));
}
/* Terms after something else: the chain is put in order. */
static dtm_value chain(program *p) {
    dtm_value x = weight(p, "x", "B T"), h = weight(p, "h", "B S");
    dtm_value y = two(p, DTM_OP_ADD, x, OVER(p, DTM_OP_DOT, "S", h, weight(p, "a", "S T")));
    y = two(p, DTM_OP_ADD, y, weight(p, "bias", "T"));
    return two(p, DTM_OP_ADD, y, OVER(p, DTM_OP_DOT, "S", h, weight(p, "b", "S T")));
}
/* One order of dimensions, whatever is added first. */
static dtm_value chain_in_order(program *p) {
    dtm_value x = weight(p, "x", "T B"), h = weight(p, "h", "B S");
    dtm_value y = two(p, DTM_OP_ADD, x, OVER(p, DTM_OP_DOT, "S", h, weight(p, "a", "S T")));
    return two(p, DTM_OP_ADD, y, OVER(p, DTM_OP_DOT, "S", h, weight(p, "b", "S T")));
}
static dtm_value identities(program *p) {
    dtm_value a = weight(p, "a", "B S"), y = two(p, DTM_OP_MUL, a, number(p, 1));
    y = two(p, DTM_OP_SUB, y, two(p, DTM_OP_MUL, number(p, 2), number(p, 0.25)));
    y = two(p, DTM_OP_ADD, two(p, DTM_OP_DIV, y, number(p, 1)), number(p, 0));
    return two(p, DTM_OP_MUL, one(p, DTM_OP_NEG, one(p, DTM_OP_NEG, y)), y);
}
static dtm_value common(program *p) {
    dtm_value a = weight(p, "a", "B S"), b = weight(p, "b", "S");
    dtm_value x = one(p, DTM_OP_TANH, two(p, DTM_OP_MUL, a, b)), y = one(p, DTM_OP_TANH, two(p, DTM_OP_MUL, a, b));
    one(p, DTM_OP_EXP, x);
    return two(p, DTM_OP_MUL, x, y);
}

/* x = tanh(dot(x, w)) + shared, three times; what is tied, shared or its own of a copy. */
static dtm_value layer(program *p, dtm_value x, dtm_value shared, const char *name) {
    dtm_value w = weight(p, name, "S T");
    dtm_value y = one(p, DTM_OP_TANH, OVER(p, DTM_OP_DOT, "S", x, w));
    return two(p, DTM_OP_ADD, two(p, DTM_OP_ADD, OVER(p, DTM_OP_DOT, "T", y, w), two(p, DTM_OP_MUL, x, shared)), x);
}
static dtm_value repeated(program *p) {
    dtm_value x = weight(p, "x", "B S"), shared = weight(p, "shared", "S");
    begin_repeat(p, 3);
    dtm_value c = carry(p, x), y = layer(p, c, shared, "w");
    next(p, c, y);
    end_repeat(p);
    dtm_value z = two(p, DTM_OP_MUL, last(p, y), shared); /* read after the repeat too */
    return two(p, DTM_OP_ADD, z, x);
}
static dtm_value nested(program *p) {
    dtm_value x = weight(p, "x", "B S"), shared = weight(p, "shared", "S");
    begin_repeat(p, 2);
    dtm_value c = carry(p, x), mine = weight(p, "own", "S");
    dtm_value start = two(p, DTM_OP_MUL, c, mine);
    begin_repeat(p, 3);
    dtm_value d = carry(p, start);
    dtm_value y = layer(p, d, shared, "w");
    y = two(p, DTM_OP_ADD, y, two(p, DTM_OP_MUL, mine, c));
    next(p, d, y);
    end_repeat(p);
    dtm_value e = two(p, DTM_OP_MUL, last(p, y), mine);
    next(p, c, e);
    end_repeat(p);
    return last(p, e);
}
/* Carried values that change places, one read after the repeat, and one that only the last copy lets out. */
static dtm_value swapped(program *p) {
    dtm_value x = weight(p, "x", "B"), y = weight(p, "y", "B");
    begin_repeat(p, 3);
    dtm_value a = carry(p, x), b = carry(p, y), w = weight(p, "w", "B");
    dtm_value s = two(p, DTM_OP_MUL, two(p, DTM_OP_ADD, a, one(p, DTM_OP_SQUARE, b)), w);
    next(p, a, b);
    next(p, b, s);
    dtm_value out = two(p, DTM_OP_MUL, a, two(p, DTM_OP_MUL, b, w));
    end_repeat(p);
    return two(p, DTM_OP_ADD, last(p, s), last(p, out));
}
static dtm_value one_next_for_two(program *p) {
    dtm_value x = weight(p, "x", "B"), y = weight(p, "y", "B");
    begin_repeat(p, 2);
    dtm_value a = carry(p, x), b = carry(p, y);
    dtm_value s = two(p, DTM_OP_ADD, two(p, DTM_OP_MUL, a, b), weight(p, "w", "B"));
    next(p, a, s);
    next(p, b, s);
    end_repeat(p);
    return last(p, s);
}
static dtm_value once(program *p) {
    dtm_value x = weight(p, "x", "B S");
    begin_repeat(p, 1);
    dtm_value c = carry(p, x), y = one(p, DTM_OP_SQUARE, two(p, DTM_OP_MUL, c, weight(p, "w", "S")));
    next(p, c, y);
    end_repeat(p);
    return last(p, y);
}
/* Each copy has its own mask, and its backward the same. */
static dtm_value dropout_repeated(program *p) {
    dtm_value x = weight(p, "x", "B S");
    begin_repeat(p, 3);
    dtm_value c = carry(p, x), kept = two(p, DTM_OP_MUL, c, weight(p, "w", "S"));
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_DROPOUT);
    attributes.number[DTM_DROPOUT_P] = 0.3;
    attributes.number[DTM_DROPOUT_SITE] = 1;
    dtm_value y = two(p, DTM_OP_ADD, op(p, DTM_OP_DROPOUT, "", "", &attributes, 1, &kept), one(p, DTM_OP_SQUARE, c));
    next(p, c, y);
    end_repeat(p);
    return last(p, y);
}
/* The gradient that comes in from the copy after lacks a dimension. */
static dtm_value broadcast_carry(program *p) {
    dtm_value x = weight(p, "x", "B S");
    begin_repeat(p, 2);
    dtm_value c = carry(p, x), y = two(p, DTM_OP_ADD, two(p, DTM_OP_MUL, c, weight(p, "w", "S")), weight(p, "u", "B"));
    next(p, c, y);
    end_repeat(p);
    return OVER(p, DTM_OP_MEAN, "S", last(p, y));
}

typedef struct example {
    const char *name;
    dtm_value (*make)(program *);
} example;
#define E(f) {#f, f}
static const example examples[] = {
    E(neg), E(exponential), E(hyperbolic), E(sigmoid), E(error_function), E(relu), E(gelu), E(gelu_tanh), E(silu),
    E(softplus), E(square), E(absolute), E(logarithm), E(root), E(inverse_root), E(add), E(sub), E(mul), E(minimum), E(maximum),
    E(divide), E(cast), E(where), E(dropout), E(dropout_of_sum), E(expand), E(dot), E(dot_batched), E(dot_vector),
    E(dot_of_sum), E(dot_of_sum_part), E(sum), E(mean), E(reduce_max), E(sum_where), E(mean_where), E(max_where),
    E(softmax), E(log_softmax), E(softmax_of_sum), E(rmsnorm), E(rmsnorm_of_two), E(layernorm),
    E(layernorm_without_bias), E(cross_entropy), E(cross_entropy_smooth), E(rope), E(rope_interleaved), E(rope_part),
    E(rope_of_sum), E(gather), E(gather_batched), E(gather_of_sum), E(attention), E(attention_grouped),
    E(attention_one_head), E(attention_window), E(attention_cross), E(attention_of_sum), E(split), E(merge),
    E(split_of_sum), E(merge_of_sum), E(rename_dim), E(concat), E(concat_of_sum), E(sliced), E(slice_of_sum), E(scalar),
    E(constant_gradient), E(residual), E(chain), E(chain_in_order), E(identities), E(common), E(repeated), E(nested),
    E(swapped), E(one_next_for_two), E(once),
    E(dropout_repeated), E(broadcast_carry),
};

/* ---- each example ---- */

static void differ(const char *name, dtm_module *plain, dtm_module *derived) {
    dtm_interpretation *i = run(derived, NULL, 1);
    CHECK(i, "%s: not executed", name);
    if (!i) {
        dtm_diagnostics_print(derived->context, stdout, false);
        print_module(derived);
        return;
    }
    CHECK(i->gradients.count, "%s: no gradient", name);
    double largest = 1e-3;
    for (size_t g = 0; g < i->gradients.count; g++)
        for (int64_t e = 0; e < i->gradients.data[g].elements; e++)
            largest = fmax(largest, fabs(i->gradients.data[g].data[e]));
    for (size_t g = 0; g < i->gradients.count; g++) {
        const dtm_tensor *t = &i->gradients.data[g];
        for (int64_t e = 0; e < t->elements; e++) {
            shift up = {t->name, e, 1e-5}, down = {t->name, e, -1e-5};
            double expected = (loss_of(plain, &up) - loss_of(plain, &down)) / 2e-5;
            bool near = fabs(t->data[e] - expected) < 1e-6 * largest + 1e-8;
            CHECK(near, "%s: gradient of %s[%d] is %.9g, by differences %.9g", name, t->name, (int)e, t->data[e], expected);
            if (!near) {
                print_module(derived);
                dtm_interpretation_destroy(i);
                return;
            }
        }
    }
    dtm_interpretation_destroy(i);
}

static void list_composite(dtm_module *m, dtm_op o, void *state) {
    (void)m;
    dtm_op **at = state;
    *(*at)++ = o;
}

static void expand_all(dtm_module *m) {
    static dtm_op all[4096];
    dtm_op *at = all;
    dtm_walk(m, list_composite, &at);
    const uint32_t *uses = dtm_use_counts(m, m->arena);
    for (dtm_op *o = all; o < at; o++) dtm_expand(m, *o, uses);
}

static bool met[DTM_OP_KINDS];

static void meet(dtm_module *m, dtm_op o, void *state) {
    (void)state;
    met[dtm_op_get(m, o)->kind] = true;
}

/* Every operator that has a gradient is in an example. */
static void test_all_met(void) {
    for (int kind = 1; kind < DTM_OP_KINDS; kind++)
        CHECK(met[kind] || !dtm_gradient_rules[kind], "%s: no example", dtm_op_rows[kind].name);
}

static void test_example(const example *e, bool show) {
    program p = start();
    finish(&p, e->make(&p));
    dtm_walk(p.m, meet, NULL);
    dtm_module *plain = dtm_module_clone(p.m);
    if (verified(&p, e->name, "building") && dtm_pass_canonicalize(p.m) && verified(&p, e->name, "canonicalize")) {
        CHECK(dtm_validate(plain, p.m, "canonicalize", NULL), "%s: canonicalize changes values", e->name);
        dtm_module *canonical = dtm_module_clone(p.m);
        if (dtm_pass_autodiff(p.m) && verified(&p, e->name, "autodiff")) {
            differ(e->name, plain, p.m);
            if (show) print_module(p.m);
            dtm_module *derived = dtm_module_clone(p.m);
            expand_all(p.m);
            if (verified(&p, e->name, "expand"))
                CHECK(dtm_validate(derived, p.m, "expand", NULL), "%s: expand changes values", e->name);
            dtm_module_destroy(derived);
        }
        dtm_module_destroy(canonical);
    }
    if (dtm_error_count(p.context)) dtm_diagnostics_print(p.context, stdout, false);
    dtm_module_destroy(plain);
    end(&p);
}

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++)
        if (argc < 2 || strcmp(argv[1], examples[i].name) == 0) test_example(&examples[i], argc > 1);
    if (argc < 2) test_all_met();
    printf("%d failures\n", failures);
    return failures > 0;
}
