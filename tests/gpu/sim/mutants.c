/* Mutants by edits of lines: no compilation, and what is wrong is known. */
#include "mutants.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 512 };

static const char *const names[SIM_MUTATIONS] = {"no barrier", "no wait", "a wait for one group less", "no fence", "no guard", "4 bytes on", "another mask"};

static const char *skip_spaces(const char *at) {
    while (*at == ' ' || *at == '\t')
        at++;
    return at;
}
static bool begins(const char *line, const char *word) { return strncmp(line, word, strlen(word)) == 0; }

/* `[register+8]` is four bytes on. */
static bool shift(char *line) {
    char *close = strchr(line, ']'), tail[LINE];
    if (!close || strlen(line) + 3 > LINE)
        return false;
    snprintf(tail, sizeof tail, "%s", close);
    char *plus = close;
    while (plus > line && *plus != '+' && *plus != '[')
        plus--;
    if (*plus == '+')
        sprintf(plus, "+%d%s", atoi(plus + 1) + 4, tail);
    else
        sprintf(close, "+4%s", tail);
    return true;
}
/* The last operand names all lanes but one. */
static bool other_mask(char *line) {
    char *last = strrchr(line, ','), *end = strchr(line, ';'), *alone = strstr(line, "bar.warp.sync");
    if (alone)
        last = alone + strlen("bar.warp.sync") - 1;
    if (!last || !end || last > end || last - line + 20 > LINE)
        return false;
    sprintf(last + 1, " 0x7fffffff;");
    return true;
}

/* Makes the line that mutation of itself; false if it has none. */
static bool mutate(enum sim_mutation mutation, char *line) {
    const char *at = skip_spaces(line);
    bool memory = begins(at, "ld.") || begins(at, "st.");
    switch (mutation) {
    case SIM_NO_BARRIER:
        if (!begins(at, "bar.sync") && !begins(at, "bar.warp.sync") && !begins(at, "barrier.sync"))
            return false;
        break;
    case SIM_NO_WAIT:
        if (!begins(at, "cp.async.wait"))
            return false;
        break;
    case SIM_SHORT_WAIT: {
        const char *word = "cp.async.wait_group";
        if (!begins(at, word))
            return false;
        sprintf(line, "%s %d;", word, atoi(at + strlen(word)) + 1);
        return true;
    }
    case SIM_NO_FENCE:
        if (!begins(at, "membar") && !begins(at, "fence."))
            return false;
        break;
    case SIM_NO_GUARD:
        if (*at != '@' || !strstr(at, "bra"))
            return false;
        break;
    case SIM_SHIFTED:
        return ((memory && !strstr(at, ".param") && (strstr(at, ".v2.") || strstr(at, ".v4."))) || begins(at, "ldmatrix") || begins(at, "cp.async.c")) &&
               strchr(at, '[') && shift(line);
    default: return (begins(at, "shfl.sync") || begins(at, "vote.sync") || begins(at, "bar.warp.sync") || begins(at, "match.")) && other_mask(line);
    }
    *line = 0;
    return true;
}

static unsigned shown_by(enum sim_mutation mutation) {
    static const unsigned by[SIM_MUTATIONS] = {
        [SIM_NO_BARRIER] = 1u << SIM_RACE | 1u << SIM_ASYNC | 1u << SIM_GRID_RACE, [SIM_NO_WAIT] = 1u << SIM_ASYNC, [SIM_SHORT_WAIT] = 1u << SIM_ASYNC,
        [SIM_NO_FENCE] = 1u << SIM_GRID_RACE, [SIM_SHIFTED] = 1u << SIM_ALIGNMENT, [SIM_OTHER_MASK] = 1u << SIM_MASK,
    };
    return by[mutation];
}

char *sim_mutant(const char *text, int number, struct sim_mutant *about) {
    int line_number = 1;
    for (const char *from = text; *from; line_number++) {
        const char *end = strchr(from, '\n');
        size_t length = end ? (size_t)(end - from) : strlen(from);
        char line[LINE], changed[LINE + 32];
        snprintf(line, sizeof line, "%.*s", (int)length, from);
        for (int m = 0; m < SIM_MUTATIONS && length < LINE; m++) {
            strcpy(changed, line);
            if (!mutate((enum sim_mutation)m, changed) || number--)
                continue;
            *about = (struct sim_mutant){.mutation = (enum sim_mutation)m, .line = line_number, .caught_by = shown_by((enum sim_mutation)m)};
            snprintf(about->what, sizeof about->what, "line %d, %s: %.100s", line_number, names[m], skip_spaces(line));
            char *made = malloc(strlen(text) + sizeof changed);
            if (!made)
                abort();
            sprintf(made, "%.*s%s%s", (int)(from - text), text, changed, from + length);
            return made;
        }
        from += length + (end != NULL);
    }
    return NULL;
}
