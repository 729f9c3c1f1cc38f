/* expect: call */
__device__ __noinline__ float away(float x) { return x * x + 1; }
extern "C" __global__ void __launch_bounds__(256) calls(float *x) { x[threadIdx.x] = away(x[threadIdx.x]); }
