/* Where the blocks of a plan's tensors lie: coordinates of ranks, extents, sizes, boxes. Pure arithmetic on the plan's
 * tables (runtime/plan.h has the formulas); nothing here knows which rank it runs on but by the coordinates it is
 * given, so that a rank can compute the block of any other. */
#ifndef DTM_GEOMETRY_H
#define DTM_GEOMETRY_H

#include "runtime/plan.h"

typedef struct dtm_span {
    int64_t begin, size;
} dtm_span;

/* A block of a tensor: a span of each dimension. */
typedef struct dtm_box {
    int rank;
    dtm_span spans[DTM_PLAN_RANK];
} dtm_box;

/* One coordinate an axis. The time axis' is set to 0: whoever runs microbatches sets it. */
void dtm_coordinates_of(const dtm_plan *plan, int64_t rank, int64_t *coordinates);
/* The axis in time, or -1. */
int dtm_time_axis(const dtm_plan *plan);

dtm_span dtm_extent_span(const dtm_plan *plan, uint32_t extent, const int64_t *coordinates);
bool dtm_extent_changes(const dtm_plan *plan, uint32_t extent); /* with the microbatch */

/* The block of a buffer that the rank at these coordinates holds. */
dtm_box dtm_buffer_box(const dtm_plan *plan, uint32_t buffer, const int64_t *coordinates);
bool dtm_buffer_changes(const dtm_plan *plan, uint32_t buffer); /* its box, with the microbatch */
/* Bit a: axis a splits a dimension of it. */
uint16_t dtm_buffer_axes(const dtm_plan *plan, uint32_t buffer);

dtm_box dtm_box_common(const dtm_box *a, const dtm_box *b);
int64_t dtm_box_elements(const dtm_box *box);
int64_t dtm_plan_dtype_bytes(dtm_plan_dtype dtype);

/* Copies of a loop, those of its parents counted: copy indices are below it. 1 for loop 0. */
int64_t dtm_loop_copies(const dtm_plan *plan, uint32_t loop);

/* The name of a weight's copy: "layer.{layer}.wq" and copy 3 give "layer.3.wq". */
void dtm_weight_name(const dtm_plan *plan, const dtm_plan_weight *weight, int64_t copy, char *name, int64_t size);
int64_t dtm_weight_copies(const dtm_plan *plan, const dtm_plan_weight *weight);
/* Elements of one copy, whole. */
int64_t dtm_weight_elements(const dtm_plan_weight *weight);

#endif
