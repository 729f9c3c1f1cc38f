/* Running the parser over a file's tokens, and the wording of syntax errors. */
#include "frontend/build.h"

#include "frontend/parser.h"
#include "frontend/places.h"
#include "frontend/tokens.h"
#include "frontend/words.h"

#include <string.h>

static void give_up(dtm_parser *parser) {
    parser->gave_up = true;
    parser->next = parser->tokens->count - 1;
}

void dtm_parser_error(dtm_parser *parser, dtm_span span, int code, const char *format, ...) {
    if (parser->gave_up) return;
    va_list arguments;
    va_start(arguments, format);
    char text[512];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    dtm_error(parser->context, span, code, "%s", text);
    parser->last_error = span;
    if (++parser->errors >= DTM_MAX_SYNTAX_ERRORS) give_up(parser);
}

void dtm_parser_too_deep(dtm_parser *parser, dtm_span span) {
    if (parser->gave_up) return;
    dtm_parser_error(parser, span, 105, "this is nested more than %d deep", DTM_AST_MAX_DEPTH);
    dtm_help(parser->context, "give a part of it a name");
    give_up(parser);
}

const dtm_token *dtm_parser_next(dtm_parser *parser) {
    const dtm_tokens *tokens = parser->tokens;
    const dtm_token *token = &tokens->items[parser->next];
    if (parser->next + 1 < tokens->count) parser->next++;
    return token;
}

/* ---- what was met ---- */

static const char *source_of(dtm_parser *parser, dtm_span span) {
    const char *text = dtm_source_text(parser->context, span.file, NULL);
    uint32_t length = span.end - span.begin;
    return length > 40 ? dtm_arena_printf(parser->arena, "%.37s...", text + span.begin)
                       : dtm_arena_printf(parser->arena, "%.*s", (int)length, text + span.begin);
}

static const char *describe(dtm_parser *parser, const dtm_token *token) {
    size_t length;
    dtm_source_text(parser->context, token->span.file, &length);
    if (token->kind == 0 || (token->kind == END && token->span.begin == length)) return "the end of the file";
    if (token->kind == STRING) return dtm_arena_printf(parser->arena, "the string %s", source_of(parser, token->span));
    if (token->kind == END && token->span.begin == token->span.end) return "`}`";
    if (token->kind == END && *source_of(parser, token->span) == '\n') return "the end of the line";
    return dtm_arena_printf(parser->arena, "`%s`", source_of(parser, token->span));
}

/* ---- what was expected ---- */

static bool expects(const char *const *expected, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(expected[i], name) == 0) return true;
    return false;
}

/* What a name would be at this place, by the token before it. */
static const char *name_role(const dtm_token *before) {
    switch (before->kind) {
    case OVER: return "a dimension name";
    case ON: case '@': return "an axis name";
    case SPLITS: return "a dimension name";
    case INPUT: case WEIGHT: case STATE: case REPORT: case OUTPUT: case MODEL: case DEF: case REPEAT:
    case DIM: case CONST: case KEEP: return "a name";
    case USING: return "`ring`, `alltoall` or `gather`";
    case BY: return "`cost`";
    case AFTER: return "the name of a pass";
    case '[': return "a dimension name";
    }
    return "a name";
}

/* What is expected falls in three ranks: marks that say what is missing; words that may follow almost anywhere, named
 * only if there is nothing better; operators, which may follow any operand. */
static int rank(const char *name) {
    static const char *const words[] = {"`over`", "`at`", "`as`", "`where`", "`on`", "`from`", "`with`", "`using`",
                                        "`by`", "`per`", "`named`", "`why`", "`@`", "`reversed`", "`.`", "`~`",
                                        "`storing`", "`..`", "`of`"};
    static const char *const operators[] = {"`+`", "`-`", "`*`", "`/`", "`%`", "`==`", "`!=`", "`<`", "`<=`", "`>`",
                                            "`>=`", "`(`"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(name, words[i]) == 0) return 1;
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (strcmp(name, operators[i]) == 0) return 2;
    return 0;
}

/* Tokens that begin an expression: said as one. */
static bool begins_expression(const char *name) {
    static const char *const first[] = {"a name", "a name with dots", "a number", "a string", "`(`", "`-`", "`[`"};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        if (strcmp(name, first[i]) == 0) return true;
    return false;
}

typedef struct choices {
    const char *items[8];
    size_t count;
} choices;

static void choose(choices *c, const char *item) {
    if (strcmp(item, "`{ `") == 0) item = "`{`"; /* the grammar's two kinds of braces look alike */
    if (strcmp(item, "` }`") == 0) item = "`}`";
    for (size_t i = 0; i < c->count; i++)
        if (strcmp(c->items[i], item) == 0) return;
    if (c->count < 8) c->items[c->count++] = item;
}

/* The expected tokens, in as few words as say it. */
static choices summarise(const char *const *expected, size_t count, const dtm_token *before) {
    choices c = {.count = 0};
    if (before->starts && (before->kind == NAME || before->kind == DOTTED)) return (choices){{"`=`"}, 1};
    bool operand_done = expects(expected, count, "`+`");
    bool expression = !operand_done && expects(expected, count, "a number") && expects(expected, count, "`(`");
    if (expression) choose(&c, before->kind == OVER ? "a dimension name" : "an expression");
    else if (expects(expected, count, "a name")) choose(&c, name_role(before));
    for (int wanted = 0; wanted < 3 && (wanted == 0 || c.count == 0); wanted++) {
        for (size_t i = 0; i < count; i++) {
            const char *name = expected[i];
            bool said = expression ? begins_expression(name) : strncmp(name, "a name", 6) == 0;
            int its_rank = rank(name) == 2 && !operand_done ? 0 : rank(name);
            if (!said && its_rank == wanted) choose(&c, name);
        }
    }
    return c;
}

static const char *join(dtm_parser *parser, const choices *c) {
    dtm_text text = {.arena = parser->arena};
    for (size_t i = 0; i < c->count; i++)
        dtm_text_printf(&text, "%s%s", i == 0 ? "" : i + 1 == c->count ? " or " : ", ", c->items[i]);
    return text.data;
}

/* ---- special cases: what is very likely meant ---- */

static const dtm_token *statement_start(const dtm_parser *parser, const dtm_token *token) {
    while (token > parser->tokens->items && !token->starts) token--;
    return token;
}

static bool report_unclosed(dtm_parser *parser, const dtm_token *met) {
    if (met->kind != END || !met->unclosed.file) return false;
    dtm_parser_error(parser, met->unclosed, 108, "this `%s` is not closed", source_of(parser, met->unclosed));
    return true;
}

static bool report_unit(dtm_parser *parser, const dtm_token *met, const dtm_token *before) {
    if (met->kind != NAME || before->kind != NUMBER || met[1].kind == '=') return false;
    const char *name = dtm_string_text(parser->context, met->text);
    dtm_unit unit;
    double factor;
    if (dtm_unit_find(name, &unit, &factor))
        dtm_parser_error(parser, met->span, 104, "the unit `%s` has no place here: only settings have units", name);
    else dtm_parser_error(parser, met->span, 104, "`%s` after a number is no unit that is known", name);
    return true;
}

/* The first word of the statement begins none here: it stands in the wrong section, or is mistyped. */
static bool report_first_word(dtm_parser *parser, const dtm_token *met, const dtm_token *start) {
    if (start->kind != NAME || met > start + 1 || (met->kind != NAME && met->kind != STRING && met->kind != BLOCK_OPEN &&
                                                   met->kind != NUMBER && met->kind != BRACE_OPEN))
        return false;
    const char *word = dtm_string_text(parser->context, start->text);
    const char *home = dtm_word_home(parser->context, start->text, parser->tokens->dump);
    if (home) {
        dtm_parser_error(parser, start->span, 107, "`%s` has no place here: it stands %s", word, home);
        return true;
    }
    dtm_string splits = dtm_string_of(parser->context, "splits");
    if (met->kind == NAME && dtm_string_nearest(parser->context, dtm_string_text(parser->context, met->text), &splits, 1)) {
        dtm_parser_error(parser, met->span, 101, "expected `splits` after `%s`, met %s", word, describe(parser, met));
        return true;
    }
    dtm_parser_error(parser, start->span, 101, "`%s` begins no statement here", word);
    dtm_string nearest = dtm_word_nearest(parser->context, start->text, parser->tokens->dump);
    if (nearest) dtm_help(parser->context, "did you mean `%s`?", dtm_string_text(parser->context, nearest));
    return true;
}

static bool report_comparison(dtm_parser *parser, const dtm_token *met, bool after_operand) {
    bool comparison = met->kind == '<' || met->kind == '>' || met->kind == EQUAL || met->kind == NOT_EQUAL ||
                      met->kind == LESS_EQUAL || met->kind == GREATER_EQUAL;
    if (!comparison || !after_operand) return false;
    dtm_parser_error(parser, met->span, 101, "comparisons are not chained: put one of them in parentheses");
    return true;
}

static bool report_reserved(dtm_parser *parser, const dtm_token *met, const dtm_token *before) {
    if (!before->starts || (met->kind != '=' && met->kind != ',') || !before->text) return false;
    if (before->kind == NAME || before->kind == DOTTED || before->kind == SETTING) return false;
    dtm_parser_error(parser, before->span, 101, "`%s` begins a statement of its own: a value needs another name",
                     dtm_string_text(parser->context, before->text));
    return true;
}

/* Between two values `@` is a product elsewhere; here it stands in layouts. */
static void help_product(dtm_parser *parser, const dtm_token *met, const dtm_token *before, const dtm_token *start) {
    const dtm_token *first = before - 1;
    if (before->kind != '@' || first <= start || parser->tokens->dump || (met->kind != NAME && met->kind != '(')) return;
    dtm_help(parser->context, "a product sums over a dimension that both have: dot(%s, %s over ..)",
             first->kind == NAME ? dtm_string_text(parser->context, first->text) : "a",
             met->kind == NAME ? dtm_string_text(parser->context, met->text) : "b");
}

/* After a type a name can only begin a pending reduction, `sum@tp`; it is more likely that `=` was forgotten. */
static bool report_after_type(dtm_parser *parser, const dtm_token *before, const char *const *expected, size_t count) {
    if (before->kind != NAME || count != 1 || strcmp(expected[0], "`@`") != 0) return false;
    dtm_parser_error(parser, before->span, 101, "expected `=` after the type, met %s", describe(parser, before));
    return true;
}

/* Called by the parser with the tokens that could have come. The token met is the last one it was given. */
void dtm_parser_syntax_error(dtm_parser *parser, const char *const *expected, size_t count) {
    const dtm_token *items = parser->tokens->items;
    const dtm_token *met = parser->next + 1 == parser->tokens->count && parser->gave_up ? NULL : &items[parser->next - 1];
    if (!met) return;
    static const dtm_token nothing = {.kind = END};
    const dtm_token *before = met > items ? met - 1 : &nothing;
    const dtm_token *start = statement_start(parser, met);
    if (report_unclosed(parser, met) || report_unit(parser, met, before) || report_first_word(parser, met, start) ||
        report_comparison(parser, met, expects(expected, count, "`+`")) ||
        report_reserved(parser, met, before) || report_after_type(parser, before, expected, count))
        return;
    choices c = summarise(expected, count, before);
    const char *wanted = c.count ? join(parser, &c) : "something else";
    if (met->starts || before->kind == END || before->kind == BLOCK_OPEN)
        dtm_parser_error(parser, met->span, 101, "%s begins no statement", describe(parser, met));
    else {
        dtm_parser_error(parser, met->span, 101, "expected %s after %s, met %s", wanted, describe(parser, before),
                         describe(parser, met));
        help_product(parser, met, before, start);
    }
}

dtm_ast *dtm_parse(dtm_context *context, uint32_t file) {
    dtm_arena *arena = dtm_context_arena(context);
    dtm_tokens *tokens = dtm_arena_alloc(arena, sizeof *tokens);
    if (!dtm_tokens_read(context, file, tokens)) return NULL;
    dtm_ast *ast = dtm_arena_alloc(arena, sizeof *ast);
    ast->file = file;
    ast->comments = tokens->comments;
    ast->n_comments = tokens->n_comments;
    dtm_parser parser = {.context = context, .arena = arena, .tokens = tokens, .ast = ast, .errors = tokens->errors};
    bool read = dtm_yyparse(&parser) == 0 && ast->block;
    if (parser.errors >= DTM_MAX_SYNTAX_ERRORS)
        dtm_note(context, parser.last_error, "%d errors: the rest of the file is not read", DTM_MAX_SYNTAX_ERRORS);
    if (!read) return NULL;
    size_t length;
    dtm_source_text(context, file, &length);
    ast->block->span = (dtm_span){file, 0, (uint32_t)length};
    dtm_places_check(&parser);
    return ast;
}
