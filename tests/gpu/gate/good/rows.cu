/* RMS norm of short rows, a warp each, and of long ones, a block each; softmax of rows whose width no vector divides. */
#include "kernels/cuda/rows.cuh"

template <class T, int columns, int width, int threads>
DTM_DEVICE void rms_norm(const T *x, const T *scale, T *y, float *rstd, dtm_i64 n, float epsilon, float *scratch) {
    using rows = dtm_rows<columns, width, threads>;
    dtm_i64 row = rows::row();
    const T *from = x + row * columns;
    float sum = 0;
    if (row < n)
        rows::each([&](int first) {
            float v[width];
            dtm_load<width>(v, from + first);
#pragma unroll
            for (int i = 0; i < width; i++) sum += v[i] * v[i];
        });
    sum = rows::template reduce<dtm_sum>(sum, scratch);
    if (row >= n) return;
    float factor = rsqrtf(sum * (1.f / columns) + epsilon);
    if (threadIdx.x % rows::lanes == 0) rstd[row] = factor;
    rows::each([&](int first) {
        float v[width], s[width];
        dtm_load<width>(v, from + first);
        dtm_load<width>(s, scale + first);
#pragma unroll
        for (int i = 0; i < width; i++) v[i] *= factor * s[i];
        dtm_store<width>(y + row * columns + first, v);
    });
}

extern "C" __global__ void __launch_bounds__(256) rms_norm_768(const dtm_bf16 *x, const dtm_bf16 *s, dtm_bf16 *y, float *r, dtm_i64 n, float e) {
    rms_norm<dtm_bf16, 768, 8, 256>(x, s, y, r, n, e, nullptr);
}
extern "C" __global__ void __launch_bounds__(256) rms_norm_4096(const dtm_bf16 *x, const dtm_bf16 *s, dtm_bf16 *y, float *r, dtm_i64 n, float e) {
    __shared__ float scratch[8];
    rms_norm<dtm_bf16, 4096, 8, 256>(x, s, y, r, n, e, scratch);
}
extern "C" __global__ void __launch_bounds__(512) rms_norm_f32(const float *x, const float *s, float *y, float *r, dtm_i64 n, float e) {
    __shared__ float scratch[16];
    rms_norm<float, 16384, 4, 512>(x, s, y, r, n, e, scratch);
}

extern "C" __global__ void __launch_bounds__(256) softmax_1001(const dtm_f16 *x, dtm_f16 *y, dtm_i64 n) {
    using rows = dtm_rows<1001, 1, 256>;
    __shared__ float scratch[2][8];
    dtm_i64 row = rows::row();
    if (row >= n) return; /* a block a row: all of it */
    const dtm_f16 *from = x + row * 1001;
    float most = -dtm_infinity(), sum = 0;
    rows::each([&](int i) { most = dtm_max(most, dtm_load_f32(from[i])); });
    most = rows::reduce<dtm_maximum>(most, scratch[0]);
    rows::each([&](int i) { sum += dtm_exp2((dtm_load_f32(from[i]) - most) * dtm_log2_e); });
    sum = rows::reduce<dtm_sum>(sum, scratch[1]);
    rows::each([&](int i) { y[row * 1001 + i] = dtm_store_f32<dtm_f16>(dtm_exp2((dtm_load_f32(from[i]) - most) * dtm_log2_e) / sum); });
}
