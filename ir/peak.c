/* The account of memory: what lives in the arena at the moment of a step when most does (storage.h).
 *
 * The step is walked in the order in which it runs. Every operator is a moment; a value lives from the moment that sets it
 * to the last that reads it, both included, in bytes of the arena: what lies at one place at one time (an alias, a result
 * in place of its operand, what is carried on in its slot) is counted once. What an operator takes of the workspace lives
 * at its moment alone.
 *
 *     a loop of at most 7 copies is walked as it is; of a longer one these:
 *
 *         copy      0    1    2  | 3 .. N - 4 |  N - 3  N - 2  N - 1
 *         weight    1    1    1  |   N - 6    |    1      1      1          values of the middle stand for N - 6
 *         looked at *    *                             *      *
 *
 * A loop over microbatches with an order is walked call by call.
 *
 * What lives at an operator is linear in the number of the copy but for the first copy and the last: none in between can
 * have more than the copies next to them. What the copies of the middle set is either all alive or none of it where is
 * looked, since a value reaches no copy but the next, and others through loops over the same copies. */
#include "ir/calls.h"
#include "ir/storage.h"

#include <string.h>

enum { MAX_DEPTH = 16, WALKED = 7, MIDDLE = 3, NO_MOMENT = -1 };

typedef struct loop {
    dtm_op op;
    dtm_string name;
    int64_t copies;
    int walked, now; /* how many copies are walked, and which one is: by number, not by order */
    bool time, reversed, ordered; /* ordered: all copies are walked */
} loop;

/* Loops around each other, outermost first. */
typedef struct nest {
    bool known;
    int depth;
    loop *loops;
} nest;

/* A value in one walked copy. */
typedef struct life {
    uint32_t lies_in, and_in; /* lives whose bytes these are; 0: its own */
    int64_t weight, place;    /* how many copies it stands for, and the first byte in one of them */
    int64_t begin, end, seen; /* moments */
    dtm_value value;
} life;

typedef struct moment {
    dtm_op op;
    int64_t copy; /* of the innermost repeat; -1: in none */
    bool looked_at;
} moment;

typedef struct walker {
    const dtm_module *module;
    dtm_arena *arena;
    const bool *stored;
    dtm_loop_places places; /* of the loop with an order */
    nest *nests; /* by region, twice: that values of it have copies of, and sums over microbatches */
    loop loops[MAX_DEPTH];
    int depth;
    uint32_t *first_life; /* by value */
    life *lives;          /* lives[0] is none */
    size_t n_lives, cap_lives;
    moment *moments;
    size_t n_moments, cap_moments;
} walker;

static const dtm_op_data *op_of(const walker *w, dtm_op op) { return &w->module->ops[op]; }

/* ---- copies ---- */

static bool is_short(const loop *l) { return l->ordered || l->copies <= WALKED; }
static bool is_middle(const loop *l, int copy) { return !is_short(l) && copy == MIDDLE; }
static bool is_looked_at(const loop *l) { return is_short(l) || l->now < 2 || l->now > WALKED - 3; }

static int64_t number_of(const loop *l, int copy) {
    return is_short(l) || copy <= MIDDLE ? copy : l->copies - WALKED + copy;
}

static loop loop_of(const walker *w, dtm_op op) {
    const dtm_op_data *data = op_of(w, op);
    loop l = {.op = op, .name = data->attributes.name, .copies = data->attributes.copies, .time = data->kind == DTM_OP_MICROBATCH,
              .reversed = data->attributes.flags & DTM_REPEAT_REVERSED, .ordered = dtm_loop_is_ordered(w->module, op)};
    l.walked = is_short(&l) ? (int)l.copies : WALKED;
    return l;
}

/* The loops that a value has copies of, outermost first: those around it, but for the microbatches of a sum over them. */
static int loops_of(const walker *w, dtm_value v, const loop **out) {
    dtm_op def = w->module->values[v].def;
    bool sums = op_of(w, def)->kind == DTM_OP_ACCUMULATE;
    nest *n = &w->nests[2 * (size_t)op_of(w, def)->region + sums];
    loop loops[MAX_DEPTH];
    for (dtm_op at = dtm_enclosing(w->module, def, DTM_OP_NONE); at && !n->known; at = dtm_enclosing(w->module, at, DTM_OP_NONE)) {
        const dtm_op_data *data = op_of(w, at);
        if (!dtm_is_loop(data->kind)) continue;
        if (data->kind == DTM_OP_MICROBATCH && sums) continue;
        if (n->depth == MAX_DEPTH) dtm_broken("memory", "loops are nested too deep");
        loops[n->depth++] = loop_of(w, at);
    }
    if (!n->known) n->loops = dtm_arena_alloc(w->arena, (size_t)n->depth * sizeof *n->loops);
    for (int i = 0; i < n->depth && !n->known; i++) n->loops[i] = loops[n->depth - 1 - i];
    n->known = true;
    *out = n->loops;
    return n->depth;
}

static int count_lives(const walker *w, dtm_value v) {
    const loop *loops;
    int depth = loops_of(w, v, &loops), lives = 1;
    for (int d = 0; d < depth; d++) lives *= loops[d].walked;
    return lives;
}

static void add_lives(walker *w, dtm_value v) {
    const loop *loops;
    const dtm_storage *s = &w->module->values[v].storage;
    int depth = loops_of(w, v, &loops), lives = count_lives(w, v);
    w->first_life[v] = (uint32_t)w->n_lives;
    for (int i = 0; i < lives; i++) {
        life l = {0, 0, 1, s->offset, NO_MOMENT, NO_MOMENT, NO_MOMENT, v};
        int64_t copy = 0, batch = 0;
        for (int d = 0, left = i, below = lives; d < depth; d++) {
            int at = left / (below /= loops[d].walked);
            left %= below;
            if (is_middle(&loops[d], at) && !loops[d].time) l.weight *= loops[d].copies - WALKED + 1;
            if (!loops[d].time) copy = copy * loops[d].copies + number_of(&loops[d], at);
            else batch = at;
        }
        if (s->modulus > 1) l.place += (copy + s->shift) % s->modulus * s->stride;
        l.place += dtm_loop_place_bytes(&w->places, s, (size_t)batch);
        DTM_PUSH(w->arena, w->lives, w->n_lives, w->cap_lives, l);
    }
}

/* The life of a value that the operators now walked see: in a loop over the same copies that of its own copy; after the
 * loop, of the copy that ran last. */
static uint32_t life_of(const walker *w, dtm_value v) {
    const loop *loops;
    int depth = loops_of(w, v, &loops), index = 0;
    for (int d = 0; d < depth; d++) {
        int at = loops[d].reversed ? 0 : loops[d].walked - 1;
        for (int i = 0; i < w->depth; i++)
            if (w->loops[i].op == loops[d].op || (!loops[d].time && w->loops[i].name == loops[d].name)) at = w->loops[i].now;
        index = index * loops[d].walked + at;
    }
    return w->first_life[v] + (uint32_t)index;
}

/* ---- moments ---- */

static bool has_place(const walker *w, dtm_value v) {
    return w->module->values[v].def && w->stored[v] && w->module->values[v].storage.offset >= 0;
}

static void next_moment(walker *w, dtm_op op) {
    moment m = {op, -1, true};
    for (int i = 0; i < w->depth; i++) {
        m.looked_at &= is_looked_at(&w->loops[i]);
        if (!w->loops[i].time) m.copy = number_of(&w->loops[i], w->loops[i].now);
    }
    DTM_PUSH(w->arena, w->moments, w->n_moments, w->cap_moments, m);
}

static int64_t now(const walker *w) { return (int64_t)w->n_moments - 1; }

static void keep(walker *w, uint32_t index) {
    life *l = &w->lives[index];
    if (l->seen == now(w)) return;
    l->seen = now(w);
    if (l->and_in) keep(w, l->and_in);
    if (l->lies_in) keep(w, l->lies_in);
    else l->end = now(w);
}

static void begin(walker *w, uint32_t index) {
    life *l = &w->lives[index];
    if (l->begin == NO_MOMENT) l->begin = now(w);
    keep(w, index);
}

static void read_value(walker *w, dtm_value v) {
    if (has_place(w, v)) keep(w, life_of(w, v));
}

/* The bytes of `from` become those of `to`: where both lie at one place nothing happens, else they are copied. */
static void pass_on(walker *w, dtm_op op, uint32_t from, uint32_t to, bool one_place) {
    if (from && one_place) {
        w->lives[to].lies_in = from;
        return;
    }
    next_moment(w, op);
    if (from) keep(w, from);
    begin(w, to);
}

static uint32_t source_of(const walker *w, dtm_value v) { return has_place(w, v) ? life_of(w, v) : 0; }

/* Where a value lies in copy `number` of the innermost loop walked and for others as walked. */
static int64_t place_in(const walker *w, dtm_value v, int64_t number) {
    const loop *loops;
    const dtm_storage *s = &w->module->values[v].storage;
    int64_t copy = 0, batch = 0;
    int depth = loops_of(w, v, &loops);
    for (int d = 0; d < depth; d++) {
        int64_t at = number_of(&loops[d], loops[d].reversed ? 0 : loops[d].walked - 1);
        for (int i = 0; i < w->depth; i++)
            if (w->loops[i].op == loops[d].op) at = i == w->depth - 1 ? number : number_of(&w->loops[i], w->loops[i].now);
        if (!loops[d].time) copy = copy * loops[d].copies + at;
        else batch = at;
    }
    return dtm_loop_place_bytes(&w->places, s, (size_t)batch) + (s->modulus > 1 ? s->offset + (copy + s->shift) % s->modulus * s->stride : s->offset);
}

/* ---- the walk ---- */

static void walk_region(walker *w, dtm_region region);

/* What is carried into the copy at hand: in the first from outside, else from the copy `before`. */
static void walk_carry(walker *w, dtm_op op, int before) {
    const dtm_op_data *data = op_of(w, op);
    loop *l = &w->loops[w->depth - 1];
    dtm_value x = data->results[0], source = data->operands[before >= 0];
    uint32_t to = life_of(w, x);
    int copy = l->now;
    if (before < 0) {
        int64_t place = place_in(w, x, number_of(l, copy));
        w->depth--;
        uint32_t from = source_of(w, source);
        bool one_place = from && w->lives[from].place == place;
        w->depth++;
        pass_on(w, op, from, to, one_place);
        return;
    }
    l->now = before;
    uint32_t from = source_of(w, source);
    l->now = copy;
    /* the copies side by side, where one of both is the middle: */
    int64_t number = number_of(l, copy), number_before = number_of(l, before);
    if (is_middle(l, copy)) number = l->reversed ? number_before - 1 : number_before + 1;
    else number_before = l->reversed ? number + 1 : number - 1;
    bool one_place = from && place_in(w, source, number_before) == place_in(w, x, number);
    pass_on(w, op, from, to, one_place);
    if (one_place && is_middle(l, copy)) w->lives[to].and_in = source_of(w, source); /* in the middle, of the one before */
}

static void walk_carries(walker *w, dtm_region region, int before) {
    const dtm_region_data *body = &w->module->regions[region];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *data = op_of(w, body->ops[i]);
        if (data->body && !dtm_is_loop(data->kind) && data->kind != DTM_OP_FUSED) walk_carries(w, data->body, before);
        if (data->kind == DTM_OP_CARRY && has_place(w, data->results[0])) walk_carry(w, body->ops[i], before);
    }
}

static void walk_calls(walker *w, dtm_op op) {
    dtm_loop_calls calls;
    if (dtm_loop_calls_of(w->module, op, w->arena, &calls)) dtm_broken("memory", "an order of microbatches that was not verified");
    for (size_t i = 0; i < calls.count; i++) {
        w->loops[w->depth - 1].now = (int)calls.items[i].microbatch;
        walk_region(w, op_of(w, calls.items[i].region)->body);
    }
}

static void walk_loop(walker *w, dtm_op op) {
    const dtm_op_data *data = op_of(w, op);
    if (w->depth == MAX_DEPTH) dtm_broken("memory", "loops are nested too deep");
    loop l = loop_of(w, op);
    w->loops[w->depth++] = l;
    if (l.ordered) walk_calls(w, op);
    if (l.ordered) l.walked = 0;
    for (int i = 0, before = -1; i < l.walked; i++) {
        int copy = l.reversed ? l.walked - 1 - i : i;
        w->loops[w->depth - 1].now = copy;
        walk_carries(w, data->body, before);
        walk_region(w, data->body);
        before = copy;
    }
    w->depth--;
}

static void begin_results(walker *w, const dtm_op_data *data) {
    for (uint32_t i = 0; i < data->n_results; i++)
        if (has_place(w, data->results[i])) begin(w, life_of(w, data->results[i]));
}

static void walk_unit(walker *w, dtm_op op) {
    const dtm_op_data *data = op_of(w, op);
    next_moment(w, op);
    for (uint32_t i = 0; i < data->n_operands; i++) read_value(w, data->operands[i]);
    begin_results(w, data);
    if (data->kind != DTM_OP_FUSED) return;
    const dtm_region_data *body = &w->module->regions[data->body];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *inside = op_of(w, body->ops[i]);
        for (uint32_t k = 0; k < inside->n_operands; k++) {
            dtm_op def = w->module->values[inside->operands[k]].def;
            if (def && dtm_unit_of(w->module, def) != op) read_value(w, inside->operands[k]);
        }
        begin_results(w, inside);
    }
}

static bool is_variable(dtm_op_kind kind) { return kind == DTM_OP_WEIGHT || kind == DTM_OP_STATE; }

/* `last`, and what is seen under another type. */
static void walk_move(walker *w, dtm_op op) {
    uint32_t from = source_of(w, op_of(w, op)->operands[0]), to = life_of(w, op_of(w, op)->results[0]);
    pass_on(w, op, from, to, from && w->lives[from].place == w->lives[to].place);
}

static void walk_region(walker *w, dtm_region region) {
    const dtm_region_data *body = &w->module->regions[region];
    for (size_t i = 0; i < body->n_ops; i++) {
        dtm_op op = body->ops[i];
        const dtm_op_data *data = op_of(w, op);
        bool moves = (data->kind == DTM_OP_LAST || dtm_is_alias(w->module, op)) && has_place(w, data->results[0]);
        if (dtm_is_loop(data->kind)) walk_loop(w, op);
        else if (data->body && data->kind != DTM_OP_FUSED) walk_region(w, data->body);
        else if (moves) walk_move(w, op);
        else if (data->kind != DTM_OP_CARRY && !is_variable(data->kind)) walk_unit(w, op);
    }
}

/* ---- kinds ---- */

enum { WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, KINDS };

/* Marks v and what it is made of by moving, adding and summing over ranks or microbatches alone. */
static void mark_gradient(const dtm_module *module, dtm_value v, bool *gradient) {
    dtm_op def = module->values[v].def;
    if (!def || gradient[v]) return;
    gradient[v] = true;
    const dtm_op_data *data = &module->ops[def];
    bool adds = data->kind == DTM_OP_ADD || data->kind == DTM_OP_CARRY || data->kind == DTM_OP_LAST ||
                data->kind == DTM_OP_ACCUMULATE || data->kind == DTM_OP_AS_TERM || dtm_is_alias(module, def);
    for (uint32_t i = 0; i < data->n_operands; i++)
        if (adds || (data->kind == DTM_OP_DOT && i == 2) ||
            (dtm_runs_collective(data->kind) && data->results[i] == v))
            mark_gradient(module, data->operands[i], gradient);
}

static uint8_t *kinds_of(const walker *w) {
    const dtm_module *module = w->module;
    uint8_t *kinds = dtm_arena_alloc(w->arena, module->n_values);
    bool *gradient = dtm_arena_alloc(w->arena, module->n_values);
    for (dtm_op op = 1; op < module->n_ops; op++)
        if (module->ops[op].region && module->ops[op].kind == DTM_OP_GRADIENT)
            mark_gradient(module, module->ops[op].operands[1], gradient);
    for (dtm_value v = 1; v < module->n_values; v++) {
        dtm_op_kind kind = module->values[v].def ? op_of(w, module->values[v].def)->kind : DTM_OP_NONE;
        kinds[v] = kind == DTM_OP_WEIGHT ? WEIGHTS : kind == DTM_OP_STATE ? OPTIMIZER : gradient[v] ? GRADIENTS : ACTIVATIONS;
    }
    return kinds;
}

/* ---- sums ---- */

static bool goes_first(const life *a, const life *b) {
    return a->place != b->place ? a->place < b->place : a->begin < b->begin;
}

/* Merge sort, by place and begin; equals as they come. */
static void sort_lives(life **items, life **scratch, size_t count) {
    if (count < 2) return;
    size_t half = count / 2, i = 0, j = half, n = 0;
    sort_lives(items, scratch, half);
    sort_lives(items + half, scratch, count - half);
    while (i < half || j < count)
        scratch[n++] = j < count && (i == half || goes_first(items[j], items[i])) ? items[j++] : items[i++];
    memcpy(items, scratch, count * sizeof *items);
}

/* changes[m]: by how many bytes of each kind moment m has more than the one before. */
static void add_up(const walker *w, int64_t (*changes)[KINDS]) {
    const uint8_t *kinds = kinds_of(w);
    int64_t *bytes_of = dtm_arena_alloc(w->arena, w->module->n_values * sizeof *bytes_of);
    for (dtm_value v = 1; v < w->module->n_values; v++)
        if (has_place(w, v)) bytes_of[v] = dtm_storage_round(dtm_local_bytes_max(w->module, w->module->values[v].type));
    life **own = dtm_arena_alloc(w->arena, w->n_lives * sizeof *own);
    life **scratch = dtm_arena_alloc(w->arena, w->n_lives * sizeof *own);
    size_t count = 0;
    for (size_t i = 1; i < w->n_lives; i++)
        if (!w->lives[i].lies_in && w->lives[i].begin != NO_MOMENT) own[count++] = &w->lives[i];
    sort_lives(own, scratch, count);
    int64_t place = -1, end = -1;
    for (size_t i = 0; i < count; i++) {
        life *l = own[i];
        if (l->place != place) end = -1;
        place = l->place;
        int64_t from = l->begin > end ? l->begin : end + 1;
        if (l->end < from) continue;
        end = l->end;
        int64_t bytes = l->weight * bytes_of[l->value];
        changes[from][kinds[l->value]] += bytes;
        changes[end + 1][kinds[l->value]] -= bytes;
    }
}

/* Weights and states live through the whole step. */
static void begin_variables(walker *w) {
    for (size_t i = 1; i < w->n_lives; i++) {
        dtm_op def = w->module->values[w->lives[i].value].def;
        if (!is_variable(op_of(w, def)->kind)) continue;
        w->lives[i].begin = 0;
        w->lives[i].end = now(w);
    }
}

dtm_memory_account dtm_memory_account_of(const dtm_module *module) {
    walker w = {.module = module, .arena = dtm_arena_create()};
    w.stored = dtm_stored(module, w.arena);
    if (dtm_loop_places_of(module, dtm_rank_loop(module), w.arena, &w.places)) dtm_broken("memory", "places that were not verified");
    w.nests = dtm_arena_alloc(w.arena, 2 * module->n_regions * sizeof *w.nests);
    w.first_life = dtm_arena_alloc(w.arena, module->n_values * sizeof *w.first_life);
    w.cap_lives = w.n_lives = 1;
    for (dtm_value v = 1; v < module->n_values; v++)
        if (has_place(&w, v)) w.cap_lives += (size_t)count_lives(&w, v);
    w.lives = dtm_arena_alloc(w.arena, w.cap_lives * sizeof *w.lives);
    for (dtm_value v = 1; v < module->n_values; v++)
        if (has_place(&w, v)) add_lives(&w, v);
    next_moment(&w, 0); /* the begin of the step */
    walk_region(&w, module->body);
    begin_variables(&w);
    int64_t(*changes)[KINDS] = dtm_arena_alloc(w.arena, (w.n_moments + 1) * sizeof *changes);
    add_up(&w, changes);

    dtm_memory_account account = {0};
    int64_t *workspace = dtm_arena_alloc(w.arena, module->n_ops * sizeof *workspace); /* 1 more than the bytes */
    int64_t alive[KINDS] = {0}, most = -1, constants = dtm_constants_bytes(module);
    int64_t apart = dtm_workspace_of_apart(module, NULL) + dtm_workspace_of_pairs(module);
    for (size_t m = 0; m < w.n_moments; m++) {
        const moment *at = &w.moments[m];
        if (at->op && !workspace[at->op])
            workspace[at->op] = 1 + (dtm_is_apart(module, at->op) ? 0 : dtm_storage_round(dtm_workspace_bytes(module, at->op)));
        int64_t used = at->op ? workspace[at->op] - 1 : 0, all = constants + apart + used;
        for (int k = 0; k < KINDS; k++) all += alive[k] += changes[m][k];
        if (!at->looked_at || all <= most) continue;
        most = all;
        bool sends = at->op && dtm_runs_collective(module->ops[at->op].kind);
        account = (dtm_memory_account){alive[WEIGHTS], alive[GRADIENTS], alive[OPTIMIZER], alive[ACTIVATIONS],
                                       constants + (sends ? 0 : used), apart + (sends ? used : 0), module->arena_bytes - all,
                                       at->op, at->copy};
    }
    dtm_arena_destroy(w.arena);
    return account;
}

/* ---- where it is ---- */

static dtm_value subject_of(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    if (data->kind == DTM_OP_FUSED) {
        const dtm_region_data *body = &module->regions[data->body];
        for (size_t i = body->n_ops; i-- > 0;) {
            dtm_value result = module->ops[body->ops[i]].results[0];
            if (module->values[result].storage.offset >= 0) return result;
        }
    }
    return data->n_results ? data->results[0] : data->n_operands ? data->operands[0] : 0;
}

const char *dtm_peak_text(const dtm_module *module, const dtm_memory_account *account, bool files, dtm_arena *arena) {
    dtm_text text = {arena, NULL, 0, 0};
    if (!account->peak) return dtm_arena_printf(arena, "the begin of the step");
    const dtm_op_data *op = &module->ops[account->peak];
    dtm_value subject = subject_of(module, account->peak);
    if (subject) dtm_text_printf(&text, "%s = ", dtm_value_name(module, subject));
    dtm_text_printf(&text, "%s", dtm_op_rows[op->kind].name);
    for (dtm_op_kind phase = DTM_OP_FORWARD; phase <= DTM_OP_UPDATE; phase++)
        if (dtm_enclosing(module, account->peak, phase)) dtm_text_printf(&text, ", %s", dtm_op_rows[phase].name);
    dtm_op repeat = dtm_enclosing(module, account->peak, DTM_OP_REPEAT);
    if (repeat && account->copy >= 0)
        dtm_text_printf(&text, " %s %lld", dtm_string_text(module->context, module->ops[repeat].attributes.name),
                        (long long)account->copy);
    if (op->place.line && op->place.file && files)
        dtm_text_printf(&text, ", %s:%u", dtm_string_text(module->context, op->place.file), op->place.line);
    else if (op->place.line)
        dtm_text_printf(&text, ", line %u", op->place.line);
    return text.data;
}
