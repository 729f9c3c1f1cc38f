/* The CPU kernels against plain loops in double precision. Built once for each instruction set.
 *
 * Buffers are allocated to the byte, workspaces too, filled with NaN: reading what was not written, or beyond an end
 * (with a sanitizer), shows. Every kernel is run whole and again in random parts, which must give the same bits. */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_backward.h"
#include "kernels/cpu/library.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/prelude.h"
#include "kernels/cpu/random.h"
#include "kernels/cpu/rows.h"

#include <stdio.h>
#include <stdlib.h>

static int failures, checks;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        checks++;                                                                                                      \
        if (!(condition)) {                                                                                            \
            failures++;                                                                                                \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #condition), printf(__VA_ARGS__), printf("\n");                  \
        }                                                                                                              \
    } while (0)

static uint64_t state = 1;
static uint32_t roll(void) {
    return dtm_random_bits(7, 7, state++);
}
static int64_t below(int64_t n) {
    return (int64_t)(roll() % (uint64_t)n);
}
static float number(void) {
    return dtm_random_unit(roll()) * 2 - 1;
}

static float *fresh(int64_t count) {
    float *x = malloc((size_t)(count > 0 ? count : 1) * sizeof(float));
    for (int64_t i = 0; i < count; i++) x[i] = NAN;
    return x;
}
static float *numbers(int64_t count) {
    float *x = fresh(count);
    for (int64_t i = 0; i < count; i++) x[i] = number();
    return x;
}

/* The largest difference, by the largest magnitude and `floor`; NaN anywhere gives NaN, which no tolerance passes. */
static double distance_over(const float *got, const double *want, int64_t count, double floor) {
    double most = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        const double d = fabs(got[i] - want[i]);
        if (got[i] == want[i]) continue; /* infinities too */
        if (!(d <= most)) most = d;
        if (fabs(want[i]) > size) size = fabs(want[i]);
    }
    return most == 0 ? 0 : most / (size + floor);
}
static double distance(const float *got, const double *want, int64_t count) {
    return distance_over(got, want, count, 1e-3);
}

/* ---- running a kernel ---- */

static dtm_kernel_args with_scratch(dtm_kernel_args args, int64_t bytes) {
    args.scratch = NULL;
    if (bytes > 0) {
        args.scratch = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
        memset(args.scratch, 0xFF, (size_t)(bytes + 63) / 64 * 64);
    }
    return args;
}

static void run_whole(const dtm_kernel_entry *kernel, dtm_kernel_args args) {
    args = with_scratch(args, kernel->scratch_bytes(args.sizes));
    kernel->run(&args, 0, kernel->extent(args.sizes));
    free(args.scratch);
}

/* In parts of random sizes, the last first. */
static void run_parts(const dtm_kernel_entry *kernel, dtm_kernel_args args) {
    int64_t end = kernel->extent(args.sizes);
    while (end > 0) {
        const int64_t begin = end - 1 - below(end);
        dtm_kernel_args part = with_scratch(args, kernel->scratch_bytes(args.sizes));
        kernel->run(&part, begin, end);
        free(part.scratch);
        end = begin;
    }
}

/* Runs whole into `out` and in parts into a second buffer, and compares the bits. */
static void run_twice(const dtm_kernel_entry *kernel, dtm_kernel_args args, void **buffers, const int *outs, int count,
                      const int64_t *elements) {
    void *copies[16], *first[16];
    for (int i = 0; i < count; i++) {
        const size_t bytes = (size_t)elements[i] * sizeof(float);
        copies[i] = malloc(bytes + 1);
        memcpy(copies[i], buffers[outs[i]], bytes);
    }
    run_whole(kernel, args);
    for (int i = 0; i < count; i++) first[i] = buffers[outs[i]], buffers[outs[i]] = copies[i];
    run_parts(kernel, args);
    for (int i = 0; i < count; i++) {
        CHECK(!memcmp(first[i], copies[i], (size_t)elements[i] * sizeof(float)), "%s: output %d depends on the parts",
              kernel->name, i);
        buffers[outs[i]] = first[i];
        free(copies[i]);
    }
}

#define ENTRY(name)                                                                                                    \
    { #name, name, name##_extent, name##_scratch_bytes }
static const dtm_kernel_entry attention_forward = ENTRY(dtm_attention_forward),
                              attention_backward = ENTRY(dtm_attention_backward), matmul = ENTRY(dtm_matmul),
                              pack = ENTRY(dtm_pack), gather = ENTRY(dtm_rows_gather),
                              scatter = ENTRY(dtm_rows_scatter), rope = ENTRY(dtm_rope),
                              rope_table = ENTRY(dtm_rope_table);

/* ---- prelude ---- */

static double ulps(float got, double want) {
    if (isnan(want)) return isnan(got) ? 0 : INFINITY;
    if (isinf(got) || isinf((float)want)) return got == (float)want ? 0 : INFINITY;
    int exponent;
    frexp(want, &exponent);
    return fabs(got - want) / fmax(ldexp(1, exponent - 24), 0x1p-149);
}

static double sigmoid_of(double x) {
    return 1 / (1 + exp(-x));
}
static double silu_of(double x) {
    return x * sigmoid_of(x);
}
static double gelu_of(double x) {
    return 0.5 * x * erfc(-x * sqrt(0.5));
}
static double gelu_tanh_of(double x) {
    return x * sigmoid_of(2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
}
static double softplus_of(double x) {
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}
static double rsqrt_of(double x) {
    return 1 / sqrt(x);
}

typedef struct math_case {
    const char *name;
    double (*want)(double);
    float low, high, limit; /* in units in the last place, between low and high */
} math_case;

#define MATH_LOOP(name)                                                                                                \
    static void loop_##name(const float *x, float *y, int n) {                                                         \
        for (int i = 0; i < n; i++) y[i] = dtm_##name(x[i]);                                                           \
    }
MATH_LOOP(exp)
MATH_LOOP(log)
MATH_LOOP(tanh)
MATH_LOOP(erf)
MATH_LOOP(sigmoid)
MATH_LOOP(silu)
MATH_LOOP(gelu)
MATH_LOOP(gelu_tanh)
MATH_LOOP(softplus)
MATH_LOOP(rsqrt)
MATH_LOOP(tanh_slope)
MATH_LOOP(silu_slope)
MATH_LOOP(gelu_slope)
MATH_LOOP(gelu_tanh_slope)
MATH_LOOP(erf_slope)

/* Steps through the floats of either sign by `stride` in a vectorized loop. */
static void test_function(math_case c, void (*loop)(const float *, float *, int), uint32_t stride) {
    enum { N = 1021 };
    float x[N], y[N], at = 0;
    double worst = 0;
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32;) {
        int n = 0;
        for (; n < N && bits < UINT64_C(1) << 32; bits += stride) {
            const float v = dtm_from_bits((int32_t)(uint32_t)bits);
            if ((v >= c.low && v <= c.high) || v != v) x[n++] = v;
        }
        loop(x, y, n);
        for (int i = 0; i < n; i++) {
            const double u = ulps(y[i], c.want(x[i]));
            if (!(u <= worst)) worst = u, at = x[i];
        }
    }
    CHECK(worst <= c.limit, "%s is %.2f ulp off at %g", c.name, worst, at);
}

static void test_slope(const char *name, void (*loop)(const float *, float *, int), double (*of)(double),
                       double limit) {
    double worst = 0;
    for (int i = -3000; i <= 3000; i++) {
        float x = (float)i * 0.005f, y;
        loop(&x, &y, 1);
        const double h = 1e-5, want = (of(x + h) - of(x - h)) / (2 * h), d = fabs(y - want);
        if (!(d <= worst)) worst = d;
    }
    CHECK(worst <= limit, "%s: %g", name, worst);
    const float edges[] = {INFINITY, -INFINITY, NAN};
    float y[3];
    loop(edges, y, 3);
    CHECK(y[2] != y[2], "%s of NaN is %g", name, y[2]);
    CHECK(y[1] == 0, "%s of -inf is %g", name, y[1]);
}

static void test_prelude(void) {
    const uint32_t stride = 9973;
    const float all = INFINITY;
    test_function((math_case){"exp", exp, -all, all, 1.1f}, loop_exp, stride);
    test_function((math_case){"log", log, -all, all, 1.0f}, loop_log, stride);
    test_function((math_case){"tanh", tanh, -all, all, 1.5f}, loop_tanh, stride);
    test_function((math_case){"erf", erf, -all, all, 1.2f}, loop_erf, stride);
    test_function((math_case){"sigmoid", sigmoid_of, -all, all, 2.5f}, loop_sigmoid, stride);
    test_function((math_case){"silu", silu_of, -87, all, 3.1f}, loop_silu, stride);
    test_function((math_case){"gelu", gelu_of, -1, all, 2.8f}, loop_gelu, stride);
    test_function((math_case){"gelu_tanh", gelu_tanh_of, -1, 1e30f, 3.1f}, loop_gelu_tanh, stride);
    test_function((math_case){"softplus", softplus_of, -all, all, 2.0f}, loop_softplus, stride);
    test_function((math_case){"rsqrt", rsqrt_of, 0, all, 1.6f}, loop_rsqrt, stride);
    test_slope("silu'", loop_silu_slope, silu_of, 3e-6);
    test_slope("gelu'", loop_gelu_slope, gelu_of, 3e-6);
    test_slope("gelu_tanh'", loop_gelu_tanh_slope, gelu_tanh_of, 3e-6);
    test_slope("erf'", loop_erf_slope, erf, 3e-6);
    const float edges[] = {-INFINITY, INFINITY};
    float y[2];
    loop_silu(edges, y, 2);
    CHECK(y[0] == 0 && y[1] == INFINITY, "silu at infinity: %g %g", y[0], y[1]);
    loop_gelu(edges, y, 2);
    CHECK(y[0] == 0 && y[1] == INFINITY, "gelu at infinity: %g %g", y[0], y[1]);
    loop_gelu_tanh(edges, y, 2);
    CHECK(y[0] == 0 && y[1] == INFINITY, "gelu_tanh at infinity: %g %g", y[0], y[1]);
    const float half = 0.5f;
    loop_tanh_slope(&half, y, 1);
    CHECK(y[0] == 0.75f, "tanh' by its result: %g", y[0]);
}

/* ---- random ---- */

/* Random123's known answers. */
static void test_philox(void) {
    static const struct {
        uint64_t seed, stream, block;
        uint32_t want[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++) {
        const dtm_philox got = dtm_philox_block(known[i].seed, known[i].stream, known[i].block);
        CHECK(!memcmp(got.word, known[i].want, sizeof got.word), "known answer %u: %08x ...", i, got.word[0]);
    }
    for (uint64_t from = 0; from < 9; from++)
        for (int64_t n = 0; n < 40; n += 3) {
            float *x = fresh(n);
            dtm_random_fill(5, 6, from + (UINT64_C(1) << 34), n, x);
            for (int64_t i = 0; i < n; i++)
                CHECK(x[i] == dtm_random_uniform(5, 6, from + (UINT64_C(1) << 34) + (uint64_t)i), "fill at %d", (int)i);
            free(x);
        }
}

/* ---- matmul ---- */

typedef struct matmul_case {
    dtm_matmul_sizes z;
    double numbers[2];
    int64_t a_count, b_count, c_count;
} matmul_case;

static matmul_case matmul_of(int64_t batch, int64_t m, int64_t n, int64_t k, int form) {
    const int ta = form & 1, tb = form >> 1 & 1, pad = form >> 2 & 1 ? 3 : 0, wide = form >> 3 & 1; /* no unit stride */
    matmul_case c = {.z = {.batch = batch, .m = m, .n = n, .k = k}};
    dtm_matmul_sizes *z = &c.z;
    z->a_row = ta ? 1 : (k + pad) * (1 + wide), z->a_col = ta ? m + pad : 1 + wide;
    z->b_row = tb ? 1 : (n + pad) * (1 + wide), z->b_col = tb ? k + pad : 1 + wide;
    z->c_row = n + pad;
    z->a_batch = m * (k + pad) * (1 + wide) + (ta ? k * pad + pad : 0),
    z->b_batch = k * (n + pad) * (1 + wide) + (tb ? n * pad + pad : 0);
    z->c_batch = m * (n + pad);
    c.a_count = batch * z->a_batch, c.b_count = batch * z->b_batch, c.c_count = batch * z->c_batch;
    return c;
}

static void matmul_want(const matmul_case *c, const float *a, const float *b, double *out) {
    const dtm_matmul_sizes *z = &c->z;
    const double alpha = z->scaled ? c->numbers[0] : 1, beta = z->scaled ? c->numbers[1] : z->accumulate ? 1 : 0;
    for (int64_t q = 0; q < z->batch; q++)
        for (int64_t i = 0; i < z->m; i++)
            for (int64_t j = 0; j < z->n; j++) {
                double sum = 0;
                for (int64_t p = 0; p < z->k; p++)
                    sum += (double)a[q * z->a_batch + i * z->a_row + p * z->a_col] *
                           b[q * z->b_batch + p * z->b_row + j * z->b_col];
                double *at = &out[q * z->c_batch + i * z->c_row + j];
                *at = alpha * sum + (beta == 0 ? 0 : beta * *at);
            }
}

static void test_matmul_case(matmul_case c) {
    float *a = numbers(c.a_count), *b = numbers(c.b_count), *out = numbers(c.c_count);
    if (!c.z.accumulate && c.z.k > 0)
        for (int64_t i = 0; i < c.c_count; i++) /* must not be read */
            if (i % c.z.c_row < c.z.n && !c.z.scaled) out[i] = NAN;
    double *want = malloc((size_t)(c.c_count + 1) * sizeof(double));
    for (int64_t i = 0; i < c.c_count; i++) want[i] = out[i];
    matmul_want(&c, a, b, want);
    void *buffers[] = {a, b, out};
    const int outs[] = {DTM_MATMUL_C};
    const dtm_kernel_args args = {.buffers = buffers, .sizes = (const int64_t *)&c.z, .numbers = c.numbers};
    run_twice(&matmul, args, buffers, outs, 1, &c.c_count);
    const double err = distance(out, want, c.c_count);
    CHECK(err <= 1e-5, "%s: %d x %d x %d: %g", dtm_matmul_name(), (int)c.z.m, (int)c.z.n, (int)c.z.k, err);
    free(a), free(b), free(out), free(want);
}

static void test_matmul(const char *backend) {
    static const int64_t sizes[] = {0, 1, 3, 5, 17, 65};
    CHECK(!dtm_matmul_init(backend, dtm_kernel_level()), "%s", backend);
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++)
            for (int k = 0; k < 6; k++)
                for (int form = 0; form < 4; form++) {
                    matmul_case c = matmul_of(1 + below(3), sizes[i], sizes[j], sizes[k], form + 4 * (int)below(4));
                    c.z.accumulate = below(2);
                    if (!below(3)) c.z.scaled = 1, c.numbers[0] = 0.7, c.numbers[1] = below(2) ? 0.3 : below(2);
                    test_matmul_case(c);
                }
    test_matmul_case(matmul_of(1, 301, 97, 801, 0)); /* several blocks of each kind */
    test_matmul_case(matmul_of(1, 40, 1601, 400, 2));
    test_matmul_case(matmul_of(2, 513, 70, 390, 1));
    test_matmul_case(matmul_of(1, 131, 1101, 517, 0)); /* wide: a is packed though its rows run on */
    test_matmul_case(matmul_of(1, 120, 80, 1030, 4));
    CHECK(dtm_matmul_init("nothing", dtm_kernel_level()), "an unknown back end is refused");
    dtm_matmul_init(NULL, dtm_kernel_level());
}

/* ---- attention ---- */

typedef struct attention_case {
    dtm_attention_sizes z;
    int64_t counts[9];
    float *t[9];
    double *want[9];
    double scale[1];
} attention_case;

/* A layout of [b, s, h, width] in one of two orders, with a gap after each row. */
static dtm_attention_strides lay(int64_t b, int64_t s, int64_t h, int64_t width, int order, int64_t gap,
                                 int64_t *count) {
    const int64_t row = width + gap;
    *count = b * s * h * row;
    if (order) return (dtm_attention_strides){s * h * row, row, s * row};
    return (dtm_attention_strides){s * h * row, h * row, row};
}

static void attention_lay(attention_case *c) {
    dtm_attention_sizes *z = &c->z;
    const int64_t b = z->batch, s = z->queries, t = z->keys, h = z->heads, g = z->kv_heads, k = z->width,
                  v = z->v_width;
    int64_t *n = c->counts;
    z->q = lay(b, s, h, k, (int)below(2), below(3), &n[DTM_ATTENTION_Q]);
    z->k = lay(b, t, g, k, (int)below(2), below(3), &n[DTM_ATTENTION_K]);
    z->v = lay(b, t, g, v, (int)below(2), below(3), &n[DTM_ATTENTION_V]);
    z->o = lay(b, s, h, v, (int)below(2), below(3), &n[DTM_ATTENTION_O]);
    z->lse = lay(b, s, h, 1, (int)below(2), 0, &n[DTM_ATTENTION_LSE]);
    z->d_o = lay(b, s, h, v, (int)below(2), below(3), &n[DTM_ATTENTION_DO]);
    z->dq = lay(b, s, h, k, (int)below(2), below(3), &n[DTM_ATTENTION_DQ]);
    z->dk = lay(b, t, g, k, (int)below(2), below(3), &n[DTM_ATTENTION_DK]);
    z->dv = lay(b, t, g, v, (int)below(2), below(3), &n[DTM_ATTENTION_DV]);
    for (int i = 0; i < 9; i++) {
        const int input = i <= DTM_ATTENTION_V || i == DTM_ATTENTION_DO;
        c->t[i] = input ? numbers(n[i]) : fresh(n[i]);
        c->want[i] = malloc((size_t)(n[i] + 1) * sizeof(double));
        for (int64_t j = 0; j < n[i]; j++) c->want[i][j] = 0;
    }
    c->scale[0] = 1.7 / sqrt((double)(k ? k : 1));
}

static void attention_free(attention_case *c) {
    for (int i = 0; i < 9; i++) free(c->t[i]), free(c->want[i]);
}

static int64_t at(dtm_attention_strides stride, int64_t b, int64_t s, int64_t h, int64_t x) {
    return b * stride.b + s * stride.s + h * stride.h + x;
}
#define AT(array, stride, b, s, h, x) (array)[at(stride, b, s, h, x)]

static int sees(const dtm_attention_sizes *z, int64_t i, int64_t j) {
    const int64_t position = z->q_offset + i + z->keys_total - z->queries_total, key = z->k_offset + j;
    if (z->causal && key > position) return 0;
    return z->window <= 0 || (key <= position && key > position - z->window);
}

/* One query row, forward and backward, by the definition. */
static void attention_row(attention_case *c, int64_t b, int64_t h, int64_t i, double *p, double *dp) {
    const dtm_attention_sizes *z = &c->z;
    const int64_t g = (h + z->head_offset) / z->ratio - z->kv_offset;
    double top = -INFINITY, sum = 0, mean = 0;
    for (int64_t j = 0; j < z->keys; j++) {
        p[j] = 0;
        for (int64_t x = 0; x < z->width; x++)
            p[j] += (double)AT(c->t[DTM_ATTENTION_Q], z->q, b, i, h, x) * AT(c->t[DTM_ATTENTION_K], z->k, b, j, g, x);
        p[j] = sees(z, i, j) ? p[j] * c->scale[0] : -INFINITY;
        if (p[j] > top) top = p[j];
    }
    for (int64_t j = 0; j < z->keys; j++) sum += p[j] = p[j] == -INFINITY ? 0 : exp(p[j] - top);
    AT(c->want[DTM_ATTENTION_LSE], z->lse, b, i, h, 0) = sum == 0 ? -INFINITY : top + log(sum);
    for (int64_t j = 0; j < z->keys; j++) {
        p[j] = sum == 0 ? 0 : p[j] / sum, dp[j] = 0;
        for (int64_t x = 0; x < z->v_width; x++) {
            const double v = AT(c->t[DTM_ATTENTION_V], z->v, b, j, g, x),
                         d = AT(c->t[DTM_ATTENTION_DO], z->d_o, b, i, h, x);
            AT(c->want[DTM_ATTENTION_O], z->o, b, i, h, x) += p[j] * v;
            AT(c->want[DTM_ATTENTION_DV], z->dv, b, j, g, x) += p[j] * d;
            dp[j] += d * v;
        }
        mean += p[j] * dp[j];
    }
    for (int64_t j = 0; j < z->keys; j++)
        for (int64_t x = 0; x < z->width; x++) {
            const double ds = p[j] * (dp[j] - mean) * c->scale[0];
            AT(c->want[DTM_ATTENTION_DQ], z->dq, b, i, h, x) += ds * AT(c->t[DTM_ATTENTION_K], z->k, b, j, g, x);
            AT(c->want[DTM_ATTENTION_DK], z->dk, b, j, g, x) += ds * AT(c->t[DTM_ATTENTION_Q], z->q, b, i, h, x);
        }
}

/* Where a kernel wrote nothing (gaps between rows) it must have left NaN: those count as equal. */
static double attention_distance(const attention_case *c, int which, dtm_attention_strides stride, int64_t s, int64_t h,
                                 int64_t width) {
    const int64_t total = c->z.batch * s * h * width;
    float *got = fresh(total);
    double *want = malloc((size_t)(total + 1) * sizeof(double));
    int64_t n = 0, numbers_left = 0;
    for (int64_t b = 0; b < c->z.batch; b++)
        for (int64_t i = 0; i < s; i++)
            for (int64_t j = 0; j < h; j++)
                for (int64_t x = 0; x < width; x++)
                    got[n] = AT(c->t[which], stride, b, i, j, x), want[n++] = AT(c->want[which], stride, b, i, j, x);
    for (int64_t i = 0; i < c->counts[which]; i++) numbers_left += c->t[which][i] == c->t[which][i];
    CHECK(numbers_left <= total, "tensor %d: %d written of %d", which, (int)numbers_left, (int)total);
    const double d = distance_over(got, want, total, 0.5); /* a single key's gradient is 0 by cancellation */
    free(got), free(want);
    return d;
}

static void test_attention_case(dtm_attention_sizes sizes) {
    attention_case c = {.z = sizes};
    attention_lay(&c);
    double *p = malloc((size_t)(2 * sizes.keys + 1) * sizeof(double));
    for (int64_t b = 0; b < sizes.batch; b++)
        for (int64_t h = 0; h < sizes.heads; h++)
            for (int64_t i = 0; i < sizes.queries; i++) attention_row(&c, b, h, i, p, p + sizes.keys);
    free(p);
    const dtm_kernel_args args = {
        .buffers = (void *const *)(void *)c.t, .sizes = (const int64_t *)&c.z, .numbers = c.scale};
    const int outs[] = {DTM_ATTENTION_O, DTM_ATTENTION_LSE},
              back_outs[] = {DTM_ATTENTION_DQ, DTM_ATTENTION_DK, DTM_ATTENTION_DV};
    run_twice(&attention_forward, args, (void **)c.t, outs, 2,
              (int64_t[]){c.counts[DTM_ATTENTION_O], c.counts[DTM_ATTENTION_LSE]});
    run_twice(&attention_backward, args, (void **)c.t, back_outs, 3, c.counts + DTM_ATTENTION_DQ);
    const dtm_attention_sizes *z = &c.z;
    const struct {
        int which;
        dtm_attention_strides stride;
        int64_t s, h, width;
    } outputs[] = {
        {DTM_ATTENTION_O, z->o, z->queries, z->heads, z->v_width},
        {DTM_ATTENTION_LSE, z->lse, z->queries, z->heads, 1},
        {DTM_ATTENTION_DQ, z->dq, z->queries, z->heads, z->width},
        {DTM_ATTENTION_DK, z->dk, z->keys, z->kv_heads, z->width},
        {DTM_ATTENTION_DV, z->dv, z->keys, z->kv_heads, z->v_width},
    };
    for (int i = 0; i < 5; i++) {
        const double d =
            attention_distance(&c, outputs[i].which, outputs[i].stride, outputs[i].s, outputs[i].h, outputs[i].width);
        CHECK(d <= 1e-5,
              "tensor %d: %g (s %d t %d h %d g %d k %d v %d causal %d window %d offsets q %d k %d h %d g %d)",
              outputs[i].which, d, (int)z->queries, (int)z->keys, (int)z->heads, (int)z->kv_heads, (int)z->width,
              (int)z->v_width, (int)z->causal, (int)z->window, (int)z->q_offset, (int)z->k_offset, (int)z->head_offset,
              (int)z->kv_offset);
    }
    attention_free(&c);
}

static void test_attention(int rounds) {
    static const int64_t lengths[] = {0, 1, 3, 5, 17, 65, 130, 49, 64, 300}, widths[] = {1, 3, 5, 16, 17, 64, 65, 32};
    for (int round = 0; round < rounds; round++) {
        dtm_attention_sizes z = {.batch = below(3),
                                 .queries = lengths[below(10)],
                                 .keys = lengths[below(10)],
                                 .width = widths[below(8)],
                                 .v_width = widths[below(8)],
                                 .causal = below(2)};
        if (below(2)) z.keys = z.queries;
        if (!below(3)) z.window = 1 + below(70);
        if (z.queries * z.keys > 20000) z.batch = 1, z.width = DTM_MIN(z.width, 17), z.v_width = DTM_MIN(z.v_width, 17);
        z.ratio = 1 + below(3);
        const int64_t kv_heads = 1 + below(3), heads = kv_heads * z.ratio; /* the whole; a part of the heads is held */
        z.head_offset = below(2) ? 0 : below(heads);
        z.heads = below(2) ? heads - z.head_offset : 1 + below(heads - z.head_offset);
        z.kv_offset = below(2) ? 0 : z.head_offset / z.ratio;
        z.kv_heads = kv_heads - z.kv_offset;
        z.q_offset = below(2) ? 0 : below(40);
        z.queries_total = z.queries + z.q_offset + (below(2) ? 0 : below(40));
        z.k_offset = below(3) ? 0 : below(40);
        z.keys_total = z.keys + z.k_offset + (below(2) ? 0 : below(40));
        test_attention_case(z);
    }
}

/* Two parts of the keys merge into the whole by their lse; large scores do not overflow. */
static void test_attention_extremes(void) {
    enum { S = 20, K = 8 };
    attention_case c = {.z = {.batch = 1,
                              .heads = 1,
                              .kv_heads = 1,
                              .queries = S,
                              .keys = S,
                              .width = K,
                              .v_width = K,
                              .causal = 1,
                              .ratio = 1,
                              .queries_total = S,
                              .keys_total = S}};
    attention_lay(&c);
    c.scale[0] = 3000;
    double p[2 * S];
    for (int64_t i = 0; i < S; i++) attention_row(&c, 0, 0, i, p, p + S);
    const dtm_kernel_args args = {
        .buffers = (void *const *)(void *)c.t, .sizes = (const int64_t *)&c.z, .numbers = c.scale};
    run_whole(&attention_forward, args);
    const double d = attention_distance(&c, DTM_ATTENTION_O, c.z.o, S, 1, K);
    CHECK(d <= 1e-2, "large scores: %g", d);
    c.t[DTM_ATTENTION_V][0] = NAN; /* the first key: seen by all */
    run_whole(&attention_forward, args);
    for (int64_t i = 0; i < S; i++) p[i] = AT(c.t[DTM_ATTENTION_O], c.z.o, 0, i, 0, 0);
    CHECK(p[0] != p[0], "NaN in a value is not lost");
    attention_free(&c);
}

/* ---- rows ---- */

static void test_rows_case(int64_t batch, int64_t tokens, int64_t rows, int64_t width, int64_t first, int64_t gap) {
    const int64_t vocabulary = first + rows + 2;
    dtm_rows_sizes z = {.batch = batch,
                        .tokens = tokens,
                        .rows = rows,
                        .width = width,
                        .first = first,
                        .vocabulary = vocabulary,
                        .table_row = width + gap,
                        .ids_batch = tokens + gap,
                        .out_row = width + gap,
                        .accumulate = below(2)};
    z.table_batch = rows * z.table_row, z.out_batch = tokens * z.out_row;
    int64_t table_count = batch * z.table_batch, out_count = batch * z.out_batch;
    float *table = numbers(table_count), *out = numbers(out_count);
    int32_t *ids = calloc((size_t)(batch * z.ids_batch) + 1, sizeof *ids);
    for (int64_t i = 0; i < batch * z.ids_batch; i++) ids[i] = (int32_t)below(vocabulary);
    double *want = malloc((size_t)(out_count + table_count + 1) * sizeof *want), *sum = want + out_count;
    for (int64_t i = 0; i < out_count; i++) want[i] = out[i];
    for (int64_t b = 0; b < batch; b++)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t x = 0; x < width; x++) {
                const int64_t row = ids[b * z.ids_batch + t] - first;
                want[b * z.out_batch + t * z.out_row + x] =
                    row >= 0 && row < rows ? table[b * z.table_batch + row * z.table_row + x] : 0;
            }
    void *buffers[] = {table, ids, out};
    int64_t error = DTM_KERNEL_OK;
    const dtm_kernel_args args = {.buffers = buffers, .sizes = (const int64_t *)&z, .error = &error};
    run_twice(&gather, args, buffers, (int[]){DTM_ROWS_OUT}, 1, &out_count);
    CHECK(distance(out, want, out_count) == 0, "gather");
    CHECK(error == DTM_KERNEL_OK, "no id is bad");
    for (int64_t i = 0; i < table_count; i++) sum[i] = !z.accumulate && i % z.table_row < width ? 0 : table[i];
    for (int64_t b = 0; b < batch; b++)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t x = 0; x < width; x++) {
                const int64_t row = ids[b * z.ids_batch + t] - first;
                if (row >= 0 && row < rows)
                    sum[b * z.table_batch + row * z.table_row + x] += out[b * z.out_batch + t * z.out_row + x];
            }
    run_twice(&scatter, args, buffers, (int[]){DTM_ROWS_TABLE}, 1, &table_count);
    CHECK(distance(table, sum, table_count) <= 1e-6, "scatter");
    if (batch * tokens > 2) {
        ids[(batch - 1) * z.ids_batch + tokens - 1] = -1;
        ids[tokens > 1 ? 1 : z.ids_batch] = (int32_t)vocabulary;
        run_parts(&gather, args);
        CHECK(error == 1, "the first bad id is 1, not %d", (int)error);
        run_whole(&scatter, args); /* passes them over */
    }
    free(table), free(out), free(ids), free(want);
}

static void test_rows(void) {
    static const int64_t sizes[] = {0, 1, 3, 5, 17, 65};
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++)
            for (int k = 0; k < 6; k++)
                test_rows_case(below(4), sizes[i], sizes[j], sizes[k], below(2) * 7, below(2) * 3);
}

static void rope_want(const dtm_rope_sizes *z, int64_t offset, double base, const float *x, double *out) {
    for (int64_t b = 0; b < z->batch; b++)
        for (int64_t p = 0; p < z->positions; p++)
            for (int64_t h = 0; h < z->heads; h++) {
                const float *in = x + b * z->x_batch + p * z->x_position + h * z->x_head;
                double *to = out + b * z->out_batch + p * z->out_position + h * z->out_head;
                for (int64_t i = 0; i < z->width; i++) to[i] = in[i];
                for (int64_t i = 0; i < z->part / 2; i++) {
                    const double angle =
                        (double)(p + offset) * pow(base, -2.0 * (double)i / (double)z->part) * (z->inverse ? -1 : 1);
                    const int64_t a = z->interleaved ? 2 * i : i, c = z->interleaved ? 2 * i + 1 : i + z->part / 2;
                    to[a] = in[a] * cos(angle) - in[c] * sin(angle);
                    to[c] = in[c] * cos(angle) + in[a] * sin(angle);
                }
            }
}

static void test_rope_case(int64_t positions, int64_t heads, int64_t width, int64_t part, int64_t offset) {
    const int64_t row = width + below(3);
    dtm_rope_sizes z = {.batch = 2,
                        .positions = positions,
                        .heads = heads,
                        .width = width,
                        .part = part,
                        .interleaved = below(2),
                        .inverse = below(2),
                        .x_batch = positions * heads * row,
                        .x_position = heads * row,
                        .x_head = row,
                        .out_batch = positions * heads * row,
                        .out_position = row,
                        .out_head = positions * row};
    const dtm_rope_table_sizes table_sizes = {positions, part, offset};
    int64_t count = 2 * positions * heads * row, table_count = positions * part;
    float *x = numbers(count), *out = numbers(count), *table = fresh(table_count);
    double *want = malloc((size_t)(count + 1) * sizeof *want);
    const double base[] = {10000};
    void *table_buffers[] = {table}, *buffers[] = {x, table, out};
    run_twice(&rope_table,
              (dtm_kernel_args){.buffers = table_buffers, .sizes = (const int64_t *)&table_sizes, .numbers = base},
              table_buffers, (int[]){0}, 1, &table_count);
    for (int64_t i = 0; i < count; i++) want[i] = out[i];
    rope_want(&z, offset, base[0], x, want);
    const dtm_kernel_args args = {.buffers = buffers, .sizes = (const int64_t *)&z};
    run_twice(&rope, args, buffers, (int[]){DTM_ROPE_OUT}, 1, &count);
    const double err = distance(out, want, count);
    CHECK(err <= 1e-6, "rope: width %d part %d interleaved %d: %g", (int)width, (int)part, (int)z.interleaved, err);
    z.out_position = z.x_position, z.out_head = z.x_head; /* in place */
    for (int64_t i = 0; i < count; i++) want[i] = x[i];
    rope_want(&z, offset, base[0], x, want);
    buffers[DTM_ROPE_OUT] = x;
    run_parts(&rope, args);
    CHECK(distance(x, want, count) <= 1e-6, "rope in place");
    free(x), free(out), free(table), free(want);
}

static void test_rope(void) {
    for (int64_t positions = 0; positions < 20; positions += 3)
        for (int64_t part = 0; part <= 34; part += 2)
            test_rope_case(positions, 1 + below(3), part + below(5), part, below(2) * 100000);
}

/* ---- pack ---- */

static void test_pack_case(int64_t bytes) {
    dtm_pack_sizes z = {.rank = below(6), .bytes = bytes, .from_offset = below(4), .to_offset = below(4)};
    static const int64_t some[] = {1, 1, 2, 3, 5, 17, 34, 65};
    int order[2][8];
    int64_t elements = 1, from_count = 1, to_count = 1;
    for (int i = 0; i < z.rank; i++) {
        z.size[i] = some[below(elements > 5000 ? 3 : 8)];
        if (!below(60)) z.size[i] = 0;
        elements *= z.size[i];
        for (int side = 0; side < 2; side++) { /* a random order of the dimensions on either side */
            const int at = below(3) ? i : (int)below(i + 1);
            for (int j = i; j > at; j--) order[side][j] = order[side][j - 1];
            order[side][at] = i;
        }
    }
    for (int i = (int)z.rank - 1; i >= 0; i--) {
        z.from[order[0][i]] = from_count,
        from_count = from_count * DTM_MAX(z.size[order[0][i]], 1) + (below(4) ? 0 : 2);
        z.to[order[1][i]] = to_count, to_count = to_count * DTM_MAX(z.size[order[1][i]], 1) + (below(4) ? 0 : 2);
    }
    from_count += z.from_offset, to_count += z.to_offset;
    int64_t words = (to_count * bytes + 3) / 4;
    unsigned char *from = malloc((size_t)(from_count * bytes)), *to = calloc(1, (size_t)(words * 4)),
                  *want = calloc(1, (size_t)(words * 4));
    for (int64_t i = 0; i < from_count * bytes; i++) from[i] = (unsigned char)roll();
    for (int64_t e = 0; e < elements; e++) {
        int64_t rest = e, f = z.from_offset, t = z.to_offset;
        for (int i = 0; i < z.rank; i++)
            f += rest % z.size[i] * z.from[i], t += rest % z.size[i] * z.to[i], rest /= z.size[i];
        memcpy(want + t * bytes, from + f * bytes, (size_t)bytes);
    }
    void *buffers[] = {from, to};
    run_twice(&pack, (dtm_kernel_args){.buffers = buffers, .sizes = (const int64_t *)&z}, buffers, (int[]){DTM_PACK_TO},
              1, &words);
    CHECK(!memcmp(to, want, (size_t)(words * 4)), "pack of rank %d, %d elements of %d bytes", (int)z.rank,
          (int)elements, (int)bytes);
    free(from), free(to), free(want);
}

static void test_pack(void) {
    for (int round = 0; round < 600; round++) test_pack_case((int64_t[]){4, 4, 4, 1, 2, 8}[round % 6]);
    int64_t count = 100003; /* one long run, cut into pieces */
    float *from = numbers(count), *to = fresh(count);
    void *buffers[] = {from, to};
    const dtm_pack_sizes z = {.rank = 1, .bytes = 4, .size = {count}, .from = {1}, .to = {1}};
    CHECK(dtm_pack_extent((const int64_t *)&z) > 1, "a long run is cut");
    run_twice(&pack, (dtm_kernel_args){.buffers = buffers, .sizes = (const int64_t *)&z}, buffers, (int[]){DTM_PACK_TO},
              1, &count);
    CHECK(!memcmp(from, to, (size_t)count * 4), "a long run");
    free(from), free(to);
}

/* ---- the library ---- */

static void test_library(void) {
    static const char *const names[] = {
        "dtm_attention_forward", "dtm_attention_backward", "dtm_matmul", "dtm_pack",
        "dtm_rows_gather",       "dtm_rows_scatter",       "dtm_rope",   "dtm_rope_table"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) CHECK(dtm_kernel_find(names[i]), "%s", names[i]);
    CHECK(!dtm_kernel_find("dtm_nothing"), "an unknown kernel is not found");
}

/* Called by main (test_main.c), which sees first whether this machine has the instruction set. */
int test_kernels(void);
int test_kernels(void) {
    test_prelude();
    test_philox();
    test_matmul("tiles");
    test_matmul("onednn");
    test_attention(250);
    test_attention_extremes();
    test_rows();
    test_rope();
    test_pack();
    test_library();
    printf("%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
