/* Runs the tests of the kernels if this machine has their instruction set (TEST_LEVEL). In a file of its own, compiled for
 * every machine: the compiler may use what is asked about in any function beside the tests. */
#include "kernels/cpu/library.h"

#include <stdio.h>

int test_kernels(void);

int main(void) {
    if (dtm_kernel_level() >= TEST_LEVEL) return test_kernels();
    printf("this machine has no x86-64-v%d\n", TEST_LEVEL);
    return 77;
}
