/* The runtime's program of strided copies, as it stands. */
#include "kernels/cuda/copy.cuh"
