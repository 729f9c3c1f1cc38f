/* The verifier: every law a module must keep, at any stage. Each break is one E05xx with the line of the operator. It
 * reads the factor rules (ir/factors.c) and never repairs anything. */
#include "ir/storage.h"

#include <string.h>

typedef struct verifier {
    dtm_module *module;
    dtm_arena *scratch;
    uint32_t *order; /* by operator: its place in execution order, from 1; 0: not in the module */
    uint32_t next;
    bool good;
} verifier;

static const char *name_of(const verifier *v, dtm_value value) {
    const char *name = dtm_value_name(v->module, value);
    return *name ? name : "a number";
}

static const char *axis_name(const verifier *v, int axis) {
    return dtm_string_text(v->module->context, v->module->settings.mesh.axes[axis].name);
}

/* "tp = 2", "D = 4": where the matter is one of sizes. */
static const char *axis_text(const verifier *v, int axis) {
    long long size = (long long)v->module->settings.mesh.axes[axis].size;
    return dtm_arena_printf(v->scratch, "%s = %lld", axis_name(v, axis), size);
}

static const char *dim_text(const verifier *v, dtm_dim dim) {
    return dtm_dims_text(v->module, v->scratch, &dim, 1, "");
}

static const char *type_text(const verifier *v, dtm_value value) {
    dtm_text text = {v->scratch, NULL, 0, 0};
    dtm_type_print(v->module, v->module->values[value].type, true, &text);
    return text.data;
}

static const char *op_title(const verifier *v, const dtm_op_data *op) {
    if (op->n_results)
        return dtm_arena_printf(v->scratch, "`%s = %s`", name_of(v, op->results[0]), dtm_op_rows[op->kind].name);
    return dtm_arena_printf(v->scratch, "`%s`", dtm_op_rows[op->kind].name);
}

#define BREAK(v, op, code, ...)                                                                                        \
    do {                                                                                                               \
        (v)->good = false;                                                                                             \
        dtm_error((v)->module->context, (op)->span, code, __VA_ARGS__);                                                \
        return;                                                                                                        \
    } while (0)

/* ---- what a value is on one axis ---- */

typedef enum state { ALIKE, SPLIT, SUM, MAX } state;

static state state_on(const dtm_type_data *type, int axis, int *dim) {
    *dim = dtm_type_axis_dim(type, (uint8_t)axis);
    if (*dim >= 0) return SPLIT;
    if (type->sum >> axis & 1) return SUM;
    if (type->max >> axis & 1) return MAX;
    return ALIKE;
}

/* ---- types ---- */

static void check_type(verifier *v, const dtm_op_data *op, dtm_value value) {
    const dtm_type_data *type = dtm_value_type(v->module, value);
    uint16_t seen = 0;
    for (int d = 0; d < type->rank; d++) {
        for (int e = 0; e < d; e++)
            if (type->dims[d] == type->dims[e])
                BREAK(v, op, 503, "%s has %s twice", name_of(v, value), dtm_dim_name(v->module, type->dims[d]));
        for (int s = 0; s < type->layout[d].count; s++) {
            int axis = type->layout[d].splits[s].axis;
            if (seen >> axis & 1)
                BREAK(v, op, 502, "axis %s splits %s twice: %s", axis_name(v, axis), name_of(v, value),
                      type_text(v, value));
            seen |= (uint16_t)(1 << axis);
            if (s && v->module->settings.mesh.axes[axis].time)
                BREAK(v, op, 502, "axis %s is in time, and %s splits %s before it: %s", axis_name(v, axis),
                      axis_name(v, type->layout[d].splits[s - 1].axis), dtm_dim_name(v->module, type->dims[d]),
                      type_text(v, value));
        }
    }
    uint16_t pending = type->sum | type->max, both = (seen & pending) | (type->sum & type->max);
    for (int a = 0; both >> a; a++)
        if (both >> a & 1)
            BREAK(v, op, 502, "axis %s occurs twice in the layout of %s: %s", axis_name(v, a), name_of(v, value),
                  type_text(v, value));
}

static bool has_explicit_type(dtm_op_kind kind) {
    bool sink = kind >= DTM_OP_REPORT && kind <= DTM_OP_GRADIENT;
    return kind <= DTM_OP_STATE || kind == DTM_OP_FILL || kind == DTM_OP_SCATTER || kind == DTM_OP_EXPAND ||
           (kind >= DTM_OP_TOP && !sink);
}

static bool has_dim(const verifier *v, dtm_value value, dtm_dim dim) {
    return dtm_type_dim_index(dtm_value_type(v->module, value), dim) >= 0;
}

static bool is_listed(const dtm_attributes *a, dtm_dim dim) {
    for (int i = 0; i < a->n_over; i++)
        if (a->over[i] == dim) return true;
    return false;
}

/* The result has x's dimensions and those it adds, in any order. */
static void check_expand(verifier *v, const dtm_op_data *op) {
    const dtm_attributes *a = &op->attributes;
    const dtm_type_data *from = dtm_value_type(v->module, op->operands[0]), *to = dtm_value_type(v->module, op->results[0]);
    bool fits = from->dtype == to->dtype;
    for (int d = 0; d < to->rank; d++) fits &= has_dim(v, op->operands[0], to->dims[d]) || is_listed(a, to->dims[d]);
    for (int d = 0; d < from->rank; d++) fits &= has_dim(v, op->results[0], from->dims[d]);
    for (int d = 0; d < a->n_over; d++) fits &= has_dim(v, op->results[0], a->over[d]);
    if (!fits)
        BREAK(v, op, 504, "%s: %s is %s, which is not %s, %s, with the dimensions added", op_title(v, op),
              name_of(v, op->results[0]), type_text(v, op->results[0]), name_of(v, op->operands[0]),
              type_text(v, op->operands[0]));
}

/* (ids, dy over V): dy has the dimensions of gather's result, those of ids and the table's without V. */
static void check_scatter(verifier *v, const dtm_op_data *op) {
    const dtm_attributes *a = &op->attributes;
    dtm_value ids = op->operands[0], dy = op->operands[1], table = op->results[0];
    const dtm_type_data *of_ids = dtm_value_type(v->module, ids), *of_dy = dtm_value_type(v->module, dy),
                        *of_table = dtm_value_type(v->module, table);
    bool fits = a->n_over == 1 && of_ids->dtype == DTM_I32 && of_dy->dtype == of_table->dtype;
    fits = fits && has_dim(v, table, a->over[0]) && !has_dim(v, ids, a->over[0]) && !has_dim(v, dy, a->over[0]);
    for (int d = 0; fits && d < of_ids->rank; d++) fits = has_dim(v, dy, of_ids->dims[d]);
    for (int d = 0; fits && d < of_table->rank; d++)
        fits = of_table->dims[d] == a->over[0] || has_dim(v, dy, of_table->dims[d]);
    for (int d = 0; fits && d < of_dy->rank; d++)
        fits = has_dim(v, ids, of_dy->dims[d]) || has_dim(v, table, of_dy->dims[d]);
    if (!fits)
        BREAK(v, op, 504, "%s: %s is %s, which rows %s at indices %s do not make", op_title(v, op), name_of(v, table),
              type_text(v, table), type_text(v, dy), type_text(v, ids));
}

static void check_shape(verifier *v, const dtm_op_data *op) {
    if (op->kind == DTM_OP_EXPAND) check_expand(v, op);
    if (op->kind == DTM_OP_SCATTER) check_scatter(v, op);
    if (op->kind == DTM_OP_FILL && !dtm_value_is_constant(v->module, op->operands[0]))
        BREAK(v, op, 504, "%s takes a number, not %s, %s", op_title(v, op), name_of(v, op->operands[0]),
              type_text(v, op->operands[0]));
    if (has_explicit_type(op->kind)) return;
    dtm_type types[4];
    if (!dtm_infer(v->module, op->kind, op->operands, op->n_operands, &op->attributes, op->span, types)) {
        v->good = false;
        return;
    }
    for (uint32_t i = 0; i < op->n_results; i++) {
        const dtm_type_data *inferred = dtm_type_get(v->module, types[i]),
                            *is = dtm_value_type(v->module, op->results[i]);
        if (!dtm_type_same_shape(inferred, is)) {
            dtm_text text = {v->scratch, NULL, 0, 0};
            dtm_type_print(v->module, types[i], false, &text);
            BREAK(v, op, 504, "%s is said to be %s, but %s gives %s", name_of(v, op->results[i]),
                  type_text(v, op->results[i]), op_title(v, op), text.data);
        }
    }
}

/* ---- structure: definitions before uses, copies ---- */

static bool runs_copies(dtm_op_kind kind) {
    return kind == DTM_OP_REPEAT || kind == DTM_OP_MICROBATCH;
}

/* The repeats around an operator, outermost first. */
static int repeats_around(const verifier *v, dtm_op op, dtm_string names[16]) {
    int count = 0;
    for (dtm_op at = dtm_enclosing(v->module, op, DTM_OP_NONE); at && count < 16;
         at = dtm_enclosing(v->module, at, DTM_OP_NONE))
        if (runs_copies(dtm_op_get(v->module, at)->kind)) names[count++] = dtm_op_get(v->module, at)->attributes.name;
    for (int i = 0; i < count / 2; i++) {
        dtm_string swap = names[i];
        names[i] = names[count - 1 - i];
        names[count - 1 - i] = swap;
    }
    return count;
}

static void check_use(verifier *v, dtm_op op, uint32_t index) {
    const dtm_op_data *data = dtm_op_get(v->module, op);
    dtm_value value = data->operands[index];
    if (!value) BREAK(v, data, 501, "operand %u of %s is missing", index + 1, op_title(v, data));
    dtm_op def = dtm_value_get(v->module, value)->def;
    if (!def) return; /* a constant */
    bool next_of_carry = data->kind == DTM_OP_CARRY && index == 1;
    if (!v->order[def]) BREAK(v, data, 501, "%s uses %s, which nothing defines", op_title(v, data), name_of(v, value));
    if (!next_of_carry && v->order[def] >= v->order[op])
        BREAK(v, data, 501, "%s uses %s before it is set", op_title(v, data), name_of(v, value));
    dtm_string of_use[16], of_def[16];
    int n_use = repeats_around(v, op, of_use), n_def = repeats_around(v, def, of_def);
    dtm_op use_loop = dtm_enclosing(v->module, op, DTM_OP_MICROBATCH),
           def_loop = dtm_enclosing(v->module, def, DTM_OP_MICROBATCH);
    if (use_loop && use_loop != def_loop) memmove(of_use, of_use + 1, (size_t)--n_use * sizeof *of_use);
    if (dtm_op_get(v->module, def)->kind == DTM_OP_ACCUMULATE && def_loop) {
        if (use_loop == def_loop)
            BREAK(v, data, 508, "%s uses %s, which is complete only after the microbatches", op_title(v, data),
                  name_of(v, value));
        memmove(of_def, of_def + 1, (size_t)--n_def * sizeof *of_def);
    }
    if (data->kind == DTM_OP_LAST) {
        if (n_def != n_use + 1 || memcmp(of_use, of_def, (size_t)n_use * sizeof *of_use))
            BREAK(v, data, 509, "`last` takes a value of a repeat that ended before it in the same region; %s is none",
                  name_of(v, value));
        return;
    }
    if (data->kind == DTM_OP_CARRY && index == 0 && n_use) n_use--; /* from outside */
    if (n_def > n_use || memcmp(of_use, of_def, (size_t)n_def * sizeof *of_def))
        BREAK(v, data, 508, "%s uses %s of repeat %s from outside its copies", op_title(v, data), name_of(v, value),
              dtm_string_text(v->module->context, n_def ? of_def[n_def - 1] : 0));
}

/* ---- carried values ---- */

static void check_carry(verifier *v, const dtm_op_data *op, dtm_op self) {
    dtm_op around = dtm_enclosing(v->module, self, DTM_OP_NONE);
    while (around && !runs_copies(dtm_op_get(v->module, around)->kind))
        around = dtm_enclosing(v->module, around, DTM_OP_NONE);
    if (!around) BREAK(v, op, 509, "`carry` stands outside of a repeat");
    for (int i = 0; i < 2; i++) {
        bool constant = dtm_value_is_constant(v->module, op->operands[i]);
        if (!constant &&
            dtm_value_get(v->module, op->operands[i])->type != dtm_value_get(v->module, op->results[0])->type)
            BREAK(v, op, 509, "a carried value keeps its type: %s is %s, %s is %s", name_of(v, op->results[0]),
                  type_text(v, op->results[0]), name_of(v, op->operands[i]), type_text(v, op->operands[i]));
    }
}

static void check_last(verifier *v, const dtm_op_data *op) {
    if (dtm_value_get(v->module, op->operands[0])->type != dtm_value_get(v->module, op->results[0])->type)
        BREAK(v, op, 509, "`last` keeps the type: %s is %s, %s is %s", name_of(v, op->results[0]),
              type_text(v, op->results[0]), name_of(v, op->operands[0]), type_text(v, op->operands[0]));
}

/* What is pending over microbatches, and nothing else, is complete once their loop has ended. */
static void check_accumulate(verifier *v, const dtm_op_data *op, dtm_op self) {
    dtm_type_data type = *dtm_value_type(v->module, op->operands[0]);
    const dtm_mesh *mesh = &v->module->settings.mesh;
    uint16_t time = 0;
    for (int a = 0; a < mesh->count; a++)
        if (mesh->axes[a].time) time |= (uint16_t)(1 << a);
    if (!((type.sum | type.max) & time))
        BREAK(v, op, 505, "%s takes %s, of which nothing is pending over microbatches: %s", op_title(v, op),
              name_of(v, op->operands[0]), type_text(v, op->operands[0]));
    type.sum &= (uint16_t)~time;
    type.max &= (uint16_t)~time;
    if (!dtm_enclosing(v->module, self, DTM_OP_MICROBATCH))
        BREAK(v, op, 509, "`accumulate` stands outside of a microbatch loop");
    if (dtm_type_intern(v->module, &type) != dtm_value_get(v->module, op->results[0])->type)
        BREAK(v, op, 509, "%s: %s is %s, %s is %s", op_title(v, op), name_of(v, op->operands[0]),
              type_text(v, op->operands[0]), name_of(v, op->results[0]), type_text(v, op->results[0]));
}

/* ---- collectives ---- */

static void remove_minor(dtm_dim_layout *layout) {
    layout->count--;
    memset(&layout->splits[layout->count], 0, sizeof layout->splits[0]);
}

/* The operand's type as the collective leaves it: `result` (a type of the same shape) settles units of new splits. */
static const char *collective_result(const dtm_op_data *op, dtm_type_data *type, const dtm_type_data *result) {
    const dtm_attributes *a = &op->attributes;
    int over = a->n_over ? dtm_type_dim_index(type, a->over[0]) : -1,
        as = a->n_as ? dtm_type_dim_index(type, a->as[0]) : -1;
    if (a->n_over && over < 0) return "its dimension after `over` is not in the operand";
    if (a->n_as && as < 0) return "its dimension after `as` is not in the operand";
    uint16_t axes = a->axes;
    if (!axes) return "it names no axis";
    switch (op->kind) {
    case DTM_OP_ALL_REDUCE:
        if ((type->sum & axes) != axes && (type->max & axes) != axes)
            return "nothing is pending on an axis it reduces over: it would multiply";
        if ((type->sum & axes) == axes)
            type->sum &= (uint16_t)~axes;
        else
            type->max &= (uint16_t)~axes;
        return NULL;
    case DTM_OP_AS_TERM:
        if (type->sum & axes) return "a sum is pending there already: all terms but one would be lost";
        type->sum |= axes;
        return NULL;
    case DTM_OP_ALL_TO_ALL:
    case DTM_OP_ALL_GATHER: {
        if (over < 0) return "it needs the dimension after `over`";
        dtm_dim_layout *layout = &type->layout[over];
        uint16_t left = axes;
        while (left && layout->count && left >> layout->splits[layout->count - 1].axis & 1) {
            left &= (uint16_t) ~(1 << layout->splits[layout->count - 1].axis);
            remove_minor(layout);
        }
        if (left) return "an axis it names is not the minor split of that dimension";
        if (op->kind == DTM_OP_ALL_GATHER) return NULL;
        over = as;
        if (as < 0) return "it needs the dimension after `as`";
        break;
    }
    case DTM_OP_REDUCE_SCATTER:
        if ((type->sum & axes) != axes) return "no sum is pending on an axis it reduces over: it would multiply";
        type->sum &= (uint16_t)~axes;
        break;
    case DTM_OP_SHARD:
        break;
    default:
        dtm_broken("verify", "%s is no collective", dtm_op_rows[op->kind].name);
    }
    /* The axes become the minor splits of `over`, in the order the result has them. */
    if (over < 0) return "it needs the dimension after `over`";
    dtm_dim_layout *layout = &type->layout[over];
    const dtm_dim_layout *wanted = &result->layout[over];
    for (int s = layout->count; s < wanted->count && layout->count < DTM_MAX_SPLITS; s++) {
        if (!(axes >> wanted->splits[s].axis & 1)) return "the result is split by an axis it does not name";
        axes &= (uint16_t) ~(1 << wanted->splits[s].axis);
        layout->splits[layout->count++] = wanted->splits[s];
    }
    return axes ? "an axis it names does not split the result" : NULL;
}

/* "dp and tp" */
static const char *axes_text(verifier *v, uint16_t axes) {
    dtm_text text = {v->scratch, NULL, 0, 0};
    for (int a = 0; a < v->module->settings.mesh.count; a++)
        if (axes >> a & 1) dtm_text_printf(&text, "%s%s", text.length ? " and " : "", axis_name(v, a));
    return text.length ? text.data : "no axis";
}

/* The axes whose blocks differ: all from the first on that is not the same, in the same units. */
static uint16_t moved_axes(const dtm_type_data *from, const dtm_type_data *to) {
    uint16_t moved = 0;
    for (int d = 0; d < from->rank; d++) {
        const dtm_dim_layout *a = &from->layout[d], *b = &to->layout[d];
        int same = 0;
        while (same < a->count && same < b->count && a->splits[same].axis == b->splits[same].axis &&
               a->splits[same].unit == b->splits[same].unit)
            same++;
        for (int s = same; s < a->count; s++) moved |= (uint16_t)(1 << a->splits[s].axis);
        for (int s = same; s < b->count; s++) moved |= (uint16_t)(1 << b->splits[s].axis);
    }
    return moved;
}

static void check_permute(verifier *v, const dtm_op_data *op, const dtm_type_data *from, const dtm_type_data *to) {
    if (to->sum != from->sum || to->max != from->max)
        BREAK(v, op, 505, "`permute` moves blocks and reduces nothing: %s is %s, %s is %s", name_of(v, op->operands[0]),
              type_text(v, op->operands[0]), name_of(v, op->results[0]), type_text(v, op->results[0]));
    uint16_t unnamed = moved_axes(from, to) & (uint16_t)~op->attributes.axes;
    if (unnamed)
        BREAK(v, op, 505, "`permute` of %s (%s) to %s moves blocks along %s, which it does not name",
              name_of(v, op->operands[0]), type_text(v, op->operands[0]), type_text(v, op->results[0]), axes_text(v, unnamed));
}

static void check_layout_op(verifier *v, const dtm_op_data *op) {
    if (op->n_operands != op->n_results)
        BREAK(v, op, 505, "%s has %u operands and %u results", op_title(v, op), op->n_operands, op->n_results);
    for (uint32_t i = 0; i < op->n_operands; i++) {
        dtm_type_data type = *dtm_value_type(v->module, op->operands[i]);
        const dtm_type_data *result = dtm_value_type(v->module, op->results[i]);
        if (!dtm_type_same_shape(&type, result))
            BREAK(v, op, 504, "%s changes the shape of %s", op_title(v, op), name_of(v, op->operands[i]));
        if (op->kind == DTM_OP_RELAYOUT) {
            if (result->max & ~type.max) BREAK(v, op, 505, "`relayout` cannot make a maximum pending");
            continue;
        }
        if (op->kind == DTM_OP_PERMUTE) {
            check_permute(v, op, &type, result);
            continue;
        }
        const char *wrong = collective_result(op, &type, result);
        if (wrong)
            BREAK(v, op, 505, "%s on %s of %s (%s): %s", op_title(v, op), axes_text(v, op->attributes.axes),
                  name_of(v, op->operands[i]), type_text(v, op->operands[i]), wrong);
        if (dtm_type_intern(v->module, &type) != dtm_value_get(v->module, op->results[i])->type) {
            dtm_text text = {v->scratch, NULL, 0, 0};
            dtm_type_print(v->module, dtm_type_intern(v->module, &type), true, &text);
            BREAK(v, op, 505, "%s gives %s, not %s", op_title(v, op), text.data, type_text(v, op->results[i]));
        }
    }
}

/* ---- operators: one split on each axis ---- */

typedef struct on_axis {
    const dtm_op_data *op;
    const dtm_factor *factors;
    size_t n_factors;
    int axis;
} on_axis;

static int factor_of(const on_axis *c, bool of_result, uint32_t i, int dim) {
    for (size_t f = 0; f < c->n_factors; f++)
        if ((of_result ? c->factors[f].result_dim[i] : c->factors[f].operand_dim[i]) == dim) return (int)f;
    return -1;
}

/* Key/value heads too few for the axis: held alike, while the query heads are split (sharding.md, law 3). */
static bool may_hold_keys_alike(const dtm_op_data *op, const dtm_factor *f) {
    bool attention = op->kind == DTM_OP_ATTENTION || op->kind == DTM_OP_ATTENTION_BACKWARD;
    return attention && f->n_names == 2;
}

/* What a dot adds to (its third operand) is of the result's type, whatever that is; the laws are those of the others.
 */
static uint32_t judged_operands(const dtm_op_data *op) {
    return op->kind == DTM_OP_DOT ? 2 : op->n_operands;
}

static void check_added(verifier *v, const dtm_op_data *op) {
    if (op->kind != DTM_OP_DOT || op->n_operands < 3) return;
    if (dtm_value_get(v->module, op->operands[2])->type != dtm_value_get(v->module, op->results[0])->type)
        BREAK(v, op, 505, "%s adds to %s, which is %s, not %s", op_title(v, op), name_of(v, op->operands[2]),
              type_text(v, op->operands[2]), type_text(v, op->results[0]));
}

static void check_split(verifier *v, const on_axis *c, int factor) {
    const dtm_factor *f = &c->factors[factor];
    const dtm_op_data *op = c->op;
    if (f->kind == DTM_FACTOR_FIXED || f->kind == DTM_FACTOR_NORMALISED)
        BREAK(v, op, 506, "%s cannot be computed with %s split by %s", op_title(v, op), dim_text(v, f->names[0]),
              axis_text(v, c->axis));
    bool keys_alike = false;
    for (uint32_t i = 0; i < judged_operands(op); i++) {
        int at;
        state is = state_on(dtm_value_type(v->module, op->operands[i]), c->axis, &at);
        if (f->operand_dim[i] >= 0 && is == ALIKE && may_hold_keys_alike(op, f) && (i == 1 || i == 2)) {
            keys_alike = true;
            continue;
        }
        if (f->operand_dim[i] >= 0 ? is != SPLIT || at != f->operand_dim[i] : is != ALIKE)
            BREAK(v, op, 506, "%s is split along %s by %s, but %s is %s", op_title(v, op), dim_text(v, f->names[0]),
                  axis_text(v, c->axis), name_of(v, op->operands[i]), type_text(v, op->operands[i]));
    }
    for (uint32_t i = 0; i < op->n_results; i++) {
        int at;
        state is = state_on(dtm_value_type(v->module, op->results[i]), c->axis, &at), must = SPLIT;
        if (f->result_dim[i] < 0) must = f->kind != DTM_FACTOR_REDUCED ? ALIKE : f->is_max ? MAX : SUM;
        if (keys_alike && op->kind == DTM_OP_ATTENTION_BACKWARD && i > 0) must = SUM;
        if (is != must || (must == SPLIT && at != f->result_dim[i]))
            BREAK(v, op, must == SUM || must == MAX ? 507 : 506,
                  must == SUM || must == MAX ? "%s is split along %s by %s: each rank has a term, but %s is %s"
                                             : "%s is split along %s by %s, but %s is %s",
                  op_title(v, op), dim_text(v, f->names[0]), axis_text(v, c->axis), name_of(v, op->results[i]),
                  type_text(v, op->results[i]));
    }
}

/* No operand and no result is split on the axis: alike, or a term passing a linear operator. */
static void check_pending(verifier *v, const on_axis *c, dtm_op self) {
    const dtm_op_data *op = c->op;
    uint32_t pending = 0, zeros = 0; /* a constant 0 may stand for a term */
    int unused;
    for (uint32_t i = 0; i < judged_operands(op); i++) {
        const dtm_value_data *value = dtm_value_get(v->module, op->operands[i]);
        if (!value->def && value->number == 0) zeros |= 1u << i;
        state is = state_on(dtm_value_type(v->module, op->operands[i]), c->axis, &unused);
        if (is == MAX)
            BREAK(v, op, 507, "%s reads %s, whose maximum over %s is still pending", op_title(v, op),
                  name_of(v, op->operands[i]), axis_name(v, c->axis));
        if (is == SUM) pending |= 1u << i;
    }
    uint32_t sets[4];
    size_t n_sets = dtm_linear_sets(v->module, self, sets);
    bool linear = !pending;
    for (size_t s = 0; s < n_sets; s++) linear |= sets[s] == (pending | (zeros & sets[s]));
    if (!linear)
        for (uint32_t i = 0; i < op->n_operands; i++)
            if (pending >> i & 1)
                BREAK(v, op, 507, "%s is not linear in %s alone, whose sum over %s is still pending", op_title(v, op),
                      name_of(v, op->operands[i]), axis_name(v, c->axis));
    for (uint32_t i = 0; i < op->n_results; i++) {
        state is = state_on(dtm_value_type(v->module, op->results[i]), c->axis, &unused);
        bool zero = op->kind == DTM_OP_FILL && dtm_value_get(v->module, op->operands[0])->number == 0;
        if (is == SUM && zero) continue;
        if (is != (pending ? SUM : ALIKE))
            BREAK(v, op, 507, "%s: %s is %s, but its operands make it %s on %s", op_title(v, op),
                  name_of(v, op->results[i]), type_text(v, op->results[i]), pending ? "a term" : "whole",
                  axis_name(v, c->axis));
    }
}

static void check_axis(verifier *v, dtm_op self, const on_axis *c) {
    const dtm_op_data *op = c->op;
    int dim;
    for (uint32_t i = 0; i < op->n_operands + op->n_results; i++) {
        bool of_result = i >= op->n_operands;
        uint32_t index = of_result ? i - op->n_operands : i;
        dtm_value value = of_result ? op->results[index] : op->operands[index];
        if (!of_result && index >= judged_operands(op)) continue;
        if (state_on(dtm_value_type(v->module, value), c->axis, &dim) != SPLIT) continue;
        int factor = factor_of(c, of_result, index, dim);
        if (factor < 0) dtm_broken("verify", "no factor of %s is a dimension of %s", op_title(v, op), name_of(v, value));
        check_split(v, c, factor);
        return;
    }
    check_pending(v, c, self);
}

/* ---- blocks: all operands cut a factor at the same places ---- */

typedef struct cut_of {
    const dtm_dim_layout *layout;
    uint32_t unit;
    dtm_dim dim;
    dtm_value value;
} cut_of;

/* The same axes in the same order, each in proportional units: no need to look at blocks. */
static bool plainly_alike(const cut_of *a, const cut_of *b) {
    if (a->layout->count != b->layout->count) return false;
    for (int s = 0; s < a->layout->count; s++) {
        const dtm_split *x = &a->layout->splits[s], *y = &b->layout->splits[s];
        if (x->axis != y->axis || (uint64_t)x->unit * b->unit != (uint64_t)y->unit * a->unit) return false;
    }
    return true;
}

static bool same_blocks(const verifier *v, const cut_of *a, const cut_of *b) {
    if (plainly_alike(a, b)) return true;
    if (a->layout->count != b->layout->count) return false;
    const dtm_mesh *mesh = &v->module->settings.mesh;
    for (int s = 0; s < a->layout->count; s++)
        if (a->layout->splits[s].axis != b->layout->splits[s].axis) return false;
    int64_t coordinates[DTM_MAX_AXES] = {0};
    for (;;) {
        int64_t begin_a, size_a, begin_b, size_b;
        dtm_block_of(mesh, v->module->dims[a->dim].size, a->layout, coordinates, &begin_a, &size_a);
        dtm_block_of(mesh, v->module->dims[b->dim].size, b->layout, coordinates, &begin_b, &size_b);
        if (size_a * b->unit != size_b * a->unit || (size_a && begin_a * b->unit != begin_b * a->unit)) return false;
        int s = a->layout->count - 1;
        while (s >= 0 && ++coordinates[a->layout->splits[s].axis] == mesh->axes[a->layout->splits[s].axis].size)
            coordinates[a->layout->splits[s--].axis] = 0;
        if (s < 0) return true;
    }
}

/* "dp = 2, tp = 4" */
static const char *cuts_text(const verifier *v, const dtm_dim_layout *layout) {
    dtm_text text = {v->scratch, NULL, 0, 0};
    for (int s = 0; s < layout->count; s++)
        dtm_text_printf(&text, "%s%s", s ? ", " : "", axis_text(v, layout->splits[s].axis));
    return text.data;
}

static void check_blocks(verifier *v, const dtm_op_data *op, const dtm_factor *f) {
    cut_of first = {NULL, 1, 0, 0};
    for (uint32_t i = 0; i < op->n_operands + op->n_results; i++) {
        bool of_result = i >= op->n_operands;
        uint32_t index = of_result ? i - op->n_operands : i;
        int dim = of_result ? f->result_dim[index] : f->operand_dim[index];
        if (dim < 0) continue;
        dtm_value value = of_result ? op->results[index] : op->operands[index];
        const dtm_type_data *type = dtm_value_type(v->module, value);
        cut_of here = {&type->layout[dim], of_result ? f->result_unit[index] : f->operand_unit[index], type->dims[dim],
                       value};
        bool keys = may_hold_keys_alike(op, f) &&
                    (of_result ? op->kind == DTM_OP_ATTENTION_BACKWARD && index > 0 : index == 1 || index == 2);
        if (keys && first.layout && here.layout->count < first.layout->count) continue;
        if (!first.layout)
            first = here;
        else if (!same_blocks(v, &first, &here))
            BREAK(v, op, 506, "%s: blocks of %s by %s differ: %s is %s, %s is %s", op_title(v, op),
                  dim_text(v, f->names[0]), cuts_text(v, first.layout->count ? first.layout : here.layout),
                  name_of(v, first.value), type_text(v, first.value), name_of(v, here.value), type_text(v, here.value));
    }
}

static void check_splits(verifier *v, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(v->module, op);
    check_added(v, data);
    dtm_factor factors[DTM_MAX_FACTORS];
    on_axis c = {data, factors, dtm_factors(v->module, op, factors), 0};
    for (; c.axis < v->module->settings.mesh.count && v->good; c.axis++) check_axis(v, op, &c);
    for (size_t f = 0; f < c.n_factors && v->good; f++) check_blocks(v, data, &factors[f]);
}

/* The axes by which either is split, with their sizes. */
static const char *axes_of_both(const verifier *v, dtm_value a, dtm_value b) {
    dtm_text text = {v->scratch, NULL, 0, 0};
    for (int axis = 0; axis < v->module->settings.mesh.count; axis++) {
        bool splits = dtm_type_axis_dim(dtm_value_type(v->module, a), (uint8_t)axis) >= 0 ||
                      dtm_type_axis_dim(dtm_value_type(v->module, b), (uint8_t)axis) >= 0;
        if (splits) dtm_text_printf(&text, "%s%s", text.length ? ", " : "", axis_text(v, axis));
    }
    return text.length ? text.data : "no axis";
}

static void check_sink(verifier *v, const dtm_op_data *op) {
    for (uint32_t i = 0; i < op->n_operands; i++) {
        const dtm_type_data *type = dtm_value_type(v->module, op->operands[i]);
        if (type->sum | type->max)
            BREAK(v, op, 507, "%s takes %s, which is still pending: %s", op_title(v, op), name_of(v, op->operands[i]),
                  type_text(v, op->operands[i]));
    }
    if ((op->kind == DTM_OP_STORE || op->kind == DTM_OP_GRADIENT) &&
        dtm_value_get(v->module, op->operands[0])->type != dtm_value_get(v->module, op->operands[1])->type)
        BREAK(v, op, 506, "%s: %s is %s, %s is %s, with %s", op_title(v, op), name_of(v, op->operands[0]),
              type_text(v, op->operands[0]), name_of(v, op->operands[1]), type_text(v, op->operands[1]),
              axes_of_both(v, op->operands[0], op->operands[1]));
}

static void check_op(dtm_module *module, dtm_op op, void *state) {
    verifier *v = state;
    const dtm_op_data *data = dtm_op_get(module, op);
    size_t errors = dtm_error_count(module->context);
    for (uint32_t i = 0; i < data->n_operands; i++) check_use(v, op, i);
    for (uint32_t i = 0; i < data->n_results; i++) check_type(v, data, data->results[i]);
    if (dtm_error_count(module->context) > errors) return;
    check_shape(v, data);
    if (dtm_error_count(module->context) > errors) return;
    bool structure = data->body != 0, layout = data->kind >= DTM_OP_RELAYOUT;
    bool was_good = v->good;
    v->good = true;
    if (data->kind == DTM_OP_CARRY)
        check_carry(v, data, op);
    else if (data->kind == DTM_OP_LAST)
        check_last(v, data);
    else if (data->kind == DTM_OP_ACCUMULATE)
        check_accumulate(v, data, op);
    else if (layout)
        check_layout_op(v, data);
    else if (data->kind >= DTM_OP_REPORT && data->kind <= DTM_OP_GRADIENT)
        check_sink(v, data);
    else if (!structure)
        check_splits(v, op);
    v->good &= was_good;
}

static void number_op(dtm_module *module, dtm_op op, void *state) {
    (void)module;
    verifier *v = state;
    v->order[op] = ++v->next;
}

bool dtm_module_verify(dtm_module *module) {
    verifier v = {module, dtm_arena_create(), NULL, 0, true};
    v.order = dtm_arena_alloc(v.scratch, module->n_ops * sizeof *v.order);
    dtm_walk(module, number_op, &v);
    dtm_walk(module, check_op, &v);
    if (v.good && strcmp(dtm_string_text(module->context, module->after), "memory") == 0) {
        size_t errors = dtm_error_count(module->context);
        dtm_storage_verify(module, v.scratch);
        v.good = dtm_error_count(module->context) == errors;
    }
    dtm_arena_destroy(v.scratch);
    return v.good;
}
