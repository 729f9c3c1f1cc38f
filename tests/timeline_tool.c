/* timeline_tool (FILE | SCHEDULE RANKS MICROBATCHES [CHUNKS]) [OPTION]..: makes or reads a timeline and prints it.
 *
 *     --format orders     its text (the default)
 *     --format times      makespan, worst bubble, peaks and messages under the costs given
 *     --format proof      proves it
 *     --format text, svg, json    draws it; --columns n; --colour yes
 *     --slots n, --memory m   with so many receive slots a channel, within so much memory
 *     -F f -B b -W w      cost of a task in one stage (1, 2, 1); I costs b - w
 *     --fb c              cost of an overlapped pair; --comm c of a message; --scale s:k,.. multiplies costs of a stage
 *
 * timeline_tool auto RANKS MICROBATCHES LAYERS [OPTION]..: searches for one; layers share the cost of a full stage a rank.
 *
 *     --format table      all rivals, the answer and its bounds; --format row: the best rivals alone
 *     --head k            a head that costs as much as k layers; --held m bytes a full stage holds; --fi c cost of a pair of
 *                         F and I; --chunks n at most; --copies no: every stage on one rank; --effort x
 *
 * FILE may be `-`. It is `dtmc timeline` without a program, of costs made up. */
#include "passes/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char *words[4], *format, *scale;
    int n_words;
    double f, b, w, fb, fi, comm, memory, head, held, effort;
    int slots, chunks, columns;
    bool no_copies, colour;
    dtm_timeline_answer *found;
} options;

static _Noreturn void usage(const char *what) {
    fprintf(stderr, "timeline_tool: %s; see the head of tests/timeline_tool.c\n", what);
    exit(2);
}

static options read_options(int count, char **words) {
    options o = {.format = "orders", .f = 1, .b = 2, .w = 1, .fb = -1, .fi = -1};
    for (int i = 1; i < count; i++) {
        const char *word = words[i], *value = i + 1 < count ? words[i + 1] : NULL;
        if (word[0] != '-' || !word[1]) {
            if (o.n_words == 4) usage("too many words");
            o.words[o.n_words++] = word;
            continue;
        }
        if (!value) usage("an option without its value");
        i++;
        if (!strcmp(word, "--format")) o.format = value;
        else if (!strcmp(word, "--scale")) o.scale = value;
        else if (!strcmp(word, "-F")) o.f = atof(value);
        else if (!strcmp(word, "-B")) o.b = atof(value);
        else if (!strcmp(word, "-W")) o.w = atof(value);
        else if (!strcmp(word, "--fb")) o.fb = atof(value);
        else if (!strcmp(word, "--comm")) o.comm = atof(value);
        else if (!strcmp(word, "--memory")) o.memory = atof(value);
        else if (!strcmp(word, "--fi")) o.fi = atof(value);
        else if (!strcmp(word, "--head")) o.head = atof(value);
        else if (!strcmp(word, "--held")) o.held = atof(value);
        else if (!strcmp(word, "--effort")) o.effort = atof(value);
        else if (!strcmp(word, "--chunks")) o.chunks = atoi(value);
        else if (!strcmp(word, "--copies")) o.no_copies = !strcmp(value, "no");
        else if (!strcmp(word, "--columns")) o.columns = atoi(value);
        else if (!strcmp(word, "--colour")) o.colour = !strcmp(value, "yes");
        else if (!strcmp(word, "--slots")) o.slots = atoi(value);
        else usage("an option that there is not");
    }
    return o;
}

static dtm_timeline *read_file(dtm_context *context, const char *name) {
    FILE *file = strcmp(name, "-") ? fopen(name, "rb") : stdin;
    if (!file) usage("the file cannot be read");
    dtm_text text = {dtm_context_arena(context), NULL, 0, 0};
    char bytes[4096];
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, file)) > 0;) dtm_text_append(&text, bytes, n);
    if (file != stdin) fclose(file);
    return dtm_timeline_parse(context, text.arena, dtm_source_add(context, name, text.length ? text.data : "", text.length));
}

/* The best published schedule with at most so many chunks, its stages cut evenly, or balanced too. */
static const dtm_timeline_rival *best_rival(const dtm_timeline_answer *a, int chunks, bool balanced) {
    const dtm_timeline_rival *best = NULL;
    for (int i = 0; i < a->n_rivals; i++) {
        const dtm_timeline_rival *r = &a->rivals[i];
        if (r->makespan < 1e300 && r->chunks <= chunks && (balanced || r->cut == DTM_CUT_EVEN) &&
            (!best || r->makespan < best->makespan * (1 - 1e-9)))
            best = r;
    }
    return best;
}

static void print_answer(const dtm_timeline_answer *a) {
    const dtm_timeline *t = a->timeline;
    double time = a->times->makespan;
    printf("auto     %9.3f  %s, %d chunk%s a rank, memory %.4g\n", time, dtm_placement_name(t->placement), t->chunks,
           t->chunks == 1 ? "" : "s", a->times->memory);
    printf("at least %9.3f  for these stages (%.1f%% less), %.3f for any (%.1f%% less)\n", a->bound,
           fmax(0, 100 * (1 - a->bound / time)), a->least, fmax(0, 100 * (1 - a->least / time)));
}

static void print_table(const dtm_timeline_answer *a) {
    for (int i = 0; i < a->n_rivals; i++) {
        const dtm_timeline_rival *r = &a->rivals[i];
        if (r->makespan < 1e300)
            printf("%-24s V%d %-9s %9.3f  memory %.4g\n", r->name, r->chunks, r->cut == DTM_CUT_EVEN ? "even" : "balanced", r->makespan,
                   r->memory);
    }
    printf("stages:");
    for (int s = 0; s < a->timeline->stages; s++) printf(" %d", a->units[s]);
    printf("\n");
    print_answer(a);
}

/* The best published ones: with layers shared out evenly and at most two chunks a rank, as they were published, and any. */
static void print_row(const dtm_timeline_answer *a) {
    const dtm_timeline_rival *plain = best_rival(a, 2, false), *any = best_rival(a, 99, true);
    if (plain) printf("best     %9.3f  %s, %d chunk%s a rank, memory %.4g\n", plain->makespan, plain->name, plain->chunks,
                      plain->chunks == 1 ? "" : "s", plain->memory);
    if (any && any != plain)
        printf("or       %9.3f  %s, %d chunk%s a rank%s, memory %.4g\n", any->makespan, any->name, any->chunks,
               any->chunks == 1 ? "" : "s", any->cut == DTM_CUT_BALANCED ? ", stages balanced" : "", any->memory);
    print_answer(a);
}

/* auto RANKS MICROBATCHES LAYERS [CHUNKS]: a table of rivals, and the timeline in the format wanted. */
static dtm_timeline *search_for(dtm_context *context, options *o) {
    dtm_arena *arena = dtm_context_arena(context);
    int ranks = atoi(o->words[1]), layers = atoi(o->words[3]), units = layers + (o->head > 0);
    double share = (double)ranks / layers; /* of a full stage */
    dtm_stage_cost *unit = dtm_arena_alloc(arena, (size_t)units * sizeof *unit);
    for (int u = 0; u < units; u++) {
        double by = share * (u < layers ? 1 : o->head);
        for (const char *at = o->scale; at && *at && u < layers; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
            unsigned s;
            double k;
            if (sscanf(at, "%u:%lf", &s, &k) == 2 && s == (unsigned)(u * ranks / layers)) by *= k;
        }
        unit[u] = (dtm_stage_cost){o->f * by, (o->b - o->w) * by, o->w * by};
        if (u < layers) unit[u].kept = unit[u].kept_for_weight = share;
        if (o->fb >= 0) unit[u].hidden = (o->f + o->b - o->fb) * by;
        if (o->fi >= 0) unit[u].hidden_input = (o->f + o->b - o->w - o->fi) * by;
        unit[u].held = o->held * share;
    }
    dtm_timeline_problem p = {ranks, atoi(o->words[2]), units,        unit,      0,    layers, o->comm,
                              0,     o->memory,         o->no_copies, o->chunks, NULL, 0,      o->effort};
    o->found = dtm_arena_alloc(arena, sizeof *o->found);
#define a (*o->found)
    if (!dtm_timeline_search(context, arena, &p, &a)) return NULL;
    if (!strcmp(o->format, "table")) print_table(&a);
    if (!strcmp(o->format, "row")) print_row(&a);
    return a.timeline;
#undef a
}

static dtm_timeline *get(dtm_context *context, options *o) {
    if (o->n_words == 1) return read_file(context, o->words[0]);
    if (o->n_words == 4 && !strcmp(o->words[0], "auto")) return search_for(context, o);
    if (o->n_words < 3) usage("a file, or a schedule, ranks and microbatches are expected");
    return dtm_timeline_order(context, dtm_context_arena(context), (dtm_span){0, 0, 0}, o->words[0], atoi(o->words[1]),
                              atoi(o->words[2]), o->n_words > 3 ? atoi(o->words[3]) : 0);
}

/* simulate.py's costs: alike in all stages but for --scale; a pair costs that of the dearer stage. */
static dtm_timeline_costs costs_of(const dtm_timeline *t, const options *o) {
    size_t n = (size_t)t->stages;
    double *scale = dtm_arena_alloc(t->arena, n * sizeof *scale), *pair = NULL;
    dtm_stage_cost *stage = dtm_arena_alloc(t->arena, n * sizeof *stage);
    for (size_t s = 0; s < n; s++) scale[s] = 1;
    for (const char *at = o->scale; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        unsigned s;
        double by;
        if (sscanf(at, "%u:%lf", &s, &by) == 2 && s < n) scale[s] = by;
    }
    for (size_t s = 0; s < n; s++)
        stage[s] =
            (dtm_stage_cost){o->f * scale[s], (o->b - o->w) * scale[s], o->w * scale[s], .kept = 1, .kept_for_weight = 1};
    if (o->fb >= 0) {
        pair = dtm_arena_alloc(t->arena, n * n * sizeof *pair);
        for (size_t i = 0; i < n * n; i++) pair[i] = o->fb * (scale[i / n] > scale[i % n] ? scale[i / n] : scale[i % n]);
    }
    return (dtm_timeline_costs){t->stages, stage, o->comm, 0, pair};
}

/* As simulate.py has them: name, makespan, least and most idle time, most idle within a rank's span, peaks, messages. */
static void print_times(const dtm_timeline *t, const options *o) {
    dtm_timeline_costs costs = costs_of(t, o);
    dtm_timeline_times *times = dtm_timeline_simulate(t->arena, t, &costs);
    if (times->stuck) {
        printf("%s\tDEADLOCK\n", t->name);
        return;
    }
    dtm_timeline_count_messages(t, times);
    double least = 1e300, most = 0, span = 0;
    for (int r = 0; r < t->ranks; r++) {
        const dtm_rank_times *rank = &times->rank[r];
        double idle = times->makespan - rank->busy, within = rank->last - rank->first - rank->busy;
        least = idle < least ? idle : least;
        most = idle > most ? idle : most;
        span = within > span ? within : span;
    }
    printf("%s\t%.6g\t%.6g..%.6g\t%.1f\t%.6g\t", t->name, times->makespan, least, most, 100 * times->worst_bubble, span);
    for (int r = 0; r < t->ranks; r++) printf("%s%g", r ? "," : "", times->rank[r].kept);
    printf("\t%d\n", times->waiting);
}

static bool print_proof(dtm_context *context, const dtm_timeline *t, const options *o) {
    dtm_timeline_costs costs = costs_of(t, o);
    dtm_timeline_limits limits = {o->slots, 1, o->memory};
    dtm_timeline_proof proof;
    if (!dtm_timeline_prove(context, t->arena, t, &costs, &limits, &proof)) return false;
    printf("%s\tproved\t%d slots, ample %d\t", t->name, proof.slots, proof.ample);
    for (int r = 0; r < t->ranks; r++) printf("%s%g", r ? "," : "", proof.rank[r].kept);
    printf("\n");
    return true;
}

int main(int count, char **words) {
    options o = read_options(count, words);
    dtm_context *context = dtm_context_create();
    dtm_timeline *t = get(context, &o);
    dtm_text text = {dtm_context_arena(context), NULL, 0, 0};
    bool good = t != NULL;
    if (!good) {
    } else if (!strcmp(o.format, "orders")) {
        dtm_timeline_print(t, &text);
        fputs(text.data, stdout);
    } else if (!strcmp(o.format, "table") || !strcmp(o.format, "row")) {
    } else if (!strcmp(o.format, "times")) {
        print_times(t, &o);
    } else if (!strcmp(o.format, "proof")) {
        good = print_proof(context, t, &o);
    } else if (!strcmp(o.format, "text") || !strcmp(o.format, "svg") || !strcmp(o.format, "json")) {
        dtm_timeline_costs costs = o.found ? o.found->costs : costs_of(t, &o);
        dtm_timeline_times *times = dtm_timeline_simulate(t->arena, t, &costs);
        if (o.format[0] == 't') dtm_timeline_draw_text(t, &costs, times, o.columns, o.colour, &text);
        if (o.format[0] == 's') dtm_timeline_draw_svg(t, &costs, times, &text);
        if (o.format[0] == 'j') dtm_timeline_draw_json(t, &costs, times, 1e6, &text);
        fputs(text.data, stdout);
    } else {
        usage("--format orders, times, proof, text, svg or json");
    }
    dtm_diagnostics_print(context, stderr, false);
    dtm_context_destroy(context);
    return good ? 0 : 1;
}
