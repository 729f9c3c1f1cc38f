/* microbatch: brings the time axis to life. Up to here the microbatches of a step were an axis of the mesh like any
 * other; now what varies over them goes into a loop, what does not stays before it, and what is pending over them is
 * accumulated in the loop and complete after it, so that gradients are reduced once a step.
 *
 *     forward { weight w; x; h; loss.term : sum@dp.microbatch; loss = all_reduce(loss.term on dp.microbatch) }
 *     backward { w.d = all_reduce(w.d.term on dp.microbatch) }
 * becomes
 *     forward { weight w }
 *     microbatch microbatch = 4 {
 *         forward  { x; h; loss.term; loss.sum = accumulate(loss.term) }
 *         backward { w.d.sum = accumulate(w.d.term) }
 *     }
 *     forward  { loss = all_reduce(loss.sum on dp) }
 *     backward { w.d = all_reduce(w.d.sum on dp) }
 *
 * A whole-batch value that the loop itself reads (the count of a masked mean) is computed in a loop of its own before,
 * if it depends on inputs alone (microbatch_early.c); if it depends on weights, that is an error. */
#include "ir/fault.h"
#include "passes/microbatch.h"
#include "passes/passes.h"

#include <string.h>

static bool mentions_time(const microbatches *m, dtm_value value) {
    const dtm_type_data *type = dtm_value_type(m->module, value);
    return ((dtm_type_split_axes(type) | type->sum | type->max) & m->time) != 0;
}

static bool varies(const microbatches *m, const dtm_op_data *op) {
    for (uint32_t i = 0; i < op->n_operands; i++)
        if (mentions_time(m, op->operands[i])) return true;
    for (uint32_t i = 0; i < op->n_results; i++)
        if (mentions_time(m, op->results[i])) return true;
    return false;
}

/* ---- 1. reductions over time become accumulations ---- */

/* The operator that makes a gradient of the type that ranks send it in, where nothing else reads that. 0: none. */
static dtm_op narrowing(const microbatches *m, dtm_value value) {
    dtm_op def = dtm_value_get(m->module, value)->def;
    if (!def || dtm_op_get(m->module, def)->kind != DTM_OP_CAST || !dtm_enclosing(m->module, def, DTM_OP_BACKWARD)) return 0;
    const dtm_type_data *from = dtm_value_type(m->module, dtm_op_get(m->module, def)->operands[0]), *to = dtm_value_type(m->module, value);
    if (dtm_dtype_bytes((dtm_dtype)to->dtype) >= dtm_dtype_bytes((dtm_dtype)from->dtype)) return 0;
    return dtm_use_counts(m->module, m->scratch)[value] == 1 ? def : 0;
}

/* The block that a rank updates of a term which is pending over microbatches is cut out where the term is made, and not behind the loop: so
 * the block alone is accumulated; and before the term is narrowed for the ranks, as it is accumulated wide. */
static void cut_early(const microbatches *m, dtm_op cut) {
    dtm_module *module = m->module;
    dtm_value term = dtm_op_get(module, cut)->operands[0], block = dtm_op_get(module, cut)->results[0];
    dtm_op def = dtm_value_get(module, term)->def, narrow = narrowing(m, term);
    dtm_op_move(module, cut, dtm_op_get(module, def)->region, dtm_op_position(module, def) + !narrow);
    if (!narrow) return;
    dtm_value wide = dtm_op_get(module, narrow)->operands[0];
    dtm_type_data type = *dtm_value_type(module, block);
    dtm_replace_uses(module, block, term);
    dtm_op_get(module, cut)->operands[0] = wide;
    dtm_op_get(module, narrow)->operands[0] = block;
    module->values[term].type = module->values[block].type;
    type.dtype = dtm_value_type(module, wide)->dtype;
    module->values[block].type = dtm_type_intern(module, &type);
}

static void cut_terms_early(const microbatches *m) {
    dtm_op_list ops = dtm_ops_in_order(m->module, m->scratch);
    for (size_t i = 0; i < ops.count; i++) {
        const dtm_op_data *data = dtm_op_get(m->module, ops.items[i]);
        if (data->kind != DTM_OP_SHARD || !dtm_enclosing(m->module, ops.items[i], DTM_OP_UPDATE)) continue;
        const dtm_type_data *type = dtm_value_type(m->module, data->operands[0]);
        if ((type->sum | type->max) & m->time && dtm_value_get(m->module, data->operands[0])->def) cut_early(m, ops.items[i]);
    }
}

/* Microbatches add up in f32 what ranks add up in less: the sum is narrowed, not each part of it. */
static dtm_value accumulate_wide(microbatches *m, dtm_op narrow) {
    dtm_module *module = m->module;
    dtm_value wide = dtm_op_get(module, narrow)->operands[0], value = dtm_result(module, narrow, 0);
    dtm_builder builder = dtm_builder_before(module, narrow);
    builder.why = dtm_string_of(module->context, "a sum over microbatches is complete after the last");
    dtm_type_data type = *dtm_value_type(module, wide);
    type.sum &= (uint16_t)~m->time;
    dtm_type made = dtm_type_intern(module, &type);
    const char *name = dtm_arena_printf(m->scratch, "%s.sum", dtm_value_name(module, wide));
    dtm_op accumulate = dtm_build_op(&builder, DTM_OP_ACCUMULATE, &wide, 1, NULL, &made, 1, name);
    dtm_op_get(module, narrow)->operands[0] = dtm_result(module, accumulate, 0);
    type.dtype = dtm_value_type(module, value)->dtype;
    module->values[value].type = dtm_type_intern(module, &type);
    return value;
}

/* The accumulation stands where the term is made; the rest of the reduction stays where it was. */
static void accumulate_term(microbatches *m, dtm_op op) {
    dtm_module *module = m->module;
    dtm_value term = dtm_op_get(module, op)->operands[0], result = dtm_op_get(module, op)->results[0];
    dtm_op narrow = dtm_fault(135) ? 0 : narrowing(m, term);
    if (narrow) {
        accumulate_wide(m, narrow);
        if (dtm_op_get(module, op)->attributes.axes & ~m->time) {
            dtm_op_get(module, op)->attributes.axes &= (uint16_t)~m->time;
            return;
        }
        dtm_replace_uses(module, result, term);
        dtm_op_remove(module, op);
        return;
    }
    dtm_type_data type = *dtm_value_type(module, term);
    type.sum &= (uint16_t)~m->time;
    type.max &= (uint16_t)~m->time;
    dtm_type made = dtm_type_intern(module, &type);
    dtm_builder builder = dtm_builder_after(module, dtm_value_get(module, term)->def);
    builder.why = dtm_string_of(module->context, "a sum over microbatches is complete after the last");
    bool sent = dtm_op_get(module, op)->attributes.axes & ~m->time;
    const char *name = dtm_arena_printf(m->scratch, "%s.sum", dtm_value_name(module, result));
    dtm_op accumulate = dtm_build_op(&builder, DTM_OP_ACCUMULATE, &term, 1, NULL, &made, 1, name);
    dtm_value sum = dtm_result(module, accumulate, 0);
    if (sent) {
        dtm_op_get(module, op)->attributes.axes &= (uint16_t)~m->time;
        dtm_op_get(module, op)->operands[0] = sum;
        return;
    }
    dtm_string taken = module->values[result].name;
    module->values[result].name = module->values[sum].name;
    module->values[sum].name = taken;
    dtm_replace_uses(module, result, sum);
    dtm_op_remove(module, op);
}

/* As the program has them: `microbatches M`, of a pipeline its setting, or both. */
static void help_without(const microbatches *m) {
    const dtm_settings *settings = &m->module->settings;
    const dtm_pipeline_rule *pipeline = &settings->pipeline;
    dtm_context *context = m->module->context;
    if (!pipeline->present)
        dtm_help(context, "remove `microbatches %lld`, or reduce the value over the batch", (long long)m->count);
    else if (pipeline->rounds > 1)
        dtm_help(context, "remove `microbatches %lld` and set `microbatches = 1` in the pipeline, or reduce the value over the batch",
                 (long long)pipeline->rounds);
    else dtm_help(context, "set `microbatches = 1` in the pipeline, or reduce the value over the batch");
}

static void rewrite_reductions(microbatches *m, dtm_region region) {
    for (size_t i = 0; i < m->module->regions[region].n_ops; i++) {
        dtm_op op = m->module->regions[region].ops[i];
        const dtm_op_data *data = dtm_op_get(m->module, op);
        if (data->body)
            rewrite_reductions(m, data->body);
        else if (data->kind == DTM_OP_ALL_REDUCE && data->attributes.axes & m->time) {
            accumulate_term(m, op);
            i = 0; /* the region has changed; reductions done are no longer over time */
        } else if (data->kind > DTM_OP_AS_TERM && data->attributes.axes & m->time) {
            m->good = false;
            dtm_error(
                m->module->context, data->span, 411,
                "%s would need its microbatches side by side (%s over the microbatches), which no loop over them has",
                dtm_value_name(m->module, data->operands[0]), dtm_op_rows[data->kind].name);
            help_without(m);
        }
    }
}

/* ---- 2. which operator goes where ---- */

static microbatch_phase value_phase(const microbatches *m, dtm_value value) {
    dtm_op def = dtm_value_get(m->module, value)->def;
    if (!def) return PHASE_BEFORE;
    if (dtm_op_get(m->module, def)->kind == DTM_OP_ACCUMULATE) return PHASE_AFTER;
    return m->phases[def];
}

typedef struct classifier {
    microbatches *m;
    bool changed; /* a carried value follows its successor, which stands after it */
} classifier;

static void classify(dtm_module *module, dtm_op op, void *state) {
    classifier *c = state;
    const dtm_op_data *data = dtm_op_get(module, op);
    if (data->body) return;
    microbatch_phase is = dtm_enclosing(module, op, DTM_OP_UPDATE) ? PHASE_AFTER : PHASE_BEFORE;
    for (uint32_t i = 0; i < data->n_operands; i++)
        if (value_phase(c->m, data->operands[i]) == PHASE_AFTER) is = PHASE_AFTER;
    if (varies(c->m, data)) is = PHASE_LOOP;
    c->changed |= is != c->m->phases[op];
    c->m->phases[op] = is;
}

/* ---- 3. the regions, once for each phase that has something in them ---- */

/* Whether an operator is emitted with a phase and, for what stands between early loops, a level. */
static bool goes_with(const microbatches *m, dtm_op op, microbatch_phase phase, uint32_t level) {
    return m->phases[op] == phase && (phase != PHASE_BETWEEN || m->levels[op] == level);
}

static bool has_phase(const microbatches *m, dtm_region region, microbatch_phase phase, uint32_t level) {
    const dtm_region_data *data = &m->module->regions[region];
    for (size_t i = 0; i < data->n_ops; i++) {
        dtm_region body = dtm_op_get(m->module, data->ops[i])->body;
        if (body ? has_phase(m, body, phase, level) : goes_with(m, data->ops[i], phase, level)) return true;
    }
    return false;
}

static void move(microbatches *m, dtm_region from, dtm_region to, microbatch_phase phase, uint32_t level) {
    dtm_module *module = m->module;
    for (size_t i = 0; i < module->regions[from].n_ops;) {
        dtm_op op = module->regions[from].ops[i];
        dtm_op_data data = *dtm_op_get(module, op);
        if (!data.body && goes_with(m, op, phase, level)) {
            dtm_op_move(module, op, to, -1);
            continue;
        }
        i++;
        if (!data.body || !has_phase(m, data.body, phase, level)) continue;
        dtm_builder builder = {module, to, -1, data.span, data.place, data.why};
        dtm_op copy = dtm_build_region(&builder, data.kind, &data.attributes);
        move(m, data.body, dtm_op_get(module, copy)->body, phase, level);
    }
}

/* Forward, backward and update, as far as they have something of the phase, at the end of `to`. */
static void emit(microbatches *m, const dtm_op *tops, size_t n_tops, dtm_region to, microbatch_phase phase, uint32_t level) {
    for (size_t i = 0; i < n_tops; i++) {
        dtm_region body = dtm_op_get(m->module, tops[i])->body;
        if (!has_phase(m, body, phase, level)) continue;
        dtm_builder builder = dtm_builder_at_end(m->module, to);
        dtm_op region = dtm_build_region(&builder, dtm_op_get(m->module, tops[i])->kind, NULL);
        move(m, body, dtm_op_get(m->module, region)->body, phase, level);
    }
}

/* The body of a new loop over the microbatches. */
static dtm_region begin_loop(microbatches *m, dtm_string name) {
    dtm_builder builder = dtm_builder_at_end(m->module, m->module->body);
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_MICROBATCH);
    attributes.name = name;
    attributes.copies = m->count;
    return dtm_op_get(m->module, dtm_build_region(&builder, DTM_OP_MICROBATCH, &attributes))->body;
}

static dtm_string early_name(const microbatches *m, uint32_t level) {
    const char *name = dtm_string_text(m->module->context, m->loop_name);
    if (level == 1) return dtm_string_printf(m->module->context, "%s_first", name);
    return dtm_string_printf(m->module->context, "%s_first_%u", name, level);
}

static void rebuild(microbatches *m) {
    dtm_module *module = m->module;
    dtm_region_data *body = &module->regions[module->body];
    dtm_op tops[8] = {0};
    size_t n_tops = 0;
    for (size_t i = 0; i < body->n_ops && n_tops < 8; i++) tops[n_tops++] = body->ops[i];
    body->n_ops = 0;
    emit(m, tops, n_tops, module->body, PHASE_BEFORE, 0);
    for (uint32_t level = 1; level <= m->n_levels; level++) {
        microbatch_fill_early(m, level, begin_loop(m, early_name(m, level)), tops, n_tops);
        emit(m, tops, n_tops, module->body, PHASE_BETWEEN, level);
    }
    microbatch_remove_copied(m);
    emit(m, tops, n_tops, begin_loop(m, m->loop_name), PHASE_LOOP, 0);
    emit(m, tops, n_tops, module->body, PHASE_AFTER, 0);
    for (size_t i = 0; i < n_tops; i++) dtm_op_get(module, tops[i])->region = 0;
}

/* ---- one microbatch ---- */

static bool is_sink(dtm_op_kind kind) {
    return kind == DTM_OP_REPORT || kind == DTM_OP_OUTPUT || kind == DTM_OP_GRADIENT || kind == DTM_OP_STORE;
}

/* What depends on inputs is of the microbatch; sinks and the update come after it. */
static void classify_whole(dtm_module *module, dtm_op op, void *state) {
    classifier *c = state;
    const dtm_op_data *data = dtm_op_get(module, op);
    if (data->body) return;
    microbatch_phase is = data->kind == DTM_OP_INPUT ? PHASE_LOOP : PHASE_BEFORE;
    bool after = is_sink(data->kind) || dtm_enclosing(module, op, DTM_OP_UPDATE) || c->m->narrows[op];
    for (uint32_t i = 0; i < data->n_operands; i++) {
        after |= value_phase(c->m, data->operands[i]) == PHASE_AFTER;
        if (value_phase(c->m, data->operands[i]) == PHASE_LOOP) is = PHASE_LOOP;
    }
    if (after) is = PHASE_AFTER;
    c->changed |= is != c->m->phases[op];
    c->m->phases[op] = is;
}

/* The value after the loop. */
static dtm_value complete(microbatches *m, dtm_value value, dtm_value *completed) {
    if (completed[value]) return completed[value];
    dtm_builder builder = dtm_builder_after(m->module, dtm_value_get(m->module, value)->def);
    dtm_type type = dtm_value_get(m->module, value)->type;
    const char *name = dtm_arena_printf(m->scratch, "%s.sum", dtm_value_name(m->module, value));
    dtm_op made = dtm_build_op(&builder, DTM_OP_ACCUMULATE, &value, 1, NULL, &type, 1, name);
    return completed[value] = dtm_result(m->module, made, 0);
}

/* What makes gradients of the type that ranks send them in does so after the loop: in it a weight's gradient may be a sum of what
 * several stages make. */
static void find_narrowings(microbatches *m) {
    dtm_module *module = m->module;
    m->narrows = dtm_arena_alloc(m->scratch, m->n_ops * sizeof *m->narrows);
    if (module->settings.train.reduce == DTM_F32) return;
    for (dtm_op op = 1; op < m->n_ops; op++) {
        const dtm_op_data *data = dtm_op_get(module, op);
        if (data->region && data->kind == DTM_OP_CAST) m->narrows[op] = narrowing(m, data->results[0]) != 0;
    }
}

/* A pipeline of one microbatch has a loop over it like any other. */
static void loop_once(microbatches *m) {
    dtm_module *module = m->module;
    size_t n_values = module->n_values;
    find_narrowings(m);
    for (classifier c = {m, true}; c.changed;) {
        c.changed = false;
        dtm_walk(module, classify_whole, &c);
    }
    dtm_value *completed = dtm_arena_alloc(m->scratch, n_values * sizeof *completed);
    size_t n_ops = m->n_ops;
    microbatch_phase *phases = m->phases;
    for (dtm_op op = 1; op < n_ops; op++) {
        if (!dtm_op_get(module, op)->region || dtm_op_get(module, op)->body || phases[op] != PHASE_AFTER) continue;
        for (uint32_t i = 0; i < dtm_op_get(module, op)->n_operands; i++) {
            dtm_value value = dtm_op_get(module, op)->operands[i];
            if (value >= n_values || value_phase(m, value) != PHASE_LOOP) continue;
            dtm_value sum = complete(m, value, completed);
            dtm_op_get(module, op)->operands[i] = sum;
        }
    }
    m->n_ops = module->n_ops;
    m->phases = dtm_arena_alloc(m->scratch, m->n_ops * sizeof *m->phases);
    memcpy(m->phases, phases, n_ops * sizeof *phases);
    for (size_t op = n_ops; op < m->n_ops; op++) m->phases[op] = PHASE_LOOP;
    m->levels = dtm_arena_alloc(m->scratch, m->n_ops * sizeof *m->levels);
    rebuild(m);
}

bool dtm_pass_microbatch(dtm_module *module) {
    const dtm_mesh *mesh = &module->settings.mesh;
    microbatches m = {.module = module, .good = true};
    for (int a = 0; a < mesh->count; a++)
        if (mesh->axes[a].time && mesh->axes[a].size > 1) {
            m.time = (uint16_t)(1 << a);
            m.count = mesh->axes[a].size;
            m.loop_name = mesh->axes[a].name;
        }
    module->after = dtm_string_of(module->context, "microbatch");
    if (!m.time && !module->settings.pipeline.present) return true;
    m.scratch = dtm_arena_create();
    if (m.time) cut_terms_early(&m), rewrite_reductions(&m, module->body);
    m.n_ops = module->n_ops;
    m.phases = dtm_arena_alloc(m.scratch, m.n_ops * sizeof *m.phases);
    m.levels = dtm_arena_alloc(m.scratch, m.n_ops * sizeof *m.levels);
    m.weighted = dtm_arena_alloc(m.scratch, m.n_ops * sizeof *m.weighted);
    if (!m.time) {
        m.count = 1;
        m.loop_name = dtm_string_of(module->context, "microbatch");
        loop_once(&m);
        dtm_arena_destroy(m.scratch);
        return true;
    }
    for (classifier c = {&m, m.good}; c.changed;) {
        c.changed = false;
        dtm_walk(module, classify, &c);
    }
    if (m.good) microbatch_find_early(&m);
    if (m.good) rebuild(&m);
    dtm_arena_destroy(m.scratch);
    return m.good;
}
