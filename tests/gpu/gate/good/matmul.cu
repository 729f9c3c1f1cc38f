/* The runtime's program of matrix products, as it stands. */
#include "kernels/cuda/matmul.cuh"
