/* Walking rows of events (step_walk.h). A rank that comes to a repeat without meetings goes through all of its copies at once. One
 * with meetings it goes through together with all whom it meets there, as soon as each of them has come to a repeat, where one copy
 * of each fits one copy of the others:
 *
 *     rank 0   repeat 8 { work, meet 1 }           8 copies at once
 *     rank 1   repeat 9 { meet 0, work }           and then one alone
 *
 * Ranks for which that does not hold take their copies one by one. What happens when does not depend on who is looked at first. */
#include "passes/step_walk.h"
#include "passes/max_plus.h"

#include <math.h>
#include <string.h>

typedef struct frame {
    const step_row *row;
    size_t at;
    int64_t left; /* copies, with this one */
} frame;

typedef struct walker {
    frame *frames; /* NULL: this rank takes no part */
    size_t depth, capacity;
    bool parked; /* before a copy */
    dtm_form now, carried_out, *done;
    size_t n_things;
} walker;

struct step_walk {
    dtm_arena *arena;
    size_t n_ranks, width; /* of times: 1, or what a copy is found for */
    walker *ranks;
    size_t *visited;
};

void step_row_add(step_row *row, dtm_arena *arena, step_event event) {
    bool works = event.kind == STEP_REPEAT && event.body->count == 1 && event.body->events[0].kind == STEP_WORK;
    if (event.kind == STEP_REPEAT && (event.copies <= 0 || !event.body->count)) return;
    if (works) event = (step_event){STEP_WORK, (double)event.copies * event.body->events[0].time};
    row->meets |= event.kind == STEP_MEET || (event.kind == STEP_REPEAT && event.body->meets);
    step_event *last = row->count ? &row->events[row->count - 1] : NULL;
    if (event.kind == STEP_WORK && last && last->kind == STEP_WORK) last->time += event.time;
    else DTM_PUSH(arena, row->events, row->count, row->capacity, event);
}

static void push(step_walk *s, walker *w, const step_row *row, int64_t copies) {
    frame entered = {row, 0, copies};
    DTM_PUSH(s->arena, w->frames, w->depth, w->capacity, entered);
}

static const step_event *event_of(const walker *w) {
    if (!w->depth || w->parked) return NULL;
    const frame *f = &w->frames[w->depth - 1];
    return f->at < f->row->count ? &f->row->events[f->at] : NULL;
}

/* ---- many copies at once ---- */

static void mark_things(const step_row *row, bool *touched) {
    for (size_t i = 0; i < row->count; i++) {
        const step_event *e = &row->events[i];
        if (e->kind == STEP_START || e->kind == STEP_WAIT) touched[e->thing] = true;
        if (e->kind == STEP_REPEAT) mark_things(e->body, touched);
    }
}

static bool mark_members(const step_row *row, size_t n_ranks, bool *met) {
    bool news = false;
    for (size_t i = 0; i < row->count && row->meets; i++) {
        const step_event *e = &row->events[i];
        if (e->kind == STEP_REPEAT) news |= mark_members(e->body, n_ranks, met);
        for (size_t r = 0; e->kind == STEP_MEET && r < n_ranks; r++) {
            news |= e->members[r] && !met[r];
            met[r] |= e->members[r];
        }
    }
    return news;
}

static frame *top_of(walker *w) { return &w->frames[w->depth - 1]; }

static int64_t fewest_left(const step_walk *s, const bool *set) {
    int64_t fewest = INT64_MAX;
    for (size_t r = 0; r < s->n_ranks; r++)
        if (set[r] && top_of(&s->ranks[r])->left < fewest) fewest = top_of(&s->ranks[r])->left;
    return fewest;
}

/* The times of the ranks of a set that their bodies have to do with. */
static size_t list_times(const step_walk *s, const bool *set, bool **touched, dtm_form **times, dtm_arena *arena) {
    size_t count = 0, most = 0;
    for (size_t r = 0; r < s->n_ranks; r++) most += set[r] ? 2 + s->ranks[r].n_things : 0;
    *times = dtm_arena_alloc(arena, most * sizeof **times);
    for (size_t r = 0; r < s->n_ranks; r++) {
        if (!set[r]) continue;
        const walker *w = &s->ranks[r];
        (*times)[count++] = w->now;
        (*times)[count++] = w->carried_out;
        for (size_t i = 0; i < w->n_things; i++)
            if (touched[r][i]) (*times)[count++] = w->done[i];
    }
    return count;
}

/* Walks one copy of what the ranks of a set have come to, each with times of its own to begin with. */
static step_walk one_copy(const step_walk *s, const bool *set, bool **touched, size_t width, dtm_arena *arena) {
    step_walk copy = {arena, s->n_ranks, width, dtm_arena_alloc(arena, s->n_ranks * sizeof *copy.ranks), s->visited};
    size_t at = 0;
    for (size_t r = 0; r < s->n_ranks; r++) {
        walker *w = &copy.ranks[r];
        if (!set[r]) continue;
        w->n_things = s->ranks[r].n_things;
        push(&copy, w, top_of(&s->ranks[r])->row, 1);
        w->now = dtm_form_create(arena, width);
        w->carried_out = dtm_form_create(arena, width);
        w->now[at++] = 0;
        w->carried_out[at++] = 0;
        w->done = dtm_arena_alloc(arena, w->n_things * sizeof *w->done);
        for (size_t i = 0; i < w->n_things; i++) {
            if (!touched[r][i]) continue;
            w->done[i] = dtm_form_create(arena, width);
            w->done[i][at++] = 0;
        }
    }
    return copy;
}

/* As many copies as all ranks of a set have left; false: a copy of one does not fit a copy of another, nothing is done. */
static bool take_copies(step_walk *s, const bool *set, int64_t copies) {
    dtm_arena *arena = dtm_arena_create();
    dtm_form *times, *after;
    bool **touched = dtm_arena_alloc(arena, s->n_ranks * sizeof *touched);
    for (size_t r = 0; r < s->n_ranks; r++) {
        if (!set[r]) continue;
        touched[r] = dtm_arena_alloc(arena, s->ranks[r].n_things * sizeof **touched);
        mark_things(top_of(&s->ranks[r])->row, touched[r]);
    }
    size_t count = list_times(s, set, touched, &times, arena);
    step_walk copy = one_copy(s, set, touched, count, arena);
    bool fits = step_walk_go(&copy) == STEP_ENDED;
    if (fits) {
        list_times(&copy, set, touched, &after, arena);
        dtm_max_plus_apply(after, count, copies, times, s->width);
    }
    dtm_arena_destroy(arena);
    return fits;
}

static void leave_copies(walker *w, int64_t copies) {
    frame *f = top_of(w);
    f->at = 0;
    f->left -= copies;
    w->parked = f->left > 0;
    if (!f->left) w->depth--;
}

/* All copies that the ranks of a set have in common, or the next one of each, by itself. */
static void go_on(step_walk *s, const bool *set) {
    int64_t copies = fewest_left(s, set);
    bool taken = copies > 1 && take_copies(s, set, copies);
    for (size_t r = 0; r < s->n_ranks; r++) {
        if (!set[r]) continue;
        if (taken) leave_copies(&s->ranks[r], copies);
        else s->ranks[r].parked = false;
    }
}

/* Of those that wait before a copy: those that are there with all whom they meet in it, or else all of them. */
static bool unpark(step_walk *s) {
    bool any = false;
    bool *set = dtm_arena_alloc(s->arena, s->n_ranks), *tried = dtm_arena_alloc(s->arena, s->n_ranks);
    for (size_t r = 0; r < s->n_ranks; r++) {
        if (!s->ranks[r].parked || tried[r]) continue;
        memset(set, 0, s->n_ranks);
        set[r] = true;
        bool all = true;
        for (bool news = true; news && all;) {
            news = false;
            for (size_t k = 0; k < s->n_ranks; k++) {
                if (set[k]) all = all && s->ranks[k].frames && s->ranks[k].parked;
                if (set[k] && all) news |= mark_members(top_of(&s->ranks[k])->row, s->n_ranks, set);
            }
        }
        for (size_t k = 0; k < s->n_ranks; k++) tried[k] |= set[k];
        if (!all) continue;
        go_on(s, set);
        any = true;
    }
    for (size_t r = 0; r < s->n_ranks && !any; r++) tried[r] = s->ranks[r].parked;
    for (size_t r = 0; r < s->n_ranks && !any; r++)
        if (tried[r]) s->ranks[r].parked = false, any = true;
    return any;
}

/* ---- one after another ---- */

static void start(const step_walk *s, walker *w, const step_event *e) {
    dtm_form_join(w->carried_out, s->width, w->now);
    dtm_form_add(w->carried_out, s->width, e->time);
    memcpy(w->done[e->thing], w->carried_out, s->width * sizeof *w->carried_out);
}

static void repeat(step_walk *s, size_t rank, const step_event *e) {
    walker *w = &s->ranks[rank];
    push(s, w, e->body, e->copies);
    w->parked = true;
    if (e->body->meets) return;
    bool *set = dtm_arena_alloc(s->arena, s->n_ranks);
    set[rank] = true;
    go_on(s, set);
}

/* Until the rank has to wait for others. */
static void run(step_walk *s, size_t rank) {
    walker *w = &s->ranks[rank];
    while (w->depth && !w->parked) {
        const step_event *e = event_of(w);
        if (!e) {
            leave_copies(w, 1);
            continue;
        }
        if (e->kind == STEP_MEET || e->kind == STEP_LOOP) return;
        top_of(w)->at++;
        ++*s->visited;
        if (e->kind == STEP_WORK) dtm_form_add(w->now, s->width, e->time);
        if (e->kind == STEP_WAIT) dtm_form_join(w->now, s->width, w->done[e->thing]);
        if (e->kind == STEP_START) start(s, w, e);
        if (e->kind == STEP_REPEAT) repeat(s, rank, e);
    }
}

/* The meeting that a rank has come to; NULL: none. */
static const step_event *comes_to(const walker *w) {
    const step_event *e = w->frames ? event_of(w) : NULL;
    return e && e->kind == STEP_MEET ? e : NULL;
}

/* Ends the meeting that a rank has come to, if all others have. */
static bool meet_at(step_walk *s, size_t rank) {
    const step_event *e = comes_to(&s->ranks[rank]);
    dtm_form now = s->ranks[rank].now;
    double time = 0;
    if (!e || !e->members[rank]) return false;
    for (size_t k = 0; k < s->n_ranks; k++) {
        if (!e->members[k]) continue;
        const step_event *other = comes_to(&s->ranks[k]);
        if (!other || other->group != e->group) return false;
        time = fmax(time, other->time);
    }
    for (size_t k = 0; k < s->n_ranks; k++)
        if (e->members[k]) dtm_form_join(now, s->width, s->ranks[k].now);
    dtm_form_add(now, s->width, time);
    for (size_t k = 0; k < s->n_ranks; k++) {
        if (!e->members[k]) continue;
        if (k != rank) memcpy(s->ranks[k].now, now, s->width * sizeof *now);
        top_of(&s->ranks[k])->at++;
        ++*s->visited;
    }
    return true;
}

static bool meet(step_walk *s) {
    for (size_t r = 0; r < s->n_ranks; r++)
        if (meet_at(s, r)) return true;
    return false;
}

step_state step_walk_go(step_walk *s) {
    for (;;) {
        size_t ended = 0, at_loop = 0;
        for (size_t r = 0; r < s->n_ranks; r++) {
            run(s, r);
            const step_event *e = event_of(&s->ranks[r]);
            ended += !s->ranks[r].depth;
            at_loop += e && e->kind == STEP_LOOP;
        }
        if (ended == s->n_ranks) return STEP_ENDED;
        if (at_loop == s->n_ranks) return STEP_AT_LOOP;
        if (!meet(s) && !unpark(s)) return STEP_STUCK;
    }
}

void step_walk_pass_loop(step_walk *s) {
    for (size_t r = 0; r < s->n_ranks; r++) top_of(&s->ranks[r])->at++;
}

step_walk *step_walk_create(dtm_arena *arena, size_t n_ranks, step_row *const *rows, const size_t *n_things) {
    step_walk *s = dtm_arena_alloc(arena, sizeof *s);
    *s = (step_walk){arena, n_ranks, 1, dtm_arena_alloc(arena, n_ranks * sizeof *s->ranks),
                     dtm_arena_alloc(arena, sizeof *s->visited)};
    for (size_t r = 0; r < n_ranks; r++) {
        walker *w = &s->ranks[r];
        w->n_things = n_things[r];
        w->now = dtm_arena_alloc(arena, sizeof *w->now);
        w->carried_out = dtm_arena_alloc(arena, sizeof *w->carried_out);
        w->done = dtm_arena_alloc(arena, n_things[r] * sizeof *w->done);
        for (size_t i = 0; i < n_things[r]; i++) w->done[i] = dtm_arena_alloc(arena, sizeof **w->done);
        push(s, w, rows[r], 1);
    }
    return s;
}

double *step_walk_now(step_walk *s, size_t rank) { return s->ranks[rank].now; }
double *step_walk_carried_out(step_walk *s, size_t rank) { return s->ranks[rank].carried_out; }
double *step_walk_done(step_walk *s, size_t rank, size_t thing) { return s->ranks[rank].done[thing]; }
bool step_walk_has_ended(const step_walk *s, size_t rank) { return !s->ranks[rank].depth; }
size_t step_walk_visited(const step_walk *s) { return *s->visited; }
