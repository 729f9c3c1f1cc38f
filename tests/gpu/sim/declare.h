/* What is said to the stand-in for libcuda beyond CUDA's own interface: by the runtime, what a launch may touch (found by dlsym, so
 * that with a real driver nothing is said); by the other stand-ins and by tests, the rest. The symbols are the library's, which
 * the other stand-ins link.
 *
 * An address of device memory is none of the host's: dtm_sim_host gives the bytes behind it. */
#ifndef SIM_DECLARE_H
#define SIM_DECLARE_H

#include "runtime/cuda/abi.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DTM_SIM_READ = 1,
    DTM_SIM_WRITE = 2, /* alone: undefined before, whole after */
    DTM_SIM_SPARSE = 4 /* of work: it has holes, so who runs it looks after what is defined (dtm_sim_defined, dtm_sim_define) */
};
typedef struct dtm_sim_buffer {
    const char *name;
    uint64_t at; /* of the device, or of pinned memory of the host */
    size_t bytes;
    int direction;
} dtm_sim_buffer;

/* The calling thread's next cuLaunchKernelEx, or work, touches these buffers and nothing else. They are copied. A launch of which nothing
 * was said may touch all memory of its device, and is not held against launches of other streams. */
typedef void (*dtm_sim_declare_function)(const dtm_sim_buffer *buffers, int n);
void dtm_sim_declare(const dtm_sim_buffer *buffers, int n);

/* ---- work of other stand-ins ---- */

enum { DTM_SIM_AGAIN = -1 };
typedef struct dtm_sim_work {
    const char *name;
    /* Called when all before it in the stream is done, until it returns something else than DTM_SIM_AGAIN: 0, or the error of CUDA
     * that the context has from then on. `first`: it has just been reached. No lock is held; work of other streams goes on meanwhile.
     * In a graph it is called anew for each launch of the graph, with the same argument. */
    int (*run)(void *argument, bool first);
    void (*release)(void *argument); /* NULL, or called when it is run no more */
    void *argument;
    const dtm_sim_buffer *buffers; /* copied */
    int n_buffers;
} dtm_sim_work;
/* Into a stream, or the graph that it captures: as a launch would go. On failure `release` is not called. */
dtm_cu_result dtm_sim_enqueue(dtm_cu_stream stream, const dtm_sim_work *work);

/* The host's bytes behind an address, of which that many are mapped; NULL if they are not. */
void *dtm_sim_host(uint64_t at, size_t bytes);
int dtm_sim_device_of(dtm_cu_stream stream); /* its ordinal, -1: no stream */
size_t dtm_sim_defined(uint64_t at, size_t bytes); /* how many from `at` on were ever written */
void dtm_sim_define(uint64_t at, size_t bytes, bool defined);
uint64_t dtm_sim_draw(uint64_t below); /* by DTM_SIM_SEED */
/* A line on stderr; the process ends with status 86 where there were any. */
void dtm_sim_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- tests ---- */

int dtm_sim_said(void);  /* how many reports there were since the last time that it was asked, which are then forgotten */
void dtm_sim_again(void); /* contexts that were lost are whole again */

#endif
