/* What a user is told of a placement that works but was perhaps not meant, with the edit that helps. */
#include "passes/shard.h"

#include <string.h>

static const char *axis_name(const shard *s, int axis) {
    return dtm_string_text(s->module->context, s->module->settings.mesh.axes[axis].name);
}

static const char *dim_name(const shard *s, dtm_dim dim) { return dtm_dim_name(s->module, dim); }

static int64_t axis_size(const shard *s, int axis) { return s->module->settings.mesh.axes[axis].size; }

/* "tp splits H, F, M": the rule with one more dimension before `before` (0: at the end). */
static const char *rule_with(const shard *s, int axis, dtm_dim added, dtm_dim before) {
    const dtm_splits_rule *rule = s->rules[axis];
    dtm_text text = {s->arena, NULL, 0, 0};
    dtm_text_printf(&text, "%s splits ", axis_name(s, axis));
    bool placed = false;
    for (int i = 0; i < rule->count; i++) {
        if (rule->dims[i] == before) {
            dtm_text_printf(&text, "%s, ", dim_name(s, added));
            placed = true;
        }
        dtm_text_printf(&text, "%s%s", dim_name(s, rule->dims[i]), i + 1 < rule->count ? ", " : "");
    }
    if (!placed) dtm_text_printf(&text, ", %s", dim_name(s, added));
    return text.data;
}

/* ---- rules ---- */

static void warn_unused(const shard *s, int axis) {
    const dtm_splits_rule *rule = s->rules[axis];
    bool used[32] = {false}, there[32] = {false}, any = false;
    for (size_t i = 0; i < s->n_order; i++) {
        dtm_op op = s->order[i];
        if (s->ops[op].phase == PHASE_UPDATE || shard_is_source(s->module->ops[op].kind) || s->ops[op].inner[axis]) continue;
        if (s->module->ops[op].kind >= DTM_OP_REPEAT) continue;
        int listed = shard_listed_index(s, op, axis);
        if (listed >= 0) used[listed] = any = true;
        for (int k = 0; k < rule->count; k++) there[k] |= shard_has_dim(s, op, axis, rule->dims[k]);
    }
    /* An operator that was expanded had the dimension first. */
    for (size_t i = 0; i < s->n_order; i++)
        for (int k = 0; k < rule->count; k++)
            if (s->ops[s->order[i]].inner[axis] == rule->dims[k]) used[k] = any = true;
    if (!any) {
        dtm_warning(s->module->context, rule->span, 805, "`%s splits ..` applies to nothing: no operator has %s",
                    axis_name(s, axis), rule->count == 1 ? dim_name(s, rule->dims[0]) : "any of these dimensions");
        dtm_help(s->module->context, "all %lld ranks of %s compute the same; list a dimension that operators have",
                 (long long)axis_size(s, axis), axis_name(s, axis));
        return;
    }
    for (int k = 0; k < rule->count && !rule->by_cost; k++) {
        if (used[k]) continue;
        if (!there[k])
            dtm_warning(s->module->context, rule->dim_spans[k], 805, "no operator can be split along %s",
                        dim_name(s, rule->dims[k]));
        else
            dtm_warning(s->module->context, rule->dim_spans[k], 806,
                        "%s never splits %s: every operator that has it has a dimension listed before it",
                        axis_name(s, axis), dim_name(s, rule->dims[k]));
        dtm_help(s->module->context, "remove %s from the list", dim_name(s, rule->dims[k]));
    }
}

static void warn_using(const shard *s, int axis) {
    const dtm_splits_rule *rule = s->rules[axis];
    if (rule->using == DTM_USING_COST) return;
    for (size_t i = 0; i < s->n_order; i++)
        if (shard_uses_positions(s, s->order[i], axis)) return;
    dtm_warning(s->module->context, rule->span, 805, "`using %s` applies to nothing: %s splits no attention along its positions",
                rule->using == DTM_USING_ALLTOALL ? "alltoall" : "gather", axis_name(s, axis));
    dtm_help(s->module->context, "leave it out, or list the positions of attention first");
}

/* The first dimension of the first input that has one. */
static const char *batch_name(const shard *s) {
    const dtm_module *m = s->module;
    for (size_t i = 0; i < s->n_order; i++) {
        if (m->ops[s->order[i]].kind != DTM_OP_INPUT) continue;
        const dtm_type_data *type = dtm_value_type(m, m->ops[s->order[i]].results[0]);
        if (type->rank) return dim_name(s, type->dims[0]);
    }
    return "..";
}

/* An axis may also be there for `keep` alone. */
static void warn_unnamed(const shard *s, int axis) {
    const dtm_settings *settings = &s->module->settings;
    if (settings->pipeline.present && settings->pipeline.axis == axis) return;
    for (size_t k = 0; k < settings->n_keeps; k++)
        for (int d = 0; d < settings->keeps[k].count; d++)
            for (int a = 0; a < settings->keeps[k].dims[d].n_axes; a++)
                if (settings->keeps[k].dims[d].axes[a] == axis) return;
    dtm_warning(s->module->context, settings->mesh.axes[axis].span, 811,
                "no rule %s the axis %s: all its %lld ranks compute %sthe same", shard_rest_rule(s, axis) ? "of `splits` names" : "names",
                axis_name(s, axis), (long long)axis_size(s, axis), shard_rest_rule(s, axis) ? "" : "and hold ");
    dtm_help(s->module->context, "say in `parallel` what it splits: `%s splits %s`", axis_name(s, axis), batch_name(s));
}

/* ---- keys and values ---- */

static const dtm_factor *heads_of(const shard *s, dtm_op op) {
    if (s->module->ops[op].kind != DTM_OP_ATTENTION) return NULL;
    for (int f = 0; f < s->ops[op].n_factors; f++)
        if (s->ops[op].factors[f].n_names == 2) return &s->ops[op].factors[f];
    return NULL;
}

static int64_t divisor_at_most(int64_t n, int64_t most) {
    while (most > 1 && n % most) most--;
    return most;
}

/* Returns the dimension of heads that are computed alike, 0: none. */
static dtm_dim warn_keys(const shard *s, int axis) {
    const dtm_splits_rule *rule = s->rules[axis];
    for (size_t i = 0; i < s->n_order; i++) {
        const dtm_factor *f = heads_of(s, s->order[i]);
        if (!f || !shard_lists(rule, f->names[0], 0)) continue;
        dtm_dim heads = f->names[0], groups = f->names[1];
        long long n = s->module->dims[groups].size, ranks = axis_size(s, axis);
        if (s->few[axis][groups] && rule->by_cost) return groups; /* chosen, and not the only choice */
        if (s->few[axis][groups]) {
            const char *too_many = n < ranks ? dtm_arena_printf(s->arena, "%s = %lld", axis_name(s, axis), ranks)
                                             : "all axes that split heads together";
            dtm_warning(s->module->context, rule->span, 803,
                        "%s = %lld is too few for %s: keys and values are computed alike on every rank of %s",
                        dim_name(s, groups), n, too_many, axis_name(s, axis));
            int64_t part = divisor_at_most(ranks, n);
            if (part > 1 && part < ranks)
                dtm_help(s->module->context,
                         "two axes would split them: mesh { %s = %lld, %s2 = %lld }, with `%s2 splits ..` the same list less %s",
                         axis_name(s, axis), (long long)part, axis_name(s, axis), ranks / part, axis_name(s, axis),
                         dim_name(s, groups));
        } else if (!shard_lists(rule, groups, 0)) {
            dtm_warning(s->module->context, rule->span, 802,
                        "%s splits %s but not %s: keys and values are computed alike on every rank of %s, and their "
                        "gradients gathered",
                        axis_name(s, axis), dim_name(s, heads), dim_name(s, groups), axis_name(s, axis));
            dtm_help(s->module->context, "list it beside %s: `%s`", dim_name(s, heads), rule_with(s, axis, groups, 0));
        } else continue;
        return groups;
    }
    return 0;
}

/* ---- large products computed alike ---- */

static bool makes(const shard *s, dtm_op op, dtm_dim dim) {
    return dim && dtm_type_dim_index(dtm_value_type(s->module, s->module->ops[op].results[0]), dim) >= 0;
}

/* `told`: what makes that dimension has been spoken of. */
static void warn_alike(const shard *s, int axis, dtm_dim told) {
    const dtm_module *m = s->module;
    double all = 0, split = 0;
    for (size_t i = 0; i < s->n_order; i++) {
        dtm_op op = s->order[i];
        if (m->ops[op].kind != DTM_OP_DOT || s->ops[op].phase > PHASE_FORWARD) continue;
        double flops = dtm_op_flops(m, op) * s->ops[op].copies;
        all += flops;
        if (s->ops[op].choice[axis] >= CHOICE_FACTOR) split += flops;
    }
    if (split <= 0) return;
    for (size_t i = 0; i < s->n_order; i++) {
        dtm_op op = s->order[i];
        if (m->ops[op].kind != DTM_OP_DOT || s->ops[op].phase > PHASE_FORWARD) continue;
        double share = dtm_op_flops(m, op) * s->ops[op].copies / all;
        if (s->ops[op].choice[axis] >= CHOICE_FACTOR || share < 0.1 || shard_listed(s, op, axis) != CHOICE_NONE ||
            makes(s, op, told))
            continue;
        dtm_warning(m->context, m->ops[op].span, 801,
                    "this product, %.0f%% of the forward pass's, is computed alike on every rank of %s: it has none of the "
                    "dimensions that %s splits",
                    100 * share, axis_name(s, axis), axis_name(s, axis));
        dtm_note(m->context, s->rules[axis]->span, "the rule is here");
        for (int f = 0; f < s->ops[op].n_factors; f++) {
            const dtm_factor *factor = &s->ops[op].factors[f];
            if (factor->kind == DTM_FACTOR_FIXED || factor->operand_dim[1] < 0) continue; /* one that the weight has */
            dtm_help(m->context, "list one of its own: `%s`", rule_with(s, axis, factor->names[0], 0));
            break;
        }
    }
}

/* ---- a conversion that a smaller, earlier one could have had ---- */

static double bytes_of(const shard *s, dtm_value v) { return (double)dtm_type_elements(s->module, s->module->values[v].type); }

/* Up from a value through operators that read one value beside weights: the smallest on the way that is split along the
 * same dimension. */
static dtm_value smaller_before(const shard *s, dtm_value value, int axis, dtm_dim dim) {
    const dtm_module *m = s->module;
    dtm_value best = value, at = value;
    for (int steps = 0; steps < 8; steps++) {
        dtm_op def = m->values[at].def;
        dtm_value next = 0;
        int readers = 0;
        for (uint32_t k = 0; def && k < m->ops[def].n_operands; k++) {
            dtm_value v = m->ops[def].operands[k];
            if (shard_is_constant(s, v) || shard_is_source(m->ops[m->values[v].def].kind)) continue;
            next = v;
            readers++;
        }
        if (readers != 1) break;
        int index = dtm_type_dim_index(dtm_value_type(m, next), dim);
        if (index < 0 || shard_value_state(s, next, axis) != STATE_DIM + index) break;
        at = next;
        if (2 * bytes_of(s, at) <= bytes_of(s, value) && bytes_of(s, at) < bytes_of(s, best)) best = at;
    }
    return best == value ? 0 : best;
}

static void warn_late(const shard *s, int axis) {
    const dtm_module *m = s->module;
    for (size_t i = 0; i < s->n_order; i++) {
        dtm_op op = s->order[i];
        if (s->ops[op].phase > PHASE_FORWARD) continue;
        for (uint32_t k = 0; k < m->ops[op].n_operands; k++) {
            dtm_value v = m->ops[op].operands[k];
            shard_state is = shard_value_state(s, v, axis);
            if (is < STATE_DIM || shard_operand_state(s, op, s->ops[op].choice[axis], k) != STATE_ALIKE) continue;
            dtm_dim dim = dtm_value_type(m, v)->dims[is - STATE_DIM];
            dtm_value early = smaller_before(s, v, axis, dim);
            dtm_string name = early ? dtm_value_source_name(m, early) : 0;
            if (!name) continue;
            dtm_op repeat = dtm_value_repeat(m, early);
            dtm_warning(m->context, m->ops[op].span, 804, "`%s` is gathered along %s; `%s`, from which it is made, is %.0f times smaller",
                        dtm_value_name(m, v), dim_name(s, dim), dtm_string_text(m->context, name),
                        bytes_of(s, v) / bytes_of(s, early));
            dtm_help(m->context, "gather that instead: `keep %s%s%s as [.., %s@-]`",
                     repeat ? dtm_string_text(m->context, m->ops[repeat].attributes.name) : "", repeat ? "." : "",
                     dtm_string_text(m->context, name), dim_name(s, dim));
            return;
        }
    }
}

static void warn_rests(const shard *s, const dtm_zero_rule *rule) {
    uint16_t axes = rule->axes & s->axes;
    for (size_t i = 0; i < s->n_order; i++) axes &= (uint16_t)~s->ops[s->order[i]].rests;
    for (int a = 0; a < s->module->settings.mesh.count; a++) {
        if (!(axes >> a & 1)) continue;
        dtm_warning(s->module->context, rule->span, 805, "`zero %d` applies to nothing on %s: no weight is alike on its ranks",
                    rule->stage, axis_name(s, a));
        dtm_help(s->module->context, "name an axis that splits the batch: what is split in use rests so anyway");
    }
}

void shard_warnings(shard *s) {
    for (size_t i = 0; i < s->module->settings.n_zeros; i++) warn_rests(s, &s->module->settings.zeros[i]);
    for (int a = 0; a < s->module->settings.mesh.count; a++) {
        if (!(s->axes >> a & 1) || (s->time >> a & 1)) continue;
        if (!s->rules[a]) {
            warn_unnamed(s, a);
            continue;
        }
        warn_unused(s, a);
        warn_using(s, a);
        warn_alike(s, a, warn_keys(s, a));
        warn_late(s, a);
    }
}
