/* Powers of what a copy does to times (max_plus.h). */
#include "passes/max_plus.h"

#include <math.h>
#include <string.h>

dtm_form dtm_form_create(dtm_arena *arena, size_t width) {
    dtm_form form = dtm_arena_alloc(arena, width * sizeof *form);
    for (size_t i = 0; i < width; i++) form[i] = -INFINITY;
    return form;
}

void dtm_form_add(dtm_form form, size_t width, double time) {
    for (size_t i = 0; i < width; i++) form[i] += time;
}

void dtm_form_join(dtm_form form, size_t width, const double *other) {
    for (size_t i = 0; i < width; i++) form[i] = fmax(form[i], other[i]);
}

/* out = by * of: the greatest of sums. Most times depend on few others. */
static void multiply(double *out, const double *by, const double *of, size_t count, size_t width) {
    for (size_t i = 0; i < count * width; i++) out[i] = -INFINITY;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < count; k++) {
            double added = by[i * count + k];
            if (added == -INFINITY) continue;
            for (size_t j = 0; j < width; j++) out[i * width + j] = fmax(out[i * width + j], added + of[k * width + j]);
        }
}

static void swap(double **a, double **b) {
    double *c = *a;
    *a = *b;
    *b = c;
}

void dtm_max_plus_apply(dtm_form *once, size_t count, int64_t copies, dtm_form *state, size_t width) {
    dtm_arena *arena = dtm_arena_create();
    double *power = dtm_arena_alloc(arena, count * count * sizeof *power), *next = dtm_arena_alloc(arena, count * count * sizeof *next);
    double *now = dtm_arena_alloc(arena, count * width * sizeof *now), *then = dtm_arena_alloc(arena, count * width * sizeof *then);
    for (size_t i = 0; i < count; i++) {
        memcpy(power + i * count, once[i], count * sizeof *power);
        memcpy(now + i * width, state[i], width * sizeof *now);
    }
    for (; copies > 0; copies /= 2) {
        if (copies % 2) {
            multiply(then, power, now, count, width);
            swap(&then, &now);
        }
        if (copies == 1) break;
        multiply(next, power, power, count, count);
        swap(&next, &power);
    }
    for (size_t i = 0; i < count; i++) memcpy(state[i], now + i * width, width * sizeof *now);
    dtm_arena_destroy(arena);
}
