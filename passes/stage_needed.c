/* What of the whole program a rank of a pipeline has: what lies or runs on its stages, and what runs anywhere and is read here. */
#include "passes/stage_emit.h"

bool emit_on_ranks(const emitter *e, const stage_home *home) {
    return home->kind == HOME_ALL || home->kind == HOME_COPIES || home->ranks[e->rank];
}

/* Whether the rank, in a chunk (-1: outside of chunks), has an operator whatever reads it. */
static bool runs_here(const emitter *e, dtm_op op, int chunk) {
    const stages *s = e->s;
    const dtm_op_data *data = get(e, op);
    if (s->around[op] && !(chunk >= 0 && stage_copies(s, stage_of_chunk(e, chunk)))) return false;
    if (s->part[op] == PART_BEFORE) return data->kind == DTM_OP_WEIGHT && emit_on_ranks(e, &s->home[data->results[0]]);
    if (s->part[op] == PART_AFTER) {
        if (s->around[op]) return true;
        if (data->kind == DTM_OP_STORE || data->kind == DTM_OP_GRADIENT) {
            const stage_home *weight = &s->home[data->operands[0]];
            return emit_on_ranks(e, weight->kind == HOME_ALL ? &s->home[data->operands[1]] : weight);
        }
        if (!data->n_results) return true;
        const stage_home *home = &s->home[data->results[0]];
        if (home->kind == HOME_ALL) return s->gathered[data->results[0]]; /* else if it is read */
        return emit_on_ranks(e, home);
    }
    int stage = s->stage[s->unit[op]];
    if (stage == STAGE_COPIES) return true;
    if (stage == STAGE_SPREAD) return true; /* what of it there is here is found when it is made */
    if (stage == STAGE_ANYWHERE) return data->kind == DTM_OP_ACCUMULATE && stage_of_chunk(e, chunk) == 0;
    return chunk >= 0 && stage == stage_of_chunk(e, chunk);
}

bool emit_is_here(const emitter *e, dtm_op op, int chunk) { return runs_here(e, op, chunk) || e->needed[chunk + 1][op]; }

/* Whether a value is made wherever it is read. */
static bool runs_anywhere(const emitter *e, dtm_op def, dtm_value value) {
    if (stage_in_loop(e->s, def)) return e->s->stage[e->s->unit[def]] == STAGE_ANYWHERE;
    if (e->s->part[def] == PART_BEFORE) return get(e, def)->kind != DTM_OP_WEIGHT;
    return e->s->home[value].kind == HOME_ALL;
}

/* Where there are no copies, what a repeat begins with is also what it ends with. */
static void need_first(emitter *e, dtm_op last, int chunk) {
    const stages *s = e->s;
    if (chunk >= 0 && stage_copies(s, stage_of_chunk(e, chunk))) return;
    dtm_value next = get(e, last)->operands[0];
    dtm_op carry = s->around[def_of(e, next)] ? stage_carry_of(s, next) : 0;
    dtm_op def = carry ? def_of(e, get(e, carry)->operands[0]) : 0;
    if (def && !s->around[def])
        e->needed[stage_in_loop(e->s, def) ? chunk + 1 : 0][def] |= runs_anywhere(e, def, get(e, carry)->operands[0]);
}

/* What a sum over copies begins with is added by stage 0, if it can be had anywhere. */
static bool is_added_elsewhere(const emitter *e, dtm_op op, uint32_t operand, int chunk) {
    const stages *s = e->s;
    const dtm_op_data *data = get(e, op);
    if (operand || !stage_in_loop(s, op) || !stage_is_carried(s, op) || !s->summed[data->results[0]]) return false;
    return stage_of_value(s, data->operands[0]) == STAGE_ANYWHERE && !s->summed[data->operands[0]] && stage_of_chunk(e, chunk) != 0;
}

static bool need(emitter *e, dtm_op op, int chunk) {
    bool news = !e->needed[chunk + 1][op];
    e->needed[chunk + 1][op] = true;
    return news;
}

/* What runs anywhere and is read by an operator that is here. Whether it is news to anything before it was said. */
static bool need_operands(emitter *e, dtm_op op, int chunk) {
    const dtm_op_data *data = get(e, op);
    bool news = false;
    for (uint32_t i = 0; i < data->n_operands; i++) {
        dtm_op def = def_of(e, data->operands[i]);
        if (!def) continue;
        bool in_chunk = stage_in_loop(e->s, def) || e->s->around[def];
        if (in_chunk && chunk < 0) continue; /* after the loop: sums over chunks */
        if (is_added_elsewhere(e, op, i, chunk) || !runs_anywhere(e, def, data->operands[i])) continue;
        news |= need(e, def, in_chunk ? chunk : -1);
    }
    return news;
}

/* Operators are numbered in the order of the text: once from its end to its beginning, and again for what copies hand
 * on. */
void emit_find_needed(emitter *e) {
    const stages *s = e->s;
    for (bool news = true; news;) {
        news = false;
        for (dtm_op op = (dtm_op)s->n_ops - 1; op > 0; op--) {
            const dtm_op_data *data = get(e, op);
            if (!data->region || data->body) continue;
            bool chunks = stage_in_loop(e->s, op) || s->around[op];
            for (int chunk = chunks ? 0 : -1; chunk < (chunks ? s->chunks : 0); chunk++) {
                if (!emit_is_here(e, op, chunk)) continue;
                if (data->kind == DTM_OP_LAST) need_first(e, op, chunk);
                news |= need_operands(e, op, chunk);
            }
        }
    }
}
