/* The runtime's program of matrix products by the tensor cores, as it stands. */
#include "kernels/cuda/matmul_halves.cuh"
