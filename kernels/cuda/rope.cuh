/* Rotary positions: pair i of a row turns by its position's angle i, (a, b) -> (a cos - b sin, b cos + a sin); what lies behind the
 * `part` of the row that turns is copied. x and out may be the same.
 *
 *     table [positions, part]: for a position, cos of part / 2 angles, then sin of them
 *
 * An angle is its position times a frequency, in turns: a whole multiple of 2^-64 turns, so that the product modulo one turn is
 * exact whatever the position, and the table needs no double precision. */
#include "kernels/cuda/entry.cuh"

#ifndef DTM_CUDA_ROPE
#define DTM_CUDA_ROPE

/* Sine and cosine of turns / 2^64 of a circle, errors below 2 units in the last place: polynomials of Cephes on an eighth of it. */
DTM_DEVICE void dtm_turn(dtm_u64 turns, float *cosine, float *sine) {
    dtm_u64 quarters = (turns + (1ull << 61)) >> 62;
    float x = (float)(dtm_i64)(turns - (quarters << 62)) * 3.4061215800865545e-19f; /* 2 pi / 2^64 */
    float z = x * x;
    float s = fmaf(fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f) * z, x, x);
    float c = fmaf(fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f) * z, z, fmaf(-0.5f, z, 1.f));
    float u = quarters & 1 ? s : c, v = quarters & 1 ? c : s;
    *cosine = (quarters + 1) & 2 ? -u : u;
    *sine = quarters & 2 ? -v : v;
}

/* frequencies[part / 2]: of 2^-64 turns a position. A thread an angle. */
DTM_DEVICE void dtm_rope_table(float *table, dtm_i64 positions, dtm_i64 first, int part, const dtm_u64 *frequencies) {
    dtm_i64 v = (dtm_i64)blockIdx.x * blockDim.x + threadIdx.x, half = part / 2;
    if (v >= positions * half) return;
    dtm_i64 position = v / half, i = v - position * half;
    float c, s;
    dtm_turn((dtm_u64)(first + position) * frequencies[i], &c, &s);
    table[position * part + i] = c;
    table[position * part + half + i] = s;
}

/* Of a row: its position, counted from the table's first, and where it begins. */
struct dtm_rope_place {
    dtm_i64 position, at;
};

/* A thread W pairs of a row, or W elements of what is copied: W divides part / 2 and width - part, and is 1 where neighbours of a
 * row are not neighbours in memory but `step` apart. sign -1 turns back. place(row) says where. */
template <int W, bool interleaved, class X, class O, class Place>
DTM_DEVICE void dtm_rope(const X *x, const float *table, O *out, dtm_i64 rows, int width, int part, dtm_i64 step, float sign, const Place &place) {
    int half = part / 2, turning = half / W, vectors = turning + (width - part) / W;
    dtm_i64 v = (dtm_i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (v >= rows * vectors) return;
    dtm_i64 row = v / vectors;
    int i = (int)(v - row * vectors);
    dtm_rope_place at = place(row);
    x += at.at;
    out += at.at;
    if (i >= turning) {
        float copied[W];
        dtm_i64 first = (part + (i - turning) * W) * step;
        dtm_load<W>(copied, x + first);
        dtm_store<W>(out + first, copied);
        return;
    }
    float c[W], s[W], p[2 * W];
    dtm_load<W>(c, table + at.position * part + i * W);
    dtm_load<W>(s, table + at.position * part + half + i * W);
    dtm_i64 second = interleaved ? (2 * i + 1) * W * step : (half + i * W) * step;
    dtm_i64 first = interleaved ? 2 * i * W * step : i * W * step;
    dtm_load<W>(p, x + first);
    dtm_load<W>(p + W, x + second);
#pragma unroll
    for (int w = 0; w < W; w++) {
        float &a = p[interleaved ? 2 * w : w], &b = p[interleaved ? 2 * w + 1 : W + w];
        float turned = a * c[w] - b * (sign * s[w]);
        b = b * c[w] + a * (sign * s[w]);
        a = turned;
    }
    dtm_store<W>(out + first, p);
    dtm_store<W>(out + second, p + W);
}

#endif
