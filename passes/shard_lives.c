/* What lies in memory when most does, before there are layouts: the fullest point is that of the whole values, unsplit.
 *
 *     stored     a value that an operator other than elementwise ones, reductions and norms makes or reads; or one that several
 *                read, if they cannot make it again from what backward reads anyway (fuse and its remaking, by a rule)
 *     alive      from the operator that makes it to the last that reads it; where these are in different repeats, from the
 *                beginning of the one to the end of the other, in every copy
 *     in place   an elementwise operator, and the gradient of logits, may write over what it reads last */
#include "passes/shard_tables.h"

typedef struct span {
    uint32_t from, to; /* places; 0: it has none */
} span;

static bool is_elementwise(dtm_op_kind kind) {
    return (kind >= DTM_OP_ADD && kind <= DTM_OP_EXPAND) || kind == DTM_OP_CROSS_ENTROPY_BACKWARD;
}

/* It is part of a kernel with its neighbours. */
static bool is_fused(dtm_op_kind kind) {
    return is_elementwise(kind) || shard_is_reduction(kind) || (kind >= DTM_OP_SOFTMAX && kind <= DTM_OP_CROSS_ENTROPY);
}

static bool is_read_backward(const shard *s, dtm_value v) {
    for (uint32_t i = 0; i < s->n_readers[v]; i++)
        if (s->ops[s->readers[v][i]].phase == PHASE_BACKWARD) return true;
    return false;
}

/* Whether readers elsewhere can make it from what is kept for them anyway. */
static bool is_remade(const shard *s, dtm_op def) {
    const dtm_op_data *data = dtm_op_get(s->module, def);
    if (!is_elementwise(data->kind) || s->ops[def].phase != PHASE_FORWARD) return false;
    for (uint32_t k = 0; k < data->n_operands; k++) {
        dtm_op of = s->module->values[data->operands[k]].def;
        if (of && s->module->ops[of].kind != DTM_OP_WEIGHT && !is_read_backward(s, data->operands[k])) return false;
    }
    return true;
}

static bool is_stored(const shard *s, dtm_value v) {
    dtm_op def = s->module->values[v].def;
    if (!def || s->weight_of[v] || s->ops[def].phase == PHASE_UPDATE) return false;
    dtm_op_kind kind = s->module->ops[def].kind;
    if (shard_is_source(kind)) return kind == DTM_OP_INPUT;
    if (kind == DTM_OP_LAST || kind == DTM_OP_SPLIT || kind == DTM_OP_MERGE || kind == DTM_OP_RENAME) return false;
    bool fused = is_fused(kind), inner = true;
    for (uint32_t i = 0; i < s->n_readers[v]; i++) {
        const dtm_op_data *reader = dtm_op_get(s->module, s->readers[v][i]);
        /* The slots of what a repeat carries hold its successors too. */
        if (reader->kind == DTM_OP_CARRY && !is_read_backward(s, v)) return false;
        fused &= is_fused(reader->kind);
        inner &= reader->region == s->module->ops[def].region;
    }
    return !fused || !((inner && s->n_readers[v] == 1) || is_remade(s, def));
}

/* ---- spans ---- */

static dtm_op outermost_repeat(const dtm_module *m, dtm_op op) {
    dtm_op outermost = 0;
    for (dtm_op at = dtm_enclosing(m, op, DTM_OP_REPEAT); at; at = dtm_enclosing(m, at, DTM_OP_REPEAT)) outermost = at;
    return outermost;
}

/* By repeat: the places of all that is in it. */
static span *repeat_spans(const shard *s) {
    span *spans = dtm_arena_alloc(s->arena, s->n_ops * sizeof *spans);
    for (size_t i = 0; i < s->n_order; i++) {
        dtm_op repeat = outermost_repeat(s->module, s->order[i]);
        if (!spans[repeat].from) spans[repeat].from = (uint32_t)i + 1;
        spans[repeat].to = (uint32_t)i + 1;
    }
    return spans;
}

/* Where an operator reads. A product that is added to what is made later, and to nothing else, is made there (fuse). */
static uint32_t reads_at(const shard *s, dtm_op reader) {
    const dtm_module *m = s->module;
    dtm_value product = m->ops[reader].n_results ? m->ops[reader].results[0] : 0;
    if (m->ops[reader].kind != DTM_OP_DOT || s->n_readers[product] != 1) return s->ops[reader].place;
    dtm_op sum = s->readers[product][0];
    bool added = m->ops[sum].kind == DTM_OP_ADD && m->ops[sum].region == m->ops[reader].region;
    return s->ops[added ? sum : reader].place;
}

static span span_of(const shard *s, const span *repeats, dtm_value v, bool *every_copy) {
    dtm_op def = s->module->values[v].def, repeat = outermost_repeat(s->module, def);
    span own = {s->ops[def].place, s->ops[def].place};
    bool leaves = false, in_place = false;
    for (uint32_t i = 0; i < s->n_readers[v]; i++) {
        dtm_op reader = s->readers[v][i], other = outermost_repeat(s->module, reader);
        if (s->ops[reader].phase == PHASE_UPDATE) continue;
        uint32_t to = other && other != repeat ? repeats[other].to : reads_at(s, reader);
        leaves |= other != repeat && s->module->ops[reader].kind != DTM_OP_LAST;
        if (to < own.to) continue;
        own.to = to;
        in_place = (!other || other == repeat) && is_elementwise(s->module->ops[reader].kind);
    }
    *every_copy = leaves && repeat;
    if (*every_copy) own.from = repeats[repeat].from;
    if (s->module->ops[def].kind == DTM_OP_CARRY && repeats[repeat].to > own.to) own.to = repeats[repeat].to;
    else if (in_place && own.to > own.from) own.to--;
    return own;
}

double *shard_fullest(const shard *s) {
    const dtm_module *m = s->module;
    span *spans = dtm_arena_alloc(s->arena, m->n_values * sizeof *spans), *repeats = repeat_spans(s);
    double *held = dtm_arena_alloc(s->arena, m->n_values * sizeof *held);
    double *steps = dtm_arena_alloc(s->arena, (s->n_order + 2) * sizeof *steps), now = 0, most = 0;
    uint32_t fullest = 0;
    for (dtm_value v = 1; v < m->n_values; v++) {
        if (!m->values[v].def || !s->ops[m->values[v].def].place || !is_stored(s, v)) continue;
        bool every_copy;
        spans[v] = span_of(s, repeats, v, &every_copy);
        held[v] = every_copy ? s->ops[m->values[v].def].copies : 1;
        double bytes = held[v] * (double)dtm_type_elements(m, m->values[v].type) *
                       (double)dtm_dtype_bytes((dtm_dtype)dtm_value_type(m, v)->dtype);
        steps[spans[v].from] += bytes;
        steps[spans[v].to + 1] -= bytes;
    }
    for (uint32_t place = 1; place <= s->n_order; place++) {
        now += steps[place];
        if (now > most) most = now, fullest = place;
    }
    for (dtm_value v = 1; v < m->n_values; v++)
        if (!spans[v].from || spans[v].from > fullest || spans[v].to < fullest) held[v] = 0;
    return held;
}
