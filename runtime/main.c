/* The main of every executable that dtmc makes. The linker takes it from libdtm_rt, the plan from the program's plan.c.
 */
#include "runtime/checkpoint.h"
#include "runtime/info.h"
#include "runtime/links.h"
#include "runtime/options.h"
#include "runtime/plan.h"
#include "runtime/probe.h"
#include "runtime/run.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What mpirun tells the processes it starts, before MPI itself is up. */
static long launcher_number(const char *const names[]) {
    for (; *names; names++)
        if (getenv(*names)) return strtol(getenv(*names), NULL, 10);
    return -1;
}

static long launcher_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", NULL};
    return launcher_number(names);
}

static long launcher_size(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
    return launcher_number(names);
}

/* An error that all processes find by themselves is told by the first. */
static int fail(const dtm_status *status) {
    if (launcher_rank() <= 0) fprintf(stderr, "error: %s\n", status->message);
    return 1;
}

/* ---- signals ---- */

static volatile sig_atomic_t tells; /* whether this process says that it was interrupted */

static void interrupted(int signal_number) {
    static const char text[] = "\ninterrupted: nothing was saved\n";
    dtm_checkpoint_discard_all();
    if (tells && signal_number == SIGINT && write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(1);
    _exit(128 + signal_number);
}

static void watch_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = interrupted;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    tells = launcher_rank() <= 0;
}

/* ---- the two ways to run ---- */

static int run_local(dtm_program_run *run) {
    dtm_status status = {0};
    if (launcher_size() > 1) {
        dtm_status_fail(&status,
                        "--local runs all %lld ranks in one process, but mpirun started %ld: leave out one of the two",
                        (long long)run->plan->ranks, launcher_size());
        return fail(&status);
    }
    dtm_links links;
    dtm_local_options options = {.links = run->options->links ? &links : NULL};
    if (run->options->disturb) options.delay = 2e-3, options.seed = (uint64_t)run->options->disturb;
    if (options.links && !dtm_links_read(run->options->links, run->plan->ranks, &links, &status)) return fail(&status);
    if (dtm_local_run_with((int)run->plan->ranks, &options, dtm_run_rank, run, &status)) return 0;
    dtm_checkpoint_discard_all();
    return fail(&status);
}

static bool check_world(const dtm_program_run *run, const dtm_comm *comm, dtm_status *status) {
    const dtm_plan *plan = run->plan;
    int size = dtm_comm_size(comm);
    if (plan->ranks == size) return true;
    char mesh[200] = "";
    for (uint32_t a = 0; a < plan->n_axes; a++) {
        size_t length = strlen(mesh);
        if (!plan->axes[a].time)
            snprintf(mesh + length, sizeof mesh - length, "%s%s = %lld", length ? ", " : "", plan->axes[a].name,
                     (long long)plan->axes[a].size);
    }
    return dtm_status_fail(
        status,
        "the program's mesh { %s } has %lld rank%s, but %d %s started: run `mpirun -n %lld %s %s ..`, or "
        "add --local",
        mesh, (long long)plan->ranks, plan->ranks == 1 ? "" : "s", size, size == 1 ? "was" : "were",
        (long long)plan->ranks, run->options->program, run->options->argv[1]);
}

static int run_mpi(dtm_program_run *run, int *argc, char ***argv) {
    dtm_status status = {0};
    dtm_comm *comm = NULL;
    if (!dtm_comm_open_mpi(argc, argv, &comm, &status)) return fail(&status);
    watch_signals(); /* MPI may have set its own */
    bool ok = check_world(run, comm, &status) && dtm_run_rank(comm, run, &status);
    if (ok) {
        dtm_comm_close(comm);
        return 0;
    }
    if (!status.failed) dtm_status_fail(&status, "failed without a message");
    dtm_checkpoint_discard_all();
    if (dtm_comm_size(comm) > 1) dtm_comm_abort(comm, &status);
    fprintf(stderr, "error: %s\n", status.message);
    dtm_comm_close(comm);
    return 1;
}

/* Of this machine, or of all that a launcher started it on. */
static int run_probe(const dtm_options *options, int *argc, char ***argv) {
    dtm_status status = {0};
    dtm_comm *comm = NULL;
    if (launcher_size() > 1 && !dtm_comm_open_mpi(argc, argv, &comm, &status)) return fail(&status);
    bool ok = dtm_probe(comm, options, &status);
    if (!ok && !status.echo) fprintf(stderr, "error: %s\n", status.message);
    if (comm) dtm_comm_close(comm);
    return !ok;
}

/* One rank that no launcher started needs no MPI, and is spared the start of it. */
static bool alone(const dtm_plan *plan) {
    return plan->ranks == 1 && launcher_rank() < 0;
}

/* The exit status, 1 too where what was printed did not all arrive. */
static int printed(int exit_status) {
    bool flushed = fflush(stdout) == 0;
    if (flushed && !ferror(stdout)) return exit_status;
    fprintf(stderr, "error: cannot write to the standard output%s%s\n", flushed ? "" : ": ",
            flushed ? "" : strerror(errno));
    return 1;
}

int main(int argc, char **argv) {
    dtm_options options;
    dtm_status status = {0};
    const dtm_plan *plan = &dtm_program_plan;
    if (!dtm_options_parse(argc, argv, &options, &status)) return fail(&status);
    if (plan->version != DTM_PLAN_FORMAT) {
        dtm_status_fail(&status, "the plan has format %u, the runtime knows %u: build it again", plan->version,
                        DTM_PLAN_FORMAT);
        return fail(&status);
    }
    switch (options.command) {
    case DTM_COMMAND_HELP:
        dtm_options_help(&options);
        return printed(0);
    case DTM_COMMAND_VERSION:
        dtm_version_print(plan);
        return printed(0);
    case DTM_COMMAND_INFO:
        if (options.devices) return printed(dtm_info_devices(&options, &status) ? 0 : fail(&status));
        if (options.json) return printed(dtm_info_print_json(plan) ? 0 : 1);
        dtm_info_print(plan);
        return printed(0);
    case DTM_COMMAND_PROBE:
        return printed(run_probe(&options, &argc, &argv));
    default:
        break;
    }
    dtm_program_run run = {plan, &options};
    watch_signals();
    return printed(options.local || alone(plan) ? run_local(&run) : run_mpi(&run, &argc, &argv));
}
