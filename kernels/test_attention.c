/* Attention, forward and backward, against plain loops in double precision. */
#include "kernels/test_kernels.h"

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_backward.h"

static const dtm_kernel_entry attention_forward = ENTRY(dtm_attention_forward),
                              attention_backward = ENTRY(dtm_attention_backward);

typedef struct attention_case {
    dtm_attention_sizes z;
    int64_t counts[9];
    float *t[9];
    double *want[9];
    double scale[1];
} attention_case;

/* A layout of [b, s, h, width] in one of two orders, with a gap after each row. */
static dtm_attention_strides lay(int64_t b, int64_t s, int64_t h, int64_t width, int order, int64_t gap,
                                 int64_t *count) {
    const int64_t row = width + gap;
    *count = b * s * h * row;
    if (order) return (dtm_attention_strides){s * h * row, row, s * row};
    return (dtm_attention_strides){s * h * row, h * row, row};
}

static void attention_lay(attention_case *c) {
    dtm_attention_sizes *z = &c->z;
    const int64_t b = z->batch, s = z->queries, t = z->keys, h = z->heads, g = z->kv_heads, k = z->width,
                  v = z->v_width;
    int64_t *n = c->counts;
    z->q = lay(b, s, h, k, (int)below(2), below(3), &n[DTM_ATTENTION_Q]);
    z->k = lay(b, t, g, k, (int)below(2), below(3), &n[DTM_ATTENTION_K]);
    z->v = lay(b, t, g, v, (int)below(2), below(3), &n[DTM_ATTENTION_V]);
    z->o = lay(b, s, h, v, (int)below(2), below(3), &n[DTM_ATTENTION_O]);
    z->lse = lay(b, s, h, 1, (int)below(2), 0, &n[DTM_ATTENTION_LSE]);
    z->d_o = lay(b, s, h, v, (int)below(2), below(3), &n[DTM_ATTENTION_DO]);
    z->dq = lay(b, s, h, k, (int)below(2), below(3), &n[DTM_ATTENTION_DQ]);
    z->dk = lay(b, t, g, k, (int)below(2), below(3), &n[DTM_ATTENTION_DK]);
    z->dv = lay(b, t, g, v, (int)below(2), below(3), &n[DTM_ATTENTION_DV]);
    for (int i = 0; i < 9; i++) {
        const int input = i <= DTM_ATTENTION_V || i == DTM_ATTENTION_DO;
        c->t[i] = input ? numbers(n[i]) : fresh(n[i]);
        c->want[i] = malloc((size_t)(n[i] + 1) * sizeof(double));
        for (int64_t j = 0; j < n[i]; j++) c->want[i][j] = 0;
    }
    c->scale[0] = 1.7 / sqrt((double)(k ? k : 1));
}

static void attention_free(attention_case *c) {
    for (int i = 0; i < 9; i++) free(c->t[i]), free(c->want[i]);
}

static int64_t at(dtm_attention_strides stride, int64_t b, int64_t s, int64_t h, int64_t x) {
    return b * stride.b + s * stride.s + h * stride.h + x;
}
#define AT(array, stride, b, s, h, x) (array)[at(stride, b, s, h, x)]

static int sees(const dtm_attention_sizes *z, int64_t i, int64_t j) {
    const int64_t position = z->q_offset + i + z->keys_total - z->queries_total, key = z->k_offset + j;
    if (z->causal && key > position) return 0;
    return z->window <= 0 || (key <= position && key > position - z->window);
}

/* One query row, forward and backward, by the definition. */
static void attention_row(attention_case *c, int64_t b, int64_t h, int64_t i, double *p, double *dp) {
    const dtm_attention_sizes *z = &c->z;
    const int64_t g = (h + z->head_offset) / z->ratio - z->kv_offset;
    double top = -INFINITY, sum = 0, mean = 0;
    for (int64_t j = 0; j < z->keys; j++) {
        p[j] = 0;
        for (int64_t x = 0; x < z->width; x++)
            p[j] += (double)AT(c->t[DTM_ATTENTION_Q], z->q, b, i, h, x) * AT(c->t[DTM_ATTENTION_K], z->k, b, j, g, x);
        p[j] = sees(z, i, j) ? p[j] * c->scale[0] : -INFINITY;
        if (p[j] > top) top = p[j];
    }
    for (int64_t j = 0; j < z->keys; j++) sum += p[j] = p[j] == -INFINITY ? 0 : exp(p[j] - top);
    AT(c->want[DTM_ATTENTION_LSE], z->lse, b, i, h, 0) = sum == 0 ? -INFINITY : top + log(sum);
    for (int64_t j = 0; j < z->keys; j++) {
        p[j] = sum == 0 ? 0 : p[j] / sum, dp[j] = 0;
        for (int64_t x = 0; x < z->v_width; x++) {
            const double v = AT(c->t[DTM_ATTENTION_V], z->v, b, j, g, x),
                         d = AT(c->t[DTM_ATTENTION_DO], z->d_o, b, i, h, x);
            AT(c->want[DTM_ATTENTION_O], z->o, b, i, h, x) += p[j] * v;
            AT(c->want[DTM_ATTENTION_DV], z->dv, b, j, g, x) += p[j] * d;
            dp[j] += d * v;
        }
        mean += p[j] * dp[j];
    }
    for (int64_t j = 0; j < z->keys; j++)
        for (int64_t x = 0; x < z->width; x++) {
            const double ds = p[j] * (dp[j] - mean) * c->scale[0];
            AT(c->want[DTM_ATTENTION_DQ], z->dq, b, i, h, x) += ds * AT(c->t[DTM_ATTENTION_K], z->k, b, j, g, x);
            AT(c->want[DTM_ATTENTION_DK], z->dk, b, j, g, x) += ds * AT(c->t[DTM_ATTENTION_Q], z->q, b, i, h, x);
        }
}

/* Where a kernel wrote nothing (gaps between rows) it must have left NaN: those count as equal. */
static double attention_distance(const attention_case *c, int which, dtm_attention_strides stride, int64_t s, int64_t h,
                                 int64_t width) {
    const int64_t total = c->z.batch * s * h * width;
    float *got = fresh(total);
    double *want = malloc((size_t)(total + 1) * sizeof(double));
    int64_t n = 0, numbers_left = 0;
    for (int64_t b = 0; b < c->z.batch; b++)
        for (int64_t i = 0; i < s; i++)
            for (int64_t j = 0; j < h; j++)
                for (int64_t x = 0; x < width; x++)
                    got[n] = AT(c->t[which], stride, b, i, j, x), want[n++] = AT(c->want[which], stride, b, i, j, x);
    for (int64_t i = 0; i < c->counts[which]; i++) numbers_left += c->t[which][i] == c->t[which][i];
    CHECK(numbers_left <= total, "tensor %d: %d written of %d", which, (int)numbers_left, (int)total);
    const double d = distance_over(got, want, total, 0.5); /* a single key's gradient is 0 by cancellation */
    free(got), free(want);
    return d;
}

static void test_attention_case(dtm_attention_sizes sizes) {
    attention_case c = {.z = sizes};
    attention_lay(&c);
    double *p = malloc((size_t)(2 * sizes.keys + 1) * sizeof(double));
    for (int64_t b = 0; b < sizes.batch; b++)
        for (int64_t h = 0; h < sizes.heads; h++)
            for (int64_t i = 0; i < sizes.queries; i++) attention_row(&c, b, h, i, p, p + sizes.keys);
    free(p);
    const dtm_kernel_args args = {
        .buffers = (void *const *)(void *)c.t, .sizes = (const int64_t *)&c.z, .numbers = c.scale};
    const int outs[] = {DTM_ATTENTION_O, DTM_ATTENTION_LSE},
              back_outs[] = {DTM_ATTENTION_DQ, DTM_ATTENTION_DK, DTM_ATTENTION_DV};
    run_twice(&attention_forward, args, (void **)c.t, outs, 2,
              (int64_t[]){c.counts[DTM_ATTENTION_O], c.counts[DTM_ATTENTION_LSE]});
    run_twice(&attention_backward, args, (void **)c.t, back_outs, 3, c.counts + DTM_ATTENTION_DQ);
    const dtm_attention_sizes *z = &c.z;
    const struct {
        int which;
        dtm_attention_strides stride;
        int64_t s, h, width;
    } outputs[] = {
        {DTM_ATTENTION_O, z->o, z->queries, z->heads, z->v_width},
        {DTM_ATTENTION_LSE, z->lse, z->queries, z->heads, 1},
        {DTM_ATTENTION_DQ, z->dq, z->queries, z->heads, z->width},
        {DTM_ATTENTION_DK, z->dk, z->keys, z->kv_heads, z->width},
        {DTM_ATTENTION_DV, z->dv, z->keys, z->kv_heads, z->v_width},
    };
    for (int i = 0; i < 5; i++) {
        const double d =
            attention_distance(&c, outputs[i].which, outputs[i].stride, outputs[i].s, outputs[i].h, outputs[i].width);
        CHECK(d <= 1e-5,
              "tensor %d: %g (s %d t %d h %d g %d k %d v %d causal %d window %d offsets q %d k %d h %d g %d)",
              outputs[i].which, d, (int)z->queries, (int)z->keys, (int)z->heads, (int)z->kv_heads, (int)z->width,
              (int)z->v_width, (int)z->causal, (int)z->window, (int)z->q_offset, (int)z->k_offset, (int)z->head_offset,
              (int)z->kv_offset);
    }
    attention_free(&c);
}

void test_attention(int rounds) {
    static const int64_t lengths[] = {0, 1, 3, 5, 17, 65, 130, 49, 64, 300}, widths[] = {1, 3, 5, 16, 17, 64, 65, 32};
    for (int round = 0; round < rounds; round++) {
        dtm_attention_sizes z = {.batch = below(3),
                                 .queries = lengths[below(10)],
                                 .keys = lengths[below(10)],
                                 .width = widths[below(8)],
                                 .v_width = widths[below(8)],
                                 .causal = below(2)};
        if (below(2)) z.keys = z.queries;
        if (!below(3)) z.window = 1 + below(70);
        if (z.queries * z.keys > 20000) z.batch = 1, z.width = DTM_MIN(z.width, 17), z.v_width = DTM_MIN(z.v_width, 17);
        z.ratio = 1 + below(3);
        const int64_t kv_heads = 1 + below(3), heads = kv_heads * z.ratio; /* the whole; a part of the heads is held */
        z.head_offset = below(2) ? 0 : below(heads);
        z.heads = below(2) ? heads - z.head_offset : 1 + below(heads - z.head_offset);
        z.kv_offset = below(2) ? 0 : z.head_offset / z.ratio;
        z.kv_heads = kv_heads - z.kv_offset;
        z.q_offset = below(2) ? 0 : below(40);
        z.queries_total = z.queries + z.q_offset + (below(2) ? 0 : below(40));
        z.k_offset = below(3) ? 0 : below(40);
        z.keys_total = z.keys + z.k_offset + (below(2) ? 0 : below(40));
        test_attention_case(z);
    }
}

/* Two parts of the keys merge into the whole by their lse; large scores do not overflow. */
void test_attention_extremes(void) {
    enum { S = 20, K = 8 };
    attention_case c = {.z = {.batch = 1,
                              .heads = 1,
                              .kv_heads = 1,
                              .queries = S,
                              .keys = S,
                              .width = K,
                              .v_width = K,
                              .causal = 1,
                              .ratio = 1,
                              .queries_total = S,
                              .keys_total = S}};
    attention_lay(&c);
    c.scale[0] = 3000;
    double p[2 * S];
    for (int64_t i = 0; i < S; i++) attention_row(&c, 0, 0, i, p, p + S);
    const dtm_kernel_args args = {
        .buffers = (void *const *)(void *)c.t, .sizes = (const int64_t *)&c.z, .numbers = c.scale};
    run_whole(&attention_forward, args);
    const double d = attention_distance(&c, DTM_ATTENTION_O, c.z.o, S, 1, K);
    CHECK(d <= 1e-2, "large scores: %g", d);
    c.t[DTM_ATTENTION_V][0] = NAN; /* the first key: seen by all */
    run_whole(&attention_forward, args);
    for (int64_t i = 0; i < S; i++) p[i] = AT(c.t[DTM_ATTENTION_O], c.z.o, 0, i, 0, 0);
    CHECK(p[0] != p[0], "NaN in a value is not lost");
    attention_free(&c);
}
