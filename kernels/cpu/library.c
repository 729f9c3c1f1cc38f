#include "kernels/cpu/library.h"
#include "kernels/cpu/draw.h"

#include <string.h>

#if defined(__x86_64__)
int dtm_kernel_level(void) {
    __builtin_cpu_init();
    const int v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                   __builtin_cpu_supports("bmi2");
    const int v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl");
    return v4 ? 4 : v3 ? 3 : 1;
}

static const dtm_kernel_entry *table_at(int level) {
    return level >= 4 ? dtm_kernel_table_v4 : level == 3 ? dtm_kernel_table_v3 : dtm_kernel_table_v1;
}

const dtm_draw *dtm_draw_at(int level) {
    return level >= 4 ? &dtm_draw_v4 : level == 3 ? &dtm_draw_v3 : &dtm_draw_v1;
}
#else
int dtm_kernel_level(void) { return 1; }

static const dtm_kernel_entry *table_at(int level) {
    (void)level; /* plain C alone */
    return dtm_kernel_table_v1;
}

const dtm_draw *dtm_draw_at(int level) {
    (void)level;
    return &dtm_draw_v1;
}
#endif

const dtm_kernel_entry *dtm_kernel_find_at(int level, const char *name) {
    const dtm_kernel_entry *at = table_at(level);
    for (; at->name; at++)
        if (!strcmp(at->name, name)) return at;
    return NULL;
}

const dtm_kernel_entry *dtm_kernel_find(const char *name) {
    return dtm_kernel_find_at(dtm_kernel_level(), name);
}
