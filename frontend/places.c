/* Statements in their places: see places.h. */
#include "frontend/places.h"

#include "frontend/tokens.h"
#include "frontend/words.h"

static dtm_section home_of(dtm_statement_kind kind) {
    if (kind >= DTM_STATEMENT_USE && kind <= DTM_STATEMENT_GENERATE) return DTM_SECTION_FILE;
    if (kind >= DTM_STATEMENT_INPUT && kind <= DTM_STATEMENT_REGION) return DTM_SECTION_BODY;
    if (kind == DTM_STATEMENT_GROUP) return DTM_SECTION_MACHINE;
    if (kind == DTM_STATEMENT_SETTING) return DTM_SECTION_SETTINGS;
    return DTM_SECTION_PARALLEL;
}

static dtm_section inside_of(dtm_statement_kind kind) {
    switch (kind) {
    case DTM_STATEMENT_MACHINE:
    case DTM_STATEMENT_GROUP: return DTM_SECTION_MACHINE;
    case DTM_STATEMENT_PARALLEL: return DTM_SECTION_PARALLEL;
    case DTM_STATEMENT_TRAIN:
    case DTM_STATEMENT_GENERATE: return DTM_SECTION_SETTINGS;
    default: return DTM_SECTION_BODY;
    }
}

/* false: it stands where it cannot, which has been said. */
static bool check_place(dtm_parser *parser, const dtm_statement *statement, dtm_section section, bool in_def,
                        bool said) {
    bool assigned = statement->kind == DTM_STATEMENT_ASSIGN && section == DTM_SECTION_MACHINE;
    if (assigned && (statement->targets.count > 1 || statement->targets.items[0].type))
        dtm_parser_error(parser, statement->span, 107, "a line of `machine` is NAME = VALUE or NAME { .. }");
    if (statement->kind == DTM_STATEMENT_RETURN && section == DTM_SECTION_BODY && !in_def)
        dtm_parser_error(parser, statement->keyword, 107, "`return` has no place here: it is the last line of a `def`");
    bool arena = statement->kind == DTM_STATEMENT_SETTING && section == DTM_SECTION_FILE; /* tokens.c: only in dumps */
    if (assigned || arena || home_of(statement->kind) == section) return true;
    if (said) return false;
    if (statement->kind == DTM_STATEMENT_ASSIGN && section == DTM_SECTION_SETTINGS) {
        dtm_parser_error(parser, statement->span, 101, "settings are written without `=`: `steps 200`");
        return false;
    }
    const char *what = statement->kind == DTM_STATEMENT_ASSIGN  ? "a value"
                       : statement->kind == DTM_STATEMENT_CALL  ? "a call"
                       : statement->kind == DTM_STATEMENT_GROUP ? "a block of this name"
                                                                : dtm_statement_kind_text(statement->kind);
    bool word = home_of(statement->kind) != DTM_SECTION_SETTINGS && what == dtm_statement_kind_text(statement->kind);
    const char *quote = word ? "`" : "";
    dtm_parser_error(parser, statement->keyword, 107, "%s%s%s has no place here: it stands %s", quote, what, quote,
                     dtm_section_text(home_of(statement->kind)));
    return false;
}

/* ---- what only dumps may have ---- */

static void only_dumps(dtm_parser *parser, dtm_span span, const char *what) {
    dtm_parser_error(parser, span, 106, "%s only in dumps, which begin with `after PASS`", what);
}

static void check_type(dtm_parser *parser, const dtm_type_expr *type) {
    if (!type) return;
    for (size_t i = 0; i < type->n_dims; i++) {
        const dtm_dim_use *dim = &type->dims[i];
        if (dim->whole) dtm_parser_error(parser, dim->span, 106, "`@-` stands only in `keep`");
        else if (dim->has_size || dim->axes.count || dim->order.text)
            only_dumps(parser, dim->span, "types bear sizes and layouts");
    }
    if (type->n_pending) only_dumps(parser, type->pending[0].reduction.span, "types bear pending reductions");
}

static void check_dump_only(dtm_parser *parser, const dtm_statement *statement) {
    if (parser->tokens->dump) return;
    if (statement->suffix.span.file)
        only_dumps(parser, statement->suffix.span, "`named`, `at`, `@` and `why` follow statements");
    if (statement->first) only_dumps(parser, statement->first->span, "a repeat counts `from` another number than 0");
    if (statement->kind == DTM_STATEMENT_MODEL && statement->bindings.count)
        only_dumps(parser, statement->bindings.items[0].name.span, "a model is that of some ranks");
    if (statement->reversed) only_dumps(parser, statement->keyword, "a repeat is `reversed`");
    switch (statement->kind) {
    case DTM_STATEMENT_STATE: only_dumps(parser, statement->keyword, "`state` stands"); break;
    case DTM_STATEMENT_REGION: only_dumps(parser, statement->keyword, "regions of this kind stand"); break;
    case DTM_STATEMENT_MICROBATCH:
        only_dumps(parser, statement->keyword, "`microbatch` regions stand");
        dtm_help(parser->context, "`microbatches M` in `parallel` accumulates gradients");
        break;
    case DTM_STATEMENT_CALL: only_dumps(parser, statement->keyword, "calls stand as statements"); break;
    default: break;
    }
    for (size_t i = 0; i < statement->targets.count; i++) {
        const dtm_target *target = &statement->targets.items[i];
        if (i == 0 || target->type != target[-1].type) check_type(parser, target->type);
    }
}

/* The last line of a def is its return, and only that. */
static void check_return(dtm_parser *parser, const dtm_statement *def) {
    const dtm_ast_block *block = def->block;
    for (size_t i = 0; i + 1 < block->count; i++)
        if (block->items[i]->kind == DTM_STATEMENT_RETURN) {
            dtm_parser_error(parser, block->items[i]->keyword, 220, "`return` must be the last line of its `def`");
            return;
        }
    const dtm_statement *last = block->count ? block->items[block->count - 1] : NULL;
    if (last && (last->kind == DTM_STATEMENT_RETURN || last->kind == DTM_STATEMENT_ERROR)) return;
    dtm_parser_error(parser, def->name.span, 220, "`%s` does not end with `return`",
                     dtm_string_text(parser->context, def->name.text));
}

static void check_block(dtm_parser *parser, const dtm_ast_block *block, dtm_section section, bool in_def) {
    dtm_section foreign = section; /* where the last misplaced statements belong: they often come in rows */
    for (size_t i = 0; i < block->count && !parser->gave_up; i++) {
        const dtm_statement *statement = block->items[i];
        if (statement->kind == DTM_STATEMENT_ERROR) continue;
        bool fits = check_place(parser, statement, section, in_def, home_of(statement->kind) == foreign);
        foreign = fits ? section : home_of(statement->kind);
        if (fits) check_dump_only(parser, statement);
        if (statement->kind == DTM_STATEMENT_DEF) check_return(parser, statement);
        if (statement->block)
            check_block(parser, statement->block, inside_of(statement->kind), statement->kind == DTM_STATEMENT_DEF);
    }
}

void dtm_places_check(dtm_parser *parser) { check_block(parser, parser->ast->block, DTM_SECTION_FILE, false); }
