/* What `AXIS splits ..` says of each operator: the first dimension listed that it has, and what splitting along it comes to. */
#include "passes/passes.h"
#include "passes/shard.h"

#include <string.h>

/* ---- the rules ---- */

static bool keep_names(const shard *s, const dtm_keep_rule *keep, dtm_value value) {
    const dtm_module *m = s->module;
    if (dtm_value_source_name(m, value) != keep->value) return false;
    dtm_op repeat = dtm_value_repeat(m, value);
    return (repeat ? m->ops[repeat].attributes.name : 0) == keep->region;
}

/* A dimension that no value of the name has is a slip. */
static void check_keep(shard *s, const dtm_keep_rule *keep) {
    dtm_module *m = s->module;
    dtm_value named = 0;
    uint16_t lacking = (uint16_t)((1u << keep->count) - 1);
    for (dtm_value v = 1; v < m->n_values; v++) {
        dtm_op def = m->values[v].def;
        if (!def || !m->ops[def].region || !keep_names(s, keep, v)) continue;
        named = v;
        for (int d = 0; d < keep->count; d++)
            if (dtm_type_dim_index(dtm_value_type(m, v), keep->dims[d].dim) >= 0) lacking &= (uint16_t)~(1u << d);
    }
    if (!named || !lacking) return;
    dtm_text type = {.arena = s->arena};
    dtm_type_print(m, m->values[named].type, false, &type);
    dtm_error(m->context, keep->span, 235, "`keep` names the dimension %s, which %s has not: it is %.*s",
              dtm_dim_name(m, keep->dims[__builtin_ctz(lacking)].dim), dtm_string_text(m->context, keep->value), (int)type.length,
              type.data);
    dtm_help(m->context, "name its own dimensions");
    s->failed = true;
}

/* `keep x`: all readers of x read a relayout of it instead, whose layout is the one kept. */
static void insert_keeps(shard *s) {
    dtm_module *m = s->module;
    size_t n = m->n_values;
    for (size_t k = 0; k < m->settings.n_keeps; k++) {
        const dtm_keep_rule *keep = &m->settings.keeps[k];
        for (dtm_value v = 1; v < n; v++) {
            dtm_op def = m->values[v].def;
            if (!def || !m->ops[def].region || !keep_names(s, keep, v)) continue;
            dtm_builder b = dtm_builder_after(m, def);
            dtm_type type = m->values[v].type;
            dtm_op op = dtm_build_op(&b, DTM_OP_RELAYOUT, &v, 1, NULL, &type, 1, dtm_value_name(m, v));
            dtm_value kept = dtm_result(m, op, 0);
            dtm_replace_uses(m, v, kept);
            m->ops[op].operands[0] = v;
            DTM_PUSH(s->arena, s->keeps, s->n_keeps, s->cap_keeps, ((shard_keep){op, keep}));
        }
    }
}

void shard_rules(shard *s) {
    dtm_module *m = s->module;
    shard_time_axis(s);
    const dtm_mesh *mesh = &m->settings.mesh;
    for (int a = 0; a < mesh->count; a++)
        if (mesh->axes[a].size > 1 && !(m->settings.pipeline.present && m->settings.pipeline.axis == a)) { /* a pipeline splits no tensor */
            s->axes |= (uint16_t)(1 << a);
            if (mesh->axes[a].time) s->time |= (uint16_t)(1 << a);
        }
    for (size_t i = 0; i < m->settings.n_splits; i++) s->rules[m->settings.splits[i].axis] = &m->settings.splits[i];
    shard_time_rule(s);
    for (size_t k = 0; k < m->settings.n_keeps; k++) check_keep(s, &m->settings.keeps[k]);
    if (s->axes && !s->failed) insert_keeps(s);
}

/* ---- the first dimension listed ---- */

static bool has_name(const dtm_factor *f, dtm_dim dim) {
    for (int i = 0; i < f->n_names; i++)
        if (f->names[i] == dim) return true;
    return false;
}

static bool is_attention(dtm_op_kind kind) { return kind == DTM_OP_ATTENTION || kind == DTM_OP_ATTENTION_BACKWARD; }

/* The factor of attention whose blocks `alltoall` hands out: query heads if they have a name of their own, else the last
 * dimension that queries and keys share. */
static int heads_factor(const shard *s, dtm_op op) {
    const shard_op *o = &s->ops[op];
    int found = -1;
    for (int f = 0; f < o->n_factors; f++) {
        const dtm_factor *factor = &o->factors[f];
        if (factor->positions || factor->kind == DTM_FACTOR_FIXED) continue;
        if (factor->n_names == 2 || factor->operand_dim[1] < 0) return f;
        if (factor->operand_dim[0] > 0) found = f;
    }
    return found;
}

/* `using` not said: gathering keys and values, and scattering their gradients, or exchanging all that goes in and out. */
static bool gather_is_cheaper(const shard *s, dtm_op op, int axis) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    double gather = 0, exchange = 0, time;
    for (uint32_t i = 0; i < 3; i++) {
        int64_t bytes = dtm_local_bytes_max(s->module, s->module->values[data->operands[i]].type);
        dtm_algorithm_choose(s->module, DTM_COLLECTIVE_ALL_TO_ALL, (uint16_t)(1 << axis), bytes, &time);
        exchange += i ? time : 2 * time; /* o is as large as q */
        if (!i) continue;
        dtm_algorithm_choose(s->module, DTM_COLLECTIVE_ALL_GATHER, (uint16_t)(1 << axis), bytes, &time);
        gather += time;
    }
    return gather <= exchange;
}

bool shard_uses_positions(const shard *s, dtm_op op, int axis) {
    const dtm_splits_rule *rule = s->rules[axis];
    int first = rule->by_cost ? 0 : shard_listed_index(s, op, axis), last = rule->by_cost ? rule->count - 1 : first;
    if (!is_attention(s->module->ops[op].kind)) return false;
    for (int i = first; i >= 0 && i <= last; i++)
        for (int f = 0; f < s->ops[op].n_factors; f++)
            if (s->ops[op].factors[f].positions && has_name(&s->ops[op].factors[f], rule->dims[i])) return true;
    return false;
}

static shard_choice heads_choice(const shard *s, dtm_op op, int axis, int factor) {
    const dtm_factor *f = &s->ops[op].factors[factor];
    bool few = f->n_names == 2 && s->few[axis][f->names[1]];
    return (shard_choice)((few ? CHOICE_QUERIES : CHOICE_FACTOR) + factor);
}

static shard_choice positions_choice(const shard *s, dtm_op op, int axis, int factor) {
    dtm_using using = s->rules[axis]->using;
    int heads = heads_factor(s, op);
    bool exchange = using == DTM_USING_ALLTOALL || (using == DTM_USING_COST && !gather_is_cheaper(s, op, axis));
    if (exchange && heads >= 0) return heads_choice(s, op, axis, heads);
    return (shard_choice)(CHOICE_FACTOR + factor);
}

shard_choice shard_choice_for(const shard *s, dtm_op op, int axis, dtm_dim dim) {
    const shard_op *o = &s->ops[op];
    for (int f = 0; f < o->n_factors; f++) {
        const dtm_factor *factor = &o->factors[f];
        if (factor->kind == DTM_FACTOR_FIXED || !has_name(factor, dim)) continue;
        if (factor->positions) return positions_choice(s, op, axis, f);
        if (is_attention(s->module->ops[op].kind)) return heads_choice(s, op, axis, f);
        return s->few[axis][dim] ? CHOICE_ALIKE : (shard_choice)(CHOICE_FACTOR + f);
    }
    return CHOICE_NONE;
}

int shard_listed_index(const shard *s, dtm_op op, int axis) {
    for (int i = 0; s->rules[axis] && i < s->rules[axis]->count; i++)
        if (shard_choice_for(s, op, axis, s->rules[axis]->dims[i]) != CHOICE_NONE) return i;
    return -1;
}

shard_choice shard_listed(const shard *s, dtm_op op, int axis) {
    if (!s->rules[axis]) return CHOICE_NONE;
    if (s->ops[op].inner[axis]) {
        shard_choice choice = shard_choice_for(s, op, axis, s->ops[op].inner[axis]);
        return choice == CHOICE_NONE ? CHOICE_ALIKE : choice;
    }
    int i = shard_listed_index(s, op, axis);
    return i < 0 ? CHOICE_NONE : shard_choice_for(s, op, axis, s->rules[axis]->dims[i]);
}

bool shard_has_dim(const shard *s, dtm_op op, int axis, dtm_dim dim) { return shard_choice_for(s, op, axis, dim) != CHOICE_NONE; }

const dtm_factor *shard_split_factor(const shard *s, dtm_op op, shard_choice choice) {
    if (choice < CHOICE_FACTOR || choice >= CHOICE_STATE) return NULL;
    return &s->ops[op].factors[choice - (choice >= CHOICE_QUERIES ? CHOICE_QUERIES : CHOICE_FACTOR)];
}

/* ---- key/value heads too few for the axes that split heads ---- */

bool shard_lists(const dtm_splits_rule *rule, dtm_dim a, dtm_dim b) {
    for (int i = 0; rule && i < rule->count; i++)
        if (rule->dims[i] == a || rule->dims[i] == b) return true;
    return false;
}

static void mark_few(shard *s, dtm_op op) {
    if (!is_attention(s->module->ops[op].kind)) return;
    for (int f = 0; f < s->ops[op].n_factors; f++) {
        const dtm_factor *factor = &s->ops[op].factors[f];
        if (factor->n_names < 2) continue;
        int64_t groups = s->module->dims[factor->names[1]].size, parts = 1;
        for (int by_list = 1; by_list >= 0; by_list--) /* first the axes that list heads, then those that exchange them */
            for (int a = 0; a < s->module->settings.mesh.count; a++) {
                if (!(s->axes >> a & 1) || (s->time >> a & 1) || shard_lists(s->rules[a], factor->names[0], factor->names[1]) != by_list)
                    continue;
                if (!by_list && (!s->rules[a] || !shard_lists(s->rules[a], s->module->ops[op].attributes.over[0], 0) ||
                                 s->rules[a]->using == DTM_USING_GATHER))
                    continue;
                int64_t size = s->module->settings.mesh.axes[a].size;
                if (parts * size > groups) s->few[a][factor->names[1]] = true;
                else parts *= size;
            }
    }
}

/* ---- operators to be expanded ---- */

/* By cost any dimension listed may come out; `worth` says which operators it is worth to expand, where that is known. */
static bool normalises(const shard *s, dtm_op op, int axis, dtm_dim *dim) {
    const dtm_splits_rule *rule = s->rules[axis];
    for (int i = 0; rule && i < rule->count; i++) {
        const dtm_factor *f = shard_split_factor(s, op, shard_choice_for(s, op, axis, rule->dims[i]));
        if (!rule->by_cost && i != shard_listed_index(s, op, axis)) continue;
        if (!f || f->kind != DTM_FACTOR_NORMALISED) continue;
        if (rule->by_cost && s->worth && !(s->worth[op] >> axis & 1)) continue;
        *dim = f->names[0];
        return true;
    }
    return false;
}

static void attach_keeps(shard *s) {
    for (size_t i = 0; i < s->n_keeps; i++) s->ops[s->keeps[i].op].keep = s->keeps[i].rule;
}

bool shard_expand(shard *s) {
    dtm_module *m = s->module;
    for (int a = 0; a < DTM_MAX_AXES; a++) s->few[a] = dtm_arena_alloc(s->arena, m->n_dims);
    for (size_t i = 0; i < s->n_order; i++) mark_few(s, s->order[i]);
    dtm_op *expanded = s->order;
    size_t n = s->n_order;
    bool any = false;
    const uint32_t *uses = dtm_use_counts(m, s->arena);
    for (size_t i = 0; i < n; i++) {
        dtm_dim inner[DTM_MAX_AXES] = {0};
        bool found = false;
        if (s->ops[expanded[i]].phase == PHASE_UPDATE) continue;
        for (int a = 0; a < m->settings.mesh.count; a++)
            if (s->axes >> a & 1 && normalises(s, expanded[i], a, &inner[a])) found = true;
        if (!found) continue;
        size_t first = m->n_ops;
        if (!dtm_expand(m, expanded[i], uses))
            dtm_broken("shard", "%s cannot be expanded", dtm_op_rows[m->ops[expanded[i]].kind].name);
        for (dtm_op made = (dtm_op)first; made < m->n_ops; made++) {
            shard_inner mark = {made, expanded[i], {0}};
            memcpy(mark.dims, inner, sizeof inner);
            DTM_PUSH(s->arena, s->inners, s->n_inners, s->cap_inners, mark);
        }
        any = true;
    }
    if (any) shard_describe(s);
    for (size_t i = 0; i < s->n_inners; i++)
        memcpy(s->ops[s->inners[i].op].inner, s->inners[i].dims, sizeof s->inners[i].dims);
    attach_keeps(s);
    return true;
}

/* ---- units ---- */

/* Of two numbers below 2^32: it is below 2^64. */
static uint64_t common_multiple(uint64_t a, uint64_t b) {
    uint64_t x = a, y = b;
    while (y) {
        uint64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

static uint32_t checked_unit(shard *s, const dtm_op_data *op, dtm_dim dim, uint64_t base, uint32_t unit) {
    uint64_t product;
    if (!__builtin_mul_overflow(base, unit, &product) && product <= UINT32_MAX) return (uint32_t)product;
    if (!s->failed)
        dtm_error(s->module->context, op->span, 315, "`%s`: %s = %lld would be split in multiples of more than 2^32 elements",
                  dtm_op_rows[op->kind].name, dtm_dim_name(s->module, dim), (long long)s->module->dims[dim].size);
    s->failed = true;
    return unit;
}

/* In what multiples the factor must be split so that every dimension of it is cut where others want it cut. */
static bool agree_on_units(shard *s, dtm_op op, int axis, const dtm_factor *f) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    uint64_t base = 1;
    uint32_t *units = s->units[axis];
    bool changed = false;
    for (int write = 0; write < 2; write++)
        for (uint32_t i = 0; i < data->n_operands + data->n_results; i++) {
            bool result = i >= data->n_operands;
            uint32_t index = result ? i - data->n_operands : i;
            int dim = result ? f->result_dim[index] : f->operand_dim[index];
            if (dim < 0) continue;
            dtm_dim name = dtm_value_type(s->module, result ? data->results[index] : data->operands[index])->dims[dim];
            uint32_t unit = result ? f->result_unit[index] : f->operand_unit[index];
            if (!write) {
                base = common_multiple(base, common_multiple(units[name], unit) / unit);
                if (base > UINT32_MAX) base = UINT32_MAX;
                continue;
            }
            uint32_t wanted = checked_unit(s, data, name, base, unit);
            changed |= units[name] != wanted;
            units[name] = wanted;
        }
    return changed;
}

void shard_units(shard *s) {
    for (int a = 0; a < s->module->settings.mesh.count; a++) {
        s->units[a] = dtm_arena_alloc(s->arena, s->module->n_dims * sizeof *s->units[a]);
        for (size_t d = 0; d < s->module->n_dims; d++) s->units[a][d] = 1;
        bool changed = (s->axes >> a & 1) != 0;
        for (int round = 0; changed && round < 16; round++) {
            changed = false;
            for (size_t i = 0; i < s->n_order; i++) {
                shard_choice choice = s->ops[s->order[i]].choice[a];
                if (choice < CHOICE_FACTOR || choice >= CHOICE_QUERIES) continue;
                changed |= agree_on_units(s, s->order[i], a, &s->ops[s->order[i]].factors[choice - CHOICE_FACTOR]);
            }
        }
    }
}
