/* What the tests of kernels on the simulated GPU share: programs compiled by NVRTC for each architecture, launches with every check
 * on, in random orders, and numbers as they are stored. Programs are files of gate/good, which pass the gate too. */
#ifndef DTM_TEST_SIMULATED_H
#define DTM_TEST_SIMULATED_H

#include "tests/gpu/gate/mutants.h"
#include "tests/gpu/gate/program.h"
#include "tests/gpu/sim/sim.h"

#include <math.h>

static const char *const architectures[] = {"sm_80", "sm_90", "sm_100"};
enum { ARCHITECTURES = 3, MOST = 16 };

static dtm_jit *jit;
static struct sim_module *modules[ARCHITECTURES];

static const char *check_named(int check) { return sim_check_name((enum sim_check)check); }

/* Tries each mistake of gate/meanings in the program, its PTX for one architecture. In the child what it goes on with, else NULL. */
static inline char *meanings_of(const char *file, const char *name, const char *text) {
    char path[2048];
    snprintf(path, sizeof path, "%s/tests/gpu/gate/meanings", root);
    FILE *in = fopen(path, "r");
    meaning m;
    int number = 0, every = atoi(getenv("DTM_KERNEL_MEANINGS")), turn = 0;
    if (!in) abort();
    while (next_meaning(in, file, &m)) {
        if (turn++ % (every > 0 ? every : 1)) continue;
        char *edited = with_meaning(text, &m);
        dtm_jit_code *code = NULL;
        dtm_status status = {0};
        const dtm_jit_source source = {name, edited, architectures[number++ % ARCHITECTURES]};
        bool made = edited && dtm_jit_compile(jit, &source, 1, &code, &status);
        if (!made) printf("%s, %s: %s\n", file, m.what, edited ? status.message : "its text is not there");
        check(made, __LINE__, "a mutant is made", m.what);
        free(edited);
        if (!made) continue;
        if (meaning_fork(file, &m, check_named)) {
            char *ptx = strdup(code->ptx);
            dtm_jit_code_free(code);
            fclose(in);
            return ptx;
        }
        dtm_jit_code_free(code);
    }
    fclose(in);
    return NULL;
}

static inline void load(const char *file) {
    char path[300], name[320], error[500];
    dtm_status status = {0};
    if (mutant_child) _exit(failures ? MUTANT_NUMBERS : MUTANT_SURVIVES); /* its tests are done */
    snprintf(path, sizeof path, "tests/gpu/gate/good/%s", file);
    snprintf(name, sizeof name, "/dtm/%s", path);
    char *text = program(path);
    dtm_jit_source sources[ARCHITECTURES];
    dtm_jit_code *codes[ARCHITECTURES];
    for (int a = 0; a < ARCHITECTURES; a++) sources[a] = (dtm_jit_source){name, text, architectures[a]};
    if (!dtm_jit_compile(jit, sources, ARCHITECTURES, codes, &status)) {
        printf("%s\n", status.message);
        exit(1);
    }
    for (int a = 0; a < ARCHITECTURES; a++) {
        sim_module_free(modules[a]);
        modules[a] = sim_module_load(codes[a]->ptx, strlen(codes[a]->ptx), error, sizeof error);
        if (!modules[a]) {
            printf("%s for %s: %s\n", file, architectures[a], error);
            exit(1);
        }
    }
    int step = 1, of = 0, first = 0;
    const char *wanted = getenv("DTM_KERNEL_MUTANTS"), *only = getenv("DTM_KERNEL_PROGRAM");
    bool mutated = !only || !strcmp(only, file);
    char *mutant = NULL;
    if (mutated && wanted && sscanf(wanted, "%d:%d:%d", &step, &of, &first) >= 1 && step > 0) mutant = mutants_of(file, codes[of % ARCHITECTURES]->ptx, step, first);
    if (!mutant && mutated && getenv("DTM_KERNEL_MEANINGS")) mutant = meanings_of(file, name, text);
    for (int a = 0; a < ARCHITECTURES; a++) {
        dtm_jit_code_free(codes[a]);
        if (!mutant) continue;
        sim_module_free(modules[a]);
        modules[a] = sim_module_load(mutant, strlen(mutant), error, sizeof error);
        if (!modules[a]) _exit(MUTANT_REFUSED);
    }
    free(mutant);
    free(text);
}

/* ---- a launch ---- */

typedef struct launch {
    struct sim_buffer buffers[MOST];
    int n_buffers;
    unsigned char params[4000];
    size_t bytes;
    uint32_t shared; /* dynamic */
    int order;       /* of blocks and warps; 0: random, 1: forward, 2: reverse */
    bool perturb;    /* approximations are off by what the ISA allows */
} launch;

static inline void param(launch *l, const void *value, size_t bytes) {
    l->bytes = (l->bytes + bytes - 1) / bytes * bytes;
    memcpy(l->params + l->bytes, value, bytes);
    l->bytes += bytes;
}
static inline void whole(launch *l, int value) { param(l, &value, sizeof value); }
static inline void wide(launch *l, int64_t value) { param(l, &value, sizeof value); }
/* Memory of the device that no parameter names yet. */
static inline void *memory(launch *l, const char *name, size_t bytes, int direction) {
    void *at = aligned_alloc(256, (bytes + 511) / 256 * 256);
    if (!at || l->n_buffers == MOST) abort();
    l->buffers[l->n_buffers++] = (struct sim_buffer){name, at, bytes, direction};
    return at;
}
static inline void *buffer(launch *l, const char *name, size_t bytes, int direction) {
    void *at = memory(l, name, bytes, direction);
    param(l, &at, sizeof at);
    return at;
}

/* A tuple of what DTM_ENTRY takes, and after the last the error word. */
static inline void tuple(launch *l, void *const *buffers, int n_buffers, void *scratch, const int64_t *sizes, int n_sizes) {
    for (int i = 0; i < n_buffers; i++) param(l, &buffers[i], sizeof buffers[i]);
    param(l, &scratch, sizeof scratch);
    for (int i = 0; i < n_sizes; i++) wide(l, sizes[i]);
}

/* What every entry of ours takes last: where it says that it has begun, which it is held to. */
static inline void mark(launch *l) {
    buffer(l, "mark", 4, SIM_WRITE);
    whole(l, 77);
    whole(l, 0); /* the structure's end */
}

static inline void run_grid(const launch *l, int architecture, const char *kernel, const uint32_t grid[3], int block, uint64_t seed) {
    struct sim_memory *memory = sim_memory_new();
    static struct sim_reports reports;
    memset(&reports, 0, sizeof reports);
    for (int i = 0; i < l->n_buffers; i++) {
        sim_memory_add(memory, (void *)(uintptr_t)l->buffers[i].base, l->buffers[i].size);
        sim_memory_define(memory, l->buffers[i].base, l->buffers[i].size, l->buffers[i].direction & SIM_READ);
    }
    static const enum sim_order orders[] = {SIM_RANDOM, SIM_FORWARD, SIM_REVERSE};
    struct sim_launch launched = {.function = sim_function_find(modules[architecture], kernel),
                                        .grid = {grid[0], grid[1], grid[2]},
                                        .block = {(uint32_t)block, 1, 1},
                                        .params = l->params,
                                        .params_size = l->bytes,
                                        .buffers = l->buffers,
                                        .n_buffers = l->n_buffers,
                                        .name = kernel,
                                        .seed = seed,
                                        .dynamic_shared = l->shared,
                                        .warps = orders[l->order],
                                        .blocks = orders[l->order],
                                        .random_groups = l->order == 0,
                                        .copies = SIM_BY_LOT,
                                        .perturb = l->perturb};
    mutant_launch(&launched);
    bool ok = sim_launch_run(memory, &launched, &reports);
    mutant_reports(ok, &reports);
    for (int i = 0; i < reports.n; i++) sim_report_print(&reports.report[i], stdout);
    check(ok && reports.total == 0, __LINE__, kernel, architectures[architecture]);
    sim_memory_free(memory);
}

static inline void run(const launch *l, int architecture, const char *kernel, int grid_x, int grid_y, int block, uint64_t seed) {
    run_grid(l, architecture, kernel, (const uint32_t[]){(uint32_t)grid_x, (uint32_t)grid_y, 1}, block, seed);
}

static inline void release(launch *l) {
    for (int i = 0; i < l->n_buffers; i++) free((void *)(uintptr_t)l->buffers[i].base);
}

/* ---- what is right ---- */

static uint32_t state = 1;
static inline uint32_t draw(void) { return state = state * 1664525u + 1013904223u; }
static inline float drawn(void) { return (float)(draw() >> 8) / (1 << 23) - 1; }

static inline uint32_t bits_of(float x) {
    uint32_t b;
    memcpy(&b, &x, 4);
    return b;
}
static inline float float_of(uint32_t b) {
    float x;
    memcpy(&x, &b, 4);
    return x;
}

/* A storage of `digits` bits after the point, exponents from `least` on, and `most` its largest finite number. */
typedef struct format {
    int digits, least;
    double most;
} format;
static const format bf16 = {7, -126, 0x1.fep127}, f16 = {10, -14, 65504}, f32 = {23, -126, 0x1.fffffep127};

static inline double unit(double x, format f) {
    int e = x == 0 || !isfinite(x) ? f.least : ilogb(x);
    return ldexp(1, (e < f.least ? f.least : e) - f.digits);
}
static inline double rounded(double x, format f) {
    if (!isfinite(x)) return x;
    double u = unit(x, f), y = nearbyint(x / u) * u;
    return fabs(y) > f.most ? copysign(INFINITY, x) : y;
}

/* Sign, exponent, mantissa. */
static inline double value_of(uint16_t b, format f) {
    int exponent_bits = 15 - f.digits, exponent = (b & 0x7fff) >> f.digits, all = (1 << exponent_bits) - 1;
    double mantissa = b & ((1 << f.digits) - 1), sign = b >> 15 ? -1 : 1;
    if (exponent == all) return mantissa != 0 ? NAN : sign * INFINITY;
    if (!exponent) return sign * ldexp(mantissa, f.least - f.digits);
    return sign * ldexp(1 + ldexp(mantissa, -f.digits), exponent - 1 + f.least);
}

/* Equal, signs of zeros too, or both NaN. */
static inline bool same(double a, double b) { return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b)); }
/* NaN is near to NaN alone. */
static inline bool near(double a, double b, double tolerance) {
    if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
    return a == b || fabs(a - b) <= tolerance;
}

static inline uint16_t half_of(double x) {
    uint16_t low = 0, high = 0x7c00; /* positive ones are in order */
    x = rounded(x, f16);
    if (isnan(x)) return 0x7e00;
    while (low < high) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (value_of(middle, f16) < fabs(x))
            low = (uint16_t)(middle + 1);
        else
            high = middle;
    }
    return (uint16_t)(low | (signbit(x) ? 0x8000 : 0));
}

static inline void put(void *buffer, int64_t i, double x, format f) {
    if (f.digits == 23)
        ((float *)buffer)[i] = (float)x;
    else
        ((uint16_t *)buffer)[i] = f.digits == 7 ? (uint16_t)(bits_of((float)rounded(x, bf16)) >> 16) : half_of(x);
}
static inline double get(const void *buffer, int64_t i, format f) {
    return f.digits == 23 ? (double)((const float *)buffer)[i] : value_of(((const uint16_t *)buffer)[i], f);
}
static inline size_t size_of(format f) { return f.digits == 23 ? 4 : 2; }

#endif
