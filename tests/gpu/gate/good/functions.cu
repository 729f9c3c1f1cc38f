/* Each function of one number, and uniform random numbers. */
#include "kernels/cuda/functions.cuh"
#include "kernels/cuda/random.cuh"

#define FUNCTION(name)                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) of_##name(const float *x, float *y, int n) {                                 \
        const int i = blockIdx.x * 256 + threadIdx.x;                                                                              \
        if (i < n) y[i] = dtm_##name(x[i]);                                                                                        \
    }
FUNCTION(exp)
FUNCTION(log)
FUNCTION(tanh)
FUNCTION(erf)
FUNCTION(sigmoid)
FUNCTION(silu)
FUNCTION(gelu)
FUNCTION(gelu_tanh)
FUNCTION(softplus)
FUNCTION(rsqrt)
FUNCTION(relu)
FUNCTION(tanh_slope)
FUNCTION(sigmoid_slope)
FUNCTION(silu_slope)
FUNCTION(gelu_slope)
FUNCTION(gelu_tanh_slope)
FUNCTION(erf_slope)

extern "C" __global__ void __launch_bounds__(256) uniform(const unsigned long long *index, float *y, unsigned long long seed, unsigned step, unsigned site, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) y[i] = dtm_random_uniform(seed, dtm_random_stream(step, site), index[i]);
}
