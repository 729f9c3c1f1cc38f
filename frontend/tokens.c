/* Raw tokens to the grammar's tokens. Three things are decided here, in one pass with a stack of open brackets:
 *
 *   where statements end   a line's end, unless a bracket or the brace of mesh, expect or experts is open, the line ends
 *                          with a comma or a binary operator, or the next begins with one or with `from` and a string
 *   what braces mean       BLOCK_OPEN holds statements, BRACE_OPEN a list or a lambda, in which lines go on
 *   what words mean        the first word of a statement may be a keyword of its section; a word right after an operand
 *                          may join a clause (two names never stand side by side otherwise)
 *
 * Brackets left open are found here too, by what can only begin a new statement, so that one lost bracket costs one
 * message and not the rest of the file. */
#include "frontend/tokens.h"

#include "frontend/parser.h"
#include "frontend/words.h"

#include <string.h>

typedef struct bracket {
    int kind; /* '(', '[', BRACE_OPEN or BLOCK_OPEN */
    dtm_span span;
    dtm_section section; /* of a block: what its statements are */
} bracket;

typedef struct reader {
    dtm_context *context;
    dtm_arena *arena;
    dtm_tokens raw, *out;
    size_t at; /* in raw */
    bracket stack[DTM_AST_MAX_DEPTH];
    size_t depth;
    int head;   /* kind of the statement's first token; 0 before it */
    bool dump;
} reader;

static const dtm_token *peek(const reader *r, size_t ahead) {
    size_t i = r->at + ahead;
    return &r->raw.items[i < r->raw.count ? i : r->raw.count - 1];
}

static dtm_section section(const reader *r) {
    for (size_t i = r->depth; i > 0; i--)
        if (r->stack[i - 1].kind == BLOCK_OPEN) return r->stack[i - 1].section;
    return DTM_SECTION_FILE;
}

static bool in_brackets(const reader *r) { return r->depth && r->stack[r->depth - 1].kind != BLOCK_OPEN; }

static int last_kind(const reader *r) { return r->out->count ? r->out->items[r->out->count - 1].kind : END; }

static void emit(reader *r, dtm_token token, int kind) {
    token.kind = kind;
    token.starts = r->head == 0;
    if (!r->head) r->head = kind;
    DTM_PUSH(r->arena, r->out->items, r->out->count, r->out->capacity, token);
}

/* The context, for one more error. */
static dtm_context *counted(reader *r) {
    r->out->errors++;
    return r->context;
}

static bool push(reader *r, int kind, dtm_span span, dtm_section inside) {
    if (r->depth == DTM_AST_MAX_DEPTH) {
        dtm_error(counted(r), span, 105, "brackets stand more than %d deep in each other", DTM_AST_MAX_DEPTH);
        return false;
    }
    r->stack[r->depth++] = (bracket){kind, span, inside};
    return true;
}

/* Ends the statement at hand, if any. Brackets still open in it are given up; the innermost is kept in the token. */
static void end_statement(reader *r, dtm_span span) {
    dtm_token end = {.span = span};
    if (in_brackets(r)) end.unclosed = r->stack[r->depth - 1].span;
    while (in_brackets(r)) r->depth--;
    if (r->head) emit(r, end, END);
    r->head = 0;
}

static bool ends_operand(int kind) {
    return kind == NAME || kind == DOTTED || kind == NUMBER || kind == STRING || kind == ')' || kind == ']' ||
           kind == BRACE_CLOSE || kind == DTM_YYerror;
}

static bool is_binary(int kind) {
    switch (kind) {
    case '+': case '-': case '*': case '/': case '%': case '<': case '>':
    case EQUAL: case NOT_EQUAL: case LESS_EQUAL: case GREATER_EQUAL: return true;
    }
    return false;
}

static bool is_operand(int kind) { return kind == NAME || kind == DOTTED || kind == NUMBER || kind == STRING; }

static bool begins_block(int kind) {
    switch (kind) {
    case MODEL: case DEF: case REPEAT: case MICROBATCH: case REGION:
    case MACHINE: case PARALLEL: case TRAIN: case GENERATE: return true;
    }
    return false;
}

/* ---- ends of lines ---- */

/* Whether the raw token at i begins a statement beyond doubt: `weight w`, `repeat layer`, `train {`. */
static bool surely_begins(const reader *r, const dtm_token *first, const dtm_token *second) {
    if (first->kind != NAME) return false;
    if (!dtm_word_keyword(r->context, first->text, DTM_SECTION_ANY)) return false;
    if (second->kind == DTM_TOKEN_OPEN) return true;
    return is_operand(second->kind) && !dtm_word_clause(r->context, second->text);
}

/* A bracket is open at a line's end. The statement ends all the same if the next line cannot go on with it. */
static bool bracket_forgotten(const reader *r, const dtm_token *next, const dtm_token *after) {
    if (surely_begins(r, next, after)) return true;
    if (r->head == MESH || r->head == EXPECT || !ends_operand(last_kind(r))) return false;
    return is_operand(next->kind) && !(next->kind == NAME && dtm_word_clause(r->context, next->text));
}

/* A brace that opens the block of the line before: said, and read as if it stood there. */
static bool brace_on_next_line(reader *r, const dtm_token *next) {
    bool wanted = r->head == MESH || r->head == EXPECT || begins_block(r->head);
    if (!wanted || next->kind != DTM_TOKEN_OPEN) return false;
    dtm_error(counted(r), next->span, 101, "`{` must stand on the line before: the end of a line ends a statement");
    return true;
}

static void read_line_end(reader *r) {
    size_t ahead = 1;
    while (peek(r, ahead)->kind == DTM_TOKEN_LINE) ahead++;
    const dtm_token *next = peek(r, ahead), *after = peek(r, ahead + 1);
    if (!r->head || (!in_brackets(r) && brace_on_next_line(r, next))) return;
    if (in_brackets(r)) {
        if (bracket_forgotten(r, next, after)) end_statement(r, peek(r, 0)->span);
        return;
    }
    if (last_kind(r) == ',' || is_binary(last_kind(r)) || is_binary(next->kind)) return;
    if (next->kind == NAME && after->kind == STRING && dtm_word_clause(r->context, next->text) == FROM) return;
    end_statement(r, peek(r, 0)->span);
}

/* ---- brackets ---- */

/* Which statements stand in the block that a statement with this first token opens. */
static dtm_section block_section(const reader *r) {
    switch (r->head) {
    case PARALLEL: return DTM_SECTION_PARALLEL;
    case TRAIN: case GENERATE: return DTM_SECTION_SETTINGS;
    case MACHINE: return DTM_SECTION_MACHINE;
    case MODEL: case DEF: case REPEAT: case MICROBATCH: case REGION: return DTM_SECTION_BODY;
    }
    return section(r) == DTM_SECTION_FILE ? DTM_SECTION_BODY : section(r);
}

static bool opens_block(const reader *r) {
    if (in_brackets(r) || r->head == MESH || r->head == EXPECT) return false;
    return begins_block(r->head) || section(r) == DTM_SECTION_MACHINE || last_kind(r) != ')';
}

static bool read_open(reader *r, dtm_token token) {
    if (!opens_block(r)) {
        emit(r, token, BRACE_OPEN);
        return push(r, BRACE_OPEN, token.span, DTM_SECTION_ANY);
    }
    dtm_section inside = block_section(r);
    emit(r, token, BLOCK_OPEN);
    r->head = 0;
    return push(r, BLOCK_OPEN, token.span, inside);
}

static void close_block(reader *r, dtm_token token) {
    end_statement(r, (dtm_span){token.span.file, token.span.begin, token.span.begin});
    r->depth--;
    r->head = BLOCK_CLOSE;
    emit(r, token, BLOCK_CLOSE);
    end_statement(r, (dtm_span){token.span.file, token.span.end, token.span.end});
}

static void read_close(reader *r, dtm_token token) {
    size_t brace = r->depth;
    while (brace && r->stack[brace - 1].kind != BRACE_OPEN && r->stack[brace - 1].kind != BLOCK_OPEN) brace--;
    if (!brace) {
        dtm_error(counted(r), token.span, 108, "this `}` closes nothing");
    } else if (r->stack[brace - 1].kind == BLOCK_OPEN) {
        close_block(r, token);
    } else {
        emit(r, token, BRACE_CLOSE);
        r->depth = brace - 1;
    }
}

static void read_closing_bracket(reader *r, dtm_token token) {
    if (in_brackets(r) && r->stack[r->depth - 1].kind != BRACE_OPEN) r->depth--;
    emit(r, token, token.kind);
}

/* Blocks that are open at the end of the file, or where a section begins, lack a brace: said, and mended. */
static void close_forgotten_blocks(reader *r, dtm_span here) {
    end_statement(r, here);
    if (r->depth) {
        dtm_error(counted(r), r->stack[r->depth - 1].span, 108, "this `{` is never closed");
        if (r->at + 1 < r->raw.count) dtm_note(r->context, here, "it should be closed before this");
    }
    dtm_token token = {.span = {here.file, here.begin, here.begin}};
    while (r->depth) close_block(r, token);
}

/* ---- words ---- */

static bool begins_section_inside_block(const reader *r, const dtm_token *token) {
    if (!r->depth || section(r) == DTM_SECTION_MACHINE) return false;
    switch (dtm_word_keyword(r->context, token->text, DTM_SECTION_FILE)) {
    case MESH: case MACHINE: case PARALLEL: case TRAIN: case GENERATE: return peek(r, 1)->kind == DTM_TOKEN_OPEN;
    case MODEL: return peek(r, 1)->kind == NAME && peek(r, 2)->kind == DTM_TOKEN_OPEN;
    case DEF: return peek(r, 1)->kind == NAME && peek(r, 2)->kind == '(';
    }
    return false;
}

/* A statement of another section, beyond doubt: it is read as what it is, and places.c says that it stands wrong. */
static int misplaced_word(const reader *r, const dtm_token *token) {
    return surely_begins(r, token, peek(r, 1)) ? dtm_word_keyword(r->context, token->text, DTM_SECTION_ANY) : 0;
}

static int first_word_of_setting(const reader *r, const dtm_token *token) {
    if (peek(r, 1)->kind == '=') return NAME; /* places.c says how settings are written */
    switch (misplaced_word(r, token)) {
    case DIM: return DIM;
    case INPUT: return INPUT;
    case WEIGHT: return WEIGHT;
    case REPEAT: return REPEAT;
    }
    return SETTING;
}

/* `arena BYTES` and `source HASH` at the top of a dump: settings of the whole file. */
static bool is_header_line(const reader *r, const dtm_token *token) {
    return r->dump && section(r) == DTM_SECTION_FILE && peek(r, 1)->kind == NUMBER &&
           (strcmp(dtm_string_text(r->context, token->text), "arena") == 0 ||
            strcmp(dtm_string_text(r->context, token->text), "source") == 0);
}

/* The kind of the first word of a statement. Words that only dumps use stay names where they cannot be meant. */
static int first_word(const reader *r, const dtm_token *token) {
    if (section(r) == DTM_SECTION_SETTINGS) return first_word_of_setting(r, token);
    if (is_header_line(r, token)) return SETTING;
    int kind = dtm_word_keyword(r->context, token->text, section(r));
    if (!kind) kind = misplaced_word(r, token);
    int next = peek(r, 1)->kind;
    switch (kind) {
    case 0: return NAME;
    case AFTER: return r->out->count == 0 ? AFTER : NAME;
    case STATE: return r->dump && (next == NAME || next == DOTTED) ? STATE : NAME;
    case MICROBATCH: return next == NAME && peek(r, 2)->kind == '=' ? MICROBATCH : NAME;
    case REGION: return next == DTM_TOKEN_OPEN || (r->dump && (next == NAME || next == '@')) ? REGION : NAME;
    }
    return kind;
}

static void report_digit_first(reader *r, const dtm_token *token) {
    const char *text = dtm_string_text(r->context, token->text);
    int digits = (int)strspn(text, "0123456789");
    dtm_unit unit;
    double factor;
    dtm_error(counted(r), token->span, 104, "`%s` is neither a number nor a name", text);
    if (dtm_unit_find(text + digits, &unit, &factor))
        dtm_help(r->context, "a unit follows after a space: %.*s %s", digits, text, text + digits);
}

static void read_name(reader *r, dtm_token token) {
    const char *text = dtm_string_text(r->context, token.text);
    if (text[0] >= '0' && text[0] <= '9' && (section(r) != DTM_SECTION_PARALLEL || last_kind(r) != '=')) {
        report_digit_first(r, &token);
        emit(r, token, DTM_YYerror);
        return;
    }
    if (!r->head) {
        if (begins_section_inside_block(r, &token)) close_forgotten_blocks(r, token.span);
        emit(r, token, first_word(r, &token));
        return;
    }
    bool operandless = r->dump && last_kind(r) == '(' && peek(r, 1)->kind == NAME; /* receive(on pp) */
    int clause = ends_operand(last_kind(r)) || operandless ? dtm_word_clause(r->context, token.text) : 0;
    emit(r, token, clause ? clause : NAME);
}

/* ---- numbers with units ---- */

static void apply_unit(reader *r, dtm_token *number, const char *unit_text, double factor, dtm_unit unit, size_t used) {
    const char *digits = dtm_string_text(r->context, number->text);
    number->text = dtm_string_printf(r->context, "%s %s", digits, unit_text);
    number->value *= factor;
    number->unit = unit;
    number->whole = false;
    number->span = dtm_span_join(number->span, peek(r, used)->span);
    r->at += used;
}

static void read_number(reader *r, dtm_token token) {
    bool settings = section(r) == DTM_SECTION_PARALLEL || section(r) == DTM_SECTION_SETTINGS ||
                    section(r) == DTM_SECTION_MACHINE;
    if (settings && peek(r, 1)->kind == NAME) {
        const char *word = dtm_string_text(r->context, peek(r, 1)->text);
        const char *rate = dtm_arena_printf(r->arena, "%s/s", word);
        bool per_second = peek(r, 2)->kind == '/' && peek(r, 3)->kind == NAME &&
                          strcmp(dtm_string_text(r->context, peek(r, 3)->text), "s") == 0;
        dtm_unit unit;
        double factor;
        if (per_second && dtm_unit_find(rate, &unit, &factor)) apply_unit(r, &token, rate, factor, unit, 3);
        else if (dtm_unit_find(word, &unit, &factor)) apply_unit(r, &token, word, factor, unit, 1);
    }
    emit(r, token, NUMBER);
}

/* ---- the pass ---- */

static bool read_token(reader *r) {
    dtm_token token = *peek(r, 0);
    switch (token.kind) {
    case DTM_TOKEN_LINE: read_line_end(r); return true;
    case DTM_TOKEN_SEMICOLON: end_statement(r, token.span); return true;
    case DTM_TOKEN_OPEN: return read_open(r, token);
    case DTM_TOKEN_CLOSE: read_close(r, token); return true;
    case DTM_TOKEN_BAD: emit(r, token, DTM_YYerror); return true;
    case NAME: read_name(r, token); return true;
    case NUMBER: read_number(r, token); return true;
    case ')': case ']': read_closing_bracket(r, token); return true;
    case '(': case '[':
        emit(r, token, token.kind);
        return push(r, token.kind, token.span, DTM_SECTION_ANY);
    }
    emit(r, token, token.kind);
    return true;
}

static bool begins_with_after(dtm_context *context, const dtm_tokens *raw) {
    size_t i = 0;
    while (raw->items[i].kind == DTM_TOKEN_LINE || raw->items[i].kind == DTM_TOKEN_SEMICOLON) i++;
    return raw->items[i].kind == NAME && strcmp(dtm_string_text(context, raw->items[i].text), "after") == 0;
}

bool dtm_tokens_read(dtm_context *context, uint32_t file, dtm_tokens *out) {
    dtm_arena *arena = dtm_context_arena(context);
    reader *r = dtm_arena_alloc(arena, sizeof *r);
    r->context = context;
    r->arena = arena;
    r->out = out;
    dtm_scan(context, file, &r->raw);
    out->errors = r->raw.errors;
    out->comments = r->raw.comments;
    out->n_comments = r->raw.n_comments;
    out->dump = r->dump = begins_with_after(context, &r->raw);
    for (; r->raw.items[r->at].kind != 0; r->at++)
        if (!read_token(r) || out->errors >= DTM_MAX_SYNTAX_ERRORS) return false;
    dtm_token end = r->raw.items[r->at];
    close_forgotten_blocks(r, end.span);
    emit(r, end, 0);
    return out->errors < DTM_MAX_SYNTAX_ERRORS;
}
