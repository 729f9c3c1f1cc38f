/* The calling convention of compute kernels on the CPU: what code generation emits and what the runtime calls.
 *
 * A kernel is a function over an outer iteration space [0, extent). The runtime cuts that space into parts and calls
 * the kernel once a part, from the threads of its pool, in any order and at the same time:
 *
 *     extent = 12     thread 0: kernel(args, 0, 4)   thread 1: kernel(args, 4, 8)   thread 0: kernel(args, 8, 12)
 *
 * What a kernel promises:
 *   - Parts write disjoint memory, and read nothing that another part writes. No locks, no global state.
 *   - begin == end does nothing. Sizes of 0 are legal everywhere.
 *   - Every output element is computed in an order of its own, the same whatever the cut: the same bits for any number
 *     of threads. (Two instruction sets may differ in the last place.)
 *   - It writes all of its outputs: no buffer has to be cleared before, unless its comment says that it adds.
 *   - Inputs and outputs do not overlap, unless its comment allows it.
 *
 * What the caller promises:
 *   - The same args, but for `scratch`, for all parts of one call.
 *   - `scratch` is private to the thread during the call, aligned to 64 bytes, of at least the bytes the kernel's
 *     companion `NAME_scratch_bytes(sizes)` says; its contents are neither kept nor cleared. NULL where that says 0.
 *   - Tensors are aligned to their element; aligned to 64 bytes they are faster.
 *   - Floating point in the default environment: rounding to nearest. Flushing of subnormals may be on or off.
 *
 * Kernels of the library have three functions each (NAME is, say, dtm_attention_forward):
 *
 *     void    NAME(const dtm_kernel_args *args, int64_t begin, int64_t end);
 *     int64_t NAME_extent(const int64_t *sizes);           units of the outer space
 *     int64_t NAME_scratch_bytes(const int64_t *sizes);    for one thread
 *
 * `sizes` of a kernel of the library is a struct of int64_t only (dtm_attention_sizes, ...), so that code generation
 * fills it by name and a plan stores it as plain integers: (const int64_t *)&the_struct. Its `buffers` are indexed by
 * an enum beside the kernel. Sizes and strides are in elements, of the local block; what depends on the rank (offsets
 * of a block in the whole tensor) is a size like any other, so one compiled kernel serves all ranks.
 *
 * Everything under kernels/cpu is a header of static functions: included by a generated file that is compiled once per
 * instruction set (x86-64, x86-64-v3, x86-64-v4). Compile with
 *
 *     -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fopenmp-simd
 *
 * and never with -ffast-math: infinities and NaN are meant. (-fopenmp-simd needs no OpenMP at run time.)
 * Names end in nothing for f32; variants for other types will append theirs (dtm_attention_forward_bf16).
 */
#ifndef DTM_KERNELS_KERNEL_H
#define DTM_KERNELS_KERNEL_H

#include <stdint.h>

typedef struct dtm_kernel_args {
    void *const *buffers;  /* tensors, in the order of the kernel's enum; not NULL unless its comment allows it */
    const int64_t *sizes;  /* the kernel's dtm_NAME_sizes, or what generated code agreed on with itself */
    const double *numbers; /* scalars known only at run time: learning rate, loss scale, ... */
    void *scratch;         /* this thread's workspace */
    int64_t *error; /* NULL, or a word that holds DTM_KERNEL_OK until a kernel finds a bad input: dtm_kernel_report */
} dtm_kernel_args;

typedef void dtm_kernel(const dtm_kernel_args *args, int64_t begin, int64_t end);

/* Bytes the runtime aligns buffers and scratch to: a cache line, and the widest vector. */
#define DTM_KERNEL_ALIGN 64

/* The error word of a step: INT64_MAX while all is well, else the least element index that was reported. Taking the
 * least makes the message the same whatever threads found it first. Reset it by storing DTM_KERNEL_OK between calls. */
#define DTM_KERNEL_OK INT64_MAX

/* Reports that the input element `index` (flat, in the local block of the buffer the kernel's comment names) is bad. */
static inline void dtm_kernel_report(const dtm_kernel_args *args, int64_t index) {
    if (!args->error) return;
    int64_t seen = __atomic_load_n(args->error, __ATOMIC_RELAXED);
    while (index < seen)
        if (__atomic_compare_exchange_n(args->error, &seen, index, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
}

/* Takes `bytes` from a scratch workspace, rounded up to whole lines; advances *scratch. */
static inline void *dtm_scratch_take(void **scratch, int64_t bytes) {
    char *at = *scratch;
    *scratch = at + (bytes + DTM_KERNEL_ALIGN - 1) / DTM_KERNEL_ALIGN * DTM_KERNEL_ALIGN;
    return at;
}

/* Bytes dtm_scratch_take uses up for `bytes`. */
static inline int64_t dtm_scratch_round(int64_t bytes) {
    return (bytes + DTM_KERNEL_ALIGN - 1) / DTM_KERNEL_ALIGN * DTM_KERNEL_ALIGN;
}

#endif
