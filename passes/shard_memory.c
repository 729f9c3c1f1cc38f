/* What a rank holds, estimated from choices before there are any storages, so that a search can be bounded by it:
 *
 *     every weight, as often as it has copies, with its gradient and the optimizer's states of it, split as the weight is;
 *     every value that lies in memory at the fullest point of the step (shard_lives.c): what the backward pass reads, once in
 *     each state in which it is read there; what is made and read on the way, as it is made;
 *     a copy of a weight that the backward pass reads in another state than it rests in.
 *
 * tests/unit/test_shard.c compares it with what the memory pass allocates.
 * A value's bytes are the product of its parts on each axis; the states it is kept in on one axis do not depend on those
 * on another. */
#include "passes/shard_tables.h"

#include <math.h>

enum { MAX_PARTS = MAX_OVER };

/* What the table of one value is over, on one axis: by index, what part of the value is held and in which states. */
typedef struct part {
    uint32_t size;
    double *share;
    uint32_t *held; /* bit s: in state s */
    bool is_rest;   /* of a weight: the state in which it rests */
} part;

static double share_of(const chooser *c, dtm_value value, shard_state state) {
    if (state < STATE_DIM) return 1;
    const dtm_type_data *type = dtm_value_type(c->s->module, value);
    double n = (double)c->s->module->dims[type->dims[state - STATE_DIM]].size;
    return n > 0 ? ceil(n / shard_axis_size(c, c->axis)) / n : 1;
}

static double whole_bytes(const shard *s, dtm_value value) {
    const dtm_module *m = s->module;
    return (double)dtm_type_elements(m, m->values[value].type) *
           (double)dtm_dtype_bytes((dtm_dtype)dtm_value_type(m, value)->dtype);
}

/* ---- parts ---- */

static part new_part(const chooser *c, uint32_t size, bool is_rest) {
    part p = {size, NULL, NULL, is_rest};
    p.share = dtm_arena_alloc(c->s->arena, size * sizeof *p.share);
    p.held = dtm_arena_alloc(c->s->arena, size * sizeof *p.held);
    return p;
}

static void hold(const chooser *c, part *p, uint32_t index, dtm_value value, shard_state state) {
    if (p->held[index] >> state & 1) return;
    p->held[index] |= 1u << state;
    p->share[index] += share_of(c, value, state);
}

static part part_of_end(const chooser *c, dtm_value value, end e, bool is_rest, table *t) {
    part p = new_part(c, shard_end_count(c, e), is_rest);
    for (uint32_t i = 0; i < p.size; i++) hold(c, &p, i, value, shard_end_state(c, e, i));
    shard_table_over(t, shard_end_variable(c, e), p.size);
    return p;
}

static part part_of_readers(chooser *c, dtm_value value, const end *readers, size_t n, table *t) {
    if (n == 1) return part_of_end(c, value, readers[0], false, t);
    states set = {0};
    uint32_t *sets, n_sets;
    for (size_t i = 0; i < n; i++) shard_states_add(c, readers[i], &set);
    uint32_t held = shard_held(c, &set, readers, n, &sets, &n_sets);
    part p = new_part(c, n_sets, false);
    for (uint32_t k = 0; k < n_sets; k++)
        for (uint32_t i = 0; i < set.count; i++)
            if (sets[k] >> i & 1) hold(c, &p, k, value, set.list[i]);
    shard_table_over(t, held, n_sets);
    return p;
}

/* Bytes for each combination of the parts' indices: their product; nothing where a weight is read only as it rests. */
static void add_product(chooser *c, const table *t, const part *parts, double bytes) {
    double *costs = dtm_arena_alloc(c->s->arena, shard_table_size(t) * sizeof *costs);
    for (size_t index = 0; index < shard_table_size(t); index++) {
        double product = bytes;
        bool differs = true, any_rest = false;
        size_t rest = index;
        uint32_t at[MAX_PARTS];
        for (uint32_t i = t->count; i-- > 0; rest /= parts[i].size) at[i] = (uint32_t)(rest % parts[i].size);
        for (uint32_t i = 0; i < t->count; i++) {
            if (!parts[i].is_rest) product *= parts[i].share[at[i]];
            else if (!any_rest) any_rest = true, differs = false;
            if (parts[i].is_rest) differs |= parts[i].held[at[i]] != parts[i + 1].held[at[i + 1]];
        }
        costs[index] = differs ? product : 0;
    }
    shard_table_add(c, SHARD_MEMORY, t, costs);
}

/* ---- what is held ---- */

static bool has_choice(const chooser *c, dtm_op op) {
    return c->s->axes >> c->axis & 1 && c->s->ops[op].domain[c->axis].count > 0;
}

/* The operators of the backward pass that read a value, and as which operand. */
static end *backward_readers(const shard *s, dtm_value value, size_t *n) {
    size_t capacity = 0;
    end *readers = NULL;
    *n = 0;
    for (uint32_t i = 0; i < s->n_readers[value]; i++) {
        dtm_op op = s->readers[value][i];
        const dtm_op_data *data = dtm_op_get(s->module, op);
        if (s->ops[op].phase != PHASE_BACKWARD || data->kind == DTM_OP_GRADIENT || data->kind == DTM_OP_STORE) continue;
        for (uint32_t k = 0; k < data->n_operands; k++)
            if (data->operands[k] == value) DTM_PUSH(s->arena, readers, *n, capacity, ((end){op, (int32_t)k}));
    }
    return readers;
}

/* A value in `copies` copies: as the backward pass reads it, or as it is made. */
static void add_value(chooser *c, dtm_value value, double copies) {
    const shard *s = c->s;
    dtm_op def = s->module->values[value].def;
    bool is_weight = s->module->ops[def].kind == DTM_OP_WEIGHT;
    size_t n;
    end *readers = backward_readers(s, value, &n);
    bool saved = n && s->ops[def].phase != PHASE_BACKWARD;
    if (is_weight && !saved) return;
    table t = {0};
    part parts[MAX_PARTS];
    for (c->axis = 0; c->axis < s->module->settings.mesh.count; c->axis++) {
        if (!has_choice(c, def)) continue;
        end own = {def, -1 - (int32_t)s->module->values[value].result};
        if (is_weight) {
            uint32_t i = t.count;
            parts[i] = part_of_end(c, value, own, true, &t);
        }
        uint32_t i = t.count;
        parts[i] = saved ? part_of_readers(c, value, readers, n, &t) : part_of_end(c, value, own, false, &t);
    }
    add_product(c, &t, parts, whole_bytes(s, value) * copies);
}

static void add_weight(chooser *c, dtm_op weight, double times) {
    const shard *s = c->s;
    dtm_value value = s->module->ops[weight].results[0];
    table t = {0};
    part parts[MAX_PARTS];
    for (c->axis = 0; c->axis < s->module->settings.mesh.count; c->axis++) {
        if (!has_choice(c, weight)) continue;
        uint32_t i = t.count;
        parts[i] = part_of_end(c, value, (end){weight, -1}, false, &t);
    }
    add_product(c, &t, parts, whole_bytes(s, value) * times * s->ops[weight].copies);
}

void shard_tables_of_memory(chooser *c) {
    const shard *s = c->s;
    const double *held = shard_fullest(s);
    double *times = dtm_arena_alloc(s->arena, s->n_ops * sizeof *times); /* by weight: itself, its gradient, its states */
    for (size_t i = 0; i < s->n_order; i++) {
        const dtm_op_data *data = dtm_op_get(s->module, s->order[i]);
        dtm_op weight = data->kind == DTM_OP_STATE ? s->weight_of_state[s->order[i]] : 0;
        if (data->kind == DTM_OP_WEIGHT) weight = s->order[i];
        if (data->kind == DTM_OP_GRADIENT) weight = s->module->values[data->operands[0]].def;
        if (weight) times[weight]++;
    }
    for (size_t i = 0; i < s->n_order; i++) {
        const dtm_op_data *data = dtm_op_get(s->module, s->order[i]);
        bool is_weight = data->kind == DTM_OP_WEIGHT;
        if (is_weight) add_weight(c, s->order[i], times[s->order[i]]);
        for (uint32_t r = 0; r < data->n_results; r++) {
            double copies = is_weight ? s->ops[s->order[i]].copies : held[data->results[r]];
            if (copies > 0) add_value(c, data->results[r], copies);
        }
    }
}

double shard_memory(shard *s) {
    chooser c = shard_chooser(s, 0);
    shard_tables_of_memory(&c);
    return shard_search_total(c.search, SHARD_MEMORY, NULL);
}
