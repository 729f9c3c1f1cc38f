#include "runtime/comm/verbs.h"

#include "ir/fault.h"
#include "runtime/comm/transport.h"
#include "runtime/comm/verbs_load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Messages of a way that may be under way at once; work requests of a queue pair; every how many of them one tells that it has ended. */
enum { WINDOW = 32, DEPTH = 64, TELLS = 8 };
/* Naps of who waits, and of the thread. */
static const double NAP_LEAST = 2e-5, NAP_MOST = 1e-3;

/* What the receiver writes into the sender's memory. A write may become visible in parts: `check` says that it is whole. */
typedef struct credit {
    _Atomic uint64_t at, bytes, number, check;
} credit;

typedef struct way {
    dtm_verbs_net *net;
    dtm_group *group;
    int member, peer; /* peer: its world rank */
    bool sends;
    int tag;
    dtm_verbs_cq *cq;
    dtm_verbs_qp *qp;
    dtm_verbs_cap cap;
    int depth;
    uint32_t psn, memory_key, credits_key; /* keys: the other side's */
    uint64_t credits_at;                   /* the other side's */
    credit *credits;                       /* WINDOW of them: a sender's own, where they come; a receiver's, from where they go */
    dtm_request *first, **last;            /* started, not begun */
    dtm_request *under_way[WINDOW];        /* by number */
    uint32_t ends_at[WINDOW];              /* of a send: the work request that ends it */
    uint64_t begun, ended;                 /* numbers, from 1 */
    int64_t written;                       /* of the first: bytes that have been given to the adapter */
    uint32_t posted, retired;              /* work requests */
} way;

struct dtm_verbs_net {
    dtm_comm *comm;
    const dtm_verbs *verbs;
    char device[64];
    int port, gid;
    dtm_verbs_port_attr attr;
    dtm_verbs_gid own_gid;
    dtm_verbs_context *context;
    dtm_verbs_pd *pd;
    dtm_verbs_mr *memory, *credit_memory;
    credit *credits;
    way *ways;
    int n_ways;
    void (*poke)(void *argument);
    void *poked;
    pthread_mutex_t lock; /* of all that follows, and of the ways */
    pthread_cond_t work;
    pthread_t thread;
    bool started, ends;
    int under_way; /* requests that are not done */
    dtm_status failure;
};

/* What the two ends of a way tell each other. */
typedef struct introduction {
    uint32_t qp, psn, memory_key, credits_key;
    uint64_t credits_at;
    dtm_verbs_gid gid;
    int32_t lid, mtu, link_layer;
} introduction;

static bool fail(way *w, dtm_status *status, const char *what) {
    return dtm_status_fail(status, "messages of rank %d %s rank %d over %s, port %d: %s", w->net->comm->rank, w->sends ? "to" : "from", w->peer,
                           w->net->device, w->net->port, what);
}

/* ---- work requests ---- */

static void end_first(way *w) {
    dtm_request *r = w->under_way[++w->ended % WINDOW];
    w->under_way[w->ended % WINDOW] = NULL;
    r->ended = dtm_comm_now();
    w->net->under_way--;
    atomic_store(&r->done, 1); /* it is not to be read from here on */
}

static uint64_t check_of(uint64_t at, uint64_t bytes, uint64_t number) {
    uint64_t x = at * 0x9e3779b97f4a7c15u ^ bytes * 0xc2b2ae3d27d4eb4fu ^ (number + 1) * 0x165667b19e3779f9u;
    return x ^ x >> 29;
}

static int room(const way *w) { return w->depth - (int)(w->posted - w->retired); }

/* Writes into the other side's memory. `ends`: with this number as the immediate, and it tells when it has ended. */
static bool write_there(way *w, const void *from, uint32_t bytes, uint32_t lkey, bool inlined, uint64_t to, uint32_t rkey, bool ends, uint64_t number) {
    dtm_verbs_sge sge = {(uint64_t)(uintptr_t)from, bytes, lkey};
    dtm_verbs_send wr = {.id = ++w->posted, .sges = &sge, .n_sges = 1, .opcode = ends ? DTM_VERBS_WRITE_WITH_IMM : DTM_VERBS_WRITE, .remote = to, .rkey = rkey};
    dtm_verbs_send *bad = NULL;
    if (ends || w->posted % TELLS == 0) wr.flags |= DTM_VERBS_SIGNALED;
    if (inlined) wr.flags |= DTM_VERBS_INLINE;
    wr.immediate = dtm_fault(127) ? (uint32_t)number : htonl((uint32_t)number);
    int error = w->net->context->post_send(w->qp, &wr, &bad);
    if (!error) return true;
    char what[64];
    snprintf(what, sizeof what, "a write is not taken (%s)", strerror(error));
    return fail(w, &w->net->failure, what);
}

/* ---- sending ---- */

/* The credit of the next number, if it has come. */
static bool take_credit(way *w, uint64_t *at, uint64_t *bytes) {
    credit *c = &w->credits[(w->begun + 1) % WINDOW];
    uint64_t check = atomic_load(&c->check), number = atomic_load(&c->number);
    *at = atomic_load(&c->at);
    *bytes = atomic_load(&c->bytes);
    return number == w->begun + 1 && (check == check_of(*at, *bytes, number) || dtm_fault(132));
}

/* As much of the first as there is room for. False: nothing could be done. */
static bool send_some(way *w) {
    dtm_request *r = w->first;
    uint64_t at, bytes;
    uint32_t longest = w->net->attr.max_message;
    if (!r || w->begun - w->ended == WINDOW || !take_credit(w, &at, &bytes)) return false;
    if (bytes != (uint64_t)r->bytes) {
        char name[96], what[200];
        dtm_request_name(r, name, sizeof name);
        snprintf(what, sizeof what, "%s has %lld bytes, where %llu are expected", name, (long long)r->bytes, (unsigned long long)bytes);
        return fail(w, &w->net->failure, what);
    }
    bool moved = false;
    while (w->written < r->bytes && room(w) > 0) {
        int64_t left = r->bytes - w->written;
        uint32_t count = left < longest ? (uint32_t)left : longest;
        uint32_t key = dtm_fault(128) ? w->credits_key : w->memory_key;
        if (!write_there(w, (char *)r->data + w->written, count, w->net->memory->lkey, false, at + (uint64_t)w->written, key, count == left, w->begun + 1))
            return false;
        w->written += count;
        moved = true;
    }
    if (w->written < r->bytes) return moved;
    w->first = r->next;
    if (!w->first) w->last = &w->first;
    w->begun++;
    w->under_way[w->begun % WINDOW] = r;
    w->ends_at[w->begun % WINDOW] = w->posted;
    w->written = 0;
    if (dtm_fault(130)) end_first(w);
    return true;
}

/* ---- receiving ---- */

/* The place of the first is told to the sender, and what its end will be told by is given to the adapter before. */
static bool grant(way *w) {
    dtm_request *r = w->first;
    if (!r || w->begun - w->ended == WINDOW || room(w) < 1) return false;
    uint64_t number = w->begun + 1, at = (uint64_t)(uintptr_t)r->data;
    dtm_verbs_receive wr = {.id = number}, *bad = NULL;
    int error = w->net->context->post_recv(w->qp, &wr, &bad);
    if (error) return fail(w, &w->net->failure, "no receive is taken");
    credit *c = &w->credits[number % WINDOW];
    atomic_store(&c->at, at);
    atomic_store(&c->bytes, (uint64_t)r->bytes);
    atomic_store(&c->number, number);
    atomic_store(&c->check, check_of(at, (uint64_t)r->bytes, number));
    bool inlined = w->cap.inline_bytes >= sizeof *c;
    uint64_t to = w->credits_at + number % WINDOW * sizeof *c;
    if (!write_there(w, c, sizeof *c, w->net->credit_memory->lkey, inlined, to, w->credits_key, false, 0)) return false;
    w->first = r->next;
    if (!w->first) w->last = &w->first;
    w->begun++;
    w->under_way[number % WINDOW] = r;
    return true;
}

/* ---- completions ---- */

static bool fail_completion(way *w, const dtm_verbs_wc *wc) {
    char what[200], name[96] = "";
    dtm_request *r = w->ended < w->begun ? w->under_way[(w->ended + 1) % WINDOW] : w->first;
    if (r) dtm_request_name(r, name, sizeof name);
    snprintf(what, sizeof what, "%s%s%s (status %d, vendor's %#x)", name, r ? ": " : "", w->net->verbs->wc_status_str(wc->status), wc->status, wc->vendor_error);
    return fail(w, &w->net->failure, what);
}

static bool take_completion(way *w, const dtm_verbs_wc *wc) {
    if (wc->status != DTM_VERBS_WC_SUCCESS) return fail_completion(w, wc);
    if (wc->opcode != DTM_VERBS_WC_RECV_WITH_IMM) {
        w->retired = (uint32_t)wc->id;
        while (w->sends && w->ended < w->begun && (int32_t)(w->retired - w->ends_at[(w->ended + 1) % WINDOW]) >= 0) end_first(w);
        return true;
    }
    if (w->ended == w->begun || ntohl(wc->immediate) != (uint32_t)(w->ended + 1)) {
        char what[100];
        snprintf(what, sizeof what, "message %u came where %llu is next", ntohl(wc->immediate), (unsigned long long)w->ended + 1);
        return fail(w, &w->net->failure, what);
    }
    end_first(w);
    return true;
}

static bool take_completions(way *w) {
    dtm_verbs_wc wc[16];
    int count = w->net->context->poll_cq(w->cq, 16, wc);
    if (count < 0) return fail(w, &w->net->failure, "the completion queue has failed");
    for (int i = 0; i < count; i++)
        if (!take_completion(w, &wc[i])) return false;
    return count > 0;
}

/* With the lock. Whether anything moved. */
static bool move(dtm_verbs_net *net) {
    bool moved = false;
    for (int i = 0; i < net->n_ways && !net->failure.failed; i++) {
        way *w = &net->ways[i];
        if (w->first || w->begun != w->ended) moved = take_completions(w) || moved;
        while (!net->failure.failed && (w->sends ? send_some(w) : grant(w))) moved = true;
    }
    return moved;
}

static void nap(double *seconds, bool moved) {
    *seconds = moved || *seconds <= 0 ? NAP_LEAST : *seconds * 1.25 < NAP_MOST ? *seconds * 1.25 : NAP_MOST;
    struct timespec time = {0, (long)(*seconds * 1e9)};
    nanosleep(&time, NULL);
}

static void *run_thread(void *argument) {
    dtm_verbs_net *net = argument;
    double seconds = 0;
    dtm_thread_leave_core();
    pthread_mutex_lock(&net->lock);
    while (!net->ends) {
        if (net->under_way == 0 || net->failure.failed) {
            pthread_cond_wait(&net->work, &net->lock);
            seconds = 0;
            continue;
        }
        bool moved = move(net);
        pthread_mutex_unlock(&net->lock);
        nap(&seconds, moved);
        pthread_mutex_lock(&net->lock);
    }
    pthread_mutex_unlock(&net->lock);
    return NULL;
}

/* ---- as a group's carrier ---- */

static way *way_of(dtm_verbs_net *net, const dtm_request *r) {
    for (int i = 0; i < net->n_ways; i++) {
        way *w = &net->ways[i];
        if (w->peer == r->peer && w->tag == r->tag && w->sends == r->sends) return w;
    }
    return NULL;
}

static bool post(void *carried, dtm_request *r, dtm_status *status) {
    dtm_verbs_net *net = carried;
    way *w = way_of(net, r);
    uintptr_t begin = (uintptr_t)net->memory->at, at = (uintptr_t)r->data;
    if (!w) return dtm_status_fail(status, "there is no way to rank %d over %s for a message", r->peer, net->device);
    if (at < begin || at - begin + (size_t)r->bytes > net->memory->bytes) return fail(w, status, "a message lies outside of the memory for them");
    pthread_mutex_lock(&net->lock);
    r->next = NULL;
    *w->last = r;
    w->last = &r->next;
    net->under_way++;
    move(net);
    pthread_cond_signal(&net->work);
    bool ok = !net->failure.failed || dtm_status_fail(status, "%s", net->failure.message);
    pthread_mutex_unlock(&net->lock);
    return ok;
}

static bool hang(way *w, const dtm_request *r, double seconds, dtm_status *status) {
    char name[96], what[200];
    dtm_request_name(r, name, sizeof name);
    snprintf(what, sizeof what, "hang: %s has been waited for for %.0f s", name, seconds);
    return fail(w, status, what);
}

static bool wait(void *carried, dtm_request *requests, int count, dtm_status *status) {
    dtm_verbs_net *net = carried;
    double begin = dtm_comm_now(), seconds = 0, deadline = net->comm->deadline;
    for (int first = 0;;) {
        pthread_mutex_lock(&net->lock);
        bool moved = move(net), failed = net->failure.failed;
        pthread_mutex_unlock(&net->lock);
        int before = first;
        while (first < count && atomic_load(&requests[first].done)) first++;
        if (first == count) return true;
        if (first > before) dtm_operation_waits_for(net->comm, &requests[first]);
        if (failed && dtm_comm_is_lost(net->comm)) return dtm_status_echo(status); /* who left says why */
        if (failed) return dtm_status_fail(status, "%s", net->failure.message);
        if (dtm_comm_is_lost(net->comm)) return dtm_status_echo(status);
        if (deadline > 0 && dtm_comm_now() - begin > deadline) return hang(way_of(net, &requests[first]), &requests[first], deadline, status);
        if (!moved && net->poke) net->poke(net->poked);
        if (!moved) nap(&seconds, false);
    }
}

static const dtm_carrier carrier = {post, wait};

/* ---- beginning ---- */

static bool open_device(dtm_verbs_net *net, const char *name, dtm_status *status) {
    dtm_verbs_device **list;
    int count;
    if (!dtm_verbs_devices(net->verbs, &list, &count, status)) return false;
    for (int i = 0; i < count && !net->context; i++)
        if (!strcmp(net->verbs->get_device_name(list[i]), name)) net->context = net->verbs->open_device(list[i]);
    if (list) net->verbs->free_device_list(list);
    if (!net->context) return dtm_status_fail(status, "%s cannot be opened", name);
    int error = net->verbs->query_port(net->context, (uint8_t)net->port, &net->attr);
    if (error) return dtm_status_fail_errno(status, error, "%s, port %d does not answer", name, net->port);
    if (net->verbs->query_gid(net->context, (uint8_t)net->port, net->gid < 0 ? 0 : net->gid, &net->own_gid))
        return dtm_status_fail(status, "%s, port %d has no GID %d", name, net->port, net->gid);
    return true;
}

static bool register_memory(dtm_verbs_net *net, const dtm_verbs_net_options *o, dtm_status *status) {
    int access = DTM_VERBS_LOCAL_WRITE | DTM_VERBS_REMOTE_WRITE;
    size_t bytes = ((size_t)net->n_ways * WINDOW * sizeof(credit) + 4095) / 4096 * 4096 + 4096;
    net->credits = aligned_alloc(4096, bytes);
    if (!net->credits) return dtm_status_fail(status, "out of memory for the credits of messages");
    memset(net->credits, 0, bytes);
    net->pd = net->verbs->alloc_pd(net->context);
    if (!net->pd) return dtm_status_fail_errno(status, errno, "%s has no protection domain to give", net->device);
    net->credit_memory = net->verbs->reg_mr(net->pd, net->credits, bytes, access);
    net->memory = net->credit_memory ? net->verbs->reg_mr(net->pd, o->memory, (size_t)o->bytes, access) : NULL;
    if (net->memory) return true;
    return dtm_status_fail_errno(status, errno, "%s cannot register %.1f MiB of memory (`ulimit -l unlimited` may be wanted)", net->device,
                                 (double)o->bytes / 1048576);
}

static bool make_pair(way *w, dtm_status *status) {
    dtm_verbs_net *net = w->net;
    w->depth = DEPTH;
    w->cq = net->verbs->create_cq(net->context, DEPTH + WINDOW, NULL, NULL, 0);
    if (!w->cq) return dtm_status_fail_errno(status, errno, "%s has no completion queue to give", net->device);
    dtm_verbs_qp_init init = {.send_cq = w->cq, .receive_cq = w->cq, .type = DTM_VERBS_RC,
                              .cap = {DEPTH, WINDOW, 1, 1, w->sends ? 0 : sizeof(credit)}};
    w->qp = net->verbs->create_qp(net->pd, &init);
    if (!w->qp && init.cap.inline_bytes) { /* an adapter without inline writes */
        init.cap = (dtm_verbs_cap){DEPTH, WINDOW, 1, 1, 0};
        w->qp = net->verbs->create_qp(net->pd, &init);
    }
    if (!w->qp) return dtm_status_fail_errno(status, errno, "%s has no queue pair to give", net->device);
    w->cap = init.cap;
    dtm_verbs_qp_attr attr = {.state = DTM_VERBS_INIT, .port = (uint8_t)net->port, .access = DTM_VERBS_REMOTE_WRITE};
    int error = net->verbs->modify_qp(w->qp, &attr, DTM_VERBS_QP_STATE | DTM_VERBS_QP_PKEY_INDEX | DTM_VERBS_QP_PORT | DTM_VERBS_QP_ACCESS_FLAGS);
    return !error || dtm_status_fail_errno(status, error, "a queue pair of %s, port %d does not begin", net->device, net->port);
}

/* Ends of one order on both sides: by group and peer, and of these the way from the lower rank first. */
static int by_ends(const void *a, const void *b) {
    const way *x = a, *y = b;
    if (x->tag != y->tag) return x->tag - y->tag;
    if (x->peer != y->peer) return x->peer - y->peer;
    int me = x->net->comm->rank;
    bool first_x = x->sends == (me < x->peer), first_y = y->sends == (me < y->peer);
    return first_y - first_x;
}

static bool prepare(dtm_verbs_net *net, const dtm_verbs_net_options *o, dtm_status *status) {
    net->ways = calloc((size_t)o->n_ways + 1, sizeof *net->ways);
    if (!net->ways) return dtm_status_fail(status, "out of memory for the ways of messages");
    for (int i = 0; i < o->n_ways; i++) {
        const dtm_verbs_way *from = &o->ways[i];
        net->ways[i] = (way){.net = net, .group = from->group, .member = from->member, .sends = from->sends,
                             .peer = dtm_group_rank(from->group, from->member), .tag = from->group->tag};
    }
    net->n_ways = o->n_ways;
    qsort(net->ways, (size_t)net->n_ways, sizeof *net->ways, by_ends);
    if (!open_device(net, o->device, status) || !register_memory(net, o, status)) return false;
    for (int i = 0; i < net->n_ways; i++) {
        way *w = &net->ways[i];
        w->credits = net->credits + (size_t)i * WINDOW;
        w->last = &w->first;
        w->psn = (uint32_t)((int64_t)(dtm_comm_now() * 1e6) + 977 * i) & 0xffffff;
        if (!make_pair(w, status)) return false;
    }
    return true;
}

static int modify_to_ready(way *w, const introduction *other) {
    dtm_verbs_net *net = w->net;
    bool routed = net->attr.link_layer == DTM_VERBS_ETHERNET;
    dtm_verbs_qp_attr attr = {
        .state = DTM_VERBS_RTR, .path_mtu = net->attr.active_mtu < other->mtu ? net->attr.active_mtu : other->mtu, .remote_qp = other->qp,
        .receive_psn = other->psn, .max_dest_rd_atomic = 1, .rnr_timer = 12,
        .address = {.lid = (uint16_t)other->lid, .port = (uint8_t)net->port, .is_global = routed}};
    if (routed) {
        attr.address.gid = other->gid;
        attr.address.gid_index = (uint8_t)net->gid;
        attr.address.hop_limit = 64;
    }
    int mask = DTM_VERBS_QP_STATE | DTM_VERBS_QP_AV | DTM_VERBS_QP_PATH_MTU | DTM_VERBS_QP_DEST_QPN | DTM_VERBS_QP_RQ_PSN |
               DTM_VERBS_QP_MAX_DEST_RD_ATOMIC | (dtm_fault(129) ? 0 : DTM_VERBS_QP_MIN_RNR_TIMER);
    int error = net->verbs->modify_qp(w->qp, &attr, mask);
    if (error) return error;
    attr = (dtm_verbs_qp_attr){.state = DTM_VERBS_RTS, .send_psn = w->psn, .timeout = 14, .retries = 7, .rnr_retries = 7, .max_rd_atomic = 1};
    return net->verbs->modify_qp(w->qp, &attr,
                                 DTM_VERBS_QP_STATE | DTM_VERBS_QP_TIMEOUT | DTM_VERBS_QP_RETRY_CNT | DTM_VERBS_QP_RNR_RETRY | DTM_VERBS_QP_SQ_PSN |
                                     DTM_VERBS_QP_MAX_RD_ATOMIC);
}

static bool connect_way(way *w, const introduction *other, dtm_status *status) {
    if (other->link_layer != w->net->attr.link_layer) return fail(w, status, "one port is of InfiniBand, the other of Ethernet");
    w->memory_key = other->memory_key;
    w->credits_key = other->credits_key;
    w->credits_at = other->credits_at;
    int error = modify_to_ready(w, other);
    char what[128];
    snprintf(what, sizeof what, "the queue pair is not connected (%s)", strerror(error));
    return !error || fail(w, status, what);
}

/* Over the ways' groups, which still have the transport of all other messages. */
static bool introduce(dtm_verbs_net *net, dtm_status *status) {
    size_t count = (size_t)net->n_ways;
    introduction *own = calloc(2 * count + 1, sizeof *own), *others = own + count;
    dtm_request *requests = calloc(2 * count + 1, sizeof *requests);
    bool ok = (own && requests) || dtm_status_fail(status, "out of memory for the ways of messages");
    size_t started = 0;
    for (size_t i = 0; ok && i < count; i++) {
        way *w = &net->ways[i];
        own[i] = (introduction){.qp = w->qp->number, .psn = w->psn, .memory_key = net->memory->rkey, .credits_key = net->credit_memory->rkey,
                                .credits_at = (uint64_t)(uintptr_t)w->credits, .gid = net->own_gid, .lid = net->attr.lid,
                                .mtu = net->attr.active_mtu, .link_layer = net->attr.link_layer};
        dtm_group_label(w->group, "introduction of queue pairs");
        ok = dtm_send_start(w->group, w->member, &own[i], sizeof own[i], &requests[2 * i], status) &&
             dtm_receive_start(w->group, w->member, &others[i], sizeof others[i], &requests[2 * i + 1], status);
        dtm_group_label(w->group, NULL);
        started += ok;
    }
    for (size_t i = 0; ok && i < started; i++) ok = dtm_wait(net->ways[i].group, &requests[2 * i], 2, status);
    for (size_t i = 0; ok && i < count; i++) ok = connect_way(&net->ways[i], &others[i], status);
    if (ok || started == 0) free(own), free(requests); /* what is under way stays: the run ends */
    return ok;
}

bool dtm_verbs_net_open(dtm_comm *comm, const dtm_verbs_net_options *o, dtm_verbs_net **out, dtm_status *status) {
    dtm_verbs_net *net = calloc(1, sizeof *net);
    bool ok = net || dtm_status_fail(status, "out of memory for the ways of messages");
    if (net) {
        net->comm = comm;
        net->verbs = o->verbs;
        snprintf(net->device, sizeof net->device, "%s", o->device);
        net->port = o->port;
        net->gid = o->gid;
        net->poke = o->poke;
        net->poked = o->poked;
        pthread_mutex_init(&net->lock, NULL);
        pthread_cond_init(&net->work, NULL);
        *out = net;
        ok = !status->failed && prepare(net, o, status);
    }
    if (!ok) status->failed = true;
    if (!dtm_comm_agree(comm, status)) return false;
    if (!introduce(net, status)) status->failed = true;
    if (!dtm_comm_agree(comm, status)) return false; /* nobody sends before all can receive */
    net->started = pthread_create(&net->thread, NULL, run_thread, net) == 0;
    if (!net->started) dtm_status_fail(status, "no thread for messages over %s", net->device);
    for (int i = 0; i < net->n_ways; i++) dtm_group_carry(net->ways[i].group, &carrier, net);
    return dtm_comm_agree(comm, status);
}

void dtm_verbs_net_close(dtm_verbs_net *net) {
    if (!net) return;
    pthread_mutex_lock(&net->lock);
    net->ends = true;
    pthread_cond_signal(&net->work);
    pthread_mutex_unlock(&net->lock);
    if (net->started) pthread_join(net->thread, NULL);
    for (int i = 0; i < net->n_ways; i++) {
        way *w = &net->ways[i];
        dtm_group_carry(w->group, NULL, NULL);
        if (w->qp) net->verbs->destroy_qp(w->qp);
        if (w->cq) net->verbs->destroy_cq(w->cq);
    }
    if (net->memory) net->verbs->dereg_mr(net->memory);
    if (net->credit_memory) net->verbs->dereg_mr(net->credit_memory);
    if (net->pd) net->verbs->dealloc_pd(net->pd);
    if (net->context) net->verbs->close_device(net->context);
    pthread_cond_destroy(&net->work);
    pthread_mutex_destroy(&net->lock);
    free(net->credits);
    free(net->ways);
    free(net);
}
