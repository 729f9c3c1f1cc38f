/* The choice of least modelled time: axes that follow their lists one at a time, all axes `by cost` at once. What is chosen
 * on the other axes says how large a block is.
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
    uint16_t axes;    /* those decided now */
    int axis;         /* the one that conversions are counted on */
    double microbatches;
    shard_search *search;
    uint32_t *variable[DTM_MAX_AXES]; /* by axis, operator: its variable + 1; 0: it has no choice left */
} chooser;

static double axis_size(const chooser *c, int axis) { return (double)c->s->module->settings.mesh.axes[axis].size; }

/* Something whose choice decides a state: an operator, or for a weight's gradient the weight. */
typedef struct end {
    dtm_op op;
    int32_t operand; /* >= 0: what this operand must be; -1 - r: what result r is */
} end;

enum { FIXED_ALIKE = 0 }; /* op 0: always alike */

/* How many choices an operator has on an axis: one where it is decided already. */
static uint32_t choices_on(const chooser *c, dtm_op op, int axis) {
    return op == FIXED_ALIKE || !(c->axes >> axis & 1) ? 1 : c->s->ops[op].domain[axis].count;
}

static shard_choice choice_on(const chooser *c, dtm_op op, int axis, uint32_t choice) {
    return c->axes >> axis & 1 ? c->s->ops[op].domain[axis].choices[choice] : c->s->ops[op].choice[axis];
}

static uint32_t count_of(const chooser *c, end e) { return choices_on(c, e.op, c->axis); }

static shard_state state_of(const chooser *c, end e, uint32_t choice) {
    if (e.op == FIXED_ALIKE) return STATE_ALIKE;
    shard_choice chosen = choice_on(c, e.op, c->axis, choice);
    return e.operand >= 0 ? shard_operand_state(c->s, e.op, chosen, (uint32_t)e.operand)
                          : shard_result_state(c->s, e.op, chosen, (uint32_t)(-1 - e.operand));
}

/* ---- tables ---- */

/* A table being made: what it is over (variables + 1, 0 where there is but one choice) and how many choices each has. */
typedef struct table {
    uint32_t count, variables[DTM_MAX_AXES + 2], sizes[DTM_MAX_AXES + 2];
} table;

static void over(table *t, uint32_t variable, uint32_t size) {
    t->variables[t->count] = variable;
    t->sizes[t->count++] = size;
}

static size_t table_size(const table *t) {
    size_t size = 1;
    for (uint32_t i = 0; i < t->count; i++) size *= t->sizes[i];
    return size;
}

static void add_costs(chooser *c, const table *t, const double *costs) {
    uint32_t count = 0, variables[DTM_MAX_AXES + 2];
    for (uint32_t i = 0; i < t->count; i++)
        if (t->variables[i]) variables[count++] = t->variables[i] - 1;
    if (count) shard_search_cost(c->search, count, variables, costs);
}

static void add_pair(chooser *c, uint32_t va, uint32_t na, uint32_t vb, uint32_t nb, const double *costs) {
    table t = {0};
    over(&t, va, na);
    over(&t, vb, nb);
    add_costs(c, &t, costs);
}

/* The other axes decided now on which the producer has a choice: they say how large the value is. */
static void over_other_axes(const chooser *c, dtm_op producer, table *t, int *axes) {
    for (int a = 0; a < c->s->module->settings.mesh.count; a++)
        if (a != c->axis && c->axes >> a & 1 && c->variable[a][producer]) {
            axes[t->count] = a;
            over(t, c->variable[a][producer], choices_on(c, producer, a));
        }
}

/* By what the producer's choices on those axes, the `index`-th combination of them, divide the value. */
static double divided_by(const chooser *c, end producer, const table *t, const int *axes, size_t index) {
    double parts = 1;
    for (uint32_t i = t->count; i-- > 0; index /= t->sizes[i]) {
        shard_choice choice = choice_on(c, producer.op, axes[i], (uint32_t)(index % t->sizes[i]));
        if (shard_result_state(c->s, producer.op, choice, (uint32_t)(-1 - producer.operand)) >= STATE_DIM)
            parts *= axis_size(c, axes[i]);
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

static double conversion_in_time(const conversion *v, shard_state from, shard_state to) {
    if (from == STATE_ALIKE) return 0;
    if (from == STATE_SUM && to == STATE_ALIKE && v->late) return 0;
    return v->inputs_only ? AVOID : 100 * AVOID;
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

static uint32_t variable_of(const chooser *c, end e) { return e.op == FIXED_ALIKE ? 0 : c->variable[c->axis][e.op]; }

static void tie_one(chooser *c, end producer, end reader, const conversion *v) {
    table t = {0};
    int axes[DTM_MAX_AXES];
    over_other_axes(c, producer.op, &t, axes);
    size_t others = table_size(&t);
    table sizes = t;
    uint32_t n = count_of(c, producer), m = count_of(c, reader);
    over(&t, variable_of(c, producer), n);
    over(&t, variable_of(c, reader), m);
    double *costs = dtm_arena_alloc(c->s->arena, table_size(&t) * sizeof *costs);
    for (size_t k = 0; k < others; k++) {
        conversion part = *v;
        part.bytes /= divided_by(c, producer, &sizes, axes, k);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < m; j++)
                costs[(k * n + i) * m + j] = conversion_time(c, &part, state_of(c, producer, i), state_of(c, reader, j));
    }
    add_costs(c, &t, costs);
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
    for (int a = 0; a < c->s->module->settings.mesh.count; a++) open |= c->axes >> a & 1 && c->variable[a][producer.op];
    for (size_t i = 0; i < n_readers; i++) {
        if (variable_of(c, readers[i])) open = true;
        else must |= 1u << index_of(&set, state_of(c, readers[i], 0));
    }
    if (!open) return;
    for (uint32_t mask = 1; mask < 1u << set.count; mask++)
        if ((mask & must) == must) sets[n_sets++] = mask;
    uint32_t held = shard_search_variable(c->search, n_sets) + 1;
    table t = {0};
    int axes[DTM_MAX_AXES];
    over_other_axes(c, producer.op, &t, axes);
    size_t others = table_size(&t);
    table sizes = t;
    over(&t, variable_of(c, producer), n);
    over(&t, held, n_sets);
    double *least = dtm_arena_alloc(c->s->arena, sizeof *least << set.count);
    double *costs = dtm_arena_alloc(c->s->arena, table_size(&t) * sizeof *costs);
    for (size_t o = 0; o < others; o++) {
        conversion part = *v;
        part.bytes /= divided_by(c, producer, &sizes, axes, o);
        for (uint32_t i = 0; i < n; i++) {
            time_of_sets(c, &set, &part, (uint32_t)index_of(&set, state_of(c, producer, i)), least);
            for (uint32_t k = 0; k < n_sets; k++)
                costs[(o * n + i) * n_sets + k] = least[sets[k]] + PREFERENCE * 1e-3 * k;
        }
    }
    add_costs(c, &t, costs);
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
static double reduction_cost(const chooser *c, end reader, shard_state made, shard_state read) {
    const shard *s = c->s;
    if (reader.op == FIXED_ALIKE || !shard_is_reduction(s->module->ops[reader.op].kind)) return 0;
    if (s->ops[reader.op].domain[c->axis].count < 2 || (s->rules[c->axis] && s->rules[c->axis]->by_cost)) return 0;
    return made != STATE_ALIKE && read == STATE_ALIKE ? AVOID : 0;
}

static void tie_reduction(chooser *c, end producer, end reader) {
    uint32_t n = count_of(c, producer), m = count_of(c, reader);
    double *costs = dtm_arena_alloc(c->s->arena, (size_t)n * m * sizeof *costs), any = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < m; j++)
            any += costs[i * m + j] = reduction_cost(c, reader, state_of(c, producer, i), state_of(c, reader, j));
    if (any > 0) add_pair(c, variable_of(c, producer), n, variable_of(c, reader), m, costs);
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
    for (uint32_t i = 0; i < s->n_readers[value]; i++) {
        dtm_op reader = s->readers[value][i];
        const dtm_op_data *data = dtm_op_get(s->module, reader);
        for (uint32_t k = 0; k < data->n_operands; k++) {
            if (data->operands[k] != value || !reader_end(c, value, reader, k, &e)) continue;
            DTM_PUSH(s->arena, readers, *n, capacity, e);
            v->late &= data->kind == DTM_OP_REPORT || data->kind == DTM_OP_GRADIENT || s->ops[reader].phase == PHASE_UPDATE;
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
        if (!(c->axes >> a & 1) && s->axes >> a & 1 && splits(s->ops[op].choice[a])) time /= axis_size(c, a);
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
        if (count > 1) c->variable[a][op] = shard_search_variable(c->search, count) + 1;
        axes[t.count] = a;
        over(&t, c->variable[a][op], count);
    }
    if (!t.count) return;
    double *costs = dtm_arena_alloc(s->arena, table_size(&t) * sizeof *costs), whole = whole_time(c, op);
    for (size_t index = 0; index < table_size(&t); index++) {
        double time = whole, preference = 0;
        size_t rest = index;
        for (uint32_t i = t.count; i-- > 0; rest /= t.sizes[i]) {
            uint32_t choice = (uint32_t)(rest % t.sizes[i]);
            if (splits(s->ops[op].domain[axes[i]].choices[choice])) time /= axis_size(c, axes[i]);
            preference += PREFERENCE * choice;
        }
        costs[index] = time + preference;
    }
    add_costs(c, &t, costs);
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

static chooser chooser_for(shard *s, uint16_t axes) {
    chooser c = {.s = s, .axes = axes, .microbatches = 1, .search = shard_search_create(s->arena)};
    for (int a = 0; a < s->module->settings.mesh.count; a++) {
        if (s->time >> a & 1) c.microbatches *= axis_size(&c, a);
        c.variable[a] = dtm_arena_alloc(s->arena, s->n_ops * sizeof *c.variable[a]);
    }
    return c;
}

/* Entries of the largest table: of one axis alone, which must be decided, and of several, which may be one by one. */
enum { BOUND_ONE = 1 << 18, BOUND_SEVERAL = 1 << 16 };

/* Decides axes at once. False: they are too entangled to be sure of the minimum; of several none is then decided. */
static bool choose_axes(shard *s, uint16_t axes) {
    chooser c = chooser_for(s, axes);
    for (size_t i = 0; i < s->n_order; i++) add_operator(&c, s->order[i]);
    for (c.axis = 0; c.axis < s->module->settings.mesh.count; c.axis++)
        for (size_t i = 0; s->axes >> c.axis & 1 && i < s->n_order; i++)
            for (uint32_t r = 0; has_choice(s, s->order[i], c.axis) && r < s->module->ops[s->order[i]].n_results; r++)
                tie_value(&c, s->order[i], r);
    uint32_t *assignment = dtm_arena_alloc(s->arena, (shard_search_size(c.search) + 1) * sizeof *assignment);
    bool exact, several = (axes & (axes - 1)) != 0;
    shard_search_solve(c.search, several ? BOUND_SEVERAL : BOUND_ONE, several, assignment, &exact);
    if (!exact && several) return false;
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        for (size_t i = 0; axes >> a & 1 && i < s->n_order; i++) {
            shard_op *o = &s->ops[s->order[i]];
            uint32_t variable = c.variable[a][s->order[i]];
            if (o->domain[a].count) o->choice[a] = o->domain[a].choices[variable ? assignment[variable - 1] : 0];
        }
    return exact;
}

/* ---- the twin ---- */

static double cost_of_value(chooser *c, dtm_op op, uint32_t result) {
    size_t n;
    conversion v;
    end *readers = readers_of(c, op, result, &n, &v), producer = {op, -1 - (int32_t)result};
    states set = {0};
    gather_states(c, producer, &set);
    double cost = 0;
    uint32_t must = 0;
    for (size_t i = 0; i < n; i++) {
        gather_states(c, readers[i], &set);
        must |= 1u << index_of(&set, state_of(c, readers[i], 0));
        cost += reduction_cost(c, readers[i], state_of(c, producer, 0), state_of(c, readers[i], 0));
    }
    if (!n) return 0;
    double *times = dtm_arena_alloc(c->s->arena, sizeof *times << set.count), least = INFINITY;
    time_of_sets(c, &set, &v, 0, times);
    for (uint32_t mask = 0; mask < 1u << set.count; mask++)
        if ((mask & must) == must && times[mask] < least) least = times[mask];
    return cost + least;
}

double shard_cost(shard *s, uint16_t axes) {
    chooser c = chooser_for(s, 0);
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

uint16_t shard_axes_by_cost(const shard *s) {
    uint16_t axes = 0;
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        if (s->axes >> a & 1 && s->rules[a] && s->rules[a]->by_cost) axes |= (uint16_t)(1 << a);
    return axes;
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
    uint16_t by_cost = shard_axes_by_cost(s);
    for (int in_time = 1; in_time >= 0; in_time--)
        for (int a = 0; a < count; a++)
            if ((s->axes & ~by_cost) >> a & 1 && (s->time >> a & 1) == in_time) choose_axes(s, (uint16_t)(1 << a));
    if (by_cost && !choose_axes(s, by_cost))
        for (int round = 0; (by_cost & (by_cost - 1)) && round < 2; round++)
            for (int a = 0; a < count; a++)
                if (by_cost >> a & 1) choose_axes(s, (uint16_t)(1 << a));
    for (int a = 0; a < count; a++)
        for (size_t i = 0; s->time >> a & 1 && i < s->n_order && !s->failed; i++) check_time(s, s->order[i], a);
    return !s->failed;
}
