/* The order of sums. `(x + P1) + P2` with two terms P1, P2 would be reduced twice, `x + (P1 + P2)` once: in a chain of `+`
 * that nothing else reads, summands pending on the same axes are added first, those pending on more axes before others. */
#include "passes/shard.h"

#include <string.h>

enum { MAX_SUMMANDS = 32 };

/* Whether a result of an operator is a term on an axis: by the first choice that it has, or because a term passes it. */
static bool makes_term(const shard *s, dtm_op op, uint32_t result, int axis, const uint16_t *pending) {
    const shard_domain *d = &s->ops[op].domain[axis];
    const dtm_op_data *data = dtm_op_get(s->module, op);
    if (!d->count) return false;
    if (shard_split_factor(s, op, d->choices[0]) && shard_result_state(s, op, d->choices[0], result) == STATE_SUM) return true;
    for (int i = 0; i < d->count; i++) {
        if (d->choices[i] < CHOICE_TERM || d->choices[i] >= CHOICE_FACTOR) continue;
        bool all = true;
        for (uint32_t k = 0; k < data->n_operands; k++)
            if (shard_operand_state(s, op, d->choices[i], k) == STATE_SUM) all &= pending[data->operands[k]] >> axis & 1;
        if (all) return true;
    }
    return false;
}

/* The axes on which a value is a term if every operator does as the lists say and nothing is reduced in between. */
static uint16_t *pending_axes(const shard *s) {
    uint16_t *pending = dtm_arena_alloc(s->arena, s->module->n_values * sizeof *pending);
    for (size_t i = 0; i < s->n_order; i++) {
        const dtm_op_data *data = dtm_op_get(s->module, s->order[i]);
        if (s->ops[s->order[i]].phase == PHASE_UPDATE) continue;
        for (int a = 0; a < s->module->settings.mesh.count; a++)
            for (uint32_t r = 0; r < data->n_results; r++)
                if (makes_term(s, s->order[i], r, a, pending)) pending[data->results[r]] |= (uint16_t)(1 << a);
    }
    return pending;
}

typedef struct chain {
    dtm_op ops[MAX_SUMMANDS]; /* inner ones first */
    dtm_value summands[MAX_SUMMANDS + 1];
    int n_ops, n_summands;
} chain;

/* An addition whose result has the type of both summands, so that any order of the chain is well typed. */
static bool is_link(const shard *s, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    if (!op || data->kind != DTM_OP_ADD) return false;
    dtm_type type = s->module->values[data->results[0]].type;
    return s->module->values[data->operands[0]].type == type && s->module->values[data->operands[1]].type == type;
}

static void collect(const shard *s, dtm_op op, chain *c) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    for (int i = 0; i < 2; i++) {
        dtm_value v = data->operands[i];
        dtm_op def = s->module->values[v].def;
        bool inner = def && is_link(s, def) && s->n_readers[v] == 1 && s->module->ops[def].region == data->region &&
                     data->operands[0] != data->operands[1] && c->n_ops + 2 < MAX_SUMMANDS;
        if (inner) collect(s, def, c);
        else c->summands[c->n_summands++] = v;
    }
    c->ops[c->n_ops++] = op;
}

static int bits(uint16_t set) {
    int count = 0;
    for (; set; set &= (uint16_t)(set - 1)) count++;
    return count;
}

static bool comes_before(uint16_t a, uint16_t b) { return bits(a) != bits(b) ? bits(a) > bits(b) : a > b; }

static void reorder(shard *s, chain *c, const uint16_t *pending) {
    dtm_module *m = s->module;
    bool changed = false;
    for (int i = 1; i < c->n_summands; i++) /* stable */
        for (int j = i; j > 0 && comes_before(pending[c->summands[j]], pending[c->summands[j - 1]]); j--) {
            dtm_value swap = c->summands[j];
            c->summands[j] = c->summands[j - 1];
            c->summands[j - 1] = swap;
            changed = true;
        }
    if (!changed) return;
    /* The links stand where the last of the chain stood, where all summands are set. */
    dtm_op outer = c->ops[c->n_ops - 1];
    dtm_value sum = c->summands[0];
    for (int i = 0; i < c->n_ops; i++) {
        dtm_op link = c->ops[i];
        if (link != outer) dtm_op_move(m, link, m->ops[outer].region, dtm_op_position(m, outer));
        m->ops[link].operands[0] = sum;
        m->ops[link].operands[1] = c->summands[i + 1];
        sum = m->ops[link].results[0];
    }
}

void shard_reorder_sums(shard *s) {
    const uint16_t *pending = pending_axes(s);
    bool any = false;
    for (size_t i = s->n_order; i-- > 0;) {
        dtm_op op = s->order[i];
        if (!is_link(s, op) || s->ops[op].phase == PHASE_UPDATE) continue;
        dtm_value result = s->module->ops[op].results[0];
        if (s->n_readers[result] == 1 && is_link(s, s->readers[result][0]) &&
            s->module->ops[s->readers[result][0]].region == s->module->ops[op].region)
            continue; /* within a longer chain */
        chain c = {.n_ops = 0};
        collect(s, op, &c);
        if (c.n_ops < 2) continue;
        reorder(s, &c, pending);
        any = true;
    }
    if (any) shard_describe(s);
}
