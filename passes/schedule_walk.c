/* The proof that all ranks of a pipeline come to the end of a step, of what each in truth does with others, in its order:
 *   - in the loop over microbatches its calls, the receives that it posts and the sends that it waits for (ir/calls.h), no
 *     message being held by anything but the slot that was posted for it;
 *   - before and after it messages, once in a step, which both sides must have come to;
 *   - sums along the pipeline, which all that take part come to; of those that are carried out apart each stream of a rank
 *     has a row, in the order in which it starts them.
 * What a rank does in each copy of a repeat, or for each microbatch of a loop without an order, is gone through once: all that
 * have a part in it enter together, over equally many copies. */
#include "ir/calls.h"
#include "ir/storage.h"
#include "passes/schedule.h"

#include <stdlib.h>
#include <string.h>

typedef enum deed_kind { RUNS, POSTS, WAITS, SENDS, RECEIVES, SUMS, ENTERS, STARTS, AWAITS } deed_kind;

typedef struct deed {
    deed_kind kind;
    dtm_op op;          /* the message, the sum, the repeat or loop */
    uint32_t entry;     /* RUNS, POSTS, WAITS: of the loop; STARTS, AWAITS: what is under way */
    dtm_string members; /* SUMS, ENTERS: the ranks that take part; 0: all */
} deed;

/* Sums that are carried out apart and start together: those of a repeat, in each of its copies, or one. */
typedef struct under_way {
    dtm_op first_place, last_place; /* between them, in the order of the text, they start */
    dtm_op *sums;
    size_t count, capacity;
    dtm_string members;
    int stream;
    bool done;
} under_way;

typedef struct stream_row {
    uint32_t *items; /* under way, in the order in which they start */
    size_t count, capacity, at;
} stream_row;

typedef struct walker {
    const dtm_module *module;
    dtm_op loop;
    under_way *apart;
    size_t n_apart, cap_apart;
    stream_row rows[DTM_STREAMS_OF_SUMS];
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
    bool good, quiet, ambiguous;
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

/* The child of the program's body around an operator. */
static dtm_op outermost(const walker *r, dtm_op op) {
    for (dtm_op around; (around = dtm_enclosing(r->module, op, DTM_OP_NONE));) op = around;
    return op;
}

/* The outermost repeat around an operator, 0: none. */
static dtm_op outermost_repeat(const walker *r, dtm_op op) {
    dtm_op found = 0;
    while ((op = dtm_enclosing(r->module, op, DTM_OP_REPEAT))) found = op;
    return found;
}

static bool is_sum_apart(const walker *r, dtm_op op) {
    return dtm_along_pipeline(r->module, get(r, op)) && dtm_is_apart(r->module, op) && dtm_early_place(r->module, op);
}

typedef struct begun {
    dtm_op sum, place;
    int64_t at;
    size_t number; /* in the text */
} begun;

static int compare_begun(const void *a, const void *b) {
    const begun *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* In the order in which they start. */
static void find_under_way(walk *w, walker *r) {
    dtm_order order = dtm_order_of(r->module, w->scratch);
    dtm_op_list ops = dtm_ops_in_order((dtm_module *)r->module, w->scratch);
    begun *all = NULL;
    size_t count = 0, capacity = 0;
    for (size_t i = 0; i < ops.count; i++) {
        if (!is_sum_apart(r, ops.items[i])) continue;
        dtm_op place = dtm_early_place(r->module, ops.items[i]);
        DTM_PUSH(w->scratch, all, count, capacity, ((begun){ops.items[i], place, order.begin[place], i}));
    }
    if (count) qsort(all, count, sizeof *all, compare_begun);
    for (size_t i = 0; i < count; i++) {
        int stream = (int)get(r, all[i].sum)->attributes.number[DTM_COLLECTIVE_APART] - DTM_FIRST_STREAM_OF_SUMS;
        dtm_string members = get(r, all[i].sum)->attributes.members;
        under_way *last = r->n_apart ? &r->apart[r->n_apart - 1] : NULL;
        dtm_op repeat = outermost_repeat(r, all[i].place);
        if (!last || !repeat || outermost_repeat(r, last->last_place) != repeat || last->stream != stream || last->members != members) {
            under_way made = {.first_place = all[i].place, .members = members, .stream = stream};
            DTM_PUSH(w->scratch, r->apart, r->n_apart, r->cap_apart, made);
            last = &r->apart[r->n_apart - 1];
        }
        last->last_place = all[i].place;
        DTM_PUSH(w->scratch, last->sums, last->count, last->capacity, all[i].sum);
    }
}

/* Those that start in a region of the loop (0: in none), or in a child of the body. */
static void add_starts(walk *w, walker *r, dtm_op child, dtm_op region) {
    for (size_t i = 0; i < r->n_apart; i++) {
        dtm_op place = r->apart[i].first_place;
        if (outermost(r, place) == child && dtm_called_region(r->module, place) == region) add(w, r, (deed){STARTS, 0, (uint32_t)i, 0});
    }
}

/* Whether both parts of a pair are the last calls of their regions and start sums on one stream: which comes first depends on how
 * the parts take turns. */
static bool is_ambiguous(const walker *r, const dtm_loop_call *call) {
    const dtm_loop_call *calls = r->schedule.calls.items;
    for (size_t i = 0; i < r->n_apart; i++)
        for (size_t k = 0; k < r->n_apart; k++) {
            dtm_op one = dtm_called_region(r->module, r->apart[i].first_place), other = dtm_called_region(r->module, r->apart[k].first_place);
            bool both = one && other && one != other && r->apart[i].stream == r->apart[k].stream;
            bool first = false, second = false;
            for (size_t c = call->begin; both && c <= call->end; c++) {
                bool last = dtm_loop_call_is_last(&r->schedule.calls, &calls[c]);
                first |= last && calls[c].region == one;
                second |= last && calls[c].region == other;
            }
            if (first && second && calls[call->begin].region == one) return true; /* a forward pass and what follows it */
        }
    return false;
}

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
    for (size_t i = 0; i < r->schedule.n_entries; i++) {
        const dtm_loop_entry *entry = &r->schedule.entries[i];
        add(w, r, (deed){kinds[entry->kind], entry->message, (uint32_t)i, 0});
        if (entry->kind == DTM_LOOP_RUN && r->n_apart && entry->call.end > entry->call.begin && is_ambiguous(r, &entry->call)) w->ambiguous = true;
        if (entry->kind == DTM_LOOP_RUN && r->n_apart && dtm_loop_call_is_last(&r->schedule.calls, &entry->call)) add_starts(w, r, r->loop, entry->call.region);
    }
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
    if (data->kind == DTM_OP_ALL_REDUCE && dtm_along_pipeline(r->module, data) && !is_sum_apart(r, op)) add(w, r, (deed){SUMS, op, 0, data->attributes.members});
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

/* What starts in a part of the step counts as started at its end (in an ordered loop: of the region's last call), and as waited for
 * before the part that touches it: that is no less than is asked of the ranks. */
static void collect_all(walk *w, walker *r) {
    const dtm_region_data *body = &r->module->regions[r->module->body];
    find_under_way(w, r);
    for (size_t i = 0; i < body->n_ops; i++) {
        for (size_t k = 0; k < r->n_apart; k++)
            if (outermost(r, r->apart[k].sums[0]) == body->ops[i]) add(w, r, (deed){AWAITS, 0, (uint32_t)k, 0});
        collect_op(w, r, body->ops[i]);
        add_starts(w, r, body->ops[i], 0);
    }
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
    if (d->kind >= STARTS) return dtm_value_get(r->module, get(r, r->apart[d->entry].sums[0])->results[0])->name;
    return d->kind == SUMS ? dtm_value_get(r->module, get(r, d->op)->results[0])->name : get(r, d->op)->attributes.name;
}

/* Whether two sums make what is of one name. */
static bool same_sum(const walker *a, dtm_op x, const walker *b, dtm_op y) {
    const dtm_op_data *one = get(a, x), *other = get(b, y);
    bool same = one->n_results == other->n_results;
    for (uint32_t i = 0; same && i < one->n_results; i++)
        same = dtm_value_get(a->module, one->results[i])->name == dtm_value_get(b->module, other->results[i])->name;
    return same;
}

static bool same_meeting(const walker *a, const deed *x, const walker *b, const deed *y) {
    if (!y || x->kind != y->kind || x->members != y->members) return false;
    return x->kind == SUMS ? same_sum(a, x->op, b, y->op) : get(a, x->op)->attributes.copies == get(b, y->op)->attributes.copies;
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
    if (same || w->quiet) return same;
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

/* ---- what is under way ---- */

static under_way *head_of(const walker *r, int stream) {
    const stream_row *row = &r->rows[stream];
    return row->at < row->count ? &r->apart[row->items[row->at]] : NULL;
}

/* Copies start in one order, the same way around in all repeats around the place. */
static bool same_way(const walker *a, dtm_op x, const walker *b, dtm_op y) {
    x = dtm_early_place(a->module, x), y = dtm_early_place(b->module, y);
    do {
        x = dtm_enclosing(a->module, x, DTM_OP_REPEAT), y = dtm_enclosing(b->module, y, DTM_OP_REPEAT);
        if (!x || !y) return !x && !y;
    } while (!((get(a, x)->attributes.flags ^ get(b, y)->attributes.flags) & DTM_REPEAT_REVERSED));
    return false;
}

static bool same_under_way(const walker *a, const under_way *x, const walker *b, const under_way *y) {
    bool same = y && x->members == y->members && x->count == y->count;
    for (size_t i = 0; same && i < x->count; i++)
        same = same_way(a, x->sums[i], b, y->sums[i]) && same_sum(a, x->sums[i], b, y->sums[i]) &&
               dtm_copies(a->module, get(a, x->sums[i])->results[0]) == dtm_copies(b->module, get(b, y->sums[i])->results[0]);
    return same;
}

/* Carries out the first in a stream of a rank, if it is the first of all that take part. */
static bool carry_out(walk *w, walker *r, int stream) {
    under_way *own = head_of(r, stream);
    if (!own) return false;
    const dtm_op_data *named = get(r, own->sums[0]);
    for (size_t q = 0; q < w->count; q++)
        if (dtm_is_member(r->module, named, (int64_t)q) && !same_under_way(r, own, &w->ranks[q], head_of(&w->ranks[q], stream))) return false;
    for (size_t q = 0; q < w->count; q++) {
        walker *other = &w->ranks[q];
        if (!dtm_is_member(r->module, named, (int64_t)q)) continue;
        under_way *theirs = head_of(other, stream);
        for (size_t i = 0; i < own->count && w->good && other != r; i++) {
            deed x = {SUMS, own->sums[i], 0, 0}, y = {SUMS, theirs->sums[i], 0, 0};
            w->good = same_terms(w, r, &x, other, &y);
        }
        theirs->done = true;
        other->rows[stream].at++;
    }
    return true;
}

/* ---- the walk ---- */

static bool start(walk *w, walker *r, uint32_t item) {
    stream_row *row = &r->rows[r->apart[item].stream];
    DTM_PUSH(w->scratch, row->items, row->count, row->capacity, item);
    return true;
}

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
    case STARTS: return start(w, r, d->entry);
    case AWAITS: return r->apart[d->entry].done;
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
    case SUMS: case AWAITS: return dtm_arena_printf(w->scratch, "rank %zu waits for others to add to `%s`", rank, name);
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
    if (d->kind == AWAITS) return get(r, r->apart[d->entry].sums[0])->span;
    return is_in_loop(d) ? r->module->settings.pipeline.span : get(r, d->op)->span;
}

/* The first rank that does not come, on a stream, to what r waits for, or to what is before it there. */
static size_t missing_apart(const walk *w, const walker *r) {
    const under_way *own = head_of(r, r->apart[next_of(r)->entry].stream);
    const dtm_op_data *named = get(r, own->sums[0]);
    for (size_t q = 0; q < w->count; q++)
        if (q != rank_of(w, r) && dtm_is_member(r->module, named, (int64_t)q) && !same_under_way(r, own, &w->ranks[q], head_of(&w->ranks[q], own->stream))) return q;
    return w->count;
}

/* What one rank waits for outside of the loop, which never comes. */
static void refuse_rank(walk *w, const walker *r) {
    const deed *d = next_of(r);
    dtm_span span = span_of(r);
    const char *name = d->kind >= SUMS ? dtm_string_text(w->context, name_of(r, d)) : "";
    if (d->kind == SUMS || d->kind == AWAITS)
        dtm_error(w->context, span, 511, "rank %zu waits for rank %zu to add to `%s`, which never does", rank_of(w, r),
                  d->kind == SUMS ? missing(w, r) : missing_apart(w, r), name);
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

static bool walk_all(const dtm_module *module, dtm_arena *scratch, bool quiet) {
    walk w = {.context = module->context, .scratch = scratch, .count = module->n_ranks, .good = true, .quiet = quiet};
    w.ranks = dtm_arena_alloc(scratch, (w.count + 1) * sizeof *w.ranks);
    w.posted = dtm_arena_alloc(scratch, w.count * w.count * 2 * sizeof *w.posted);
    w.sent = dtm_arena_alloc(scratch, w.count * w.count * 2 * sizeof *w.sent);
    for (size_t r = 0; r < w.count; r++) {
        w.ranks[r] = (walker){.module = module->ranks[r], .loop = dtm_rank_loop(module->ranks[r])};
        collect_all(&w, &w.ranks[r]);
    }
    bool all = w.count == 0;
    for (bool moves = true; moves && w.good;) { /* what a rank may do is never taken back by another, so any order of ranks will do */
        moves = false, all = true;
        for (size_t i = 0; i < w.count; i++)
            for (; next_of(&w.ranks[i]) && step(&w, &w.ranks[i]); w.ranks[i].at++) moves = true;
        for (size_t i = 0; i < w.count; i++)
            for (int s = 0; s < DTM_STREAMS_OF_SUMS; s++)
                while (carry_out(&w, &w.ranks[i], s)) moves = true;
        for (size_t i = 0; i < w.count; i++) all &= !next_of(&w.ranks[i]);
    }
    if (w.ambiguous && w.good && all) {
        if (!quiet) {
            dtm_error(w.context, module->settings.pipeline.span, 511, "both parts of a pair are the last of their regions and start sums on one stream, in an order that is not known");
            dtm_help(w.context, "give those of one of them the other stream, `apart = %d` or `apart = %d`, or call one of them later", DTM_FIRST_STREAM_OF_SUMS, DTM_FIRST_STREAM_OF_SUMS + 1);
        }
        return false;
    }
    if (!all && w.good && !quiet) refuse(&w);
    return all && w.good;
}

bool schedule_walk(const dtm_module *module, dtm_arena *scratch) { return walk_all(module, scratch, false); }
bool schedule_ends(const dtm_module *module, dtm_arena *scratch) { return walk_all(module, scratch, true); }
