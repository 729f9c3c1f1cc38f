/* Seconds of what runs (cost.h): an operator, a collective, or a fused region, which is one kernel. That computes what all of its
 * operators do, and moves what enters it and what leaves it, each value once:
 *
 *     fused {
 *         a = x + y          # x, y enter
 *         b = gelu(a)        # a is a register
 *         c = b * x
 *     }
 *     z = dot(c, ..)         # c leaves */
#include "ir/storage.h"
#include "passes/cost.h"

/* What only says where something lies or goes: it names a place, or hands on what lies there already. */
static bool is_free(const dtm_module *module, dtm_op op) {
    switch (dtm_op_get(module, op)->kind) {
    case DTM_OP_WEIGHT: case DTM_OP_STATE: case DTM_OP_CARRY: case DTM_OP_LAST: case DTM_OP_STORE: case DTM_OP_GRADIENT:
    case DTM_OP_REPORT: case DTM_OP_OUTPUT: case DTM_OP_LEARNING_RATE: case DTM_OP_BIAS_CORRECTION:
        return true;
    default: return dtm_is_alias(module, op);
    }
}

typedef struct kernel {
    const dtm_module *module;
    dtm_arena *arena;
    const bool *stored;
    dtm_op unit;
    dtm_value *entered; /* each once */
    size_t n_entered, cap_entered;
    double bytes;
} kernel;

static double bytes_of(const kernel *k, dtm_value value) {
    return (double)dtm_local_bytes_max(k->module, k->module->values[value].type);
}

static void enter(kernel *k, dtm_value value) {
    value = dtm_root_of(k->module, value);
    dtm_op def = k->module->values[value].def;
    if (def && dtm_unit_of(k->module, def) == k->unit) return;
    for (size_t i = 0; i < k->n_entered; i++)
        if (k->entered[i] == value) return;
    DTM_PUSH(k->arena, k->entered, k->n_entered, k->cap_entered, value);
    k->bytes += bytes_of(k, value);
}

static void add_bytes(kernel *k, const dtm_op_data *data) {
    bool rows = data->kind == DTM_OP_GATHER; /* of the table those that are gathered */
    if (rows) k->bytes += bytes_of(k, data->results[0]);
    for (uint32_t i = rows; i < data->n_operands; i++) enter(k, data->operands[i]);
    for (uint32_t i = 0; i < data->n_results; i++) {
        if (k->stored[data->results[i]]) k->bytes += bytes_of(k, data->results[i]);
        if (data->kind == DTM_OP_ACCUMULATE) k->bytes += bytes_of(k, data->results[i]); /* the sum so far */
    }
    if (data->kind == DTM_OP_STORE && dtm_unit_of(k->module, k->module->values[data->operands[1]].def) == k->unit &&
        !k->stored[data->operands[1]])
        k->bytes += bytes_of(k, data->operands[1]);
}

static double kernel_time(const dtm_module *module, dtm_op unit, const bool *stored, dtm_arena *arena) {
    kernel k = {.module = module, .arena = arena, .stored = stored, .unit = unit};
    const dtm_region_data *body = &module->regions[module->ops[unit].body];
    double computes = 0;
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *data = dtm_op_get(module, body->ops[i]);
        if (!is_free(module, body->ops[i])) computes += dtm_op_compute(module, body->ops[i]);
        if (!is_free(module, body->ops[i]) || data->kind == DTM_OP_STORE) add_bytes(&k, data);
    }
    double moves = k.bytes / dtm_machine_of(module).memory_bandwidth;
    return computes > moves ? computes : moves;
}

/* What a collective in steps takes beside its products. */
static double exposed_in_steps(const dtm_module *module, dtm_op op) {
    size_t count;
    double seconds = dtm_time_of_products(module, op, &count);
    dtm_collective_cost cost = dtm_collective_cost_of(module, op);
    return count && cost.sends ? dtm_time_in_steps(module, op, cost.algorithm, count, seconds) - seconds : cost.time;
}

/* A sum over microbatches is read and written beside what is added to it. A product that has no place of its own is added by itself,
 * as it is made. */
static double with_sum(const dtm_module *module, dtm_op op) {
    dtm_value made = dtm_op_get(module, op)->results[0];
    double moves = dtm_op_bytes(module, op) + (double)dtm_local_bytes_max(module, module->values[made].type);
    double computes = dtm_op_compute(module, op), seconds = moves / dtm_machine_of(module).memory_bandwidth;
    return computes > seconds ? computes : seconds;
}

static double time_of(const dtm_module *module, dtm_op op, const bool *stored, dtm_arena *arena);

/* Whether op, or what stands in it, reads what a collective makes, or an alias of it. */
static bool touches(const dtm_module *module, dtm_op op, const dtm_op_data *collective) {
    const dtm_op_data *data = dtm_op_get(module, op);
    for (uint32_t i = 0; i < data->n_operands && data->kind != DTM_OP_CARRY; i++) {
        dtm_value value = dtm_root_of(module, data->operands[i]);
        for (uint32_t r = 0; r < collective->n_results; r++)
            if (value == collective->results[r]) return true;
    }
    for (size_t i = 0; data->body && i < module->regions[data->body].n_ops; i++)
        if (touches(module, module->regions[data->body].ops[i], collective)) return true;
    return false;
}

/* What a collective that is carried out apart from where it stands takes beside what is computed up to the first that reads it. */
static double exposed_apart(const dtm_module *module, dtm_op op, const bool *stored, dtm_arena *arena) {
    const dtm_region_data *region = &module->regions[dtm_op_get(module, op)->region];
    double time = dtm_collective_cost_of(module, op).time;
    for (size_t i = (size_t)dtm_op_position(module, op) + 1; i < region->n_ops && time > 0; i++) {
        const dtm_op_data *data = dtm_op_get(module, region->ops[i]);
        if (!dtm_is_alias(module, region->ops[i]) && touches(module, region->ops[i], dtm_op_get(module, op))) break;
        if (!dtm_is_collective(data->kind)) time -= time_of(module, region->ops[i], stored, arena);
    }
    return time > 0 ? time : 0;
}

static double time_of(const dtm_module *module, dtm_op op, const bool *stored, dtm_arena *arena) {
    const dtm_op_data *data = dtm_op_get(module, op);
    if (is_free(module, op)) return 0;
    if (dtm_is_apart(module, op) && !dtm_early_place(module, op)) return exposed_apart(module, op, stored, arena);
    if (dtm_is_in_steps(module, op)) return exposed_in_steps(module, op);
    if (dtm_is_collective(data->kind) || data->kind == DTM_OP_SEND) return dtm_collective_cost_of(module, op).time;
    if (data->kind == DTM_OP_FUSED) return kernel_time(module, op, stored, arena);
    if (data->kind == DTM_OP_ACCUMULATE) return stored[data->operands[0]] ? with_sum(module, op) : 0;
    if (data->kind == DTM_OP_DOT && !stored[data->results[0]]) return with_sum(module, op);
    if (!data->body) return dtm_op_time(module, op);
    const dtm_region_data *body = &module->regions[data->body];
    double time = 0;
    for (size_t i = 0; i < body->n_ops; i++) time += time_of(module, body->ops[i], stored, arena);
    return time;
}

double *dtm_run_times(const dtm_module *module, dtm_arena *arena) {
    double *times = dtm_arena_alloc(arena, module->n_ops * sizeof *times);
    dtm_arena *scratch = dtm_arena_create();
    const bool *stored = dtm_stored(module, scratch);
    for (dtm_op op = 1; op < module->n_ops; op++) {
        const dtm_op_data *data = &module->ops[op];
        bool runs = data->region && (!data->body || data->kind == DTM_OP_FUSED) && dtm_unit_of(module, op) == op;
        if (runs) times[op] = time_of(module, op, stored, scratch);
    }
    dtm_arena_destroy(scratch);
    return times;
}

double dtm_step_time(dtm_module *module) {
    dtm_arena *arena = dtm_arena_create();
    const double *times = dtm_run_times(module, arena);
    double time = 0;
    for (dtm_op op = 1; op < module->n_ops; op++) {
        double count = module->ops[op].region ? 1 : 0;
        for (dtm_op at = dtm_enclosing(module, op, DTM_OP_NONE); at && count > 0; at = dtm_enclosing(module, at, DTM_OP_NONE)) {
            const dtm_op_data *around = dtm_op_get(module, at);
            if (around->kind == DTM_OP_REPEAT || around->kind == DTM_OP_MICROBATCH) count *= (double)around->attributes.copies;
        }
        time += count * times[op];
    }
    dtm_arena_destroy(arena);
    return time;
}
