/* Work of another library on a stream of the stand-in driver: how the stand-ins of NCCL and cuBLASLt come to run. The stand-in
 * libcuda.so.1 exports these two functions beside the driver's; they look for them in the file that is loaded.
 *
 * `begin` makes one run of the work, `run` is called when its stream has come to it (all before it on the stream, and the
 * events that the stream waits for, are done), again and again until it does not wait any longer. */
#ifndef SIM_WORK_H
#define SIM_WORK_H

#include <stdbool.h>
#include <stddef.h>

struct CUstream_st;

enum { SIM_WORK_DONE = 0, SIM_WORK_WAITS = -1 }; /* any other result is a CUresult, the sticky error of the context */

struct sim_work_range {
    const void *at;
    size_t bytes;
    int direction; /* SIM_READ, SIM_WRITE of sim.h */
};

struct sim_work {
    const char *name; /* for reports; lives as long as the state */
    void *state;
    /* At the enqueue, before that returns; of captured work at each launch of the graph, in the order of capture. */
    void *(*begin)(void *state);
    /* Frees the run when it does not wait. idle: nothing else of the device can run, and its host thread waits for it in the
     * driver; false where that is not known. Never from two threads at once for one run. */
    int (*run)(void *run, bool idle);
    void (*drop)(void *run);      /* instead of the rest of its calls: the context has died, or has an error */
    void (*release)(void *state); /* nothing begins it any more: it was run, or the graph and its execs are destroyed */
    const struct sim_work_range *ranges; /* copied */
    int n_ranges;
};

/* Returns a CUresult; where it is not 0 the state stays the caller's. Under capture the work becomes a node. */
int sim_work_enqueue(struct CUstream_st *stream, const struct sim_work *work);
/* The device of a stream, NULL: of the thread's current context. `unique` is one number for a device in all processes. */
int sim_work_device(struct CUstream_st *stream, int *device, unsigned long long *unique);

#endif
