/* The costs of a rank's stages (stage_cost.h), operator by operator, each as `explain` and the plan count it. A fused
 * region is one of them: it is F, I or W as a whole. */
#include "passes/stage_cost.h"
#include "ir/calls.h"
#include "ir/storage.h"
#include "passes/cost.h"
#include "passes/ledger.h"
#include "passes/schedule.h"
#include "passes/step_time.h"

#include <string.h>

typedef enum cost_part { OUTSIDE, FORWARD, BACKWARD, WEIGHTS } cost_part;

/* Where an operator stands. */
typedef struct cost_place {
    cost_part part;
    int stage;
    double copies; /* of the repeats around it */
} cost_place;

typedef struct cost_reader {
    const dtm_module *module;
    dtm_arena *arena;
    const bool *stored;
    const double *times; /* by operator */
    cost_place *place; /* by operator */
    bool *input;  /* by operator, of a unit in a backward region: part of I, the stage before waits for what it makes */
    bool divided; /* I and W are regions of their own */
} cost_reader;

static const dtm_op_data *get(const cost_reader *c, dtm_op op) {
    return &c->module->ops[op];
}

static void find_places(cost_reader *c, dtm_region region, cost_place place) {
    const dtm_region_data *body = &c->module->regions[region];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *data = get(c, body->ops[i]);
        c->place[body->ops[i]] = place;
        if (!data->body) continue;
        cost_place inner = place;
        if (data->kind == DTM_OP_REPEAT) inner.copies *= (double)data->attributes.copies;
        bool staged = (data->kind == DTM_OP_FORWARD || data->kind == DTM_OP_BACKWARD) &&
                      data->attributes.number[DTM_REGION_STAGE] >= 0;
        if (staged && get(c, c->module->regions[region].parent)->kind == DTM_OP_MICROBATCH) {
            bool weights = data->kind == DTM_OP_BACKWARD && data->attributes.flags & DTM_BACKWARD_WEIGHTS;
            c->divided |= weights;
            inner.part = data->kind == DTM_OP_FORWARD ? FORWARD : weights ? WEIGHTS : BACKWARD;
            inner.stage = (int)data->attributes.number[DTM_REGION_STAGE];
        }
        find_places(c, data->body, inner);
    }
}

static bool is_backward(const cost_reader *c, dtm_op op) {
    return c->place[op].part == BACKWARD || c->place[op].part == WEIGHTS;
}

/* ---- what the stage before waits for ---- */

/* From the messages back to what they are made of, as often as something new is found: what a repeat carries comes
 * later in the text. */
static void find_input(cost_reader *c) {
    const dtm_module *m = c->module;
    bool *wanted = dtm_arena_alloc(c->arena, m->n_values * sizeof *wanted);
    for (bool news = true; news;) {
        news = false;
        for (dtm_op op = (dtm_op)m->n_ops - 1; op > 0; op--) {
            const dtm_op_data *data = get(c, op);
            if (!data->region || data->body || c->place[op].part != BACKWARD) continue;
            dtm_op unit = dtm_unit_of(m, op);
            bool *waited = &c->input[unit];
            if (data->kind == DTM_OP_SEND || c->divided) *waited = true;
            for (uint32_t i = 0; i < data->n_results; i++) *waited |= wanted[data->results[i]];
            for (uint32_t i = 0; *waited && i < data->n_operands; i++) {
                if (wanted[data->operands[i]]) continue;
                wanted[data->operands[i]] = news = true;
            }
        }
    }
}

/* ---- times ---- */

static double bytes_of(const cost_reader *c, dtm_value value) {
    return (double)dtm_local_bytes_max(c->module, c->module->values[value].type);
}

/* What the plan says an operator takes, messages apart. */
static double time_of(const cost_reader *c, dtm_op op) {
    dtm_op_kind kind = get(c, op)->kind;
    return kind == DTM_OP_SEND || kind == DTM_OP_RECEIVE ? 0 : c->times[op];
}

static void add_times(const cost_reader *c, dtm_stage_cost *costs) {
    for (dtm_op op = 1; op < c->module->n_ops; op++) {
        const dtm_op_data *data = get(c, op);
        const cost_place *at = &c->place[op];
        if (!data->region || at->part == OUTSIDE || dtm_unit_of(c->module, op) != op) continue;
        if (data->body && data->kind != DTM_OP_FUSED) continue;
        dtm_stage_cost *cost = &costs[at->stage];
        double time = at->copies * time_of(c, op);
        double links = dtm_is_collective(data->kind) ? time : 0;
        if (at->part == FORWARD)
            cost->forward += time, cost->forward_links += links;
        else if (c->input[op])
            cost->input += time, cost->input_links += links;
        else
            cost->weight += time, cost->weight_links += links;
        if (data->kind == DTM_OP_SEND)
            *(at->part == FORWARD ? &cost->forward_bytes : &cost->backward_bytes) +=
                (double)dtm_collective_cost_of(c->module, op).payload;
    }
}

static void add_hidden(const cost_reader *c, dtm_stage_cost *costs) {
    for (dtm_op op = 1; op < c->module->n_ops; op++) {
        const dtm_op_data *data = get(c, op);
        int stage = (int)data->attributes.number[DTM_REGION_STAGE];
        if (!data->region || data->kind != DTM_OP_FORWARD || stage < 0) continue;
        if (get(c, c->module->regions[data->region].parent)->kind == DTM_OP_MICROBATCH)
            dtm_stage_pair(c->module, c->times, stage, c->divided, &costs[stage]);
    }
}

/* ---- memory ---- */

/* Of what a microbatch makes: what I and W read of F, and W of I. */
static void add_kept(const cost_reader *c, dtm_stage_cost *costs) {
    const dtm_module *m = c->module;
    bool *read[2] = {dtm_arena_alloc(c->arena, m->n_values),
                     dtm_arena_alloc(c->arena, m->n_values)}; /* by I or W, by W */
    for (dtm_op op = 1; op < m->n_ops; op++) {
        const dtm_op_data *data = get(c, op);
        if (!data->region || !is_backward(c, op) || dtm_is_alias(m, op)) continue;
        for (uint32_t i = 0; i < data->n_operands; i++) {
            dtm_value root = dtm_root_of(c->module, data->operands[i]);
            read[0][root] = true;
            read[1][root] |= !c->input[dtm_unit_of(m, op)];
        }
    }
    for (dtm_value value = 1; value < m->n_values; value++) {
        dtm_op def = m->values[value].def;
        if (!def || !m->ops[def].region || !c->stored[value] || get(c, def)->kind == DTM_OP_ACCUMULATE) continue;
        const cost_place *at = &c->place[def];
        double bytes = at->copies * bytes_of(c, value);
        if (at->part == OUTSIDE) continue;
        if (at->part == FORWARD && read[0][value]) costs[at->stage].kept += bytes;
        if (read[1][value] && (at->part == FORWARD || c->input[dtm_unit_of(m, def)]))
            costs[at->stage].kept_for_weight += bytes;
    }
}

bool dtm_lies_all_through(dtm_op_kind kind) {
    return kind == DTM_OP_WEIGHT || kind == DTM_OP_STATE || kind == DTM_OP_ACCUMULATE;
}

static double held(const cost_reader *c) {
    double bytes = 0;
    for (dtm_op op = 1; op < c->module->n_ops; op++) {
        const dtm_op_data *data = get(c, op);
        bool holds = dtm_lies_all_through(data->kind) && (data->kind != DTM_OP_ACCUMULATE || c->place[op].part != OUTSIDE);
        if (data->region && holds) bytes += c->place[op].copies * bytes_of(c, data->results[0]);
    }
    return bytes;
}

/* ---- all of it ---- */

void dtm_stage_costs_read(const dtm_module *rank, dtm_stage_cost *costs) {
    cost_reader c = {.module = rank, .arena = dtm_arena_create()};
    c.stored = dtm_stored(rank, c.arena);
    c.times = dtm_run_times(rank, c.arena);
    c.place = dtm_arena_alloc(c.arena, rank->n_ops * sizeof *c.place);
    c.input = dtm_arena_alloc(c.arena, rank->n_ops * sizeof *c.input);
    find_places(&c, rank->body, (cost_place){OUTSIDE, -1, 1});
    find_input(&c);
    add_times(&c, costs);
    add_kept(&c, costs);
    add_hidden(&c, costs);
    int first = -1;
    for (dtm_op op = 1; op < rank->n_ops; op++)
        if (rank->ops[op].region && c.place[op].part != OUTSIDE && (first < 0 || c.place[op].stage < first))
            first = c.place[op].stage;
    if (first >= 0) costs[first].held += held(&c);
    dtm_arena_destroy(c.arena);
}

double dtm_bytes_of_copies(const dtm_module *rank, dtm_op op) {
    double copies = 1;
    for (dtm_op at = dtm_enclosing(rank, op, DTM_OP_REPEAT); at; at = dtm_enclosing(rank, at, DTM_OP_REPEAT))
        copies *= (double)dtm_op_get(rank, at)->attributes.copies;
    return copies * (double)dtm_local_bytes_max(rank, rank->values[dtm_op_get(rank, op)->results[0]].type);
}

double dtm_stage_gradients(const dtm_module *rank) {
    double bytes = 0;
    for (dtm_op op = 1; op < rank->n_ops; op++) {
        const dtm_op_data *data = dtm_op_get(rank, op);
        if (data->region && data->kind == DTM_OP_ACCUMULATE) bytes += dtm_bytes_of_copies(rank, op);
    }
    return bytes;
}

const dtm_timeline *dtm_stage_timeline(const dtm_module *module, dtm_arena *arena) {
    dtm_timeline *ordered;
    if (module->timeline) return module->timeline;
    if (schedule_timeline(module, arena, &ordered) && ordered) return ordered; /* of a dump */
    const dtm_settings *settings = &module->settings;
    int chunks = settings->pipeline.chunks ? (int)settings->pipeline.chunks : 1,
        microbatches = (int)settings->microbatches;
    dtm_timeline *t = dtm_timeline_create(arena, dtm_string_text(module->context, settings->pipeline.schedule),
                                          DTM_PLACE_LOOP, (int)module->n_ranks, microbatches, chunks);
    for (int r = 0; r < t->ranks; r++)
        for (int m = 0; m < microbatches; m++) {
            for (int k = 0; k < chunks; k++) dtm_timeline_add(t, r, DTM_TASK_FORWARD, m, k);
            for (int k = chunks; k-- > 0;) dtm_timeline_add(t, r, DTM_TASK_BACKWARD, m, k);
        }
    return t;
}

/* Whether weight gradients have regions of their own. */
static bool has_weights_apart(const dtm_module *rank) {
    for (dtm_op op = 1; op < rank->n_ops; op++)
        if (rank->ops[op].region && rank->ops[op].kind == DTM_OP_BACKWARD && rank->ops[op].attributes.flags & DTM_BACKWARD_WEIGHTS) return true;
    return false;
}

dtm_timeline_costs dtm_stage_costs(const dtm_module *module, dtm_arena *arena) {
    const dtm_timeline *places = dtm_stage_timeline(module, arena);
    int stages = places->stages;
    dtm_stage_cost *costs = dtm_arena_alloc(arena, (size_t)stages * sizeof *costs);
    for (size_t r = 0; r < module->n_ranks; r++) { /* of a stage on two ranks, from one of them */
        dtm_stage_cost *own = dtm_arena_alloc(arena, (size_t)stages * sizeof *own);
        dtm_stage_costs_read(module->ranks[r], own);
        for (int s = 0; s < stages; s++) {
            int rank, chunk;
            dtm_timeline_place(places, s, 0, &rank, &chunk);
            if (rank == (int)r) costs[s] = own[s];
        }
    }
    dtm_link link = dtm_link_of(module, (uint16_t)(1 << module->settings.pipeline.axis));
    dtm_timeline_costs all = {stages, costs, link.latency, link.bandwidth, NULL, .turns = true};
    for (size_t r = 0; r < module->n_ranks; r++) { /* edited ones may differ: the fewest */
        all.divided |= has_weights_apart(module->ranks[r]);
        dtm_op loop = dtm_rank_loop(module->ranks[r]);
        if (!loop || !dtm_loop_is_ordered(module->ranks[r], loop)) continue;
        const double *number = dtm_op_get(module->ranks[r], loop)->attributes.number;
        int slots = (int)number[DTM_MICROBATCH_SLOTS], buffers = (int)number[DTM_MICROBATCH_BUFFERS];
        if (!all.slots || slots < all.slots) all.slots = slots;
        if (!all.buffers || buffers < all.buffers) all.buffers = buffers;
    }
    if (all.slots) all.sums = dtm_step_sums(module, places, arena, &all.n_sums);
    return all;
}

/* ---- expect { bubble <= 0.15 } ---- */

static const char *help_bubble(const dtm_module *module, const dtm_timeline_times *times) {
    const char *schedule = dtm_string_text(module->context, module->settings.pipeline.schedule);
    if (strcmp(schedule, "sequential") == 0)
        return "any other schedule has several microbatches in flight, schedule = 1f1b for one; or allow more in `expect`";
    if (times->worst_bubble > 2 * times->bubble + 0.1)
        return "one stage is much dearer than the others: `dtmc timeline` shows which; or allow more in `expect`";
    return strcmp(schedule, "auto") ? "more `microbatches`, schedule = auto, or a higher bound; `dtmc timeline` draws where time goes"
                                    : "more `microbatches`, fewer ranks, or a higher bound; `dtmc timeline` draws where time goes";
}

bool dtm_bubble_check(const dtm_module *module) {
    const dtm_settings *settings = &module->settings;
    dtm_timeline_times *times = NULL;
    bool good = true;
    dtm_arena *arena = dtm_arena_create();
    for (size_t i = 0; module->n_ranks && i < settings->n_expects; i++) {
        const dtm_expect_rule *rule = &settings->expects[i];
        if (rule->kind != DTM_EXPECT_BUBBLE) continue;
        dtm_timeline_costs costs = dtm_stage_costs(module, arena);
        if (!times) times = dtm_timeline_simulate(arena, dtm_stage_timeline(module, arena), &costs);
        if (times->bubble <= rule->bound) continue;
        good = false;
        dtm_error(module->context, rule->span, 704, "expected a bubble of at most %.4g, it is %.4f", rule->bound,
                  times->bubble);
        dtm_note(module->context, settings->pipeline.span,
                 "by the machine model the microbatches take %.4g ms, of which a rank is idle "
                 "for %.1f%% at most, and waits %.1f%% for messages",
                 1e3 * times->makespan, 100 * times->worst_bubble,
                 times->makespan > 0 ? 100 * times->exposed / times->makespan : 0.0);
        dtm_help(module->context, "%s", help_bubble(module, times));
    }
    dtm_arena_destroy(arena);
    return good;
}
