/* MPI as it is where something is wrong: loaded before it (LD_PRELOAD), it fails as $MPI_FAILS says. `threads`: it does not work
 * in a program of several threads; `join`: rank 1 gets no communicator of its own; `send`: rank 1 cannot send its third
 * message. Says when it is left in order. */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fails(const char *how) {
    const char *text = getenv("MPI_FAILS");
    return text && !strcmp(text, how);
}

static int is_rank(int which) {
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank == which;
}

int MPI_Init_thread(int *count, char ***words, int wanted, int *given) {
    int code = PMPI_Init_thread(count, words, wanted, given);
    if (fails("threads")) *given = MPI_THREAD_SINGLE;
    return code;
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *out) {
    if (fails("join") && is_rank(1)) return MPI_ERR_NO_MEM;
    return PMPI_Comm_dup(comm, out);
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    static int sent;
    if (fails("send") && is_rank(1) && ++sent == 3) return MPI_ERR_NO_MEM;
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Finalize(void) {
    if (is_rank(0)) fprintf(stderr, "finalized\n");
    return PMPI_Finalize();
}
