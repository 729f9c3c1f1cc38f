/* Walks the module in the order of execution and emits the plan's instructions. */
#include "codegen/codegen.h"
#include "codegen/generator.h"
#include "ir/calls.h"
#include "ir/fault.h"
#include "ir/fills.h"

#include <string.h>

static dtm_module *module_of(const dtm_generator *g) { return g->module; }
static const char *text_of(const dtm_generator *g, dtm_string s) { return dtm_string_text(g->module->context, s); }

/* ---- emitting ---- */

dtm_plan_instruction *dtm_emit(dtm_generator *g, dtm_op op, dtm_plan_kind kind, dtm_plan_category category) {
    const dtm_op_data *data = dtm_op_get(module_of(g), op);
    dtm_plan_instruction made;
    memset(&made, 0, sizeof made);
    made.kind = kind;
    made.phase = g->phase;
    made.category = category;
    if (!data->body) { /* a loop's place is not in a dump, and a dump gives the same plan */
        made.line = data->place.line;
        if (data->place.file) made.file = text_of(g, data->place.file);
    }
    dtm_value named = data->n_results ? data->results[0] : data->n_operands ? data->operands[data->n_operands - 1] : 0;
    if (data->kind == DTM_OP_FUSED) {
        const dtm_region_data *body = &module_of(g)->regions[data->body];
        for (size_t i = 0; i < body->n_ops; i++) {
            const dtm_op_data *inner = dtm_op_get(module_of(g), body->ops[i]);
            if (!inner->n_results || !g->stored[inner->results[0]]) continue;
            named = inner->results[0];
            made.line = inner->place.line;
            made.file = inner->place.file ? text_of(g, inner->place.file) : NULL;
        }
    }
    dtm_op loop = dtm_enclosing(module_of(g), op, DTM_OP_REPEAT);
    const char *name = named ? dtm_value_name(module_of(g), named) : text_of(g, data->attributes.name);
    made.name = loop ? dtm_arena_printf(g->arena, "%s/%s", text_of(g, dtm_op_get(module_of(g), loop)->attributes.name), name) : name;
    if (category != DTM_PLAN_MOVEMENT && category != DTM_PLAN_CONTROL) { /* not what packs for another that follows */
        made.seconds = g->pending;
        g->pending = 0;
    }
    DTM_PUSH(g->arena, g->instructions, g->n_instructions, g->cap_instructions, made);
    return &g->instructions[g->n_instructions - 1];
}

/* What no instruction has yet goes to the last one from `from` on that stands in no loop of those. */
static void settle_seconds(dtm_generator *g, size_t from) {
    for (size_t i = g->n_instructions; i > from && g->pending > 0; i--) {
        dtm_plan_instruction *at = &g->instructions[i - 1];
        if (at->kind == DTM_PLAN_REPEAT || at->kind == DTM_PLAN_TIMELINE) return;
        if (at->kind == DTM_PLAN_END) {
            i = at->repeat.end + 1;
            continue;
        }
        at->seconds += g->pending;
        g->pending = 0;
    }
}

uint32_t dtm_kernel_index(dtm_generator *g, const char *name, const char *text) {
    dtm_string body = dtm_string_of(module_of(g)->context, text);
    for (uint32_t k = 0; k < g->n_kernels; k++)
        if (g->kernels[k].body == body) return k;
    dtm_kernel_text kernel = {.name = dtm_string_printf(module_of(g)->context, "%s_%zu", name, g->n_kernels), .body = body};
    DTM_PUSH(g->arena, g->kernels, g->n_kernels, g->cap_kernels, kernel);
    return (uint32_t)(g->n_kernels - 1);
}

void dtm_emit_copy(dtm_generator *g, dtm_op op, uint32_t input, uint32_t output) {
    dtm_emit(g, op, DTM_PLAN_COPY, DTM_PLAN_MOVEMENT)->copy = (dtm_plan_copy){input, output, 0};
}

void dtm_unsupported(dtm_generator *g, dtm_op op, const char *what) {
    const dtm_op_data *data = dtm_op_get(module_of(g), op);
    dtm_error(module_of(g)->context, data->span, 601, "`%s` %s is not executed by this version", dtm_op_rows[data->kind].name, what);
    g->failed = true;
}

uint32_t dtm_step_state(dtm_generator *g) {
    if (!g->step_state)
        g->step_state = dtm_buffer_workspace(g, "step", DTM_PLAN_U8, g->workspace_bytes, 16);
    return g->step_state;
}

/* ---- places ---- */


/* The index may grow the table: the table is read after it is known. */
static const dtm_plan_buffer *buffer_of(dtm_generator *g, dtm_value value) {
    uint32_t index = dtm_buffer_index(g, value);
    return &g->buffers[index];
}

/* A buffer like the value's, in the slot `distance` copies further on, or (`copy` >= 0) in that of one copy, as it is seen
 * from outside of its loop: there the loop around it, if there is one, counts in steps of its copies. */
static dtm_plan_buffer moved_buffer(dtm_generator *g, dtm_value value, int64_t distance, int64_t copy) {
    dtm_plan_buffer buffer = *buffer_of(g, value);
    if (buffer.modulus > 1 && copy >= 0) {
        const dtm_plan_loop *loop = &g->loops[buffer.loop];
        buffer.offset += (copy + buffer.shift) % buffer.modulus * buffer.stride;
        buffer.modulus = loop->parent ? (uint32_t)(buffer.modulus / loop->copies) : 1;
        buffer.stride = buffer.modulus > 1 ? buffer.stride * loop->copies : 0;
        buffer.loop = buffer.modulus > 1 ? loop->parent : 0;
        buffer.shift = 0;
    } else if (buffer.modulus > 1) {
        buffer.shift = (uint32_t)((buffer.shift + distance + buffer.modulus) % buffer.modulus);
    }
    return buffer;
}

static uint32_t add_buffer(dtm_generator *g, const dtm_plan_buffer *buffer) {
    for (uint32_t b = 1; b < g->n_buffers; b++)
        if (memcmp(&g->buffers[b], buffer, sizeof *buffer) == 0) return b;
    DTM_PUSH(g->arena, g->buffers, g->n_buffers, g->cap_buffers, *buffer);
    return (uint32_t)(g->n_buffers - 1);
}

static bool buffers_coincide(const dtm_plan_buffer *x, const dtm_plan_buffer *y) {
    return x->offset == y->offset && x->modulus == y->modulus && x->stride == y->stride && x->shift == y->shift &&
           (x->modulus == 1 || x->loop == y->loop) && x->places == y->places &&
           x->batch_stride == y->batch_stride;
}

static void put_buffer(dtm_generator *g, dtm_op op, const dtm_plan_buffer *from, const dtm_plan_buffer *into) {
    if (buffers_coincide(from, into)) return;
    uint32_t input = add_buffer(g, from), output = add_buffer(g, into);
    dtm_emit_copy(g, op, input, output);
}

/* Puts a value into a buffer: nothing if it is there, a fill if it is a constant, else a copy. */
static void put(dtm_generator *g, dtm_op op, dtm_value value, const dtm_plan_buffer *into) {
    if (dtm_value_is_constant(module_of(g), value)) {
        uint32_t to = add_buffer(g, into);
        dtm_emit(g, op, DTM_PLAN_SCALAR, DTM_PLAN_MOVEMENT)->scalar =
            (dtm_plan_scalar){DTM_PLAN_FILL, to, dtm_value_get(module_of(g), value)->number};
        return;
    }
    dtm_plan_buffer from = *buffer_of(g, value);
    put_buffer(g, op, &from, into);
}

/* ---- loops ---- */

static void walk(dtm_generator *g, dtm_region region);
static void lower(dtm_generator *g, dtm_op op);

/* Before a repeat: what carries begin with goes into the slot of the copy that runs first. */
static void enter_carries(dtm_generator *g, dtm_op loop) {
    const dtm_region_data *body = &module_of(g)->regions[dtm_op_get(module_of(g), loop)->body];
    bool reversed = dtm_op_get(module_of(g), loop)->attributes.flags & DTM_REPEAT_REVERSED;
    int64_t first = reversed && !dtm_fault(50) ? dtm_op_get(module_of(g), loop)->attributes.copies - 1 : 0;
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *carry = dtm_op_get(module_of(g), body->ops[i]);
        if (carry->kind != DTM_OP_CARRY) continue;
        dtm_plan_buffer slot = moved_buffer(g, carry->results[0], 0, first);
        put(g, loop, carry->operands[0], &slot);
    }
}

/* At the end of a copy: what the next one carries on goes where that one reads it. After the only one there would be others that read
 * what it began with. */
static void leave_carries(dtm_generator *g, dtm_op loop) {
    const dtm_region_data *body = &module_of(g)->regions[dtm_op_get(module_of(g), loop)->body];
    if (dtm_op_get(module_of(g), loop)->attributes.copies == 1 && !dtm_fault(126)) return;
    bool reversed = dtm_op_get(module_of(g), loop)->attributes.flags & DTM_REPEAT_REVERSED;
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *carry = dtm_op_get(module_of(g), body->ops[i]);
        if (carry->kind != DTM_OP_CARRY) continue;
        dtm_plan_buffer slot = moved_buffer(g, carry->results[0], reversed ? -1 : 1, -1);
        put(g, body->ops[i], carry->operands[1], &slot);
    }
}

/* last(next) is where next of the copy that ran last is, or is copied from there. */
static void lower_last(dtm_generator *g, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(module_of(g), op);
    dtm_value next = data->operands[0];
    dtm_op def = dtm_value_get(module_of(g), next)->def, loop = def ? dtm_enclosing(module_of(g), def, DTM_OP_REPEAT) : 0;
    dtm_plan_buffer into = *buffer_of(g, data->results[0]);
    if (!loop || loop == dtm_enclosing(module_of(g), op, DTM_OP_REPEAT)) { /* set outside of the loop it is the last of */
        put(g, op, next, &into);
        return;
    }
    bool reversed = dtm_op_get(module_of(g), loop)->attributes.flags & DTM_REPEAT_REVERSED;
    dtm_plan_buffer from = moved_buffer(g, next, 0, reversed && !dtm_fault(26) ? 0 : dtm_op_get(module_of(g), loop)->attributes.copies - 1);
    put_buffer(g, op, &from, &into);
}

void dtm_end_repeat(dtm_generator *g, size_t at) {
    dtm_plan_instruction end = g->instructions[at];
    end.kind = DTM_PLAN_END;
    end.repeat.end = (uint32_t)at;
    DTM_PUSH(g->arena, g->instructions, g->n_instructions, g->cap_instructions, end);
    g->instructions[at].repeat.end = (uint32_t)g->n_instructions;
}

static void lower_loop(dtm_generator *g, dtm_op op) {
    const dtm_attributes attributes = dtm_op_get(module_of(g), op)->attributes;
    uint32_t loop = dtm_loop_index(g, op);
    enter_carries(g, op);
    dtm_plan_phase outside = g->phase;
    size_t at = g->n_instructions;
    double before = g->pending;
    dtm_emit(g, op, DTM_PLAN_REPEAT, DTM_PLAN_CONTROL)->repeat =
        (dtm_plan_repeat){loop, (attributes.flags & DTM_REPEAT_REVERSED) != 0, 0};
    g->pending = 0;
    walk(g, dtm_op_get(module_of(g), op)->body);
    leave_carries(g, op);
    g->needed = dtm_needed_after(module_of(g), g->needed, op);
    g->pending = before;
    g->phase = outside;
    if (outside != DTM_PLAN_UPDATE || !dtm_gather_launches(g, at)) dtm_end_repeat(g, at);
}

/* ---- timelines ---- */

typedef struct segment {
    uint32_t begin, end, receive, send; /* instructions */
} segment;

static segment *lower_segments(dtm_generator *g, dtm_region region, const dtm_loop_calls *calls) {
    size_t count = module_of(g)->regions[region].n_ops;
    segment *segments = dtm_arena_alloc(g->arena, (count + 1) * sizeof *segments);
    for (size_t i = 0; i < count && !g->failed; i++) {
        dtm_op op = module_of(g)->regions[region].ops[i];
        segments[i].begin = (uint32_t)g->n_instructions;
        dtm_order order = {0};
        g->aside = dtm_workspace_aside(module_of(g), op);
        if (dtm_loop_fills(calls, op)) {
            order = dtm_order_of(module_of(g), g->arena);
            g->order = &order;
        }
        lower(g, op);
        g->aside = 0;
        g->order = NULL;
        g->needed = 0;
        segments[i].end = (uint32_t)g->n_instructions;
        for (uint32_t n = segments[i].begin; n < segments[i].end; n++) {
            if (g->instructions[n].kind == DTM_PLAN_RECEIVE) segments[i].receive = n;
            if (g->instructions[n].kind == DTM_PLAN_SEND) segments[i].send = n;
        }
    }
    return segments;
}

/* Pairs of the same regions take one course. */
typedef struct pair_kind {
    const dtm_op *regions;
    size_t count;
    dtm_pair_course course;
} pair_kind;

typedef struct pair_kinds {
    pair_kind *items;
    size_t count, capacity;
} pair_kinds;

/* Of the pair whose first call is of that number. */
static dtm_pair_course course_of(dtm_generator *g, const dtm_loop_calls *calls, size_t first, pair_kinds *kinds) {
    const dtm_loop_call *call = &calls->items[first];
    size_t count = call->end - call->begin + 1;
    dtm_op *regions = dtm_arena_alloc(g->arena, count * sizeof *regions);
    for (size_t i = 0; i < count; i++) regions[i] = calls->items[first + i].region;
    for (size_t i = 0; i < kinds->count; i++)
        if (kinds->items[i].count == count && memcmp(kinds->items[i].regions, regions, count * sizeof *regions) == 0) return kinds->items[i].course;
    pair_kind made = {regions, count, g->course(module_of(g), g->seconds, regions, count)};
    DTM_PUSH(g->arena, kinds->items, kinds->count, kinds->capacity, made);
    return made.course;
}

static void lower_timeline(dtm_generator *g, dtm_op op) {
    dtm_loop_schedule schedule;
    if (dtm_loop_schedule_of(module_of(g), op, g->arena, &schedule)) dtm_broken("codegen", "an order that was not verified");
    size_t at = g->n_instructions;
    uint32_t loop = dtm_loop_index(g, op);
    dtm_emit(g, op, DTM_PLAN_TIMELINE, DTM_PLAN_CONTROL)->timeline.loop = loop;
    segment *segments = lower_segments(g, dtm_op_get(module_of(g), op)->body, &schedule.calls);
    dtm_plan_call *calls = dtm_arena_alloc(g->arena, (schedule.n_entries + 1) * sizeof *calls);
    pair_kinds kinds = {0};
    for (size_t i = 0; i < schedule.n_entries; i++) {
        const dtm_loop_entry *entry = &schedule.entries[i];
        const segment *s = &segments[dtm_loop_region_index(&schedule.times, entry->call.region)];
        dtm_task task = entry->call.task;
        calls[i] = (dtm_plan_call){.kind = (uint8_t)entry->kind, .first = entry->call.first,
                                   .pair = (uint8_t)(entry->kind == DTM_LOOP_RUN && entry->call.index == entry->call.begin
                                                                  ? entry->call.end - entry->call.begin : 0),
                                   .task = DTM_TASK_LETTERS[task.kind], .chunk = task.chunk, .number = task.microbatch,
                                   .microbatch = entry->call.microbatch, .begin = s->begin, .end = s->end};
        if (calls[i].pair && g->course) {
            dtm_pair_course course = course_of(g, &schedule.calls, entry->call.begin, &kinds);
            calls[i].later = course.later;
            calls[i].fills = course.fills;
        }
        calls[i].last = dtm_loop_call_is_last(&schedule.calls, &entry->call);
        if (entry->kind == DTM_LOOP_POST) calls[i].begin = s->receive;
        if (entry->kind == DTM_LOOP_WAIT) calls[i].begin = s->send;
    }
    dtm_plan_timeline *made = &g->instructions[at].timeline;
    made->end = (uint32_t)g->n_instructions;
    made->n_calls = (uint32_t)schedule.n_entries;
    made->calls = calls;
}

/* ---- sources and sinks ---- */

static void lower_input(dtm_generator *g, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(module_of(g), op);
    const dtm_type_data *type = dtm_value_type(module_of(g), data->results[0]);
    if (dtm_dtype_is_half((dtm_dtype)type->dtype)) {
        dtm_unsupported(g, op, "in bf16 or f16");
        return;
    }
    dtm_plan_input input;
    memset(&input, 0, sizeof input);
    input.name = text_of(g, data->attributes.name);
    input.dtype = buffer_of(g, data->results[0])->dtype;
    input.rank = type->rank;
    for (int i = 0; i < type->rank; i++)
        input.dims[i] = (dtm_plan_dim){dtm_dim_name(module_of(g), type->dims[i]), module_of(g)->dims[type->dims[i]].size};
    input.limit = dtm_input_limit(g, data->results[0]);
    input.line = data->place.line;
    uint32_t index = 0;
    while (index < g->n_inputs && strcmp(g->inputs[index].name, input.name) != 0) index++;
    if (index == g->n_inputs) DTM_PUSH(g->arena, g->inputs, g->n_inputs, g->cap_inputs, input);
    int64_t *limit = &g->inputs[index].limit; /* of all that read it */
    if (input.limit && (!*limit || input.limit < *limit)) *limit = input.limit;
    dtm_emit(g, op, DTM_PLAN_INPUT, DTM_PLAN_HOST)->io = (dtm_plan_io){index, dtm_buffer_index(g, data->results[0]), NULL};
}

static void lower_sink(dtm_generator *g, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(module_of(g), op);
    dtm_value value = data->operands[data->n_operands - 1];
    if (data->kind == DTM_OP_STORE) {
        dtm_plan_buffer weight = *buffer_of(g, data->operands[0]);
        put(g, op, value, &weight);
        return;
    }
    dtm_plan_io io = {0, dtm_buffer_index(g, value), text_of(g, data->attributes.name)};
    if (data->kind == DTM_OP_GRADIENT) {
        io.index = g->weight_of[data->operands[0]] - 1;
        io.name = NULL;
        g->weights[io.index].gradient = true;
    }
    dtm_plan_kind kind = data->kind == DTM_OP_REPORT ? DTM_PLAN_REPORT : data->kind == DTM_OP_OUTPUT ? DTM_PLAN_OUTPUT : DTM_PLAN_GRADIENT;
    dtm_emit(g, op, kind, DTM_PLAN_HOST)->io = io;
}

/* ---- collectives that start early ---- */

static bool is_early(const dtm_generator *g, dtm_op op) {
    return dtm_is_apart(module_of(g), op) && dtm_early_place(module_of(g), op);
}

/* Collectives whose operands are complete with this unit, in a region that begins at `from`. They may run less often than what
 * is around them, whose seconds they do not take. */
static void lower_early(dtm_generator *g, dtm_op unit, size_t from) {
    for (size_t i = 0; i < g->n_early; i++) {
        if (g->early[i].place != unit) continue;
        settle_seconds(g, from);
        if (g->seconds) g->pending += g->seconds[g->early[i].collective];
        dtm_lower_collective(g, g->early[i].collective);
    }
}

/* In the order of the text: ranks of a pipeline start what they share in one order, and one that goes on from another comes after it. */
static void find_early(dtm_generator *g) {
    dtm_op_list ops = dtm_ops_in_order(g->module, g->arena);
    size_t capacity = 0;
    g->early = NULL;
    g->n_early = 0;
    for (size_t i = 0; i < ops.count; i++)
        if (is_early(g, ops.items[i])) {
            dtm_early early = {ops.items[i], dtm_early_place(module_of(g), ops.items[i])};
            DTM_PUSH(g->arena, g->early, g->n_early, capacity, early);
        }
}

/* ---- the walk ---- */

static void lower(dtm_generator *g, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(module_of(g), op);
    for (size_t i = 0; i < g->n_early; i++)
        if (g->early[i].collective == op) return; /* lower_early */
    if (g->seconds && (!data->body || data->kind == DTM_OP_FUSED)) g->pending += g->seconds[op];
    if (g->cuda && dtm_lower_cuda(g, op)) return;
    switch (data->kind) {
    case DTM_OP_FORWARD: case DTM_OP_BACKWARD: case DTM_OP_UPDATE: {
        dtm_plan_phase outside = g->phase;
        g->phase = data->kind == DTM_OP_FORWARD ? DTM_PLAN_FORWARD : data->kind == DTM_OP_BACKWARD ? DTM_PLAN_BACKWARD : DTM_PLAN_UPDATE;
        walk(g, data->body);
        g->phase = outside;
        return;
    }
    case DTM_OP_MICROBATCH:
        if (dtm_loop_is_ordered(module_of(g), op)) lower_timeline(g, op);
        else lower_loop(g, op);
        return;
    case DTM_OP_REPEAT: lower_loop(g, op); return;
    case DTM_OP_CARRY: return; /* enter_carries, leave_carries */
    case DTM_OP_LAST: lower_last(g, op); return;
    case DTM_OP_WEIGHT: case DTM_OP_STATE: return; /* add_weights */
    case DTM_OP_INPUT: lower_input(g, op); return;
    case DTM_OP_LEARNING_RATE: case DTM_OP_BIAS_CORRECTION: dtm_lower_number(g, op); return;
    case DTM_OP_REPORT: case DTM_OP_OUTPUT: case DTM_OP_STORE: case DTM_OP_GRADIENT: lower_sink(g, op); return;
    case DTM_OP_DOT: dtm_lower_dot(g, op); return;
    case DTM_OP_ATTENTION: case DTM_OP_ATTENTION_BACKWARD: dtm_lower_attention(g, op); return;
    case DTM_OP_ROPE: dtm_lower_rope(g, op); return;
    case DTM_OP_GATHER: dtm_lower_gather(g, op); return;
    case DTM_OP_SCATTER: dtm_lower_scatter(g, op); return;
    case DTM_OP_RENAME: case DTM_OP_SPLIT: case DTM_OP_MERGE:
        if (!dtm_is_alias(module_of(g), op)) dtm_lower_shape(g, op);
        return;
    case DTM_OP_SLICE: case DTM_OP_PAD: case DTM_OP_CONCAT: dtm_lower_shape(g, op); return;
    case DTM_OP_SHARD: case DTM_OP_AS_TERM: dtm_lower_local(g, op); return;
    case DTM_OP_ACCUMULATE: dtm_lower_accumulate(g, op); return;
    case DTM_OP_SEND: case DTM_OP_RECEIVE: dtm_lower_message(g, op); return;
    case DTM_OP_ALL_REDUCE: case DTM_OP_ALL_GATHER: case DTM_OP_REDUCE_SCATTER: case DTM_OP_ALL_TO_ALL: case DTM_OP_PERMUTE:
        dtm_lower_collective(g, op);
        return;
    default: dtm_lower_nest(g, op);
    }
}

/* One operator of what fills: its instructions need what those before it do, and more. */
static void lower_filling(dtm_generator *g, dtm_op op) {
    size_t at = g->n_instructions;
    dtm_op needed = dtm_needed_of_input(module_of(g), g->order, op);
    if (needed && (!g->needed || g->order->end[needed] > g->order->end[g->needed])) g->needed = needed;
    uint32_t needs = g->needed ? g->ended[g->needed] : 0;
    lower(g, op);
    for (; at < g->n_instructions; at++)
        if (!g->instructions[at].needs) g->instructions[at].needs = needs;
}

static void walk(dtm_generator *g, dtm_region region) {
    size_t at = g->n_instructions;
    for (size_t i = 0; i < module_of(g)->regions[region].n_ops && !g->failed; i++) {
        dtm_op op = module_of(g)->regions[region].ops[i];
        if (g->order) lower_filling(g, op);
        else lower(g, op);
        lower_early(g, op, at);
        g->ended[op] = (uint32_t)g->n_instructions;
    }
    settle_seconds(g, at);
}

static void add_weights(dtm_module *module, dtm_op op, void *state) {
    dtm_op_kind kind = module->ops[op].kind;
    if (kind == DTM_OP_WEIGHT || kind == DTM_OP_STATE) dtm_add_weight(state, op);
}

static void move_timeline(dtm_plan_timeline *timeline, uint32_t distance) {
    dtm_plan_call *calls = (dtm_plan_call *)timeline->calls; /* lower_timeline's own */
    timeline->end += distance;
    for (uint32_t i = 0; i < timeline->n_calls; i++) calls[i].begin += distance, calls[i].end += distance;
}

/* Instructions of the start go first; seed and step are set first of each step. */
static void put_in_front(dtm_generator *g) {
    dtm_plan_instruction step;
    memset(&step, 0, sizeof step);
    step.kind = DTM_PLAN_SCALAR;
    step.category = DTM_PLAN_HOST;
    step.name = "step";
    step.scalar = (dtm_plan_scalar){DTM_PLAN_SEED_AND_STEP, g->step_state, 0};
    size_t before = g->n_start + (g->step_state ? 1 : 0);
    dtm_plan_instruction *all = dtm_arena_alloc(g->arena, (before + g->n_instructions + 1) * sizeof *all);
    if (g->n_start) memcpy(all, g->start, g->n_start * sizeof *all);
    if (g->step_state) all[g->n_start] = step;
    if (g->n_instructions) memcpy(all + before, g->instructions, g->n_instructions * sizeof *all);
    for (size_t i = before; i < before + g->n_instructions; i++) {
        if (all[i].needs) all[i].needs += (uint32_t)before;
        if (all[i].kind == DTM_PLAN_REPEAT || all[i].kind == DTM_PLAN_END) all[i].repeat.end += (uint32_t)before;
        else if (all[i].kind == DTM_PLAN_TIMELINE) move_timeline(&all[i].timeline, (uint32_t)before);
    }
    g->instructions = all;
    g->n_instructions += before;
}

/* The plan of one module; kernels and inputs go on from those of an earlier one. */
static void generate(dtm_generator *g, dtm_module *module) {
    g->module = module;
    g->stored = dtm_stored(module, g->arena);
    g->buffer_of = dtm_arena_alloc(g->arena, module->n_values * sizeof *g->buffer_of);
    g->weight_of = dtm_arena_alloc(g->arena, module->n_values * sizeof *g->weight_of);
    g->workspace_bytes = dtm_workspace_most(module, false);
    g->workspace = dtm_workspace_begin(module);
    g->aside = 0;
    if (dtm_loop_places_of(module, dtm_rank_loop(module), g->arena, &g->places)) dtm_broken("codegen", "places that were not verified");
    g->ended = dtm_arena_alloc(g->arena, module->n_ops * sizeof *g->ended);
    g->event_of = dtm_arena_alloc(g->arena, module->n_ops * sizeof *g->event_of);
    g->apart_offset = dtm_arena_alloc(g->arena, module->n_ops * sizeof *g->apart_offset);
    g->apart = g->workspace - dtm_workspace_of_pairs(module) - dtm_workspace_of_apart(module, g->apart_offset);
    DTM_PUSH(g->arena, g->extents, g->n_extents, g->cap_extents, (dtm_plan_extent){0});
    DTM_PUSH(g->arena, g->sizes, g->n_sizes, g->cap_sizes, (dtm_plan_size){0});
    DTM_PUSH(g->arena, g->loops, g->n_loops, g->cap_loops, (dtm_plan_loop){0});
    DTM_PUSH(g->arena, g->buffers, g->n_buffers, g->cap_buffers, (dtm_plan_buffer){.modulus = 1});
    dtm_walk(module, add_weights, g);
    find_early(g);
    walk(g, module->body);
    if (!g->failed) dtm_find_waits(g);
    if (!g->failed) dtm_find_steps(g);
    if (!g->failed) put_in_front(g);
}

/* What the generators of a pipeline's ranks share is what the last of them has. */
static void share(dtm_generator *all, size_t count) {
    const dtm_generator *last = &all[count - 1];
    for (size_t i = 0; i < count; i++) {
        all[i].kernels = last->kernels, all[i].n_kernels = last->n_kernels;
        all[i].inputs = last->inputs, all[i].n_inputs = last->n_inputs;
    }
}

/* One generator a plan; NULL after an error. */
static dtm_generator *generate_all(dtm_module *module, const dtm_predictions *predicted, bool cuda, dtm_arena *arena, size_t *n) {
    size_t count = *n = module->n_ranks ? module->n_ranks : 1;
    dtm_generator *all = dtm_arena_alloc(arena, count * sizeof *all);
    bool good = true;
    for (size_t i = 0; i < count && good; i++) {
        dtm_generator *g = &all[i];
        g->arena = arena;
        g->cuda = cuda;
        const dtm_module *own = module->n_ranks ? module->ranks[i] : module;
        g->seconds = predicted ? predicted->seconds(own, arena) : NULL;
        g->step_seconds = predicted ? predicted->step : 0;
        g->course = predicted ? predicted->course : NULL;
        g->stage = i;
        g->n_stages = module->n_ranks;
        if (i) g->kernels = g[-1].kernels, g->n_kernels = g[-1].n_kernels, g->cap_kernels = g[-1].cap_kernels;
        if (i) g->inputs = g[-1].inputs, g->n_inputs = g[-1].n_inputs, g->cap_inputs = g[-1].cap_inputs;
        generate(g, module->n_ranks ? module->ranks[i] : module);
        good = !g->failed;
    }
    if (!good) return NULL;
    share(all, count);
    return all;
}

bool dtm_codegen(dtm_module *module, const dtm_predictions *predicted, dtm_text *plan_c, dtm_text *kernels_c) {
    dtm_arena *arena = dtm_arena_create();
    size_t count;
    dtm_generator *all = generate_all(module, predicted, false, arena, &count);
    if (all) {
        dtm_write_plans(all, count, plan_c);
        dtm_write_kernels(all, kernels_c);
    }
    dtm_arena_destroy(arena);
    return all != NULL;
}

bool dtm_codegen_cuda(dtm_module *module, const dtm_predictions *predicted, dtm_text *plan_c, dtm_text *kernels_c,
                      dtm_cuda_source **sources, size_t *n_sources) {
    dtm_arena *arena = dtm_arena_create(), *lasting = dtm_context_arena(module->context);
    size_t count;
    dtm_generator *all = generate_all(module, predicted, true, arena, &count);
    *n_sources = all ? all->n_kernels : 0;
    *sources = dtm_arena_alloc(lasting, (*n_sources + 1) * sizeof **sources);
    if (all) {
        dtm_write_plans(all, count, plan_c);
        dtm_write_cuda_kernels(all, count, kernels_c);
        for (size_t k = 0; k < *n_sources; k++) {
            dtm_cuda_source *source = &(*sources)[k];
            *source = (dtm_cuda_source){dtm_string_text(module->context, all->kernels[k].name), {lasting, NULL, 0, 0}};
            dtm_write_cuda_source(all, count, k, &source->text);
        }
    }
    dtm_arena_destroy(arena);
    return all != NULL;
}
