/* Every pass of the compiler: what each gets and gives stands in docs/house.md. A pass changes the module in place and
 * sets module->after; false means that it reported an error, and the module is then of no further use. */
#ifndef DTM_PASSES_PASSES_H
#define DTM_PASSES_PASSES_H

#include "ir/ir.h"

bool dtm_pass_canonicalize(dtm_module *module);
bool dtm_pass_autodiff(dtm_module *module);
bool dtm_pass_precision(dtm_module *module);
bool dtm_pass_shard(dtm_module *module);
bool dtm_pass_partition(dtm_module *module);
bool dtm_pass_microbatch(dtm_module *module);
bool dtm_pass_stage(dtm_module *module);
bool dtm_pass_schedule(dtm_module *module);
bool dtm_pass_fuse_collectives(dtm_module *module);
bool dtm_pass_overlap(dtm_module *module);
bool dtm_pass_fuse(dtm_module *module);
bool dtm_pass_buffer(dtm_module *module);
bool dtm_pass_memory(dtm_module *module);

/* Writes a composite operator (one with an `expand` rule) in smaller ones, in its place and under its results' names.
 * False: it has no such rule, nothing is changed. Layouts of the operands, if they have any, are carried on. `uses`:
 * dtm_use_counts, taken before any operator was expanded; what reads an operator's results is to be expanded after it. */
bool dtm_expand(dtm_module *module, dtm_op op, const uint32_t *uses);
/* Whether an operator was made so of one of that kind: its reason says it, in a dump that was read again too. */
bool dtm_is_part_of(const dtm_module *module, const dtm_op_data *op, dtm_op_kind kind);

#endif
