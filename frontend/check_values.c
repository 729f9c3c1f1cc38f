/* Expressions to operators. A call is read by the operator table: positional operands, then after `over`, `as`, `at`,
 * `where`, `on` what that operator takes there; words that are flags of the operator and `key = number` may follow
 * anywhere. */
#include "frontend/checker.h"
#include "ir/fault.h"

#include <math.h>
#include <string.h>

dtm_builder dtm_checker_builder(dtm_checker *c, dtm_span span) {
    dtm_builder builder = dtm_builder_at_end(c->module, c->region);
    builder.span = span;
    builder.place = dtm_checker_place(c, span);
    return builder;
}

/* ---- operators by name ---- */

/* What a source may call; a dump may call every operator of the table. */
static bool in_language(dtm_op_kind kind) {
    if (kind == DTM_OP_POSITIONS || kind == DTM_OP_DROPOUT || kind == DTM_OP_TOP || kind == DTM_OP_EXPERTS) return true;
    if (kind >= DTM_OP_MINIMUM && kind <= DTM_OP_CAST) return true;
    if (kind >= DTM_OP_DOT && kind <= DTM_OP_LAYERNORM) return true;
    return kind == DTM_OP_CROSS_ENTROPY || kind == DTM_OP_ROPE || kind == DTM_OP_GATHER || kind == DTM_OP_ATTENTION ||
           (kind >= DTM_OP_SPLIT && kind <= DTM_OP_SLICE);
}

static dtm_op_kind find_operator(const dtm_checker *c, const dtm_call *call) {
    const char *name = dtm_checker_text(c, call->callee.text);
    bool over = dtm_call_clause(call, DTM_WORD_OVER) != NULL;
    for (int kind = 1; kind < DTM_OP_KINDS; kind++) {
        if (strcmp(dtm_op_rows[kind].name, name) != 0) continue;
        if (kind == DTM_OP_MAXIMUM && over) continue; /* max(x over D) */
        if (c->dump || in_language((dtm_op_kind)kind)) return (dtm_op_kind)kind;
    }
    return DTM_OP_NONE;
}

const dtm_statement *dtm_checker_definition(const dtm_checker *c, const dtm_expr *expr) {
    for (size_t i = 0; expr->kind == DTM_EXPR_CALL && i < c->n_defs; i++)
        if (c->defs[i]->name.text == expr->call->callee.text) return c->defs[i];
    return NULL;
}

static dtm_value unknown_operator(dtm_checker *c, const dtm_expr *expr) {
    dtm_string names[DTM_OP_KINDS + 64];
    size_t n = 0;
    for (int kind = 1; kind < DTM_OP_KINDS; kind++)
        if (in_language((dtm_op_kind)kind)) names[n++] = dtm_string_of(c->context, dtm_op_rows[kind].name);
    for (size_t i = 0; i < c->n_defs && i < 64; i++) names[n++] = c->defs[i]->name.text;
    const char *name = dtm_checker_text(c, expr->call->callee.text);
    if (strcmp(name, "min") == 0) {
        dtm_error(c->context, expr->span, 210, "`min` compares two values; there is no `min` over a dimension");
        dtm_help(c->context, "-max(-x over D)");
        return 0;
    }
    dtm_error(c->context, expr->call->callee.span, 210, "there is no operator and no def `%s`", name);
    dtm_string nearest = dtm_string_nearest(c->context, name, names, n);
    if (nearest) dtm_help(c->context, "did you mean `%s`?", dtm_checker_text(c, nearest));
    return 0;
}

/* ---- operands: values, or numbers whose dtype their neighbours settle ---- */

typedef struct operand {
    dtm_value value; /* 0: a number */
    double number;
    dtm_span span;
} operand;

static const char *nested_name(dtm_checker *c, const char *name, dtm_op_kind kind) {
    char word[64];
    snprintf(word, sizeof word, "%s", dtm_op_rows[kind].kind_name);
    for (char *p = word; *p; p++)
        if (*p >= 'A' && *p <= 'Z') *p = (char)(*p - 'A' + 'a');
    size_t base = strcspn(name, ".");
    return dtm_arena_printf(c->arena, "%.*s.%s", (int)base, name, word);
}

static dtm_op_kind kind_of(const dtm_checker *c, const dtm_expr *expr) {
    static const dtm_op_kind infix[] = {DTM_OP_ADD, DTM_OP_SUB, DTM_OP_MUL, DTM_OP_DIV, DTM_OP_NONE, DTM_OP_EQ,
                                        DTM_OP_NE,  DTM_OP_LT,  DTM_OP_LE,  DTM_OP_GT,  DTM_OP_GE};
    switch (expr->kind) {
    case DTM_EXPR_NEGATE:
        return DTM_OP_NEG;
    case DTM_EXPR_BINARY: return infix[expr->operator];
    case DTM_EXPR_CALL:
        return find_operator(c, expr->call);
    default:
        return DTM_OP_NONE;
    }
}

/* `flags`: what the name may be as well, mistyped. */
static dtm_value value_named(dtm_checker *c, const dtm_expr *expr, const char *flags) {
    dtm_value value = dtm_scope_find(c->scope, expr->text);
    if (value) return value;
    const char *name = dtm_checker_text(c, expr->text);
    dtm_string names[512 + DTM_MAX_NUMBERS];
    size_t n = dtm_checker_words(c, flags, names);
    for (const dtm_scope *scope = c->scope; scope; scope = scope->is_definition ? NULL : scope->outer)
        for (size_t i = 0; i < scope->count && n < 512; i++) names[n++] = scope->items[i].name;
    dtm_error(c->context, expr->span, 211, "`%s` has no value here", name);
    dtm_string nearest = dtm_string_nearest(c->context, name, names, n);
    if (nearest)
        dtm_help(c->context, "did you mean `%s`?", dtm_checker_text(c, nearest));
    else
        dtm_help(c->context, "set it before it is read; what is set inside `repeat` is not seen after it");
    return 0;
}

static bool read_operand(dtm_checker *c, const dtm_expr *expr, const char *name, const char *flags, operand *out) {
    out->span = expr->span;
    out->value = 0;
    if (dtm_checker_is_number(c, expr)) return dtm_checker_number(c, expr, &out->number);
    if (expr->kind == DTM_EXPR_NAME)
        out->value = value_named(c, expr, flags);
    else
        out->value = dtm_checker_value(c, expr, nested_name(c, name, kind_of(c, expr)));
    return out->value != 0;
}

static dtm_dtype dtype_of(const dtm_checker *c, dtm_value value) {
    return (dtm_dtype)dtm_value_type(c->module, value)->dtype;
}

static dtm_value literal(dtm_checker *c, const operand *o, dtm_dtype dtype) {
    if (dtype == DTM_BOOL || ((dtype == DTM_I32 || dtype == DTM_U8) && o->number != floor(o->number))) {
        dtm_text text = {.arena = c->arena};
        dtm_text_number(&text, o->number);
        dtm_error(c->context, o->span, 302, "%s cannot be a %s", text.data, dtm_dtype_name(dtype));
        return 0;
    }
    return dtm_constant(c->module, dtype, o->number);
}

/* Numbers take the dtype of the first operand that has one; the condition of `where` is none to follow. */
static bool settle(dtm_checker *c, dtm_op_kind kind, const operand *operands, uint32_t n, dtm_dtype fallback,
                   dtm_value *out) {
    dtm_dtype dtype = fallback;
    uint32_t first = kind == DTM_OP_WHERE ? 1 : 0;
    for (uint32_t i = n; i-- > first;)
        if (operands[i].value) dtype = dtype_of(c, operands[i].value);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = operands[i].value ? operands[i].value : literal(c, &operands[i], dtype);
        if (!out[i]) return false;
    }
    return true;
}

/* ---- arguments ---- */

typedef struct reader {
    dtm_checker *c;
    const dtm_expr *expr;
    const char *name;
    dtm_read_call *call;
    operand operands[64];
    uint32_t count, given; /* given: settings, by bit */
} reader;

static bool is_word_of(const char *list, const char *word, char end, int *index) {
    size_t length = strlen(word);
    *index = 0;
    while (*list) {
        size_t this = strcspn(list, " =");
        if (this == length && strncmp(list, word, length) == 0 && (list[this] == end || (end == ' ' && !list[this])))
            return true;
        list += strcspn(list, " ");
        list += *list == ' ';
        ++*index;
    }
    return false;
}

static bool take_flag(reader *r, const dtm_expr *value) {
    int index;
    if (value->kind != DTM_EXPR_NAME) return false;
    if (!is_word_of(dtm_op_rows[r->call->kind].flags, dtm_checker_text(r->c, value->text), ' ', &index)) return false;
    if (!r->c->dump && r->call->kind == DTM_OP_ROPE && index == 1) return false; /* inverse */
    r->call->attributes.flags |= 1u << index;
    return true;
}

/* Attributes that passes give: no source file has them. */
static bool is_inner(dtm_op_kind kind, const char *name, size_t length) {
    static const struct {
        dtm_op_kind kind;
        const char *name;
    } inner[] = {{DTM_OP_DROPOUT, "site"}, {DTM_OP_ROPE, "inverse"}, {DTM_OP_ROPE, "scale_kind"}};
    for (size_t i = 0; i < sizeof inner / sizeof *inner; i++)
        if (kind == inner[i].kind && strlen(inner[i].name) == length && !strncmp(name, inner[i].name, length)) return true;
    return false;
}

/* What an operator can be told after its operands. */
static void help_attributes(const reader *r, const dtm_op_row *row) {
    dtm_text list = {.arena = r->c->arena};
    const char *const kinds[2] = {row->numbers, row->flags};
    for (int k = 0; k < 2; k++)
        for (const char *p = kinds[k]; *p; p += strcspn(p, " "), p += *p == ' ') {
            int length = (int)strcspn(p, " =");
            if (!is_inner(r->call->kind, p, (size_t)length)) dtm_text_printf(&list, "%s%.*s%s", list.length ? ", " : "", length, p, k ? "" : " = ..");
        }
    if (list.length) dtm_help(r->c->context, "it takes %s", list.data);
    else dtm_help(r->c->context, "it takes none");
}

static bool bad_key(reader *r, const dtm_argument *a) {
    const dtm_op_row *row = &dtm_op_rows[r->call->kind];
    dtm_string names[DTM_MAX_NUMBERS + 1];
    size_t n = dtm_checker_words(r->c, row->numbers, names);
    dtm_error(r->c->context, a->key.span, 212, "`%s` has no attribute `%s`", row->name,
              dtm_checker_text(r->c, a->key.text));
    int flag;
    if (is_word_of(row->flags, dtm_checker_text(r->c, a->key.text), ' ', &flag)) {
        dtm_help(r->c->context, "it has no value: write `%s` alone, or leave it out", dtm_checker_text(r->c, a->key.text));
        return false;
    }
    dtm_string nearest = dtm_string_nearest(r->c->context, dtm_checker_text(r->c, a->key.text), names, n);
    const char *near = dtm_checker_text(r->c, nearest);
    if (nearest && (r->c->dump || !is_inner(r->call->kind, near, strlen(near)))) dtm_help(r->c->context, "did you mean `%s`?", near);
    else if (!r->c->dump) help_attributes(r, row);
    return false;
}

/* scaling = linear(4) or llama3(factor = 8, low = 1, high = 4, original = 8192) */
static bool take_scaling(reader *r, const dtm_expr *value) {
    dtm_checker *c = r->c;
    double *number = r->call->attributes.number;
    const char *kind = value->kind == DTM_EXPR_CALL ? dtm_checker_text(c, value->call->callee.text) : "";
    bool linear = strcmp(kind, "linear") == 0;
    if (!linear && strcmp(kind, "llama3") != 0) {
        dtm_error(c->context, value->span, 212,
                  "rope's scaling is linear(FACTOR) or llama3(factor = .., low = .., high = .., original = ..)");
        return false;
    }
    number[DTM_ROPE_SCALE_KIND] = linear ? 1 : 2;
    if (!linear) number[DTM_ROPE_FACTOR] = 8, number[DTM_ROPE_ORIGINAL] = 8192;
    const dtm_clause *plain = &value->call->clauses[0];
    for (size_t i = 0; i < plain->count; i++) {
        int index = DTM_ROPE_FACTOR;
        dtm_string key = plain->arguments[i].key.text;
        if (key && (!is_word_of(dtm_op_rows[DTM_OP_ROPE].numbers, dtm_checker_text(c, key), '=', &index) ||
                    index < DTM_ROPE_FACTOR))
            return bad_key(r, &plain->arguments[i]);
        if (!dtm_checker_number(c, plain->arguments[i].value, &number[index])) return false;
    }
    return true;
}

static bool take_keyed(reader *r, const dtm_argument *a) {
    int index;
    const char *key = dtm_checker_text(r->c, a->key.text);
    if (r->call->kind == DTM_OP_ROPE && strcmp(key, "scaling") == 0) return take_scaling(r, a->value);
    if (r->c->dump && r->call->kind == DTM_OP_ALL_REDUCE && strcmp(key, "members") == 0 && a->value->kind == DTM_EXPR_STRING) {
        r->call->attributes.members = a->value->text;
        return true;
    }
    if ((r->call->kind == DTM_OP_EXPERTS || !is_word_of(dtm_op_rows[r->call->kind].numbers, key, '=', &index)))
        return bad_key(r, a);
    if (!r->c->dump && r->call->kind == DTM_OP_DROPOUT && index == DTM_DROPOUT_SITE) return bad_key(r, a);
    if (r->given >> index & 1) {
        dtm_error(r->c->context, a->key.span, 212, "`%s` is given twice", key);
        return false;
    }
    r->given |= 1u << index;
    double *number = &r->call->attributes.number[index];
    if (!dtm_checker_number(r->c, a->value, number)) return false;
    bool windowed = r->call->kind == DTM_OP_ATTENTION && index == DTM_ATTENTION_WINDOW; /* 0: none is given */
    if (windowed && *number == 0) *number = -1;
    return true;
}

static bool take_range(reader *r, const dtm_argument *a) {
    dtm_attributes *at = &r->call->attributes;
    dtm_dim dim = dtm_checker_dim(r->c, a->key);
    if (!dim) return false;
    if (r->call->kind == DTM_OP_PAD)
        at->as[at->n_as++] = dim;
    else
        at->over[at->n_over++] = dim;
    return dtm_checker_integer(r->c, a->value->left, 0, "the begin of a slice", &at->from) &&
           dtm_checker_integer(r->c, a->value->right, 0, "the end of a slice", &at->to);
}

static bool need_name(reader *r, const dtm_expr *value, const char *what, dtm_name *out) {
    if (value->kind == DTM_EXPR_NAME) {
        *out = (dtm_name){value->text, value->span};
        return true;
    }
    dtm_error(r->c->context, value->span, 213, "`%s` wants %s here", dtm_op_rows[r->call->kind].name, what);
    return false;
}

static bool take_dim(reader *r, const dtm_expr *value, dtm_dim *dims, uint8_t *count) {
    dtm_name name;
    if (!need_name(r, value, "the name of a dimension", &name)) return false;
    dtm_dim dim = dtm_checker_dim_or(r->c, name, dtm_op_rows[r->call->kind].flags);
    if (!dim) return false;
    if (*count == DTM_MAX_RANK) {
        dtm_error(r->c->context, value->span, 303, "at most %d dimensions", DTM_MAX_RANK);
        return false;
    }
    dims[(*count)++] = dim;
    return true;
}

static bool find_dtype(dtm_checker *c, dtm_name name, dtm_dtype *out) {
    for (int d = 0; d < DTM_DTYPES; d++)
        if (strcmp(dtm_dtype_name((dtm_dtype)d), dtm_checker_text(c, name.text)) == 0) {
            *out = (dtm_dtype)d;
            return true;
        }
    dtm_error(c->context, name.span, 214, "there is no dtype `%s`", dtm_checker_text(c, name.text));
    dtm_help(c->context, "dtypes are f32, f16, bf16, i32, u8, bool");
    return false;
}

static bool takes_dims_as_arguments(dtm_op_kind kind, size_t index) {
    switch (kind) {
    case DTM_OP_POSITIONS:
        return true;
    case DTM_OP_SPLIT:
    case DTM_OP_MERGE:
    case DTM_OP_RENAME:
        return index > 0;
    default:
        return false;
    }
}

static bool take_plain(reader *r, const dtm_argument *a, size_t index) {
    dtm_attributes *at = &r->call->attributes;
    dtm_op_kind kind = r->call->kind;
    dtm_name name;
    if (a->key.text && a->value->kind == DTM_EXPR_RANGE && (kind == DTM_OP_SLICE || kind == DTM_OP_PAD))
        return take_range(r, a);
    if (a->key.text) return take_keyed(r, a);
    if (takes_dims_as_arguments(kind, index)) return take_dim(r, a->value, at->over, &at->n_over);
    if (kind == DTM_OP_CAST && index == 1)
        return need_name(r, a->value, "a dtype", &name) && find_dtype(r->c, name, &at->dtype);
    if (kind == DTM_OP_DROPOUT && index == 1) {
        r->given |= 1u << DTM_DROPOUT_P;
        return dtm_checker_number(r->c, a->value, &at->number[DTM_DROPOUT_P]);
    }
    if (take_flag(r, a->value)) return true;
    if (kind == DTM_OP_CARRY && index == 1) return need_name(r, a->value, "a value", &r->call->carried);
    if (r->count == 64) {
        dtm_error(r->c->context, a->value->span, 307, "too many operands");
        return false;
    }
    return read_operand(r->c, a->value, r->name, dtm_op_rows[kind].flags, &r->operands[r->count]) && ++r->count;
}

static bool take_axes(reader *r, const dtm_expr *value) {
    dtm_name name;
    if (!need_name(r, value, "axes", &name)) return false;
    const char *text = dtm_checker_text(r->c, name.text);
    while (*text) {
        size_t length = strcspn(text, ".");
        dtm_name one = {dtm_string_intern(r->c->context, text, length), name.span};
        uint8_t axis = dtm_checker_axis(r->c, one);
        if (axis == DTM_NO_AXIS) return false;
        r->call->attributes.axes |= (uint16_t)(1 << axis);
        text += length + (text[length] == '.');
    }
    return true;
}

static bool takes_word(dtm_op_kind kind, dtm_word word, bool dump) {
    bool layout = kind >= DTM_OP_RELAYOUT;
    switch (word) {
    case DTM_WORD_PLAIN:
        return true;
    case DTM_WORD_OVER:
        return (kind >= DTM_OP_DOT && kind < DTM_OP_SPLIT) || kind == DTM_OP_CONCAT || kind == DTM_OP_EXPAND ||
               layout || kind == DTM_OP_TOP || kind == DTM_OP_EXPERTS || kind == DTM_OP_CROSS_ENTROPY_BACKWARD;
    case DTM_WORD_AS:
        return (kind >= DTM_OP_SPLIT && kind <= DTM_OP_TOP) || layout;
    case DTM_WORD_AT:
        return kind == DTM_OP_ROPE || kind == DTM_OP_ATTENTION || kind == DTM_OP_ATTENTION_BACKWARD;
    case DTM_WORD_WHERE:
        return kind >= DTM_OP_SUM && kind <= DTM_OP_REDUCE_MAX;
    case DTM_WORD_ON:
        return dump && (layout || kind == DTM_OP_SEND || kind == DTM_OP_RECEIVE);
    default:
        return false;
    }
}

static bool take_in_clause(reader *r, const dtm_clause *clause, const dtm_argument *a, size_t index) {
    dtm_attributes *at = &r->call->attributes;
    if (clause->word == DTM_WORD_PLAIN) return take_plain(r, a, index);
    if (a->key.text) return take_keyed(r, a);
    if (take_flag(r, a->value)) return true;
    switch (clause->word) {
    case DTM_WORD_OVER:
        return take_dim(r, a->value, at->over, &at->n_over);
    case DTM_WORD_AS: /* a slice put back: `pad(x, D = 1..2 as N)` takes N and makes D */
        if (r->call->kind == DTM_OP_PAD) return take_dim(r, a->value, at->over, &at->n_over);
        return take_dim(r, a->value, at->as, &at->n_as);
    case DTM_WORD_ON:
        return take_axes(r, a->value);
    case DTM_WORD_AT: {
        dtm_dim dims[DTM_MAX_RANK];
        uint8_t count = 0;
        if (!take_dim(r, a->value, dims, &count)) return false;
        at->at = dims[0];
        return true;
    }
    default:
        return read_operand(r->c, a->value, r->name, "", &r->operands[r->count]) && ++r->count; /* where */
    }
}

static bool read_clauses(reader *r) {
    const dtm_call *call = r->expr->call;
    for (size_t i = 0; i < call->count; i++) {
        const dtm_clause *clause = &call->clauses[i];
        if (!takes_word(r->call->kind, clause->word, r->c->dump)) {
            dtm_error(r->c->context, clause->span, 212, "`%s` takes no `%s`", dtm_op_rows[r->call->kind].name,
                      dtm_word_text(clause->word));
            return false;
        }
        for (size_t j = 0; j < clause->count; j++)
            if (!take_in_clause(r, clause, &clause->arguments[j], j)) return false;
    }
    return true;
}

static bool check_attributes(reader *r) {
    dtm_checker *c = r->c;
    const double *number = r->call->attributes.number;
    dtm_op_kind kind = r->call->kind;
    if (kind == DTM_OP_DROPOUT && !c->dump && !(r->given >> DTM_DROPOUT_P & 1)) {
        dtm_error(c->context, r->expr->span, 311, "dropout needs its probability");
        dtm_help(c->context, "dropout(x, 0.1): each element is zero with probability 0.1");
        return false;
    }
    if (kind == DTM_OP_DROPOUT && !(number[DTM_DROPOUT_P] >= 0 && number[DTM_DROPOUT_P] < 1)) {
        dtm_error(c->context, r->expr->span, 311, "dropout's p is a probability: at least 0 and less than 1");
        return false;
    }
    bool attention = kind == DTM_OP_ATTENTION || kind == DTM_OP_ATTENTION_BACKWARD;
    if (attention &&
        (number[DTM_ATTENTION_WINDOW] < 0 || number[DTM_ATTENTION_WINDOW] != floor(number[DTM_ATTENTION_WINDOW]))) {
        dtm_error(c->context, r->expr->span, 311, "attention's window is a whole number of positions, at least 1");
        return false;
    }
    if (kind == DTM_OP_CROSS_ENTROPY &&
        !(number[DTM_CROSS_ENTROPY_SMOOTH] >= 0 && number[DTM_CROSS_ENTROPY_SMOOTH] <= 1)) {
        dtm_error(c->context, r->expr->span, 311, "cross_entropy's smooth is between 0 and 1");
        return false;
    }
    bool norm = kind == DTM_OP_RMSNORM || kind == DTM_OP_LAYERNORM;
    if (norm && !(number[DTM_NORM_EPS] >= 0 && isfinite(number[DTM_NORM_EPS]))) {
        dtm_error(c->context, r->expr->span, 311, "a norm's eps is a number of at least 0");
        return false;
    }
    if (kind == DTM_OP_ROPE && !(number[DTM_ROPE_BASE] > 0 && isfinite(number[DTM_ROPE_BASE]))) {
        dtm_error(c->context, r->expr->span, 311, "rope's base is a number of more than 0");
        return false;
    }
    if (kind == DTM_OP_DROPOUT && !c->dump) r->call->attributes.number[DTM_DROPOUT_SITE] = dtm_fault(42) ? 1 : ++c->dropouts;
    /* `at` the keys' own dimension says nothing new. */
    if (kind == DTM_OP_ATTENTION && r->call->attributes.at == r->call->attributes.over[0]) r->call->attributes.at = 0;
    return true;
}

bool dtm_checker_call(dtm_checker *c, const dtm_expr *expr, const char *name, dtm_dtype result_dtype,
                      dtm_read_call *call) {
    memset(call, 0, sizeof *call);
    reader r = {.c = c, .expr = expr, .name = name, .call = call};
    call->kind = kind_of(c, expr);
    if (expr->kind == DTM_EXPR_BINARY && call->kind == DTM_OP_NONE) {
        dtm_error(c->context, expr->span, 308, "`%%` is for numbers known when the program is compiled");
        return false;
    }
    if (call->kind == DTM_OP_NONE) return unknown_operator(c, expr) != 0;
    if (call->kind == DTM_OP_TOP || call->kind == DTM_OP_EXPERTS)
        return dtm_checker_refuse(c, expr->span, dtm_arena_printf(c->arena, "`%s`", dtm_op_rows[call->kind].name),
                                  NULL);
    call->attributes = dtm_attributes_default(call->kind);
    if (expr->kind == DTM_EXPR_CALL) {
        if (expr->call->parameter.text) {
            dtm_error(c->context, expr->span, 212, "`%s` takes no `{ .. }`", dtm_op_rows[call->kind].name);
            return false;
        }
        if (!read_clauses(&r) || !check_attributes(&r)) return false;
    } else {
        const dtm_expr *sides[2] = {expr->left, expr->right};
        uint32_t n = expr->kind == DTM_EXPR_NEGATE ? 1 : 2;
        for (; r.count < n; r.count++)
            if (!read_operand(c, sides[r.count], name, "", &r.operands[r.count])) return false;
    }
    call->n_operands = r.count;
    return settle(c, call->kind, r.operands, r.count, result_dtype, call->operands);
}

dtm_value dtm_checker_value(dtm_checker *c, const dtm_expr *expr, const char *name) {
    double number;
    if (expr->kind == DTM_EXPR_ERROR) return 0;
    if (dtm_checker_is_number(c, expr))
        return dtm_checker_number(c, expr, &number) ? dtm_constant(c->module, DTM_F32, number) : 0;
    if (expr->kind == DTM_EXPR_NAME) return value_named(c, expr, "");
    if (expr->kind != DTM_EXPR_CALL && expr->kind != DTM_EXPR_BINARY && expr->kind != DTM_EXPR_NEGATE) {
        dtm_error(c->context, expr->span, 308, "a value is wanted here");
        return 0;
    }
    if (dtm_checker_definition(c, expr)) {
        dtm_error(c->context, expr->span, 215, "`%s` is a def: it is called as the whole right side of a line",
                  dtm_checker_text(c, expr->call->callee.text));
        dtm_help(c->context, "give it a line of its own: y = %s(..)", dtm_checker_text(c, expr->call->callee.text));
        return 0;
    }
    dtm_read_call call;
    dtm_type types[4];
    if (!dtm_checker_call(c, expr, name, DTM_F32, &call)) return 0;
    if (!dtm_infer(c->module, call.kind, call.operands, call.n_operands, &call.attributes, expr->span, types)) return 0;
    dtm_builder builder = dtm_checker_builder(c, expr->span);
    dtm_op op = dtm_build_op(&builder, call.kind, call.operands, call.n_operands, &call.attributes, types,
                             dtm_op_rows[call.kind].results, name);
    return dtm_result(c->module, op, 0);
}

/* ---- types ---- */

static bool take_axes_of_dim(dtm_checker *c, const dtm_dim_use *use, dtm_dim_layout *layout) {
    for (size_t i = 0; i < use->axes.count; i++) {
        const dtm_axis_use *axis_use = &use->axes.items[i];
        uint8_t axis = dtm_checker_axis(c, axis_use->name);
        if (axis == DTM_NO_AXIS) return false;
        if (layout->count == DTM_MAX_SPLITS) {
            dtm_error(c->context, use->span, 502, "more axes than there are split %s: one of them stands twice",
                      dtm_checker_text(c, use->name.text));
            return false;
        }
        if (axis_use->multiple > UINT32_MAX) {
            dtm_error(c->context, use->span, 502, "blocks are multiples of at most %u, not %llu", UINT32_MAX,
                      (unsigned long long)axis_use->multiple);
            return false;
        }
        dtm_split split = {axis, axis_use->multiple ? (uint32_t)axis_use->multiple : 1};
        layout->splits[layout->count++] = split;
    }
    return true;
}

static bool take_pending(dtm_checker *c, const dtm_pending *pending, dtm_type_data *type) {
    bool max = strcmp(dtm_checker_text(c, pending->reduction.text), "max") == 0;
    for (size_t i = 0; i < pending->axes.count; i++) {
        uint8_t axis = dtm_checker_axis(c, pending->axes.items[i].name);
        if (axis == DTM_NO_AXIS) return false;
        if (max)
            type->max |= (uint16_t)(1 << axis);
        else
            type->sum |= (uint16_t)(1 << axis);
    }
    return true;
}

bool dtm_checker_type(dtm_checker *c, const dtm_type_expr *type, dtm_dtype fallback, dtm_type *out) {
    dtm_type_data data;
    memset(&data, 0, sizeof data);
    dtm_dtype dtype = fallback;
    if (type->dtype.text && !find_dtype(c, type->dtype, &dtype)) return false;
    data.dtype = (uint8_t)dtype;
    if (type->n_dims > DTM_MAX_RANK) {
        dtm_error(c->context, type->span, 303, "a type has at most %d dimensions", DTM_MAX_RANK);
        return false;
    }
    for (size_t i = 0; i < type->n_dims; i++) {
        const dtm_dim_use *use = &type->dims[i];
        dtm_dim dim = dtm_checker_dim(c, use->name);
        if (!dim) return false;
        for (size_t j = 0; j < i; j++)
            if (data.dims[j] == dim) {
                dtm_error(c->context, use->span, 303, "%s stands twice in one type", dtm_dim_name(c->module, dim));
                dtm_help(c->context, "declare another dimension of that size: dim %s2 = %s", dtm_dim_name(c->module, dim),
                         dtm_dim_name(c->module, dim));
                return false;
            }
        if (use->has_size && (int64_t)use->size != c->module->dims[dim].size) {
            dtm_error(c->context, use->span, 304, "%s = %lld, not %llu", dtm_dim_name(c->module, dim),
                      (long long)c->module->dims[dim].size, (unsigned long long)use->size);
            return false;
        }
        if (use->order.text) return dtm_checker_refuse(c, use->order.span, "zigzag", NULL);
        data.dims[data.rank++] = dim;
        if (!take_axes_of_dim(c, use, &data.layout[i])) return false;
    }
    for (size_t i = 0; i < type->n_pending; i++)
        if (!take_pending(c, &type->pending[i], &data)) return false;
    if (!dtm_dims_countable(c->module, data.dims, data.rank)) {
        dtm_error(c->context, type->span, 315, "a tensor of this type would have more than 2^60 elements: %s",
                  dtm_dims_text(c->module, c->arena, data.dims, data.rank, " x "));
        return false;
    }
    *out = dtm_type_intern(c->module, &data);
    return true;
}
