/* What goes from stage to stage: messages of the loop over microbatches, and what copies of the split repeat hand on outside of it. */
#include "passes/stage_emit.h"

/* ---- messages ---- */

static const char *item_name(const emitter *e, const stage_item *item) {
    return name_of(e, item->carry ? get(e, item->carry)->results[0] : item->value);
}

static dtm_type item_type(const emitter *e, const stage_item *item) {
    return e->from->values[item->carry ? get(e, item->carry)->results[0] : item->value].type;
}

static void set_arrived(emitter *e, const stage_item *item, dtm_value value) {
    if (item->carry) e->arriving[e->chunk][item->carry] = value;
    else map_to(e, item->value, e->chunk, value);
}

static dtm_value leaving(emitter *e, const stage_item *item, dtm_region to) {
    if (!item->carry) return e->map[e->chunk + 1][item->value];
    const dtm_op_data *carry = get(e, item->carry);
    if (!stage_copies(e->s, stage_of_chunk(e, e->chunk))) return e->arriving[e->chunk][item->carry];
    dtm_value next = e->map[e->chunk + 1][carry->operands[1]];
    dtm_type type = item_type(e, item);
    dtm_builder b = emit_builder(e, item->carry, to);
    b.why = dtm_string_of(e->to->context, "the next stage goes on with it");
    const char *name = dtm_arena_printf(e->s->scratch, "%s.out", item_name(e, item));
    return dtm_result(e->to, dtm_build_op(&b, DTM_OP_LAST, &next, 1, NULL, &type, 1, name), 0);
}

static dtm_attributes message_attributes(const emitter *e, dtm_op_kind kind, int stage) {
    dtm_attributes attributes = dtm_attributes_default(kind);
    attributes.axes = (uint16_t)(1 << e->s->rule->axis);
    attributes.number[DTM_MESSAGE_PEER] = rank_of_stage(e, stage);
    return attributes;
}

/* From the stage before (backward: the one after), on another rank or in another chunk of this one. */
void emit_receive(emitter *e, const stage_cut *cut, int from, dtm_region to) {
    if (!cut->count) return;
    dtm_builder b = dtm_builder_at_end(e->to, to);
    b.place = e->s->rule->place;
    if (rank_of_stage(e, from) == e->rank) {
        const dtm_value *handed = e->handed[stage_chunk(e->s, from, direction_of(e, e->chunk))];
        for (size_t i = 0; i < cut->count; i++) set_arrived(e, &cut->items[i], handed[i]);
        return;
    }
    dtm_type *types = dtm_arena_alloc(e->s->scratch, cut->count * sizeof *types);
    for (size_t i = 0; i < cut->count; i++) types[i] = item_type(e, &cut->items[i]);
    dtm_attributes attributes = message_attributes(e, DTM_OP_RECEIVE, from);
    dtm_op made = dtm_build_op(&b, DTM_OP_RECEIVE, NULL, 0, &attributes, types, (uint32_t)cut->count, NULL);
    for (size_t i = 0; i < cut->count; i++) {
        dtm_value value = dtm_result(e->to, made, (uint32_t)i);
        e->to->values[value].name =
            dtm_name_unique(e->to, dtm_arena_printf(e->s->scratch, "%s.in", item_name(e, &cut->items[i])));
        set_arrived(e, &cut->items[i], value);
    }
}

void emit_send(emitter *e, const stage_cut *cut, int peer, dtm_region to) {
    if (!cut->count) return;
    dtm_value *values = dtm_arena_alloc(e->s->scratch, cut->count * sizeof *values);
    for (size_t i = 0; i < cut->count; i++) values[i] = leaving(e, &cut->items[i], to);
    if (rank_of_stage(e, peer) == e->rank) { /* handed over within the rank */
        e->handed[e->chunk] = values;
        return;
    }
    dtm_builder b = dtm_builder_at_end(e->to, to);
    b.place = e->s->rule->place;
    b.why = dtm_string_printf(e->to->context, "stage %d goes on with it", peer);
    dtm_attributes attributes = message_attributes(e, DTM_OP_SEND, peer);
    dtm_build_op(&b, DTM_OP_SEND, values, (uint32_t)cut->count, &attributes, NULL, 0, "");
}

/* ---- the split repeat outside of the loop ---- */

/* The chunk of this rank that has a stage in a direction, or -1. */
static int chunk_of(const emitter *e, int stage, int direction) {
    for (int chunk = 0; chunk < e->s->chunks; chunk++)
        if (stage_of_chunk(e, chunk) == stage && direction_of(e, chunk) == direction) return chunk;
    return -1;
}

/* What the copies of a stage hand on to the next stage that has any, in each direction. */
static void hand_on(emitter *e, const stage_cut *cut, int from, int next, dtm_region to) {
    for (int direction = 0; direction < stage_directions(e->s); direction++) {
        int sender = chunk_of(e, from, direction), receiver = chunk_of(e, next, direction);
        e->chunk = sender;
        if (sender >= 0) emit_send(e, cut, next, to);
        e->chunk = receiver;
        if (receiver >= 0) emit_receive(e, cut, from, to);
    }
    e->chunk = -1;
}

/* Stage after stage, and from one to the next what copies hand on, once in a step: all ranks come to these messages in one order,
 * so that none waits in a circle. Also ranks that hold the same stages add them up in one order. */
void emit_outside(emitter *e, dtm_op repeat, dtm_region to) {
    const stages *s = e->s;
    const dtm_region_data *body = &e->from->regions[get(e, repeat)->body];
    int step = get(e, repeat)->attributes.flags & DTM_REPEAT_REVERSED ? -1 : 1;
    stage_cut cut = {NULL, 0, 0};
    for (size_t i = 0; i < body->n_ops; i++)
        if (stage_is_carried(s, body->ops[i]) && !s->summed[get(e, body->ops[i])->results[0]] && !stage_in_loop(s, body->ops[i]))
            DTM_PUSH(s->scratch, cut.items, cut.count, cut.capacity, ((stage_item){0, body->ops[i]}));
    for (int stage = step > 0 ? 0 : s->count - 1; stage >= 0 && stage < s->count; stage += step) {
        if (!stage_copies(s, stage)) continue;
        for (int chunk = 0; chunk < s->chunks; chunk++)
            if (stage_of_chunk(e, chunk) == stage) emit_repeat(e, repeat, to, chunk);
        int next = stage + step;
        while (next >= 0 && next < s->count && !stage_copies(s, next)) next += step;
        if (next >= 0 && next < s->count) hand_on(e, &cut, stage, next, to);
    }
}
