/* That the stand-in for libibverbs holds its users to the rules: each is broken once. FOLDER has the library. */
#include "runtime/comm/verbs_load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BYTES = 1 << 16 };

static const dtm_verbs *v;
static dtm_verbs_context *context;
static dtm_verbs_pd *pd;
static int failures;
static char memory[2][BYTES];
static dtm_verbs_mr *mr[2];

#define CHECK(what) ((what) ? (void)0 : (void)(failures++, printf("line %d: not so: %s\n", __LINE__, #what)))

typedef struct end {
    dtm_verbs_cq *cq;
    dtm_verbs_qp *qp;
} end;

static end make(int entries, dtm_verbs_cap cap) {
    end e = {.cq = v->create_cq(context, entries, NULL, NULL, 0)};
    dtm_verbs_qp_init init = {.send_cq = e.cq, .receive_cq = e.cq, .type = DTM_VERBS_RC, .cap = cap};
    e.qp = v->create_qp(pd, &init);
    return e;
}

static void drop(end *e) {
    if (e->qp) v->destroy_qp(e->qp);
    v->destroy_cq(e->cq);
}

static const int to_init = DTM_VERBS_QP_STATE | DTM_VERBS_QP_PKEY_INDEX | DTM_VERBS_QP_PORT | DTM_VERBS_QP_ACCESS_FLAGS;
static const int to_rtr = DTM_VERBS_QP_STATE | DTM_VERBS_QP_AV | DTM_VERBS_QP_PATH_MTU | DTM_VERBS_QP_DEST_QPN | DTM_VERBS_QP_RQ_PSN |
                          DTM_VERBS_QP_MAX_DEST_RD_ATOMIC | DTM_VERBS_QP_MIN_RNR_TIMER;
static const int to_rts = DTM_VERBS_QP_STATE | DTM_VERBS_QP_TIMEOUT | DTM_VERBS_QP_RETRY_CNT | DTM_VERBS_QP_RNR_RETRY | DTM_VERBS_QP_SQ_PSN |
                          DTM_VERBS_QP_MAX_RD_ATOMIC;

static dtm_verbs_qp_attr init_attr(void) { return (dtm_verbs_qp_attr){.state = DTM_VERBS_INIT, .port = 1, .access = DTM_VERBS_REMOTE_WRITE}; }
static dtm_verbs_qp_attr rtr_attr(const end *other) {
    return (dtm_verbs_qp_attr){.state = DTM_VERBS_RTR, .path_mtu = 3, .remote_qp = other->qp->number, .receive_psn = 5, .rnr_timer = 12,
                               .address = {.is_global = 1, .gid_index = 1, .port = 1}};
}
static dtm_verbs_qp_attr rts_attr(int rnr_retries) {
    return (dtm_verbs_qp_attr){.state = DTM_VERBS_RTS, .send_psn = 5, .timeout = 14, .retries = 1, .rnr_retries = (uint8_t)rnr_retries};
}

static void join(end *a, end *b, uint32_t access, int rnr_retries) {
    for (int side = 0; side < 2; side++) {
        end *own = side ? b : a, *other = side ? a : b;
        dtm_verbs_qp_attr attr = init_attr();
        attr.access = access;
        CHECK(v->modify_qp(own->qp, &attr, to_init) == 0);
        attr = rtr_attr(other);
        CHECK(v->modify_qp(own->qp, &attr, to_rtr) == 0);
        attr = rts_attr(rnr_retries);
        CHECK(v->modify_qp(own->qp, &attr, to_rts) == 0);
    }
}

/* Each bit of each change of state is needed, and no other is taken. */
static void masks(void) {
    const int needed[] = {to_init, to_rtr, to_rts}, taken[] = {0, DTM_VERBS_QP_ACCESS_FLAGS | DTM_VERBS_QP_PKEY_INDEX, DTM_VERBS_QP_ACCESS_FLAGS | DTM_VERBS_QP_MIN_RNR_TIMER};
    end a = make(8, (dtm_verbs_cap){4, 4, 1, 1, 0}), b = make(8, (dtm_verbs_cap){4, 4, 1, 1, 0});
    for (int change = 0; change < 3; change++) {
        dtm_verbs_qp_attr attr = change == 0 ? init_attr() : change == 1 ? rtr_attr(&b) : rts_attr(7);
        for (int bit = 0; bit < 21; bit++) {
            bool has = needed[change] >> bit & 1;
            if (!has && (taken[change] >> bit & 1)) continue;
            CHECK(v->modify_qp(a.qp, &attr, needed[change] ^ 1 << bit) == EINVAL);
        }
        CHECK(v->modify_qp(a.qp, &attr, needed[change]) == 0 && a.qp->state == attr.state);
    }
    dtm_verbs_qp_attr attr = init_attr();
    CHECK(v->modify_qp(b.qp, &attr, to_init) == 0);
    attr = rtr_attr(&a), attr.path_mtu = 4;
    CHECK(v->modify_qp(b.qp, &attr, to_rtr) == EINVAL); /* the port has 3 */
    attr = rtr_attr(&a), attr.address.is_global = 0;
    CHECK(v->modify_qp(b.qp, &attr, to_rtr) == EINVAL);
    attr = rtr_attr(&a), attr.address.gid_index = 7;
    CHECK(v->modify_qp(b.qp, &attr, to_rtr) == EINVAL);
    attr = rts_attr(7);
    CHECK(v->modify_qp(b.qp, &attr, to_rts) == EINVAL); /* from INIT */
    CHECK(v->destroy_cq(a.cq) == EBUSY);
    CHECK(v->dealloc_pd(pd) == EBUSY);
    drop(&a), drop(&b);
}

static int send(end *e, uint64_t id, const void *from, uint32_t bytes, uint32_t lkey, void *to, uint32_t rkey, bool with_immediate, uint32_t flags) {
    dtm_verbs_sge sge = {(uintptr_t)from, bytes, lkey};
    dtm_verbs_send wr = {.id = id, .sges = &sge, .n_sges = 1, .opcode = with_immediate ? DTM_VERBS_WRITE_WITH_IMM : DTM_VERBS_WRITE, .flags = flags,
                         .immediate = 7, .remote = (uintptr_t)to, .rkey = rkey};
    dtm_verbs_send *bad;
    return context->post_send(e->qp, &wr, &bad);
}

static int post_receive(end *e, uint64_t id) {
    dtm_verbs_receive wr = {.id = id}, *bad;
    return context->post_recv(e->qp, &wr, &bad);
}

/* The next completion; its status is -1 if none comes. */
static dtm_verbs_wc take(end *e) {
    dtm_verbs_wc wc = {.status = -1};
    for (int i = 0; i < 40000 && context->poll_cq(e->cq, 1, &wc) == 0; i++) nanosleep(&(struct timespec){0, 50000}, NULL);
    return wc;
}

static void moves(void) {
    end a = make(64, (dtm_verbs_cap){4, 4, 1, 1, 16}), b = make(64, (dtm_verbs_cap){4, 2, 1, 1, 0});
    CHECK(post_receive(&b, 1) == EINVAL); /* before INIT */
    CHECK(send(&a, 1, memory[0], 8, mr[0]->lkey, memory[1], mr[1]->rkey, false, 0) == EINVAL);
    join(&a, &b, DTM_VERBS_REMOTE_WRITE, 7);
    for (int i = 0; i < BYTES; i++) memory[0][i] = (char)(i * 7);
    /* A write of all, with a number; the receive is posted late. */
    CHECK(send(&a, 11, memory[0], BYTES, mr[0]->lkey, memory[1], mr[1]->rkey, true, DTM_VERBS_SIGNALED) == 0);
    nanosleep(&(struct timespec){0, 5000000}, NULL);
    CHECK(post_receive(&b, 21) == 0);
    dtm_verbs_wc wc = take(&b);
    CHECK(wc.status == 0 && wc.id == 21 && wc.opcode == DTM_VERBS_WC_RECV_WITH_IMM && wc.immediate == 7 && wc.bytes == BYTES && wc.flags == DTM_VERBS_WC_WITH_IMM);
    CHECK(memcmp(memory[0], memory[1], BYTES) == 0);
    wc = take(&a);
    CHECK(wc.status == 0 && wc.id == 11 && wc.opcode == DTM_VERBS_WC_RDMA_WRITE);
    /* Inline data are taken at once; others when they go. */
    memory[0][0] = 1;
    CHECK(send(&a, 12, memory[0], 16, 0, memory[1], mr[1]->rkey, false, DTM_VERBS_INLINE | DTM_VERBS_SIGNALED) == 0);
    memory[0][0] = 2;
    wc = take(&a);
    CHECK(wc.status == 0 && memory[1][0] == 1);
    CHECK(send(&a, 13, memory[0], 17, 0, memory[1], mr[1]->rkey, false, DTM_VERBS_INLINE) == EINVAL);
    /* Room: what tells nothing keeps its place until a later one's completion is taken. */
    for (int i = 0; i < 3; i++) CHECK(send(&a, 14, memory[0], 8, mr[0]->lkey, memory[1], mr[1]->rkey, false, 0) == 0);
    CHECK(send(&a, 15, memory[0], 8, mr[0]->lkey, memory[1], mr[1]->rkey, false, DTM_VERBS_SIGNALED) == 0);
    CHECK(send(&a, 16, memory[0], 8, mr[0]->lkey, memory[1], mr[1]->rkey, false, 0) == ENOMEM);
    CHECK(take(&a).id == 15);
    CHECK(send(&a, 17, memory[0], 8, mr[0]->lkey, memory[1], mr[1]->rkey, false, DTM_VERBS_SIGNALED) == 0 && take(&a).id == 17);
    CHECK(post_receive(&b, 1) == 0 && post_receive(&b, 2) == 0 && post_receive(&b, 3) == ENOMEM);
    drop(&a), drop(&b);
}

/* One write that must fail at its sender with this status, and flushes what follows it. */
static void fails(int status, uint32_t access, const void *from, uint32_t bytes, uint32_t lkey, void *to, uint32_t rkey, bool with_immediate) {
    end a = make(8, (dtm_verbs_cap){4, 4, 1, 1, 0}), b = make(8, (dtm_verbs_cap){4, 4, 1, 1, 0});
    join(&a, &b, access, 0);
    bool flushes = status == DTM_VERBS_WC_REM_ACCESS_ERR;
    if (flushes) CHECK(post_receive(&b, 31) == 0);
    CHECK(send(&a, 1, from, bytes, lkey, to, rkey, with_immediate, 0) == 0); /* an error tells itself */
    CHECK(send(&a, 2, memory[0], 8, mr[0]->lkey, memory[1], mr[1]->rkey, false, 0) == 0);
    dtm_verbs_wc wc = take(&a);
    CHECK(wc.status == status && wc.id == 1);
    wc = take(&a);
    CHECK(wc.status == DTM_VERBS_WC_WR_FLUSH_ERR && wc.id == 2);
    if (flushes) CHECK(take(&b).status == DTM_VERBS_WC_WR_FLUSH_ERR);
    drop(&a), drop(&b);
}

static void keys(void) {
    uint32_t all = DTM_VERBS_REMOTE_WRITE;
    fails(DTM_VERBS_WC_REM_ACCESS_ERR, all, memory[0], 8, mr[0]->lkey, memory[1], mr[1]->rkey + 2, false);
    fails(DTM_VERBS_WC_REM_ACCESS_ERR, all, memory[0], 8, mr[0]->lkey, memory[1] + BYTES - 7, mr[1]->rkey, false);
    fails(DTM_VERBS_WC_REM_ACCESS_ERR, all, memory[0], 8, mr[0]->lkey, memory[1] - 1, mr[1]->rkey, false);
    fails(DTM_VERBS_WC_REM_ACCESS_ERR, 0, memory[0], 8, mr[0]->lkey, memory[1], mr[1]->rkey, false);
    fails(DTM_VERBS_WC_LOC_PROT_ERR, all, memory[0] + BYTES - 7, 8, mr[0]->lkey, memory[1], mr[1]->rkey, false);
    fails(DTM_VERBS_WC_LOC_PROT_ERR, all, memory[0], 8, mr[0]->rkey, memory[1], mr[1]->rkey, false);
    fails(DTM_VERBS_WC_RNR_RETRY_EXC_ERR, all, memory[0], 8, mr[0]->lkey, memory[1], mr[1]->rkey, true);
}

static void overflow(void) {
    end a = make(2, (dtm_verbs_cap){8, 4, 1, 1, 0}), b = make(8, (dtm_verbs_cap){4, 4, 1, 1, 0});
    dtm_verbs_wc wc;
    join(&a, &b, DTM_VERBS_REMOTE_WRITE, 7);
    for (int i = 0; i < 3; i++) CHECK(send(&a, 1, memory[0], 8, mr[0]->lkey, memory[1], mr[1]->rkey, false, DTM_VERBS_SIGNALED) == 0);
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    CHECK(context->poll_cq(a.cq, 1, &wc) < 0);
    drop(&a), drop(&b);
}

/* Nobody is there any more. */
static void lost(void) {
    end a = make(8, (dtm_verbs_cap){4, 4, 1, 1, 0}), b = make(8, (dtm_verbs_cap){4, 4, 1, 1, 0});
    join(&a, &b, DTM_VERBS_REMOTE_WRITE, 7);
    drop(&b);
    CHECK(send(&a, 1, memory[0], 8, mr[0]->lkey, memory[1], mr[1]->rkey, false, 0) == 0);
    CHECK(take(&a).status == DTM_VERBS_WC_RETRY_EXC_ERR);
    drop(&a);
}

int main(int argc, char **argv) {
    dtm_status status = {0};
    dtm_verbs_device **list;
    int count;
    setenv("DTM_SIM_VERBS", "sim0 work=16", 1);
    v = argc == 2 ? dtm_verbs_load(argv[1], &status) : NULL;
    if (!v || !dtm_verbs_devices(v, &list, &count, &status) || count != 1) {
        printf("%s\n", status.message);
        return 1;
    }
    context = v->open_device(list[0]);
    v->free_device_list(list);
    pd = v->alloc_pd(context);
    CHECK(v->reg_mr(pd, memory[1], BYTES, DTM_VERBS_REMOTE_WRITE) == NULL);
    for (int i = 0; i < 2; i++) mr[i] = v->reg_mr(pd, memory[i], BYTES, i ? DTM_VERBS_LOCAL_WRITE | DTM_VERBS_REMOTE_WRITE : DTM_VERBS_LOCAL_WRITE);
    end none = make(8, (dtm_verbs_cap){17, 4, 1, 1, 0});
    CHECK(!none.qp);
    drop(&none);
    none = make(8, (dtm_verbs_cap){4, 4, 1, 1, 65});
    CHECK(!none.qp);
    drop(&none);
    masks();
    moves();
    keys();
    overflow();
    lost();
    for (int i = 0; i < 2; i++) CHECK(v->dereg_mr(mr[i]) == 0);
    CHECK(v->dealloc_pd(pd) == 0);
    v->close_device(context);
    printf("%d failed\n", failures);
    return failures != 0;
}
