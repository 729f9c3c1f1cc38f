/* Rows of a table by their numbers, as embeddings are:
 *
 *     out = table[id - first], zeros where another rank holds the row; an id outside [0, vocabulary) is zeros and is reported
 *
 * A thread takes W neighbours of a row. Where things lie is the caller's: `place(v)` tells it of vector v of `out`. */
#include "kernels/cuda/entry.cuh"

#ifndef DTM_CUDA_GATHER
#define DTM_CUDA_GATHER

/* Offsets in elements: of the id; of the vector in row 0 of the table, and how far rows are apart there; of the vector in out. */
struct dtm_gather_place {
    dtm_i64 id, table, row_step, out;
};

struct dtm_gather_rows {
    dtm_i64 count, first, vocabulary; /* rows that are held, and the first of them, of so many */
};

template <int W, class T, class Place>
DTM_DEVICE void dtm_gather(const T *table, const int *ids, T *out, dtm_i64 vectors, dtm_gather_rows rows, dtm_u64 *error, const Place &place) {
    dtm_i64 v = (dtm_i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (v >= vectors) return;
    dtm_gather_place at = place(v);
    dtm_i64 id = ids[at.id], row = id - rows.first;
    dtm_vector<T, W> x = {};
    if (id < 0 || id >= rows.vocabulary)
        dtm_report(error, at.id);
    else if (row >= 0 && row < rows.count)
        dtm_access<sizeof(T) * W>::load(&x, table + at.table + row * at.row_step);
    dtm_access<sizeof(T) * W>::store(out + at.out, &x);
}

#endif
