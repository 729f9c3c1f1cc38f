/* What memory and code generation both must know of a module that runs (storage.h). */
#include "ir/storage.h"
#include "ir/calls.h"
#include "ir/fault.h"

#include <string.h>

/* ---- order ---- */

static void order_region(const dtm_module *module, dtm_region region, dtm_order *order) {
    for (size_t i = 0; i < module->regions[region].n_ops; i++) {
        dtm_op op = module->regions[region].ops[i];
        const dtm_op_data *data = &module->ops[op];
        order->begin[op] = order->length++;
        if (data->kind == DTM_OP_FUSED) {
            for (size_t j = 0; j < module->regions[data->body].n_ops; j++)
                order->begin[module->regions[data->body].ops[j]] = order->end[module->regions[data->body].ops[j]] =
                    order->begin[op];
        } else if (data->body) {
            order_region(module, data->body, order);
            order->length++;
        }
        order->end[op] = order->length - 1;
    }
}

dtm_order dtm_order_of(const dtm_module *module, dtm_arena *arena) {
    dtm_order order = {dtm_arena_alloc(arena, module->n_ops * sizeof(int64_t)),
                       dtm_arena_alloc(arena, module->n_ops * sizeof(int64_t)), 0};
    order_region(module, module->body, &order);
    return order;
}

dtm_op dtm_unit_of(const dtm_module *module, dtm_op op) {
    dtm_op parent = module->regions[module->ops[op].region].parent;
    return parent && module->ops[parent].kind == DTM_OP_FUSED ? parent : op;
}

/* ---- values in memory ---- */

/* Whether the product v has one reader, the `accumulate` op. */
static bool is_added_later(const dtm_module *module, const uint32_t *uses, dtm_op accumulate) {
    dtm_value v = module->ops[accumulate].operands[0];
    dtm_op def = module->values[v].def;
    return def && module->ops[def].kind == DTM_OP_DOT && module->ops[def].n_operands == 2 && uses[v] == 1 &&
           module->ops[def].region == module->ops[accumulate].region && dtm_value_type(module, v)->dtype == DTM_F32;
}

bool *dtm_stored(const dtm_module *module, dtm_arena *arena) {
    const uint32_t *uses = dtm_use_counts(module, arena);
    bool *stored = dtm_arena_alloc(arena, module->n_values * sizeof *stored);
    for (dtm_op op = 1; op < module->n_ops; op++) {
        const dtm_op_data *data = &module->ops[op];
        if (!data->region) continue;
        dtm_op unit = dtm_unit_of(module, op);
        for (uint32_t i = 0; unit == op && i < data->n_results; i++) stored[data->results[i]] = true;
        for (uint32_t i = 0; i < data->n_operands; i++) {
            dtm_op def = module->values[data->operands[i]].def;
            if (def && dtm_unit_of(module, def) != unit) stored[data->operands[i]] = true;
        }
    }
    for (dtm_op op = 1; op < module->n_ops; op++)
        if (module->ops[op].region && module->ops[op].kind == DTM_OP_ACCUMULATE && is_added_later(module, uses, op))
            stored[module->ops[op].operands[0]] = false;
    return stored;
}

/* The dimensions of a type with each one of `over` written in place of `dim`. */
static int spread(const dtm_type_data *type, dtm_dim dim, const dtm_dim *parts, int n, dtm_dim *out) {
    int count = 0;
    for (int i = 0; i < type->rank; i++) {
        if (type->dims[i] != dim) out[count++] = type->dims[i];
        else
            for (int j = 0; j < n; j++) out[count++] = parts[j];
    }
    return count;
}

bool dtm_is_alias(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    const dtm_attributes *a = &data->attributes;
    if (data->kind == DTM_OP_AS_TERM) return a->number[DTM_AS_TERM_OWN] != 0;
    if (data->kind != DTM_OP_RENAME && data->kind != DTM_OP_SPLIT && data->kind != DTM_OP_MERGE) return false;
    const dtm_type_data *from = dtm_value_type(module, data->operands[0]), *to = dtm_value_type(module, data->results[0]);
    dtm_dim one[2 * DTM_MAX_RANK], other[2 * DTM_MAX_RANK];
    int n, m;
    if (data->kind == DTM_OP_MERGE) {
        n = spread(to, a->as[0], a->over, a->n_over, one);
        m = spread(from, 0, NULL, 0, other);
    } else {
        n = spread(from, a->over[0], a->as, a->n_as, one);
        m = spread(to, 0, NULL, 0, other);
    }
    return n == m && memcmp(one, other, (size_t)n * sizeof *one) == 0;
}

dtm_value dtm_root_of(const dtm_module *module, dtm_value value) {
    for (dtm_op def; (def = module->values[value].def) && dtm_is_alias(module, def);) value = module->ops[def].operands[0];
    return value;
}

/* ---- kernels ---- */

bool dtm_is_reduction(dtm_op_kind kind) {
    return kind == DTM_OP_SUM || kind == DTM_OP_MEAN || kind == DTM_OP_REDUCE_MAX;
}

static const char *const factor_rules[DTM_OP_KINDS] = {
    "none",
#define OP(kind, name, least, most, results, rule, ...) #rule,
#include "ir/ops.def"
#undef OP
};

bool dtm_is_elementwise(dtm_op_kind kind) {
    return strcmp(factor_rules[kind], "pointwise") == 0;
}

bool dtm_computes(dtm_op_kind kind) {
    static const char *const rules[] = {"pointwise", "dot", "reduce", "normalise", "norm_backward", "rope", "scatter", "attention"};
    if (kind == DTM_OP_CAST || kind == DTM_OP_EXPAND) return false;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (strcmp(factor_rules[kind], rules[i]) == 0) return true;
    return false;
}

bool dtm_only_computes(dtm_op_kind kind) {
    static const char *const others[] = {"none", "source", "sink", "layout", "identity"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(factor_rules[kind], others[i]) == 0) return kind == DTM_OP_ACCUMULATE;
    return true;
}

bool dtm_is_cheap(dtm_op_kind kind) {
    switch (kind) {
    case DTM_OP_ADD: case DTM_OP_SUB: case DTM_OP_MUL: case DTM_OP_NEG: case DTM_OP_SQUARE: case DTM_OP_CAST:
    case DTM_OP_LT: case DTM_OP_LE: case DTM_OP_GT: case DTM_OP_GE: case DTM_OP_EQ: case DTM_OP_NE: case DTM_OP_WHERE:
    case DTM_OP_FILL: case DTM_OP_POSITIONS: case DTM_OP_EXPAND: case DTM_OP_RELU: case DTM_OP_ABS: return true;
    default: return false;
    }
}

int dtm_fused_levels(const dtm_module *module, dtm_op fused, int *levels) {
    const dtm_region_data *body = &module->regions[module->ops[fused].body];
    int most = 0;
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *op = &module->ops[body->ops[i]];
        levels[i] = 0;
        for (uint32_t k = 0; k < op->n_operands; k++)
            for (size_t j = 0; j < i; j++)
                if (body->ops[j] == module->values[op->operands[k]].def) {
                    int after = levels[j] + dtm_is_reduction(module->ops[body->ops[j]].kind);
                    if (after > levels[i]) levels[i] = after;
                }
        if (levels[i] > most) most = levels[i];
    }
    return most;
}

int dtm_column_kept(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    if (!dtm_is_reduction(data->kind) || data->n_operands != 1) return 0;
    const dtm_type_data *type = dtm_value_type(module, data->operands[0]);
    int reduced = data->attributes.n_over;
    int64_t rows = 1;
    for (int i = 0; i < reduced; i++) {
        int at = dtm_type_dim_index(type, data->attributes.over[i]);
        if (at < 0 || at >= reduced) return 0;
        rows *= dtm_block_max(module, type, at);
    }
    return rows > DTM_COLUMN_ROWS ? type->rank - reduced : 0;
}

static bool is_pointwise(dtm_op_kind kind) {
    return dtm_is_elementwise(kind) && kind != DTM_OP_EXPAND;
}

static bool same_block(const dtm_module *module, dtm_value a, dtm_value b) {
    const dtm_type_data *x = dtm_value_type(module, a), *y = dtm_value_type(module, b);
    return dtm_dtype_bytes((dtm_dtype)x->dtype) == dtm_dtype_bytes((dtm_dtype)y->dtype) && x->rank == y->rank &&
           memcmp(x->dims, y->dims, sizeof x->dims) == 0 && memcmp(x->layout, y->layout, sizeof x->layout) == 0;
}

bool dtm_may_overwrite(const dtm_module *module, dtm_op unit, dtm_value result, dtm_value operand) {
    const dtm_op_data *data = &module->ops[unit];
    if (!same_block(module, result, operand)) return false;
    if (data->kind == DTM_OP_ALL_REDUCE) {
        for (uint32_t i = 0; i < data->n_operands; i++)
            if (data->operands[i] == operand) return data->results[i] == result;
        return false;
    }
    if (data->kind == DTM_OP_AS_TERM) return true;
    if (data->kind == DTM_OP_ROPE) return !dtm_packed_along(module, unit, 0) && !dtm_packed_along(module, unit, 1);
    if (data->kind == DTM_OP_CROSS_ENTROPY_BACKWARD) return operand == data->operands[0];
    if (data->kind == DTM_OP_DOT) return data->n_operands == 3 && operand == data->operands[2];
    if (data->kind != DTM_OP_FUSED) return is_pointwise(data->kind);
    const dtm_region_data *body = &module->regions[data->body];
    int levels[4096];
    if (body->n_ops > 4096) return false;
    int most = dtm_fused_levels(module, unit, levels);
    for (size_t i = 0; i < body->n_ops; i++)
        if (body->ops[i] == module->values[result].def)
            return (levels[i] == most || dtm_fault(36)) && !dtm_is_reduction(module->ops[body->ops[i]].kind);
    return false;
}

/* ---- packing ---- */

/* Values have the width of the queries, or one that the keys lack. */
static dtm_dim width_of_values(const dtm_module *module, const dtm_op_data *attention) {
    const dtm_type_data *k = dtm_value_type(module, attention->operands[1]), *v = dtm_value_type(module, attention->operands[2]);
    for (int i = 0; i < v->rank; i++)
        if (v->dims[i] == attention->attributes.over[1] || dtm_type_dim_index(k, v->dims[i]) < 0) return v->dims[i];
    return attention->attributes.over[1];
}

dtm_dim dtm_packed_along(const dtm_module *module, dtm_op op, uint32_t index) {
    enum { WIDTH, VALUES, NONE };
    static const char roles[] = {WIDTH, WIDTH, VALUES, VALUES, NONE, VALUES, WIDTH, WIDTH, VALUES}; /* q k v o lse do dq dk dv */
    const dtm_op_data *data = &module->ops[op];
    dtm_value v = index < data->n_operands ? data->operands[index] : data->results[index - data->n_operands];
    const dtm_type_data *type = dtm_value_type(module, v);
    dtm_dim last = data->kind == DTM_OP_ROPE ? data->attributes.over[0] : data->attributes.over[1];
    if (data->kind != DTM_OP_ROPE && data->kind != DTM_OP_ATTENTION && data->kind != DTM_OP_ATTENTION_BACKWARD) return 0;
    if (data->kind != DTM_OP_ROPE && roles[index] == NONE) return 0;
    if (data->kind != DTM_OP_ROPE && roles[index] == VALUES) last = width_of_values(module, data);
    bool half = dtm_dtype_is_half((dtm_dtype)type->dtype); /* the kernels know f32 alone */
    return type->dims[type->rank - 1] == last && !half ? 0 : last;
}

int64_t dtm_packed_bytes(const dtm_module *module, dtm_value value) {
    const dtm_type_data *type = dtm_value_type(module, value);
    int64_t bytes = dtm_local_bytes_max(module, module->values[value].type);
    return bytes / dtm_dtype_bytes((dtm_dtype)type->dtype) * dtm_dtype_bytes(DTM_F32);
}

static int64_t packed_bytes(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    int64_t bytes = 0;
    for (uint32_t i = 0; i < data->n_operands + data->n_results; i++) {
        dtm_value v = i < data->n_operands ? data->operands[i] : data->results[i - data->n_operands];
        if (dtm_packed_along(module, op, i)) bytes += dtm_storage_round(dtm_packed_bytes(module, v));
    }
    return bytes;
}

/* ---- workspace ---- */

bool dtm_runs_collective(dtm_op_kind kind) {
    return kind == DTM_OP_ALL_REDUCE || kind == DTM_OP_ALL_GATHER || kind == DTM_OP_REDUCE_SCATTER ||
           kind == DTM_OP_ALL_TO_ALL || kind == DTM_OP_PERMUTE;
}

dtm_collective_kind dtm_collective_kind_of(dtm_op_kind kind) {
    switch (kind) {
    case DTM_OP_ALL_REDUCE: return DTM_COLLECTIVE_ALL_REDUCE;
    case DTM_OP_ALL_GATHER: return DTM_COLLECTIVE_ALL_GATHER;
    case DTM_OP_REDUCE_SCATTER: return DTM_COLLECTIVE_REDUCE_SCATTER;
    default: return DTM_COLLECTIVE_ALL_TO_ALL;
    }
}

dtm_algorithm dtm_collective_algorithm(const dtm_op_data *op) {
    for (int a = 0; a < DTM_ALGORITHMS; a++)
        if (op->attributes.flags & (1u << a)) return (dtm_algorithm)a;
    return DTM_ALGORITHM_PAIRWISE;
}

/* Every part is taken to be as large as the largest. */
int64_t dtm_collective_scratch(const dtm_module *module, dtm_op op, dtm_algorithm algorithm) {
    const dtm_op_data *data = &module->ops[op];
    dtm_collective_kind kind = dtm_collective_kind_of(data->kind);
    int64_t group = 1, in = 0, out = 0;
    for (int a = 0; a < module->settings.mesh.count; a++)
        if (data->attributes.axes >> a & 1) group *= module->settings.mesh.axes[a].size;
    if (data->attributes.members) group = dtm_collective_members(module, data);
    int64_t element = dtm_dtype_bytes((dtm_dtype)dtm_value_type(module, data->operands[0])->dtype);
    for (uint32_t i = 0; i < data->n_operands; i++) {
        in += dtm_local_bytes_max(module, module->values[data->operands[i]].type);
        out += dtm_local_bytes_max(module, module->values[data->results[i]].type);
    }
    bool whole = kind == DTM_COLLECTIVE_ALL_REDUCE || kind == DTM_COLLECTIVE_ALL_TO_ALL;
    int64_t part = ((in > out) == whole ? in : out) / element;
    dtm_collective_counts counts = {.total = 0, .largest = part, .own = part, .next = part}; /* the total is not asked for */
    int64_t bytes = dtm_collective_scratch_of(kind, algorithm, (int)group, &counts, element);
    return bytes > 0 ? bytes : 0;
}

/* Whether the blocks that `split` cuts out of `whole` lie one after another, in the order of the group's ranks: nothing
 * stands before the dimension that is cut, and the axes that cut it are in the mesh's order. */
static bool parts_in_order(const dtm_module *module, const dtm_type_data *whole, const dtm_type_data *split) {
    for (int i = 0; i < whole->rank; i++) {
        if (split->layout[i].count != whole->layout[i].count) {
            for (int s = whole->layout[i].count + 1; s < split->layout[i].count; s++)
                if (split->layout[i].splits[s].axis < split->layout[i].splits[s - 1].axis) return false;
            return true;
        }
        if (dtm_block_max(module, whole, i) != 1 && !dtm_fault(25)) return false;
    }
    return true;
}

/* To how many ranks an exchange sends each element: all that differ on axes which split the operand and not the result. */
static int64_t copies_sent(const dtm_module *module, const dtm_op_data *op, const dtm_type_data *in, const dtm_type_data *out) {
    if (op->kind != DTM_OP_PERMUTE && op->kind != DTM_OP_ALL_TO_ALL) return 1;
    uint16_t lost = dtm_type_split_axes(in) & (uint16_t)~dtm_type_split_axes(out) & op->attributes.axes;
    int64_t copies = 1;
    for (int a = 0; a < module->settings.mesh.count; a++)
        if (lost >> a & 1) copies *= module->settings.mesh.axes[a].size;
    return copies;
}

dtm_staging dtm_staging_of(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    dtm_staging staging = {.in_bytes = 0};
    for (uint32_t i = 0; i < data->n_operands; i++) {
        staging.in_bytes += dtm_local_bytes_max(module, module->values[data->operands[i]].type) *
                            copies_sent(module, data, dtm_value_type(module, data->operands[i]),
                                        dtm_value_type(module, data->results[i]));
        staging.out_bytes += dtm_local_bytes_max(module, module->values[data->results[i]].type);
    }
    staging.handed_on = data->n_operands > 1 && dtm_is_apart(module, op) && dtm_goes_on_from(module, op);
    staging.in_place = data->n_operands > 1 && data->kind == DTM_OP_ALL_REDUCE;
    if (staging.in_place) staging.out_bytes = 0;
    if (staging.handed_on) staging.in_bytes = staging.out_bytes = -1;
    if (data->n_operands > 1) return staging;
    const dtm_type_data *in = dtm_value_type(module, data->operands[0]), *out = dtm_value_type(module, data->results[0]);
    bool reduce = data->kind == DTM_OP_ALL_REDUCE;
    bool gather = data->kind == DTM_OP_ALL_GATHER, scatter = data->kind == DTM_OP_REDUCE_SCATTER;
    if (reduce || gather || (scatter && parts_in_order(module, in, out))) staging.in_bytes = -1;
    if (reduce || scatter || (gather && parts_in_order(module, out, in))) staging.out_bytes = -1;
    staging.in_result = !reduce && !gather && !scatter && staging.in_bytes <= staging.out_bytes;
    if (staging.in_result) staging.in_bytes = -1;
    return staging;
}

static int64_t rounded(int64_t bytes) { return bytes < 0 ? 0 : dtm_storage_round(bytes); }

static bool reduces_all(const dtm_module *module, dtm_op op) {
    return dtm_is_reduction(module->ops[op].kind) && !dtm_value_type(module, module->ops[op].results[0])->rank;
}

/* A reduction to a scalar keeps one double for each chunk, one along columns a row of them. */
static int64_t partial_bytes(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    int kept = dtm_column_kept(module, op);
    if (reduces_all(module, op) && !dtm_enclosing(module, op, DTM_OP_UPDATE)) return DTM_CHUNKS * (int64_t)sizeof(double);
    if (!kept) return 0;
    const dtm_type_data *type = dtm_value_type(module, data->operands[0]);
    int64_t rows = 1, columns = 1;
    for (int i = 0; i < type->rank; i++) *(i < type->rank - kept ? &rows : &columns) *= dtm_block_max(module, type, i);
    int64_t chunks = (rows + DTM_COLUMN_ROWS - 1) / DTM_COLUMN_ROWS;
    return (chunks < DTM_COLUMN_CHUNKS ? chunks : DTM_COLUMN_CHUNKS) * columns * (int64_t)sizeof(double);
}

int64_t dtm_workspace_bytes(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    if (dtm_runs_collective(data->kind)) {
        dtm_staging staging = dtm_staging_of(module, op);
        return rounded(staging.in_bytes) + rounded(staging.out_bytes) + rounded((int64_t)data->attributes.number[DTM_COLLECTIVE_SCRATCH]);
    }
    if (data->kind != DTM_OP_FUSED) return partial_bytes(module, op) + packed_bytes(module, op);
    int64_t bytes = 0;
    const dtm_region_data *body = &module->regions[data->body];
    for (size_t i = 0; i < body->n_ops; i++) bytes += partial_bytes(module, body->ops[i]);
    return bytes;
}

int64_t dtm_workspace_copies(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    int64_t copies = 1;
    if (!dtm_runs_collective(data->kind) || !dtm_is_apart(module, op)) return 1;
    dtm_op last = dtm_along_pipeline(module, data) || dtm_fault(112) ? op : dtm_handed_on_to(module, op);
    if (!last || !dtm_along_pipeline(module, &module->ops[last])) return 1;
    dtm_staging staging = dtm_staging_of(module, op);
    if (staging.in_bytes < 0 && staging.out_bytes < 0) return 1;
    for (dtm_op at = dtm_enclosing(module, op, DTM_OP_REPEAT); at; at = dtm_enclosing(module, at, DTM_OP_REPEAT))
        copies *= module->ops[at].attributes.copies;
    return copies;
}

int64_t dtm_workspace_most(const dtm_module *module, bool communication_only) {
    int64_t most = 0;
    for (dtm_op op = 1; op < module->n_ops; op++) {
        if (!module->ops[op].region || (communication_only && !dtm_runs_collective(module->ops[op].kind))) continue;
        if (dtm_is_apart(module, op)) continue;
        int64_t bytes = dtm_workspace_bytes(module, op);
        if (bytes > most) most = bytes;
    }
    return dtm_storage_round(most);
}

int64_t dtm_workspace_begin(const dtm_module *module) {
    return module->arena_bytes - dtm_constants_bytes(module) - dtm_workspace_most(module, false);
}

/* ---- constants ---- */

static int64_t table_bytes(const dtm_module *module, const dtm_op_data *rope) {
    const dtm_type_data *x = dtm_value_type(module, rope->operands[0]);
    int64_t part = (int64_t)rope->attributes.number[DTM_ROPE_PART];
    if (!part) part = module->dims[rope->attributes.over[0]].size;
    return dtm_storage_round(dtm_block_max(module, x, dtm_type_dim_index(x, rope->attributes.at)) * part * 4);
}

static bool same_table(const dtm_module *module, const dtm_op_data *a, const dtm_op_data *b) {
    const dtm_type_data *x = dtm_value_type(module, a->operands[0]), *y = dtm_value_type(module, b->operands[0]);
    int i = dtm_type_dim_index(x, a->attributes.at), j = dtm_type_dim_index(y, b->attributes.at);
    return x->dims[i] == y->dims[j] && memcmp(&x->layout[i], &y->layout[j], sizeof x->layout[i]) == 0 &&
           module->dims[a->attributes.over[0]].size == module->dims[b->attributes.over[0]].size &&
           memcmp(a->attributes.number, b->attributes.number, sizeof a->attributes.number) == 0;
}

enum { STEP_BYTES = DTM_STORAGE_ALIGN };

int64_t dtm_rope_table_offset(const dtm_module *module, dtm_op rope, bool *first) {
    int64_t offset = STEP_BYTES;
    const dtm_op_data *wanted = &module->ops[rope];
    for (dtm_op op = 1; op < module->n_ops; op++) {
        const dtm_op_data *data = &module->ops[op];
        if (!data->region || data->kind != DTM_OP_ROPE) continue;
        bool counted = false;
        for (dtm_op before = 1; before < op && !counted; before++)
            counted = module->ops[before].region && module->ops[before].kind == DTM_OP_ROPE &&
                      same_table(module, &module->ops[before], data);
        if (rope && same_table(module, data, wanted)) {
            *first = op == rope;
            return offset;
        }
        if (!counted) offset += table_bytes(module, data);
    }
    return offset;
}

int64_t dtm_update_chunk_bytes(const dtm_module *module, dtm_op unit, int64_t *copies) {
    *copies = 1;
    if (!dtm_enclosing(module, unit, DTM_OP_UPDATE)) return 0;
    const dtm_op_data *data = &module->ops[unit];
    int64_t sums = data->kind != DTM_OP_FUSED && reduces_all(module, unit);
    for (size_t i = 0; data->kind == DTM_OP_FUSED && i < module->regions[data->body].n_ops; i++)
        sums += reduces_all(module, module->regions[data->body].ops[i]);
    for (dtm_op at = unit; (at = dtm_enclosing(module, at, DTM_OP_REPEAT));) *copies *= module->ops[at].attributes.copies;
    return dtm_storage_round(sums * DTM_CHUNKS * (int64_t)sizeof(double));
}

int64_t dtm_update_chunks_offset(const dtm_module *module) {
    bool first;
    return dtm_rope_table_offset(module, 0, &first);
}

int64_t dtm_constants_bytes(const dtm_module *module) {
    int64_t bytes = dtm_update_chunks_offset(module);
    for (dtm_op op = 1; op < module->n_ops; op++) {
        int64_t copies;
        if (module->ops[op].region && dtm_unit_of(module, op) == op) bytes += dtm_update_chunk_bytes(module, op, &copies) * copies;
    }
    return bytes;
}
