/* autodiff: from a program that computes a loss to one that also computes its gradients and updates its weights.
 *
 *     weight up : f32[D, F] = ..                 forward { ..the program.. }
 *     repeat layer = 4 {                         backward {
 *         x.2 = carry(x, x.3)             ->         d_x.4 : .. = ..
 *         x.3 = x.2 + dot(.., up ..)                 repeat layer = 4 reversed {
 *     }                                                  d_x.3 = carry(d_x.4, d_x.2)
 *     x.4 = last(x.3)                                    d_up.in = carry(d_up.start, d_up.out)
 *     loss = mean(.. x.4 ..)                             ..
 *     report loss = loss                                 d_up.out = d_up.in + d_up.term
 *                                                    }
 *                                                    d_x  = last(d_x.2)
 *                                                    d_up = last(d_up.out)
 *                                                }
 *                                                update { ..optimizer.c.. }
 *
 * A repeat's backward is the same repeat, reversed. What is carried from copy to copy has its gradient carried the other
 * way; the gradient of a weight set in the repeat is one value a copy; that of a value set outside and read inside is
 * accumulated over the copies, beginning with what readers after the repeat contributed. Forward values are simply used:
 * in a repeat that means those of the same copy. Which gradients exist is settled first (`find_wanted`): of values that
 * a trained weight reaches and that reach the loss. */
#include "passes/autodiff.h"
#include "ir/fault.h"
#include "passes/passes.h"

#include <string.h>

/* ---- which values have a gradient ---- */

static bool is_float(const dtm_module *module, dtm_value value) {
    return dtm_dtype_is_float((dtm_dtype)dtm_value_type(module, value)->dtype);
}

static bool passes_gradients(const dtm_op_data *op) {
    return dtm_gradient_rules[op->kind] || op->kind == DTM_OP_CARRY || op->kind == DTM_OP_LAST;
}

/* Marks floating-point results (or operands, going against the flow) of an operator of which some operand (result) is
 * marked. Returns whether that is news. */
static bool spread(const dtm_module *module, const dtm_op_data *op, bool *marked, bool against) {
    const dtm_value *from = against ? op->results : op->operands, *to = against ? op->operands : op->results;
    uint32_t n_from = against ? op->n_results : op->n_operands, n_to = against ? op->n_operands : op->n_results;
    bool any = false, news = false;
    for (uint32_t i = 0; i < n_from; i++) any |= marked[from[i]];
    for (uint32_t i = 0; any && i < n_to; i++) {
        if (marked[to[i]] || !is_float(module, to[i])) continue;
        news = marked[to[i]] = true;
    }
    return news;
}

/* The loss: what is reported under that name. 0: none. */
static dtm_value find_loss(const dtm_module *module, const dtm_op_list *ops) {
    dtm_string name = dtm_string_of(module->context, "loss");
    for (size_t i = 0; i < ops->count; i++) {
        const dtm_op_data *op = dtm_op_get(module, ops->items[i]);
        if (op->kind == DTM_OP_REPORT && op->attributes.name == name) return op->operands[0];
    }
    return 0;
}

static bool is_trained(const dtm_op_data *op) {
    return op->kind == DTM_OP_WEIGHT && !(op->attributes.flags & DTM_WEIGHT_FROZEN);
}

/* To a fixed point, since carried values close cycles. */
static void find_wanted(dtm_autodiff *a, const dtm_op_list *ops, dtm_value loss) {
    dtm_module *m = a->module;
    bool *depends = a->wanted, *reaches = dtm_arena_alloc(a->arena, a->n_values * sizeof *reaches);
    for (size_t i = 0; i < ops->count; i++) {
        const dtm_op_data *op = dtm_op_get(m, ops->items[i]);
        if (is_trained(op)) depends[op->results[0]] = is_float(m, op->results[0]);
    }
    reaches[loss] = true;
    for (bool news = true; news;) {
        news = false;
        for (size_t i = 0; i < ops->count; i++) {
            const dtm_op_data *op = dtm_op_get(m, ops->items[i]);
            if (passes_gradients(op)) news |= spread(m, op, depends, false);
        }
        for (size_t i = ops->count; i-- > 0;) {
            const dtm_op_data *op = dtm_op_get(m, ops->items[i]);
            if (passes_gradients(op)) news |= spread(m, op, reaches, true);
        }
    }
    for (size_t v = 0; v < a->n_values; v++) a->wanted[v] &= reaches[v] && !dtm_value_is_constant(m, (dtm_value)v);
}

static void warn_unreached(dtm_autodiff *a, const dtm_op_list *ops) {
    for (size_t i = 0; i < ops->count; i++) {
        const dtm_op_data *op = dtm_op_get(a->module, ops->items[i]);
        if (!is_trained(op) || a->wanted[op->results[0]]) continue;
        dtm_warning(a->module->context, op->span, 850, "no gradient reaches the weight `%s`: it is left as it is",
                    dtm_value_name(a->module, op->results[0]));
        dtm_help(a->module->context, "use it on the way to `loss`, or mark it `frozen`");
    }
}

/* ---- contributions ---- */

static const char *named(dtm_autodiff *a, dtm_value value, const char *suffix) {
    return dtm_arena_printf(a->arena, "d_%s%s", dtm_value_name(a->module, value), suffix);
}

static dtm_type whole_type(dtm_autodiff *a, dtm_value value) {
    return dtm_type_whole(a->module, a->module->values[value].type);
}

bool dtm_gradient_wanted(const dtm_autodiff *a, dtm_value value) { return value < a->n_values && a->wanted[value]; }

static void contribute_in(dtm_autodiff *a, dtm_scope *scope, dtm_value value, dtm_value gradient) {
    dtm_contributions *list = &scope->of[value];
    DTM_PUSH(a->arena, list->items, list->count, list->capacity, gradient);
}

/* A value just made by a rule is named after what it is the gradient of; others (a gradient handed on) keep their name. */
void dtm_gradient_contribute(dtm_autodiff *a, dtm_value value, dtm_value gradient) {
    if (!dtm_gradient_wanted(a, value)) return;
    const char *name = dtm_value_name(a->module, gradient);
    if (gradient >= a->n_values && strncmp(name, a->part, strlen(a->part)) == 0)
        dtm_value_rename(a->module, gradient, named(a, value, ".term"));
    contribute_in(a, a->scope, value, gradient);
}

/* A number as a value of the type of another: unlike a number, it may be a term of a sum. */
static dtm_value filled(dtm_autodiff *a, dtm_value number, dtm_value like, const char *name) {
    dtm_type type = a->module->values[like].type;
    if (!dtm_value_is_constant(a->module, number)) return number;
    return dtm_result(a->module, dtm_build_op(&a->at, DTM_OP_FILL, &number, 1, NULL, &type, 1, name), 0);
}

static dtm_value plus(dtm_autodiff *a, dtm_value x, dtm_value y, const char *name) {
    if (!dtm_value_is_constant(a->module, x) || !dtm_value_is_constant(a->module, y))
        return dtm_build_binary(&a->at, DTM_OP_ADD, name, filled(a, x, y, name), filled(a, y, x, name));
    double sum = dtm_value_get(a->module, x)->number + dtm_value_get(a->module, y)->number;
    return dtm_constant(a->module, (dtm_dtype)dtm_value_type(a->module, x)->dtype, sum);
}

/* Terms first, else in order of contribution: see canonicalize. */
static void terms_first(dtm_autodiff *a, dtm_contributions *list) {
    dtm_value *sorted = dtm_arena_alloc(a->arena, list->count * sizeof *sorted);
    size_t n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < list->count; i++)
            if (dtm_may_be_term(a->module, list->items[i]) == !pass) sorted[n++] = list->items[i];
    list->items = sorted;
}

/* The sum of what a scope has contributed to a value, which is thereby taken from it; 0: nothing. If it is the whole
 * gradient it bears the plain name, `d_x`. */
static dtm_value take(dtm_autodiff *a, dtm_scope *scope, dtm_value value, bool whole) {
    dtm_contributions list = scope->of[value];
    scope->of[value] = (dtm_contributions){NULL, 0, 0};
    if (!list.count) return 0;
    if (list.count == 1) {
        const char *own = named(a, value, ".term"), *name = dtm_value_name(a->module, list.items[0]);
        bool is_own = strncmp(name, own, strlen(own)) == 0;
        if (whole && is_own) dtm_value_rename(a->module, list.items[0], named(a, value, ""));
        return list.items[0];
    }
    terms_first(a, &list);
    dtm_value sum = list.items[0];
    for (size_t i = dtm_fault(1) && whole && dtm_op_get(a->module, dtm_value_get(a->module, value)->def)->kind == DTM_OP_WEIGHT ? 0 : 1;
         i < list.count; i++)
        sum = plus(a, sum, list.items[i], named(a, value, whole && i + 1 == list.count ? "" : ".terms"));
    return sum;
}

static dtm_value zeros(dtm_autodiff *a, dtm_value like, const char *suffix) {
    dtm_type type = whole_type(a, like);
    dtm_value zero = dtm_constant(a->module, (dtm_dtype)dtm_type_get(a->module, type)->dtype, 0);
    return dtm_result(a->module,
                      dtm_build_op(&a->at, DTM_OP_FILL, &zero, 1, NULL, &type, 1, named(a, like, suffix)), 0);
}

/* What a scope has contributed, in exactly the value's type; zeros if nothing. */
static dtm_value take_like(dtm_autodiff *a, dtm_scope *scope, dtm_value value, const char *suffix) {
    dtm_value gradient = take(a, scope, value, !*suffix);
    a->part = named(a, value, ".part");
    return gradient ? dtm_gradient_like(a, gradient, whole_type(a, value), named(a, value, suffix))
                    : zeros(a, value, suffix);
}

/* ---- backwards through regions ---- */

static void reverse_region(dtm_autodiff *a, dtm_region region);

/* A carry made before its second operand exists: it stands in for itself until `close_carry`. */
static dtm_op open_carry(dtm_autodiff *a, dtm_builder *b, dtm_value first, dtm_value like, const char *suffix) {
    dtm_value operands[2] = {first, first};
    dtm_type type = whole_type(a, like);
    return dtm_build_op(b, DTM_OP_CARRY, operands, 2, NULL, &type, 1, named(a, like, suffix));
}

static void close_carry(dtm_autodiff *a, dtm_op carry, dtm_value next) {
    dtm_op_get(a->module, carry)->operands[1] = next;
}

/* The value of the copy that ran last, contributed to `value` in the scope at work. */
static void contribute_last(dtm_autodiff *a, dtm_value value, dtm_value of) {
    dtm_type type = a->module->values[of].type;
    dtm_op last = dtm_build_op(&a->at, DTM_OP_LAST, &of, 1, NULL, &type, 1, named(a, value, ".term"));
    contribute_in(a, a->scope, value, dtm_result(a->module, last, 0));
}

/* What links the copies of a repeat's backward. */
typedef struct link {
    dtm_value value; /* of the forward program: what a gradient is contributed to */
    dtm_value from;  /* the carried forward value whose gradient it is, 0: zeros; of what goes out, the gradient itself */
    dtm_op carry;    /* in the backward body */
} link;

typedef struct links {
    dtm_arena *arena;
    link *items;
    size_t count, capacity;
} links;

static bool any_wanted(const dtm_autodiff *a, dtm_region region) {
    for (size_t i = 0; i < a->module->regions[region].n_ops; i++) {
        const dtm_op_data *op = dtm_op_get(a->module, a->module->regions[region].ops[i]);
        if (op->body && any_wanted(a, op->body)) return true;
        for (uint32_t r = 0; r < op->n_results; r++)
            if (dtm_gradient_wanted(a, op->results[r])) return true;
    }
    return false;
}

/* Before the repeat: what comes into its first backward copy, by what a copy hands to the next and to what follows. */
static void find_links(dtm_autodiff *a, dtm_region body, links *out, dtm_value *firsts) {
    const dtm_region_data region = a->module->regions[body];
    for (size_t i = 0; i < region.n_ops; i++) {
        dtm_op_data op = *dtm_op_get(a->module, region.ops[i]);
        if (op.kind != DTM_OP_CARRY || !dtm_gradient_wanted(a, op.results[0])) continue;
        if (!dtm_gradient_wanted(a, op.operands[1])) continue;
        firsts[out->count] = take_like(a, a->scope, op.operands[1], ".start");
        link carried = {op.operands[1], op.results[0], 0};
        DTM_PUSH(out->arena, out->items, out->count, out->capacity, carried);
    }
    for (size_t i = 0; i < region.n_ops; i++) {
        dtm_op_data op = *dtm_op_get(a->module, region.ops[i]);
        for (uint32_t r = 0; r < op.n_results; r++) {
            if (!a->scope->of[op.results[r]].count) continue;
            firsts[out->count] = take_like(a, a->scope, op.results[r], ".start");
            link only_last = {op.results[r], 0, 0};
            DTM_PUSH(out->arena, out->items, out->count, out->capacity, only_last);
        }
    }
}

static size_t count_results(const dtm_module *module, dtm_region region) {
    size_t n = 0;
    for (size_t i = 0; i < module->regions[region].n_ops; i++)
        n += dtm_op_get(module, module->regions[region].ops[i])->n_results;
    return n;
}

/* In the backward body: the carries of all links, and their contributions. */
static void open_links(dtm_autodiff *a, links *all, const dtm_value *firsts) {
    for (size_t i = 0; i < all->count; i++) {
        link *l = &all->items[i];
        l->carry = open_carry(a, &a->at, firsts[i], l->value, ".term");
        contribute_in(a, a->scope, l->value, dtm_result(a->module, l->carry, 0));
    }
}

/* A value set outside the repeat and read in it: the sum over the copies, beginning with what came after. */
static dtm_value accumulate(dtm_autodiff *a, dtm_op repeat, dtm_value value, int64_t *at) {
    dtm_builder body_end = a->at, top = a->at;
    dtm_value local = take(a, a->scope, value, false);
    a->at = dtm_builder_before(a->module, repeat);
    dtm_value start = take_like(a, a->scope->outer, value, ".start");
    if (dtm_fault(2)) start = zeros(a, value, ".start");
    const dtm_op_data *def = dtm_op_get(a->module, dtm_value_get(a->module, value)->def);
    top.at = *at;
    body_end.place = top.place = def->place;
    body_end.span = top.span = def->span;
    a->at = body_end;
    dtm_op carry = open_carry(a, &top, start, value, ".in");
    *at = top.at;
    dtm_value out = plus(a, dtm_result(a->module, carry, 0), local, named(a, value, ".out"));
    close_carry(a, carry, out);
    return out;
}

/* The carried values of the forward body: their gradients are complete when the body's reversal comes to them. */
static void reverse_carry(dtm_autodiff *a, const dtm_op_data *op) {
    dtm_value carried = op->results[0];
    if (!dtm_gradient_wanted(a, carried)) return;
    dtm_value gradient = take_like(a, a->scope, carried, "");
    contribute_in(a, a->scope, carried, gradient); /* kept for the links */
}

/* At the end of the backward body: the carried gradients go to the copy before, and out of the first copy (`gone_out`) to
 * what was carried into it. What only the last copy let out gets nothing in the others. */
static void close_links(dtm_autodiff *a, dtm_region forward_body, links *all, links *gone_out) {
    const dtm_region_data body = a->module->regions[forward_body];
    for (size_t i = 0; i < body.n_ops; i++) {
        dtm_op_data carry = *dtm_op_get(a->module, body.ops[i]);
        if (carry.kind != DTM_OP_CARRY || !a->scope->of[carry.results[0]].count) continue;
        dtm_value gradient = take(a, a->scope, carry.results[0], true);
        for (size_t l = 0; l < all->count; l++)
            if (all->items[l].from == carry.results[0]) close_carry(a, all->items[l].carry, gradient);
        link out = {carry.operands[0], gradient, 0};
        DTM_PUSH(gone_out->arena, gone_out->items, gone_out->count, gone_out->capacity, out);
    }
    for (size_t l = 0; l < all->count; l++)
        if (!all->items[l].from) close_carry(a, all->items[l].carry, zeros(a, all->items[l].value, ".none"));
}

static void reverse_repeat(dtm_autodiff *a, dtm_op repeat) {
    dtm_op_data op = *dtm_op_get(a->module, repeat);
    if (!any_wanted(a, op.body)) return;
    links all = {a->arena, NULL, 0, 0};
    dtm_value *firsts = dtm_arena_alloc(a->arena, (2 * count_results(a->module, op.body) + 1) * sizeof *firsts);
    find_links(a, op.body, &all, firsts);

    dtm_attributes attributes = op.attributes;
    attributes.flags ^= DTM_REPEAT_REVERSED;
    dtm_op backward = dtm_build_region(&a->at, DTM_OP_REPEAT, &attributes);
    dtm_builder outside = a->at;
    dtm_scope inner = {a->scope, dtm_arena_alloc(a->arena, a->n_values * sizeof *inner.of)};
    a->scope = &inner;
    a->at.region = dtm_op_get(a->module, backward)->body;
    a->at.at = -1;
    open_links(a, &all, firsts);
    int64_t top = (int64_t)all.count;
    reverse_region(a, op.body);

    links gone_out = {a->arena, NULL, 0, 0};
    close_links(a, op.body, &all, &gone_out);
    for (dtm_value v = 1; v < a->n_values; v++) {
        if (!inner.of[v].count) continue;
        link out = {v, accumulate(a, backward, v, &top), 0};
        DTM_PUSH(gone_out.arena, gone_out.items, gone_out.count, gone_out.capacity, out);
    }
    a->scope = inner.outer;
    a->at = outside;
    for (size_t i = 0; i < gone_out.count; i++)
        if (dtm_gradient_wanted(a, gone_out.items[i].value))
            contribute_last(a, gone_out.items[i].value, gone_out.items[i].from);
}

/* Of `reduce bf16`: the gradient as ranks send it to each other. */
static dtm_value narrowed(dtm_autodiff *a, dtm_value gradient) {
    const dtm_train *train = &a->module->settings.train;
    if (!train->present || train->reduce == DTM_F32) return gradient;
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_CAST);
    attributes.dtype = train->reduce;
    const char *name = dtm_arena_printf(a->arena, "%s.%s", dtm_value_name(a->module, gradient), dtm_dtype_name(train->reduce));
    return dtm_build(&a->at, DTM_OP_CAST, name, &gradient, 1, &attributes);
}

static void reverse_op(dtm_autodiff *a, dtm_op op) {
    dtm_op_data data = *dtm_op_get(a->module, op);
    a->at.span = data.span;
    a->at.place = data.place;
    if (data.kind == DTM_OP_REPEAT) {
        reverse_repeat(a, op);
        return;
    }
    if (data.kind == DTM_OP_CARRY) {
        reverse_carry(a, &data);
        return;
    }
    dtm_value result = data.n_results ? data.results[0] : 0;
    if (!result || !dtm_gradient_wanted(a, result) || !a->scope->of[result].count) return;
    if (data.kind == DTM_OP_WEIGHT) {
        a->gradient[result] = narrowed(a, take_like(a, a->scope, result, ""));
        return;
    }
    dtm_value gradient = take(a, a->scope, result, true);
    if (data.kind == DTM_OP_LAST) { /* the repeat before takes it up */
        if (dtm_gradient_wanted(a, data.operands[0])) contribute_in(a, a->scope, data.operands[0], gradient);
        return;
    }
    a->part = named(a, result, ".part");
    dtm_gradient_rules[data.kind](a, &data, gradient);
}

static void reverse_region(dtm_autodiff *a, dtm_region region) {
    for (size_t i = a->module->regions[region].n_ops; i-- > 0;) reverse_op(a, a->module->regions[region].ops[i]);
}

/* ---- the pass ---- */

/* Moves all operators of the body into a new region of it. */
static dtm_region wrap_body(dtm_module *module) {
    dtm_region_data *body = &module->regions[module->body];
    size_t n = body->n_ops;
    dtm_op *ops = body->ops;
    body->ops = NULL;
    body->n_ops = body->cap_ops = 0;
    dtm_builder b = dtm_builder_at_end(module, module->body);
    dtm_op forward = dtm_build_region(&b, DTM_OP_FORWARD, NULL);
    dtm_region region = dtm_op_get(module, forward)->body;
    module->regions[region].ops = ops;
    module->regions[region].n_ops = module->regions[region].cap_ops = n;
    for (size_t i = 0; i < n; i++) dtm_op_get(module, ops[i])->region = region;
    return region;
}

static dtm_region add_region(dtm_module *module, dtm_op_kind kind) {
    dtm_builder b = dtm_builder_at_end(module, module->body);
    return dtm_op_get(module, dtm_build_region(&b, kind, NULL))->body;
}

static void derive(dtm_autodiff *a, const dtm_op_list *ops, dtm_value loss) {
    dtm_module *module = a->module;
    find_wanted(a, ops, loss);
    warn_unreached(a, ops);
    dtm_region forward = wrap_body(module), backward = add_region(module, DTM_OP_BACKWARD);
    dtm_scope outermost = {NULL, dtm_arena_alloc(a->arena, a->n_values * sizeof *outermost.of)};
    a->scope = &outermost;
    a->at = dtm_builder_at_end(module, backward);
    if (dtm_gradient_wanted(a, loss)) {
        dtm_dtype dtype = (dtm_dtype)dtm_value_type(module, loss)->dtype;
        bool scaled = module->settings.train.present && module->settings.train.precision == DTM_F16;
        contribute_in(a, a->scope, loss, scaled ? dtm_loss_scale_begin(a, &a->at) : dtm_constant(module, dtype, 1));
    }
    reverse_region(a, forward);
    if (module->settings.train.present) dtm_optimizer_build(a, forward);
    else dtm_optimizer_mark_gradients(a, forward, backward);
}

static bool complain_no_loss(dtm_module *module) {
    dtm_error(module->context, module->settings.train.span, 250, "there is nothing to train: the model sets no `loss`");
    dtm_help(module->context, "add a line: loss = mean(cross_entropy(logits, targets over V) over B, S)");
    return false;
}

bool dtm_pass_autodiff(dtm_module *module) {
    dtm_arena *arena = dtm_arena_create();
    dtm_op_list ops = dtm_ops_in_order(module, arena);
    dtm_value loss = find_loss(module, &ops);
    size_t errors = dtm_error_count(module->context);
    bool good = loss || !module->settings.train.present || complain_no_loss(module);
    if (good) {
        dtm_autodiff a = {.module = module, .arena = arena, .n_values = module->n_values, .part = ""};
        a.wanted = dtm_arena_alloc(arena, a.n_values * sizeof *a.wanted);
        a.gradient = dtm_arena_alloc(arena, a.n_values * sizeof *a.gradient);
        if (loss) derive(&a, &ops, loss);
        else wrap_body(module);
        dtm_drop_invariant_carries(module); /* a gradient that copies share */
        module->after = dtm_string_of(module->context, "autodiff");
    }
    dtm_arena_destroy(arena);
    return good && dtm_error_count(module->context) == errors;
}
