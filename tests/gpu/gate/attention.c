/* Attention's templates on the simulated GPU against plain C in double precision:
 *     attention SOURCE_ROOT PACKAGES
 * Edges of tiles, masks, windows, offsets of parts, groups of heads, layouts, rows without keys, large numbers and NaN; each twice in
 * other orders of blocks and warps, with the same bits. Skipped (77) without NVRTC. */
#include "tests/gpu/gate/simulated.h"

typedef struct strides {
    int64_t b, s, h, w;
} strides;

/* As attention.cuh. */
typedef struct sizes {
    int64_t batch, heads, kv_heads, queries, keys, width, v_width;
    int64_t causal, window;
    int64_t ratio, head_offset, kv_offset;
    int64_t queries_total, keys_total, q_offset, k_offset;
    strides q, k, v, o, lse, d_o, dq, dk, dv;
    int64_t scale; /* bits of f32 */
} sizes;

enum { Q, K, V, O, LSE, DO, DQ, DK, DV, TENSORS };
static const char *const names[] = {"q", "k", "v", "o", "lse", "do", "dq", "dk", "dv"};

static strides *strides_of(sizes *z, int tensor) {
    strides *const all[] = {&z->q, &z->k, &z->v, &z->o, &z->lse, &z->d_o, &z->dq, &z->dk, &z->dv};
    return all[tensor];
}

/* [b, s, h, w] dense, [b, h, w, s], or [h, b, s, w] with a gap behind each row; elements that it spans. */
static int64_t lay(sizes *z, int tensor, int order) {
    bool of_keys = tensor == K || tensor == V || tensor == DK || tensor == DV, of_values = tensor == V || tensor == O || tensor == DO || tensor == DV;
    int64_t heads = of_keys ? z->kv_heads : z->heads, length = of_keys ? z->keys : z->queries, w = tensor == LSE ? 1 : of_values ? z->v_width : z->width;
    int64_t row = order == 2 ? w + 8 : w;
    *strides_of(z, tensor) = order == 1   ? (strides){heads * w * length, 1, w * length, length}
                             : order == 2 ? (strides){length * row, row, z->batch * length * row, 1}
                                          : (strides){length * heads * row, heads * row, row, 1};
    return z->batch * heads * length * row;
}

static int64_t place(sizes *z, int tensor, int64_t b, int64_t s, int64_t h, int64_t w) {
    strides *t = strides_of(z, tensor);
    return b * t->b + s * t->s + h * t->h + w * t->w;
}

typedef struct result {
    double *at[TENSORS];
} result;

static bool sees(const sizes *z, int64_t i, int64_t j) {
    int64_t position = i + z->q_offset + z->keys_total - z->queries_total;
    if (!z->causal && z->window <= 0) return true;
    return j + z->k_offset <= position && (z->window <= 0 || j + z->k_offset > position - z->window);
}

/* One head of one element of the batch, by definition; at[..] of the inputs and of `o`, lse are those of the storage. */
static void attend(sizes *z, const result *in, result *out, int64_t b, int64_t h, float scale, bool backward) {
    int64_t g = (h + z->head_offset) / z->ratio - z->kv_offset;
    double *p = zeroed(z->keys * 8);
    for (int64_t i = 0; i < z->queries; i++) {
        double most = -INFINITY, sum = 0, delta = 0;
        bool nan = false;
        for (int64_t j = 0; j < z->keys; j++) {
            double s = 0;
            for (int64_t w = 0; w < z->width; w++) s += in->at[Q][place(z, Q, b, i, h, w)] * in->at[K][place(z, K, b, j, g, w)];
            p[j] = sees(z, i, j) ? s * scale : -INFINITY;
            nan |= isnan(p[j]);
            most = fmax(most, p[j]);
        }
        if (most == -INFINITY) most = 0;
        for (int64_t j = 0; j < z->keys; j++) sum += exp(p[j] - most);
        double lse = nan ? NAN : sum == 0 ? -INFINITY : most + log(sum);
        for (int64_t w = 0; w < z->v_width; w++) {
            double o = 0;
            for (int64_t j = 0; j < z->keys && sum != 0; j++) o += sees(z, i, j) ? exp(p[j] - most) / sum * in->at[V][place(z, V, b, j, g, w)] : 0;
            out->at[O][place(z, O, b, i, h, w)] = o;
            delta += in->at[O][place(z, O, b, i, h, w)] * in->at[DO][place(z, DO, b, i, h, w)];
        }
        out->at[LSE][place(z, LSE, b, i, h, 0)] = lse;
        for (int64_t j = 0; j < z->keys && backward; j++) {
            double e = sees(z, i, j) ? exp(p[j] - lse) : 0, d = 0;
            for (int64_t w = 0; w < z->v_width; w++) d += in->at[DO][place(z, DO, b, i, h, w)] * in->at[V][place(z, V, b, j, g, w)];
            double ds = scale * e * (d - delta);
            for (int64_t w = 0; w < z->v_width; w++) out->at[DV][place(z, DV, b, j, g, w)] += e * in->at[DO][place(z, DO, b, i, h, w)];
            for (int64_t w = 0; w < z->width; w++) {
                out->at[DK][place(z, DK, b, j, g, w)] += ds * in->at[Q][place(z, Q, b, i, h, w)];
                out->at[DQ][place(z, DQ, b, i, h, w)] += ds * in->at[K][place(z, K, b, j, g, w)];
            }
        }
    }
    free(p);
}

/* ---- a case ---- */

typedef struct entry {
    const char *name;
    format f;
    int threads, width, v_width; /* widths: as the template has them, by the tensor cores; 0: in f32 */
    double tolerance;
} entry;
enum { TILE = 64 };

/* As attention_halves.cuh. */
static uint32_t shared_of(const entry *e, bool forward) {
    int wider = e->width > e->v_width ? e->width : e->v_width, step = wider > 128 ? 32 : 64, back = wider > 64 ? 32 : 64, both = e->width + e->v_width + 16;
    if (!e->width) return 0;
    return (uint32_t)(forward ? (TILE * (e->width + 8) + 2 * step * both) * 2 : (TILE + 2 * back) * both * 2);
}

typedef struct kept {
    void *at[TENSORS];
    int64_t count[TENSORS];
    bool gaps[TENSORS];
} kept;

static size_t bytes_of(const entry *e, int tensor, int64_t count) { return (size_t)count * (tensor == LSE ? 4 : size_of(e->f)); }

/* Runs an entry on memory of its own that is like `k`, and writes back what it is to write; the grid in blocks. */
static void run_entry(int a, const entry *e, const char *part, sizes *z, kept *k, float *delta, unsigned writes, bool writes_delta, int64_t blocks, int order) {
    launch l = {.order = order, .perturb = order == 2};
    void *at[TENSORS], *scratch = NULL;
    int64_t deltas = z->batch * z->heads * z->queries, *none = NULL;
    char name[80];
    for (int t = 0; t < TENSORS; t++) {
        int direction = writes >> t & 1 ? (k->gaps[t] ? SIM_READ | SIM_WRITE : SIM_WRITE) : SIM_READ;
        at[t] = memory(&l, names[t], bytes_of(e, t, k->count[t]), direction);
        memcpy(at[t], k->at[t], bytes_of(e, t, k->count[t]));
    }
    scratch = memory(&l, "delta", (size_t)deltas * 4, writes_delta ? SIM_WRITE : SIM_READ);
    memcpy(scratch, delta, (size_t)deltas * 4);
    tuple(&l, at, TENSORS, scratch, (const int64_t *)z, sizeof *z / 8);
    param(&l, &none, sizeof none);
    mark(&l);
    snprintf(name, sizeof name, "%s_%s", e->name, part);
    l.shared = strcmp(part, "delta") != 0 ? shared_of(e, !strcmp(part, "forward")) : 0;
    run(&l, a, name, (int)blocks, 1, e->threads, (uint64_t)(order + 1));
    for (int t = 0; t < TENSORS; t++)
        if (writes >> t & 1) memcpy(k->at[t], at[t], bytes_of(e, t, k->count[t]));
    if (writes_delta) memcpy(delta, scratch, (size_t)deltas * 4);
    release(&l);
}

static int64_t tiles(int64_t n, int tile) { return (n + tile - 1) / tile; }

static void run_all(int a, const entry *e, sizes *z, kept *k, bool backward, int order) {
    int64_t rows = z->batch * z->heads, most = z->width > z->v_width ? z->width : z->v_width;
    int64_t shares = !e->width ? tiles(most, 128) : e->width > 128 || e->v_width > 128 ? 2 : 1;
    float *delta = zeroed(rows * z->queries * 4);
    run_entry(a, e, "forward", z, k, delta, 1 << O | 1 << LSE, false, rows * tiles(z->queries, TILE), order);
    if (backward) {
        run_entry(a, e, "delta", z, k, delta, 0, true, tiles(rows * z->queries, e->threads / 32), order);
        run_entry(a, e, "keys", z, k, delta, 1 << DK | 1 << DV, false, z->batch * z->kv_heads * tiles(z->keys, TILE) * shares, order);
        run_entry(a, e, "queries", z, k, delta, 1 << DQ, false, rows * tiles(z->queries, TILE), order);
    }
    free(delta);
}

/* slack: what scores as large as they are leave of a sum's precision. */
static void compare(int a, const entry *e, sizes *z, const kept *k, int tensor, const double *right, double slack) {
    bool of_keys = tensor == K || tensor == V || tensor == DK || tensor == DV, of_values = tensor == V || tensor == O || tensor == DO || tensor == DV;
    int64_t heads = of_keys ? z->kv_heads : z->heads, length = of_keys ? z->keys : z->queries, width = tensor == LSE ? 1 : of_values ? z->v_width : z->width;
    double most = 0, largest = 0;
    int wrong = 0;
    for (int64_t i = 0; i < k->count[tensor]; i++)
        if (isfinite(right[i])) largest = fmax(largest, fabs(right[i]));
    for (int64_t b = 0; b < z->batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t s = 0; s < length; s++)
                for (int64_t w = 0; w < width; w++) {
                    int64_t at = place(z, tensor, b, s, h, w);
                    double x = get(k->at[tensor], at, tensor == LSE ? f32 : e->f);
                    double allowed = tensor == LSE ? 2e-5 * (1 + fabs(right[at])) : e->tolerance * (fabs(right[at]) + largest) + slack;
                    if (!isfinite(right[at])) allowed = 0; /* else anything is near to an infinity */
                    if (!near(x, right[at], allowed) && wrong++ < 3)
                        printf("%s %s %s [%d %d %d %d]: %g, not %g\n", e->name, architectures[a], names[tensor], (int)b, (int)s, (int)h, (int)w, x, right[at]);
                    if (isfinite(right[at])) most = fmax(most, fabs(x - right[at]));
                }
    CHECK(wrong == 0);
}

typedef enum special { ORDINARY, LARGE, NOT_NUMBERS } special;

static void test_case(int a, const entry *e, sizes z, const int orders[3], float scale, special kind, bool backward) {
    kept k = {0}, again = {0};
    result in = {0}, out = {0};
    memcpy(&z.scale, &scale, 4);
    for (int t = 0; t < TENSORS; t++) {
        k.count[t] = again.count[t] = lay(&z, t, t == LSE ? 0 : orders[t % 3]);
        k.gaps[t] = again.gaps[t] = t != LSE && orders[t % 3] == 2;
        k.at[t] = zeroed((int64_t)bytes_of(e, t, k.count[t])), again.at[t] = zeroed((int64_t)bytes_of(e, t, k.count[t]));
        in.at[t] = zeroed(k.count[t] * 8), out.at[t] = zeroed(k.count[t] * 8);
        for (int64_t i = 0; i < k.count[t] && t != LSE && t != O && t < DQ; i++) put(k.at[t], i, (kind == LARGE && t == Q ? 300 : 1) * drawn(), e->f);
    }
    if (kind == NOT_NUMBERS) put(k.at[Q], place(&z, Q, 0, 3, 0, 1), NAN, e->f), put(k.at[K], place(&z, K, 0, z.keys - 2, 0, 0), NAN, e->f);
    for (int t = 0; t < TENSORS; t++) memcpy(again.at[t], k.at[t], bytes_of(e, t, k.count[t]));
    run_all(a, e, &z, &k, backward, 0);
    run_all(a, e, &z, &again, backward, 1);
    for (int t = 0; t < TENSORS; t++) CHECK(kind == NOT_NUMBERS || !memcmp(k.at[t], again.at[t], bytes_of(e, t, k.count[t])));
    if (kind == LARGE) run_all(a, e, &z, &k, backward, 2); /* and approximations off by what they may be */
    for (int t = 0; t < TENSORS; t++)
        for (int64_t i = 0; i < k.count[t]; i++) in.at[t][i] = get(k.at[t], i, t == LSE ? f32 : e->f);
    for (int64_t b = 0; b < z.batch; b++)
        for (int64_t h = 0; h < z.heads; h++) attend(&z, &in, &out, b, h, scale, backward);
    compare(a, e, &z, &k, O, out.at[O], kind == LARGE ? 1e-3 : 1e-6);
    compare(a, e, &z, &k, LSE, out.at[LSE], 0);
    for (int t = DQ; t <= DV && backward; t++) compare(a, e, &z, &k, t, out.at[t], kind == LARGE ? (t == DV ? 2e-3 : 3e-2) : 1e-6);
    for (int t = 0; t < TENSORS; t++) free(k.at[t]), free(again.at[t]), free(in.at[t]), free(out.at[t]);
}

static sizes plain(int64_t batch, int64_t heads, int64_t ratio, int64_t queries, int64_t keys, int64_t width, int64_t v_width, bool causal) {
    return (sizes){.batch = batch, .heads = heads, .kv_heads = heads / ratio, .queries = queries, .keys = keys, .width = width, .v_width = v_width, .causal = causal,
                   .ratio = ratio, .queries_total = queries, .keys_total = keys};
}

/* Two groups of two heads, and tiles before the window; a part of keys that no query sees. */
static void test_masks(int a, const entry *e) {
    static const int dense[] = {0, 0, 0};
    sizes z = plain(1, 4, 2, 30, 100, 8, 8, true);
    z.window = 20;
    test_case(a, e, z, dense, 0.3f, ORDINARY, true);
    z = plain(1, 1, 1, 30, 40, 8, 8, true);
    z.queries_total = z.keys_total = 200, z.k_offset = 100;
    test_case(a, e, z, dense, 0.3f, ORDINARY, true);
}

static void test_entry(int a, const entry *e, int width, int v_width) {
    static const int dense[] = {0, 0, 0}, mixed[] = {2, 0, 1}, apart[] = {1, 2, 0};
    test_case(a, e, plain(1, 1, 1, 1, 1, 1, 1, false), dense, 1, ORDINARY, true);
    test_case(a, e, plain(1, 2, 2, 33, 70, width, v_width, true), mixed, 0.2f, ORDINARY, true);
    sizes z = plain(1, 1, 1, 65, 31, width < 40 ? width : 40, v_width < 33 ? v_width : 33, true); /* the first rows see no key */
    z.window = 20;
    test_case(a, e, z, apart, 0.3f, ORDINARY, true);
    test_masks(a, e);
    z = plain(2, 2, 3, 31, 40, 16, 8, true); /* heads 2 and 3 of 6, in two groups; a part of queries, against a part of keys */
    z.kv_heads = 2, z.head_offset = 2, z.queries_total = 200, z.keys_total = 230, z.q_offset = 40, z.k_offset = 50;
    test_case(a, e, z, dense, 0.3f, ORDINARY, true);
    test_case(a, e, plain(1, 1, 1, 40, 130, 24, 24, false), dense, 1, LARGE, true);
    test_case(a, e, plain(1, 1, 1, 70, 66, 16, 16, true), dense, 0.5f, NOT_NUMBERS, false);
}

/* Widths are multiples of 8, and neighbours of a row lie side by side. */
static void test_halves(int a, const entry *e, int width, int v_width) {
    static const int dense[] = {0, 0, 0}, gaps[] = {2, 0, 2};
    test_case(a, e, plain(1, 1, 1, 1, 1, 8, 8, false), dense, 1, ORDINARY, true);
    test_case(a, e, plain(1, 2, 2, 33, 150, width, v_width, true), gaps, 0.2f, ORDINARY, true);
    sizes z = plain(1, 1, 1, 65, 31, 16, 24, true); /* the first rows see no key */
    z.window = 20;
    test_case(a, e, z, gaps, 0.3f, ORDINARY, true);
    test_masks(a, e);
    z = plain(2, 2, 3, 130, 40, 16, 8, true); /* heads 2 and 3 of 6, in two groups; a part of queries, against a part of keys */
    z.kv_heads = 2, z.head_offset = 2, z.queries_total = 200, z.keys_total = 230, z.q_offset = 40, z.k_offset = 50;
    test_case(a, e, z, dense, 0.3f, ORDINARY, true);
    test_case(a, e, plain(1, 1, 1, 40, 130, 24, 24, false), dense, 1, LARGE, true);
    test_case(a, e, plain(1, 1, 1, 70, 66, 16, 16, true), dense, 0.5f, NOT_NUMBERS, false);
}

int main(int argc, char **argv) {
    const entry narrow = {"attention_narrow", f32, 256, 0, 0, 4e-6}, wide_heads = {"attention_wide", f32, 256, 0, 0, 4e-6};
    const entry halves = {"attention_bf16", bf16, 256, 0, 0, 6e-3};
    const entry narrow_bf16 = {"narrow_bf16", bf16, 128, 48, 32, 1e-2}, usual_bf16 = {"usual_bf16", bf16, 128, 128, 128, 1e-2};
    const entry odd_f16 = {"odd_f16", f16, 128, 160, 64, 2e-3}, wide_bf16 = {"wide_bf16", bf16, 128, 256, 256, 1e-2};
    if (argc < 3) return 2;
    bool quick = argc > 3 && !strcmp(argv[3], "--quick"); /* each kernel for one architecture, spread over them */
    root = argv[1];
    dtm_cuda *cuda = open_nvrtc(argv[2]);
    if (!cuda) return 77;
    jit = open_jit(cuda);
    load("attention.cu");
    for (int a = 0; a < ARCHITECTURES; a++) {
        if (!quick || a == 0) test_entry(a, &narrow, 64, 40);
        if (quick ? a == 2 : a != 1) test_entry(a, &halves, 65, 128);
        if (quick ? a == 1 : a != 2) test_entry(a, &wide_heads, 150, 256);
    }
    load("attention_halves.cu");
    for (int a = 0; a < ARCHITECTURES; a++) {
        if (!quick || a == 2) test_halves(a, &narrow_bf16, 40, 24);
        if (quick ? a == 0 : a != 1) test_halves(a, &odd_f16, 144, 64);
        if (quick ? a == 1 : a != 2) test_halves(a, &usual_bf16, 128, 120);
        if (a == 1 && !quick) test_halves(a, &wide_bf16, 256, 200);
    }
    for (int a = 0; a < ARCHITECTURES; a++) sim_module_free(modules[a]);
    dtm_jit_destroy(jit);
    dtm_cuda_destroy(cuda);
    printf("%d checks, %d failed\n", checks, failures);
    return failures > 0;
}
