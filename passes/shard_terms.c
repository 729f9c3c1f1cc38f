/* The order of sums. `(x + P1) + P2` with two terms P1, P2 would be reduced twice, `x + (P1 + P2)` once: in a chain of `+`
 * that nothing else reads, summands pending on the same axes are added first, those pending on more axes before others. */
#include "passes/shard.h"

#include <string.h>

enum { MAX_SUMMANDS = 32 };

/* The axes on which a value is a term if every operator does as the lists say and nothing is reduced in between. */
static uint16_t *pending_axes(const shard *s) {
    const dtm_module *m = s->module;
    uint16_t *pending = dtm_arena_alloc(s->arena, m->n_values * sizeof *pending);
    for (size_t i = 0; i < s->n_order; i++) {
        dtm_op op = s->order[i];
        const dtm_op_data *data = dtm_op_get(m, op);
        if (s->ops[op].phase == PHASE_UPDATE) continue;
        for (int a = 0; a < m->settings.mesh.count; a++) {
            const shard_domain *d = &s->ops[op].domain[a];
            for (int k = 0; k < d->count && d->choices[0] != CHOICE_NONE; k++) {
                shard_choice choice = d->choices[k];
                bool is_term = choice >= CHOICE_TERM && choice < CHOICE_FACTOR;
                for (uint32_t i2 = 0; is_term && i2 < data->n_operands; i2++)
                    if (s->ops[op].sets[choice - CHOICE_TERM] >> i2 & 1) is_term = pending[data->operands[i2]] >> a & 1;
                if (k && !is_term) continue;
                for (uint32_t r = 0; r < data->n_results; r++)
                    if ((k == 0 || is_term) && shard_result_state(s, op, choice, r) == STATE_SUM && (k == 0 ? choice >= CHOICE_FACTOR && choice < CHOICE_STATE : true))
                        pending[data->results[r]] |= (uint16_t)(1 << a);
            }
        }
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
