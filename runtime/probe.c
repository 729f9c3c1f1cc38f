#include "runtime/probe.h"

#include "runtime/comm/verbs_load.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *const dtm_port_counters[DTM_PORT_COUNTERS] = {
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors", "port_xmit_discards",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors", "local_ack_timeout_err", "packet_seq_err"};

/* Error counters are read so far apart before a run. */
static const double CHECK_SECONDS = 0.2;

/* ---- sysfs ---- */

static const char *root_of(const dtm_options *options) { return options->sysfs ? options->sysfs : "/sys"; }

static bool read_line(const char *path, char *out, size_t size) {
    FILE *file = fopen(path, "r");
    bool there = file && fgets(out, (int)size, file);
    if (file) fclose(file);
    if (there) out[strcspn(out, "\n")] = 0;
    return there;
}

static int64_t read_whole(const char *path, int64_t otherwise) {
    char line[64];
    return read_line(path, line, sizeof line) ? strtoll(line, NULL, 0) : otherwise;
}

static void read_counters(const dtm_options *options, const dtm_port *port, int64_t out[DTM_PORT_COUNTERS]) {
    static const char *const folders[] = {"counters", "hw_counters"};
    for (int c = 0; c < DTM_PORT_COUNTERS; c++) {
        out[c] = -1;
        for (int f = 0; f < 2 && out[c] < 0; f++) {
            char path[512];
            snprintf(path, sizeof path, "%s/class/infiniband/%s/ports/%d/%s/%s", root_of(options), port->device, port->port, folders[f],
                     dtm_port_counters[c]);
            out[c] = read_whole(path, -1);
        }
    }
}

/* ---- distance over PCI ---- */

/* A device's way from its host bridge, "pci0000:00/0000:00:01.0/0000:17:00.0". */
typedef struct pci_path {
    char steps[16][16];
    int count;
} pci_path;

static bool is_pci(const char *name) { return isxdigit((unsigned char)name[0]) && strlen(name) >= 12 && name[4] == ':' && name[7] == ':'; }

static bool pci_path_of(const char *link, pci_path *out) {
    char real[PATH_MAX], *rest = NULL;
    out->count = 0;
    if (!realpath(link, real)) return false;
    for (char *step = strtok_r(real, "/", &rest); step; step = strtok_r(NULL, "/", &rest)) {
        bool begins = !strncmp(step, "pci", 3) && strchr(step, ':');
        if (begins) out->count = 0;
        if ((begins || (out->count && is_pci(step))) && out->count < 16) snprintf(out->steps[out->count++], 16, "%.15s", step);
    }
    return out->count > 1;
}

/* By how much of their way two devices share: the words of nvidia-smi. */
static const char *distance(const pci_path *a, const pci_path *b, int64_t node_a, int64_t node_b) {
    int common = 0;
    while (common < a->count && common < b->count && !strcmp(a->steps[common], b->steps[common])) common++;
    if (common == 0) return node_a >= 0 && node_a == node_b ? "NODE" : "SYS";
    if (common == 1) return "PHB"; /* the host bridge alone */
    return a->count - common <= 2 && b->count - common <= 2 ? "PIX" : "PXB";
}

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

static void find_gpus(const dtm_options *options, dtm_port *port, const pci_path *own) {
    static const char at[] = "bus/pci/devices";
    const char *root = root_of(options);
    char path[512], line[64], names[DTM_PORT_GPUS][16];
    int count = 0;
    snprintf(path, sizeof path, "%s/%s", root, at);
    DIR *devices = opendir(path);
    for (struct dirent *entry; devices && count < DTM_PORT_GPUS && (entry = readdir(devices));) {
        if (!is_pci(entry->d_name)) continue;
        snprintf(path, sizeof path, "%s/%s/%.15s/class", root, at, entry->d_name);
        if (!read_line(path, line, sizeof line) || strncmp(line, "0x03", 4) != 0) continue; /* a display controller */
        snprintf(path, sizeof path, "%s/%s/%.15s/vendor", root, at, entry->d_name);
        if (read_whole(path, 0) == 0x10de) snprintf(names[count++], 16, "%.15s", entry->d_name);
    }
    if (devices) closedir(devices);
    qsort(names, (size_t)count, sizeof *names, by_name);
    for (int i = 0; i < count; i++) {
        pci_path other;
        snprintf(path, sizeof path, "%s/%s/%s/numa_node", root, at, names[i]);
        int64_t node = read_whole(path, -1);
        snprintf(path, sizeof path, "%s/%s/%s", root, at, names[i]);
        if (!pci_path_of(path, &other)) continue;
        memcpy(port->gpus[port->n_gpus].pci, names[i], 16);
        snprintf(port->gpus[port->n_gpus++].distance, 8, "%s", distance(own, &other, port->numa_node, node));
    }
}

static void find_place(const dtm_options *options, dtm_port *port) {
    char path[512];
    pci_path own;
    snprintf(path, sizeof path, "%s/class/infiniband/%s/device/numa_node", root_of(options), port->device);
    port->numa_node = (int32_t)read_whole(path, -1);
    snprintf(path, sizeof path, "%s/class/infiniband/%s/device", root_of(options), port->device);
    if (!pci_path_of(path, &own)) return;
    memcpy(port->pci, own.steps[own.count - 1], 16);
    find_gpus(options, port, &own);
}

/* ---- what the library tells ---- */

static int lanes_of(int width) { return width == 1 ? 1 : width == 2 ? 4 : width == 4 ? 8 : width == 8 ? 12 : width == 16 ? 2 : 0; }

typedef struct lane {
    int code, megabits;
    const char *name;
} lane;
static const lane lanes[] = {{1, 2500, "SDR"},   {2, 5000, "DDR"},   {4, 10000, "QDR"},  {8, 10000, "FDR10"},
                             {16, 14000, "FDR"}, {32, 25000, "EDR"}, {64, 50000, "HDR"}, {128, 100000, "NDR"}};

static const lane *lane_of(int speed) {
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++)
        if (lanes[i].code == speed) return &lanes[i];
    return NULL;
}

static bool is_set(const dtm_verbs_gid *gid) { return gid->aligned[0] || gid->aligned[1]; }

/* Over Ethernet RoCE v2's, which is routed, is preferred to v1's; an address of the link alone to none. */
static int worth_of_gid(const dtm_port *port, const dtm_verbs_gid *gid, const char *type) {
    if (port->link_layer != DTM_VERBS_ETHERNET) return 1;
    bool of_link = gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
    return 1 + 2 * !strcmp(type, "RoCE v2") + !of_link;
}

static void look_at_gids(const dtm_options *options, const dtm_verbs *verbs, dtm_verbs_context *context, int table, dtm_port *port) {
    int best = 0;
    port->gid = -1;
    for (int i = 0; i < table; i++) {
        dtm_verbs_gid gid;
        char path[512], type[64] = "";
        if (verbs->query_gid(context, (uint8_t)port->port, i, &gid) || !is_set(&gid)) continue;
        port->gids++;
        snprintf(path, sizeof path, "%s/class/infiniband/%s/ports/%d/gid_attrs/types/%d", root_of(options), port->device, port->port, i);
        if (port->link_layer == DTM_VERBS_ETHERNET && !read_line(path, type, sizeof type)) *type = 0;
        int worth = worth_of_gid(port, &gid, type);
        if (worth <= best) continue;
        best = worth;
        port->gid = i;
        memcpy(port->gid_bytes, gid.raw, sizeof gid.raw);
        snprintf(port->gid_type, sizeof port->gid_type, "%.15s", type);
    }
}

static bool look_at_port(const dtm_options *options, const dtm_verbs *verbs, dtm_verbs_context *context, dtm_port *port, dtm_status *status) {
    dtm_verbs_port_attr attr;
    memset(&attr, 0, sizeof attr);
    int error = verbs->query_port(context, (uint8_t)port->port, &attr);
    if (error) return dtm_status_fail_errno(status, error, "%s, port %d does not answer", port->device, port->port);
    port->state = attr.state;
    port->link_layer = attr.link_layer;
    port->mtu = attr.active_mtu >= DTM_VERBS_MTU_256 && attr.active_mtu <= DTM_VERBS_MTU_4096 ? 128 << attr.active_mtu : 0;
    port->lid = attr.lid;
    port->width = attr.active_width;
    port->speed = attr.active_speed;
    const lane *each = lane_of(attr.active_speed);
    port->lanes = lanes_of(attr.active_width);
    port->megabits = each ? each->megabits * port->lanes : 0;
    look_at_gids(options, verbs, context, attr.gid_table, port);
    find_place(options, port);
    read_counters(options, port, port->counters);
    return true;
}

static bool look_at_device(const dtm_options *options, const dtm_verbs *verbs, dtm_verbs_device *device, dtm_ports *out, dtm_status *status) {
    dtm_verbs_device_attr attr;
    const char *name = verbs->get_device_name(device);
    dtm_verbs_context *context = verbs->open_device(device);
    if (!context) return dtm_status_fail(status, "%s cannot be opened: is /dev/infiniband there, and may it be read and written?", name);
    memset(&attr, 0, sizeof attr);
    int error = verbs->query_device(context, &attr);
    dtm_port *grown = error ? NULL : realloc(out->items, (size_t)(out->count + attr.ports + 1) * sizeof *grown);
    bool ok = grown || (error ? dtm_status_fail_errno(status, error, "%s does not answer", name) : dtm_status_fail(status, "out of memory"));
    if (grown) out->items = grown;
    for (int p = 1; ok && p <= attr.ports; p++) {
        dtm_port *port = &out->items[out->count];
        memset(port, 0, sizeof *port);
        gethostname(port->host, sizeof port->host - 1);
        snprintf(port->device, sizeof port->device, "%s", name);
        port->port = p;
        port->vendor = attr.vendor_id;
        port->part = attr.vendor_part_id;
        ok = look_at_port(options, verbs, context, port, status);
        out->count += ok;
    }
    verbs->close_device(context);
    return ok;
}

static void sleep_for(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

bool dtm_ports_read(const dtm_options *options, double seconds, dtm_ports *out, dtm_status *status) {
    dtm_verbs_device **list;
    int count;
    memset(out, 0, sizeof *out);
    const dtm_verbs *verbs = dtm_verbs_load(options->verbs_lib, status);
    if (!verbs || !dtm_verbs_devices(verbs, &list, &count, status)) return false;
    bool ok = true;
    for (int i = 0; ok && i < count; i++) ok = look_at_device(options, verbs, list[i], out, status);
    if (list) verbs->free_device_list(list);
    if (ok && out->count && seconds > 0) sleep_for(seconds);
    for (int i = 0; ok && seconds > 0 && i < out->count; i++) {
        dtm_port *port = &out->items[i];
        int64_t first[DTM_PORT_COUNTERS];
        memcpy(first, port->counters, sizeof first);
        read_counters(options, port, port->counters);
        for (int c = 0; c < DTM_PORT_COUNTERS; c++)
            if (first[c] >= 0 && port->counters[c] > first[c]) port->rise[c] = port->counters[c] - first[c];
    }
    return ok;
}

/* ---- what is wrong ---- */

/* Link layers and parts differ by purpose: a port for management is no peer of those for RDMA. */
static bool are_peers(const dtm_port *a, const dtm_port *b) {
    return a->vendor == b->vendor && a->part == b->part && a->link_layer == b->link_layer;
}

__attribute__((format(printf, 3, 4))) static void add(char *out, size_t size, const char *format, ...) {
    size_t length = strlen(out);
    va_list list;
    va_start(list, format);
    if (length < size) vsnprintf(out + length, size - length, format, list);
    va_end(list);
}

static const char *state_name(int state) {
    static const char *const names[] = {"without a state", "down", "initializing", "armed", "active", "deferred"};
    return state >= 0 && state <= 5 ? names[state] : "in an unknown state";
}

bool dtm_port_is_bad(const dtm_ports *ports, int i, char *out, size_t size) {
    const dtm_port *port = &ports->items[i];
    char why[512] = "";
    int fastest = port->megabits;
    for (int k = 0; k < ports->count; k++)
        if (are_peers(port, &ports->items[k]) && ports->items[k].state == DTM_VERBS_PORT_ACTIVE && ports->items[k].megabits > fastest)
            fastest = ports->items[k].megabits;
    if (port->state != DTM_VERBS_PORT_ACTIVE)
        add(why, sizeof why, ", it is %s", state_name(port->state));
    else if (port->megabits < fastest)
        add(why, sizeof why, ", it runs at %g Gb/s where its fastest peer has %g", port->megabits / 1e3, fastest / 1e3);
    if (port->state == DTM_VERBS_PORT_ACTIVE && port->gid < 0) add(why, sizeof why, ", it has no usable GID");
    for (int c = 0; c < DTM_PORT_COUNTERS; c++)
        if (port->rise[c] > 0) add(why, sizeof why, ", its %s rises (by %lld)", dtm_port_counters[c], (long long)port->rise[c]);
    snprintf(out, size, "host %s, %s, port %d: %s", port->host, port->device, port->port, *why ? why + 2 : "");
    return *why;
}

bool dtm_ports_gather(dtm_ports *ports, dtm_comm *comm, dtm_status *status) {
    int ranks = dtm_comm_size(comm);
    int64_t own = (int64_t)ports->count * (int64_t)sizeof *ports->items, total = 0;
    int64_t *bytes = calloc((size_t)ranks * 2, sizeof *bytes), *each = bytes + ranks;
    dtm_group *world = dtm_comm_world(comm);
    bool ok = bytes || dtm_status_fail(status, "out of memory for the ports of %d ranks", ranks);
    for (int r = 0; ok && r < ranks; r++) each[r] = sizeof own;
    dtm_group_label(world, "exchange of what ports there are");
    ok = ok && dtm_all_gather(world, DTM_ALGORITHM_RING, &own, bytes, each, status);
    for (int r = 0; ok && r < ranks; r++) total += bytes[r];
    dtm_port *all = ok ? calloc(1, (size_t)total + sizeof *all) : NULL;
    ok = ok && (all || dtm_status_fail(status, "out of memory for the ports of %d ranks", ranks));
    ok = ok && (!total || dtm_all_gather(world, DTM_ALGORITHM_RING, ports->items ? ports->items : all, all, bytes, status));
    dtm_group_label(world, NULL);
    free(bytes);
    if (!ok) free(all);
    if (!ok) return false;
    free(ports->items);
    ports->items = all;
    ports->count = (int)(total / (int64_t)sizeof *all);
    return true;
}

/* ---- telling ---- */

static const char *layer_name(int layer) {
    return layer == DTM_VERBS_INFINIBAND ? "InfiniBand" : layer == DTM_VERBS_ETHERNET ? "Ethernet" : "unspecified";
}

static void gid_text(const dtm_port *port, char out[40]) {
    *out = 0;
    for (int i = 0; port->gid >= 0 && i < 16; i += 2) add(out, 40, "%s%02x%02x", i ? ":" : "", port->gid_bytes[i], port->gid_bytes[i + 1]);
}

static void print_port(const dtm_port *port) {
    char gid[40];
    gid_text(port, gid);
    const lane *each = lane_of(port->speed);
    printf("%s, %s, port %d: %s, %s, ", port->host, port->device, port->port, state_name(port->state), layer_name(port->link_layer));
    if (port->megabits) printf("%g Gb/s (%dx %s)", port->megabits / 1e3, port->lanes, each->name);
    else printf("of unknown rate (width %d, speed %d)", port->width, port->speed);
    printf(", MTU %d, %d GID%s", port->mtu, port->gids, port->gids == 1 ? "" : "s");
    if (*gid) printf(", %s%s%s at %d", gid, *port->gid_type ? " " : "", port->gid_type, port->gid);
    if (*port->pci) printf(", PCI %s", port->pci);
    printf("\n");
    for (int c = 0; c < DTM_PORT_COUNTERS; c++)
        if (port->counters[c] > 0)
            printf("    %s %lld%s\n", dtm_port_counters[c], (long long)port->counters[c], port->rise[c] > 0 ? ", and it rises" : "");
    for (int g = 0; g < port->n_gpus; g++) printf("    GPU %s %s\n", port->gpus[g].pci, port->gpus[g].distance);
}

void dtm_ports_print(const dtm_ports *ports) {
    for (int i = 0; i < ports->count; i++) print_port(&ports->items[i]);
    if (!ports->count) printf("no RDMA adapter\n");
}

static void put_text(dtm_json_writer *w, const char *key, const char *value) {
    dtm_json_key(w, key);
    dtm_json_string(w, value);
}

static void put_whole(dtm_json_writer *w, const char *key, int64_t value) {
    dtm_json_key(w, key);
    dtm_json_whole(w, value);
}

static void put_port(const dtm_ports *ports, int i, dtm_json_writer *w) {
    const dtm_port *port = &ports->items[i];
    char gid[40], why[700];
    gid_text(port, gid);
    dtm_json_begin_object(w);
    put_text(w, "host", port->host);
    put_text(w, "device", port->device);
    put_whole(w, "port", port->port);
    put_text(w, "state", state_name(port->state));
    put_text(w, "link_layer", layer_name(port->link_layer));
    put_whole(w, "megabits", port->megabits);
    put_whole(w, "lanes", port->lanes);
    put_whole(w, "mtu", port->mtu);
    put_whole(w, "lid", port->lid);
    put_whole(w, "gids", port->gids);
    if (*gid) put_text(w, "gid", gid);
    if (*port->gid_type) put_text(w, "gid_type", port->gid_type);
    if (*port->pci) put_text(w, "pci", port->pci);
    put_whole(w, "numa_node", port->numa_node);
    dtm_json_key(w, "counters");
    dtm_json_begin_object(w);
    for (int c = 0; c < DTM_PORT_COUNTERS; c++)
        if (port->counters[c] >= 0) put_whole(w, dtm_port_counters[c], port->counters[c]);
    dtm_json_end_object(w);
    dtm_json_key(w, "gpus");
    dtm_json_begin_object(w);
    for (int g = 0; g < port->n_gpus; g++) put_text(w, port->gpus[g].pci, port->gpus[g].distance);
    dtm_json_end_object(w);
    if (dtm_port_is_bad(ports, i, why, sizeof why)) put_text(w, "warning", why);
    dtm_json_end_object(w);
}

void dtm_ports_put(const dtm_ports *ports, dtm_json_writer *w) {
    dtm_json_key(w, "ports");
    dtm_json_begin_array(w);
    for (int i = 0; i < ports->count; i++) put_port(ports, i, w);
    dtm_json_end_array(w);
}

/* ---- probe, and the check before a run ---- */

/* The first bad port is the failure where links are required. */
static bool judge(const dtm_ports *ports, const dtm_options *options, dtm_status *status) {
    char why[700];
    if (options->require_links && !ports->count) return dtm_status_fail(status, "--require-links: there is no RDMA adapter");
    for (int i = 0; i < ports->count; i++) {
        if (!dtm_port_is_bad(ports, i, why, sizeof why)) continue;
        if (options->require_links) dtm_status_fail(status, "%s", why);
        else fprintf(stderr, "warning: %s\n", why);
    }
    return !status->failed;
}

static bool print_json(const dtm_ports *ports, dtm_status *status) {
    dtm_json_writer w = {0};
    dtm_json_begin_object(&w);
    dtm_ports_put(ports, &w);
    dtm_json_end_object(&w);
    bool ok = !w.failed || dtm_status_fail(status, "out of memory");
    if (ok) puts(w.data);
    free(w.data);
    return ok;
}

/* One rank of a node reads; what it finds is everyone's. Nodes may be joined by other things than RDMA: unless links are required, or
 * asked for, no library is no failure. */
static bool read_all(dtm_comm *comm, const dtm_options *options, bool needed, double seconds, dtm_ports *ports, dtm_status *status) {
    dtm_status passed_over = {0};
    bool reads = !comm || dtm_comm_node_index(comm) == 0;
    memset(ports, 0, sizeof *ports);
    if (reads && !dtm_ports_read(options, seconds, ports, needed ? status : &passed_over)) ports->count = 0;
    if (!comm) return !status->failed;
    return dtm_comm_agree(comm, status) && dtm_ports_gather(ports, comm, status);
}

bool dtm_probe(dtm_comm *comm, const dtm_options *options, dtm_status *status) {
    dtm_ports ports;
    bool tells = !comm || dtm_comm_rank(comm) == 0;
    bool ok = read_all(comm, options, true, options->interval_given ? options->interval : 1, &ports, status);
    if (ok && tells) {
        if (options->json) ok = print_json(&ports, status);
        else dtm_ports_print(&ports);
        fflush(stdout);
        ok = judge(&ports, options, status) && ok;
    }
    free(ports.items);
    return comm ? dtm_comm_agree(comm, status) : ok;
}

bool dtm_probe_check(dtm_comm *comm, const dtm_options *options, dtm_status *status) {
    dtm_ports ports;
    if (!options->require_links && dtm_comm_node_size(comm) == dtm_comm_size(comm)) return true;
    if (read_all(comm, options, options->require_links, CHECK_SECONDS, &ports, status) && dtm_comm_rank(comm) == 0)
        judge(&ports, options, status);
    free(ports.items);
    return dtm_comm_agree(comm, status);
}
