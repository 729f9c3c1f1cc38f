/* Two parts of a pair that take turns (stage_cost.h): one goes on until it has started a collective, then the other does, and then
 * the first waits for it. A part that has no collective left to start fills what the other leaves: it goes on while the other waits,
 * and makes way for it when what that one waits for has come. What a part releases is computed whenever both wait, from there on, or at
 * last (ir/fills.h). Parts are rows of items of which some repeat; copies are not walked one by one (max_plus.h). */
#ifndef DTM_PASSES_TURNS_H
#define DTM_PASSES_TURNS_H

#include "ir/base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a part computes, and the collective that it starts then; 0: none, at its end. `releases`: what else can be computed by then. */
typedef struct turn_item {
    double computes, collective, releases;
} turn_item;

typedef struct turn_list turn_list;

typedef struct turn_node {
    turn_item item;
    const turn_list *body; /* not NULL: copies of it, and no item */
    int64_t copies;
} turn_node;

struct turn_list {
    turn_node *nodes;
    size_t count, capacity;
    int64_t items; /* of all copies */
};

/* A part while it is put together: what is computed up to the first collective and the collective, what follows, and what is computed
 * after the last. Empty when all is 0. */
typedef struct turn_part {
    bool starts; /* a collective */
    turn_item first;
    turn_list rest;
    double tail, tail_releases;
    bool open; /* something stands after the last collective */
} turn_part;

void turn_part_compute(turn_part *part, double time);
void turn_part_start(turn_part *part, dtm_arena *arena, double time); /* a collective that takes some time */
void turn_part_release(turn_part *part, double time);
/* `copies` of another part, in which what is computed at the end of one goes on at the beginning of the next. */
void turn_part_repeat(turn_part *part, dtm_arena *arena, const turn_part *copy, int64_t copies);

/* When each part ends, and all with what they released, where the part `begins`, 0 or 1, has the first turn. Returns how many items were
 * looked at. */
enum { TURNS_ALL = 2, TURNS_ENDS };
size_t turns_take(const turn_part *parts, int begins, double ended[TURNS_ENDS]);
/* Which part is to begin for all to end early, and when each ends then. */
int turns_begin(const turn_part *parts, double ended[TURNS_ENDS]);

#endif
