/* Inside `dtmc fmt`: a statement is first written flat, with the places where a line may be broken, then laid out. */
#ifndef DTM_FORMAT_H
#define DTM_FORMAT_H

#include "frontend/ast.h"

enum { DTM_FORMAT_WIDTH = 120, DTM_FORMAT_INDENT = 4 };

/* A place in a flat text where a new line may begin. */
typedef struct dtm_break {
    size_t offset;
    uint32_t depth; /* of brackets around it; a line is broken where this is least */
    size_t open;    /* offset just inside the innermost bracket: the column where the new line begins */
} dtm_break;

typedef struct dtm_flat {
    dtm_context *context;
    dtm_text text;
    dtm_break *breaks;
    size_t n_breaks, cap_breaks;
    size_t open[DTM_AST_MAX_DEPTH + 4]; /* of the brackets that are open */
    uint32_t depth;
    bool tight; /* no spaces around operators: a stored layout, [H*K, D] */
} dtm_flat;

/* One line of the result. */
typedef struct dtm_line {
    const char *text; /* without indentation; "" for a blank line */
    size_t indent;
} dtm_line;

typedef struct dtm_lines {
    dtm_line *items;
    size_t count, capacity;
} dtm_lines;

void dtm_flat_begin(dtm_flat *flat, dtm_context *context);
void dtm_flat_print(dtm_flat *flat, const char *format, ...) DTM_PRINTF(2, 3);
/* Brackets, commas with their break, names. */
void dtm_flat_open(dtm_flat *flat, const char *bracket);
void dtm_flat_close(dtm_flat *flat, const char *bracket);
void dtm_flat_comma(dtm_flat *flat, size_t index);
void dtm_flat_break(dtm_flat *flat);
void dtm_flat_name(dtm_flat *flat, dtm_name name);
void dtm_flat_string(dtm_flat *flat, dtm_string string);
void dtm_flat_expr(dtm_flat *flat, const dtm_expr *expr);
void dtm_flat_type(dtm_flat *flat, const dtm_type_expr *type);
void dtm_flat_axes(dtm_flat *flat, const dtm_axes *axes);
void dtm_flat_bindings(dtm_flat *flat, const dtm_bindings *bindings);
/* A statement without its block; up to and with the `{` if it has one. For a weight, name_width and type_width pad its
 * columns. */
void dtm_flat_statement(dtm_flat *flat, const dtm_statement *statement, size_t name_width, size_t type_width);
/* How wide the columns of a weight are by themselves. */
void dtm_weight_widths(dtm_context *context, const dtm_statement *weight, size_t *name_width, size_t *type_width);

/* Appends the flat text as lines no wider than `width` where it can be broken so. */
void dtm_flat_lay_out(const dtm_flat *flat, size_t indent, size_t width, dtm_lines *lines);

#endif
