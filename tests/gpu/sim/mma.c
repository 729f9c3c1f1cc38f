/* mma.sync by the fragment layouts of the PTX ISA (Warp Level Matrix Instructions). Every product is exact and a sum is
 * made in double precision and rounded once. With g = lane / 4 and t = lane % 4, for factors of w bits, n = 32 / w of them
 * in a register:
 *
 *     A[m, k]   register 0: (g, tn ..)   1: (g + 8, tn ..)   2: (g, 4n + tn ..)   3: (g + 8, 4n + tn ..)
 *     B[k, n]   register 0: (tn .., g)                       1: (4n + tn .., g)
 *     C[m, n]   0, 1: (g, 2t + 0, 1)                         2, 3: (g + 8, 2t + 0, 1)
 *
 * Where k is 4n (m16n8k8 of 16 bits) A has registers 0 and 1 alone, and B register 0. */
#include "lanes.h"
#include "numbers.h"

#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)

typedef double four __attribute__((vector_size(32), may_alias));

/* What the registers of a row hold: n numbers a lane. */
static void factors(int type, const uint32_t *row, double to[LANES][4]) {
    for (int l = 0; l < LANES && type == BF16; l++)
        to[l][0] = float_of(row[l] << 16), to[l][1] = float_of(row[l] & 0xffff0000);
    for (int l = 0; l < LANES && type == F16; l++)
        to[l][0] = f16_value(row[l] & 0xffff), to[l][1] = f16_value(row[l] >> 16);
    for (int l = 0; l < LANES && type == TF32; l++)
        to[l][0] = float_of(row[l] & 0xffffe000); /* 10 bits of mantissa */
    for (int l = 0; l < LANES && (type == E4M3 || type == E5M2); l++)
        for (int i = 0; i < 4; i++)
            to[l][i] = type == E4M3 ? e4m3_value(row[l] >> 8 * i & 0xff) : e5m2_value(row[l] >> 8 * i & 0xff);
}

void PASTE(run_mma, VARIANT)(struct run *r, struct warp *w, const struct op *op) {
    const int32_t *o = r->f->operands + op->operands;
    int k = op->vector, type = op->from, n = type == TF32 ? 1 : type == F16 || type == BF16 ? 2 : 4;
    int n_c = op->type == F32 ? 4 : 2, n_a = k == 4 * n ? 2 : 4;
    double a[16][32], b[32][8] __attribute__((aligned(32))), c[16][8] __attribute__((aligned(32))), part[LANES][4];
    for (int reg = 0; reg < n_a; reg++) {
        factors(type, w->file + o[n_c + reg], part);
        for (int lane = 0; lane < LANES; lane++)
            for (int i = 0; i < n; i++)
                a[lane / 4 + reg % 2 * 8][reg / 2 * 4 * n + lane % 4 * n + i] = part[lane][i];
    }
    for (int reg = 0; reg < n_a / 2; reg++) {
        factors(type, w->file + o[n_c + n_a + reg], part);
        for (int lane = 0; lane < LANES; lane++)
            for (int i = 0; i < n; i++)
                b[reg * 4 * n + lane % 4 * n + i][lane / 4] = part[lane][i];
    }
    const int32_t *rows = o + n_c + n_a + n_a / 2;
    for (int i = 0; i < 4; i++)
        for (int lane = 0; lane < LANES; lane++)
            c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = n_c == 4 ? float_of(w->file[rows[i] + lane])
                                                                     : f16_value(w->file[rows[i / 2] + lane] >> i % 2 * 16 & 0xffff);
    for (int i = 0; i < 16; i++) {
        four *sum = (four *)c[i], left = sum[0], right = sum[1];
        for (int l = 0; l < k; l++) {
            const four *row = (const four *)b[l];
            left += a[i][l] * row[0], right += a[i][l] * row[1];
        }
        sum[0] = left, sum[1] = right;
    }
    for (int lane = 0; lane < LANES; lane++)
        for (int h = 0; h < 2; h++) {
            const double *x = &c[lane / 4 + h * 8][lane % 4 * 2];
            if (n_c == 4)
                for (int i = 0; i < 2; i++)
                    w->file[o[2 * h + i] + lane] = bits_of((float)x[i]);
            else
                w->file[o[h] + lane] = f16_bits(x[0], TO_NEAREST) | f16_bits(x[1], TO_NEAREST) << 16;
        }
    r->counts.mma++;
}
