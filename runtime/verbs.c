/* Of `--p2p verbs`: which port a rank uses, and between which ranks its plan's messages go. */
#include "runtime/comm/verbs.h"
#include "runtime/comm/verbs_load.h"
#include "runtime/cuda/device.h"
#include "runtime/probe.h"
#include "runtime/rank.h"

#include <stdio.h>
#include <stdlib.h>

/* Ranks of a node take turns among its fastest ports. */
static const dtm_port *choose_port(const dtm_ports *ports, int index) {
    int fastest = 0, count = 0;
    const dtm_port *chosen = NULL;
    for (int pass = 0; pass < 3; pass++)
        for (int i = 0, n = 0; i < ports->count; i++) {
            const dtm_port *p = &ports->items[i];
            if (p->state != DTM_VERBS_PORT_ACTIVE || p->gid < 0) continue;
            if (pass == 0 && p->megabits > fastest) fastest = p->megabits;
            if (pass == 1) count += p->megabits == fastest;
            if (pass == 2 && p->megabits == fastest && n++ == index % count) chosen = p;
        }
    return chosen;
}

static bool has_way(const dtm_verbs_way *ways, int count, const dtm_verbs_way *way) {
    for (int i = 0; i < count; i++)
        if (ways[i].group == way->group && ways[i].member == way->member && ways[i].sends == way->sends) return true;
    return false;
}

static int list_ways(const dtm_rank *rank, dtm_verbs_way *out) {
    int count = 0;
    for (uint32_t i = 0; i < rank->plan->n_instructions; i++) {
        const dtm_plan_instruction *at = &rank->plan->instructions[i];
        if (at->kind != DTM_PLAN_SEND && at->kind != DTM_PLAN_RECEIVE) continue;
        dtm_verbs_way way = {at->message.backward ? rank->backward : rank->forward, (int)at->message.peer, at->kind == DTM_PLAN_SEND};
        if (!has_way(out, count, &way)) out[count++] = way;
    }
    return count;
}

bool dtm_rank_open_verbs(dtm_rank *rank, dtm_status *status) {
    dtm_ports ports;
    dtm_verbs_way *ways = calloc((size_t)rank->plan->n_instructions + 1, sizeof *ways);
    bool ok = ways || dtm_status_fail(status, "out of memory for the ways of messages");
    if (!ok) status->failed = true;
    dtm_device *device = rank->device;
    if (device) dtm_bounce_open(rank, status);
    if (device && dtm_comm_rank(rank->comm) == 0 && !rank->options->no_graph && !rank->options->quiet)
        fprintf(stderr, "note: with --p2p verbs the host takes part in messages: steps are not launched as graphs\n");
    const dtm_verbs *verbs = dtm_verbs_load(rank->options->verbs_lib, status);
    ok = dtm_ports_read(rank->options, 0, &ports, status) && ok;
    const dtm_port *port = ok ? choose_port(&ports, dtm_comm_node_index(rank->comm)) : NULL;
    if (ok && !port) dtm_status_fail(status, "--p2p verbs: no RDMA port is active and has a GID; `%s probe` tells more", rank->options->program);
    dtm_verbs_net_options options = {.verbs = verbs, .device = port ? port->device : "none", .port = port ? port->port : 0, .gid = port ? port->gid : -1,
                                     .memory = rank->arena, .bytes = rank->plan->arena_bytes, .ways = ways, .n_ways = ways ? list_ways(rank, ways) : 0};
    if (device && !status->failed) options.memory = dtm_bounce_memory(device, &options.bytes);
    if (device) options.poke = dtm_bounce_poke, options.poked = device;
    ok = dtm_verbs_net_open(rank->comm, &options, &rank->verbs, status);
    free(ports.items);
    free(ways);
    return ok;
}
