/* What the rules leave open: the domain of choices of every operator on every axis, for shard_choose.c. */
#include "passes/shard.h"

#include <string.h>

static void offer(shard_domain *d, shard_choice choice) {
    for (int i = 0; i < d->count; i++)
        if (d->choices[i] == choice) return;
    if (d->count < MAX_CHOICES) d->choices[d->count++] = choice;
}

static bool is_float(const dtm_type_data *type) {
    return dtm_dtype_is_float((dtm_dtype)type->dtype);
}

/* Every linear set without a constant: a number cannot be a term of itself. */
static void offer_terms(const shard *s, dtm_op op, shard_domain *d) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    for (int i = 0; i < s->ops[op].n_sets; i++) {
        bool constant = false;
        for (uint32_t k = 0; k < data->n_operands; k++)
            constant |= (s->ops[op].sets[i] >> k & 1) && shard_is_constant(s, data->operands[k]);
        if (!constant) offer(d, (shard_choice)(CHOICE_TERM + i));
    }
}

/* The states a value can be in on an axis that are any use: split along what the rule lists, alike, pending. */
static void offer_states(const shard *s, dtm_value value, int axis, bool pending, shard_domain *d) {
    const dtm_type_data *type = dtm_value_type(s->module, value);
    const dtm_splits_rule *rule = s->rules[axis];
    for (int i = 0; rule && i < rule->count; i++) {
        int dim = dtm_type_dim_index(type, rule->dims[i]);
        if (dim >= 0 && !s->few[axis][rule->dims[i]]) offer(d, (shard_choice)(CHOICE_STATE + STATE_DIM + dim));
    }
    offer(d, CHOICE_STATE + STATE_ALIKE);
    if (pending && is_float(type)) offer(d, CHOICE_STATE + STATE_SUM);
}

static bool keep_allows(const shard *s, const dtm_keep_rule *keep, const dtm_type_data *type, int axis, shard_state state) {
    bool whole = false;
    for (int i = 0; i < keep->count && !(s->time >> axis & 1); i++) { /* `B@-`: all samples of a microbatch */
        int dim = dtm_type_dim_index(type, keep->dims[i].dim);
        for (int k = 0; k < keep->dims[i].n_axes; k++)
            if (keep->dims[i].axes[k] == axis) return state == STATE_DIM + dim;
        if (!keep->dims[i].whole) continue;
        whole |= shard_lists(s->rules[axis], keep->dims[i].dim, 0);
        if (state == STATE_DIM + dim) return false;
    }
    return !whole || state != STATE_SUM;
}

/* What a repeat carries is split by the list as an operator is, or is a term. */
static void offer_carried(const shard *s, dtm_value value, int axis, shard_domain *d) {
    offer_states(s, value, axis, true, d);
    if ((s->rules[axis] && s->rules[axis]->by_cost) || (s->time >> axis & 1 && s->input_only[value])) return;
    shard_domain all = *d;
    d->count = 0;
    offer(d, all.choices[0]);
    for (int i = 1; i < all.count; i++)
        if (all.choices[i] == CHOICE_STATE + STATE_SUM) offer(d, all.choices[i]);
}

/* The layout kept, and what else it may be on the axes that the rule leaves free. A weight is stored: never a term. */
static void offer_kept(const shard *s, dtm_op op, int axis, shard_domain *d) {
    const dtm_keep_rule *keep = s->ops[op].keep;
    dtm_value value = s->module->ops[op].results[0];
    dtm_op def = s->module->values[s->module->ops[op].operands[0]].def;
    bool stored = s->module->ops[def].kind == DTM_OP_WEIGHT || s->module->ops[def].kind == DTM_OP_STATE;
    const dtm_type_data *type = dtm_value_type(s->module, value);
    shard_domain all = {0};
    offer_states(s, value, axis, !stored, &all);
    for (int dim = 0; dim < type->rank; dim++) offer(&all, (shard_choice)(CHOICE_STATE + STATE_DIM + dim));
    for (int i = 0; i < all.count; i++)
        if (keep_allows(s, keep, type, axis, all.choices[i] - CHOICE_STATE)) offer(d, all.choices[i]);
}

/* The operator that makes a kept value may also be split as it is kept, and cost decides, unless the list makes it a term,
 * which is reduced to what is kept. */
static void follow_keep(const shard *s, dtm_op op, int axis, shard_domain *d) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    for (uint32_t r = 0; r < data->n_results; r++) {
        dtm_value value = data->results[r];
        const dtm_keep_rule *keep = s->n_readers[value] == 1 ? s->ops[s->readers[value][0]].keep : NULL;
        if (!keep || (d->count && shard_result_state(s, op, d->choices[0], r) == STATE_SUM)) continue;
        const dtm_type_data *type = dtm_value_type(s->module, value);
        shard_domain all = {0};
        if (shard_is_source(data->kind)) {
            for (int dim = 0; dim < type->rank; dim++) offer(&all, (shard_choice)(CHOICE_STATE + STATE_DIM + dim));
        } else {
            offer(&all, CHOICE_ALIKE);
            for (int f = 0; f < s->ops[op].n_factors; f++)
                if (s->ops[op].factors[f].kind == DTM_FACTOR_CARRIED) offer(&all, (shard_choice)(CHOICE_FACTOR + f));
        }
        for (int i = 0; i < all.count; i++)
            if (keep_allows(s, keep, type, axis, shard_result_state(s, op, all.choices[i], r))) offer(d, all.choices[i]);
    }
}

/* What is computed from a value that is kept whole may be computed whole too: the conversion has moved before it. */
static void follow_whole(shard *s, dtm_op op, int axis, shard_domain *d) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    bool whole = false;
    const dtm_keep_rule *keep = s->time >> axis & 1 ? NULL : s->ops[op].keep;
    for (int i = 0; keep && i < keep->count; i++) whole |= keep->dims[i].whole && shard_lists(s->rules[axis], keep->dims[i].dim, 0);
    for (uint32_t k = 0; k < data->n_operands; k++) whole |= s->whole[data->operands[k]] >> axis & 1;
    if (!whole || s->ops[op].phase == PHASE_BACKWARD) return;
    for (uint32_t r = 0; r < data->n_results; r++) s->whole[data->results[r]] |= (uint16_t)(1 << axis);
    if (!keep && data->n_results && d->count && d->choices[0] < CHOICE_STATE && d->choices[0] >= CHOICE_FACTOR)
        offer(d, CHOICE_ALIKE);
}

/* Computed from scalars or nothing: any split is as good as another. */
static bool is_free(const shard *s, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    if (data->kind < DTM_OP_ADD || data->kind > DTM_OP_EXPAND) return false;
    for (uint32_t i = 0; i < data->n_operands; i++)
        if (dtm_value_type(s->module, data->operands[i])->rank) return false;
    return true;
}

bool shard_is_reduction(dtm_op_kind kind) {
    return kind == DTM_OP_SUM || kind == DTM_OP_MEAN || kind == DTM_OP_REDUCE_MAX;
}

static bool all_inputs_only(const shard *s, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    for (uint32_t i = 0; i < data->n_results; i++)
        if (!s->input_only[data->results[i]]) return false;
    return data->n_results > 0;
}

static void offer_all_listed(const shard *s, dtm_op op, int axis, shard_domain *d) {
    for (int i = 0; i < s->rules[axis]->count; i++) {
        shard_choice choice = shard_choice_for(s, op, axis, s->rules[axis]->dims[i]);
        const dtm_factor *f = shard_split_factor(s, op, choice);
        if (choice != CHOICE_NONE && !(f && f->kind == DTM_FACTOR_NORMALISED)) offer(d, choice);
    }
    offer(d, CHOICE_ALIKE);
}

static void domain_of_operator(const shard *s, dtm_op op, int axis, shard_domain *d) {
    dtm_op_kind kind = s->module->ops[op].kind;
    shard_choice listed = shard_listed(s, op, axis);
    const dtm_factor *f = shard_split_factor(s, op, listed);
    if (f && f->kind == DTM_FACTOR_NORMALISED) f = NULL; /* by cost, and not worth it */
    bool in_time = s->time >> axis & 1;
    if (s->rules[axis] && (s->rules[axis]->by_cost || is_free(s, op))) offer_all_listed(s, op, axis, d);
    else if (f) offer(d, listed);
    else offer(d, CHOICE_ALIKE);
    /* Before the first microbatch, what depends on inputs alone can be computed for all of them at once. */
    if (in_time && all_inputs_only(s, op)) {
        offer(d, CHOICE_ALIKE);
        return;
    }
    /* Law 6; but what leads to a weight's gradient stays pending. */
    if (f && shard_is_reduction(kind) && !in_time && !s->gradient_only[s->module->ops[op].results[0]]) offer(d, CHOICE_ALIKE);
    if (!f || kind == DTM_OP_ADD || kind == DTM_OP_SUB || s->rules[axis]->by_cost) offer_terms(s, op, d);
}

static void domain_of(shard *s, dtm_op op, int axis, shard_domain *d) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    if (s->ops[op].keep) offer_kept(s, op, axis, d);
    else if (data->kind == DTM_OP_OUTPUT) offer_states(s, data->operands[0], axis, false, d);
    else if (s->time >> axis & 1 && (data->kind == DTM_OP_WEIGHT || data->kind == DTM_OP_STATE))
        offer(d, CHOICE_STATE + STATE_ALIKE);
    else if (shard_is_source(data->kind)) offer_states(s, data->results[0], axis, false, d);
    else if (data->kind == DTM_OP_CARRY) offer_carried(s, data->results[0], axis, d);
    else if (shard_is_identity(data->kind)) offer_states(s, data->results[0], axis, true, d);
    else if (data->kind == DTM_OP_REPORT) offer(d, CHOICE_ALIKE);
    else if (data->kind != DTM_OP_STORE && data->kind != DTM_OP_GRADIENT) domain_of_operator(s, op, axis, d);
    if (!s->ops[op].keep) follow_keep(s, op, axis, d);
    follow_whole(s, op, axis, d);
}

/* ---- what leads where ---- */

static bool leads_to_gradients_only(const shard *s, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    if (s->ops[op].phase == PHASE_UPDATE || data->kind == DTM_OP_GRADIENT) return true;
    for (uint32_t r = 0; r < data->n_results; r++)
        if (!s->gradient_only[data->results[r]]) return false;
    return data->n_results > 0;
}

/* Backwards, until carried values agree with what they are carried from. */
static void mark_gradient_only(shard *s) {
    const dtm_module *m = s->module;
    s->gradient_only = dtm_arena_alloc(s->arena, m->n_values);
    for (size_t i = 0; i < s->n_order; i++)
        for (uint32_t r = 0; r < m->ops[s->order[i]].n_results; r++)
            s->gradient_only[m->ops[s->order[i]].results[r]] = s->ops[s->order[i]].phase == PHASE_BACKWARD;
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = s->n_order; i-- > 0;) {
            dtm_op op = s->order[i];
            if (leads_to_gradients_only(s, op)) continue;
            for (uint32_t k = 0; k < m->ops[op].n_operands; k++) {
                changed |= s->gradient_only[m->ops[op].operands[k]];
                s->gradient_only[m->ops[op].operands[k]] = false;
            }
        }
    }
}

static void mark_input_only(shard *s) {
    const dtm_module *m = s->module;
    s->input_only = dtm_arena_alloc(s->arena, m->n_values);
    memset(s->input_only, 1, m->n_values);
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < s->n_order; i++) {
            const dtm_op_data *data = dtm_op_get(m, s->order[i]);
            bool only = data->kind != DTM_OP_WEIGHT && data->kind != DTM_OP_STATE;
            for (uint32_t k = 0; k < data->n_operands; k++) only &= s->input_only[data->operands[k]];
            for (uint32_t r = 0; r < data->n_results; r++)
                if (s->input_only[data->results[r]] && !only) {
                    s->input_only[data->results[r]] = false;
                    changed = true;
                }
        }
    }
}

void shard_domains(shard *s) {
    mark_gradient_only(s);
    mark_input_only(s);
    s->whole = dtm_arena_alloc(s->arena, s->module->n_values * sizeof *s->whole);
    for (size_t i = 0; i < s->n_order; i++) {
        shard_op *o = &s->ops[s->order[i]];
        if (o->phase == PHASE_UPDATE) continue;
        for (int a = 0; a < s->module->settings.mesh.count; a++) {
            o->domain[a].count = 0;
            if (s->axes >> a & 1) domain_of(s, s->order[i], a, &o->domain[a]);
        }
    }
    shard_mark_reported(s);
}
