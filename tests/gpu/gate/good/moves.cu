/* Embeddings and their gradients, in vectors and one by one, with other dimensions around; rope, both pairings. */
#include "kernels/cuda/gather.cuh"
#include "kernels/cuda/scatter.cuh"
#include "kernels/cuda/rope.cuh"

/* z: tokens, rows, first, vocabulary. out[tokens, 24] */
DTM_ENTRY(gather_bf16, 256, 3, 4, 2) {
    dtm_begin(p.mark);
    const auto &t = p.t[blockIdx.y];
    dtm_gather<8>((const dtm_bf16 *)t.b[0], (const int *)t.b[1], (dtm_bf16 *)t.b[2], t.z[0] * 3, dtm_gather_rows{t.z[1], t.z[2], t.z[3]}, p.error,
                  [&](dtm_i64 v) { return dtm_gather_place{v / 3, v % 3 * 8, 24, v * 8}; });
}
/* table[7, rows, 5], out[7, tokens, 5] */
DTM_ENTRY(gather_f32, 256, 3, 4, 2) {
    dtm_begin(p.mark);
    const auto &t = p.t[blockIdx.y];
    dtm_gather<1>((const float *)t.b[0], (const int *)t.b[1], (float *)t.b[2], 7 * t.z[0] * 5, dtm_gather_rows{t.z[1], t.z[2], t.z[3]}, p.error,
                  [&](dtm_i64 v) {
                      dtm_i64 e = v % 5, token = v / 5 % t.z[0], b = v / 5 / t.z[0];
                      return dtm_gather_place{token, b * t.z[1] * 5 + e, 5, v};
                  });
}

/* z: tokens, rows, first. dy[tokens, 24], out[rows, 24] */
DTM_ENTRY(scatter_order, 512, 3, 3, 2) {
    dtm_begin(p.mark);
    const auto &t = p.t[blockIdx.y];
    dtm_scatter<10, 512>::order(t.z[0], t.z[1], t.scratch, [&](dtm_i64 token) { return ((const int *)t.b[0])[token] - t.z[2]; });
}
DTM_ENTRY(scatter_bf16, 256, 3, 3, 2) {
    dtm_begin(p.mark);
    const auto &t = p.t[blockIdx.y];
    dtm_scatter<10, 512>::sum<8>(t.z[0], t.scratch, (const dtm_bf16 *)t.b[1], (float *)t.b[2], t.z[1] * 3,
                                 [](dtm_i64 v, dtm_i64 &row, dtm_i64 &from, dtm_i64 &to) { row = v / 3, from = v % 3 * 8, to = v * 8; },
                                 [](dtm_i64 token) { return token * 24; });
}
/* dy[7, tokens, 5], out[7, rows, 5] */
DTM_ENTRY(scatter_f32, 256, 3, 3, 2) {
    dtm_begin(p.mark);
    const auto &t = p.t[blockIdx.y];
    dtm_scatter<10, 512>::sum<1>(t.z[0], t.scratch, (const float *)t.b[1], (float *)t.b[2], 7 * t.z[1] * 5,
                                 [&](dtm_i64 v, dtm_i64 &row, dtm_i64 &from, dtm_i64 &to) {
                                     row = v / 5 % t.z[1], from = v / 5 / t.z[1] * t.z[0] * 5 + v % 5, to = v;
                                 },
                                 [&](dtm_i64 token) { return token * 5; });
}

/* z: positions, first. */
__device__ const dtm_u64 frequencies[5] = {2935890503282001226ull, 929339046286735360ull, 293589050328200123ull, 29358905032820012ull, 2935890503ull};
DTM_ENTRY(rope_table, 128, 1, 2, 1) {
    dtm_begin(p.mark);
    const auto &t = p.t[blockIdx.y];
    dtm_rope_table((float *)t.b[0], t.z[0], t.z[1], 10, frequencies);
}
/* x[rows, 2 heads, 24], 16 of them turn; z: rows, positions, sign. Row r is at position r % positions. */
DTM_ENTRY(rope_halves, 256, 3, 3, 1) {
    dtm_begin(p.mark);
    const auto &t = p.t[blockIdx.y];
    dtm_rope<4, false>((const dtm_bf16 *)t.b[0], (const float *)t.b[1], (dtm_bf16 *)t.b[2], t.z[0] * 2, 24, 16, 1, (float)t.z[2],
                       [&](dtm_i64 row) { return dtm_rope_place{row / 2 % t.z[1], row * 24}; });
}
DTM_ENTRY(rope_pairs, 256, 3, 3, 1) {
    dtm_begin(p.mark);
    const auto &t = p.t[blockIdx.y];
    dtm_rope<4, true>((const float *)t.b[0], (const float *)t.b[1], (float *)t.b[2], t.z[0] * 2, 24, 24, 1, (float)t.z[2],
                      [&](dtm_i64 row) { return dtm_rope_place{row / 2 % t.z[1], row * 24}; });
}
/* x[11, rows]: neighbours of a row are `rows` apart; 10 of them turn. */
DTM_ENTRY(rope_apart, 256, 3, 3, 1) {
    dtm_begin(p.mark);
    const auto &t = p.t[blockIdx.y];
    dtm_rope<1, false>((const float *)t.b[0], (const float *)t.b[1], (float *)t.b[2], t.z[0], 11, 10, t.z[0], (float)t.z[2],
                       [&](dtm_i64 row) { return dtm_rope_place{row % t.z[1], row}; });
}
