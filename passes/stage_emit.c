/* The program of the ranks of one coordinate: a copy of the whole program, of which it has its copies of the repeat, what
 * runs on its stages, what it needs besides, and messages to and from its neighbours.
 *
 *     forward { weight embed; repeat layer = 2 { weight w } }
 *     microbatch microbatch = 4 {
 *         forward stage = 0 { input tokens; x = gather(..); repeat layer = 2 { .. }; x.out = last(x.3); send(x.out on pp, peer
 * = 1) } backward stage = 0 { d_x.3.in = receive(on pp, peer = 1); repeat layer = 2 reversed { .. }; .. accumulate(..) }
 *     }
 *     backward { d_embed.sum = as_term / all_reduce on pp }
 *     update { .. }
 */
#include "passes/stage.h"

#include <string.h>

typedef struct pending_carry {
    dtm_op made;
    dtm_value next; /* of the whole program */
    int chunk;
} pending_carry;

typedef struct emitter {
    stages *s;
    const dtm_module *from;
    dtm_module *to;
    int rank;
    dtm_value **map;      /* by chunk + 1 (0: of none) and value of the whole program */
    dtm_value *of_all;    /* by weight: a copy for readers after the loop that other ranks have too */
    bool **needed;        /* the same, by operator: what runs anywhere, and is read here */
    dtm_value **arriving; /* by chunk and carry: from the stage before */
    dtm_value **first;    /* the same: what it begins with in this chunk */
    bool **added;         /* by chunk + 1 and value of the loop: over the directions */
    dtm_value **handed;   /* by chunk: what it hands to another chunk of the rank, in the order of the cut */
    pending_carry *carries;
    size_t n_carries, cap_carries;
    int chunk; /* that is emitted, or -1 */
} emitter;

static const dtm_op_data *get(const emitter *e, dtm_op op) { return &e->from->ops[op]; }
static dtm_op def_of(const emitter *e, dtm_value value) { return e->from->values[value].def; }
static int stage_of_chunk(const emitter *e, int chunk) { return stage_at(e->s, e->rank, chunk); }
static int direction_of(const emitter *e, int chunk) { return dtm_timeline_direction(e->s->places, chunk); }
/* Where the chunk at hand sends to, or has from. */
static int rank_of_stage(const emitter *e, int stage) { return stage_rank(e->s, stage, direction_of(e, e->chunk)); }
/* Of what has stages on two ranks, after the loop: the one that adds it to sums over all copies. */
static bool counts(const emitter *e, int chunk) { return direction_of(e, chunk) == 0; }

/* ---- what runs here ---- */

static bool on_ranks(const emitter *e, const stage_home *home) {
    return home->kind == HOME_ALL || home->kind == HOME_COPIES || home->ranks[e->rank];
}

/* Whether the rank, in a chunk (-1: outside of chunks), has an operator whatever reads it. */
static bool runs_here(const emitter *e, dtm_op op, int chunk) {
    const stages *s = e->s;
    const dtm_op_data *data = get(e, op);
    if (s->around[op] && !(chunk >= 0 && stage_copies(s, stage_of_chunk(e, chunk)))) return false;
    if (s->part[op] == PART_BEFORE) return data->kind == DTM_OP_WEIGHT && on_ranks(e, &s->home[data->results[0]]);
    if (s->part[op] == PART_AFTER) {
        if (s->around[op]) return true;
        if (data->kind == DTM_OP_STORE || data->kind == DTM_OP_GRADIENT) {
            const stage_home *weight = &s->home[data->operands[0]];
            return on_ranks(e, weight->kind == HOME_ALL ? &s->home[data->operands[1]] : weight);
        }
        if (!data->n_results) return true;
        const stage_home *home = &s->home[data->results[0]];
        if (home->kind == HOME_ALL) return s->gathered[data->results[0]]; /* else if it is read */
        return on_ranks(e, home);
    }
    int stage = s->stage[s->unit[op]];
    if (stage == STAGE_COPIES) return true;
    if (stage == STAGE_SPREAD) return true; /* what of it there is here is found when it is made */
    if (stage == STAGE_ANYWHERE) return data->kind == DTM_OP_ACCUMULATE && stage_of_chunk(e, chunk) == 0;
    return chunk >= 0 && stage == stage_of_chunk(e, chunk);
}

static bool is_emitted(const emitter *e, dtm_op op, int chunk) { return runs_here(e, op, chunk) || e->needed[chunk + 1][op]; }

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
static void find_needed(emitter *e) {
    const stages *s = e->s;
    for (bool news = true; news;) {
        news = false;
        for (dtm_op op = (dtm_op)s->n_ops - 1; op > 0; op--) {
            const dtm_op_data *data = get(e, op);
            if (!data->region || data->body) continue;
            bool chunks = stage_in_loop(e->s, op) || s->around[op];
            for (int chunk = chunks ? 0 : -1; chunk < (chunks ? s->chunks : 0); chunk++) {
                if (!is_emitted(e, op, chunk)) continue;
                if (data->kind == DTM_OP_LAST) need_first(e, op, chunk);
                news |= need_operands(e, op, chunk);
            }
        }
    }
}

/* ---- values ---- */

static dtm_value mapped(const emitter *e, dtm_value value, int chunk) {
    if (!value) return 0;
    if (!def_of(e, value))
        return dtm_constant(e->to, (dtm_dtype)e->from->types[e->from->values[value].type].dtype, e->from->values[value].number);
    dtm_value in_chunk = chunk >= 0 ? e->map[chunk + 1][value] : 0;
    return in_chunk ? in_chunk : e->map[0][value];
}

/* As an operator has it that stands outside of the loop, or in it. */
static dtm_value operand_of(const emitter *e, dtm_op op, uint32_t i) {
    const dtm_op_data *data = get(e, op);
    bool own = i == 0 && (data->kind == DTM_OP_STORE || data->kind == DTM_OP_GRADIENT);
    dtm_value value = data->operands[i], of_all = e->s->part[op] == PART_AFTER && !own ? e->of_all[value] : 0;
    return of_all ? of_all : mapped(e, value, e->chunk);
}

static void map_to(emitter *e, dtm_value value, int chunk, dtm_value made) { e->map[chunk + 1][value] = made; }

static const char *name_of(const emitter *e, dtm_value value) { return dtm_value_name(e->from, value); }

static dtm_builder builder_at(const emitter *e, dtm_op op, dtm_region region) {
    const dtm_op_data *data = get(e, op);
    return (dtm_builder){e->to, region, -1, data->span, data->place, data->why};
}

/* What adds nothing to a sum, or is no more than any element of a maximum. */
static dtm_value nothing(dtm_builder *b, dtm_type type, bool maximum, const char *name) {
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

static dtm_value plus(dtm_builder *b, dtm_value x, dtm_value y, const char *name) {
    return join(b, DTM_OP_ADD, x, y, name);
}

/* What chunks of this rank made of a value of the loop, or of the split repeat, added up; 0: nothing. */
static dtm_value over_chunks(emitter *e, dtm_builder *b, dtm_value value) {
    if (e->map[0][value]) return e->map[0][value];
    dtm_value sum = 0;
    dtm_op_kind kind = stage_is_maximum(e->s, value) ? DTM_OP_MAXIMUM : DTM_OP_ADD;
    for (int chunk = 0; chunk < e->s->chunks; chunk++)
        sum = join(b, kind, sum, e->map[chunk + 1][value], name_of(e, value));
    return e->map[0][value] = sum;
}

/* What this rank (in the loop: this chunk) has of a value that is read as a term. */
static dtm_value term_of(emitter *e, dtm_builder *b, dtm_op op, dtm_value value) {
    const stages *s = e->s;
    if (!def_of(e, value)) return mapped(e, value, e->chunk);
    dtm_op def = def_of(e, value);
    if (stage_in_loop(e->s, op)) {
        int stage = s->around[def] ? STAGE_COPIES : stage_of_value(s, value);
        if (stage == STAGE_ANYWHERE && !s->summed[value] && stage_of_chunk(e, e->chunk) != 0) return 0;
        return mapped(e, value, e->chunk);
    }
    const stage_home *home = &s->home[value];
    if (home->kind == HOME_SUM || s->around[def]) return over_chunks(e, b, value);
    return stage_owner(home) == e->rank ? mapped(e, value, e->chunk) : 0;
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
        term = nothing(b, pending, maximum, dtm_arena_printf(s->scratch, "%s.part", name));
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

/* What the copies of a stage on two ranks accumulated, each for the microbatches of its direction, is added up where it is
 * first read after the loop. */
static void add_directions(emitter *e, dtm_builder *b, dtm_value value) {
    const stages *s = e->s;
    dtm_op def = def_of(e, value);
    if (stage_directions(s) < 2 || !stage_in_loop(s, def) || !s->around[def] || e->added[e->chunk + 1][value]) return;
    e->added[e->chunk + 1][value] = true;
    bool *members = dtm_arena_alloc(s->scratch, (size_t)s->n_ranks);
    stage_holders(s, stage_of_chunk(e, e->chunk), members);
    e->map[e->chunk + 1][value] = sum_over(e, b, value, e->map[e->chunk + 1][value], members, "the stage lies on two ranks");
}

/* After the maker of a value: the sum over ranks, if it is wanted. A weight stays what it is beside it. */
static void gather(emitter *e, dtm_builder *b, dtm_value value) {
    if (!e->s->gathered[value]) return;
    dtm_value term = over_chunks(e, b, value);
    dtm_value made = add_over_ranks(e, b, value, term);
    if (get(e, def_of(e, value))->kind == DTM_OP_WEIGHT)
        e->of_all[value] = made;
    else
        e->map[0][value] = made;
}

/* Whether what an operator makes may be wanted on ranks that have no part in it. */
static bool may_be_gathered(const emitter *e, dtm_op op) {
    return !e->s->around[op] && (e->s->part[op] == PART_AFTER || get(e, op)->kind == DTM_OP_WEIGHT);
}

/* ---- operators ---- */

/* The repeat of another chunk is another repeat, over other copies. */
static dtm_string repeat_in_chunk(const emitter *e) {
    if (e->chunk == 0) return e->s->rule->repeat;
    return dtm_string_printf(e->to->context, "%s_%d", dtm_string_text(e->to->context, e->s->rule->repeat), e->chunk + 1);
}

/* "layer.{layer}.wq": the same with the repeat of the chunk in braces. */
static dtm_string path_in_chunk(const emitter *e, dtm_string path) {
    const char *text = dtm_string_text(e->to->context, path);
    const char *braced = dtm_arena_printf(e->s->scratch, "{%s}", dtm_string_text(e->to->context, e->s->rule->repeat));
    const char *at = strstr(text, braced);
    if (!at) return path;
    return dtm_string_printf(e->to->context, "%.*s{%s}%s", (int)(at - text), text,
                             dtm_string_text(e->to->context, repeat_in_chunk(e)), at + strlen(braced));
}

static dtm_op copy_op(emitter *e, dtm_op op, dtm_region to, const dtm_value *operands) {
    dtm_op_data data = *get(e, op);
    bool has_path = data.kind == DTM_OP_WEIGHT || data.kind == DTM_OP_STATE;
    if (has_path && e->chunk > 0) data.attributes.name = path_in_chunk(e, data.attributes.name);
    dtm_type few[8], *types = data.n_results <= 8 ? few : dtm_arena_alloc(e->s->scratch, data.n_results * sizeof *types);
    for (uint32_t i = 0; i < data.n_results; i++) types[i] = e->from->values[data.results[i]].type;
    dtm_builder b = builder_at(e, op, to);
    const char *name = data.n_results ? name_of(e, data.results[0]) : "";
    dtm_op made = dtm_build_op(&b, data.kind, operands, data.n_operands, &data.attributes, types, data.n_results, name);
    for (uint32_t i = 0; i < data.n_results; i++) {
        dtm_value value = dtm_result(e->to, made, i);
        if (i) dtm_value_rename(e->to, value, name_of(e, data.results[i]));
        map_to(e, data.results[i], e->chunk, value);
    }
    return made;
}

/* A carry of the split repeat: what it begins with here. */
static dtm_value first_carried(emitter *e, dtm_builder *b, dtm_op op) {
    const stages *s = e->s;
    const dtm_op_data *data = get(e, op);
    bool reversed = get(e, s->around[op])->attributes.flags & DTM_REPEAT_REVERSED;
    int stage = stage_of_chunk(e, e->chunk);
    if (!s->summed[data->results[0]]) {
        bool begins = stage == (reversed ? stage_highest(s) : stage_lowest(s));
        return begins ? mapped(e, data->operands[0], e->chunk) : e->arriving[e->chunk][op];
    }
    /* A sum: what it begins with is added once, by whoever has it. After the loop by the first chunk of its rank. */
    dtm_value first = 0;
    bool earlier = false;
    for (int c = 0; c < e->chunk; c++) earlier |= counts(e, c) && stage_copies(s, stage_of_chunk(e, c)) > 0;
    earlier |= !stage_in_loop(e->s, op) && !counts(e, e->chunk);
    if (stage_in_loop(e->s, op) || !earlier) first = term_of(e, b, op, data->operands[0]);
    return first ? first : nothing(b, e->from->values[data->results[0]].type, false, name_of(e, data->results[0]));
}

/* A part of a sum over stages: what there is of it here, perhaps nothing. */
static void emit_spread(emitter *e, dtm_op op, dtm_region to) {
    const dtm_op_data *data = get(e, op);
    dtm_builder b = builder_at(e, op, to);
    dtm_value here = 0;
    if (data->kind == DTM_OP_ADD) {
        here = plus(&b, term_of(e, &b, op, data->operands[0]), term_of(e, &b, op, data->operands[1]),
                    name_of(e, data->results[0]));
    } else if (data->kind == DTM_OP_LAST) {
        dtm_value next = e->map[e->chunk + 1][data->operands[0]];
        dtm_op carry = stage_carry_of(e->s, data->operands[0]);
        if (next) copy_op(e, op, to, &next);
        else if (carry) map_to(e, data->results[0], e->chunk, term_of(e, &b, op, get(e, carry)->operands[0]));
        return;
    } else {
        dtm_value term = term_of(e, &b, op, data->operands[0]);
        if (term) copy_op(e, op, to, &term);
        return;
    }
    if (here) map_to(e, data->results[0], e->chunk, here);
}

/* After the loop: the last of the copies here, of all chunks, and what the repeat begins with where there are none. */
static void emit_last_after(emitter *e, dtm_op op, dtm_region to) {
    const stages *s = e->s;
    const dtm_op_data *data = get(e, op);
    dtm_op carry = stage_carry_of(s, data->operands[0]);
    bool is_sum = carry && s->summed[get(e, carry)->results[0]];
    dtm_builder b = builder_at(e, op, to);
    dtm_value sum = 0;
    for (int chunk = 0; chunk < s->chunks; chunk++) {
        dtm_value next = e->map[chunk + 1][data->operands[0]];
        if (!next || !counts(e, chunk) || (!is_sum && stage_of_chunk(e, chunk) != stage_of_last(s, op))) continue;
        copy_op(e, op, to, &next);
        b = builder_at(e, op, to);
        sum = plus(&b, sum, e->map[0][data->results[0]], name_of(e, data->results[0]));
    }
    if (!sum && is_sum) sum = term_of(e, &b, op, get(e, carry)->operands[0]);
    e->map[0][data->results[0]] = sum;
}

static void emit_here(emitter *e, dtm_op op, dtm_region to) {
    const stages *s = e->s;
    const dtm_op_data *data = get(e, op);
    bool after = s->part[op] == PART_AFTER && !s->around[op];
    if (stage_in_loop(e->s, op) && s->stage[s->unit[op]] == STAGE_SPREAD) {
        emit_spread(e, op, to);
        return;
    }
    if (after && data->kind == DTM_OP_LAST && s->around[def_of(e, data->operands[0])]) {
        emit_last_after(e, op, to);
        return;
    }
    dtm_builder b = builder_at(e, op, to);
    if (after && data->kind == DTM_OP_ADD && s->home[data->results[0]].kind == HOME_SUM) {
        e->map[0][data->results[0]] = plus(&b, term_of(e, &b, op, data->operands[0]), term_of(e, &b, op, data->operands[1]),
                                           name_of(e, data->results[0]));
        return;
    }
    dtm_value few[8],
        *operands = data->n_operands <= 8 ? few : dtm_arena_alloc(s->scratch, data->n_operands * sizeof *operands);
    for (uint32_t i = 0; i < data->n_operands; i++) {
        dtm_op def = def_of(e, data->operands[i]);
        bool sums = def && e->chunk < 0 && (stage_in_loop(e->s, def) || s->home[data->operands[i]].kind == HOME_SUM);
        if (def && s->around[op] && s->part[op] == PART_AFTER) add_directions(e, &b, data->operands[i]);
        operands[i] = sums ? over_chunks(e, &b, data->operands[i]) : operand_of(e, op, i);
    }
    if (stage_is_carried(s, op)) operands[0] = e->first[e->chunk][op];
    dtm_op made = copy_op(e, op, to, operands);
    if (data->kind == DTM_OP_CARRY)
        DTM_PUSH(s->scratch, e->carries, e->n_carries, e->cap_carries, ((pending_carry){made, data->operands[1], e->chunk}));
}

/* An operator, and then the sums over ranks that its results are wanted in, also by a rank that has no part in it. */
static void emit_op(emitter *e, dtm_op op, dtm_region to) {
    const dtm_op_data *data = get(e, op);
    if (is_emitted(e, op, e->chunk)) emit_here(e, op, to);
    if (!may_be_gathered(e, op)) return;
    dtm_builder b = builder_at(e, op, to);
    for (uint32_t i = 0; i < data->n_results; i++) gather(e, &b, data->results[i]);
}

/* ---- regions ---- */

static void emit_region(emitter *e, dtm_region from, dtm_region to);

/* What the carries of a repeat begin with, before it. */
static void begin_carries(emitter *e, dtm_op repeat, dtm_region to) {
    const dtm_region_data *body = &e->from->regions[get(e, repeat)->body];
    for (size_t i = 0; i < body->n_ops; i++) {
        dtm_op op = body->ops[i];
        if (get(e, op)->kind != DTM_OP_CARRY) continue;
        dtm_builder b = builder_at(e, op, to);
        e->first[e->chunk][op] = first_carried(e, &b, op);
    }
}

static void emit_outside(emitter *e, dtm_op repeat, dtm_region to);

static void emit_repeat(emitter *e, dtm_op op, dtm_region to, int chunk) {
    const stages *s = e->s;
    dtm_op_data data = *get(e, op);
    int stage = stage_of_chunk(e, chunk), outer = e->chunk;
    if (!stage_copies(s, stage)) return;
    e->chunk = chunk;
    begin_carries(e, op, to);
    data.attributes.copies = stage_copies(s, stage);
    data.attributes.from = s->first[stage];
    data.attributes.name = repeat_in_chunk(e);
    dtm_builder b = builder_at(e, op, to);
    dtm_op made = dtm_build_region(&b, DTM_OP_REPEAT, &data.attributes);
    emit_region(e, data.body, dtm_op_get(e->to, made)->body);
    e->chunk = outer;
}

/* Whether the rank takes part in a sum over ranks of a result. */
static bool gathers(const emitter *e, dtm_op op) {
    const stages *s = e->s;
    const dtm_op_data *data = get(e, op);
    if (!may_be_gathered(e, op)) return false;
    for (uint32_t i = 0; i < data->n_results; i++)
        if (s->gathered[data->results[i]] && on_ranks(e, &s->target[data->results[i]])) return true;
    return false;
}

/* Whether a region comes to have something. */
static bool has_any(const emitter *e, dtm_region region, int chunk) {
    const dtm_region_data *data = &e->from->regions[region];
    for (size_t i = 0; i < data->n_ops; i++) {
        const dtm_op_data *op = get(e, data->ops[i]);
        if (stage_is_split(e->s, op)) {
            for (int c = 0; c < e->s->chunks; c++)
                if ((chunk < 0 || chunk == c) && stage_copies(e->s, stage_of_chunk(e, c))) return true;
        } else if (op->body ? has_any(e, op->body, chunk) : is_emitted(e, data->ops[i], chunk) || gathers(e, data->ops[i]))
            return true;
    }
    return false;
}

static void emit_region(emitter *e, dtm_region from, dtm_region to) {
    for (size_t i = 0; i < e->from->regions[from].n_ops; i++) {
        dtm_op op = e->from->regions[from].ops[i];
        const dtm_op_data *data = get(e, op);
        if (!data->body) emit_op(e, op, to);
        else if (stage_is_split(e->s, data)) {
            if (e->chunk >= 0) emit_repeat(e, op, to, e->chunk);
            else emit_outside(e, op, to);
        } else if (has_any(e, data->body, e->chunk)) {
            dtm_builder b = builder_at(e, op, to);
            dtm_op made = dtm_build_region(&b, data->kind, &data->attributes);
            emit_region(e, data->body, dtm_op_get(e->to, made)->body);
        }
    }
}

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
    dtm_builder b = builder_at(e, item->carry, to);
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
static void receive(emitter *e, const stage_cut *cut, int from, dtm_region to) {
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

static void send(emitter *e, const stage_cut *cut, int peer, dtm_region to) {
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
        if (sender >= 0) send(e, cut, next, to);
        e->chunk = receiver;
        if (receiver >= 0) receive(e, cut, from, to);
    }
    e->chunk = -1;
}

/* Stage after stage, and from one to the next what copies hand on, once in a step: all ranks come to these messages in one order,
 * so that none waits in a circle. Also ranks that hold the same stages add them up in one order. */
static void emit_outside(emitter *e, dtm_op repeat, dtm_region to) {
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

/* ---- the loop ---- */

static void emit_stage(emitter *e, stage_part part, dtm_region loop) {
    const stages *s = e->s;
    const dtm_region_data *parts = &e->from->regions[get(e, s->loop)->body];
    int stage = stage_of_chunk(e, e->chunk);
    bool forward = part == PART_FORWARD;
    const stage_cut *in =
        forward ? (stage > 0 ? &s->forward[stage - 1] : NULL) : (stage + 1 < s->count ? &s->backward[stage] : NULL);
    const stage_cut *out =
        forward ? (stage + 1 < s->count ? &s->forward[stage] : NULL) : (stage > 0 ? &s->backward[stage - 1] : NULL);
    for (size_t k = 0; k < parts->n_ops; k++) {
        const dtm_op_data *data = get(e, parts->ops[k]);
        if (s->part[parts->ops[k]] != part) continue;
        bool any = has_any(e, data->body, e->chunk) || (in && in->count) || (out && out->count);
        if (!any) continue;
        dtm_builder b = builder_at(e, parts->ops[k], loop);
        dtm_attributes attributes = data->attributes;
        attributes.number[DTM_REGION_STAGE] = stage;
        attributes.number[DTM_REGION_CHUNK] = e->chunk;
        dtm_region body = dtm_op_get(e->to, dtm_build_region(&b, data->kind, &attributes))->body;
        if (in) receive(e, in, forward ? stage - 1 : stage + 1, body);
        emit_region(e, data->body, body);
        if (out) send(e, out, forward ? stage + 1 : stage - 1, body);
    }
}

/* Of two directions each has its own microbatches, so the loop has an order from the beginning: one after the other. */
static dtm_string order_of_directions(const emitter *e) {
    dtm_text text = {e->s->scratch, NULL, 0, 0};
    int microbatches = (int)get(e, e->s->loop)->attributes.copies, first = (microbatches + 1) / 2;
    for (int m = 0; m < microbatches; m++) {
        int chunk = m >= first, number = chunk ? m - first : m;
        dtm_text_printf(&text, "%sF%d.%d B%d.%d", m ? " " : "", number, chunk, number, chunk);
    }
    return dtm_string_of(e->to->context, text.data);
}

static void emit_loop(emitter *e) {
    dtm_builder b = builder_at(e, e->s->loop, e->to->body);
    dtm_attributes attributes = get(e, e->s->loop)->attributes;
    if (stage_directions(e->s) == 2) {
        attributes.flags |= DTM_MICROBATCH_BOTH_WAYS;
        attributes.order = order_of_directions(e);
    }
    dtm_op loop = dtm_build_region(&b, DTM_OP_MICROBATCH, &attributes);
    dtm_region body = dtm_op_get(e->to, loop)->body;
    for (e->chunk = 0; e->chunk < e->s->chunks; e->chunk++) emit_stage(e, PART_FORWARD, body);
    for (e->chunk = e->s->chunks - 1; e->chunk >= 0; e->chunk--) emit_stage(e, PART_BACKWARD, body);
    e->chunk = -1;
}

/* What a part of the loop accumulated and ranks add up is added up right after it, as the same part of the step: what forward
 * made is wanted without backward too. */
static void gather_sums(emitter *e, stage_part part) {
    dtm_region region = 0;
    for (dtm_op op = 1; op < e->s->n_ops; op++) {
        const dtm_op_data *data = get(e, op);
        if (!data->region || data->kind != DTM_OP_ACCUMULATE || e->s->part[op] != part || e->s->around[op]) continue;
        if (!e->s->gathered[data->results[0]]) continue;
        if (!region) {
            dtm_builder top = dtm_builder_at_end(e->to, e->to->body);
            dtm_op_kind kind = part == PART_FORWARD ? DTM_OP_FORWARD : DTM_OP_BACKWARD;
            region = dtm_op_get(e->to, dtm_build_region(&top, kind, NULL))->body;
        }
        dtm_builder b = builder_at(e, op, region);
        gather(e, &b, data->results[0]);
    }
}

/* ---- what nothing reads ---- */

static void mark_live(dtm_module *module, bool *live, dtm_op op) {
    if (!op || live[op]) return;
    live[op] = true;
    const dtm_op_data *data = dtm_op_get(module, op);
    for (uint32_t i = 0; i < data->n_operands; i++) mark_live(module, live, dtm_value_get(module, data->operands[i])->def);
    mark_live(module, live, dtm_enclosing(module, op, DTM_OP_NONE));
}

/* Of a stage on two ranks, one does not count what the other counts. */
static void remove_unread(dtm_module *module, dtm_arena *arena) {
    dtm_op_list ops = dtm_ops_in_order(module, arena);
    bool *live = dtm_arena_alloc(arena, module->n_ops * sizeof *live);
    for (size_t i = 0; i < ops.count; i++) {
        const dtm_op_data *op = dtm_op_get(module, ops.items[i]);
        bool source = op->kind == DTM_OP_INPUT || op->kind == DTM_OP_WEIGHT || op->kind == DTM_OP_STATE;
        bool joins = op->kind == DTM_OP_RECEIVE || dtm_along_pipeline(module, op); /* others wait for it */
        if ((!op->body && !op->n_results) || source || joins) mark_live(module, live, ops.items[i]);
    }
    for (size_t i = ops.count; i-- > 0;)
        if (!live[ops.items[i]]) dtm_op_remove(module, ops.items[i]);
}

dtm_module *stage_emit(stages *s, int rank) {
    emitter e = {.s = s, .from = s->module, .to = dtm_module_like(s->module), .rank = rank, .chunk = -1};
    e.to->of_ranks = true;
    e.to->rank = rank;
    size_t maps = (size_t)s->chunks + 1;
    e.map = dtm_arena_alloc(s->scratch, maps * sizeof *e.map);
    e.needed = dtm_arena_alloc(s->scratch, maps * sizeof *e.needed);
    for (size_t i = 0; i < maps; i++) e.map[i] = dtm_arena_alloc(s->scratch, s->n_values * sizeof **e.map);
    e.of_all = dtm_arena_alloc(s->scratch, s->n_values * sizeof *e.of_all);
    e.added = dtm_arena_alloc(s->scratch, maps * sizeof *e.added);
    for (size_t i = 0; i < maps; i++) e.added[i] = dtm_arena_alloc(s->scratch, s->n_values * sizeof **e.added);
    for (size_t i = 0; i < maps; i++) e.needed[i] = dtm_arena_alloc(s->scratch, s->n_ops * sizeof **e.needed);
    e.arriving = dtm_arena_alloc(s->scratch, (size_t)s->chunks * sizeof *e.arriving);
    e.first = dtm_arena_alloc(s->scratch, (size_t)s->chunks * sizeof *e.first);
    e.handed = dtm_arena_alloc(s->scratch, (size_t)s->chunks * sizeof *e.handed);
    for (int c = 0; c < s->chunks; c++) {
        e.arriving[c] = dtm_arena_alloc(s->scratch, s->n_ops * sizeof **e.arriving);
        e.first[c] = dtm_arena_alloc(s->scratch, s->n_ops * sizeof **e.first);
    }
    find_needed(&e);
    const dtm_region_data *body = &e.from->regions[e.from->body];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *top = get(&e, body->ops[i]);
        if (body->ops[i] == s->loop) {
            emit_loop(&e);
            gather_sums(&e, PART_FORWARD);
            gather_sums(&e, PART_BACKWARD);
            continue;
        }
        if (!has_any(&e, top->body, -1)) continue;
        dtm_builder b = builder_at(&e, body->ops[i], e.to->body);
        dtm_op made = dtm_build_region(&b, top->kind, &top->attributes);
        emit_region(&e, top->body, dtm_op_get(e.to, made)->body);
    }
    for (size_t i = 0; i < e.n_carries; i++)
        dtm_op_get(e.to, e.carries[i].made)->operands[1] = mapped(&e, e.carries[i].next, e.carries[i].chunk);
    if (stage_directions(s) == 2) remove_unread(e.to, s->scratch);
    return e.to;
}
