/* Faults 69 and 70: what compiling costs. Layers of a repeat cost nothing, distinct weights each as much as the others, and
 * neither makes more kernels. Each program is compiled in a process of its own, whose processor time and memory the system
 * counts; of several runs the least counts, as other processes disturb. */
#include "codegen/codegen.h"
#include "frontend/check.h"
#include "passes/ledger.h"
#include "passes/pipeline.h"
#include "passes/stage_cost.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

__attribute__((format(printf, 1, 2))) static void failed(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("failed: ");
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
    failures++;
}

/* ---- programs ---- */

static const char end[] = "    loss = mean(cross_entropy(dot(x, embed over D), targets over V) over B, S)\n}\n"
                          "mesh { dp = 2, tp = 2 }\nparallel { dp splits B; tp splits F, V }\n"
                          "train { optimizer adamw(lr = 1e-3); clip 1.0; steps 10 }\n";

/* A layer: two weights. */
static void write_layer(FILE *out, const char *number) {
    fprintf(out,
            "    weight up%s : [D, F] = normal(0.02)\n    weight down%s : [F, D] = normal(0.02)\n"
            "    x = x + dot(relu(dot(x, up%s over D)), down%s over F)\n",
            number, number, number, number);
}

/* `layers` of a repeat, or as many one after another, each with names of its own. */
static void write_program(const char *path, int layers, bool repeated) {
    FILE *out = fopen(path, "w");
    if (!out) perror(path), exit(2);
    fprintf(out, "dim B = 8, S = 16, V = 64, D = 32, F = 64\nmodel m {\n    input tokens, targets : i32[B, S]\n"
                 "    weight embed : [V, D] = normal(0.02)\n    x = gather(embed, tokens over V)\n");
    if (repeated) {
        fprintf(out, "    repeat layer = %d {\n", layers);
        write_layer(out, "");
        fprintf(out, "    }\n");
    }
    for (int i = 0; !repeated && i < layers; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        write_layer(out, number);
    }
    fputs(end, out);
    if (fclose(out)) perror(path), exit(2);
}

/* ---- what one costs ---- */

typedef struct cost {
    double seconds;               /* of the processor, check to memory, the least of all runs */
    long kilobytes;               /* the most held at once */
    size_t dump, plan, kernels;   /* bytes of the dump and of plan.c, number of kernels */
} cost;

static size_t count(const char *text, const char *word) {
    size_t n = 0;
    for (; (text = strstr(text, word)); text += strlen(word)) n++;
    return n;
}

static dtm_module *compiled(dtm_context *context, const char *path) {
    static const dtm_check_options options;
    dtm_pipeline_options pipeline = {.verify = false};
    dtm_module *module = dtm_check(context, path, &options);
    if (module && dtm_pipeline_run(module, &pipeline)) return module;
    dtm_diagnostics_print(context, stdout, false);
    exit(2);
}

static void measure(const char *path, cost *out) {
    struct rusage usage;
    int status;
    pid_t child = fork();
    if (child == 0) {
        compiled(dtm_context_create(), path);
        _exit(0);
    }
    if (child < 0 || wait4(child, &status, 0, &usage) != child || status) failed("%s does not compile", path);
    double seconds = (double)usage.ru_utime.tv_sec + 1e-6 * (double)usage.ru_utime.tv_usec;
    if (!out->seconds || seconds < out->seconds) out->seconds = seconds;
    out->kilobytes = usage.ru_maxrss;
}

/* In this process, after all measuring: a child begins with the memory of its parent. */
static void count_texts(const char *path, cost *out) {
    dtm_context *context = dtm_context_create();
    dtm_module *module = compiled(context, path);
    dtm_text dump = {.arena = module->arena}, plan = dump, kernels = dump;
    dtm_print_options options = {.local_shapes = true};
    dtm_module_print(module, &options, &dump);
    if (!dtm_codegen(module, &(dtm_predictions){dtm_run_times, 0, dtm_pair_course_of}, &plan, &kernels)) failed("no code for %s", path);
    dtm_text_append(&kernels, "", 1);
    out->dump = dump.length;
    out->plan = plan.length;
    out->kernels = count(kernels.data, "_scratch_bytes(const int64_t *z)");
    dtm_module_destroy(module);
    dtm_context_destroy(context);
}

static void say(const char *what, int n, const cost *c) {
    printf("%4d %s: %.3f s, %ld KB, a dump of %zu bytes, a plan of %zu, %zu kernels\n", n, what, c->seconds, c->kilobytes,
           c->dump, c->plan, c->kernels);
}

/* ---- the faults ---- */

enum { MOST_RUNS = 24 };

static void check_layers(const char *folder) {
    char few_path[4200], many_path[4200];
    snprintf(few_path, sizeof few_path, "%s/few.dtm", folder);
    snprintf(many_path, sizeof many_path, "%s/many.dtm", folder);
    write_program(few_path, 8, true);
    write_program(many_path, 128, true);
    cost few = {0}, many = {0};
    for (int i = 0; i < MOST_RUNS && (i < 4 || many.seconds > 1.5 * few.seconds); i++) {
        measure(few_path, &few);
        measure(many_path, &many);
    }
    count_texts(few_path, &few);
    count_texts(many_path, &many);
    say("layers", 8, &few);
    say("layers", 128, &many);
    if (!(many.seconds <= 1.5 * few.seconds)) failed("128 layers take longer than 8");
    if (many.kilobytes > 1.5 * (double)few.kilobytes) failed("128 layers take more memory than 8");
    if ((double)many.dump > 1.05 * (double)few.dump || (double)many.plan > 1.05 * (double)few.plan || many.kernels != few.kernels)
        failed("128 layers make more text than 8");
}

static void check_weights(const char *folder) {
    char few_path[4200], many_path[4200];
    snprintf(few_path, sizeof few_path, "%s/some.dtm", folder);
    snprintf(many_path, sizeof many_path, "%s/thousand.dtm", folder);
    write_program(few_path, 125, false);
    write_program(many_path, 500, false);
    cost few = {0}, many = {0};
    for (int i = 0; i < MOST_RUNS && (i < 2 || many.seconds > 8 * few.seconds); i++) {
        measure(few_path, &few);
        measure(many_path, &many);
    }
    count_texts(few_path, &few);
    count_texts(many_path, &many);
    say("weights", 250, &few);
    say("weights", 1000, &many);
    if (!(many.seconds <= 8 * few.seconds)) failed("four times the weights take more than eight times as long");
    if (many.kilobytes > 8 * few.kilobytes) failed("four times the weights take more than eight times the memory");
    if (many.kernels > few.kernels + few.kernels / 2) failed("more weights make more kernels");
}

int main(void) {
    char folder[] = "/tmp/dtm-flat-XXXXXX", path[4200];
    static const char *const names[] = {"few", "many", "some", "thousand"};
    if (!mkdtemp(folder)) return perror(folder), 2;
    check_layers(folder);
    check_weights(folder);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s.dtm", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
    return failures != 0;
}
