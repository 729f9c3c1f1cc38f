/* `dtmc explain`: what is sharded and what is sent, and why; then memory. Text for a person, or JSON. */
#ifndef DTM_PASSES_EXPLAIN_H
#define DTM_PASSES_EXPLAIN_H

#include "passes/ledger.h"

/* What a change of one line would do to the ledger: tried by compiling the program again. */
typedef struct dtm_explain_options {
    bool json;
    const char *file;   /* the program's name as the user gave it */
} dtm_explain_options;

/* `source` is the module as checked, before any pass; `module` the same after fuse_collectives or later. */
void dtm_explain(const dtm_module *source, dtm_module *module, const dtm_explain_options *options, dtm_text *out);
/* What hides the messages of a pipeline, of a module of ranks after fuse or memory; in the arena. */
typedef struct dtm_explained_messages dtm_explained_messages;
dtm_explained_messages *dtm_explained_messages_of(const dtm_module *module, dtm_arena *arena);
/* Of what a stage of a rank sends on (forward) or back, the share of the time on its way in which the other rank waits for it. */
double dtm_messages_waited(const dtm_explained_messages *messages, int rank, int stage, bool forward);
/* "24.0 KiB" */
void dtm_text_bytes(dtm_text *out, double bytes);
/* "12.3 us" */
void dtm_text_seconds(dtm_text *out, double seconds);

#endif
