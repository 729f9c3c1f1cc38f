/* The tables that `by cost` and the lists are decided with (shard_choose.c): what the files that fill them share. A chooser
 * stands for one search: some axes are decided now, together; the choices on all others are as they stand. */
#ifndef DTM_PASSES_SHARD_TABLES_H
#define DTM_PASSES_SHARD_TABLES_H

#include "passes/shard.h"
#include "passes/shard_search.h"

typedef struct chooser {
    shard *s;
    uint16_t axes;    /* those decided now */
    int axis;         /* the one that conversions are counted on */
    double microbatches;
    shard_search *search;
    uint32_t *variable[DTM_MAX_AXES]; /* by axis, operator: its variable + 1; 0: it has no choice left */
} chooser;

/* Something whose choice decides a state: an operator, or for a weight's gradient the weight. */
typedef struct end {
    dtm_op op;
    int32_t operand; /* >= 0: what this operand must be; -1 - r: what result r is */
} end;

enum { FIXED_ALIKE = 0 }; /* op 0: always alike */

/* A table being made: what it is over (variables + 1, 0 where there is but one choice) and how many choices each has. */
enum { MAX_OVER = 2 * DTM_MAX_AXES + 2 };
typedef struct table {
    uint32_t count, variables[MAX_OVER], sizes[MAX_OVER];
} table;

/* ---- shard_tables.c ---- */
chooser shard_chooser(shard *s, uint16_t axes);
double shard_axis_size(const chooser *c, int axis);
uint32_t shard_choices_on(const chooser *c, dtm_op op, int axis); /* how many: one where it is decided already */
shard_choice shard_choice_on(const chooser *c, dtm_op op, int axis, uint32_t choice);
/* The following are on the axis that conversions are counted on. */
uint32_t shard_end_count(const chooser *c, end e);
shard_state shard_end_state(const chooser *c, end e, uint32_t choice);
uint32_t shard_end_variable(const chooser *c, end e);
void shard_table_over(table *t, uint32_t variable, uint32_t size);
size_t shard_table_size(const table *t);
void shard_table_add(chooser *c, shard_measure measure, const table *t, const double *costs);

/* The states that ends can be in: the first is that of the first end's first choice. */
typedef struct states {
    uint32_t count;
    shard_state list[STATES];
} states;
int shard_state_index(const states *set, shard_state state); /* -1: not among them */
void shard_states_add(const chooser *c, end e, states *set);
/* A new variable, a set of states in which every one is that a reader may need: the sets, as bit masks, go to *sets, whoever
 * has no choice being served by all of them. */
uint32_t shard_held(chooser *c, const states *set, const end *readers, size_t n_readers, uint32_t **sets, uint32_t *n_sets);

/* ---- shard_cost.c: time ---- */
void shard_tables_of_time(chooser *c);

/* ---- shard_lives.c ---- */
/* By value: copies of it that lie in memory at the fullest point; 0: none do. Weights, their gradients and states left out. */
double *shard_fullest(const shard *s);

/* ---- shard_memory.c: bytes ---- */
void shard_tables_of_memory(chooser *c);

#endif
