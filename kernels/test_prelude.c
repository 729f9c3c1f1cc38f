/* The functions of one number that kernels are made of, by ulps, and the random numbers of dropout. */
#include "kernels/test_kernels.h"

#include "kernels/cpu/prelude.h"

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

void test_prelude(void) {
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

/* ---- halves of f32 ---- */

/* Upwards by the definition: sign, exponent and mantissa of `bits` bits, with subnormals, infinities and NaN. */
static double half_value(uint16_t h, int bits) {
    const int exponents = 15 - bits, bias = (1 << (exponents - 1)) - 1, e = h >> bits & ((1 << exponents) - 1);
    const double m = h & ((1 << bits) - 1), sign = h >> 15 ? -1 : 1;
    if (e == (1 << exponents) - 1) return m > 0 ? NAN : sign * INFINITY;
    return sign * ldexp(e ? ldexp(1, bits) + m : m, (e ? e : 1) - bias - bits);
}

/* Whether h is the nearest to x, of two the even one; from half way beyond the largest on infinite. */
static int is_nearest(float x, uint16_t h, int bits) {
    const double y = half_value(h, bits);
    if (isnan(x)) return isnan(y);
    if (isnan(y) || (signbit(x) != 0) != (h >> 15 != 0)) return 0;
    const uint16_t infinite = (uint16_t)(0x7FFF >> bits << bits), most = (uint16_t)(infinite - 1), magnitude = h & 0x7FFF;
    const double a = fabs((double)x), step = half_value(most, bits) - half_value((uint16_t)(most - 1), bits);
    if (a >= half_value(most, bits) + step / 2) return magnitude == infinite;
    if (magnitude == infinite) return 0;
    const double below = magnitude ? a - half_value((uint16_t)(magnitude - 1), bits) : INFINITY;
    const double above = magnitude == most ? INFINITY : half_value((uint16_t)(magnitude + 1), bits) - a, off = fabs(a - fabs(y));
    return off < below && off < above ? 1 : off <= below && off <= above && !(magnitude & 1);
}

void test_halves(void) {
    for (int h = 0; h < 1 << 16; h++) {
        const double wide[] = {half_value((uint16_t)h, 7), half_value((uint16_t)h, 10)};
        const float got[] = {dtm_of_bf16((uint16_t)h), dtm_of_f16((uint16_t)h)};
        for (int i = 0; i < 2; i++)
            CHECK((isnan(wide[i]) && isnan(got[i])) || (double)got[i] == wide[i], "%s %04x: %g", i ? "f16" : "bf16", h, (double)got[i]);
        CHECK(isnan(got[0]) || dtm_to_bf16(got[0]) == h, "bf16 %04x and back", h);
        CHECK(isnan(got[1]) || dtm_to_f16(got[1]) == h, "f16 %04x and back", h);
    }
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 30011) {
        const float x = dtm_from_bits((int32_t)(uint32_t)bits);
        CHECK(is_nearest(x, dtm_to_bf16(x), 7), "bf16 of %a: %04x", (double)x, dtm_to_bf16(x));
        CHECK(is_nearest(x, dtm_to_f16(x), 10), "f16 of %a: %04x", (double)x, dtm_to_f16(x));
    }
    static const float ties[] = {0x1.01p0f, 0x1.03p0f, 0x1.002p0f, 0x1.006p0f, 65519, 65520, 0x1p-25f, 0x1.8p-24f, 0x1p-134f, 0x1.ffp127f};
    for (unsigned i = 0; i < sizeof ties / sizeof *ties; i++)
        CHECK(is_nearest(ties[i], dtm_to_bf16(ties[i]), 7) && is_nearest(ties[i], dtm_to_f16(ties[i]), 10), "%a", (double)ties[i]);
}

/* ---- random ---- */

/* Random123's known answers. */
void test_philox(void) {
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
