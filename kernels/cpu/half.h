/* bf16 and f16 to f32 and back, for kernels and for sums over ranks: no branches, so that loops around them are vectorised. */
#ifndef DTM_KERNELS_CPU_HALF_H
#define DTM_KERNELS_CPU_HALF_H

#include <stdint.h>
#include <string.h>

#define DTM_MATH static inline __attribute__((always_inline, unused))

DTM_MATH int32_t dtm_bits(float x) {
    int32_t i;
    memcpy(&i, &x, sizeof i);
    return i;
}
DTM_MATH float dtm_from_bits(int32_t i) {
    float x;
    memcpy(&x, &i, sizeof x);
    return x;
}
/* Halves of f32 (docs/passes.md, precision): exact upwards; downwards to the nearest, ties to even, what is beyond the largest to
 * infinity. By integers where numbers are small: flushing of subnormals may be on. */
DTM_MATH float dtm_of_bf16(uint16_t h) {
    return dtm_from_bits((int32_t)((uint32_t)h << 16));
}
DTM_MATH uint16_t dtm_to_bf16(float x) {
    const uint32_t u = (uint32_t)dtm_bits(x);
    const uint32_t nearest = (u + 0x7FFFu + (u >> 16 & 1)) >> 16, nan = u >> 16 | 0x40;
    return (uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? nan : nearest);
}
DTM_MATH float dtm_of_f16(uint16_t h) {
    const uint32_t magnitude = h & 0x7FFFu, shifted = magnitude << 13;
    const float small = (float)(int32_t)magnitude * 0x1p-24f;
    const uint32_t normal = shifted + (112u << 23), special = shifted | 0x7F800000u;
    const uint32_t bits = magnitude >= 0x7C00u ? special : magnitude < 0x400u ? (uint32_t)dtm_bits(small) : normal;
    return dtm_from_bits((int32_t)(bits | (uint32_t)(h & 0x8000u) << 16));
}
DTM_MATH uint16_t dtm_to_f16(float x) {
    const uint32_t u = (uint32_t)dtm_bits(x), a = u & 0x7FFFFFFFu;
    const uint32_t small = (uint32_t)dtm_bits(dtm_from_bits((int32_t)a) + 0.5f) - 0x3F000000u; /* in steps of 2^-24 */
    const uint32_t normal = (a + 0xFFFu + (a >> 13 & 1) - (112u << 23)) >> 13;
    const uint32_t h = a > 0x7F800000u ? 0x7E00u : a >= 0x477FF000u ? 0x7C00u : a < 0x38800000u ? small : normal;
    return (uint16_t)(h | (u >> 16 & 0x8000u));
}

#endif
