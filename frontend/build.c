/* Building the tree: names, expressions, types. See build.h. */
#include "frontend/build.h"

#include "frontend/tokens.h"

#include <string.h>

#define PUSH(list, element) DTM_PUSH(parser->arena, (list).items, (list).count, (list).capacity, element)

dtm_name dtm_ast_name(const dtm_token *token) { return (dtm_name){token->text, token->span}; }

dtm_names dtm_ast_names(dtm_parser *parser, dtm_names names, dtm_name name) {
    PUSH(names, name);
    return names;
}

/* ---- expressions ---- */

static dtm_expr *new_expr(dtm_parser *parser, dtm_expr_kind kind, dtm_span span) {
    dtm_expr *expr = dtm_arena_alloc(parser->arena, sizeof *expr);
    *expr = (dtm_expr){.kind = kind, .span = span, .depth = 1};
    return expr;
}

/* Walkers recurse, so no expression may be deeper than they can go; what is too deep is replaced by a leaf. */
static dtm_expr *deepen(dtm_parser *parser, dtm_expr *expr, const dtm_expr *part) {
    if (part && part->depth >= expr->depth) expr->depth = part->depth + 1;
    if (expr->depth <= DTM_AST_MAX_DEPTH) return expr;
    dtm_parser_too_deep(parser, expr->span);
    return new_expr(parser, DTM_EXPR_ERROR, expr->span);
}

static void require_dump(dtm_parser *parser, dtm_name name) {
    if (parser->tokens->dump || !strchr(dtm_string_text(parser->context, name.text), '.')) return;
    dtm_parser_error(parser, name.span, 106, "names with dots, like `%s`, stand only in dumps",
                     dtm_string_text(parser->context, name.text));
}

dtm_expr *dtm_ast_name_expr(dtm_parser *parser, dtm_name name) {
    require_dump(parser, name);
    dtm_expr *expr = new_expr(parser, DTM_EXPR_NAME, name.span);
    expr->text = name.text;
    return expr;
}

dtm_expr *dtm_ast_number(dtm_parser *parser, const dtm_token *token) {
    dtm_expr *expr = new_expr(parser, DTM_EXPR_NUMBER, token->span);
    expr->text = token->text;
    expr->value = token->value;
    expr->whole = token->whole;
    expr->integer = token->integer;
    expr->unit = token->unit;
    return expr;
}

dtm_expr *dtm_ast_string(dtm_parser *parser, const dtm_token *token) {
    dtm_expr *expr = new_expr(parser, DTM_EXPR_STRING, token->span);
    expr->text = token->text;
    return expr;
}

dtm_expr *dtm_ast_parenthesised(dtm_expr *expr, dtm_span span) {
    expr->parenthesised = true;
    expr->span = span;
    return expr;
}

dtm_expr *dtm_ast_negate(dtm_parser *parser, dtm_expr *operand, dtm_span span) {
    dtm_expr *expr = new_expr(parser, DTM_EXPR_NEGATE, span);
    expr->left = operand;
    return deepen(parser, expr, operand);
}

dtm_expr *dtm_ast_binary(dtm_parser *parser, dtm_operator operator, dtm_expr *left, dtm_expr *right) {
    dtm_expr *expr = new_expr(parser, DTM_EXPR_BINARY, dtm_span_join(left->span, right->span));
    expr->operator = operator;
    expr->left = left;
    expr->right = right;
    return deepen(parser, deepen(parser, expr, left), right);
}

dtm_expr *dtm_ast_pair(dtm_parser *parser, dtm_expr_kind kind, dtm_expr *left, dtm_expr *right) {
    dtm_expr *expr = new_expr(parser, kind, dtm_span_join(left->span, right->span));
    expr->left = left;
    expr->right = right;
    return deepen(parser, deepen(parser, expr, left), right);
}

dtm_expr *dtm_ast_list(dtm_parser *parser, dtm_expr *list, dtm_expr *item) {
    if (!list) list = new_expr(parser, DTM_EXPR_LIST, item->span);
    if (list->kind != DTM_EXPR_LIST) return list;
    list->span = dtm_span_join(list->span, item->span);
    PUSH(*list, item);
    return deepen(parser, list, item);
}

dtm_call *dtm_ast_clauses(dtm_parser *parser, dtm_call *call, dtm_clause clause) {
    if (!call) call = dtm_arena_alloc(parser->arena, sizeof *call);
    DTM_PUSH(parser->arena, call->clauses, call->count, call->capacity, clause);
    return call;
}

dtm_call *dtm_ast_clause(dtm_parser *parser, dtm_call *call, dtm_word word, dtm_clause clause, dtm_span word_span,
                         dtm_span span) {
    clause.word = word;
    clause.span = dtm_span_join(word_span, span);
    return dtm_ast_clauses(parser, call, clause);
}

dtm_clause dtm_ast_argument(dtm_parser *parser, dtm_clause clause, dtm_argument argument, dtm_span span) {
    clause.span = dtm_span_join(clause.span, span);
    DTM_PUSH(parser->arena, clause.arguments, clause.count, clause.capacity, argument);
    return clause;
}

dtm_expr *dtm_ast_call(dtm_parser *parser, const dtm_token *callee, dtm_call *call, dtm_span span) {
    dtm_expr *expr = new_expr(parser, DTM_EXPR_CALL, span);
    expr->call = call;
    call->callee = dtm_ast_name(callee);
    for (size_t i = 0; i < call->count; i++)
        for (size_t j = 0; j < call->clauses[i].count && expr->kind == DTM_EXPR_CALL; j++)
            expr = deepen(parser, expr, call->clauses[i].arguments[j].value);
    return expr;
}

dtm_expr *dtm_ast_lambda(dtm_parser *parser, dtm_expr *call, const dtm_token *parameter, dtm_expr *body,
                         dtm_span span) {
    if (call->kind != DTM_EXPR_CALL) return call;
    call->span = span;
    call->call->parameter = dtm_ast_name(parameter);
    call->call->body = body;
    return deepen(parser, call, body);
}

/* ---- types ---- */

uint64_t dtm_ast_whole(dtm_parser *parser, const dtm_token *number) {
    if (!number->whole)
        dtm_parser_error(parser, number->span, 104, "a whole number is needed here, not %s",
                         dtm_string_text(parser->context, number->text));
    return number->integer;
}

/* `dp.tp` is one token: it is taken apart here. */
dtm_axes dtm_ast_axis(dtm_parser *parser, dtm_axes axes, dtm_axis_use axis) {
    const char *text = dtm_string_text(parser->context, axis.name.text);
    dtm_span span = axis.name.span;
    for (const char *dot; (dot = strchr(text, '.')); text = dot + 1) {
        span.end = span.begin + (uint32_t)(dot - text);
        dtm_name name = {dtm_string_intern(parser->context, text, (size_t)(dot - text)), span};
        PUSH(axes, ((dtm_axis_use){name, 0}));
        span.begin = span.end + 1;
    }
    axis.name = (dtm_name){dtm_string_of(parser->context, text), {span.file, span.begin, axis.name.span.end}};
    PUSH(axes, axis);
    return axes;
}

/* Parts of a dimension come in the order SIZE, AXES, ORDER, each once. */
static void require_order(dtm_parser *parser, const dtm_dim_use *dim, bool size, bool axes, dtm_span span) {
    bool late = (size && dim->has_size) || (axes && (dim->axes.count || dim->whole)) || dim->order.text;
    if (late) dtm_parser_error(parser, span, 101, "a dimension is written NAME=SIZE@AXES~ORDER, each part once");
}

dtm_dim_use dtm_ast_dim_size(dtm_parser *parser, dtm_dim_use dim, const dtm_token *size) {
    require_order(parser, &dim, true, true, size->span);
    dim.has_size = true;
    dim.size = dtm_ast_whole(parser, size);
    return dim;
}

dtm_dim_use dtm_ast_dim_axes(dtm_parser *parser, dtm_dim_use dim, dtm_axes axes, bool whole, dtm_span span) {
    require_order(parser, &dim, false, true, span);
    dim.axes = axes;
    dim.whole = whole;
    return dim;
}

dtm_dim_use dtm_ast_dim_order(dtm_parser *parser, dtm_dim_use dim, const dtm_token *order) {
    require_order(parser, &dim, false, false, order->span);
    dim.order = dtm_ast_name(order);
    return dim;
}

dtm_type_expr *dtm_ast_type(dtm_parser *parser) { return dtm_arena_alloc(parser->arena, sizeof(dtm_type_expr)); }

dtm_type_expr *dtm_ast_dim(dtm_parser *parser, dtm_type_expr *type, dtm_dim_use dim, dtm_span span) {
    dim.span = span;
    DTM_PUSH(parser->arena, type->dims, type->n_dims, type->cap_dims, dim);
    return type;
}

dtm_type_expr *dtm_ast_pending(dtm_parser *parser, dtm_type_expr *type, dtm_name reduction, dtm_axes axes,
                               dtm_span span) {
    DTM_PUSH(parser->arena, type->pending, type->n_pending, type->cap_pending, ((dtm_pending){reduction, axes}));
    type->span = span;
    return type;
}
