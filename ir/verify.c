/* The verifier: every law a module must keep, at any stage. Each break is one E05xx with the line of the operator. It
 * reads the factor rules (ir/factors.c) and never repairs anything. */
#include "ir/calls.h"
#include "ir/storage.h"
#include "ir/verify.h"

#include <string.h>

const char *verify_name(const verifier *v, dtm_value value) {
    const char *name = dtm_value_name(v->module, value);
    return *name ? name : "a number";
}

const char *verify_axis(const verifier *v, int axis) {
    return dtm_string_text(v->module->context, v->module->settings.mesh.axes[axis].name);
}

/* "tp = 2", "D = 4": where the matter is one of sizes. */
const char *verify_axis_text(const verifier *v, int axis) {
    long long size = (long long)v->module->settings.mesh.axes[axis].size;
    return dtm_arena_printf(v->scratch, "%s = %lld", verify_axis(v, axis), size);
}

const char *verify_dim_text(const verifier *v, dtm_dim dim) {
    return dtm_dims_text(v->module, v->scratch, &dim, 1, "");
}

const char *verify_type_text(const verifier *v, dtm_value value) {
    dtm_text text = {v->scratch, NULL, 0, 0};
    dtm_type_print(v->module, v->module->values[value].type, true, &text);
    return text.data;
}

const char *verify_title(const verifier *v, const dtm_op_data *op) {
    if (op->n_results)
        return dtm_arena_printf(v->scratch, "`%s = %s`", verify_name(v, op->results[0]), dtm_op_rows[op->kind].name);
    return dtm_arena_printf(v->scratch, "`%s`", dtm_op_rows[op->kind].name);
}

/* ---- types ---- */

static void check_type(verifier *v, const dtm_op_data *op, dtm_value value) {
    const dtm_type_data *type = dtm_value_type(v->module, value);
    uint16_t seen = 0;
    for (int d = 0; d < type->rank; d++) {
        for (int e = 0; e < d; e++)
            if (type->dims[d] == type->dims[e])
                BREAK(v, op, 503, "%s has %s twice", verify_name(v, value), dtm_dim_name(v->module, type->dims[d]));
        for (int s = 0; s < type->layout[d].count; s++) {
            int axis = type->layout[d].splits[s].axis;
            if (seen >> axis & 1)
                BREAK(v, op, 502, "axis %s splits %s twice: %s", verify_axis(v, axis), verify_name(v, value),
                      verify_type_text(v, value));
            seen |= (uint16_t)(1 << axis);
            if (s && v->module->settings.mesh.axes[axis].time)
                BREAK(v, op, 502, "axis %s is in time, and %s splits %s before it: %s", verify_axis(v, axis),
                      verify_axis(v, type->layout[d].splits[s - 1].axis), dtm_dim_name(v->module, type->dims[d]),
                      verify_type_text(v, value));
        }
    }
    uint16_t pending = type->sum | type->max, both = (seen & pending) | (type->sum & type->max);
    for (int a = 0; both >> a; a++)
        if (both >> a & 1)
            BREAK(v, op, 502, "axis %s occurs twice in the layout of %s: %s", verify_axis(v, a), verify_name(v, value),
                  verify_type_text(v, value));
}

static bool has_explicit_type(dtm_op_kind kind) {
    bool sink = kind >= DTM_OP_REPORT && kind <= DTM_OP_SEND;
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
        BREAK(v, op, 504, "%s: %s is %s, which is not %s, %s, with the dimensions added", verify_title(v, op),
              verify_name(v, op->results[0]), verify_type_text(v, op->results[0]), verify_name(v, op->operands[0]),
              verify_type_text(v, op->operands[0]));
}

/* (ids, dy over V): dy has the dimensions of gather's result, those of ids and the table's without V. */
static void check_scatter(verifier *v, const dtm_op_data *op) {
    const dtm_attributes *a = &op->attributes;
    dtm_value ids = op->operands[0], dy = op->operands[1], table = op->results[0];
    const dtm_type_data *of_ids = dtm_value_type(v->module, ids), *of_dy = dtm_value_type(v->module, dy),
                        *of_table = dtm_value_type(v->module, table);
    bool floats = dtm_dtype_is_float((dtm_dtype)of_dy->dtype) && dtm_dtype_is_float((dtm_dtype)of_table->dtype);
    bool fits = a->n_over == 1 && of_ids->dtype == DTM_I32 && (of_dy->dtype == of_table->dtype || floats);
    fits = fits && has_dim(v, table, a->over[0]) && !has_dim(v, ids, a->over[0]) && !has_dim(v, dy, a->over[0]);
    for (int d = 0; fits && d < of_ids->rank; d++) fits = has_dim(v, dy, of_ids->dims[d]);
    for (int d = 0; fits && d < of_table->rank; d++)
        fits = of_table->dims[d] == a->over[0] || has_dim(v, dy, of_table->dims[d]);
    for (int d = 0; fits && d < of_dy->rank; d++)
        fits = has_dim(v, ids, of_dy->dims[d]) || has_dim(v, table, of_dy->dims[d]);
    if (!fits)
        BREAK(v, op, 504, "%s: %s is %s, which rows %s at indices %s do not make", verify_title(v, op), verify_name(v, table),
              verify_type_text(v, table), verify_type_text(v, dy), verify_type_text(v, ids));
}

/* What computes does so in f32, and rounds what it makes to the type of that. */
static bool fits_inferred(const dtm_op_data *op, const dtm_type_data *inferred, const dtm_type_data *is) {
    dtm_type_data made = *is;
    if (dtm_computes(op->kind) && inferred->dtype == DTM_F32 && dtm_dtype_is_float((dtm_dtype)is->dtype)) made.dtype = DTM_F32;
    return dtm_type_same_shape(inferred, &made);
}

static void check_shape(verifier *v, const dtm_op_data *op) {
    if (op->kind == DTM_OP_EXPAND) check_expand(v, op);
    if (op->kind == DTM_OP_SCATTER) check_scatter(v, op);
    if (op->kind == DTM_OP_FILL && !dtm_value_is_constant(v->module, op->operands[0]))
        BREAK(v, op, 504, "%s takes a number, not %s, %s", verify_title(v, op), verify_name(v, op->operands[0]),
              verify_type_text(v, op->operands[0]));
    if (has_explicit_type(op->kind)) return;
    dtm_type types[4];
    if (!dtm_infer(v->module, op->kind, op->operands, op->n_operands, &op->attributes, op->span, types)) {
        v->good = false;
        return;
    }
    for (uint32_t i = 0; i < op->n_results; i++) {
        const dtm_type_data *inferred = dtm_type_get(v->module, types[i]),
                            *is = dtm_value_type(v->module, op->results[i]);
        if (!fits_inferred(op, inferred, is)) {
            dtm_text text = {v->scratch, NULL, 0, 0};
            dtm_type_print(v->module, types[i], false, &text);
            BREAK(v, op, 504, "%s is said to be %s, but %s gives %s", verify_name(v, op->results[i]),
                  verify_type_text(v, op->results[i]), verify_title(v, op), text.data);
        }
    }
}

/* ---- structure: definitions before uses, copies ---- */

static bool runs_copies(dtm_op_kind kind) {
    return kind == DTM_OP_REPEAT || kind == DTM_OP_MICROBATCH;
}

/* The loops around an operator, outermost first; `count` of them. */
static const dtm_op *loops_around(const verifier *v, dtm_op op, int *count) {
    dtm_op_list loops = {NULL, 0, 0};
    for (dtm_op at = dtm_enclosing(v->module, op, DTM_OP_NONE); at; at = dtm_enclosing(v->module, at, DTM_OP_NONE))
        if (runs_copies(dtm_op_get(v->module, at)->kind)) DTM_PUSH(v->scratch, loops.items, loops.count, loops.capacity, at);
    for (size_t i = 0; i < loops.count / 2; i++) {
        dtm_op swap = loops.items[i];
        loops.items[i] = loops.items[loops.count - 1 - i];
        loops.items[loops.count - 1 - i] = swap;
    }
    *count = (int)loops.count;
    return loops.items;
}

/* How many loops, from the outermost on, run the same copies. */
static int common_loops(const verifier *v, const dtm_op *a, int n, const dtm_op *b, int m) {
    int same = 0;
    while (same < n && same < m && dtm_same_copies(v->module, a[same], b[same])) same++;
    return same;
}

static void check_use(verifier *v, dtm_op op, uint32_t index) {
    const dtm_op_data *data = dtm_op_get(v->module, op);
    dtm_value value = data->operands[index];
    if (!value) BREAK(v, data, 501, "operand %u of %s is missing", index + 1, verify_title(v, data));
    dtm_op def = dtm_value_get(v->module, value)->def;
    if (!def) return; /* a constant */
    bool next_of_carry = data->kind == DTM_OP_CARRY && index == 1;
    if (!v->order[def]) BREAK(v, data, 501, "%s uses %s, which nothing defines", verify_title(v, data), verify_name(v, value));
    if (!next_of_carry && v->order[def] >= v->order[op])
        BREAK(v, data, 501, "%s uses %s before it is set", verify_title(v, data), verify_name(v, value));
    int n_use, n_def;
    const dtm_op *of_use = loops_around(v, op, &n_use), *of_def = loops_around(v, def, &n_def);
    dtm_op use_loop = dtm_enclosing(v->module, op, DTM_OP_MICROBATCH),
           def_loop = dtm_enclosing(v->module, def, DTM_OP_MICROBATCH);
    if (use_loop && use_loop != def_loop) of_use++, n_use--;
    if (dtm_op_get(v->module, def)->kind == DTM_OP_ACCUMULATE && def_loop) {
        if (use_loop == def_loop)
            BREAK(v, data, 508, "%s uses %s, which is complete only after the loop over %s", verify_title(v, data),
                  verify_name(v, value), dtm_string_text(v->module->context, dtm_op_get(v->module, def_loop)->attributes.name));
        of_def++, n_def--;
    }
    if (data->kind == DTM_OP_LAST) {
        if (n_def != n_use + 1 || common_loops(v, of_use, n_use, of_def, n_def) != n_use)
            BREAK(v, data, 509, "`last` takes a value of a repeat that ended before it in the same region; %s is none",
                  verify_name(v, value));
        return;
    }
    if (data->kind == DTM_OP_CARRY && index == 0 && n_use) n_use--; /* from outside */
    int same = common_loops(v, of_use, n_use, of_def, n_def);
    if (same == n_def) return;
    const dtm_attributes *loop = &dtm_op_get(v->module, of_def[same])->attributes; /* the outermost that only the definition stands in */
    const char *name = dtm_string_text(v->module->context, loop->name);
    if (same < n_use && dtm_op_get(v->module, of_use[same])->attributes.name == loop->name)
        BREAK(v, data, 508, "%s uses %s, which is of %lld copies of repeat %s from %lld, in %lld from %lld", verify_title(v, data),
              verify_name(v, value), (long long)loop->copies, name, (long long)loop->from,
              (long long)dtm_op_get(v->module, of_use[same])->attributes.copies,
              (long long)dtm_op_get(v->module, of_use[same])->attributes.from);
    BREAK(v, data, 508, "%s uses %s of repeat %s from outside its copies", verify_title(v, data), verify_name(v, value), name);
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
            BREAK(v, op, 509, "a carried value keeps its type: %s is %s, %s is %s", verify_name(v, op->results[0]),
                  verify_type_text(v, op->results[0]), verify_name(v, op->operands[i]), verify_type_text(v, op->operands[i]));
    }
}

static void check_last(verifier *v, const dtm_op_data *op) {
    if (dtm_value_get(v->module, op->operands[0])->type != dtm_value_get(v->module, op->results[0])->type)
        BREAK(v, op, 509, "`last` keeps the type: %s is %s, %s is %s", verify_name(v, op->results[0]),
              verify_type_text(v, op->results[0]), verify_name(v, op->operands[0]), verify_type_text(v, op->operands[0]));
}

/* What is pending over microbatches, and nothing else, is complete once their loop has ended. */
static void check_accumulate(verifier *v, const dtm_op_data *op, dtm_op self) {
    dtm_type_data type = *dtm_value_type(v->module, op->operands[0]);
    const dtm_mesh *mesh = &v->module->settings.mesh;
    uint16_t time = 0;
    for (int a = 0; a < mesh->count; a++)
        if (mesh->axes[a].time) time |= (uint16_t)(1 << a);
    dtm_op loop = dtm_enclosing(v->module, self, DTM_OP_MICROBATCH);
    bool once = loop && dtm_op_get(v->module, loop)->attributes.copies == 1; /* of one there is nothing to add */
    if (!once && !((type.sum | type.max) & time))
        BREAK(v, op, 505, "%s takes %s, of which nothing is pending over microbatches: %s", verify_title(v, op),
              verify_name(v, op->operands[0]), verify_type_text(v, op->operands[0]));
    type.sum &= (uint16_t)~time;
    type.max &= (uint16_t)~time;
    if (!dtm_enclosing(v->module, self, DTM_OP_MICROBATCH))
        BREAK(v, op, 509, "`accumulate` stands outside of a microbatch loop");
    if (dtm_type_intern(v->module, &type) != dtm_value_get(v->module, op->results[0])->type)
        BREAK(v, op, 509, "%s: %s is %s, %s is %s", verify_title(v, op), verify_name(v, op->operands[0]),
              verify_type_text(v, op->operands[0]), verify_name(v, op->results[0]), verify_type_text(v, op->results[0]));
}

/* The axes by which either is split, with their sizes. */
static const char *axes_of_both(const verifier *v, dtm_value a, dtm_value b) {
    dtm_text text = {v->scratch, NULL, 0, 0};
    for (int axis = 0; axis < v->module->settings.mesh.count; axis++) {
        bool splits = dtm_type_axis_dim(dtm_value_type(v->module, a), (uint8_t)axis) >= 0 ||
                      dtm_type_axis_dim(dtm_value_type(v->module, b), (uint8_t)axis) >= 0;
        if (splits) dtm_text_printf(&text, "%s%s", text.length ? ", " : "", verify_axis_text(v, axis));
    }
    return text.length ? text.data : "no axis";
}

static void check_sink(verifier *v, const dtm_op_data *op) {
    for (uint32_t i = 0; i < op->n_operands; i++) {
        const dtm_type_data *type = dtm_value_type(v->module, op->operands[i]);
        if (type->sum | type->max)
            BREAK(v, op, 507, "%s takes %s, which is still pending: %s", verify_title(v, op), verify_name(v, op->operands[i]),
                  verify_type_text(v, op->operands[i]));
    }
    if ((op->kind == DTM_OP_STORE || op->kind == DTM_OP_GRADIENT) &&
        dtm_value_get(v->module, op->operands[0])->type != dtm_value_get(v->module, op->operands[1])->type)
        BREAK(v, op, 506, "%s: %s is %s, %s is %s, with %s", verify_title(v, op), verify_name(v, op->operands[0]),
              verify_type_text(v, op->operands[0]), verify_name(v, op->operands[1]), verify_type_text(v, op->operands[1]),
              axes_of_both(v, op->operands[0], op->operands[1]));
}

/* Where messages stand: in a pass before or after the loop over microbatches, once in a step, or in that of a stage in the loop. */
static bool is_message_place(const dtm_module *module, const dtm_op_data *op) {
    dtm_op pass = module->regions[op->region].parent, around = pass ? module->regions[dtm_op_get(module, pass)->region].parent : 0;
    dtm_op_kind kind = pass ? dtm_op_get(module, pass)->kind : DTM_OP_NONE;
    bool forward_or_backward = kind == DTM_OP_FORWARD || kind == DTM_OP_BACKWARD;
    if (!around) return forward_or_backward || kind == DTM_OP_UPDATE;
    return forward_or_backward && around == dtm_rank_loop(module) && dtm_op_get(module, pass)->attributes.number[DTM_REGION_STAGE] >= 0;
}

/* On one axis, to or from another rank of it. */
static void check_message(verifier *v, const dtm_op_data *op) {
    const dtm_mesh *mesh = &v->module->settings.mesh;
    const dtm_pipeline_rule *rule = &v->module->settings.pipeline;
    double peer = op->attributes.number[DTM_MESSAGE_PEER];
    if (!rule->present || op->attributes.axes != 1 << rule->axis)
        BREAK(v, op, 511, "%s: messages go between the ranks of a pipeline's axis", verify_title(v, op));
    if (!(peer >= 0 && peer < (double)mesh->axes[rule->axis].size && peer != (double)v->module->rank))
        BREAK(v, op, 511, "%s: rank %lld of %s is none that rank %lld can have messages with", verify_title(v, op), (long long)peer,
              verify_axis_text(v, rule->axis), (long long)v->module->rank);
    if (!is_message_place(v->module, op))
        BREAK(v, op, 511, "%s: messages stand in `forward`, `backward` or `update` outside of the loop over microbatches, and in it in "
                          "those of a stage, in no repeat", verify_title(v, op));
}

/* Ranks of a pipeline meet in one operator, once in a step. */
static void check_meeting(verifier *v, dtm_op self) {
    const dtm_op_data *op = dtm_op_get(v->module, self);
    if (!dtm_runs_collective(op->kind) || !dtm_along_pipeline(v->module, op)) return;
    if (op->kind != DTM_OP_ALL_REDUCE || op->attributes.axes & (op->attributes.axes - 1))
        BREAK(v, op, 511, "%s: along a pipeline ranks meet in `all_reduce` alone, and along no other axis at once", verify_title(v, op));
    if (dtm_enclosing(v->module, self, DTM_OP_MICROBATCH))
        BREAK(v, op, 511, "%s: ranks of a pipeline meet outside of the loop over microbatches", verify_title(v, op));
}

/* Of the ranks along a pipeline's axis those that take part, this one among them. */
static void check_members(verifier *v, const dtm_op_data *op) {
    if (!op->attributes.members) return;
    const dtm_pipeline_rule *rule = &v->module->settings.pipeline;
    int64_t ranks = rule->present ? v->module->settings.mesh.axes[rule->axis].size : 0;
    if (!dtm_along_pipeline(v->module, op) || op->attributes.axes & (op->attributes.axes - 1) ||
        !dtm_members_are_good(v->module, op, ranks) || !dtm_is_member(v->module, op, v->module->rank))
        BREAK(v, op, 511,
              "%s: `members` are ranks along a pipeline's axis, this one among them, in ascending order: \"0, 3-5\"",
              verify_title(v, op));
}

static void check_layouts(verifier *v, dtm_op op) {
    verify_layouts(v, op);
    if (v->good) verify_steps(v, op);
}

/* A kernel's loops make elements, one after another, and reduce them. */
static void check_fused(verifier *v, dtm_op self) {
    const dtm_op_data *op = dtm_op_get(v->module, self);
    bool elements = dtm_is_elementwise(op->kind) || op->kind == DTM_OP_FILL || op->kind == DTM_OP_POSITIONS;
    if (dtm_unit_of(v->module, self) != self && !elements && !dtm_is_reduction(op->kind))
        BREAK(v, op, 509, "%s stands in `fused`, which has elementwise operators and reductions alone", verify_title(v, op));
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
    check_fused(v, op);
    if (v->good) check_members(v, data);
    if (v->good) check_meeting(v, op);
    if (v->good && (data->kind == DTM_OP_WEIGHT || data->kind == DTM_OP_STATE)) verify_path(v, op);
    if (v->good && data->kind >= DTM_OP_REPORT && data->kind <= DTM_OP_GRADIENT) verify_once(v, op);
    if (!v->good) return;
    if (data->kind == DTM_OP_CARRY)
        check_carry(v, data, op);
    else if (data->kind == DTM_OP_LAST)
        check_last(v, data);
    else if (data->kind == DTM_OP_ACCUMULATE)
        check_accumulate(v, data, op);
    else if (layout)
        check_layouts(v, op);
    else if (data->kind >= DTM_OP_REPORT && data->kind <= DTM_OP_GRADIENT)
        check_sink(v, data);
    else if (data->kind == DTM_OP_SEND || data->kind == DTM_OP_RECEIVE)
        check_message(v, data);
    else if (data->kind == DTM_OP_MICROBATCH)
        verify_order(v, op);
    else if (!structure)
        verify_splits(v, op);
    v->good &= was_good;
}

static void number_op(dtm_module *module, dtm_op op, void *state) {
    (void)module;
    verifier *v = state;
    v->order[op] = ++v->next;
}

static bool verify_one(dtm_module *module) {
    verifier v = {.module = module, .scratch = dtm_arena_create(), .good = true};
    v.order = dtm_arena_alloc(v.scratch, module->n_ops * sizeof *v.order);
    v.sunk = dtm_arena_alloc(v.scratch, module->n_values * sizeof *v.sunk);
    dtm_walk(module, number_op, &v);
    dtm_walk(module, check_op, &v);
    if (v.good) verify_stages(&v);
    if (v.good && strcmp(dtm_string_text(module->context, module->after), "memory") == 0) {
        size_t errors = dtm_error_count(module->context);
        dtm_storage_verify(module, v.scratch);
        v.good = dtm_error_count(module->context) == errors;
        if (v.good) verify_places(&v);
    }
    dtm_arena_destroy(v.scratch);
    return v.good;
}

bool dtm_module_verify(dtm_module *module) {
    bool good = true;
    for (size_t i = 0; i < module->n_ranks; i++) good = verify_one(module->ranks[i]) && good;
    return module->n_ranks ? good : verify_one(module);
}
