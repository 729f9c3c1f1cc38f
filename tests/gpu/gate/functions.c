/* The functions that kernels are made of, on the simulated GPU against C in double precision, by ulps; and the random numbers, which
 * are those of kernels on CPUs bit for bit:
 *     functions SOURCE_ROOT PACKAGES
 * Skipped (77) without NVRTC. */
#include "kernels/cpu/random.h"
#include "tests/gpu/gate/simulated.h"

static double sigmoid_of(double x) { return 1 / (1 + exp(-x)); }
static double silu_of(double x) { return x < -1e4 ? -0.0 : x * sigmoid_of(x); }
static double gelu_of(double x) { return x < -40 ? -0.0 : 0.5 * x * erfc(-x * sqrt(0.5)); }
static double gelu_tanh_of(double x) { return x < -100 ? -0.0 : x * sigmoid_of(2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }
static double softplus_of(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
static double rsqrt_of(double x) { return 1 / sqrt(x); }
static double relu_of(double x) { return x < 0 ? 0 : x; }
static double tanh_slope_of(double y) { return 1 - y * y; }
static double sigmoid_slope_of(double y) { return y * (1 - y); }
static double silu_slope_of(double x) { return fabs(x) > 200 ? x > 0 : sigmoid_of(x) * (1 + x * (1 - sigmoid_of(x))); }
static double gelu_slope_of(double x) { return 0.5 * erfc(-x * sqrt(0.5)) + (fabs(x) > 40 ? 0 : x * exp(-x * x / 2) / sqrt(2 * M_PI)); }
static double gelu_tanh_slope_of(double x) {
    if (fabs(x) > 40) return x > 0;
    double s = sigmoid_of(2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return s + x * s * (1 - s) * 2 * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}
static double erf_slope_of(double x) { return 2 / sqrt(M_PI) * exp(-x * x); }

/* Off by ulps between low and high, anywhere else and of slopes by `absolute`. */
typedef struct math_case {
    const char *name;
    double (*of)(double);
    double low, high, ulps, absolute;
} math_case;
#define ALL -3.5e38, 3.5e38
static const math_case cases[] = {
    {"exp", exp, ALL, 4.5, 0},
    {"log", log, ALL, 1.5, 0},
    {"tanh", tanh, ALL, 3, 0},
    {"erf", erf, ALL, 3, 0},
    {"sigmoid", sigmoid_of, ALL, 5, 0},
    {"silu", silu_of, -87, 3.5e38, 6, 1e-36},
    {"gelu", gelu_of, -1, 3.5e38, 5, 1e-6},
    {"gelu_tanh", gelu_tanh_of, -1, 3.5e38, 6, 1e-6},
    {"softplus", softplus_of, ALL, 5, 0},
    {"rsqrt", rsqrt_of, ALL, 1.5, 0},
    {"relu", relu_of, ALL, 0, 0},
    {"tanh_slope", tanh_slope_of, -1, 1, 1e9, 2e-6},
    {"sigmoid_slope", sigmoid_slope_of, 0, 1, 1e9, 2e-6},
    {"silu_slope", silu_slope_of, 1, 0, 0, 2e-6},
    {"gelu_slope", gelu_slope_of, 1, 0, 0, 2e-6},
    {"gelu_tanh_slope", gelu_tanh_slope_of, 1, 0, 0, 2e-6},
    {"erf_slope", erf_slope_of, 1, 0, 0, 2e-6},
};

enum { NUMBERS = 12000 };

/* Floats of all magnitudes, and those where functions bend. */
static float number(int i) {
    static const float special[] = {0, -0.f, INFINITY, -INFINITY, NAN, 1, -1, 0x1p-149f, -0x1p-149f, 0x1.fffffep127f, 88.72283f, 88.72284f, 89, -87.33655f, -103.97f, -104,
                                    0.625f, 0.9277344f, 1.3120197f, -15, 200};
    if (i < (int)(sizeof special / sizeof *special)) return special[i];
    return i % 3 ? 12 * drawn() * (i % 3 == 1 ? 1 : 9) : float_of(draw() ^ draw() << 9);
}

static void test_function(int a, const math_case *c, bool perturb) {
    launch l = {.perturb = perturb};
    float *x = buffer(&l, "x", NUMBERS * 4, SIM_READ), *y = buffer(&l, "y", NUMBERS * 4, SIM_WRITE);
    char entry[40];
    double worst = 0, far = 0;
    float at = 0, far_at = 0;
    whole(&l, NUMBERS);
    for (int i = 0; i < NUMBERS; i++) x[i] = number(i);
    snprintf(entry, sizeof entry, "of_%s", c->name);
    run(&l, a, entry, (NUMBERS + 255) / 256, 1, 256, (uint64_t)a);
    for (int i = 0; i < NUMBERS; i++) {
        bool inside = x[i] >= c->low && x[i] <= c->high;
        double right = rounded(c->of(x[i]), f32);
        if (c->ulps == 1e9 && !inside) continue; /* no argument of it */
        if (isnan(right) || isinf(right) || isinf(y[i])) {
            if (!same(y[i], right) && !(isinf(y[i]) && fabs(c->of(x[i])) > 0x1.fffff0p127)) worst = INFINITY, at = x[i];
            continue;
        }
        double off = fabs(y[i] - c->of(x[i])), of_ulps = off / unit(c->of(x[i]), f32);
        if (inside && !(of_ulps <= worst) && c->ulps < 1e9) worst = of_ulps, at = x[i];
        if ((!inside || c->ulps == 1e9) && !(off <= far)) far = off, far_at = x[i];
    }
    if (!(worst <= c->ulps) || !(far <= c->absolute))
        printf("%s for %s%s: %.2f ulp off at %.9g, %.3g at %.9g\n", c->name, architectures[a], perturb ? ", perturbed" : "", worst, at, far, far_at);
    CHECK(worst <= c->ulps && far <= c->absolute);
    release(&l);
}

static void test_uniform(int a) {
    launch l = {0};
    uint64_t *index = buffer(&l, "index", NUMBERS * 8, SIM_READ), seed = 0x123456789abcdef;
    float *y = buffer(&l, "y", NUMBERS * 4, SIM_WRITE);
    int wrong = 0;
    wide(&l, (int64_t)seed), whole(&l, 3), whole(&l, 77), whole(&l, NUMBERS);
    for (int i = 0; i < NUMBERS; i++) index[i] = i % 2 ? (uint64_t)i : (uint64_t)draw() << 20 ^ draw();
    run(&l, a, "uniform", (NUMBERS + 255) / 256, 1, 256, 1);
    for (int i = 0; i < NUMBERS; i++) wrong += y[i] != dtm_random_uniform(seed, dtm_random_stream(3, 77), index[i]);
    CHECK(wrong == 0);
    release(&l);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    root = argv[1];
    dtm_cuda *cuda = open_nvrtc(argv[2]);
    if (!cuda) return 77;
    jit = open_jit(cuda);
    load("functions.cu");
    for (int a = 0; a < ARCHITECTURES; a++) {
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) test_function(a, &cases[c], a == 1);
        test_uniform(a);
        sim_module_free(modules[a]);
    }
    dtm_jit_destroy(jit);
    dtm_cuda_destroy(cuda);
    printf("%d checks, %d failed\n", checks, failures);
    return failures > 0;
}
