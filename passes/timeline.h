/* What is done with timelines (ir/timeline.h): made by the rules of the published schedules, timed under costs, proved,
 * searched for, drawn. Nothing here knows of modules: `stage` and `schedule` bring the costs of a model's stages. */
#ifndef DTM_PASSES_TIMELINE_H
#define DTM_PASSES_TIMELINE_H

#include "ir/timeline.h"

/* ---- timeline_orders.c: schedules with a closed rule ---- */

/* gpipe 1f1b interleaved zbh1 zbv dualpipe dualpipev; chunks 0: as many as the schedule has by itself. NULL after an error
 * (E0902) that says why the schedule is not defined for these numbers and which come nearest. */
dtm_timeline *dtm_timeline_order(dtm_context *context, dtm_arena *arena, dtm_span span, const char *schedule, int ranks,
                                 int microbatches, int chunks);
/* Where a schedule of these names has its stages; of any other, as ranks come. */
dtm_placement dtm_timeline_placement(const char *schedule);
/* Whether it has backward passes in two parts, I and W. */
bool dtm_timeline_splits(const char *schedule);
/* The names, in the order above; NULL from `index` 7 on. */
const char *dtm_timeline_schedule(int index);

/* ---- costs ---- */

/* One stage. Times are in one unit, bytes in another, whatever they are. */
typedef struct dtm_stage_cost {
    double forward, input, weight; /* time of F, I, W; B takes input + weight */
    double hidden;                 /* time that a pair of F and B saves, of two stages the lesser; a pair takes at least
                                      as long as either part */
    double hidden_input;           /* the same for a pair of F and I */
    double later;                  /* with `turns`: how much later F ends in a pair than by itself, at most with the pair */
    double forward_bytes;          /* of what F sends to the next stage */
    double backward_bytes;         /* of what B or I sends to the previous stage */
    double kept;                   /* bytes kept from the beginning of F to the end of B or I */
    double kept_for_weight;        /* from the end of I to the end of W: some of those, and what I makes; may be more */
    double held;                   /* bytes that lie on each rank that has the stage: weights and what belongs to them */
    double forward_links, input_links, weight_links; /* of F, I and W, in collectives: alone, nothing hides them */
    uint32_t shares;               /* a bit for each of what is `shared` that it has besides */
} dtm_stage_cost;

/* Bytes that several units have in common: weights that stand outside of the repeat that is split, and what belongs to them.
 * Once on a rank however many of its units have them, and once in a stage: there each sums gradients for itself. */
typedef struct dtm_shared_bytes {
    double rank, stage;
} dtm_shared_bytes;

/* What is carried out apart from a rank's operations from the end of one of them on (gradients that are added up over ranks), and goes
 * the same ways as messages, piece by piece: between those ranks of the pipeline that take part, or between each and ranks of other
 * axes that do the same. Those of one stream of a rank go one after another. */
typedef struct dtm_timeline_sum {
    int members;
    int *rank;         /* by member: the rank, */
    size_t *operation; /* it can begin so long `before` the end of that operation, */
    double *before;
    int *after;        /* or goes on, copy by copy, from that other sum; -1: from none */
    double span;       /* until the last of `copies` can begin, which come evenly */
    double copies, time, way; /* all copies, by themselves; and of that as long as their bytes have the ways */
    int pieces, stream;
} dtm_timeline_sum;

typedef struct dtm_timeline_costs {
    int stages;
    const dtm_stage_cost *stage;
    double latency, bandwidth; /* a message takes latency + bytes / bandwidth; bandwidth 0: latency alone. As long as its bytes take
                                  it has the way out of its rank and that into the other for itself */
    const double *pair;        /* NULL, or the time of a pair of F and B: [stage of F * stages + stage of B] */
    int slots, buffers;        /* receive slots of each channel (source, destination, F or B): a message moves when one is free; and
                                  a result is made when the one so many before it in its channel has left. 0: without end */
    bool turns;                /* the parts of a pair take turns, F first: it begins when what F needs is there, the other part
                                  may come later, and what F makes is sent when it ends. Else both begin and end together */
    bool divided;              /* a B is its I, and then its W: what it makes is sent when the I ends */
    int n_sums;
    const dtm_timeline_sum *sums; /* NULL: none */
    int n_shared;                 /* what `shares` of stages tells of; what each stage has of it for itself is in its `held` */
    const dtm_shared_bytes *shared;
} dtm_timeline_costs;

/* Bytes that are kept from the beginning of a task on, and that are not any more from its end on. */
double dtm_task_keeps(const dtm_stage_cost *cost, dtm_task_kind kind);
double dtm_task_frees(const dtm_stage_cost *cost, dtm_task_kind kind);
/* Bytes that a rank's stages hold, what they share once. */
double dtm_held_bytes(const dtm_timeline_costs *costs, const dtm_timeline *timeline, int rank);
double dtm_shared_on_rank(const dtm_shared_bytes *shared, int n_shared, uint32_t shares);
double dtm_shared_in_stage(const dtm_shared_bytes *shared, int n_shared, uint32_t shares);

double dtm_task_time(const dtm_timeline_costs *costs, dtm_task_kind kind, int stage);
/* The time of F in one stage overlapped with B or I in another. */
double dtm_pair_time(const dtm_timeline_costs *costs, int forward_stage, dtm_task_kind backward, int backward_stage);
double dtm_message_time(const dtm_timeline_costs *costs, dtm_task_kind kind, int stage);

/* ---- timeline_simulate.c, timeline_clock.c: when everything happens ---- */

typedef struct dtm_rank_times {
    double *start, *end;   /* by operation */
    double first, last;    /* the beginning of its first operation, the end of its last; with `buffers` its messages have left too */
    double busy;           /* in tasks and pairs */
    double exposed;        /* waiting for messages on their way: what faster links could save at most */
    double links;          /* of `busy`, in collectives that nothing hides */
    double kept;           /* the most bytes of activations alive at a time */
    double memory;         /* and with what its stages hold */
    size_t done;           /* operations; fewer than there are where all ranks stand still */
} dtm_rank_times;

/* A result that is sent: when it was made, when its bytes began to move and had left, and when it was there. NAN: never; of one that
 * stays on its rank all but the first. */
typedef struct dtm_message_times {
    double made, begun, left, arrived;
} dtm_message_times;

typedef struct dtm_timeline_times {
    dtm_rank_times *rank;
    dtm_message_times *message; /* by the number of the task that makes it */
    int n_sums;
    double *sum_ended;          /* by sum; NAN: never */
    double makespan;
    double bubble;       /* idle share of all ranks' time */
    double worst_bubble; /* of the rank that is idle most */
    double exposed, memory; /* of the rank that has most */
    double communication;   /* the same of `exposed` and `links` together */
    int waiting;         /* by dtm_timeline_count_messages: the most messages of one channel (source, destination, F or B) made and not yet in use */
    int slots;           /* the same, made and not yet used up: receive buffers with which no send ever waits */
    bool stuck;          /* the ranks wait for each other: times are those until then */
    const char *time_unit, *memory_unit; /* NULL; drawings name what whoever sets them says that figures are in */
} dtm_timeline_times;

/* Each operation begins as soon as its rank is free and what it needs is there: on its own rank when it ends, from another
 * as its message arrives (timeline_clock.c). In a timeline with groups a rank waits for all messages of a group, each of which moves
 * when both sides have come to it. The arrays live in the arena. With slots and buffers the timeline is one that is proved. */
dtm_timeline_times *dtm_timeline_simulate(dtm_arena *arena, const dtm_timeline *timeline, const dtm_timeline_costs *costs);
/* Sets `waiting` and `slots` of a simulation that came to its end; it takes as long as that. */
void dtm_timeline_count_messages(const dtm_timeline *timeline, dtm_timeline_times *times);

/* ---- timeline_prove.c: that it is right before it runs ---- */

typedef struct dtm_timeline_limits {
    int receive_slots; /* buffers of each channel (source, destination, F or B) at its destination; 0: as few as do */
    int send_buffers;  /* at its source: a result is made only when the one so many before it has gone; 0: one */
    double memory;     /* bytes of a rank; 0: no bound */
} dtm_timeline_limits;

typedef struct dtm_rank_memory {
    double held;     /* by its stages */
    double kept;     /* activations, at their most */
    double messages; /* in the receive slots of all channels that end at the rank */
} dtm_rank_memory;

typedef struct dtm_timeline_proof {
    int slots;  /* receive slots a channel: those given, or the fewest with which nothing stands still */
    int ample;  /* the fewest with which no send ever waits for one, however long each operation takes */
    dtm_rank_memory *rank; /* exact, with these slots; NULL without costs */
} dtm_timeline_proof;

/* Shows that each microbatch passes each stage in order, forward before backward, with one weight gradient; that messages
 * match first in, first out in each channel; that nothing can stand still where posting never waits and a message moves
 * only when both sides have posted it; that the receive slots suffice; and what memory each rank needs at most. False
 * after errors (E0903 to E0908), which tell the story. costs may be NULL: then nothing is said of memory. */
bool dtm_timeline_prove(dtm_context *context, dtm_arena *arena, const dtm_timeline *timeline, const dtm_timeline_costs *costs,
                        const dtm_timeline_limits *limits, dtm_timeline_proof *proof);

/* ---- timeline_search.c: schedule = auto ---- */

/* The model as a row of units that stages are cut from (layers, embedding, head): a stage is a stretch of them and costs
 * their sum. Sent on from a stage is what its last unit sends forward, and back what its first unit sends backward. */
typedef struct dtm_timeline_problem {
    int ranks, microbatches;
    int units;
    const dtm_stage_cost *unit;
    int first_layer, layers;    /* the units that published schedules share out evenly; those before go with the first stage,
                                   those after with the last. 0 layers: all units */
    double latency, bandwidth;
    double memory;              /* bytes of a rank; 0: no bound */
    bool no_copies;             /* a stage stands on one rank only */
    int chunks;                 /* of a rank, at most; 0: any number */
    const int *stages;          /* units of each stage, where they are given; NULL: free */
    int n_stages;
    double effort;              /* 1 (or 0): seconds for large problems; time grows in proportion */
    dtm_span span;              /* where an error points */
    bool quiet;                 /* none is reported */
    int n_shared;               /* what `shares` of units tells of, none of it in their `held` */
    const dtm_shared_bytes *shared;
    void (*cut)(const void *state, const dtm_timeline *order, int *units); /* NULL, or how stages are cut for an order elsewhere */
    const void *cut_state;
    double added[DTM_PLACE_BIDIRECTIONAL + 1]; /* by placement: seconds that a step takes after the last microbatch, beside others */
    const struct dtm_timeline_answer *timed; /* of a search of the same units with at least as much memory: published schedules need not be
                                                timed once more. NULL: there is none */
} dtm_timeline_problem;

/* A published schedule on the same problem, its stages cut evenly, so that the busiest rank has least to do, or by the problem's
 * own rule. */
typedef enum dtm_rival_cut { DTM_CUT_EVEN, DTM_CUT_BALANCED, DTM_CUT_OWN, DTM_RIVAL_CUTS } dtm_rival_cut;
typedef struct dtm_timeline_rival {
    const char *name;
    int chunks;
    dtm_rival_cut cut;
    double added;            /* by who searches: after the last microbatch, where stages lie on two ranks */
    double makespan, memory; /* makespan INFINITY: it is not defined for these numbers, or does not fit */
} dtm_timeline_rival;

enum { DTM_TIMELINE_RIVALS = 16 }; /* published schedules that a search is held against */

/* A published schedule on some cut. */
typedef struct dtm_timeline_published {
    int schedule;        /* which of them */
    dtm_placement placement;
    const int *units;    /* by stage: how many */
    double time, memory; /* with what comes after the last microbatch; of the rank that needs most */
    double added;        /* what comes after it */
    bool fits;           /* within the problem's memory */
} dtm_timeline_published;

typedef struct dtm_timeline_answer {
    dtm_timeline *timeline;
    dtm_timeline_costs costs; /* of its stages */
    int *units;               /* by stage: how many */
    double added;             /* after the last microbatch, by who searches */
    dtm_timeline_times *times;
    double bound;             /* no order of operations on these stages, so placed, takes less */
    double least;             /* nor any other cut or placement */
    dtm_timeline_rival *rivals;
    int n_rivals;
    dtm_timeline_published *published; /* all that are defined for these numbers, the quickest first */
    int n_published;
    double work;              /* what all of it took, in tasks placed: of the order of 1e7 in a second */
} dtm_timeline_answer;

/* The quickest timeline found, never slower than any rival that fits in memory; of equally quick ones that with the lower
 * peak. The same problem always has the same answer. False after an error (E0907): nothing fits. */
bool dtm_timeline_search(dtm_context *context, dtm_arena *arena, const dtm_timeline_problem *problem,
                         dtm_timeline_answer *answer);
/* A published order, and such a one in the place of the one that was found. */
dtm_timeline *dtm_timeline_published_order(dtm_arena *arena, const dtm_timeline_problem *problem, const dtm_timeline_published *published);
dtm_timeline_answer *dtm_timeline_answer_with(dtm_arena *arena, const dtm_timeline_problem *problem, const dtm_timeline_answer *found,
                                              const dtm_timeline_published *published, dtm_timeline *order);
/* Reports E0907; bytes of a rank: what the one that needs least of all tried needs (INFINITY: not known), and what there is. */
void dtm_timeline_nothing_fits(dtm_context *context, dtm_span span, double least, double memory);

/* ---- timeline_draw.c, timeline_svg.c, timeline_json.c: seeing it ---- */

enum { DTM_TIMELINE_NARROWEST = 46 };

/* A row a rank, at most `columns` wide (0: 100; never narrower than DTM_TIMELINE_NARROWEST): F B I W and numbers of microbatches, small letters for odd chunks, `X` or
 * both for a pair, `.` idle, `~` idle while a message is on its way; then bubble, exposed communication and memory. */
void dtm_timeline_draw_text(const dtm_timeline *timeline, const dtm_timeline_costs *costs, const dtm_timeline_times *times,
                            int columns, bool colour, dtm_text *text);
/* Breaks the line that was written from there on at spaces, at most `columns` wide; what follows is indented. */
void dtm_timeline_wrap(dtm_text *text, size_t from, int columns);
/* A picture of its own. */
void dtm_timeline_draw_svg(const dtm_timeline *timeline, const dtm_timeline_costs *costs, const dtm_timeline_times *times,
                           dtm_text *text);
/* Chrome's and Perfetto's trace format: a process a rank, with a row of operations and one of messages on their way. One unit
 * of time becomes `microseconds`. */
void dtm_timeline_draw_json(const dtm_timeline *timeline, const dtm_timeline_costs *costs, const dtm_timeline_times *times,
                            double microseconds, dtm_text *text);

#endif
