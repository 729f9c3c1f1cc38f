/* Small kernels as NVRTC compiled them (fixtures/, for three architectures) give the numbers of plain C in every order of
 * warps, blocks and lanes; and mutants of them are caught, each by the check that is meant.
 *
 *     test_kernels FOLDER           FOLDER: of the fixtures
 *     test_kernels FOLDER --speed   how fast the interpreter is
 */
#include "mutants.h"
#include "numbers.h"
#include "sim.h"

#include <stdlib.h>
#include <time.h>

#ifndef SIM_SAMPLE
#define SIM_SAMPLE 0 /* 1: mutants of one architecture, where sanitizers make them slow */
#endif
static int failures;
static const char *folder;
#define CHECK(what, ...)                                                                                                       \
    do {                                                                                                                       \
        if (!(what)) {                                                                                                         \
            printf("%s:%d: ", __FILE__, __LINE__);                                                                             \
            printf(__VA_ARGS__);                                                                                               \
            printf("\n");                                                                                                      \
            failures++;                                                                                                        \
        }                                                                                                                      \
    } while (0)

static char *text_of(const char *kernel, int architecture) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.sm_%d.ptx", folder, kernel, architecture);
    FILE *f = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    if (!f || !text || !fread(text, 1, (1 << 20) - 1, f)) {
        printf("%s: cannot be read\n", path);
        exit(1);
    }
    fclose(f);
    return text;
}

/* After the first `after`, the `from` after `nth` others becomes `to`; all of them if nth is -1. */
struct edit { const char *after, *from, *to; int nth; };
static int places(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
        n++;
    return n;
}
static char *edited(char *text, struct edit e) {
    if (!strstr(text, e.from) && strcmp(e.from, "31, -1;") == 0) /* NVVM 7 has the mask in a register */
        e.from = "mov.u32 \t%r41, -1;", e.to = "mov.u32 \t%r41, 65535;";
    if (e.nth < 0) {
        while (strstr(text, e.from))
            text = edited(text, (struct edit){e.after, e.from, e.to, 0});
        return text;
    }
    char *at = strstr(text, e.after);
    for (int i = 0; at && i <= e.nth; i++)
        at = strstr(at + (i > 0), e.from);
    if (!at) {
        printf("no place of `%s`\n", e.from);
        exit(1);
    }
    char *made = malloc(strlen(text) + strlen(e.to) + 1);
    if (!made)
        exit(1);
    sprintf(made, "%.*s%s%s", (int)(at - text), text, e.to, at + strlen(e.from));
    free(text);
    return made;
}

/* ---- a kernel with its inputs ---- */

enum { MOST = 5 };
struct task {
    const char *kernel;
    int n[3]; /* sizes, by kernel */
    float *buffer[MOST], *right, *right_too;
    size_t size[MOST], n_right, n_right_too; /* bytes; results compared, of buffer[0] and of buffer[1] */
    double tolerance, tolerance_too;
    struct sim_buffer declared[MOST];
    int n_buffers;
    char params[64];
    size_t params_size;
    uint32_t grid[3], block[3], dynamic;
};
static float value(uint32_t i) { return (float)((i * 2654435761u >> 8) % 2001) / 1000 - 1; }
static void *make(struct task *t, const char *name, size_t size, int direction) {
    int i = t->n_buffers++;
    t->size[i] = size;
    t->buffer[i] = aligned_alloc(256, (size + 255) / 256 * 256);
    if (!t->buffer[i])
        exit(1);
    for (size_t k = 0; k < size / 4; k++)
        t->buffer[i][k] = value((uint32_t)(k + 77 * (size_t)i));
    t->declared[i] = (struct sim_buffer){name, t->buffer[i], size, direction};
    return t->buffer[i];
}
static void param(struct task *t, const void *p, size_t size) {
    t->params_size = (t->params_size + size - 1) / size * size;
    memcpy(t->params + t->params_size, p, size);
    t->params_size += size;
}
static void pointer(struct task *t, int i) { param(t, &t->buffer[i], 8); }
static void expected(struct task *t, size_t n) {
    t->n_right = n;
    t->right = calloc(n, sizeof *t->right);
    if (!t->right)
        exit(1);
}

static void saxpy(struct task *t) {
    int n = t->n[0];
    float a = 0.75f, *y = make(t, "y", (size_t)n * 4, SIM_READ | SIM_WRITE), *x = make(t, "x", (size_t)n * 4, SIM_READ);
    pointer(t, 0), pointer(t, 1), param(t, &a, 4), param(t, &n, 4);
    t->grid[0] = (uint32_t)(n + 1023) / 1024, t->block[0] = 256;
    expected(t, (size_t)n);
    for (int i = 0; i < n; i++)
        t->right[i] = fmaf(a, x[i], y[i]);
}
static void rows(struct task *t) {
    int n_rows = t->n[0], columns = t->n[1];
    float eps = 1e-5f;
    make(t, "out", (size_t)(n_rows * columns) * 4, SIM_WRITE), make(t, "sums", (size_t)n_rows * 4, SIM_WRITE);
    float *x = make(t, "x", (size_t)(n_rows * columns) * 4, SIM_READ);
    pointer(t, 0), pointer(t, 1), pointer(t, 2), param(t, &columns, 4), param(t, &eps, 4);
    t->grid[0] = (uint32_t)n_rows, t->block[0] = 256;
    expected(t, (size_t)(n_rows * columns));
    for (int i = 0; i < n_rows; i++) {
        double s = 0;
        for (int j = 0; j < columns; j++)
            s += (double)x[i * columns + j] * (double)x[i * columns + j];
        for (int j = 0; j < columns; j++)
            t->right[i * columns + j] = (float)((double)x[i * columns + j] / sqrt(s / columns + (double)eps));
    }
    t->tolerance = 2e-6;
}
static void transpose(struct task *t) {
    int n_rows = t->n[0], columns = t->n[1];
    make(t, "out", (size_t)(n_rows * columns) * 4, SIM_WRITE);
    float *in = make(t, "in", (size_t)(n_rows * columns) * 4, SIM_READ);
    pointer(t, 0), pointer(t, 1), param(t, &n_rows, 4), param(t, &columns, 4);
    t->grid[0] = (uint32_t)(columns + 31) / 32, t->grid[1] = (uint32_t)(n_rows + 31) / 32;
    t->block[0] = 32, t->block[1] = 8;
    expected(t, (size_t)(n_rows * columns));
    for (int i = 0; i < n_rows; i++)
        for (int j = 0; j < columns; j++)
            t->right[j * n_rows + i] = in[i * columns + j];
}
static void matmul(struct task *t) {
    int m = t->n[0], n = t->n[1], k = t->n[2];
    make(t, "c", (size_t)(m * n) * 4, SIM_WRITE);
    uint16_t *a = make(t, "a", (size_t)(m * k) * 2, SIM_READ), *b = make(t, "b", (size_t)(k * n) * 2, SIM_READ);
    for (int i = 0; i < m * k; i++)
        a[i] = (uint16_t)bf16_nearest(value((uint32_t)i));
    for (int i = 0; i < k * n; i++)
        b[i] = (uint16_t)bf16_nearest(value((uint32_t)i + 1234));
    pointer(t, 0), pointer(t, 1), pointer(t, 2), param(t, &m, 4), param(t, &n, 4), param(t, &k, 4);
    t->grid[0] = (uint32_t)n / 32, t->grid[1] = (uint32_t)(m + 31) / 32, t->block[0] = 128;
    t->dynamic = 4 * 32 * 40 * 2;
    expected(t, (size_t)(m * n));
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double s = 0;
            for (int l = 0; l < k; l++)
                s += (double)bf16_value(a[i * k + l]) * (double)bf16_value(b[l * n + j]);
            t->right[i * n + j] = (float)s;
        }
    t->tolerance = 1e-5;
}

static void math(struct task *t) {
    int n = t->n[0];
    make(t, "out", (size_t)n * 19 * 4, SIM_WRITE);
    float *x = make(t, "x", (size_t)n * 4, SIM_READ);
    pointer(t, 0), pointer(t, 1), param(t, &n, 4);
    t->grid[0] = (uint32_t)(n + 127) / 128, t->block[0] = 128;
    expected(t, (size_t)n * 19);
    for (int i = 0; i < n; i++) {
        double v = (double)x[i], u = (double)(fabsf(x[i]) + 0.5f);
        double right[] = {exp(v), log(u), tanh(v), erf(v), sqrt(u), v / u, sin((double)(x[i] * 100)), cos(v), pow(u, (double)1.7f), log1p(u), expm1(v),
                          fmod((double)(x[i] * 10), (double)0.3f), rint((double)(x[i] * 10)), exp2(v), exp(v), 1 / sqrt(u), tanh(v),
                          (double)((int)(x[i] * 1000) % 37), (double)((unsigned)((float)u * 1000) / (unsigned)(n + 1))};
        for (int k = 0; k < 19; k++)
            t->right[i + k * n] = (float)right[k];
    }
    t->tolerance = 1e-6;
}
static void ticket(struct task *t) {
    int n = t->n[0], blocks = t->n[1];
    make(t, "out", 16, SIM_WRITE), make(t, "partial", (size_t)blocks * 4, SIM_READ | SIM_WRITE);
    memset(make(t, "ticket", 4, SIM_READ | SIM_WRITE), 0, 4);
    float *x = make(t, "x", (size_t)n * 4, SIM_READ);
    pointer(t, 0), pointer(t, 1), pointer(t, 2), pointer(t, 3), param(t, &n, 4);
    t->grid[0] = (uint32_t)blocks, t->block[0] = 128;
    expected(t, 4);
    double s = 0;
    for (int i = 0; i < n; i++)
        s += (double)x[i];
    t->right[0] = (float)s, t->right[1] = 43, t->right[2] = 16, t->right[3] = 127;
    t->tolerance = 1e-5;
}

static uint16_t *make_bf16(struct task *t, const char *name, int n) {
    uint16_t *x = make(t, name, (size_t)n * 2, SIM_READ);
    for (int i = 0; i < n; i++)
        x[i] = (uint16_t)bf16_nearest(2 * value((uint32_t)(i + 1000 * t->n_buffers)));
    return x;
}
static void attention(struct task *t) {
    enum { D = 32 };
    int s = t->n[0], heads = t->n[1];
    float scale = 1.44269504f / sqrtf(D);
    make(t, "o", (size_t)(heads * s * D) * 4, SIM_WRITE), make(t, "lse", (size_t)(heads * s) * 4, SIM_WRITE);
    uint16_t *q = make_bf16(t, "q", heads * s * D), *k = make_bf16(t, "k", heads * s * D), *v = make_bf16(t, "v", heads * s * D);
    for (int i = 0; i < 5; i++)
        pointer(t, i);
    param(t, &s, 4), param(t, &scale, 4);
    t->grid[0] = (uint32_t)(s + 63) / 64, t->grid[1] = (uint32_t)heads, t->block[0] = 128;
    expected(t, (size_t)(heads * s * D));
    t->n_right_too = (size_t)(heads * s);
    t->right_too = calloc(t->n_right_too, sizeof *t->right_too);
    double *p = calloc((size_t)s, sizeof *p);
    if (!p || !t->right_too)
        exit(1);
    for (int row = 0; row < heads * s; row++) {
        int first = row / s * s, n = row - first + 1;
        double sum = 0, o[D] = {0};
        for (int j = 0; j < n; j++) {
            double x = 0;
            for (int d = 0; d < D; d++)
                x += (double)bf16_value(q[row * D + d]) * (double)bf16_value(k[(first + j) * D + d]);
            sum += p[j] = exp2(x * (double)scale);
        }
        for (int j = 0; j < n; j++)
            for (int d = 0; d < D; d++)
                o[d] += p[j] / sum * (double)bf16_value(v[(first + j) * D + d]);
        for (int d = 0; d < D; d++)
            t->right[row * D + d] = (float)o[d];
        t->right_too[row] = (float)log(sum);
    }
    free(p);
    t->tolerance = 8e-3; /* the weights are rounded to bf16 */
    t->tolerance_too = 1e-5;
}

static struct task task_of(const char *kernel, int a, int b, int c) {
    struct task t = {.kernel = kernel, .n = {a, b, c}, .grid = {1, 1, 1}, .block = {1, 1, 1}};
    static const struct { const char *name; void (*make)(struct task *); } makers[] = {
        {"saxpy", saxpy}, {"rows", rows}, {"transpose", transpose}, {"matmul", matmul}, {"math", math}, {"ticket", ticket}, {"attention", attention}};
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++)
        if (strcmp(makers[i].name, kernel) == 0)
            makers[i].make(&t);
    return t;
}
static void task_free(struct task *t) {
    for (int i = 0; i < t->n_buffers; i++)
        free(t->buffer[i]);
    free(t->right), free(t->right_too);
}

static bool run(struct task *t, const char *text, struct sim_launch how, struct sim_reports *reports) {
    char error[256];
    struct sim_module *module = sim_module_load(text, strlen(text), error, sizeof error);
    if (!module) {
        printf("%s: %s\n", t->kernel, error);
        exit(1);
    }
    struct sim_memory *memory = sim_memory_new();
    for (int i = 0; i < t->n_buffers; i++) {
        sim_memory_add(memory, t->buffer[i], t->size[i]);
        sim_memory_define(memory, t->buffer[i], t->size[i], true);
    }
    how.function = sim_function_find(module, t->kernel);
    memcpy(how.grid, t->grid, sizeof how.grid), memcpy(how.block, t->block, sizeof how.block);
    how.dynamic_shared = t->dynamic, how.params = t->params, how.params_size = t->params_size;
    how.buffers = t->declared, how.n_buffers = t->n_buffers;
    bool ended = sim_launch_run(memory, &how, reports);
    sim_memory_free(memory), sim_module_free(module);
    return ended;
}

/* NaN fails it. */
static bool near(const float *x, const float *right, size_t n, double tolerance) {
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)x[i] - (double)right[i]) <= tolerance * (1 + fabs((double)right[i]))))
            return false;
    return true;
}
static bool is_right(const struct task *t) {
    return near(t->buffer[0], t->right, t->n_right, t->tolerance) && near(t->buffer[1], t->right_too, t->n_right_too, t->tolerance_too);
}

static const int architectures[] = {80, 90, 100};
static const struct sim_launch orders[] = {
    {.copies = SIM_AT_WAIT},
    {.warps = SIM_REVERSE, .blocks = SIM_REVERSE, .resident = 3},
    {.warps = SIM_RANDOM, .blocks = SIM_RANDOM, .resident = 4, .random_groups = true, .copies = SIM_BY_LOT, .seed = 5, .perturb = true},
};

static void right(const char *kernel, int a, int b, int c) {
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            struct task t = task_of(kernel, a, b, c);
            static struct sim_reports reports;
            char *text = text_of(kernel, architectures[i]);
            memset(&reports, 0, sizeof reports);
            bool ended = run(&t, text, orders[k], &reports);
            CHECK(ended && !reports.total, "%s (%d, %d, %d) sm_%d order %d: %llu reports", kernel, a, b, c, architectures[i], k,
                  (unsigned long long)reports.total);
            for (int n = 0; n < reports.n && n < 2; n++)
                sim_report_print(&reports.report[n], stdout);
            CHECK(is_right(&t), "%s (%d, %d, %d) sm_%d order %d: wrong numbers", kernel, a, b, c, architectures[i], k);
            free(text), task_free(&t);
        }
}

/* In how many orders of three a mutant has a report of the check. A barrier that is gone may let a copy be touched too. */
static int orders_that_find(struct task (*make)(void), int architecture, struct edit edit, enum sim_check check) {
    int times = 0;
    for (int k = 0; k < 3; k++) {
        struct task t = make();
        static struct sim_reports reports;
        memset(&reports, 0, sizeof reports);
        char *text = edited(text_of(t.kernel, architecture), edit);
        struct sim_launch how = orders[k];
        how.patience = 1000000;
        run(&t, text, how, &reports);
        bool found = false;
        for (int n = 0; n < reports.n; n++)
            found |= reports.report[n].check == check || (check == SIM_RACE && reports.report[n].check == SIM_ASYNC);
        times += found;
        free(text), task_free(&t);
    }
    return times;
}
/* Caught in some order, or in every one. */
static void caught(const char *what, struct task (*make)(void), struct edit edit, enum sim_check check, bool every_order) {
    for (int i = 0; i < 3; i++) {
        int times = orders_that_find(make, architectures[i], edit, check);
        CHECK(every_order ? times == 3 : times > 0, "%s, sm_%d: caught in %d orders of 3 as %s", what, architectures[i], times,
              sim_check_name(check));
    }
}
/* Every mutant of a line that runs is shown: those of barriers, waits, fences, accesses and masks by the check that is meant, those
 * without a guard by any, or by wrong numbers, but for some whose guard only saves time. */
static void all_caught(struct task (*make)(void)) {
    for (int i = SIM_SAMPLE ? 2 : 0; i < 3; i++) {
        static uint8_t ran[4096];
        static struct sim_reports reports;
        struct sim_mutant about;
        struct task t = make();
        char *text = text_of(t.kernel, architectures[i]), *mutant;
        memset(ran, 0, sizeof ran), memset(&reports, 0, sizeof reports);
        run(&t, text, (struct sim_launch){.ran = ran, .n_lines = sizeof ran}, &reports);
        const char *kernel = t.kernel;
        task_free(&t);
        int survivors = 0, guards = 0;
        for (int n = 0; (mutant = sim_mutant(text, n, &about)); n++) {
            bool found = !ran[about.line];
            guards += !found && !about.caught_by;
            for (int k = 0; k < 3 && !found; k++) {
                t = make();
                struct sim_launch how = orders[k];
                how.patience = 30000, how.limit = 300000;
                memset(&reports, 0, sizeof reports);
                bool ended = run(&t, mutant, how, &reports);
                found = !about.caught_by && (!ended || reports.n || !is_right(&t));
                for (int r = 0; r < reports.n; r++)
                    found |= about.caught_by >> reports.report[r].check & 1;
                task_free(&t);
            }
            survivors += !found && !about.caught_by;
            CHECK(found || !about.caught_by, "%s, sm_%d: a mutant survives: %s", kernel, architectures[i], about.what);
            if (!found && getenv("SURVIVORS"))
                printf("%s, sm_%d: %s\n", kernel, architectures[i], about.what);
            free(mutant);
        }
        CHECK(survivors * 2 <= guards, "%s, sm_%d: %d of %d mutants without a guard survive", kernel, architectures[i], survivors, guards);
        free(text);
    }
}
static struct task small_rows(void) { return task_of("rows", 3, 300, 0); }
static struct task small_transpose(void) { return task_of("transpose", 40, 70, 0); }
static struct task small_matmul(void) { return task_of("matmul", 40, 64, 224); }
static struct task small_ticket(void) { return task_of("ticket", 3000, 7, 0); }
static struct task small_attention(void) { return task_of("attention", 200, 1, 0); }
static struct task small_saxpy(void) { return task_of("saxpy", 1030, 0, 0); }

static struct task wrong(struct task t, int n, uint32_t grid) {
    memcpy(t.params + t.params_size - 4, &n, 4);
    t.grid[0] = grid;
    return t;
}
static struct task long_saxpy(void) { return wrong(small_saxpy(), 1031, 2); } /* one more than there are */
static struct task short_saxpy(void) { struct task t = small_saxpy(); t.declared[0].direction = SIM_READ; return t; }
static struct task few_rows(void) { struct task t = small_rows(); t.grid[0] = 2; return t; }
static struct task little_shared(void) { struct task t = small_matmul(); t.dynamic /= 2; return t; }

static void mutants(void) {
    struct edit none = {"", "", ""};
    caught("rows without bar.sync", small_rows, (struct edit){"", "bar.sync \t0;", ""}, SIM_RACE, true);
    caught("transpose without bar.sync", small_transpose, (struct edit){"", "bar.sync \t0;", ""}, SIM_RACE, true);
    caught("saxpy with n + 1", long_saxpy, none, SIM_BOUNDS, true);
    caught("saxpy that must not write", short_saxpy, none, SIM_BOUNDS, true);
    caught("rows on a short grid", few_rows, none, SIM_DEFINED, true);
    caught("matmul with half its shared memory", little_shared, none, SIM_BOUNDS, true);
    caught("saxpy with vectors 4 bytes on", small_saxpy, (struct edit){"ld.global.nc.v4.f32", "]", "+4]"}, SIM_ALIGNMENT, false);
    caught("rows with a shuffle of half a warp", small_rows, (struct edit){"", "31, -1;", "31, 65535;"}, SIM_MASK, true);
    caught("ticket without its first fence", small_ticket, (struct edit){"", "membar.gl;", ""}, SIM_GRID_RACE, false);
    caught("ticket without its second fence", small_ticket, (struct edit){"atom", "membar.gl;", ""}, SIM_GRID_RACE, false);
    caught("matmul whose last wait is gone", small_matmul, (struct edit){"", "cp.async.wait_group 0;", "", -1}, SIM_ASYNC, true);
    static struct task (*const all[])(void) = {small_saxpy, small_rows, small_transpose, small_ticket, small_matmul, small_attention};
    for (int i = 0; i < 6; i++)
        all_caught(all[i]);
}

/* ---- rubbish ---- */

static uint32_t random_below(uint32_t *state, uint32_t n) { return (*state = *state * 1664525 + 1013904223) / 65536 % n; }
static char *nth_line(char *text, uint32_t n) {
    char *at = text;
    while (n--)
        at = strchr(at, '\n') + 1;
    return at;
}
/* A line is taken away, or written once more elsewhere; a digit is another; the end is cut. */
static void damage(char *text, uint32_t *state) {
    uint32_t lines = (uint32_t)places(text, "\n"), size = (uint32_t)strlen(text);
    if (!lines)
        return;
    char *line = nth_line(text, random_below(state, lines)), *end = strchr(line, '\n');
    uint32_t length = (uint32_t)(end - line) + 1;
    switch (random_below(state, 8)) {
    case 0: case 1: memset(line, ' ', length - 1); break;
    case 2: text[random_below(state, size)] = 0; break;
    case 3: case 4: {
        char copy[4096];
        if (length > sizeof copy)
            break;
        memcpy(copy, line, length);
        char *to = nth_line(text, random_below(state, lines));
        memmove(to + length, to, strlen(to) + 1);
        memcpy(to, copy, length);
        break;
    }
    default:
        for (char *at = line; at < end; at++)
            if (*at >= '0' && *at <= '9' && random_below(state, 3) == 0) {
                *at = (char)('0' + random_below(state, 10));
                break;
            }
    }
}
/* Whatever the text, the host is safe: it is refused, or runs, with reports perhaps. */
static void survives(int count) {
    static struct task (*const all[])(void) = {small_saxpy, small_rows, small_transpose, small_ticket, small_matmul, small_attention};
    int refused = 0, ran = 0;
    for (int i = 0; i < count; i++) {
        uint32_t state = (uint32_t)i * 7919 + 1;
        char error[256];
        struct task t = all[i % 6]();
        char *text = text_of(t.kernel, architectures[i / 6 % 3]);
        for (uint32_t n = 1 + random_below(&state, 3); n; n--)
            damage(text, &state);
        struct sim_module *module = sim_module_load(text, strlen(text), error, sizeof error);
        refused += !module;
        if (module && sim_function_find(module, t.kernel)) {
            static struct sim_reports reports;
            memset(&reports, 0, sizeof reports);
            struct sim_launch how = orders[random_below(&state, 3)];
            how.patience = 20000, how.limit = 60000, how.seed = state;
            run(&t, text, how, &reports);
            ran++;
        }
        sim_module_free(module), free(text), task_free(&t);
    }
    CHECK(refused && ran, "%d of %d damaged texts are refused, %d run", refused, count, ran);
}

/* ---- speed ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void speed(const char *kernel, int a, int b, int c, double work, const char *unit) {
    for (int unchecked = 0; unchecked < 2; unchecked++) {
        struct task t = task_of(kernel, a, b, c);
        static struct sim_reports reports;
        memset(&reports, 0, sizeof reports);
        char *text = text_of(kernel, 80);
        double start = now();
        bool ended = run(&t, text, (struct sim_launch){.unchecked = unchecked}, &reports);
        double seconds = now() - start;
        printf("%s (%d, %d, %d)%s: %.1f %s, %.1f M warp instructions/s, %s\n", kernel, a, b, c, unchecked ? " without race checks" : "",
               work / seconds / 1e6, unit, (double)reports.counts.instructions / seconds / 1e6, ended && is_right(&t) ? "right" : "WRONG");
        free(text), task_free(&t);
    }
}

/* What a launch costs by itself. */
static void launches(const char *kernel, int a, int b, int c, int n) {
    struct task t = task_of(kernel, a, b, c);
    char error[256], *text = text_of(kernel, 80);
    static struct sim_reports reports;
    struct sim_module *module = sim_module_load(text, strlen(text), error, sizeof error);
    struct sim_memory *memory = sim_memory_new();
    for (int i = 0; i < t.n_buffers; i++)
        sim_memory_add(memory, t.buffer[i], t.size[i]), sim_memory_define(memory, t.buffer[i], t.size[i], true);
    struct sim_launch how = {.function = sim_function_find(module, kernel), .dynamic_shared = t.dynamic, .params = t.params,
                             .params_size = t.params_size, .buffers = t.declared, .n_buffers = t.n_buffers};
    memcpy(how.grid, t.grid, sizeof how.grid), memcpy(how.block, t.block, sizeof how.block);
    double start = now();
    for (int i = 0; i < n; i++)
        sim_launch_run(memory, &how, &reports);
    printf("%s (%d, %d, %d): %.0f us a launch\n", kernel, a, b, c, (now() - start) / n * 1e6);
    sim_memory_free(memory), sim_module_free(module), free(text), task_free(&t);
}

int main(int n, char **arguments) {
    if (n < 2)
        return 2;
    folder = arguments[1];
    if (n > 2) {
        speed("saxpy", 1 << 22, 0, 0, 1 << 22, "Melem/s");
        speed("rows", 1024, 4096, 0, 1024 * 4096, "Melem/s");
        speed("transpose", 1024, 1024, 0, 1024 * 1024, "Melem/s");
        speed("attention", 512, 4, 0, 4.0 * 32 * 512 * 512 / 2 * 4, "MFLOP/s");
        speed("matmul", 256, 256, 256, 2.0 * 256 * 256 * 256, "MFLOP/s");
        launches("saxpy", 1, 0, 0, 2000), launches("matmul", 32, 32, 32, 500), launches("attention", 64, 1, 0, 200);
        return 0;
    }
    static const int sizes[] = {1, 31, 33, 1030, 4096};
    for (int i = 0; i < 5; i++)
        right("saxpy", sizes[i], 0, 0);
    right("rows", 3, 1, 0), right("rows", 2, 257, 0), right("rows", 2, 5000, 0);
    right("transpose", 1, 1, 0), right("transpose", 40, 70, 0);
    right("matmul", 32, 32, 32), right("matmul", 40, 64, 160);
    right("attention", 1, 1, 0), right("attention", 100, 2, 0);
    right("math", 300, 0, 0);
    right("ticket", 1000, 1, 0), right("ticket", 3000, 7, 0);
    mutants();
    survives(300);
    if (!failures)
        printf("all right\n");
    return failures != 0;
}
