/* Inside codegen: what calls.c, which calls kernels of the library for CPUs, and cuda_library.c, which makes kernels of templates,
 * share. Both fill the sizes of a kernel, a struct `s`, from z[]. */
#ifndef DTM_CODEGEN_CALLS_H
#define DTM_CODEGEN_CALLS_H

#include "codegen/generator.h"

typedef struct caller {
    dtm_generator *g;
    dtm_op op;
    const dtm_op_data *data;
    dtm_size_list sizes;
    dtm_text fill; /* statements that set s.field */
} caller;

caller calls_begin(dtm_generator *g, dtm_op op);

/* Which dimension of an attention is what; 0: there is none. */
typedef struct roles {
    dtm_dim keys, queries, width, v_width, heads, groups, batch, more[DTM_MAX_RANK];
    int n_more; /* further dimensions of the batch: loops around the kernel */
} roles;

roles calls_roles(const caller *c);
void calls_fill_attention(caller *c, const roles *r, const dtm_placed *placed, bool backward);
const char *calls_outer_size(caller *c, const roles *r);
double calls_attention_scale(const caller *c, const roles *r);

/* ---- cuda_library.c ---- */

void dtm_cuda_attention(caller *c, bool backward);
uint32_t dtm_cuda_rope_table(caller *c, int at, int64_t part); /* the kernel; `at` is the dimension of positions */
void dtm_cuda_rope(caller *c, int64_t part, uint32_t table);

#endif
