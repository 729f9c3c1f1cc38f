/* First values of weights: the same bits at every instruction set that this machine has and wherever a fill begins; the
 * distributions that they should have; the words of random.h's generator. */
#include "kernels/cpu/draw.h"
#include "kernels/cpu/draw_pair.h"
#include "kernels/cpu/library.h"
#include "kernels/cpu/random.h"

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

static const int levels[] = {1, 3, 4};
enum { LEVELS = sizeof levels / sizeof *levels };

static int has(int level) {
    return level <= dtm_kernel_level();
}

/* What a pair should be, in double. */
static void exact_pair(uint32_t first, uint32_t second, double *radius, double *by_cosine, double *by_sine) {
    *radius = sqrt(-2 * log(((double)first + 1) * 0x1p-32));
    const double angle = 0x1.921fb54442d18p2 * 0x1p-32 * second;
    *by_cosine = *radius * cos(angle), *by_sine = *radius * sin(angle);
}

static void check_pair(uint32_t first, uint32_t second, double *worst) {
    double radius, cosine, sine;
    float got[2];
    exact_pair(first, second, &radius, &cosine, &sine);
    dtm_draw_pair(first, second, 1, &got[0], &got[1]);
    const double error = fmax(fabs(got[0] - cosine), fabs(got[1] - sine)) / radius;
    if (radius == 0)
        CHECK(got[0] == 0 && got[1] == 0, "the last word: %g, %g", got[0], got[1]);
    else if (!(error <= *worst))
        *worst = error;
}

/* Words around all that is taken apart: ends, sqrt 1/2, powers of two, the octants; and random ones. */
static void test_pair(void) {
    static const uint32_t edges[] = {0, 0x20000000, 0x40000000, 0x60000000, 0x80000000, 0xA0000000, 0xB504F333, 0xE0000000};
    double worst = 0;
    for (unsigned i = 0; i < sizeof edges / sizeof *edges; i++)
        for (uint32_t k = 0; k < 200; k++)
            for (uint32_t other = 0; other < 8; other++) {
                check_pair(edges[i] + k - 100, other * 0x12345679u, &worst);
                check_pair(other * 0x12345679u, edges[i] + k - 100, &worst);
            }
    for (int bit = 0; bit < 32; bit++)
        for (uint32_t k = 0; k < 9; k++) check_pair((UINT32_C(1) << bit) + k - 4, ~(UINT32_C(1) << bit) + k, &worst);
    for (uint64_t block = 0; block < 200000; block++) {
        const dtm_philox words = dtm_philox_block(1, 2, block);
        check_pair(words.word[0], words.word[1], &worst);
        check_pair(words.word[2], words.word[3], &worst);
    }
    CHECK(worst <= 4e-7, "a normal pair is off by %g of its radius", worst);
}

/* Of the generator's words, all levels the same. */
static void test_words(void) {
    enum { N = 5000 };
    static float got[LEVELS][N];
    const uint64_t seed = 0x299f31d0a4093822, stream = 0x0370734413198a2e;
    for (int high = 0; high < 2; high++) { /* the second time past 2^32 blocks */
        const uint64_t from = high ? (UINT64_C(1) << 34) - 1111 : 3;
        for (int l = 0; l < LEVELS && has(levels[l]); l++) {
            dtm_draw_at(levels[l])->uniform(seed, stream, from, N, 0, 1, got[l]);
            for (uint64_t i = 0; i < N; i++)
                CHECK(got[l][i] == dtm_random_uniform(seed, stream, from + i), "level %d, element %d", levels[l], (int)i);
            dtm_draw_at(levels[l])->normal(seed, stream, from, N, 1, got[l]);
            for (uint64_t i = 0; i < N; i++) {
                const dtm_philox block = dtm_philox_block(seed, stream, (from + i) / 4);
                const uint32_t *pair = block.word + ((from + i) & 2);
                float want[2];
                dtm_draw_pair(pair[0], pair[1], 1, &want[0], &want[1]);
                CHECK(got[l][i] == want[(from + i) & 1], "level %d, element %d", levels[l], (int)i);
            }
        }
    }
}

/* A fill cut anywhere, at any level, gives the bits of the whole fill at the first, and writes nothing beyond. */
static void test_cuts(void) {
    enum { N = 3000 };
    static float normal[N], uniform[N], got[N + 1];
    dtm_draw_v1.normal(5, 6, 7, N, 0.02, normal);
    dtm_draw_v1.uniform(5, 6, 7, N, -0.3, 0.7, uniform);
    for (int l = 0; l < LEVELS && has(levels[l]); l++)
        for (int64_t i = 0, turn = 0; i < N; turn++) {
            const int64_t most = 1 + (int64_t)(dtm_random_bits(8, 9, (uint64_t)turn) % 400), here = most < N - i ? most : N - i;
            got[here] = 77;
            dtm_draw_at(levels[l])->normal(5, 6, 7 + (uint64_t)i, here, 0.02, got);
            CHECK(!memcmp(got, normal + i, (size_t)here * sizeof *got), "level %d, normal from %d", levels[l], (int)i);
            CHECK(got[here] == 77, "level %d writes beyond %d", levels[l], (int)here);
            dtm_draw_at(levels[l])->uniform(5, 6, 7 + (uint64_t)i, here, -0.3, 0.7, got);
            CHECK(!memcmp(got, uniform + i, (size_t)here * sizeof *got), "level %d, uniform from %d", levels[l], (int)i);
            i += here;
        }
}

/* Within five deviations of what is expected: moments, tails and the middle, neighbours. The seed is fixed. */
static void test_normal(void) {
    enum { N = 1 << 20, BOUNDS = 8 };
    static const struct {
        double bound, share; /* of |x| > bound */
    } tails[BOUNDS] = {{0.01, 0.992021287}, {0.5, 0.617075077}, {1, 0.317310508}, {2, 0.0455002639},
                       {3, 0.00269979606},  {4, 6.33424837e-5},  {4.5, 6.79534625e-6}, {6.67, 0}};
    float *x = malloc(N * sizeof *x);
    double sum[5] = {0}, neighbours = 0, squares = 0, beyond[BOUNDS] = {0}, positive = 0;
    dtm_draw_at(dtm_kernel_level())->normal(3, 4, 0, N, 1, x);
    for (int i = 0; i < N; i++) {
        const double v = x[i], next = x[i ^ 1];
        for (int p = 1; p < 5; p++) sum[p] += pow(v, p);
        for (int b = 0; b < BOUNDS; b++) beyond[b] += fabs(v) > tails[b].bound;
        neighbours += v * next, squares += (v * v - 1) * (next * next - 1), positive += v > 0;
    }
    const double root = sqrt(N);
    CHECK(fabs(sum[1]) < 5 * root, "mean %g", sum[1] / N);
    CHECK(fabs(sum[2] - N) < 5 * root * sqrt(2), "variance %g", sum[2] / N);
    CHECK(fabs(sum[3]) < 5 * root * sqrt(15), "third moment %g", sum[3] / N);
    CHECK(fabs(sum[4] - 3.0 * N) < 5 * root * sqrt(96), "fourth moment %g", sum[4] / N);
    CHECK(fabs(positive - N / 2.0) < 5 * root / 2, "positive %g", positive / N);
    /* Each pair counts twice. */
    CHECK(fabs(neighbours) < 5 * root * sqrt(2), "pairs correlate: %g", neighbours / N);
    CHECK(fabs(squares) < 5 * root * sqrt(2) * 2, "squares of pairs correlate: %g", squares / N);
    for (int b = 0; b < BOUNDS; b++) {
        const double want = N * tails[b].share, deviation = sqrt(want * (1 - tails[b].share));
        CHECK(fabs(beyond[b] - want) <= 5 * deviation, "%g of %g beyond %g", beyond[b], want, tails[b].bound);
    }
    float scaled[8];
    dtm_draw_v1.normal(3, 4, 0, 8, 0.25, scaled);
    for (int i = 0; i < 8; i++) CHECK(scaled[i] == 0.25f * x[i], "deviation 0.25: %g, %g", scaled[i], x[i]);
    free(x);
}

static void test_uniform(void) {
    enum { N = 1 << 20 };
    float *x = malloc(N * sizeof *x);
    double sum = 0, square = 0, least = 9, most = -9;
    dtm_draw_at(dtm_kernel_level())->uniform(3, 4, 0, N, -1, 3, x);
    for (int i = 0; i < N; i++) {
        sum += x[i], square += (x[i] - 1.0) * (x[i] - 1.0);
        least = fmin(least, x[i]), most = fmax(most, x[i]);
    }
    CHECK(fabs(sum / N - 1) < 5 * sqrt(4.0 / 3 / N), "mean %g", sum / N);
    CHECK(fabs(square / N - 4.0 / 3) < 5 * sqrt(16.0 / 5 / N), "variance %g", square / N);
    CHECK(least >= -1 && least < -0.9999 && most <= 3 && most > 2.9999, "from %g to %g", least, most);
    free(x);
}

int main(void) {
    test_pair();
    test_words();
    test_cuts();
    test_normal();
    test_uniform();
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
