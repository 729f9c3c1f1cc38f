/* The calls of a pair, interpreted at the same time: two strands, each an operator at a time, of which a lot says which goes
 * on. Whatever the order, each has to find its values in memory as it left them: that is what the checks of storage see. */
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
    const dtm_loop_call *call, *last;
    dtm_op takes; /* the unit that has taken its workspace and comes next; 0: none has */
    frame frames[MOST_FRAMES];
    int depth;
    int64_t current[DTM_MAX_LOOPS]; /* of all loops, while the other strand goes on */
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

static bool begin_call(dtm_run *run, strand *s) {
    run->loops[run->time_loop].current = s->call->microbatch;
    return push(run, s, run->module->ops[s->call->region].body, 0);
}

static bool has_ended(const strand *s) { return !s->depth && s->call == s->last; }

/* One operator, of which taking its workspace is a step before it, or one step into or out of a region. */
static bool step(dtm_run *run, strand *s) {
    if (!s->depth) {
        s->call++;
        return begin_call(run, s);
    }
    frame *f = &s->frames[s->depth - 1];
    run->first_call = s->call->first;
    run->last_call = dtm_loop_call_is_last(s->calls, s->call);
    if (f->at == run->module->regions[f->region].n_ops) {
        f->at = 0;
        f->turn++;
        if (f->repeat) set_turn(run, f);
        if (!f->repeat || f->turn == run->loops[run->op_loops[f->repeat]].copies) s->depth--;
        return true;
    }
    dtm_op op = run->module->regions[f->region].ops[f->at];
    const dtm_op_data *data = &run->module->ops[op];
    bool other_part = dtm_loop_is_paired(s->calls, s->call->region, false);
    if (data->kind != DTM_OP_REPEAT && s->takes != op && dtm_workspace_take(run, op, other_part)) {
        s->takes = op;
        return true;
    }
    f->at++;
    if (s->takes == op && !dtm_workspace_kept(run, op, other_part)) return false;
    s->takes = 0;
    if (data->kind != DTM_OP_REPEAT) return dtm_run_unit(run, op);
    if (!run->loops[run->op_loops[op]].copies) return true;
    if (!push(run, s, data->body, op)) return false;
    set_turn(run, &s->frames[s->depth - 1]);
    return true;
}

static void exchange_loops(dtm_run *run, strand *from, const strand *to) {
    for (size_t l = 0; l < run->n_loops; l++) {
        from->current[l] = run->loops[l].current;
        run->loops[l].current = to->current[l];
    }
}

bool dtm_run_pair(dtm_run *run, const dtm_loop_calls *calls, const dtm_loop_call *call) {
    strand strands[2] = {{.calls = calls, .call = call, .last = call},
                         {.calls = calls, .call = call + 1, .last = call + (call->end - call->begin)}};
    uint64_t lots = run->options.seed * 0x9e3779b97f4a7c15u + (uint64_t)run->step * 8191 + call->index + 1;
    int now = 0;
    for (size_t l = 0; l < run->n_loops; l++) strands[1].current[l] = run->loops[l].current;
    strands[1].current[run->time_loop] = strands[1].call->microbatch;
    if (!begin_call(run, &strands[0]) || !push(run, &strands[1], run->module->ops[strands[1].call->region].body, 0)) return false;
    while (!has_ended(&strands[0]) || !has_ended(&strands[1])) {
        lots ^= lots << 13, lots ^= lots >> 7, lots ^= lots << 17;
        if (has_ended(&strands[now]) || (lots & 1 && !has_ended(&strands[1 - now]))) {
            exchange_loops(run, &strands[now], &strands[1 - now]);
            now = 1 - now;
        }
        if (!step(run, &strands[now])) return false;
    }
    return true;
}
