/* What the interpreter says of a program, in the files that a run of its executable leaves: so that `compare` can judge
 * a run by them.
 *
 *     oracle PROGRAM FOLDER STEPS SEED [--rounds]
 *
 * writes random inputs to FOLDER/data.safetensors, and to FOLDER/oracle/ log.jsonl, grads.safetensors (of the last step)
 * and weights.safetensors, as the program on one rank gives them in double precision. With --rounds that is of the program as it is after
 * `precision`, its values in halves rounded, and FOLDER/exact/ has the same without a rounding. */
#include "frontend/check.h"
#include "kernels/cpu/random.h"
#include "passes/interpret.h"
#include "passes/pipeline.h"
#include "runtime/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST = 64 };

typedef struct inputs { /* random, as f64 */
    int count;
    dtm_stored_tensor tensors[MOST];
    double *data[MOST];
} inputs;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "oracle: %s: %s\n", what, why);
    exit(1);
}

static const char *path_in(dtm_arena *arena, const char *folder, const char *file) {
    return dtm_arena_printf(arena, "%s/%s", folder, file);
}

/* ---- inputs ---- */

static double draw(const dtm_input_bound *bound, bool whole, uint64_t stream, uint64_t index) {
    double u = (double)dtm_random_uniform(11, stream, index);
    if (!whole) return 2 * u - 1;
    int64_t number = (int64_t)(u * (double)(bound->bound ? bound->bound : 2));
    return bound->negative && dtm_random_uniform(12, stream, index) < 0.2 ? -1 : (double)number;
}

static void add_input(dtm_module *module, dtm_op op, void *state) {
    inputs *in = state;
    const dtm_op_data *data = dtm_op_get(module, op);
    if (data->kind != DTM_OP_INPUT) return;
    if (in->count == MOST) fail("inputs", "too many");
    const dtm_type_data *type = dtm_value_type(module, data->results[0]);
    dtm_input_bound *bounds, bound = {0};
    size_t n_bounds = dtm_input_bounds(module, module->arena, &bounds);
    for (size_t i = 0; i < n_bounds; i++)
        if (bounds[i].name == data->attributes.name) bound = bounds[i];
    int64_t steps = in->tensors[in->count].shape[0], n = steps;
    dtm_stored_tensor *t = &in->tensors[in->count];
    t->name = dtm_string_text(module->context, data->attributes.name);
    t->dtype = type->dtype == DTM_F32 ? DTM_STORED_F32 : DTM_STORED_I32;
    t->rank = type->rank + 1;
    for (int i = 0; i < type->rank; i++) n *= t->shape[i + 1] = module->dims[type->dims[i]].size;
    double *values = dtm_arena_alloc(module->arena, (size_t)(n + 1) * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = draw(&bound, type->dtype != DTM_F32, (uint64_t)in->count, (uint64_t)i);
    in->data[in->count++] = values;
}

static bool provide(void *state, const char *name, int64_t step, int64_t elements, double *out) {
    const inputs *in = state;
    for (int i = 0; step && i < in->count; i++)
        if (strcmp(in->tensors[i].name, name) == 0) {
            memcpy(out, in->data[i] + (step - 1) * elements, (size_t)elements * sizeof *out);
            return true;
        }
    return false;
}

/* ---- files ---- */

static void write_tensors(const char *path, const dtm_stored_tensor *tensors, double *const *data, int count) {
    dtm_status status = {0};
    dtm_safetensors_layout *layout = NULL;
    dtm_safetensors_writer *writer = NULL;
    bool good = dtm_safetensors_lay_out(tensors, count, NULL, &layout, &status) &&
                dtm_safetensors_create(path, layout, &writer, &status);
    for (int t = 0; good && t < count; t++) {
        int64_t n = 1, begin[DTM_STORED_RANK] = {0};
        for (int i = 0; i < tensors[t].rank; i++) n *= tensors[t].shape[i];
        float *floats = malloc((size_t)(n + 1) * sizeof *floats);
        int32_t *whole = (int32_t *)floats;
        if (!floats) fail(path, "out of memory");
        for (int64_t i = 0; i < n; i++)
            if (tensors[t].dtype == DTM_STORED_F32) floats[i] = (float)data[t][i];
            else whole[i] = (int32_t)data[t][i];
        good = dtm_safetensors_write(writer, t, begin, tensors[t].shape, floats, &status);
        free(floats);
    }
    good = good && dtm_safetensors_writer_close(writer, &status) && dtm_safetensors_commit(path, &status);
    dtm_safetensors_layout_free(layout);
    if (!good) fail(path, status.message);
}

/* The tensors as they are after `step`. */
static void write_results(dtm_arena *arena, const dtm_tensors *results, int64_t step, const char *path) {
    dtm_stored_tensor *tensors = dtm_arena_alloc(arena, (results->count + 1) * sizeof *tensors);
    double **data = dtm_arena_alloc(arena, (results->count + 1) * sizeof *data);
    int count = 0;
    for (size_t i = 0; i < results->count; i++) {
        const dtm_tensor *r = &results->data[i];
        if (r->step != step) continue;
        dtm_stored_tensor t = {.name = r->name, .dtype = DTM_STORED_F32, .rank = r->rank};
        for (int k = 0; k < r->rank; k++) t.shape[k] = r->sizes[k];
        data[count] = r->data;
        tensors[count++] = t;
    }
    write_tensors(path, tensors, data, count);
}

static void write_log(const dtm_interpretation *run, const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) fail(path, "cannot be written");
    for (int64_t step = 1; step <= run->steps; step++) {
        const dtm_tensor *loss = dtm_tensors_find(&run->reports, "loss", step);
        const dtm_tensor *norm = dtm_tensors_find(&run->reports, "grad_norm", step);
        if (!loss || !norm) fail(path, "no loss or gradient norm");
        fprintf(file, "{\"step\":%lld,\"loss\":%.17g,\"grad_norm\":%.17g", (long long)step, loss->data[0], norm->data[0]);
        static const char *const of_f16[] = {"scale", "skipped"};
        for (int i = 0; i < 2; i++) {
            const dtm_tensor *report = dtm_tensors_find(&run->reports, of_f16[i], step);
            if (report) fprintf(file, ",\"%s\":%.17g", of_f16[i], report->data[0]);
        }
        fprintf(file, "}\n");
    }
    if (fclose(file)) fail(path, "cannot be written");
}

static bool interpret(const dtm_module *module, inputs *in, uint64_t seed, bool rounds, const char *into) {
    int64_t steps = in->tensors[0].shape[0];
    dtm_interpret_options options = {.steps = steps, .seed = seed, .provide = provide, .provide_state = in, .rounds = rounds};
    dtm_interpretation *run = dtm_interpret(module, &options);
    if (!run) return false;
    mkdir(into, 0777);
    write_log(run, path_in(module->arena, into, "log.jsonl"));
    write_results(module->arena, &run->gradients, steps, path_in(module->arena, into, "grads.safetensors"));
    write_results(module->arena, &run->weights, steps, path_in(module->arena, into, "weights.safetensors"));
    dtm_interpretation_destroy(run);
    return true;
}

int main(int argc, char **argv) {
    bool rounds = argc == 6 && strcmp(argv[5], "--rounds") == 0;
    if (argc != 5 && !rounds) fail("usage", "oracle PROGRAM FOLDER STEPS SEED [--rounds]");
    int64_t steps = atoll(argv[3]);
    dtm_context *context = dtm_context_create();
    dtm_module *module = dtm_check(context, argv[1], &(dtm_check_options){.mesh = "one=1"});
    if (!module || !dtm_pipeline_run(module, &(dtm_pipeline_options){.until = rounds ? "precision" : "autodiff"})) {
        dtm_diagnostics_print(context, stderr, false);
        return 1;
    }
    inputs in = {0};
    for (int i = 0; i < MOST; i++) in.tensors[i].shape[0] = steps;
    dtm_walk(module, add_input, &in);
    write_tensors(path_in(module->arena, argv[2], "data.safetensors"), in.tensors, in.data, in.count);
    uint64_t seed = strtoull(argv[4], NULL, 10);
    if (!interpret(module, &in, seed, rounds, path_in(module->arena, argv[2], "oracle")) ||
        (rounds && !interpret(module, &in, seed, false, path_in(module->arena, argv[2], "exact")))) {
        dtm_diagnostics_print(context, stderr, false);
        return 1;
    }
    dtm_module_destroy(module);
    dtm_context_destroy(context);
    return 0;
}
