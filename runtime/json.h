/* JSON, as little of it as the runtime needs: a strict parser (RFC 8259: UTF-8, no duplicate keys, nothing after the
 * value, bounded depth) into a flat array of values, and a writer of compact text into a growing buffer. Neither
 * depends on the locale. */
#ifndef DTM_JSON_H
#define DTM_JSON_H

#include "runtime/status.h"

#include <stdint.h>

/* ---- reading ---- */

typedef enum dtm_json_type {
    DTM_JSON_NULL,
    DTM_JSON_FALSE,
    DTM_JSON_TRUE,
    DTM_JSON_NUMBER,
    DTM_JSON_STRING,
    DTM_JSON_ARRAY,
    DTM_JSON_OBJECT
} dtm_json_type;

/* Values stand in the order of the text; an element of an object is its key (a string) and then its value. */
typedef struct dtm_json_value {
    dtm_json_type type;
    uint32_t length;  /* of a string's or a number's text, in bytes; elements of an array; pairs of an object */
    const char *text; /* of a string, escapes resolved, or of a number; zero-terminated */
    int64_t end;      /* the index of the value after this one and all within it */
} dtm_json_value;

typedef struct dtm_json {
    dtm_json_value *values; /* values[0] is the root */
    int64_t count, capacity;
    char *strings; /* what text points into */
} dtm_json;

/* text need not be zero-terminated and is not kept. A failure says the byte offset. Free with dtm_json_free in any
 * case. */
bool dtm_json_parse(const char *text, size_t length, dtm_json *out, dtm_status *status);
void dtm_json_free(dtm_json *json);

/* A number that is written as an integer and fits. */
bool dtm_json_integer(const dtm_json_value *value, int64_t *out);
bool dtm_json_is(const dtm_json_value *value, const char *string);
/* The value of a key of the object at index, or -1. */
int64_t dtm_json_find(const dtm_json *json, int64_t object, const char *key);

/* ---- writing ---- */

/* Zero-initialise; free data at the end. Commas come by themselves. `failed` is set where memory ran out. */
typedef struct dtm_json_writer {
    char *data; /* zero-terminated once something is written */
    size_t length, capacity;
    bool failed, wants_comma;
} dtm_json_writer;

void dtm_json_begin_object(dtm_json_writer *writer);
void dtm_json_end_object(dtm_json_writer *writer);
void dtm_json_begin_array(dtm_json_writer *writer);
void dtm_json_end_array(dtm_json_writer *writer);
void dtm_json_key(dtm_json_writer *writer, const char *key);
/* Bytes that are not UTF-8 become U+FFFD. */
void dtm_json_string(dtm_json_writer *writer, const char *string);
void dtm_json_bool(dtm_json_writer *writer, bool value);
void dtm_json_whole(dtm_json_writer *writer, int64_t value);
/* The shortest decimal that reads back as the same double; null for what JSON has no number for (NaN, infinities). */
void dtm_json_number(dtm_json_writer *writer, double value);
/* Text that is JSON already. */
void dtm_json_raw(dtm_json_writer *writer, const char *text);

/* The shortest decimal of a finite double, as dtm_json_number writes it; text holds 32 bytes. */
void dtm_shortest(double value, char *text);

#endif
