/* A pair of words to a pair of normal numbers: the arithmetic of draw.c, apart for its test. Compile without contraction.
 *
 *     radius = deviation sqrt(-2 log u),  u = (first + 1) / 2^32 in (0, 1]        angle = 2 pi second / 2^32
 *
 * Both are taken apart in integers, where that is exact, so that no digits are lost in u near 1 nor in angles near the
 * axes. */
#ifndef DTM_KERNELS_CPU_DRAW_PAIR_H
#define DTM_KERNELS_CPU_DRAW_PAIR_H

#include "kernels/cpu/prelude.h"

/* The word as a float, rounded once. */
DTM_MATH float dtm_draw_float(uint32_t word) {
    return (float)(int32_t)(word >> 16) * 65536.0f + (float)(int32_t)(word & 0xFFFF);
}

/* -2 log u. u = 2^e (1 + f), sqrt 1/2 <= 1 + f < sqrt 2, and Cephes' polynomial of f, as dtm_log. Where u > sqrt 1/2 f is
 * u - 1, of the complement of the word. */
DTM_MATH float dtm_draw_minus_two_log(uint32_t word) {
    const int large = word >= 0xB504F333u;
    const int32_t bits = dtm_bits(dtm_draw_float(word + 1)) - 0x3F3504F3; /* bits of sqrt 1/2 */
    const float e = large ? 0.0f : (float)((bits >> 23) - 32);
    const float f = large ? dtm_draw_float(~word) * -0x1p-32f : dtm_from_bits((bits & 0x007FFFFF) + 0x3F3504F3) - 1.0f;
    float p = 7.0376836292e-2f;
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    const float square = f * f;
    return -2.0f * (f * square * p + e * -2.12194440e-4f - 0.5f * square + f + e * 0.693359375f);
}

/* The quadrant's nearest axis is q quarter turns; x, in [-pi / 4, pi / 4), is the angle from it. Cephes' polynomials. */
DTM_MATH void dtm_draw_pair(uint32_t first, uint32_t second, float deviation, float *by_cosine, float *by_sine) {
    const float radius = deviation * sqrtf(dtm_draw_minus_two_log(first));
    const uint32_t q = (second + 0x20000000u) >> 30;
    const float x = (float)(int32_t)(second - (q << 30)) * 1.46291807926715968e-9f; /* 2 pi / 2^32 */
    const float z = x * x;
    float sine = -1.9515295891e-4f * z + 8.3321608736e-3f;
    sine = (sine * z - 1.6666654611e-1f) * z * x + x;
    float cosine = 2.443315711809948e-5f * z - 1.388731625493765e-3f;
    cosine = (cosine * z + 4.166664568298827e-2f) * z * z - 0.5f * z + 1.0f;
    const int32_t along = dtm_bits(q & 1 ? sine : cosine), across = dtm_bits(q & 1 ? cosine : sine);
    *by_cosine = radius * dtm_from_bits((int32_t)((uint32_t)along ^ ((q + 1) << 30 & 0x80000000u)));
    *by_sine = radius * dtm_from_bits((int32_t)((uint32_t)across ^ (q << 30 & 0x80000000u)));
}

#endif
