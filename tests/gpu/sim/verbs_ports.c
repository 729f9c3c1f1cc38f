/* Adapters and their ports, as the environment describes them. */
#include "tests/gpu/sim/verbs.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The list that a program gets, and what it points to. */
typedef struct listing {
    dtm_verbs_device *list[SIM_VERBS_PORTS + 1];
} listing;

static dtm_verbs_device devices[SIM_VERBS_PORTS];
static int n_devices;
static pthread_once_t described = PTHREAD_ONCE_INIT;

static const struct {
    const char *key;
    size_t offset;
} keys[] = {
    {"state", offsetof(sim_port, state)},     {"width", offsetof(sim_port, width)}, {"speed", offsetof(sim_port, speed)},
    {"mtu", offsetof(sim_port, mtu)},         {"gids", offsetof(sim_port, gids)},   {"lid", offsetof(sim_port, lid)},
    {"part", offsetof(sim_port, part)},       {"inline", offsetof(sim_port, inline_bytes)},
    {"work", offsetof(sim_port, work_requests)},
};

static void set(sim_port *port, const char *word) {
    const char *equals = strchr(word, '=');
    if (!strcmp(word, "link=ib") || !strcmp(word, "link=eth")) {
        port->link_layer = word[5] == 'i' ? DTM_VERBS_INFINIBAND : DTM_VERBS_ETHERNET;
        return;
    }
    for (size_t i = 0; equals && i < sizeof keys / sizeof *keys; i++)
        if (strlen(keys[i].key) == (size_t)(equals - word) && !strncmp(keys[i].key, word, strlen(keys[i].key))) {
            int value = atoi(equals + 1);
            memcpy((char *)port + keys[i].offset, &value, sizeof value);
            return;
        }
    sim_verbs_say("DTM_SIM_VERBS: `%s` is not understood", word);
    exit(86);
}

static void add_port(char *entry) {
    char *rest = NULL, *name = strtok_r(entry, " ", &rest);
    if (!name) return;
    dtm_verbs_device *device = &devices[n_devices ? n_devices - 1 : 0];
    if (!n_devices || strcmp(device->name, name) != 0) device = &devices[n_devices++];
    snprintf(device->name, sizeof device->name, "%s", name);
    sim_port *port = &device->ports[device->n_ports++];
    *port = (sim_port){.state = DTM_VERBS_PORT_ACTIVE, .link_layer = DTM_VERBS_ETHERNET, .width = 2, .speed = 64, .mtu = 3, .gids = 2, .lid = 1,
                       .part = 4129, .inline_bytes = 64, .work_requests = 1024};
    for (char *word = strtok_r(NULL, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) set(port, word);
}

static void describe(void) {
    const char *text = getenv("DTM_SIM_VERBS");
    char *copy = strdup(text ? text : "sim0"), *rest = NULL;
    for (char *entry = strtok_r(copy, ";", &rest); entry; entry = strtok_r(NULL, ";", &rest)) add_port(entry);
    free(copy);
}

const sim_port *sim_verbs_port(const dtm_verbs_context *context, int port) {
    return port >= 1 && port <= context->device->n_ports ? &context->device->ports[port - 1] : NULL;
}

/* ---- as libibverbs exports them ---- */

SIM_VERBS_API dtm_verbs_device **ibv_get_device_list(int *count) {
    pthread_once(&described, describe);
    listing *all = calloc(1, sizeof *all);
    for (int i = 0; i < n_devices; i++) all->list[i] = &devices[i];
    if (count) *count = n_devices;
    return all->list;
}

SIM_VERBS_API void ibv_free_device_list(dtm_verbs_device **list) { free(list); }
SIM_VERBS_API const char *ibv_get_device_name(dtm_verbs_device *device) { return device->name; }

SIM_VERBS_API dtm_verbs_context *ibv_open_device(dtm_verbs_device *device) {
    dtm_verbs_context *context = calloc(1, sizeof *context);
    context->device = device;
    context->command_file = context->async_file = -1;
    sim_verbs_fill(context);
    return context;
}

SIM_VERBS_API int ibv_close_device(dtm_verbs_context *context) {
    free(context);
    return 0;
}

SIM_VERBS_API int ibv_query_device(dtm_verbs_context *context, dtm_verbs_device_attr *out) {
    memset(out, 0, sizeof *out);
    const sim_port *port = &context->device->ports[0];
    out->vendor_id = 0x2c9;
    out->vendor_part_id = port->part;
    out->max_qp = 1 << 16;
    out->max_qp_wr = port->work_requests;
    out->max_cq = 1 << 16;
    out->max_cqe = 1 << 16;
    out->max_mr_size = UINT64_MAX;
    out->max_qp_rd_atomic = 16;
    out->max_sge = 4;
    out->ports = (uint8_t)context->device->n_ports;
    return 0;
}

SIM_VERBS_API int ibv_query_port(dtm_verbs_context *context, uint8_t number, dtm_verbs_port_attr *out) {
    const sim_port *port = sim_verbs_port(context, number);
    if (!port) return EINVAL;
    memset(out, 0, offsetof(dtm_verbs_port_attr, capabilities2));
    out->state = port->state;
    out->max_mtu = DTM_VERBS_MTU_4096;
    out->active_mtu = port->mtu;
    out->gid_table = 8;
    out->max_message = 1 << 16; /* small, so that messages go in parts */
    out->pkey_table = 1;
    out->lid = (uint16_t)(port->link_layer == DTM_VERBS_INFINIBAND ? port->lid : 0);
    out->active_width = (uint8_t)port->width;
    out->active_speed = (uint8_t)port->speed;
    out->physical_state = port->state == DTM_VERBS_PORT_DOWN ? 3 : 5;
    out->link_layer = (uint8_t)port->link_layer;
    return 0;
}

/* The first is of the link, the others (of Ethernet) are IPv4 addresses. */
SIM_VERBS_API int ibv_query_gid(dtm_verbs_context *context, uint8_t number, int index, dtm_verbs_gid *out) {
    const sim_port *port = sim_verbs_port(context, number);
    if (!port || index < 0 || index >= 8) return -1;
    memset(out, 0, sizeof *out);
    if (index >= port->gids) return 0;
    const unsigned char of_link[] = {0xfe, 0x80}, mapped[] = {0xff, 0xff, 10, 0, 0};
    if (index == 0) memcpy(out->raw, of_link, sizeof of_link);
    else memcpy(out->raw + 10, mapped, sizeof mapped);
    out->raw[15] = (uint8_t)(port->lid + index);
    return 0;
}
