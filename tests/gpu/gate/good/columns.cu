/* The gradient of a bias, and that of a norm's scale, sum of dy * x * rstd; of a width that no vector divides. */
#include "kernels/cuda/columns.cuh"

extern "C" __global__ void __launch_bounds__(256) bias_partials(const dtm_bf16 *dy, float *partials, dtm_i64 n) {
    using sums = dtm_columns<768, 8, 256>;
    __shared__ float shared[sums::scratch];
    sums::partial(n, partials, shared, [&](float *v, dtm_i64 row, int first) { dtm_load<8>(v, dy + row * 768 + first); });
}
extern "C" __global__ void __launch_bounds__(256) bias_join(const float *partials, dtm_bf16 *gradient, int parts) {
    dtm_columns<768, 8, 256>::join(parts, partials, [&](int column, float sum) { gradient[column] = dtm_store_f32<dtm_bf16>(sum); });
}

extern "C" __global__ void __launch_bounds__(128) scale_partials(const float *dy, const float *x, const float *rstd, float *partials, dtm_i64 n) {
    using sums = dtm_columns<1001, 1, 128>;
    __shared__ float shared[sums::scratch];
    sums::partial(n, partials, shared, [&](float *v, dtm_i64 row, int first) { v[0] = dy[row * 1001 + first] * x[row * 1001 + first] * rstd[row]; });
}
extern "C" __global__ void __launch_bounds__(128) scale_join(const float *partials, float *gradient, int parts) {
    dtm_columns<1001, 1, 128>::join(parts, partials, [&](int column, float sum) { gradient[column] = sum; });
}
