/* The entries of kernels that a plan launches (dtm_plan_cuda_kernel): one parameter by value, the tuples of the launch. A tuple is
 * what the kernel is run on once: buffers, its own scratch, sizes. blockIdx.y is the tuple; as all tuples have the grid of the
 * largest, a block that is beyond its own tuple's extent returns.
 *
 *     DTM_ENTRY(rope, 256, 3, 2, 1) { dtm_begin(p.mark); const auto &t = p.t[blockIdx.y]; .. t.b[0], t.z[1], p.error .. }
 *
 * The first that it does is to say that it has begun.
 */
#include "kernels/cuda/prelude.cuh"

#ifndef DTM_CUDA_ENTRY
#define DTM_CUDA_ENTRY

#pragma nv_diag_suppress 177, 550 /* what a text that dtmc writes has no use for */

template <int buffers, int sizes> struct dtm_tuple {
    void *b[buffers];
    void *scratch; /* NULL: none was asked for */
    dtm_i64 z[sizes ? sizes : 1];
};

/* At most 4,000 bytes. */
template <int buffers, int sizes, int tuples> struct dtm_tuples {
    static_assert(sizeof(dtm_tuple<buffers, sizes>) * tuples <= 4000 - sizeof(void *) - sizeof(dtm_mark), "parameters of a launch");
    dtm_tuple<buffers, sizes> t[tuples];
    dtm_u64 *error;
    dtm_mark mark;
};

#define DTM_ENTRY(name, threads, buffers, sizes, tuples)                                                               \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ dtm_tuples<buffers, sizes, tuples> p)

/* Reports that the input element `index` is bad: the word keeps the least (dtm_kernel_report of kernels/kernel.h). */
DTM_DEVICE void dtm_report(dtm_u64 *error, dtm_i64 index) {
    if (error) atomicMin(error, (dtm_u64)index);
}

/* ceil(a / b), a >= 0. */
DTM_DEVICE dtm_i64 dtm_ceil(dtm_i64 a, dtm_i64 b) { return (a + b - 1) / b; }

#endif
