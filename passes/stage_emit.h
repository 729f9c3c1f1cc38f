/* What the files share that write the programs of a pipeline's ranks (stage_emit.c): stage_needed.c says what a rank has,
 * stage_sums.c makes values of what chunks and ranks have, stage_messages.c writes what goes from stage to stage. */
#ifndef DTM_PASSES_STAGE_EMIT_H
#define DTM_PASSES_STAGE_EMIT_H

#include "passes/stage.h"

typedef struct pending_carry {
    dtm_op made;
    dtm_value next; /* of the whole program */
    int chunk;
} pending_carry;

typedef struct emitter {
    stages *s;
    const dtm_module *from;
    dtm_module *to;
    int rank;
    dtm_value **map;      /* by chunk + 1 (0: of none) and value of the whole program */
    bool **needed;        /* the same, by operator: what runs anywhere, and is read here */
    dtm_value **arriving; /* by chunk and carry: from the stage before */
    dtm_value **first;    /* the same: what it begins with in this chunk */
    bool **added;         /* by chunk + 1 and value of the loop: over the directions */
    dtm_value **handed;   /* by chunk: what it hands to another chunk of the rank, in the order of the cut */
    dtm_value *of_all;    /* by weight: a copy for readers after the loop that other ranks have too */
    pending_carry *carries;
    size_t n_carries, cap_carries;
    int chunk; /* that is emitted, or -1 */
} emitter;

static inline const dtm_op_data *get(const emitter *e, dtm_op op) { return &e->from->ops[op]; }
static inline dtm_op def_of(const emitter *e, dtm_value value) { return e->from->values[value].def; }
static inline int stage_of_chunk(const emitter *e, int chunk) { return stage_at(e->s, e->rank, chunk); }
static inline int direction_of(const emitter *e, int chunk) { return dtm_timeline_direction(e->s->places, chunk); }
/* Where the chunk at hand sends to, or has from. */
static inline int rank_of_stage(const emitter *e, int stage) { return stage_rank(e->s, stage, direction_of(e, e->chunk)); }
/* Of what has stages on two ranks, after the loop: the one that adds it to sums over all copies. */
static inline bool counts(const emitter *e, int chunk) { return direction_of(e, chunk) == 0; }

static inline const char *name_of(const emitter *e, dtm_value value) { return dtm_value_name(e->from, value); }
static inline void map_to(emitter *e, dtm_value value, int chunk, dtm_value made) { e->map[chunk + 1][value] = made; }

/* ---- stage_needed.c ---- */

bool emit_on_ranks(const emitter *e, const stage_home *home);
/* Marks what runs anywhere and is read by something here. */
void emit_find_needed(emitter *e);
/* Whether the rank, in a chunk (-1: outside of chunks), has an operator. */
bool emit_is_here(const emitter *e, dtm_op op, int chunk);

/* ---- stage_sums.c ---- */

/* A value of the whole program as this rank has it, in a chunk (-1: outside of chunks); 0: it has not. */
dtm_value emit_mapped(const emitter *e, dtm_value value, int chunk);
/* The same of an operand; what is read after the loop where others have the weight is its copy. */
dtm_value emit_operand(const emitter *e, dtm_op op, uint32_t i);
dtm_builder emit_builder(const emitter *e, dtm_op op, dtm_region region);
/* What adds nothing to a sum, or is no more than any element of a maximum. */
dtm_value emit_nothing(dtm_builder *b, dtm_type type, bool maximum, const char *name);
/* a + b, either of which may be none. */
dtm_value emit_plus(dtm_builder *b, dtm_value x, dtm_value y, const char *name);
/* What chunks of this rank made of a value of the loop, or of the split repeat, joined; 0: nothing. */
dtm_value emit_over_chunks(emitter *e, dtm_builder *b, dtm_value value);
/* What this rank (in the loop: this chunk) has of a value that is read as a term. */
dtm_value emit_term(emitter *e, dtm_builder *b, dtm_op op, dtm_value value);
/* Whether an operator after the loop is a sum over other axes of what the microbatches of one direction alone made. */
bool emit_is_of_one_direction(const emitter *e, dtm_op op);
/* Adds up what the two ranks of a stage accumulated, where it is first read after the loop. */
void emit_add_directions(emitter *e, dtm_builder *b, dtm_value value);
/* The sum over ranks of a value, or a weight's copy, where it is wanted. */
void emit_gather(emitter *e, dtm_builder *b, dtm_value value);
bool emit_may_be_gathered(const emitter *e, dtm_op op);

/* ---- stage_messages.c ---- */

/* From the stage `from` to the chunk at hand, and from it to the stage `peer`. */
void emit_receive(emitter *e, const stage_cut *cut, int from, dtm_region to);
void emit_send(emitter *e, const stage_cut *cut, int peer, dtm_region to);
/* The split repeat outside of the loop, on all chunks of the rank. */
void emit_outside(emitter *e, dtm_op repeat, dtm_region to);

/* ---- stage_emit.c ---- */

void emit_repeat(emitter *e, dtm_op repeat, dtm_region to, int chunk);

#endif
