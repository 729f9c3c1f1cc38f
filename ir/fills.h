/* What fills in a pair of calls (ir/calls.h): where the other part is an input gradient and then its weight gradients, these need not
 * wait for the end of that. They are computed whenever both others wait for a collective, one operator after the other in the order of
 * the text, as far as what they need of the input gradient has been made:
 *
 *     forward            product, all_reduce .........., product
 *     input gradient     product,        all_reduce ........................, add
 *     weight gradients             product              product,   product
 *
 * So a pair has three strands, of which the last starts no collective before the input gradient has ended. Nothing here is kept: all is
 * computed from the module. */
#ifndef DTM_IR_FILLS_H
#define DTM_IR_FILLS_H

#include "ir/calls.h"
#include "ir/storage.h"

/* Whether a region is ever called in a pair after another of its part. */
bool dtm_loop_fills(const dtm_loop_calls *calls, dtm_op region);

/* What an operator of weight gradients needs of its stage's input gradient before it may run: the last operator of that in the order of
 * the text, in the copies of those repeats that both have in common; a repeat stands for all of its copies. 0: nothing. What operators
 * before it need is not counted. */
dtm_op dtm_needed_of_input(const dtm_module *module, const dtm_order *order, dtm_op op);
/* What is needed by all that follows the repeat `loop` of weight gradients: of what the copies of that needed, each of its own copy, all
 * copies. */
dtm_op dtm_needed_after(const dtm_module *module, dtm_op needed, dtm_op loop);
/* How many repeats around two operators, from the outermost on, go through the same copies in the same order. */
int dtm_repeats_in_common(const dtm_module *module, dtm_op a, dtm_op b);

/* How a pair goes: whether the other part begins, which all calls but the first are of, and whether the second call of that fills before
 * the first has ended. */
typedef struct dtm_pair_course {
    bool later, fills;
} dtm_pair_course;

/* How far before the workspace of all others lies that of what stands in a region of the loop; 0: it has that one. The other part of a
 * pair, and what fills, have workspaces of their own. */
int64_t dtm_workspace_aside(const dtm_module *module, dtm_op region);

#endif
