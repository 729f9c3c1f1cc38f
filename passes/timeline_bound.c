/* What no plan of an instance can beat (timeline_search.h). Everything here may take microbatches in order: those of a
 * direction are alike, so an exchange of two that pass each other somewhere makes no plan slower.
 *
 * First, each task gets a head, before which it cannot begin, and a tail, the time that must pass after its end: the longest
 * ways through F, I and W of all microbatches where ranks are never busy with anything else, but every node takes its
 * microbatches one after another and, where memory lets a rank keep K microbatches of a chunk, F of microbatch m waits for
 * I of m - K. Then each rank by itself: a machine with jobs that have heads and tails. Letting it interrupt jobs makes that
 * easy (Jackson's rule: of what is there, the longest tail first) and no slower, so its end is a bound. Two more look at
 * what the machine cannot see: F before the first I of a rank can be overlapped with nothing, and memory is taken for a
 * time, of which there is only so much. */
#include "passes/timeline_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct job {
    double head, time, tail;
} job;

typedef struct bounder {
    const search_instance *in;
    double *head[2], *tail[2]; /* of F, of I, by node and microbatch */
    double *shortest;          /* by node: time of F at least, where a pair may hide part of it */
    int *alive;                /* by node: microbatches that memory lets it keep */
    job *jobs;
    uint32_t *queue;
} bounder;

static size_t at(const bounder *b, int node, int microbatch) {
    return (size_t)node * (size_t)b->in->microbatches + (size_t)microbatch;
}

/* ---- heads and tails ---- */

/* One microbatch on its way forward and back. */
static void set_heads(bounder *b, int first, int m) {
    const search_instance *in = b->in;
    double ready = 0;
    int last = first;
    for (int n = first; n >= 0; last = n, n = in->nodes[n].after) {
        const search_node *x = &in->nodes[n];
        double forward = x->time[DTM_TASK_FORWARD], gone = x->time[DTM_TASK_INPUT];
        if (x->kept_for_weight > 0 && x->kept_for_weight >= x->least_kept) gone += x->time[DTM_TASK_WEIGHT];
        if (m > 0) ready = fmax(ready, b->head[0][at(b, n, m - 1)] + forward);
        if (m >= b->alive[n]) ready = fmax(ready, b->head[1][at(b, n, m - b->alive[n])] + gone);
        b->head[0][at(b, n, m)] = ready;
        ready += forward + x->to_after;
    }
    for (int n = last; n >= 0; n = in->nodes[n].before) {
        double input = in->nodes[n].time[DTM_TASK_INPUT];
        if (m > 0) ready = fmax(ready, b->head[1][at(b, n, m - 1)] + input);
        b->head[1][at(b, n, m)] = ready;
        ready += input + in->nodes[n].to_before;
    }
}

static void set_tails(bounder *b, int first, int m) {
    const search_instance *in = b->in;
    int count = in->nodes[first].count, last = first;
    double left = in->nodes[first].time[DTM_TASK_WEIGHT]; /* W of the first stage comes after its I */
    for (int n = first; n >= 0; last = n, n = in->nodes[n].after) {
        const search_node *x = &in->nodes[n];
        left = fmax(left, x->time[DTM_TASK_WEIGHT]);
        if (m + 1 < count) left = fmax(left, b->tail[1][at(b, n, m + 1)] + x->time[DTM_TASK_INPUT]);
        if (m + b->alive[n] < count)
            left = fmax(left, b->tail[0][at(b, n, m + b->alive[n])] + x->time[DTM_TASK_FORWARD]);
        b->tail[1][at(b, n, m)] = left;
        left += x->time[DTM_TASK_INPUT] + (x->after >= 0 ? in->nodes[x->after].to_before : 0);
    }
    for (int n = last; n >= 0; n = in->nodes[n].before) {
        double forward = in->nodes[n].time[DTM_TASK_FORWARD];
        if (m + 1 < count) left = fmax(left, b->tail[0][at(b, n, m + 1)] + forward);
        b->tail[0][at(b, n, m)] = left;
        left += forward + (in->nodes[n].before >= 0 ? in->nodes[in->nodes[n].before].to_after : 0);
    }
}

/* ---- one rank ---- */

static int by_head(const void *x, const void *y) {
    const job *a = x, *b = y;
    return a->head < b->head ? -1 : a->head > b->head ? 1 : a->tail > b->tail ? -1 : a->tail < b->tail;
}

static void sift_up(bounder *b, size_t i) {
    uint32_t x = b->queue[i];
    for (; i && b->jobs[b->queue[(i - 1) / 2]].tail < b->jobs[x].tail; i = (i - 1) / 2) b->queue[i] = b->queue[(i - 1) / 2];
    b->queue[i] = x;
}

static void sift_down(bounder *b, size_t count) {
    uint32_t x = b->queue[0];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < count) {
        if (child + 1 < count && b->jobs[b->queue[child + 1]].tail > b->jobs[b->queue[child]].tail) child++;
        if (b->jobs[b->queue[child]].tail <= b->jobs[x].tail) break;
        b->queue[i] = b->queue[child];
        i = child;
    }
    b->queue[i] = x;
}

/* The end of the jobs on one machine that may interrupt them, tails included. */
static double one_machine(bounder *b, uint32_t n) {
    double now = 0, end = 0;
    size_t queued = 0;
    qsort(b->jobs, n, sizeof *b->jobs, by_head);
    for (uint32_t next = 0; next < n || queued;) {
        if (!queued && b->jobs[next].head > now) now = b->jobs[next].head;
        while (next < n && b->jobs[next].head <= now) b->queue[queued] = next++, sift_up(b, queued++);
        job *j = &b->jobs[b->queue[0]];
        double until = next < n ? fmin(now + j->time, b->jobs[next].head) : now + j->time;
        bool done = until >= now + j->time;
        j->time -= until - now;
        now = until;
        if (!done) continue;
        end = fmax(end, now + j->tail);
        b->queue[0] = b->queue[--queued];
        if (queued) sift_down(b, queued);
    }
    return end;
}

static double rank_alone(bounder *b, int rank) {
    const search_instance *in = b->in;
    uint32_t n = 0;
    for (int c = 0; c < in->chunks; c++) {
        int node = rank * in->chunks + c;
        const search_node *x = &in->nodes[node];
        for (int m = 0; m < x->count; m++) {
            double f = b->head[0][at(b, node, m)], i = b->head[1][at(b, node, m)];
            b->jobs[n++] = (job){f, b->shortest[node], b->tail[0][at(b, node, m)]};
            b->jobs[n++] = (job){i, x->time[DTM_TASK_INPUT], b->tail[1][at(b, node, m)]};
            b->jobs[n++] = (job){i + x->time[DTM_TASK_INPUT], x->time[DTM_TASK_WEIGHT], 0};
        }
    }
    return one_machine(b, n);
}

/* Until a rank's first I, only F without a partner: as much of them as there is time for comes off, those that pairs would
 * shorten least first; what is left, at its shortest, and all of I and W come after. */
static double rank_with_pairs(bounder *b, int rank) {
    const search_instance *in = b->in;
    double first_f = INFINITY, first_i = INFINITY, after = 0;
    for (int c = 0; c < in->chunks; c++) {
        int node = rank * in->chunks + c;
        const search_node *x = &in->nodes[node];
        if (!x->count) continue;
        first_f = fmin(first_f, b->head[0][at(b, node, 0)]);
        first_i = fmin(first_i, b->head[1][at(b, node, 0)]);
        after += x->count * (b->shortest[node] + x->time[DTM_TASK_BACKWARD]);
    }
    double gap = first_i - first_f, done = 0;
    bool taken[SEARCH_CHUNKS] = {false};
    while (gap > 0) {
        int best = -1;
        double most = -1;
        for (int c = 0; c < in->chunks; c++) {
            const search_node *x = &in->nodes[rank * in->chunks + c];
            if (taken[c] || x->time[DTM_TASK_FORWARD] <= 0) continue;
            double ratio = b->shortest[rank * in->chunks + c] / x->time[DTM_TASK_FORWARD];
            if (ratio > most) most = ratio, best = c;
        }
        if (best < 0) break;
        const search_node *x = &in->nodes[rank * in->chunks + best];
        double there = fmin(gap, x->count * x->time[DTM_TASK_FORWARD]);
        done += there * most;
        gap -= there;
        taken[best] = true;
    }
    return first_i + after - done;
}

/* Bytes times the time that they are kept, at least, over the bytes that there are. */
static double rank_memory(const bounder *b, int rank) {
    const search_instance *in = b->in;
    double first = INFINITY, taken = 0;
    if (!in->bounded) return 0;
    for (int c = 0; c < in->chunks; c++) {
        int node = rank * in->chunks + c;
        const search_node *x = &in->nodes[node];
        if (!x->count) continue;
        first = fmin(first, b->head[0][at(b, node, 0)]);
        /* the first microbatch has no other before it: the way from its F to its I is the shortest there is */
        double kept = b->head[1][at(b, node, 0)] - b->head[0][at(b, node, 0)] + x->time[DTM_TASK_INPUT];
        taken += x->count * (x->least_kept * kept + fmin(x->least_kept, x->kept_for_weight) * x->time[DTM_TASK_WEIGHT]); /* W may be part of a B */
    }
    return in->room[rank] > 0 && taken > 0 ? first + taken / in->room[rank] : 0;
}

/* ---- all ranks ---- */

/* The least that an F can add to a rank's work: overlapped with the B or I on the rank that hides most of it. */
static double shortest(const search_instance *in, int node) {
    double hidden = 0, time = in->nodes[node].time[DTM_TASK_FORWARD];
    int first = in->nodes[node].rank * in->chunks;
    for (int c = 0; c < in->chunks; c++) {
        if (in->pairs) hidden = fmax(hidden, search_saving(in, node, first + c, true));
        if (in->input_pairs) hidden = fmax(hidden, search_saving(in, node, first + c, false));
    }
    return fmax(0, time - hidden);
}

double search_bound(const search_instance *in) {
    dtm_arena *arena = dtm_arena_create();
    bounder b = {in};
    size_t tasks = (size_t)in->n_nodes * (size_t)in->microbatches, most = 3 * (size_t)in->chunks * (size_t)in->microbatches;
    for (int k = 0; k < 2; k++) {
        b.head[k] = dtm_arena_alloc(arena, tasks * sizeof(double));
        b.tail[k] = dtm_arena_alloc(arena, tasks * sizeof(double));
    }
    b.shortest = dtm_arena_alloc(arena, (size_t)in->n_nodes * sizeof(double));
    b.alive = dtm_arena_alloc(arena, (size_t)in->n_nodes * sizeof(int));
    b.jobs = dtm_arena_alloc(arena, most * sizeof *b.jobs);
    b.queue = dtm_arena_alloc(arena, most * sizeof *b.queue);
    for (int n = 0; n < in->n_nodes; n++) {
        double least = in->nodes[n].least_kept, many = least > 0 ? in->room[in->nodes[n].rank] / least : INFINITY;
        b.alive[n] = many < in->microbatches ? (int)many : in->microbatches;
        b.shortest[n] = shortest(in, n);
    }
    for (int n = 0; n < in->n_nodes; n++) {
        if (in->nodes[n].before >= 0) continue;
        for (int m = 0; m < in->nodes[n].count; m++) set_heads(&b, n, m);
        for (int m = in->nodes[n].count; m-- > 0;) set_tails(&b, n, m);
    }
    double bound = 0;
    for (int r = 0; r < in->ranks; r++) {
        bound = fmax(bound, rank_alone(&b, r));
        if (in->pairs || in->input_pairs) bound = fmax(bound, rank_with_pairs(&b, r));
        bound = fmax(bound, rank_memory(&b, r));
    }
    dtm_arena_destroy(arena);
    return bound;
}

/* ---- any cut, any placement ---- */

/* Ranks are reached one after another, each by at least one unit more than the one before (two at a time with two
 * directions); before the first I of all there is only F, and nothing to overlap it with. What is left is at best shared
 * out evenly. */
static double bound_for(const dtm_timeline_problem *p, bool both) {
    double forward = 0, backward = 0, input = 0, ratio = 0, bound = 0, heads = 0, before = 0;
    double message = INFINITY, back = INFINITY;
    for (int u = 0; u < p->units; u++) {
        const dtm_stage_cost *x = &p->unit[u];
        forward += x->forward;
        input += x->input;
        backward += x->input + x->weight;
        double hidden = fmin(x->forward, fmax(x->hidden, x->hidden_input));
        if (x->forward > 0) ratio = fmax(ratio, hidden / x->forward);
        if (u + 1 < p->units) message = fmin(message, p->bandwidth > 0 ? x->forward_bytes / p->bandwidth : 0);
        if (u > 0) back = fmin(back, p->bandwidth > 0 ? x->backward_bytes / p->bandwidth : 0);
    }
    bool all = p->units >= p->ranks; /* then no stage is empty, and each microbatch passes all ranks */
    message = all && p->units > 1 ? p->latency + message : 0;
    back = all && p->units > 1 ? p->latency + back : 0;
    double first = forward + (p->ranks - 1) * message; /* before the first I of all */
    for (int r = 0; r < p->ranks && all; r++) {
        int reached = both ? r / 2 : r;
        double head = reached * message;
        for (int u = 0; u < reached; u++) head += p->unit[u].forward;
        heads += fmin(head, first);
    }
    double m = p->microbatches, early = fmin(p->ranks * first - heads, m * forward);
    bound = first + (m * backward + (1 - ratio) * (m * forward - early)) / p->ranks;
    for (int u = 0; u < p->units; u++) { /* the rank of one unit, as if it had nothing else */
        const dtm_stage_cost *x = &p->unit[u];
        double count = both ? (p->microbatches + 1) / 2 : m, hidden = fmin(x->forward, fmax(x->hidden, x->hidden_input));
        bound = fmax(bound, before + count * (x->forward + x->input + x->weight - hidden));
        before += x->forward;
    }
    return fmax(bound, first + input + (p->ranks - 1) * back + p->unit[0].weight); /* the way of one microbatch */
}

bool search_both_ways(const dtm_timeline_problem *p) { return !p->no_copies && p->ranks > 1 && p->microbatches > 1; }

double search_bound_any(const dtm_timeline_problem *p) {
    double one = bound_for(p, false);
    return search_both_ways(p) ? fmin(one, bound_for(p, true)) : one;
}
