/* Compiled once per instruction set, without contraction: draw.h says why. The loops are plain C over short arrays, for
 * the compiler to vectorize; only the generator's widening product is said by its instruction's name, as compilers do
 * not see through the general one. */
#include "kernels/cpu/draw.h"
#include "kernels/cpu/draw_pair.h"
#include "kernels/cpu/level.h"

#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

/* One word of several blocks, in the lower halves; what is in the upper ones does not matter. */
typedef uint64_t lanes __attribute__((vector_size(VECTOR_BYTES)));

/* A fill goes by groups: PAIRS pairs of words, of 32 blocks. 32 is the least that fills v4's vectors twice. */
enum { LANES = VECTOR_BYTES / 8, TURN = 2 * LANES, BLOCKS = 32, PAIRS = 2 * BLOCKS, GROUP = 4 * BLOCKS };

static inline lanes product(lanes a, uint32_t factor) {
    const lanes b = (lanes){0} + factor;
#if defined(__AVX512F__)
    return (lanes)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (lanes)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (lanes)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & UINT32_MAX) * b;
#endif
}

typedef struct pairs {
    uint32_t first[PAIRS], second[PAIRS]; /* block b: words 0, 1 at 2 b, words 2, 3 at 2 b + 1 */
} pairs;

/* dtm_philox_block of BLOCKS blocks: two vectors of them at a time, to have work while products are under way. */
static inline void words(uint64_t seed, uint64_t stream, uint64_t block, pairs *to) {
    lanes ramp;
    for (int i = 0; i < LANES; i++) ramp[i] = (uint64_t)i;
    for (int b = 0; b < BLOCKS; b += TURN) {
        lanes c[2][4];
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int h = 0; h < 2; h++) {
            c[h][0] = ramp + (block + (uint64_t)(b + h * LANES));
            c[h][1] = c[h][0] >> 32;
            c[h][2] = (lanes){0} + stream;
            c[h][3] = c[h][2] >> 32;
        }
#pragma GCC unroll 10
        for (int round = 0; round < 10; round++) {
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                const lanes p0 = product(c[h][0], 0xD2511F53u), p1 = product(c[h][2], 0xCD9E8D57u);
                c[h][0] = (p1 >> 32) ^ c[h][1] ^ k0;
                c[h][2] = (p0 >> 32) ^ c[h][3] ^ k1;
                c[h][1] = p1, c[h][3] = p0;
            }
            k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        }
        for (int h = 0; h < 2; h++) {
            const int at = 2 * (b + h * LANES);
            const lanes first = (c[h][0] & UINT32_MAX) | c[h][2] << 32, second = (c[h][1] & UINT32_MAX) | c[h][3] << 32;
            memcpy(to->first + at, &first, sizeof first);
            memcpy(to->second + at, &second, sizeof second);
        }
    }
}

/* What differs between the distributions: how pairs of words become GROUP elements. */
typedef void shape(const pairs *from, double a, double b, float *to);

static inline void shape_normal(const pairs *from, double deviation, double unused, float *to) {
    (void)unused;
    float cosine[PAIRS], sine[PAIRS];
#pragma omp simd
    for (int i = 0; i < PAIRS; i++)
        dtm_draw_pair(from->first[i], from->second[i], (float)deviation, &cosine[i], &sine[i]);
    for (int i = 0; i < PAIRS; i++) to[2 * i] = cosine[i], to[2 * i + 1] = sine[i];
}

static inline void shape_uniform(const pairs *from, double low, double high, float *to) {
    for (int i = 0; i < PAIRS; i++) {
        to[2 * i] = (float)(low + (high - low) * (0x1p-24 * (int32_t)(from->first[i] >> 8)));
        to[2 * i + 1] = (float)(low + (high - low) * (0x1p-24 * (int32_t)(from->second[i] >> 8)));
    }
}

/* Whole groups where they fall into the range, else the part of one. */
static inline __attribute__((always_inline)) void fill(uint64_t seed, uint64_t stream, uint64_t index, int64_t count,
                                                       double a, double b, float *to, shape *of) {
    while (count > 0) {
        pairs from;
        float part[GROUP];
        const int64_t skipped = (int64_t)(index % GROUP), rest = GROUP - skipped, here = count < rest ? count : rest;
        words(seed, stream, index / GROUP * BLOCKS, &from);
        of(&from, a, b, here == GROUP ? to : part);
        if (here < GROUP) memcpy(to, part + skipped, (size_t)here * sizeof *to);
        index += (uint64_t)here, to += here, count -= here;
    }
}

static void fill_normal(uint64_t seed, uint64_t stream, uint64_t index, int64_t count, double deviation, float *to) {
    fill(seed, stream, index, count, deviation, 0, to, shape_normal);
}

static void fill_uniform(uint64_t seed, uint64_t stream, uint64_t index, int64_t count, double low, double high,
                         float *to) {
    fill(seed, stream, index, count, low, high, to, shape_uniform);
}

const dtm_draw DTM_LEVEL(dtm_draw) = {fill_normal, fill_uniform};
