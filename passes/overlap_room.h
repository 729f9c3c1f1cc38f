/* Whether what is started ahead still leaves a rank's program within its memory. A part of the pass overlap. */
#ifndef DTM_PASSES_OVERLAP_ROOM_H
#define DTM_PASSES_OVERLAP_ROOM_H

#include "ir/ir.h"

/* Bytes that a rank may take: of the machine as it is described, and as the program expects; INFINITY: nothing says. */
double dtm_room_of(const dtm_module *module);
/* Whether the program of a rank takes no more: found by the passes after this one on a copy of it, where it is not so small that it
 * would fit if nothing shared its bytes. */
bool dtm_fits_in(const dtm_module *module, double room);
/* The same of one after fuse. */
bool dtm_fits_fused_in(const dtm_module *module, double room);
/* The collective that moves the most bytes; and a word on one for which there was no memory. */
dtm_op dtm_largest_moved(const dtm_module *module, const dtm_op_list *ops);
void dtm_say_no_room(dtm_module *module, dtm_op op);
/* Of collectives that are carried out apart the fewest are not, those that move most first, so that the program fits; false: it does
 * not, and they are left as they are. */
bool dtm_leave_room(dtm_module *module, const dtm_op_list *ops, double room);

#endif
