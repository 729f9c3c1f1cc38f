/* Stops a rank in the midst of its work: loaded before MPI (LD_PRELOAD), it stops the process (SIGSTOP) of rank $STOP_RANK
 * when it begins its $STOP_AT-th message, counted from 1. With STOP_AT=0 nothing is stopped, and the rank prints how many
 * messages it sent. */
#include <mpi.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static long sent;

static long number(const char *name) {
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : 0;
}

static int is_the_rank(void) {
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank == number("STOP_RANK");
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    if (is_the_rank() && ++sent == number("STOP_AT")) raise(SIGSTOP);
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Finalize(void) {
    if (is_the_rank() && number("STOP_AT") == 0) printf("sent %ld\n", sent), fflush(stdout);
    return PMPI_Finalize();
}
