/* schedule, first part: the backward pass of a stage, divided in input gradient I, for which another stage waits, and weight
 * gradient W, which may come any time later.
 *
 *     backward stage = 1 {                                       backward stage = 1 {
 *         d_y = receive(on pp, peer = 2)                             d_y = receive(on pp, peer = 2)
 *         repeat layer = 2 reversed {                                repeat layer = 2 reversed {
 *             d_h = carry(d_y, d_x)                                      d_h = carry(d_y, d_x)
 *             d_x = dot(d_h, w over F)                 becomes           d_x = dot(d_h, w over F)
 *             d_w.term = dot(x, d_h over B)                          }
 *             d_w = accumulate(d_w.term)                             d_x.out = last(d_x)
 *         }                                                          send(d_x.out on pp, peer = 0)
 *         d_x.out = last(d_x)                                    }
 *         send(d_x.out on pp, peer = 0)                          backward stage = 1, weights {
 *     }                                                              repeat layer = 2 reversed {
 *                                                                        d_w.term = dot(x, d_h over B)
 *                                                                        d_w = accumulate(d_w.term)
 *                                                                    }
 *                                                                }
 *
 * The rule. I has
 *   - what is sent, and what another region of the loop reads (the next stage, where it is on the same rank); and what is
 *     received, so that messages keep the order of the I;
 *   - gradients that go from copy to copy of a repeat: a `carry` that the body reads for more than to add to it. So the first
 *     stage, of which nothing is sent, is divided as others are, and what follows its repeat (the embedding's rows) is W.
 *     A carry that is but added to is a sum (of the gradients of a weight set outside the repeat) and goes with its terms;
 *   - all from which one of these is made. What both parts need is thus made in I, once;
 *   - what is no work and belongs to its operand's place: `carry` and `last` of a value made in I, and `accumulate` of one,
 *     which so need not be kept until W (the second result of a norm's gradient).
 * W has all else. It reads what I made, each copy of a repeat that of the same copy; I reads nothing of W. No operator is in
 * both, or lost. A part that would have nothing is left out. */
#include "passes/schedule.h"
#include "ir/calls.h"
#include "ir/fault.h"

#include <string.h>

typedef struct splitter {
    dtm_module *module;
    dtm_arena *scratch;
    size_t n_ops;
    dtm_op *region;   /* by operator: the region of the loop over microbatches it stands in, 0: none */
    bool *input;      /* by operator: in I */
    bool *seen;       /* by operator: on the way from a carry */
    dtm_op **readers; /* by value, zero-terminated */
    dtm_op_list fresh; /* in I, what they read not yet */
} splitter;

static dtm_op_data *get(const splitter *s, dtm_op op) { return dtm_op_get(s->module, op); }
static dtm_op def_of(const splitter *s, dtm_value value) { return dtm_value_get(s->module, value)->def; }

static bool is_backward(const splitter *s, dtm_op region) { return region && get(s, region)->kind == DTM_OP_BACKWARD; }

/* ---- what there is ---- */

static void find_regions(splitter *s, dtm_op region, dtm_region body) {
    for (size_t i = 0; i < s->module->regions[body].n_ops; i++) {
        dtm_op op = s->module->regions[body].ops[i];
        s->region[op] = region;
        if (get(s, op)->body) find_regions(s, region, get(s, op)->body);
    }
}

static void find_readers(splitter *s) {
    uint32_t *counts = dtm_use_counts(s->module, s->scratch);
    uint32_t *filled = dtm_arena_alloc(s->scratch, s->module->n_values * sizeof *filled);
    s->readers = dtm_arena_alloc(s->scratch, s->module->n_values * sizeof *s->readers);
    for (size_t v = 1; v < s->module->n_values; v++)
        s->readers[v] = dtm_arena_alloc(s->scratch, (counts[v] + 1) * sizeof **s->readers);
    for (dtm_op op = 1; op < s->n_ops; op++)
        for (uint32_t i = 0; get(s, op)->region && i < get(s, op)->n_operands; i++) {
            dtm_value value = get(s, op)->operands[i];
            s->readers[value][filled[value]++] = op;
        }
}

/* ---- I ---- */

static void need(splitter *s, dtm_op op, dtm_op region) {
    if (!op || s->input[op] || s->region[op] != region) return;
    s->input[op] = true;
    DTM_PUSH(s->scratch, s->fresh.items, s->fresh.count, s->fresh.capacity, op);
}

static bool is_within(const splitter *s, dtm_op op, dtm_op structure) {
    for (dtm_op at = dtm_enclosing(s->module, op, DTM_OP_NONE); at; at = dtm_enclosing(s->module, at, DTM_OP_NONE))
        if (at == structure) return true;
    return false;
}

/* Whether, within a repeat, a value is read for more than to be added to a sum. */
static bool is_worked_on(splitter *s, dtm_value value, dtm_op repeat) {
    for (dtm_op *reader = s->readers[value]; *reader; reader++) {
        if (s->seen[*reader] || !is_within(s, *reader, repeat)) continue;
        s->seen[*reader] = true;
        dtm_op_kind kind = get(s, *reader)->kind;
        if (kind == DTM_OP_ACCUMULATE) continue;
        if (kind != DTM_OP_ADD && kind != DTM_OP_CARRY && kind != DTM_OP_LAST) return true;
        if (is_worked_on(s, get(s, *reader)->results[0], repeat)) return true;
    }
    return false;
}

static bool goes_along_copies(splitter *s, dtm_op op) {
    if (get(s, op)->kind != DTM_OP_CARRY || dtm_fault(77)) return false;
    memset(s->seen, 0, s->n_ops * sizeof *s->seen);
    return is_worked_on(s, get(s, op)->results[0], dtm_enclosing(s->module, op, DTM_OP_REPEAT));
}

static bool is_awaited(const splitter *s, dtm_op op) {
    const dtm_op_data *data = get(s, op);
    if (data->kind == DTM_OP_SEND || data->kind == DTM_OP_RECEIVE) return true;
    if (data->kind == DTM_OP_ACCUMULATE) return false;
    for (uint32_t i = 0; i < data->n_results; i++)
        for (dtm_op *reader = s->readers[data->results[i]]; *reader; reader++)
            if (s->region[*reader] != s->region[op] && !dtm_fault(76)) return true;
    return false;
}

/* `carry`, `last` and `accumulate` of what I makes. */
static bool belongs_to_input(const splitter *s, dtm_op op) {
    const dtm_op_data *data = get(s, op);
    bool follows = data->kind == DTM_OP_CARRY || data->kind == DTM_OP_LAST ||
                   (data->kind == DTM_OP_ACCUMULATE && !dtm_fault(78));
    if (!follows) return false;
    dtm_op def = def_of(s, data->operands[data->kind == DTM_OP_CARRY]);
    return def && s->input[def] && s->region[def] == s->region[op];
}

static void find_input(splitter *s) {
    for (dtm_op op = 1; op < s->n_ops; op++)
        if (is_backward(s, s->region[op]) && (is_awaited(s, op) || goes_along_copies(s, op))) need(s, op, s->region[op]);
    while (s->fresh.count) {
        while (s->fresh.count) {
            dtm_op op = s->fresh.items[--s->fresh.count];
            for (uint32_t i = 0; i < get(s, op)->n_operands; i++) need(s, def_of(s, get(s, op)->operands[i]), s->region[op]);
        }
        for (dtm_op op = 1; op < s->n_ops; op++)
            if (is_backward(s, s->region[op]) && belongs_to_input(s, op)) need(s, op, s->region[op]);
    }
}

/* ---- the division ---- */

static bool has_part(const splitter *s, dtm_region body, bool input) {
    for (size_t i = 0; i < s->module->regions[body].n_ops; i++) {
        dtm_op op = s->module->regions[body].ops[i];
        if (get(s, op)->body ? has_part(s, get(s, op)->body, input) : s->input[op] == input) return true;
    }
    return false;
}

/* Moves what is W from one body to the other; a repeat that has both becomes two over the same copies. */
static void divide(splitter *s, dtm_region from, dtm_region to) {
    size_t count = s->module->regions[from].n_ops;
    dtm_op *ops = dtm_arena_alloc(s->scratch, count * sizeof *ops);
    if (count) memcpy(ops, s->module->regions[from].ops, count * sizeof *ops);
    for (size_t i = 0; i < count; i++) {
        dtm_region body = get(s, ops[i])->body;
        bool input = body ? has_part(s, body, true) : s->input[ops[i]];
        if (!input) {
            dtm_op_move(s->module, ops[i], to, -1);
        } else if (body && has_part(s, body, false)) {
            dtm_attributes attributes = get(s, ops[i])->attributes;
            dtm_builder b = dtm_builder_at_end(s->module, to);
            b.span = get(s, ops[i])->span;
            b.place = get(s, ops[i])->place;
            dtm_op made = dtm_build_region(&b, get(s, ops[i])->kind, &attributes);
            divide(s, body, get(s, made)->body);
        }
    }
}

static void divide_stage(splitter *s, dtm_op op) {
    if (!has_part(s, get(s, op)->body, false)) return;
    dtm_attributes attributes = get(s, op)->attributes;
    attributes.flags |= DTM_BACKWARD_WEIGHTS;
    if (!has_part(s, get(s, op)->body, true)) {
        get(s, op)->attributes = attributes;
        return;
    }
    dtm_builder b = dtm_builder_after(s->module, op);
    dtm_op made = dtm_build_region(&b, DTM_OP_BACKWARD, &attributes);
    divide(s, get(s, op)->body, get(s, made)->body);
}

void schedule_split(dtm_module *module) {
    dtm_op loop = dtm_rank_loop(module);
    if (!loop) return;
    splitter s = {.module = module, .scratch = dtm_arena_create(), .n_ops = module->n_ops};
    s.region = dtm_arena_alloc(s.scratch, s.n_ops * sizeof *s.region);
    s.input = dtm_arena_alloc(s.scratch, s.n_ops * sizeof *s.input);
    s.seen = dtm_arena_alloc(s.scratch, s.n_ops * sizeof *s.seen);
    const dtm_region_data *body = &module->regions[get(&s, loop)->body];
    size_t count = body->n_ops;
    dtm_op *regions = dtm_arena_alloc(s.scratch, count * sizeof *regions);
    if (count) memcpy(regions, body->ops, count * sizeof *regions);
    for (size_t i = 0; i < count; i++)
        if (get(&s, regions[i])->body) find_regions(&s, regions[i], get(&s, regions[i])->body);
    find_readers(&s);
    find_input(&s);
    for (size_t i = 0; i < count; i++)
        if (is_backward(&s, regions[i])) divide_stage(&s, regions[i]);
    dtm_arena_destroy(s.scratch);
}
