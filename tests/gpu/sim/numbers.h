/* The number formats of PTX that C lacks. All of f16, bf16, e4m3 and e5m2 are doubles without loss; they are rounded from
 * doubles once. */
#ifndef NUMBERS_H
#define NUMBERS_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline float float_of(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint32_t bits_of(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
static inline double double_of(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }
static inline uint64_t bits_of_double(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }
static inline float bf16_value(uint32_t bits) { return float_of(bits << 16); }

static inline float f16_value(uint32_t bits) {
    uint32_t sign = (bits & 0x8000) << 16, e = bits >> 10 & 31, m = bits & 1023;
    if (e == 31)
        return float_of(sign | 0x7f800000 | m << 13);
    if (e)
        return float_of(sign | (e + 112) << 23 | m << 13);
    float x = (float)m * 0x1p-24f;
    return sign ? -x : x;
}

enum { TO_NEAREST, TO_ZERO, DOWN, UP };
static inline double rounded(double x, int mode) {
    return mode == TO_NEAREST ? rint(x) : mode == TO_ZERO ? trunc(x) : mode == DOWN ? floor(x) : ceil(x);
}

/* To a format of so many bits of exponent and mantissa. `finite`: overflow gives the greatest number (satfinite); `top`:
 * the greatest pattern of exponent is of numbers too, all but the last (e4m3). */
static inline uint32_t small_bits(double x, int exponent, int mantissa, int mode, bool finite, bool top) {
    uint32_t sign = (uint32_t)signbit(x) << (exponent + mantissa), fields = (1u << exponent) - 1, one = 1u << mantissa;
    uint32_t infinite = fields << mantissa, not_a_number = infinite | (one - 1), greatest = top ? not_a_number - 1 : infinite - 1;
    if (isnan(x))
        return not_a_number;
    int bias = (int)(fields >> 1), e = x == 0 || isinf(x) ? 0 : ilogb(x);
    if (e < 1 - bias)
        e = 1 - bias;
    bool negative = signbit(x);
    bool over = isinf(x) || e > 2 * bias + 2;
    uint32_t bits = 0;
    if (!over) {
        int m = mode == DOWN && negative ? UP : mode == UP && negative ? DOWN : mode; /* of the magnitude */
        uint32_t v = (uint32_t)rounded(ldexp(fabs(x), mantissa - e), m);
        if (v >= 2 * one)
            v /= 2, e++;
        bits = v < one ? v : ((uint32_t)(e + bias) << mantissa) + (v - one);
        over = bits > greatest;
    }
    if (over) {
        bool stays = finite || (!isinf(x) && (mode == TO_ZERO || (mode == DOWN && !negative) || (mode == UP && negative)));
        bits = stays ? greatest : top ? not_a_number : infinite;
    }
    return sign | bits;
}
static inline uint32_t f16_bits(double x, int mode) { return isnan(x) ? 0x7fff : small_bits(x, 5, 10, mode, false, false); }
static inline uint32_t bf16_bits(double x, int mode) { return isnan(x) ? 0x7fff : small_bits(x, 8, 7, mode, false, false); }
static inline uint32_t bf16_nearest(float x) {
    uint32_t u = bits_of(x);
    return (u & 0x7fffffff) > 0x7f800000 ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
static inline uint32_t f16_nearest(float x) {
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    uint32_t few = bits_of(float_of(a) + 0.5f) - 0x3f000000; /* below 2^-14: the sum rounds to multiples of 2^-24 */
    uint32_t usual = (a + 0xc8000fff + (a >> 13 & 1)) >> 13;
    return a > 0x7f800000 ? 0x7fff : sign | (a >= 0x47800000 ? 0x7c00 : a < 0x38800000 ? few : usual & 0x7fff);
}
static inline float e4m3_value(uint32_t bits) {
    uint32_t e = bits >> 3 & 15, m = bits & 7;
    float x = (bits & 127) == 127 ? NAN : e ? ldexpf((float)(8 + m), (int)e - 10) : ldexpf((float)m, -9);
    return bits & 128 ? -x : x;
}
static inline float e5m2_value(uint32_t bits) { return f16_value(bits << 8); }
#endif
