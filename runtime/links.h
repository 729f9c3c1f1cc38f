/* The file of --links: how long messages between ranks take, said in the words of a program's `machine` section, whose other
 * settings it may hold too. What it must say: bandwidth and latency of `node`, and those of `network` where ranks are on
 * several nodes. Without devices_per_node all are on one. */
#ifndef DTM_LINKS_H
#define DTM_LINKS_H

#include "runtime/comm/comm.h"

bool dtm_links_read(const char *path, int64_t ranks, dtm_links *out, dtm_status *status);

#endif
