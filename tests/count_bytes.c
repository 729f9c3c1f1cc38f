/* Counts, from outside, the bytes that a rank sends: loaded before MPI (LD_PRELOAD), it wraps what sends by MPI's profiling
 * interface, and at the end writes the sum to the file $COUNT_BYTES.RANK. dtm sends by MPI_Isend alone; a call of anything
 * else that moves data makes the file say so in place of a number. */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>

static long long bytes;
static const char *other;

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    int size;
    PMPI_Type_size(type, &size);
    __atomic_fetch_add(&bytes, (long long)size * count, __ATOMIC_RELAXED);
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

#define UNCOUNTED(name, parameters, arguments)                                                                         \
    int MPI_##name parameters {                                                                                        \
        other = "MPI_" #name;                                                                                          \
        return PMPI_##name arguments;                                                                                  \
    }
UNCOUNTED(Send, (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c), (b, n, t, to, tag, c))
UNCOUNTED(Allreduce, (const void *b, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c), (b, r, n, t, o, c))
UNCOUNTED(Bcast, (void *b, int n, MPI_Datatype t, int root, MPI_Comm c), (b, n, t, root, c))
UNCOUNTED(Allgather, (const void *b, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, MPI_Comm c),
          (b, n, t, r, m, u, c))
UNCOUNTED(Alltoall, (const void *b, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, MPI_Comm c),
          (b, n, t, r, m, u, c))
UNCOUNTED(Iallreduce, (const void *b, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *q),
          (b, r, n, t, o, c, q))

int MPI_Finalize(void) {
    int rank;
    char path[4096];
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(path, sizeof path, "%s.%d", getenv("COUNT_BYTES") ? getenv("COUNT_BYTES") : "count_bytes", rank);
    FILE *file = fopen(path, "w");
    if (file) {
        if (other) fprintf(file, "uncounted: %s\n", other);
        else fprintf(file, "%lld\n", bytes);
        fclose(file);
    }
    return PMPI_Finalize();
}
