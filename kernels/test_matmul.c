/* Products against plain loops in double precision: sizes, strides, batches, accumulation, every back end. */
#include "kernels/test_kernels.h"

#include "kernels/cpu/half.h"
#include "kernels/cpu/matmul.h"

static const dtm_kernel_entry matmul = ENTRY(dtm_matmul);

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

/* Halves in place of the numbers, which become what the halves are. */
static void *halved(float *x, int64_t count, int64_t type) {
    if (type == DTM_MATMUL_F32) return x;
    uint16_t *half = malloc((size_t)(count + 1) * sizeof *half);
    for (int64_t i = 0; i < count; i++) {
        half[i] = type == DTM_MATMUL_BF16 ? dtm_to_bf16(x[i]) : dtm_to_f16(x[i]);
        x[i] = type == DTM_MATMUL_BF16 ? dtm_of_bf16(half[i]) : dtm_of_f16(half[i]);
    }
    return half;
}

/* Exact products, summed in f32 and rounded once: within that of half a unit of c's last place. */
static void test_halves_case(matmul_case c) {
    float *a = numbers(c.a_count), *b = numbers(c.b_count), *out = numbers(c.c_count);
    void *half_a = halved(a, c.a_count, c.z.a_type), *half_b = halved(b, c.b_count, c.z.b_type), *half_c = halved(out, c.c_count, c.z.c_type);
    double *want = malloc((size_t)(c.c_count + 1) * sizeof(double));
    for (int64_t i = 0; i < c.c_count; i++) want[i] = out[i];
    matmul_want(&c, a, b, want);
    void *buffers[] = {half_a, half_b, half_c};
    const dtm_kernel_args args = {.buffers = buffers, .sizes = (const int64_t *)&c.z, .scratch = malloc((size_t)dtm_matmul_scratch_bytes((const int64_t *)&c.z) + 1)};
    dtm_matmul(&args, 0, dtm_matmul_extent((const int64_t *)&c.z));
    const double unit = c.z.c_type == DTM_MATMUL_BF16 ? 0x1p-8 : c.z.c_type == DTM_MATMUL_F16 ? 0x1p-11 : 0;
    double worst = 0;
    for (int64_t i = 0; i < c.c_count; i++) {
        const uint16_t h = c.z.c_type ? ((uint16_t *)half_c)[i] : 0;
        const double got = c.z.c_type == DTM_MATMUL_BF16 ? dtm_of_bf16(h) : c.z.c_type == DTM_MATMUL_F16 ? dtm_of_f16(h) : ((float *)half_c)[i];
        const double off = fabs(got - want[i]) - unit * fabs(want[i]) - 1e-5 * sqrt((double)c.z.k + 1);
        worst = !(off <= worst) ? off : worst;
    }
    CHECK(worst <= 0, "%s, types %d %d %d: %d x %d x %d: off by %g", dtm_matmul_name(), (int)c.z.a_type, (int)c.z.b_type, (int)c.z.c_type,
          (int)c.z.m, (int)c.z.n, (int)c.z.k, worst);
    if (half_a != a) free(half_a);
    if (half_b != b) free(half_b);
    if (half_c != out) free(half_c);
    free(a), free(b), free(out), free(want), free(args.scratch);
}

void test_matmul(const char *backend) {
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
    const uint64_t drawn = state; /* what comes after is drawn as without this */
    for (int types = 1; types < 27; types++)
        for (int form = 0; form < 4; form++) {
            static const int64_t shapes[][3] = {{3, 5, 17}, {65, 33, 1}, {17, 3, 0}, {200, 70, 530}};
            const int64_t *shape = shapes[form];
            matmul_case c = matmul_of(1 + below(2), shape[0], shape[1], shape[2], (int)below(16));
            c.z.a_type = types % 3, c.z.b_type = types / 3 % 3, c.z.c_type = types / 9;
            c.z.accumulate = below(2);
            test_halves_case(c);
        }
    state = drawn;
    CHECK(dtm_matmul_init("nothing", dtm_kernel_level()), "an unknown back end is refused");
    dtm_matmul_init(NULL, dtm_kernel_level());
}
