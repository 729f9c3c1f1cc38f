/* A timeline in the trace format of Chrome and Perfetto (timeline.h): complete events, times in microseconds. The executable's
 * own trace has the same names, and its ranks are other processes, so that both can be looked at in one view. */
#include "passes/timeline.h"

enum { FIRST_PROCESS = 1000000 }; /* of rank 0; those of a run are called by their ranks */

typedef struct writer {
    const dtm_timeline *timeline;
    const dtm_timeline_costs *costs;
    const dtm_timeline_times *times;
    double microseconds;
    dtm_text *text;
    bool any;
} writer;

static void begin(writer *w) {
    dtm_text_printf(w->text, w->any ? ",\n" : "\n");
    w->any = true;
}

static void at(writer *w, const char *name, double time) {
    dtm_text_printf(w->text, "\"%s\":", name);
    dtm_text_number(w->text, time * w->microseconds);
}

static void name_rank(writer *w, int rank) {
    begin(w);
    dtm_text_printf(w->text, "{\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d, drawn\"}}",
                    FIRST_PROCESS + rank, rank);
    for (int k = 0; k < 2; k++) {
        begin(w);
        dtm_text_printf(w->text, "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}",
                        FIRST_PROCESS + rank, k, k ? "sends" : "compute");
    }
}

static const char *category(const dtm_operation *o) {
    static const char *const names[] = {"F", "B", "I", "W"};
    return o->kind == DTM_OPERATION_GROUP ? "messages" : o->kind == DTM_OPERATION_PAIR ? "pair" : names[o->tasks[0].kind];
}

static void operation(writer *w, int rank, size_t i) {
    const dtm_timeline *t = w->timeline;
    const dtm_operation *o = &t->order[rank].operations[i];
    const dtm_rank_times *r = &w->times->rank[rank];
    begin(w);
    dtm_text_printf(w->text, "{\"ph\":\"X\",\"pid\":%d,\"tid\":0,\"cat\":\"%s\",\"name\":\"", FIRST_PROCESS + rank, category(o));
    if (o->kind == DTM_OPERATION_GROUP) dtm_text_printf(w->text, "messages");
    else dtm_task_print(t, o->tasks[0], w->text);
    if (o->kind == DTM_OPERATION_PAIR) dtm_text_printf(w->text, "+"), dtm_task_print(t, o->tasks[1], w->text);
    dtm_text_printf(w->text, "\",");
    at(w, "ts", r->start[i]);
    dtm_text_printf(w->text, ",");
    at(w, "dur", r->end[i] - r->start[i]);
    if (o->kind != DTM_OPERATION_GROUP)
        dtm_text_printf(w->text, ",\"args\":{\"stage\":%d,\"microbatch\":%u}", dtm_timeline_stage(t, rank, o->tasks[0].chunk),
                        o->tasks[0].microbatch);
    dtm_text_printf(w->text, "}");
}

/* A message: a slice on the sender's second row as long as it is on its way. */
static void message(writer *w, int rank, dtm_task task) {
    const dtm_timeline *t = w->timeline;
    int chunk, to = dtm_timeline_sends(t, rank, task, &chunk);
    const dtm_message_times *m = &w->times->message[dtm_timeline_number(t, rank, task)];
    if (to < 0) return;
    begin(w);
    dtm_text_printf(w->text, "{\"ph\":\"X\",\"pid\":%d,\"tid\":1,\"cat\":\"send\",\"name\":\"", FIRST_PROCESS + rank);
    dtm_task_print(t, task, w->text);
    dtm_text_printf(w->text, " to rank %d\",", to);
    at(w, "ts", m->begun);
    dtm_text_printf(w->text, ",");
    at(w, "dur", m->arrived - m->begun);
    dtm_text_printf(w->text, "}");
}

void dtm_timeline_draw_json(const dtm_timeline *t, const dtm_timeline_costs *costs, const dtm_timeline_times *times,
                            double microseconds, dtm_text *text) {
    writer w = {t, costs, times, microseconds, text};
    dtm_text_printf(text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (int r = 0; r < t->ranks; r++) name_rank(&w, r);
    for (int r = 0; r < t->ranks; r++)
        for (size_t i = 0; i < times->rank[r].done; i++) {
            const dtm_operation *o = &t->order[r].operations[i];
            operation(&w, r, i);
            for (int k = 0; !t->groups && k < (o->kind == DTM_OPERATION_PAIR ? 2 : 1); k++)
                message(&w, r, o->tasks[k]);
        }
    dtm_text_printf(text, "\n],\"otherData\":{\"schedule\":\"%s\",\"bubble\":", t->name);
    dtm_text_number(text, times->bubble);
    dtm_text_printf(text, ",");
    at(&w, "exposed", times->communication);
    dtm_text_printf(text, ",\"memory\":");
    dtm_text_number(text, times->memory);
    dtm_text_printf(text, "}}\n");
}
