/* expect: launch bounds */
extern "C" __global__ void unbounded(float *x) { x[threadIdx.x] += 1; }
