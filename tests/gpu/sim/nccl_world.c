/* Where ranks meet: the file, its lock, communicators, and who waits for whom. */
#include "tests/gpu/sim/nccl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct settings nccl_settings;

static const uint64_t AREA_MOST = (uint64_t)256 << 20, FILE_MOST = (uint64_t)1 << 40, PAGE = 4096;

double nccl_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

uint64_t nccl_mix(uint64_t a, uint64_t b) {
    uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccdu;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 33;
}

/* "RANK:LAUNCH" */
static void read_place(const char *name, int *rank, uint64_t *launch) {
    const char *text = getenv(name);
    *rank = -1;
    *launch = 1;
    if (!text) return;
    char *end;
    *rank = (int)strtol(text, &end, 10);
    if (*end == ':') *launch = strtoull(end + 1, NULL, 10);
}

void settings_read(void) {
    const char *seed = getenv("DTM_SIM_NCCL_SEED"), *ctas = getenv("DTM_SIM_NCCL_CTAS"), *patience = getenv("DTM_SIM_NCCL_PATIENCE");
    nccl_settings.seed = seed ? strtoull(seed, NULL, 10) : 1;
    nccl_settings.ctas = ctas ? atoi(ctas) : 0;
    nccl_settings.patience = patience ? atof(patience) : 120;
    nccl_settings.abort_hangs = getenv("DTM_SIM_NCCL_ABORT_HANGS") != NULL;
    nccl_settings.waits = getenv("DTM_SIM_NCCL_SENDS_WAIT") != NULL;
    nccl_settings.quiet = getenv("DTM_SIM_NCCL_QUIET") != NULL;
    read_place("DTM_SIM_NCCL_ABSENT", &nccl_settings.absent_rank, &nccl_settings.absent_launch);
    read_place("DTM_SIM_NCCL_REMOTE", &nccl_settings.remote_rank, &nccl_settings.remote_launch);
}

/* ---- the file ---- */

static uint64_t head_bytes(void) { return (sizeof(struct world) + PAGE - 1) / PAGE * PAGE; }
static uint64_t areas_of(int ranks) { return 2 * (uint64_t)ranks + (uint64_t)ranks * (uint64_t)ranks; }

bool world_create(char *path, size_t size) {
    const char *folder = getenv("DTM_SIM_NCCL_DIR");
    uint64_t name;
    if (getrandom(&name, sizeof name, 0) != sizeof name) return false;
    if (!folder) folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(path, size, "%s/dtm-sim-nccl-%016llx", folder, (unsigned long long)name);
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return false;
    bool ok = ftruncate(file, (off_t)head_bytes()) == 0;
    void *at = ok ? mmap(NULL, head_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    if (at == MAP_FAILED) {
        unlink(path);
        return false;
    }
    struct world *w = at;
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&w->lock, &shared);
    pthread_mutexattr_destroy(&shared);
    w->epoch = 1;
    w->moved = nccl_now();
    w->ready = true;
    munmap(at, head_bytes());
    return true;
}

/* Those of this process, one a file, however many ranks it has. */
static struct mapping *mappings;
static pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;

static struct mapping *map_file(const char *path, int ranks) {
    struct mapping *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    snprintf(m->path, sizeof m->path, "%s", path);
    m->file = open(path, O_RDWR | O_CLOEXEC);
    uint64_t area = FILE_MOST / (MAX_COMMS * areas_of(ranks)) / PAGE * PAGE;
    if (area > AREA_MOST) area = AREA_MOST;
    bool ok = m->file >= 0 && ftruncate(m->file, (off_t)(head_bytes() + MAX_COMMS * areas_of(ranks) * area)) == 0;
    void *at = ok ? mmap(NULL, head_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, m->file, 0) : MAP_FAILED;
    if (at == MAP_FAILED) {
        if (m->file >= 0) close(m->file);
        free(m);
        return NULL;
    }
    m->world = at;
    lock_world(m->world);
    m->world->area = area;
    unlock_world(m->world);
    return m;
}

struct mapping *mapping_open(const char *path, int ranks) {
    pthread_mutex_lock(&mappings_lock);
    struct mapping *m = mappings;
    while (m && strcmp(m->path, path) != 0) m = m->next;
    if (!m && (m = map_file(path, ranks))) {
        m->next = mappings;
        mappings = m;
    }
    if (m) m->users++;
    pthread_mutex_unlock(&mappings_lock);
    return m;
}

void mapping_close(struct mapping *m) {
    pthread_mutex_lock(&mappings_lock);
    if (--m->users == 0) {
        struct mapping **at = &mappings;
        while (*at != m) at = &(*at)->next;
        *at = m->next;
        munmap(m->world, head_bytes());
        close(m->file);
        unlink(m->path); /* if others have not done it */
        free(m);
    }
    pthread_mutex_unlock(&mappings_lock);
}

void lock_world(struct world *w) {
    if (pthread_mutex_lock(&w->lock) == EOWNERDEAD) pthread_mutex_consistent(&w->lock);
}
void unlock_world(struct world *w) { pthread_mutex_unlock(&w->lock); }

void move_on(struct world *w) {
    w->epoch++;
    w->moved = nccl_now();
}

void fail_world(struct world *w, const char *format, ...) {
    if (w->failed) return;
    va_list list;
    va_start(list, format);
    vsnprintf(w->why, sizeof w->why, format, list);
    va_end(list);
    w->failed = true;
    move_on(w);
    if (!nccl_settings.quiet) fprintf(stderr, "stand-in of NCCL: %s\n", w->why);
}

void wait_graph(const struct world *w, char *out, size_t size) {
    size_t length = strlen(out);
    for (int c = 0; c < w->n_comms; c++) {
        const struct shared_comm *s = &w->comms[c];
        for (int m = 0; m < s->n && length + 1 < size; m++) {
            const struct member *at = &s->members[m];
            if (at->begun == at->done && !at->gone) continue;
            int more = snprintf(out + length, size - length, "\n  rank %d on %s: launch %llu of the %llu given: %s%s", at->world, s->name,
                                (unsigned long long)at->done + (at->begun > at->done), (unsigned long long)at->begun,
                                at->waits[0] ? at->waits : "not come to", at->gone ? " (the rank has left)" : "");
            if (more > 0) length += (size_t)more;
        }
    }
    if (length >= size) out[size - 1] = 0;
}

/* ---- communicators ---- */

char *area_of(const struct ncclComm *comm, int member, int number) {
    return comm->data + (uint64_t)(2 * member + (number & 1)) * comm->at->world->area;
}
char *area_between(const struct ncclComm *comm, int from, int to) {
    return comm->data + (uint64_t)(2 * comm->n + from * comm->n + to) * comm->at->world->area;
}

static bool map_data(struct ncclComm *comm) {
    uint64_t area = comm->at->world->area, most = areas_of(comm->at->world->n) * area;
    void *at = mmap(NULL, areas_of(comm->n) * area, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, comm->at->file,
                    (off_t)(head_bytes() + (uint64_t)comm->index * most));
    if (at == MAP_FAILED) return false;
    comm->data = at;
    return true;
}

/* Of a split that all members of the parent have made: the communicator of this rank's color, made by the first that comes. */
static int find_split(struct ncclComm *comm, struct world *w) {
    const struct shared_comm *parent = &w->comms[comm->parent];
    const struct split_call *calls = w->splits[comm->parent][comm->split];
    for (int m = 0; m < parent->n; m++)
        if (!calls[m].made) return NCCL_PROGRESS;
    for (int c = 0; c < w->n_comms; c++)
        if (w->comms[c].parent == comm->parent && w->comms[c].split == comm->split && w->comms[c].color == comm->color) {
            comm->index = c;
            return NCCL_OK;
        }
    if (w->n_comms == MAX_COMMS) return NCCL_INTERNAL;
    int index = w->n_comms++;
    struct shared_comm *made = &w->comms[index];
    made->parent = comm->parent;
    made->split = comm->split;
    made->color = comm->color;
    made->identity = nccl_mix(parent->identity, (uint64_t)comm->split * MAX_RANKS + (uint64_t)comm->color);
    snprintf(made->name, sizeof made->name, "%s", comm->name[0] ? comm->name : "unnamed");
    int keys[MAX_RANKS];
    for (int m = 0; m < parent->n; m++) {
        if (calls[m].color != comm->color) continue;
        int at = made->n++;
        for (; at > 0 && keys[at - 1] > calls[m].key; at--) {
            keys[at] = keys[at - 1];
            made->members[at] = made->members[at - 1];
        }
        keys[at] = calls[m].key;
        made->members[at] = (struct member){.world = parent->members[m].world};
    }
    comm->index = index;
    move_on(w);
    return NCCL_OK;
}

int comm_join(struct ncclComm *comm) {
    struct world *w = comm->at->world;
    int result = NCCL_OK;
    lock_world(w);
    if (w->failed) result = NCCL_USAGE;
    if (result == NCCL_OK && !comm->shared) {
        result = comm->parent >= 0 ? find_split(comm, w) : NCCL_OK;
        struct shared_comm *shared = &w->comms[comm->index];
        for (int m = 0; result == NCCL_OK && m < shared->n; m++)
            if (comm->parent >= 0 && shared->members[m].world == comm->world_rank) comm->rank = m;
        if (result == NCCL_OK) {
            comm->n = shared->n;
            comm->shared = shared;
            shared->members[comm->rank].joined = true;
            if (!map_data(comm)) result = NCCL_SYSTEM;
        }
    }
    for (int m = 0; result == NCCL_OK && m < comm->n; m++)
        if (!comm->shared->members[m].joined) result = NCCL_PROGRESS;
    unlock_world(w);
    comm->ready = result == NCCL_OK;
    if (result == NCCL_OK && comm->parent < 0) unlink(comm->at->path); /* all have it */
    return result;
}

void comm_release(struct ncclComm *comm) {
    pthread_mutex_lock(&comm->lock);
    int left = --comm->references;
    pthread_mutex_unlock(&comm->lock);
    if (left) return;
    if (comm->data) munmap(comm->data, areas_of(comm->n) * comm->at->world->area);
    mapping_close(comm->at);
    pthread_mutex_destroy(&comm->lock);
    free(comm);
}
