/* Matrix products: one interface, whatever library computes them.
 *
 *     c[i, j] = alpha * sum over p of a[i, p] b[p, j]  +  beta * c[i, j]        for each of `batch` products
 *
 * a, b and c lie anywhere by strides (elements), so transposed operands and parts of a larger tensor need no copy: a
 * stored [K, M] has a_row = 1, a_col = M. Each of a and b should have a stride of 1; others work, slowly. c's columns
 * are adjacent. An operand shared by all products of the batch has a batch stride of 0.
 *
 * The kernel's unit is a slice of rows or of columns of c, or a product of the batch: dtm_matmul_cut says which. A
 * unit's size depends on the shape alone and every element is summed in an order of its own, so the bits of c do not
 * depend on how the units are dealt to threads. Give each thread one long range of units: a range is packed once.
 *
 * Back ends: `tiles` is dtm's own (register tiles of simd.h over packed blocks, at three instruction sets); `onednn`
 * calls dnnl_sgemm with one thread on fixed slices. oneDNN's Debian package threads by OpenMP; the back end sets the
 * calling thread's OpenMP team to one, which OpenMP keeps for each thread that calls, so pool threads never
 * oversubscribe. dnnl_sgemm chooses how it blocks K by M and N: an element's bits depend on the slice it is computed
 * in. Hence the fixed slices: they never depend on the number of threads. (`tiles` is free of this.)
 *
 * Products of two operands of bf16 are oneDNN's matmul primitive where the processor has instructions for them (AVX512-BF16, AMX),
 * whatever the back end; elsewhere, in small ones and where operands are of other types, parts are widened to f32 for the back end. Both
 * multiply exactly, add up in f32 and round where c is written, once: they differ in the order of the sums alone. A primitive is made at
 * first use, by each thread (oneDNN shares the code between them), for slices that are fixed as above. */
#ifndef DTM_KERNELS_CPU_MATMUL_H
#define DTM_KERNELS_CPU_MATMUL_H

#include "kernels/kernel.h"

enum { DTM_MATMUL_SUMS = 6 }; /* most loops around the depth */

/* What elements are in: halves of f32 are multiplied exactly and added up in f32; c is rounded once, where it is written. */
typedef enum dtm_matmul_type { DTM_MATMUL_F32, DTM_MATMUL_BF16, DTM_MATMUL_F16 } dtm_matmul_type;

typedef struct dtm_matmul_sizes {
    int64_t batch, m, n, k;
    int64_t a_batch, a_row, a_col; /* strides of a[batch, m, k] */
    int64_t b_batch, b_row, b_col; /* of b[batch, k, n] */
    int64_t c_batch, c_row;        /* of c[batch, m, n]; its column stride is 1 */
    int64_t accumulate;            /* 0: c = alpha a b;  1: c += alpha a b */
    int64_t a_type, b_type, c_type; /* dtm_matmul_type */
    int64_t sums; /* loops around the depth, the first outermost: the products of all their turns are added up, before c is rounded */
    int64_t sum_count[DTM_MATMUL_SUMS], sum_a[DTM_MATMUL_SUMS], sum_b[DTM_MATMUL_SUMS]; /* turns, and what one moves a and b by */
    int64_t scaled; /* 0: alpha is 1;  1: alpha is numbers[0] and c is first multiplied by numbers[1] (beta) */
} dtm_matmul_sizes;

enum { DTM_MATMUL_A, DTM_MATMUL_B, DTM_MATMUL_C, DTM_MATMUL_BUFFERS };

/* numbers: none unless `scaled`, then {alpha, beta}; beta 0 does not read c, and `accumulate` is then ignored. */
void dtm_matmul(const dtm_kernel_args *args, int64_t begin, int64_t end);
int64_t dtm_matmul_extent(const int64_t *sizes);
int64_t dtm_matmul_scratch_bytes(const int64_t *sizes);

/* How a product is cut into units. */
typedef enum dtm_matmul_axis { DTM_MATMUL_CUT_ROWS, DTM_MATMUL_CUT_COLS } dtm_matmul_axis;
typedef struct dtm_matmul_cut {
    dtm_matmul_axis axis;
    int64_t size;  /* rows or columns of a unit; the last of a product may have fewer */
    int64_t units; /* of one product; unit u belongs to product u / units */
} dtm_matmul_cut;
dtm_matmul_cut dtm_matmul_cut_of(const dtm_matmul_sizes *sizes);

/* Chooses the back end by name ("tiles", "onednn"), NULL for the default, and the instruction set of its tiles (library.h),
 * before any thread calls dtm_matmul. Returns 0, or -1 if there is none of that name. Without it the default serves, at what
 * this machine has. */
int dtm_matmul_init(const char *name, int level);
/* What multiplies bf16: "tiles" (widened, by the back end), "onednn", NULL for the default: oneDNN where the processor has the
 * instructions. Returns 0, or -1 if there is none of that name here. As dtm_matmul_init, of which it is independent. */
int dtm_matmul_init_bf16(const char *name);

/* Of machines where this is the same, and not 0, oneDNN multiplies bf16 to the same bits: processor, caches, version. 0: it has no
 * instructions for bf16. */
int32_t dtm_matmul_bf16_host(void);

const char *dtm_matmul_name(void);    /* "tiles/x86-64-v3", "onednn" */
const char *dtm_matmul_version(void); /* "2.6.3", for the log */
const char *dtm_matmul_bf16_name(void); /* "tiles", "onednn" */

#endif
