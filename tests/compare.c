/* Compares what a run of an executable left behind with what is right.
 *
 *     compare golden CASE RUN [--noise NAME]   RUN against CASE/expected.json, grads.safetensors, after.safetensors
 *     compare runs RUN RUN [--noise NAME] [--exact RUN --rounded RUN.. [--halves]]
 *                                              two runs of one program, on whatever meshes: the law of the mesh
 *     compare bits RUN RUN                     the same run twice: equal in every bit
 *
 * RUN is a folder; its files are compared where both sides have them, and at least one must be there: log.jsonl (`loss`
 * and `grad_norm` of every step), grads.safetensors (gradients of the first step, before clipping),
 * weights.safetensors (after the last). --noise NAME, as often as needed, names a weight by the last part of its
 * path whose gradient is exactly zero, so that what comes is rounding: its gradient must be below 1e-7, and its value,
 * which Adam moves by up to the learning rate a step, within 1e-3 a step.
 *
 * --exact names what the program computes in double precision, and --rounded, several times, the same with every value
 * rounded up or down to a float by lot. Where those differ much, the program is ill conditioned, and any order of its
 * sums is as right as another: a few times their difference is allowed beside the tolerances.
 *
 * With --halves the roundings are those of values in bf16 or f16, as both runs that are compared have them: three times what they do is allowed,
 * to a loss or norm the most that they do in any step.
 *
 * The tolerances are those of tests/golden. Every comparison is written so that NaN fails it. */
#include "runtime/json.h"
#include "runtime/safetensors.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double loss_tolerance = 2e-6;     /* relative */
static const double norm_tolerance = 5e-6;     /* relative */
static const double gradient_tolerance = 1e-5; /* of the tensor's largest */
static const double rms_tolerance = 2e-6, max_tolerance = 1e-4; /* of weights, absolute */
static const double noise_gradient = 1e-7, noise_step = 1e-3;

enum { MAX_NOISE = 16, MAX_ROUNDED = 8 };
static const char *noise[MAX_NOISE];
static int n_noise;
static bool exact, of_two_runs;
static int faults, files;
/* Of two runs: a small gradient may be the difference of large ones, whose rounding it has: so many units of a float of
 * the largest gradient of all are allowed beside the tolerance. */
static const double cancelled_units = 2;
static double cancelled;
/* How much more than values rounded to floats a sum of floats may be off: each of its additions rounds. */
static double rounding_factor = 8;
static const double halves_factor = 3; /* of a run that has other roundings to halves, as many and as large */
static bool of_halves;
static const char *exact_run, *rounded_runs[MAX_ROUNDED];
static int n_rounded;

static void fail(const char *what) {
    fprintf(stderr, "compare: %s\n", what);
    exit(2);
}

/* One complaint a line, the first twenty of them. */
__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...) {
    if (++faults > 20) return;
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}

/* ---- losses ---- */

typedef struct series {
    int steps;
    double *loss, *norm;
    double *scale, *skipped; /* of f16: the loss' scale, and whether it was too much; else NaN */
} series;

static char *read_text(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    char *text = NULL;
    size_t capacity = 0, got;
    *length = 0;
    do {
        if (*length + 65536 > capacity && !(text = realloc(text, capacity = 2 * capacity + 65536))) fail("memory");
        got = fread(text + *length, 1, capacity - *length - 1, file);
        *length += got;
    } while (got > 0);
    fclose(file);
    text[*length] = 0;
    return text;
}

static double number_of(const dtm_json *json, int64_t object, const char *key) {
    int64_t at = dtm_json_find(json, object, key);
    return at >= 0 && json->values[at].type == DTM_JSON_NUMBER ? strtod(json->values[at].text, NULL) : NAN;
}

static void add_step(series *out, double loss, double norm, double scale, double skipped) {
    double **rows[] = {&out->loss, &out->norm, &out->scale, &out->skipped}, numbers[] = {loss, norm, scale, skipped};
    for (int i = 0; i < 4; i++) {
        *rows[i] = realloc(*rows[i], (size_t)(out->steps + 1) * sizeof(double));
        if (!*rows[i]) fail("memory");
        (*rows[i])[out->steps] = numbers[i];
    }
    out->steps++;
}

/* The lines of a log that have a step, in their order, which must be 1, 2, .. */
static bool read_log(const char *path, series *out) {
    size_t length;
    char *text = read_text(path, &length);
    if (!text) return false;
    for (char *line = text, *end; *line; line = end) {
        end = strchr(line, '\n');
        end = end ? end + 1 : line + strlen(line);
        dtm_json json = {0};
        dtm_status status = {0};
        if (!dtm_json_parse(line, (size_t)(end - line), &json, &status)) complain("%s: %s", path, status.message);
        else if (dtm_json_find(&json, 0, "step") >= 0) {
            double step = number_of(&json, 0, "step");
            if (!(step == out->steps + 1)) complain("%s: step %g where %d was due", path, step, out->steps + 1);
            add_step(out, number_of(&json, 0, "loss"), number_of(&json, 0, "grad_norm"), number_of(&json, 0, "scale"),
                     number_of(&json, 0, "skipped"));
        }
        dtm_json_free(&json);
    }
    free(text);
    return true;
}

/* expected.json: {"loss": [..], "grad_norm": [..]} */
static bool read_expected(const char *path, series *out) {
    size_t length;
    char *text = read_text(path, &length);
    if (!text) return false;
    dtm_json json = {0};
    dtm_status status = {0};
    if (!dtm_json_parse(text, length, &json, &status)) fail(status.message);
    int64_t loss = dtm_json_find(&json, 0, "loss"), norm = dtm_json_find(&json, 0, "grad_norm");
    if (loss < 0 || norm < 0 || json.values[loss].length != json.values[norm].length) fail(path);
    for (uint32_t i = 1; i <= json.values[loss].length; i++)
        add_step(out, strtod(json.values[loss + i].text, NULL), strtod(json.values[norm + i].text, NULL), NAN, NAN);
    dtm_json_free(&json);
    free(text);
    return true;
}

static const char *in_folder(const char *folder, const char *name) {
    static char paths[8][4096];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* `rounding` is allowed beside the tolerance. */
static void compare_number(const char *what, int step, double got, double want, double tolerance, double rounding) {
    double allowed = exact ? 0 : tolerance + rounding / fabs(want);
    bool good = exact ? memcmp(&got, &want, sizeof got) == 0 : fabs(got - want) <= tolerance * fabs(want) + rounding;
    if (!good) complain("step %d: %s %.9g, not %.9g: off by %.1e of it, %.1e is allowed", step, what, got, want,
                        fabs(got - want) / fabs(want), allowed);
}

static void free_series(series *s) { free(s->loss), free(s->norm), free(s->scale), free(s->skipped); }

static bool skips(const series *s, int step) { return step < s->steps && s->skipped[step] == 1; }

/* What rounding does to losses and norms: zeros, step by step, unless runs with rounded values are given. Where rounding decides
 * whether a step is skipped, nothing can be said of what follows. */
static series rounding_of_series(int steps) {
    series exactly = {0}, most = {0};
    for (int i = 0; i < steps; i++) add_step(&most, 0, 0, NAN, NAN);
    if (n_rounded && !read_log(in_folder(exact_run, "log.jsonl"), &exactly)) fail(exact_run);
    for (int r = 0; r < n_rounded; r++) {
        series rounded = {0};
        if (!read_log(in_folder(rounded_runs[r], "log.jsonl"), &rounded)) fail(rounded_runs[r]);
        for (int i = 0; i < steps && i < rounded.steps && i < exactly.steps; i++) {
            if (skips(&rounded, i) != skips(&exactly, i))
                for (int k = i; k < steps; k++) most.loss[k] = k > i ? INFINITY : most.loss[k], most.norm[k] = INFINITY;
            most.loss[i] = fmax(most.loss[i], rounding_factor * fabs(rounded.loss[i] - exactly.loss[i]));
            if (!skips(&exactly, i)) most.norm[i] = fmax(most.norm[i], rounding_factor * fabs(rounded.norm[i] - exactly.norm[i]));
        }
        free_series(&rounded);
    }
    for (int i = 0; of_halves && i < 2 * steps; i++) {
        most.loss[i % steps] = fmax(most.loss[i % steps], most.loss[(i + 1) % steps]);
        most.norm[i % steps] = fmax(most.norm[i % steps], most.norm[(i + 1) % steps]);
    }
    free_series(&exactly);
    return most;
}

static bool same_number(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

/* The last step of either was skipped, or rounding decides about that: its gradients are none. */
static bool no_gradients, undecided;

static void compare_series(const series *got, const series *want) {
    if (got->steps != want->steps) complain("%d steps, not %d", got->steps, want->steps);
    series rounding = rounding_of_series(want->steps);
    for (int i = 0; i < got->steps && i < want->steps; i++) {
        no_gradients = skips(got, i) && skips(want, i);
        undecided |= isinf(rounding.norm[i]);
        compare_number("loss", i + 1, got->loss[i], want->loss[i], loss_tolerance, rounding.loss[i]);
        if (undecided) continue;
        if (!same_number(got->scale[i], want->scale[i]) || !same_number(got->skipped[i], want->skipped[i]))
            complain("step %d: scale %.9g, skipped %g, not %.9g, %g", i + 1, got->scale[i], got->skipped[i], want->scale[i],
                     want->skipped[i]);
        if (no_gradients) continue;
        compare_number("gradient norm", i + 1, got->norm[i], want->norm[i], norm_tolerance, rounding.norm[i]);
    }
    free_series(&rounding);
}

/* ---- tensors ---- */

static bool is_noise(const char *name) {
    const char *last = strrchr(name, '.');
    last = last ? last + 1 : name;
    for (int i = 0; i < n_noise; i++)
        if (strcmp(noise[i], last) == 0) return true;
    return false;
}

static float *read_tensor(const dtm_safetensors *file, const dtm_stored_tensor *tensor) {
    int64_t begin[DTM_STORED_RANK] = {0};
    dtm_status status = {0};
    float *data = malloc((size_t)tensor->bytes + 4);
    if (!data) fail("memory");
    if (!dtm_safetensors_read(file, tensor, begin, tensor->shape, data, &status)) fail(status.message);
    return data;
}

static bool same_shape(const dtm_stored_tensor *a, const dtm_stored_tensor *b) {
    bool same = a->rank == b->rank && a->dtype == b->dtype;
    for (int i = 0; same && i < a->rank; i++) same = a->shape[i] == b->shape[i];
    return same;
}

typedef struct rounding {
    double worst, rms;
} rounding;

/* What rounding does to a tensor of n elements in the file of that name, times the factor; 0 unless runs with rounded
 * values are given. */
static rounding rounding_of_tensor(const char *file, const char *name, int64_t n) {
    rounding most = {0, 0};
    for (int r = 0; r < n_rounded; r++) {
        dtm_safetensors *exactly, *rounded;
        dtm_status status = {0};
        if (!dtm_safetensors_open(in_folder(exact_run, file), &exactly, &status) ||
            !dtm_safetensors_open(in_folder(rounded_runs[r], file), &rounded, &status))
            fail(status.message);
        const dtm_stored_tensor *e = dtm_safetensors_find(exactly, name), *o = dtm_safetensors_find(rounded, name);
        if (!e || !o || e->bytes != 4 * n || o->bytes != 4 * n) fail(name);
        float *a = read_tensor(exactly, e), *b = read_tensor(rounded, o);
        double worst = 0, squares = 0;
        for (int64_t i = 0; i < n; i++) {
            double off = fabs((double)a[i] - (double)b[i]);
            worst = fmax(worst, off), squares += off * off;
        }
        most.worst = fmax(most.worst, rounding_factor * worst);
        most.rms = fmax(most.rms, n ? rounding_factor * sqrt(squares / (double)n) : 0);
        free(a), free(b);
        dtm_safetensors_close(exactly), dtm_safetensors_close(rounded);
    }
    return most;
}

static void compare_values(const char *name, const float *got, const float *want, int64_t n, bool gradients, int steps,
                           rounding rounding) {
    double largest = 0, worst = 0, squares = 0;
    int64_t at = 0;
    bool broken = false;
    for (int64_t i = 0; i < n; i++) {
        double off = fabs((double)got[i] - (double)want[i]);
        if (!(off <= 1e30)) broken = true;
        if (fabs((double)want[i]) > largest) largest = fabs((double)want[i]);
        if (off > worst) worst = off, at = i;
        squares += off * off;
    }
    double rms = n ? sqrt(squares / (double)n) : 0;
    if (broken) complain("%s: not finite", name);
    else if (exact && memcmp(got, want, (size_t)n * sizeof *got) != 0) complain("%s: other bits", name);
    else if (exact) return;
    else if (is_noise(name) && gradients) {
        for (int64_t i = 0; i < n; i++)
            if (!(fabs((double)got[i]) <= noise_gradient)) {
                complain("gradient of %s: %.2e where it is zero", name, (double)got[i]);
                return;
            }
    } else if (is_noise(name)) {
        if (!(worst <= noise_step * steps)) complain("%s: off by %.1e", name, worst);
    } else if (gradients) {
        if (!(worst <= gradient_tolerance * largest + cancelled + rounding.worst))
            complain("gradient of %s: element %lld is %.7g, not %.7g: off by %.1e of the largest", name, (long long)at,
                     (double)got[at], (double)want[at], worst / largest);
    } else if (!(rms <= rms_tolerance + rounding.rms && worst <= max_tolerance + rounding.worst)) {
        complain("%s: off by %.1e rms, at most %.1e (element %lld)", name, rms, worst, (long long)at);
    }
}

/* What rounding of the largest gradient leaves in others. */
static double cancelled_in(const dtm_safetensors *gradients) {
    float largest = 0;
    for (int64_t i = 0; i < dtm_safetensors_count(gradients); i++) {
        const dtm_stored_tensor *t = dtm_safetensors_at(gradients, i);
        if (t->dtype != DTM_STORED_F32) continue;
        float *data = read_tensor(gradients, t);
        for (int64_t k = 0; k < t->bytes / 4; k++)
            if (fabsf(data[k]) > largest) largest = fabsf(data[k]); /* a NaN is found later */
        free(data);
    }
    return cancelled_units * 5.960464477539063e-8 * (double)largest;
}

/* Both files have the same tensors, f32, within the tolerances; `file` is the name that rounded runs gave theirs. */
static void compare_tensors(const char *got_path, const char *want_path, const char *file, bool gradients, int steps) {
    dtm_safetensors *got, *want;
    dtm_status status = {0};
    if (!dtm_safetensors_open(got_path, &got, &status) || !dtm_safetensors_open(want_path, &want, &status))
        fail(status.message);
    cancelled = gradients && of_two_runs ? cancelled_in(want) : 0;
    for (int64_t i = 0; i < dtm_safetensors_count(want); i++) {
        const dtm_stored_tensor *w = dtm_safetensors_at(want, i), *g = dtm_safetensors_find(got, w->name);
        if (!g) {
            complain("%s lacks %s", got_path, w->name);
            continue;
        }
        if (!same_shape(g, w) || w->dtype != DTM_STORED_F32) {
            complain("%s: %s has another type than in %s", got_path, w->name, want_path);
            continue;
        }
        float *a = read_tensor(got, g), *b = read_tensor(want, w);
        compare_values(w->name, a, b, w->bytes / 4, gradients, steps, rounding_of_tensor(file, w->name, w->bytes / 4));
        free(a);
        free(b);
    }
    for (int64_t i = 0; i < dtm_safetensors_count(got); i++) {
        const char *name = dtm_safetensors_at(got, i)->name;
        if (!dtm_safetensors_find(want, name)) complain("%s has %s, which %s lacks", got_path, name, want_path);
    }
    dtm_safetensors_close(got);
    dtm_safetensors_close(want);
}

/* ---- files ---- */

static bool exists(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file) fclose(file);
    return file != NULL;
}

static void compare_folders(const char *got, const char *want, bool golden) {
    series a = {0}, b = {0};
    const char *log = in_folder(got, "log.jsonl");
    if (exists(log) && (golden ? read_expected(in_folder(want, "expected.json"), &b)
                               : read_log(in_folder(want, "log.jsonl"), &b))) {
        read_log(log, &a);
        compare_series(&a, &b);
        files++;
    }
    const char *pairs[2][2] = {{"grads.safetensors", "grads.safetensors"},
                               {"weights.safetensors", golden ? "after.safetensors" : "weights.safetensors"}};
    for (int i = 0; i < 2; i++) {
        const char *one = in_folder(got, pairs[i][0]), *other = in_folder(want, pairs[i][1]);
        if (!exists(one) || !exists(other)) continue;
        if (!undecided && !(i == 0 && no_gradients))
            compare_tensors(one, other, pairs[i][0], i == 0, b.steps ? b.steps : 10);
        files++;
    }
    free_series(&a), free_series(&b);
}

int main(int argc, char **argv) {
    const char *folders[2];
    int count = 0;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--noise") == 0 && i + 1 < argc && n_noise < MAX_NOISE) noise[n_noise++] = argv[++i];
        else if (strcmp(argv[i], "--exact") == 0 && i + 1 < argc) exact_run = argv[++i];
        else if (strcmp(argv[i], "--halves") == 0) of_halves = true, rounding_factor = halves_factor;
        else if (strcmp(argv[i], "--rounded") == 0 && i + 1 < argc && n_rounded < MAX_ROUNDED)
            rounded_runs[n_rounded++] = argv[++i];
        else if (count < 2) folders[count++] = argv[i];
        else count = 3;
    }
    bool golden = argc > 1 && strcmp(argv[1], "golden") == 0;
    exact = argc > 1 && strcmp(argv[1], "bits") == 0;
    of_two_runs = argc > 1 && strcmp(argv[1], "runs") == 0;
    if (count != 2 || (n_rounded > 0) != (exact_run != NULL) || !(golden || exact || strcmp(argv[1], "runs") == 0)) {
        fprintf(stderr, "usage: compare golden CASE RUN | runs RUN RUN | bits RUN RUN  [--noise NAME].. "
                        "[--exact RUN --rounded RUN.. [--halves]]\n");
        return 2;
    }
    if (golden) compare_folders(folders[1], folders[0], true);
    else compare_folders(folders[0], folders[1], false);
    if (!files) complain("%s has no file to compare", folders[1]);
    if (faults > 20) printf("and %d more\n", faults - 20);
    return faults != 0;
}
