/* The choice of least modelled time: axes that follow their lists one at a time, all axes `by cost` at once, within the
 * memory of the machine if it says one. What is chosen on the other axes says how large a block is. A variable of the search
 * is an operator's choice on an axis, or the set of states that copies of a value are held in; shard_cost.c and
 * shard_memory.c fill its tables. */
#include "passes/passes.h"
#include "passes/shard_tables.h"

#include <math.h>

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

/* How far a search goes: entries of its largest table, parts that it is cut into, and with a bound on memory solutions. */
enum { LIMIT = 1 << 18, MAX_PARTS = 24, MAX_SOLUTIONS = 160 };

/* What came of a search by cost. */
typedef struct verdict {
    shard_outcome outcome;
    double gap; /* SHARD_GOOD: seconds that a better one could at most save */
} verdict;

static void take(chooser *c, const uint32_t *assignment) {
    const shard *s = c->s;
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        for (size_t i = 0; c->axes >> a & 1 && i < s->n_order; i++) {
            shard_op *o = &s->ops[s->order[i]];
            uint32_t variable = c->variable[a][s->order[i]];
            if (o->domain[a].count) o->choice[a] = o->domain[a].choices[variable ? assignment[variable - 1] : 0];
        }
}

static void choose_listed(shard *s, int axis) {
    chooser c = shard_chooser(s, (uint16_t)(1 << axis));
    shard_tables_of_time(&c);
    uint32_t *assignment = dtm_arena_alloc(s->arena, (shard_search_size(c.search) + 1) * sizeof *assignment);
    bool exact;
    shard_search_options options = {{1, 0}, NULL, LIMIT, MAX_PARTS};
    shard_search_solve(c.search, &options, assignment, &exact);
    take(&c, assignment);
}

/* The fastest of all is taken where it fits; only else is memory looked at in the search. */
static verdict choose_by_cost(shard *s, uint16_t axes) {
    chooser c = shard_chooser(s, axes);
    verdict v = {SHARD_LEAST, 0};
    shard_tables_of_time(&c);
    uint32_t *assignment = dtm_arena_alloc(s->arena, (shard_search_size(c.search) + 1) * sizeof *assignment);
    bool exact;
    shard_search_options options = {{1, 0}, NULL, LIMIT, MAX_PARTS};
    if (shard_search_solve(c.search, &options, assignment, &exact) < INFINITY) take(&c, assignment);
    if (!exact) return (verdict){SHARD_GAVE_UP, 0};
    double bound = s->module->settings.machine.memory;
    if (bound <= 0 || shard_memory(s) <= bound) return v;
    shard_tables_of_memory(&c);
    assignment = dtm_arena_alloc(s->arena, (shard_search_size(c.search) + 1) * sizeof *assignment);
    v.outcome = shard_search_within(c.search, bound, LIMIT, MAX_PARTS, MAX_SOLUTIONS, assignment, &v.gap);
    if (v.outcome != SHARD_GAVE_UP) take(&c, assignment);
    return v;
}

/* Too entangled to be decided together: from what was found so far each axis in turn, the others as they stand, twice. */
static void choose_in_turn(shard *s, uint16_t axes) {
    for (int round = 0; round < 2; round++)
        for (int a = 0; a < s->module->settings.mesh.count; a++)
            if (axes >> a & 1 && choose_by_cost(s, (uint16_t)(1 << a)).outcome == SHARD_GAVE_UP) choose_listed(s, a);
}

static dtm_span span_by_cost(const shard *s, uint16_t axes) {
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        if (axes >> a & 1) return s->rules[a]->span;
    return (dtm_span){0, 0, 0};
}

/* Says where what was chosen is not the least, or does not fit. */
static void tell(shard *s, uint16_t axes, verdict v) {
    dtm_context *context = s->module->context;
    dtm_span span = span_by_cost(s, axes);
    double bound = s->module->settings.machine.memory, needed = shard_memory(s);
    if (bound > 0 && needed > bound) {
        dtm_error(context, span, 412, "no choice of splits%s fits: a rank would hold %s%.0f bytes, the machine has %.0f",
                  v.outcome == SHARD_GAVE_UP ? " found" : "", v.outcome == SHARD_GAVE_UP ? "" : "at least ", needed, bound);
        dtm_help(context, "more ranks, more `microbatches`, or a dimension listed that splits what is largest");
        s->failed = true;
    } else if (v.outcome == SHARD_GAVE_UP) {
        dtm_warning(context, span, 807,
                    "too many choices hang together for all axes by cost to be decided at once: each is the least with the "
                    "others as they are, together they may not be");
        dtm_help(context, "list fewer dimensions, or leave `by cost` to one axis");
    } else if (v.outcome == SHARD_GOOD) {
        dtm_warning(context, span, 807,
                    "the splits chosen fit in memory, but others that do may be faster by up to %.3g ms a step", v.gap * 1e3);
        dtm_help(context, "list fewer dimensions");
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
            if ((s->axes & ~by_cost) >> a & 1 && (s->time >> a & 1) == in_time) choose_listed(s, a);
    if (by_cost) {
        verdict v = choose_by_cost(s, by_cost);
        if (v.outcome == SHARD_GAVE_UP) choose_in_turn(s, by_cost);
        if (s->worth) tell(s, by_cost, v);
    }
    shard_check_time(s);
    return !s->failed;
}
