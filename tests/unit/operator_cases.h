/* An example of every operator that computes something, for tests that take each of them in turn. Those that the table
 * lacks are elementwise, and get operands made up (case_of): so a new row of ir/ops.def is tested, or complained of. */
#ifndef DTM_OPERATOR_CASES_H
#define DTM_OPERATOR_CASES_H

#include "ir/ir.h"

#include <string.h>

enum { CASE_OPERANDS = 6 };

/* Operands as "f B S D" (f32; p: positive; i32, bool); results are inferred, or given. Attributes by number of the row. */
typedef struct test_case {
    dtm_op_kind kind;
    const char *operands[CASE_OPERANDS];
    const char *over, *as, *at, *result;
    uint32_t flags;
    double number[2];
    int64_t from, to;
    dtm_dtype dtype; /* of a cast */
} test_case;

static const test_case cases[] = {
    {DTM_OP_ADD, {"f B S D", "f S D"}},
    {DTM_OP_SUB, {"f S", "f B D"}},
    {DTM_OP_MUL, {"f B S D", "f D"}},
    {DTM_OP_EXPAND, {"f B S"}, "D"},
    {DTM_OP_CAST, {"f B S"}, .dtype = DTM_I32},
    {DTM_OP_CAST, {"f B S"}, .dtype = DTM_BF16},
    {DTM_OP_CAST, {"i B S"}, .dtype = DTM_F32},
    {DTM_OP_WHERE, {"b B S", "f B S D", "f D"}},
    {DTM_OP_LOG, {"p B S D"}},
    {DTM_OP_SQRT, {"p B S D"}},
    {DTM_OP_RSQRT, {"p B S D"}},
    {DTM_OP_DIV, {"f B S D", "p S"}},
    {DTM_OP_GELU, {"f B S D"}},
    {DTM_OP_SILU_BACKWARD, {"f B S D", "f S D"}},
    {DTM_OP_DROPOUT, {"f B S D"}, .number = {0.3, 7}},
    {DTM_OP_DOT, {"f B S D", "f D F"}, "D"},
    {DTM_OP_DOT, {"f B S H K", "f H K D"}, "H K"},
    {DTM_OP_DOT, {"f B S D", "f B S F"}, "B S"},
    {DTM_OP_DOT, {"f B S D", "f B F D"}, "D"},
    {DTM_OP_SUM, {"f B S D"}, "B D"},
    {DTM_OP_SUM, {"f B S D", "b B S"}, "B S"},
    {DTM_OP_MEAN, {"f B S D"}, "S D"},
    {DTM_OP_MEAN, {"f B S D", "b B S"}, "S D"},
    {DTM_OP_REDUCE_MAX, {"f B S D"}, "S"},
    {DTM_OP_SOFTMAX, {"f B S D"}, "D"},
    {DTM_OP_LOG_SOFTMAX, {"f B S D"}, "S"},
    {DTM_OP_RMSNORM, {"f B S D", "f D"}, "D", .number = {1e-5}},
    {DTM_OP_LAYERNORM, {"f B S D", "f D", "f D"}, "D", .number = {1e-5}},
    {DTM_OP_RMSNORM_BACKWARD, {"f B S D", "f D", "f B S D"}, "D", .number = {1e-5}},
    {DTM_OP_LAYERNORM_BACKWARD, {"f B S D", "f D", "f B S D"}, "D", .number = {1e-5}},
    {DTM_OP_SOFTMAX_BACKWARD, {"f B S D", "f B S D"}, "D"},
    {DTM_OP_LOG_SOFTMAX_BACKWARD, {"f B S D", "f B S D"}, "D"},
    {DTM_OP_CROSS_ENTROPY, {"f B S V", "i B S"}, "V", .number = {0.1}},
    {DTM_OP_CROSS_ENTROPY_BACKWARD, {"f B S V", "f B S", "i B S", "f B S"}, "V", .number = {0.1}},
    {DTM_OP_ROPE, {"f B S H K"}, "K", .at = "S", .number = {100, 0}},
    {DTM_OP_ROPE, {"f B S H K"}, "K", .at = "S", .flags = DTM_ROPE_INTERLEAVED | DTM_ROPE_INVERSE, .number = {100, 2}},
    {DTM_OP_GATHER, {"f V D", "i B S"}, "V"},
    {DTM_OP_GATHER, {"f B V D", "i B S"}, "V"},
    {DTM_OP_SCATTER, {"i B S", "f B S D"}, "V", .result = "V D"},
    {DTM_OP_ATTENTION, {"f B S H K", "f B S G K", "f B S G K"}, "S K", .flags = DTM_ATTENTION_CAUSAL},
    {DTM_OP_ATTENTION, {"f B S H K", "f B S H K", "f B S H W"}, "S K", .number = {3}},
    {DTM_OP_ATTENTION, {"f B T H K", "f B S G K", "f B S G K"}, "S K", .at = "T", .flags = DTM_ATTENTION_CAUSAL},
    {DTM_OP_ATTENTION, {"f B S H K", "f B S K", "f B S K"}, "S K"},
    {DTM_OP_ATTENTION_BACKWARD,
     {"f B S H K", "f B S G K", "f B S G K", "f B S H K", "f B S H", "f B S H K"},
     "S K",
     .flags = DTM_ATTENTION_CAUSAL},
    {DTM_OP_SPLIT, {"f B S D"}, "D", "D1 D2"},
    {DTM_OP_MERGE, {"f B S H K"}, "H K", "HK"},
    {DTM_OP_RENAME, {"f B S D"}, "S", "S2"},
    {DTM_OP_CONCAT, {"f B S", "f B S D"}, "S D", "SD"},
    {DTM_OP_SLICE, {"f B S D"}, "S", "T", .from = 2, .to = 5},
    {DTM_OP_PAD, {"f B T D"}, "T", "S", .from = 1, .to = 4},
};

enum { LISTED_CASES = sizeof cases / sizeof *cases, ALL_CASES = LISTED_CASES + DTM_OP_KINDS };

static bool computes(dtm_op_kind kind) { return kind >= DTM_OP_ADD && kind <= DTM_OP_PAD; }

/* Case number `index` of ALL_CASES: one of the table, or one made up. False: there is none of that number. */
static bool case_of(int index, test_case *out) {
    if (index < LISTED_CASES) {
        *out = cases[index];
        return true;
    }
    dtm_op_kind kind = (dtm_op_kind)(index - LISTED_CASES);
    for (int i = 0; i < LISTED_CASES; i++)
        if (cases[i].kind == kind) return false;
    *out = (test_case){.kind = kind};
    for (int i = 0; i < dtm_op_rows[kind].min_operands && i < CASE_OPERANDS; i++) out->operands[i] = i ? "f S D" : "f B S D";
    return computes(kind);
}

static const struct {
    const char *name;
    int64_t size;
} sizes[] = {{"B", 3}, {"S", 7}, {"T", 3},  {"D", 6},  {"F", 5},   {"H", 6},  {"G", 3},   {"K", 4},
             {"W", 3}, {"V", 9}, {"D1", 3}, {"D2", 2}, {"HK", 24}, {"S2", 7}, {"SD", 13}, {"SB", 7}};

static uint8_t dims_of(dtm_module *m, const char *text, dtm_dim *out) {
    char copy[64];
    uint8_t n = 0;
    snprintf(copy, sizeof copy, "%s", text ? text : "");
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        dtm_string name = dtm_string_of(m->context, word);
        dtm_dim dim = dtm_dim_find(m, name);
        for (size_t i = 0; !dim && i < sizeof sizes / sizeof *sizes; i++)
            if (!strcmp(sizes[i].name, word)) dim = dtm_dim_add(m, name, sizes[i].size, (dtm_span){0, 0, 0});
        out[n++] = dim;
    }
    return n;
}

static dtm_type type_of(dtm_module *m, const char *text) {
    dtm_dim list[DTM_MAX_RANK];
    uint8_t n = dims_of(m, text + 2, list);
    return dtm_type_make(m, *text == 'i' ? DTM_I32 : *text == 'b' ? DTM_BOOL : DTM_F32, n, list);
}

static dtm_attributes case_attributes(dtm_module *m, const test_case *c) {
    dtm_attributes attributes = dtm_attributes_default(c->kind);
    attributes.n_over = dims_of(m, c->over, attributes.over);
    attributes.n_as = dims_of(m, c->as, attributes.as);
    dtm_dim at_dims[DTM_MAX_RANK];
    if (dims_of(m, c->at, at_dims)) attributes.at = at_dims[0];
    attributes.flags = c->flags;
    for (int i = 0; i < 2; i++)
        if (c->number[i] != 0) attributes.number[i] = c->number[i];
    attributes.from = c->from;
    attributes.to = c->to;
    attributes.dtype = c->dtype;
    return attributes;
}

/* The types of its results, no layout on them. False: E03xx stands in the context. */
static bool case_results(dtm_module *m, const test_case *c, const dtm_value *operands, uint32_t n,
                         const dtm_attributes *attributes, dtm_type types[4]) {
    if (!c->result) return dtm_infer(m, c->kind, operands, n, attributes, (dtm_span){0, 0, 0}, types);
    char text[64];
    snprintf(text, sizeof text, "f %s", c->result);
    types[0] = type_of(m, text);
    return true;
}

#endif
