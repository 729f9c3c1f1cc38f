/* What a program is fed: first values of weights, random inputs, dropout, the learning rate. Nothing here depends on
 * the mesh: an element's number comes from a counter-based generator at its index in the whole tensor. */
#include "passes/interpret_state.h"
#include "passes/passes.h"

#include <math.h>
#include <string.h>

/* FNV-1a, 64 bits. */
uint64_t dtm_hash_name(const char *name) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++) hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    return hash;
}

/* Philox 4x32 with ten rounds: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011. The counter is
 * (block, stream), the key the seed: as kernels/cpu/random.h says. */
static void philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4]) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
        memcpy(c, next, sizeof c);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}

static uint32_t random_word(uint64_t seed, uint64_t stream, int64_t index) {
    uint32_t words[4];
    philox(seed, stream, (uint64_t)index / 4, words);
    return words[index % 4];
}

/* In [0, 1): 24 bits. */
static double uniform(uint64_t seed, uint64_t stream, int64_t index) {
    return (double)(random_word(seed, stream, index) >> 8) / 16777216.0;
}

/* Box and Muller: a pair of words makes a pair of numbers, the even index' by the cosine. */
static double normal(uint64_t seed, uint64_t stream, int64_t index) {
    uint32_t words[4];
    philox(seed, stream, (uint64_t)index / 4, words);
    const uint32_t *pair = words + index % 4 / 2 * 2;
    double radius = sqrt(-2 * log(((double)pair[0] + 1) / 4294967296.0));
    double angle = 6.283185307179586476925 * ((double)pair[1] / 4294967296.0);
    return (double)(float)(radius * (index % 2 ? sin(angle) : cos(angle)));
}

static double first_value(const dtm_attributes *attributes, uint64_t seed, uint64_t stream, int64_t index) {
    double a = attributes->init_a, b = attributes->init_b;
    switch (attributes->init) {
    case DTM_INIT_ZEROS:
        return 0;
    case DTM_INIT_ONES:
        return 1;
    case DTM_INIT_NORMAL:
        return a * normal(seed, stream, index);
    case DTM_INIT_UNIFORM:
        return a + (b - a) * uniform(seed, stream, index);
    default:
        return a;
    }
}

void dtm_draw_variable(dtm_run *run, const dtm_op_data *op, const char *path, double *whole, int64_t elements) {
    if (run->options.provide && run->options.provide(run->options.provide_state, path, 0, elements, whole)) return;
    uint64_t stream = dtm_hash_name(path);
    for (int64_t i = 0; i < elements; i++)
        whole[i] = (double)(float)first_value(&op->attributes, run->options.seed, stream, i);
}

static const dtm_input_bound *bound_of(const dtm_run *run, dtm_string name) {
    for (size_t i = 0; i < run->options.n_bounds; i++)
        if (run->options.bounds[i].name == name) return &run->options.bounds[i];
    return NULL;
}

void dtm_draw_input(dtm_run *run, const dtm_op_data *op, double *whole, int64_t elements) {
    const char *name = dtm_string_text(run->context, op->attributes.name);
    if (run->options.provide && run->options.provide(run->options.provide_state, name, run->step, elements, whole))
        return;
    const dtm_input_bound *known = bound_of(run, op->attributes.name);
    uint32_t below = known && known->bound > 0 ? (uint32_t)known->bound : 2;
    dtm_dtype dtype = (dtm_dtype)run->module->types[run->module->values[op->results[0]].type].dtype;
    uint64_t stream = dtm_hash_name(name) + (uint64_t)run->step;
    for (int64_t i = 0; i < elements; i++) {
        uint32_t word = random_word(run->options.seed, stream, i);
        switch (dtype) {
        case DTM_I32:
            whole[i] = word % below;
            break;
        case DTM_U8:
            whole[i] = word % 256;
            break;
        case DTM_BOOL:
            whole[i] = word % 2;
            break;
        default:
            whole[i] = normal(run->options.seed, stream, i);
            break;
        }
        if (dtype == DTM_I32 && known && known->negative && word >> 16 & 1) whole[i] = -100;
    }
}

bool dtm_draw_keep(uint64_t seed, uint64_t site, int64_t step, int64_t copy, int64_t element, double p) {
    uint32_t place = (uint32_t)site + 0x9E3779B9u * (uint32_t)copy;
    return uniform(seed, (uint64_t)step << 32 | place, element) >= p;
}

/* Step t of W warms up with peak t / W; then from peak at W to floor at the last step of the schedule. */
double dtm_learning_rate(const dtm_train *train, int64_t step) {
    double t = (double)step;
    if (t <= train->warmup && train->warmup > 0) return train->peak * t / train->warmup;
    double length = train->schedule_steps - train->warmup, done = length > 0 ? (t - train->warmup) / length : 1;
    if (done > 1) done = 1;
    switch (train->schedule) {
    case DTM_LR_LINEAR:
        return train->peak + (train->floor - train->peak) * done;
    case DTM_LR_COSINE:
        return train->floor + (train->peak - train->floor) * 0.5 * (1 + cos(3.14159265358979323846 * done));
    default:
        return train->peak;
    }
}

/* ---- bounds of inputs ---- */

typedef struct bounds {
    const dtm_module *module;
    dtm_arena *arena;
    dtm_input_bound *data;
    bool *never_negative; /* [input]: indexes rows as it is */
    size_t count, capacity, capacity_never;
} bounds;

typedef struct use {
    int64_t bound; /* 0: says nothing */
    bool compared; /* with a number that is not positive */
    bool as_index; /* of a row: must not be negative */
} use;

/* Brings what is known of a value to the inputs that it is made from by moving elements about. */
static void trace(bounds *b, dtm_value value, use use, int depth) {
    dtm_op def = b->module->values[value].def;
    if (!def || depth > 64) return;
    const dtm_op_data *op = &b->module->ops[def];
    switch (op->kind) {
    case DTM_OP_INPUT:
        for (size_t i = 0; i < b->count; i++) {
            dtm_input_bound *known = &b->data[i];
            if (known->name != op->attributes.name) continue;
            if (use.bound && (!known->bound || use.bound < known->bound)) known->bound = use.bound;
            known->negative |= use.compared;
            b->never_negative[i] |= use.as_index;
        }
        return;
    case DTM_OP_WHERE:
    case DTM_OP_MAXIMUM: /* may set negative ones aside */
        use.as_index = false;
        for (uint32_t i = op->kind == DTM_OP_WHERE; i < op->n_operands; i++) trace(b, op->operands[i], use, depth + 1);
        return;
    case DTM_OP_CAST:
    case DTM_OP_CARRY:
    case DTM_OP_LAST:
    case DTM_OP_EXPAND:
    case DTM_OP_SPLIT:
    case DTM_OP_MERGE:
    case DTM_OP_RENAME:
    case DTM_OP_SLICE:
    case DTM_OP_RELAYOUT:
    case DTM_OP_SHARD:
    case DTM_OP_PERMUTE:
        trace(b, op->operands[0], use, depth + 1);
        return;
    case DTM_OP_ALL_REDUCE:
    case DTM_OP_ALL_GATHER:
    case DTM_OP_REDUCE_SCATTER:
    case DTM_OP_ALL_TO_ALL:
        trace(b, op->operands[b->module->values[value].result], use, depth + 1);
        return;
    case DTM_OP_CONCAT:
        for (uint32_t i = 0; i < 2; i++) trace(b, op->operands[i], use, depth + 1);
        return;
    default:
        return;
    }
}

/* The dimension a value is the position along, through relayouts; 0: none. */
static dtm_dim position_of(const dtm_module *module, dtm_value value) {
    for (int depth = 0; depth < 64; depth++) {
        dtm_op def = module->values[value].def;
        if (!def) return 0;
        const dtm_op_data *op = &module->ops[def];
        if (op->kind == DTM_OP_POSITIONS) return op->attributes.over[0];
        if (op->kind != DTM_OP_RELAYOUT && op->kind != DTM_OP_SHARD && op->kind != DTM_OP_CAST &&
            op->kind != DTM_OP_EXPAND)
            return 0;
        value = op->operands[0];
    }
    return 0;
}

static void trace_comparison(bounds *b, const dtm_op_data *op) {
    bool asked = !dtm_is_part_of(b->module, op, DTM_OP_CROSS_ENTROPY); /* by the program; a loss always does */
    for (uint32_t i = 0; i < 2; i++) {
        dtm_value other = op->operands[1 - i];
        const dtm_value_data *data = &b->module->values[other];
        if (asked && !data->def && data->number <= 0) trace(b, op->operands[i], (use){.compared = true}, 0);
        dtm_dim dim = position_of(b->module, other);
        if (dim && (op->kind == DTM_OP_EQ || op->kind == DTM_OP_NE))
            trace(b, op->operands[i], (use){.bound = b->module->dims[dim].size}, 0);
    }
}

static void trace_op(bounds *b, const dtm_op_data *op) {
    int64_t size = op->attributes.n_over ? b->module->dims[op->attributes.over[0]].size : 0;
    switch (op->kind) {
    case DTM_OP_GATHER:
        trace(b, op->operands[1], (use){.bound = size, .as_index = true}, 0);
        break;
    case DTM_OP_SCATTER:
        trace(b, op->operands[0], (use){.bound = size, .as_index = true}, 0);
        break;
    case DTM_OP_CROSS_ENTROPY:
        trace(b, op->operands[1], (use){.bound = size}, 0);
        break;
    case DTM_OP_CROSS_ENTROPY_BACKWARD:
        trace(b, op->operands[2], (use){.bound = size}, 0);
        break;
    case DTM_OP_LT:
    case DTM_OP_LE:
    case DTM_OP_GT:
    case DTM_OP_GE:
    case DTM_OP_EQ:
    case DTM_OP_NE:
        trace_comparison(b, op);
        break;
    default:
        break;
    }
}

/* What inputs must satisfy on all ranks of a pipeline. */
static size_t bounds_of_ranks(const dtm_module *module, dtm_arena *arena, dtm_input_bound **out) {
    dtm_input_bound *all = NULL;
    size_t count = 0, capacity = 0;
    for (size_t r = 0; r < module->n_ranks; r++) {
        dtm_input_bound *some;
        size_t n = dtm_input_bounds(module->ranks[r], arena, &some), k;
        for (size_t i = 0; i < n; i++) {
            for (k = 0; k < count && all[k].name != some[i].name;) k++;
            if (k == count) DTM_PUSH(arena, all, count, capacity, some[i]);
            if (some[i].bound && (!all[k].bound || some[i].bound < all[k].bound)) all[k].bound = some[i].bound;
            all[k].negative &= some[i].negative;
        }
    }
    *out = all;
    return count;
}

size_t dtm_input_bounds(const dtm_module *module, dtm_arena *arena, dtm_input_bound **out) {
    if (module->n_ranks) return bounds_of_ranks(module, arena, out);
    bounds b = {.module = module, .arena = arena};
    for (dtm_op o = 1; o < module->n_ops; o++)
        if (module->ops[o].kind == DTM_OP_INPUT) {
            dtm_input_bound bound = {.name = module->ops[o].attributes.name};
            size_t count = b.count;
            DTM_PUSH(arena, b.data, b.count, b.capacity, bound);
            DTM_PUSH(arena, b.never_negative, count, b.capacity_never, false);
        }
    for (dtm_op o = 1; o < module->n_ops; o++) trace_op(&b, &module->ops[o]);
    for (size_t i = 0; i < b.count; i++) b.data[i].negative &= !b.never_negative[i];
    *out = b.data;
    return b.count;
}
