/* Timelines: orders by rule against recorded ones, their text, times against another simulator's (tests/schedules/times),
 * the proof and its refusals. Drawings are cases: tests/passes/timeline_*. */
#include "passes/timeline_search.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int failures, checks;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        checks++;                                                                                                      \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                            \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, "\n");                                                                                     \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

static const char folder[] = "tests/schedules/";

/* ---- helpers ---- */

static dtm_timeline *parse(dtm_context *context, const char *name, const char *text) {
    return dtm_timeline_parse(context, dtm_context_arena(context), dtm_source_add(context, name, text, strlen(text)));
}

static char *read_file(dtm_context *context, const char *name) {
    FILE *file = fopen(name, "rb");
    dtm_text text = {dtm_context_arena(context), NULL, 0, 0};
    char bytes[4096];
    dtm_text_append(&text, "", 0);
    for (size_t n; file && (n = fread(bytes, 1, sizeof bytes, file)) > 0;) dtm_text_append(&text, bytes, n);
    CHECK(file != NULL, "%s cannot be read", name);
    if (file) fclose(file);
    return text.data;
}

static const char *printed(const dtm_timeline *t) {
    dtm_text text = {t->arena, NULL, 0, 0};
    dtm_timeline_print(t, &text);
    return text.data;
}

static const char *body(const char *text) { return strchr(text, '\n') ? strchr(text, '\n') + 1 : text; }

/* All diagnostics so far, as they are shown. */
static const char *diagnostics(dtm_context *context) {
    char *shown = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&shown, &length);
    dtm_diagnostics_print(context, out, false);
    fclose(out);
    const char *kept = dtm_arena_strdup(dtm_context_arena(context), shown);
    free(shown);
    return kept;
}

static void expect_text(const char *what, const char *got, const char *wanted) {
    CHECK(strcmp(got, wanted) == 0, "%s:\n--- got\n%s--- wanted\n%s---", what, got, wanted);
}

static dtm_timeline_costs uniform(dtm_arena *arena, int stages, double f, double i, double w, double message) {
    dtm_stage_cost *stage = dtm_arena_alloc(arena, (size_t)stages * sizeof *stage);
    for (int s = 0; s < stages; s++) stage[s] = (dtm_stage_cost){f, i, w, .kept = 1, .kept_for_weight = 1};
    return (dtm_timeline_costs){stages, stage, message, 0, NULL};
}

/* ---- recorded orders ---- */

static void test_recorded_file(const char *file) {
    dtm_context *context = dtm_context_create();
    dtm_arena *arena = dtm_context_arena(context);
    char name[64] = "";
    int p = 0, m = 0, v = 0;
    const char *text = read_file(context, dtm_arena_printf(arena, "%s%s", folder, file));
    dtm_timeline *t = parse(context, file, text);
    CHECK(t != NULL, "%s: %s", file, diagnostics(context));
    if (!t) return;
    expect_text(file, body(printed(t)), body(text));
    sscanf(file, "%63[^_]", name);
    if (!strncmp(file, "interleaved_moeoverlap", 22)) strcpy(name, "interleaved_moeoverlap");
    sscanf(strstr(file, "_P"), "_P%d_M%d_V%d", &p, &m, &v);
    CHECK(t->ranks == p && t->microbatches == m && !strcmp(t->name, name), "%s: the first line", file);
    dtm_timeline_proof proof;
    CHECK(dtm_timeline_prove(context, arena, t, NULL, NULL, &proof), "%s: not proved", file);
    if (!strstr(file, ".comm.") && strcmp(name, "zbh2") && strcmp(name, "vhalf") && strcmp(name, "vmin")) {
        dtm_timeline *made = search_rule(arena, name, p, m, v ? v : t->chunks);
        CHECK(made != NULL, "%s: no rule", file);
        if (made) expect_text(file, body(printed(made)), body(text));
    }
    dtm_context_destroy(context);
}

static void test_recorded(void) {
    DIR *directory = opendir(folder);
    int files = 0;
    CHECK(directory != NULL, "%s", folder);
    for (struct dirent *e; directory && (e = readdir(directory));)
        if (strlen(e->d_name) > 4 && !strcmp(e->d_name + strlen(e->d_name) - 4, ".txt")) {
            test_recorded_file(e->d_name);
            files++;
        }
    if (directory) closedir(directory);
    CHECK(files == 60, "%d files", files);
}

/* ---- times ---- */

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * (1 + fabs(b)); }

static dtm_timeline_costs recorded_costs(dtm_arena *arena, const dtm_timeline *t, double f, double b, double w, const char *fb,
                                         double message, const char *scale) {
    dtm_timeline_costs c = uniform(arena, t->stages, f, b - w, w, message);
    size_t n = (size_t)t->stages;
    double *by = dtm_arena_alloc(arena, n * sizeof *by), *pair = dtm_arena_alloc(arena, n * n * sizeof *pair);
    dtm_stage_cost *stage = dtm_arena_alloc(arena, n * sizeof *stage);
    memcpy(stage, c.stage, n * sizeof *stage);
    for (size_t s = 0; s < n; s++) by[s] = 1;
    for (const char *at = scale; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        unsigned s;
        double k;
        if (sscanf(at, "%u:%lf", &s, &k) == 2 && s < n)
            by[s] = k, stage[s].forward *= k, stage[s].input *= k, stage[s].weight *= k;
    }
    for (size_t i = 0; i < n * n; i++) pair[i] = atof(fb) * fmax(by[i / n], by[i % n]);
    c.stage = stage;
    if (fb[0] != '-') c.pair = pair;
    return c;
}

static void test_times_line(const char *line) {
    char file[64], fb[16], scale[64], peaks[256];
    double f, b, w, message, makespan, least, most, span;
    int waiting, fields = sscanf(line, "%63s %lf %lf %lf %15s %lf %63s %lf %lf %lf %lf %255s %d", file, &f, &b, &w, fb,
                                 &message, scale, &makespan, &least, &most, &span, peaks, &waiting);
    dtm_context *context = dtm_context_create();
    dtm_arena *arena = dtm_context_arena(context);
    dtm_timeline *t = parse(context, file, read_file(context, dtm_arena_printf(arena, "%s%s.txt", folder, file)));
    CHECK(fields == 8 || fields == 13, "%s", line);
    if (!t) return;
    dtm_timeline_costs costs = recorded_costs(arena, t, f, b, w, fb, message, scale);
    dtm_timeline_times *times = dtm_timeline_simulate(arena, t, &costs);
    CHECK(!times->stuck && near(times->makespan, makespan), "%s: %g", line, times->makespan);
    dtm_timeline_count_messages(t, times);
    double idle_least = INFINITY, idle_most = 0, span_most = 0;
    const char *at = peaks;
    for (int r = 0; fields == 13 && r < t->ranks; r++, at = strchr(at, ',') ? strchr(at, ',') + 1 : at) {
        const dtm_rank_times *rank = &times->rank[r];
        idle_least = fmin(idle_least, times->makespan - rank->busy);
        idle_most = fmax(idle_most, times->makespan - rank->busy);
        span_most = fmax(span_most, rank->last - rank->first - rank->busy);
        CHECK(rank->kept == atof(at), "%s: rank %d keeps %g", line, r, rank->kept);
    }
    if (fields == 13)
        CHECK(near(idle_least, least) && near(idle_most, most) && near(span_most, span) && times->waiting == waiting &&
                  times->slots >= times->waiting && near(times->worst_bubble, most / makespan),
              "%s: %g %g %g %d", line, idle_least, idle_most, span_most, times->waiting);
    dtm_context_destroy(context);
}

static void test_times(void) {
    dtm_context *context = dtm_context_create();
    char *text = read_file(context, dtm_arena_printf(dtm_context_arena(context), "%stimes", folder)), *save = NULL;
    int lines = 0;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        if (line[0] != '#') test_times_line(line), lines++;
    CHECK(lines == 360, "%d lines", lines);
    dtm_context_destroy(context);
}

/* Uneven stages by hand: two stages, the second twice as dear, messages of 0.5. */
static void test_times_by_hand(void) {
    dtm_context *context = dtm_context_create();
    dtm_arena *arena = dtm_context_arena(context);
    dtm_timeline *t = parse(context, "hand", "# t P=2 M=2 V=1 placement=single\nF0 F1 I0 W0 B1\nF0 I0 F1 B1 W0\n");
    dtm_stage_cost stage[] = {{1, 1, 1, .forward_bytes = 2, .kept = 10, .kept_for_weight = 4, .held = 100, .forward_links = 0.25,
                               .input_links = 0.5, .weight_links = 0.125},
                              {2, 2, 2, .backward_bytes = 1, .kept = 20, .kept_for_weight = 5, .held = 200, .forward_links = 0.5}};
    dtm_timeline_costs costs = {2, stage, 0.5, 4, NULL}; /* F takes 0.5 + 2 / 4, B 0.5 + 1 / 4 */
    dtm_timeline_times *times = dtm_timeline_simulate(arena, t, &costs);
    /* rank 0: F0 0-1, F1 1-2, I0 6.75-7.75, W0 7.75-8.75, B1 12.75-14.75; rank 1: F0 2-4, I0 4-6, F1 6-8, B1 8-12, W0 12-14 */
    CHECK(near(times->makespan, 14.75) && near(times->rank[1].last, 14) && near(times->rank[0].start[2], 6.75),
          "times by hand");
    CHECK(near(times->rank[0].exposed, 0.75 + 0.75) && near(times->rank[1].exposed, 1), "exposed by hand: %g %g",
          times->rank[0].exposed, times->rank[1].exposed);
    CHECK(near(times->rank[0].kept, 20) && near(times->rank[1].kept, 25) && near(times->memory, 225), "memory by hand");
    CHECK(near(times->rank[0].links, 2 * 0.25 + 0.5 + 0.125 + 0.625) && near(times->rank[1].links, 2 * 0.5) &&
              near(times->communication, 1.5 + 1.75) && near(times->exposed, 1.5),
          "collectives by hand: %g %g, with messages %g", times->rank[0].links, times->rank[1].links, times->communication);
    dtm_context_destroy(context);
}

/* Of the collectives of a pair, 0.5 of either part, 0.75 is hidden. */
static void test_links_of_pairs(void) {
    dtm_context *context = dtm_context_create();
    dtm_timeline *t = parse(context, "pair", "# t P=1 M=2 V=1 placement=single\nF0 (F1+B0) B1\n");
    dtm_stage_cost stage[] = {{2, 2, 1, .hidden = 0.75, .forward_links = 0.5, .input_links = 0.5}};
    dtm_timeline_costs costs = {1, stage, 0, 0, NULL};
    dtm_timeline_times *times = dtm_timeline_simulate(dtm_context_arena(context), t, &costs);
    CHECK(near(times->makespan, 2 + 4.25 + 3) && near(times->communication, 0.5 + 0.25 + 0.5), "a pair: %g of %g",
          times->communication, times->makespan);
    dtm_context_destroy(context);
}

/* Messages of 2 that share a way, a latency of 1, and F of 1: when they begin to move, and F1 and F2 of rank 1 begin. */
static void check_ways(const dtm_timeline *t, int slots, int buffers, double first, double second, double third, double last) {
    dtm_arena *arena = dtm_arena_create();
    dtm_stage_cost stage[] = {{1, 1, 1, .forward_bytes = 2}, {1, 1, 1}};
    dtm_timeline_costs costs = {2, stage, 1, 1, NULL, slots, buffers};
    dtm_timeline_times *times = dtm_timeline_simulate(arena, t, &costs);
    const dtm_message_times *m[3];
    for (uint32_t k = 0; k < 3; k++) m[k] = &times->message[dtm_timeline_number(t, 0, (dtm_task){k, 0, DTM_TASK_FORWARD})];
    CHECK(near(m[0]->begun, first) && near(m[1]->begun, second) && near(m[2]->begun, third) && near(m[2]->left, third + 2) &&
              near(m[2]->arrived, third + 3) && near(times->rank[1].start[2], last),
          "%d slots, %d buffers: %g %g %g, %g", slots, buffers, m[0]->begun, m[1]->begun, m[2]->begun, times->rank[1].start[2]);
    dtm_arena_destroy(arena);
}

static void test_ways_by_hand(void) {
    dtm_context *context = dtm_context_create();
    dtm_timeline *t = parse(context, "ways", "# t P=2 M=3 V=1 placement=single\nF0 F1 F2 B0 B1 B2\nF0 F1 F2 B0 B1 B2\n");
    check_ways(t, 0, 0, 1, 3, 5, 8);  /* made at 1, 2, 3; one after another */
    check_ways(t, 2, 0, 1, 3, 5, 8);  /* F0 is used from 4 to 5 */
    check_ways(t, 1, 0, 1, 5, 9, 12); /* each when the one before it has been used */
    check_ways(t, 0, 1, 1, 4, 7, 10); /* F1 begins when F0 has left, at 3 */
    check_ways(t, 1, 2, 1, 5, 9, 12); /* F2 begins when F0 has left, and waits for the slot all the same */
    dtm_context_destroy(context);
}

/* Beside messages of 2, from 1 to 3 and from when F1 is made at 2 on: a sum of four pieces of 1, which rank 0 comes to at 1.5 and which
 * rank 1 has a part in or not, and one that goes on from it on a stream of its own. */
static void test_sums_by_hand(void) {
    dtm_context *context = dtm_context_create();
    dtm_arena *arena = dtm_context_arena(context);
    dtm_timeline *t = parse(context, "sums", "# t P=2 M=2 V=1 placement=single\nF0 F1 B0 B1\nF0 F1 B0 B1\n");
    dtm_stage_cost stage[] = {{1, 1, 1, .forward_bytes = 2}, {1, 1, 1}};
    int ranks[] = {0, 1}, none[] = {-1, -1}, first[] = {0, 0};
    size_t at[] = {1, 0};
    double before[] = {0.5, 0};
    dtm_timeline_sum sums[] = {{1, ranks, at, before, none, .copies = 1, .time = 4, .way = 4, .pieces = 4, .stream = 1},
                               {1, ranks, at, before, first, .copies = 1, .time = 2, .way = 1, .pieces = 1, .stream = 2}};
    dtm_timeline_costs costs = {2, stage, 1, 1, NULL, .n_sums = 2, .sums = sums};
    dtm_timeline_times *times = dtm_timeline_simulate(arena, t, &costs);
    const dtm_message_times *m = &times->message[dtm_timeline_number(t, 0, (dtm_task){1, 0, DTM_TASK_FORWARD})];
    /* pieces 3-4, 6-7, 7-8, 8-9; F1 4-6, there at 7; B0 and B1 come back at once; then 9-10 and 1 more */
    CHECK(near(m->begun, 4) && near(m->arrived, 7) && near(times->rank[1].start[1], 7), "a message between pieces: %g", m->begun);
    CHECK(near(times->sum_ended[0], 9) && near(times->sum_ended[1], 11), "sums: %g %g", times->sum_ended[0], times->sum_ended[1]);
    sums[0].members = 2; /* rank 1 comes to it at 5, when F0 has ended: pieces 5-6, 6-7, .. */
    times = dtm_timeline_simulate(arena, t, &costs);
    CHECK(near(m[0].begun, 4) && near(times->sum_ended[0], 9) && near(times->message[dtm_timeline_number(t, 0, (dtm_task){1, 0, 0})].begun, 3),
          "with rank 1: %g", times->sum_ended[0]);
    sums[0].members = 1;
    sums[0].copies = 4; /* four copies, one every 3 from 1.5 on: 3-4, 6-7, 7.5-8.5, 10.5-11.5 */
    sums[0].span = 12;
    times = dtm_timeline_simulate(arena, t, &costs);
    CHECK(near(times->sum_ended[0], 11.5), "copies that come one by one: %g", times->sum_ended[0]);
    dtm_context_destroy(context);
}

/* A B of two regions sends what it makes when its I has ended. */
static void test_divided(void) {
    dtm_context *context = dtm_context_create();
    dtm_arena *arena = dtm_context_arena(context);
    dtm_stage_cost stage[] = {{1, 2, 4}, {1, 2, 4}};
    dtm_timeline_costs costs = {2, stage, 0, 0, NULL, .turns = true};
    dtm_timeline *alone = parse(context, "alone", "# t P=2 M=1 V=1 placement=single\nF0 B0\nF0 B0\n");
    dtm_timeline *pair = parse(context, "pair", "# t P=2 M=2 V=1 placement=single\nF0 F1 B0 B1\nF0 (F1+B0) B1\n");
    for (int divided = 0; divided < 2; divided++) {
        costs.divided = divided;
        /* rank 1: F0 1-2, B0 2-8 with I until 4; F0 1-2, F1 and B0 2-9 with I until 5 */
        CHECK(near(dtm_timeline_simulate(arena, alone, &costs)->rank[0].start[1], divided ? 4 : 8), "alone, divided %d", divided);
        CHECK(near(dtm_timeline_simulate(arena, pair, &costs)->rank[0].start[2], divided ? 5 : 9), "in a pair, divided %d", divided);
    }
    dtm_context_destroy(context);
}

/* What one part of a pair hides of the other, of two stages the lesser; never more than makes it as long as the longer part. */
static void test_pair_times(void) {
    dtm_stage_cost stage[] = {{1, 2, 2, .hidden = 0.5, .hidden_input = 0.25}, {3, 1, 1, .hidden = 2, .hidden_input = 2}};
    dtm_stage_cost hidden[] = {{1, 2, 2, .hidden = 5, .hidden_input = 5}, {3, 1, 1, .hidden = 5, .hidden_input = 5}};
    dtm_timeline_costs costs = {2, stage, 0, 0, NULL}, all = {2, hidden, 0, 0, NULL};
    CHECK(near(dtm_pair_time(&costs, 0, DTM_TASK_BACKWARD, 1), 2.5), "a pair of F and B");
    CHECK(near(dtm_pair_time(&costs, 1, DTM_TASK_BACKWARD, 0), 6.5), "the lesser of two stages");
    CHECK(near(dtm_pair_time(&costs, 0, DTM_TASK_INPUT, 1), 1.75), "a pair of F and I");
    CHECK(near(dtm_pair_time(&all, 0, DTM_TASK_BACKWARD, 0), 4) && near(dtm_pair_time(&all, 1, DTM_TASK_INPUT, 1), 3),
          "a pair takes as long as its parts");
}

/* ---- all numbers ---- */

static void test_grid(void) {
    dtm_context *context = dtm_context_create();
    int made = 0;
    for (int k = 0; dtm_timeline_schedule(k); k++)
        for (int p = 1; p <= 9; p++)
            for (int m = 1; m <= 20; m++)
                for (int v = 0; v <= 4; v += v ? 1 : 2) {
                    const char *name = dtm_timeline_schedule(k);
                    bool doubled = !strncmp(name, "dualpipe", 8), chunked = !strcmp(name, "interleaved");
                    bool legal = (!v || chunked || (v == 2 && (doubled || !strcmp(name, "zbv")))) && (!doubled || m >= 2 * p) &&
                                 (strcmp(name, "dualpipe") || (p % 2 == 0 && m % 2 == 0));
                    dtm_arena *arena = dtm_arena_create();
                    dtm_timeline *t = dtm_timeline_order(context, arena, (dtm_span){0, 0, 0}, name, p, m, v);
                    CHECK((t != NULL) == legal, "%s P=%d M=%d V=%d", name, p, m, v);
                    if (t) {
                        dtm_timeline_costs costs = uniform(arena, t->stages, 1, 1.25, 0.75, 0.125);
                        dtm_timeline_proof proof;
                        CHECK(dtm_timeline_prove(context, arena, t, &costs, NULL, &proof), "%s P=%d M=%d V=%d", name, p, m, v);
                        dtm_timeline_times *times = dtm_timeline_simulate(arena, t, &costs);
                        dtm_timeline_count_messages(t, times);
                        CHECK(!times->stuck && (p == 1 || times->slots > 0) && times->slots <= proof.ample && proof.slots <= proof.ample,
                              "%s P=%d M=%d V=%d: %d %d %d", name, p, m, v, times->slots, proof.slots, proof.ample);
                        for (int r = 0; r < p; r++) CHECK(proof.rank[r].kept == times->rank[r].kept, "%s: memory", name);
                        dtm_text text = {arena, NULL, 0, 0};
                        dtm_timeline_print(t, &text);
                        dtm_context *other = dtm_context_create();
                        dtm_timeline *again = parse(other, "again", text.data);
                        CHECK(again && !strcmp(printed(again), text.data), "%s P=%d M=%d V=%d: read back", name, p, m, v);
                        dtm_context_destroy(other);
                        made++;
                    }
                    dtm_arena_destroy(arena);
                }
    CHECK(made > 1500, "%d timelines", made);
    dtm_context_destroy(context);
}

/* ---- refusals ---- */

static void test_not_defined(void) {
    static const struct {
        const char *name;
        int p, m, v;
        const char *wanted;
    } cases[] = {
        {"dualpipe", 3, 8, 0,
         "error[E0902]: dualpipe needs an even number of ranks, there are 3\n"
         "   help: 4 ranks, or schedule = dualpipev\n"},
        {"dualpipe", 3, 5, 0,
         "error[E0902]: dualpipe needs an even number of ranks, there are 3\n"
         "   help: 4 ranks and microbatches = 8, or schedule = zbv\n"},
        {"dualpipe", 3, 5, 3,
         "error[E0902]: dualpipe has two chunks a rank, not 3\n"
         "   help: chunks = 2 and 4 ranks and microbatches = 8, or schedule = interleaved\n"},
        {"dualpipe", 4, 6, 0,
         "error[E0902]: dualpipe on 4 ranks needs at least 8 microbatches, there are 6\n"
         "   help: microbatches = 8, or schedule = zbv\n"},
        {"dualpipe", 2, 5, 0,
         "error[E0902]: dualpipe sends half of the microbatches either way, 5 cannot be halved\n"
         "   help: microbatches = 6, or schedule = dualpipev\n"},
        {"dualpipev", 2, 1, 0,
         "error[E0902]: dualpipev on 2 ranks needs at least 4 microbatches, there is 1\n"
         "   help: microbatches = 4, or schedule = zbv\n"},
        {"1f1b", 4, 8, 2, "error[E0902]: 1f1b has one chunk a rank, not 2\n   help: chunks = 1, or schedule = interleaved\n"},
        {"zbv", 4, 8, 3, "error[E0902]: zbv has two chunks a rank, not 3\n   help: chunks = 2, or schedule = interleaved\n"},
        {"interleaved", 4, 8, 1,
         "error[E0902]: interleaved has at least two chunks a rank\n   help: chunks = 2, or schedule = 1f1b\n"},
        {"dualpip", 4, 8, 0, "error[E0902]: there is no schedule `dualpip`\n   help: schedule = dualpipe\n"},
        {"zigzag", 4, 8, 0,
         "error[E0902]: there is no schedule `zigzag`\n"
         "   help: gpipe, 1f1b, interleaved, zbh1, zbv, dualpipe, dualpipev or auto\n"},
        {"gpipe", 4, 0, 0, "error[E0902]: a pipeline has at least one rank, one microbatch and one chunk\n"},
        {"gpipe", 60000, 60000, 0, "error[E0902]: a pipeline has at most 4096 ranks, not 60000\n"
         "   help: 4096 ranks and microbatches = 341\n"},
        {"gpipe", 4000, 60000, 0,
         "error[E0902]: 60000 microbatches on 4000 ranks are more tasks than a timeline can have\n"
         "   help: microbatches = 349\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dtm_context *context = dtm_context_create();
        dtm_timeline *t = dtm_timeline_order(context, dtm_context_arena(context), (dtm_span){0, 0, 0}, cases[i].name,
                                             cases[i].p, cases[i].m, cases[i].v);
        CHECK(!t, "%s P=%d M=%d V=%d", cases[i].name, cases[i].p, cases[i].m, cases[i].v);
        expect_text(cases[i].name, diagnostics(context), cases[i].wanted);
        dtm_context_destroy(context);
    }
}

/* Each choice that a help names, tried: `A and B, or schedule = C`. */
static void try_choices(const char *name, int p, int m, int v, const char *help) {
    static const char *const ways[] = {"as it is", "another schedule"};
    char words[160], other[32] = "";
    CHECK(snprintf(words, sizeof words, "%s", help) < (int)sizeof words, "%s", help);
    char *or = strstr(words, ", or schedule = ");
    CHECK(or && sscanf(or + 16, "%31s", other) == 1, "%s P=%d M=%d V=%d: no other schedule: %s", name, p, m, v, help);
    if (or) *or = 0;
    int changed = 0, q = p, n = m, w = v;
    for (char *at = words, *next; at; at = next) {
        next = strstr(at, " and ");
        if (next) *next = 0, next += 5;
        changed += sscanf(at, "chunks = %d", &w) == 1 || sscanf(at, "microbatches = %d", &n) == 1 || sscanf(at, "%d rank", &q) == 1;
    }
    CHECK(changed > 0, "%s P=%d M=%d V=%d: nothing to change: %s", name, p, m, v, help);
    for (int way = 0; way < 2; way++) {
        dtm_context *context = dtm_context_create();
        dtm_arena *arena = dtm_context_arena(context);
        dtm_timeline *t = way ? dtm_timeline_order(context, arena, (dtm_span){0, 0, 0}, other, p, m, v)
                              : dtm_timeline_order(context, arena, (dtm_span){0, 0, 0}, name, q, n, w);
        CHECK(t, "%s P=%d M=%d V=%d: %s is refused too: %s", name, p, m, v, ways[way], help);
        dtm_context_destroy(context);
    }
}

static void test_choices(void) {
    int refused = 0;
    const char *name;
    for (int i = 0; (name = dtm_timeline_schedule(i)); i++)
        for (int k = 0; k < 8 * 20 * 5; k++) {
            int p = 1 + k / 100, m = 1 + k / 5 % 20, v = k % 5;
            dtm_context *context = dtm_context_create();
            if (!dtm_timeline_order(context, dtm_context_arena(context), (dtm_span){0, 0, 0}, name, p, m, v)) {
                const char *help = strstr(diagnostics(context), "help: ");
                CHECK(help, "%s P=%d M=%d V=%d: no help", name, p, m, v);
                if (help) try_choices(name, p, m, v, help + 6);
                refused++;
            }
            dtm_context_destroy(context);
        }
    CHECK(refused > 1000, "%d refused", refused);
}

#define HEAD "# t P=2 M=2 V=1 placement=single\n"

static void test_text(void) {
    static const struct {
        const char *text, *wanted; /* the message with its line; NULL: it is read */
    } cases[] = {
        {HEAD "F0 F1 B0 B1\nF0 B0 F1 B1\n", NULL},
        {"\n# a comment\n" HEAD "# another\nrank 0: F0 F1   B0 B1 # and one\n\n  1: F0\tB0 F1 B1", NULL},
        {"# t P=2 M=2 V=2 placement=v x=y\n( B0.1 + F1.0 ) F0.0 (F1.1+I0.0)\nrank 1:\n", NULL},
        {HEAD "[S:F0>1 R:B0<1] F0\n[R:F0<0] F0 [S:I0>0]\n", NULL},
        {"", "t:1:1: error[E0901]: a timeline begins with a line such as `# 1f1b P=4 M=8 V=1 placement=single`\n"},
        {"F0 B0\n", "t:1:1: error[E0901]: a timeline begins with a line such as `# 1f1b P=4 M=8 V=1 placement=single`\n"},
        {"# t P=2 M=2\n", "t:1:1: error[E0901]: the first line of a timeline says P=.., M=.., V=.. (each at least 1) and "
                          "placement=single, loop, v or bidir\n"},
        {"# t P=2 M=x V=1 placement=loop\n", "t:1:9: error[E0901]: M is a whole number from 1 to 1048576\n"},
        {"# t P=2 M=2 V=1 placement=ring\n", "t:1:17: error[E0901]: placement is single, loop, v or bidir\n"},
        {"# t P=2 M=2 V=2 placement=single\n", "t:1:1: error[E0901]: placement=single has V=1: one stage a rank\n"},
        {"# t P=2 M=2 V=1 placement=bidir\n",
         "t:1:1: error[E0901]: placement=bidir has V=2: each rank holds a stage for either direction\n"},
        {"# t P=60000 M=2000000 V=1 placement=single\n", "t:1:1: error[E0901]: a timeline has at most 1048576 microbatches, not 2000000\n"},
        {"# t P=60000 M=600 V=1 placement=single\n",
         "t:1:1: error[E0901]: a timeline has at most 4194304 tasks, three for each of P x V x M\n"},
        {HEAD "F0 X1\n", "t:2:4: error[E0901]: a task is expected: F, B, I or W, a microbatch, and a chunk: F3, B0.1\n"},
        {HEAD "F0 F1B0\n", "t:2:4: error[E0901]: a task is expected: F, B, I or W, a microbatch, and a chunk: F3, B0.1\n"},
        {HEAD "F0 F2\n", "t:2:4: error[E0901]: microbatch 2 of 2 (they count from 0)\n"},
        {HEAD "F0 F1.1\n", "t:2:4: error[E0901]: chunk 1 of 1 (they count from 0)\n"},
        {"# t P=2 M=3 V=2 placement=bidir\nF1.0 F1.1\n",
         "t:2:6: error[E0901]: microbatch 1 of 1 of this direction (they count from 0)\n"},
        {HEAD "(F0+F1)\n", "t:2:1: error[E0901]: a pair is an F and a B or I: (F3.0+B1.1)\n"},
        {HEAD "(F0+W1)\n", "t:2:1: error[E0901]: a pair is an F and a B or I: (F3.0+B1.1)\n"},
        {HEAD "(F0 B1)\n", "t:2:1: error[E0901]: a pair is an F and a B or I: (F3.0+B1.1)\n"},
        {HEAD "[S:F0>1 F0\n", "t:2:9: error[E0901]: a message is S:TASK>RANK or R:TASK<RANK: S:F0>1, R:B0.1<2\n"},
        {HEAD "[S:F0>1\n", "t:2:1: error[E0901]: a group of messages without its `]`\n"},
        {HEAD "[S:F0>0]\n", "t:2:2: error[E0901]: a message sends what an F or B makes to another rank: S:F0>1, R:B0.1<2\n"},
        {HEAD "[S:F0<1]\n", "t:2:2: error[E0901]: a message sends what an F or B makes to another rank: S:F0>1, R:B0.1<2\n"},
        {HEAD "1: F0\n", "t:2:1: error[E0901]: the line of rank 0 stands here, lines come in the order of ranks\n"},
        {HEAD "F0\nF0\nF0\n", "t:4:1: error[E0901]: P=2: a line for each rank and no more\n"},
        {HEAD "F0\n", "t:2:3: error[E0901]: P=2, but there is a line for 1 rank\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dtm_context *context = dtm_context_create();
        dtm_timeline *t = parse(context, "t", cases[i].text);
        const char *said = diagnostics(context), *end = strchr(said, '\n');
        CHECK((t != NULL) == (cases[i].wanted == NULL), "%s: %s", cases[i].text, said);
        if (cases[i].wanted) {
            char *line = dtm_arena_printf(dtm_context_arena(context), "%.*s\n", end ? (int)(end - said) : 0, said);
            expect_text(cases[i].text, line, cases[i].wanted);
        }
        if (t) {
            dtm_timeline *again = parse(context, "again", printed(t));
            CHECK(again && !strcmp(printed(again), printed(t)), "read back: %s", printed(t));
        }
        dtm_context_destroy(context);
    }
}

static void refused(const char *text, const dtm_timeline_limits *limits, const char *wanted) {
    dtm_context *context = dtm_context_create();
    dtm_timeline *t = parse(context, "t", text);
    dtm_timeline_proof proof;
    CHECK(t != NULL, "%s", diagnostics(context));
    if (!t) return;
    dtm_timeline_costs costs = uniform(t->arena, t->stages, 1, 1, 1, 0);
    CHECK(!dtm_timeline_prove(context, t->arena, t, &costs, limits, &proof), "proved: %s", text);
    expect_text(text, diagnostics(context), wanted);
    dtm_context_destroy(context);
}

static void test_refusals(void) {
    /* contents: E0903 */
    refused(HEAD "F0 F1 B0 B0\nF0 B0 F1 I1 W1\n", NULL,
            "t:2:10: error[E0903]: rank 0 does B0 of stage 0 twice (a B is an I and a W)\n"
            "    2 | F0 F1 B0 B0\n      |          ^^\n"
            "t:2:7: note: it stands here already\n"
            "t:2:10: error[E0903]: rank 0 never does B1 of stage 0\n"
            "    2 | F0 F1 B0 B0\n      |          ^^\n");
    refused(HEAD "F0 F1 B0 B1\nB0 F0 (F1+B1)\n", NULL,
            "t:3:1: error[E0903]: rank 1 does B0 of stage 1 before F0 of stage 1, which it needs\n"
            "    3 | B0 F0 (F1+B1)\n      | ^^\n"
            "t:3:7: error[E0903]: rank 1 does B1 of stage 1 at once with F1 of stage 1, which it needs\n"
            "    3 | B0 F0 (F1+B1)\n      |       ^^^^^^^\n");
    /* messages that cross: E0904 */
    refused(HEAD "F0 F1 B0 B1\nF0 F1 B1 B0\n", NULL,
            "t:2:7: error[E0904]: messages cross: number 0 of the channel B from rank 1 to rank 0 is B1 of stage 1, but rank 0 "
            "takes it for B0 of stage 1\n"
            "    2 | F0 F1 B0 B1\n      |       ^^\n"
            "t:3:7: note: here it is sent\n"
            "   help: put the operations of either rank in the order of the other\n");
    /* a cycle: E0905 */
    refused(HEAD "F0 B0 F1 B1\nF0 F1 B0 B1\n", NULL,
            "t:2:4: error[E0905]: the timeline stands still: 2 ranks wait for each other\n"
            "    2 | F0 B0 F1 B1\n      |    ^^\n"
            "t:2:4: note: rank 0, at B0 of stage 0, waits for B0 of stage 1 from rank 1, which\n"
            "t:3:4: note: rank 1, at F1 of stage 1, waits for F1 of stage 0 from rank 0, where this began\n");
    refused("# t P=3 M=1 V=2 placement=loop\nF0.1 F0.0 B0.1 B0.0\nF0.1 F0.0 B0.1 B0.0\nF0.1 F0.0 B0.1 B0.0\n", NULL,
            "t:2:1: error[E0905]: the timeline stands still: 3 ranks wait for each other\n"
            "    2 | F0.1 F0.0 B0.1 B0.0\n      | ^^^^\n"
            "t:2:1: note: rank 0, at F0 of stage 3, waits for F0 of stage 2 from rank 2, which\n"
            "t:4:1: note: rank 2, at F0 of stage 5, waits for F0 of stage 4 from rank 1, which\n"
            "t:3:1: note: rank 1, at F0 of stage 4, waits for F0 of stage 3 from rank 0, where this began\n");
    refused(HEAD "F0 [S:F0>1] [R:B0<1] B0 F1 [S:F1>1] [R:B1<1] B1\n[R:F0<0] F0 [R:F1<0] B0 [S:B0>0] F1 B1 [S:B1>0]\n", NULL,
            "t:2:13: error[E0905]: the timeline stands still: 2 ranks wait for each other\n"
            "    2 | F0 [S:F0>1] [R:B0<1] B0 F1 [S:F1>1] [R:B1<1] B1\n      |             ^^^^^^^^\n"
            "t:2:13: note: rank 0, at a group of messages, waits for rank 1 to send B0 of stage 1, which\n"
            "t:3:13: note: rank 1, at a group of messages, waits for rank 0 to send F1 of stage 0, where this began\n");
    /* messages written out: E0904, E0908 */
    refused(HEAD "F0 [S:F0>1] F1 [S:F1>1 R:B0<1] B0 [R:B1<1] B1\n[R:F1<0] [R:F0<0] F0 B0 [S:B0>0] F1 B1 [S:B1>0]\n", NULL,
            "t:3:2: error[E0904]: messages cross: number 0 of the channel F from rank 0 to rank 1 is F0 of stage 0, but rank 1 "
            "takes it for F1 of stage 0\n"
            "    3 | [R:F1<0] [R:F0<0] F0 B0 [S:B0>0] F1 B1 [S:B1>0]\n      |  ^^^^^^\n"
            "t:2:5: note: here it is sent\n"
            "   help: put the receives in the order of the sends\n");
#define HELP_ALL                                                                                                                   \
    "   help: once one message is written in a group, all must be: each is sent in one, [S:F0>1], and received in one, [R:F0<0]; " \
    "without any group they follow from the order\n"
    static const char *const lost[][2] = {
        {"[S:F0>1] F0 [R:B0<1] B0\n[R:F0<0] F0 B0 [S:B0>0]\n", "t:2:2: error[E0908]: rank 0 sends F0 of stage 0 before it is "
                                                               "made\n    2 | [S:F0>1] F0 [R:B0<1] B0\n      |  ^^^^^^\n"},
        {"F0 [S:F0>1] [R:B0<1] B0\n[R:F0<0] F0 B0\n", "t:2:14: error[E0908]: rank 1 never sends B0 of stage 1\n    2 | F0 "
                                                      "[S:F0>1] [R:B0<1] B0\n      |              ^^^^^^\n" HELP_ALL},
        {"F0 [S:F0>1] B0\n[R:F0<0] F0 B0 [S:B0>0]\n",
         "t:2:13: error[E0908]: rank 0 does B0 of stage 0 before it has received B0 of stage 1 from rank 1\n"
         "    2 | F0 [S:F0>1] B0\n      |             ^^\n" HELP_ALL},
        {"F0 [S:F0>1 S:F0>1] [R:B0<1] B0\n[R:F0<0] F0 B0 [S:B0>0]\n",
         "t:2:12: error[E0908]: rank 0 sends F0 of stage 0 twice\n"
         "    2 | F0 [S:F0>1 S:F0>1] [R:B0<1] B0\n      |            ^^^^^^\n"},
        {"F0 [S:F0>1] [R:B0<1] B0 [S:B0>1]\n[R:F0<0] F0 B0 [S:B0>0]\n",
         "t:2:26: error[E0908]: B0 of stage 0 of rank 0 goes to no other rank\n"
         "    2 | F0 [S:F0>1] [R:B0<1] B0 [S:B0>1]\n      |                          ^^^^^^\n"},
    };
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        char text[256];
        snprintf(text, sizeof text, "# t P=2 M=1 V=1 placement=single\n%s", lost[i][0]);
        refused(text, NULL, lost[i][1]);
    }
    /* slots and memory: E0906, E0907 */
    static const char tight[] = "# t P=2 M=4 V=2 placement=loop\n"
                                "F0.0 F0.1 F1.0 F2.0 F3.0 B0.1 B0.0 F1.1 F2.1 F3.1 B1.1 B1.0 B2.1 B2.0 B3.1 B3.0\n"
                                "F0.0 F0.1 B0.1 B0.0 F1.0 F2.0 F3.0 F1.1 F2.1 F3.1 B1.1 B1.0 B2.1 B2.0 B3.1 B3.0\n";
    dtm_timeline_limits one = {1, 1, 0}, small = {2, 1, 5};
    refused(tight, &one,
            "t:2:21: error[E0906]: 1 receive slot a channel is too few: 2 ranks wait for each other\n"
            "    2 | F0.0 F0.1 F1.0 F2.0 F3.0 B0.1 B0.0 F1.1 F2.1 F3.1 B1.1 B1.0 B2.1 B2.0 B3.1 B3.0\n"
            "      |                     ^^^^\n"
            "t:2:21: note: rank 0, at F3 of stage 0, waits until rank 1 has used F1 of stage 0 and a slot is free, which\n"
            "t:3:16: note: rank 1, at B0 of stage 1, waits for B0 of stage 2 from rank 0, where this began\n"
            "   help: 2 slots a channel do\n");
    refused(tight, &small,
            "t:2:46: error[E0907]: rank 0 needs memory of 6, it has 5, at F3 of stage 2\n"
            "    2 | F0.0 F0.1 F1.0 F2.0 F3.0 B0.1 B0.0 F1.1 F2.1 F3.1 B1.1 B1.0 B2.1 B2.0 B3.1 B3.0\n"
            "      |                                              ^^^^\n"
            "note: 0 for what its stages hold, 6 for activations, 0 for 2 receive slots a channel\n"
            "t:3:46: error[E0907]: rank 1 needs memory of 6, it has 5, at F3 of stage 3\n"
            "    3 | F0.0 F0.1 B0.1 B0.0 F1.0 F2.0 F3.0 F1.1 F2.1 F3.1 B1.1 B1.0 B2.1 B2.0 B3.1 B3.0\n"
            "      |                                              ^^^^\n"
            "note: 0 for what its stages hold, 6 for activations, 0 for 2 receive slots a channel\n");
}

/* What the proof says of memory, by hand: stages that hold, keep, and send different amounts. */
static void test_memory(void) {
    dtm_context *context = dtm_context_create();
    dtm_timeline *t = parse(context, "m", HEAD "F0 F1 I0 W0 B1\nF0 I0 F1 B1 W0\n");
    dtm_stage_cost stage[] = {{1, 1, 1, .forward_bytes = 7, .kept = 10, .kept_for_weight = 4, .held = 100},
                              {2, 2, 2, .backward_bytes = 3, .kept = 20, .kept_for_weight = 5, .held = 200}};
    dtm_timeline_costs costs = {2, stage, 0, 0, NULL};
    dtm_timeline_limits limits = {3, 1, 200 + 25 + 21};
    dtm_timeline_proof proof;
    CHECK(dtm_timeline_prove(context, t->arena, t, &costs, &limits, &proof), "%s", diagnostics(context));
    CHECK(proof.rank[0].held == 100 && proof.rank[0].kept == 20 && proof.rank[0].messages == 9, "rank 0");
    CHECK(proof.rank[1].held == 200 && proof.rank[1].kept == 25 && proof.rank[1].messages == 21, "rank 1");
    limits.memory -= 0.5;
    CHECK(!dtm_timeline_prove(context, t->arena, t, &costs, &limits, &proof), "within less memory than it takes");
    dtm_context_destroy(context);
}

/* ---- random timelines ---- */

static uint64_t state;
static int draw(int below) { return (int)(search_random(&state) * below); }

/* A timeline of the dispatcher on random costs. */
static dtm_timeline *random_timeline(dtm_arena *arena, dtm_timeline_costs *costs) {
    static const dtm_placement placements[] = {DTM_PLACE_SINGLE, DTM_PLACE_LOOP, DTM_PLACE_V, DTM_PLACE_BIDIRECTIONAL};
    dtm_placement placement = placements[draw(4)];
    int ranks = 1 + draw(5), microbatches = 1 + draw(7);
    int chunks = placement == DTM_PLACE_SINGLE ? 1 : placement == DTM_PLACE_BIDIRECTIONAL ? 2 : 1 + draw(4);
    int stages = placement == DTM_PLACE_BIDIRECTIONAL ? ranks : ranks * chunks;
    dtm_stage_cost *stage = dtm_arena_alloc(arena, (size_t)stages * sizeof *stage);
    for (int s = 0; s < stages; s++)
        stage[s] = (dtm_stage_cost){1 + draw(3), 1 + draw(3), 1 + draw(2), .hidden = draw(2), .hidden_input = draw(2),
                                    .kept = 1 + draw(3), .kept_for_weight = draw(2)};
    *costs = (dtm_timeline_costs){stages, stage, draw(3) * 0.5, 0, NULL};
    search_instance *in = search_instance_create(arena, costs, placement, ranks, microbatches, chunks, 0);
    search_dispatcher *d = search_dispatcher_create(arena, in);
    search_policy policy = search_policy_create(arena, in);
    search_plan plan = search_plan_create(arena, in);
    do {
        search_style style = search_style_number(draw(30), in, &state);
        search_style_policy(&style, in, &policy);
        for (int i = draw(10); i > 0; i--) search_policy_shake(in, &policy, &state);
        search_dispatch(d, &policy, INFINITY, &plan);
    } while (plan.makespan == INFINITY);
    return search_plan_timeline(arena, in, &plan, "random");
}

/* One small change: two neighbours swapped, an operation gone, twice, elsewhere, or another microbatch. */
static void change(dtm_timeline *t) {
    dtm_rank_order *order = &t->order[draw(t->ranks)];
    if (order->count < 2) return;
    size_t i = (size_t)draw((int)order->count - 1), j = (size_t)draw((int)order->count);
    dtm_operation *o = order->operations, moved = o[j];
    switch (draw(5)) {
    case 0: moved = o[i], o[i] = o[i + 1], o[i + 1] = moved; break;
    case 1: memmove(o + i, o + i + 1, (order->count-- - i - 1) * sizeof *o); break;
    case 2: o[i] = moved; break;
    case 3:
        memmove(o + j, o + j + 1, (order->count - j - 1) * sizeof *o);
        memmove(o + i + 1, o + i, (order->count - i - 1) * sizeof *o);
        o[i] = moved;
        break;
    case 4: o[i].tasks[0].microbatch = (uint32_t)draw(dtm_timeline_passing(t, o[i].tasks[0].chunk)); break;
    }
}

/* What the proof of a timeline should say, by other means: counting, and the clock (stuck or not). The order of messages is
 * compared where both ends are in place. */
static bool should_hold(const dtm_timeline *t, const dtm_timeline_costs *costs) {
    dtm_arena *arena = dtm_arena_create();
    int *count = dtm_arena_alloc(arena, dtm_timeline_numbers(t) * sizeof *count),
        *place = dtm_arena_alloc(arena, dtm_timeline_numbers(t) * sizeof *place);
    bool holds = true;
    for (int r = 0; r < t->ranks; r++)
        for (size_t i = 0; i < t->order[r].count; i++)
            for (int k = 0; k < (t->order[r].operations[i].kind == DTM_OPERATION_PAIR ? 2 : 1); k++) {
                dtm_task task = t->order[r].operations[i].tasks[k];
                count[dtm_timeline_number(t, r, task)]++;
                place[dtm_timeline_number(t, r, task)] = (int)i;
                if (task.kind == DTM_TASK_BACKWARD) count[dtm_timeline_number(t, r, task) + 1]++;
            }
    for (int r = 0; r < t->ranks; r++)
        for (int c = 0; c < t->chunks; c++)
            for (int m = 0; m < dtm_timeline_passing(t, c); m++)
                for (int k = 0; k < 3; k++)
                    holds &= count[dtm_timeline_number(t, r, (dtm_task){(uint32_t)m, (uint16_t)c, 0}) + (uint32_t)k] == 1;
    dtm_timeline_times *times = dtm_timeline_simulate(arena, t, costs);
    holds = holds && !times->stuck;
    for (int r = 0; holds && r < t->ranks; r++) /* within a rank: strictly after what is needed; the clock lets pairs pass */
        for (size_t i = 0; i < t->order[r].count; i++)
            for (int k = 0; k < (t->order[r].operations[i].kind == DTM_OPERATION_PAIR ? 2 : 1); k++) {
                dtm_task_place needs[2];
                int n = dtm_timeline_needs(t, r, t->order[r].operations[i].tasks[k], needs);
                for (int j = 0; j < n; j++)
                    if (needs[j].rank == r && place[dtm_timeline_number(t, r, needs[j].task)] >= (int)i) holds = false;
            }
    for (int a = 0; holds && a < t->ranks; a++) /* any two messages of a channel: made and used in the same order */
        for (int c = 0; c < t->chunks; c++)
            for (int e = 0; e < t->chunks; e++)
                for (int kind = 0; kind < 3; kind += 2)
                    for (int m = 0; m < dtm_timeline_passing(t, c); m++)
                        for (int n = 0; n < dtm_timeline_passing(t, e); n++) {
                            dtm_task x = {(uint32_t)m, (uint16_t)c, (uint8_t)kind},
                                     y = {(uint32_t)n, (uint16_t)e, (uint8_t)kind};
                            int cx, cy, to = dtm_timeline_sends(t, a, x, &cx);
                            if (to < 0 || dtm_timeline_sends(t, a, y, &cy) != to) continue;
                            dtm_task ux = {x.microbatch, (uint16_t)cx, x.kind}, uy = {y.microbatch, (uint16_t)cy, y.kind};
                            int made = place[dtm_timeline_number(t, a, x)] - place[dtm_timeline_number(t, a, y)];
                            int used = place[dtm_timeline_number(t, to, ux)] - place[dtm_timeline_number(t, to, uy)];
                            if ((made < 0 && used > 0) || (made > 0 && used < 0)) holds = false;
                        }
    dtm_arena_destroy(arena);
    return holds;
}

/* A message has the way out and the way in for itself, from when it is made and, with slots, one that it finds free. */
static void check_messages(const dtm_timeline *t, const dtm_timeline_costs *costs, const dtm_timeline_times *times, int round) {
    dtm_arena *arena = dtm_arena_create();
    size_t most = (size_t)t->microbatches * (size_t)t->chunks, count = 0;
    typedef struct moved {
        int from, to;
        const dtm_message_times *times;
    } moved;
    moved *all = dtm_arena_alloc(arena, (size_t)t->ranks * 2 * most * sizeof *all);
    for (int r = 0; r < t->ranks; r++)
        for (int k = 0; k < 2; k++)
            for (int c = 0; c < t->chunks; c++)
                for (int m = 0; m < dtm_timeline_passing(t, c); m++) {
                    dtm_task task = {(uint32_t)m, (uint16_t)c, k ? DTM_TASK_INPUT : DTM_TASK_FORWARD};
                    int chunk, to = dtm_timeline_sends(t, r, task, &chunk);
                    const dtm_message_times *x = &times->message[dtm_timeline_number(t, r, task)];
                    if (to < 0) continue;
                    CHECK(x->begun >= x->made && x->left >= x->begun && near(x->arrived, x->left + costs->latency), "round %d: a message", round);
                    for (size_t i = 0; i < count; i++)
                        if (all[i].from == r || all[i].to == to)
                            CHECK(all[i].times->left <= x->begun + 1e-9 || x->left <= all[i].times->begun + 1e-9,
                                  "round %d: two have one way", round);
                    all[count++] = (moved){r, to, x};
                }
    dtm_arena_destroy(arena);
}

/* With slots and buffers so few that the proof says it stands still, the clock does too, and with one more it does not. */
static void check_slots(dtm_timeline *t, dtm_timeline_costs costs, const dtm_timeline_proof *proof, int round) {
    dtm_arena *arena = dtm_arena_create();
    dtm_stage_cost *stage = dtm_arena_alloc(arena, (size_t)costs.stages * sizeof *stage);
    for (int s = 0; s < costs.stages; s++) {
        stage[s] = costs.stage[s];
        stage[s].forward_bytes = draw(4);
        stage[s].backward_bytes = draw(4);
    }
    costs.stage = stage;
    costs.bandwidth = 1 + draw(3);
    costs.divided = draw(2);
    check_messages(t, &costs, dtm_timeline_simulate(arena, t, &costs), round);
    costs.slots = proof->slots;
    costs.buffers = 1;
    dtm_timeline_times *times = dtm_timeline_simulate(arena, t, &costs);
    CHECK(!times->stuck, "round %d: %d slots", round, costs.slots);
    if (!times->stuck) check_messages(t, &costs, times, round);
    if (--costs.slots) CHECK(dtm_timeline_simulate(arena, t, &costs)->stuck, "round %d: %d slots are too few", round, costs.slots);
    dtm_arena_destroy(arena);
}

static void test_random(int rounds) {
    int right = 0, wrong = 0;
    for (int round = 0; round < rounds; round++) {
        dtm_context *context = dtm_context_create();
        dtm_arena *arena = dtm_context_arena(context);
        dtm_timeline_costs costs;
        state = (uint64_t)round * 6271 + 3;
        dtm_timeline *t = random_timeline(arena, &costs);
        for (int i = round % 2 ? 1 + draw(3) : 0; i > 0; i--) change(t);
        bool should = should_hold(t, &costs);
        dtm_timeline_proof proof;
        bool holds = dtm_timeline_prove(context, arena, t, &costs, NULL, &proof);
        CHECK(holds == should, "round %d: proof %d, expected %d: %s%s", round, holds, should, printed(t), diagnostics(context));
        CHECK(holds == (dtm_error_count(context) == 0), "round %d: an error exactly where it does not hold", round);
        if (holds) {
            dtm_timeline_times *times = dtm_timeline_simulate(arena, t, &costs);
            dtm_timeline_count_messages(t, times);
            CHECK(times->slots <= proof.ample && proof.slots <= proof.ample, "round %d: slots %d %d %d", round, times->slots,
                  proof.slots, proof.ample);
            for (int r = 0; r < t->ranks; r++) CHECK(proof.rank[r].kept == times->rank[r].kept, "round %d: memory", round);
            dtm_timeline_limits limits = {.receive_slots = proof.slots};
            CHECK(dtm_timeline_prove(context, arena, t, &costs, &limits, &proof), "round %d: with the slots it needs", round);
            if (!t->groups) check_slots(t, costs, &proof, round);
            limits.receive_slots--;
            if (limits.receive_slots)
                CHECK(!dtm_timeline_prove(context, arena, t, &costs, &limits, &proof), "round %d: with fewer", round);
            dtm_timeline *again = parse(context, "again", printed(t));
            CHECK(again && !strcmp(printed(again), printed(t)), "round %d: read back", round);
        }
        holds ? right++ : wrong++;
        dtm_context_destroy(context);
    }
    CHECK(right * 3 > rounds && wrong * 4 > rounds, "%d right, %d wrong", right, wrong);
}

/* Text with a few bytes changed, gone or twice: it is read or refused, and what is read is proved or refused. */
static void test_mutated(int rounds) {
    static const char *const files[] = {"dualpipe_P4_M8.txt", "dualpipe_P4_M8.comm.txt", "interleaved_P2_M4_V2.comm.txt",
                                        "vmin_P4_M8.txt", "1f1b_P2_M4.comm.txt"};
    int read = 0;
    for (int round = 0; round < rounds; round++) {
        dtm_context *context = dtm_context_create();
        dtm_arena *arena = dtm_context_arena(context);
        state = (uint64_t)round * 31337 + 7;
        char *text = read_file(context, dtm_arena_printf(arena, "%s%s", folder, files[draw(5)]));
        size_t length = strlen(text);
        for (int i = 1 + draw(3); i > 0; i--) {
            size_t at = (size_t)draw((int)length), to = (size_t)draw((int)length);
            if (draw(3) == 0) at = (size_t)draw(100);
            switch (draw(4)) {
            case 0: text[at] = "FBIW0123456789.()+[]SR:<># \n"[draw(29)]; break;
            case 1: memmove(text + at, text + at + 1, length - at); break;
            case 2: text[at] = text[to]; break;
            case 3: text[at] = (char)draw(256); break;
            }
            length = strlen(text);
        }
        dtm_timeline *t = parse(context, "mutated", text);
        CHECK((t == NULL) == (dtm_error_count(context) > 0), "round %d: an error exactly where nothing is read", round);
        if (t) {
            dtm_timeline_costs costs = uniform(arena, t->stages, 1, 1, 1, 0.5);
            dtm_timeline_proof proof;
            bool holds = dtm_timeline_prove(context, arena, t, &costs, NULL, &proof);
            dtm_timeline_times *times = dtm_timeline_simulate(arena, t, &costs);
            CHECK(!holds || !times->stuck, "round %d: proved, but it stands still", round);
            read++;
        }
        dtm_context_destroy(context);
    }
    CHECK(read * 20 > rounds, "%d read", read);
}

int main(int count, char **words) {
    int scale = count > 1 ? atoi(words[1]) : 1;
    test_recorded();
    test_times();
    test_times_by_hand();
    test_links_of_pairs();
    test_ways_by_hand();
    test_divided();
    test_sums_by_hand();
    test_pair_times();
    test_grid();
    test_not_defined();
    test_choices();
    test_text();
    test_refusals();
    test_memory();
    test_random(1000 * scale);
    test_mutated(1000 * scale);
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
