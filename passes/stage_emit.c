/* The program of the ranks of one coordinate: a copy of the whole program, of which it has its copies of the repeat, what
 * runs on its stages, what it needs besides, and messages to and from its neighbours.
 *
 *     forward { weight embed; repeat layer = 2 { weight w } }
 *     microbatch microbatch = 4 {
 *         forward stage = 0 { input tokens; x = gather(..); repeat layer = 2 { .. }; x.out = last(x.3); send(x.out on pp, peer = 1) }
 *         backward stage = 0 { d_x.3.in = receive(on pp, peer = 1); repeat layer = 2 reversed { .. }; .. accumulate(..) }
 *     }
 *     backward { d_embed.sum = as_term / all_reduce on pp }
 *     update { .. }
 */
#include "passes/stage_emit.h"
#include "passes/stage_cost.h"

#include <string.h>

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
    dtm_builder b = emit_builder(e, op, to);
    const char *name = data.n_results ? name_of(e, data.results[0]) : "";
    dtm_op made = dtm_build_op(&b, data.kind, operands, data.n_operands, &data.attributes, types, data.n_results, name);
    stage_origin origin = {made, op};
    if (dtm_lies_all_through(data.kind)) DTM_PUSH(e->s->scratch, e->s->origins, e->s->n_origins, e->s->cap_origins, origin);
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
        return begins ? emit_mapped(e, data->operands[0], e->chunk) : e->arriving[e->chunk][op];
    }
    /* A sum: what it begins with is added once, by whoever has it. After the loop by the first chunk of its rank. */
    dtm_value first = 0;
    bool earlier = false;
    for (int c = 0; c < e->chunk; c++) earlier |= counts(e, c) && stage_copies(s, stage_of_chunk(e, c)) > 0;
    earlier |= !stage_in_loop(e->s, op) && !counts(e, e->chunk);
    if (stage_in_loop(e->s, op) || !earlier) first = emit_term(e, b, op, data->operands[0]);
    return first ? first : emit_nothing(b, e->from->values[data->results[0]].type, false, name_of(e, data->results[0]));
}

/* A part of a sum over stages: what there is of it here, perhaps nothing. */
static void emit_spread(emitter *e, dtm_op op, dtm_region to) {
    const dtm_op_data *data = get(e, op);
    dtm_builder b = emit_builder(e, op, to);
    dtm_value here = 0;
    if (data->kind == DTM_OP_ADD) {
        here = emit_plus(&b, emit_term(e, &b, op, data->operands[0]), emit_term(e, &b, op, data->operands[1]),
                    name_of(e, data->results[0]));
    } else if (data->kind == DTM_OP_LAST) {
        dtm_value next = e->map[e->chunk + 1][data->operands[0]];
        dtm_op carry = stage_carry_of(e->s, data->operands[0]);
        if (next) copy_op(e, op, to, &next);
        else if (carry) map_to(e, data->results[0], e->chunk, emit_term(e, &b, op, get(e, carry)->operands[0]));
        return;
    } else {
        dtm_value term = emit_term(e, &b, op, data->operands[0]);
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
    dtm_builder b = emit_builder(e, op, to);
    dtm_value sum = 0;
    for (int chunk = 0; chunk < s->chunks; chunk++) {
        dtm_value next = e->map[chunk + 1][data->operands[0]];
        if (!next || !counts(e, chunk) || (!is_sum && stage_of_chunk(e, chunk) != stage_of_last(s, op))) continue;
        copy_op(e, op, to, &next);
        b = emit_builder(e, op, to);
        sum = emit_plus(&b, sum, e->map[0][data->results[0]], name_of(e, data->results[0]));
    }
    if (!sum && is_sum) sum = emit_term(e, &b, op, get(e, carry)->operands[0]);
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
    dtm_builder b = emit_builder(e, op, to);
    if (after && data->kind == DTM_OP_ADD && s->home[data->results[0]].kind == HOME_SUM) {
        e->map[0][data->results[0]] = emit_plus(&b, emit_term(e, &b, op, data->operands[0]), emit_term(e, &b, op, data->operands[1]),
                                           name_of(e, data->results[0]));
        return;
    }
    dtm_value few[8],
        *operands = data->n_operands <= 8 ? few : dtm_arena_alloc(s->scratch, data->n_operands * sizeof *operands);
    for (uint32_t i = 0; i < data->n_operands; i++) {
        dtm_op def = def_of(e, data->operands[i]);
        bool sums = def && e->chunk < 0 && (stage_in_loop(e->s, def) || s->home[data->operands[i]].kind == HOME_SUM);
        if (def && s->around[op] && s->part[op] == PART_AFTER && !emit_is_of_one_direction(e, op)) emit_add_directions(e, &b, data->operands[i]);
        operands[i] = sums ? emit_over_chunks(e, &b, data->operands[i]) : emit_operand(e, op, i);
    }
    if (stage_is_carried(s, op)) operands[0] = e->first[e->chunk][op];
    dtm_op made = copy_op(e, op, to, operands);
    if (data->kind == DTM_OP_CARRY)
        DTM_PUSH(s->scratch, e->carries, e->n_carries, e->cap_carries, ((pending_carry){made, data->operands[1], e->chunk}));
}

/* An operator, and then the sums over ranks that its results are wanted in, also by a rank that has no part in it. */
static void emit_op(emitter *e, dtm_op op, dtm_region to) {
    const dtm_op_data *data = get(e, op);
    if (emit_is_here(e, op, e->chunk)) emit_here(e, op, to);
    if (!emit_may_be_gathered(e, op)) return;
    dtm_builder b = emit_builder(e, op, to);
    for (uint32_t i = 0; i < data->n_results; i++) emit_gather(e, &b, data->results[i]);
}

/* ---- regions ---- */

static void emit_region(emitter *e, dtm_region from, dtm_region to);

/* What the carries of a repeat begin with, before it. */
static void begin_carries(emitter *e, dtm_op repeat, dtm_region to) {
    const dtm_region_data *body = &e->from->regions[get(e, repeat)->body];
    for (size_t i = 0; i < body->n_ops; i++) {
        dtm_op op = body->ops[i];
        if (get(e, op)->kind != DTM_OP_CARRY) continue;
        dtm_builder b = emit_builder(e, op, to);
        e->first[e->chunk][op] = first_carried(e, &b, op);
    }
}

void emit_repeat(emitter *e, dtm_op op, dtm_region to, int chunk) {
    const stages *s = e->s;
    dtm_op_data data = *get(e, op);
    int stage = stage_of_chunk(e, chunk), outer = e->chunk;
    if (!stage_copies(s, stage)) return;
    e->chunk = chunk;
    begin_carries(e, op, to);
    data.attributes.copies = stage_copies(s, stage);
    data.attributes.from = s->first[stage];
    data.attributes.name = repeat_in_chunk(e);
    dtm_builder b = emit_builder(e, op, to);
    dtm_op made = dtm_build_region(&b, DTM_OP_REPEAT, &data.attributes);
    emit_region(e, data.body, dtm_op_get(e->to, made)->body);
    e->chunk = outer;
}

/* Whether the rank takes part in a sum over ranks of a result. */
static bool gathers(const emitter *e, dtm_op op) {
    const stages *s = e->s;
    const dtm_op_data *data = get(e, op);
    if (!emit_may_be_gathered(e, op)) return false;
    for (uint32_t i = 0; i < data->n_results; i++)
        if (s->gathered[data->results[i]] && emit_on_ranks(e, &s->target[data->results[i]])) return true;
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
        } else if (op->body ? has_any(e, op->body, chunk) : emit_is_here(e, data->ops[i], chunk) || gathers(e, data->ops[i]))
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
            dtm_builder b = emit_builder(e, op, to);
            dtm_op made = dtm_build_region(&b, data->kind, &data->attributes);
            emit_region(e, data->body, dtm_op_get(e->to, made)->body);
        }
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
        dtm_builder b = emit_builder(e, parts->ops[k], loop);
        dtm_attributes attributes = data->attributes;
        attributes.number[DTM_REGION_STAGE] = stage;
        attributes.number[DTM_REGION_CHUNK] = e->chunk;
        dtm_region body = dtm_op_get(e->to, dtm_build_region(&b, data->kind, &attributes))->body;
        if (in) emit_receive(e, in, forward ? stage - 1 : stage + 1, body);
        emit_region(e, data->body, body);
        if (out) emit_send(e, out, forward ? stage + 1 : stage - 1, body);
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
    dtm_builder b = emit_builder(e, e->s->loop, e->to->body);
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

/* A repeat that is not split, once more after the loop. */
typedef struct repeat_again {
    dtm_op repeat;
    dtm_region body;
} repeat_again;

/* Where what an operator of the loop made is read after it, copy by copy where it stands in a repeat. */
static dtm_region in_its_copies(emitter *e, dtm_op op, dtm_region to, repeat_again *again) {
    dtm_op repeat = dtm_enclosing(e->from, op, DTM_OP_REPEAT);
    if (!repeat) return to;
    if (again->repeat == repeat) return again->body;
    dtm_builder b = emit_builder(e, repeat, in_its_copies(e, repeat, to, &(repeat_again){0}));
    dtm_op made = dtm_build_region(&b, DTM_OP_REPEAT, &get(e, repeat)->attributes);
    *again = (repeat_again){repeat, dtm_op_get(e->to, made)->body};
    return again->body;
}

/* What a part of the loop accumulated and ranks add up is added up right after it, as the same part of the step: what forward
 * made is wanted without backward too. */
static void gather_sums(emitter *e, stage_part part) {
    dtm_region region = 0;
    repeat_again again = {0};
    for (dtm_op op = 1; op < e->s->n_ops; op++) {
        const dtm_op_data *data = get(e, op);
        if (!data->region || data->kind != DTM_OP_ACCUMULATE || e->s->part[op] != part || e->s->around[op]) continue;
        if (!e->s->gathered[data->results[0]]) continue;
        if (!region) {
            dtm_builder top = dtm_builder_at_end(e->to, e->to->body);
            dtm_op_kind kind = part == PART_FORWARD ? DTM_OP_FORWARD : DTM_OP_BACKWARD;
            region = dtm_op_get(e->to, dtm_build_region(&top, kind, NULL))->body;
        }
        dtm_builder b = emit_builder(e, op, in_its_copies(e, op, region, &again));
        emit_gather(e, &b, data->results[0]);
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
    s->n_origins = 0;
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
    emit_find_needed(&e);
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
        dtm_builder b = emit_builder(&e, body->ops[i], e.to->body);
        dtm_op made = dtm_build_region(&b, top->kind, &top->attributes);
        emit_region(&e, top->body, dtm_op_get(e.to, made)->body);
    }
    for (size_t i = 0; i < e.n_carries; i++)
        dtm_op_get(e.to, e.carries[i].made)->operands[1] = emit_mapped(&e, e.carries[i].next, e.carries[i].chunk);
    if (stage_directions(s) == 2) remove_unread(e.to, s->scratch);
    return e.to;
}
