/* The libraries of the CUDA path, opened at run time: libcuda, NVRTC, cuBLASLt and NCCL. A dtm_cuda opens nothing by itself;
 * each library is opened when it is first asked for, once, and what came of it is kept, a failure too. Any thread may ask.
 *
 * Search: each soname by the loader, then in /usr/local/cuda/lib64; with a folder given, there alone. NVRTC and cuBLASLt are
 * tried as .so.13 and .so.12, and one made for a newer CUDA than the driver knows is passed over. A library is taken with all
 * that abi.h lists of it or not at all, but for what NCCL has only lately. Libraries stay loaded: the driver has threads. */
#ifndef DTM_CUDA_LOAD_H
#define DTM_CUDA_LOAD_H

#include "runtime/cuda/abi.h"
#include "runtime/json.h"
#include "runtime/status.h"

typedef enum dtm_cuda_which { DTM_LIBCUDA, DTM_LIBNVRTC, DTM_LIBCUBLASLT, DTM_LIBNCCL, DTM_CUDA_LIBRARIES } dtm_cuda_which;

typedef struct dtm_cuda_library {
    const char *name;  /* "libnvrtc" */
    int version;       /* major * 1000 + minor * 10 as CUDA has it, of all four; NCCL's 2.28.9 is 22809 */
    char shown[24];    /* the version, "13.0" or "2.28.9" */
    char path[512];    /* of the file */
    char build_id[65]; /* hexadecimal, of the ELF file; "" if it has none */
    dtm_status status; /* failed: why it is not there, and what would serve */
} dtm_cuda_library;

typedef struct dtm_cuda dtm_cuda;

typedef struct dtm_cuda_options {
    const char *folder; /* of --cuda-libs, else NULL */
    bool elsewhere;     /* what is compiled runs on another machine: this one's driver, or that it has none, bounds nothing */
} dtm_cuda_options;

bool dtm_cuda_create(const dtm_cuda_options *options, dtm_cuda **out, dtm_status *status);
void dtm_cuda_destroy(dtm_cuda *cuda);

/* NULL and a failure where the library is missing, incomplete or too old. The tables live as long as the dtm_cuda. The
 * driver is not initialised: cuInit comes with the first that needs a device. */
const dtm_driver *dtm_cuda_driver(dtm_cuda *cuda, dtm_status *status);
const dtm_nvrtc *dtm_cuda_nvrtc(dtm_cuda *cuda, dtm_status *status);
const dtm_cublaslt *dtm_cuda_cublaslt(dtm_cuda *cuda, dtm_status *status);
const dtm_nccl *dtm_cuda_nccl(dtm_cuda *cuda, dtm_status *status);

/* What is known of a library, which is opened if it was not asked for yet. */
const dtm_cuda_library *dtm_cuda_describe(dtm_cuda *cuda, dtm_cuda_which which);

/* ---- what `info --devices` prints (describe.c) ---- */

/* The libraries and the devices on stdout, as text or into an object of JSON. A failure where a library or every device is missing:
 * the program could not run here. */
bool dtm_devices_print(dtm_cuda *cuda, dtm_status *status);
bool dtm_devices_put(dtm_cuda *cuda, dtm_json_writer *w, dtm_status *status);

#endif
