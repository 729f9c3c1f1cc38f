/* Ports of several hosts: ranks tell each other theirs, also one that has none, and all find the same ones bad. */
#include "runtime/comm/verbs_abi.h"
#include "runtime/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3 };

static dtm_port port_of(int rank, int number) {
    dtm_port p = {.port = number, .state = DTM_VERBS_PORT_ACTIVE, .link_layer = DTM_VERBS_INFINIBAND, .part = 7, .megabits = rank == 2 ? 200000 : 400000};
    snprintf(p.host, sizeof p.host, "node%d", rank);
    snprintf(p.device, sizeof p.device, "mlx5_%d", number);
    if (rank == 0 && number == 1) p.rise[2] = 4; /* link_downed */
    return p;
}

static bool run(dtm_comm *comm, void *argument, dtm_status *status) {
    static const char *const expected[] = {"host node0, mlx5_1, port 1: its link_downed rises (by 4)",
                                           "host node2, mlx5_1, port 1: it runs at 200 Gb/s where its fastest peer has 400"};
    int rank = dtm_comm_rank(comm), bad = 0;
    dtm_ports ports = {.items = calloc(2, sizeof(dtm_port)), .count = rank == 0 ? 2 : rank == 1 ? 0 : 1};
    (void)argument;
    for (int i = 0; i < ports.count; i++) ports.items[i] = port_of(rank, i + 1);
    bool ok = dtm_ports_gather(&ports, comm, status);
    if (ok && ports.count != 3) ok = dtm_status_fail(status, "%d ports on rank %d", ports.count, rank);
    for (int i = 0; ok && i < ports.count; i++) {
        char why[700];
        if (!dtm_port_is_bad(&ports, i, why, sizeof why)) continue;
        if (bad >= 2 || strcmp(why, expected[bad])) ok = dtm_status_fail(status, "rank %d: %s", rank, why);
        bad++;
    }
    if (ok && bad != 2) ok = dtm_status_fail(status, "%d bad ports on rank %d", bad, rank);
    free(ports.items);
    return ok;
}

int main(void) {
    dtm_status status = {0};
    if (dtm_local_run(RANKS, run, NULL, &status)) return 0;
    printf("%s\n", status.message);
    return 1;
}
