/* Elementwise mathematics for generated kernels: the formulae of kernels/cpu/prelude.h, function by function, but for exp. No tables;
 * infinities, NaN and subnormals as in C's functions of the same names. NVRTC joins no product to a sum (runtime/cuda/jit_entry.c): where
 * one rounding is meant there is fmaf. Errors are the largest that cuda/functions finds. */
#include "kernels/cuda/types.cuh"

#ifndef DTM_CUDA_FUNCTIONS
#define DTM_CUDA_FUNCTIONS

/* 2^k for k in [-126, 127]. */
DTM_DEVICE float dtm_power_of_two(int32_t k) {
    return dtm_from_bits((int32_t)((uint32_t)(k + 127) << 23));
}
/* The magnitude of a with the sign of s. */
DTM_DEVICE float dtm_signed(float a, float s) {
    return dtm_from_bits((dtm_bits(a) & 0x7fffffff) | (dtm_bits(s) & (int32_t)0x80000000));
}
/* a or b, the other if one is NaN (b) or both equal (b). NaN in b stays: pass what may be NaN as b. */
DTM_DEVICE float dtm_less(float a, float b) {
    return a < b ? a : b;
}
DTM_DEVICE float dtm_more(float a, float b) {
    return a > b ? a : b;
}

/* exp: 4.5 ulp, subnormal results to one subnormal step. 2^(x log2 e) by the special function unit, and what the product and log2 e
 * lost in rounding: a fifth of the instructions of the CPU's polynomial, without which kernels of it would not wait for memory. */
DTM_DEVICE float dtm_exp(float x) {
    x = dtm_more(-104.0f, x);
    x = dtm_less(89.0f, x);
    const float n = x * 1.44269502f;
    const float lost = fmaf(x, 1.92596303e-8f, fmaf(x, 1.44269502f, -n));
    return dtm_exp2(n) * fmaf(lost, 0.693147182f, 1.0f);
}

/* log: 0.8 ulp. x = 2^e m, m in [sqrt 1/2, sqrt 2); Cephes' polynomial of m - 1. */
DTM_DEVICE float dtm_log(float x) {
    const int small = x < 1.17549435e-38f; /* subnormals are scaled up first */
    const float scaled = small ? x * 8388608.0f : x;
    const int32_t bits = (int32_t)((uint32_t)dtm_bits(scaled) - 0x3F3504F3u); /* bits of sqrt 1/2 */
    const float e = (float)(bits >> 23) - (small ? 23.0f : 0.0f);
    const float f = dtm_from_bits((bits & 0x007FFFFF) + 0x3F3504F3) - 1.0f;
    float p = 7.0376836292e-2f;
    p = fmaf(p, f, -1.1514610310e-1f);
    p = fmaf(p, f, 1.1676998740e-1f);
    p = fmaf(p, f, -1.2420140846e-1f);
    p = fmaf(p, f, 1.4249322787e-1f);
    p = fmaf(p, f, -1.6668057665e-1f);
    p = fmaf(p, f, 2.0000714765e-1f);
    p = fmaf(p, f, -2.4999993993e-1f);
    p = fmaf(p, f, 3.3333331174e-1f);
    const float square = f * f;
    float y = fmaf(f * square, p, e * -2.12194440e-4f);
    y = fmaf(e, 0.693359375f, fmaf(-0.5f, square, y) + f);
    y = x < INFINITY ? y : x; /* inf, NaN */
    y = x == 0.0f ? -INFINITY : y;
    return x < 0.0f ? NAN : y;
}

/* erf: 1.1 ulp. A polynomial near 0, else 1 - exp of a polynomial (N. Juffa's coefficients). */
DTM_DEVICE float dtm_erf(float x) {
    const float s = x * x;
    const float t = dtm_less(4.0f, dtm_from_bits(dtm_bits(x) & 0x7fffffff)); /* erf(4) is 1; NaN stays */
    float far = fmaf(-1.72853470e-5f, t, 3.83197126e-4f);
    far = fmaf(far, t * t, fmaf(-3.88396438e-3f, t, 2.42546219e-2f));
    far = fmaf(far, t, -1.06777877e-1f);
    far = fmaf(far, t, -6.34846687e-1f);
    far = fmaf(far, t, -1.28717512e-1f);
    far = 1.0f - dtm_exp(fmaf(far, t, -t));
    float near = -5.96761703e-4f;
    near = fmaf(near, s, 4.99119423e-3f);
    near = fmaf(near, s, -2.67681349e-2f);
    near = fmaf(near, s, 1.12819925e-1f);
    near = fmaf(near, s, -3.76125336e-1f);
    near = fmaf(near, s, 1.28379166e-1f);
    near = fmaf(near, x, x);
    return t > 0.927734375f ? dtm_signed(far, x) : near;
}

/* sigmoid: 2.4 ulp, down to subnormal results. */
DTM_DEVICE float dtm_sigmoid(float x) {
    const float e = dtm_exp(-dtm_from_bits(dtm_bits(x) & 0x7fffffff));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* tanh: 1.4 ulp. Cephes' polynomial near 0, else 1 - 2 / (exp 2|x| + 1). */
DTM_DEVICE float dtm_tanh(float x) {
    const float s = x * x;
    float near = -5.70498872745e-3f;
    near = fmaf(near, s, 2.06390887954e-2f);
    near = fmaf(near, s, -5.37397155531e-2f);
    near = fmaf(near, s, 1.33314422036e-1f);
    near = fmaf(near, s, -3.33332819422e-1f);
    near = fmaf(near * s, x, x);
    const float a = dtm_from_bits(dtm_bits(x) & 0x7fffffff);
    const float far = 1.0f - 2.0f / (dtm_exp(2.0f * a) + 1.0f);
    return a < 0.625f ? near : dtm_signed(far, x);
}

/* 1.5 ulp */
DTM_DEVICE float dtm_rsqrt(float x) {
    return 1.0f / sqrtf(x);
}
DTM_DEVICE float dtm_relu(float x) {
    return dtm_more(0.0f, x);
}

/* silu: x sigmoid(x), 3 ulp. The bound keeps -inf times 0 away: the limit is -0. */
DTM_DEVICE float dtm_silu(float x) {
    return dtm_more(-200.0f, x) * dtm_sigmoid(x);
}

/* gelu, exact: x (1 + erf(x / sqrt 2)) / 2: 2.6 ulp for x >= -1, below that 5e-7 absolute. */
DTM_DEVICE float dtm_gelu(float x) {
    return 0.5f * dtm_more(-15.0f, x) * (1.0f + dtm_erf(x * 0.707106781f));
}

/* gelu by tanh: x (1 + tanh u) / 2 = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): 2.9 ulp for x >= -1, 35 for
 * x >= -5, where the argument's rounding shows. */
DTM_DEVICE float dtm_gelu_tanh(float x) {
    const float b = dtm_more(-200.0f, x);
    return b * dtm_sigmoid(1.59576912f * fmaf(0.044715f * b * b, b, b));
}

/* softplus: 1.9 ulp. max(x, 0) + log(1 + e), e = exp -|x|. What u = 1 + e rounds away of e comes back as e - (u - 1). */
DTM_DEVICE float dtm_softplus(float x) {
    const float e = dtm_exp(-dtm_from_bits(dtm_bits(x) & 0x7fffffff)), u = 1.0f + e;
    return dtm_more(0.0f, x) + (dtm_log(u) + (e - (u - 1.0f)) / u);
}

/* Derivatives. Of tanh and sigmoid by the result y, else by the argument x; within 2e-6 absolute. */
DTM_DEVICE float dtm_tanh_slope(float y) {
    return fmaf(-y, y, 1.0f);
}
DTM_DEVICE float dtm_sigmoid_slope(float y) {
    return y * (1.0f - y);
}
DTM_DEVICE float dtm_erf_slope(float x) {
    return 1.12837917f * dtm_exp(-x * x);
}
DTM_DEVICE float dtm_silu_slope(float x) {
    const float s = dtm_sigmoid(x), b = dtm_less(200.0f, dtm_more(-200.0f, x));
    return fmaf(b, s * (1.0f - s), s);
}
DTM_DEVICE float dtm_gelu_slope(float x) {
    const float b = dtm_less(15.0f, dtm_more(-15.0f, x));
    return fmaf(b, 0.398942280f * dtm_exp(-0.5f * b * b), 0.5f * (1.0f + dtm_erf(x * 0.707106781f)));
}
DTM_DEVICE float dtm_gelu_tanh_slope(float x) {
    const float b = dtm_less(200.0f, dtm_more(-200.0f, x)), s = dtm_sigmoid(1.59576912f * fmaf(0.044715f * b * b, b, b));
    return fmaf(b * (s * (1.0f - s)), fmaf(0.214070952f * b, b, 1.59576912f), s);
}

#endif
