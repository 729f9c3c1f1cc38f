/* What the files of the pass stage share: stage.c cuts the repeat and drives, stage_find.c says where everything runs,
 * stage_emit.c (and what stage_emit.h names) writes the programs of the ranks. */
#ifndef DTM_PASSES_STAGE_H
#define DTM_PASSES_STAGE_H

#include "ir/ir.h"
#include "passes/timeline.h"

/* When in a step: before the loop over microbatches, in it, after it. */
typedef enum stage_part { PART_BEFORE, PART_FORWARD, PART_BACKWARD, PART_AFTER } stage_part;

/* Where an operator of the loop runs: on a stage, or else */
enum {
    STAGE_ANYWHERE = -1, /* of inputs alone: wherever a result is needed */
    STAGE_COPIES = -2,   /* in the repeat that is split: on the stage of its copy */
    STAGE_SPREAD = -3,   /* part of a sum that is accumulated: on each stage what that stage adds */
    STAGE_NEEDED = -4,   /* weights have a part: where it is first needed. Found at last, no operator keeps it */
};

/* Where an operator after the loop runs, and where its result lies. */
typedef enum stage_home_kind {
    HOME_ALL,    /* on all ranks, alike */
    HOME_SET,    /* on some, alike: those that hold a weight */
    HOME_COPIES, /* in the repeat that is split */
    HOME_SUM,    /* a term on each of some ranks */
} stage_home_kind;

typedef struct stage_home {
    stage_home_kind kind;
    bool *ranks; /* of HOME_SET, HOME_SUM */
} stage_home;

/* What a message has, in its order: a value, or what a carry hands on from the copy before. */
typedef struct stage_item {
    dtm_value value;
    dtm_op carry; /* 0: value */
} stage_item;

typedef struct stage_cut {
    stage_item *items;
    size_t count, capacity;
} stage_cut;

/* What an operator of a rank's program was made of. */
typedef struct stage_origin {
    dtm_op made, from;
} stage_origin;

typedef struct stages {
    dtm_module *module; /* the whole program */
    dtm_arena *scratch;
    const dtm_pipeline_rule *rule;
    int n_ranks, chunks, count;
    const dtm_timeline *places; /* which rank has which stage */
    int64_t *first; /* by stage: its first copy; at `count` the number of copies */
    dtm_op loop;    /* the microbatches */
    size_t n_ops, n_values;
    /* by operator */
    stage_part *part;
    dtm_op *around; /* the split repeat it stands in, or 0 */
    dtm_op *unit;   /* the outermost repeat around it that is not split, or itself: it runs in one place */
    int *stage;     /* of a unit in the loop */
    int *limit;     /* of a unit: the last stage on which it can be */
    /* by value */
    bool *summed;      /* made by +, carry or last, and read only as a term of a sum over stages */
    stage_home *home;  /* of values after the loop, and of weights */
    bool *gathered;    /* a sum that is wanted whole, on `target` */
    stage_home *target;
    /* by k, between the stages k and k + 1 */
    stage_cut *forward, *backward;
    double gradients[3]; /* bytes of what the units accumulate for themselves: before the repeat, of a copy, after it */
    stage_origin *origins; /* of what lies in memory all through a step, in the program that was emitted last */
    size_t n_origins, cap_origins;
    bool good, quiet; /* quiet: errors are not reported */
} stages;

/* ---- stage.c: where stages lie ---- */

/* Of a direction: with two of them a stage lies on two ranks. */
int stage_rank(const stages *s, int stage, int direction);
int stage_chunk(const stages *s, int stage, int direction);
static inline int stage_directions(const stages *s) { return s->places->directions; }
/* How many copies the repeat of a name has; 0: there is none. */
int64_t stage_copies_of_repeat(const dtm_module *module, dtm_string name);
/* Marks the ranks that have a stage. */
void stage_holders(const stages *s, int stage, bool *ranks);
int stage_at(const stages *s, int rank, int chunk);
static inline int64_t stage_copies(const stages *s, int stage) { return s->first[stage + 1] - s->first[stage]; }
/* The first and the last stage that have copies, in the order in which forward runs them. */
int stage_lowest(const stages *s);
int stage_highest(const stages *s);

static inline bool stage_is_split(const stages *s, const dtm_op_data *op) {
    return op->kind == DTM_OP_REPEAT && op->attributes.name == s->rule->repeat;
}
/* Whether it is a carry from one copy of the split repeat to the next (and not of a repeat within a copy). */
static inline bool stage_is_carried(const stages *s, dtm_op op) {
    const dtm_op_data *data = &s->module->ops[op];
    return data->kind == DTM_OP_CARRY && s->around[op] && s->module->regions[data->region].parent == s->around[op];
}
static inline bool stage_in_loop(const stages *s, dtm_op op) {
    return s->part[op] == PART_FORWARD || s->part[op] == PART_BACKWARD;
}

/* Memory for what stage_find finds, once places are known. */
void stage_prepare(stages *s);

/* ---- stage_cost.c, stage_balance.c: what stages would cost, and where they are cut ---- */

/* The program as a row of units, what stands before the repeat, its copies, and what stands after them, for timelines of the
 * schedule; in the arena. The copies are measured once, and are one unit where none is searched for (`auto`). False: the program
 * cannot be cut, stage_find says why. */
bool stage_units(stages *s, int64_t copies, dtm_arena *arena, dtm_timeline_problem *problem);
/* A cut that was tried, and what each rank needed beside what is modelled (stage_modelled). */
typedef struct stage_seen {
    const struct stage_seen *before; /* NULL: the first one */
    const int64_t *copies;           /* by stage */
    const double *modelled, *beside; /* by rank */
    double most;                     /* of the ranks' arenas */
} stage_seen;
/* Sets s->first, of stages whose places are known: so that the rank that has most to do has as little as can be and each rank
 * has the memory that it needs; then as even as can be, and as the copies can be shared out evenly where that is as good.
 * False: by what is known no cut fits; it is then made as if there were no bound. What a rank needs is the model and, of what it
 * needed beside in the cut most like this one that was seen, the less the more they differ. */
bool stage_balance(stages *s, int64_t copies, const dtm_timeline_problem *problem, const stage_seen *seen);
/* Sets s->first so that the rank that needs most memory needs least, to a thousandth; returns what that is. */
double stage_least_memory(stages *s, int64_t copies, const dtm_timeline_problem *problem, const stage_seen *seen);
/* What each rank needs by the model: what its stages hold and what they keep of the microbatches in flight. */
void stage_modelled(stages *s, const dtm_timeline_problem *problem, const int64_t *copies, double *bytes);

/* ---- stage_search.c: schedule = auto ---- */

/* The best timeline found, in the context's arena; false after an error (E0907), unless the problem is to be quiet: nothing fits. */
bool stage_search(stages *s, int64_t copies, const dtm_timeline_problem *units, dtm_timeline_answer **found);

/* ---- stage_find.c ---- */

bool stage_find(stages *s);
/* The stage a value of the loop is made on; STAGE_ANYWHERE too for what is no value of the loop. */
int stage_of_value(const stages *s, dtm_value value);
/* Of a `last` of the split repeat: the stage whose copy ran last. */
int stage_of_last(const stages *s, dtm_op last);
/* The carry that hands a value of the split repeat to the next copy, or 0. */
dtm_op stage_carry_of(const stages *s, dtm_value next);
/* Whether a value after the loop is the maximum, rather than the sum, of what microbatches have: terms of it are no summands. */
bool stage_is_maximum(const stages *s, dtm_value value);
/* Of a value that lies alike on several ranks, the one that adds it to a sum. */
int stage_owner(const stage_home *home);

/* ---- stage_emit.c ---- */

dtm_module *stage_emit(stages *s, int rank);

#endif
