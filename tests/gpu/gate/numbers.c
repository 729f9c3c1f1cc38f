/* The prelude and its first users, compiled by the real NVRTC, give the numbers of plain C on the simulated GPU (tests/gpu/sim),
 * with none of its reports, in random orders of blocks and warps:
 *     numbers SOURCE_ROOT PACKAGES
 * Sizes that no vector divides, denormals, infinities, NaN and ties are among the operands. Skipped (77) without NVRTC. */
#include "tests/gpu/gate/simulated.h"

/* ---- conversions and functions ---- */

enum { OPERANDS = 6000 };

static float operand(int i) {
    static const float special[] = {0, -0.f, INFINITY, -INFINITY, NAN, 65504, 65519.996f, 65520, -65536, 0x1p-24f, 0x1p-25f, 0x1.8p-25f,
                                    0x1.000002p-25f, 0x1p-14f, 0x1.ffcp-15f, 0x1p-126f, 0x1p-149f, -0x1p-133f, 0x1.8p-134f, 0x1.fffffep127f,
                                    0x1.feffffp127f, 0x1.ff0000p127f, 1.00390625f, 1.01171875f, -1.00390625f, 1, 127.5f, -149, -150.5f, 128};
    int n = sizeof special / sizeof *special;
    if (i < n) return special[i];
    if (i % 3 == 0) return float_of(draw());                                /* any bits */
    if (i % 3 == 1) return float_of((draw() & 0xffff0000u) | 0x8000u);      /* halves of bf16 */
    return float_of((0x38800000u + (draw() & 0x0fffe000u)) | 0x1000u);      /* halves of f16 */
}

static void test_narrow(int a) {
    launch l = {0};
    float *x = buffer(&l, "x", OPERANDS * 4, SIM_READ);
    uint16_t *b = buffer(&l, "b", OPERANDS * 2, SIM_WRITE), *h = buffer(&l, "h", OPERANDS * 2, SIM_WRITE);
    uint32_t *b_pairs = buffer(&l, "b_pairs", OPERANDS * 4, SIM_WRITE), *h_pairs = buffer(&l, "h_pairs", OPERANDS * 4, SIM_WRITE);
    whole(&l, OPERANDS);
    for (int i = 0; i < OPERANDS; i++) x[i] = operand(i);
    run(&l, a, "narrow", (OPERANDS + 255) / 256, 1, 256, 1);
    int wrong = 0;
    for (int i = 0; i < OPERANDS; i++) {
        int k = OPERANDS - 1 - i;
        wrong += !same(value_of(b[i], bf16), rounded(x[i], bf16)) || !same(value_of(h[i], f16), rounded(x[i], f16));
        wrong += b_pairs[i] != (b[i] | (uint32_t)b[k] << 16) || h_pairs[i] != (h[i] | (uint32_t)h[k] << 16);
    }
    CHECK(wrong == 0);
    release(&l);
}

static void test_widen(int a) {
    launch l = {0};
    float *b = buffer(&l, "b", 65536 * 4, SIM_WRITE), *h = buffer(&l, "h", 65536 * 4, SIM_WRITE);
    run(&l, a, "widen", 256, 1, 256, 2);
    int wrong = 0;
    for (int i = 0; i < 65536; i++)
        wrong += !same(b[i], value_of((uint16_t)i, bf16)) || !same(h[i], value_of((uint16_t)i, f16));
    CHECK(wrong == 0);
    release(&l);
}

static void test_functions(int a) {
    launch l = {0};
    float *x = buffer(&l, "x", OPERANDS * 4, SIM_READ), *e = buffer(&l, "e", OPERANDS * 4, SIM_WRITE);
    float *g = buffer(&l, "g", OPERANDS * 4, SIM_WRITE), *m = buffer(&l, "m", OPERANDS * 4, SIM_WRITE);
    whole(&l, OPERANDS);
    for (int i = 0; i < OPERANDS; i++) x[i] = i % 4 == 3 ? 150 * drawn() : operand(i);
    run(&l, a, "functions", (OPERANDS + 255) / 256, 1, 256, 3);
    int wrong = 0;
    for (int i = 0; i < OPERANDS; i++) {
        double exponential = rounded(exp2(x[i]), f32), logarithm = log2(x[i]), other = x[OPERANDS - 1 - i];
        wrong += !near(e[i], exponential, 2 * unit(exponential, f32));
        wrong += !near(g[i], logarithm, 0x1p-21 + 4 * unit(logarithm, f32));
        wrong += !near(m[i], isnan(x[i]) || isnan(other) ? NAN : fmax(x[i], other), 0);
    }
    CHECK(wrong == 0);
    release(&l);
}

/* ---- elementwise ---- */

static void test_gated(int a, const char *kernel, format f, int n, int grid) {
    launch l = {0};
    void *x = buffer(&l, "x", (size_t)n * size_of(f), SIM_READ), *g = buffer(&l, "g", (size_t)n * size_of(f), SIM_READ);
    void *u = buffer(&l, "u", (size_t)n * size_of(f), SIM_READ), *y = buffer(&l, "y", (size_t)n * size_of(f), SIM_WRITE);
    wide(&l, n);
    for (int i = 0; i < n; i++) put(x, i, drawn(), f), put(g, i, 8 * drawn(), f), put(u, i, i % 101 == 100 ? NAN : drawn(), f);
    run(&l, a, kernel, grid, 1, 256, (uint64_t)n);
    int wrong = 0;
    for (int i = 0; i < n; i++) {
        double v = get(g, i, f), right = get(x, i, f) + v / (1 + exp(-v)) * get(u, i, f);
        wrong += !near(get(y, i, f), right, 0.51 * unit(right, f) + 1e-5);
    }
    CHECK(wrong == 0);
    release(&l);
}

static void test_mixed(int a, int n) {
    launch l = {0};
    uint16_t *x = buffer(&l, "x", (size_t)n * 2, SIM_READ);
    float *y = buffer(&l, "y", (size_t)n * 4, SIM_READ | SIM_WRITE);
    double *before = zeroed(n * 8);
    wide(&l, n);
    for (int i = 0; i < n; i++) put(x, i, 1.5 + drawn(), bf16), y[i] = drawn(), before[i] = y[i];
    run(&l, a, "mixed_in_place", 2, 1, 256, (uint64_t)n);
    int wrong = 0;
    for (int i = 0; i < n; i++) {
        double v = get(x, i, bf16);
        wrong += !near(y[i], fmax(v, before[i]) + log(v), 1e-6);
    }
    CHECK(wrong == 0);
    free(before);
    release(&l);
}

/* ---- rows ---- */

static void test_norm(int a, const char *kernel, format f, int columns, int threads, int rows_a_block, int n) {
    launch l = {0};
    size_t elements = (size_t)n * (size_t)columns;
    void *x = buffer(&l, "x", elements * size_of(f), SIM_READ), *s = buffer(&l, "s", (size_t)columns * size_of(f), SIM_READ);
    void *y = buffer(&l, "y", elements * size_of(f), SIM_WRITE);
    float *rstd = buffer(&l, "rstd", (size_t)n * 4, SIM_WRITE), epsilon = 1e-5f;
    wide(&l, n);
    param(&l, &epsilon, 4);
    for (size_t i = 0; i < elements; i++) put(x, (int64_t)i, (i / (size_t)columns % 2 ? 3 : 0.004) * drawn(), f); /* of every other row epsilon is most of it */
    for (int i = 0; i < columns; i++) put(s, i, drawn(), f);
    run(&l, a, kernel, (n + rows_a_block - 1) / rows_a_block, 1, threads, (uint64_t)n);
    int wrong = 0;
    for (int r = 0; r < n; r++) {
        double sum = 0;
        for (int i = 0; i < columns; i++) sum += get(x, (int64_t)r * columns + i, f) * get(x, (int64_t)r * columns + i, f);
        double factor = 1 / sqrt(sum / columns + epsilon);
        wrong += !near(rstd[r], factor, 1e-5 * factor);
        for (int i = 0; i < columns; i++) {
            double right = get(x, (int64_t)r * columns + i, f) * factor * get(s, i, f);
            wrong += !near(get(y, (int64_t)r * columns + i, f), right, 0.51 * unit(right, f) + 1e-5 * fabs(right));
        }
    }
    CHECK(wrong == 0);
    release(&l);
}

/* One row of logits whose exp is infinite, some of them -inf; one with a NaN. */
static void test_softmax(int a) {
    enum { COLUMNS = 1001, ROWS = 3 };
    launch l = {0};
    void *x = buffer(&l, "x", ROWS * COLUMNS * 2, SIM_READ), *y = buffer(&l, "y", ROWS * COLUMNS * 2, SIM_WRITE);
    wide(&l, ROWS);
    for (int i = 0; i < ROWS * COLUMNS; i++) ((uint16_t *)x)[i] = (uint16_t)((draw() >> 16 & 0x83ff) | (uint32_t)(i < COLUMNS ? 22 : 14) << 10);
    for (int i = 0; i < COLUMNS; i += 7) ((uint16_t *)x)[i] = 0xfc00;
    ((uint16_t *)x)[2 * COLUMNS + 500] = 0x7e00;
    run(&l, a, "softmax_1001", ROWS, 1, 256, 5);
    int wrong = 0;
    for (int r = 0; r < ROWS; r++) {
        double most = -INFINITY, sum = 0;
        for (int i = 0; i < COLUMNS; i++) {
            double v = get(x, r * COLUMNS + i, f16);
            most = isnan(v) || isnan(most) ? NAN : fmax(most, v);
        }
        for (int i = 0; i < COLUMNS; i++) sum += exp(get(x, r * COLUMNS + i, f16) - most);
        for (int i = 0; i < COLUMNS; i++) {
            double right = exp(get(x, r * COLUMNS + i, f16) - most) / sum;
            wrong += !near(get(y, r * COLUMNS + i, f16), right, 0.51 * unit(right, f16) + 3e-5 * right);
        }
    }
    CHECK(wrong == 0);
    release(&l);
}

/* ---- columns ---- */

/* Partial sums, undefined before, and their sum; twice in other orders of blocks and warps, with the same bits. */
static void test_bias(int a, int n, int parts) {
    enum { COLUMNS = 768 };
    float *kept = zeroed(COLUMNS * 4);
    for (int time = 0; time < 2; time++) {
        launch l = {0}, join = {0};
        state = 77;
        uint16_t *dy = buffer(&l, "dy", (size_t)n * COLUMNS * 2, SIM_READ);
        float *partials = buffer(&l, "partials", (size_t)parts * COLUMNS * 4, SIM_WRITE);
        wide(&l, n);
        for (int i = 0; i < n * COLUMNS; i++) put(dy, i, drawn(), bf16);
        run(&l, a, "bias_partials", COLUMNS / 256, parts, 256, (uint64_t)time + 1);
        float *given = buffer(&join, "partials", (size_t)parts * COLUMNS * 4, SIM_READ);
        uint16_t *sum = buffer(&join, "gradient", COLUMNS * 2, SIM_WRITE);
        whole(&join, parts);
        memcpy(given, partials, (size_t)parts * COLUMNS * 4);
        run(&join, a, "bias_join", COLUMNS / 256, 1, 256, (uint64_t)time + 1);
        int wrong = 0;
        for (int c = 0; c < COLUMNS; c++) {
            double right = 0;
            for (int r = 0; r < n; r++) right += get(dy, (int64_t)r * COLUMNS + c, bf16);
            wrong += !near(get(sum, c, bf16), right, 0.51 * unit(right, bf16) + 1e-5);
            wrong += time && bits_of(kept[c]) != bits_of((float)get(sum, c, bf16));
            kept[c] = (float)get(sum, c, bf16);
        }
        CHECK(wrong == 0);
        release(&l);
        release(&join);
    }
    free(kept);
}

static void test_scale(int a, int n, int parts) {
    enum { COLUMNS = 1001 };
    launch l = {0}, join = {0};
    float *dy = buffer(&l, "dy", (size_t)n * COLUMNS * 4, SIM_READ), *x = buffer(&l, "x", (size_t)n * COLUMNS * 4, SIM_READ);
    float *rstd = buffer(&l, "rstd", (size_t)n * 4, SIM_READ), *partials = buffer(&l, "partials", (size_t)parts * COLUMNS * 4, SIM_WRITE);
    wide(&l, n);
    for (int i = 0; i < n * COLUMNS; i++) dy[i] = drawn(), x[i] = drawn();
    for (int i = 0; i < n; i++) rstd[i] = 1 + drawn();
    run(&l, a, "scale_partials", (COLUMNS + 31) / 32, parts, 128, 3);
    float *given = buffer(&join, "partials", (size_t)parts * COLUMNS * 4, SIM_READ), *sum = buffer(&join, "gradient", COLUMNS * 4, SIM_WRITE);
    whole(&join, parts);
    memcpy(given, partials, (size_t)parts * COLUMNS * 4);
    run(&join, a, "scale_join", (COLUMNS + 127) / 128, 1, 128, 4);
    int wrong = 0;
    for (int c = 0; c < COLUMNS; c++) {
        double right = 0;
        for (int r = 0; r < n; r++) right += (double)dy[r * COLUMNS + c] * x[r * COLUMNS + c] * rstd[r];
        wrong += !near(sum[c], right, 1e-5);
    }
    CHECK(wrong == 0);
    release(&l);
    release(&join);
}

/* ---- products: of small whole numbers, which every order of sums has exactly ---- */

static void test_product(int a, const char *kernel, format in, format out, int m, int n, int k, int tile_m, int tile_n, int threads) {
    launch l = {0};
    void *x = buffer(&l, "a", (size_t)(m * k) * size_of(in), SIM_READ), *y = buffer(&l, "b", (size_t)(k * n) * size_of(in), SIM_READ);
    void *z = buffer(&l, "c", (size_t)(m * n) * size_of(out), SIM_WRITE);
    whole(&l, n);
    whole(&l, k);
    for (int i = 0; i < m * k; i++) put(x, i, (int)(draw() >> 16) % 4 - 1, in);
    for (int i = 0; i < k * n; i++) put(y, i, (int)(draw() >> 16) % 4 - 1, in);
    run(&l, a, kernel, n / tile_n, m / tile_m, threads, 7);
    int wrong = 0;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int c = 0; c < k; c++) sum += get(x, i * k + c, in) * get(y, c * n + j, in);
            wrong += !near(get(z, i * n + j, out), rounded(sum, out), 0);
        }
    CHECK(wrong == 0);
    release(&l);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    root = argv[1];
    dtm_cuda *cuda = open_nvrtc(argv[2]);
    if (!cuda) return 77;
    jit = open_jit(cuda);
    load("conversions.cu");
    for (int a = 0; a < ARCHITECTURES; a++) test_narrow(a), test_widen(a), test_functions(a);
    load("elementwise.cu");
    static const int sizes[] = {1, 7, 8, 31, 33, 255, 1000, 4099};
    for (int a = 0; a < ARCHITECTURES; a++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            test_gated(a, "gated_bf16", bf16, sizes[i], 1 + (int)i % 3);
            test_gated(a, "gated_f32", f32, sizes[i], 1 + (int)i % 3);
            test_gated(a, "gated_f16", f16, sizes[i], 1 + (int)i % 3);
            test_mixed(a, sizes[i]);
        }
    load("rows.cu");
    for (int a = 0; a < ARCHITECTURES; a++) {
        test_norm(a, "rms_norm_768", bf16, 768, 256, 8, 1);
        test_norm(a, "rms_norm_768", bf16, 768, 256, 8, 9);
        test_norm(a, "rms_norm_4096", bf16, 4096, 256, 1, 3);
        test_norm(a, "rms_norm_f32", f32, 16384, 512, 1, 2);
        test_softmax(a);
    }
    load("columns.cu");
    for (int a = 0; a < ARCHITECTURES; a++) {
        test_bias(a, 37, 3);
        test_bias(a, 2, 4); /* parts without rows */
        test_scale(a, 9, 2);
    }
    load("products.cu");
    for (int a = 0; a < ARCHITECTURES; a++) {
        test_product(a, "product_bf16", bf16, bf16, 128, 128, 96, 64, 64, 128);
        test_product(a, "product_f16", f16, f16, 64, 128, 96, 64, 64, 128); /* a stage is used again */
        test_product(a, "product_tf32", f32, f32, 32, 16, 24, 16, 8, 32);
    }
    for (int a = 0; a < ARCHITECTURES; a++) sim_module_free(modules[a]);
    dtm_jit_destroy(jit);
    dtm_cuda_destroy(cuda);
    printf("%d checks, %d failed\n", checks, failures);
    return failures > 0;
}
