/* Priorities from a few numbers, and changes of them (timeline_search.h). */
#include "passes/timeline_search.h"

#include <math.h>
#include <string.h>

double search_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
    return (double)(*state >> 11) / 9007199254740992.0;
}

/* ---- policies ---- */

search_policy search_policy_create(dtm_arena *arena, const search_instance *in) {
    search_policy p = {{NULL, NULL}};
    for (int k = 0; k < 2; k++)
        p.due[k] = dtm_arena_alloc(arena, (size_t)in->n_nodes * (size_t)in->microbatches * sizeof(double));
    return p;
}

void search_policy_copy(const search_instance *in, search_policy *to, const search_policy *from) {
    search_policy p = *from;
    for (int k = 0; k < 2; k++) {
        memcpy(to->due[k], from->due[k], (size_t)in->n_nodes * (size_t)in->microbatches * sizeof(double));
        p.due[k] = to->due[k];
    }
    *to = p;
}

/* ---- styles ---- */

/* Patterns of known schedules, in times of a task: how fast F travels down and up the ranks, and I down and up. */
static const struct {
    double pace[4], turn, spacing;
    bool strict, groups;
} known[] = {
    /* 0 to 5 are referred to by timeline_rivals.c, and 6 */
    {{1, 1, 1, 1}, 0, 0.5, false},  /* what has the longest way to go first */
    {{1, 1, 1, 1}, 0, 1, false},    /* 1f1b, zbh1; v-min */
    {{2, 1, 2, 1}, 3, 1, false},    /* v-half */
    {{2, 4, 2, 4}, 0, 1, true},     /* zbv */
    {{1, 1, 1, 1}, 2, 1, false},    /* v-min where 3 divides the ranks */
    {{2, 1, 2, 1}, 0, 1, false},
    {{1, 1, 2, 1}, 0, 0.7, false},
    {{1, 1, 1, 1}, 0, 0.1, false},  /* breadth first */
    {{3, 3, 3, 3}, 0, 1, false, true}, /* interleaved */
    {{1, 1, 1, 1}, 0, 1, false, true},
    {{1, 1, 1, 1}, 0, 1e6, true},   /* one microbatch after another: in the least memory there can be */
};
enum { KNOWN = sizeof known / sizeof *known };

search_style search_style_number(int index, const search_instance *in, uint64_t *state) {
    search_style s = {.patience = 0.5};
    if (index < KNOWN) {
        memcpy(s.pace, known[index].pace, sizeof s.pace);
        s.turn = known[index].turn;
        s.spacing = known[index].spacing;
        s.strict = known[index].strict;
        s.groups = known[index].groups && in->chunks > 1;
        s.foresight = in->pairs || in->input_pairs ? 0.5 : 0;
        s.partner = s.foresight;
    } else {
        for (int k = 0; k < 4; k++) s.pace[k] = search_random(state) < 0.4 ? 1 : 1 + 3 * search_random(state);
        s.turn = (int)(4 * search_random(state));
        s.spacing = 0.3 + 0.9 * search_random(state);
        s.patience = search_random(state);
        s.foresight = search_random(state) < 0.5 ? 0 : search_random(state);
        s.partner = search_random(state) < 0.5 ? 0 : search_random(state);
        s.alone = search_random(state) < 0.4 ? 0 : (int)(5 * search_random(state));
        s.strict = search_random(state) < 0.2;
        s.groups = in->shared && search_random(state) < 0.4;
        if (s.strict) s.spacing = 1;
    }
    s.planned = in->bounded && !s.strict;
    return s;
}

static double near(double x, double least, double most, double by, uint64_t *state) {
    return fmin(most, fmax(least, x + by * (2 * search_random(state) - 1)));
}

search_style search_style_near(const search_style *from, const search_instance *in, uint64_t *state) {
    search_style s = *from;
    int what = (int)(8 * search_random(state));
    if (what < 4) s.pace[what] = near(s.pace[what], 0.5, 6, 1, state);
    if (what == 4) s.turn = near(s.turn, 0, 6, 1.5, state);
    if (what == 5) s.spacing = near(s.spacing, 0.05, 1.5, 0.2, state);
    if (what >= 4) {
        s.patience = near(s.patience, 0, 1, 0.4, state);
        s.foresight = near(s.foresight, 0, 1, 0.3, state);
        s.partner = near(s.partner, 0, 1.2, 0.3, state);
        s.alone = floor(near(s.alone, 0, 16, 2, state) + 0.5);
    }
    if (what == 7 && search_random(state) < 0.3) s.strict = !s.strict;
    s.planned = in->bounded && !s.strict;
    return s;
}

/* Times of a task and of a message that the pace is measured in. */
typedef struct measure {
    double forward, input, message;
} measure;

static double begins(const search_style *s, const search_instance *in, int microbatch, double spacing) {
    if (!s->groups) return spacing * microbatch;
    int within = microbatch % in->ranks;
    return spacing * (microbatch - within) + spacing / in->chunks * within;
}

/* The way of a direction's microbatches, from the node where they enter, at an even pace, so that neighbours order what they
 * exchange alike, however stages differ. */
static void follow(const search_style *s, const search_instance *in, const measure *x, int first, double phase, double spacing,
                   double *due[2]) {
    double time = phase;
    int last = first;
    for (int n = first; n >= 0; n = in->nodes[n].after) {
        int up = in->placement == DTM_PLACE_V && n % in->chunks % 2;
        for (int m = 0; m < in->nodes[n].count; m++)
            due[0][(size_t)n * (size_t)in->microbatches + (size_t)m] = time + begins(s, in, m, spacing);
        time += s->pace[up] * x->forward + (in->nodes[n].stream[0] >= 0 ? x->message : 0);
        last = n;
    }
    time += x->forward * (1 + s->turn - s->pace[in->placement == DTM_PLACE_V && last % in->chunks % 2]);
    for (int n = last; n >= 0; n = in->nodes[n].before) {
        int up = in->placement == DTM_PLACE_V && n % in->chunks % 2;
        for (int m = 0; m < in->nodes[n].count; m++)
            due[1][(size_t)n * (size_t)in->microbatches + (size_t)m] = time + begins(s, in, m, spacing);
        time += s->pace[up ? 2 : 3] * x->input + (in->nodes[n].stream[1] >= 0 ? x->message : 0);
    }
}

static measure means(const search_instance *in) {
    measure x = {0, 0, 0};
    int messages = 0;
    for (int n = 0; n < in->n_nodes; n++) {
        x.forward += in->nodes[n].time[DTM_TASK_FORWARD] / in->n_nodes;
        x.input += in->nodes[n].time[DTM_TASK_INPUT] / in->n_nodes;
        x.message += in->nodes[n].to_after;
        messages += in->nodes[n].stream[0] >= 0;
    }
    x.message = messages ? x.message / messages : 0;
    return x;
}

void search_style_policy(const search_style *s, const search_instance *in, search_policy *policy) {
    double spacing = in->cycle * s->spacing;
    bool both = in->placement == DTM_PLACE_BIDIRECTIONAL;
    measure x = means(in);
    for (int n = 0; n < in->n_nodes; n++)
        if (in->nodes[n].before < 0 && in->nodes[n].count)
            follow(s, in, &x, n, both && n % in->chunks ? spacing : 0, both ? 2 * spacing : spacing, policy->due);
    policy->patience = s->patience;
    policy->foresight = s->foresight;
    policy->partner = s->partner;
    policy->alone = s->alone;
    policy->strict = s->strict;
    policy->planned = s->planned;
    policy->ordered = s->ordered;
}

/* ---- shaking ---- */

static void shift(const search_instance *in, search_policy *p, int node, bool input, int from, int to, double by) {
    for (int m = from; m < to && m < in->nodes[node].count; m++)
        p->due[input][(size_t)node * (size_t)in->microbatches + (size_t)m] += by;
}

void search_policy_shake(const search_instance *in, search_policy *p, uint64_t *state) {
    double by = in->cycle * pow(10, 2.3 * search_random(state) - 2) * (2 * search_random(state) - 1);
    bool input = search_random(state) < 0.5;
    int what = (int)(5 * search_random(state)), node = (int)(in->n_nodes * search_random(state));
    int m = (int)(in->microbatches * search_random(state)), all = in->microbatches;
    if (what == 0) shift(in, p, node, input, 0, all, by);     /* one chunk, always */
    if (what == 1) shift(in, p, node, input, m, all, by);     /* from some microbatch on */
    if (what == 2) {                                          /* a rank, for a while */
        int until = m + 1 + (int)(4 * search_random(state)), first = node - node % in->chunks;
        for (int c = 0; c < in->chunks; c++) shift(in, p, first + c, input, m, until, by);
    }
    if (what == 3)                                            /* a microbatch, everywhere */
        for (int n = 0; n < in->n_nodes; n++) shift(in, p, n, input, m, m + 1, by);
    if (what == 4) {
        shift(in, p, node, input, m, m + 1, by);
        double x = search_random(state), *which = m % 3 == 0 ? &p->patience : m % 3 == 1 ? &p->foresight : &p->partner;
        *which = x;
    }
}
