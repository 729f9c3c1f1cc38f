/* fuse, last part: a value that one kernel would write for others to read back is made again in each of these, from what
 * it is made of, where that takes less time and no more memory.
 *
 *     fused {                                               fused {
 *         s : [B=8, F=64] = silu(a)          kept               s : [B=8, F=64] = silu(a)       this kernel's alone
 *         p : [B=8, F=64] = s * b                               p : [B=8, F=64] = s * b
 *     }                                                     }
 *     ...                                         ->        ...
 *     fused {                                               fused {
 *         d_b : [B=8, F=64] = d_p * s                           s.2 : [B=8, F=64] = silu(a)
 *         d_s : [B=8, F=64] = d_p * b                           d_b : [B=8, F=64] = d_p * s.2
 *         d_a : [B=8, F=64] = silu_backward(a, d_s)             ...
 *     }                                                     }
 *
 * Time: it is written once and read once by each kernel; against it stand the FLOPs, and bytes that such a kernel did not
 * read before. Memory: what must then live longer is no more than what need not live at all. */
#include "passes/cost.h"
#include "passes/fuse.h"

#include <string.h>

enum { MOST = 16 }; /* operators that make one value, kernels that read it */

typedef struct remaker {
    dtm_module *module;
    dtm_arena *arena;
    dtm_op **users;
    bool *stored;
} remaker;

/* How a value is made from what is stored. */
typedef struct recipe {
    dtm_op ops[MOST]; /* in order; the last makes it */
    size_t n_ops;
    dtm_value reads[2 * MOST];
    size_t n_reads;
} recipe;

static const dtm_op_data *get(const remaker *r, dtm_op op) { return dtm_op_get(r->module, op); }
static double bytes_of(const remaker *r, dtm_value v) { return (double)dtm_local_bytes_max(r->module, r->module->values[v].type); }

static bool is_elementwise(dtm_op_kind kind) { return kind >= DTM_OP_ADD && kind <= DTM_OP_EXPAND; }

static bool has_op(const recipe *made, dtm_op op) {
    for (size_t i = 0; i < made->n_ops; i++)
        if (made->ops[i] == op) return true;
    return false;
}

static bool reads(const recipe *made, dtm_value v) {
    for (size_t i = 0; i < made->n_reads; i++)
        if (made->reads[i] == v) return true;
    return false;
}

static bool find_recipe(const remaker *r, dtm_value v, recipe *made) {
    dtm_op def = r->module->values[v].def;
    if (has_op(made, def)) return true;
    const dtm_op_data *op = get(r, def);
    if (!is_elementwise(op->kind)) return false;
    for (uint32_t k = 0; k < op->n_operands; k++) {
        dtm_value o = op->operands[k];
        if (dtm_value_is_constant(r->module, o) || reads(made, o)) continue;
        if (!r->stored[o]) {
            if (!find_recipe(r, o, made)) return false;
        } else if (made->n_reads < 2 * MOST) made->reads[made->n_reads++] = o;
        else return false;
    }
    if (made->n_ops == MOST) return false;
    made->ops[made->n_ops++] = def;
    return true;
}

/* ---- the kernels that read it ---- */

static dtm_op at_of(const remaker *r, dtm_op unit, size_t i) {
    return get(r, unit)->kind == DTM_OP_FUSED ? r->module->regions[get(r, unit)->body].ops[i] : unit;
}
static size_t count_of(const remaker *r, dtm_op unit) {
    return get(r, unit)->kind == DTM_OP_FUSED ? r->module->regions[get(r, unit)->body].n_ops : 1;
}

/* A kernel over the value's own dimensions, before anything is stored. */
static bool may_make(const remaker *r, dtm_op unit, dtm_value v) {
    if (dtm_enclosing(r->module, unit, DTM_OP_UPDATE)) return false;
    for (size_t i = 0; i < count_of(r, unit); i++) {
        const dtm_op_data *op = get(r, at_of(r, unit, i));
        bool reduction = dtm_is_reduction(op->kind) && op->n_operands == 1;
        if (get(r, unit)->kind != DTM_OP_FUSED && !is_elementwise(op->kind) && !reduction) return false;
        for (uint32_t k = 0; k < op->n_operands; k++)
            if (dtm_value_type(r->module, op->operands[k])->rank > dtm_value_type(r->module, v)->rank) return false;
    }
    return true;
}

static bool unit_reads(const remaker *r, dtm_op unit, dtm_value v) {
    for (size_t i = 0; i < count_of(r, unit); i++)
        for (uint32_t k = 0; k < get(r, at_of(r, unit, i))->n_operands; k++)
            if (get(r, at_of(r, unit, i))->operands[k] == v) return true;
    return false;
}

/* Those outside of the kernel that makes it; false: it is stored in any case. */
static bool find_readers(const remaker *r, dtm_value v, dtm_op readers[MOST], size_t *n) {
    dtm_op maker = dtm_unit_of(r->module, r->module->values[v].def);
    *n = 0;
    for (const dtm_op *user = r->users[v]; *user; user++) {
        dtm_op unit = dtm_unit_of(r->module, *user);
        bool known = unit == maker;
        for (size_t i = 0; i < *n; i++) known |= readers[i] == unit;
        if (known) continue;
        if (*n == MOST || !may_make(r, unit, v)) return false;
        readers[(*n)++] = unit;
    }
    return *n > 0;
}

/* Whether v is in memory when the region of the unit runs, whatever we do. */
static bool is_there(const remaker *r, dtm_value v, dtm_op unit) {
    dtm_op_kind kind = get(r, r->module->values[v].def)->kind;
    if (kind == DTM_OP_WEIGHT || kind == DTM_OP_STATE || kind == DTM_OP_INPUT) return true;
    for (const dtm_op *user = r->users[v]; *user; user++)
        if (get(r, dtm_unit_of(r->module, *user))->region == get(r, unit)->region) return true;
    return false;
}

static bool pays(const remaker *r, dtm_value v, const recipe *made, const dtm_op *readers, size_t n) {
    dtm_machine machine = dtm_machine_of(r->module);
    double flops = 0, extra = 0, longer = 0;
    for (size_t i = 0; i < made->n_ops; i++) flops += (double)n * dtm_op_flops(r->module, made->ops[i]);
    for (size_t k = 0; k < made->n_reads; k++) {
        bool kept = true;
        for (size_t i = 0; i < n; i++) {
            if (!unit_reads(r, readers[i], made->reads[k])) extra += bytes_of(r, made->reads[k]);
            kept = kept && is_there(r, made->reads[k], readers[i]);
        }
        if (!kept) longer += bytes_of(r, made->reads[k]);
    }
    double saved = bytes_of(r, v) * (double)(1 + n);
    return longer <= bytes_of(r, v) && extra / machine.memory_bandwidth + flops / machine.flops_f32 < saved / machine.memory_bandwidth;
}

/* ---- making it again ---- */

/* The fused region of a unit, which is put into one if it is a single operator. */
static dtm_op fused_of(dtm_module *module, dtm_op unit) {
    if (dtm_op_get(module, unit)->kind == DTM_OP_FUSED) return unit;
    dtm_builder at = dtm_builder_before(module, unit);
    dtm_op fused = dtm_build_region(&at, DTM_OP_FUSED, NULL);
    dtm_op_move(module, unit, dtm_op_get(module, fused)->body, -1);
    return fused;
}

static void replace_in(dtm_module *module, dtm_op fused, dtm_value v, dtm_value by) {
    const dtm_region_data *body = &module->regions[dtm_op_get(module, fused)->body];
    for (size_t i = 0; i < body->n_ops; i++)
        for (uint32_t k = 0; k < module->ops[body->ops[i]].n_operands; k++)
            if (module->ops[body->ops[i]].operands[k] == v) module->ops[body->ops[i]].operands[k] = by;
}

/* How many operators at the beginning of a fused region are made again; of them, the one that is like `op`, or 0. */
static size_t count_again(const remaker *r, dtm_op fused, dtm_string why) {
    const dtm_region_data *body = &r->module->regions[get(r, fused)->body];
    size_t n = 0;
    while (n < body->n_ops && get(r, body->ops[n])->why == why) n++;
    return n;
}

static dtm_op find_again(const remaker *r, dtm_op fused, size_t n, const dtm_op_data *op, const dtm_value *operands) {
    for (size_t i = 0; i < n; i++) {
        const dtm_op_data *other = get(r, r->module->regions[get(r, fused)->body].ops[i]);
        if (other->kind == op->kind && memcmp(other->operands, operands, op->n_operands * sizeof *operands) == 0 &&
            memcmp(&other->attributes, &op->attributes, sizeof op->attributes) == 0)
            return r->module->regions[get(r, fused)->body].ops[i];
    }
    return 0;
}

static void make_again(remaker *r, dtm_value v, const recipe *made, dtm_op unit) {
    dtm_module *module = r->module;
    dtm_op fused = fused_of(module, unit);
    dtm_string why = dtm_string_of(module->context, "made again rather than kept");
    dtm_value again[MOST], last = v;
    for (size_t i = 0; i < made->n_ops; i++) {
        dtm_op_data op = *get(r, made->ops[i]);
        dtm_value operands[8];
        for (uint32_t k = 0; k < op.n_operands; k++) {
            operands[k] = op.operands[k];
            for (size_t j = 0; j < i; j++)
                if (get(r, made->ops[j])->results[0] == op.operands[k]) operands[k] = again[j];
        }
        size_t n = count_again(r, fused, why);
        dtm_op copy = find_again(r, fused, n, &op, operands);
        if (!copy) {
            dtm_builder at = dtm_builder_before(module, module->regions[get(r, fused)->body].ops[n]);
            at.span = op.span, at.place = op.place, at.why = why;
            dtm_type type = module->values[op.results[0]].type;
            copy = dtm_build_op(&at, op.kind, operands, op.n_operands, &op.attributes, &type, 1, dtm_value_name(module, op.results[0]));
        }
        last = again[i] = dtm_result(module, copy, 0);
    }
    replace_in(module, fused, v, last);
}

static void remake(remaker *r, dtm_value v) {
    recipe made = {.n_ops = 0};
    dtm_op readers[MOST], def = r->module->values[v].def;
    size_t n;
    if (!def || !get(r, def)->region || !r->stored[v] || !dtm_value_type(r->module, v)->rank) return;
    if (!is_elementwise(get(r, def)->kind) || !find_readers(r, v, readers, &n)) return;
    if (!find_recipe(r, v, &made) || !pays(r, v, &made, readers, n)) return;
    for (size_t i = 0; i < n; i++) make_again(r, v, &made, readers[i]);
    dtm_arena_destroy(r->arena);
    r->arena = dtm_arena_create();
    r->users = dtm_users_of(r->module, r->arena);
    if (!*r->users[v]) dtm_op_remove(r->module, def);
    r->stored = dtm_stored(r->module, r->arena);
}

void dtm_fuse_remake(dtm_module *module) {
    remaker r = {.module = module, .arena = dtm_arena_create()};
    r.users = dtm_users_of(module, r.arena);
    r.stored = dtm_stored(module, r.arena);
    size_t n = module->n_values;
    for (dtm_value v = 1; v < n; v++) remake(&r, v);
    dtm_arena_destroy(r.arena);
}
