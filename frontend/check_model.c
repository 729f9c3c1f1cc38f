/* Statements of a model: inputs, weights, values, repeats with their carried values, definitions. */
#include "frontend/checker.h"

#include <string.h>

/* ---- scopes ---- */

dtm_value dtm_scope_find(const dtm_scope *scope, dtm_string name) {
    for (; scope; scope = scope->is_definition ? NULL : scope->outer)
        for (size_t i = scope->count; i-- > 0;)
            if (scope->items[i].name == name) return scope->items[i].value;
    return 0;
}

void dtm_scope_set(dtm_checker *c, dtm_name name, dtm_value value) {
    dtm_scope *scope = c->scope;
    for (size_t i = 0; i < scope->count; i++)
        if (scope->items[i].name == name.text) {
            scope->items[i].value = value;
            return;
        }
    DTM_PUSH(c->arena, scope->items, scope->count, scope->capacity, ((dtm_binding_of){name.text, value, name.span}));
}

static bool check_target_name(dtm_checker *c, dtm_name name) {
    static const char *const words[] = {"inf", "none", "f32",  "f16",    "bf16",
                                        "i32", "u8",   "bool", "causal", "interleaved"};
    const char *text = dtm_checker_text(c, name.text);
    dtm_dim dim = dtm_dim_find(c->module, name.text);
    if (dim) {
        dtm_error(c->context, name.span, 207, "`%s` is a dim and cannot name a value", text);
        dtm_note(c->context, c->module->dims[dim].span, "declared here");
        return false;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i], text) == 0) {
            dtm_error(c->context, name.span, 207, "`%s` is a word of the language and cannot name a value", text);
            return false;
        }
    for (size_t i = 0; i < c->n_consts; i++)
        if (c->consts[i].name == name.text) {
            dtm_error(c->context, name.span, 207, "`%s` is a const and cannot name a value", text);
            dtm_note(c->context, c->consts[i].span, "declared here");
            return false;
        }
    return true;
}

/* ---- inputs and weights ---- */

static bool set_once(dtm_checker *c, dtm_name name, const char *what) {
    for (size_t i = 0; i < c->scope->count; i++)
        if (c->scope->items[i].name == name.text) {
            dtm_error(c->context, name.span, 216, "%s `%s` bears a name that is set already", what,
                      dtm_checker_text(c, name.text));
            dtm_note(c->context, c->scope->items[i].span, "here");
            return false;
        }
    return check_target_name(c, name);
}

bool dtm_checker_input(dtm_checker *c, const dtm_statement *s) {
    for (size_t i = 0; i < s->targets.count; i++) {
        const dtm_target *target = &s->targets.items[i];
        dtm_type type;
        if (!set_once(c, target->name, "input") || !target->type || !dtm_checker_type(c, target->type, DTM_F32, &type))
            return false;
        if (c->definition_depth || c->scope->outer) {
            dtm_error(c->context, s->keyword, 217, "an input stands in the model itself, not in a repeat or def");
            return false;
        }
        dtm_builder builder = dtm_checker_builder(c, target->name.span);
        dtm_attributes attributes = dtm_attributes_default(DTM_OP_INPUT);
        attributes.name = target->name.text;
        dtm_op op = dtm_build_op(&builder, DTM_OP_INPUT, NULL, 0, &attributes, &type, 1,
                                 dtm_checker_text(c, target->name.text));
        dtm_scope_set(c, target->name, dtm_result(c->module, op, 0));
    }
    return true;
}

/* Whether numbers can be drawn so; no NaN passes. */
static bool check_draw(dtm_checker *c, const dtm_expr *value, const dtm_attributes *a) {
    dtm_text first = {.arena = c->arena}, second = {.arena = c->arena};
    dtm_text_number(&first, a->init_a);
    dtm_text_number(&second, a->init_b);
    if (a->init == DTM_INIT_NORMAL && !(a->init_a >= 0)) {
        dtm_error(c->context, value->span, 311, "a standard deviation is at least 0, not %s", first.data);
        if (a->init_a < 0) dtm_help(c->context, "normal(%s)", first.data + 1);
        return false;
    }
    if (a->init == DTM_INIT_UNIFORM && !(a->init_a <= a->init_b)) {
        dtm_error(c->context, value->span, 311, "`uniform` draws between a lower and an upper bound, here %s and %s",
                  first.data, second.data);
        if (a->init_a > a->init_b) dtm_help(c->context, "uniform(%s, %s)", second.data, first.data);
        return false;
    }
    return true;
}

bool dtm_checker_init(dtm_checker *c, const dtm_statement *s, dtm_attributes *a) {
    const dtm_expr *value = s->value;
    if (!value) {
        dtm_error(c->context, s->span, 218, "a weight says how it begins");
        dtm_help(c->context, "= zeros, ones, normal(0.02), uniform(-0.1, 0.1) or a number");
        return false;
    }
    const char *word = value->kind == DTM_EXPR_NAME   ? dtm_checker_text(c, value->text)
                       : value->kind == DTM_EXPR_CALL ? dtm_checker_text(c, value->call->callee.text)
                                                      : "";
    a->init = DTM_INIT_NUMBER;
    if (strcmp(word, "zeros") == 0)
        a->init = DTM_INIT_ZEROS;
    else if (strcmp(word, "ones") == 0)
        a->init = DTM_INIT_ONES;
    else if (strcmp(word, "normal") == 0)
        a->init = DTM_INIT_NORMAL;
    else if (strcmp(word, "uniform") == 0)
        a->init = DTM_INIT_UNIFORM;
    if (a->init == DTM_INIT_NUMBER) {
        if (dtm_checker_is_number(c, value)) return dtm_checker_number(c, value, &a->init_a);
        dtm_error(c->context, value->span, 218,
                  "a weight begins as zeros, ones, normal(std), uniform(a, b) or a number");
        return false;
    }
    size_t wanted = a->init == DTM_INIT_NORMAL ? 1 : a->init == DTM_INIT_UNIFORM ? 2 : 0;
    const dtm_clause *plain = value->kind == DTM_EXPR_CALL ? &value->call->clauses[0] : NULL;
    if ((plain ? plain->count : 0) != wanted || (plain && value->call->count > 1)) {
        dtm_error(c->context, value->span, 218,
                  wanted == 1 ? "normal takes its standard deviation: normal(0.02)"
                  : wanted    ? "uniform takes two bounds: uniform(a, b)"
                              : "`zeros` and `ones` stand alone");
        return false;
    }
    return (wanted < 1 || dtm_checker_number(c, plain->arguments[0].value, &a->init_a)) &&
           (wanted < 2 || dtm_checker_number(c, plain->arguments[1].value, &a->init_b)) && check_draw(c, value, a);
}

static bool path_is_new(dtm_checker *c, dtm_name name, dtm_string path) {
    for (dtm_op op = 1; op < c->module->n_ops; op++) {
        const dtm_op_data *data = dtm_op_get(c->module, op);
        if (data->kind != DTM_OP_WEIGHT || data->attributes.name != path) continue;
        dtm_error(c->context, name.span, 216, "two weights with the path %s", dtm_checker_text(c, path));
        dtm_note(c->context, data->span, "the first is here");
        dtm_help(c->context, "call the def into another name");
        return false;
    }
    return true;
}

bool dtm_checker_weight(dtm_checker *c, const dtm_statement *s) {
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_WEIGHT);
    if (s->text)
        return dtm_checker_refuse(c, s->text_span, "`from`, a weight's place in another checkpoint",
                                  "remove it; --load reads weights by their dtm names");
    if (!dtm_checker_init(c, s, &attributes)) return false;
    if (s->no_decay) attributes.flags |= DTM_WEIGHT_NO_DECAY;
    if (s->frozen) attributes.flags |= DTM_WEIGHT_FROZEN;
    const uint32_t marked = attributes.flags | (s->exact ? DTM_WEIGHT_EXACT : 0);
    for (size_t i = 0; i < s->targets.count; i++) {
        const dtm_target *target = &s->targets.items[i];
        dtm_type type;
        if (!set_once(c, target->name, "weight") || !target->type || !dtm_checker_type(c, target->type, DTM_F32, &type))
            return false;
        if (dtm_type_get(c->module, type)->dtype != DTM_F32) {
            dtm_error(c->context, target->type->span, 302, "a weight is f32 in this version");
            return false;
        }
        attributes.flags = marked | (target->type->dtype.text ? DTM_WEIGHT_EXACT : 0);
        attributes.name = dtm_string_printf(c->context, "%s%s", c->path, dtm_checker_text(c, target->name.text));
        if (!path_is_new(c, target->name, attributes.name)) return false;
        dtm_builder builder = dtm_checker_builder(c, target->name.span);
        dtm_op op = dtm_build_op(&builder, DTM_OP_WEIGHT, NULL, 0, &attributes, &type, 1,
                                 dtm_checker_text(c, target->name.text));
        dtm_scope_set(c, target->name, dtm_result(c->module, op, 0));
    }
    return true;
}

/* ---- values ---- */

static const char *type_text(dtm_checker *c, dtm_type type) {
    dtm_text text = {.arena = c->arena};
    dtm_type_print(c->module, type, false, &text);
    return text.data;
}

/* `x : TYPE = EXPR`: a number fills the type; a value must have it. */
static dtm_value typed(dtm_checker *c, const dtm_target *target, const dtm_expr *expr) {
    const char *name = dtm_checker_text(c, target->name.text);
    dtm_type type;
    if (!dtm_checker_type(c, target->type, DTM_F32, &type)) return 0;
    dtm_type_data wanted = *dtm_type_get(c->module, type);
    if (dtm_checker_is_number(c, expr)) {
        double number;
        if (!dtm_checker_number(c, expr, &number)) return 0;
        dtm_value constant = dtm_constant(c->module, (dtm_dtype)wanted.dtype, number);
        if (!wanted.rank) return constant;
        dtm_builder builder = dtm_checker_builder(c, expr->span);
        dtm_op op = dtm_build_op(&builder, DTM_OP_FILL, &constant, 1, NULL, &type, 1, name);
        return dtm_result(c->module, op, 0);
    }
    dtm_value value = dtm_checker_value(c, expr, name);
    if (!value || dtm_value_get(c->module, value)->type == type) return value;
    dtm_error(c->context, target->type->span, 312, "%s is said to be %s, but it is %s", name, type_text(c, type),
              type_text(c, dtm_value_get(c->module, value)->type));
    return 0;
}

static dtm_value inline_definition(dtm_checker *c, const dtm_statement *def, const dtm_expr *expr, dtm_name target);

static bool check_assign(dtm_checker *c, const dtm_statement *s) {
    if (s->targets.count != 1) {
        dtm_name name = s->targets.items[0].name;
        const dtm_expr *value = s->value;
        const char *callee = value && value->kind == DTM_EXPR_CALL ? dtm_checker_text(c, value->call->callee.text) : "";
        if (strcmp(callee, "top") == 0) return dtm_checker_refuse(c, value->span, "`top`", NULL);
        dtm_error(c->context, name.span, 219, "two names for one result");
        return false;
    }
    const dtm_target *target = &s->targets.items[0];
    const char *name = dtm_checker_text(c, target->name.text);
    if (strcmp(name, "_") == 0) {
        dtm_error(c->context, target->name.span, 219, "`_` drops one of several results; here is one");
        return false;
    }
    if (!check_target_name(c, target->name)) return false;
    const dtm_statement *def = dtm_checker_definition(c, s->value);
    dtm_value value = def            ? inline_definition(c, def, s->value, target->name)
                      : target->type ? typed(c, target, s->value)
                                     : dtm_checker_value(c, s->value, name);
    if (value) dtm_scope_set(c, target->name, value);
    return value != 0;
}

static bool sink(dtm_checker *c, dtm_op_kind kind, dtm_string name, dtm_value value, dtm_span span) {
    dtm_builder builder = dtm_checker_builder(c, span);
    dtm_attributes attributes = dtm_attributes_default(kind);
    dtm_type types[4];
    attributes.name = name;
    if (!dtm_infer(c->module, kind, &value, 1, &attributes, span, types)) return false;
    dtm_build_op(&builder, kind, &value, 1, &attributes, NULL, 0, "");
    return true;
}

static bool check_loss(dtm_checker *c, const dtm_statement *s) {
    dtm_value value = dtm_checker_value(c, s->value, "loss");
    if (!value) return false;
    const dtm_type_data *type = dtm_value_type(c->module, value);
    if (type->rank || type->dtype != DTM_F32) {
        dtm_error(c->context, s->span, 313, "the loss is one number, f32[], this is %s",
                  type_text(c, dtm_value_get(c->module, value)->type));
        if (type->rank) dtm_help(c->context, "take its mean: loss = mean(.. over ..)");
        return false;
    }
    if (c->scope->outer) {
        dtm_error(c->context, s->keyword, 217, "the loss stands in the model itself, not in a repeat or def");
        return false;
    }
    dtm_scope_set(c, s->targets.items[0].name, value);
    return sink(c, DTM_OP_REPORT, dtm_string_of(c->context, "loss"), value, s->span);
}

static bool check_sink(dtm_checker *c, const dtm_statement *s, dtm_op_kind kind) {
    dtm_name name = s->targets.items[0].name;
    if (c->scope->outer) {
        dtm_error(c->context, s->keyword, 217, "`%s` stands in the model itself, not in a repeat or def",
                  dtm_op_rows[kind].name);
        return false;
    }
    for (dtm_op op = 1; op < c->module->n_ops; op++) {
        const dtm_op_data *data = dtm_op_get(c->module, op);
        bool reserved = kind == DTM_OP_REPORT && (strcmp(dtm_checker_text(c, name.text), "grad_norm") == 0 ||
                                                  strcmp(dtm_checker_text(c, name.text), "learning_rate") == 0 ||
                                                  strcmp(dtm_checker_text(c, name.text), "loss") == 0);
        if (!reserved && (data->kind != kind || data->attributes.name != name.text)) continue;
        dtm_error(c->context, name.span, 216, "a second %s `%s`", dtm_op_rows[kind].name,
                  dtm_checker_text(c, name.text));
        return false;
    }
    dtm_value value = dtm_checker_value(c, s->value, dtm_checker_text(c, name.text));
    return value && sink(c, kind, name.text, value, s->span);
}

/* ---- repeats ---- */

typedef struct name_set {
    dtm_name *items;
    size_t count, capacity;
} name_set;

static bool in_set(const name_set *set, dtm_string name) {
    for (size_t i = 0; i < set->count; i++)
        if (set->items[i].text == name) return true;
    return false;
}

static void add_name(dtm_checker *c, name_set *set, dtm_name name) {
    if (!in_set(set, name.text)) DTM_PUSH(c->arena, set->items, set->count, set->capacity, name);
}

typedef struct body_scan {
    name_set set;        /* names set in the body */
    name_set read_first; /* names read before the body sets them */
} body_scan;

static void scan_expr(dtm_checker *c, const dtm_expr *expr, body_scan *scan) {
    if (!expr) return;
    if (expr->kind == DTM_EXPR_NAME && !in_set(&scan->set, expr->text))
        add_name(c, &scan->read_first, (dtm_name){expr->text, expr->span});
    scan_expr(c, expr->left, scan);
    scan_expr(c, expr->right, scan);
    for (size_t i = 0; i < expr->count; i++) scan_expr(c, expr->items[i], scan);
    for (size_t i = 0; expr->call && i < expr->call->count; i++)
        for (size_t j = 0; j < expr->call->clauses[i].count; j++)
            scan_expr(c, expr->call->clauses[i].arguments[j].value, scan);
    if (expr->call) scan_expr(c, expr->call->body, scan);
}

/* What an inner repeat carries is read and set by the outer body too; the rest of its names are its own. */
static void scan_block(dtm_checker *c, const dtm_ast_block *block, body_scan *scan) {
    for (size_t i = 0; i < block->count; i++) {
        const dtm_statement *s = block->items[i];
        if (s->kind == DTM_STATEMENT_REPEAT) {
            body_scan inner = {{0}, {0}};
            scan_block(c, s->block, &inner);
            for (size_t j = 0; j < inner.read_first.count; j++) {
                dtm_name name = inner.read_first.items[j];
                if (!in_set(&scan->set, name.text)) add_name(c, &scan->read_first, name);
                if (in_set(&inner.set, name.text)) add_name(c, &scan->set, name);
            }
            continue;
        }
        if (s->kind != DTM_STATEMENT_WEIGHT) scan_expr(c, s->value, scan);
        for (size_t j = 0; j < s->targets.count; j++) add_name(c, &scan->set, s->targets.items[j].name);
    }
}

typedef struct carried {
    dtm_name name;
    dtm_op op;
} carried;

static void begin_carries(dtm_checker *c, const dtm_scope *outer, const body_scan *scan, carried *list, size_t *count) {
    for (size_t i = 0; i < scan->set.count; i++) {
        dtm_name name = scan->set.items[i];
        dtm_value first = dtm_scope_find(outer, name.text);
        if (!first) continue;
        if (!in_set(&scan->read_first, name.text)) {
            dtm_warning(c->context, name.span, 852,
                        "`%s` bears a name that is set outside of the repeat too; nothing is carried, as the body sets "
                        "it before it reads it",
                        dtm_checker_text(c, name.text));
            dtm_help(c->context, "rename one of the two");
            continue;
        }
        dtm_value operands[2] = {first, 0};
        dtm_type type = dtm_value_get(c->module, first)->type;
        dtm_builder builder = dtm_checker_builder(c, name.span);
        list[*count].name = name;
        list[*count].op =
            dtm_build_op(&builder, DTM_OP_CARRY, operands, 2, NULL, &type, 1, dtm_checker_text(c, name.text));
        dtm_scope_set(c, name, dtm_result(c->module, list[(*count)++].op, 0));
    }
}

/* One dimension that goes by another name is renamed; else the body has to end with what it begins with. */
static void help_carried(dtm_checker *c, dtm_type first, dtm_type next) {
    const dtm_type_data *a = dtm_type_get(c->module, first), *b = dtm_type_get(c->module, next);
    int differ = 0, at = 0;
    for (int d = 0; a->rank == b->rank && d < a->rank; d++)
        if (a->dims[d] != b->dims[d]) differ++, at = d;
    if (a->rank == b->rank && differ == 1 && c->module->dims[a->dims[at]].size == c->module->dims[b->dims[at]].size)
        dtm_help(c->context, "rename(.., %s as %s) gives the dimension its name back", dtm_dim_name(c->module, b->dims[at]),
                 dtm_dim_name(c->module, a->dims[at]));
    else dtm_help(c->context, "each copy takes what the one before it leaves: let the body end with %s", type_text(c, first));
}

static bool end_carries(dtm_checker *c, const carried *list, size_t count) {
    bool good = true;
    for (size_t i = 0; i < count; i++) {
        dtm_value next = dtm_scope_find(c->scope, list[i].name.text);
        dtm_type first = dtm_value_get(c->module, dtm_result(c->module, list[i].op, 0))->type;
        dtm_op_get(c->module, list[i].op)->operands[1] = next;
        if (dtm_value_get(c->module, next)->type == first) continue;
        dtm_error(c->context, list[i].name.span, 314,
                  "`%s` is carried from one copy to the next: it begins as %s and ends as %s",
                  dtm_checker_text(c, list[i].name.text), type_text(c, first),
                  type_text(c, dtm_value_get(c->module, next)->type));
        help_carried(c, first, dtm_value_get(c->module, next)->type);
        good = false;
    }
    return good;
}

static void after_carries(dtm_checker *c, const carried *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        dtm_value next = dtm_op_get(c->module, list[i].op)->operands[1];
        dtm_type type = dtm_value_get(c->module, next)->type;
        dtm_builder builder = dtm_checker_builder(c, list[i].name.span);
        /* A body that hands on a value from outside sets the same value in every copy. */
        dtm_op last =
            dtm_build_op(&builder, DTM_OP_LAST, &next, 1, NULL, &type, 1, dtm_checker_text(c, list[i].name.text));
        dtm_scope_set(c, list[i].name, dtm_result(c->module, last, 0));
    }
}

static bool check_repeat_name(dtm_checker *c, dtm_name name) {
    static const char *const words[] = {"forward", "backward", "update", "attention", "none", "auto"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i], dtm_checker_text(c, name.text)) == 0) {
            dtm_error(c->context, name.span, 207, "a repeat cannot be named `%s`", words[i]);
            return false;
        }
    for (dtm_op op = 1; op < c->module->n_ops; op++)
        if (dtm_op_get(c->module, op)->kind == DTM_OP_REPEAT &&
            dtm_op_get(c->module, op)->attributes.name == name.text) {
            dtm_error(c->context, name.span, 216, "a second repeat `%s`", dtm_checker_text(c, name.text));
            dtm_note(c->context, dtm_op_get(c->module, op)->span, "the first is here");
            return false;
        }
    return check_target_name(c, name);
}

/* Of a value that lies outside the body (`x = y` with y from outside), a copy inside it, so that it can be carried. */
static void own_carries(dtm_checker *c, const carried *list, size_t count, dtm_region body) {
    for (size_t i = 0; i < count; i++) {
        dtm_value next = dtm_scope_find(c->scope, list[i].name.text);
        dtm_op def = dtm_value_get(c->module, next)->def;
        if (def && dtm_op_get(c->module, def)->region == body) continue;
        dtm_builder builder = dtm_checker_builder(c, list[i].name.span);
        dtm_attributes attributes = dtm_attributes_default(DTM_OP_EXPAND);
        dtm_scope_set(
            c, list[i].name,
            dtm_build(&builder, DTM_OP_EXPAND, dtm_checker_text(c, list[i].name.text), &next, 1, &attributes));
    }
}

static bool check_repeat(dtm_checker *c, const dtm_statement *s) {
    int64_t copies;
    if (!check_repeat_name(c, s->name) || !dtm_checker_copies(c, s->value, &copies))
        return false;
    if (c->definition_depth) {
        dtm_error(c->context, s->keyword, 217, "a repeat stands in the model itself, not in a def");
        return false;
    }
    body_scan scan = {{0}, {0}};
    scan_block(c, s->block, &scan);
    dtm_builder builder = dtm_checker_builder(c, s->keyword);
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_REPEAT);
    attributes.name = s->name.text;
    attributes.copies = copies;
    dtm_op repeat = dtm_build_region(&builder, DTM_OP_REPEAT, &attributes);

    dtm_scope scope = {.outer = c->scope};
    dtm_region outer_region = c->region;
    const char *outer_path = c->path, *name = dtm_checker_text(c, s->name.text);
    c->scope = &scope;
    c->region = dtm_op_get(c->module, repeat)->body;
    c->path = dtm_arena_printf(c->arena, "%s%s.{%s}.", outer_path, name, name);
    carried *list = dtm_arena_alloc(c->arena, (scan.set.count + 1) * sizeof *list);
    size_t count = 0;
    begin_carries(c, scope.outer, &scan, list, &count);
    bool good = dtm_checker_block(c, s->block);
    if (good) own_carries(c, list, count, c->region);
    good = good && end_carries(c, list, count);
    c->scope = scope.outer;
    c->region = outer_region;
    c->path = outer_path;
    if (good) after_carries(c, list, count);
    return good;
}

/* ---- definitions ---- */

static dtm_value run_definition(dtm_checker *c, const dtm_statement *def) {
    dtm_value result = 0;
    for (size_t i = 0; i < def->block->count; i++) {
        const dtm_statement *s = def->block->items[i];
        if (s->kind != DTM_STATEMENT_RETURN) {
            dtm_ast_block one = {s->span, (dtm_statement **)&def->block->items[i], 1, 1};
            if (!dtm_checker_block(c, &one)) return 0;
            continue;
        }
        result = dtm_checker_value(c, s->value, dtm_checker_text(c, def->name.text));
        if (!result) return 0;
        if (i + 1 < def->block->count) {
            dtm_error(c->context, def->block->items[i + 1]->span, 220, "nothing can follow `return`");
            return 0;
        }
    }
    if (!result)
        dtm_error(c->context, def->name.span, 220, "def `%s` returns nothing", dtm_checker_text(c, def->name.text));
    return result;
}

static dtm_value inline_definition(dtm_checker *c, const dtm_statement *def, const dtm_expr *expr, dtm_name target) {
    const dtm_clause *plain = &expr->call->clauses[0];
    const char *name = dtm_checker_text(c, def->name.text);
    if (plain->count != def->names.count || expr->call->count > 1) {
        dtm_error(c->context, expr->span, 221, "def `%s` takes %zu value%s, here are %zu", name, def->names.count,
                  def->names.count == 1 ? "" : "s", plain->count);
        dtm_note(c->context, def->name.span, "defined here");
        return 0;
    }
    if (c->definition_depth >= 32) {
        dtm_error(c->context, expr->span, 221, "def `%s` calls itself", name);
        return 0;
    }
    dtm_scope scope = {.outer = c->scope, .is_definition = true};
    for (size_t i = 0; i < plain->count; i++) {
        dtm_value value = dtm_checker_value(c, plain->arguments[i].value, dtm_checker_text(c, target.text));
        if (!value) return 0;
        DTM_PUSH(c->arena, scope.items, scope.count, scope.capacity,
                 ((dtm_binding_of){def->names.items[i].text, value, def->names.items[i].span}));
    }
    const char *outer_path = c->path;
    c->scope = &scope;
    c->path = dtm_arena_printf(c->arena, "%s%s.", outer_path, dtm_checker_text(c, target.text));
    c->definition_depth++;
    dtm_value result = run_definition(c, def);
    c->definition_depth--;
    c->path = outer_path;
    c->scope = scope.outer;
    return result;
}

/* ---- blocks ---- */

static bool check_statement(dtm_checker *c, const dtm_statement *s) {
    switch (s->kind) {
    case DTM_STATEMENT_INPUT:
        return dtm_checker_input(c, s);
    case DTM_STATEMENT_WEIGHT:
        return dtm_checker_weight(c, s);
    case DTM_STATEMENT_ASSIGN:
        return check_assign(c, s);
    case DTM_STATEMENT_LOSS:
        return check_loss(c, s);
    case DTM_STATEMENT_REPORT:
        return check_sink(c, s, DTM_OP_REPORT);
    case DTM_STATEMENT_OUTPUT:
        return check_sink(c, s, DTM_OP_OUTPUT);
    case DTM_STATEMENT_REPEAT:
        return check_repeat(c, s);
    default:
        dtm_error(c->context, s->span, 101, "this cannot stand here");
        return false;
    }
}

/* After an error the names that a statement would have set are unknown, so the rest is not looked at: one error. */
bool dtm_checker_block(dtm_checker *c, const dtm_ast_block *block) {
    for (size_t i = 0; i < block->count; i++)
        if (!check_statement(c, block->items[i])) return false;
    return true;
}

static bool check_model(dtm_checker *c) {
    dtm_scope scope = {.outer = NULL};
    c->scope = &scope;
    c->region = c->module->body;
    c->path = "";
    c->n_carries = 0;
    if (c->dump) return dtm_checker_dump_block(c, c->model->block) && dtm_checker_finish_carries(c);
    return dtm_checker_block(c, c->model->block);
}

/* .., arena = 4096 {: after memory. */
static bool read_arena(dtm_checker *c) {
    const dtm_bindings *of = &c->model->bindings;
    if (of->count == 1) return true;
    dtm_name word = of->items[1].name;
    if (of->count == 2 && strcmp(dtm_checker_text(c, word.text), "arena") == 0)
        return dtm_checker_integer(c, of->items[1].value, 1, "`arena`", &c->module->arena_bytes);
    dtm_error(c->context, word.span, 209, "a model of a dump has no `%s`", dtm_checker_text(c, word.text));
    return false;
}

/* model NAME pp = 1 {: the program of the ranks of that coordinate. They stand in order, one for each. */
static bool check_rank_model(dtm_checker *c, size_t index) {
    const dtm_binding *of = &c->model->bindings.items[0];
    dtm_module *whole = c->module;
    const dtm_pipeline_rule *rule = &whole->settings.pipeline;
    int64_t rank;
    if (!dtm_checker_integer(c, of->value, 0, "a rank", &rank)) return false;
    if (!rule->present || rule->axis != dtm_axis_find(whole, of->name.text) || rank != (int64_t)index ||
        whole->settings.mesh.axes[rule->axis].size != (int64_t)c->n_rank_models) {
        dtm_error(c->context, of->name.span, 208, "a dump of a pipeline has a model for each rank along its axis, in order");
        return false;
    }
    whole->ranks[index] = c->module = dtm_module_like(whole);
    whole->n_ranks = index + 1;
    c->module->of_ranks = true;
    c->module->rank = rank;
    bool good = read_arena(c) && check_model(c);
    c->module = whole;
    return good;
}

bool dtm_checker_model(dtm_checker *c) {
    if (!c->n_rank_models) return check_model(c);
    c->module->ranks = dtm_arena_alloc(c->module->arena, c->n_rank_models * sizeof *c->module->ranks);
    for (size_t i = 0; i < c->n_rank_models; i++) {
        c->model = c->rank_models[i];
        if (!check_rank_model(c, i)) return false;
    }
    return true;
}
