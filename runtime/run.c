#include "runtime/run.h"

#include "ir/fault.h"
#include "runtime/checkpoint.h"
#include "runtime/data.h"
#include "runtime/info.h"
#include "runtime/probe.h"
#include "runtime/profile.h"
#include "runtime/simulate.h"
#include "runtime/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct session {
    dtm_rank rank;
    dtm_log *log; /* rank 0's; NULL elsewhere */
    int64_t steps;
    double tokens; /* of a step, all ranks */
    double seconds, loss_sum;
    dtm_log_report *others; /* reports that have no field of their own in the log */
} session;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static bool is_first(const session *s) {
    return dtm_comm_rank(s->rank.comm) == 0;
}

/* ---- data ---- */

/* Whether a kernel looks this input up as indices: then a negative one is an error. */
static bool is_looked_up(const dtm_plan *plan, uint32_t input) {
    for (uint32_t i = 0; i < plan->n_instructions; i++) {
        const dtm_plan_instruction *in = &plan->instructions[i];
        if (in->kind != DTM_PLAN_INPUT || in->io.index != input) continue;
        for (uint32_t k = 0; k < plan->n_instructions; k++) {
            const dtm_plan_instruction *at = &plan->instructions[k];
            if (at->kind == DTM_PLAN_KERNEL && at->kernel.error && at->kernel.error_buffer == in->io.buffer)
                return true;
        }
    }
    return false;
}

static bool open_data(session *s, dtm_status *status) {
    const dtm_plan *plan = s->rank.plan;
    const dtm_options *options = s->rank.options;
    dtm_data_input *inputs = calloc((size_t)plan->n_inputs + 1, sizeof *inputs);
    if (!inputs) return dtm_status_fail(status, "out of memory for the inputs");
    bool ok = true;
    for (uint32_t i = 0; ok && i < plan->n_inputs; i++) {
        const dtm_plan_input *in = &plan->inputs[i];
        inputs[i] = (dtm_data_input){.name = in->name,
                                     .is_f32 = in->dtype == DTM_PLAN_F32,
                                     .rank = in->rank,
                                     .vocabulary = in->limit,
                                     .accepts_negative = !is_looked_up(plan, i),
                                     .line = in->line};
        for (int d = 0; d < in->rank; d++) {
            inputs[i].shape[d] = in->dims[d].size;
            inputs[i].dims[d] = in->dims[d].name;
        }
        if (in->dtype != DTM_PLAN_F32 && in->dtype != DTM_PLAN_I32)
            ok = dtm_status_fail(status, "input `%s`: this version reads inputs of f32 and i32", in->name);
    }
    dtm_data_options wanted = {.path = options->data,
                               .format = options->format,
                               .inputs = inputs,
                               .count = (int)plan->n_inputs,
                               .seed = s->rank.seed + (dtm_fault(29) ? (uint64_t)dtm_comm_rank(s->rank.comm) : 0),
                               .in_order = s->rank.forward_only,
                               .steps = s->steps > 0 ? s->steps : -1};
    ok = ok && dtm_data_open(&wanted, &s->rank.data, status);
    free(inputs);
    return ok;
}

static bool choose_steps(session *s, dtm_status *status) {
    int64_t there = dtm_data_steps(s->rank.data), first = s->rank.options->trace_first;
    const char *path = s->rank.options->data;
    if (s->steps <= 0) s->steps = there;
    if (s->rank.forward_only && there == 0) s->steps = 0;
    if (s->rank.forward_only && there > 0 && s->steps > there)
        return dtm_status_fail(status, "%s holds %lld batch%s, fewer than --steps %lld", path, (long long)there,
                               there == 1 ? "" : "es", (long long)s->steps);
    if (s->steps > 0 && first > s->steps)
        return dtm_status_fail(status, "--trace-steps begins at step %lld, and there %s %lld", (long long)first,
                               s->steps == 1 ? "is" : "are", (long long)s->steps);
    if (s->steps > 0) return true;
    return dtm_status_fail(status, "%s holds less than one batch: fewer samples than sequences in a step",
                           path);
}

/* Tokens are counted by the input of that name, else by the first of whole numbers. */
static double tokens_of(const dtm_plan *plan) {
    const dtm_plan_input *found = NULL;
    for (uint32_t i = 0; i < plan->n_inputs; i++) {
        const dtm_plan_input *in = &plan->inputs[i];
        if (in->dtype == DTM_PLAN_I32 && (!found || !strcmp(in->name, "tokens"))) found = in;
    }
    double tokens = found ? 1 : 0;
    for (int d = 0; found && d < found->rank; d++) tokens *= (double)found->dims[d].size;
    return tokens;
}

/* ---- before the first step ---- */

static bool open_log(session *s, dtm_status *status) {
    const dtm_options *options = s->rank.options;
    if (!is_first(s)) return true;
    char *header = dtm_info_header(&s->rank, s->steps);
    if (!header) return dtm_status_fail(status, "out of memory for the log");
    bool ok = dtm_log_open(options->log, header, false, options->quiet, &s->log, status);
    free(header);
    return ok;
}

static bool check_outputs(const session *s, dtm_status *status) {
    const dtm_options *options = s->rank.options;
    if (!is_first(s)) return true;
    return (!options->save_weights || dtm_check_writable(options->save_weights, status)) &&
           (!options->save_grads || dtm_check_writable(options->save_grads, status)) &&
           (!options->trace || dtm_check_writable(options->trace, status));
}

static bool prepare(session *s, dtm_status *status) {
    dtm_rank *rank = &s->rank;
    const dtm_options *options = rank->options;
    rank->learning_rate = NAN;
    s->others = calloc((size_t)rank->plan->n_instructions + 1, sizeof *s->others);
    bool ok = s->others || dtm_status_fail(status, "out of memory for reports");
    ok = ok && open_data(s, status) && choose_steps(s, status) && check_outputs(s, status) && open_log(s, status);
    if (!ok) status->failed = true;
    if (!dtm_comm_agree(rank->comm, status)) return false;
    s->tokens = tokens_of(rank->plan);
    if (!dtm_trace_open(rank, status)) return false;
    if (options->simulate && is_first(s))
        fprintf(stderr, "simulated: kernels sleep for their modelled time; losses and gradient norms mean nothing\n");
    if (options->simulate) return true;
    if (options->load && !dtm_weights_load(rank, options->load, status)) return false;
    bool zeroed = options->load && !rank->device; /* memory of the system is, and so are states then */
    if (!zeroed && !dtm_rank_initialize(rank, options->load != NULL, status)) return false;
    return dtm_rank_start(rank, status);
}

/* ---- steps ---- */

static double take_report(dtm_rank *rank, const char *name) {
    for (int i = 0; i < rank->n_reports; i++)
        if (!strcmp(rank->reports[i].name, name)) return rank->reports[i].value;
    return NAN;
}

static bool log_step(session *s, int64_t step, double seconds, dtm_status *status) {
    dtm_rank *rank = &s->rank;
    dtm_log_step line = {.step = step + 1,
                         .steps = s->steps,
                         .trains = !rank->forward_only,
                         .tokens = s->tokens,
                         .seconds = seconds,
                         .loss = take_report(rank, "loss"),
                         .grad_norm = take_report(rank, "grad_norm"),
                         .lr = isnan(rank->learning_rate) ? take_report(rank, "learning_rate") : rank->learning_rate,
                         .reports = s->others};
    for (int i = 0; i < rank->n_reports; i++) {
        const char *name = rank->reports[i].name;
        if (strcmp(name, "loss") && strcmp(name, "grad_norm") && strcmp(name, "learning_rate"))
            s->others[line.report_count++] = rank->reports[i];
    }
    s->loss_sum += line.loss;
    return !s->log || dtm_log_write(s->log, &line, status);
}

/* Of steps that need nothing of their own a device has one before it while the host reads what the last one told. */
static bool runs_ahead(const dtm_rank *rank, bool last) {
    return rank->device && !last && !rank->profile && !rank->trace && !rank->options->check_replicas;
}

/* Takes the steps that have been started and are not to stay under way, and logs them. */
static bool take_steps(session *s, int64_t *taken, int64_t until, double *before, dtm_status *status) {
    for (; *taken < until; ++*taken) {
        if (!dtm_rank_take_step(&s->rank, *taken, status)) return false;
        double after = now();
        if (!log_step(s, *taken, after - *before, status)) return false;
        *before = after;
    }
    return true;
}

static bool run_steps(session *s, dtm_status *status) {
    dtm_rank *rank = &s->rank;
    const char *gradients = rank->options->save_grads;
    double begin = now(), before = begin;
    int64_t taken = 0;
    dtm_comm_link(rank->comm, true);
    dtm_simulate_begin(rank);
    for (int64_t step = 0; step < s->steps; step++) {
        bool last = step + 1 == s->steps;
        if (last && gradients && !dtm_gradients_begin(rank, gradients, status)) return false;
        dtm_trace_begin_step(rank, step);
        if (!dtm_rank_step(rank, step, status)) return false;
        dtm_trace_end_step(rank);
        if (!take_steps(s, &taken, runs_ahead(rank, last) ? step : step + 1, &before, status)) return false;
        if (last && gradients && !dtm_gradients_end(rank, status)) return false;
    }
    dtm_simulate_end(rank);
    dtm_comm_link(rank->comm, false);
    s->seconds = now() - begin;
    return true;
}

static bool finish(session *s, dtm_status *status) {
    dtm_rank *rank = &s->rank;
    const char *weights = rank->options->save_weights;
    if (weights && !dtm_weights_save(rank, weights, status)) return false;
    if (!dtm_trace_write(rank, status)) return false;
    dtm_log *log = s->log;
    s->log = NULL;
    if (!dtm_log_close(log, status)) return false;
    if (is_first(s) && rank->forward_only)
        printf("loss %.6f, the mean of %lld batch%s\n", s->loss_sum / (double)s->steps, (long long)s->steps,
               s->steps == 1 ? "" : "es");
    if (is_first(s) && rank->options->check_replicas)
        printf("replicas: %lld comparison%s, equal in every bit\n", (long long)rank->replicas_compared,
               rank->replicas_compared == 1 ? "" : "s");
    if (is_first(s)) dtm_profile_print(rank, s->steps, s->seconds);
    if (!dtm_profile_print_stages(rank, s->steps, status)) return false;
    fflush(stdout);
    return true;
}

/* ---- the run ---- */

/* What is for GPUs is not passed over by a program for CPUs. */
static bool fits_target(const dtm_plan *plan, const dtm_options *options, dtm_status *status) {
    const char *flag = options->cuda_libs ? "--cuda-libs" : options->cache ? "--cache" : options->no_graph ? "--no-graph" : options->generated_products ? "--generated-products" : options->tune ? "--tune" : NULL;
    if (options->verbs && !plan->n_stages) return dtm_status_fail(status, "--p2p verbs carries messages of a pipeline: the program has none");
    return plan->cuda || !flag || dtm_status_fail(status, "%s is for programs that run on GPUs: this one was built for CPUs, without --target cuda", flag);
}

static bool wanted_steps(session *s, const dtm_plan *plan, const dtm_options *options, dtm_status *status) {
    if (!fits_target(plan, options, status)) return false;
    s->rank.forward_only = options->command == DTM_COMMAND_EVAL;
    s->steps = options->steps;
    if (s->rank.forward_only) return true;
    if (!plan->train.present)
        return dtm_status_fail(status, "the program has no `train` section: it says no optimizer to train with");
    if (s->steps < 0) s->steps = plan->train.steps;
    return true;
}

bool dtm_run_rank(dtm_comm *comm, void *argument, dtm_status *status) {
    const dtm_program_run *run = argument;
    session s;
    memset(&s, 0, sizeof s);
    dtm_comm_link(comm, false); /* steps alone go over them */
    bool ok = wanted_steps(&s, run->plan, run->options, status) && dtm_probe_check(comm, run->options, status) &&
              dtm_rank_load(&s.rank, run->plan, run->options, comm, status) && prepare(&s, status) &&
              run_steps(&s, status) && finish(&s, status);
    /* What was sent has come; that it has must be known to who sent it before an adapter forgets. */
    ok = ok && (!s.rank.verbs || dtm_comm_barrier(comm, status));
    s.rank.failed = !ok;
    if (s.log) {
        dtm_status ignored = {0};
        dtm_log_close(s.log, &ignored);
    }
    free(s.others);
    dtm_gradients_drop(&s.rank);
    if (s.rank.comm) dtm_comm_quiet(comm);
    dtm_trace_close(&s.rank);
    dtm_rank_unload(&s.rank);
    return ok;
}
