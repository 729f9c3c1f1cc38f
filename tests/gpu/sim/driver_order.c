/* Streams, events, and operations: what each waits for, and which of those that are ready runs next. */
#include "driver.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

struct op *pending; /* all that are not done, the newest first */
static struct op **ready;
static int n_ready, room;
static uint64_t n_ops, passes;
static struct timespec moved; /* when a host thread last made something run, or asked for it */
static uint32_t *chain_clocks;
static int n_chain_clocks;

/* ---- tasks ---- */

struct task *task_new(enum doing doing, struct device *device, const char *name) {
    struct task *t = fresh(1, sizeof *t);
    t->references = 1, t->doing = doing, t->device = device;
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}
void task_touch(struct task *t, const char *name, uint64_t at, size_t size, int direction) {
    if (!(t->n_extents & (t->n_extents - 1))) {
        t->extents = realloc(t->extents, sizeof *t->extents * (size_t)(t->n_extents ? 2 * t->n_extents : 1));
        if (!t->extents)
            abort();
    }
    struct extent *e = &t->extents[t->n_extents++];
    *e = (struct extent){.at = at, .bytes = size, .direction = direction};
    snprintf(e->name, sizeof e->name, "%s", name ? name : "?");
}
void task_release(struct task *t) {
    if (--t->references)
        return;
    if (t->doing == LAUNCHES)
        code_release(t);
    if (t->doing == COPIES)
        free(t->copy.staged);
    if (t->doing == WORKS && t->work.release) {
        unlock();
        t->work.release(t->work.state);
        lock();
    }
    free(t->extents), free(t);
}

/* ---- operations ---- */

static void set_clock(struct op *op) {
    while (n_chain_clocks <= op->chain) {
        chain_clocks = realloc(chain_clocks, sizeof *chain_clocks * (size_t)(2 * n_chain_clocks + 64));
        if (!chain_clocks)
            abort();
        memset(chain_clocks + n_chain_clocks, 0, sizeof *chain_clocks * (size_t)(n_chain_clocks + 64));
        n_chain_clocks = 2 * n_chain_clocks + 64;
    }
    uint32_t at[op->chain + 1];
    memset(at, 0, sizeof at);
    at[op->chain] = ++chain_clocks[op->chain];
    clock_join(&op->clock, &(struct clock){at, op->chain + 1});
}
struct op *op_new(struct task *task, struct stream *stream, int chain) {
    struct op *op = fresh(1, sizeof *op);
    op->task = task, op->stream = stream, op->chain = chain;
    op->references = 1; /* of the list */
    op->waits = 1;      /* for op_ready */
    op->number = ++n_ops;
    op->next_pending = pending, op->link_pending = &pending;
    if (pending)
        pending->link_pending = &op->next_pending;
    pending = op;
    task->device->pending++;
    clock_join(&op->clock, &host_clock);
    return op;
}
void op_after(struct op *op, struct op *before) {
    if (!before)
        return;
    clock_join(&op->clock, &before->clock);
    op->finish = op->finish > before->finish ? op->finish : before->finish;
    if (before->done)
        return;
    if (!(before->n_after & (before->n_after - 1))) {
        before->after = realloc(before->after, sizeof(struct op *) * (size_t)(before->n_after ? 2 * before->n_after : 1));
        if (!before->after)
            abort();
    }
    before->after[before->n_after++] = op;
    op->waits++;
}
static void make_ready(struct op *op) {
    if (n_ready == room) {
        room = room ? 2 * room : 64;
        ready = realloc(ready, sizeof *ready * (size_t)room);
        if (!ready)
            abort();
    }
    ready[n_ready++] = op;
}
static void begin_run(struct op *op) {
    struct task *t = op->task;
    if (t->doing == WORKS) {
        unlock();
        op->run = t->work.begin ? t->work.begin(t->work.state) : t->work.state;
        lock();
    }
    if (t->doing == COPIES) {
        op->digest = copy_digest(t);
        bool touched = false;
        for (const struct op *other = pending; other; other = other->next_pending)
            for (int i = 0; i < t->n_extents && !touched; i++)
                touched = other != op && op_touches(other, t->extents[i].at, t->extents[i].bytes);
        if (!touched)
            poison_target(t);
    }
}
void op_ready(struct op *op) {
    set_clock(op);
    begin_run(op);
    if (--op->waits == 0)
        make_ready(op);
    pthread_cond_broadcast(&sim.changed);
}
void op_release(struct op *op) {
    if (!op || --op->references)
        return;
    free(op->clock.at), free(op->after), free(op);
}
bool op_touches(const struct op *op, uint64_t at, size_t size) {
    const struct task *t = op->task;
    for (int i = 0; i < t->n_extents; i++)
        if (t->extents[i].at < at + size && at < t->extents[i].at + t->extents[i].bytes)
            return true;
    return false;
}
static void complete(struct op *op, int error) {
    struct device *d = op->task->device;
    if (error && !d->error)
        d->error = error;
    op->done = true;
    for (int i = 0; i < op->n_after; i++) {
        struct op *next = op->after[i];
        next->finish = next->finish > op->finish ? next->finish : op->finish;
        if (--next->waits == 0)
            make_ready(next);
    }
    free(op->after);
    op->after = NULL, op->n_after = 0;
    *op->link_pending = op->next_pending;
    if (op->next_pending)
        op->next_pending->link_pending = op->link_pending;
    d->pending--;
    task_release(op->task);
    op->task = NULL;
    op_release(op);
    pthread_cond_broadcast(&sim.changed);
}

/* ---- what runs next ---- */

static bool busy(const struct op *op) { return op->task->device->busy || (op->task->other && op->task->other->busy); }
static void set_busy(struct op *op, bool value) {
    op->task->device->busy = value;
    if (op->task->other)
        op->task->other->busy = value;
}
static double cost(const struct op *op) {
    const struct task *t = op->task;
    double size = 0;
    for (int i = 0; i < t->n_extents; i++)
        size += (double)t->extents[i].bytes;
    return t->doing == NOTHING ? 0 : 0.002 + size / 1e9;
}
int run_task(struct op *op) {
    switch (op->task->doing) {
    case NOTHING: return OK;
    case LAUNCHES: return run_launch(op);
    case COPIES: return run_copy(op);
    case FILLS: return run_fill(op);
    case WORKS: break;
    }
    return OK;
}
/* Nothing of the device can run but work that was asked before and waits, and a host thread waits for it. */
static bool idles(const struct device *d, const struct op *asked) {
    bool others = d->busy || !d->waiters;
    for (int i = 0; i < n_ready; i++)
        others |= ready[i]->task->device == d && ready[i] != asked &&
                  (ready[i]->task->doing != WORKS || !ready[i]->begun || ready[i]->running);
    return !others;
}
static int run_work(struct op *op, bool first) {
    const struct sim_work *work = &op->task->work;
    bool idle = idles(op->task->device, op) && !first;
    unlock();
    int error = work->run(op->run, idle);
    lock();
    if (error == SIM_WORK_WAITS)
        return error;
    op->run = NULL;
    quiet(op->task->device);
    if (!error)
        define_written(op->task);
    return error;
}
/* False: it is work that waits. */
static bool run_one(struct op *op, uint64_t pass) {
    struct task *t = op->task;
    int error = 0;
    bool first = !op->begun;
    op->running = op->begun = true;
    if (t->device->error) { /* the context is lost */
        if (t->doing == WORKS && op->run && t->work.drop) {
            unlock();
            t->work.drop(op->run);
            lock();
        }
    } else if (first && (!check_defined(t) || !races_touch(op))) {
        error = ILLEGAL_ADDRESS;
        if (t->doing == WORKS && t->work.drop) {
            unlock();
            t->work.drop(op->run);
            lock();
        }
    } else if (t->doing == WORKS) {
        error = run_work(op, first);
    } else {
        set_busy(op, true);
        unlock();
        error = run_task(op);
        lock();
        set_busy(op, false);
    }
    op->running = false;
    op->asked = pass;
    if (error == SIM_WORK_WAITS)
        return false;
    for (int i = 0; i < n_ready; i++)
        if (ready[i] == op) {
            ready[i] = ready[--n_ready];
            break;
        }
    op->finish += cost(op);
    if (!error && !t->device->error)
        error = fault_of(op);
    complete(op, error);
    return true;
}
/* Runs one operation that is drawn among the ready ones, each asked once at most; false if none of them came on. */
static bool step(void) {
    uint64_t pass = ++passes;
    for (;;) {
        int n = 0;
        for (int i = 0; i < n_ready; i++)
            n += !ready[i]->running && ready[i]->asked < pass && !busy(ready[i]);
        if (!n)
            return false;
        n = (int)drawn((uint64_t)n);
        for (int i = 0; i < n_ready; i++)
            if (!ready[i]->running && ready[i]->asked < pass && !busy(ready[i]) && n-- == 0) {
                if (run_one(ready[i], pass))
                    return true;
                break;
            }
    }
}
static void touch_time(void) { clock_gettime(CLOCK_MONOTONIC, &moved); }
static void pause_for(long microseconds) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += microseconds * 1000;
    t.tv_sec += t.tv_nsec / 1000000000, t.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&sim.changed, &sim.mutex, &t);
}
/* Goes on where no host thread does: they may wait for another process, whose stream waits for ours. */
static void *go_on(void *unused) {
    lock();
    for (;;) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        double quiet_for = (double)(now.tv_sec - moved.tv_sec) + (double)(now.tv_nsec - moved.tv_nsec) * 1e-9;
        if (!n_ready)
            pthread_cond_wait(&sim.changed, &sim.mutex);
        else if (quiet_for < 0.02)
            pause_for(10000);
        else if (!step())
            pause_for(200);
    }
    return unused;
}
static void start_going_on(void) {
    static bool started;
    pthread_t thread;
    if (started)
        return;
    started = true;
    if (pthread_create(&thread, NULL, go_on, NULL))
        abort();
    pthread_detach(thread);
}

int wait_for(struct op *op) {
    struct device *d = NULL;
    if (!op)
        return OK;
    op->references++;
    if (!op->done)
        d = op->task->device, d->waiters++;
    while (!op->done) {
        touch_time();
        if (!step() && !op->done)
            pause_for(50);
    }
    clock_join(&host_clock, &op->clock);
    op_release(op);
    if (d)
        d->waiters--;
    return d ? d->error : current() ? current()->error : OK;
}
void drain(struct device *d) {
    for (;;) {
        struct op *op = pending;
        while (op && d && op->task->device != d)
            op = op->next_pending;
        if (!op)
            return;
        wait_for(op);
    }
}
void quiet(struct device *d) {
    while (d->busy)
        pthread_cond_wait(&sim.changed, &sim.mutex);
}

static void set_op(struct op **to, struct op *op) {
    if (op)
        op->references++;
    op_release(*to);
    *to = op;
}
int enqueue(struct stream *s, struct task *task) {
    if (s->capture)
        return capture_enqueue(s, task);
    struct op *op = op_new(task, s, s->chain);
    op_after(op, s->last);
    set_op(&s->last, op);
    op_ready(op);
    start_going_on();
    touch_time();
    if (task->doing != NOTHING && drawn(4) == 0)
        step();
    return OK; /* an error comes with a later call */
}

/* ---- streams ---- */

dtm_cu_result fake_StreamCreateWithPriority(dtm_cu_stream *out, unsigned flags, int priority) {
    static int n;
    int error = enter();
    if (!error && flags != DTM_CU_STREAM_NON_BLOCKING) {
        say("cuStreamCreateWithPriority: a stream that waits for the legacy stream");
        error = INVALID_VALUE;
    }
    if (!error) {
        struct stream *s = object_new(STREAM, sizeof *s);
        s->number = ++n, s->chain = chain_new(), s->priority = priority;
        *out = (dtm_cu_stream)(void *)s;
    }
    unlock();
    return error;
}
dtm_cu_result fake_StreamDestroy(dtm_cu_stream stream) {
    int error = enter();
    struct stream *s = error ? NULL : object_of(stream, STREAM, "cuStreamDestroy", true);
    if (s) {
        if (s->capture) {
            say("cuStreamDestroy: stream %d captures", s->number);
            capture_spoil(s->capture);
        }
        set_op(&s->last, NULL);
        s->object.dead = true;
    }
    unlock();
    return error ? error : s ? OK : INVALID_HANDLE;
}
/* The stream of a call that the host may not make while it captures. */
static int of_host(dtm_cu_stream stream, const char *call, struct stream **out) {
    int error = enter();
    if (error)
        return error;
    *out = object_of(stream, STREAM, call, true);
    if (!*out)
        return INVALID_HANDLE;
    if ((*out)->capture) {
        say("%s: stream %d captures", call, (*out)->number);
        capture_spoil((*out)->capture);
        return CAPTURE_UNSUPPORTED;
    }
    return capture_forbids();
}
dtm_cu_result fake_StreamSynchronize(dtm_cu_stream stream) {
    struct stream *s;
    int error = of_host(stream, "cuStreamSynchronize", &s);
    if (!error && !dtm_sim_mutated("sync", "cuStreamSynchronize"))
        error = wait_for(s->last);
    unlock();
    return error;
}
/* What has come in the meantime, and whether it is told yet. */
static int query(struct op *op) {
    touch_time();
    for (uint64_t n = 1 + drawn(3); op && !op->done && n; n--)
        step();
    int error = current()->error;
    if (error)
        return error;
    if (op && (!op->done || drawn(8) == 0))
        return NOT_READY;
    if (op)
        clock_join(&host_clock, &op->clock);
    return OK;
}
dtm_cu_result fake_StreamQuery(dtm_cu_stream stream) {
    struct stream *s;
    int error = of_host(stream, "cuStreamQuery", &s);
    if (!error)
        error = query(s->last);
    unlock();
    return error;
}
/* Who waits for what, for those who look at a mutant. */
static const char *what_of(const struct stream *s, const struct event *e) {
    static _Thread_local char text[120];
    const char *what = e->capture ? capture_name(e) : e->op && e->op->task ? e->op->task->name : "what is done";
    snprintf(text, sizeof text, "stream %d for %s", s->number, what);
    return text;
}
dtm_cu_result fake_StreamWaitEvent(dtm_cu_stream stream, dtm_cu_event event, unsigned flags) {
    int error = enter();
    struct stream *s = error ? NULL : object_of(stream, STREAM, "cuStreamWaitEvent", true);
    struct event *e = error ? NULL : object_of(event, EVENT, "cuStreamWaitEvent", true);
    if (!error && (!s || !e || flags))
        error = !s || !e ? INVALID_HANDLE : INVALID_VALUE;
    if (!error && dtm_sim_mutated("wait", what_of(s, e))) {
        unlock();
        return OK;
    }
    if (!error && (s->capture || e->capture)) {
        error = capture_wait(s, e);
    } else if (!error && e->op && e->op != s->last) {
        struct op *op = op_new(task_new(NOTHING, s->object.device, "cuStreamWaitEvent"), s, s->chain);
        op_after(op, s->last), op_after(op, e->op);
        set_op(&s->last, op);
        op_ready(op);
    }
    unlock();
    return error;
}
dtm_cu_result fake_StreamWriteValue32(dtm_cu_stream stream, dtm_cu_pointer at, uint32_t value, unsigned flags) {
    int error = enter();
    struct stream *s = error ? NULL : object_of(stream, STREAM, "cuStreamWriteValue32", true);
    if (!error && !s)
        error = INVALID_HANDLE;
    if (!error && (flags || at % 4 || !(at & DEVICE_BIT ? host_of(at, 4) != NULL : is_pinned(at, 4)))) {
        say("cuStreamWriteValue32: to 0x%llx, which is not mapped", (unsigned long long)at);
        error = INVALID_VALUE;
    }
    if (!error) {
        struct task *t = task_new(FILLS, s->object.device, "cuStreamWriteValue32");
        t->fill = (struct fill){.at = at, .value = value, .width = 4, .count = 1};
        task_touch(t, "the stamp", at, 4, DTM_SIM_WRITE);
        error = enqueue(s, t);
    }
    unlock();
    return error;
}

/* ---- events ---- */

dtm_cu_result fake_EventCreate(dtm_cu_event *out, unsigned flags) {
    int error = enter();
    if (!error && flags != DTM_CU_EVENT_TIMED && flags != DTM_CU_EVENT_UNTIMED)
        error = INVALID_VALUE;
    if (!error) {
        struct event *e = object_new(EVENT, sizeof *e);
        e->timed = flags == DTM_CU_EVENT_TIMED;
        *out = (dtm_cu_event)(void *)e;
    }
    unlock();
    return error;
}
dtm_cu_result fake_EventDestroy(dtm_cu_event event) {
    int error = enter();
    struct event *e = error ? NULL : object_of(event, EVENT, "cuEventDestroy", true);
    if (e) {
        set_op(&e->op, NULL);
        e->object.dead = true;
    }
    unlock();
    return error ? error : e ? OK : INVALID_HANDLE;
}
dtm_cu_result fake_EventRecord(dtm_cu_event event, dtm_cu_stream stream) {
    int error = enter();
    struct stream *s = error ? NULL : object_of(stream, STREAM, "cuEventRecord", true);
    struct event *e = error ? NULL : object_of(event, EVENT, "cuEventRecord", true);
    if (!error && (!s || !e))
        error = INVALID_HANDLE;
    if (!error && s->object.device != e->object.device) {
        say("cuEventRecord: stream and event are of two contexts");
        error = INVALID_HANDLE;
    }
    if (!error && dtm_sim_mutated("record", "cuEventRecord")) {
        unlock();
        return OK;
    }
    if (!error && s->capture) {
        error = capture_record(s, e);
    } else if (!error) {
        e->capture = NULL;
        if (!s->last) {
            struct op *op = op_new(task_new(NOTHING, s->object.device, "cuEventRecord"), s, s->chain);
            set_op(&s->last, op);
            op_ready(op);
        }
        set_op(&e->op, s->last);
    }
    unlock();
    return error;
}
static int event_of_host(dtm_cu_event event, const char *call, struct event **out) {
    int error = enter();
    if (error)
        return error;
    *out = object_of(event, EVENT, call, true);
    if (!*out)
        return INVALID_HANDLE;
    if ((*out)->capture) {
        say("%s: of an event that was recorded in a capture", call);
        capture_spoil((*out)->capture);
        return CAPTURED_EVENT;
    }
    return capture_forbids();
}
dtm_cu_result fake_EventQuery(dtm_cu_event event) {
    struct event *e;
    int error = event_of_host(event, "cuEventQuery", &e);
    if (!error)
        error = query(e->op);
    unlock();
    return error;
}
dtm_cu_result fake_EventSynchronize(dtm_cu_event event) {
    struct event *e;
    int error = event_of_host(event, "cuEventSynchronize", &e);
    if (!error && !dtm_sim_mutated("sync", "cuEventSynchronize"))
        error = wait_for(e->op);
    unlock();
    return error;
}
dtm_cu_result fake_EventElapsedTime(float *milliseconds, dtm_cu_event begin, dtm_cu_event end) {
    int error = enter();
    struct event *a = error ? NULL : object_of(begin, EVENT, "cuEventElapsedTime", true);
    struct event *b = error ? NULL : object_of(end, EVENT, "cuEventElapsedTime", true);
    if (!error && (!a || !b || !a->timed || !b->timed || !a->op || !b->op || a->capture || b->capture))
        error = INVALID_HANDLE;
    if (!error && (!a->op->done || !b->op->done))
        error = NOT_READY;
    if (!error)
        *milliseconds = (float)(b->op->finish - a->op->finish);
    unlock();
    return error;
}

/* ---- work of other stand-ins ---- */

EXPORT int sim_work_enqueue(struct CUstream_st *stream, const struct sim_work *work) {
    int error = enter();
    struct stream *s = error ? NULL : object_of(stream, STREAM, work->name, true);
    if (!error && !s)
        error = INVALID_HANDLE;
    for (int i = 0; i < work->n_ranges && !error; i++) {
        const struct sim_work_range *r = &work->ranges[i];
        uint64_t at = (uint64_t)(uintptr_t)r->at;
        if (r->bytes && !(at & DEVICE_BIT ? host_of(at, r->bytes) != NULL : is_pinned(at, r->bytes))) {
            say("%s: 0x%llx and %zu bytes from there are not mapped", work->name, (unsigned long long)at, r->bytes);
            error = INVALID_VALUE;
        }
    }
    if (!error) {
        struct task *t = task_new(WORKS, s->object.device, work->name);
        t->work = *work;
        for (int i = 0; i < work->n_ranges; i++) {
            char name[24];
            snprintf(name, sizeof name, "range %d", i);
            task_touch(t, name, (uint64_t)(uintptr_t)work->ranges[i].at, work->ranges[i].bytes, work->ranges[i].direction);
        }
        t->work.ranges = NULL;
        if (hold_declared(t)) {
            error = enqueue(s, t);
        } else {
            t->work.release = NULL; /* the state stays the caller's */
            task_release(t);
            error = INVALID_VALUE;
        }
    }
    unlock();
    return error;
}
EXPORT int sim_work_device(struct CUstream_st *stream, int *device, unsigned long long *unique) {
    lock();
    struct stream *s = stream ? object_of(stream, STREAM, "a library", true) : NULL;
    struct device *d = s ? s->object.device : stream ? NULL : current();
    if (d)
        *device = d->ordinal, *unique = 0x51a0000ull + (unsigned)d->ordinal;
    unlock();
    return d ? OK : stream ? INVALID_HANDLE : INVALID_CONTEXT;
}
