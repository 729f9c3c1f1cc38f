/* Microbatches: an axis of the mesh, in time, with a rule that no one writes. What it splits is the batch, the first
 * dimension of the first input. It is the major axis of it (shard_layouts.c): a microbatch is a block of the whole batch,
 * and each of its samples is where the other axes put it.
 *
 * A sum over the batch is a term on the axis and complete after the last microbatch. Who reads it then (gradients, the
 * update, reports and what leads to nothing else) may be anything; who reads it in a microbatch is linear in it, or it
 * depends on inputs alone and is computed before the first (microbatch_early.c). All else is an error. */
#include "passes/shard.h"

#include <string.h>

void shard_time_axis(shard *s) {
    dtm_module *m = s->module;
    dtm_mesh *mesh = &m->settings.mesh;
    for (int a = 0; a < mesh->count; a++)
        if (mesh->axes[a].time) return;
    if (m->settings.microbatches <= 1 || mesh->count == DTM_MAX_AXES) return;
    mesh->axes[mesh->count++] = (dtm_axis_data){dtm_string_of(m->context, "microbatch"), m->settings.microbatches, true,
                                                m->settings.microbatches_span};
}

/* ---- the rule ---- */

static void list(dtm_splits_rule *rule, dtm_dim dim) {
    enum { MOST = sizeof rule->dims / sizeof *rule->dims };
    if (!shard_lists(rule, dim, 0) && rule->count < MOST) rule->dims[rule->count++] = dim;
}

/* What shape operators make of the batch: the major part of a split of it, what merges it as the major part, its new name. */
static void follow_batch(dtm_module *m, dtm_op op, void *state) {
    dtm_splits_rule *rule = state;
    const dtm_op_data *data = dtm_op_get(m, op);
    if (data->kind == DTM_OP_INPUT && !rule->count) {
        const dtm_type_data *type = dtm_value_type(m, data->results[0]);
        if (type->rank) list(rule, type->dims[0]);
    }
    bool reshapes = data->kind == DTM_OP_SPLIT || data->kind == DTM_OP_MERGE || data->kind == DTM_OP_RENAME;
    for (int i = 0; reshapes && i < (data->kind == DTM_OP_RENAME ? data->attributes.n_over : 1); i++)
        if (shard_lists(rule, data->attributes.over[i], 0)) list(rule, data->attributes.as[i]);
}

void shard_time_rule(shard *s) {
    dtm_module *m = s->module;
    const dtm_mesh *mesh = &m->settings.mesh;
    for (int a = 0; a < mesh->count; a++) {
        if (!mesh->axes[a].time) continue;
        dtm_splits_rule *rule = dtm_arena_alloc(s->arena, sizeof *rule);
        *rule = (dtm_splits_rule){.axis = (uint8_t)a, .span = mesh->axes[a].span};
        dtm_walk(m, follow_batch, rule);
        if (rule->count) s->rules[a] = rule;
    }
}

/* ---- who reads when ---- */

bool shard_is_late(const shard *s, dtm_op reader) {
    dtm_op_kind kind = s->module->ops[reader].kind;
    return kind == DTM_OP_REPORT || kind == DTM_OP_GRADIENT || s->ops[reader].phase == PHASE_UPDATE || s->reported_only[reader];
}

/* It works on a block of each microbatch. */
static bool may_be_split(const shard *s, dtm_op op) {
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        for (int i = 0; s->time >> a & 1 && i < s->ops[op].domain[a].count; i++) {
            shard_choice choice = s->ops[op].domain[a].choices[i];
            if (choice >= CHOICE_STATE + STATE_DIM || (choice >= CHOICE_FACTOR && choice < CHOICE_STATE)) return true;
        }
    return false;
}

static bool leads_to_reports_only(const shard *s, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    for (uint32_t r = 0; r < data->n_results; r++)
        for (uint32_t i = 0; i < s->n_readers[data->results[r]]; i++) {
            dtm_op reader = s->readers[data->results[r]][i];
            if (s->module->ops[reader].kind != DTM_OP_REPORT && !s->reported_only[reader]) return false;
        }
    return data->n_results > 0;
}

void shard_mark_reported(shard *s) {
    s->reported_only = dtm_arena_alloc(s->arena, s->n_ops);
    for (size_t i = 0; s->time && i < s->n_order; i++)
        s->reported_only[s->order[i]] = s->ops[s->order[i]].phase != PHASE_UPDATE && !may_be_split(s, s->order[i]);
    for (bool changed = true; changed;) { /* until carried values agree with what they are carried from */
        changed = false;
        for (size_t i = s->n_order; i-- > 0;)
            if (s->reported_only[s->order[i]] && !leads_to_reports_only(s, s->order[i])) {
                s->reported_only[s->order[i]] = false;
                changed = true;
            }
    }
}

/* ---- what cannot be ---- */

/* The operator as the source has it: what was expanded is no longer in the module, but its data are. */
static dtm_op source_of(const shard *s, dtm_op op) {
    for (size_t i = 0; i < s->n_inners; i++)
        if (s->inners[i].op == op) return source_of(s, s->inners[i].of);
    return op;
}

/* It and what makes the value were one operator, which normalises along the batch. */
static bool works_along(const shard *s, dtm_op op, dtm_value value) {
    dtm_op source = source_of(s, op);
    return source != op && source == source_of(s, s->module->values[value].def);
}

/* What an operator wants that cannot be: all of the batch, to work along it; the whole of a value; a sum or a maximum. */
static const char *complaint(const shard *s, dtm_op op, dtm_value value, shard_state is, long long count) {
    const dtm_module *m = s->module;
    dtm_text text = {s->arena, NULL, 0, 0};
    if (s->takes_gradient[op]) {
        const char *weight = dtm_value_name(m, s->weight_of[value]);
        dtm_text_printf(&text, "weight `%s` has a dimension of the batch: each of %lld microbatches makes a part of its gradient",
                        weight, count);
        return text.data;
    }
    if (s->ops[op].phase == PHASE_BACKWARD) dtm_text_printf(&text, "the backward pass ");
    else dtm_text_printf(&text, "`%s` ", dtm_op_rows[m->ops[source_of(s, op)].kind].name);
    if (works_along(s, op, value)) {
        dtm_text_printf(&text, "along the batch needs all of it, and %lld microbatches come one after the other", count);
        return text.data;
    }
    dtm_text_printf(&text, "needs the whole batch's `%s`, ", dtm_value_name(m, value));
    if (is >= STATE_DIM) dtm_text_printf(&text, "of which each of %lld microbatches makes a part", count);
    else dtm_text_printf(&text, "which depends on weights and is known only after the last of %lld microbatches", count);
    return text.data;
}

static void refuse(shard *s, dtm_op op, dtm_value value, shard_state is, int axis) {
    dtm_module *m = s->module;
    bool along = works_along(s, op, value);
    const char *text = complaint(s, op, value, is, (long long)m->settings.mesh.axes[axis].size);
    s->failed = true;
    dtm_error(m->context, m->ops[op].span, 401, "%s", text);
    if (!along)
        dtm_note(m->context, m->ops[m->values[value].def].span, "`%s` is %s", dtm_value_name(m, value),
                 is == STATE_SUM   ? "summed here over the batch"
                 : is == STATE_MAX ? "the maximum over the batch"
                                   : "made here");
    dtm_help(m->context, is == STATE_SUM && !along
                             ? "without `microbatches` this program is fine; or keep what follows the sum linear in it"
                             : "without `microbatches` this program is fine");
}

/* Whether an operator wants what is not there yet. */
static void check_op(shard *s, dtm_op op, int axis) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    if (s->ops[op].phase == PHASE_UPDATE && !s->takes_gradient[op]) return;
    for (uint32_t k = data->kind == DTM_OP_GRADIENT; k < data->n_operands && !s->failed; k++) {
        dtm_value v = data->operands[k];
        shard_state is = shard_value_state(s, v, axis), needs = shard_operand_state(s, op, s->ops[op].choice[axis], k);
        if (is == needs || is == STATE_ALIKE) continue;
        if (is >= STATE_DIM || !(shard_is_late(s, op) || s->input_only[v])) refuse(s, op, v, is, axis);
    }
}

void shard_check_time(shard *s) {
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        for (size_t i = 0; s->time >> a & 1 && i < s->n_order && !s->failed; i++) check_op(s, s->order[i], a);
}
