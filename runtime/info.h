/* What a run is, in words and in JSON: the command `info`, --version, and the header of the log. */
#ifndef DTM_INFO_H
#define DTM_INFO_H

#include "runtime/rank.h"

int64_t dtm_parameters(const dtm_plan *plan);

void dtm_info_print(const dtm_plan *plan);
/* False if memory ran out. */
bool dtm_info_print_json(const dtm_plan *plan);
void dtm_version_print(const dtm_plan *plan);
/* Of info --devices: what the CUDA path finds here. A failure if anything is missing. */
bool dtm_info_devices(const dtm_options *options, dtm_status *status);

/* The log's first line, without its newline; free it. NULL if memory ran out. */
char *dtm_info_header(const dtm_rank *rank, int64_t steps);

#endif
