/* Operators that become kernels of templates (kernels/cuda) where the target is CUDA, as calls.c and move.c make them calls of the
 * library for CPUs. */
#include "codegen/generator.h"

bool dtm_lower_cuda(dtm_generator *g, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(g->module, op);
    switch (data->kind) {
    case DTM_OP_ATTENTION: case DTM_OP_ATTENTION_BACKWARD: case DTM_OP_ROPE: case DTM_OP_GATHER: case DTM_OP_SCATTER:
        dtm_unsupported(g, op, "on a GPU");
        return true;
    default: return false;
    }
}
