/* Products against plain loops in double precision: sizes, strides, batches, accumulation, every back end. */
#include "kernels/test_kernels.h"

#include "kernels/cpu/half.h"
#include "kernels/cpu/matmul.h"

#include <pthread.h>

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

/* The same with up to two loops around the depth, whose turns lie one after another. */
static matmul_case with_sums(matmul_case c, int64_t sums) {
    dtm_matmul_sizes *z = &c.z;
    for (z->sums = 0; z->sums < sums; z->sums++) {
        const int64_t l = z->sums, count = 1 + below(3), shared = below(2); /* b may be the same in all turns */
        z->sum_count[l] = count, z->sum_a[l] = c.a_count, z->sum_b[l] = shared ? 0 : c.b_count;
        c.a_count *= count, c.b_count *= shared ? 1 : count;
    }
    return c;
}

static double sum_of(const dtm_matmul_sizes *z, int64_t loop, const float *a, const float *b) {
    double sum = 0;
    if (loop < z->sums) {
        for (int64_t t = 0; t < z->sum_count[loop]; t++) sum += sum_of(z, loop + 1, a + t * z->sum_a[loop], b + t * z->sum_b[loop]);
        return sum;
    }
    for (int64_t p = 0; p < z->k; p++) sum += (double)a[p * z->a_col] * b[p * z->b_row];
    return sum;
}

static void matmul_want(const matmul_case *c, const float *a, const float *b, double *out) {
    const dtm_matmul_sizes *z = &c->z;
    const double alpha = z->scaled ? c->numbers[0] : 1, beta = z->scaled ? c->numbers[1] : z->accumulate ? 1 : 0;
    for (int64_t q = 0; q < z->batch; q++)
        for (int64_t i = 0; i < z->m; i++)
            for (int64_t j = 0; j < z->n; j++) {
                const double sum = sum_of(z, 0, &a[q * z->a_batch + i * z->a_row], &b[q * z->b_batch + j * z->b_col]);
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
    const size_t bytes = (size_t)c.c_count * (c.z.c_type ? 2 : 4);
    void *parts_c = memcpy(malloc(bytes + 1), half_c, bytes);
    void *buffers[] = {half_a, half_b, half_c};
    dtm_kernel_args args = {.buffers = buffers, .sizes = (const int64_t *)&c.z};
    run_whole(&matmul, args);
    buffers[DTM_MATMUL_C] = parts_c;
    run_parts(&matmul, args);
    CHECK(!memcmp(half_c, parts_c, bytes), "%s, bf16 by %s, types %d %d %d: bits depend on the parts", dtm_matmul_name(),
          dtm_matmul_bf16_name(), (int)c.z.a_type, (int)c.z.b_type, (int)c.z.c_type);
    free(parts_c);
    const double unit = c.z.c_type == DTM_MATMUL_BF16 ? 0x1p-8 : c.z.c_type == DTM_MATMUL_F16 ? 0x1p-11 : 0;
    double worst = 0;
    for (int64_t i = 0; i < c.c_count; i++) {
        const uint16_t h = c.z.c_type ? ((uint16_t *)half_c)[i] : 0;
        const double got = c.z.c_type == DTM_MATMUL_BF16 ? dtm_of_bf16(h) : c.z.c_type == DTM_MATMUL_F16 ? dtm_of_f16(h) : ((float *)half_c)[i];
        const double off = fabs(got - want[i]) - unit * fabs(want[i]) - 1e-5 * sqrt((double)c.z.k + 1);
        worst = !(off <= worst) ? off : worst;
    }
    CHECK(worst <= 0, "%s, bf16 by %s, types %d %d %d: %d x %d x %d: off by %g", dtm_matmul_name(), dtm_matmul_bf16_name(), (int)c.z.a_type, (int)c.z.b_type, (int)c.z.c_type,
          (int)c.z.m, (int)c.z.n, (int)c.z.k, worst);
    if (half_a != a) free(half_a);
    if (half_b != b) free(half_b);
    if (half_c != out) free(half_c);
    free(a), free(b), free(out), free(want);
}

/* A sum of 300 turns of 1, in bf16, which has no 257: rounded once it is 300. */
static void test_one_rounding(int64_t depth) {
    enum { TURNS = 300, N = 40 };
    matmul_case c = {.z = {.batch = 1, .m = N, .n = N, .k = depth, .a_row = 2, .a_col = 1, .b_row = N, .b_col = 1, .c_row = N, .sums = 2}};
    c.z.a_type = c.z.b_type = c.z.c_type = DTM_MATMUL_BF16;
    c.z.sum_count[0] = TURNS / depth / 2, c.z.sum_count[1] = 2;
    uint16_t a[N * 2], b[N * 2], out[N * N];
    for (int i = 0; i < N * 2; i++) a[i] = b[i] = dtm_to_bf16(1);
    void *buffers[] = {a, b, out};
    run_whole(&matmul, (dtm_kernel_args){.buffers = buffers, .sizes = (const int64_t *)&c.z});
    int off = 0;
    for (int i = 0; i < N * N; i++) off += dtm_of_bf16(out[i]) != TURNS;
    CHECK(!off, "%s, bf16 by %s: %d of %d are not 300, one is %g", dtm_matmul_name(), dtm_matmul_bf16_name(), off, N * N, (double)dtm_of_bf16(out[0]));
}

/* Sums of small whole numbers, which no order changes: to the bits the same by both. Whether they cut it unlike. */
static int test_bf16_alike(matmul_case c) {
    uint16_t *a = malloc((size_t)c.a_count * 2 + 1), *b = malloc((size_t)c.b_count * 2 + 1);
    const size_t bytes = (size_t)c.c_count * (c.z.c_type ? 2 : 4);
    char *out[2] = {malloc(bytes + 1), malloc(bytes + 1)};
    for (int64_t i = 0; i < c.a_count; i++) a[i] = dtm_to_bf16((float)(below(17) - 8));
    for (int64_t i = 0; i < c.b_count; i++) b[i] = dtm_to_bf16((float)(below(17) - 8));
    for (int64_t i = 0; i < c.c_count; i++) {
        const float x = (float)(below(2001) - 1000);
        if (c.z.c_type) ((uint16_t *)(void *)out[0])[i] = dtm_to_bf16(x);
        else ((float *)(void *)out[0])[i] = x;
    }
    memcpy(out[1], out[0], bytes);
    static const char *const ways[] = {"tiles", "onednn"};
    int64_t unit[2];
    for (int way = 0; way < 2; way++) {
        CHECK(!dtm_matmul_init_bf16(ways[way]), "%s", ways[way]);
        unit[way] = dtm_matmul_cut_of(&c.z).size;
        void *buffers[] = {a, b, out[way]};
        run_whole(&matmul, (dtm_kernel_args){.buffers = buffers, .sizes = (const int64_t *)&c.z});
    }
    CHECK(!memcmp(out[0], out[1], bytes), "%d x %d x %d, c type %d: unlike", (int)c.z.m, (int)c.z.n, (int)c.z.k, (int)c.z.c_type);
    free(a), free(b), free(out[0]), free(out[1]);
    return unit[0] != unit[1];
}

typedef struct threads_part {
    const dtm_matmul_sizes *z;
    void *buffers[DTM_MATMUL_BUFFERS];
    int64_t begin, end;
} threads_part;

static void *run_part(void *at) {
    threads_part *p = at;
    const int64_t *sizes = (const int64_t *)p->z;
    dtm_kernel_args args = with_scratch((dtm_kernel_args){.buffers = p->buffers, .sizes = sizes}, dtm_matmul_scratch_bytes(sizes));
    for (int64_t u = p->begin; u < p->end; u++) dtm_matmul(&args, u, u + 1);
    free(args.scratch);
    return NULL;
}

/* Threads that come for the first time, all at once. */
static void test_bf16_threads(void) {
    matmul_case c = matmul_of(2, 210, 70, 96, 4);
    c.z.a_type = c.z.b_type = c.z.c_type = DTM_MATMUL_BF16;
    float *a = numbers(c.a_count), *b = numbers(c.b_count);
    uint16_t *half_a = halved(a, c.a_count, DTM_MATMUL_BF16), *half_b = halved(b, c.b_count, DTM_MATMUL_BF16);
    const size_t bytes = (size_t)c.c_count * 2;
    uint16_t *first = calloc(1, bytes), *out = malloc(bytes);
    void *buffers[] = {half_a, half_b, first};
    run_whole(&matmul, (dtm_kernel_args){.buffers = buffers, .sizes = (const int64_t *)&c.z});
    const int64_t extent = dtm_matmul_extent((const int64_t *)&c.z);
    for (int64_t threads = 2; threads <= 5; threads++) {
        pthread_t ids[5];
        threads_part parts[5];
        memset(out, 0, bytes);
        for (int64_t t = 0; t < threads; t++) {
            parts[t] = (threads_part){&c.z, {half_a, half_b, out}, extent * t / threads, extent * (t + 1) / threads};
            pthread_create(&ids[t], NULL, run_part, &parts[t]);
        }
        for (int64_t t = 0; t < threads; t++) pthread_join(ids[t], NULL);
        CHECK(!memcmp(first, out, bytes), "bf16 by %s: bits depend on %d threads", dtm_matmul_bf16_name(), (int)threads);
    }
    free(a), free(b), free(half_a), free(half_b), free(first), free(out);
}

static void test_bf16(const char *way) {
    if (dtm_matmul_init_bf16(way)) {
        CHECK(!dtm_matmul_bf16_host() && !strcmp(way, "onednn"), "bf16 by %s", way);
        return;
    }
    for (int i = 0; i < 120; i++) {
        matmul_case c = with_sums(matmul_of(1 + below(2), below(260), below(i % 9 ? 130 : 2300), 1 + below(i % 5 ? 90 : 700), (int)below(16)), below(3));
        c.z.a_type = c.z.b_type = DTM_MATMUL_BF16, c.z.c_type = below(2);
        c.z.accumulate = below(2);
        test_halves_case(c);
    }
    test_one_rounding(1);
    test_one_rounding(2);
    test_bf16_threads();
}

/* Whichever multiplies bf16. */
static void test_bf16_ways(void) {
    test_bf16("tiles");
    test_bf16("onednn");
    int unlike = 0;
    for (int i = 0; i < 60 && dtm_matmul_bf16_host(); i++) {
        matmul_case c = with_sums(matmul_of(1, 40 + below(250), 1 + below(i % 7 ? 200 : 1500), 1 + below(i % 6 ? 300 : 4000), (int)below(8)), below(3));
        c.z.a_type = c.z.b_type = DTM_MATMUL_BF16, c.z.c_type = below(2), c.z.accumulate = below(2);
        unlike += test_bf16_alike(c);
    }
    CHECK(unlike || !dtm_matmul_bf16_host(), "one way is the other");
    CHECK(dtm_matmul_init_bf16("nothing"), "an unknown way is refused");
    dtm_matmul_init_bf16(NULL);
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
    for (int i = 0; i < 12; i++) {
        matmul_case c = with_sums(matmul_of(1 + below(2), below(40), below(40), below(20), (int)below(16)), 1 + below(2));
        c.z.accumulate = below(2);
        test_matmul_case(c);
    }
    test_bf16_ways();
    state = drawn;
    CHECK(dtm_matmul_init("nothing", dtm_kernel_level()), "an unknown back end is refused");
    dtm_matmul_init(NULL, dtm_kernel_level());
}
