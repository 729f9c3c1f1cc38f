/* Flat texts of expressions and types, and breaking them into lines: see format.h. */
#include "frontend/format.h"

#include <string.h>

void dtm_flat_begin(dtm_flat *flat, dtm_context *context) {
    memset(flat, 0, sizeof *flat);
    flat->context = context;
    flat->text.arena = dtm_context_arena(context);
    dtm_text_append(&flat->text, "", 0);
}

void dtm_flat_print(dtm_flat *flat, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char small[256];
    int length = vsnprintf(small, sizeof small, format, arguments);
    va_end(arguments);
    if (length < (int)sizeof small) {
        dtm_text_append(&flat->text, small, (size_t)length);
        return;
    }
    char *large = dtm_arena_alloc(flat->text.arena, (size_t)length + 1);
    va_start(arguments, format);
    vsnprintf(large, (size_t)length + 1, format, arguments);
    va_end(arguments);
    dtm_text_append(&flat->text, large, (size_t)length);
}

void dtm_flat_open(dtm_flat *flat, const char *bracket) {
    dtm_flat_print(flat, "%s", bracket);
    flat->open[flat->depth++] = flat->text.length;
}

void dtm_flat_close(dtm_flat *flat, const char *bracket) {
    flat->depth--;
    dtm_flat_print(flat, "%s", bracket);
}

void dtm_flat_break(dtm_flat *flat) {
    dtm_break here = {flat->text.length, flat->depth, flat->depth ? flat->open[flat->depth - 1] : 0};
    DTM_PUSH(flat->text.arena, flat->breaks, flat->n_breaks, flat->cap_breaks, here);
}

/* Before the index-th element of a list. */
void dtm_flat_comma(dtm_flat *flat, size_t index) {
    if (index == 0) return;
    dtm_flat_print(flat, ", ");
    dtm_flat_break(flat);
}

void dtm_flat_name(dtm_flat *flat, dtm_name name) {
    const char *text = dtm_string_text(flat->context, name.text);
    dtm_text_append(&flat->text, text, strlen(text));
}

void dtm_flat_string(dtm_flat *flat, dtm_string string) {
    dtm_text_append(&flat->text, "\"", 1);
    for (const char *c = dtm_string_text(flat->context, string); *c; c++) {
        if (*c == '"' || *c == '\\') dtm_text_append(&flat->text, "\\", 1);
        dtm_text_append(&flat->text, c, 1);
    }
    dtm_text_append(&flat->text, "\"", 1);
}

/* ---- expressions ---- */

static void print_clause(dtm_flat *flat, const dtm_clause *clause, bool first) {
    if (clause->word != DTM_WORD_PLAIN) dtm_flat_print(flat, "%s%s ", first ? "" : " ", dtm_word_text(clause->word));
    for (size_t i = 0; i < clause->count; i++) {
        dtm_flat_comma(flat, i);
        if (clause->arguments[i].key.text) {
            dtm_flat_name(flat, clause->arguments[i].key);
            dtm_flat_print(flat, " = ");
        }
        dtm_flat_expr(flat, clause->arguments[i].value);
    }
}

static void print_call(dtm_flat *flat, const dtm_call *call) {
    dtm_flat_name(flat, call->callee);
    dtm_flat_open(flat, "(");
    for (size_t i = 0; i < call->count; i++) print_clause(flat, &call->clauses[i], i == 0);
    dtm_flat_close(flat, ")");
    if (!call->body) return;
    dtm_flat_open(flat, " { ");
    dtm_flat_name(flat, call->parameter);
    dtm_flat_print(flat, " -> ");
    dtm_flat_break(flat);
    dtm_flat_expr(flat, call->body);
    dtm_flat_close(flat, " }");
}

static void print_list(dtm_flat *flat, const dtm_expr *list) {
    dtm_flat_open(flat, "[");
    for (size_t i = 0; i < list->count; i++) {
        dtm_flat_comma(flat, i);
        dtm_flat_expr(flat, list->items[i]);
    }
    dtm_flat_close(flat, "]");
}

static void print_operands(dtm_flat *flat, const dtm_expr *expr, const char *between, bool may_break) {
    dtm_flat_expr(flat, expr->left);
    dtm_flat_print(flat, "%s", between);
    if (may_break) dtm_flat_break(flat);
    dtm_flat_expr(flat, expr->right);
}

static void print_bare(dtm_flat *flat, const dtm_expr *expr) {
    switch (expr->kind) {
    case DTM_EXPR_ERROR: break;
    case DTM_EXPR_NUMBER:
    case DTM_EXPR_NAME: dtm_flat_name(flat, (dtm_name){expr->text, expr->span}); break;
    case DTM_EXPR_STRING: dtm_flat_string(flat, expr->text); break;
    case DTM_EXPR_NEGATE:
        dtm_flat_print(flat, "-");
        dtm_flat_expr(flat, expr->left);
        break;
    case DTM_EXPR_BINARY: {
        char between[8];
        snprintf(between, sizeof between, flat->tight ? "%s" : " %s ", dtm_operator_text(expr->operator));
        print_operands(flat, expr, between, !flat->tight);
        break;
    }
    case DTM_EXPR_CALL: print_call(flat, expr->call); break;
    case DTM_EXPR_RANGE: print_operands(flat, expr, "..", false); break;
    case DTM_EXPR_PART: print_operands(flat, expr, " of ", false); break;
    case DTM_EXPR_LIST: print_list(flat, expr); break;
    }
}

void dtm_flat_expr(dtm_flat *flat, const dtm_expr *expr) {
    if (expr->parenthesised) dtm_flat_open(flat, "(");
    print_bare(flat, expr);
    if (expr->parenthesised) dtm_flat_close(flat, ")");
}

/* ---- types ---- */

void dtm_flat_axes(dtm_flat *flat, const dtm_axes *axes) {
    for (size_t i = 0; i < axes->count; i++) {
        if (i) dtm_flat_print(flat, ".");
        dtm_flat_name(flat, axes->items[i].name);
        if (axes->items[i].multiple) dtm_flat_print(flat, ":%llu", (unsigned long long)axes->items[i].multiple);
    }
}

static void print_dim(dtm_flat *flat, const dtm_dim_use *dim) {
    dtm_flat_name(flat, dim->name);
    if (dim->has_size) dtm_flat_print(flat, "=%llu", (unsigned long long)dim->size);
    if (dim->whole || dim->axes.count) dtm_flat_print(flat, dim->whole ? "@-" : "@");
    dtm_flat_axes(flat, &dim->axes);
    if (!dim->order.text) return;
    dtm_flat_print(flat, "~");
    dtm_flat_name(flat, dim->order);
}

void dtm_flat_type(dtm_flat *flat, const dtm_type_expr *type) {
    dtm_flat_name(flat, type->dtype);
    dtm_flat_open(flat, "[");
    for (size_t i = 0; i < type->n_dims; i++) {
        dtm_flat_comma(flat, i);
        print_dim(flat, &type->dims[i]);
    }
    dtm_flat_close(flat, "]");
    for (size_t i = 0; i < type->n_pending; i++) {
        dtm_flat_print(flat, " ");
        dtm_flat_name(flat, type->pending[i].reduction);
        dtm_flat_print(flat, "@");
        dtm_flat_axes(flat, &type->pending[i].axes);
    }
}

void dtm_flat_bindings(dtm_flat *flat, const dtm_bindings *bindings) {
    for (size_t i = 0; i < bindings->count; i++) {
        dtm_flat_comma(flat, i);
        dtm_flat_name(flat, bindings->items[i].name);
        if (!bindings->items[i].value) continue; /* a flag */
        dtm_flat_print(flat, " = ");
        dtm_flat_expr(flat, bindings->items[i].value);
    }
}

/* ---- lines ---- */

/* The last break within the width at the least depth; if nothing fits, the next break there is; else NULL. */
static const dtm_break *choose_break(const dtm_flat *flat, size_t start, size_t room) {
    const dtm_break *best = NULL;
    for (size_t i = 0; i < flat->n_breaks; i++) {
        const dtm_break *b = &flat->breaks[i];
        if (b->offset <= start) continue;
        if (b->offset - 1 - start > room) return best ? best : b;
        if (!best || b->depth <= best->depth) best = b;
    }
    return best;
}

/* The column at which the text just inside a bracket landed: it stands on one of the lines laid out so far. */
static size_t column_of(const size_t *starts, const dtm_lines *lines, size_t first, size_t offset) {
    size_t i = lines->count;
    while (i > first + 1 && starts[i - 1 - first] > offset) i--;
    return lines->items[i - 1].indent + (offset - starts[i - 1 - first]);
}

static void add_line(const dtm_flat *flat, size_t start, size_t end, size_t indent, dtm_lines *lines) {
    while (end > start && flat->text.data[end - 1] == ' ') end--;
    const char *text = dtm_arena_printf(flat->text.arena, "%.*s", (int)(end - start), flat->text.data + start);
    DTM_PUSH(flat->text.arena, lines->items, lines->count, lines->capacity, ((dtm_line){text, indent}));
}

void dtm_flat_lay_out(const dtm_flat *flat, size_t indent, size_t width, dtm_lines *lines) {
    size_t start = 0, first = lines->count, column = indent, cap = 0, n = 0;
    size_t *starts = NULL;
    while (column + (flat->text.length - start) > width) {
        const dtm_break *b = choose_break(flat, start, column < width ? width - column : 0);
        if (!b) break;
        DTM_PUSH(flat->text.arena, starts, n, cap, start);
        add_line(flat, start, b->offset, column, lines);
        column = indent + DTM_FORMAT_INDENT;
        if (b->depth) {
            size_t hanging = column_of(starts, lines, first, b->open);
            /* Far to the right there is no room to hang from a bracket. */
            column = hanging <= width * 2 / 3 ? hanging : column + DTM_FORMAT_INDENT;
        }
        start = b->offset;
    }
    add_line(flat, start, flat->text.length, column, lines);
}
