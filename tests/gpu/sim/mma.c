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

static float factor(int type, uint32_t word, int i) {
    switch (type) {
    case F16: return f16_value(word >> 16 * i & 0xffff);
    case BF16: return bf16_value(word >> 16 * i & 0xffff);
    case E4M3: return e4m3_value(word >> 8 * i & 0xff);
    case E5M2: return e5m2_value(word >> 8 * i & 0xff);
    default: return float_of(word & 0xffffe000); /* tf32: 10 bits of mantissa */
    }
}

void PASTE(run_mma, VARIANT)(struct run *r, struct warp *w, const struct op *op) {
    const int32_t *o = r->f->operands + op->operands;
    int k = op->vector, type = op->from, n = type == TF32 ? 1 : type == F16 || type == BF16 ? 2 : 4;
    int n_c = op->type == F32 ? 4 : 2, n_a = k == 4 * n ? 2 : 4;
    double a[16][32], b[32][8], c[16][8];
    for (int lane = 0; lane < LANES; lane++) {
        int g = lane / 4, t = lane % 4;
        for (int reg = 0; reg < n_a; reg++) {
            uint32_t word = w->file[o[n_c + reg] + lane];
            for (int i = 0; i < n; i++)
                a[g + reg % 2 * 8][reg / 2 * 4 * n + t * n + i] = factor(type, word, i);
        }
        for (int reg = 0; reg < n_a / 2; reg++) {
            uint32_t word = w->file[o[n_c + n_a + reg] + lane];
            for (int i = 0; i < n; i++)
                b[reg * 4 * n + t * n + i][g] = factor(type, word, i);
        }
        for (int i = 0; i < 4; i++) {
            const int32_t *rows = o + n_c + n_a + n_a / 2;
            uint32_t word = n_c == 4 ? w->file[rows[i] + lane] : w->file[rows[i / 2] + lane] >> i % 2 * 16 & 0xffff;
            c[g + i / 2 * 8][t * 2 + i % 2] = n_c == 4 ? float_of(word) : f16_value(word);
        }
    }
    for (int i = 0; i < 16; i++)
        for (int l = 0; l < k; l++)
            for (int j = 0; j < 8; j++)
                c[i][j] += a[i][l] * b[l][j];
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
