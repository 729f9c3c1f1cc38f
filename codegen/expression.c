/* Elementwise operators as C expressions. Values of floating point are float, of i32 int32_t, of u8 and bool int. Those that need
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

const char *dtm_c_loaded(dtm_arena *arena, dtm_dtype dtype, const char *element) {
    const char *form = dtype == DTM_BF16 ? "dtm_of_bf16(%s)" : dtype == DTM_F16 ? "dtm_of_f16(%s)" : "%s";
    return dtm_arena_printf(arena, form, element);
}

const char *dtm_c_stored(dtm_arena *arena, dtm_dtype dtype, const char *number) {
    if (dtm_dtype_is_half(dtype)) return dtm_arena_printf(arena, dtype == DTM_BF16 ? "dtm_to_bf16(%s)" : "dtm_to_f16(%s)", number);
    return dtm_arena_printf(arena, "(%s)%s", dtm_c_type(dtype), number);
}

void dtm_c_number(dtm_dtype dtype, double number, dtm_text *out) {
    if (!dtm_dtype_is_float(dtype)) {
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

/* %1 .. %3 are the operands; a second form is for integers where it differs. No form: a cast, whose form is in its types, or
 * lowered elsewhere. There is no default, so that an operator without a line does not compile. */
typedef struct form {
    const char *floats, *integers;
} form;

static form form_of(dtm_op_kind kind) {
    switch (kind) {
    case DTM_OP_ADD: return (form){"%1 + %2", NULL};
    case DTM_OP_SUB: return (form){"%1 - %2", NULL};
    case DTM_OP_MUL: return (form){"%1 * %2", NULL};
    case DTM_OP_DIV: return (form){"%1 / %2", "%2 ? %1 / %2 : 0"};
    case DTM_OP_NEG: return (form){"-%1", NULL};
    case DTM_OP_LT: return (form){"%1 < %2", NULL};
    case DTM_OP_LE: return (form){"%1 <= %2", NULL};
    case DTM_OP_GT: return (form){"%1 > %2", NULL};
    case DTM_OP_GE: return (form){"%1 >= %2", NULL};
    case DTM_OP_EQ: return (form){"%1 == %2", NULL};
    case DTM_OP_NE: return (form){"%1 != %2", NULL};
    case DTM_OP_MINIMUM: return (form){"%1 < %2 || %1 != %1 ? %1 : %2", "%1 < %2 ? %1 : %2"};
    case DTM_OP_MAXIMUM: return (form){"%1 > %2 || %1 != %1 ? %1 : %2", "%1 > %2 ? %1 : %2"};
    case DTM_OP_WHERE: return (form){"%1 ? %2 : %3", NULL};
    case DTM_OP_EXP: return (form){"dtm_exp(%1)", NULL};
    case DTM_OP_LOG: return (form){"dtm_log(%1)", NULL};
    case DTM_OP_SQRT: return (form){"sqrtf(%1)", NULL};
    case DTM_OP_RSQRT: return (form){"dtm_rsqrt(%1)", NULL};
    case DTM_OP_TANH: return (form){"dtm_tanh(%1)", NULL};
    case DTM_OP_SIGMOID: return (form){"dtm_sigmoid(%1)", NULL};
    case DTM_OP_ERF: return (form){"dtm_erf(%1)", NULL};
    case DTM_OP_RELU: return (form){"dtm_relu(%1)", "%1 > 0 ? %1 : 0"};
    case DTM_OP_GELU: return (form){"dtm_gelu(%1)", NULL};
    case DTM_OP_GELU_TANH: return (form){"dtm_gelu_tanh(%1)", NULL};
    case DTM_OP_SILU: return (form){"dtm_silu(%1)", NULL};
    case DTM_OP_SOFTPLUS: return (form){"dtm_softplus(%1)", NULL};
    case DTM_OP_SQUARE: return (form){"%1 * %1", NULL};
    case DTM_OP_ABS: return (form){"fabsf(%1)", "%1 < 0 ? -%1 : %1"};
    case DTM_OP_EXPAND: return (form){"%1", NULL};
    case DTM_OP_RENAME: return (form){"%1", NULL};
    case DTM_OP_TANH_BACKWARD: return (form){"%2 * dtm_tanh_slope(%1)", NULL};
    case DTM_OP_SIGMOID_BACKWARD: return (form){"%2 * dtm_sigmoid_slope(%1)", NULL};
    case DTM_OP_RELU_BACKWARD: return (form){"%1 > 0 ? %2 : 0", NULL};
    case DTM_OP_GELU_BACKWARD: return (form){"%2 * dtm_gelu_slope(%1)", NULL};
    case DTM_OP_GELU_TANH_BACKWARD: return (form){"%2 * dtm_gelu_tanh_slope(%1)", NULL};
    case DTM_OP_SILU_BACKWARD: return (form){"%2 * dtm_silu_slope(%1)", NULL};
    case DTM_OP_NONE: case DTM_OP_INPUT: case DTM_OP_WEIGHT: case DTM_OP_STATE: case DTM_OP_POSITIONS: case DTM_OP_FILL:
    case DTM_OP_LEARNING_RATE: case DTM_OP_BIAS_CORRECTION: case DTM_OP_CAST: case DTM_OP_DROPOUT: case DTM_OP_DOT:
    case DTM_OP_SUM: case DTM_OP_MEAN: case DTM_OP_REDUCE_MAX: case DTM_OP_SOFTMAX: case DTM_OP_LOG_SOFTMAX:
    case DTM_OP_RMSNORM: case DTM_OP_LAYERNORM: case DTM_OP_SOFTMAX_BACKWARD: case DTM_OP_LOG_SOFTMAX_BACKWARD:
    case DTM_OP_RMSNORM_BACKWARD: case DTM_OP_LAYERNORM_BACKWARD: case DTM_OP_CROSS_ENTROPY:
    case DTM_OP_CROSS_ENTROPY_BACKWARD: case DTM_OP_ROPE: case DTM_OP_GATHER: case DTM_OP_SCATTER: case DTM_OP_ATTENTION:
    case DTM_OP_ATTENTION_BACKWARD: case DTM_OP_SPLIT: case DTM_OP_MERGE: case DTM_OP_CONCAT: case DTM_OP_SLICE:
    case DTM_OP_PAD: case DTM_OP_TOP: case DTM_OP_EXPERTS: case DTM_OP_REPEAT: case DTM_OP_FORWARD: case DTM_OP_BACKWARD:
    case DTM_OP_UPDATE: case DTM_OP_MICROBATCH: case DTM_OP_FUSED: case DTM_OP_CARRY: case DTM_OP_LAST:
    case DTM_OP_ACCUMULATE: case DTM_OP_REPORT: case DTM_OP_OUTPUT: case DTM_OP_STORE: case DTM_OP_GRADIENT: case DTM_OP_SEND:
    case DTM_OP_RECEIVE:
    case DTM_OP_RELAYOUT: case DTM_OP_SHARD: case DTM_OP_AS_TERM: case DTM_OP_ALL_REDUCE: case DTM_OP_ALL_GATHER:
    case DTM_OP_REDUCE_SCATTER: case DTM_OP_ALL_TO_ALL: case DTM_OP_PERMUTE: case DTM_OP_KINDS:
        return (form){NULL, NULL};
    }
    return (form){NULL, NULL};
}

static const char *cast_form(dtm_dtype from, dtm_dtype to) {
    if (to == DTM_BOOL) return "%1 != 0";
    if (dtm_dtype_is_float(to)) return dtm_dtype_is_float(from) ? "%1" : "(float)%1";
    if (to == DTM_I32) return from == DTM_I32 ? "%1" : "(int32_t)%1";
    return "(uint8_t)%1";
}

bool dtm_expression(const dtm_module *module, dtm_op op, const char *const *operands, dtm_text *out) {
    const dtm_op_data *data = dtm_op_get(module, op);
    if (!data->n_operands || !data->n_results) return false;
    dtm_dtype from = (dtm_dtype)dtm_value_type(module, data->operands[0])->dtype;
    form known = form_of(data->kind);
    const char *text = !dtm_dtype_is_float(from) && known.integers ? known.integers : known.floats;
    if (data->kind == DTM_OP_CAST) text = cast_form(from, (dtm_dtype)dtm_value_type(module, data->results[0])->dtype);
    if (!text) return false;
    for (; *text; text++) {
        if (*text != '%') dtm_text_append(out, text, 1);
        else dtm_text_printf(out, "%s", operands[*++text - '1']);
    }
    return true;
}
