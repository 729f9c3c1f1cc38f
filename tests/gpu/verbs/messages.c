/* Messages over the stand-in for libibverbs: many of many lengths at once, both ways between two ranks and around three; and what is said
 * of one that has another length than is expected, that never comes, that lies elsewhere. FOLDER has the library. */
#include "runtime/comm/verbs.h"
#include "runtime/comm/verbs_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, MESSAGES = 120, AHEAD = 50, PLACES = 64, PLACE = 200000, TAG = 7 };

typedef enum task { ROUND, LENGTH, ABSENT, ELSEWHERE } task;

static const char *folder;

/* The bytes of message n from a rank: every few are longer than a port takes at once. */
static int64_t length_of(int from, int n) { return n % 5 == 0 ? 65536 * (n % 3) + 1 + n * 17 : 1 + (n * 7919 + from * 104729) % 3000; }
static unsigned char byte_of(int from, int n, int64_t i) { return (unsigned char)(from * 31 + n * 7 + i * 13 + (i >> 9)); }

static bool check(const unsigned char *at, int from, int n, dtm_status *status) {
    for (int64_t i = 0, size = length_of(from, n); i < size; i++)
        if (at[i] != byte_of(from, n, i)) return dtm_status_fail(status, "byte %lld of message %d from rank %d", (long long)i, n, from);
    return true;
}

/* To the next rank, from the one before; AHEAD of them are under way. */
static bool go_round(dtm_group *group, unsigned char *memory, dtm_status *status) {
    int me = dtm_group_index(group), next = (me + 1) % RANKS, before = (me + RANKS - 1) % RANKS;
    static _Thread_local dtm_request sends[MESSAGES], receives[MESSAGES];
    unsigned char *in = memory, *out = memory + (size_t)PLACES * PLACE;
    bool ok = true;
    for (int n = 0; ok && n < MESSAGES + AHEAD; n++) {
        int done = n - AHEAD;
        if (done >= 0) ok = dtm_wait(group, &receives[done], 1, status) && check(in + (size_t)(done % PLACES) * PLACE, before, done, status) &&
                            dtm_wait(group, &sends[done], 1, status);
        if (!ok || n >= MESSAGES) continue;
        unsigned char *from = out + (size_t)(n % PLACES) * PLACE;
        for (int64_t i = 0, size = length_of(me, n); i < size; i++) from[i] = byte_of(me, n, i);
        ok = dtm_receive_start(group, before, in + (size_t)(n % PLACES) * PLACE, length_of(before, n), &receives[n], status) &&
             dtm_send_start(group, next, from, length_of(me, n), &sends[n], status);
    }
    return ok;
}

static bool go_wrong(dtm_group *group, task what, unsigned char *memory, dtm_status *status) {
    int me = dtm_group_index(group);
    static unsigned char elsewhere[8];
    dtm_group_label(group, "x.1");
    if (me == 0 && what != ABSENT) return dtm_send(group, 1, what == ELSEWHERE ? elsewhere : memory, 8, status);
    return me != 1 || dtm_receive(group, 0, memory, what == LENGTH ? 9 : 8, status);
}

static bool run(dtm_comm *comm, void *argument, dtm_status *status) {
    task what = *(task *)argument;
    int me = dtm_comm_rank(comm), ranks[RANKS] = {0, 1, 2};
    const size_t bytes = (size_t)2 * PLACES * PLACE;
    unsigned char *memory = calloc(1, bytes);
    dtm_group *group;
    dtm_verbs_net *net = NULL;
    if (what == ABSENT && me == 1) dtm_comm_set_deadline(comm, 1);
    bool ok = dtm_group_create(comm, "pp", ranks, RANKS, TAG, &group, status);
    dtm_verbs_way ways[] = {{group, (me + 1) % RANKS, true}, {group, (me + RANKS - 1) % RANKS, false}};
    dtm_verbs_net_options options = {.verbs = dtm_verbs_load(folder, status), .device = "sim0", .port = 1, .gid = 1, .memory = memory,
                                     .bytes = (int64_t)bytes, .ways = ways, .n_ways = 2};
    ok = ok && dtm_verbs_net_open(comm, &options, &net, status);
    ok = ok && (what == ROUND ? go_round(group, memory, status) : go_wrong(group, what, memory, status));
    if (ok) ok = dtm_comm_barrier(comm, status);
    dtm_comm_quiet(comm);
    dtm_verbs_net_close(net);
    free(memory);
    return ok;
}

static int expect(task what, const char *message) {
    dtm_status status = {0};
    bool ok = dtm_local_run(RANKS, run, &what, &status);
    if (ok ? !message : message && !strcmp(status.message, message)) return 0;
    printf("expected: %s\ngot:      %s\n", message ? message : "all is well", ok ? "all is well" : status.message);
    return 1;
}

int main(int argc, char **argv) {
    folder = argc > 1 ? argv[1] : NULL;
    int failures = expect(ROUND, NULL);
    failures += expect(LENGTH, "messages of rank 0 to rank 1 over sim0, port 1: x.1 has 8 bytes, where 9 are expected");
    failures += expect(ABSENT, "messages of rank 1 from rank 0 over sim0, port 1: hang: x.1 has been waited for for 1 s");
    failures += expect(ELSEWHERE, "messages of rank 0 to rank 1 over sim0, port 1: a message lies outside of the memory for them");
    printf("%d failed\n", failures);
    return failures != 0;
}
