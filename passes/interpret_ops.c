/* Operators on one rank's blocks, one function a kind, taken literally from the language's definition: the table of
 * them. A row of ir/ops.def without one fails to link. */
#include "passes/interpret_nest.h"

bool dtm_interpret_TOP(dtm_call *call) {
    return dtm_call_error(call, "is not executed by this version", 0);
}
bool dtm_interpret_EXPERTS(dtm_call *call) {
    return dtm_call_error(call, "is not executed by this version", 0);
}

/* interpret.c has these: what touches variables, copies or other ranks. */
#define dtm_interpret_INPUT NULL
#define dtm_interpret_WEIGHT NULL
#define dtm_interpret_STATE NULL
#define dtm_interpret_REPEAT NULL
#define dtm_interpret_FORWARD NULL
#define dtm_interpret_BACKWARD NULL
#define dtm_interpret_UPDATE NULL
#define dtm_interpret_MICROBATCH NULL
#define dtm_interpret_FUSED NULL
#define dtm_interpret_CARRY NULL
#define dtm_interpret_LAST NULL
#define dtm_interpret_ACCUMULATE NULL
#define dtm_interpret_REPORT NULL
#define dtm_interpret_OUTPUT NULL
#define dtm_interpret_STORE NULL
#define dtm_interpret_GRADIENT NULL
#define dtm_interpret_SEND NULL
#define dtm_interpret_RECEIVE NULL
#define dtm_interpret_RELAYOUT NULL
#define dtm_interpret_SHARD NULL
#define dtm_interpret_AS_TERM NULL
#define dtm_interpret_ALL_REDUCE NULL
#define dtm_interpret_ALL_GATHER NULL
#define dtm_interpret_REDUCE_SCATTER NULL
#define dtm_interpret_ALL_TO_ALL NULL
#define dtm_interpret_PERMUTE NULL

dtm_interpret_rule *const dtm_interpret_rules[DTM_OP_KINDS] = {
#define OP(kind, ...) [DTM_OP_##kind] = dtm_interpret_##kind,
#include "ir/ops.def"
#undef OP
};
