/* The calls of a pair, interpreted at the same time: two strands, or a third one that fills (ir/fills.h), each an operator at a time,
 * of which a lot says which goes on. Whatever the order, each has to find its values in memory as it left them: that is what the
 * checks of storage see. What fills goes on where what it needs of the input gradient has been made. */
#include "ir/fills.h"
#include "passes/interpret_state.h"

#include <string.h>

enum { MOST_FRAMES = 2 * DTM_MAX_DEPTH };

/* A region that is being gone through; of a repeat, once a copy. */
typedef struct frame {
    dtm_region region;
    size_t at;
    dtm_op repeat; /* 0: none */
    int64_t turn;
} frame;

typedef struct strand {
    const dtm_loop_calls *calls;
    const dtm_loop_call *call;
    int64_t aside; /* of its workspace */
    bool ended;
    dtm_op takes; /* the unit that has taken its workspace and comes next; 0: none has */
    frame frames[MOST_FRAMES];
    int depth;
    int64_t current[DTM_MAX_LOOPS]; /* of all loops, while another strand goes on */
} strand;

static bool push(dtm_run *run, strand *s, dtm_region region, dtm_op repeat) {
    if (s->depth == MOST_FRAMES) return dtm_run_error(run, NULL, "more than %d regions in each other", MOST_FRAMES);
    s->frames[s->depth++] = (frame){region, 0, repeat, 0};
    return true;
}

static void set_turn(dtm_run *run, const frame *f) {
    const dtm_op_data *repeat = &run->module->ops[f->repeat];
    dtm_loop *loop = &run->loops[run->op_loops[f->repeat]];
    bool ended = f->turn == loop->copies;
    loop->current = ended ? -1 : repeat->attributes.flags & DTM_REPEAT_REVERSED ? loop->copies - 1 - f->turn : f->turn;
}

/* The operator to come; 0: the region ends. */
static dtm_op comes_next(const dtm_run *run, const strand *s) {
    const frame *f = &s->frames[s->depth - 1];
    const dtm_region_data *region = &run->module->regions[f->region];
    return f->at < region->n_ops ? region->ops[f->at] : 0;
}

/* One operator, of which taking its workspace is a step before it, or one step into or out of a region. */
static bool step(dtm_run *run, strand *s) {
    frame *f = &s->frames[s->depth - 1];
    dtm_op op = comes_next(run, s);
    run->first_call = s->call->first;
    run->last_call = dtm_loop_call_is_last(s->calls, s->call);
    if (!op) {
        f->at = 0;
        f->turn++;
        if (f->repeat) set_turn(run, f);
        bool ended = !f->repeat || f->turn == run->loops[run->op_loops[f->repeat]].copies;
        if (ended) s->depth--;
        s->ended = !s->depth;
        return ended || dtm_run_enter(run, f->region);
    }
    const dtm_op_data *data = &run->module->ops[op];
    if (data->kind != DTM_OP_REPEAT && s->takes != op && dtm_workspace_take(run, op, s->aside)) {
        s->takes = op;
        return true;
    }
    f->at++;
    if (s->takes == op && !dtm_workspace_kept(run, op, s->aside)) return false;
    s->takes = 0;
    if (data->kind != DTM_OP_REPEAT) return dtm_run_unit(run, op);
    if (!run->loops[run->op_loops[op]].copies) return true;
    if (!push(run, s, data->body, op)) return false;
    set_turn(run, &s->frames[s->depth - 1]);
    return dtm_run_enter(run, data->body);
}

/* ---- what fills ---- */

/* Where an operator, or what it stands in, stands in the region of a frame. */
static size_t place_in(const dtm_run *run, const frame *f, dtm_op op) {
    while (run->module->ops[op].region != f->region) op = run->module->regions[run->module->ops[op].region].parent;
    return (size_t)dtm_op_position(run->module, op);
}

/* Whether a strand has run an operator, or a repeat whole, in the copies in which `filler` is. */
static bool has_run(const dtm_run *run, const strand *s, dtm_op op, const strand *filler) {
    for (int d = 0; d < s->depth; d++) {
        const frame *f = &s->frames[d], *in = &s->frames[d + 1];
        size_t place = place_in(run, f, op);
        bool inside = d + 1 < s->depth && f->at == place + 1, itself = run->module->regions[f->region].ops[place] == op;
        if (!inside || itself) return !inside && f->at > place;
        int64_t turn = d + 1 < filler->depth ? filler->frames[d + 1].turn : run->loops[run->op_loops[in->repeat]].copies - 1;
        if (in->turn != turn) return in->turn > turn;
    }
    return s->ended;
}

static bool may_go_on(const dtm_run *run, const dtm_order *order, const strand *strands, int which) {
    const strand *s = &strands[which];
    dtm_op op = s->ended ? 0 : comes_next(run, s), needed = op && which == 2 ? dtm_needed_of_input(run->module, order, op) : 0;
    return !s->ended && (!needed || strands[1].ended || has_run(run, &strands[1], needed, s));
}

/* ---- the pair ---- */

static void exchange_loops(dtm_run *run, strand *from, const strand *to) {
    for (size_t l = 0; l < run->n_loops; l++) {
        from->current[l] = run->loops[l].current;
        run->loops[l].current = to->current[l];
    }
}

bool dtm_run_pair(dtm_run *run, const dtm_loop_calls *calls, const dtm_loop_call *call) {
    dtm_arena *arena = dtm_arena_create();
    dtm_order order = dtm_order_of(run->module, arena);
    strand strands[3] = {{.ended = true}, {.ended = true}, {.ended = true}};
    uint64_t lots = run->options.seed * 0x9e3779b97f4a7c15u + (uint64_t)run->step * 8191 + call->index + 1;
    int n = (int)(call->end - call->begin) + 1, now = 0;
    bool done = true;
    for (int i = 0; done && i < n; i++) {
        strand *s = &strands[i];
        *s = (strand){.calls = calls, .call = call + i, .aside = dtm_workspace_aside(run->module, call[i].region)};
        for (size_t l = 0; l < run->n_loops; l++) s->current[l] = run->loops[l].current;
        s->current[run->time_loop] = s->call->microbatch;
        done = push(run, s, run->module->ops[s->call->region].body, 0);
    }
    run->loops[run->time_loop].current = call->microbatch;
    while (done && (!strands[0].ended || !strands[1].ended || !strands[2].ended)) {
        lots ^= lots << 13, lots ^= lots >> 7, lots ^= lots << 17;
        int next = lots & 1 ? (int)((lots >> 8) % (uint64_t)n) : now;
        while (!may_go_on(run, &order, strands, next)) next = (next + 1) % n;
        if (next != now) exchange_loops(run, &strands[now], &strands[next]);
        now = next;
        done = step(run, &strands[now]);
    }
    dtm_arena_destroy(arena);
    return done;
}
