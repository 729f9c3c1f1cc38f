/* Building the tree: blocks, declarations, statements, rules. See build.h. */
#include "frontend/build.h"

#include "frontend/tokens.h"

#include <string.h>

static dtm_statement *new_statement(dtm_parser *parser, dtm_statement_kind kind, const dtm_token *keyword) {
    dtm_statement *statement = dtm_arena_alloc(parser->arena, sizeof *statement);
    statement->kind = kind;
    if (keyword) statement->keyword = keyword->span;
    return statement;
}

static bool is_word(const dtm_parser *parser, const dtm_token *token, const char *word) {
    return token && strcmp(dtm_string_text(parser->context, token->text), word) == 0;
}

/* ---- blocks and declarations ---- */

void dtm_ast_file(dtm_parser *parser, dtm_name after, dtm_ast_block *block) {
    parser->ast->after = after;
    parser->ast->block = block;
}

dtm_ast_block *dtm_ast_new_block(dtm_parser *parser) { return dtm_arena_alloc(parser->arena, sizeof(dtm_ast_block)); }

dtm_ast_block *dtm_ast_append(dtm_parser *parser, dtm_ast_block *block, dtm_statement *statement) {
    DTM_PUSH(parser->arena, block->items, block->count, block->capacity, statement);
    return block;
}

dtm_statement *dtm_ast_broken(dtm_parser *parser, dtm_span span, dtm_ast_block *block) {
    dtm_statement *statement = new_statement(parser, DTM_STATEMENT_ERROR, NULL);
    statement->span = span;
    statement->block = block;
    return statement;
}

dtm_statement *dtm_ast_use(dtm_parser *parser, const dtm_token *keyword, const dtm_token *path) {
    dtm_statement *statement = new_statement(parser, DTM_STATEMENT_USE, keyword);
    statement->text = path->text;
    statement->text_span = path->span;
    return statement;
}

dtm_bindings dtm_ast_binding(dtm_parser *parser, dtm_bindings bindings, dtm_binding binding) {
    DTM_PUSH(parser->arena, bindings.items, bindings.count, bindings.capacity, binding);
    return bindings;
}

dtm_statement *dtm_ast_bindings(dtm_parser *parser, dtm_statement_kind kind, const dtm_token *keyword,
                                dtm_bindings bindings) {
    dtm_statement *statement = new_statement(parser, kind, keyword);
    statement->bindings = bindings;
    return statement;
}

dtm_statement *dtm_ast_section(dtm_parser *parser, dtm_statement_kind kind, const dtm_token *keyword, dtm_name name,
                               dtm_ast_block *block) {
    dtm_statement *statement = new_statement(parser, kind, keyword);
    statement->name = name;
    statement->block = block;
    return statement;
}

dtm_statement *dtm_ast_model(dtm_parser *parser, const dtm_token *keyword, const dtm_token *name, dtm_bindings of,
                             dtm_ast_block *block) {
    dtm_statement *statement = dtm_ast_section(parser, DTM_STATEMENT_MODEL, keyword, dtm_ast_name(name), block);
    statement->bindings = of;
    return statement;
}

dtm_statement *dtm_ast_def(dtm_parser *parser, const dtm_token *keyword, dtm_name name, dtm_names parameters,
                           dtm_ast_block *block) {
    dtm_statement *statement = dtm_ast_section(parser, DTM_STATEMENT_DEF, keyword, name, block);
    statement->names = parameters;
    return statement;
}

dtm_statement *dtm_ast_valued(dtm_parser *parser, dtm_statement_kind kind, const dtm_token *keyword, dtm_expr *value) {
    dtm_statement *statement = new_statement(parser, kind, keyword);
    statement->name = dtm_ast_name(keyword);
    statement->value = value;
    return statement;
}

/* ---- statements of a model ---- */

dtm_targets dtm_ast_target(dtm_parser *parser, dtm_targets targets, dtm_target target) {
    const char *text = dtm_string_text(parser->context, target.name.text);
    if (strchr(text, '.') && !parser->tokens->dump)
        dtm_parser_error(parser, target.name.span, 106, "names with dots, like `%s`, stand only in dumps", text);
    DTM_PUSH(parser->arena, targets.items, targets.count, targets.capacity, target);
    return targets;
}

static dtm_statement *declare(dtm_parser *parser, dtm_statement_kind kind, const dtm_token *keyword,
                              dtm_targets targets, dtm_type_expr *type, dtm_expr *value) {
    dtm_statement *statement = new_statement(parser, kind, keyword);
    statement->targets = targets;
    statement->value = value;
    for (size_t i = 0; i < targets.count; i++) statement->targets.items[i].type = type;
    return statement;
}

dtm_statement *dtm_ast_input(dtm_parser *parser, const dtm_token *keyword, dtm_targets targets, dtm_type_expr *type) {
    return declare(parser, DTM_STATEMENT_INPUT, keyword, targets, type, NULL);
}

dtm_statement *dtm_ast_weight(dtm_parser *parser, const dtm_token *keyword, dtm_targets targets, dtm_type_expr *type,
                              dtm_expr *initial, dtm_statement *flags, dtm_statement *from) {
    dtm_statement *statement = declare(parser, DTM_STATEMENT_WEIGHT, keyword, targets, type, initial);
    statement->no_decay = flags->no_decay;
    statement->frozen = flags->frozen;
    statement->exact = flags->exact;
    if (!from) return statement;
    statement->text = from->text;
    statement->text_span = from->text_span;
    statement->stored = from->stored;
    return statement;
}

dtm_statement *dtm_ast_weight_parts(dtm_parser *parser) {
    return new_statement(parser, DTM_STATEMENT_WEIGHT, NULL);
}

dtm_statement *dtm_ast_flag(dtm_parser *parser, dtm_statement *flags, const dtm_token *first, const dtm_token *second) {
    bool no_decay = is_word(parser, first, "no") && is_word(parser, second, "decay");
    bool frozen = !second && is_word(parser, first, "frozen"), exact = !second && is_word(parser, first, "exact");
    dtm_span span = second ? dtm_span_join(first->span, second->span) : first->span;
    if (!no_decay && !frozen && !exact)
        dtm_parser_error(parser, span, 109, "a weight may be marked `no decay`, `frozen` or `exact`, not `%s`",
                         dtm_string_text(parser->context, first->text));
    if ((no_decay && flags->no_decay) || (frozen && flags->frozen) || (exact && flags->exact))
        dtm_parser_error(parser, span, 109, "this weight is marked twice");
    flags->no_decay |= no_decay;
    flags->frozen |= frozen;
    flags->exact |= exact;
    return flags;
}

dtm_statement *dtm_ast_from(dtm_parser *parser, const dtm_token *pattern, dtm_expr *stored) {
    dtm_statement *from = new_statement(parser, DTM_STATEMENT_WEIGHT, NULL);
    from->text = pattern->text;
    from->text_span = pattern->span;
    from->stored = stored;
    return from;
}

dtm_statement *dtm_ast_state(dtm_parser *parser, const dtm_token *keyword, dtm_targets targets, dtm_type_expr *type,
                             dtm_expr *initial) {
    return declare(parser, DTM_STATEMENT_STATE, keyword, targets, type, initial);
}

dtm_statement *dtm_ast_assign(dtm_parser *parser, dtm_targets targets, dtm_expr *value) {
    dtm_statement *statement = new_statement(parser, DTM_STATEMENT_ASSIGN, NULL);
    statement->keyword = targets.items[0].name.span;
    statement->targets = targets;
    statement->value = value;
    return statement;
}

dtm_statement *dtm_ast_call_statement(dtm_parser *parser, const dtm_token *callee, dtm_call *call, dtm_span span) {
    dtm_statement *statement = new_statement(parser, DTM_STATEMENT_CALL, callee);
    statement->value = dtm_ast_call(parser, callee, call, span);
    return statement;
}

dtm_statement *dtm_ast_loss(dtm_parser *parser, const dtm_token *keyword, dtm_type_expr *type, dtm_expr *value) {
    return dtm_ast_named_value(parser, DTM_STATEMENT_LOSS, keyword, (dtm_target){dtm_ast_name(keyword), type}, value);
}

dtm_statement *dtm_ast_named_value(dtm_parser *parser, dtm_statement_kind kind, const dtm_token *keyword,
                                   dtm_target target, dtm_expr *value) {
    dtm_statement *statement = dtm_ast_valued(parser, kind, keyword, value);
    statement->name = target.name;
    statement->targets = dtm_ast_target(parser, statement->targets, target);
    return statement;
}

dtm_statement *dtm_ast_repeat(dtm_parser *parser, dtm_statement_kind kind, const dtm_token *keyword,
                              const dtm_token *name, dtm_expr *count, dtm_expr *first, bool reversed, dtm_suffix suffix,
                              dtm_ast_block *block) {
    dtm_statement *statement = dtm_ast_section(parser, kind, keyword, dtm_ast_name(name), block);
    statement->value = count;
    statement->first = first;
    statement->reversed = reversed;
    statement->suffix = suffix;
    return statement;
}

dtm_statement *dtm_ast_region(dtm_parser *parser, const dtm_token *keyword, dtm_bindings of, dtm_suffix suffix,
                              dtm_ast_block *block) {
    dtm_statement *statement =
        dtm_ast_section(parser, DTM_STATEMENT_REGION, keyword, dtm_ast_name(keyword), block);
    statement->bindings = of;
    statement->suffix = suffix;
    return statement;
}

dtm_suffix dtm_ast_line(dtm_parser *parser, const dtm_token *file, const dtm_token *line) {
    uint64_t number = dtm_ast_whole(parser, line);
    if (number == 0 || number > UINT32_MAX) dtm_parser_error(parser, line->span, 104, "lines count from 1");
    return (dtm_suffix){.file = file ? file->text : 0, .line = (uint32_t)number};
}

dtm_suffix dtm_ast_offset(dtm_parser *parser, dtm_suffix suffix, dtm_expr *offset) {
    DTM_PUSH(parser->arena, suffix.at, suffix.n_at, suffix.cap_at, offset);
    return suffix;
}

dtm_suffix dtm_ast_whole_suffix(dtm_suffix named, dtm_suffix at, dtm_suffix line, dtm_suffix why, dtm_span span) {
    dtm_suffix all = at;
    all.named = named.named;
    all.file = line.file;
    all.line = line.line;
    all.why = why.why;
    if (all.named || all.n_at || all.line || all.why) all.span = span;
    return all;
}

dtm_statement *dtm_ast_suffix(dtm_statement *statement, dtm_suffix suffix, dtm_span span) {
    statement->suffix = suffix;
    statement->span = dtm_span_join(span, suffix.span);
    return statement;
}

/* ---- parallel ---- */

bool dtm_ast_by(dtm_parser *parser, const dtm_token *word) {
    if (!is_word(parser, word, "cost"))
        dtm_parser_error(parser, word->span, 109, "only `by cost` is known, not `by %s`",
                         dtm_string_text(parser->context, word->text));
    return true;
}

dtm_statement *dtm_ast_crossing(dtm_parser *parser, const dtm_token *using, const dtm_token *order) {
    dtm_statement *crossing = new_statement(parser, DTM_STATEMENT_SPLITS, NULL);
    if (using) crossing->using = dtm_ast_name(using);
    if (using && !is_word(parser, using, "ring") && !is_word(parser, using, "alltoall") &&
        !is_word(parser, using, "gather"))
        dtm_parser_error(parser, using->span, 109, "attention crosses a split `using ring`, `alltoall` or `gather`");
    if (order && !is_word(parser, order, "zigzag"))
        dtm_parser_error(parser, order->span, 109, "only the order `zigzag` is known, not `%s`",
                         dtm_string_text(parser->context, order->text));
    crossing->zigzag = order != NULL;
    return crossing;
}

dtm_statement *dtm_ast_splits(dtm_parser *parser, const dtm_token *axis, dtm_names dims, bool by_cost,
                              dtm_statement *crossing, dtm_bindings settings) {
    dtm_statement *statement = new_statement(parser, DTM_STATEMENT_SPLITS, axis);
    statement->name = dtm_ast_name(axis);
    statement->names = dims;
    statement->by_cost = by_cost;
    statement->using = crossing->using;
    statement->zigzag = crossing->zigzag;
    statement->bindings = settings;
    return statement;
}

dtm_statement *dtm_ast_rule(dtm_parser *parser, dtm_statement_kind kind, const dtm_token *keyword, dtm_expr *value,
                            dtm_names names) {
    dtm_statement *statement = dtm_ast_valued(parser, kind, keyword, value);
    statement->names = names;
    return statement;
}

dtm_statement *dtm_ast_keep(dtm_parser *parser, const dtm_token *keyword, dtm_name value, dtm_type_expr *layout,
                            dtm_span span) {
    dtm_statement *statement = new_statement(parser, DTM_STATEMENT_KEEP, keyword);
    statement->name = value;
    statement->layout = layout;
    layout->span = span;
    return statement;
}

dtm_statement *dtm_ast_expect(dtm_parser *parser, const dtm_token *keyword, dtm_name place,
                              dtm_expectations expectations) {
    dtm_statement *statement = new_statement(parser, DTM_STATEMENT_EXPECT, keyword);
    statement->name = place;
    statement->expectations = expectations;
    return statement;
}

dtm_expectations dtm_ast_expectation(dtm_parser *parser, dtm_expectations expectations, dtm_expectation expectation,
                                     dtm_span span) {
    expectation.span = span;
    DTM_PUSH(parser->arena, expectations.items, expectations.count, expectations.capacity, expectation);
    return expectations;
}
