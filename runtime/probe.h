/* The ports of RDMA adapters (InfiniBand, RoCE): what libibverbs and sysfs tell of each, and which of them is not as it should be:
 * down, slower than its peers, with error counters that rise, or without a usable GID. Peers are ports of the same part and link layer,
 * on this host and those of other ranks. */
#ifndef DTM_PROBE_H
#define DTM_PROBE_H

#include "runtime/comm/comm.h"
#include "runtime/json.h"
#include "runtime/options.h"

enum { DTM_PORT_COUNTERS = 10, DTM_PORT_GPUS = 16 };

extern const char *const dtm_port_counters[DTM_PORT_COUNTERS]; /* names in sysfs */

/* No pointers: ranks send it to each other. */
typedef struct dtm_port {
    char host[64], device[64], pci[16]; /* pci: "0000:17:00.0", "" where it is unknown */
    uint32_t vendor, part;
    int32_t port, state, link_layer, mtu, lid, numa_node; /* mtu: bytes; numa_node: -1 unknown */
    int32_t width, speed; /* as the library codes them; speed: of a lane */
    int32_t lanes, megabits; /* of the whole link each second; 0: a code that is not known */
    int32_t gids, gid; /* how many are set; the one to use, -1 none */
    uint8_t gid_bytes[16];
    char gid_type[16]; /* "RoCE v2"; "" where sysfs does not say */
    int64_t counters[DTM_PORT_COUNTERS], rise[DTM_PORT_COUNTERS]; /* -1: not there; rise: since the first reading */
    int32_t n_gpus;
    struct {
        char pci[16];
        char distance[8]; /* PIX, PXB, PHB, NODE or SYS, as nvidia-smi has them */
    } gpus[DTM_PORT_GPUS];
} dtm_port;

typedef struct dtm_ports {
    dtm_port *items;
    int count;
} dtm_ports;

/* Reads all ports of this machine; error counters twice, `seconds` apart (0: once). Free `items`. No adapter is no failure, no library
 * is one. */
bool dtm_ports_read(const dtm_options *options, double seconds, dtm_ports *out, dtm_status *status);
/* What is wrong with port i among all of `ports`, as "host a, mlx5_0, port 1: is down, ..": false if nothing is. */
bool dtm_port_is_bad(const dtm_ports *ports, int i, char *out, size_t size);
/* Puts those of all ranks, in their order, in place of this rank's. */
bool dtm_ports_gather(dtm_ports *ports, dtm_comm *comm, dtm_status *status);

void dtm_ports_print(const dtm_ports *ports);
void dtm_ports_put(const dtm_ports *ports, dtm_json_writer *w); /* a member "ports" */

/* The command `probe`; comm: NULL, or of ranks that were started together, of which rank 0 prints for all. */
bool dtm_probe(dtm_comm *comm, const dtm_options *options, dtm_status *status);
/* At the start of a run on several nodes, or with --require-links: one warning on stderr for each bad port, by rank 0. */
bool dtm_probe_check(dtm_comm *comm, const dtm_options *options, dtm_status *status);

#endif
