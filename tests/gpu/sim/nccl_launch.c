/* Launches as they run on their streams: a rank comes to one, waits for the others, and takes what they brought. */
#include "tests/gpu/sim/nccl.h"
#include "tests/gpu/sim/sim.h"
#include "tests/gpu/sim/work.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the driver's stand-in ---- */

static int (*enqueue)(struct CUstream_st *, const struct sim_work *);
static int (*device_of)(struct CUstream_st *, int *, unsigned long long *);
static void *(*host_of)(uint64_t at, size_t bytes);
static bool (*mutated)(const char *which, const char *of);

static int find_driver(struct dl_phdr_info *info, size_t size, void *out) {
    (void)size;
    const char *name = strrchr(info->dlpi_name, '/');
    if (strcmp(name ? name + 1 : info->dlpi_name, "libcuda.so.1") != 0) return 0;
    snprintf(out, 1024, "%s", info->dlpi_name);
    return 1;
}

static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

static void find_once(void) {
    char path[1024] = "";
    settings_read();
    dl_iterate_phdr(find_driver, path);
    void *handle = path[0] ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (!handle) return;
    *(void **)&enqueue = dlsym(handle, "sim_work_enqueue");
    *(void **)&device_of = dlsym(handle, "sim_work_device");
    *(void **)&host_of = dlsym(handle, "dtm_sim_host");
    *(void **)&mutated = dlsym(handle, "dtm_sim_mutated");
}

bool driver_found(void) {
    pthread_once(&driver_once, find_once);
    return enqueue && device_of && host_of;
}

bool driver_mutated(const char *which, const char *of) { return mutated && mutated(which, of); }

void *driver_host(const void *at, uint64_t bytes) { return host_of((uint64_t)(uintptr_t)at, bytes); }

int driver_device(dtm_cu_stream stream, int *device, unsigned long long *unique) { return device_of(stream, device, unique); }

/* ---- a run ---- */

struct run {
    struct launch *launch;
    uint64_t number, of_rank; /* of the communicator's launches, from 0; of all launches of the rank, from 1 */
    uint64_t collective;      /* its number, once it has been reached */
    bool holds, reached, finished, remote;
    struct {
        bool posted, done;
        uint64_t number;
    } steps[];
};

static void *begin_run(void *state) {
    struct launch *l = state;
    struct ncclComm *comm = l->comm;
    struct run *r = calloc(1, sizeof *r + (size_t)l->n * sizeof *r->steps);
    if (!r) abort();
    l->begun = true;
    r->launch = l;
    pthread_mutex_lock(&comm->lock);
    r->number = comm->begun++;
    comm->alive++;
    comm->references++;
    pthread_mutex_unlock(&comm->lock);
    struct world *w = comm->at->world;
    lock_world(w);
    comm->shared->members[comm->rank].begun = r->number + 1;
    r->of_rank = ++w->launches[comm->world_rank];
    unlock_world(w);
    return r;
}

static bool is_shift(const struct step *s) { return s->call.kind == SEND || s->call.kind == RECEIVE; }

/* What a member brings to a collective, in bytes. */
static uint64_t brought(const struct call *c, int n) {
    uint64_t bytes = c->count * (uint64_t)type_bytes(c->type);
    return c->kind == REDUCE_SCATTER || c->kind == ALL_TO_ALL ? bytes * (uint64_t)n : bytes;
}

/* What it gets. */
static uint64_t gotten(const struct call *c, int n) {
    uint64_t bytes = c->count * (uint64_t)type_bytes(c->type);
    return c->kind == ALL_GATHER || c->kind == ALL_TO_ALL ? bytes * (uint64_t)n : bytes;
}

static bool gets(const struct ncclComm *comm, const struct call *c) {
    return c->kind != SEND && (c->kind != REDUCE || c->root == comm->rank);
}
static bool brings(const struct ncclComm *comm, const struct call *c) {
    return c->kind != RECEIVE && (c->kind != BROADCAST || c->root == comm->rank);
}

/* All have reached it: what this member gets. */
static void take(const struct ncclComm *comm, const struct run *r, const struct step *s) {
    const struct call *c = &s->call;
    if (!gets(comm, c)) return;
    char *to = driver_host(s->to, gotten(c, comm->n));
    uint64_t bytes = c->count * (uint64_t)type_bytes(c->type);
    const void *from[MAX_RANKS];
    for (int m = 0; m < comm->n; m++) from[m] = area_of(comm, m, (int)(r->collective & 1));
    uint64_t seed = nccl_mix(nccl_settings.seed, comm->shared->identity);
    switch (c->kind) {
    case ALL_REDUCE:
    case REDUCE:
        reduce(to, from, comm->n, c->count, 0, c->type, c->op, seed);
        return;
    case REDUCE_SCATTER:
        for (int m = 0; m < comm->n; m++) from[m] = (const char *)from[m] + (uint64_t)comm->rank * bytes;
        reduce(to, from, comm->n, c->count, (uint64_t)comm->rank, c->type, c->op, seed);
        return;
    case ALL_GATHER:
        for (int m = 0; m < comm->n; m++) memcpy(to + (uint64_t)m * bytes, from[m], bytes);
        return;
    case BROADCAST:
        memcpy(to, from[c->root], bytes);
        return;
    default:
        for (int m = 0; m < comm->n; m++)
            memcpy(to + (uint64_t)m * bytes, (const char *)from[m] + (uint64_t)comm->rank * bytes, bytes);
    }
}

static void print_calls(struct world *w, const struct ncclComm *comm, const struct run *r) {
    char text[WHY] = "";
    size_t length = 0;
    for (int m = 0; m < comm->n; m++) {
        char call[TEXT];
        const struct member *at = &comm->shared->members[m];
        call_text(&at->call[r->collective & 1], call, sizeof call);
        length += (size_t)snprintf(text + length, sizeof text - length, "\n  rank %d: %s", at->world, call);
        if (length >= sizeof text) break;
    }
    fail_world(w, "the ranks of %s differ in collective %llu:%s", comm->shared->name, (unsigned long long)r->collective + 1, text);
}

/* With the world's lock. True: it is done. */
static bool go_on_with_collective(struct world *w, struct ncclComm *comm, struct run *r) {
    const struct step *s = &r->launch->steps[0];
    struct member *own = &comm->shared->members[comm->rank];
    if (!r->reached) {
        r->collective = own->reached++;
        own->call[r->collective & 1] = s->call;
        uint64_t bytes = brought(&s->call, comm->n);
        if (brings(comm, &s->call)) memcpy(area_of(comm, comm->rank, (int)(r->collective & 1)), driver_host(s->from, bytes), bytes);
        r->reached = true;
        move_on(w);
    }
    char waits[TEXT] = "";
    bool all = true, agree = true;
    for (int m = 0; m < comm->n; m++) {
        const struct member *at = &comm->shared->members[m];
        if (at->reached <= r->collective) {
            size_t length = strlen(waits);
            snprintf(waits + length, sizeof waits - length, " %d", at->world);
            all = false;
        } else if (at->finished <= r->collective) { /* else it agreed, and may be further on */
            agree = agree && calls_agree(&at->call[r->collective & 1], &s->call);
        }
    }
    if (!all) {
        snprintf(own->waits, sizeof own->waits, "%.60s (collective %llu), which waits for rank%.60s", r->launch->name,
                 (unsigned long long)r->collective + 1, waits);
        return false;
    }
    if (!agree) {
        print_calls(w, comm, r);
        return false;
    }
    take(comm, r, s);
    own->finished++;
    return true;
}

static bool is_eager(const struct ncclComm *comm, const struct step *s, uint64_t number) {
    uint64_t pair = (comm->shared->identity << 16) + (uint64_t)(comm->rank * MAX_RANKS + s->call.root);
    return s->call.root == comm->rank || (!nccl_settings.waits && nccl_mix(nccl_mix(nccl_settings.seed, pair), number) >> 17 & 1);
}

static void send_step(struct world *w, struct ncclComm *comm, struct run *r, int i) {
    const struct step *s = &r->launch->steps[i];
    struct channel *to = &comm->shared->channels[comm->rank][s->call.root];
    if (!r->steps[i].posted) {
        if (to->sent != to->taken) return; /* the one before has not been taken */
        r->steps[i].number = to->sent++;
        to->call = s->call;
        uint64_t bytes = brought(&s->call, comm->n);
        memcpy(area_between(comm, comm->rank, s->call.root), driver_host(s->from, bytes), bytes);
        r->steps[i].posted = true;
        move_on(w);
    }
    r->steps[i].done = to->taken > r->steps[i].number || is_eager(comm, s, r->steps[i].number);
}

static void receive_step(struct world *w, struct ncclComm *comm, struct run *r, int i) {
    const struct step *s = &r->launch->steps[i];
    struct channel *from = &comm->shared->channels[s->call.root][comm->rank];
    if (from->sent == from->taken) return;
    if (from->call.count != s->call.count || from->call.type != s->call.type) {
        char sent[TEXT], wanted[TEXT];
        call_text(&from->call, sent, sizeof sent);
        call_text(&s->call, wanted, sizeof wanted);
        const struct member *members = comm->shared->members;
        fail_world(w, "a message on %s is not what is waited for:\n  rank %d: %s to rank %d\n  rank %d: %s from rank %d", comm->shared->name,
                   members[s->call.root].world, sent, members[comm->rank].world, members[comm->rank].world, wanted,
                   members[s->call.root].world);
        return;
    }
    uint64_t bytes = brought(&s->call, comm->n);
    memcpy(driver_host(s->to, bytes), area_between(comm, s->call.root, comm->rank), bytes);
    from->taken++;
    r->steps[i].done = true;
    move_on(w);
}

static bool go_on_with_messages(struct world *w, struct ncclComm *comm, struct run *r) {
    struct member *own = &comm->shared->members[comm->rank];
    bool all = true;
    size_t length = 0;
    own->waits[0] = 0;
    for (int turn = 0; turn < 2; turn++) /* a message to itself is sent first */
        for (int i = 0; i < r->launch->n; i++) {
            const struct step *s = &r->launch->steps[i];
            if (r->steps[i].done || w->failed || (s->call.kind == RECEIVE) != turn) continue;
            if (s->call.kind == SEND) send_step(w, comm, r, i);
            else receive_step(w, comm, r, i);
        }
    for (int i = 0; i < r->launch->n; i++) {
        const struct step *s = &r->launch->steps[i];
        if (r->steps[i].done) continue;
        char call[TEXT];
        all = false;
        call_text(&s->call, call, sizeof call);
        if (length < sizeof own->waits)
            length += (size_t)snprintf(own->waits + length, sizeof own->waits - length, "%s%.60s %s rank %d", length ? "; " : "", call,
                                       s->call.kind == SEND ? "to" : "from", comm->shared->members[s->call.root].world);
    }
    return all && !w->failed;
}

/* ---- what keeps it ---- */

static const double CONFIRMED = 0.1; /* seconds */

static bool is_place(int rank, uint64_t launch, const struct ncclComm *comm, const struct run *r) {
    return rank == comm->world_rank && r->of_rank >= launch;
}

/* Nothing goes on, anywhere, and never will. That a rank is idle may have been so a moment ago, before something went on: it has to be
 * so again a while later. */
static void look_for_deadlock(struct world *w, const struct ncclComm *comm, bool idle) {
    bool all = true, injected = nccl_settings.absent_rank >= 0 || nccl_settings.remote_rank >= 0;
    int own = comm->world_rank;
    if (idle && w->idle_since[own] != w->epoch) {
        w->idle_since[own] = w->epoch;
        w->idle_from[own] = nccl_now();
    } else if (idle && nccl_now() - w->idle_from[own] > CONFIRMED) {
        w->stuck[own] = w->epoch;
    }
    for (int r = 0; r < w->n; r++) all = all && w->stuck[r] == w->epoch;
    bool late = nccl_now() - w->moved > nccl_settings.patience;
    if (injected || !(all || late)) return;
    char graph[WHY - 200] = "";
    wait_graph(w, graph, sizeof graph);
    if (all) fail_world(w, "deadlock: all hosts wait and nothing can go on:%s", graph);
    else fail_world(w, "nothing has gone on for %g s:%s", nccl_settings.patience, graph);
}

/* A member has left that this one would wait for. */
static bool peer_has_gone(const struct ncclComm *comm) {
    for (int m = 0; m < comm->n; m++)
        if (comm->shared->members[m].gone && m != comm->rank) return true;
    return false;
}

/* With the world's lock. */
static bool go_on(struct world *w, struct ncclComm *comm, struct run *r) {
    struct member *own = &comm->shared->members[comm->rank];
    if (own->done != r->number) return false; /* behind another on this communicator */
    if (is_place(nccl_settings.absent_rank, nccl_settings.absent_launch, comm, r)) return false;
    if (is_place(nccl_settings.remote_rank, nccl_settings.remote_launch, comm, r)) comm->error = NCCL_REMOTE;
    if (comm->error == NCCL_REMOTE) return false;
    if (!r->holds && nccl_settings.ctas && w->ctas[comm->world_rank] + comm->ctas > nccl_settings.ctas) {
        snprintf(own->waits, sizeof own->waits, "%.110s, which finds %d of the device's %d blocks occupied and needs %d", r->launch->name,
                 w->ctas[comm->world_rank], nccl_settings.ctas, comm->ctas);
        return false;
    }
    if (!r->holds) w->ctas[comm->world_rank] += comm->ctas;
    r->holds = true;
    bool done = is_shift(&r->launch->steps[0]) ? go_on_with_messages(w, comm, r) : go_on_with_collective(w, comm, r);
    if (!done && !w->failed && peer_has_gone(comm)) comm->error = NCCL_REMOTE;
    if (!done) return false;
    own->done++;
    own->waits[0] = 0;
    move_on(w);
    return true;
}

static void end_run(struct run *r) {
    struct ncclComm *comm = r->launch->comm;
    struct world *w = comm->at->world;
    lock_world(w);
    if (r->holds) w->ctas[comm->world_rank] -= comm->ctas;
    unlock_world(w);
    pthread_mutex_lock(&comm->lock);
    comm->alive--;
    pthread_mutex_unlock(&comm->lock);
    comm_release(comm);
    free(r);
}

static int run_it(void *run, bool idle) {
    struct run *r = run;
    struct ncclComm *comm = r->launch->comm;
    struct world *w = comm->at->world;
    if (comm->aborted) {
        end_run(r);
        return SIM_WORK_DONE;
    }
    lock_world(w);
    bool done = !w->failed && go_on(w, comm, r);
    if (!done && !w->failed) look_for_deadlock(w, comm, idle);
    bool failed = w->failed;
    unlock_world(w);
    if (!done && !failed) return SIM_WORK_WAITS;
    end_run(r);
    return failed ? CUDA_LAUNCH_FAILED : SIM_WORK_DONE;
}

static void drop_run(void *run) { end_run(run); }

static void let_go(struct launch *l) {
    struct ncclComm *comm = l->comm;
    pthread_mutex_lock(&comm->lock);
    int left = --l->references;
    if (!left && l->captured) comm->captured--;
    pthread_mutex_unlock(&comm->lock);
    if (left) return;
    comm_release(comm);
    free(l);
}

static void release_launch(void *state) { let_go(state); }

/* ---- to the stream ---- */

/* What is written over what is read is both. */
static int ranges_of(const struct ncclComm *comm, const struct step *s, struct sim_work_range *out) {
    const struct call *c = &s->call;
    uint64_t read = brings(comm, c) ? brought(c, comm->n) : 0, write = gets(comm, c) ? gotten(c, comm->n) : 0;
    int n = 0;
    if (!read || !write || s->from + read <= s->to || s->to + write <= s->from) {
        if (read) out[n++] = (struct sim_work_range){s->from, read, SIM_READ};
        if (write) out[n++] = (struct sim_work_range){s->to, write, SIM_WRITE};
        return n;
    }
    const char *begin = s->from > s->to ? s->from : s->to, *read_end = s->from + read, *write_end = s->to + write;
    const char *end = read_end < write_end ? read_end : write_end;
    out[n++] = (struct sim_work_range){begin, (size_t)(end - begin), SIM_READ | SIM_WRITE};
    if (s->from < begin) out[n++] = (struct sim_work_range){s->from, (size_t)(begin - s->from), SIM_READ};
    if (end < read_end) out[n++] = (struct sim_work_range){end, (size_t)(read_end - end), SIM_READ};
    if (s->to < begin) out[n++] = (struct sim_work_range){s->to, (size_t)(begin - s->to), SIM_WRITE};
    if (end < write_end) out[n++] = (struct sim_work_range){end, (size_t)(write_end - end), SIM_WRITE};
    return n;
}

int launch_enqueue(struct launch *l) {
    struct ncclComm *comm = l->comm;
    struct sim_work_range *ranges = calloc((size_t)(5 * l->n), sizeof *ranges);
    int n = 0;
    if (!ranges) return NCCL_SYSTEM;
    for (int i = 0; i < l->n; i++) n += ranges_of(comm, &l->steps[i], ranges + n);
    struct sim_work work = {l->name, l, begin_run, run_it, drop_run, release_launch, ranges, n};
    pthread_mutex_lock(&comm->lock);
    comm->references++;
    pthread_mutex_unlock(&comm->lock);
    l->references = 2; /* the driver's, and until it is known whether it was captured */
    int result = enqueue(l->stream, &work);
    free(ranges);
    pthread_mutex_lock(&comm->lock);
    l->captured = !result && !l->begun;
    comm->captured += l->captured;
    pthread_mutex_unlock(&comm->lock);
    if (result) let_go(l);
    let_go(l);
    return result ? NCCL_CUDA : NCCL_OK;
}
