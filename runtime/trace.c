#include "runtime/trace.h"

#include "runtime/checkpoint.h"
#include "runtime/json.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 1 << 16, DEPTH = 16, NAME = 64, ROWS = 32, ROUNDS = 16, COMPUTE = 0, SENDS = 1 };

typedef struct event {
    double begin, end;
    const char *category, *label; /* label: of a message, what it carries; NULL: none */
    int64_t bytes, microbatch;        /* -1: it has none */
    char name[NAME];
    bool sends;
} event;

struct dtm_trace {
    pthread_mutex_t lock; /* of the ring: streams report what they have done */
    event *ring;
    int64_t count; /* of all, those that were dropped too */
    event open[DEPTH];
    int depth;
    bool records;
    const dtm_plan_timeline *timeline; /* whose calls run */
    double offset; /* what is to be added to this rank's clock for rank 0's */
    double origin; /* of the trace, by rank 0's clock */
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---- recording ---- */

static void keep(dtm_trace *t, const event *e) {
    pthread_mutex_lock(&t->lock);
    t->ring[t->count++ % EVENTS] = *e;
    pthread_mutex_unlock(&t->lock);
}

static void observe(void *argument, const dtm_transmission *sent) {
    dtm_rank *rank = argument;
    if (!rank->trace->records || !strcmp(sent->name, "receive")) return; /* the sender has it */
    event e = {.begin = sent->started, .end = sent->ended, .bytes = sent->bytes, .microbatch = sent->microbatch,
               .sends = true};
    if (sent->peer >= 0) {
        e.category = "send";
        e.label = sent->label;
        const char *name = *sent->note ? sent->note : sent->label ? sent->label : sent->name;
        snprintf(e.name, sizeof e.name, "%.30s to rank %d", name, sent->peer);
    } else {
        e.category = sent->stream ? "collective, started" : "collective";
        snprintf(e.name, sizeof e.name, "%s", sent->label ? sent->label : sent->name);
    }
    keep(rank->trace, &e);
}

/* The rank's time. One that is simulated has computed until a time to come, if it has not slept for it yet. */
static double computed(const dtm_rank *rank) {
    double time = now();
    return rank->simulated > time ? rank->simulated : time;
}

static event *open_event(dtm_rank *rank, const char *name, const char *category) {
    dtm_trace *t = rank->trace;
    if (t->depth++ >= DEPTH) return NULL;
    event *e = &t->open[t->depth - 1];
    *e = (event){.begin = computed(rank), .category = category, .microbatch = -1, .bytes = -1};
    snprintf(e->name, sizeof e->name, "%s", name);
    return e;
}

void dtm_trace_begin(dtm_rank *rank, const char *name, const char *category) {
    if (rank->trace && rank->trace->records) open_event(rank, name, category);
}

void dtm_trace_end(dtm_rank *rank) {
    dtm_trace *t = rank->trace;
    if (!t || !t->records || t->depth == 0 || t->depth-- > DEPTH) return;
    event *e = &t->open[t->depth];
    e->end = computed(rank);
    keep(t, e);
}

/* ---- calls of a timeline ---- */

static void print_task(const dtm_plan_timeline *t, const dtm_plan_call *c, char *out, size_t size) {
    bool chunks = false;
    for (uint32_t i = 0; i < t->n_calls; i++) chunks = chunks || t->calls[i].chunk > 0;
    if (chunks)
        snprintf(out, size, "%c%u.%u", c->task, c->number, c->chunk);
    else
        snprintf(out, size, "%c%u", c->task, c->number);
}

static bool same_task(const dtm_plan_call *a, const dtm_plan_call *b) {
    return a->task == b->task && a->chunk == b->chunk && a->number == b->number && a->microbatch == b->microbatch;
}

/* The run before the one at `index`, or (step 1) after it: whether it is of the same task, and neither is of a pair. */
static bool goes_on(const dtm_plan_timeline *t, uint32_t index, int step) {
    const dtm_plan_call *call = &t->calls[index];
    if (call->pair) return false;
    for (int64_t i = (int64_t)index + step; i >= 0 && i < t->n_calls; i += step)
        if (t->calls[i].kind == DTM_PLAN_RUN) return !t->calls[i].pair && same_task(&t->calls[i], call);
    return false;
}

static const char *category_of(char task) {
    switch (task) {
    case 'F': return "F";
    case 'B': return "B";
    case 'I': return "I";
    default: return "W";
    }
}

/* Of `eval`, which runs the forward pass alone, there are no pairs. */
void dtm_trace_begin_call(dtm_rank *rank, const dtm_plan_timeline *t, uint32_t index) {
    const dtm_plan_call *call = &t->calls[index];
    if (!rank->trace || !rank->trace->records || goes_on(t, index, -1)) return;
    char name[NAME], other[NAME];
    bool pair = call->pair && !rank->forward_only;
    print_task(t, call, name, sizeof name);
    if (pair) {
        print_task(t, call + 1, other, sizeof other);
        size_t length = strlen(name);
        snprintf(name + length, sizeof name - length, "+%.20s", other);
    }
    event *e = open_event(rank, name, pair ? "pair" : category_of(call->task));
    if (e) e->microbatch = call->microbatch;
    dtm_comm_note(rank->comm, name);
    rank->trace->timeline = t;
}

void dtm_trace_note_call(dtm_rank *rank, const dtm_plan_call *call) {
    char name[NAME];
    if (!rank->trace || !rank->trace->records) return;
    print_task(rank->trace->timeline, call, name, sizeof name);
    dtm_comm_note(rank->comm, name);
}

void dtm_trace_end_call(dtm_rank *rank, const dtm_plan_timeline *t, uint32_t index) {
    if (!rank->trace || !rank->trace->records || goes_on(t, index, 1)) return;
    dtm_trace_end(rank);
    dtm_comm_note(rank->comm, "");
}

/* ---- steps ---- */

void dtm_trace_begin_step(dtm_rank *rank, int64_t step) {
    const dtm_options *o = rank->options;
    char name[NAME];
    if (!rank->trace) return;
    rank->trace->records = step + 1 >= o->trace_first && (o->trace_last == 0 || step + 1 <= o->trace_last);
    snprintf(name, sizeof name, "step %lld", (long long)step + 1);
    dtm_trace_begin(rank, name, "step");
}

void dtm_trace_end_step(dtm_rank *rank) {
    dtm_trace_end(rank);
    if (rank->trace) rank->trace->records = false;
}

/* ---- clocks ---- */

/* Rank 0 asks each rank for its time. The answer is of about the middle between question and answer, at best of the round
 * that was quickest. */
static bool ask_clock(dtm_group *world, int member, double *offset, dtm_status *status) {
    double least = INFINITY, theirs = 0;
    *offset = 0;
    for (int i = 0; i < ROUNDS; i++) {
        double begin = now();
        if (!dtm_send(world, member, &begin, sizeof begin, status) ||
            !dtm_receive(world, member, &theirs, sizeof theirs, status))
            return false;
        double end = now();
        if (end - begin >= least) continue;
        least = end - begin;
        *offset = (begin + end) / 2 - theirs;
    }
    return dtm_send(world, member, offset, sizeof *offset, status);
}

static bool tell_clock(dtm_group *world, double *offset, dtm_status *status) {
    for (int i = 0; i < ROUNDS; i++) {
        double ignored, mine;
        if (!dtm_receive(world, 0, &ignored, sizeof ignored, status)) return false;
        mine = now();
        if (!dtm_send(world, 0, &mine, sizeof mine, status)) return false;
    }
    return dtm_receive(world, 0, offset, sizeof *offset, status);
}

static bool compare_clocks(dtm_rank *rank, dtm_status *status) {
    dtm_group *world = dtm_comm_world(rank->comm);
    dtm_trace *t = rank->trace;
    bool ok = true, first = dtm_comm_rank(rank->comm) == 0;
    dtm_group_label(world, "comparing clocks");
    if (!first) ok = tell_clock(world, &t->offset, status);
    for (int i = 1; first && ok && i < dtm_comm_size(rank->comm); i++) {
        double offset;
        ok = ask_clock(world, i, &offset, status);
    }
    t->origin = now();
    ok = ok && dtm_broadcast(world, DTM_ALGORITHM_TREE, &t->origin, sizeof t->origin, 0, status);
    dtm_group_label(world, NULL);
    return ok;
}

bool dtm_trace_open(dtm_rank *rank, dtm_status *status) {
    if (!rank->options->trace) return true;
    dtm_trace *t = rank->trace = calloc(1, sizeof *t);
    if (t) {
        pthread_mutex_init(&t->lock, NULL);
        t->ring = malloc(EVENTS * sizeof *t->ring);
    }
    if (!t || !t->ring) dtm_status_fail(status, "out of memory for a trace of %d events", EVENTS);
    if (!dtm_comm_agree(rank->comm, status) || !compare_clocks(rank, status)) return false;
    dtm_comm_observe(rank->comm, observe, rank);
    return true;
}

void dtm_trace_close(dtm_rank *rank) {
    if (!rank->trace) return;
    dtm_comm_observe(rank->comm, NULL, NULL);
    pthread_mutex_destroy(&rank->trace->lock);
    free(rank->trace->ring);
    free(rank->trace);
    rank->trace = NULL;
}

/* ---- writing ---- */

/* Where it begins and how long it took; what begins together is ordered so that what holds others comes first. */
static int by_begin(const void *a, const void *b) {
    const event *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end > y->end ? -1 : x->end < y->end;
}

static void key_number(dtm_json_writer *w, const char *key, int64_t number) {
    dtm_json_key(w, key);
    dtm_json_whole(w, number);
}

static void key_text(dtm_json_writer *w, const char *key, const char *text) {
    dtm_json_key(w, key);
    dtm_json_string(w, text);
}

static void key_microseconds(dtm_json_writer *w, const char *key, double seconds) {
    char text[40];
    snprintf(text, sizeof text, "%lld.%03d", (long long)(llround(seconds * 1e9) / 1000),
             (int)(llround(seconds * 1e9) % 1000));
    dtm_json_key(w, key);
    dtm_json_raw(w, text);
}

static void begin_event(dtm_json_writer *w, const char *phase, int pid, int tid) {
    dtm_json_begin_object(w);
    key_text(w, "ph", phase);
    key_number(w, "pid", pid);
    key_number(w, "tid", tid);
}

static void name_row(dtm_json_writer *w, int pid, int tid, const char *what, const char *name) {
    begin_event(w, "M", pid, tid);
    key_text(w, "name", what);
    dtm_json_key(w, "args");
    dtm_json_begin_object(w);
    key_text(w, "name", name);
    dtm_json_end_object(w);
    dtm_json_end_object(w);
}

static void write_event(dtm_json_writer *w, const dtm_trace *t, const event *e, int pid, int tid) {
    double begin = e->begin + t->offset - t->origin;
    if (begin < 0) begin = 0; /* clocks are compared to some microseconds */
    begin_event(w, "X", pid, tid);
    key_text(w, "cat", e->category);
    key_text(w, "name", e->name);
    key_microseconds(w, "ts", begin);
    key_microseconds(w, "dur", e->end > e->begin ? e->end - e->begin : 0);
    if (e->bytes >= 0 || e->microbatch >= 0) {
        dtm_json_key(w, "args");
        dtm_json_begin_object(w);
        if (e->microbatch >= 0) key_number(w, "microbatch", e->microbatch);
        if (e->bytes >= 0) key_number(w, "bytes", e->bytes);
        if (e->label) key_text(w, "value", e->label);
        dtm_json_end_object(w);
    }
    dtm_json_end_object(w);
}

/* The first row of those for messages that is free; events of a row must not overlap. */
static int row_of(const event *e, double free_from[ROWS]) {
    int row = 0;
    while (row + 1 < ROWS && free_from[row] > e->begin) row++;
    free_from[row] = e->end;
    return row;
}

/* The events of this rank, an array of JSON. */
static void write_rank(const dtm_rank *rank, dtm_json_writer *w) {
    const dtm_trace *t = rank->trace;
    int64_t kept = t->count < EVENTS ? t->count : EVENTS;
    int pid = dtm_comm_rank(rank->comm), rows = 1;
    double free_from[ROWS];
    char name[NAME];
    for (int i = 0; i < ROWS; i++) free_from[i] = -INFINITY;
    qsort(t->ring, (size_t)kept, sizeof *t->ring, by_begin);
    dtm_json_begin_array(w);
    snprintf(name, sizeof name, "rank %d", pid);
    name_row(w, pid, 0, "process_name", name);
    name_row(w, pid, COMPUTE, "thread_name", "compute");
    for (int64_t i = 0; i < kept; i++) {
        const event *e = &t->ring[i];
        int row = e->sends ? row_of(e, free_from) : 0;
        if (row >= rows) rows = row + 1;
        write_event(w, t, e, pid, e->sends ? SENDS + row : COMPUTE);
    }
    for (int r = 0; r < rows; r++) {
        snprintf(name, sizeof name, r ? "sends %d" : "sends", r + 1);
        name_row(w, pid, SENDS + r, "thread_name", name);
    }
    dtm_json_end_array(w);
}

typedef struct parcel {
    int64_t bytes, dropped;
} parcel;

/* `text` is an array: its brackets are left out. */
static bool put(FILE *file, const char *text, int64_t bytes, bool first) {
    if (!first) fputs(",\n", file);
    return fwrite(text + 1, 1, (size_t)bytes - 2, file) == (size_t)bytes - 2;
}

static bool write_tail(FILE *file, const dtm_rank *rank, int64_t dropped) {
    dtm_json_writer w = {0};
    dtm_json_begin_object(&w);
    key_text(&w, "program", rank->plan->program);
    key_text(&w, "clock", "rank 0's");
    key_number(&w, "dropped", dropped);
    dtm_json_key(&w, "simulated");
    dtm_json_bool(&w, rank->options->simulate);
    dtm_json_end_object(&w);
    bool ok = !w.failed && fprintf(file, "\n],\"otherData\":%s}\n", w.data) > 0;
    free(w.data);
    return ok;
}

/* Rank 0: writes its own events, then those of the others as they come. */
static bool gather(dtm_rank *rank, FILE *file, const dtm_json_writer *own, dtm_status *status) {
    dtm_group *world = dtm_comm_world(rank->comm);
    int64_t dropped = rank->trace->count > EVENTS ? rank->trace->count - EVENTS : 0;
    bool written = fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", file) >= 0;
    written = put(file, own->data, (int64_t)own->length, true) && written;
    for (int i = 1; i < dtm_comm_size(rank->comm); i++) {
        parcel p;
        if (!dtm_receive(world, i, &p, sizeof p, status)) return false;
        char *text = malloc((size_t)p.bytes);
        if (!text) return dtm_status_fail(status, "out of memory for the trace of rank %d", i);
        bool ok = dtm_receive(world, i, text, p.bytes, status);
        written = ok && put(file, text, p.bytes, false) && written;
        free(text);
        if (!ok) return false;
        dropped += p.dropped;
    }
    written = write_tail(file, rank, dropped) && written;
    if (dropped)
        fprintf(stderr, "the trace lacks %lld event%s: a rank keeps its latest %d; --trace-steps A-B chooses steps\n",
                (long long)dropped, dropped == 1 ? "" : "s", EVENTS);
    return written || dtm_status_fail_errno(status, errno, "cannot write the trace %s", rank->options->trace);
}

static bool write_first(dtm_rank *rank, const dtm_json_writer *own, dtm_status *status) {
    const char *path = rank->options->trace;
    size_t size = strlen(path) + sizeof ".partial";
    char *partial = malloc(size);
    if (!partial) return dtm_status_fail(status, "out of memory writing %s", path);
    snprintf(partial, size, "%s.partial", path);
    dtm_partial_remember(path);
    FILE *file = fopen(partial, "w");
    bool ok = file || dtm_status_fail_errno(status, errno, "cannot write the trace %s", path);
    ok = ok && gather(rank, file, own, status);
    if (file && fclose(file) != 0 && ok) ok = dtm_status_fail_errno(status, errno, "cannot write the trace %s", path);
    if (ok && rename(partial, path) != 0)
        ok = dtm_status_fail_errno(status, errno, "cannot rename %s to %s", partial, path);
    if (!ok && file) unlink(partial);
    dtm_partial_forget(path);
    free(partial);
    return ok;
}

bool dtm_trace_write(dtm_rank *rank, dtm_status *status) {
    if (!rank->trace) return true;
    dtm_group *world = dtm_comm_world(rank->comm);
    dtm_json_writer w = {0};
    write_rank(rank, &w);
    if (w.failed) dtm_status_fail(status, "out of memory for the trace of rank %d", dtm_comm_rank(rank->comm));
    bool ok = dtm_comm_agree(rank->comm, status);
    dtm_group_label(world, "gathering the trace");
    if (ok && dtm_comm_rank(rank->comm) == 0) {
        ok = write_first(rank, &w, status);
    } else if (ok) {
        int64_t count = rank->trace->count;
        parcel p = {(int64_t)w.length, count > EVENTS ? count - EVENTS : 0};
        ok = dtm_send(world, 0, &p, sizeof p, status) && dtm_send(world, 0, w.data, p.bytes, status);
    }
    dtm_group_label(world, NULL);
    free(w.data);
    return ok;
}
