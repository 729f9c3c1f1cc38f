/* dtmc build: passes, plan and kernels as C, the system compiler, one executable. Everything is made in a temporary
 * folder beside the output; the output appears by a rename, whole or not at all. dtmc check goes the same way as far as
 * the program can be at fault: all but the system compiler. */
#include "frontend/dtmc/commands.h"

#include "codegen/codegen.h"
#include "dtm_config.h"
#include "frontend/dtmc/toolchain.h"
#include "passes/ledger.h"
#include "passes/stage_cost.h"
#include "passes/step_time.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool write_text(const char *folder, const char *name, const dtm_text *text) {
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    bool good = file && fwrite(text->data, 1, text->length, file) == text->length;
    if (file) good &= fclose(file) == 0;
    if (!good) fprintf(stderr, "dtmc build: %s: %s\n", path, strerror(errno));
    return good;
}

static bool write_sources(const char *folder, const dtm_text *plan, const dtm_text *kernels) {
    return write_text(folder, "plan.c", plan) && write_text(folder, "kernels.c", kernels);
}

/* What becomes of a program: the module after all passes, and C; for GPUs kernels as CUDA C too. */
typedef struct sources {
    dtm_module *module;
    dtm_text plan, kernels;
    dtm_cuda_source *cuda;
    size_t n_cuda;
    bool failed;
} sources;

static bool is_cuda(const dtm_options *options) { return options->target && strcmp(options->target, "cuda") == 0; }

static bool emit(const dtm_options *options, const sources *made) {
    dtm_module *module = made->module;
    if (!options->emit) return true;
    if (mkdir(options->emit, 0777) && errno != EEXIST) {
        fprintf(stderr, "dtmc build: %s: %s\n", options->emit, strerror(errno));
        return false;
    }
    dtm_text ir = {.arena = dtm_context_arena(module->context)};
    dtm_print_options print = {.local_shapes = true};
    dtm_module_print(module, &print, &ir);
    bool good = write_sources(options->emit, &made->plan, &made->kernels) && write_text(options->emit, "ir.dtm", &ir);
    for (size_t i = 0; good && i < made->n_cuda; i++)
        good = write_text(options->emit, dtm_arena_printf(ir.arena, "%s.cu", made->cuda[i].name), &made->cuda[i].text);
    return good;
}

/* Compiles what is in `folder` and puts the executable at `output`. */
static bool make_executable(const dtm_options *options, const char *folder) {
    const char *output = options->output;
    dtm_toolchain toolchain;
    if (!dtm_toolchain_find(&toolchain)) return false;
    toolchain.draft = options->draft;
    toolchain.cuda = is_cuda(options);
    if (!dtm_toolchain_compile(&toolchain, folder)) return false;
    char made[4200];
    snprintf(made, sizeof made, "%s/program", folder);
    if (!dtm_toolchain_link(&toolchain, folder, made)) return false;
    if (rename(made, output) == 0) return true;
    fprintf(stderr, "dtmc build: %s: %s\n", output, strerror(errno));
    return false;
}

static void remove_folder(const char *folder) {
    static const char *const names[] = {"plan.c",       "kernels.c",    "plan.o",    "kernels_v1.o", "kernels_v3.o",
                                        "kernels_v4.o", "kernels.o", "program", "messages"};
    char path[4200];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

bool dtm_keeps_contracts(dtm_module *module) {
    bool good = true;
    dtm_module *fullest = module;
    for (size_t i = 0; i < module->n_ranks; i++)
        if (fullest == module || module->ranks[i]->arena_bytes > fullest->arena_bytes) fullest = module->ranks[i];
    dtm_memory_warn(fullest);
    for (size_t i = 0; i < (module->n_ranks ? module->n_ranks : 1); i++) {
        dtm_module *of = module->n_ranks ? module->ranks[i] : module;
        dtm_ledger ledger = dtm_ledger_of(of, dtm_context_arena(module->context));
        if (i == 0) dtm_ledger_warn(of, &ledger);
        good = dtm_ledger_check(of, &ledger) && good;
    }
    return dtm_bubble_check(module) && good;
}

static bool generate(const dtm_options *options, sources *made) {
    dtm_predictions predicted = {dtm_run_times, dtm_step_seconds(made->module), dtm_pair_course_of};
    if (is_cuda(options)) return dtm_codegen_cuda(made->module, &predicted, &made->plan, &made->kernels, &made->cuda, &made->n_cuda);
    return dtm_codegen(made->module, &predicted, &made->plan, &made->kernels);
}

/* Every error that a program can have is reported here. */
static sources translate(dtm_context *context, const dtm_options *options) {
    dtm_arena *arena = dtm_context_arena(context);
    sources made = {.module = dtm_compile(context, options, NULL), .plan.arena = arena, .kernels.arena = arena};
    made.failed = !made.module || !dtm_keeps_contracts(made.module) || !generate(options, &made);
    made.failed |= dtm_report(context);
    return made;
}

int dtm_command_check(const dtm_options *options) {
    dtm_context *context = dtm_context_create();
    sources made = translate(context, options);
    dtm_module_destroy(made.module);
    dtm_context_destroy(context);
    return made.failed;
}

static bool write_executable(const dtm_options *options, const sources *made) {
    if (!emit(options, made)) return false;
    char folder[4096];
    if (snprintf(folder, sizeof folder, "%s.XXXXXX", options->output) >= (int)sizeof folder || !mkdtemp(folder)) {
        fprintf(stderr, "dtmc build: cannot write beside %s: %s\n", options->output, strerror(errno));
        return false;
    }
    bool good = write_sources(folder, &made->plan, &made->kernels) && make_executable(options, folder);
    remove_folder(folder);
    return good;
}

int dtm_command_build(const dtm_options *options) {
    if (!options->output) {
        fprintf(stderr, "dtmc build: say where to: -o NAME\n");
        return 2;
    }
    if (options->target && strcmp(options->target, "cpu") != 0 && !is_cuda(options)) {
        fprintf(stderr, "dtmc build: no target `%s`; there are `cpu` and `cuda`\n", options->target);
        return 2;
    }
    struct stat there;
    if (stat(options->output, &there) == 0 && !S_ISREG(there.st_mode)) { /* it would be replaced */
        fprintf(stderr, "dtmc build: %s is %s; name a file\n", options->output, S_ISDIR(there.st_mode) ? "a folder" : "no regular file");
        return 1;
    }
    dtm_context *context = dtm_context_create();
    sources made = translate(context, options);
    bool failed = made.failed || !dtm_spares_sources(context, options, "build") || !write_executable(options, &made);
    dtm_module_destroy(made.module);
    dtm_context_destroy(context);
    return failed;
}
