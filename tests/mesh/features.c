/* See features.h. */
#include "features.h"

#include "ir/storage.h"

#include <stdlib.h>
#include <string.h>

const char *const feature_texts[FEATURES] = {
    "a repeat in a repeat",
    "repeats one after another",
    "copies that read what was made before another repeat",
    "a weight that two repeats have",
    "a pipeline, and repeats beside the one that it splits",
    "a pipeline, and a repeat in a repeat",
    "a pipeline of one microbatch",
    "a pipeline of one microbatch, and repeats beside or in the one that it splits",
    "collectives in steps",
    "collectives started ahead",
    "collectives in buckets",
    "sums of gradients carried out apart",
    "sums along a pipeline carried out apart",
    "operators moved behind others beside a collective",
    "collectives that wait where they stand for want of memory",
    "memory that is enough and nearly full",
    "operators made again in other kernels",
    "values in bf16",
    "values in f16",
    "gradients of weights added up in bf16 by several ranks",
    "weights that rest in parts",
    "weights that rest in parts, gathered by the backward pass for itself",
    "a step that is skipped, and one that is not",
};

typedef struct look {
    bool seen[FEATURES];
    dtm_op *repeat_of; /* by value: of a weight, the first repeat at the outermost that reads it */
} look;

static void add(long met[FEATURES], const look *l) {
    for (int f = 0; f < FEATURES; f++) met[f] += l->seen[f];
}

/* ---- repeats ---- */

/* The operator of a region in which op stands, or which it is; 0: none. */
static dtm_op in_region(const dtm_module *module, dtm_op op, dtm_region region) {
    while (op && module->ops[op].region != region) op = module->regions[module->ops[op].region].parent;
    return op;
}

/* Whether a repeat stands before the operator in its region, behind `from` places. */
static bool follows_repeat(const dtm_module *module, dtm_op op, int64_t from) {
    const dtm_region_data *region = &module->regions[module->ops[op].region];
    for (int64_t i = from; region->ops[i] != op; i++)
        if (module->ops[region->ops[i]].kind == DTM_OP_REPEAT) return true;
    return false;
}

static void look_at_operand(const dtm_module *module, dtm_op op, dtm_value value, look *l) {
    dtm_op def = module->values[value].def;
    dtm_op at = def ? in_region(module, op, module->ops[def].region) : 0;
    if (!at || module->ops[at].kind != DTM_OP_REPEAT) return;
    switch (module->ops[def].kind) {
    case DTM_OP_WEIGHT:
        l->seen[FEATURE_SHARED] |= l->repeat_of[value] && l->repeat_of[value] != at;
        l->repeat_of[value] = at;
        break;
    case DTM_OP_INPUT: case DTM_OP_STATE: case DTM_OP_POSITIONS: break;
    default: l->seen[FEATURE_ACROSS] |= follows_repeat(module, at, dtm_op_position(module, def));
    }
}

static void look_at_structure(dtm_module *module, dtm_op op, void *state) {
    look *l = state;
    const dtm_op_data *data = dtm_op_get(module, op);
    if (!dtm_enclosing(module, op, DTM_OP_FORWARD)) return;
    if (data->kind == DTM_OP_REPEAT) {
        l->seen[FEATURE_NESTED] |= dtm_enclosing(module, op, DTM_OP_REPEAT) != 0;
        l->seen[FEATURE_IN_ORDER] |= follows_repeat(module, op, 0);
    }
    for (uint32_t i = 0; i < data->n_operands; i++) look_at_operand(module, op, data->operands[i], l);
}

void features_add_structure(long met[FEATURES], dtm_module *module) {
    const dtm_settings *settings = &module->settings;
    look l = {.repeat_of = calloc(module->n_values, sizeof *l.repeat_of)};
    if (!l.repeat_of) abort();
    dtm_walk(module, look_at_structure, &l);
    bool several = settings->pipeline.present && settings->mesh.axes[settings->pipeline.axis].size > 1;
    bool one = settings->pipeline.present && settings->microbatches == 1;
    l.seen[FEATURE_PIPELINE_AMONG] = several && l.seen[FEATURE_IN_ORDER];
    l.seen[FEATURE_PIPELINE_NESTED] = several && l.seen[FEATURE_NESTED];
    l.seen[FEATURE_ONE_MICROBATCH] = one;
    l.seen[FEATURE_ONE_AND_REPEATS] = one && several && (l.seen[FEATURE_IN_ORDER] || l.seen[FEATURE_NESTED]);
    free(l.repeat_of);
    add(met, &l);
}

/* ---- in which order ---- */

static dtm_module *rank_of(dtm_module *module, size_t rank) { return module->n_ranks ? module->ranks[rank] : module; }
static size_t count_of_ranks(const dtm_module *module) { return module->n_ranks ? module->n_ranks : 1; }

static bool computes(const dtm_op_data *data) {
    bool carries = data->kind == DTM_OP_CARRY || data->kind == DTM_OP_LAST || data->kind == DTM_OP_RECEIVE;
    return data->n_results && !data->body && !carries && !dtm_runs_collective(data->kind);
}

typedef struct order_look {
    feature_orders *orders;
    const feature_orders *before;
    size_t rank, last; /* last: the place before of what stands before, from 1; 0: of nothing in its region */
    dtm_region region;
    bool differs;
} order_look;

static void note(dtm_module *module, dtm_op op, void *state) {
    order_look *o = state;
    const dtm_op_data *data = dtm_op_get(module, op);
    if (!computes(data)) return;
    DTM_PUSH(dtm_context_arena(module->context), o->orders->ranks[o->rank].names, o->orders->ranks[o->rank].count,
             o->orders->ranks[o->rank].capacity, module->values[data->results[0]].name);
}

void features_note_orders(feature_orders *orders, dtm_module *module) {
    size_t count = count_of_ranks(module);
    orders->ranks = dtm_arena_alloc(dtm_context_arena(module->context), count * sizeof *orders->ranks);
    for (size_t r = 0; r < count; r++) {
        order_look o = {.orders = orders, .rank = r};
        dtm_walk(rank_of(module, r), note, &o);
    }
}

static size_t place_before(const order_look *o, dtm_string name) {
    for (size_t i = 0; i < o->before->ranks[o->rank].count; i++)
        if (o->before->ranks[o->rank].names[i] == name) return i + 1;
    return 0;
}

static void compare(dtm_module *module, dtm_op op, void *state) {
    order_look *o = state;
    const dtm_op_data *data = dtm_op_get(module, op);
    size_t place = computes(data) ? place_before(o, module->values[data->results[0]].name) : 0;
    if (!place) return;
    o->differs |= o->region == data->region && place < o->last;
    o->region = data->region;
    o->last = place;
}

void features_add_orders(long met[FEATURES], const feature_orders *before, dtm_module *module) {
    bool differs = false;
    for (size_t r = 0; r < count_of_ranks(module); r++) {
        order_look o = {.before = before, .rank = r};
        dtm_walk(rank_of(module, r), compare, &o);
        differs |= o.differs;
    }
    met[FEATURE_ANOTHER_ORDER] += differs;
}

/* ---- what came of it ---- */

static void look_at_collective(const dtm_module *module, dtm_op op, look *l) {
    const dtm_op_data *data = &module->ops[op];
    int stream = (int)data->attributes.number[DTM_COLLECTIVE_APART];
    l->seen[FEATURE_BUCKETS] |= data->n_operands > 1;
    l->seen[FEATURE_STEPS] |= dtm_is_in_steps(module, op);
    if (!dtm_is_apart(module, op)) return;
    bool along = stream >= DTM_FIRST_STREAM_OF_SUMS;
    l->seen[along ? FEATURE_SUMS_ALONG : dtm_early_place(module, op) ? FEATURE_SUMS_APART : FEATURE_AHEAD] = true;
}

static void look_at_result(dtm_module *module, dtm_op op, void *state) {
    look *l = state;
    const dtm_op_data *data = dtm_op_get(module, op);
    for (uint32_t i = 0; i < data->n_results; i++) {
        dtm_dtype dtype = (dtm_dtype)dtm_value_type(module, data->results[i])->dtype;
        l->seen[FEATURE_BF16] |= dtype == DTM_BF16 && module->settings.train.precision == DTM_BF16;
        l->seen[FEATURE_F16] |= dtype == DTM_F16;
        l->seen[FEATURE_REDUCE_BF16] |= dtype == DTM_BF16 && module->settings.train.precision != DTM_BF16 && dtm_runs_collective(data->kind);
    }
    const char *why = data->why ? dtm_string_text(module->context, data->why) : "";
    l->seen[FEATURE_AGAIN] |= strstr(why, "made again rather than kept") != NULL;
    l->seen[FEATURE_RESTS] |= strncmp(why, "zero 1", 6) == 0 || strncmp(why, "zero 2", 6) == 0;
    l->seen[FEATURE_GATHERED_AGAIN] |= strncmp(why, "zero 3", 6) == 0 && dtm_enclosing(module, op, DTM_OP_BACKWARD);
    l->seen[FEATURE_NO_ROOM] |= strstr(why, "more memory than there is") != NULL;
    if (data->kind == DTM_OP_ALL_REDUCE || data->kind == DTM_OP_ALL_GATHER || data->kind == DTM_OP_REDUCE_SCATTER)
        look_at_collective(module, op, l);
}

void features_add_result(long met[FEATURES], dtm_module *module) {
    double has = module->settings.machine.memory, most = 0;
    look l = {0};
    for (size_t r = 0; r < count_of_ranks(module); r++) {
        dtm_walk(rank_of(module, r), look_at_result, &l);
        if ((double)rank_of(module, r)->arena_bytes > most) most = (double)rank_of(module, r)->arena_bytes;
    }
    l.seen[FEATURE_NEARLY_FULL] = most <= has && most >= 0.9 * has;
    add(met, &l);
}

void features_add_run(long met[FEATURES], const dtm_module *module, const dtm_interpretation *result) {
    bool skipped = false, taken = false;
    if (module->settings.train.precision != DTM_F16) return;
    for (int64_t step = 1; step <= result->steps; step++) {
        const dtm_tensor *report = dtm_tensors_find(&result->reports, "skipped", step);
        if (report) *(report->data[0] != 0 ? &skipped : &taken) = true;
    }
    met[FEATURE_SKIPPED] += skipped && taken;
}
