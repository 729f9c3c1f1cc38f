/* Dijkstra's search over the layouts of one tensor (relayout.h).
 *
 * The states are kept few: what splits a dimension on the way is always a prefix (major axes first) of what splits it at
 * the start or of what splits it at the end, so every step undoes the start or builds the end. What the end leaves whole
 * is reduced over all its pending axes at once; what it splits is scattered. A permute goes straight to the end's blocks. */
#include "passes/relayout.h"

#include <string.h>

enum { MAX_STATES = 1024 };

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
    dtm_type_data from, to;
    node *nodes;
    size_t count;
    int32_t at; /* the node being left */
} search;

static uint16_t bit(int axis) { return (uint16_t)(1 << axis); }
static bool is_time(const search *s, int axis) { return s->module->settings.mesh.axes[axis].time; }

static uint16_t time_axes(const search *s) {
    uint16_t axes = 0;
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        if (is_time(s, a)) axes |= bit(a);
    return axes;
}

/* What a step costs. What is still a term of an axis in time is sent once a microbatch. */
static double step_time(const search *s, dtm_op_kind kind, uint16_t axes, const dtm_type_data *from,
                        const dtm_type_data *to) {
    dtm_collective_cost cost = dtm_step_cost(s->module, kind, axes, from, to);
    double times = 1;
    /* Microbatches are not there side by side: nothing can be gathered or moved over them. */
    bool moves = kind != DTM_OP_ALL_REDUCE && kind != DTM_OP_SHARD && kind != DTM_OP_AS_TERM;
    if (moves && axes & time_axes(s)) return 1e6;
    for (int a = 0; a < s->module->settings.mesh.count; a++)
        if (is_time(s, a) && (to->sum | to->max) >> a & 1) times *= (double)s->module->settings.mesh.axes[a].size;
    /* Equal times are decided by what crosses the fewest steps and the least memory. */
    return cost.time * times + 1e-12 + 1e-18 * (double)cost.payload;
}

static void reach(search *s, dtm_op_kind kind, uint16_t axes, int over, int as, const dtm_type_data *made,
                  double penalty) {
    const node *here = &s->nodes[s->at];
    dtm_type_data from = *dtm_type_get(s->module, here->type);
    dtm_type type = dtm_type_intern(s->module, made);
    if (type == here->type || here->steps + 1 >= DTM_MAX_STEPS) return;
    dtm_type_data to = *dtm_type_get(s->module, type);
    double time = here->time + penalty + step_time(s, kind, axes, &from, &to);
    size_t i = 0;
    while (i < s->count && s->nodes[i].type != type) i++;
    if (i == s->count) {
        if (s->count == MAX_STATES) return;
        s->nodes[s->count++] = (node){.type = type, .time = time * 2 + 1};
    }
    node *there = &s->nodes[i];
    if (there->done || there->time <= time) return;
    *there = (node){type, time, s->at, false, (uint8_t)(here->steps + 1), {kind, axes, 0, 0, type}};
    there->step.over = over < 0 ? 0 : from.dims[over];
    there->step.as = as < 0 ? 0 : from.dims[as];
}

/* ---- prefixes ---- */

static bool is_prefix(const dtm_dim_layout *part, const dtm_dim_layout *whole) {
    return part->count <= whole->count && memcmp(part->splits, whole->splits, part->count * sizeof *part->splits) == 0;
}

static void push(dtm_dim_layout *layout, dtm_split split) {
    if (layout->count < DTM_MAX_SPLITS) layout->splits[layout->count++] = split;
}

static dtm_split pop(dtm_dim_layout *layout) {
    dtm_split split = layout->splits[--layout->count];
    memset(&layout->splits[layout->count], 0, sizeof split);
    return split;
}

/* The split that the end wants next in dimension d, if what is there so far is the beginning of it. */
static bool next_split(const search *s, const dtm_type_data *here, int d, dtm_split *next) {
    const dtm_dim_layout *now = &here->layout[d], *end = &s->to.layout[d];
    if (now->count >= end->count || !is_prefix(now, end)) return false;
    *next = end->splits[now->count];
    return true;
}

/* ---- the steps ---- */

static void try_reductions(search *s, const dtm_type_data *here) {
    uint16_t split_at_end = dtm_type_split_axes(&s->to), times = time_axes(s);
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

/* Scatters over as many of the next axes of a dimension as are pending: each number of them is a step of its own. */
static void try_scatter(search *s, const dtm_type_data *here, int d) {
    dtm_type_data made = *here;
    uint16_t axes = 0;
    dtm_split next;
    while (next_split(s, &made, d, &next) && made.sum & bit(next.axis) && !is_time(s, next.axis)) {
        made.sum &= (uint16_t)~bit(next.axis);
        push(&made.layout[d], next);
        axes |= bit(next.axis);
        reach(s, DTM_OP_REDUCE_SCATTER, axes, d, -1, &made, 0);
    }
}

static void try_shard(search *s, const dtm_type_data *here, int d) {
    dtm_type_data made = *here;
    uint16_t axes = 0;
    dtm_split next;
    while (next_split(s, &made, d, &next)) {
        if ((made.sum | made.max | dtm_type_split_axes(&made)) & bit(next.axis)) break;
        push(&made.layout[d], next);
        axes |= bit(next.axis);
        reach(s, DTM_OP_SHARD, axes, d, -1, &made, 0);
    }
}

static void try_gather(search *s, const dtm_type_data *here, int d) {
    dtm_type_data made = *here;
    uint16_t axes = 0;
    while (made.layout[d].count) {
        axes |= bit(pop(&made.layout[d]).axis);
        reach(s, DTM_OP_ALL_GATHER, axes, d, -1, &made, 0);
    }
}

/* The minor axis of d becomes the minor one of another dimension, where the end wants it next. */
static void try_exchange(search *s, const dtm_type_data *here, int d) {
    for (int e = 0; e < here->rank; e++) {
        dtm_split next;
        if (e == d || !here->layout[d].count || !next_split(s, here, e, &next)) continue;
        dtm_type_data made = *here;
        if (pop(&made.layout[d]).axis != next.axis) continue;
        push(&made.layout[e], next);
        reach(s, DTM_OP_ALL_TO_ALL, bit(next.axis), d, e, &made, 0);
    }
}

static void try_term(search *s, const dtm_type_data *here) {
    uint16_t axes = s->to.sum & (uint16_t) ~(here->sum | here->max | dtm_type_split_axes(here));
    if (!axes) return;
    dtm_type_data made = *here;
    made.sum |= axes;
    reach(s, DTM_OP_AS_TERM, axes, -1, -1, &made, 0);
}

/* Straight to the end's blocks, if no axis of theirs is pending. */
static void try_permute(search *s, const dtm_type_data *here) {
    dtm_type_data made = *here;
    memcpy(made.layout, s->to.layout, sizeof made.layout);
    uint16_t before = dtm_type_split_axes(here), after = dtm_type_split_axes(&made), moved = 0;
    if (after & (here->sum | here->max)) return;
    for (int i = 0; i < here->rank; i++) {
        if (memcmp(&here->layout[i], &made.layout[i], sizeof made.layout[i]) == 0) continue;
        for (int k = 0; k < here->layout[i].count; k++) moved |= bit(here->layout[i].splits[k].axis);
        for (int k = 0; k < made.layout[i].count; k++) moved |= bit(made.layout[i].splits[k].axis);
    }
    if ((before | after) & moved) reach(s, DTM_OP_PERMUTE, moved, -1, -1, &made, 0);
}

static void leave(search *s) {
    dtm_type_data here = *dtm_type_get(s->module, s->nodes[s->at].type);
    try_reductions(s, &here);
    for (int d = 0; d < here.rank; d++) {
        try_scatter(s, &here, d);
        try_shard(s, &here, d);
        try_gather(s, &here, d);
        try_exchange(s, &here, d);
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

dtm_relayout_path dtm_relayout_find(dtm_module *module, dtm_type from, dtm_type to) {
    if (from == to) return (dtm_relayout_path){.count = 0};
    search s = {.module = module, .from = *dtm_type_get(module, from), .to = *dtm_type_get(module, to)};
    if (!dtm_type_same_shape(&s.from, &s.to)) dtm_broken("relayout", "between types of different shapes");
    dtm_arena *scratch = dtm_arena_create();
    s.nodes = dtm_arena_alloc(scratch, MAX_STATES * sizeof *s.nodes);
    s.nodes[s.count++] = (node){.type = from, .before = -1};
    while ((s.at = nearest(&s)) >= 0 && s.nodes[s.at].type != to) {
        s.nodes[s.at].done = true;
        leave(&s);
    }
    if (s.at < 0) dtm_broken("relayout", "no way from one layout to another");
    dtm_relayout_path path = path_to(&s, s.at);
    dtm_arena_destroy(scratch);
    return path;
}
