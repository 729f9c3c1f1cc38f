/* What compiling a large pipeline takes, up to the plan: examples/llama3-405b.dtm on { pp = 16, dp = 128, tp = 8 }, 32 microbatches,
 * by three schedules. Counted is what the compiler asks of its arenas (the linker brings every request here: CMakeLists.txt), which
 * no other process disturbs. Twice the layers are no more work but for the tables that stages are cut by, which have a line for
 * each, and at no moment more than 200 MB are held. By `auto`, which compiles what it compares, it is counted too how often that is,
 * of examples/deepseek-v3-dense.dtm as well, whose search answers with what fits only with less started ahead. */
#include "codegen/codegen.h"
#include "frontend/check.h"
#include "passes/ledger.h"
#include "passes/pipeline.h"
#include "passes/stage_choice.h"
#include "passes/stage_cost.h"

#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_REQUESTS = 2500000, MOST_BYTES = 200000000 };

static struct {
    size_t requests, bytes; /* of arenas */
    size_t held, most;      /* at a time */
    int tried;              /* choices that were compiled */
} counted;

void *__real_dtm_arena_alloc(dtm_arena *arena, size_t bytes);
void *__wrap_dtm_arena_alloc(dtm_arena *arena, size_t bytes);
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void __real_free(void *memory);
void __wrap_free(void *memory);

static void *taken(void *memory) {
    counted.held += malloc_usable_size(memory);
    if (counted.held > counted.most) counted.most = counted.held;
    return memory;
}

void *__wrap_dtm_arena_alloc(dtm_arena *arena, size_t bytes) {
    counted.requests++, counted.bytes += bytes;
    return __real_dtm_arena_alloc(arena, bytes);
}

void *__wrap_malloc(size_t size) {
    return taken(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size) {
    return taken(__real_calloc(count, size));
}

void *__wrap_realloc(void *memory, size_t size) {
    if (memory) counted.held -= malloc_usable_size(memory);
    return taken(__real_realloc(memory, size));
}

void __wrap_free(void *memory) {
    if (memory) counted.held -= malloc_usable_size(memory);
    __real_free(memory);
}

static void write_program(const char *path, const char *folder) {
    FILE *out = fopen(path, "w");
    if (!out) perror(path), exit(2);
    fprintf(out, "dim B = 4096, S = 8192, V = 128256, D = 16384, F = 53248, H = 128, G = 8, K = 128\n"
                 "const layers = 126\nconst rope_factor = 8\n"
                 "use \"%s/examples/models/llama3.dtm\"\nuse \"%s/examples/machines/dgx-h100.dtm\"\n"
                 "mesh { pp = 16, dp = 128, tp = 8 }\n"
                 "parallel { pp splits layer with schedule = 1f1b, microbatches = 32; dp splits B; tp splits H, G, F, V, S }\n"
                 "train { optimizer adamw(lr = 1e-4); clip 1.0; steps 10 }\n", folder, folder);
    if (fclose(out)) perror(path), exit(2);
}

/* Counts a whole compilation; layers NULL: as many as it has. */
static bool compile(const char *path, const char *schedule, const char *layers) {
    const char *sets[] = {schedule}, *defines[] = {layers};
    dtm_check_options options = {.defines = defines, .n_defines = layers != NULL, .sets = sets, .n_sets = 1};
    dtm_pipeline_options pipeline = {.verify = false};
    size_t held = counted.held;
    counted.requests = counted.bytes = 0, counted.most = held;
    dtm_context *context = dtm_context_create();
    dtm_module *module = dtm_check(context, path, &options);
    bool good = module && dtm_pipeline_run(module, &pipeline);
    counted.tried = good && module->choice ? module->choice->n_tried : 0;
    if (good) {
        dtm_text plan = {.arena = module->arena}, kernels = plan;
        good = dtm_codegen(module, &(dtm_predictions){dtm_run_times, 0, dtm_pair_course_of}, &plan, &kernels);
        good &= plan.length > 10000 && kernels.length > 10000;
    }
    if (!good) dtm_diagnostics_print(context, stdout, false);
    if (module) dtm_module_destroy(module);
    dtm_context_destroy(context);
    counted.most -= held;
    return good;
}

/* `auto` of a program: so many choices compiled, and so many requests, at most. */
static int check_auto(const char *path, int tried, size_t requests) {
    if (!compile(path, "schedule=auto", NULL)) return 1;
    printf("auto, %s: %d compiled, %zu requests, %.1f MB in all, %.1f MB at most\n", path, counted.tried, counted.requests,
           1e-6 * (double)counted.bytes, 1e-6 * (double)counted.most);
    if (counted.tried >= 1 && counted.tried <= tried && counted.requests <= requests && counted.requests > requests / 2) return 0;
    printf("failed: %d compiled and %zu requests at most\n", tried, requests);
    return 1;
}

int main(void) {
    static const char *const schedules[] = {"schedule=1f1b", "schedule=interleaved", "schedule=dualpipev"};
    char path[] = "/tmp/dtm-work-XXXXXX", folder[4096];
    int file = mkstemp(path), failures = 0;
    if (file < 0 || close(file) || !getcwd(folder, sizeof folder)) return perror(path), 2;
    write_program(path, folder);
    for (int s = 0; s < 3; s++) {
        size_t requests[2], bytes[2];
        for (int twice = 0; twice < 2; twice++) {
            if (!compile(path, schedules[s], twice ? "layers=252" : "layers=126")) return 1;
            requests[twice] = counted.requests, bytes[twice] = counted.bytes;
            printf("%s, %d layers: %zu requests, %.1f MB in all, %.1f MB at most\n", schedules[s], twice ? 252 : 126, counted.requests,
                   1e-6 * (double)counted.bytes, 1e-6 * (double)counted.most);
            if (counted.most > MOST_BYTES || counted.most < MOST_BYTES / 100) failures++, printf("failed: so much memory\n");
            if (counted.requests > MOST_REQUESTS || counted.requests < MOST_REQUESTS / 100) failures++, printf("failed: so many requests\n");
        }
        if ((double)requests[1] > 1.05 * (double)requests[0] || (double)bytes[1] > 1.2 * (double)bytes[0])
            failures++, printf("failed: twice the layers are more work\n");
    }
    failures += check_auto(path, 1, 2200000);
    failures += check_auto("examples/deepseek-v3-dense.dtm", 3, 9000000);
    unlink(path);
    return failures != 0;
}
