/* Seeded faults, for tests of the tests. In a build with the CMake option DTM_SEED_FAULTS, the environment variable
 * DTM_FAULT chooses one of the mistakes planted in compiler and runtime, by number: `dtm_fault(n)` is true where the
 * mistake is made, and tests/faults_seeded asks that some test fails with each. In every other build it is false, and no
 * variable is read. */
#ifndef DTM_IR_FAULT_H
#define DTM_IR_FAULT_H

#include <stdbool.h>

#ifdef DTM_SEED_FAULTS
#include <stdlib.h>

static inline bool dtm_fault(int number) {
    static int chosen = -1;
    if (chosen < 0) {
        const char *text = getenv("DTM_FAULT");
        chosen = text ? atoi(text) : 0;
    }
    return chosen == number;
}
#else
#define dtm_fault(number) false
#endif

#endif
