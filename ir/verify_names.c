/* Paths of weights and states: `named "layer.{layer}.wq"` is one name for each copy of the repeat `layer` that the weight stands
 * in. A copy number of another repeat would stay in the file as it is, braces and all; without that of a repeat around, all of its
 * copies would have one name, and so one tensor of a checkpoint. */
#include "ir/verify.h"

#include <string.h>

static bool is_in_path(const char *path, const char *repeat) {
    size_t length = strlen(repeat);
    for (const char *at = strchr(path, '{'); at; at = strchr(at + 1, '{'))
        if (!strncmp(at + 1, repeat, length) && at[1 + length] == '}') return true;
    return false;
}

static bool is_around(const verifier *v, dtm_op op, const char *repeat) {
    for (dtm_op at = dtm_enclosing(v->module, op, DTM_OP_REPEAT); at; at = dtm_enclosing(v->module, at, DTM_OP_REPEAT))
        if (!strcmp(dtm_string_text(v->module->context, dtm_op_get(v->module, at)->attributes.name), repeat)) return true;
    return false;
}

void verify_path(verifier *v, dtm_op self) {
    const dtm_op_data *op = dtm_op_get(v->module, self);
    const char *path = dtm_string_text(v->module->context, op->attributes.name), *title = verify_title(v, op);
    for (const char *at = strchr(path, '{'), *end; at && (end = strchr(at, '}')); at = strchr(end, '{')) {
        const char *repeat = dtm_arena_printf(v->scratch, "%.*s", (int)(end - at - 1), at + 1);
        if (!is_around(v, self, repeat))
            BREAK(v, op, 509, "%s is named \"%s\", and stands in no repeat `%s`", title, path, repeat);
    }
    for (dtm_op at = dtm_enclosing(v->module, self, DTM_OP_REPEAT); at; at = dtm_enclosing(v->module, at, DTM_OP_REPEAT)) {
        const char *repeat = dtm_string_text(v->module->context, dtm_op_get(v->module, at)->attributes.name);
        if (!is_in_path(path, repeat))
            BREAK(v, op, 509, "%s is named \"%s\", all copies of repeat `%s` alike", title, path, repeat);
    }
}

/* A report or output is known by its name, a weight has one gradient and one value in the next step. */
void verify_once(verifier *v, dtm_op self) {
    const dtm_op_data *op = dtm_op_get(v->module, self);
    const char *kind = dtm_op_rows[op->kind].name;
    if (op->kind == DTM_OP_STORE || op->kind == DTM_OP_GRADIENT) {
        uint8_t bit = op->kind == DTM_OP_STORE ? 1 : 2, *sunk = &v->sunk[op->operands[0]];
        if (*sunk & bit) BREAK(v, op, 216, "a second `%s` of %s", kind, verify_name(v, op->operands[0]));
        *sunk |= bit;
        return;
    }
    for (dtm_op other = 1; other < v->module->n_ops; other++) {
        const dtm_op_data *data = dtm_op_get(v->module, other);
        if (data->kind == op->kind && data->attributes.name == op->attributes.name && v->order[other] && v->order[other] < v->order[self])
            BREAK(v, op, 216, "a second %s `%s`", kind, dtm_string_text(v->module->context, op->attributes.name));
    }
}
