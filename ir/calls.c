/* Reads the order of a loop over microbatches (calls.h). */
#include "ir/calls.h"
#include "ir/fault.h"

#include <stdlib.h>
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
    const dtm_op_data *data = dtm_op_get(module, loop);
    const dtm_region_data *body = &module->regions[data->body];
    int64_t ranks = module->settings.mesh.axes[module->settings.pipeline.axis].size;
    bool many = false, is_v = true;
    if (data->attributes.flags & DTM_MICROBATCH_BOTH_WAYS) return DTM_PLACE_BIDIRECTIONAL;
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_attributes *a = &dtm_op_get(module, body->ops[i])->attributes;
        int64_t stage = (int64_t)a->number[DTM_REGION_STAGE], chunk = (int64_t)a->number[DTM_REGION_CHUNK];
        many |= chunk > 0;
        is_v &= stage == chunk * ranks + (chunk % 2 ? ranks - 1 - module->rank : module->rank);
    }
    return !many ? DTM_PLACE_SINGLE : is_v ? DTM_PLACE_V : DTM_PLACE_LOOP;
}

/* ---- the text ---- */

typedef struct reader {
    dtm_arena *arena;
    const char *at;
} reader;

static bool whole(reader *r, uint32_t *number) {
    const char *from = r->at;
    for (*number = 0; *r->at >= '0' && *r->at <= '9' && r->at - from < 9; r->at++) *number = *number * 10 + (uint32_t)(*r->at - '0');
    return r->at > from && !(*r->at >= '0' && *r->at <= '9');
}

/* F3.1 */
static const char *read_task(reader *r, dtm_task *task) {
    const char *from = r->at, *letter = *from ? strchr(DTM_TASK_LETTERS, *from) : NULL;
    uint32_t chunk = 0;
    if (letter) r->at++;
    bool good = letter && whole(r, &task->microbatch);
    if (good && *r->at == '.') r->at++, good = whole(r, &chunk);
    if (!good || chunk > UINT16_MAX || (*r->at && !strchr(" +)", *r->at)))
        return dtm_arena_printf(r->arena, "`%.*s` is no task: F, B, I or W, a microbatch, and a chunk: F3, B0.1",
                                (int)strcspn(from, " +)"), from);
    task->chunk = (uint16_t)chunk;
    task->kind = (uint8_t)(letter - DTM_TASK_LETTERS);
    return NULL;
}

static void skip(reader *r) {
    while (*r->at == ' ') r->at++;
}

static const char *read_pair(reader *r, dtm_operation *o) {
    const char *from = r->at++, *wrong;
    o->kind = DTM_OPERATION_PAIR;
    skip(r);
    if ((wrong = read_task(r, &o->tasks[0]))) return wrong;
    skip(r);
    bool plus = *r->at == '+';
    if (plus) r->at++, skip(r), wrong = read_task(r, &o->tasks[1]);
    if (wrong) return wrong;
    skip(r);
    if (!plus || *r->at != ')' || o->tasks[0].kind != DTM_TASK_FORWARD ||
        (o->tasks[1].kind != DTM_TASK_BACKWARD && o->tasks[1].kind != DTM_TASK_INPUT))
        return dtm_arena_printf(r->arena, "`%.*s`: a pair is an F and a B or I, (F3.0+B1.1)", (int)strcspn(from, ")") + 1, from);
    r->at++;
    return NULL;
}

const char *dtm_loop_tasks_of(const dtm_module *module, dtm_op loop, dtm_arena *arena, dtm_loop_tasks *out) {
    reader r = {arena, dtm_string_text(module->context, dtm_op_get(module, loop)->attributes.order)};
    *out = (dtm_loop_tasks){0};
    for (skip(&r); *r.at; skip(&r)) {
        dtm_operation o = {DTM_OPERATION_TASK};
        const char *wrong = *r.at == '(' ? read_pair(&r, &o) : read_task(&r, &o.tasks[0]);
        if (wrong) return wrong;
        DTM_PUSH(arena, out->items, out->count, out->capacity, o);
    }
    return NULL;
}

/* ---- calls ---- */

typedef struct caller {
    const dtm_module *module;
    dtm_op loop;
    dtm_arena *arena;
    int64_t microbatches, of_first; /* of_first: microbatches of direction 0, where there are two; else 0 */
    dtm_loop_calls *out;
} caller;

static dtm_op region_of(const caller *c, dtm_op_kind kind, bool weights, int64_t chunk) {
    const dtm_region_data *body = &c->module->regions[dtm_op_get(c->module, c->loop)->body];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *op = dtm_op_get(c->module, body->ops[i]);
        if (op->kind == kind && ((op->attributes.flags & DTM_BACKWARD_WEIGHTS) != 0) == weights &&
            (int64_t)op->attributes.number[DTM_REGION_CHUNK] == chunk)
            return body->ops[i];
    }
    return 0;
}

static void call(caller *c, dtm_op region, int64_t microbatch, dtm_task task) {
    if (!region) return;
    dtm_loop_call made = {region, (uint32_t)microbatch, true, task, c->out->count, c->out->count, c->out->count};
    for (size_t i = c->out->count; made.first && i-- > 0;) made.first = c->out->items[i].region != region;
    DTM_PUSH(c->arena, c->out->items, c->out->count, c->out->capacity, made);
}

static const char *call_task(caller *c, dtm_task task) {
    bool second = c->of_first && task.chunk == 1;
    int64_t passing = !c->of_first ? c->microbatches : second ? c->microbatches - c->of_first : c->of_first;
    int64_t microbatch = task.microbatch + (second ? c->of_first : 0);
    char letter = DTM_TASK_LETTERS[task.kind];
    if (task.microbatch >= passing)
        return dtm_arena_printf(c->arena, "%c%u.%u: there %s %lld microbatch%s, counted from 0", letter, task.microbatch, task.chunk,
                                passing == 1 ? "is" : "are", (long long)passing, passing == 1 ? "" : "es");
    if (letter == 'F') call(c, region_of(c, DTM_OP_FORWARD, false, task.chunk), microbatch, task);
    if (letter == 'B' || letter == 'I') call(c, region_of(c, DTM_OP_BACKWARD, false, task.chunk), microbatch, task);
    if (letter == 'B' || letter == 'W') call(c, region_of(c, DTM_OP_BACKWARD, true, task.chunk), microbatch, task);
    return NULL;
}

const char *dtm_loop_calls_of(const dtm_module *module, dtm_op loop, dtm_arena *arena, dtm_loop_calls *out) {
    int64_t copies = dtm_op_get(module, loop)->attributes.copies;
    caller c = {.module = module, .loop = loop, .arena = arena, .microbatches = copies, .out = out};
    if (dtm_loop_placement(module, loop) == DTM_PLACE_BIDIRECTIONAL) c.of_first = (copies + 1) / 2;
    *out = (dtm_loop_calls){0};
    dtm_loop_tasks tasks;
    const char *wrong = dtm_loop_tasks_of(module, loop, arena, &tasks);
    for (size_t i = 0; !wrong && i < tasks.count; i++) {
        const dtm_operation *o = &tasks.items[i];
        size_t begin = out->count;
        wrong = call_task(&c, o->tasks[0]);
        if (wrong || o->kind != DTM_OPERATION_PAIR) continue;
        bool forward = out->count > begin; /* else there is nothing to pair with */
        wrong = call_task(&c, o->tasks[1]);
        for (size_t k = begin; forward && k < out->count; k++) out->items[k].begin = begin, out->items[k].end = out->count - 1;
    }
    return wrong;
}

bool dtm_loop_call_is_last(const dtm_loop_calls *calls, const dtm_loop_call *call) {
    for (size_t i = call->index + 1; i < calls->count; i++)
        if (calls->items[i].region == call->region) return false;
    return true;
}

bool dtm_loop_is_paired(const dtm_loop_calls *calls, dtm_op region, bool first) {
    for (size_t i = 0; i < calls->count; i++) {
        const dtm_loop_call *c = &calls->items[i];
        if (c->region == region && c->end > c->begin && (i == c->begin) == first) return true;
    }
    return false;
}

bool dtm_loop_are_paired(const dtm_loop_calls *calls, dtm_op a, dtm_op b) {
    for (size_t i = 0; i < calls->count; i++)
        for (size_t k = i + 1; k <= calls->items[i].end && !(dtm_fault(121) && calls->items[i].begin != i); k++)
            if ((calls->items[i].region == a && calls->items[k].region == b) || (calls->items[i].region == b && calls->items[k].region == a))
                return true;
    return false;
}

/* ---- times ---- */

int dtm_loop_region_index(const dtm_loop_times *times, dtm_op region) {
    for (size_t i = 0; i < times->n_regions; i++)
        if (times->regions[i] == region) return (int)i;
    return -1;
}

/* The receive, or the send, of a region; 0: none. */
static dtm_op message_of(const dtm_module *module, dtm_op region, dtm_op_kind kind) {
    const dtm_region_data *body = &module->regions[dtm_op_get(module, region)->body];
    for (size_t i = 0; i < body->n_ops; i++)
        if (dtm_op_get(module, body->ops[i])->kind == kind) return body->ops[i];
    return 0;
}

typedef struct scheduler {
    const dtm_module *module;
    dtm_arena *arena;
    dtm_loop_schedule *out;
    dtm_op *receives, *sends; /* by region */
    int64_t *posted, *gone;
    int64_t slots, buffers;
} scheduler;

static size_t at_call(const scheduler *s, const dtm_loop_call *call) {
    return (size_t)dtm_loop_region_index(&s->out->times, call->region) * s->out->times.n_microbatches + call->microbatch;
}

static dtm_op message_at(const scheduler *s, size_t call, bool receives) {
    int region = dtm_loop_region_index(&s->out->times, s->out->calls.items[call].region);
    return receives ? s->receives[region] : s->sends[region];
}

static bool same_channel(const scheduler *s, dtm_op a, dtm_op b) {
    const dtm_op_data *x = dtm_op_get(s->module, a), *y = dtm_op_get(s->module, b);
    return x->attributes.number[DTM_MESSAGE_PEER] == y->attributes.number[DTM_MESSAGE_PEER] &&
           (dtm_enclosing(s->module, a, DTM_OP_BACKWARD) != 0) == (dtm_enclosing(s->module, b, DTM_OP_BACKWARD) != 0);
}

/* The call whose message is `distance` before (behind: after) that of `call` in its channel, or -1. */
static int64_t neighbour(const scheduler *s, size_t call, bool receives, int64_t distance, bool behind) {
    dtm_op message = message_at(s, call, receives);
    for (int64_t i = (int64_t)call; distance;) {
        i += behind ? 1 : -1;
        if (i < 0 || i >= (int64_t)s->out->calls.count) return -1;
        dtm_op other = message_at(s, (size_t)i, receives);
        if (other && same_channel(s, message, other) && --distance == 0) return i;
    }
    return (int64_t)call;
}

static void add_entry(scheduler *s, dtm_loop_entry_kind kind, size_t call, dtm_op message) {
    dtm_loop_entry entry = {kind, s->out->calls.items[call], message};
    DTM_PUSH(s->arena, s->out->entries, s->out->n_entries, s->out->cap_entries, entry);
}

/* What is to be done before a call, in the order of the calls it is of: lists, linked through the calls. */
typedef struct agenda {
    int64_t *first, *next; /* by call (first: also their number); -1: none */
} agenda;

static agenda agenda_of(const scheduler *s, const int64_t *at) {
    size_t count = s->out->calls.count;
    agenda a = {dtm_arena_alloc(s->arena, (count + 1) * sizeof *a.first), dtm_arena_alloc(s->arena, (count + 1) * sizeof *a.next)};
    for (size_t c = 0; c <= count; c++) a.first[c] = -1;
    for (size_t c = count; c-- > 0;) {
        if (at[c] < 0) continue;
        a.next[c] = a.first[at[c]];
        a.first[at[c]] = (int64_t)c;
    }
    return a;
}

static void add_messages(scheduler *s, dtm_loop_entry_kind kind, const agenda *a, size_t at) {
    for (int64_t c = a->first[at]; c >= 0; c = a->next[c]) add_entry(s, kind, (size_t)c, message_at(s, (size_t)c, kind == DTM_LOOP_POST));
}

/* After the operation that has used the slot. */
static int64_t first_post(const scheduler *s, size_t call) {
    int64_t before = neighbour(s, call, true, s->slots, false);
    return before < 0 ? 0 : (int64_t)s->out->calls.items[before].end + 1;
}

static void schedule_messages(scheduler *s) {
    size_t count = s->out->calls.count;
    int64_t *wait_at = dtm_arena_alloc(s->arena, (count + 1) * sizeof *wait_at);
    int64_t *post_at = dtm_arena_alloc(s->arena, (count + 1) * sizeof *post_at);
    for (size_t c = 0; c < count; c++) {
        wait_at[c] = post_at[c] = -1;
        if (message_at(s, c, true)) s->posted[at_call(s, &s->out->calls.items[c])] = post_at[c] = first_post(s, c);
        if (!message_at(s, c, false)) continue;
        int64_t next = neighbour(s, c, false, s->buffers, true);
        s->gone[at_call(s, &s->out->calls.items[c])] = wait_at[c] = next < 0 ? (int64_t)count : (int64_t)s->out->calls.items[next].begin;
    }
    /* A receive is posted as soon as its slot is free: were a send waited for first, both sides could wait for one another. */
    agenda waits = agenda_of(s, wait_at), posts = agenda_of(s, post_at);
    for (size_t c = 0; c <= count; c++) {
        if (dtm_fault(86)) add_messages(s, DTM_LOOP_WAIT, &waits, c);
        add_messages(s, DTM_LOOP_POST, &posts, c);
        if (!dtm_fault(86)) add_messages(s, DTM_LOOP_WAIT, &waits, c);
        if (c < count) add_entry(s, DTM_LOOP_RUN, c, 0);
    }
}

const char *dtm_loop_schedule_of(const dtm_module *module, dtm_op loop, dtm_arena *arena, dtm_loop_schedule *out) {
    const dtm_op_data *data = dtm_op_get(module, loop);
    const dtm_region_data *body = &module->regions[data->body];
    *out = (dtm_loop_schedule){0};
    const char *wrong = dtm_loop_calls_of(module, loop, arena, &out->calls);
    if (wrong) return wrong;
    size_t cells = body->n_ops * (size_t)data->attributes.copies;
    int64_t *time = dtm_arena_alloc(arena, (cells + 1) * sizeof *time);
    scheduler s = {.module = module, .arena = arena, .out = out};
    s.slots = (int64_t)data->attributes.number[DTM_MICROBATCH_SLOTS];
    s.buffers = (int64_t)data->attributes.number[DTM_MICROBATCH_BUFFERS];
    s.posted = dtm_arena_alloc(arena, (cells + 1) * sizeof *s.posted);
    s.gone = dtm_arena_alloc(arena, (cells + 1) * sizeof *s.gone);
    s.receives = dtm_arena_alloc(arena, (body->n_ops + 1) * sizeof *s.receives);
    s.sends = dtm_arena_alloc(arena, (body->n_ops + 1) * sizeof *s.sends);
    for (size_t i = 0; i < cells; i++) time[i] = s.posted[i] = s.gone[i] = -1;
    out->times = (dtm_loop_times){body->n_ops, (size_t)data->attributes.copies, body->ops, time, s.posted, s.gone};
    for (size_t i = 0; i < out->calls.count; i++) time[at_call(&s, &out->calls.items[i])] = (int64_t)i;
    for (size_t i = 0; i < body->n_ops; i++) {
        s.receives[i] = message_of(module, body->ops[i], DTM_OP_RECEIVE);
        s.sends[i] = message_of(module, body->ops[i], DTM_OP_SEND);
    }
    schedule_messages(&s);
    return NULL;
}

bool dtm_loop_crosses(const dtm_loop_times *times, const uint8_t *seen) {
    int regions = 0;
    for (size_t i = 0; i < times->n_regions; i++) {
        regions += seen[i] != 0;
        if (seen[i] & (DTM_LOOP_RECEIVED | DTM_LOOP_SENT)) return true;
    }
    return regions > 1;
}

void dtm_loop_busy(const dtm_loop_schedule *schedule, const uint8_t *seen, size_t microbatch, int64_t *from, int64_t *to) {
    const dtm_loop_times *t = &schedule->times;
    *from = INT64_MAX, *to = -1;
    for (size_t i = 0; i < t->n_regions; i++) {
        size_t cell = i * t->n_microbatches + microbatch;
        if (!seen[i] || t->time[cell] < 0) continue;
        const dtm_loop_call *call = &schedule->calls.items[t->time[cell]];
        int64_t begin = 2 * (int64_t)call->begin + 1, end = 2 * (int64_t)call->end + 1;
        if (seen[i] & DTM_LOOP_RECEIVED && t->posted[cell] >= 0 && !dtm_fault(83)) begin = 2 * t->posted[cell];
        if (seen[i] & DTM_LOOP_SENT && t->gone[cell] > (int64_t)call->end && !dtm_fault(82)) end = 2 * t->gone[cell];
        if (begin < *from) *from = begin;
        if (end > *to) *to = end;
    }
}

static int by_begin(const void *a, const void *b) {
    const dtm_loop_stay *x = a, *y = b;
    if (x->from != y->from) return x->from > y->from ? 1 : -1;
    return (x->microbatch > y->microbatch) - (x->microbatch < y->microbatch);
}

dtm_loop_stay *dtm_loop_stays(const dtm_loop_schedule *schedule, const uint8_t *seen, dtm_arena *arena) {
    size_t count = schedule->times.n_microbatches;
    dtm_loop_stay *stays = dtm_arena_alloc(arena, (count + 1) * sizeof *stays);
    for (size_t m = 0; m < count; m++) {
        stays[m].microbatch = m;
        dtm_loop_busy(schedule, seen, m, &stays[m].from, &stays[m].to);
    }
    qsort(stays, count, sizeof *stays, by_begin);
    return stays;
}
