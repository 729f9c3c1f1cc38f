/* Within the search for a timeline: the instance (a placement with the costs of its stages), plans (an order for each rank),
 * and what makes plans from it. Microbatches of a direction are alike, so each chunk takes them in order: a plan is a list
 * of kinds and chunks for each rank, and which microbatch a turn is for follows from counting. */
#ifndef DTM_PASSES_TIMELINE_SEARCH_H
#define DTM_PASSES_TIMELINE_SEARCH_H

#include "passes/timeline.h"

/* ---- timeline_instance.c: instances and plans ---- */

/* A chunk of a rank: node rank * chunks + chunk. */
typedef struct search_node {
    int rank, stage;
    int before, after;       /* the nodes of the stages before and after it on its way; -1: none */
    int count;               /* microbatches that pass it */
    double time[4];          /* by dtm_task_kind */
    double to_after, to_before; /* time of a message; 0 within a rank */
    double way_after, way_before; /* and of that as long as it has the ways of both ranks for itself */
    int channel[2];          /* by which what F, I need comes; -1: it does not come from another rank */
    int stream[2];           /* the nodes of a rank whose F, I go to the same rank; -1: it stays */
    double kept, kept_for_weight; /* what I makes and W reads is counted from F on */
    double least_kept;            /* before I makes it */
} search_node;

enum { SEARCH_CHUNKS = 64 }; /* of a rank, at most */
enum { SEARCH_CHANNELS = 4 }; /* that end at a rank: from the rank before and the rank after it, of F and of B */

typedef struct search_instance {
    const dtm_timeline_costs *costs;
    dtm_placement placement;
    int ranks, microbatches, chunks, n_nodes;
    search_node *nodes;
    double *room;   /* by rank: bytes for activations; INFINITY: no bound */
    double *whole;  /* by rank: bytes of one microbatch in all chunks that it passes */
    bool bounded;   /* whether there is a bound on memory */
    bool shared;    /* whether a channel serves several chunks */
    bool pairs, input_pairs; /* whether overlapping F with B, with I saves anything */
    double cycle;   /* time of one microbatch on the rank that has most to do */
} search_instance;

/* NULL: a rank has not enough memory for one microbatch. */
search_instance *search_instance_create(dtm_arena *arena, const dtm_timeline_costs *costs, dtm_placement placement, int ranks,
                                        int microbatches, int chunks, double memory);
/* What overlapping an F in one node with a B (or an I) in another saves. */
double search_saving(const search_instance *instance, int forward, int backward, bool whole);

/* What a rank does at a turn: a task in a chunk, or a pair of an F in a chunk and a B or I in another. */
typedef enum search_kind { TURN_F = DTM_TASK_FORWARD, TURN_B, TURN_I, TURN_W, TURN_FB, TURN_FI } search_kind;
typedef struct search_turn {
    uint8_t kind;
    uint16_t chunk, other; /* other: of a pair's B or I */
} search_turn;

typedef struct search_plan {
    search_turn *turns;  /* of all ranks, one after another */
    uint32_t *begin;     /* by rank; ranks + 1 of them */
    double makespan;     /* INFINITY: it stood still for want of memory */
} search_plan;

search_plan search_plan_create(dtm_arena *arena, const search_instance *instance);
void search_plan_copy(const search_instance *instance, search_plan *to, const search_plan *from);
dtm_timeline *search_plan_timeline(dtm_arena *arena, const search_instance *instance, const search_plan *plan,
                                   const char *name);

/* ---- timeline_dispatch.c: a plan from priorities ---- */

/* When each F and each I is due, by [node * microbatches + microbatch]: of what it can do a rank does what is due first. W
 * fill what is left. */
typedef struct search_policy {
    double *due[2];      /* of F, of I */
    double patience;     /* share of a W that may still be running when something else arrives */
    double foresight;    /* share of an operation's time that a rank waits for another that is due before it */
    double partner;      /* share of a pair's saving that may be spent waiting for a partner */
    double alone;        /* so many first I of each chunk are not overlapped: the sooner others have something to overlap */
    bool strict;         /* F and I exactly in the order in which they are due, whatever the wait */
    bool planned;        /* an F may come before it is due only if all that is due before it still finds memory */
    bool ordered;        /* what goes to one rank is sent in the order in which it is due */
} search_policy;

search_policy search_policy_create(dtm_arena *arena, const search_instance *instance);
void search_policy_copy(const search_instance *instance, search_policy *to, const search_policy *from);

typedef struct search_dispatcher search_dispatcher;
search_dispatcher *search_dispatcher_create(dtm_arena *arena, const search_instance *instance);
/* Another instance, with at most as many chunks on the same ranks. */
void search_dispatcher_use(search_dispatcher *dispatcher, const search_instance *instance);
/* One that would take longer than `most` is left as soon as that is seen: its makespan is then a bound, more than `most` and finite, and
 * it has no turns. */
void search_dispatch(search_dispatcher *dispatcher, const search_policy *policy, double most, search_plan *plan);
/* Of the latest plan: the mean time at which a microbatch has passed, for telling plans of equal makespan apart. */
double search_mean_end(const search_dispatcher *dispatcher);

/* ---- timeline_style.c: priorities from a few numbers ---- */

/* Every published schedule, once it is under way, begins the same task of each next microbatch a fixed time later, and goes
 * from stage to stage at a fixed pace for each kind and direction of travel: such a pattern is a style. */
typedef struct search_style {
    double pace[4];   /* F down (even chunks of v; all of others), F up, I down (where F was up), I up: in times of the task */
    double turn;      /* between the last F and the first I of a microbatch, in times of that F */
    double spacing;   /* of microbatches, in cycles */
    bool groups;      /* microbatches come in groups of as many as there are ranks, which pass a chunk one after another */
    double patience, foresight, partner, alone; /* of the policy */
    bool strict, planned, ordered;
} search_style;

/* The pseudo-random numbers of the search, always the same. */
double search_random(uint64_t *state); /* in [0, 1) */
/* The index-th style to try: first those of known schedules, then drawn ones. */
search_style search_style_number(int index, const search_instance *instance, uint64_t *state);
search_style search_style_near(const search_style *style, const search_instance *instance, uint64_t *state);
void search_style_policy(const search_style *style, const search_instance *instance, search_policy *policy);
/* Changes some priorities of a policy a little. */
void search_policy_shake(const search_instance *instance, search_policy *policy, uint64_t *state);

/* ---- timeline_bound.c: what no plan can beat ---- */

double search_bound(const search_instance *instance);
/* And what no plan can beat for any cut of the units and any placement: of copies on one rank, or of two directions. */
double search_bound_any(const dtm_timeline_problem *problem);

/* Whether stages may stand on two ranks, one for either direction: half of the microbatches goes each way, of an odd number one more
 * the first. */
bool search_both_ways(const dtm_timeline_problem *problem);

/* ---- timeline_cut.c: stages from units ---- */

dtm_timeline_costs search_cut_costs(dtm_arena *arena, const dtm_timeline_problem *problem, int stages, const int *units);
/* As published schedules cut: layers evenly, what comes before and after them with the first and the last stage. */
void search_cut_even(const dtm_timeline_problem *problem, int stages, int *units);
/* So that the rank that is done last by its own work, begun as early as it can be, is done early; or so that the busiest
 * rank has least to do, whenever that is. Goes uphill from a few cuts, looking at `effort` stages from each; returns at how many. */
double search_cut_balanced(const dtm_timeline_problem *problem, dtm_placement placement, int chunks, bool work_only, double effort,
                           int *units);

/* ---- timeline_orders.c, timeline_rivals.c: what there is already ---- */

/* The order by rule, also of interleavedzb and interleaved_moeoverlap; NULL: not defined for these numbers. */
dtm_timeline *search_rule(dtm_arena *arena, const char *schedule, int ranks, int microbatches, int chunks);
/* The index-th rival's name and chunks. False from the last on. */
bool search_rival(int index, const char **name, int *chunks);
/* Its order; NULL: not defined. *work: adds the tasks placed for it. */
dtm_timeline *search_rival_order(dtm_arena *arena, int index, const dtm_timeline_problem *problem, double *work);

#endif
