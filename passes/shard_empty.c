/* Splits that leave ranks, or microbatches, without an element: allowed, and right, but these do nothing. Told once for an axis and a
 * dimension, of the largest block that axes before it leave: what has none of that has none of any. */
#include "passes/shard.h"

#include <string.h>

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* How many of the parts that an axis makes of n elements have some, and how many elements the largest has (ir.h). */
static int64_t parts_with_some(const dtm_axis_data *axis, int64_t n, uint32_t unit, int64_t *most) {
    int64_t units = ceil_div(n, unit), block = ceil_div(units, axis->size);
    *most = block * unit < n ? block * unit : n;
    if (axis->time) return units < axis->size ? units : axis->size;
    return block ? ceil_div(units, block) : 0;
}

static void tell(const shard *s, int axis, dtm_dim dim, int64_t n, const char *outer, int64_t some) {
    const dtm_module *m = s->module;
    const dtm_axis_data *a = &m->settings.mesh.axes[axis];
    const char *name = dtm_string_text(m->context, a->name), *of = dtm_dim_name(m, dim);
    const char *what = outer ? dtm_arena_printf(s->arena, "the %lld of %s that %s", (long long)n, of, outer)
                             : dtm_arena_printf(s->arena, "%s = %lld", of, (long long)n);
    long long parts = a->size, none = a->size - some;
    if (a->time) {
        dtm_warning(m->context, m->settings.microbatches_span, 812, "there are %lld microbatches for %s: %lld of them %s empty", parts, what,
                    none, none == 1 ? "is" : "are");
        dtm_help(m->context, "%lld microbatch%s, or a larger %s", (long long)some, some == 1 ? "" : "es", of);
        return;
    }
    dtm_span span = s->rules[axis] ? s->rules[axis]->span : a->span;
    dtm_warning(m->context, span, 812, "%s has %lld ranks for %s: %lld of them %s none of it", name, parts, what, none,
                none == 1 ? "has" : "have");
    dtm_help(m->context, "%s = %lld, with the other ranks on an axis that splits another dimension, or a larger %s", name, (long long)some,
             of);
}

/* Who has the block that axes before one leave: "a rank of dp.tp", "a microbatch"; NULL: there are none before. */
static const char *outer_block(const shard *s, const dtm_dim_layout *layout, int count) {
    dtm_text text = {.arena = s->arena};
    bool time = false;
    for (int i = 0; i < count; i++) {
        const dtm_axis_data *axis = &s->module->settings.mesh.axes[layout->splits[i].axis];
        time |= axis->time;
        if (!axis->time)
            dtm_text_printf(&text, "%s%s", text.length ? "." : "a rank of ", dtm_string_text(s->module->context, axis->name));
    }
    if (!count) return NULL;
    if (!text.length) return "a microbatch has";
    dtm_text_printf(&text, " has%s", time ? " in a microbatch" : "");
    return text.data;
}

void shard_warn_empty(const shard *s) {
    const dtm_module *m = s->module;
    bool *told = dtm_arena_alloc(s->arena, m->n_dims * DTM_MAX_AXES);
    for (size_t i = 0; i < s->n_order; i++) {
        const dtm_op_data *op = &m->ops[s->order[i]];
        if (s->ops[s->order[i]].phase == PHASE_UPDATE) continue;
        for (uint32_t r = 0; r < op->n_results; r++) {
            const dtm_type_data *type = dtm_value_type(m, op->results[r]);
            for (int d = 0; d < type->rank; d++) {
                int64_t n = m->dims[type->dims[d]].size, most;
                for (int k = 0; k < type->layout[d].count; k++, n = most) {
                    dtm_split split = type->layout[d].splits[k];
                    const dtm_axis_data *axis = &m->settings.mesh.axes[split.axis];
                    int64_t some = parts_with_some(axis, n, split.unit, &most);
                    bool *known = &told[(size_t)type->dims[d] * DTM_MAX_AXES + split.axis];
                    if (some == axis->size || *known) continue;
                    *known = true;
                    tell(s, split.axis, type->dims[d], n, outer_block(s, &type->layout[d], k), some);
                }
            }
        }
    }
}
