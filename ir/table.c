/* The rows of ir/ops.def as data. */
#include "ir/fault.h"
#include "ir/ir.h"

#include <stdlib.h>
#include <string.h>

const dtm_op_row dtm_op_rows[DTM_OP_KINDS] = {
    {"", "NONE", 0, 0, 0, "", "", ""},
#define OP(kind, name, least, most, results, factors, linear, numbers, flags, gradient, expand)                        \
    {name, #kind, least, most, results, linear, numbers, flags},
#include "ir/ops.def"
#undef OP
};

dtm_attributes dtm_attributes_default(dtm_op_kind kind) {
    dtm_attributes attributes;
    memset(&attributes, 0, sizeof attributes);
    const char *text = dtm_op_rows[kind].numbers;
    for (int i = 0; *text && i < DTM_MAX_NUMBERS; i++) {
        const char *equals = strchr(text, '=');
        char *end;
        attributes.number[i] = strtod(equals + 1, &end);
        text = *end == ' ' ? end + 1 : end;
    }
    return attributes;
}

/* A cast to whole numbers cuts off what terms may have between them. */
static bool is_linear(const dtm_module *module, const dtm_op_data *op) {
    dtm_dtype to = op->attributes.dtype;
    return op->kind != DTM_OP_CAST || dtm_dtype_is_float(to) ||
           to == (dtm_dtype)dtm_value_type(module, op->operands[0])->dtype;
}

size_t dtm_linear_sets(const dtm_module *module, dtm_op op, uint32_t sets[4]) {
    size_t count = 0;
    uint32_t set = 0;
    if (!is_linear(module, dtm_op_get(module, op))) return 0;
    for (const char *c = dtm_op_rows[dtm_op_get(module, op)->kind].linear;; c++) {
        if (*c >= '0' && *c <= '9')
            set |= 1u << (*c - '0');
        else {
            if (set) sets[count++] = set;
            set = 0;
            if (!*c && count == 2 && dtm_fault(12)) sets[count++] = 3;
            if (!*c) return count;
        }
    }
}
