/* The walk through a plan's instructions: loops, and the calls of a pipeline's timeline. The calls of a pair are two walks that
 * take turns: one goes on until it has to wait for another rank, and then the other does,
 *
 *     forward   product, all_reduce ..........., product, ..        the all_reduce is carried out by a stream of the rank
 *     backward                    product, product, all_reduce ..   while this rank computes the other part
 *
 * whatever the instructions are. Who starts what next depends on the plan alone, so ranks that share a plan come to their
 * collectives in the same order: a part that has none left to start fills what the other leaves, and makes way for it as soon as what
 * that one waits for has come. Weight gradients, which are a call of their own after the input gradient's, fill from the beginning
 * where the plan says so (`fills`): whenever a part waits they go on, an instruction at a time, as far as the input gradient has come
 * (`needs`) and up to their first collective, if they have one. That is a matter of when things come, but nothing that other ranks see. */
#include "ir/fault.h"
#include "runtime/cuda/device.h"
#include "runtime/rank.h"
#include "runtime/replicas.h"
#include "runtime/trace.h"

enum { DEPTH = 8 };

typedef struct walk {
    struct {
        uint32_t loop, body;  /* body: its first instruction */
        int64_t number, left; /* copies after this one */
        int64_t outer_copy;   /* the copy number around it */
        bool started;         /* a copy has run */
    } open[DEPTH];
    int depth;
    uint32_t at, end; /* the next instruction, and where to end */
    bool going;       /* the one at `at` has been started, and is to be waited for */
} walk;

/* How far copy numbers of the whole program are ahead of those here: of a pipeline's stage the copies before it. */
static int64_t first_copy(const dtm_plan *plan, uint32_t loop) {
    const dtm_plan_loop *l = &plan->loops[loop];
    return (l->parent ? first_copy(plan, l->parent) * l->copies : 0) + l->first;
}

static void begin_copy(dtm_rank *rank, const walk *w) {
    uint32_t loop = w->open[w->depth - 1].loop;
    const dtm_plan_loop *l = &rank->plan->loops[loop];
    int64_t number = w->open[w->depth - 1].number;
    rank->copies[loop] = rank->copies[l->parent] * (l->parent ? l->copies : 0) + number;
    if (l->microbatch)
        dtm_rank_set_microbatch(rank, number, w->open[w->depth - 1].started, !w->open[w->depth - 1].left);
    else
        dtm_rank_set_copy(rank, rank->copies[loop] + first_copy(rank->plan, loop));
}

/* Returns the instruction to go on with. */
static uint32_t enter_loop(dtm_rank *rank, walk *w, uint32_t at) {
    const dtm_plan_repeat *r = &rank->plan->instructions[at].repeat;
    int64_t copies = rank->plan->loops[r->loop].copies;
    if (copies == 0) return r->end;
    w->open[w->depth].loop = r->loop;
    w->open[w->depth].body = at + 1;
    w->open[w->depth].number = r->reversed ? copies - 1 : 0;
    w->open[w->depth].left = copies - 1;
    w->open[w->depth].started = false;
    w->open[w->depth].outer_copy = rank->copy_number;
    w->depth++;
    begin_copy(rank, w);
    return at + 1;
}

static uint32_t end_copy(dtm_rank *rank, walk *w, uint32_t at) {
    const dtm_plan_repeat *r = &rank->plan->instructions[at].repeat;
    int top = w->depth - 1;
    if (w->open[top].left > 0) {
        w->open[top].left--;
        w->open[top].started = true;
        w->open[top].number += r->reversed ? -1 : 1;
        begin_copy(rank, w);
        return w->open[top].body;
    }
    rank->copies[r->loop] = 0;
    if (rank->plan->loops[r->loop].microbatch)
        dtm_rank_set_microbatch(rank, 0, false, false);
    else
        dtm_rank_set_copy(rank, w->open[top].outer_copy);
    w->depth--;
    return at + 1;
}

/* ---- instructions ---- */

static bool run_timeline(dtm_rank *rank, const dtm_plan_timeline *t, dtm_status *status);

/* One part of a pair: a walk through its calls, one after another, and where it stands while the other part goes on. */
typedef struct part {
    walk w;
    const dtm_plan_call *call, *last;
    struct part *other;
    struct part *filler; /* the second call of a pair's other part, which may fill; NULL: there is none, or that part has come to it */
    const walk *input;   /* the first call of that part */
    int64_t copy_number;
    int64_t *copies; /* by loop */
    bool fills;      /* nothing is left of it that it would wait for; of `filler`: it fills before its part comes to it */
    bool makes_way;
    bool moved; /* in this turn */
} part;

/* Whether something that is waited for stands in a range of instructions, in a call. */
static bool waits_in(const dtm_rank *rank, const dtm_plan_call *call, uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; i++) {
        const dtm_plan_instruction *at = &rank->plan->instructions[i];
        bool skipped = at->last && !call->last;
        if ((at->kind == DTM_PLAN_COLLECTIVE && !skipped) || at->kind == DTM_PLAN_RECEIVE) return true;
    }
    return false;
}

/* Whether a part waits for something from where it stands on: in what follows, and again in the copies that its loops have left. */
static bool waits_later(const dtm_rank *rank, const part *p) {
    bool waits = p->w.going || waits_in(rank, p->call, p->w.at, p->w.end);
    for (int d = 0; d < p->w.depth && !waits; d++)
        waits = p->w.open[d].left > 0 && waits_in(rank, p->call, p->w.open[d].body, p->w.at);
    for (const dtm_plan_call *call = p->call + 1; call <= p->last && !waits; call++) waits = waits_in(rank, call, call->begin, call->end);
    return waits;
}

/* On a device all is ordered by events, and the walk waits for nothing. */
static bool has_come(const dtm_rank *rank, dtm_collective_request *request) { return rank->device || dtm_collective_has_come(request); }

/* A part that fills, if the other one can go on with what it waits for later. */
static bool is_to_make_way(const dtm_rank *rank, part *p) {
    const part *other = p->other;
    p->fills = p->fills || !waits_later(rank, p);
    if (!(p->fills || dtm_fault(106)) || other->fills || !waits_later(rank, other)) return false;
    if (!other->w.going) return true;
    const dtm_plan_instruction *at = &rank->plan->instructions[other->w.at];
    return at->kind == DTM_PLAN_COLLECTIVE && has_come(rank, &rank->transfers[other->w.at].request);
}

/* What another rank has to do with can be waited for later, if it can be started at all. */
static bool start(dtm_rank *rank, walk *w, dtm_status *status) {
    dtm_plan_kind kind = rank->plan->instructions[w->at].kind;
    if (!dtm_wait_list(rank, &rank->plan->instructions[w->at].waits, status)) return false;
    if (kind == DTM_PLAN_RECEIVE) w->going = true; /* it was posted */
    if (kind == DTM_PLAN_COLLECTIVE && !rank->plan->instructions[w->at].records)
        return dtm_start_collective(rank, w->at, &rank->transfers[w->at].request, false, &w->going, status);
    return true;
}

static bool finish(dtm_rank *rank, walk *w, dtm_status *status) {
    uint32_t at = w->at++;
    w->going = false;
    if (rank->plan->instructions[at].kind != DTM_PLAN_COLLECTIVE) return dtm_run_instruction(rank, at, status);
    return dtm_finish_collective(rank, at, &rank->transfers[at].request, status);
}

static bool is_skipped(const dtm_rank *rank, const dtm_plan_instruction *i) {
    return (rank->forward_only && i->phase != DTM_PLAN_FORWARD) || (i->last && !rank->last);
}

/* ---- what fills ---- */

static void enter_part(dtm_rank *rank, const part *p) {
    rank->copies = p->copies;
    dtm_rank_set_microbatch(rank, p->call->microbatch, !p->call->first, p->call->last);
    dtm_rank_set_copy(rank, p->copy_number);
    dtm_trace_note_call(rank, p->call);
}

/* Whether all instructions of the input gradient before `needs` have run, in the copies in which the one that fills is. Both go through
 * the copies of repeats that they have in common alike. */
static bool has_passed(const dtm_rank *rank, const walk *input, uint32_t needs, const walk *filler) {
    for (int d = 0; d < input->depth; d++) {
        uint32_t body = input->open[d].body;
        if (needs < body || needs >= rank->plan->instructions[body - 1].repeat.end) break;
        int64_t left = d < filler->depth ? filler->open[d].left : 0;
        if (input->open[d].left != left) return input->open[d].left < left;
    }
    return input->at >= needs || dtm_fault(122);
}

static bool is_under_way(const dtm_rank *rank, const dtm_plan_list *events) {
    for (uint32_t i = 0; i < events->count; i++)
        if (rank->transfers[rank->events[events->items[i]]].n_apart) return true;
    return false;
}

/* What fills starts and waits for nothing, as that would be sooner or later by when others come. */
static bool may_fill(const dtm_rank *rank, const part *filler, const walk *input) {
    if (filler->w.at >= filler->w.end) return false;
    const dtm_plan_instruction *i = &rank->plan->instructions[filler->w.at];
    if (i->last && !filler->call->last) return true;
    if (i->kind == DTM_PLAN_REPEAT && filler->w.depth == DEPTH) return false;
    bool meets = i->kind == DTM_PLAN_COLLECTIVE || i->kind == DTM_PLAN_RECEIVE || i->kind == DTM_PLAN_SEND;
    return !meets && !is_under_way(rank, &i->waits) && has_passed(rank, input, i->needs, &filler->w);
}

/* While a part waits for its collective: what fills, of the second part, an instruction at a time. */
static bool fill(dtm_rank *rank, part *waits, dtm_status *status) {
    part *filler = waits->filler;
    dtm_collective_request *request = &rank->transfers[waits->w.at].request;
    bool ok = true, fills = false;
    while (ok && may_fill(rank, filler, waits->input) && !has_come(rank, request)) {
        if (!fills) {
            waits->copy_number = rank->copy_number;
            enter_part(rank, filler);
            fills = true;
        }
        const dtm_plan_instruction *i = &rank->plan->instructions[filler->w.at];
        bool skipped = is_skipped(rank, i);
        if (i->kind == DTM_PLAN_REPEAT) filler->w.at = skipped ? i->repeat.end : enter_loop(rank, &filler->w, filler->w.at);
        else if (i->kind == DTM_PLAN_END) filler->w.at = end_copy(rank, &filler->w, filler->w.at);
        else ok = skipped || dtm_run_instruction(rank, filler->w.at, status), filler->w.at++;
    }
    if (!fills) return true;
    filler->copy_number = rank->copy_number;
    enter_part(rank, waits);
    return ok;
}

/* Goes on; a part of a pair until it has started something, or makes way. */
static bool go_on(dtm_rank *rank, walk *w, part *takes_turns, dtm_status *status) {
    bool filled = w->going && takes_turns && takes_turns->filler && takes_turns->filler->fills;
    if (filled && rank->plan->instructions[w->at].kind == DTM_PLAN_COLLECTIVE && !fill(rank, takes_turns, status)) return false;
    if (takes_turns) takes_turns->moved |= w->going;
    if (w->going && !finish(rank, w, status)) return false;
    while (w->at < w->end) {
        if (takes_turns && (takes_turns->makes_way = is_to_make_way(rank, takes_turns))) return true;
        if (takes_turns) takes_turns->moved = true;
        const dtm_plan_instruction *i = &rank->plan->instructions[w->at];
        bool skipped = is_skipped(rank, i);
        if (i->kind == DTM_PLAN_REPEAT) {
            if (w->depth == DEPTH) return dtm_status_fail(status, "the plan nests more than %d loops", DEPTH);
            w->at = skipped ? i->repeat.end : enter_loop(rank, w, w->at);
        } else if (i->kind == DTM_PLAN_END) {
            w->at = end_copy(rank, w, w->at);
        } else if (i->kind == DTM_PLAN_TIMELINE) {
            if (!run_timeline(rank, &i->timeline, status)) return false;
            w->at = i->timeline.end;
        } else if (i->steps && !takes_turns && !skipped && !rank->device) {
            if (!dtm_run_in_steps(rank, w->at, status)) return false;
            w->at += 1 + i->steps;
        } else {
            if (takes_turns && !skipped && !start(rank, w, status)) return false;
            if (w->going) return true;
            if (!skipped && !dtm_run_instruction(rank, w->at, status)) return false;
            w->at++;
        }
    }
    return true;
}

static bool run(dtm_rank *rank, uint32_t begin, uint32_t end, dtm_status *status) {
    walk w = {.at = begin, .end = end};
    return go_on(rank, &w, NULL, status);
}

/* ---- pairs ---- */

static void begin_call(part *p) {
    p->w.at = p->call->begin;
    p->w.end = p->call->end;
}

static bool has_ended(const part *p) { return p->w.at >= p->w.end && !p->w.going && p->call == p->last; }

/* The second call of a part, as far as it has come while others waited. */
static void go_on_with_filler(dtm_rank *rank, part *p) {
    const part *filler = p->filler;
    p->call++;
    p->w = filler->w;
    p->copies = filler->copies;
    p->copy_number = filler->copy_number;
    p->filler = p->other->filler = NULL;
    enter_part(rank, p);
}

static bool take_turn(dtm_rank *rank, part *p, dtm_status *status) {
    enter_part(rank, p);
    p->moved = false;
    bool ok = go_on(rank, &p->w, p, status);
    while (ok && !p->w.going && !p->makes_way && p->call != p->last) {
        go_on_with_filler(rank, p);
        ok = go_on(rank, &p->w, p, status);
    }
    p->makes_way = false;
    p->copy_number = rank->copy_number;
    return ok;
}

static bool run_pair(dtm_rank *rank, const dtm_plan_call *call, dtm_status *status) {
    int64_t *copies = rank->copies;
    size_t loops = rank->plan->n_loops + 1;
    part parts[2] = {{.call = call, .last = call, .copies = rank->pair_copies},
                     {.call = call + 1, .last = call + call->pair, .copies = rank->pair_copies + loops}};
    part filler = {.call = call + 2, .copies = rank->pair_copies + 2 * loops, .fills = call->fills};
    bool ok = true;
    if (call->pair > 1) begin_call(&filler);
    for (int i = 0; i < 2; i++) {
        parts[i].other = &parts[1 - i];
        parts[i].input = &parts[1].w;
        if (call->pair > 1) parts[i].filler = &filler;
        begin_call(&parts[i]);
    }
    int idle = 0; /* turns */
    for (int turn = call->later; ok && !(has_ended(&parts[0]) && has_ended(&parts[1])); turn = 1 - turn) {
        if (!has_ended(&parts[turn])) ok = take_turn(rank, &parts[turn], status);
        idle = !has_ended(&parts[turn]) && !parts[turn].moved ? idle + 1 : 0;
        if (ok && idle > 1) ok = dtm_status_fail(status, "the parts of a pair make way for each other, and neither goes on");
    }
    rank->copies = copies;
    dtm_rank_set_copy(rank, 0);
    return ok;
}

/* ---- timelines ---- */

/* Of `eval` the calls of the forward pass alone, and what comes and goes for them. */
static bool run_timeline(dtm_rank *rank, const dtm_plan_timeline *t, dtm_status *status) {
    bool ok = true;
    rank->in_timeline = true;
    for (uint32_t i = 0; ok && i < t->n_calls; i++) {
        const dtm_plan_call *call = &t->calls[i];
        bool pair = call->pair && !rank->forward_only;
        if (rank->forward_only && call->task != 'F') continue;
        if (call->kind == DTM_PLAN_RUN) dtm_trace_begin_call(rank, t, i);
        if (call->kind == DTM_PLAN_WAIT) dtm_trace_begin(rank, rank->plan->instructions[call->begin].name, "wait");
        dtm_rank_set_microbatch(rank, call->microbatch, !call->first, call->last);
        if (pair) ok = run_pair(rank, call, status);
        else if (call->kind == DTM_PLAN_RUN) ok = run(rank, call->begin, call->end, status);
        else if (call->kind == DTM_PLAN_POST) ok = dtm_start_message(rank, call->begin, status);
        else ok = dtm_finish_message(rank, call->begin, status);
        if (call->kind == DTM_PLAN_WAIT) dtm_trace_end(rank);
        if (call->kind == DTM_PLAN_RUN) dtm_trace_end_call(rank, t, i);
        if (pair) i += call->pair;
    }
    rank->in_timeline = false;
    dtm_rank_set_microbatch(rank, 0, false, false);
    return ok;
}

bool dtm_rank_start(dtm_rank *rank, dtm_status *status) {
    dtm_profile_entry *profile = rank->profile;
    rank->profile = NULL; /* it is no part of a step */
    bool ok = run(rank, 0, rank->plan->n_start, status);
    rank->profile = profile;
    return ok && (!rank->device || dtm_device_finish(rank, status)); /* its marks are the step's from then on */
}

static bool walk_step(dtm_rank *rank, dtm_status *status) {
    if (rank->device) dtm_cuda_comms_walk(rank);
    if (rank->device && !rank->rehearses) dtm_marks_walk(rank->device);
    return run(rank, rank->plan->n_start, rank->plan->n_instructions, status) && dtm_wait_events(rank, status);
}

bool dtm_rank_rehearse(dtm_rank *rank, dtm_status *status) {
    dtm_profile_entry *profile = rank->profile;
    rank->profile = NULL;
    rank->rehearses = true;
    bool ok = walk_step(rank, status);
    rank->rehearses = false;
    rank->profile = profile;
    return ok;
}

bool dtm_rank_step(dtm_rank *rank, int64_t step, dtm_status *status) {
    rank->step = step;
    rank->n_reports = 0;
    return (rank->device ? dtm_device_step(rank, walk_step, status) : walk_step(rank, status)) && dtm_check_replicas(rank, status);
}

bool dtm_rank_take_step(dtm_rank *rank, int64_t step, dtm_status *status) { return !rank->device || dtm_feed_take(rank, step, status); }
