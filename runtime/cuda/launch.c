/* The plan's kernels on a device, and copies between its blocks: compiled at load, launched in the plan's order. */
#include "runtime/cuda/device.h"
#include "runtime/cuda/jit.h"
#include "runtime/data.h"

#include "kernels/cpu/matmul.h"
#include "kernels/cuda/templates.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COPY, PRODUCT, HALVES, OWN /* programs of the runtime itself */ };
enum { MOST_BATCH = 65535, PRODUCT_TILE = 64, HALVES_TILE = 128, PRODUCT_THREADS = 256 };
enum { COPY_UNITS = 5, COPY_THREADS = 256, MOST_BUFFERS = 4096, OPT_IN = 48 << 10 };

/* What a stand-in for the driver is told of the next launch, all that it may touch; a real one has no such function. As
 * tests/gpu/sim/declare.h has it. */
enum { DTM_SIM_READ = 1, DTM_SIM_WRITE = 2 };
typedef struct dtm_sim_buffer {
    const char *name;
    uint64_t at;
    size_t bytes;
    int direction;
} dtm_sim_buffer;
typedef void (*dtm_sim_declare_function)(const dtm_sim_buffer *buffers, int n);

/* As kernels/cuda/box.cuh has it. */
typedef struct box_copy {
    dtm_cu_pointer from, to;
    int64_t size[DTM_PACK_RANK], from_step[DTM_PACK_RANK], to_step[DTM_PACK_RANK];
    dtm_mark mark;
} box_copy;

static const char *const copy_names[COPY_UNITS] = {"dtm_copy_box_1", "dtm_copy_box_2", "dtm_copy_box_4", "dtm_copy_box_8", "dtm_copy_box_16"};

struct dtm_device_kernels {
    dtm_cu_module *modules; /* one a kernel of the plan, then the runtime's own */
    uint32_t n_modules;
    dtm_cu_function (*entries)[DTM_PLAN_CUDA_LAUNCHES];
    dtm_cu_function copies[COPY_UNITS]; /* of 1, 2, .. 16 bytes */
    dtm_cu_function product, of_bf16, of_f16; /* of any types; of two operands of one, by the tensor cores */
    int64_t scratch;                    /* offset of the scratch that launches share, in the device's memory */
    int64_t errors;                     /* offset of words that kernels report to */
    uint32_t *first_error, n_errors;    /* by instruction: that of its first microbatch */
    dtm_sim_declare_function declare;   /* NULL: a real driver */
    dtm_sim_buffer *declared;
};

/* ---- compilation ---- */

static const struct {
    const char *name, *text;
} own[OWN] = {[COPY] = {"copy", "#include \"kernels/cuda/copy.cuh\"\n"},
              [PRODUCT] = {"product", "#include \"kernels/cuda/matmul.cuh\"\n"},
              [HALVES] = {"product_halves", "#include \"kernels/cuda/matmul_halves.cuh\"\n"}};

/* How many of them a plan needs: the last is for products of halves alone. */
static uint32_t own_of(const dtm_plan *plan) {
    for (uint32_t i = 0; i < plan->n_instructions; i++) {
        const dtm_plan_instruction *at = &plan->instructions[i];
        dtm_plan_dtype dtype = at->kind == DTM_PLAN_MATMUL ? plan->buffers[at->matmul.a].dtype : DTM_PLAN_F32;
        if ((dtype == DTM_PLAN_BF16 || dtype == DTM_PLAN_F16) && plan->buffers[at->matmul.b].dtype == dtype) return OWN;
    }
    return HALVES;
}

static bool take_function(dtm_device *device, dtm_cu_module module, const char *entry, dtm_cu_function *out, dtm_status *status) {
    return dtm_device_check(device, device->driver->ModuleGetFunction(out, module, entry), status, "the kernel `%s`", entry);
}

/* The cubin, or, on a device that it is not for, what the driver makes of the PTX. */
static bool load_module(dtm_device *device, const dtm_jit_source *source, const dtm_jit_code *code, dtm_cu_module *out, dtm_status *status) {
    char log[4096] = "";
    dtm_cu_jit_option options[] = {DTM_CU_JIT_ERROR_LOG, DTM_CU_JIT_ERROR_LOG_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    dtm_cu_result result = DTM_CU_NO_BINARY;
    if (code->cubin_bytes) result = device->driver->ModuleLoadDataEx(out, code->cubin, 0, NULL, NULL);
    if (result == DTM_CU_NO_BINARY) result = device->driver->ModuleLoadDataEx(out, code->ptx, 2, options, values);
    if (result != DTM_CU_PTX_TOO_NEW) return dtm_device_check(device, result, status, "the code of %s for %s%s%.300s", source->name, source->arch, *log ? ": " : "", log);
    const dtm_cuda_library *nvrtc = dtm_cuda_describe(device->cuda, DTM_LIBNVRTC), *driver = dtm_cuda_describe(device->cuda, DTM_LIBCUDA);
    return dtm_status_fail(status, "rank %d, device %d (%s): the driver (CUDA %s) knows no PTX of libnvrtc %s (%s): a newer driver or an older libnvrtc would serve",
                           device->rank, device->ordinal, device->name, driver->shown, nvrtc->shown, nvrtc->path);
}

static bool load_modules(dtm_rank *rank, const dtm_jit_source *sources, dtm_jit_code *const *codes, dtm_status *status) {
    dtm_device_kernels *k = rank->device->kernels;
    uint32_t n = rank->plan->n_cuda;
    for (uint32_t i = 0; i < n + own_of(rank->plan); i++) {
        if (!load_module(rank->device, &sources[i], codes[i], &k->modules[i], status)) return false;
        k->n_modules = i + 1;
        for (uint32_t l = 0; i < n && l < rank->plan->cuda[i].n_launches; l++)
            if (!take_function(rank->device, k->modules[i], rank->plan->cuda[i].launches[l].entry, &k->entries[i][l], status)) return false;
    }
    for (int u = 0; u < COPY_UNITS; u++)
        if (!take_function(rank->device, k->modules[n + COPY], copy_names[u], &k->copies[u], status)) return false;
    if (!take_function(rank->device, k->modules[n + PRODUCT], "dtm_product_any", &k->product, status)) return false;
    if (own_of(rank->plan) == HALVES) return true;
    return take_function(rank->device, k->modules[n + HALVES], "dtm_product_of_bf16", &k->of_bf16, status) &&
           take_function(rank->device, k->modules[n + HALVES], "dtm_product_of_f16", &k->of_f16, status);
}

/* Threads that compile: the cores of the node, as its ranks but one wait meanwhile. */
static int compilers(void) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores > 32 ? 32 : (int)cores;
}

static bool compile(dtm_rank *rank, const dtm_jit_source *sources, dtm_jit_code **codes, dtm_status *status) {
    const dtm_jit_options options = {.cuda = rank->device->cuda, .folder = rank->options->cache, .threads = compilers()};
    dtm_jit *jit = NULL;
    char notice[1200] = "";
    bool ok = dtm_jit_create(&options, &jit, status) && dtm_jit_compile(jit, sources, (int)(rank->plan->n_cuda + own_of(rank->plan)), codes, status);
    if (jit) dtm_jit_notice(jit, notice);
    if (ok && *notice && !rank->options->quiet && dtm_comm_node_index(rank->comm) == 0) fprintf(stderr, "note: %s\n", notice);
    dtm_jit_destroy(jit);
    return ok;
}

static bool find_arch(dtm_rank *rank, char arch[24], dtm_status *status) {
    dtm_device *device = rank->device;
    const dtm_jit_options options = {.cuda = device->cuda, .memory_only = true};
    dtm_jit *jit = NULL;
    bool newer = false, ok = dtm_jit_create(&options, &jit, status) && dtm_jit_arch(jit, device->major, device->minor, arch, &newer, status);
    dtm_jit_destroy(jit);
    if (ok && newer && !rank->options->quiet && device->rank == 0)
        fprintf(stderr, "note: device %d (%s) is newer than libnvrtc: kernels are compiled for %s\n", device->ordinal, device->name, arch);
    return ok;
}

static bool name_source(dtm_jit_source *source, const char *name, const char *text, const char *arch, dtm_status *status) {
    size_t length = strlen(name) + 16;
    char *path = malloc(length);
    if (!path || !text) {
        free(path);
        return dtm_status_fail(status, "out of memory for the text of kernels");
    }
    snprintf(path, length, "/dtm/%s.cu", name);
    *source = (dtm_jit_source){path, text, arch};
    return true;
}

/* What to compile. Names, and the texts of the runtime's own programs, are to be freed. */
static bool list_sources(dtm_rank *rank, dtm_jit_source *sources, char *texts[OWN], const char *arch, dtm_status *status) {
    uint32_t n = rank->plan->n_cuda;
    bool ok = true;
    for (uint32_t i = 0; ok && i < n; i++) ok = name_source(&sources[i], rank->plan->cuda[i].name, rank->plan->cuda[i].source, arch, status);
    for (uint32_t i = 0; ok && i < own_of(rank->plan); i++) {
        char name[64];
        const char *missing = NULL;
        snprintf(name, sizeof name, "/dtm/%s.cu", own[i].name);
        texts[i] = dtm_template_program(name, own[i].text, &missing);
        ok = name_source(&sources[n + i], own[i].name, texts[i], arch, status);
    }
    return ok;
}

static bool check_kernels(const dtm_rank *rank, dtm_status *status) {
    for (uint32_t i = 0; i < rank->plan->n_cuda; i++) {
        const dtm_plan_cuda_kernel *k = &rank->plan->cuda[i];
        int64_t words = (int64_t)k->tuples * (k->n_buffers + 1 + (k->n_sizes ? k->n_sizes : 1));
        if (k->n_launches > DTM_PLAN_CUDA_LAUNCHES || !k->tuples || words * 8 > DTM_PLAN_CUDA_BYTES - DTM_PLAN_CUDA_TAIL)
            return dtm_status_fail(status, "the kernel `%s` has more launches or larger parameters than there may be: a defect of dtm", k->name);
    }
    return true;
}

static void find_declare(dtm_device *device) {
    dtm_device_kernels *k = device->kernels;
    void *library = dlopen(dtm_cuda_describe(device->cuda, DTM_LIBCUDA)->path, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return;
    void *found = dlsym(library, "dtm_sim_declare");
    if (found) memcpy(&k->declare, &found, sizeof found);
    if (found) k->declared = calloc(MOST_BUFFERS, sizeof *k->declared);
    if (!k->declared) k->declare = NULL;
    dlclose(library); /* it stays, load.c has it too */
}

bool dtm_device_kernels_load(dtm_rank *rank, dtm_status *status) {
    size_t n = (size_t)rank->plan->n_cuda + own_of(rank->plan);
    dtm_device_kernels *k = rank->device->kernels = calloc(1, sizeof *k);
    dtm_jit_source *sources = calloc(n, sizeof *sources);
    dtm_jit_code **codes = calloc(n, sizeof *codes);
    char *texts[OWN] = {NULL}, arch[24];
    if (k) {
        k->modules = calloc(n, sizeof(dtm_cu_module));
        k->entries = calloc(n, sizeof *k->entries);
        k->first_error = calloc((size_t)rank->plan->n_instructions + 1, sizeof *k->first_error);
    }
    bool ok = sources && codes && k && k->modules && k->entries && k->first_error;
    if (!ok) dtm_status_fail(status, "out of memory for kernels");
    ok = ok && check_kernels(rank, status) && find_arch(rank, arch, status) && list_sources(rank, sources, texts, arch, status);
    /* One rank of a node compiles; the others find what it made in the cache. */
    bool first = dtm_comm_node_index(rank->comm) == 0;
    if (ok && first) ok = compile(rank, sources, codes, status);
    ok = dtm_comm_agree(rank->comm, status) && (first || compile(rank, sources, codes, status)) && load_modules(rank, sources, codes, status);
    if (ok) find_declare(rank->device);
    for (size_t i = 0; i < n; i++) {
        if (codes) dtm_jit_code_free(codes[i]);
        if (sources) free((char *)sources[i].name);
    }
    for (int i = 0; i < OWN; i++) free(texts[i]);
    free(sources);
    free(codes);
    if (!ok && status->echo) return false; /* the first of the node has failed, and all know */
    return dtm_comm_agree(rank->comm, status);
}

void dtm_device_kernels_free(dtm_device *device) {
    dtm_device_kernels *k = device->kernels;
    if (!k) return;
    for (uint32_t i = 0; i < k->n_modules; i++) device->driver->ModuleUnload(k->modules[i]);
    free(k->modules);
    free(k->entries);
    free(k->first_error);
    free(k->declared);
    free(k);
    device->kernels = NULL;
}

/* ---- launches ---- */

static bool enqueue(dtm_device *device, dtm_cu_stream stream, dtm_cu_function function, int64_t blocks, uint32_t tuples, uint32_t threads, int64_t shared,
                    void *parameter, const char *what, dtm_status *status) {
    if (blocks > INT32_MAX) return dtm_status_fail(status, "`%s` would be a launch of %lld blocks", what, (long long)blocks);
    dtm_cu_launch launch = {.grid = {(unsigned)blocks, tuples, 1}, .block = {threads, 1, 1}, .shared_bytes = (unsigned)shared, .stream = stream};
    void *arguments[] = {parameter};
    return dtm_device_check(device, device->driver->LaunchKernelEx(&launch, function, arguments, NULL), status,
                            "the launch of `%s` (%lld blocks of %u threads, %lld bytes of shared memory)", what, (long long)blocks, threads, (long long)shared);
}

static void declare(dtm_device_kernels *k, int *n, const char *name, dtm_cu_pointer at, int64_t bytes, int direction) {
    if (k->declare && bytes > 0 && *n < MOST_BUFFERS) k->declared[(*n)++] = (dtm_sim_buffer){name, at, (size_t)bytes, direction};
}

/* What ends the declaration of a launch: its mark, which it has to write. */
static void declare_all(dtm_device_kernels *k, int n, const dtm_mark *mark) {
    declare(k, &n, "mark", mark->at, sizeof mark->number, DTM_SIM_WRITE);
    if (k->declare) k->declare(k->declared, n);
}

/* One run of a kernel: of a tuple, in one copy of its loop. */
typedef struct run {
    uint32_t tuple, loop;
    int64_t copy;
} run;

typedef struct batch {
    dtm_rank *rank;
    const dtm_plan_instruction *at;
    const dtm_plan_cuda_kernel *kernel;
    uint32_t count;
    run runs[DTM_PLAN_CUDA_BYTES / 8];
} batch;

static void *buffer_of(const batch *b, const run *r, uint32_t index) {
    uint32_t buffer = b->at->kernel.buffers.items[r->tuple * b->kernel->n_buffers + index];
    bool moves = r->loop && b->rank->plan->buffers[buffer].loop == r->loop;
    return moves ? dtm_rank_buffer_copy(b->rank, buffer, r->copy) : dtm_rank_buffer(b->rank, buffer);
}

static void sizes_of(const batch *b, const run *r, int64_t *out) {
    uint32_t n = b->kernel->n_sizes;
    for (uint32_t i = 0; i < n; i++) out[i] = b->rank->sizes[b->at->kernel.sizes.items[r->tuple * n + i]];
}

static int64_t scratch_of(const batch *b, const int64_t *sizes) {
    int64_t bytes = b->kernel->scratch_bytes ? b->kernel->scratch_bytes(sizes) : 0;
    return (bytes + 255) / 256 * 256;
}

static void declare_run(const batch *b, const run *r, int *n) {
    dtm_device_kernels *k = b->rank->device->kernels;
    for (uint32_t i = 0; k->declare && i < b->kernel->n_buffers; i++) {
        uint32_t buffer = b->at->kernel.buffers.items[r->tuple * b->kernel->n_buffers + i];
        const dtm_plan_buffer *of = &b->rank->plan->buffers[buffer];
        dtm_box box = dtm_rank_box(b->rank, buffer);
        int direction = b->kernel->read_only >> i & 1 ? DTM_SIM_READ : DTM_SIM_READ | DTM_SIM_WRITE;
        declare(k, n, of->name, (dtm_cu_pointer)(uintptr_t)buffer_of(b, r, i), dtm_box_elements(&box) * dtm_plan_dtype_bytes(of->dtype), direction);
    }
}

/* The parameter: all tuples, then the word for errors, and the mark, which is of each launch. */
static void fill(const batch *b, uint64_t *words, int *declared) {
    dtm_device *device = b->rank->device;
    dtm_device_kernels *k = device->kernels;
    uint32_t nb = b->kernel->n_buffers, nz = b->kernel->n_sizes, each = nb + 1 + (nz ? nz : 1);
    dtm_cu_pointer scratch = device->memory + (dtm_cu_pointer)k->scratch;
    for (uint32_t t = 0; t < b->count; t++) {
        uint64_t *to = words + t * each;
        for (uint32_t i = 0; i < nb; i++) to[i] = (uint64_t)(uintptr_t)buffer_of(b, &b->runs[t], i);
        int64_t *sizes = (int64_t *)(to + nb + 1);
        sizes_of(b, &b->runs[t], sizes);
        int64_t bytes = scratch_of(b, sizes);
        to[nb] = bytes ? scratch : 0;
        declare(k, declared, "scratch", scratch, bytes, DTM_SIM_READ | DTM_SIM_WRITE);
        scratch += (dtm_cu_pointer)bytes;
        declare_run(b, &b->runs[t], declared);
    }
    if (!b->at->kernel.error) return;
    uint32_t word = k->first_error[b->at - b->rank->plan->instructions] + (uint32_t)b->rank->microbatch;
    dtm_cu_pointer error = device->memory + (dtm_cu_pointer)k->errors + 8 * (dtm_cu_pointer)word;
    words[b->kernel->tuples * each] = error;
    declare(k, declared, "error", error, 8, DTM_SIM_READ | DTM_SIM_WRITE);
}

/* What the first launch leaves in scratch the others only read. */
static void declare_left(dtm_device_kernels *k, int declared) {
    for (int i = 0; k->declare && i < declared; i++)
        if (!strcmp(k->declared[i].name, "scratch")) k->declared[i].direction = DTM_SIM_READ;
}

/* The launches of a kernel, one after another, for the runs that are in the batch. */
static bool run_batch(batch *b, dtm_status *status) {
    dtm_device *device = b->rank->device;
    uint64_t words[DTM_PLAN_CUDA_BYTES / 8] = {0};
    uint32_t nb = b->kernel->n_buffers, nz = b->kernel->n_sizes, each = nb + 1 + (nz ? nz : 1), count = b->count;
    int declared = 0;
    if (!count) return true;
    fill(b, words, &declared);
    b->count = 0;
    for (uint32_t l = 0; l < b->kernel->n_launches; l++) {
        const dtm_plan_cuda_launch *launch = &b->kernel->launches[l];
        int64_t blocks = 0, shared = 0;
        for (uint32_t t = 0; t < count; t++) {
            const int64_t *sizes = (const int64_t *)(words + t * each + nb + 1);
            int64_t grid = launch->blocks(sizes), bytes = launch->shared ? launch->shared(sizes) : 0;
            if (grid > blocks) blocks = grid;
            if (bytes > shared) shared = bytes;
        }
        if (l) declare_left(device->kernels, declared);
        if (!blocks) continue;
        dtm_mark mark;
        if (!dtm_mark_kernel(device, launch->entry, &mark, status)) return false;
        memcpy(words + b->kernel->tuples * each + 1, &mark, sizeof mark);
        declare_all(device->kernels, declared, &mark);
        if (!enqueue(device, device->compute, device->kernels->entries[b->at->kernel.kernel][l], blocks, count, launch->threads, shared, words,
                     b->at->name ? b->at->name : b->kernel->name, status))
            return false;
    }
    return true;
}

static bool add_run(batch *b, uint32_t tuple, uint32_t loop, int64_t copy, dtm_status *status) {
    b->runs[b->count++] = (run){tuple, loop, copy};
    return b->count < b->kernel->tuples || run_batch(b, status);
}

bool dtm_device_launch(dtm_rank *rank, uint32_t instruction, dtm_status *status) {
    const dtm_plan_instruction *at = &rank->plan->instructions[instruction];
    batch b = {.rank = rank, .at = at, .kernel = &rank->plan->cuda[at->kernel.kernel]};
    for (uint32_t t = 0; t < at->kernel.tuples; t++) {
        int64_t copies = dtm_loop_copies(rank->plan, at->kernel.loops.items[t]);
        for (int64_t copy = 0; copy < copies; copy++)
            if (!add_run(&b, t, at->kernel.loops.items[t], copy, status)) return false;
    }
    return run_batch(&b, status);
}

/* ---- what launches need of memory ---- */

/* Scratch of the largest batch of an instruction, as run_batch makes them; and the shared memory of each entry. */
static bool measure(dtm_rank *rank, uint32_t instruction, int64_t *scratch, int64_t (*shared)[DTM_PLAN_CUDA_LAUNCHES]) {
    const dtm_plan_instruction *at = &rank->plan->instructions[instruction];
    batch b = {.rank = rank, .at = at, .kernel = &rank->plan->cuda[at->kernel.kernel]};
    int64_t sizes[DTM_PLAN_CUDA_BYTES / 8], sum = 0;
    uint32_t in = 0;
    for (uint32_t t = 0; t < at->kernel.tuples; t++) {
        run r = {t, 0, 0};
        sizes_of(&b, &r, sizes);
        for (uint32_t l = 0; l < b.kernel->n_launches; l++) {
            int64_t bytes = b.kernel->launches[l].shared ? b.kernel->launches[l].shared(sizes) : 0;
            if (bytes > shared[at->kernel.kernel][l]) shared[at->kernel.kernel][l] = bytes;
        }
        for (int64_t copy = 0, copies = dtm_loop_copies(rank->plan, at->kernel.loops.items[t]); copy < copies; copy++) {
            sum = (in ? sum : 0) + scratch_of(&b, sizes);
            if (sum > *scratch) *scratch = sum;
            in = (in + 1) % b.kernel->tuples;
        }
    }
    return true;
}

static bool allow_shared(dtm_rank *rank, int64_t (*shared)[DTM_PLAN_CUDA_LAUNCHES], dtm_status *status) {
    dtm_device *device = rank->device;
    for (uint32_t i = 0; i < rank->plan->n_cuda; i++)
        for (uint32_t l = 0; l < rank->plan->cuda[i].n_launches; l++) {
            if (shared[i][l] <= OPT_IN) continue;
            dtm_cu_result result = device->driver->FuncSetAttribute(device->kernels->entries[i][l], DTM_CU_FUNCTION_SHARED_DYNAMIC, (int)shared[i][l]);
            if (!dtm_device_check(device, result, status, "%lld bytes of shared memory for `%s`", (long long)shared[i][l], rank->plan->cuda[i].name)) return false;
        }
    return true;
}

bool dtm_device_kernels_measure(dtm_rank *rank, dtm_status *status) {
    const dtm_plan *plan = rank->plan;
    dtm_device_kernels *k = rank->device->kernels;
    int64_t scratch = 0, microbatches = rank->microbatch_sizes.count ? plan->microbatches : 1;
    int64_t(*shared)[DTM_PLAN_CUDA_LAUNCHES] = calloc((size_t)plan->n_cuda + 1, sizeof *shared);
    if (!shared) return dtm_status_fail(status, "out of memory measuring kernels");
    for (int64_t m = 0; m < microbatches; m++) {
        dtm_rank_set_microbatch(rank, m, m > 0, false);
        for (uint32_t i = 0; i < plan->n_instructions; i++)
            if (plan->instructions[i].kind == DTM_PLAN_KERNEL) measure(rank, i, &scratch, shared);
    }
    dtm_rank_set_microbatch(rank, 0, false, false);
    for (uint32_t i = 0; i < plan->n_instructions; i++) {
        const dtm_plan_instruction *at = &plan->instructions[i];
        if (at->kind != DTM_PLAN_KERNEL || !at->kernel.error) continue;
        k->first_error[i] = k->n_errors;
        k->n_errors += (uint32_t)(plan->microbatches > 1 ? plan->microbatches : 1);
    }
    k->scratch = dtm_device_reserve(rank->device, scratch);
    bool ok = allow_shared(rank, shared, status);
    free(shared);
    return ok;
}

void dtm_device_errors_at(dtm_device *device, int64_t offset) { device->kernels->errors = offset; }
int64_t dtm_device_errors(const dtm_device *device) { return device->kernels->n_errors; }

/* ---- bad inputs ---- */

/* The element as the data has it: of the buffer another microbatch may have taken the place since. */
static int32_t value_of(dtm_rank *rank, uint32_t buffer, int64_t element, dtm_status *status) {
    const dtm_plan *plan = rank->plan;
    int64_t begin[DTM_PLAN_RANK], end[DTM_PLAN_RANK];
    dtm_box box = dtm_rank_box(rank, buffer);
    for (int d = 0; d < box.rank; d++) begin[d] = box.spans[d].begin, end[d] = begin[d] + box.spans[d].size;
    for (uint32_t i = 0; i < plan->n_instructions; i++) {
        const dtm_plan_instruction *at = &plan->instructions[i];
        if (at->kind != DTM_PLAN_INPUT || at->io.buffer != buffer) continue;
        int32_t *all = malloc((size_t)dtm_box_elements(&box) * sizeof *all + 1), value = 0;
        if (all && dtm_data_read(rank->data, rank->step, (int)at->io.index, begin, end, all, status)) value = all[element];
        free(all);
        return value;
    }
    const int32_t *there = dtm_rank_read(rank, (const int32_t *)dtm_rank_buffer(rank, buffer) + element, sizeof *there, status);
    return there ? *there : 0;
}

/* Of those that were met, the one that the CPU would have come to first. */
bool dtm_device_bad_input(dtm_rank *rank, const int64_t *words, dtm_status *status) {
    const dtm_plan *plan = rank->plan;
    const dtm_device_kernels *k = rank->device->kernels;
    for (int64_t m = 0; k->n_errors && m < (plan->microbatches > 1 ? plan->microbatches : 1); m++)
        for (uint32_t i = 0; i < plan->n_instructions; i++) {
            const dtm_plan_instruction *at = &plan->instructions[i];
            if (at->kind != DTM_PLAN_KERNEL || !at->kernel.error || words[k->first_error[i] + m] == DTM_KERNEL_OK) continue;
            dtm_rank_set_microbatch(rank, m, m > 0, false);
            int64_t element = words[k->first_error[i] + m];
            return dtm_bad_element(rank, at, element, value_of(rank, at->kernel.error_buffer, element, status), status);
        }
    return true;
}

/* ---- copies ---- */

static bool is_even(const dtm_pack_dim *dims, int n, int64_t unit, uintptr_t from, uintptr_t to) {
    bool even = dims[n - 1].size % 2 == 0 && from % (uintptr_t)(2 * unit) == 0 && to % (uintptr_t)(2 * unit) == 0;
    for (int d = 0; d < n - 1; d++) even = even && dims[d].from % 2 == 0 && dims[d].to % 2 == 0;
    return even;
}

bool dtm_device_copy(dtm_device *device, dtm_cu_stream stream, const dtm_pack_sizes *sizes, const void *from, void *to, dtm_status *status) {
    dtm_pack_dim dims[DTM_PACK_RANK];
    dtm_device_kernels *k = device->kernels;
    int n = dtm_pack_simplify(sizes, dims), declared = 0;
    int64_t unit = sizes->bytes, units = 1, from_last = 0, to_last = 0;
    uintptr_t source = (uintptr_t)from + (uintptr_t)(sizes->from_offset * unit), target = (uintptr_t)to + (uintptr_t)(sizes->to_offset * unit);
    bool runs = n == 0 || (dims[n - 1].from == 1 && dims[n - 1].to == 1);
    for (int d = 0; d < n; d++) {
        units *= dims[d].size;
        from_last += (dims[d].size - 1) * dims[d].from;
        to_last += (dims[d].size - 1) * dims[d].to;
    }
    if (!units) return true;
    if (runs && n <= 1)
        return dtm_device_check(device, device->driver->MemcpyDtoDAsync(target, source, (size_t)(units * unit), stream), status, "a copy of %lld bytes", (long long)(units * unit));
    declare(k, &declared, "from", source, (from_last + 1) * unit, DTM_SIM_READ);
    declare(k, &declared, "to", target, (to_last + 1) * unit, DTM_SIM_READ | DTM_SIM_WRITE);
    int which = unit == 8 ? 3 : unit == 4 ? 2 : unit == 2 ? 1 : 0;
    for (; runs && unit < 16 && is_even(dims, n, unit, source, target); which++, unit *= 2, units /= 2) {
        dims[n - 1].size /= 2;
        for (int d = 0; d < n - 1; d++) dims[d].from /= 2, dims[d].to /= 2;
    }
    box_copy p = {.from = source, .to = target};
    for (int d = 0; d < DTM_PACK_RANK; d++) {
        const dtm_pack_dim *dim = d >= DTM_PACK_RANK - n ? &dims[d - (DTM_PACK_RANK - n)] : NULL;
        p.size[d] = dim ? dim->size : 1;
        p.from_step[d] = dim ? dim->from : 0;
        p.to_step[d] = dim ? dim->to : 0;
    }
    int64_t blocks = (units + 4 * COPY_THREADS - 1) / (4 * COPY_THREADS), most = 16 * (int64_t)device->multiprocessors;
    if (!dtm_mark_kernel(device, copy_names[which], &p.mark, status)) return false;
    declare_all(k, declared, &p.mark);
    return enqueue(device, stream, k->copies[which], blocks > most ? most : blocks, 1, COPY_THREADS, 0, &p, "copy", status);
}

/* ---- products ---- */

/* As kernels/cuda/matmul.cuh has it. */
typedef struct product_parameter {
    dtm_cu_pointer a, b, c;
    int64_t m, n, k, batch, a_row, a_col, a_batch, b_row, b_col, b_batch, c_row, c_batch;
    int32_t a_type, b_type, c_type, accumulate; /* types: dtm_plan_dtype */
    dtm_mark mark;
} product_parameter;

static int64_t reach(int64_t batch, int64_t stride, int64_t rows, int64_t row, int64_t columns, int64_t column, int64_t bytes) {
    return ((batch - 1) * stride + (rows - 1) * row + (columns - 1) * column + 1) * bytes;
}

static dtm_plan_dtype plain_type(int64_t type) { return type == DTM_MATMUL_BF16 ? DTM_PLAN_BF16 : type == DTM_MATMUL_F16 ? DTM_PLAN_F16 : DTM_PLAN_F32; }

bool dtm_device_product(dtm_device *device, const dtm_matmul_sizes *z, dtm_cu_pointer a, dtm_cu_pointer b, dtm_cu_pointer c, const char *what,
                        dtm_status *status) {
    dtm_device_kernels *k = device->kernels;
    bool halves = z->a_type == z->b_type && z->a_type != DTM_MATMUL_F32;
    const char *kernel = !halves ? "dtm_product_any" : z->a_type == DTM_MATMUL_BF16 ? "dtm_product_of_bf16" : "dtm_product_of_f16";
    int64_t tile = halves ? HALVES_TILE : PRODUCT_TILE, tiles = (z->m + tile - 1) / tile * ((z->n + tile - 1) / tile);
    product_parameter p = {a, b, c, z->m, z->n, z->k, z->batch, z->a_row, z->a_col, z->a_batch, z->b_row, z->b_col, z->b_batch, z->c_row, z->c_batch,
                           (int32_t)plain_type(z->a_type), (int32_t)plain_type(z->b_type), (int32_t)plain_type(z->c_type), (int32_t)z->accumulate, {0}};
    int declared = 0;
    if (z->k) declare(k, &declared, "a", a, reach(z->batch, z->a_batch, z->m, z->a_row, z->k, z->a_col, z->a_type == DTM_MATMUL_F32 ? 4 : 2), DTM_SIM_READ);
    if (z->k) declare(k, &declared, "b", b, reach(z->batch, z->b_batch, z->k, z->b_row, z->n, z->b_col, z->b_type == DTM_MATMUL_F32 ? 4 : 2), DTM_SIM_READ);
    declare(k, &declared, "c", c, reach(z->batch, z->c_batch, z->m, z->c_row, z->n, 1, z->c_type == DTM_MATMUL_F32 ? 4 : 2), DTM_SIM_READ | DTM_SIM_WRITE);
    if (!dtm_mark_kernel(device, kernel, &p.mark, status)) return false;
    if (tiles > INT32_MAX) return dtm_status_fail(status, "the product `%s` would be a launch of %lld blocks", what, (long long)tiles);
    dtm_cu_launch launch = {.grid = {(unsigned)tiles, 1, (unsigned)(z->batch < MOST_BATCH ? z->batch : MOST_BATCH)}, .block = {PRODUCT_THREADS, 1, 1}, .stream = device->compute};
    dtm_cu_function function = !halves ? k->product : z->a_type == DTM_MATMUL_BF16 ? k->of_bf16 : k->of_f16;
    void *arguments[] = {&p};
    declare_all(k, declared, &p.mark);
    return dtm_device_check(device, device->driver->LaunchKernelEx(&launch, function, arguments, NULL), status, "the launch of the product `%s`", what);
}

bool dtm_device_clear(dtm_device *device, dtm_cu_stream stream, void *at, int64_t bytes, dtm_status *status) {
    if (!bytes) return true;
    return dtm_device_check(device, device->driver->MemsetD8Async((dtm_cu_pointer)(uintptr_t)at, 0, (size_t)bytes, stream), status, "zeros in %lld bytes", (long long)bytes);
}
