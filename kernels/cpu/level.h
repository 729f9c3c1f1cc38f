/* For the files that are compiled once per instruction set: DTM_LEVEL(name) is name_v1, name_v3 or name_v4, by the
 * DTM_LEVEL_SUFFIX that the build defines. */
#ifndef DTM_KERNELS_CPU_LEVEL_H
#define DTM_KERNELS_CPU_LEVEL_H

#define DTM_LEVEL_PASTE(name, suffix) name##suffix
#define DTM_LEVEL_EXPAND(name, suffix) DTM_LEVEL_PASTE(name, suffix)
#define DTM_LEVEL(name) DTM_LEVEL_EXPAND(name, DTM_LEVEL_SUFFIX)

#endif
