/* First values of weights. Element `index` of a stream is a function of (seed, stream, index) alone, to the bit: not of
 * where a fill begins or ends, nor of the instruction set. So every mesh, thread count and machine begins alike.
 *
 * The words are those of random.h's generator. A normal pair is made of a pair of words by Box and Muller, the even
 * index by the cosine, the odd one by the sine, in float: additions, multiplications, a square root, selects, compiled
 * without contraction, which IEEE 754 rounds in one way only. Within 4e-7 of the exact value, relative to the radius;
 * the largest is sqrt(-2 log 2^-32) = 6.66. */
#ifndef DTM_KERNELS_CPU_DRAW_H
#define DTM_KERNELS_CPU_DRAW_H

#include <stdint.h>

/* Fills to[0, count) with elements index, index + 1, ... of the stream. */
typedef struct dtm_draw {
    /* mean 0 */
    void (*normal)(uint64_t seed, uint64_t stream, uint64_t index, int64_t count, double deviation, float *to);
    /* in [low, high): low + (high - low) u, u a multiple of 2^-24 below 1; rounding may give high itself */
    void (*uniform)(uint64_t seed, uint64_t stream, uint64_t index, int64_t count, double low, double high, float *to);
} dtm_draw;

extern const dtm_draw dtm_draw_v1, dtm_draw_v3, dtm_draw_v4;

/* At an instruction set as library.h's dtm_kernel_level gives it. */
const dtm_draw *dtm_draw_at(int level);

#endif
