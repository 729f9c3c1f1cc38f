/* The proof that all ranks of a pipeline come to the end of a step, of what each in truth does with others, in its order:
 *   - in the loop over microbatches its calls, the receives that it posts and the sends that it waits for (ir/calls.h), no
 *     message being held by anything but the slot that was posted for it;
 *   - before and after it messages, once in a step, which both sides must have come to;
 *   - sums along the pipeline, which all that take part come to.
 * What a rank does in each copy of a repeat, or for each microbatch of a loop without an order, is gone through once: all that
 * have a part in it enter together, over equally many copies. */
#include "ir/calls.h"
#include "passes/schedule.h"

#include <string.h>

typedef enum deed_kind { RUNS, POSTS, WAITS, SENDS, RECEIVES, SUMS, ENTERS } deed_kind;

typedef struct deed {
    deed_kind kind;
    dtm_op op;          /* the message, the sum, the repeat or loop */
    uint32_t entry;     /* RUNS, POSTS, WAITS: of the loop */
    dtm_string members; /* SUMS, ENTERS: the ranks that take part; 0: all */
} deed;

typedef struct walker {
    const dtm_module *module;
    dtm_op loop;
    dtm_loop_schedule schedule;
    dtm_op *receives, *sends; /* by region of the loop */
    deed *deeds;
    size_t at, count, capacity;
    uint32_t *waited, *used; /* by channel: sends waited for, receives used */
} walker;

typedef struct walk {
    dtm_context *context;
    dtm_arena *scratch;
    walker *ranks;
    size_t count;
    uint32_t *posted, *sent; /* by channel */
    bool good;
} walk;

static const dtm_op_data *get(const walker *r, dtm_op op) { return dtm_op_get(r->module, op); }
static size_t rank_of(const walk *w, const walker *r) { return (size_t)(r - w->ranks); }
static const deed *next_of(const walker *r) { return r->at < r->count ? &r->deeds[r->at] : NULL; }

static size_t peer_of(const walker *r, dtm_op message) { return (size_t)get(r, message)->attributes.number[DTM_MESSAGE_PEER]; }
static bool is_backward(const walker *r, dtm_op message) { return dtm_enclosing(r->module, message, DTM_OP_BACKWARD) != 0; }

static size_t channel_of(const walk *w, const walker *r, dtm_op message) {
    size_t own = rank_of(w, r), peer = peer_of(r, message);
    bool sends = get(r, message)->kind == DTM_OP_SEND;
    return ((sends ? own : peer) * w->count + (sends ? peer : own)) * 2 + is_backward(r, message);
}

/* ---- what a rank does ---- */

static void add(walk *w, walker *r, deed made) { DTM_PUSH(w->scratch, r->deeds, r->count, r->capacity, made); }

static void add_ordered_loop(walk *w, walker *r) {
    if (dtm_loop_schedule_of(r->module, r->loop, w->scratch, &r->schedule)) return; /* the verifier says why */
    size_t channels = w->count * w->count * 2, regions = r->schedule.times.n_regions;
    r->waited = dtm_arena_alloc(w->scratch, channels * sizeof *r->waited);
    r->used = dtm_arena_alloc(w->scratch, channels * sizeof *r->used);
    r->receives = dtm_arena_alloc(w->scratch, (regions + 1) * sizeof *r->receives);
    r->sends = dtm_arena_alloc(w->scratch, (regions + 1) * sizeof *r->sends);
    for (size_t i = 0; i < regions; i++) {
        const dtm_region_data *body = &r->module->regions[get(r, r->schedule.times.regions[i])->body];
        for (size_t k = 0; k < body->n_ops; k++) {
            dtm_op_kind kind = get(r, body->ops[k])->kind;
            if (kind == DTM_OP_RECEIVE) r->receives[i] = body->ops[k];
            if (kind == DTM_OP_SEND) r->sends[i] = body->ops[k];
        }
    }
    static const deed_kind kinds[] = {[DTM_LOOP_RUN] = RUNS, [DTM_LOOP_POST] = POSTS, [DTM_LOOP_WAIT] = WAITS};
    for (size_t i = 0; i < r->schedule.n_entries; i++)
        add(w, r, (deed){kinds[r->schedule.entries[i].kind], r->schedule.entries[i].message, (uint32_t)i, 0});
}

/* The ranks that take part in any of a rank's deeds from one on. */
static dtm_string members_from(walk *w, const walker *r, size_t from) {
    bool *members = dtm_arena_alloc(w->scratch, w->count * sizeof *members);
    if (from == r->count) return 0;
    for (size_t i = from; i < r->count; i++) {
        if (!r->deeds[i].members) return 0;
        for (size_t q = 0; r->deeds[i].kind == SUMS && q < w->count; q++)
            members[q] |= dtm_is_member(r->module, get(r, r->deeds[i].op), (int64_t)q);
    }
    return dtm_members_of(w->context, w->scratch, members, (int64_t)w->count);
}

static void collect(walk *w, walker *r, dtm_region region);

static void collect_op(walk *w, walker *r, dtm_op op) {
    const dtm_op_data *data = get(r, op);
    size_t from = r->count;
    if (data->kind == DTM_OP_SEND) add(w, r, (deed){SENDS, op, 0, 0});
    if (data->kind == DTM_OP_RECEIVE) add(w, r, (deed){RECEIVES, op, 0, 0});
    if (data->kind == DTM_OP_ALL_REDUCE && dtm_along_pipeline(r->module, data)) add(w, r, (deed){SUMS, op, 0, data->attributes.members});
    if (op == r->loop && dtm_loop_is_ordered(r->module, op)) {
        add_ordered_loop(w, r);
        return;
    }
    bool repeats = data->kind == DTM_OP_REPEAT || op == r->loop;
    if (repeats) add(w, r, (deed){ENTERS, op, 0, 0});
    if (data->body) collect(w, r, data->body);
    if (!repeats) return;
    if (r->count == from + 1 && op != r->loop) r->count = from; /* nothing is met for in it */
    else r->deeds[from].members = members_from(w, r, from + 1);
}

static void collect(walk *w, walker *r, dtm_region region) {
    const dtm_region_data *body = &r->module->regions[region];
    for (size_t i = 0; i < body->n_ops; i++) collect_op(w, r, body->ops[i]);
}

/* ---- messages ---- */

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

/* Outside of the loop: the other side must have come to it. */
static bool hand_over(walk *w, walker *r, dtm_op send) {
    walker *to = &w->ranks[peer_of(r, send)];
    const deed *other = next_of(to);
    if (!other || other->kind != RECEIVES || channel_of(w, to, other->op) != channel_of(w, r, send)) return false;
    w->good &= schedule_agree(r->module, send, to->module, other->op);
    to->at++;
    return true;
}

/* ---- what is met for ---- */

static bool takes_part(const walker *r, const deed *d, size_t rank) {
    dtm_op_data named = {.attributes.members = d->members};
    return dtm_is_member(r->module, &named, (int64_t)rank);
}

static dtm_string name_of(const walker *r, const deed *d) {
    return d->kind == SUMS ? dtm_value_get(r->module, get(r, d->op)->results[0])->name : get(r, d->op)->attributes.name;
}

static bool same_meeting(const walker *a, const deed *x, const walker *b, const deed *y) {
    if (!y || x->kind != y->kind || x->members != y->members) return false;
    return x->kind == SUMS ? name_of(a, x) == name_of(b, y) : get(a, x->op)->attributes.copies == get(b, y->op)->attributes.copies;
}

/* The first rank that does not come to what r is at; all others do: as many as there are. */
static size_t missing(const walk *w, const walker *r) {
    const deed *own = next_of(r);
    for (size_t q = 0; q < w->count; q++)
        if (takes_part(r, own, q) && !same_meeting(r, own, &w->ranks[q], next_of(&w->ranks[q]))) return q;
    return w->count;
}

static bool same_terms(walk *w, const walker *a, const deed *x, const walker *b, const deed *y) {
    const dtm_op_data *one = get(a, x->op), *other = get(b, y->op);
    bool same = one->n_results == other->n_results;
    for (uint32_t i = 0; same && i < one->n_results; i++)
        same = schedule_same_type(a->module, one->operands[i], b->module, other->operands[i]);
    if (same) return true;
    dtm_error(w->context, other->span, 511, "rank %zu adds to `%s` what is of another type than what rank %zu adds", rank_of(w, b),
              dtm_string_text(w->context, name_of(b, y)), rank_of(w, a));
    dtm_note(w->context, one->span, "rank %zu adds to it here", rank_of(w, a));
    return false;
}

/* The first of those that take part goes on with all of them. */
static bool meet(walk *w, walker *r) {
    const deed *own = next_of(r);
    for (size_t q = 0; q < rank_of(w, r); q++)
        if (takes_part(r, own, q)) return false;
    if (missing(w, r) < w->count) return false;
    for (size_t q = rank_of(w, r) + 1; q < w->count; q++) {
        if (!takes_part(r, own, q)) continue;
        if (own->kind == SUMS && w->good) w->good = same_terms(w, r, own, &w->ranks[q], next_of(&w->ranks[q]));
        w->ranks[q].at++;
    }
    return true;
}

/* ---- the walk ---- */

static bool step(walk *w, walker *r) {
    const deed *d = next_of(r);
    size_t at = d->op && d->kind <= RECEIVES ? channel_of(w, r, d->op) : 0;
    switch (d->kind) {
    case RUNS: return run(w, r, &r->schedule.entries[d->entry].call);
    case POSTS: w->posted[at]++; return true;
    case WAITS: return w->posted[at] > r->waited[at] && ++r->waited[at];
    case SENDS: return hand_over(w, r, d->op);
    case RECEIVES: return false; /* who sends goes on with both */
    case SUMS: case ENTERS: return meet(w, r);
    }
    return false;
}

/* Where a rank stands that is not at its end, and what it waits for. */
static const char *story(walk *w, const walker *r) {
    const deed *d = next_of(r);
    size_t rank = rank_of(w, r);
    const char *name = d->kind >= SUMS ? dtm_string_text(w->context, name_of(r, d)) : "";
    switch (d->kind) {
    case SENDS: return dtm_arena_printf(w->scratch, "rank %zu waits for rank %zu to receive what it sends", rank, peer_of(r, d->op));
    case RECEIVES: return dtm_arena_printf(w->scratch, "rank %zu waits for rank %zu to send what it receives", rank, peer_of(r, d->op));
    case SUMS: return dtm_arena_printf(w->scratch, "rank %zu waits for others to add to `%s`", rank, name);
    case ENTERS:
        return dtm_arena_printf(w->scratch, "rank %zu waits for others at its %lld copies of `%s`", rank,
                                (long long)get(r, d->op)->attributes.copies, name);
    default: break;
    }
    return dtm_arena_printf(w->scratch, "rank %zu waits in microbatch %u for %s", rank, r->schedule.entries[d->entry].call.microbatch,
                            d->kind == RUNS ? "what it receives" : "what it sent to be taken");
}

static bool is_in_loop(const deed *d) { return d->kind <= WAITS; }

static dtm_span span_of(const walker *r) {
    const deed *d = next_of(r);
    return is_in_loop(d) ? r->module->settings.pipeline.span : get(r, d->op)->span;
}

/* What one rank waits for outside of the loop, which never comes. */
static void refuse_rank(walk *w, const walker *r) {
    const deed *d = next_of(r);
    dtm_span span = span_of(r);
    const char *name = d->kind >= SUMS ? dtm_string_text(w->context, name_of(r, d)) : "";
    if (d->kind == SUMS)
        dtm_error(w->context, span, 511, "rank %zu waits for rank %zu to add to `%s`, which never does", rank_of(w, r), missing(w, r), name);
    else if (d->kind == ENTERS)
        dtm_error(w->context, span, 511, "rank %zu waits for rank %zu at its %lld copies of `%s`, which never comes to as many", rank_of(w, r),
                  missing(w, r), (long long)get(r, d->op)->attributes.copies, name);
    else
        dtm_error(w->context, span, 511, "%s, which never does", story(w, r));
}

enum { MOST_NOTES = 8 };

static void refuse(walk *w) {
    const walker *first = NULL;
    bool loops = false;
    for (size_t i = 0; i < w->count; i++) {
        const deed *d = next_of(&w->ranks[i]);
        if (d && is_in_loop(d)) loops = true;
        if (d && !is_in_loop(d) && !first) first = &w->ranks[i];
    }
    if (first) refuse_rank(w, first);
    else dtm_error(w->context, w->ranks[0].module->settings.pipeline.span, 511, "the loops of the ranks wait for one another");
    int notes = 0;
    for (size_t i = 0; i < w->count && notes < MOST_NOTES; i++)
        if (next_of(&w->ranks[i]) && &w->ranks[i] != first) dtm_note(w->context, span_of(&w->ranks[i]), "%s", story(w, &w->ranks[i])), notes++;
    if (loops && !first) dtm_help(w->context, "give the loops more `slots` or `buffers`");
}

bool schedule_walk(const dtm_module *module, dtm_arena *scratch) {
    walk w = {.context = module->context, .scratch = scratch, .count = module->n_ranks, .good = true};
    w.ranks = dtm_arena_alloc(scratch, (w.count + 1) * sizeof *w.ranks);
    w.posted = dtm_arena_alloc(scratch, w.count * w.count * 2 * sizeof *w.posted);
    w.sent = dtm_arena_alloc(scratch, w.count * w.count * 2 * sizeof *w.sent);
    for (size_t r = 0; r < w.count; r++) {
        w.ranks[r] = (walker){.module = module->ranks[r], .loop = dtm_rank_loop(module->ranks[r])};
        collect(&w, &w.ranks[r], module->ranks[r]->body);
    }
    bool all = w.count == 0;
    for (bool moves = true; moves && w.good;) { /* what a rank may do is never taken back by another, so any order of ranks will do */
        moves = false, all = true;
        for (size_t i = 0; i < w.count; i++)
            for (; next_of(&w.ranks[i]) && step(&w, &w.ranks[i]); w.ranks[i].at++) moves = true;
        for (size_t i = 0; i < w.count; i++) all &= !next_of(&w.ranks[i]);
    }
    if (!all && w.good) refuse(&w);
    return all && w.good;
}
