/* What the files of the verifier share: verify.c checks order, shapes, loops and sinks, verify_layouts.c changes of layout,
 * verify_splits.c how operators are split and what they may read of a sum, verify_order.c the order of microbatches,
 * verify_stages.c the parts of a stage, verify_steps.c collectives in steps, verify_storage.c where values lie,
 * verify_places.c that what is kept from call to call lies apart, verify_names.c the paths of weights and what is said once. */
#ifndef DTM_VERIFY_H
#define DTM_VERIFY_H

#include "ir/storage.h"

typedef struct verifier {
    dtm_module *module;
    dtm_arena *scratch;
    uint32_t *order; /* by operator: its place in execution order, from 1; 0: not in the module */
    uint32_t next;
    uint8_t *sunk; /* by value: bit 0: a `store` gives its next value, bit 1: a `gradient` names its gradient */
    bool good;
} verifier;

/* For messages: a value's name, an axis, "tp = 2", "D = 4", a type with its layout, "`y = dot`". */
const char *verify_name(const verifier *v, dtm_value value);
const char *verify_axis(const verifier *v, int axis);
const char *verify_axis_text(const verifier *v, int axis);
const char *verify_dim_text(const verifier *v, dtm_dim dim);
const char *verify_type_text(const verifier *v, dtm_value value);
const char *verify_title(const verifier *v, const dtm_op_data *op);

#define BREAK(v, op, code, ...)                                                                                        \
    do {                                                                                                               \
        (v)->good = false;                                                                                             \
        dtm_error((v)->module->context, (op)->span, code, __VA_ARGS__);                                                \
        return;                                                                                                        \
    } while (0)

void verify_layouts(verifier *v, dtm_op op);
void verify_splits(verifier *v, dtm_op op);
void verify_order(verifier *v, dtm_op loop);
void verify_stages(verifier *v);
void verify_steps(verifier *v, dtm_op op);
void verify_places(verifier *v);
void verify_path(verifier *v, dtm_op op);
void verify_once(verifier *v, dtm_op op);

#endif
