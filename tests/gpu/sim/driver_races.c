/* Whether what streams do to memory is ordered. An operation's clock says how far of each chain (a stream, or a branch of an instantiated
 * graph) is done before it begins: by the order of the stream, by events, or as the host had waited for it when it was enqueued. For
 * every piece of memory it is kept who wrote it last and who has read it since; an access that these are not before is a race, in
 * whichever order they happened to run. */
#include "driver.h"

struct touch { int chain; uint32_t clock; char name[64]; int stream; };
struct segment { uint64_t low, high; struct touch writer; struct touch *readers; int n_readers; };
static struct segment *segments; /* sorted, apart */
static int n_segments, room;

struct clock host_clock;
static int n_chains;

int chain_new(void) { return n_chains++; }
void clock_join(struct clock *to, const struct clock *from) {
    if (to->n < from->n) {
        to->at = realloc(to->at, sizeof *to->at * (size_t)from->n);
        if (!to->at)
            abort();
        memset(to->at + to->n, 0, sizeof *to->at * (size_t)(from->n - to->n));
        to->n = from->n;
    }
    for (int i = 0; i < from->n; i++)
        to->at[i] = to->at[i] > from->at[i] ? to->at[i] : from->at[i];
}
static bool before(const struct touch *t, const struct op *op) {
    return !t->clock || (t->chain < op->clock.n && op->clock.at[t->chain] >= t->clock);
}

static int first_beyond(uint64_t at) { /* the first segment that ends beyond it */
    int low = 0, high = n_segments;
    while (low < high) {
        int middle = (low + high) / 2;
        if (segments[middle].high > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}
static struct segment *insert(int i, uint64_t low, uint64_t high) {
    if (n_segments == room) {
        room = room ? 2 * room : 64;
        segments = realloc(segments, sizeof *segments * (size_t)room);
        if (!segments)
            abort();
    }
    memmove(segments + i + 1, segments + i, sizeof *segments * (size_t)(n_segments++ - i));
    segments[i] = (struct segment){.low = low, .high = high};
    return &segments[i];
}
static void remove_segments(int from, int to) {
    for (int i = from; i < to; i++)
        free(segments[i].readers);
    memmove(segments + from, segments + to, sizeof *segments * (size_t)(n_segments - to));
    n_segments -= to - from;
}
/* Segment i is in two from there on. */
static void split(int i, uint64_t at) {
    struct segment *later = insert(i + 1, at, segments[i].high), *s = &segments[i];
    s->high = at;
    later->writer = s->writer;
    later->n_readers = s->n_readers;
    later->readers = fresh((size_t)s->n_readers, sizeof *later->readers);
    if (s->n_readers)
        memcpy(later->readers, s->readers, sizeof *s->readers * (size_t)s->n_readers);
}
/* Segments from the first to before the last of [low, high) exactly. */
static void cut(uint64_t low, uint64_t high, int *first, int *last) {
    int i = first_beyond(low);
    if (i < n_segments && segments[i].low < low)
        split(i++, low);
    *first = i;
    for (uint64_t at = low; at < high; i++) {
        if (i == n_segments || segments[i].low > at)
            insert(i, at, i < n_segments && segments[i].low < high ? segments[i].low : high);
        if (segments[i].high > high)
            split(i, high);
        at = segments[i].high;
    }
    *last = i;
}

static void race(const struct op *op, const struct extent *e, bool writes, const struct segment *s, const struct touch *t, bool wrote) {
    say("streams: '%s' of stream %d %s %s + %llu (%llu bytes), which '%s' of stream %d %s, and nothing orders them", op->task->name,
        op->stream->number, writes ? "writes" : "reads", e->name, (unsigned long long)(s->low - e->at), (unsigned long long)(s->high - s->low),
        t->name, t->stream, wrote ? "writes" : "reads");
}
static bool hold(const struct op *op, const struct extent *e, int first, int last) {
    bool writes = e->direction & DTM_SIM_WRITE;
    for (int i = first; i < last; i++) {
        if (!before(&segments[i].writer, op))
            return race(op, e, writes, &segments[i], &segments[i].writer, true), false;
        for (int k = 0; writes && k < segments[i].n_readers; k++)
            if (!before(&segments[i].readers[k], op))
                return race(op, e, writes, &segments[i], &segments[i].readers[k], false), false;
    }
    return true;
}
static struct touch touch_of(const struct op *op) {
    struct touch t = {.chain = op->chain, .clock = op->clock.at[op->chain], .stream = op->stream->number};
    snprintf(t.name, sizeof t.name, "%s", op->task->name);
    return t;
}
static void read_by(struct segment *s, const struct op *op) {
    int n = 0;
    for (int k = 0; k < s->n_readers; k++)
        if (!before(&s->readers[k], op))
            s->readers[n++] = s->readers[k];
    s->readers = realloc(s->readers, sizeof *s->readers * (size_t)(n + 1));
    if (!s->readers)
        abort();
    s->readers[n] = touch_of(op);
    s->n_readers = n + 1;
}
static void written_by(int first, int last, const struct op *op) {
    uint64_t high = segments[last - 1].high;
    remove_segments(first + 1, last);
    segments[first].high = high;
    segments[first].writer = touch_of(op);
    segments[first].n_readers = 0;
}

bool races_touch(const struct op *op) {
    if (!sim.checks)
        return true;
    for (int i = 0; i < op->task->n_extents; i++) {
        const struct extent *e = &op->task->extents[i];
        int first, last;
        if (!e->bytes)
            continue;
        cut(e->at, e->at + e->bytes, &first, &last);
        if (!hold(op, e, first, last))
            return false;
        if (e->direction & DTM_SIM_WRITE)
            written_by(first, last, op);
        else
            for (int k = first; k < last; k++)
                read_by(&segments[k], op);
    }
    return true;
}
void races_forget(uint64_t at, size_t bytes) {
    int first, last;
    if (!bytes)
        return;
    cut(at, at + bytes, &first, &last);
    remove_segments(first, last);
}
