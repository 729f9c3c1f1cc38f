/* Reads the text of a timeline (timeline.h). What a person may well write is let pass: blank lines, comments, `rank 3:` at
 * the beginning of a line, spaces within a pair, the backward of a pair first. Everything else is an error that says where
 * and what was expected. Whether the order makes sense is not asked here: passes/timeline_prove.c does. */
#include "ir/timeline.h"

#include <string.h>

typedef struct reader {
    dtm_context *context;
    dtm_arena *arena;
    uint32_t file;
    const char *text;
    size_t at, end;      /* the next byte; the end of the line being read */
    size_t word;         /* where the word being read begins */
    dtm_timeline *timeline;
    bool failed;
} reader;

static void fail(reader *r, size_t from, size_t to, const char *message) {
    if (to <= from) to = from + 1;
    dtm_error(r->context, (dtm_span){r->file, (uint32_t)from, (uint32_t)to}, 901, "%s", message);
    r->failed = true;
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool contains(const char *text, size_t length, const char *what) {
    size_t size = strlen(what);
    for (size_t i = 0; i + size <= length; i++)
        if (memcmp(text + i, what, size) == 0) return true;
    return false;
}

/* F0, B3.1, (F0+B0), [S:F0>1]: what lines of ranks begin with, and no program. */
static bool begins_with_task(const char *text, size_t length) {
    if (length > 2 && text[0] == '[') return (text[1] == 'S' || text[1] == 'R') && text[2] == ':';
    if (length && text[0] == '(') text++, length--;
    return length > 1 && memchr("FBIWfbiw", text[0], 8) && is_digit(text[1]);
}

bool dtm_timeline_is_text(const char *text, size_t length) {
    bool said = false; /* by a comment: what the first line of a timeline says */
    for (size_t at = 0, end; at < length; at = end + 1) {
        const char *newline = memchr(text + at, '\n', length - at);
        end = newline ? (size_t)(newline - text) : length;
        while (at < end && is_space(text[at])) at++;
        if (at == end) continue;
        if (text[at] != '#') return said || begins_with_task(text + at, end - at);
        said |= contains(text + at, end - at, " P=") && contains(text + at, end - at, " placement=");
    }
    return said;
}

static void skip_spaces(reader *r) {
    while (r->at < r->end && is_space(r->text[r->at])) r->at++;
}

/* The word at r->at: up to a space, bracket or sign. */
static size_t word_end(const reader *r, size_t from) {
    size_t to = from;
    while (to < r->end && !is_space(r->text[to]) && !strchr("()[]#+", r->text[to])) to++;
    return to;
}

static bool take(reader *r, char c) {
    if (r->at >= r->end || r->text[r->at] != c) return false;
    r->at++;
    return true;
}

/* A whole number of at most nine digits. */
static bool number(reader *r, int *value) {
    size_t from = r->at;
    int64_t n = 0;
    while (r->at < r->end && is_digit(r->text[r->at]) && r->at - from < 10) n = n * 10 + (r->text[r->at++] - '0');
    *value = (int)n;
    return r->at > from && r->at - from < 10;
}

/* ---- the line that begins with # ---- */

static bool key(reader *r, const char *name) {
    size_t length = strlen(name);
    if (r->end - r->at <= length || memcmp(r->text + r->at, name, length) || r->text[r->at + length] != '=') return false;
    r->at += length + 1;
    return true;
}

static bool placement(reader *r, int *which) {
    size_t to = word_end(r, r->at);
    for (*which = 0; *which < DTM_PLACEMENTS; (*which)++) {
        const char *name = dtm_placement_name((dtm_placement)*which);
        if (to - r->at == strlen(name) && memcmp(r->text + r->at, name, to - r->at) == 0) return true;
    }
    return false;
}

static void make(reader *r, size_t from, const char *name, int p, int m, int v, int place) {
    dtm_placement placement = (dtm_placement)place;
    const char *what = NULL;
    if (place < 0 || p < 1 || m < 1 || v < 1)
        what = "the first line of a timeline says P=.., M=.., V=.. (each at least 1) and placement=single, loop, v or bidir";
    else if (placement == DTM_PLACE_SINGLE && v != 1)
        what = "placement=single has V=1: one stage a rank";
    else if (placement == DTM_PLACE_BIDIRECTIONAL && v != 2)
        what = "placement=bidir has V=2: each rank holds a stage for either direction";
    else if (m > DTM_TIMELINE_MICROBATCHES)
        what = dtm_arena_printf(r->arena, "a timeline has at most %d microbatches, not %d", DTM_TIMELINE_MICROBATCHES, m);
    else if (p > DTM_TIMELINE_RANKS || v > DTM_TIMELINE_RANKS || (int64_t)p * v > DTM_TIMELINE_TASKS / 3 / m)
        what = dtm_arena_printf(r->arena, "a timeline has at most %d tasks, three for each of P x V x M", DTM_TIMELINE_TASKS);
    if (what) {
        fail(r, from, r->end, what);
        if (place < 0 || p < 1 || m < 1 || v < 1) dtm_help(r->context, "# 1f1b P=4 M=8 V=1 placement=single");
    } else r->timeline = dtm_timeline_create(r->arena, name, placement, p, m, v);
}

/* A `#` line: the first with P=.. makes the timeline; others are comments. */
static void header(reader *r, size_t from) {
    int p = 0, m = 0, v = 0, place = -1, *numbers[] = {&p, &m, &v};
    const char *names[] = {"P", "M", "V"}, *name = "timeline";
    bool any = false, named = false;
    for (skip_spaces(r); r->at < r->end && !r->failed; skip_spaces(r)) {
        size_t word = r->at, to = word;
        while (to < r->end && !is_space(r->text[to])) to++;
        if (!named && !memchr(r->text + word, '=', to - word)) {
            char *copy = dtm_arena_alloc(r->arena, to - word + 1);
            memcpy(copy, r->text + word, to - word);
            name = copy;
        }
        named = true;
        for (int k = 0; k < 3; k++)
            if (key(r, names[k])) {
                any = true;
                if (!number(r, numbers[k]) || r->at != to) fail(r, word, to,
                         dtm_arena_printf(r->arena, "%s is a whole number from 1 to %d", names[k], k == 1 ? DTM_TIMELINE_MICROBATCHES : DTM_TIMELINE_RANKS));
            }
        if (key(r, "placement") && (any = true) && !placement(r, &place))
            fail(r, word, to, "placement is single, loop, v or bidir");
        r->at = to;
    }
    if (any && !r->failed) make(r, from, name, p, m, v, place);
}

/* ---- the line of a rank ---- */

/* F3 or F3.1, whose numbers are in range. */
static bool task(reader *r, dtm_task *out) {
    const dtm_timeline *t = r->timeline;
    size_t from = r->at;
    const char *letter = r->at < r->end && r->text[r->at] ? strchr(DTM_TASK_LETTERS, r->text[r->at]) : NULL;
    int microbatch = 0, chunk = 0;
    if (!letter || (r->at++, !number(r, &microbatch)) || (take(r, '.') && !number(r, &chunk))) {
        fail(r, from, word_end(r, from), "a task is expected: F, B, I or W, a microbatch, and a chunk: F3, B0.1");
        return false;
    }
    if (chunk >= t->chunks || microbatch >= dtm_timeline_passing(t, chunk)) {
        int passing = chunk >= t->chunks ? 0 : dtm_timeline_passing(t, chunk);
        fail(r, from, r->at,
             passing ? dtm_arena_printf(r->arena, "microbatch %d of %d%s (they count from 0)", microbatch, passing,
                                        t->directions == 2 ? " of this direction" : "")
                     : dtm_arena_printf(r->arena, "chunk %d of %d (they count from 0)", chunk, t->chunks));
        return false;
    }
    *out = (dtm_task){(uint32_t)microbatch, (uint16_t)chunk, (uint8_t)(letter - DTM_TASK_LETTERS)};
    return true;
}

/* Within parentheses. */
static bool pair(reader *r, dtm_operation *o) {
    o->kind = DTM_OPERATION_PAIR;
    skip_spaces(r);
    if (!task(r, &o->tasks[0])) return false;
    skip_spaces(r);
    bool plus = take(r, '+');
    skip_spaces(r);
    if (plus && !task(r, &o->tasks[1])) return false;
    skip_spaces(r);
    if (o->tasks[1].kind == DTM_TASK_FORWARD && o->tasks[0].kind != DTM_TASK_FORWARD) {
        dtm_task first = o->tasks[1];
        o->tasks[1] = o->tasks[0];
        o->tasks[0] = first;
    }
    if (!plus || !take(r, ')') || o->tasks[0].kind != DTM_TASK_FORWARD ||
        (o->tasks[1].kind != DTM_TASK_BACKWARD && o->tasks[1].kind != DTM_TASK_INPUT)) {
        fail(r, r->word, r->at, "a pair is an F and a B or I: (F3.0+B1.1)");
        return false;
    }
    return true;
}

/* One message of a group: S:F0>1, R:B0.1<2. Its task counts chunks on the rank that sends. */
static bool message(reader *r, int rank) {
    dtm_message m = {.peer = -1};
    size_t from = r->at;
    bool send = take(r, 'S');
    m.receive = !send && take(r, 'R');
    if ((!send && !m.receive) || !take(r, ':')) {
        fail(r, from, word_end(r, from), "a message is S:TASK>RANK or R:TASK<RANK: S:F0>1, R:B0.1<2");
        return false;
    }
    if (!task(r, &m.made)) return false;
    if (m.made.kind == DTM_TASK_INPUT) m.made.kind = DTM_TASK_BACKWARD;
    if (!take(r, send ? '>' : '<') || !number(r, &m.peer) || m.peer >= r->timeline->ranks || m.peer == rank ||
        m.made.kind == DTM_TASK_WEIGHT) {
        fail(r, from, word_end(r, from), "a message sends what an F or B makes to another rank: S:F0>1, R:B0.1<2");
        return false;
    }
    m.span = (dtm_span){r->file, (uint32_t)from, (uint32_t)r->at};
    dtm_rank_order *order = &r->timeline->order[rank];
    DTM_PUSH(r->arena, order->messages, order->n_messages, order->cap_messages, m);
    return true;
}

/* Within brackets. */
static bool group(reader *r, int rank, dtm_operation *o) {
    o->kind = DTM_OPERATION_GROUP;
    o->message = (uint32_t)r->timeline->order[rank].n_messages;
    r->timeline->groups = true;
    for (skip_spaces(r); !take(r, ']'); skip_spaces(r)) {
        if (r->at >= r->end) {
            fail(r, r->word, r->end, "a group of messages without its `]`");
            return false;
        }
        if (!message(r, rank)) return false;
        o->n_messages++;
    }
    return true;
}

/* `rank 3:` or `3:`; it must say the rank whose turn it is. */
static void label(reader *r, int rank) {
    size_t from = r->at;
    int said;
    if (r->end - r->at > 4 && memcmp(r->text + r->at, "rank", 4) == 0) r->at += 4;
    skip_spaces(r);
    if (number(r, &said) && (skip_spaces(r), take(r, ':'))) {
        if (said != rank)
            fail(r, from, r->at,
                 dtm_arena_printf(r->arena, "the line of rank %d stands here, lines come in the order of ranks", rank));
        return;
    }
    r->at = from;
}

static void rank_line(reader *r, int rank) {
    label(r, rank);
    for (skip_spaces(r); r->at < r->end && r->text[r->at] != '#' && !r->failed; skip_spaces(r)) {
        dtm_operation o = {DTM_OPERATION_TASK};
        r->word = r->at;
        if (take(r, '(') ? pair(r, &o) : take(r, '[') ? group(r, rank, &o) : task(r, &o.tasks[0])) {
            if (r->at < r->end && !is_space(r->text[r->at]) && !strchr("([#", r->text[r->at])) {
                fail(r, r->word, word_end(r, r->at), "a task is expected: F, B, I or W, a microbatch, and a chunk: F3, B0.1");
                return;
            }
            o.span = (dtm_span){r->file, (uint32_t)r->word, (uint32_t)r->at};
            dtm_timeline_add_operation(r->timeline, rank, o);
        }
    }
}

dtm_timeline *dtm_timeline_parse(dtm_context *context, dtm_arena *arena, uint32_t file) {
    reader r = {context, arena, file};
    size_t length;
    int rank = 0;
    r.text = dtm_source_text(context, file, &length);
    if (length > UINT32_MAX) length = UINT32_MAX;
    for (size_t line = 0; line < length && !r.failed; line = r.end + 1) {
        const char *newline = memchr(r.text + line, '\n', length - line);
        r.at = line;
        r.end = newline ? (size_t)(newline - r.text) : length;
        skip_spaces(&r);
        size_t from = r.at;
        if (r.at == r.end) continue;
        if (take(&r, '#')) {
            if (!r.timeline) header(&r, from);
        } else if (!r.timeline) {
            fail(&r, from, r.end, "a timeline begins with a line such as `# 1f1b P=4 M=8 V=1 placement=single`");
        } else if (rank >= r.timeline->ranks) {
            fail(&r, from, r.end, dtm_arena_printf(arena, "P=%d: a line for each rank and no more", r.timeline->ranks));
        } else {
            rank_line(&r, rank++);
        }
    }
    if (!r.failed && (!r.timeline || rank < r.timeline->ranks))
        fail(&r, length ? length - 1 : 0, length,
             r.timeline ? dtm_arena_printf(arena, "P=%d, but there %s for %d rank%s", r.timeline->ranks, rank == 1 ? "is a line" : "are lines", rank,
                                            dtm_plural(rank))
                        : "a timeline begins with a line such as `# 1f1b P=4 M=8 V=1 placement=single`");
    return r.failed ? NULL : r.timeline;
}
