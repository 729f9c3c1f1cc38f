/* Memory, completion queues and queue pairs, and the adapter's thread that carries out work requests. One mutex guards all. */
#include "tests/gpu/sim/verbs.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 16 << 10, SGES = 4, INLINE = 256, SHORT = 64 };

typedef struct region {
    dtm_verbs_mr mr;
    int access;
    struct region *next;
} region;

typedef struct pd {
    dtm_verbs_pd pd;
    int users;
} pd;

typedef struct queue_pair queue_pair;

typedef struct completion {
    dtm_verbs_wc wc;
    queue_pair *of;  /* whose send queue gets room when it is taken; NULL: none */
    uint64_t number; /* of that queue pair's life: it may be gone */
    int covers;      /* work requests, those before it that told nothing included */
} completion;

typedef struct queue {
    dtm_verbs_cq cq;
    completion *ring;
    int begin, count, users;
    bool overflowed;
} queue;

typedef struct work {
    dtm_verbs_send send;
    dtm_verbs_sge sges[SGES];
    unsigned char inlined[INLINE];
} work;

typedef struct packet {
    enum { DATA, DONE, NO_ACCESS, NOT_READY } kind;
    uint32_t source, psn, rkey, immediate, total, offset, bytes;
    uint64_t remote;
    bool with_immediate;
} packet;

struct queue_pair {
    dtm_verbs_qp qp;
    queue_pair *next;
    uint64_t life;
    dtm_verbs_cap cap;
    int signal_all, socket;
    dtm_verbs_qp_attr attr;
    work *sends;
    int first, n_sends, used, silent; /* used: places of the send queue that are taken; silent: since the last that completes */
    uint64_t *receives;
    int first_receive, n_receives;
    /* Of the work request at the head. */
    bool asked; /* all of it has been sent, and no answer has come */
    uint32_t sent;
    uint32_t psn, expected; /* of the next that goes, that comes */
    int rnr_tries;
    double waits_from, not_before;
    packet answer; /* to what came last: the other side sends nothing before it has it */
    bool owes;
    packet half; /* a short write of which a part has become visible */
    char half_data[SHORT];
    bool is_half;
};

static struct {
    pthread_mutex_t mutex;
    pthread_t thread;
    bool runs;
    region *regions;
    queue_pair *pairs;
    uint64_t lives, random;
    uint32_t keys;
    int64_t left; /* work requests until the ports are down */
    int n_pds, n_cqs;
} nic = {.mutex = PTHREAD_MUTEX_INITIALIZER, .keys = 0x1100};

void sim_verbs_say(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("verbs: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
}

uint64_t sim_verbs_draw(void) {
    if (!nic.random) {
        const char *seed = getenv("DTM_SIM_SEED");
        nic.random = (seed ? strtoull(seed, NULL, 10) : 1) * 0x9e3779b97f4a7c15u + (uint64_t)getpid();
    }
    nic.random ^= nic.random << 13;
    nic.random ^= nic.random >> 7;
    return nic.random ^= nic.random << 17;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int refuse(int error, const char *what) {
    sim_verbs_say("%s: %s", what, strerror(error));
    return error;
}

/* ---- memory ---- */

SIM_VERBS_API dtm_verbs_pd *ibv_alloc_pd(dtm_verbs_context *context) {
    pd *made = calloc(1, sizeof *made);
    made->pd.context = context;
    pthread_mutex_lock(&nic.mutex);
    nic.n_pds++;
    pthread_mutex_unlock(&nic.mutex);
    return &made->pd;
}

SIM_VERBS_API int ibv_dealloc_pd(dtm_verbs_pd *at) {
    pd *own = (pd *)at;
    pthread_mutex_lock(&nic.mutex);
    bool used = own->users != 0;
    nic.n_pds -= !used;
    pthread_mutex_unlock(&nic.mutex);
    if (used) return refuse(EBUSY, "dealloc_pd with memory or queue pairs in it");
    free(own);
    return 0;
}

SIM_VERBS_API dtm_verbs_mr *ibv_reg_mr(dtm_verbs_pd *in, void *at, size_t bytes, int access) {
    if ((access & DTM_VERBS_REMOTE_WRITE) && !(access & DTM_VERBS_LOCAL_WRITE)) {
        errno = refuse(EINVAL, "reg_mr: REMOTE_WRITE wants LOCAL_WRITE");
        return NULL;
    }
    region *made = calloc(1, sizeof *made);
    pthread_mutex_lock(&nic.mutex);
    made->mr = (dtm_verbs_mr){.context = in->context, .pd = in, .at = at, .bytes = bytes};
    made->mr.lkey = nic.keys += 2 + (uint32_t)(sim_verbs_draw() % 97) * 2;
    made->mr.rkey = made->mr.lkey + 1;
    made->access = access;
    made->next = nic.regions;
    nic.regions = made;
    ((pd *)in)->users++;
    pthread_mutex_unlock(&nic.mutex);
    return &made->mr;
}

SIM_VERBS_API int ibv_dereg_mr(dtm_verbs_mr *mr) {
    pthread_mutex_lock(&nic.mutex);
    region **link = &nic.regions;
    while (*link && &(*link)->mr != mr) link = &(*link)->next;
    region *found = *link;
    if (found) *link = found->next, ((pd *)mr->pd)->users--;
    pthread_mutex_unlock(&nic.mutex);
    free(found);
    return found ? 0 : refuse(EINVAL, "dereg_mr of what is not registered");
}

static bool lies_in(const region *r, uint64_t at, uint64_t bytes) {
    uint64_t begin = (uint64_t)(uintptr_t)r->mr.at;
    return at >= begin && bytes <= r->mr.bytes && at - begin <= r->mr.bytes - bytes;
}

static const region *region_of(const dtm_verbs_pd *in, uint32_t key, bool remote) {
    for (const region *r = nic.regions; r; r = r->next)
        if (r->mr.pd == in && (remote ? r->mr.rkey : r->mr.lkey) == key) return r;
    return NULL;
}

/* ---- completion queues ---- */

SIM_VERBS_API dtm_verbs_cq *ibv_create_cq(dtm_verbs_context *context, int entries, void *user, void *channel, int vector) {
    if (entries < 1 || entries > 1 << 16 || channel || vector) {
        errno = refuse(EINVAL, "create_cq");
        return NULL;
    }
    queue *made = calloc(1, sizeof *made);
    made->ring = calloc((size_t)entries, sizeof *made->ring);
    made->cq = (dtm_verbs_cq){.context = context, .user = user, .entries = entries};
    pthread_mutex_lock(&nic.mutex);
    nic.n_cqs++;
    pthread_mutex_unlock(&nic.mutex);
    return &made->cq;
}

SIM_VERBS_API int ibv_destroy_cq(dtm_verbs_cq *cq) {
    queue *own = (queue *)cq;
    pthread_mutex_lock(&nic.mutex);
    bool used = own->users != 0;
    nic.n_cqs -= !used;
    pthread_mutex_unlock(&nic.mutex);
    if (used) return refuse(EBUSY, "destroy_cq with queue pairs on it");
    free(own->ring);
    free(own);
    return 0;
}

static void complete(dtm_verbs_cq *cq, const completion *c) {
    queue *to = (queue *)cq;
    if (to->count == to->cq.entries) {
        if (!to->overflowed) sim_verbs_say("a completion queue of %d overflows", to->cq.entries);
        to->overflowed = true;
        return;
    }
    to->ring[(to->begin + to->count++) % to->cq.entries] = *c;
}

static queue_pair *pair_of_life(const queue_pair *at, uint64_t life) {
    for (queue_pair *p = nic.pairs; p; p = p->next)
        if (p == at && p->life == life) return p;
    return NULL;
}

static int poll_cq(dtm_verbs_cq *cq, int most, dtm_verbs_wc *out) {
    queue *from = (queue *)cq;
    int count = 0;
    pthread_mutex_lock(&nic.mutex);
    bool holds_back = sim_verbs_draw() % 4 == 0;
    while (!holds_back && count < most && from->count) {
        completion *c = &from->ring[from->begin];
        queue_pair *of = c->of ? pair_of_life(c->of, c->number) : NULL;
        if (of) of->used -= c->covers;
        out[count++] = c->wc;
        from->begin = (from->begin + 1) % cq->entries;
        from->count--;
    }
    bool lost = from->overflowed;
    pthread_mutex_unlock(&nic.mutex);
    return lost ? -1 : count;
}

/* ---- the queue pair's end of work requests ---- */

static void complete_send(queue_pair *p, int status) {
    work *head = &p->sends[p->first];
    bool tells = status || p->signal_all || (head->send.flags & DTM_VERBS_SIGNALED);
    completion c = {.wc = {.id = head->send.id, .status = status, .opcode = DTM_VERBS_WC_RDMA_WRITE, .qp = p->qp.number}, .of = p, .number = p->life};
    p->first = (p->first + 1) % (int)p->cap.send_wr;
    p->n_sends--;
    p->silent++;
    p->asked = false;
    p->sent = 0;
    p->rnr_tries = 0;
    p->waits_from = 0;
    if (!tells) return;
    c.covers = p->silent;
    p->silent = 0;
    complete(p->qp.send_cq, &c);
}

/* The failed one has its status; all others are flushed. */
static void fail_pair(queue_pair *p, int status) {
    if (status && p->n_sends) complete_send(p, status);
    p->qp.state = DTM_VERBS_ERR;
    while (p->n_sends) complete_send(p, DTM_VERBS_WC_WR_FLUSH_ERR);
    for (; p->n_receives; p->n_receives--) {
        completion c = {.wc = {.id = p->receives[p->first_receive], .status = DTM_VERBS_WC_WR_FLUSH_ERR, .qp = p->qp.number}};
        p->first_receive = (p->first_receive + 1) % (int)p->cap.receive_wr;
        complete(p->qp.receive_cq, &c);
    }
}

static socklen_t name_socket(uint32_t number, struct sockaddr_un *out) {
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    int length = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "dtm-verbs-%u-%06x", (unsigned)getuid(), number);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* 1: it went; 0: no room there; -1: nobody is there. */
static int put(queue_pair *p, const packet *head, const void *data) {
    static char bytes[sizeof(packet) + PIECE];
    struct sockaddr_un to;
    socklen_t length = name_socket(p->attr.remote_qp, &to);
    memcpy(bytes, head, sizeof *head);
    if (head->bytes && head->kind == DATA) memcpy(bytes + sizeof *head, data, head->bytes);
    size_t all = sizeof *head + (head->kind == DATA ? head->bytes : 0);
    if (sendto(p->socket, bytes, all, MSG_DONTWAIT, (struct sockaddr *)&to, length) >= 0) return 1;
    return errno == EAGAIN || errno == ENOBUFS ? 0 : -1;
}

/* ---- sending ---- */

static uint32_t bytes_of(const work *w) {
    uint32_t bytes = 0;
    for (int i = 0; i < w->send.n_sges; i++) bytes += w->sges[i].bytes;
    return bytes;
}

/* Bytes [from, from + bytes) of what it sends. */
static void gather(const work *w, uint32_t from, uint32_t bytes, char *out) {
    uint32_t before = 0;
    if (w->send.flags & DTM_VERBS_INLINE) {
        memcpy(out, w->inlined + from, bytes);
        return;
    }
    for (int i = 0; i < w->send.n_sges && bytes; i++) {
        uint32_t size = w->sges[i].bytes;
        if (from < before + size) {
            uint32_t at = from - before, count = size - at < bytes ? size - at : bytes;
            memcpy(out, (const char *)(uintptr_t)w->sges[i].at + at, count);
            out += count, from += count, bytes -= count;
        }
        before += size;
    }
}

static bool may_read(const queue_pair *p, const work *w) {
    if (w->send.flags & DTM_VERBS_INLINE) return true;
    for (int i = 0; i < w->send.n_sges; i++) {
        const region *r = region_of(p->qp.pd, w->sges[i].lkey, false);
        if (w->sges[i].bytes && (!r || !lies_in(r, w->sges[i].at, w->sges[i].bytes))) return false;
    }
    return true;
}

static bool is_late(queue_pair *p) {
    if (!p->waits_from) p->waits_from = now();
    return now() - p->waits_from > 0.25 * (p->attr.retries + 1);
}

static bool send_some(queue_pair *p) {
    static char piece[PIECE];
    if (p->qp.state != DTM_VERBS_RTS || !p->n_sends || now() < p->not_before) return false;
    work *w = &p->sends[p->first];
    uint32_t total = bytes_of(w);
    if (!p->sent && !p->asked && nic.left && nic.left-- == 1) sim_verbs_say("the ports are down from here on");
    if (nic.left == 0 || p->asked) {
        if (is_late(p)) fail_pair(p, DTM_VERBS_WC_RETRY_EXC_ERR);
        return false;
    }
    if (!may_read(p, w)) {
        sim_verbs_say("a work request reads %u bytes that its keys do not cover", total);
        fail_pair(p, DTM_VERBS_WC_LOC_PROT_ERR);
        return true;
    }
    bool moved = false;
    while (!p->asked) {
        uint32_t count = total - p->sent < PIECE ? total - p->sent : PIECE;
        packet head = {.kind = DATA, .source = p->qp.number, .psn = p->psn, .rkey = w->send.rkey, .immediate = w->send.immediate, .total = total,
                       .offset = p->sent, .bytes = count, .remote = w->send.remote, .with_immediate = w->send.opcode == DTM_VERBS_WRITE_WITH_IMM};
        gather(w, p->sent, count, piece);
        int went = put(p, &head, piece);
        if (went < 0 && is_late(p)) fail_pair(p, DTM_VERBS_WC_RETRY_EXC_ERR);
        if (went <= 0) return moved;
        moved = true;
        p->sent += count;
        p->waits_from = 0;
        p->asked = p->sent == total;
        if (sim_verbs_draw() % 8 == 0) break; /* others have a turn */
    }
    return moved;
}

static void answered(queue_pair *p, const packet *head) {
    if (!p->asked || head->psn != p->psn) return; /* of one that was given up */
    if (head->kind == DONE) {
        p->psn = (p->psn + 1) & 0xffffff;
        complete_send(p, DTM_VERBS_WC_SUCCESS);
    } else if (head->kind == NO_ACCESS) {
        fail_pair(p, DTM_VERBS_WC_REM_ACCESS_ERR);
    } else if (p->attr.rnr_retries != 7 && p->rnr_tries++ == p->attr.rnr_retries) {
        fail_pair(p, DTM_VERBS_WC_RNR_RETRY_EXC_ERR);
    } else {
        p->asked = false;
        p->sent = 0;
        p->not_before = now() + 1e-4;
    }
}

/* ---- receiving ---- */

static const char *why_no_access(const queue_pair *p, const packet *head) {
    const region *r = region_of(p->qp.pd, head->rkey, true);
    if (!(p->attr.access & DTM_VERBS_REMOTE_WRITE)) return "the queue pair lets nobody write";
    if (!head->total) return NULL;
    if (!r) return "no memory has this key";
    if (!(r->access & DTM_VERBS_REMOTE_WRITE)) return "the memory is not registered for it";
    return lies_in(r, head->remote, head->total) ? NULL : "it goes beyond the memory";
}

static void answer(queue_pair *p, int kind, uint32_t psn) {
    p->answer = (packet){.kind = kind, .source = p->qp.number, .psn = psn};
    p->owes = put(p, &p->answer, "") == 0;
}

static bool is_short(const packet *head) {
    return head->total && head->total <= SHORT && head->total % 8 == 0 && head->remote % 8 == 0;
}

/* Words of a short write become visible one by one: here those that `chosen` has. */
static void land_words(const packet *head, const char *data, uint64_t chosen) {
    uint64_t words[SHORT / 8], *to = (uint64_t *)(uintptr_t)head->remote;
    memcpy(words, data, head->total);
    for (uint32_t i = 0; i < head->total / 8; i++)
        if (chosen >> i & 1) __atomic_store_n(to + i, words[i], __ATOMIC_RELAXED);
}

static void end_write(queue_pair *p, const packet *head);

static void take_data(queue_pair *p, const packet *head, const char *data) {
    if (p->qp.state != DTM_VERBS_RTR && p->qp.state != DTM_VERBS_RTS) return; /* nobody answers */
    if (head->psn != p->expected) {
        sim_verbs_say("packet number %u where %u is expected: it is dropped", head->psn, p->expected);
        return;
    }
    const char *why = why_no_access(p, head);
    if (why) {
        sim_verbs_say("a write of %u bytes with key %#x is refused: %s", head->total, head->rkey, why);
        answer(p, NO_ACCESS, head->psn);
        fail_pair(p, 0);
        return;
    }
    if (is_short(head)) {
        land_words(head, data, sim_verbs_draw());
        p->half = *head; /* the rest in the next turn */
        memcpy(p->half_data, data, head->total);
        p->is_half = true;
        return;
    }
    if (head->bytes) memcpy((char *)(uintptr_t)head->remote + head->offset, data, head->bytes);
    end_write(p, head);
}

static void land_rest(queue_pair *p) {
    p->is_half = false;
    land_words(&p->half, p->half_data, UINT64_MAX);
    end_write(p, &p->half);
}

static void end_write(queue_pair *p, const packet *head) {
    if (head->offset + head->bytes < head->total) return;
    if (head->with_immediate && !p->n_receives) {
        answer(p, NOT_READY, head->psn);
        return;
    }
    p->expected = (p->expected + 1) & 0xffffff;
    if (head->with_immediate) {
        completion c = {.wc = {.id = p->receives[p->first_receive], .opcode = DTM_VERBS_WC_RECV_WITH_IMM, .bytes = head->total,
                               .immediate = head->immediate, .qp = p->qp.number, .source_qp = head->source, .flags = DTM_VERBS_WC_WITH_IMM}};
        p->first_receive = (p->first_receive + 1) % (int)p->cap.receive_wr;
        p->n_receives--;
        complete(p->qp.receive_cq, &c);
    }
    answer(p, DONE, head->psn);
}

static bool receive_some(queue_pair *p) {
    static char bytes[sizeof(packet) + PIECE];
    bool any = false;
    for (int i = 0; i < 32; i++) {
        packet head;
        ssize_t length = recv(p->socket, bytes, sizeof bytes, MSG_DONTWAIT);
        if (length < (ssize_t)sizeof head) break;
        memcpy(&head, bytes, sizeof head);
        any = true;
        if (head.source != p->attr.remote_qp || nic.left == 0) continue;
        if (head.kind == DATA) take_data(p, &head, bytes + sizeof head);
        else answered(p, &head);
    }
    return any;
}

/* The adapter. It is not stopped: the process ends with it. */
static void *run_adapter(void *argument) {
    int idle = 0;
    (void)argument;
    for (;;) {
        bool moved = false;
        pthread_mutex_lock(&nic.mutex);
        for (queue_pair *p = nic.pairs; p; p = p->next) {
            if (sim_verbs_draw() % 4 == 0) continue; /* late */
            if (p->is_half) land_rest(p);
            if (p->owes) p->owes = put(p, &p->answer, "") == 0;
            moved = receive_some(p) || moved;
            moved = send_some(p) || moved;
        }
        pthread_mutex_unlock(&nic.mutex);
        idle = moved ? 0 : idle < 10 ? idle + 1 : idle;
        usleep(moved ? 1 : (useconds_t)(20 * idle));
    }
    return NULL;
}

/* ---- queue pairs ---- */

static const char *why_no_pair(const dtm_verbs_qp_init *init, const sim_port *port) {
    const dtm_verbs_cap *c = &init->cap;
    if (init->type != DTM_VERBS_RC) return "create_qp: only RC is here";
    if (!init->send_cq || !init->receive_cq || init->srq) return "create_qp: it wants two completion queues";
    if (c->send_wr > (unsigned)port->work_requests || c->receive_wr > (unsigned)port->work_requests) return "create_qp: more work requests than max_qp_wr";
    if (c->send_sge > SGES || c->receive_sge > SGES) return "create_qp: more pieces than max_sge";
    return c->inline_bytes > (unsigned)port->inline_bytes ? "create_qp: more inline bytes than the adapter has" : NULL;
}

SIM_VERBS_API dtm_verbs_qp *ibv_create_qp(dtm_verbs_pd *in, dtm_verbs_qp_init *init) {
    const sim_port *port = sim_verbs_port(in->context, 1);
    const char *why = why_no_pair(init, port);
    if (why) {
        errno = refuse(EINVAL, why);
        return NULL;
    }
    queue_pair *made = calloc(1, sizeof *made);
    init->cap.send_wr += !init->cap.send_wr;
    init->cap.receive_wr += !init->cap.receive_wr;
    made->cap = init->cap;
    made->sends = calloc(made->cap.send_wr, sizeof *made->sends);
    made->receives = calloc(made->cap.receive_wr, sizeof *made->receives);
    made->signal_all = init->signal_all;
    made->qp = (dtm_verbs_qp){.context = in->context, .user = init->user, .pd = in, .send_cq = init->send_cq, .receive_cq = init->receive_cq, .type = init->type};
    made->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    pthread_mutex_lock(&nic.mutex);
    for (int tries = 0; tries < 1000; tries++) {
        struct sockaddr_un name;
        made->qp.number = (uint32_t)(sim_verbs_draw() >> 20) & 0xffffff;
        socklen_t length = name_socket(made->qp.number, &name);
        if (bind(made->socket, (struct sockaddr *)&name, length) == 0) break;
    }
    made->life = ++nic.lives;
    made->next = nic.pairs;
    nic.pairs = made;
    ((pd *)in)->users++;
    ((queue *)init->send_cq)->users++;
    ((queue *)init->receive_cq)->users++;
    if (!nic.runs) {
        const char *down = getenv("DTM_SIM_VERBS_DOWN");
        nic.left = down ? atoll(down) : -1;
        nic.runs = pthread_create(&nic.thread, NULL, run_adapter, NULL) == 0;
    }
    pthread_mutex_unlock(&nic.mutex);
    return &made->qp;
}

SIM_VERBS_API int ibv_destroy_qp(dtm_verbs_qp *qp) {
    queue_pair *own = (queue_pair *)qp, **link = &nic.pairs;
    pthread_mutex_lock(&nic.mutex);
    while (*link && *link != own) link = &(*link)->next;
    if (*link) *link = own->next;
    ((pd *)qp->pd)->users--;
    ((queue *)qp->send_cq)->users--;
    ((queue *)qp->receive_cq)->users--;
    pthread_mutex_unlock(&nic.mutex);
    close(own->socket);
    free(own->sends);
    free(own->receives);
    free(own);
    return 0;
}

/* What each change of state must be given, and may. */
static const struct {
    int from, to, must, may;
} changes[] = {
    {DTM_VERBS_RESET, DTM_VERBS_INIT, DTM_VERBS_QP_PKEY_INDEX | DTM_VERBS_QP_PORT | DTM_VERBS_QP_ACCESS_FLAGS, 0},
    {DTM_VERBS_INIT, DTM_VERBS_INIT, 0, DTM_VERBS_QP_PKEY_INDEX | DTM_VERBS_QP_PORT | DTM_VERBS_QP_ACCESS_FLAGS},
    {DTM_VERBS_INIT, DTM_VERBS_RTR,
     DTM_VERBS_QP_AV | DTM_VERBS_QP_PATH_MTU | DTM_VERBS_QP_DEST_QPN | DTM_VERBS_QP_RQ_PSN | DTM_VERBS_QP_MAX_DEST_RD_ATOMIC | DTM_VERBS_QP_MIN_RNR_TIMER,
     DTM_VERBS_QP_PKEY_INDEX | DTM_VERBS_QP_ACCESS_FLAGS},
    {DTM_VERBS_RTR, DTM_VERBS_RTS,
     DTM_VERBS_QP_TIMEOUT | DTM_VERBS_QP_RETRY_CNT | DTM_VERBS_QP_RNR_RETRY | DTM_VERBS_QP_SQ_PSN | DTM_VERBS_QP_MAX_RD_ATOMIC,
     DTM_VERBS_QP_ACCESS_FLAGS | DTM_VERBS_QP_MIN_RNR_TIMER},
};

static const char *why_no_change(const queue_pair *p, const dtm_verbs_qp_attr *attr, int mask) {
    const sim_port *port = sim_verbs_port(p->qp.context, mask & DTM_VERBS_QP_PORT ? attr->port : p->attr.port);
    if (!(mask & DTM_VERBS_QP_STATE)) return "modify_qp: no state";
    if (attr->state == DTM_VERBS_ERR || attr->state == DTM_VERBS_RESET) return mask == DTM_VERBS_QP_STATE ? NULL : "modify_qp: more than the state";
    const char *why = "modify_qp: there is no such change of state";
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        if (changes[i].from != p->qp.state || changes[i].to != attr->state) continue;
        int rest = mask & ~DTM_VERBS_QP_STATE;
        why = (rest & changes[i].must) != changes[i].must       ? "modify_qp: the mask lacks what this change needs"
              : rest & ~(changes[i].must | changes[i].may) ? "modify_qp: the mask has what this change does not take"
                                                           : NULL;
    }
    if (why || !port) return why ? why : "modify_qp: there is no such port";
    if ((mask & DTM_VERBS_QP_PKEY_INDEX) && attr->pkey_index) return "modify_qp: there is one pkey";
    if ((mask & DTM_VERBS_QP_PATH_MTU) && (attr->path_mtu < 1 || attr->path_mtu > port->mtu)) return "modify_qp: the port has a smaller MTU";
    if (!(mask & DTM_VERBS_QP_AV)) return NULL;
    if (attr->address.port != p->attr.port) return "modify_qp: the address is of another port";
    if (attr->address.is_global && attr->address.gid_index >= port->gids) return "modify_qp: there is no such GID";
    if (port->link_layer == DTM_VERBS_ETHERNET) return attr->address.is_global ? NULL : "modify_qp: over Ethernet an address needs a GID";
    return attr->address.lid ? NULL : "modify_qp: over InfiniBand an address needs a LID";
}

static void keep(queue_pair *p, const dtm_verbs_qp_attr *attr, int mask) {
    dtm_verbs_qp_attr *own = &p->attr;
    if (mask & DTM_VERBS_QP_ACCESS_FLAGS) own->access = attr->access;
    if (mask & DTM_VERBS_QP_PORT) own->port = attr->port;
    if (mask & DTM_VERBS_QP_DEST_QPN) own->remote_qp = attr->remote_qp;
    if (mask & DTM_VERBS_QP_RQ_PSN) p->expected = attr->receive_psn & 0xffffff;
    if (mask & DTM_VERBS_QP_SQ_PSN) p->psn = attr->send_psn & 0xffffff;
    if (mask & DTM_VERBS_QP_RETRY_CNT) own->retries = attr->retries;
    if (mask & DTM_VERBS_QP_RNR_RETRY) own->rnr_retries = attr->rnr_retries;
}

SIM_VERBS_API int ibv_modify_qp(dtm_verbs_qp *qp, dtm_verbs_qp_attr *attr, int mask) {
    queue_pair *p = (queue_pair *)qp;
    pthread_mutex_lock(&nic.mutex);
    const char *why = why_no_change(p, attr, mask);
    if (!why) keep(p, attr, mask);
    if (!why && attr->state == DTM_VERBS_ERR) fail_pair(p, 0);
    if (!why) qp->state = attr->state;
    pthread_mutex_unlock(&nic.mutex);
    return why ? refuse(EINVAL, why) : 0;
}

/* ---- posting ---- */

static int take_send(queue_pair *p, const dtm_verbs_send *wr) {
    uint32_t bytes = 0;
    if (p->qp.state != DTM_VERBS_RTS && p->qp.state != DTM_VERBS_ERR) return refuse(EINVAL, "post_send before RTS");
    if (wr->opcode != DTM_VERBS_WRITE && wr->opcode != DTM_VERBS_WRITE_WITH_IMM) return refuse(EINVAL, "post_send: an opcode that is not here");
    if (wr->n_sges > (int)p->cap.send_sge || wr->n_sges < 0) return refuse(EINVAL, "post_send: more pieces than the queue pair has");
    if (p->used == (int)p->cap.send_wr) return refuse(ENOMEM, "post_send: the send queue is full");
    for (int i = 0; i < wr->n_sges; i++) bytes += wr->sges[i].bytes;
    if ((wr->flags & DTM_VERBS_INLINE) && bytes > p->cap.inline_bytes) return refuse(EINVAL, "post_send: more inline than the queue pair has");
    if (bytes > 1 << 16) return refuse(EINVAL, "post_send: more than the port's longest message");
    work *w = &p->sends[(p->first + p->n_sends++) % (int)p->cap.send_wr];
    w->send = *wr;
    for (int i = 0; i < wr->n_sges; i++) w->sges[i] = wr->sges[i];
    w->send.flags = 0;
    if (wr->flags & DTM_VERBS_INLINE) gather(w, 0, bytes, (char *)w->inlined);
    w->send.flags = wr->flags;
    p->used++;
    if (p->qp.state == DTM_VERBS_ERR) fail_pair(p, DTM_VERBS_WC_WR_FLUSH_ERR);
    return 0;
}

static int post_send(dtm_verbs_qp *qp, dtm_verbs_send *wr, dtm_verbs_send **bad) {
    int error = 0;
    pthread_mutex_lock(&nic.mutex);
    for (; wr && !error; wr = error ? wr : wr->next)
        if ((error = take_send((queue_pair *)qp, wr))) *bad = wr;
    pthread_mutex_unlock(&nic.mutex);
    return error;
}

static int take_receive(queue_pair *p, const dtm_verbs_receive *wr) {
    if (p->qp.state == DTM_VERBS_RESET) return refuse(EINVAL, "post_recv before INIT");
    if (p->n_receives == (int)p->cap.receive_wr) return refuse(ENOMEM, "post_recv: the receive queue is full");
    p->receives[(p->first_receive + p->n_receives++) % (int)p->cap.receive_wr] = wr->id;
    if (p->qp.state == DTM_VERBS_ERR) fail_pair(p, 0);
    return 0;
}

static int post_recv(dtm_verbs_qp *qp, dtm_verbs_receive *wr, dtm_verbs_receive **bad) {
    int error = 0;
    pthread_mutex_lock(&nic.mutex);
    for (; wr && !error; wr = error ? wr : wr->next)
        if ((error = take_receive((queue_pair *)qp, wr))) *bad = wr;
    pthread_mutex_unlock(&nic.mutex);
    return error;
}

void sim_verbs_fill(dtm_verbs_context *context) {
    context->poll_cq = poll_cq;
    context->post_send = post_send;
    context->post_recv = post_recv;
}

SIM_VERBS_API const char *ibv_wc_status_str(int status) {
    static const struct {
        int status;
        const char *name;
    } names[] = {{DTM_VERBS_WC_SUCCESS, "success"},
                 {DTM_VERBS_WC_LOC_PROT_ERR, "local protection error"},
                 {DTM_VERBS_WC_WR_FLUSH_ERR, "Work Request Flushed Error"},
                 {DTM_VERBS_WC_REM_ACCESS_ERR, "remote access error"},
                 {DTM_VERBS_WC_RETRY_EXC_ERR, "transport retry counter exceeded"},
                 {DTM_VERBS_WC_RNR_RETRY_EXC_ERR, "RNR retry counter exceeded"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].status == status) return names[i].name;
    return "unknown";
}

/* What is still there at the end of the process is told. */
__attribute__((destructor)) static void end(void) {
    int regions = 0, pairs = 0;
    for (region *r = nic.regions; r; r = r->next) regions++;
    for (queue_pair *p = nic.pairs; p; p = p->next) pairs++;
    if (regions || pairs || nic.n_pds || nic.n_cqs)
        sim_verbs_say("left over: %d domains, %d regions, %d completion queues, %d queue pairs", nic.n_pds, regions, nic.n_cqs, pairs);
}
