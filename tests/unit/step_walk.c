/* Ranks' rows of events, walked with all copies of a repeat at once: the same times, to the last bit, as copy by copy, of random rows
 * with repeats in repeats, things that are carried out beside them, and ranks that meet, whose repeats fit each other or do not.
 * And as many events looked at of two thousand million copies as of some. Times are whole numbers: sums of them are exact. */
#include "passes/max_plus.h"
#include "passes/step_walk.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 5, THINGS = 3 };

static int failures;
static uint64_t state;

static int drawn(int below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)below);
}

/* ---- copy by copy ---- */

typedef struct flat_row {
    step_event *events;
    size_t count, capacity, at;
    double now, carried_out, done[THINGS];
} flat_row;

static void flatten(const step_row *row, flat_row *out, dtm_arena *arena) {
    for (size_t i = 0; i < row->count; i++) {
        const step_event *e = &row->events[i];
        for (int64_t k = 0; e->kind == STEP_REPEAT && k < e->copies; k++) flatten(e->body, out, arena);
        if (e->kind != STEP_REPEAT) DTM_PUSH(arena, out->events, out->count, out->capacity, *e);
    }
}

static void walk_flat(flat_row *r) {
    for (; r->at < r->count; r->at++) {
        const step_event *e = &r->events[r->at];
        if (e->kind == STEP_MEET || e->kind == STEP_LOOP) return;
        if (e->kind == STEP_WORK) r->now += e->time;
        if (e->kind == STEP_WAIT) r->now = fmax(r->now, r->done[e->thing]);
        if (e->kind == STEP_START) r->done[e->thing] = r->carried_out = fmax(r->carried_out, r->now) + e->time;
    }
}

static bool meet_flat(flat_row *rows) {
    for (int r = 0; r < RANKS; r++) {
        const step_event *e = rows[r].at < rows[r].count ? &rows[r].events[rows[r].at] : NULL;
        bool all = e && e->kind == STEP_MEET;
        double begin = 0, time = 0;
        for (int k = 0; all && k < RANKS; k++) {
            if (!e->members[k]) continue;
            const step_event *other = rows[k].at < rows[k].count ? &rows[k].events[rows[k].at] : NULL;
            all = other && other->kind == STEP_MEET && other->group == e->group;
            begin = fmax(begin, rows[k].now);
            if (all) time = fmax(time, other->time);
        }
        for (int k = 0; all && k < RANKS; k++)
            if (e->members[k]) rows[k].now = begin + time, rows[k].at++;
        if (all) return true;
    }
    return false;
}

/* ---- random rows ---- */

static bool pair_of[3][RANKS] = {{true, true}, {false, false, true, true, true}, {true, true, true, true, true}};

/* Work, and things that are started and waited for. */
static void add_own(step_row *row, dtm_arena *arena, int most) {
    for (int n = drawn(most + 1); n > 0; n--) {
        step_kind kind = (step_kind[]){STEP_WORK, STEP_WORK, STEP_START, STEP_WAIT}[drawn(4)];
        step_row_add(row, arena, (step_event){kind, kind == STEP_WAIT ? 0 : drawn(40), .thing = (size_t)drawn(THINGS)});
    }
}

/* The same shape on all ranks, so that they meet; each works as it likes in between. */
static void add_all(step_row **rows, dtm_arena *arena, int depth, int64_t copies, bool shifted) {
    for (int parts = 1 + drawn(3); parts > 0; parts--) {
        int what = drawn(depth > 0 ? 4 : 2);
        for (int r = 0; r < RANKS; r++) add_own(rows[r], arena, 3);
        if (what == 0) {
            int group = drawn(3);
            for (int r = 0; r < RANKS; r++)
                if (pair_of[group][r])
                    step_row_add(rows[r], arena, (step_event){STEP_MEET, drawn(30), .group = (uint32_t)group, .members = pair_of[group]});
        } else if (what == 1 && depth > 0) { /* each for itself */
            for (int r = 0; r < RANKS; r++) {
                step_row *body = dtm_arena_alloc(arena, sizeof *body);
                add_own(body, arena, 6);
                step_row_add(rows[r], arena, (step_event){STEP_REPEAT, .copies = copies > 100 ? copies : drawn((int)copies), .body = body});
            }
        } else if (what > 1) {
            step_row *bodies[RANKS];
            for (int r = 0; r < RANKS; r++) bodies[r] = dtm_arena_alloc(arena, sizeof *bodies[r]);
            add_all(bodies, arena, depth - 1, copies, shifted);
            int64_t times = copies > 100 ? copies : 1 + drawn((int)copies);
            for (int r = 0; r < RANKS; r++) {
                int64_t before = shifted && times > 1 ? drawn(2) : 0; /* one copy written out before, or after */
                if (before) for (size_t i = 0; i < bodies[r]->count; i++) step_row_add(rows[r], arena, bodies[r]->events[i]);
                step_row_add(rows[r], arena, (step_event){STEP_REPEAT, .copies = times - before, .body = bodies[r]});
            }
        }
    }
}

static step_walk *walk_of(dtm_arena *arena, uint64_t seed, int64_t copies, bool shifted, step_row **rows) {
    state = seed;
    static const size_t things[RANKS] = {THINGS, THINGS, THINGS, THINGS, THINGS};
    for (int r = 0; r < RANKS; r++) rows[r] = dtm_arena_alloc(arena, sizeof *rows[r]);
    add_all(rows, arena, 2, copies, shifted);
    return step_walk_create(arena, RANKS, rows, things);
}

static size_t compared; /* events copy by copy */

static void compare(uint64_t seed) {
    dtm_arena *arena = dtm_arena_create();
    step_row *rows[RANKS];
    step_walk *walk = walk_of(arena, seed, 1 + (int64_t)(seed % 40), seed % 3 == 0, rows);
    flat_row flat[RANKS] = {{0}};
    bool good = step_walk_go(walk) == STEP_ENDED;
    for (int r = 0; r < RANKS; r++) flatten(rows[r], &flat[r], arena);
    do
        for (int r = 0; r < RANKS; r++) walk_flat(&flat[r]);
    while (meet_flat(flat));
    for (int r = 0; r < RANKS; r++) {
        compared += flat[r].count;
        good = good && flat[r].at == flat[r].count && *step_walk_now(walk, (size_t)r) == flat[r].now &&
               *step_walk_carried_out(walk, (size_t)r) == flat[r].carried_out;
        for (size_t i = 0; i < THINGS; i++) good = good && *step_walk_done(walk, (size_t)r, i) == flat[r].done[i];
    }
    if (!good) printf("rows %llu: other times than copy by copy\n", (unsigned long long)seed), failures++;
    dtm_arena_destroy(arena);
}

static void count(uint64_t seed) {
    size_t visited[2];
    for (int many = 0; many < 2; many++) {
        dtm_arena *arena = dtm_arena_create();
        step_row *rows[RANKS];
        step_walk *walk = walk_of(arena, seed, many ? 2000000000 : 101, false, rows);
        step_state end = step_walk_go(walk);
        visited[many] = step_walk_visited(walk);
        if (end != STEP_ENDED) printf("rows %llu: do not end\n", (unsigned long long)seed), failures++;
        dtm_arena_destroy(arena);
    }
    if (visited[0] == visited[1]) return;
    printf("rows %llu: %zu events of 101 copies, %zu of 2000000000\n", (unsigned long long)seed, visited[0], visited[1]);
    failures++;
}

/* ---- powers: against one copy after another ---- */

static void powers(void) {
    for (int round = 0; round < 300; round++) {
        dtm_arena *arena = dtm_arena_create();
        size_t n = 1 + (size_t)drawn(6), width = 1 + (size_t)drawn(3);
        dtm_form once[6], now[6], slow[6], next[6];
        for (size_t i = 0; i < n; i++) {
            once[i] = dtm_form_create(arena, n), now[i] = dtm_form_create(arena, width), slow[i] = dtm_form_create(arena, width);
            next[i] = dtm_form_create(arena, width);
            for (size_t k = 0; k < n; k++) once[i][k] = drawn(3) ? drawn(100) : -INFINITY;
            for (size_t k = 0; k < width; k++) now[i][k] = slow[i][k] = drawn(3) ? drawn(1000) : -INFINITY;
        }
        int copies = drawn(70);
        for (int c = 0; c < copies; c++) {
            for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j < width; j++) {
                    next[i][j] = -INFINITY;
                    for (size_t k = 0; k < n; k++) next[i][j] = fmax(next[i][j], once[i][k] + slow[k][j]);
                }
            for (size_t i = 0; i < n; i++) memcpy(slow[i], next[i], width * sizeof **slow);
        }
        dtm_max_plus_apply(once, n, copies, now, width);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < width; j++)
                if (now[i][j] != slow[i][j]) printf("power %d is another than %d products\n", copies, copies), failures++;
        dtm_arena_destroy(arena);
    }
}

int main(void) {
    powers();
    for (uint64_t seed = 1; seed <= 3000; seed++) compare(seed);
    for (uint64_t seed = 1; seed <= 300; seed++) count(seed);
    printf("%zu events; %d failures\n", compared, failures);
    return failures != 0 || compared < 1000000;
}
