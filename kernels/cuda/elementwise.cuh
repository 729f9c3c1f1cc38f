/* The skeleton of fused elementwise kernels. A body computes W elements from the flat index `first` on:
 *
 *     struct body {
 *         const dtm_bf16 *x;  dtm_bf16 *y;
 *         template <int W> __device__ void at(dtm_i64 first) const {
 *             float v[W];
 *             dtm_load<W>(v, x + first);  ..  dtm_store<W>(y + first, v);
 *         }
 *     };
 *
 * It is called with W = width, the greatest that makes 16 bytes of the widest type, while there is so much, and with W = 1 for
 * what is left at the end. A body that updates in place reads all that it writes before it writes. */
#include "kernels/cuda/prelude.cuh"

#ifndef DTM_CUDA_ELEMENTWISE
#define DTM_CUDA_ELEMENTWISE

/* Any grid: threads go on by the size of it. Buffers begin at a multiple of 16 bytes. */
template <int width, class Body> DTM_DEVICE void dtm_each(dtm_i64 count, const Body &body) {
    dtm_i64 vectors = count / width, all = (dtm_i64)gridDim.x * blockDim.x;
    dtm_i64 self = (dtm_i64)blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll 1 /* other warps hide the wait; more registers would leave fewer of them */
    for (dtm_i64 v = self; v < vectors; v += all) body.template at<width>(v * width);
    if (width > 1 && self < count - vectors * width) body.template at<1>(vectors * width + self);
}

#endif
