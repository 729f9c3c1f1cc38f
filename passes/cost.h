/* The machine model: how long a collective or an operator takes on the machine of `machine { .. }`, how many bytes a rank
 * sends, over which link, and with which algorithm. It owns no state: everything is computed from the module. `shard`
 * chooses layouts with it, `partition` the steps between two layouts, `explain` prints what it says, and the plan carries
 * the algorithm it picks. Times are seconds, bytes count what one rank sends. */
#ifndef DTM_PASSES_COST_H
#define DTM_PASSES_COST_H

#include "ir/ir.h"
#include "runtime/comm/algorithm.h"

/* The link that a group of ranks talks over. */
typedef struct dtm_link {
    const char *name;          /* "node", "network"; "time" for an axis in time, over which nothing is sent */
    double bandwidth, latency; /* bytes/s, s */
} dtm_link;

/* One execution of a collective. */
typedef struct dtm_collective_cost {
    bool sends;                /* false: a local step (shard, as_term) or an axis in time */
    dtm_collective_kind kind;  /* of a permute: all_to_all, which is how its blocks travel */
    dtm_algorithm algorithm;
    int64_t group;             /* ranks in a group */
    int64_t payload;           /* bytes of the value: the whole of what the group reduces, gathers or exchanges */
    int64_t sent;              /* bytes sent by the rank that sends most */
    dtm_link link;
    double time;
} dtm_collective_cost;

/* The machine of the module, what it does not say filled in from a two-core CPU: 100 GFLOP/s, 20 GB/s of memory, all
 * ranks in one node, 5 GB/s and 2 us between ranks of a node, 1 GB/s and 20 us between nodes. */
dtm_machine dtm_machine_of(const dtm_module *module);

/* The link of groups along these axes: the node's if every such group lies within one node, else the network. */
dtm_link dtm_link_of(const dtm_module *module, uint16_t axes);
/* Ranks in a group along these axes; axes in time do not count. */
int64_t dtm_group_size(const dtm_module *module, uint16_t axes);
/* Ranks that take part in a collective: along a pipeline's axis perhaps not all. */
int64_t dtm_group_of(const dtm_module *module, const dtm_op_data *op);

/* The cheapest algorithm for a collective of `payload` bytes in all among `group` ranks, and its time. */
dtm_algorithm dtm_algorithm_choose(const dtm_module *module, dtm_collective_kind kind, uint16_t axes, int64_t payload,
                                   double *time);
/* The same for an operator of the module: what the plan carries. */
dtm_algorithm dtm_algorithm_of(const dtm_module *module, dtm_op op);

/* The cost of one step from a type to another of the same shape: kind is a collective, SHARD or AS_TERM. */
dtm_collective_cost dtm_step_cost(const dtm_module *module, dtm_op_kind kind, uint16_t axes, const dtm_type_data *from,
                                  const dtm_type_data *to);
/* The cost of a collective operator; a bucket counts all of its operands. */
dtm_collective_cost dtm_collective_cost_of(const dtm_module *module, dtm_op op);
/* Seconds of one like that of an operator, among as many ranks, of another payload. */
double dtm_collective_time_of(const dtm_module *module, dtm_op op, int64_t payload);

/* Seconds of the products that a collective may go in steps with, one after another, and how many they are. */
double dtm_time_of_products(const dtm_module *module, dtm_op op, size_t *products);
/* Seconds from the begin of a collective around a ring, by `ring` or `both_ways`, in steps with `products` products of `seconds` in
 * all, to the end of both, every rank alike. */
double dtm_time_in_steps(const dtm_module *module, dtm_op op, dtm_algorithm algorithm, size_t products, double seconds);
extern const double dtm_seconds_of_step; /* of a step more: a launch, and a look at what has come */

bool dtm_is_collective(dtm_op_kind kind); /* sends something: all_reduce .. permute */

/* Floating-point operations of an operator on the rank that has most, and bytes it reads and writes, as its types say. */
double dtm_op_flops(const dtm_module *module, dtm_op op);
double dtm_op_bytes(const dtm_module *module, dtm_op op);
/* Those of a value that is read: of a number what one of f32 has, as a dump does not say its dtype. */
double dtm_read_bytes(const dtm_module *module, dtm_value value);
double dtm_op_time(const dtm_module *module, dtm_op op);
double dtm_op_compute(const dtm_module *module, dtm_op op); /* the seconds that its FLOPs take */

/* Seconds of one run of each operator, collective and fused region of a module, by operator: of a fused region as one kernel, which
 * moves what enters and leaves it; 0 of what is a part of a kernel, and of a sum that a product is added to by itself. */
double *dtm_run_times(const dtm_module *module, dtm_arena *arena);
/* Seconds of a step: every operator and every collective, one after another. */
double dtm_step_time(dtm_module *module);

#endif
