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
    DTM_SIM_SPARSE = 4 /* of work (work.h): it has holes, so who runs it looks after what is defined (dtm_sim_defined, dtm_sim_define) */
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

/* ---- what other stand-ins need beside work.h ---- */

/* The host's bytes behind an address, of which that many are mapped; NULL if they are not. */
void *dtm_sim_host(uint64_t at, size_t bytes);
size_t dtm_sim_defined(uint64_t at, size_t bytes); /* how many from `at` on were ever written */
void dtm_sim_define(uint64_t at, size_t bytes, bool defined);
uint64_t dtm_sim_draw(uint64_t below); /* by DTM_SIM_SEED */
/* A line on stderr; the process ends with status 86 where there were any. */
void dtm_sim_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- tests ---- */

/* Whether this call, of that kind, is the one that DTM_SIM_MUTANT has done wrong (driver_mutants.c). */
bool dtm_sim_mutated(const char *which, const char *of);

const char *dtm_sim_reports(void); /* their text since dtm_sim_said was asked */
int dtm_sim_said(void);  /* how many reports there were since the last time that it was asked, which are then forgotten */
void dtm_sim_again(void); /* what is pending is done or dropped; contexts that were lost are whole again; nobody has touched anything */

#endif
