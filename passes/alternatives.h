/* Edits of the placement that a user could make, each tried by compiling again: what explain's "gone with" says. */
#ifndef DTM_PASSES_ALTERNATIVES_H
#define DTM_PASSES_ALTERNATIVES_H

#include "passes/ledger.h"

typedef struct dtm_alternative {
    const char *edit;      /* "mesh { dp = 8 }", "tp splits F, S" */
    dtm_module *module;    /* after fuse_collectives under that edit; NULL: it does not compile */
    dtm_ledger ledger;
    double step_time; /* modelled, computation and communication one after another */
} dtm_alternative;

/* Every edit tried, in a fixed order. The modules live until dtm_alternatives_destroy. */
dtm_alternative *dtm_alternatives_of(const dtm_module *source, dtm_arena *arena, size_t *count);
/* For each rule of several dimensions that is not by cost: the program with that rule by cost. */
dtm_alternative *dtm_alternatives_by_cost(const dtm_module *source, dtm_arena *arena, size_t *count);
void dtm_alternatives_destroy(dtm_alternative *alternatives, size_t count);
/* Values of the forward pass, by their names in the source, that have another layout there: "q, k, attn and 3 more". */
const char *dtm_alternative_differences(const dtm_module *module, const dtm_alternative *alternative, dtm_arena *arena);
/* The cheapest of them (least step time, then bytes sent) in which no entry like `entry` (its collective, of values from the
 * same source line, on an axis of the same name) occurs, or NULL. */
const dtm_alternative *dtm_alternative_without(const dtm_module *module, const dtm_ledger_entry *entry,
                                               const dtm_alternative *alternatives, size_t count);

#endif
