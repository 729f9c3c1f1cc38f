/* The packer of memory: where each group lies in the arena.
 *
 *     persistent   one after another, from 0
 *     all others   the largest first, each in the tightest gap between those that are alive at the same time */
#include "ir/fault.h"
#include "passes/memory_state.h"

#include <string.h>

/* ---- microbatches in flight ---- */

bool dtm_crosses_calls(const planner *p, const uint8_t *seen) { return seen && dtm_loop_crosses(&p->schedule.times, seen); }

/* ---- pairs ---- */

void dtm_find_paired_regions(planner *p) {
    size_t n = p->schedule.times.n_regions;
    for (size_t i = 0; i < p->schedule.calls.count && !p->paired; i++)
        if (p->schedule.calls.items[i].end > p->schedule.calls.items[i].begin) p->paired = dtm_arena_alloc(p->arena, n * n);
    for (size_t x = 0; p->paired && x < n; x++)
        for (size_t y = 0; y < n; y++)
            p->paired[x * n + y] = dtm_loop_are_paired(&p->schedule.calls, p->schedule.times.regions[x], p->schedule.times.regions[y]);
}

/* ---- packing ---- */

static int64_t group_bytes(const group *g) { return g->slot_bytes * g->slots; }

static bool goes_first(const planner *p, uint32_t a, uint32_t b) {
    int64_t x = group_bytes(&p->groups[a]), y = group_bytes(&p->groups[b]);
    return x != y ? x > y : a < b;
}

/* Merge sort: the largest first, equals in order of definition. */
static void sort_groups(const planner *p, uint32_t *items, uint32_t *scratch, size_t count) {
    if (count < 2) return;
    size_t half = count / 2, i = 0, j = half, n = 0;
    sort_groups(p, items, scratch, half);
    sort_groups(p, items + half, scratch, count - half);
    while (i < half || j < count)
        scratch[n++] = j == count || (i < half && goes_first(p, items[i], items[j])) ? items[i++] : items[j++];
    memcpy(items, scratch, count * sizeof *items);
}

/* The one region of the ordered loop in which the values of a group are; -1: none, or more. */
static int only_region(const planner *p, const group *g) {
    int only = -1;
    for (size_t i = 0; g->seen && i < p->schedule.times.n_regions; i++) {
        if (!g->seen[i]) continue;
        if (only >= 0) return -1;
        only = (int)i;
    }
    return only;
}

/* Whether both groups may be alive at one time. */
static bool meet(const planner *p, const group *a, const group *b) {
    if (a->end >= b->begin + dtm_fault(35) && b->end >= a->begin) return true;
    int x = p->paired && !dtm_fault(79) ? only_region(p, a) : -1, y = x >= 0 ? only_region(p, b) : -1;
    return x >= 0 && y >= 0 && p->paired[(size_t)x * p->schedule.times.n_regions + (size_t)y];
}

/* The tightest gap between what is alive at the same time and placed already; the lowest of equals. */
static int64_t best_fit(const planner *p, const group *g, const uint32_t *placed, size_t n_placed, int64_t bottom) {
    int64_t best = -1, best_gap = INT64_MAX, at = bottom, bytes = group_bytes(g);
    for (size_t i = 0; i < n_placed; i++) { /* by offset */
        const group *other = &p->groups[placed[i]];
        if (!meet(p, other, g)) continue;
        int64_t gap = other->offset - at;
        if (gap >= bytes && gap < best_gap) best = at, best_gap = gap;
        int64_t top = other->offset + group_bytes(other);
        if (top > at) at = top;
    }
    return best >= 0 ? best : at;
}

static void insert_by_offset(const planner *p, uint32_t *placed, size_t count, uint32_t g) {
    size_t at = count;
    for (; at && p->groups[placed[at - 1]].offset > p->groups[g].offset; at--) placed[at] = placed[at - 1];
    placed[at] = g;
}

int64_t dtm_pack(planner *p) {
    int64_t top = 0;
    uint32_t *order = dtm_arena_alloc(p->arena, p->n_groups * sizeof *order), *placed;
    size_t count = 0, n_placed = 0;
    for (uint32_t g = 1; g < p->n_groups; g++) {
        if (p->groups[g].into || p->groups[g].pool) continue;
        if (!p->groups[g].persistent) order[count++] = g;
        else p->groups[g].offset = top, top += group_bytes(&p->groups[g]);
    }
    int64_t bottom = top;
    placed = dtm_arena_alloc(p->arena, p->n_groups * sizeof *placed);
    sort_groups(p, order, placed, count);
    for (size_t i = 0; i < count; i++) {
        group *g = &p->groups[order[i]];
        g->offset = best_fit(p, g, placed, n_placed, bottom);
        insert_by_offset(p, placed, n_placed++, order[i]);
        if (g->offset + group_bytes(g) > top) top = g->offset + group_bytes(g);
    }
    for (uint32_t g = 1; g < p->n_groups; g++)
        if (p->groups[g].pool) p->groups[g].offset = p->groups[p->groups[g].pool].offset + p->groups[g].within;
    return top;
}
