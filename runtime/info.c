#include "runtime/info.h"

#include "kernels/cpu/matmul.h"
#include "runtime/cuda/device.h"
#include "runtime/json.h"
#include "runtime/probe.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool holds(const dtm_plan *plan, const char *name) {
    for (uint32_t w = 0; w < plan->n_weights; w++) {
        char other[512];
        dtm_weight_name(plan, &plan->weights[w], 0, other, sizeof other);
        if (strcmp(name, other) == 0) return true;
    }
    return false;
}

/* Whether a plan before this one of the same pipeline has the weight too. */
static bool counted_before(const dtm_plan *plan, const dtm_plan_weight *weight) {
    char name[512];
    dtm_weight_name(plan, weight, 0, name, sizeof name);
    for (uint32_t s = 0; s < plan->n_stages && plan->stages[s] != plan; s++)
        if (holds(plan->stages[s], name)) return true;
    return false;
}

/* Elements of the weights of all stages, each once. */
static int64_t count_weights(const dtm_plan *plan, bool frozen_only) {
    int64_t count = 0;
    uint32_t plans = plan->n_stages ? plan->n_stages : 1;
    for (uint32_t s = 0; s < plans; s++) {
        const dtm_plan *of = plan->n_stages ? plan->stages[s] : plan;
        for (uint32_t w = 0; w < of->n_weights; w++) {
            const dtm_plan_weight *weight = &of->weights[w];
            if (weight->state || (frozen_only && !weight->frozen) || counted_before(of, weight)) continue;
            count += dtm_weight_elements(weight) * dtm_weight_copies(of, weight);
        }
    }
    return count;
}

int64_t dtm_parameters(const dtm_plan *plan) { return count_weights(plan, false); }

static int64_t frozen_parameters(const dtm_plan *plan) { return count_weights(plan, true); }

static const char *compiler_of(const dtm_plan *plan) {
    return plan->compiler && *plan->compiler ? plan->compiler : DTM_RUNTIME_VERSION;
}

typedef struct memory_kind {
    const char *name;
    int64_t bytes;
} memory_kind;

enum { MEMORY_KINDS = 7 };

static void memory_kinds(const dtm_plan *plan, memory_kind kinds[MEMORY_KINDS]) {
    const dtm_plan_memory *m = &plan->memory;
    const memory_kind all[MEMORY_KINDS] = {{"weights", m->weights},     {"gradients", m->gradients},
                                           {"optimizer", m->optimizer}, {"activations", m->activations},
                                           {"workspace", m->workspace}, {"communication", m->communication},
                                           {"fragmentation", m->fragmentation}};
    memcpy(kinds, all, sizeof all);
}

/* ---- words ---- */

static void print_mesh(const dtm_plan *plan) {
    printf("mesh         {");
    for (uint32_t a = 0, n = 0; a < plan->n_axes; a++)
        if (!plan->axes[a].time)
            printf("%s %s = %lld", n++ ? "," : "", plan->axes[a].name, (long long)plan->axes[a].size);
    printf(" }, %lld rank%s\n", (long long)plan->ranks, plan->ranks == 1 ? "" : "s");
    if (plan->microbatches > 1) printf("microbatches %lld\n", (long long)plan->microbatches);
}

static void print_memory(const dtm_plan *plan) {
    char which[64] = "a rank";
    for (uint32_t p = 0; p < plan->n_stages; p++)
        if (plan->stages[p] == plan) snprintf(which, sizeof which, "a rank with %s = %u", plan->axes[plan->stage_axis].name, p);
    printf("memory       %.2f MiB %s, besides the threads' scratch\n", (double)plan->arena_bytes / 1048576, which);
    memory_kind kinds[MEMORY_KINDS];
    memory_kinds(plan, kinds);
    for (int i = 0; i < MEMORY_KINDS; i++)
        printf("             %-14s %12.2f MiB\n", kinds[i].name, (double)kinds[i].bytes / 1048576);
    if (plan->memory.peak) printf("             most lives at %s\n", plan->memory.peak);
}

static void print_train(const dtm_plan *plan) {
    const dtm_plan_train *t = &plan->train;
    static const char *const schedules[] = {"constant", "linear", "cosine"};
    if (!t->present) return;
    printf("train        %lld step%s, %s, learning rate %g", (long long)t->steps, t->steps == 1 ? "" : "s", t->optimizer, t->peak);
    if (t->schedule != DTM_PLAN_CONSTANT || t->warmup > 0)
        printf(" (%s, %g steps of warmup, floor %g)", schedules[t->schedule], t->warmup, t->floor);
    printf(", seed %llu\n", (unsigned long long)t->seed);
}

void dtm_info_print(const dtm_plan *plan) {
    printf("program      %s\n", plan->program);
    if (plan->cuda) printf("target       cuda, %u kernels\n", plan->n_cuda);
    print_mesh(plan);
    printf("parameters   %lld", (long long)dtm_parameters(plan));
    if (frozen_parameters(plan)) printf(", of which %lld are not trained", (long long)frozen_parameters(plan));
    printf("\n");
    for (uint32_t i = 0; i < plan->n_inputs; i++) {
        const dtm_plan_input *in = &plan->inputs[i];
        printf("%s %s : %s[", i ? "            " : "inputs      ", in->name, in->dtype == DTM_PLAN_F32 ? "f32" : "i32");
        for (int d = 0; d < in->rank; d++)
            printf("%s%s = %lld", d ? ", " : "", in->dims[d].name, (long long)in->dims[d].size);
        printf("]\n");
    }
    print_train(plan);
    print_memory(plan);
    for (uint32_t p = 1; p < plan->n_stages; p++) print_memory(plan->stages[p]);
    printf("source       %016llx\n", (unsigned long long)plan->source);
    printf("plan         %s\n", plan->hash);
    printf("compiler     dtmc %s\n", compiler_of(plan));
}

void dtm_version_print(const dtm_plan *plan) {
    char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(mpi, &length);
    mpi[strcspn(mpi, "\n,")] = 0;
    printf("%s, compiled by dtmc %s; runtime %s, plan format %u\n", plan->program, compiler_of(plan),
           DTM_RUNTIME_VERSION, plan->version);
    printf("%s\nproducts by %s %s, of bf16 by %s\n", mpi, dtm_matmul_name(), dtm_matmul_version(), dtm_matmul_bf16_name());
}

/* ---- JSON ---- */

static void put_whole(dtm_json_writer *w, const char *key, int64_t value) {
    dtm_json_key(w, key);
    dtm_json_whole(w, value);
}

static void put_string(dtm_json_writer *w, const char *key, const char *value) {
    dtm_json_key(w, key);
    dtm_json_string(w, value ? value : "");
}

static void put_number(dtm_json_writer *w, const char *key, double value) {
    dtm_json_key(w, key);
    dtm_json_number(w, value);
}

static void put_seed(dtm_json_writer *w, uint64_t seed) {
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    dtm_json_key(w, "seed");
    dtm_json_raw(w, text);
}

static void put_mesh(dtm_json_writer *w, const dtm_plan *plan) {
    dtm_json_key(w, "mesh");
    dtm_json_begin_object(w);
    for (uint32_t a = 0; a < plan->n_axes; a++)
        if (!plan->axes[a].time) put_whole(w, plan->axes[a].name, plan->axes[a].size);
    dtm_json_end_object(w);
    put_whole(w, "ranks", plan->ranks);
    put_whole(w, "microbatches", plan->microbatches);
}

static void put_memory(dtm_json_writer *w, const dtm_plan *plan) {
    memory_kind kinds[MEMORY_KINDS];
    memory_kinds(plan, kinds);
    dtm_json_key(w, "memory");
    dtm_json_begin_object(w);
    for (int i = 0; i < MEMORY_KINDS; i++) put_whole(w, kinds[i].name, kinds[i].bytes);
    put_whole(w, "total", plan->arena_bytes);
    put_string(w, "peak", plan->memory.peak);
    dtm_json_end_object(w);
}

/* Of a pipeline: the memory of the ranks of each coordinate. */
static void put_stages(dtm_json_writer *w, const dtm_plan *plan) {
    if (!plan->n_stages) return;
    dtm_json_key(w, "stages");
    dtm_json_begin_array(w);
    for (uint32_t s = 0; s < plan->n_stages; s++) {
        dtm_json_begin_object(w);
        put_memory(w, plan->stages[s]);
        dtm_json_end_object(w);
    }
    dtm_json_end_array(w);
}

static void put_train(dtm_json_writer *w, const dtm_plan *plan) {
    const dtm_plan_train *t = &plan->train;
    if (!t->present) return;
    dtm_json_key(w, "train");
    dtm_json_begin_object(w);
    put_whole(w, "steps", t->steps);
    put_string(w, "optimizer", t->optimizer);
    put_number(w, "learning_rate", t->peak);
    put_seed(w, t->seed);
    dtm_json_end_object(w);
}

static void put_inputs(dtm_json_writer *w, const dtm_plan *plan) {
    dtm_json_key(w, "inputs");
    dtm_json_begin_object(w);
    for (uint32_t i = 0; i < plan->n_inputs; i++) {
        dtm_json_key(w, plan->inputs[i].name);
        dtm_json_begin_array(w);
        for (int d = 0; d < plan->inputs[i].rank; d++) dtm_json_whole(w, plan->inputs[i].dims[d].size);
        dtm_json_end_array(w);
    }
    dtm_json_end_object(w);
}

static void put_program(dtm_json_writer *w, const dtm_plan *plan) {
    put_string(w, "program", plan->program);
    char source[32];
    snprintf(source, sizeof source, "%016llx", (unsigned long long)plan->source);
    put_string(w, "source", source);
    put_string(w, "plan", plan->hash);
    if (plan->cuda) put_string(w, "target", "cuda");
    put_mesh(w, plan);
    put_whole(w, "parameters", dtm_parameters(plan));
    put_string(w, "compiler", compiler_of(plan));
}

bool dtm_info_print_json(const dtm_plan *plan) {
    dtm_json_writer w = {0};
    dtm_json_begin_object(&w);
    put_program(&w, plan);
    put_whole(&w, "frozen_parameters", frozen_parameters(plan));
    put_inputs(&w, plan);
    put_train(&w, plan);
    put_memory(&w, plan);
    put_stages(&w, plan);
    dtm_json_end_object(&w);
    if (!w.failed) puts(w.data);
    free(w.data);
    return !w.failed;
}

/* What is between nodes. One node needs none, so that nothing here is a failure; `probe` tells more. */
static void print_ports(const dtm_options *options) {
    dtm_status missing = {0};
    dtm_ports ports;
    if (dtm_ports_read(options, 0, &ports, &missing)) dtm_ports_print(&ports);
    else printf("%-12s not usable: %s\n", "libibverbs", missing.message);
    free(ports.items);
}

static void put_ports(const dtm_options *options, dtm_json_writer *w) {
    dtm_status missing = {0};
    dtm_ports ports;
    if (dtm_ports_read(options, 0, &ports, &missing)) dtm_ports_put(&ports, w);
    free(ports.items);
}

bool dtm_info_devices(const dtm_options *options, dtm_status *status) {
    dtm_cuda *cuda;
    const dtm_cuda_options cuda_options = {.folder = options->cuda_libs};
    if (!dtm_cuda_create(&cuda_options, &cuda, status)) return false;
    if (options->json) {
        dtm_json_writer w = {0};
        dtm_json_begin_object(&w);
        dtm_devices_put(cuda, &w, status);
        put_ports(options, &w);
        dtm_json_end_object(&w);
        if (w.failed)
            dtm_status_fail(status, "out of memory");
        else
            puts(w.data);
        free(w.data);
    } else
        dtm_devices_print(cuda, status), print_ports(options);
    dtm_cuda_destroy(cuda);
    return !status->failed;
}

static void put_flags(dtm_json_writer *w, const dtm_options *options) {
    dtm_json_key(w, "flags");
    dtm_json_begin_array(w);
    for (int i = 1; i < options->argc; i++) dtm_json_string(w, options->argv[i]);
    dtm_json_end_array(w);
}

static void put_cpu(dtm_json_writer *w, const dtm_rank *rank) {
    put_string(w, "products", dtm_matmul_name());
    put_string(w, "products_version", dtm_matmul_version());
    put_string(w, "products_of_bf16", dtm_matmul_bf16_name());
    put_whole(w, "level", rank->level);
}

char *dtm_info_header(const dtm_rank *rank, int64_t steps) {
    dtm_json_writer w = {0};
    char host[256] = "", when[40], mpi[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    time_t seconds = time(NULL);
    struct tm utc;
    gethostname(host, sizeof host - 1);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    MPI_Get_library_version(mpi, &length);
    mpi[strcspn(mpi, "\n,")] = 0;
    dtm_json_begin_object(&w);
    put_program(&w, rank->plan);
    put_string(&w, "runtime", DTM_RUNTIME_VERSION);
    put_string(&w, "mpi", mpi);
    if (rank->device)
        dtm_device_put(rank->device, &w);
    else
        put_cpu(&w, rank);
    put_string(&w, "transport", dtm_comm_transport(rank->comm));
    if (rank->verbs) put_string(&w, "p2p", "verbs");
    put_string(&w, "host", host);
    put_string(&w, "time", when);
    put_whole(&w, "threads", rank->threads);
    put_whole(&w, "steps", steps);
    put_seed(&w, rank->seed);
    put_string(&w, "optimizer", rank->plan->train.optimizer);
    put_memory(&w, rank->plan);
    put_flags(&w, rank->options);
    dtm_json_end_object(&w);
    if (!w.failed) return w.data;
    free(w.data);
    return NULL;
}
