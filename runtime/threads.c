/* One job at a time: the caller writes it, raises `generation`, works on its own chunk and waits until `pending` is 0.
 * Sleep and wake-up follow Dekker: a sleeper announces itself before it looks again, a waker changes the state before
 * it looks for sleepers; with sequentially consistent atomics one of them sees the other. */
#include "runtime/threads.h"

#include <hwloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* Where OpenMP is in the process (oneDNN may bring it), each of our threads counts as one that works alone. */
extern void omp_set_num_threads(int threads) __attribute__((weak));

/* Turns of a waiting loop before sleeping: some 50 microseconds. */
enum { SPINS = 4000 };

typedef struct worker {
    dtm_pool *pool;
    pthread_t thread;
    int index;
} worker;

struct dtm_pool {
    int threads, started, spins;
    worker *workers;
    hwloc_topology_t topology; /* or NULL: unknown */
    hwloc_cpuset_t *places;    /* of each thread, or NULL: not pinned */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    /* The job: written by the caller while no worker runs. */
    dtm_pool_function function;
    void *argument;
    int64_t extent, grain;
    bool ends;
    _Atomic int64_t generation;
    _Atomic int pending, sleepers, caller_sleeps;
};

void dtm_pool_chunk(int64_t extent, int64_t grain, int threads, int thread, int64_t *begin, int64_t *end) {
    int64_t grains = (extent + grain - 1) / grain;
    int64_t each = grains / threads, more = grains % threads;
    int64_t first = each * thread + (thread < more ? thread : more);
    int64_t last = first + each + (thread < more);
    *begin = first * grain < extent ? first * grain : extent;
    *end = last * grain < extent ? last * grain : extent;
}

static void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void work(dtm_pool *pool, int thread) {
    int64_t begin, end;
    dtm_pool_chunk(pool->extent, pool->grain, pool->threads, thread, &begin, &end);
    if (begin < end) pool->function(pool->argument, begin, end, thread);
}

static void await_generation(dtm_pool *pool, int64_t seen) {
    for (int i = 0; i < pool->spins; i++) {
        if (pool->generation != seen) return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->lock);
    pool->sleepers++;
    while (pool->generation == seen) pthread_cond_wait(&pool->work, &pool->lock);
    pool->sleepers--;
    pthread_mutex_unlock(&pool->lock);
}

static void pin(dtm_pool *pool, int thread) {
    if (!pool->topology) return;
    /* Threads without a core of their own may use all: mpirun may have bound the process to one. Where binding is not
     * allowed the work is done all the same. */
    hwloc_const_cpuset_t set = pool->places ? pool->places[thread] : hwloc_get_root_obj(pool->topology)->cpuset;
    hwloc_set_cpubind(pool->topology, set, HWLOC_CPUBIND_THREAD);
}

static void *run_worker(void *argument) {
    worker *self = argument;
    dtm_pool *pool = self->pool;
    pin(pool, self->index);
    if (omp_set_num_threads) omp_set_num_threads(1);
    for (int64_t seen = 0;; seen++) {
        await_generation(pool, seen);
        if (pool->ends) return NULL;
        work(pool, self->index);
        if (--pool->pending == 0 && pool->caller_sleeps) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

static void start_generation(dtm_pool *pool) {
    pool->generation++;
    if (pool->sleepers == 0) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

void dtm_pool_run(dtm_pool *pool, dtm_pool_function function, void *argument, int64_t extent, int64_t grain) {
    if (extent <= 0) return;
    if (pool->threads == 1 || extent <= grain) {
        function(argument, 0, extent, 0);
        return;
    }
    pool->function = function;
    pool->argument = argument;
    pool->extent = extent;
    pool->grain = grain;
    pool->pending = pool->threads - 1;
    start_generation(pool);
    work(pool, 0);
    for (int i = 0; i < pool->spins; i++) {
        if (pool->pending == 0) return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->lock);
    pool->caller_sleeps = 1;
    while (pool->pending > 0) pthread_cond_wait(&pool->done, &pool->lock);
    pool->caller_sleeps = 0;
    pthread_mutex_unlock(&pool->lock);
}

/* ---- places ---- */

/* CPUs that a container's quota allows (cgroup v2: "max 100000" or "200000 100000"), or a great number. */
static int quota(void) {
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "r");
    long limit = 0, period = 0;
    bool limited = file && fscanf(file, "%ld %ld", &limit, &period) == 2 && limit > 0 && period > 0;
    if (file) fclose(file);
    return limited ? (int)((limit + period - 1) / period) : 1 << 20;
}

/* The machine as hwloc sees it, or NULL: once a process, as loading it takes milliseconds, and more the more plugins hwloc
 * has. Never destroyed; nothing changes it. */
static hwloc_topology_t machine;

static void load_machine(void) {
    hwloc_topology_t found;
    if (hwloc_topology_init(&found) != 0) return;
    if (hwloc_topology_load(found) == 0)
        machine = found;
    else
        hwloc_topology_destroy(found);
}

static hwloc_topology_t topology(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_machine);
    return machine;
}

static int core_count(hwloc_topology_t topology) {
    int cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    return cores > 0 ? cores : hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
}

int dtm_pool_default_threads(int node_ranks) {
    if (!topology()) return 1;
    int cores = core_count(topology()), allowed = quota();
    if (allowed < cores) cores = allowed;
    return cores / node_ranks > 1 ? cores / node_ranks : 1;
}

/* The rank's share of the cores begins at cores * node_index / node_ranks, and is cut among its threads the same way: a
 * core each if there are as many threads as cores, else several to choose from. */
static bool place_threads(dtm_pool *pool, int node_index, int node_ranks) {
    int64_t cores = core_count(pool->topology), threads = pool->threads;
    if (threads * node_ranks > cores) return true;
    hwloc_obj_type_t type =
        hwloc_get_nbobjs_by_type(pool->topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    int64_t first = cores * node_index / node_ranks, share = cores * (node_index + 1) / node_ranks - first;
    pool->places = calloc((size_t)threads, sizeof *pool->places);
    for (int64_t i = 0; pool->places && i < threads; i++) {
        pool->places[i] = hwloc_bitmap_alloc();
        if (!pool->places[i]) return false;
        for (int64_t at = share * i / threads; at < share * (i + 1) / threads; at++) {
            hwloc_obj_t core = hwloc_get_obj_by_type(pool->topology, type, (unsigned)(first + at));
            if (core) hwloc_bitmap_or(pool->places[i], pool->places[i], core->cpuset);
        }
    }
    return pool->places != NULL;
}

bool dtm_pool_create(int threads, int node_index, int node_ranks, dtm_pool **out, dtm_status *status) {
    *out = NULL;
    if (threads < 1 || node_ranks < 1 || node_index < 0 || node_index >= node_ranks)
        return dtm_status_fail(status, "cannot make a pool of %d threads for rank %d of %d on a node", threads,
                               node_index, node_ranks);
    dtm_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return dtm_status_fail(status, "out of memory for %d threads", threads);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->threads = threads;
    pool->workers = calloc((size_t)threads, sizeof *pool->workers);
    pool->topology = topology();
    *out = pool;
    if (!pool->workers || (pool->topology && !place_threads(pool, node_index, node_ranks))) {
        dtm_pool_destroy(pool);
        *out = NULL;
        return dtm_status_fail(status, "out of memory for %d threads", threads);
    }
    /* Threads that share a core must not spin: they would keep the one that works from it. */
    pool->spins = pool->places ? SPINS : 0;
    pin(pool, 0);
    for (int i = 1; i < threads; i++) {
        pool->workers[i] = (worker){.pool = pool, .index = i};
        int error = pthread_create(&pool->workers[i].thread, NULL, run_worker, &pool->workers[i]);
        if (error) {
            dtm_pool_destroy(pool);
            *out = NULL;
            return dtm_status_fail_errno(status, error, "cannot start thread %d of %d", i, threads);
        }
        pool->started++;
    }
    return true;
}

void dtm_pool_destroy(dtm_pool *pool) {
    if (!pool) return;
    pool->ends = true;
    start_generation(pool);
    for (int i = 1; i <= pool->started; i++) pthread_join(pool->workers[i].thread, NULL);
    for (int i = 0; pool->places && i < pool->threads; i++)
        if (pool->places[i]) hwloc_bitmap_free(pool->places[i]);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->done);
    free(pool->places);
    free(pool->workers);
    free(pool);
}

int dtm_pool_threads(const dtm_pool *pool) {
    return pool->threads;
}
