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
 * if it depends on inputs alone; if it depends on weights, that is an error. */
#include "passes/passes.h"

#include <string.h>

typedef enum phase { UNKNOWN, BEFORE, EARLY, BETWEEN, LOOP, AFTER } phase;

typedef struct splitter {
    dtm_module *module;
    dtm_arena *scratch;
    uint16_t time; /* bit of the time axis */
    int64_t count;
    dtm_string loop_name;
    phase *phases;         /* by operator */
    dtm_value *early_copy; /* by value: its copy in the early loop */
    dtm_region early;      /* body of the early loop's forward region; 0: not made yet */
    dtm_op early_loop;
    bool good;
} splitter;

static bool mentions_time(const splitter *s, dtm_value value) {
    const dtm_type_data *type = dtm_value_type(s->module, value);
    return ((dtm_type_split_axes(type) | type->sum | type->max) & s->time) != 0;
}

static bool varies(const splitter *s, const dtm_op_data *op) {
    for (uint32_t i = 0; i < op->n_operands; i++)
        if (mentions_time(s, op->operands[i])) return true;
    for (uint32_t i = 0; i < op->n_results; i++)
        if (mentions_time(s, op->results[i])) return true;
    return false;
}

/* ---- 1. reductions over time become accumulations ---- */

/* The accumulation stands where the term is made; the rest of the reduction stays where it was. */
static void accumulate_term(splitter *s, dtm_op op) {
    dtm_module *module = s->module;
    dtm_value term = dtm_op_get(module, op)->operands[0], result = dtm_op_get(module, op)->results[0];
    dtm_type_data type = *dtm_value_type(module, term);
    type.sum &= (uint16_t)~s->time;
    type.max &= (uint16_t)~s->time;
    dtm_type made = dtm_type_intern(module, &type);
    dtm_builder builder = dtm_builder_after(module, dtm_value_get(module, term)->def);
    builder.why = dtm_string_of(module->context, "a sum over microbatches is complete after the last");
    bool sent = dtm_op_get(module, op)->attributes.axes & ~s->time;
    const char *name =
        sent ? dtm_arena_printf(s->scratch, "%s.sum", dtm_value_name(module, result)) : dtm_value_name(module, result);
    if (!sent) dtm_value_rename(module, result, dtm_arena_printf(s->scratch, "%s.replaced", name));
    dtm_op accumulate = dtm_build_op(&builder, DTM_OP_ACCUMULATE, &term, 1, NULL, &made, 1, name);
    dtm_value sum = dtm_result(module, accumulate, 0);
    if (sent) {
        dtm_op_get(module, op)->attributes.axes &= (uint16_t)~s->time;
        dtm_op_get(module, op)->operands[0] = sum;
        return;
    }
    dtm_replace_uses(module, result, sum);
    dtm_op_remove(module, op);
}

static void rewrite_reductions(splitter *s, dtm_region region) {
    for (size_t i = 0; i < s->module->regions[region].n_ops; i++) {
        dtm_op op = s->module->regions[region].ops[i];
        const dtm_op_data *data = dtm_op_get(s->module, op);
        if (data->body)
            rewrite_reductions(s, data->body);
        else if (data->kind == DTM_OP_ALL_REDUCE && data->attributes.axes & s->time) {
            accumulate_term(s, op);
            i = 0; /* the region has changed; reductions done are no longer over time */
        } else if (data->kind > DTM_OP_AS_TERM && data->attributes.axes & s->time) {
            s->good = false;
            dtm_error(
                s->module->context, data->span, 411,
                "%s would need its microbatches side by side (%s over the microbatches), which no loop over them has",
                dtm_value_name(s->module, data->operands[0]), dtm_op_rows[data->kind].name);
            dtm_help(s->module->context, "remove `microbatches %lld`, or reduce the value over the batch",
                     (long long)s->count);
        }
    }
}

/* ---- 2. which operator goes where ---- */

static phase value_phase(const splitter *s, dtm_value value) {
    dtm_op def = dtm_value_get(s->module, value)->def;
    if (!def) return BEFORE;
    if (dtm_op_get(s->module, def)->kind == DTM_OP_ACCUMULATE) return AFTER;
    return s->phases[def];
}

static void classify(dtm_module *module, dtm_op op, void *state) {
    splitter *s = state;
    const dtm_op_data *data = dtm_op_get(module, op);
    if (data->body) return;
    phase is = dtm_enclosing(module, op, DTM_OP_UPDATE) ? AFTER : BEFORE;
    if (varies(s, data))
        is = LOOP;
    else
        for (uint32_t i = 0; i < data->n_operands; i++) {
            phase operand = value_phase(s, data->operands[i]);
            if (operand > is) is = operand;
        }
    s->phases[op] = is;
}

/* ---- 3. whole-batch values that the loop reads ---- */

static void refuse(splitter *s, dtm_op accumulate, dtm_op reader) {
    const dtm_op_data *data = dtm_op_get(s->module, accumulate), *reads = dtm_op_get(s->module, reader);
    s->good = false;
    dtm_error(
        s->module->context, reads->span, 410,
        "`%s` reads %s, a sum over the whole batch that depends on weights, before the %lld microbatches have ended",
        dtm_op_rows[reads->kind].name, dtm_value_name(s->module, data->results[0]), (long long)s->count);
    dtm_note(s->module->context, data->span, "%s is summed here", dtm_value_name(s->module, data->operands[0]));
    dtm_help(s->module->context, "remove `microbatches %lld`", (long long)s->count);
}

static void make_early_loop(splitter *s) {
    if (s->early) return;
    dtm_builder builder = dtm_builder_at_end(s->module, s->module->body);
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_MICROBATCH);
    attributes.name =
        dtm_string_printf(s->module->context, "%s_first", dtm_string_text(s->module->context, s->loop_name));
    attributes.copies = s->count;
    s->early_loop = dtm_build_region(&builder, DTM_OP_MICROBATCH, &attributes);
    builder = dtm_builder_at_end(s->module, dtm_op_get(s->module, s->early_loop)->body);
    dtm_op forward = dtm_build_region(&builder, DTM_OP_FORWARD, NULL);
    s->early = dtm_op_get(s->module, forward)->body;
}

/* The value as the early loop has it: a copy of its operator there, of inputs alone. 0: it needs a weight or a repeat.
 */
static dtm_value copy_early(splitter *s, dtm_value value) {
    dtm_module *module = s->module;
    dtm_op def = dtm_value_get(module, value)->def;
    if (!def) return value;
    if (s->early_copy[value]) return s->early_copy[value];
    dtm_op_data data = *dtm_op_get(module, def);
    if (data.kind == DTM_OP_WEIGHT || data.kind == DTM_OP_STATE || dtm_enclosing(module, def, DTM_OP_REPEAT)) return 0;
    if (!varies(s, &data)) return value;
    dtm_value operands[8];
    if (data.n_operands > 8) return 0;
    for (uint32_t i = 0; i < data.n_operands; i++)
        if (!(operands[i] = copy_early(s, data.operands[i]))) return 0;
    make_early_loop(s);
    dtm_type types[4];
    for (uint32_t i = 0; i < data.n_results; i++) types[i] = dtm_value_get(module, data.results[i])->type;
    dtm_builder builder = {module, s->early, -1, data.span, data.place, 0};
    builder.why =
        dtm_string_of(module->context, "of inputs alone: computed for the whole batch before the first microbatch");
    const char *name = dtm_arena_printf(s->scratch, "%s.first", dtm_value_name(module, data.results[0]));
    dtm_op copy =
        dtm_build_op(&builder, data.kind, operands, data.n_operands, &data.attributes, types, data.n_results, name);
    for (uint32_t i = 0; i < data.n_results; i++) s->early_copy[data.results[i]] = dtm_result(module, copy, i);
    return s->early_copy[value];
}

static void bring_forward(splitter *s, dtm_value value, dtm_op reader) {
    dtm_op def = dtm_value_get(s->module, value)->def;
    if (!def || s->phases[def] == BETWEEN) return;
    dtm_op_data data = *dtm_op_get(s->module, def);
    if (data.kind != DTM_OP_ACCUMULATE) {
        s->phases[def] = BETWEEN;
        for (uint32_t i = 0; i < data.n_operands; i++)
            if (value_phase(s, data.operands[i]) == AFTER) bring_forward(s, data.operands[i], reader);
        return;
    }
    if (s->phases[def] == EARLY) return;
    dtm_value term = dtm_enclosing(s->module, def, DTM_OP_REPEAT) ? 0 : copy_early(s, data.operands[0]);
    if (!term) {
        refuse(s, def, reader);
        return;
    }
    s->phases[def] = EARLY;
    dtm_op_get(s->module, def)->operands[0] = term;
}

static void find_early(splitter *s) {
    size_t n_ops = s->module->n_ops; /* copies made on the way are not looked at */
    for (dtm_op op = 1; op < n_ops && s->good; op++) {
        if (!dtm_op_get(s->module, op)->region || s->phases[op] != LOOP) continue;
        for (uint32_t i = 0; i < dtm_op_get(s->module, op)->n_operands && s->good; i++) {
            dtm_value operand = dtm_op_get(s->module, op)->operands[i];
            if (value_phase(s, operand) == AFTER) bring_forward(s, operand, op);
        }
    }
}

/* ---- 4. the regions, once for each phase that has something in them ---- */

static bool has_phase(const splitter *s, dtm_region region, phase wanted) {
    const dtm_region_data *data = &s->module->regions[region];
    for (size_t i = 0; i < data->n_ops; i++) {
        dtm_region body = dtm_op_get(s->module, data->ops[i])->body;
        if (body ? has_phase(s, body, wanted) : s->phases[data->ops[i]] == wanted) return true;
    }
    return false;
}

static void emit(splitter *s, dtm_region from, dtm_region to, phase wanted) {
    dtm_module *module = s->module;
    for (size_t i = 0; i < module->regions[from].n_ops;) {
        dtm_op op = module->regions[from].ops[i];
        dtm_op_data data = *dtm_op_get(module, op);
        if (!data.body && s->phases[op] == wanted) {
            dtm_op_move(module, op, to, -1);
            continue;
        }
        i++;
        if (!data.body || !has_phase(s, data.body, wanted)) continue;
        dtm_builder builder = {module, to, -1, data.span, data.place, data.why};
        dtm_op copy = dtm_build_region(&builder, data.kind, &data.attributes);
        emit(s, data.body, dtm_op_get(module, copy)->body, wanted);
    }
}

static void emit_loop(splitter *s, const dtm_op *tops, size_t n_tops) {
    dtm_builder builder = dtm_builder_at_end(s->module, s->module->body);
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_MICROBATCH);
    attributes.name = s->loop_name;
    attributes.copies = s->count;
    dtm_op loop = dtm_build_region(&builder, DTM_OP_MICROBATCH, &attributes);
    dtm_region body = dtm_op_get(s->module, loop)->body;
    for (size_t i = 0; i < n_tops; i++) {
        if (!has_phase(s, dtm_op_get(s->module, tops[i])->body, LOOP)) continue;
        builder = dtm_builder_at_end(s->module, body);
        dtm_op region = dtm_build_region(&builder, dtm_op_get(s->module, tops[i])->kind, NULL);
        emit(s, dtm_op_get(s->module, tops[i])->body, dtm_op_get(s->module, region)->body, LOOP);
    }
}

static void emit_outside(splitter *s, const dtm_op *tops, size_t n_tops, phase wanted) {
    for (size_t i = 0; i < n_tops; i++) {
        dtm_region body = dtm_op_get(s->module, tops[i])->body;
        if (!has_phase(s, body, wanted)) continue;
        dtm_builder builder = dtm_builder_at_end(s->module, s->module->body);
        dtm_op region = dtm_build_region(&builder, dtm_op_get(s->module, tops[i])->kind, NULL);
        emit(s, body, dtm_op_get(s->module, region)->body, wanted);
    }
}

static void rebuild(splitter *s) {
    dtm_module *module = s->module;
    dtm_region_data *body = &module->regions[module->body];
    dtm_op tops[8] = {0};
    size_t n_tops = 0;
    for (size_t i = 0; i < body->n_ops; i++)
        if (body->ops[i] != s->early_loop && n_tops < 8) tops[n_tops++] = body->ops[i];
    body->n_ops = 0;
    emit_outside(s, tops, n_tops, BEFORE);
    if (s->early_loop) {
        dtm_op_get(module, s->early_loop)->region = 0;
        dtm_op_move(module, s->early_loop, module->body, -1);
        for (size_t i = 0; i < n_tops; i++) emit(s, dtm_op_get(module, tops[i])->body, s->early, EARLY);
        emit_outside(s, tops, n_tops, BETWEEN);
    }
    emit_loop(s, tops, n_tops);
    emit_outside(s, tops, n_tops, AFTER);
    for (size_t i = 0; i < n_tops; i++) dtm_op_get(module, tops[i])->region = 0;
}

bool dtm_pass_microbatch(dtm_module *module) {
    const dtm_mesh *mesh = &module->settings.mesh;
    splitter s = {.module = module, .good = true};
    for (int a = 0; a < mesh->count; a++)
        if (mesh->axes[a].time && mesh->axes[a].size > 1) {
            s.time = (uint16_t)(1 << a);
            s.count = mesh->axes[a].size;
            s.loop_name = mesh->axes[a].name;
        }
    module->after = dtm_string_of(module->context, "microbatch");
    if (!s.time) return true;
    s.scratch = dtm_arena_create();
    rewrite_reductions(&s, module->body);
    /* Room for the operators that copies and regions add. */
    s.phases = dtm_arena_alloc(s.scratch, (module->n_ops * 3 + 64) * sizeof *s.phases);
    s.early_copy = dtm_arena_alloc(s.scratch, (module->n_values * 3 + 64) * sizeof *s.early_copy);
    if (s.good) {
        dtm_walk(module, classify, &s);
        find_early(&s);
    }
    if (s.good) rebuild(&s);
    dtm_arena_destroy(s.scratch);
    return s.good;
}
