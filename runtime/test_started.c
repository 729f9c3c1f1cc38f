/* Tests of what is started and waited for later: messages and collectives that move while the rank computes, waited for in
 * any order; who is named when one of them hangs; how long messages take over links. Without arguments: on `local` ranks.
 * --mpi: on the ranks that mpirun gives. --fail KIND: for tests that look at how a run ends. */
#include "runtime/comm/comm.h"
#include "runtime/test_check.h"

#include <math.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---- messages in any order ---- */

enum { EACH = 4, MOST = 9, ROUNDS = 3 };

/* Sizes from nothing to more than any transport sends at once. */
static int64_t bytes_of(int from, int to, int channel, int k) {
    static const int64_t sizes[] = {8, 0, 100, 70000, 1, 4096, 300001};
    return sizes[(from * 5 + to * 3 + channel * 2 + k) % 7];
}
static unsigned char byte_of(int from, int to, int channel, int k, int64_t i) {
    return (unsigned char)(from * 31 + to * 17 + channel * 101 + k * 7 + i);
}

typedef struct parcel {
    dtm_request request;
    unsigned char *data;
    int64_t bytes;
    int from, to, channel, k;
} parcel;

static uint32_t draw(uint32_t *state) {
    return *state = *state * 1664525u + 1013904223u;
}

/* Every rank sends EACH messages to every other in two channels; all are posted in an order drawn (each channel's in its
 * own), and waited for one by one in another. */
static void test_storm(dtm_comm *comm, dtm_group *const channels[2], uint32_t seed, dtm_status *status) {
    int n = dtm_comm_size(comm), me = dtm_comm_rank(comm), count = 0;
    parcel *all = zeroed((int64_t)sizeof *all * MOST * 2 * 2 * EACH);
    int next[MOST][2][2] = {{{0}}};
    uint32_t state = seed + (uint32_t)me * 7919u;
    for (int left = (n - 1) * 2 * 2 * EACH; left > 0;) {
        int peer = (int)(draw(&state) >> 8) % n, channel = (int)(draw(&state) >> 16) % 2, sends = (int)(draw(&state) >> 16) % 2;
        if (peer == me || next[peer][channel][sends] == EACH) continue;
        int k = next[peer][channel][sends]++;
        parcel *p = &all[count++];
        *p = (parcel){.from = sends ? me : peer, .to = sends ? peer : me, .channel = channel, .k = k};
        p->bytes = bytes_of(p->from, p->to, channel, k);
        p->data = zeroed(p->bytes);
        for (int64_t i = 0; sends && i < p->bytes; i++) p->data[i] = byte_of(me, peer, channel, k, i);
        CHECK_OK(sends ? dtm_send_start(channels[channel], peer, p->data, p->bytes, &p->request, status)
                       : dtm_receive_start(channels[channel], peer, p->data, p->bytes, &p->request, status),
                 status);
        left--;
    }
    int *order = zeroed((int64_t)sizeof *order * (count + 1));
    for (int i = 0; i < count; i++) {
        int j = (int)(draw(&state) >> 8) % (i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (int i = 0; i < count; i++) {
        parcel *p = &all[order[i]];
        CHECK_OK(dtm_wait(channels[p->channel], &p->request, 1, status), status);
        bool right = true;
        for (int64_t b = 0; b < p->bytes; b++) right = right && p->data[b] == byte_of(p->from, p->to, p->channel, p->k, b);
        CHECK(right);
    }
    if (status->failed) dtm_comm_quiet(comm);
    for (int i = 0; i < count; i++) free(all[i].data);
    free(all);
    free(order);
}

/* ---- what moves while the rank computes ---- */

/* Computes, without a call to dtm, until it sees that something has been done, or for half a minute. Where messages are
 * late, that they are on their way. */
static bool computes_until_there(const dtm_request *request) {
    volatile double x = 1;
    for (double begin = now(); !request->done && !request->matched && now() - begin < 30;)
        for (int i = 0; i < 10000; i++) x = x * 1.0000001 + 1e-9;
    return request->done || request->matched;
}
static bool computes_until_done(const dtm_collective_request *request) {
    for (double begin = now(); !request->done && now() - begin < 30;) {}
    return request->done;
}

static void test_progress(dtm_comm *comm, dtm_group *group, dtm_status *status) {
    int n = dtm_group_members(group), me = dtm_group_index(group);
    int64_t bytes = 3 << 20;
    char *out = zeroed(bytes), *in = zeroed(bytes);
    dtm_request requests[2];
    memset(out, me + 1, (size_t)bytes);
    CHECK_OK(dtm_receive_start(group, (me + n - 1) % n, in, bytes, &requests[0], status) &&
                 dtm_send_start(group, (me + 1) % n, out, bytes, &requests[1], status),
             status);
    if (n > 1 && !status->failed) CHECK(computes_until_there(&requests[0]) && computes_until_there(&requests[1]));
    CHECK_OK(dtm_wait(group, requests, 2, status), status);
    CHECK(in[0] == (me + n - 1) % n + 1 && in[bytes - 1] == in[0]);
    if (status->failed) dtm_comm_quiet(comm);
    free(out);
    free(in);
}

/* ---- started collectives ---- */

enum { LONG = 100000, SHORT = 37 };

static float term(int rank, int64_t i) {
    return (float)((rank + 1) * 0.37 + (double)(i % 1001) * 0.001);
}

/* A sum, what it is scattered and gathered again, and an exchange, all started; meanwhile the rank uses the same group and
 * another. */
static void test_collectives(dtm_comm *comm, dtm_group *group, dtm_group *other, dtm_status *status) {
    int n = dtm_group_members(group), me = dtm_group_index(group);
    float *terms = zeroed(LONG * 4), *sum = zeroed(LONG * 4), *block = zeroed(LONG * 4), *again = zeroed(LONG * 4);
    float *wanted = zeroed(LONG * 4), few[SHORT], few_sum[SHORT];
    int64_t counts[MOST], bytes[MOST];
    for (int i = 0; i < n; i++) {
        counts[i] = LONG * (i + 1) / n - LONG * i / n;
        bytes[i] = 4 * counts[i];
    }
    for (int64_t i = 0; i < LONG; i++) terms[i] = term(me, i);
    int64_t each[MOST];
    unsigned char given[MOST * 3], got[MOST * 3];
    for (int i = 0; i < n * 3; i++) given[i] = (unsigned char)(me * 50 + i);
    for (int i = 0; i < n; i++) each[i] = 3;
    dtm_collective_request requests[4];
    CHECK_OK(dtm_all_reduce_start(group, DTM_ALGORITHM_RING, DTM_REDUCTION_SUM, DTM_REDUCE_F32, terms, sum, LONG, NULL,
                                  &requests[0], status) &&
                 dtm_reduce_scatter_start(group, DTM_ALGORITHM_RING, DTM_REDUCTION_SUM, DTM_REDUCE_F32, terms, block,
                                          counts, NULL, &requests[1], status) &&
                 dtm_all_gather_start(group, DTM_ALGORITHM_RING, block, again, bytes, &requests[2], status) &&
                 dtm_all_to_all_start(group, DTM_ALGORITHM_PAIRWISE, given, each, got, each, &requests[3], status),
             status);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < SHORT; i++) few[i] = term(me + round, i);
        dtm_group *on = round % 2 ? other : group;
        CHECK_OK(dtm_all_reduce(on, DTM_ALGORITHM_GATHER, DTM_REDUCTION_MAX, DTM_REDUCE_F32, few, few_sum, SHORT, NULL,
                                status),
                 status);
        for (int i = 0; i < SHORT; i++) CHECK(few_sum[i] == term(n - 1 + round, i));
    }
    if (!status->failed) CHECK(computes_until_done(&requests[3]));
    for (int i = 3; i >= 0; i--) CHECK_OK(dtm_collective_wait(&requests[i], status), status);
    CHECK_OK(dtm_all_reduce(group, DTM_ALGORITHM_RING, DTM_REDUCTION_SUM, DTM_REDUCE_F32, terms, wanted, LONG, NULL,
                            status),
             status);
    for (int i = 0; i < n * 3; i++) CHECK(got[i] == (unsigned char)(i / 3 * 50 + me * 3 + i % 3));
    CHECK(memcmp(sum, wanted, LONG * 4) == 0); /* the same bits as without the thread */
    for (int64_t i = 0; i < LONG; i++)
        if (!(fabsf(again[i] - wanted[i]) < 1e-3f)) CHECK(!"what was scattered and gathered is the sum");
    CHECK(requests[0].sent == dtm_collective_sent_bytes(DTM_COLLECTIVE_ALL_REDUCE, DTM_ALGORITHM_RING, n, me,
                                                        &(int64_t){LONG}, 4));
    CHECK(requests[0].ended <= requests[1].started && requests[1].ended <= requests[2].started);
    if (status->failed) dtm_comm_quiet(comm);
    free(terms), free(sum), free(block), free(again), free(wanted);
}

/* ---- in steps ---- */

static const int64_t stepped[MOST] = {1000, 0, 200000, 70, 90001}; /* elements of the members' blocks: of none to several segments */

static void fill_block(float *all, int block, int rank, int64_t at) {
    for (int64_t i = 0; i < stepped[block]; i++) all[at + i] = rank < 0 ? NAN : term(rank, at + i);
}

/* What the terms of an element are, added in the order that the group and the algorithm say. */
static float sum_in_order(int n, bool both, int owner, int64_t i) {
    int half = both ? n / 2 : n - 1, other = both ? (n - 1) / 2 : 0;
    float up = term((owner + n - half) % n, i), down = other ? term((owner + other) % n, i) : 0;
    for (int k = half - 1; k > 0; k--) up += term((owner + n - k) % n, i);
    for (int k = other - 1; k > 0; k--) down += term((owner + k) % n, i);
    if (!both) return up + term(owner, i);
    return n % 2 ? down + (up + term(owner, i)) : up + (down + term(owner, i));
}

/* A block that is not given yet is no number: nothing may have read it before. */
static void test_steps(dtm_comm *comm, dtm_group *group, dtm_algorithm algorithm, dtm_status *status) {
    int n = dtm_group_members(group), me = dtm_group_index(group);
    bool both = algorithm == DTM_ALGORITHM_BOTH_WAYS, ok;
    int64_t at[MOST + 1] = {0}, bytes[MOST];
    dtm_collective_request request;
    for (int i = 0; i < n; i++) {
        bytes[i] = 4 * stepped[i];
        at[i + 1] = at[i] + stepped[i];
    }
    float *input = zeroed(4 * at[n]), *output = zeroed(4 * stepped[me]), *all = zeroed(4 * at[n]);
    for (int i = 0; i < n; i++) fill_block(input, i, -1, at[i]);
    dtm_group_step(group);
    CHECK_OK(dtm_reduce_scatter_start(group, algorithm, DTM_REDUCTION_SUM, DTM_REDUCE_F32, input, output, stepped, NULL, &request,
                                      status),
             status);
    for (int step = 1; step <= n && !status->failed; step++) {
        int block = dtm_ring_member(DTM_COLLECTIVE_REDUCE_SCATTER, algorithm, n, me, step);
        usleep((useconds_t)(300 * ((me + step) % 3)));
        fill_block(input, block, me, at[block]);
        dtm_collective_give(&request);
    }
    CHECK_OK(dtm_collective_wait(&request, status), status);
    for (int64_t i = 0; i < stepped[me]; i += 7)
        if (!(output[i] == sum_in_order(n, both, me, at[me] + i))) CHECK(!"the sum, to the bit");
    dtm_group_step(group);
    CHECK_OK(dtm_all_gather_start(group, algorithm, output, all, bytes, &request, status), status);
    for (int step = 1; step < n && !status->failed; step++) {
        int block = dtm_ring_member(DTM_COLLECTIVE_ALL_GATHER, algorithm, n, me, step);
        ok = dtm_collective_come(&request, step, status);
        for (int64_t i = 0; ok && i < stepped[block]; i += 7)
            if (!(all[at[block] + i] == sum_in_order(n, both, block, at[block] + i))) CHECK(!"what has come is there");
    }
    CHECK_OK(dtm_collective_wait(&request, status), status);
    CHECK(memcmp(all + at[me], output, (size_t)bytes[me]) == 0);
    CHECK_OK(dtm_comm_barrier(comm, status), status);
    free(input), free(output), free(all);
}

/* Ranks start sums of two streams in opposite orders, half of them early: none waits for the other's. What a third stream adds up
 * is what the first of them makes, and begins when that is there, although nobody has waited for it. */
static void test_streams(dtm_comm *comm, dtm_group *group, dtm_group *other, dtm_status *status) {
    int n = dtm_group_members(group), me = dtm_group_index(group);
    float *terms = zeroed(LONG * 4), *sums[3] = {zeroed(LONG * 4), zeroed(LONG * 4), zeroed(LONG * 4)};
    dtm_collective_request requests[3];
    float whole = 0;
    for (int64_t i = 0; i < LONG; i++) terms[i] = (float)(me + 1);
    for (int r = 0; r < n; r++) whole += (float)(r + 1);
    for (int k = 0; k < 2 && !status->failed; k++) {
        int stream = (k + me) % 2;
        dtm_group_stream(stream ? other : group, stream, NULL);
        CHECK_OK(dtm_all_reduce_start(stream ? other : group, DTM_ALGORITHM_RING, DTM_REDUCTION_SUM, DTM_REDUCE_F32, terms, sums[stream],
                                      LONG, NULL, &requests[stream], status),
                 status);
        if (stream == 0) {
            dtm_group_stream(group, 2, &requests[0]);
            CHECK_OK(dtm_all_reduce_start(group, DTM_ALGORITHM_RING, DTM_REDUCTION_SUM, DTM_REDUCE_F32, sums[0], sums[2], LONG, NULL,
                                          &requests[2], status),
                     status);
        }
    }
    for (int k = 2; k >= 0; k--) CHECK_OK(dtm_collective_wait(&requests[k], status), status);
    for (int64_t i = 0; i < LONG; i += 7) {
        if (!(sums[0][i] == whole && sums[1][i] == whole)) CHECK(!"the sums of both streams");
        if (!(sums[2][i] == whole * (float)n)) CHECK(!"a sum of what another stream makes");
    }
    if (status->failed) dtm_comm_quiet(comm);
    free(terms);
    for (int k = 0; k < 3; k++) free(sums[k]);
}

static bool started_main(dtm_comm *comm, void *argument, dtm_status *status) {
    int n = dtm_comm_size(comm), ranks[MOST];
    for (int i = 0; i < n; i++) ranks[i] = i;
    dtm_group *channels[2];
    CHECK_OK(dtm_group_create(comm, "forward", ranks, n, 1, &channels[0], status), status);
    CHECK_OK(dtm_group_create(comm, "backward", ranks, n, 2, &channels[1], status), status);
    for (uint32_t round = 0; round < ROUNDS && !status->failed; round++)
        test_storm(comm, channels, round + *(const uint32_t *)argument * 100, status);
    if (!status->failed) test_progress(comm, channels[0], status);
    if (!status->failed) test_collectives(comm, channels[0], channels[1], status);
    if (!status->failed) test_streams(comm, channels[0], channels[1], status);
    if (!status->failed && n > 1 && n <= 5) test_steps(comm, channels[0], DTM_ALGORITHM_RING, status);
    if (!status->failed && n > 2 && n <= 5) test_steps(comm, channels[1], DTM_ALGORITHM_BOTH_WAYS, status);
    CHECK_OK(dtm_comm_barrier(comm, status), status);
    return !status->failed;
}

/* ---- failing ---- */

/* "late": rank 1 never sends what rank 0 has posted a receive for. "between": a rank fails between start and wait. */
static bool fail_main(dtm_comm *comm, void *argument, dtm_status *status) {
    const char *kind = argument;
    int rank = dtm_comm_rank(comm), n = dtm_comm_size(comm);
    dtm_group *world = dtm_comm_world(comm);
    int64_t *in = zeroed(2 * 8), *out = zeroed(100 * 8);
    float *sum = zeroed(4096 * 4);
    dtm_request requests[3];
    dtm_collective_request collective;
    bool ok = true, late = !strcmp(kind, "late");
    dtm_comm_set_deadline(comm, 0.5);
    dtm_group_microbatch(world, 3);
    dtm_group_label(world, "x.out");
    if (late && rank == 0)
        ok = dtm_receive_start(world, 1, &in[0], 8, &requests[0], status) &&
             dtm_receive_start(world, 1, &in[1], 8, &requests[1], status) && dtm_wait(world, requests, 2, status);
    if (late && rank == 1) {
        ok = dtm_send(world, 0, &out[0], 8, status);
        usleep(4000000);
    }
    if (!strcmp(kind, "between")) {
        ok = dtm_send_start(world, (rank + 1) % n, out, 800, &requests[0], status) &&
             dtm_all_reduce_start(world, DTM_ALGORITHM_RING, DTM_REDUCTION_SUM, DTM_REDUCE_F32, sum, sum,
                                  rank == 1 ? 1 : 4096, NULL, &collective, status);
        if (ok && rank == 1)
            ok = dtm_status_fail(status, "rank 1 has had enough");
        else
            ok = ok && dtm_receive_start(world, (rank + n - 1) % n, in, 8, &requests[1], status) &&
                 dtm_wait(world, requests, 2, status);
    }
    if (!strcmp(kind, "collective")) /* rank 1 does not come to it */
        ok = rank == 1 ? usleep(4000000) == 0
                       : dtm_all_reduce_start(world, DTM_ALGORITHM_RING, DTM_REDUCTION_SUM, DTM_REDUCE_F32, sum, sum,
                                              4096, NULL, &collective, status) &&
                             dtm_collective_wait(&collective, status);
    if (!dtm_comm_quiet(comm)) return ok;
    memset(out, 255, 800); /* nobody reads it any more */
    free(in), free(out), free(sum);
    return ok;
}

static void test_failures(void) {
    static const char *const cases[][2] = {
        {"late", "hang: x.out, microbatch 3 between rank 0 and rank 1 on world (2 ranks), message 2 from it there, has not "
                 "ended after 1 s; rank 1 has not begun it"},
        {"collective", "hang: x.out, microbatch 3 on world (2 ranks), collective 1 there, has not ended"},
        {"collective", "ranks that arrived: 0; that did not: 1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dtm_status status = {0};
        CHECK_FAILS(dtm_local_run(2, fail_main, (void *)cases[i][0], &status), &status, cases[i][1]);
    }
    for (int n = 2; n < 5; n++) { /* which of the failures comes first is not said */
        dtm_status status = {0};
        CHECK(!dtm_local_run(n, fail_main, "between", &status) && !status.echo);
    }
}

/* ---- what does not wait ---- */

/* Late messages: what is received is NaN until it is waited for; what is sent and changed too early is found. */
static bool hasty_main(dtm_comm *comm, void *argument, dtm_status *status) {
    dtm_group *world = dtm_comm_world(comm);
    const bool *changes = argument;
    float data[3] = {1, 2, 3};
    dtm_request request;
    if (dtm_comm_rank(comm)) {
        if (!dtm_receive_start(world, 0, data, sizeof data, &request, status) || !dtm_comm_barrier(comm, status)) return false;
        CHECK(isnan(data[0]) && isnan(data[1]) && isnan(data[2]));
    } else {
        for (int i = 0; i < 3; i++) data[i] = (float)i + 4;
        if (!dtm_send_start(world, 1, data, sizeof data, &request, status) || !dtm_comm_barrier(comm, status)) return false;
        if (*changes) data[1] = 0;
    }
    if (!dtm_wait(world, &request, 1, status)) return false;
    CHECK(data[0] == 4 && data[1] == 5 && data[2] == 6);
    return true;
}

static void test_hasty(void) {
    dtm_local_options options = {.delay = 1e-3, .seed = 1};
    bool changes = false;
    dtm_status status = {0};
    CHECK_OK(dtm_local_run_with(2, &options, hasty_main, &changes, &status), &status);
    changes = true;
    options.delay = 1e-2; /* with some of the seeds rank 1 still waits when rank 0 finds it: its message is given up whole */
    for (; options.seed <= 6; options.seed++) {
        status = (dtm_status){0};
        CHECK_FAILS(dtm_local_run_with(2, &options, hasty_main, &changes, &status), &status,
                    "what rank 0 sends to rank 1 (no name) was changed before the send had ended");
    }
}

/* ---- links ---- */

typedef struct seen {
    dtm_transmission all[16];
    int count;
} seen;

static void observe(void *argument, const dtm_transmission *t) {
    seen *s = argument;
    if (s->count < 16) s->all[s->count++] = *t;
}

/* Nodes of two ranks. Rank 0 sends two messages to rank 1 and one to rank 2: the former two share a port. */
static const dtm_links links = {.node_bandwidth = 1e7, .node_latency = 2e-3, .network_bandwidth = 1e6,
                                .network_latency = 1e-2, .devices_per_node = 2};

static bool links_main(dtm_comm *comm, void *argument, dtm_status *status) {
    enum { BYTES = 10000 };
    dtm_group *world = dtm_comm_world(comm);
    char data[3][BYTES];
    dtm_request requests[3];
    seen s = {.count = 0};
    double begin = now();
    (void)argument;
    dtm_comm_observe(comm, observe, &s);
    memset(data, dtm_comm_rank(comm) + 1, sizeof data);
    bool ok = true;
    if (dtm_comm_rank(comm) == 0) {
        for (int i = 0; ok && i < 3; i++) ok = dtm_send_start(world, 1 + i / 2, data[i], BYTES, &requests[i], status);
        ok = ok && dtm_wait(world, requests, 3, status);
        CHECK(ok && s.count == 3 && s.all[2].bytes == BYTES && s.all[2].peer == 2 && !strcmp(s.all[2].name, "send"));
        CHECK(s.all[0].ended - s.all[0].started >= 0.99e-3 && s.all[1].started >= s.all[0].ended);
    } else if (dtm_comm_rank(comm) == 1) {
        for (int i = 0; ok && i < 2; i++) ok = dtm_receive_start(world, 0, data[i], BYTES, &requests[i], status);
        ok = ok && dtm_wait(world, requests, 2, status);
        CHECK(now() - begin >= 2e-3 + 2e-3); /* both messages' bytes, one latency */
        CHECK(data[0][0] == 1 && data[1][BYTES - 1] == 1);
    } else {
        ok = dtm_receive(world, 0, data[0], BYTES, status);
        CHECK(now() - begin >= 1e-2 + 1e-2 && data[0][0] == 1);
    }
    dtm_comm_observe(comm, NULL, NULL);
    return ok && dtm_comm_barrier(comm, status);
}

int main(int argc, char **argv) {
    static uint32_t seed = 0;
    if (argc > 1 && (!strcmp(argv[1], "--mpi") || (argc > 2 && !strcmp(argv[1], "--fail")))) {
        bool fails = argv[1][2] == 'f';
        dtm_status status = {0};
        dtm_comm *comm;
        if (!dtm_comm_open_mpi(&argc, &argv, &comm, &status)) return fprintf(stderr, "error: %s\n", status.message), 1;
        if (!(fails ? fail_main(comm, argv[2], &status) : started_main(comm, &seed, &status)))
            dtm_comm_abort(comm, &status);
        dtm_comm_close(comm);
        return failures > 0;
    }
    for (int n = 1; n <= 5; n++) {
        dtm_status status = {0};
        CHECK_OK(dtm_local_run(n, started_main, &seed, &status), &status);
    }
    for (seed = 1; seed <= 4; seed++) {
        dtm_status status = {0};
        dtm_local_options options = {.delay = 2e-3, .seed = seed};
        CHECK_OK(dtm_local_run_with(2 + (int)seed % 3, &options, started_main, &seed, &status), &status);
    }
    dtm_status status = {0};
    CHECK_OK(dtm_local_run_with(3, &(dtm_local_options){.links = &links}, links_main, NULL, &status), &status);
    test_failures();
    test_hasty();
    printf("%d checks, %d failures\n", (int)checks, (int)failures);
    return failures > 0;
}
