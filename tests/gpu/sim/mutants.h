/* Mutants of a kernel: PTX with one mistake each, that the simulator or the numbers must show. */
#ifndef MUTANTS_H
#define MUTANTS_H
#include "sim.h"

enum sim_mutation {
    SIM_NO_BARRIER, SIM_NO_WAIT, SIM_SHORT_WAIT, SIM_NO_FENCE, SIM_NO_GUARD, SIM_SHIFTED, SIM_OTHER_MASK, SIM_MUTATIONS
};
struct sim_mutant {
    enum sim_mutation mutation;
    int line;          /* of the PTX: a mutant of a line that does not run is none */
    char what[160];    /* "line 12, no barrier: bar.sync 0;" */
    unsigned caught_by; /* a bit for each sim_check that may show it; 0: numbers, or any */
};
/* The mutant of that number, from 0, to be freed; NULL past the last. All barriers, waits, fences, guards of branches, accesses
 * of vectors, and masks of shuffles and votes have their turn. */
char *sim_mutant(const char *text, int number, struct sim_mutant *about);
#endif
