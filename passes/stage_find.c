/* Where everything runs. In the loop over microbatches a forward operator runs where the last of what it reads is made, a
 * backward operator on the earliest stage that makes a gradient it reads. What depends on inputs alone is computed wherever
 * it is read; what weights have a part in, but no stage yet, where it is first needed. A sum that is only accumulated
 * (the gradient of a weight that several stages use) is not sent along: each stage accumulates its own terms, which are
 * added once, after the loop. After the loop an operator runs where the weight lies that it is about, and what is about
 * several weights is a sum over ranks. */
#include "ir/fault.h"
#include "passes/stage.h"

#include <string.h>

static const dtm_op_data *get(const stages *s, dtm_op op) { return &s->module->ops[op]; }
static dtm_op def_of(const stages *s, dtm_value value) { return s->module->values[value].def; }

/* ---- 1. parts, repeats, units ---- */

static void place_op(stages *s, dtm_op op, stage_part part, dtm_op around, dtm_op unit) {
    const dtm_op_data *data = get(s, op);
    s->part[op] = part;
    s->around[op] = around;
    s->unit[op] = unit ? unit : op;
    if (!data->body) return;
    bool split = stage_is_split(s, data);
    if (split && unit && s->good) {
        s->good = false;
        if (s->quiet) return;
        dtm_error(s->module->context, data->span, 414, "the repeat `%s` stands in another repeat, and a pipeline splits it",
                  dtm_string_text(s->module->context, s->rule->repeat));
        dtm_help(s->module->context, "let the pipeline split the outer one");
    }
    dtm_op inner = unit ? unit : data->kind == DTM_OP_REPEAT && !split && !around ? op : 0;
    const dtm_region_data *body = &s->module->regions[data->body];
    for (size_t i = 0; i < body->n_ops; i++) place_op(s, body->ops[i], part, split ? op : around, inner);
}

static void find_parts(stages *s) {
    const dtm_region_data *body = &s->module->regions[s->module->body];
    bool after = false;
    for (size_t i = 0; i < body->n_ops; i++) {
        dtm_op top = body->ops[i];
        if (top != s->loop) {
            place_op(s, top, after ? PART_AFTER : PART_BEFORE, 0, 0);
            continue;
        }
        const dtm_region_data *parts = &s->module->regions[get(s, top)->body];
        for (size_t k = 0; k < parts->n_ops; k++) {
            bool forward = get(s, parts->ops[k])->kind == DTM_OP_FORWARD;
            place_op(s, parts->ops[k], forward ? PART_FORWARD : PART_BACKWARD, 0, 0);
        }
        after = true;
    }
}

static bool is_last_of_split(const stages *s, dtm_op op) {
    return get(s, op)->kind == DTM_OP_LAST && !s->around[op] && s->around[def_of(s, get(s, op)->operands[0])];
}

/* What is made before the loop is made again wherever it is read. Not so what the loop does not read in any way, and
 * what copies of the split repeat have a part in: of that some ranks have what others lack, so it has homes like what
 * stands after the loop. */
static void find_homed(stages *s) {
    bool *of_copies = dtm_arena_alloc(s->scratch, s->n_ops * sizeof *of_copies);
    bool *read = dtm_arena_alloc(s->scratch, s->n_ops * sizeof *read);
    for (dtm_op op = 1; op < s->n_ops; op++) {
        const dtm_op_data *data = get(s, op);
        if (!data->region || data->body || s->part[op] != PART_BEFORE || s->around[op]) continue;
        of_copies[op] = is_last_of_split(s, op);
        for (uint32_t i = 0; i < data->n_operands; i++) of_copies[op] |= of_copies[def_of(s, data->operands[i])];
    }
    for (bool news = true; news;) { /* again for what is handed to the next copy, which stands later in the text */
        news = false;
        for (dtm_op op = (dtm_op)s->n_ops - 1; op > 0; op--) {
            const dtm_op_data *data = get(s, op);
            if (!data->region || data->body || !(read[op] || stage_in_loop(s, op))) continue;
            for (uint32_t i = 0; i < data->n_operands; i++) {
                dtm_op def = def_of(s, data->operands[i]);
                if (!def || read[def] || of_copies[def] || s->part[def] != PART_BEFORE) continue;
                read[def] = news = true;
            }
        }
    }
    for (dtm_op op = 1; op < s->n_ops; op++) {
        const dtm_op_data *data = get(s, op);
        bool placed = data->kind == DTM_OP_WEIGHT || data->kind == DTM_OP_STATE || data->kind == DTM_OP_INPUT;
        if (data->region && !data->body && !read[op] && !placed && s->part[op] == PART_BEFORE) s->part[op] = PART_AFTER;
    }
}

/* ---- 2. sums over stages ---- */

/* Whether every copy of the split repeat reads a value from outside, rather than the one that runs first. */
static bool is_read_by_copies(const stages *s, dtm_op user, uint32_t operand) {
    dtm_op def = def_of(s, get(s, user)->operands[operand]);
    return def && s->around[user] && !s->around[def] && !(stage_is_carried(s, user) && operand == 0);
}

/* Reading a value so is taking it for a term. */
static bool takes_term(const stages *s, dtm_op user, uint32_t operand) {
    const dtm_op_data *data = get(s, user);
    if (s->unit[user] != user || is_read_by_copies(s, user, operand)) return false;
    switch (data->kind) {
    case DTM_OP_ACCUMULATE: return true;
    case DTM_OP_ADD:
    case DTM_OP_CARRY: return s->summed[data->results[0]];
    case DTM_OP_LAST: return (s->part[user] == PART_AFTER && !s->around[user]) || s->summed[data->results[0]];
    default: return false;
    }
}

/* The carry of the same repeat that a value is the next of, or 0. */
static dtm_op carry_of(const stages *s, dtm_value next) {
    const dtm_region_data *body = &s->module->regions[get(s, def_of(s, next))->region];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *op = get(s, body->ops[i]);
        if (op->kind == DTM_OP_CARRY && op->operands[1] == next) return body->ops[i];
    }
    return 0;
}

static uint8_t at_most_two(int count) { return (uint8_t)(count > 2 ? 2 : count); }

/* How often the sum `value` has `term` in it: 0, 1 or more (2). What a repeat within a copy adds in its body it adds often. Each
 * value is counted once: `known` is by value 1 more than that. */
static uint8_t occurrences(const stages *s, dtm_value value, dtm_value term, uint8_t *known) {
    if (value == term) return 1;
    if (!s->summed[value]) return 0;
    if (known[value]) return known[value] - 1;
    const dtm_op_data *def = get(s, def_of(s, value));
    dtm_op carry = def->kind == DTM_OP_LAST ? carry_of(s, def->operands[0]) : 0;
    int count = 0;
    if (def->kind == DTM_OP_ADD)
        count = occurrences(s, def->operands[0], term, known) + occurrences(s, def->operands[1], term, known);
    else if (carry)
        count = occurrences(s, get(s, carry)->operands[0], term, known) + 2 * occurrences(s, def->operands[0], term, known);
    known[value] = at_most_two(count) + 1;
    return at_most_two(count);
}

static bool occurs_once(const stages *s, dtm_value value, dtm_value term) {
    uint8_t *known = dtm_arena_alloc(s->scratch, s->n_values);
    return occurrences(s, value, term, known) == 1;
}

static bool can_be_summed(const stages *s, dtm_op op) {
    const dtm_op_data *data = get(s, op);
    dtm_value value = data->n_results ? data->results[0] : 0;
    if (!value || !s->summed[value]) return false;
    if (data->kind == DTM_OP_CARRY) return s->summed[data->operands[1]] && occurs_once(s, data->operands[1], value);
    /* `last` of anything but a sum over the copies is one copy's value */
    if (data->kind == DTM_OP_LAST)
        return s->summed[data->operands[0]] && (s->around[op] ? carry_of(s, data->operands[0]) != 0 : s->part[op] != PART_AFTER);
    return true;
}

/* From all that could be, by striking out. */
static void find_sums(stages *s) {
    for (dtm_op op = 1; op < s->n_ops; op++) {
        const dtm_op_data *data = get(s, op);
        if (!data->region || s->part[op] == PART_BEFORE || s->unit[op] != op) continue;
        bool after = s->part[op] == PART_AFTER; /* there homes say it, outside of the repeat */
        if (data->kind == DTM_OP_ADD) s->summed[data->results[0]] = !after || s->around[op];
        if (data->kind == DTM_OP_CARRY || data->kind == DTM_OP_LAST)
            s->summed[data->results[0]] = s->around[op] || (data->kind == DTM_OP_LAST && !after);
    }
    uint32_t *uses = dtm_use_counts(s->module, s->scratch);
    for (bool news = true; news;) {
        news = false;
        for (dtm_op op = 1; op < s->n_ops; op++) {
            const dtm_op_data *data = get(s, op);
            if (!data->region || data->body) continue;
            for (uint32_t i = 0; i < data->n_operands; i++) {
                if (!s->summed[data->operands[i]] || takes_term(s, op, i)) continue;
                s->summed[data->operands[i]] = false, news = true;
            }
            dtm_value value = data->n_results ? data->results[0] : 0;
            if (!value || !s->summed[value] || (uses[value] && can_be_summed(s, op))) continue;
            s->summed[value] = false, news = true;
        }
    }
}

/* ---- 3. stages of what is in the loop ---- */

static bool *weighted_values(stages *s) {
    bool *weighted = dtm_arena_alloc(s->scratch, s->n_values * sizeof *weighted);
    for (dtm_op op = 1; op < s->n_ops; op++) {
        const dtm_op_data *data = get(s, op);
        if (!data->region || s->part[op] != PART_BEFORE) continue;
        bool any = data->kind == DTM_OP_WEIGHT || data->kind == DTM_OP_STATE;
        for (uint32_t i = 0; i < data->n_operands; i++) any |= weighted[data->operands[i]];
        for (uint32_t i = 0; i < data->n_results; i++) weighted[data->results[i]] = any;
    }
    return weighted;
}

int stage_of_value(const stages *s, dtm_value value) {
    dtm_op def = def_of(s, value);
    return def && stage_in_loop(s, def) ? s->stage[s->unit[def]] : STAGE_ANYWHERE;
}

int stage_of_last(const stages *s, dtm_op last) {
    dtm_op repeat = s->around[def_of(s, get(s, last)->operands[0])];
    return get(s, repeat)->attributes.flags & DTM_REPEAT_REVERSED ? stage_lowest(s) : stage_highest(s);
}

/* Where a reader of a value may run at the earliest (backward: at the latest). What comes out of the split repeat goes to the
 * end of the pipeline, where there may be a stage without copies for what stands beside the repeat. */
static int stage_beside_copies(const stages *s, dtm_value value) {
    dtm_op def = def_of(s, value);
    if (!def || !stage_in_loop(s, def) || !is_last_of_split(s, def)) return stage_of_value(s, value);
    return get(s, s->around[def_of(s, get(s, def)->operands[0])])->attributes.flags & DTM_REPEAT_REVERSED ? 0 : s->count - 1;
}

typedef struct finder {
    stages *s;
    bool *weighted;
    stage_part part;
} finder;

/* Takes an operator of a unit into account. */
static void find_stage(finder *f, dtm_op op) {
    stages *s = f->s;
    const dtm_op_data *data = get(s, op);
    int *stage = &s->stage[s->unit[op]];
    bool backward = f->part == PART_BACKWARD;
    if (is_last_of_split(s, op)) {
        *stage = stage_of_last(s, op);
        return;
    }
    int made = *stage >= 0 ? *stage : STAGE_ANYWHERE, met = STAGE_ANYWHERE;
    bool needed = *stage == STAGE_NEEDED;
    for (uint32_t i = 0; i < data->n_operands; i++) {
        dtm_op def = def_of(s, data->operands[i]);
        if (!def || s->unit[def] == s->unit[op]) continue;
        int at = stage_beside_copies(s, data->operands[i]);
        needed |= at == STAGE_NEEDED || f->weighted[data->operands[i]];
        if (at < 0) continue;
        bool gradient = s->part[def] == PART_BACKWARD;
        if (backward && (gradient || s->unit[def] != def)) made = made < 0 || at < made ? at : made; /* no message has values of copies */
        else if (backward) met = at > met ? at : met;
        else made = at > made ? at : made;
    }
    if (made < 0) made = met;
    *stage = made >= 0 ? made : needed ? STAGE_NEEDED : STAGE_ANYWHERE;
}

static void find_stages_of(finder *f, dtm_region region) {
    stages *s = f->s;
    const dtm_region_data *body = &s->module->regions[region];
    for (size_t i = 0; i < body->n_ops; i++) {
        dtm_op op = body->ops[i];
        const dtm_op_data *data = get(s, op);
        if (s->around[op] || stage_is_split(s, data)) s->stage[op] = STAGE_COPIES;
        else if (!data->body) {
            bool spread = s->unit[op] == op && ((data->n_results && s->summed[data->results[0]]) ||
                                                (data->kind == DTM_OP_ACCUMULATE && s->summed[data->operands[0]]));
            if (spread) s->stage[op] = STAGE_SPREAD;
            else find_stage(f, op);
        } else if (s->unit[op] == op && data->kind == DTM_OP_REPEAT) s->stage[op] = STAGE_ANYWHERE;
        if (data->body) find_stages_of(f, data->body);
    }
}

/* The lowest and highest stage on which an operator reads an operand, which is made on stage `made`. */
static void reading_stages(const stages *s, dtm_op op, uint32_t operand, int made, int *low, int *high) {
    const dtm_op_data *data = get(s, op);
    int stage = s->stage[s->unit[op]];
    *low = *high = made;
    bool term = (data->n_results && s->summed[data->results[0]]) || stage == STAGE_SPREAD;
    if (is_read_by_copies(s, op, operand)) term = false;
    if (term || stage == STAGE_ANYWHERE || stage == STAGE_NEEDED) return;
    if (stage >= 0) *low = *high = stage;
    if (stage != STAGE_COPIES) return;
    *low = stage_lowest(s), *high = stage_highest(s);
    if (!stage_is_carried(s, op)) return;
    bool reversed = get(s, s->around[op])->attributes.flags & DTM_REPEAT_REVERSED;
    if (operand == 1) *low = *high = made; /* handed from copy to copy */
    else if (reversed) *low = *high;
    else *high = *low;
}

/* What weights have a part in, but no stage, runs on the first stage of its part that reads it, what copies of the split repeat read
 * at the beginning of the pipeline: its gradient, which comes out of them, goes on there too. Operators are numbered in
 * the order of the text, so what reads a result is settled before what makes it. */
static void settle_needed(stages *s, stage_part part) {
    bool backward = part == PART_BACKWARD;
    int *wanted = dtm_arena_alloc(s->scratch, s->n_ops * sizeof *wanted);
    for (size_t op = 0; op < s->n_ops; op++) wanted[op] = STAGE_ANYWHERE;
    for (dtm_op op = (dtm_op)s->n_ops - 1; op > 0; op--) {
        const dtm_op_data *data = get(s, op);
        if (!data->region || data->body || !stage_in_loop(s, op)) continue;
        int *at = &s->stage[s->unit[op]];
        if (s->part[op] == part && *at == STAGE_NEEDED) {
            *at = wanted[s->unit[op]] >= 0 ? wanted[s->unit[op]] : backward ? s->count - 1 : 0;
            if (s->limit[s->unit[op]] < *at) *at = s->limit[s->unit[op]];
        }
        for (uint32_t i = 0; i < data->n_operands; i++) {
            dtm_op def = def_of(s, data->operands[i]);
            if (!def || s->part[def] != part || s->unit[def] == s->unit[op] || s->stage[s->unit[def]] != STAGE_NEEDED) continue;
            int low, high, *want = &wanted[s->unit[def]];
            reading_stages(s, op, i, STAGE_NEEDED, &low, &high);
            if (s->stage[s->unit[op]] == STAGE_COPIES && high >= 0) low = high = backward ? s->count - 1 : 0;
            if (high >= 0 && (*want < 0 || (backward ? high > *want : low < *want))) *want = backward ? high : low;
        }
    }
    for (dtm_op op = 1; op < s->n_ops; op++) { /* what leaves a repeat leaves it where it runs */
        const dtm_op_data *data = get(s, op);
        dtm_op def = data->region && data->kind == DTM_OP_LAST && s->part[op] == part && s->unit[op] == op ? def_of(s, data->operands[0]) : 0;
        if (def && s->unit[def] != def && s->stage[op] >= 0) s->stage[op] = s->stage[s->unit[def]];
    }
}

/* Backward operators that are made of no gradient: of what the forward pass has left, which any later stage can be sent. */
static bool *made_of_forward(const stages *s) {
    bool *free_of = dtm_arena_alloc(s->scratch, s->n_ops * sizeof *free_of);
    for (dtm_op op = 1; op < s->n_ops; op++) {
        const dtm_op_data *data = get(s, op);
        if (!data->region || data->body || s->part[op] != PART_BACKWARD || s->unit[op] != op || s->stage[op] < 0) continue;
        free_of[op] = true;
        for (uint32_t i = 0; i < data->n_operands; i++) {
            dtm_op def = def_of(s, data->operands[i]);
            free_of[op] &= !def || s->part[def] != PART_BACKWARD || free_of[def];
        }
    }
    return free_of;
}

/* These run on the last of the stages that read them: from there they go back with gradients. */
static void raise_made_of_forward(stages *s) {
    bool *free_of = made_of_forward(s);
    for (dtm_op op = (dtm_op)s->n_ops - 1; op > 0; op--) {
        const dtm_op_data *data = get(s, op);
        if (!data->region || data->body || s->part[op] != PART_BACKWARD) continue;
        for (uint32_t i = 0; i < data->n_operands; i++) {
            dtm_op def = def_of(s, data->operands[i]);
            int low, high;
            if (!def || !free_of[def]) continue;
            reading_stages(s, op, i, s->stage[def], &low, &high);
            if (high > s->stage[def]) s->stage[def] = high;
        }
    }
}

/* No message has values of copies: a repeat whose backward pass reads them runs on no later stage than that, which stands where what
 * its gradients are added to is made. Whether some repeat has to run earlier than it was to. */
static bool limit_by_backward(stages *s) {
    bool news = false;
    for (dtm_op op = 1; op < s->n_ops; op++) {
        const dtm_op_data *data = get(s, op);
        int at = s->stage[s->unit[op]];
        for (uint32_t i = 0; data->region && s->part[op] == PART_BACKWARD && at >= 0 && i < data->n_operands; i++) {
            dtm_op def = def_of(s, data->operands[i]), unit = def ? s->unit[def] : 0;
            if (!unit || unit == def || s->part[def] != PART_FORWARD || s->stage[unit] <= at || s->limit[unit] <= at) continue;
            s->limit[unit] = at;
            news = true;
        }
    }
    return news;
}

static void find_stages_once(stages *s) {
    finder f = {s, weighted_values(s), PART_FORWARD};
    for (size_t op = 0; op < s->n_ops; op++) s->stage[op] = STAGE_ANYWHERE;
    const dtm_region_data *parts = &s->module->regions[get(s, s->loop)->body];
    for (int backward = 0; backward < 2; backward++) {
        f.part = backward ? PART_BACKWARD : PART_FORWARD;
        for (size_t k = 0; k < parts->n_ops; k++)
            if (s->part[parts->ops[k]] == f.part) find_stages_of(&f, get(s, parts->ops[k])->body);
        settle_needed(s, f.part);
    }
    raise_made_of_forward(s);
}

static void find_stages(stages *s) {
    for (size_t op = 0; op < s->n_ops; op++) s->limit[op] = s->count - 1;
    do find_stages_once(s);
    while (limit_by_backward(s));
}

/* ---- 4. what goes from stage to stage ---- */

static void add_item(stages *s, stage_cut *cut, stage_item item) {
    for (size_t i = 0; i < cut->count; i++)
        if (cut->items[i].value == item.value && cut->items[i].carry == item.carry) return;
    DTM_PUSH(s->scratch, cut->items, cut->count, cut->capacity, item);
}

static void send_between(stages *s, stage_item item, int from, int to) {
    for (int k = from; k < to; k++) add_item(s, &s->forward[k], item);
    for (int k = from; k > to; k--) add_item(s, &s->backward[k - 1], item);
}

static void send_operand(stages *s, dtm_op op, uint32_t operand) {
    dtm_value value = get(s, op)->operands[operand];
    dtm_op def = def_of(s, value);
    int made = def ? stage_of_value(s, value) : STAGE_ANYWHERE, low, high;
    if (made < 0) return;
    reading_stages(s, op, operand, made, &low, &high);
    if (s->part[def] == PART_BACKWARD && high > made) {
        s->good = false;
        if (s->quiet) return;
        dtm_error(s->module->context, get(s, op)->span, 414,
                  "`%s`, a gradient, would have to go back from stage %d to stage %d", dtm_value_name(s->module, value), made,
                  high);
        return;
    }
    send_between(s, (stage_item){value, 0}, made, low);
    send_between(s, (stage_item){value, 0}, made, high);
}

static void send_carried(stages *s, dtm_op carry) {
    bool reversed = get(s, s->around[carry])->attributes.flags & DTM_REPEAT_REVERSED;
    int before = STAGE_ANYWHERE, step = reversed ? -1 : 1;
    for (int stage = reversed ? s->count - 1 : 0; stage >= 0 && stage < s->count; stage += step) {
        if (!stage_copies(s, stage)) continue;
        if (before >= 0) send_between(s, (stage_item){0, carry}, before, stage);
        before = stage;
    }
}

static void find_cuts(stages *s) {
    for (dtm_op op = 1; op < s->n_ops; op++) {
        const dtm_op_data *data = get(s, op);
        if (!data->region || data->body) continue;
        bool carried = stage_is_carried(s, op) && !s->summed[data->results[0]];
        if (!stage_in_loop(s, op)) continue;
        for (uint32_t i = 0; i < data->n_operands; i++) send_operand(s, op, i);
        if (carried) send_carried(s, op);
    }
}

/* The carry that hands a value of the split repeat to the next copy, or 0. */
dtm_op stage_carry_of(const stages *s, dtm_value next) {
    const dtm_region_data *body = &s->module->regions[get(s, s->around[def_of(s, next)])->body];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *op = get(s, body->ops[i]);
        if (op->kind == DTM_OP_CARRY && op->operands[1] == next) return body->ops[i];
    }
    return 0;
}

/* ---- 5. homes after the loop ---- */

/* A sum of what it reads is a sum of what it makes; so of a gradient in the type that ranks send it in. */
static bool moves_elements(const dtm_op_data *op) {
    return (op->kind >= DTM_OP_RELAYOUT && op->n_operands == 1) || op->kind == DTM_OP_CAST;
}

static bool *no_ranks(stages *s) { return dtm_arena_alloc(s->scratch, (size_t)s->n_ranks); }

bool stage_is_maximum(const stages *s, dtm_value value) {
    dtm_op def = def_of(s, value);
    if (!def) return false;
    const dtm_op_data *data = get(s, def);
    if (s->part[def] == PART_AFTER && moves_elements(data)) return stage_is_maximum(s, data->operands[0]);
    return data->kind == DTM_OP_ACCUMULATE &&
           dtm_value_type(s->module, data->operands[0])->max != dtm_value_type(s->module, value)->max;
}

int stage_owner(const stage_home *home) {
    int rank = 0;
    if (home->kind == HOME_SET || home->kind == HOME_SUM)
        while (!home->ranks[rank]) rank++;
    return rank;
}

/* The ranks that read an operand of what runs in the loop, or in the split repeat. */
static void mark_reading(stages *s, dtm_op op, uint32_t operand, bool *ranks) {
    int stage = s->around[op] ? STAGE_COPIES : s->stage[s->unit[op]];
    bool first = stage_is_carried(s, op) && operand == 0 && !stage_in_loop(s, op);
    if (first)
        stage = get(s, s->around[op])->attributes.flags & DTM_REPEAT_REVERSED ? stage_highest(s) : stage_lowest(s);
    for (int k = 0; k < s->count; k++)
        if (stage == k || (stage == STAGE_COPIES && stage_copies(s, k))) stage_holders(s, k, ranks);
}

/* The ranks that read what is made before the loop: of a weight, those that hold it. */
static void find_holders(stages *s) {
    for (dtm_op op = (dtm_op)s->n_ops - 1; op > 0; op--) {
        const dtm_op_data *data = get(s, op);
        if (!data->region || data->body) continue;
        for (uint32_t i = 0; i < data->n_operands; i++) {
            dtm_value value = data->operands[i];
            dtm_op def = def_of(s, value);
            if (!def || s->part[def] != PART_BEFORE || s->around[def]) continue;
            stage_home *home = &s->home[value];
            if (!home->ranks) *home = (stage_home){HOME_SET, no_ranks(s)};
            if (stage_in_loop(s, op) || (s->part[op] == PART_BEFORE && s->around[op]))
                mark_reading(s, op, i, home->ranks);
            else if (s->part[op] == PART_AFTER && get(s, def)->kind != DTM_OP_WEIGHT) /* made again wherever it is read */
                for (int r = 0; r < s->n_ranks; r++) home->ranks[r] = true;
            else if (s->part[op] == PART_BEFORE && data->n_results && s->home[data->results[0]].ranks)
                for (int r = 0; r < s->n_ranks; r++) home->ranks[r] |= s->home[data->results[0]].ranks[r];
        }
    }
    for (dtm_op op = 1; op < s->n_ops; op++) {
        const dtm_op_data *data = get(s, op);
        if (!data->region || s->part[op] != PART_BEFORE) continue;
        for (uint32_t i = 0; i < data->n_results; i++) {
            stage_home *home = &s->home[data->results[i]];
            if (s->around[op]) *home = (stage_home){HOME_COPIES, NULL};
            else if (data->kind != DTM_OP_WEIGHT) *home = (stage_home){HOME_ALL, NULL};
            else {
                bool any = false;
                if (!home->ranks) *home = (stage_home){HOME_SET, no_ranks(s)};
                for (int r = 0; r < s->n_ranks; r++) any |= home->ranks[r];
                if (!any) home->ranks[0] = true; /* no stage reads it: somebody has to keep it */
            }
        }
    }
}

/* The ranks whose stages add to an accumulated sum. */
static void add_terms(stages *s, dtm_value value, bool *ranks, bool *seen) {
    dtm_op def = def_of(s, value);
    const dtm_op_data *data = get(s, def);
    if (seen[value]) return;
    seen[value] = true;
    if (s->around[def]) {
        for (int k = 0; k < s->count; k++)
            if (stage_copies(s, k)) stage_holders(s, k, ranks);
        if (data->kind != DTM_OP_CARRY && data->kind != DTM_OP_ADD) return;
    }
    if (!s->summed[value]) {
        int stage = stage_of_value(s, value);
        stage_holders(s, stage >= 0 ? stage : 0, ranks);
    } else if (data->kind == DTM_OP_ADD && !s->around[def]) {
        add_terms(s, data->operands[0], ranks, seen);
        add_terms(s, data->operands[1], ranks, seen);
    } else if (data->kind == DTM_OP_LAST) {
        dtm_op carry = stage_carry_of(s, data->operands[0]);
        add_terms(s, data->operands[0], ranks, seen);
        /* and what the repeat begins with */
        if (carry && def_of(s, get(s, carry)->operands[0])) add_terms(s, get(s, carry)->operands[0], ranks, seen);
    }
}

static bool same_home(const stages *s, const stage_home *a, const stage_home *b) {
    return a->kind == b->kind && (a->kind == HOME_ALL || a->kind == HOME_COPIES ||
                                  memcmp(a->ranks, b->ranks, (size_t)s->n_ranks * sizeof(bool)) == 0);
}

/* A sum over ranks is wanted whole, or what some ranks hold, on others. */
static void gather_on(stages *s, dtm_value value, const stage_home *target) {
    if (s->home[value].kind == HOME_ALL || s->home[value].kind == HOME_COPIES || same_home(s, &s->home[value], target)) return;
    stage_home all = {HOME_ALL, NULL};
    if (s->gathered[value] && !same_home(s, &s->target[value], target)) target = &all;
    s->gathered[value] = true;
    s->target[value] = *target;
}

/* Where a value is read: where it has been gathered, if it has. */
static const stage_home *read_home(const stages *s, dtm_value value) {
    return s->gathered[value] ? &s->target[value] : &s->home[value];
}

/* Whether all operands are on every rank by now: so may be what is made of them, and a state that it is the next value of, as whether a
 * step is skipped, which ranks without a weight have to know too. */
static bool read_everywhere(const stages *s, const dtm_op_data *op) {
    for (uint32_t i = 0; i < op->n_operands; i++)
        if (def_of(s, op->operands[i]) && read_home(s, op->operands[i])->kind != HOME_ALL) return false;
    return true;
}

static void find_targets(stages *s) {
    for (dtm_op op = 1; op < s->n_ops; op++) {
        const dtm_op_data *data = get(s, op);
        if (!data->region || data->kind != DTM_OP_GRADIENT || s->around[op]) continue;
        s->target[data->operands[1]] = s->home[data->operands[0]]; /* taken if it turns out to be a sum */
        s->target[dtm_gradient_made(s->module, op)] = s->home[data->operands[0]];
    }
}

/* Whether what an optimizer remembers is a part of a sum in the update, as a momentum and the gradient: that is complete before, on the
 * ranks that have the weight, or the state would be summed, and held where the weight is not. */
static bool adds_to_state(const stages *s, dtm_op op) {
    const dtm_op_data *data = get(s, op);
    if (!dtm_enclosing(s->module, op, DTM_OP_UPDATE)) return false;
    for (uint32_t i = 0; i < data->n_operands; i++)
        if (def_of(s, data->operands[i]) && s->home[data->operands[i]].kind == HOME_ALL) return true;
    return false;
}

static void home_of_op(stages *s, dtm_op op) {
    const dtm_op_data *data = get(s, op);
    stage_home all = {HOME_ALL, NULL}, home = all, copies = {HOME_COPIES, NULL};
    bool sum = false, maximum = false, mixed = false;
    if (s->around[op]) {
        for (uint32_t i = 0; i < data->n_operands; i++) {
            dtm_op def = def_of(s, data->operands[i]);
            bool first = stage_is_carried(s, op) && i == 0 && s->summed[data->results[0]];
            if (def && !s->around[def] && !first && s->home[data->operands[i]].kind != HOME_COPIES)
                gather_on(s, data->operands[i], &all);
        }
        for (uint32_t i = 0; i < data->n_results; i++) s->home[data->results[i]] = copies;
        return;
    }
    if (is_last_of_split(s, op)) {
        stage_home made = {HOME_SUM, no_ranks(s)};
        for (int k = 0; k < s->count; k++) /* of a stage on two ranks, one adds */
            if (stage_copies(s, k)) made.ranks[stage_rank(s, k, 0)] = true;
        dtm_op carry = stage_carry_of(s, data->operands[0]);
        if (!carry || !s->summed[get(s, carry)->results[0]]) { /* one copy's value */
            memset(made.ranks, 0, (size_t)s->n_ranks * sizeof *made.ranks);
            made.ranks[stage_rank(s, stage_of_last(s, op), 0)] = true;
        } else if (def_of(s, get(s, carry)->operands[0])) { /* what the repeat begins with */
            const stage_home *first = &s->home[get(s, carry)->operands[0]];
            if (first->kind != HOME_SUM) made.ranks[stage_owner(first)] = true;
            for (int r = 0; first->kind == HOME_SUM && r < s->n_ranks; r++) made.ranks[r] |= first->ranks[r];
        }
        s->home[data->results[0]] = made;
        return;
    }
    for (uint32_t i = 0; i < data->n_operands; i++) {
        if (!def_of(s, data->operands[i])) continue;
        const stage_home *of = &s->home[data->operands[i]];
        sum |= of->kind == HOME_SUM;
        maximum |= of->kind == HOME_SUM && stage_is_maximum(s, data->operands[i]);
        mixed |= home.kind != HOME_ALL && of->kind != HOME_ALL && !same_home(s, &home, of);
        if (of->kind != HOME_ALL) home = *of;
    }
    if (data->kind == DTM_OP_ADD && (sum || mixed) && !maximum && !adds_to_state(s, op)) {
        stage_home made = {HOME_SUM, no_ranks(s)};
        for (uint32_t i = 0; i < 2; i++) {
            const stage_home *of = &s->home[data->operands[i]];
            if (of->kind == HOME_SUM)
                for (int r = 0; r < s->n_ranks; r++) made.ranks[r] |= of->ranks[r];
            else made.ranks[stage_owner(of)] = true;
        }
        home = made;
    } else if (!(moves_elements(data) && sum)) {
        bool everywhere = data->kind == DTM_OP_REPORT || data->kind == DTM_OP_OUTPUT;
        bool weight = data->kind == DTM_OP_GRADIENT || data->kind == DTM_OP_STORE;
        if (weight)
            home = s->home[data->operands[s->home[data->operands[0]].kind == HOME_ALL]]; /* a state has none of its own */
        else if (everywhere || mixed) home = all;
        else if (sum) {
            /* a gradient is wanted where its weight is */
            home = all;
            for (uint32_t i = 0; i < data->n_operands; i++)
                if (s->home[data->operands[i]].kind == HOME_SUM && s->target[data->operands[i]].kind == HOME_SET)
                    home = s->target[data->operands[i]];
        }
        for (uint32_t i = 0; i < data->n_operands; i++)
            if (def_of(s, data->operands[i])) gather_on(s, data->operands[i], &home);
        for (uint32_t i = 0; i < data->n_operands; i++) /* another reader may have wanted it elsewhere too */
            if (!weight && !everywhere && def_of(s, data->operands[i]) && read_home(s, data->operands[i])->kind == HOME_SET)
                home = *read_home(s, data->operands[i]);
        if (!weight && !everywhere && read_everywhere(s, data) && !dtm_fault(171)) home = all;
    }
    for (uint32_t i = 0; i < data->n_results; i++) s->home[data->results[i]] = home;
}

/* What has homes, and is read by what runs elsewhere, is wanted everywhere. */
static void gather_operands(stages *s, dtm_op op) {
    stage_home all = {HOME_ALL, NULL};
    for (uint32_t i = 0; i < get(s, op)->n_operands; i++) {
        dtm_op def = def_of(s, get(s, op)->operands[i]);
        if (def && s->part[def] == PART_AFTER && !s->around[def]) gather_on(s, get(s, op)->operands[i], &all);
    }
}

static void find_homes(stages *s) {
    find_holders(s);
    find_targets(s);
    for (dtm_op op = 1; op < s->n_ops; op++) {
        const dtm_op_data *data = get(s, op);
        if (!data->region || data->body) continue;
        if (s->part[op] != PART_AFTER) gather_operands(s, op);
        if (data->kind == DTM_OP_ACCUMULATE && stage_in_loop(s, op)) {
            stage_home home = {HOME_COPIES, NULL};
            if (!s->around[op]) {
                home = (stage_home){HOME_SUM, no_ranks(s)};
                bool *seen = dtm_arena_alloc(s->scratch, s->n_values);
                if (s->stage[s->unit[op]] == STAGE_SPREAD) add_terms(s, data->operands[0], home.ranks, seen);
                else stage_holders(s, s->stage[s->unit[op]] >= 0 ? s->stage[s->unit[op]] : 0, home.ranks);
            }
            s->home[data->results[0]] = home;
        } else if (s->part[op] == PART_AFTER) home_of_op(s, op);
    }
}

bool stage_find(stages *s) {
    find_parts(s);
    if (!s->good) return false;
    find_homed(s);
    find_sums(s);
    find_stages(s);
    find_cuts(s);
    if (s->good) find_homes(s);
    return s->good;
}
