/* The time of a collective around a ring in steps with products (cost.h). A rank has one port: it sends one message at a time and
 * meanwhile receives one. A message is with its receiver a latency after it is out of its sender, who then has the port free.
 *
 *     ring        port | 1 |..| 2 |..| 3 |..| 4 |..         a block goes on when it has come: .. is the latency
 *     both_ways   port | 1 | 2 | 3 | 4 |..                  while one is on its way, another goes out the other way
 *
 * So both ways the latency of all but one message passes while others are sent, where it is no longer than that takes. */
#include "ir/storage.h"
#include "passes/cost.h"

const double dtm_seconds_of_step = 4e-6;

enum { MOST_STEPS = 1 << 16 };

static double later(double a, double b) { return a > b ? a : b; }

double dtm_time_of_products(const dtm_module *module, dtm_op op, size_t *products) {
    const dtm_region_data *region = &module->regions[dtm_op_get(module, op)->region];
    dtm_op first;
    size_t count = dtm_products_in_steps(module, op, &first), at = count ? (size_t)dtm_op_position(module, first) : 0;
    double seconds = 0;
    *products = 0;
    for (size_t i = at; i < at + count; i++) {
        if (dtm_op_get(module, region->ops[i])->kind != DTM_OP_DOT) continue; /* added up as they are made */
        seconds += dtm_op_time(module, region->ops[i]);
        ++*products;
    }
    return seconds;
}

double dtm_time_in_steps(const dtm_module *module, dtm_op op, dtm_algorithm algorithm, size_t products, double seconds) {
    dtm_collective_cost cost = dtm_collective_cost_of(module, op);
    double n = (double)cost.group, send = (double)cost.payload / n / cost.link.bandwidth;
    double product = seconds / n + (double)products * dtm_seconds_of_step, port = 0, come[2] = {0, 0}, made = product;
    bool gathers = cost.kind == DTM_COLLECTIVE_ALL_GATHER;
    int64_t ways = algorithm == DTM_ALGORITHM_BOTH_WAYS ? 2 : 1, steps = cost.group < MOST_STEPS ? cost.group : MOST_STEPS;
    for (int64_t step = 1; step < steps; step++) {
        double *last = &come[step % ways]; /* what message step - ways brought */
        port = later(port, gathers ? *last : later(*last, (double)step * product)) + send;
        *last = port + cost.link.latency;
        if (gathers) made = later(made, *last) + product;
    }
    return gathers ? made : later(n * product, later(come[0], come[1]));
}
