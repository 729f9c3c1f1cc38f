#include "runtime/profile.h"

#include "kernels/cpu/matmul.h"
#include "runtime/cuda/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPERATORS = 30 };

static const char *const categories[DTM_PLAN_CATEGORIES] = {
    [DTM_PLAN_CONTROL] = "control",       [DTM_PLAN_PRODUCT] = "matrix products", [DTM_PLAN_ATTENTION] = "attention",
    [DTM_PLAN_ROWS] = "norms and losses", [DTM_PLAN_ELEMENTWISE] = "elementwise", [DTM_PLAN_REDUCTION] = "reductions",
    [DTM_PLAN_LOOKUP] = "lookups",        [DTM_PLAN_MOVEMENT] = "copies",         [DTM_PLAN_OPTIMIZER] = "optimizer",
    [DTM_PLAN_NETWORK] = "between ranks", [DTM_PLAN_HOST] = "host and data",
};
const char *dtm_profile_category(dtm_plan_category category) {
    return categories[category];
}

static const char *const phases[] = {"forward", "backward", "update"};

/* One operator: the instructions of one name, phase and category. */
typedef struct operator_time {
    const dtm_plan_instruction *at;
    dtm_profile_entry time;
    double bytes;
} operator_time;

/* Time of one kind of work: measured, and by the model of the program's machine. */
typedef struct kind_time {
    dtm_profile_entry measured;
    double predicted;
} kind_time;

static void add(dtm_profile_entry *to, const dtm_profile_entry *entry) {
    to->seconds += entry->seconds;
    to->work += entry->work;
    to->runs += entry->runs;
}

static int by_name(const void *a, const void *b) {
    const dtm_plan_instruction *x = ((const operator_time *)a)->at, *y = ((const operator_time *)b)->at;
    int order = strcmp(x->name ? x->name : "", y->name ? y->name : "");
    if (!order) order = (int)x->phase - (int)y->phase;
    return order ? order : (int)x->category - (int)y->category;
}

static int by_time(const void *a, const void *b) {
    const operator_time *x = a, *y = b;
    if (x->time.seconds != y->time.seconds) return x->time.seconds < y->time.seconds ? 1 : -1;
    return by_name(a, b);
}

static void print_line(const char *name, const dtm_profile_entry *e, double bytes, int64_t steps, double seconds) {
    printf("  %-40s %9.3f ms %5.1f%%", name, 1e3 * e->seconds / (double)steps, 100 * e->seconds / seconds);
    if (e->work > 0) printf("  %8.2f GFLOP/s", e->work / e->seconds * 1e-9);
    else if (bytes > 0) printf("  %8.2f GB/s", bytes / e->seconds * 1e-9);
    printf("\n");
}

static double bytes_of_block(const dtm_rank *rank, uint32_t buffer) {
    const dtm_plan_buffer *b = &rank->plan->buffers[buffer];
    double bytes = b->dtype == DTM_PLAN_F32 || b->dtype == DTM_PLAN_I32 ? 4 : b->dtype == DTM_PLAN_F16 || b->dtype == DTM_PLAN_BF16 ? 2 : 1;
    for (int d = 0; d < b->rank; d++) bytes *= (double)rank->extents[b->dims[d]].size;
    return bytes;
}

/* Bytes that the runs of a launch move at least: each of its blocks once. */
static double bytes_moved(const dtm_rank *rank, uint32_t instruction) {
    const dtm_plan_instruction *at = &rank->plan->instructions[instruction];
    if (at->kind != DTM_PLAN_KERNEL) return 0;
    const dtm_plan_launch *l = &at->kernel;
    uint32_t each = l->buffers.count / l->tuples;
    double bytes = 0;
    for (uint32_t i = 0; i < l->buffers.count; i++) {
        double copies = 1;
        for (uint32_t loop = l->loops.items[i / each]; loop; loop = rank->plan->loops[loop].parent) copies *= (double)rank->plan->loops[loop].copies;
        bytes += copies * bytes_of_block(rank, l->buffers.items[i]);
    }
    return bytes * (double)rank->profile[instruction].runs;
}

static void print_predicted(const char *name, const kind_time *k, int64_t steps, double seconds) {
    char predicted[40] = "";
    if (k->predicted > 0)
        snprintf(predicted, sizeof predicted, "%9.3f ms predicted", 1e3 * k->predicted / (double)steps);
    printf("  %-20s %9.3f ms %5.1f%%  %22s", name, 1e3 * k->measured.seconds / (double)steps,
           100 * k->measured.seconds / seconds, predicted);
    if (k->measured.work > 0) printf("  %8.2f GFLOP/s", k->measured.work / k->measured.seconds * 1e-9);
    printf("\n");
}

/* What is predicted is of the machine that the program names, each instruction by itself: it knows nothing of waiting. */
static void print_categories(const dtm_rank *rank, int64_t steps, double seconds) {
    kind_time sums[DTM_PLAN_CATEGORIES] = {{{0}, 0}}, rest = {.measured.seconds = seconds}, all = rest;
    for (uint32_t i = 0; i < rank->plan->n_instructions; i++) {
        const dtm_plan_instruction *at = &rank->plan->instructions[i];
        double predicted = at->seconds * (double)rank->profile[i].runs;
        add(&sums[at->category].measured, &rank->profile[i]);
        sums[at->category].predicted += predicted;
        all.predicted += predicted;
    }
    printf("\nby kind of work, a step, and what the cost model predicts for the program's machine\n");
    for (int c = 0; c < DTM_PLAN_CATEGORIES; c++) {
        rest.measured.seconds -= sums[c].measured.seconds;
        if (sums[c].measured.runs) print_predicted(categories[c], &sums[c], steps, seconds);
    }
    print_predicted("the rest", &rest, steps, seconds);
    print_predicted("all", &all, steps, seconds);
    if (rank->plan->seconds <= 0 || rank->forward_only) return;
    printf("\na step of all ranks %.3f ms, %.3f ms predicted, with what runs beside computing and waiting for others\n",
           1e3 * seconds / (double)steps, 1e3 * rank->plan->seconds);
}

static void print_operators(const dtm_rank *rank, int64_t steps, double seconds) {
    uint32_t n = rank->plan->n_instructions, kept = 0;
    operator_time *list = malloc(((size_t)n + 1) * sizeof *list);
    if (!list) return;
    for (uint32_t i = 0; i < n; i++)
        if (rank->profile[i].runs) list[kept++] = (operator_time){&rank->plan->instructions[i], rank->profile[i], bytes_moved(rank, i)};
    qsort(list, kept, sizeof *list, by_name);
    uint32_t groups = 0;
    for (uint32_t i = 0; i < kept; i++) {
        if (groups && by_name(&list[groups - 1], &list[i]) == 0) {
            add(&list[groups - 1].time, &list[i].time);
            list[groups - 1].bytes += list[i].bytes;
        } else
            list[groups++] = list[i];
    }
    qsort(list, groups, sizeof *list, by_time);
    printf("\nby operator, a step%s\n", groups > OPERATORS ? ", those that take most" : "");
    for (uint32_t i = 0; i < groups && i < OPERATORS; i++) {
        char name[128];
        const dtm_plan_instruction *at = list[i].at;
        snprintf(name, sizeof name, "%-8s %.24s (line %u)", phases[at->phase], at->name ? at->name : "?", at->line);
        print_line(name, &list[i].time, list[i].bytes, steps, seconds);
    }
    free(list);
}

void dtm_profile_print(const dtm_rank *rank, int64_t steps, double seconds) {
    if (!rank->profile || steps <= 0 || seconds <= 0) return;
    char on[200], products[64];
    snprintf(on, sizeof on, "%d thread%s, kernels for x86-64-v%d", rank->threads, rank->threads == 1 ? "" : "s", rank->level);
    snprintf(products, sizeof products, "%s, of bf16 by %s", dtm_matmul_name(), dtm_matmul_bf16_name());
    if (rank->device) {
        snprintf(on, sizeof on, "%s, each operation waited for", rank->device->name);
        dtm_device_products_name(rank->device, products);
    }
    printf("profile of rank %d: %lld step%s, %.3f ms%s, %s, products by %s\n", dtm_comm_rank(rank->comm), (long long)steps,
           steps == 1 ? "" : "s", 1e3 * seconds / (double)steps, steps == 1 ? "" : " each", on, products);
    print_categories(rank, steps, seconds);
    print_operators(rank, steps, seconds);
    printf("\nsent by this rank: %.0f bytes a step\n", (double)dtm_comm_sent_bytes(rank->comm) / (double)steps);
}

/* ---- of a pipeline: all its stages ---- */

typedef struct stage_time {
    double computing, predicted, between; /* seconds of all steps: kernels, what the model says of them, collectives and messages */
    int64_t rank;
} stage_time;

static stage_time time_of(const dtm_rank *rank) {
    stage_time t = {.rank = dtm_comm_rank(rank->comm)};
    for (uint32_t i = 0; i < rank->plan->n_instructions; i++) {
        const dtm_plan_instruction *at = &rank->plan->instructions[i];
        const dtm_profile_entry *is = &rank->profile[i];
        if (at->category == DTM_PLAN_NETWORK) {
            t.between += is->seconds;
        } else {
            t.computing += is->seconds;
            t.predicted += at->seconds * (double)is->runs;
        }
    }
    return t;
}

static void print_stages(const dtm_rank *rank, const stage_time *slowest, int64_t n, int64_t steps) {
    const double ms = 1e3 / (double)steps;
    printf("\nalong %s, a step of the rank that computes longest at each coordinate\n", rank->plan->axes[rank->plan->stage_axis].name);
    for (int64_t c = 0; c < n; c++)
        printf("  %3lld  rank %-5lld computes %9.3f ms %9.3f ms predicted, between ranks %9.3f ms\n", (long long)c,
               (long long)slowest[c].rank, ms * slowest[c].computing, ms * slowest[c].predicted, ms * slowest[c].between);
}

bool dtm_profile_print_stages(const dtm_rank *rank, int64_t steps, dtm_status *status) {
    if (!rank->profile || !rank->plan->n_stages || steps <= 0) return true;
    dtm_group *world = dtm_comm_world(rank->comm);
    int64_t n = rank->plan->axes[rank->plan->stage_axis].size, coordinates[DTM_PLAN_AXES];
    stage_time own = time_of(rank), *slowest = calloc((size_t)n, sizeof *slowest);
    if (!slowest) dtm_status_fail(status, "out of memory for the profile");
    bool ok = dtm_comm_agree(rank->comm, status);
    dtm_group_label(world, "gathering the profile");
    if (ok && own.rank != 0) ok = dtm_send(world, 0, &own, sizeof own, status);
    for (int r = 0; ok && own.rank == 0 && r < dtm_comm_size(rank->comm); r++) {
        stage_time of = own;
        ok = r == 0 || dtm_receive(world, r, &of, sizeof of, status);
        dtm_coordinates_of(rank->plan, r, coordinates);
        stage_time *at = &slowest[coordinates[rank->plan->stage_axis]];
        if (of.computing > at->computing) *at = of;
    }
    dtm_group_label(world, NULL);
    if (ok && own.rank == 0) print_stages(rank, slowest, n, steps);
    free(slowest);
    return ok;
}
