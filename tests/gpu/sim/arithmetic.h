/* What instructions compute, and the loops over lanes that do it: floats with their roundings, conversions, comparisons, bits.
 * Included by lanes.c alone, which is compiled for each architecture. */
#ifndef ARITHMETIC_H
#define ARITHMETIC_H
#include "numbers.h"
#include "run.h"

#include <fenv.h>

#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif
#define R32(row) (file + (row))
#define S32R(row) ((int32_t *)(file + (row)))
#define R64(row) ((uint64_t *)(void *)(file + (row)))
#define S64R(row) ((int64_t *)(void *)(file + (row)))
#define F32R(row) ((float *)(void *)(file + (row)))
#define F64R(row) ((double *)(void *)(file + (row)))

/* Of every lane of the mask m: result row D of type T is E, an expression of l. */
#define EACH(T, D, E)                                                                                                          \
    do {                                                                                                                       \
        T *to_ = (T *)(void *)(file + (D));                                                                                    \
        if (m == ALL_LANES) {                                                                                                  \
            INDEPENDENT for (int l = 0; l < LANES; l++) to_[l] = (T)(E);                                                       \
        } else {                                                                                                               \
            for (int l = 0; l < LANES; l++)                                                                                    \
                if (m >> l & 1)                                                                                                \
                    to_[l] = (T)(E);                                                                                           \
        }                                                                                                                      \
    } while (0)

/* ---- numbers ---- */

static float flushed(float x) { return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x; }
static float min_float(float a, float b) {
    return isnan(a) ? b : isnan(b) ? a : a == b ? (signbit(a) ? a : b) : a < b ? a : b;
}
static float max_float(float a, float b) {
    return isnan(a) ? b : isnan(b) ? a : a == b ? (signbit(a) ? b : a) : a > b ? a : b;
}
static double min_double(double a, double b) {
    return isnan(a) ? b : isnan(b) ? a : a == b ? (signbit(a) ? a : b) : a < b ? a : b;
}
static double max_double(double a, double b) {
    return isnan(a) ? b : isnan(b) ? a : a == b ? (signbit(a) ? b : a) : a > b ? a : b;
}

/* Without branches. Of equal ones the bits are those of both, but for zeros: the lesser is the negative one. */
static inline float least(float a, float b) {
    float d = a < b ? a : b < a ? b : float_of(bits_of(a) | bits_of(b));
    return a != a ? b : b != b ? a : d;
}
static inline float greatest(float a, float b) {
    float d = a > b ? a : b > a ? b : float_of(bits_of(a) & bits_of(b));
    return a != a ? b : b != b ? a : d;
}

static const int directions[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
/* Volatile, so that the compiler leaves the operation between the changes of the rounding mode. */
#define DIRECTED(name, type, root, fused)                                                                                          \
    static __attribute__((noinline)) type name(int base, type a_, type b_, type c_, int round) {                                   \
        volatile type a = a_, b = b_, c = c_, d;                                                                                   \
        fesetround(directions[round]);                                                                                             \
        switch (base) {                                                                                                            \
        case ADD: d = a + b; break;                                                                                                \
        case SUB: d = a - b; break;                                                                                                \
        case MUL: d = a * b; break;                                                                                                \
        case DIV: d = a / b; break;                                                                                                \
        case RCP: d = 1 / a; break;                                                                                                \
        case SQRT: d = root(a); break;                                                                                             \
        default: d = fused(a, b, c); break;                                                                                        \
        }                                                                                                                          \
        fesetround(FE_TONEAREST);                                                                                                  \
        return d;                                                                                                                  \
    }
DIRECTED(directed, float, sqrtf, fmaf)
DIRECTED(directed_double, double, sqrt, fma)

/* f32 with modifiers. */
static float slow(const struct op *op, float a, float b, float c) {
    float d;
    if (op->mods & FTZ)
        a = flushed(a), b = flushed(b), c = flushed(c);
    switch (op->base) {
    case MIN: d = (op->mods & NANS) && (isnan(a) || isnan(b)) ? NAN : min_float(a, b); break;
    case MAX: d = (op->mods & NANS) && (isnan(a) || isnan(b)) ? NAN : max_float(a, b); break;
    case ABS: d = fabsf(a); break;
    case NEG: d = -a; break;
    default: d = directed(op->base, a, b, c, op->round); break;
    }
    if (op->mods & FTZ)
        d = flushed(d);
    if (op->mods & SAT)
        d = !(d > 0) ? 0 : d > 1 ? 1 : d;
    return d;
}

/* The functions that are approximate; bounds are those of the ISA. */
static float function(struct run *r, const struct op *op, float x, float y) {
    bool ftz = op->mods & FTZ;
    if (ftz)
        x = flushed(x), y = flushed(y);
    uint32_t bits = bits_of(x);
    float d;
    switch (op->base) {
    case EX2: d = approximate(r, EX2, bits, exp2((double)x), 0x1p-22, 0); break;
    case LG2: d = approximate(r, LG2, bits, log2((double)x), x > 0.5f && x < 2 ? 0 : 0x1p-22, x > 0.5f && x < 2 ? 0x1p-22 : 0); break;
    case RCP: d = approximate(r, RCP, bits, 1 / (double)x, 0x1p-23, 0); break;
    case RSQRT: d = approximate(r, RSQRT, bits, 1 / sqrt((double)x), 0x1.3p-23, 0); break;
    case SQRT: d = approximate(r, SQRT, bits, sqrt((double)x), 0x1p-23, 0); break;
    case SIN: d = approximate(r, SIN, bits, sin((double)x), 0, 0x1p-21); break;
    case COS: d = approximate(r, COS, bits, cos((double)x), 0, 0x1p-21); break;
    case TANH: d = approximate(r, TANH, bits, tanh((double)x), 0x1p-11, 0); break;
    default: d = approximate(r, DIV, bits ^ bits_of(y) * 7, (double)x / (double)y, 0x1p-22, 0); break; /* 2 ulp */
    }
    return ftz ? flushed(d) : d;
}

/* f64: the upper half of the result alone, with 20 bits of mantissa; rsqrt without .ftz has all of them, and the same bound. */
static double gross(struct run *r, const struct op *op, double x) {
    if (op->mods & FTZ && fpclassify(x) == FP_SUBNORMAL)
        x = copysign(0, x);
    double d = op->base == RCP ? 1 / x : 1 / sqrt(x);
    if (r->launch->perturb && isfinite(d))
        d *= 1 + (double)(approximate(r, op->base, (uint32_t)(bits_of_double(x) >> 29), 1, 0x1p-21, 0) - 1);
    return op->mods & FTZ ? fpclassify(d) == FP_SUBNORMAL ? copysign(0, d) : double_of(bits_of_double(d) & ~UINT64_C(0xffffffff)) : d;
}

static double small_value(int type, uint32_t bits) { return type == F16 ? f16_value(bits) : bf16_value(bits); }
static uint32_t small_result(int type, double x) { return type == F16 ? f16_bits(x, TO_NEAREST) : bf16_bits(x, TO_NEAREST); }
/* f16 and bf16: in double precision, rounded once. */
static uint32_t small(const struct op *op, int type, uint32_t a_, uint32_t b_, uint32_t c_) {
    double a = small_value(type, a_), b = small_value(type, b_), c = small_value(type, c_), d;
    switch (op->base) {
    case ABS: return a_ & 0x7fff;
    case NEG: return a_ ^ 0x8000;
    case ADD: d = a + b; break;
    case SUB: d = a - b; break;
    case MUL: d = a * b; break;
    case MIN: d = (op->mods & NANS) && (isnan(a) || isnan(b)) ? NAN : min_double(a, b); break;
    case MAX: d = (op->mods & NANS) && (isnan(a) || isnan(b)) ? NAN : max_double(a, b); break;
    case EX2: d = exp2(a); break;
    case TANH: d = tanh(a); break;
    default: d = fma(a, b, c); break;
    }
    if ((op->mods & RELU) && d < 0)
        d = 0;
    uint32_t bits = small_result(type, d);
    return op->mods & FTZ && !(bits & 0x7f80) ? bits & 0x8000 : bits; /* of bf16 alone */
}
static uint32_t small_pair(const struct op *op, int type, uint32_t a, uint32_t b, uint32_t c) {
    return small(op, type, a & 0xffff, b & 0xffff, c & 0xffff) | small(op, type, a >> 16, b >> 16, c >> 16) << 16;
}

/* ---- conversions ---- */

static int64_t extended(int type, uint64_t bits) {
    switch (type) {
    case U8: case B8: return (uint8_t)bits;
    case S8: return (int8_t)bits;
    case U16: case B16: return (uint16_t)bits;
    case S16: return (int16_t)bits;
    case U32: case B32: return (uint32_t)bits;
    case S32: return (int32_t)bits;
    default: return (int64_t)bits;
    }
}
static double float_value(int type, uint64_t bits) {
    switch (type) {
    case F16: return f16_value((uint32_t)bits & 0xffff);
    case BF16: return bf16_value((uint32_t)bits & 0xffff);
    case F32: return float_of((uint32_t)bits);
    default: return double_of(bits);
    }
}
static void limits(int type, double *low, double *high, int64_t *least, uint64_t *greatest) {
    int bits = type_bytes(type) * 8;
    bool is_signed = type >= S8 && type <= S64;
    *greatest = bits == 64 ? UINT64_MAX >> is_signed : (UINT64_C(1) << (bits - is_signed)) - 1;
    *least = is_signed ? -(int64_t)(*greatest) - 1 : 0;
    *low = (double)*least, *high = ldexp(1, bits - is_signed);
}
static uint64_t to_integer(double x, int type, int round) {
    double low, high;
    int64_t least;
    uint64_t greatest;
    limits(type, &low, &high, &least, &greatest);
    if (isnan(x))
        return 0;
    x = rounded(x, round);
    return x < low ? (uint64_t)least : x >= high ? greatest : x < 0 ? (uint64_t)(int64_t)x : (uint64_t)x;
}
static uint64_t integer_to_integer(const struct op *op, int64_t x) {
    double low, high;
    int64_t least;
    uint64_t greatest;
    if (!(op->mods & SAT))
        return (uint64_t)x;
    limits(op->type, &low, &high, &least, &greatest);
    if (op->from == U64)
        return (uint64_t)x > greatest ? greatest : (uint64_t)x;
    return x < least ? (uint64_t)least : x > 0 && (uint64_t)x > greatest ? greatest : (uint64_t)x;
}
static __attribute__((noinline)) float to_float(double x, int round) {
    volatile double from = x;
    fesetround(directions[round]);
    volatile float to = (float)from;
    fesetround(FE_TONEAREST);
    return to;
}
static __attribute__((noinline)) double whole_to_float(int64_t x, bool is_unsigned, bool single, int round) {
    if (round == RN && single)
        return is_unsigned ? (double)(float)(uint64_t)x : (double)(float)x;
    /* As signed numbers: what compilers make of unsigned ones is not meant for every rounding. The bit that goes is kept. */
    bool halved = is_unsigned && x < 0;
    volatile int64_t from = halved ? (int64_t)((uint64_t)x >> 1 | ((uint64_t)x & 1)) : x;
    fesetround(directions[round]);
    volatile double to;
    if (single)
        to = (float)from;
    else
        to = (double)from;
    fesetround(FE_TONEAREST);
    return halved ? to * 2 : to;
}
static uint32_t to_small(int type, double x, int round) {
    switch (type) {
    case F16: return f16_bits(x, round);
    case BF16: return bf16_bits(x, round);
    case E4M3: return small_bits(x, 4, 3, round, true, true);
    default: return isnan(x) ? 0x7f : small_bits(x, 5, 2, round, true, false);
    }
}
static uint64_t to_floating(const struct op *op, double x) {
    if (op->mods & TOINT)
        x = rounded(x, op->round);
    if (op->mods & RELU)
        x = isnan(x) ? x : x > 0 ? x : 0;
    if (op->mods & SAT)
        x = !(x > 0) ? 0 : x > 1 ? 1 : x;
    int round = op->mods & TOINT ? RN : op->round;
    if (op->type == F64)
        return bits_of_double(x);
    if (op->type == TF32) /* ties away from zero */
        return isnan(x) ? 0x7fffffff : (bits_of((float)x) + (isinf(x) ? 0 : 0x1000)) & 0xffffe000;
    if (op->type != F32)
        return to_small(op->type, x, round);
    float single = round == RN ? (float)x : to_float(x, round);
    return bits_of(op->mods & FTZ ? flushed(single) : single);
}
static uint64_t convert(const struct op *op, uint64_t a, uint64_t b) {
    static const uint8_t half[N_TYPES] = {[F16X2] = F16, [BF16X2] = BF16, [E4M3X2] = E4M3, [E5M2X2] = E5M2};
    if (half[op->type]) { /* the first source is the upper half */
        int to = half[op->type], bits = type_bytes(to) * 8;
        double high, low;
        if (op->vector == 2)
            high = float_of((uint32_t)a), low = float_of((uint32_t)b);
        else if (op->from == F16X2)
            high = f16_value(a >> 16 & 0xffff), low = f16_value(a & 0xffff);
        else
            high = op->from == E4M3X2 ? e4m3_value(a >> 8 & 255) : e5m2_value(a >> 8 & 255),
            low = op->from == E4M3X2 ? e4m3_value(a & 255) : e5m2_value(a & 255);
        if (op->mods & RELU)
            high = high < 0 ? 0 : high, low = low < 0 ? 0 : low;
        return to_small(to, low, op->round) | (uint64_t)to_small(to, high, op->round) << bits;
    }
    bool from_float = op->from >= F16;
    if (op->type >= F16) {
        if (from_float) {
            double x = float_value(op->from, a);
            return to_floating(op, op->mods & FTZ && op->from == F32 ? flushed((float)x) : x);
        }
        int64_t x = extended(op->from, a);
        struct op plain = *op;
        if (op->type == F32 || op->type == F64) { /* rounded once */
            plain.round = RN;
            return to_floating(&plain, whole_to_float(x, op->from == U64, op->type == F32, op->round));
        }
        return to_floating(op, op->from == U64 ? (double)(uint64_t)x : (double)x);
    }
    if (from_float)
        return to_integer(op->mods & FTZ && op->from == F32 ? flushed((float)float_value(F32, a)) : float_value(op->from, a), op->type,
                          op->round);
    return integer_to_integer(op, extended(op->from, a));
}

static void run_convert(uint32_t *file, const struct op *op, uint32_t m) {
    int bits = type_bytes(op->type) * 8;
    bool is_signed = op->type >= S8 && op->type <= S64;
    if (!op->mods && op->round == RN && !op->wide) /* the common ones */
        switch (op->from * N_TYPES + op->type) {
        case F32 * N_TYPES + BF16X2: EACH(uint32_t, op->d, bf16_nearest(F32R(op->b)[l]) | bf16_nearest(F32R(op->a)[l]) << 16); return;
        case F32 * N_TYPES + F16X2: EACH(uint32_t, op->d, f16_nearest(F32R(op->b)[l]) | f16_nearest(F32R(op->a)[l]) << 16); return;
        case F32 * N_TYPES + BF16: EACH(uint32_t, op->d, bf16_nearest(F32R(op->a)[l])); return;
        case F32 * N_TYPES + F16: EACH(uint32_t, op->d, f16_nearest(F32R(op->a)[l])); return;
        case F16 * N_TYPES + F32: EACH(float, op->d, f16_value(R32(op->a)[l] & 0xffff)); return;
        case BF16 * N_TYPES + F32: EACH(uint32_t, op->d, R32(op->a)[l] << 16); return;
        case S32 * N_TYPES + F32: EACH(float, op->d, S32R(op->a)[l]); return;
        case U32 * N_TYPES + F32: EACH(float, op->d, R32(op->a)[l]); return;
        }
    for (int l = 0; l < LANES; l++)
        if (m >> l & 1) {
            uint64_t a = op->wide & 1 ? R64(op->a)[l] : R32(op->a)[l], b = op->vector == 2 ? R32(op->b)[l] : 0;
            uint64_t x = convert(op, a, b);
            if (bits < 64) { /* a wider register: the sign goes on */
                x &= (UINT64_C(1) << bits) - 1;
                if (is_signed && x >> (bits - 1) & 1)
                    x |= ~((UINT64_C(1) << bits) - 1);
            }
            if (op->wide & 2)
                R64(op->d)[l] = x;
            else
                R32(op->d)[l] = bits == 16 ? (uint32_t)x & 0xffff : (uint32_t)x;
        }
}

/* ---- comparisons ---- */

#define COMPARES(T, ROW)                                                                                                       \
    do {                                                                                                                       \
        const T *a = ROW(op->a), *b = ROW(op->b);                                                                              \
        switch (op->how) {                                                                                                     \
        case EQ: for (int l = 0; l < LANES; l++) p |= (uint32_t)(a[l] == b[l]) << l; break;                                    \
        case NE: for (int l = 0; l < LANES; l++) p |= (uint32_t)(a[l] != b[l]) << l; break;                                    \
        case LT: for (int l = 0; l < LANES; l++) p |= (uint32_t)(a[l] < b[l]) << l; break;                                     \
        case LE: for (int l = 0; l < LANES; l++) p |= (uint32_t)(a[l] <= b[l]) << l; break;                                    \
        case GT: for (int l = 0; l < LANES; l++) p |= (uint32_t)(a[l] > b[l]) << l; break;                                     \
        default: for (int l = 0; l < LANES; l++) p |= (uint32_t)(a[l] >= b[l]) << l; break;                                    \
        }                                                                                                                      \
    } while (0)

static bool compares(int how, double a, double b) {
    bool none = isnan(a) || isnan(b);
    switch (how) {
    case EQ: return a == b;
    case NE: return !none && a != b;
    case LT: return a < b;
    case LE: return a <= b;
    case GT: return a > b;
    case GE: return a >= b;
    case EQU: return none || a == b;
    case NEU: return none || a != b;
    case LTU: return none || a < b;
    case LEU: return none || a <= b;
    case GTU: return none || a > b;
    case GEU: return none || a >= b;
    case NUM: return !none;
    default: return none;
    }
}
static uint32_t comparison(uint32_t *file, const struct op *op) {
    uint32_t p = 0;
    switch (op->type) {
    case U32: COMPARES(uint32_t, R32); break;
    case S32: COMPARES(int32_t, S32R); break;
    case U64: COMPARES(uint64_t, R64); break;
    case S64: COMPARES(int64_t, S64R); break;
    case U16: for (int l = 0; l < LANES; l++) p |= (uint32_t)compares(op->how, R32(op->a)[l] & 0xffff, R32(op->b)[l] & 0xffff) << l; break;
    case S16:
        for (int l = 0; l < LANES; l++)
            p |= (uint32_t)compares(op->how, (int16_t)R32(op->a)[l], (int16_t)R32(op->b)[l]) << l;
        break;
    case F64: for (int l = 0; l < LANES; l++) p |= (uint32_t)compares(op->how, F64R(op->a)[l], F64R(op->b)[l]) << l; break;
    case F32:
        if (op->how <= GE && op->how != NE && !op->mods) {
            COMPARES(float, F32R);
            break;
        }
        for (int l = 0; l < LANES; l++) {
            float a = F32R(op->a)[l], b = F32R(op->b)[l];
            p |= (uint32_t)compares(op->how, op->mods ? flushed(a) : a, op->mods ? flushed(b) : b) << l;
        }
        break;
    default:
        for (int l = 0; l < LANES; l++)
            p |= (uint32_t)compares(op->how, small_value(op->type, R32(op->a)[l] & 0xffff), small_value(op->type, R32(op->b)[l] & 0xffff)) << l;
    }
    return p;
}
static void run_setp(uint32_t *file, const struct op *op, uint32_t m) {
    uint32_t p = comparison(file, op), q = ~p;
    if (op->order) {
        uint32_t c = op->inverted & 2 ? ~file[op->c] : file[op->c];
        p = op->order == 1 ? p & c : op->order == 2 ? p | c : p ^ c;
        q = op->order == 1 ? q & c : op->order == 2 ? q | c : q ^ c;
    }
    file[op->d] = (file[op->d] & ~m) | (p & m);
    if (op->d2 >= 0)
        file[op->d2] = (file[op->d2] & ~m) | (q & m);
}

static void run_set(uint32_t *file, const struct op *op, uint32_t m) {
    uint32_t yes = op->from == F32 ? 0x3f800000 : op->from == F16 || op->from == F16X2 ? 0x3c00 : op->from == BF16 || op->from == BF16X2 ? 0x3f80
                                                                                                                       : UINT32_MAX;
    if (op->type == F16X2 || op->type == BF16X2) {
        int half = op->type == F16X2 ? F16 : BF16;
        for (int l = 0; l < LANES; l++) {
            uint32_t a = R32(op->a)[l], b = R32(op->b)[l];
            bool low = compares(op->how, small_value(half, a & 0xffff), small_value(half, b & 0xffff));
            bool high = compares(op->how, small_value(half, a >> 16), small_value(half, b >> 16));
            if (m >> l & 1)
                R32(op->d)[l] = (low ? yes & 0xffff : 0) | (high ? yes << 16 : 0);
        }
        return;
    }
    uint32_t p = comparison(file, op);
    EACH(uint32_t, op->d, p >> l & 1 ? yes : 0);
}

/* ---- bits ---- */

static uint64_t field_mask(uint32_t length) { return length >= 64 ? UINT64_MAX : (UINT64_C(1) << length) - 1; }
static uint64_t bfi(uint64_t a, uint64_t b, uint32_t position, uint32_t length, uint32_t bits) {
    position &= 255, length &= 255;
    if (position >= bits)
        return b;
    uint64_t mask = field_mask(length) << position;
    return (b & ~mask) | (a << position & mask);
}
static uint64_t bfe(uint64_t a, uint32_t position, uint32_t length, uint32_t bits, bool is_signed) {
    position &= 255, length &= 255;
    if (!length)
        return 0;
    uint32_t end = position + length - 1 < bits - 1 ? position + length - 1 : bits - 1;
    uint64_t sign = is_signed ? a >> end & 1 : 0;
    uint64_t field = position >= bits ? 0 : a >> position, kept = position >= bits ? 0 : end - position + 1;
    field &= field_mask((uint32_t)kept);
    return sign ? field | ~field_mask((uint32_t)kept) : field;
}
static uint64_t reversed(uint64_t a, int bits) {
    uint64_t d = 0;
    for (int i = 0; i < bits; i++)
        d |= (a >> i & 1) << (bits - 1 - i);
    return d;
}
static uint32_t first_bit(const struct op *op, uint64_t a, int bits) {
    bool is_signed = op->type == S32 || op->type == S64;
    if (is_signed && a >> (bits - 1) & 1)
        a = ~a & field_mask((uint32_t)bits);
    if (!a)
        return UINT32_MAX;
    uint32_t at = 63 - (uint32_t)__builtin_clzll(a);
    return op->mods & CLAMP ? (uint32_t)bits - 1 - at : at;
}
static uint32_t permuted(uint32_t a, uint32_t b, uint32_t how) {
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t n = how >> 4 * i & 15, byte = both >> 8 * (n & 7) & 255;
        if (n & 8)
            byte = byte & 128 ? 255 : 0;
        d |= byte << 8 * i;
    }
    return d;
}
/* Bit i of the table is what the bits abc = i give. */
static uint32_t table3(int64_t table, uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d = 0;
    for (int i = 0; i < 8; i++)
        if (table >> i & 1)
            d |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return d;
}
static uint32_t funnel(const struct op *op, uint32_t low, uint32_t high, uint32_t n) {
    n = op->mods & CLAMP ? (n < 32 ? n : 32) : n & 31;
    uint64_t both = (uint64_t)high << 32 | low;
    return op->mods & LEFT ? (uint32_t)((both << n) >> 32) : (uint32_t)(both >> n);
}
static uint32_t dot2(const struct op *op, uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 2; i++) {
        uint32_t x = a >> 16 * i & 65535, y = b >> (8 * i + 16 * (op->how - 1)) & 255;
        c += (op->type == S32 ? (uint32_t)(int16_t)x : x) * (op->from == S32 ? (uint32_t)(int8_t)y : y);
    }
    return c;
}
static uint32_t dot4(const struct op *op, uint32_t a, uint32_t b, uint32_t c) {
    if (op->how) return dot2(op, a, b, c);
    for (int i = 0; i < 4; i++) {
        uint32_t x = a >> 8 * i & 255, y = b >> 8 * i & 255;
        c += (op->type == S32 ? (uint32_t)(int8_t)x : x) * (op->from == S32 ? (uint32_t)(int8_t)y : y);
    }
    return c;
}
static uint64_t high_of(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }
static uint64_t high_of_signed(int64_t a, int64_t b) { return (uint64_t)((__int128)a * b >> 64); }
static int32_t quotient(int32_t a, int32_t b) { return b == 0 ? -1 : b == -1 ? (int32_t)(0u - (uint32_t)a) : a / b; }
static int32_t remainder32(int32_t a, int32_t b) { return b == 0 ? a : b == -1 ? 0 : a % b; }
static int64_t quotient64(int64_t a, int64_t b) { return b == 0 ? -1 : b == -1 ? (int64_t)(0u - (uint64_t)a) : a / b; }
static int64_t remainder64(int64_t a, int64_t b) { return b == 0 ? a : b == -1 ? 0 : a % b; }
#endif
