/* Compiled once per instruction set. */
#include "kernels/cpu/level.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_backward.h"
#include "kernels/cpu/library.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/rows.h"

#define ENTRY(name)                                                                                                    \
    { #name, name, name##_extent, name##_scratch_bytes }

const dtm_kernel_entry DTM_LEVEL(dtm_kernel_table)[] = {
    ENTRY(dtm_attention_forward),
    ENTRY(dtm_attention_backward),
    ENTRY(dtm_matmul),
    ENTRY(dtm_pack),
    ENTRY(dtm_rows_gather),
    ENTRY(dtm_rows_scatter),
    ENTRY(dtm_rope),
    ENTRY(dtm_rope_table),
    {0},
};
