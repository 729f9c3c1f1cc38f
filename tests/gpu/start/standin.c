/* Stand-ins for CUDA's libraries, as many shapes as the tests of the search need: what one is, is said when it is compiled.
 *   STANDIN_DRIVER=12040       libcuda of a driver for CUDA 12.4; STANDIN_OLD: one without cuGetProcAddress_v2
 *   STANDIN_NVRTC=13           NVRTC of that major version
 *   STANDIN_BUILTINS           what NVRTC opens by itself
 *   STANDIN_CUBLASLT=130100    what its GetVersion says
 *   STANDIN_NCCL=22809         the same; STANDIN_NO_SPLIT: without ncclCommSplit
 *   STANDIN_LACKS=name         a function of the driver, without its prefix, that it does not give
 *   STANDIN_DEVICES=2          how many devices the driver has */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifndef STANDIN_LACKS
#define STANDIN_LACKS "Nothing"
#endif
#ifndef STANDIN_DEVICES
#define STANDIN_DEVICES 0
#endif

#ifdef STANDIN_DRIVER
int cuDriverGetVersion(int *version) {
    *version = STANDIN_DRIVER;
    return 0;
}

#ifndef STANDIN_OLD
static int succeed(void) { return 0; }
static int device_count(int *count) {
    *count = STANDIN_DEVICES;
    return STANDIN_DEVICES ? 0 : 100;
}
static int text(int result, const char **out) {
    *out = result == 100 ? "no CUDA-capable device is detected" : "some error";
    return 0;
}
static int attribute(int *value, int which, int device) {
    (void)device;
    *value = which == 75 ? 9 : which == 16 ? 132 : 0;
    return 0;
}
static int total(size_t *bytes, int device) {
    (void)device;
    *bytes = (size_t)139 << 30;
    return 0;
}
static int device_name(char *out, int bytes, int device) {
    snprintf(out, (size_t)bytes, "Stand-in %d", device);
    return 0;
}
static int bus(char *out, int bytes, int device) {
    snprintf(out, (size_t)bytes, "0000:%02x:00.0", device + 1);
    return 0;
}
static int get_device(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}
int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *found) {
    static const struct {
        const char *name;
        void *function;
    } own[] = {{"cuDeviceGetCount", (void *)device_count},   {"cuGetErrorString", (void *)text},
               {"cuDeviceGetAttribute", (void *)attribute}, {"cuDeviceTotalMem", (void *)total},
               {"cuDeviceGetName", (void *)device_name},  {"cuDeviceGetPCIBusId", (void *)bus},
               {"cuDriverGetVersion", (void *)cuDriverGetVersion}, {"cuDeviceGet", (void *)get_device}};
    *out = NULL;
    *found = 1;
    if (version != 12000 || flags != 0) return 1; /* another version may have another signature */
    if (!strcmp(name, "cu" STANDIN_LACKS)) return 500;
    *found = 0;
    *out = (void *)succeed;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(own[i].name, name)) *out = own[i].function;
    return 0;
}
#endif
#endif

/* Of the others each name is a function that succeeds. */
#ifdef STANDIN_NVRTC
int nvrtcVersion(int *major, int *minor) {
    *major = STANDIN_NVRTC;
    *minor = 4;
    return 0;
}
#define NAMES(F)                                                                                                       \
    F(nvrtcGetNumSupportedArchs) F(nvrtcGetSupportedArchs) F(nvrtcCreateProgram) F(nvrtcCompileProgram)                \
    F(nvrtcGetProgramLogSize) F(nvrtcGetProgramLog) F(nvrtcGetPTXSize) F(nvrtcGetPTX) F(nvrtcGetCUBINSize)             \
    F(nvrtcGetCUBIN) F(nvrtcDestroyProgram) F(nvrtcGetErrorString)
#endif
#ifdef STANDIN_CUBLASLT
size_t cublasLtGetVersion(void) { return STANDIN_CUBLASLT; }
#define NAMES(F)                                                                                                       \
    F(cublasLtCreate) F(cublasLtDestroy) F(cublasLtGetStatusString) F(cublasLtMatmulDescCreate)                        \
    F(cublasLtMatmulDescSetAttribute) F(cublasLtMatmulDescDestroy) F(cublasLtMatrixLayoutCreate)                       \
    F(cublasLtMatrixLayoutSetAttribute) F(cublasLtMatrixLayoutDestroy) F(cublasLtMatmulPreferenceCreate)               \
    F(cublasLtMatmulPreferenceSetAttribute) F(cublasLtMatmulPreferenceDestroy) F(cublasLtMatmulAlgoGetHeuristic)       \
    F(cublasLtMatmulAlgoCheck) F(cublasLtMatmul)
#endif
#ifdef STANDIN_NCCL
int ncclGetVersion(int *version) {
    *version = STANDIN_NCCL;
    return 0;
}
#ifndef STANDIN_NO_SPLIT
int ncclCommSplit(void) { return 0; }
#endif
#define NAMES(F)                                                                                                       \
    F(ncclGetUniqueId) F(ncclGetErrorString) F(ncclGetLastError) F(ncclCommInitRankConfig) F(ncclCommFinalize)         \
    F(ncclCommDestroy) F(ncclCommAbort) F(ncclCommGetAsyncError) F(ncclMemAlloc) F(ncclMemFree) F(ncclGroupStart)      \
    F(ncclGroupEnd) F(ncclAllReduce) F(ncclAllGather) F(ncclReduceScatter) F(ncclBroadcast) F(ncclReduce) F(ncclSend)  \
    F(ncclRecv)
#endif
#ifdef STANDIN_BUILTINS
#define NAMES(F) F(standin_builtins)
#endif
#ifdef NAMES
#define DEFINE(name) int name(void); int name(void) { return 0; }
NAMES(DEFINE)
#endif
