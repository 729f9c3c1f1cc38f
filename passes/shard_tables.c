/* What tables of choices are made of (shard_tables.h): states that a choice comes to, and sets of them. */
#include "passes/shard_tables.h"

#include <math.h>

double shard_axis_size(const chooser *c, int axis) { return (double)c->s->module->settings.mesh.axes[axis].size; }

chooser shard_chooser(shard *s, uint16_t axes) {
    chooser c = {.s = s, .axes = axes, .microbatches = 1, .search = shard_search_create(s->arena)};
    for (int a = 0; a < s->module->settings.mesh.count; a++) {
        if (s->time >> a & 1) c.microbatches *= shard_axis_size(&c, a);
        c.variable[a] = dtm_arena_alloc(s->arena, s->n_ops * sizeof *c.variable[a]);
    }
    return c;
}

/* ---- choices and what they come to ---- */

uint32_t shard_choices_on(const chooser *c, dtm_op op, int axis) {
    return op == FIXED_ALIKE || !(c->axes >> axis & 1) ? 1 : c->s->ops[op].domain[axis].count;
}

shard_choice shard_choice_on(const chooser *c, dtm_op op, int axis, uint32_t choice) {
    return c->axes >> axis & 1 ? c->s->ops[op].domain[axis].choices[choice] : c->s->ops[op].choice[axis];
}

uint32_t shard_end_count(const chooser *c, end e) { return shard_choices_on(c, e.op, c->axis); }

shard_state shard_end_state(const chooser *c, end e, uint32_t choice) {
    if (e.op == FIXED_ALIKE) return STATE_ALIKE;
    shard_choice chosen = shard_choice_on(c, e.op, c->axis, choice);
    return e.operand >= 0 ? shard_operand_state(c->s, e.op, chosen, (uint32_t)e.operand)
                          : shard_result_state(c->s, e.op, chosen, (uint32_t)(-1 - e.operand));
}

uint32_t shard_end_variable(const chooser *c, end e) { return e.op == FIXED_ALIKE ? 0 : c->variable[c->axis][e.op]; }

/* ---- tables ---- */

void shard_table_over(table *t, uint32_t variable, uint32_t size) {
    if (t->count == MAX_OVER) dtm_broken("shard", "a table over more than %d choices", MAX_OVER);
    t->variables[t->count] = variable;
    t->sizes[t->count++] = size;
}

size_t shard_table_size(const table *t) {
    size_t size = 1;
    for (uint32_t i = 0; i < t->count; i++) size *= t->sizes[i];
    return size;
}

void shard_table_add(chooser *c, shard_measure measure, const table *t, const double *costs) {
    uint32_t count = 0, variables[MAX_OVER];
    for (uint32_t i = 0; i < t->count; i++)
        if (t->variables[i]) variables[count++] = t->variables[i] - 1;
    shard_search_add(c->search, measure, count, variables, costs);
}

/* ---- sets of states ---- */

int shard_state_index(const states *set, shard_state state) {
    for (uint32_t i = 0; i < set->count; i++)
        if (set->list[i] == state) return (int)i;
    return -1;
}

void shard_states_add(const chooser *c, end e, states *set) {
    for (uint32_t i = 0; i < shard_end_count(c, e); i++) {
        shard_state state = shard_end_state(c, e, i);
        if (shard_state_index(set, state) < 0) set->list[set->count++] = state;
    }
}

uint32_t shard_held(chooser *c, const states *set, const end *readers, size_t n_readers, uint32_t **sets, uint32_t *n_sets) {
    uint32_t must = 0, n = 0, *list = dtm_arena_alloc(c->s->arena, sizeof *list << set->count);
    for (size_t r = 0; r < n_readers; r++)
        if (!shard_end_variable(c, readers[r])) must |= 1u << shard_state_index(set, shard_end_state(c, readers[r], 0));
    for (uint32_t mask = 1; mask < 1u << set->count; mask++)
        if ((mask & must) == must) list[n++] = mask;
    uint32_t held = n > 1 ? shard_search_variable(c->search, n, (uint32_t)c->axis) + 1 : 0;
    for (size_t r = 0; held && r < n_readers; r++) {
        if (!shard_end_variable(c, readers[r])) continue;
        uint32_t m = shard_end_count(c, readers[r]);
        double *needs = dtm_arena_alloc(c->s->arena, (size_t)n * m * sizeof *needs);
        for (uint32_t k = 0; k < n; k++)
            for (uint32_t j = 0; j < m; j++)
                needs[k * m + j] = list[k] >> shard_state_index(set, shard_end_state(c, readers[r], j)) & 1 ? 0 : INFINITY;
        table t = {0};
        shard_table_over(&t, held, n);
        shard_table_over(&t, shard_end_variable(c, readers[r]), m);
        shard_table_add(c, SHARD_TIME, &t, needs);
    }
    *sets = list;
    *n_sets = n;
    return held;
}
