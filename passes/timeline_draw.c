/* A timeline as text that fits a terminal (timeline.h). Time is cut into columns. Where an operation has room for it, it is
 * written out (`F3`, `f3` in an odd chunk); where several fall into one column, kinds are shown as often as they take time. */
#include "passes/timeline.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

enum { LABEL = 9, STATS = 17 };
#define UNDERLINED "\033[4m"

typedef struct canvas {
    const dtm_timeline *timeline;
    const dtm_timeline_costs *costs;
    const dtm_timeline_times *times;
    dtm_text *text;
    int width;       /* columns of time */
    double step;     /* time of a column */
    bool colour;
    char *row;       /* of the rank at hand */
    char *paint;     /* its colours: the letter of the kind, P for a pair */
    bool *under;     /* in colours: messages of the rank are under way beside what it computes */
} canvas;

/* What an operation is painted as. */
static char kind_of(const dtm_operation *o) {
    if (o->kind == DTM_OPERATION_GROUP) return '~';
    return o->kind == DTM_OPERATION_PAIR ? 'X' : DTM_TASK_LETTERS[o->tasks[0].kind];
}

static int task_label(char *label, size_t size, dtm_task task) {
    char letter = DTM_TASK_LETTERS[task.kind];
    return snprintf(label, size, "%c%u", task.chunk % 2 ? tolower(letter) : letter, task.microbatch);
}

/* Writes an operation into the columns that it fills all or most of. */
static void put(canvas *c, const dtm_operation *o, double start, double end) {
    int from = (int)floor(start / c->step + 0.5), to = (int)floor(end / c->step + 0.5);
    char label[64], kind = kind_of(o);
    int length = 0;
    if (o->kind != DTM_OPERATION_GROUP) length = task_label(label, sizeof label, o->tasks[0]);
    if (o->kind == DTM_OPERATION_PAIR) length += task_label(label + length, sizeof label - (size_t)length, o->tasks[1]);
    for (int i = from; i < to && i < c->width; i++) {
        int at = i - from;
        bool fits = length <= to - from;
        c->paint[i] = kind;
        if (kind == '~') c->row[i] = '~';
        else if (fits) c->row[i] = at < length ? label[at] : '-';
        else if (o->kind == DTM_OPERATION_PAIR) c->row[i] = 'X';
        else c->row[i] = at == 0 ? label[0] : '-';
    }
}

/* Where columns are wider than operations: what a column has of each kind adds up until it is shown, so that kinds stand
 * there as often as they take time. */
static void put_shares(canvas *c, int rank) {
    const dtm_rank_times *r = &c->times->rank[rank];
    double owed[128] = {0};
    size_t next = 0;
    for (int i = 0; i < c->width; i++) {
        double begin = i * c->step, end = begin + c->step, idle = c->step;
        for (size_t k = next; k < r->done && r->start[k] < end; k++) {
            double there = fmin(end, r->end[k]) - fmax(begin, r->start[k]);
            if (there > 0) owed[(int)kind_of(&c->timeline->order[rank].operations[k])] += there, idle -= there;
            if (r->end[k] <= end) next = k + 1;
        }
        char most = '.';
        owed['.'] += idle;
        for (int k = 0; k < 128; k++)
            if (owed[k] > owed[(int)most] + 1e-9 * c->step) most = (char)k;
        owed[(int)most] -= c->step;
        c->row[i] = c->paint[i] = most;
    }
}

/* Idle columns just before an operation that waited for a message on its way. */
static void put_waits(canvas *c, int rank) {
    const dtm_timeline *t = c->timeline;
    const dtm_rank_times *r = &c->times->rank[rank];
    for (size_t i = 0; i < r->done; i++) {
        const dtm_operation *o = &t->order[rank].operations[i];
        double way = 0, before = i ? r->end[i - 1] : 0;
        for (int k = 0; o->kind != DTM_OPERATION_GROUP && k < (o->kind == DTM_OPERATION_PAIR ? 2 : 1); k++) {
            dtm_task_place needs[2];
            int n = dtm_timeline_needs(t, rank, o->tasks[k], needs);
            if (n == 0 || needs[n - 1].rank == rank) continue;
            const dtm_message_times *m = &c->times->message[dtm_timeline_number(t, needs[n - 1].rank, needs[n - 1].task)];
            way = fmax(way, m->arrived - m->made);
        }
        double from = fmax(before, r->start[i] - way);
        for (int k = (int)floor(from / c->step + 0.5); k < (int)floor(r->start[i] / c->step + 0.5) && k < c->width; k++)
            if (c->row[k] == '.') c->row[k] = c->paint[k] = '~';
    }
}

/* Columns in which messages of a rank, to it and from it, are under way for the better part, while it computes. */
static void put_under(canvas *c, int rank) {
    const dtm_timeline *t = c->timeline;
    memset(c->under, 0, (size_t)c->width * sizeof *c->under);
    for (size_t i = 0; i < c->times->rank[rank].done; i++) {
        const dtm_operation *o = &t->order[rank].operations[i];
        for (int k = 0; o->kind != DTM_OPERATION_GROUP && k < (o->kind == DTM_OPERATION_PAIR ? 2 : 1); k++) {
            dtm_task_place needs[2];
            int n = dtm_timeline_needs(t, rank, o->tasks[k], needs);
            size_t message[2] = {dtm_timeline_number(t, rank, o->tasks[k])}, count = 1;
            if (n && needs[n - 1].rank != rank) message[count++] = dtm_timeline_number(t, needs[n - 1].rank, needs[n - 1].task);
            for (size_t m = 0; m < count; m++) {
                const dtm_message_times *way = &c->times->message[message[m]];
                double from = floor(way->begun / c->step + 0.5), to = floor(way->arrived / c->step + 0.5);
                for (double at = from; at < to && at < c->width; at++) /* NAN: there is none */
                    c->under[(int)at] = c->paint[(int)at] != '.' && c->paint[(int)at] != '~';
            }
        }
    }
}

static const char *colour_of(char kind) {
    switch (kind) {
    case 'F': return "\033[44;97m";
    case 'B': return "\033[42;30m";
    case 'I': return "\033[46;30m";
    case 'W': return "\033[47;30m";
    case 'X': return "\033[45;97m";
    case '~': return "\033[31m";
    }
    return "\033[90m";
}

static void print_row(canvas *c, int rank) {
    dtm_text_printf(c->text, "rank %-3d ", rank);
    for (int i = 0; i < c->width;) {
        int to = i;
        while (to < c->width && c->paint[to] == c->paint[i] && c->under[to] == c->under[i]) to++;
        if (c->colour) dtm_text_printf(c->text, "%s%s", colour_of(c->paint[i]), c->under[i] ? UNDERLINED : "");
        dtm_text_append(c->text, c->row + i, (size_t)(to - i));
        if (c->colour) dtm_text_printf(c->text, "\033[0m");
        i = to;
    }
    const dtm_rank_times *r = &c->times->rank[rank];
    double idle = c->times->makespan > 0 ? 1 - r->busy / c->times->makespan : 0;
    dtm_text_printf(c->text, " %5.1f%% %9.4g\n", 100 * idle, r->memory);
}

/* The shortest operation there is, so that its columns can be counted. */
static double shortest(const canvas *c) {
    double least = INFINITY;
    for (int r = 0; r < c->timeline->ranks; r++)
        for (size_t i = 0; i < c->times->rank[r].done; i++) {
            double time = c->times->rank[r].end[i] - c->times->rank[r].start[i];
            if (time > 0 && c->timeline->order[r].operations[i].kind != DTM_OPERATION_GROUP) least = fmin(least, time);
        }
    return least;
}

/* The width that the timeline is drawn at: as wide as it may be, or narrower if the shortest operation is then a whole
 * number of columns, so that operations of equal length look alike. */
static void set_width(canvas *c, int columns) {
    double least = shortest(c), all = c->times->makespan;
    c->width = columns - LABEL - STATS;
    int whole = least < INFINITY && all > 0 ? (int)(c->width * least / all) : 0;
    if (whole > 6) whole = 6;
    if (whole >= 1 && ceil(whole * all / least - 1e-9) <= c->width)
        c->width = (int)ceil(whole * all / least - 1e-9), c->step = least / whole;
    else c->step = all > 0 ? all / c->width : 1;
}

void dtm_timeline_wrap(dtm_text *text, size_t from, int columns) {
    size_t length = text->length - from, width = (size_t)columns;
    if (!length) return;
    dtm_arena *arena = dtm_arena_create();
    char *line = dtm_arena_printf(arena, "%.*s", (int)length, text->data + from);
    text->length = from;
    for (const char *indent = ""; *line; indent = "  ") {
        size_t room = width - strlen(indent), at = strcspn(line, "\n");
        if (at > room)
            for (at = room; at && line[at] != ' ';) at--;
        while (at && line[at - 1] == ' ') at--;
        if (!at) at = strcspn(line, " \n"); /* a word longer than a line */
        dtm_text_printf(text, "%s%.*s\n", indent, (int)at, line);
        line += at + strspn(line + at, " \n");
    }
    dtm_arena_destroy(arena);
}

void dtm_timeline_draw_text(const dtm_timeline *t, const dtm_timeline_costs *costs, const dtm_timeline_times *times,
                            int columns, bool colour, dtm_text *text) {
    dtm_arena *arena = dtm_arena_create();
    canvas c = {t, costs, times, text, .colour = colour};
    if (columns <= 0) columns = 100;
    if (columns < DTM_TIMELINE_NARROWEST) columns = DTM_TIMELINE_NARROWEST;
    set_width(&c, columns);
    c.row = dtm_arena_alloc(arena, (size_t)c.width);
    c.paint = dtm_arena_alloc(arena, (size_t)c.width);
    c.under = dtm_arena_alloc(arena, (size_t)c.width * sizeof *c.under);
    size_t from = text->length;
    dtm_text_printf(text, "%s: %d rank%s, %d microbatch%s, %d stage%s, placement %s\n", t->name, t->ranks, dtm_plural(t->ranks),
                    t->microbatches, t->microbatches == 1 ? "" : "es", t->stages, dtm_plural(t->stages), dtm_placement_name(t->placement));
    dtm_timeline_wrap(text, from, columns);
    dtm_text_printf(text, "%*s   idle %9s\n", LABEL + c.width, "", times->memory_unit ? times->memory_unit : "memory");
    bool crowded = shortest(&c) < c.step * (1 - 1e-9);
    for (int r = 0; r < t->ranks; r++) {
        memset(c.row, '.', (size_t)c.width);
        memset(c.paint, '.', (size_t)c.width);
        if (crowded) put_shares(&c, r);
        else
            for (size_t i = 0; i < times->rank[r].done; i++)
                put(&c, &t->order[r].operations[i], times->rank[r].start[i], times->rank[r].end[i]);
        if (!t->groups) put_waits(&c, r);
        if (!t->groups && colour) put_under(&c, r);
        print_row(&c, r);
    }
    from = text->length;
    dtm_text_printf(text,
                    "time %.6g%s%s, bubble %.1f%% (at most %.1f%% on a rank), exposed communication %.1f%%, memory of "
                    "a rank %.4g%s%s%s\n",
                    times->makespan, times->time_unit ? " " : "", times->time_unit ? times->time_unit : "",
                    100 * times->bubble, 100 * times->worst_bubble,
                    times->makespan > 0 ? 100 * times->communication / times->makespan : 0.0, times->memory,
                    times->memory_unit ? " " : "", times->memory_unit ? times->memory_unit : "",
                    times->stuck ? "; it stands still" : "");
    dtm_timeline_wrap(text, from, columns);
    dtm_arena_destroy(arena);
}
