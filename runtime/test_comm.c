/* Tests of communicators and collectives. Without arguments: everything, on `local` ranks. --mpi: on the ranks that
 * mpirun gives. --fail KIND: one rank fails or hangs, for tests that look at how a run ends. --large: a message of more
 * than 2^31 bytes. */
#include "kernels/cpu/half.h"
#include "runtime/comm/comm.h"
#include "runtime/test_check.h"

#include <math.h>
#include <mpi.h>
#include <unistd.h>

/* ---- collectives ---- */

/* Values that depend on rank and place, with a sum whose bits depend on the order. */
static float value_of(int rank, int64_t i) {
    uint32_t bits = ((uint32_t)rank * 7919u + (uint32_t)i + 1u) * 2654435761u;
    return (float)(int32_t)bits * 0x1p-31f;
}

enum { SIZES = 5 };
/* Counts for a group of n in several manners: even, uneven, with empty blocks, all empty, more than a segment. */
static void make_counts(int manner, int n, int64_t *counts) {
    for (int i = 0; i < n; i++)
        counts[i] = manner == 0   ? 12
                    : manner == 1 ? 1 + (i * 5) % 7
                    : manner == 2 ? (i % 2 ? 0 : 3 + i)
                    : manner == 3 ? 0
                                  : DTM_SEGMENT_BYTES / 4 * 2 + 17 * i - (i == 1 ? DTM_SEGMENT_BYTES / 2 : 0);
}

/* Of large payloads every so many elements are looked at. */
static int64_t stride_of(int64_t count) {
    return count > 100000 ? 61 : 1;
}

static int64_t total_of(const int64_t *counts, int n) {
    int64_t total = 0;
    for (int i = 0; i < n; i++) total += counts[i];
    return total;
}

/* All members hold the same bytes. */
static void check_alike(dtm_group *group, const void *data, int64_t bytes, dtm_status *status) {
    int n = dtm_group_members(group);
    int64_t *sizes = zeroed(n * 8);
    for (int i = 0; i < n; i++) sizes[i] = bytes;
    char *all = zeroed(bytes * n);
    CHECK_OK(dtm_all_gather(group, DTM_ALGORITHM_RING, data, all, sizes, status), status);
    for (int i = 1; i < n; i++) CHECK(memcmp(all, all + i * bytes, (size_t)bytes) == 0);
    free(all);
    free(sizes);
}

static int64_t sent_since(dtm_group *group, dtm_comm *comm, int64_t *mark) {
    (void)group;
    int64_t sent = dtm_comm_sent_bytes(comm) - *mark;
    *mark = dtm_comm_sent_bytes(comm);
    return sent;
}

static void test_all_reduce(dtm_comm *comm, dtm_group *group, dtm_algorithm algorithm, int64_t count, bool in_place,
                            dtm_status *status) {
    int n = dtm_group_members(group), me = dtm_group_index(group);
    float *input = zeroed(count * 4), *output = in_place ? input : zeroed(count * 4);
    int64_t scratch = dtm_collective_scratch_bytes(DTM_COLLECTIVE_ALL_REDUCE, algorithm, n, me, &count, 4);
    char *guarded = zeroed(scratch);
    guarded[scratch] = 42;
    for (int64_t i = 0; i < count; i++) input[i] = value_of(dtm_group_rank(group, me), i);
    int64_t mark = dtm_comm_sent_bytes(comm);
    CHECK_OK(dtm_all_reduce(group, algorithm, DTM_REDUCTION_SUM, DTM_REDUCE_F32, input, output, count, guarded, status),
             status);
    CHECK(sent_since(group, comm, &mark) ==
          dtm_collective_sent_bytes(DTM_COLLECTIVE_ALL_REDUCE, algorithm, n, me, &count, 4));
    CHECK(guarded[scratch] == 42);
    for (int64_t i = 0; i < count; i += stride_of(count)) {
        double sum = 0;
        for (int r = 0; r < n; r++) sum += value_of(dtm_group_rank(group, r), i);
        if (!(fabs(sum - output[i]) < 1e-4)) CHECK(!"the sum is right");
        if (!in_place && input[i] != value_of(dtm_group_rank(group, me), i)) CHECK(!"the input is left alone");
    }
    check_alike(group, output, count * 4, status);
    if (!in_place) free(output);
    free(input);
    free(guarded);
}

/* In halves of f32: small whole numbers, whose sums both have; by each algorithm, with the bytes of two a number. */
static void test_halves(dtm_comm *comm, dtm_group *group, dtm_algorithm algorithm, dtm_reduce_type type, int64_t count, dtm_status *status) {
    int n = dtm_group_members(group), me = dtm_group_index(group);
    uint16_t *numbers = zeroed(count * 2);
    int64_t mark = dtm_comm_sent_bytes(comm);
    for (int64_t i = 0; i < count; i++) numbers[i] = type == DTM_REDUCE_BF16 ? dtm_to_bf16((float)(me + i % 3)) : dtm_to_f16((float)(me + i % 3));
    CHECK_OK(dtm_all_reduce(group, algorithm, DTM_REDUCTION_SUM, type, numbers, numbers, count, NULL, status), status);
    CHECK(sent_since(group, comm, &mark) == dtm_collective_sent_bytes(DTM_COLLECTIVE_ALL_REDUCE, algorithm, n, me, &count, 2));
    for (int64_t i = 0; i < count; i += stride_of(count)) {
        float sum = type == DTM_REDUCE_BF16 ? dtm_of_bf16(numbers[i]) : dtm_of_f16(numbers[i]);
        CHECK(sum == (float)(n * (n - 1) / 2 + n * (i % 3)));
    }
    check_alike(group, numbers, count * 2, status);
    CHECK_OK(dtm_all_reduce(group, algorithm, DTM_REDUCTION_MAX, type, numbers, numbers, count, NULL, status), status);
    free(numbers);
}

static void test_reduce_scatter(dtm_comm *comm, dtm_group *group, dtm_algorithm algorithm, const int64_t *counts,
                                bool in_place, dtm_status *status) {
    int n = dtm_group_members(group), me = dtm_group_index(group);
    int64_t total = total_of(counts, n), at = total_of(counts, me);
    float *input = zeroed(total * 4), *output = in_place ? input + at : zeroed(counts[me] * 4);
    int64_t scratch = dtm_collective_scratch_bytes(DTM_COLLECTIVE_REDUCE_SCATTER, algorithm, n, me, counts, 4);
    char *guarded = zeroed(scratch);
    guarded[scratch] = 42;
    for (int64_t i = 0; i < total; i++) input[i] = value_of(dtm_group_rank(group, me), i);
    int64_t mark = dtm_comm_sent_bytes(comm);
    CHECK_OK(
        dtm_reduce_scatter(group, algorithm, DTM_REDUCTION_SUM, DTM_REDUCE_F32, input, output, counts, guarded, status),
        status);
    CHECK(sent_since(group, comm, &mark) ==
          dtm_collective_sent_bytes(DTM_COLLECTIVE_REDUCE_SCATTER, algorithm, n, me, counts, 4));
    CHECK(guarded[scratch] == 42);
    for (int64_t i = 0; i < counts[me]; i += stride_of(total)) {
        double sum = 0;
        for (int r = 0; r < n; r++) sum += value_of(dtm_group_rank(group, r), at + i);
        if (!(fabs(sum - output[i]) < 1e-4)) CHECK(!"the sum is right");
    }
    for (int64_t i = 0; i < total; i++)
        if ((i < at || i >= at + counts[me] || !in_place) && input[i] != value_of(dtm_group_rank(group, me), i))
            CHECK(!"the input is left alone");
    if (!in_place) free(output);
    free(input);
    free(guarded);
}

static void test_all_gather(dtm_comm *comm, dtm_group *group, dtm_algorithm algorithm, const int64_t *counts,
                            dtm_status *status) {
    int n = dtm_group_members(group), me = dtm_group_index(group);
    int64_t total = total_of(counts, n), at = 0;
    unsigned char *input = zeroed(counts[me]), *output = zeroed(total);
    for (int64_t i = 0; i < counts[me]; i++) input[i] = (unsigned char)(me * 37 + i);
    int64_t mark = dtm_comm_sent_bytes(comm);
    CHECK_OK(dtm_all_gather(group, algorithm, input, output, counts, status), status);
    CHECK(sent_since(group, comm, &mark) ==
          dtm_collective_sent_bytes(DTM_COLLECTIVE_ALL_GATHER, algorithm, n, me, counts, 1));
    for (int r = 0; r < n; r++)
        for (int64_t i = 0; i < counts[r]; i++)
            if (output[at++] != (unsigned char)(r * 37 + i)) CHECK(!"the gathered bytes are right");
    free(input);
    free(output);
}

/* Rank i sends counts[(i + j) % n] bytes to rank j. */
static void test_all_to_all(dtm_comm *comm, dtm_group *group, const int64_t *counts, dtm_status *status) {
    int n = dtm_group_members(group), me = dtm_group_index(group);
    int64_t *sizes = zeroed(n * 8);
    for (int j = 0; j < n; j++) sizes[j] = counts[(me + j) % n];
    int64_t total = total_of(sizes, n), at = 0;
    unsigned char *input = zeroed(total), *output = zeroed(total);
    for (int j = 0; j < n; j++)
        for (int64_t i = 0; i < sizes[j]; i++) input[at++] = (unsigned char)(me * 11 + j * 101 + i);
    int64_t mark = dtm_comm_sent_bytes(comm);
    CHECK_OK(dtm_all_to_all(group, DTM_ALGORITHM_PAIRWISE, input, sizes, output, sizes, status), status);
    CHECK(sent_since(group, comm, &mark) ==
          dtm_collective_sent_bytes(DTM_COLLECTIVE_ALL_TO_ALL, DTM_ALGORITHM_PAIRWISE, n, me, sizes, 1));
    at = 0;
    for (int r = 0; r < n; r++)
        for (int64_t i = 0; i < sizes[r]; i++)
            if (output[at++] != (unsigned char)(r * 11 + me * 101 + i)) CHECK(!"the exchanged bytes are right");
    free(input);
    free(output);
    free(sizes);
}

static void test_broadcast(dtm_comm *comm, dtm_group *group, int64_t bytes, dtm_status *status) {
    int n = dtm_group_members(group), me = dtm_group_index(group);
    unsigned char *data = zeroed(bytes);
    for (int root = 0; root < n; root++) {
        memset(data, me == root ? root + 1 : 0, (size_t)bytes);
        int64_t mark = dtm_comm_sent_bytes(comm);
        CHECK_OK(dtm_broadcast(group, DTM_ALGORITHM_TREE, data, bytes, root, status), status);
        CHECK(sent_since(group, comm, &mark) == dtm_collective_sent_bytes(DTM_COLLECTIVE_BROADCAST, DTM_ALGORITHM_TREE,
                                                                          n, (me - root + n) % n, &bytes, 1));
        for (int64_t i = 0; i < bytes; i++)
            if (data[i] != root + 1) CHECK(!"the root's bytes arrived");
    }
    free(data);
}

/* NaN and signed zeros do not make replicas differ. */
static void test_special_values(dtm_group *group, dtm_status *status) {
    int n = dtm_group_members(group), me = dtm_group_index(group);
    for (dtm_algorithm algorithm = 0; algorithm < DTM_ALGORITHMS; algorithm++) {
        if (!dtm_algorithm_fits(DTM_COLLECTIVE_ALL_REDUCE, algorithm, n)) continue;
        double in[4] = {me == n - 1 ? NAN : me, me % 2 ? 0.0 : -0.0, -me, me == 0 ? -NAN : 1}, out[4];
        CHECK_OK(dtm_all_reduce(group, algorithm, DTM_REDUCTION_MAX, DTM_REDUCE_F64, in, out, 4, NULL, status), status);
        CHECK(isnan(out[0]) && out[1] == 0 && signbit(out[1]) == (n == 1) && out[2] == 0 && isnan(out[3]));
        check_alike(group, out, sizeof out, status);
        CHECK_OK(dtm_all_reduce(group, algorithm, DTM_REDUCTION_SUM, DTM_REDUCE_F64, in, out, 4, NULL, status), status);
        check_alike(group, out, sizeof out, status);
        int32_t whole[2] = {me, INT32_MIN + me}, greatest[2];
        CHECK_OK(dtm_all_reduce(group, algorithm, DTM_REDUCTION_MAX, DTM_REDUCE_I32, whole, greatest, 2, NULL, status),
                 status);
        CHECK(greatest[0] == n - 1 && greatest[1] == INT32_MIN + n - 1);
    }
}

static void test_collectives(dtm_comm *comm, dtm_group *group, dtm_status *status) {
    int n = dtm_group_members(group);
    int64_t counts[16];
    for (int manner = 0; manner < SIZES; manner++) {
        if (manner == SIZES - 1 && n != 2 && n != 5) continue; /* large payloads: two sizes will do */
        make_counts(manner, n, counts);
        for (dtm_algorithm algorithm = 0; algorithm < DTM_ALGORITHMS; algorithm++)
            for (int in_place = 0; in_place < 2; in_place++) {
                if (dtm_algorithm_fits(DTM_COLLECTIVE_ALL_REDUCE, algorithm, n))
                    test_all_reduce(comm, group, algorithm, total_of(counts, n), in_place, status);
                if (dtm_algorithm_fits(DTM_COLLECTIVE_ALL_REDUCE, algorithm, n) && manner < SIZES - 1)
                    test_halves(comm, group, algorithm, in_place ? DTM_REDUCE_BF16 : DTM_REDUCE_F16, total_of(counts, n), status);
                if (dtm_algorithm_fits(DTM_COLLECTIVE_REDUCE_SCATTER, algorithm, n))
                    test_reduce_scatter(comm, group, algorithm, counts, in_place, status);
                if (dtm_algorithm_fits(DTM_COLLECTIVE_ALL_GATHER, algorithm, n))
                    test_all_gather(comm, group, algorithm, counts, status);
            }
        test_all_to_all(comm, group, counts, status);
        test_broadcast(comm, group, total_of(counts, n) % 1000, status);
    }
    test_all_reduce(comm, group, DTM_ALGORITHM_RING, 1, false, status); /* fewer elements than ranks */
    test_special_values(group, status);
    dtm_status wrong = {0};
    CHECK_FAILS(dtm_broadcast(group, DTM_ALGORITHM_RING, NULL, 0, 0, &wrong), &wrong, "algorithm `ring`");
}

/* Messages of two groups between the same ranks do not mix, whatever the order in which they are received. */
static void test_point_to_point(dtm_comm *comm, dtm_group *group, dtm_status *status) {
    int n = dtm_group_members(group), me = dtm_group_index(group);
    dtm_group *world = dtm_comm_world(comm);
    int next = (me + 1) % n, previous = (me + n - 1) % n;
    int64_t sent[3] = {me, me + 100, me + 200}, got[3] = {0};
    dtm_request requests[6];
    CHECK_OK(dtm_receive_start(group, previous, &got[0], 8, &requests[0], status) &&
                 dtm_receive_start(world, previous, &got[1], 8, &requests[1], status) &&
                 dtm_send_start(world, next, &sent[1], 8, &requests[2], status) &&
                 dtm_send_start(group, next, &sent[0], 8, &requests[3], status) &&
                 dtm_send_start(world, next, &sent[2], 8, &requests[4], status) &&
                 dtm_receive_start(world, previous, &got[2], 8, &requests[5], status) &&
                 dtm_wait(world, requests, 6, status),
             status);
    CHECK(got[0] == previous && got[1] == previous + 100 && got[2] == previous + 200);
}

static bool comm_main(dtm_comm *comm, void *argument, dtm_status *status) {
    (void)argument;
    int n = dtm_comm_size(comm), ranks[64], odd = 0;
    for (int i = 0; i < n; i++) ranks[i] = n - 1 - i; /* another order than the world's */
    dtm_group *reversed, *half = NULL;
    CHECK_OK(dtm_group_create(comm, "reversed", ranks, n, 1, &reversed, status), status);
    for (int i = dtm_comm_rank(comm) % 2; i < n; i += 2) ranks[odd++] = i;
    CHECK_OK(dtm_group_create(comm, "half", ranks, odd, 2, &half, status), status);
    if (status->failed) return false;
    test_collectives(comm, reversed, status);
    CHECK_OK(dtm_comm_barrier(comm, status), status);
    test_collectives(comm, half, status);
    for (int i = 0; i < n; i++) ranks[i] = i;
    dtm_group *same;
    CHECK_OK(dtm_group_create(comm, "same", ranks, n, 3, &same, status), status);
    test_point_to_point(comm, same, status);
    CHECK_OK(dtm_comm_same(comm, "plan", 5, status), status);
    CHECK_OK(dtm_comm_agree(comm, status), status);
    return !status->failed;
}

/* ---- failing ranks ---- */

static bool fail_main(dtm_comm *comm, void *argument, dtm_status *status) {
    const char *kind = argument;
    int rank = dtm_comm_rank(comm);
    float x = 1, y[64];
    if (!strcmp(kind, "error") && rank == 1) return dtm_status_fail(status, "rank 1 has had enough");
    if (!strcmp(kind, "all")) return dtm_status_fail(status, "rank %d has had enough", rank);
    if (!strcmp(kind, "hang")) {
        dtm_comm_set_deadline(comm, 0.5);
        if (rank == 1) {
            usleep(4000000);
            return true;
        }
    }
    if (!strcmp(kind, "stop")) { /* for a test from outside, which stops one rank by a signal */
        dtm_comm_set_deadline(comm, 1);
        if (rank == 2) printf("%ld\n", (long)getpid()), fflush(stdout);
    }
    if (!strcmp(kind, "size") && rank == 1)
        return dtm_all_reduce(dtm_comm_world(comm), DTM_ALGORITHM_GATHER, DTM_REDUCTION_SUM, DTM_REDUCE_F32, y, y, 2,
                              NULL, status);
    if (!strcmp(kind, "agree")) {
        if (rank > 0) dtm_status_fail(status, "rank %d cannot open its file", rank);
        return dtm_comm_agree(comm, status);
    }
    if (!strcmp(kind, "same")) return dtm_comm_same(comm, "plan hash", rank == 2 ? 7 : 5, status);
    for (int i = 0; i < 10000000; i++)
        if (!dtm_all_reduce(dtm_comm_world(comm), DTM_ALGORITHM_GATHER, DTM_REDUCTION_SUM, DTM_REDUCE_F32, &x, &x, 1,
                            NULL, status))
            return false;
    return true;
}

static void test_failures(void) {
    static const char *const cases[][2] = {{"error", "rank 1 has had enough"},
                                           {"hang", "ranks that arrived: 0, 2, 3; that did not: 1"},
                                           {"size", "bytes to rank"},
                                           {"agree", "rank 1 cannot open its file"},
                                           {"same", "rank 2 has another plan hash than rank 0"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dtm_status status = {0};
        CHECK_FAILS(dtm_local_run(4, fail_main, (void *)cases[i][0], &status), &status, cases[i][1]);
        CHECK(!status.echo);
    }
}

/* Counts from outside what the transport sends: this definition stands before MPI's own (its profiling interface). */
static int64_t counted_bytes;
int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm mpi_comm,
              MPI_Request *request) {
    int bytes;
    PMPI_Type_size(type, &bytes);
    counted_bytes += (int64_t)count * bytes;
    return PMPI_Isend(data, count, type, to, tag, mpi_comm, request);
}

/* Fault 71: a message of more than 2^31 bytes. */
static bool large_main(dtm_comm *comm, void *argument, dtm_status *status) {
    (void)argument;
    int64_t bytes = 2147483656;
    char *data = zeroed(bytes);
    if (dtm_comm_rank(comm) == 0) memcpy(data + bytes - 8, "the last", 8);
    bool ok = dtm_broadcast(dtm_comm_world(comm), DTM_ALGORITHM_TREE, data, bytes, 0, status);
    CHECK_OK(ok && memcmp(data + bytes - 8, "the last", 8) == 0, status);
    free(data);
    return ok;
}

static int run_mpi(int argc, char **argv, dtm_rank_main function, void *argument) {
    dtm_status status = {0};
    dtm_comm *comm;
    if (!dtm_comm_open_mpi(&argc, &argv, &comm, &status)) {
        fprintf(stderr, "error: %s\n", status.message);
        return 1;
    }
    if (!function(comm, argument, &status)) dtm_comm_abort(comm, &status);
    CHECK(counted_bytes == dtm_comm_sent_bytes(comm));
    dtm_comm_close(comm);
    return failures > 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--mpi")) return run_mpi(argc, argv, comm_main, NULL);
    if (argc > 1 && !strcmp(argv[1], "--large")) return run_mpi(argc, argv, large_main, NULL);
    if (argc > 2 && !strcmp(argv[1], "--fail")) return run_mpi(argc, argv, fail_main, argv[2]);
    for (int n = 1; n <= 9; n++) {
        dtm_status status = {0};
        CHECK_OK(dtm_local_run(n, comm_main, NULL, &status), &status);
    }
    test_failures();
    printf("%d checks, %d failures\n", (int)checks, (int)failures);
    return failures > 0;
}
