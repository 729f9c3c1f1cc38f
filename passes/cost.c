/* The machine model (cost.h). A collective's time is rounds * latency + sent / bandwidth, for the algorithm where that is
 * least; an operator's the larger of FLOPs / rate and bytes / memory bandwidth. */
#include "passes/cost_bytes.h"
#include "ir/fault.h"
#include "ir/storage.h"

static double given(double value, double otherwise) { return value > 0 ? value : otherwise; }

dtm_machine dtm_machine_of(const dtm_module *module) {
    dtm_machine m = module->settings.machine;
    if (m.devices_per_node <= 0) m.devices_per_node = INT32_MAX;
    m.flops_f32 = given(m.flops_f32, 1e11);
    m.flops_bf16 = given(m.flops_bf16, m.flops_f32);
    m.memory_bandwidth = given(m.memory_bandwidth, 2e10);
    m.node_bandwidth = given(m.node_bandwidth, 5e9);
    m.node_latency = given(m.node_latency, 2e-6);
    m.network_bandwidth = given(m.network_bandwidth, 1e9);
    m.network_latency = given(m.network_latency, 2e-5);
    return m;
}

/* ---- links ---- */

int64_t dtm_group_size(const dtm_module *module, uint16_t axes) {
    int64_t ranks = 1;
    for (int a = 0; a < module->settings.mesh.count; a++)
        if (axes >> a & 1 && !module->settings.mesh.axes[a].time) ranks *= module->settings.mesh.axes[a].size;
    return ranks;
}

/* A node is a run of devices_per_node ranks. A group along axes whose largest stride times size is w lies within an
 * aligned run of w ranks: within one node if w divides the node. */
dtm_link dtm_link_of(const dtm_module *module, uint16_t axes) {
    const dtm_mesh *mesh = &module->settings.mesh;
    dtm_machine machine = dtm_machine_of(module);
    int64_t stride = 1, reach = 1;
    for (int a = mesh->count - 1; a >= 0; a--) {
        if (mesh->axes[a].time) continue;
        if (axes >> a & 1 && mesh->axes[a].size > 1) reach = stride * mesh->axes[a].size;
        stride *= mesh->axes[a].size;
    }
    if (dtm_group_size(module, axes) == 1) return (dtm_link){"time", machine.node_bandwidth, 0};
    bool inside = reach <= machine.devices_per_node && (machine.devices_per_node % reach == 0 || stride == reach ||
                                                        stride <= machine.devices_per_node);
    if (inside) return (dtm_link){"node", machine.node_bandwidth, machine.node_latency};
    return (dtm_link){"network", machine.network_bandwidth, machine.network_latency};
}

/* ---- algorithms ---- */

/* Bytes sent by the rank that sends most, blocks being even. */
static double sent_even(dtm_collective_kind kind, dtm_algorithm algorithm, int64_t n, double payload) {
    double share = payload / (double)n;
    switch (kind) {
    case DTM_COLLECTIVE_ALL_REDUCE:
        if (algorithm == DTM_ALGORITHM_DOUBLING) return (double)dtm_collective_rounds(kind, algorithm, (int)n) * payload;
        if (algorithm == DTM_ALGORITHM_GATHER) return (double)(n - 1) * payload;
        return (dtm_fault(48) ? 1 : 2) * (double)(n - 1) * share;
    case DTM_COLLECTIVE_ALL_TO_ALL: return (double)(n - 1) * share / (double)n;
    case DTM_COLLECTIVE_BROADCAST: return (double)dtm_collective_rounds(kind, algorithm, (int)n) * payload;
    default: return (double)(n - 1) * share;
    }
}

static double time_by(dtm_algorithm algorithm, dtm_collective_kind kind, dtm_link link, int64_t n, int64_t payload) {
    return (double)dtm_collective_rounds(kind, algorithm, (int)n) * link.latency +
           sent_even(kind, algorithm, n, (double)payload) / link.bandwidth;
}

/* Among n ranks of a group along the axes. */
static dtm_algorithm choose_among(const dtm_module *module, dtm_collective_kind kind, uint16_t axes, int64_t n,
                                  int64_t payload, double *time) {
    dtm_link link = dtm_link_of(module, axes);
    dtm_algorithm best = DTM_ALGORITHM_RING;
    double least = -1;
    for (int i = 0; i < DTM_ALGORITHMS; i++) {
        dtm_algorithm algorithm = (dtm_algorithm)i;
        if (!dtm_algorithm_fits(kind, algorithm, (int)n)) continue;
        double t = time_by(algorithm, kind, link, n, payload);
        if (least < 0 || t < least) {
            least = t;
            best = algorithm;
        }
    }
    if (time) *time = n > 1 ? least : 0;
    return best;
}

dtm_algorithm dtm_algorithm_choose(const dtm_module *module, dtm_collective_kind kind, uint16_t axes, int64_t payload,
                                   double *time) {
    return choose_among(module, kind, axes, dtm_group_size(module, axes), payload, time);
}

/* ---- steps ---- */

int64_t dtm_group_of(const dtm_module *module, const dtm_op_data *op) {
    int64_t members = dtm_collective_members(module, op);
    return members ? members : dtm_group_size(module, op->attributes.axes);
}

bool dtm_is_collective(dtm_op_kind kind) {
    return kind == DTM_OP_ALL_REDUCE || kind == DTM_OP_ALL_GATHER || kind == DTM_OP_REDUCE_SCATTER ||
           kind == DTM_OP_ALL_TO_ALL || kind == DTM_OP_PERMUTE;
}

static dtm_collective_kind kind_of(dtm_op_kind kind) {
    switch (kind) {
    case DTM_OP_ALL_REDUCE: return DTM_COLLECTIVE_ALL_REDUCE;
    case DTM_OP_REDUCE_SCATTER: return DTM_COLLECTIVE_REDUCE_SCATTER;
    case DTM_OP_ALL_GATHER: return DTM_COLLECTIVE_ALL_GATHER;
    default: return DTM_COLLECTIVE_ALL_TO_ALL;
    }
}

static int64_t local_bytes(const dtm_module *module, const dtm_type_data *type) {
    int64_t bytes = dtm_dtype_bytes((dtm_dtype)type->dtype);
    for (int i = 0; i < type->rank; i++) bytes *= dtm_block_max(module, type, i);
    return bytes;
}

/* The bytes a group works on: what each rank has before a reduction, what it has after a gather, and of an exchange what
 * all of them have. */
static int64_t payload_of(const dtm_module *module, dtm_op_kind kind, uint16_t axes, const dtm_type_data *from,
                          const dtm_type_data *to) {
    if (kind == DTM_OP_ALL_GATHER) return local_bytes(module, to);
    int64_t bytes = local_bytes(module, from);
    if (kind == DTM_OP_ALL_TO_ALL || kind == DTM_OP_PERMUTE) return dtm_bytes_times(bytes, dtm_group_size(module, axes));
    return bytes;
}

static dtm_collective_cost costs(const dtm_module *module, dtm_op_kind kind, uint16_t axes, int64_t group, int64_t payload) {
    dtm_collective_cost cost = {.kind = kind_of(kind), .group = group, .payload = payload};
    cost.link = dtm_link_of(module, axes);
    cost.sends = dtm_is_collective(kind) && cost.group > 1;
    if (!cost.sends) return cost;
    cost.algorithm = choose_among(module, cost.kind, axes, group, payload, &cost.time);
    return cost;
}

/* A local step reads and writes memory; so does every collective, which is left out beside the link. */
static double copy_time(const dtm_module *module, const dtm_type_data *from, const dtm_type_data *to) {
    return (double)(local_bytes(module, from) + local_bytes(module, to)) / dtm_machine_of(module).memory_bandwidth;
}

dtm_collective_cost dtm_step_cost(const dtm_module *module, dtm_op_kind kind, uint16_t axes, const dtm_type_data *from,
                                  const dtm_type_data *to) {
    dtm_collective_cost cost =
        costs(module, kind, axes, dtm_group_size(module, axes), payload_of(module, kind, axes, from, to));
    if (!cost.sends) {
        cost.time = copy_time(module, from, to) * 0.01; /* most often a view, and never worth a message */
        return cost;
    }
    if (kind == DTM_OP_PERMUTE || kind == DTM_OP_ALL_TO_ALL) {
        cost.sent = dtm_most_sent(module, kind, axes, from, to, cost.payload, cost.algorithm);
        cost.time = cost.link.latency + (double)cost.sent / cost.link.bandwidth;
    }
    return cost;
}

/* A message from one rank of a pipeline to another. */
static dtm_collective_cost message_cost(const dtm_module *module, const dtm_op_data *op) {
    dtm_collective_cost cost = {.sends = true, .kind = DTM_COLLECTIVE_BROADCAST, .group = 2};
    for (uint32_t i = 0; i < op->n_operands; i++)
        cost.payload = dtm_bytes_plus(cost.payload, local_bytes(module, dtm_value_type(module, op->operands[i])));
    cost.sent = cost.payload;
    cost.link = dtm_link_of(module, op->attributes.axes);
    cost.time = cost.link.latency + (double)cost.sent / cost.link.bandwidth;
    return cost;
}

dtm_collective_cost dtm_collective_cost_of(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(module, op);
    if (data->kind == DTM_OP_SEND) return message_cost(module, data);
    dtm_collective_cost total = {.sends = false};
    int64_t payload = 0;
    for (uint32_t i = 0; i < data->n_operands; i++)
        payload = dtm_bytes_plus(payload, payload_of(module, data->kind, data->attributes.axes,
                                                     dtm_value_type(module, data->operands[i]),
                                                     dtm_value_type(module, data->results[i])));
    total = costs(module, data->kind, data->attributes.axes, dtm_group_of(module, data), payload);
    if (!total.sends) return total;
    bool chosen = data->attributes.flags && *dtm_op_rows[data->kind].flags, in_steps = dtm_is_in_steps(module, op);
    dtm_algorithm algorithm = chosen ? dtm_collective_algorithm(data) : DTM_ALGORITHM_RING;
    if ((chosen || in_steps) && dtm_algorithm_fits(total.kind, algorithm, (int)total.group)) {
        total.algorithm = algorithm;
        total.time = time_by(algorithm, total.kind, total.link, total.group, payload);
    }
    if (dtm_along_pipeline(module, data)) { /* of its ranks, which have programs of their own, each has all of it */
        dtm_collective_counts flat = {
            .own = payload / dtm_dtype_bytes((dtm_dtype)dtm_value_type(module, data->operands[0])->dtype)};
        for (int64_t i = 0; i < total.group; i++) {
            int64_t sent = dtm_collective_sent_of(total.kind, total.algorithm, (int)total.group, (int)i, &flat,
                                                  payload / (flat.own ? flat.own : 1));
            total.sent = sent > total.sent ? sent : total.sent;
        }
        return total;
    }
    if (data->kind == DTM_OP_ALL_REDUCE) { /* a bucket is one flat payload */
        total.sent = dtm_most_sent(module, data->kind, data->attributes.axes, dtm_value_type(module, data->operands[0]),
                                NULL, payload, total.algorithm);
        return total;
    }
    for (uint32_t i = 0; i < data->n_operands; i++)
        total.sent = dtm_bytes_plus(
            total.sent, dtm_most_sent(module, data->kind, data->attributes.axes, dtm_value_type(module, data->operands[i]),
                                      dtm_value_type(module, data->results[i]), payload, total.algorithm));
    if (data->kind == DTM_OP_PERMUTE || data->kind == DTM_OP_ALL_TO_ALL)
        total.time = total.link.latency + (double)total.sent / total.link.bandwidth;
    return total;
}

double dtm_collective_time_of(const dtm_module *module, dtm_op op, int64_t payload) {
    const dtm_op_data *data = dtm_op_get(module, op);
    return costs(module, data->kind, data->attributes.axes, dtm_group_of(module, data), payload).time;
}

dtm_algorithm dtm_algorithm_of(const dtm_module *module, dtm_op op) {
    return dtm_collective_cost_of(module, op).algorithm;
}

/* ---- compute ---- */

/* The size of a factor on the rank that has most of it. */
static double factor_size(const dtm_module *module, const dtm_op_data *op, const dtm_factor *factor) {
    for (uint32_t i = 0; i < op->n_operands; i++)
        if (factor->operand_dim[i] >= 0)
            return (double)dtm_block_max(module, dtm_value_type(module, op->operands[i]), factor->operand_dim[i]);
    for (uint32_t i = 0; i < op->n_results; i++)
        if (factor->result_dim[i] >= 0)
            return (double)dtm_block_max(module, dtm_value_type(module, op->results[i]), factor->result_dim[i]);
    return 1;
}

/* FLOPs for each point of the operator's loop nest. A function counts for ten. There is no default, so that an operator
 * without a line does not compile. */
static double flops_a_point(dtm_op_kind kind, bool causal) {
    switch (kind) {
    case DTM_OP_DOT: return 2;
    case DTM_OP_ATTENTION: return causal ? 2 : 4;
    case DTM_OP_ATTENTION_BACKWARD: return causal ? 5 : 10;
    case DTM_OP_SOFTMAX: case DTM_OP_LOG_SOFTMAX: case DTM_OP_CROSS_ENTROPY: case DTM_OP_CROSS_ENTROPY_BACKWARD:
    case DTM_OP_EXP: case DTM_OP_LOG: case DTM_OP_TANH: case DTM_OP_SIGMOID: case DTM_OP_ERF: case DTM_OP_GELU:
    case DTM_OP_GELU_TANH: case DTM_OP_SILU: case DTM_OP_SOFTPLUS: case DTM_OP_GELU_BACKWARD: case DTM_OP_GELU_TANH_BACKWARD:
    case DTM_OP_SILU_BACKWARD: case DTM_OP_DROPOUT:
        return 10;
    case DTM_OP_NONE: case DTM_OP_INPUT: case DTM_OP_WEIGHT: case DTM_OP_STATE: case DTM_OP_POSITIONS: case DTM_OP_FILL:
    case DTM_OP_LEARNING_RATE: case DTM_OP_BIAS_CORRECTION: case DTM_OP_ADD: case DTM_OP_SUB: case DTM_OP_MUL:
    case DTM_OP_DIV: case DTM_OP_NEG: case DTM_OP_LT: case DTM_OP_LE: case DTM_OP_GT: case DTM_OP_GE: case DTM_OP_EQ:
    case DTM_OP_NE: case DTM_OP_MINIMUM: case DTM_OP_MAXIMUM: case DTM_OP_WHERE: case DTM_OP_SQRT: case DTM_OP_RSQRT:
    case DTM_OP_RELU: case DTM_OP_SQUARE: case DTM_OP_ABS: case DTM_OP_CAST: case DTM_OP_TANH_BACKWARD:
    case DTM_OP_SIGMOID_BACKWARD: case DTM_OP_RELU_BACKWARD: case DTM_OP_EXPAND: case DTM_OP_SUM:
    case DTM_OP_MEAN: case DTM_OP_REDUCE_MAX: case DTM_OP_RMSNORM: case DTM_OP_LAYERNORM: case DTM_OP_SOFTMAX_BACKWARD:
    case DTM_OP_LOG_SOFTMAX_BACKWARD: case DTM_OP_RMSNORM_BACKWARD: case DTM_OP_LAYERNORM_BACKWARD: case DTM_OP_ROPE:
    case DTM_OP_GATHER: case DTM_OP_SCATTER: case DTM_OP_SPLIT: case DTM_OP_MERGE: case DTM_OP_RENAME: case DTM_OP_CONCAT:
    case DTM_OP_SLICE: case DTM_OP_PAD: case DTM_OP_TOP: case DTM_OP_EXPERTS: case DTM_OP_REPEAT: case DTM_OP_FORWARD:
    case DTM_OP_BACKWARD: case DTM_OP_UPDATE: case DTM_OP_MICROBATCH: case DTM_OP_FUSED: case DTM_OP_CARRY: case DTM_OP_LAST:
    case DTM_OP_ACCUMULATE: case DTM_OP_REPORT: case DTM_OP_OUTPUT: case DTM_OP_STORE: case DTM_OP_GRADIENT: case DTM_OP_SEND:
    case DTM_OP_RECEIVE:
    case DTM_OP_RELAYOUT: case DTM_OP_SHARD: case DTM_OP_AS_TERM: case DTM_OP_ALL_REDUCE: case DTM_OP_ALL_GATHER:
    case DTM_OP_REDUCE_SCATTER: case DTM_OP_ALL_TO_ALL: case DTM_OP_PERMUTE: case DTM_OP_KINDS:
        return 1;
    }
    return 1;
}

double dtm_op_flops(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(module, op);
    dtm_factor factors[DTM_MAX_FACTORS];
    size_t n = dtm_factors(module, op, factors);
    bool attention = data->kind == DTM_OP_ATTENTION || data->kind == DTM_OP_ATTENTION_BACKWARD;
    bool rows = data->kind == DTM_OP_GATHER || data->kind == DTM_OP_SCATTER; /* one of all, for each index */
    double points = n ? 1 : 0, keys = 0, values = 0;
    for (size_t i = 0; i < n; i++) {
        double size = factor_size(module, data, &factors[i]);
        bool of_keys = attention && factors[i].names[0] == data->attributes.over[1];
        bool of_values = attention && factors[i].operand_dim[0] < 0 && factors[i].operand_dim[1] < 0 &&
                         factors[i].operand_dim[2] >= 0;
        if (of_keys) keys = size;
        if (of_values) values = size;
        bool chosen = rows && factors[i].names[0] == data->attributes.over[0];
        points *= of_values || chosen ? 1 : size;
    }
    /* values of another width than the keys': of two products one has it, of the five of the backward pass two */
    if (keys > 0 && values > 0)
        points *= data->kind == DTM_OP_ATTENTION ? (keys + values) / (2 * keys) : (3 * keys + 2 * values) / (5 * keys);
    return points * flops_a_point(data->kind, attention && data->attributes.flags & DTM_ATTENTION_CAUSAL);
}

double dtm_read_bytes(const dtm_module *module, dtm_value value) {
    return (double)(dtm_value_is_constant(module, value) ? dtm_dtype_bytes(DTM_F32) : dtm_local_bytes_max(module, module->values[value].type));
}

double dtm_op_bytes(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(module, op);
    double bytes = 0;
    for (uint32_t i = 0; i < data->n_operands; i++) /* of a table the rows that are gathered */
        bytes += data->kind == DTM_OP_GATHER && i == 0
                     ? (double)dtm_local_bytes_max(module, module->values[data->results[0]].type)
                     : dtm_read_bytes(module, data->operands[i]);
    for (uint32_t i = 0; i < data->n_results; i++)
        bytes += (double)dtm_local_bytes_max(module, module->values[data->results[i]].type);
    return bytes;
}

/* Whether a product's factors, or those of attention's, are half of f32: then units for that multiply them. */
static bool multiplies_halves(const dtm_module *module, const dtm_op_data *op) {
    bool products = op->kind == DTM_OP_DOT || op->kind == DTM_OP_ATTENTION || op->kind == DTM_OP_ATTENTION_BACKWARD;
    for (uint32_t i = 0; products && i < 2; i++) products = dtm_dtype_is_half((dtm_dtype)dtm_value_type(module, op->operands[i])->dtype);
    return products;
}

double dtm_op_compute(const dtm_module *module, dtm_op op) {
    dtm_machine machine = dtm_machine_of(module);
    const dtm_op_data *data = dtm_op_get(module, op);
    return dtm_op_flops(module, op) / (multiplies_halves(module, data) ? machine.flops_bf16 : machine.flops_f32);
}

double dtm_op_time(const dtm_module *module, dtm_op op) {
    if (dtm_is_collective(dtm_op_get(module, op)->kind)) return dtm_collective_cost_of(module, op).time;
    double compute = dtm_op_compute(module, op);
    double memory = dtm_op_bytes(module, op) / dtm_machine_of(module).memory_bandwidth;
    return compute > memory ? compute : memory;
}
