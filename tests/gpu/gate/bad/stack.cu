/* expect: stack */
extern "C" __global__ void __launch_bounds__(256) stack(float *x, int n) {
    __shared__ float s[64];
    s[threadIdx.x % 64] = x[threadIdx.x];
    __syncthreads();
    float a[64];
    for (int i = 0; i < 64; i++) a[i] = s[(i * n) % 64];
    x[threadIdx.x] = a[n % 64] + s[3];
}
