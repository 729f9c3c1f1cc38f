/* Mistakes of a caller, made for it: DTM_SIM_MUTANT=wait:3 loses the third cuStreamWaitEvent of the process, as if the program had not called
 * it. What is caught shows that the checks see it; what is not is a hole in them, or a call that the program does not need (../mutate).
 * DTM_SIM_CALLS names a file for how many calls of each kind there were.
 *
 * DTM_SIM_FAULT=device:n:error: the n-th kernel or work of a library that runs on that device ends with that sticky error, as if it had done
 * something that a GPU notices and the stand-in does not: of graphs too, whose launches are made once and run in each step.
 *
 *     wait, record    the call is lost
 *     sync            the host does not wait
 *     launch, copy    it is lost
 *     grid            a block less; shared: half the dynamic shared memory; base: all addresses are 64 bytes on; swap: those of the first
 *                     tuple move up by one place; legacy: on the legacy stream; stream: on another stream of the device, if it has one;
 *                     undeclared: of what it may write the first was declared as read
 *     optin           cuFuncSetAttribute is lost
 *     ld, transpose, sides, stride, claim, workspace, beta, algorithm, order    of a product (cublaslt.c): sides are m and n; order is another
 *                     algorithm for the same problem, once
 *     skip, count, type, op, root, offset, comm, later, group    of what goes between ranks (nccl.c): a call on one rank is not made, is of one
 *                     element less, of another type, a maximum for a sum, with another root or peer, one element beside its place, on another
 *                     communicator, after the next one; the groups of sends and receives are none */
#include "driver.h"

#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))
#define MUTANTS(M) M(wait) M(record) M(sync) M(launch) M(copy) M(grid) M(shared) M(base) M(swap) M(legacy) M(stream) M(undeclared) M(optin) M(ld) M(transpose) M(sides) M(order) M(stride) \
    M(claim) M(workspace) M(beta) M(algorithm) M(count) M(type) M(op) M(root) M(offset) M(comm) M(skip) M(later) M(group)
#define NAME(name) #name,
static const char *const names[] = {MUTANTS(NAME)};
#undef NAME
enum { N_MUTANTS = sizeof names / sizeof *names };
static long calls[N_MUTANTS];

EXPORT bool dtm_sim_mutated(const char *which, const char *of) {
    const char *wanted = getenv("DTM_SIM_MUTANT");
    size_t length = strlen(which);
    for (int i = 0; i < N_MUTANTS; i++)
        if (!strcmp(names[i], which)) {
            long n = __atomic_add_fetch(&calls[i], 1, __ATOMIC_RELAXED);
            bool yes = wanted && !strncmp(wanted, which, length) && wanted[length] == ':' && strtol(wanted + length + 1, NULL, 10) == n;
            if (yes)
                fprintf(stderr, "mutant: %s %ld, of %s\n", which, n, of);
            return yes;
        }
    abort();
}
int fault_of(const struct op *op) {
    const char *wanted = getenv("DTM_SIM_FAULT");
    struct device *d = op->task->device;
    int device, error;
    long n;
    if (!wanted || (op->task->doing != LAUNCHES && op->task->doing != WORKS))
        return OK;
    if (sscanf(wanted, "%d:%ld:%d", &device, &n, &error) != 3 || ++d->ran != n || d->ordinal != device)
        return OK;
    fprintf(stderr, "fault: %ld of device %d, of %s\n", n, device, op->task->name);
    return error;
}
void write_calls(void) {
    const char *path = getenv("DTM_SIM_CALLS");
    FILE *f = path ? fopen(path, "w") : NULL;
    for (int i = 0; f && i < N_MUTANTS; i++)
        fprintf(f, "%s %ld\n", names[i], calls[i]);
    if (f)
        fclose(f);
}
