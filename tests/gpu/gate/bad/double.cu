/* expect: f64 */
extern "C" __global__ void __launch_bounds__(256) doubles(float *x) { x[threadIdx.x] = 0.1 * x[threadIdx.x] + 1.5; }
