/* Random programs and placements. A program is a small transformer of random dimensions, repeats, blocks, norms, heads, masks and
 * losses; a placement a mesh of one to three axes, a list of dimensions for each, perhaps a pipeline, and a machine. */
#ifndef DTM_TESTS_PROGRAM_H
#define DTM_TESTS_PROGRAM_H

#include "draw.h"

#include <stdio.h>

enum { DATA_STEPS = 3 };

typedef struct program {
    int B, S, V, D, F, H, G, K, T, A, C, N, R; /* sizes of dimensions */
    bool has_groups; /* k and v have G */
    bool context;    /* input `context : i32[B, T]` */
    bool features;   /* input `features : f32[B, S, D]` */
    bool masked;     /* some targets are negative */
    bool halves;     /* some values are in bf16 or f16 */
    bool reduced;    /* gradients of weights where ranks add them up */
    struct {
        const char *name;
        int copies;
        bool inner; /* in another */
    } repeats[4];
    int n_repeats;
    char model[16384];     /* declarations, model and train */
    char placement[2048];  /* mesh and parallel */
    char zero[200];        /* lines of `zero`, of another `parallel`; "": there are none */
    char machine[512];     /* what stands in `machine`, memory apart; "": there is none */
    int memory;            /* of what a rank needs without a bound, so many of a hundred parts; 0: no bound */
    int ranks, axes;       /* axes: without a pipeline's */
} program;

/* The model of one record of draws, and a placement of it of another, on that many ranks at most: 8 or fewer. */
void program_draw_model(draws *d, program *out);
void program_draw_placement(draws *d, int most_ranks, program *out);
/* Mesh, parallel and the machine, with so many bytes of memory; 0: without a bound. */
void program_print_placement(const program *p, int64_t memory, FILE *out);
/* Writes `tokens`, `targets`, .. of DATA_STEPS steps; false on failure. */
bool program_write_data(const program *p, uint64_t seed, const char *path);

#endif
