/* Kernels of llama3, written by dtmc; compiled once for each instruction set (DTM_ISA = v1, v3, v4). */
#include "kernels/cpu/library.h"
#include "kernels/cpu/prelude.h"
#include "kernels/cpu/random.h"
#include "kernels/cpu/sizes.h"
#include "runtime/plan.h"

#include <math.h>

#ifndef DTM_ISA
#define DTM_ISA v1
#endif
#define DTM_JOIN(a, b) a##b
#define DTM_TABLE(isa) DTM_JOIN(dtm_kernels_, isa)
enum { level_v1 = 1, level_v3 = 3, level_v4 = 4 };
#define DTM_LEVEL(isa) DTM_JOIN(level_, isa)
#define LIBRARY(name) dtm_kernel_find_at(DTM_LEVEL(DTM_ISA), name)

static void gather_0(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    int32_t *const b1 = a->buffers[1];
    float *const b2 = a->buffers[2];
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        int64_t rest = u;
        (void)rest;
        const int64_t i2 = rest % 8192;
        rest /= 8192;
        const int64_t i1 = rest;
#pragma omp simd
        for (int64_t i4 = 0; i4 < 16384; i4++) {
            const int64_t at = (i1) * 8192 + (i2) * 1, id = b1[at], row = id - z[0];
            const int held = row >= 0 && row < 16032;
            b2[(i1) * 134217728 + (i2) * 16384 + (i4) * 1] = held ? b0[held ? (row) * 16384 + (i4) * 1 : 0] : 0;
        }
        {
            const int64_t at = (i1) * 8192 + (i2) * 1;
            if (b1[at] < 0 || b1[at] >= 128256) dtm_kernel_report(a, at);
        }
    }
}
static int64_t gather_0_extent(const int64_t *z) {
    (void)z;
    return 8192;
}
static int64_t gather_0_scratch_bytes(const int64_t *z) {
    return (void)z, 0;
}

static int64_t fused_1_extent(const int64_t *z) {
    (void)z;
    return 1024;
}
static int64_t fused_1_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fused_1(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        int64_t rest = u;
        (void)rest;
        const int64_t i0 = rest;
        double r1 = 0;
        {
            float t1 = 0;
#pragma omp simd reduction(+ : t1)
            for (int64_t i1 = 0; i1 < 16384; i1++) {
                const float v0 = b0[(i0 * (16384)) + (i1)] * b0[(i0 * (16384)) + (i1)];
                t1 += v0;
            }
            r1 += t1;
        }
        const float v1 = (float)(r1 / 16384);
        const float v2 = v1 + 9.999999747378752e-06f;
        const float v3 = dtm_rsqrt(v2);
        {
#pragma omp simd
            for (int64_t i1 = 0; i1 < 16384; i1++) {
                const float v4 = b0[(i0 * (16384)) + (i1)] * v3;
                const float v5 = v4 * b1[(0) + (i1)];
                b2[(i0 * (16384)) + (i1)] = (float)v5;
            }
        }
    }
}

static int64_t rope_table_2_extent(const int64_t *z) {
    (void)z;
    return 8192;
}
static int64_t rope_table_2_scratch_bytes(const int64_t *z) {
    return (void)z, 0;
}
static void rope_table_2(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const table = a->buffers[0];
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t i = 0; i < 64; i++) {
        double frequency = pow(500000, -2.0 * (double)i / 128.0);
        const double turns = 8192 * frequency / (2 * 3.14159265358979323846);
        const double blend = (turns - 1) / (4 - 1);
        if (turns < 1) frequency /= 8;
        else if (turns <= 4) frequency = (1 - blend) * frequency / 8 + blend * frequency;
        for (int64_t p = begin; p < end; p++) {
            const double angle = (double)(0 + p) * frequency;
            table[p * 128 + i] = (float)cos(angle);
            table[p * 128 + 64 + i] = (float)sin(angle);
        }
    }
}

static dtm_rope_sizes rope_3_sizes(const int64_t *z) {
    dtm_rope_sizes s = {0};
    (void)z;
    s.batch = 1;
    s.positions = 8192;
    s.heads = 16;
    s.width = 128;
    s.part = 128;
    s.interleaved = 0;
    s.inverse = 0;
    s.x_batch = 16777216;
    s.out_batch = 16777216;
    s.x_position = 2048;
    s.out_position = 2048;
    s.x_head = 128;
    s.out_head = 128;
    return s;
}
static int64_t rope_3_extent(const int64_t *z) {
    const dtm_rope_sizes s = rope_3_sizes(z);
    return LIBRARY("dtm_rope")->extent((const int64_t *)&s);
}
static int64_t rope_3_scratch_bytes(const int64_t *z) {
    return (void)z, 0;
}
static void rope_3(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    const dtm_rope_sizes s = rope_3_sizes(a->sizes);
    dtm_kernel_args inner = *a;
    inner.sizes = (const int64_t *)&s;
    LIBRARY("dtm_rope")->run(&inner, begin, end);
}

static dtm_rope_sizes rope_4_sizes(const int64_t *z) {
    dtm_rope_sizes s = {0};
    (void)z;
    s.batch = 1;
    s.positions = 8192;
    s.heads = 1;
    s.width = 128;
    s.part = 128;
    s.interleaved = 0;
    s.inverse = 0;
    s.x_batch = 1048576;
    s.out_batch = 1048576;
    s.x_position = 128;
    s.out_position = 128;
    s.x_head = 128;
    s.out_head = 128;
    return s;
}
static int64_t rope_4_extent(const int64_t *z) {
    const dtm_rope_sizes s = rope_4_sizes(z);
    return LIBRARY("dtm_rope")->extent((const int64_t *)&s);
}
static int64_t rope_4_scratch_bytes(const int64_t *z) {
    return (void)z, 0;
}
static void rope_4(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    const dtm_rope_sizes s = rope_4_sizes(a->sizes);
    dtm_kernel_args inner = *a;
    inner.sizes = (const int64_t *)&s;
    LIBRARY("dtm_rope")->run(&inner, begin, end);
}

static dtm_attention_sizes attention_5_sizes(const int64_t *z) {
    dtm_attention_sizes s = {0};
    (void)z;
    s.batch = 1;
    s.heads = 16;
    s.kv_heads = 1;
    s.queries = 8192;
    s.keys = 8192;
    s.width = 128;
    s.v_width = 128;
    s.causal = 1;
    s.window = 0;
    s.ratio = 16;
    s.head_offset = z[0];
    s.kv_offset = z[1];
    s.queries_total = 8192;
    s.keys_total = 8192;
    s.q_offset = 0;
    s.k_offset = 0;
    s.q.b = 16777216;
    s.q.s = 2048;
    s.q.h = 128;
    s.k.b = 1048576;
    s.k.s = 128;
    s.k.h = 128;
    s.v.b = 1048576;
    s.v.s = 128;
    s.v.h = 128;
    s.o.b = 16777216;
    s.o.s = 2048;
    s.o.h = 128;
    s.lse.b = 131072;
    s.lse.s = 16;
    s.lse.h = 1;
    return s;
}
static int64_t attention_5_extent(const int64_t *z) {
    const dtm_attention_sizes s = attention_5_sizes(z);
    return 1 * LIBRARY("dtm_attention_forward")->extent((const int64_t *)&s);
}
static int64_t attention_5_scratch_bytes(const int64_t *z) {
    const dtm_attention_sizes s = attention_5_sizes(z);
    return LIBRARY("dtm_attention_forward")->scratch_bytes((const int64_t *)&s);
}
static void attention_5(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    const int64_t *const z = a->sizes;
    const dtm_attention_sizes s = attention_5_sizes(z);
    const dtm_kernel_entry *const library = LIBRARY("dtm_attention_forward");
    const int64_t each = library->extent((const int64_t *)&s);
    const double scale = 0.088388347648318433;
    for (int64_t outer = each ? begin / each : 0; outer * each < end; outer++) {
        int64_t rest = outer;
        (void)rest;
        void *at[5];
        at[0] = a->buffers[0];
        at[1] = a->buffers[1];
        at[2] = a->buffers[2];
        at[3] = a->buffers[3];
        at[4] = a->buffers[4];
        const dtm_kernel_args inner = {at, (const int64_t *)&s, &scale, a->scratch, a->error};
        const int64_t low = begin > outer * each ? begin - outer * each : 0;
        const int64_t high = end < (outer + 1) * each ? end - outer * each : each;
        library->run(&inner, low, high);
    }
}

static int64_t fused_6_extent(const int64_t *z) {
    (void)z;
    return 1024;
}
static int64_t fused_6_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fused_6(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    float *const b3 = a->buffers[3];
    (void)b3;
    float *const b4 = a->buffers[4];
    (void)b4;
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        int64_t rest = u;
        (void)rest;
        const int64_t i0 = rest;
        double r2 = 0;
        {
            float t2 = 0;
#pragma omp simd reduction(+ : t2)
            for (int64_t i1 = 0; i1 < 16384; i1++) {
                const float v0 = b0[(i0 * (16384)) + (i1)] + b1[(i0 * (16384)) + (i1)];
                const float v1 = v0 * v0;
                t2 += v1;
                b2[(i0 * (16384)) + (i1)] = (float)v0;
            }
            r2 += t2;
        }
        const float v2 = (float)(r2 / 16384);
        const float v3 = v2 + 9.999999747378752e-06f;
        const float v4 = dtm_rsqrt(v3);
        {
#pragma omp simd
            for (int64_t i1 = 0; i1 < 16384; i1++) {
                const float v0 = b2[(i0 * (16384)) + (i1)];
                const float v5 = v0 * v4;
                const float v6 = v5 * b3[(0) + (i1)];
                b4[(i0 * (16384)) + (i1)] = (float)v6;
            }
        }
    }
}

static int64_t fused_7_extent(const int64_t *z) {
    (void)z;
    return (z[0] + 4095) / 4096;
}
static int64_t fused_7_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fused_7(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        const int64_t low = u * 4096, high = low + 4096 < z[0] ? low + 4096 : z[0];
        {
#pragma omp simd
            for (int64_t i0 = low; i0 < high; i0++) {
                const float v0 = dtm_silu(b0[(0) + (i0)]);
                const float v1 = v0 * b1[(0) + (i0)];
                b2[(0) + (i0)] = (float)v1;
            }
        }
    }
}

static int64_t add_8_extent(const int64_t *z) {
    (void)z;
    return (z[0] + 4095) / 4096;
}
static int64_t add_8_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void add_8(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        const int64_t low = u * 4096, high = low + 4096 < z[0] ? low + 4096 : z[0];
        {
#pragma omp simd
            for (int64_t i0 = low; i0 < high; i0++) {
                const float v0 = b0[(0) + (i0)] + b1[(0) + (i0)];
                b2[(0) + (i0)] = (float)v0;
            }
        }
    }
}

static int64_t fused_9_extent(const int64_t *z) {
    (void)z;
    return 8192;
}
static int64_t fused_9_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fused_9(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    int32_t *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    float *const b3 = a->buffers[3];
    (void)b3;
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        int64_t rest = u;
        (void)rest;
        const int64_t i0 = rest;
        const int32_t c0 = b0[(i0) + (0)];
        (void)c0;
        float r0 = -INFINITY;
        double r4 = 0;
        {
            float t0 = -INFINITY;
            float t4 = 0;
#pragma omp simd reduction(+ : t4) reduction(max : t0)
            for (int64_t i1 = 0; i1 < 16032; i1++) {
                t0 = b1[(i0 * (16032)) + (i1)] > t0 || b1[(i0 * (16032)) + (i1)] != b1[(i0 * (16032)) + (i1)] ? b1[(i0 * (16032)) + (i1)] : t0;
                const int32_t v1 = (int32_t)(z[0] + i1);
                const int v2 = c0 == v1;
                const float v3 = v2 ? b1[(i0 * (16032)) + (i1)] : 0.0f;
                t4 += v3;
            }
            r0 = t0 > r0 || t0 != t0 ? t0 : r0;
            r4 += t4;
        }
        const float v0 = (float)r0;
        b2[(i0) + (0)] = (float)v0;
        const float v4 = (float)r4;
        b3[(i0) + (0)] = (float)v4;
    }
}

static int64_t fused_10_extent(const int64_t *z) {
    (void)z;
    return 8192;
}
static int64_t fused_10_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fused_10(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        int64_t rest = u;
        (void)rest;
        const int64_t i0 = rest;
        const float c0 = b0[(i0) + (0)];
        (void)c0;
        double r2 = 0;
        {
            float t2 = 0;
#pragma omp simd reduction(+ : t2)
            for (int64_t i1 = 0; i1 < 16032; i1++) {
                const float v0 = b1[(i0 * (16032)) + (i1)] - c0;
                const float v1 = dtm_exp(v0);
                t2 += v1;
            }
            r2 += t2;
        }
        const float v2 = (float)r2;
        b2[(i0) + (0)] = (float)v2;
    }
}

static int64_t fused_11_rows(const int64_t *z) {
    (void)z;
    return (z[0] + 4095) / 4096;
}
static int64_t fused_11_each(const int64_t *z) {
    (void)z;
    const int64_t rows = fused_11_rows(z), row = 4096 + 1;
    const int64_t most = (rows + 255) / 256, least = (8192 + row - 1) / row;
    return most > least ? most : least;
}
static int64_t fused_11_extent(const int64_t *z) {
    return (fused_11_rows(z) + fused_11_each(z) - 1) / fused_11_each(z);
}
static int64_t fused_11_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fused_11(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    int32_t *const b2 = a->buffers[2];
    (void)b2;
    float *const b3 = a->buffers[3];
    (void)b3;
    float *const b4 = a->buffers[4];
    (void)b4;
    double *const partials = a->buffers[5];
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        double r5 = 0;
        const int64_t rows = fused_11_rows(z), each = fused_11_each(z);
        for (int64_t row = u * each; row < (u + 1) * each && row < rows; row++) {
            const int64_t low = row * 4096, high = low + 4096 < z[0] ? low + 4096 : z[0];
            {
                float t5 = 0;
#pragma omp simd reduction(+ : t5)
                for (int64_t i0 = low; i0 < high; i0++) {
                    const float v0 = dtm_log(b0[(0) + (i0)]);
                    const float v1 = v0 + b1[(0) + (i0)];
                    const int v3 = b2[(0) + (i0)] >= 0;
                    const float v2 = v1 - b3[(0) + (i0)];
                    const float v4 = v3 ? v2 : 0.0f;
                    t5 += v4;
                    b4[(0) + (i0)] = (float)v1;
                }
                r5 += t5;
            }
        }
        partials[0 + u] = (double)r5;
    }
}

static int64_t fused_finish_12_extent(const int64_t *z) {
    return (void)z, 1;
}
static int64_t fused_finish_12_chunks(const int64_t *z) {
    (void)z;
    const int64_t rows = (z[0] + 4095) / 4096, row = 4096 + 1;
    const int64_t most = (rows + 255) / 256, least = (8192 + row - 1) / row, each = most > least ? most : least;
    return (rows + each - 1) / each;
}
static int64_t fused_finish_12_scratch_bytes(const int64_t *z) {
    return (void)z, 0;
}
static void fused_finish_12(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    int32_t *const b2 = a->buffers[2];
    (void)b2;
    float *const b3 = a->buffers[3];
    (void)b3;
    float *const b4 = a->buffers[4];
    (void)b4;
    float *const b5 = a->buffers[5];
    (void)b5;
    double *const partials = a->buffers[6];
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        const int64_t chunks = fused_finish_12_chunks(z);
        double r5 = 0;
        for (int64_t c = 0; c < chunks; c++) {
            r5 += partials[0 + c];
        }
        const float v5 = (float)(r5 / 33554432);
        b5[(0) + (0)] = (float)v5;
    }
}

static int64_t accumulate_13_extent(const int64_t *z) {
    return (z[0] + 4095) / 4096;
}
static int64_t accumulate_13_scratch_bytes(const int64_t *z) {
    return (void)z, 0;
}
static void accumulate_13(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    const float *const x = a->buffers[0];
    float *const sum = a->buffers[1];
    const int64_t low = begin * 4096, high = end * 4096 < a->sizes[0] ? end * 4096 : a->sizes[0];
    if (a->sizes[1] == 0) {
        for (int64_t i = low; i < high; i++) sum[i] = x[i];
        return;
    }
#pragma omp simd
    for (int64_t i = low; i < high; i++) sum[i] = sum[i] + x[i];
}

static int64_t cross_entropy_backward_14_extent(const int64_t *z) {
    (void)z;
    return 8192;
}
static int64_t cross_entropy_backward_14_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void cross_entropy_backward_14(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    int32_t *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    float *const b3 = a->buffers[3];
    (void)b3;
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        int64_t rest = u;
        (void)rest;
        const int64_t i0 = rest;
        const float c0 = b0[(i0) + (0)];
        (void)c0;
        const int32_t c1 = b1[(i0) + (0)];
        (void)c1;
        {
#pragma omp simd
            for (int64_t i1 = 0; i1 < 16032; i1++) {
                const float v0 = c1 < 0 ? 0.0f : 2.9802322387695312e-08f * (dtm_exp(b2[(i0 * (16032)) + (i1)] - c0) - (c1 == (int32_t)(z[0] + i1) ? 1.0f : 0.0f) - 0.0f);
                b3[(i0 * (16032)) + (i1)] = (float)v0;
            }
        }
    }
}

static int64_t fused_15_rows(const int64_t *z) {
    (void)z;
    return 1024;
}
static int64_t fused_15_each(const int64_t *z) {
    const int64_t each = (fused_15_rows(z) + 63) / 64;
    return each > 16 ? each : 16;
}
static int64_t fused_15_chunks(const int64_t *z) {
    return (fused_15_rows(z) + fused_15_each(z) - 1) / fused_15_each(z);
}
static int64_t fused_15_extent(const int64_t *z) {
    return fused_15_chunks(z);
}
static int64_t fused_15_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fused_15(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    float *const b3 = a->buffers[3];
    (void)b3;
    double *const partials = a->buffers[4];
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        double *const p12 = partials + (u * 1 + 0) * (16384);
        for (int64_t j = 0; j < 16384; j++) p12[j] = 0;
        const int64_t rows = fused_15_rows(z), each = fused_15_each(z);
        for (int64_t row = u * each; row < (u + 1) * each && row < rows; row++) {
            int64_t rest = row;
            (void)rest;
            const int64_t i0 = rest;
            double r1 = 0;
            {
                float t1 = 0;
#pragma omp simd reduction(+ : t1)
                for (int64_t i1 = 0; i1 < 16384; i1++) {
                    const float v0 = b0[(i0 * (16384)) + (i1)] * b0[(i0 * (16384)) + (i1)];
                    t1 += v0;
                }
                r1 += t1;
            }
            const float v1 = (float)(r1 / 16384);
            const float v2 = v1 + 9.999999747378752e-06f;
            const float v3 = dtm_rsqrt(v2);
            double r7 = 0;
            {
                float t7 = 0;
#pragma omp simd reduction(+ : t7)
                for (int64_t i1 = 0; i1 < 16384; i1++) {
                    const float v5 = b1[(i0 * (16384)) + (i1)] * b2[(0) + (i1)];
                    const float v4 = b0[(i0 * (16384)) + (i1)] * v3;
                    const float v6 = v5 * v4;
                    t7 += v6;
                    const float v11 = b1[(i0 * (16384)) + (i1)] * v4;
                    p12[i1] += v11;
                }
                r7 += t7;
            }
            const float v7 = (float)(r7 / 16384);
            {
#pragma omp simd
                for (int64_t i1 = 0; i1 < 16384; i1++) {
                    const float v5 = b1[(i0 * (16384)) + (i1)] * b2[(0) + (i1)];
                    const float v4 = b0[(i0 * (16384)) + (i1)] * v3;
                    const float v8 = v4 * v7;
                    const float v9 = v5 - v8;
                    const float v10 = v9 * v3;
                    b3[(i0 * (16384)) + (i1)] = (float)v10;
                }
            }
        }
    }
}

static int64_t fused_finish_16_rows(const int64_t *z) {
    (void)z;
    return 1024;
}
static int64_t fused_finish_16_each(const int64_t *z) {
    const int64_t each = (fused_finish_16_rows(z) + 63) / 64;
    return each > 16 ? each : 16;
}
static int64_t fused_finish_16_chunks(const int64_t *z) {
    return (fused_finish_16_rows(z) + fused_finish_16_each(z) - 1) / fused_finish_16_each(z);
}
static int64_t fused_finish_16_blocks(const int64_t *z) {
    (void)z;
    return (16384 + 63) / 64;
}
static int64_t fused_finish_16_extent(const int64_t *z) {
    return 1 * fused_finish_16_blocks(z);
}
static int64_t fused_finish_16_scratch_bytes(const int64_t *z) {
    return (void)z, 0;
}
static void fused_finish_16(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    float *const b3 = a->buffers[3];
    (void)b3;
    float *const b4 = a->buffers[4];
    (void)b4;
    double *const partials = a->buffers[5];
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        const int64_t chunks = fused_finish_16_chunks(z), blocks = fused_finish_16_blocks(z), low = u % blocks * 64;
        const int64_t high = low + 64 < 16384 ? low + 64 : 16384;
        int64_t rest = u / blocks;
        (void)rest;
        double r12[64];
        for (int k = 0; k < 64; k++) r12[k] = 0;
        for (int64_t c = 0; c < chunks; c++) {
            const double *const p = partials + (c * 1 + 0) * (16384);
            for (int64_t i1 = low; i1 < high; i1++) {
                r12[i1 - low] += p[i1];
            }
        }
        for (int64_t i1 = low; i1 < high; i1++) {
            const float v12 = (float)r12[i1 - low];
            b4[(0) + (i1)] = (float)v12;
        }
    }
}

static int64_t fused_17_extent(const int64_t *z) {
    (void)z;
    return (z[0] + 4095) / 4096;
}
static int64_t fused_17_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fused_17(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    float *const b3 = a->buffers[3];
    (void)b3;
    float *const b4 = a->buffers[4];
    (void)b4;
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        const int64_t low = u * 4096, high = low + 4096 < z[0] ? low + 4096 : z[0];
        {
#pragma omp simd
            for (int64_t i0 = low; i0 < high; i0++) {
                const float v0 = dtm_silu(b1[(0) + (i0)]);
                const float v2 = b0[(0) + (i0)] * v0;
                const float v1 = b0[(0) + (i0)] * b2[(0) + (i0)];
                const float v3 = v1 * dtm_silu_slope(b1[(0) + (i0)]);
                b3[(0) + (i0)] = (float)v2;
                b4[(0) + (i0)] = (float)v3;
            }
        }
    }
}

static int64_t fused_18_rows(const int64_t *z) {
    (void)z;
    return 1024;
}
static int64_t fused_18_each(const int64_t *z) {
    const int64_t each = (fused_18_rows(z) + 63) / 64;
    return each > 16 ? each : 16;
}
static int64_t fused_18_chunks(const int64_t *z) {
    return (fused_18_rows(z) + fused_18_each(z) - 1) / fused_18_each(z);
}
static int64_t fused_18_extent(const int64_t *z) {
    return fused_18_chunks(z);
}
static int64_t fused_18_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fused_18(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    float *const b3 = a->buffers[3];
    (void)b3;
    float *const b4 = a->buffers[4];
    (void)b4;
    double *const partials = a->buffers[5];
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        double *const p12 = partials + (u * 1 + 0) * (16384);
        for (int64_t j = 0; j < 16384; j++) p12[j] = 0;
        const int64_t rows = fused_18_rows(z), each = fused_18_each(z);
        for (int64_t row = u * each; row < (u + 1) * each && row < rows; row++) {
            int64_t rest = row;
            (void)rest;
            const int64_t i0 = rest;
            double r1 = 0;
            {
                float t1 = 0;
#pragma omp simd reduction(+ : t1)
                for (int64_t i1 = 0; i1 < 16384; i1++) {
                    const float v0 = b0[(i0 * (16384)) + (i1)] * b0[(i0 * (16384)) + (i1)];
                    t1 += v0;
                }
                r1 += t1;
            }
            const float v1 = (float)(r1 / 16384);
            const float v2 = v1 + 9.999999747378752e-06f;
            const float v3 = dtm_rsqrt(v2);
            double r7 = 0;
            {
                float t7 = 0;
#pragma omp simd reduction(+ : t7)
                for (int64_t i1 = 0; i1 < 16384; i1++) {
                    const float v5 = b1[(i0 * (16384)) + (i1)] * b2[(0) + (i1)];
                    const float v4 = b0[(i0 * (16384)) + (i1)] * v3;
                    const float v6 = v5 * v4;
                    t7 += v6;
                    const float v11 = b1[(i0 * (16384)) + (i1)] * v4;
                    p12[i1] += v11;
                }
                r7 += t7;
            }
            const float v7 = (float)(r7 / 16384);
            {
#pragma omp simd
                for (int64_t i1 = 0; i1 < 16384; i1++) {
                    const float v5 = b1[(i0 * (16384)) + (i1)] * b2[(0) + (i1)];
                    const float v4 = b0[(i0 * (16384)) + (i1)] * v3;
                    const float v8 = v4 * v7;
                    const float v9 = v5 - v8;
                    const float v10 = v9 * v3;
                    const float v13 = b3[(i0 * (16384)) + (i1)] + v10;
                    b4[(i0 * (16384)) + (i1)] = (float)v13;
                }
            }
        }
    }
}

static int64_t fused_finish_19_rows(const int64_t *z) {
    (void)z;
    return 1024;
}
static int64_t fused_finish_19_each(const int64_t *z) {
    const int64_t each = (fused_finish_19_rows(z) + 63) / 64;
    return each > 16 ? each : 16;
}
static int64_t fused_finish_19_chunks(const int64_t *z) {
    return (fused_finish_19_rows(z) + fused_finish_19_each(z) - 1) / fused_finish_19_each(z);
}
static int64_t fused_finish_19_blocks(const int64_t *z) {
    (void)z;
    return (16384 + 63) / 64;
}
static int64_t fused_finish_19_extent(const int64_t *z) {
    return 1 * fused_finish_19_blocks(z);
}
static int64_t fused_finish_19_scratch_bytes(const int64_t *z) {
    return (void)z, 0;
}
static void fused_finish_19(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    float *const b3 = a->buffers[3];
    (void)b3;
    float *const b4 = a->buffers[4];
    (void)b4;
    float *const b5 = a->buffers[5];
    (void)b5;
    double *const partials = a->buffers[6];
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        const int64_t chunks = fused_finish_19_chunks(z), blocks = fused_finish_19_blocks(z), low = u % blocks * 64;
        const int64_t high = low + 64 < 16384 ? low + 64 : 16384;
        int64_t rest = u / blocks;
        (void)rest;
        double r12[64];
        for (int k = 0; k < 64; k++) r12[k] = 0;
        for (int64_t c = 0; c < chunks; c++) {
            const double *const p = partials + (c * 1 + 0) * (16384);
            for (int64_t i1 = low; i1 < high; i1++) {
                r12[i1 - low] += p[i1];
            }
        }
        for (int64_t i1 = low; i1 < high; i1++) {
            const float v12 = (float)r12[i1 - low];
            b5[(0) + (i1)] = (float)v12;
        }
    }
}

static dtm_attention_sizes attention_backward_20_sizes(const int64_t *z) {
    dtm_attention_sizes s = {0};
    (void)z;
    s.batch = 1;
    s.heads = 16;
    s.kv_heads = 1;
    s.queries = 8192;
    s.keys = 8192;
    s.width = 128;
    s.v_width = 128;
    s.causal = 1;
    s.window = 0;
    s.ratio = 16;
    s.head_offset = z[0];
    s.kv_offset = z[1];
    s.queries_total = 8192;
    s.keys_total = 8192;
    s.q_offset = 0;
    s.k_offset = 0;
    s.q.b = 16777216;
    s.q.s = 2048;
    s.q.h = 128;
    s.k.b = 1048576;
    s.k.s = 128;
    s.k.h = 128;
    s.v.b = 1048576;
    s.v.s = 128;
    s.v.h = 128;
    s.o.b = 16777216;
    s.o.s = 2048;
    s.o.h = 128;
    s.lse.b = 131072;
    s.lse.s = 16;
    s.lse.h = 1;
    s.d_o.b = 16777216;
    s.d_o.s = 2048;
    s.d_o.h = 128;
    s.dq.b = 16777216;
    s.dq.s = 2048;
    s.dq.h = 128;
    s.dk.b = 1048576;
    s.dk.s = 128;
    s.dk.h = 128;
    s.dv.b = 1048576;
    s.dv.s = 128;
    s.dv.h = 128;
    return s;
}
static int64_t attention_backward_20_extent(const int64_t *z) {
    const dtm_attention_sizes s = attention_backward_20_sizes(z);
    return 1 * LIBRARY("dtm_attention_backward")->extent((const int64_t *)&s);
}
static int64_t attention_backward_20_scratch_bytes(const int64_t *z) {
    const dtm_attention_sizes s = attention_backward_20_sizes(z);
    return LIBRARY("dtm_attention_backward")->scratch_bytes((const int64_t *)&s);
}
static void attention_backward_20(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    const int64_t *const z = a->sizes;
    const dtm_attention_sizes s = attention_backward_20_sizes(z);
    const dtm_kernel_entry *const library = LIBRARY("dtm_attention_backward");
    const int64_t each = library->extent((const int64_t *)&s);
    const double scale = 0.088388347648318433;
    for (int64_t outer = each ? begin / each : 0; outer * each < end; outer++) {
        int64_t rest = outer;
        (void)rest;
        void *at[9];
        at[0] = a->buffers[0];
        at[1] = a->buffers[1];
        at[2] = a->buffers[2];
        at[3] = a->buffers[3];
        at[4] = a->buffers[4];
        at[5] = a->buffers[5];
        at[6] = a->buffers[6];
        at[7] = a->buffers[7];
        at[8] = a->buffers[8];
        const dtm_kernel_args inner = {at, (const int64_t *)&s, &scale, a->scratch, a->error};
        const int64_t low = begin > outer * each ? begin - outer * each : 0;
        const int64_t high = end < (outer + 1) * each ? end - outer * each : each;
        library->run(&inner, low, high);
    }
}

static dtm_rope_sizes rope_21_sizes(const int64_t *z) {
    dtm_rope_sizes s = {0};
    (void)z;
    s.batch = 1;
    s.positions = 8192;
    s.heads = 1;
    s.width = 128;
    s.part = 128;
    s.interleaved = 0;
    s.inverse = 1;
    s.x_batch = 1048576;
    s.out_batch = 1048576;
    s.x_position = 128;
    s.out_position = 128;
    s.x_head = 128;
    s.out_head = 128;
    return s;
}
static int64_t rope_21_extent(const int64_t *z) {
    const dtm_rope_sizes s = rope_21_sizes(z);
    return LIBRARY("dtm_rope")->extent((const int64_t *)&s);
}
static int64_t rope_21_scratch_bytes(const int64_t *z) {
    return (void)z, 0;
}
static void rope_21(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    const dtm_rope_sizes s = rope_21_sizes(a->sizes);
    dtm_kernel_args inner = *a;
    inner.sizes = (const int64_t *)&s;
    LIBRARY("dtm_rope")->run(&inner, begin, end);
}

static dtm_rope_sizes rope_22_sizes(const int64_t *z) {
    dtm_rope_sizes s = {0};
    (void)z;
    s.batch = 1;
    s.positions = 8192;
    s.heads = 16;
    s.width = 128;
    s.part = 128;
    s.interleaved = 0;
    s.inverse = 1;
    s.x_batch = 16777216;
    s.out_batch = 16777216;
    s.x_position = 2048;
    s.out_position = 2048;
    s.x_head = 128;
    s.out_head = 128;
    return s;
}
static int64_t rope_22_extent(const int64_t *z) {
    const dtm_rope_sizes s = rope_22_sizes(z);
    return LIBRARY("dtm_rope")->extent((const int64_t *)&s);
}
static int64_t rope_22_scratch_bytes(const int64_t *z) {
    return (void)z, 0;
}
static void rope_22(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    const dtm_rope_sizes s = rope_22_sizes(a->sizes);
    dtm_kernel_args inner = *a;
    inner.sizes = (const int64_t *)&s;
    LIBRARY("dtm_rope")->run(&inner, begin, end);
}

static void scatter_23(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    int32_t *const b0 = a->buffers[0];
    float *const b1 = a->buffers[1];
    float *const b2 = a->buffers[2];
    const int64_t *const z = a->sizes;
    (void)z;
    const int64_t low = 16032 * begin / 64, high = 16032 * end / 64;
    for (int64_t row = low; row < high; row++) {
        for (int64_t i4 = 0; i4 < 16384; i4++) {
            b2[(row) * 16384 + (i4) * 1] = 0;
        }
    }
    for (int64_t i1 = 0; i1 < 1; i1++) {
        for (int64_t i2 = 0; i2 < 8192; i2++) {
            const int64_t row = b0[(i1) * 8192 + (i2) * 1] - z[0];
            if (row < low || row >= high) continue;
#pragma omp simd
            for (int64_t i4 = 0; i4 < 16384; i4++) {
                b2[(row) * 16384 + (i4) * 1] += b1[(i1) * 134217728 + (i2) * 16384 + (i4) * 1];
            }
        }
    }
}
static int64_t scatter_23_extent(const int64_t *z) {
    (void)z;
    return 64;
}
static int64_t scatter_23_scratch_bytes(const int64_t *z) {
    return (void)z, 0;
}

static int64_t fused_24_extent(const int64_t *z) {
    (void)z;
    return 1;
}
static int64_t fused_24_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fused_24(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        const float c0 = b0[(0) + (0)];
        (void)c0;
        const float v0 = c0 * 0.10000000149011612f;
        const float v1 = 1.0f - v0;
        b1[(0) + (0)] = (float)v1;
    }
}

static int64_t fill_25_extent(const int64_t *z) {
    (void)z;
    return 1;
}
static int64_t fill_25_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fill_25(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        const float v0 = 0.0f;
        b0[(0) + (0)] = (float)v0;
    }
}

static int64_t fused_26_rows(const int64_t *z) {
    (void)z;
    return (z[0] + 4095) / 4096;
}
static int64_t fused_26_each(const int64_t *z) {
    (void)z;
    const int64_t rows = fused_26_rows(z), row = 4096 + 1;
    const int64_t most = (rows + 255) / 256, least = (8192 + row - 1) / row;
    return most > least ? most : least;
}
static int64_t fused_26_extent(const int64_t *z) {
    return (fused_26_rows(z) + fused_26_each(z) - 1) / fused_26_each(z);
}
static int64_t fused_26_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fused_26(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    double *const partials = a->buffers[2];
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        double r1 = 0;
        double r3 = 0;
        const int64_t rows = fused_26_rows(z), each = fused_26_each(z);
        for (int64_t row = u * each; row < (u + 1) * each && row < rows; row++) {
            const int64_t low = row * 4096, high = low + 4096 < z[0] ? low + 4096 : z[0];
            {
                float t1 = 0;
                float t3 = 0;
#pragma omp simd reduction(+ : t1, t3)
                for (int64_t i0 = low; i0 < high; i0++) {
                    const float v0 = b0[(0) + (i0)] * b0[(0) + (i0)];
                    t1 += v0;
                    const float v2 = b1[(0) + (i0)] * b1[(0) + (i0)];
                    t3 += v2;
                }
                r1 += t1;
                r3 += t3;
            }
        }
        partials[0 + u] = (double)r1;
        partials[256 + u] = (double)r3;
    }
}

static int64_t fused_finish_27_extent(const int64_t *z) {
    return (void)z, 1;
}
static int64_t fused_finish_27_chunks(const int64_t *z) {
    (void)z;
    const int64_t rows = (z[0] + 4095) / 4096, row = 4096 + 1;
    const int64_t most = (rows + 255) / 256, least = (8192 + row - 1) / row, each = most > least ? most : least;
    return (rows + each - 1) / each;
}
static int64_t fused_finish_27_scratch_bytes(const int64_t *z) {
    return (void)z, 0;
}
static void fused_finish_27(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    double *const partials = a->buffers[3];
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        const int64_t chunks = fused_finish_27_chunks(z);
        double r1 = 0;
        for (int64_t c = 0; c < chunks; c++) {
            r1 += partials[0 + c];
        }
        const float v1 = (float)r1;
        double r3 = 0;
        for (int64_t c = 0; c < chunks; c++) {
            r3 += partials[256 + c];
        }
        const float v3 = (float)r3;
        const float v4 = v1 + v3;
        b2[(0) + (0)] = (float)v4;
    }
}

static int64_t fused_28_rows(const int64_t *z) {
    (void)z;
    return (z[0] + 4095) / 4096;
}
static int64_t fused_28_each(const int64_t *z) {
    (void)z;
    const int64_t rows = fused_28_rows(z), row = 4096 + 1;
    const int64_t most = (rows + 255) / 256, least = (8192 + row - 1) / row;
    return most > least ? most : least;
}
static int64_t fused_28_extent(const int64_t *z) {
    return (fused_28_rows(z) + fused_28_each(z) - 1) / fused_28_each(z);
}
static int64_t fused_28_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fused_28(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    double *const partials = a->buffers[1];
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        double r1 = 0;
        const int64_t rows = fused_28_rows(z), each = fused_28_each(z);
        for (int64_t row = u * each; row < (u + 1) * each && row < rows; row++) {
            const int64_t low = row * 4096, high = low + 4096 < z[0] ? low + 4096 : z[0];
            {
                float t1 = 0;
#pragma omp simd reduction(+ : t1)
                for (int64_t i0 = low; i0 < high; i0++) {
                    const float v0 = b0[(0) + (i0)] * b0[(0) + (i0)];
                    t1 += v0;
                }
                r1 += t1;
            }
        }
        partials[0 + u] = (double)r1;
    }
}

static int64_t fused_finish_29_extent(const int64_t *z) {
    return (void)z, 1;
}
static int64_t fused_finish_29_chunks(const int64_t *z) {
    (void)z;
    const int64_t rows = (z[0] + 4095) / 4096, row = 4096 + 1;
    const int64_t most = (rows + 255) / 256, least = (8192 + row - 1) / row, each = most > least ? most : least;
    return (rows + each - 1) / each;
}
static int64_t fused_finish_29_scratch_bytes(const int64_t *z) {
    return (void)z, 0;
}
static void fused_finish_29(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    double *const partials = a->buffers[2];
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        const int64_t chunks = fused_finish_29_chunks(z);
        double r1 = 0;
        for (int64_t c = 0; c < chunks; c++) {
            r1 += partials[0 + c];
        }
        const float v1 = (float)r1;
        b1[(0) + (0)] = (float)v1;
    }
}

static int64_t fused_finish_30_extent(const int64_t *z) {
    return (void)z, 1;
}
static int64_t fused_finish_30_chunks(const int64_t *z) {
    (void)z;
    const int64_t rows = (z[0] + 4095) / 4096, row = 4096 + 1;
    const int64_t most = (rows + 255) / 256, least = (8192 + row - 1) / row, each = most > least ? most : least;
    return (rows + each - 1) / each;
}
static int64_t fused_finish_30_scratch_bytes(const int64_t *z) {
    return (void)z, 0;
}
static void fused_finish_30(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    float *const b3 = a->buffers[3];
    (void)b3;
    float *const b4 = a->buffers[4];
    (void)b4;
    float *const b5 = a->buffers[5];
    (void)b5;
    float *const b6 = a->buffers[6];
    (void)b6;
    float *const b7 = a->buffers[7];
    (void)b7;
    float *const b8 = a->buffers[8];
    (void)b8;
    float *const b9 = a->buffers[9];
    (void)b9;
    double *const partials = a->buffers[10];
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        const int64_t chunks = fused_finish_30_chunks(z);
        double r1 = 0;
        for (int64_t c = 0; c < chunks; c++) {
            r1 += partials[0 + c];
        }
        const float v1 = (float)r1;
        const float v2 = b1[(0) + (0)] + v1;
        const float v3 = v2 + b2[(0) + (0)];
        const float v4 = v3 + b3[(0) + (0)];
        const float v5 = v4 + b4[(0) + (0)];
        const float v6 = v5 + b5[(0) + (0)];
        const float v7 = v6 + b6[(0) + (0)];
        const float v8 = v7 + b7[(0) + (0)];
        const float v9 = b8[(0) + (0)] + v8;
        b9[(0) + (0)] = (float)v9;
    }
}

static int64_t fused_31_rows(const int64_t *z) {
    (void)z;
    return (z[0] + 4095) / 4096;
}
static int64_t fused_31_each(const int64_t *z) {
    (void)z;
    const int64_t rows = fused_31_rows(z), row = 4096 + 1;
    const int64_t most = (rows + 255) / 256, least = (8192 + row - 1) / row;
    return most > least ? most : least;
}
static int64_t fused_31_extent(const int64_t *z) {
    return (fused_31_rows(z) + fused_31_each(z) - 1) / fused_31_each(z);
}
static int64_t fused_31_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fused_31(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    double *const partials = a->buffers[3];
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        double r1 = 0;
        const int64_t rows = fused_31_rows(z), each = fused_31_each(z);
        for (int64_t row = u * each; row < (u + 1) * each && row < rows; row++) {
            const float c0 = b0[(0) + (0)];
            (void)c0;
            const float c1 = b1[(0) + (0)];
            (void)c1;
            const int64_t low = row * 4096, high = low + 4096 < z[0] ? low + 4096 : z[0];
            {
                float t1 = 0;
#pragma omp simd reduction(+ : t1)
                for (int64_t i0 = low; i0 < high; i0++) {
                    const float v0 = b2[(0) + (i0)] * b2[(0) + (i0)];
                    t1 += v0;
                }
                r1 += t1;
            }
        }
        partials[0 + u] = (double)r1;
    }
}

static int64_t fused_finish_32_extent(const int64_t *z) {
    return (void)z, 1;
}
static int64_t fused_finish_32_chunks(const int64_t *z) {
    (void)z;
    const int64_t rows = (z[0] + 4095) / 4096, row = 4096 + 1;
    const int64_t most = (rows + 255) / 256, least = (8192 + row - 1) / row, each = most > least ? most : least;
    return (rows + each - 1) / each;
}
static int64_t fused_finish_32_scratch_bytes(const int64_t *z) {
    return (void)z, 0;
}
static void fused_finish_32(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    float *const b3 = a->buffers[3];
    (void)b3;
    float *const b4 = a->buffers[4];
    (void)b4;
    float *const b5 = a->buffers[5];
    (void)b5;
    double *const partials = a->buffers[6];
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        const int64_t chunks = fused_finish_32_chunks(z);
        double r1 = 0;
        for (int64_t c = 0; c < chunks; c++) {
            r1 += partials[0 + c];
        }
        const float v1 = (float)r1;
        const float v2 = b0[(0) + (0)] + b1[(0) + (0)];
        const float v3 = v1 + v2;
        const float v4 = v3 + b3[(0) + (0)];
        const float v5 = v4 + b4[(0) + (0)];
        b5[(0) + (0)] = (float)v5;
    }
}

static int64_t fused_33_extent(const int64_t *z) {
    (void)z;
    return 1;
}
static int64_t fused_33_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fused_33(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        const float c0 = b0[(0) + (0)];
        (void)c0;
        const float v0 = sqrtf(c0);
        b1[(0) + (0)] = (float)v0;
        const float v1 = 1.0f / v0;
        const float v2 = 1.0f < v1 || 1.0f != 1.0f ? 1.0f : v1;
        b2[(0) + (0)] = (float)v2;
    }
}

static int64_t fused_34_extent(const int64_t *z) {
    (void)z;
    return (z[0] + 4095) / 4096;
}
static int64_t fused_34_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fused_34(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    float *const b3 = a->buffers[3];
    (void)b3;
    float *const b4 = a->buffers[4];
    (void)b4;
    float *const b5 = a->buffers[5];
    (void)b5;
    float *const b6 = a->buffers[6];
    (void)b6;
    float *const b7 = a->buffers[7];
    (void)b7;
    float *const b8 = a->buffers[8];
    (void)b8;
    float *const b9 = a->buffers[9];
    (void)b9;
    float *const b10 = a->buffers[10];
    (void)b10;
    float *const b11 = a->buffers[11];
    (void)b11;
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        const int64_t low = u * 4096, high = low + 4096 < z[0] ? low + 4096 : z[0];
        const float c0 = b0[(0) + (0)];
        (void)c0;
        const float c1 = b1[(0) + (0)];
        (void)c1;
        const float c2 = b2[(0) + (0)];
        (void)c2;
        const float c3 = b3[(0) + (0)];
        (void)c3;
        const float c4 = b4[(0) + (0)];
        (void)c4;
        {
#pragma omp simd
            for (int64_t i0 = low; i0 < high; i0++) {
                const float v2 = b5[(0) + (i0)] * 0.8999999761581421f;
                const float v0 = b6[(0) + (i0)] * c0;
                const float v3 = v0 * 0.10000000149011612f;
                const float v4 = v2 + v3;
                const float v5 = b7[(0) + (i0)] * 0.949999988079071f;
                const float v1 = v0 * v0;
                const float v6 = v1 * 0.05000000074505806f;
                const float v7 = v5 + v6;
                const float v14 = b8[(0) + (i0)] * c4;
                const float v8 = v4 / c1;
                const float v9 = v7 / c2;
                const float v10 = sqrtf(v9);
                const float v11 = v10 + 9.99999993922529e-09f;
                const float v12 = v8 / v11;
                const float v13 = v12 * c3;
                const float v15 = v14 - v13;
                b9[(0) + (i0)] = (float)v4;
                b10[(0) + (i0)] = (float)v7;
                b11[(0) + (i0)] = (float)v15;
            }
        }
    }
}

static int64_t fused_35_extent(const int64_t *z) {
    (void)z;
    return (z[0] + 4095) / 4096;
}
static int64_t fused_35_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void fused_35(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    float *const b3 = a->buffers[3];
    (void)b3;
    float *const b4 = a->buffers[4];
    (void)b4;
    float *const b5 = a->buffers[5];
    (void)b5;
    float *const b6 = a->buffers[6];
    (void)b6;
    float *const b7 = a->buffers[7];
    (void)b7;
    float *const b8 = a->buffers[8];
    (void)b8;
    float *const b9 = a->buffers[9];
    (void)b9;
    float *const b10 = a->buffers[10];
    (void)b10;
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        const int64_t low = u * 4096, high = low + 4096 < z[0] ? low + 4096 : z[0];
        const float c0 = b0[(0) + (0)];
        (void)c0;
        const float c1 = b1[(0) + (0)];
        (void)c1;
        const float c2 = b2[(0) + (0)];
        (void)c2;
        const float c3 = b3[(0) + (0)];
        (void)c3;
        {
#pragma omp simd
            for (int64_t i0 = low; i0 < high; i0++) {
                const float v2 = b4[(0) + (i0)] * 0.8999999761581421f;
                const float v0 = b5[(0) + (i0)] * c0;
                const float v3 = v0 * 0.10000000149011612f;
                const float v4 = v2 + v3;
                const float v5 = b6[(0) + (i0)] * 0.949999988079071f;
                const float v1 = v0 * v0;
                const float v6 = v1 * 0.05000000074505806f;
                const float v7 = v5 + v6;
                const float v8 = v4 / c1;
                const float v9 = v7 / c2;
                const float v10 = sqrtf(v9);
                const float v11 = v10 + 9.99999993922529e-09f;
                const float v12 = v8 / v11;
                const float v13 = v12 * c3;
                const float v14 = b7[(0) + (i0)] - v13;
                b8[(0) + (i0)] = (float)v4;
                b9[(0) + (i0)] = (float)v7;
                b10[(0) + (i0)] = (float)v14;
            }
        }
    }
}

static int64_t add_36_extent(const int64_t *z) {
    (void)z;
    return 1;
}
static int64_t add_36_scratch_bytes(const int64_t *z) {
    (void)z;
    return 0 * (0);
}
static void add_36(const dtm_kernel_args *a, int64_t begin, int64_t end) {
    float *const b0 = a->buffers[0];
    (void)b0;
    float *const b1 = a->buffers[1];
    (void)b1;
    float *const b2 = a->buffers[2];
    (void)b2;
    const int64_t *const z = a->sizes;
    (void)z;
    for (int64_t u = begin; u < end; u++) {
        const float c0 = b0[(0) + (0)];
        (void)c0;
        const float c1 = b1[(0) + (0)];
        (void)c1;
        const float v0 = c0 + c1;
        b2[(0) + (0)] = (float)v0;
    }
}

extern const dtm_plan_kernel DTM_TABLE(DTM_ISA)[];
const dtm_plan_kernel DTM_TABLE(DTM_ISA)[] = {
    {"gather_0", gather_0, gather_0_extent, gather_0_scratch_bytes, 0x73afdb71f769215f},
    {"fused_1", fused_1, fused_1_extent, fused_1_scratch_bytes, 0xa6de0efd42c67d5d},
    {"rope_table_2", rope_table_2, rope_table_2_extent, rope_table_2_scratch_bytes, 0x595843bb2f51413b},
    {"rope_3", rope_3, rope_3_extent, rope_3_scratch_bytes, 0xc259deabc1c0fe8e},
    {"rope_4", rope_4, rope_4_extent, rope_4_scratch_bytes, 0x2c69bff13a30a5f2},
    {"attention_5", attention_5, attention_5_extent, attention_5_scratch_bytes, 0x3c41fe31bfb1b56e},
    {"fused_6", fused_6, fused_6_extent, fused_6_scratch_bytes, 0xb9d02e8d46887797},
    {"fused_7", fused_7, fused_7_extent, fused_7_scratch_bytes, 0x46ea3f867b912ace},
    {"add_8", add_8, add_8_extent, add_8_scratch_bytes, 0x56807623869c9362},
    {"fused_9", fused_9, fused_9_extent, fused_9_scratch_bytes, 0x33ee594873d8c9cd},
    {"fused_10", fused_10, fused_10_extent, fused_10_scratch_bytes, 0x5929c167cb958ff1},
    {"fused_11", fused_11, fused_11_extent, fused_11_scratch_bytes, 0xa3a11e6c5dd154ce},
    {"fused_finish_12", fused_finish_12, fused_finish_12_extent, fused_finish_12_scratch_bytes, 0x9268ba4c50647394},
    {"accumulate_13", accumulate_13, accumulate_13_extent, accumulate_13_scratch_bytes, 0x9f4a4c73f06766a9},
    {"cross_entropy_backward_14", cross_entropy_backward_14, cross_entropy_backward_14_extent, cross_entropy_backward_14_scratch_bytes, 0x0a3df8e0a7a6bb0b},
    {"fused_15", fused_15, fused_15_extent, fused_15_scratch_bytes, 0x903eb2fceddc63f4},
    {"fused_finish_16", fused_finish_16, fused_finish_16_extent, fused_finish_16_scratch_bytes, 0x144b6bd56d15400f},
    {"fused_17", fused_17, fused_17_extent, fused_17_scratch_bytes, 0x1340b89525426aa8},
    {"fused_18", fused_18, fused_18_extent, fused_18_scratch_bytes, 0xdddd6e284a4e8834},
    {"fused_finish_19", fused_finish_19, fused_finish_19_extent, fused_finish_19_scratch_bytes, 0xbb479f78a9bbb88e},
    {"attention_backward_20", attention_backward_20, attention_backward_20_extent, attention_backward_20_scratch_bytes, 0x2c0dd490394b2320},
    {"rope_21", rope_21, rope_21_extent, rope_21_scratch_bytes, 0x6e3fc2727eb9199f},
    {"rope_22", rope_22, rope_22_extent, rope_22_scratch_bytes, 0x51a0ff87f25a4847},
    {"scatter_23", scatter_23, scatter_23_extent, scatter_23_scratch_bytes, 0xcaf805a79cf3d10f},
    {"fused_24", fused_24, fused_24_extent, fused_24_scratch_bytes, 0xd00b2d2da3b48a84},
    {"fill_25", fill_25, fill_25_extent, fill_25_scratch_bytes, 0x616c13d4c7ec12b0},
    {"fused_26", fused_26, fused_26_extent, fused_26_scratch_bytes, 0xb4288557e0b89f23},
    {"fused_finish_27", fused_finish_27, fused_finish_27_extent, fused_finish_27_scratch_bytes, 0xf40c0a5ba22e7a8a},
    {"fused_28", fused_28, fused_28_extent, fused_28_scratch_bytes, 0x919c36ebe8d367e5},
    {"fused_finish_29", fused_finish_29, fused_finish_29_extent, fused_finish_29_scratch_bytes, 0x1b4f4c6d1d9554be},
    {"fused_finish_30", fused_finish_30, fused_finish_30_extent, fused_finish_30_scratch_bytes, 0xe784c2f25851a80d},
    {"fused_31", fused_31, fused_31_extent, fused_31_scratch_bytes, 0x6dd7ee6985d9e0b1},
    {"fused_finish_32", fused_finish_32, fused_finish_32_extent, fused_finish_32_scratch_bytes, 0xd84684fb5954cc84},
    {"fused_33", fused_33, fused_33_extent, fused_33_scratch_bytes, 0x089a135988d0c76c},
    {"fused_34", fused_34, fused_34_extent, fused_34_scratch_bytes, 0x84e1dae0d1919f6e},
    {"fused_35", fused_35, fused_35_extent, fused_35_scratch_bytes, 0x99de569d731b5938},
    {"add_36", add_36, add_36_extent, add_36_scratch_bytes, 0xab09d44b4991226a},
};
