/* The verifier's laws of what lies from call to call of a loop over microbatches with an order (E0510), after the pass memory: the
 * order decides how many microbatches are in flight, and which regions run at the same time. */
#include "ir/calls.h"
#include "ir/verify.h"


/* A value of the loop. */
typedef struct place {
    dtm_value value;
    int region;          /* that makes it */
    int64_t begin, end;  /* bytes, those of all microbatches */
    uint8_t *seen;       /* by region (DTM_LOOP_SEEN, ..) */
    bool crosses;        /* there in more than one call */
    size_t group;        /* the first place that has bytes in common with it, or with one that has */
} place;

typedef struct batches {
    verifier *v;
    dtm_loop_schedule schedule;
    place *places;
    size_t count, capacity;
    size_t *by_value; /* 1 + its place; 0: none */
} batches;

static const dtm_storage *storage_of(const batches *b, const place *p) { return &dtm_value_get(b->v->module, p->value)->storage; }
static const dtm_op_data *maker_of(const batches *b, const place *p) {
    return dtm_op_get(b->v->module, dtm_value_get(b->v->module, p->value)->def);
}

static int region_of(const batches *b, dtm_op op) {
    dtm_op region = dtm_called_region(b->v->module, op);
    return region ? dtm_loop_region_index(&b->schedule.times, region) : -1;
}

/* ---- what there is ---- */

static void add_place(batches *b, dtm_value value, int region) {
    const dtm_storage *s = &dtm_value_get(b->v->module, value)->storage;
    int64_t bytes = dtm_local_bytes_max(b->v->module, dtm_value_get(b->v->module, value)->type);
    int64_t one = (s->modulus > 1 ? (int64_t)(s->modulus - 1) * s->stride : 0) + bytes;
    int64_t all = (s->batches > 1 ? (int64_t)(s->batches - 1) * s->batch_stride : 0) + one;
    place p = {value, region, s->offset, s->offset + all, NULL, false, b->count};
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

static void check_two(batches *b, size_t i, size_t j) {
    place *x = &b->places[i], *y = &b->places[j];
    if (x->end <= y->begin || y->end <= x->begin) return;
    const char *one = verify_name(b->v, x->value), *other = verify_name(b->v, y->value);
    if (!x->crosses && !y->crosses) {
        if (are_paired(b, x, y)) BREAK(b->v, maker_of(b, y), 510, "%s and %s share bytes, and are made at the same time", one, other);
        return;
    }
    const dtm_storage *s = storage_of(b, x), *t = storage_of(b, y);
    if (s->batches != t->batches || (s->batches > 1 && s->batch_stride != t->batch_stride))
        BREAK(b->v, maker_of(b, y), 510, "%s and %s share bytes, and have not as many slots by microbatch", one, other);
    if (x->region != y->region && !moves(b, x) && !moves(b, y) && reads_too_late(b, x, y))
        BREAK(b->v, maker_of(b, y), 510, "%s and %s share bytes, and by the order one is read after the other is made", one, other);
    b->places[group_of(b, j)].group = group_of(b, i);
}

/* ---- microbatches in flight ---- */

/* Two microbatches that are there together in one slot, or the same twice: there are none. */
static void find_meeting(const batches *b, const uint8_t *seen, size_t slots, size_t two[2]) {
    size_t count = b->schedule.times.n_microbatches;
    dtm_loop_stay *stays = dtm_loop_stays(&b->schedule, seen, b->v->scratch);
    dtm_loop_stay **last = dtm_arena_alloc(b->v->scratch, (slots + 1) * sizeof *last);
    two[0] = two[1] = 0;
    for (size_t i = 0; i < count && stays[i].to >= 0; i++) {
        dtm_loop_stay **before = &last[stays[i].microbatch % slots];
        if (*before && stays[i].from <= (*before)->to) {
            two[0] = (*before)->microbatch, two[1] = stays[i].microbatch;
            return;
        }
        *before = &stays[i];
    }
}

static void check_group(batches *b, size_t group) {
    size_t slots = storage_of(b, &b->places[group])->batches, two[2];
    uint8_t *seen = dtm_arena_alloc(b->v->scratch, b->schedule.times.n_regions + 1);
    bool crosses = false;
    for (size_t i = 0; i < b->count; i++) {
        if (group_of(b, i) != group) continue;
        crosses |= b->places[i].crosses;
        for (size_t r = 0; r < b->schedule.times.n_regions; r++) seen[r] |= b->places[i].seen[r];
    }
    if (!crosses) return;
    if (!slots) slots = 1;
    if (slots > b->schedule.times.n_microbatches) slots = b->schedule.times.n_microbatches;
    find_meeting(b, seen, slots, two);
    if (two[0] != two[1])
        BREAK(b->v, maker_of(b, &b->places[group]), 510, "%s has %lld slot%s by microbatch, and by the order microbatches %lld and %lld "
              "are in flight in one", verify_name(b->v, b->places[group].value), (long long)slots, dtm_plural((int64_t)slots),
              (long long)two[0], (long long)two[1]);
}

void verify_batches(verifier *v) {
    dtm_op loop = v->module->of_ranks ? dtm_rank_loop(v->module) : 0;
    batches b = {.v = v};
    if (!loop || !dtm_loop_is_ordered(v->module, loop) || dtm_loop_schedule_of(v->module, loop, v->scratch, &b.schedule)) return;
    find_places(&b, dtm_stored(v->module, v->scratch));
    for (size_t j = 0; j < b.count && v->good; j++)
        for (size_t i = 0; i < j && v->good; i++) check_two(&b, i, j);
    for (size_t i = 0; i < b.count && v->good; i++)
        if (group_of(&b, i) == i) check_group(&b, i);
}
