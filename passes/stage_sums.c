/* Values of a pipeline rank's program: what chunks and directions made of one value, and sums over ranks. */
#include "passes/stage_emit.h"

/* ---- values ---- */

dtm_value emit_mapped(const emitter *e, dtm_value value, int chunk) {
    if (!value) return 0;
    if (!def_of(e, value))
        return dtm_constant(e->to, (dtm_dtype)e->from->types[e->from->values[value].type].dtype, e->from->values[value].number);
    dtm_value in_chunk = chunk >= 0 ? e->map[chunk + 1][value] : 0;
    return in_chunk ? in_chunk : e->map[0][value];
}

dtm_value emit_operand(const emitter *e, dtm_op op, uint32_t i) {
    const dtm_op_data *data = get(e, op);
    bool own = i == 0 && (data->kind == DTM_OP_STORE || data->kind == DTM_OP_GRADIENT);
    dtm_value value = data->operands[i], of_all = e->s->part[op] == PART_AFTER && !own ? e->of_all[value] : 0;
    return of_all ? of_all : emit_mapped(e, value, e->chunk);
}

dtm_builder emit_builder(const emitter *e, dtm_op op, dtm_region region) {
    const dtm_op_data *data = get(e, op);
    return (dtm_builder){e->to, region, -1, data->span, data->place, data->why};
}

dtm_value emit_nothing(dtm_builder *b, dtm_type type, bool maximum, const char *name) {
    dtm_dtype dtype = (dtm_dtype)b->module->types[type].dtype;
    dtm_value number = dtm_constant(b->module, dtype, maximum ? dtm_least(dtype) : 0);
    return dtm_result(b->module, dtm_build_op(b, DTM_OP_FILL, &number, 1, NULL, &type, 1, name), 0);
}

/* Of two, either of which may be none: a + b, or the greater. */
static dtm_value join(dtm_builder *b, dtm_op_kind kind, dtm_value x, dtm_value y, const char *name) {
    if (!x || !y) return x ? x : y;
    dtm_value operands[2] = {x, y};
    dtm_type type = b->module->values[x].type;
    return dtm_result(b->module, dtm_build_op(b, kind, operands, 2, NULL, &type, 1, name), 0);
}

dtm_value emit_plus(dtm_builder *b, dtm_value x, dtm_value y, const char *name) {
    return join(b, DTM_OP_ADD, x, y, name);
}

/* What chunks of this rank made of a value of the loop, or of the split repeat, added up; 0: nothing. */
dtm_value emit_over_chunks(emitter *e, dtm_builder *b, dtm_value value) {
    if (e->map[0][value]) return e->map[0][value];
    dtm_value sum = 0;
    dtm_op_kind kind = stage_is_maximum(e->s, value) ? DTM_OP_MAXIMUM : DTM_OP_ADD;
    for (int chunk = 0; chunk < e->s->chunks; chunk++)
        sum = join(b, kind, sum, e->map[chunk + 1][value], name_of(e, value));
    return e->map[0][value] = sum;
}

dtm_value emit_term(emitter *e, dtm_builder *b, dtm_op op, dtm_value value) {
    const stages *s = e->s;
    if (!def_of(e, value)) return emit_mapped(e, value, e->chunk);
    dtm_op def = def_of(e, value);
    if (stage_in_loop(e->s, op)) {
        int stage = s->around[def] ? STAGE_COPIES : stage_of_value(s, value);
        if (stage == STAGE_ANYWHERE && !s->summed[value] && stage_of_chunk(e, e->chunk) != 0) return 0;
        return emit_mapped(e, value, e->chunk);
    }
    const stage_home *home = &s->home[value];
    if (home->kind == HOME_SUM || s->around[def]) return emit_over_chunks(e, b, value);
    return stage_owner(home) == e->rank ? emit_mapped(e, value, e->chunk) : 0;
}

/* ---- sums over ranks ---- */

/* Of members of which this rank is one: the sum of what they have, 0: nothing. */
static dtm_value sum_over(emitter *e, dtm_builder *b, dtm_value value, dtm_value term, const bool *members, const char *why) {
    const stages *s = e->s;
    int axis = s->rule->axis, count = 0;
    for (int r = 0; r < s->n_ranks; r++) count += members[r];
    dtm_type plain = e->from->values[value].type;
    dtm_type_data data = e->to->types[plain];
    bool maximum = stage_is_maximum(s, value);
    *(maximum ? &data.max : &data.sum) |= (uint16_t)(1 << axis);
    dtm_type pending = dtm_type_intern(e->to, &data);
    const char *name = name_of(e, value);
    b->why = dtm_string_of(e->to->context, why);
    if (term) {
        dtm_attributes attributes = dtm_attributes_default(DTM_OP_AS_TERM);
        attributes.axes = (uint16_t)(1 << axis);
        attributes.number[DTM_AS_TERM_OWN] = 1;
        term = dtm_result(
            e->to,
            dtm_build_op(b, DTM_OP_AS_TERM, &term, 1, &attributes, &pending, 1, dtm_arena_printf(s->scratch, "%s.part", name)),
            0);
    } else {
        term = emit_nothing(b, pending, maximum, dtm_arena_printf(s->scratch, "%s.part", name));
    }
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_ALL_REDUCE);
    attributes.axes = (uint16_t)(1 << axis);
    if (count < s->n_ranks) attributes.members = dtm_members_of(e->to->context, s->scratch, members, s->n_ranks);
    return dtm_result(
        e->to,
        dtm_build_op(b, DTM_OP_ALL_REDUCE, &term, 1, &attributes, &plain, 1, dtm_arena_printf(s->scratch, "%s.all", name)), 0);
}

/* Adds up what the ranks have, on those that want it. */
static dtm_value add_over_ranks(emitter *e, dtm_builder *b, dtm_value value, dtm_value term) {
    const stages *s = e->s;
    const stage_home *home = &s->home[value], *target = &s->target[value];
    int count = 0, owner = stage_owner(home);
    bool adds = home->kind == HOME_SUM ? home->ranks[e->rank] : owner == e->rank;
    bool *members = dtm_arena_alloc(s->scratch, (size_t)s->n_ranks);
    for (int r = 0; r < s->n_ranks; r++) {
        bool gives = home->kind == HOME_SUM ? home->ranks[r] : owner == r;
        members[r] = gives || target->kind == HOME_ALL || target->ranks[r];
        count += members[r];
    }
    if (!members[e->rank]) return 0;
    if (count == 1) return term;
    return sum_over(e, b, value, adds ? term : 0, members, "stages on several ranks have a part in it");
}

/* Whether a value has the microbatches of one direction alone. The ranks of other axes may have added up theirs: either sum may
 * come first. */
static bool is_of_one_direction(const emitter *e, dtm_value value) {
    const stages *s = e->s;
    dtm_op def = def_of(e, value);
    if (stage_directions(s) < 2 || !def || !s->around[def]) return false;
    return stage_in_loop(s, def) || emit_is_of_one_direction(e, def);
}

bool emit_is_of_one_direction(const emitter *e, dtm_op op) {
    const dtm_op_data *data = get(e, op);
    return data->kind == DTM_OP_ALL_REDUCE && e->s->part[op] == PART_AFTER && is_of_one_direction(e, data->operands[0]);
}

/* What the copies of a stage on two ranks accumulated, each for the microbatches of its direction, is added up where it is
 * first read after the loop, but by the sum over other axes, which may start while the loop runs. */
void emit_add_directions(emitter *e, dtm_builder *b, dtm_value value) {
    const stages *s = e->s;
    if (!is_of_one_direction(e, value) || e->added[e->chunk + 1][value]) return;
    e->added[e->chunk + 1][value] = true;
    bool *members = dtm_arena_alloc(s->scratch, (size_t)s->n_ranks);
    stage_holders(s, stage_of_chunk(e, e->chunk), members);
    e->map[e->chunk + 1][value] = sum_over(e, b, value, e->map[e->chunk + 1][value], members, "the stage lies on two ranks");
}

/* After the maker of a value: the sum over ranks, if it is wanted. A weight stays what it is beside it. */
void emit_gather(emitter *e, dtm_builder *b, dtm_value value) {
    if (!e->s->gathered[value]) return;
    dtm_value term = emit_over_chunks(e, b, value);
    dtm_value made = add_over_ranks(e, b, value, term);
    if (get(e, def_of(e, value))->kind == DTM_OP_WEIGHT)
        e->of_all[value] = made;
    else
        e->map[0][value] = made;
}

/* Whether what an operator makes may be wanted on ranks that have no part in it. */
bool emit_may_be_gathered(const emitter *e, dtm_op op) {
    return !e->s->around[op] && (e->s->part[op] == PART_AFTER || get(e, op)->kind == DTM_OP_WEIGHT);
}
