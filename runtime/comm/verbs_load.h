/* libibverbs, opened at run time when the first asks for it, never linked: programs run where there is none. With a folder given it is
 * looked for there alone, else by the loader. It stays loaded. Any thread may ask. */
#ifndef DTM_VERBS_LOAD_H
#define DTM_VERBS_LOAD_H

#include "runtime/comm/verbs_abi.h"
#include "runtime/status.h"

/* NULL and a failure where it is missing or lacks a function. */
const dtm_verbs *dtm_verbs_load(const char *folder, dtm_status *status);

/* The devices of this machine; free them with free_device_list where there are any (else *list is NULL). */
bool dtm_verbs_devices(const dtm_verbs *verbs, dtm_verbs_device ***list, int *count, dtm_status *status);

#endif
