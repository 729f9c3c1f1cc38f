/* The kernels of kernels/cpu compiled into the library, once for each instruction set, and found by name: what a plan
 * that names a kernel is resolved against. Generated code may instead include the headers and inline them. */
#ifndef DTM_KERNELS_CPU_LIBRARY_H
#define DTM_KERNELS_CPU_LIBRARY_H

#include "kernels/kernel.h"

typedef struct dtm_kernel_entry {
    const char *name; /* "dtm_attention_forward" */
    dtm_kernel *run;
    int64_t (*extent)(const int64_t *sizes);
    int64_t (*scratch_bytes)(const int64_t *sizes);
} dtm_kernel_entry;

/* The best instruction set this machine has: 1 (baseline), 3 (x86-64-v3) or 4 (x86-64-v4). What generated code chooses
 * its variant by. */
int dtm_kernel_level(void);

/* The kernel of that name at this machine's level; NULL if there is none. */
const dtm_kernel_entry *dtm_kernel_find(const char *name);

/* The same at a given level, for tests. */
const dtm_kernel_entry *dtm_kernel_find_at(int level, const char *name);

/* One level's kernels, ended by an entry without a name. */
extern const dtm_kernel_entry dtm_kernel_table_v1[], dtm_kernel_table_v3[], dtm_kernel_table_v4[];

#endif
