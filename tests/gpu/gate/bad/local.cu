/* expect: local memory */
extern "C" __global__ void __launch_bounds__(256) local(float *x, int n) {
    float a[64];
    for (int i = 0; i < 64; i++) a[i] = x[i * n];
    x[threadIdx.x] = a[n % 64];
}
