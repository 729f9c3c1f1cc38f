/* Each kernel of a program, as dtmc writes it for GPUs: compiled by the real NVRTC it passes the compile gate, and on the simulated GPU
 * it makes of the interpreter's operands the interpreter's results:
 *
 *     kernels SOURCE_ROOT PACKAGES FOLDER [--quick] [--gate] [--table FILE [--rewrite]] PROGRAM..
 *
 * Every launch of the plan of one rank is run once, in its last copy of the repeats around it, its buffers where they lie in the arena:
 * so an output lies over an input as it does in a run. FOLDER is for the plan as a library. With --gate programs, on meshes
 * of their own and of any size, only pass the gate; what ptxas gives each kernel is held against the table, where NVRTC is of its version.
 * With --quick for sm_80 alone. Skipped (77) without NVRTC. */
#include "codegen/codegen.h"
#include "frontend/check.h"
#include "passes/interpret.h"
#include "passes/passes.h"
#include "passes/pipeline.h"
#include "runtime/plan.h"
#include "tests/gpu/gate/judge.h"
#include "tests/gpu/sim/sim.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const architectures[] = {"sm_80", "sm_90", "sm_100"};
static int n_architectures = 3;
static text table;

enum { TABLE_VERSION = 13000, SEED = 7, MOST_TUPLES = 512, MOST_BUFFERS = 1024 };

/* ---- the program ---- */

typedef struct tested {
    const char *path;
    dtm_context *context;
    dtm_module *module;
    dtm_interpretation *run;
    void *library;
    const dtm_plan *plan;
    int64_t *sizes;
    char *arena;
    struct sim_module **modules; /* by kernel */
    int launched, skipped;
} tested;

static void write_file(const char *folder, const char *name, const dtm_text *text) {
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(text->data, 1, text->length, file) != text->length || fclose(file)) {
        perror(path);
        exit(1);
    }
}

static void fail_with_diagnostics(tested *p, const char *what) {
    printf("%s: %s\n", p->path, what);
    dtm_diagnostics_print(p->context, stdout, false);
    exit(1);
}

/* The plan as a library: plan.c and kernels.c as dtmc build compiles them. */
static void load_plan(tested *p, const char *folder) {
    dtm_arena *arena = dtm_context_arena(p->context);
    dtm_text plan = {arena, NULL, 0, 0}, kernels = plan;
    dtm_cuda_source *sources;
    size_t n_sources;
    if (!dtm_codegen_cuda(p->module, NULL, &plan, &kernels, &sources, &n_sources)) fail_with_diagnostics(p, "no code");
    write_file(folder, "plan.c", &plan);
    write_file(folder, "kernels.c", &kernels);
    char command[8192], path[2048];
    static int number;
    snprintf(path, sizeof path, "%s/plan_%d.so", folder, number++);
    snprintf(command, sizeof command, "${CC:-cc} -std=c11 -w -O0 -shared -fPIC -I'%s' '%s/plan.c' '%s/kernels.c' -o '%s'", root, folder, folder, path);
    if (system(command) != 0) exit(1);
    p->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    p->plan = p->library ? dlsym(p->library, "dtm_program_plan") : NULL;
    if (!p->plan || !p->plan->cuda) {
        printf("%s: no plan for GPUs: %s\n", p->path, p->library ? "" : dlerror());
        exit(1);
    }
}

static void evaluate(tested *p, int64_t copy) {
    const dtm_plan *plan = p->plan;
    for (uint32_t s = 1; s < plan->n_sizes; s++) {
        int64_t product = plan->sizes[s].factor;
        for (uint32_t a = 0; a < plan->sizes[s].count; a++) {
            uint32_t atom = plan->sizes[s].atoms[a];
            if (atom == DTM_PLAN_LATER) product *= 0;
            else if (atom == DTM_PLAN_COPY_NUMBER) product *= copy;
            else if (atom & DTM_PLAN_BEGIN) product = 0;
            else product *= plan->extents[atom].whole;
        }
        p->sizes[s] = plan->sizes[s].base + product;
    }
}

/* ---- buffers ---- */

static const int64_t dtype_bytes[] = {4, 2, 2, 4, 1, 1};

static int64_t elements_of(const tested *p, const dtm_plan_buffer *b) {
    int64_t n = 1;
    for (int d = 0; d < b->rank; d++) n *= p->plan->extents[b->dims[d]].whole;
    return n;
}

static char *address_of(const tested *p, const dtm_plan_buffer *b, int64_t copy) {
    return p->arena + b->offset + (b->loop ? (copy + b->shift) % b->modulus * b->stride : 0);
}

/* Of the value in that copy of the loops; NULL: it is none of the program's. */
static const dtm_tensor *tensor_of(const tested *p, const dtm_plan_buffer *b, const int64_t *numbers, int depth) {
    char name[400];
    snprintf(name, sizeof name, "%s", b->name);
    for (int used = depth; used >= 0; used--) { /* what stands outside of the inner loops has no number of theirs */
        size_t length = (size_t)snprintf(name, sizeof name, "%s", b->name);
        for (int i = 0; i < used; i++) length += (size_t)snprintf(name + length, sizeof name - length, "%s%lld", i ? ", " : "[", (long long)numbers[i]);
        if (used) snprintf(name + length, sizeof name - length, "]");
        for (size_t i = 0; i < p->run->values.count; i++)
            if (!strcmp(p->run->values.data[i].name, name)) return &p->run->values.data[i];
    }
    return NULL;
}

static float float_of_half(uint16_t h, bool bf16) {
    if (bf16) {
        uint32_t u = (uint32_t)h << 16;
        float x;
        memcpy(&x, &u, 4);
        return x;
    }
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    float x = exponent == 31 ? (mantissa ? NAN : INFINITY) : exponent ? ldexpf((float)(mantissa + 1024), exponent - 25) : ldexpf((float)mantissa, -24);
    return h >> 15 ? -x : x;
}

static double get(const char *at, dtm_plan_dtype dtype, int64_t i) {
    switch (dtype) {
    case DTM_PLAN_F32: return ((const float *)at)[i];
    case DTM_PLAN_I32: return ((const int32_t *)at)[i];
    case DTM_PLAN_F16: case DTM_PLAN_BF16: return float_of_half(((const uint16_t *)at)[i], dtype == DTM_PLAN_BF16);
    default: return ((const uint8_t *)at)[i];
    }
}

/* Numbers of the interpreter are those of the type, but for f32. */
static void put(char *at, dtm_plan_dtype dtype, int64_t i, double x) {
    float f = (float)x;
    uint32_t u;
    switch (dtype) {
    case DTM_PLAN_F32: ((float *)at)[i] = f; return;
    case DTM_PLAN_I32: ((int32_t *)at)[i] = (int32_t)x; return;
    case DTM_PLAN_BF16:
        memcpy(&u, &f, 4);
        ((uint16_t *)at)[i] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
        return;
    case DTM_PLAN_F16:
        for (uint32_t h = 0; h < 0x7c00; h++)
            if (float_of_half((uint16_t)h, false) == fabsf(f)) ((uint16_t *)at)[i] = (uint16_t)(h | (f < 0 ? 0x8000u : 0));
        return;
    default: ((uint8_t *)at)[i] = (uint8_t)x;
    }
}

/* ---- one launch of the plan ---- */

typedef struct used {
    const dtm_plan_buffer *buffer;
    const dtm_tensor *tensor;
    char *at;
    int64_t elements;
    bool reads, writes;
} used;

static double most_of(const used *u) {
    double most = 0;
    for (int64_t i = 0; i < u->elements; i++) most = fmax(most, isfinite(u->tensor->data[i]) ? fabs(u->tensor->data[i]) : 0);
    return most;
}

/* One step of the type there: what is rounded a second time, or where the interpreter does not, may be one off, but seldom is. */
static double step_at(const dtm_plan_buffer *b, double x) {
    int digits = b->dtype == DTM_PLAN_BF16 ? 7 : 10, least = b->dtype == DTM_PLAN_BF16 ? -126 : -14, e = x == 0 ? least : ilogb(x);
    return ldexp(1, (e < least ? least : e) - digits);
}

static void compare(tested *p, const dtm_plan_instruction *at, const used *u) {
    const char *kernel = p->plan->cuda[at->kernel.kernel].name;
    bool half = u->buffer->dtype == DTM_PLAN_BF16 || u->buffer->dtype == DTM_PLAN_F16;
    bool rounds_inside = !strncmp(kernel, "attention", 9); /* probabilities are halves for the tensor cores */
    double most = most_of(u), worst = 0, allowed = most * (rounds_inside && half ? 0x1p-6 : 1e-4) + 1e-30;
    int64_t where = -1, unlike = 0;
    for (int64_t i = 0; i < u->elements; i++) {
        double right = u->tensor->data[i], have = get(u->at, u->buffer->dtype, i), off = fabs(have - right);
        if (have == right || (isnan(have) && isnan(right))) continue;
        unlike += half;
        if (half && !rounds_inside) off -= step_at(u->buffer, right);
        if (!(off <= worst)) worst = off, where = i;
    }
    bool often = half && !rounds_inside && unlike > 2 + u->elements / 50;
    if (where >= 0 && !(worst <= allowed))
        printf("%s: %s of %s (line %u): %s is %.9g at %lld, not %.9g; of %.3g %.3g are allowed\n", p->path, kernel, at->name, at->line, u->buffer->name,
               get(u->at, u->buffer->dtype, where), (long long)where, u->tensor->data[where], worst, allowed);
    if (often)
        printf("%s: %s of %s (line %u): of %lld elements of %s %lld are rounded otherwise\n", p->path, kernel, at->name, at->line,
               (long long)u->elements, u->buffer->name, (long long)unlike);
    CHECK(worst <= allowed && !often);
}

/* Two buffers in one place are one. */
static int add_used(used *all, int *count, used u) {
    for (int i = 0; i < *count; i++)
        if (all[i].at == u.at && all[i].buffer->dtype == u.buffer->dtype && all[i].elements == u.elements) {
            all[i].reads |= u.reads, all[i].writes |= u.writes;
            if (u.writes) all[i].tensor = u.tensor, all[i].buffer = u.buffer;
            return i;
        }
    all[*count] = u;
    return (*count)++;
}

static void fill(const used *u) {
    if (!strcmp(u->buffer->name, "rope.table")) return; /* made by the launch before */
    if (!strcmp(u->buffer->name, "step")) {
        const uint64_t state[2] = {SEED, 1};
        memcpy(u->at, state, sizeof state);
        return;
    }
    for (int64_t i = 0; i < u->elements; i++) put(u->at, u->buffer->dtype, i, u->tensor->data[i]);
}

static bool run_launches(tested *p, const dtm_plan_cuda_kernel *k, const int64_t (*z)[16], char *const *scratch, const int64_t *scratch_bytes,
                         const unsigned char *params, size_t bytes, int tuples, const used *all, int count, int64_t *error, uint32_t *mark,
                         uint64_t seed) {
    struct sim_memory *memory = sim_memory_new();
    static struct sim_reports reports;
    static struct sim_buffer buffers[MOST_BUFFERS];
    int n = 0;
    bool good = true;
    memset(&reports, 0, sizeof reports);
    sim_memory_add(memory, p->arena, (size_t)p->plan->arena_bytes + 4096);
    sim_memory_add(memory, error, sizeof *error);
    sim_memory_define(memory, error, sizeof *error, true);
    sim_memory_add(memory, mark, sizeof *mark);
    buffers[n++] = (struct sim_buffer){"error", error, sizeof *error, SIM_READ | SIM_WRITE};
    buffers[n++] = (struct sim_buffer){"mark", mark, sizeof *mark, SIM_WRITE};
    for (int i = 0; i < count; i++) {
        size_t size = (size_t)(all[i].elements * dtype_bytes[all[i].buffer->dtype]);
        sim_memory_define(memory, all[i].at, size, all[i].reads);
        /* A pass may read what another has written, and several launches write one output. */
        buffers[n++] = (struct sim_buffer){all[i].buffer->name, all[i].at, size, all[i].writes ? SIM_READ | SIM_WRITE : SIM_READ};
    }
    for (int t = 0; t < tuples; t++)
        if (scratch[t]) {
            sim_memory_add(memory, scratch[t], (size_t)scratch_bytes[t]);
            sim_memory_define(memory, scratch[t], (size_t)scratch_bytes[t], false);
            buffers[n++] = (struct sim_buffer){"scratch", scratch[t], (size_t)scratch_bytes[t], SIM_READ | SIM_WRITE};
        }
    for (uint32_t l = 0; l < k->n_launches && good; l++) {
        int64_t blocks = 0, shared = 0;
        for (int t = 0; t < tuples; t++) {
            int64_t own = k->launches[l].blocks(z[t]), bytes_of = k->launches[l].shared ? k->launches[l].shared(z[t]) : 0;
            if (own > blocks) blocks = own;
            if (bytes_of > shared) shared = bytes_of;
        }
        if (!blocks) continue;
        const struct sim_launch launched = {.function = sim_function_find(p->modules[k - p->plan->cuda], k->launches[l].entry),
                                            .grid = {(uint32_t)blocks, (uint32_t)tuples, 1},
                                            .block = {k->launches[l].threads, 1, 1},
                                            .params = params,
                                            .params_size = bytes,
                                            .buffers = buffers,
                                            .n_buffers = n,
                                            .name = k->launches[l].entry,
                                            .seed = seed,
                                            .dynamic_shared = (uint32_t)shared,
                                            .warps = SIM_RANDOM,
                                            .blocks = SIM_RANDOM,
                                            .random_groups = true,
                                            .copies = SIM_BY_LOT};
        good = sim_launch_run(memory, &launched, &reports);
    }
    for (int i = 0; i < reports.n; i++) sim_report_print(&reports.report[i], stdout);
    for (int i = 0; i < count && good; i++) {
        size_t size = (size_t)(all[i].elements * dtype_bytes[all[i].buffer->dtype]), whole = sim_memory_defined(memory, all[i].at, size);
        if (whole != size) printf("%s: %s is written up to byte %zu of %zu\n", k->name, all[i].buffer->name, whole, size);
        good = whole == size;
    }
    sim_memory_free(memory);
    return good && !reports.total;
}

static void launch(tested *p, const dtm_plan_instruction *at, const int64_t *numbers, int depth, int64_t copy) {
    const dtm_plan_launch *launch = &at->kernel;
    const dtm_plan_cuda_kernel *k = &p->plan->cuda[launch->kernel];
    static unsigned char params[8192];
    static used all[MOST_BUFFERS];
    static int64_t z[MOST_TUPLES][16];
    static char *scratch[MOST_TUPLES];
    static int64_t scratch_bytes[MOST_TUPLES];
    size_t bytes = 0;
    int count = 0, tuples = 0;
    int64_t error = DTM_KERNEL_OK;
    void *error_at = &error;
    uint32_t mark = 0, number = 77;
    void *mark_at = &mark;
    for (uint32_t t = 0; t < launch->tuples && tuples < (int)k->tuples; t++) {
        int64_t copies = 1;
        uint32_t loop = launch->loops.items[t];
        for (uint32_t l = loop; l; l = p->plan->loops[l].parent) copies *= p->plan->loops[l].copies;
        for (int64_t c = 0; c < copies && tuples < (int)k->tuples; c++, tuples++) {
            int64_t own[16] = {0}, rest = c;
            int deep = 0;
            for (uint32_t l = loop; l; l = p->plan->loops[l].parent) deep++;
            for (uint32_t l = loop, i = (uint32_t)deep; l; rest /= p->plan->loops[l].copies, l = p->plan->loops[l].parent)
                own[--i] = rest % p->plan->loops[l].copies;
            for (uint32_t i = 0; i < k->n_buffers; i++) {
                const dtm_plan_buffer *b = &p->plan->buffers[launch->buffers.items[t * k->n_buffers + i]];
                used u = {b, tensor_of(p, b, loop ? own : numbers, loop ? deep : depth), address_of(p, b, loop ? c : copy), elements_of(p, b), false, false};
                bool read_only = k->read_only >> i & 1;
                u.writes = !read_only && strcmp(b->name, "step") != 0;
                u.reads = !u.writes;
                if ((!u.tensor && strcmp(b->name, "step") != 0 && strcmp(b->name, "rope.table") != 0) || (u.tensor && u.tensor->elements != u.elements)) {
                    printf("%s: %s of %s is not run: %s is not the interpreter's\n", p->path, k->name, at->name, b->name);
                    p->skipped++;
                    return;
                }
                if (u.reads) fill(&u);
                add_used(all, &count, u);
                memcpy(params + bytes, &u.at, sizeof u.at);
                bytes += sizeof u.at;
            }
            for (uint32_t i = 0; i < k->n_sizes; i++) z[tuples][i] = p->sizes[launch->sizes.items[t * k->n_sizes + i]];
            scratch_bytes[tuples] = k->scratch_bytes ? k->scratch_bytes(z[tuples]) : 0;
            scratch[tuples] = scratch_bytes[tuples] ? aligned_alloc(256, ((size_t)scratch_bytes[tuples] + 255) / 256 * 256) : NULL;
            memcpy(params + bytes, &scratch[tuples], sizeof(void *));
            bytes += sizeof(void *);
            memcpy(params + bytes, z[tuples], 8 * (k->n_sizes ? k->n_sizes : 1));
            bytes += 8 * (k->n_sizes ? k->n_sizes : 1);
        }
    }
    size_t of_tuple = 8 * (size_t)(k->n_buffers + 1 + (k->n_sizes ? k->n_sizes : 1));
    bytes = k->tuples * of_tuple; /* unused tuples stand in the parameter too */
    memcpy(params + bytes, &error_at, sizeof error_at);
    bytes += sizeof error_at;
    memcpy(params + bytes, &mark_at, sizeof mark_at);
    memcpy(params + bytes + sizeof mark_at, &number, sizeof number);
    bytes += 2 * sizeof mark_at;
    bool good = run_launches(p, k, (const int64_t(*)[16])z, scratch, scratch_bytes, params, bytes, tuples, all, count, &error, &mark, (uint64_t)(at - p->plan->instructions));
    check(good && mark == number, __LINE__, k->name, p->path);
    for (int i = 0; good && i < count; i++)
        if (all[i].writes && all[i].tensor) compare(p, at, &all[i]);
    CHECK(error == DTM_KERNEL_OK);
    for (int t = 0; t < tuples; t++) free(scratch[t]);
    p->launched++;
}

/* The last copy of each repeat around it. */
static void launch_all(tested *p) {
    const dtm_plan *plan = p->plan;
    int64_t numbers[16] = {0}, copies[16], copy = 0;
    int depth = 0;
    for (uint32_t i = 0; i < plan->n_instructions; i++) {
        const dtm_plan_instruction *at = &plan->instructions[i];
        bool loop = at->kind == DTM_PLAN_REPEAT || at->kind == DTM_PLAN_END;
        if (loop && plan->loops[at->repeat.loop].microbatch) continue;
        if (at->kind == DTM_PLAN_REPEAT) {
            copies[depth] = plan->loops[at->repeat.loop].copies;
            numbers[depth] = copies[depth] - 1;
            depth++;
        } else if (at->kind == DTM_PLAN_END) depth--;
        copy = 0;
        for (int d = 0; d < depth; d++) copy = copy * copies[d] + numbers[d];
        evaluate(p, copy);
        if (at->kind == DTM_PLAN_KERNEL) launch(p, at, numbers, depth, copy);
    }
}

/* ---- the compile gate ---- */

static void compile(tested *p, dtm_jit *jit) {
    uint32_t n = p->plan->n_cuda;
    dtm_status status = {0};
    p->modules = calloc(n + 1, sizeof *p->modules);
    for (int a = 0; a < n_architectures; a++) {
        dtm_jit_source *sources = calloc(n + 1, sizeof *sources);
        dtm_jit_code **codes = calloc(n + 1, sizeof *codes);
        char (*names)[300] = calloc(n + 1, sizeof *names);
        for (uint32_t k = 0; k < n; k++) {
            snprintf(names[k], sizeof names[k], "/dtm/%s.cu", p->plan->cuda[k].name);
            sources[k] = (dtm_jit_source){names[k], p->plan->cuda[k].source, architectures[a]};
        }
        bool ok = n == 0 || dtm_jit_compile(jit, sources, (int)n, codes, &status);
        if (!ok) printf("%s: %s\n", p->path, status.message);
        CHECK(ok);
        for (uint32_t k = 0; ok && k < n; k++) {
            text wrong = {0};
            char error[500];
            find(codes[k], &wrong);
            add_rows(&table, architectures[a], codes[k]);
            if (wrong.length) printf("%s: %s for %s: %s\n", p->path, p->plan->cuda[k].name, architectures[a], wrong.data);
            CHECK(wrong.length == 0);
            free(wrong.data);
            if (a == 0) p->modules[k] = sim_module_load(codes[k]->ptx, strlen(codes[k]->ptx), error, sizeof error);
            if (a == 0 && !p->modules[k]) printf("%s: %s: %s\n", p->path, p->plan->cuda[k].name, error);
            CHECK(a != 0 || p->modules[k]);
            ok = ok && (a != 0 || p->modules[k]);
            dtm_jit_code_free(codes[k]);
        }
        free(sources), free(codes), free(names);
        if (!ok) exit(1);
    }
}

static void test_gate(const char *path, const char *folder, dtm_jit *jit) {
    tested p = {.path = path, .context = dtm_context_create()};
    p.module = dtm_check(p.context, path, &(dtm_check_options){0});
    if (!p.module || !dtm_pipeline_run(p.module, &(dtm_pipeline_options){0})) fail_with_diagnostics(&p, "does not compile");
    load_plan(&p, folder);
    add(&table, "\n%s\n", path);
    compile(&p, jit);
    printf("%s: %u kernels\n", path, p.plan->n_cuda);
    for (uint32_t k = 0; k < p.plan->n_cuda; k++) sim_module_free(p.modules[k]);
    free(p.modules);
    dtm_module_destroy(p.module);
    dtm_context_destroy(p.context);
    dlclose(p.library);
}

static void test(const char *path, const char *folder, dtm_jit *jit) {
    tested p = {.path = path, .context = dtm_context_create()};
    p.module = dtm_check(p.context, path, &(dtm_check_options){.mesh = "one=1"});
    if (!p.module || !dtm_pipeline_run(p.module, &(dtm_pipeline_options){0})) fail_with_diagnostics(&p, "does not compile");
    load_plan(&p, folder);
    p.sizes = calloc(p.plan->n_sizes + 1, sizeof *p.sizes);
    p.arena = aligned_alloc(256, ((size_t)p.plan->arena_bytes + 8191) / 256 * 256);
    compile(&p, jit);
    p.run = dtm_interpret(p.module, &(dtm_interpret_options){.steps = 1, .seed = SEED, .keep_step = 1, .rounds = true});
    if (!p.run) fail_with_diagnostics(&p, "is not interpreted");
    launch_all(&p);
    printf("%s: %u kernels, %d launches\n", path, p.plan->n_cuda, p.launched);
    CHECK(p.launched > 0 && p.skipped == 0);
    for (uint32_t k = 0; k < p.plan->n_cuda; k++) sim_module_free(p.modules[k]);
    free(p.modules), free(p.sizes), free(p.arena);
    dtm_interpretation_destroy(p.run);
    dtm_module_destroy(p.module);
    dtm_context_destroy(p.context);
    dlclose(p.library);
}

static void judge_table(const char *file, bool rewrite, bool compare) {
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", root, file);
    if (rewrite) {
        FILE *out = fopen(path, "w");
        if (!out || fputs(table.data, out) < 0 || fclose(out)) abort();
    }
    char *wanted = read_file(path);
    if (compare && strcmp(wanted, table.data) != 0) printf("this is not %s:\n%s", file, table.data);
    CHECK(!compare || !strcmp(wanted, table.data));
    free(wanted);
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    root = argv[1];
    dtm_cuda *cuda = open_nvrtc(argv[2]);
    if (!cuda) return 77;
    dtm_jit *jit = open_jit(cuda);
    bool gate = false, rewrite = false;
    const char *held = NULL;
    add(&table, "%-24s %-8s %7s %9s %6s %11s\n", "kernel", "arch", "threads", "registers", "shared", "warps of 64");
    for (int i = 4; i < argc; i++) {
        if (!strcmp(argv[i], "--gate")) gate = true;
        else if (!strcmp(argv[i], "--quick")) n_architectures = 1;
        else if (!strcmp(argv[i], "--rewrite")) rewrite = true;
        else if (!strcmp(argv[i], "--table")) held = argv[++i];
        else (gate ? test_gate : test)(argv[i], argv[3], jit);
    }
    if (held) judge_table(held, rewrite, dtm_cuda_describe(cuda, DTM_LIBNVRTC)->version == TABLE_VERSION);
    dtm_jit_destroy(jit);
    dtm_cuda_destroy(cuda);
    return failures != 0;
}
