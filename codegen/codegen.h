/* codegen: a module after `memory` becomes a plan (runtime/plan.h) and its kernels, both as C source. plan.c is data
 * alone; kernels.c is compiled once an instruction set with -DDTM_ISA=v1, v3, v4 and the flags of kernels/kernel.h. Both
 * are the same bytes on every run. */
#ifndef DTM_CODEGEN_H
#define DTM_CODEGEN_H

#include "ir/fills.h"

/* Seconds that one run of each operator, collective and fused region of a module takes on the program's machine (passes/cost.h). */
typedef double *dtm_seconds_of(const dtm_module *module, dtm_arena *arena);

/* How a pair of calls, that run these regions, goes by these seconds (ir/fills.h). */
typedef dtm_pair_course dtm_course_of(const dtm_module *module, const double *seconds, const dtm_op *regions, size_t count);

/* What the plan says of time beside what is done. */
typedef struct dtm_predictions {
    dtm_seconds_of *seconds;
    double step; /* seconds of a step of all ranks (passes/step_time.h) */
    dtm_course_of *course; /* of pairs; NULL: the first part begins, and nothing fills before its part comes to it */
} dtm_predictions;

/* `predicted` may be NULL: then the plan says 0 everywhere, and the first part of each pair begins. False after an error, which stands
 * in the context. */
bool dtm_codegen(dtm_module *module, const dtm_predictions *predicted, dtm_text *plan_c, dtm_text *kernels_c);

/* One kernel: CUDA C that includes templates by their names (kernels/cuda/templates.h). */
typedef struct dtm_cuda_source {
    const char *name;
    dtm_text text;
} dtm_cuda_source;

/* The same for NVIDIA GPUs: kernels.c, compiled once, has the kernels' sources with all that they include, and what is computed of
 * sizes on the host. The sources are in the context's arena. */
bool dtm_codegen_cuda(dtm_module *module, const dtm_predictions *predicted, dtm_text *plan_c, dtm_text *kernels_c,
                      dtm_cuda_source **sources, size_t *n_sources);

#endif
