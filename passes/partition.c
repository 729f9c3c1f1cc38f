/* partition: each change of layout as the cheapest sequence of steps (relayout.c).
 *
 *   before   p : f32[B=8@dp, S=16, D=64] = relayout(p.term)            # p.term has sum@tp
 *   after    p : f32[B=8@dp, S=16, D=64] = all_reduce(p.term on tp)
 *
 * Values between two steps of one relayout are named after what it makes: `p.step`. */
#include "passes/passes.h"
#include "passes/relayout.h"

static void write_steps(dtm_module *m, dtm_op relayout) {
    dtm_value value = m->ops[relayout].operands[0], result = m->ops[relayout].results[0];
    dtm_relayout_path path = dtm_relayout_find(m, m->values[value].type, m->values[result].type);
    dtm_builder b = dtm_builder_before(m, relayout);
    b.why = m->ops[relayout].why;
    for (size_t i = 0; i < path.count; i++) {
        const dtm_relayout_step *step = &path.steps[i];
        dtm_attributes attributes = dtm_attributes_default(step->kind);
        attributes.axes = step->axes;
        if (step->over) attributes.over[attributes.n_over++] = step->over;
        if (step->as) attributes.as[attributes.n_as++] = step->as;
        if (i + 1 < path.count) {
            const char *name = dtm_string_text(m->context, dtm_string_printf(m->context, "%s.step", dtm_value_name(m, result)));
            value = dtm_result(m, dtm_build_op(&b, step->kind, &value, 1, &attributes, &step->type, 1, name), 0);
            continue;
        }
        /* The last step is the relayout itself, under another kind: the result keeps its value. */
        dtm_op_data *data = dtm_op_get(m, relayout);
        data->kind = step->kind;
        data->attributes = attributes;
        data->operands[0] = value;
    }
    if (path.count) return;
    dtm_replace_uses(m, result, value);
    dtm_op_remove(m, relayout);
}

bool dtm_pass_partition(dtm_module *m) {
    size_t n = m->n_ops;
    for (dtm_op op = 1; op < n; op++)
        if (m->ops[op].region && m->ops[op].kind == DTM_OP_RELAYOUT) write_steps(m, op);
    m->after = dtm_string_of(m->context, "partition");
    return dtm_error_count(m->context) == 0;
}
