/* fuse_collectives, first part: an all-reduce whose result is used only in what works block by block, and from which less
 * comes out than went in, is a reduce-scatter before and a gather of the less behind.
 *
 *     p     : [B, S, D] = all_reduce(p.term on tp)          p     : [B, S=@tp, D] = reduce_scatter(p.term over S on tp)
 *     e     : [B, S, D] = p - y                       ->    y.block               = shard(y over S on tp)
 *     e.sq  : [B, S, D] = square(e)                         e, e.sq, n.block      = the same, on blocks
 *     n     : [B, S]    = sum(e.sq over D)                  n     : [B, S]        = all_gather(n.block over S on tp)
 *
 * The operators are grown from the all-reduce on, in order, within its region of the module, as long as they are computed
 * alike on its axes and carry the dimension; of all beginnings of that list the fastest is taken. It must be less that is
 * sent, not only less work: splitting the work of tokens for its own sake is sequence parallelism, which `tp splits .., S`
 * asks for and explain offers. */
#include "passes/fuse_collectives.h"

#include "passes/cost.h"

#include <string.h>

enum { MOST_OPS = 64, MOST_VALUES = 1 + 4 * MOST_OPS, NOT_SPLIT = -1 };

/* A value that is made on blocks. */
typedef struct made {
    dtm_value value;
    uint32_t outside;     /* readings by operators that are not split */
    double gather, bytes; /* what gathering it for them costs (-1: not worked out yet) and brings */
} made;

typedef struct scatter {
    dtm_module *module;
    dtm_arena *scratch;
    /* By value, room for n_values of them, and as they are here between two all-reduces: */
    int8_t *split;     /* the index of the dimension in values made on blocks; NOT_SPLIT */
    dtm_value *blocks; /* the block of a value that is cut for the operators; 0 */
    uint32_t *uses;
    size_t n_values;
    double *times; /* by operator: seconds it takes; 0: not worked out yet */

    dtm_op reduction;
    uint16_t axes;
    dtm_dim dim;
    dtm_dim_layout layout; /* of the dimension, before */
    dtm_op ops[MOST_OPS];
    double work[MOST_OPS], copies[MOST_OPS]; /* seconds: of an operator, of cutting what it reads */
    size_t count;
    made made[MOST_VALUES]; /* the all-reduce's, then those of ops in order */
    size_t n_made;
    double reduce, scattered;  /* seconds of the collective, before and after */
    double before, after;      /* seconds a run: all of it */
    double went_in, comes_out; /* bytes on a rank: of the result, and of what others read */
} scatter;

static const dtm_op_data *op_of(const scatter *s, dtm_op op) { return &s->module->ops[op]; }
static const dtm_type_data *type_of(const scatter *s, dtm_value v) { return dtm_value_type(s->module, v); }

/* The type of a value cut along one dimension over the axes too. */
static dtm_type cut(const scatter *s, dtm_value v, int index) {
    dtm_type_data type = *type_of(s, v);
    type.sum &= (uint16_t)~s->axes;
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        if (s->axes >> a & 1 && s->module->settings.mesh.axes[a].size > 1)
            type.layout[index].splits[type.layout[index].count++] = (dtm_split){(uint8_t)a, 1};
    return dtm_type_intern(s->module, &type);
}

/* ---- what can be split ---- */

static bool is_alike(const scatter *s, dtm_value v) {
    const dtm_type_data *type = type_of(s, v);
    return ((type->sum | type->max | dtm_type_split_axes(type)) & s->axes) == 0;
}

static bool computes(dtm_op_kind kind) { return kind >= DTM_OP_ADD && kind < DTM_OP_TOP; }

/* Whether a dimension of a value can be cut as that of the all-reduce is. */
static bool is_cut_alike(const scatter *s, dtm_value v, int index) {
    const dtm_type_data *type = type_of(s, v);
    return s->module->dims[type->dims[index]].size == s->module->dims[s->dim].size &&
           memcmp(&type->layout[index], &s->layout, sizeof s->layout) == 0;
}

/* The factor along which an operator carries on what is split of its operands, or NULL. */
static const dtm_factor *carries(const scatter *s, dtm_op op, dtm_factor factors[DTM_MAX_FACTORS]) {
    const dtm_op_data *data = op_of(s, op);
    if (!computes(data->kind) || data->n_operands > 8 || data->n_results > 4) return NULL;
    for (uint32_t i = 0; i < data->n_operands; i++)
        if (!is_alike(s, data->operands[i])) return NULL;
    size_t n = dtm_factors(s->module, op, factors);
    for (size_t f = 0; f < n; f++) {
        const dtm_factor *factor = &factors[f];
        bool fits = factor->kind == DTM_FACTOR_CARRIED && !factor->positions, reads = false;
        for (uint32_t i = 0; fits && i < data->n_operands; i++) {
            int at = s->split[data->operands[i]];
            if (at != NOT_SPLIT) reads = true, fits = factor->operand_dim[i] == at;
            if (fits && factor->operand_dim[i] >= 0)
                fits = factor->operand_unit[i] == 1 && is_cut_alike(s, data->operands[i], factor->operand_dim[i]);
        }
        for (uint32_t r = 0; fits && r < data->n_results; r++)
            fits = factor->result_dim[r] >= 0 && factor->result_unit[r] == 1 && is_alike(s, data->results[r]) &&
                   is_cut_alike(s, data->results[r], factor->result_dim[r]);
        if (fits && reads) return factor;
    }
    return NULL;
}

static bool reads_split(const scatter *s, dtm_op op) {
    for (uint32_t i = 0; i < op_of(s, op)->n_operands; i++)
        if (s->split[op_of(s, op)->operands[i]] != NOT_SPLIT) return true;
    return false;
}

static bool is_member(const scatter *s, dtm_op op) {
    for (size_t i = 0; i < s->count; i++)
        if (s->ops[i] == op) return true;
    return false;
}

/* ---- what it costs ---- */

static double bytes_of(const scatter *s, dtm_value v) { return (double)dtm_local_bytes_max(s->module, s->module->values[v].type); }

/* A value is now made on blocks, along its dimension `index`. */
static void add_made(scatter *s, dtm_value v, int index) {
    s->split[v] = (int8_t)index;
    s->made[s->n_made++] = (made){v, s->uses[v], -1, 0};
}

static void cost_gather(scatter *s, made *m) {
    dtm_type_data block = *dtm_type_get(s->module, cut(s, m->value, s->split[m->value])), whole = *type_of(s, m->value);
    m->gather = dtm_step_cost(s->module, DTM_OP_ALL_GATHER, s->axes, &block, &whole).time;
    m->bytes = bytes_of(s, m->value);
}

static void read_made(scatter *s, dtm_value v, uint32_t more) {
    for (size_t i = s->n_made; i-- > 0;)
        if (s->made[i].value == v) {
            s->made[i].outside += more;
            return;
        }
}

static void count_time(scatter *s) {
    double work = 0, copies = 0;
    s->comes_out = 0;
    s->before = s->reduce;
    s->after = s->scattered;
    for (size_t i = 0; i < s->n_made; i++) {
        if (!s->made[i].outside) continue;
        if (s->made[i].gather < 0) cost_gather(s, &s->made[i]);
        s->after += s->made[i].gather;
        s->comes_out += s->made[i].bytes;
    }
    for (size_t i = 0; i < s->count; i++) {
        work += s->work[i];
        copies += s->copies[i];
    }
    s->before += work;
    s->after += (work + copies) / (double)dtm_group_size(s->module, s->axes);
}

static bool pays(const scatter *s) { return s->comes_out < 0.9 * s->went_in && s->after < s->before; }

/* ---- growing ---- */

/* Nothing is split but the result of the all-reduce, along its dimension d. */
static void begin(scatter *s, int d) {
    dtm_value y = op_of(s, s->reduction)->results[0];
    dtm_type_data from = *type_of(s, op_of(s, s->reduction)->operands[0]);
    s->count = s->n_made = 0;
    add_made(s, y, d);
    s->went_in = bytes_of(s, y);
    dtm_type_data block = *dtm_type_get(s->module, cut(s, y, d));
    s->reduce = dtm_collective_cost_of(s->module, s->reduction).time;
    s->scattered = dtm_step_cost(s->module, DTM_OP_REDUCE_SCATTER, s->axes, &from, &block).time;
}

static void add_op(scatter *s, dtm_op op, const dtm_factor *factor) {
    const dtm_op_data *data = op_of(s, op);
    double copies = 0;
    for (uint32_t k = 0; k < data->n_operands; k++) {
        if (s->split[data->operands[k]] != NOT_SPLIT) read_made(s, data->operands[k], (uint32_t)-1);
        else copies += dtm_read_bytes(s->module, data->operands[k]) / dtm_machine_of(s->module).memory_bandwidth;
    }
    if (!s->times[op]) s->times[op] = dtm_op_time(s->module, op);
    s->work[s->count] = s->times[op];
    s->copies[s->count] = copies;
    s->ops[s->count++] = op;
    for (uint32_t r = 0; r < data->n_results; r++) add_made(s, data->results[r], factor->result_dim[r]);
}

static void cut_back(scatter *s, size_t count) {
    while (s->count > count) {
        const dtm_op_data *data = op_of(s, s->ops[--s->count]);
        s->n_made -= data->n_results;
        for (uint32_t r = 0; r < data->n_results; r++) s->split[data->results[r]] = NOT_SPLIT;
        for (uint32_t k = 0; k < data->n_operands; k++)
            if (s->split[data->operands[k]] != NOT_SPLIT) read_made(s, data->operands[k], 1);
    }
}

/* Of all beginnings of the operators that can be split, the one that is fastest; false: none pays. */
static bool grow(scatter *s) {
    const dtm_region_data *region = &s->module->regions[op_of(s, s->reduction)->region];
    double least = 0;
    size_t best = 0, at = (size_t)dtm_op_position(s->module, s->reduction);
    for (size_t i = at + 1; i < region->n_ops && s->count < MOST_OPS; i++) {
        dtm_factor factors[DTM_MAX_FACTORS];
        if (op_of(s, region->ops[i])->body || !reads_split(s, region->ops[i])) continue;
        const dtm_factor *factor = carries(s, region->ops[i], factors);
        if (!factor) continue;
        add_op(s, region->ops[i], factor);
        count_time(s);
        if (!pays(s) || (best && s->after - s->before >= least)) continue;
        least = s->after - s->before;
        best = s->count;
    }
    cut_back(s, best);
    if (best) count_time(s);
    return best > 0;
}

/* ---- writing ---- */

static dtm_attributes along(const scatter *s, dtm_op_kind kind, dtm_dim dim) {
    dtm_attributes attributes = dtm_attributes_default(kind);
    attributes.axes = s->axes;
    attributes.over[attributes.n_over++] = dim;
    return attributes;
}

static void shard_operands(scatter *s, dtm_op op, const dtm_factor *factor) {
    for (uint32_t i = 0; i < op_of(s, op)->n_operands; i++) {
        dtm_value v = op_of(s, op)->operands[i];
        if (factor->operand_dim[i] < 0 || s->split[v] != NOT_SPLIT) continue;
        if (!s->blocks[v]) {
            dtm_builder b = dtm_builder_before(s->module, op);
            dtm_type type = cut(s, v, factor->operand_dim[i]);
            dtm_attributes attributes = along(s, DTM_OP_SHARD, type_of(s, v)->dims[factor->operand_dim[i]]);
            const char *name = dtm_arena_printf(s->scratch, "%s.block", dtm_value_name(s->module, v));
            s->blocks[v] = dtm_result(s->module, dtm_build_op(&b, DTM_OP_SHARD, &v, 1, &attributes, &type, 1, name), 0);
        }
        s->module->ops[op].operands[i] = s->blocks[v];
    }
}

/* What others read of a value that is now made in blocks takes its name. */
static void gather_result(scatter *s, dtm_value v, uint32_t outside, dtm_string why) {
    dtm_op def = s->module->values[v].def;
    dtm_module *m = s->module;
    dtm_type whole = m->values[v].type;
    m->values[v].type = cut(s, v, s->split[v]);
    if (!outside) return;
    dtm_builder b = dtm_builder_after(m, def);
    b.why = why;
    dtm_attributes attributes = along(s, DTM_OP_ALL_GATHER, type_of(s, v)->dims[s->split[v]]);
    dtm_string name = m->values[v].name;
    dtm_value_rename(m, v, dtm_arena_printf(s->scratch, "%s.block", dtm_value_name(m, v)));
    dtm_op op = dtm_build_op(&b, DTM_OP_ALL_GATHER, &v, 1, &attributes, &whole, 1, dtm_string_text(m->context, name));
    m->values[dtm_result(m, op, 0)].name = name;
    for (dtm_op reader = 1; reader < m->n_ops; reader++) {
        if (!m->ops[reader].region || reader == op || is_member(s, reader)) continue;
        for (uint32_t i = 0; i < m->ops[reader].n_operands; i++)
            if (m->ops[reader].operands[i] == v) m->ops[reader].operands[i] = dtm_result(m, op, 0);
    }
}

static void rewrite(scatter *s) {
    dtm_module *m = s->module;
    dtm_string why = dtm_string_printf(m->context, "scattered and gathered: %.1f us instead of %.1f us with the work between",
                                       s->after * 1e6, s->before * 1e6);
    m->ops[s->reduction].kind = DTM_OP_REDUCE_SCATTER;
    m->ops[s->reduction].attributes = along(s, DTM_OP_REDUCE_SCATTER, s->dim);
    dtm_string reason = m->ops[s->reduction].why;
    m->ops[s->reduction].why = reason ? dtm_string_printf(m->context, "%s; %s", dtm_string_text(m->context, reason),
                                                          dtm_string_text(m->context, why))
                                      : why;
    for (size_t i = 0; i < s->count; i++) {
        dtm_factor factors[DTM_MAX_FACTORS];
        const dtm_factor *factor = carries(s, s->ops[i], factors);
        shard_operands(s, s->ops[i], factor);
    }
    for (size_t i = 0; i < s->n_made; i++) gather_result(s, s->made[i].value, s->made[i].outside, why);
}

/* Tries each dimension of the result. True: the module is another, look_again. */
static bool try_scatter(scatter *s, dtm_op reduction) {
    dtm_module *module = s->module;
    dtm_value y = module->ops[reduction].results[0];
    s->reduction = reduction;
    s->axes = module->ops[reduction].attributes.axes;
    for (int d = 0; d < dtm_value_type(module, y)->rank; d++) {
        const dtm_type_data *type = dtm_value_type(module, y);
        s->dim = type->dims[d];
        s->layout = type->layout[d];
        if (dtm_block_max(module, type, d) < dtm_group_size(module, s->axes)) continue;
        begin(s, d);
        if (grow(s)) {
            rewrite(s);
            return true;
        }
        cut_back(s, 0);
        s->split[y] = NOT_SPLIT;
    }
    return false;
}

/* What is known of each value, for a module that has got new ones. */
static void look_again(scatter *s) {
    s->n_values = s->module->n_values;
    s->uses = dtm_use_counts(s->module, s->scratch);
    s->times = dtm_arena_alloc(s->scratch, s->module->n_ops * sizeof *s->times);
    s->blocks = dtm_arena_alloc(s->scratch, s->n_values * sizeof *s->blocks);
    s->split = dtm_arena_alloc(s->scratch, s->n_values * sizeof *s->split);
    memset(s->split, NOT_SPLIT, s->n_values * sizeof *s->split);
}

void dtm_fuse_scatter(dtm_module *module, dtm_arena *scratch) {
    scatter s = {.module = module, .scratch = scratch};
    size_t n = module->n_ops;
    look_again(&s);
    for (dtm_op op = 1; op < n; op++) {
        const dtm_op_data *data = &module->ops[op];
        if (data->kind != DTM_OP_ALL_REDUCE || !data->region || data->n_operands != 1) continue;
        if (dtm_along_pipeline(module, data)) continue; /* its ranks do not all have what reads it */
        if (dtm_enclosing(module, op, DTM_OP_UPDATE) || dtm_value_type(module, data->operands[0])->max) continue;
        if (dtm_collective_cost_of(module, op).sends && try_scatter(&s, op)) look_again(&s);
    }
}
