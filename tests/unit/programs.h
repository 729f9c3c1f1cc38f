/* Programs built by hand and run by the interpreter, for the tests of autodiff: weights, operators, repeats, and as loss the
 * sum of a result times a fixed tensor, so that no two elements of the result weigh the same. */
#ifndef DTM_TEST_PROGRAMS_H
#define DTM_TEST_PROGRAMS_H

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

static inline dtm_dim dim(program *p, const char *name) {
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
static inline uint8_t dims(program *p, const char *text, dtm_dim *out) {
    char copy[64];
    uint8_t n = 0;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) out[n++] = dim(p, word);
    return n;
}

static inline dtm_type type(program *p, dtm_dtype dtype, const char *text) {
    dtm_dim list[DTM_MAX_RANK];
    uint8_t n = dims(p, text, list);
    return dtm_type_make(p->m, dtype, n, list);
}

static inline dtm_value source(program *p, dtm_op_kind kind, const char *name, dtm_type of, uint32_t flags) {
    dtm_attributes attributes = dtm_attributes_default(kind);
    const char *prefix = p->depth == 2 ? "outer.{outer}.inner.{inner}." : p->depth == 1 ? "outer.{outer}." : "";
    if (kind == DTM_OP_INPUT) prefix = "";
    attributes.name = dtm_string_printf(p->context, "%s%s", prefix, name);
    attributes.flags = flags;
    attributes.init = DTM_INIT_NORMAL;
    attributes.init_a = 0.5;
    return dtm_result(p->m, dtm_build_op(&p->at, kind, NULL, 0, &attributes, &of, 1, name), 0);
}

static inline dtm_value weight(program *p, const char *name, const char *text) {
    return source(p, DTM_OP_WEIGHT, name, type(p, DTM_F32, text), 0);
}

static inline dtm_value ids(program *p, const char *name, const char *text) {
    return source(p, DTM_OP_INPUT, name, type(p, DTM_I32, text), 0);
}

static inline dtm_value one(program *p, dtm_op_kind kind, dtm_value x) { return dtm_build_unary(&p->at, kind, "t", x); }
static inline dtm_value two(program *p, dtm_op_kind kind, dtm_value x, dtm_value y) {
    return dtm_build_binary(&p->at, kind, "t", x, y);
}
static inline dtm_value number(program *p, double value) { return dtm_constant(p->m, DTM_F32, value); }

static inline dtm_value op(program *p, dtm_op_kind kind, const char *over, const char *as, dtm_attributes *given, uint32_t n,
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

static inline void report(program *p, dtm_value value, const char *name) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_REPORT);
    attributes.name = dtm_string_of(p->context, name);
    dtm_build_op(&p->at, DTM_OP_REPORT, &value, 1, &attributes, NULL, 0, "");
}

/* loss = sum(y * probe) */
static inline void finish(program *p, dtm_value y) {
    dtm_type_data of = *dtm_value_type(p->m, y);
    dtm_value probe = source(p, DTM_OP_WEIGHT, "probe", dtm_value_get(p->m, y)->type, DTM_WEIGHT_FROZEN);
    y = two(p, DTM_OP_MUL, y, probe);
    if (of.rank) y = dtm_build_over(&p->at, DTM_OP_SUM, "loss", &y, 1, of.dims, of.rank);
    report(p, y, "loss");
}

static inline void begin_repeat(program *p, int64_t copies) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_REPEAT);
    attributes.name = dtm_string_of(p->context, p->depth ? "inner" : "outer");
    attributes.copies = copies;
    dtm_op made = dtm_build_region(&p->at, DTM_OP_REPEAT, &attributes);
    p->outside[p->depth++] = p->at;
    p->at.region = dtm_op_get(p->m, made)->body;
}

static inline void end_repeat(program *p) { p->at = p->outside[--p->depth]; }

/* The next value is given later. */
static inline dtm_value carry(program *p, dtm_value first) {
    dtm_value operands[2] = {first, first};
    dtm_type of = dtm_value_get(p->m, first)->type;
    return dtm_result(p->m, dtm_build_op(&p->at, DTM_OP_CARRY, operands, 2, NULL, &of, 1, "c"), 0);
}

static inline void next(program *p, dtm_value carried, dtm_value value) {
    dtm_op_get(p->m, dtm_value_get(p->m, carried)->def)->operands[1] = value;
}

static inline dtm_value last(program *p, dtm_value value) {
    dtm_type of = dtm_value_get(p->m, value)->type;
    return dtm_result(p->m, dtm_build_op(&p->at, DTM_OP_LAST, &value, 1, NULL, &of, 1, "last"), 0);
}

/* ---- running ---- */

/* One element of one weight moved. */
typedef struct shift {
    const char *name;
    int64_t element;
    double by;
} shift;

/* In [-1, 1), from name and index, with no two elements near enough for a kink between them. */
static inline double draw(const char *name, int64_t i) {
    uint64_t h = 1469598103934665603u;
    for (const char *c = name; *c; c++) h = (h ^ (uint8_t)*c) * 1099511628211u;
    h = (h + (uint64_t)i + 1) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9u;
    return (double)(h >> 11) / 4503599627370496.0 - 1;
}

static inline bool provide(void *state, const char *name, int64_t step, int64_t elements, double *data) {
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

static inline dtm_interpretation *run(dtm_module *m, const shift *moved, int64_t steps) {
    dtm_interpret_options options = {.steps = steps, .provide = provide, .provide_state = (void *)moved};
    return dtm_interpret(m, &options);
}

static inline double loss_of(dtm_module *m, const shift *moved) {
    dtm_interpretation *i = run(m, moved, 1);
    const dtm_tensor *loss = i ? dtm_tensors_find(&i->reports, "loss", 0) : NULL;
    double value = loss ? loss->data[0] : (double)NAN;
    if (i) dtm_interpretation_destroy(i);
    return value;
}

static inline program start(void) {
    program p = {.context = dtm_context_create()};
    p.m = dtm_module_create(p.context);
    p.m->name = dtm_string_of(p.context, "test");
    p.at = dtm_builder_at_end(p.m, p.m->body);
    return p;
}

static inline void end(program *p) {
    dtm_module_destroy(p->m);
    dtm_context_destroy(p->context);
}

static inline void print_module(dtm_module *m) {
    dtm_text text = {m->arena, NULL, 0, 0};
    dtm_print_options options = {0, false};
    dtm_module_print(m, &options, &text);
    printf("%s\n", text.data);
}

static inline bool verified(program *p, const char *name, const char *pass) {
    bool good = dtm_module_verify(p->m) && dtm_error_count(p->context) == 0;
    CHECK(good, "%s: not well formed after %s", name, pass);
    if (!good) {
        dtm_diagnostics_print(p->context, stdout, false);
        print_module(p->m);
    }
    return good;
}

#endif
