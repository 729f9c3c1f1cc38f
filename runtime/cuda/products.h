/* What matmul.c and tune.c share: shapes of products, and the algorithm of cuBLASLt that was chosen for each. */
#ifndef DTM_CUDA_PRODUCTS_H
#define DTM_CUDA_PRODUCTS_H

#include "runtime/cuda/device.h"

enum { DTM_A, DTM_B, DTM_C, DTM_OPERANDS, DTM_CANDIDATES = 8 };

/* What a choice depends on. Of one shape all bytes are the same. */
typedef struct dtm_product_shape {
    int64_t m, n, k, batch;
    int64_t row[DTM_OPERANDS], column[DTM_OPERANDS], stride[DTM_OPERANDS]; /* elements; stride: from one product of a batch to the next */
    int32_t type[DTM_OPERANDS];                                            /* dtm_cublas_type */
    int32_t alignment[DTM_OPERANDS];                                       /* bytes, of all addresses it is given */
} dtm_product_shape;

typedef struct dtm_product_choice {
    dtm_product_shape of;
    dtm_cublas_desc desc;
    dtm_cublas_layout layouts[DTM_OPERANDS];
    dtm_cublas_algorithm algorithm;
    size_t workspace;
    bool fits, found; /* in cuBLASLt's form; with an algorithm */
    /* With --tune: */
    dtm_cu_pointer operands[DTM_OPERANDS]; /* of the first product of the shape */
    dtm_cublas_heuristic *candidates;      /* as the library would try them */
    int n_candidates;
    bool cached;
} dtm_product_choice;

/* What ranks tell each other. */
typedef struct dtm_product_told {
    dtm_product_shape of;
    dtm_cublas_algorithm algorithm;
    uint64_t workspace; /* UINT64_MAX: none was found */
} dtm_product_told;

struct dtm_device_products {
    const dtm_cublaslt *lt; /* NULL: not asked for */
    dtm_cublas_handle handle;
    dtm_product_choice *choices;
    size_t n_choices, cap_choices;
    int64_t workspace, workspace_bytes; /* offset in the device's memory */
    char digest[17];                    /* of the choices of all ranks */
    char name[64];                      /* what multiplies, the same on all ranks: a stage may have no product */
};

/* One call: C = A B, or C += A B. */
dtm_cublas_status dtm_product_call(dtm_device *device, const dtm_product_choice *choice, const dtm_cu_pointer operands[DTM_OPERANDS], bool adds);

/* Chooses the fastest of each choice's candidates, or what an earlier run has found so, from the cache. The arena is not in use yet. */
bool dtm_products_tune(dtm_rank *rank, dtm_status *status);
/* Keeps what all ranks have agreed on. */
bool dtm_products_keep(dtm_rank *rank, dtm_status *status);
void dtm_products_digest(const dtm_product_told *all, int64_t count, char out[17]);

#endif
