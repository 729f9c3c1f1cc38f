/* Two parts of a pair that take turns, either of which begins, with all copies of a repeat at once: the same ends, to the last bit, as
 * item by item, also of what both wait long enough for to be computed, of random parts with repeats in repeats that end where they like; and as many items looked at of two thousand million
 * copies as of some. Times are whole numbers: sums of them are exact. */
#include "passes/turns.h"

#include <math.h>
#include <stdio.h>

static int failures;
static uint64_t state;

static int drawn(int below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)below);
}

/* ---- item by item, as what is computed and started comes ---- */

typedef struct flat_part {
    turn_item *items;
    size_t count, capacity, at;
    double started, ended;
} flat_part;

static void flat_add(flat_part *part, dtm_arena *arena, double time, bool collective) {
    if (!part->count || part->items[part->count - 1].collective > 0) {
        turn_item item = {0};
        DTM_PUSH(arena, part->items, part->count, part->capacity, item);
    }
    turn_item *last = &part->items[part->count - 1];
    *(collective ? &last->collective : &last->computes) += time;
}

static void flat_release(flat_part *part, dtm_arena *arena, double time) {
    flat_add(part, arena, 0, false);
    part->items[part->count - 1].releases += time;
}

/* What was released and is not computed yet makes up for what a part waits. */
static double left_of_released;

static double wait_until(double now, double until) {
    left_of_released = fmax(0, left_of_released - fmax(0, until - now));
    return fmax(now, until);
}

/* The last of a part, which starts nothing, while the other waits: of its first 64 waits it is known when they are filled. */
static double flat_fill(flat_part *part, flat_part *other, double now, double carried_out) {
    double left = part->items[part->at].computes;
    now = wait_until(now, part->started);
    left_of_released += left + part->items[part->at++].releases;
    part->ended = left > 0 ? -1 : now;
    for (int i = 0; other->at < other->count; i++) {
        const turn_item *item = &other->items[other->at++];
        double wait = fmax(0, other->started - now);
        if (i < 64 && left > 0 && wait >= left) part->ended = now + left;
        left = fmax(0, left - wait);
        now = wait_until(now, other->started) + item->computes;
        left_of_released += item->releases;
        if (item->collective > 0) other->started = carried_out = fmax(carried_out, now) + item->collective;
    }
    other->ended = fmax(now, other->started);
    left = fmax(0, left - (other->ended - now));
    if (part->ended < 0) part->ended = other->ended + left;
    return now;
}

/* Returns when all has been computed. */
static double flat_take(flat_part *parts, int begins) {
    double now = 0, carried_out = 0;
    left_of_released = 0;
    for (int turn = begins; parts[0].at < parts[0].count || parts[1].at < parts[1].count; turn = 1 - turn) {
        flat_part *part = &parts[turn], *other = &parts[1 - turn];
        if (part->at == part->count) continue;
        bool tail = part->at + 1 == part->count && part->items[part->at].collective == 0, starts = false;
        for (size_t i = other->at; i < other->count; i++) starts |= other->items[i].collective > 0;
        if (tail && starts) {
            now = flat_fill(part, other, now, carried_out);
            break;
        }
        const turn_item *item = &part->items[part->at++];
        now = wait_until(now, part->started) + item->computes;
        left_of_released += item->releases;
        if (item->collective > 0) part->started = carried_out = fmax(carried_out, now) + item->collective;
        part->ended = fmax(now, part->started);
    }
    return fmax(fmax(parts[0].ended, parts[1].ended), now + left_of_released);
}

/* ---- random parts, put together both ways ---- */

typedef struct step {
    int kind; /* 0: computes, 1: a collective, 2: a repeat */
    int time, releases;
    int64_t copies;
    struct step *body;
    int count;
} step;

static step *draw(dtm_arena *arena, int depth, int64_t copies, int *count) {
    *count = 1 + drawn(4);
    step *steps = dtm_arena_alloc(arena, (size_t)*count * sizeof *steps);
    for (int i = 0; i < *count; i++) {
        step *s = &steps[i];
        s->kind = drawn(depth > 0 ? 4 : 2);
        s->time = drawn(30) + (s->kind == 1);
        s->releases = drawn(3) == 0 ? drawn(40) : 0;
        if (s->kind < 2) continue;
        s->kind = 2;
        s->copies = copies > 100 ? copies : drawn((int)copies);
        s->body = draw(arena, depth - 1, copies, &s->count);
    }
    return steps;
}

static void build(const step *steps, int count, turn_part *part, dtm_arena *arena) {
    for (int i = 0; i < count; i++) {
        const step *s = &steps[i];
        if (s->kind == 0) turn_part_compute(part, s->time);
        if (s->kind == 1) turn_part_start(part, arena, s->time);
        turn_part copy = {0};
        if (s->kind == 2) build(s->body, s->count, &copy, arena);
        if (s->kind == 2) turn_part_repeat(part, arena, &copy, s->copies);
        if (s->releases) turn_part_release(part, s->releases);
    }
}

static void build_flat(const step *steps, int count, flat_part *part, dtm_arena *arena) {
    for (int i = 0; i < count; i++) {
        const step *s = &steps[i];
        if (s->kind < 2) flat_add(part, arena, s->time, s->kind == 1);
        for (int64_t k = 0; s->kind == 2 && k < s->copies; k++) build_flat(s->body, s->count, part, arena);
        if (s->releases) flat_release(part, arena, s->releases);
    }
}

static size_t compared, looked_at;

static void compare(uint64_t seed) {
    dtm_arena *arena = dtm_arena_create();
    turn_part parts[2] = {{0}};
    flat_part flat[2] = {{0}};
    double ended[TURNS_ENDS];
    state = seed;
    for (int i = 0; i < 2; i++) {
        int count;
        step *steps = draw(arena, 2, 2 + (int64_t)(seed % 50), &count);
        build(steps, count, &parts[i], arena);
        build_flat(steps, count, &flat[i], arena);
        compared += 2 * flat[i].count;
    }
    double both[2], best[TURNS_ENDS];
    for (int begins = 0; begins < 2; begins++) {
        for (int i = 0; i < 2; i++) flat[i].at = 0, flat[i].started = flat[i].ended = 0;
        looked_at += turns_take(parts, begins, ended);
        double all = flat_take(flat, begins);
        both[begins] = ended[TURNS_ALL];
        if (ended[0] == flat[0].ended && ended[1] == flat[1].ended && ended[TURNS_ALL] == all) continue;
        printf("parts %llu end at %g and %g, all at %g, item by item at %g, %g and %g\n", (unsigned long long)seed, ended[0], ended[1],
               ended[TURNS_ALL], flat[0].ended, flat[1].ended, all);
        failures++;
    }
    int first = turns_begin(parts, best);
    if (both[first] > both[1 - first] || best[TURNS_ALL] != both[first]) failures++;
    dtm_arena_destroy(arena);
}

static void build_drawn(turn_part *part, dtm_arena *arena) {
    int count;
    step *steps = draw(arena, 0, 1, &count);
    build(steps, count, part, arena);
}

/* Of one repeat in each part, with others written out beside it. */
static size_t visited(uint64_t seed, int64_t copies) {
    dtm_arena *arena = dtm_arena_create();
    turn_part parts[2] = {{0}};
    double ended[TURNS_ENDS];
    state = seed;
    for (int i = 0; i < 2; i++) {
        turn_part copy = {0};
        build_drawn(&parts[i], arena);
        build_drawn(&copy, arena);
        turn_part_repeat(&parts[i], arena, &copy, copies);
        build_drawn(&parts[i], arena);
    }
    size_t items = turns_take(parts, (int)(seed % 2), ended);
    dtm_arena_destroy(arena);
    return items;
}

int main(void) {
    for (uint64_t seed = 1; seed <= 5000; seed++) compare(seed);
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        size_t few = visited(seed, 1201), many = visited(seed, 2000000401); /* alike modulo 2, 3 and 4, how many items a copy has */
        if (many <= few + 24) continue;
        printf("parts %llu: %zu items of 1201 copies, %zu of 2000000401\n", (unsigned long long)seed, few, many);
        failures++;
    }
    printf("%zu items, %zu looked at; %d failures\n", compared, looked_at, failures);
    return failures != 0 || compared < 4 * looked_at;
}
