/* The tokens of one file, all read before parsing: what the scanner found, less comments and the ends of lines that end
 * nothing, with the words told apart that are keywords only where they stand. So the grammar needs no reserved words
 * and no rules about lines. Tokens live in the context's arena. */
#ifndef DTM_TOKENS_H
#define DTM_TOKENS_H

#include "frontend/ast.h"

typedef struct dtm_token {
    int kind; /* a token number of parser.y; DTM_TOKEN_LINE only before dtm_tokens_read is done */
    dtm_span span;
    dtm_string text; /* NAME, DOTTED, keywords: as written; STRING: unescaped; NUMBER: as written */
    double value;    /* NUMBER, suffix and unit applied */
    bool whole;
    uint64_t integer;
    dtm_unit unit;
    bool starts;          /* first of a statement */
    dtm_span unclosed;    /* END: the bracket that was still open there; else file 0 */
} dtm_token;

/* After so many errors in a file the rest is not read. */
enum { DTM_MAX_SYNTAX_ERRORS = 20 };

/* Raw tokens that tokens.c does away with. */
enum { DTM_TOKEN_LINE = 100000, DTM_TOKEN_COMMENT, DTM_TOKEN_SEMICOLON, DTM_TOKEN_OPEN, DTM_TOKEN_CLOSE, DTM_TOKEN_BAD };

typedef struct dtm_tokens {
    dtm_token *items; /* the last is the end of the file, kind 0 */
    size_t count, capacity;
    dtm_comment *comments;
    size_t n_comments, cap_comments;
    bool dump;     /* begins with `after` */
    size_t errors; /* reported so far */
} dtm_tokens;

/* scanner.l: the raw tokens, with ends of lines. */
void dtm_scan(dtm_context *context, uint32_t file, dtm_tokens *out);
/* tokens.c: the tokens as the grammar wants them. false: nothing can be parsed (reported). */
bool dtm_tokens_read(dtm_context *context, uint32_t file, dtm_tokens *out);
/* words.c: how many base units a unit is ("GB/s"); false: unknown. */
bool dtm_unit_find(const char *text, dtm_unit *unit, double *factor);

#endif
