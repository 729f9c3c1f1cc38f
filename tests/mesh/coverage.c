/* Reads dumps line by line: see coverage.h. Only what it needs of the syntax: `name : TYPE = operator(operands ..)`. */
#include "coverage.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
#define OP(kind, name, least, most, results, factors, linear, numbers, flags, gradient, expand) name,
#include "ir/ops.def"
#undef OP
};
static const char *const rules[] = {
#define OP(kind, name, least, most, results, factors, linear, numbers, flags, gradient, expand) #factors,
#include "ir/ops.def"
#undef OP
};
enum { N_OPERATORS = sizeof names / sizeof *names };
_Static_assert(sizeof names / sizeof *names <= MOST_OPERATORS, "a larger table");

/* What the random programs cannot or need not have. */
static const char *const exempt[] = {"top", "experts", "fill", "learning_rate", "bias_correction", "state", NULL};

/* ---- types by name ---- */

enum { MOST_VALUES = 8192 };

typedef struct value {
    char name[64];
    unsigned kinds; /* bits of split_kind */
} value;

typedef struct reader {
    value values[MOST_VALUES];
    int count;
    char axes[8][16];
    int sizes[8], n_axes;
} reader;

static int axis_size(const reader *r, const char *name, size_t length) {
    for (int i = 0; i < r->n_axes; i++)
        if (strlen(r->axes[i]) == length && strncmp(r->axes[i], name, length) == 0) return r->sizes[i];
    return 1;
}

/* mesh { dp = 2, tp = 4 } */
static void read_mesh(reader *r, const char *line) {
    r->n_axes = 0;
    for (const char *at = strchr(line, '{'); at && *at && *at != '}';) {
        at += strspn(at, "{, ");
        size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz_0123456789");
        if (!length || length > 15 || r->n_axes == 8) break;
        snprintf(r->axes[r->n_axes], 16, "%.*s", (int)length, at);
        at += length;
        at += strspn(at, " =");
        r->sizes[r->n_axes++] = atoi(at);
        at += strspn(at, "0123456789 ");
    }
}

/* f32[B=3@dp, S=16@tp.cp, D=64] sum@tp */
static unsigned kinds_of_type(const reader *r, const char *type, const char *end) {
    unsigned kinds = 0;
    for (const char *at = type; at < end; at++) {
        if (*at == '=') {
            long n = strtol(at + 1, NULL, 10), ranks = 1;
            const char *axis = at + 1 + strspn(at + 1, "0123456789");
            if (*axis != '@') continue;
            do {
                size_t length = strspn(axis + 1, "abcdefghijklmnopqrstuvwxyz_0123456789");
                ranks *= axis_size(r, axis + 1, length);
                axis += 1 + length;
            } while (*axis == '.');
            if (ranks < 2) continue;
            long block = (n + ranks - 1) / ranks;
            if (n % ranks == 0) kinds |= 1u << SPLIT_EVEN;
            else if (block * (ranks - 1) >= n) kinds |= 1u << SPLIT_EMPTY;
            else kinds |= 1u << SPLIT_UNEVEN;
        }
        if (strncmp(at, "sum@", 4) == 0 || strncmp(at, "max@", 4) == 0) kinds |= 1u << SPLIT_TERM;
    }
    return kinds;
}

static unsigned kinds_of_value(const reader *r, const char *name, size_t length) {
    for (int i = r->count; i-- > 0;)
        if (strlen(r->values[i].name) == length && strncmp(r->values[i].name, name, length) == 0)
            return r->values[i].kinds & ~(1u << SPLIT_TERM);
    return 0;
}

static bool in_name(char c) { return isalnum((unsigned char)c) || c == '_' || c == '.'; }

/* The kinds of the names in the text. */
static unsigned kinds_of_operands(const reader *r, const char *text, const char *end) {
    unsigned kinds = 0;
    for (const char *at = text; at < end;) {
        size_t length = 0;
        while (at + length < end && in_name(at[length])) length++;
        if (length) kinds |= kinds_of_value(r, at, length);
        at += length ? length : 1;
    }
    return kinds;
}

/* Where ` = ` separates types from what they are of, outside of brackets. */
static const char *equals(const char *line) {
    int depth = 0;
    for (; *line && *line != '\n'; line++) {
        if (*line == '[' || *line == '(') depth++;
        if (*line == ']' || *line == ')') depth--;
        if (!depth && strncmp(line, " = ", 3) == 0) return line;
    }
    return NULL;
}

static void meet(coverage *c, const char *name, size_t length, int operands, unsigned kinds) {
    for (int i = 0; i < N_OPERATORS; i++) {
        if (strlen(names[i]) != length || strncmp(names[i], name, length) != 0) continue;
        /* max(a, b) and max(x over D) have one name: told apart by their operands */
        if (strcmp(names[i], "max") == 0 && (operands > 1) != (strcmp(rules[i], "pointwise") == 0)) continue;
        for (int k = SPLIT_EVEN; k < SPLIT_KINDS; k++)
            if (kinds & (1u << k)) c->met[i][k]++;
        if (!kinds) c->met[i][SPLIT_NONE]++;
        return;
    }
}

/* The operator of a right side: a call, `a + b`, `-a`. */
static void read_right_side(coverage *c, const reader *r, const char *text, unsigned kinds) {
    const char *end = strstr(text, "  ");
    if (!end || end > text + strcspn(text, "\n")) end = text + strcspn(text, "\n");
    kinds |= kinds_of_operands(r, text, end);
    size_t name = 0;
    while (in_name(text[name])) name++;
    if (name && text[name] == '(') {
        int operands = 1;
        for (const char *at = text; at < end && strncmp(at, " over ", 6) != 0; at++) operands += *at == ',';
        meet(c, text, name, operands, kinds);
    } else if (*text == '-' && text[1] != ' ') {
        meet(c, "neg", 3, 1, kinds);
    } else if (text[name] == ' ') {
        const char *sign = text + name + 1;
        meet(c, sign, strcspn(sign, " "), 2, kinds);
    }
}

static void read_line(coverage *c, reader *r, const char *line) {
    line += strspn(line, " ");
    const char *first = line;
    static const char *const leading[] = {"input ", "weight ", "state ", NULL};
    for (int i = 0; leading[i]; i++)
        if (strncmp(line, leading[i], strlen(leading[i])) == 0) first = line + strlen(leading[i]);
    const char *colon = strstr(first, " : "), *newline = first + strcspn(first, "\n"), *split = equals(first);
    if (!colon || colon > newline) return;
    const char *end = split ? split : newline;
    unsigned kinds = kinds_of_type(r, colon, end);
    /* `a : T, b : U = ..`: all names before the sign get the kinds of all types */
    for (const char *at = first; at && at < end && r->count < MOST_VALUES;) {
        size_t length = 0;
        while (in_name(at[length])) length++;
        if (length && length < sizeof r->values->name) {
            value *v = &r->values[r->count++];
            snprintf(v->name, sizeof v->name, "%.*s", (int)length, at);
            v->kinds = kinds;
        }
        at = strstr(at, "], ");
        if (at) at += 3;
    }
    if (first != line) meet(c, line, strcspn(line, " "), 0, kinds);
    else if (split) read_right_side(c, r, split + 3, kinds);
}

void coverage_add_dump(coverage *c, const char *dump) {
    reader *r = calloc(1, sizeof *r);
    if (!r) return;
    const char *mesh = strstr(dump, "\nmesh {"); /* it stands at the end */
    if (mesh) read_mesh(r, mesh + 1);
    for (const char *line = dump; *line; line += strcspn(line, "\n"), line += *line == '\n') read_line(c, r, line);
    free(r);
}

void coverage_merge(coverage *into, const coverage *from) {
    for (int i = 0; i < MOST_OPERATORS; i++)
        for (int k = 0; k < SPLIT_KINDS; k++) into->met[i][k] += from->met[i][k];
}

/* Whether an operator is one that computes, and can be split. */
static bool required(int i) {
    static const char *const others[] = {"none", "sink", "layout", "identity", NULL};
    for (int k = 0; others[k]; k++)
        if (strcmp(rules[i], others[k]) == 0) return false;
    for (int k = 0; exempt[k]; k++)
        if (strcmp(names[i], exempt[k]) == 0) return false;
    return true;
}

int coverage_print(const coverage *c, FILE *out) {
    static const char *const kinds[] = {"alike", "even", "uneven", "empty", "term"};
    int missing = 0;
    fprintf(out, "%-26s %8s %8s %8s %8s %8s\n", "operator", "alike", "even", "uneven", "empty", "term");
    for (int i = 0; i < N_OPERATORS; i++) {
        if (!required(i)) continue;
        fprintf(out, "%-26s", names[i]);
        for (int k = 0; k < SPLIT_KINDS; k++) fprintf(out, " %8ld", c->met[i][k]);
        for (int k = SPLIT_EVEN; k <= SPLIT_EMPTY; k++)
            if (!c->met[i][k]) fprintf(out, "  never %s", kinds[k]), missing++;
        fputc('\n', out);
    }
    return missing;
}
