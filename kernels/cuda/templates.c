#include "kernels/cuda/templates.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct template_file {
    const char *path, *text;
} template_file;

/* Made by embed.cmake of all *.cuh here, in the order of their paths; ends with NULL. */
extern const template_file dtm_template_files[];

const char *dtm_template_text(const char *path) {
    for (const template_file *f = dtm_template_files; f->path; f++)
        if (!strcmp(f->path, path)) return f->text;
    return NULL;
}

enum { MOST_TEMPLATES = 64 };

typedef struct program {
    char *data;
    size_t length, capacity;
    const char *taken[MOST_TEMPLATES]; /* texts */
    int n_taken;
    const char *missing;
    bool failed;
} program;

static void add(program *p, const char *text, size_t length) {
    if (p->failed) return;
    if (p->length + length + 1 > p->capacity) {
        size_t capacity = 2 * (p->length + length + 1);
        char *grown = realloc(p->data, capacity);
        if (!grown) {
            p->failed = true;
            return;
        }
        p->data = grown;
        p->capacity = capacity;
    }
    memcpy(p->data + p->length, text, length);
    p->data[p->length += length] = 0;
}

static void add_place(program *p, const char *name, int line) {
    char number[32];
    int length = snprintf(number, sizeof number, "#line %d \"", line);
    add(p, number, (size_t)length);
    add(p, name, strlen(name));
    add(p, "\"\n", 2);
}

static bool is_taken(const program *p, const char *text) {
    for (int i = 0; i < p->n_taken; i++)
        if (p->taken[i] == text) return true;
    return false;
}

static void add_text(program *p, const char *name, const char *text);

/* line: `#include "` and what follows. */
static void include(program *p, const char *line, size_t length) {
    char path[256], name[272];
    const char *begin = line + strlen("#include \""), *end = memchr(begin, '"', length - (size_t)(begin - line));
    int bytes = end ? (int)(end - begin) : -1;
    const char *text = NULL;
    if (bytes >= 0 && bytes < (int)sizeof path) {
        snprintf(path, sizeof path, "%.*s", bytes, begin);
        text = dtm_template_text(path);
    }
    if (!text || (!is_taken(p, text) && p->n_taken == MOST_TEMPLATES)) {
        p->failed = true;
        p->missing = begin;
        return;
    }
    if (is_taken(p, text)) return;
    p->taken[p->n_taken++] = text;
    snprintf(name, sizeof name, "/dtm/%s", path);
    add_text(p, name, text);
}

static void add_text(program *p, const char *name, const char *text) {
    static const char word[] = "#include \"";
    add_place(p, name, 1);
    for (int line = 1; *text && !p->failed; line++) {
        size_t length = strcspn(text, "\n");
        if (!strncmp(text, word, sizeof word - 1)) {
            include(p, text, length);
            if (!p->failed) add_place(p, name, line + 1);
        } else {
            add(p, text, length);
            add(p, "\n", 1);
        }
        text += length + (text[length] == '\n');
    }
}

char *dtm_template_program(const char *name, const char *text, const char **missing) {
    program p = {0};
    add_text(&p, name, text);
    *missing = p.missing;
    if (!p.failed) return p.data;
    free(p.data);
    return NULL;
}
