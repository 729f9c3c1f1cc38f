/* What CUDA C lacks without headers, for all kernels: types of storage and their conversions, accesses of 16 bytes, sums and
 * maxima over a warp and a block in a fixed order, asynchronous copies, and the tensor cores. NVRTC finds no header, so what is
 * neither C++ nor known to the compiler itself stands here as inline PTX. Everything is for sm_80 and newer.
 *
 * Storage is bf16, f16 or f32; arithmetic is f32. Conversions round to nearest even and keep NaN and infinities; a number too
 * large for f16 becomes an infinity. No atomics on floating-point numbers, and no double precision, are used here. */
#ifndef DTM_CUDA_PRELUDE
#define DTM_CUDA_PRELUDE

typedef unsigned short dtm_u16;
typedef unsigned int dtm_u32;
typedef unsigned long long dtm_u64;
typedef long long dtm_i64;

#define DTM_DEVICE static __device__ __forceinline__

constexpr dtm_u32 dtm_all_lanes = 0xffffffffu;
constexpr float dtm_log2_e = 1.4426950408889634f;
constexpr float dtm_ln_2 = 0.6931471805599453f;

DTM_DEVICE float dtm_infinity() { return __uint_as_float(0x7f800000u); }

/* ---- how far a step has come ---- */

/* A word of the host's memory, and the number that it holds once the launch has begun: what is told by a launch that fails, after which nothing
 * of the device's memory can be read. */
struct dtm_mark {
    dtm_u32 *at;
    dtm_u32 number;
};

/* One thread's store, for which nothing waits. */
DTM_DEVICE void dtm_begin(const dtm_mark &mark) {
    if ((threadIdx.x | blockIdx.x | blockIdx.y | blockIdx.z) == 0)
        asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(mark.at)), "r"(mark.number));
}

/* ---- types of storage ---- */

struct dtm_bf16 {
    dtm_u16 bits;
};
struct dtm_f16 {
    dtm_u16 bits;
};

DTM_DEVICE float dtm_load_f32(float x) { return x; }
/* bf16 is the upper half of f32, exactly (cvt.f32.bf16 is of sm_90). */
DTM_DEVICE float dtm_load_f32(dtm_bf16 x) { return __uint_as_float((dtm_u32)x.bits << 16); }
DTM_DEVICE float dtm_load_f32(dtm_f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

template <class T> DTM_DEVICE T dtm_store_f32(float x);
template <> __device__ __forceinline__ float dtm_store_f32<float>(float x) { return x; }
template <> __device__ __forceinline__ dtm_bf16 dtm_store_f32<dtm_bf16>(float x) {
    dtm_bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
template <> __device__ __forceinline__ dtm_f16 dtm_store_f32<dtm_f16>(float x) {
    dtm_f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

/* Two in a register, the first in its lower half: an operand of the tensor cores. */
template <class T> DTM_DEVICE dtm_u32 dtm_pair(float first, float second);
template <> __device__ __forceinline__ dtm_u32 dtm_pair<dtm_bf16>(float first, float second) {
    dtm_u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
template <> __device__ __forceinline__ dtm_u32 dtm_pair<dtm_f16>(float first, float second) {
    dtm_u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

/* f32 rounded to the 10 bits of mantissa that tensor cores take, nearest, halves away from zero. */
DTM_DEVICE dtm_u32 dtm_tf32(float x) {
    dtm_u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

/* ---- vectors: N elements at a multiple of their size, 16 bytes where N * sizeof(T) is 16 ---- */

template <class T, int N> struct alignas(sizeof(T) * N) dtm_vector {
    T x[N];
};

template <int bytes> struct dtm_access;
template <> struct dtm_access<16> {
    static __device__ __forceinline__ void load(void *to, const void *from) { *(uint4 *)to = *(const uint4 *)from; }
    /* What no thread of the launch writes, and nobody reads again soon: not for an operand that is updated in place. */
    static __device__ __forceinline__ void load_once(void *to, const void *from) {
        uint4 &v = *(uint4 *)to;
        asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
            : "l"(__cvta_generic_to_global(from)));
    }
    static __device__ __forceinline__ void store(void *to, const void *from) { *(uint4 *)to = *(const uint4 *)from; }
};
template <> struct dtm_access<8> {
    static __device__ __forceinline__ void load(void *to, const void *from) { *(uint2 *)to = *(const uint2 *)from; }
    static __device__ __forceinline__ void load_once(void *to, const void *from) { load(to, from); }
    static __device__ __forceinline__ void store(void *to, const void *from) { *(uint2 *)to = *(const uint2 *)from; }
};
template <> struct dtm_access<4> {
    static __device__ __forceinline__ void load(void *to, const void *from) { *(dtm_u32 *)to = *(const dtm_u32 *)from; }
    static __device__ __forceinline__ void load_once(void *to, const void *from) { load(to, from); }
    static __device__ __forceinline__ void store(void *to, const void *from) { *(dtm_u32 *)to = *(const dtm_u32 *)from; }
};
template <> struct dtm_access<2> {
    static __device__ __forceinline__ void load(void *to, const void *from) { *(dtm_u16 *)to = *(const dtm_u16 *)from; }
    static __device__ __forceinline__ void load_once(void *to, const void *from) { load(to, from); }
    static __device__ __forceinline__ void store(void *to, const void *from) { *(dtm_u16 *)to = *(const dtm_u16 *)from; }
};

template <> struct dtm_access<1> {
    static __device__ __forceinline__ void load(void *to, const void *from) { *(unsigned char *)to = *(const unsigned char *)from; }
    static __device__ __forceinline__ void load_once(void *to, const void *from) { load(to, from); }
    static __device__ __forceinline__ void store(void *to, const void *from) { *(unsigned char *)to = *(const unsigned char *)from; }
};

/* N elements from `from` on as f32. */
template <int N, class T> DTM_DEVICE void dtm_load(float out[N], const T *from) {
    dtm_vector<T, N> v;
    dtm_access<sizeof(T) * N>::load(&v, from);
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = dtm_load_f32(v.x[i]);
}
template <int N, class T> DTM_DEVICE void dtm_load_once(float out[N], const T *from) {
    dtm_vector<T, N> v;
    dtm_access<sizeof(T) * N>::load_once(&v, from);
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = dtm_load_f32(v.x[i]);
}
template <int N, class T> DTM_DEVICE void dtm_store(T *to, const float in[N]) {
    dtm_vector<T, N> v;
#pragma unroll
    for (int i = 0; i < N; i++) v.x[i] = dtm_store_f32<T>(in[i]);
    dtm_access<sizeof(T) * N>::store(to, &v);
}

/* ---- functions ---- */

/* 2^x and log2(x) of the special function unit, denormals kept: errors of 2 units in the last place, and 2^-22. */
DTM_DEVICE float dtm_exp2(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DTM_DEVICE float dtm_log2(float x) {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The larger, or NaN if either is: fmaxf would lose it. */
DTM_DEVICE float dtm_max(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

/* ---- sums and maxima ---- */

struct dtm_sum {
    static __device__ __forceinline__ float join(float a, float b) { return a + b; }
    static __device__ __forceinline__ float none() { return 0; }
};
struct dtm_maximum {
    static __device__ __forceinline__ float join(float a, float b) { return dtm_max(a, b); }
    static __device__ __forceinline__ float none() { return -dtm_infinity(); }
};

/* Over the lanes of a warp, all of which call it; each has the result, the same bits (join commutes). */
template <class Op> DTM_DEVICE float dtm_warp_reduce(float x) {
#pragma unroll
    for (int step = 16; step; step /= 2) x = Op::join(x, __shfl_xor_sync(dtm_all_lanes, x, step));
    return x;
}

/* Over a block of `threads`, a multiple of 32 up to 1024, all of which call it. Each has the result. `scratch` is of one float a
 * warp, in shared memory, and free again when the block passes its next barrier. */
template <class Op, int threads> DTM_DEVICE float dtm_block_reduce(float x, float *scratch) {
    constexpr int warps = threads / 32;
    static_assert(threads % 32 == 0 && warps >= 1 && warps <= 32, "threads of a block");
    x = dtm_warp_reduce<Op>(x);
    if (warps == 1) return x;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = lane < warps ? scratch[lane] : Op::none();
    return dtm_warp_reduce<Op>(x);
}

/* ---- copies from global to shared memory that go on by themselves ---- */

DTM_DEVICE dtm_u32 dtm_shared_address(const void *at) { return (dtm_u32)__cvta_generic_to_shared(at); }

/* 16 bytes; `bytes` of them from global memory, 0 or 16, zeros for the rest. */
DTM_DEVICE void dtm_copy_16(void *to_shared, const void *from_global, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dtm_shared_address(to_shared)),
                 "l"(__cvta_generic_to_global(from_global)), "r"(bytes)
                 : "memory");
}
DTM_DEVICE void dtm_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Until at most `groups` of this thread's groups are under way. Other threads' copies are there after a barrier. */
template <int groups> DTM_DEVICE void dtm_copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory"); }

/* ---- tensor cores ---- */

/* Four 8 x 8 matrices of 16-bit elements from shared memory: lane i gives the address of row i % 8 of matrix i / 8, at a
 * multiple of 16 bytes, and gets of matrix m, in out[m], elements 2 * (i % 4) and the next of row i / 4. */
DTM_DEVICE void dtm_load_matrices(dtm_u32 out[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(dtm_shared_address(row))
                 : "memory");
}
/* The same of the transposed matrices. */
DTM_DEVICE void dtm_load_transposed(dtm_u32 out[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(dtm_shared_address(row))
                 : "memory");
}

/* c[16, 8] += a[16, 16] b[16, 8], sums in f32. Lane i has, with g = i / 4 and t = i % 4,
 *     a[0]  row g,     columns 2t, 2t + 1        b[0]  rows 2t, 2t + 1, column g        c[0], c[1]  row g,     columns 2t, 2t + 1
 *     a[1]  row g + 8, columns 2t, 2t + 1        b[1]  the same, rows + 8               c[2], c[3]  row g + 8, columns 2t, 2t + 1
 *     a[2], a[3]  as a[0], a[1], columns + 8 */
template <class T> DTM_DEVICE void dtm_multiply(float c[4], const dtm_u32 a[4], const dtm_u32 b[2]);
template <> __device__ __forceinline__ void dtm_multiply<dtm_bf16>(float c[4], const dtm_u32 a[4], const dtm_u32 b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <> __device__ __forceinline__ void dtm_multiply<dtm_f16>(float c[4], const dtm_u32 a[4], const dtm_u32 b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* c[16, 8] += a[16, 8] b[8, 8] of tf32: a[0] row g, column t; a[1] row g + 8; a[2], a[3] the same, columns + 4; b[0] row t, column g;
 * b[1] row t + 4. */
DTM_DEVICE void dtm_multiply_tf32(float c[4], const dtm_u32 a[4], const dtm_u32 b[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif
