/* expect: atomic */
extern "C" __global__ void __launch_bounds__(256) atomic(float *x) { atomicAdd(x, 1.f); }
