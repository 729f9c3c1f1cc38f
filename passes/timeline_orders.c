/* The order of operations of every published schedule that has a closed rule (timeline.h). P ranks, r the rank, M
 * microbatches, V chunks a rank.
 *
 *     gpipe        all F, then all B                                                      (Huang et al. 2019)
 *     1f1b         min(P - 1 - r, M) F, then F and B in turn, then the B that are left     (PipeDream-Flush, Megatron)
 *     interleaved  the same over V chunks, passed by groups of G >= P microbatches at a time (Megatron)
 *     zbh1         1f1b with B as I and W, each W r places after its I: as much memory on every rank as on the first of
 *                  1f1b                                                                   (Qi et al. 2023)
 *     zbv          stages down the ranks and up again; no bubble at all where F = I = W   (Qi et al. 2023; torch's form)
 *     dualpipe     two pipelines in opposite directions, F and B overlapped               (DeepSeek-V3)
 *     dualpipev    one half of it, folded                                                 (Sea AI Lab, DeepSeek)
 *
 * Fewer microbatches than ranks: a count of operations is cut at what there is; zbv is made for more and what is too much
 * left out. An order from which microbatches are left out is still one in which nothing waits for what comes later. */
#include "ir/fault.h"
#include "passes/timeline_search.h"

#include <string.h>

/* ---- one chunk a rank ---- */

static void gpipe(dtm_timeline *t, int rank) {
    for (int m = 0; m < t->microbatches; m++) dtm_timeline_add(t, rank, DTM_TASK_FORWARD, m, 0);
    for (int m = 0; m < t->microbatches; m++) dtm_timeline_add(t, rank, DTM_TASK_BACKWARD, m, 0);
}

static int least(int a, int b) { return a < b ? a : b; }

/* `late`: how many backward passes later the weight gradient comes; < 0: within B. */
static void one_forward_one_backward(dtm_timeline *t, int rank, int late) {
    int warm = least(t->ranks - !dtm_fault(52) - rank, t->microbatches), weights = 0;
    for (int m = 0; m < warm; m++) dtm_timeline_add(t, rank, DTM_TASK_FORWARD, m, 0);
    for (int m = 0; m < t->microbatches; m++) {
        if (warm + m < t->microbatches) dtm_timeline_add(t, rank, DTM_TASK_FORWARD, warm + m, 0);
        dtm_timeline_add(t, rank, late < 0 ? DTM_TASK_BACKWARD : DTM_TASK_INPUT, m, 0);
        if (late >= 0 && m >= late) dtm_timeline_add(t, rank, DTM_TASK_WEIGHT, weights++, 0);
    }
    while (late >= 0 && weights < t->microbatches) dtm_timeline_add(t, rank, DTM_TASK_WEIGHT, weights++, 0);
}

static void one_f_one_b(dtm_timeline *t, int rank) { one_forward_one_backward(t, rank, -1); }
static void zbh1(dtm_timeline *t, int rank) { one_forward_one_backward(t, rank, dtm_fault(55) ? 0 : rank); }

/* ---- interleaved ---- */

/* Microbatches that pass a chunk before the next chunk's turn: the fewest, from P on, that leave no group of fewer than P at
 * the end (such a group would stand still at every turn from the last rank to the first). */
static int group_size(const dtm_timeline *t) {
    int size = t->ranks;
    if (t->microbatches <= size) return t->microbatches;
    while (t->microbatches % size && t->microbatches % size < t->ranks && !dtm_fault(54)) size++;
    return size;
}

/* The index-th forward (or backward) of any rank: group by group, in a group chunk by chunk. */
static dtm_task interleaved_task(const dtm_timeline *t, int group, int index, bool forward) {
    int first = index / (group * t->chunks) * group, size = least(group, t->microbatches - first);
    int within = index - first * t->chunks, chunk = within / size;
    return (dtm_task){(uint32_t)(first + within % size), (uint16_t)(forward || dtm_fault(53) ? chunk : t->chunks - 1 - chunk),
                      forward ? DTM_TASK_FORWARD : DTM_TASK_BACKWARD};
}

static void add(dtm_timeline *t, int rank, dtm_task task, dtm_task_kind kind) {
    dtm_timeline_add(t, rank, kind, (int)task.microbatch, task.chunk);
}

/* warm F, then F and B in turn; pairs: each such F and B overlapped; late as above. */
static void interleave(dtm_timeline *t, int rank, int warm, bool pairs, int late) {
    int group = group_size(t), all = t->microbatches * t->chunks, weights = 0;
    warm = least(warm, all);
    for (int i = 0; i < warm; i++) add(t, rank, interleaved_task(t, group, i, true), DTM_TASK_FORWARD);
    for (int i = 0; i < all; i++) {
        dtm_task backward = interleaved_task(t, group, i, false);
        if (warm + i >= all) {
            add(t, rank, backward, late < 0 ? DTM_TASK_BACKWARD : DTM_TASK_INPUT);
        } else if (pairs) {
            dtm_timeline_add_pair(t, rank, interleaved_task(t, group, warm + i, true), backward);
        } else {
            add(t, rank, interleaved_task(t, group, warm + i, true), DTM_TASK_FORWARD);
            add(t, rank, backward, late < 0 ? DTM_TASK_BACKWARD : DTM_TASK_INPUT);
        }
        if (late >= 0 && i >= late) add(t, rank, interleaved_task(t, group, weights++, false), DTM_TASK_WEIGHT);
    }
    while (late >= 0 && weights < all) add(t, rank, interleaved_task(t, group, weights++, false), DTM_TASK_WEIGHT);
}

static int interleaved_warm(const dtm_timeline *t, int rank) {
    return 2 * (t->ranks - 1 - rank) + (t->chunks - 1) * group_size(t);
}

static void interleaved(dtm_timeline *t, int rank) { interleave(t, rank, interleaved_warm(t, rank), false, -1); }
static void overlapped(dtm_timeline *t, int rank) { interleave(t, rank, interleaved_warm(t, rank) + 1, true, -1); }
static void interleaved_zero_bubble(dtm_timeline *t, int rank) {
    interleave(t, rank, (t->chunks - 1) * group_size(t) + t->ranks - 1 - rank, false, rank);
}

/* ---- zbv ---- */

/* A rank at work: how many of each task it has put down, by kind and chunk; W in the order of their I. */
typedef struct writer {
    dtm_timeline *timeline;
    int rank, next[4][2];
    dtm_task *queue; /* weight gradients put off */
    int first, last;
} writer;

static dtm_task next_task(writer *w, dtm_task_kind kind, int chunk) {
    return (dtm_task){(uint32_t)w->next[kind][chunk]++, (uint16_t)chunk, (uint8_t)kind};
}

/* The next task of a kind in a chunk; of microbatches that there are not, nothing is written. */
static void put(writer *w, dtm_task_kind kind, int chunk) {
    dtm_task task = next_task(w, kind, chunk);
    if ((int)task.microbatch < dtm_timeline_passing(w->timeline, chunk)) add(w->timeline, w->rank, task, kind);
}

static void zbv(dtm_timeline *t, int rank) {
    writer w = {t, rank};
    int last = t->ranks - rank, all = t->microbatches > 2 * t->ranks - 1 ? t->microbatches : 2 * t->ranks - 1;
    for (int i = 0; i < 2 * last - 1; i++) put(&w, DTM_TASK_FORWARD, 0);
    for (int i = 0; i < rank; i++) put(&w, DTM_TASK_FORWARD, 1), put(&w, DTM_TASK_FORWARD, 0);
    for (int i = 0; i < last; i++) put(&w, DTM_TASK_FORWARD, 1), put(&w, DTM_TASK_INPUT, 1), put(&w, DTM_TASK_WEIGHT, 1);
    while (w.next[DTM_TASK_FORWARD][1] < all) {
        if (w.next[DTM_TASK_FORWARD][0] < all) put(&w, DTM_TASK_FORWARD, 0);
        put(&w, DTM_TASK_INPUT, dtm_fault(57)), put(&w, DTM_TASK_WEIGHT, dtm_fault(57));
        put(&w, DTM_TASK_FORWARD, 1), put(&w, DTM_TASK_INPUT, 1), put(&w, DTM_TASK_WEIGHT, 1);
    }
    for (int i = 0; i < rank; i++) put(&w, DTM_TASK_INPUT, 0), put(&w, DTM_TASK_INPUT, 1);
    for (int i = 0; i < last; i++) put(&w, DTM_TASK_INPUT, 0), put(&w, DTM_TASK_WEIGHT, 0);
    while (w.next[DTM_TASK_WEIGHT][1] < all) put(&w, DTM_TASK_WEIGHT, 1);
    while (w.next[DTM_TASK_WEIGHT][0] < all) put(&w, DTM_TASK_WEIGHT, 0);
}

/* ---- dualpipe ---- */

static void input(writer *w, int chunk) {
    dtm_task task = next_task(w, DTM_TASK_INPUT, chunk);
    add(w->timeline, w->rank, task, DTM_TASK_INPUT);
    w->queue[w->last++] = task;
}

static void weight(writer *w) { add(w->timeline, w->rank, w->queue[w->first++], DTM_TASK_WEIGHT); }

static void backward(writer *w, int chunk) {
    add(w->timeline, w->rank, next_task(w, DTM_TASK_INPUT, chunk), DTM_TASK_BACKWARD);
}

static void pair(writer *w, int forward, int back) {
    dtm_task f = next_task(w, DTM_TASK_FORWARD, forward), b = next_task(w, DTM_TASK_INPUT, back);
    b.kind = DTM_TASK_BACKWARD;
    dtm_timeline_add_pair(w->timeline, w->rank, f, b);
}

/* DeepSeek's eight steps. a is the chunk whose microbatches enter at this rank's end, b the other; h the distance from
 * that end, half the number of ranks from there to the middle, stages all of them, m microbatches in a chunk. */
static void dual(dtm_timeline *t, int rank, int a, int h, int half, int stages, int m) {
    writer w = {t, rank};
    int b = 1 - a, split = (h + 1) / 2;
    w.queue = dtm_arena_alloc(t->arena, 2 * (size_t)t->microbatches * sizeof *w.queue);
    for (int i = 0; i < 2 * (half - 1 - h); i++) put(&w, DTM_TASK_FORWARD, a);
    for (int i = 0; i < h + 1; i++) put(&w, DTM_TASK_FORWARD, a), put(&w, DTM_TASK_FORWARD, b);
    for (int i = 0; i < half - 1 - h; i++) input(&w, b), weight(&w), put(&w, DTM_TASK_FORWARD, b);
    for (int i = 0; i < m - stages + h + 1; i++) {
        bool middle = i == 0 && h == half - 1; /* the first pair in the middle: nothing there yet to overlap */
        if (middle) put(&w, DTM_TASK_FORWARD, a), backward(&w, b);
        else pair(&w, a, b);
        pair(&w, b, a);
    }
    for (int i = 0; i < half - 1 - h; i++) backward(&w, b), pair(&w, b, a);
    for (int i = 0; i < h + 1; i++) {
        if (i > split || (i == split && h % 2 != dtm_fault(56))) input(&w, b);
        else backward(&w, b);
        if (i >= split) input(&w, a);
        else backward(&w, a);
    }
    for (int i = 0; i < half - 1 - h; i++) weight(&w), input(&w, a);
    for (int i = 0; i < h + 1; i++) weight(&w);
}

static void dualpipe(dtm_timeline *t, int rank) {
    int other = t->ranks - 1 - rank, h = least(rank, other);
    dual(t, rank, rank == h ? 0 : 1, h, t->ranks / 2, t->ranks, t->microbatches / 2);
}

static void dualpipev(dtm_timeline *t, int rank) { dual(t, rank, 0, rank, t->ranks, 2 * t->ranks, t->microbatches); }

/* ---- by name ---- */

typedef struct schedule {
    const char *name;
    dtm_placement placement;
    int chunks; /* by itself */
    bool any_chunks, doubled, even, splits;
    void (*rank)(dtm_timeline *, int);
} schedule;

enum { NAMED = 7 };
static const schedule schedules[] = {
    {"gpipe", DTM_PLACE_SINGLE, 1, false, false, false, false, gpipe},
    {"1f1b", DTM_PLACE_SINGLE, 1, false, false, false, false, one_f_one_b},
    {"interleaved", DTM_PLACE_LOOP, 2, true, false, false, false, interleaved},
    {"zbh1", DTM_PLACE_SINGLE, 1, false, false, false, true, zbh1},
    {"zbv", DTM_PLACE_V, 2, false, false, false, true, zbv},
    {"dualpipe", DTM_PLACE_BIDIRECTIONAL, 2, false, true, true, true, dualpipe},
    {"dualpipev", DTM_PLACE_V, 2, false, true, false, true, dualpipev},
    /* not by name: what `auto` measures itself against */
    {"interleavedzb", DTM_PLACE_LOOP, 2, true, false, false, true, interleaved_zero_bubble},
    {"interleaved_moeoverlap", DTM_PLACE_LOOP, 2, true, false, false, false, overlapped},
};

dtm_placement dtm_timeline_placement(const char *schedule) {
    for (int i = 0; i < NAMED; i++)
        if (strcmp(schedules[i].name, schedule) == 0) return schedules[i].placement;
    return DTM_PLACE_LOOP;
}

bool dtm_timeline_splits(const char *schedule) {
    for (int i = 0; i < NAMED; i++)
        if (strcmp(schedules[i].name, schedule) == 0) return schedules[i].splits;
    return false;
}

const char *dtm_timeline_schedule(int index) { return index >= 0 && index < NAMED ? schedules[index].name : NULL; }

static void not_defined(dtm_context *context, dtm_span span, const char *why, const char *help) {
    dtm_error(context, span, 902, "%s", why);
    if (help) dtm_help(context, "%s", help);
}

static bool unknown(dtm_context *context, dtm_span span, const char *name) {
    dtm_string names[NAMED + 1];
    for (int i = 0; i < NAMED; i++) names[i] = dtm_string_of(context, schedules[i].name);
    names[NAMED] = dtm_string_of(context, "auto");
    dtm_string near = dtm_string_nearest(context, name, names, NAMED + 1);
    dtm_arena *arena = dtm_context_arena(context);
    not_defined(context, span, dtm_arena_printf(arena, "there is no schedule `%s`", name),
                near ? dtm_arena_printf(arena, "schedule = %s", dtm_string_text(context, near))
                     : "gpipe, 1f1b, interleaved, zbh1, zbv, dualpipe, dualpipev or auto");
    return false;
}

typedef struct numbers {
    int p, m, v;
} numbers;

static int most_microbatches(int ranks, int chunks) { return least(DTM_TIMELINE_TASKS / 3 / chunks / ranks, DTM_TIMELINE_MICROBATCHES); }

/* The numbers nearest to these that a schedule is defined for. */
static numbers nearest(const schedule *s, numbers n) {
    if (n.v && !s->any_chunks) n.v = s->chunks;
    if (n.v == 1 && s->any_chunks) n.v = 2;
    n.v = least(n.v, DTM_TIMELINE_TASKS / 3);
    n.p = least(n.p, DTM_TIMELINE_RANKS);
    n.p += s->even && n.p % 2;
    int chunks = n.v ? n.v : s->chunks, fewest = s->doubled ? 2 * n.p : 1;
    for (; n.p > 1 + s->even && most_microbatches(n.p, chunks) < fewest; fewest = s->doubled ? 2 * n.p : 1) n.p -= 1 + s->even;
    n.m = least(n.m > fewest ? n.m : fewest, most_microbatches(n.p, chunks));
    if (s->even && n.m % 2) n.m += n.m < most_microbatches(n.p, chunks) ? 1 : -1;
    return n;
}

static bool same(numbers a, numbers b) { return a.p == b.p && a.m == b.m && a.v == b.v; }

/* Another schedule for just these numbers; NULL: there is none. */
static const char *instead(numbers n, bool other_chunks) {
    static const char *const names[] = {"dualpipev", "zbv", "interleaved", "1f1b"};
    for (size_t k = other_chunks ? 2 : 0; k < sizeof names / sizeof *names; k++)
        for (int i = 0; i < NAMED; i++)
            if (!strcmp(schedules[i].name, names[k]) && same(nearest(&schedules[i], n), n)) return names[k];
    return NULL;
}

/* All that must change together, or a schedule for which nothing must. */
static const char *choices(dtm_arena *arena, const schedule *s, numbers n) {
    numbers to = nearest(s, n);
    dtm_text text = {arena, NULL, 0, 0};
    if (to.v != n.v) dtm_text_printf(&text, "chunks = %d", to.v);
    if (to.p != n.p) dtm_text_printf(&text, "%s%d rank%s", text.length ? " and " : "", to.p, dtm_plural(to.p));
    if (to.m != n.m) dtm_text_printf(&text, "%smicrobatches = %d", text.length ? " and " : "", to.m);
    const char *other = instead(n, to.v != n.v);
    if (other) dtm_text_printf(&text, ", or schedule = %s", other);
    return text.data;
}

/* Why a schedule is not defined for these numbers; NULL: it is. */
static const char *reason(dtm_arena *arena, const schedule *s, numbers n) {
    int fewest = s->doubled ? 2 * n.p : 1;
    if (same(nearest(s, n), n)) return NULL;
    if (n.v && n.v != s->chunks && !s->any_chunks)
        return dtm_arena_printf(arena, "%s has %s, not %d", s->name, s->chunks == 1 ? "one chunk a rank" : "two chunks a rank", n.v);
    if (n.v == 1 && s->any_chunks) return dtm_arena_printf(arena, "%s has at least two chunks a rank", s->name);
    if (n.p > DTM_TIMELINE_RANKS)
        return dtm_arena_printf(arena, "a pipeline has at most %d ranks, not %d", DTM_TIMELINE_RANKS, n.p);
    if (s->even && n.p % 2)
        return dtm_arena_printf(arena, "%s needs an even number of ranks, there %s %d", s->name, n.p == 1 ? "is" : "are", n.p);
    if (n.m < fewest)
        return dtm_arena_printf(arena, "%s on %d rank%s needs at least %d microbatches, there %s %d", s->name, n.p,
                                dtm_plural(n.p), fewest, n.m == 1 ? "is" : "are", n.m);
    if (n.m > most_microbatches(n.p, n.v ? n.v : s->chunks))
        return dtm_arena_printf(arena, "%d microbatches on %d rank%s are more tasks than a timeline can have", n.m, n.p,
                                dtm_plural(n.p));
    return dtm_arena_printf(arena, "%s sends half of the microbatches either way, %d cannot be halved", s->name, n.m);
}

/* If it is not, says why and for which numbers it would be. */
static bool defined(dtm_context *context, dtm_span span, const schedule *s, numbers n) {
    dtm_arena *arena = dtm_context_arena(context);
    const char *why = reason(arena, s, n);
    if (why) not_defined(context, span, why, choices(arena, s, n));
    return !why;
}

static dtm_timeline *fill(dtm_arena *arena, const schedule *s, int p, int m, int v) {
    dtm_timeline *t = dtm_timeline_create(arena, s->name, s->placement, p, m, v ? v : s->chunks);
    for (int r = 0; r < p; r++) s->rank(t, r);
    return t;
}

dtm_timeline *dtm_timeline_order(dtm_context *context, dtm_arena *arena, dtm_span span, const char *name, int ranks,
                                 int microbatches, int chunks) {
    for (int i = 0; i < NAMED; i++) {
        const schedule *s = &schedules[i];
        if (strcmp(name, s->name)) continue;
        if (ranks < 1 || microbatches < 1 || chunks < 0) {
            not_defined(context, span, "a pipeline has at least one rank, one microbatch and one chunk", NULL);
            return NULL;
        }
        if (!defined(context, span, s, (numbers){ranks, microbatches, chunks})) return NULL;
        return fill(arena, s, ranks, microbatches, chunks);
    }
    unknown(context, span, name);
    return NULL;
}

dtm_timeline *search_rule(dtm_arena *arena, const char *name, int ranks, int microbatches, int chunks) {
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
        const schedule *s = &schedules[i];
        if (strcmp(name, s->name)) continue;
        bool chunked = s->any_chunks ? chunks > 1 : chunks == s->chunks;
        bool fits = chunked && !(s->even && (ranks % 2 || microbatches % 2)) && !(s->doubled && microbatches < 2 * ranks);
        return fits ? fill(arena, s, ranks, microbatches, chunks) : NULL;
    }
    return NULL;
}
