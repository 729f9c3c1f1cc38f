/* Why an operator makes a term, and why a value changes its layout: the rule, its line, and the reader that forces it.
 *
 *     p = all_reduce(p.term on tp)          why "tp splits F, line 15: each rank has a term; `-`, line 8, needs the value"
 *     h.gathered = all_gather(h over S on tp)   why "`dot over D`, line 22, needs all of S: tp splits H, line 15" */
#include "passes/shard.h"

static bool is_split(shard_choice choice) { return choice >= CHOICE_FACTOR && choice < CHOICE_STATE; }

/* The rule that splits an operator on an axis, or NULL: it is not split by one. */
static const char *rule_of_choice(const shard *s, dtm_op op, int axis) {
    shard_choice choice = s->ops[op].choice[axis];
    if (!is_split(choice)) return NULL;
    const dtm_factor *f = &s->ops[op].factors[choice - (choice >= CHOICE_QUERIES ? CHOICE_QUERIES : CHOICE_FACTOR)];
    for (int i = 0; s->rules[axis] && i < s->rules[axis]->count; i++)
        for (int k = 0; k < f->n_names; k++)
            if (s->rules[axis]->dims[i] == f->names[k]) return shard_rule_title(s, axis, f->names[k]);
    const char *rest = s->ops[op].phase == PHASE_UPDATE ? shard_rest_title(s, axis) : NULL; /* it follows the weights */
    return rest || !s->rules[axis] ? rest : shard_rule_title(s, axis, f->names[0]);
}

void shard_explain_terms(shard *s, const dtm_type *types) {
    for (size_t i = 0; i < s->n_order; i++) {
        dtm_op_data *data = dtm_op_get(s->module, s->order[i]);
        if (data->why || !data->n_results) continue;
        const dtm_type_data *type = dtm_type_get(s->module, types[data->results[data->n_results - 1]]);
        for (int a = 0; a < s->module->settings.mesh.count && !data->why; a++) {
            if (!((type->sum | type->max) >> a & 1)) continue;
            const char *rule = rule_of_choice(s, s->order[i], a);
            if (rule) data->why = dtm_string_printf(s->module->context, "%s: each rank has a term", rule);
        }
    }
}

/* The value of the program that a copy in another layout was made of. */
static dtm_value original_of(const shard *s, dtm_value value) {
    for (dtm_op def; (def = s->module->values[value].def) >= s->n_ops;) value = s->module->ops[def].operands[0];
    return value;
}

/* The rule that made a value a term on an axis: that of the operator at which the terms begin, up through those that they
 * passed. NULL: none is found. */
static const char *rule_of_term(const shard *s, dtm_value value, int axis) {
    value = original_of(s, value);
    for (int steps = 0; steps < 64; steps++) {
        dtm_op def = s->module->values[value].def;
        const char *rule = def ? rule_of_choice(s, def, axis) : NULL;
        if (rule) return rule;
        dtm_value next = 0;
        for (uint32_t k = 0; def && k < s->module->ops[def].n_operands && !next; k++) {
            dtm_value operand = original_of(s, s->module->ops[def].operands[k]);
            shard_state state = operand != value ? shard_value_state(s, operand, axis) : STATE_ALIKE;
            if (state == STATE_SUM || state == STATE_MAX) next = operand;
        }
        if (!next) return NULL;
        value = next;
    }
    return NULL;
}

/* "tp splits F, line 15": the rules that made the term on these axes, each once. */
static const char *rules_of_terms(const shard *s, dtm_value value, uint16_t axes) {
    dtm_text text = {s->arena, NULL, 0, 0};
    for (int a = 0; a < s->module->settings.mesh.count; a++) {
        const char *rule = axes >> a & 1 && !(s->time >> a & 1) ? rule_of_term(s, value, a) : NULL;
        if (rule) dtm_text_printf(&text, "%s%s", text.length ? " and " : "", rule);
    }
    return text.data;
}

/* "`dot over D`, line 22," or "`keep x`" */
static const char *title_of_reader(const shard *s, dtm_op reader) {
    if (s->ops[reader].keep)
        return dtm_arena_printf(s->arena, "`keep %s`", dtm_string_text(s->module->context, s->ops[reader].keep->value));
    const char *title = shard_op_title(s, reader);
    return s->module->ops[reader].place.line ? dtm_arena_printf(s->arena, "%s,", title) : title;
}

static const char *name_of(const shard *s, const dtm_type_data *type, int d) { return dtm_dim_name(s->module, type->dims[d]); }

/* What a reader that is split otherwise needs of a dimension: all of it, for the rule that splits the reader. */
static const char *reason_to_gather(const shard *s, const dtm_type_data *from, const dtm_type_data *to, int d, dtm_op reader) {
    const char *title = title_of_reader(s, reader);
    for (int e = 0; e < from->rank; e++)
        if (to->layout[e].count > from->layout[e].count)
            return dtm_arena_printf(s->arena, "%s is split along %s, not %s", title, name_of(s, from, e), name_of(s, from, d));
    for (int i = to->layout[d].count; i < from->layout[d].count; i++) {
        const char *rule = rule_of_choice(s, reader, from->layout[d].splits[i].axis);
        if (rule) return dtm_arena_printf(s->arena, "%s needs all of %s: %s", title, name_of(s, from, d), rule);
    }
    return dtm_arena_printf(s->arena, "%s needs all of %s", title, name_of(s, from, d));
}

static const char *need_of_value(const shard *s, const dtm_type_data *from, const dtm_type_data *to, dtm_op reader) {
    if (s->takes_gradient[reader]) return "once a step";
    const char *title = title_of_reader(s, reader);
    for (int d = 0; d < from->rank; d++)
        if (from->layout[d].count < to->layout[d].count)
            return dtm_arena_printf(s->arena, "%s needs its block of %s of the value", title, name_of(s, from, d));
    return dtm_arena_printf(s->arena, "%s needs the value", title);
}

/* A weight that rests split is gathered for its use. */
static const char *reason_to_use(const shard *s, dtm_value value, const dtm_type_data *from, const dtm_type_data *to, dtm_op reader) {
    uint16_t axes = shard_rests(s, value) & dtm_type_split_axes(from) & ~dtm_type_split_axes(to);
    dtm_text text = {s->arena, NULL, 0, 0};
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        if (axes >> a & 1) dtm_text_printf(&text, "%s%s", text.length ? " and " : "", shard_rest_title(s, a));
    return axes ? dtm_arena_printf(s->arena, "%s: %s uses all of it", text.data, title_of_reader(s, reader)) : NULL;
}

const char *shard_reason(const shard *s, dtm_value value, const dtm_type_data *from, const dtm_type_data *to, dtm_op reader) {
    uint16_t reduced = (uint16_t)((from->sum & ~to->sum) | (from->max & ~to->max));
    if (reduced) {
        const char *rules = rules_of_terms(s, value, reduced), *need = need_of_value(s, from, to, reader);
        return rules ? dtm_arena_printf(s->arena, "%s: each rank has a term; %s", rules, need)
                     : dtm_arena_printf(s->arena, "%s, not a term", need);
    }
    const char *use = reason_to_use(s, value, from, to, reader);
    if (use) return use;
    for (int d = 0; d < from->rank; d++)
        if (from->layout[d].count > to->layout[d].count) return reason_to_gather(s, from, to, d, reader);
    const char *title = title_of_reader(s, reader);
    for (int d = 0; d < from->rank; d++)
        if (from->layout[d].count < to->layout[d].count)
            return dtm_arena_printf(s->arena, "%s works on its block of %s", title, name_of(s, from, d));
    if (to->sum & ~from->sum) return dtm_arena_printf(s->arena, "%s adds it to a term", title);
    return dtm_arena_printf(s->arena, "%s has its blocks in another order", title);
}
