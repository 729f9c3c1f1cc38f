/* Sums and maxima over ranks: of each run of elements in an order of its own, drawn by the seed, the same on all ranks; rounded in
 * each step as NCCL rounds, to the type itself. A maximum with a NaN is the other number, as fmax has it. */
#include "tests/gpu/sim/nccl.h"

#include "tests/gpu/sim/numbers.h"

#include <math.h>
#include <stdio.h>

enum { RUN = 64 };

int64_t type_bytes(int type) {
    switch (type) {
    case 0: case DTM_NCCL_U8: return 1;
    case DTM_NCCL_F16: case DTM_NCCL_BF16: return 2;
    case DTM_NCCL_I32: case 3: case DTM_NCCL_F32: return 4;
    case 4: case 5: case DTM_NCCL_F64: return 8;
    default: return 0;
    }
}

void call_text(const struct call *c, char *out, size_t size) {
    static const char *const kinds[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send", "receive"};
    static const char *const types[] = {"i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16"};
    static const char *const ops[] = {"sum", "product", "max", "min", "mean"};
    int length = snprintf(out, size, "%s of %llu %s", kinds[c->kind], (unsigned long long)c->count, types[c->type]);
    if (length < 0 || (size_t)length >= size) return;
    if (c->kind == ALL_REDUCE || c->kind == REDUCE_SCATTER || c->kind == REDUCE)
        length += snprintf(out + length, size - (size_t)length, ", %s", ops[c->op]);
    if ((c->kind == BROADCAST || c->kind == REDUCE) && (size_t)length < size)
        snprintf(out + length, size - (size_t)length, ", root %d", c->root);
}

bool calls_agree(const struct call *a, const struct call *b) {
    return a->kind == b->kind && a->count == b->count && a->type == b->type && a->op == b->op && a->root == b->root;
}

static double two(double a, double b, int op) { return op == DTM_NCCL_MAX ? fmax(a, b) : a + b; }
/* In single precision: the sum of two such numbers in double precision, rounded, is the same. */
static float two_floats(float a, float b, int op) { return (float)two((double)a, (double)b, op); }
static void add(void *to, const void *from, uint64_t i, int type, int op) {
    switch (type) {
    case DTM_NCCL_F32: {
        ((float *)to)[i] = two_floats(((const float *)to)[i], ((const float *)from)[i], op);
        return;
    }
    case DTM_NCCL_F64: {
        ((double *)to)[i] = two(((const double *)to)[i], ((const double *)from)[i], op);
        return;
    }
    case DTM_NCCL_I32: {
        int64_t a = ((const int32_t *)to)[i], b = ((const int32_t *)from)[i];
        ((int32_t *)to)[i] = (int32_t)(uint32_t)(op == DTM_NCCL_MAX ? (a > b ? a : b) : a + b);
        return;
    }
    case DTM_NCCL_BF16: {
        float a = bf16_value(((const uint16_t *)to)[i]), b = bf16_value(((const uint16_t *)from)[i]);
        ((uint16_t *)to)[i] = (uint16_t)bf16_nearest(two_floats(a, b, op));
        return;
    }
    case DTM_NCCL_F16: {
        float a = f16_value(((const uint16_t *)to)[i]), b = f16_value(((const uint16_t *)from)[i]);
        ((uint16_t *)to)[i] = (uint16_t)f16_nearest(two_floats(a, b, op));
        return;
    }
    default: {
        int a = ((const uint8_t *)to)[i], b = ((const uint8_t *)from)[i];
        ((uint8_t *)to)[i] = (uint8_t)(op == DTM_NCCL_MAX ? (a > b ? a : b) : a + b);
    }
    }
}

void reduce(void *to, const void *const *from, int n, uint64_t count, uint64_t first, int type, int op, uint64_t seed) {
    int64_t bytes = type_bytes(type);
    for (uint64_t begin = 0; begin < count; begin += RUN) {
        uint64_t end = begin + RUN < count ? begin + RUN : count;
        int order[MAX_RANKS];
        for (int m = 0; m < n; m++) {
            int other = (int)(nccl_mix(seed, (first + begin) / RUN * MAX_RANKS + (uint64_t)m) % (uint64_t)(m + 1));
            order[m] = order[other];
            order[other] = m;
        }
        memcpy((char *)to + begin * (uint64_t)bytes, (const char *)from[order[0]] + begin * (uint64_t)bytes, (end - begin) * (uint64_t)bytes);
        for (int m = 1; m < n; m++)
            for (uint64_t i = begin; i < end; i++) add(to, from[order[m]], i, type, op);
    }
}
