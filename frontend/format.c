/* `dtmc fmt`: statements to lines, with the comments of the source between and behind them.
 *
 * Comments are kept by position: those before a statement get lines of their own before it; those within it, and the one
 * behind it on its last line, follow it. Comments behind consecutive lines stay in their column if they share one and
 * the code leaves them room; else they are aligned two spaces behind the longest line. */
#include "frontend/format.h"

#include <string.h>

typedef struct out_line {
    dtm_line code;
    const char *comment; /* behind the code, or NULL */
    size_t column;       /* of the comment in the source, from 0; SIZE_MAX if it has to be placed anew */
} out_line;

typedef struct printer {
    dtm_context *context;
    dtm_arena *arena;
    const dtm_ast *ast;
    const char *source;
    size_t next_comment; /* the first not yet printed */
    uint32_t done;       /* where in the source the last thing printed ended */
    size_t width;
    out_line *lines;
    size_t n_lines, cap_lines;
} printer;

/* ---- lines ---- */

static void add(printer *p, const char *text, size_t indent) {
    DTM_PUSH(p->arena, p->lines, p->n_lines, p->cap_lines, ((out_line){{text, indent}, NULL, SIZE_MAX}));
}

/* Whether an empty line stands in the source between the last thing printed and this place. */
static bool blank_before(const printer *p, uint32_t place) {
    int line_ends = 0;
    for (uint32_t i = p->done; i < place; i++) line_ends += p->source[i] == '\n';
    return line_ends > 1;
}

static void add_blank(printer *p, uint32_t place, bool first) {
    if (!first && blank_before(p, place)) add(p, "", 0);
}

/* ---- comments ---- */

static const dtm_comment *comment_before(const printer *p, uint32_t end) {
    if (p->next_comment == p->ast->n_comments) return NULL;
    const dtm_comment *comment = &p->ast->comments[p->next_comment];
    return comment->span.begin < end ? comment : NULL;
}

static const char *comment_text(const printer *p, const dtm_comment *comment) {
    return dtm_arena_printf(p->arena, "%.*s", (int)(comment->span.end - comment->span.begin),
                            p->source + comment->span.begin);
}

/* Comments with lines of their own, up to a place. */
static void add_comments(printer *p, uint32_t end, size_t indent, bool first) {
    for (const dtm_comment *comment; (comment = comment_before(p, end)); first = false) {
        add_blank(p, comment->span.begin, first);
        add(p, comment_text(p, comment), indent);
        p->done = comment->span.end;
        p->next_comment++;
    }
}

static uint32_t line_end(const printer *p, uint32_t place) {
    const char *newline = strchr(p->source + place, '\n');
    return newline ? (uint32_t)(newline - p->source) : place + (uint32_t)strlen(p->source + place);
}

/* Hangs the comments up to `end` behind the last line; `inside` of them began within the statement. */
static void hang_comments(printer *p, uint32_t inside, uint32_t end) {
    out_line *line = &p->lines[p->n_lines - 1];
    size_t count = 0;
    for (const dtm_comment *comment; (comment = comment_before(p, end)); p->next_comment++, count++) {
        const char *text = comment_text(p, comment);
        uint32_t row, column;
        dtm_source_position(p->context, p->ast->file, comment->span.begin, &row, &column);
        line->column = count || comment->span.begin < inside ? SIZE_MAX : column - 1;
        line->comment = line->comment ? dtm_arena_printf(p->arena, "%s;%s", line->comment, text + 1) : text;
        if (comment->span.end > p->done) p->done = comment->span.end;
    }
}

/* ---- statements ---- */

/* Where a statement's own line ends: comments behind it belong to it only up to what follows. */
static uint32_t reach(const printer *p, uint32_t end, uint32_t limit) {
    uint32_t line = line_end(p, end);
    return line < limit ? line : limit;
}

static bool aligned_with_next(const printer *p, const dtm_statement *a, const dtm_statement *b) {
    if (a->kind != DTM_STATEMENT_WEIGHT || b->kind != DTM_STATEMENT_WEIGHT) return false;
    uint32_t line = line_end(p, a->span.end);
    for (uint32_t i = line + (p->source[line] == '\n'); i < b->span.begin; i++)
        if (p->source[i] == '\n' || p->source[i] == '#') return false;
    return true;
}

/* The columns of the run of weights that begins at item i, and where it ends. */
static size_t weight_run(printer *p, const dtm_ast_block *block, size_t i, size_t *name_width, size_t *type_width) {
    *name_width = *type_width = 0;
    for (; i < block->count && block->items[i]->kind == DTM_STATEMENT_WEIGHT; i++) {
        size_t name, type;
        dtm_weight_widths(p->context, block->items[i], &name, &type);
        if (name > *name_width) *name_width = name;
        if (type > *type_width) *type_width = type;
        if (i + 1 == block->count || !aligned_with_next(p, block->items[i], block->items[i + 1])) return i + 1;
    }
    return i;
}

static void add_flat(printer *p, const dtm_flat *flat, size_t indent) {
    dtm_lines lines = {0};
    dtm_flat_lay_out(flat, indent, p->width, &lines);
    for (size_t i = 0; i < lines.count; i++) add(p, lines.items[i].text, lines.items[i].indent);
}

/* A block on one line in the source stays so if it fits: train { steps 10; clip 1.0 } */
static bool add_on_one_line(printer *p, const dtm_statement *s, size_t indent) {
    const dtm_ast_block *block = s->block;
    for (uint32_t i = s->span.begin; i < s->span.end; i++)
        if (p->source[i] == '\n') return false;
    dtm_flat flat;
    dtm_flat_begin(&flat, p->context);
    dtm_flat_statement(&flat, s, 0, 0);
    for (size_t i = 0; i < block->count; i++) {
        if (block->items[i]->block) return false;
        dtm_flat_print(&flat, i ? "; " : " ");
        dtm_flat_statement(&flat, block->items[i], 0, 0);
    }
    dtm_flat_print(&flat, " }");
    if (indent + flat.text.length > p->width) return false;
    add(p, flat.text.data, indent);
    return true;
}

static void add_block(printer *p, const dtm_ast_block *block, size_t indent, uint32_t end);

static void add_statement(printer *p, const dtm_statement *s, size_t indent, size_t name_width, size_t type_width,
                          uint32_t limit) {
    if (s->block && add_on_one_line(p, s, indent)) {
        p->done = s->span.end;
        hang_comments(p, s->span.end, reach(p, s->span.end, limit));
        return;
    }
    dtm_flat flat;
    dtm_flat_begin(&flat, p->context);
    dtm_flat_statement(&flat, s, name_width, type_width);
    add_flat(p, &flat, indent);
    if (s->block) {
        const dtm_ast_block *block = s->block;
        uint32_t first = block->count ? block->items[0]->span.begin : block->span.end - 1;
        p->done = block->span.begin + 1;
        hang_comments(p, p->done, reach(p, p->done, first));
        add_block(p, block, indent + DTM_FORMAT_INDENT, block->span.end - 1);
        add(p, "}", indent);
    }
    p->done = s->span.end;
    hang_comments(p, s->span.end, reach(p, s->span.end, limit));
}

static void add_block(printer *p, const dtm_ast_block *block, size_t indent, uint32_t end) {
    size_t run_end = 0, name_width = 0, type_width = 0;
    for (size_t i = 0; i < block->count; i++) {
        const dtm_statement *s = block->items[i];
        size_t lines = p->n_lines;
        add_comments(p, s->span.begin, indent, i == 0);
        add_blank(p, s->span.begin, i == 0 && lines == p->n_lines);
        if (i >= run_end) run_end = weight_run(p, block, i, &name_width, &type_width);
        uint32_t limit = i + 1 < block->count ? block->items[i + 1]->span.begin : end;
        add_statement(p, s, indent, name_width, type_width, limit);
    }
    add_comments(p, end, indent, block->count == 0);
}

/* ---- the comments' columns, and the text ---- */

static size_t code_width(const out_line *line) { return line->code.indent + strlen(line->code.text); }

/* The column for the comments of lines [begin, end), all of which have one. */
static size_t comment_column(const printer *p, size_t begin, size_t end) {
    size_t widest = 0, column = p->lines[begin].column;
    for (size_t i = begin; i < end; i++) {
        size_t width = code_width(&p->lines[i]);
        if (width > widest) widest = width;
        if (p->lines[i].column != column) column = SIZE_MAX;
    }
    return column != SIZE_MAX && column > widest ? column : widest + 2;
}

static void print_lines(const printer *p, dtm_text *out) {
    size_t run_end = 0, column = 0;
    for (size_t i = 0; i < p->n_lines; i++) {
        const out_line *line = &p->lines[i];
        if (line->code.text[0]) dtm_text_printf(out, "%*s%s", (int)line->code.indent, "", line->code.text);
        if (line->comment) {
            if (i >= run_end) {
                for (run_end = i; run_end < p->n_lines && p->lines[run_end].comment; run_end++)
                    if (p->lines[run_end].code.indent != line->code.indent) break;
                column = comment_column(p, i, run_end);
            }
            dtm_text_printf(out, "%*s%s", (int)(column - code_width(line)), "", line->comment);
        }
        dtm_text_append(out, "\n", 1);
    }
}

void dtm_ast_format(dtm_context *context, const dtm_ast *ast, dtm_text *out) {
    printer p = {.context = context, .arena = dtm_context_arena(context), .ast = ast};
    size_t length;
    p.source = dtm_source_text(context, ast->file, &length);
    p.width = ast->after.text ? SIZE_MAX / 2 : DTM_FORMAT_WIDTH; /* a dump has one operator a line */
    if (ast->after.text) {
        add_comments(&p, ast->after.span.begin, 0, true);
        add(&p, dtm_arena_printf(p.arena, "after %s", dtm_string_text(context, ast->after.text)), 0);
        p.done = ast->after.span.end;
        hang_comments(&p, p.done, line_end(&p, p.done));
    }
    size_t lines = p.n_lines;
    add_block(&p, ast->block, 0, (uint32_t)length + 1);
    if (lines && lines < p.n_lines && p.lines[lines].code.text[0]) { /* one blank line after `after PASS` */
        add(&p, "", 0);
        memmove(p.lines + lines + 1, p.lines + lines, (p.n_lines - 1 - lines) * sizeof *p.lines);
        p.lines[lines] = (out_line){{"", 0}, NULL, SIZE_MAX};
    }
    print_lines(&p, out);
}
