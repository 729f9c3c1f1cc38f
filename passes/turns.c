/* Taking turns (turns.h). A turn is an item of each part. Where both are in repeats, of p and q items a copy, all is as it was after
 * lcm(p, q) turns, but that everything comes later: what these do to the times is found once, and then all turns are taken that are
 * whole numbers of them. Of repeats within repeats the outer ones come first, those within are in what is found once. */
#include "passes/turns.h"
#include "passes/max_plus.h"

#include <math.h>
#include <string.h>

/* ---- parts ---- */

static void push(turn_list *list, dtm_arena *arena, turn_node node) {
    DTM_PUSH(arena, list->nodes, list->count, list->capacity, node);
    list->items += node.body ? node.copies * node.body->items : 1;
}

void turn_part_compute(turn_part *part, double time) {
    part->tail += time;
    part->open = true;
}

void turn_part_release(turn_part *part, double time) {
    part->tail_releases += time;
    part->open = true;
}

void turn_part_start(turn_part *part, dtm_arena *arena, double time) {
    turn_item item = {part->tail, time, part->tail_releases};
    if (part->starts) push(&part->rest, arena, (turn_node){item});
    else part->first = item;
    part->starts = true;
    part->tail = part->tail_releases = 0;
    part->open = false;
}

void turn_part_repeat(turn_part *part, dtm_arena *arena, const turn_part *copy, int64_t copies) {
    if (copies <= 0) return;
    if (!copy->starts) {
        part->tail += (double)copies * copy->tail;
        part->tail_releases += (double)copies * copy->tail_releases;
        part->open |= copy->open;
        return;
    }
    part->tail += copy->first.computes;
    part->tail_releases += copy->first.releases;
    turn_part_start(part, arena, copy->first.collective);
    turn_list *rest = dtm_arena_alloc(arena, sizeof *rest), *next = dtm_arena_alloc(arena, sizeof *next);
    *rest = copy->rest; /* as far as it is now; no more is added to a copy */
    if (copies > 1) {
        if (rest->items) push(next, arena, (turn_node){.body = rest, .copies = 1});
        push(next, arena, (turn_node){{copy->tail + copy->first.computes, copy->first.collective, copy->tail_releases + copy->first.releases}});
        push(&part->rest, arena, (turn_node){.body = next, .copies = copies - 1});
    }
    if (rest->items) push(&part->rest, arena, (turn_node){.body = rest, .copies = 1});
    part->tail = copy->tail;
    part->tail_releases = copy->tail_releases;
    part->open = copy->open;
}

/* ---- walking ---- */

typedef struct frame {
    const turn_list *list;
    size_t at;
    int64_t left; /* copies, with this one */
} frame;

typedef struct cursor {
    frame *frames;
    size_t depth, capacity;
    int64_t items; /* to come */
} cursor;

/* Of the rank, its progress thread, what each part waits for; what was computed so far; and when all that was released by now has been
 * computed, if nothing is waited for any more: what is left of it makes up for what a part waits. */
enum { NOW, CARRIED_OUT, STARTED, WORK = STARTED + 2, FILLED, TIMES };

enum { MOST_FILLED = 64 }; /* waits that are looked at one by one to see when they are filled */

typedef struct turns {
    dtm_arena *arena;
    cursor part[2];
    int begins;
    size_t visited;
} turns;

static void enter(turns *t, cursor *c, const turn_list *list, int64_t copies) {
    frame entered = {list, 0, copies};
    DTM_PUSH(t->arena, c->frames, c->depth, c->capacity, entered);
}

/* Up to the next item. */
static const turn_node *next_of(turns *t, cursor *c) {
    for (;;) {
        frame *f = &c->frames[c->depth - 1];
        if (f->at == f->list->count) {
            f->at = 0;
            if (--f->left == 0) c->depth--;
            continue;
        }
        const turn_node *node = &f->list->nodes[f->at++];
        if (!node->body) return node;
        enter(t, c, node->body, node->copies);
    }
}

static void take_item(turns *t, int part, dtm_form *times, size_t width) {
    const turn_item *item = &next_of(t, &t->part[part])->item;
    dtm_form_join(times[NOW], width, times[STARTED + part]);
    dtm_form_join(times[FILLED], width, times[NOW]);
    dtm_form_add(times[NOW], width, item->computes);
    dtm_form_add(times[WORK], width, item->computes);
    dtm_form_add(times[FILLED], width, item->computes + item->releases);
    if (item->collective > 0) {
        dtm_form_join(times[CARRIED_OUT], width, times[NOW]);
        dtm_form_add(times[CARRIED_OUT], width, item->collective);
        memcpy(times[STARTED + part], times[CARRIED_OUT], width * sizeof **times);
    }
    t->part[part].items--;
    t->visited++;
}

/* After so many turns both parts are where they are now in one copy of a repeat of each (NULL: the part takes no turns), so often at
 * most. */
typedef struct period {
    frame *of[2];
    int64_t turns, times;
} period;

static void consider(period *best, frame *a, frame *b, int64_t turns) {
    frame *of[2] = {a, b};
    if (best->times) return;
    int64_t p = a ? a->list->items : 1, q = b ? b->list->items : 1, factor = q / dtm_common_divisor(p, q);
    if (p > turns / factor) return; /* p * factor is their least common multiple */
    int64_t length = p * factor, times = turns / length;
    for (int i = 0; i < 2; i++) {
        int64_t most = of[i] ? (of[i]->left - 1) / (length / of[i]->list->items) : times; /* the copies now begun are ended one by one */
        times = most < times ? most : times;
    }
    if (times > 1) *best = (period){{a, b}, length, times};
}

static period find_period(turns *t, const bool *takes, int64_t count) {
    period best = {{NULL}};
    size_t depth[2] = {takes[0] ? t->part[0].depth : 1, takes[1] ? t->part[1].depth : 1};
    for (size_t i = 0; i < depth[0]; i++)
        for (size_t k = 0; k < depth[1]; k++)
            consider(&best, takes[0] ? &t->part[0].frames[i] : NULL, takes[1] ? &t->part[1].frames[k] : NULL, count);
    return best;
}

static void take_turns(turns *t, const bool *takes, int64_t count, dtm_form *times, size_t width) {
    while (count > 0) {
        period p = find_period(t, takes, count);
        if (!p.times) {
            for (int i = 0; i < 2; i++)
                if (takes[t->begins ^ i]) take_item(t, t->begins ^ i, times, width);
            count--;
            continue;
        }
        size_t at[2] = {0};
        dtm_form once[TIMES];
        for (int i = 0; i < 2; i++) at[i] = p.of[i] ? (size_t)(p.of[i] - t->part[i].frames) : 0;
        for (size_t i = 0; i < TIMES; i++) {
            once[i] = dtm_form_create(t->arena, TIMES);
            once[i][i] = 0;
        }
        take_turns(t, takes, p.turns, once, TIMES);
        dtm_max_plus_apply(once, TIMES, p.times, times, width);
        for (int i = 0; i < 2; i++) {
            if (!takes[i]) continue;
            frame *f = &t->part[i].frames[at[i]];
            f->left -= (p.times - 1) * (p.turns / f->list->items);
            t->part[i].items -= (p.times - 1) * p.turns;
        }
        count -= p.times * p.turns;
    }
}

/* Whether all that is left of a part starts no collective; whether some of it does. */
static bool is_tail(const turns *t, const turn_part *parts, int part) { return t->part[part].items == 1 && parts[part].open; }
static bool starts_some(const turns *t, const turn_part *parts, int part) { return t->part[part].items > parts[part].open; }

/* The rest of one part, which starts nothing, is computed while the other waits, and after it. */
static void fill(turns *t, int part, dtm_form *times, double *ended) {
    int other = 1 - part;
    const turn_item *tail = &next_of(t, &t->part[part])->item;
    double *now = times[NOW], *waits = times[STARTED + other], *filled = times[FILLED], left = tail->computes;
    *now = fmax(*now, *times[STARTED + part]);
    *filled = fmax(*filled, *now) + left + tail->releases;
    t->part[part].items--;
    t->visited++;
    ended[part] = left > 0 ? -1 : *now;
    for (int i = 0; left > 0 && i < MOST_FILLED && t->part[other].items > 0; i++) {
        double wait = fmax(0, *waits - *now);
        if (wait >= left) ended[part] = *now + left;
        left = fmax(0, left - wait);
        take_item(t, other, times, 1);
    }
    double begin = *now, work = *times[WORK];
    const bool takes[2] = {other == 0, other == 1};
    take_turns(t, takes, t->part[other].items, times, 1);
    ended[other] = fmax(*now, *waits);
    left -= ended[other] - begin - (*times[WORK] - work);
    if (ended[part] < 0) ended[part] = ended[other] + fmax(0, left);
    *now = fmax(ended[0], ended[1]);
}

size_t turns_take(const turn_part *parts, int begins, double ended[TURNS_ENDS]) {
    turns t = {.arena = dtm_arena_create(), .begins = begins};
    double now[TIMES] = {0};
    dtm_form times[TIMES];
    for (size_t i = 0; i < TIMES; i++) times[i] = &now[i];
    for (int i = 0; i < 2; i++) {
        turn_list *whole = dtm_arena_alloc(t.arena, sizeof *whole);
        if (parts[i].starts) push(whole, t.arena, (turn_node){parts[i].first});
        turn_list *rest = dtm_arena_alloc(t.arena, sizeof *rest);
        *rest = parts[i].rest;
        if (rest->items) push(whole, t.arena, (turn_node){.body = rest, .copies = 1});
        if (parts[i].open) push(whole, t.arena, (turn_node){{parts[i].tail, 0, parts[i].tail_releases}});
        t.part[i].items = whole->items;
        if (whole->items) enter(&t, &t.part[i], whole, 1);
        ended[i] = 0;
    }
    while (t.part[0].items > 0 || t.part[1].items > 0) {
        bool takes[2] = {t.part[0].items > 0, t.part[1].items > 0};
        int64_t count = takes[0] && takes[1] ? (t.part[0].items < t.part[1].items ? t.part[0].items : t.part[1].items)
                                             : t.part[!takes[0]].items;
        if (count > 1) take_turns(&t, takes, count - 1, times, 1);
        for (int k = 0; k < 2; k++) { /* the last of these by itself: a part may end with it */
            int i = begins ^ k;
            if (!t.part[i].items || !takes[i]) continue;
            if (is_tail(&t, parts, i) && starts_some(&t, parts, 1 - i)) {
                fill(&t, i, times, ended);
                continue;
            }
            take_item(&t, i, times, 1);
            ended[i] = fmax(now[NOW], now[STARTED + i]);
        }
    }
    ended[TURNS_ALL] = fmax(fmax(ended[0], ended[1]), now[FILLED]);
    size_t visited = t.visited;
    dtm_arena_destroy(t.arena);
    return visited;
}

int turns_begin(const turn_part *parts, double ended[TURNS_ENDS]) {
    double other[TURNS_ENDS];
    turns_take(parts, 0, ended);
    turns_take(parts, 1, other);
    if (other[TURNS_ALL] >= ended[TURNS_ALL]) return 0;
    memcpy(ended, other, sizeof other);
    return 1;
}
