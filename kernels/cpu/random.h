/* Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011; the
 * generator of Random123, whose known answers the test checks). A number is a function of (seed, stream, index) and of
 * nothing else, so that no split of a tensor over ranks or threads changes it. Integer work and one exact conversion:
 * the same bits at every instruction set.
 *
 *     counter = { low and high word of index / 4, low and high word of stream },  key = { low, high word of seed }
 *     word    = philox(counter, key)[index % 4]
 *
 * index: the element's flat index in the whole tensor.  stream: dtm_random_stream(step, site) for dropout; a hash of
 * the weight's name for initial values, which draw.c makes of these words. */
#ifndef DTM_KERNELS_CPU_RANDOM_H
#define DTM_KERNELS_CPU_RANDOM_H

#include <stdint.h>

#define DTM_RANDOM static inline __attribute__((always_inline, unused))

/* One block of four words. */
typedef struct dtm_philox {
    uint32_t word[4];
} dtm_philox;

DTM_RANDOM dtm_philox dtm_philox_block(uint64_t seed, uint64_t stream, uint64_t block) {
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0, c1 = (uint32_t)p1, c2 = n2, c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return (dtm_philox){{c0, c1, c2, c3}};
}

DTM_RANDOM uint32_t dtm_random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
    return dtm_philox_block(seed, stream, index / 4).word[index % 4];
}

/* The stream of a place in the program at a step. */
DTM_RANDOM uint64_t dtm_random_stream(uint32_t step, uint32_t site) {
    return (uint64_t)step << 32 | site;
}

/* In [0, 1), a multiple of 2^-24: exact. */
DTM_RANDOM float dtm_random_unit(uint32_t bits) {
    return (float)(int32_t)(bits >> 8) * 5.9604644775390625e-8f;
}

DTM_RANDOM float dtm_random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return dtm_random_unit(dtm_random_bits(seed, stream, index));
}

/* Fills out[0, count) with the uniform numbers of index, index + 1, ...: four for the price of one. For dropout: fill a
 * row's scratch, then keep x where the number is >= p. */
static inline __attribute__((unused)) void dtm_random_fill(uint64_t seed, uint64_t stream, uint64_t index,
                                                           int64_t count, float *out) {
    int64_t i = 0;
    for (; i < count && (index + (uint64_t)i) % 4; i++) out[i] = dtm_random_uniform(seed, stream, index + (uint64_t)i);
    const uint64_t block = (index + (uint64_t)i) / 4;
    const int64_t blocks = (count - i) / 4;
    float *whole = out + i;
#pragma omp simd
    for (int64_t b = 0; b < blocks; b++) {
        const dtm_philox four = dtm_philox_block(seed, stream, block + (uint64_t)b);
        whole[4 * b] = dtm_random_unit(four.word[0]);
        whole[4 * b + 1] = dtm_random_unit(four.word[1]);
        whole[4 * b + 2] = dtm_random_unit(four.word[2]);
        whole[4 * b + 3] = dtm_random_unit(four.word[3]);
    }
    for (i += 4 * blocks; i < count; i++) out[i] = dtm_random_uniform(seed, stream, index + (uint64_t)i);
}

#endif
