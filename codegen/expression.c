/* Elementwise operators as C expressions. Values of f32 are float, of i32 int32_t, of u8 and bool int. Those that need
 * more than their operands (positions, dropout, cross_entropy_backward) are nest.c's. */
#include "codegen/generator.h"

#include <math.h>
#include <string.h>

const char *dtm_c_type(dtm_dtype dtype) {
    switch (dtype) {
    case DTM_F32: return "float";
    case DTM_I32: return "int32_t";
    case DTM_F16: case DTM_BF16: return "uint16_t";
    default: return "uint8_t";
    }
}

void dtm_c_number(dtm_dtype dtype, double number, dtm_text *out) {
    if (dtype != DTM_F32) {
        dtm_text_printf(out, number < 0 ? "(%lld)" : "%lld", (long long)number);
        return;
    }
    if (isnan(number)) dtm_text_printf(out, "NAN");
    else if (isinf(number)) dtm_text_printf(out, number < 0 ? "(-INFINITY)" : "INFINITY");
    else {
        dtm_text text = {out->arena, NULL, 0, 0};
        dtm_text_number(&text, (double)(float)number);
        dtm_text_append(&text, "", 1);
        bool point = strpbrk(text.data, ".e") != NULL;
        dtm_text_printf(out, number < 0 ? "(%s%sf)" : "%s%sf", text.data, point ? "" : ".0");
    }
}

/* %1 .. %3 are the operands; NULL: none of these. A second column is for integers where it differs. */
static const struct {
    const char *floats, *integers;
} forms[DTM_OP_KINDS] = {
    [DTM_OP_ADD] = {"%1 + %2", NULL},
    [DTM_OP_SUB] = {"%1 - %2", NULL},
    [DTM_OP_MUL] = {"%1 * %2", NULL},
    [DTM_OP_DIV] = {"%1 / %2", "%2 ? %1 / %2 : 0"},
    [DTM_OP_NEG] = {"-%1", NULL},
    [DTM_OP_LT] = {"%1 < %2", NULL},
    [DTM_OP_LE] = {"%1 <= %2", NULL},
    [DTM_OP_GT] = {"%1 > %2", NULL},
    [DTM_OP_GE] = {"%1 >= %2", NULL},
    [DTM_OP_EQ] = {"%1 == %2", NULL},
    [DTM_OP_NE] = {"%1 != %2", NULL},
    [DTM_OP_MINIMUM] = {"%1 < %2 || %1 != %1 ? %1 : %2", "%1 < %2 ? %1 : %2"},
    [DTM_OP_MAXIMUM] = {"%1 > %2 || %1 != %1 ? %1 : %2", "%1 > %2 ? %1 : %2"},
    [DTM_OP_WHERE] = {"%1 ? %2 : %3", NULL},
    [DTM_OP_EXP] = {"dtm_exp(%1)", NULL},
    [DTM_OP_LOG] = {"dtm_log(%1)", NULL},
    [DTM_OP_SQRT] = {"sqrtf(%1)", NULL},
    [DTM_OP_RSQRT] = {"dtm_rsqrt(%1)", NULL},
    [DTM_OP_TANH] = {"dtm_tanh(%1)", NULL},
    [DTM_OP_SIGMOID] = {"dtm_sigmoid(%1)", NULL},
    [DTM_OP_ERF] = {"dtm_erf(%1)", NULL},
    [DTM_OP_RELU] = {"dtm_relu(%1)", "%1 > 0 ? %1 : 0"},
    [DTM_OP_GELU] = {"dtm_gelu(%1)", NULL},
    [DTM_OP_GELU_TANH] = {"dtm_gelu_tanh(%1)", NULL},
    [DTM_OP_SILU] = {"dtm_silu(%1)", NULL},
    [DTM_OP_SQUARE] = {"%1 * %1", NULL},
    [DTM_OP_ABS] = {"fabsf(%1)", "%1 < 0 ? -%1 : %1"},
    [DTM_OP_EXPAND] = {"%1", NULL},
    [DTM_OP_RENAME] = {"%1", NULL},
    [DTM_OP_TANH_BACKWARD] = {"%2 * dtm_tanh_slope(%1)", NULL},
    [DTM_OP_SIGMOID_BACKWARD] = {"%2 * dtm_sigmoid_slope(%1)", NULL},
    [DTM_OP_RELU_BACKWARD] = {"%1 > 0 ? %2 : 0", NULL},
    [DTM_OP_GELU_BACKWARD] = {"%2 * dtm_gelu_slope(%1)", NULL},
    [DTM_OP_GELU_TANH_BACKWARD] = {"%2 * dtm_gelu_tanh_slope(%1)", NULL},
    [DTM_OP_SILU_BACKWARD] = {"%2 * dtm_silu_slope(%1)", NULL},
};

static const char *cast_form(dtm_dtype from, dtm_dtype to) {
    if (to == DTM_BOOL) return "%1 != 0";
    if (to == DTM_F32) return from == DTM_F32 ? "%1" : "(float)%1";
    if (to == DTM_I32) return from == DTM_I32 ? "%1" : "(int32_t)%1";
    return "(uint8_t)%1";
}

bool dtm_expression(const dtm_module *module, dtm_op op, const char *const *operands, dtm_text *out) {
    const dtm_op_data *data = dtm_op_get(module, op);
    if (!data->n_operands || !data->n_results) return false;
    dtm_dtype from = (dtm_dtype)dtm_value_type(module, data->operands[0])->dtype;
    const char *form = forms[data->kind].floats;
    if (from != DTM_F32 && forms[data->kind].integers) form = forms[data->kind].integers;
    if (data->kind == DTM_OP_CAST) form = cast_form(from, (dtm_dtype)dtm_value_type(module, data->results[0])->dtype);
    if (!form) return false;
    for (; *form; form++) {
        if (*form != '%') dtm_text_append(out, form, 1);
        else dtm_text_printf(out, "%s", operands[*++form - '1']);
    }
    return true;
}
