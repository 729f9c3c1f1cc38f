/* The generated matrix products on the simulated GPU against plain C:
 *     products SOURCE_ROOT PACKAGES
 * Every mixture of types and layouts, edges of tiles, batches that the grid does not hold at once, sums added to. Small whole
 * numbers, which every order of sums has exactly, and drawn ones. Skipped (77) without NVRTC. */
#include "tests/gpu/gate/simulated.h"

typedef struct product {
    const void *a, *b;
    void *c;
    int64_t m, n, k, batch;
    int64_t a_row, a_col, a_batch, b_row, b_col, b_batch, c_row, c_batch;
    int a_type, b_type, c_type, accumulate;
} product;

static const format *const formats[] = {&f32, &f16, &bf16};

/* The steps of [batch, rows, columns] in an order of its own, with gaps; returns how many elements it spans. */
static int64_t lay(int64_t rows, int64_t columns, int64_t batch, int order, int64_t gap, int64_t *row, int64_t *column, int64_t *each) {
    *row = order == 0 ? columns + gap : order == 1 ? 1 : (columns + gap) * batch;
    *column = order == 0 ? 1 : order == 1 ? rows + gap : batch;
    *each = order == 0 ? rows * *row : order == 1 ? columns * *column : 1;
    return 1 + (rows ? rows - 1 : 0) * *row + (columns ? columns - 1 : 0) * *column + (batch - 1) * *each;
}

static void test_product(int a, const char *kernel, int64_t tile, int64_t m, int64_t n, int64_t k, int64_t batch, const int types[3], const int orders[2],
                         bool accumulate, bool drawn_ones, int order) {
    launch l = {.order = order};
    product p = {.m = m, .n = n, .k = k, .batch = batch, .accumulate = accumulate, .c_row = n + 3};
    p.a_type = types[0], p.b_type = types[1], p.c_type = types[2], p.c_batch = m * p.c_row;
    format fa = *formats[types[0]], fb = *formats[types[1]], fc = *formats[types[2]];
    int64_t a_count = lay(m, k, batch, orders[0], 8, &p.a_row, &p.a_col, &p.a_batch), b_count = lay(k, n, batch, orders[1], 8, &p.b_row, &p.b_col, &p.b_batch);
    int64_t c_count = batch * p.c_batch;
    void *x = memory(&l, "a", (size_t)a_count * size_of(fa), SIM_READ), *y = memory(&l, "b", (size_t)b_count * size_of(fb), SIM_READ);
    void *z = memory(&l, "c", (size_t)c_count * size_of(fc), SIM_READ | SIM_WRITE);
    double *before = zeroed(c_count * 8);
    p.a = x, p.b = y, p.c = z;
    for (int64_t i = 0; i < a_count; i++) put(x, i, drawn_ones ? drawn() : (int)(draw() >> 16) % 4 - 1, fa);
    for (int64_t i = 0; i < b_count; i++) put(y, i, drawn_ones ? drawn() : (int)(draw() >> 16) % 4 - 1, fb);
    for (int64_t i = 0; i < c_count; i++) put(z, i, (int)(draw() >> 16) % 8, fc), before[i] = get(z, i, fc);
    memcpy(l.params, &p, l.bytes = sizeof p);
    mark(&l);
    run_grid(&l, a, kernel, (const uint32_t[]){(uint32_t)(((m + tile - 1) / tile) * ((n + tile - 1) / tile)), 1, batch > 2 ? 2 : 1}, 256, (uint64_t)(m + n + k));
    int wrong = 0;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < p.c_row; j++) {
                int64_t at = b * p.c_batch + i * p.c_row + j;
                double sum = accumulate && j < n ? before[at] : 0;
                for (int64_t d = 0; j < n && d < k; d++)
                    sum += get(x, b * p.a_batch + i * p.a_row + d * p.a_col, fa) * get(y, b * p.b_batch + d * p.b_row + j * p.b_col, fb);
                double right = j < n ? sum : before[at];
                wrong += drawn_ones ? !near(get(z, at, fc), right, 0.51 * unit(right, fc) + 2e-6 * sqrt((double)k)) : !same(get(z, at, fc), rounded(right, fc) + 0);
            }
    CHECK(wrong == 0);
    free(before);
    release(&l);
}

static void test_any(int a) {
    static const int64_t sizes[][3] = {{1, 1, 1}, {31, 33, 65}, {64, 64, 64}, {70, 130, 33}, {65, 1, 0}, {5, 70, 200}};
    for (int i = 0; i < 6; i++)
        for (int t = 0; t < 3; t++) {
            int n = i * 3 + t;
            test_product(a, "dtm_product_any", 64, sizes[i][0], sizes[i][1], sizes[i][2], 1 + n % 4, (const int[]){t, n % 2 ? t : (t + 1) % 3, (n / 2) % 3},
                         (const int[]){n % 3, (n / 3 + n) % 3}, n % 2, n % 3 == 1, n % 3);
        }
}

/* Every pair of layouts, with rows that vectors can be read of and without. */
static void test_halves(int a, int type) {
    static const int64_t sizes[][3] = {{1, 1, 1}, {31, 33, 40}, {128, 128, 64}, {136, 264, 96}, {129, 8, 0}, {5, 70, 200}, {130, 24, 33}, {16, 24, 40}};
    for (int i = 0; i < 8; i++)
        for (int n = i % 4 + a % 2; n < 9; n += 4)
            test_product(a, type == 1 ? "dtm_product_of_f16" : "dtm_product_of_bf16", 128, sizes[i][0], sizes[i][1], sizes[i][2], 1 + n % 4,
                         (const int[]){type, type, (i + n) % 3}, (const int[]){n % 3, n / 3}, n % 2, n % 3 == 1, n % 3);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    root = argv[1];
    dtm_cuda *cuda = open_nvrtc(argv[2]);
    if (!cuda) return 77;
    jit = open_jit(cuda);
    load("matmul.cu");
    for (int a = 0; a < ARCHITECTURES; a++) test_any(a);
    load("matmul_halves.cu");
    for (int a = 0; a < ARCHITECTURES; a++) test_halves(a, 2 - a % 2);
    for (int a = 0; a < ARCHITECTURES; a++) sim_module_free(modules[a]);
    dtm_jit_destroy(jit);
    dtm_cuda_destroy(cuda);
    printf("%d checks, %d failed\n", checks, failures);
    return failures > 0;
}
