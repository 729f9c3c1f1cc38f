/* Flat texts of statements: see format.h. A statement with a block ends with its `{`. */
#include "frontend/format.h"

#include <string.h>

static void print_word(dtm_flat *flat, const char *word, dtm_name name) {
    dtm_flat_print(flat, "%s", word);
    if (!name.text) return;
    dtm_flat_print(flat, " ");
    dtm_flat_name(flat, name);
}

static void print_names(dtm_flat *flat, const dtm_names *names) {
    for (size_t i = 0; i < names->count; i++) {
        dtm_flat_comma(flat, i);
        dtm_flat_name(flat, names->items[i]);
    }
}

static void print_targets(dtm_flat *flat, const dtm_targets *targets, bool types) {
    for (size_t i = 0; i < targets->count; i++) {
        dtm_flat_comma(flat, i);
        dtm_flat_name(flat, targets->items[i].name);
        if (!types || !targets->items[i].type) continue;
        dtm_flat_print(flat, " : ");
        dtm_flat_type(flat, targets->items[i].type);
    }
}

static void print_value(dtm_flat *flat, const dtm_expr *value) {
    if (!value) return;
    dtm_flat_print(flat, " = ");
    dtm_flat_expr(flat, value);
}

static void print_suffix(dtm_flat *flat, const dtm_suffix *suffix) {
    if (suffix->named) {
        dtm_flat_print(flat, " named ");
        dtm_flat_string(flat, suffix->named);
    }
    for (size_t i = 0; i < suffix->n_at; i++) {
        dtm_flat_print(flat, " at ");
        dtm_flat_expr(flat, suffix->at[i]);
    }
    if (suffix->line) {
        dtm_flat_print(flat, " @ ");
        if (suffix->file) {
            dtm_flat_string(flat, suffix->file);
            dtm_flat_print(flat, ":");
        }
        dtm_flat_print(flat, "%u", suffix->line);
    }
    if (suffix->why) {
        dtm_flat_print(flat, " why ");
        dtm_flat_string(flat, suffix->why);
    }
}

/* ---- declarations of tensors ---- */

static void pad(dtm_flat *flat, size_t from, size_t width) {
    while (flat->text.length < from + width) dtm_flat_print(flat, " ");
}

void dtm_weight_widths(dtm_context *context, const dtm_statement *weight, size_t *name_width, size_t *type_width) {
    dtm_flat flat;
    dtm_flat_begin(&flat, context);
    print_targets(&flat, &weight->targets, false);
    *name_width = flat.text.length;
    dtm_flat_begin(&flat, context);
    dtm_flat_type(&flat, weight->targets.items[0].type);
    *type_width = flat.text.length;
}

static void print_from(dtm_flat *flat, const dtm_statement *weight) {
    if (!weight->text) return;
    dtm_flat_print(flat, " ");
    dtm_flat_break(flat);
    dtm_flat_print(flat, "from ");
    dtm_flat_string(flat, weight->text);
    if (!weight->stored) return;
    dtm_flat_print(flat, " as ");
    flat->tight = true;
    dtm_flat_expr(flat, weight->stored);
    flat->tight = false;
}

/* `input`, `weight`, `state`: one type for all names */
static void print_declared(dtm_flat *flat, const char *word, const dtm_statement *s, size_t name_width,
                           size_t type_width) {
    dtm_flat_print(flat, "%s ", word);
    size_t from = flat->text.length;
    print_targets(flat, &s->targets, false);
    pad(flat, from, name_width);
    dtm_flat_print(flat, " : ");
    from = flat->text.length;
    dtm_flat_type(flat, s->targets.items[0].type);
    if (s->value) pad(flat, from, type_width);
    print_value(flat, s->value);
    const struct {
        bool set;
        const char *word;
    } marks[] = {{s->no_decay, "no decay"}, {s->frozen, "frozen"}, {s->exact, "exact"}};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        if (!marks[i].set) continue;
        dtm_flat_comma(flat, 1);
        dtm_flat_print(flat, "%s", marks[i].word);
    }
    print_from(flat, s);
}

/* ---- rules of parallel ---- */

static void print_splits(dtm_flat *flat, const dtm_statement *s) {
    dtm_flat_name(flat, s->name);
    dtm_flat_print(flat, " splits ");
    print_names(flat, &s->names);
    if (s->by_cost) dtm_flat_print(flat, " by cost");
    if (s->using.text) print_word(flat, " using", s->using);
    if (s->zigzag) dtm_flat_print(flat, ", zigzag");
    if (!s->bindings.count) return;
    dtm_flat_print(flat, " with ");
    dtm_flat_bindings(flat, &s->bindings);
}

static void print_expect(dtm_flat *flat, const dtm_statement *s) {
    print_word(flat, "expect", s->name);
    dtm_flat_open(flat, " { ");
    for (size_t i = 0; i < s->expectations.count; i++) {
        const dtm_expectation *expectation = &s->expectations.items[i];
        dtm_flat_comma(flat, i);
        dtm_flat_name(flat, expectation->what);
        if (expectation->axes.count) dtm_flat_print(flat, " on ");
        dtm_flat_axes(flat, &expectation->axes);
        dtm_flat_print(flat, expectation->at_most ? " <= " : " = ");
        dtm_flat_expr(flat, expectation->value);
    }
    dtm_flat_close(flat, s->expectations.count ? " }" : "}");
}

static void print_rule(dtm_flat *flat, const dtm_statement *s) {
    const char *word = dtm_statement_kind_text(s->kind);
    if (s->kind == DTM_STATEMENT_SPLITS) print_splits(flat, s);
    if (s->kind == DTM_STATEMENT_EXPECT) print_expect(flat, s);
    if (s->kind == DTM_STATEMENT_KEEP) {
        print_word(flat, word, s->name);
        dtm_flat_print(flat, " as ");
        dtm_flat_type(flat, s->layout);
    }
    if (s->kind != DTM_STATEMENT_MICROBATCHES && s->kind != DTM_STATEMENT_ZERO && s->kind != DTM_STATEMENT_RECOMPUTE)
        return;
    dtm_flat_print(flat, "%s ", word);
    dtm_flat_expr(flat, s->value);
    if (!s->names.count) return;
    dtm_flat_print(flat, s->kind == DTM_STATEMENT_ZERO ? " on " : " storing ");
    print_names(flat, &s->names);
}

/* ---- all statements ---- */

static void print_mesh(dtm_flat *flat, const dtm_statement *s) {
    dtm_flat_open(flat, "mesh { ");
    dtm_flat_bindings(flat, &s->bindings);
    dtm_flat_close(flat, s->bindings.count ? " }" : "}");
}

static void print_def(dtm_flat *flat, const dtm_statement *s) {
    print_word(flat, "def", s->name);
    dtm_flat_open(flat, "(");
    print_names(flat, &s->names);
    dtm_flat_close(flat, ")");
}

/* Which rank or stage a model or region of a dump is of. */
static void print_of(dtm_flat *flat, const dtm_statement *s) {
    if (!s->bindings.count) return;
    dtm_flat_print(flat, " ");
    dtm_flat_bindings(flat, &s->bindings);
}

static void print_declaration(dtm_flat *flat, const dtm_statement *s) {
    const char *word = dtm_statement_kind_text(s->kind);
    switch (s->kind) {
    case DTM_STATEMENT_USE:
        dtm_flat_print(flat, "use ");
        dtm_flat_string(flat, s->text);
        break;
    case DTM_STATEMENT_DIM:
    case DTM_STATEMENT_CONST:
        dtm_flat_print(flat, "%s ", word);
        dtm_flat_bindings(flat, &s->bindings);
        break;
    case DTM_STATEMENT_MESH: print_mesh(flat, s); break;
    case DTM_STATEMENT_DEF: print_def(flat, s); break;
    default:
        print_word(flat, word, s->name);
        print_of(flat, s);
        break;
    }
}

static void print_model_statement(dtm_flat *flat, const dtm_statement *s, size_t name_width, size_t type_width) {
    const char *word = dtm_statement_kind_text(s->kind);
    switch (s->kind) {
    case DTM_STATEMENT_INPUT:
    case DTM_STATEMENT_WEIGHT:
    case DTM_STATEMENT_STATE: print_declared(flat, word, s, name_width, type_width); break;
    case DTM_STATEMENT_REPORT:
    case DTM_STATEMENT_OUTPUT:
        dtm_flat_print(flat, "%s ", word);
        /* fall through */
    case DTM_STATEMENT_LOSS:
    case DTM_STATEMENT_ASSIGN:
        print_targets(flat, &s->targets, true);
        print_value(flat, s->value);
        break;
    case DTM_STATEMENT_CALL: dtm_flat_expr(flat, s->value); break;
    case DTM_STATEMENT_REPEAT:
    case DTM_STATEMENT_MICROBATCH:
        print_word(flat, word, s->name);
        print_value(flat, s->value);
        if (s->first) {
            dtm_flat_print(flat, " from ");
            dtm_flat_expr(flat, s->first);
        }
        if (s->reversed) dtm_flat_print(flat, " reversed");
        if (s->bindings.count) {
            dtm_flat_print(flat, ", ");
            dtm_flat_bindings(flat, &s->bindings);
        }
        break;
    case DTM_STATEMENT_RETURN:
        dtm_flat_print(flat, "return ");
        dtm_flat_expr(flat, s->value);
        break;
    default:
        dtm_flat_name(flat, s->name);
        print_of(flat, s);
        break;
    }
}

void dtm_flat_statement(dtm_flat *flat, const dtm_statement *s, size_t name_width, size_t type_width) {
    if (s->kind <= DTM_STATEMENT_GENERATE) print_declaration(flat, s);
    else if (s->kind < DTM_STATEMENT_SETTING) print_model_statement(flat, s, name_width, type_width);
    else if (s->kind > DTM_STATEMENT_SETTING) print_rule(flat, s);
    else {
        print_word(flat, "", (dtm_name){0});
        dtm_flat_name(flat, s->name);
        dtm_flat_print(flat, " ");
        dtm_flat_expr(flat, s->value);
    }
    print_suffix(flat, &s->suffix);
    if (s->block) dtm_flat_print(flat, " {");
}
