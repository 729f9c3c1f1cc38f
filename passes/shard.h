/* What the files of the shard pass share: the table of choices. For every operator and mesh axis there is a list of
 * choices it may take and, once decided, the one it takes; a choice fixes on that axis what every operand must be and
 * what every result is. Everything else (layouts, relayouts, costs) follows from the choices. */
#ifndef DTM_PASSES_SHARD_H
#define DTM_PASSES_SHARD_H

#include "passes/cost.h"

/* What a value is on one axis: held alike, pending, or split along dimension (state - STATE_DIM) of its type. */
typedef uint8_t shard_state;
enum { STATE_ALIKE, STATE_SUM, STATE_MAX, STATE_DIM, STATES = STATE_DIM + DTM_MAX_RANK };

/* What an operator does on one axis. */
typedef uint8_t shard_choice;
enum {
    CHOICE_ALIKE,         /* nothing is split; all operands and results are alike */
    CHOICE_TERM,          /* + i: the operands of linear set i are terms, and so are all results */
    CHOICE_FACTOR = 8,    /* + f: split along factor f */
    CHOICE_QUERIES = 32,  /* + f: attention's heads where the keys' are too few for the axis: keys and values alike */
    CHOICE_STATE = 56,    /* + s: operators that hand a value on or take it from nowhere: operands and results are s */
    CHOICE_NONE = 255,    /* structure, collectives: has no choice */
    MAX_CHOICES = 24,
};

typedef enum shard_phase { PHASE_BODY, PHASE_FORWARD, PHASE_BACKWARD, PHASE_UPDATE } shard_phase;

/* What an operator may choose on one axis, the preferred first. */
typedef struct shard_domain {
    uint8_t count;
    shard_choice choices[MAX_CHOICES];
} shard_domain;

typedef struct shard_op {
    uint8_t n_factors, n_sets;
    dtm_factor *factors;
    uint32_t sets[4];
    shard_phase phase;
    const dtm_keep_rule *keep; /* a relayout put in for this rule: `x` as it is kept */
    uint32_t place;           /* in execution order, from 1; 0: not in the module */
    double copies;            /* executions a step */
    uint16_t rests;           /* of a weight: axes on which it is split at rest and alike in use (`zero`) */
    dtm_dim inner[DTM_MAX_AXES]; /* made by expanding an operator that the axis splits along this, which it normalised */
    shard_domain domain[DTM_MAX_AXES];
    shard_choice choice[DTM_MAX_AXES];
} shard_op;

typedef struct shard_keep {
    dtm_op op;
    const dtm_keep_rule *rule;
} shard_keep;

typedef struct shard_inner {
    dtm_op op, of; /* `of`: the operator that was expanded */
    dtm_dim dims[DTM_MAX_AXES];
} shard_inner;

typedef struct shard {
    dtm_module *module;
    dtm_arena *arena; /* scratch */
    size_t n_ops;     /* operators described below */
    shard_op *ops;
    dtm_op *order; /* in execution order, structure left out */
    size_t n_order;
    dtm_value *weight_of;      /* by value: the weight whose gradient it is, or 0 */
    bool *takes_gradient;      /* by operator: `gradient`, or what the update makes its operand with: where a gradient is complete */
    dtm_op *weight_of_state;   /* by operator: of a state, the weight whose it is, or 0 */
    uint32_t **readers;        /* by value: the operators that read it, each once, in execution order */
    uint32_t *n_readers;
    bool *gradient_only;       /* by value: it leads to weights' gradients and to nothing else */
    bool *input_only;          /* by value: it depends on inputs alone, on no weight */
    bool *reported_only;       /* by operator: of no microbatch, and it leads to reports and to nothing else */
    const dtm_splits_rule *rules[DTM_MAX_AXES]; /* by axis; NULL: none */
    uint16_t *whole;           /* by value: axes on which it follows from a value that `keep` holds whole */
    uint16_t axes;             /* axes of size > 1 */
    uint16_t time;             /* those of them in time */
    uint32_t *units[DTM_MAX_AXES]; /* by axis, dimension: blocks are multiples of it */
    bool *few[DTM_MAX_AXES];       /* by axis, dimension: key/value heads too few for it */
    shard_keep *keeps;             /* the relayouts put in for `keep` rules */
    size_t n_keeps, cap_keeps;
    shard_inner *inners; /* the operators made by expanding */
    size_t n_inners, cap_inners;
    const uint16_t *worth; /* by operator: axes by cost on which a trial split it along what it normalises; NULL: the trial */
    double effort; /* entries of tables that searches by cost have looked at */
    bool failed;
} shard;

/* ---- shard.c: the table ---- */
void shard_describe(shard *s); /* (re)builds ops, order, readers; choices are kept by operator */
shard_state shard_operand_state(const shard *s, dtm_op op, shard_choice choice, uint32_t operand);
shard_state shard_result_state(const shard *s, dtm_op op, shard_choice choice, uint32_t result);
/* What a value is on an axis by the choice of its producer; alike for constants. */
shard_state shard_value_state(const shard *s, dtm_value value, int axis);
bool shard_is_constant(const shard *s, dtm_value value);
/* Operators without factors of their own choosing: sources and those that hand a value on. */
bool shard_is_source(dtm_op_kind kind);
bool shard_is_identity(dtm_op_kind kind);
bool shard_is_reduction(dtm_op_kind kind);
/* Bytes of a value on a rank by what is chosen, if the axes `without` did not split it. */
double shard_local_bytes(const shard *s, dtm_value value, uint16_t without);
/* "`dot over D`, line 8" */
const char *shard_op_title(const shard *s, dtm_op op);
/* "tp splits H, line 15" */
const char *shard_rule_title(const shard *s, int axis, dtm_dim dim);

/* ---- shard_splits.c: what the rules say ---- */
void shard_rules(shard *s);   /* axes, rules, the time axis, `keep` */
/* The choice the axis' list gives an operator: a factor, CHOICE_ALIKE if it may not be split (too few heads, outside of
 * what it normalises), CHOICE_NONE if it has none of the dimensions. */
shard_choice shard_listed(const shard *s, dtm_op op, int axis);
int shard_listed_index(const shard *s, dtm_op op, int axis); /* which dimension of the list that is; -1: none */
bool shard_has_dim(const shard *s, dtm_op op, int axis, dtm_dim dim); /* in such a way that it could be split along it */
/* What splitting along a dimension comes to; CHOICE_NONE: the operator lacks it. */
shard_choice shard_choice_for(const shard *s, dtm_op op, int axis, dtm_dim dim);
/* The factor along which a choice splits, NULL: none. */
const dtm_factor *shard_split_factor(const shard *s, dtm_op op, shard_choice choice);
/* Whether the axis' list has attention split along its positions, or may have so by cost: then `using` says how. */
bool shard_uses_positions(const shard *s, dtm_op op, int axis);
bool shard_lists(const dtm_splits_rule *rule, dtm_dim a, dtm_dim b); /* one of the two */
bool shard_expand(shard *s);  /* expands operators that are split along what they normalise */
void shard_units(shard *s);   /* after the choices: in which units dimensions are split */

/* ---- shard_domains.c ---- */
void shard_domains(shard *s); /* domains of all operators before the update */

/* ---- shard_time.c: microbatches ---- */
void shard_time_axis(shard *s);    /* gives a mesh without one its axis in time */
void shard_time_rule(shard *s);    /* what it splits: the batch, and what is made of it */
void shard_mark_reported(shard *s);
bool shard_is_late(const shard *s, dtm_op reader); /* it reads only after the last microbatch */
void shard_check_time(shard *s);   /* says what is wanted before the last microbatch and cannot be there */

/* ---- shard_terms.c: the order of sums ---- */
void shard_reorder_sums(shard *s);

/* ---- shard_choose.c: the least cost ---- */
bool shard_choose(shard *s);
uint16_t shard_axes_by_cost(const shard *s);
/* shard_cost.c: the modelled time of the choices as they stand on the axes decided by cost, without the search. */
double shard_cost(shard *s, uint16_t axes);
/* shard_memory.c: the bytes that a rank holds with the choices as they stand, by estimate. */
double shard_memory(shard *s);

/* ---- shard_rest.c: `zero` ---- */
void shard_rest(shard *s); /* after the choices, before the update: how weights rest */
/* Of a weight or what is cast of one: the axes on which it rests split. */
uint16_t shard_rests(const shard *s, dtm_value value);
bool shard_gathers_again(const shard *s, dtm_value value); /* the backward pass does not read what the forward pass has gathered */
const dtm_zero_rule *shard_rest_rule(const shard *s, int axis); /* NULL: none */
const char *shard_rest_title(const shard *s, int axis);    /* "zero 3 on dp, line 12"; NULL: no rule */

/* ---- shard_update.c: the update follows the weights ---- */
void shard_update(shard *s);

/* ---- shard_layouts.c: types and relayouts ---- */
void shard_layouts(shard *s);

/* ---- shard_reasons.c: the `why` of what was chosen ---- */
/* An operator that makes a term says which rule makes it one. `types`: by value. */
void shard_explain_terms(shard *s, const dtm_type *types);
/* Of a change of a value's layout, for a reader: the rule behind it and what the reader needs. */
const char *shard_reason(const shard *s, dtm_value value, const dtm_type_data *from, const dtm_type_data *to, dtm_op reader);

/* ---- shard_warnings.c ---- */
void shard_warnings(shard *s);
/* After layouts. */
void shard_warn_empty(const shard *s);

#endif
