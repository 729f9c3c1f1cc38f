/* The choice of least modelled time, one axis at a time: what is chosen on the other axes says how large a block is.
 *
 * A variable is an operator's choice. A value read once ties its producer to its reader by the time of converting what the
 * one makes into what the other needs. A value read more often has a variable of its own, the set of states in which copies
 * of it are held: the producer pays for making the set (each copy from the cheapest that is there), a reader needs its
 * state in it. So a copy is paid for once however many read it, and no table ties more than two variables. */
#include "passes/passes.h"
#include "passes/shard.h"

#include <math.h>
#include <string.h>

/* A tie is settled by the order of the domain, as is what costs less than this. */
static const double PREFERENCE = 1e-11;
/* What is never worth it, but possible. */
static const double AVOID = 1.0;

typedef struct chooser {
    shard *s;
    int axis;
    double size;      /* ranks along the axis */
    double microbatches;
    bool in_time;
    shard_search *search;
    uint32_t *variable; /* by operator: its variable + 1; 0: it has no choice left */
} chooser;

/* Something whose choice decides a state: an operator, or for a weight's gradient the weight. */
typedef struct end {
    dtm_op op;
    int32_t operand; /* >= 0: what this operand must be; -1 - r: what result r is */
} end;

enum { FIXED_ALIKE = 0 }; /* op 0: always alike */

static const shard_domain *domain_of(const chooser *c, end e) { return &c->s->ops[e.op].domain[c->axis]; }

static uint32_t count_of(const chooser *c, end e) { return e.op == FIXED_ALIKE ? 1 : domain_of(c, e)->count; }

static shard_state state_of(const chooser *c, end e, uint32_t choice) {
    if (e.op == FIXED_ALIKE) return STATE_ALIKE;
    shard_choice chosen = domain_of(c, e)->choices[choice];
    return e.operand >= 0 ? shard_operand_state(c->s, e.op, chosen, (uint32_t)e.operand)
                          : shard_result_state(c->s, e.op, chosen, (uint32_t)(-1 - e.operand));
}

/* ---- adding costs, whether the ends have a choice or not ---- */

static void add_pair(chooser *c, uint32_t va, uint32_t na, uint32_t vb, uint32_t nb, const double *costs) {
    if (va && vb) shard_search_cost2(c->search, va - 1, vb - 1, costs);
    else if (va) {
        double *one = dtm_arena_alloc(c->s->arena, na * sizeof *one);
        for (uint32_t i = 0; i < na; i++) one[i] = costs[i * nb];
        shard_search_cost(c->search, va - 1, one);
    } else if (vb) shard_search_cost(c->search, vb - 1, costs);
}

/* ---- conversions on one axis ---- */

typedef struct conversion {
    double bytes; /* of the value held alike on the axis */
    double times; /* executions a step */
    bool late;    /* read only after the last microbatch */
    bool inputs_only, on_the_way; /* depends on inputs alone; leads to gradients alone, and is not yet one */
} conversion;

static double collective_time(const chooser *c, dtm_collective_kind kind, double bytes) {
    double time;
    dtm_algorithm_choose(c->s->module, kind, (uint16_t)(1 << c->axis), (int64_t)bytes, &time);
    return time;
}

static double conversion_in_time(const conversion *v, shard_state from, shard_state to) {
    if (from == STATE_ALIKE) return 0;
    if (from == STATE_SUM && to == STATE_ALIKE && v->late) return 0;
    return v->inputs_only ? AVOID : 100 * AVOID;
}

static double conversion_time(const chooser *c, const conversion *v, shard_state from, shard_state to) {
    if (from == to) return 0;
    if (to == STATE_MAX) return INFINITY;
    if (c->in_time) return conversion_in_time(v, from, to);
    double copy = v->bytes / dtm_machine_of(c->s->module).memory_bandwidth * 0.01, sent = 0;
    double avoid = from == STATE_SUM && v->on_the_way ? AVOID : 0;
    if (from == STATE_ALIKE) return v->times * copy;
    if (from == STATE_SUM && to >= STATE_DIM) sent = collective_time(c, DTM_COLLECTIVE_REDUCE_SCATTER, v->bytes);
    else if (from == STATE_SUM || from == STATE_MAX) sent = collective_time(c, DTM_COLLECTIVE_ALL_REDUCE, v->bytes);
    else if (to >= STATE_DIM) sent = collective_time(c, DTM_COLLECTIVE_ALL_TO_ALL, v->bytes);
    else sent = collective_time(c, DTM_COLLECTIVE_ALL_GATHER, v->bytes);
    return v->times * (sent + copy) + avoid;
}

/* ---- values ---- */

enum { MAX_SET = 8 };

typedef struct states {
    uint32_t count;
    shard_state list[STATES];
} states;

static int index_of(const states *set, shard_state state) {
    for (uint32_t i = 0; i < set->count; i++)
        if (set->list[i] == state) return (int)i;
    return -1;
}

static void gather_states(const chooser *c, end e, states *set) {
    for (uint32_t i = 0; i < count_of(c, e); i++) {
        shard_state state = state_of(c, e, i);
        if (index_of(set, state) < 0) set->list[set->count++] = state;
    }
}

static uint32_t variable_of(const chooser *c, end e) { return e.op == FIXED_ALIKE ? 0 : c->variable[e.op]; }

static void tie_one(chooser *c, end producer, end reader, const conversion *v) {
    uint32_t n = count_of(c, producer), m = count_of(c, reader);
    double *costs = dtm_arena_alloc(c->s->arena, (size_t)n * m * sizeof *costs);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < m; j++)
            costs[i * m + j] = conversion_time(c, v, state_of(c, producer, i), state_of(c, reader, j));
    add_pair(c, variable_of(c, producer), n, variable_of(c, reader), m, costs);
}

/* The least time of making every set of states, a copy at a time, from one of them. */
static void time_of_sets(const chooser *c, const states *set, const conversion *v, uint32_t from, double *least) {
    double step[STATES][STATES];
    for (uint32_t i = 0; i < set->count; i++)
        for (uint32_t j = 0; j < set->count; j++) step[i][j] = conversion_time(c, v, set->list[i], set->list[j]);
    uint32_t n = 1u << set->count;
    for (uint32_t mask = 0; mask < n; mask++) least[mask] = INFINITY;
    least[1u << from] = 0;
    for (uint32_t mask = 1; mask < n; mask++)
        for (uint32_t j = 0; j < set->count && least[mask] < INFINITY; j++) {
            if (mask >> j & 1) continue;
            double cheapest = INFINITY;
            for (uint32_t i = 0; i < set->count; i++)
                if (mask >> i & 1 && step[i][j] < cheapest) cheapest = step[i][j];
            if (least[mask] + cheapest < least[mask | 1u << j]) least[mask | 1u << j] = least[mask] + cheapest;
        }
}

static void tie_many(chooser *c, end producer, const end *readers, size_t n_readers, const conversion *v) {
    states set = {0};
    gather_states(c, producer, &set);
    for (size_t i = 0; i < n_readers; i++) gather_states(c, readers[i], &set);
    if (set.count == 1) return;
    uint32_t n = count_of(c, producer), must = 0, n_sets = 0, *sets = dtm_arena_alloc(c->s->arena, sizeof *sets << set.count);
    bool open = variable_of(c, producer) != 0;
    for (size_t i = 0; i < n_readers; i++) {
        if (variable_of(c, readers[i])) open = true;
        else must |= 1u << index_of(&set, state_of(c, readers[i], 0));
    }
    if (!open) return;
    for (uint32_t mask = 1; mask < 1u << set.count; mask++)
        if ((mask & must) == must) sets[n_sets++] = mask;
    uint32_t held = shard_search_variable(c->search, n_sets) + 1;
    double *least = dtm_arena_alloc(c->s->arena, sizeof *least << set.count);
    double *costs = dtm_arena_alloc(c->s->arena, (size_t)n * n_sets * sizeof *costs);
    for (uint32_t i = 0; i < n; i++) {
        time_of_sets(c, &set, v, (uint32_t)index_of(&set, state_of(c, producer, i)), least);
        for (uint32_t k = 0; k < n_sets; k++) costs[i * n_sets + k] = least[sets[k]] + PREFERENCE * 1e-3 * k;
    }
    add_pair(c, variable_of(c, producer), n, held, n_sets, costs);
    for (size_t r = 0; r < n_readers; r++) {
        if (!variable_of(c, readers[r])) continue;
        uint32_t m = count_of(c, readers[r]);
        double *needs = dtm_arena_alloc(c->s->arena, (size_t)n_sets * m * sizeof *needs);
        for (uint32_t k = 0; k < n_sets; k++)
            for (uint32_t j = 0; j < m; j++)
                needs[k * m + j] = sets[k] >> index_of(&set, state_of(c, readers[r], j)) & 1 ? 0 : INFINITY;
        add_pair(c, held, n_sets, variable_of(c, readers[r]), m, needs);
    }
}

/* What an operator's reading a value amounts to; false: nothing (the update follows the weight). */
static bool reader_end(const chooser *c, dtm_value value, dtm_op op, uint32_t operand, end *e) {
    const shard *s = c->s;
    dtm_op_kind kind = s->module->ops[op].kind;
    *e = (end){op, (int32_t)operand};
    if (kind == DTM_OP_GRADIENT) {
        if (operand == 0) return false;
        *e = (end){s->module->values[s->module->ops[op].operands[0]].def, -1};
        return true;
    }
    if (s->ops[op].phase != PHASE_UPDATE) return kind != DTM_OP_STORE;
    dtm_op_kind source = s->module->ops[s->module->values[value].def].kind;
    if (s->weight_of[value] || source == DTM_OP_WEIGHT) return false;
    *e = (end){FIXED_ALIKE, 0};
    return true;
}

/* Law 6: a reduction that its list would split is computed alike only where its operand is alike as it is made. */
static void tie_reduction(chooser *c, end producer, end reader) {
    if (reader.op == FIXED_ALIKE || !shard_is_reduction(c->s->module->ops[reader.op].kind)) return;
    if (c->s->rules[c->axis] && c->s->rules[c->axis]->by_cost) return;
    uint32_t n = count_of(c, producer), m = count_of(c, reader);
    double *costs = dtm_arena_alloc(c->s->arena, (size_t)n * m * sizeof *costs);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < m; j++)
            if (m > 1 && state_of(c, producer, i) != STATE_ALIKE && state_of(c, reader, j) == STATE_ALIKE)
                costs[i * m + j] = AVOID;
    add_pair(c, variable_of(c, producer), n, variable_of(c, reader), m, costs);
}

static void tie_value(chooser *c, dtm_op op, uint32_t result) {
    const shard *s = c->s;
    dtm_value value = s->module->ops[op].results[result];
    size_t n = 0, capacity = 0;
    end *readers = NULL, e;
    conversion v = {shard_local_bytes(s, value, c->axis), s->ops[op].copies, true, s->input_only[value],
                    s->gradient_only[value] && !s->weight_of[value]};
    for (uint32_t i = 0; i < s->n_readers[value]; i++) {
        dtm_op reader = s->readers[value][i];
        const dtm_op_data *data = dtm_op_get(s->module, reader);
        for (uint32_t k = 0; k < data->n_operands; k++) {
            if (data->operands[k] != value || !reader_end(c, value, reader, k, &e)) continue;
            DTM_PUSH(s->arena, readers, n, capacity, e);
            v.late &= data->kind == DTM_OP_REPORT || data->kind == DTM_OP_GRADIENT || s->ops[reader].phase == PHASE_UPDATE;
        }
    }
    if (!v.late) v.times *= c->microbatches;
    for (size_t i = 0; i < n; i++) tie_reduction(c, (end){op, -1 - (int32_t)result}, readers[i]);
    if (n == 1) tie_one(c, (end){op, -1 - (int32_t)result}, readers[0], &v);
    else if (n > 1) tie_many(c, (end){op, -1 - (int32_t)result}, readers, n, &v);
}

/* ---- operators ---- */

/* The time of an operator by its choice: a split one takes its share of it. */
static double compute_time(const chooser *c, dtm_op op, shard_choice choice, double whole) {
    const shard *s = c->s;
    dtm_op_kind kind = s->module->ops[op].kind;
    if (choice >= CHOICE_FACTOR && choice < CHOICE_STATE) return whole / c->size;
    if (choice < CHOICE_STATE) return whole;
    double bytes = shard_local_bytes(s, s->module->ops[op].n_results ? s->module->ops[op].results[0] : s->module->ops[op].operands[0], c->axis);
    bool split = choice - CHOICE_STATE >= STATE_DIM;
    double passes = kind == DTM_OP_WEIGHT ? 8 : 0.01; /* the update reads and writes weight, moments and gradient */
    return bytes * passes / dtm_machine_of(s->module).memory_bandwidth / (split ? c->size : 1);
}

static double whole_time(const chooser *c, dtm_op op) {
    const shard *s = c->s;
    double time = dtm_op_time(s->module, op) * s->ops[op].copies;
    for (int a = 0; a < s->module->settings.mesh.count; a++) {
        if (a == c->axis || !(s->axes >> a & 1)) continue;
        shard_choice choice = s->ops[op].choice[a];
        if (choice >= CHOICE_FACTOR && choice < CHOICE_STATE) time /= (double)s->module->settings.mesh.axes[a].size;
    }
    return time;
}

static void add_operator(chooser *c, dtm_op op) {
    const shard_domain *d = &c->s->ops[op].domain[c->axis];
    if (d->count < 2) return;
    c->variable[op] = shard_search_variable(c->search, d->count) + 1;
    double costs[MAX_CHOICES], whole = whole_time(c, op);
    for (int i = 0; i < d->count; i++) costs[i] = compute_time(c, op, d->choices[i], whole) + PREFERENCE * i;
    shard_search_cost(c->search, c->variable[op] - 1, costs);
}

static bool has_choice(const shard *s, dtm_op op, int axis) { return s->ops[op].domain[axis].count > 0; }

/* A weight is never at rest in a state that nothing asks for. */
static void narrow_weight(shard *s, dtm_op op, int axis) {
    shard_domain *d = &s->ops[op].domain[axis], kept = {0};
    dtm_value value = s->module->ops[op].results[0];
    for (int i = 0; i < d->count; i++) {
        shard_state state = d->choices[i] - CHOICE_STATE;
        bool wanted = state == STATE_ALIKE;
        for (uint32_t r = 0; r < s->n_readers[value] && !wanted; r++) {
            dtm_op reader = s->readers[value][r];
            if (s->ops[reader].phase == PHASE_UPDATE) continue;
            for (uint32_t k = 0; k < s->module->ops[reader].n_operands; k++)
                for (int j = 0; j < s->ops[reader].domain[axis].count; j++)
                    wanted |= s->module->ops[reader].operands[k] == value &&
                              shard_operand_state(s, reader, s->ops[reader].domain[axis].choices[j], k) == state;
        }
        if (wanted) kept.choices[kept.count++] = d->choices[i];
    }
    *d = kept;
}

static void choose_axis(shard *s, int axis) {
    const dtm_axis_data *data = &s->module->settings.mesh.axes[axis];
    chooser c = {s, axis, (double)data->size, 1, data->time, shard_search_create(s->arena), NULL};
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        if (s->time >> a & 1) c.microbatches *= (double)s->module->settings.mesh.axes[a].size;
    c.variable = dtm_arena_alloc(s->arena, s->n_ops * sizeof *c.variable);
    for (size_t i = 0; i < s->n_order; i++)
        if (has_choice(s, s->order[i], axis)) add_operator(&c, s->order[i]);
    for (size_t i = 0; i < s->n_order; i++)
        for (uint32_t r = 0; has_choice(s, s->order[i], axis) && r < s->module->ops[s->order[i]].n_results; r++)
            tie_value(&c, s->order[i], r);
    uint32_t *assignment = dtm_arena_alloc(s->arena, (s->n_ops + s->module->n_values + 1) * sizeof *assignment);
    bool exact;
    shard_search_solve(c.search, assignment, &exact);
    for (size_t i = 0; i < s->n_order; i++) {
        shard_op *o = &s->ops[s->order[i]];
        if (o->domain[axis].count)
            o->choice[axis] = o->domain[axis].choices[c.variable[s->order[i]] ? assignment[c.variable[s->order[i]] - 1] : 0];
    }
}

/* ---- microbatches ---- */

/* A sum over the microbatches, wanted before they have all been seen. */
static void check_time(shard *s, dtm_op op, int axis) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    if (s->ops[op].phase == PHASE_UPDATE || data->kind == DTM_OP_REPORT || data->kind == DTM_OP_GRADIENT) return;
    for (uint32_t k = 0; k < data->n_operands; k++) {
        dtm_value v = data->operands[k];
        shard_state is = shard_value_state(s, v, axis), needs = shard_operand_state(s, op, s->ops[op].choice[axis], k);
        if (s->input_only[v] || is == needs || is == STATE_ALIKE) continue;
        dtm_op def = s->module->values[v].def;
        dtm_error(s->module->context, data->span, 401,
                  "`%s` needs the whole batch's `%s`, which depends on weights and is known only after the last of %lld "
                  "microbatches",
                  dtm_op_rows[data->kind].name, dtm_value_name(s->module, v),
                  (long long)s->module->settings.mesh.axes[axis].size);
        dtm_note(s->module->context, s->module->ops[def].span, "`%s` is summed here over the batch",
                 dtm_value_name(s->module, v));
        dtm_help(s->module->context, "without `microbatches` this program is fine; or keep what follows the sum linear in it");
        s->failed = true;
        return;
    }
}

bool shard_choose(shard *s) {
    int count = s->module->settings.mesh.count;
    for (size_t i = 0; i < s->n_order; i++)
        for (int a = 0; a < count; a++) {
            shard_op *o = &s->ops[s->order[i]];
            o->choice[a] = o->domain[a].count ? o->domain[a].choices[0] : CHOICE_NONE;
        }
    for (int a = 0; a < count; a++)
        for (size_t i = 0; s->axes >> a & 1 && i < s->n_order; i++)
            if (s->module->ops[s->order[i]].kind == DTM_OP_WEIGHT && s->ops[s->order[i]].domain[a].count)
                narrow_weight(s, s->order[i], a);
    for (int in_time = 1; in_time >= 0; in_time--)
        for (int a = 0; a < count; a++)
            if (s->axes >> a & 1 && (s->time >> a & 1) == in_time) choose_axis(s, a);
    for (int a = 0; a < count; a++)
        for (size_t i = 0; s->time >> a & 1 && i < s->n_order && !s->failed; i++) check_time(s, s->order[i], a);
    return !s->failed;
}
