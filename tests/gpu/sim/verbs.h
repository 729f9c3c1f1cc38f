/* The stand-in for libibverbs.so.1, inside: adapters that DTM_SIM_VERBS describes, and RC queue pairs between processes and threads of
 * this machine. A port of a device is one entry of
 *
 *     DTM_SIM_VERBS="mlx5_0 link=ib speed=128; mlx5_1 state=1"      (verbs_ports.c lists the keys)
 *
 * and two of one name are ports 1 and 2 of one device. Each queue pair has a Unix socket by its number, so that processes find each
 * other; one thread of a process is its adapter: it takes work requests, moves bytes in pieces, checks keys and bounds where memory
 * is, and completes. What is done out of turn is refused as the real library does, and told on stderr: "verbs: ..".
 *
 *     DTM_SIM_SEED       of delays
 *     DTM_SIM_VERBS_DOWN after so many work requests of the process its ports stop moving anything */
#ifndef DTM_SIM_VERBS_H
#define DTM_SIM_VERBS_H

#include "runtime/comm/verbs_abi.h"

#include <stdbool.h>

enum { SIM_VERBS_PORTS = 32 };

typedef struct sim_port {
    int state, link_layer, width, speed, mtu, gids, lid;
    unsigned part;
    int inline_bytes, work_requests; /* the most that a queue pair gets */
} sim_port;

struct dtm_verbs_device {
    char name[64];
    int n_ports;
    sim_port ports[4];
};

#define SIM_VERBS_API __attribute__((visibility("default")))

__attribute__((format(printf, 1, 2))) void sim_verbs_say(const char *format, ...);
uint64_t sim_verbs_draw(void);
const sim_port *sim_verbs_port(const dtm_verbs_context *context, int port); /* NULL: there is none */
/* The members of a context that are called by it (verbs_queues.c). */
void sim_verbs_fill(dtm_verbs_context *context);

#endif
