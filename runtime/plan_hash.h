/* Hashes of a plan, of what stands in memory: ranks compare them before their first collective, so that a plan made with
 * another -D, or of which one byte has changed, is told rather than run. They are made of what a plan says, not of the
 * numbers by which its tables refer to each other: an instruction that is the same in two plans has the same hash in
 * both, wherever they differ otherwise. */
#ifndef DTM_PLAN_HASH_H
#define DTM_PLAN_HASH_H

#include "runtime/plan.h"

/* What of an instruction is hashed: what it computes, of what sizes; or also where its operands lie in memory, and which
 * line it comes from. */
typedef enum dtm_plan_depth { DTM_PLAN_MEANING, DTM_PLAN_PLACES } dtm_plan_depth;

uint64_t dtm_plan_instruction_hash(const dtm_plan *plan, uint32_t instruction, dtm_plan_depth depth);
/* A weight or a state: its tensor and how it begins. */
uint64_t dtm_plan_weight_hash(const dtm_plan *plan, uint32_t weight);
/* All the plan says, its kernels' text and all places included. */
uint64_t dtm_plan_hash(const dtm_plan *plan);

#endif
