/* Counter-based random numbers: those of kernels/cpu/random.h, which says what they are, bit for bit. */
#include "kernels/cuda/types.cuh"

#ifndef DTM_CUDA_RANDOM
#define DTM_CUDA_RANDOM

/* One block of four words. */
struct dtm_philox {
    uint32_t word[4];
};

DTM_DEVICE dtm_philox dtm_philox_block(uint64_t seed, uint64_t stream, uint64_t block) {
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0, c1 = (uint32_t)p1, c2 = n2, c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return dtm_philox{{c0, c1, c2, c3}};
}

/* No index into the block: that would put it into local memory. */
DTM_DEVICE uint32_t dtm_random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
    const dtm_philox four = dtm_philox_block(seed, stream, index / 4);
    const uint32_t low = index & 1 ? four.word[1] : four.word[0], high = index & 1 ? four.word[3] : four.word[2];
    return index & 2 ? high : low;
}

/* The stream of a place in the program at a step. */
DTM_DEVICE uint64_t dtm_random_stream(uint32_t step, uint32_t site) { return (uint64_t)step << 32 | site; }

/* In [0, 1), a multiple of 2^-24: exact. */
DTM_DEVICE float dtm_random_unit(uint32_t bits) { return (float)(int32_t)(bits >> 8) * 5.9604644775390625e-8f; }

DTM_DEVICE float dtm_random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return dtm_random_unit(dtm_random_bits(seed, stream, index));
}

/* Those of N elements that follow each other, the first at a multiple of N where that is 2 or a multiple of 4: a block serves four. */
template <int N> DTM_DEVICE void dtm_random_vector(float (&out)[N], uint64_t seed, uint64_t stream, uint64_t index) {
    if constexpr (N == 2 || N % 4 == 0) {
#pragma unroll
        for (int b = 0; b < (N + 3) / 4; b++) {
            const dtm_philox four = dtm_philox_block(seed, stream, index / 4 + b);
            const bool upper = N == 2 && index & 2;
            out[4 * b] = dtm_random_unit(upper ? four.word[2] : four.word[0]);
            out[4 * b + 1] = dtm_random_unit(upper ? four.word[3] : four.word[1]);
            if constexpr (N > 2) {
                out[4 * b + 2] = dtm_random_unit(four.word[2]);
                out[4 * b + 3] = dtm_random_unit(four.word[3]);
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) out[i] = dtm_random_uniform(seed, stream, index + i);
    }
}

#endif
