/* Modelled time, as tables over choices (shard_tables.h): an operator takes its share where it is split, and a value the
 * time of converting it from what its producer makes into what its readers need, on each axis. A value read once ties its
 * producer to its reader. A value read more often has a variable of its own, the set of states in which copies of it are
 * held: the producer pays for making the set (each copy from the cheapest that is there), a reader needs its state in it.
 * So a copy is paid for once however many read it. */
#include "passes/shard_tables.h"

#include <math.h>
#include <string.h>

/* A tie is settled by the order of the domain, as is what costs less than this. */
static const double PREFERENCE = 1e-11;
/* What is never worth it, but possible. */
static const double AVOID = 1.0;

static void add_pair(chooser *c, uint32_t va, uint32_t na, uint32_t vb, uint32_t nb, const double *costs) {
    table t = {0};
    shard_table_over(&t, va, na);
    shard_table_over(&t, vb, nb);
    shard_table_add(c, SHARD_TIME, &t, costs);
}

/* The other axes decided now on which the producer has a choice: they say how large the value is. */
static void over_other_axes(const chooser *c, dtm_op producer, table *t, int *axes) {
    for (int a = 0; a < c->s->module->settings.mesh.count; a++)
        if (a != c->axis && c->axes >> a & 1 && c->variable[a][producer]) {
            axes[t->count] = a;
            shard_table_over(t, c->variable[a][producer], shard_choices_on(c, producer, a));
        }
}

/* By what the producer's choices on those axes, the `index`-th combination of them, divide the value. */
static double divided_by(const chooser *c, end producer, const table *t, const int *axes, size_t index) {
    double parts = 1;
    for (uint32_t i = t->count; i-- > 0; index /= t->sizes[i]) {
        shard_choice choice = shard_choice_on(c, producer.op, axes[i], (uint32_t)(index % t->sizes[i]));
        if (shard_result_state(c->s, producer.op, choice, (uint32_t)(-1 - producer.operand)) >= STATE_DIM)
            parts *= shard_axis_size(c, axes[i]);
    }
    return parts;
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

/* Over microbatches: what is read late is complete then, and what depends on inputs alone is summed in a loop before the
 * others; but they are never there side by side. */
static double conversion_in_time(const conversion *v, shard_state from, shard_state to) {
    if (from == STATE_ALIKE) return 0;
    bool sum = from == STATE_SUM || from == STATE_MAX;
    if (sum && to == STATE_ALIKE && (v->late || v->inputs_only)) return 0;
    return sum && v->inputs_only ? AVOID : 100 * AVOID;
}

static double conversion_time(const chooser *c, const conversion *v, shard_state from, shard_state to) {
    if (from == to) return 0;
    if (to == STATE_MAX) return INFINITY;
    if (c->s->time >> c->axis & 1) return conversion_in_time(v, from, to);
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

static void tie_one(chooser *c, end producer, end reader, const conversion *v) {
    table t = {0};
    int axes[DTM_MAX_AXES];
    over_other_axes(c, producer.op, &t, axes);
    size_t others = shard_table_size(&t);
    table sizes = t;
    uint32_t n = shard_end_count(c, producer), m = shard_end_count(c, reader);
    shard_table_over(&t, shard_end_variable(c, producer), n);
    shard_table_over(&t, shard_end_variable(c, reader), m);
    double *costs = dtm_arena_alloc(c->s->arena, shard_table_size(&t) * sizeof *costs);
    for (size_t k = 0; k < others; k++) {
        conversion part = *v;
        part.bytes /= divided_by(c, producer, &sizes, axes, k);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < m; j++)
                costs[(k * n + i) * m + j] = conversion_time(c, &part, shard_end_state(c, producer, i), shard_end_state(c, reader, j));
    }
    shard_table_add(c, SHARD_TIME, &t, costs);
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
    shard_states_add(c, producer, &set);
    for (size_t i = 0; i < n_readers; i++) shard_states_add(c, readers[i], &set);
    if (set.count == 1) return;
    uint32_t n = shard_end_count(c, producer), n_sets, *sets;
    bool open = false;
    for (int a = 0; a < c->s->module->settings.mesh.count; a++) open |= c->axes >> a & 1 && c->variable[a][producer.op];
    for (size_t i = 0; i < n_readers; i++) open |= shard_end_variable(c, readers[i]) != 0;
    if (!open) return;
    uint32_t held = shard_held(c, &set, readers, n_readers, &sets, &n_sets);
    table t = {0};
    int axes[DTM_MAX_AXES];
    over_other_axes(c, producer.op, &t, axes);
    size_t others = shard_table_size(&t);
    table sizes = t;
    shard_table_over(&t, shard_end_variable(c, producer), n);
    shard_table_over(&t, held, n_sets);
    double *least = dtm_arena_alloc(c->s->arena, sizeof *least << set.count);
    double *costs = dtm_arena_alloc(c->s->arena, shard_table_size(&t) * sizeof *costs);
    for (size_t o = 0; o < others; o++) {
        conversion part = *v;
        part.bytes /= divided_by(c, producer, &sizes, axes, o);
        for (uint32_t i = 0; i < n; i++) {
            time_of_sets(c, &set, &part, (uint32_t)shard_state_index(&set, shard_end_state(c, producer, i)), least);
            for (uint32_t k = 0; k < n_sets; k++)
                costs[(o * n + i) * n_sets + k] = least[sets[k]] + PREFERENCE * 1e-3 * k;
        }
    }
    shard_table_add(c, SHARD_TIME, &t, costs);
}

/* What an operator's reading a value amounts to; false: nothing (the update follows the weight). */
static bool reader_end(const chooser *c, dtm_value value, dtm_op op, uint32_t operand, end *e) {
    const shard *s = c->s;
    dtm_op_kind kind = s->module->ops[op].kind;
    *e = (end){op, (int32_t)operand};
    if (s->takes_gradient[op] && s->weight_of[value]) {
        *e = (end){s->module->values[s->weight_of[value]].def, -1};
        return true;
    }
    if (kind == DTM_OP_GRADIENT) return false;
    if (s->ops[op].phase != PHASE_UPDATE) return kind != DTM_OP_STORE;
    dtm_op_kind source = s->module->ops[s->module->values[value].def].kind;
    if (s->weight_of[value] || source == DTM_OP_WEIGHT) return false;
    *e = (end){FIXED_ALIKE, 0};
    return true;
}

/* Law 6: a reduction that its list would split is computed alike only where its operand is alike as it is made. */
static double reduction_cost(const chooser *c, end reader, shard_state made, shard_state read) {
    const shard *s = c->s;
    if (reader.op == FIXED_ALIKE || !shard_is_reduction(s->module->ops[reader.op].kind)) return 0;
    if (s->ops[reader.op].domain[c->axis].count < 2 || (s->rules[c->axis] && s->rules[c->axis]->by_cost)) return 0;
    return made != STATE_ALIKE && read == STATE_ALIKE ? AVOID : 0;
}

static void tie_reduction(chooser *c, end producer, end reader) {
    uint32_t n = shard_end_count(c, producer), m = shard_end_count(c, reader);
    double *costs = dtm_arena_alloc(c->s->arena, (size_t)n * m * sizeof *costs), any = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < m; j++)
            any += costs[i * m + j] = reduction_cost(c, reader, shard_end_state(c, producer, i), shard_end_state(c, reader, j));
    if (any > 0) add_pair(c, shard_end_variable(c, producer), n, shard_end_variable(c, reader), m, costs);
}

/* Everything that reads a result, and what a conversion of it costs. */
static end *readers_of(const chooser *c, dtm_op op, uint32_t result, size_t *n, conversion *v) {
    const shard *s = c->s;
    dtm_value value = s->module->ops[op].results[result];
    size_t capacity = 0;
    end *readers = NULL, e;
    *n = 0;
    *v = (conversion){shard_local_bytes(s, value, (uint16_t)(c->axes | 1 << c->axis)), s->ops[op].copies, true,
                      s->input_only[value], s->gradient_only[value] && !s->weight_of[value]};
    /* On an axis in time, what is read late is complete then at no cost: readers within the microbatches decide alone. */
    bool in_time = s->time >> c->axis & 1, some_early = false;
    for (uint32_t i = 0; i < s->n_readers[value]; i++) some_early |= !shard_is_late(s, s->readers[value][i]);
    for (uint32_t i = 0; i < s->n_readers[value]; i++) {
        dtm_op reader = s->readers[value][i];
        const dtm_op_data *data = dtm_op_get(s->module, reader);
        if (in_time && some_early && shard_is_late(s, reader)) continue;
        for (uint32_t k = 0; k < data->n_operands; k++) {
            if (data->operands[k] != value || !reader_end(c, value, reader, k, &e)) continue;
            DTM_PUSH(s->arena, readers, *n, capacity, e);
            v->late &= shard_is_late(s, reader);
        }
    }
    if (!v->late) v->times *= c->microbatches;
    return readers;
}

static void tie_value(chooser *c, dtm_op op, uint32_t result) {
    size_t n;
    conversion v;
    end *readers = readers_of(c, op, result, &n, &v), producer = {op, -1 - (int32_t)result};
    for (size_t i = 0; i < n; i++) tie_reduction(c, producer, readers[i]);
    if (n == 1) tie_one(c, producer, readers[0], &v);
    else if (n > 1) tie_many(c, producer, readers, n, &v);
}

/* ---- operators ---- */

static bool splits(shard_choice choice) {
    return (choice >= CHOICE_FACTOR && choice < CHOICE_STATE) || (choice >= CHOICE_STATE + STATE_DIM && choice != CHOICE_NONE);
}

/* The time of an operator that no axis decided now splits. */
static double whole_time(const chooser *c, dtm_op op) {
    const shard *s = c->s;
    dtm_op_kind kind = s->module->ops[op].kind;
    if (shard_is_source(kind) || shard_is_identity(kind)) {
        dtm_value value = s->module->ops[op].n_results ? s->module->ops[op].results[0] : s->module->ops[op].operands[0];
        double passes = kind == DTM_OP_WEIGHT ? 8 : 0.01; /* the update reads and writes weight, moments and gradient */
        return shard_local_bytes(s, value, c->axes) * passes * s->ops[op].copies / dtm_machine_of(s->module).memory_bandwidth;
    }
    double time = dtm_op_time(s->module, op) * s->ops[op].copies;
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        if (!(c->axes >> a & 1) && s->axes >> a & 1 && splits(s->ops[op].choice[a])) time /= shard_axis_size(c, a);
    return time;
}

/* A split operator takes its share of the time. */
static void add_operator(chooser *c, dtm_op op) {
    const shard *s = c->s;
    table t = {0};
    int axes[DTM_MAX_AXES];
    for (int a = 0; a < s->module->settings.mesh.count; a++) {
        if (!(c->axes >> a & 1) || s->ops[op].domain[a].count == 0) continue;
        uint32_t count = s->ops[op].domain[a].count;
        if (count > 1) c->variable[a][op] = shard_search_variable(c->search, count, (uint32_t)a) + 1;
        axes[t.count] = a;
        shard_table_over(&t, c->variable[a][op], count);
    }
    if (!t.count) return;
    uint32_t n = 0, together[DTM_MAX_AXES];
    for (uint32_t i = 0; i < t.count; i++)
        if (t.variables[i]) together[n++] = t.variables[i] - 1;
    if (n > 1) shard_search_together(c->search, n, together);
    double *costs = dtm_arena_alloc(s->arena, shard_table_size(&t) * sizeof *costs), whole = whole_time(c, op);
    for (size_t index = 0; index < shard_table_size(&t); index++) {
        double time = whole, preference = 0;
        size_t rest = index;
        for (uint32_t i = t.count; i-- > 0; rest /= t.sizes[i]) {
            uint32_t choice = (uint32_t)(rest % t.sizes[i]);
            if (splits(s->ops[op].domain[axes[i]].choices[choice])) time /= shard_axis_size(c, axes[i]);
            preference += PREFERENCE * choice;
        }
        costs[index] = time + preference;
    }
    shard_table_add(c, SHARD_TIME, &t, costs);
}

static bool has_choice(const shard *s, dtm_op op, int axis) { return s->ops[op].domain[axis].count > 0; }

void shard_tables_of_time(chooser *c) {
    const shard *s = c->s;
    for (size_t i = 0; i < s->n_order; i++) add_operator(c, s->order[i]);
    for (c->axis = 0; c->axis < s->module->settings.mesh.count; c->axis++)
        for (size_t i = 0; s->axes >> c->axis & 1 && i < s->n_order; i++)
            for (uint32_t r = 0; has_choice(s, s->order[i], c->axis) && r < s->module->ops[s->order[i]].n_results; r++)
                tie_value(c, s->order[i], r);
}

/* ---- the twin ---- */


static double cost_of_value(chooser *c, dtm_op op, uint32_t result) {
    size_t n;
    conversion v;
    end *readers = readers_of(c, op, result, &n, &v), producer = {op, -1 - (int32_t)result};
    states set = {0};
    shard_states_add(c, producer, &set);
    double cost = 0;
    uint32_t must = 0;
    for (size_t i = 0; i < n; i++) {
        shard_states_add(c, readers[i], &set);
        must |= 1u << shard_state_index(&set, shard_end_state(c, readers[i], 0));
        cost += reduction_cost(c, readers[i], shard_end_state(c, producer, 0), shard_end_state(c, readers[i], 0));
    }
    if (!n) return 0;
    double *times = dtm_arena_alloc(c->s->arena, sizeof *times << set.count), least = INFINITY;
    time_of_sets(c, &set, &v, 0, times);
    for (uint32_t mask = 0; mask < 1u << set.count; mask++)
        if ((mask & must) == must && times[mask] < least) least = times[mask];
    return cost + least;
}

double shard_cost(shard *s, uint16_t axes) {
    chooser c = shard_chooser(s, 0);
    double total = 0;
    for (size_t i = 0; i < s->n_order; i++) {
        bool counted = false;
        for (c.axis = 0; c.axis < s->module->settings.mesh.count; c.axis++) {
            if (!(s->axes >> c.axis & 1) || !has_choice(s, s->order[i], c.axis)) continue;
            counted |= axes >> c.axis & 1;
            for (uint32_t r = 0; r < s->module->ops[s->order[i]].n_results; r++) total += cost_of_value(&c, s->order[i], r);
        }
        if (counted) total += whole_time(&c, s->order[i]);
    }
    return total;
}

