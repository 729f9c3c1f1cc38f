/* The stand-in for cuBLASLt, on the streams of the one for libcuda (work.h). Products of column-major matrices in f32: each algorithm sums in
 * an order of its own, so that two choices give other bits, as with the real library. What a caller may get wrong is said on stderr:
 *
 *     shapes      of the layouts against each other, ld, counts and strides of batches, types
 *     addresses   mapped; a multiple of what was claimed to the heuristic; workspace of the size that the algorithm asked for
 *     algorithm   is of this very problem
 *     contents    nothing is read that was never written, C with beta = 0 least of all */
#include "declare.h"
#include "numbers.h"
#include "work.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT(name) __attribute__((visibility("default"))) dtm_cublas_status cublasLt##name
enum { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { EPILOGUES = DTM_CUBLAS_EPILOGUE_RELU | DTM_CUBLAS_EPILOGUE_BIAS }; /* those that it has; DEFAULT is 1 */

struct layout { int type; uint64_t rows, columns; int64_t ld; int32_t batches; int64_t stride; };
struct desc { int compute, transposed[2], epilogue, bias_type; uint64_t bias; };
struct preference { uint64_t workspace; uint32_t alignment[4]; };
struct chosen { uint64_t problem, order, workspace, alignment[4], magic; }; /* an algorithm's 64 bytes */
_Static_assert(sizeof(struct chosen) == sizeof(dtm_cublas_algorithm), "an algorithm has 64 bytes");
enum { MAGIC = 0xcb1a5 };

static size_t bytes_of(int type) { return type == DTM_CUBLAS_F32 ? 4 : 2; }
static bool has_type(int type) { return type == DTM_CUBLAS_F32 || type == DTM_CUBLAS_F16 || type == DTM_CUBLAS_BF16; }
static void *fresh(size_t size) {
    void *p = calloc(1, size ? size : 1);
    if (!p)
        abort();
    return p;
}

/* ---- descriptors ---- */

EXPORT(Create)(dtm_cublas_handle *out) { return *out = fresh(1), SUCCESS; }
EXPORT(Destroy)(dtm_cublas_handle handle) { return free(handle), SUCCESS; }
__attribute__((visibility("default"))) size_t cublasLtGetVersion(void);
__attribute__((visibility("default"))) size_t cublasLtGetVersion(void) { return 130000; }
__attribute__((visibility("default"))) const char *cublasLtGetStatusString(dtm_cublas_status status);
__attribute__((visibility("default"))) const char *cublasLtGetStatusString(dtm_cublas_status status) {
    return status == SUCCESS ? "CUBLAS_STATUS_SUCCESS" : status == INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
         : status == NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_EXECUTION_FAILED";
}
EXPORT(MatmulDescCreate)(dtm_cublas_desc *out, dtm_cublas_compute compute, dtm_cublas_type scale) {
    struct desc *d = fresh(sizeof *d);
    *d = (struct desc){.compute = compute, .epilogue = DTM_CUBLAS_EPILOGUE_DEFAULT, .bias_type = -1};
    *out = (dtm_cublas_desc)(void *)d;
    if ((compute == DTM_CUBLAS_COMPUTE_32F || compute == DTM_CUBLAS_COMPUTE_TF32) && scale == DTM_CUBLAS_F32)
        return SUCCESS;
    dtm_sim_say("cublasLtMatmulDescCreate: compute type %d with scale type %d", compute, scale);
    return INVALID_VALUE;
}
/* An attribute of that size. */
static dtm_cublas_status put(const char *call, int attribute, void *to, size_t size, const void *value, size_t given) {
    if (size != given) {
        dtm_sim_say("%s: attribute %d of %zu bytes, it has %zu", call, attribute, given, size);
        return INVALID_VALUE;
    }
    memcpy(to, value, size);
    return SUCCESS;
}
static dtm_cublas_status unknown(const char *call, int attribute) {
    dtm_sim_say("%s: attribute %d, which the stand-in does not know", call, attribute);
    return INVALID_VALUE;
}
EXPORT(MatmulDescSetAttribute)(dtm_cublas_desc desc, dtm_cublas_desc_attribute attribute, const void *value, size_t size) {
    struct desc *d = (struct desc *)(void *)desc;
    int32_t ignored;
    static const char call[] = "cublasLtMatmulDescSetAttribute";
    switch (attribute) {
    case DTM_CUBLAS_DESC_TRANSPOSE_A: case DTM_CUBLAS_DESC_TRANSPOSE_B:
        ignored = size == 4 ? *(const int32_t *)value ^ dtm_sim_mutated("transpose", "a product") : 0;
        return put(call, attribute, &d->transposed[attribute == DTM_CUBLAS_DESC_TRANSPOSE_B], 4, &ignored, size);
    case DTM_CUBLAS_DESC_EPILOGUE: return put(call, attribute, &d->epilogue, 4, value, size);
    case DTM_CUBLAS_DESC_BIAS: return put(call, attribute, &d->bias, 8, value, size);
    case DTM_CUBLAS_DESC_BIAS_TYPE: return put(call, attribute, &d->bias_type, 4, value, size);
    case DTM_CUBLAS_DESC_MULTIPROCESSORS: return put(call, attribute, &ignored, 4, value, size);
    }
    return unknown(call, attribute);
}
EXPORT(MatmulDescDestroy)(dtm_cublas_desc desc) { return free(desc), SUCCESS; }
EXPORT(MatrixLayoutCreate)(dtm_cublas_layout *out, dtm_cublas_type type, uint64_t rows, uint64_t columns, int64_t ld) {
    struct layout *l = fresh(sizeof *l);
    bool turned = rows != columns && dtm_sim_mutated("sides", "a product");
    *l = (struct layout){type, turned ? columns : rows, turned ? rows : columns, dtm_sim_mutated("ld", "a product") ? ld + 1 : ld, 1, 0};
    *out = (dtm_cublas_layout)(void *)l;
    return SUCCESS;
}
EXPORT(MatrixLayoutSetAttribute)(dtm_cublas_layout layout, dtm_cublas_layout_attribute attribute, const void *value, size_t size) {
    struct layout *l = (struct layout *)(void *)layout;
    static const char call[] = "cublasLtMatrixLayoutSetAttribute";
    switch (attribute) {
    case DTM_CUBLAS_LAYOUT_BATCHES: return put(call, attribute, &l->batches, 4, value, size);
    case DTM_CUBLAS_LAYOUT_STRIDE: {
        dtm_cublas_status status = put(call, attribute, &l->stride, 8, value, size);
        l->stride += dtm_sim_mutated("stride", "a product") ? l->ld : 0;
        return status;
    }
    }
    return unknown(call, attribute);
}
EXPORT(MatrixLayoutDestroy)(dtm_cublas_layout layout) { return free(layout), SUCCESS; }
EXPORT(MatmulPreferenceCreate)(dtm_cublas_preference *out) {
    struct preference *p = fresh(sizeof *p);
    *p = (struct preference){0, {256, 256, 256, 256}};
    *out = (dtm_cublas_preference)(void *)p;
    return SUCCESS;
}
EXPORT(MatmulPreferenceSetAttribute)(dtm_cublas_preference preference, dtm_cublas_preference_attribute attribute, const void *value, size_t size) {
    struct preference *p = (struct preference *)(void *)preference;
    static const char call[] = "cublasLtMatmulPreferenceSetAttribute";
    if (attribute == DTM_CUBLAS_PREFER_WORKSPACE)
        return put(call, attribute, &p->workspace, 8, value, size);
    if (attribute >= DTM_CUBLAS_PREFER_ALIGNMENT_A && attribute <= DTM_CUBLAS_PREFER_ALIGNMENT_D) {
        uint32_t lost; /* 256 is then claimed */
        return put(call, attribute, dtm_sim_mutated("claim", "a product") ? &lost : &p->alignment[attribute - DTM_CUBLAS_PREFER_ALIGNMENT_A], 4, value, size);
    }
    return unknown(call, attribute);
}
EXPORT(MatmulPreferenceDestroy)(dtm_cublas_preference preference) { return free(preference), SUCCESS; }

/* ---- a problem ---- */

struct problem { struct desc desc; struct layout a, b, c, d; };
static struct problem problem_of(dtm_cublas_desc desc, dtm_cublas_layout a, dtm_cublas_layout b, dtm_cublas_layout c, dtm_cublas_layout d) {
    struct problem p;
    memset(&p, 0, sizeof p); /* it is hashed */
    const void *from[] = {a, b, c, d};
    struct layout *to[] = {&p.a, &p.b, &p.c, &p.d};
    memcpy(&p.desc, desc, sizeof p.desc);
    for (int i = 0; i < 4; i++)
        memcpy(to[i], from[i], sizeof *to[i]);
    return p;
}
static uint64_t hash_of(const struct problem *p) {
    struct problem q = *p;
    uint64_t h = 1;
    q.desc.bias = 0;
    for (size_t i = 0; i + 4 <= sizeof q; i += 4) {
        uint32_t x;
        memcpy(&x, (const char *)&q + i, 4);
        h = (h ^ x) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 32;
    }
    return h;
}
/* Why it is none, or NULL. */
static const char *wrong(const struct problem *p) {
    const struct layout *all[] = {&p->a, &p->b, &p->c, &p->d};
    uint64_t m = p->d.rows, n = p->d.columns, k = p->desc.transposed[0] ? p->a.rows : p->a.columns;
    for (int i = 0; i < 4; i++) {
        const struct layout *l = all[i];
        if (!has_type(l->type))
            return "a type that it does not have";
        if (l->ld < (int64_t)l->rows || !l->rows || !l->columns)
            return "a leading dimension below the rows, or an empty matrix";
        if (l->batches != p->d.batches || l->batches < 1)
            return "counts of batches that differ";
        bool apart = l->stride >= l->ld * (int64_t)(l->columns - 1) + (int64_t)l->rows;
        bool between = l->stride >= (int64_t)l->rows && l->stride * (l->batches - 1) + (int64_t)l->rows <= l->ld; /* column beside column */
        if (l->batches > 1 && i >= 2 && !apart && !between)
            return "batches of the result that overlap";
        if (l->stride < 0)
            return "a negative stride of batches";
    }
    if ((p->desc.transposed[0] ? p->a.columns : p->a.rows) != m)
        return "rows of A and D that differ";
    if ((p->desc.transposed[1] ? p->b.rows : p->b.columns) != n)
        return "columns of B and D that differ";
    if ((p->desc.transposed[1] ? p->b.columns : p->b.rows) != k)
        return "A and B that do not meet in k";
    if (p->c.rows != m || p->c.columns != n)
        return "C and D of two shapes";
    return NULL;
}
static bool supported(const struct problem *p) {
    int a = p->a.type, d = p->d.type;
    return a == p->b.type && p->c.type == d && (d == a || d == DTM_CUBLAS_F32) &&
           (p->desc.compute != DTM_CUBLAS_COMPUTE_TF32 || a == DTM_CUBLAS_F32) &&
           (p->desc.epilogue == DTM_CUBLAS_EPILOGUE_DEFAULT || !(p->desc.epilogue & ~EPILOGUES)) && p->desc.transposed[0] <= 1 &&
           p->desc.transposed[1] <= 1;
}
/* A seed of its own: which algorithm runs is part of what gives the same bits. */
static uint64_t seed(void) {
    const char *text = getenv("DTM_SIM_HEURISTIC");
    return text ? strtoull(text, NULL, 0) : 1;
}
/* Up to three; by seed in another order, and for one problem in eight none, but with the first seed. */
EXPORT(MatmulAlgoGetHeuristic)(dtm_cublas_handle handle, dtm_cublas_desc desc, dtm_cublas_layout a, dtm_cublas_layout b, dtm_cublas_layout c,
                               dtm_cublas_layout d, dtm_cublas_preference preference, int wanted, dtm_cublas_heuristic *out, int *count) {
    const struct preference *pref = (const struct preference *)(void *)preference;
    struct problem p = problem_of(desc, a, b, c, d);
    const char *why = wrong(&p);
    *count = 0;
    if (!handle || wanted < 1 || why) {
        if (why)
            dtm_sim_say("cublasLtMatmulAlgoGetHeuristic: %s", why);
        return INVALID_VALUE;
    }
    uint64_t hash = hash_of(&p), lot = (hash ^ seed() * UINT64_C(0xbf58476d1ce4e5b9)) * UINT64_C(0x94d049bb133111eb) >> 32;
    if (!supported(&p) || (seed() != 1 && lot % 8 == 0))
        return NOT_SUPPORTED;
    for (uint64_t i = 0; i < 3 && *count < wanted; i++) {
        uint64_t order = (lot / 8 + i) % 3, workspace = order == 2 ? 65536 : 0;
        if (workspace > pref->workspace)
            continue;
        struct chosen it = {.problem = hash, .order = order, .workspace = workspace, .magic = MAGIC};
        for (int k = 0; k < 4; k++)
            it.alignment[k] = pref->alignment[k];
        out[*count] = (dtm_cublas_heuristic){.workspace_bytes = workspace, .state = SUCCESS, .waves = 1};
        memcpy(&out[(*count)++].algorithm, &it, sizeof it);
    }
    return SUCCESS;
}
EXPORT(MatmulAlgoCheck)(dtm_cublas_handle handle, dtm_cublas_desc desc, dtm_cublas_layout a, dtm_cublas_layout b, dtm_cublas_layout c,
                        dtm_cublas_layout d, const dtm_cublas_algorithm *algorithm, dtm_cublas_heuristic *out) {
    struct problem p = problem_of(desc, a, b, c, d);
    struct chosen it;
    memcpy(&it, algorithm, sizeof it);
    if (!handle || wrong(&p) || it.magic != MAGIC || it.problem != hash_of(&p))
        return NOT_SUPPORTED;
    *out = (dtm_cublas_heuristic){.algorithm = *algorithm, .workspace_bytes = it.workspace, .state = SUCCESS, .waves = 1};
    return SUCCESS;
}

/* ---- a product ---- */

struct product { struct problem p; struct chosen how; float alpha, beta; uint64_t a, b, c, d; };

static float number(int type, const char *at) {
    uint32_t bits = 0;
    float x;
    if (type == DTM_CUBLAS_F32)
        return memcpy(&x, at, 4), x;
    memcpy(&bits, at, 2);
    return type == DTM_CUBLAS_F16 ? f16_value(bits) : bf16_value(bits);
}
static void put_number(int type, char *at, float x) {
    if (type == DTM_CUBLAS_F32) {
        memcpy(at, &x, 4);
        return;
    }
    uint16_t bits = (uint16_t)(type == DTM_CUBLAS_F16 ? f16_nearest(x) : bf16_nearest(x));
    memcpy(at, &bits, 2);
}
static float as_tf32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7f800000) != 0x7f800000)
        bits = (bits + 0x1000) & 0xffffe000;
    memcpy(&x, &bits, 4);
    return x;
}
static uint64_t extent(const struct layout *l) {
    return ((uint64_t)(l->batches - 1) * (uint64_t)l->stride + (l->columns - 1) * (uint64_t)l->ld + l->rows) * bytes_of(l->type);
}
static uint64_t column(const struct layout *l, uint64_t base, int batch, uint64_t c) {
    return base + ((uint64_t)batch * (uint64_t)l->stride + c * (uint64_t)l->ld) * bytes_of(l->type);
}
/* Whether all that is read was written. */
static bool defined(const char *name, const struct layout *l, uint64_t base) {
    size_t size = l->rows * bytes_of(l->type);
    for (int b = 0; b < l->batches; b++)
        for (uint64_t c = 0; c < l->columns; c++)
            if (dtm_sim_defined(column(l, base, b, c), size) < size) {
                dtm_sim_say("cublasLtMatmul: reads column %llu of %s in batch %d, which was not all written", (unsigned long long)c, name, b);
                return false;
            }
    return true;
}
/* op(X) with its inner dimension last, [outer][inner], or the other way round, as floats. */
static float *widened(const struct product *it, const struct layout *l, uint64_t base, int batch, bool transposed) {
    float *out = fresh(l->rows * l->columns * sizeof *out);
    const char *at = dtm_sim_host(column(l, base, batch, 0), ((l->columns - 1) * (uint64_t)l->ld + l->rows) * bytes_of(l->type));
    for (uint64_t c = 0; c < l->columns; c++)
        for (uint64_t r = 0; r < l->rows; r++) {
            float x = number(l->type, at + (c * (uint64_t)l->ld + r) * bytes_of(l->type));
            out[transposed ? r * l->columns + c : c * l->rows + r] = it->p.desc.compute == DTM_CUBLAS_COMPUTE_TF32 ? as_tf32(x) : x;
        }
    return out;
}
/* sum[m] of a[k][m] b[k] over k from, to; downwards if from > to. */
static void sum_over(float *sum, const float *a, const float *b, uint64_t m, uint64_t from, uint64_t to) {
    memset(sum, 0, m * sizeof *sum);
    for (uint64_t i = from; i != to; i += from < to ? 1 : UINT64_MAX) {
        uint64_t k = from < to ? i : i - 1;
        float x = b[k];
        const float *row = a + k * m;
        for (uint64_t r = 0; r < m; r++)
            sum[r] += row[r] * x;
    }
}
static void finish(const struct product *it, int batch, uint64_t c, const float *sum) {
    const struct problem *p = &it->p;
    size_t size = bytes_of(p->d.type), bias_size = bytes_of(p->desc.bias_type < 0 ? p->d.type : p->desc.bias_type);
    char *to = dtm_sim_host(column(&p->d, it->d, batch, c), p->d.rows * size);
    const char *from = it->beta != 0 ? dtm_sim_host(column(&p->c, it->c, batch, c), p->d.rows * size) : NULL;
    bool biased = p->desc.epilogue & DTM_CUBLAS_EPILOGUE_BIAS, relu = p->desc.epilogue & DTM_CUBLAS_EPILOGUE_RELU;
    const char *bias = biased ? dtm_sim_host(p->desc.bias, p->d.rows * bias_size) : NULL;
    for (uint64_t r = 0; r < p->d.rows; r++) {
        float x = it->alpha * sum[r];
        if (from)
            x += it->beta * number(p->c.type, from + r * size);
        if (bias)
            x += number(p->desc.bias_type < 0 ? p->d.type : p->desc.bias_type, bias + r * bias_size);
        if (relu)
            x = x < 0 ? 0 : x; /* NaN stays */
        put_number(p->d.type, to + r * size, x);
    }
}
static int run(void *state, bool idle) {
    const struct product *it = state;
    const struct problem *p = &it->p;
    uint64_t m = p->d.rows, n = p->d.columns, k = p->desc.transposed[0] ? p->a.rows : p->a.columns;
    (void)idle;
    if (!defined("A", &p->a, it->a) || !defined("B", &p->b, it->b) || (it->beta != 0 && !defined("C", &p->c, it->c)))
        return DTM_CU_ILLEGAL_ADDRESS;
    float *sum = fresh(m * sizeof *sum), *other = fresh(m * sizeof *other);
    for (int batch = 0; batch < p->d.batches; batch++) {
        float *a = widened(it, &p->a, it->a, batch, p->desc.transposed[0]), *b = widened(it, &p->b, it->b, batch, p->desc.transposed[1]);
        for (uint64_t c = 0; c < n; c++) {
            const float *x = b + c * k;
            if (it->how.order == 1) {
                sum_over(sum, a, x, m, k, 0);
            } else if (it->how.order == 2) { /* in two parts, one of them in the workspace */
                sum_over(sum, a, x, m, 0, k / 2), sum_over(other, a, x, m, k / 2, k);
                for (uint64_t r = 0; r < m; r++)
                    sum[r] += other[r];
            } else {
                sum_over(sum, a, x, m, 0, k);
            }
            finish(it, batch, c, sum);
        }
        free(a), free(b);
    }
    free(sum), free(other);
    for (int batch = 0; batch < p->d.batches; batch++)
        for (uint64_t c = 0; c < n; c++)
            dtm_sim_define(column(&p->d, it->d, batch, c), m * bytes_of(p->d.type), true);
    return 0;
}
static void *begin(void *state) { return state; }

/* Whether an address is what the heuristic was told. */
static const char *unaligned(const struct product *it) {
    const struct layout *l[] = {&it->p.a, &it->p.b, &it->p.c, &it->p.d};
    const uint64_t at[] = {it->a, it->b, it->c, it->d};
    static const char *const names[] = {"A", "B", "C", "D"};
    for (int i = 0; i < 4; i++) {
        uint64_t stride = l[i]->batches > 1 ? (uint64_t)l[i]->stride * bytes_of(l[i]->type) : 0;
        if ((i != 2 || it->beta != 0) && ((at[i] | stride) % it->how.alignment[i] || at[i] % bytes_of(l[i]->type)))
            return names[i];
    }
    return NULL;
}
EXPORT(Matmul)(dtm_cublas_handle handle, dtm_cublas_desc desc, const void *alpha, const void *a, dtm_cublas_layout a_layout, const void *b,
               dtm_cublas_layout b_layout, const void *beta, const void *c, dtm_cublas_layout c_layout, void *d, dtm_cublas_layout d_layout,
               const dtm_cublas_algorithm *algorithm, void *workspace, size_t workspace_bytes, dtm_cu_stream stream) {
    struct product *it = fresh(sizeof *it);
    it->p = problem_of(desc, a_layout, b_layout, c_layout, d_layout);
    it->a = (uint64_t)(uintptr_t)a, it->b = (uint64_t)(uintptr_t)b, it->c = (uint64_t)(uintptr_t)c, it->d = (uint64_t)(uintptr_t)d;
    memcpy(&it->alpha, alpha, 4), memcpy(&it->beta, beta, 4);
    if (algorithm)
        memcpy(&it->how, algorithm, sizeof it->how);
    static _Thread_local struct chosen before;
    struct chosen own = it->how;
    if (before.magic && own.problem != before.problem && dtm_sim_mutated("algorithm", "a product"))
        it->how = before;
    before = own;
    if (it->how.order < 2 && dtm_sim_mutated("order", "a product"))
        it->how.order = 1 - it->how.order;
    if (it->how.workspace && dtm_sim_mutated("workspace", "a product"))
        workspace_bytes = it->how.workspace - 1;
    if (it->beta == 0 && dtm_sim_mutated("beta", "a product"))
        it->beta = 1;
    const char *why = wrong(&it->p), *name = NULL;
    bool biased = it->p.desc.epilogue & DTM_CUBLAS_EPILOGUE_BIAS;
    if (!why && (!handle || !algorithm || it->how.magic != MAGIC))
        why = "no algorithm of a heuristic: which one runs would not be ours to say";
    if (!why && it->how.problem != hash_of(&it->p))
        why = "the algorithm of another problem";
    if (!why && (it->how.workspace > workspace_bytes || (it->how.workspace && (uintptr_t)workspace % 256)))
        why = "a workspace that is short, or no multiple of 256 bytes";
    if (!why && biased && !it->p.desc.bias)
        why = "a bias that is nowhere";
    if (!why && it->c == it->d && memcmp(&it->p.c, &it->p.d, sizeof it->p.c) != 0)
        why = "C and D in one place with two layouts";
    if (!why && (name = unaligned(it)))
        why = "an address or stride that is less aligned than was claimed";
    if (why) {
        dtm_sim_say("cublasLtMatmul: %s%s%s", why, name ? ": " : "", name ? name : "");
        free(it);
        return INVALID_VALUE;
    }
    struct sim_work_range ranges[6] = {{a, extent(&it->p.a), DTM_SIM_READ | DTM_SIM_SPARSE}, {b, extent(&it->p.b), DTM_SIM_READ | DTM_SIM_SPARSE},
                                       {d, extent(&it->p.d), DTM_SIM_WRITE | DTM_SIM_SPARSE}};
    int n = 3;
    if (it->beta != 0)
        ranges[n++] = (struct sim_work_range){c, extent(&it->p.c), DTM_SIM_READ | DTM_SIM_SPARSE};
    if (it->how.workspace)
        ranges[n++] = (struct sim_work_range){workspace, it->how.workspace, DTM_SIM_WRITE | DTM_SIM_SPARSE};
    if (biased)
        ranges[n++] = (struct sim_work_range){(void *)(uintptr_t)it->p.desc.bias,
                                              it->p.d.rows * bytes_of(it->p.desc.bias_type < 0 ? it->p.d.type : it->p.desc.bias_type), DTM_SIM_READ};
    struct sim_work work = {.name = "cublasLtMatmul", .state = it, .begin = begin, .run = run, .release = free, .ranges = ranges, .n_ranges = n};
    int error = sim_work_enqueue(stream, &work);
    if (error)
        free(it);
    return error ? EXECUTION_FAILED : SUCCESS;
}
