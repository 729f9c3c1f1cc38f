/* The system compiler: where the runtime's parts lie (in the build tree, or beside an installed dtmc) and how plan and
 * kernels become an executable with them. Messages go to stderr. */
#ifndef DTM_FRONTEND_TOOLCHAIN_H
#define DTM_FRONTEND_TOOLCHAIN_H

#include <stdbool.h>

typedef struct dtm_toolchain {
    char include[4096];   /* folder that "runtime/plan.h" is found in */
    char libraries[4096]; /* folder of the static libraries */
    bool draft;           /* compile quickly what runs slowly: for tests */
    bool cuda;            /* kernels.c has CUDA C in texts, and little else: it is compiled once */
} dtm_toolchain;

bool dtm_toolchain_find(dtm_toolchain *toolchain);
/* plan.c and kernels.c in `folder` to objects there, side by side. */
bool dtm_toolchain_compile(const dtm_toolchain *toolchain, const char *folder);
bool dtm_toolchain_link(const dtm_toolchain *toolchain, const char *folder, const char *output);

#endif
