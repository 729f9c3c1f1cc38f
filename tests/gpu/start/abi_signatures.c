/* Every signature of runtime/cuda/abi.h is the toolkit's: abi.h is read with the headers' types in place of its own, and then
 * each function of its tables has the type that the headers declare. It is enough that this compiles. */
#include <cublasLt.h>
#include <cuda.h>
#include <cudaTypedefs.h>
#include <nccl.h>
#include <nvrtc.h>

#define DTM_CUDA_TYPES_GIVEN
typedef CUresult dtm_cu_result;
typedef CUdevice_v1 dtm_cu_device;
typedef CUdevice_attribute dtm_cu_attribute;
typedef CUfunction_attribute dtm_cu_function_attribute;
typedef CUjit_option dtm_cu_jit_option;
typedef CUstreamCaptureMode dtm_cu_capture_mode;
typedef CUstreamCaptureStatus dtm_cu_capture_status;
typedef CUmemAllocationGranularity_flags dtm_cu_granularity;
typedef CUmemRangeHandleType dtm_cu_range_handle;
typedef CUflushGPUDirectRDMAWritesTarget dtm_cu_flush_target;
typedef CUflushGPUDirectRDMAWritesScope dtm_cu_flush_scope;
typedef CUdriverProcAddressQueryResult dtm_cu_query_result;
typedef CUtensorMapDataType dtm_cu_tensor_type;
typedef CUtensorMapInterleave dtm_cu_tensor_interleave;
typedef CUtensorMapSwizzle dtm_cu_tensor_swizzle;
typedef CUtensorMapL2promotion dtm_cu_tensor_promotion;
typedef CUtensorMapFloatOOBfill dtm_cu_tensor_fill;
typedef CUdeviceptr_v2 dtm_cu_pointer;
typedef CUmemGenericAllocationHandle_v1 dtm_cu_allocation;
typedef CUcontext dtm_cu_context;
typedef CUstream dtm_cu_stream;
typedef CUevent dtm_cu_event;
typedef CUmodule dtm_cu_module;
typedef CUfunction dtm_cu_function;
typedef CUgraph dtm_cu_graph;
typedef CUgraphExec dtm_cu_graph_exec;
typedef CUuuid dtm_cu_uuid;
typedef CUmemAllocationProp_v1 dtm_cu_allocation_properties;
typedef CUmemAccessDesc_v1 dtm_cu_access;
typedef CUDA_MEMCPY2D_v2 dtm_cu_copy_2d;
typedef CUlaunchConfig dtm_cu_launch;
typedef CUtensorMap dtm_cu_tensor_map;
typedef nvrtcResult dtm_nvrtc_result;
typedef nvrtcProgram dtm_nvrtc_program;
typedef cublasStatus_t dtm_cublas_status;
typedef cublasComputeType_t dtm_cublas_compute;
typedef cudaDataType dtm_cublas_type;
typedef cublasLtMatmulDescAttributes_t dtm_cublas_desc_attribute;
typedef cublasLtMatrixLayoutAttribute_t dtm_cublas_layout_attribute;
typedef cublasLtMatmulPreferenceAttributes_t dtm_cublas_preference_attribute;
typedef cublasLtHandle_t dtm_cublas_handle;
typedef cublasLtMatmulDesc_t dtm_cublas_desc;
typedef cublasLtMatrixLayout_t dtm_cublas_layout;
typedef cublasLtMatmulPreference_t dtm_cublas_preference;
typedef cublasLtMatmulAlgo_t dtm_cublas_algorithm;
typedef cublasLtMatmulHeuristicResult_t dtm_cublas_heuristic;
typedef ncclResult_t dtm_nccl_result;
typedef ncclDataType_t dtm_nccl_type;
typedef ncclRedOp_t dtm_nccl_op;
typedef ncclComm_t dtm_nccl_comm;
typedef ncclWindow_t dtm_nccl_window;
typedef ncclUniqueId dtm_nccl_id;
typedef ncclConfig_t dtm_nccl_config;
#include "runtime/cuda/abi.h"

#define SAME(ours, theirs, text) _Static_assert(__builtin_types_compatible_p(ours, theirs), text)

SAME(dtm_cu_get_address, PFN_cuGetProcAddress_v12000, "cuGetProcAddress");
#define DRIVER(name, since, parameters)                                                                                \
    SAME(__typeof__(((dtm_driver *)0)->name), PFN_cu##name##_v##since, "cu" #name);
DTM_DRIVER_FUNCTIONS(DRIVER)
#define NVRTC(name, result, parameters) SAME(__typeof__(((dtm_nvrtc *)0)->name), __typeof__(&nvrtc##name), "nvrtc" #name);
DTM_NVRTC_FUNCTIONS(NVRTC)
#define CUBLASLT(name, result, parameters)                                                                             \
    SAME(__typeof__(((dtm_cublaslt *)0)->name), __typeof__(&cublasLt##name), "cublasLt" #name);
DTM_CUBLASLT_FUNCTIONS(CUBLASLT)
#define NCCL(name, result, parameters) SAME(__typeof__(((dtm_nccl *)0)->name), __typeof__(&nccl##name), "nccl" #name);
DTM_NCCL_FUNCTIONS(NCCL)
#if NCCL_VERSION_CODE >= 22800
DTM_NCCL_NEWER(NCCL)
#endif
