/* The costs of a rank's stages (stage_cost.h). A kernel is an operator or a fused region: it takes the larger of the time for
 * its FLOPs and for the bytes that it reads and writes in memory; what only moves in name takes none. */
#include "passes/stage_cost.h"
#include "ir/storage.h"
#include "passes/cost.h"

typedef enum cost_part { OUTSIDE, FORWARD, BACKWARD } cost_part;

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
    cost_place *place; /* by operator */
    bool *waited;      /* by operator, of a kernel in a backward region: the stage before waits for what it makes */
    dtm_machine machine;
} cost_reader;

static const dtm_op_data *get(const cost_reader *c, dtm_op op) { return &c->module->ops[op]; }

static void find_places(cost_reader *c, dtm_region region, cost_place place) {
    const dtm_region_data *body = &c->module->regions[region];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *data = get(c, body->ops[i]);
        c->place[body->ops[i]] = place;
        if (!data->body) continue;
        cost_place inner = place;
        if (data->kind == DTM_OP_REPEAT) inner.copies *= (double)data->attributes.copies;
        bool staged = (data->kind == DTM_OP_FORWARD || data->kind == DTM_OP_BACKWARD) && data->attributes.number[DTM_REGION_STAGE] >= 0;
        if (staged && get(c, c->module->regions[region].parent)->kind == DTM_OP_MICROBATCH) {
            inner.part = data->kind == DTM_OP_FORWARD ? FORWARD : BACKWARD;
            inner.stage = (int)data->attributes.number[DTM_REGION_STAGE];
        }
        find_places(c, data->body, inner);
    }
}

/* ---- what the stage before waits for ---- */

/* From the messages back to what they are made of, as often as something new is found: what a repeat carries comes later in
 * the text. */
static void find_waited(cost_reader *c) {
    const dtm_module *m = c->module;
    bool *wanted = dtm_arena_alloc(c->arena, m->n_values * sizeof *wanted);
    for (bool news = true; news;) {
        news = false;
        for (dtm_op op = (dtm_op)m->n_ops - 1; op > 0; op--) {
            const dtm_op_data *data = get(c, op);
            if (!data->region || data->body || c->place[op].part != BACKWARD) continue;
            dtm_op unit = dtm_unit_of(m, op);
            bool *waited = &c->waited[unit];
            if (data->kind == DTM_OP_SEND) *waited = true;
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

typedef struct fused_work {
    double flops, half_flops, bytes;
    bool *seen; /* by value */
} fused_work;

static void touch(const cost_reader *c, fused_work *w, dtm_op unit, dtm_value value) {
    dtm_op def = c->module->values[value].def;
    bool own = def && dtm_unit_of(c->module, def) == unit;
    if (!def || w->seen[value] || (own && !c->stored[value])) return;
    w->seen[value] = true;
    w->bytes += bytes_of(c, value);
}

static double fused_time(const cost_reader *c, dtm_op unit) {
    dtm_arena *scratch = dtm_arena_create();
    fused_work w = {.seen = dtm_arena_alloc(scratch, c->module->n_values)};
    const dtm_region_data *body = &c->module->regions[get(c, unit)->body];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *data = get(c, body->ops[i]);
        dtm_dtype type = data->n_results ? (dtm_dtype)dtm_value_type(c->module, data->results[0])->dtype : DTM_F32;
        *(type == DTM_BF16 || type == DTM_F16 ? &w.half_flops : &w.flops) += dtm_op_flops(c->module, body->ops[i]);
        for (uint32_t k = 0; k < data->n_operands; k++) touch(c, &w, unit, data->operands[k]);
        for (uint32_t k = 0; k < data->n_results; k++) touch(c, &w, unit, data->results[k]);
    }
    dtm_arena_destroy(scratch);
    double compute = w.flops / c->machine.flops_f32 + w.half_flops / c->machine.flops_bf16;
    double memory = w.bytes / c->machine.memory_bandwidth;
    return compute > memory ? compute : memory;
}

static double kernel_time(const cost_reader *c, dtm_op op) {
    const dtm_op_data *data = get(c, op);
    switch (data->kind) {
    case DTM_OP_FUSED: return fused_time(c, op);
    case DTM_OP_INPUT: case DTM_OP_WEIGHT: case DTM_OP_STATE: case DTM_OP_REPORT: case DTM_OP_OUTPUT: case DTM_OP_SEND:
    case DTM_OP_RECEIVE: case DTM_OP_CARRY: case DTM_OP_LAST: return 0;
    default: return dtm_is_alias(c->module, op) ? 0 : dtm_op_time(c->module, op);
    }
}

static void add_times(const cost_reader *c, dtm_stage_cost *costs) {
    for (dtm_op op = 1; op < c->module->n_ops; op++) {
        const dtm_op_data *data = get(c, op);
        const cost_place *at = &c->place[op];
        if (!data->region || at->part == OUTSIDE || dtm_unit_of(c->module, op) != op) continue;
        if (data->body && data->kind != DTM_OP_FUSED) continue;
        dtm_stage_cost *cost = &costs[at->stage];
        double time = at->copies * kernel_time(c, op);
        if (at->part == FORWARD) cost->forward += time;
        else if (c->waited[op]) cost->input += time;
        else cost->weight += time;
        if (data->kind == DTM_OP_SEND)
            *(at->part == FORWARD ? &cost->forward_bytes : &cost->backward_bytes) += (double)dtm_collective_cost_of(c->module, op).payload;
    }
}

/* ---- memory ---- */

/* The value whose bytes these are. */
static dtm_value root_of(const cost_reader *c, dtm_value value) {
    dtm_op def = c->module->values[value].def;
    while (def && dtm_is_alias(c->module, def)) {
        value = get(c, def)->operands[0];
        def = c->module->values[value].def;
    }
    return value;
}

/* Of what a microbatch makes: what I and W read of F, and W of I. */
static void add_kept(const cost_reader *c, dtm_stage_cost *costs) {
    const dtm_module *m = c->module;
    bool *read[2] = {dtm_arena_alloc(c->arena, m->n_values), dtm_arena_alloc(c->arena, m->n_values)}; /* by I or W, by W */
    for (dtm_op op = 1; op < m->n_ops; op++) {
        const dtm_op_data *data = get(c, op);
        if (!data->region || c->place[op].part != BACKWARD || dtm_is_alias(m, op)) continue;
        for (uint32_t i = 0; i < data->n_operands; i++) {
            dtm_value root = root_of(c, data->operands[i]);
            read[0][root] = true;
            read[1][root] |= !c->waited[dtm_unit_of(m, op)];
        }
    }
    for (dtm_value value = 1; value < m->n_values; value++) {
        dtm_op def = m->values[value].def;
        if (!def || !m->ops[def].region || !c->stored[value] || get(c, def)->kind == DTM_OP_ACCUMULATE) continue;
        const cost_place *at = &c->place[def];
        double bytes = at->copies * bytes_of(c, value);
        if (at->part == OUTSIDE) continue;
        if (at->part == FORWARD && read[0][value]) costs[at->stage].kept += bytes;
        if (read[1][value] && (at->part == FORWARD || c->waited[dtm_unit_of(m, def)])) costs[at->stage].kept_for_weight += bytes;
    }
    for (dtm_op op = 1; op < m->n_ops; op++) { /* gradients that W reads may be more than what I was the last to read */
        dtm_stage_cost *cost = c->place[op].part == OUTSIDE ? NULL : &costs[c->place[op].stage];
        if (cost && cost->kept < cost->kept_for_weight) cost->kept = cost->kept_for_weight;
    }
}

static double held(const cost_reader *c) {
    double bytes = 0;
    for (dtm_op op = 1; op < c->module->n_ops; op++) {
        const dtm_op_data *data = get(c, op);
        bool holds = data->kind == DTM_OP_WEIGHT || data->kind == DTM_OP_STATE ||
                     (data->kind == DTM_OP_ACCUMULATE && c->place[op].part != OUTSIDE);
        if (data->region && holds) bytes += c->place[op].copies * bytes_of(c, data->results[0]);
    }
    return bytes;
}

/* ---- all of it ---- */

void dtm_stage_costs_read(const dtm_module *rank, dtm_stage_cost *costs) {
    cost_reader c = {.module = rank, .arena = dtm_arena_create(), .machine = dtm_machine_of(rank)};
    c.stored = dtm_stored(rank, c.arena);
    c.place = dtm_arena_alloc(c.arena, rank->n_ops * sizeof *c.place);
    c.waited = dtm_arena_alloc(c.arena, rank->n_ops * sizeof *c.waited);
    find_places(&c, rank->body, (cost_place){OUTSIDE, -1, 1});
    find_waited(&c);
    add_times(&c, costs);
    add_kept(&c, costs);
    int first = -1;
    for (dtm_op op = 1; op < rank->n_ops; op++)
        if (rank->ops[op].region && c.place[op].part != OUTSIDE && (first < 0 || c.place[op].stage < first)) first = c.place[op].stage;
    if (first >= 0) costs[first].held += held(&c);
    dtm_arena_destroy(c.arena);
}

dtm_timeline_costs dtm_stage_costs(const dtm_module *module, dtm_arena *arena) {
    int64_t chunks = module->settings.pipeline.chunks;
    int stages = module->timeline ? module->timeline->stages : (int)(module->n_ranks * (size_t)(chunks ? chunks : 1));
    dtm_stage_cost *costs = dtm_arena_alloc(arena, (size_t)stages * sizeof *costs);
    for (size_t r = 0; r < module->n_ranks; r++) dtm_stage_costs_read(module->ranks[r], costs);
    dtm_link link = dtm_link_of(module, (uint16_t)(1 << module->settings.pipeline.axis));
    return (dtm_timeline_costs){stages, costs, link.latency, link.bandwidth, NULL};
}
