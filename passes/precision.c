/* precision: which values of the forward and the backward pass are in bf16 or f16.
 *
 *     train { precision bf16 .. }
 *
 *     weight w : f32[D, F]                     weight w : f32[D, F]                   # the optimizer's
 *     h : f32[B, D] = rmsnorm(..)         ->   w.bf16   : bf16[D, F] = cast(w)        # what is multiplied
 *     p : f32[B, F] = dot(h, w over D)         h        : bf16[B, D] = rmsnorm(..)
 *                                              p        : bf16[B, F] = dot(h, w.bf16 over D)
 *
 * An operator computes in f32 whatever its operands are in, and rounds what it makes once, to the type that it is said to have:
 * roundings are where a dump says bf16. So before any layout exists it is settled, for every mesh and target, what is rounded:
 * all but
 *
 *   - weights, states and what the update computes: it reads gradients of weights, which are added up in f32, over copies of a
 *     repeat, microbatches and ranks;
 *   - sums and means, losses, and what goes with them (the log of the sum of exp): they have few elements, and go into long
 *     sums; scalars;
 *   - what the program itself casts, weights whose dtype it says (`weight route : f32[D, E]`), and products with such a weight.
 *
 * What moves elements keeps their type, and so does a maximum, which is one of them. */
#include "ir/fault.h"
#include "ir/storage.h"
#include "passes/passes.h"

#include <string.h>

typedef struct chooser {
    dtm_module *module;
    dtm_arena *arena;
    dtm_dtype dtype;
    dtm_op_list ops;
    bool *updates; /* by value: an update reads it, or it is added up to what one reads */
    dtm_value *cast; /* by value: it in `dtype`; 0: not made yet */
} chooser;

static const dtm_type_data *type_of(const chooser *c, dtm_value v) { return dtm_value_type(c->module, v); }
static bool is_float(const chooser *c, dtm_value v) { return dtm_dtype_is_float((dtm_dtype)type_of(c, v)->dtype); }

static bool in_update(const chooser *c, dtm_op op) {
    const dtm_op_data *data = &c->module->ops[op];
    return data->kind == DTM_OP_UPDATE || data->kind == DTM_OP_GRADIENT || dtm_enclosing(c->module, op, DTM_OP_UPDATE);
}

/* Its result has the type of what it moves. */
static bool moves(const dtm_op_data *op) {
    if (!op->n_results || !op->n_operands || op->body) return false;
    return !dtm_computes(op->kind) && op->kind != DTM_OP_FILL && op->kind != DTM_OP_CAST && op->kind != DTM_OP_CARRY;
}

static bool adds_up(const chooser *c, const dtm_op_data *op) {
    dtm_op_kind kind = op->kind;
    if (kind == DTM_OP_CAST) return type_of(c, op->results[0])->dtype != DTM_F32; /* what ranks send to each other */
    return kind == DTM_OP_ADD || kind == DTM_OP_CARRY || kind == DTM_OP_FILL || moves(op);
}

/* What updates read, and what is added up to it or moved there; carries close cycles. */
static void find_updates(chooser *c) {
    for (bool news = true; news;) {
        news = false;
        for (size_t i = c->ops.count; i-- > 0;) {
            const dtm_op_data *op = &c->module->ops[c->ops.items[i]];
            bool reads = in_update(c, c->ops.items[i]);
            for (uint32_t r = 0; r < op->n_results && adds_up(c, op); r++) reads |= c->updates[op->results[r]];
            for (uint32_t k = 0; k < op->n_operands && reads; k++) {
                news |= !c->updates[op->operands[k]];
                c->updates[op->operands[k]] = true;
            }
        }
    }
}

/* A weight that says its dtype. */
static bool is_exact(const chooser *c, dtm_value v) {
    dtm_op def = c->module->values[v].def;
    return def && c->module->ops[def].kind == DTM_OP_WEIGHT && c->module->ops[def].attributes.flags & DTM_WEIGHT_EXACT;
}

/* Whether the operator rounds its result `r`, if it is no operator of an update. */
static bool rounds(const chooser *c, const dtm_op_data *op, uint32_t r) {
    dtm_value v = op->results[r];
    if (!is_float(c, v) || !type_of(c, v)->rank || (c->updates[v] && !dtm_fault(124))) return false;
    if (op->kind == DTM_OP_DOT && (is_exact(c, op->operands[0]) || is_exact(c, op->operands[1]))) return false;
    if (dtm_is_reduction(op->kind) || op->kind == DTM_OP_CROSS_ENTROPY || (op->kind == DTM_OP_ATTENTION && r)) return false;
    return dtm_computes(op->kind) || op->kind == DTM_OP_CARRY || op->kind == DTM_OP_FILL;
}

static void set_dtype(chooser *c, dtm_value v, dtm_dtype dtype) {
    dtm_type_data type = *type_of(c, v);
    type.dtype = (uint8_t)dtype;
    c->module->values[v].type = dtm_type_intern(c->module, &type);
}

/* The value in the dtype, cast where it is made. */
static dtm_value in_dtype(chooser *c, dtm_value v) {
    if ((dtm_dtype)type_of(c, v)->dtype == c->dtype) return v;
    if (dtm_value_is_constant(c->module, v)) return dtm_constant(c->module, c->dtype, dtm_value_get(c->module, v)->number);
    if (c->cast[v]) return c->cast[v];
    dtm_op def = c->module->values[v].def;
    dtm_builder b = dtm_builder_after(c->module, def);
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_CAST);
    attributes.dtype = c->dtype;
    const char *name = dtm_arena_printf(c->arena, "%s.%s", dtm_value_name(c->module, v), dtm_dtype_name(c->dtype));
    return c->cast[v] = dtm_build(&b, DTM_OP_CAST, name, &v, 1, &attributes);
}

/* Whether an operand is to be in the dtype: what is used of weights and inputs, and what has to be as the others are. */
static bool wants(const chooser *c, const dtm_op_data *op, uint32_t k) {
    dtm_value v = op->operands[k];
    if (!is_float(c, v) || !type_of(c, v)->rank || op->kind == DTM_OP_CAST) return false;
    if (op->kind == DTM_OP_CARRY || op->kind == DTM_OP_CONCAT) return (dtm_dtype)type_of(c, op->results[0])->dtype == c->dtype;
    if (op->kind == DTM_OP_ATTENTION || op->kind == DTM_OP_ATTENTION_BACKWARD) return k < 3;
    dtm_op def = c->module->values[v].def;
    dtm_op_kind made = def ? c->module->ops[def].kind : DTM_OP_NONE;
    return (made == DTM_OP_WEIGHT || made == DTM_OP_INPUT || op->kind == DTM_OP_DOT) && !is_exact(c, v);
}

/* Of what moves elements: their type. */
static void follow(chooser *c, const dtm_op_data *op) {
    dtm_type types[4];
    bool keeps = moves(op) || op->kind == DTM_OP_REDUCE_MAX;
    if (!keeps || !is_float(c, op->results[0])) return;
    if (dtm_infer(c->module, op->kind, op->operands, op->n_operands, &op->attributes, op->span, types))
        set_dtype(c, op->results[0], (dtm_dtype)dtm_type_get(c->module, types[0])->dtype);
}

/* Of the operators that carry, or of all others, whose results take the type of what they move. */
static void cast_operands(chooser *c, bool carries) {
    for (size_t i = 0; i < c->ops.count; i++) {
        dtm_op op = c->ops.items[i];
        if (in_update(c, op) || (c->module->ops[op].kind == DTM_OP_CARRY) != carries) continue;
        for (uint32_t k = 0; k < c->module->ops[op].n_operands; k++) {
            if (!wants(c, &c->module->ops[op], k)) continue;
            dtm_value cast = in_dtype(c, c->module->ops[op].operands[k]);
            c->module->ops[op].operands[k] = cast;
        }
        follow(c, &c->module->ops[op]);
    }
}

bool dtm_pass_precision(dtm_module *module) {
    if (!module->settings.train.present || module->settings.train.precision == DTM_F32) return true;
    chooser c = {.module = module, .arena = dtm_arena_create(), .dtype = module->settings.train.precision};
    c.ops = dtm_ops_in_order(module, c.arena);
    size_t n_values = module->n_values;
    c.updates = dtm_arena_alloc(c.arena, n_values * sizeof *c.updates);
    c.cast = dtm_arena_alloc(c.arena, n_values * sizeof *c.cast);
    find_updates(&c);
    for (size_t i = 0; i < c.ops.count; i++) {
        const dtm_op_data *op = &module->ops[c.ops.items[i]];
        for (uint32_t r = 0; r < op->n_results && !in_update(&c, c.ops.items[i]); r++)
            if (rounds(&c, op, r)) set_dtype(&c, op->results[r], c.dtype);
    }
    cast_operands(&c, false);
    cast_operands(&c, true); /* what a carry goes on with is known by now */
    dtm_arena_destroy(c.arena);
    return true;
}
