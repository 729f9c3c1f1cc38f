/* The verifier's laws of changes of layout (E0504, E0505): what a collective makes of its operand's layout. */
#include "ir/calls.h"
#include "ir/storage.h"
#include "ir/verify.h"

#include <string.h>

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
        /* What ranks have as it is may be meant for a maximum too. */
        if (op->attributes.number[DTM_AS_TERM_OWN] != 0 && (result->max & axes) == axes)
            type->max |= axes;
        else
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
    for (int s = layout->count; s < wanted->count; s++) {
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
        if (axes >> a & 1) dtm_text_printf(&text, "%s%s", text.length ? " and " : "", verify_axis(v, a));
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
        BREAK(v, op, 505, "`permute` moves blocks and reduces nothing: %s is %s, %s is %s", verify_name(v, op->operands[0]),
              verify_type_text(v, op->operands[0]), verify_name(v, op->results[0]), verify_type_text(v, op->results[0]));
    uint16_t unnamed = moved_axes(from, to) & (uint16_t)~op->attributes.axes;
    if (unnamed)
        BREAK(v, op, 505, "`permute` of %s (%s) to %s moves blocks along %s, which it does not name",
              verify_name(v, op->operands[0]), verify_type_text(v, op->operands[0]), verify_type_text(v, op->results[0]),
              axes_text(v, unnamed));
}

static const char *number_text(const verifier *v, double number) {
    dtm_text text = {v->scratch, NULL, 0, 0};
    dtm_text_number(&text, number);
    return text.data;
}

/* Numbers of a dump that are a yes or a no. */
static void check_switches(verifier *v, const dtm_op_data *op) {
    double own = op->kind == DTM_OP_AS_TERM ? op->attributes.number[DTM_AS_TERM_OWN] : 0;
    bool collective = op->kind == DTM_OP_ALL_REDUCE || op->kind == DTM_OP_REDUCE_SCATTER || op->kind == DTM_OP_ALL_GATHER;
    double apart = collective ? op->attributes.number[DTM_COLLECTIVE_APART] : 0;
    if (own != 0 && own != 1) BREAK(v, op, 505, "`own` of %s is 1 or left out, not %s", verify_title(v, op), number_text(v, own));
    if (own != 0 && !dtm_along_pipeline(v->module, op))
        BREAK(v, op, 505, "%s: a rank keeps a term as its `own` along the axis of a pipeline alone, not along %s", verify_title(v, op),
              axes_text(v, op->attributes.axes));
    if (own == 0 && op->kind == DTM_OP_AS_TERM && dtm_along_pipeline(v->module, op))
        BREAK(v, op, 505, "%s: along the axis of a pipeline a rank keeps its `own` term, own = 1: others have values of their own",
              verify_title(v, op));
    bool along = dtm_along_pipeline(v->module, op);
    double first = along ? DTM_FIRST_STREAM_OF_SUMS : 1, last = along ? DTM_FIRST_STREAM_OF_SUMS + DTM_STREAMS_OF_SUMS - 1 : 1;
    if (apart != 0 && !(apart >= first && apart <= last && apart == (int)apart))
        BREAK(v, op, 505, "`apart` of %s is %s or left out, not %s", verify_title(v, op),
              along ? dtm_arena_printf(v->scratch, "%d to %d, a stream of sums along a pipeline,", (int)first, (int)last) : "1", number_text(v, apart));
}

static bool is_paired(verifier *v, dtm_op self) {
    dtm_op loop = dtm_ordered_loop(v->module, self), region = loop ? dtm_called_region(v->module, self) : 0;
    dtm_loop_calls calls;
    if (!region || dtm_loop_calls_of(v->module, loop, v->scratch, &calls)) return false;
    return dtm_loop_is_paired(&calls, region, false) || dtm_loop_is_paired(&calls, region, true);
}

/* What is carried out apart is started at a place before its region, or where it stands, and is then waited for in the copy of the
 * loops around it: other ranks of a pipeline are met in the text's order. */
static void check_apart(verifier *v, dtm_op self) {
    const dtm_op_data *op = dtm_op_get(v->module, self);
    if (!dtm_is_apart(v->module, self)) return;
    bool along = dtm_along_pipeline(v->module, op);
    if (along && !dtm_early_place(v->module, self))
        BREAK(v, op, 505, "%s is carried out apart, along a pipeline, and nothing of it is made in another region", verify_title(v, op));
    if (dtm_early_place(v->module, self)) return;
    dtm_order order = dtm_order_of(v->module, v->scratch);
    if (dtm_touched_by(v->module, &order, self) < 0)
        BREAK(v, op, 505, "%s is carried out apart, started where it stands, and nothing in its region reads what it makes",
              verify_title(v, op));
    if (is_paired(v, self))
        BREAK(v, op, 505, "%s is carried out apart in a region that is called in pairs, whose other part hides it", verify_title(v, op));
}

void verify_layouts(verifier *v, dtm_op self) {
    const dtm_op_data *op = dtm_op_get(v->module, self);
    check_switches(v, op);
    if (v->good) check_apart(v, self);
    if (!v->good) return;
    if (op->n_operands != op->n_results)
        BREAK(v, op, 505, "%s has %u operands and %u results", verify_title(v, op), op->n_operands, op->n_results);
    for (uint32_t i = 0; i < op->n_operands; i++) {
        dtm_type_data type = *dtm_value_type(v->module, op->operands[i]);
        const dtm_type_data *result = dtm_value_type(v->module, op->results[i]);
        if (!dtm_type_same_shape(&type, result))
            BREAK(v, op, 504, "%s changes the shape of %s", verify_title(v, op), verify_name(v, op->operands[i]));
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
            BREAK(v, op, 505, "%s on %s of %s (%s): %s", verify_title(v, op), axes_text(v, op->attributes.axes),
                  verify_name(v, op->operands[i]), verify_type_text(v, op->operands[i]), wrong);
        if (dtm_type_intern(v->module, &type) != dtm_value_get(v->module, op->results[i])->type) {
            dtm_text text = {v->scratch, NULL, 0, 0};
            dtm_type_print(v->module, dtm_type_intern(v->module, &type), true, &text);
            BREAK(v, op, 505, "%s of %s gives %s, not %s", verify_title(v, op), verify_name(v, op->operands[i]), text.data,
                  verify_type_text(v, op->results[i]));
        }
    }
}
