/* Reads the order of a loop over microbatches (calls.h). */
#include "ir/calls.h"

#include <string.h>

bool dtm_loop_is_ordered(const dtm_module *module, dtm_op loop) {
    const dtm_op_data *data = dtm_op_get(module, loop);
    return data->kind == DTM_OP_MICROBATCH && data->attributes.order;
}

dtm_op dtm_ordered_loop(const dtm_module *module, dtm_op op) {
    dtm_op loop = dtm_enclosing(module, op, DTM_OP_MICROBATCH);
    return loop && dtm_loop_is_ordered(module, loop) ? loop : 0;
}

dtm_op dtm_called_region(const dtm_module *module, dtm_op op) {
    for (dtm_op at = op, parent; at; at = parent) {
        parent = module->regions[dtm_op_get(module, at)->region].parent;
        if (parent && dtm_op_get(module, parent)->kind == DTM_OP_MICROBATCH)
            return dtm_loop_is_ordered(module, parent) && dtm_op_get(module, at)->body ? at : 0;
    }
    return 0;
}

dtm_op dtm_rank_loop(const dtm_module *module) {
    dtm_string name = 0;
    for (int a = 0; a < module->settings.mesh.count; a++)
        if (module->settings.mesh.axes[a].time) name = module->settings.mesh.axes[a].name;
    const dtm_region_data *body = &module->regions[module->body];
    dtm_op found = 0;
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *op = dtm_op_get(module, body->ops[i]);
        if (op->kind == DTM_OP_MICROBATCH && (!found || op->attributes.name == name)) found = body->ops[i];
    }
    return found;
}

/* ---- where stages lie ---- */

dtm_placement dtm_loop_placement(const dtm_module *module, dtm_op loop) {
    const dtm_region_data *body = &module->regions[dtm_op_get(module, loop)->body];
    int64_t ranks = module->settings.mesh.axes[module->settings.pipeline.axis].size;
    bool many = false, is_v = true, both = false;
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_attributes *a = &dtm_op_get(module, body->ops[i])->attributes;
        int64_t stage = (int64_t)a->number[DTM_REGION_STAGE], chunk = (int64_t)a->number[DTM_REGION_CHUNK];
        many |= chunk > 0;
        is_v &= stage == chunk * ranks + (chunk % 2 ? ranks - 1 - module->rank : module->rank);
        both |= chunk == 1 && stage == ranks - 1 - module->rank;
    }
    return both ? DTM_PLACE_BIDIRECTIONAL : !many ? DTM_PLACE_SINGLE : is_v ? DTM_PLACE_V : DTM_PLACE_LOOP;
}

/* ---- the text ---- */

typedef struct reader {
    const dtm_module *module;
    dtm_op loop;
    dtm_arena *arena;
    const char *at;
    int64_t microbatches, of_first; /* of_first: microbatches of direction 0, where there are two; else 0 */
    bool with_next;
    dtm_loop_calls *out;
} reader;

static dtm_op region_of(const reader *r, dtm_op_kind kind, bool weights, int64_t chunk) {
    const dtm_region_data *body = &r->module->regions[dtm_op_get(r->module, r->loop)->body];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *op = dtm_op_get(r->module, body->ops[i]);
        if (op->kind == kind && ((op->attributes.flags & DTM_BACKWARD_WEIGHTS) != 0) == weights &&
            (int64_t)op->attributes.number[DTM_REGION_CHUNK] == chunk)
            return body->ops[i];
    }
    return 0;
}

static void call(reader *r, dtm_op region, int64_t microbatch, dtm_task task) {
    if (!region) return;
    dtm_loop_call made = {region, (uint32_t)microbatch, true, r->with_next, task};
    for (size_t i = r->out->count; made.first && i-- > 0;) made.first = r->out->items[i].region != region;
    DTM_PUSH(r->arena, r->out->items, r->out->count, r->out->capacity, made);
}

static bool whole(reader *r, int64_t *number) {
    const char *from = r->at;
    for (*number = 0; *r->at >= '0' && *r->at <= '9' && r->at - from < 10; r->at++) *number = *number * 10 + (*r->at - '0');
    return r->at > from && r->at - from < 10;
}

/* F3.1 */
static const char *read_task(reader *r) {
    const char *from = r->at, *letter = *from ? strchr(DTM_TASK_LETTERS, *from) : NULL;
    int64_t microbatch, chunk = 0;
    if (letter) r->at++;
    bool good = letter && whole(r, &microbatch);
    if (good && *r->at == '.') r->at++, good = whole(r, &chunk);
    if (!good || (*r->at && !strchr(" +)", *r->at)))
        return dtm_arena_printf(r->arena, "`%.*s` is no task: F, B, I or W, a microbatch, and a chunk: F3, B0.1",
                                (int)strcspn(from, " +)"), from);
    bool second = r->of_first && chunk == 1;
    int64_t passing = !r->of_first ? r->microbatches : second ? r->microbatches - r->of_first : r->of_first;
    if (microbatch >= passing)
        return dtm_arena_printf(r->arena, "%.*s: there are %lld microbatches, counted from 0", (int)(r->at - from), from,
                                (long long)passing);
    dtm_task task = {(uint32_t)microbatch, (uint16_t)chunk, (uint8_t)(letter - DTM_TASK_LETTERS)};
    if (second) microbatch += r->of_first;
    if (*letter == 'F') call(r, region_of(r, DTM_OP_FORWARD, false, chunk), microbatch, task);
    if (*letter == 'B' || *letter == 'I') call(r, region_of(r, DTM_OP_BACKWARD, false, chunk), microbatch, task);
    if (*letter == 'B' || *letter == 'W') call(r, region_of(r, DTM_OP_BACKWARD, true, chunk), microbatch, task);
    return NULL;
}

static void skip(reader *r) {
    while (*r->at == ' ') r->at++;
}

static const char *read_pair(reader *r) {
    const char *from = r->at++, *wrong;
    skip(r);
    r->with_next = true;
    wrong = read_task(r);
    r->with_next = false;
    if (wrong) return wrong;
    skip(r);
    if (*r->at != '+') return dtm_arena_printf(r->arena, "`%.20s`: a pair is (F3.0+B1.1)", from);
    r->at++;
    skip(r);
    if ((wrong = read_task(r))) return wrong;
    skip(r);
    if (*r->at != ')') return dtm_arena_printf(r->arena, "`%.20s`: a pair is (F3.0+B1.1)", from);
    r->at++;
    return NULL;
}

const char *dtm_loop_calls_of(const dtm_module *module, dtm_op loop, dtm_arena *arena, dtm_loop_calls *out) {
    const dtm_attributes *a = &dtm_op_get(module, loop)->attributes;
    reader r = {.module = module, .loop = loop, .arena = arena, .microbatches = a->copies, .out = out};
    r.at = dtm_string_text(module->context, a->order);
    if (dtm_loop_placement(module, loop) == DTM_PLACE_BIDIRECTIONAL) r.of_first = (a->copies + 1) / 2;
    *out = (dtm_loop_calls){0};
    for (skip(&r); *r.at; skip(&r)) {
        const char *wrong = *r.at == '(' ? read_pair(&r) : read_task(&r);
        if (wrong) return wrong;
    }
    return NULL;
}

/* ---- times ---- */

dtm_loop_times dtm_loop_times_of(const dtm_module *module, dtm_op loop, const dtm_loop_calls *calls, dtm_arena *arena) {
    const dtm_op_data *data = dtm_op_get(module, loop);
    const dtm_region_data *body = &module->regions[data->body];
    dtm_loop_times times = {body->n_ops, (size_t)data->attributes.copies, body->ops, NULL};
    int64_t *time = dtm_arena_alloc(arena, (times.n_regions * times.n_microbatches + 1) * sizeof *time);
    for (size_t i = 0; i < times.n_regions * times.n_microbatches; i++) time[i] = -1;
    for (size_t i = 0; i < calls->count; i++) {
        int region = dtm_loop_region_index(&times, calls->items[i].region);
        time[(size_t)region * times.n_microbatches + calls->items[i].microbatch] = (int64_t)i;
    }
    times.time = time;
    return times;
}

int dtm_loop_region_index(const dtm_loop_times *times, dtm_op region) {
    for (size_t i = 0; i < times->n_regions; i++)
        if (times->regions[i] == region) return (int)i;
    return -1;
}
