/* The interpreter against other systems: golden gpt, llama and llama-masked, as one rank runs them after autodiff, give
 * the losses, gradient norms and gradients that were computed in float64 elsewhere. Here too all is double, from the
 * same f32 weights, so they agree far beyond the tolerances of an f32 run. */
#include "frontend/check.h"
#include "passes/interpret.h"
#include "passes/pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int failures;

/* A safetensors file: the length of its header, a JSON header, data. */
typedef struct tensors {
    char *file, *header, *data;
} tensors;

static char *read_file(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    *length = (size_t)ftell(file);
    rewind(file);
    char *bytes = calloc(1, *length + 1);
    bool whole = bytes && fread(bytes, 1, *length, file) == *length;
    fclose(file);
    if (whole) return bytes;
    free(bytes);
    return NULL;
}

static tensors open_tensors(const char *path) {
    size_t length;
    char *bytes = read_file(path, &length);
    uint64_t header;
    if (!bytes) return (tensors){0};
    memcpy(&header, bytes, sizeof header);
    tensors t = {bytes, calloc(1, header + 1), bytes + 8 + header};
    memcpy(t.header, bytes + 8, header);
    return t;
}

static void close_tensors(tensors *t) {
    free(t->file);
    free(t->header);
}

/* The data of a tensor, or NULL. */
static const char *find_tensor(const tensors *t, const char *name) {
    char quoted[256];
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *at = t->header ? strstr(t->header, quoted) : NULL;
    at = at ? strstr(at, "\"data_offsets\"") : NULL;
    at = at ? strchr(at, '[') : NULL;
    return at ? t->data + strtoll(at + 1, NULL, 10) : NULL;
}

typedef struct golden {
    tensors weights, data, gradients;
} golden;

static bool provide(void *state, const char *name, int64_t step, int64_t elements, double *out) {
    const golden *g = state;
    const char *from = find_tensor(step ? &g->data : &g->weights, name);
    if (!from) return false;
    for (int64_t i = 0; i < elements; i++) {
        float f;
        int32_t whole;
        memcpy(&f, from + 4 * i, 4);
        memcpy(&whole, from + 4 * (elements * (step - 1) + i), step ? 4 : 0);
        out[i] = step ? (double)whole : (double)f;
    }
    return true;
}

static void expect(const char *what, double got, double expected, double tolerance) {
    if (fabs(got - expected) <= tolerance * fabs(expected)) return;
    failures++;
    printf("%s: %.15g, expected %.15g\n", what, got, expected);
}

/* The numbers of a list in expected.json. */
static void check_list(const dtm_interpretation *run, const char *json, const char *name, double tolerance) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *at = strstr(json, quoted);
    char *end = at ? strchr(at, '[') : NULL;
    for (int64_t step = 1; end && step <= run->steps; step++) {
        double expected = strtod(end + 1, &end);
        const dtm_tensor *got = dtm_tensors_find(&run->reports, name, step);
        expect(name, got ? got->data[0] : NAN, expected, tolerance);
    }
    if (!end) failures++;
}

static void check_gradients(const dtm_interpretation *run, const golden *g) {
    for (size_t i = 0; i < run->gradients.count; i++) {
        const dtm_tensor *gradient = &run->gradients.data[i];
        if (gradient->step != 1) continue;
        const char *from = find_tensor(&g->gradients, gradient->name);
        double most = 0, difference = from ? 0 : INFINITY;
        for (int64_t e = 0; from && e < gradient->elements; e++) {
            float f;
            memcpy(&f, from + 4 * e, 4);
            if (fabs((double)f) > most) most = fabs((double)f);
            double d = fabs(gradient->data[e] - (double)f);
            if (!(d <= difference)) difference = d;
        }
        if (difference <= 1e-7 * most + 1e-12) continue; /* the file has f32 */
        failures++;
        printf("gradient %s differs by %g of %g\n", gradient->name, difference, most);
    }
}

static void check_case(const char *folder, const char *name, int64_t steps) {
    char path[512];
    dtm_context *context = dtm_context_create();
    golden g;
    size_t length;
#define PATH(file) (snprintf(path, sizeof path, "%s/%s/" file, folder, name), path)
    g.weights = open_tensors(PATH("weights.safetensors"));
    g.data = open_tensors(PATH("data.safetensors"));
    g.gradients = open_tensors(PATH("grads.safetensors"));
    char *json = read_file(PATH("expected.json"), &length);
    dtm_module *m = dtm_check(context, PATH("model.dtm"), &(dtm_check_options){0});
    bool good = json && m && dtm_pipeline_run(m, &(dtm_pipeline_options){.until = "autodiff"});
    dtm_interpretation *run = NULL;
    if (good) run = dtm_interpret(m, &(dtm_interpret_options){.steps = steps, .provide = provide, .provide_state = &g});
    if (!run) {
        failures++;
        printf("%s does not run\n", name);
        dtm_diagnostics_print(context, stdout, false);
    } else {
        check_list(run, json, "loss", 1e-10);
        check_list(run, json, "grad_norm", 1e-6); /* of clipping: the other system adds 1e-6 to the norm */
        check_gradients(run, &g);
    }
    dtm_interpretation_destroy(run);
    dtm_module_destroy(m);
    dtm_context_destroy(context);
    close_tensors(&g.weights);
    close_tensors(&g.data);
    close_tensors(&g.gradients);
    free(json);
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : "tests/golden";
    int64_t steps = argc > 2 ? atoll(argv[2]) : 1;
    check_case(folder, "gpt", steps);
    check_case(folder, "llama", steps);
    check_case(folder, "llama-masked", steps);
    printf("%d failures\n", failures);
    return failures != 0;
}
