#include "runtime/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

/* ---- reading ---- */

typedef struct parser {
    const char *text;
    size_t length, at;
    char *out; /* where the next string's bytes go; there is room for the whole text and one byte a value */
    dtm_json *json;
    dtm_status *status;
} parser;

static bool fail(parser *p, const char *what) {
    return dtm_status_fail(p->status, "JSON: %s at byte %zu", what, p->at);
}

static int peek(const parser *p) {
    return p->at < p->length ? (unsigned char)p->text[p->at] : -1;
}

static void skip_space(parser *p) {
    while (p->at < p->length && strchr(" \t\n\r", p->text[p->at]) && p->text[p->at]) p->at++;
}

static int64_t add_value(parser *p, dtm_json_type type) {
    dtm_json *json = p->json;
    if (json->count == json->capacity) {
        int64_t capacity = json->capacity ? 2 * json->capacity : 64;
        dtm_json_value *values = realloc(json->values, (size_t)capacity * sizeof *values);
        if (!values) {
            fail(p, "out of memory");
            return -1;
        }
        json->values = values;
        json->capacity = capacity;
    }
    json->values[json->count] = (dtm_json_value){.type = type, .text = "", .end = json->count + 1};
    return json->count++;
}

/* The length of a valid UTF-8 sequence (Unicode's table 3-7: no overlong forms, no surrogates), or 0. */
static size_t utf8_length(const char *text, size_t room) {
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) return 1;
    size_t length = s[0] >= 0xC2 && s[0] <= 0xDF   ? 2
                    : s[0] >= 0xE0 && s[0] <= 0xEF ? 3
                    : s[0] >= 0xF0 && s[0] <= 0xF4 ? 4
                                                   : 0;
    if (length == 0 || room < length) return 0;
    for (size_t i = 1; i < length; i++)
        if (s[i] < 0x80 || s[i] > 0xBF) return 0;
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F)) return 0;
    if ((s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F)) return 0;
    return length;
}

static bool parse_hex4(parser *p, unsigned *out) {
    *out = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        int c = peek(p);
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return fail(p, "\\u needs four hexadecimal digits");
        *out = *out * 16 + (unsigned)digit;
    }
    return true;
}

static void put_utf8(parser *p, unsigned code) {
    if (code < 0x80) {
        *p->out++ = (char)code;
    } else if (code < 0x800) {
        *p->out++ = (char)(0xC0 | code >> 6);
        *p->out++ = (char)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *p->out++ = (char)(0xE0 | code >> 12);
        *p->out++ = (char)(0x80 | (code >> 6 & 0x3F));
        *p->out++ = (char)(0x80 | (code & 0x3F));
    } else {
        *p->out++ = (char)(0xF0 | code >> 18);
        *p->out++ = (char)(0x80 | (code >> 12 & 0x3F));
        *p->out++ = (char)(0x80 | (code >> 6 & 0x3F));
        *p->out++ = (char)(0x80 | (code & 0x3F));
    }
}

static bool parse_unicode_escape(parser *p) {
    unsigned code, low;
    if (!parse_hex4(p, &code)) return false;
    if (code == 0) return fail(p, "a zero character is not accepted");
    if (code >= 0xDC00 && code <= 0xDFFF) return fail(p, "a low surrogate without a high one");
    if (code >= 0xD800 && code <= 0xDBFF) {
        if (p->length - p->at < 2 || p->text[p->at] != '\\' || p->text[p->at + 1] != 'u')
            return fail(p, "a high surrogate without a low one");
        p->at += 2;
        if (!parse_hex4(p, &low)) return false;
        if (low < 0xDC00 || low > 0xDFFF) return fail(p, "a high surrogate without a low one");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    put_utf8(p, code);
    return true;
}

static bool parse_escape(parser *p) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    p->at++;
    int c = peek(p);
    p->at++;
    if (c == 'u') return parse_unicode_escape(p);
    const char *found = c > 0 ? strchr(from, c) : NULL;
    if (!found) return fail(p, "an unknown escape");
    *p->out++ = to[found - from];
    return true;
}

static bool parse_string(parser *p) {
    int64_t index = add_value(p, DTM_JSON_STRING);
    if (index < 0) return false;
    char *begin = p->out;
    p->at++;
    for (;;) {
        int c = peek(p);
        if (c < 0) return fail(p, "a string without its end");
        if (c == '"') break;
        if (c < 0x20) return fail(p, "a control character in a string");
        if (c == '\\') {
            if (!parse_escape(p)) return false;
            continue;
        }
        size_t length = utf8_length(p->text + p->at, p->length - p->at);
        if (!length) return fail(p, "bytes that are not UTF-8");
        memcpy(p->out, p->text + p->at, length);
        p->out += length;
        p->at += length;
    }
    p->at++;
    p->json->values[index].text = begin;
    p->json->values[index].length = (uint32_t)(p->out - begin);
    *p->out++ = 0;
    return true;
}

static size_t skip_digits(parser *p) {
    size_t begin = p->at;
    while (peek(p) >= '0' && peek(p) <= '9') p->at++;
    return p->at - begin;
}

static bool parse_number(parser *p) {
    size_t begin = p->at;
    if (peek(p) == '-') p->at++;
    int first = peek(p);
    size_t digits = skip_digits(p);
    if (digits == 0) return fail(p, p->at == begin ? "a value was expected" : "a digit was expected");
    if (first == '0' && digits > 1) return fail(p, "a number with a leading zero");
    if (peek(p) == '.') {
        p->at++;
        if (skip_digits(p) == 0) return fail(p, "a digit was expected");
    }
    if (peek(p) == 'e' || peek(p) == 'E') {
        p->at++;
        if (peek(p) == '+' || peek(p) == '-') p->at++;
        if (skip_digits(p) == 0) return fail(p, "a digit was expected");
    }
    int64_t index = add_value(p, DTM_JSON_NUMBER);
    if (index < 0) return false;
    size_t length = p->at - begin;
    memcpy(p->out, p->text + begin, length);
    p->json->values[index].text = p->out;
    p->json->values[index].length = (uint32_t)length;
    p->out += length;
    *p->out++ = 0;
    return true;
}

static bool parse_word(parser *p, const char *word, dtm_json_type type) {
    size_t length = strlen(word);
    if (p->length - p->at < length || memcmp(p->text + p->at, word, length) != 0)
        return fail(p, "a value was expected");
    p->at += length;
    return add_value(p, type) >= 0;
}

static int compare_keys(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool check_duplicates(parser *p, int64_t object) {
    const dtm_json_value *values = p->json->values;
    uint32_t count = values[object].length;
    if (count < 2) return true;
    const char **keys = malloc(count * sizeof *keys);
    if (!keys) return fail(p, "out of memory");
    int64_t at = object + 1;
    for (uint32_t i = 0; i < count; i++) {
        keys[i] = values[at].text;
        at = values[at + 1].end;
    }
    qsort(keys, count, sizeof *keys, compare_keys);
    bool ok = true;
    for (uint32_t i = 1; ok && i < count; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0)
            ok = dtm_status_fail(p->status, "JSON: the key \"%.200s\" stands twice in one object, before byte %zu",
                                 keys[i], p->at);
    free(keys);
    return ok;
}

static bool parse_value(parser *p, int depth);

static bool parse_members(parser *p, int64_t index, bool object, int depth) {
    char close = object ? '}' : ']';
    p->at++;
    skip_space(p);
    if (peek(p) == close) {
        p->at++;
        return true;
    }
    for (uint32_t count = 1;; count++) {
        skip_space(p);
        if (object) {
            if (peek(p) != '"') return fail(p, "a key in double quotes was expected");
            if (!parse_string(p)) return false;
            skip_space(p);
            if (peek(p) != ':') return fail(p, "`:` was expected");
            p->at++;
        }
        if (!parse_value(p, depth + 1)) return false;
        skip_space(p);
        int c = peek(p);
        p->json->values[index].length = count;
        p->json->values[index].end = p->json->count;
        if (c != ',' && c != close) return fail(p, object ? "`,` or `}` was expected" : "`,` or `]` was expected");
        p->at++;
        if (c == close) return !object || check_duplicates(p, index);
    }
}

static bool parse_value(parser *p, int depth) {
    if (depth > MAX_DEPTH) return fail(p, "too deep nesting");
    skip_space(p);
    switch (peek(p)) {
    case '"':
        return parse_string(p);
    case 't':
        return parse_word(p, "true", DTM_JSON_TRUE);
    case 'f':
        return parse_word(p, "false", DTM_JSON_FALSE);
    case 'n':
        return parse_word(p, "null", DTM_JSON_NULL);
    case '{':
    case '[': {
        bool object = peek(p) == '{';
        int64_t index = add_value(p, object ? DTM_JSON_OBJECT : DTM_JSON_ARRAY);
        return index >= 0 && parse_members(p, index, object, depth);
    }
    default:
        return parse_number(p);
    }
}

bool dtm_json_parse(const char *text, size_t length, dtm_json *out, dtm_status *status) {
    *out = (dtm_json){0};
    parser p = {.text = text, .length = length, .json = out, .status = status};
    if (length >= UINT32_MAX) return fail(&p, "the text is too long");
    /* A number of one digit takes two bytes with its zero, but then a comma or bracket follows it in the text, which
     * takes none; the last value's zero is the one byte more. */
    p.out = out->strings = malloc(length + 2);
    if (!out->strings) return fail(&p, "out of memory");
    if (!parse_value(&p, 0)) return false;
    skip_space(&p);
    return p.at == p.length || fail(&p, "something follows the value");
}

void dtm_json_free(dtm_json *json) {
    free(json->values);
    free(json->strings);
    *json = (dtm_json){0};
}

bool dtm_json_integer(const dtm_json_value *value, int64_t *out) {
    if (value->type != DTM_JSON_NUMBER) return false;
    const char *text = value->text;
    bool negative = *text == '-';
    int64_t result = 0;
    for (text += negative; *text; text++) {
        if (*text < '0' || *text > '9') return false;
        int digit = *text - '0';
        if (result < (INT64_MIN + digit) / 10) return false;
        result = result * 10 - digit; /* downwards: the negative range is larger */
    }
    if (!negative && result == INT64_MIN) return false;
    *out = negative ? result : -result;
    return true;
}

bool dtm_json_is(const dtm_json_value *value, const char *string) {
    return value->type == DTM_JSON_STRING && strcmp(value->text, string) == 0;
}

int64_t dtm_json_find(const dtm_json *json, int64_t object, const char *key) {
    if (json->values[object].type != DTM_JSON_OBJECT) return -1;
    int64_t at = object + 1;
    for (uint32_t i = 0; i < json->values[object].length; i++) {
        if (dtm_json_is(&json->values[at], key)) return at + 1;
        at = json->values[at + 1].end;
    }
    return -1;
}

/* ---- writing ---- */

static void put(dtm_json_writer *writer, const char *bytes, size_t length) {
    if (writer->failed) return;
    if (writer->length + length + 1 > writer->capacity) {
        size_t capacity = 2 * (writer->length + length) + 256;
        char *data = realloc(writer->data, capacity);
        if (!data) {
            writer->failed = true;
            return;
        }
        writer->data = data;
        writer->capacity = capacity;
    }
    memcpy(writer->data + writer->length, bytes, length);
    writer->length += length;
    writer->data[writer->length] = 0;
}

static void put_item(dtm_json_writer *writer, const char *text) {
    if (writer->wants_comma) put(writer, ",", 1);
    put(writer, text, strlen(text));
    writer->wants_comma = true;
}

static void open_bracket(dtm_json_writer *writer, const char *bracket) {
    put_item(writer, bracket);
    writer->wants_comma = false;
}

static void close_bracket(dtm_json_writer *writer, const char *bracket) {
    put(writer, bracket, 1);
    writer->wants_comma = true;
}

void dtm_json_begin_object(dtm_json_writer *writer) {
    open_bracket(writer, "{");
}
void dtm_json_end_object(dtm_json_writer *writer) {
    close_bracket(writer, "}");
}
void dtm_json_begin_array(dtm_json_writer *writer) {
    open_bracket(writer, "[");
}
void dtm_json_end_array(dtm_json_writer *writer) {
    close_bracket(writer, "]");
}
void dtm_json_bool(dtm_json_writer *writer, bool value) {
    put_item(writer, value ? "true" : "false");
}
void dtm_json_raw(dtm_json_writer *writer, const char *text) {
    put_item(writer, text);
}

static void put_character(dtm_json_writer *writer, unsigned char c) {
    static const char escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *found = c ? strchr(escaped, c) : NULL;
    char text[8];
    if (found)
        snprintf(text, sizeof text, "\\%c", letters[found - escaped]);
    else if (c < 0x20)
        snprintf(text, sizeof text, "\\u%04x", c);
    else
        snprintf(text, sizeof text, "%c", c);
    put(writer, text, strlen(text));
}

void dtm_json_string(dtm_json_writer *writer, const char *string) {
    put_item(writer, "\"");
    for (size_t room = strlen(string); room > 0;) {
        size_t length = utf8_length(string, room);
        if (length == 1)
            put_character(writer, (unsigned char)*string);
        else if (length > 1)
            put(writer, string, length);
        else
            put(writer, "\xEF\xBF\xBD", 3);
        length += length == 0;
        string += length;
        room -= length;
    }
    put(writer, "\"", 1);
}

void dtm_json_key(dtm_json_writer *writer, const char *key) {
    dtm_json_string(writer, key);
    put(writer, ":", 1);
    writer->wants_comma = false;
}

void dtm_json_whole(dtm_json_writer *writer, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    put_item(writer, text);
}

void dtm_shortest(double value, char *text) {
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(text, 32, "%.*g", precision, value);
        if (strtod(text, NULL) == value) break;
    }
    for (char *c = text; *c; c++)
        if (*c == ',') *c = '.'; /* what a locale may have put there */
}

void dtm_json_number(dtm_json_writer *writer, double value) {
    char text[32] = "null";
    if (isfinite(value)) dtm_shortest(value, text);
    put_item(writer, text);
}
