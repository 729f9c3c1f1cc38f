/* Operators that become kernels of templates (kernels/cuda) where the target is CUDA, as calls.c and move.c make them calls of the
 * library for CPUs. */
#include "codegen/generator.h"

bool dtm_lower_cuda(dtm_generator *g, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(g->module, op);
    switch (data->kind) {
    case DTM_OP_RENAME: case DTM_OP_SPLIT: case DTM_OP_MERGE:
        if (dtm_is_alias(g->module, op)) return false;
        /* fall through */
    case DTM_OP_ATTENTION: case DTM_OP_ATTENTION_BACKWARD: case DTM_OP_ROPE: case DTM_OP_GATHER: case DTM_OP_SCATTER: case DTM_OP_SLICE:
    case DTM_OP_PAD: case DTM_OP_CONCAT:
        dtm_unsupported(g, op, "on a GPU");
        return true;
    default: return false;
    }
}
