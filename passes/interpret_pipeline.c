/* The programs of a pipeline's ranks, interpreted side by side: a thread for each coordinate on the pipeline's axis, of
 * which one runs at a time and gives way where it has to wait for another. A message waits in its channel (source,
 * destination, forward or backward) until it is received; sums over the axis are met for. Nothing is ever waited for in
 * vain: when all wait, that is said. */
#include "passes/interpret_state.h"

#include <pthread.h>
#include <math.h>
#include <string.h>

typedef struct message {
    struct message *next;
    uint32_t count;
    int64_t *elements; /* by value and rank */
    double **blocks;   /* the same */
} message;

typedef struct channel {
    message *first, **end;
} channel;

/* A sum over some coordinates of the axis: the `number`-th that exactly they have. */
typedef struct meeting {
    struct meeting *next;
    dtm_string members; /* 0: all */
    int64_t number;
    int arrived;
    dtm_string name;  /* of the first value, which is the same on all */
    double ***blocks; /* by coordinate: by value and rank */
} meeting;

struct dtm_peers {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    dtm_arena *arena;
    int count;            /* coordinates */
    int running, blocked; /* threads; blocked: those that wait for a change since `changes` */
    uint64_t changes;
    bool failed;
    channel *channels; /* by source, destination, backward */
    meeting *meetings;
};

typedef struct player {
    dtm_peers *peers;
    const dtm_module *module;
    const dtm_interpret_options *options;
    dtm_interpretation *out;
} player;

/* ---- waiting ---- */

static void stop_if_stuck(dtm_peers *peers) {
    if (peers->failed || !peers->running || peers->blocked < peers->running) return;
    peers->failed = true;
    pthread_cond_broadcast(&peers->changed);
}

static void tell(dtm_peers *peers) {
    peers->changes++;
    peers->blocked = 0;
    pthread_cond_broadcast(&peers->changed);
}

/* Gives way until something has changed. False: nothing ever will, or another rank has failed. */
static bool wait_for_change(dtm_peers *peers) {
    uint64_t before = peers->changes;
    peers->blocked++;
    stop_if_stuck(peers);
    while (peers->changes == before && !peers->failed) pthread_cond_wait(&peers->changed, &peers->lock);
    return !peers->failed;
}

static bool stuck(dtm_run *run, const dtm_op_data *op, const char *what) {
    return dtm_run_error(run, op, "rank %lld of the pipeline waits for %s, and all others wait or have ended",
                         (long long)run->module->rank, what);
}

/* ---- messages ---- */

static bool is_backward(const dtm_run *run, const dtm_op_data *op) {
    dtm_op self = (dtm_op)(op - run->module->ops);
    return dtm_enclosing(run->module, self, DTM_OP_BACKWARD) != 0;
}

static channel *channel_of(dtm_run *run, int64_t from, int64_t to, bool backward) {
    dtm_peers *peers = run->peers;
    channel *c = &peers->channels[(from * peers->count + to) * 2 + backward];
    if (!c->end) c->end = &c->first;
    return c;
}

static double *copy_block(dtm_arena *arena, const double *block, int64_t elements) {
    double *copy = dtm_arena_alloc(arena, ((size_t)elements + 1) * sizeof *copy);
    memcpy(copy, block, (size_t)elements * sizeof *copy);
    return copy;
}

bool dtm_run_send(dtm_run *run, const dtm_op_data *op) {
    dtm_peers *peers = run->peers;
    if (!peers) return dtm_run_error(run, op, "`send` outside of a pipeline");
    message *m = dtm_arena_alloc(peers->arena, sizeof *m);
    size_t ranks = (size_t)run->ranks;
    m->count = op->n_operands;
    m->elements = dtm_arena_alloc(peers->arena, m->count * ranks * sizeof *m->elements);
    m->blocks = dtm_arena_alloc(peers->arena, m->count * ranks * sizeof *m->blocks);
    for (uint32_t i = 0; i < op->n_operands; i++) {
        size_t slot = dtm_run_slot(run, op, op->operands[i]);
        if (slot == SIZE_MAX || !dtm_storage_read(run, op, op->operands[i], slot)) return false;
        dtm_type type = run->module->values[op->operands[i]].type;
        for (size_t rank = 0; rank < ranks; rank++) {
            int64_t elements = dtm_run_extent(run, type, (int64_t)rank)->elements;
            m->elements[i * ranks + rank] = elements;
            m->blocks[i * ranks + rank] = copy_block(peers->arena, run->views[slot * ranks + rank], elements);
        }
    }
    channel *c = channel_of(run, run->module->rank, (int64_t)op->attributes.number[DTM_MESSAGE_PEER], is_backward(run, op));
    *c->end = m;
    c->end = &m->next;
    tell(peers);
    return true;
}

bool dtm_run_receive(dtm_run *run, const dtm_op_data *op) {
    dtm_peers *peers = run->peers;
    if (!peers) return dtm_run_error(run, op, "`receive` outside of a pipeline");
    int64_t from = (int64_t)op->attributes.number[DTM_MESSAGE_PEER];
    channel *c = channel_of(run, from, run->module->rank, is_backward(run, op));
    while (!c->first)
        if (!wait_for_change(peers)) return c->first ? false : stuck(run, op, "a message");
    message *m = c->first;
    c->first = m->next;
    if (!c->first) c->end = &c->first;
    if (m->count != op->n_results)
        return dtm_run_error(run, op, "a message of %u values comes where %u are received", m->count, op->n_results);
    size_t ranks = (size_t)run->ranks;
    for (uint32_t i = 0; i < op->n_results; i++) {
        size_t slot = dtm_run_slot(run, op, op->results[i]);
        if (slot == SIZE_MAX) return false;
        bool posted = dtm_ordered_loop(run->module, (dtm_op)(op - run->module->ops)) != 0;
        if (posted && !dtm_storage_read(run, op, op->results[i], slot)) return false; /* its place is still its own */
        dtm_type type = run->module->values[op->results[i]].type;
        for (size_t rank = 0; rank < ranks; rank++) {
            int64_t elements = dtm_run_extent(run, type, (int64_t)rank)->elements;
            if (elements != m->elements[i * ranks + rank])
                return dtm_run_error(run, op, "`%s` has %lld elements, and %lld come",
                                     dtm_value_name(run->module, op->results[i]), (long long)elements,
                                     (long long)m->elements[i * ranks + rank]);
            memcpy(dtm_run_block(run, slot, type, (int64_t)rank), m->blocks[i * ranks + rank],
                   (size_t)elements * sizeof(double));
        }
        dtm_storage_write(run, op->results[i], slot);
    }
    return true;
}

/* ---- sums over the axis ---- */

static meeting *meeting_of(dtm_run *run, dtm_string members) {
    dtm_peers *peers = run->peers;
    int64_t number = 0;
    meeting **at = &peers->meetings;
    for (; *at; at = &(*at)->next)
        if ((*at)->members == members) {
            if (!(*at)->blocks[run->module->rank]) return *at; /* the first that this rank has not come to */
            number = (*at)->number + 1;
        }
    meeting *m = *at = dtm_arena_alloc(peers->arena, sizeof *m);
    *m = (meeting){.members = members, .number = number};
    m->blocks = dtm_arena_alloc(peers->arena, (size_t)peers->count * sizeof *m->blocks);
    return m;
}

static bool lawful(const dtm_run *run, const dtm_op_data *op, uint32_t index) {
    dtm_type_data from = run->module->types[run->module->values[op->operands[index]].type];
    const dtm_type_data *to = &run->module->types[run->module->values[op->results[index]].type];
    if (!((from.sum | from.max) & op->attributes.axes)) return false;
    from.sum &= (uint16_t)~op->attributes.axes;
    from.max &= (uint16_t)~op->attributes.axes;
    return memcmp(&from, to, sizeof from) == 0;
}

bool dtm_run_meets(const dtm_run *run, const dtm_op_data *op) {
    return dtm_along_pipeline(run->module, op);
}

bool dtm_run_meet(dtm_run *run, const dtm_op_data *op) {
    dtm_peers *peers = run->peers;
    int64_t members = dtm_collective_members(run->module, op);
    size_t ranks = (size_t)run->ranks;
    if (!peers || op->kind != DTM_OP_ALL_REDUCE || op->attributes.axes & (op->attributes.axes - 1))
        return dtm_run_error(run, op, "`%s` along the axis of a pipeline", dtm_op_rows[op->kind].name);
    if (!dtm_is_member(run->module, op, run->module->rank))
        return dtm_run_error(run, op, "rank %lld of the pipeline takes part in a sum that is not its own",
                             (long long)run->module->rank);
    meeting *m = meeting_of(run, op->attributes.members);
    dtm_string name = run->module->values[op->results[0]].name;
    if (m->arrived && m->name != name)
        return dtm_run_error(run, op, "rank %lld of the pipeline adds to `%s` where others add to `%s`",
                             (long long)run->module->rank, dtm_string_text(run->context, name),
                             dtm_string_text(run->context, m->name));
    m->name = name;
    double **mine = dtm_arena_alloc(peers->arena, op->n_operands * ranks * sizeof *mine);
    for (uint32_t i = 0; i < op->n_operands; i++) {
        dtm_type type = run->module->values[op->operands[i]].type;
        size_t slot = dtm_run_slot(run, op, op->operands[i]);
        if (slot == SIZE_MAX) return false;
        if (!lawful(run, op, i))
            return dtm_run_error(run, op, "`all_reduce` over a pipeline's axis takes a sum or a maximum over it");
        for (size_t rank = 0; rank < ranks; rank++)
            mine[i * ranks + rank] =
                copy_block(peers->arena, run->views[slot * ranks + rank], dtm_run_extent(run, type, (int64_t)rank)->elements);
    }
    m->blocks[run->module->rank] = mine;
    m->arrived++;
    tell(peers);
    while (m->arrived < (members ? members : peers->count))
        if (!wait_for_change(peers)) return stuck(run, op, "others to add to a sum");
    for (uint32_t i = 0; i < op->n_results; i++) {
        dtm_type type = run->module->values[op->results[i]].type;
        size_t slot = dtm_run_slot(run, op, op->results[i]);
        if (slot == SIZE_MAX) return false;
        bool max = run->module->types[run->module->values[op->operands[i]].type].max & op->attributes.axes;
        double least = max ? dtm_least((dtm_dtype)run->module->types[type].dtype) : 0;
        for (size_t rank = 0; rank < ranks; rank++) {
            double *out = dtm_run_block(run, slot, type, (int64_t)rank);
            int64_t elements = dtm_run_extent(run, type, (int64_t)rank)->elements;
            for (int64_t e = 0; e < elements; e++) out[e] = least;
            for (int p = 0; p < peers->count; p++)
                for (int64_t e = 0; m->blocks[p] && e < elements; e++) {
                    double x = m->blocks[p][i * ranks + rank][e];
                    if (!max)
                        out[e] += x;
                    else if (x > out[e] || isnan(x))
                        out[e] = x;
                }
        }
    }
    return true;
}

/* ---- all ranks ---- */

static void *play(void *state) {
    player *p = state;
    pthread_mutex_lock(&p->peers->lock);
    p->out = p->peers->failed ? NULL : dtm_interpret_rank(p->module, p->options, p->peers);
    if (!p->out) p->peers->failed = true;
    p->peers->running--;
    pthread_cond_broadcast(&p->peers->changed);
    stop_if_stuck(p->peers);
    pthread_mutex_unlock(&p->peers->lock);
    return NULL;
}

static bool same_bits(const dtm_tensor *a, const dtm_tensor *b) {
    return a->elements == b->elements && memcmp(a->data, b->data, (size_t)a->elements * sizeof *a->data) == 0;
}

/* What went through another rank: of a pipeline in both directions each has its own microbatches. */
static void fill(dtm_tensor *known, const dtm_tensor *other) {
    for (int64_t i = 0; i < known->elements; i++) {
        if (known->seen[i] || (other->seen && !other->seen[i])) continue;
        known->seen[i] = 1;
        known->data[i] = other->data[i];
    }
    if (!memchr(known->seen, 0, (size_t)known->elements)) known->seen = NULL;
}

/* Adds one rank's tensors; what several ranks have must be the same on all. */
static bool merge(const dtm_module *module, dtm_interpretation *out, dtm_tensors *to, const dtm_tensors *from, bool alike) {
    for (size_t i = 0; i < from->count; i++) {
        dtm_tensor tensor = from->data[i];
        dtm_tensor *known = NULL;
        for (size_t k = 0; k < to->count && !known; k++)
            if (to->data[k].step == tensor.step && strcmp(to->data[k].name, tensor.name) == 0) known = &to->data[k];
        if (known && alike && !same_bits(known, &tensor)) {
            dtm_error(module->context, (dtm_span){0, 0, 0}, DTM_INTERPRET_BROKEN,
                      "`%s`, which several ranks of the pipeline hold, differs in step %lld", tensor.name,
                      (long long)tensor.step);
            return false;
        }
        if (known && known->seen && known->elements == tensor.elements) fill(known, &tensor);
        if (known) continue;
        if (tensor.seen) tensor.seen = memcpy(dtm_arena_alloc(out->arena, (size_t)tensor.elements), tensor.seen, (size_t)tensor.elements);
        tensor.name = dtm_arena_strdup(out->arena, tensor.name);
        tensor.data = copy_block(out->arena, tensor.data, tensor.elements);
        DTM_PUSH(out->arena, to->data, to->count, to->capacity, tensor);
    }
    return true;
}

static dtm_interpretation *merge_all(const dtm_module *module, const player *players) {
    dtm_arena *arena = dtm_arena_create();
    dtm_interpretation *out = dtm_arena_alloc(arena, sizeof *out);
    out->arena = arena;
    bool good = true;
    for (size_t i = 0; i < module->n_ranks; i++) {
        const dtm_interpretation *one = players[i].out;
        out->steps = one->steps;
        good = good && merge(module, out, &out->reports, &one->reports, true) &&
               merge(module, out, &out->outputs, &one->outputs, true) &&
               merge(module, out, &out->gradients, &one->gradients, true) &&
               merge(module, out, &out->weights, &one->weights, true) && merge(module, out, &out->states, &one->states, true) &&
               merge(module, out, &out->values, &one->values, false);
    }
    if (good) return out;
    dtm_interpretation_destroy(out);
    return NULL;
}

dtm_interpretation *dtm_interpret_pipeline(const dtm_module *module, const dtm_interpret_options *options) {
    dtm_peers peers = {.arena = dtm_arena_create(), .count = (int)module->n_ranks, .running = (int)module->n_ranks};
    dtm_interpret_options shared = *options;
    player *players = dtm_arena_alloc(peers.arena, module->n_ranks * sizeof *players);
    pthread_t *threads = dtm_arena_alloc(peers.arena, module->n_ranks * sizeof *threads);
    peers.channels = dtm_arena_alloc(peers.arena, module->n_ranks * module->n_ranks * 2 * sizeof *peers.channels);
    if (!shared.bounds) {
        dtm_input_bound *bounds;
        shared.n_bounds = dtm_input_bounds(module, peers.arena, &bounds);
        shared.bounds = bounds;
    }
    pthread_mutex_init(&peers.lock, NULL);
    pthread_cond_init(&peers.changed, NULL);
    pthread_mutex_lock(&peers.lock);
    size_t started = 0;
    for (; started < module->n_ranks; started++) {
        players[started] = (player){&peers, module->ranks[started], &shared, NULL};
        if (pthread_create(&threads[started], NULL, play, &players[started]) != 0) {
            dtm_error(module->context, (dtm_span){0, 0, 0}, DTM_INTERPRET_BUDGET, "no thread for rank %zu of the pipeline",
                      started);
            peers.failed = true;
            peers.running = (int)started;
            break;
        }
    }
    pthread_mutex_unlock(&peers.lock);
    bool good = started == module->n_ranks;
    for (size_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    for (size_t i = 0; i < started; i++) good = good && players[i].out;
    dtm_interpretation *out = good ? merge_all(module, players) : NULL;
    for (size_t i = 0; i < started; i++) dtm_interpretation_destroy(players[i].out);
    pthread_mutex_destroy(&peers.lock);
    pthread_cond_destroy(&peers.changed);
    dtm_arena_destroy(peers.arena);
    return out;
}
