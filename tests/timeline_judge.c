/* timeline_judge <REQUESTS >VERDICTS: makes and proves many timelines in one go, for tests/timeline_check.py.
 *
 *     order SCHEDULE P M V     its text, then a line `.`; nothing but the `.` where it is not defined
 *     prove SLOTS SENDS MEMORY then a timeline's text, then a line `.`: one line, either the codes of its errors (E0903 E0905),
 *                              or `legal SLOTS AMPLE`, and for each rank the bytes that are held, kept, and in messages
 *
 * The bytes of stages differ, by the rule of costs_of below, which the other side knows too. */
#include "passes/timeline.h"

#include <stdlib.h>
#include <string.h>

static dtm_timeline_costs costs_of(const dtm_timeline *t) {
    dtm_stage_cost *stage = dtm_arena_alloc(t->arena, (size_t)t->stages * sizeof *stage);
    for (int s = 0; s < t->stages; s++)
        stage[s] = (dtm_stage_cost){.forward = 1, .input = 1, .weight = 1, .forward_bytes = 3 + 5 * s % 7,
                                    .backward_bytes = 2 + 3 * s % 5, .kept = 6 + 7 * s % 4, .kept_for_weight = 2 + s % 3,
                                    .held = 10 + s};
    return (dtm_timeline_costs){t->stages, stage, 0, 0, NULL};
}

/* The codes of all errors so far, each once, in their order. */
static void print_codes(dtm_context *context) {
    char *shown = NULL, seen[256] = "";
    size_t length = 0;
    FILE *out = open_memstream(&shown, &length);
    dtm_diagnostics_print(context, out, false);
    fclose(out);
    for (const char *at = shown; (at = strstr(at, "error[")); at++) {
        char code[6] = "";
        memcpy(code, at + 6, 5);
        if (strstr(seen, code) || strlen(seen) > sizeof seen - 8) continue;
        if (*seen) strcat(seen, " ");
        strcat(seen, code);
    }
    printf("%s\n", *seen ? seen : "refused without a word");
    free(shown);
}

static void order(dtm_context *context, char *line) {
    char schedule[64] = "";
    int p = 0, m = 0, v = 0;
    if (sscanf(line, "order %63s %d %d %d", schedule, &p, &m, &v) != 4) exit(2);
    dtm_timeline *t = dtm_timeline_order(context, dtm_context_arena(context), (dtm_span){0, 0, 0}, schedule, p, m, v);
    if (t) {
        dtm_text text = {dtm_context_arena(context), NULL, 0, 0};
        dtm_timeline_print(t, &text);
        fputs(text.data, stdout);
    }
    puts(".");
}

static void prove(dtm_context *context, char *line) {
    dtm_arena *arena = dtm_context_arena(context);
    dtm_timeline_limits limits = {0};
    dtm_text text = {arena, NULL, 0, 0};
    if (sscanf(line, "prove %d %d %lf", &limits.receive_slots, &limits.send_buffers, &limits.memory) != 3) exit(2);
    dtm_text_append(&text, "", 0);
    char *row = NULL;
    size_t size = 0;
    for (ssize_t n; (n = getline(&row, &size, stdin)) > 0 && strcmp(row, ".\n");) dtm_text_append(&text, row, (size_t)n);
    free(row);
    dtm_timeline *t = dtm_timeline_parse(context, arena, dtm_source_add(context, "timeline", text.data, text.length));
    dtm_timeline_proof proof;
    dtm_timeline_costs costs;
    if (t) costs = costs_of(t);
    if (!t || !dtm_timeline_prove(context, arena, t, &costs, &limits, &proof)) {
        print_codes(context);
        return;
    }
    printf("legal %d %d", proof.slots, proof.ample);
    for (int r = 0; r < t->ranks; r++) printf(" %g,%g,%g", proof.rank[r].held, proof.rank[r].kept, proof.rank[r].messages);
    printf("\n");
}

int main(void) {
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, stdin) > 0) {
        dtm_context *context = dtm_context_create();
        if (!strncmp(line, "order ", 6)) order(context, line);
        else prove(context, line);
        dtm_context_destroy(context);
    }
    free(line);
    return 0;
}
