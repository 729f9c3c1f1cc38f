/* Dijkstra's search over the layouts of one tensor (relayout.h).
 *
 * What both ends have alike is left alone: an axis takes part only where it lies differently in them, and in a dimension
 * only behind the axes that split it first in both. Of those that take part, what the end leaves whole is reduced over all
 * its pending axes at once, and what it splits is scattered; on the way they may split any dimension that either end splits,
 * and one more. With more than MOST_FREE axes what splits a dimension is always a prefix (major axes first) of what splits
 * it at the start or at the end, so that every step undoes the start or builds the end, and the layouts stay few. A permute
 * goes straight to the end's blocks. Nothing on the way is larger than the larger of both ends: a change of layout takes no
 * memory beyond theirs. */
#include "passes/relayout.h"

#include <string.h>

enum { MOST_STATES = 4096, MOST_FREE = 3 };

typedef struct node {
    dtm_type type;
    double time;
    int32_t before; /* the node this one was reached from, -1 at the start */
    bool done;
    uint8_t steps;
    dtm_relayout_step step;
} node;

typedef struct search {
    dtm_module *module;
    dtm_arena *scratch;
    dtm_type_data from, to;
    int kept[DTM_MAX_RANK]; /* by dimension: how many of its first axes stay */
    uint16_t moving, times; /* the axes that take part; those in time */
    uint8_t dims;           /* bit d: they may split dimension d on the way */
    int64_t most_bytes;
    node *nodes;
    size_t count, capacity;
    int32_t at; /* the node being left */
} search;

static uint16_t bit(int axis) { return (uint16_t)(1 << axis); }

/* ---- what takes part ---- */

static bool same_split(dtm_split a, dtm_split b) { return a.axis == b.axis && a.unit == b.unit; }

static int common(const dtm_dim_layout *a, const dtm_dim_layout *b) {
    int count = 0;
    while (count < a->count && count < b->count && same_split(a->splits[count], b->splits[count])) count++;
    return count;
}

static uint16_t behind(const dtm_dim_layout *layout, int kept) {
    uint16_t axes = 0;
    for (int s = kept; s < layout->count; s++) axes |= bit(layout->splits[s].axis);
    return axes;
}

/* Beside the dimensions that are split differently one more, the largest, to scatter over where those cannot be. */
static void find_dims(search *s) {
    int spare = -1;
    int64_t largest = 1;
    for (int d = 0; d < s->from.rank; d++) {
        if ((behind(&s->from.layout[d], s->kept[d]) | behind(&s->to.layout[d], s->kept[d])) != 0) {
            s->dims |= (uint8_t)(1 << d);
        } else if (dtm_block_max(s->module, &s->from, d) > largest) {
            largest = dtm_block_max(s->module, &s->from, d);
            spare = d;
        }
    }
    if (spare >= 0 && s->moving & (s->moving - 1)) s->dims |= (uint8_t)(1 << spare);
}

static void find_moving(search *s) {
    s->moving = (s->from.sum ^ s->to.sum) | (s->from.max ^ s->to.max);
    for (int d = 0; d < s->from.rank; d++) {
        s->kept[d] = common(&s->from.layout[d], &s->to.layout[d]);
        s->moving |= behind(&s->from.layout[d], s->kept[d]) | behind(&s->to.layout[d], s->kept[d]);
    }
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        if (s->module->settings.mesh.axes[a].time) s->times |= bit(a);
    find_dims(s);
}

static bool is_free(const search *s) { return __builtin_popcount(s->moving) <= MOST_FREE; }

/* ---- reaching a layout ---- */

/* What a step costs. What is still a term of an axis in time is sent once a microbatch. */
static double step_time(const search *s, dtm_op_kind kind, uint16_t axes, const dtm_type_data *from,
                        const dtm_type_data *to) {
    dtm_collective_cost cost = dtm_step_cost(s->module, kind, axes, from, to);
    double times = 1;
    /* Microbatches are not there side by side: nothing can be gathered or moved over them. */
    bool moves = kind != DTM_OP_ALL_REDUCE && kind != DTM_OP_SHARD && kind != DTM_OP_AS_TERM;
    if (moves && axes & s->times) return 1e6;
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        if ((s->times & (to->sum | to->max)) >> a & 1) times *= (double)s->module->settings.mesh.axes[a].size;
    /* Equal times are decided by what crosses the fewest steps and the least memory, and against a permute. */
    return cost.time * times + (kind == DTM_OP_PERMUTE ? 1e-10 : 1e-12) + 1e-18 * (double)cost.payload;
}

/* An axis in time splits a dimension before all others. */
static bool is_lawful(const search *s, const dtm_type_data *type) {
    for (int d = 0; d < type->rank; d++)
        for (int i = 1; i < type->layout[d].count; i++)
            if (s->times >> type->layout[d].splits[i].axis & 1) return false;
    return true;
}

static void reach(search *s, dtm_op_kind kind, uint16_t axes, int over, int as, const dtm_type_data *made,
                  double penalty) {
    if (s->times && !is_lawful(s, made)) return;
    dtm_type type = dtm_type_intern(s->module, made);
    if (type == s->nodes[s->at].type || s->nodes[s->at].steps + 1 >= DTM_MAX_STEPS) return;
    size_t i = 0;
    while (i < s->count && s->nodes[i].type != type) i++;
    if (i < s->count && s->nodes[i].done) return;
    if (i == s->count && (i == MOST_STATES || dtm_local_bytes_max(s->module, type) > s->most_bytes)) return;
    dtm_type_data from = *dtm_type_get(s->module, s->nodes[s->at].type), to = *dtm_type_get(s->module, type);
    double time = s->nodes[s->at].time + penalty + step_time(s, kind, axes, &from, &to);
    if (i == s->count) DTM_PUSH(s->scratch, s->nodes, s->count, s->capacity, ((node){.type = type, .time = time * 2 + 1}));
    node *there = &s->nodes[i];
    if (there->time <= time) return;
    *there = (node){type, time, s->at, false, (uint8_t)(s->nodes[s->at].steps + 1), {kind, axes, 0, 0, type}};
    there->step.over = over < 0 ? 0 : from.dims[over];
    there->step.as = as < 0 ? 0 : from.dims[as];
}

/* ---- splits ---- */

static bool is_prefix(const dtm_dim_layout *part, const dtm_dim_layout *whole) {
    return part->count <= whole->count && common(part, whole) == part->count;
}

static dtm_split pop(dtm_dim_layout *layout) {
    dtm_split split = layout->splits[--layout->count];
    memset(&layout->splits[layout->count], 0, sizeof split);
    return split;
}

/* The axis as the minor split of dimension d, in the units that the end has there. False: it may not split it now. */
static bool push(const search *s, dtm_type_data *type, int d, int axis) {
    dtm_dim_layout *now = &type->layout[d];
    const dtm_dim_layout *end = &s->to.layout[d];
    if (!(s->dims >> d & 1)) return false;
    if (!is_free(s) && (!is_prefix(now, end) || now->count == end->count || end->splits[now->count].axis != axis)) return false;
    dtm_split split;
    memset(&split, 0, sizeof split);
    split.axis = (uint8_t)axis;
    split.unit = 1;
    for (int i = 0; i < end->count; i++)
        if (end->splits[i].axis == axis) split.unit = end->splits[i].unit;
    now->splits[now->count++] = split;
    return true;
}

/* The step that makes axes of `left` minor splits of dimension d, in every order; any number of them, or all. */
static void append(search *s, dtm_op_kind kind, uint16_t taken, uint16_t left, int over, int d, const dtm_type_data *made) {
    bool exchange = kind == DTM_OP_ALL_TO_ALL;
    if (taken && !(exchange && left)) reach(s, kind, taken, exchange ? over : d, exchange ? d : -1, made, 0);
    for (int a = 0; left >> a; a++) {
        dtm_type_data next = *made;
        if (!(left >> a & 1) || !push(s, &next, d, a)) continue;
        if (kind == DTM_OP_REDUCE_SCATTER) next.sum &= (uint16_t)~bit(a);
        append(s, kind, taken | bit(a), left & (uint16_t)~bit(a), over, d, &next);
    }
}

/* ---- the steps ---- */

static void try_reductions(search *s, const dtm_type_data *here) {
    uint16_t split_at_end = dtm_type_split_axes(&s->to), times = s->times;
    uint16_t sum = here->sum & (uint16_t)~s->to.sum, max = here->max & (uint16_t)~s->to.max;
    const uint16_t sets[] = {sum & times, sum & (uint16_t)~(split_at_end | times), max & times, max & (uint16_t)~times};
    for (int i = 0; i < 4; i++) {
        if (!sets[i]) continue;
        dtm_type_data made = *here;
        if (i < 2) made.sum &= (uint16_t)~sets[i];
        else made.max &= (uint16_t)~sets[i];
        reach(s, DTM_OP_ALL_REDUCE, sets[i], -1, -1, &made, 0);
    }
    /* To reduce where the end splits is a last resort, for when that dimension cannot be scattered over. */
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        if (sum & split_at_end & bit(a)) {
            dtm_type_data made = *here;
            made.sum &= (uint16_t)~bit(a);
            reach(s, DTM_OP_ALL_REDUCE, bit(a), -1, -1, &made, 1e3);
        }
}

/* The minor axes of d are gathered, or become the minor ones of another dimension. */
static void try_leaving(search *s, const dtm_type_data *here, int d) {
    dtm_type_data made = *here;
    for (uint16_t axes = 0; made.layout[d].count > s->kept[d];) {
        axes |= bit(pop(&made.layout[d]).axis);
        reach(s, DTM_OP_ALL_GATHER, axes, d, -1, &made, 0);
        for (int e = 0; e < here->rank; e++)
            if (e != d) append(s, DTM_OP_ALL_TO_ALL, 0, axes, d, e, &made);
    }
}

static void try_term(search *s, const dtm_type_data *here) {
    uint16_t axes = s->to.sum & (uint16_t) ~(here->sum | here->max | dtm_type_split_axes(here));
    if (!axes) return;
    dtm_type_data made = *here;
    made.sum |= axes;
    reach(s, DTM_OP_AS_TERM, axes, -1, -1, &made, 0);
}

/* Straight to the end's blocks, if no axis of theirs is pending: within the blocks of axes that split a dimension first here and
 * there, so within a microbatch. */
static void try_permute(search *s, const dtm_type_data *here) {
    dtm_type_data made = *here;
    memcpy(made.layout, s->to.layout, sizeof made.layout);
    uint16_t before = dtm_type_split_axes(here), after = dtm_type_split_axes(&made), moved = 0;
    if (after & (here->sum | here->max)) return;
    for (int d = 0; d < here->rank; d++) {
        int stays = common(&here->layout[d], &made.layout[d]);
        moved |= behind(&here->layout[d], stays) | behind(&made.layout[d], stays);
    }
    if ((before | after) & moved) reach(s, DTM_OP_PERMUTE, moved, -1, -1, &made, 0);
}

static void leave(search *s) {
    dtm_type_data here = *dtm_type_get(s->module, s->nodes[s->at].type);
    uint16_t wanted = s->moving & dtm_type_split_axes(&s->to);
    uint16_t alike = wanted & (uint16_t) ~(here.sum | here.max | dtm_type_split_axes(&here));
    try_reductions(s, &here);
    for (int d = 0; d < here.rank; d++) {
        append(s, DTM_OP_REDUCE_SCATTER, 0, wanted & here.sum & (uint16_t)~s->times, -1, d, &here);
        append(s, DTM_OP_SHARD, 0, alike, -1, d, &here);
        try_leaving(s, &here, d);
    }
    try_term(s, &here);
    try_permute(s, &here);
}

static int32_t nearest(const search *s) {
    int32_t best = -1;
    for (size_t i = 0; i < s->count; i++)
        if (!s->nodes[i].done && (best < 0 || s->nodes[i].time < s->nodes[best].time)) best = (int32_t)i;
    return best;
}

static dtm_relayout_path path_to(const search *s, int32_t end) {
    dtm_relayout_path path = {.count = s->nodes[end].steps, .time = s->nodes[end].time};
    for (int32_t i = end; s->nodes[i].before >= 0; i = s->nodes[i].before)
        path.steps[s->nodes[i].steps - 1] = s->nodes[i].step;
    return path;
}

static void broken_off(const search *s, dtm_type from, dtm_type to) {
    dtm_text a = {.arena = s->scratch}, b = a;
    dtm_type_print(s->module, from, true, &a);
    dtm_type_print(s->module, to, true, &b);
    dtm_broken("relayout", "no way from %s to %s", a.data, b.data);
}

dtm_relayout_path dtm_relayout_find(dtm_module *module, dtm_type from, dtm_type to) {
    if (from == to) return (dtm_relayout_path){.count = 0};
    search s = {.module = module, .from = *dtm_type_get(module, from), .to = *dtm_type_get(module, to)};
    if (!dtm_type_same_shape(&s.from, &s.to)) dtm_broken("relayout", "between types of different shapes");
    int64_t before = dtm_local_bytes_max(module, from), after = dtm_local_bytes_max(module, to);
    s.most_bytes = before > after ? before : after;
    s.scratch = dtm_arena_create();
    find_moving(&s);
    DTM_PUSH(s.scratch, s.nodes, s.count, s.capacity, ((node){.type = from, .before = -1}));
    while ((s.at = nearest(&s)) >= 0 && s.nodes[s.at].type != to) {
        s.nodes[s.at].done = true;
        leave(&s);
    }
    if (s.at < 0) broken_off(&s, from, to);
    dtm_relayout_path path = path_to(&s, s.at);
    dtm_arena_destroy(s.scratch);
    return path;
}
