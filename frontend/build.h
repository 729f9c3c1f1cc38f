/* What the grammar's actions call: each builds one piece of the tree (ast.h) in the arena, and looks at what a grammar
 * cannot say (how deep, which words). Lists that are still growing are passed by value. */
#ifndef DTM_BUILD_H
#define DTM_BUILD_H

#include "frontend/ast.h"

typedef struct dtm_token dtm_token;
struct dtm_tokens;

/* Where parsing one file stands. */
typedef struct dtm_parser {
    dtm_context *context;
    dtm_arena *arena;
    const struct dtm_tokens *tokens;
    size_t next;     /* the token to be read next */
    dtm_ast *ast;
    size_t errors;   /* syntax errors reported in this file */
    bool gave_up;    /* too many errors, or too deep */
    dtm_span last_error;
} dtm_parser;

/* ---- parse.c ---- */
const dtm_token *dtm_parser_next(dtm_parser *parser);
void dtm_parser_syntax_error(dtm_parser *parser, const char *const *expected, size_t count);
void dtm_parser_too_deep(dtm_parser *parser, dtm_span span);
void dtm_parser_error(dtm_parser *parser, dtm_span span, int code, const char *format, ...) DTM_PRINTF(4, 5);

/* ---- names, expressions ---- */
dtm_name dtm_ast_name(const dtm_token *token);
dtm_names dtm_ast_names(dtm_parser *parser, dtm_names names, dtm_name name);
dtm_expr *dtm_ast_name_expr(dtm_parser *parser, dtm_name name);
dtm_expr *dtm_ast_number(dtm_parser *parser, const dtm_token *token);
dtm_expr *dtm_ast_string(dtm_parser *parser, const dtm_token *token);
dtm_expr *dtm_ast_parenthesised(dtm_expr *expr, dtm_span span);
dtm_expr *dtm_ast_negate(dtm_parser *parser, dtm_expr *operand, dtm_span span);
dtm_expr *dtm_ast_binary(dtm_parser *parser, dtm_operator operator, dtm_expr *left, dtm_expr *right);
dtm_expr *dtm_ast_pair(dtm_parser *parser, dtm_expr_kind kind, dtm_expr *left, dtm_expr *right);
dtm_expr *dtm_ast_list(dtm_parser *parser, dtm_expr *list, dtm_expr *item);
dtm_expr *dtm_ast_call(dtm_parser *parser, const dtm_token *callee, dtm_call *call, dtm_span span);
dtm_expr *dtm_ast_lambda(dtm_parser *parser, dtm_expr *call, const dtm_token *parameter, dtm_expr *body, dtm_span span);
dtm_call *dtm_ast_clauses(dtm_parser *parser, dtm_call *call, dtm_clause clause);
dtm_call *dtm_ast_clause(dtm_parser *parser, dtm_call *call, dtm_word word, dtm_clause clause, dtm_span word_span,
                         dtm_span span);
dtm_clause dtm_ast_argument(dtm_parser *parser, dtm_clause clause, dtm_argument argument, dtm_span span);

/* ---- types ---- */
uint64_t dtm_ast_whole(dtm_parser *parser, const dtm_token *number);
dtm_axes dtm_ast_axis(dtm_parser *parser, dtm_axes axes, dtm_axis_use axis);
dtm_dim_use dtm_ast_dim_size(dtm_parser *parser, dtm_dim_use dim, const dtm_token *size);
dtm_dim_use dtm_ast_dim_axes(dtm_parser *parser, dtm_dim_use dim, dtm_axes axes, bool whole, dtm_span span);
dtm_dim_use dtm_ast_dim_order(dtm_parser *parser, dtm_dim_use dim, const dtm_token *order);
dtm_type_expr *dtm_ast_type(dtm_parser *parser);
dtm_type_expr *dtm_ast_dim(dtm_parser *parser, dtm_type_expr *type, dtm_dim_use dim, dtm_span span);
dtm_type_expr *dtm_ast_pending(dtm_parser *parser, dtm_type_expr *type, dtm_name reduction, dtm_axes axes, dtm_span span);

/* ---- blocks and declarations ---- */
void dtm_ast_file(dtm_parser *parser, dtm_name after, dtm_ast_block *block);
dtm_ast_block *dtm_ast_new_block(dtm_parser *parser);
dtm_ast_block *dtm_ast_append(dtm_parser *parser, dtm_ast_block *block, dtm_statement *statement);
dtm_statement *dtm_ast_broken(dtm_parser *parser, dtm_span span, dtm_ast_block *block);
dtm_statement *dtm_ast_use(dtm_parser *parser, const dtm_token *keyword, const dtm_token *path);
dtm_bindings dtm_ast_binding(dtm_parser *parser, dtm_bindings bindings, dtm_binding binding);
dtm_statement *dtm_ast_bindings(dtm_parser *parser, dtm_statement_kind kind, const dtm_token *keyword,
                                dtm_bindings bindings);
dtm_statement *dtm_ast_section(dtm_parser *parser, dtm_statement_kind kind, const dtm_token *keyword, dtm_name name,
                               dtm_ast_block *block);
dtm_statement *dtm_ast_model(dtm_parser *parser, const dtm_token *keyword, const dtm_token *name, dtm_bindings of,
                             dtm_ast_block *block);
dtm_statement *dtm_ast_def(dtm_parser *parser, const dtm_token *keyword, dtm_name name, dtm_names parameters,
                           dtm_ast_block *block);
dtm_statement *dtm_ast_valued(dtm_parser *parser, dtm_statement_kind kind, const dtm_token *keyword, dtm_expr *value);

/* ---- statements of a model ---- */
dtm_targets dtm_ast_target(dtm_parser *parser, dtm_targets targets, dtm_target target);
dtm_statement *dtm_ast_input(dtm_parser *parser, const dtm_token *keyword, dtm_targets targets, dtm_type_expr *type);
/* flags and from are partial statements, NULL where there is none. */
dtm_statement *dtm_ast_weight(dtm_parser *parser, const dtm_token *keyword, dtm_targets targets, dtm_type_expr *type,
                              dtm_expr *initial, dtm_statement *flags, dtm_statement *from);
dtm_statement *dtm_ast_weight_parts(dtm_parser *parser);
dtm_statement *dtm_ast_flag(dtm_parser *parser, dtm_statement *flags, const dtm_token *first, const dtm_token *second);
dtm_statement *dtm_ast_from(dtm_parser *parser, const dtm_token *pattern, dtm_expr *stored);
dtm_statement *dtm_ast_state(dtm_parser *parser, const dtm_token *keyword, dtm_targets targets, dtm_type_expr *type,
                             dtm_expr *initial);
dtm_statement *dtm_ast_assign(dtm_parser *parser, dtm_targets targets, dtm_expr *value);
dtm_statement *dtm_ast_call_statement(dtm_parser *parser, const dtm_token *callee, dtm_call *call, dtm_span span);
dtm_statement *dtm_ast_loss(dtm_parser *parser, const dtm_token *keyword, dtm_type_expr *type, dtm_expr *value);
dtm_statement *dtm_ast_named_value(dtm_parser *parser, dtm_statement_kind kind, const dtm_token *keyword,
                                   dtm_target target, dtm_expr *value);
dtm_statement *dtm_ast_repeat(dtm_parser *parser, dtm_statement_kind kind, const dtm_token *keyword,
                              const dtm_token *name, dtm_expr *count, dtm_expr *first, bool reversed, dtm_suffix suffix,
                              dtm_ast_block *block);
dtm_statement *dtm_ast_region(dtm_parser *parser, const dtm_token *keyword, dtm_bindings of, dtm_suffix suffix,
                              dtm_ast_block *block);
dtm_suffix dtm_ast_line(dtm_parser *parser, const dtm_token *file, const dtm_token *line);
dtm_suffix dtm_ast_offset(dtm_parser *parser, dtm_suffix suffix, dtm_expr *offset);
dtm_suffix dtm_ast_whole_suffix(dtm_suffix named, dtm_suffix at, dtm_suffix line, dtm_suffix why, dtm_span span);
dtm_statement *dtm_ast_suffix(dtm_statement *statement, dtm_suffix suffix, dtm_span span);

/* ---- parallel ---- */
bool dtm_ast_by(dtm_parser *parser, const dtm_token *word);
dtm_statement *dtm_ast_crossing(dtm_parser *parser, const dtm_token *using, const dtm_token *order);
dtm_statement *dtm_ast_splits(dtm_parser *parser, const dtm_token *axis, dtm_names dims, bool by_cost,
                              dtm_statement *crossing, dtm_bindings settings);
dtm_statement *dtm_ast_rule(dtm_parser *parser, dtm_statement_kind kind, const dtm_token *keyword, dtm_expr *value,
                            dtm_names names);
dtm_statement *dtm_ast_keep(dtm_parser *parser, const dtm_token *keyword, dtm_name value, dtm_type_expr *layout,
                            dtm_span span);
dtm_statement *dtm_ast_expect(dtm_parser *parser, const dtm_token *keyword, dtm_name place,
                              dtm_expectations expectations);
dtm_expectations dtm_ast_expectation(dtm_parser *parser, dtm_expectations expectations, dtm_expectation expectation,
                                     dtm_span span);

#endif
