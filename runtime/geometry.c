#include "runtime/geometry.h"

#include <stdio.h>
#include <string.h>

void dtm_coordinates_of(const dtm_plan *plan, int64_t rank, int64_t *coordinates) {
    for (int a = (int)plan->n_axes - 1; a >= 0; a--) {
        coordinates[a] = 0;
        if (plan->axes[a].time) continue;
        coordinates[a] = rank % plan->axes[a].size;
        rank /= plan->axes[a].size;
    }
}

int dtm_time_axis(const dtm_plan *plan) {
    for (int a = 0; a < (int)plan->n_axes; a++)
        if (plan->axes[a].time) return a;
    return -1;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Part i of p of [0, n), in units of u. */
static dtm_span part(const dtm_plan_axis *axis, int64_t n, int64_t unit, int64_t i) {
    int64_t p = axis->size, units = (n + unit - 1) / unit, begin, end;
    if (axis->time) {
        begin = least(n, i * units / p * unit);
        end = least(n, (i + 1) * units / p * unit);
    } else {
        int64_t each = (units + p - 1) / p * unit;
        begin = least(n, i * each);
        end = least(n, (i + 1) * each);
    }
    return (dtm_span){begin, end - begin};
}

dtm_span dtm_extent_span(const dtm_plan *plan, uint32_t extent, const int64_t *coordinates) {
    const dtm_plan_extent *e = &plan->extents[extent];
    dtm_span span = {0, e->whole};
    for (int s = 0; s < e->count; s++) {
        const dtm_plan_split *split = &e->splits[s];
        dtm_span inner = part(&plan->axes[split->axis], span.size, split->unit, coordinates[split->axis]);
        span = (dtm_span){span.begin + inner.begin, inner.size};
    }
    return span;
}

bool dtm_extent_changes(const dtm_plan *plan, uint32_t extent) {
    const dtm_plan_extent *e = &plan->extents[extent];
    for (int s = 0; s < e->count; s++)
        if (plan->axes[e->splits[s].axis].time) return true;
    return false;
}

dtm_box dtm_buffer_box(const dtm_plan *plan, uint32_t buffer, const int64_t *coordinates) {
    const dtm_plan_buffer *b = &plan->buffers[buffer];
    dtm_box box = {.rank = b->rank};
    for (int d = 0; d < b->rank; d++) box.spans[d] = dtm_extent_span(plan, b->dims[d], coordinates);
    return box;
}

bool dtm_buffer_changes(const dtm_plan *plan, uint32_t buffer) {
    const dtm_plan_buffer *b = &plan->buffers[buffer];
    for (int d = 0; d < b->rank; d++)
        if (dtm_extent_changes(plan, b->dims[d])) return true;
    return false;
}

uint16_t dtm_buffer_axes(const dtm_plan *plan, uint32_t buffer) {
    const dtm_plan_buffer *b = &plan->buffers[buffer];
    uint16_t axes = 0;
    for (int d = 0; d < b->rank; d++)
        for (int s = 0; s < plan->extents[b->dims[d]].count; s++)
            axes |= (uint16_t)(1u << plan->extents[b->dims[d]].splits[s].axis);
    return axes;
}

dtm_box dtm_box_common(const dtm_box *a, const dtm_box *b) {
    dtm_box common = {.rank = a->rank};
    for (int d = 0; d < a->rank; d++) {
        const dtm_span *x = &a->spans[d], *y = &b->spans[d];
        int64_t begin = x->begin > y->begin ? x->begin : y->begin;
        int64_t end = least(x->begin + x->size, y->begin + y->size);
        common.spans[d] = (dtm_span){begin, end > begin ? end - begin : 0};
    }
    return common;
}

int64_t dtm_box_elements(const dtm_box *box) {
    int64_t elements = 1;
    for (int d = 0; d < box->rank; d++) elements *= box->spans[d].size;
    return elements;
}

int64_t dtm_plan_dtype_bytes(dtm_plan_dtype dtype) {
    switch (dtype) {
    case DTM_PLAN_F32:
    case DTM_PLAN_I32:
        return 4;
    case DTM_PLAN_F16:
    case DTM_PLAN_BF16:
        return 2;
    default:
        return 1;
    }
}

int64_t dtm_loop_copies(const dtm_plan *plan, uint32_t loop) {
    int64_t copies = 1;
    for (; loop; loop = plan->loops[loop].parent) copies *= plan->loops[loop].copies;
    return copies;
}

/* ---- weights ---- */

int64_t dtm_weight_copies(const dtm_plan *plan, const dtm_plan_weight *weight) {
    return dtm_loop_copies(plan, plan->buffers[weight->buffer].loop);
}

int64_t dtm_weight_elements(const dtm_plan_weight *weight) {
    int64_t elements = 1;
    for (int d = 0; d < weight->rank; d++) elements *= weight->dims[d].size;
    return elements;
}

/* The number of the loop with this name, of `length` letters, in copy `copy` of `loop`; -1: it is not around it. */
static int64_t number_in(const dtm_plan *plan, uint32_t loop, int64_t copy, const char *name, size_t length) {
    for (; loop; loop = plan->loops[loop].parent) {
        const dtm_plan_loop *l = &plan->loops[loop];
        if (strlen(l->name) == length && strncmp(l->name, name, length) == 0) return l->first + copy % l->copies;
        copy /= l->copies;
    }
    return -1;
}

void dtm_weight_name(const dtm_plan *plan, const dtm_plan_weight *weight, int64_t copy, char *name, int64_t size) {
    int64_t length = 0;
    for (const char *c = weight->path; *c && length + 24 < size; c++) {
        const char *end = *c == '{' ? strchr(c, '}') : NULL;
        int64_t number =
            end ? number_in(plan, plan->buffers[weight->buffer].loop, copy, c + 1, (size_t)(end - c - 1)) : -1;
        if (number >= 0) {
            length += snprintf(name + length, (size_t)(size - length), "%lld", (long long)number);
            c = end;
        } else {
            name[length++] = *c;
        }
    }
    name[length] = 0;
}
