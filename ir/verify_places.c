/* The verifier's laws of what lies from call to call of a loop over microbatches with an order (E0510), after the pass memory: the
 * order decides what is in flight at each call, and which regions run at the same time. What of one microbatch lies in one place is
 * looked at value by value; of several, by going through the calls with a list of the bytes that are taken. */
#include "ir/calls.h"
#include "ir/fault.h"
#include "ir/verify.h"

#include <stdlib.h>
#include <string.h>

/* When what is seen in some regions is there, for each microbatch; to -1: never. */
typedef struct stays {
    const uint8_t *seen;
    int64_t *from, *to;
} stays;

/* A value of the loop. */
typedef struct place {
    dtm_value value;
    int region;          /* that makes it */
    int64_t begin, end;  /* bytes, those of all microbatches */
    int64_t at, bytes;   /* those of one microbatch, whose place is 0 */
    uint8_t *seen;       /* by region (DTM_LOOP_SEEN, ..) */
    bool crosses;        /* there in more than one call */
    bool beside;         /* it is not, but has bytes that something kept has at other times */
    size_t group;        /* the first place that has bytes in common with it for each microbatch, or with one that has */
} place;

/* Bytes that are there in the same regions and lie by one table: of one or more groups, one after the other. */
typedef struct range {
    size_t group; /* the first of them */
    size_t stays;
    int64_t begin, end; /* of a microbatch whose place is 0 */
} range;

typedef struct batches {
    verifier *v;
    dtm_loop_schedule schedule;
    dtm_loop_places tables;
    place *places;
    size_t count, capacity;
    size_t *by_value; /* 1 + its place; 0: none */
    stays *stays;
    size_t n_stays, cap_stays;
    range *ranges;
    size_t n_ranges, cap_ranges;
} batches;

static const dtm_storage *storage_of(const batches *b, const place *p) { return &dtm_value_get(b->v->module, p->value)->storage; }
static const dtm_op_data *maker_of(const batches *b, const place *p) {
    return dtm_op_get(b->v->module, dtm_value_get(b->v->module, p->value)->def);
}

static int region_of(const batches *b, dtm_op op) {
    dtm_op region = dtm_called_region(b->v->module, op);
    return region ? dtm_loop_region_index(&b->schedule.times, region) : -1;
}

/* Whether it, and what lies in its place, is there for some microbatches while others are called. */
static bool is_kept(const batches *b, const place *p) { return p->crosses || storage_of(b, p)->places; }

/* Whether they lie by the same table: what two have in common is then the same for each microbatch. */
static bool lie_alike(const batches *b, const place *x, const place *y) {
    const dtm_storage *s = storage_of(b, x), *t = storage_of(b, y);
    return s->places == t->places && s->batch_stride == t->batch_stride;
}

static size_t stays_of(batches *b, const uint8_t *seen) {
    size_t count = b->schedule.times.n_microbatches;
    for (size_t i = 0; i < b->n_stays; i++)
        if (memcmp(b->stays[i].seen, seen, b->schedule.times.n_regions) == 0) return i;
    stays made = {seen, dtm_arena_alloc(b->v->scratch, (count + 1) * sizeof *made.from), dtm_arena_alloc(b->v->scratch, (count + 1) * sizeof *made.to)};
    for (size_t m = 0; m < count; m++) dtm_loop_busy(&b->schedule, seen, m, &made.from[m], &made.to[m]);
    DTM_PUSH(b->v->scratch, b->stays, b->n_stays, b->cap_stays, made);
    return b->n_stays - 1;
}

/* ---- what there is ---- */

/* The slots that a value has in its copies: of few copies there may be more, which others have. */
static void slots_of(const dtm_module *module, dtm_value value, int64_t *first, int64_t *last) {
    const dtm_storage *s = &dtm_value_get(module, value)->storage;
    int64_t copies = 1;
    for (dtm_op r = dtm_value_get(module, value)->def; (r = dtm_enclosing(module, r, DTM_OP_REPEAT));)
        copies *= dtm_op_get(module, r)->attributes.copies;
    bool all = copies + s->shift > s->modulus;
    *first = *last = 0;
    if (s->modulus <= 1 || copies < 1) return;
    *first = all ? 0 : s->shift;
    *last = all ? s->modulus - 1 : copies + s->shift - 1;
}

static void add_place(batches *b, dtm_value value, int region) {
    const dtm_storage *s = &dtm_value_get(b->v->module, value)->storage;
    int64_t bytes = dtm_local_bytes_max(b->v->module, dtm_value_get(b->v->module, value)->type);
    int64_t first, last;
    slots_of(b->v->module, value, &first, &last);
    int64_t at_first = s->offset + first * s->stride, one = (last - first) * s->stride + bytes;
    int64_t lowest = INT64_MAX, highest = 0;
    for (size_t m = 0; m < b->schedule.times.n_microbatches; m++) {
        if (dtm_loop_place(&b->tables, s, m) == DTM_NO_PLACE) continue;
        int64_t at = dtm_loop_place_bytes(&b->tables, s, m);
        if (at < lowest) lowest = at;
        if (at > highest) highest = at;
    }
    if (lowest > highest) lowest = 0;
    place p = {value, region, at_first + lowest, at_first + highest + one, at_first, one, NULL, false, false, b->count};
    p.seen = dtm_arena_alloc(b->v->scratch, b->schedule.times.n_regions + 1);
    DTM_PUSH(b->v->scratch, b->places, b->count, b->capacity, p);
    b->by_value[value] = b->count;
}

static void find_places(batches *b, const bool *stored) {
    dtm_module *module = b->v->module;
    b->by_value = dtm_arena_alloc(b->v->scratch, module->n_values * sizeof *b->by_value);
    for (dtm_op op = 1; op < module->n_ops; op++) {
        const dtm_op_data *data = dtm_op_get(module, op);
        int region = data->region ? region_of(b, op) : -1;
        if (region < 0) continue;
        for (uint32_t i = 0; i < data->n_results && data->kind != DTM_OP_ACCUMULATE; i++) {
            if (!stored[data->results[i]]) continue;
            add_place(b, data->results[i], region);
            b->places[b->count - 1].seen[region] |= DTM_LOOP_SEEN | (data->kind == DTM_OP_RECEIVE ? DTM_LOOP_RECEIVED : 0);
        }
    }
    for (dtm_op op = 1; op < module->n_ops; op++) {
        const dtm_op_data *data = dtm_op_get(module, op);
        int region = data->region ? region_of(b, op) : -1;
        for (uint32_t i = 0; region >= 0 && i < data->n_operands; i++) {
            size_t at = b->by_value[data->operands[i]];
            if (at) b->places[at - 1].seen[region] |= DTM_LOOP_SEEN | (data->kind == DTM_OP_SEND ? DTM_LOOP_SENT : 0);
        }
    }
    for (size_t i = 0; i < b->count; i++) b->places[i].crosses = dtm_loop_crosses(&b->schedule.times, b->places[i].seen);
}

/* ---- two in one place ---- */

static size_t group_of(batches *b, size_t i) {
    while (b->places[i].group != i) i = b->places[i].group = b->places[b->places[i].group].group;
    return i;
}

static bool are_paired(const batches *b, const place *x, const place *y) {
    const dtm_op *regions = b->schedule.times.regions;
    return x->region != y->region && dtm_loop_are_paired(&b->schedule.calls, regions[x->region], regions[y->region]);
}

static int64_t made_at(const batches *b, const place *p, size_t m) {
    return b->schedule.times.time[(size_t)p->region * b->schedule.times.n_microbatches + m];
}

/* The last call that reads it, or before which it has gone. */
static int64_t last_read(const batches *b, const place *p, size_t m) {
    const dtm_loop_times *t = &b->schedule.times;
    int64_t last = -1;
    for (size_t r = 0; r < t->n_regions; r++) {
        size_t cell = r * t->n_microbatches + m;
        if (!p->seen[r] || t->time[cell] < 0) continue;
        int64_t at = p->seen[r] & DTM_LOOP_SENT && t->gone[cell] > t->time[cell] ? t->gone[cell] - 1 : t->time[cell];
        if (at > last) last = at;
    }
    return last;
}

/* Whether for some microbatch the earlier of two is read in a call after that which makes the later in its place. */
static bool reads_too_late(const batches *b, const place *x, const place *y) {
    for (size_t m = 0; m < b->schedule.times.n_microbatches; m++) {
        int64_t made_x = made_at(b, x, m), made_y = made_at(b, y, m);
        if (made_x < 0 || made_y < 0) continue;
        if (made_x < made_y ? last_read(b, x, m) > made_y : last_read(b, y, m) > made_x) return true;
    }
    return false;
}

static bool moves(const batches *b, const place *p) {
    dtm_op_kind kind = maker_of(b, p)->kind;
    return kind == DTM_OP_CARRY || kind == DTM_OP_LAST || dtm_is_alias(b->v->module, dtm_value_get(b->v->module, p->value)->def);
}

/* Whether both are there at one time, of one microbatch. */
static bool overlap_in_time(batches *b, const place *x, const place *y) {
    size_t i = stays_of(b, x->seen), j = stays_of(b, y->seen);
    const stays *s = &b->stays[i], *t = &b->stays[j];
    for (size_t m = 0; m < b->schedule.times.n_microbatches; m++)
        if (s->from[m] <= t->to[m] && t->from[m] <= s->to[m]) return true;
    return false;
}

static void check_two(batches *b, size_t i, size_t j) {
    place *x = &b->places[i], *y = &b->places[j];
    if (x->end <= y->begin || y->end <= x->begin) return;
    const char *one = verify_name(b->v, x->value), *other = verify_name(b->v, y->value);
    if (!is_kept(b, x) && !is_kept(b, y)) {
        if (are_paired(b, x, y)) BREAK(b->v, maker_of(b, y), 510, "%s and %s share bytes, and are made at the same time", one, other);
        if (x->region != y->region) return;
    }
    if (!lie_alike(b, x, y)) return; /* each microbatch is looked at */
    if (x->at >= y->at + y->bytes || y->at >= x->at + x->bytes || !overlap_in_time(b, x, y)) return;
    if (x->region != y->region && !moves(b, x) && !moves(b, y) && reads_too_late(b, x, y))
        BREAK(b->v, maker_of(b, y), 510, "%s and %s share bytes, and by the order one is read after the other is made", one, other);
    b->places[group_of(b, j)].group = group_of(b, i);
}

/* What is there in one call alone, and lies in no place of what is kept, but has bytes that this has for some microbatch: whether at
 * that time is seen by going through the calls. */
static void find_others(batches *b) {
    bool *kept = dtm_arena_alloc(b->v->scratch, b->count + 1);
    for (size_t i = 0; i < b->count; i++) kept[group_of(b, i)] |= is_kept(b, &b->places[i]);
    for (size_t i = 0; i < b->count; i++)
        for (size_t j = 0; j < b->count && !kept[group_of(b, i)]; j++) {
            place *x = &b->places[i], *y = &b->places[j];
            x->beside |= kept[group_of(b, j)] && x->begin < y->end && y->begin < x->end;
        }
}

/* ---- ranges ---- */

/* All that lies in the place of a group, for each microbatch the same bytes. */
static void add_range(batches *b, size_t group) {
    const dtm_storage *s = storage_of(b, &b->places[group]);
    uint8_t *seen = dtm_arena_alloc(b->v->scratch, b->schedule.times.n_regions + 1);
    bool kept = false;
    range made = {.group = group, .begin = INT64_MAX};
    for (size_t i = 0; i < b->count; i++) {
        if (group_of(b, i) != group) continue;
        const place *p = &b->places[i];
        kept |= is_kept(b, p) || p->beside;
        if (p->at < made.begin) made.begin = p->at;
        if (p->at + p->bytes > made.end) made.end = p->at + p->bytes;
        for (size_t r = 0; r < b->schedule.times.n_regions; r++) seen[r] |= p->seen[r];
    }
    if (!kept || made.begin == made.end) return;
    made.end = dtm_storage_round(made.end);
    made.stays = stays_of(b, seen);
    for (size_t i = 0; i < b->n_ranges; i++) {
        range *r = &b->ranges[i];
        const dtm_storage *t = storage_of(b, &b->places[r->group]);
        if (r->stays != made.stays || t->places != s->places || t->batch_stride != s->batch_stride) continue;
        if (r->end == made.begin) r->end = made.end;
        else if (made.end == r->begin) r->begin = made.begin;
        else continue;
        return;
    }
    DTM_PUSH(b->v->scratch, b->ranges, b->n_ranges, b->cap_ranges, made);
}

/* ---- microbatches in flight ---- */

/* A range for one microbatch. */
typedef struct kept {
    int64_t begin, end, from, to;
    size_t range, microbatch;
} kept;

static kept *find_kept(const batches *b, size_t *count) {
    size_t microbatches = b->schedule.times.n_microbatches;
    kept *all = dtm_arena_alloc(b->v->scratch, (b->n_ranges * microbatches + 1) * sizeof *all);
    *count = 0;
    for (size_t i = 0; i < b->n_ranges; i++) {
        const range *r = &b->ranges[i];
        const place *p = &b->places[r->group];
        for (size_t m = 0; m < microbatches; m++) {
            if (b->stays[r->stays].to[m] < 0) continue;
            if (dtm_loop_place(&b->tables, storage_of(b, p), m) == DTM_NO_PLACE) {
                b->v->good = false;
                dtm_error(b->v->module->context, maker_of(b, p)->span, 510, "%s has no place for microbatch %lld, which the order has",
                          verify_name(b->v, p->value), (long long)m);
                return NULL;
            }
            int64_t at = dtm_loop_place_bytes(&b->tables, storage_of(b, p), m);
            all[(*count)++] = (kept){r->begin + at, r->end + at, b->stays[r->stays].from[m], b->stays[r->stays].to[m], i, m};
        }
    }
    return all;
}

/* The value of a range that has bytes in common with another one's, for these microbatches. */
static const place *place_in(batches *b, const kept *k, const kept *other) {
    const range *r = &b->ranges[k->range];
    int64_t moved = k->begin - r->begin;
    for (size_t i = 0; i < b->count; i++) {
        const place *p = &b->places[i];
        if (lie_alike(b, p, &b->places[r->group]) && (is_kept(b, p) || p->beside) && p->at >= r->begin && p->at < r->end &&
            p->at + moved < other->end && other->begin < p->at + moved + p->bytes)
            return p;
    }
    return &b->places[r->group];
}

static void say_meeting(batches *b, const kept *x, const kept *y) {
    const place *one = place_in(b, x, y), *other = place_in(b, y, x);
    const place *alone = one->beside ? one : other;
    if (alone->beside)
        BREAK(b->v, maker_of(b, alone), 510, "%s lies where %s is kept from call to call", verify_name(b->v, alone->value),
              verify_name(b->v, alone == one ? other->value : one->value));
    if (one == other)
        BREAK(b->v, maker_of(b, one), 510, "%s has one place for microbatches %lld and %lld, and by the order both are in flight",
              verify_name(b->v, one->value), (long long)x->microbatch, (long long)y->microbatch);
    BREAK(b->v, maker_of(b, other), 510, "%s of microbatch %lld and %s of microbatch %lld share bytes, and by the order both are in flight",
          verify_name(b->v, one->value), (long long)x->microbatch, verify_name(b->v, other->value), (long long)y->microbatch);
}

/* Something begins, or (`ends`) is no longer there. */
typedef struct event {
    int64_t time;
    bool ends;
    const kept *of;
} event;

static int by_time(const void *a, const void *b) {
    const event *x = a, *y = b;
    if (x->time != y->time) return x->time > y->time ? 1 : -1;
    if (x->ends != y->ends) return x->ends ? -1 : 1;
    return (x->of > y->of) - (x->of < y->of);
}

/* Goes through the calls with a list of what is there, by bytes, of which no two have any in common. */
static void find_meeting(batches *b, const kept *all, size_t count) {
    event *events = dtm_arena_alloc(b->v->scratch, (2 * count + 1) * sizeof *events);
    const kept **there = dtm_arena_alloc(b->v->scratch, (count + 1) * sizeof *there);
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        events[2 * i] = (event){all[i].from, false, &all[i]};
        events[2 * i + 1] = (event){all[i].to + 1, true, &all[i]};
    }
    qsort(events, 2 * count, sizeof *events, by_time);
    for (size_t e = 0; e < 2 * count; e++) {
        const kept *k = events[e].of;
        size_t low = 0, high = n; /* those before low begin before k */
        while (low < high) {
            size_t middle = (low + high) / 2;
            if (there[middle]->begin < k->begin) low = middle + 1;
            else high = middle;
        }
        if (events[e].ends) {
            memmove(there + low, there + low + 1, (--n - low) * sizeof *there);
            continue;
        }
        const kept *met = low && there[low - 1]->end > k->begin ? there[low - 1] : low < n && there[low]->begin < k->end ? there[low] : NULL;
        if (met && !(dtm_fault(111) && met->range != k->range)) {
            say_meeting(b, met, k);
            return;
        }
        memmove(there + low + 1, there + low, (n++ - low) * sizeof *there);
        there[low] = k;
    }
}

void verify_places(verifier *v) {
    dtm_op loop = v->module->of_ranks ? dtm_rank_loop(v->module) : 0;
    batches b = {.v = v};
    if (!loop || !dtm_loop_is_ordered(v->module, loop) || dtm_loop_schedule_of(v->module, loop, v->scratch, &b.schedule)) return;
    if (dtm_loop_places_of(v->module, loop, v->scratch, &b.tables)) return;
    find_places(&b, dtm_stored(v->module, v->scratch));
    for (size_t j = 0; j < b.count && v->good; j++)
        for (size_t i = 0; i < j && v->good; i++) check_two(&b, i, j);
    if (!v->good) return;
    find_others(&b);
    for (size_t i = 0; i < b.count; i++)
        if (group_of(&b, i) == i) add_range(&b, i);
    size_t count;
    kept *all = find_kept(&b, &count);
    if (v->good) find_meeting(&b, all, count);
}
