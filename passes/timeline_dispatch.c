/* A plan from priorities: list scheduling. The clock moves from event to event (a rank is free, a message arrives); a rank
 * that is free takes, of what it can begin, what is due first; W only where there is nothing else, so that they fill the
 * gaps; W earlier where memory is wanted.
 *
 * Where there is a bound on memory, ranks could come to stand still for want of it. With planned priorities that is avoided:
 * an F may come before it is due only if everything that is due before it still finds room, and what goes to one rank is
 * sent in the order in which it is due, because messages of a channel are used in the order of sending. So what a rank has
 * due first can always be done some time, if the priorities agree: each task is due after what it needs, and those of two
 * neighbours order what they exchange alike. Without a plan, of the microbatches that are under way on a rank the oldest finds
 * room for all of its chunks, because the others never take it; where a channel serves several chunks that may not help.
 * Ranks that stand still all the same give no plan. */
#include "passes/timeline_search.h"

#include <math.h>
#include <string.h>

enum { AHEAD = 64 }; /* places in the list of a chunk that an F may come before it is due */

typedef struct progress {
    int forward, input;              /* begun */
    int pending;                     /* I whose W is still to be done */
    int arrived_forward, arrived_input; /* whose time of arrival is known */
} progress;

/* The next F or I of a node: when what it needs is there (INFINITY: not known, or there is none), and when it is due. */
typedef struct upcoming {
    double from, due;
} upcoming;

typedef struct listed {
    uint16_t what; /* 2 * chunk + input */
    bool done;
    uint32_t next; /* of the same kind */
} listed;

struct search_dispatcher {
    const search_instance *instance;
    const search_policy *policy;
    progress *nodes;
    upcoming *next;      /* by node: of F, of I */
    double *arrival[2];  /* by node and microbatch: of what F needs, of what I needs */
    int32_t *sent;       /* by channel and place: the node that a message is for, in the order of sending */
    uint32_t *n_sent, *n_used; /* by channel */
    double *free;        /* by rank: when it is */
    double *out;         /* by rank: when the way out of it is free */
    double *in[2];       /* by rank: when the latest message into it begins to move, and when its bytes are in */
    double *used;        /* by rank: bytes, those that wait for their W included */
    double *alive;       /* by rank: without those */
    search_turn *turns;  /* of ranks side by side, each with room for all of its turns */
    uint32_t *count;     /* by rank */
    uint32_t most;       /* turns of a rank at most */
    listed *list;        /* of ranks side by side: F and I in the order in which they are due */
    uint32_t *head;      /* by rank: the first that is not done */
    uint32_t *cursor;    /* by node, F and I: the next of its kind and chunk */
    double *wake;        /* by rank: when it looks for something to do */
    bool *idle;          /* by rank: it has looked and found nothing */
    int *winner;         /* a tournament of ranks: leaves from `leaves` on, the earliest to wake at 1 */
    int leaves;
    double ends;         /* sum of the times at which microbatches have passed */
    double *least;       /* by rank: when it has ended, by what it has to do and how long it was idle, at least */
    double longest;      /* of these */
};

search_dispatcher *search_dispatcher_create(dtm_arena *arena, const search_instance *in) {
    search_dispatcher *d = dtm_arena_alloc(arena, sizeof *d);
    size_t nodes = (size_t)in->n_nodes, tasks = nodes * (size_t)in->microbatches, ranks = (size_t)in->ranks;
    d->instance = in;
    d->nodes = dtm_arena_alloc(arena, nodes * sizeof *d->nodes);
    d->next = dtm_arena_alloc(arena, 2 * nodes * sizeof *d->next);
    for (int k = 0; k < 2; k++) d->arrival[k] = dtm_arena_alloc(arena, tasks * sizeof(double));
    size_t channels = ranks * SEARCH_CHANNELS;
    d->sent = dtm_arena_alloc(arena, channels * (size_t)in->chunks * (size_t)in->microbatches * sizeof *d->sent);
    d->n_sent = dtm_arena_alloc(arena, channels * sizeof *d->n_sent);
    d->n_used = dtm_arena_alloc(arena, channels * sizeof *d->n_used);
    d->free = dtm_arena_alloc(arena, ranks * sizeof(double));
    d->out = dtm_arena_alloc(arena, ranks * sizeof(double));
    for (int k = 0; k < 2; k++) d->in[k] = dtm_arena_alloc(arena, ranks * sizeof(double));
    d->used = dtm_arena_alloc(arena, ranks * sizeof(double));
    d->alive = dtm_arena_alloc(arena, ranks * sizeof(double));
    d->most = 3u * (uint32_t)in->chunks * (uint32_t)in->microbatches;
    d->turns = dtm_arena_alloc(arena, ranks * d->most * sizeof *d->turns);
    d->count = dtm_arena_alloc(arena, ranks * sizeof *d->count);
    d->list = dtm_arena_alloc(arena, ranks * d->most * sizeof *d->list);
    d->head = dtm_arena_alloc(arena, ranks * sizeof *d->head);
    d->cursor = dtm_arena_alloc(arena, 2 * nodes * sizeof *d->cursor);
    d->wake = dtm_arena_alloc(arena, ranks * sizeof *d->wake);
    d->idle = dtm_arena_alloc(arena, ranks);
    d->least = dtm_arena_alloc(arena, ranks * sizeof *d->least);
    for (d->leaves = 1; d->leaves < in->ranks; d->leaves *= 2) {}
    d->winner = dtm_arena_alloc(arena, 2 * (size_t)d->leaves * sizeof *d->winner);
    return d;
}

void search_dispatcher_use(search_dispatcher *d, const search_instance *in) {
    d->instance = in;
    d->most = 3u * (uint32_t)in->chunks * (uint32_t)in->microbatches;
}

/* ---- who is next ---- */

static int earlier(const search_dispatcher *d, int a, int b) {
    if (a < 0 || b < 0) return a < 0 ? b : a;
    return d->wake[b] < d->wake[a] ? b : a; /* of equals the left one, the lower rank */
}

static void set_wake(search_dispatcher *d, int rank, double time) {
    d->wake[rank] = time;
    for (int i = (d->leaves + rank) / 2; i; i /= 2) d->winner[i] = earlier(d, d->winner[2 * i], d->winner[2 * i + 1]);
}

static void wake_all(search_dispatcher *d) {
    int ranks = d->instance->ranks;
    for (int i = 0; i < d->leaves; i++) d->winner[d->leaves + i] = i < ranks ? i : -1;
    for (int r = 0; r < ranks; r++) d->wake[r] = 0, d->idle[r] = false;
    for (int i = d->leaves; i-- > 1;) d->winner[i] = earlier(d, d->winner[2 * i], d->winner[2 * i + 1]);
}

/* ---- what can be done ---- */

/* The next task of each kind in a chunk. */
typedef struct choice {
    int node;     /* -1: none */
    bool input;
    double from;  /* when it can begin */
    double due;
} choice;

/* The place of a microbatch in the order in which microbatches are begun, over both directions. */
static int sequence(const search_instance *in, int chunk, int microbatch) {
    return in->placement == DTM_PLACE_BIDIRECTIONAL ? 2 * microbatch + chunk : microbatch;
}

/* Whether there may ever be room for the next F of a node before others end. */
static bool safe(const search_dispatcher *d, int rank, int node) {
    const search_instance *in = d->instance;
    if (in->room[rank] == INFINITY) return true;
    int first = rank * in->chunks, oldest = in->microbatches * 2;
    for (int c = 0; c < in->chunks; c++)
        if (d->nodes[first + c].input < in->nodes[first + c].count) {
            int s = sequence(in, c, d->nodes[first + c].input);
            if (s < oldest) oldest = s;
        }
    if (sequence(in, node - first, d->nodes[node].forward) == oldest) return true;
    double others = d->alive[rank];
    for (int c = 0; c < in->chunks; c++) {
        const progress *p = &d->nodes[first + c];
        if (p->input < p->forward && sequence(in, c, p->input) == oldest) others -= in->nodes[first + c].kept;
    }
    return others + in->nodes[node].kept + in->whole[rank] <= in->room[rank];
}

/* Whether everything due before the next F of a node still finds memory if that F comes first. Far ahead it is not asked. */
static bool leaves_room(const search_dispatcher *d, int rank, int node) {
    const search_instance *in = d->instance;
    const listed *list = d->list + (size_t)rank * d->most;
    const search_node *nodes = &in->nodes[rank * in->chunks];
    double alive = d->alive[rank] + in->nodes[node].kept, room = in->room[rank];
    uint32_t place = d->cursor[2 * node];
    if (room == INFINITY) return true;
    if (alive > room || place - d->head[rank] > AHEAD * (uint32_t)in->chunks) return false;
    for (uint32_t i = d->head[rank]; i < place; i++) {
        if (list[i].done) continue;
        double kept = nodes[list[i].what / 2].kept;
        alive += list[i].what % 2 ? -kept : kept;
        if (alive > room) return false;
    }
    return true;
}

static void tick_off(search_dispatcher *d, int rank, int node, bool input) {
    if (!d->policy->planned) return;
    listed *list = d->list + (size_t)rank * d->most;
    uint32_t *cursor = &d->cursor[2 * node + input];
    list[*cursor].done = true;
    *cursor = list[*cursor].next;
    while (list[d->head[rank]].done) d->head[rank]++;
}

static bool fits(const search_dispatcher *d, int rank, int node) {
    return d->used[rank] + d->instance->nodes[node].kept <= d->instance->room[rank];
}

/* Whether an F may begin as far as the memory of others goes. */
static bool may(const search_dispatcher *d, int rank, int node) {
    return d->policy->planned ? leaves_room(d, rank, node) : safe(d, rank, node);
}

/* ---- messages: used in the order in which they are sent, so that they need no names ---- */

static int32_t *message(const search_dispatcher *d, int channel, uint32_t place) {
    return &d->sent[(size_t)channel * (size_t)d->instance->chunks * (size_t)d->instance->microbatches + place];
}

/* Whether a node's next message is the next of its channel. */
static bool is_first(const search_dispatcher *d, int node, bool input) {
    int channel = d->instance->nodes[node].channel[input];
    return channel < 0 || (d->n_used[channel] < d->n_sent[channel] && *message(d, channel, d->n_used[channel]) == node);
}

/* Finds when a node's next F or I can begin. */
static void refresh(search_dispatcher *d, int node, bool input) {
    const progress *p = &d->nodes[node];
    int m = input ? p->input : p->forward, arrived = input ? p->arrived_input : p->arrived_forward;
    size_t at = (size_t)node * (size_t)d->instance->microbatches + (size_t)m;
    upcoming *u = &d->next[2 * node + input];
    if (m >= d->instance->nodes[node].count) *u = (upcoming){INFINITY, INFINITY};
    else *u = (upcoming){m < arrived && is_first(d, node, input) ? d->arrival[input][at] : INFINITY, d->policy->due[input][at]};
}

/* A node has used its next message. */
static void use_message(search_dispatcher *d, int node, bool input) {
    int channel = d->instance->nodes[node].channel[input];
    if (channel >= 0) d->n_used[channel]++;
    refresh(d, node, input);
    if (channel >= 0 && d->n_used[channel] < d->n_sent[channel]) refresh(d, *message(d, channel, d->n_used[channel]), input);
}

/* ---- doing it ---- */

static void turn(search_dispatcher *d, int rank, search_turn t, double end) {
    d->turns[(size_t)rank * d->most + d->count[rank]++] = t;
    d->free[rank] = end;
    d->idle[rank] = false;
    set_wake(d, rank, end);
}

static void arrive(search_dispatcher *d, int node, bool input, int microbatch, double time) {
    const search_instance *in = d->instance;
    d->arrival[input][(size_t)node * (size_t)in->microbatches + (size_t)microbatch] = time;
    if (input) d->nodes[node].arrived_input = microbatch + 1;
    else d->nodes[node].arrived_forward = microbatch + 1;
    int channel = in->nodes[node].channel[input];
    if (channel >= 0) *message(d, channel, d->n_sent[channel]++) = node;
    if (microbatch > (input ? d->nodes[node].input : d->nodes[node].forward) || !is_first(d, node, input)) return;
    d->next[2 * node + input].from = time;
    int rank = in->nodes[node].rank;
    if (d->idle[rank] && time < d->wake[rank]) set_wake(d, rank, time);
}

/* When a message is there that is made at `end`. Messages are looked at when what makes them begins: one that was looked at before and
 * moves later does not hold up this one. So what is kept is timed again (timeline_clock.c). */
static double message_arrives(search_dispatcher *d, int from, int to, double end, double time, double way) {
    if (way <= 0 || from == to) return end + time;
    double begun = fmax(end, d->out[from]);
    bool before = begun + way <= d->in[0][to];
    if (!before) begun = fmax(begun, d->in[1][to]);
    d->out[from] = begun + way;
    if (!before) d->in[0][to] = begun, d->in[1][to] = begun + way;
    return begun + time;
}

static void forward_ends(search_dispatcher *d, int node, double end) {
    const search_node *n = &d->instance->nodes[node];
    int m = d->nodes[node].forward++;
    use_message(d, node, false);
    tick_off(d, n->rank, node, false);
    d->used[n->rank] += n->kept;
    d->alive[n->rank] += n->kept;
    if (n->after >= 0)
        arrive(d, n->after, false, m, message_arrives(d, n->rank, d->instance->nodes[n->after].rank, end, n->to_after, n->way_after));
    else arrive(d, node, true, m, end);
}

static void input_ends(search_dispatcher *d, int node, double end, bool with_weight) {
    const search_node *n = &d->instance->nodes[node];
    int m = d->nodes[node].input++;
    use_message(d, node, true);
    tick_off(d, n->rank, node, true);
    d->alive[n->rank] -= n->kept;
    d->used[n->rank] -= with_weight ? n->kept : n->kept - n->kept_for_weight;
    if (!with_weight) d->nodes[node].pending++;
    if (n->before >= 0)
        arrive(d, n->before, true, m, message_arrives(d, n->rank, d->instance->nodes[n->before].rank, end, n->to_before, n->way_before));
    else d->ends += end;
}

/* A rank begins something. */
static void count_idle(search_dispatcher *d, int rank, double now) {
    d->least[rank] += now - d->free[rank];
    if (d->least[rank] > d->longest) d->longest = d->least[rank];
}

static void do_task(search_dispatcher *d, int rank, choice c, double now) {
    const search_node *n = &d->instance->nodes[c.node];
    int chunk = c.node - rank * d->instance->chunks;
    double end = now + n->time[c.input ? DTM_TASK_INPUT : DTM_TASK_FORWARD];
    count_idle(d, rank, now);
    d->free[rank] = end;
    if (c.input) input_ends(d, c.node, end, false);
    else forward_ends(d, c.node, end);
    turn(d, rank, (search_turn){c.input ? TURN_I : TURN_F, (uint16_t)chunk, 0}, end);
}

static void do_pair(search_dispatcher *d, int rank, choice f, choice b, bool whole, double now) {
    const search_instance *in = d->instance;
    const search_node *x = &in->nodes[f.node], *y = &in->nodes[b.node];
    double end = now + dtm_pair_time(in->costs, x->stage, whole ? DTM_TASK_BACKWARD : DTM_TASK_INPUT, y->stage);
    int first = rank * in->chunks;
    count_idle(d, rank, now);
    d->free[rank] = end;
    forward_ends(d, f.node, end);
    input_ends(d, b.node, end, whole);
    turn(d, rank, (search_turn){whole ? TURN_FB : TURN_FI, (uint16_t)(f.node - first), (uint16_t)(b.node - first)}, end);
}

static void do_weight(search_dispatcher *d, int rank, int node, double now) {
    const search_node *n = &d->instance->nodes[node];
    double end = now + n->time[DTM_TASK_WEIGHT];
    count_idle(d, rank, now);
    d->nodes[node].pending--;
    d->used[rank] -= n->kept_for_weight;
    turn(d, rank, (search_turn){TURN_W, (uint16_t)(node - rank * d->instance->chunks), 0}, end);
}

/* ---- choosing ---- */

/* The W that fits best before `until`: the longest that ends by then, or the shortest if none does; -1: none is left. */
static int weight_for(const search_dispatcher *d, int rank, double gap) {
    const search_instance *in = d->instance;
    int best = -1;
    double best_time = 0;
    for (int c = 0; c < in->chunks; c++) {
        int node = rank * in->chunks + c;
        if (!d->nodes[node].pending) continue;
        double time = in->nodes[node].time[DTM_TASK_WEIGHT];
        bool better = best < 0 || (time <= gap ? best_time > gap || time > best_time : best_time > gap && time < best_time);
        if (better) best = node, best_time = time;
    }
    return best;
}

typedef struct options {
    choice best[2];     /* of F and of I: what can begin now and is due first; node -1: none */
    choice soon;        /* what comes later and is due first */
    choice partner[2];  /* the F and the I that come first */
    double next;        /* when the next thing comes */
    bool wants_memory;  /* an F could begin but for memory that some W would free */
} options;

/* What a rank may do where F and I come exactly as they are due: the first of all, with the first of the other kind as a
 * partner. */
static options look_strictly(const search_dispatcher *d, int rank, double now) {
    const search_instance *in = d->instance;
    options o = {{{-1}, {-1}}, {-1}, {{-1}, {-1}}, INFINITY, false};
    choice first[2] = {{-1, false, INFINITY, INFINITY}, {-1, true, INFINITY, INFINITY}};
    for (int i = 2 * rank * in->chunks; i < 2 * (rank + 1) * in->chunks; i++)
        if (d->next[i].due < first[i % 2].due)
            first[i % 2] = (choice){i / 2, i % 2, fmax(now, d->next[i].from), d->next[i].due};
    if (first[1].node < 0) return o;
    int k = first[0].node < 0 || first[1].due <= first[0].due;
    for (int turn = 0; turn < 2; turn++, k = !k) {
        choice x = first[k];
        if (x.node < 0) continue;
        bool lacks = !k && !fits(d, rank, x.node), there = x.from <= now;
        if (turn == 0 && !there) o.next = x.from;
        if (turn == 1 && !there && x.from < INFINITY) o.partner[k] = x;
        if (turn == 0 && there && lacks) o.wants_memory = true;
        if (there && !lacks) o.best[k] = x;
        if (turn == 0 && o.best[k].node < 0) break;
    }
    return o;
}

/* When the first of each stream of a rank is due. */
static void first_due(const search_dispatcher *d, int rank, double *due) {
    const search_instance *in = d->instance;
    for (int k = 0; k < SEARCH_CHANNELS; k++) due[k] = INFINITY;
    for (int i = 2 * rank * in->chunks; i < 2 * (rank + 1) * in->chunks; i++) {
        int stream = in->nodes[i / 2].stream[i % 2];
        if (stream >= 0) due[stream] = fmin(due[stream], d->next[i].due);
    }
}

static options look(const search_dispatcher *d, int rank, double now) {
    if (d->policy->strict) return look_strictly(d, rank, now);
    const search_instance *in = d->instance;
    bool in_order = in->shared && d->policy->ordered;
    double due[SEARCH_CHANNELS];
    if (in_order) first_due(d, rank, due);
    options o = {{{-1}, {-1}}, {-1}, {{-1}, {-1}}, INFINITY, false};
    for (int i = 2 * rank * in->chunks; i < 2 * (rank + 1) * in->chunks; i++) {
        int node = i / 2, k = i % 2;
        if (d->next[i].from == INFINITY) continue;
        if (in_order && in->nodes[node].stream[k] >= 0 && d->next[i].due > due[in->nodes[node].stream[k]]) continue;
        choice x = {node, k, fmax(now, d->next[i].from), d->next[i].due};
        if (x.from > now) {
            if (!k && in->bounded && !may(d, rank, node)) continue;
            o.next = fmin(o.next, x.from);
            if (o.partner[k].node < 0 || x.from < o.partner[k].from) o.partner[k] = x;
            if (o.soon.node < 0 || x.due < o.soon.due) o.soon = x;
        } else if (o.best[k].node < 0 || x.due < o.best[k].due) {
            if (k || !in->bounded) o.best[k] = x;
            else if (!may(d, rank, node)) continue;
            else if (!fits(d, rank, node)) o.wants_memory = true;
            else o.best[k] = x;
        }
    }
    return o;
}

/* Whether F and I that can begin now are to be overlapped, and how. */
static bool overlap(const search_dispatcher *d, const options *o, bool *whole) {
    const search_instance *in = d->instance;
    if (o->best[0].node < 0 || o->best[1].node < 0 || d->nodes[o->best[1].node].input < d->policy->alone) return false;
    double all = in->pairs ? search_saving(in, o->best[0].node, o->best[1].node, true) : 0;
    double part = in->input_pairs ? search_saving(in, o->best[0].node, o->best[1].node, false) : 0;
    *whole = all > part;
    return all > 0 || part > 0;
}

/* Whether to wait for something that `best` can be overlapped with. */
static bool wait_for_partner(const search_dispatcher *d, const options *o, choice best, double now) {
    const search_instance *in = d->instance;
    choice other = o->partner[!best.input];
    if (d->policy->partner <= 0 || other.node < 0 || !(in->pairs || in->input_pairs)) return false;
    int f = best.input ? other.node : best.node, b = best.input ? best.node : other.node;
    double saved = fmax(in->pairs ? search_saving(in, f, b, true) : 0, in->input_pairs ? search_saving(in, f, b, false) : 0);
    return other.from - now < d->policy->partner * saved;
}

static void rest(search_dispatcher *d, int rank, double until) {
    d->idle[rank] = true;
    set_wake(d, rank, until);
}

static void choose(search_dispatcher *d, int rank, double now) {
    const search_instance *in = d->instance;
    options o = look(d, rank, now);
    bool whole, input = o.best[1].node >= 0 && (o.best[0].node < 0 || o.best[1].due <= o.best[0].due);
    choice best = o.best[input];
    if (best.node >= 0) {
        double time = in->nodes[best.node].time[best.input ? DTM_TASK_INPUT : DTM_TASK_FORWARD];
        bool later = o.soon.node >= 0 && o.soon.due < best.due && o.soon.from - now < d->policy->foresight * time;
        if (overlap(d, &o, &whole)) do_pair(d, rank, o.best[0], o.best[1], whole, now);
        else if (later || wait_for_partner(d, &o, best, now)) rest(d, rank, o.next);
        else do_task(d, rank, best, now);
        return;
    }
    int node = weight_for(d, rank, o.next - now);
    bool fits = node >= 0 && o.next - now >= (1 - d->policy->patience) * in->nodes[node].time[DTM_TASK_WEIGHT];
    if (node >= 0 && (fits || o.wants_memory)) do_weight(d, rank, node, now);
    else rest(d, rank, o.next);
}

/* ---- all of it ---- */

/* The F and I of each rank in the order in which they are due: those of a chunk come in order, so chunks are merged. */
static void make_lists(search_dispatcher *d) {
    const search_instance *in = d->instance;
    int next[2 * SEARCH_CHUNKS];
    for (int r = 0; r < in->ranks; r++) {
        uint32_t n = 0;
        listed *list = d->list + (size_t)r * d->most;
        memset(next, 0, sizeof next);
        for (;;) {
            int best = -1;
            double due = 0;
            for (int i = 0; i < 2 * in->chunks; i++) {
                int node = r * in->chunks + i / 2;
                if (next[i] >= in->nodes[node].count) continue;
                double x = d->policy->due[i % 2][(size_t)node * (size_t)in->microbatches + (size_t)next[i]];
                if (best < 0 || x < due) best = i, due = x;
            }
            if (best < 0) break;
            next[best]++;
            list[n++] = (listed){(uint16_t)best, false, 0};
        }
        list[n] = (listed){0, false, n};
        for (int i = 0; i < 2 * in->chunks; i++) d->cursor[2 * r * in->chunks + i] = n;
        for (uint32_t i = n; i-- > 0;) {
            uint32_t *first = &d->cursor[2 * r * in->chunks + list[i].what];
            list[i].next = *first;
            *first = i;
        }
        d->head[r] = 0;
    }
}

/* The least time in which a rank does all that it has to do: each F may be in a pair. */
static double least_work(const search_instance *in, int rank) {
    double all = 0, most = 0;
    int passing = 0;
    for (int f = rank * in->chunks; f < (rank + 1) * in->chunks; f++) {
        const search_node *n = &in->nodes[f];
        all += n->count * (n->time[DTM_TASK_FORWARD] + n->time[DTM_TASK_INPUT] + n->time[DTM_TASK_WEIGHT]);
        passing += n->count;
        for (int b = rank * in->chunks; b < (rank + 1) * in->chunks; b++) {
            if (in->pairs) most = fmax(most, search_saving(in, f, b, true));
            if (in->input_pairs) most = fmax(most, search_saving(in, f, b, false));
        }
    }
    return all - passing * most;
}

static void start(search_dispatcher *d) {
    const search_instance *in = d->instance;
    memset(d->nodes, 0, (size_t)in->n_nodes * sizeof *d->nodes);
    memset(d->free, 0, (size_t)in->ranks * sizeof *d->free);
    memset(d->out, 0, (size_t)in->ranks * sizeof *d->out);
    for (int k = 0; k < 2; k++) memset(d->in[k], 0, (size_t)in->ranks * sizeof *d->in[k]);
    memset(d->used, 0, (size_t)in->ranks * sizeof *d->used);
    memset(d->alive, 0, (size_t)in->ranks * sizeof *d->alive);
    memset(d->count, 0, (size_t)in->ranks * sizeof *d->count);
    d->ends = d->longest = 0;
    for (int r = 0; r < in->ranks; r++) d->least[r] = least_work(in, r);
    memset(d->n_sent, 0, (size_t)in->ranks * SEARCH_CHANNELS * sizeof *d->n_sent);
    memset(d->n_used, 0, (size_t)in->ranks * SEARCH_CHANNELS * sizeof *d->n_used);
    for (int n = 0; n < in->n_nodes; n++) {
        if (in->nodes[n].before >= 0) continue;
        d->nodes[n].arrived_forward = in->nodes[n].count;
        memset(d->arrival[0] + (size_t)n * (size_t)in->microbatches, 0, (size_t)in->microbatches * sizeof(double));
    }
    for (int i = 0; i < 2 * in->n_nodes; i++) refresh(d, i / 2, i % 2);
    wake_all(d);
}

void search_dispatch(search_dispatcher *d, const search_policy *policy, double most, search_plan *plan) {
    const search_instance *in = d->instance;
    most *= 1 + 1e-9; /* sums are not exact */
    d->policy = policy;
    start(d);
    if (policy->planned) make_lists(d);
    for (int r; d->wake[r = d->winner[1]] < INFINITY && d->longest <= most;) choose(d, r, d->wake[r]);
    uint32_t at = 0;
    if (d->longest > most) {
        plan->makespan = d->longest;
        memset(plan->begin, 0, ((size_t)in->ranks + 1) * sizeof *plan->begin);
        return;
    }
    plan->makespan = 0;
    for (int r = 0; r < in->ranks; r++) {
        memcpy(plan->turns + at, d->turns + (size_t)r * d->most, d->count[r] * sizeof *plan->turns);
        plan->begin[r] = at;
        at += d->count[r];
        plan->makespan = fmax(plan->makespan, d->free[r]);
    }
    plan->begin[in->ranks] = at;
    for (int n = 0; n < in->n_nodes; n++)
        if (d->nodes[n].input < in->nodes[n].count || d->nodes[n].pending) plan->makespan = INFINITY;
}

double search_mean_end(const search_dispatcher *d) { return d->ends / d->instance->microbatches; }
