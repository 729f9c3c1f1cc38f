/* The collectives, on nothing but sends and receives. Each sums in an order that depends on the group and the algorithm
 * alone, and where all ranks must hold the same bits they hold copies of one sum, or add the same two operands in the
 * same order.
 *
 * A ring of 4 with blocks 0 1 2 3; in step s rank i sends to i + 1 and receives from i - 1:
 *
 *     reduce_scatter  step 0: rank i sends its term of block i - 1   (modulo 4)
 *                     step s: rank i sends its sum of block i - 1 - s, just received and added to
 *                     after 3 steps rank i has the whole sum of block i
 *     all_gather      step s: rank i sends block i - s
 *
 * Both ways half of the blocks go to i + 1 and half to i - 1, in turn, so that two are under way (dtm_ring_member): the
 * latency of one passes while the other is sent. */
#include "ir/fault.h"
#include "kernels/cpu/half.h"
#include "runtime/comm/transport.h"

#include <stdlib.h>
#include <string.h>

#if defined(__clang__)
#define VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#else
#define VECTORIZE _Pragma("GCC ivdep")
#endif

/* ---- arithmetic ---- */

int64_t dtm_reduce_type_bytes(dtm_reduce_type type) {
    return type == DTM_REDUCE_F64 ? 8 : type == DTM_REDUCE_BF16 || type == DTM_REDUCE_F16 ? 2 : 4;
}

/* NaN if either is; of the two zeros the positive: so the order of the operands does not matter. */
#define MAX_FLOAT(a, b) ((a) > (b) ? (a) : (b) > (a) ? (b) : (a) + (b) == 0 ? (a) + (b) : (a) == (b) ? (a) : (a) + (b))
#define MAX_INTEGER(a, b) ((a) > (b) ? (a) : (b))
#define SUM(a, b) ((a) + (b))
/* Whole numbers wrap around. */
#define SUM_INTEGER(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))

/* target may be first or second: then element by element in place. */
#define REDUCE(name, type, operation)                                                                                  \
    static void name(void *target, const void *first, const void *second, int64_t count) {                             \
        type *t = target;                                                                                              \
        const type *a = first, *b = second;                                                                            \
        VECTORIZE for (int64_t i = 0; i < count; i++) t[i] = operation(a[i], b[i]);                                    \
    }
#define HALVES(half, operation, a, b) dtm_to_##half(operation(dtm_of_##half(a), dtm_of_##half(b)))
#define SUM_BF16(a, b) HALVES(bf16, SUM, a, b)
#define SUM_F16(a, b) HALVES(f16, SUM, a, b)
#define MAX_BF16(a, b) HALVES(bf16, MAX_FLOAT, a, b)
#define MAX_F16(a, b) HALVES(f16, MAX_FLOAT, a, b)
REDUCE(sum_f32, float, SUM)
REDUCE(sum_f64, double, SUM)
REDUCE(sum_i32, int32_t, SUM_INTEGER)
REDUCE(max_f32, float, MAX_FLOAT)
REDUCE(max_f64, double, MAX_FLOAT)
REDUCE(max_i32, int32_t, MAX_INTEGER)
REDUCE(sum_bf16, uint16_t, SUM_BF16)
REDUCE(sum_f16, uint16_t, SUM_F16)
REDUCE(max_bf16, uint16_t, MAX_BF16)
REDUCE(max_f16, uint16_t, MAX_F16)

typedef struct reducer {
    void (*apply)(void *target, const void *first, const void *second, int64_t count);
    int64_t element_bytes;
} reducer;

static void add_nothing(void *target, const void *first, const void *second, int64_t count) {
    (void)target, (void)first, (void)second, (void)count;
}

static reducer reducer_of(const dtm_group *group, dtm_reduction reduction, dtm_reduce_type type) {
    static void (*const table[2][DTM_REDUCE_TYPES])(void *, const void *, const void *, int64_t) = {
        {sum_f32, sum_f64, sum_i32, sum_bf16, sum_f16}, {max_f32, max_f64, max_i32, max_bf16, max_f16}};
    return (reducer){group->comm->pretends ? add_nothing : table[reduction][type], dtm_reduce_type_bytes(type)};
}

/* ---- helpers ---- */

static int next_of(const dtm_group *group) {
    return (group->index + 1) % group->size;
}
static int previous_of(const dtm_group *group) {
    return (group->index + group->size - 1) % group->size;
}
static int modulo(int a, int n) {
    return (a % n + n) % n;
}

static int64_t offset_of(const int64_t *counts, int block) {
    int64_t offset = 0;
    for (int i = 0; i < block; i++) offset += counts[i];
    return offset;
}

static void copy(const dtm_group *group, void *target, const void *source, int64_t bytes) {
    if (target != source && bytes > 0 && !group->comm->pretends) memmove(target, source, (size_t)bytes);
}

static bool begin(dtm_group *group, dtm_collective_kind kind, dtm_algorithm algorithm, dtm_status *status) {
    const char *name = dtm_collective_kind_name(kind);
    if (!dtm_algorithm_fits(kind, algorithm, group->size))
        return dtm_status_fail(status, "%s on %s (%d ranks) cannot be done by the algorithm `%s`", name, group->name,
                               group->size, dtm_algorithm_name(algorithm));
    dtm_operation_begin(group, name, -1);
    return true;
}

/* Where scratch is not given it is allocated, and *owned is to be freed. */
static bool scratch_for(void **scratch, void **owned, int64_t bytes, dtm_status *status) {
    *owned = NULL;
    if (*scratch || bytes == 0) return true;
    *scratch = *owned = malloc((size_t)bytes);
    return *scratch ||
           dtm_status_fail(status, "out of memory for %lld bytes of a collective's scratch", (long long)bytes);
}

/* One step of a ring, or one exchange of a doubling: sends a block while it receives another, and for every element
 * computes target = received + own (own_first: own + received). The block goes in segments with two under way each way,
 * so that one is summed while the next arrives; `landing` holds the two. target may be own, or send: a segment is
 * written only after the one sent from there has left. */
typedef struct exchange {
    int to, from;
    const char *send;
    int64_t send_count;
    const char *own;
    char *target;
    int64_t receive_count;
    bool own_first;
    int needs; /* blocks that the owner of a collective in steps has to have given before own is read */
    char *landing;
    dtm_request requests[4];
} exchange;

static int64_t segment_count(int64_t count, int64_t segment, int64_t k) {
    int64_t rest = count - k * segment;
    return rest <= 0 ? 0 : rest < segment ? rest : segment;
}

/* Where segment k is received: a block shorter than a segment needs no more room than itself. */
static char *landing_of(const exchange *e, int64_t segment, int64_t bytes, int64_t k) {
    return e->landing + (k % 2) * bytes * (segment < e->receive_count ? segment : e->receive_count);
}

static int64_t segments_of(const exchange *e, int64_t segment) {
    int64_t most = e->send_count > e->receive_count ? e->send_count : e->receive_count;
    return (most + segment - 1) / segment;
}

static bool start_segment(dtm_group *group, exchange *e, int64_t segment, int64_t bytes, int64_t k, dtm_status *status) {
    int64_t receive = segment_count(e->receive_count, segment, k), send = segment_count(e->send_count, segment, k);
    if (k >= segments_of(e, segment)) return true;
    return dtm_receive_start(group, e->from, landing_of(e, segment, bytes, k), receive * bytes, &e->requests[2 * (k % 2)],
                             status) &&
           dtm_send_start(group, e->to, e->send + k * segment * bytes, send * bytes, &e->requests[2 * (k % 2) + 1], status);
}

/* The first two segments are on their way. */
static bool begin_exchange(dtm_group *group, reducer reduce, exchange *e, dtm_status *status) {
    int64_t bytes = reduce.element_bytes, segment = DTM_SEGMENT_BYTES / bytes;
    for (int i = 0; i < 4; i++) e->requests[i].done = 1;
    return start_segment(group, e, segment, bytes, 0, status) && start_segment(group, e, segment, bytes, 1, status);
}

static bool end_exchange(dtm_group *group, reducer reduce, exchange *e, dtm_status *status) {
    int64_t bytes = reduce.element_bytes, segment = DTM_SEGMENT_BYTES / bytes, segments = segments_of(e, segment);
    for (int64_t k = 0; k < segments; k++) {
        int64_t count = segment_count(e->receive_count, segment, k), at = k * segment * bytes;
        if (!dtm_wait(group, &e->requests[2 * (k % 2)], 2, status)) return false;
        const char *received = landing_of(e, segment, bytes, k);
        if (k == 0 && e->needs && !dtm_step_given(group, e->needs)) return dtm_status_echo(status);
        if (count > 0 && e->own_first) reduce.apply(e->target + at, e->own + at, received, count);
        if (count > 0 && !e->own_first) reduce.apply(e->target + at, received, e->own + at, count);
        if (!start_segment(group, e, segment, bytes, k + 2, status)) return false;
    }
    return true;
}

static bool exchange_and_reduce(dtm_group *group, reducer reduce, exchange *e, dtm_status *status) {
    return begin_exchange(group, reduce, e, status) && end_exchange(group, reduce, e, status);
}

/* ---- all_reduce ---- */

static bool all_reduce_ring(dtm_group *group, reducer reduce, const char *input, char *output, int64_t count,
                            char *landing, dtm_status *status) {
    int n = group->size;
    int64_t bytes = reduce.element_bytes;
    for (int step = 0; step < n - 1; step++) {
        int sent = modulo(group->index - 1 - step, n), received = modulo(group->index - 2 - step, n);
        int64_t at = dtm_ring_block_begin(count, n, sent), into = dtm_ring_block_begin(count, n, received);
        exchange e = {.to = next_of(group), .from = previous_of(group), .landing = landing};
        e.send = (step == 0 ? input : output) + at * bytes;
        e.send_count = dtm_ring_block_begin(count, n, sent + 1) - at;
        e.own = input + into * bytes;
        e.target = output + into * bytes;
        e.receive_count = dtm_ring_block_begin(count, n, received + 1) - into;
        if (!exchange_and_reduce(group, reduce, &e, status)) return false;
    }
    for (int step = 0; step < n - 1; step++) {
        int sent = modulo(group->index - step, n), received = modulo(group->index - 1 - step, n);
        int64_t at = dtm_ring_block_begin(count, n, sent), into = dtm_ring_block_begin(count, n, received);
        int64_t send_count = dtm_ring_block_begin(count, n, sent + 1) - at;
        int64_t receive_count = dtm_ring_block_begin(count, n, received + 1) - into;
        if (!dtm_send_receive(group, next_of(group), output + at * bytes, send_count * bytes, previous_of(group),
                              output + into * bytes, receive_count * bytes, status))
            return false;
    }
    return true;
}

static bool all_reduce_doubling(dtm_group *group, reducer reduce, const char *input, char *output, int64_t count,
                                char *landing, dtm_status *status) {
    copy(group, output, input, count * reduce.element_bytes);
    for (int distance = 1; distance < group->size; distance *= 2) {
        int partner = group->index ^ distance;
        /* Both partners add the lower one's value first: the same operands in the same order, the same bits. */
        exchange e = {partner, partner, output, count, output, output, count, group->index < partner, .landing = landing};
        if (!exchange_and_reduce(group, reduce, &e, status)) return false;
    }
    return true;
}

/* The k-th message of a rank goes to the k-th rank after it, once the one before has left: so one comes to each rank at a time, and none
 * waits for a rank that another sends to. */
static bool send_in_turn(dtm_group *group, int to, const void *data, int64_t bytes, dtm_status *status) {
    dtm_request *sends = dtm_lane(group)->requests + group->size;
    return dtm_wait(group, &sends[modulo(to - 1, group->size)], 1, status) &&
           dtm_send_start(group, to, data, bytes, &sends[to], status);
}

/* Posts a receive of bytes[i] from each member i at receive[i], and sends to each; blocks of size 0 are passed over. */
static bool talk_to_all(dtm_group *group, const char *send, const int64_t *send_bytes, bool same_to_all, char *receive,
                        const int64_t *receive_bytes, dtm_status *status) {
    int n = group->size, me = group->index;
    for (int i = 0; i < 2 * n; i++) dtm_lane(group)->requests[i].done = 1;
    int64_t at = 0;
    for (int i = 0; i < n; at += receive_bytes[i], i++)
        if (i != me && !dtm_receive_start(group, i, receive + at, receive_bytes[i], &dtm_lane(group)->requests[i], status))
            return false;
    at = same_to_all ? 0 : offset_of(send_bytes, me);
    for (int k = 1, to = me; k < n; k++) {
        at += same_to_all ? 0 : send_bytes[to];
        to = (to + 1) % n;
        if (to == 0) at = 0;
        int64_t bytes = same_to_all ? send_bytes[me] : send_bytes[to];
        if (!send_in_turn(group, to, send + at, bytes, status)) return false;
    }
    return dtm_wait(group, dtm_lane(group)->requests, 2 * n, status);
}

static bool all_reduce_gather(dtm_group *group, reducer reduce, const char *input, char *output, int64_t count,
                              char *gathered, dtm_status *status) {
    int n = group->size;
    int64_t bytes = count * reduce.element_bytes;
    if (bytes == 0) return true;
    for (int i = 0; i < 2 * n; i++) dtm_lane(group)->requests[i].done = 1;
    copy(group, gathered + group->index * bytes, input, bytes);
    for (int k = 1; k < n; k++) {
        int from = modulo(group->index - k, n);
        if (!dtm_receive_start(group, from, gathered + from * bytes, bytes, &dtm_lane(group)->requests[from], status))
            return false;
    }
    for (int k = 1; k < n; k++) {
        int to = (group->index + k) % n;
        if (!send_in_turn(group, to, gathered + group->index * bytes, bytes, status)) return false;
    }
    if (!dtm_wait(group, dtm_lane(group)->requests, 2 * n, status)) return false;
    int first = dtm_fault(38) ? group->index : 0;
    reduce.apply(output, gathered + first * bytes, gathered + (first + 1) % n * bytes, count);
    for (int i = 2; i < n; i++) reduce.apply(output, output, gathered + (first + i) % n * bytes, count);
    return true;
}

bool dtm_all_reduce(dtm_group *group, dtm_algorithm algorithm, dtm_reduction reduction, dtm_reduce_type type,
                    const void *input, void *output, int64_t count, void *scratch, dtm_status *status) {
    reducer reduce = reducer_of(group, reduction, type);
    if (!begin(group, DTM_COLLECTIVE_ALL_REDUCE, algorithm, status)) return false;
    void *owned;
    bool ok = scratch_for(&scratch, &owned,
                          dtm_collective_scratch_bytes(DTM_COLLECTIVE_ALL_REDUCE, algorithm, group->size, group->index,
                                                       &count, reduce.element_bytes),
                          status);
    if (ok && group->size == 1) copy(group, output, input, count * reduce.element_bytes);
    if (ok && group->size > 1) {
        bool (*run)(dtm_group *, reducer, const char *, char *, int64_t, char *, dtm_status *) =
            algorithm == DTM_ALGORITHM_RING       ? all_reduce_ring
            : algorithm == DTM_ALGORITHM_DOUBLING ? all_reduce_doubling
                                                  : all_reduce_gather;
        ok = run(group, reduce, input, output, count, scratch, status);
    }
    free(owned);
    dtm_operation_end(group);
    return ok;
}

/* ---- reduce_scatter ---- */

/* Message `step` of a ring, from 1 on: it takes on to the next rank, both ways every second one to the previous, what message
 * step - ways brought. What it brings itself goes on with message step + ways, or is for this rank. */
static int ways_of(dtm_algorithm algorithm) { return algorithm == DTM_ALGORITHM_BOTH_WAYS ? 2 : 1; }
static bool is_back(int ways, int step) { return ways == 2 && step % 2 == 0; }

typedef struct scatter {
    dtm_algorithm algorithm;
    const char *input;
    char *output, *partial[2], *landing[2];
    const int64_t *counts;
    exchange exchanges[2];
} scatter;

static int scattered(const dtm_group *group, const scatter *s, int step) {
    return dtm_ring_member(DTM_COLLECTIVE_REDUCE_SCATTER, s->algorithm, group->size, group->index, step);
}

/* Both ways a message starts once the one before it has left: so messages come to each rank from one side and the other in turn,
 * and none waits for a rank that another sends to, which waits itself. */
static bool has_left(dtm_group *group, exchange *e, dtm_status *status) {
    return dtm_wait(group, &e->requests[1], 1, status) && dtm_wait(group, &e->requests[3], 1, status);
}

static bool begin_scatter(dtm_group *group, reducer reduce, scatter *s, int step, dtm_status *status) {
    int n = group->size, ways = ways_of(s->algorithm), way = (step - 1) % ways, goes_on = step + ways < n ? step + ways : n;
    int sent = scattered(group, s, step), received = scattered(group, s, goes_on);
    int64_t bytes = reduce.element_bytes;
    const char *own = s->input + offset_of(s->counts, received) * bytes;
    exchange *e = &s->exchanges[way];
    *e = (exchange){.to = next_of(group), .from = previous_of(group), .landing = s->landing[way]};
    if (is_back(ways, step)) e->to = e->from, e->from = next_of(group);
    e->send = step <= ways ? s->input + offset_of(s->counts, sent) * bytes : s->partial[way];
    e->send_count = s->counts[sent];
    /* Of the two that end here the second is added to the sum of the first. */
    e->own = ways == 2 && step == n - 1 && !dtm_fault(91) ? s->output : own;
    e->target = goes_on == n ? s->output : s->partial[way];
    e->receive_count = s->counts[received];
    e->needs = goes_on;
    if (step <= ways && !dtm_step_given(group, step)) return dtm_status_echo(status);
    if (ways == 2 && step > 1 && !has_left(group, &s->exchanges[1 - way], status)) return false;
    return begin_exchange(group, reduce, e, status);
}

static bool reduce_scatter_ring(dtm_group *group, reducer reduce, dtm_algorithm algorithm, const char *input, char *output,
                                const int64_t *counts, char *scratch, dtm_status *status) {
    int n = group->size, ways = ways_of(algorithm);
    int64_t most = 0;
    for (int i = 0; i < n; i++) most = counts[i] * reduce.element_bytes > most ? counts[i] * reduce.element_bytes : most;
    int64_t landing = 2 * most < 2 * DTM_SEGMENT_BYTES ? 2 * most : 2 * DTM_SEGMENT_BYTES;
    scatter s = {algorithm, input, output, {scratch, scratch + most}, {0}, counts, {{0}}};
    for (int way = 0; way < ways; way++) s.landing[way] = scratch + ways * most + way * landing;
    for (int step = 1; step <= ways; step++)
        if (!begin_scatter(group, reduce, &s, step, status)) return false;
    for (int step = 1; step < n; step++) {
        if (!end_exchange(group, reduce, &s.exchanges[(step - 1) % ways], status)) return false;
        if (step + ways < n && !begin_scatter(group, reduce, &s, step + ways, status)) return false;
    }
    return true;
}

/* Every rank sends each block straight to its owner, the next rank's first; who adds them to its own in the order in which they come,
 * two receives ahead. */
static bool reduce_scatter_pairwise(dtm_group *group, reducer reduce, const char *input, char *output,
                                    const int64_t *counts, char *scratch, dtm_status *status) {
    int n = group->size, me = group->index;
    int64_t bytes = reduce.element_bytes, block = counts[me] * bytes;
    dtm_request *sends = dtm_lane(group)->requests + n, *receives = dtm_lane(group)->requests;
    for (int i = 0; i < 2 * n; i++) dtm_lane(group)->requests[i].done = 1;
    copy(group, output, input + offset_of(counts, me) * bytes, block);
    for (int k = 1; k < n + 2; k++) {
        int done = modulo(me - k + 2, n), from = modulo(me - k, n), to = (me + k) % n;
        if (k > 2) {
            if (!dtm_wait(group, &receives[done], 1, status)) return false;
            reduce.apply(output, output, scratch + (k - 1) % 2 * block, counts[me]);
        }
        if (k >= n) continue;
        if (!dtm_receive_start(group, from, scratch + (k - 1) % 2 * block, block, &receives[from], status) ||
            !send_in_turn(group, to, input + offset_of(counts, to) * bytes, counts[to] * bytes, status))
            return false;
    }
    return dtm_wait(group, sends, n, status);
}

bool dtm_reduce_scatter(dtm_group *group, dtm_algorithm algorithm, dtm_reduction reduction, dtm_reduce_type type,
                        const void *input, void *output, const int64_t *counts, void *scratch, dtm_status *status) {
    reducer reduce = reducer_of(group, reduction, type);
    if (!begin(group, DTM_COLLECTIVE_REDUCE_SCATTER, algorithm, status)) return false;
    void *owned;
    bool ok = scratch_for(&scratch, &owned,
                          dtm_collective_scratch_bytes(DTM_COLLECTIVE_REDUCE_SCATTER, algorithm, group->size,
                                                       group->index, counts, reduce.element_bytes),
                          status);
    if (ok && group->size == 1)
        copy(group, output, input, counts[0] * reduce.element_bytes);
    else if (ok && algorithm != DTM_ALGORITHM_PAIRWISE)
        ok = reduce_scatter_ring(group, reduce, algorithm, input, output, counts, scratch, status);
    else if (ok)
        ok = reduce_scatter_pairwise(group, reduce, input, output, counts, scratch, status);
    free(owned);
    dtm_operation_end(group);
    return ok;
}

/* ---- all_gather, all_to_all, broadcast: bytes as they are ---- */

static bool begin_gather(dtm_group *group, dtm_algorithm algorithm, char *output, const int64_t *bytes, int step,
                         dtm_request *requests, dtm_status *status) {
    int ways = ways_of(algorithm), back = is_back(ways, step);
    int from = back ? next_of(group) : previous_of(group), to = back ? previous_of(group) : next_of(group);
    int received = dtm_ring_member(DTM_COLLECTIVE_ALL_GATHER, algorithm, group->size, group->index, step);
    int sent = dtm_ring_member(DTM_COLLECTIVE_ALL_GATHER, algorithm, group->size, group->index, step > ways ? step - ways : 0);
    return dtm_receive_start(group, from, output + offset_of(bytes, received), bytes[received], &requests[0], status) &&
           dtm_send_start(group, to, output + offset_of(bytes, sent), bytes[sent], &requests[1], status);
}

static bool all_gather_ring(dtm_group *group, dtm_algorithm algorithm, char *output, const int64_t *bytes, dtm_status *status) {
    int n = group->size, ways = ways_of(algorithm);
    dtm_request requests[2][2];
    for (int step = 1; step < n + ways; step++) {
        dtm_request *of = requests[step % ways];
        if (step > ways) {
            if (!dtm_wait(group, of, 2, status)) return false;
            dtm_step_come(group);
        }
        if (step >= n) continue;
        if (ways == 2 && step > 1 && !dtm_wait(group, &requests[(step - 1) % 2][1], 1, status)) return false;
        if (!begin_gather(group, algorithm, output, bytes, step, of, status)) return false;
    }
    return true;
}

bool dtm_all_gather(dtm_group *group, dtm_algorithm algorithm, const void *input, void *output, const int64_t *bytes,
                    dtm_status *status) {
    if (!begin(group, DTM_COLLECTIVE_ALL_GATHER, algorithm, status)) return false;
    char *own = (char *)output + offset_of(bytes, group->index);
    copy(group, own, input, bytes[group->index]);
    bool ok = algorithm == DTM_ALGORITHM_PAIRWISE ? talk_to_all(group, own, bytes, true, output, bytes, status)
                                                  : all_gather_ring(group, algorithm, output, bytes, status);
    dtm_operation_end(group);
    return ok;
}

bool dtm_all_to_all(dtm_group *group, dtm_algorithm algorithm, const void *input, const int64_t *send_bytes,
                    void *output, const int64_t *receive_bytes, dtm_status *status) {
    if (!begin(group, DTM_COLLECTIVE_ALL_TO_ALL, algorithm, status)) return false;
    int me = group->index;
    bool ok = send_bytes[me] == receive_bytes[me] ||
              dtm_status_fail(status, "all_to_all on %s: rank %d sends itself %lld bytes and expects %lld", group->name,
                              group->comm->rank, (long long)send_bytes[me], (long long)receive_bytes[me]);
    if (ok)
        copy(group, (char *)output + offset_of(receive_bytes, me), (const char *)input + offset_of(send_bytes, me),
             send_bytes[me]);
    ok = ok && talk_to_all(group, input, send_bytes, false, output, receive_bytes, status);
    dtm_operation_end(group);
    return ok;
}

bool dtm_broadcast(dtm_group *group, dtm_algorithm algorithm, void *data, int64_t bytes, int root, dtm_status *status) {
    if (!begin(group, DTM_COLLECTIVE_BROADCAST, algorithm, status)) return false;
    int n = group->size, index = modulo(group->index - root, n), sends = 0;
    bool ok = true;
    int64_t distance = 1;
    while (distance <= index) distance *= 2; /* the first power of two above index: the children begin there */
    if (index > 0) ok = dtm_receive(group, modulo((int)(index - distance / 2) + root, n), data, bytes, status);
    for (; ok && distance < n && index + distance < n; distance *= 2)
        ok = dtm_send_start(group, modulo((int)(index + distance) + root, n), data, bytes, &dtm_lane(group)->requests[sends++],
                            status);
    ok = ok && dtm_wait(group, dtm_lane(group)->requests, sends, status);
    dtm_operation_end(group);
    return ok;
}
