/* See compiled.h. */
#include "compiled.h"

#include "frontend/check.h"
#include "passes/interpret.h"
#include "passes/pipeline.h"
#include "runtime/safetensors.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- after every pass ---- */

typedef struct watch {
    coverage *coverage;
    long before[DTM_OP_KINDS]; /* after autodiff */
    feature_orders orders;     /* before overlap */
} watch;

static void after_pass(dtm_module *module, const char *pass, void *state) {
    watch *w = state;
    if (!w->coverage) return;
    if (strcmp(pass, "autodiff") == 0) coverage_count(module, w->before), features_add_structure(w->coverage->features, module);
    if (strcmp(pass, "partition") == 0) coverage_add(w->coverage, module);
    if (strcmp(pass, "microbatch") == 0) coverage_add_microbatches(w->coverage, module);
    if (strcmp(pass, "fuse_collectives") == 0) features_note_orders(&w->orders, module);
    if (strcmp(pass, "overlap") == 0) features_add_orders(w->coverage->features, &w->orders, module);
    if (strcmp(pass, "memory") == 0) features_add_result(w->coverage->features, module);
    if (strcmp(pass, "shard") == 0) {
        long after[DTM_OP_KINDS];
        coverage_count(module, after);
        coverage_add_expanded(w->coverage, w->before, after);
    }
}

/* ---- what the interpreter computes ---- */

/* Inputs of a step, from the file the executables read; first values of weights are left to the seed. */
static bool provide(void *state, const char *name, int64_t step, int64_t elements, double *out) {
    const dtm_safetensors *file = state;
    const dtm_stored_tensor *t = step ? dtm_safetensors_find(file, name) : NULL;
    if (!t) return false;
    int64_t begin[DTM_STORED_RANK] = {step - 1}, end[DTM_STORED_RANK] = {step};
    for (int d = 1; d < t->rank; d++) end[d] = t->shape[d];
    union word {
        float number;
        int32_t whole;
    } *words = malloc((size_t)elements * sizeof *words);
    dtm_status status = {0};
    bool good = words && dtm_safetensors_read(file, t, begin, end, words, &status);
    for (int64_t i = 0; good && i < elements; i++)
        out[i] = t->dtype == DTM_STORED_F32 ? (double)words[i].number : words[i].whole;
    free(words);
    return good;
}

static void write_number(FILE *file, const char *name, const dtm_tensor *report) {
    if (!report) return;
    if (isfinite(report->data[0])) fprintf(file, ",\"%s\":%.17g", name, report->data[0]);
    else fprintf(file, ",\"%s\":null", name);
}

static bool write_log(const dtm_interpretation *result, const char *path) {
    static const char *const names[] = {"loss", "grad_norm", "scale", "skipped"};
    FILE *file = fopen(path, "w");
    if (!file) return false;
    for (int64_t step = 1; step <= result->steps; step++) {
        fprintf(file, "{\"step\":%lld", (long long)step);
        for (int i = 0; i < 4; i++) write_number(file, names[i], dtm_tensors_find(&result->reports, names[i], step));
        fprintf(file, "}\n");
    }
    return fclose(file) == 0;
}

static bool write_tensor(dtm_safetensors_writer *writer, int64_t index, const dtm_tensor *t) {
    int64_t begin[DTM_STORED_RANK] = {0}, end[DTM_STORED_RANK] = {0};
    dtm_status status = {0};
    float *data = malloc((size_t)t->elements * sizeof *data + 1);
    for (int d = 0; d < t->rank; d++) end[d] = t->sizes[d];
    for (int64_t i = 0; data && i < t->elements; i++) data[i] = (float)t->data[i];
    bool good = data && dtm_safetensors_write(writer, index, begin, end, data, &status);
    free(data);
    return good;
}

/* The tensors of one step. */
static bool write_tensors(const dtm_tensors *list, int64_t step, const char *path) {
    dtm_stored_tensor *stored = calloc(list->count + 1, sizeof *stored);
    int64_t count = 0;
    for (size_t i = 0; stored && i < list->count; i++) {
        const dtm_tensor *t = &list->data[i];
        if (t->step != step) continue;
        stored[count] = (dtm_stored_tensor){.name = t->name, .dtype = DTM_STORED_F32, .rank = t->rank};
        for (int d = 0; d < t->rank; d++) stored[count].shape[d] = t->sizes[d];
        count++;
    }
    dtm_status status = {0};
    dtm_safetensors_layout *layout = NULL;
    dtm_safetensors_writer *writer = NULL;
    bool good = stored && dtm_safetensors_lay_out(stored, count, NULL, &layout, &status) &&
                dtm_safetensors_create(path, layout, &writer, &status);
    for (size_t i = 0, at = 0; good && i < list->count; i++)
        if (list->data[i].step == step) good = write_tensor(writer, (int64_t)at++, &list->data[i]);
    good = good && dtm_safetensors_writer_close(writer, &status) && dtm_safetensors_commit(path, &status);
    if (!good) fprintf(stderr, "%s: %s\n", path, status.message);
    dtm_safetensors_layout_free(layout);
    free(stored);
    return good;
}

static bool leave_files(const dtm_interpretation *result, const char *into) {
    char log[600], grads[600], weights[600];
    snprintf(log, sizeof log, "%s/log.jsonl", into);
    snprintf(grads, sizeof grads, "%s/grads.safetensors", into);
    snprintf(weights, sizeof weights, "%s/weights.safetensors", into);
    return write_log(result, log) && write_tensors(&result->gradients, result->steps, grads) &&
           write_tensors(&result->weights, result->steps, weights);
}

static bool interpret(const dtm_module *module, const compiled_options *options, const interpreting *how) {
    dtm_safetensors *file;
    dtm_status status = {0};
    if (mkdir(how->into, 0777) != 0) return perror(how->into), false;
    if (!dtm_safetensors_open(options->data, &file, &status)) return fprintf(stderr, "%s\n", status.message), false;
    dtm_interpret_options run = {.steps = options->steps, .seed = options->seed, .provide = provide, .provide_state = file,
                                 .rounds = true, .rounding = how->rounding, .nearest = how->nearest, .check_storage = true};
    dtm_interpretation *result = dtm_interpret(module, &run);
    bool good = result && leave_files(result, how->into);
    if (good && options->coverage && !how->rounding) features_add_run(options->coverage->features, module, result);
    dtm_interpretation_destroy(result);
    dtm_safetensors_close(file);
    return good;
}

static bool say_arena(const dtm_module *module, const char *path) {
    int64_t most = module->arena_bytes;
    for (size_t r = 0; r < module->n_ranks; r++)
        if (module->ranks[r]->arena_bytes > most) most = module->ranks[r]->arena_bytes;
    FILE *file = fopen(path, "w");
    return file && fprintf(file, "%lld\n", (long long)most) > 0 && fclose(file) == 0;
}

/* ---- the child ---- */

static bool compile(const compiled_options *options) {
    dtm_context *context = dtm_context_create();
    dtm_check_options none = {0};
    dtm_module *module = dtm_check(context, options->file, &none);
    watch w = {.coverage = options->coverage};
    dtm_pipeline_options pipeline = {.verify = true, .validate = options->validate, .after = after_pass, .state = &w};
    bool good = module && dtm_module_verify(module) && dtm_pipeline_run(module, &pipeline);
    for (int i = 0; good && i < options->n_interpretings; i++) good = interpret(module, options, &options->interpretings[i]);
    if (good && options->arena) good = say_arena(module, options->arena);
    good &= dtm_error_count(context) == 0;
    dtm_diagnostics_print(context, stderr, false);
    dtm_module_destroy(module);
    dtm_context_destroy(context);
    return good;
}

bool compiled_check(const compiled_options *options) {
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) return perror("fork"), false;
    if (child == 0) {
        int log = open(options->log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        if (log < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0) _exit(2);
        close(log);
        setrlimit(RLIMIT_CPU, &(struct rlimit){120, 120});
        exit(!compile(options)); /* the sanitizers look for leaks at exit */
    }
    int status;
    while (waitpid(child, &status, 0) < 0) continue;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
