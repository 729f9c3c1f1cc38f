/* The oracle: runs a module at any stage, on all ranks of its mesh in one process, by plain loops in double precision.
 *
 * It owns its index arithmetic: blocks and offsets are computed here from the law in ir/ir.h, and nothing is shared
 * with ir/layout.c or with lowering, so that a mistake is not made twice. It promises to execute what a module says
 * literally: a term is a term, a collective moves blocks between ranks, a rank that reaches outside its block is an
 * error, and so is a value that should be held alike and differs in one bit.
 *
 * `dtm_validate` is its use: a module before and after a pass must compute the same. */
#ifndef DTM_PASSES_INTERPRET_H
#define DTM_PASSES_INTERPRET_H

#include "ir/ir.h"

/* Gives a whole tensor (row-major, `elements` doubles) for an input of a step (from 1) or, with step 0, the first value
 * of a weight or state by its path ("layer.3.wq"). Returns false to leave it to the seed. */
typedef bool dtm_interpret_provide(void *state, const char *name, int64_t step, int64_t elements, double *data);

/* What random inputs must satisfy: ids lie within the dimension they index. */
typedef struct dtm_input_bound {
    dtm_string name;
    int64_t bound; /* i32: values are below it; 0: unknown, then 0 and 1 are drawn */
    bool negative; /* some are negative */
} dtm_input_bound;

typedef struct dtm_interpret_options {
    int64_t steps;       /* 0: one */
    uint64_t seed;       /* of weights, dropout and random inputs */
    double max_elements; /* of all values on all ranks, and 1/256 of multiplications; 0: 2^27 */
    dtm_interpret_provide *provide;
    void *provide_state;
    const dtm_input_bound *bounds; /* NULL: those of the module */
    size_t n_bounds;
    bool rounds;        /* values in f16 and bf16, and casts to f32, are rounded; else they are exact */
    uint64_t rounding;  /* not 0: every f32 result is rounded up or down to a float, by lot from this seed, and operands are
                           read a little off, which shows what rounding does to a program; with `rounds` results in f16 and
                           bf16 are rounded by lot too */
    bool nearest;       /* these to the nearest all the same, so that it shows what rounding f32 does */
    uint64_t nudge;     /* not 0: operands are read up to a unit of a double's last place off, by lot from this seed and their own bits,
                           so that replicas stay alike: what sums in another order do to a program. Not with `rounds` */
    bool check_storage; /* after memory: every value still owns its bytes where it is read */
    int64_t keep_step;  /* keep every value of this step; 0: none */
} dtm_interpret_options;

/* A whole tensor, put together from the ranks' blocks. */
typedef struct dtm_tensor {
    const char *name;
    int64_t step; /* after which it has this value */
    dtm_dtype dtype;
    uint8_t rank;
    int64_t sizes[DTM_MAX_RANK];
    const char *dims[DTM_MAX_RANK];
    int64_t elements;
    double *data;
    uint8_t *seen; /* by element, of a value kept: 0 where it has none, as microbatches went another way. NULL: all are there */
} dtm_tensor;

typedef struct dtm_tensors {
    dtm_tensor *data;
    size_t count, capacity;
} dtm_tensors;

typedef struct dtm_interpretation {
    dtm_arena *arena;
    int64_t steps;
    dtm_tensors reports;   /* scalars, step by step, in the order of the program: loss, grad_norm, .. */
    dtm_tensors outputs;   /* step by step */
    dtm_tensors gradients; /* by weight path, step by step, before clipping */
    dtm_tensors weights;   /* by path, after the last step */
    dtm_tensors states;    /* the same */
    dtm_tensors values;    /* of keep_step, in order of execution, "NAME" or "NAME[copy]" */
} dtm_interpretation;

/* Runs the module. NULL after an error, which stands in the context (E0596: it would take too long; E0597: a law of
 * storage broken; E0598: it cannot be executed as it stands). The result lives until it is destroyed. */
dtm_interpretation *dtm_interpret(const dtm_module *module, const dtm_interpret_options *options);
void dtm_interpretation_destroy(dtm_interpretation *interpretation);

/* The tensor of that name at that step (0: the latest), or NULL. */
const dtm_tensor *dtm_tensors_find(const dtm_tensors *tensors, const char *name, int64_t step);

/* What inputs of a module must satisfy, judged by their uses. Returns how many; *bounds is in `arena`. */
size_t dtm_input_bounds(const dtm_module *module, dtm_arena *arena, dtm_input_bound **bounds);

/* Reports step by step, then of each gradient its name, shape, norm and first elements; with `only` (not NULL) instead
 * the tensors of that name or of that name's copies, whole: of weights, gradients, outputs or kept values. */
void dtm_interpretation_print(const dtm_interpretation *interpretation, const char *only, dtm_text *out);

typedef struct dtm_validate_options {
    int64_t steps; /* 0: two */
    uint64_t seed;
    double max_elements; /* 0: as in dtm_interpret_options */
    double tolerance;    /* of a tensor's largest magnitude; 0: 1e-9, or more where sums in another order do more to this program */
} dtm_validate_options;

/* Whether both compute the same reports, outputs, gradients, updated weights and states on small random inputs. If not,
 * E0599 in the context of `after` names the pass, the value, both numbers, and the first value that both modules name
 * but that differs. `options` may be NULL. */
bool dtm_validate(const dtm_module *before, const dtm_module *after, const char *pass,
                  const dtm_validate_options *options);
/* The largest difference of two tensors, relative to the greater of their largest magnitude and `floor`; infinite if
 * their shapes differ or either has a NaN where the other has not the same bits. */
double dtm_tensor_difference(const dtm_tensor *a, const dtm_tensor *b, double floor);

#endif
