/* runtime/cuda/abi.h against the toolkit's headers: numbers, sizes and offsets. The signatures are compared by
 * abi_signatures.c. Says that it was skipped (77) where there are no headers. */
#include "runtime/cuda/abi.h"

#include <stdio.h>

#ifdef DTM_TOOLKIT
#include <cublasLt.h>
#include <cuda.h>
#include <nccl.h>
#include <nvrtc.h>

static int failures, checks;

static void equal(const char *what, long long ours, long long theirs) {
    checks++;
    if (ours == theirs) return;
    failures++;
    printf("%s is %lld, the headers have %lld\n", what, ours, theirs);
}

#define SIZE(ours, theirs) equal("sizeof " #ours, sizeof(ours), sizeof(theirs)); \
    equal("alignof " #ours, _Alignof(ours) % _Alignof(theirs), 0)
#define OFFSET(ours, a, theirs, b) equal(#ours "." #a, offsetof(ours, a), offsetof(theirs, b))

static void numbers(void) {
#define NUMBER(ours, theirs, value) equal(#ours, ours, (long long)theirs);
    DTM_CUDA_NUMBERS(NUMBER)
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    equal("DTM_NCCL_CONFIG_MAGIC", DTM_NCCL_CONFIG_MAGIC, config.magic);
}

static void types(void) {
    SIZE(dtm_cu_device, CUdevice);
    SIZE(dtm_cu_pointer, CUdeviceptr);
    SIZE(dtm_cu_allocation, CUmemGenericAllocationHandle);
    SIZE(dtm_cu_result, CUresult);
    SIZE(dtm_cu_attribute, CUdevice_attribute);
    SIZE(dtm_cu_stream, CUstream);
    SIZE(dtm_cu_uuid, CUuuid);
    SIZE(dtm_cu_location, CUmemLocation);
    SIZE(dtm_cu_access, CUmemAccessDesc);
    SIZE(dtm_cu_tensor_map, CUtensorMap);
    SIZE(dtm_nccl_id, ncclUniqueId);
    SIZE(dtm_cublas_algorithm, cublasLtMatmulAlgo_t);
    OFFSET(dtm_cu_access, flags, CUmemAccessDesc, flags);
    OFFSET(dtm_cu_location, id, CUmemLocation, id);
}

static void allocation(void) {
    SIZE(dtm_cu_allocation_properties, CUmemAllocationProp);
    OFFSET(dtm_cu_allocation_properties, handle_types, CUmemAllocationProp, requestedHandleTypes);
    OFFSET(dtm_cu_allocation_properties, location, CUmemAllocationProp, location);
    OFFSET(dtm_cu_allocation_properties, windows, CUmemAllocationProp, win32HandleMetaData);
    OFFSET(dtm_cu_allocation_properties, compression, CUmemAllocationProp, allocFlags.compressionType);
    OFFSET(dtm_cu_allocation_properties, gpu_direct_rdma, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
    OFFSET(dtm_cu_allocation_properties, usage, CUmemAllocationProp, allocFlags.usage);
}

static void copy(void) {
    SIZE(dtm_cu_copy_2d, CUDA_MEMCPY2D);
    OFFSET(dtm_cu_copy_2d, source_x, CUDA_MEMCPY2D, srcXInBytes);
    OFFSET(dtm_cu_copy_2d, source_y, CUDA_MEMCPY2D, srcY);
    OFFSET(dtm_cu_copy_2d, source_kind, CUDA_MEMCPY2D, srcMemoryType);
    OFFSET(dtm_cu_copy_2d, source_host, CUDA_MEMCPY2D, srcHost);
    OFFSET(dtm_cu_copy_2d, source_device, CUDA_MEMCPY2D, srcDevice);
    OFFSET(dtm_cu_copy_2d, source_array, CUDA_MEMCPY2D, srcArray);
    OFFSET(dtm_cu_copy_2d, source_pitch, CUDA_MEMCPY2D, srcPitch);
    OFFSET(dtm_cu_copy_2d, target_x, CUDA_MEMCPY2D, dstXInBytes);
    OFFSET(dtm_cu_copy_2d, target_y, CUDA_MEMCPY2D, dstY);
    OFFSET(dtm_cu_copy_2d, target_kind, CUDA_MEMCPY2D, dstMemoryType);
    OFFSET(dtm_cu_copy_2d, target_host, CUDA_MEMCPY2D, dstHost);
    OFFSET(dtm_cu_copy_2d, target_device, CUDA_MEMCPY2D, dstDevice);
    OFFSET(dtm_cu_copy_2d, target_array, CUDA_MEMCPY2D, dstArray);
    OFFSET(dtm_cu_copy_2d, target_pitch, CUDA_MEMCPY2D, dstPitch);
    OFFSET(dtm_cu_copy_2d, width, CUDA_MEMCPY2D, WidthInBytes);
    OFFSET(dtm_cu_copy_2d, height, CUDA_MEMCPY2D, Height);
}

static void launch(void) {
    SIZE(dtm_cu_launch, CUlaunchConfig);
    OFFSET(dtm_cu_launch, grid, CUlaunchConfig, gridDimX);
    OFFSET(dtm_cu_launch, grid[2], CUlaunchConfig, gridDimZ);
    OFFSET(dtm_cu_launch, block, CUlaunchConfig, blockDimX);
    OFFSET(dtm_cu_launch, block[2], CUlaunchConfig, blockDimZ);
    OFFSET(dtm_cu_launch, shared_bytes, CUlaunchConfig, sharedMemBytes);
    OFFSET(dtm_cu_launch, stream, CUlaunchConfig, hStream);
    OFFSET(dtm_cu_launch, attributes, CUlaunchConfig, attrs);
    OFFSET(dtm_cu_launch, n_attributes, CUlaunchConfig, numAttrs);
    SIZE(dtm_cu_launch_attribute, CUlaunchAttribute);
    OFFSET(dtm_cu_launch_attribute, id, CUlaunchAttribute, id);
    OFFSET(dtm_cu_launch_attribute, value, CUlaunchAttribute, value);
    OFFSET(dtm_cu_launch_attribute, value.cluster, CUlaunchAttribute, value.clusterDim);
    OFFSET(dtm_cu_launch_attribute, value.number, CUlaunchAttribute, value.priority);
}

static void heuristic(void) {
    SIZE(dtm_cublas_heuristic, cublasLtMatmulHeuristicResult_t);
    OFFSET(dtm_cublas_heuristic, workspace_bytes, cublasLtMatmulHeuristicResult_t, workspaceSize);
    OFFSET(dtm_cublas_heuristic, state, cublasLtMatmulHeuristicResult_t, state);
    OFFSET(dtm_cublas_heuristic, waves, cublasLtMatmulHeuristicResult_t, wavesCount);
    OFFSET(dtm_cublas_heuristic, reserved, cublasLtMatmulHeuristicResult_t, reserved);
}

/* Fields are appended from version to version: of another NCCL those that both have. */
static void config(void) {
    OFFSET(dtm_nccl_config, size, ncclConfig_t, size);
    OFFSET(dtm_nccl_config, magic, ncclConfig_t, magic);
    OFFSET(dtm_nccl_config, version, ncclConfig_t, version);
    OFFSET(dtm_nccl_config, blocking, ncclConfig_t, blocking);
    OFFSET(dtm_nccl_config, cga_cluster, ncclConfig_t, cgaClusterSize);
    OFFSET(dtm_nccl_config, min_ctas, ncclConfig_t, minCTAs);
    OFFSET(dtm_nccl_config, max_ctas, ncclConfig_t, maxCTAs);
    OFFSET(dtm_nccl_config, net, ncclConfig_t, netName);
    OFFSET(dtm_nccl_config, split_share, ncclConfig_t, splitShare);
#if NCCL_VERSION_CODE >= 22800
    OFFSET(dtm_nccl_config, traffic_class, ncclConfig_t, trafficClass);
    OFFSET(dtm_nccl_config, name, ncclConfig_t, commName);
    OFFSET(dtm_nccl_config, collnet, ncclConfig_t, collnetEnable);
    OFFSET(dtm_nccl_config, cta_policy, ncclConfig_t, CTAPolicy);
    OFFSET(dtm_nccl_config, shrink_share, ncclConfig_t, shrinkShare);
    OFFSET(dtm_nccl_config, nvls_ctas, ncclConfig_t, nvlsCTAs);
    OFFSET(dtm_nccl_config, channels_per_peer, ncclConfig_t, nChannelsPerNetPeer);
    OFFSET(dtm_nccl_config, nvlink_centric, ncclConfig_t, nvlinkCentricSched);
#endif
#if NCCL_VERSION_CODE / 100 == 228
    SIZE(dtm_nccl_config, ncclConfig_t);
#endif
}

int main(void) {
    numbers();
    types();
    allocation();
    copy();
    launch();
    heuristic();
    config();
    printf("%d numbers, sizes and offsets compared with CUDA %d.%d and NCCL %d\n", checks, CUDA_VERSION / 1000,
           CUDA_VERSION % 1000 / 10, NCCL_VERSION_CODE);
    return failures > 0;
}
#else
int main(void) {
    puts("skipped: there are no headers of CUDA, cuBLASLt, NVRTC and NCCL to compare with");
    return 77;
}
#endif
