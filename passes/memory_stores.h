/* The part of memory that orders stores. */
#ifndef DTM_PASSES_MEMORY_STORES_H
#define DTM_PASSES_MEMORY_STORES_H

#include "ir/storage.h"

/* Moves each `store` that stands before a reader of the old value behind all of them. */
void dtm_stores_last(dtm_module *module);

#endif
