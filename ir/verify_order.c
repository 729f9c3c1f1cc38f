/* The verifier's laws of a loop over microbatches with an order (E0512): each region is called once for each microbatch, and
 * what a region reads of another has been made. That ranks agree is for the proof of the timeline (passes/schedule.c). */
#include "ir/calls.h"
#include "ir/verify.h"

typedef struct order {
    verifier *v;
    dtm_op loop;
    dtm_loop_times times;
    dtm_placement placement;
} order;

static const char *region_text(const verifier *v, dtm_op region) {
    const dtm_attributes *a = &dtm_op_get(v->module, region)->attributes;
    return dtm_arena_printf(v->scratch, "%s stage = %d%s", dtm_op_rows[dtm_op_get(v->module, region)->kind].name,
                            (int)a->number[DTM_REGION_STAGE], a->flags & DTM_BACKWARD_WEIGHTS ? ", weights" : "");
}

static void check_regions(verifier *v, const dtm_op_data *loop) {
    const dtm_region_data *body = &v->module->regions[loop->body];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *op = dtm_op_get(v->module, body->ops[i]);
        bool stage = (op->kind == DTM_OP_FORWARD || op->kind == DTM_OP_BACKWARD) && op->attributes.number[DTM_REGION_STAGE] >= 0;
        if (!stage) BREAK(v, op, 512, "a loop with an order holds `forward stage = ..` and `backward stage = ..` alone");
        for (size_t j = 0; j < i; j++) {
            const dtm_op_data *other = dtm_op_get(v->module, body->ops[j]);
            if (other->kind == op->kind && other->attributes.flags == op->attributes.flags &&
                other->attributes.number[DTM_REGION_CHUNK] == op->attributes.number[DTM_REGION_CHUNK])
                BREAK(v, op, 512, "two regions %s of chunk %d", region_text(v, body->ops[i]),
                      (int)op->attributes.number[DTM_REGION_CHUNK]);
        }
    }
}

/* All microbatches there are, no more and no fewer. */
static void check_copies(verifier *v, const dtm_op_data *loop) {
    int64_t all = v->module->settings.microbatches;
    if (loop->attributes.copies != all)
        BREAK(v, loop, 512, "a loop over %lld microbatch%s, of a step that has %lld", (long long)loop->attributes.copies,
              loop->attributes.copies == 1 ? "" : "es", (long long)all);
}

/* Slots beyond all messages that come would be memory for nothing, and a number mistyped. */
static void check_slots(const order *o, const dtm_loop_calls *calls) {
    const dtm_module *module = o->v->module;
    const dtm_op_data *loop = dtm_op_get(module, o->loop);
    double most = 2, slots = loop->attributes.number[DTM_MICROBATCH_SLOTS], buffers = loop->attributes.number[DTM_MICROBATCH_BUFFERS];
    if ((double)calls->count > most) most = (double)calls->count;
    if (slots > most) BREAK(o->v, loop, 512, "%lld receive slots of a channel, in an order of %lld calls", (long long)slots,
                           (long long)calls->count);
    if (buffers > most) BREAK(o->v, loop, 512, "%lld results that wait to be sent, in an order of %lld calls", (long long)buffers,
                             (long long)calls->count);
}

typedef struct search {
    dtm_op region;
    bool *worked_on; /* by value: read by more than sums that end in one over microbatches */
    bool found, changed;
} search;

static void find_reads(dtm_module *module, dtm_op self, void *state) {
    search *s = state;
    const dtm_op_data *op = dtm_op_get(module, self);
    bool sums = op->kind == DTM_OP_ACCUMULATE || (op->kind == DTM_OP_ADD && !s->worked_on[op->results[0]]);
    for (uint32_t i = 0; i < op->n_operands && !sums; i++) {
        s->changed |= !s->worked_on[op->operands[i]];
        s->worked_on[op->operands[i]] = true;
    }
}

static void find_product(dtm_module *module, dtm_op self, void *state) {
    search *s = state;
    const dtm_op_data *op = dtm_op_get(module, self);
    if (op->kind == DTM_OP_DOT && dtm_called_region(module, self) == s->region && !s->worked_on[op->results[0]]) s->found = true;
}

/* Whether there is a product that is summed over microbatches and nothing else: a weight's gradient, which W has where B is
 * divided. */
static bool makes_weight_gradients(verifier *v, dtm_op region) {
    search s = {.region = region, .worked_on = dtm_arena_alloc(v->scratch, v->module->n_values * sizeof *s.worked_on)};
    do s.changed = false, dtm_walk(v->module, find_reads, &s);
    while (s.changed);
    dtm_walk(v->module, find_product, &s);
    return s.found;
}

/* I and W are of a backward pass that stands in two regions. */
static void check_parts(const order *o) {
    const dtm_module *module = o->v->module;
    const dtm_op_data *loop = dtm_op_get(module, o->loop);
    dtm_loop_tasks tasks;
    const char *wrong = dtm_loop_tasks_of(module, o->loop, o->v->scratch, &tasks);
    for (size_t i = 0; !wrong && i < tasks.count; i++) {
        dtm_task task = tasks.items[i].tasks[tasks.items[i].kind == DTM_OPERATION_PAIR];
        if (task.kind != DTM_TASK_INPUT && task.kind != DTM_TASK_WEIGHT) continue;
        dtm_op whole = 0;
        bool divided = false;
        for (size_t r = 0; r < o->times.n_regions; r++) {
            const dtm_op_data *region = dtm_op_get(module, o->times.regions[r]);
            if (region->kind != DTM_OP_BACKWARD || region->attributes.number[DTM_REGION_CHUNK] != task.chunk) continue;
            divided |= region->attributes.flags & DTM_BACKWARD_WEIGHTS;
            whole = o->times.regions[r];
        }
        if (divided || !whole || !makes_weight_gradients(o->v, whole)) continue;
        o->v->good = false;
        dtm_error(module->context, loop->span, 512, "the order has %s%u, a part of %s, which is not divided",
                  task.kind == DTM_TASK_INPUT ? "I" : "W", task.microbatch, region_text(o->v, whole));
        dtm_help(module->context, "make it B, or take the dump of a schedule that divides B: schedule = zbh1");
        return;
    }
}

/* Of two directions each region has its own microbatches. */
static void check_counts(const order *o, const dtm_loop_calls *calls) {
    const dtm_op_data *loop = dtm_op_get(o->v->module, o->loop);
    int64_t all = loop->attributes.copies;
    for (size_t i = 0; i < calls->count; i++) {
        int region = dtm_loop_region_index(&o->times, calls->items[i].region);
        if (o->times.time[(size_t)region * o->times.n_microbatches + calls->items[i].microbatch] != (int64_t)i)
            BREAK(o->v, loop, 512, "the order calls %s twice for microbatch %u", region_text(o->v, calls->items[i].region),
                  calls->items[i].task.microbatch);
    }
    for (size_t r = 0; r < o->times.n_regions; r++) {
        int chunk = (int)dtm_op_get(o->v->module, o->times.regions[r])->attributes.number[DTM_REGION_CHUNK];
        bool both = o->placement == DTM_PLACE_BIDIRECTIONAL;
        int64_t from = both && chunk == 1 ? (all + 1) / 2 : 0, to = both && chunk == 0 ? (all + 1) / 2 : all;
        for (int64_t m = from; m < to; m++)
            if (o->times.time[r * o->times.n_microbatches + (size_t)m] < 0)
                BREAK(o->v, loop, 512, "the order does not call %s for microbatch %lld", region_text(o->v, o->times.regions[r]),
                      (long long)(m - from));
    }
}

/* What is read of another region is made before, for each microbatch. */
static void check_reads(const order *o, dtm_op self) {
    const dtm_module *module = o->v->module;
    const dtm_op_data *op = dtm_op_get(module, self), *loop = dtm_op_get(module, o->loop); /* which has the order */
    dtm_op here = dtm_called_region(module, self);
    for (uint32_t i = 0; here && i < op->n_operands; i++) {
        dtm_op def = dtm_value_get(module, op->operands[i])->def, there = def ? dtm_called_region(module, def) : 0;
        if (!there || there == here || dtm_enclosing(module, def, DTM_OP_MICROBATCH) != o->loop) continue;
        size_t a = (size_t)dtm_loop_region_index(&o->times, there), b = (size_t)dtm_loop_region_index(&o->times, here);
        for (size_t m = 0; m < o->times.n_microbatches; m++) {
            int64_t made = o->times.time[a * o->times.n_microbatches + m], used = o->times.time[b * o->times.n_microbatches + m];
            if (used >= 0 && made < 0)
                BREAK(o->v, loop, 512, "the order calls %s for microbatch %d, and never %s, whose %s it reads", region_text(o->v, here), (int)m,
                      region_text(o->v, there), verify_name(o->v, op->operands[i]));
            if (used >= 0 && made > used)
                BREAK(o->v, loop, 512, "the order calls %s for microbatch %d before %s, whose %s it reads", region_text(o->v, here), (int)m,
                      region_text(o->v, there), verify_name(o->v, op->operands[i]));
        }
    }
}

static void check_op(dtm_module *module, dtm_op op, void *state) {
    const order *o = state;
    if (o->v->good && dtm_enclosing(module, op, DTM_OP_MICROBATCH) == o->loop) check_reads(o, op);
}

void verify_order(verifier *v, dtm_op loop) {
    const dtm_op_data *data = dtm_op_get(v->module, loop);
    dtm_loop_schedule schedule;
    check_copies(v, data);
    if (!v->good || !data->attributes.order) return;
    if (!v->module->of_ranks) BREAK(v, data, 512, "the program of a pipeline's rank alone has an order of microbatches");
    check_regions(v, data);
    if (!v->good) return;
    const char *wrong = dtm_loop_schedule_of(v->module, loop, v->scratch, &schedule);
    if (wrong) BREAK(v, data, 512, "%s", wrong);
    order o = {v, loop, schedule.times, dtm_loop_placement(v->module, loop)};
    check_parts(&o);
    if (v->good) check_slots(&o, &schedule.calls);
    if (v->good) check_counts(&o, &schedule.calls);
    if (v->good) dtm_walk(v->module, check_op, &o);
}
