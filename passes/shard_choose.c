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

/* How far a search goes: entries of its largest table, and entries of tables looked at in all. They are counted, not timed, so
 * that the same program always gets the same splits (a second is half a billion of them or so). Three axes of seven dimensions
 * each take a Transformer a quarter of it. */
enum { LIMIT = 1 << 20 };
static const double EFFORT = 1e10;

/* What came of a search by cost. */
typedef struct verdict {
    shard_outcome outcome;
    double time, least; /* of what was found; no other that fits takes less */
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
    double bound, effort = EFFORT;
    shard_search_options options = {{1, 0}, NULL, LIMIT, &effort, INFINITY};
    shard_search_solve(c.search, &options, assignment, &bound);
    take(&c, assignment);
}

/* The fastest of all is taken where it fits; only else is memory looked at in the search. */
static verdict choose_by_cost(shard *s, uint16_t axes) {
    chooser c = shard_chooser(s, axes);
    shard_tables_of_time(&c);
    uint32_t *assignment = dtm_arena_alloc(s->arena, (shard_search_size(c.search) + 1) * sizeof *assignment);
    double least, effort = EFFORT;
    shard_search_options options = {{1, 0}, NULL, LIMIT, &effort, INFINITY};
    double cost = shard_search_solve(c.search, &options, assignment, &least);
    s->effort += EFFORT - effort;
    if (cost < INFINITY) take(&c, assignment);
    double bound = s->module->settings.machine.memory;
    if (bound <= 0 || shard_memory(s) <= bound) return (verdict){least < cost ? SHARD_GOOD : SHARD_LEAST, cost, least};
    verdict v;
    double gap;
    shard_tables_of_memory(&c);
    assignment = dtm_arena_alloc(s->arena, (shard_search_size(c.search) + 1) * sizeof *assignment);
    effort = EFFORT;
    v.outcome = shard_search_within(c.search, bound, LIMIT, &effort, assignment, &gap);
    s->effort += EFFORT - effort;
    v.time = shard_search_total(c.search, SHARD_TIME, assignment);
    v.least = v.time - gap;
    take(&c, assignment);
    return v;
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
    } else if (v.outcome == SHARD_GOOD) {
        dtm_warning(context, span, 807,
                    "too many choices hang together to prove that the splits chosen are the fastest%s: the model gives them %.4g "
                    "ms a step, and any others at least %.4g ms (%.2g%% less)",
                    bound > 0 ? " that fit" : "", v.time * 1e3, v.least * 1e3, 100 * (1 - v.least / v.time));
        dtm_help(context, "list fewer dimensions, or leave `by cost` to fewer axes, and it is proved");
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
        if (s->worth) tell(s, by_cost, v);
    }
    shard_check_time(s);
    return !s->failed;
}
