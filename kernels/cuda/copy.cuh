/* The runtime's own program of strided copies: an entry for each size of a unit, in bytes. Any grid of blocks of 256. */
#include "kernels/cuda/box.cuh"

#ifndef DTM_CUDA_COPY
#define DTM_CUDA_COPY

#define DTM_COPY_ENTRY(bytes, type)                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) dtm_copy_box_##bytes(const __grid_constant__ dtm_box_copy p) {   \
        dtm_begin(p.mark);                                                                                             \
        dtm_copy<type>(p);                                                                                             \
    }
DTM_COPY_ENTRY(1, unsigned char)
DTM_COPY_ENTRY(2, dtm_u16)
DTM_COPY_ENTRY(4, dtm_u32)
DTM_COPY_ENTRY(8, uint2)
DTM_COPY_ENTRY(16, uint4)
#undef DTM_COPY_ENTRY

#endif
