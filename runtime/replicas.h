/* --check-replicas, a debugging aid: blocks that several ranks hold alike must be equal bit for bit. Blocks are compared
 * by a hash of 64 bits, so that a comparison sends 8 bytes a rank whatever their sizes. */
#ifndef DTM_REPLICAS_H
#define DTM_REPLICAS_H

#include "runtime/rank.h"

/* All ranks call these at the same place; where two ranks differ all fail, and one of them names both. Nothing is done
 * unless the run was started with the flag. */

/* What the buffer holds now: `what` and `name` are for the message ("gradient of", "wq"). */
bool dtm_check_replica(dtm_rank *rank, uint32_t buffer, const char *what, const char *name, dtm_status *status);
/* All weights and states, every copy. */
bool dtm_check_replicas(dtm_rank *rank, dtm_status *status);

#endif
