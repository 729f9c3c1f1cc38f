/* The templates that move elements, on the simulated GPU against plain C, bit for bit:
 *     moves SOURCE_ROOT PACKAGES
 * What lies between and behind what they write stays as it was. Skipped (77) without NVRTC. */
#include "tests/gpu/gate/simulated.h"

/* ---- strided copies ---- */

typedef struct box {
    const void *from;
    void *to;
    int64_t size[8], from_step[8], to_step[8];
} box;

static int64_t units_of(const box *b) {
    int64_t units = 1;
    for (int d = 0; d < 8; d++) units *= b->size[d];
    return units;
}

/* What a step says: elements of both sides from the first to the last. */
static int64_t extent(const box *b, const int64_t *step) {
    int64_t most = 1;
    for (int d = 0; d < 8; d++) most += (b->size[d] - 1) * step[d];
    return units_of(b) ? most : 1;
}

static void copy_plainly(const box *b, const unsigned char *from, unsigned char *to, int bytes) {
    for (int64_t u = 0; u < units_of(b); u++) {
        int64_t rest = u, at = 0, into = 0;
        for (int d = 7; d >= 0; d--) {
            at += rest % b->size[d] * b->from_step[d];
            into += rest % b->size[d] * b->to_step[d];
            rest /= b->size[d];
        }
        memcpy(to + into * bytes, from + at * bytes, (size_t)bytes);
    }
}

static void test_copy(int a, box b, int bytes, int grid, int order) {
    launch l = {.order = order};
    size_t from_bytes = (size_t)(extent(&b, b.from_step) * bytes), to_bytes = (size_t)(extent(&b, b.to_step) * bytes);
    unsigned char *from = memory(&l, "from", from_bytes, SIM_READ), *to = memory(&l, "to", to_bytes, SIM_READ | SIM_WRITE);
    unsigned char *wanted = malloc(to_bytes);
    if (!wanted) abort();
    for (size_t i = 0; i < from_bytes; i++) from[i] = (unsigned char)(draw() >> 16);
    for (size_t i = 0; i < to_bytes; i++) wanted[i] = to[i] = (unsigned char)(draw() >> 16);
    b.from = from, b.to = to;
    memcpy(l.params, &b, l.bytes = sizeof b);
    mark(&l);
    char entry[40];
    snprintf(entry, sizeof entry, "dtm_copy_box_%d", bytes);
    run(&l, a, entry, grid, 1, 256, (uint64_t)(bytes + grid));
    copy_plainly(&b, from, wanted, bytes);
    CHECK(!memcmp(to, wanted, to_bytes));
    free(wanted);
    release(&l);
}

/* Dimensions in the order of `to`, dense there; `order` is theirs in `from`, outermost first. `from` is a part of a larger one. */
static box box_of(const int64_t size[8], const int order[8], int64_t more, int64_t gap) {
    box b = {0};
    int64_t from = 1, to = 1;
    for (int i = 7; i >= 0; i--) {
        b.size[i] = size[i];
        b.to_step[i] = to;
        to *= size[i] + (i == 7 ? gap : 0);
        b.from_step[order[i]] = from;
        from *= size[order[i]] + more;
    }
    return b;
}

static void test_copies(int a) {
    static const int straight[8] = {0, 1, 2, 3, 4, 5, 6, 7}, turned[8] = {0, 1, 2, 3, 4, 5, 7, 6}, far[8] = {7, 6, 5, 4, 3, 2, 1, 0},
                     rolled[8] = {0, 1, 2, 3, 5, 6, 7, 4};
    static const int64_t boxes[][8] = {{1, 1, 1, 1, 1, 1, 1, 1},    {1, 1, 1, 1, 1, 1, 1, 31}, {1, 1, 1, 1, 1, 3, 33, 31}, {1, 1, 1, 1, 2, 1, 32, 32},
                                       {1, 1, 1, 1, 1, 1, 70, 65}, {2, 3, 2, 1, 2, 3, 2, 5},  {1, 1, 1, 4, 0, 2, 3, 1},   {1, 1, 1, 1, 7, 1, 1, 97}};
    static const int bytes[] = {1, 2, 4, 8, 16};
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++)
        for (int k = 0; k < 5; k++) {
            int n = (int)i + k;
            test_copy(a, box_of(boxes[i], straight, n % 2, n % 3), bytes[k], 1 + n % 4, n % 3);
            test_copy(a, box_of(boxes[i], turned, n % 2, n % 3), bytes[k], 1 + n % 4, (n + 1) % 3);
            test_copy(a, box_of(boxes[i], i % 2 ? far : rolled, n % 2, n % 3), bytes[k], 1 + n % 4, (n + 2) % 3);
        }
}

/* ---- gather ---- */

/* Two tuples, of which one has fewer tokens: its blocks beyond them do nothing. Bad ids: the least of their places is reported. */
static void test_gather(int a, const char *kernel, format f, int batch, int width, const int64_t tokens[2], bool bad, int order) {
    enum { ROWS = 13, FIRST = 20, VOCABULARY = 50 };
    launch l = {.order = order};
    int64_t *error = memory(&l, "error", 8, SIM_READ | SIM_WRITE), least = INT64_MAX;
    void *at[2][3];
    size_t size = size_of(f);
    *error = INT64_MAX;
    for (int t = 0; t < 2; t++) {
        at[t][0] = memory(&l, "table", (size_t)(batch * ROWS * width) * size, SIM_READ);
        at[t][1] = memory(&l, "ids", (size_t)tokens[t] * 4, SIM_READ);
        at[t][2] = memory(&l, "out", (size_t)(batch * tokens[t] * width) * size, SIM_WRITE);
        for (int i = 0; i < batch * ROWS * width; i++) put(at[t][0], i, i % 17 == 5 ? NAN : drawn(), f);
        for (int64_t i = 0; i < tokens[t]; i++) {
            int id = (int)(draw() >> 16) % VOCABULARY;
            if (bad && i % 10 == 7) id = (i % 20 == 7) == (f.digits == 23) ? -1 - (int)i : VOCABULARY + (int)i / 20 % 3;
            ((int *)at[t][1])[i] = id;
            if ((id < 0 || id >= VOCABULARY) && i < least) least = i;
        }
        tuple(&l, at[t], 3, NULL, (const int64_t[]){tokens[t], ROWS, FIRST, VOCABULARY}, 4);
    }
    param(&l, &error, sizeof error);
    mark(&l);
    int64_t most = tokens[0] > tokens[1] ? tokens[0] : tokens[1], vectors = batch * most * width / (f.digits == 23 ? 1 : 8);
    run(&l, a, kernel, (int)(vectors + 255) / 256, 2, 256, (uint64_t)most);
    CHECK(*error == least);
    int wrong = 0;
    for (int t = 0; t < 2; t++)
        for (int64_t i = 0; i < batch * tokens[t] * width; i++) {
            int64_t e = i % width, token = i / width % tokens[t], b = i / width / tokens[t], row = ((int *)at[t][1])[token] - FIRST;
            double right = row >= 0 && row < ROWS ? get(at[t][0], (b * ROWS + row) * width + e, f) : 0;
            wrong += !same(get(at[t][2], i, f), right);
        }
    CHECK(wrong == 0);
    release(&l);
}

/* ---- scatter ---- */

/* ids of many kinds: all alike, all of other ranks, random. Sums are those of f32 in the order of tokens, bit for bit. */
static void test_scatter(int a, const char *kernel, format f, int batch, int width, const int64_t tokens[2], int ids, int order) {
    enum { ROWS = 900, FIRST = 100 };
    launch l = {.order = order}, second = {.order = order};
    int64_t *none = NULL;
    void *at[2][3], *scratch[2], *given[2];
    for (int t = 0; t < 2; t++) {
        at[t][0] = memory(&l, "ids", (size_t)tokens[t] * 4, SIM_READ);
        scratch[t] = memory(&l, "scratch", (size_t)tokens[t] * 16, SIM_READ | SIM_WRITE);
        at[t][1] = memory(&second, "dy", (size_t)(batch * tokens[t] * width) * size_of(f), SIM_READ);
        at[t][2] = memory(&second, "out", (size_t)(batch * ROWS * width) * 4, SIM_WRITE);
        given[t] = memory(&second, "scratch", (size_t)tokens[t] * 16, SIM_READ);
        for (int64_t i = 0; i < tokens[t]; i++) ((int *)at[t][0])[i] = ids == 0 ? FIRST + 5 : ids == 1 ? (int)i % FIRST : (int)((draw() >> 16) % 1100);
        for (int64_t i = 0; i < batch * tokens[t] * width; i++) put(at[t][1], i, i % 997 == 5 ? INFINITY : i % 991 == 7 ? NAN : 100 * drawn(), f);
        tuple(&l, at[t], 3, scratch[t], (const int64_t[]){tokens[t], ROWS, FIRST}, 3);
        tuple(&second, at[t], 3, given[t], (const int64_t[]){tokens[t], ROWS, FIRST}, 3);
    }
    param(&l, &none, sizeof none);
    mark(&l);
    param(&second, &none, sizeof none);
    mark(&second);
    run(&l, a, "scatter_order", 1, 2, 512, (uint64_t)tokens[0]);
    for (int t = 0; t < 2; t++) memcpy(given[t], scratch[t], (size_t)tokens[t] * 16);
    run(&second, a, kernel, (batch * ROWS * width / (f.digits == 23 ? 1 : 8) + 255) / 256, 2, 256, (uint64_t)tokens[0]);
    for (int t = 0; t < 2; t++) {
        float *right = zeroed(batch * ROWS * width * 4);
        int wrong = 0;
        for (int b = 0; b < batch; b++)
            for (int64_t i = 0; i < tokens[t]; i++) {
                int64_t row = ((int *)at[t][0])[i] - FIRST;
                for (int e = 0; row >= 0 && row < ROWS && e < width; e++)
                    right[(b * ROWS + row) * width + e] += (float)get(at[t][1], (b * tokens[t] + i) * width + e, f);
            }
        for (int i = 0; i < batch * ROWS * width; i++) wrong += !same(((float *)at[t][2])[i], right[i]);
        CHECK(wrong == 0);
        free(right);
    }
    release(&second);
    release(&l);
}

/* ---- rope ---- */

static const uint64_t frequencies[5] = {2935890503282001226u, 929339046286735360u, 293589050328200123u, 29358905032820012u, 2935890503u};

static void test_rope_table(int a, int64_t positions, int64_t first, int order) {
    launch l = {.order = order};
    float *table = memory(&l, "table", (size_t)positions * 40, SIM_WRITE);
    int64_t *none = NULL;
    tuple(&l, (void *[]){table}, 1, NULL, (const int64_t[]){positions, first}, 2);
    param(&l, &none, sizeof none);
    mark(&l);
    run(&l, a, "rope_table", (int)(positions * 5 + 127) / 128, 1, 128, (uint64_t)first);
    double most = 0;
    for (int64_t p = 0; p < positions; p++)
        for (int i = 0; i < 5; i++) {
            uint64_t turns = (uint64_t)(first + p) * frequencies[i];
            double angle = (double)(int64_t)turns * 0x1p-63 * 3.14159265358979323846;
            most = fmax(most, fabs(table[p * 10 + i] - cos(angle)));
            most = fmax(most, fabs(table[p * 10 + 5 + i] - sin(angle)));
        }
    CHECK(most < 1.3e-7);
    release(&l);
}

static void test_rope(int a, const char *kernel, format f, int rows, int positions, int heads, int width, int part, bool pairs, bool apart, int sign,
                      bool in_place, int order) {
    launch l = {.order = order};
    int64_t *none = NULL;
    int count = rows * heads * width;
    float *table = memory(&l, "table", (size_t)(positions * part) * 4, SIM_READ);
    void *x = memory(&l, "x", (size_t)count * size_of(f), in_place ? SIM_READ | SIM_WRITE : SIM_READ);
    void *out = in_place ? x : memory(&l, "out", (size_t)count * size_of(f), SIM_WRITE);
    double *before = zeroed(count * 8);
    for (int i = 0; i < positions * part; i++) table[i] = drawn();
    for (int i = 0; i < count; i++) put(x, i, i % 101 == 50 ? NAN : drawn(), f), before[i] = get(x, i, f);
    tuple(&l, (void *[]){x, table, out}, 3, NULL, (const int64_t[]){rows, positions, sign}, 3);
    param(&l, &none, sizeof none);
    mark(&l);
    int vectors = apart ? rows * (part / 2 + width - part) : rows * heads * (part / 2 + width - part) / 4;
    run(&l, a, kernel, (vectors + 255) / 256, 1, 256, (uint64_t)rows);
    int wrong = 0;
    for (int r = 0; r < rows * heads; r++)
        for (int e = 0; e < width; e++) {
            int pair = pairs ? e / 2 : e % (part / 2), other = pairs ? e ^ 1 : (e + part / 2) % part, step = apart ? rows : 1;
            bool second = pairs ? e % 2 : e >= part / 2;
            const double *row = before + (apart ? r : r * width);
            const float *c = table + r / heads % positions * part + pair, *s = c + part / 2;
            double right = e >= part ? row[e * step] : row[e * step] * *c + (second ? 1 : -1) * row[other * step] * (sign * *s);
            wrong += !near(get(out, (apart ? r : r * width) + e * step, f), right, (f.digits == 23 ? 2 : 0.51) * unit(right, f) + 1.5e-7);
        }
    CHECK(wrong == 0);
    free(before);
    release(&l);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    root = argv[1];
    dtm_cuda *cuda = open_nvrtc(argv[2]);
    if (!cuda) return 77;
    jit = open_jit(cuda);
    load("copies.cu");
    for (int a = 0; a < ARCHITECTURES; a++) test_copies(a);
    load("moves.cu");
    for (int a = 0; a < ARCHITECTURES; a++) {
        test_gather(a, "gather_bf16", bf16, 1, 24, (const int64_t[]){33, 1}, false, 0);
        test_gather(a, "gather_bf16", bf16, 1, 24, (const int64_t[]){31, 200}, true, 1);
        test_gather(a, "gather_f32", f32, 7, 5, (const int64_t[]){90, 8}, true, 2);
        test_scatter(a, "scatter_bf16", bf16, 1, 24, (const int64_t[]){700, 1}, 2, 0);
        test_scatter(a, "scatter_bf16", bf16, 1, 24, (const int64_t[]){31, 513}, 0, 1);
        test_scatter(a, "scatter_f32", f32, 7, 5, (const int64_t[]){33, 1500}, 2, 2);
        test_scatter(a, "scatter_f32", f32, 7, 5, (const int64_t[]){1, 90}, 1, 0);
        test_rope_table(a, 33, 0, 0);
        test_rope_table(a, 300, 131000, 1);
        test_rope(a, "rope_halves", bf16, 33, 7, 2, 24, 16, false, false, 1, false, 0);
        test_rope(a, "rope_halves", bf16, 1, 1, 2, 24, 16, false, false, -1, true, 1);
        test_rope(a, "rope_pairs", f32, 31, 31, 2, 24, 24, true, false, -1, true, 2);
        test_rope(a, "rope_apart", f32, 70, 9, 1, 11, 10, false, true, 1, false, 0);
    }
    for (int a = 0; a < ARCHITECTURES; a++) sim_module_free(modules[a]);
    dtm_jit_destroy(jit);
    dtm_cuda_destroy(cuda);
    printf("%d checks, %d failed\n", checks, failures);
    return failures > 0;
}
