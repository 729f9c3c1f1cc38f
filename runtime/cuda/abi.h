/* What dtm uses of libcuda, NVRTC, cuBLASLt and NCCL: types, numbers and signatures, so that no header of CUDA is needed to
 * build. The libraries are opened at run time (load.h), which fills the tables of functions below; nothing is linked.
 *
 * A table is a list F(name, ..): `dtm_driver` has the functions of libcuda without their `cu`, `dtm_nvrtc` those of NVRTC
 * without `nvrtc`, and so on. For libcuda the number after the name is the version of CUDA whose signature is meant, the newest
 * that cuGetProcAddress gives for version 12000. Types are ours, `dtm_cu_..`; where they are enumerations they are int here.
 * tests/gpu/start/abi.c holds all of it against the toolkit's headers where they are. */
#ifndef DTM_CUDA_ABI_H
#define DTM_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

/* ---- types ---- */

#ifndef DTM_CUDA_TYPES_GIVEN /* the test of signatures takes the headers' */
typedef int dtm_cu_result, dtm_cu_device, dtm_cu_attribute, dtm_cu_function_attribute, dtm_cu_jit_option;
typedef int dtm_cu_capture_mode, dtm_cu_capture_status, dtm_cu_granularity, dtm_cu_range_handle;
typedef int dtm_cu_flush_target, dtm_cu_flush_scope, dtm_cu_query_result;
typedef int dtm_cu_tensor_type, dtm_cu_tensor_interleave, dtm_cu_tensor_swizzle, dtm_cu_tensor_promotion, dtm_cu_tensor_fill;
typedef unsigned long long dtm_cu_pointer, dtm_cu_allocation;
typedef struct CUctx_st *dtm_cu_context;
typedef struct CUstream_st *dtm_cu_stream;
typedef struct CUevent_st *dtm_cu_event;
typedef struct CUmod_st *dtm_cu_module;
typedef struct CUfunc_st *dtm_cu_function;
typedef struct CUgraph_st *dtm_cu_graph;
typedef struct CUgraphExec_st *dtm_cu_graph_exec;

typedef struct dtm_cu_uuid {
    char bytes[16];
} dtm_cu_uuid;

typedef struct dtm_cu_location {
    int type, id;
} dtm_cu_location;

typedef struct dtm_cu_allocation_properties {
    int type, handle_types;
    dtm_cu_location location;
    void *windows;
    unsigned char compression, gpu_direct_rdma;
    unsigned short usage;
    unsigned char reserved[4];
} dtm_cu_allocation_properties;

typedef struct dtm_cu_access {
    dtm_cu_location location;
    int flags;
} dtm_cu_access;

typedef struct dtm_cu_copy_2d {
    size_t source_x, source_y;
    int source_kind;
    const void *source_host;
    dtm_cu_pointer source_device;
    void *source_array;
    size_t source_pitch;
    size_t target_x, target_y;
    int target_kind;
    void *target_host;
    dtm_cu_pointer target_device;
    void *target_array;
    size_t target_pitch;
    size_t width, height; /* bytes, rows */
} dtm_cu_copy_2d;

typedef struct dtm_cu_launch_attribute {
    int id;
    char padding[4];
    union {
        char bytes[64];
        unsigned cluster[3];
        int number; /* of a priority or a switch */
        void *alignment;
    } value;
} dtm_cu_launch_attribute;

typedef struct dtm_cu_launch {
    unsigned grid[3], block[3], shared_bytes;
    dtm_cu_stream stream;
    dtm_cu_launch_attribute *attributes;
    unsigned n_attributes;
} dtm_cu_launch;

typedef struct dtm_cu_tensor_map {
    _Alignas(128) uint64_t opaque[16]; /* 64 before CUDA 13 */
} dtm_cu_tensor_map;

typedef int dtm_nvrtc_result;
typedef struct _nvrtcProgram *dtm_nvrtc_program;

typedef int dtm_cublas_status, dtm_cublas_compute, dtm_cublas_type;
typedef int dtm_cublas_desc_attribute, dtm_cublas_layout_attribute, dtm_cublas_preference_attribute;
typedef struct cublasLtContext *dtm_cublas_handle;
typedef struct dtm_cublas_desc_opaque *dtm_cublas_desc;
typedef struct dtm_cublas_layout_opaque *dtm_cublas_layout;
typedef struct dtm_cublas_preference_opaque *dtm_cublas_preference;

typedef struct dtm_cublas_algorithm {
    uint64_t opaque[8];
} dtm_cublas_algorithm;

typedef struct dtm_cublas_heuristic {
    dtm_cublas_algorithm algorithm;
    size_t workspace_bytes;
    dtm_cublas_status state;
    float waves;
    int reserved[4];
} dtm_cublas_heuristic;

typedef int dtm_nccl_result, dtm_nccl_type, dtm_nccl_op;
typedef struct ncclComm *dtm_nccl_comm;
typedef struct ncclWindow_vidmem *dtm_nccl_window;

typedef struct dtm_nccl_id {
    char bytes[128];
} dtm_nccl_id;

/* Of NCCL 2.28. `size` and `version` say how much of it is there: they are filled for the version of the library. */
typedef struct dtm_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster, min_ctas, max_ctas;
    const char *net;
    int split_share, traffic_class;
    const char *name;
    int collnet, cta_policy, shrink_share, nvls_ctas, channels_per_peer, nvlink_centric;
} dtm_nccl_config;
#endif

/* ---- numbers ---- */

/* N(ours, theirs, value) */
#define DTM_CUDA_NUMBERS(N)                                                                                            \
    N(DTM_CU_SUCCESS, CUDA_SUCCESS, 0)                                                                                 \
    N(DTM_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY, 2)                                                               \
    N(DTM_CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE, 100)                                                                     \
    N(DTM_CU_NO_BINARY, CUDA_ERROR_NO_BINARY_FOR_GPU, 209)                                                             \
    N(DTM_CU_PTX_TOO_NEW, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222)                                                     \
    N(DTM_CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND, 500)                                                                     \
    N(DTM_CU_NOT_READY, CUDA_ERROR_NOT_READY, 600)                                                                     \
    N(DTM_CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS, 700)                                                         \
    N(DTM_CU_LAUNCH_TIMEOUT, CUDA_ERROR_LAUNCH_TIMEOUT, 702)                                                           \
    N(DTM_CU_PEER_ENABLED, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704)                                                \
    N(DTM_CU_MISALIGNED, CUDA_ERROR_MISALIGNED_ADDRESS, 716)                                                           \
    N(DTM_CU_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED, 719)                                                             \
    N(DTM_CU_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)                                          \
    N(DTM_CU_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901)                                          \
    N(DTM_CU_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)                                            \
    N(DTM_CU_CLOCK_RATE, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 13)                                                           \
    N(DTM_CU_L2_BYTES, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 38)                                                          \
    N(DTM_CU_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                                       \
    N(DTM_CU_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                                       \
    N(DTM_CU_SHARED_OPTIN_BYTES, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 97)                            \
    N(DTM_CU_HAS_ADDRESS_RANGES, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)                         \
    N(DTM_CU_HAS_RDMA, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 116)                                             \
    N(DTM_CU_HAS_DMABUF, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 124)                                                   \
    N(DTM_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING, 1)                                                           \
    N(DTM_CU_EVENT_TIMED, CU_EVENT_DEFAULT, 0)                                                                         \
    N(DTM_CU_EVENT_UNTIMED, CU_EVENT_DISABLE_TIMING, 2)                                                                \
    N(DTM_CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED, 1)                                                      \
    N(DTM_CU_HANDLE_FILE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1)                                                 \
    N(DTM_CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE, 1)                                                          \
    N(DTM_CU_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)                                                 \
    N(DTM_CU_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, 1)                                         \
    N(DTM_CU_RANGE_DMABUF, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 1)                                                     \
    N(DTM_CU_FLUSH_CONTEXT, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, 0)                                     \
    N(DTM_CU_FLUSH_TO_OWNER, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER, 100)                                            \
    N(DTM_CU_KIND_HOST, CU_MEMORYTYPE_HOST, 1)                                                                         \
    N(DTM_CU_KIND_DEVICE, CU_MEMORYTYPE_DEVICE, 2)                                                                     \
    N(DTM_CU_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE, 1)                                                               \
    N(DTM_CU_HOST_MAPPED, CU_MEMHOSTALLOC_DEVICEMAP, 2)                                                                \
    N(DTM_CU_FUNCTION_SHARED_STATIC, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 1)                                           \
    N(DTM_CU_FUNCTION_LOCAL, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, 3)                                                    \
    N(DTM_CU_FUNCTION_REGISTERS, CU_FUNC_ATTRIBUTE_NUM_REGS, 4)                                                        \
    N(DTM_CU_FUNCTION_SHARED_DYNAMIC, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8)                              \
    N(DTM_CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BUFFER, 5)                                                                \
    N(DTM_CU_JIT_ERROR_LOG_BYTES, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, 6)                                               \
    N(DTM_CU_CAPTURE_THREAD, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 1)                                                   \
    N(DTM_CU_CAPTURING, CU_STREAM_CAPTURE_STATUS_ACTIVE, 1)                                                            \
    N(DTM_CU_LAUNCH_CLUSTER, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 4)                                                 \
    N(DTM_CU_LAUNCH_PRIORITY, CU_LAUNCH_ATTRIBUTE_PRIORITY, 8)                                                         \
    N(DTM_NVRTC_SUCCESS, NVRTC_SUCCESS, 0)                                                                             \
    N(DTM_NVRTC_COMPILATION, NVRTC_ERROR_COMPILATION, 6)                                                               \
    N(DTM_CUBLAS_SUCCESS, CUBLAS_STATUS_SUCCESS, 0)                                                                    \
    N(DTM_CUBLAS_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED, 15)                                                       \
    N(DTM_CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F, 68)                                                                  \
    N(DTM_CUBLAS_COMPUTE_TF32, CUBLAS_COMPUTE_32F_FAST_TF32, 77)                                                       \
    N(DTM_CUBLAS_F32, CUDA_R_32F, 0)                                                                                   \
    N(DTM_CUBLAS_F16, CUDA_R_16F, 2)                                                                                   \
    N(DTM_CUBLAS_BF16, CUDA_R_16BF, 14)                                                                                \
    N(DTM_CUBLAS_PLAIN, CUBLAS_OP_N, 0)                                                                                \
    N(DTM_CUBLAS_TRANSPOSED, CUBLAS_OP_T, 1)                                                                           \
    N(DTM_CUBLAS_LAYOUT_BATCHES, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 5)                                                \
    N(DTM_CUBLAS_LAYOUT_STRIDE, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 6)                                        \
    N(DTM_CUBLAS_DESC_TRANSPOSE_A, CUBLASLT_MATMUL_DESC_TRANSA, 3)                                                     \
    N(DTM_CUBLAS_DESC_TRANSPOSE_B, CUBLASLT_MATMUL_DESC_TRANSB, 4)                                                     \
    N(DTM_CUBLAS_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE, 7)                                                      \
    N(DTM_CUBLAS_DESC_BIAS, CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8)                                                      \
    N(DTM_CUBLAS_DESC_AUX, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 11)                                              \
    N(DTM_CUBLAS_DESC_AUX_LD, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 12)                                                \
    N(DTM_CUBLAS_DESC_MULTIPROCESSORS, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, 15)                                       \
    N(DTM_CUBLAS_DESC_AUX_TYPE, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, 22)                                       \
    N(DTM_CUBLAS_DESC_BIAS_TYPE, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, 26)                                              \
    N(DTM_CUBLAS_PREFER_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)                                        \
    N(DTM_CUBLAS_PREFER_ALIGNMENT_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5)                                    \
    N(DTM_CUBLAS_PREFER_ALIGNMENT_B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6)                                    \
    N(DTM_CUBLAS_PREFER_ALIGNMENT_C, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7)                                    \
    N(DTM_CUBLAS_PREFER_ALIGNMENT_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)                                    \
    N(DTM_CUBLAS_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_DEFAULT, 1)                                                       \
    N(DTM_CUBLAS_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU, 2)                                                             \
    N(DTM_CUBLAS_EPILOGUE_RELU_AUX, CUBLASLT_EPILOGUE_RELU_AUX, 130)                                                   \
    N(DTM_CUBLAS_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS, 4)                                                             \
    N(DTM_CUBLAS_EPILOGUE_DRELU, CUBLASLT_EPILOGUE_DRELU, 136)                                                         \
    N(DTM_CUBLAS_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU, 32)                                                            \
    N(DTM_CUBLAS_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX, 160)                                                   \
    N(DTM_CUBLAS_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU, 192)                                                         \
    N(DTM_CUBLAS_EPILOGUE_BIAS_GRADIENT_A, CUBLASLT_EPILOGUE_BGRADA, 256)                                              \
    N(DTM_CUBLAS_EPILOGUE_BIAS_GRADIENT_B, CUBLASLT_EPILOGUE_BGRADB, 512)                                              \
    N(DTM_NCCL_SUCCESS, ncclSuccess, 0)                                                                                \
    N(DTM_NCCL_REMOTE_ERROR, ncclRemoteError, 6)                                                                       \
    N(DTM_NCCL_IN_PROGRESS, ncclInProgress, 7)                                                                         \
    N(DTM_NCCL_SUM, ncclSum, 0)                                                                                        \
    N(DTM_NCCL_MAX, ncclMax, 2)                                                                                        \
    N(DTM_NCCL_U8, ncclUint8, 1)                                                                                       \
    N(DTM_NCCL_I32, ncclInt32, 2)                                                                                      \
    N(DTM_NCCL_F16, ncclFloat16, 6)                                                                                    \
    N(DTM_NCCL_F32, ncclFloat32, 7)                                                                                    \
    N(DTM_NCCL_F64, ncclFloat64, 8)                                                                                    \
    N(DTM_NCCL_BF16, ncclBfloat16, 9)                                                                                  \
    N(DTM_NCCL_UNSET, NCCL_CONFIG_UNDEF_INT, INT32_MIN)                                                                \
    N(DTM_NCCL_NO_COLOR, NCCL_SPLIT_NOCOLOR, -1)                                                                       \
    N(DTM_NCCL_WINDOW_SYMMETRIC, NCCL_WIN_COLL_SYMMETRIC, 1)                                                           \
    N(DTM_NCCL_CTA_POLICY_ZERO, NCCL_CTA_POLICY_ZERO, 2)

enum {
#define DTM_NUMBER(ours, theirs, value) ours = value,
    DTM_CUDA_NUMBERS(DTM_NUMBER)
#undef DTM_NUMBER
};

#define DTM_NCCL_CONFIG_MAGIC 0xcafebeefu
#define DTM_CUDA_ABI_VERSION 12000 /* asked of cuGetProcAddress: another may give another signature under the same name */
#define DTM_CUDA_LEAST_DRIVER 12000

/* ---- libcuda: F(name, version of the signature, parameters), all of which return dtm_cu_result ---- */

/* The one name looked up by dlsym. */
typedef dtm_cu_result (*dtm_cu_get_address)(const char *name, void **function, int version, uint64_t flags,
                                            dtm_cu_query_result *found);

#define DTM_DRIVER_START(F)                                                                                            \
    F(Init, 2000, (unsigned flags))                                                                                    \
    F(DriverGetVersion, 2020, (int *version))                                                                          \
    F(GetErrorName, 6000, (dtm_cu_result result, const char **name))                                                   \
    F(GetErrorString, 6000, (dtm_cu_result result, const char **text))                                                 \
    F(DeviceGetCount, 2000, (int *count))                                                                              \
    F(DeviceGet, 2000, (dtm_cu_device *device, int ordinal))                                                           \
    F(DeviceGetName, 2000, (char *name, int bytes, dtm_cu_device device))                                              \
    F(DeviceGetUuid, 11040, (dtm_cu_uuid *uuid, dtm_cu_device device))                                                 \
    F(DeviceGetPCIBusId, 4010, (char *id, int bytes, dtm_cu_device device))                                            \
    F(DeviceGetAttribute, 2000, (int *value, dtm_cu_attribute attribute, dtm_cu_device device))                        \
    F(DeviceTotalMem, 3020, (size_t *bytes, dtm_cu_device device))                                                     \
    F(DeviceCanAccessPeer, 4000, (int *can, dtm_cu_device device, dtm_cu_device peer))                                 \
    F(DevicePrimaryCtxRetain, 7000, (dtm_cu_context *context, dtm_cu_device device))                                   \
    F(DevicePrimaryCtxRelease, 11000, (dtm_cu_device device))                                                          \
    F(CtxSetCurrent, 4000, (dtm_cu_context context))                                                                   \
    F(CtxSynchronize, 2000, (void))                                                                                    \
    F(CtxGetStreamPriorityRange, 5050, (int *least, int *greatest))                                                    \
    F(CtxEnablePeerAccess, 4000, (dtm_cu_context peer, unsigned flags))

#define DTM_DRIVER_MEMORY(F)                                                                                           \
    F(MemGetInfo, 3020, (size_t *free, size_t *total))                                                                 \
    F(MemGetAllocationGranularity, 10020,                                                                              \
      (size_t *granularity, const dtm_cu_allocation_properties *properties, dtm_cu_granularity kind))                  \
    F(MemAddressReserve, 10020,                                                                                        \
      (dtm_cu_pointer *out, size_t bytes, size_t alignment, dtm_cu_pointer at, unsigned long long flags))              \
    F(MemAddressFree, 10020, (dtm_cu_pointer at, size_t bytes))                                                        \
    F(MemCreate, 10020,                                                                                                \
      (dtm_cu_allocation *out, size_t bytes, const dtm_cu_allocation_properties *properties, unsigned long long flags)) \
    F(MemRelease, 10020, (dtm_cu_allocation allocation))                                                               \
    F(MemMap, 10020,                                                                                                   \
      (dtm_cu_pointer at, size_t bytes, size_t offset, dtm_cu_allocation allocation, unsigned long long flags))        \
    F(MemUnmap, 10020, (dtm_cu_pointer at, size_t bytes))                                                              \
    F(MemSetAccess, 10020, (dtm_cu_pointer at, size_t bytes, const dtm_cu_access *access, size_t count))               \
    F(MemHostAlloc, 2020, (void **out, size_t bytes, unsigned flags))                                                  \
    F(MemFreeHost, 2000, (void *at))                                                                                   \
    F(MemHostGetDevicePointer, 3020, (dtm_cu_pointer *out, void *at, unsigned flags))                                  \
    F(MemGetHandleForAddressRange, 11070,                                                                              \
      (void *handle, dtm_cu_pointer at, size_t bytes, dtm_cu_range_handle kind, unsigned long long flags))             \
    F(FlushGPUDirectRDMAWrites, 11030, (dtm_cu_flush_target target, dtm_cu_flush_scope scope))                         \
    F(MemcpyHtoDAsync, 3020, (dtm_cu_pointer to, const void *from, size_t bytes, dtm_cu_stream stream))                \
    F(MemcpyDtoHAsync, 3020, (void *to, dtm_cu_pointer from, size_t bytes, dtm_cu_stream stream))                      \
    F(MemcpyDtoDAsync, 3020, (dtm_cu_pointer to, dtm_cu_pointer from, size_t bytes, dtm_cu_stream stream))             \
    F(Memcpy2DAsync, 3020, (const dtm_cu_copy_2d *copy, dtm_cu_stream stream))                                         \
    F(MemcpyPeerAsync, 4000,                                                                                           \
      (dtm_cu_pointer to, dtm_cu_context to_context, dtm_cu_pointer from, dtm_cu_context from_context, size_t bytes,   \
       dtm_cu_stream stream))                                                                                          \
    F(MemsetD8Async, 3020, (dtm_cu_pointer at, unsigned char value, size_t count, dtm_cu_stream stream))               \
    F(MemsetD32Async, 3020, (dtm_cu_pointer at, unsigned value, size_t count, dtm_cu_stream stream))

#define DTM_DRIVER_ORDER(F)                                                                                            \
    F(StreamCreateWithPriority, 5050, (dtm_cu_stream *out, unsigned flags, int priority))                              \
    F(StreamDestroy, 4000, (dtm_cu_stream stream))                                                                     \
    F(StreamQuery, 2000, (dtm_cu_stream stream))                                                                       \
    F(StreamSynchronize, 2000, (dtm_cu_stream stream))                                                                 \
    F(StreamWaitEvent, 3020, (dtm_cu_stream stream, dtm_cu_event event, unsigned flags))                               \
    F(StreamWriteValue32, 11070, (dtm_cu_stream stream, dtm_cu_pointer at, uint32_t value, unsigned flags))            \
    F(EventCreate, 2000, (dtm_cu_event *out, unsigned flags))                                                          \
    F(EventDestroy, 4000, (dtm_cu_event event))                                                                        \
    F(EventRecord, 2000, (dtm_cu_event event, dtm_cu_stream stream))                                                   \
    F(EventQuery, 2000, (dtm_cu_event event))                                                                          \
    F(EventSynchronize, 2000, (dtm_cu_event event))                                                                    \
    F(EventElapsedTime, 2000, (float *milliseconds, dtm_cu_event begin, dtm_cu_event end))

#define DTM_DRIVER_CODE(F)                                                                                             \
    F(ModuleLoadDataEx, 2010,                                                                                          \
      (dtm_cu_module *out, const void *image, unsigned count, dtm_cu_jit_option *options, void **values))              \
    F(ModuleUnload, 2000, (dtm_cu_module module))                                                                      \
    F(ModuleGetFunction, 2000, (dtm_cu_function *out, dtm_cu_module module, const char *name))                         \
    F(FuncSetAttribute, 9000, (dtm_cu_function function, dtm_cu_function_attribute attribute, int value))              \
    F(FuncGetAttribute, 2020, (int *value, dtm_cu_function_attribute attribute, dtm_cu_function function))             \
    F(OccupancyMaxActiveBlocksPerMultiprocessor, 6050,                                                                 \
      (int *blocks, dtm_cu_function function, int threads, size_t shared_bytes))                                       \
    F(LaunchKernelEx, 11060,                                                                                           \
      (const dtm_cu_launch *launch, dtm_cu_function function, void **arguments, void **extra))                         \
    F(TensorMapEncodeTiled, 12000,                                                                                     \
      (dtm_cu_tensor_map *out, dtm_cu_tensor_type type, uint32_t rank, void *at, const uint64_t *sizes,                \
       const uint64_t *strides, const uint32_t *box, const uint32_t *steps, dtm_cu_tensor_interleave interleave,       \
       dtm_cu_tensor_swizzle swizzle, dtm_cu_tensor_promotion promotion, dtm_cu_tensor_fill fill))                     \
    F(StreamBeginCapture, 10010, (dtm_cu_stream stream, dtm_cu_capture_mode mode))                                     \
    F(StreamEndCapture, 10000, (dtm_cu_stream stream, dtm_cu_graph *out))                                              \
    F(StreamIsCapturing, 10000, (dtm_cu_stream stream, dtm_cu_capture_status *out))                                    \
    F(ThreadExchangeStreamCaptureMode, 10010, (dtm_cu_capture_mode *mode))                                             \
    F(GraphInstantiateWithFlags, 11040, (dtm_cu_graph_exec *out, dtm_cu_graph graph, unsigned long long flags))        \
    F(GraphUpload, 11010, (dtm_cu_graph_exec graph, dtm_cu_stream stream))                                             \
    F(GraphLaunch, 10000, (dtm_cu_graph_exec graph, dtm_cu_stream stream))                                             \
    F(GraphExecDestroy, 10000, (dtm_cu_graph_exec graph))                                                              \
    F(GraphDestroy, 10000, (dtm_cu_graph graph))

#define DTM_DRIVER_FUNCTIONS(F) DTM_DRIVER_START(F) DTM_DRIVER_MEMORY(F) DTM_DRIVER_ORDER(F) DTM_DRIVER_CODE(F)

typedef struct dtm_driver {
#define DTM_FUNCTION(name, since, parameters) dtm_cu_result (*name) parameters;
    DTM_DRIVER_FUNCTIONS(DTM_FUNCTION)
#undef DTM_FUNCTION
} dtm_driver;

/* ---- the other libraries: F(name, result, parameters) ---- */

#define DTM_NVRTC_FUNCTIONS(F)                                                                                         \
    F(Version, dtm_nvrtc_result, (int *major, int *minor))                                                             \
    F(GetNumSupportedArchs, dtm_nvrtc_result, (int *count))                                                            \
    F(GetSupportedArchs, dtm_nvrtc_result, (int *architectures))                                                       \
    F(CreateProgram, dtm_nvrtc_result,                                                                                 \
      (dtm_nvrtc_program *out, const char *text, const char *name, int n_headers, const char *const *headers,          \
       const char *const *header_names))                                                                               \
    F(CompileProgram, dtm_nvrtc_result, (dtm_nvrtc_program program, int n_options, const char *const *options))        \
    F(GetProgramLogSize, dtm_nvrtc_result, (dtm_nvrtc_program program, size_t *bytes))                                 \
    F(GetProgramLog, dtm_nvrtc_result, (dtm_nvrtc_program program, char *text))                                        \
    F(GetPTXSize, dtm_nvrtc_result, (dtm_nvrtc_program program, size_t *bytes))                                        \
    F(GetPTX, dtm_nvrtc_result, (dtm_nvrtc_program program, char *text))                                               \
    F(GetCUBINSize, dtm_nvrtc_result, (dtm_nvrtc_program program, size_t *bytes))                                      \
    F(GetCUBIN, dtm_nvrtc_result, (dtm_nvrtc_program program, char *bytes))                                            \
    F(DestroyProgram, dtm_nvrtc_result, (dtm_nvrtc_program *program))                                                  \
    F(GetErrorString, const char *, (dtm_nvrtc_result result))

#define DTM_CUBLASLT_FUNCTIONS(F)                                                                                      \
    F(Create, dtm_cublas_status, (dtm_cublas_handle *out))                                                             \
    F(Destroy, dtm_cublas_status, (dtm_cublas_handle handle))                                                          \
    F(GetVersion, size_t, (void))                                                                                      \
    F(GetStatusString, const char *, (dtm_cublas_status status))                                                       \
    F(MatmulDescCreate, dtm_cublas_status,                                                                             \
      (dtm_cublas_desc *out, dtm_cublas_compute compute, dtm_cublas_type scale))                                       \
    F(MatmulDescSetAttribute, dtm_cublas_status,                                                                       \
      (dtm_cublas_desc desc, dtm_cublas_desc_attribute attribute, const void *value, size_t bytes))                    \
    F(MatmulDescDestroy, dtm_cublas_status, (dtm_cublas_desc desc))                                                    \
    F(MatrixLayoutCreate, dtm_cublas_status,                                                                           \
      (dtm_cublas_layout *out, dtm_cublas_type type, uint64_t rows, uint64_t columns, int64_t ld))                     \
    F(MatrixLayoutSetAttribute, dtm_cublas_status,                                                                     \
      (dtm_cublas_layout layout, dtm_cublas_layout_attribute attribute, const void *value, size_t bytes))              \
    F(MatrixLayoutDestroy, dtm_cublas_status, (dtm_cublas_layout layout))                                              \
    F(MatmulPreferenceCreate, dtm_cublas_status, (dtm_cublas_preference *out))                                         \
    F(MatmulPreferenceSetAttribute, dtm_cublas_status,                                                                 \
      (dtm_cublas_preference preference, dtm_cublas_preference_attribute attribute, const void *value, size_t bytes))  \
    F(MatmulPreferenceDestroy, dtm_cublas_status, (dtm_cublas_preference preference))                                  \
    F(MatmulAlgoGetHeuristic, dtm_cublas_status,                                                                       \
      (dtm_cublas_handle handle, dtm_cublas_desc desc, dtm_cublas_layout a, dtm_cublas_layout b, dtm_cublas_layout c,  \
       dtm_cublas_layout d, dtm_cublas_preference preference, int wanted, dtm_cublas_heuristic *out, int *count))      \
    F(MatmulAlgoCheck, dtm_cublas_status,                                                                              \
      (dtm_cublas_handle handle, dtm_cublas_desc desc, dtm_cublas_layout a, dtm_cublas_layout b, dtm_cublas_layout c,  \
       dtm_cublas_layout d, const dtm_cublas_algorithm *algorithm, dtm_cublas_heuristic *out))                         \
    F(Matmul, dtm_cublas_status,                                                                                       \
      (dtm_cublas_handle handle, dtm_cublas_desc desc, const void *alpha, const void *a, dtm_cublas_layout a_layout,   \
       const void *b, dtm_cublas_layout b_layout, const void *beta, const void *c, dtm_cublas_layout c_layout,         \
       void *d, dtm_cublas_layout d_layout, const dtm_cublas_algorithm *algorithm, void *workspace,                    \
       size_t workspace_bytes, dtm_cu_stream stream))

#define DTM_NCCL_FUNCTIONS(F)                                                                                          \
    F(GetVersion, dtm_nccl_result, (int *version))                                                                     \
    F(GetUniqueId, dtm_nccl_result, (dtm_nccl_id * id))                                                                \
    F(GetErrorString, const char *, (dtm_nccl_result result))                                                          \
    F(GetLastError, const char *, (dtm_nccl_comm comm))                                                                \
    F(CommInitRankConfig, dtm_nccl_result,                                                                             \
      (dtm_nccl_comm * out, int ranks, dtm_nccl_id id, int rank, dtm_nccl_config *config))                             \
    F(CommSplit, dtm_nccl_result, (dtm_nccl_comm comm, int color, int key, dtm_nccl_comm *out, dtm_nccl_config *config)) \
    F(CommFinalize, dtm_nccl_result, (dtm_nccl_comm comm))                                                             \
    F(CommDestroy, dtm_nccl_result, (dtm_nccl_comm comm))                                                              \
    F(CommAbort, dtm_nccl_result, (dtm_nccl_comm comm))                                                                \
    F(CommGetAsyncError, dtm_nccl_result, (dtm_nccl_comm comm, dtm_nccl_result * out))                                 \
    F(MemAlloc, dtm_nccl_result, (void **out, size_t bytes))                                                           \
    F(MemFree, dtm_nccl_result, (void *at))                                                                            \
    F(GroupStart, dtm_nccl_result, (void))                                                                             \
    F(GroupEnd, dtm_nccl_result, (void))                                                                               \
    F(AllReduce, dtm_nccl_result,                                                                                      \
      (const void *from, void *to, size_t count, dtm_nccl_type type, dtm_nccl_op op, dtm_nccl_comm comm,               \
       dtm_cu_stream stream))                                                                                          \
    F(AllGather, dtm_nccl_result,                                                                                      \
      (const void *from, void *to, size_t count, dtm_nccl_type type, dtm_nccl_comm comm, dtm_cu_stream stream))        \
    F(ReduceScatter, dtm_nccl_result,                                                                                  \
      (const void *from, void *to, size_t count, dtm_nccl_type type, dtm_nccl_op op, dtm_nccl_comm comm,               \
       dtm_cu_stream stream))                                                                                          \
    F(Broadcast, dtm_nccl_result,                                                                                      \
      (const void *from, void *to, size_t count, dtm_nccl_type type, int root, dtm_nccl_comm comm,                     \
       dtm_cu_stream stream))                                                                                          \
    F(Reduce, dtm_nccl_result,                                                                                         \
      (const void *from, void *to, size_t count, dtm_nccl_type type, dtm_nccl_op op, int root, dtm_nccl_comm comm,     \
       dtm_cu_stream stream))                                                                                          \
    F(Send, dtm_nccl_result,                                                                                           \
      (const void *from, size_t count, dtm_nccl_type type, int peer, dtm_nccl_comm comm, dtm_cu_stream stream))        \
    F(Recv, dtm_nccl_result,                                                                                           \
      (void *to, size_t count, dtm_nccl_type type, int peer, dtm_nccl_comm comm, dtm_cu_stream stream))

/* NULL where the library is older: windows are of 2.27, AlltoAll of 2.28. */
#define DTM_NCCL_NEWER(F)                                                                                              \
    F(CommWindowRegister, dtm_nccl_result,                                                                             \
      (dtm_nccl_comm comm, void *at, size_t bytes, dtm_nccl_window *out, int flags))                                   \
    F(CommWindowDeregister, dtm_nccl_result, (dtm_nccl_comm comm, dtm_nccl_window window))                             \
    F(AlltoAll, dtm_nccl_result,                                                                                       \
      (const void *from, void *to, size_t count, dtm_nccl_type type, dtm_nccl_comm comm, dtm_cu_stream stream))

#define DTM_FUNCTION(name, result, parameters) result(*name) parameters;
typedef struct dtm_nvrtc {
    DTM_NVRTC_FUNCTIONS(DTM_FUNCTION)
} dtm_nvrtc;

typedef struct dtm_cublaslt {
    DTM_CUBLASLT_FUNCTIONS(DTM_FUNCTION)
} dtm_cublaslt;

typedef struct dtm_nccl {
    DTM_NCCL_FUNCTIONS(DTM_FUNCTION)
    DTM_NCCL_NEWER(DTM_FUNCTION)
} dtm_nccl;
#undef DTM_FUNCTION

#endif
