#include "runtime/simulate.h"

#include <sys/prctl.h>
#include <time.h>

/* A rank is ahead of the clock by what it has not slept yet: times of a few microseconds are slept together. It sleeps at the
 * latest before it talks to others. Where it has slept too long it is behind, and catches up. */
static const double NAP_SECONDS = 2e-4;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void catch_up(void *argument) {
    const dtm_rank *rank = argument;
    double rest = rank->simulated - now();
    if (rest > 0) nanosleep(&(struct timespec){(time_t)rest, (long)((rest - (double)(time_t)rest) * 1e9)}, NULL);
}

/* After it has waited for others: what it was behind is gone. */
static void go_on(void *argument, double ended) {
    dtm_rank *rank = argument;
    if (rank->simulated < ended) rank->simulated = ended;
}

void dtm_simulate_begin(dtm_rank *rank) {
    if (!rank->options->simulate) return;
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0); /* nanoseconds */
    rank->simulated = now();
    dtm_comm_pretend(rank->comm, true);
    dtm_comm_pace(rank->comm, catch_up, go_on, rank);
}

void dtm_simulate_end(dtm_rank *rank) {
    if (!rank->options->simulate) return;
    catch_up(rank);
    dtm_comm_pace(rank->comm, NULL, NULL, NULL);
    dtm_comm_pretend(rank->comm, false);
}

/* What has to do with other ranks takes as long as the links make it; numbers of the host are made, as they take no time. */
static bool is_work(dtm_plan_kind kind) {
    return kind == DTM_PLAN_KERNEL || kind == DTM_PLAN_MATMUL || kind == DTM_PLAN_COPY || kind == DTM_PLAN_TERM ||
           kind == DTM_PLAN_INPUT || kind == DTM_PLAN_GRADIENT;
}

bool dtm_simulate(dtm_rank *rank, const dtm_plan_instruction *at) {
    if (!is_work(at->kind)) return false;
    rank->simulated += at->seconds;
    if (rank->simulated - now() > NAP_SECONDS) catch_up(rank);
    return true;
}
