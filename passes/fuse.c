/* fuse: makes kernels of operators. In this order:
 *
 *   expand      norms, softmax, cross-entropy become elementwise operators and reductions (expand.c)
 *   products    a dot that no matrix product computes (its last dimension is batched) becomes sum(a * b)
 *   accumulate  s = x + dot(a, b) becomes s = dot(a, b, x) where nothing else reads x or the product
 *   settle      a constant that is reported gets a place; what a repeat carries on is made in it: `cast` copies
 *   copy        what costs nothing (fill, positions) is given to each reader
 *   group       regions `fused { .. }`, each one kernel (fuse_groups.c)
 *   remake      what a kernel would write for others to read is made again there, where that is cheaper (fuse_remake.c)
 *
 *     m : f32[B=8] = mean(x.square over D)         fused {
 *     y : f32[B=8, D=4] = x - m                        m : f32[B=8] = mean(x over D)
 *                                                      y : f32[B=8, D=4] = x - m
 *                                                  }                                                     */
#include "ir/fault.h"
#include "passes/fuse.h"
#include "passes/overlap_prefetch.h"
#include "passes/passes.h"

#include <string.h>

static const dtm_op_data *get(const dtm_module *module, dtm_op op) { return dtm_op_get(module, op); }

/* Calls `each` for every operator, also for those it adds before or after the one at hand; it may remove that one. */
static void for_each_op(dtm_module *module, dtm_region region, void (*each)(dtm_module *module, dtm_op op)) {
    dtm_arena *arena = dtm_arena_create();
    size_t count = module->regions[region].n_ops;
    dtm_op *ops = dtm_arena_alloc(arena, (count + 1) * sizeof *ops);
    if (count) memcpy(ops, module->regions[region].ops, count * sizeof *ops);
    for (size_t i = 0; i < count; i++) {
        if (get(module, ops[i])->body) for_each_op(module, get(module, ops[i])->body, each);
        else each(module, ops[i]);
    }
    dtm_arena_destroy(arena);
}

static void expand_all(dtm_module *module) {
    const uint32_t *uses = dtm_use_counts(module, module->arena);
    dtm_op n = (dtm_op)module->n_ops;
    for (dtm_op op = 1; op < n; op++)
        if (get(module, op)->region) dtm_expand(module, op, uses);
}

/* ---- products ---- */

static bool has(const dtm_module *module, dtm_value v, dtm_dim dim) {
    return dtm_type_dim_index(dtm_value_type(module, v), dim) >= 0;
}

static dtm_type product_type(dtm_module *module, const dtm_op_data *dot) {
    dtm_type_data type = *dtm_value_type(module, dot->operands[0]);
    const dtm_type_data *b = dtm_value_type(module, dot->operands[1]);
    for (int i = 0; i < b->rank; i++)
        if (dtm_type_dim_index(&type, b->dims[i]) < 0) {
            type.dims[type.rank] = b->dims[i];
            type.layout[type.rank++] = b->layout[i];
        }
    type.sum |= b->sum;
    return dtm_type_intern(module, &type);
}

/* Batched in its last dimension, or an inner product of two tensors. */
static void spread_dot(dtm_module *module, dtm_op op) {
    dtm_op_data dot = *get(module, op);
    if (dot.kind != DTM_OP_DOT || dot.n_operands != 2) return;
    const dtm_type_data *type = dtm_value_type(module, dot.results[0]);
    if (type->rank) {
        dtm_dim last = type->dims[type->rank - 1];
        if (!has(module, dot.operands[0], last) || !has(module, dot.operands[1], last)) return;
    }
    dtm_type made = product_type(module, &dot), result = module->values[dot.results[0]].type;
    dtm_builder at = dtm_builder_before(module, op);
    at.why = dtm_string_of(module->context, "a product along a batched dimension");
    const char *name = dtm_value_name(module, dot.results[0]);
    dtm_op product = dtm_build_op(&at, DTM_OP_MUL, dot.operands, 2, NULL, &made, 1, "product");
    dtm_value_rename(module, dtm_result(module, product, 0), dtm_string_text(module->context, dtm_string_printf(module->context, "%s.product", name)));
    dtm_value operand = dtm_result(module, product, 0);
    dtm_op sum = dtm_build_op(&at, DTM_OP_SUM, &operand, 1, &dot.attributes, &result, 1, "sum");
    dtm_value_take_place(module, dtm_result(module, sum, 0), dot.results[0], product);
    dtm_op_remove(module, op);
}

/* ---- accumulate ---- */

typedef struct adder {
    dtm_module *module;
    uint32_t *uses;
} adder;

static bool may_add_to(const adder *a, dtm_value x, dtm_op add) {
    const dtm_module *module = a->module;
    dtm_op def = module->values[x].def;
    if (!def || a->uses[x] != 1 || module->values[x].type != module->values[get(module, add)->results[0]].type) return false;
    dtm_op_kind kind = get(module, def)->kind;
    return get(module, def)->region == get(module, add)->region && kind != DTM_OP_WEIGHT && kind != DTM_OP_STATE &&
           kind != DTM_OP_INPUT && kind != DTM_OP_LAST && kind != DTM_OP_ACCUMULATE;
}

static bool is_product(const adder *a, dtm_value v, dtm_op add) {
    const dtm_module *module = a->module;
    dtm_op def = module->values[v].def;
    return def && get(module, def)->kind == DTM_OP_DOT && get(module, def)->n_operands == 2 && may_add_to(a, v, add) &&
           dtm_value_type(module, v)->dtype == DTM_F32;
}

/* The gather that a product goes in steps with; 0: none. */
static dtm_op gather_of(const dtm_module *module, dtm_op product) {
    const dtm_region_data *region = &module->regions[get(module, product)->region];
    int64_t at = dtm_op_position(module, product);
    dtm_op first;
    for (int64_t i = at - 1; i >= 0; i--) {
        dtm_op op = region->ops[i];
        if (get(module, op)->kind == DTM_OP_DOT) continue;
        bool gathers = get(module, op)->kind == DTM_OP_ALL_GATHER && dtm_is_in_steps(module, op);
        return gathers && (int64_t)dtm_products_in_steps(module, op, &first) >= at - i ? op : 0;
    }
    return 0;
}

/* Where a product that is added to x is to stand: where the sum stood, or, in steps with a gather, where it does, if x is there by then. */
static dtm_op place_of_sum(const dtm_module *module, dtm_op add, dtm_op product, dtm_value x) {
    dtm_op gather = gather_of(module, product);
    if (!gather || dtm_fault(125)) return add;
    return dtm_op_position(module, module->values[x].def) < dtm_op_position(module, gather) ? product : 0;
}

static void add_product(adder *a, dtm_op op) {
    dtm_module *module = a->module;
    const dtm_op_data add = *get(module, op);
    if (add.kind != DTM_OP_ADD) return;
    for (int i = 1; i >= 0; i--) { /* the later one rather than the earlier */
        dtm_value product = add.operands[i], x = add.operands[1 - i];
        if (product == x || !is_product(a, product, op) || !may_add_to(a, x, op)) continue;
        dtm_op place = place_of_sum(module, op, module->values[product].def, x);
        if (!place) continue;
        dtm_op_data dot = *get(module, module->values[product].def);
        dtm_value operands[3] = {dot.operands[0], dot.operands[1], x};
        dtm_builder at = dtm_builder_before(module, place);
        at.span = dot.span, at.place = dot.place;
        at.why = dtm_string_of(module->context, "added to what it is the last to read");
        dtm_type type = module->values[add.results[0]].type;
        dtm_op made = dtm_build_op(&at, DTM_OP_DOT, operands, 3, &dot.attributes, &type, 1, "sum");
        dtm_value_take_place(module, dtm_result(module, made, 0), add.results[0], made);
        dtm_op_remove(module, op);
        dtm_op_remove(module, module->values[product].def);
        return; /* all that is left is read as often as before */
    }
}

static void add_products(adder *a, dtm_region region) {
    for (size_t i = 0; i < a->module->regions[region].n_ops; i++) {
        dtm_op op = a->module->regions[region].ops[i];
        if (get(a->module, op)->body) add_products(a, get(a->module, op)->body);
        size_t before = a->module->regions[region].n_ops;
        if (!get(a->module, op)->body) add_product(a, op);
        i -= before - a->module->regions[region].n_ops;
    }
}

/* ---- values that need a place of their own ---- */

static dtm_value copied(dtm_module *module, dtm_builder *at, dtm_value v) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_CAST);
    dtm_type type = module->values[v].type;
    attributes.dtype = (dtm_dtype)dtm_value_type(module, v)->dtype;
    const char *name = dtm_value_is_constant(module, v) ? "constant" : dtm_value_name(module, v);
    bool fills = dtm_value_is_constant(module, v);
    return dtm_result(module, dtm_build_op(at, fills ? DTM_OP_FILL : DTM_OP_CAST, &v, 1, fills ? NULL : &attributes, &type, 1, name), 0);
}

static void settle_sink(dtm_module *module, dtm_op op) {
    dtm_op_kind kind = get(module, op)->kind;
    if (kind != DTM_OP_REPORT && kind != DTM_OP_OUTPUT && kind != DTM_OP_GRADIENT) return;
    uint32_t last = get(module, op)->n_operands - 1;
    if (!dtm_value_is_constant(module, get(module, op)->operands[last])) return;
    dtm_builder at = dtm_builder_before(module, op);
    dtm_value v = copied(module, &at, get(module, op)->operands[last]);
    module->ops[op].operands[last] = v;
}

/* Whether v is made by an operator of the region, rather than seen there. */
static bool is_made_in(const dtm_module *module, dtm_value v, dtm_region region) {
    dtm_op def = module->values[v].def;
    if (!def || get(module, def)->region != region) return false;
    dtm_op_kind kind = get(module, def)->kind;
    return kind != DTM_OP_CARRY && kind != DTM_OP_LAST && kind != DTM_OP_WEIGHT && kind != DTM_OP_STATE &&
           kind != DTM_OP_INPUT && !dtm_is_alias(module, def);
}

/* x = carry(a, y), y = carry(b, x): the next of one is read before that of the other is written. */
static void settle_carry(dtm_module *module, dtm_op op) {
    dtm_op_data carry = *get(module, op);
    if (carry.kind != DTM_OP_CARRY) return;
    dtm_value next = carry.operands[1];
    if (dtm_value_is_constant(module, next) || next == carry.results[0] || is_made_in(module, next, carry.region)) return;
    dtm_builder at = dtm_builder_at_end(module, carry.region);
    at.span = carry.span, at.place = carry.place;
    at.why = dtm_string_of(module->context, "carried to the next copy");
    dtm_value made = copied(module, &at, next);
    module->ops[op].operands[1] = made;
}

/* last(x) of a carried x: its slot may hold the next one by then, so it is the copy that is read. */
static void settle_last(dtm_module *module, dtm_op op) {
    dtm_op_data last = *get(module, op);
    if (last.kind != DTM_OP_LAST) return;
    dtm_value x = last.operands[0];
    dtm_op def = module->values[x].def, source = module->values[dtm_root_of(module, x)].def;
    if (!source || get(module, source)->kind != DTM_OP_CARRY || get(module, def)->region == last.region) return;
    const dtm_region_data *region = &module->regions[get(module, def)->region];
    dtm_value made = 0;
    for (size_t i = 0; i < region->n_ops && !made; i++) {
        const dtm_op_data *copy = get(module, region->ops[i]);
        bool same = copy->kind == DTM_OP_CAST && copy->operands[0] == x;
        if (same && module->values[copy->results[0]].type == module->values[x].type) made = copy->results[0];
    }
    dtm_builder at = dtm_builder_at_end(module, get(module, def)->region);
    at.span = last.span, at.place = last.place;
    at.why = dtm_string_of(module->context, "read after the last copy");
    if (!made) made = copied(module, &at, x);
    module->ops[op].operands[0] = made;
}

static void settle(dtm_module *module, dtm_op op) {
    settle_sink(module, op);
    settle_carry(module, op);
    settle_last(module, op);
}

/* ---- copies of what costs nothing ---- */

static bool is_free(const dtm_module *module, dtm_value v) {
    dtm_op def = module->values[v].def;
    return def && (get(module, def)->kind == DTM_OP_FILL || get(module, def)->kind == DTM_OP_POSITIONS);
}

static void copy_free(dtm_module *module, dtm_op op) {
    dtm_op_kind kind = get(module, op)->kind;
    bool fusible = dtm_is_elementwise(kind) || dtm_is_reduction(kind);
    for (uint32_t i = 0; fusible && i < get(module, op)->n_operands; i++) {
        dtm_value v = get(module, op)->operands[i];
        if (!is_free(module, v)) continue;
        dtm_op_data source = *get(module, module->values[v].def);
        dtm_builder at = dtm_builder_before(module, op);
        at.why = source.why;
        dtm_type type = module->values[v].type;
        dtm_op made = dtm_build_op(&at, source.kind, source.operands, source.n_operands, &source.attributes, &type, 1,
                                   dtm_value_name(module, v));
        dtm_value copy = dtm_result(module, made, 0);
        module->ops[op].operands[i] = copy;
    }
}

static void remove_unread_free(dtm_module *module) {
    uint32_t *uses = dtm_use_counts(module, module->arena);
    for (dtm_op op = 1; op < module->n_ops; op++)
        if (get(module, op)->region && get(module, op)->n_results == 1 && is_free(module, get(module, op)->results[0]) &&
            !uses[get(module, op)->results[0]])
            dtm_op_remove(module, op);
}

bool dtm_pass_fuse(dtm_module *module) {
    expand_all(module);
    for_each_op(module, module->body, spread_dot);
    adder a = {module, dtm_use_counts(module, module->arena)};
    add_products(&a, module->body);
    for_each_op(module, module->body, settle);
    for_each_op(module, module->body, copy_free);
    remove_unread_free(module);
    dtm_fuse_groups(module, module->body);
    dtm_fuse_remake(module);
    dtm_wait_for_untouched(module);
    module->after = dtm_string_of(module->context, "fuse");
    return true;
}
