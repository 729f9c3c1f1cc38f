/* Arenas, interned strings, source map and diagnostics: see base.h. */
#include "ir/base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- arenas: a chain of blocks, the newest first ---- */

typedef struct block {
    struct block *next;
    size_t used, size;
    /* data follows, 16-byte aligned */
} block;

#define BLOCK_HEADER ((sizeof(block) + 15) & ~(size_t)15)

struct dtm_arena {
    block *head;
    size_t bytes;
};

static _Noreturn void out_of_memory(size_t bytes) {
    fprintf(stderr, "dtmc: out of memory (%zu bytes)\n", bytes);
    exit(1);
}

dtm_arena *dtm_arena_create(void) {
    dtm_arena *arena = calloc(1, sizeof *arena);
    if (!arena) out_of_memory(sizeof *arena);
    return arena;
}

void dtm_arena_destroy(dtm_arena *arena) {
    if (!arena) return;
    for (block *b = arena->head, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(arena);
}

enum { BLOCK_BYTES = 65536 };

/* What is larger than a block has one of its own, behind the first, which others still fit into. */
static block *block_for(dtm_arena *arena, size_t bytes) {
    if (arena->head && arena->head->size - arena->head->used >= bytes) return arena->head;
    size_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
    block *b = calloc(1, BLOCK_HEADER + size);
    if (!b) out_of_memory(size);
    b->size = size;
    block **link = arena->head && bytes > BLOCK_BYTES ? &arena->head->next : &arena->head;
    b->next = *link;
    *link = b;
    return b;
}

void *dtm_arena_alloc(dtm_arena *arena, size_t bytes) {
    bytes = (bytes + 15) & ~(size_t)15;
    block *b = block_for(arena, bytes);
    void *memory = (char *)b + BLOCK_HEADER + b->used;
    b->used += bytes;
    arena->bytes += bytes;
    return memory;
}

size_t dtm_arena_bytes(const dtm_arena *arena) {
    return arena->bytes;
}

static char *format_in_arena(dtm_arena *arena, const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    char *text = dtm_arena_alloc(arena, (size_t)length + 1);
    vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return text;
}

char *dtm_arena_printf(dtm_arena *arena, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *text = format_in_arena(arena, format, arguments);
    va_end(arguments);
    return text;
}

char *dtm_arena_strdup(dtm_arena *arena, const char *text) {
    size_t length = strlen(text);
    char *copy = dtm_arena_alloc(arena, length + 1);
    memcpy(copy, text, length);
    return copy;
}

/* Makes the last thing that was taken from a block larger where it is. */
static bool grow_in_place(dtm_arena *arena, const void *array, size_t had, size_t wanted) {
    block *b = arena->head;
    had = (had + 15) & ~(size_t)15, wanted = (wanted + 15) & ~(size_t)15;
    const char *end = b ? (const char *)b + BLOCK_HEADER + b->used : NULL;
    if (!b || !array || (const char *)array + had != end || b->size - b->used < wanted - had) return false;
    b->used += wanted - had;
    arena->bytes += wanted - had;
    return true;
}

void *dtm_arena_grow(dtm_arena *arena, void *array, size_t count, size_t *capacity, size_t element_bytes) {
    if (count < *capacity) return array;
    size_t wanted = *capacity ? *capacity * 2 : 8;
    while (wanted <= count) wanted *= 2;
    if (grow_in_place(arena, array, *capacity * element_bytes, wanted * element_bytes)) {
        *capacity = wanted;
        return array;
    }
    void *grown = dtm_arena_alloc(arena, wanted * element_bytes);
    if (count) memcpy(grown, array, count * element_bytes);
    *capacity = wanted;
    return grown;
}

/* ---- the context ---- */

typedef struct source {
    const char *name, *text;
    size_t length;
    uint32_t *lines; /* byte offset of each line's first byte */
    size_t n_lines, cap_lines;
    const char *shown; /* of an option: its text, which begins at byte `shown_at` of `text`; NULL: of a file */
    uint32_t shown_at;
} source;

typedef struct diagnostic {
    dtm_severity severity;
    int kind; /* 0 the message itself, 1 note, 2 help */
    int code;
    dtm_span span;
    const char *message;
} diagnostic;

typedef struct override {
    dtm_span span;
    const char *option;
} override;

struct dtm_context {
    dtm_arena *arena;
    const char **strings; /* by handle */
    size_t n_strings, cap_strings;
    uint32_t *table; /* open addressing, handles; a power of two */
    size_t table_size;
    source *sources;
    size_t n_sources, cap_sources;
    diagnostic *diagnostics;
    size_t n_diagnostics, cap_diagnostics;
    size_t errors, warnings;
    override *overrides;
    size_t n_overrides, cap_overrides;
};

dtm_context *dtm_context_create(void) {
    dtm_arena *arena = dtm_arena_create();
    dtm_context *context = dtm_arena_alloc(arena, sizeof *context);
    context->arena = arena;
    context->table_size = 1024;
    context->table = dtm_arena_alloc(arena, context->table_size * sizeof *context->table);
    DTM_PUSH(arena, context->strings, context->n_strings, context->cap_strings, "");
    DTM_PUSH(arena, context->sources, context->n_sources, context->cap_sources, ((source){.name = "", .text = ""}));
    return context;
}

void dtm_context_destroy(dtm_context *context) {
    if (context) dtm_arena_destroy(context->arena);
}

dtm_arena *dtm_context_arena(dtm_context *context) {
    return context->arena;
}

/* ---- strings ---- */

static uint64_t hash_bytes(const char *text, size_t length) {
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    return hash;
}

static void grow_table(dtm_context *context) {
    size_t size = context->table_size * 2;
    uint32_t *table = dtm_arena_alloc(context->arena, size * sizeof *table);
    for (uint32_t handle = 1; handle < context->n_strings; handle++) {
        const char *text = context->strings[handle];
        size_t slot = hash_bytes(text, strlen(text)) & (size - 1);
        while (table[slot]) slot = (slot + 1) & (size - 1);
        table[slot] = handle;
    }
    context->table = table;
    context->table_size = size;
}

dtm_string dtm_string_intern(dtm_context *context, const char *text, size_t length) {
    if (length == 0) return 0;
    if (context->n_strings * 2 > context->table_size) grow_table(context);
    size_t slot = hash_bytes(text, length) & (context->table_size - 1);
    for (; context->table[slot]; slot = (slot + 1) & (context->table_size - 1)) {
        const char *known = context->strings[context->table[slot]];
        if (strncmp(known, text, length) == 0 && known[length] == 0) return context->table[slot];
    }
    char *copy = dtm_arena_alloc(context->arena, length + 1);
    memcpy(copy, text, length);
    DTM_PUSH(context->arena, context->strings, context->n_strings, context->cap_strings, copy);
    context->table[slot] = (uint32_t)(context->n_strings - 1);
    return context->table[slot];
}

dtm_string dtm_string_of(dtm_context *context, const char *text) {
    return dtm_string_intern(context, text, strlen(text));
}

dtm_string dtm_string_printf(dtm_context *context, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *text = format_in_arena(context->arena, format, arguments);
    va_end(arguments);
    return dtm_string_of(context, text);
}

const char *dtm_string_text(const dtm_context *context, dtm_string string) {
    return context->strings[string];
}

static size_t edit_distance(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);
    if (n > 63 || m > 63) return SIZE_MAX;
    size_t row[64];
    for (size_t j = 0; j <= m; j++) row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[m];
}

dtm_string dtm_string_nearest(const dtm_context *context, const char *name, const dtm_string *candidates,
                              size_t count) {
    size_t length = strlen(name), limit = length / 3 + 1, best = limit + 1;
    dtm_string nearest = 0;
    for (size_t i = 0; i < count; i++) {
        const char *candidate = dtm_string_text(context, candidates[i]);
        size_t distance = edit_distance(name, candidate);
        /* half of a word of two letters is another word: `dp` is not `pp` mistyped */
        bool near = 2 * distance < length || strcasecmp(name, candidate) == 0 || (length > 2 && strlen(candidate) > 2);
        if (strcasecmp(name, candidate) == 0) distance = 0; /* `Gelu` is gelu rather than relu */
        if (near && distance < best) {
            best = distance;
            nearest = candidates[i];
        }
    }
    return nearest;
}

void dtm_text_append(dtm_text *text, const char *bytes, size_t length) {
    if (text->length + length + 1 > text->capacity) {
        size_t capacity = text->capacity ? text->capacity * 2 : 256;
        while (capacity < text->length + length + 1) capacity *= 2;
        char *data = dtm_arena_alloc(text->arena, capacity);
        if (text->length) memcpy(data, text->data, text->length);
        text->data = data;
        text->capacity = capacity;
    }
    memcpy(text->data + text->length, bytes, length);
    text->length += length;
    text->data[text->length] = 0;
}

void dtm_text_printf(dtm_text *text, const char *format, ...) {
    char small[256];
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(small, sizeof small, format, arguments);
    if ((size_t)length < sizeof small)
        dtm_text_append(text, small, (size_t)length);
    else
        dtm_text_append(text, format_in_arena(text->arena, format, again), (size_t)length);
    va_end(again);
    va_end(arguments);
}

void dtm_text_number(dtm_text *text, double number) {
    char digits[40];
    if (isinf(number)) {
        dtm_text_printf(text, number < 0 ? "-inf" : "inf");
        return;
    }
    if (number == floor(number) && fabs(number) < 1e15) {
        dtm_text_printf(text, "%.0f", number);
        return;
    }
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, number);
        if (strtod(digits, NULL) == number) break;
    }
    /* The language wants a digit on both sides of a dot; %g never prints "1." or ".5". */
    dtm_text_printf(text, "%s", digits);
}

/* ---- source map ---- */

uint32_t dtm_source_add(dtm_context *context, const char *name, const char *text, size_t length) {
    source s = {dtm_arena_strdup(context->arena, name), NULL, length, NULL, 0, 0};
    char *copy = dtm_arena_alloc(context->arena, length + 1);
    if (length) memcpy(copy, text, length);
    s.text = copy;
    DTM_PUSH(context->arena, s.lines, s.n_lines, s.cap_lines, 0);
    for (size_t i = 0; i < length; i++)
        if (copy[i] == '\n') DTM_PUSH(context->arena, s.lines, s.n_lines, s.cap_lines, (uint32_t)(i + 1));
    DTM_PUSH(context->arena, context->sources, context->n_sources, context->cap_sources, s);
    return (uint32_t)(context->n_sources - 1);
}

uint32_t dtm_source_add_option(dtm_context *context, const char *name, const char *option, const char *before,
                               const char *text) {
    uint32_t file = dtm_source_add(context, name, text, strlen(text));
    context->sources[file].shown = dtm_arena_strdup(context->arena, option);
    context->sources[file].shown_at = (uint32_t)strlen(before);
    return file;
}

void dtm_source_override(dtm_context *context, dtm_span span, const char *option) {
    override o = {span, dtm_arena_strdup(context->arena, option)};
    if (span.file) DTM_PUSH(context->arena, context->overrides, context->n_overrides, context->cap_overrides, o);
}

void dtm_source_override_by(dtm_context *context, dtm_span span, dtm_span option) {
    const source *s = &context->sources[option.file];
    if (s->shown) dtm_source_override(context, span, dtm_arena_printf(context->arena, "%s %s", s->name, s->shown));
}

uint32_t dtm_source_count(const dtm_context *context) {
    return (uint32_t)context->n_sources - 1;
}

const char *dtm_source_name(const dtm_context *context, uint32_t file) {
    return context->sources[file].name;
}

const char *dtm_source_text(const dtm_context *context, uint32_t file, size_t *length) {
    if (length) *length = context->sources[file].length;
    return context->sources[file].text;
}

void dtm_source_position(const dtm_context *context, uint32_t file, uint32_t offset, uint32_t *line, uint32_t *column) {
    const source *s = &context->sources[file];
    size_t low = 0, high = s->n_lines;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (s->lines[middle] <= offset)
            low = middle;
        else
            high = middle;
    }
    *line = (uint32_t)low + 1;
    *column = s->n_lines ? offset - s->lines[low] + 1 : 1;
}

dtm_span dtm_span_join(dtm_span a, dtm_span b) {
    if (!a.file || a.file != b.file) return a.file ? a : b;
    return (dtm_span){a.file, a.begin < b.begin ? a.begin : b.begin, a.end > b.end ? a.end : b.end};
}

/* ---- diagnostics ---- */

static void add_diagnostic(dtm_context *context, dtm_severity severity, int kind, int code, dtm_span span,
                           const char *message) {
    DTM_PUSH(context->arena, context->diagnostics, context->n_diagnostics, context->cap_diagnostics,
             ((diagnostic){severity, kind, code, span, message}));
}

#define FORMATTED(message)                                                                                             \
    va_list arguments;                                                                                                 \
    va_start(arguments, format);                                                                                       \
    const char *message = format_in_arena(context->arena, format, arguments);                                          \
    va_end(arguments)

void dtm_error(dtm_context *context, dtm_span span, int code, const char *format, ...) {
    FORMATTED(message);
    context->errors++;
    add_diagnostic(context, DTM_ERROR, 0, code, span, message);
}

void dtm_warning(dtm_context *context, dtm_span span, int code, const char *format, ...) {
    FORMATTED(message);
    context->warnings++;
    add_diagnostic(context, DTM_WARNING, 0, code, span, message);
}

void dtm_note(dtm_context *context, dtm_span span, const char *format, ...) {
    FORMATTED(message);
    add_diagnostic(context, DTM_ERROR, 1, 0, span, message);
}

void dtm_help(dtm_context *context, const char *format, ...) {
    FORMATTED(message);
    add_diagnostic(context, DTM_ERROR, 2, 0, (dtm_span){0, 0, 0}, message);
}

size_t dtm_error_count(const dtm_context *context) {
    return context->errors;
}
size_t dtm_warning_count(const dtm_context *context) {
    return context->warnings;
}

/* A byte within a character of UTF-8. */
static bool is_continuation(char byte) {
    return ((unsigned char)byte & 0xc0) == 0x80;
}

enum { EXCERPT_COLUMNS = 160 };

/* The line with carets below. Of a very long line, as dumps have, what lies around the span. */
static void print_excerpt(const dtm_context *context, FILE *out, dtm_span span, uint32_t line, uint32_t column) {
    const source *s = &context->sources[span.file];
    size_t begin = s->lines[line - 1], end = begin, from = begin + column - 1;
    while (end < s->length && s->text[end] != '\n') end++;
    size_t width = span.end > span.begin ? span.end - span.begin : 1;
    if (from + width > end) width = end > from ? end - from : 1;
    if (width > EXCERPT_COLUMNS) width = EXCERPT_COLUMNS;
    size_t before = (EXCERPT_COLUMNS - width) / 2, first = begin, last = end;
    if (end - begin > EXCERPT_COLUMNS) {
        if (from - begin > before) first = from - before;
        if (end - first < EXCERPT_COLUMNS) first = end - EXCERPT_COLUMNS;
        if (first > from) first = from;
        last = first + EXCERPT_COLUMNS < end ? first + EXCERPT_COLUMNS : end;
    }
    while (first > begin && first < from && is_continuation(s->text[first])) first++;
    while (last < end && is_continuation(s->text[last])) last++;
    fprintf(out, "%5u | %s%.*s%s\n      | ", line, first > begin ? ".. " : "", (int)(last - first), s->text + first,
            last < end ? " .." : "");
    if (first > begin) fputs("   ", out);
    for (size_t i = first; i < from; i++) fputc(s->text[i] == '\t' ? '\t' : ' ', out);
    for (size_t i = 0; i < width; i++) fputc('^', out);
    fputc('\n', out);
}

/* The option as it was given, with carets below what of it is meant. */
static void print_option(const source *s, FILE *out, dtm_span span) {
    uint32_t length = (uint32_t)strlen(s->shown), begin = span.begin > s->shown_at ? span.begin - s->shown_at : 0;
    uint32_t end = span.end > s->shown_at ? span.end - s->shown_at : 0;
    if (begin >= length) begin = length ? length - 1 : 0;
    if (end > length) end = length;
    fprintf(out, "      | %s %s\n      | %*s", s->name, s->shown, (int)(strlen(s->name) + 1 + begin), "");
    for (uint32_t i = begin; i == begin || i < end; i++) fputc('^', out);
    fputc('\n', out);
}

/* Below a line: what of it the command line says otherwise. */
static void print_overrides(const dtm_context *context, FILE *out, uint32_t file, uint32_t shown) {
    for (size_t i = 0; i < context->n_overrides; i++) {
        const override *o = &context->overrides[i];
        uint32_t first, last, column;
        if (o->span.file != file) continue;
        dtm_source_position(context, file, o->span.begin, &first, &column);
        dtm_source_position(context, file, o->span.end, &last, &column);
        if (shown >= first && shown <= last)
            fprintf(out, "      | given on the command line instead of what stands here: %s\n", o->option);
    }
}

void dtm_diagnostics_print(dtm_context *context, FILE *out, bool colour) {
    for (size_t i = 0; i < context->n_diagnostics; i++) {
        const diagnostic *d = &context->diagnostics[i];
        const char *bold = colour ? "\033[1m" : "", *off = colour ? "\033[0m" : "";
        if (d->kind == 2) {
            fprintf(out, "   help: %s\n", d->message);
            continue;
        }
        uint32_t line = 0, column = 0;
        bool excerpt = d->span.file && context->sources[d->span.file].length >= d->span.begin;
        const source *given = context->sources[d->span.file].shown ? &context->sources[d->span.file] : NULL;
        if (given) {
            fprintf(out, "%s%s:%s ", bold, given->name, off);
        } else if (d->span.file) {
            dtm_source_position(context, d->span.file, d->span.begin, &line, &column);
            fprintf(out, "%s%s:%u:%u:%s ", bold, dtm_source_name(context, d->span.file), line, column, off);
        }
        if (d->kind == 1) {
            fprintf(out, "note: %s\n", d->message);
            continue;
        }
        bool error = d->severity == DTM_ERROR;
        fprintf(out, "%s%s[%c%04d]:%s %s\n", colour ? (error ? "\033[1;31m" : "\033[1;35m") : "",
                error ? "error" : "warning", error ? 'E' : 'W', d->code, off, d->message);
        if (given) print_option(given, out, d->span);
        else if (excerpt) {
            print_excerpt(context, out, d->span, line, column);
            print_overrides(context, out, d->span.file, line);
        }
    }
    context->n_diagnostics = 0;
}

size_t dtm_diagnostics_mark(const dtm_context *context) {
    return context->n_diagnostics;
}

void dtm_diagnostics_keep(dtm_context *context, size_t mark, size_t from, size_t to) {
    size_t kept = mark;
    for (size_t i = mark; i < context->n_diagnostics; i++) {
        diagnostic d = context->diagnostics[i];
        if (i >= from && i < to) {
            context->diagnostics[kept++] = d;
            continue;
        }
        if (d.kind == 0 && d.severity == DTM_ERROR) context->errors--;
        if (d.kind == 0 && d.severity == DTM_WARNING) context->warnings--;
    }
    context->n_diagnostics = kept;
}

void dtm_diagnostics_rewind(dtm_context *context, size_t mark) { dtm_diagnostics_keep(context, mark, mark, mark); }

const char *dtm_error_explanation(int code) {
    switch (code) {
#define ERROR(number, title, text)                                                                                     \
    case number:                                                                                                       \
        return title ": " text;
#include "ir/errors.def"
#undef ERROR
    }
    return NULL;
}

_Noreturn void dtm_broken(const char *where, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "dtmc: internal error in %s: ", where);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}
