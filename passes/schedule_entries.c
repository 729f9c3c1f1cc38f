/* The proof that all ranks come to the end of their loops, of what each does in truth: its calls, the receives that it posts and
 * the sends that it waits for (ir/calls.h), no message being held by anything but the slot that was posted for it. */
#include "passes/schedule.h"
#include "ir/calls.h"

#include <string.h>

typedef struct walker {
    const dtm_module *module;
    dtm_op loop;
    dtm_loop_schedule schedule;
    dtm_op *receives, *sends; /* by region, in the order of the text */
    size_t at;
    uint32_t *waited, *used; /* by channel: sends waited for, receives used */
} walker;

typedef struct walk {
    walker *ranks;
    size_t count;
    uint32_t *posted, *sent; /* by channel */
} walk;

static size_t channel(const walk *w, int64_t from, int64_t to, bool backward) { return ((size_t)from * w->count + (size_t)to) * 2 + backward; }

static size_t channel_of(const walk *w, const walker *r, dtm_op message) {
    const dtm_op_data *data = dtm_op_get(r->module, message);
    int64_t own = r->module->rank, peer = (int64_t)data->attributes.number[DTM_MESSAGE_PEER];
    bool backward = dtm_enclosing(r->module, message, DTM_OP_BACKWARD) != 0;
    return data->kind == DTM_OP_SEND ? channel(w, own, peer, backward) : channel(w, peer, own, backward);
}

static dtm_op message_of(const walker *r, const dtm_loop_call *call, const dtm_op *messages) {
    return messages[dtm_loop_region_index(&r->schedule.times, call->region)];
}

/* A call runs when what it receives has come; those of a pair run at the same time, and send when both are done. */
static bool run(walk *w, walker *r, const dtm_loop_call *call) {
    const dtm_loop_call *calls = r->schedule.calls.items;
    for (size_t c = call->begin; call->index == call->begin && c <= call->end; c++) {
        dtm_op receive = message_of(r, &calls[c], r->receives);
        if (!receive) continue;
        size_t at = channel_of(w, r, receive);
        if (w->sent[at] <= r->used[at]) return false;
    }
    for (size_t c = call->begin; call->index == call->end && c <= call->end; c++) {
        dtm_op receive = message_of(r, &calls[c], r->receives), send = message_of(r, &calls[c], r->sends);
        if (receive) r->used[channel_of(w, r, receive)]++;
        if (send) w->sent[channel_of(w, r, send)]++;
    }
    return true;
}

static bool step(walk *w, walker *r) {
    const dtm_loop_entry *entry = &r->schedule.entries[r->at];
    if (entry->kind == DTM_LOOP_RUN) return run(w, r, &entry->call);
    size_t at = channel_of(w, r, entry->message);
    if (entry->kind == DTM_LOOP_POST) w->posted[at]++;
    else if (w->posted[at] <= r->waited[at]) return false;
    else r->waited[at]++;
    return true;
}

static bool prepare(const walk *w, walker *r, const dtm_module *module, dtm_arena *scratch) {
    *r = (walker){.module = module, .loop = dtm_rank_loop(module)};
    if (dtm_loop_schedule_of(module, r->loop, scratch, &r->schedule)) return false; /* the verifier says why */
    size_t channels = w->count * w->count * 2, regions = r->schedule.times.n_regions;
    r->waited = dtm_arena_alloc(scratch, channels * sizeof *r->waited);
    r->used = dtm_arena_alloc(scratch, channels * sizeof *r->used);
    r->receives = dtm_arena_alloc(scratch, (regions + 1) * sizeof *r->receives);
    r->sends = dtm_arena_alloc(scratch, (regions + 1) * sizeof *r->sends);
    for (size_t i = 0; i < regions; i++) {
        const dtm_region_data *body = &module->regions[dtm_op_get(module, r->schedule.times.regions[i])->body];
        for (size_t k = 0; k < body->n_ops; k++) {
            dtm_op_kind kind = dtm_op_get(module, body->ops[k])->kind;
            if (kind == DTM_OP_RECEIVE) r->receives[i] = body->ops[k];
            if (kind == DTM_OP_SEND) r->sends[i] = body->ops[k];
        }
    }
    return true;
}

/* Where each rank that is not at its end stands. */
static void refuse(const walk *w, const dtm_module *module) {
    bool first = true;
    for (size_t i = 0; i < w->count; i++) {
        const walker *r = &w->ranks[i];
        if (r->at == r->schedule.n_entries) continue;
        const dtm_loop_entry *entry = &r->schedule.entries[r->at];
        const char *what = entry->kind == DTM_LOOP_RUN ? "what it receives" : "what it sent to be taken";
        dtm_span span = module->settings.pipeline.span;
        if (first) dtm_error(module->context, span, 511, "the loops of the ranks wait for one another");
        dtm_note(module->context, span, "rank %zu waits in microbatch %u for %s", i, entry->call.microbatch, what);
        first = false;
    }
    dtm_help(module->context, "give the loops more `slots` or `buffers`");
}

bool schedule_walk(const dtm_module *module, dtm_arena *scratch) {
    walk w = {.count = module->n_ranks};
    w.ranks = dtm_arena_alloc(scratch, w.count * sizeof *w.ranks);
    w.posted = dtm_arena_alloc(scratch, w.count * w.count * 2 * sizeof *w.posted);
    w.sent = dtm_arena_alloc(scratch, w.count * w.count * 2 * sizeof *w.sent);
    for (size_t r = 0; r < w.count; r++)
        if (!prepare(&w, &w.ranks[r], module->ranks[r], scratch)) return true;
    bool all = false;
    for (bool moves = true; moves;) { /* what a rank may do is never taken back by another, so any order of ranks will do */
        moves = false, all = true;
        for (size_t i = 0; i < w.count; i++) {
            walker *r = &w.ranks[i];
            for (; r->at < r->schedule.n_entries && step(&w, r); r->at++) moves = true;
            all &= r->at == r->schedule.n_entries;
        }
    }
    if (!all) refuse(&w, module);
    return all;
}
