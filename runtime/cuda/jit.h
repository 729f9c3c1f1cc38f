/* Compiles kernels by NVRTC for the GPU that is there, and keeps what came of it in a folder. One program is the unit, of one
 * or several kernels; a compilation gives cubin, PTX and what ptxas says of registers, spills and shared memory.
 *
 * An entry of the cache is the file KEY.kernel, where KEY is the SHA-256 of all that could change the code: source, options,
 * architecture, version and build-id of NVRTC, the format here, the ABI of the runtime.
 *
 *     header  magic, format, counts, what (source, options and architecture), key, lengths
 *     kernels name, registers, stack, spills, shared memory of each
 *     cubin   padded to 8 bytes; nothing for an architecture compute_XX
 *     PTX     with its zero
 *     log     without times, so that the same compilation gives the same bytes; with its zero
 *     digest  SHA-256 of all before it
 *
 * It is written to a temporary beside it, synced and renamed; it is verified when read, and one that is cut or changed is
 * unlinked and made again. So any number of processes may share the folder and be killed at any time. The folder is the user's
 * own (0700); files of another owner are ignored, and where it cannot be written there is no cache: what was compiled is in
 * memory all the same, and dtm_jit_notice says why. */
#ifndef DTM_CUDA_JIT_H
#define DTM_CUDA_JIT_H

#include "runtime/cuda/load.h"

#include <stdint.h>

typedef struct dtm_jit_source {
    const char *name; /* absolute and fixed, `/dtm/NAME.cu`: NVRTC would put the working directory before another */
    const char *text;
    const char *arch; /* "sm_90a"; or "compute_90", of which there is PTX alone */
} dtm_jit_source;

/* What ptxas says of a kernel; bytes a thread, of `shared` a block. */
typedef struct dtm_jit_kernel {
    char name[128];
    int32_t registers, barriers, stack, spill_stores, spill_loads, shared;
} dtm_jit_kernel;

typedef struct dtm_jit_code {
    const dtm_jit_kernel *kernels; /* none of an architecture compute_XX */
    uint32_t n_kernels;
    const unsigned char *cubin;
    size_t cubin_bytes;
    const char *ptx; /* zero-terminated */
    size_t ptx_bytes; /* its zero counted */
    const char *log;
    const unsigned char *entry; /* all of it as it lies in the cache: what one rank sends to others */
    size_t entry_bytes;
} dtm_jit_code;

typedef struct dtm_jit_options {
    dtm_cuda *cuda;
    const char *folder; /* of the cache; NULL: ~/.cache/dtm */
    bool memory_only;   /* no cache */
    int threads;        /* that compile at a time, 0: 1 */
} dtm_jit_options;

/* How often; an entry that was not usable is in `compiled` too. */
typedef struct dtm_jit_counts {
    int64_t found, compiled, corrupt, unwritten;
} dtm_jit_counts;

typedef struct dtm_jit dtm_jit;

bool dtm_jit_create(const dtm_jit_options *options, dtm_jit **out, dtm_status *status);
void dtm_jit_destroy(dtm_jit *jit);

/* The architecture to compile for on a device of this compute capability: its own, with the suffix `a` where kernels may use
 * what only that one has (9.0, 10.0); for a device newer than NVRTC the newest PTX that it makes (*newer). */
bool dtm_jit_arch(dtm_jit *jit, int major, int minor, char out[24], bool *newer, dtm_status *status);

/* Codes of n sources, from the cache or compiled, several at a time. All or none; free each. A failure to compile names the
 * file where the source was saved. Any thread may call it, several at once. */
bool dtm_jit_compile(dtm_jit *jit, const dtm_jit_source *sources, int n, dtm_jit_code **codes, dtm_status *status);

/* The code of a source from the bytes of an entry that another rank, or dtmc, made with whatever NVRTC it has: refused unless
 * whole and of this source, these options and this architecture. Needs no library. */
bool dtm_jit_take(const dtm_jit_source *source, const void *entry, size_t bytes, dtm_jit_code **out, dtm_status *status);
void dtm_jit_code_free(dtm_jit_code *code);

void dtm_jit_count(dtm_jit *jit, dtm_jit_counts *out);
/* Why nothing is read or written on disk, to be said once; "" where the cache works. */
void dtm_jit_notice(dtm_jit *jit, char out[1200]);

/* The log of a compilation: the kernels that it speaks of, with their resources, at most `most` of them written. */
uint32_t dtm_jit_read_log(const char *log, dtm_jit_kernel *out, uint32_t most);

#endif
