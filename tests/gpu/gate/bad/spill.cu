/* expect: spills */
extern "C" __global__ void __launch_bounds__(1024, 2) spills(const float *x, float *y) {
    float a[64];
#pragma unroll
    for (int i = 0; i < 64; i++) a[i] = x[threadIdx.x + i * 1024];
#pragma unroll
    for (int r = 0; r < 8; r++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i * 7 + r) % 64] + a[(i + 13) % 64];
    }
#pragma unroll
    for (int i = 0; i < 64; i++) y[threadIdx.x + i * 1024] = a[i];
}
