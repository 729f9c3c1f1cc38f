/* Types from choices, and relayouts where a reader wants another than its value has.
 *
 * First every operator gets the types of its operands and results: the axes that split one factor stand in the order in
 * which an operand already has them, what comes new is minor, and mesh order settles the rest. Values from nowhere then
 * take the order their readers want. Where a value's type and a reader's differ a relayout is put in, one for all readers
 * that want the same, each made from the value or the copy of it from which it is cheapest. */
#include "passes/relayout.h"
#include "passes/shard.h"

#include <string.h>

typedef struct typing {
    shard *s;
    dtm_type **operands; /* by operator, operand: the type it reads */
    dtm_type *types;     /* by value: what its producer makes; 0: not known yet */
} typing;

static bool in_time(const shard *s, int axis) { return s->time >> axis & 1; }

/* ---- the order of axes ---- */

/* Which axes split the same thing of an operator: its factor, or where layouts are handed on the dimension. -1: none. */
static int group_of(const shard *s, dtm_op op, int axis) {
    shard_choice choice = s->ops[op].choice[axis];
    if (!(s->axes >> axis & 1) || choice == CHOICE_NONE) return -1;
    if (choice >= CHOICE_STATE + STATE_DIM) return choice;
    if (choice >= CHOICE_QUERIES && choice < CHOICE_STATE) return choice - CHOICE_QUERIES;
    return choice >= CHOICE_FACTOR && choice < CHOICE_STATE ? choice - CHOICE_FACTOR : -1;
}

static int common_axes(const dtm_dim_layout *layout, uint16_t axes) {
    int count = 0;
    for (int i = 0; i < layout->count; i++) count += axes >> layout->splits[i].axis & 1;
    return count;
}

/* Of the layouts that operands have where the group stands, the one that shows most of its order. */
static const dtm_dim_layout *hint_for(const typing *t, dtm_op op, int group, uint16_t axes) {
    const shard *s = t->s;
    const dtm_op_data *data = dtm_op_get(s->module, op);
    const dtm_dim_layout *best = NULL;
    for (uint32_t i = 0; i < data->n_operands; i++) {
        /* A gradient is read as its weight lies. */
        dtm_value weight = s->weight_of[data->operands[i]];
        dtm_type type = t->types[weight && s->ops[op].phase == PHASE_UPDATE ? weight : data->operands[i]];
        int dim = group >= CHOICE_STATE ? group - CHOICE_STATE - STATE_DIM : s->ops[op].factors[group].operand_dim[i];
        if (!type || dim < 0) continue;
        const dtm_dim_layout *layout = &dtm_type_get(s->module, type)->layout[dim];
        if (common_axes(layout, axes) > (best ? common_axes(best, axes) : 0)) best = layout;
    }
    return best;
}

static void append(uint8_t *order, int *count, int axis) {
    for (int i = 0; i < *count; i++)
        if (order[i] == axis) return;
    order[(*count)++] = (uint8_t)axis;
}

/* The axes of one group: key heads' axes before those that split query heads alone; then as the hint has them, then as the
 * mesh has them. */
static void order_group(const shard *s, dtm_op op, uint16_t axes, const dtm_dim_layout *hint, uint8_t *order, int *count) {
    int n = s->module->settings.mesh.count;
    for (int queries = 0; queries < 2; queries++) {
        for (int i = 0; hint && i < hint->count; i++) {
            int a = hint->splits[i].axis;
            bool alone = s->ops[op].choice[a] >= CHOICE_QUERIES && s->ops[op].choice[a] < CHOICE_STATE;
            if (axes >> a & 1 && alone == queries) append(order, count, a);
        }
        for (int a = 0; a < n; a++) {
            bool alone = s->ops[op].choice[a] >= CHOICE_QUERIES && s->ops[op].choice[a] < CHOICE_STATE;
            if (axes >> a & 1 && alone == queries) append(order, count, a);
        }
    }
}

/* Axes in time before all others, so that a microbatch is a block of the whole batch and what is gathered over other axes
 * within it is its samples; then group by group. */
static int axes_in_order(const typing *t, dtm_op op, const dtm_dim_layout *hints, uint8_t order[DTM_MAX_AXES]) {
    const shard *s = t->s;
    int n = s->module->settings.mesh.count, count = 0;
    for (int a = 0; a < n; a++)
        if (in_time(s, a)) append(order, &count, a);
    for (int a = 0; a < n; a++) {
        int group = group_of(s, op, a);
        uint16_t axes = 0;
        for (int b = 0; b < n && group >= 0; b++)
            if (group_of(s, op, b) == group) axes |= (uint16_t)(1 << b);
        if (!axes) continue;
        const dtm_dim_layout *hint = hints ? &hints[group - CHOICE_STATE - STATE_DIM] : hint_for(t, op, group, axes);
        order_group(s, op, axes, hint, order, &count);
    }
    for (int a = 0; a < n; a++) append(order, &count, a);
    return count;
}

/* ---- `keep`: the order of axes that one dimension is kept with ---- */

/* The rule for an operator, or for what alone reads its result: `keep` pins the operator that makes the value too, unless
 * query heads follow key heads there, which gives their axes an order. */
static const dtm_keep_rule *keep_for(const shard *s, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    const dtm_keep_rule *keep = s->ops[op].keep;
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        if (s->ops[op].choice[a] >= CHOICE_QUERIES && s->ops[op].choice[a] < CHOICE_STATE) return keep;
    for (uint32_t r = 0; !keep && r < data->n_results; r++)
        if (s->n_readers[data->results[r]] == 1) keep = s->ops[s->readers[data->results[r]][0]].keep;
    return keep;
}

/* Where axes that the rule names for one dimension stand among the others they stand in its order. */
static void keep_order(const dtm_keep_rule *keep, uint8_t *order, int n) {
    for (int d = 0; d < keep->count; d++) {
        const uint8_t *named = keep->dims[d].axes;
        for (int i = 0, next = 0; i < n; i++)
            for (int k = 0; k < keep->dims[d].n_axes; k++)
                if (order[i] == named[k]) {
                    order[i] = named[next++];
                    break;
                }
    }
}

/* ---- types ---- */

static dtm_type type_with(const shard *s, dtm_type whole, const shard_state *states, const uint8_t *order, int n) {
    dtm_type_data type = *dtm_type_get(s->module, dtm_type_whole(s->module, whole));
    for (int i = 0; i < n; i++) {
        int a = order[i];
        if (!(s->axes >> a & 1)) continue;
        if (states[a] == STATE_SUM) type.sum |= (uint16_t)(1 << a);
        if (states[a] == STATE_MAX) type.max |= (uint16_t)(1 << a);
        if (states[a] < STATE_DIM) continue;
        dtm_dim_layout *layout = &type.layout[states[a] - STATE_DIM];
        layout->splits[layout->count++] = (dtm_split){(uint8_t)a, s->units[a][type.dims[states[a] - STATE_DIM]]};
    }
    return dtm_type_intern(s->module, &type);
}

static void type_operands(typing *t, dtm_op op, const uint8_t *order, int n) {
    const shard *s = t->s;
    const dtm_op_data *data = dtm_op_get(s->module, op);
    for (uint32_t i = 0; i < data->n_operands; i++) {
        shard_state states[DTM_MAX_AXES];
        for (int a = 0; a < s->module->settings.mesh.count; a++)
            states[a] = shard_operand_state(s, op, s->ops[op].choice[a], i);
        t->operands[op][i] = type_with(s, s->module->values[data->operands[i]].type, states, order, n);
    }
}

static void type_results(typing *t, dtm_op op, const uint8_t *order, int n) {
    const shard *s = t->s;
    const dtm_op_data *data = dtm_op_get(s->module, op);
    for (uint32_t r = 0; r < data->n_results; r++) {
        shard_state states[DTM_MAX_AXES];
        for (int a = 0; a < s->module->settings.mesh.count; a++)
            states[a] = shard_result_state(s, op, s->ops[op].choice[a], r);
        t->types[data->results[r]] = type_with(s, s->module->values[data->results[r]].type, states, order, n);
    }
}

static void type_op(typing *t, dtm_op op) {
    shard *s = t->s;
    const dtm_op_data *data = dtm_op_get(s->module, op);
    uint8_t order[DTM_MAX_AXES];
    t->operands[op] = dtm_arena_alloc(s->arena, (data->n_operands + 1u) * sizeof **t->operands);
    if (data->kind == DTM_OP_GRADIENT || data->kind == DTM_OP_STORE) {
        for (int i = 0; i < 2; i++) t->operands[op][i] = t->types[data->operands[0]];
        return;
    }
    int n = axes_in_order(t, op, NULL, order);
    const dtm_keep_rule *keep = keep_for(s, op);
    if (keep) keep_order(keep, order, n);
    type_operands(t, op, order, n);
    type_results(t, op, order, n);
}

/* What splits a dimension of both, from the major axis on. */
static dtm_dim_layout common_splits(const dtm_dim_layout *a, const dtm_dim_layout *b) {
    dtm_dim_layout common;
    memset(&common, 0, sizeof common);
    while (common.count < a->count && common.count < b->count &&
           memcmp(&a->splits[common.count], &b->splits[common.count], sizeof *a->splits) == 0) {
        common.splits[common.count] = a->splits[common.count];
        common.count++;
    }
    return common;
}

/* Data are read, not sent: what is neither weight nor state comes as the part from which every reader's can be cut. */
static void narrow_source(typing *t, dtm_op op) {
    shard *s = t->s;
    const dtm_op_data *data = dtm_op_get(s->module, op);
    dtm_value value = data->results[0];
    if (data->kind == DTM_OP_WEIGHT || data->kind == DTM_OP_STATE) return;
    dtm_type_data type = *dtm_type_get(s->module, t->types[value]);
    for (uint32_t i = 0; i < s->n_readers[value]; i++) {
        dtm_op reader = s->readers[value][i];
        for (uint32_t k = 0; t->operands[reader] && k < s->module->ops[reader].n_operands; k++) {
            if (s->module->ops[reader].operands[k] != value) continue;
            const dtm_type_data *wanted = dtm_type_get(s->module, t->operands[reader][k]);
            for (int d = 0; d < type.rank; d++) type.layout[d] = common_splits(&type.layout[d], &wanted->layout[d]);
        }
    }
    t->types[value] = dtm_type_intern(s->module, &type);
}

/* For each dimension the longest list of axes that a reader wants it split by; of a state, what splits its weight. */
static void type_source(typing *t, dtm_op op) {
    shard *s = t->s;
    dtm_dim_layout hints[DTM_MAX_RANK];
    memset(hints, 0, sizeof hints);
    const dtm_op_data *data = dtm_op_get(s->module, op);
    dtm_op weight = data->kind == DTM_OP_STATE ? s->weight_of_state[op] : 0;
    if (weight) memcpy(hints, dtm_type_get(s->module, t->types[s->module->ops[weight].results[0]])->layout, sizeof hints);
    for (uint32_t i = 0; data->n_results && i < s->n_readers[data->results[0]]; i++) {
        dtm_op reader = s->readers[data->results[0]][i];
        for (uint32_t k = 0; t->operands[reader] && k < s->module->ops[reader].n_operands; k++) {
            if (s->module->ops[reader].operands[k] != data->results[0]) continue;
            const dtm_type_data *type = dtm_type_get(s->module, t->operands[reader][k]);
            for (int d = 0; d < type->rank; d++)
                if (type->layout[d].count > hints[d].count) hints[d] = type->layout[d];
        }
    }
    uint8_t order[DTM_MAX_AXES];
    t->operands[op] = dtm_arena_alloc(s->arena, (data->n_operands + 1u) * sizeof **t->operands);
    int n = axes_in_order(t, op, hints, order);
    for (uint32_t i = 0; i < data->n_operands; i++) t->operands[op][i] = s->module->values[data->operands[i]].type;
    type_results(t, op, order, n);
    if (data->n_results) narrow_source(t, op);
}

static void type_all(typing *t) {
    shard *s = t->s;
    for (int updates = 0; updates < 2; updates++) {
        for (size_t i = 0; i < s->n_order; i++) {
            dtm_op op = s->order[i];
            bool update = s->ops[op].phase == PHASE_UPDATE || s->module->ops[op].kind == DTM_OP_GRADIENT ||
                          s->module->ops[op].kind == DTM_OP_STORE;
            if (update != updates || (!updates && shard_is_source(s->module->ops[op].kind))) continue;
            if (shard_is_source(s->module->ops[op].kind)) type_source(t, op);
            else type_op(t, op);
        }
        for (size_t i = 0; !updates && i < s->n_order; i++) {
            dtm_op op = s->order[i];
            if (s->ops[op].phase != PHASE_UPDATE && shard_is_source(s->module->ops[op].kind)) type_source(t, op);
        }
    }
}

/* ---- copies of one value ---- */

enum { MAX_COPIES = 12 };

typedef struct copy {
    dtm_type type;
    dtm_op reader;   /* the first that wants it, for the reason */
    bool again;      /* for the backward pass, of what it gathers for itself */
    dtm_op before;   /* the operator it is put in front of; 0: right after the producer */
    uint32_t place;  /* of that; 0: right after the producer */
    int parent;      /* the copy it is made from; -1: the value */
    dtm_value value; /* once made */
} copy;

typedef struct copies {
    typing *t;
    dtm_value of;
    const char *name; /* of the value, before it is renamed */
    int count;
    copy list[MAX_COPIES];
    double times[MAX_COPIES + 1][MAX_COPIES]; /* [0] from the value, [1 + i] from copy i */
} copies;

static int repeats_around(const shard *s, dtm_op op) {
    int count = 0;
    for (dtm_op at = dtm_enclosing(s->module, op, DTM_OP_REPEAT); at; at = dtm_enclosing(s->module, at, DTM_OP_REPEAT))
        count++;
    return count;
}

/* The operator before which a copy for this reader may stand: the reader, or the repeat around it that the value's
 * producer stands outside of. */
static dtm_op stand_before(const shard *s, dtm_op producer, dtm_op reader) {
    int outer = repeats_around(s, producer);
    for (int inner = repeats_around(s, reader); inner > outer; inner--) reader = dtm_enclosing(s->module, reader, DTM_OP_REPEAT);
    return reader;
}

/* The place of an operator, or of the first within a repeat. */
static uint32_t place_of(const shard *s, dtm_op op) {
    while (s->module->ops[op].body) {
        const dtm_region_data *body = &s->module->regions[s->module->ops[op].body];
        if (!body->n_ops) break;
        op = body->ops[0];
    }
    return op < s->n_ops ? s->ops[op].place : 0;
}

static bool is_again(const shard *s, dtm_value value, dtm_op reader) {
    return s->ops[reader].phase == PHASE_BACKWARD && shard_gathers_again(s, value);
}

static void add_reader(copies *c, dtm_op reader, uint32_t operand, dtm_type type) {
    const shard *s = c->t->s;
    dtm_op_kind kind = s->module->ops[reader].kind;
    dtm_op producer = s->module->values[c->of].def;
    /* What a repeat hands on is converted in it. */
    bool handed_on = kind == DTM_OP_LAST || (kind == DTM_OP_CARRY && operand == 1);
    dtm_op before = handed_on ? 0 : stand_before(s, producer, kind == DTM_OP_CARRY ? dtm_enclosing(s->module, reader, DTM_OP_REPEAT) : reader);
    uint32_t place = handed_on ? 0 : place_of(s, before);
    bool again = is_again(s, c->of, reader);
    int i = 0;
    while (i < c->count && (c->list[i].type != type || c->list[i].again != again)) i++;
    if (i == c->count) {
        if (c->count == MAX_COPIES) dtm_broken("shard", "a value is wanted in more than %d layouts", MAX_COPIES);
        c->list[c->count++] = (copy){type, reader, again, before, place, -1, 0};
    } else if (place < c->list[i].place) {
        c->list[i].before = before;
        c->list[i].place = place;
    }
}

/* What makes a value smaller is done as soon as it is there, in the phase where it is first wanted. */
static void settle_place(copies *c, copy *made) {
    const shard *s = c->t->s;
    dtm_op producer = s->module->values[c->of].def;
    if (!made->place) return;
    bool same_phase = s->ops[s->order[made->place - 1]].phase == s->ops[producer].phase;
    bool smaller = dtm_local_bytes_max(s->module, made->type) <= dtm_local_bytes_max(s->module, c->t->types[c->of]);
    if (same_phase && smaller && s->module->ops[producer].kind != DTM_OP_WEIGHT) made->place = 0, made->before = 0;
}

/* The order in which to make the copies and what from, of least time: all orders are tried while they are few. */
typedef struct plan {
    double time;
    int order[MAX_COPIES], parents[MAX_COPIES];
} plan;

static void try_orders(const copies *c, plan *now, int depth, uint32_t made, plan *best) {
    if (now->time >= best->time) return;
    if (depth == c->count) {
        *best = *now;
        return;
    }
    for (int i = 0; i < c->count; i++) {
        if (made >> i & 1) continue;
        int parent = -1;
        for (int k = 0; k < c->count; k++)
            if (made >> k & 1 && c->times[1 + k][i] < c->times[1 + parent][i]) parent = k;
        double before = now->time;
        now->time += c->times[1 + parent][i];
        now->order[depth] = i;
        now->parents[i] = parent;
        try_orders(c, now, depth + 1, made | 1u << i, best);
        now->time = before;
        if (c->count > 6) return; /* many: in the order in which they are wanted */
    }
}

/* What is complete only after the last microbatch is no source for what they read. */
static bool is_too_late(const copies *c, dtm_type from, dtm_type to) {
    const shard *s = c->t->s;
    const dtm_type_data *value = dtm_type_get(s->module, c->t->types[c->of]);
    const dtm_type_data *x = dtm_type_get(s->module, from), *y = dtm_type_get(s->module, to);
    uint16_t completed = (uint16_t)((value->sum | value->max) & ~(x->sum | x->max) & s->time);
    return completed & (y->sum | y->max | dtm_type_split_axes(y));
}

static plan plan_copies(copies *c) {
    dtm_module *m = c->t->s->module;
    for (int i = -1; i < c->count; i++)
        for (int k = 0; k < c->count; k++) {
            dtm_type from = i < 0 ? c->t->types[c->of] : c->list[i].type;
            bool possible = i != k && !(dtm_type_get(m, c->list[k].type)->max & ~dtm_type_get(m, from)->max) &&
                            !(i >= 0 && (is_too_late(c, from, c->list[k].type) || c->list[i].again != c->list[k].again));
            c->times[1 + i][k] = possible ? dtm_relayout_find(m, from, c->list[k].type).time : 1e30;
        }
    plan now = {.time = 0}, best = {.time = 1e300};
    try_orders(c, &now, 0, 0, &best);
    for (int i = c->count; i-- > 0;) { /* a copy stands no later than what is made from it */
        copy *made = &c->list[best.order[i]];
        made->parent = best.parents[best.order[i]];
        if (made->parent >= 0 && made->place < c->list[made->parent].place) {
            c->list[made->parent].place = made->place;
            c->list[made->parent].before = made->before;
        }
    }
    return best;
}

static const char *suffix_of(dtm_module *m, dtm_type from, dtm_type to) {
    dtm_relayout_path path = dtm_relayout_find(m, from, to);
    dtm_op_kind strongest = DTM_OP_SHARD;
    for (size_t i = 0; i < path.count; i++)
        if (dtm_is_collective(path.steps[i].kind)) strongest = path.steps[i].kind;
        else if (path.steps[i].kind == DTM_OP_AS_TERM && strongest == DTM_OP_SHARD) strongest = DTM_OP_AS_TERM;
    switch (strongest) {
    case DTM_OP_ALL_GATHER: return "gathered";
    case DTM_OP_REDUCE_SCATTER: return "scattered";
    case DTM_OP_ALL_REDUCE: return "reduced";
    case DTM_OP_ALL_TO_ALL: return "exchanged";
    case DTM_OP_PERMUTE: return "moved";
    case DTM_OP_AS_TERM: return "term";
    default: return "block";
    }
}

static bool is_pending(const dtm_module *m, dtm_type type) {
    return (dtm_type_get(m, type)->sum | dtm_type_get(m, type)->max) != 0;
}

/* Makes one copy; `after` is the last of those that stand right after the producer. The first reduced form of a term
 * takes its name, and the term is `NAME.term`. */
static void make_copy(copies *c, copy *made, dtm_op *after, bool *named) {
    shard *s = c->t->s;
    dtm_module *m = s->module;
    dtm_value from = made->parent < 0 ? c->of : c->list[made->parent].value;
    dtm_type from_type = made->parent < 0 ? c->t->types[c->of] : c->list[made->parent].type;
    dtm_op producer = m->values[c->of].def;
    dtm_builder b = made->place ? dtm_builder_before(m, made->before) : dtm_builder_after(m, *after);
    b.span = m->ops[producer].span;
    b.place = m->ops[producer].place;
    b.why = dtm_string_of(m->context, shard_reason(s, c->of, dtm_type_get(m, from_type), dtm_type_get(m, made->type), made->reader));
    bool takes_name = !*named && !s->ops[producer].keep && is_pending(m, c->t->types[c->of]) && !is_pending(m, made->type);
    const char *suffix = takes_name ? "term" : suffix_of(m, from_type, made->type);
    dtm_string name = dtm_name_unique(m, dtm_arena_printf(s->arena, "%s.%s", c->name, suffix));
    dtm_op op = dtm_build_op(&b, DTM_OP_RELAYOUT, &from, 1, NULL, &made->type, 1, "relayout");
    made->value = dtm_result(m, op, 0);
    if (takes_name) {
        m->values[made->value].name = m->values[c->of].name;
        m->values[c->of].name = name;
        *named = true;
    } else m->values[made->value].name = name;
    if (!made->place) *after = op;
}

static void redirect(const copies *c) {
    const shard *s = c->t->s;
    for (uint32_t i = 0; i < s->n_readers[c->of]; i++) {
        dtm_op reader = s->readers[c->of][i];
        for (uint32_t k = 0; k < s->module->ops[reader].n_operands; k++)
            for (int j = 0; j < c->count; j++)
                if (s->module->ops[reader].operands[k] == c->of && c->t->operands[reader][k] == c->list[j].type &&
                    is_again(s, c->of, reader) == c->list[j].again)
                    s->module->ops[reader].operands[k] = c->list[j].value;
    }
}

static void convert(typing *t, dtm_value value) {
    shard *s = t->s;
    copies c = {.t = t, .of = value, .name = dtm_value_name(s->module, value)};
    const shard_op *def = &s->ops[s->module->values[value].def];
    if (def->keep) c.name = dtm_value_name(s->module, s->module->ops[s->module->values[value].def].operands[0]);
    for (uint32_t i = 0; i < s->n_readers[value]; i++) {
        dtm_op reader = s->readers[value][i];
        for (uint32_t k = 0; k < s->module->ops[reader].n_operands; k++)
            if (s->module->ops[reader].operands[k] == value && t->operands[reader][k] != t->types[value])
                add_reader(&c, reader, k, t->operands[reader][k]);
    }
    if (!c.count) return;
    for (int i = 0; i < c.count; i++) settle_place(&c, &c.list[i]);
    plan order = plan_copies(&c);
    dtm_op after = s->module->values[value].def;
    bool named = false;
    for (int i = 0; i < c.count; i++) make_copy(&c, &c.list[order.order[i]], &after, &named);
    redirect(&c);
}

void shard_layouts(shard *s) {
    dtm_module *m = s->module;
    typing t = {s, NULL, NULL};
    t.operands = dtm_arena_alloc(s->arena, m->n_ops * sizeof *t.operands);
    t.types = dtm_arena_alloc(s->arena, m->n_values * sizeof *t.types);
    type_all(&t);
    shard_explain_terms(s, t.types);
    for (size_t i = 0; i < s->n_order; i++)
        for (uint32_t r = 0; r < m->ops[s->order[i]].n_results; r++)
            m->values[m->ops[s->order[i]].results[r]].type = t.types[m->ops[s->order[i]].results[r]];
    for (size_t i = 0; i < s->n_order; i++)
        for (uint32_t r = 0; r < m->ops[s->order[i]].n_results; r++) convert(&t, m->ops[s->order[i]].results[r]);
    /* What stood for `keep` has done its work: its operand is now as it is kept. */
    for (size_t i = 0; i < s->n_keeps; i++) {
        dtm_replace_uses(m, m->ops[s->keeps[i].op].results[0], m->ops[s->keeps[i].op].operands[0]);
        dtm_op_remove(m, s->keeps[i].op);
    }
}
