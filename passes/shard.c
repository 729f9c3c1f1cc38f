/* shard: from the whole program on one big machine to the same program with a layout on every type.
 *
 *   before   p : f32[B, S, D] = dot(h, down over F)
 *            e : f32[B, S, D] = p - y
 *   after    p.term : f32[B=8@dp, S=16, D=64] sum@tp = dot(h, down over F)    why "tp splits F, line 15: ..."
 *            p      : f32[B=8@dp, S=16, D=64] = relayout(p.term)              why "`-`, line 8, needs the value .."
 *            e      : f32[B=8@dp, S=16, D=64] = p - y
 *
 * 1. rules (shard_splits.c): on each axis an operator is split along the first dimension listed that it has. That leaves
 *    open what has none of them, what may stay pending, and what comes from nowhere or is handed on: a list of choices.
 * 2. choice (shard_choose.c): one axis after the other, the choices of least modelled time, exactly (shard_solve.c).
 * 3. update (shard_update.c): follows the weights' layouts.
 * 4. layouts (shard_layouts.c): types from choices; where a reader's differs from the producer's, a relayout.
 *
 * No parallelism is a case here: pairs of column and row products, sequence parallelism, exchanges around attention are
 * what comes out. */
#include "passes/shard.h"
#include "passes/passes.h"

#include <string.h>

/* ---- what a choice makes of operands and results ---- */

static const dtm_factor *factor_at(const shard *s, dtm_op op, shard_choice choice, bool *queries) {
    *queries = choice >= CHOICE_QUERIES;
    return &s->ops[op].factors[choice - (*queries ? CHOICE_QUERIES : CHOICE_FACTOR)];
}

shard_state shard_operand_state(const shard *s, dtm_op op, shard_choice choice, uint32_t operand) {
    if (choice == CHOICE_NONE || choice == CHOICE_ALIKE) return STATE_ALIKE;
    if (choice >= CHOICE_STATE) return choice - CHOICE_STATE;
    if (choice < CHOICE_FACTOR) return s->ops[op].sets[choice - CHOICE_TERM] >> operand & 1 ? STATE_SUM : STATE_ALIKE;
    bool queries;
    const dtm_factor *f = factor_at(s, op, choice, &queries);
    if (f->operand_dim[operand] < 0 || (queries && (operand == 1 || operand == 2))) return STATE_ALIKE;
    return (shard_state)(STATE_DIM + f->operand_dim[operand]);
}

shard_state shard_result_state(const shard *s, dtm_op op, shard_choice choice, uint32_t result) {
    if (choice == CHOICE_NONE || choice == CHOICE_ALIKE) return STATE_ALIKE;
    if (choice >= CHOICE_STATE) return choice - CHOICE_STATE;
    if (choice < CHOICE_FACTOR) return STATE_SUM;
    bool queries;
    const dtm_factor *f = factor_at(s, op, choice, &queries);
    if (queries && s->module->ops[op].kind == DTM_OP_ATTENTION_BACKWARD && result > 0) return STATE_SUM;
    if (f->result_dim[result] >= 0) return (shard_state)(STATE_DIM + f->result_dim[result]);
    if (f->kind != DTM_FACTOR_REDUCED) return STATE_ALIKE;
    return f->is_max ? STATE_MAX : STATE_SUM;
}

bool shard_is_constant(const shard *s, dtm_value value) { return !s->module->values[value].def; }

shard_state shard_value_state(const shard *s, dtm_value value, int axis) {
    dtm_op def = s->module->values[value].def;
    if (!def) return STATE_ALIKE;
    return shard_result_state(s, def, s->ops[def].choice[axis], s->module->values[value].result);
}

bool shard_is_source(dtm_op_kind kind) { return kind >= DTM_OP_INPUT && kind <= DTM_OP_BIAS_CORRECTION; }

bool shard_is_identity(dtm_op_kind kind) {
    return kind == DTM_OP_CARRY || kind == DTM_OP_LAST || kind == DTM_OP_OUTPUT || kind == DTM_OP_RELAYOUT;
}

double shard_local_bytes(const shard *s, dtm_value value, uint16_t without) {
    const dtm_module *m = s->module;
    const dtm_type_data *type = dtm_value_type(m, value);
    double parts[DTM_MAX_RANK], bytes = (double)dtm_dtype_bytes((dtm_dtype)type->dtype);
    for (int d = 0; d < type->rank; d++) parts[d] = 1;
    for (int a = 0; a < m->settings.mesh.count; a++) {
        if (without >> a & 1 || !(s->axes >> a & 1)) continue;
        shard_state state = shard_value_state(s, value, a);
        if (state >= STATE_DIM) parts[state - STATE_DIM] *= (double)m->settings.mesh.axes[a].size;
    }
    for (int d = 0; d < type->rank; d++) {
        double size = (double)m->dims[type->dims[d]].size / parts[d];
        bytes *= size < 1 ? 1 : size;
    }
    return bytes;
}

/* ---- titles ---- */

const char *shard_op_title(const shard *s, dtm_op op) {
    const dtm_module *m = s->module;
    const dtm_op_data *data = dtm_op_get(m, op);
    dtm_text text = {s->arena, NULL, 0, 0};
    dtm_text_printf(&text, "`%s", dtm_op_rows[data->kind].name);
    for (int i = 0; i < data->attributes.n_over; i++)
        dtm_text_printf(&text, "%s%s", i ? ", " : " over ", dtm_dim_name(m, data->attributes.over[i]));
    dtm_text_printf(&text, "`");
    if (data->place.line) dtm_text_printf(&text, ", line %u", data->place.line);
    return text.data;
}

const char *shard_rule_title(const shard *s, int axis, dtm_dim dim) {
    const dtm_module *m = s->module;
    dtm_text text = {s->arena, NULL, 0, 0};
    dtm_text_printf(&text, "%s splits %s", dtm_string_text(m->context, m->settings.mesh.axes[axis].name),
                    dtm_dim_name(m, dim));
    const dtm_splits_rule *rule = s->rules[axis];
    if (rule && rule->place.line) dtm_text_printf(&text, ", line %u", rule->place.line);
    return text.data;
}

/* ---- describing the module ---- */

static shard_phase phase_of(const dtm_module *m, dtm_op op) {
    for (dtm_op at = op; at; at = dtm_enclosing(m, at, DTM_OP_NONE)) {
        if (m->ops[at].kind == DTM_OP_FORWARD) return PHASE_FORWARD;
        if (m->ops[at].kind == DTM_OP_BACKWARD) return PHASE_BACKWARD;
        if (m->ops[at].kind == DTM_OP_UPDATE) return PHASE_UPDATE;
    }
    return PHASE_BODY;
}

static void describe(dtm_module *m, dtm_op op, void *state) {
    shard *s = state;
    if (m->ops[op].body) return;
    shard_op *o = &s->ops[op];
    dtm_factor factors[DTM_MAX_FACTORS];
    o->n_factors = (uint8_t)dtm_factors(m, op, factors);
    o->factors = dtm_arena_alloc(s->arena, (o->n_factors + 1u) * sizeof *factors);
    memcpy(o->factors, factors, o->n_factors * sizeof *factors);
    o->n_sets = (uint8_t)dtm_linear_sets(m, op, o->sets);
    o->phase = phase_of(m, op);
    o->copies = 1;
    for (dtm_op at = dtm_enclosing(m, op, DTM_OP_REPEAT); at; at = dtm_enclosing(m, at, DTM_OP_REPEAT))
        o->copies *= (double)m->ops[at].attributes.copies;
    o->place = (uint32_t)++s->n_order;
    s->order[o->place - 1] = op;
    for (uint32_t i = 0; i < m->ops[op].n_operands; i++) s->n_readers[m->ops[op].operands[i]]++;
    if (m->ops[op].kind != DTM_OP_GRADIENT) return;
    dtm_value gradient = m->ops[op].operands[1], made = dtm_gradient_made(m, op);
    s->weight_of[gradient] = s->weight_of[made] = m->ops[op].operands[0];
    s->takes_gradient[made == gradient ? op : m->values[gradient].def] = true;
}

static void note_reader(shard *s, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    for (uint32_t i = 0; i < data->n_operands; i++) {
        dtm_value v = data->operands[i];
        if (!s->readers[v]) {
            s->readers[v] = dtm_arena_alloc(s->arena, s->n_readers[v] * sizeof *s->readers[v]);
            s->n_readers[v] = 0;
        }
        if (s->n_readers[v] && s->readers[v][s->n_readers[v] - 1] == op) continue;
        s->readers[v][s->n_readers[v]++] = op;
    }
}

/* The weight whose path a state's path extends: "layer.{layer}.wq.m" belongs to "layer.{layer}.wq". Paths are interned, so
 * that equal ones are one string. */
static dtm_op find_weight(const shard *s, dtm_op state) {
    const dtm_module *m = s->module;
    const char *path = dtm_string_text(m->context, m->ops[state].attributes.name);
    for (size_t length = strlen(path); length-- > 0;) {
        if (path[length] != '.') continue;
        dtm_string name = dtm_string_intern(m->context, path, length);
        for (size_t i = 0; i < s->n_order; i++)
            if (m->ops[s->order[i]].kind == DTM_OP_WEIGHT && m->ops[s->order[i]].attributes.name == name) return s->order[i];
    }
    return 0;
}

void shard_describe(shard *s) {
    dtm_module *m = s->module;
    shard_op *ops = dtm_arena_alloc(s->arena, m->n_ops * sizeof *ops);
    for (dtm_op op = 0; op < m->n_ops; op++) {
        if (op < s->n_ops) {
            ops[op] = s->ops[op];
            ops[op].place = 0;
        } else memset(ops[op].choice, CHOICE_NONE, sizeof ops[op].choice);
    }
    s->ops = ops;
    s->n_ops = m->n_ops;
    s->order = dtm_arena_alloc(s->arena, m->n_ops * sizeof *s->order);
    s->n_order = 0;
    s->weight_of = dtm_arena_alloc(s->arena, m->n_values * sizeof *s->weight_of);
    s->takes_gradient = dtm_arena_alloc(s->arena, m->n_ops * sizeof *s->takes_gradient);
    s->readers = dtm_arena_alloc(s->arena, m->n_values * sizeof *s->readers);
    s->n_readers = dtm_arena_alloc(s->arena, m->n_values * sizeof *s->n_readers);
    dtm_walk(m, describe, s);
    for (size_t i = 0; i < s->n_order; i++) note_reader(s, s->order[i]);
    s->weight_of_state = dtm_arena_alloc(s->arena, m->n_ops * sizeof *s->weight_of_state);
    for (size_t i = 0; i < s->n_order; i++)
        if (m->ops[s->order[i]].kind == DTM_OP_STATE) s->weight_of_state[s->order[i]] = find_weight(s, s->order[i]);
}

/* ---- the pass ---- */

static bool choose(shard *s) {
    shard_rules(s);
    if (!s->axes) return true;
    shard_describe(s);
    if (!shard_expand(s)) return false;
    shard_domains(s);
    shard_reorder_sums(s);
    return shard_choose(s);
}

static bool any_by_cost(const dtm_module *module) {
    for (size_t i = 0; i < module->settings.n_splits; i++)
        if (module->settings.splits[i].by_cost) return true;
    return false;
}

/* By cost, whether to split along what an operator normalises is known only once it is written in smaller ones: a trial
 * on a copy of the module, all of them expanded, says which are to be. */
static uint16_t *try_expanding(const dtm_module *module, dtm_arena *arena) {
    uint16_t *worth = dtm_arena_alloc(arena, module->n_ops * sizeof *worth);
    shard s = {.module = dtm_module_clone(module), .arena = dtm_arena_create()};
    size_t errors = dtm_error_count(module->context);
    choose(&s);
    for (size_t i = 0; dtm_error_count(module->context) == errors && i < s.n_inners; i++)
        for (int a = 0; a < module->settings.mesh.count; a++) {
            shard_choice choice = s.ops[s.inners[i].op].choice[a];
            if (!s.inners[i].dims[a] || choice < CHOICE_FACTOR || choice >= CHOICE_STATE) continue;
            const dtm_factor *f = &s.ops[s.inners[i].op].factors[(choice - CHOICE_FACTOR) % (CHOICE_QUERIES - CHOICE_FACTOR)];
            if (f->names[0] == s.inners[i].dims[a] && s.inners[i].of < module->n_ops) worth[s.inners[i].of] |= (uint16_t)(1 << a);
        }
    dtm_arena_destroy(s.arena);
    dtm_module_destroy(s.module);
    return worth;
}

bool dtm_pass_shard(dtm_module *module) {
    shard s = {.module = module, .arena = dtm_arena_create()};
    if (any_by_cost(module)) s.worth = try_expanding(module, s.arena);
    s.failed = dtm_error_count(module->context) || !choose(&s);
    if (!s.failed && s.axes) {
        shard_rest(&s);
        shard_update(&s);
        shard_units(&s);
        shard_warnings(&s);
        shard_layouts(&s);
        shard_warn_empty(&s);
    }
    dtm_arena_destroy(s.arena);
    module->after = dtm_string_of(module->context, "shard");
    return !s.failed && dtm_error_count(module->context) == 0;
}
