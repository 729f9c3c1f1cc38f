/* Sums over the whole batch that the microbatches themselves read: the count of a masked mean, the maximum of a softmax over
 * the batch. What depends on inputs alone is computed before the first microbatch, in loops of its own:
 *
 *     microbatch microbatch = 4 { forward { ge; count.term = sum(ge over B, S); count = accumulate(count.term); .. count .. } }
 * becomes
 *     microbatch microbatch_first = 4 { forward { ge.first; count.term.first = sum(ge.first over B, S)
 *                                                 count = accumulate(count.term.first) } }
 *     microbatch microbatch = 4 { forward { ge; .. count .. } }
 *
 * A sum that needs another such sum has a loop after that one's: the loops are numbered by level. Weights end it: what they
 * have a part in would need the forward pass twice. */
#include "passes/microbatch.h"

#include <string.h>

static const dtm_op_data *get(const microbatches *m, dtm_op op) { return dtm_op_get(m->module, op); }
static dtm_op def_of(const microbatches *m, dtm_value value) { return dtm_value_get(m->module, value)->def; }

/* ---- levels ---- */

typedef struct leveller {
    microbatches *m;
    bool changed;
} leveller;

static void raise_level(dtm_module *module, dtm_op op, void *state) {
    leveller *l = state;
    microbatches *m = l->m;
    const dtm_op_data *data = dtm_op_get(module, op);
    if (data->body) return;
    bool weighted = data->kind == DTM_OP_WEIGHT || data->kind == DTM_OP_STATE;
    uint32_t level = weighted ? m->never : 0;
    for (uint32_t i = 0; i < data->n_operands; i++) {
        dtm_op def = def_of(m, data->operands[i]);
        if (def && m->levels[def] > level) level = m->levels[def];
        weighted |= def && m->weighted[def];
    }
    if (data->kind == DTM_OP_ACCUMULATE && level < m->never) level++;
    l->changed |= level != m->levels[op] || weighted != m->weighted[op];
    m->levels[op] = level;
    m->weighted[op] = weighted;
}

/* A sum that by way of a carried value needs itself climbs until it is at `never`. */
static void find_levels(microbatches *m) {
    m->never = 1;
    for (dtm_op op = 1; op < m->n_ops; op++)
        if (get(m, op)->region && get(m, op)->kind == DTM_OP_ACCUMULATE) m->never++;
    leveller l = {m, true};
    while (l.changed) {
        l.changed = false;
        dtm_walk(m->module, raise_level, &l);
    }
}

/* ---- what must be there before the loop ---- */

static void refuse(microbatches *m, dtm_op accumulate, dtm_op reader) {
    dtm_context *context = m->module->context;
    const dtm_op_data *data = get(m, accumulate), *reads = get(m, reader);
    m->good = false;
    const char *on = m->weighted[accumulate] ? "weights" : "itself in the copy before";
    dtm_error(context, reads->span, 410,
              "`%s` reads %s, a sum over the whole batch that depends on %s, before the %lld microbatches have ended",
              dtm_op_rows[reads->kind].name, dtm_value_name(m->module, data->results[0]), on, (long long)m->count);
    dtm_note(context, data->span, "%s is summed here", dtm_value_name(m->module, data->operands[0]));
    dtm_help(context, "remove `microbatches %lld`", (long long)m->count);
}

static void need(microbatches *m, dtm_value value, dtm_op reader);

static void copy_into(microbatches *m, dtm_value value, uint32_t level, dtm_op reader) {
    dtm_op def = def_of(m, value);
    if (!def || m->phases[def] != PHASE_LOOP || get(m, def)->kind == DTM_OP_ACCUMULATE) {
        need(m, value, reader);
        return;
    }
    if (m->copied[level][def]) return;
    m->copied[level][def] = true;
    for (uint32_t i = 0; i < get(m, def)->n_operands; i++) copy_into(m, get(m, def)->operands[i], level, reader);
}

/* A value that is complete only after microbatches is wanted before the loop. */
static void need(microbatches *m, dtm_value value, dtm_op reader) {
    dtm_op def = def_of(m, value);
    if (!def || !m->good) return;
    bool sum = get(m, def)->kind == DTM_OP_ACCUMULATE;
    if (m->phases[def] != PHASE_AFTER && !(sum && m->phases[def] == PHASE_LOOP)) return;
    if (sum && m->levels[def] >= m->never) {
        refuse(m, def, reader);
        return;
    }
    m->phases[def] = sum ? PHASE_EARLY : PHASE_BETWEEN;
    if (sum && m->levels[def] > m->n_levels) m->n_levels = m->levels[def];
    for (uint32_t i = 0; i < get(m, def)->n_operands; i++)
        if (sum) copy_into(m, get(m, def)->operands[i], m->levels[def], reader);
        else need(m, get(m, def)->operands[i], reader);
}

/* What stands between early loops comes after the last of those whose sums it needs. A weight or a state that it has a part in is there
 * before all of them. */
static void raise_between(dtm_module *module, dtm_op op, void *state) {
    leveller *l = state;
    microbatches *m = l->m;
    const dtm_op_data *data = dtm_op_get(module, op);
    if (data->body || m->phases[op] != PHASE_BETWEEN) return;
    for (uint32_t i = 0; i < data->n_operands; i++) {
        dtm_op def = def_of(m, data->operands[i]);
        if (!def || (m->phases[def] != PHASE_BETWEEN && m->phases[def] != PHASE_EARLY) || m->levels[def] <= m->levels[op]) continue;
        m->levels[op] = m->levels[def];
        l->changed = true;
    }
}

static void level_between(microbatches *m) {
    for (dtm_op op = 1; op < m->n_ops; op++)
        if (m->phases[op] == PHASE_BETWEEN) m->levels[op] = 0;
    leveller l = {m, true};
    while (l.changed) {
        l.changed = false;
        dtm_walk(m->module, raise_between, &l);
    }
}

void microbatch_find_early(microbatches *m) {
    find_levels(m);
    m->copied = dtm_arena_alloc(m->scratch, (m->never + 1) * sizeof *m->copied);
    for (uint32_t level = 1; level < m->never; level++) m->copied[level] = dtm_arena_alloc(m->scratch, m->n_ops);
    for (dtm_op op = 1; op < m->n_ops; op++) {
        if (!get(m, op)->region || get(m, op)->body || m->phases[op] != PHASE_LOOP) continue;
        for (uint32_t i = 0; i < get(m, op)->n_operands && m->good; i++) need(m, get(m, op)->operands[i], op);
    }
    level_between(m);
}

/* ---- an early loop ---- */

typedef struct filler {
    microbatches *m;
    uint32_t level;
    dtm_value *copies; /* by value: its copy */
    dtm_op *placed;    /* copies, and sums that were moved */
    size_t count, capacity, n_values;
} filler;

static bool is_in(const filler *f, dtm_op op) {
    const microbatches *m = f->m;
    return op < m->n_ops && (m->copied[f->level][op] || (m->phases[op] == PHASE_EARLY && m->levels[op] == f->level));
}

static bool has_any(const filler *f, dtm_region region) {
    const dtm_region_data *data = &f->m->module->regions[region];
    for (size_t i = 0; i < data->n_ops; i++) {
        dtm_region body = get(f->m, data->ops[i])->body;
        if (body ? has_any(f, body) : is_in(f, data->ops[i])) return true;
    }
    return false;
}

static void place(filler *f, dtm_op op) { DTM_PUSH(f->m->scratch, f->placed, f->count, f->capacity, op); }

static void copy_op(filler *f, dtm_op op, dtm_region to) {
    dtm_module *module = f->m->module;
    dtm_op_data data = *dtm_op_get(module, op);
    dtm_type *types = dtm_arena_alloc(f->m->scratch, (data.n_results + 1) * sizeof *types);
    for (uint32_t i = 0; i < data.n_results; i++) types[i] = dtm_value_get(module, data.results[i])->type;
    dtm_builder builder = {module, to, -1, data.span, data.place, 0};
    builder.why = dtm_string_of(module->context, "of inputs alone: computed for the whole batch before the first microbatch");
    const char *name = dtm_arena_printf(f->m->scratch, "%s.first", dtm_value_name(module, data.results[0]));
    dtm_op copy =
        dtm_build_op(&builder, data.kind, data.operands, data.n_operands, &data.attributes, types, data.n_results, name);
    for (uint32_t i = 0; i < data.n_results; i++) f->copies[data.results[i]] = dtm_result(module, copy, i);
    place(f, copy);
}

static void fill(filler *f, dtm_region from, dtm_region to) {
    dtm_module *module = f->m->module;
    for (size_t i = 0; i < module->regions[from].n_ops;) {
        dtm_op op = module->regions[from].ops[i];
        dtm_op_data data = *dtm_op_get(module, op);
        if (data.body && has_any(f, data.body)) {
            dtm_builder builder = {module, to, -1, data.span, data.place, data.why};
            dtm_op region = dtm_build_region(&builder, data.kind, &data.attributes);
            fill(f, data.body, dtm_op_get(module, region)->body);
        } else if (!data.body && is_in(f, op)) {
            if (data.kind == DTM_OP_ACCUMULATE) {
                dtm_op_move(module, op, to, -1);
                place(f, op);
                continue; /* the next is in its place now */
            }
            copy_op(f, op, to);
        }
        i++;
    }
}

void microbatch_fill_early(microbatches *m, uint32_t level, dtm_region loop, const dtm_op *tops, size_t n_tops) {
    filler f = {.m = m, .level = level, .n_values = m->module->n_values};
    f.copies = dtm_arena_alloc(m->scratch, f.n_values * sizeof *f.copies);
    for (size_t i = 0; i < n_tops; i++) {
        if (!has_any(&f, get(m, tops[i])->body)) continue;
        dtm_builder builder = dtm_builder_at_end(m->module, loop);
        dtm_op region = dtm_build_region(&builder, get(m, tops[i])->kind, NULL);
        fill(&f, get(m, tops[i])->body, dtm_op_get(m->module, region)->body);
    }
    /* Only now, as a carried value's copy stands before that of its successor. */
    for (size_t i = 0; i < f.count; i++) {
        dtm_op_data *data = dtm_op_get(m->module, f.placed[i]);
        for (uint32_t k = 0; k < data->n_operands; k++)
            if (data->operands[k] < f.n_values && f.copies[data->operands[k]])
                data->operands[k] = f.copies[data->operands[k]];
    }
}

/* ---- what is left over ---- */

static bool was_copied(const microbatches *m, dtm_op op) {
    for (uint32_t level = 1; op < m->n_ops && level <= m->n_levels; level++)
        if (m->copied[level][op]) return true;
    return false;
}

static void mark(const microbatches *m, dtm_op op, bool *live) {
    if (!op || live[op]) return;
    live[op] = true;
    for (uint32_t i = 0; i < get(m, op)->n_operands; i++) mark(m, def_of(m, get(m, op)->operands[i]), live);
}

void microbatch_remove_copied(microbatches *m) {
    bool *live = dtm_arena_alloc(m->scratch, m->module->n_ops);
    for (dtm_op op = 1; op < m->module->n_ops; op++)
        if (get(m, op)->region && !was_copied(m, op)) mark(m, op, live);
    for (dtm_op op = 1; op < m->n_ops; op++)
        if (get(m, op)->region && !live[op]) dtm_op_remove(m->module, op);
}
