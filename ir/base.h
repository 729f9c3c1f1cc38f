/* The basics every folder of the compiler stands on: a context, arenas, interned strings, the source map and
 * diagnostics. There is no global state: a dtm_context is the first parameter of everything. Memory comes from arenas
 * and is never freed one by one; dtm_context_destroy releases all of it. Nothing here prints or exits: diagnostics
 * accumulate in the context and dtmc's main prints them. */
#ifndef DTM_BASE_H
#define DTM_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct dtm_context dtm_context;
typedef struct dtm_arena dtm_arena;

/* An interned string: two are equal exactly if their handles are. 0 is "no string". */
typedef uint32_t dtm_string;

/* A stretch of a source file: byte offsets [begin, end). file 0 means "nowhere". */
typedef struct dtm_span {
    uint32_t file, begin, end;
} dtm_span;

#if defined(__GNUC__)
#define DTM_PRINTF(format_index, first) __attribute__((format(printf, format_index, first)))
#else
#define DTM_PRINTF(format_index, first)
#endif

/* ---- context and arenas ---- */

dtm_context *dtm_context_create(void);
void dtm_context_destroy(dtm_context *context);
/* The arena that lives as long as the context. */
dtm_arena *dtm_context_arena(dtm_context *context);

dtm_arena *dtm_arena_create(void);
void dtm_arena_destroy(dtm_arena *arena);
/* Zeroed memory, aligned to 16 bytes. Never NULL: out of memory ends the process with one line. */
void *dtm_arena_alloc(dtm_arena *arena, size_t bytes);
char *dtm_arena_printf(dtm_arena *arena, const char *format, ...) DTM_PRINTF(2, 3);
char *dtm_arena_strdup(dtm_arena *arena, const char *text);
/* Grows an array in the arena: returns the (possibly moved) array with room for at least count + 1 elements. */
void *dtm_arena_grow(dtm_arena *arena, void *array, size_t count, size_t *capacity, size_t element_bytes);
/* Bytes asked of the arena so far: what compile-time memory tests read. */
size_t dtm_arena_bytes(const dtm_arena *arena);

/* Appends to an array whose count and capacity (size_t) stand beside it: DTM_PUSH(arena, ops, n_ops, cap_ops, op). */
#define DTM_PUSH(arena, array, count, capacity, element)                                                               \
    do {                                                                                                               \
        (array) = dtm_arena_grow((arena), (array), (count), &(capacity), sizeof *(array));                            \
        (array)[(count)++] = (element);                                                                                \
    } while (0)

/* ---- strings ---- */

dtm_string dtm_string_intern(dtm_context *context, const char *text, size_t length);
dtm_string dtm_string_of(dtm_context *context, const char *text);
dtm_string dtm_string_printf(dtm_context *context, const char *format, ...) DTM_PRINTF(2, 3);
/* The text, zero-terminated; "" for 0. It lives as long as the context. */
const char *dtm_string_text(const dtm_context *context, dtm_string string);
/* The nearest of candidates to a mistyped name (edit distance at most a third of its length), or 0: for help lines. */
dtm_string dtm_string_nearest(const dtm_context *context, const char *name, const dtm_string *candidates, size_t count);

/* A growing text buffer in an arena. */
typedef struct dtm_text {
    dtm_arena *arena;
    char *data;
    size_t length, capacity;
} dtm_text;
void dtm_text_append(dtm_text *text, const char *bytes, size_t length);
void dtm_text_printf(dtm_text *text, const char *format, ...) DTM_PRINTF(2, 3);
/* The shortest decimal that reads back as the same double (locale-free): 0.1, 1e-05, 3, inf. */
void dtm_text_number(dtm_text *text, double number);
/* "s" but of one: `%d rank%s`. */
static inline const char *dtm_plural(int64_t n) { return n == 1 ? "" : "s"; }

/* ---- source map ---- */

/* Registers a file's text (copied) under the name diagnostics show; the handle is > 0. The first is the root file. */
uint32_t dtm_source_add(dtm_context *context, const char *name, const char *text, size_t length);
/* The same of a text made of an option of the command line, `--set x=1`: it has `before`, then as many bytes as the option, and
 * diagnostics show the option alone. */
uint32_t dtm_source_add_option(dtm_context *context, const char *name, const char *option, const char *before,
                               const char *text);
/* What the command line says in place of what stands there, `--set x=1`: diagnostics that show a line of it say so. */
void dtm_source_override(dtm_context *context, dtm_span span, const char *option);
/* The same by the option that a span is in. */
void dtm_source_override_by(dtm_context *context, dtm_span span, dtm_span option);
uint32_t dtm_source_count(const dtm_context *context); /* they are numbered from 1 to it */
const char *dtm_source_name(const dtm_context *context, uint32_t file);
const char *dtm_source_text(const dtm_context *context, uint32_t file, size_t *length);
/* Line and column (both from 1) of a byte offset. */
void dtm_source_position(const dtm_context *context, uint32_t file, uint32_t offset, uint32_t *line, uint32_t *column);
/* The least span that holds both. */
dtm_span dtm_span_join(dtm_span a, dtm_span b);

/* ---- diagnostics ---- */

typedef enum dtm_severity { DTM_ERROR, DTM_WARNING } dtm_severity;

/* Codes are pinned numbers (E0304 is 304): ir/errors.def lists each with its explanation. After an error or warning,
 * dtm_note and dtm_help add to the latest one. */
void dtm_error(dtm_context *context, dtm_span span, int code, const char *format, ...) DTM_PRINTF(4, 5);
void dtm_warning(dtm_context *context, dtm_span span, int code, const char *format, ...) DTM_PRINTF(4, 5);
void dtm_note(dtm_context *context, dtm_span span, const char *format, ...) DTM_PRINTF(3, 4);
void dtm_help(dtm_context *context, const char *format, ...) DTM_PRINTF(2, 3);
size_t dtm_error_count(const dtm_context *context);
size_t dtm_warning_count(const dtm_context *context);
/* Prints all diagnostics in order of their arising, with source lines and carets, and forgets them.
 *   moe.dtm:14:9: error[E0304]: `dot` over D: h has D = 4096, w has D = 4095
 *      14 |     y = dot(h, w over D)
 *         |         ^^^^^^^^^^^^^^^^ */
void dtm_diagnostics_print(dtm_context *context, FILE *out, bool colour);
/* Where the list of diagnostics stands, and back to there: what was reported since is forgotten. For trying things. */
size_t dtm_diagnostics_mark(const dtm_context *context);
void dtm_diagnostics_rewind(dtm_context *context, size_t mark);
/* Back to there, but for those from one mark to another after it. */
void dtm_diagnostics_keep(dtm_context *context, size_t mark, size_t from, size_t to);
/* The long explanation of a code, or NULL: `dtmc explain E0304`. */
const char *dtm_error_explanation(int code);
/* A broken invariant of the compiler itself: prints "internal error in PASS: ..." and aborts. */
_Noreturn void dtm_broken(const char *where, const char *format, ...) DTM_PRINTF(2, 3);

/* The greatest common divisor; of 0 and another the other. */
static inline int64_t dtm_common_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

#endif
