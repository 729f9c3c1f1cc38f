/* A stand-in for libnccl.so.2, on the streams of the driver's stand-in: the functions, what they refuse, groups, and communicators that
 * are made without waiting. What is wrong is printed with the rank; ncclGetLastError returns it too.
 *
 * From the environment (tests):
 *   DTM_SIM_NCCL_SEED=n          orders of sums, eager sends, calls that are in progress for a while
 *   DTM_SIM_NCCL_CTAS=n          blocks of a device: launches of which all do not fit are not in flight together
 *   DTM_SIM_NCCL_ABSENT=r:n      from its launch n on rank r never comes
 *   DTM_SIM_NCCL_REMOTE=r:n      from its launch n on rank r has a remote error
 *   DTM_SIM_NCCL_ABORT_HANGS=1   ncclCommAbort never returns
 *   DTM_SIM_NCCL_PATIENCE=s      seconds without anything going on until that is an error (deadlocks are found at once)
 *   DTM_SIM_NCCL_SENDS_WAIT=1    no send is over before it has been received
 *   DTM_SIM_NCCL_QUIET=1         nothing is printed
 *   DTM_SIM_NCCL_DIR=folder      of the file in which ranks meet */
#include "tests/gpu/sim/nccl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DECLARE(name, result, parameters) result nccl##name parameters;
DTM_NCCL_FUNCTIONS(DECLARE)
DTM_NCCL_NEWER(DECLARE)

static const char magic[8] = "dtm-sim";
static char last_of_none[WHY];

__attribute__((format(printf, 3, 4))) static int refuse(struct ncclComm *comm, int result, const char *format, ...) {
    char *out = comm ? comm->last : last_of_none;
    int length = comm ? snprintf(out, WHY, "rank %d, %s: ", comm->world_rank, comm->name) : 0;
    va_list list;
    va_start(list, format);
    vsnprintf(out + length, (size_t)(WHY - length), format, list);
    va_end(list);
    if (!nccl_settings.quiet) fprintf(stderr, "stand-in of NCCL: %s\n", out);
    return result;
}

int ncclGetVersion(int *version) {
    *version = 22809;
    return NCCL_OK;
}

const char *ncclGetErrorString(int result) {
    static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                        "invalid argument", "invalid usage", "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return result >= 0 && result <= NCCL_PROGRESS ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(struct ncclComm *comm) {
    if (comm && comm->at->world->failed) return comm->at->world->why;
    return comm ? comm->last : last_of_none;
}

/* ---- communicators ---- */

int ncclGetUniqueId(dtm_nccl_id *id) {
    if (!driver_found()) return refuse(NULL, NCCL_SYSTEM, "the driver's stand-in, libcuda.so.1, is not loaded");
    memset(id, 0, sizeof *id);
    memcpy(id->bytes, magic, sizeof magic);
    return world_create(id->bytes + sizeof magic, sizeof id->bytes - sizeof magic) ? NCCL_OK
                                                                                  : refuse(NULL, NCCL_SYSTEM, "no file to meet in");
}

static struct ncclComm *new_comm(const dtm_nccl_config *config, const struct ncclComm *parent) {
    struct ncclComm *comm = calloc(1, sizeof *comm);
    if (!comm) abort();
    pthread_mutex_init(&comm->lock, NULL);
    comm->references = 1;
    comm->pending_end = &comm->pending;
    comm->blocking = parent ? parent->blocking : true;
    comm->ctas = parent ? parent->ctas : UNKNOWN_CTAS;
    comm->parent = -1;
    if (!config) return comm;
    if (config->blocking != DTM_NCCL_UNSET) comm->blocking = config->blocking != 0;
    if (config->max_ctas != DTM_NCCL_UNSET) comm->ctas = config->max_ctas;
    if (config->version >= 22700 && config->name) snprintf(comm->name, sizeof comm->name, "%s", config->name);
    return comm;
}

static bool config_is_right(const dtm_nccl_config *config) {
    if (!config) return true;
    bool counts = config->max_ctas == DTM_NCCL_UNSET || (config->max_ctas > 0 && config->max_ctas <= 64);
    return config->magic == DTM_NCCL_CONFIG_MAGIC && config->version <= 22809 && config->size > 0 && config->size <= sizeof *config &&
           (config->blocking == DTM_NCCL_UNSET || config->blocking == 0 || config->blocking == 1) && counts;
}

/* A call that others have to make too: at once, in progress, or until all have made it. */
static int until_joined(struct ncclComm *comm) {
    int result = NCCL_PROGRESS;
    double begin = nccl_now();
    if (!comm->blocking) return NCCL_PROGRESS;
    while ((result = comm_join(comm)) == NCCL_PROGRESS && nccl_now() - begin < nccl_settings.patience) usleep(50);
    return result == NCCL_PROGRESS ? refuse(comm, NCCL_SYSTEM, "not all ranks have come to make a communicator") : result;
}

int ncclCommInitRankConfig(struct ncclComm **out, int ranks, dtm_nccl_id id, int rank, dtm_nccl_config *config) {
    *out = NULL;
    if (!driver_found()) return refuse(NULL, NCCL_SYSTEM, "the driver's stand-in, libcuda.so.1, is not loaded");
    if (memcmp(id.bytes, magic, sizeof magic) != 0) return refuse(NULL, NCCL_ARGUMENT, "this is no unique id");
    if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks) return refuse(NULL, NCCL_ARGUMENT, "rank %d of %d", rank, ranks);
    if (!config_is_right(config)) return refuse(NULL, NCCL_ARGUMENT, "rank %d: the configuration is not what version it says it is", rank);
    int device;
    unsigned long long unique;
    if (driver_device(NULL, &device, &unique)) return refuse(NULL, NCCL_CUDA, "rank %d: the thread has no context", rank);
    struct mapping *at = mapping_open(id.bytes + sizeof magic, ranks);
    if (!at) return refuse(NULL, NCCL_SYSTEM, "rank %d: the others cannot be met: all have left?", rank);
    struct ncclComm *comm = new_comm(config, NULL);
    comm->at = at;
    comm->world_rank = comm->rank = rank;
    comm->n = ranks;
    struct world *w = at->world;
    int result = NCCL_OK;
    lock_world(w);
    if (!w->n) {
        w->n = ranks;
        w->n_comms = 1;
        w->comms[0].n = ranks;
        w->comms[0].parent = -1;
        snprintf(w->comms[0].name, sizeof w->comms[0].name, "%s", comm->name[0] ? comm->name : "world");
    }
    if (!comm->name[0]) snprintf(comm->name, sizeof comm->name, "world");
    if (w->n != ranks) result = refuse(comm, NCCL_ARGUMENT, "%d ranks, another rank says %d", ranks, w->n);
    for (int r = 0; result == NCCL_OK && r < w->n; r++)
        if (w->devices[r] == unique + 1) result = refuse(comm, NCCL_USAGE, "rank %d has the same device", r);
    if (result == NCCL_OK && w->devices[rank]) result = refuse(comm, NCCL_USAGE, "there is another of this rank");
    if (result == NCCL_OK) {
        w->devices[rank] = unique + 1;
        w->comms[0].members[rank].world = rank;
    }
    unlock_world(w);
    if (result != NCCL_OK) {
        comm_release(comm);
        return result;
    }
    *out = comm;
    return until_joined(comm);
}

static int usable(struct ncclComm *comm, const char *what) {
    if (!comm) return refuse(NULL, NCCL_ARGUMENT, "%s of no communicator", what);
    if (comm->aborted) return refuse(comm, NCCL_USAGE, "%s after an abort", what);
    if (comm->error) return comm->error;
    if (!comm->ready) return refuse(comm, NCCL_USAGE, "%s before the communicator is there (ncclCommGetAsyncError says when)", what);
    if (comm->pending) return refuse(comm, NCCL_USAGE, "%s while the call before it is in progress (ncclCommGetAsyncError says when)", what);
    return NCCL_OK;
}

int ncclCommSplit(struct ncclComm *parent, int color, int key, struct ncclComm **out, dtm_nccl_config *config) {
    *out = NULL;
    int result = usable(parent, "a split");
    if (result != NCCL_OK) return result;
    if (!config_is_right(config)) return refuse(parent, NCCL_ARGUMENT, "the configuration is not what version it says it is");
    if (color < DTM_NCCL_NO_COLOR) return refuse(parent, NCCL_ARGUMENT, "color %d", color);
    struct world *w = parent->at->world;
    lock_world(w);
    int split = parent->shared->members[parent->rank].splits++;
    if (split < SPLITS) w->splits[parent->index][split][parent->rank] = (struct split_call){true, color, key};
    unlock_world(w);
    if (split >= SPLITS) return refuse(parent, NCCL_INTERNAL, "the stand-in splits no more than %d times", SPLITS);
    if (color == DTM_NCCL_NO_COLOR) return NCCL_OK;
    struct ncclComm *comm = new_comm(config, parent);
    comm->at = mapping_open(parent->at->path, w->n);
    comm->world_rank = parent->world_rank;
    comm->parent = parent->index;
    comm->split = split;
    comm->color = color;
    comm->key = key;
    *out = comm;
    return until_joined(comm);
}

int ncclCommGetAsyncError(struct ncclComm *comm, int *out) {
    if (!comm) return refuse(NULL, NCCL_ARGUMENT, "the error of no communicator");
    *out = comm->at->world->failed ? NCCL_USAGE : comm->error;
    if (*out || comm->aborted) return NCCL_OK;
    *out = NCCL_PROGRESS;
    if (comm->polls > 0 && comm->polls-- > 1) return NCCL_OK;
    *out = comm->ready ? NCCL_OK : comm_join(comm);
    pthread_mutex_lock(&comm->lock);
    struct launch *l = *out == NCCL_OK ? comm->pending : NULL;
    if (l) {
        comm->pending = NULL;
        comm->pending_end = &comm->pending;
    }
    if (comm->destroyed && comm->alive) *out = NCCL_PROGRESS;
    pthread_mutex_unlock(&comm->lock);
    while (l) {
        struct launch *next = l->next;
        int result = launch_enqueue(l);
        if (result) *out = comm->error = result;
        l = next;
    }
    return NCCL_OK;
}

int ncclCommFinalize(struct ncclComm *comm) {
    int result = usable(comm, "the end");
    if (result != NCCL_OK) return result;
    comm->destroyed = true;
    return comm->alive ? NCCL_PROGRESS : NCCL_OK;
}

static void leave(struct ncclComm *comm) {
    struct world *w = comm->at->world;
    lock_world(w);
    if (comm->shared) comm->shared->members[comm->rank].gone = true;
    move_on(w);
    unlock_world(w);
}

int ncclCommDestroy(struct ncclComm *comm) {
    if (!comm) return NCCL_OK;
    if (comm->captured) return refuse(comm, NCCL_USAGE, "it is destroyed while a graph has %d of its launches", comm->captured);
    if (comm->alive) return refuse(comm, NCCL_USAGE, "it is destroyed while %d of its launches are under way", comm->alive);
    leave(comm);
    comm_release(comm);
    return NCCL_OK;
}

int ncclCommAbort(struct ncclComm *comm) {
    if (!comm) return NCCL_OK;
    while (nccl_settings.abort_hangs) pause();
    comm->aborted = true;
    leave(comm);
    while (comm->pending) {
        struct launch *next = comm->pending->next;
        free(comm->pending);
        comm->pending = next;
    }
    comm_release(comm);
    return NCCL_OK;
}

/* ---- groups ---- */

static _Thread_local int depth, group_result;
static _Thread_local struct launch *group, **group_end;

int ncclGroupStart(void) {
    if (depth++ == 0) {
        group_end = &group;
        group_result = NCCL_OK;
    }
    return NCCL_OK;
}

/* Of a non-blocking communicator some calls are in progress for a while: until then nothing is on the stream. */
static bool stays_in_progress(struct ncclComm *comm) {
    return !comm->blocking && nccl_mix(nccl_settings.seed * 64 + (uint64_t)comm->world_rank, comm->calls++) % 8 == 0;
}

static _Thread_local struct launch *held; /* by a mutant, until after the next */

static int give(struct launch *first) {
    int result = NCCL_OK;
    if (!first) return NCCL_OK;
    if (held) {
        struct launch **end = &first->next;
        while (*end) end = &(*end)->next;
        *end = held;
        held = NULL;
    } else if (driver_mutated("later", first->name)) {
        held = first;
        first = first->next;
        held->next = NULL;
    }
    for (struct launch *l = first, *next; l; l = next) {
        struct ncclComm *comm = l->comm;
        next = l->next;
        l->next = NULL;
        if (result != NCCL_OK && result != NCCL_PROGRESS) {
            free(l);
            continue;
        }
        bool late = comm->pending || stays_in_progress(comm);
        if (late && !comm->pending) comm->polls = 2;
        int one = NCCL_PROGRESS;
        if (late) {
            *comm->pending_end = l;
            comm->pending_end = &l->next;
        } else {
            one = launch_enqueue(l);
        }
        if (one != NCCL_OK && result == NCCL_OK) result = one;
        if (one == NCCL_CUDA) refuse(comm, NCCL_CUDA, "%s cannot go on its stream", "a launch");
    }
    return result;
}

/* Sends and receives of one group and communicator are one launch. */
static int merge(void) {
    for (struct launch **at = &group; *at; at = &(*at)->next) {
        struct launch *l = *at;
        if (l->steps[0].call.kind < SEND) continue;
        for (struct launch **other = &l->next; *other;) {
            struct launch *o = *other;
            if (o->comm != l->comm || o->steps[0].call.kind < SEND) {
                other = &o->next;
                continue;
            }
            if (o->stream != l->stream) return refuse(l->comm, NCCL_USAGE, "messages of one group are on two streams");
            bool next = other == &l->next;
            struct launch *both = realloc(l, sizeof *l + (size_t)(l->n + 1) * sizeof *l->steps);
            if (!both) abort();
            if (next) other = &both->next;
            both->steps[both->n++] = o->steps[0];
            *at = l = both;
            *other = o->next;
            free(o);
        }
        if (l->n > 1) snprintf(l->name, sizeof l->name, "%d messages", l->n);
    }
    return NCCL_OK;
}

static bool overlap(const char *a, uint64_t a_bytes, const char *b, uint64_t b_bytes) {
    return a && b && a < b + b_bytes && b < a + a_bytes;
}
static uint64_t step_bytes(const struct step *s) { return s->call.count * (uint64_t)type_bytes(s->call.type); }

static int check_messages(const struct launch *l) {
    for (int i = 0; i < l->n; i++)
        for (int j = 0; j < l->n; j++) {
            const struct step *a = &l->steps[i], *b = &l->steps[j];
            if (a->call.kind != RECEIVE || i == j) continue;
            const char *other = b->call.kind == SEND ? b->from : b->to;
            if (overlap(a->to, step_bytes(a), other, step_bytes(b)))
                return refuse(l->comm, NCCL_USAGE, "a message from rank %d of the communicator is received over another's memory", a->call.root);
        }
    return NCCL_OK;
}

static bool faces(const struct launch *first) {
    bool sends = false, receives = false;
    for (; first; first = first->next) {
        sends = sends || first->steps[0].call.kind == SEND;
        receives = receives || first->steps[0].call.kind == RECEIVE;
    }
    return sends && receives;
}

int ncclGroupEnd(void) {
    if (depth == 0) return refuse(NULL, NCCL_USAGE, "a group ends that has not begun");
    if (--depth) return NCCL_OK;
    static _Atomic bool all_loose; /* a mistake of the program: of all its ranks, from then on */
    if (group_result == NCCL_OK && faces(group) && driver_mutated("group", group->name)) all_loose = true;
    bool loose = all_loose && group_result == NCCL_OK && faces(group);
    int result = group_result == NCCL_OK && !loose ? merge() : group_result;
    for (struct launch *l = group; l && result == NCCL_OK; l = l->next) result = check_messages(l);
    struct launch *first = group;
    group = NULL;
    if (result == NCCL_OK) return give(first);
    while (first) {
        struct launch *next = first->next;
        free(first);
        first = next;
    }
    return result;
}

/* ---- what is asked for ---- */

/* In place exactly, at `offset` bytes of the other, or apart. */
static bool place_is_right(const char *part, uint64_t part_bytes, const char *whole, uint64_t whole_bytes, uint64_t offset) {
    return part == whole + offset || !overlap(part, part_bytes, whole, whole_bytes);
}

static bool placed(const struct ncclComm *comm, const struct step *s) {
    uint64_t bytes = step_bytes(s), all = bytes * (uint64_t)comm->n, own = bytes * (uint64_t)comm->rank;
    switch (s->call.kind) {
    case ALL_GATHER: return place_is_right(s->from, bytes, s->to, all, own);
    case REDUCE_SCATTER: return place_is_right(s->to, bytes, s->from, all, own);
    case ALL_TO_ALL: return !overlap(s->from, all, s->to, all);
    case SEND: case RECEIVE: return true;
    default: return place_is_right(s->from, bytes, s->to, bytes, 0);
    }
}

/* That `call_text` can tell. */
static bool known(const struct call *c) { return type_bytes(c->type) && (c->op == DTM_NCCL_SUM || c->op == DTM_NCCL_MAX); }

static int checked(struct ncclComm *comm, const struct step *s, dtm_cu_stream stream) {
    char text[TEXT];
    int device;
    unsigned long long unique;
    int result = usable(comm, "a call");
    if (result != NCCL_OK) return result;
    if (!type_bytes(s->call.type)) return refuse(comm, NCCL_ARGUMENT, "type %d", s->call.type);
    if (!known(&s->call)) return refuse(comm, NCCL_ARGUMENT, "the stand-in has no operation %d", s->call.op);
    if (s->call.root < 0 || s->call.root >= comm->n)
        return refuse(comm, NCCL_ARGUMENT, "rank %d of %d of the communicator", s->call.root, comm->n);
    call_text(&s->call, text, sizeof text);
    uint64_t parts = s->call.kind == REDUCE_SCATTER || s->call.kind == ALL_TO_ALL ? (uint64_t)comm->n : 1;
    if (step_bytes(s) * parts > comm->at->world->area)
        return refuse(comm, NCCL_INTERNAL, "%s: the stand-in carries no more than %llu bytes", text, (unsigned long long)comm->at->world->area);
    bool sends = s->call.kind != RECEIVE && (s->call.kind != BROADCAST || s->call.root == comm->rank);
    bool receives = s->call.kind != SEND && (s->call.kind != REDUCE || s->call.root == comm->rank);
    if (s->call.count && ((sends && !s->from) || (receives && !s->to))) return refuse(comm, NCCL_ARGUMENT, "%s of no memory", text);
    uint64_t gets = s->call.kind == ALL_GATHER || s->call.kind == ALL_TO_ALL ? (uint64_t)comm->n : 1;
    if ((sends && !driver_host(s->from, step_bytes(s) * parts)) || (receives && !driver_host(s->to, step_bytes(s) * gets)))
        return refuse(comm, NCCL_ARGUMENT, "%s: no memory is there", text);
    uint64_t align = (uint64_t)type_bytes(s->call.type) - 1;
    if (((uintptr_t)s->from | (uintptr_t)s->to) & align) return refuse(comm, NCCL_ARGUMENT, "%s is not aligned to its elements", text);
    if (!placed(comm, s)) return refuse(comm, NCCL_USAGE, "%s is neither in place nor apart", text);
    if (driver_device(stream, &device, &unique)) return refuse(comm, NCCL_CUDA, "%s on no stream", text);
    if (comm->at->world->devices[comm->world_rank] != unique + 1)
        return refuse(comm, NCCL_USAGE, "%s on a stream of another device (%d)", text, device);
    if (driver_device(NULL, &device, &unique) || comm->at->world->devices[comm->world_rank] != unique + 1)
        return refuse(comm, NCCL_USAGE, "%s in a thread whose context is of another device", text);
    return NCCL_OK;
}

/* Mistakes of the caller, made for it. Only those that a call can have. */
static void mutate(struct ncclComm **comm, struct step *s) {
    static _Thread_local struct ncclComm *others[2]; /* the last two that differ */
    struct call *c = &s->call;
    char text[TEXT];
    call_text(c, text, sizeof text);
    bool reduces = c->kind == ALL_REDUCE || c->kind == REDUCE_SCATTER || c->kind == REDUCE;
    bool rooted = c->kind >= SEND || c->kind == BROADCAST || c->kind == REDUCE;
    char *from = (char *)(uintptr_t)s->from;
    bool in_place = from && s->to && (from == s->to || from == s->to + step_bytes(s) * (uint64_t)(*comm)->rank);
    if (c->count > 1 && driver_mutated("count", text)) c->count--;
    if (driver_mutated("type", text)) c->type = c->type == DTM_NCCL_I32 ? DTM_NCCL_F32 : c->type == DTM_NCCL_U8 ? 0 : DTM_NCCL_I32;
    if (reduces && driver_mutated("op", text)) c->op = c->op == DTM_NCCL_MAX ? DTM_NCCL_SUM : DTM_NCCL_MAX;
    if (rooted && driver_mutated("root", text)) c->root = (c->root + 1) % (*comm)->n;
    if (in_place && driver_mutated("offset", text)) s->from += type_bytes(c->type);
    if (others[0] != *comm) {
        others[1] = others[0];
        others[0] = *comm;
    }
    if (others[1] && driver_mutated("comm", text)) *comm = others[1];
}

static int ask(struct ncclComm *comm, enum kind kind, const void *from, void *to, size_t count, int type, int op, int root,
               dtm_cu_stream stream) {
    struct step step = {{(int)kind, type, op, root, count}, from, to};
    if (comm && known(&step.call)) mutate(&comm, &step);
    int result = checked(comm, &step, stream);
    if (result != NCCL_OK) {
        group_result = result;
        return result;
    }
    if (!count && kind < SEND) return NCCL_OK; /* as NCCL does */
    char name[TEXT];
    call_text(&step.call, name, sizeof name);
    if (driver_mutated("skip", name)) return NCCL_OK;
    struct launch *l = calloc(1, sizeof *l + sizeof *l->steps);
    if (!l) abort();
    l->comm = comm;
    l->stream = stream;
    l->n = 1;
    l->steps[0] = step;
    snprintf(l->name, sizeof l->name, "%s", name);
    if (!depth) return give(l);
    *group_end = l;
    group_end = &l->next;
    return NCCL_OK;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, struct ncclComm *comm, dtm_cu_stream stream) {
    return ask(comm, ALL_REDUCE, from, to, count, type, op, 0, stream);
}
int ncclAllGather(const void *from, void *to, size_t count, int type, struct ncclComm *comm, dtm_cu_stream stream) {
    return ask(comm, ALL_GATHER, from, to, count, type, DTM_NCCL_SUM, 0, stream);
}
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, struct ncclComm *comm, dtm_cu_stream stream) {
    return ask(comm, REDUCE_SCATTER, from, to, count, type, op, 0, stream);
}
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, struct ncclComm *comm, dtm_cu_stream stream) {
    return ask(comm, BROADCAST, from, to, count, type, DTM_NCCL_SUM, root, stream);
}
int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, struct ncclComm *comm, dtm_cu_stream stream) {
    return ask(comm, REDUCE, from, to, count, type, op, root, stream);
}
int ncclSend(const void *from, size_t count, int type, int peer, struct ncclComm *comm, dtm_cu_stream stream) {
    return ask(comm, SEND, from, NULL, count, type, DTM_NCCL_SUM, peer, stream);
}
int ncclRecv(void *to, size_t count, int type, int peer, struct ncclComm *comm, dtm_cu_stream stream) {
    return ask(comm, RECEIVE, NULL, to, count, type, DTM_NCCL_SUM, peer, stream);
}
int ncclAlltoAll(const void *from, void *to, size_t count, int type, struct ncclComm *comm, dtm_cu_stream stream) {
    return ask(comm, ALL_TO_ALL, from, to, count, type, DTM_NCCL_SUM, 0, stream);
}

/* ---- memory ---- */

int ncclMemAlloc(void **out, size_t bytes) {
    *out = NULL;
    return refuse(NULL, NCCL_CUDA, "the stand-in has no memory of its own (%zu bytes)", bytes);
}
int ncclMemFree(void *at) { return at ? refuse(NULL, NCCL_USAGE, "memory that is not the stand-in's") : NCCL_OK; }

int ncclCommWindowRegister(struct ncclComm *comm, void *at, size_t bytes, dtm_nccl_window *out, int flags) {
    int result = usable(comm, "a window");
    *out = NULL;
    if (result != NCCL_OK) return result;
    if (!at || !bytes || (flags & ~DTM_NCCL_WINDOW_SYMMETRIC)) return refuse(comm, NCCL_ARGUMENT, "a window of %zu bytes", bytes);
    *out = malloc(1);
    return *out ? NCCL_OK : NCCL_SYSTEM;
}
int ncclCommWindowDeregister(struct ncclComm *comm, dtm_nccl_window window) {
    (void)comm;
    free(window);
    return NCCL_OK;
}
