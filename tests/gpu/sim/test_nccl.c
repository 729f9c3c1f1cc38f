/* The stand-in for NCCL. Each scene runs in a process of its own, which the environment tells what to inject; its ranks are threads
 * there, or processes again. */
#include "runtime/cuda/load.h"
#include "runtime/test_check.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, COUNT = 200, USAGE = 5, ARGUMENT = 4, REMOTE = 6 };

static const char *folder;

/* What the ranks of a scene share. */
static struct shared {
    dtm_nccl_id id;
    pthread_barrier_t barrier;
    _Atomic int failed, told, checks;
    unsigned char bytes[RANKS][COUNT * 8 * RANKS];
} *shared;

typedef struct rank {
    int index, n;
    const dtm_driver *cu;
    const dtm_nccl *nccl;
    dtm_cu_stream stream, other;
    dtm_nccl_comm world;
    dtm_cuda *cuda;
} rank;
typedef void scene(rank *);

static void say(const rank *r, int line, const char *what, int got) {
    shared->checks++;
    if (shared->told++ < 12) fprintf(stderr, "line %d, rank %d of %d: %s (%d)\n", line, r->index, r->n, what, got);
    shared->failed++;
}
#define EQUAL(a, b)                                                                                                    \
    do {                                                                                                               \
        int equal_got = (a);                                                                                           \
        shared->checks++;                                                                                              \
        if (equal_got != (b)) say(r, __LINE__, #a " is " #b, equal_got);                                               \
    } while (0)
#define TRUE(a) EQUAL(!!(a), 1)
#define HAS(text, words)                                                                                               \
    do {                                                                                                               \
        const char *has_text = (text);                                                                                 \
        shared->checks++;                                                                                              \
        if (!strstr(has_text, (words))) say(r, __LINE__, has_text, 0);                                                 \
    } while (0)

/* A non-blocking call is over. */
static int over(const rank *r, dtm_nccl_comm comm) {
    int error = DTM_NCCL_IN_PROGRESS;
    while (error == DTM_NCCL_IN_PROGRESS)
        if (r->nccl->CommGetAsyncError(comm, &error)) return -1;
    return error;
}
static int done(const rank *r, dtm_nccl_comm comm, int result) { return result == DTM_NCCL_IN_PROGRESS ? over(r, comm) : result; }

static dtm_nccl_config config(int blocking, const char *name) {
    dtm_nccl_config c;
    memset(&c, 0, sizeof c);
    c.size = sizeof c;
    c.magic = DTM_NCCL_CONFIG_MAGIC;
    c.version = 22809;
    c.blocking = blocking;
    c.cga_cluster = c.min_ctas = c.max_ctas = c.split_share = c.traffic_class = c.collnet = c.cta_policy = c.shrink_share = c.nvls_ctas =
        c.channels_per_peer = c.nvlink_centric = DTM_NCCL_UNSET;
    c.name = name;
    return c;
}

static bool open_rank(rank *r, int device) {
    const dtm_cuda_options options = {.folder = folder};
    dtm_status status = {0};
    dtm_cu_context context;
    if (!dtm_cuda_create(&options, &r->cuda, &status) || !(r->cu = dtm_cuda_driver(r->cuda, &status)) ||
        !(r->nccl = dtm_cuda_nccl(r->cuda, &status))) {
        fprintf(stderr, "%s\n", status.message);
        return false;
    }
    EQUAL(r->cu->Init(0), 0);
    EQUAL(r->cu->DevicePrimaryCtxRetain(&context, device), 0);
    EQUAL(r->cu->CtxSetCurrent(context), 0);
    EQUAL(r->cu->StreamCreateWithPriority(&r->stream, 1, 0), 0);
    EQUAL(r->cu->StreamCreateWithPriority(&r->other, 1, 0), 0);
    return true;
}

static void join(rank *r, int blocking) {
    dtm_nccl_config c = config(blocking, "all");
    if (r->index == 0) EQUAL(r->nccl->GetUniqueId(&shared->id), 0);
    pthread_barrier_wait(&shared->barrier);
    int result = r->nccl->CommInitRankConfig(&r->world, r->n, shared->id, r->index, &c);
    EQUAL(done(r, r->world, result), 0);
    pthread_barrier_wait(&shared->barrier);
}

/* Memory of the host that the device reaches. It stays. */
static void *pinned(const rank *r, size_t bytes) {
    void *at = NULL;
    EQUAL(r->cu->MemHostAlloc(&at, bytes, DTM_CU_HOST_PORTABLE | DTM_CU_HOST_MAPPED), 0);
    memset(at, 0, bytes);
    return at;
}
static float *floats(const rank *r, int count) { return pinned(r, (size_t)count * sizeof(float)); }

/* What rank k brings as element i; sums of all are exact in bf16. */
static float value(int k, int i) { return (float)((k * 7 + i * 3) % 13 - 6); }
static float sum(int n, int i) {
    float total = 0;
    for (int k = 0; k < n; k++) total += value(k, i);
    return total;
}

static void fill(float *to, int k, int count) {
    for (int i = 0; i < count; i++) to[i] = value(k, i);
}

/* ---- what it computes ---- */

static void collectives_on(rank *r, dtm_nccl_comm comm, int index, int n, const int *members, dtm_cu_stream stream) {
    const dtm_nccl *nccl = r->nccl;
    float *in = floats(r, COUNT * RANKS), *out = floats(r, COUNT * RANKS);
    int wrong = 0, me = members[index];
    fill(in, me, COUNT * n);
    EQUAL(done(r, comm, nccl->AllReduce(in, out, COUNT, DTM_NCCL_F32, DTM_NCCL_MAX, comm, stream)), 0);
    EQUAL(r->cu->StreamSynchronize(stream), 0);
    for (int i = 0; i < COUNT; i++) {
        float best = value(members[0], i);
        for (int m = 1; m < n; m++) best = value(members[m], i) > best ? value(members[m], i) : best;
        wrong += out[i] != best;
    }
    EQUAL(wrong, 0);
    EQUAL(done(r, comm, nccl->ReduceScatter(in, in + index * COUNT, COUNT, DTM_NCCL_F32, DTM_NCCL_SUM, comm, stream)), 0);
    EQUAL(done(r, comm, nccl->AllGather(in + index * COUNT, in, COUNT, DTM_NCCL_F32, comm, stream)), 0);
    EQUAL(r->cu->StreamSynchronize(stream), 0);
    for (int i = 0; i < COUNT * n; i++) {
        float total = 0;
        for (int m = 0; m < n; m++) total += value(members[m], i);
        wrong += in[i] != total;
    }
    EQUAL(wrong, 0);
    fill(in, me, COUNT * n);
    EQUAL(done(r, comm, nccl->AlltoAll(in, out, COUNT, DTM_NCCL_F32, comm, stream)), 0);
    EQUAL(r->cu->StreamSynchronize(stream), 0);
    for (int m = 0; m < n; m++)
        for (int i = 0; i < COUNT; i++) wrong += out[m * COUNT + i] != value(members[m], index * COUNT + i);
    EQUAL(wrong, 0);
    EQUAL(done(r, comm, nccl->Broadcast(in, in, COUNT, DTM_NCCL_F32, n - 1, comm, stream)), 0);
    EQUAL(r->cu->StreamSynchronize(stream), 0);
    for (int i = 0; i < COUNT; i++) wrong += in[i] != value(members[n - 1], i);
    EQUAL(wrong, 0);
    fill(in, me, COUNT);
    EQUAL(done(r, comm, nccl->Reduce(in, out, COUNT, DTM_NCCL_F32, DTM_NCCL_SUM, 0, comm, stream)), 0);
    EQUAL(r->cu->StreamSynchronize(stream), 0);
    for (int i = 0; i < COUNT && index == 0; i++) {
        float total = 0;
        for (int m = 0; m < n; m++) total += value(members[m], i);
        wrong += out[i] != total;
    }
    EQUAL(wrong, 0);
}

/* Each sends to each, itself too, another length to each. */
static void messages_on(rank *r, dtm_nccl_comm comm, int index, int n, dtm_cu_stream stream) {
    float *in = floats(r, COUNT), (*out)[COUNT] = pinned(r, sizeof(float[RANKS][COUNT]));
    int wrong = 0;
    fill(in, index, COUNT);
    EQUAL(r->nccl->GroupStart(), 0);
    for (int m = 0; m < n; m++) {
        EQUAL(r->nccl->Recv(out[m], (size_t)(m + 2 * index), DTM_NCCL_F32, m, comm, stream), 0);
        EQUAL(r->nccl->Send(in, (size_t)(index + 2 * m), DTM_NCCL_F32, m, comm, stream), 0);
    }
    EQUAL(done(r, comm, r->nccl->GroupEnd()), 0);
    EQUAL(r->cu->StreamSynchronize(stream), 0);
    for (int m = 0; m < n; m++)
        for (int i = 0; i < m + 2 * index; i++) wrong += out[m][i] != value(m, i);
    EQUAL(wrong, 0);
}

static void computes(rank *r) {
    const int all[RANKS] = {0, 1, 2, 3};
    join(r, r->n % 2);
    for (int turn = 0; turn < 3; turn++) {
        collectives_on(r, r->world, r->index, r->n, all, turn == 1 ? r->other : r->stream);
        messages_on(r, r->world, r->index, r->n, r->stream);
    }
    int odd = r->index % 2, members[RANKS], n = 0;
    for (int k = r->n - 1; k >= 0; k--)
        if (k % 2 == odd) members[n++] = k;
    dtm_nccl_config c = config(0, odd ? "odd" : "even");
    dtm_nccl_comm half = NULL, none = NULL;
    EQUAL(done(r, r->world, r->nccl->CommSplit(r->world, DTM_NCCL_NO_COLOR, 0, &none, &c)), 0);
    TRUE(!none);
    EQUAL(r->nccl->CommSplit(r->world, odd, -r->index, &half, &c), DTM_NCCL_IN_PROGRESS);
    EQUAL(over(r, half), 0);
    int index = 0;
    while (members[index] != r->index) index++;
    collectives_on(r, half, index, n, members, r->other);
    messages_on(r, half, index, n, r->other);
    EQUAL(done(r, half, r->nccl->CommFinalize(half)), 0);
    EQUAL(r->nccl->CommDestroy(half), 0);
    EQUAL(r->nccl->CommDestroy(r->world), 0);
}

/* Sums that depend on their order: the same on all ranks, rounded to the type at each step. */
static void rounds(rank *r) {
    uint16_t *in = pinned(r, COUNT * 2), *halves = pinned(r, COUNT * 2);
    float *wide = floats(r, COUNT), *got = floats(r, COUNT);
    join(r, 1);
    for (int i = 0; i < COUNT; i++) {
        in[i] = (uint16_t)(0x3f80 + (r->index * 97 + i * 31) % 200); /* bf16 of 1 and more */
        wide[i] = 1.0f / (float)(3 + r->index + i) * (r->index % 2 ? 1e3f : 1.0f);
    }
    EQUAL(r->nccl->AllReduce(in, halves, COUNT, DTM_NCCL_BF16, DTM_NCCL_SUM, r->world, r->stream), 0);
    EQUAL(r->nccl->AllReduce(wide, got, COUNT, DTM_NCCL_F32, DTM_NCCL_SUM, r->world, r->stream), 0);
    EQUAL(r->cu->StreamSynchronize(r->stream), 0);
    memcpy(shared->bytes[r->index], halves, COUNT * 2);
    memcpy(shared->bytes[r->index] + COUNT * 2, got, COUNT * 4);
    pthread_barrier_wait(&shared->barrier);
    TRUE(!memcmp(shared->bytes[r->index], shared->bytes[0], COUNT * 6));
    int unlike = 0; /* to the sum in f32 of the bf16, rounded once */
    for (int i = 0; i < COUNT; i++) {
        float once = 0;
        for (int k = 0; k < r->n; k++) {
            uint32_t bits = (uint32_t)(0x3f80 + (k * 97 + i * 31) % 200) << 16;
            float x;
            memcpy(&x, &bits, 4);
            once += x;
        }
        uint32_t bits;
        memcpy(&bits, &once, 4);
        bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        unlike += bits != halves[i];
    }
    TRUE(r->n < 3 || unlike > 0);
    pthread_barrier_wait(&shared->barrier);
}

static void replays(rank *r) {
    float *x = floats(r, COUNT);
    dtm_cu_graph graph;
    dtm_cu_graph_exec exec;
    int wrong = 0;
    join(r, 1);
    EQUAL(r->cu->StreamBeginCapture(r->stream, DTM_CU_CAPTURE_THREAD), 0);
    EQUAL(r->nccl->AllReduce(x, x, COUNT, DTM_NCCL_F32, DTM_NCCL_SUM, r->world, r->stream), 0);
    EQUAL(r->nccl->AllReduce(x, x, COUNT, DTM_NCCL_F32, DTM_NCCL_MAX, r->world, r->stream), 0);
    EQUAL(r->cu->StreamEndCapture(r->stream, &graph), 0);
    EQUAL(r->cu->GraphInstantiateWithFlags(&exec, graph, 0), 0);
    for (int step = 0; step < 3; step++) {
        fill(x, r->index, COUNT);
        EQUAL(r->cu->GraphLaunch(exec, r->stream), 0);
        EQUAL(r->cu->StreamSynchronize(r->stream), 0);
        for (int i = 0; i < COUNT; i++) wrong += x[i] != sum(r->n, i);
    }
    EQUAL(wrong, 0);
    EQUAL(r->nccl->CommDestroy(r->world), USAGE); /* the graph has it */
    HAS(r->nccl->GetLastError(r->world), "while a graph has 2 of its launches");
    EQUAL(r->cu->GraphExecDestroy(exec), 0);
    EQUAL(r->cu->GraphDestroy(graph), 0);
    EQUAL(r->nccl->CommDestroy(r->world), 0);
}

/* ---- what it refuses ---- */

static void refuses(rank *r) {
    float *x = floats(r, 2 * COUNT * RANKS);
    const dtm_nccl *nccl = r->nccl;
    dtm_nccl_comm comm = NULL;
    dtm_nccl_config c = config(1, NULL), wrong = c;
    join(r, 1);
    wrong.magic = 1;
    EQUAL(nccl->CommInitRankConfig(&comm, 1, shared->id, 0, &wrong), ARGUMENT);
    EQUAL(nccl->CommInitRankConfig(&comm, 2, shared->id, 2, &c), ARGUMENT);
    EQUAL(nccl->AllReduce(x, x + 1, COUNT, DTM_NCCL_F32, DTM_NCCL_SUM, r->world, r->stream), USAGE);
    HAS(nccl->GetLastError(r->world), "all_reduce of 200 f32, sum is neither in place nor apart");
    EQUAL(nccl->AllGather(x + ((r->index + 1) % r->n) * COUNT, x, COUNT, DTM_NCCL_F32, r->world, r->stream), USAGE);
    EQUAL(nccl->ReduceScatter(x, x + r->index * COUNT + 1, COUNT, DTM_NCCL_F32, DTM_NCCL_SUM, r->world, r->stream), USAGE);
    EQUAL(nccl->AlltoAll(x, x, COUNT, DTM_NCCL_F32, r->world, r->stream), USAGE);
    EQUAL(nccl->AllReduce(x, x, COUNT, 42, DTM_NCCL_SUM, r->world, r->stream), ARGUMENT);
    EQUAL(nccl->AllReduce(x, x, COUNT, DTM_NCCL_F32, 9, r->world, r->stream), ARGUMENT);
    EQUAL(nccl->AllReduce(NULL, x, COUNT, DTM_NCCL_F32, DTM_NCCL_SUM, r->world, r->stream), ARGUMENT);
    EQUAL(nccl->AllReduce((char *)x + 2, (char *)x + 2, COUNT, DTM_NCCL_F32, DTM_NCCL_SUM, r->world, r->stream), ARGUMENT);
    EQUAL(nccl->Broadcast(x, x, COUNT, DTM_NCCL_F32, r->n, r->world, r->stream), ARGUMENT);
    EQUAL(nccl->GroupEnd(), USAGE);
    EQUAL(nccl->GroupStart(), 0);
    EQUAL(nccl->Recv(x, 10, DTM_NCCL_F32, r->index, r->world, r->stream), 0);
    EQUAL(nccl->Send(x + 9, 10, DTM_NCCL_F32, r->index, r->world, r->stream), 0);
    EQUAL(nccl->GroupEnd(), USAGE);
    EQUAL(nccl->GroupStart(), 0);
    EQUAL(nccl->Recv(x, 10, DTM_NCCL_F32, r->index, r->world, r->stream), 0);
    EQUAL(nccl->Send(x + 10, 10, DTM_NCCL_F32, r->index, r->world, r->other), 0);
    EQUAL(nccl->GroupEnd(), USAGE);
    /* Not yet there; another call while one is in progress. */
    dtm_nccl_config late = config(0, "late");
    EQUAL(nccl->CommSplit(r->world, 0, r->index, &comm, &late), DTM_NCCL_IN_PROGRESS);
    EQUAL(nccl->AllReduce(x, x, COUNT, DTM_NCCL_F32, DTM_NCCL_SUM, comm, r->stream), USAGE);
    EQUAL(over(r, comm), 0);
    int in_progress = 0;
    for (int i = 0; i < 64 && !in_progress; i++)
        in_progress = nccl->AllReduce(x, x, COUNT, DTM_NCCL_F32, DTM_NCCL_MAX, comm, r->stream) == DTM_NCCL_IN_PROGRESS;
    TRUE(in_progress);
    EQUAL(nccl->AllReduce(x, x, COUNT, DTM_NCCL_F32, DTM_NCCL_MAX, comm, r->stream), USAGE);
    pthread_barrier_wait(&shared->barrier); /* of unlike numbers of calls: nothing is waited for */
}

/* Of each kind one that differs on the last rank: all fail, and every rank's call is told. */
static int differs;
static void differ(rank *r) {
    float *x = floats(r, COUNT * RANKS), *y = floats(r, COUNT * RANKS);
    bool last = r->index == r->n - 1;
    const dtm_nccl *nccl = r->nccl;
    join(r, 1);
    fill(x, r->index, COUNT * RANKS);
    EQUAL(nccl->AllReduce(x, y, COUNT, DTM_NCCL_F32, DTM_NCCL_SUM, r->world, r->stream), 0);
    EQUAL(r->cu->StreamSynchronize(r->stream), 0);
    size_t count = COUNT / 2 + (differs == 0 && last);
    int type = differs == 1 && last ? DTM_NCCL_I32 : DTM_NCCL_F32, op = differs == 2 && last ? DTM_NCCL_MAX : DTM_NCCL_SUM;
    if (differs == 3 && last) EQUAL(nccl->AllGather(x, y, count, type, r->world, r->stream), 0);
    else if (differs == 4) EQUAL(nccl->Broadcast(x, y, count, type, last, r->world, r->stream), 0);
    else EQUAL(nccl->AllReduce(x, y, count, type, op, r->world, r->stream), 0);
    TRUE(r->cu->StreamSynchronize(r->stream) != 0);
    int error;
    EQUAL(nccl->CommGetAsyncError(r->world, &error), 0);
    EQUAL(error, USAGE);
    const char *why = nccl->GetLastError(r->world);
    HAS(why, "the ranks of all differ in collective 2");
    HAS(why, "rank 0: ");
    HAS(why, "rank 1: ");
    HAS(why, differs == 0 ? "of 101 f32" : differs == 1 ? "of 100 i32" : differs == 2 ? "f32, max" : differs == 3 ? "all_gather" : "root 1");
}

static void message_differs(rank *r) {
    float *x = floats(r, COUNT);
    join(r, 1);
    if (r->index == 0) EQUAL(r->nccl->Send(x, 20, DTM_NCCL_F32, 1, r->world, r->stream), 0);
    if (r->index == 1) EQUAL(r->nccl->Recv(x, 21, DTM_NCCL_F32, 0, r->world, r->stream), 0);
    int result = r->cu->StreamSynchronize(r->stream);
    pthread_barrier_wait(&shared->barrier);
    TRUE(r->index > 1 || result != 0 || r->index == 0); /* an eager send is over */
    HAS(r->nccl->GetLastError(r->world), "rank 0: send of 20 f32 to rank 1\n  rank 1: receive of 21 f32 from rank 0");
}

/* ---- what hangs ---- */

static void one_skips(rank *r) {
    float *x = floats(r, COUNT);
    join(r, 1);
    fill(x, r->index, COUNT);
    if (r->index) EQUAL(r->nccl->AllReduce(x, x, COUNT, DTM_NCCL_F32, DTM_NCCL_SUM, r->world, r->stream), 0);
    int result = r->nccl->Broadcast(x, x, COUNT, DTM_NCCL_F32, 0, r->world, r->stream);
    if (!r->index) result |= r->nccl->AllReduce(x, x, COUNT, DTM_NCCL_F32, DTM_NCCL_SUM, r->world, r->stream);
    TRUE(r->cu->StreamSynchronize(r->stream) || result); /* the device may have its error by then */
    HAS(r->nccl->GetLastError(r->world), "differ in collective 1:\n  rank 0: broadcast");
}

static void one_less(rank *r) {
    float *x = floats(r, COUNT);
    dtm_nccl_comm second = NULL;
    dtm_nccl_config c = config(1, "second");
    join(r, 1);
    EQUAL(r->nccl->CommSplit(r->world, 0, r->index, &second, &c), 0);
    fill(x, r->index, COUNT);
    /* Rank 0 waits for the others in another communicator than they for it. */
    EQUAL(r->nccl->AllReduce(x, x, COUNT, DTM_NCCL_F32, DTM_NCCL_SUM, r->index ? second : r->world, r->stream), 0);
    TRUE(r->cu->StreamSynchronize(r->stream) != 0);
    const char *why = r->nccl->GetLastError(r->world);
    HAS(why, "deadlock: all hosts wait");
    HAS(why, "rank 0 on all: launch 1 of the 1 given: all_reduce of 200 f32, sum (collective 1), which waits for rank 1");
    HAS(why, "rank 1 on second: launch 1 of the 1 given: all_reduce of 200 f32, sum (collective 1), which waits for rank 0");
}

/* Ranks 0 and 1 send to each other. Without a group that ends only if a send is over before it is received. */
static int stuck_pairs;
static void facing(rank *r) {
    float *in = floats(r, COUNT), *out = floats(r, COUNT);
    join(r, 1);
    fill(in, r->index, COUNT);
    EQUAL(r->nccl->Send(in, COUNT, DTM_NCCL_F32, 1 - r->index, r->world, r->stream), 0);
    EQUAL(r->nccl->Recv(out, COUNT, DTM_NCCL_F32, 1 - r->index, r->world, r->stream), 0);
    int result = r->cu->StreamSynchronize(r->stream);
    if (!result) EQUAL(out[5] == value(1 - r->index, 5), 1);
    else HAS(r->nccl->GetLastError(r->world), "send of 200 f32 to rank 1");
    shared->bytes[r->index][0] = result != 0;
}

/* Two communicators on two streams, whose launches do not fit on the device together. */
static void crowded(rank *r) {
    float *x[2] = {floats(r, COUNT), floats(r, COUNT)};
    dtm_nccl_comm comms[2];
    dtm_nccl_config c = config(1, "first");
    c.max_ctas = 8;
    join(r, 1);
    for (int k = 0; k < 2; k++) {
        EQUAL(r->nccl->CommSplit(r->world, 0, r->index, &comms[k], &c), 0);
        c.name = "second";
    }
    for (int k = 0; k < 2; k++)
        EQUAL(r->nccl->AllReduce(x[k], x[k], COUNT, DTM_NCCL_F32, DTM_NCCL_SUM, comms[k], k ? r->other : r->stream), 0);
    dtm_cu_stream first = r->index ? r->other : r->stream;
    int result = r->cu->StreamSynchronize(first) | r->cu->StreamSynchronize(r->stream) | r->cu->StreamSynchronize(r->other);
    if (result) HAS(r->nccl->GetLastError(r->world), "which finds 8 of the device's 12 blocks occupied and needs 8");
    shared->bytes[r->index][0] = result != 0;
}

/* ---- what is injected ---- */

static void absent(rank *r) {
    float *x = floats(r, COUNT);
    int error;
    join(r, 0);
    for (int i = 0; i < 3; i++) EQUAL(done(r, r->world, r->nccl->AllReduce(x, x, COUNT, DTM_NCCL_F32, DTM_NCCL_MAX, r->world, r->stream)), 0);
    usleep(20000);
    EQUAL(r->nccl->CommGetAsyncError(r->world, &error), 0);
    EQUAL(error, 0);
    pthread_barrier_wait(&shared->barrier);
    EQUAL(r->nccl->CommAbort(r->world), 0);
    EQUAL(r->cu->StreamSynchronize(r->stream), 0);
}

static void remote(rank *r) {
    float *x = floats(r, COUNT);
    int error;
    join(r, 1);
    EQUAL(r->nccl->AllReduce(x, x, COUNT, DTM_NCCL_F32, DTM_NCCL_MAX, r->world, r->stream), 0);
    EQUAL(r->cu->StreamSynchronize(r->stream), 0);
    EQUAL(r->nccl->CommGetAsyncError(r->world, &error), 0);
    EQUAL(error, 0);
    EQUAL(r->nccl->AllReduce(x, x, COUNT, DTM_NCCL_F32, DTM_NCCL_MAX, r->world, r->stream), 0);
    /* A thread waits for the stream, this one looks and aborts; to the other rank that is an error too. */
    pthread_t waiter;
    pthread_create(&waiter, NULL, (void *(*)(void *))(void *)r->cu->StreamSynchronize, r->stream);
    while (r->nccl->CommGetAsyncError(r->world, &error) == 0 && !error) usleep(100);
    EQUAL(error, REMOTE);
    EQUAL(r->nccl->CommAbort(r->world), 0);
    pthread_join(waiter, NULL);
}

static void same_device(rank *r) {
    dtm_nccl_config c = config(0, NULL);
    dtm_cu_context context;
    EQUAL(r->cu->DevicePrimaryCtxRetain(&context, 0), 0);
    EQUAL(r->cu->CtxSetCurrent(context), 0);
    if (r->index == 0) EQUAL(r->nccl->GetUniqueId(&shared->id), 0);
    pthread_barrier_wait(&shared->barrier);
    if (r->index == 0) EQUAL(r->nccl->CommInitRankConfig(&r->world, r->n, shared->id, r->index, &c), DTM_NCCL_IN_PROGRESS);
    pthread_barrier_wait(&shared->barrier);
    if (r->index == 1) EQUAL(r->nccl->CommInitRankConfig(&r->world, r->n, shared->id, r->index, &c), USAGE);
    pthread_barrier_wait(&shared->barrier);
}

/* ---- scenes ---- */

static struct scene_run {
    scene *scene;
    int ranks;
} running;

static void *run_rank(void *argument) {
    rank *r = argument;
    if (open_rank(r, r->index)) running.scene(r);
    else shared->failed++;
    return NULL;
}

/* In a process of its own: its threads. */
static void run_threads(scene *scene, int n) {
    rank ranks[RANKS];
    pthread_t threads[RANKS];
    running.scene = scene;
    for (int k = 0; k < n; k++) {
        ranks[k] = (rank){.index = k, .n = n};
        pthread_create(&threads[k], NULL, run_rank, &ranks[k]);
    }
    for (int k = 0; k < n; k++) pthread_join(threads[k], NULL);
}

static void wait_process(pid_t child, const char *name) {
    int how;
    waitpid(child, &how, 0);
    if (!WIFEXITED(how) || WEXITSTATUS(how)) {
        fprintf(stderr, "%s: the process ended with %d\n", name, how);
        failures++;
    }
}

/* environment: "NAME=value NAME=value". */
static void play(const char *name, scene *scene, int n, bool processes, const char *environment) {
    pthread_barrierattr_t between;
    pthread_barrierattr_init(&between);
    pthread_barrierattr_setpshared(&between, PTHREAD_PROCESS_SHARED);
    memset(shared, 0, sizeof *shared);
    pthread_barrier_init(&shared->barrier, &between, (unsigned)n);
    fflush(NULL);
    pid_t children[RANKS];
    int n_children = processes ? n : 1;
    for (int k = 0; k < n_children; k++) {
        children[k] = fork();
        if (children[k]) continue;
        alarm(20);
        setenv("DTM_SIM_NCCL_QUIET", "1", 1);
        setenv("DTM_SIM_DEVICES", "4", 1);
        char all[200], *rest = all;
        snprintf(all, sizeof all, "%s", environment);
        for (char *one; (one = strsep(&rest, " "));)
            if (strchr(one, '=')) putenv(strdup(one));
        rank alone = {.index = k, .n = n};
        running.scene = scene;
        if (processes) run_rank(&alone);
        else run_threads(scene, n);
        fflush(NULL);
        _exit(0);
    }
    for (int k = 0; k < n_children; k++) wait_process(children[k], name);
    if (shared->failed) fprintf(stderr, "%s: %d ranks%s, %s: %d failed\n", name, n, processes ? " in processes" : "", environment, shared->failed);
    failures += shared->failed;
    checks += shared->checks;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    folder = argv[1];
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 2;
    for (int n = 1; n <= RANKS; n++) play("computes", computes, n, false, "DTM_SIM_NCCL_SEED=3");
    for (int n = 2; n <= RANKS; n += 2) play("computes", computes, n, true, "DTM_SIM_NCCL_SEED=4");
    play("rounds", rounds, 4, false, "DTM_SIM_NCCL_SEED=5");
    play("rounds", rounds, 3, true, "DTM_SIM_NCCL_SEED=6");
    play("replays", replays, 3, false, "");
    play("refuses", refuses, 3, false, "");
    for (differs = 0; differs < 5; differs++) play("differ", differ, 2 + differs % 2, differs % 2, "");
    play("message differs", message_differs, 3, false, "");
    play("one skips", one_skips, 3, false, "");
    play("one less", one_less, 2, false, "");
    play("one less", one_less, 2, true, "");
    for (int seed = 1; seed <= 8; seed++) {
        char text[80];
        snprintf(text, sizeof text, "DTM_SIM_NCCL_SEED=%d", seed);
        play("facing", facing, 2, false, text);
        stuck_pairs += shared->bytes[0][0];
    }
    CHECK(stuck_pairs > 0 && stuck_pairs < 8);
    int stuck = 0;
    for (int turn = 0; turn < 6; turn++) {
        char tight[80], roomy[80];
        snprintf(tight, sizeof tight, "DTM_SIM_NCCL_CTAS=12 DTM_SIM_SEED=%d", turn);
        snprintf(roomy, sizeof roomy, "DTM_SIM_NCCL_CTAS=16 DTM_SIM_SEED=%d", turn);
        play("crowded", crowded, 2, false, tight);
        stuck += shared->bytes[0][0];
        play("crowded", crowded, 2, false, roomy);
        CHECK(!shared->bytes[0][0] && !shared->bytes[1][0]);
    }
    CHECK(stuck > 0);
    play("absent", absent, 3, false, "DTM_SIM_NCCL_ABSENT=1:2");
    play("remote", remote, 2, false, "DTM_SIM_NCCL_REMOTE=1:2");
    play("same device", same_device, 2, false, "");
    printf("%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
