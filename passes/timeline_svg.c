/* A timeline as a picture (timeline.h): a row a rank, F, I, W and B in colours, paler in later chunks, a pair split in two,
 * idle time white, waiting for a message on its way hatched, and a line below as long as the rank's messages are on their way, under
 * what it computes; a time axis, and each rank's idle share and memory. */
#include "passes/timeline.h"

#include <math.h>

enum { ROW = 22, GAP = 4, LEFT = 62, RIGHT = 118, TOP = 44, BOTTOM = 52, WIDTH = 960 };

typedef struct picture {
    const dtm_timeline *timeline;
    const dtm_timeline_costs *costs;
    const dtm_timeline_times *times;
    dtm_text *text;
    double scale; /* pixels a unit of time */
    bool messages; /* some take time */
} picture;

typedef struct colour {
    int red, green, blue;
} colour;

static const colour colours[] = {{66, 120, 190}, {62, 150, 100}, {90, 180, 170}, {176, 178, 184}}; /* F B I W */

/* Paler from chunk to chunk. */
static colour shade(int kind, int chunk) {
    double pale = chunk > 4 ? 0.6 : 0.15 * chunk;
    colour c = colours[kind];
    return (colour){c.red + (int)((255 - c.red) * pale), c.green + (int)((255 - c.green) * pale),
                    c.blue + (int)((255 - c.blue) * pale)};
}

static double x_of(const picture *p, double time) { return LEFT + time * p->scale; }
static int y_of(int rank) { return TOP + rank * (ROW + GAP); }

static void box(picture *p, double x, double y, double width, double height, dtm_task task) {
    colour c = shade(task.kind, task.chunk);
    dtm_text_printf(p->text, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"#%02x%02x%02x\"/>\n", x, y,
                    width, height, c.red, c.green, c.blue);
    double size = fmin(11, height * 0.72);
    int digits = task.microbatch < 10 ? 1 : task.microbatch < 100 ? 2 : 3;
    if (width < digits * size * 0.62 + 1) return;
    bool dark = task.kind == DTM_TASK_WEIGHT || task.kind == DTM_TASK_INPUT || task.chunk > 1;
    dtm_text_printf(p->text, "<text x=\"%.2f\" y=\"%.2f\" font-size=\"%.1f\" fill=\"%s\" text-anchor=\"middle\">%u</text>\n",
                    x + width / 2, y + height / 2 + size * 0.36, size, dark ? "#222" : "#fff", task.microbatch);
}

static void draw_operation(picture *p, int rank, size_t i) {
    const dtm_operation *o = &p->timeline->order[rank].operations[i];
    const dtm_rank_times *r = &p->times->rank[rank];
    double x = x_of(p, r->start[i]), width = x_of(p, r->end[i]) - x, inner = width > 2 ? width - 0.6 : width;
    if (o->kind == DTM_OPERATION_GROUP) {
        if (width > 0)
            dtm_text_printf(p->text, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"url(#wait)\"/>\n", x,
                            y_of(rank), width, ROW);
        return;
    }
    double height = o->kind == DTM_OPERATION_PAIR ? ROW / 2.0 : ROW;
    box(p, x, y_of(rank), inner, height, o->tasks[0]);
    if (o->kind == DTM_OPERATION_PAIR) box(p, x, y_of(rank) + height, inner, height, o->tasks[1]);
}

/* The time before an operation in which the message that it waits for was made and not yet there. */
static void draw_wait(picture *p, int rank, size_t i) {
    const dtm_timeline *t = p->timeline;
    const dtm_operation *o = &t->order[rank].operations[i];
    const dtm_rank_times *r = &p->times->rank[rank];
    double way = 0, before = i ? r->end[i - 1] : 0;
    for (int k = 0; o->kind != DTM_OPERATION_GROUP && k < (o->kind == DTM_OPERATION_PAIR ? 2 : 1); k++) {
        dtm_task_place needs[2];
        int n = dtm_timeline_needs(t, rank, o->tasks[k], needs);
        if (n == 0 || needs[n - 1].rank == rank) continue;
        const dtm_message_times *m = &p->times->message[dtm_timeline_number(t, needs[n - 1].rank, needs[n - 1].task)];
        way = fmax(way, m->arrived - m->made);
    }
    double from = fmax(before, r->start[i] - way);
    if (r->start[i] - from <= 1e-9 * p->times->makespan) return;
    dtm_text_printf(p->text, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"url(#wait)\"/>\n", x_of(p, from),
                    y_of(rank), (r->start[i] - from) * p->scale, ROW);
}

/* What an operation sends, while it is on its way. */
static void draw_messages(picture *p, int rank, size_t i) {
    const dtm_timeline *t = p->timeline;
    const dtm_operation *o = &t->order[rank].operations[i];
    for (int k = 0; !t->groups && k < (o->kind == DTM_OPERATION_PAIR ? 2 : 1); k++) {
        const dtm_message_times *m = &p->times->message[dtm_timeline_number(t, rank, o->tasks[k])];
        int chunk, to = dtm_timeline_sends(t, rank, o->tasks[k], &chunk);
        if (to < 0 || m->arrived <= m->begun) continue;
        p->messages = true;
        dtm_text_printf(p->text, "<path d=\"M%.2f %d h%.2f\" stroke=\"#c0504d\" stroke-width=\"2\"/>\n", x_of(p, m->begun),
                        y_of(rank) + ROW + GAP / 2, (m->arrived - m->begun) * p->scale);
    }
}

static void draw_rank(picture *p, int rank) {
    const dtm_rank_times *r = &p->times->rank[rank];
    int y = y_of(rank) + ROW / 2 + 4;
    dtm_text_printf(p->text, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">rank %d</text>\n", LEFT - 8, y, rank);
    dtm_text_printf(p->text, "<rect x=\"%d\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"#f4f4f2\"/>\n", LEFT, y_of(rank),
                    p->times->makespan * p->scale, ROW);
    for (size_t i = 0; i < r->done; i++) {
        draw_wait(p, rank, i);
        draw_operation(p, rank, i);
        draw_messages(p, rank, i);
    }
    double idle = p->times->makespan > 0 ? 1 - r->busy / p->times->makespan : 0;
    dtm_text_printf(p->text, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"end\">%.1f%%</text>\n", LEFT + WIDTH + 50.0, y,
                    100 * idle);
    dtm_text_printf(p->text, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"end\">%.4g</text>\n", LEFT + WIDTH + 110.0, y, r->memory);
}

/* A step of 1, 2 or 5 times a power of ten that makes about ten of the whole. */
static double tick(double all) {
    double power = pow(10, floor(log10(all / 10))), x = all / 10 / power;
    return power * (x < 2 ? 2 : x < 5 ? 5 : 10);
}

static void draw_axis(picture *p) {
    int y = y_of(p->timeline->ranks);
    if (p->times->makespan <= 0) return;
    double step = tick(p->times->makespan);
    for (int i = 0; i * step <= p->times->makespan * (1 + 1e-9); i++) {
        double x = x_of(p, i * step);
        dtm_text_printf(p->text, "<path d=\"M%.2f %d v4\" stroke=\"#888\"/>", x, y);
        dtm_text_printf(p->text, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\" fill=\"#555\">%.6g</text>\n", x, y + 16,
                        i * step);
    }
}

static void draw_legend(picture *p) {
    static const char *const names[] = {"forward", "backward", "input gradient", "weight gradient"};
    static const int widths[] = {80, 90, 120, 130};
    bool there[4] = {false}, pair = false;
    const dtm_timeline *t = p->timeline;
    for (int r = 0; r < t->ranks; r++)
        for (size_t i = 0; i < t->order[r].count; i++) {
            const dtm_operation *o = &t->order[r].operations[i];
            if (o->kind == DTM_OPERATION_GROUP) continue;
            there[o->tasks[0].kind] = true;
            if (o->kind == DTM_OPERATION_PAIR) pair = there[o->tasks[1].kind] = true;
        }
    int x = LEFT, y = y_of(t->ranks) + 30;
    for (int k = 0; k < 4; k++) {
        if (!there[k]) continue;
        colour c = shade(k, 0);
        dtm_text_printf(p->text, "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"#%02x%02x%02x\"/>", x, y, c.red,
                        c.green, c.blue);
        dtm_text_printf(p->text, "<text x=\"%d\" y=\"%d\">%s</text>\n", x + 17, y + 10, names[k]);
        x += widths[k];
    }
    if (pair) dtm_text_printf(p->text, "<text x=\"%d\" y=\"%d\">one above the other: overlapped</text>\n", x, y + 10), x += 190;
    if (t->chunks > 1) dtm_text_printf(p->text, "<text x=\"%d\" y=\"%d\">paler: %s</text>\n", x, y + 10,
                                       t->directions == 2 ? "the other direction" : "later chunks"), x += 150;
    if (p->messages) dtm_text_printf(p->text, "<text x=\"%d\" y=\"%d\" fill=\"#c0504d\">line below: messages on their way</text>\n", x, y + 10);
}

void dtm_timeline_draw_svg(const dtm_timeline *t, const dtm_timeline_costs *costs, const dtm_timeline_times *times,
                           dtm_text *text) {
    picture p = {t, costs, times, text, times->makespan > 0 ? WIDTH / times->makespan : 1};
    int width = LEFT + WIDTH + RIGHT, height = y_of(t->ranks) + BOTTOM;
    dtm_text_printf(text,
                    "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
                    "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\" fill=\"#222\">\n",
                    width, height, width, height);
    dtm_text_printf(
        text,
        "<defs><pattern id=\"wait\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><path d=\"M0 0 v4\" stroke=\"#c0504d\" stroke-width=\"1.4\"/></pattern></defs>\n");
    dtm_text_printf(text, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", width, height);
    dtm_text_printf(text, "<text x=\"%d\" y=\"20\" font-size=\"14\" font-weight=\"bold\">%s</text>\n", LEFT, t->name);
    dtm_text_printf(text,
                    "<text x=\"%d\" y=\"35\" fill=\"#555\">%d rank%s, %d microbatch%s, %d stage%s; time %.6g%s%s, bubble %.1f%%, "
                    "exposed communication %.1f%%</text>\n",
                    LEFT, t->ranks, dtm_plural(t->ranks), t->microbatches, t->microbatches == 1 ? "" : "es", t->stages,
                    dtm_plural(t->stages), times->makespan, times->time_unit ? " " : "",
                    times->time_unit ? times->time_unit : "", 100 * times->bubble,
                    times->makespan > 0 ? 100 * times->communication / times->makespan : 0.0);
    dtm_text_printf(text, "<text x=\"%d\" y=\"35\" text-anchor=\"end\" fill=\"#555\">idle</text>", LEFT + WIDTH + 50);
    dtm_text_printf(text, "<text x=\"%d\" y=\"35\" text-anchor=\"end\" fill=\"#555\">%s</text>\n", LEFT + WIDTH + 110,
                    times->memory_unit ? times->memory_unit : "memory");
    for (int r = 0; r < t->ranks; r++) draw_rank(&p, r);
    draw_axis(&p);
    draw_legend(&p);
    dtm_text_printf(text, "</svg>\n");
}
