/* Gradients against finite differences, each operator and each operand, in the interpreter's double precision; then what
 * a table cannot show: repeats, ties, masks, tied weights, the optimizers' arithmetic, and that canonicalize and expand
 * leave every value what it was. A program is built by hand: weights, an operator, and as loss the sum of its result
 * times a fixed tensor, so that no two elements of the result weigh the same. */
#include "passes/autodiff.h"
#include "passes/interpret.h"
#include "passes/passes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            failures++;                                                                                                \
            printf("%s:%d: ", __FILE__, __LINE__);                                                                     \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
        }                                                                                                              \
    } while (0)

/* ---- building programs ---- */

typedef struct program {
    dtm_context *context;
    dtm_module *m;
    dtm_builder at;
    dtm_builder outside[4]; /* where to go on after each open repeat */
    int depth;
} program;

static dtm_dim dim(program *p, const char *name) {
    static const struct {
        const char *name;
        int64_t size;
    } sizes[] = {{"A", 2}, {"B", 3}, {"C", 4}, {"E", 2}, {"S", 5}, {"T", 3}, {"V", 7}, {"H", 4}, {"G", 2}, {"K", 4},
                 {"W", 3}, {"AC", 8}, {"AB", 6}, {"BC", 7}, {"R", 2}, {"N", 6}};
    dtm_string string = dtm_string_of(p->context, name);
    dtm_dim found = dtm_dim_find(p->m, string);
    for (size_t i = 0; !found && i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(sizes[i].name, name) == 0) found = dtm_dim_add(p->m, string, sizes[i].size, (dtm_span){0, 0, 0});
    if (!found) dtm_broken("test", "no dimension %s", name);
    return found;
}

/* "B S D" */
static uint8_t dims(program *p, const char *text, dtm_dim *out) {
    char copy[64];
    uint8_t n = 0;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) out[n++] = dim(p, word);
    return n;
}

static dtm_type type(program *p, dtm_dtype dtype, const char *text) {
    dtm_dim list[DTM_MAX_RANK];
    uint8_t n = dims(p, text, list);
    return dtm_type_make(p->m, dtype, n, list);
}

static dtm_value source(program *p, dtm_op_kind kind, const char *name, dtm_type of, uint32_t flags) {
    dtm_attributes attributes = dtm_attributes_default(kind);
    const char *prefix = p->depth == 2 ? "outer.{outer}.inner.{inner}." : p->depth == 1 ? "outer.{outer}." : "";
    if (kind == DTM_OP_INPUT) prefix = "";
    attributes.name = dtm_string_printf(p->context, "%s%s", prefix, name);
    attributes.flags = flags;
    attributes.init = DTM_INIT_NORMAL;
    attributes.init_a = 0.5;
    return dtm_result(p->m, dtm_build_op(&p->at, kind, NULL, 0, &attributes, &of, 1, name), 0);
}

static dtm_value weight(program *p, const char *name, const char *text) {
    return source(p, DTM_OP_WEIGHT, name, type(p, DTM_F32, text), 0);
}

static dtm_value ids(program *p, const char *name, const char *text) {
    return source(p, DTM_OP_INPUT, name, type(p, DTM_I32, text), 0);
}

static dtm_value one(program *p, dtm_op_kind kind, dtm_value x) { return dtm_build_unary(&p->at, kind, "t", x); }
static dtm_value two(program *p, dtm_op_kind kind, dtm_value x, dtm_value y) {
    return dtm_build_binary(&p->at, kind, "t", x, y);
}
static dtm_value number(program *p, double value) { return dtm_constant(p->m, DTM_F32, value); }

static dtm_value op(program *p, dtm_op_kind kind, const char *over, const char *as, dtm_attributes *given, uint32_t n,
                    const dtm_value *operands) {
    dtm_attributes attributes = given ? *given : dtm_attributes_default(kind);
    if (given) memset(attributes.over, 0, sizeof attributes.over), memset(attributes.as, 0, sizeof attributes.as);
    attributes.n_over = dims(p, over, attributes.over);
    attributes.n_as = dims(p, as, attributes.as);
    return dtm_build(&p->at, kind, "t", operands, n, &attributes);
}
#define OVER(p, kind, over, ...)                                                                                       \
    op(p, kind, over, "", NULL, sizeof((dtm_value[]){__VA_ARGS__}) / sizeof(dtm_value), (dtm_value[]){__VA_ARGS__})
#define AS(p, kind, over, as, ...)                                                                                     \
    op(p, kind, over, as, NULL, sizeof((dtm_value[]){__VA_ARGS__}) / sizeof(dtm_value), (dtm_value[]){__VA_ARGS__})

static void report(program *p, dtm_value value, const char *name) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_REPORT);
    attributes.name = dtm_string_of(p->context, name);
    dtm_build_op(&p->at, DTM_OP_REPORT, &value, 1, &attributes, NULL, 0, "");
}

/* loss = sum(y * probe) */
static void finish(program *p, dtm_value y) {
    dtm_type_data of = *dtm_value_type(p->m, y);
    dtm_value probe = source(p, DTM_OP_WEIGHT, "probe", dtm_value_get(p->m, y)->type, DTM_WEIGHT_FROZEN);
    y = two(p, DTM_OP_MUL, y, probe);
    if (of.rank) y = dtm_build_over(&p->at, DTM_OP_SUM, "loss", &y, 1, of.dims, of.rank);
    report(p, y, "loss");
}

static void begin_repeat(program *p, int64_t copies) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_REPEAT);
    attributes.name = dtm_string_of(p->context, p->depth ? "inner" : "outer");
    attributes.copies = copies;
    dtm_op made = dtm_build_region(&p->at, DTM_OP_REPEAT, &attributes);
    p->outside[p->depth++] = p->at;
    p->at.region = dtm_op_get(p->m, made)->body;
}

static void end_repeat(program *p) { p->at = p->outside[--p->depth]; }

/* The next value is given later. */
static dtm_value carry(program *p, dtm_value first) {
    dtm_value operands[2] = {first, first};
    dtm_type of = dtm_value_get(p->m, first)->type;
    return dtm_result(p->m, dtm_build_op(&p->at, DTM_OP_CARRY, operands, 2, NULL, &of, 1, "c"), 0);
}

static void next(program *p, dtm_value carried, dtm_value value) {
    dtm_op_get(p->m, dtm_value_get(p->m, carried)->def)->operands[1] = value;
}

static dtm_value last(program *p, dtm_value value) {
    dtm_type of = dtm_value_get(p->m, value)->type;
    return dtm_result(p->m, dtm_build_op(&p->at, DTM_OP_LAST, &value, 1, NULL, &of, 1, "last"), 0);
}

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

/* ---- running ---- */

/* One element of one weight moved. */
typedef struct shift {
    const char *name;
    int64_t element;
    double by;
} shift;

/* In [-1, 1), from name and index, with no two elements near enough for a kink between them. */
static double draw(const char *name, int64_t i) {
    uint64_t h = 1469598103934665603u;
    for (const char *c = name; *c; c++) h = (h ^ (uint8_t)*c) * 1099511628211u;
    h = (h + (uint64_t)i + 1) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9u;
    return (double)(h >> 11) / 4503599627370496.0 - 1;
}

static bool provide(void *state, const char *name, int64_t step, int64_t elements, double *data) {
    const shift *moved = state;
    (void)step;
    if (strstr(name, ".m") || strstr(name, ".v")) return false; /* states */
    for (int64_t i = 0; i < elements; i++) {
        if (strcmp(name, "targets") == 0) data[i] = (double)(i * 5 % 9) - 2;
        else if (strcmp(name, "ties") == 0) data[i] = i / 15 > 0 || i % 3 > 0;
        else if (strcmp(name, "rows") == 0) data[i] = (double)(i * 5 % 7);
        else data[i] = draw(name, i) + (moved && strcmp(moved->name, name) == 0 && moved->element == i ? moved->by : 0);
    }
    return true;
}

static dtm_interpretation *run(dtm_module *m, const shift *moved, int64_t steps) {
    dtm_interpret_options options = {.steps = steps, .provide = provide, .provide_state = (void *)moved};
    return dtm_interpret(m, &options);
}

static double loss_of(dtm_module *m, const shift *moved) {
    dtm_interpretation *i = run(m, moved, 1);
    const dtm_tensor *loss = i ? dtm_tensors_find(&i->reports, "loss", 0) : NULL;
    double value = loss ? loss->data[0] : (double)NAN;
    if (i) dtm_interpretation_destroy(i);
    return value;
}

static program start(void) {
    program p = {.context = dtm_context_create()};
    p.m = dtm_module_create(p.context);
    p.m->name = dtm_string_of(p.context, "test");
    p.at = dtm_builder_at_end(p.m, p.m->body);
    return p;
}

static void end(program *p) {
    dtm_module_destroy(p->m);
    dtm_context_destroy(p->context);
}

static void print_module(dtm_module *m) {
    dtm_text text = {m->arena, NULL, 0, 0};
    dtm_print_options options = {0, false};
    dtm_module_print(m, &options, &text);
    printf("%s\n", text.data);
}

static bool verified(program *p, const char *name, const char *pass) {
    bool good = dtm_module_verify(p->m) && dtm_error_count(p->context) == 0;
    CHECK(good, "%s: not well formed after %s", name, pass);
    if (!good) {
        dtm_diagnostics_print(p->context, stdout, false);
        print_module(p->m);
    }
    return good;
}

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

/* ---- what a table cannot show ---- */

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

/* ---- expand where values have layouts ---- */

/* The type with B split over the mesh's axis, or pending there. */
static dtm_type on_ranks(program *p, dtm_type of, bool pending) {
    dtm_type_data data = *dtm_type_get(p->m, of);
    int b = dtm_type_dim_index(&data, dim(p, "B"));
    if (pending) data.sum = 1;
    else if (b >= 0) data.layout[b] = (dtm_dim_layout){1, {{0, 1}}};
    return dtm_type_intern(p->m, &data);
}

static dtm_value split_weight(program *p, const char *name, const char *text) {
    return source(p, DTM_OP_WEIGHT, name, on_ranks(p, type(p, DTM_F32, text), false), 0);
}

/* Of each result of an operator over S: split along B as it is, or a term where it lacks B. */
static void expand_split(dtm_op_kind kind, int n, const char *const *operands, const char *const *results) {
    program p = start();
    p.m->settings.mesh.count = 1;
    p.m->settings.mesh.axes[0] = (dtm_axis_data){dtm_string_of(p.context, "dp"), 2, false, {0, 0, 0}};
    dtm_value values[4];
    for (int i = 0; i < n; i++) {
        char name[] = {(char)('a' + i), 0};
        bool targets = kind == DTM_OP_CROSS_ENTROPY && i == 1;
        dtm_type of = on_ranks(&p, type(&p, targets ? DTM_I32 : DTM_F32, operands[i]), false);
        values[i] = targets ? source(&p, DTM_OP_INPUT, "targets", of, 0) : split_weight(&p, name, operands[i]);
    }
    dtm_attributes attributes = dtm_attributes_default(kind);
    attributes.n_over = dims(&p, kind == DTM_OP_CROSS_ENTROPY ? "V" : "S", attributes.over);
    dtm_type types[4];
    uint32_t n_results = dtm_op_rows[kind].results;
    for (uint32_t i = 0; i < n_results; i++)
        types[i] = on_ranks(&p, type(&p, DTM_F32, results[i]), strcmp(results[i], "S") == 0);
    dtm_op composite = dtm_build_op(&p.at, kind, values, (uint32_t)n, &attributes, types, n_results, "y");
    for (uint32_t i = 0; i < n_results; i++) {
        dtm_value y = dtm_result(p.m, composite, i);
        attributes = dtm_attributes_default(DTM_OP_OUTPUT);
        if (dtm_value_type(p.m, y)->sum) {
            dtm_attributes reduce = dtm_attributes_default(DTM_OP_ALL_REDUCE);
            reduce.axes = 1;
            dtm_type whole = type(&p, DTM_F32, results[i]);
            y = dtm_result(p.m, dtm_build_op(&p.at, DTM_OP_ALL_REDUCE, &y, 1, &reduce, &whole, 1, "whole"), 0);
        }
        attributes.name = dtm_string_printf(p.context, "y%u", i);
        dtm_build_op(&p.at, DTM_OP_OUTPUT, &y, 1, &attributes, NULL, 0, "");
    }
    const char *title = dtm_op_rows[kind].name;
    p.m->after = dtm_string_of(p.context, "partition");
    dtm_module *before = dtm_module_clone(p.m);
    if (verified(&p, title, "building")) {
        CHECK(dtm_expand(p.m, composite, dtm_use_counts(p.m, p.m->arena)), "%s does not expand", title);
        if (verified(&p, title, "expand on ranks"))
            CHECK(dtm_validate(before, p.m, "expand", NULL), "%s: expanding on ranks changes values", title);
    }
    if (dtm_error_count(p.context)) dtm_diagnostics_print(p.context, stdout, false);
    dtm_module_destroy(before);
    end(&p);
}
#define LIST(...) (const char *const[]){__VA_ARGS__}

static void test_expand_on_ranks(void) {
    expand_split(DTM_OP_SOFTMAX, 1, LIST("B S T"), LIST("B S T"));
    expand_split(DTM_OP_LOG_SOFTMAX, 1, LIST("B S T"), LIST("B S T"));
    expand_split(DTM_OP_SOFTMAX_BACKWARD, 2, LIST("B S T", "B S T"), LIST("B S T"));
    expand_split(DTM_OP_LOG_SOFTMAX_BACKWARD, 2, LIST("B S T", "B S T"), LIST("B S T"));
    expand_split(DTM_OP_RMSNORM, 2, LIST("B S T", "S"), LIST("B S T"));
    expand_split(DTM_OP_LAYERNORM, 3, LIST("B S T", "S", "S"), LIST("B S T"));
    expand_split(DTM_OP_RMSNORM_BACKWARD, 3, LIST("B S T", "S", "B S T"), LIST("B S T", "S"));
    expand_split(DTM_OP_LAYERNORM_BACKWARD, 3, LIST("B S T", "S", "B S T"), LIST("B S T", "S", "S"));
    expand_split(DTM_OP_CROSS_ENTROPY, 2, LIST("B S V", "B S"), LIST("B S", "B S"));
}

static void test_rest(void) {
    test_all_met();
    test_expand_on_ranks();
    test_first_of_equals();
    test_nothing_counts(DTM_OP_SUM);
    test_nothing_counts(DTM_OP_MEAN);
    test_nothing_counts(DTM_OP_REDUCE_MAX);
    test_optimizers();
    test_decay_warning();
    test_no_loss();
}

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++)
        if (argc < 2 || strcmp(argv[1], examples[i].name) == 0) test_example(&examples[i], argc > 1);
    if (argc < 2) test_rest();
    printf("%d failures\n", failures);
    return failures > 0;
}
