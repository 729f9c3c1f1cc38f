/* check: files, declarations, and the order in which a module is made of them. */
#include "frontend/checker.h"

#include "ir/timeline.h"

#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>

const char *dtm_checker_text(const dtm_checker *c, dtm_string s) {
    return dtm_string_text(c->context, s);
}

/* ---- files ---- */

char *dtm_read_stream(FILE *file, size_t *length) {
    size_t capacity = 65536, got;
    char *text = malloc(capacity);
    *length = 0;
    while (text && (got = fread(text + *length, 1, capacity - *length, file)) > 0) {
        *length += got;
        if (*length < capacity) continue;
        char *grown = realloc(text, capacity *= 2);
        if (!grown) free(text);
        text = grown;
    }
    if (text && ferror(file)) {
        free(text);
        return NULL;
    }
    return text;
}

static char *read_text(const char *path, size_t *length) {
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    char *text = file ? dtm_read_stream(file, length) : NULL;
    int error = errno;
    if (file && file != stdin) fclose(file);
    errno = error;
    return text;
}

static char *read_root(const dtm_checker *c, const char *path, size_t *length) {
    if (!c->options->text) return read_text(path, length);
    *length = c->options->length;
    char *copy = malloc(*length + 1);
    if (copy) memcpy(copy, c->options->text, *length);
    return copy;
}

static bool read_file(dtm_checker *c, const char *path, dtm_string name, dtm_span from);

static const char *beside(dtm_checker *c, const char *path, const char *other) {
    if (*other == '/') return other;
    char *copy = dtm_arena_strdup(c->arena, path);
    const char *folder = dirname(copy);
    return strcmp(folder, ".") == 0 ? other : dtm_arena_printf(c->arena, "%s/%s", folder, other);
}

static bool read_used(dtm_checker *c, const char *path, const dtm_ast *ast) {
    bool good = true;
    for (size_t i = 0; i < ast->block->count; i++) {
        const dtm_statement *s = ast->block->items[i];
        if (s->kind != DTM_STATEMENT_USE) continue;
        const char *other = beside(c, path, dtm_checker_text(c, s->text));
        good &= read_file(c, other, dtm_string_of(c->context, other), s->text_span);
    }
    return good;
}

/* Reads a file once, those it uses before it. */
static bool read_file(dtm_checker *c, const char *path, dtm_string name, dtm_span from) {
    for (size_t i = 0; i < c->n_files; i++)
        if (strcmp(c->files[i].path, path) == 0) return true;
    size_t length = 0;
    char *text = c->n_files ? read_text(path, &length) : read_root(c, path, &length);
    int error = errno;
    if (!text) {
        dtm_error(c->context, from, 205, "cannot read %s: %s", path, strerror(error));
        if (from.file) dtm_help(c->context, "the path is relative to the folder of %s", dtm_source_name(c->context, from.file));
        return false;
    }
    if (memchr(text, 0, length)) {
        dtm_error(c->context, from, 205, "cannot read %s: it is no text", path);
        free(text);
        return false;
    }
    uint32_t source = dtm_source_add(c->context, strcmp(path, "-") ? path : "<stdin>", text, length);
    bool orders = dtm_timeline_is_text(text, length);
    free(text);
    if (orders) {
        dtm_error(c->context, from, 901, "%s holds the orders of a timeline, and no program", path);
        dtm_help(c->context, "`dtmc timeline` draws it; the order of a program is edited in the dump that `dtmc ir FILE --after schedule` prints");
        return false;
    }
    dtm_checked_file entry = {path, name, NULL};
    size_t index = c->n_files;
    DTM_PUSH(c->arena, c->files, c->n_files, c->cap_files, entry);
    const dtm_ast *ast = dtm_parse(c->context, source);
    c->files[index].ast = ast;
    return ast && read_used(c, path, ast);
}

dtm_place dtm_checker_place(const dtm_checker *c, dtm_span span) {
    dtm_place place = {0, 0};
    uint32_t column;
    if (!span.file) return place;
    dtm_source_position(c->context, span.file, span.begin, &place.line, &column);
    for (size_t i = 0; i < c->n_files; i++)
        if (c->files[i].ast && c->files[i].ast->file == span.file) place.file = c->files[i].name;
    return place;
}

/* ---- names ---- */

size_t dtm_checker_words(dtm_checker *c, const char *list, dtm_string *out) {
    size_t n = 0;
    for (const char *p = list; *p && n < DTM_MAX_NUMBERS; p += strcspn(p, " "), p += *p == ' ')
        out[n++] = dtm_string_intern(c->context, p, strcspn(p, " ="));
    return n;
}

enum { MOST_LISTED = 16 }; /* names that a help line has room for */

/* A, B and C. */
static const char *listed(dtm_checker *c, const dtm_string *names, size_t n) {
    dtm_text list = {.arena = c->arena};
    for (size_t i = 0; i < n; i++)
        dtm_text_printf(&list, "%s%s", !i ? "" : i + 1 < n ? ", " : " and ", dtm_checker_text(c, names[i]));
    return list.data;
}

dtm_dim dtm_checker_dim(dtm_checker *c, dtm_name name) { return dtm_checker_dim_or(c, name, ""); }

dtm_dim dtm_checker_dim_or(dtm_checker *c, dtm_name name, const char *words) {
    dtm_dim dim = dtm_dim_find(c->module, name.text);
    if (dim) return dim;
    dtm_string names[256];
    size_t n = dtm_checker_words(c, words, names);
    for (dtm_dim d = 1; d < c->module->n_dims && n < 256; d++) names[n++] = c->module->dims[d].name;
    dtm_error(c->context, name.span, 201, "there is no dimension `%s`", dtm_checker_text(c, name.text));
    dtm_string nearest = dtm_string_nearest(c->context, dtm_checker_text(c, name.text), names, n);
    if (nearest)
        dtm_help(c->context, "did you mean `%s`?", dtm_checker_text(c, nearest));
    else if (!*words && n && n <= MOST_LISTED)
        dtm_help(c->context, "there %s %s; or declare it: dim %s = ..", n == 1 ? "is" : "are", listed(c, names, n), dtm_checker_text(c, name.text));
    else dtm_help(c->context, "declare it: dim %s = ..", dtm_checker_text(c, name.text));
    return 0;
}

uint8_t dtm_checker_axis(dtm_checker *c, dtm_name name) {
    uint8_t axis = dtm_axis_find(c->module, name.text);
    if (axis != DTM_NO_AXIS) return axis;
    dtm_string names[DTM_MAX_AXES];
    const dtm_mesh *mesh = &c->module->settings.mesh;
    for (int a = 0; a < mesh->count; a++) names[a] = mesh->axes[a].name;
    dtm_error(c->context, name.span, 202, "the mesh has no axis `%s`", dtm_checker_text(c, name.text));
    dtm_string nearest = dtm_string_nearest(c->context, dtm_checker_text(c, name.text), names, mesh->count);
    if (nearest)
        dtm_help(c->context, "did you mean `%s`?", dtm_checker_text(c, nearest));
    else if (mesh->count)
        dtm_help(c->context, "there %s %s; or add it: mesh { .., %s = N }", mesh->count == 1 ? "is" : "are", listed(c, names, mesh->count),
                 dtm_checker_text(c, name.text));
    else dtm_help(c->context, "add it: mesh { %s = N }", dtm_checker_text(c, name.text));
    return DTM_NO_AXIS;
}

bool dtm_checker_refuse(dtm_checker *c, dtm_span span, const char *what, const char *help) {
    dtm_error(c->context, span, 601, "%s: this version reads it, but does not execute it", what);
    if (help) dtm_help(c->context, "%s", help);
    return false;
}

/* ---- dims and consts ---- */

/* -D NAME=VALUE: the value for that name, if there is one. */
static bool overridden(dtm_checker *c, const dtm_binding *b, double *value, bool *bad) {
    const char *text = dtm_checker_text(c, b->name.text);
    size_t length = strlen(text);
    bool found = false;
    for (size_t i = 0; i < c->options->n_defines; i++) {
        const char *define = c->options->defines[i];
        if (strncmp(define, text, length) != 0 || define[length] != '=') continue;
        if (found) {
            dtm_error(c->context, (dtm_span){0, 0, 0}, 207, "-D %s: `%s` is set twice on the command line", define, text);
            dtm_help(c->context, "remove one of the two");
            *bad = true;
        }
        char *end;
        *value = strtod(define + length + 1, &end);
        if (*end == 'k')
            *value *= 1024, end++;
        else if (*end == 'M')
            *value *= 1048576, end++;
        else if (*end == 'G')
            *value *= 1073741824, end++;
        c->define_used[i] = found = true;
        dtm_source_override(c->context, b->name.span, dtm_arena_printf(c->arena, "-D %s", define));
        if (*end || end == define + length + 1) {
            dtm_error(c->context, (dtm_span){0, 0, 0}, 206, "-D %s: `%s` is no number", define, define + length + 1);
            *bad = true;
        }
    }
    return found;
}

static bool is_reserved(const char *name) {
    static const char *const words[] = {"inf", "none", "f32", "f16", "bf16", "i32", "u8", "bool", "f8e4m3", "f8e5m2"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i], name) == 0) return true;
    return false;
}

static bool known_name(dtm_checker *c, const dtm_binding *b) {
    dtm_span earlier = {0, 0, 0};
    dtm_dim dim = dtm_dim_find(c->module, b->name.text);
    if (dim) earlier = c->module->dims[dim].span;
    for (size_t i = 0; i < c->n_consts; i++)
        if (c->consts[i].name == b->name.text) earlier = c->consts[i].span;
    if (is_reserved(dtm_checker_text(c, b->name.text))) {
        dtm_error(c->context, b->name.span, 207, "`%s` is a word of the language and cannot be a name",
                  dtm_checker_text(c, b->name.text));
        return true;
    }
    if (!earlier.file) return false;
    dtm_error(c->context, b->name.span, 207, "`%s` is declared twice", dtm_checker_text(c, b->name.text));
    dtm_note(c->context, earlier, "first here");
    dtm_help(c->context, "to use another size, override it on the command line: -D %s=..",
             dtm_checker_text(c, b->name.text));
    return true;
}

static bool declare_dim(dtm_checker *c, const dtm_binding *b) {
    double given;
    bool bad = false;
    int64_t size;
    const char *name = dtm_checker_text(c, b->name.text);
    if (known_name(c, b)) return false;
    if (overridden(c, b, &given, &bad)) {
        if (!bad && (given < 1 || given != (double)(int64_t)given)) {
            dtm_text text = {.arena = c->arena};
            dtm_text_number(&text, given);
            dtm_error(c->context, b->name.span, 310, "-D %s=%s: the size of a dim is a whole number of at least 1", name,
                      text.data);
            return false;
        }
        size = (int64_t)given;
    } else if (!dtm_checker_integer(c, b->value, 1, dtm_arena_printf(c->arena, "dim %s", name), &size)) {
        return false;
    }
    dtm_dim_add(c->module, b->name.text, size, b->name.span);
    return !bad;
}

static bool declare_const(dtm_checker *c, const dtm_binding *b) {
    dtm_const made = {b->name.text, 0, b->name.span};
    bool bad = false;
    if (known_name(c, b)) return false;
    if (!overridden(c, b, &made.value, &bad) && !dtm_checker_number(c, b->value, &made.value)) return false;
    DTM_PUSH(c->arena, c->consts, c->n_consts, c->cap_consts, made);
    return !bad;
}

/* ---- sections ---- */

static bool add_definition(dtm_checker *c, const dtm_statement *s) {
    for (size_t i = 0; i < c->n_defs; i++)
        if (c->defs[i]->name.text == s->name.text) {
            dtm_error(c->context, s->name.span, 207, "`%s` is defined twice", dtm_checker_text(c, s->name.text));
            dtm_note(c->context, c->defs[i]->name.span, "first here");
            return false;
        }
    DTM_PUSH(c->arena, c->defs, c->n_defs, c->cap_defs, s);
    return true;
}

/* A section of a later file replaces that of a file it uses; two in one file are an error, but for `parallel`. */
static bool set_section(dtm_checker *c, const dtm_statement **section, const dtm_statement *s) {
    if (*section && (*section)->span.file == s->span.file) {
        dtm_error(c->context, s->keyword, 207, "a second `%s` in one file", dtm_statement_kind_text(s->kind));
        dtm_note(c->context, (*section)->keyword, "the first is here");
        return false;
    }
    *section = s;
    return true;
}

static bool set_model(dtm_checker *c, const dtm_statement *s) {
    if (s->bindings.count && (!c->model || c->n_rank_models)) {
        DTM_PUSH(c->arena, c->rank_models, c->n_rank_models, c->cap_rank_models, s);
        c->model = s;
        return true;
    }
    if (c->model) {
        dtm_error(c->context, s->keyword, 208, "a second model; a program has one");
        dtm_note(c->context, c->model->keyword, "the first is here");
        return false;
    }
    c->model = s;
    return true;
}

static void add_parallel(dtm_checker *c, const dtm_statement *s) {
    if (c->parallel_file != s->span.file) c->n_parallels = 0;
    c->parallel_file = s->span.file;
    DTM_PUSH(c->arena, c->parallels, c->n_parallels, c->cap_parallels, s);
}

/* Of a dump: `source HASH` of the program it was made of; `arena BYTES` after memory. */
static bool header_line(dtm_checker *c, const dtm_statement *s) {
    if (s->value->kind != DTM_EXPR_NUMBER || !s->value->whole) {
        dtm_error(c->context, s->value->span, 310, "a whole number is wanted here");
        return false;
    }
    if (strcmp(dtm_checker_text(c, s->name.text), "source") == 0) c->module->source_hash = s->value->integer;
    else c->module->arena_bytes = (int64_t)s->value->integer;
    return true;
}

static bool declare(dtm_checker *c, const dtm_statement *s) {
    bool good = true;
    switch (s->kind) {
    case DTM_STATEMENT_USE:
        return true;
    case DTM_STATEMENT_DIM:
        for (size_t i = 0; i < s->bindings.count; i++) good &= declare_dim(c, &s->bindings.items[i]);
        return good;
    case DTM_STATEMENT_CONST:
        for (size_t i = 0; i < s->bindings.count; i++) good &= declare_const(c, &s->bindings.items[i]);
        return good;
    case DTM_STATEMENT_DEF:
        return add_definition(c, s);
    case DTM_STATEMENT_MODEL:
        return set_model(c, s);
    case DTM_STATEMENT_MESH:
        return set_section(c, &c->mesh, s);
    case DTM_STATEMENT_MACHINE:
        return set_section(c, &c->machine, s);
    case DTM_STATEMENT_TRAIN:
        return set_section(c, &c->train, s);
    case DTM_STATEMENT_PARALLEL:
        add_parallel(c, s);
        return true;
    case DTM_STATEMENT_GENERATE:
        return dtm_checker_refuse(c, s->keyword, "`generate`", "remove the section: this version trains");
    case DTM_STATEMENT_SETTING:
        return header_line(c, s);
    default:
        return false; /* the parser said so */
    }
}

/* Files in the order of their ends: what a file uses comes before it. */
static bool declare_file(dtm_checker *c, size_t index, bool *done) {
    if (done[index] || !c->files[index].ast) return true;
    done[index] = true;
    bool good = true;
    const dtm_ast *ast = c->files[index].ast;
    for (size_t i = 0; i < ast->block->count; i++) {
        if (ast->block->items[i]->kind != DTM_STATEMENT_USE) continue;
        const char *other = beside(c, c->files[index].path, dtm_checker_text(c, ast->block->items[i]->text));
        for (size_t f = 0; f < c->n_files; f++)
            if (strcmp(c->files[f].path, other) == 0) good &= declare_file(c, f, done);
    }
    for (size_t i = 0; i < ast->block->count; i++) good &= declare(c, ast->block->items[i]);
    return good;
}

static bool check_defines(dtm_checker *c) {
    bool good = true;
    for (size_t i = 0; i < c->options->n_defines; i++) {
        if (c->define_used[i]) continue;
        const char *define = c->options->defines[i];
        char *name = dtm_arena_strdup(c->arena, define);
        name[strcspn(name, "=")] = 0;
        dtm_string names[512];
        size_t n = 0;
        for (dtm_dim d = 1; d < c->module->n_dims && n < 256; d++) names[n++] = c->module->dims[d].name;
        for (size_t k = 0; k < c->n_consts && n < 512; k++) names[n++] = c->consts[k].name;
        dtm_error(c->context, (dtm_span){0, 0, 0}, 206,
                  strchr(define, '=') ? "-D %s: the program has no dim and no const of that name"
                                      : "-D %s: a value is missing: -D NAME=VALUE",
                  name);
        dtm_string nearest = dtm_string_nearest(c->context, name, names, n);
        if (nearest) dtm_help(c->context, "did you mean `%s`?", dtm_checker_text(c, nearest));
        else if (n && n <= MOST_LISTED) dtm_help(c->context, "there %s %s", n == 1 ? "is" : "are", listed(c, names, n));
        good = false;
    }
    return good;
}

static bool check_program(dtm_checker *c) {
    if (c->dump && c->options->n_defines) {
        const char *define = c->options->defines[0], *after = dtm_checker_text(c, c->module->after);
        dtm_error(c->context, (dtm_span){0, 0, 0}, 206, "-D %s: the program is a dump, made for the sizes that it names", define);
        dtm_help(c->context, "give -D where the dump is made: dtmc ir FILE -D %s --after %s", define, after);
        return false;
    }
    bool *done = dtm_arena_alloc(c->arena, c->n_files * sizeof *done);
    bool good = declare_file(c, 0, done);
    good &= check_defines(c);
    if (dtm_error_count(c->context)) return false;
    if (!c->model) {
        dtm_error(c->context, (dtm_span){c->files[0].ast->file, 0, 0}, 208, "%s has no model",
                  dtm_source_name(c->context, c->files[0].ast->file));
        dtm_help(c->context, "a program has one `model NAME { .. }`, here or in a file it uses");
        return false;
    }
    c->module->name = c->model->name.text;
    good = good && dtm_checker_mesh(c);
    bool settings = good && dtm_checker_settings(c);
    if (!settings && c->n_rank_models) return false; /* whose ranks these are, only the pipeline says */
    return good && dtm_checker_model(c) && settings && !dtm_error_count(c->context);
}

/* FNV-1a over the text of all files and what the command line overrides: which program this is. */
static uint64_t hash_text(uint64_t hash, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    return (hash ^ 0xff) * 1099511628211u;
}

static uint64_t hash_program(const dtm_checker *c) {
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < c->n_files; i++) {
        size_t length;
        const char *text = dtm_source_text(c->context, c->files[i].ast->file, &length);
        hash = hash_text(hash, text, length);
    }
    for (size_t i = 0; i < c->options->n_defines; i++)
        hash = hash_text(hash, c->options->defines[i], strlen(c->options->defines[i]));
    for (size_t i = 0; i < c->options->n_sets; i++)
        hash = hash_text(hash, c->options->sets[i], strlen(c->options->sets[i]));
    return c->options->mesh ? hash_text(hash, c->options->mesh, strlen(c->options->mesh)) : hash;
}

dtm_module *dtm_check(dtm_context *context, const char *path, const dtm_check_options *options) {
    dtm_checker c = {.context = context, .arena = dtm_context_arena(context), .options = options};
    c.define_used = dtm_arena_alloc(c.arena, (options->n_defines + 1) * sizeof *c.define_used);
    if (!read_file(&c, path, 0, (dtm_span){0, 0, 0}) || dtm_error_count(context)) return NULL;
    c.module = dtm_module_create(context);
    c.module->after = c.files[0].ast->after.text;
    c.dump = c.module->after != 0;
    if (!c.dump) c.module->source_hash = hash_program(&c);
    if (check_program(&c)) return c.module;
    dtm_module_destroy(c.module);
    return NULL;
}
